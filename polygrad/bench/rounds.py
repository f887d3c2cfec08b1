"""Who is measured when: contenders in turns, A B C A B C, so that a slow minute of the machine is everybody's.

Here: one piece of work for all contenders, and all pieces one after the other; the load of other processes.
Not here: processes (`process.py`), what the figures mean (`judging.py`).
"""

import os
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from polygrad.bench.process import Contender, Process
from polygrad.bench.work import Work

SLOW, FEW = 2.0, 2  # a contender that takes so many seconds a call gets so many rounds
BUDGET = 30.0  # seconds for one piece of work; after them no contender begins another round
GIVE_UP = 3  # deaths in a row after which a contender takes no more part
QUIET = 0.5  # cores that others use, up to which a round counts as undisturbed
LEAST_QUIET = 3  # undisturbed rounds that are enough to leave out the others


@dataclass
class Row:
    """What became of one contender at one piece of work; seconds and bytes."""

    work: Work
    contender: Contender
    version: str = ""
    error: str = ""
    first: float = 0.0  # the first two calls, with all that is compiled or captured in them
    rounds: list[float] = field(default_factory=list)  # seconds a call
    foreign: list[float] = field(default_factory=list)  # cores that others used meanwhile
    memory: int = 0
    digest: list[Any] = field(default_factory=list)
    agrees: bool = True
    ratio: float | None = None
    share: float | None = None
    winner: bool = False

    @property
    def median(self) -> float | None:
        """Seconds a call: of the undisturbed rounds if there are enough of them, or of all."""
        quiet = [t for t, f in zip(self.rounds, self.foreign, strict=True) if f <= QUIET]
        chosen = quiet if len(quiet) >= LEAST_QUIET else self.rounds
        return statistics.median(chosen) if chosen else None

    @property
    def valid(self) -> bool:
        """Whether it may be compared with others, and win."""
        return bool(self.rounds) and not self.error and self.agrees


@dataclass(frozen=True)
class Pace:
    """How long things may take: rounds of each contender, seconds a round, the size that is measured."""

    rounds: int
    seconds: float
    size: str


def busy() -> float | None:
    """Return the CPU seconds that the machine has spent since it started; None where the system does not tell."""
    try:
        with open("/proc/stat", encoding="ascii") as file:
            ticks = [int(word) for word in file.readline().split()[1:9]]
    except (OSError, ValueError):
        return None
    return float(sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")


def measure(work: Work, processes: Iterable[Process], pace: Pace) -> list[Row]:
    """Measure one piece of work; contenders that do not offer it have no row."""
    rows: list[tuple[Row, Process, int]] = []
    out: list[Row] = []
    slow: dict[int, bool] = {}
    for process in processes:
        if process.failed >= GIVE_UP:
            continue
        row = Row(work, process.contender)
        ready = process.ask(ask="setup", work=work.name, size=pace.size, target=pace.seconds)
        row.version = process.version
        if ready.get("absent"):
            continue
        out.append(row)
        if "error" in ready:
            row.error = ready["error"]
            continue
        row.first, row.digest = ready["first"], ready["digest"]
        slow[id(row)] = ready["estimate"] > SLOW
        rows.append((row, process, ready["calls"]))
    began = time.monotonic()
    for turn in range(pace.rounds):
        for row, process, calls in rows:
            late = turn > 0 and time.monotonic() - began > BUDGET
            if not row.error and not late and not (slow[id(row)] and turn >= FEW):
                _round(row, process, calls)
    for row, process, _ in rows:
        if not row.error:
            row.memory = process.ask(ask="drop").get("memory", 0)
    return out


def _round(row: Row, process: Process, calls: int) -> None:
    before = busy()
    answer = process.ask(ask="run", calls=calls)
    after = busy()
    if "error" in answer:
        row.error = answer["error"]
        return
    row.rounds.append(answer["seconds"])
    foreign = 0.0
    if before is not None and after is not None:
        foreign = max(0.0, (after - before - answer["cpu"]) / max(answer["wall"], 1e-3))
    row.foreign.append(round(foreign, 2))


def takes_part(contender: Contender, work: Work, *, named: bool) -> bool:
    """Return whether a contender does a piece of work: CPUs leave what is heavy unless it is asked for by name."""
    return named or not work.heavy or contender.place != "cpu"


def run_all(
    works: Sequence[Work], processes: Sequence[Process], pace: Pace, *, named: bool,
    done: Callable[[int, Work, list[Row]], None],
) -> None:  # fmt: skip
    """Measure all work, calling *done* after each piece with its number, itself and its rows."""
    for number, work in enumerate(works, 1):
        chosen = [p for p in processes if takes_part(p.contender, work, named=named)]
        done(number, work, measure(work, chosen, pace))
