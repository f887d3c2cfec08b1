"""List every installed driver, whether it can be loaded, and if not, why.

Here: the listing.
Not here: finding and loading (`polygrad.driver.loader`).

Exit code: 1 if a driver is broken, incompatible or duplicate, else 0: absent hardware and blocked drivers are no fault.
"""

import argparse
import json
import sys
import textwrap

from polygrad.driver.binding import examine_drivers
from polygrad.driver.loader import REGISTRY
from polygrad.driver.records import DriverRecord

FAULTS = ("broken", "incompatible", "duplicate")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Take ``--json``."""
    parser.add_argument("--json", action="store_true", help="print the records as JSON, tracebacks included")
    parser.set_defaults(registry=REGISTRY)


def run(arguments: argparse.Namespace) -> int:
    """Load each driver, ask it for its devices, print the records."""
    records = examine_drivers(arguments.registry)
    if arguments.json:
        sys.stdout.write(json.dumps([r._asdict() for r in records], indent=2) + "\n")
    else:
        sys.stdout.write(_table(records, verbose=arguments.verbose))
    return 1 if any(r.status in FAULTS for r in records) else 0


def _table(records: list[DriverRecord], *, verbose: bool) -> str:
    if not records:
        return "No distribution advertises a driver (entry-point group polygrad.drivers).\n"
    names, statuses = max(len(r.name) for r in records), max(len(r.status) for r in records)
    lines = []
    for record in records:
        described = f"{record.distribution} {record.version}".strip()
        if record.summary:
            described += f": {record.summary}"
        lines.append(f"{record.name:{names}}  {record.status:{statuses}}  {described}")
        if record.reason:
            lines.append(textwrap.indent(record.reason, " " * (names + 2)))
        if record.traceback and verbose:
            lines.append(textwrap.indent(record.traceback.rstrip(), " " * (names + 4)))
    return "\n".join(lines) + "\n"
