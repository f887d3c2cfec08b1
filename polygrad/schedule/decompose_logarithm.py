"""Decompositions around the logarithm: log, log2, log10, log1p, asinh, acosh, atanh.

Here: x = 2 ** n (1 + f), log(1 + f) from atanh(f / (2 + f)) as in Ng's `log` (Sun Microsystems, 1993); what is a log1p
of something. The device's own inexact ops are never used. Not here: the logarithm in two floats that `pow` takes.
"""

import math

from polygrad.ops.values import Coefficients, Value, polynomial, where
from polygrad.schedule.decompose_exponential import LN2

# (log((1 + s) / (1 - s)) / s - 2) / s ** 2 as a polynomial of s ** 2, for 1 + f = (1 + s) / (1 - s) in [sqrt(1/2),
# sqrt(2)]
LOG: Coefficients = {
    "float32": (0.66666776, 0.3997728, 0.29879352),
    "float64": (
        0.6666666666666737, 0.3999999999939407, 0.28571428747372996, 0.22222198022931333, 0.18183594819074644,
        0.15313224396140537, 0.14804654633593417,
    ),
}  # fmt: skip
# The bits of about sqrt(1/2), the least 1 + f.
LEAST_MANTISSA = {"float32": 0x3F3504F3, "float64": 0x3FE6A09E667F3BCD}
# Two parts each: the logarithm of 2 (times any exponent it is exact), and that of e.
BASES = {
    "e": {dtype: (parts, (1.0, 0.0)) for dtype, parts in LN2.items()},
    "2": {
        "float32": ((1.0, 0.0), (1.4426950216293335, 1.925963033500011e-08)),
        "float64": ((1.0, 0.0), (1.4426950408889634, 2.0355273740931033e-17)),
    },
    "10": {
        "float32": ((0.301025390625, 4.605039066518657e-06), (0.4342944920063019, -1.0103049952192578e-08)),
        "float64": ((0.30102999566383914, 1.42050232272661e-13), (0.4342944819032518, 1.098319650216765e-17)),
    },
}
# Where x ** 2 + 1 is x ** 2, and log(1 + x) is log(x).
LARGE = {"float32": 2.0**28, "float64": 2.0**56}


def split(x: Value) -> tuple[Value, Value]:
    """Return n (as a float) and f with x = 2 ** n (1 + f), sqrt(1/2) <= 1 + f < sqrt(2), for positive finite x."""
    layout, low = x.layout, LEAST_MANTISSA[x.dtype]
    tiny = x < layout.least_normal
    lift = layout.width + 1
    moved = where(tiny, x * 2.0**lift, x).bits(layout.signed) + (layout.one - low)
    n = (moved >> layout.width) - where(tiny, moved.like(layout.bias + lift), layout.bias)
    return n.to(x.dtype), ((moved & layout.mantissa) + low).bits(x.dtype) - 1.0


def logarithm(x: Value, base: str = "e") -> Value:
    """Return the logarithm: log(1 + f) = f - c with c of about f ** 2 / 2, so that f itself enters exactly."""
    n, f = split(x)
    (exponent_high, exponent_low), (high, low) = BASES[base][x.dtype]
    s = f / (f + 2.0)
    z = s * s
    h = f * f * 0.5
    c = h - s * (h + z * polynomial(z, LOG))
    minor = -c if high == 1.0 else f * low - c * high
    if exponent_low:
        minor = minor + n * exponent_low
    major = f if high == 1.0 else f * high
    value = n * exponent_high + (major + minor)
    value = where(x < math.inf, value, x)
    return where(x > 0.0, value, where(x.equals(0.0), x.like(-math.inf), math.nan))


def logarithm_of_one_plus(x: Value) -> Value:
    """Return log(1 + x): that of the rounded sum u, and to first order of what rounding has cut off."""
    u = x + 1.0
    value = logarithm(u)
    lost = (x - (u - 1.0)) / u
    value = where(value.op("absolute") < math.inf, value + lost, value)
    return where(x.equals(0.0), x, value)  # the sign of a zero


def log(x: Value) -> Value:
    """See `logarithm`."""
    return logarithm(x)


def log2(x: Value) -> Value:
    """See `logarithm`."""
    return logarithm(x, "2")


def log10(x: Value) -> Value:
    """See `logarithm`."""
    return logarithm(x, "10")


def log1p(x: Value) -> Value:
    """See `logarithm_of_one_plus`."""
    return logarithm_of_one_plus(x)


def _twice(size: Value, small: Value) -> Value:
    """Return log1p(small), and log(2 size) where *size* is so large that this is it."""
    large = LARGE[size.dtype] < size
    return logarithm_of_one_plus(where(large, size, small)) + where(large, size.like(math.log(2)), 0.0)


def asinh(x: Value) -> Value:
    """log1p(a + a**2 / (1 + sqrt(1 + a**2))) of a = |x|."""
    a = x.op("absolute")
    square = a * a
    return _twice(a, a + square / ((square + 1.0).op("sqrt") + 1.0)).op("copysign", x)


def acosh(x: Value) -> Value:
    """log1p(t + sqrt(t (t + 2))) of t = x - 1."""
    t = x - 1.0
    return where(x < 1.0, math.nan, _twice(x, t + (t * (t + 2.0)).op("sqrt")))


def atanh(x: Value) -> Value:
    """log1p(2 a / (1 - a)) / 2 of a = |x|; where a exceeds 1 the quotient is below -1, which gives NaN."""
    a = x.op("absolute")
    return (logarithm_of_one_plus((a + a) / (1.0 - a)) * 0.5).op("copysign", x)
