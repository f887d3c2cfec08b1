"""Running reductions: each element reduced with all before it along an axis.

Here: `scan_` and `recurrence_`, which devices may have as ops of their own, and what users call: cumulative_sum,
cumulative_prod, cumulative_max, cumulative_min, cumulative_logsumexp.
Not here: reductions to one value (`statistics.py`).

A derivative of a running product is a linear recurrence, and so is a derivative of that: with any number of zeros
nothing is divided, to every order.
"""

from typing import Any

from polygrad import dtypes, shapes
from polygrad.errors import DTypeError, ShapeError
from polygrad.ops.internal import cast
from polygrad.ops.manipulation import with_calls
from polygrad.ops.statistics import accumulator, wide
from polygrad.ops.table import composite, library

REAL = "bool int float"
ALL = "bool int float complex"


def along_last(rank: int) -> tuple[int, ...]:
    """Return a gather's plan that reads the last axis at the first index operand, all others as they are."""
    return (*range(rank - 1), -1)


def reversed_last(xp: Any, x: Any) -> Any:
    """Return x with its last axis in reverse."""
    return xp.flip(x, axis=-1)


def moved_right(xp: Any, x: Any, fill: Any) -> Any:
    """Return x one place later along the last axis, *fill* coming in."""
    lead = (0,) * (x.ndim - 1)
    kept = xp.slice_(x, (*lead, 0), (1,) * x.ndim, (*x.shape[:-1], x.shape[-1] - 1))
    return xp.pad_(kept, (*lead, 1), (*lead, 0), fill)


def _earlier(xp: Any, x: Any, count: Any, by: int) -> Any:
    """Return x as it is *by* places earlier along the last axis, the first element before the first.

    It is a gather, not a slice, so that each step of a doubling reads what the one before has stored.
    """
    return xp.gather_(x, xp.maximum(count - by, 0), x.shape, along_last(x.ndim))


def _combine(xp: Any, kind: str) -> Any:
    return {"sum": xp.add, "prod": xp.multiply, "max": xp.maximum, "min": xp.minimum, "exp": xp.logaddexp}[kind]


def _doubled(xp: Any, x: Any, kind: str) -> Any:
    """Return the scan in log2(n) steps, each over twice as many elements: for devices without the op."""
    n, combine = x.shape[-1], _combine(xp, kind)
    y, count = wide(xp, x), xp.iota(n, dtypes.int64)
    by = 1
    while by < n:
        y = xp.where(xp.less(count, by), y, combine(_earlier(xp, y, count, by), y))
        by *= 2
    return cast(xp, y, x.dtype)


def _running_places(xp: Any, x: Any, out: Any, kind: str) -> Any:
    """Return where the running extreme *out* of x is first met, along the last axis."""
    beyond = xp.greater if kind == "max" else xp.less
    before = moved_right(xp, out, 0)
    fresh = beyond(x, before)
    if dtypes.KINDS[x.dtype] == "float":
        fresh = xp.bitwise_or(fresh, xp.bitwise_and(xp.not_equal(x, x), xp.equal(before, before)))
    count = xp.iota(x.shape[-1], dtypes.int64)
    return xp.scan_(xp.where(fresh, count, 0), "max")


def _scan_back(xp: Any, g: Any, out: Any, x: Any, _index: int, kind: str) -> Any:
    if kind == "sum":
        return reversed_last(xp, xp.scan_(reversed_last(xp, g), "sum"))
    if kind == "prod":
        return _adjoint(xp, g, x) * moved_right(xp, out, 1)
    if x.shape[-1] == 1:
        return g
    return xp.scatter_add_(g, _running_places(xp, x, out, kind), x.shape, along_last(x.ndim))


def _scan_forward(xp: Any, t: Any, out: Any, x: Any, _index: int, kind: str) -> Any:
    if kind == "sum":
        return xp.scan_(t, "sum")
    if kind == "prod":
        return xp.recurrence_(x, t * moved_right(xp, out, 1))
    if x.shape[-1] == 1:
        return t
    return xp.gather_(t, _running_places(xp, x, out, kind), x.shape, along_last(x.ndim))


