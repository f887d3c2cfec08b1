"""What the registry keeps: records of drivers, loaded drivers, and what it needs of open devices.

Here: plain data, and the plugin that stands before each driver.
Not here: how they come to be (`loader.py`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

from polygrad.driver.hookspecs import hookimpl
from polygrad.driver.ir import Kernel
from polygrad.driver.types import DeviceInfo, Done, DriverInfo, Handle

Status = Literal["ok", "unavailable", "broken", "incompatible", "blocked", "duplicate", "unloaded"]


class DriverRecord(NamedTuple):
    """What is known of one driver; `reason` is the sentence of its failure, `traceback` what belongs to it."""

    name: str
    distribution: str
    version: str
    status: Status
    reason: str = ""
    traceback: str = ""
    summary: str = ""


class Opened(Protocol):
    """What the registry needs of an open device; `binding.Device` is one."""

    info: DeviceInfo
    synchronize: Callable[[], None]

    def rebind(self) -> None:
        """Take note that plugins came or went."""

    def close(self) -> None:
        """Close the device."""

    def after_fork(self) -> None:
        """Take note that this is now a child process."""

    def launch_prepared(
        self, kernel: Kernel, buffers: Sequence[Handle], ints: tuple[int, ...], scalars: Sequence[Any]
    ) -> Done | None:
        """Launch what is prepared for *kernel*, or return None."""


class PreparedLaunch:
    """The plugin that stands before each driver's `polygrad_launch_fused` and launches what is prepared already.

    It makes a launch through the full hook (while a wrapper is registered) run the same callable as a bound one,
    instead of compiling anew.
    """

    def __init__(self, loaded: Mapping[str, "Loaded"], devices: Mapping[str, Opened], driver: Any) -> None:
        self.loaded, self.devices, self.driver = loaded, devices, driver

    @hookimpl
    def polygrad_launch_fused(
        self,
        device: DeviceInfo,
        kernel: Kernel,
        buffers: Sequence[Handle],
        ints: tuple[int, ...],
        scalars: Sequence[Any],
    ) -> Done | None:
        """Launch *kernel* on an open device of this driver."""
        loaded, opened = self.loaded.get(device.driver), self.devices.get(device.device)
        if loaded is None or loaded.plugin is not self.driver or opened is None:
            return None
        return opened.launch_prepared(kernel, buffers, ints, scalars)


@dataclass
class Loaded:
    """A registered driver: its own description, its plugin, the plugin before it, and where it came from."""

    info: DriverInfo
    plugin: Any
    shortcut: PreparedLaunch
    source: str


class Outcome(NamedTuple):
    """How the last attempt to use a driver ended."""

    status: Status
    reason: str = ""
    traceback: str = ""
