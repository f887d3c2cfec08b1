"""Elementwise functions made of the primitives.

Here: the rest of the Array API's elementwise functions, with its special cases.
Not here: reductions and everything with an axis.
"""

import math
from typing import Any

from polygrad import dtypes
from polygrad.errors import DTypeError
from polygrad.ops import complex_arithmetic
from polygrad.ops.complex_arithmetic import SMALL_POWER, integer_power
from polygrad.ops.table import composite


def _kind(x: Any) -> str:
    return dtypes.KINDS[x.dtype] if hasattr(x, "dtype") else "bool" if isinstance(x, bool) else type(x).__name__


def draw_numbers(*pairs: tuple[float, float]) -> Any:
    """Return samples for a composite whose operands are drawn from *pairs*."""
    return lambda draw: draw.elementwise(pairs)


def _truth(xp: Any, x: Any) -> Any:
    """Return an operand as bool: a number is true where it is not zero, a NaN too; so NumPy and PyTorch have it."""
    if isinstance(x, (bool, int, float)):
        return bool(x)
    return x if _kind(x) == "bool" else xp.not_equal(x, 0)


@composite(reference=lambda np, x: np.positive(x), samples=draw_numbers((-2, 2)), dtypes="int float complex")
def positive(xp: Any, x: Any, /) -> Any:
    """x itself, of a numeric dtype."""
    if _kind(x) == "bool":
        raise DTypeError("cannot apply positive to bool: it takes int or float dtypes; cast with .astype(...)")
    return xp.alias(x)


@composite(
    reference=lambda np, x, y: np.logical_and(x, y),
    samples=draw_numbers((0, 1), (0, 1)),
    dtypes="bool int float complex",
    differentiable=False,
)
def logical_and(xp: Any, x1: Any, x2: Any, /) -> Any:
    """x1 and x2; numbers count as true where they are not zero."""
    return xp.bitwise_and(_truth(xp, x1), _truth(xp, x2))


@composite(
    reference=lambda np, x, y: np.logical_or(x, y),
    samples=draw_numbers((0, 1), (0, 1)),
    dtypes="bool int float complex",
    differentiable=False,
)
def logical_or(xp: Any, x1: Any, x2: Any, /) -> Any:
    """x1 or x2; numbers count as true where they are not zero."""
    return xp.bitwise_or(_truth(xp, x1), _truth(xp, x2))


@composite(
    reference=lambda np, x, y: np.logical_xor(x, y),
    samples=draw_numbers((0, 1), (0, 1)),
    dtypes="bool int float complex",
    differentiable=False,
)
def logical_xor(xp: Any, x1: Any, x2: Any, /) -> Any:
    """x1 or x2 but not both; numbers count as true where they are not zero."""
    return xp.bitwise_xor(_truth(xp, x1), _truth(xp, x2))


@composite(
    reference=lambda np, x: np.logical_not(x),
    samples=draw_numbers((0, 1)),
    dtypes="bool int float complex",
    differentiable=False,
)
def logical_not(xp: Any, x: Any, /) -> Any:
    """Not x; a number counts as true where it is not zero."""
    return xp.bitwise_invert(_truth(xp, x))


@composite(
    reference=lambda np, x: np.sign(x),
    samples=draw_numbers((-2, 2)),
    dtypes="int float",
    complex=complex_arithmetic.sign,
)
def sign(xp: Any, x: Any, /) -> Any:
    """-1, 0 or 1 by the sign of x; NaN for NaN. Its derivative is zero."""
    if _kind(x) == "bool":
        raise DTypeError("cannot apply sign to bool: it takes int or float dtypes; cast with .astype(...)")
    steps = xp.astype(x > 0, x.dtype) - xp.astype(x < 0, x.dtype)
    return xp.where(xp.equal(x, x), steps, x) if _kind(x) == "float" else steps


