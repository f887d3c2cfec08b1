"""Fused kernels on the device: the shared renderer's text, compiled once a variant, launched with prepared arguments."""

from typing import Any
from polygrad.driver import Kernel, Instr, Store, View, Ref


def copy_kernel(out: Ref, source: Ref) -> tuple[Kernel, tuple[int, ...]]:
    """Return the kernel that copies a strided array to a contiguous one, and its launch ints."""
    rank = max(1, len(out.shape))
    views = tuple(View(n, out.dtype, (None,) * rank) for n in range(2))
    body = (Instr("load", out.dtype, (), 0),)
    kernel = Kernel(rank, 0, (out.dtype, out.dtype), views, (), body, (Store(0, 1),))
    shape, inner, outer = (out.shape, source.strides, out.strides) if out.shape else ((1,), (0,), (0,))
    return kernel, (*shape, source.offset, *inner, out.offset, *outer)


class FusedKernel:
    def __init__(self, driver: Any, kernel: Kernel) -> None:
        raise NotImplementedError
