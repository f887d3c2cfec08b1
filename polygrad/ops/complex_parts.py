"""The two parts of complex numbers: taking them, putting them together, and what the other complex modules share.

Here: conj, real, imag for users; part_ and exact sums of squares for rules.
Not here: functions of complex numbers, which are in the other `complex_` modules.

A rule gets its operands as nodes whose parts have one dtype; a real operand beside a complex one stays real.
"""

from collections.abc import Callable
from typing import Any

from polygrad import dtypes
from polygrad.errors import DTypeError
from polygrad.ops.table import composite

ALL = "bool int float complex"
NUMERIC = "int float complex"


def is_complex(x: Any) -> bool:
    """Whether a node has a complex dtype."""
    return x.dtype in dtypes.COMPLEX


def both(xp: Any, z: Any) -> tuple[Any, Any]:
    """Return the real and the imaginary part of a node; of a real one, itself and a zero that broadcasts."""
    return z.parents if is_complex(z) else (z, xp.constant(0.0, z.dtype))


def swapped(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function z -> -i f(iz) of an odd *function* f of parts, as a function of parts.

    With the parts exchanged, z becomes i conj(z); so does the value, since f(conj z) = conj f(z).
    """

    def turned(xp: Any, a: Any, b: Any) -> Any:
        im, re = function(xp, b, a)
        return re, im

    return turned


def on_parts(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a rule for complex operands from a function of the two parts that returns both parts of the value."""

    def rule(xp: Any, z: Any) -> Any:
        return xp.pair_(*function(xp, *z.parents))

    return rule


def limits(x: Any) -> tuple[float, float, float, float]:
    """Return eps, the greatest number, the least, and the smallest normal one of a node's dtype."""
    return dtypes.float_limits(x.dtype)


def pick(xp: Any, condition: Any, value: float, other: Any, like: Any) -> Any:
    """Return *value* where a condition holds, else *other*, numbers in the dtype of *like*."""
    rest = xp.constant(other, like.dtype) if isinstance(other, float) else other
    return xp.where(condition, xp.constant(value, like.dtype), rest)


def or_(xp: Any, *conditions: Any) -> Any:
    """Return whether any of some conditions holds."""
    out = conditions[0]
    for c in conditions[1:]:
        out = xp.bitwise_or(out, c)
    return out


def and_(xp: Any, *conditions: Any) -> Any:
    """Return whether all of some conditions hold."""
    out = conditions[0]
    for c in conditions[1:]:
        out = xp.bitwise_and(out, c)
    return out


def _exact_square(x: Any) -> tuple[Any, Any]:
    """Return x * x as a sum of two numbers, without an error.

    Notes
    -----
    Dekker, "A floating-point technique for extending the available precision", Numerische Mathematik 18 (1971).
    """
    splitter = float(2 ** {4: 12, 8: 27}[x.dtype.itemsize] + 1)
    c = x * splitter
    high = c - (c - x)
    low = x - high
    product = x * x
    return product, ((high * high - product) + 2.0 * (high * low)) + low * low


def _exact_sum(a: Any, b: Any) -> tuple[Any, Any]:
    """Return a + b as a sum of two numbers, without an error (Knuth's two-sum)."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def excess(x: Any, y: Any, linear: Any) -> Any:
    """Return x * x + y * y + linear as exactly as its rounding lets it be, where its terms nearly cancel."""
    xx, xx_low = _exact_square(x)
    yy, yy_low = _exact_square(y)
    first, rest = _exact_sum(linear, xx)
    total, more = _exact_sum(first, yy)
    return total + ((rest + more) + (xx_low + yy_low))


@composite(reference=None, dtypes=ALL)
def part_(xp: Any, z: Any, which: Any) -> Any:
    """Return the real (0) or imaginary (1) part of a node; of a real one, itself or zeros."""
    if is_complex(z):
        return z.parents[which]
    return xp.zeros_like(z) if which else z


def _draw(draw: Any) -> Any:
    return draw.elementwise(((-2, 2),))


@composite(reference=lambda np, x: np.conj(x), samples=_draw, dtypes=NUMERIC)
def conj(xp: Any, x: Any, /) -> Any:
    """The complex conjugate; of a real dtype, x itself."""
    _need_numbers("conj", x)
    return xp.pair_(xp.part_(x, 0), -xp.part_(x, 1)) if is_complex(x) else xp.alias(x)


@composite(reference=lambda np, x: np.real(x), samples=_draw, dtypes=NUMERIC)
def real(xp: Any, x: Any, /) -> Any:
    """The real part; of a real dtype, x itself."""
    _need_numbers("real", x)
    return xp.alias(xp.part_(x, 0))


@composite(reference=lambda np, x: np.imag(x), samples=_draw, dtypes=NUMERIC)
def imag(xp: Any, x: Any, /) -> Any:
    """The imaginary part; of a real dtype, zeros."""
    _need_numbers("imag", x)
    return xp.alias(xp.part_(x, 1)) if is_complex(x) else xp.zeros_like(x)


def _need_numbers(name: str, x: Any) -> None:
    if x.dtype is dtypes.bool_:
        raise DTypeError(f"cannot apply {name} to bool: it takes int, float or complex dtypes; cast with .astype(...)")
