"""The process in which checks run: a driver may crash or hang it without harm.

Here: one loop that reads a request a line and answers with a line. Not here: who starts it (`isolation.py`).

Requests are JSON: first ``{"device", "plugins", "profile", "seed", ...}``, answered by a description of the device;
then ``{"check": id}``, ``{"replay": case}`` or ``{"probe": true}``. Answers begin with `MARK`, for drivers may print.
"""

import dataclasses
import importlib
import json
import sys
import time
import traceback
from typing import Any

import numpy as np

from polygrad.driver import DeviceLost, Requirements
from polygrad.driver.binding import open_device
from polygrad.driver.loader import REGISTRY
from polygrad.errors import PolygradError
from polygrad_conformance import gating, probe, replay
from polygrad_conformance.bench import EFFORTS, Bench, Failure
from polygrad_conformance.checks import all_checks

MARK = "\x1epolygrad-conformance "


def main() -> None:
    """Serve until the input ends."""
    request = json.loads(sys.stdin.readline())
    try:
        bench, answer = opened(request)
    except PolygradError as error:
        _send({"refused": str(error), "kind": type(error).__name__})
        return
    _send(answer)
    checks = all_checks()
    for line in sys.stdin:
        request = json.loads(line)
        if "probe" in request:
            _send({"undeclared": probe.undeclared(bench)})
        elif "replay" in request:
            case = request["replay"]
            _send(attempted(bench, lambda case=case: replay.run(bench, case), case["check"]))
        else:
            if request.get("fresh"):
                bench.memo.clear()
            check = checks[request["check"]]
            _send(attempted(bench, lambda check=check: check.run(bench), check.id))


def opened(request: dict[str, Any]) -> tuple[Bench, dict[str, Any]]:
    """Open the device of a request; return the bench and the description of what is on it."""
    for name in request.get("plugins", ()):
        module, _, attribute = name.partition(":")
        REGISTRY.register(getattr(importlib.import_module(module), attribute))
    device = open_device(REGISTRY, request["device"])
    bench = Bench(REGISTRY, device, EFFORTS[request["profile"]], request["seed"])
    fault = ""
    try:
        bench.requirements = gating.requirements_of(REGISTRY, device)
    except Exception as error:
        fault = f"{type(error).__name__}: {error}"
    record = REGISTRY.record(device.info.driver)
    info = {f.name: _plain(getattr(device.info, f.name)) for f in dataclasses.fields(device.info)}
    return bench, {
        "info": {**info, "limits": vars(device.info.limits), "features": vars(device.info.features)},
        "device": device.name,
        "distribution": record.distribution,
        "version": record.version,
        "capabilities": sorted(gating.capabilities(device.info)),
        "requirements": _required(bench.requirements),
        "fault": fault,
    }


def _required(wanted: Requirements) -> dict[str, Any]:
    return {
        "unsupported": dict(wanted.unsupported),
        "expected_failure": {k: dataclasses.asdict(v) for k, v in wanted.expected_failure.items()},
        "tolerance": dict(wanted.tolerance),
    }


def attempted(bench: Bench, run: Any, name: str) -> dict[str, Any]:
    """Run one thing on the bench and return what became of it."""
    began = time.perf_counter()
    answer: dict[str, Any] = {"check": name, "ok": True, "message": ""}
    try:
        with np.errstate(all="ignore"):
            run()
    except AssertionError as error:
        answer |= {"ok": False, "message": str(error) or _line_of(error), "kind": "assertion"}
        if isinstance(error, Failure):
            answer["case"] = replay.save(error.case, name)
    except Exception as error:
        answer |= {"ok": False, "message": f"raised {type(error).__name__}: {error}", "kind": "error",
                   "traceback": traceback.format_exc()[-4000:], "lost": isinstance(error, DeviceLost)}  # fmt: skip
    try:
        bench.tidy()
    except Exception as error:
        if answer["ok"]:
            answer |= {
                "ok": False,
                "message": f"freeing a block raised {type(error).__name__}: {error}",
                "kind": "error",
            }
    answer |= {"seconds": time.perf_counter() - began, "exercised": sorted(bench.exercised), "figures": bench.figures}
    bench.figures, bench.exercised = {}, set()
    return answer


def _line_of(error: AssertionError) -> str:
    """Return the source line of a bare assert, for a message that it has not."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"not true: {frames[-1].line}" if frames else "an assertion failed"


def _plain(value: Any) -> Any:
    if isinstance(value, frozenset):
        return sorted(value)
    return dict(value) if hasattr(value, "items") else value


def _send(answer: dict[str, Any]) -> None:
    sys.stdout.write("\n" + MARK + json.dumps(answer, default=str) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
