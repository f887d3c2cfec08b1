"""Incomplete gamma and beta functions and what is made of them: ``pg.special``.

Here: gammainc, gammaincc, chdtr, chdtrc, betainc, betaincc, stdtr, stdtrit.
Not here: the gamma function itself (`special_gamma.py`).

The smaller side of each is an integral from the operand x away from the mean, where the integrand falls from 1. Over
w > 0, with y = 1 - x and z = x / y:

    P(a, x)    = x ** a e ** -x / gamma(a) * integral of e ** (-a w - x expm1(-w))
    Q(a, x)    = the same factor           * integral of e ** ((a - 1) log1p(w) - x w)
    I(a, b, x) = x ** a y ** (b - 1) / B(a, b) * integral of e ** (-a w + (b - 1) log1p(-z expm1(-w)))

The trapezoidal rule in s, with w = scale * exp(s - exp(-s)), converges exponentially (Takahasi and Mori, "Double
exponential formulas for numerical integration", 1974): 64 nodes give 1e-14, for all operands alike, and they are an
axis that is summed over, so that a kernel stays small. Below a = 1 the recurrence in a comes first. The factor is made
of deviations from the mean and Stirling's remainders, so that its large terms do not cancel. Derivatives by x are the
densities; those by a and b are integrals of the same kind.
"""

import math
from typing import Any

from polygrad import dtypes, shapes
from polygrad.ops.internal import cast
from polygrad.ops.special_gamma import HALF_LOG_TWO_PI, float_operands
from polygrad.ops.special_reference import by_mpmath
from polygrad.ops.statistics import wide
from polygrad.ops.table import composite, elementwise

FLOAT = "float"
NODES = {dtypes.float32: 32, dtypes.float64: 64}
FIRST, LAST = -3.5, 4.0  # the integral's ends in s
LARGE = 1e4
LIMIT = {dtypes.float32: 1e15, dtypes.float64: 1e150}  # of |t| in Student's distribution


def _together(xp: Any, name: str, *operands: Any) -> Any:
    """Return operands as nodes of one float dtype and shape, 16-bit ones as float32, and their dtype."""
    nodes = float_operands(xp, name, *operands)
    dtype = nodes[0].dtype
    nodes = xp.broadcast_arrays(*[wide(xp, n) for n in nodes])
    return nodes, dtype


def _rule(xp: Any, scale: Any) -> tuple[Any, Any]:
    """Return the nodes w and their weights along a new last axis, for integrals whose width is about *scale*."""
    count = NODES[scale.dtype]
    step = (LAST - FIRST) / count
    s = cast(xp, xp.iota(count, dtypes.int64), scale.dtype) * step + (FIRST + 0.5 * step)
    back = xp.exp(-s)
    node = xp.exp(s - back)
    scale = xp.expand_dims(xp.stop_gradient(scale), -1)  # the integral does not depend on it
    return scale * node, scale * (node * (1.0 + back) * step)


def _along(xp: Any, *values: Any) -> Any:
    return [xp.expand_dims(v, -1) for v in values]


def _total(xp: Any, x: Any) -> Any:
    return xp.sum(x, axis=-1)


def _log_ratio(xp: Any, u: Any, ratio: Any) -> Any:
    """Return log(1 + u), where *ratio* is 1 + u, known better than u tells it where that is near -1."""
    near = xp.abs(u) < 0.5
    return xp.where(near, xp.log1p(xp.where(near, u, 0.0)), xp.log(xp.where(near, 1.0, ratio)))


# ---- gamma ----------------------------------------------------------------------------------------------------


def _gamma_factor(xp: Any, a: Any, x: Any) -> Any:
    """Return x ** a e ** -x / gamma(a) for a > 0 and x > 0."""
    u = (x - a) / a
    power = a * _log_ratio(xp, u, x / a) - (x - a)
    return xp.sqrt(a * (0.5 / math.pi)) * xp.exp(power - xp.stirling_(a))


