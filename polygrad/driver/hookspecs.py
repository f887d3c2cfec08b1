"""The hooks of the waist, for pluggy: what a driver implements and what a wrapper may intercept.

Here: the specifications, each with its contract.
Not here: how drivers are found (`loader.py`) or bound (`binding.py`).

A driver is a plugin that implements the mandatory hooks; `DriverBase` does it for authors who prefer a class. No
parameter has a default (pluggy would drop it), and a hook that is done returns DONE (a `firstresult` hook reads None as
"not mine"). Every hook but the first gets `device`, the DeviceInfo that `polygrad_open` returned; a driver answers None
for a device of another driver. Versions within one major may add optional hooks and arguments; an implementation takes
only the arguments that it names.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pluggy

from polygrad.driver.bundles import Capturing
from polygrad.driver.collectives import Collectives
from polygrad.driver.ir import Kernel
from polygrad.driver.notices import Notices
from polygrad.driver.requirements import Requirements
from polygrad.driver.types import DeviceInfo, Done, DriverInfo, Handle, MemoryInfo, Prepared, Ref

PROJECT = "polygrad"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def polygrad_drivers() -> Iterable[DriverInfo]:  # type: ignore[empty-body]
    """Describe the drivers of this plugin. Cheap and pure: no vendor library is imported, no device touched."""


@hookspec(firstresult=True)
def polygrad_count(driver: str) -> int | None:
    """Return how many devices there are. Optional; without it there is one."""


@hookspec(firstresult=True)
def polygrad_open(driver: str, ordinal: int, options: Mapping[str, str]) -> DeviceInfo | None:
    """Open device number *ordinal* and describe it.

    Raises DriverUnavailable if the vendor's library or the hardware is absent, saying what to install.
    """


@hookspec(firstresult=True)
def polygrad_close(device: DeviceInfo) -> Done | None:
    """Give everything back; no other hook is called for this device afterwards. Optional."""


@hookspec(firstresult=True)
def polygrad_allocate(device: DeviceInfo, nbytes: int) -> Handle | None:
    """Return a block of *nbytes* > 0 bytes, aligned to `limits.alignment`, contents unspecified.

    OutOfMemory if there is no room.
    """


@hookspec(firstresult=True)
def polygrad_free(device: DeviceInfo, handle: Handle) -> Done | None:
    """Give a block back, once. Launches already made may still use it: the driver waits for them if it must."""


@hookspec(firstresult=True)
def polygrad_launch_op(
    device: DeviceInfo, op: str, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]
) -> Done | None:
    """Run an op of `types.ACCELERATED_OPS` that the device declares; "write" and "read" are mandatory.

    Launches on a device take effect in the order in which they are made.
    """


@hookspec(firstresult=True)
def polygrad_launch_fused(
    device: DeviceInfo, kernel: Kernel, buffers: Sequence[Handle], ints: tuple[int, ...], scalars: Sequence[Any]
) -> Done | None:
    """Run a verified fused kernel; its launch arguments are described in `ir.py`."""


@hookspec(firstresult=True)
def polygrad_prepare_fused(device: DeviceInfo, kernel: Kernel) -> Prepared | None:
    """Compile *kernel* and return a callable (buffers, ints, scalars) for the hot path. Optional: without it
    `polygrad_launch_fused` is called each time. Programs compiled here or later are announced with `count_build`. With
    `features.many` it is a `PreparedMany`.
    """


@hookspec(firstresult=True)
def polygrad_source(device: DeviceInfo, kernel: Kernel, ints: tuple[int, ...]) -> str | None:
    """Return the source text that a launch of *kernel* with these ints compiles, for people to read. Optional."""


@hookspec(firstresult=True)
def polygrad_synchronize(device: DeviceInfo) -> Done | None:
    """Wait until all launches are done; raise what they met. Optional for a device whose launches are synchronous."""


@hookspec(firstresult=True)
def polygrad_memory_info(device: DeviceInfo) -> MemoryInfo | None:
    """Return what the vendor's library says of the memory. Optional."""


@hookspec(firstresult=True)
def polygrad_view(device: DeviceInfo, handle: Handle, nbytes: int) -> memoryview | None:
    """Return the block as host memory without a copy, all launches done. Needed if `features.host_memory`."""


@hookspec(firstresult=True)
def polygrad_adopt(device: DeviceInfo, memory: memoryview) -> Handle | None:
    """Return a handle on foreign host memory, kept alive by the core, without a copy, if `features.host_memory`."""


@hookspec(firstresult=True)
def polygrad_export(device: DeviceInfo, ref: Ref, owner: object) -> Any | None:
    """Return an object with ``__dlpack__`` and ``__dlpack_device__`` that shares the memory of *ref*. Optional.

    All launches before are done, or the consumer's stream waits for them. The object, and whatever is made of it, keeps
    *owner* alive. *ref* may be of dtype complex64 or complex128. Answer None if the dtype cannot be exported.
    """


@hookspec(firstresult=True)
def polygrad_import(device: DeviceInfo, producer: Any) -> tuple[Ref, object] | None:
    """Return the memory of a foreign object with ``__dlpack__``, without a copy, and what keeps it alive. Optional.

    Answer None if the memory is not this device's. Launches made from now on wait for the producer's work.
    """


@hookspec(firstresult=True)
def polygrad_collectives(device: DeviceInfo) -> Collectives | None:
    """Return what moves values between this device and those of other processes, for `polygrad.distributed`. Optional.

    Without it values travel through host memory. Answer None if the library for it is not installed.
    """


@hookspec(firstresult=True)
def polygrad_capture(device: DeviceInfo) -> Capturing | None:
    """Return what writes launches down, to be made again at once, if `features.capture`: see `bundles.py`. Optional."""


@hookspec(firstresult=True)
def polygrad_notices(device: DeviceInfo, nbytes: int) -> Notices | None:
    """Return *nbytes* that launches write and the host reads without a copy, if `features.notices`: see `notices.py`.

    Optional; other bytes each time that it is asked for. Without it the status word is memory as any other, and looking
    at it waits for everything.
    """


@hookspec(firstresult=True)
def polygrad_requirements(device: DeviceInfo) -> Requirements | None:
    """Return what the conformance suite should know of this device: see `requirements.py`. Optional."""
