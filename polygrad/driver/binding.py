"""Devices by name: what a name means, opening it once, listing all there are.

Here: `open_device` and its kin.
Not here: which drivers exist (`loader.py`), what an open device does (`device.py`).
"""

import dataclasses
import logging
import re
from collections.abc import Mapping

from polygrad.driver import messages
from polygrad.driver.calls import bound_hook
from polygrad.driver.device import Device
from polygrad.driver.examination import package_of
from polygrad.driver.ir import MANDATORY
from polygrad.driver.loader import Registry
from polygrad.driver.records import DriverRecord, Loaded
from polygrad.driver.types import LEAST_INSTRUCTIONS, DeviceInfo, Limits
from polygrad.errors import PolygradError

__all__ = [
    "Device", "count_devices", "examine_drivers", "list_devices", "list_devices_of", "open_device", "parse_device_name",
]  # fmt: skip

AUTO = "auto"
LONGER = f"ops that a device lacks are made of others in one kernel, so take at least {LEAST_INSTRUCTIONS}"
_DEVICE_NAME = re.compile(r"([a-z][a-z0-9_]*)(?::(0|[1-9][0-9]*))?", re.ASCII)
_log = logging.getLogger("polygrad.driver")


def parse_device_name(name: object) -> tuple[str, int]:
    """Return the driver and the ordinal that *name* means; without an ordinal it is 0.

    Raises
    ------
    DeviceError
        If *name* is not a driver's name, or such a name, a colon and a number.

    Examples
    --------
    >>> parse_device_name("acme"), parse_device_name("Acme:2")
    (('acme', 0), ('acme', 2))
    """
    match = _DEVICE_NAME.fullmatch(name.lower()) if isinstance(name, str) else None
    if match is None:
        raise messages.malformed(name)
    return match[1], int(match[2] or 0)


def open_device(registry: Registry, name: str, options: Mapping[str, str] | None = None) -> Device:
    """Return the device *name*, opening it if it is not open yet.

    Parameters
    ----------
    registry : Registry
        Usually `loader.REGISTRY`.
    name : str
        Such as ``"acme:0"``; ``"acme"`` means its first device. ``"auto"`` is the first device that can be opened, of
        the drivers in order of their priority; what it passes over is logged at INFO.
    options : mapping of str to str, optional
        For the driver, when the device is opened.

    Raises
    ------
    DeviceError
        If the name is malformed, the driver has no such device, or it is open with other options.
    DriverError
        If the driver cannot be found, loaded or opened; the subclass says why.
    """
    if isinstance(name, str) and name.lower() == AUTO:
        return _open_best(registry, options)
    driver, ordinal = parse_device_name(name)
    found = registry.devices.get(f"{driver}:{ordinal}")
    if found is None:
        loaded = registry.load(driver)
        with registry.lock:
            found = registry.devices.get(f"{driver}:{ordinal}")
            if found is None:
                return _open(registry, loaded, ordinal, options or {})
    assert isinstance(found, Device)  # noqa: S101  this function alone fills the dict
    found.check_usable()
    if options is not None and dict(options) != found.options:
        raise messages.options_differ(found.name, found.options, dict(options))
    return found


def list_devices(registry: Registry) -> list[str]:
    """Return the names of all devices of all drivers that can be loaded; the records say what became of the others.

    Examples
    --------
    >>> list_devices(Registry(discovering=False))
    []
    """
    found = []
    for driver in registry.names():
        try:
            found += list_devices_of(registry, driver)
        except PolygradError as error:
            _log.debug("%s", error)  # the record says it
    return found


def list_devices_of(registry: Registry, driver: str) -> list[str]:
    """Return the names of all devices of one driver, or raise what keeps it from having one."""
    count = count_devices(registry, registry.load(driver))
    if count is None:  # the driver does not say: opening shows whether there is one
        open_device(registry, driver)
        count = 1
    return [f"{driver}:{ordinal}" for ordinal in range(count)]


def examine_drivers(registry: Registry) -> list[DriverRecord]:
    """Load every driver that can be loaded, look for its devices, and return the records: what `pg.drivers()` gives.

    Examples
    --------
    >>> examine_drivers(Registry(discovering=False))
    []
    """
    list_devices(registry)  # a driver that does not count its devices is opened: it is not ok if it has none
    return registry.records()


def count_devices(registry: Registry, loaded: Loaded) -> int | None:
    """Return how many devices a driver has; None if it does not count: then there is one, if it can be opened."""
    name = loaded.info.name
    with registry.explaining(name, "asked for its devices", package_of(loaded.plugin)):
        found = bound_hook(registry, loaded.plugin, "polygrad_count")(name)
        if found is not None and (type(found) is not int or found < 0):
            raise messages.faulty(name, loaded.source, f"polygrad_count() gave {found!r}", "give the number of devices")
        if found == 0:
            raise registry.unavailable(name, "it found no device")
        return found


def _open(registry: Registry, loaded: Loaded, ordinal: int, options: Mapping[str, str]) -> Device:
    name = loaded.info.name
    count = count_devices(registry, loaded) or 1
    if ordinal >= count:
        raise messages.no_such_ordinal(name, ordinal, count)
    with registry.explaining(name, "opened", package_of(loaded.plugin)):
        info = bound_hook(registry, loaded.plugin, "polygrad_open")(name, ordinal, dict(options))
        if not isinstance(info, DeviceInfo) or (info.driver, info.ordinal) != (name, ordinal):
            given = info.device if isinstance(info, DeviceInfo) else repr(info)
            fault = f"polygrad_open() gave {given} for {name}:{ordinal}"
            raise messages.faulty(name, loaded.source, fault, "give the DeviceInfo of that device")
        if MANDATORY - info.scalar_ops:
            fault = f"{info.device} lacks the scalar ops {', '.join(sorted(MANDATORY - info.scalar_ops))}"
            raise messages.faulty(name, loaded.source, fault, "every driver has the mandatory ones")
        if isinstance(info.limits, Limits) and info.limits.max_instructions < LEAST_INSTRUCTIONS:
            fault = f"{info.device} takes kernels of at most {info.limits.max_instructions} instructions"
            raise messages.faulty(name, loaded.source, fault, LONGER)
        if info.ops is None:
            info = dataclasses.replace(info, ops=frozenset())
    device = Device(registry, loaded.plugin, info, dict(options))
    registry.devices[device.name] = device
    registry.record_success(name)
    return device


def _open_best(registry: Registry, options: Mapping[str, str] | None) -> Device:
    candidates = []
    for name in registry.names():
        try:
            candidates.append(registry.load(name))
        except PolygradError as error:
            _log.info("%s passes over %s: %s", AUTO, name, error)
    for loaded in sorted(candidates, key=lambda d: -d.info.priority):
        try:
            return open_device(registry, loaded.info.name, options)
        except PolygradError as error:
            _log.info("%s passes over %s: %s", AUTO, loaded.info.name, error)
    raise messages.no_device_at_all(registry.names())