class _Gamma:
    """The parts of the incomplete gamma functions for operands that are positive and finite."""

    def __init__(self, xp: Any, a: Any, x: Any) -> None:
        self.left = xp.bitwise_or(x < a, x < 0.1)  # which side the integral is: P, or Q
        moved = xp.bitwise_and(self.left, a < 1.0)
        self.a = xp.where(moved, a + 1.0, a)
        over = xp.maximum(a - 1.0, xp.zeros_like(a))
        left_width = xp.abs(self.a - x) + xp.sqrt(x)
        right_width = xp.abs(x - over) + xp.sqrt(over)
        self.w, weight = _rule(xp, 1.0 / xp.where(self.left, left_width, right_width))
        left, order, at = _along(xp, self.left, self.a, x)
        self.log1p = xp.log1p(self.w)
        power = xp.where(left, -order * self.w - at * xp.expm1(-self.w), (order - 1.0) * self.log1p - at * self.w)
        self.weighted = weight * xp.exp(power)
        total = _total(xp, self.weighted)
        factor = _gamma_factor(xp, self.a, x)
        # e ** (a log x - x) / gamma(a + 1): where x is tiny x ** (a + 1) might underflow
        small = xp.where(moved, a, 0.5)
        order_part = (small + 0.5) * xp.log1p(small) - (small + 1.0) + HALF_LOG_TWO_PI + xp.stirling_(small + 1.0)
        start = xp.exp(small * xp.log(x) - x - order_part)
        self.value = xp.where(moved, start * (1.0 + x * total), factor * total)
        self.factor = xp.where(moved, start * x, factor)


def _gamma_safe(xp: Any, a: Any, x: Any) -> tuple[Any, Any, Any]:
    """Return a and x, 1 where they are not positive and finite, and where they are."""
    inside = xp.bitwise_and(xp.bitwise_and(a > 0.0, x > 0.0), xp.bitwise_and(xp.isfinite(a), xp.isfinite(x)))
    return xp.where(inside, a, 1.0), xp.where(inside, x, 1.0), inside


def _gamma_outside(xp: Any, a: Any, x: Any, lower: bool) -> Any:
    """Return the values at the ends of the domain, NaN beyond."""
    infinity = float("inf")
    none, all_ = (0.0, 1.0) if lower else (1.0, 0.0)
    good = xp.bitwise_and(a >= 0.0, x >= 0.0)
    at_zero = xp.bitwise_and(xp.equal(x, 0.0), a > 0.0)
    all_a = xp.bitwise_and(xp.equal(a, infinity), x < infinity)
    everything = xp.bitwise_or(
        xp.bitwise_and(xp.equal(a, 0.0), x > 0.0), xp.bitwise_and(xp.equal(x, infinity), a < infinity)
    )
    value = xp.where(xp.bitwise_or(at_zero, all_a), none, xp.where(everything, all_, float("nan")))
    return xp.where(good, value, float("nan"))


def _gamma_value(xp: Any, a: Any, x: Any, lower: bool) -> Any:
    p, v, inside = _gamma_safe(xp, a, x)
    parts = _Gamma(xp, p, v)
    same = parts.left if lower else xp.bitwise_invert(parts.left)
    value = xp.where(same, parts.value, 1.0 - parts.value)
    return xp.where(inside, value, _gamma_outside(xp, a, x, lower))


def _gamma_density(xp: Any, a: Any, x: Any) -> Any:
    """Return the derivative of P by x, x ** (a - 1) e ** -x / gamma(a)."""
    near = a < 8.0
    p, v = xp.where(near, a, 1.0), xp.where(near, 1.0, x)
    v = xp.where(xp.equal(v, 0.0), 1.0, v)
    near_x = xp.where(xp.equal(x, float("inf")), LARGE, x)  # where the density is 0, without inf - inf
    direct = xp.exp(xp.xlogy_(p - 1.0, near_x) - near_x - xp.gammaln(p))
    far = xp.where(xp.equal(x, 0.0), 0.0, _gamma_factor(xp, xp.where(near, 1.0, a), v) / v)
    return xp.where(near, direct, far)


