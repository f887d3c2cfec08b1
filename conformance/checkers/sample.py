"""A sample of the kernels that levels 2 to 5 of the suite launch, kept in a file, and launches of them on a device.

    python conformance/checkers/sample.py --run cases.json --device opencl:0 --part 0 --parts 1

Kernels are collected on the host's own driver, where they cost nothing: as many of each level, in turn from each
check. A case of a random kernel has its right answer and bounds; of the others only the launch is kept, since
their checks judge it in ways of their own.

Here: collecting, saving, launching. Not here: tools under which to launch (`sanitizer.py`).
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from polygrad.driver.binding import open_device
from polygrad.driver.ir import Kernel
from polygrad.driver.loader import REGISTRY
from polygrad_conformance import gating, replay, running
from polygrad_conformance.bench import Bench
from polygrad_conformance.building import exact_case
from polygrad_conformance.case import Array, Case, compare

LEVELS = (2, 3, 4, 5)
MOST = 1 << 15  # elements of all buffers together: a checker is hundreds of times slower than the device
KEPT = 6  # kernels of one check at most


class Recorder(Bench):
    """A bench that remembers what is launched on it; `found` holds (case, whether it has bounds)."""

    def start(self) -> None:
        """Forget what was launched."""
        self.found: list[tuple[Case, bool]] = []
        self._known: set[Kernel] = set()
        self._judging: Case | None = None

    def judge(self, case: Case) -> None:
        self._judging = case
        try:
            super().judge(case)
        finally:
            self._judging = None

    def launch(
        self, kernel: Kernel, arrays: Sequence[Array], ints: Sequence[int], scalars: Sequence[Any] = ()
    ) -> list[Array]:
        new = kernel not in self._known and len(self.found) < KEPT and sum(map(len, arrays)) <= MOST
        if new and self._judging is not None:
            self.found.append((self._judging, True))
        elif new:
            self.found.append((exact_case(kernel, [a.copy() for a in arrays], ints, scalars), False))
        self._known.add(kernel)
        return super().launch(kernel, arrays, ints, scalars)


def collect(count: int, seed: int, device: str = "cpu:0") -> list[dict[str, Any]]:
    """Return *count* cases, as `replay.save` has them, or fewer if there are not so many."""
    bench = Recorder(REGISTRY, open_device(REGISTRY, device), seed=seed)
    have = gating.capabilities(bench.info)
    by_level: dict[int, list[list[dict[str, Any]]]] = {level: [] for level in LEVELS}
    rng = np.random.default_rng(seed)
    checks = [c for c in running.selected(running.Options(level="2-5")) if c.level in LEVELS]
    for place in rng.permutation(len(checks)):
        check = checks[int(place)]
        mine = by_level[check.level]
        if sum(map(len, mine)) >= count or not gating_allows(check, have):
            continue
        bench.start()
        with np.errstate(all="ignore"):
            check.run(bench)
            bench.tidy()
        mine.append([{**replay.save(case, check.id), "judged": judged} for case, judged in bench.found])
    turns = [_in_turn(by_level[level]) for level in LEVELS]
    return _in_turn(turns)[:count]


def gating_allows(check: Any, have: frozenset[str]) -> bool:
    """Return whether a device with the capabilities *have* can run *check*, and it launches no op of a library."""
    return set(check.needs) <= have and not any(need.startswith("op.") for need in check.needs)


def _in_turn(lists: Sequence[list[Any]]) -> list[Any]:
    """Return the first item of each list, then the second of each, and so on.

    >>> _in_turn([[1, 2, 3], [4], [5, 6]])
    [1, 4, 5, 2, 6, 3]
    """
    longest = max(map(len, lists), default=0)
    return [items[k] for k in range(longest) for items in lists if k < len(items)]


def run(path: Path, device: str, part: int, parts: int) -> tuple[int, list[str]]:
    """Launch every *parts*-th case of a file, from number *part* on; return how many ran, and sentences on failures."""
    bench = Bench(REGISTRY, open_device(REGISTRY, device))
    info, ran, faults = bench.info, 0, []
    for data in json.loads(path.read_text(encoding="utf-8"))[part::parts]:
        case = replay.load(data)
        lacks = set(case.kernel.buffers) - set(info.dtypes) or {i.dtype for i in case.kernel.body} - set(info.dtypes)
        if lacks or len(case.kernel.buffers) > info.limits.max_buffers:
            continue
        ran += 1
        try:
            got = bench.launch(case.kernel, case.fresh(), case.ints, case.scalars)
            if data["judged"]:
                compare(case, got)
        except Exception as error:
            faults.append(f"{data['check']}: {type(error).__name__}: {error}")
        bench.tidy()
    return ran, faults


def main() -> int:
    """Launch the cases that the command line names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--run", type=Path, required=True, metavar="CASES", help="file of cases")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--part", type=int, default=0)
    parser.add_argument("--parts", type=int, default=1)
    asked = parser.parse_args()
    with np.errstate(all="ignore"):
        ran, faults = run(asked.run, asked.device, asked.part, asked.parts)
    sys.stdout.writelines(f"FAULT {fault}\n" for fault in faults)
    sys.stdout.write(f"RAN {ran}\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
