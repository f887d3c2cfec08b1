"""DriverBase: a driver as a class, one instance an open device, turned into a plugin.

Here: the mapping from methods to hooks, and what can be derived from them (declared ops = op methods present).
Not here: anything about a device.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from polygrad.driver.bundles import Capturing
from polygrad.driver.collectives import Collectives
from polygrad.driver.hookspecs import hookimpl
from polygrad.driver.ir import Kernel
from polygrad.driver.notices import Notices
from polygrad.driver.requirements import Requirements
from polygrad.driver.types import DONE, DeviceInfo, Done, DriverInfo, Handle, MemoryInfo, Prepared, Ref
from polygrad.errors import DeviceError, UnsupportedOp


class DriverBase:
    """Subclass it, set `info`, and write `open`, `allocate`, `free`, `op_write`, `op_read` and `prepare_fused`.

    Every method named ``op_<name>(self, outs, ins, attrs)`` is declared as an op of the device, without a list to
    maintain. `plugin()` of the subclass gives the object that the entry point names.

    Examples
    --------
    >>> class Toy(DriverBase):
    ...     info = DriverInfo("toy", summary="host memory, nothing else")
    ...     def open(self, ordinal, options):
    ...         return DeviceInfo("toy", ordinal, "a toy", dtypes=frozenset({"float32"}))
    >>> Toy.plugin().polygrad_open("toy", 0, {}).device
    'toy:0'
    """

    info: ClassVar[DriverInfo]

    @classmethod
    def count(cls) -> int:
        """Return how many devices there are; importing the vendor's library here is fine."""
        return 1

    def open(self, ordinal: int, options: Mapping[str, str]) -> DeviceInfo:
        """Open the device and describe it; `ops` may stay None, and an empty set declares none."""
        raise NotImplementedError

    def close(self) -> None:
        """Give back what `open` took."""

    def allocate(self, nbytes: int) -> Handle:
        """Return a block of nbytes > 0 bytes."""
        raise NotImplementedError

    def free(self, handle: Handle) -> None:
        """Give a block back."""
        raise NotImplementedError

    def op_write(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        """Copy ``attrs["data"]`` into ``outs[0]``."""
        raise NotImplementedError

    def op_read(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        """Copy ``ins[0]`` into ``attrs["into"]``, after all launches before."""
        raise NotImplementedError

    def prepare_fused(self, kernel: Kernel) -> Prepared:
        """Compile *kernel*; the callable that comes back launches it with (buffers, ints, scalars)."""
        raise NotImplementedError

    def source_text(self, kernel: Kernel, ints: tuple[int, ...]) -> str | None:
        """Return the source of a launch, where there is one: reports show it beside a kernel that went wrong."""
        return None

    def synchronize(self) -> None:
        """Wait for all launches."""

    def memory_info(self) -> MemoryInfo | None:
        """Return the vendor's account of the memory, if there is one."""
        return None

    def view(self, handle: Handle, nbytes: int) -> memoryview | None:
        """Return the block as host memory, if `features.host_memory`."""
        return None

    def adopt(self, memory: memoryview) -> Handle | None:
        """Return a handle on foreign host memory, if `features.host_memory`."""
        return None

    def export(self, ref: Ref, owner: object) -> Any | None:
        """Return an object with ``__dlpack__`` on the memory of *ref*, if the device's memory can be shared so."""
        return None

    def import_(self, producer: Any) -> tuple[Ref, object] | None:
        """Return the memory of an object with ``__dlpack__`` and what keeps it alive, if it is this device's memory."""
        return None

    def collectives(self) -> Collectives | None:
        """Return what moves values between devices of several processes, if there is anything: see `collectives.py`."""
        return None

    def capture(self) -> Capturing | None:
        """Return what writes launches down and makes them again at once, if `features.capture`: see `bundles.py`."""
        return None

    def notices(self, nbytes: int) -> Notices | None:
        """Return memory that launches write and the host reads, if `features.notices`: see `notices.py`."""
        return None

    def requirements(self) -> Requirements | None:
        """Return what the conformance suite should know of this device, if anything."""
        return None

    @classmethod
    def ops(cls) -> dict[str, str]:
        """Return op name to method name, for every op method but write and read."""
        names = (n for n in dir(cls) if n.startswith("op_"))
        return {n[3:]: n for n in names if n not in ("op_write", "op_read")}

    @classmethod
    def plugin(cls) -> "Plugin":
        """Return the pluggy plugin of this driver."""
        return Plugin(cls)


class Plugin:
    """The hooks of one DriverBase subclass: open devices by ordinal, every call handed to its instance."""

    def __init__(self, driver: type[DriverBase]) -> None:
        self.driver = driver
        self.devices: dict[int, DriverBase] = {}

    def __repr__(self) -> str:
        return f"<polygrad driver {self.driver.info.name}>"

    def _of(self, device: DeviceInfo) -> DriverBase | None:
        if device.driver != self.driver.info.name:
            return None
        found = self.devices.get(device.ordinal)
        if found is None:
            raise DeviceError(f"device {device.device} is closed; open it again with pg.set_device({device.device!r})")
        return found

    @hookimpl
    def polygrad_drivers(self) -> Iterable[DriverInfo]:
        return [self.driver.info]

    @hookimpl
    def polygrad_count(self, driver: str) -> int | None:
        # A driver that does not count answers None, so that nobody takes DriverBase's 1 for a device that was seen.
        counts = getattr(self.driver.count, "__func__", None) is not getattr(DriverBase.count, "__func__", None)
        return self.driver.count() if counts and driver == self.driver.info.name else None

    @hookimpl
    def polygrad_open(self, driver: str, ordinal: int, options: Mapping[str, str]) -> DeviceInfo | None:
        if driver != self.driver.info.name:
            return None
        instance = self.driver()
        info = instance.open(ordinal, options)
        self.devices[ordinal] = instance
        derived = isinstance(info, DeviceInfo) and info.ops is None  # whoever opens complains of anything else
        return dataclasses.replace(info, ops=frozenset(self.driver.ops())) if derived else info

    @hookimpl
    def polygrad_close(self, device: DeviceInfo) -> Done | None:
        instance = self._of(device)
        if instance is None:
            return None
        instance.close()
        del self.devices[device.ordinal]
        return DONE

    @hookimpl
    def polygrad_allocate(self, device: DeviceInfo, nbytes: int) -> Handle | None:
        instance = self._of(device)
        return None if instance is None else instance.allocate(nbytes)

    @hookimpl
    def polygrad_free(self, device: DeviceInfo, handle: Handle) -> Done | None:
        instance = self._of(device)
        if instance is None:
            return None
        instance.free(handle)
        return DONE

    @hookimpl
    def polygrad_launch_op(
        self, device: DeviceInfo, op: str, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]
    ) -> Done | None:
        instance = self._of(device)
        if instance is None:
            return None
        method = getattr(instance, f"op_{op}", None)
        if method is None:
            raise UnsupportedOp(
                f"{device.device} has no op {op!r}; it declares {', '.join(sorted(device.ops)) or 'none'}"
            )
        method(outs, ins, attrs)
        return DONE

    @hookimpl
    def polygrad_launch_fused(
        self,
        device: DeviceInfo,
        kernel: Kernel,
        buffers: Sequence[Handle],
        ints: tuple[int, ...],
        scalars: Sequence[Any],
    ) -> Done | None:
        instance = self._of(device)
        if instance is None:
            return None
        instance.prepare_fused(kernel)(buffers, ints, scalars)
        return DONE

    @hookimpl
    def polygrad_prepare_fused(self, device: DeviceInfo, kernel: Kernel) -> Prepared | None:
        instance = self._of(device)
        return None if instance is None else instance.prepare_fused(kernel)

    @hookimpl
    def polygrad_source(self, device: DeviceInfo, kernel: Kernel, ints: tuple[int, ...]) -> str | None:
        instance = self._of(device)
        return None if instance is None else instance.source_text(kernel, ints)

    @hookimpl
    def polygrad_synchronize(self, device: DeviceInfo) -> Done | None:
        instance = self._of(device)
        if instance is None:
            return None
        instance.synchronize()
        return DONE

    @hookimpl
    def polygrad_memory_info(self, device: DeviceInfo) -> MemoryInfo | None:
        instance = self._of(device)
        return None if instance is None else instance.memory_info()

    @hookimpl
    def polygrad_view(self, device: DeviceInfo, handle: Handle, nbytes: int) -> memoryview | None:
        instance = self._of(device)
        return None if instance is None else instance.view(handle, nbytes)

    @hookimpl
    def polygrad_adopt(self, device: DeviceInfo, memory: memoryview) -> Handle | None:
        instance = self._of(device)
        return None if instance is None else instance.adopt(memory)

    @hookimpl
    def polygrad_export(self, device: DeviceInfo, ref: Ref, owner: object) -> Any | None:
        instance = self._of(device)
        return None if instance is None else instance.export(ref, owner)

    @hookimpl
    def polygrad_import(self, device: DeviceInfo, producer: Any) -> tuple[Ref, object] | None:
        instance = self._of(device)
        return None if instance is None else instance.import_(producer)

    @hookimpl
    def polygrad_collectives(self, device: DeviceInfo) -> Collectives | None:
        instance = self._of(device)
        return None if instance is None else instance.collectives()

    @hookimpl
    def polygrad_capture(self, device: DeviceInfo) -> Capturing | None:
        instance = self._of(device)
        return None if instance is None else instance.capture()

    @hookimpl
    def polygrad_notices(self, device: DeviceInfo, nbytes: int) -> Notices | None:
        instance = self._of(device)
        return None if instance is None else instance.notices(nbytes)

    @hookimpl
    def polygrad_requirements(self, device: DeviceInfo) -> Requirements | None:
        instance = self._of(device)
        return None if instance is None else instance.requirements()
