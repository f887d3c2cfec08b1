"""Sorting, and finding one's place in what is sorted.

Here: `sort_` and `sort_values_`, which devices may have as ops of their own, and what users call: sort, argsort, topk,
searchsorted.
Not here: sets (`sets.py`), positions of extremes (`searching.py`).

Every sort is stable. NaN is the greatest value: last in ascending order, first in descending order. -0.0 equals 0.0.
"""

import math
import operator
from typing import Any

from polygrad import dtypes, shapes
from polygrad.errors import DTypeError, ShapeError
from polygrad.ops.internal import cast
from polygrad.ops.manipulation import part
from polygrad.ops.scans import along_last, reversed_last
from polygrad.ops.searching import before
from polygrad.ops.table import composite, library

ALL = "bool int float"


def _stage(xp: Any, value: Any, place: Any, size: int, gap: int) -> tuple[Any, Any]:
    """Return values and places after one stage of a bitonic network: partners are *gap* apart."""
    count = xp.iota(value.shape[-1], dtypes.int64)
    other = xp.bitwise_xor(count, gap)
    plan = along_last(value.ndim)
    theirs = xp.gather_(value, other, value.shape, plan)
    place_of_theirs = xp.gather_(place, other, place.shape, plan)
    ahead = before(xp, value, theirs)
    behind = before(xp, theirs, value)
    first = xp.bitwise_or(ahead, xp.bitwise_and(xp.bitwise_invert(behind), xp.less(place, place_of_theirs)))
    ascending = xp.equal(xp.bitwise_and(count, size), 0)
    lower = xp.equal(xp.bitwise_and(count, gap), 0)
    keep = xp.equal(first, xp.equal(lower, ascending))
    return xp.where(keep, value, theirs), xp.where(keep, place, place_of_theirs)


def _by_network(xp: Any, x: Any) -> tuple[Any, Any]:
    """Sort by a bitonic network: log2(n) ** 2 / 2 stages over all elements, for devices without the op.

    Places decide between equal elements, which makes it stable; those beyond the end come after all others.
    """
    n = x.shape[-1]
    room = 1 << (n - 1).bit_length()
    after = (*(0,) * (x.ndim - 1), room - n)
    value = xp.pad_(x, (0,) * x.ndim, after, _greatest(x.dtype))
    place = xp.broadcast_to(xp.iota(room, dtypes.int64), value.shape)
    size = 2
    while size <= room:
        gap = size // 2
        while gap:
            value, place = _stage(xp, value, place, size, gap)
            gap //= 2
        size *= 2
    return part(xp, value, x.ndim - 1, 0, n), part(xp, place, x.ndim - 1, 0, n)


def _greatest(dtype: dtypes.DType) -> Any:
    kind = dtypes.KINDS[dtype]
    return True if kind == "bool" else dtypes.integer_range(dtype)[1] if kind == "int" else math.nan


def _put_back(xp: Any, g: Any, positions: Any, x: Any) -> Any:
    return xp.scatter_add_(g, positions, x.shape, along_last(x.ndim))


def _take(xp: Any, t: Any, positions: Any) -> Any:
    return xp.gather_(t, positions, positions.shape, along_last(t.ndim))


@library(
    results=lambda x: [(x.shape, x.dtype), (x.shape, dtypes.int64)],
    fallback=_by_network,
    vjp=(lambda xp, g, out, x, index: _put_back(xp, g, xp.sibling(out, 1), x),),
    jvp=(lambda xp, t, out, x, index: _take(xp, t, xp.sibling(out, 1)),),
    kinds=ALL,
)
def sort_(xp: Any, x: Any, /) -> Any:
    """The elements in ascending order along the last axis, and the positions they come from."""
    # NumPy sorts -0.0 as equal to 0.0, and NaN last.
    positions = xp.argsort(x, axis=-1, kind="stable")
    return xp.take_along_axis(x, positions, axis=-1), positions


@library(
    results=lambda x: [(x.shape, x.dtype)],
    fallback=lambda xp, x: xp.sort_(x)[0],
    vjp=(lambda xp, g, out, x, index: _put_back(xp, g, xp.sort_(x)[1], x),),
    jvp=(lambda xp, t, out, x, index: _take(xp, t, xp.sort_(x)[1]),),
    kinds=ALL,
)
def sort_values_(xp: Any, x: Any, /) -> Any:
    """The elements in ascending order along the last axis, where nobody asks for positions."""
    return xp.sort(x, axis=-1, kind="stable")


def _real(words: str, *arrays: Any) -> None:
    for x in arrays:
        if dtypes.KINDS[x.dtype] == "complex":
            raise DTypeError(
                f"cannot {words} {x.dtype.name}: complex numbers have no order; take the real part or the absolute "
                "value first"
            )


