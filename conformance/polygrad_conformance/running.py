"""A run on one device: which checks, in which order, and what becomes of each.

Here: selection, gating, the time budget, repeats of failures, crashes and hangs as outcomes.
Not here: the process they run in (`worker.py`), reports.
"""

import datetime as dt
import fnmatch
import importlib.metadata
import importlib.resources
import platform
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from polygrad import errors
from polygrad.driver import ExpectedFailure, Requirements
from polygrad_conformance import VERSION, gating
from polygrad_conformance.bench import EFFORTS
from polygrad_conformance.checks import LEVELS, Check, all_checks
from polygrad_conformance.isolation import Died, Hung, Worker
from polygrad_conformance.outcome import BAD, Outcome, Report
from polygrad_conformance.privacy import cleaned

START = 60.0  # seconds that Python and a driver may take to start, however short the limit of a test
SHRUNK = 12  # cases of one run that are made smaller: each attempt may compile
REPEATS = 2  # of a failed check, to tell a flaky one
Progress = Callable[[int, int, str, Outcome | None], None]


@dataclass(frozen=True)
class Options:
    """What a run is asked to do."""

    profile: str = "quick"
    level: str = "all"
    pattern: str = ""
    seed: int = 0
    time: float | None = None
    limit: float = 120.0
    plugins: tuple[str, ...] = ()
    allow_xpass: bool = False


def levels_of(text: str) -> set[int]:
    """Return the levels that *text* names.

    Raises
    ------
    ValueError
        If it names none.

    Examples
    --------
    >>> levels_of("0-3") == {0, 1, 2, 3}, levels_of("4"), len(levels_of("all"))
    (True, {4}, 10)
    """
    first, _, last = ("0-9" if text == "all" else text).partition("-")
    try:
        found = set(range(int(first), int(last or first) + 1)) & set(LEVELS)
    except ValueError:
        found = set()
    if not found:
        raise ValueError(f"there is no level {text!r}; give a number from 0 to 9, a range such as 0-3, or all")
    return found


def selected(options: Options) -> list[Check]:
    """Return the checks that *options* ask for.

    >>> len(selected(Options(pattern="L0.info.*")))
    6
    """
    levels, pattern = levels_of(options.level), options.pattern
    return [
        c
        for c in all_checks().values()
        if c.level in levels and (pattern in c.id or fnmatch.fnmatchcase(c.id, pattern))
    ]


def manifest() -> list[str]:
    """Return the ids that this version of the suite consists of."""
    text = importlib.resources.files("polygrad_conformance").joinpath("manifest.txt").read_text(encoding="utf-8")
    return text.split()


