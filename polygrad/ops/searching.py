"""Where elements are, and how many.

Here: argmax, argmin, count_nonzero, nonzero.
Not here: sorting and searching what is sorted (`ordering.py`), reading at positions (`indexing.py`).
"""

from typing import Any

from polygrad import dtypes, shapes
from polygrad.errors import ShapeError
from polygrad.ops.internal import places
from polygrad.ops.manipulation import part, with_calls
from polygrad.ops.statistics import ALL, EVERY, over_axes, settle
from polygrad.ops.table import composite, library


@composite(
    reference=lambda np, x, axis=None, keepdims=False: np.count_nonzero(x, axis=axis, keepdims=keepdims),
    samples=over_axes(),
    dtypes=EVERY,
    differentiable=False,
)
def count_nonzero(xp: Any, x: Any, /, axis: Any = None, *, keepdims: Any = False) -> Any:
    """How many elements are not zero, as int64."""
    return xp.sum(x if x.dtype is dtypes.bool_ else xp.not_equal(x, 0), axis=axis, keepdims=keepdims)


def _first(xp: Any, x: Any, axis: Any, keepdims: bool, name: str) -> Any:
    """Return the position of the first extreme element: the smallest position of those equal to it, or of a NaN."""
    words = f"take the arg{name[:3]}"
    if axis is None:
        flat = xp.reshape_(x, (shapes.size(x.shape),))
        found = _first(xp, flat, 0, False, name)
        return xp.reshape_(found, (1,) * x.ndim) if keepdims and x.ndim else found
    k = shapes.axis(words, axis, x.ndim)
    n = x.shape[k]
    if n == 0:
        raise ShapeError(f"cannot {words} of shape {list(x.shape)} along axis {k}: an empty axis has none")
    if n >= LONG and k == x.ndim - 1:
        return settle(xp, x, _first_of_long(xp, x, name), (k,), keepdims)
    return settle(xp, x, _first_along(xp, x, k, name)[1], (k,), keepdims)


LONG = 1 << 16  # elements of a row: from here on most of it is read only once


def _first_along(xp: Any, x: Any, k: int, name: str) -> tuple[Any, Any]:
    """Return the extreme along an axis and its position, the axis kept as size 1."""
    best = getattr(xp, name)(x, (k,))
    hit = xp.equal(x, best)
    if dtypes.KINDS[x.dtype] == "float":
        hit = xp.bitwise_or(hit, xp.not_equal(x, x))
    n = x.shape[k]
    return best, xp.min_(xp.where(hit, places(xp, n, k, x.ndim), n), (k,))


