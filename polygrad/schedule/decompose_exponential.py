"""Decompositions around the exponential: exp, exp2, expm1, sinh, cosh, tanh, erf.

Here: arguments reduced to a power of two times e ** r (Cody and Waite, 1980), polynomials near zero. The device's own
inexact ops are never used, so errors do not add up. Not here: logarithms and what is made of them, nor `pow`.

Polynomials minimise the greatest error relative to the function, weighted least squares repeated (Lawson, 1961);
coefficients stand from the lowest power up.
"""

from polygrad.ops.values import (
    Coefficients,
    Value,
    clamp,
    nearest,
    polynomial,
    power_of_two,
    scale,
    where,
)

LOG2_E = 1.4426950408889634
# log(2) in two parts; the product of the first with any exponent is exact
LN2 = {"float32": (0.693145751953125, 1.428606765330187e-06), "float64": (0.693147180559663, 2.8235290563031577e-13)}
# Arguments beyond which the results are 0 (-1 for expm1) or infinity; cosh needs one power of two more than exp.
EXP_RANGE = {"float32": (-105.0, 91.0), "float64": (-747.0, 712.0)}
EXP2_RANGE = {"float32": (-152.0, 130.0), "float64": (-1080.0, 1030.0)}
EXPM1_RANGE = {"float32": (-20.0, 89.0), "float64": (-40.0, 710.0)}

# (e ** r - 1 - r) / r ** 2 for |r| <= 0.35
EXP: Coefficients = {
    "float32": (0.5, 0.16666667, 0.04166634, 0.008333286, 0.001394215, 0.00019906474),
    "float64": (
        0.5, 0.16666666666666677, 0.041666666666666706, 0.008333333333320658, 0.001388888888886519,
        0.00019841269888879614, 2.4801587363815634e-05, 2.7557241182261355e-06, 2.7557239973067846e-07,
        2.5110171165646606e-08, 2.092530382649866e-09,
    ),
}  # fmt: skip
# (2 ** r - 1) / r for |r| <= 1/2
EXP2: Coefficients = {
    "float32": (0.6931472, 0.2402265, 0.05550326, 0.009618035, 0.0013400969, 0.00015467878),
    "float64": (
        0.6931471805599453, 0.24022650695910072, 0.0555041086648217, 0.009618129107628492, 0.0013333558146389115,
        0.00015403530393346413, 1.5252733857561734e-05, 1.3215486829106845e-06, 1.0178050631572367e-07,
        7.054889607838478e-09, 4.456764799037004e-10, 2.574005489524396e-11,
    ),
}  # fmt: skip
# (sinh(x) / x - 1) / x ** 2 as a polynomial of x ** 2, for |x| <= 1
SINH: Coefficients = {
    "float32": (0.16666667, 0.0083333505, 0.00019836063, 2.8174527e-06),
    "float64": (
        0.16666666666666669, 0.008333333333333139, 0.00019841269841437852, 2.755731915528616e-06,
        2.5052123406291107e-08, 1.6057239755469732e-10, 7.759329638913247e-13,
    ),
}  # fmt: skip
# erf(x) / x - 1 as a polynomial of x ** 2, for |x| <= 1
ERF: Coefficients = {
    "float32": (0.12837917, -0.37612626, 0.112836, -0.026854437, 0.0051895203, -0.0008020697, 7.888612e-05),
    "float64": (
        0.12837916709551256, -0.3761263890318355, 0.1128379167094524, -0.02686617064327392, 0.005223977607404415,
        -0.0008548325988775411, 0.00012055295292712437, -1.4924744125403431e-05, 1.6447510989144559e-06,
        -1.62091242941914e-07, 1.3722751292066433e-08, -7.800765724984538e-10,
    ),
}  # fmt: skip
# e ** (a ** 2) (1 - erf(a)) as a polynomial of (a - 2) / (a + 2), for a from 1 to where erf is 1; its error counts as
# much as e ** -(a ** 2) lets it (the substitution is that of Schonfelder, "Chebyshev expansions for the error
# function", 1978)
ERFC: Coefficients = {
    "float32": (0.25539568, -0.42718586, 0.24165727, -0.07898685, 0.003729899, 0.0072127255),
    "float64": (
        0.25539567631050575, -0.4271858474139568, 0.24165819424246882, -0.07897858101641426, 0.0037328923985462323,
        0.0069974617855813916, -0.0008471425913529155, -0.0009819764806983668, 4.353617388381259e-05,
        0.00017428853796839898, 2.7623279062039034e-05, -2.6611514701800755e-05, -1.264422052975893e-05,
    ),
}  # fmt: skip
ERF_IS_ONE = {"float32": 4.0, "float64": 6.0}


def _reduced(x: Value) -> tuple[Value, Value]:
    """Return an integer n (as a float) and r with x = n log(2) + r, |r| below 0.35."""
    high, low = LN2[x.dtype]
    n = nearest(x * LOG2_E)
    return n, (x - n * high) - n * low


def exponential(x: Value, exponent: int = 0) -> Value:
    """Return e ** x * 2 ** exponent."""
    n, r = _reduced(clamp(x, *EXP_RANGE[x.dtype]))
    power = n.to(x.layout.signed)
    return scale(1.0 + (r + r * r * polynomial(r, EXP)), power + exponent if exponent else power)


def exponential_minus_one(x: Value) -> Value:
    """Return e ** x - 1: with x = n log(2) + r, twice 2 ** (n - 1) (e ** r - 1) + (2 ** (n - 1) - 1/2)."""
    n, r = _reduced(clamp(x, *EXPM1_RANGE[x.dtype]))
    power = power_of_two(n.to(x.layout.signed) - 1, x.dtype)
    value = (power * (r + r * r * polynomial(r, EXP)) + (power - 0.5)) * 2.0
    return where(x.equals(0.0), x, value)  # the sign of a zero


def exp(x: Value) -> Value:
    """See `exponential`."""
    return exponential(x)


def exp2(x: Value) -> Value:
    """The reduction is exact: the whole part of x is the exponent."""
    x = clamp(x, *EXP2_RANGE[x.dtype])
    n = nearest(x)
    r = x - n
    return scale(1.0 + r * polynomial(r, EXP2), n.to(x.layout.signed))


def expm1(x: Value) -> Value:
    """See `exponential_minus_one`."""
    return exponential_minus_one(x)


def cosh(x: Value) -> Value:
    """The sum h + 1 / (4 h) of h = e ** |x| / 2, which is infinite only where cosh is."""
    half = exponential(x.op("absolute"), -1)
    return half + 0.25 / half


def sinh(x: Value) -> Value:
    """The difference h - 1 / (4 h) of h = e ** |x| / 2; below 1, where that cancels, a polynomial."""
    size = x.op("absolute")
    half = exponential(size, -1)
    z = x * x
    return where(size < 1.0, x + x * z * polynomial(z, SINH), (half - 0.25 / half).op("copysign", x))


def tanh(x: Value) -> Value:
    """-t / (t + 2) of t = e ** (-2 |x|) - 1, which has no infinities."""
    t = exponential_minus_one(x.op("absolute") * -2.0)
    return (t / (t + 2.0)).op("copysign", x)


def erf(x: Value) -> Value:
    """A polynomial below 1; above it one minus e ** -(a ** 2) times a polynomial."""
    z = x * x
    size = x.op("absolute")
    top = ERF_IS_ONE[x.dtype]
    a = where(size > top, top, size)
    tail = exponential(-(a * a)) * polynomial((a - 2.0) / (a + 2.0), ERFC)
    return where(size < 1.0, x + x * polynomial(z, ERF), (1.0 - tail).op("copysign", x))
