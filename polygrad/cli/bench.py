"""Measure polygrad's devices side by side with the other array libraries that are installed.

Here: the command line of the benchmark.
Not here: the benchmark (`polygrad.bench`).

Exit code: 0, 1 if anything failed or computed something else, 2 for a name that stands for nothing, 130 after Ctrl-C,
which prints what was measured until then.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence

from polygrad.array.config import get_device
from polygrad.bench import picture, records, running, selection, tables
from polygrad.bench.peers import PEERS, Place, place_of
from polygrad.bench.rounds import Pace
from polygrad.bench.work import MATHS, SIZES, Work, table
from polygrad.cli.probing import add_timeout, try_drivers
from polygrad.commands import INTERRUPTED
from polygrad.driver.binding import AUTO, list_devices_of, open_device, parse_device_name
from polygrad.driver.loader import REGISTRY
from polygrad.errors import DeviceError

ROUNDS = {"tiny": 1, "small": 3, "paper": 5}
SECONDS = {"tiny": 0.005, "small": 0.1, "paper": 0.25}
LIMIT = 180.0
WRONG = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Take devices, peers, work, and where results go."""
    who, what, where = (parser.add_argument_group(name) for name in ("who", "what", "results"))
    who.add_argument("--device", action="append", metavar="DEVICE", help="a device, such as cpu:0; may be repeated")
    who.add_argument("--all-devices", action="store_true", help="all devices that can be opened")
    who.add_argument(
        "--peer", action="append", metavar="NAMES",
        help=f"other libraries, with commas: {', '.join(PEERS)}, 'all' or 'none' (default: those of the usual ones "
        f"that are installed: {', '.join(n for n, p in PEERS.items() if p.usual)})",
    )  # fmt: skip
    who.add_argument(
        "--compile", action=argparse.BooleanOptionalAction,
        help="polygrad within pg.compile alone, or plain alone (default: both)",
    )  # fmt: skip
    who.add_argument(
        "--reference",
        metavar="NAME",
        help="what ratios are to (default: torch.pool, or the next best; of GPUs what runs there)",
    )
    who.add_argument("--cpus", type=_count, metavar="N", help="cores that all are pinned to (default: all)")
    what.add_argument("--work", nargs="+", action="extend", metavar="NAME", help="names or patterns: 'softmax*'")
    what.add_argument("--group", nargs="+", action="extend", metavar="NAME", help="groups of work, as --list shows")
    what.add_argument("--size", choices=SIZES, default="small", help="how large the work is (default: %(default)s)")
    what.add_argument("--rounds", type=_count, metavar="N", help="turns of each contender")
    what.add_argument("--time", type=_positive, metavar="SECONDS", help="how long a turn takes")
    what.add_argument(
        "--limit", type=_positive, default=LIMIT, metavar="SECONDS",
        help="how long a contender may take to answer before it is given up (default: %(default)g)",
    )  # fmt: skip
    what.add_argument("--list", action="store_true", help="list work and peers, and measure nothing")
    where.add_argument("--json", metavar="FILE", help="write everything as JSON; - is the standard output")
    where.add_argument("--picture", metavar="FILE", help="draw the ratios: .svg, .png or .pdf")
    where.add_argument("--history", metavar="FILE", help="add the run to a history, and tell what changed")
    add_timeout(parser)


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return value


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def run(arguments: argparse.Namespace) -> int:
    """Measure, or list."""
    try:
        return _listed(arguments) if arguments.list else _measured(arguments)
    except (selection.ChoiceError, DeviceError) as error:
        sys.stderr.write(f"polygrad bench: {error}\n")
        return WRONG


def _listed(arguments: argparse.Namespace) -> int:
    chosen = _works(arguments)
    names, groups, sizes = (max(len(getattr(w, a)) for w in chosen) for a in ("name", "group", "sized"))
    sys.stdout.write(f"Work (--size {arguments.size}):\n")
    for work in chosen:
        how = " forward and backward:" if work.wrt else ""
        line = f"{work.name:{names}}  {work.group:{groups}}  {work.sized:{sizes}} {how} {MATHS[work.maths]}"
        sys.stdout.write(f"  {line}\n")
    sys.stdout.write("\nPeers:\n")
    for name, peer in PEERS.items():
        state = "installed" if peer.found() else f"absent: pip install {peer.package}"
        sys.stdout.write(f"  {name:14} on {' and '.join(peer.places):14}  {state}\n")
    return 0


def _works(arguments: argparse.Namespace) -> list[Work]:
    return selection.works(
        table(arguments.size), selection.split(arguments.work or ()), selection.split(arguments.group or ())
    )