def _gamma_by_order(xp: Any, a: Any, x: Any) -> Any:
    """Return the derivative of P by a; 0 where x is 0 or infinite."""
    p, v, inside = _gamma_safe(xp, a, x)
    parts = _Gamma(xp, p, v)
    left, w = xp.expand_dims(parts.left, -1), parts.w
    moments = _total(xp, parts.weighted * xp.where(left, -w, parts.log1p))
    slope = parts.value * (xp.log(v) - xp.digamma(parts.a)) + parts.factor * moments
    ends = xp.bitwise_or(xp.equal(x, 0.0), xp.equal(x, float("inf")))
    return xp.where(inside, xp.where(parts.left, slope, -slope), xp.where(ends, 0.0, float("nan")))


@elementwise(
    kinds=FLOAT,
    public=False,
    domain=None,
    lower=lambda b, value, *_: value,
    vjp=(
        None,
        lambda xp, g, out, v, a, x: xp.multiply_no_nan(_gamma_by_order(xp, a, x), g),
        lambda xp, g, out, v, a, x: xp.multiply_no_nan(_gamma_density(xp, a, x), g),
    ),
)
def gammainc_(xp: Any, value: Any, a: Any, x: Any, /) -> Any:
    """The value, known to be gammainc(a, x): its derivatives are those of gammainc."""
    return value


GAMMA_SAMPLES = ((0.3, 9.0), (0.05, 12.0))


@composite(
    reference=lambda np, a, x: by_mpmath(lambda mp, p, v: mp.gammainc(p, 0, v, regularized=True), a, x),
    samples=lambda draw: draw.elementwise(GAMMA_SAMPLES),
    where="special",
)
def gammainc(xp: Any, a: Any, x: Any, /) -> Any:
    """The lower incomplete gamma function P(a, x), regularized, for a >= 0 and x >= 0.

    Where P is near 1 because a is small, `gammaincc` is 1 - P, with the error of a rounding of 1.
    """
    (a, x), dtype = _together(xp, "gammainc", a, x)
    return cast(xp, xp.gammainc_(xp.stop_gradient(_gamma_value(xp, a, x, True)), a, x), dtype)


@composite(
    reference=lambda np, a, x: by_mpmath(lambda mp, p, v: mp.gammainc(p, v, regularized=True), a, x),
    samples=lambda draw: draw.elementwise(GAMMA_SAMPLES),
    where="special",
)
def gammaincc(xp: Any, a: Any, x: Any, /) -> Any:
    """The upper incomplete gamma function Q(a, x) = 1 - P(a, x), accurate where it is small."""
    (a, x), dtype = _together(xp, "gammaincc", a, x)
    return cast(xp, -xp.gammainc_(xp.stop_gradient(-_gamma_value(xp, a, x, False)), a, x), dtype)


CHI_SAMPLES = ((0.6, 9.0), (0.1, 12.0))


@composite(
    reference=lambda np, v, x: by_mpmath(lambda mp, n, t: mp.gammainc(n / 2, 0, t / 2, regularized=True), v, x),
    samples=lambda draw: draw.elementwise(CHI_SAMPLES),
    where="special",
)
def chdtr(xp: Any, v: Any, x: Any, /) -> Any:
    """The chi square distribution function with v degrees of freedom: P(v / 2, x / 2)."""
    v, x = float_operands(xp, "chdtr", v, x)
    return xp.gammainc(v * 0.5, x * 0.5)


@composite(
    reference=lambda np, v, x: by_mpmath(lambda mp, n, t: mp.gammainc(n / 2, t / 2, regularized=True), v, x),
    samples=lambda draw: draw.elementwise(CHI_SAMPLES),
    where="special",
)
def chdtrc(xp: Any, v: Any, x: Any, /) -> Any:
    """1 - chdtr(v, x), accurate where that is small."""
    v, x = float_operands(xp, "chdtrc", v, x)
    return xp.gammaincc(v * 0.5, x * 0.5)


