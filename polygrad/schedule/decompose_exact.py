"""Decompositions that are exact: selections, signs, integers near a float, neighbours, remainders.

Here: minimum, absolute, ceil, trunc, round, copysign, nextafter, fmod. Not here: what is only approximated, in the
other modules.
"""

import math

from polygrad.driver.ir import kind
from polygrad.ops.values import Value, power_of_two, sign_bit, where


def minimum(a: Value, b: Value) -> Value:
    """Negation reverses the order of floats, inversion that of bools and of integers, signed or not."""
    if kind(a.dtype) == "float":
        return -((-a).op("maximum", -b))
    return ~((~a).op("maximum", ~b))


def absolute(a: Value) -> Value:
    """Clear the sign bit; of integers, negate what is negative."""
    if kind(a.dtype) == "float":
        return (a.bits(a.layout.signed) & ~a.layout.sign).bits(a.dtype)
    return a if a.dtype[0] == "u" else where(a < 0, -a, a)


def ceil(a: Value) -> Value:
    """The floor from the other side; -0.0 for (-1, 0)."""
    return -((-a).op("floor"))


def trunc(a: Value) -> Value:
    """The floor of the magnitude."""
    return a.op("absolute").op("floor").op("copysign", a)


def round_(a: Value) -> Value:
    """Add and subtract a number whose last place is 1, which rounds ties to even as additions do."""
    unit = 2.0**a.layout.width
    size = a.op("absolute")
    return where(size < unit, ((size + unit) - unit).op("copysign", a), a)


def copysign(a: Value, b: Value) -> Value:
    """The sign bit of b on the other bits of a."""
    return ((a.bits(a.layout.signed) & ~a.layout.sign) | sign_bit(b)).bits(a.dtype)


def nextafter(a: Value, b: Value) -> Value:
    """Floats of one sign are ordered as their bits are."""
    own = a.bits(a.layout.signed)
    outwards = (a < b) ^ (own < 0)
    moved = where(outwards, own + 1, own - 1)
    moved = where(a.equals(0.0), sign_bit(b) | 1, moved).bits(a.dtype)
    return where((a < b) | (b < a), moved, where(a.equals(b), b, a + b))


def fmod(a: Value, b: Value) -> Value:
    """The remainder of integers: with a = m 2^i and b = n 2^j it is (m 2^(i-j) mod n) 2^j.

    2^(i-j) mod n takes squarings: i - j has 8 bits in float32 (11 in float64), the upper 5 of which (6) are a shift
    within one word and each of the others a squaring. That is some 125 (160) instructions, where a division bit by bit
    would need as many steps as the exponents may differ, 253 (2045).
    """
    layout = a.layout
    size, divisor = a.op("absolute"), b.op("absolute")
    m, i = _integer(size)
    n, j = _integer(divisor)
    gap = i - j
    direct = {"float32": 3, "float64": 5}[a.dtype]
    shift, modulus = (v.to(layout.unsigned) for v in (gap >> direct, n))
    power = (shift.like(1) << shift) % modulus
    power = power.to(layout.signed)
    for k in reversed(range(direct)):
        power = _product_modulo(power, power << ((gap >> k) & 1), n, a.dtype)
    rest = _product_modulo(m % n, power, n, a.dtype)
    exponent = j - layout.bias - layout.width
    half = exponent >> 1  # two exact steps: 2 ** exponent alone may be below the normal numbers
    down = rest.to(a.dtype) * power_of_two(half, a.dtype) * power_of_two(exponent - half, a.dtype)
    value = where(size < divisor, size, down)
    valid = (size < math.inf) & (divisor > 0.0) & divisor.equals(divisor)
    return where(valid, value.op("copysign", a), math.nan)


def _integer(size: Value) -> tuple[Value, Value]:
    """Return the mantissa as an integer and the biased exponent; a subnormal has that of the least normal number."""
    layout = size.layout
    bits = size.bits(layout.signed)
    exponent = bits >> layout.width
    normal = exponent > 0
    mantissa = (bits & layout.mantissa) | where(normal, bits.like(1 << layout.width), 0)
    return mantissa, where(normal, exponent, 1)


def _product_modulo(a: Value, b: Value, n: Value, dtype: str) -> Value:
    """Return a * b mod n for a below n and b below 2 n, all integers that floats hold exactly.

    The quotient is estimated in floats, to within 8; then the difference of the wrapped products is the remainder but
    for as many n, which is far within the word.
    """
    quotient = (a.to(dtype) * b.to(dtype) / n.to(dtype)).to(a.dtype)
    rest = (a * b - quotient * n) % n
    return where(rest < 0, rest + n, rest)