@dataclass
class DeviceRun:
    """A run on one device, one check at a time. Use `start` first; then `one` for each check; then `finish`."""

    device: str
    options: Options = field(default_factory=Options)

    def __post_init__(self) -> None:
        where = f"{platform.system()} {platform.machine()}"
        system = {"python": platform.python_version(), "platform": where, "polygrad": _polygrad()}
        shown = {**vars(self.options), "plugins": list(self.options.plugins)}
        self.report = Report(self.device, VERSION, shown, system)
        self.report.began = dt.datetime.now(tz=dt.UTC).isoformat(timespec="seconds")
        self.have: frozenset[str] = frozenset()
        self.wanted = Requirements()
        self._began = time.monotonic()
        self._worker: Worker | None = None
        self._failed_starts = 0
        self._shrunk = 0

    def start(self) -> str:
        """Open the device in a worker; return why it could not be, or nothing."""
        try:
            worker = Worker(
                {
                    "device": self.device,
                    "plugins": self.options.plugins,
                    "profile": self.options.profile,
                    "seed": self.options.seed,
                },
                max(self.options.limit, START),
            )
        except (Died, Hung) as error:
            return str(cleaned(str(error)))
        if "refused" in worker.answer:
            worker.close()
            kind, sentence = worker.answer["kind"], str(worker.answer["refused"])
            ours = issubclass(getattr(errors, kind, Exception), errors.PolygradError)
            return str(cleaned(sentence if ours else f"{kind}: {sentence}"))
        if not self.report.described:
            self.report.described = cleaned(worker.answer)
            self.have = frozenset(worker.answer["capabilities"])
            self.wanted = _requirements(worker.answer["requirements"])
            self.report.stale = gating.stale(self.wanted, all_checks().values())
            self.report.missing = sorted(set(manifest()) - set(all_checks()))
        self._worker = worker
        return ""

    def one(self, check: Check) -> Outcome:
        """Run *check*, if it applies, and note what became of it."""
        verdict = gating.gate(check, self.have, self.wanted)
        if verdict.lacks or verdict.unsupported:
            status = "skipped" if verdict.lacks else "unsupported"
            outcome = Outcome(check.id, check.level, status, reason=verdict.lacks or verdict.unsupported)
        elif self._over() or self._failed_starts > REPEATS:
            why = "the time is over" if self._over() else "the device could not be opened again"
            outcome = Outcome(check.id, check.level, "not run", reason=why)
        else:
            outcome = self._tried(check)
            if verdict.expected is not None:
                self._expected(outcome, verdict.expected)
        self.report.outcomes.append(outcome)
        return outcome

    def _over(self) -> bool:
        seconds = self.options.time or EFFORTS[self.options.profile].seconds
        return time.monotonic() - self._began > seconds

    def _expected(self, outcome: Outcome, expected: ExpectedFailure) -> None:
        outcome.reason = f"{expected.reason} ({expected.issue}, until {expected.until})"
        if outcome.status in BAD:
            outcome.status = "xfailed"
        elif outcome.status == "passed":
            outcome.status = "xpassed"
            if not self.options.allow_xpass:
                self.report.stale.append(f"{outcome.id} passes, though it is expected to fail; remove the expectation")

    def _tried(self, check: Check) -> Outcome:
        first = self._asked({"check": check.id})
        if isinstance(first, Outcome):
            first.level = check.level
            return first
        outcome = Outcome(
            check.id, check.level, "passed" if first["ok"] else "failed", first["seconds"], first["message"]
        )
        _show(outcome, first)
        if not first["ok"]:
            if first.get("lost"):
                self._stop()
            again = [self._asked({"check": check.id, "fresh": True}) for _ in range(REPEATS)]
            outcome.flaky = any(isinstance(a, dict) and a["ok"] for a in again)
            if outcome.case is not None and not outcome.flaky and self._shrunk < SHRUNK:
                self._shrunk += 1
                smaller = self._asked({"shrink": outcome.case})
                if isinstance(smaller, dict):  # a device that dies of a smaller case has its first one to show
                    _show(outcome, smaller)
        return outcome

    def _asked(self, request: dict[str, Any]) -> dict[str, Any] | Outcome:
        """Return the worker's answer, or the outcome that its end is."""
        name = str(request.get("check", ""))
        if self._worker is None:
            refused = self.start()
            if refused:
                self._failed_starts += 1
                return Outcome(name, 0, "failed", message=f"the device could not be opened again: {refused}")
        assert self._worker is not None
        began = time.monotonic()
        try:
            answer = self._worker.ask(request, self.options.limit)
        except (Died, Hung) as end:
            self._worker = None
            status = "hung" if isinstance(end, Hung) else "crashed"
            return Outcome(name, 0, status, time.monotonic() - began, cleaned(str(end)))
        answer = dict(cleaned(answer))
        self.report.exercised |= set(answer.get("exercised", ()))
        _merge(self.report.figures, answer.get("figures", {}))
        return answer

    def replay(self, case: dict[str, Any]) -> Outcome:
        """Run one saved case."""
        name = f"replay of {case.get('check', 'a case')}"
        answer = self._asked({"replay": case})
        if isinstance(answer, Outcome):
            answer.id = name
            self.report.outcomes.append(answer)
            return answer
        status = "passed" if answer["ok"] else "failed"
        outcome = Outcome(name, 0, status, answer["seconds"], answer["message"])
        _show(outcome, answer)
        self.report.outcomes.append(outcome)
        return outcome

    @property
    def whole(self) -> bool:
        """Whether every check of the suite was asked for, so that it can be said what no check has used."""
        return {o.id for o in self.report.outcomes} >= set(all_checks())

    def finish(self) -> Report:
        """Look for what is declared and unused, and unused and working; end the worker."""
        if self.whole and self._worker is not None:
            families = ("dtype.", "scalar.", "reduction.", "op.")
            declared = {word for word in self.have if word.startswith(families)}
            self.report.vacuous = sorted(declared - self.report.exercised)
            answer = self._asked({"probe": True})
            if isinstance(answer, dict):
                self.report.undeclared = answer["undeclared"]
        self._stop()
        self.report.seconds = time.monotonic() - self._began
        return self.report

    def _stop(self) -> None:
        if self._worker is not None:
            self._worker.close()
            self._worker = None


def run(device: str, options: Options, progress: Progress | None = None) -> Report:
    """Run the selected checks on *device*."""
    job = DeviceRun(device, options)
    refused = job.start()
    if refused:
        job.report.refused = refused
        return job.finish()
    checks: Iterable[Check] = selected(options)
    total = len(list(checks))
    for number, check in enumerate(checks):
        if progress is not None:
            progress(number, total, check.id, None)
        outcome = job.one(check)
        if progress is not None:
            progress(number + 1, total, check.id, outcome)
    return job.finish()


def _show(outcome: Outcome, answer: dict[str, Any]) -> None:
    outcome.case = answer.get("case")
    outcome.kernel, outcome.source = answer.get("kernel", ""), answer.get("source", "")


def _requirements(data: dict[str, Any]) -> Requirements:
    expected = {k: ExpectedFailure(**v) for k, v in data["expected_failure"].items()}
    return Requirements(data["unsupported"], expected, data["tolerance"])


def _polygrad() -> str:
    try:
        return importlib.metadata.version("polygrad-array")
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _merge(into: dict[str, Any], new: dict[str, Any]) -> None:
    for key, value in new.items():
        if isinstance(value, dict):
            into.setdefault(key, {}).update(value)
        elif isinstance(value, int):
            into[key] = into.get(key, 0) + value
        else:
            into[key] = value