@composite(reference=lambda np, x: np.square(x), samples=draw_numbers((-2, 2)), dtypes="int float complex")
def square(xp: Any, x: Any, /) -> Any:
    """x * x."""
    return x * x


@composite(reference=lambda np, x: np.reciprocal(x), samples=draw_numbers((0.5, 2)), dtypes="float complex")
def reciprocal(xp: Any, x: Any, /) -> Any:
    """1 / x."""
    return 1.0 / x


@composite(
    reference=lambda np, x: np.isnan(x), samples=draw_numbers((-2, 2)), dtypes="float complex", differentiable=False
)
def isnan(xp: Any, x: Any, /) -> Any:
    """Whether x is NaN; of integers, never."""
    return xp.not_equal(x, x)


@composite(
    reference=lambda np, x: np.isinf(x),
    samples=draw_numbers((-2, 2)),
    differentiable=False,
    complex=complex_arithmetic.isinf,
)
def isinf(xp: Any, x: Any, /) -> Any:
    """Whether x is an infinity; of integers, never."""
    return xp.equal(xp.abs(x), float("inf")) if _kind(x) == "float" else xp.not_equal(x, x)


@composite(
    reference=lambda np, x: np.isfinite(x),
    samples=draw_numbers((-2, 2)),
    differentiable=False,
    complex=complex_arithmetic.isfinite,
)
def isfinite(xp: Any, x: Any, /) -> Any:
    """Whether x is neither NaN nor an infinity; of integers, always."""
    return xp.abs(x) < float("inf") if _kind(x) == "float" else xp.equal(x, x)


@composite(reference=lambda np, x: np.signbit(x), samples=draw_numbers((-2, 2)), differentiable=False)
def signbit(xp: Any, x: Any, /) -> Any:
    """Whether the sign bit is set; also of -0.0 and of NaN."""
    return xp.copysign(xp.ones_like(x), x) < 0


@composite(reference=lambda np, x, y: np.floor_divide(x, y), samples=draw_numbers((-9, 9), (1, 4)), dtypes="int float")
def floor_divide(xp: Any, x1: Any, x2: Any, /) -> Any:
    """The greatest integer not above x1 / x2, with the standard's special cases; of integers, 0 where x2 is 0."""
    a, b = xp.pair("floor_divide", x1, x2)
    if _kind(a) == "int":
        q = xp.quotient(a, b)
        wrong = xp.bitwise_and(xp.not_equal(xp.modulo(a, b), 0), xp.bitwise_xor(a < 0, b < 0))
        return q - xp.astype(xp.bitwise_and(wrong, xp.not_equal(b, 0)), q.dtype)
    rest = xp.fmod(a, b)
    off = xp.bitwise_and(xp.not_equal(rest, 0.0), xp.bitwise_xor(rest < 0.0, b < 0.0))
    whole = (a - rest) / b
    q = xp.round(whole) - xp.astype(off, a.dtype)
    q = xp.where(xp.equal(q, 0.0), xp.copysign(xp.zeros_like(q), a / b), q)
    # fmod is NaN for an infinite dividend, and whole loses finite / infinity: there the standard wants the quotient
    # itself, a signed zero beside an infinite divisor.
    return xp.where(xp.bitwise_or(xp.isinf(b), xp.bitwise_or(xp.isinf(a), xp.equal(b, 0.0))), a / b, q)


@composite(reference=lambda np, x, y: np.remainder(x, y), samples=draw_numbers((-9, 9), (1, 4)), dtypes="int float")
def remainder(xp: Any, x1: Any, x2: Any, /) -> Any:
    """x1 - x2 * floor(x1 / x2), with the sign of x2; of integers, 0 where x2 is 0."""
    a, b = xp.pair("remainder", x1, x2)
    if _kind(a) == "int":
        r = xp.modulo(a, b)
        return xp.where(xp.bitwise_and(xp.not_equal(r, 0), xp.bitwise_xor(r < 0, b < 0)), r + b, r)
    r = xp.fmod(a, b)
    r = xp.where(xp.bitwise_and(xp.not_equal(r, 0.0), xp.bitwise_xor(r < 0.0, b < 0.0)), r + b, r)
    return xp.where(xp.equal(r, 0.0), xp.copysign(r, b), r)


