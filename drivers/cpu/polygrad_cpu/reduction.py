"""Reducing a block over some of its axes, each shape the fast way.

Here: the choice of NumPy calls for one shape, and the adding up of many blocks' results. Not here: what is reduced.

NumPy's reductions call their inner loop once for each run of memory; runs of a few elements cost 20 times the work
(measured: 7 ns an element for pairs, 0.1 for long runs), and a sum over one long run takes twice as long as a sum of
its halves.
"""

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Reducer = Callable[[Array, Array], None]

UFUNCS: dict[str, np.ufunc] = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}

SHORT = 64  # a run of memory of fewer elements is short
GROUP = 128  # rows that are added to each other in turn; more would lose digits
LONG = 512  # the run that short ones are joined to
SOME = 16  # slices that are combined one by one
LEAST = 256  # elements of a slice for which that pays
LEAST_ROWS = 4  # of them are worth joining, or left after it
WORTH = 8192  # elements from which joining pays


def reducer(kind: str, shape: tuple[int, ...], block: tuple[int, ...], axes: tuple[int, ...]) -> Reducer:
    """Return a function (a, out) that reduces *a*, of *shape*, over *axes*, which stay as axes of size 1 in `out`.

    Parameters
    ----------
    kind : str
        One of ``sum``, ``prod``, ``max``, ``min``.
    shape, block : tuple of int
        `a` has the block's extents, or 1 where it does not vary; it is reduced as if it had the block's along *axes*.

    Examples
    --------
    >>> out = np.empty((2, 1), np.float32)
    >>> reducer("sum", (2, 3), (2, 3), (1,))(np.ones((2, 3), np.float32), out); out.ravel()
    array([3., 3.], dtype=float32)
    """
    ufunc = UFUNCS[kind]
    reduce: Callable[..., Any] = ufunc.reduce
    wide = tuple(block[k] if k in axes else n for k, n in enumerate(shape))

    def plain(a: Array, out: Array) -> None:
        reduce(a, axes, None, out, True)  # positional: keywords cost a third of the call

    if wide != shape:
        return lambda a, out: plain(np.broadcast_to(a, wide), out)
    count, size = math.prod(wide[k] for k in axes), math.prod(wide)
    if kind == "sum" and axes and wide[axes[0]] > 2 * GROUP and math.prod(wide[axes[0] + 1 :]) >= SHORT:
        return _in_groups(axes)
    moving = [k for k in range(len(wide)) if wide[k] > 1]
    outer = [k for k in moving if k in axes]
    if outer and count <= SOME and size // count >= LEAST:
        behind = math.prod(wide[k] for k in moving if k > outer[-1])
        return _one_by_one(ufunc, plain, outer, wide, good=behind >= (SHORT if len(outer) > 1 else 2))
    if size < WORTH or count < LEAST_ROWS or outer != moving[: len(outer)]:
        return plain
    run = size // count  # what is left of the memory after the leading axes
    if run >= SHORT or (run == 1 and kind != "sum"):  # the maximum of one long run is NumPy's fastest loop
        return plain
    return _joined(ufunc, plain, count, run)


def _in_groups(axes: tuple[int, ...]) -> Reducer:
    """Add up groups of rows first, then the groups: NumPy adds rows one after the other, however many there are."""
    first, *others = axes
    inside = (first + 1, *(k + 1 for k in others))

    def reduce(a: Array, out: Array) -> None:
        n = a.shape[first] // GROUP * GROUP
        head, tail = a[(slice(None),) * first + (slice(n),)], a[(slice(None),) * first + (slice(n, None),)]
        groups = head.reshape(*a.shape[:first], -1, GROUP, *a.shape[first + 1 :])  # a view: one axis becomes two
        sums = np.add.reduce(groups, inside, a.dtype, keepdims=True)
        total = np.add.reduce(sums, first, a.dtype, keepdims=True)
        if n < a.shape[first]:
            np.add(total.reshape(out.shape), np.add.reduce(tail, axes, a.dtype, keepdims=True), out)
        else:
            out[...] = total.reshape(out.shape)

    return reduce


