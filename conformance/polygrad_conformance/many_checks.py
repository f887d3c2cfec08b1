"""Launches of one kernel made together, against the same launches made one by one.

Here: the checks of drivers with the feature `many`, which importing this module registers.
Not here: what a kernel computes (levels 2 to 5).
"""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from polygrad.driver import Instr, Kernel, Store, View
from polygrad_conformance.bench import Bench
from polygrad_conformance.case import Array
from polygrad_conformance.checks import check
from polygrad_conformance.random_kernels import random_case

MANY = ("feature.many",)
F = "float32"
COUNTS = (2, 3, 17, 200)
KERNELS = 40  # random ones
GUARD = 3  # elements before and after what a launch may write


class Together:
    """Launches of one kernel: what each gets, as arrays of the host."""

    def __init__(self, bench: Bench, kernel: Kernel) -> None:
        self.bench, self.kernel = bench, kernel
        self.memory: list[Sequence[Array]] = []
        self.ints: list[tuple[int, ...]] = []
        self.scalars: list[tuple[Any, ...]] = []

    def add(self, memory: Sequence[Array], ints: Sequence[int], scalars: Sequence[Any] = ()) -> None:
        """Add a launch."""
        self.memory.append(memory)
        self.ints.append(tuple(ints))
        self.scalars.append(tuple(scalars))

    def check(self, turns: int = 1) -> None:
        """Make the launches together, several times, and as often one by one, and compare all memory bit by bit."""
        bench, kernel = self.bench, self.kernel
        single, together = bench.prepare(kernel), bench.device.prepare_many(kernel)
        alone = [[bench.put(a) for a in memory] for memory in self.memory]
        beside = [[bench.put(a) for a in memory] for memory in self.memory]
        try:
            for _ in range(turns):
                for handles, ints, scalars in zip(alone, self.ints, self.scalars, strict=True):
                    single(tuple(handles), ints, scalars)
                together(beside, tuple(self.ints), self.scalars)
            for n, (one, two, memory) in enumerate(zip(alone, beside, self.memory, strict=True)):
                for k, (mine, its, a) in enumerate(zip(one, two, memory, strict=True)):
                    want, got = (bench.read(h, kernel.buffers[k], len(a)) for h in (mine, its))
                    same = (want.view(np.uint8) == got.view(np.uint8)).all()
                    assert same, (
                        f"buffer {k} of launch {n} of {len(self.memory)} is not what it is after that launch alone"
                    )
        finally:
            for handle in (h for handles in (*alone, *beside) for h in handles):
                bench.free(handle)
        bench.exercised.add("feature.many")


def _update() -> Kernel:
    """Return ``b = b * c + a * a; d = sqrt(a * a + c)``, with a scalar of another dtype that is added to d."""
    views = tuple(View(buffer, F, (1,)) for buffer in range(3))
    body = (
        Instr("load", F, (), 0), Instr("load", F, (), 1), Instr("scalar", F, (), 0), Instr("multiply", F, (1, 2)),
        Instr("multiply", F, (0, 0)), Instr("add", F, (3, 4)), Instr("add", F, (4, 2)), Instr("sqrt", F, (6,)),
        Instr("scalar", "int32", (), 1), Instr("cast", F, (8,)), Instr("add", F, (7, 9)),
    )  # fmt: skip
    return Kernel(1, 0, (F, F, F), views, (F, "int32"), body, (Store(5, 1), Store(10, 2)))


def _row_sums() -> Kernel:
    """Return the sum of each row, less the row's element in the result."""
    views = (View(0, F, (None, 1)), View(1, F, (1, 0)))
    body = (
        Instr("load", F, (), 0),
        Instr("reduce", F, (0,), "sum"),
        Instr("scalar", F, (), 0),
        Instr("add", F, (1, 2)),
    )
    return Kernel(1, 1, (F, F), views, (F,), body, (Store(3, 1),))


