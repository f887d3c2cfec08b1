"""What became of a check, and of a whole run.

Here: `Outcome` and `Report`, tiers and exit codes.
Not here: how they are shown (`report_*.py`).
"""

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from polygrad_conformance.checks import TIERS

SCHEMA = 1
OK, FAILED, USAGE, NOT_LOADED, TOO_LITTLE, STALE = range(6)
BAD = ("failed", "crashed", "hung")


@dataclass
class Outcome:
    """One check's end.

    `reason` says why it was skipped or expected to fail, `case` replays its failure; `kernel` and `source` show what
    ran, as IR and as the driver's source text if it gives one.
    """

    id: str
    level: int
    status: str
    seconds: float = 0.0
    message: str = ""
    reason: str = ""
    flaky: bool = False
    case: dict[str, Any] | None = None
    kernel: str = ""
    source: str = ""


@dataclass
class Report:
    """One run on one device; `as_json` is its versioned form."""

    device: str
    suite: str
    options: dict[str, Any]
    system: dict[str, str]
    described: dict[str, Any] = field(default_factory=dict)  # what the worker said of the device
    outcomes: list[Outcome] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    exercised: set[str] = field(default_factory=set)
    undeclared: list[str] = field(default_factory=list)
    vacuous: list[str] = field(default_factory=list)  # declared, and used by no test
    stale: list[str] = field(default_factory=list)  # expectations that are not allowed or no longer true
    missing: list[str] = field(default_factory=list)  # ids of the manifest that the suite has lost
    refused: str = ""  # why the device could not be opened
    seconds: float = 0.0
    began: str = ""

    def count(self, *statuses: str, level: int | None = None) -> int:
        """Return how many checks ended so."""
        return sum(o.status in statuses and level in (None, o.level) for o in self.outcomes)

    @property
    def tiers(self) -> dict[str, str]:
        """For each tier "reached", or what it lacks."""
        found = {}
        for tier, last in TIERS.items():
            mine = [o for o in self.outcomes if o.level <= last]
            bad = sum(o.status in BAD for o in mine)
            undone = sum(o.status == "not run" for o in mine)
            excused = sum(o.status in ("xfailed", "xpassed") for o in mine)
            if self.refused:
                found[tier] = "the device could not be opened"
            elif bad:
                found[tier] = f"{bad} failed"
            elif tier == "core" and excused:
                found[tier] = f"{excused} expected to fail"
            elif undone or self.options.get("pattern") or {o.level for o in mine} != set(range(last + 1)):
                found[tier] = f"{undone} not run" if undone else "not all was asked for"
            elif self.missing or self.vacuous or self.stale:
                found[tier] = "see below"
            else:
                found[tier] = "reached"
        return found

    @property
    def tier(self) -> str:
        """The highest tier reached, or ``"none"``."""
        reached = [tier for tier, state in self.tiers.items() if state == "reached"]
        return reached[-1] if reached else "none"

    @property
    def exit_code(self) -> int:
        """0 ok, 1 failures, 3 driver not loadable, 4 too little ran, 5 stale expectations."""
        if self.refused:
            return NOT_LOADED
        if self.count(*BAD):
            return FAILED
        if self.stale:
            return STALE
        if self.missing or self.vacuous or self.count("not run") or not self.count("passed"):
            return TOO_LITTLE
        return OK

    def as_json(self) -> dict[str, Any]:
        """Return the report as data for JSON."""
        data = dataclasses.asdict(self)
        data["exercised"] = sorted(self.exercised)
        return {"polygrad_conformance": SCHEMA, **data, "tiers": self.tiers, "tier": self.tier, "exit": self.exit_code}


def from_json(data: dict[str, Any]) -> Report:
    """Return the report that `as_json` gave.

    Raises
    ------
    ValueError
        If *data* is no report of this version.
    """
    if not isinstance(data, dict) or data.get("polygrad_conformance") != SCHEMA:
        raise ValueError(f"this is no report of version {SCHEMA}; give a report.json that --report has written")
    names = {f.name for f in dataclasses.fields(Report)}
    report = Report(**{k: v for k, v in data.items() if k in names})
    report.outcomes = [Outcome(**o) for o in data["outcomes"]]
    report.exercised = set(data["exercised"])
    return report
