"""Drivers tried in processes of their own, with a time limit: what became of each.

Here: the parent's side: starting, waiting, giving up, what a child that hangs or crashes is worth in words.
Not here: what runs in the child (`probe.py`), what a command prints.
"""

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from polygrad.cli.probe import MARK, QUESTION, Depth
from polygrad.driver import messages
from polygrad.driver.loader import REGISTRY
from polygrad.driver.records import DriverRecord

SECONDS = 60.0
FAULTS = ("broken", "incompatible", "duplicate")  # absent hardware and blocked drivers are no fault
AT_ONCE = 4
LAST_WORDS = 0.5  # seconds in which a child that hangs is to write down where


class Tried(NamedTuple):
    """A driver's record after the attempt, and its devices as `probe.py` describes them."""

    record: DriverRecord
    devices: list[dict[str, Any]]


def add_timeout(parser: argparse.ArgumentParser) -> None:
    """Take ``--timeout``."""
    parser.add_argument(
        "--timeout", type=float, default=SECONDS, metavar="SECONDS",
        help="how long a driver may take to answer (default: %(default)s)",
    )  # fmt: skip


def try_drivers(seconds: float, depth: Depth) -> list[Tried]:
    """Try every installed driver, some at once, and return what became of each, in order of names."""
    records = REGISTRY.records()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(lambda record: _tried(record, seconds, depth), records))


def _tried(record: DriverRecord, seconds: float, depth: Depth) -> Tried:
    if record.status != "unloaded":
        return Tried(record, [])
    code, out, err = _run(record.name, seconds, depth)
    answers = [line for line in out.splitlines() if line.startswith(MARK)]
    if answers:
        answer = json.loads(answers[-1].removeprefix(MARK))
        return Tried(DriverRecord(**answer["record"]), answer["devices"])
    source = f"{record.distribution} {record.version}".strip()
    if code is None:
        reason = messages.hanging(record.name, source, seconds, _where(err))
    else:
        how = f"was ended by {_signal_name(-code)}" if code < 0 else f"ended with code {code}"
        last = err.strip().splitlines()
        reason = messages.crashed(record.name, source, how, last[-1] if last and not _FRAME.search(err) else "")
    return Tried(record._replace(status="broken", reason=reason, traceback=err.strip()), [])


def _run(name: str, seconds: float, depth: Depth) -> tuple[int | None, str, str]:
    """Return exit code (None: it was given up), stdout and stderr of a child that tries driver *name*."""
    # The same sys.path, so that the child finds what this process would import, and nothing else.
    source = f"import sys; sys.path[:] = {sys.path!r}; from polygrad.cli.probe import main; main({name!r}, {depth!r})"
    # Into files, and in a session of its own: what the driver may have started can neither keep us waiting nor live on.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = subprocess.Popen(  # noqa: S603  this interpreter, and a text of our own
            [sys.executable, "-c", source], stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
        )
        try:
            code: int | None = child.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
            child.send_signal(QUESTION)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(LAST_WORDS)
        finally:
            _end(child)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    return code, texts[0], texts[1]


def _end(child: "subprocess.Popen[bytes]") -> None:
    """End the child and whatever it has started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # when all of them have ended
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


_FRAME = re.compile(r'^  File "(.+)", line (\d+) in (\S+)$', re.MULTILINE)  # as faulthandler writes it


def _where(err: str) -> str:
    """Return the innermost place that a child which hangs has written down, or an empty text."""
    found = _FRAME.search(err.rpartition("(most recent call first):")[2])
    return f"{found[1]}, line {found[2]}, in {found[3]}" if found else ""


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def faulty(tried: Sequence[Tried]) -> list[str]:
    """Return in a sentence each what is wrong with drivers and devices; absent hardware is not."""
    found = []
    for record, devices in tried:
        if record.status in FAULTS:
            found.append(record.reason)
        elif record.status == "ok":  # otherwise the reason is told already
            found += [f"{device['name']}: {device['fault']}" for device in devices if device["fault"]]
    return found
