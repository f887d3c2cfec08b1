"""Logistic functions, entropies and robust losses, element by element: ``pg.special``.

Here: expit, log_expit, logit, xlogy, xlog1py, entr, rel_entr, kl_div, huber, pseudo_huber.
Not here: reductions (`statistics.py`), losses with a target (`losses.py`).

Conventions: x log(y) is 0 where x is 0, whatever y is but NaN, and so are its slopes by y there. A slope at a pole is
infinite, but a gradient of zero stays zero.
"""

import math
from typing import Any

from polygrad.ops.composite import draw_numbers
from polygrad.ops.internal import cast
from polygrad.ops.special_gamma import float_operands
from polygrad.ops.special_reference import by_mpmath
from polygrad.ops.statistics import wide
from polygrad.ops.table import composite, elementwise
from polygrad.ops.values import Value, kernel, where

FLOAT = "float"
FAR = draw_numbers((-9, 9))


@composite(reference=lambda np, x: 1 / (1 + np.exp(-x)), samples=FAR, where="special")
def expit(xp: Any, x: Any, /) -> Any:
    """1 / (1 + exp(-x)), as `sigmoid`."""
    return xp.sigmoid(x)


@composite(reference=lambda np, x: -np.logaddexp(-x, 0), samples=FAR, where="special")
def log_expit(xp: Any, x: Any, /) -> Any:
    """The logarithm of expit(x), without overflow, as `log_sigmoid`."""
    return xp.log_sigmoid(x)


def _logit(p: Value) -> Value:
    odds = p / (1.0 - p)
    near = where((p - 0.5).op("absolute") < 0.25, 2.0 * p - 1.0, 0.0)
    return where((p - 0.5).op("absolute") < 0.25, 2.0 * near.op("atanh"), odds.op("log"))


@elementwise(
    kinds=FLOAT,
    domain=(0.1, 0.9),
    lower=kernel(_logit),
    vjp=(lambda xp, g, out, p: xp.multiply_no_nan(1.0 / (p * (1.0 - p)), g),),
    where="special",
    long=True,
)
def logit(xp: Any, p: Any, /) -> Any:
    """log(p / (1 - p)), the inverse of expit; NaN outside of [0, 1]."""
    return by_mpmath(lambda mp, v: mp.log(v / (1 - v)), p)


def _x_times(name: str) -> Any:
    def formula(x: Value, y: Value) -> Value:
        nothing = where(y.equals(y), x, 1.0).equals(0.0)  # 0 times the logarithm of any number, but not of NaN
        return where(nothing, 0.0, x * y.op(name))

    return kernel(formula)


@elementwise(
    kinds=FLOAT,
    domain=((-2.0, 2.0), (0.2, 3.0)),
    lower=_x_times("log"),
    vjp=(
        lambda xp, g, out, x, y: xp.multiply_no_nan(xp.log(y), g),
        lambda xp, g, out, x, y: xp.multiply_no_nan(1.0 / y, g * x),
    ),
    public=False,
)
def xlogy_(xp: Any, x: Any, y: Any, /) -> Any:
    """x log(y), 0 where x is 0 and y is not NaN, of two floats of one dtype."""
    return x * xp.log(y)


@composite(
    reference=lambda np, x, y: x * np.log(y),
    samples=lambda draw: draw.elementwise(((-2.0, 2.0), (0.2, 3.0))),
    where="special",
)
def xlogy(xp: Any, x: Any, y: Any, /) -> Any:
    """x log(y), 0 where x is 0 and y is not NaN."""
    return xp.xlogy_(*float_operands(xp, "xlogy", x, y))


@elementwise(
    kinds=FLOAT,
    domain=((-2.0, 2.0), (-0.8, 2.0)),
    lower=_x_times("log1p"),
    vjp=(
        lambda xp, g, out, x, y: xp.multiply_no_nan(xp.log1p(y), g),
        lambda xp, g, out, x, y: xp.multiply_no_nan(1.0 / (1.0 + y), g * x),
    ),
    public=False,
)
def xlog1py_(xp: Any, x: Any, y: Any, /) -> Any:
    """x log(1 + y), 0 where x is 0 and y is not NaN, of two floats of one dtype."""
    return x * xp.log1p(y)


@composite(
    reference=lambda np, x, y: x * np.log1p(y),
    samples=lambda draw: draw.elementwise(((-2.0, 2.0), (-0.8, 2.0))),
    where="special",
)
def xlog1py(xp: Any, x: Any, y: Any, /) -> Any:
    """x log(1 + y), 0 where x is 0 and y is not NaN."""
    return xp.xlog1py_(*float_operands(xp, "xlog1py", x, y))


def _entr(x: Value) -> Value:
    return where(x.equals(0.0), 0.0, where(x < 0.0, -math.inf, -(x * x.op("log"))))