@check("L5.many.sizes.{0}", each=[(n,) for n in COUNTS], needs=MANY)
def sizes_of_many(bench: Bench, count: int) -> None:
    """Launches of all sizes and offsets, each with memory and scalars of its own, leave what they leave one by one."""
    rng = bench.rng(57, count)
    together = Together(bench, _update())
    for n in range(count):
        size = int(rng.choice([1, 3, 64, 100, 1000, 4096, 33000 + n, 1 << 16])) if n else 1 << 15
        offset = int(rng.choice([0, 0, 1, 4]))
        memory = [rng.standard_normal(size + 2 * GUARD + offset).astype(F) for _ in range(3)]
        together.add(memory, (size, 0, GUARD + offset, offset), (0.5 + n, n - 3))
    together.check(turns=2)


@check("L5.many.sums", needs=MANY)
def sums_of_many(bench: Bench) -> None:
    """Sums of rows, few and many, long and short, are those of single launches bit for bit."""
    rng = bench.rng(58)
    together = Together(bench, _row_sums())
    for n, (rows, columns) in enumerate(
        [(1, 1), (3, 700), (64, 64), (1, 40000), (500, 8), (2, 40000), (7, 33), (64, 64)]
    ):
        together.add([rng.standard_normal(rows * columns).astype(F), np.zeros(rows, F)],
                     (rows, columns, 0, columns, 0), (float(n),))  # fmt: skip
    together.check()


@check("L5.many.random", needs=MANY, random=True)
def random_kernels_of_many(bench: Bench) -> None:
    """Random kernels, each launched three times together on other values, leave what they leave one by one."""
    info, rng = bench.info, bench.rng(59)
    seed, done = 1_000_000 * bench.seed, 0
    while done < KERNELS:
        case = random_case(seed, dtypes=info.dtypes, scalar_ops=info.scalar_ops, reductions=info.reductions)
        seed += 1
        if case.kernel.status >= 0 or len(case.kernel.buffers) > info.limits.max_buffers:
            continue
        together = Together(bench, case.kernel)
        for n in range(3):
            together.add([a if n == 0 else rng.permutation(a) for a in case.fresh()], case.ints, case.scalars)
        try:
            together.check()
        except AssertionError as error:
            raise AssertionError(f"random kernel {seed - 1}: {error}") from None
        done += 1


@check("L5.many.written", needs=(*MANY, "feature.capture"))
def many_in_a_bundle(bench: Bench) -> None:
    """Launches made together are one launch of a bundle, whose scalars are changed all at once; others keep theirs."""
    rng, kernel = bench.rng(60), _update()
    sizes = (5, 4096, 40000)
    memory = [[rng.standard_normal(n).astype(F) for _ in range(3)] for n in sizes]
    alone, beside = ([[bench.put(a) for a in own] for own in memory] for _ in range(2))
    ints = tuple((n, 0, 0, 0) for n in sizes)
    single, together = bench.prepare(kernel), bench.device.prepare_many(kernel)

    def given(turn: int) -> list[tuple[float, int]]:
        return [(0.25 * turn, n - turn) for n in range(len(sizes))]

    capturing = bench.device.capture()
    assert capturing is not None, "the device declares the feature 'capture', but answers None"
    together(beside, ints, given(0))
    capturing.begin()
    capturing.varies()
    together(beside, ints, given(1))
    together(beside[1:], ints[1:], given(0)[1:])  # its numbers stay
    single(tuple(beside[0]), ints[0], (0.5, 1))
    bundle = capturing.end()
    for turn in range(1, 5):
        if turn > 1:
            told = given(turn) if turn % 2 else None
            bundle.change(0, functools.partial(together, beside, ints, given(turn)), told)
        bundle.launch()
    bundle.close()
    for turn in range(5):
        launches = [*zip(alone, ints, given(turn), strict=True)]
        launches += (
            [*zip(alone[1:], ints[1:], given(0)[1:], strict=True), (alone[0], ints[0], (0.5, 1))] if turn else []
        )
        for handles, own, scalars in launches:
            single(tuple(handles), own, scalars)
    for n, (one, two) in enumerate(zip(alone, beside, strict=True)):
        for k, (mine, its) in enumerate(zip(one, two, strict=True)):
            want, got = (bench.read(h, F, sizes[n]) for h in (mine, its))
            assert (want == got).all(), f"buffer {k} of launch {n} in a bundle is not what it is after launches alone"
