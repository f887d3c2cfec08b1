"""One whole run: ceilings first, then all work, with what is there when it is interrupted.

Here: the order of things, and lines about progress.
Not here: the command line (`polygrad/cli/bench.py`), how a piece of work is measured (`rounds.py`).
"""

import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from polygrad.bench import quantities, work
from polygrad.bench.judging import Ceiling, Verdict, ceiling_of, conclude, judge_work, references_of
from polygrad.bench.peers import PEERS, Place
from polygrad.bench.process import Contender, Process
from polygrad.bench.rounds import Pace, Row, measure, run_all

BY_HAND = "numpy.block"  # takes part in the ceilings of CPUs, whoever else does
CEILING_ROUNDS, CEILING_SECONDS = 2, 0.1


@dataclass
class Plan:
    """What is to be done: the work, by whom, at which pace, on which cores, within which time for one answer."""

    works: Sequence[work.Work]
    contenders: Sequence[Contender]
    pace: Pace
    cpus: Sequence[int]
    limit: float
    named: bool = False  # the work was asked for by name, so CPUs do even what is heavy
    reference: str | None = None
    quiet: bool = False


@dataclass
class Outcome:
    """What was found, and whether it is all of it."""

    verdict: Verdict
    interrupted: bool = False
    dropped: dict[str, str] = field(default_factory=dict)  # contenders that gave up, and why


def run(plan: Plan) -> Outcome:
    """Measure everything; Ctrl-C ends it, with what was found until then."""
    references = references_of(plan.contenders, plan.reference)
    processes = [Process(contender, plan.cpus, plan.limit) for contender in plan.contenders]
    rows: list[Row] = []
    ceilings: dict[Place, Ceiling] = {}
    outcome = Outcome(Verdict(rows, references, ceilings))

    def done(number: int, piece: work.Work, found: list[Row]) -> None:
        judge_work(found, references, ceilings)
        rows.extend(found)
        _progress(plan, number, piece, found)

    before = _end_as_interrupted()
    try:
        _say(plan, f"Measuring the ceilings, then {len(plan.works)} pieces of work by {len(processes)} contenders.")
        ceilings.update(_ceilings(plan, processes))
        run_all(plan.works, processes, plan.pace, named=plan.named, done=done)
    except KeyboardInterrupt:
        outcome.interrupted = True
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)
        for process in processes:
            process.end()
    outcome.verdict = conclude(rows, references, ceilings)
    return outcome


def _end_as_interrupted() -> Any:
    """Have a request to end (of `timeout`, say) show what there is, as Ctrl-C does; return what it did before."""
    if threading.current_thread() is not threading.main_thread():
        return None  # only the main thread may say what signals do

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    return signal.signal(signal.SIGTERM, interrupt)


def _ceilings(plan: Plan, processes: Sequence[Process]) -> dict[Place, Ceiling]:
    """Return the ceilings of all places: the best that any contender there reaches."""
    pace = Pace(CEILING_ROUNDS, min(CEILING_SECONDS, plan.pace.seconds), plan.pace.size)
    chosen = [p for p in processes if not p.contender.peer.name.endswith(".compile")]
    extra: list[Process] = []
    if any(p.contender.place == "cpu" for p in processes) and BY_HAND not in [p.contender.name for p in processes]:
        extra = [Process(Contender(PEERS[BY_HAND], "cpu", "cpu"), plan.cpus, plan.limit)]
    rows: list[Row] = []
    try:
        for piece in work.ceilings(plan.pace.size).values():
            rows += measure(piece, [*chosen, *extra], pace)
    finally:
        for process in extra:
            process.end()
    places = dict.fromkeys(process.contender.place for process in processes)
    return {place: ceiling_of([r for r in rows if r.contender.place == place]) for place in places}


def _say(plan: Plan, line: str) -> None:
    if not plan.quiet:
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


def _progress(plan: Plan, number: int, piece: work.Work, found: Sequence[Row]) -> None:
    told = []
    for row in found:
        text = "failed" if row.error else quantities.duration(row.median or 0.0)
        told.append(f"{row.contender.name} {text}{'*' if row.winner else ''}")
    clock = time.strftime("%H:%M:%S")
    _say(plan, f"{clock} {number}/{len(plan.works)} {piece.name}: {', '.join(told) or 'nobody does it'}")
