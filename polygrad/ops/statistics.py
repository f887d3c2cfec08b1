"""Reductions that users call.

Here: sum, prod, max, min, mean, var, std, any, all, logsumexp.
They stand on the primitives of `reduction.py`. An empty axis is settled when the reduction is recorded: it gives the
identity, or ShapeError where there is none.
Not here: positions of extremes (`searching.py`), running reductions, sorting.
"""

import math
from typing import Any

from polygrad import dtypes, shapes
from polygrad.errors import DTypeError, ShapeError
from polygrad.ops.internal import cast
from polygrad.ops.table import composite

ALL = "bool int float"
EVERY = "bool int float complex"


def wide(xp: Any, x: Any) -> Any:
    """Return a 16-bit float as float32, in which its sums are taken; anything else as it is."""
    return cast(xp, x, dtypes.float32) if x.dtype in (dtypes.float16, dtypes.bfloat16) else x


def floating(xp: Any, name: str, x: Any) -> Any:
    """Return x, or an integer x as float64; refuse bool."""
    kind = dtypes.KINDS[x.dtype]
    if kind == "bool":
        raise DTypeError(f"cannot apply {name} to bool: it takes int or float dtypes; cast with .astype(...)")
    return x if kind in ("float", "complex") else cast(xp, x, dtypes.float64)


def without(x: Any, axes: shapes.Shape) -> shapes.Shape:
    """Return x's shape without *axes*."""
    return tuple(n for k, n in enumerate(x.shape) if k not in axes)


def settle(xp: Any, x: Any, kept: Any, axes: shapes.Shape, keepdims: bool) -> Any:
    """Return a reduction that kept its axes as size 1, without them unless *keepdims*."""
    return kept if keepdims or not axes else xp.reshape_(kept, without(x, axes))


def _identity(xp: Any, x: Any, axes: shapes.Shape, keepdims: bool, value: Any) -> Any:
    """Return what reducing an empty axis gives: *value* in x's dtype.

    It is made of x, whose empty axes grow to size 1, so that a loss over an empty batch has gradients too.
    """
    after = tuple(1 if k in axes and n == 0 else 0 for k, n in enumerate(x.shape))
    kept = xp.pad_(x, (0,) * x.ndim, after, value)
    sizes = tuple(1 if k in axes else n for k, n in enumerate(x.shape))
    if kept.shape != sizes:
        kept = xp.slice_(kept, (0,) * x.ndim, (1,) * x.ndim, sizes)
    return settle(xp, x, kept, axes, keepdims)


def _is_empty(x: Any, axes: shapes.Shape) -> bool:
    return 0 in [x.shape[k] for k in axes]


def accumulator(dtype: dtypes.DType) -> dtypes.DType:
    """Return the dtype of a sum of *dtype*: integers grow to 64 bits of their signedness, bool to int64."""
    if dtype in dtypes.UNSIGNED:
        return dtypes.uint64
    return dtype if dtype in dtypes.DIFFERENTIABLE else dtypes.int64


def _accumulate(xp: Any, x: Any, axis: Any, dtype: Any, keepdims: bool, name: str, identity: int) -> Any:
    axes = shapes.axes("multiply up" if name == "prod_" else "sum", axis, x.ndim)
    wanted = accumulator(x.dtype) if dtype is None else dtypes.as_dtype(dtype)
    if wanted is dtypes.bool_:
        raise DTypeError("cannot sum in bool: ask for an int or float dtype, or use any and all")
    x = cast(xp, x, wanted)
    if _is_empty(x, axes):
        return _identity(xp, x, axes, keepdims, identity)
    if not axes:
        return x
    reduced = getattr(xp, name)(wide(xp, x), axes)
    return settle(xp, x, cast(xp, reduced, wanted), axes, keepdims)


