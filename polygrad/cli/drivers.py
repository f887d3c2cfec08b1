"""List every installed driver, whether it can be loaded and has devices, and if not, why; with -v try each device.

Here: the listing.
Not here: finding and loading (`polygrad.driver.loader`), the processes in which that is done (`probing.py`).

Exit code: 1 if a driver is broken, incompatible or duplicate, else 0: absent hardware and blocked drivers are no fault.
"""

import argparse
import json
import sys
import textwrap

from polygrad.cli.probing import Tried, add_timeout, faulty, try_drivers


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Take ``--json`` and ``--timeout``."""
    parser.add_argument("--json", action="store_true", help="print the records as JSON, tracebacks included")
    add_timeout(parser)


def run(arguments: argparse.Namespace) -> int:
    """Try each driver in a process of its own, print the records."""
    tried = try_drivers(arguments.timeout, "run" if arguments.verbose else "count")
    if arguments.json:
        sys.stdout.write(json.dumps([t.record._asdict() for t in tried], indent=2) + "\n")
    else:
        sys.stdout.write(_table(tried, verbose=arguments.verbose))
    return 1 if faulty(tried) else 0


def _table(tried: list[Tried], *, verbose: bool) -> str:
    if not tried:
        return "No distribution advertises a driver (entry-point group polygrad.drivers).\n"
    names, statuses = (max(len(t.record[field]) for t in tried) for field in (0, 3))
    lines = []
    for record, devices in tried:
        described = f"{record.distribution} {record.version}".strip()
        if record.summary:
            described += f": {record.summary}"
        lines.append(f"{record.name:{names}}  {record.status:{statuses}}  {described}")
        if record.reason:
            lines.append(textwrap.indent(record.reason, " " * (names + 2)))
        if record.traceback and verbose:
            lines.append(textwrap.indent(record.traceback.rstrip(), " " * (names + 4)))
        for device in devices if verbose else ():
            if device["fault"] != record.reason or not device["fault"]:
                hardware = f"{device['name']} {device['hardware']}".strip()
                lines.append(f"{'':{names}}  {hardware}: {device['fault'] or 'works'}")
    return "\n".join(lines) + "\n"
