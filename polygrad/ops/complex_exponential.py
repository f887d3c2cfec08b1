"""Exponentials, logarithms and hyperbolic functions of complex numbers, and sine, cosine and tangent with them.

Here: functions of the two parts of a number that return both parts of the value, and the rules made of them.
Not here: inverse functions of angles (`complex_inverse.py`).

Special values are those of the Array API standard, which are C99's (annex G.6). Where C99 leaves a sign open it is that
of the formula.
"""

import math
from typing import Any

from polygrad.ops.complex_parts import and_, excess, limits, on_parts, or_, swapped

Parts = tuple[Any, Any]


def _split(xp: Any, a: Any) -> tuple[Any, Any]:
    """Return an exponent as a sum whose first term does not overflow; a factor may come between the exponentials."""
    top = float(math.floor(math.log(limits(a)[1])))
    low = xp.minimum(a, top)
    return low, a - low


def exp_parts(xp: Any, a: Any, b: Any) -> Parts:
    """exp(a) (cos b + i sin b), finite wherever the parts of the value are."""
    low, rest = _split(xp, a)
    size, more = xp.exp(low), xp.exp(xp.where(a > low, rest, 0.0))
    re, im = size * xp.cos(b) * more, size * xp.sin(b) * more
    wild = xp.bitwise_invert(xp.isfinite(b))
    re = xp.where(and_(xp, wild, xp.equal(a, float("inf"))), float("inf"), re)
    gone = and_(xp, wild, xp.equal(a, float("-inf")))
    im = xp.where(xp.equal(b, 0.0), b, im)
    return xp.where(gone, 0.0, re), xp.where(gone, 0.0, im)


def expm1_parts(xp: Any, a: Any, b: Any) -> Parts:
    """exp(z) - 1, accurate near zero: the real part is expm1(a) cos b - 2 sin(b / 2) ** 2."""
    re, im = exp_parts(xp, a, b)
    half = xp.sin(0.5 * b)
    near = xp.expm1(a) * xp.cos(b) - 2.0 * half * half
    re = xp.where(a > 40.0, re, near)
    re = xp.where(xp.equal(b, 0.0), xp.expm1(a) + 0.0, re)  # of -0.0 the standard wants 0.0
    return xp.where(xp.equal(a, float("-inf")), -1.0, re), im


def log_size(xp: Any, a: Any, b: Any) -> Any:
    """Return log |a + ib|, accurate near 1 and without overflow; infinite if either part is, be the other NaN."""
    x, y = xp.abs(a), xp.abs(b)
    big, small = xp.maximum(x, y), xp.minimum(x, y)
    regular = and_(xp, big > 0.0, big < float("inf"))
    ratio = xp.where(regular, small, 0.0) / xp.where(regular, big, 1.0)
    far = xp.log(big) + 0.5 * xp.log1p(ratio * ratio)
    close = and_(xp, big > 0.5, big < 1.5)
    p, q = xp.where(close, big, 1.0), xp.where(close, small, 0.0)
    over = excess(p, q, -1.0)
    near = and_(xp, close, over > -0.5, over < 2.0)
    out = xp.where(near, 0.5 * xp.log1p(xp.where(near, over, 0.0)), far)
    return xp.where(or_(xp, xp.isinf(a), xp.isinf(b)), float("inf"), out)


def log_parts(xp: Any, a: Any, b: Any) -> Parts:
    """log |z| and the angle."""
    return log_size(xp, a, b), xp.atan2(b, a)


def _scaled_log(base: float) -> Any:
    """Return the logarithm to a base."""

    def parts(xp: Any, a: Any, b: Any) -> Parts:
        re, im = log_parts(xp, a, b)
        return re * (1.0 / math.log(base)), im * (1.0 / math.log(base))

    return parts


def log1p_parts(xp: Any, a: Any, b: Any) -> Parts:
    """log(1 + z), accurate near zero: the real part is half of log1p(2a + a * a + b * b)."""
    close = and_(xp, xp.abs(a) < 1.0, xp.abs(b) < 1.0)
    p, q = xp.where(close, a, 0.0), xp.where(close, b, 0.0)
    over = excess(p, q, 2.0 * p)
    near = and_(xp, close, over > -0.5)
    far = log_size(xp, 1.0 + a, b)
    re = xp.where(near, 0.5 * xp.log1p(xp.where(near, over, 0.0)), far)
    return re, xp.atan2(b, 1.0 + a)


