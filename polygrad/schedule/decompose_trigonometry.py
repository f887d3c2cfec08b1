"""Decompositions of sin, cos and tan, right for every finite argument.

Here: the reduction by multiples of pi / 2 in integer arithmetic (Payne and Hanek, 1983) and polynomials. Not here: the
inverses.

An argument is m 2 ** e with an integer m. Of the binary digits of 2 / pi only those matter whose product with m 2 ** e
is below 4 (four quarters are a turn) and not far below the last digit wanted: three words from a place that e gives.
Their product with m, modulo a power of two, has the quarter in its first two bits and the fraction of a quarter, to 2
** -62 (2 ** -126), in the rest. No float32 (float64) is nearer to a multiple of pi / 2 than about 2 ** -31 (2 ** -62),
so the fraction is exact enough.
"""

import math

from polygrad.ops.values import (
    Coefficients,
    Layout,
    Pair,
    Value,
    flip_sign,
    polynomial,
    sign_bit,
    sum_of,
    where,
)

# The binary digits of 2 / pi
TWO_OVER_PI = int(
    "a2f9836e4e441529fc2757d1f534ddc0db6295993c439041fe5163abdebbc561b7246e3a424dd2e006492eea09d1921c"
    "fe1deb1cb129a73ee88235f52ebb4484e99c7026b45f7e413991d639835339f49c845f8bbdf9283b1ff897ffde05980f"
    "ef2f118b5a0a6d1f6d367ecf27cb09b74f463f669e5fea2d7527bac7ebe5f17b3d0739f78a5292ea6bfb5fb11f8d5d08"
    "56033046fc7b6bab",
    16,
)
DIGITS = 1216
WORDS = {32: 7, 64: 19}  # by their bits, how many words of the digits the greatest argument reaches
WINDOW = 3

# pi / 2 in two parts
HALF_PI = {
    "float32": (1.5707963705062866, -4.371138828673793e-08),
    "float64": (1.5707963267948966, 6.123233995736766e-17),
}
# (sin(r) / r - 1) / r ** 2 and (cos(r) - 1 + r ** 2 / 2) / r ** 4 as polynomials of r ** 2, for |r| <= pi / 4
SIN: Coefficients = {
    "float32": (-0.16666667, 0.008333329, -0.00019839323, 2.7181957e-06),
    "float64": (
        -0.16666666666666632, 0.008333333333322252, -0.00019841269829673787, 2.7557313643849117e-06,
        -2.5050750350566823e-08, 1.589633230930971e-10,
    ),
}  # fmt: skip
COS: Coefficients = {
    "float32": (0.041666646, -0.0013887357, 2.4437277e-05),
    "float64": (
        0.041666666666666595, -0.0013888888888873897, 2.480158728933589e-05, -2.7557314308687894e-07,
        2.0875717158709488e-09, -1.1359322135546725e-11,
    ),
}  # fmt: skip


def reduced(size: Value) -> tuple[Value, Pair]:
    """Return a signed integer q and r with size = q pi / 2 + r, |r| at most pi / 4, for size >= 0.

    r is NaN if size is not finite. Its lower part corrects its rounding, to a few bits.
    """
    layout = size.layout
    bits = size.bits(layout.signed)
    mantissa = (bits & layout.mantissa | layout.mantissa + 1).to(layout.unsigned)
    # One word of zeros stands before the digits, so that the window of an argument near 1 begins within the table.
    start = (bits >> layout.width) - (layout.bias + layout.width + 2 - layout.bits)
    words = _window(start, mantissa, layout)
    first, second = _product(mantissa, words, layout)
    quarter, r = _fraction(first, second, layout, size.dtype)
    small = size < math.pi / 4
    high = where(small, size, where(size < math.inf, r.high, math.nan))
    return where(small, 0, quarter), Pair(high, where(small, 0.0, r.low))


