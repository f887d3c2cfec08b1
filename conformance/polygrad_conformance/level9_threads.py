"""Level 9, threads and replays: several at once on one device, and calls that are launched again.

Here: launches and allocations of drivers that declare thread_safety "free", arrays on any device, functions that
polygrad compiles, launches that a driver writes down itself; notices of launches (`notices_checks.py`), which importing
registers.
Not here: compiled training (level 6).
"""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

import polygrad as pg
from polygrad.driver import Instr, Kernel, Ref, Store, View, oracle
from polygrad_conformance import building, notices_checks
from polygrad_conformance.bench import Bench
from polygrad_conformance.case import Array
from polygrad_conformance.checks import check

__all__ = ["notices_checks"]

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


# ---- launches that the driver writes down ---------------------------------------------------------------------------

CAPTURE = ("feature.capture",)


def _scaled() -> Kernel:
    """Return the kernel that multiplies by a scalar and adds what is there already: made twice, it shows."""
    views = tuple(View(buffer, F, (1,)) for buffer in range(2))
    body = (
        Instr("load", F, (), 0), Instr("scalar", F, (), 0), Instr("multiply", F, (0, 1)), Instr("load", F, (), 1),
        Instr("add", F, (2, 3)),
    )  # fmt: skip
    return Kernel(1, 0, (F, F), views, (F,), body, (Store(4, 1),))


class _Written:
    """Two launches, ``b += a * factor; c += b``, and a copy of c to d if the device has it, made or written down."""

    def __init__(self, bench: Bench, number: int) -> None:
        capturing = bench.device.capture()
        assert capturing is not None, "the device declares the feature 'capture', but answers None"
        self.bench, self.capturing = bench, capturing
        self.data = bench.rng(93, number).integers(-8, 9, 96).astype(F)
        self.handles = [bench.put(self.data), *[bench.put(np.zeros(96, F)) for _ in range(3)]]
        self.want = [self.data, *[np.zeros(96, F) for _ in range(3)]]
        self.kernel = bench.prepare(_scaled())
        refs = [Ref(h, 0, (96,), (1,), F) for h in self.handles]
        self.copied = refs[3:], refs[2:3]
        self.copies = "copy" in bench.info.ops and capturing.takes("copy", *self.copied, {})

    def scale(self, factor: float) -> None:
        """Launch the kernel with a scalar."""
        self.kernel((self.handles[0], self.handles[1]), (96, 0, 0), (factor,))

    def launch(self, factor: float) -> None:
        """Make the launches."""
        self.scale(factor)
        self.kernel((self.handles[1], self.handles[2]), (96, 0, 0), (1.0,))
        if self.copies:
            self.bench.op("copy", *self.copied, {})

    def bundle(self, factor: float) -> Any:
        """Write the launches down."""
        self.capturing.begin()
        self.capturing.varies()
        self.launch(factor)
        return self.capturing.end()

    def expect(self, factor: float) -> None:
        """Do on the host what the launches do."""
        a, b, c, _ = self.want
        b += a * np.float32(factor)
        c += b
        if self.copies:
            self.want[3] = c.copy()

    def check(self, when: str) -> None:
        """Compare all memory."""
        for name, handle, want in zip("abcd", self.handles, self.want, strict=True):
            got = self.bench.read(handle, F, 96)
            assert (got == want).all(), f"{when}, {name} is not what it would be after the same launches by themselves"


@check("L9.capture.launches", needs=CAPTURE)
def launches_written_down(bench: Bench) -> None:
    """Launches that were written down are not made; launched, they do what they do one by one, each time."""
    it = _Written(bench, 0)
    it.launch(0.5)
    it.expect(0.5)
    bundle = it.bundle(2.0)
    it.check("after launches were written down")
    for turn in range(3):
        bundle.launch()
        it.expect(2.0)
        if turn == 1:
            it.launch(0.25)
            it.expect(0.25)
    it.check("after a bundle was launched three times")
    bundle.close()
    bench.exercised.add("feature.capture")


@check("L9.capture.numbers", needs=CAPTURE)
def numbers_of_launches(bench: Bench) -> None:
    """A launch in a bundle gets other numbers; what was launched before had its own, other launches keep theirs."""
    it = _Written(bench, 1)
    it.launch(0.5)
    it.expect(0.5)
    bundle = it.bundle(2.0)
    for factor in (2.0, -1.5, 0.25):
        bundle.change(0, lambda factor=factor: it.scale(factor), (factor,))
        bundle.launch()
        it.expect(factor)
    it.check("after a bundle was launched with other numbers")
    bundle.close()


@check("L9.capture.lifetimes", needs=CAPTURE)
def bundles_side_by_side(bench: Bench) -> None:
    """Bundles on one device know nothing of each other, whichever is closed first; memory may be written between."""
    them = [_Written(bench, 2 + k) for k in range(3)]
    for it in them:
        it.launch(1.0)
        it.expect(1.0)
    bundles = [it.bundle(float(k)) for k, it in enumerate(them)]
    for closed in (1, 0):
        for k, it in enumerate(them):
            if bundles[k] is not None:
                bench.write(it.handles[0], it.data * 2)
                it.want[0] = it.data * 2
                bundles[k].launch()
                it.expect(float(k))
        bundles[closed].close()
        bundles[closed] = None
    bundles[2].launch()
    them[2].expect(2.0)
    for it in them:
        it.check("after three bundles in turn, of which two were closed")
    bundles[2].close()


@check("L9.capture.abandoned", needs=CAPTURE)
def launches_forgotten(bench: Bench) -> None:
    """What was written down and abandoned is not made; launches after it are."""
    it = _Written(bench, 5)
    it.launch(1.0)
    it.expect(1.0)
    it.capturing.begin()
    it.launch(4.0)
    it.capturing.abandon()
    it.launch(0.5)
    it.expect(0.5)
    it.check("after launches were abandoned")
    bundle = it.bundle(3.0)
    bundle.launch()
    it.expect(3.0)
    it.check("after a bundle that was written down after another one was abandoned")
    bundle.close()
