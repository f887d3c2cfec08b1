"""Where elements are, and how many.

Here: argmax, argmin, count_nonzero, nonzero, and the ops `arg_extreme_`, `searchsorted_` and `nonzero_`, which devices
may have as ops of their own.
Not here: sorting, and what users call to search what is sorted (`ordering.py`), reading at positions (`indexing.py`).
"""

from typing import Any

from polygrad import dtypes, shapes
from polygrad.errors import ShapeError
from polygrad.ops.internal import looked, places
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
    shape = (shapes.size(x.shape),) if axis is None else x.shape
    k = shapes.axis(words, 0 if axis is None else axis, len(shape))
    if shape[k] == 0:
        raise ShapeError(f"cannot {words} of shape {list(shape)} along axis {k}: an empty axis has none")
    if len(shape) == 1:
        found = _first_of_rows(xp, x if x.ndim == 1 else xp.reshape_(x, shape), name)
        return xp.reshape_(found, (1,) * x.ndim) if keepdims and x.ndim else found
    if k == x.ndim - 1:
        found = _first_of_rows(xp, x, name)
        return xp.reshape_(found, (*found.shape, 1)) if keepdims else found
    return settle(xp, x, _first_along(xp, x, k, name)[1], (k,), keepdims)


def _first_of_rows(xp: Any, x: Any, name: str) -> Any:
    """Return the position of the first extreme of each row: by the driver's op if that pays, for it fuses nothing."""
    n = x.shape[-1]
    if shapes.size(x.shape) and (n >= LONG or _has_search(xp, x, n)):
        return xp.arg_extreme_(x, name[:3])
    return settle(xp, x, _first_along(xp, x, x.ndim - 1, name)[1], (x.ndim - 1,), False)


def _has_search(xp: Any, x: Any, n: int) -> bool:
    looked()
    while x.storage is None and x.spec.op.kind == "reshape":
        x = x.parents[0]
    return n >= SHORT and x.storage is not None and xp.has_op_("arg_extreme", x)


LONG = 1 << 16  # elements of a row: from here on it is read only once
SHORT = 64  # elements of a row in memory from which it is the driver's to search


def _first_along(xp: Any, x: Any, k: int, name: str) -> tuple[Any, Any]:
    """Return the extreme along an axis and its position, the axis kept as size 1."""
    best = getattr(xp, name)(x, (k,))
    hit = xp.equal(x, best)
    if dtypes.KINDS[x.dtype] == "float":
        hit = xp.bitwise_or(hit, xp.not_equal(x, x))
    n = x.shape[k]
    return best, xp.min_(xp.where(hit, places(xp, n, k, x.ndim), n), (k,))


def _first_of_long(xp: Any, x: Any, kind: str) -> Any:
    """Return the position of the first extreme of long rows, which are read once: by blocks, then the best block.

    What is left over behind the blocks wins only if it is better: it comes later.
    """
    n, lead, rank, name = x.shape[-1], x.shape[:-1], x.ndim, f"{kind}_"
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
        return xp.reshape_(found, lead)
    last, at = _first_along(xp, part(xp, x, rank - 1, count * width, n - count * width), rank - 1, name)
    better = xp.greater(last, best) if name == "max_" else xp.less(last, best)
    if dtypes.KINDS[x.dtype] == "float":
        better = xp.bitwise_or(better, xp.bitwise_and(xp.not_equal(last, last), xp.equal(best, best)))
    return xp.reshape_(xp.where(better, at + count * width, found), lead)


@library(
    results=lambda x, kind: [(x.shape[:-1], dtypes.int64)],
    fallback=_first_of_long,
    vjp=(None,),
    jvp=(None,),
    params=lambda kind: {"kind": kind},
    kinds="int float",
    verb="find an extreme in",
)
def arg_extreme_(xp: Any, x: Any, kind: Any, /) -> Any:
    """The position of the first greatest (kind max) or least (min) element along the last axis; NaN is either."""
    return (xp.argmax if kind == "max" else xp.argmin)(x, axis=-1)


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
    """Return how many elements of sorted rows lie before each wanted value: a gather for each bit of that.

    All of *wanted* is searched for in a 1-D array; in several rows, the same axes stand before the last of both.
    """
    n, plan = ordered.shape[-1], (*range(ordered.ndim - 1), -1)
    found = xp.zeros_like(wanted, dtype=dtypes.int64)
    step = 1 << (n.bit_length() - 1)
    while step:
        there = found + step
        last = xp.minimum(there, n) - 1
        value = xp.gather_(ordered, last, wanted.shape, plan)
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


def _search_of_each(xp: Any, n: int, _out: Any, lifted: Any, operands: Any, _index: int, *attrs: Any) -> Any:
    """Search in a row that all examples share for all that they want at once; else for each in its own row."""
    ordered, wanted = operands
    if not lifted[0] and ordered.ndim == 1:
        flat = xp.reshape_(wanted, (shapes.size(wanted.shape),))
        return xp.reshape_(xp.searchsorted_(ordered, flat, *attrs), wanted.shape)
    given = [x if moved else xp.expand_(x, (n, *x.shape)) for x, moved in zip(operands, lifted, strict=True)]
    return xp.searchsorted_(*given, *attrs)


def _search_reference(np: Any, ordered: Any, wanted: Any, right: bool) -> Any:
    side = "right" if right else "left"
    rows = zip(ordered.reshape(-1, ordered.shape[-1]), wanted.reshape(-1, wanted.shape[-1]), strict=True)
    return np.stack([np.searchsorted(a, v, side) for a, v in rows]).reshape(wanted.shape)


@library(
    results=lambda ordered, wanted, right: [(wanted.shape, dtypes.int64)],
    fallback=bisected,
    vjp=(None, None),
    jvp=(None, None),
    params=lambda right: {"right": right},
    kinds="bool int float",
    verb="search in",
    batch=_search_of_each,
)
def searchsorted_(xp: Any, ordered: Any, wanted: Any, right: Any, /) -> Any:
    """How many elements of a sorted row lie before each wanted value; equal ones count if *right*, NaN is greatest."""
    return _search_reference(xp, ordered, wanted, right)


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