def sorted_pair(xp: Any, x: Any, descending: bool) -> tuple[Any, Any]:
    """Return the sorted elements and their positions along the last axis, equal elements in the order they had."""
    if 0 in x.shape or x.shape[-1] == 1:
        return x, xp.zeros_like(x, dtype=dtypes.int64)
    if not descending:
        return xp.sort_(x)  # type: ignore[no-any-return]
    values, positions = xp.sort_(reversed_last(xp, x))
    return reversed_last(xp, values), (x.shape[-1] - 1) - reversed_last(xp, positions)


def _sorted_values(xp: Any, x: Any, descending: bool) -> Any:
    if 0 in x.shape or x.shape[-1] == 1:
        return x
    if xp.recorded_(x):
        return sorted_pair(xp, x, descending)[0]
    if not descending:
        return xp.sort_values_(x)
    # -0.0 and 0.0 are equal and yet two values: they keep their order, which is that of the operand reversed.
    return reversed_last(xp, xp.sort_values_(reversed_last(xp, x) if dtypes.KINDS[x.dtype] == "float" else x))


def _samples(draw: Any) -> Any:
    shapes_ = (((7,), -1), ((3, 5), -1), ((3, 5), 0), ((2, 3, 4), 1), ((1,), 0), ((2, 0), 1), ((0, 3), 1), ((2, 33), 1))
    out: list[Any] = [((draw.array(s, -3, 3),), {"axis": k}) for s, k in shapes_]
    out += [((draw.array(s, -3, 3),), {"axis": k, "descending": True}) for s, k in (((6,), -1), ((4, 3), 0))]
    return [*out, ((draw.array((4, 2), -3, 3),), {"stable": False})]


def _places_reference(np: Any, x: Any, axis: int, descending: bool) -> Any:
    if not descending:
        return np.argsort(x, axis=axis, kind="stable")
    # Ranks in descending order, by counting: what comes before is greater, or equal and earlier.
    rows = np.moveaxis(x, axis, -1)
    n = rows.shape[-1]
    greater = rows[..., None, :] > rows[..., :, None]
    tied = (rows[..., None, :] == rows[..., :, None]) & (np.arange(n)[None, :] < np.arange(n)[:, None])
    return np.moveaxis(np.argsort((greater | tied).sum(-1), axis=-1, kind="stable"), -1, axis)


