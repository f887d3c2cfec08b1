"""The accelerated ops of the strict driver, by definition: what each does to typed blocks of host memory.

Here: one function an op, of arrays. Not here: when they run (`strict.py`).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from polygrad.driver import Ref
from polygrad_conformance import philox
from polygrad_conformance.case import Array

STORAGE_ITEMSIZE = 2


def seen(block: Array, ref: Ref) -> Array:
    """Return the memory of *ref*, in a typed block, as an array."""
    size = block.itemsize
    strides = [size * s for s in ref.strides]
    return np.lib.stride_tricks.as_strided(block[ref.offset :], ref.shape, strides)


def copy(outs: Sequence[Array], ins: Sequence[Array], attrs: Mapping[str, Any]) -> None:  # noqa: ARG001
    """Copy."""
    outs[0][...] = ins[0]


def matmul(outs: Sequence[Array], ins: Sequence[Array], attrs: Mapping[str, Any]) -> None:  # noqa: ARG001
    """Multiply matrices; float16 and bfloat16 are summed in float32, floats in the next wider format."""
    a, b = ins
    if a.dtype.kind in "iu":
        outs[0][...] = np.matmul(a, b)
        return
    wide = np.float32 if a.dtype.itemsize == STORAGE_ITEMSIZE else np.float64
    outs[0][...] = np.matmul(a.astype(wide), b.astype(wide)).astype(a.dtype)


def random_bits(outs: Sequence[Array], ins: Sequence[Array], attrs: Mapping[str, Any]) -> None:  # noqa: ARG001
    """Fill with Philox words."""
    outs[0][...] = philox.words(attrs["key"], attrs["counter"], len(outs[0]))


def scatter_add(outs: Sequence[Array], ins: Sequence[Array], attrs: Mapping[str, Any]) -> None:
    """Add rows up at their places; *attrs* has the status word as an array, if it has one."""
    (out,), (index, rows) = outs, ins
    bad = (index < -len(out)) | (index >= len(out))
    status = attrs.get("status")
    if status is not None and bad.any() and status[0] == 0:
        first = int(index[bad][0])
        status.view(np.uint32)[1:4] = 0, first & 0xFFFFFFFF, first >> 32 & 0xFFFFFFFF
        status[0] = attrs["tag"]
    total = np.zeros(out.shape, np.float64 if rows.dtype.kind in "fV" else rows.dtype)
    np.add.at(total, index[~bad], rows[~bad].astype(total.dtype))
    out[...] = total.astype(out.dtype)