@elementwise(
    kinds=FLOAT,
    domain=(0.2, 3.0),
    lower=kernel(_entr),
    vjp=(lambda xp, g, out, x: xp.multiply_no_nan(-xp.log(x) - 1.0, g),),
    where="special",
)
def entr(xp: Any, x: Any, /) -> Any:
    """-x log(x), 0 at 0 and -inf below: summed, the entropy. Below 0 its slope is NaN."""
    return -x * xp.log(x)


def _rel_entr(x: Value, y: Value) -> Value:
    ratio = x / y
    near = where(ratio > 0.5, where(ratio < 2.0, ratio, 3.0), 3.0) < 2.0
    close = (where(near, x - y, 0.0) / y).op("log1p")
    value = x * where(near, close, x.op("log") - y.op("log"))
    zero = where(y < 0.0, 1.0, x).equals(0.0)
    good = where(y > 0.0, x, y) > 0.0  # both are positive
    value = where(zero, 0.0, where(good, value, math.inf))
    return where((x + y).equals(x + y), value, where(x.equals(x), where(y.equals(y), value, math.nan), math.nan))


def _entropy_reference(_np: Any, x: Any, y: Any) -> Any:
    return by_mpmath(lambda mp, p, q: p * mp.log(p / q), x, y)


@elementwise(
    kinds=FLOAT,
    domain=((0.2, 3.0), (0.2, 3.0)),
    lower=kernel(_rel_entr),
    vjp=(
        lambda xp, g, out, x, y: xp.multiply_no_nan(xp.log(x) - xp.log(y) + 1.0, g),
        lambda xp, g, out, x, y: xp.multiply_no_nan(-1.0 / y, g * x),
    ),
    public=False,
    long=True,
)
def rel_entr_(xp: Any, x: Any, y: Any, /) -> Any:
    """x log(x / y), 0 where x is 0 and y is not negative, inf where either is negative, of two floats of one dtype."""
    return _entropy_reference(xp, x, y)


@composite(
    reference=lambda np, x, y: _entropy_reference(np, x, y),
    samples=lambda draw: draw.elementwise(((0.2, 3.0), (0.2, 3.0))),
    where="special",
)
def rel_entr(xp: Any, x: Any, y: Any, /) -> Any:
    """x log(x / y), 0 where x is 0 and y is not negative, inf where either is negative: summed, the divergence."""
    return xp.rel_entr_(*float_operands(xp, "rel_entr", x, y))


@composite(
    reference=lambda np, x, y: x * np.log(x / y) - x + y,
    samples=lambda draw: draw.elementwise(((0.2, 3.0), (0.2, 3.0))),
    where="special",
)
def special_kl_div(xp: Any, x: Any, y: Any, /) -> Any:
    """x log(x / y) - x + y, which is not negative; inf where either is negative."""
    x, y = float_operands(xp, "kl_div", x, y)
    p, q = wide(xp, x), wide(xp, y)
    value = xp.rel_entr_(p, q)
    infinite = xp.equal(value, float("inf"))
    return cast(xp, xp.where(infinite, value, value + xp.where(infinite, 0.0, q - p)), x.dtype)


def _huber_reference(np: Any, delta: Any, r: Any) -> Any:
    return np.where(np.abs(r) <= delta, 0.5 * r * r, delta * (np.abs(r) - 0.5 * delta))


@composite(
    reference=_huber_reference,
    samples=lambda draw: draw.elementwise(((0.4, 1.5), (-3.0, 3.0))),
    where="special",
)
def huber(xp: Any, delta: Any, r: Any, /) -> Any:
    """r * r / 2 up to |r| = delta, then a straight line; inf where delta is negative."""
    delta, r = float_operands(xp, "huber", delta, r)
    d, v = wide(xp, delta), wide(xp, r)
    size = xp.abs(v)
    value = xp.where(size <= d, 0.5 * v * v, d * (size - 0.5 * d))
    return cast(xp, xp.where(d < 0.0, float("inf"), value), r.dtype)


@composite(
    reference=lambda np, delta, r: delta * delta * (np.sqrt(1 + (r / delta) ** 2) - 1),
    samples=lambda draw: draw.elementwise(((0.4, 1.5), (-3.0, 3.0))),
    where="special",
)
def pseudo_huber(xp: Any, delta: Any, r: Any, /) -> Any:
    """delta ** 2 (sqrt(1 + (r / delta) ** 2) - 1); 0 where delta is 0, inf where it is negative."""
    delta, r = float_operands(xp, "pseudo_huber", delta, r)
    d, v = wide(xp, delta), wide(xp, r)
    zero = xp.equal(d, 0.0)
    u = v / xp.where(zero, 1.0, d)
    value = v * (v / (1.0 + xp.hypot(u, xp.ones_like(u))))
    return cast(xp, xp.where(d < 0.0, float("inf"), xp.where(zero, 0.0, value)), r.dtype)