def _window(start: Value, like: Value, layout: Layout) -> list[Value]:
    """Return three words of digits from bit *start* on; the word is found bit by bit of its number."""
    bits, count = layout.bits, WORDS[layout.bits]
    digits = [TWO_OVER_PI >> (DIGITS - (k + 1) * bits) & (1 << bits) - 1 for k in range(count)]
    words = [like.like(word) for word in (0, *digits)]
    index = start >> (bits.bit_length() - 1)
    for k in reversed(range((count - WINDOW).bit_length())):
        step = 1 << k
        skip = (index & step).differs(0)
        need = min(len(words), WINDOW + step)
        words = [where(skip, words[j + step], words[j]) if j + step < len(words) else words[j] for j in range(need)]
    shift = (start & (bits - 1)).to(layout.unsigned)
    back = bits - shift  # a shift by the whole width, where *shift* is 0, gives 0
    return [words[k] << shift | words[k + 1] >> back for k in range(WINDOW)]


def _product(mantissa: Value, words: list[Value], layout: Layout) -> tuple[Value, Value]:
    """Return the upper two of the lower three words of mantissa * words."""
    second = mantissa * words[1]
    total = second + _upper(mantissa, words[2], layout)
    carry = (total < second).to(layout.unsigned)
    return mantissa * words[0] + _upper(mantissa, words[1], layout) + carry, total


def _upper(a: Value, b: Value, layout: Layout) -> Value:
    """Return the upper word of a product of two words, by halves: a device need not have a wider integer."""
    half = layout.bits // 2
    mask = (1 << half) - 1
    ah, al, bh, bl = a >> half, a & mask, b >> half, b & mask
    cross, other = ah * bl, al * bh
    middle = (al * bl >> half) + (cross & mask) + (other & mask)
    return ah * bh + (cross >> half) + (other >> half) + (middle >> half)


def _fraction(first: Value, second: Value, layout: Layout, dtype: str) -> tuple[Value, Pair]:
    """Return the quarter, rounded to the nearest, and what is left, as radians."""
    bits, half = layout.bits, layout.bits // 2
    quarter = (first + (1 << (bits - 3))) >> (bits - 2)
    # Without the bits of the quarter the fraction is signed: above a half means below the next quarter.
    upper = (first << 2 | second >> (bits - 2)).to(layout.signed)
    sign = upper >> (bits - 1)
    size = (upper ^ sign).to(layout.unsigned)
    rest = (second << 2 ^ sign.to(layout.unsigned)).to(dtype)
    fraction = sum_of((size & -(1 << half)).to(dtype), (size & (1 << half) - 1).to(dtype) + rest * 2.0**-bits)
    unit, unit_low = (part * 2.0**-bits for part in HALF_PI[dtype])
    low = fraction.low * unit + fraction.high * unit_low
    mask = sign & layout.sign
    return quarter.to(layout.signed), Pair(flip_sign(fraction.high * unit, mask), flip_sign(low, mask))


def _sine(r: Pair) -> Value:
    z = r.high * r.high
    return r.high + (r.high * z * polynomial(z, SIN) + r.low * (1.0 - z * 0.5))


def _cosine(r: Pair) -> Value:
    z = r.high * r.high
    return 1.0 - (z * 0.5 - (z * z * polynomial(z, COS) - r.high * r.low))


def sin(x: Value) -> Value:
    """By quarters: sin, cos, -sin, -cos of the rest."""
    quarter, r = reduced(x.op("absolute"))
    value = where((quarter & 1).differs(0), _cosine(r), _sine(r))
    return flip_sign(value, sign_bit(x) ^ (quarter << (x.layout.bits - 2) & x.layout.sign))


def cos(x: Value) -> Value:
    """By quarters: cos, -sin, -cos, sin of the rest."""
    quarter, r = reduced(x.op("absolute"))
    value = where((quarter & 1).differs(0), _sine(r), _cosine(r))
    return flip_sign(value, (quarter + 1) << (x.layout.bits - 2) & x.layout.sign)


def tan(x: Value) -> Value:
    """Sine over cosine of the rest, or minus cosine over sine in odd quarters."""
    quarter, r = reduced(x.op("absolute"))
    odd = (quarter & 1).differs(0)
    sine, cosine = _sine(r), _cosine(r)
    value = where(odd, cosine, sine) / where(odd, sine, cosine)
    return flip_sign(value, sign_bit(x) ^ (quarter << (x.layout.bits - 1)))