def _sort_reference(np: Any, x: Any, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Any:
    return np.take_along_axis(x, _places_reference(np, x, axis, descending), axis)


@composite(reference=_sort_reference, samples=_samples, dtypes=ALL)
def sort(xp: Any, x: Any, /, *, axis: Any = -1, descending: Any = False, stable: Any = True) -> Any:
    """The elements in order along an axis. It is stable whatever *stable* says.

    NaN counts as greater than all numbers, so it comes last, or first if *descending*; -0.0 equals 0.0.
    """
    _real("sort", x)
    k = shapes.axis("sort", axis, x.ndim)
    return xp.moveaxis(_sorted_values(xp, xp.moveaxis(x, k, -1), bool(descending)), -1, k)


@composite(
    reference=lambda np, x, *, axis=-1, descending=False, stable=True: _places_reference(np, x, axis, descending),
    samples=_samples,
    dtypes=ALL,
    differentiable=False,
)
def argsort(xp: Any, x: Any, /, *, axis: Any = -1, descending: Any = False, stable: Any = True) -> Any:
    """The positions, int64, that put the elements in order along an axis, as `sort` does.

    Positions of equal elements are in ascending order, if *descending* too.
    """
    _real("sort", x)
    k = shapes.axis("sort", axis, x.ndim)
    return xp.moveaxis(sorted_pair(xp, xp.moveaxis(x, k, -1), bool(descending))[1], -1, k)


def _topk_reference(np: Any, x: Any, k: int, *, axis: int = -1, largest: bool = True) -> Any:
    positions = np.take(_places_reference(np, x, axis, largest), np.arange(k), axis=axis)
    return np.take_along_axis(x, positions, axis), positions


@composite(
    reference=_topk_reference,
    samples=lambda draw: [
        ((draw.array((9,), -3, 3), 4), {}),
        ((draw.array((3, 8), -3, 3), 2), {"axis": 1}),
        ((draw.array((5, 3), -3, 3), 5), {"axis": 0, "largest": False}),
        ((draw.array((4,), -3, 3), 0), {}),
    ],
    dtypes=ALL,
)
def topk(xp: Any, x: Any, k: Any, /, *, axis: Any = -1, largest: Any = True) -> Any:
    """The k largest (or smallest) elements along an axis in order, and their positions: a tuple (values, indices).

    Of equal elements the earlier one comes first; NaN counts as greater than all numbers.
    """
    _real("order", x)
    at = shapes.axis("take the largest", axis, x.ndim)
    count = operator.index(k)
    if not 0 <= count <= x.shape[at]:
        raise ShapeError(
            f"cannot take {count} elements along axis {at} of shape {list(x.shape)}: there are {x.shape[at]}"
        )
    turned = xp.moveaxis(x, at, -1)
    width = _block_width(turned, count) if largest or dtypes.KINDS[x.dtype] != "float" else 0
    if width:
        places = _leading_places(xp, xp.cut(turned), count, width, bool(largest))
        both = _take(xp, turned, places), places
    else:
        both = tuple(part(xp, b, x.ndim - 1, 0, count) for b in sorted_pair(xp, turned, bool(largest)))
    return tuple(xp.moveaxis(b, -1, at) for b in both)


LONG = 1 << 15  # elements of a row: from here on few of them are found without sorting all


def _block_width(x: Any, count: int) -> int:
    """Return the length of blocks, so that there are about as many as elements in those looked at; 0: sort all."""
    n = x.shape[-1]
    if count == 0 or n < LONG or shapes.size(x.shape) == 0:
        return 0
    width = 1 << ((n // count).bit_length() // 2)
    return width if count * width * 8 <= n else 0


def _leading_places(xp: Any, x: Any, count: int, width: int, largest: bool) -> Any:
    """Return the places of the first *count* elements in order, of long rows.

    They lie in the *count* blocks with the greatest maxima (or least minima), the earlier of equal ones: an element of
    any other block has as many before it. Only those blocks are sorted.
    """
    lead, rank, n = x.shape[:-1], x.ndim, x.shape[-1]
    blocks = -(-n // width)
    # What fills the last block comes after all elements equal to it, and is never among the first.
    fill = dtypes.lowest(x.dtype) if largest else _greatest(x.dtype)
    padded = xp.pad_(x, (0,) * rank, (*(0,) * (rank - 1), blocks * width - n), fill)
    table = xp.reshape_(padded, (*lead, blocks, width))
    peaks = xp.reshape_((xp.max_ if largest else xp.min_)(table, (rank,)), (*lead, blocks))
    chosen = part(xp, sorted_pair(xp, peaks, largest)[1], rank - 1, 0, count)
    chosen = sorted_pair(xp, chosen, False)[0]
    shape = (*lead, count, width)
    kept = xp.gather_(table, xp.reshape_(chosen, (*lead, count, 1)), shape, (*range(rank - 1), -1, rank))
    within = part(xp, sorted_pair(xp, xp.reshape_(kept, (*lead, count * width)), largest)[1], rank - 1, 0, count)
    block = _take(xp, chosen, xp.quotient(within, width))
    return block * width + xp.modulo(within, width)


def _search_samples(draw: Any) -> Any:
    def ordered(n: int) -> Any:
        return draw.rng.permutation(0) if n < 0 else draw.array((n,), -3, 3)

    out: list[Any] = []
    for n, shape, side in (
        (7, (5,), "left"),
        (16, (3, 4), "right"),
        (1, (4,), "left"),
        (0, (3,), "right"),
        (33, (), "left"),
    ):
        x = ordered(n)
        x.sort()
        out.append(((x, draw.array(shape, -4, 4)), {"side": side}))
    x = ordered(9)
    sorter = x.argsort(kind="stable")
    return [*out, ((x, draw.array((6,), -4, 4)), {"sorter": sorter})]


@composite(
    reference=lambda np, x1, x2, *, side="left", sorter=None: np.searchsorted(x1, x2, side, sorter),
    samples=_search_samples,
    dtypes=ALL,
    differentiable=False,
)
def searchsorted(xp: Any, x1: Any, x2: Any, /, *, side: Any = "left", sorter: Any = None) -> Any:
    """The positions, int64, in the sorted 1-D x1 before which the values x2 (an array or a number) would keep it so.

    *side* "left" is before equal elements, "right" behind them; *sorter* holds positions that sort x1.
    """
    if side not in ("left", "right"):
        raise ShapeError(f"cannot search from side {side!r}: it is 'left' or 'right'")
    x1, x2 = xp.as_nodes(x1, x2)
    _real("search in", x1, x2)
    if x1.ndim != 1:
        raise ShapeError(f"cannot search in shape {list(x1.shape)}: what is searched has one axis")
    if sorter is not None:
        x1 = xp.take(x1, sorter)
    if x1.shape[0] == 0 or shapes.size(x2.shape) == 0:
        return xp.zeros_like(x2, dtype=dtypes.int64)
    dtype = dtypes.promote(x1.dtype, x2.dtype)
    wanted = cast(xp, x2, dtype)
    flat = xp.reshape_(wanted, (shapes.size(wanted.shape),))
    return xp.reshape_(xp.searchsorted_(cast(xp, x1, dtype), flat, side == "right"), wanted.shape)
