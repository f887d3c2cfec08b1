"""List every device that can be opened, and why the other drivers have none.

Here: the listing.
Not here: how devices are opened (`polygrad.driver.binding`).

Exit code: 0 if there is a device, else 1.
"""

import argparse
import sys

from polygrad.driver.binding import list_devices, open_device
from polygrad.driver.device import Device
from polygrad.driver.loader import REGISTRY, Registry
from polygrad.errors import PolygradError

GIB = 1 << 30


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Take no more than the common arguments."""
    parser.set_defaults(registry=REGISTRY)


def run(arguments: argparse.Namespace) -> int:
    """Print the devices."""
    registry: Registry = arguments.registry
    opened, refused = [], []
    for name in list_devices(registry):
        try:
            opened.append(open_device(registry, name))
        except PolygradError as error:
            refused.append(f"{name}: {error}")
    width = max((len(d.name) for d in opened), default=0)
    for device in opened:
        sys.stdout.write(f"{device.name:{width}}  {_line(device)}\n")
        if arguments.verbose:
            sys.stdout.writelines(f"{'':{width}}  {line}\n" for line in _details(device))
    known = {d.info.driver for d in opened} | {r.partition(":")[0] for r in refused}
    refused += [f"{r.name}: {r.reason or r.status}" for r in registry.records() if r.name not in known]
    if not opened:
        sys.stdout.write("There is no device; `python -m polygrad doctor` says more.\n")
    if refused:
        sys.stdout.write("\nNot usable:\n")
        sys.stdout.writelines(f"  {line}\n" for line in refused)
    return 0 if opened else 1


def _line(device: Device) -> str:
    memory = device.memory_info()
    free = f"{memory.free / GIB:.1f} of {memory.total / GIB:.1f} GiB free" if memory else ""
    return "; ".join(part for part in (device.info.name, device.info.version, free) if part)


def _details(device: Device) -> list[str]:
    info = device.info
    facts = {
        "vendor": info.vendor,
        "dtypes": ", ".join(sorted(info.dtypes)),
        "ops": ", ".join(sorted(info.ops)) or "none beside write and read",
        "limits": ", ".join(f"{k} {v}" for k, v in vars(info.limits).items()),
        "features": ", ".join(f"{k} {v}" for k, v in vars(info.features).items()),
        **info.extra,
    }
    return [f"{key}: {value}" for key, value in facts.items() if value]
