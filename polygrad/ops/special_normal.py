"""The normal distribution, the error function's complements, and their inverses: ``pg.special``.

Here: erfc, erfcx, ndtr, log_ndtr, ndtri, erfinv, erfcinv. `erf` itself is an instruction (`elementwise.py`).
Not here: what belongs to gamma, beta and Bessel functions.

e ** (x * x) erfc(x) is smooth for x >= 0: times 1 + 2x it is a polynomial of (x - 3) / (x + 3) (Shepherd and
Laframboise, "Chebyshev approximation of (1 + 2x) exp(x^2) erfc x in 0 <= x < inf", 1981), here interpolated at
Chebyshev nodes with 50 digits. e ** -(x * x) is made of two exponentials, one of the exact square of x cut to
sixteenths, as Cody has it ("Rational Chebyshev approximations for the error function", 1969), so that the rounding of x
* x does not count. The inverses are rational functions on the three intervals of Wichura ("Algorithm AS 241", 1988),
fitted by weighted least squares repeated (Lawson, 1961). Coefficients stand from the lowest power up.
"""

import math
from typing import Any

from polygrad.ops.special_reference import by_mpmath
from polygrad.ops.table import elementwise
from polygrad.ops.values import Coefficients, Value, clamp, kernel, polynomial, where

FLOAT = "float"
ROOT_HALF = math.sqrt(0.5)
TWO_OVER_ROOT_PI = 2.0 / math.sqrt(math.pi)
ROOT_TWO_OVER_PI = math.sqrt(2.0 / math.pi)
ROOT_TWO_PI = math.sqrt(2.0 * math.pi)

# (1 + 2x) e ** (x * x) erfc(x) as a polynomial of (x - 3) / (x + 3), for x >= 0
ERFCX: Coefficients = {
    "float32": (
        1.25300806, -0.1356202139, -0.04756225171, 0.129627175, -0.1192745186, 0.06841075949, -0.02376569225,
        0.002284952192, 0.001877494747, -0.0005131594576, -9.351067274e-05
    ),
    "float64": (
        1.2530080582697296, -0.1356211061245812, -0.04756229435341897, 0.12964515870276264, -0.11927366341681594,
        0.06830802734392145, -0.023770514890662293, 0.0025293918167995587, 0.0018886900908334752,
        -0.0007798322772735233, -0.00010515828085558583, 0.000125099374356029, 4.944031217689325e-06,
        -2.010062765582806e-05, -7.18614945152709e-07, 3.4725202646850138e-06, 3.364903466156091e-07,
        -6.167709314104326e-07, -1.2038714467437743e-07, 1.0195716063557214e-07, 2.7779063994959566e-08,
        -1.3361947843635768e-08, -3.1695924942402665e-09, 9.948811082143416e-10
    ),
}  # fmt: skip
# x / q with Phi(x) = 1/2 + q, as a quotient of polynomials of 0.425 ** 2 - q * q, for |q| <= 0.425
CENTRAL_TOP: Coefficients = {
    "float32": (3.38713286, 58.8509089, 247.357663, 175.355959, -26.515793),
    "float64": (
        3.3871328727963665, 133.17043702759247, 1972.5290285522422, 13742.53129340883, 45975.5419702285,
        67374.58345290429, 33502.282495683336, 2515.9688479938995
    ),
}  # fmt: skip
CENTRAL_BOTTOM: Coefficients = {
    "float32": (1.0, 20.3800965, 112.219327, 147.661715),
    "float64": (
        1.0, 42.321824355935874, 687.4894865907362, 5398.117312988621, 21236.496944313018, 39365.981376884025,
        28785.197729043575, 5239.5214659974845
    ),
}  # fmt: skip
# x with Phi(-x) = e ** -(r * r), as a quotient of polynomials of r - 1.6, for r from 1.58 to 5
TAIL_TOP: Coefficients = {
    "float32": (1.42343711, 3.22194333, 2.16772168, 0.533828207, 0.03979729638),
    "float64": (
        1.4234371107496835, 4.623204291857854, 5.7476321282768925, 3.6235543683781786, 1.2579913165759764,
        0.23873388434457102, 0.022401770680017228, 0.0007639018510727155
    ),
}  # fmt: skip
TAIL_BOTTOM: Coefficients = {
    "float32": (1.0, 1.06375944, 0.333104937, 0.02812993098),
    "float64": (
        1.0, 2.0481801271870093, 1.6670365341020463, 0.683482432427094, 0.14627424568994352, 0.01498289473880136,
        0.0005400684983177945, 1.0506706778201346e-09
    ),
}  # fmt: skip
# the same of r - 5, from 5 to where e ** -(r * r) is the least subnormal number
FAR_TOP: Coefficients = {
    "float32": (6.65790465, 3.21790973, 0.479753321, 0.02177950793),
    "float64": (
        6.657904643501104, 5.462007266999333, 1.7834910390035479, 0.2961721886668647, 0.026477127938069334,
        0.0012387472132651784, 2.6988435933333885e-05, 1.9964685339754534e-07
    ),
}  # fmt: skip
FAR_BOTTOM: Coefficients = {
    "float32": (1.0, 0.262507608, 0.01539721345),
    "float64": (
        1.0, 0.5995652090153758, 0.13678824897501124, 0.01484795305360338, 0.0007845234559040612,
        1.8378194693446097e-05, 1.4117072450107046e-07, 2.0042184871429398e-15
    ),
}  # fmt: skip
FAR_OUT = {"float32": 1e4, "float64": 1e9}  # from there erfcx(x) is 1 / (x sqrt(pi)) to rounding
VANISHING = {"float32": 15.0, "float64": 40.0}  # from there e ** -(x * x / 2) is 0


