"""List every device that can be opened, and why the other drivers have none.

Here: the listing.
Not here: how devices are opened (`polygrad.driver.binding`), the processes in which they are (`probing.py`).

Exit code: 0 if there is a device, else 1.
"""

import argparse
import sys
from typing import Any

from polygrad.cli.probing import add_timeout, try_drivers


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Take ``--timeout``."""
    add_timeout(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the devices."""
    opened: list[dict[str, Any]] = []
    refused = []
    for record, devices in try_drivers(arguments.timeout, "open"):
        if record.reason:
            refused.append(f"{record.name}: {record.reason}")
        opened += [device for device in devices if not device["fault"]]
        refused += [f"{d['name']}: {d['fault']}" for d in devices if d["fault"] and d["fault"] != record.reason]
    width = max((len(d["name"]) for d in opened), default=0)
    for device in opened:
        described = "; ".join(part for part in (device["hardware"], device["version"], device["memory"]) if part)
        sys.stdout.write(f"{device['name']:{width}}  {described}\n")
        if arguments.verbose:
            sys.stdout.writelines(f"{'':{width}}  {line}\n" for line in device["details"])
    if not opened:
        sys.stdout.write("There is no device; `python -m polygrad doctor` says more.\n")
    if refused:
        sys.stdout.write("\nNot usable:\n")
        sys.stdout.writelines(f"  {line}\n" for line in refused)
    return 0 if opened else 1
