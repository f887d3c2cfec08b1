"""How far from the oracle a correct driver may be, for each value of a kernel on given data.

Here: the propagation of error bounds through a kernel, one instruction at a time, beside the values themselves.
Not here: the values (the oracle's), how bounds are compared with results (`random_kernels.py`).

A bound of 0 means bit for bit. It stays 0 through what IEEE 754 rounds correctly (add, multiply, floor, casts, ...)
and through all of integer and bool arithmetic. Everything else adds its ceiling in ULP to what its operands bring:
the function is evaluated at the corners of their intervals. Data on which a decision (a comparison, a cast to an
integer) or most digits of a result hang on rounding are refused with `IllConditioned`, so that bounds are tight.
"""

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from polygrad.driver import oracle
from polygrad.driver.ir import Instr, kind

Array = np.ndarray[Any, Any]

# ULP of the result that a driver may be off, where IEEE 754 does not decide; from the OpenCL full profile and what
# NumPy and PoCL were measured at. What is absent here is correctly rounded.
CEILING = {
    "divide": 2.5, "sqrt": 3, "rsqrt": 4, "exp": 4, "exp2": 4, "expm1": 4, "log": 4, "log2": 4, "log10": 4, "log1p": 4,
    "sin": 4, "cos": 4, "tan": 5, "asin": 4, "acos": 4, "atan": 5, "atan2": 6, "sinh": 4, "cosh": 4, "tanh": 5,
    "asinh": 4, "acosh": 4, "atanh": 5, "pow": 16, "erf": 16,
}  # fmt: skip
# Near their zeros these are bounded absolutely, in units of eps, since the reduced argument itself is rounded.
ABSOLUTE = {"sin": 2, "cos": 2, "tan": 2, "log": 2, "log2": 2, "log10": 2, "acos": 2, "acosh": 2}

GREATEST = 1e18  # of any finite value, so that squares and sums stay far from overflow in float32
WORST = {"float32": 1e-4, "float64": 1e-11}  # relative error, beyond which a value is ill conditioned


class IllConditioned(Exception):
    """The data leave more than one right answer for this instruction."""


def bound(instr: Instr, args: Sequence[Array], errors: Sequence[Array], value: Array, reduced: Sequence[int]) -> Array:
    """Return the absolute error that a driver's *value* may have.

    Parameters
    ----------
    instr : Instr
        Not a leaf: a leaf's bound is 0.
    args, errors : sequence of ndarray
        The operands as the oracle has them, and their bounds (float64).
    value : ndarray
        The result as the oracle has it.
    reduced : sequence of int
        The extents of the reduced axes; used by ``reduce``.

    Raises
    ------
    IllConditioned
        If the operands' bounds do not decide the result.
    """
    with np.errstate(all="ignore"):
        if instr.op == "where":
            return np.where(args[0], errors[1], errors[2])
        if instr.op in ("bitcast", "nextafter") and any(e.any() for e in errors):
            raise IllConditioned
        if instr.op in ("cast", "bitcast"):
            _check_cast(instr, args[0])
        error = np.zeros(value.shape)
        if kind(instr.dtype) == "float":
            if instr.op == "reduce":
                error = _reduced(instr, args[0], errors[0], value, reduced)
            elif instr.op == "cast" and args[0].dtype.kind in "fV":
                grain = np.abs(_spacing(value))
                error = errors[0] + np.where(errors[0] > 0, grain, 0)
            elif instr.op not in ("cast", "bitcast"):
                error = _smooth(instr, args, errors, value)
            _check_float(instr.dtype, value, error)
        elif any(e.any() for e in errors):
            _check_decision(instr, args, errors, value)
        return error


def _spacing(value: Array) -> Array:
    if value.dtype == oracle.BFLOAT16:
        return np.spacing(value.astype(np.float32)).astype(np.float64) * 2**16
    return np.spacing(value).astype(np.float64)


def _corners(instr: Instr, args: Sequence[Array], errors: Sequence[Array]) -> list[Array]:
    """Return the result, unrounded, at the middle and at all corners of the operands' intervals."""
    wide = [a.astype(oracle.WIDER.get(a.dtype.name, a.dtype)) for a in args]
    middle = oracle.compute(instr, wide, exact=True)
    signs = product(*((-1, 1) if e.any() else (0,) for e in errors))
    return [middle, *(oracle.compute(instr, [a + s * e if s else a for a, s, e in zip(wide, sign, errors, strict=True)],
                                     exact=True) for sign in signs if any(sign))]  # fmt: skip


def _smooth(instr: Instr, args: Sequence[Array], errors: Sequence[Array], value: Array) -> Array:
    carried = np.zeros(value.shape)
    middle, *corners = _corners(instr, args, errors)
    finite = np.isfinite(value)
    for corner in corners:
        distance = np.abs(corner - middle).astype(np.float64)
        same = (corner == middle) | (np.isnan(corner) & np.isnan(middle))
        carried = np.maximum(carried, np.where(same, 0, np.where(finite, distance, np.inf)))
    ulps = CEILING.get(instr.op, 0)
    inexact = np.zeros(value.shape, np.bool_)
    for error in errors:
        inexact = inexact | (error > 0)
    if instr.op == "negative" or (instr.op in ("maximum", "minimum", "absolute", "copysign")):
        return carried  # nothing is rounded
    own = np.where(inexact | (ulps > 0), (ulps or 1) * np.abs(_spacing(value)), 0)
    own = np.maximum(own, np.where(ulps > 0, ABSOLUTE.get(instr.op, 0) * np.finfo(value.dtype).eps, 0))
    return np.where(finite, 1.01 * carried + own, np.where(carried > 0, np.inf, 0))


