"""Inverse circular and hyperbolic functions of complex numbers.

Here: functions of the two parts of a number that return both parts of the value, and the rules made of them.
Not here: logarithms and what is inverted (`complex_exponential.py`).

Branch cuts and special values are those of the Array API standard, which are C99's (annex G.6): on a cut the sign of
the zero beside it decides.

Notes
-----
Kahan, "Branch cuts for complex elementary functions, or much ado about nothing's sign bit", in The State of the Art in
Numerical Analysis (1987).
"""

import math
from typing import Any

from polygrad.ops.complex_arithmetic import length
from polygrad.ops.complex_exponential import log_size
from polygrad.ops.complex_parts import and_, limits, on_parts, or_, swapped

Parts = tuple[Any, Any]


def _is_far(xp: Any, a: Any, b: Any) -> Any:
    """Whether a number is so large that 1 beside its square is nothing, or not finite."""
    edge = 4.0 / limits(a)[0]
    return or_(xp, xp.abs(a) > edge, xp.abs(b) > edge)


def _near(xp: Any, a: Any, b: Any) -> tuple[Any, Any, Any]:
    """Return whether a number is far, and its parts with far ones replaced, for formulas that overflow there."""
    far = _is_far(xp, a, b)
    return far, xp.where(far, 1.0, a), xp.where(far, 1.0, b)


def _root(xp: Any, a: Any, b: Any) -> Parts:
    """Return the parts of the square root of a number that is not far: `sqrt_parts` without its cares."""
    x, y = xp.abs(a), xp.abs(b)
    long = xp.sqrt(x + length(xp, x, y)) * math.sqrt(0.5)
    short = xp.where(xp.equal(long, 0.0), y, 0.5 * (y / long))
    forward = a >= 0.0
    return xp.where(forward, long, short), xp.copysign(xp.where(forward, short, long), b)


def _far_size(xp: Any, a: Any, b: Any) -> Any:
    """Return log(2 |z|) with the sign of b."""
    return xp.copysign(log_size(xp, a, b) + math.log(2.0), b)


def asin_parts(xp: Any, a: Any, b: Any) -> Parts:
    """The arc sine."""
    far, x, y = _near(xp, a, b)
    p, q = _root(xp, 1.0 - x, -y)
    r, s = _root(xp, 1.0 + x, y)
    re = xp.where(far, xp.atan2(a, xp.abs(b)), xp.atan2(x, p * r - q * s))
    im = xp.where(far, _far_size(xp, a, b), xp.asinh(p * s - q * r))
    open_end = and_(xp, xp.equal(a, 0.0), xp.not_equal(b, b))
    return xp.where(open_end, a, re), im


def acos_parts(xp: Any, a: Any, b: Any) -> Parts:
    """The arc cosine."""
    far, x, y = _near(xp, a, b)
    p, q = _root(xp, 1.0 - x, -y)
    r, s = _root(xp, 1.0 + x, y)
    re = xp.where(far, xp.atan2(xp.abs(b), a), 2.0 * xp.atan2(p, r))
    im = xp.where(far, -_far_size(xp, a, b), xp.asinh(r * q - s * p))
    open_end = and_(xp, xp.equal(a, 0.0), xp.not_equal(b, b))
    return xp.where(open_end, 0.5 * math.pi, re), im


def acosh_parts(xp: Any, a: Any, b: Any) -> Parts:
    """The inverse hyperbolic cosine: i or -i times the arc cosine."""
    re, im = acos_parts(xp, a, b)
    return xp.abs(im), xp.copysign(re, b)


def atanh_parts(xp: Any, a: Any, b: Any) -> Parts:
    """The inverse hyperbolic tangent."""
    far, x, y = _near(xp, xp.abs(a), b)
    away = length(xp, 1.0 - x, y)
    share = 4.0 * x / away / away
    close = share > 1.0 / limits(a)[0] ** 2  # so near a pole that 1 beside it is nothing; it may have overflowed
    re = xp.where(close, 0.5 * (math.log(2.0) - xp.log(away)), 0.25 * xp.log1p(share))
    im = 0.5 * xp.atan2(2.0 * y, (1.0 - x) * (1.0 + x) - y * y)
    size = length(xp, 0.25 * a, 0.25 * b)  # a quarter, which does not overflow
    re = xp.where(far, 0.25 * (0.25 * xp.abs(a) / size) / size, re)
    re = xp.where(or_(xp, xp.isinf(a), xp.isinf(b)), 0.0, re)
    im = xp.where(far, xp.copysign(xp.zeros_like(b) + 0.5 * math.pi, b), im)
    lost = or_(xp, xp.not_equal(b, b), and_(xp, xp.not_equal(a, a), xp.isfinite(b)))
    im = xp.where(and_(xp, far, lost), a + b, im)
    return xp.where(xp.equal(a, 0.0), a, xp.copysign(re, a)), im


asin = on_parts(asin_parts)
acos = on_parts(acos_parts)
acosh = on_parts(acosh_parts)
asinh = on_parts(swapped(asin_parts))
atanh = on_parts(atanh_parts)
atan = on_parts(swapped(atanh_parts))