def _measured(arguments: argparse.Namespace) -> int:
    works = _works(arguments)
    present, absent = selection.peers(selection.split(arguments.peer or ()))
    for path in (arguments.json, arguments.picture, arguments.history):
        if path and path != "-" and not os.path.isdir(os.path.dirname(path) or "."):
            raise selection.refuse(f"cannot write {path}: there is no folder {os.path.dirname(path)}")
    if arguments.picture:
        picture.kind_of(arguments.picture)
        picture.check_drawing()
    if arguments.history:
        records.read(arguments.history)
    modes = {None: ["polygrad", "polygrad.compile"], True: ["polygrad.compile"], False: ["polygrad"]}
    contenders = selection.contenders(_devices(arguments), present, modes[arguments.compile])
    if arguments.reference:
        _check_reference(arguments.reference, [c.name for c in contenders], absent)
    pace = Pace(arguments.rounds or ROUNDS[arguments.size], arguments.time or SECONDS[arguments.size], arguments.size)
    cpus = _cpus(arguments.cpus)
    named = bool(arguments.work or arguments.group)
    plan = running.Plan(works, contenders, pace, cpus, arguments.limit, named, arguments.reference)
    return _reported(arguments, plan, running.run(plan), absent)


def _check_reference(wanted: str, names: Sequence[str], absent: Sequence[str]) -> None:
    if any(name == wanted or name.startswith(f"{wanted} ") for name in names):
        return
    if wanted in absent:
        raise selection.refuse(
            f"ratios cannot be to {wanted}, which is not installed: pip install {PEERS[wanted].package}"
        )
    raise selection.unknown("contender", wanted, names)


def _cpus(wanted: int | None) -> list[int]:
    if not hasattr(os, "sched_getaffinity"):
        return list(range(wanted or os.cpu_count() or 1))
    allowed = sorted(os.sched_getaffinity(0))
    if wanted is not None and wanted > len(allowed):
        raise selection.refuse(f"cannot use {wanted} cores: this process may use {len(allowed)}")
    return allowed[:wanted]


def _devices(arguments: argparse.Namespace) -> dict[str, Place]:
    """Return the devices that are wanted and what kind of hardware they are, tried in processes of their own."""
    found: dict[str, Place] = {}
    faults: dict[str, str] = {}
    for record, devices in try_drivers(arguments.timeout, "open"):
        if record.reason:
            faults[record.name] = record.reason
        for device in devices:
            if device["fault"]:
                faults[device["name"]] = device["fault"]
            else:
                facts = dict(line.partition(": ")[::2] for line in device["details"])
                found[device["name"]] = place_of(record.name, facts.get("kind", ""), facts.get("vendor", ""))
        if record.status == "ok" and not devices:  # this process has loaded the driver, so it was not tried in another
            for name in list_devices_of(REGISTRY, record.name):
                info = open_device(REGISTRY, name).info
                found[name] = place_of(record.name, info.extra.get("kind", ""), info.vendor)
    names = selection.split(arguments.device or ())
    wanted = list(found) if arguments.all_devices else [_full(name) for name in names] or [get_device()]
    for name in wanted:
        if name not in found:
            why = faults.get(name) or faults.get(name.partition(":")[0])
            raise selection.refuse(why) if why else selection.unknown("device", name, list(found))
    if not wanted:
        raise selection.refuse("there is no device to measure; `python -m polygrad doctor` says why")
    return {name: found[name] for name in wanted}


def _full(name: str) -> str:
    """Return a device's whole name; "auto" is the device that `pg.set_device("auto")` takes."""
    if name.lower() == AUTO:
        return open_device(REGISTRY, name).name
    return ":".join(map(str, parse_device_name(name)))


def _reported(
    arguments: argparse.Namespace, plan: running.Plan, outcome: running.Outcome, absent: Sequence[str]
) -> int:
    verdict = outcome.verdict
    sentences = tables.summary(verdict)
    if absent:
        sentences.append(f"Not installed, so not measured: {', '.join(absent)}.")
    if not verdict.rows and not outcome.interrupted:
        sentences.append(f"Nobody of {', '.join(c.name for c in plan.contenders)} does any of this work.")
    if outcome.interrupted:
        sentences.append(
            f"Interrupted after {len({r.work.name for r in verdict.rows})} of {len(plan.works)} pieces of work."
        )
    found = records.record(verdict, plan.pace, absent, len(plan.cpus), interrupted=outcome.interrupted)
    if arguments.history and verdict.rows:
        sentences += records.append(found, arguments.history)
    to_stdout = arguments.json == "-"
    tables.show([tables.results(verdict), tables.means(verdict)], sentences, sys.stderr if to_stdout else sys.stdout)
    if to_stdout:
        json.dump(found, sys.stdout, indent=1)
        sys.stdout.write("\n")
    elif arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(found, file, indent=1)
            file.write("\n")
    if arguments.picture and any(row.ratio for row in verdict.rows):
        picture.draw(verdict, arguments.picture)
    if outcome.interrupted:
        return INTERRUPTED
    return 1 if any(row.error or not row.agrees for row in verdict.rows) or not verdict.rows else 0