def over_axes(low: float = -2, high: float = 2, *, single: bool = False, empty: bool = True, **more: Any) -> Any:
    """Return samples for a reduction: shapes, axes, keepdims; *single* for functions of one axis."""

    def samples(draw: Any) -> Any:
        out: list[Any] = []
        for shape, axis in (((5,), None), ((3, 4), None), ((3, 4), 0), ((3, 4), -1), ((2, 3, 4), 1), ((2, 1, 3), 2)):
            out.append(((draw.array(shape, low, high),), {"axis": axis, **more}))
        out.append(((draw.array((2, 3, 4), low, high),), {"axis": 1, "keepdims": True, **more}))
        out.append(((draw.array((2, 0, 4), low, high),), {"axis": 2, **more}))
        if not single:
            out.append(((draw.array((2, 3, 4), low, high),), {"axis": (0, -1), **more}))
            out.append(((draw.array((2, 3, 4), low, high),), {"axis": (2, 1), "keepdims": True, **more}))
            out.append(((draw.array((), low, high),), {**more}))
            if empty:
                out += [
                    ((draw.array((2, 0), low, high),), {"axis": 1, **more}),
                    ((draw.array((0,), low, high),), {"keepdims": True, **more}),
                ]
        return out

    return samples


@composite(
    reference=lambda np, x, axis=None, dtype=None, keepdims=False: np.sum(x, axis=axis, dtype=dtype, keepdims=keepdims),
    samples=over_axes(),
    dtypes=EVERY,
)
def sum(xp: Any, x: Any, /, axis: Any = None, *, dtype: Any = None, keepdims: Any = False) -> Any:
    """The sum over axes.

    Integers add up in 64 bits, bools in int64, 16-bit floats in float32 before they are rounded once.
    """
    return _accumulate(xp, x, axis, dtype, keepdims, "sum_", 0)


@composite(
    reference=lambda np, x, axis=None, dtype=None, keepdims=False: np.prod(
        x, axis=axis, dtype=dtype, keepdims=keepdims
    ),
    samples=over_axes(),
    dtypes=EVERY,
)
def prod(xp: Any, x: Any, /, axis: Any = None, *, dtype: Any = None, keepdims: Any = False) -> Any:
    """The product over axes, in the dtype that `sum` has."""
    return _accumulate(xp, x, axis, dtype, keepdims, "prod_", 1)


def _extreme(xp: Any, x: Any, axis: Any, keepdims: bool, name: str) -> Any:
    axes = shapes.axes(f"take the {name}", axis, x.ndim)
    if _is_empty(x, axes):
        raise ShapeError(
            f"cannot take the {name} of shape {list(x.shape)} over axes {list(axes)}: an empty axis has none"
        )
    if not axes:
        return xp.alias(x)
    return settle(xp, x, getattr(xp, f"{name[:3]}_")(x, axes), axes, keepdims)


@composite(
    reference=lambda np, x, axis=None, keepdims=False: np.max(x, axis=axis, keepdims=keepdims),
    samples=over_axes(empty=False),
    dtypes=ALL,
)
def max(xp: Any, x: Any, /, axis: Any = None, *, keepdims: Any = False) -> Any:
    """The maximum over axes; NaN wins. Equal maxima share the gradient."""
    return _extreme(xp, x, axis, keepdims, "maximum")


@composite(
    reference=lambda np, x, axis=None, keepdims=False: np.min(x, axis=axis, keepdims=keepdims),
    samples=over_axes(empty=False),
    dtypes=ALL,
)
def min(xp: Any, x: Any, /, axis: Any = None, *, keepdims: Any = False) -> Any:
    """The minimum over axes; NaN wins. Equal minima share the gradient."""
    return _extreme(xp, x, axis, keepdims, "minimum")


@composite(
    reference=lambda np, x, axis=None, keepdims=False: np.any(x, axis=axis, keepdims=keepdims),
    samples=over_axes(),
    dtypes=EVERY,
    differentiable=False,
)
def any(xp: Any, x: Any, /, axis: Any = None, *, keepdims: Any = False) -> Any:
    """Whether any element is not zero; NaN is not. False over an empty axis."""
    return _truth(xp, x, axis, keepdims, "max_", False)


@composite(
    reference=lambda np, x, axis=None, keepdims=False: np.all(x, axis=axis, keepdims=keepdims),
    samples=over_axes(),
    dtypes=EVERY,
    differentiable=False,
)
def all(xp: Any, x: Any, /, axis: Any = None, *, keepdims: Any = False) -> Any:
    """Whether all elements are not zero. True over an empty axis."""
    return _truth(xp, x, axis, keepdims, "min_", True)


def _truth(xp: Any, x: Any, axis: Any, keepdims: bool, name: str, identity: bool) -> Any:
    axes = shapes.axes("test", axis, x.ndim)
    true = x if x.dtype is dtypes.bool_ else xp.not_equal(x, 0)
    if _is_empty(true, axes):
        return _identity(xp, true, axes, keepdims, identity)
    return settle(xp, true, getattr(xp, name)(true, axes), axes, keepdims) if axes else true


