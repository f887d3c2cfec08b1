"""What kernels are written with by hand: values of a kernel's body with Python's operators, and pieces of arithmetic.

Here: `Value`, the layout of the float dtypes, polynomials, powers of two, sums and products in two floats.
Not here: any op (`special_*.py` here, `schedule/decompose_*.py`), which ops a device has (`schedule/body.py`).

Everything is straight-line code: both arms of a `where` are computed, so no step may trap, and values that are not
selected may be anything. A float that is out of range gives an arbitrary integer in a cast, and shifts beyond the
width are defined.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Union

Operand = Union["Value", bool, int, float]
Coefficients = dict[str, tuple[float, ...]]  # by dtype, from the lowest power up


class Layout(NamedTuple):
    """The bits of a float dtype and the integers of its width."""

    signed: str
    unsigned: str
    bits: int
    width: int  # of the mantissa, without its hidden bit
    bias: int

    @property
    def sign(self) -> int:
        """The sign bit."""
        return 1 << (self.bits - 1)

    @property
    def mantissa(self) -> int:
        """The bits of the mantissa."""
        return (1 << self.width) - 1

    @property
    def one(self) -> int:
        """The bits of 1.0."""
        return self.bias << self.width

    @property
    def infinity(self) -> int:
        """The bits of infinity."""
        return (2 * self.bias + 1) << self.width

    @property
    def least_normal(self) -> float:
        """The least positive normal number."""
        return 2.0 ** (1 - self.bias)


LAYOUTS = {"float32": Layout("int32", "uint32", 32, 23, 127), "float64": Layout("int64", "uint64", 64, 52, 1023)}


class Value:
    """A value of a body. Python numbers beside it become literals of its dtype; integers wrap into its range."""

    __slots__ = ("body", "number")

    def __init__(self, body: Any, number: int) -> None:
        self.body = body
        self.number = number

    @property
    def dtype(self) -> str:
        """The value's dtype."""
        return self.body.dtype(self.number)  # type: ignore[no-any-return]

    @property
    def layout(self) -> Layout:
        """The layout of the value's dtype, which is a float."""
        return LAYOUTS[self.dtype]

    def like(self, other: Operand) -> "Value":
        """Return a number as a literal of this value's dtype; a value as it is."""
        if isinstance(other, Value):
            return other
        return Value(self.body, self.body.const(_literal(other, self.dtype), self.dtype))

    def op(self, name: str, *others: Operand) -> "Value":
        """Return an op of the table with this value as its first operand."""
        return Value(self.body, self.body(name, self.number, *[self.like(o).number for o in others]))

    def to(self, dtype: str) -> "Value":
        """Return a cast."""
        return Value(self.body, self.body.cast(self.number, dtype))

    def bits(self, dtype: str) -> "Value":
        """Return the bits as another dtype of the same width."""
        return Value(self.body, self.body.bitcast(self.number, dtype))

    def __add__(self, other: Operand) -> "Value":
        return self.op("add", other)

    def __radd__(self, other: Operand) -> "Value":
        return self.like(other).op("add", self)

    def __sub__(self, other: Operand) -> "Value":
        return self.op("subtract", other)

    def __rsub__(self, other: Operand) -> "Value":
        return self.like(other).op("subtract", self)

    def __mul__(self, other: Operand) -> "Value":
        return self.op("multiply", other)

    def __rmul__(self, other: Operand) -> "Value":
        return self.like(other).op("multiply", self)

    def __truediv__(self, other: Operand) -> "Value":
        return self.op("divide", other)

    def __rtruediv__(self, other: Operand) -> "Value":
        return self.like(other).op("divide", self)

    def __mod__(self, other: Operand) -> "Value":
        return self.op("modulo", other)

    def __neg__(self) -> "Value":
        return self.op("negative")

    def __and__(self, other: Operand) -> "Value":
        return self.op("bitwise_and", other)

    def __or__(self, other: Operand) -> "Value":
        return self.op("bitwise_or", other)

    def __xor__(self, other: Operand) -> "Value":
        return self.op("bitwise_xor", other)

    def __invert__(self) -> "Value":
        return self.op("bitwise_invert")

    def __lshift__(self, other: Operand) -> "Value":
        return self.op("bitwise_left_shift", other)

    def __rlshift__(self, other: Operand) -> "Value":
        return self.like(other).op("bitwise_left_shift", self)

    def __rshift__(self, other: Operand) -> "Value":
        return self.op("bitwise_right_shift", other)

    def __lt__(self, other: Operand) -> "Value":
        return self.op("less", other)

    def __gt__(self, other: Operand) -> "Value":
        return self.like(other).op("less", self)

    def equals(self, other: Operand) -> "Value":
        """Return whether the two are equal; NaN equals nothing."""
        return self.op("equal", other)

    def differs(self, other: Operand) -> "Value":
        """Return whether the two are unequal; NaN differs from everything."""
        return self.op("not_equal", other)