def _first_of_long(xp: Any, x: Any, name: str) -> Any:
    """Return the position of the first extreme of long rows, which are read once: by blocks, then the best block.

    What is left over behind the blocks wins only if it is better: it comes later.
    """
    n, lead, rank = x.shape[-1], x.shape[:-1], x.ndim
    width = 1 << (n.bit_length() // 2)
    count = n // width
    end = part(xp, x, rank - 1, 0, count * width)
    blocks = xp.reshape_(end, (*lead, count, width))
    peaks = xp.reshape_(getattr(xp, name)(blocks, (rank,)), (*lead, count))
    best, block = _first_along(xp, peaks, rank - 1, name)
    chosen = xp.gather_(blocks, xp.reshape_(block, (*lead, 1)), (*lead, width), (*range(rank - 1), -1, rank - 1))
    _, inside = _first_along(xp, chosen, rank - 1, name)
    found = block * width + inside
    if count * width == n:
        return found
    last, at = _first_along(xp, part(xp, x, rank - 1, count * width, n - count * width), rank - 1, name)
    better = xp.greater(last, best) if name == "max_" else xp.less(last, best)
    if dtypes.KINDS[x.dtype] == "float":
        better = xp.bitwise_or(better, xp.bitwise_and(xp.not_equal(last, last), xp.equal(best, best)))
    return xp.where(better, at + count * width, found)


@composite(
    reference=lambda np, x, axis=None, keepdims=False: np.argmax(x, axis=axis, keepdims=keepdims),
    samples=over_axes(single=True),
    dtypes="int float",
    differentiable=False,
)
def argmax(xp: Any, x: Any, /, axis: Any = None, *, keepdims: Any = False) -> Any:
    """The position of the first maximum along an axis, or in the flattened array; a NaN is the maximum."""
    return _first(xp, x, axis, keepdims, "max_")


@composite(
    reference=lambda np, x, axis=None, keepdims=False: np.argmin(x, axis=axis, keepdims=keepdims),
    samples=over_axes(single=True),
    dtypes="int float",
    differentiable=False,
)
def argmin(xp: Any, x: Any, /, axis: Any = None, *, keepdims: Any = False) -> Any:
    """The position of the first minimum along an axis, or in the flattened array; a NaN is the minimum."""
    return _first(xp, x, axis, keepdims, "min_")


def bisected(xp: Any, ordered: Any, wanted: Any, right: bool) -> Any:
    """Return how many elements of a sorted 1-D array lie before each wanted value: a gather for each bit of that.

    Equal ones count if *right*. NaN is the greatest value.
    """
    n = ordered.shape[0]
    found = xp.zeros_like(wanted, dtype=dtypes.int64)
    step = 1 << (n.bit_length() - 1)
    while step:
        there = found + step
        last = xp.minimum(there, n) - 1
        value = xp.gather_(ordered, last, wanted.shape, (-1,))
        ahead = xp.bitwise_invert(before(xp, wanted, value)) if right else before(xp, value, wanted)
        found = xp.where(xp.bitwise_and(xp.less_equal(there, n), ahead), there, found)
        step //= 2
    return found


def before(xp: Any, a: Any, b: Any) -> Any:
    """Return whether a comes before b in sorted order."""
    smaller = xp.less(a, b)
    if dtypes.KINDS[a.dtype] != "float":
        return smaller
    return xp.bitwise_or(smaller, xp.bitwise_and(xp.not_equal(b, b), xp.equal(a, a)))


def _positions_by_search(xp: Any, mask: Any, count: Any) -> Any:
    """Return where a mask is true: the k-th place is the first before which, itself included, k + 1 are true."""
    so_far = xp.scan_(xp.astype(mask, dtypes.int64), "sum")
    return bisected(xp, so_far, xp.iota(count, dtypes.int64) + 1, False)


@library(
    results=lambda mask, count: [((count,), dtypes.int64)],
    fallback=_positions_by_search,
    vjp=None,
    jvp=None,
    kinds="bool",
    verb="find what is true in",
)
def nonzero_(xp: Any, mask: Any, count: Any, /) -> Any:
    """Where a 1-D mask is true; *count* says how often it is."""
    return xp.flatnonzero(mask)


@composite(reference=None, dtypes=ALL, differentiable=False)
def true_positions_(xp: Any, x: Any) -> Any:
    """Return the positions in C order, int64 and 1-D, at which x is not zero. The host reads how many there are."""
    mask = x if x.dtype is dtypes.bool_ else xp.not_equal(x, 0)
    mask = xp.flatten(mask)
    if mask.shape[0] == 0:
        return xp.zeros_like(mask, dtype=dtypes.int64)
    total = xp.reshape_(xp.sum_(xp.astype(mask, dtypes.int64), (0,)), ())
    count = xp.look_(total)
    if count == 0:
        return xp.zeros_like(xp.slice_(mask, (0,), (1,), (0,)), dtype=dtypes.int64)
    return xp.nonzero_(mask, count)


def coordinates(xp: Any, positions: Any, shape: shapes.Shape) -> tuple[Any, ...]:
    """Return positions in C order as one coordinate for each axis of *shape*."""
    out = []
    for n, step in zip(shape, shapes.strides(shape), strict=True):
        at = positions if step == 1 else xp.quotient(positions, step)
        out.append(at if n == shapes.size(shape) // max(step, 1) else xp.modulo(at, n))
    return tuple(out)


@composite(
    reference=lambda np, x: np.nonzero(x),
    samples=with_calls(((7,),), ((3, 4),), ((2, 3, 2),), ((2, 0),), ((1,),)),
    dtypes=EVERY,
    differentiable=False,
)
def nonzero(xp: Any, x: Any, /) -> Any:
    """Where elements are not zero, in C order: a tuple with one int64 array of coordinates for each axis.

    The result's size depends on values: the host waits for the device to count.
    """
    if x.ndim == 0:
        raise ShapeError("cannot find what is not zero in a 0-d array: reshape it to one axis first")
    return coordinates(xp, xp.true_positions_(x), x.shape)