@library(
    results=lambda x, kind: [(x.shape, x.dtype)],
    fallback=_doubled,
    vjp=(_scan_back,),
    jvp=(_scan_forward,),
    params=lambda kind: {"kind": kind},
    kinds=REAL,
    verb="scan",
)
def scan_(xp: Any, x: Any, kind: Any, /) -> Any:
    """Each element reduced with all before it along the last axis: kind sum, prod, max or min."""
    ufunc = {"sum": xp.add, "prod": xp.multiply, "max": xp.maximum, "min": xp.minimum}[kind]
    return ufunc.accumulate(x, axis=-1, dtype=x.dtype)


def _adjoint(xp: Any, g: Any, a: Any) -> Any:
    """Return y with ``y[i] = g[i] + a[i + 1] * y[i + 1]`` along the last axis: a recurrence run backwards."""
    turned = moved_right(xp, reversed_last(xp, a), 0)
    return reversed_last(xp, xp.recurrence_(turned, reversed_last(xp, g)))


def _recurrence_doubled(xp: Any, a: Any, b: Any) -> Any:
    """Return the recurrence in log2(n) steps, each joining runs of twice the length.

    A run that contributes nothing does so whatever it is multiplied by: products of long runs may overflow.
    """
    n = b.shape[-1]
    factor, value, count = wide(xp, a), wide(xp, b), xp.iota(n, dtypes.int64)
    by = 1
    while by < n:
        first = xp.less(count, by)
        more = xp.multiply_no_nan(factor, _earlier(xp, value, count, by))
        value = xp.where(first, value, value + more)
        if 2 * by < n:
            factor = xp.where(first, factor, factor * _earlier(xp, factor, count, by))
        by *= 2
    return cast(xp, value, b.dtype)


def _need_one_dtype(a: Any, b: Any) -> Any:
    if a.shape != b.shape or a.dtype is not b.dtype:
        raise ShapeError(f"cannot run a recurrence of {a!r} and {b!r}: both operands have one shape and dtype")
    return [(b.shape, b.dtype)]


@library(
    results=_need_one_dtype,
    fallback=_recurrence_doubled,
    vjp=(
        lambda xp, g, out, a, b, index: _adjoint(xp, g, a) * moved_right(xp, out, 0),
        lambda xp, g, out, a, b, index: _adjoint(xp, g, a),
    ),
    jvp=(
        lambda xp, t, out, a, b, index: xp.recurrence_(a, t * moved_right(xp, out, 0)),
        lambda xp, t, out, a, b, index: xp.recurrence_(a, t),
    ),
)
def recurrence_(xp: Any, a: Any, b: Any, /) -> Any:
    """y with ``y[i] = a[i] * y[i - 1] + b[i]`` along the last axis, from nothing before the first."""
    out = b.copy()
    for i in range(1, b.shape[-1]):
        out[..., i] += a[..., i] * out[..., i - 1]
    return out


def _along(xp: Any, x: Any, axis: Any, words: str) -> tuple[Any, int]:
    """Return x with the axis to scan last, and which it was; None is the only axis of a 1-D array."""
    if axis is None:
        if x.ndim != 1:
            raise ShapeError(f"cannot {words} of shape {list(x.shape)} without an axis: say which one")
        return x, 0
    k = shapes.axis(words, axis, x.ndim)
    return xp.moveaxis(x, k, -1), k


def _scanned(xp: Any, x: Any, kind: str) -> Any:
    """Return the scan of x, which for complex numbers is one of each part, or, of products, one of ops on both."""
    if dtypes.KINDS[x.dtype] != "complex":
        return xp.scan_(x, kind)
    if kind == "sum":
        return xp.pair_(xp.scan_(xp.real(x), kind), xp.scan_(xp.imag(x), kind))
    return _doubled(xp, x, kind)


def _cumulative(xp: Any, x: Any, axis: Any, words: str, kind: str, initial: Any = None) -> Any:
    turned, k = _along(xp, x, axis, words)
    out = turned if 0 in turned.shape or turned.shape[-1] == 1 else _scanned(xp, turned, kind)
    if initial is not None:
        lead = (0,) * (x.ndim - 1)
        out = xp.pad_(out, (*lead, 1), (*lead, 0), initial)
    return xp.moveaxis(out, -1, k)


def _summed(xp: Any, x: Any, dtype: Any, words: str) -> Any:
    wanted = accumulator(x.dtype) if dtype is None else dtypes.as_dtype(dtype)
    if wanted is dtypes.bool_:
        raise DTypeError(f"cannot {words} in bool: ask for an int or float dtype")
    return cast(xp, x, wanted)


