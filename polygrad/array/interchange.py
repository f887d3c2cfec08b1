"""Values in and out: NumPy, DLPack, Python lists, printing.

Here: copies and views of values, and what foreign objects hold; NumPy is the go-between.
Not here: memory and launches (the runtime).
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from polygrad import dtypes
from polygrad.array.config import resolve
from polygrad.errors import DTypeError, ShapeError
from polygrad.graph.node import RECORDING, Node, Pair, apply, parts
from polygrad.ops.elementwise import astype
from polygrad.runtime import sharing, transfer
from polygrad.runtime.devices import state, states
from polygrad.runtime.realize import realize


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
            dtypes.convert(extreme, dtype)  # Python ints do not wrap
    if RECORDING.capture is not None and is_numpy(value):
        RECORDING.capture.refuse_upload()
    native = array.dtype.newbyteorder("=")
    wanted = dtype or dtypes.as_dtype(native)
    if array.dtype.kind == "c" and wanted not in dtypes.COMPLEX and wanted is not dtypes.bool_:
        raise DTypeError(
            f"cannot convert {array.dtype} to {wanted.name}: the imaginary part would be lost; take its .real part"
        )
    array = array.astype(wanted, copy=False)
    if wanted in dtypes.COMPLEX:
        return Pair(*[_upload(part, device) for part in (array.real, array.imag)])
    return _upload(array, device)


def _upload(array: Any, device: str) -> Node:
    """Return a copy of a NumPy array of real numbers on a device."""
    return transfer.upload(device, array.shape, dtypes.as_dtype(array.dtype), as_bytes(array))


def as_bytes(array: Any) -> memoryview:
    """Return the elements of a NumPy array in C order as bytes, without a copy if they lie so."""
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(np.uint8).data if flat.size else memoryview(b"")


def from_bytes(data: memoryview, shape: tuple[int, ...], dtype: dtypes.DType, device: str) -> Node:
    """Return a copy on a device of elements that lie in C order in *data*."""
    if dtype in dtypes.COMPLEX:
        return from_numpy(np.frombuffer(data, dtype).reshape(shape), device, None)
    return transfer.upload(device, shape, dtype, data)


def adopt_numpy(array: Any, device: str) -> Node | None:
    """Return a node on the memory of a NumPy array without a copy; None if the device or the layout do not allow it."""
    if RECORDING.capture is not None:
        RECORDING.capture.refuse_upload()
    dtype = dtypes.as_dtype(array.dtype)
    if not array.flags.c_contiguous or dtype in dtypes.COMPLEX:
        return None
    return transfer.adopt(device, array.shape, dtype, as_bytes(array), array)


def to_numpy(node: Node) -> Any:
    """Return the value as a new NumPy array; the parts of a complex one are put together here."""
    out = np.empty(node.aval.shape, node.aval.dtype)
    if type(node) is Pair:
        realize(parts(node))
        out.real, out.imag = (to_numpy(p) for p in parts(node))
        return out
    transfer.download(node, out.reshape(-1).view(np.uint8).data if out.size else memoryview(bytearray()))
    return out


class _Exported:
    """Keeps a buffer alive while NumPy looks at it."""

    def __init__(self, memory: memoryview, owner: Any, writable: bool) -> None:
        self.owner = owner
        self.memory = memory
        self.bytes = np.frombuffer(memory, np.uint8)
        address = self.bytes.__array_interface__["data"][0]
        self.__array_interface__ = {**self.bytes.__array_interface__, "data": (address, not writable)}


def view_numpy(node: Node, writable: bool = False) -> Any:
    """Return the value as a NumPy array on the device's own memory, which stays alive with it; read-only by default."""
    dtype = node.aval.dtype
    if type(node) is Pair:
        _, offset, steps = sharing.interleave(node)
        memory, owner, _ = transfer.view(parts(node)[0])
    else:
        memory, owner, offset = transfer.view(node)
        steps = node.storage.strides
    if owner is None:
        return np.empty(node.aval.shape, dtype)
    raw = np.asarray(_Exported(memory, owner, writable))
    base = raw[offset * dtype.itemsize :]
    base = base[: base.size // dtype.itemsize * dtype.itemsize].view(dtype)
    strides = tuple(s * dtype.itemsize for s in steps)
    out = np.lib.stride_tricks.as_strided(base, node.aval.shape, strides, writeable=writable)
    if not writable:
        out.flags.writeable = False
    return out


HOST = (1, 0)  # kDLCPU in DLPack's list of devices
_VERSIONED = (1, 0)  # from this version of DLPack on a consumer can be told that memory is read-only
_WRITABLE = 1  # PyBUF_WRITABLE


def dlpack(node: Node, stream: Any, max_version: Any, dl_device: Any, copy: bool | None) -> Any:
    """Return the value as a DLPack capsule: on the memory where it lies, or a copy in the host's if that is asked for.

    A consumer that knows DLPack 1.0 is told that host memory is read-only; an older one gets a copy, unless it forbids
    that with copy=False: then it is trusted not to write.

    Raises
    ------
    BufferError
        If the memory is another device's than the one asked for and a copy is forbidden, if the driver exports none,
        or if DLPack through NumPy has no such dtype.
    """
    here = dlpack_device(node) if dl_device is None or tuple(dl_device) != HOST or transfer.on_host(node) else None
    if here is None:  # somebody wants the host to see what lies elsewhere
        if copy is False:
            raise BufferError(
                f"cannot export an array of {node.device} to the host without a copy: its memory lies elsewhere; leave "
                "copy=False out"
            )
        return _copied(node, max_version)
    if dl_device is not None and tuple(dl_device) != here:
        raise BufferError(
            f"cannot export an array of {node.device} to DLPack device {tuple(dl_device)}: it lies on {here}, and only "
            f"the host, {HOST}, can get a copy"
        )
    if here != HOST:
        producer = _producer(node)
        keywords = {"stream": stream} if max_version is None else {"stream": stream, "max_version": max_version}
        return producer.__dlpack__(**keywords) if copy is not True else _producer(copied(node)).__dlpack__(**keywords)
    if stream is not None:
        raise BufferError("cannot export host memory to a stream: streams belong to GPUs; stream must be None")
    told = max_version is not None and tuple(max_version) >= _VERSIONED
    if copy is True or (copy is None and not told):
        return _copied(node, max_version)
    if node.aval.dtype is dtypes.bfloat16:
        raise BufferError("cannot export bfloat16 by DLPack: NumPy has no such dtype; use .astype('float32') first")
    value = view_numpy(node, writable=not told)
    return value.__dlpack__(max_version=max_version if told else None)


def _copied(node: Node, max_version: Any) -> Any:
    """Return a capsule of a copy in host memory."""
    if node.aval.dtype is dtypes.bfloat16:
        raise BufferError("cannot export bfloat16 by DLPack: NumPy has no such dtype; use .astype('float32') first")
    return to_numpy(node).__dlpack__(max_version=max_version)


def copied(node: Node) -> Node:
    """Return a node of the same value in memory of its own."""
    if type(node) is Pair:
        return Pair(*[copied(p) for p in parts(node)])
    return apply(astype, (node,), (node.aval.dtype,))  # a cast to its own dtype is a copy


def _producer(node: Node) -> Any:
    """Return what the driver exports the value's memory by.

    Raises
    ------
    BufferError
        If the driver exports no memory, or none of this dtype.
    """
    found = sharing.export(node)
    if found is None:
        raise BufferError(
            f"the memory of {node.device} cannot be shared by DLPack as {node.aval.dtype.name}: ask for the host "
            "(device='cpu'), or use .numpy()"
        )
    return found


def dlpack_device(node: Node) -> tuple[int, int]:
    """Return the DLPack device of a value's memory.

    Raises
    ------
    BufferError
        If the driver exports no memory.
    """
    if transfer.on_host(node):
        return HOST
    kind, number = _producer(node).__dlpack_device__()
    return int(kind), int(number)


def buffer(node: Node, flags: int) -> memoryview:
    """Return the value for the buffer protocol: read-only, on the device's own memory.

    Raises
    ------
    BufferError
        If the caller wants to write, the memory is not the host's, or the protocol has no such dtype.
    """
    if flags & _WRITABLE:
        raise BufferError("an array's memory is read-only for others: copy it, with .numpy()")
    if not transfer.on_host(node) or node.aval.dtype is dtypes.bfloat16:
        raise BufferError(f"cannot view {node.aval.dtype.name} of {node.device} as a buffer: use .numpy()")
    return memoryview(view_numpy(node))


def to_python(node: Node) -> Any:
    """Return the value as a Python number or nested lists of them."""
    return to_numpy(node).tolist()


def text(node: Node, prefix: str) -> str:
    """Return the elements as text, long arrays with their middle left out."""
    value = to_numpy(node)
    shown = value.astype(np.float32) if value.dtype == dtypes.bfloat16 else value
    return str(np.array2string(shown, separator=", ", prefix=prefix))


def as_numpy(value: Any) -> Any:
    """Return what NumPy makes an array of, without a copy if that can be; ValueError if rows differ in length."""
    return np.asarray(value)


def numpy_from_dlpack(value: Any) -> Any:
    """Return a NumPy array of an object with ``__dlpack__`` in host memory."""
    return np.from_dlpack(value)


def imported(value: Any, device: str | None) -> Node | None:
    """Return a node on the memory of an object with ``__dlpack__`` on a device of ours; None for the host's memory."""
    describe = getattr(value, "__dlpack_device__", None)
    if describe is None or tuple(describe()) == HOST:
        return None
    for name in dict.fromkeys([resolve(device), *[s.name for s in states()]]):
        if not state(name).info.features.host_memory:
            node = sharing.import_(name, value)
            if node is not None:
                return node
    return None


def true_positions(mask: Any) -> Any:
    """Return the positions at which a NumPy array or a bool is true, in C order: an array for each axis, at least one.

    >>> [at.tolist() for at in true_positions(np.asarray([[False, True], [True, False]]))]
    [[0, 1], [1, 0]]
    """
    return np.atleast_1d(mask).nonzero()


def identical(a: Node, b: Node) -> bool:
    """Whether two values are the same bit for bit; any NaN is like any other."""
    x, y = to_numpy(a), to_numpy(b)
    return bool(x.shape == y.shape and x.dtype == y.dtype and np.all((x == y) | ((x != x) & (y != y))))  # noqa: PLR0124


def is_numpy(value: Any) -> bool:
    """Whether *value* is a NumPy array."""
    return isinstance(value, np.ndarray)


def is_numpy_scalar(value: Any) -> bool:
    """Whether *value* is a NumPy scalar, which acts as a Python number."""
    return isinstance(value, np.generic)


def stacked(values: list[Any]) -> Any:
    """Return arrays or numbers of one shape as one NumPy array with a new first axis."""
    return np.stack([np.asarray(value) for value in values])


@contextlib.contextmanager
def seeded_numpy(seed: int) -> Iterator[None]:
    """Have NumPy's global stream of random numbers start from a seed within a block, and go on as before after it."""
    before = np.random.get_state()
    np.random.seed(seed % 2**32)
    try:
        yield
    finally:
        np.random.set_state(before)