def _count(x: Any, axes: shapes.Shape) -> int:
    return math.prod(x.shape[k] for k in axes)


@composite(
    reference=lambda np, x, axis=None, keepdims=False: np.mean(x, axis=axis, keepdims=keepdims),
    samples=over_axes(empty=False),
    dtypes="int float complex",
)
def mean(xp: Any, x: Any, /, axis: Any = None, *, keepdims: Any = False) -> Any:
    """The arithmetic mean over axes; of integers, in float64. NaN over an empty axis."""
    x = floating(xp, "mean", x)
    axes = shapes.axes("average", axis, x.ndim)
    if _is_empty(x, axes):
        return _identity(xp, x, axes, keepdims, math.nan)
    if not axes:
        return xp.alias(x)
    kept = cast(xp, xp.sum_(wide(xp, x), axes) / float(_count(x, axes)), x.dtype)
    return settle(xp, x, kept, axes, keepdims)


def _spread_samples(draw: Any) -> Any:
    plain = over_axes(empty=False)(draw)
    return plain + over_axes(empty=False, correction=1)(draw)[1:4] + over_axes(empty=False, correction=0.5)(draw)[1:3]


@composite(
    reference=lambda np, x, axis=None, correction=0.0, keepdims=False: np.var(
        x, axis=axis, ddof=correction, keepdims=keepdims
    ),
    samples=_spread_samples,
)
def var(xp: Any, x: Any, /, axis: Any = None, *, correction: Any = 0.0, keepdims: Any = False) -> Any:
    """The variance over axes: the sum of squared distances from the mean, over their count less *correction*.

    It is NaN or infinite where that is not positive.
    """
    x = floating(xp, "var", x)
    axes = shapes.axes("take the variance", axis, x.ndim)
    if _is_empty(x, axes):
        return _identity(xp, x, axes, keepdims, math.nan)
    count = _count(x, axes)
    values = wide(xp, x)
    away = values - xp.mean(values, axis=axes, keepdims=True)
    total = xp.sum_(away * away, axes) if axes else away * away
    left = count - correction
    kept = cast(xp, total / float(left if left > 0 else 0), x.dtype)
    return settle(xp, x, kept, axes, keepdims)


@composite(
    reference=lambda np, x, axis=None, correction=0.0, keepdims=False: np.std(
        x, axis=axis, ddof=correction, keepdims=keepdims
    ),
    samples=_spread_samples,
)
def std(xp: Any, x: Any, /, axis: Any = None, *, correction: Any = 0.0, keepdims: Any = False) -> Any:
    """The standard deviation over axes, the square root of `var`. Its slope is 0 where all elements are equal."""
    variance = xp.var(x, axis=axis, correction=correction, keepdims=keepdims)
    # sqrt has no slope at 0, but the distances from the mean are 0 there too: 0 is in the subdifferential.
    flat = xp.equal(variance, 0.0)
    return xp.where(flat, 0.0, xp.sqrt(xp.where(flat, 1.0, variance)))


@composite(
    reference=lambda np, x, axis=None, keepdims=False: np.log(
        np.sum(np.exp(np.asarray(x, np.float64)), axis=axis, keepdims=keepdims)
    ),
    samples=over_axes(),
    where="main special",
)
def logsumexp(xp: Any, x: Any, /, axis: Any = None, *, keepdims: Any = False) -> Any:
    """log(sum(exp(x))) over axes without overflow; -inf where all elements are, with gradient 0."""
    x = floating(xp, "logsumexp", x)
    axes = shapes.axes("take the logsumexp", axis, x.ndim)
    if _is_empty(x, axes):
        return _identity(xp, x, axes, keepdims, -math.inf)
    if not axes:
        return xp.alias(x)
    values = wide(xp, x)
    top = xp.max_(xp.stop_gradient(values), axes)
    finite = xp.isfinite(top)
    shift = xp.where(finite, top, 0.0)
    total = xp.sum_(xp.exp(values - shift), axes)
    kept = xp.where(finite, xp.log(xp.where(finite, total, 1.0)) + shift, top)
    return settle(xp, x, cast(xp, kept, x.dtype), axes, keepdims)
