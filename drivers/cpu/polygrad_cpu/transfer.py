"""Bytes in, bytes out, and strided copies.

Here: the ops write, read and copy, and how a Ref is seen as an array. Not here: arithmetic.
"""

import functools
import math
from typing import Any

import numpy as np

from polygrad.driver import Instr, Kernel, Prepared, Ref, Store, View
from polygrad.driver.ir import ITEMSIZE
from polygrad_cpu.program import prepare
from polygrad_cpu.settings import Settings
from polygrad_cpu.source import numpy_dtype

Array = np.ndarray[Any, Any]

PLAIN = 1 << 16  # bytes that one call copies; more are cut into tiles and shared among threads


def array(ref: Ref) -> Array:
    """Return the memory of *ref* as an array."""
    size = ITEMSIZE[ref.dtype]
    steps = tuple(s * size for s in ref.strides)
    return np.ndarray(ref.shape, numpy_dtype(ref.dtype), ref.handle, ref.offset * size, steps)


def _bytes(ref: Ref) -> Array:
    size = ITEMSIZE[ref.dtype]
    start = ref.offset * size
    found: Array = ref.handle[start : start + math.prod(ref.shape) * size]
    return found


def write(out: Ref, data: memoryview) -> None:
    """Copy *data* into contiguous memory."""
    _bytes(out)[...] = np.frombuffer(data, np.uint8)


def read(source: Ref, into: memoryview) -> None:
    """Copy contiguous memory into *into*."""
    np.frombuffer(into, np.uint8)[...] = _bytes(source)


def copy(out: Ref, source: Ref, settings: Settings) -> None:
    """Copy strided to contiguous memory."""
    if math.prod(out.shape) * ITEMSIZE[out.dtype] <= PLAIN:
        array(out)[...] = array(source)
        return
    launch = _copier(len(out.shape), out.dtype, settings)
    launch((source.handle, out.handle), (*out.shape, source.offset, *source.strides, out.offset, *out.strides), ())


@functools.lru_cache(maxsize=256)
def _copier(rank: int, dtype: str, settings: Settings) -> Prepared:
    strides = (None,) * rank
    views = (View(0, dtype, strides), View(1, dtype, strides))
    return prepare(Kernel(rank, 0, (dtype, dtype), views, (), (Instr("load", dtype, (), 0),), (Store(0, 1),)), settings)