@composite(reference=None, dtypes="bool int float")
def pair(xp: Any, name: Any, x1: Any, x2: Any, /) -> Any:
    """Two operands as nodes of one numeric dtype; the front of functions that choose by dtype."""
    a, b = xp.as_nodes(x1, x2)
    dtype = dtypes.promote(a.dtype, b.dtype)
    if dtypes.KINDS[dtype] == "bool":
        raise DTypeError(f"cannot apply {name} to bool: it takes int or float dtypes; cast with .astype(...)")
    return xp.astype(a, dtype), xp.astype(b, dtype)


def _power_samples(draw: Any) -> Any:
    return [
        *draw.elementwise(((0.3, 2.0), (-2.0, 2.0))),
        *[((a[0], 3), {}) for a, _ in draw.elementwise(((-2.0, 2.0),))],
    ]


@composite(reference=lambda np, x, y: np.power(x, y), samples=_power_samples, complex=complex_arithmetic.pow_of_any)
def pow(xp: Any, x1: Any, x2: Any, /) -> Any:
    """x1 ** x2. A small integer exponent given as a Python number becomes multiplications; 0.5 a square root.

    An integer raised to a negative Python integer raises; to a negative element gives 0, or +-1 for a base of +-1.
    """
    if isinstance(x2, (int, float)) and not isinstance(x2, bool):
        if x2 == int(x2) if isinstance(x2, int) or abs(x2) < SMALL_POWER else False:
            n = int(x2)
            floating = _kind(x1) == "float" or isinstance(x2, float)
            base = x1 if _kind(x1) == "float" or not floating else xp.astype(x1, dtypes.float64)
            if 0 <= n <= SMALL_POWER:
                return integer_power(xp, base, n)
            if n < 0 and not floating:
                raise DTypeError(
                    f"cannot raise {x1.dtype.name} to {n}: integers have no negative powers; cast with .astype(...)"
                )
            if -SMALL_POWER <= n < 0:
                return 1.0 / integer_power(xp, base, -n)
        if x2 == 0.5 and _kind(x1) == "float":
            # sqrt differs from pow(x, 0.5) only at -0.0 and -inf; the sum and the absolute value give pow's answers
            # there.
            return xp.where(xp.equal(x1, float("-inf")), float("inf"), xp.sqrt(x1 + 0.0))
    a, b = xp.pair("pow", x1, x2)
    if _kind(a) == "float":
        return xp.power_(a, b)
    return _integers_to_integers(xp, a, b)


def _integers_to_integers(xp: Any, a: Any, b: Any) -> Any:
    """Return a ** b of integer arrays by squaring over the bits of b, without leaving the dtype."""
    result, base = xp.ones_like(a), a
    for bit in range(b.dtype.itemsize * 8 - 1):
        taken = xp.not_equal(xp.bitwise_and(xp.bitwise_right_shift(b, bit), 1), 0)
        result = xp.where(taken, result * base, result)
        base = base * base
    if b.dtype in dtypes.UNSIGNED:
        return result
    odd = xp.equal(xp.bitwise_and(b, 1), 1)
    zero, one = xp.zeros_like(result), xp.ones_like(result)
    inverse = xp.where(xp.equal(a, 1), one, xp.where(xp.equal(a, -1), xp.where(odd, -one, one), zero))
    return xp.where(b < 0, inverse, result)


