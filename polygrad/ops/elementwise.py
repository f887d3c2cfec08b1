"""Elementwise ops: one value out for each value in.

Here: their declarations with derivatives. Conventions at special points: |x| has slope 0 at 0; equal operands of
maximum and minimum share the gradient in halves; where the gradient that arrives is zero, so is the one that leaves,
even at a pole (`multiply_no_nan`).
Not here: reductions, movement; ops made of several of these are in `composite.py`.
"""

import math
from typing import Any

from polygrad.ops import complex_arithmetic, complex_exponential, complex_inverse
from polygrad.ops.table import elementwise, primitive

NUMERIC = "int float"
FLOAT = "float"
ANY = "bool int float"
BITS = "bool int"
ZERO = (None, None)  # no derivative for either of two operands
_ERF = 2.0 / math.sqrt(math.pi)


@elementwise(
    kinds=NUMERIC, vjp=(lambda xp, g, out, x, y: g, lambda xp, g, out, x, y: g), complex=complex_arithmetic.add
)
def add(xp: Any, x1: Any, x2: Any, /) -> Any:
    """x1 + x2."""
    return xp.add(x1, x2)


@elementwise(
    kinds=NUMERIC, vjp=(lambda xp, g, out, x, y: g, lambda xp, g, out, x, y: -g), complex=complex_arithmetic.subtract
)
def subtract(xp: Any, x1: Any, x2: Any, /) -> Any:
    """x1 - x2."""
    return xp.subtract(x1, x2)


@elementwise(
    kinds=NUMERIC,
    vjp=(lambda xp, g, out, x, y: g * y, lambda xp, g, out, x, y: g * x),
    complex=complex_arithmetic.multiply,
)
def multiply(xp: Any, x1: Any, x2: Any, /) -> Any:
    """x1 * x2."""
    return xp.multiply(x1, x2)


@elementwise(
    kinds=FLOAT,
    public=False,
    lower=lambda b, d, g: b.where(b("equal", g, b.const(0, b.dtype(g))), b.const(0, b.dtype(g)), b("multiply", d, g)),
    vjp=(lambda xp, g, out, x, y: xp.multiply_no_nan(g, y), lambda xp, g, out, x, y: xp.multiply_no_nan(x, g)),
    complex=complex_arithmetic.multiply_no_nan,
)
def multiply_no_nan(xp: Any, x1: Any, x2: Any, /) -> Any:
    """x1 * x2, but 0 wherever x2 is 0, whatever x1 is: for derivatives that have poles."""
    return xp.where(x2 == 0, 0 * x2, x1 * x2)


@elementwise(
    kinds=FLOAT,
    domain=((-2.0, 2.0), (0.5, 2.0)),
    vjp=(lambda xp, g, out, x, y: g / y, lambda xp, g, out, x, y: -(g / y) * out),
    complex=complex_arithmetic.divide,
    slopes=(lambda xp, x, y: 1.0 / y, lambda xp, x, y: -(x / y) / y),
)
def divide(xp: Any, x1: Any, x2: Any, /) -> Any:
    """x1 / x2; of integers, in the default float dtype."""
    return xp.divide(x1, x2)


@elementwise(kinds=NUMERIC, vjp=(lambda xp, g, out, x: -g,), verb="negate", complex="parts")
def negative(xp: Any, x: Any, /) -> Any:
    """-x."""
    return xp.negative(x)


