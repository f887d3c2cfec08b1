"""What a DLPack capsule says of its memory.

Here: `Tensor`, `tensor_of`, after dlpack.h's DLManagedTensor, the form that every version of DLPack can write.
Not here: taking the memory over, which marks a capsule as used; a driver's own capsules.
"""

import ctypes
from typing import Any, NamedTuple

CODES = {"int": 0, "uint": 1, "float": 2, "bfloat": 4, "complex": 5, "bool": 6}


class _Device(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int32), ("number", ctypes.c_int32))


class _DType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p), ("device", _Device), ("ndim", ctypes.c_int32), ("dtype", _DType),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )  # fmt: skip


# A prototype of its own, for `ctypes.pythonapi.PyCapsule_GetPointer` is shared by everybody in the process.
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


class Tensor(NamedTuple):
    """A DLPack tensor; *place* is the data pointer and the byte offset in one number."""

    place: int
    device: tuple[int, int]
    code: int
    bits: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def tensor_of(capsule: Any) -> Tensor:
    """Return what an unused capsule says.

    >>> import numpy as np
    >>> tensor_of(np.zeros((2, 3), np.float32)[:, ::2].__dlpack__())[1:]
    ((1, 0), 2, 32, (2, 2), (3, 2))
    """
    found = _Tensor.from_address(_pointer(capsule, b"dltensor"))
    shape = tuple(found.shape[: found.ndim])
    strides = tuple(found.strides[: found.ndim]) if found.strides else _contiguous(shape)
    device, dtype = (found.device.kind, found.device.number), found.dtype
    return Tensor((found.data or 0) + found.byte_offset, device, dtype.code, dtype.bits, shape, strides)


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides = [1]
    for extent in shape[:0:-1]:
        strides.append(strides[-1] * extent)
    return tuple(reversed(strides))
