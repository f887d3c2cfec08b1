"""The open devices as the runtime sees them: the bound driver, its pool, its plans, its status word.

Here: `State` and `state(name)`.
Not here: how drivers are found and bound (`polygrad.driver`), what runs.
"""

import itertools
import os
import struct
import threading
from typing import Any

from polygrad.driver.binding import Device, open_device
from polygrad.driver.loader import REGISTRY
from polygrad.driver.notices import Notices
from polygrad.driver.types import Ref
from polygrad.errors import DeviceError, OutOfBounds
from polygrad.graph.asking import on_asking, on_opening
from polygrad.runtime.memory import Buffer, Pool, Storage
from polygrad.schedule.emit import LABEL_SHIFT

_STATUS_BYTES = 16
LAST_TAG = 0x3FFFFFFF  # of launches that are made once; the rest of int32 is reserved for others
SITES = 1024  # checked launches remembered before the status word is looked at
_CLEAR = memoryview(bytes(_STATUS_BYTES))


class State:
    """Everything that the runtime keeps for one device."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.name = device.name
        self.info = device.info
        self.pool = Pool(device)
        self.lock = threading.RLock()  # one realize at a time
        self.plans: dict[Any, Any] = {}
        self.folded: dict[Any, Any] = {}  # by the key of a folded graph: where its nodes stand in a plan; `folding.py`
        self.fused = 0
        self.ops = 0
        self.fallbacks = 0  # calls of library ops that went to the host's device
        self._status: Buffer | None = None
        self._notices: Notices | None = None  # the status word, if the host can look at it without a copy
        self._marked = True  # whether a mark follows every launch that may write there
        self._tags = itertools.count(1)
        self._sites: dict[int, Any] = {}
        self._numbers: dict[Any, int] = {}  # of lines that launched something before
        self._reserved = itertools.count(LAST_TAG + 1)

    def status(self) -> Any:
        """Return the handle of the status word."""
        if self._notices is not None:
            return self._notices.handle
        if self._status is None:
            if self.info.features.notices:
                self._notices = self.device.notices(_STATUS_BYTES)
                if self._notices is not None:
                    return self._notices.handle
            self._status = self.pool.allocate(_STATUS_BYTES)
            self._write_status()
        return self._status.handle

    def _write_status(self) -> None:
        assert self._status is not None  # noqa: S101  callers have made it
        self.device.launch_op("write", (Ref(self._status.handle, 0, (4,), (1,), "int32"),), (), {"data": _CLEAR})

    def tag(self, site: Any) -> int:
        """Return a number for a launch; if the status word shows it, *site* tells what was launched.

        Launches of one line have one number, so that drivers, which see it among the launch's ints, know them again.
        """
        key = tuple(site.items())
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = self._new_number()
        self._sites[number] = site
        self._marked = False
        if len(self._sites) > SITES:  # a loop that never looks at a value must not remember every launch
            self.check()
            self._sites[number] = site
        return number

    def _new_number(self) -> int:
        number = next(self._tags)
        if number > LAST_TAG:
            self._tags = itertools.count(1)
            number = next(self._tags)
        if len(self._numbers) >= SITES:
            self._numbers.clear()
        return number

    def reserve(self) -> int:
        """Return a number for a launch that is made again and again; `expect` tells what it stands for."""
        return next(self._reserved)

    def expect(self, sites: dict[int, Any]) -> None:
        """Say what launches with reserved numbers stand for, before they are made."""
        self._sites.update(sites)
        self._marked = False

    def mark(self) -> None:
        """Mark the place after a launch that may write the status word, so that `check` waits no longer than for it."""
        if self._notices is not None:
            self._notices.mark()
            self._marked = True

    def marked(self) -> None:
        """Hear that there is a mark after the last of many launches that may have found a bad index."""
        self._marked = True

    def check(self, *, idle: bool = False) -> None:
        """Raise OutOfBounds if a launch since the last check has met a bad index; waits for the launches that look.

        If *idle*, the device is known to have done all that was launched.
        """
        if not self._sites:
            return
        raw = self._looked_at(idle)
        if raw is None:
            return
        tag, instruction, index = struct.unpack("<iiq", raw)
        sites, self._sites = self._sites, {}
        if tag:
            if self._notices is None:
                self._write_status()
            else:
                self.device.synchronize()  # launches behind the mark may report the same index once more
                self._notices.memory[:] = _CLEAR
            raise _out_of_bounds(index, *_site(sites.get(tag), instruction))

    def _looked_at(self, idle: bool) -> bytes | None:
        """Return the status word, when the launches that may write it are done; None if there is none."""
        if self._notices is not None:
            if not idle:
                if not self._marked:
                    self.mark()
                self._notices.wait()
            self._marked = True
            return bytes(self._notices.memory)
        if self._status is None:
            return None
        raw = bytearray(_STATUS_BYTES)
        self.device.launch_op(
            "read", (), (Ref(self._status.handle, 0, (4,), (1,), "int32"),), {"into": memoryview(raw)}
        )
        return bytes(raw)


def _out_of_bounds(index: int, op: str, sizes: tuple[int, ...], trace: Any) -> OutOfBounds:
    """Return the error that says which index a kernel has met, and the axis that it does not fit."""
    where = f" at {trace[0]}:{trace[1]}" if trace else ""
    if op == "take a label":
        number = index + LABEL_SHIFT if index < -LABEL_SHIFT // 2 else index
        return OutOfBounds(
            f"cannot {op}{where}: it is {number}, but there are {sizes[0]} classes; it must be in [0, {sizes[0]})"
        )
    guilty = [n for n in sizes if not -n <= index < n] or list(sizes)
    if len(set(guilty)) > 1:
        listed = " or ".join(map(str, guilty))
        return OutOfBounds(f"cannot {op}{where}: index {index} is out of range for an axis of size {listed}")
    size = guilty[0]
    return OutOfBounds(
        f"cannot {op}{where}: index {index} is out of range for an axis of size {size}; it must be in [{-size}, {size})"
    )


def _site(site: Any, instruction: int) -> tuple[str, tuple[int, ...], Any]:
    if site is None:
        return "index", (0,), None
    found = site.get(instruction) or next(iter(site.values()))
    return found  # type: ignore[no-any-return]


_states: dict[str, State] = {}
_lock = threading.RLock()


def state(name: str) -> State:
    """Return the state of an open device, opening it if need be.

    Raises
    ------
    DeviceError, DriverError
        If there is no such device, or it cannot be opened.
    """
    found = _states.get(name)
    if found is not None and found.device is REGISTRY.devices.get(name):
        return found
    device = open_device(REGISTRY, name)
    with _lock:
        found = _states.get(device.name)
        if found is None or found.device is not device:
            if found is not None:
                found.pool.closed = True
                reopened.add(device.name)
            found = _states[device.name] = State(device)
            on_opening()
    return found


on_asking(lambda name, op: op in state(name).info.ops)
reopened: set[str] = set()  # devices that were closed and opened again: arrays of their earlier life may be about


def check_alive(found: State, storage: Storage) -> None:
    """Raise DeviceError if memory belongs to an earlier life of a device, which was closed."""
    if storage.buffer is not None and storage.buffer.pool is not found.pool:
        raise DeviceError(
            f"cannot use an array of {found.name} that is older than the device: it was closed and opened again, "
            "and what was on it is lost; make the array anew"
        )


_held: list[Any] = []  # locks, over a fork
PATIENCE = 5.0  # seconds that a fork waits for what other threads compute


def _before_fork() -> None:
    """Wait until no thread computes: a library that it calls, such as BLAS, holds locks that the child cannot free."""
    _held.extend(found.lock for found in list(_states.values()) if found.lock.acquire(timeout=PATIENCE))


def _after_fork_in_parent() -> None:
    while _held:
        _held.pop().release()


def _after_fork() -> None:
    """Make new locks: a thread that does not exist in the child may have held an old one."""
    global _lock  # noqa: PLW0603  the child's lock
    _lock = threading.RLock()
    _held.clear()
    for found in _states.values():
        found.lock = threading.RLock()
        found.pool.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork)


def states() -> list[State]:
    """Return the states of all open devices."""
    return list(_states.values())


def forget(name: str) -> None:
    """Drop the state of a device that was closed."""
    found = _states.pop(name, None)
    if found is not None:
        found.pool.closed = True
