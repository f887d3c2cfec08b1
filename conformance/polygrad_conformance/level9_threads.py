"""Level 9, threads and replays: several at once on one device, and calls that are launched again.

Here: launches and allocations of drivers that declare thread_safety "free", arrays on any device, functions that
polygrad compiles.
Not here: capture by a driver's own means, which the interface does not have yet; compiled training (level 6).
"""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

import polygrad as pg
from polygrad.driver import Instr, Kernel, Ref, oracle
from polygrad_conformance import building
from polygrad_conformance.bench import Bench
from polygrad_conformance.case import Array
from polygrad_conformance.checks import check

F = "float32"
THREADS = 6
FREE = ("thread_safety.free",)


def together(work: Callable[[int], None]) -> None:
    """Run *work* on several threads that start at once; raise what the first of them met."""
    errors: list[BaseException] = []
    barrier = threading.Barrier(THREADS)

    def run(number: int) -> None:
        try:
            barrier.wait()
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(n,), daemon=True) for n in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def _kernel(number: int) -> Kernel:
    return building.unary(
        F, Instr("const", F, (), float(number + 1)), Instr("multiply", F, (0, 1)), Instr("add", F, (2, 0))
    )


def _launched(bench: Bench, kernel: Kernel, data: Array) -> Array:
    """Launch without the bench's list of blocks, which belongs to one thread."""
    device, handles = bench.device, []
    launch = device.prepare(kernel)
    for array in (data, building.blank(F, len(data))):
        handle = device.allocate(array.nbytes)
        handles.append(handle)
        bench.write(handle, array)
    launch(tuple(handles), (len(data), 0, 0), ())
    got = np.empty(len(data), F)
    into = got.view(np.uint8).data
    device.launch_op("read", (), (Ref(handles[1], 0, (len(data),), (1,), F),), {"into": into})
    for handle in handles:
        device.free(handle)
    return got


def _right(kernel: Kernel, data: Array) -> Array:
    out = [data.copy(), building.blank(F, len(data))]
    oracle.run(kernel, out, (len(data), 0, 0), ())
    return out[1]


@check("L9.threads.one_kernel", needs=FREE)
def one_kernel_many_threads(bench: Bench) -> None:
    """Threads launch one program on buffers of their own."""
    kernel = _kernel(0)

    def work(number: int) -> None:
        for turn in range(15):
            data = np.full(3001, 10 * number + turn, F)
            assert (_launched(bench, kernel, data) == _right(kernel, data)).all(), "a launch had another thread's data"

    together(work)


@check("L9.threads.many_kernels", needs=FREE)
def compiling_at_once(bench: Bench) -> None:
    """Threads compile and launch programs at once, some the same, some not."""

    def work(number: int) -> None:
        for turn in range(2):
            kernel = _kernel(100 + (number + turn) % 3)
            data = np.arange(777, dtype=F) + number
            assert (_launched(bench, kernel, data) == _right(kernel, data)).all(), (
                "a launch ran another thread's program"
            )

    together(work)


@check("L9.threads.memory", needs=FREE)
def allocating_at_once(bench: Bench) -> None:
    """Threads allocate, fill, read and free: no block is given to two."""

    def work(number: int) -> None:
        rng = bench.rng(90, number)
        for _ in range(30):
            data = rng.integers(0, 256, int(rng.integers(1, 2000)), dtype=np.uint8)
            handle = bench.device.allocate(len(data))
            bench.write(handle, data)
            assert (bench.read(handle, "uint8", len(data)) == data).all(), "a block held another thread's bytes"
            bench.device.free(handle)

    together(work)


@check("L9.threads.arrays")
def arrays_at_once(bench: Bench) -> None:
    """Threads compute with arrays, gradients and random numbers on one device."""
    name = bench.device.name

    def work(number: int) -> None:
        with pg.device(name):
            for turn in range(5):
                x = pg.asarray(np.full(500, number + turn, np.float32))
                x.requires_grad = True
                loss = pg.sum(x * x * 0.5 + x)
                loss.backward()
                assert x.grad is not None
                got = x.grad.numpy()
                assert (got == number + turn + 1).all(), f"a gradient is {got[0]}, not {number + turn + 1}"
                noise = pg.random.uniform((50,), dtype=pg.float32)
                assert 0 <= float(pg.min(noise)) <= float(pg.max(noise)) < 1

    together(work)


# ---- replays -----------------------------------------------------------------------------------------------------

_UNARY: tuple[Callable[[Any], Any], ...] = (
    lambda v: v * 0.5, pg.abs, lambda v: pg.maximum(v, 0.25), lambda v: v - pg.sum(v, axis=1, keepdims=True) / 8,
    lambda v: v[::-1, :], lambda v: pg.matrix_transpose(v) + 1, lambda v: pg.where(v > 0, v, -v * 2),
)  # fmt: skip
_BINARY: tuple[Callable[[Any, Any], Any], ...] = (
    pg.add, pg.multiply, pg.subtract, pg.minimum, lambda a, b: (a @ b) / 16,
)  # fmt: skip


def _program(rng: np.random.Generator) -> Callable[..., Any]:
    """Return a function of two arrays and a number, drawn at random."""
    steps = [(int(rng.integers(3)), rng.integers(0, 99, 3)) for _ in range(8)]

    def program(x: Any, y: Any, factor: float) -> Any:
        values = [x, y * factor]
        for kind, (which, a, b) in steps:
            one, other = values[a % len(values)], values[b % len(values)]
            made = _UNARY[which % len(_UNARY)](one) if kind else _BINARY[which % len(_BINARY)](one, other)
            values.append(made)
        return values[-1], pg.sum(values[-2])

    return program


@check("L9.replay.programs")
def replays_of_programs(bench: Bench) -> None:
    """Compiled programs, called with other arrays and numbers, give what they give as they are, bit for bit."""
    rng = bench.rng(91)
    with pg.device(bench.device.name):
        for number in range(bench.effort.repeats // 6):
            program = _program(rng)
            compiled = pg.compile(program)
            for call in range(4):
                x, y = (pg.asarray(rng.integers(-8, 9, (8, 8)) / 4, dtype=pg.float32) for _ in range(2))
                got, want = compiled(x, y, 0.5 + call), program(x, y, 0.5 + call)
                for mine, right in zip(got, want, strict=True):
                    assert mine.numpy().tobytes() == right.numpy().tobytes(), (
                        f"program {number}, call {call}: a replay gives another value than the call itself"
                    )


@check("L9.replay.lifetimes")
def replays_side_by_side(bench: Bench) -> None:
    """Several compiled functions in turn, dropped in any order: none touches what is another's, or the caller's."""
    rng = bench.rng(92)
    with pg.device(bench.device.name):
        compiled = {
            k: pg.compile(lambda x, k=k: pg.sum((x * k + 1) * pg.sum(x * k, axis=0, keepdims=True), axis=1))
            for k in range(4)
        }
        kept: list[tuple[Any, Array]] = []
        for turn in range(80):
            k = list(compiled)[int(rng.integers(len(compiled)))]
            data = rng.integers(-4, 5, (16, 6)).astype(F)
            want = ((data * k + 1) * (data * k).sum(axis=0, keepdims=True)).sum(axis=1)
            kept.append((compiled[k](pg.asarray(data)), want))
            if turn in (40, 55, 70):
                del compiled[k]
        for turn, (got, want) in enumerate(kept):
            assert (got.numpy() == want).all(), f"the result of turn {turn} is no longer what it was"