def _reduced(instr: Instr, a: Array, error: Array, value: Array, reduced: Sequence[int]) -> Array:
    shape = (*a.shape[: a.ndim - len(reduced)], *reduced)
    axes = tuple(range(a.ndim - len(reduced), a.ndim))
    a, error = np.broadcast_to(a, shape).astype(np.float64), np.broadcast_to(error, shape)
    if instr.attr in ("max", "min"):
        return np.where(np.isfinite(value), error.max(axis=axes, keepdims=True), 0)
    count, eps = int(np.prod(reduced)), float(np.finfo(value.dtype).eps)
    if instr.attr == "sum":
        total = error.sum(axis=axes, keepdims=True) + (count - 1) * eps * np.abs(a).sum(axis=axes, keepdims=True)
    else:
        relative = np.where(error > 0, error / np.abs(a), 0).sum(axis=axes, keepdims=True) + (count - 1) * eps
        total = np.where(relative < 0.1, 1.1 * relative * np.abs(value), np.inf)
    return np.where(np.isfinite(value), total, 0)


def partial(parallel: int, extents: Sequence[int], parts: int, value: Array, error: Array) -> Array:
    """Return the bound of each of *parts* partial sums of a FULL value over the parallel axes, in any order."""
    shape = extents[parallel:]
    if value.dtype.kind != "f":
        return np.zeros((parts, *shape))
    rows = np.broadcast_to(value, extents).reshape(-1, *shape).astype(np.float64)
    errors = np.broadcast_to(error, extents).reshape(-1, *shape)
    height, eps, bounds = -(-len(rows) // parts), float(np.finfo(value.dtype).eps), []
    for first in range(0, len(rows), height):
        part = slice(first, first + height)
        rounding = (len(rows[part]) - 1) * eps * np.abs(rows[part]).sum(axis=0)
        bounds.append(errors[part].sum(axis=0) + rounding)
    return np.stack(bounds)


# ---- refusals -------------------------------------------------------------------------------------------


def _check_cast(instr: Instr, a: Array) -> None:
    """Refuse what has no specified result: a float that an integer cannot hold, the payload of a NaN."""
    if a.dtype.kind not in "fV":
        return
    wide = a.astype(np.longdouble)
    if instr.op == "bitcast" and np.isnan(wide).any():
        raise IllConditioned
    if instr.op == "cast" and kind(instr.dtype) == "int":
        limits = np.iinfo(instr.dtype)
        whole = np.trunc(wide)
        if not ((whole >= limits.min) & (whole <= limits.max)).all():
            raise IllConditioned


def _check_float(dtype: str, value: Array, error: Array) -> None:
    if dtype not in WORST:
        return
    size = np.abs(value.astype(np.float64))
    finite = np.isfinite(size)
    tiny = float(np.finfo(value.dtype).tiny)
    if ((size > 0) & (size < tiny)).any() or (size[finite] > GREATEST).any():
        raise IllConditioned
    if error.any():
        typical = float(np.sqrt(np.mean(size[finite] ** 2))) if finite.any() else 0.0
        if not (error <= WORST[dtype] * np.maximum(size, min(typical, 1e3)))[finite].all() or error[~finite].any():
            raise IllConditioned


def _check_decision(instr: Instr, args: Sequence[Array], errors: Sequence[Array], value: Array) -> None:
    if instr.op == "reduce" or kind(instr.dtype) == "float":
        return
    middle, *corners = _corners(instr, args, errors)
    if (middle != value).any() or any((corner != value).any() for corner in corners):
        raise IllConditioned


# ---- signs of zeros -------------------------------------------------------------------------------------

# max(0.0, -0.0) and sums may have either zero. These operands tell one zero from the other.
_SEES_SIGN = {"divide": (1,), "copysign": (1,), "atan2": (0, 1), "rsqrt": (0,), "pow": (0,), "bitcast": (0,)}


def check_sign(instr: Instr, args: Sequence[Array], free: Sequence[bool]) -> None:
    """Refuse an instruction that tells apart zeros whose sign is *free*, or looks at the sign of a NaN."""
    for place in _SEES_SIGN.get(instr.op, ()):
        a = args[place]
        if a.dtype.kind in "fV" and free[place] and (a == 0).any():
            raise IllConditioned
    if instr.op == "copysign" and np.isnan(args[1]).any():
        raise IllConditioned


def frees_sign(instr: Instr, free: Sequence[bool]) -> bool:
    """Say whether zeros among the value of *instr* may have either sign."""
    return instr.op in ("maximum", "minimum", "reduce") or any(free)
