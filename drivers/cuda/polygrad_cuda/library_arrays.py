"""Operands as CuPy arrays, and CuPy's libraries called on the driver's stream.

Here: what `linalg.py` and `fft.py` share: references as arrays without a copy, the context of a library call.
Not here: the calls.
"""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from polygrad.driver import LaunchError, OutOfMemory, Ref

if TYPE_CHECKING:
    from polygrad_cuda.driver import CudaDriver

VENDORS = {"CUSOLVERError", "CUBLASError", "CuFFTError"}  # each stands in a module that loads its library
WHOLE = {"float32": "complex64", "float64": "complex128"}


def as_array(driver: "CudaDriver", ref: Ref, *, numbers: bool = False) -> Any:
    """Return a contiguous reference as a CuPy array.

    With *numbers* its last axis, (real, imaginary), becomes complex numbers.
    """
    cupy = driver.cupy
    size = driver.itemsize(ref.dtype)
    count = 1
    for extent in ref.shape:
        count *= extent
    start = int(ref.handle) + ref.offset * size
    block = cupy.cuda.UnownedMemory(start, count * size, driver, driver.ordinal)
    pointer = cupy.cuda.MemoryPointer(block, 0)
    if not numbers:
        return cupy.ndarray(ref.shape, ref.dtype, pointer)
    if start % (2 * size):  # vendors' kernels read a complex number as one word
        plain = cupy.ndarray(ref.shape, ref.dtype, pointer).copy()
        return plain.view(WHOLE[ref.dtype])[..., 0]
    return cupy.ndarray(ref.shape[:-1], WHOLE[ref.dtype], pointer)


def put(driver: "CudaDriver", ref: Ref, value: Any, *, numbers: bool = False) -> None:
    """Copy what a library gave into the memory of a contiguous reference, wherever in a block it begins."""
    plain = as_array(driver, ref)
    if not numbers:
        plain[...] = value
        return
    plain[..., 0] = value.real
    plain[..., 1] = value.imag


@contextlib.contextmanager
def library_calls(driver: "CudaDriver", doing: str) -> Iterator[Any]:
    """Run CuPy's functions on the driver's stream, their results from CuPy's own pool, their errors as the waist's.

    CuPy caches plans of transforms with their work memory, so that memory must not be given back behind its back.
    """
    cupy = driver.cupy
    with driver.vendor_calls(doing):
        try:
            with driver.cupy_stream:
                yield cupy
        except ImportError as error:
            raise LaunchError(f"{driver.device} needs a library of CUDA for {doing}: {error}") from error
        except RuntimeError as error:
            if type(error).__name__ not in VENDORS:
                raise
            raise LaunchError(f"{driver.device} failed while {doing}: {error}") from error
        except cupy.cuda.memory.OutOfMemoryError as error:
            cupy.get_default_memory_pool().free_all_blocks()
            raise OutOfMemory(f"{driver.device} has no room for work memory while {doing}: {error}") from error
