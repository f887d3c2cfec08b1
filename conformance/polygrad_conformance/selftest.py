"""The proof that the suite bites: every mutant is found by the checks that are named for it, and every test finds one.

Here: the two-way matrix and its judgement.
Not here: mutants (`mutant_list.py`).
"""

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from polygrad.driver.binding import open_device
from polygrad.driver.loader import Registry
from polygrad_conformance import mutant_list, mutant_list_upper, strict
from polygrad_conformance.bench import EFFORTS, Bench
from polygrad_conformance.checks import Check, all_checks
from polygrad_conformance.mutant_list import UNUSED
from polygrad_conformance.mutants import Mutant

LAST_LEVEL = 3  # up to which every test must find a mutant
MUTANTS = [*mutant_list.MUTANTS, *mutant_list_upper.MUTANTS]


class Kill(NamedTuple):
    """What one check made of one mutant: "killed", "survived", or the exception that was no assertion."""

    mutant: str
    group: str
    check: str
    function: str
    end: str
    message: str


def tried(mutant: Mutant | None, ordinal: int, checks: list[Check]) -> list[Kill]:
    """Run *checks* on a strict device that *mutant* spoils (or on a sound one), each on a device of its own."""
    found = []
    for check in checks:
        registry = Registry(discovering=False)
        plugin = strict.StrictDriver.plugin()
        registry.register(plugin)
        with _eager(mutant):
            end, message = _ended(registry, plugin, mutant, ordinal, check)
        sys.modules.pop(UNUSED, None)
        registry.unregister(plugin)
        name, group = (mutant.name, mutant.group) if mutant else ("", "")
        found.append(Kill(name, group, check.id, check.function, end, message))
    return found


def _ended(registry: Registry, plugin: Any, mutant: Mutant | None, ordinal: int, check: Check) -> tuple[str, str]:
    spoiler = mutant.make(plugin) if mutant else None
    if spoiler is not None and mutant is not None and mutant.early:
        _enter(registry, spoiler)
    device = open_device(registry, f"strict:{ordinal}", {"delay": "0"})
    if spoiler is not None and mutant is not None and not mutant.early and not mutant.environment:
        _enter(registry, spoiler)
    bench = Bench(registry, device, EFFORTS["quick"])
    try:
        with np.errstate(all="ignore"):
            check.run(bench)
    except AssertionError as error:
        return "killed", str(error)
    except Exception as error:
        return f"{type(error).__name__}", str(error)
    return "survived", ""


def _enter(registry: Registry, spoiler: Any) -> None:
    if hasattr(spoiler, "polygrad_drivers"):
        registry.plugins.register(spoiler)  # the registry would take it for a driver
    else:
        registry.register(spoiler)


@contextlib.contextmanager
def _eager(mutant: Mutant | None) -> Iterator[None]:
    """For the mutant that is an installation: put one on the path that imports its driver when Python starts."""
    if mutant is None or not mutant.environment:
        yield
        return
    before = os.environ.get("PYTHONPATH")
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "eager_strict.py").write_text("")
        (place / "sitecustomize.py").write_text("import eager_strict\n")
        facts = place / "eager_strict-1.dist-info"
        facts.mkdir()
        (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: eager-strict\nVersion: 1\n")
        (facts / "entry_points.txt").write_text("[polygrad.drivers]\nstrict = eager_strict\n")
        os.environ["PYTHONPATH"] = os.pathsep.join([folder, *(p for p in sys.path if p), before or ""])
        try:
            yield
        finally:
            if before is None:
                del os.environ["PYTHONPATH"]
            else:
                os.environ["PYTHONPATH"] = before


def matrix() -> tuple[list[Kill], list[str]]:
    """Try every mutant with its killers, and the killers on sound devices; return the kills and what is wrong."""
    checks, kills, faults = all_checks(), [], []
    sound: dict[tuple[int, str], str] = {}
    for mutant in MUTANTS:
        mine = [checks[name] for name in mutant.killers]
        for kill in tried(mutant, mutant.ordinal, mine):
            kills.append(kill)
            if kill.end != "killed":
                faults.append(
                    f"{kill.check} does not find the mutant {mutant.name!r}: {kill.end} {kill.message}".rstrip()
                )
        for check in mine:
            if (mutant.ordinal, check.id) not in sound:
                control = tried(None, mutant.ordinal, [check])[0]
                sound[mutant.ordinal, check.id] = control.end
                if control.end != "survived":
                    faults.append(f"{check.id} fails on the sound device strict:{mutant.ordinal}: {control.message}")
    biting = {kill.function for kill in kills if kill.end == "killed"}
    functions = {c.function for c in checks.values() if c.level <= LAST_LEVEL}
    faults += [f"the test {name} finds no mutant; nobody knows that it can fail" for name in sorted(functions - biting)]
    return kills, faults


def table(kills: list[Kill]) -> str:
    """Return the matrix as text: for each mutant who finds it, for each test what it finds."""
    lines = ["mutant -> tests that find it", ""]
    for mutant in dict.fromkeys((k.group, k.mutant) for k in kills):
        mine = [k.check for k in kills if (k.group, k.mutant) == mutant and k.end == "killed"]
        lines.append(f"  {mutant[0]:10} {mutant[1]:42} {', '.join(mine) or 'nobody'}")
    lines += ["", "test -> mutants that it finds", ""]
    for function in dict.fromkeys(k.function for k in kills):
        mine = list(dict.fromkeys(k.mutant for k in kills if k.function == function and k.end == "killed"))
        lines.append(f"  {function:42} {', '.join(mine) or 'none'}")
    return "\n".join(lines) + "\n"


def run(folder: Path | None = None) -> int:
    """Print the matrix and return 0 if it is as it must be, else 1."""
    kills, faults = matrix()
    sys.stdout.write(table(kills))
    sys.stdout.writelines(f"FAULT {fault}\n" for fault in faults)
    functions = {k.check: k.function for k in kills if k.end == "killed"}
    checks = all_checks()
    core = len({f for name, f in functions.items() if checks[name].level <= LAST_LEVEL})
    mutants, above = len({k.mutant for k in kills}), len(set(functions.values())) - core
    verdict = (
        f"every mutant is found, and every test to level {LAST_LEVEL} finds one"
        if not faults
        else f"{len(faults)} faults"
    )
    sys.stdout.write(
        f"\n{mutants} mutants, {core} tests of levels 0 to {LAST_LEVEL} and {above} of those above: {verdict}\n"
    )
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        data = {"kills": [k._asdict() for k in kills], "faults": faults}
        (folder / "self-test.json").write_text(json.dumps(data, indent=1), encoding="utf-8")
    return 1 if faults else 0
