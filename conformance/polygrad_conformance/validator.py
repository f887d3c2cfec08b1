"""The validator: a wrapper that checks what the core asks of drivers, whatever the driver.

Here: one plugin that watches every call of every device: memory that is used after it was freed, freed twice or never
allocated, references outside of their block, kernels and launches that are not well formed, calls after close.
Not here: what drivers do wrong; the checks of the suite find that.

    validator = Validator()
    REGISTRY.register(validator)      # from now on a fault raises; validator.faults keeps them all
    REGISTRY.unregister(validator)
"""

from collections.abc import Generator, Mapping, Sequence
from typing import Any, NoReturn

from polygrad.driver import ACCELERATED_OPS, DeviceInfo, Kernel, Ref, hookimpl
from polygrad.driver.ir import DTYPES, ITEMSIZE
from polygrad.driver.verify import verify, verify_launch
from polygrad.errors import PolygradError


class CoreFault(AssertionError):
    """The core has asked a driver for something that its contract forbids."""


class Validator:
    """See the module's docstring.

    Attributes
    ----------
    faults : list of str
        What was found, in order.
    calls : int
        How many calls were checked.
    """

    def __init__(self) -> None:
        self.faults: list[str] = []
        self.calls = 0
        # By device and identity of the handle; the handle is kept, so that its identity is not given to another.
        self._blocks: dict[tuple[str, int], tuple[Any, int]] = {}
        self._freed: dict[tuple[str, int], Any] = {}

    def _fault(self, sentence: str) -> NoReturn:
        self.faults.append(sentence)
        raise CoreFault(sentence)

    def _size(self, device: DeviceInfo, handle: Any, doing: str) -> int:
        """Return the bytes of a live block; a block from before the validator came has no size: -1."""
        self.calls += 1
        key = device.device, _identity(handle)
        if key in self._freed:
            self._fault(f"{doing} on {device.device}: the block {handle!r:.60} was freed before")
        return self._blocks.get(key, (None, -1))[1]

    def _enter(self, device: DeviceInfo, handle: Any, nbytes: int) -> None:
        if handle is not None:
            key = device.device, _identity(handle)
            self._freed.pop(key, None)
            self._blocks[key] = handle, nbytes

    @hookimpl(wrapper=True)
    def polygrad_allocate(self, device: DeviceInfo, nbytes: int) -> Generator[None, Any, Any]:
        """Check the size, note the block."""
        if type(nbytes) is not int or nbytes <= 0:
            self._fault(f"allocating {nbytes!r} bytes on {device.device}: a block has at least 1")
        handle = yield
        self._enter(device, handle, nbytes)
        return handle

    @hookimpl(wrapper=True)
    def polygrad_adopt(self, device: DeviceInfo, memory: memoryview) -> Generator[None, Any, Any]:
        """Note the adopted memory as a block."""
        handle = yield
        self._enter(device, handle, memory.nbytes)
        return handle

    @hookimpl(wrapper=True)
    def polygrad_free(self, device: DeviceInfo, handle: Any) -> Generator[None, Any, Any]:
        """Check that the block is alive."""
        self._size(device, handle, "freeing")
        done = yield
        key = device.device, _identity(handle)
        self._blocks.pop(key, None)
        self._freed[key] = handle
        return done

    @hookimpl(wrapper=True)
    def polygrad_close(self, device: DeviceInfo) -> Generator[None, Any, Any]:
        """Forget the device's blocks: whatever opens next under its name is another device."""
        done = yield
        for blocks in (self._blocks, self._freed):
            for key in [k for k in blocks if k[0] == device.device]:
                del blocks[key]
        return done

    @hookimpl(wrapper=True)
    def polygrad_launch_op(
        self, device: DeviceInfo, op: str, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]
    ) -> Generator[None, Any, Any]:
        """Check the op and every reference."""
        doing = f"running {op}"
        if op not in ("write", "read") and op not in device.ops:
            self._fault(f"{doing} on {device.device}, which does not declare it")
        if op not in ACCELERATED_OPS:
            self._fault(f"{doing} on {device.device}: there is no such op")
        for ref in (*outs, *ins):
            self._reference(device, ref, doing)
        for ref in outs:
            if ref.strides != _contiguous(ref.shape) and 0 not in ref.shape:
                self._fault(f"{doing} on {device.device}: an output of shape {ref.shape} has the strides {ref.strides}")
        if op in ("write", "read"):
            self._transfer(device, op, (outs or ins)[0], attrs)
        return (yield)

    def _reference(self, device: DeviceInfo, ref: Ref, doing: str) -> None:
        size = self._size(device, ref.handle, doing)
        if ref.dtype not in DTYPES or (
            ref.dtype not in device.dtypes and doing not in ("running write", "running read")
        ):
            self._fault(f"{doing} on {device.device}, which has no {ref.dtype}")
        low = high = ref.offset
        for extent, stride in zip(ref.shape, ref.strides, strict=True):
            low += min(stride * (extent - 1), 0)
            high += max(stride * (extent - 1), 0)
        if size >= 0 and 0 not in ref.shape and (low < 0 or (high + 1) * ITEMSIZE[ref.dtype] > size):
            where = f"elements {low} to {high} of {ref.dtype} in a block of {size} bytes"
            self._fault(f"{doing} on {device.device}: it would touch {where}")

    def _transfer(self, device: DeviceInfo, op: str, ref: Ref, attrs: Mapping[str, Any]) -> None:
        memory = attrs.get("data" if op == "write" else "into")
        nbytes = ITEMSIZE[ref.dtype]
        for extent in ref.shape:
            nbytes *= extent
        if not isinstance(memory, memoryview) or not memory.contiguous or memory.nbytes != nbytes:
            self._fault(f"running {op} on {device.device}: it needs a contiguous memoryview of {nbytes} bytes")
        if op == "read" and memory.readonly:
            self._fault(f"running read on {device.device}: it cannot write to its memory")

    @hookimpl(wrapper=True)
    def polygrad_launch_fused(
        self, device: DeviceInfo, kernel: Kernel, buffers: Sequence[Any], ints: tuple[int, ...], scalars: Sequence[Any]
    ) -> Generator[None, Any, Any]:
        """Check the kernel and its launch against the blocks that it is given."""
        sizes = [self._size(device, b, "launching a kernel") for b in buffers]
        try:
            verify(kernel)
            if min(sizes, default=-1) >= 0:
                elements = [n // ITEMSIZE[d] for n, d in zip(sizes, kernel.buffers, strict=True)]
                verify_launch(kernel, elements, ints, scalars)
        except (PolygradError, ValueError) as error:
            self._fault(f"launching a kernel on {device.device}: {error}")
        stored = {_identity(buffers[kernel.views[s.view].buffer]) for s in kernel.stores}
        targets = {s.view for s in kernel.stores}
        loaded = {_identity(buffers[v.buffer]) for k, v in enumerate(kernel.views) if k not in targets}
        if stored & loaded:
            self._fault(f"launching a kernel on {device.device}: it loads from a block that it stores to")
        return (yield)


def _identity(handle: Any) -> int:
    """Return what tells one handle from another: an int is itself, everything else the object that it is."""
    return handle if type(handle) is int else id(handle)


def _contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))
