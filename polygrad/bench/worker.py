"""One library in one process: questions come in as lines of JSON, answers go out so.

Here: what the process does: pins itself, makes the work ready, makes calls and times them.
Not here: who asks, and how long it waits for an answer (`process.py`).

Started as ``python -c "from polygrad.bench.worker import main; main()" MODULE MODE DEVICE CPUS``, CPUS as
``0,1``.
"""

import ctypes
import gc
import importlib
import itertools
import json
import math
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

from polygrad.bench.inputs import digest
from polygrad.bench.peers import Library, Step
from polygrad.bench.work import ceilings, table

TOGETHER = 0.05  # seconds of calls between two waits, so that a device can run ahead but not without end
MOST_CALLS = 20000
WARM, LONG = 3, 2.0  # calls before the clock counts; after a call of so many seconds no more of them
PARENT_DIED = 1  # prctl's PR_SET_PDEATHSIG


def _memory(field: str) -> int:
    """Return VmHWM or VmRSS of this process in bytes; 0 where the system does not tell."""
    try:
        with open("/proc/self/status", encoding="ascii") as file:
            return next((int(line.split()[1]) * 1024 for line in file if line.startswith(field)), 0)
    except OSError:
        return 0


def _forget_peak() -> None:
    try:
        with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
            file.write("5")
    except OSError:  # then the peak is that of the process's whole life
        return


def _trim() -> None:
    """Give memory that is free back to the system, so that the next work's peak is its own."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


class Worker:
    """The library, and the work that it has ready."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self.step: Step | None = None
        self.timed = True  # by us; costs of graphs are by themselves
        self.together = 1
        self.before = 0  # bytes of the process, without the work

    def setup(self, work: str, size: str, target: float) -> dict[str, Any]:
        """Make work ready, make the first calls, and choose how many calls are a round."""
        found = (ceilings(size) | table(size))[work]
        self.timed = found.kind != "graph"
        _trim()
        self.before = _memory("VmRSS")
        self.step = self.library.build(found)
        if self.step is None:
            return {"absent": True}
        times, digests = [], []
        for call in range(WARM):
            began = time.perf_counter()
            results = self.step()
            self.library.wait(results)
            times.append(time.perf_counter() - began if self.timed else results)
            if self.timed and call in (0, WARM - 1):
                digests += digest([self.library.numbers(r) for r in results])
            del results
            if times[-1] > LONG and call and not self.timed:
                break
        estimate = min(times)
        if estimate < target:
            self.together = self._waits(estimate)
            estimate = self._round(max(1, min(MOST_CALLS, int(target / 4 / max(estimate, 1e-7)))))
        self.together = self._waits(estimate)
        _trim()  # what compilers took is not the work's
        _forget_peak()
        self.library.peak(reset=True)
        calls = max(1, min(MOST_CALLS, int(target / max(estimate, 1e-7))))
        return {"first": sum(times[:2]), "estimate": estimate, "calls": calls, "digest": digests}

    @staticmethod
    def _waits(estimate: float) -> int:
        return max(1, math.ceil(TOGETHER / max(estimate, 1e-7)))

    def _round(self, calls: int) -> float:
        """Return seconds a call."""
        step, library, together = self.step, self.library, self.together
        assert step is not None  # noqa: S101  setup comes first
        if not self.timed:
            return float(sum(step() for _ in range(calls)) / calls)
        results: Any = None
        began = time.perf_counter()
        for done in itertools.count(1):
            results = step()
            if done == calls or done % together == 0:
                library.wait(results)
            if done == calls:
                break
        return (time.perf_counter() - began) / calls

    def run(self, calls: int) -> dict[str, Any]:
        """Make a round of calls. The load of others is measured around all of this, collecting garbage included."""
        began, used = time.perf_counter(), os.times()
        gc.collect()
        seconds = self._round(calls)
        after = os.times()
        cpu = after.user + after.system - used.user - used.system
        return {"seconds": seconds, "wall": time.perf_counter() - began, "cpu": cpu}

    def drop(self) -> dict[str, Any]:
        """Let the work go, and say how much memory it took at most."""
        device = self.library.peak()
        taken = device if device is not None else max(0, _memory("VmHWM") - self.before)
        self.step = None
        gc.collect()
        self.library.let_go()
        _trim()
        return {"memory": taken}

    def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        """Do what is asked."""
        asked = question.pop("ask")
        answers: dict[str, Callable[..., dict[str, Any]]] = {"setup": self.setup, "run": self.run, "drop": self.drop}
        return answers[asked](**question)


def _said(error: BaseException) -> dict[str, Any]:
    traceback.print_exc()
    text = " ".join(str(error).split())[:300]
    return {"error": f"{type(error).__name__}: {text}" if text else type(error).__name__}


def _die_with_parent() -> None:
    """Have the system end this process when its parent ends, whatever a library is doing then."""
    control = getattr(ctypes.CDLL(None), "prctl", None)
    if control is not None:
        control(PARENT_DIED, signal.SIGKILL)


def main() -> None:
    """Answer questions until there are no more."""
    _die_with_parent()
    module, mode, device, cpus = sys.argv[1:5]
    chosen = [int(cpu) for cpu in cpus.split(",")] if cpus else []
    if chosen and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, chosen)
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print is not an answer

    def say(answer: dict[str, Any]) -> None:
        out.write(json.dumps(answer) + "\n")
        out.flush()

    threads = len(chosen) or os.cpu_count() or 1
    try:
        adapter = importlib.import_module(module).Adapter(mode, device, threads)
        worker = Worker(adapter)
    except Exception as error:  # the library's own; it is what the parent reports
        say(_said(error))
        return
    say({"version": adapter.version})
    for line in sys.stdin:
        try:
            answer = worker.answer(json.loads(line))
        except Exception as error:  # as above; the next work may do
            worker.step = None
            answer = _said(error)
        say(answer)
