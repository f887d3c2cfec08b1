"""The proof that the suite bites: every mutant is found by the checks that are named for it, and every test finds one.

Here: the two-way matrix and its judgement.
Not here: mutants (`mutant_list*.py`), the matrix as a page (`mutant_page.py`).
"""

import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from polygrad.driver import ACCELERATED_OPS, DriverInfo
from polygrad.driver.binding import open_device
from polygrad.driver.loader import REGISTRY, Registry
from polygrad_conformance import (
    mutant_list,
    mutant_list_library,
    mutant_list_runs,
    mutant_list_sharing,
    mutant_list_upper,
    mutant_page,
    strict,
)
from polygrad_conformance.bench import EFFORTS, Bench
from polygrad_conformance.checks import Check, all_checks
from polygrad_conformance.mutant_list import UNUSED
from polygrad_conformance.mutants import Mutant
from polygrad_conformance.outcome import FAILED, OK

ARRAYS = 6  # the level from which checks compute with arrays, which find their devices in the process's registry
MUTANTS = [
    *mutant_list.MUTANTS, *mutant_list_sharing.MUTANTS, *mutant_list_upper.MUTANTS, *mutant_list_library.MUTANTS,
    *mutant_list_runs.MUTANTS,
]  # fmt: skip


class Kill(NamedTuple):
    """What one check made of one mutant: "killed", "survived", or the exception that was no assertion."""

    mutant: str
    group: str
    check: str
    function: str
    end: str
    message: str


class Spoilt(strict.StrictDriver):
    """The strict driver by another name: beside it, and not it, a mutant may spoil a run that has it for reference."""

    info = DriverInfo("spoilt", summary="a strict device, for one mutant at a time")

    def open(self, ordinal: int, options: Any) -> Any:
        """Open one of the variants, under this name."""
        import dataclasses  # noqa: PLC0415

        return dataclasses.replace(super().open(ordinal, options), driver=self.info.name)


def tried(mutant: Mutant | None, ordinal: int, checks: list[Check]) -> list[Kill]:
    """Run *checks* on a strict device that *mutant* spoils (or on a sound one), each on a device of its own."""
    found = []
    for check in checks:
        here = check.level < ARRAYS
        registry = Registry(discovering=False) if here else REGISTRY
        plugin = (strict.StrictDriver if here else Spoilt).plugin()
        registry.register(plugin)
        try:
            with _eager(mutant):
                end, message = _ended(registry, plugin, mutant, ordinal, check)
        finally:
            sys.modules.pop(UNUSED, None)
            registry.unregister(plugin)
        name, group = (mutant.name, mutant.group) if mutant else ("", "")
        found.append(Kill(name, group, check.id, check.function, end, message))
    return found


def _ended(registry: Registry, plugin: Any, mutant: Mutant | None, ordinal: int, check: Check) -> tuple[str, str]:
    spoiler = mutant.make(plugin) if mutant else None
    if spoiler is not None and mutant is not None and mutant.early:
        _enter(registry, spoiler)
    device = open_device(registry, f"{plugin.driver.info.name}:{ordinal}", {"delay": "0"})
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
    finally:
        if registry is REGISTRY:
            _leave(registry, spoiler)
            bench.device.close()
    return "survived", ""


def _enter(registry: Registry, spoiler: Any) -> None:
    if hasattr(spoiler, "polygrad_drivers"):
        registry.plugins.register(spoiler)  # the registry would take it for a driver
    else:
        registry.register(spoiler)


def _leave(registry: Registry, spoiler: Any) -> None:
    if spoiler is not None:
        registry.unregister(spoiler)


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
    functions = {c.function for c in checks.values()}
    faults += [f"the test {name} finds no mutant; nobody knows that it can fail" for name in sorted(functions - biting)]
    faults += [f"the op {op} has no test; write one of level 5" for op in untested_ops()]
    return kills, faults


def untested_ops() -> list[str]:
    """Return the accelerated ops that no check of level 5 needs; write and read are level 1's.

    >>> untested_ops()
    []
    """
    needed = {need for c in all_checks().values() for need in c.needs}
    return [op for op in ACCELERATED_OPS if op not in ("write", "read") and f"op.{op}" not in needed]


def run(folder: Path | None = None) -> int:
    """Print the matrix and return 0 if it is as it must be, else 1."""
    began = time.monotonic()
    kills, faults = matrix()
    sys.stdout.write(mutant_page.text(kills))
    sys.stdout.writelines(f"FAULT {fault}\n" for fault in faults)
    found = [k for k in kills if k.end == "killed"]
    mutants, functions = len({k.mutant for k in kills}), len({k.function for k in found})
    verdict = f"{len(faults)} faults" if faults else "every mutant is found, and every test finds one"
    seconds = time.monotonic() - began
    sys.stdout.write(f"\n{mutants} mutants, {functions} tests, {len(found)} kills in {seconds:.0f} s: {verdict}\n")
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        data = {"kills": [k._asdict() for k in kills], "faults": faults}
        (folder / "self-test.json").write_text(json.dumps(data, indent=1), encoding="utf-8")
        (folder / "mutants.md").write_text(mutant_page.markdown(kills), encoding="utf-8")
    return FAILED if faults else OK
