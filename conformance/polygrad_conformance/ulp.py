"""Distances between floats, and the judgement of results by them.

Here: ULP, and assertions that say which element is worst.
Not here: the ceilings (`error_model.CEILING`), references (`references.py`).
"""

from collections.abc import Sequence

import numpy as np

from polygrad.driver import oracle
from polygrad_conformance.case import Array
from polygrad_conformance.error_model import ABSOLUTE, CEILING

# The sign of a zero result is checked for these alone; other zeros may have either sign.
SIGNED = frozenset({"add", "subtract", "multiply", "negative", "absolute", "copysign"})


def assert_same(what: str, args: Sequence[Array], got: Array, want: Array, *, signs: bool) -> None:
    """Assert equality bit for bit, but for the payload of NaN and, without *signs*, the sign of zeros."""
    wrong = _different(got, want, signs=signs)
    if wrong.any():
        place = int(np.argmax(wrong))
        given = ", ".join(str(a[place]) for a in args)
        raise AssertionError(
            f"{what}: {int(wrong.sum())} of {len(want)} are wrong; of ({given or f'element {place}'}) it gave "
            f"{got[place]}, expected {want[place]}"
        )


def _different(got: Array, want: Array, *, signs: bool) -> Array:
    raw, wanted = (np.ascontiguousarray(a).view(f"u{a.dtype.itemsize}") for a in (got, want))
    different: Array = raw != wanted
    if want.dtype.kind in "fV":
        with np.errstate(all="ignore"):
            a, b = got.astype(np.float64), want.astype(np.float64)
        same = np.isnan(a) & np.isnan(b)
        if not signs:
            same |= (a == 0) & (b == 0)
        different &= ~same
    return different


def distance(got: Array, exact: Array, dtype: str) -> Array:
    """Return how many ULP of *dtype* each result is from the *exact* value, given in a wider format or the same.

    The unit is the spacing at the exact value, at the least that of the smallest normal. Equal infinities and two NaN
    are 0 apart; an infinity is 0 from what lies at most half a unit below it.

    >>> distance(np.array([1.0, 1.0000001], np.float32), np.array([1.0, 1.0]), "float32").round(2)
    array([0., 1.])
    """
    target = oracle.compute_dtype(dtype)
    facts = np.finfo(target)
    with np.errstate(all="ignore"):
        wide = exact.astype(np.longdouble)
        unit = np.spacing(np.maximum(np.abs(wide), facts.tiny).astype(target))
        unit = np.where(np.isfinite(unit), unit, np.spacing(facts.max)).astype(np.longdouble)
        apart = np.abs(got.astype(np.longdouble) - wide) / unit
        alike = (got.astype(np.longdouble) == wide) | (np.isnan(got) & np.isnan(wide))
        over = np.isinf(got) & (np.abs(wide) >= np.longdouble(facts.max) * (1 - np.longdouble(2) ** -25))
        over &= np.sign(got.astype(np.longdouble)) == np.sign(wide)
    return np.asarray(np.where(alike | over, 0.0, np.where(np.isnan(apart), np.inf, apart)), np.float64)


def ceiling(op: str, dtype: str, *, correctly_rounded: bool = False) -> float:
    """Return how many ULP *op* may be off; 0.5 means correctly rounded.

    >>> ceiling("exp", "float32"), ceiling("divide", "float64"), ceiling("add", "float32")
    (4, 0.5, 0.5)
    """
    if op in ("divide", "sqrt") and (dtype == "float64" or correctly_rounded):
        return 0.5
    return CEILING.get(op, 0.5)


def assert_special(op: str, dtype: str, args: Sequence[Array], got: Array, want: Array, *, subnormals: bool) -> None:
    """Judge *op* on awkward values against the oracle, which rounds once."""
    if op not in CEILING:
        wrong = _different(got, want, signs=op in SIGNED)
    else:
        apart = distance(got, want, dtype)
        eps = float(np.finfo(want.dtype).eps)
        with np.errstate(all="ignore"):
            near = np.abs(got.astype(np.float64) - want.astype(np.float64)) <= ABSOLUTE.get(op, 0) * eps
        wrong = (apart > CEILING[op] + 0.5) & ~near
    if want.dtype.kind == "f" and not subnormals:
        tiny = np.finfo(want.dtype).tiny
        flushed = np.zeros(len(want), bool)
        for a in (*args, want):
            flushed |= (np.abs(a) < tiny) & (a != 0)
        wrong &= ~flushed
    if wrong.any():
        place = int(np.argmax(wrong))
        given = ", ".join(str(a[place]) for a in args)
        raise AssertionError(
            f"{op} of {dtype}: {int(wrong.sum())} of {len(want)} are wrong; {op}({given}) gave {got[place]}, "
            f"expected {want[place]}"
        )
