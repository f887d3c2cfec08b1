"""What a run found, as data: the JSON that programs read, and the history of runs.

Here: the form of both, with its version.
Not here: what people read (`tables.py`, `picture.py`).

The form is an object with "format" and "version". Times are seconds, memory is bytes, rates are a second. A field that
does not apply is null. New fields may come within a version; a field that goes or changes its meaning makes a new one.
"""

import json
import os
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import polygrad
from polygrad.bench.judging import Verdict
from polygrad.bench.rounds import Pace, Row
from polygrad.bench.selection import refuse

FORMAT, VERSION = "polygrad-bench", 1
CHANGED = 1.25  # a time that moved by so much against the last run of the same kind is told

Record = dict[str, Any]


def _row(row: Row) -> Record:
    work = row.work
    return {
        "work": work.name, "group": work.group, "maths": work.maths, "sizes": work.sized,
        "contender": row.contender.name, "peer": row.contender.peer.name, "device": row.contender.device,
        "version": row.version,
        "median": row.median, "best": min(row.rounds, default=None), "rounds": row.rounds, "foreign_load": row.foreign,
        "first_calls": row.first or None, "memory": row.memory or None, "flops": work.flops or None,
        "bytes": work.nbytes or None, "share_of_ceiling": row.share, "ratio": row.ratio,
        "agrees": row.agrees if row.digest else None, "fastest": row.winner, "error": row.error or None,
    }  # fmt: skip


def record(verdict: Verdict, pace: Pace, absent: Sequence[str], cpus: int, *, interrupted: bool) -> Record:
    """Return a whole run."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "polygrad": polygrad.__version__,
        "machine": {
            "name": platform.node(), "system": platform.system(), "hardware": _processor(), "cpus": cpus,
            "python": platform.python_version(), "load": _load(),
        },
        "size": pace.size, "rounds": pace.rounds, "seconds_a_round": pace.seconds,
        "references": dict(verdict.references),
        "absent": list(absent), "interrupted": interrupted,
        "ceilings": {place: vars(ceiling) for place, ceiling in verdict.ceilings.items()},
        "rows": [_row(row) for row in verdict.rows],
        "means": [vars(mean) for mean in verdict.means],
        "wins": verdict.wins,
    }  # fmt: skip


def _load() -> float | None:
    try:
        return round(os.getloadavg()[0], 2)
    except (AttributeError, OSError):
        return None


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()


def append(run: Record, path: str) -> list[str]:
    """Add a run to a history, a line of JSON each, and return what changed since the last comparable one.

    Comparable is a run of the same size on hardware of the same name with as many CPUs.
    """
    before = [old for old in read(path) if _comparable(old, run)]
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(run) + "\n")
    return changes(before[-1], run) if before else []


def _comparable(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    keys = ("name", "hardware", "cpus")
    return old.get("size") == new["size"] and all(old["machine"].get(k) == new["machine"][k] for k in keys)


def read(path: str) -> list[Record]:
    """Return the runs of a history; none if there is no such file."""
    if not os.path.exists(path):
        return []
    runs = []
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                run = json.loads(line)
            except ValueError:
                run = None
            if not isinstance(run, dict) or run.get("format") != FORMAT:
                raise refuse(f"{path} is no history of `polygrad bench`: line {number} is not a run")
            if run.get("version") == VERSION:
                runs.append(run)
    return runs


def changes(old: Record, new: Record) -> list[str]:
    """Return a line for each time of polygrad that moved: as ratios to the reference, where both runs have one."""
    before = {(row["work"], row["contender"]): row for row in old["rows"]}
    lines = []
    for row in new["rows"]:
        was = before.get((row["work"], row["contender"]))
        if was is None or not row["peer"].startswith("polygrad"):
            continue
        key = "ratio" if was["ratio"] and row["ratio"] and old["references"] == new["references"] else "median"
        if not was[key] or not row[key]:
            continue
        factor = row[key] / was[key]
        if factor > CHANGED or factor < 1 / CHANGED:
            word = "slower" if factor > 1 else "faster"
            by = max(factor, 1 / factor)
            against = f" against {' and '.join(new['references'].values())}" if key == "ratio" else ""
            lines.append(f"{row['work']} of {row['contender']}: {by:.2f} times {word}{against} than {old['when']}.")
    return lines