# ---- beta -----------------------------------------------------------------------------------------------------


def _beta_factor(xp: Any, a: Any, b: Any, x: Any, y: Any) -> Any:
    """Return x ** a y ** b / B(a, b) for positive operands, y being 1 - x."""
    s = a + b
    away = x * b - a * y  # one number for both deviations: its rounding error cancels between them
    power = a * _log_ratio(xp, away / a, x * (s / a)) + b * _log_ratio(xp, -away / b, y * (s / b))
    rests = xp.stirling_(s) - xp.stirling_(a) - xp.stirling_(b)
    return xp.sqrt(a * (0.5 / math.pi) * (b / s)) * xp.exp(power + rests)


class _Beta:
    """The parts of I(a, b, x) for a, b > 0 and 0 < x < 1; `turned` where they are those of I(b, a, y)."""

    def __init__(self, xp: Any, a: Any, b: Any, x: Any, y: Any) -> None:
        self.turned = x > a / (a + b)
        p, self.q = xp.where(self.turned, b, a), xp.where(self.turned, a, b)
        self.x, self.y = xp.where(self.turned, y, x), xp.where(self.turned, x, y)
        self.moved = p < 1.0
        self.p = xp.where(self.moved, p + 1.0, p)
        z = self.x / self.y
        over = xp.maximum(self.q - 1.0, xp.zeros_like(p))
        width = xp.abs(self.p - over * z) + xp.sqrt(over * z * (1.0 + z))
        self.w, weight = _rule(xp, 1.0 / width)
        order, other, odds = _along(xp, self.p, self.q, z)
        self.bent = xp.log1p(-odds * xp.expm1(-self.w))
        self.weighted = weight * xp.exp((other - 1.0) * self.bent - order * self.w)
        self.total = _total(xp, self.weighted)
        self.s = p + self.q
        factor = _beta_factor(xp, p, self.q, self.x, self.y)
        self.start = factor / xp.where(self.moved, p, self.y)
        self.value = self.start * xp.where(self.moved, 1.0 + z * self.s * self.total, self.total)
        self.z = z


def _beta_safe(xp: Any, a: Any, b: Any, x: Any, y: Any) -> Any:
    """Return operands that are 1, 1, 1/2, 1/2 where the given ones are not inside of the domain, and where they are."""
    inside = xp.bitwise_and(xp.bitwise_and(a > 0.0, b > 0.0), xp.bitwise_and(x > 0.0, y > 0.0))
    inside = xp.bitwise_and(inside, xp.isfinite(a + b))
    a, b = xp.where(inside, a, 1.0), xp.where(inside, b, 1.0)
    return a, b, xp.where(inside, x, 0.5), xp.where(inside, y, 0.5), inside


def _beta_outside(xp: Any, a: Any, b: Any, x: Any) -> Any:
    """Return the values at the ends of the domain, NaN beyond."""
    infinity = float("inf")
    good = xp.bitwise_and(xp.bitwise_and(a >= 0.0, b >= 0.0), xp.bitwise_and(x >= 0.0, x <= 1.0))
    good = xp.bitwise_and(good, xp.bitwise_and(a + b > 0.0, xp.minimum(a, b) < infinity))
    none = xp.bitwise_or(xp.equal(b, 0.0), xp.equal(a, infinity))
    none = xp.bitwise_and(xp.bitwise_or(none, xp.equal(x, 0.0)), x < 1.0)
    return xp.where(good, xp.where(none, 0.0, 1.0), float("nan"))


def _beta_value(xp: Any, a: Any, b: Any, x: Any, y: Any, lower: bool) -> Any:
    p, q, v, w, inside = _beta_safe(xp, a, b, x, y)
    parts = _Beta(xp, p, q, v, w)
    other = parts.turned if lower else xp.bitwise_invert(parts.turned)
    value = xp.where(other, 1.0 - parts.value, parts.value)
    outside = _beta_outside(xp, a, b, x)
    return xp.where(inside, value, outside if lower else 1.0 - outside)


