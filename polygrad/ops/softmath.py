"""Logarithm, root and cosine made only of integer ops, additions, multiplications and selections.

Here: functions whose results have the same bits on every device, because each step is exact or rounded once by IEEE
754. Random numbers need them.
Not here: `log`, `sqrt`, `cos` for users, which are the device's own.

The polynomials interpolate at Chebyshev nodes; coefficients stand from the lowest power up.
"""

from typing import Any

from polygrad import dtypes

LN2 = 0.6931471805599453

# (log(1 + f) - f) / f**2 on [sqrt(1/2) - 1, sqrt(2) - 1], errors 3e-8 and 6e-17
_LOG = {
    dtypes.float32: (
        -0.4999999765, 0.3333333003, -0.2500078124, 0.2000123446, -0.1662664563, 0.1420485595, -0.1312755565,
        0.1272267279, -0.07673641502,
    ),
    dtypes.float64: (
        -0.5, 0.3333333333333326, -0.24999999999992915, 0.20000000000032049, -0.16666666668629756, 0.14285714282687989,
        -0.12499999789546679, 0.11111111107647632, -0.10000011277649974, 0.090909213286728551, -0.083329991360913696,
        0.076916546465267996, -0.071484204800234125, 0.066823758862331165, -0.062025600107261778, 0.056865855373398732,
        -0.056696437725659268, 0.064444211089636647, -0.059437712587656804, 0.026259864395059445,
    ),
}  # fmt: skip
# sin(r pi / 2) / r and cos(r pi / 2) as polynomials of r * r, for r in [-1/2, 1/2]
_SIN = {
    dtypes.float32: (1.570796322, -0.6459634777, 0.07968021765, -0.004602149213),
    dtypes.float64: (
        1.5707963267948966, -0.64596409750624432, 0.079692626246043003, -0.004681754132340976, 0.00016044115074219091,
        -3.5986433529823097e-6, 5.633933781537854e-8,
    ),
}  # fmt: skip
_COS = {
    dtypes.float32: (1.0, -1.233700541, 0.2536692037, -0.0208600695, 0.0009036280664),
    dtypes.float64: (
        1.0, -1.2337005501361698, 0.25366950790104671, -0.020863480763311209, 0.00091926027418315572,
        -2.5202036770460258e-5,
        4.710609726757823e-7, -6.3212568696285884e-9,
    ),
}  # fmt: skip

# For each float dtype: the integer of its bits, the mantissa's width, the bits of about sqrt(1/2), those of 1, the
# exponent's bias, the constant of the first guess at 1 / sqrt (Lomont, "Fast inverse square root", 2003) and how many
# steps make it exact to rounding.
_LAYOUT = {
    dtypes.float32: (dtypes.int32, 23, 0x3F3504F3, 0x3F800000, 127, 0x5F3759DF, 3),
    dtypes.float64: (dtypes.int64, 52, 0x3FE6A09E00000000, 0x3FF0000000000000, 1023, 0x5FE6EB50C7B537A9, 4),
}


def polynomial(x: Any, coefficients: tuple[float, ...]) -> Any:
    """Return the sum of coefficient * x ** power, by Horner's scheme."""
    value = x * coefficients[-1] + coefficients[-2]
    for c in reversed(coefficients[:-2]):
        value = value * x + c
    return value


def log(xp: Any, x: Any) -> Any:
    """Return the natural logarithm of a positive normal x, to 2e-7 (float32) or 1e-15 (float64) of its value."""
    integer, width, low, one, bias, _, _ = _LAYOUT[x.dtype]
    moved = xp.bitcast(x, integer) + (one - low)  # now the exponent steps at sqrt(1/2) instead of at 1
    power = xp.astype(xp.bitwise_right_shift(moved, width) - bias, x.dtype)
    f = xp.bitcast(xp.bitwise_and(moved, 2**width - 1) + low, x.dtype) - 1.0
    return power * LN2 + (f + f * f * polynomial(f, _LOG[x.dtype]))


def sqrt(xp: Any, x: Any) -> Any:
    """Return the square root of x >= 0, to 3e-7 (float32) or 1e-15 (float64) of its value.

    It is found by Newton's method for 1 / sqrt(x).
    """
    integer, _, _, _, _, guess, steps = _LAYOUT[x.dtype]
    y = xp.bitcast(xp.constant(guess, integer) - xp.bitwise_right_shift(xp.bitcast(x, integer), 1), x.dtype)
    half = x * 0.5
    for _ in range(steps):
        y = y * (1.5 - half * y * y)
    return x * y


def cos_of_quarters(xp: Any, quarter: Any, r: Any) -> Any:
    """Return cos((quarter + r) pi / 2) for an integer quarter and r in [-1/2, 1/2]."""
    z = r * r
    sine, cosine = r * polynomial(z, _SIN[r.dtype]), polynomial(z, _COS[r.dtype])
    value = xp.where(xp.equal(xp.bitwise_and(quarter, 1), 1), sine, cosine)
    turned = quarter + 1  # cos falls through quarters 1 and 2: -sin, -cos
    return xp.where(xp.equal(xp.bitwise_and(turned, 2), 2), -value, value)