@elementwise(kinds="int", instr="quotient", public=False, vjp=ZERO, verb="divide")
def quotient(xp: Any, x1: Any, x2: Any, /) -> Any:
    """Integer division truncated to zero; 0 where x2 is 0."""
    safe = xp.where(x2 == 0, 1, x2)
    return xp.where(x2 == 0, 0, xp.sign(x1) * xp.sign(safe) * (xp.abs(x1) // xp.abs(safe))).astype(x1.dtype)


@elementwise(kinds="int", instr="modulo", public=False, vjp=ZERO, verb="take the modulo of")
def modulo(xp: Any, x1: Any, x2: Any, /) -> Any:
    """The remainder of `quotient`, with the sign of x1; 0 where x2 is 0."""
    safe = xp.where(x2 == 0, 1, x2)
    return xp.where(x2 == 0, 0, xp.fmod(x1, safe)).astype(x1.dtype)


@elementwise(kinds=FLOAT, public=False, vjp=(lambda xp, g, out, x, y: g, lambda xp, g, out, x, y: -g * xp.trunc(x / y)))
def fmod(xp: Any, x1: Any, x2: Any, /) -> Any:
    """The exact remainder of x1 / x2, with the sign of x1."""
    return xp.fmod(x1, x2)


def _share(xp: Any, g: Any, wins: Any, ties: Any) -> Any:
    """Return the part of *g* for the operand that wins, half of it at a tie."""
    return xp.where(ties, g * 0.5, xp.where(wins, g, xp.zeros_like(g)))


@elementwise(
    kinds=ANY,
    vjp=(
        lambda xp, g, out, x, y: _share(xp, g, x > y, xp.equal(x, y)),
        lambda xp, g, out, x, y: _share(xp, g, y > x, xp.equal(x, y)),
    ),
    verb="take the maximum of",
)
def maximum(xp: Any, x1: Any, x2: Any, /) -> Any:
    """The larger of two values; NaN if either is NaN. Equal operands share the gradient in halves."""
    return xp.maximum(x1, x2)


@elementwise(
    kinds=ANY,
    vjp=(
        lambda xp, g, out, x, y: _share(xp, g, x < y, xp.equal(x, y)),
        lambda xp, g, out, x, y: _share(xp, g, y < x, xp.equal(x, y)),
    ),
    verb="take the minimum of",
)
def minimum(xp: Any, x1: Any, x2: Any, /) -> Any:
    """The smaller of two values; NaN if either is NaN. Equal operands share the gradient in halves."""
    return xp.minimum(x1, x2)


@elementwise(kinds=ANY, compares=True, vjp=ZERO, verb="compare")
def less(xp: Any, x1: Any, x2: Any, /) -> Any:
    """x1 < x2."""
    return xp.less(x1, x2)


@elementwise(kinds=ANY, compares=True, vjp=ZERO, verb="compare")
def less_equal(xp: Any, x1: Any, x2: Any, /) -> Any:
    """x1 <= x2."""
    return xp.less_equal(x1, x2)


@elementwise(kinds=ANY, compares=True, vjp=ZERO, verb="compare", lower=lambda b, x, y: b("less", y, x))
def greater(xp: Any, x1: Any, x2: Any, /) -> Any:
    """x1 > x2."""
    return xp.greater(x1, x2)


@elementwise(kinds=ANY, compares=True, vjp=ZERO, verb="compare", lower=lambda b, x, y: b("less_equal", y, x))
def greater_equal(xp: Any, x1: Any, x2: Any, /) -> Any:
    """x1 >= x2."""
    return xp.greater_equal(x1, x2)


@elementwise(kinds=ANY, compares=True, vjp=ZERO, verb="compare", complex=complex_arithmetic.equal)
def equal(xp: Any, x1: Any, x2: Any, /) -> Any:
    """x1 == x2; NaN equals nothing."""
    return xp.equal(x1, x2)


@elementwise(kinds=ANY, compares=True, vjp=ZERO, verb="compare", complex=complex_arithmetic.not_equal)
def not_equal(xp: Any, x1: Any, x2: Any, /) -> Any:
    """x1 != x2; true where either is NaN."""
    return xp.not_equal(x1, x2)


@elementwise(kinds=BITS, vjp=ZERO, verb="and")
def bitwise_and(xp: Any, x1: Any, x2: Any, /) -> Any:
    """x1 & x2."""
    return xp.bitwise_and(x1, x2)


@elementwise(kinds=BITS, vjp=ZERO, verb="or")
def bitwise_or(xp: Any, x1: Any, x2: Any, /) -> Any:
    """x1 | x2."""
    return xp.bitwise_or(x1, x2)


@elementwise(kinds=BITS, vjp=ZERO, verb="xor")
def bitwise_xor(xp: Any, x1: Any, x2: Any, /) -> Any:
    """x1 ^ x2."""
    return xp.bitwise_xor(x1, x2)


@elementwise(kinds=BITS, vjp=(None,), verb="invert")
def bitwise_invert(xp: Any, x: Any, /) -> Any:
    """~x."""
    return xp.bitwise_invert(x)


@elementwise(kinds="int", vjp=ZERO, verb="shift", domain=((-50, 50), (0, 8)))
def bitwise_left_shift(xp: Any, x1: Any, x2: Any, /) -> Any:
    """x1 << x2; 0 where x2 is negative or at least the width."""
    return xp.bitwise_left_shift(x1, x2)


@elementwise(kinds="int", vjp=ZERO, verb="shift", domain=((-50, 50), (0, 8)))
def bitwise_right_shift(xp: Any, x1: Any, x2: Any, /) -> Any:
    """x1 >> x2, arithmetic for signed dtypes."""
    return xp.bitwise_right_shift(x1, x2)


@elementwise(
    kinds=ANY,
    vjp=(
        None,
        lambda xp, g, out, c, x, y: xp.where(c, g, xp.zeros_like(g)),
        lambda xp, g, out, c, x, y: xp.where(c, xp.zeros_like(g), g),
    ),
    verb="select between",
    complex=complex_arithmetic.where,
)
def where(xp: Any, condition: Any, x1: Any, x2: Any, /) -> Any:
    """x1 where the condition holds, else x2. NaN in the untaken branch goes nowhere, its gradient is zero."""
    return xp.where(condition, x1, x2)


def _whole(instr: str) -> Any:
    """Return how an op that rounds is emitted: an integer is whole already."""
    return lambda b, x: x if "int" in b.dtype(x) else b(instr, x)


@elementwise(kinds="int float", lower=_whole("floor"), vjp=(None,))
def floor(xp: Any, x: Any, /) -> Any:
    """The greatest integer not above x."""
    return xp.floor(x)


@elementwise(kinds="int float", lower=_whole("ceil"), vjp=(None,))
def ceil(xp: Any, x: Any, /) -> Any:
    """The least integer not below x."""
    return xp.ceil(x)


@elementwise(kinds="int float", lower=_whole("trunc"), vjp=(None,), verb="truncate")
def trunc(xp: Any, x: Any, /) -> Any:
    """x rounded to zero."""
    return xp.trunc(x)


@elementwise(kinds="int float", lower=_whole("round"), vjp=(None,), complex="parts")
def round(xp: Any, x: Any, /) -> Any:
    """The nearest integer, ties to even."""
    return xp.round(x)


@elementwise(
    kinds=FLOAT,
    domain=(0.2, 3.0),
    vjp=(lambda xp, g, out, x: xp.multiply_no_nan(0.5 / out, g),),
    verb="take the square root of",
    complex=complex_arithmetic.sqrt,
    slopes=(lambda xp, z: 0.5 / xp.sqrt(z),),
)
def sqrt(xp: Any, x: Any, /) -> Any:
    """The square root. Its slope at 0 is infinite, but a zero gradient stays zero."""
    return xp.sqrt(x)


@elementwise(
    kinds=FLOAT, domain=(0.2, 3.0), public=False, vjp=(lambda xp, g, out, x: xp.multiply_no_nan(-0.5 * out / x, g),)
)
def rsqrt(xp: Any, x: Any, /) -> Any:
    """1 / sqrt(x)."""
    return 1 / xp.sqrt(x)


@elementwise(
    kinds=NUMERIC,
    instr="absolute",
    vjp=(lambda xp, g, out, x: g * xp.sign(x),),
    verb="take the absolute value of",
    complex=complex_arithmetic.absolute,
    slopes=(lambda xp, z: xp.conj(xp.sign(z)),),  # not analytic, but a real value has this slope; 0 at 0
)
def abs(xp: Any, x: Any, /) -> Any:
    """|x|; slope 0 at 0."""
    return xp.abs(x)


@elementwise(
    kinds=FLOAT,
    vjp=(lambda xp, g, out, x, y: g * xp.copysign(xp.ones_like(x), x) * xp.copysign(xp.ones_like(x), y), None),
)
def copysign(xp: Any, x1: Any, x2: Any, /) -> Any:
    """|x1| with the sign of x2."""
    return xp.copysign(x1, x2)


@elementwise(kinds=FLOAT, vjp=(lambda xp, g, out, x, y: g, None), second=False)
def nextafter(xp: Any, x1: Any, x2: Any, /) -> Any:
    """The next representable value after x1 in the direction of x2."""
    return xp.nextafter(x1, x2)


@elementwise(
    kinds=FLOAT,
    vjp=(lambda xp, g, out, x: g * out,),
    complex=complex_exponential.exp,
    slopes=(lambda xp, z: xp.exp(z),),
)
def exp(xp: Any, x: Any, /) -> Any:
    """e ** x."""
    return xp.exp(x)


@elementwise(
    kinds=FLOAT,
    vjp=(lambda xp, g, out, x: g * out * math.log(2),),
    complex=complex_exponential.exp2,
    slopes=(lambda xp, z: xp.exp2(z) * math.log(2),),
)
def exp2(xp: Any, x: Any, /) -> Any:
    """2 ** x."""
    return xp.exp2(x)


@elementwise(
    kinds=FLOAT,
    vjp=(lambda xp, g, out, x: g * (out + 1.0),),
    complex=complex_exponential.expm1,
    slopes=(lambda xp, z: xp.exp(z),),
)
def expm1(xp: Any, x: Any, /) -> Any:
    """e ** x - 1, accurate near zero."""
    return xp.expm1(x)


@elementwise(
    kinds=FLOAT,
    domain=(0.2, 3.0),
    vjp=(lambda xp, g, out, x: xp.multiply_no_nan(1.0 / x, g),),
    complex=complex_exponential.log,
    slopes=(lambda xp, z: 1.0 / z,),
)
def log(xp: Any, x: Any, /) -> Any:
    """The natural logarithm."""
    return xp.log(x)


@elementwise(
    kinds=FLOAT,
    domain=(0.2, 3.0),
    vjp=(lambda xp, g, out, x: xp.multiply_no_nan(1.0 / (x * math.log(2)), g),),
    complex=complex_exponential.log2,
    slopes=(lambda xp, z: 1.0 / (z * math.log(2)),),
)
def log2(xp: Any, x: Any, /) -> Any:
    """The base 2 logarithm."""
    return xp.log2(x)


@elementwise(
    kinds=FLOAT,
    domain=(0.2, 3.0),
    vjp=(lambda xp, g, out, x: xp.multiply_no_nan(1.0 / (x * math.log(10)), g),),
    complex=complex_exponential.log10,
    slopes=(lambda xp, z: 1.0 / (z * math.log(10)),),
)
def log10(xp: Any, x: Any, /) -> Any:
    """The base 10 logarithm."""
    return xp.log10(x)


@elementwise(
    kinds=FLOAT,
    domain=(-0.8, 2.0),
    vjp=(lambda xp, g, out, x: xp.multiply_no_nan(1.0 / (x + 1.0), g),),
    complex=complex_exponential.log1p,
    slopes=(lambda xp, z: 1.0 / (1.0 + z),),
)
def log1p(xp: Any, x: Any, /) -> Any:
    """log(1 + x), accurate near zero."""
    return xp.log1p(x)


@elementwise(
    kinds=FLOAT,
    vjp=(lambda xp, g, out, x: g * xp.cos(x),),
    complex=complex_exponential.sin,
    slopes=(lambda xp, z: xp.cos(z),),
)
def sin(xp: Any, x: Any, /) -> Any:
    """The sine of x radians."""
    return xp.sin(x)


@elementwise(
    kinds=FLOAT,
    vjp=(lambda xp, g, out, x: -g * xp.sin(x),),
    complex=complex_exponential.cos,
    slopes=(lambda xp, z: -xp.sin(z),),
)
def cos(xp: Any, x: Any, /) -> Any:
    """The cosine of x radians."""
    return xp.cos(x)


@elementwise(
    kinds=FLOAT,
    domain=(-1.2, 1.2),
    vjp=(lambda xp, g, out, x: g * (out * out + 1.0),),
    complex=complex_exponential.tan,
    slopes=(lambda xp, z: 1.0 + xp.square(xp.tan(z)),),
)
def tan(xp: Any, x: Any, /) -> Any:
    """The tangent of x radians."""
    return xp.tan(x)


@elementwise(
    kinds=FLOAT,
    domain=(-0.9, 0.9),
    vjp=(lambda xp, g, out, x: xp.multiply_no_nan(xp.rsqrt((1.0 - x) * (1.0 + x)), g),),
    complex=complex_inverse.asin,
    slopes=(lambda xp, z: 1.0 / (xp.sqrt(1.0 - z) * xp.sqrt(1.0 + z)),),
)
def asin(xp: Any, x: Any, /) -> Any:
    """The angle in [-pi/2, pi/2] radians whose sine is x."""
    return xp.asin(x)


@elementwise(
    kinds=FLOAT,
    domain=(-0.9, 0.9),
    vjp=(lambda xp, g, out, x: xp.multiply_no_nan(-xp.rsqrt((1.0 - x) * (1.0 + x)), g),),
    complex=complex_inverse.acos,
    slopes=(lambda xp, z: -1.0 / (xp.sqrt(1.0 - z) * xp.sqrt(1.0 + z)),),
)
def acos(xp: Any, x: Any, /) -> Any:
    """The angle in [0, pi] radians whose cosine is x."""
    return xp.acos(x)


@elementwise(
    kinds=FLOAT,
    vjp=(lambda xp, g, out, x: g / (x * x + 1.0),),
    complex=complex_inverse.atan,
    slopes=(lambda xp, z: 1.0 / (z * z + 1.0),),
)
def atan(xp: Any, x: Any, /) -> Any:
    """The angle in [-pi/2, pi/2] radians whose tangent is x."""
    return xp.atan(x)


def _by_radius(xp: Any, a: Any, x: Any, y: Any) -> Any:
    """Return a / (x * x + y * y), for a = x or y, without overflow or underflow of the squares."""
    size = xp.stop_gradient(xp.maximum(xp.abs(x), xp.abs(y)))
    origin = xp.equal(size, 0.0)
    scale = xp.where(origin, 1.0, size)
    p, q = x / scale, y / scale
    return a / scale / xp.where(origin, 1.0, p * p + q * q) / scale


@elementwise(
    kinds=FLOAT,
    domain=(0.3, 2.0),
    vjp=(
        lambda xp, g, out, y, x: xp.multiply_no_nan(_by_radius(xp, x, x, y), g),
        lambda xp, g, out, y, x: xp.multiply_no_nan(-_by_radius(xp, y, x, y), g),
    ),
    verb="take the angle of",
)
def atan2(xp: Any, x1: Any, x2: Any, /) -> Any:
    """The angle in radians of the point with ordinate x1 and abscissa x2. Slope 0 at the origin, which has no angle."""
    return xp.atan2(x1, x2)


@elementwise(
    kinds=FLOAT,
    vjp=(lambda xp, g, out, x: g * xp.cosh(x),),
    complex=complex_exponential.sinh,
    slopes=(lambda xp, z: xp.cosh(z),),
)
def sinh(xp: Any, x: Any, /) -> Any:
    """The hyperbolic sine."""
    return xp.sinh(x)


@elementwise(
    kinds=FLOAT,
    vjp=(lambda xp, g, out, x: g * xp.sinh(x),),
    complex=complex_exponential.cosh,
    slopes=(lambda xp, z: xp.sinh(z),),
)
def cosh(xp: Any, x: Any, /) -> Any:
    """The hyperbolic cosine."""
    return xp.cosh(x)


@elementwise(
    kinds=FLOAT,
    vjp=(lambda xp, g, out, x: g * (1.0 - out * out),),
    complex=complex_exponential.tanh,
    slopes=(lambda xp, z: 1.0 - xp.square(xp.tanh(z)),),
)
def tanh(xp: Any, x: Any, /) -> Any:
    """The hyperbolic tangent."""
    return xp.tanh(x)


@elementwise(
    kinds=FLOAT,
    vjp=(lambda xp, g, out, x: g * xp.rsqrt(x * x + 1.0),),
    complex=complex_inverse.asinh,
    slopes=(lambda xp, z: 1.0 / xp.sqrt(z * z + 1.0),),
)
def asinh(xp: Any, x: Any, /) -> Any:
    """The inverse hyperbolic sine."""
    return xp.asinh(x)


@elementwise(
    kinds=FLOAT,
    domain=(1.2, 3.0),
    vjp=(lambda xp, g, out, x: xp.multiply_no_nan(xp.rsqrt((x - 1.0) * (x + 1.0)), g),),
    complex=complex_inverse.acosh,
    slopes=(lambda xp, z: 1.0 / (xp.sqrt(z - 1.0) * xp.sqrt(z + 1.0)),),
)
def acosh(xp: Any, x: Any, /) -> Any:
    """The inverse hyperbolic cosine."""
    return xp.acosh(x)


@elementwise(
    kinds=FLOAT,
    domain=(-0.9, 0.9),
    vjp=(lambda xp, g, out, x: xp.multiply_no_nan(1.0 / ((1.0 - x) * (1.0 + x)), g),),
    complex=complex_inverse.atanh,
    slopes=(lambda xp, z: 1.0 / ((1.0 - z) * (1.0 + z)),),
)
def atanh(xp: Any, x: Any, /) -> Any:
    """The inverse hyperbolic tangent."""
    return xp.atanh(x)


@elementwise(kinds=FLOAT, vjp=(lambda xp, g, out, x: g * _ERF * xp.exp(-x * x),), where="main special")
def erf(xp: Any, x: Any, /) -> Any:
    """The error function, 2 / sqrt(pi) times the integral of exp(-t * t) from 0 to x."""
    import numpy  # noqa: PLC0415, ICN001  a reference, run in tests alone

    return numpy.vectorize(math.erf, otypes=[numpy.float64])(x)


def _power_by_base(xp: Any, g: Any, _out: Any, x: Any, y: Any) -> Any:
    """Return g * y * x ** (y - 1), which is 0 where y is 0, at x = 0 too."""
    return xp.multiply_no_nan(xp.multiply_no_nan(xp.power_(x, y - 1.0), y), g)


def _power_by_exponent(xp: Any, g: Any, out: Any, x: Any, y: Any) -> Any:
    """Return g * out * log(x), which is 0 where x is 0, unless y is negative; NaN for a negative base."""
    flat = xp.bitwise_and(xp.equal(x, 0.0), y >= 0.0)
    return xp.multiply_no_nan(xp.multiply_no_nan(xp.log(xp.where(flat, 1.0, x)), out), g)


@elementwise(
    kinds=FLOAT,
    instr="pow",
    public=False,
    domain=((0.3, 2.0), (-2.0, 2.0)),
    vjp=(_power_by_base, _power_by_exponent),
    verb="raise",
    complex=complex_arithmetic.power,
    slopes=(complex_arithmetic.power_by_base, complex_arithmetic.power_by_exponent),
)
def power_(xp: Any, x1: Any, x2: Any, /) -> Any:
    """x1 ** x2 of floats; `pow` is the function that users call."""
    return xp.pow(x1, x2)


def _infer_astype(x: Any, dtype: Any) -> Any:
    return x.shape, dtype


def _cast_back(xp: Any, g: Any, _out: Any, x: Any, *_: Any) -> Any:
    return xp.astype(g, x.dtype)


@primitive(
    infer=_infer_astype,
    kind="cast",
    vjp=(_cast_back,),
    jvp=(lambda xp, t, out, x, dtype: xp.astype(t, dtype),),
    complex=lambda xp, z, dtype: xp.astype(z, dtype),
)
def astype(xp: Any, x: Any, dtype: Any, /) -> Any:
    """x converted to another dtype."""
    return x.astype(dtype)


@primitive(infer=_infer_astype, kind="bitcast", vjp=(None,), jvp=(None,))
def bitcast(xp: Any, x: Any, dtype: Any, /) -> Any:
    """The bits of x as another dtype of the same width."""
    return x.view(dtype)
