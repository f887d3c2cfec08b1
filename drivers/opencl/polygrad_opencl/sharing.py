"""OpenCL memory as DLPack capsules: the data pointer is the cl_mem handle, as DLPack says of kDLOpenCL.

Here: `Exported`, which makes the capsule with ctypes.
Not here: imports, which no library offers; host copies, which the core makes.

The layouts are those of dlpack.h (DLManagedTensor, the form that every version of DLPack reads).
"""

import ctypes
from typing import Any

from polygrad.driver import Ref

OPENCL = 4  # kDLOpenCL
_CODES = {"int": 0, "uint": 1, "float": 2, "bfloat": 4, "complex": 5, "bool": 6}


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


class _Managed(ctypes.Structure):
    pass


_Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Managed))
_Managed._fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter))
_Destructor = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_NAME = b"dltensor"

_new = ctypes.pythonapi.PyCapsule_New
_new.restype, _new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, _Destructor)
_valid = ctypes.pythonapi.PyCapsule_IsValid
_valid.restype, _valid.argtypes = ctypes.c_int, (ctypes.c_void_p, ctypes.c_char_p)
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_char_p)

_living: dict[int, Any] = {}  # what capsules refer to, by the address of their record


def _delete(record: Any) -> None:
    _living.pop(ctypes.addressof(record.contents), None)


def _destroy(capsule: int) -> None:
    if _valid(capsule, _NAME):  # nobody has taken it: a consumer renames the capsule and calls the deleter itself
        _living.pop(_pointer(capsule, _NAME), None)


_deleter, _destructor = _Deleter(_delete), _Destructor(_destroy)  # kept: C code calls them


class Exported:
    """A block as DLPack's consumers see it."""

    def __init__(self, ref: Ref, ordinal: int, owner: object) -> None:
        self._ref = ref
        self._ordinal = ordinal
        self._owner = owner

    def __dlpack_device__(self) -> tuple[int, int]:
        return OPENCL, self._ordinal

    def __dlpack__(self, *, stream: Any = None, **_: Any) -> Any:
        if stream is not None:
            raise BufferError("cannot export OpenCL memory to a stream: stream must be None")
        ref = self._ref
        letters = ref.dtype.rstrip("0123456789")
        bits = int(ref.dtype[len(letters) :] or 8)
        extents = (ctypes.c_int64 * max(1, len(ref.shape)))(*ref.shape)
        steps = (ctypes.c_int64 * max(1, len(ref.shape)))(*ref.strides)
        record = _Managed()
        record.tensor = _Tensor(
            ref.handle.int_ptr, _Device(OPENCL, self._ordinal), len(ref.shape), _DType(_CODES[letters], bits, 1),
            ctypes.cast(extents, ctypes.POINTER(ctypes.c_int64)), ctypes.cast(steps, ctypes.POINTER(ctypes.c_int64)),
            ref.offset * (bits // 8),
        )  # fmt: skip
        record.deleter = _deleter
        address = ctypes.addressof(record)
        _living[address] = (record, extents, steps, self._owner)
        return _new(address, _NAME, _destructor)
