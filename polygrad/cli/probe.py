"""Try one driver, in a process of its own: load it, open its devices, move bytes, run a kernel.

Here: what runs in the child that `doctor` starts, which may hang or crash without harm.
Not here: the verdict.
"""

import json
import struct
import sys
from typing import Any

from polygrad.driver.binding import count_devices, open_device
from polygrad.driver.device import Device
from polygrad.driver.ir import ITEMSIZE, Instr, Kernel, Store, View
from polygrad.driver.loader import REGISTRY, Registry
from polygrad.driver.types import Ref
from polygrad.errors import PolygradError

MARK = "polygrad-probe:"  # begins the line with the answer: a driver may print lines of its own
FORMATS = {"float32": "f", "int32": "i", "float64": "d", "int64": "q"}  # of struct
VALUES = (1, 2, 3, 4, 5, 6, 7, 8)


def main(driver: str) -> None:
    """Print what became of *driver*, as a line of JSON."""
    sys.stdout.write(f"\n{MARK}{json.dumps(probed(REGISTRY, driver))}\n")
    sys.stdout.flush()


def probed(registry: Registry, driver: str) -> dict[str, Any]:
    """Return the record of *driver* after the attempt, as a dict, with `devices`: for each (name, fault or "")."""
    devices: list[tuple[str, str]] = []
    try:
        count = count_devices(registry, registry.load(driver)) or 1
        for ordinal in range(count):
            devices.append(_tried(registry, f"{driver}:{ordinal}"))
    except PolygradError:
        pass  # the record says why
    return {**registry.record(driver)._asdict(), "devices": devices}


def _tried(registry: Registry, name: str) -> tuple[str, str]:
    try:
        device = open_device(registry, name)
    except PolygradError as error:
        return name, str(error)
    described = f"{name} {device.info.name}"
    try:
        return described, _fault(device)
    except PolygradError as error:
        return described, str(error)


def _fault(device: Device) -> str:
    """Add numbers to themselves on the device, and say what went wrong."""
    dtype = next((d for d in FORMATS if d in device.info.dtypes), None)
    if dtype is None:
        return "it has none of the dtypes " + ", ".join(FORMATS)
    layout = f"{len(VALUES)}{FORMATS[dtype]}"
    nbytes = len(VALUES) * ITEMSIZE[dtype]
    source, target = device.allocate(nbytes), device.allocate(nbytes)
    sent = Ref(source, 0, (len(VALUES),), (1,), dtype)
    device.launch_op("write", (sent,), (), {"data": memoryview(struct.pack(layout, *VALUES)).toreadonly()})
    if _read(device, sent, nbytes) != struct.pack(layout, *VALUES):
        return "bytes that were written do not come back"
    device.prepare(_doubling(dtype))((source, target), (len(VALUES), 0, 0), ())
    got = struct.unpack(layout, _read(device, sent._replace(handle=target), nbytes))
    device.free(source)
    device.free(target)
    wanted = tuple(2 * v for v in VALUES)
    return "" if got == wanted else f"a kernel that doubles {VALUES} gave {got}"


def _read(device: Device, ref: Ref, nbytes: int) -> bytes:
    into = bytearray(nbytes)
    device.launch_op("read", (), (ref,), {"into": memoryview(into)})
    return bytes(into)


def _doubling(dtype: str) -> Kernel:
    views = (View(0, dtype, (1,)), View(1, dtype, (1,)))
    body = (Instr("load", dtype, (), 0), Instr("add", dtype, (0, 0)))
    return Kernel(1, 0, (dtype, dtype), views, (), body, (Store(1, 1),))