def _scaled(x: Value) -> Value:
    """Return e ** (x * x) erfc(x) for x >= 0."""
    far = FAR_OUT[x.dtype]
    near = where(x > far, far, x)
    value = polynomial((near - 3.0) / (near + 3.0), ERFCX) / (1.0 + 2.0 * near)
    return where(x > far, (0.5 * TWO_OVER_ROOT_PI) / x, value)


def _bell(x: Value, factor: float) -> Value:
    """Return e ** (factor * x * x) for x >= 0 and a factor of 1, -1 or -1/2, as if x * x were exact."""
    x = clamp(x, 0.0, VANISHING[x.dtype])
    cut = (x * 16.0).op("floor") * 0.0625
    return (cut * cut * factor).op("exp") * ((x - cut) * (x + cut) * factor).op("exp")


def _erfc(x: Value) -> Value:
    size = x.op("absolute")
    above = _bell(size, -1.0) * _scaled(size)
    return where(x < 0.0, 2.0 - above, above)


@elementwise(
    kinds=FLOAT,
    domain=(-3.0, 3.0),
    lower=kernel(_erfc),
    vjp=(lambda xp, g, out, x: g * (-TWO_OVER_ROOT_PI) * xp.exp(-(x * x)),),
    where="special",
    long=True,
)
def erfc(xp: Any, x: Any, /) -> Any:
    """1 - erf(x), accurate where that is small."""
    return by_mpmath(lambda mp, v: mp.erfc(v), x)


def _erfcx(x: Value) -> Value:
    size = x.op("absolute")
    above = _scaled(size)
    return where(x < 0.0, 2.0 * _bell(size, 1.0) - above, above)


def _erfcx_slope(xp: Any, g: Any, out: Any, x: Any) -> Any:
    """Return g * (2 x erfcx(x) - 2 / sqrt(pi)); from 8 on, where that cancels, its asymptotic series."""
    far = x > 8.0
    u = xp.where(far, 0.5 / xp.square(xp.where(far, x, 1.0)), 0.0)
    series: Any = 1.0
    for k in range(41, 1, -2):  # -2 / sqrt(pi) (u - 3 u ** 2 + 15 u ** 3 - ...) with u = 1 / (2 x ** 2)
        series = 1.0 - float(k) * u * series
    near = xp.where(far, 0.0, x)
    return g * xp.where(far, -TWO_OVER_ROOT_PI * u * series, 2.0 * near * out - TWO_OVER_ROOT_PI)


@elementwise(kinds=FLOAT, domain=(-2.0, 4.0), lower=kernel(_erfcx), vjp=(_erfcx_slope,), where="special", long=True)
def erfcx(xp: Any, x: Any, /) -> Any:
    """e ** (x * x) erfc(x), which does not underflow."""
    return by_mpmath(lambda mp, v: mp.exp(v * v) * mp.erfc(v), x)


def _ndtr(x: Value) -> Value:
    size = x.op("absolute")
    below = 0.5 * _bell(size, -0.5) * _scaled(size * ROOT_HALF)
    return where(x > 0.0, 1.0 - below, below)


