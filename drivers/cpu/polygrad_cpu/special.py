"""Instructions that are more than one ufunc: selection, windows, casts to bfloat16, erf.

Here: functions that generated code calls, each writing into an array that it is given.
Not here: reductions (`reduction.py`), gathers (`gather.py`), the choice which is called (`source.py`).

`out` never shares memory with an operand unless a function says so.
"""

from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, Any]

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
BITS: dict[int, np.dtype[Any]] = {
    1: np.dtype(np.int8),
    2: np.dtype(np.int16),
    4: np.dtype(np.int32),
    8: np.dtype(np.int64),
}

# Below this many elements two masked copies are faster than five passes of integer arithmetic; above it the passes are
# ten times faster, for a masked copy is not vectorised.
FEW = 400


def select(condition: Array, a: Array, b: Array, out: Array, mask: Array) -> None:
    """Write a where *condition*, else b; *mask* is scratch of `out`'s shape, signed integers of its width.

    >>> out = np.empty(2, np.float32)
    >>> select(np.array([True, False]), np.float32([1, 2]), np.float32([3, 4]), out, np.empty(2, np.int32)); out
    array([1., 4.], dtype=float32)
    """
    if out.size < FEW:
        out[...] = b
        np.copyto(out, a, where=condition)
        return
    bits = mask.dtype
    b, result = b.view(bits), out.view(bits)
    np.negative(condition.view(np.int8), mask)
    np.bitwise_xor(a.view(bits), b, result)
    np.bitwise_and(result, mask, result)
    np.bitwise_xor(result, b, result)


def select_or_zero(condition: Array, a: Array, zero: Array, out: Array, mask: Array) -> None:
    """Write a where *condition*, else *zero*, whose bits are all zero."""
    if out.size < FEW:
        out[...] = zero
        np.copyto(out, a, where=condition)
        return
    np.negative(condition.view(np.int8), mask)
    np.bitwise_and(a.view(mask.dtype), mask, out.view(mask.dtype))


def zero_or_select(condition: Array, zero: Array, b: Array, out: Array, mask: Array) -> None:
    """Write *zero*, whose bits are all zero, where *condition*, else b."""
    if out.size < FEW:
        out[...] = b
        np.copyto(out, zero, where=condition)
        return
    np.subtract(condition.view(np.int8), np.int8(1), mask)
    np.bitwise_and(b.view(mask.dtype), mask, out.view(mask.dtype))


def window(cut: tuple[Array | None, tuple[slice, ...] | None], fill: Array, out: Array) -> Array:
    """Return the elements of a windowed view: the memory itself if the block lies inside, else *out*, filled.

    *cut* is (the part of the memory inside the window, its place in *out*).
    """
    inside, place = cut
    if inside is not None and place is None:
        return inside
    out[...] = fill
    if inside is not None and place is not None:
        out[place] = inside
    return out


def window_into(cut: tuple[Array | None, tuple[slice, ...] | None], fill: Array, out: Array) -> None:
    """Write the elements of a windowed view to *out*, wherever the block lies."""
    found = window(cut, fill, out)
    if found is not out:
        out[...] = found


def to_bfloat16(a: Array, out: Array) -> None:
    """Round *a*, float64 or integers, to bfloat16 once: ml_dtypes would round to float32 first, and then again.

    The value is rounded to float32 "to odd" (toward zero, with the last bit set if that lost anything), which leaves
    enough for the second rounding to be right. Source: S. Boldo, G. Melquiond, "When double rounding is odd", IMACS
    2005.
    """
    near = a.astype(np.float32)
    wide = np.dtype(np.longdouble if a.dtype in (np.int64, np.uint64) else np.float64)  # holds every value
    value, back = a.astype(wide), near.astype(wide)
    odd = np.where(np.abs(back) > np.abs(value), np.nextafter(near, np.float32(0)), near)
    lost = np.asarray(odd.astype(wide) != value) & ~np.isnan(near)
    bits = np.ascontiguousarray(odd).view(np.uint32) | lost
    out[...] = bits.view(np.float32).reshape(near.shape)
