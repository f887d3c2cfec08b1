"""Memory shared with other libraries without a copy, by DLPack, on whatever device it lies.

Here: `interleave`, `export`, `import_`: what is asked of the driver, and how the parts of a complex value lie.
Not here: host memory as NumPy sees it (the array layer); copies (`transfer.py`).
"""

from typing import Any

from polygrad import dtypes, shapes
from polygrad.driver.types import Ref
from polygrad.graph.functions import F
from polygrad.graph.node import RECORDING, Node, Pair, parts
from polygrad.runtime.devices import check_alive, state
from polygrad.runtime.memory import Buffer, Storage
from polygrad.runtime.realize import realize
from polygrad.runtime.transfer import check_dtype, leaf


def interleave(node: Pair) -> tuple[Buffer | None, int, tuple[int, ...]]:
    """Let the parts of a complex value share one block, as other libraries lay complex numbers out.

    Returns the block, and the offset and the strides of the value in complex elements. From now on the parts are views
    of that block, so what is exported is the value's own memory.
    """
    first, second = parts(node)
    realize([first, second])
    here, there = first.storage, second.storage
    if here.buffer is None:
        return None, 0, shapes.strides(node.aval.shape)
    steps = (*here.strides, here.offset)
    if (
        here.buffer is not there.buffer
        or here.strides != there.strides
        or any(s % 2 for s in steps)
        or (there.offset != here.offset + 1)
    ):
        before, RECORDING.enabled = RECORDING.enabled, False
        try:
            both = F.stack((first, second), axis=-1)
        finally:
            RECORDING.enabled = before
        realize([both])
        strides = tuple(2 * s for s in shapes.strides(node.aval.shape))
        here = first.storage = Storage(both.storage.buffer, 0, strides, False)
        second.storage = Storage(both.storage.buffer, 1, strides, False)
    return here.buffer, here.offset // 2, tuple(s // 2 for s in here.strides)


def export(node: Node) -> Any | None:
    """Return an object with ``__dlpack__`` on the device's own memory of *node*; None if the driver exports none."""
    assert node.device is not None  # noqa: S101  arrays always have a device
    found = state(node.device)
    if type(node) is Pair:
        buffer, offset, strides = interleave(node)
    else:
        realize([node])
        buffer, offset, strides = node.storage.buffer, node.storage.offset, node.storage.strides
    with found.lock:
        found.check()
        block = buffer or found.pool.allocate(1)  # an empty array has no memory of its own
        check_alive(found, Storage(block, offset, strides, False))
        ref = Ref(block.handle, offset, node.aval.shape, strides, node.aval.dtype.name)
        return found.device.export(ref, block)


def import_(device: str, producer: Any) -> Node | None:
    """Return a realized node on the memory of an object with ``__dlpack__``; None if that is not the device's."""
    found = state(device)
    with found.lock:
        made = found.device.import_(producer)
    if made is None:
        return None
    ref, owner = made
    dtype = dtypes.as_dtype(ref.dtype)
    if dtype in dtypes.COMPLEX:  # two views of the same memory
        real = dtypes.part(dtype)
        strides = tuple(2 * s for s in ref.strides)
        halves = [Storage(Buffer(found.pool, ref.handle, 0, owner), 2 * ref.offset + k, strides, False) for k in (0, 1)]
        return Pair(*[leaf(found.name, ref.shape, real, half) for half in halves])
    check_dtype(found, dtype)
    flat = ref.strides == shapes.strides(ref.shape)
    storage = Storage(Buffer(found.pool, ref.handle, 0, owner), ref.offset, ref.strides, flat)
    return leaf(found.name, ref.shape, dtype, storage)