@elementwise(
    kinds=FLOAT,
    domain=(-3.0, 3.0),
    lower=kernel(_ndtr),
    vjp=(lambda xp, g, out, x: g * (1.0 / ROOT_TWO_PI) * xp.exp(-0.5 * (x * x)),),
    where="special",
    long=True,
)
def ndtr(xp: Any, x: Any, /) -> Any:
    """The normal distribution function: the probability of a value below x."""
    return by_mpmath(lambda mp, v: mp.ncdf(v), x)


def _log_ndtr(x: Value) -> Value:
    size = x.op("absolute")
    half = 0.5 * _scaled(size * ROOT_HALF)
    return where(x > 0.0, (-(_bell(size, -0.5) * half)).op("log1p"), half.op("log") - x * x * 0.5)


@elementwise(
    kinds=FLOAT,
    domain=(-4.0, 3.0),
    lower=kernel(_log_ndtr),
    vjp=(lambda xp, g, out, x: g * ROOT_TWO_OVER_PI / xp.erfcx(-ROOT_HALF * x),),
    where="special",
    long=True,
)
def log_ndtr(xp: Any, x: Any, /) -> Any:
    """The logarithm of ndtr(x), accurate where that underflows."""
    return by_mpmath(lambda mp, v: mp.log(mp.erfc(-v / mp.sqrt(2)) / 2), x)


def _quantile(q: Value, tail: Value) -> Value:
    """Return x with Phi(x) = 1/2 + q, where *tail* is 1/2 - |q|, known better than q tells it."""
    u = 0.180625 - q * q
    central = q * polynomial(u, CENTRAL_TOP) / polynomial(u, CENTRAL_BOTTOM)
    r = (-tail.op("log")).op("sqrt")
    near, far = r - 1.6, r - 5.0
    size = where(
        r > 5.0,
        polynomial(far, FAR_TOP) / polynomial(far, FAR_BOTTOM),
        polynomial(near, TAIL_TOP) / polynomial(near, TAIL_BOTTOM),
    )
    size = where(tail.equals(0.0), math.inf, size)
    outer = where(q < 0.0, -size, size)
    return where(q.op("absolute") > 0.425, outer, where(tail < 0.0, math.nan, central))


@elementwise(
    kinds=FLOAT,
    domain=(0.02, 0.98),
    lower=kernel(lambda p: _quantile(p - 0.5, where(p < 0.5, p, 1.0 - p))),
    vjp=(lambda xp, g, out, p: xp.multiply_no_nan(ROOT_TWO_PI * xp.exp(0.5 * xp.square(out)), g),),
    where="special",
    long=True,
)
def ndtri(xp: Any, p: Any, /) -> Any:
    """The inverse of ndtr: below the result a normal value lies with probability p."""
    return by_mpmath(lambda mp, v: mp.sqrt(2) * mp.erfinv(2 * v - 1), p)


def _erfinv(y: Value) -> Value:
    return _quantile(y * 0.5, 0.5 - y.op("absolute") * 0.5) * ROOT_HALF


@elementwise(
    kinds=FLOAT,
    domain=(-0.95, 0.95),
    lower=kernel(_erfinv),
    vjp=(lambda xp, g, out, y: xp.multiply_no_nan(xp.exp(xp.square(out)) / TWO_OVER_ROOT_PI, g),),
    where="special",
    long=True,
)
def erfinv(xp: Any, y: Any, /) -> Any:
    """The inverse of erf; infinite at -1 and 1."""
    return by_mpmath(lambda mp, v: mp.erfinv(v), y)


def _erfcinv(y: Value) -> Value:
    return _quantile(0.5 - y * 0.5, where(y > 1.0, 2.0 - y, y) * 0.5) * ROOT_HALF


@elementwise(
    kinds=FLOAT,
    domain=(0.05, 1.95),
    lower=kernel(_erfcinv),
    vjp=(lambda xp, g, out, y: xp.multiply_no_nan(xp.exp(xp.square(out)) / -TWO_OVER_ROOT_PI, g),),
    where="special",
    long=True,
)
def erfcinv(xp: Any, y: Any, /) -> Any:
    """The inverse of erfc; infinite at 0 and 2."""
    return by_mpmath(lambda mp, v: mp.erfinv(1 - v), y)