def _one_by_one(ufunc: np.ufunc, plain: Reducer, axes: list[int], wide: tuple[int, ...], *, good: bool) -> Reducer:
    """Combine the few slices along *axes*, unless memory is contiguous and its runs are *good* for NumPy's own loops.

    Of strided memory, and of several axes, NumPy would take the axis with the least stride as inner loop: a few
    elements.
    """
    ranges = [range(n) if k in axes else (None,) for k, n in enumerate(wide)]
    slices = [
        tuple(slice(None) if i is None else slice(i, i + 1) for i in place) for place in itertools.product(*ranges)
    ]
    first, second, *rest = slices

    def reduce(a: Array, out: Array) -> None:
        if good and a.flags.c_contiguous:
            plain(a, out)
            return
        ufunc(a[first], a[second], out=out)
        for part in rest:
            ufunc(out, a[part], out=out)

    return reduce


def _joined(ufunc: np.ufunc, plain: Reducer, count: int, run: int) -> Reducer:
    """Reduce `count` short rows of `run` elements as fewer, longer rows, then fold the long row that is left."""
    join = 1 << max(1, (LONG // run).bit_length() - 1)
    while join > 1 and count // join < LEAST_ROWS:
        join //= 2
    rows = count // join
    length = rows * join * run

    def reduce(a: Array, out: Array) -> None:
        if join == 1 or not a.flags.c_contiguous:
            plain(a, out)
            return
        flat = a.reshape(-1)
        long = _rows(ufunc, flat[:length].reshape(rows, join * run))
        if run == 1 and ufunc is np.add:
            found = np.add.reduce(long, 0, flat.dtype)  # pairwise
        else:
            width = join * run
            while width > run:
                width //= 2
                ufunc(long[:width], long[width : 2 * width], out=long[:width])
            found = long[:run]
        if length < flat.size:
            rest = ufunc.reduce(flat[length:].reshape(-1, run), 0, flat.dtype)
            found = ufunc(found, rest if run > 1 else rest[0])
        out[...] = np.reshape(found, out.shape)

    return reduce


def _rows(ufunc: np.ufunc, a: Array) -> Array:
    """Reduce the rows of *a*, group by group."""
    n = len(a) // GROUP * GROUP
    if n <= GROUP:
        return np.asarray(ufunc.reduce(a, 0, a.dtype))
    found = ufunc.reduce(ufunc.reduce(a[:n].reshape(-1, GROUP, a.shape[1]), 1, a.dtype), 0, a.dtype)
    return np.asarray(found if n == len(a) else ufunc(found, ufunc.reduce(a[n:], 0, a.dtype)))


class Pile:
    """The results of blocks, combined two by two as they come.

    That is as accurate as a pairwise sum, in memory for log2(blocks) results.

    >>> pile = Pile("sum", (1,), np.dtype(np.float64))
    >>> for x in (1.0, 2.0, 3.0): pile.push(np.array([x]))
    >>> pile.total()
    array([6.])
    """

    __slots__ = ("count", "dtype", "partial", "shape", "ufunc")

    def __init__(self, kind: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.ufunc = UFUNCS[kind]
        self.shape = shape
        self.dtype = dtype
        self.partial: list[Array] = []
        self.count = 0

    def __call__(self, reduce: Reducer, value: Array) -> None:
        """Reduce a block and take its result."""
        out = np.empty(self.shape, self.dtype)
        reduce(value, out)
        self.push(out)

    def push(self, part: Array) -> None:
        """Take *part*, which belongs to the pile from now on."""
        count = self.count
        while count & 1:
            part = self.ufunc(self.partial.pop(), part, out=part)
            count >>= 1
        self.partial.append(part)
        self.count += 1

    def total(self) -> Array:
        """Return everything combined."""
        result = self.partial[-1]
        for part in reversed(self.partial[:-1]):
            result = self.ufunc(part, result, out=result)
        return result
