"""Decompositions of the inverse trigonometric functions: asin, acos, atan, atan2.

Here: arguments folded into a short interval, polynomials there, and a constant in two parts added. Not here: sin, cos,
tan.
"""

import math

from polygrad.ops.values import Coefficients, Value, flip_sign, polynomial, sign_bit, where
from polygrad.schedule.decompose_trigonometry import HALF_PI

# (atan(t) / t - 1) / t ** 2 as a polynomial of t ** 2, for |t| <= tan(pi / 8)
ATAN: Coefficients = {
    "float32": (-0.33333316, 0.19998483, -0.14243741, 0.105951875, -0.06081344),
    "float64": (
        -0.333333333333332, 0.19999999999953696, -0.1428571428020879, 0.11111110784107732, -0.0909089777682133,
        0.07692060555078033, -0.06663107852674054, 0.05847916132740609, -0.050394205675919526, 0.03806735781587391,
        -0.017910099118836877,
    ),
}  # fmt: skip
# (asin(s) / s - 1) / s ** 2 as a polynomial of s ** 2, for |s| <= 1/2
ASIN: Coefficients = {
    "float32": (0.1666666, 0.07500512, 0.044515494, 0.03181958, 0.014394796, 0.037576705),
    "float64": (
        0.16666666666666763, 0.07499999999970106, 0.04464285717527421, 0.030381942676015374, 0.02237221588204053,
        0.01735159596788498, 0.013981012593549063, 0.01139734363119218, 0.010789029747140173, 0.0036733069180025254,
        0.021787881837559808, -0.021112771821444838, 0.03269967980972277,
    ),
}  # fmt: skip
TAN_OF_EIGHTH = math.sqrt(2) - 1  # tan(pi / 8); tan(3 pi / 8) is its inverse
HUGE = {"float32": 2.0**124, "float64": 2.0**1020}


def _angle(y: Value, x: Value) -> Value:
    """Return atan(y / x) for y, x >= 0, one of them less than infinity; 0 where y is 0.

    Above tan(3 pi / 8) it is pi / 2 - atan(x / y), above tan(pi / 8) pi / 4 + atan((y - x) / (y + x)).
    """
    high, low = HALF_PI[x.dtype]
    steep = x < y * TAN_OF_EIGHTH
    middle = x * TAN_OF_EIGHTH < y
    over = where(steep, -x, where(middle, y - x, y))
    under = where(steep, y, where(middle, y + x, x))
    t = over / where(under.equals(0.0), 1.0, under)
    z = t * t
    value = t + (t * z * polynomial(z, ATAN) + where(steep, x.like(low), where(middle, x.like(low / 2), 0.0)))
    return where(steep, x.like(high), where(middle, x.like(high / 2), 0.0)) + value


def atan(x: Value) -> Value:
    """The angle of |x| over 1."""
    return _angle(x.op("absolute"), x.like(1.0)).op("copysign", x)


def atan2(y: Value, x: Value) -> Value:
    """The angle of |y| over |x|, mirrored where x has a sign, with the sign of y."""
    high, low = HALF_PI[x.dtype]
    b, a = y.op("absolute"), x.op("absolute")
    diagonal = a.equals(math.inf) & b.equals(math.inf)
    larger = a.op("maximum", b)
    lift = 2.0 ** (x.layout.width + 4)
    # so that a sum is finite, and the product of a subnormal number has all its digits
    factor = where(
        HUGE[x.dtype] < larger, x.like(2.0**-4), where(larger < x.layout.least_normal * lift, x.like(lift), 1.0)
    )
    b, a = where(diagonal, 1.0, b * factor), where(diagonal, 1.0, a * factor)
    value = _angle(b, a)
    left = sign_bit(x) < 0
    return where(left, 2 * high - (value - 2 * low), value).op("copysign", y)


def _arc(a: Value) -> tuple[Value, Value]:
    """Return for a >= 0 whether a exceeds 1/2, and asin(a), or half of acos(a) where it does; NaN above 1."""
    large = a > 0.5  # noqa: PLR2004  the formula's
    z = where(large, (1.0 - a) * 0.5, a * a)
    s = where(large, z.op("sqrt"), a)
    return large, s + s * z * polynomial(z, ASIN)


def asin(x: Value) -> Value:
    """Above 1/2, asin(a) is pi / 2 - 2 asin(sqrt((1 - a) / 2))."""
    high, low = HALF_PI[x.dtype]
    large, arc = _arc(x.op("absolute"))
    return where(large, high - ((arc + arc) - low), arc).op("copysign", x)


def acos(x: Value) -> Value:
    """Mostly pi / 2 - asin(x); of large arguments 2 asin(sqrt((1 - a) / 2)), from pi if x is negative."""
    high, low = HALF_PI[x.dtype]
    large, arc = _arc(x.op("absolute"))
    twice = arc + arc
    outer = where(x < 0.0, 2 * high - (twice - 2 * low), twice)
    return where(large, outer, high - (flip_sign(arc, sign_bit(x)) - low))
