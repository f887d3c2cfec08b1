"""GPU memory shared with other libraries by DLPack, through CuPy's arrays on foreign memory.

Here: `exported`, `imported`.
Not here: who keeps what alive (the core), copies.
"""

from typing import TYPE_CHECKING, Any

from polygrad.driver import Ref
from polygrad.driver.ir import ITEMSIZE

if TYPE_CHECKING:
    from polygrad_cuda.driver import CudaDriver

CUDA, MANAGED = 2, 13  # kDLCUDA and kDLCUDAManaged in DLPack's list of devices


class Exported:
    """A block as DLPack's consumers see it; the driver's stream has done its work when they get it."""

    def __init__(self, driver: "CudaDriver", array: Any) -> None:
        self._driver = driver
        self._array = array

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA, self._driver.ordinal

    def __dlpack__(self, *, stream: Any = None, max_version: Any = None, **_: Any) -> Any:
        if stream == 0:
            raise BufferError(
                "cannot export to stream 0, which DLPack forbids on CUDA: give 1, 2, -1 or a stream's handle"
            )
        self._driver.synchronize()  # so no stream has to wait, and -1 says so
        with self._driver.vendor_calls("exporting memory"):
            return self._array.__dlpack__(stream=-1, max_version=max_version)


def exported(driver: "CudaDriver", ref: Ref, owner: object) -> Exported | None:
    """Return the memory of *ref* for DLPack; None for a dtype that CuPy does not export."""
    size = itemsize(ref.dtype)
    cuda = driver.cupy.cuda
    with driver.vendor_calls("exporting memory"):
        reach = sum((n - 1) * s for n, s in zip(ref.shape, ref.strides, strict=True) if n > 0)
        nbytes = (ref.offset + max(reach, 0) + 1) * size
        memory = cuda.UnownedMemory(ref.handle, nbytes, owner, driver.ordinal)
        try:
            dtype = driver.cupy.dtype(ref.dtype)
            array = driver.cupy.ndarray(
                ref.shape, dtype, cuda.MemoryPointer(memory, ref.offset * size), tuple(s * size for s in ref.strides)
            )
        except (TypeError, ValueError):  # bfloat16, in older versions
            return None
    return Exported(driver, array)


def imported(driver: "CudaDriver", producer: Any) -> tuple[Ref, object] | None:
    """Return the memory of an object on this GPU, and the array that keeps it alive; None if it is elsewhere."""
    kind, number = producer.__dlpack_device__()
    if int(kind) not in (CUDA, MANAGED) or int(number) != driver.ordinal:
        return None
    with driver.vendor_calls("importing memory"):
        array = driver.cupy.from_dlpack(producer)
        driver.cupy.cuda.get_current_stream().synchronize()  # CuPy has made it wait for the producer's work
        strides = tuple(s // array.itemsize for s in array.strides)
        return Ref(int(array.data.ptr), 0, tuple(array.shape), strides, array.dtype.name), array


def itemsize(dtype: str) -> int:
    """Return the bytes of an element; exported arrays may be complex."""
    return {"complex64": 8, "complex128": 16}.get(dtype) or ITEMSIZE[dtype]