def _literal(number: Operand, dtype: str) -> bool | int | float:
    assert not isinstance(number, Value)  # noqa: S101  the caller has looked
    if "float" in dtype:
        return float(number)
    if dtype == "bool":
        return bool(number)
    bits = int(dtype.removeprefix("u")[3:])
    wrapped = int(number) % (1 << bits)
    return wrapped - (1 << bits) if dtype[0] != "u" and wrapped >= 1 << (bits - 1) else wrapped


def where(condition: Value, a: Operand, b: Operand) -> Value:
    """Return *a* where the condition holds, else *b*; at least one of them is a value."""
    first = a if isinstance(a, Value) else b
    assert isinstance(first, Value)  # noqa: S101  two literals have no dtype
    return Value(condition.body, condition.body.where(condition.number, first.like(a).number, first.like(b).number))


def kernel(formula: Callable[..., Value]) -> Callable[..., int]:
    """Return a formula over values as what `elementwise` takes as ``lower``: over a body and the numbers in it."""
    return lambda body, *operands: formula(*[Value(body, k) for k in operands]).number


def clamp(x: Value, low: float, high: float) -> Value:
    """Return *x* moved into [low, high]; NaN stays."""
    x = where(x > high, high, x)
    return where(x < low, low, x)


def nearest(x: Value) -> Value:
    """Return an integer nearest to *x*, whichever at a tie."""
    return (x + 0.5).op("floor")


def polynomial(x: Value, coefficients: Coefficients) -> Value:
    """Return the sum of coefficient * x ** power, by Horner's scheme."""
    own = coefficients[x.dtype]
    value = x.like(own[-1])
    for c in reversed(own[:-1]):
        value = value * x + c
    return value


def sign_bit(x: Value) -> Value:
    """Return the bits of *x* with all but the sign cleared, as a signed integer."""
    return x.bits(x.layout.signed) & x.layout.sign


def flip_sign(x: Value, mask: Value) -> Value:
    """Return *x* with its sign flipped where *mask*, a signed integer whose other bits are clear, has the sign bit."""
    return (x.bits(x.layout.signed) ^ mask).bits(x.dtype)


def power_of_two(n: Value, dtype: str) -> Value:
    """Return 2 ** n for an integer n within the exponents of normal numbers."""
    layout = LAYOUTS[dtype]
    return ((n + layout.bias) << layout.width).bits(dtype)


def scale(x: Value, n: Value) -> Value:
    """Return x * 2 ** n, rounded once, for n at most twice as far from 0 as exponents go and *x* of about 1."""
    half = n >> 1
    return x * power_of_two(half, x.dtype) * power_of_two(n - half, x.dtype)


# ---- two floats as one number -----------------------------------------------------------------------------------
#
# Dekker, "A floating-point technique for extending the available precision" (1971), with the operands split by a mask,
# so that nothing overflows. Neither a fused multiply-add nor a wider dtype is needed.


class Pair(NamedTuple):
    """An unevaluated sum, `low` being at most about an ulp of `high`."""

    high: Value
    low: Value


def sum_of(a: Value, b: Value) -> Pair:
    """Return a + b exactly, where a is 0 or not less than b in magnitude."""
    high = a + b
    return Pair(high, b - (high - a))


def halves(x: Value) -> Pair:
    """Return *x* split into two numbers of half as many bits."""
    layout = x.layout
    low_bits = layout.width // 2 + 1  # 12 and 27: what stays has 12 and 26 bits
    high = (x.bits(layout.signed) & -(1 << low_bits)).bits(x.dtype)
    return Pair(high, x - high)


def product_of(a: Value, b: Value) -> Pair:
    """Return a * b, exactly but for one unit in the last bit of `low`."""
    high = a * b
    (ah, al), (bh, bl) = halves(a), halves(b)
    return Pair(high, ((ah * bh - high) + ah * bl + al * bh) + al * bl)


def multiply_pairs(a: Pair, b: Pair) -> Pair:
    """Return a * b, to about twice the precision of a float."""
    high, low = product_of(a.high, b.high)
    return sum_of(high, low + (a.high * b.low + a.low * b.high))
