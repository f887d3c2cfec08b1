"""Values in and out: NumPy, Python lists, printing.

Here: the one module of the array layer that imports numpy.
Not here: memory and launches (the runtime).
"""

from typing import Any

import numpy as np

from polygrad import dtypes
from polygrad.errors import DTypeError, ShapeError
from polygrad.graph.node import Node, convert_scalar
from polygrad.runtime import transfer


def from_numpy(value: Any, device: str, dtype: dtypes.DType | None) -> Node:
    """Return a copy of a NumPy array (or what NumPy makes an array of) on a device."""
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ShapeError(
            f"cannot make an array of {type(value).__name__}: its rows have different lengths ({error})"
        ) from None
    if array.dtype == object or (array.dtype.kind in "SUVMm" and array.dtype != dtypes.bfloat16):
        raise DTypeError(f"cannot make an array of dtype {array.dtype}: polygrad has {', '.join(dtypes.BY_NAME)}")
    if (
        dtype is not None
        and not is_numpy(value)
        and array.size
        and dtypes.KINDS[dtype] == "int"
        and array.dtype.kind in "iu"
    ):
        for extreme in (int(array.min()), int(array.max())):
            convert_scalar(extreme, dtype)  # Python ints do not wrap
    array = array.astype(dtype or dtypes.as_dtype(array.dtype), copy=False)
    return transfer.upload(device, array.shape, dtypes.as_dtype(array.dtype), as_bytes(array))


def as_bytes(array: Any) -> memoryview:
    """Return the elements of a NumPy array in C order as bytes, without a copy if they lie so."""
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(np.uint8).data if flat.size else memoryview(b"")


def adopt_numpy(array: Any, device: str) -> Node | None:
    """Return a node on the memory of a NumPy array without a copy; None if the device or the layout do not allow it."""
    dtype = dtypes.as_dtype(array.dtype)
    if not array.flags.c_contiguous:
        return None
    return transfer.adopt(device, array.shape, dtype, as_bytes(array), array)


def to_numpy(node: Node) -> Any:
    """Return the value as a new NumPy array."""
    out = np.empty(node.aval.shape, node.aval.dtype)
    transfer.download(node, out.reshape(-1).view(np.uint8).data if out.size else memoryview(bytearray()))
    return out


class _Exported:
    """Keeps a buffer alive while NumPy looks at it."""

    def __init__(self, memory: memoryview, owner: Any) -> None:
        self.owner = owner
        self.memory = memory
        self.bytes = np.frombuffer(memory, np.uint8)
        self.__array_interface__ = self.bytes.__array_interface__


def view_numpy(node: Node) -> Any:
    """Return the value as a read-only NumPy array on the device's own memory, which stays alive with it."""
    memory, owner, offset = transfer.view(node)
    dtype = node.aval.dtype
    if owner is None:
        return np.empty(node.aval.shape, dtype)
    raw = np.asarray(_Exported(memory, owner))
    base = raw[offset * dtype.itemsize :]
    base = base[: base.size // dtype.itemsize * dtype.itemsize].view(dtype)
    strides = tuple(s * dtype.itemsize for s in node.storage.strides)
    out = np.lib.stride_tricks.as_strided(base, node.aval.shape, strides, writeable=False)
    out.flags.writeable = False
    return out


def to_python(node: Node) -> Any:
    """Return the value as a Python number or nested lists of them."""
    return to_numpy(node).tolist()


def text(node: Node, prefix: str) -> str:
    """Return the elements as text, long arrays with their middle left out."""
    value = to_numpy(node)
    shown = value.astype(np.float32) if value.dtype == dtypes.bfloat16 else value
    return str(np.array2string(shown, separator=", ", prefix=prefix))


def is_numpy(value: Any) -> bool:
    """Whether *value* is a NumPy array."""
    return isinstance(value, np.ndarray)


def is_numpy_scalar(value: Any) -> bool:
    """Whether *value* is a NumPy scalar, which acts as a Python number."""
    return isinstance(value, np.generic)