@composite(reference=lambda np, x, y: np.hypot(x, y), samples=draw_numbers((0.3, 2), (0.3, 2)))
def hypot(xp: Any, x1: Any, x2: Any, /) -> Any:
    """sqrt(x1 * x1 + x2 * x2) without overflow; infinite if either operand is, NaN or not.

    Its slope is 0 at the origin and at infinity.
    """
    a, b = xp.pair("hypot", x1, x2)
    if _kind(a) == "int":
        a, b = xp.astype(a, dtypes.float64), xp.astype(b, dtypes.float64)
    infinite = xp.bitwise_or(xp.isinf(a), xp.isinf(b))
    a, b = xp.where(infinite, 1.0, a), xp.where(infinite, 1.0, b)
    size = xp.stop_gradient(xp.maximum(xp.abs(a), xp.abs(b)))
    origin = xp.equal(size, 0.0)
    scale = xp.where(origin, 1.0, size)
    p, q = a / scale, b / scale
    value = xp.where(origin, 0.0, scale * xp.sqrt(xp.where(origin, 1.0, p * p + q * q)))
    return xp.where(infinite, float("inf"), value)


@composite(reference=lambda np, x, y: np.logaddexp(x, y), samples=draw_numbers((-2, 2), (-2, 2)))
def logaddexp(xp: Any, x1: Any, x2: Any, /) -> Any:
    """log(exp(x1) + exp(x2)) without overflow; of two -inf it is -inf, with slope 0."""
    a, b = xp.pair("logaddexp", x1, x2)
    if _kind(a) == "int":
        a, b = xp.astype(a, dtypes.float64), xp.astype(b, dtypes.float64)
    top = xp.stop_gradient(xp.maximum(a, b))
    finite = xp.isfinite(top)
    p, q = (xp.where(finite, v, 0.0) for v in (a, b))
    less = p < q  # at a tie the slopes of both parts add up to a half
    value = xp.where(less, q, p) + xp.log1p(xp.exp(xp.where(less, p - q, q - p)))
    return xp.where(finite, value, xp.where(top > 0.0, xp.maximum(a, b), top))


def _clip_reference(np: Any, x: Any, low: Any = None, high: Any = None) -> Any:
    return np.clip(x, low, high)


@composite(
    reference=_clip_reference, samples=lambda draw: [((a[0], -0.7, 0.9), {}) for a, _ in draw.elementwise(((-2, 2),))]
)
def clip(xp: Any, x: Any, /, min: Any = None, max: Any = None) -> Any:  # noqa: A002  the Array API's names
    """x limited to [min, max]; a bound that is None does not limit. On a bound the gradient passes through."""
    out = x
    for bound, beyond in ((min, xp.less), (max, xp.greater)):
        if bound is not None:
            limit = bound if not isinstance(bound, (int, float)) else xp.like(bound, x)
            out = xp.where(xp.bitwise_or(beyond(out, limit), xp.not_equal(limit, limit)), limit, out)
    return xp.astype(out, x.dtype) if out.dtype is not x.dtype and _kind(x) == _kind(out) else out


@composite(reference=lambda np, x: np.sinc(x), samples=draw_numbers((-2, 2)), dtypes="float", where="main special")
def sinc(xp: Any, x: Any, /) -> Any:
    """sin(pi x) / (pi x), 1 at 0. Near 0 it is its series, so that its derivatives are right there too."""
    y = x * math.pi
    near = xp.abs(y) < 0.5  # where the series' next term is below rounding, and the quotient's slope not yet imprecise
    small, large = xp.where(near, y, 0.0), xp.where(near, 1.0, y)
    series: Any = 1.0
    for k in range(7, 0, -1):
        series = 1.0 - small * small / float(2 * k * (2 * k + 1)) * series
    return xp.where(near, series, xp.sin(large) / large)


@composite(
    reference=lambda np, x: x, samples=draw_numbers((-2, 2)), dtypes="bool int float complex", differentiable=False
)
def stop_gradient(xp: Any, x: Any, /) -> Any:
    """x as a constant: no gradient flows through it."""
    return xp.cut(x)
