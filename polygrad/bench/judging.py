"""What the figures mean: who computed the same, how close to the ceiling, how far from the reference, who won.

Here: judgements about rows that are measured.
Not here: measuring (`rounds.py`), showing (`tables.py`, `picture.py`).
"""

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from polygrad.bench.inputs import agree
from polygrad.bench.peers import Place
from polygrad.bench.process import Contender
from polygrad.bench.rounds import Row
from polygrad.bench.work import APART, Work

REFERENCES = ("torch.pool", "torch", "jax.jit", "numpy.block", "numpy", "cupy")  # the first that takes part
BEST = "polygrad, best device"
OVERALL = "all but " + ", ".join(APART)


@dataclass(frozen=True)
class Ceiling:
    """What the hardware of a place can do, as measured: bytes and operations a second, and by whom."""

    copy: float = 0.0
    matmul: float = 0.0
    copied_by: str = ""
    multiplied_by: str = ""


@dataclass
class Mean:
    """Geometric mean of ratios to the reference."""

    group: str
    contender: str
    ratio: float
    count: int


@dataclass
class Verdict:
    """Everything that was found: rows, the ceilings of places, means, and how often who won."""

    rows: list[Row]
    references: Mapping[Place, str]
    ceilings: Mapping[Place, Ceiling]
    means: list[Mean] = field(default_factory=list)
    wins: dict[str, int] = field(default_factory=dict)

    @property
    def reference(self) -> str:
        """What ratios are to, in words: one contender for each kind of hardware."""
        names = list(dict.fromkeys(self.references.values()))
        if len(names) == 1:
            return names[0]
        return ", ".join(f"{name} on {place}" for place, name in self.references.items())


def ceiling_of(rows: Iterable[Row]) -> Ceiling:
    """Return the best that anybody reached at the two pieces of work that ceilings are measured with."""
    best = Ceiling()
    for row in rows:
        if not row.median or row.error:
            continue
        moved, computed = row.work.nbytes / row.median, row.work.flops / row.median
        if row.work.maths == "copy" and moved > best.copy:
            best = Ceiling(moved, best.matmul, row.contender.name, best.multiplied_by)
        if row.work.maths == "matmul" and computed > best.matmul:
            best = Ceiling(best.copy, computed, best.copied_by, row.contender.name)
    return best


def floor(work: Work, ceiling: Ceiling) -> float:
    """Return the fewest seconds that the ceiling allows, or 0 where no ceiling says anything."""
    moving = work.nbytes / ceiling.copy if ceiling.copy else 0.0
    narrow = work.settings.get("dtype") == "bfloat16"  # the ceiling is that of float32
    computing = work.flops / ceiling.matmul if ceiling.matmul and not narrow else 0.0
    return max(moving, computing)


def reference_among(names: Iterable[str], wanted: str | None = None) -> str:
    """Return the contender that ratios are to.

    >>> reference_among(["polygrad cpu:0", "torch", "torch.pool"])
    'torch.pool'
    """
    there = list(names)
    for name in (wanted, *REFERENCES):
        for candidate in there:
            if name and (candidate == name or candidate.startswith(f"{name} ")):
                return candidate
    return there[0] if there else ""


def references_of(contenders: Iterable[Contender], wanted: str | None = None) -> dict[Place, str]:
    """Return for each kind of hardware the contender there that ratios are to."""
    there: dict[Place, list[str]] = {}
    for contender in contenders:
        there.setdefault(contender.place, []).append(contender.name)
    return {place: reference_among(names, wanted) for place, names in there.items()}


def _mark_disagreement(rows: Sequence[Row], references: Container[str]) -> None:
    """Mark rows whose results are not those that most libraries got; if they are even, those of a reference."""
    groups: list[list[Row]] = []
    for row in rows:
        if row.error or not row.digest:
            continue
        calls = len(row.digest) // 2
        if not agree(row.digest[:calls], row.digest[calls:]) and row.work.kind == "function":
            row.agrees = False  # the first call and a later one differ: what was compiled is wrong
            continue
        for group in groups:
            if agree(group[0].digest, row.digest):
                group.append(row)
                break
        else:
            groups.append([row])
    if not groups:
        return

    def weight(group: list[Row]) -> tuple[int, bool]:
        return len({row.contender.peer.package for row in group}), any(r.contender.name in references for r in group)

    right = max(groups, key=weight)
    for group in groups:
        for row in group:
            row.agrees = group is right


def judge_work(rows: Sequence[Row], references: Mapping[Place, str], ceilings: Mapping[Place, Ceiling]) -> None:
    """Settle agreement, ratio, share and winner of the rows of one piece of work."""
    _mark_disagreement(rows, set(references.values()))
    valid = {row.contender.name: row.median for row in rows if row.valid}
    for row in rows:
        base = valid.get(references.get(row.contender.place, ""))
        if row.median:
            if base and row.work.kind != "graph":
                row.ratio = row.median / base
            least = floor(row.work, ceilings.get(row.contender.place, Ceiling()))
            row.share = least / row.median if least else None
    able = [row for row in rows if row.valid and row.median]
    if len(able) > 1:
        min(able, key=lambda row: row.median or math.inf).winner = True


def _mean(ratios: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def _best_ratios(rows: Sequence[Row]) -> list[float]:
    """Return for each piece of work the ratio of polygrad's best device and mode; none if there is but one."""
    own = [row for row in rows if row.contender.own and row.valid and row.ratio]
    best: dict[str, float] = {}
    for row in own:
        best[row.work.name] = min(row.ratio or math.inf, best.get(row.work.name, math.inf))
    return list(best.values()) if len({row.contender.name for row in own}) > 1 else []


def conclude(rows: list[Row], references: Mapping[Place, str], ceilings: Mapping[Place, Ceiling]) -> Verdict:
    """Return means by group, overall (without the groups that stand apart), and the count of wins."""
    verdict = Verdict(rows, references, ceilings)
    groups = list(dict.fromkeys(row.work.group for row in rows))
    names = list(dict.fromkeys(row.contender.name for row in rows if row.contender.name not in references.values()))
    for group in [*groups, OVERALL]:
        inside = [r for r in rows if r.work.group == group or (group == OVERALL and r.work.group not in APART)]
        for name in names:
            ratios = [r.ratio for r in inside if r.contender.name == name and r.valid and r.ratio]
            if ratios:
                verdict.means.append(Mean(group, name, _mean(ratios), len(ratios)))
        for place in references:
            best = _best_ratios([row for row in inside if row.contender.place == place])
            if best:
                name = BEST if len(references) == 1 else f"{BEST} of {place}"
                verdict.means.append(Mean(group, name, _mean(best), len(best)))
    for row in rows:
        if row.winner:
            verdict.wins[row.contender.name] = verdict.wins.get(row.contender.name, 0) + 1
    return verdict