def _beta_density(xp: Any, a: Any, b: Any, x: Any) -> Any:
    """Return the derivative of I by x, x ** (a - 1) y ** (b - 1) / B(a, b)."""
    y = 1.0 - x
    p, q, v, w, inside = _beta_safe(xp, a, b, x, y)
    at_end = xp.bitwise_or(xp.equal(x, 0.0), xp.equal(y, 0.0))
    e, f, u = xp.where(inside, 1.0, a), xp.where(inside, 1.0, b), xp.where(at_end, x, 0.0)
    end = xp.exp(xp.xlogy_(e - 1.0, u) + xp.xlog1py_(f - 1.0, -u) - xp.betaln(e, f))
    return xp.where(inside, _beta_factor(xp, p, q, v, w) / (v * w), xp.where(at_end, end, float("nan")))


def _beta_by_orders(xp: Any, a: Any, b: Any, x: Any, y: Any) -> tuple[Any, Any]:
    """Return the derivatives of I by a and by b; 0 where x is 0 or 1."""
    p, q, v, w, inside = _beta_safe(xp, a, b, x, y)
    parts = _Beta(xp, p, q, v, w)
    common = xp.digamma(parts.s)
    share, once = parts.s * parts.z, xp.where(parts.moved, parts.z * parts.total, 0.0)
    scale = xp.where(parts.moved, share, 1.0)
    first = parts.value * (xp.log(parts.x) + common - xp.digamma(parts.p)) + parts.start * (
        once - scale * _total(xp, parts.weighted * parts.w)
    )
    second = parts.value * (xp.log(parts.y) + common - xp.digamma(parts.q)) + parts.start * (
        once + scale * _total(xp, parts.weighted * parts.bent)
    )
    ends = xp.where(xp.bitwise_or(xp.equal(x, 0.0), xp.equal(y, 0.0)), 0.0, float("nan"))
    by_a, by_b = xp.where(parts.turned, -second, first), xp.where(parts.turned, -first, second)
    return xp.where(inside, by_a, ends), xp.where(inside, by_b, ends)


@elementwise(
    kinds=FLOAT,
    public=False,
    domain=None,
    lower=lambda b, value, *_: value,
    vjp=(
        None,
        lambda xp, g, out, v, a, b, x: xp.multiply_no_nan(_beta_by_orders(xp, a, b, x, 1.0 - x)[0], g),
        lambda xp, g, out, v, a, b, x: xp.multiply_no_nan(_beta_by_orders(xp, a, b, x, 1.0 - x)[1], g),
        lambda xp, g, out, v, a, b, x: xp.multiply_no_nan(_beta_density(xp, a, b, x), g),
    ),
)
def betainc_(xp: Any, value: Any, a: Any, b: Any, x: Any, /) -> Any:
    """The value, known to be betainc(a, b, x): its derivatives are those of betainc."""
    return value


BETA_SAMPLES = ((0.3, 6.0), (0.3, 6.0), (0.02, 0.98))


@composite(
    reference=lambda np, a, b, x: by_mpmath(lambda mp, p, q, v: mp.betainc(p, q, 0, v, regularized=True), a, b, x),
    samples=lambda draw: draw.elementwise(BETA_SAMPLES),
    where="special",
)
def betainc(xp: Any, a: Any, b: Any, x: Any, /) -> Any:
    """The incomplete beta function I(a, b, x), regularized, for a, b >= 0 and x in [0, 1]."""
    (a, b, x), dtype = _together(xp, "betainc", a, b, x)
    value = _beta_value(xp, a, b, x, 1.0 - x, True)
    return cast(xp, xp.betainc_(xp.stop_gradient(value), a, b, x), dtype)


@composite(
    reference=lambda np, a, b, x: by_mpmath(lambda mp, p, q, v: mp.betainc(p, q, v, 1, regularized=True), a, b, x),
    samples=lambda draw: draw.elementwise(BETA_SAMPLES),
    where="special",
)
def betaincc(xp: Any, a: Any, b: Any, x: Any, /) -> Any:
    """1 - betainc(a, b, x), accurate where it is small."""
    (a, b, x), dtype = _together(xp, "betaincc", a, b, x)
    value = _beta_value(xp, a, b, x, 1.0 - x, False)
    return cast(xp, -xp.betainc_(xp.stop_gradient(-value), a, b, x), dtype)


