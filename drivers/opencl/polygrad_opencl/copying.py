"""Strided copies on the device, as fused kernels of one load and one store.

Here: the kernel for a copy's layout. Not here: transfers to and from the host.
"""

import functools
from typing import Any

from polygrad.driver import Instr, Kernel, Ref, Store, View
from polygrad_opencl.faults import translated
from polygrad_opencl.fused import FusedKernels
from polygrad_opencl.session import Session

SAME_BITS = {
    "bool": "uint8", "int8": "uint8", "uint8": "uint8", "int16": "uint16", "uint16": "uint16", "float16": "uint16",
    "bfloat16": "uint16", "int32": "uint32", "uint32": "uint32", "float32": "uint32", "int64": "uint64",
    "uint64": "uint64", "float64": "uint64",
}  # fmt: skip
SIZES = {"uint8": 1, "uint16": 2, "uint32": 4, "uint64": 8}


def joined(shape: tuple[int, ...], strides: tuple[int, ...]) -> list[tuple[int, int]]:
    """Return the axes of a view as (extent, stride), those that run on into each other joined, none of extent 1.

    >>> joined((2, 3, 4), (12, 4, 1)), joined((2, 3, 4), (12, 8, 2)), joined((1, 5), (9, 0))
    ([(24, 1)], [(2, 12), (12, 2)], [(5, 0)])
    """
    axes: list[tuple[int, int]] = []
    for extent, stride in zip(shape, strides, strict=True):
        if extent == 1:
            continue
        if axes and axes[-1][1] == stride * extent:
            axes[-1] = (axes[-1][0] * extent, stride)
        else:
            axes.append((extent, stride))
    return axes


@functools.lru_cache(maxsize=256)
def copy_kernel(dtype: str, strides: tuple[int | None, ...]) -> Kernel:
    """Return the kernel that copies a view into contiguous memory; its strides are 0, 1, or given at launch."""
    rank = len(strides)
    target = (*(None,) * (rank - 1), 1) if rank else ()
    views = (View(0, dtype, strides), View(1, dtype, target))
    return Kernel(rank, 0, (dtype, dtype), views, (), (Instr("load", dtype, (), 0),), (Store(0, 1),))


class Copies:
    """The copies of one device."""

    def __init__(self, session: Session, fused: FusedKernels) -> None:
        self.session = session
        self.fused = fused

    def __call__(self, out: Ref, source: Ref) -> None:
        """Copy *source* into *out*."""
        dtype = SAME_BITS[out.dtype]
        axes = joined(source.shape, source.strides)
        if not axes or (len(axes) == 1 and axes[0][1] == 1):
            count = axes[0][0] if axes else 1
            self._block(out, source, count * SIZES[dtype], SIZES[dtype])
            return
        known = tuple(stride if stride in (0, 1) else None for _, stride in axes)
        ints: list[int] = [extent for extent, _ in axes]
        ints += [source.offset, *(stride for _, stride in axes if stride not in (0, 1)), out.offset]
        steps: list[int] = []
        step = 1
        for extent, _ in reversed(axes):
            steps.append(step)
            step *= extent
        ints += reversed(steps[1:])
        self.fused.prepare(copy_kernel(dtype, known))((source.handle, out.handle), tuple(ints), ())

    def _block(self, out: Ref, source: Ref, nbytes: int, itemsize: int) -> None:
        session: Any = self.session
        try:
            session.cl.enqueue_copy(
                session.queue, out.handle, source.handle, byte_count=nbytes, src_offset=source.offset * itemsize,
                dst_offset=out.offset * itemsize,
            )  # fmt: skip
        except session.cl.Error as error:
            raise translated(error, session.label, f"copy {nbytes} bytes") from error
