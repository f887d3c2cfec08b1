"""Decomposition of pow: 2 ** (y log2|x|), with the logarithm and the product in two floats.

Here: log2 as a pair; the special cases of IEEE 754. Not here: `log2` and `exp2` themselves.

The product may reach 150 (1100) and its error is that of the result: log2 is found to 40 (70) bits, which leaves about
half an ulp for the last steps.
"""

import math

from polygrad.ops.values import (
    Coefficients,
    Pair,
    Value,
    clamp,
    multiply_pairs,
    nearest,
    polynomial,
    product_of,
    scale,
    sign_bit,
    sum_of,
    where,
)
from polygrad.schedule.decompose_exponential import EXP2, EXP2_RANGE
from polygrad.schedule.decompose_logarithm import split

# ((atanh(s) / s - 1) / s ** 2 - 1/3) / s ** 2 as a polynomial of s ** 2, for |s| <= 0.172
ATANH: Coefficients = {
    "float32": (0.20000078, 0.14273421, 0.117128745),
    "float64": (
        0.20000000000001175, 0.14285714285026302, 0.11111111264315712, 0.09090891789296436, 0.07693397395611545,
        0.06627960427743741, 0.0660243282104698,
    ),
}  # fmt: skip
THIRD = {
    "float32": (0.3333333432674408, -9.934107758624577e-09),
    "float64": (0.3333333333333333, 1.850371707708594e-17),
}
TWO_LOG2_E = {
    "float32": (2.885390043258667, 3.851926067000022e-08),
    "float64": (2.8853900817779268, 4.0710547481862066e-17),
}
# An exponent beyond which every power is 0, 1 or infinity: the least logarithm but 0 is about an ulp.
GREATEST_EXPONENT = {"float32": 2.0**40, "float64": 2.0**80}


def _log2(a: Value) -> Pair:
    """Return log2 of a positive finite number: n + 2 / log(2) (s + s**3 / 3 + ...) with s = f / (2 + f)."""

    def pair(parts: tuple[float, float]) -> Pair:
        return Pair(a.like(parts[0]), a.like(parts[1]))

    n, f = split(a)
    under = sum_of(a.like(2.0), f)
    high = f / under.high
    back = product_of(high, under.high)
    s = Pair(high, ((f - back.high) - back.low - high * under.low) / under.high)
    z = multiply_pairs(s, s)
    third = pair(THIRD[a.dtype])
    tail = z.high * polynomial(z.high, ATANH)
    series = sum_of(third.high, tail)
    series = Pair(series.high, series.low + third.low)
    cubic = multiply_pairs(multiply_pairs(s, z), series)
    whole = sum_of(s.high, cubic.high)
    log = multiply_pairs(sum_of(whole.high, whole.low + (s.low + cubic.low)), pair(TWO_LOG2_E[a.dtype]))
    total = sum_of(n, log.high)  # n is 0 or at least 1, log at most 1/2
    return Pair(total.high, total.low + log.low)


def pow_(x: Value, y: Value) -> Value:
    """2 ** (y log2|x|), with the sign of x if y is odd."""
    size = x.op("absolute")
    log = _log2(size)
    most = GREATEST_EXPONENT[x.dtype]
    exponent = clamp(y, -most, most)
    product = product_of(exponent, log.high)
    limits = EXP2_RANGE[x.dtype]
    inside = clamp(product.high, *limits)
    n = nearest(inside)
    rest = where(inside.equals(product.high), product.low + exponent * log.low, 0.0)
    r = (inside - n) + rest
    value = scale(1.0 + r * polynomial(r, EXP2), n.to(x.layout.signed))
    return _special(x, y, size, value)


def _special(x: Value, y: Value, size: Value, value: Value) -> Value:
    whole = y.op("floor").equals(y)
    half = y * 0.5
    odd = whole & half.op("floor").differs(half)
    edge = size.equals(0.0) | size.equals(math.inf)
    value = where(edge, where((size < 1.0) ^ (y < 0.0), value.like(0.0), math.inf), value)
    negative = x < 0.0
    value = where(negative & ~whole & ~edge, math.nan, value)
    signed = (value.bits(x.layout.signed) | sign_bit(x)).bits(x.dtype)
    value = where(odd, signed, value)
    value = where(x.equals(x) & y.equals(y), value, math.nan)
    return where(y.equals(0.0) | x.equals(1.0), 1.0, value)