# ---- Student's distribution -----------------------------------------------------------------------------------


def _student_parts(xp: Any, df: Any, t: Any) -> tuple[Any, Any]:
    """Return df / (df + t * t) and t * t / (df + t * t), whose sum is 1; of |t| within `LIMIT`."""
    limit = LIMIT[t.dtype]
    t = xp.clip(t, -limit, limit)
    ratio = t * t / df
    return 1.0 / (1.0 + ratio), xp.where(ratio > 1.0, 1.0 / (1.0 + df / (t * t)), ratio / (1.0 + ratio))


def _student_value(xp: Any, df: Any, t: Any) -> Any:
    inside = xp.bitwise_and(xp.bitwise_and(df > 0.0, xp.isfinite(df)), xp.equal(t, t))
    n, u = xp.where(inside, df, 1.0), xp.where(inside, t, 1.0)
    x, y = _student_parts(xp, n, u)
    half = xp.full_of(0.5, n)
    tail = 0.5 * _beta_value(xp, 0.5 * n, half, x, y, True)
    normal = xp.where(xp.equal(df, float("inf")), xp.ndtr(t), float("nan"))
    return xp.where(inside, xp.where(t < 0.0, tail, 1.0 - tail), normal)


def _student_density(xp: Any, df: Any, t: Any) -> Any:
    finite = xp.isfinite(df)
    n = xp.where(finite, df, 1.0)
    power = -0.5 * (n + 1.0) * xp.log1p(t * t / n) - xp.betaln(xp.full_of(0.5, n), 0.5 * n)
    return xp.where(finite, xp.exp(power) / xp.sqrt(n), xp.exp(-0.5 * (t * t)) * (1.0 / math.sqrt(2.0 * math.pi)))


def _student_by_freedom(xp: Any, df: Any, t: Any) -> Any:
    """Return the derivative by df, that of half of I(df / 2, 1 / 2, x) with x = df / (df + t * t)."""
    some = xp.not_equal(t, 0.0)
    t = xp.where(some, t, 1.0)
    x, y = _student_parts(xp, df, t)
    half = xp.full_of(0.5, df)
    by_order, _ = _beta_by_orders(xp, 0.5 * df, half, x, y)
    by_x = _beta_factor(xp, 0.5 * df, half, x, y) / df  # the density times the slope x y / df of x
    slope = 0.5 * (0.5 * by_order + by_x)
    return xp.where(some, xp.where(t < 0.0, slope, -slope), 0.0)


@elementwise(
    kinds=FLOAT,
    public=False,
    domain=None,
    lower=lambda b, value, *_: value,
    vjp=(
        None,
        lambda xp, g, out, v, df, t: g * _student_by_freedom(xp, df, t),
        lambda xp, g, out, v, df, t: g * _student_density(xp, df, t),
    ),
)
def stdtr_(xp: Any, value: Any, df: Any, t: Any, /) -> Any:
    """The value, known to be stdtr(df, t): its derivatives are those of stdtr."""
    return value


def _student_reference(mp: Any, n: Any, t: Any) -> Any:
    tail = mp.betainc(n / 2, mp.mpf(1) / 2, 0, n / (n + t * t), regularized=True) / 2
    return tail if t < 0 else 1 - tail


@composite(
    reference=lambda np, df, t: by_mpmath(_student_reference, df, t),
    samples=lambda draw: draw.elementwise(((0.6, 9.0), (-3.0, 3.0))),
    where="special",
)
def stdtr(xp: Any, df: Any, t: Any, /) -> Any:
    """Student's distribution function with df degrees of freedom: the probability of a value below t."""
    (df, t), dtype = _together(xp, "stdtr", df, t)
    return cast(xp, xp.stdtr_(xp.stop_gradient(_student_value(xp, df, t)), df, t), dtype)


