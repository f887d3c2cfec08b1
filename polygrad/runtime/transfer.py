"""Bytes in and out: host to device, device to host, device to device.

Here: copies, always because somebody asked.
Not here: NumPy arrays and DLPack, which the array layer turns into memoryviews.
"""

from polygrad import shapes
from polygrad.driver.types import Ref
from polygrad.errors import DTypeError
from polygrad.graph.node import RECORDING, Node, apply
from polygrad.ops.creation import buffer as buffer_op
from polygrad.ops.elementwise import astype
from polygrad.runtime.devices import State, check_alive, state
from polygrad.runtime.memory import Buffer, Storage
from polygrad.runtime.realize import realize


def leaf(device: str, shape: shapes.Shape, dtype: object, storage: Storage) -> Node:
    """Return a realized node."""
    from polygrad.graph.node import spec_of  # noqa: PLC0415  beside its one use

    node = Node(spec_of(buffer_op, (shape, dtype), ()), (), device)
    node.storage = storage
    return node


def check_dtype(found: State, dtype: object) -> None:
    """Raise DTypeError if the device cannot hold *dtype*."""
    name = str(getattr(dtype, "name", dtype))
    if name not in found.info.dtypes:
        raise DTypeError(
            f"{found.name} has no {name}; it has {', '.join(sorted(found.info.dtypes))}: pass another dtype"
        )


def upload(device: str, shape: shapes.Shape, dtype: object, data: memoryview) -> Node:
    """Return a realized node with the content of *data*, contiguous bytes, which is copied before this returns."""
    found = state(device)
    check_dtype(found, dtype)
    strides = shapes.strides(shape)
    if not shapes.size(shape):
        return leaf(found.name, shape, dtype, Storage(None, 0, strides, True))
    block = found.pool.allocate(data.nbytes)
    ref = Ref(block.handle, 0, shape, strides, str(getattr(dtype, "name", dtype)))
    with found.lock:
        found.device.launch_op("write", (ref,), (), {"data": data})
    return leaf(found.name, shape, dtype, Storage(block, 0, strides, True))


def adopt(device: str, shape: shapes.Shape, dtype: object, memory: memoryview, owner: object) -> Node | None:
    """Return a realized node on foreign host memory without a copy; None if the device cannot."""
    found = state(device)
    check_dtype(found, dtype)
    if not found.info.features.host_memory or not memory.nbytes:
        return None
    handle = found.device.adopt(memory)
    if handle is None:
        return None
    strides = shapes.strides(shape)
    return leaf(found.name, shape, dtype, Storage(Buffer(found.pool, handle, memory.nbytes, owner), 0, strides, True))


def contiguous(node: Node) -> Node:
    """Return a realized node of the same value whose memory is contiguous."""
    realize([node])
    if node.storage.contiguous:
        return node
    before, RECORDING.enabled = RECORDING.enabled, False
    try:
        copy = apply(astype, (node,), (node.dtype,))  # a cast to its own dtype is a copy
    finally:
        RECORDING.enabled = before
    realize([copy])
    return copy


def download(node: Node, into: memoryview) -> None:
    """Copy the value of *node* into *into*, contiguous writable bytes; wait for it, and raise what launches met."""
    if RECORDING.capture is not None:
        RECORDING.capture.refuse_read()
    source = contiguous(node)
    assert node.device is not None  # noqa: S101  arrays always have a device
    found = state(node.device)
    with found.lock:
        if source.aval.size:
            storage = source.storage
            check_alive(found, storage)
            ref = Ref(storage.buffer.handle, storage.offset, source.aval.shape, storage.strides, source.dtype.name)
            found.device.launch_op("read", (), (ref,), {"into": into})
        found.check(idle=source.aval.size > 0)


def on_host(node: Node) -> bool:
    """Whether the memory of *node* can be looked at without a copy."""
    assert node.device is not None  # noqa: S101  arrays always have a device
    return state(node.device).info.features.host_memory


def view(node: Node) -> tuple[memoryview, Buffer | None, int]:
    """Return host memory with the value of *node*, what keeps it alive, and the offset of the value in elements."""
    if RECORDING.capture is not None:
        RECORDING.capture.refuse_read()
    realize([node])
    assert node.device is not None  # noqa: S101  arrays always have a device
    found = state(node.device)
    with found.lock:
        found.check()
        storage = node.storage
        if storage.buffer is None:
            return memoryview(b""), None, 0
        check_alive(found, storage)
        memory = found.device.view(storage.buffer.handle, storage.buffer.nbytes)
    assert memory is not None  # noqa: S101  the device declares host memory
    return memory, storage.buffer, storage.offset


def copy_between(source: Node, target: Node) -> None:
    """Give *target* the value of *source*, which is on another device."""
    assert target.device is not None  # noqa: S101  a transfer names its device
    data = memoryview(bytearray(source.aval.size * source.aval.dtype.itemsize))
    download(source, data)
    made = upload(target.device, source.aval.shape, source.dtype, data.toreadonly())
    target.storage = made.storage


def synchronize(device: str) -> None:
    """Wait for all launches of a device and raise what they met."""
    found = state(device)
    with found.lock:
        found.device.synchronize()
        found.check(idle=True)
