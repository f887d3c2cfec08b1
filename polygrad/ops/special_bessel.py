"""Modified Bessel functions of order 0 and 1: ``pg.special``.

Here: i0, i0e, i1, i1e.
Not here: Bessel functions of other kinds.

Up to 8 they are power series in (x / 2) ** 2, shortened; beyond, e ** |x| / sqrt(|x|) times a polynomial of 1 / |x|.
The polynomials interpolate at Chebyshev nodes with 50 digits; coefficients stand from the lowest power up.
"""

from typing import Any

from polygrad.ops.special_reference import by_mpmath
from polygrad.ops.table import elementwise
from polygrad.ops.values import Coefficients, Value, kernel, polynomial, where

FLOAT = "float"
FAR = 8.0
INFINITE = {"float32": 120.0, "float64": 800.0}  # from there i0 and i1 overflow

# i0(x) as a polynomial of (x / 2) ** 2, for |x| <= 8
I0_NEAR: Coefficients = {
    "float32": (
        1.00000001, 0.999999854, 0.250000364, 0.02777742455, 0.001736286635, 6.939371255e-05, 1.938115978e-06,
        3.832507336e-08, 6.909909682e-10, 4.237871076e-12, 1.553641426e-13
    ),
    "float64": (
        1.0, 1.0, 0.25, 0.02777777777777778, 0.001736111111111106, 6.94444444444488e-05, 1.9290123456765543e-06,
        3.9367598892378866e-08, 6.151187324009745e-10, 7.594058486836424e-12, 7.594057493384469e-14,
        6.276092616120491e-16, 4.358286919760222e-18, 2.5796346353114483e-20, 1.3122104575180078e-22,
        5.976589569234451e-25, 1.9739699188457068e-27, 1.2294574273495177e-29
    ),
}  # fmt: skip
# i1(x) / (x / 2) as a polynomial of (x / 2) ** 2, for |x| <= 8
I1_NEAR: Coefficients = {
    "float32": (
        1.0, 0.499999988, 0.08333336231, 0.006944416299, 0.0003472362138, 1.157002757e-05, 2.762999743e-07,
        4.837610387e-09, 7.442420716e-11, 4.896147553e-13, 1.333558488e-14
    ),
    "float64": (
        1.0, 0.5, 0.08333333333333333, 0.006944444444444445, 0.00034722222222222196, 1.1574074074074299e-05,
        2.7557319223973204e-07, 4.920949861476153e-09, 6.834652583882281e-11, 7.594058458444663e-13,
        6.903688997316025e-15, 5.2300736107170654e-17, 3.35255437560049e-19, 1.8424569560103177e-21,
        8.753399595292974e-24, 3.7215794375522944e-26, 1.1827522120067012e-28, 6.675772217304018e-31
    ),
}  # fmt: skip
# sqrt(x) e ** -x i0(x) as a polynomial of 1 / x, for x >= 8
I0_FAR: Coefficients = {
    "float32": (
        0.39894228, 0.04986777092, 0.02805427088, 0.028862992, 0.06200007083, -0.3730826119, 7.44397781, -63.4836829,
        300.090221, -522.575687
    ),
    "float64": (
        0.3989422804014327, 0.04986778505010138, 0.028050629200526457, 0.02921934343325628, 0.04476075236957379,
        0.08718848680732691, 0.6498656752186762, -36.19131292683345, 2379.993180964769, -116003.2427612633,
        4366882.558917768, -128456799.83426934, 2977368568.148552, -54594037629.51772, 792084006159.7037,
        -9058765857545.826, 80994731595510.72, -558338240889617.9, 2903064042977469.0, -1.099417321917386e+16,
        2.85907409161665e+16, -4.56255507289216e+16, 3.36781432044352e+16
    ),
}  # fmt: skip
# sqrt(x) e ** -x i1(x) as a polynomial of 1 / x, for x >= 8
I1_FAR: Coefficients = {
    "float32": (
        0.39894228, -0.1496033403, -0.04675487662, -0.04053274357, -0.07563858353, 0.375255212, -7.8177692,
        66.1377021, -311.756886, 536.392953
    ),
    "float64": (
        0.39894228040143265, -0.14960335515045284, -0.04675104860377501, -0.040907100304620636, -0.05754578807561626,
        -0.10704400160384929, -0.7248638266366149, 38.926106823803636, -2557.341836623455, 124327.54541352087,
        -4668209.402547576, 136963424.68232173, -3166313737.4100227, 57910625384.534256, -838115750067.8165,
        9562186864778.086, -85298581214764.39, 586711696290734.8, -3044209797247214.0, 1.1505910093162194e+16,
        -2.986582943071359e+16, 4.757708939455474e+16, -3.5061212438601588e+16
    ),
}  # fmt: skip


