"""Level 3, views: how loads and stores find their elements, and that nothing else is touched.

Here: offsets, strides of every kind, ranks, windows, gathers, guards, several stores; every output lies between guards.
Not here: what is computed on the way.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from polygrad.driver import Instr, Kernel, Store, View
from polygrad.driver.ir import DTYPES
from polygrad_conformance import building
from polygrad_conformance.bench import Bench
from polygrad_conformance.case import Array, Case
from polygrad_conformance.checks import check
from polygrad_conformance.grids import values

F = "float32"
TAG = 77  # of launches whose kernel has a status word


def contiguous(extents: Sequence[int]) -> list[int]:
    """Return the strides of a C order array.

    >>> contiguous((2, 3, 4))
    [12, 4, 1]
    """
    strides = [1]
    for n in reversed(extents[1:]):
        strides.insert(0, strides[0] * n)
    return strides[: len(extents)]


def _dynamic(structure: Sequence[int | None], strides: Sequence[int]) -> list[int]:
    return [n for n, known in zip(strides, structure, strict=True) if known is None]


def moved(
    extents: Sequence[int], load: tuple[Sequence[int | None], Sequence[int], int],
    store: tuple[Sequence[int | None], Sequence[int], int], size: int, dtype: str = F,
) -> Case:  # fmt: skip
    """Return the case that copies elements (floats doubled) from one view of a buffer to one of another.

    *load* and *store* are (what the structure knows of the strides, the strides, the offset); *size* is the size of the
    output without its margins.
    """
    floats = dtype in ("float32", "float64")
    body = [Instr("load", dtype, (), 0)]
    if floats:
        body.append(Instr("add", dtype, (0, 0)))
    views = (View(0, dtype, tuple(load[0])), View(1, dtype, tuple(store[0])))
    kernel = Kernel(len(extents), 0, (dtype, dtype), views, (), tuple(body), (Store(len(body) - 1, 1),))
    reach = sum(max(s * (n - 1), 0) for s, n in zip(load[1], extents, strict=True))
    source = (
        np.resize(values(dtype), load[2] + reach + 1) if not floats else np.arange(load[2] + reach + 1).astype(dtype)
    )
    out, margin = building.guarded(dtype, size)
    ints = (*extents, load[2], *_dynamic(load[0], load[1]), margin + store[2], *_dynamic(store[0], store[1]))
    return building.exact_case(kernel, [source, out], ints)


N = None
MOVES: dict[str, tuple[Any, ...]] = {
    "offset": ((10,), ((1,), (1,), 7), ((1,), (1,), 3), 13),
    "step": ((9,), ((N,), (3,), 1), ((1,), (1,), 0), 9),
    "negative": ((9,), ((N,), (-1,), 8), ((1,), (1,), 0), 9),
    "negative_step": ((5,), ((N,), (-2,), 9), ((1,), (1,), 0), 5),
    "zero": ((6,), ((N,), (0,), 2), ((1,), (1,), 0), 6),
    "broadcast_rows": ((4, 6), ((0, 1), (0, 1), 1), ((N, 1), (6, 1), 0), 24),
    "broadcast_columns": ((4, 6), ((1, 0), (1, 0), 1), ((N, 1), (6, 1), 0), 24),
    "transposed": ((5, 7), ((1, N), (1, 5), 0), ((N, 1), (7, 1), 0), 35),
    "transposed_square": ((6, 6), ((1, N), (1, 6), 0), ((N, 1), (6, 1), 0), 36),
    "rows_apart": ((5, 7), ((N, 1), (11, 1), 2), ((N, 1), (7, 1), 0), 35),
    "stride_one_by_chance": ((4, 5), ((N, N), (5, 1), 0), ((N, N), (5, 1), 0), 20),
    "overlapping": ((6, 4), ((N, 1), (1, 1), 0), ((N, 1), (4, 1), 0), 24),
    "reversed_both": ((3, 4), ((N, N), (-4, -1), 11), ((N, 1), (4, 1), 0), 12),
    "store_step": ((8,), ((1,), (1,), 0), ((N,), (3,), 0), 22),
    "store_negative": ((8,), ((1,), (1,), 0), ((N,), (-1,), 7), 8),
    "store_transposed": ((5, 7), ((N, 1), (7, 1), 0), ((1, N), (1, 5), 0), 35),
    "store_rows_apart": ((5, 7), ((N, 1), (7, 1), 0), ((N, 1), (10, 1), 0), 50),
    "permuted": ((3, 4, 5), ((N, 1, N), (4, 1, 12), 0), ((N, N, 1), (20, 5, 1), 0), 60),
    "ones": ((1, 5, 1), ((N, N, N), (99, 1, -7), 0), ((N, N, N), (5, 1, 3), 0), 5),
    "primes": ((13, 17, 3), ((N, N, 1), (51, 3, 1), 0), ((N, N, 1), (51, 3, 1), 0), 663),
    "wide": ((3, 1025), ((N, 1), (1025, 1), 0), ((N, 1), (1025, 1), 0), 3075),
    "tall": ((1025, 3), ((N, 1), (3, 1), 0), ((N, 1), (3, 1), 0), 3075),
}


@check("L3.view.{0}", each=[(name,) for name in MOVES])
def moves(bench: Bench, name: str) -> None:
    """One load and one store; every element arrives, the margins stay."""
    bench.judge(moved(*MOVES[name]))


@check("L3.rank.{0}", each=[(rank,) for rank in range(9)])
def ranks(bench: Bench, rank: int) -> None:
    """Kernels of 0 to 8 parallel axes, the input with its axes reversed."""
    extents = (2, 3, 2, 1, 3, 2, 2, 2)[:rank]
    strides = contiguous(extents)
    size = int(np.prod(extents)) if extents else 1
    backward = [int(np.prod(extents[:k])) for k in range(rank)]
    any_stride = (N,) * rank
    bench.judge(moved(extents, (any_stride, backward, 0), (any_stride, strides, 0), size))


@check("L3.dtype.{0}", each=[(d,) for d in DTYPES], needs=lambda d: (f"dtype.{d}",))
def dtypes(bench: Bench, dtype: str) -> None:
    """Strides and offsets count elements of each dtype."""
    bench.judge(moved((4, 5), ((N, N), (1, -4), 17), ((N, 1), (7, 1), 1), 30, dtype))


@check("L3.reduce.{0}", each=[("columns",), ("strided",), ("all",), ("two_axes",), ("one",), ("broadcast",)])
def reduced_views(bench: Bench, name: str) -> None:
    """Reduced axes have strides like others; an epilogue and a second store see the result."""
    extents, structure, strides, parallel = {
        "columns": ((6, 9), (1, N), (1, 6), 1),
        "strided": ((6, 9), (N, N), (20, 2), 1),
        "all": ((54,), (1,), (1,), 0),
        "two_axes": ((3, 4, 5), (N, N, 1), (20, 5, 1), 1),
        "one": ((6, 1), (N, 1), (1, 1), 1),
        "broadcast": ((6, 9), (0, 1), (0, 1), 1),
    }[name]
    rank, still = len(extents), (0,) * (len(extents) - parallel)
    out: tuple[int | None, ...] = (*(1,) * parallel, *still)
    views = (View(0, F, structure), View(1, F, out), View(2, F, out))
    body = (Instr("load", F, (), 0), Instr("reduce", F, (0,), "sum"), Instr("reduce", F, (0,), "max"),
            Instr("add", F, (1, 1)))  # fmt: skip
    kernel = Kernel(parallel, rank - parallel, (F, F, F), views, (), body, (Store(3, 1), Store(2, 2)))
    size = sum(s * (n - 1) for s, n in zip(strides, extents, strict=True)) + 1
    rows = extents[0] if parallel else 1
    first, margin = building.guarded(F, rows)
    second, _ = building.guarded(F, rows)
    ints = (*extents, 0, *_dynamic(structure, strides), margin, margin)
    data = (np.arange(size) % 17 - 8).astype(F)
    bench.judge(building.exact_case(kernel, [data, first, second], ints))


@check("L3.reduce.rows_of.{0}", each=[(n,) for n in (2, 31, 32, 33, 257, 1025, 5000)])
def rows_of_every_length(bench: Bench, length: int) -> None:
    """Sums of short and long rows, no element lost at either end, and broadcast back to the row."""
    body = (Instr("load", F, (), 0), Instr("reduce", F, (0,), "sum"), Instr("subtract", F, (0, 1)))
    views = (View(0, F, (N, 1)), View(1, F, (1, 0)), View(2, F, (N, 1)))
    kernel = Kernel(1, 1, (F, F, F), views, (), body, (Store(1, 1), Store(2, 2)))
    data = (np.arange(7 * length) % 5 - 2).astype(F)
    data[::length] = 64
    data[length - 1 :: length] = 32
    sums, margin = building.guarded(F, 7)
    centred, _ = building.guarded(F, 7 * length)
    bench.judge(building.exact_case(kernel, [data, sums, centred], (7, length, 0, length, margin, margin, length)))


WINDOWS = {
    "inside": (2, 7, -1.5), "left": (3, 12, 0.0), "right": (0, 6, 2.5), "empty": (4, 4, 9.0), "all": (0, 9, 1.0),
    "beyond": (-3, 15, 1.0), "infinite": (1, 8, -float("inf")),
}  # fmt: skip


@check("L3.window.{0}", each=[(name,) for name in WINDOWS])
def windows(bench: Bench, name: str) -> None:
    """Outside of its window a load gives the fill and touches no memory: padding."""
    lo, hi, fill = WINDOWS[name]
    view = View(0, F, (1,), (0,), 0, fill)
    kernel = Kernel(1, 0, (F, F), (view, View(1, F, (1,))), (), (Instr("load", F, (), 0),), (Store(0, 1),))
    lo_in, hi_in = max(lo, 0), min(hi, 9)
    source = np.arange(1, max(hi_in - lo_in, 1) + 1, dtype=F)  # exactly what may be touched
    out, margin = building.guarded(F, 9)
    bench.judge(building.exact_case(kernel, [source, out], (9, -lo_in, lo, hi, margin)))


# Numbers that a fill passed by way of a float64, or of a float32, would change.
FILLS = {
    "int32": -(2**31) + 1, "int64": 2**62 + 1, "uint32": 2**32 - 1, "uint64": 2**64 - 1, "float32": 16777215.0,
    "float64": 0.1, "bool": True,
}  # fmt: skip


@check("L3.window.fill.{0}", each=[(dtype,) for dtype in FILLS], needs=lambda dtype: (f"dtype.{dtype}",))
def fills_are_exact(bench: Bench, dtype: str) -> None:
    """The fill around a window is the number that was given, to the last bit of its dtype."""
    views = (View(0, dtype, (1,), (0,), 0, FILLS[dtype]), View(1, dtype, (1,)))
    kernel = Kernel(1, 0, (dtype, dtype), views, (), (Instr("load", dtype, (), 0),), (Store(0, 1),))
    out, margin = building.guarded(dtype, 9)
    bench.judge(building.exact_case(kernel, [np.ones(4, dtype), out], (9, -3, 3, 7, margin)))


@check("L3.window.plane")
def window_of_two_axes(bench: Bench) -> None:
    """A padded image: windows along both axes, and a sum over the padding."""
    view = View(0, F, (N, 1), (0, 1), 0, 0.5)
    out, margin = building.guarded(F, 6)
    body = (Instr("load", F, (), 0), Instr("reduce", F, (0,), "sum"))
    kernel = Kernel(1, 1, (F, F), (view, View(1, F, (1, 0))), (), body, (Store(1, 1),))
    source = np.arange(12, dtype=F)
    bench.judge(building.exact_case(kernel, [source, out], (6, 5, -4, 3, 1, 5, 1, 4, margin)))


def _gathering(index: Sequence[int], dtype: str, *, status: Sequence[int] = (0, 0, 0, 0)) -> Case:
    """Return the case that takes rows of a 5 by 3 table at *index*."""
    views = (View(0, dtype, (1, 0)), View(1, F, (0, 1), gathers=1), View(2, F, (N, 1)))
    body = (Instr("load", dtype, (), 0), Instr("load", F, (0,), 1))
    kernel = Kernel(2, 0, (dtype, F, F, "int32"), views, (), body, (Store(1, 2),), 3)
    out, margin = building.guarded(F, 3 * len(index))
    arrays: list[Array] = [np.array(index, dtype), np.arange(15, dtype=F), out, np.array(status, np.int32)]
    return building.exact_case(kernel, arrays, (len(index), 3, 0, 0, 3, 5, margin, 3, TAG))


GATHERS: dict[str, tuple[list[int], tuple[int, ...]]] = {
    "plain": ([0, 4, 2, 2, 1], (0, 0, 0, 0)),
    "negative": ([-1, -5, 3, -2], (0, 0, 0, 0)),
    "too_large": ([1, 5, 2], (0, 0, 0, 0)),
    "too_small": ([1, -6, 2], (0, 0, 0, 0)),
    "far": ([0, 2**31 - 1, 3], (0, 0, 0, 0)),
    "reported_before": ([7, 1], (5, 6, 7, 8)),
}


@check(
    "L3.gather.{0}.{1}", each=[(g, d) for g in GATHERS for d in ("int32", "int64")], needs=lambda _g, d: (f"dtype.{d}",)
)
def gathers(bench: Bench, name: str, dtype: str) -> None:
    """Indices count from the end if negative; bad ones are clamped, and the first is reported in the status word."""
    index, status = GATHERS[name]
    bench.judge(_gathering(index, dtype, status=status))


@check("L3.guard.poison")
def guarded_loads(bench: Bench) -> None:
    """What a guard hides does not come through, NaN or not: a causal mask."""
    index = "int32" if "int32" in bench.info.dtypes else "int64"
    body = (
        Instr("iota", index, (), 0), Instr("iota", index, (), 1), Instr("less_equal", "bool", (1, 0)),
        Instr("load", F, (), 0, 2), Instr("const", F, (), -1.0), Instr("where", F, (2, 3, 4)),
        Instr("reduce", F, (5,), "sum"),
    )  # fmt: skip
    kernel = Kernel(1, 1, (F, F), (View(0, F, (N, 1)), View(1, F, (1, 0))), (), body, (Store(6, 1),))
    square = np.arange(64, dtype=F).reshape(8, 8)
    square[np.triu_indices(8, 1)] = np.nan
    out, margin = building.guarded(F, 8)
    bench.judge(building.exact_case(kernel, [square.reshape(-1), out], (8, 8, 0, 8, margin)))


@check("L3.guard.gather.{0}", each=[("int32",), ("int64",)], needs=lambda d: (f"dtype.{d}",))
def guarded_gathers(bench: Bench, dtype: str) -> None:
    """A load that a guard prevents reports no bad index; one that it lets through does."""
    for reported in (False, True):
        views = (View(0, dtype, (1, 0)), View(1, "bool", (1, 0)), View(2, F, (0, 1), gathers=1), View(3, F, (N, 1)))
        body = (
            Instr("load", dtype, (), 0), Instr("load", "bool", (), 1), Instr("load", F, (0,), 2, 1),
            Instr("const", F, (), -1.0), Instr("where", F, (1, 2, 3)),
        )  # fmt: skip
        kernel = Kernel(2, 0, (dtype, "bool", F, F, "int32"), views, (), body, (Store(4, 3),), 4)
        index = np.array([1, 99, -1, -99, 6 if reported else 2, 0], dtype)
        shown = np.array([True, False, True, False, True, False])
        out, margin = building.guarded(F, 18)
        arrays: list[Array] = [index, shown, np.arange(15, dtype=F), out, np.zeros(4, np.int32)]
        bench.judge(building.exact_case(kernel, arrays, (6, 3, 0, 0, 0, 3, 5, margin, 3, TAG)))


@check("L3.store.two_in_one")
def two_stores_in_one_buffer(bench: Bench) -> None:
    """Two values go to two places of one buffer, and what is between them stays."""
    views = (View(0, F, (1,)), View(1, F, (1,)), View(1, F, (N,)))
    body = (Instr("load", F, (), 0), Instr("negative", F, (0,)))
    kernel = Kernel(1, 0, (F, F), views, (), body, (Store(0, 1), Store(1, 2)))
    out, margin = building.guarded(F, 50)
    bench.judge(building.exact_case(kernel, [np.arange(1, 11, dtype=F), out], (10, 0, margin, margin + 12, 3)))


@check("L3.store.partial.{0}", each=[(p,) for p in (1, 2, 3, 7)])
def partial_sums(bench: Bench, parts: int) -> None:
    """A FULL value summed over the parallel axis in parts, beside a sum along the row."""
    rows, columns = 7, 5
    if -(-rows // parts) * (parts - 1) >= rows:
        parts = 4
    body = (Instr("load", F, (), 0), Instr("reduce", F, (0,), "sum"))
    views = (View(0, F, (N, 1)), View(1, F, (1, 0)), View(2, F, (0, 1), partial=True))
    kernel = Kernel(1, 1, (F, F, F), views, (), body, (Store(1, 1), Store(0, 2)))
    sums, margin = building.guarded(F, rows)
    partials, _ = building.guarded(F, parts * (columns + 2))
    data = (np.arange(rows * columns) % 11 - 5).astype(F)
    ints = (rows, columns, 0, columns, margin, margin, parts, columns + 2)
    bench.judge(building.exact_case(kernel, [data, sums, partials], ints))


@check("L3.inputs.unchanged")
def inputs_stay_as_they_are(bench: Bench) -> None:
    """Reading changes nothing: three inputs, one of them twice, are bit for bit what they were."""
    views = (View(0, F, (1,)), View(1, F, (N,)), View(1, F, (1,)), View(2, F, (1,)), View(3, F, (1,)))
    body = (Instr("load", F, (), 0), Instr("load", F, (), 1), Instr("load", F, (), 2), Instr("load", F, (), 3),
            Instr("add", F, (0, 1)), Instr("multiply", F, (2, 3)), Instr("subtract", F, (4, 5)))  # fmt: skip
    kernel = Kernel(1, 0, (F, F, F, F), views, (), body, (Store(6, 4),))
    a, b, c = (np.arange(20, dtype=F) + k for k in range(3))
    out, margin = building.guarded(F, 20)
    bench.judge(building.exact_case(kernel, [a, b, c, out], (20, 0, 19, -1, 0, 0, margin)))