def _cumulative_reference(name: str) -> Any:
    def reference(np: Any, x: Any, *, axis: Any = None, dtype: Any = None, include_initial: bool = False) -> Any:
        axis = 0 if axis is None else axis
        out = getattr(np, name)(x, axis=axis, dtype=dtype)
        if include_initial:
            first = np.full_like(np.take(out, [0] if out.shape[axis] else [], axis=axis), 0 if name == "cumsum" else 1)
            if not out.shape[axis]:
                shape = list(out.shape)
                shape[axis] = 1
                first = np.full(shape, 0 if name == "cumsum" else 1, out.dtype)
            out = np.concatenate([first, out], axis=axis)
        return out

    return reference


_SCANNED = with_calls(
    ((5,),),
    ((1,),),
    ((3, 4), {"axis": 0}),
    ((3, 4), {"axis": -1}),
    ((2, 37), {"axis": 1}),
    ((2, 0, 3), {"axis": 1}),
    ((0, 3), {"axis": 1}),
)


def _initial_samples(draw: Any) -> Any:
    more = [((4,), None), ((3, 4), 0), ((2, 0), 1)]
    return _SCANNED(draw) + [((draw.array(s, -2, 2),), {"axis": k, "include_initial": True}) for s, k in more]


@composite(reference=_cumulative_reference("cumsum"), samples=_initial_samples, dtypes=ALL)
def cumulative_sum(xp: Any, x: Any, /, *, axis: Any = None, dtype: Any = None, include_initial: Any = False) -> Any:
    """The sum of each element and all before it along an axis, in the dtype that `sum` has.

    *include_initial* puts a 0 in front. The order of additions is the device's; 16-bit floats add up in float32.
    """
    words = "take the cumulative sum"
    return _cumulative(xp, _summed(xp, x, dtype, words), axis, words, "sum", 0 if include_initial else None)


def _product_samples(draw: Any) -> Any:
    def holed(shape: Any, axis: int) -> Any:
        """One zero, and two zeros, along the axis: where a quotient would have no derivative."""
        x = draw.array(shape, 1, 2)
        x[1] = 0
        x[0, 2] = 0
        return ((x,), {"axis": axis})

    return [holed((3, 5), 1), holed((3, 5), 0), *_initial_samples(draw)]


@composite(reference=_cumulative_reference("cumprod"), samples=_product_samples, dtypes=ALL)
def cumulative_prod(xp: Any, x: Any, /, *, axis: Any = None, dtype: Any = None, include_initial: Any = False) -> Any:
    """The product of each element and all before it along an axis, in the dtype that `prod` has.

    *include_initial* puts a 1 in front. Its derivatives are exact with any number of zeros.
    """
    words = "take the cumulative product"
    return _cumulative(xp, _summed(xp, x, dtype, words), axis, words, "prod", 1 if include_initial else None)


@composite(
    reference=lambda np, x, *, axis=None: np.maximum.accumulate(x, axis=0 if axis is None else axis),
    samples=_SCANNED,
    dtypes=REAL,
)
def cumulative_max(xp: Any, x: Any, /, *, axis: Any = None) -> Any:
    """The largest of each element and all before it along an axis; NaN from the first NaN on.

    Of equal ones the first takes the gradient.
    """
    return _cumulative(xp, x, axis, "take the cumulative maximum", "max")


@composite(
    reference=lambda np, x, *, axis=None: np.minimum.accumulate(x, axis=0 if axis is None else axis),
    samples=_SCANNED,
    dtypes=REAL,
)
def cumulative_min(xp: Any, x: Any, /, *, axis: Any = None) -> Any:
    """The smallest of each element and all before it along an axis; NaN from the first NaN on.

    Of equal ones the first takes the gradient.
    """
    return _cumulative(xp, x, axis, "take the cumulative minimum", "min")


@composite(
    reference=lambda np, x, *, axis=None: np.logaddexp.accumulate(x, axis=0 if axis is None else axis),
    samples=_SCANNED,
    dtypes="float",
)
def cumulative_logsumexp(xp: Any, x: Any, /, *, axis: Any = None) -> Any:
    """log(sum(exp(...))) of each element and all before it along an axis, without overflow.

    It takes log2(n) steps over the whole array.
    """
    turned, k = _along(xp, x, axis, "take the cumulative logsumexp")
    out = turned if 0 in turned.shape else _doubled(xp, turned, "exp")
    return xp.moveaxis(out, -1, k)
