"""Where elements are, and how many.

Here: argmax, argmin, count_nonzero.
Not here: sorting, reading at positions (`indexing.py`).
"""

from typing import Any

from polygrad import dtypes, shapes
from polygrad.errors import ShapeError
from polygrad.ops.internal import places
from polygrad.ops.statistics import ALL, over_axes, settle
from polygrad.ops.table import composite


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
