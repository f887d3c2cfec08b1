"""Exact values of functions, by mpmath to 50 digits and by a wider format.

Here: points at which a function is tried, and its values there.
Not here: how far a device may be off (`error_model.CEILING`), what is awkward (`grids.py`).
"""

from collections.abc import Callable, Sequence
from typing import Any

import mpmath
import numpy as np

from polygrad.driver import Instr, oracle
from polygrad_conformance.case import Array

DIGITS = 50
# For each function one range an operand, in float32; a pair is for float64 where it differs. Points are drawn evenly
# and by magnitude.
BIG = 3e38
RANGES: dict[str, tuple[tuple[float, float], ...]] = {
    "divide": ((-1e18, 1e18), (-1e18, 1e18)), "sqrt": ((0, BIG),), "rsqrt": ((1e-37, BIG),), "exp": ((-87, 88),),
    "exp2": ((-126, 127),), "expm1": ((-80, 88),), "log": ((1e-37, BIG),), "log2": ((1e-37, BIG),),
    "log10": ((1e-37, BIG),), "log1p": ((-0.9999, 1e30),), "sin": ((-32768, 32768),), "cos": ((-32768, 32768),),
    "tan": ((-32768, 32768),), "asin": ((-1, 1),), "acos": ((-1, 1),), "atan": ((-1e9, 1e9),),
    "atan2": ((-1e4, 1e4), (-1e4, 1e4)), "sinh": ((-88, 88),), "cosh": ((-88, 88),), "tanh": ((-20, 20),),
    "asinh": ((-1e9, 1e9),), "acosh": ((1, 1e9),), "atanh": ((-0.99999, 0.99999),), "pow": ((1e-4, 1e4), (-9, 9)),
    "erf": ((-5, 5),),
}  # fmt: skip
NEAR = {  # where functions lose digits: half of the evenly drawn points are here
    "log": (0.25, 4), "log2": (0.25, 4), "log10": (0.25, 4), "log1p": (-0.5, 2), "sin": (-8, 8), "cos": (-8, 8),
    "tan": (-8, 8), "acosh": (1, 3), "sqrt": (0, 4), "rsqrt": (0.1, 4), "expm1": (-1, 1), "erf": (-2, 2),
    "tanh": (-2, 2), "sinh": (-2, 2), "asinh": (-2, 2), "atan": (-4, 4),
}  # fmt: skip


def points(op: str, dtype: str, count: int, rng: np.random.Generator) -> tuple[Array, ...]:
    """Return *count* operands of *op* for each place."""
    columns = []
    for low, high in RANGES[op]:
        even = rng.uniform(low, high, count)
        near_low, near_high = NEAR.get(op, (low, high))
        near = rng.uniform(near_low, near_high, count)
        top = np.log10(max(abs(low), abs(high)))
        size = 10 ** rng.uniform(max(np.log10(max(low, 1e-30)), -8.0) if low > 0 else -8, top, count)
        sign = np.where(rng.random(count) < 0.5, -1, 1) if low < 0 else 1
        grown = np.clip(sign * size, low, high)
        kind = rng.integers(0, 3, count)
        columns.append(np.choose(kind, [even, near, grown]).astype(dtype))
    return tuple(columns)


_EXACT: dict[str, Callable[..., Any]] = {
    "divide": lambda a, b: a / b, "rsqrt": lambda a: 1 / mpmath.sqrt(a), "exp2": lambda a: mpmath.power(2, a),
    "log2": lambda a: mpmath.log(a, 2), "pow": mpmath.power, "log1p": mpmath.log1p, "expm1": mpmath.expm1,
}  # fmt: skip


def precise(op: str, args: Sequence[Array]) -> Array:
    """Return *op* of float operands, computed by mpmath, in longdouble.

    >>> float(precise("exp", [np.array([1.0])])[0]) == float(np.exp(np.longdouble(1)))
    True
    """
    function = _EXACT.get(op) or getattr(mpmath, op)
    with mpmath.workdps(DIGITS):
        rows = (function(*(mpmath.mpf(float(x)) for x in row)) for row in zip(*args, strict=True))
        return np.array([np.longdouble(mpmath.nstr(mpmath.re(v), 25)) for v in rows])


def wide(op: str, args: Sequence[Array]) -> Array:
    """Return *op* of float32 operands in float64, of float64 ones in longdouble: good to little over half a unit."""
    dtype = args[0].dtype.name
    return oracle.compute(Instr(op, dtype), [a.astype(oracle.WIDER[dtype]) for a in args], exact=True)
