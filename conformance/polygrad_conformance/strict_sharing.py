"""Memory of the strict driver's variant with host memory, shared by DLPack through NumPy.

Here: `export`, `import_`. Not here: who keeps what alive (the core).
"""

import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from polygrad.driver import Ref
from polygrad.driver.ir import DTYPES

if TYPE_CHECKING:
    from polygrad_conformance.strict import StrictDriver

HOST = (1, 0)  # kDLCPU


class _Owned:
    """A block as NumPy sees it; whoever has a part of it has the owner."""

    def __init__(self, block: "np.ndarray[Any, Any]", owner: object) -> None:
        self.block, self.owner = block, owner
        self.__array_interface__ = block.__array_interface__


def export(driver: "StrictDriver", ref: Ref, owner: object) -> Any | None:
    """Return an array of NumPy on the memory of *ref*; None for bfloat16, which NumPy does not export."""
    if ref.dtype == "bfloat16":
        return None
    driver.synchronize()
    dtype = np.dtype(ref.dtype)
    raw = np.asarray(_Owned(driver.block(ref.handle), owner))[ref.offset * dtype.itemsize :]
    whole = raw[: raw.size // dtype.itemsize * dtype.itemsize].view(dtype)
    return np.lib.stride_tricks.as_strided(whole, ref.shape, tuple(s * dtype.itemsize for s in ref.strides))


class _Taken:
    """Keeps foreign memory known to the driver."""

    def __init__(self, driver: "StrictDriver", handle: int) -> None:
        weakref.finalize(self, driver.free, handle)


def import_(driver: "StrictDriver", producer: Any) -> tuple[Ref, object] | None:
    """Return the memory of an object in host memory, and what keeps it alive; None if the driver cannot take it."""
    if tuple(producer.__dlpack_device__()) != HOST:
        return None
    array = np.from_dlpack(producer)
    if array.dtype.name not in DTYPES or not array.size or min(array.strides, default=0) < 0:
        return None
    reach = sum((n - 1) * s for n, s in zip(array.shape, array.strides, strict=True)) + array.itemsize
    first = np.lib.stride_tricks.as_strided(array, (1,), (array.itemsize,))
    handle = driver.enter(np.lib.stride_tricks.as_strided(first.view(np.uint8), (reach,), (1,)))
    strides = tuple(s // array.itemsize for s in array.strides)
    return Ref(handle, 0, array.shape, strides, array.dtype.name), _Taken(driver, handle)
