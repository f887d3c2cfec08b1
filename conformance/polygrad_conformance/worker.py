"""The process in which checks run: a driver may crash or hang it without harm.

Here: one loop that reads a request a line and answers with a line. Not here: who starts it (`isolation.py`).

Requests are JSON: first ``{"device", "plugins", "profile", "seed", ...}``, answered by a description of the device;
then ``{"check": id}``, ``{"replay": case}``, ``{"shrink": case}`` or ``{"probe": true}``. Answers go to the standard
output as it was at the start; what drivers print, from C too, goes to the standard error.
"""

import contextlib
import dataclasses
import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Iterator
from typing import Any, TextIO

import numpy as np

from polygrad.driver import DeviceLost, Requirements
from polygrad.driver.binding import open_device
from polygrad.driver.calls import bound_hook
from polygrad.driver.loader import REGISTRY
from polygrad.driver.show import show
from polygrad_conformance import gating, probe, replay, shrinking
from polygrad_conformance.bench import EFFORTS, Bench, Failure
from polygrad_conformance.checks import all_checks

MARK = "\x1epolygrad-conformance "
Answer = dict[str, Any]


def main() -> None:
    """Serve until the input ends."""
    with _channel() as out:
        request = json.loads(sys.stdin.readline())
        try:
            bench, answer = opened(request)
        except BaseException as error:  # a driver may raise anything at all, also to end the process
            _send(out, {"refused": said(error), "kind": type(error).__name__})
            return
        _send(out, answer)
        for line in sys.stdin:
            _send(out, answered(bench, json.loads(line)))


@contextlib.contextmanager
def _channel() -> Iterator[TextIO]:
    """Yield the way to the parent process, and turn standard output over to standard error."""
    sys.stdout.flush()
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        os.dup2(2, 1)
        yield out


def answered(bench: Bench, request: dict[str, Any]) -> Answer:
    """Do what *request* asks."""
    if "probe" in request:
        try:
            return {"undeclared": probe.undeclared(bench)}
        except BaseException as error:
            return {"undeclared": [], "fault": said(error)}
    if "replay" in request:
        case = request["replay"]
        return attempted(bench, lambda: replay.run(bench, case), case["check"])
    if "shrink" in request:
        return shrunk(bench, request["shrink"])
    if request.get("fresh"):
        bench.memo.clear()
    check = all_checks()[request["check"]]
    return attempted(bench, lambda: check.run(bench), check.id)


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


def attempted(bench: Bench, run: Any, name: str) -> Answer:
    """Run one thing on the bench and return what became of it."""
    began = time.perf_counter()
    answer: Answer = {"check": name, "ok": True, "message": ""}
    bench.launched = None
    try:
        with np.errstate(all="ignore"):
            run()
    except AssertionError as error:
        answer |= {"ok": False, "message": said(error) or _line_of(error), "kind": "assertion"}
        if isinstance(error, Failure):
            answer["case"] = replay.save(error.case, name)
            bench.launched = error.case.kernel, error.case.ints
    except BaseException as error:  # SystemExit and KeyboardInterrupt, too: the driver's, for nobody else is here
        answer |= {"ok": False, "message": f"raised {type(error).__name__}: {said(error)}", "kind": "error",
                   "traceback": traceback.format_exc()[-4000:], "lost": isinstance(error, DeviceLost)}  # fmt: skip
    if not answer["ok"]:
        answer |= shown(bench)
    try:
        bench.tidy()
    except BaseException as error:
        if answer["ok"]:
            what = f"freeing a block raised {type(error).__name__}: {said(error)}"
            answer |= {"ok": False, "message": what, "kind": "error"}
    answer |= {"seconds": time.perf_counter() - began, "exercised": sorted(bench.exercised), "figures": bench.figures}
    bench.figures, bench.exercised = {}, set()
    return answer


def shown(bench: Bench) -> Answer:
    """Return the kernel that the bench launched last, as text and as the driver's source, if there is one."""
    if bench.launched is None:
        return {}
    kernel, ints = bench.launched
    found = {"kernel": show(kernel, ints)}
    if ints is not None:
        try:
            plugin = bench.registry.loaded[bench.info.driver].plugin
            text = bound_hook(bench.registry, plugin, "polygrad_source")(bench.info, kernel, tuple(ints))
            found["source"] = text if isinstance(text, str) else ""
        except BaseException as error:
            found["source"] = f"(the driver's source hook raised {type(error).__name__}: {said(error)})"
    return found


def shrunk(bench: Bench, saved: dict[str, Any]) -> Answer:
    """Return a smaller case that fails as *saved* does, with its kernel."""
    case = replay.load(saved)
    small = shrinking.shrink(case, lambda smaller: _fails(bench, smaller))
    bench.launched = small.kernel, small.ints
    return {"case": replay.save(small, saved["check"]), **shown(bench)}


def _fails(bench: Bench, case: Any) -> bool:
    try:
        bench.judge(case)
    except Failure:
        return True
    return False


def said(error: BaseException) -> str:
    """Return the message of an exception, whose class may be the driver's and wrong, too."""
    try:
        return str(error)
    except BaseException:
        return "(its message cannot be shown)"


def _line_of(error: AssertionError) -> str:
    """Return the source line of a bare assert, for a message that it has not."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"not true: {frames[-1].line}" if frames else "an assertion failed"


def _plain(value: Any) -> Any:
    if isinstance(value, frozenset):
        return sorted(value)
    return dict(value) if hasattr(value, "items") else value


def _send(out: TextIO, answer: Answer) -> None:
    out.write("\n" + MARK + json.dumps(answer, default=str) + "\n")
    out.flush()


if __name__ == "__main__":
    main()
