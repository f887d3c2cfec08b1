"""Try one driver, in a process of its own: load it, open its devices, move bytes, run a kernel.

Here: what runs in the child that `probing.py` starts, which may hang or crash without harm.
Not here: the verdict.
"""

import contextlib
import faulthandler
import json
import signal
import struct
import sys
from typing import Any, Literal

from polygrad.driver.binding import list_devices_of, open_device
from polygrad.driver.device import Device
from polygrad.driver.ir import ITEMSIZE, Instr, Kernel, Store, View
from polygrad.driver.loader import REGISTRY, Registry
from polygrad.driver.types import Ref
from polygrad.errors import PolygradError

MARK = "polygrad-probe:"  # begins the line with the answer: a driver may print lines of its own
FORMATS = {"float32": "f", "int32": "i", "float64": "d", "int64": "q"}  # of struct
VALUES = (1, 2, 3, 4, 5, 6, 7, 8)
GIB = 1 << 30
QUESTION = signal.SIGUSR1  # answered on stderr with the stack, whatever the driver is doing

Depth = Literal["count", "open", "run"]  # find the devices; and open each; and run a kernel on each


def main(driver: str, depth: Depth) -> None:
    """Print what became of *driver*, as a line of JSON; when the parent gives up it asks where this hangs."""
    faulthandler.register(QUESTION, all_threads=False)
    sys.stdout.write(f"\n{MARK}{json.dumps(probed(REGISTRY, driver, depth))}\n")
    sys.stdout.flush()


def probed(registry: Registry, driver: str, depth: Depth) -> dict[str, Any]:
    """Return the record of *driver* after the attempt, as a dict, and a dict for each device."""
    devices: list[dict[str, Any]] = []
    with contextlib.suppress(PolygradError):  # the record says why
        devices += [_tried(registry, name, depth) for name in list_devices_of(registry, driver)]
    return {"record": registry.record(driver)._asdict(), "devices": devices}


def _tried(registry: Registry, name: str, depth: Depth) -> dict[str, Any]:
    """Return what is known of a device: its name, its hardware, lines about it, its fault or an empty text."""
    known: dict[str, Any] = {"name": name, "hardware": "", "memory": "", "version": "", "details": [], "fault": ""}
    if depth == "count":
        return known
    try:
        device = open_device(registry, name)
        known |= {"hardware": device.info.name, "version": device.info.version, "details": _details(device)}
        memory = device.memory_info()
        known["memory"] = f"{memory.free / GIB:.1f} of {memory.total / GIB:.1f} GiB free" if memory else ""
        known["fault"] = _fault(device) if depth == "run" else ""
    except PolygradError as error:
        known["fault"] = str(error)
    return known


def _details(device: Device) -> list[str]:
    info = device.info
    facts = {
        "vendor": info.vendor,
        "dtypes": ", ".join(sorted(info.dtypes)),
        "ops": ", ".join(sorted(info.ops or ())) or "none beside write and read",
        "limits": ", ".join(f"{k} {v}" for k, v in vars(info.limits).items()),
        "features": ", ".join(f"{k} {v}" for k, v in vars(info.features).items()),
        **info.extra,
    }
    return [f"{key}: {value}" for key, value in facts.items() if value]


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