STEPS = 8  # of Newton's method from the normal quantile; more change nothing in float64


def _stored(xp: Any, x: Any) -> Any:
    """Return x as a product with 1: products are the device's library's, so that x is stored before it is used.

    Else the schedule would compute each step of an iteration anew in all kernels of the next.
    """
    if 0 in x.shape:
        return x
    one = xp.reshape_(xp.constant(1.0, x.dtype), (1, 1))
    return xp.reshape_(xp.matmul_(xp.reshape_(x, (shapes.size(x.shape), 1)), one), x.shape)


def _student_quantile(xp: Any, df: Any, p: Any) -> Any:
    """Return t with stdtr(df, t) = p, by Newton's method for log(tail) as a function of log(t), which is concave.

    So every step but the first comes from the right, and none goes too far.
    """
    inside = xp.bitwise_and(xp.bitwise_and(df > 0.0, xp.isfinite(df)), xp.bitwise_and(p > 0.0, p < 1.0))
    central = xp.equal(p, 0.5)
    solved = xp.bitwise_and(inside, xp.bitwise_invert(central))
    n, tail = xp.where(solved, df, 1.0), xp.where(solved, xp.where(p < 0.5, p, 1.0 - p), 0.25)
    n, order, half = _stored(xp, n), 0.5 * n, xp.full_of(0.5, n)
    target, scale = xp.log(tail), _stored(xp, xp.betaln(half, order) + 0.5 * xp.log(n))
    size, limit = -xp.ndtri(tail), LIMIT[n.dtype]
    for _ in range(STEPS):
        size = _stored(xp, xp.clip(size, 1e-30, limit))
        x, y = _student_parts(xp, n, size)
        parts = _Beta(xp, order, half, x, y)
        now = 0.5 * xp.where(parts.turned, 1.0 - parts.value, parts.value)
        slope = size * xp.exp(-0.5 * (n + 1.0) * xp.log1p(size * (size / n)) - scale) / now
        size = size * xp.exp(xp.clip((xp.log(now) - target) / slope, -2.0, 200.0))
    outside = xp.where(xp.equal(p, 0.0), float("-inf"), xp.where(xp.equal(p, 1.0), float("inf"), float("nan")))
    outside = xp.where(xp.equal(df, float("inf")), xp.ndtri(p), xp.where(df > 0.0, outside, float("nan")))
    return xp.where(inside, xp.where(central, 0.0, xp.where(p < 0.5, -size, size)), outside)


@elementwise(
    kinds=FLOAT,
    public=False,
    domain=None,
    lower=lambda b, value, *_: value,
    second=False,  # the slopes are at the value given, not at that of the operands, so differences do not see them
    vjp=(
        None,
        lambda xp, g, out, v, df, p: -g * _student_by_freedom(xp, df, out) / _student_density(xp, df, out),
        lambda xp, g, out, v, df, p: g / _student_density(xp, df, out),
    ),
)
def stdtrit_(xp: Any, value: Any, df: Any, p: Any, /) -> Any:
    """The value, known to be stdtrit(df, p): its derivatives are those of stdtrit."""
    return value


def _quantile_reference(mp: Any, n: Any, p: Any) -> Any:
    return mp.findroot(lambda t: _student_reference(mp, n, t) - p, mp.sqrt(2) * mp.erfinv(2 * p - 1))


@composite(
    reference=lambda np, df, p: by_mpmath(_quantile_reference, df, p),
    samples=lambda draw: draw.elementwise(((1.5, 9.0), (0.1, 0.9))),
    where="special",
)
def stdtrit(xp: Any, df: Any, p: Any, /) -> Any:
    """The inverse of stdtr by its second operand: below the result a value lies with probability p."""
    (df, p), dtype = _together(xp, "stdtrit", df, p)
    return cast(xp, xp.stdtrit_(xp.stop_gradient(_student_quantile(xp, df, p)), df, p), dtype)