def sinh_parts(xp: Any, a: Any, b: Any) -> Parts:
    """sinh(a) cos(b) and cosh(a) sin(b)."""
    sinh, cosh, more = _hyperbolic(xp, a)
    re, im = sinh * xp.cos(b) * more, cosh * xp.sin(b) * more
    wild = xp.bitwise_invert(xp.isfinite(b))
    re = xp.where(and_(xp, wild, or_(xp, xp.equal(a, 0.0), xp.isinf(a))), a, re)
    return re, xp.where(xp.equal(b, 0.0), b, im)


def cosh_parts(xp: Any, a: Any, b: Any) -> Parts:
    """cosh(a) cos(b) and sinh(a) sin(b)."""
    sinh, cosh, more = _hyperbolic(xp, a)
    re, im = cosh * xp.cos(b) * more, sinh * xp.sin(b) * more
    wild = xp.bitwise_invert(xp.isfinite(b))
    re = xp.where(and_(xp, wild, xp.isinf(a)), float("inf"), re)
    flat = and_(xp, xp.not_equal(im, im), or_(xp, xp.equal(a, 0.0), xp.equal(b, 0.0)))
    one = xp.ones_like(im)
    return re, xp.where(flat, xp.copysign(0.0 * one, xp.copysign(one, a) * xp.copysign(one, b)), im)


def _hyperbolic(xp: Any, a: Any) -> tuple[Any, Any, Any]:
    """Return sinh and cosh of an argument that is cut where they overflow, and the factor that was cut off."""
    low, rest = _split(xp, xp.abs(a))
    more = xp.exp(xp.where(rest > 0.0, rest, 0.0))
    return xp.copysign(xp.sinh(low), a), xp.cosh(low), more


def tanh_parts(xp: Any, a: Any, b: Any) -> Parts:
    """sinh(a) cosh(a) and sin(b) cos(b) over sinh(a) ** 2 + cos(b) ** 2, in which nothing cancels."""
    far = 0.5 * math.log(16.0 / limits(a)[0])  # beyond, 1 - tanh is below half a unit in the last place
    x = xp.minimum(xp.abs(a), far)
    sinh, cosh, sin, cos = xp.sinh(x), xp.cosh(x), xp.sin(b), xp.cos(b)
    size = sinh * sinh + cos * cos
    re = xp.copysign(sinh * cosh / size, a)
    im = sin * cos / size
    wild = xp.bitwise_invert(xp.isfinite(b))
    beyond = and_(xp, xp.abs(a) > far, xp.bitwise_or(xp.isfinite(b), xp.isinf(a)))
    shrunk = 4.0 * (sin * xp.exp(-xp.abs(a))) * (cos * xp.exp(-xp.abs(a)))
    re, im = xp.where(beyond, xp.copysign(xp.ones_like(a), a), re), xp.where(beyond, shrunk, im)
    im = xp.where(xp.isinf(a), xp.copysign(xp.zeros_like(b), b), im)
    re = xp.where(and_(xp, xp.equal(a, 0.0), wild), a, re)
    return re, xp.where(xp.equal(b, 0.0), b, im)


def _cos_parts(xp: Any, a: Any, b: Any) -> Parts:
    """Return cosh(i z), which is the conjugate of cosh with the parts exchanged."""
    re, im = cosh_parts(xp, b, a)
    return re, -im


exp = on_parts(exp_parts)
expm1 = on_parts(expm1_parts)
log = on_parts(log_parts)
log2 = on_parts(_scaled_log(2.0))
log10 = on_parts(_scaled_log(10.0))
log1p = on_parts(log1p_parts)
sinh = on_parts(sinh_parts)
cosh = on_parts(cosh_parts)
tanh = on_parts(tanh_parts)
sin = on_parts(swapped(sinh_parts))
cos = on_parts(_cos_parts)
tan = on_parts(swapped(tanh_parts))


def exp2(xp: Any, z: Any) -> Any:
    """2 ** z."""
    low = xp.exp2(xp.part_(z, 0))
    turned = exp_parts(xp, xp.zeros_like(low), xp.part_(z, 1) * math.log(2.0))
    return xp.multiply(low, xp.pair_(*turned))
