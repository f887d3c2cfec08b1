"""Where elements are, and how many.

Here: argmax, argmin, count_nonzero, nonzero.
Not here: sorting and searching what is sorted (`ordering.py`), reading at positions (`indexing.py`).
"""

from typing import Any

from polygrad import dtypes, shapes
from polygrad.errors import ShapeError
from polygrad.ops.internal import places
from polygrad.ops.manipulation import with_calls
from polygrad.ops.statistics import ALL, over_axes, settle
from polygrad.ops.table import composite, library


@composite(
    reference=lambda np, x, axis=None, keepdims=False: np.count_nonzero(x, axis=axis, keepdims=keepdims),
    samples=over_axes(),
    dtypes=ALL,
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
    best = getattr(xp, name)(x, (k,))
    hit = xp.equal(x, best)
    if dtypes.KINDS[x.dtype] == "float":
        hit = xp.bitwise_or(hit, xp.not_equal(x, x))
    return settle(xp, x, xp.min_(xp.where(hit, places(xp, n, k, x.ndim), n), (k,)), (k,), keepdims)


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
def true_positions_(xp: Any, x: Any, words: Any) -> Any:
    """Return the positions in C order, int64 and 1-D, at which x is not zero. The host reads how many there are."""
    mask = x if x.dtype is dtypes.bool_ else xp.not_equal(x, 0)
    mask = xp.flatten(mask)
    if mask.shape[0] == 0:
        return xp.zeros_like(mask, dtype=dtypes.int64)
    total = xp.reshape_(xp.sum_(xp.astype(mask, dtypes.int64), (0,)), ())
    count = xp.look_(total, words)
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
    dtypes=ALL,
    differentiable=False,
)
def nonzero(xp: Any, x: Any, /) -> Any:
    """Where elements are not zero, in C order: a tuple with one int64 array of coordinates for each axis.

    The result's size depends on values: the host waits for the device to count.
    """
    if x.ndim == 0:
        raise ShapeError("cannot find what is not zero in a 0-d array: reshape it to one axis first")
    return coordinates(xp, xp.true_positions_(x, "nonzero"), x.shape)