def _bessel(x: Value, order: int, scaled: bool) -> Value:
    """Return i0 or i1 of x, times e ** -|x| if it is scaled."""
    size = x.op("absolute")
    z = x * x * 0.25
    series = polynomial(z, I1_NEAR) * (x * 0.5) if order else polynomial(z, I0_NEAR)
    far = size > FAR
    end = INFINITE[x.dtype]
    cut = size if scaled else where(size > end, end, size)
    decay = polynomial(1.0 / where(far, cut, FAR), I1_FAR if order else I0_FAR) / cut.op("sqrt")
    if order:
        decay = decay.op("copysign", x)
    if scaled:
        return where(far, decay, series * (-where(far, FAR, size)).op("exp"))
    root = (cut * 0.5).op("exp")  # twice half the power: e ** |x| overflows before the function does
    return where(far, root * decay * root, series)


def _ratio(xp: Any, value: Any, x: Any) -> Any:
    """Return value / x, 1/2 at 0 and 0 at infinity, as i1(x) / x is."""
    zero, infinite = xp.equal(x, 0.0), xp.isinf(x)
    plain = xp.bitwise_invert(xp.bitwise_or(zero, infinite))
    return xp.where(plain, value / xp.where(plain, x, 1.0), xp.where(zero, 0.5, 0.0))


@elementwise(
    kinds=FLOAT,
    domain=(-12.0, 12.0),
    lower=kernel(lambda x: _bessel(x, 0, False)),
    vjp=(lambda xp, g, out, x: g * xp.i1(x),),
    where="special",
    tolerance=3.0,
    long=True,
)
def i0(xp: Any, x: Any, /) -> Any:
    """The modified Bessel function of order 0."""
    return by_mpmath(lambda mp, v: mp.besseli(0, v), x)


@elementwise(
    kinds=FLOAT,
    domain=(-12.0, 12.0),
    lower=kernel(lambda x: _bessel(x, 1, False)),
    vjp=(lambda xp, g, out, x: g * (xp.i0(x) - _ratio(xp, out, x)),),
    where="special",
    tolerance=3.0,
    long=True,
)
def i1(xp: Any, x: Any, /) -> Any:
    """The modified Bessel function of order 1."""
    return by_mpmath(lambda mp, v: mp.besseli(1, v), x)


@elementwise(
    kinds=FLOAT,
    domain=(-12.0, 12.0),
    lower=kernel(lambda x: _bessel(x, 0, True)),
    vjp=(lambda xp, g, out, x: g * (xp.i1e(x) - xp.sign(x) * out),),
    where="special",
    long=True,
)
def i0e(xp: Any, x: Any, /) -> Any:
    """i0(x) e ** -|x|, which does not overflow; slope 0 at 0, where it has a corner."""
    return by_mpmath(lambda mp, v: mp.besseli(0, v) * mp.exp(-abs(v)), x)


@elementwise(
    kinds=FLOAT,
    domain=(-12.0, 12.0),
    lower=kernel(lambda x: _bessel(x, 1, True)),
    vjp=(lambda xp, g, out, x: g * (xp.i0e(x) - _ratio(xp, out, x) - xp.sign(x) * out),),
    where="special",
    long=True,
)
def i1e(xp: Any, x: Any, /) -> Any:
    """i1(x) e ** -|x|, which does not overflow."""
    return by_mpmath(lambda mp, v: mp.besseli(1, v) * mp.exp(-abs(v)), x)
