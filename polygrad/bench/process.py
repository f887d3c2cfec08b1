"""The parent's side of a worker: starting it, asking, waiting with a limit, ending it.

Here: processes, pipes and what is left of them when they fail, in words.
Not here: what a worker does (`worker.py`), who is asked when (`rounds.py`).
"""

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from polygrad.bench.peers import Peer, Place

STARTING = 60.0  # seconds that a library may take to be imported, however short answers are to be
_PIECE = 65536
_NOTE = 200  # characters of a process's last line that a row shows


@dataclass(frozen=True)
class Contender:
    """A library on a device: a row of each table."""

    peer: Peer
    device: str  # polygrad's name of it, or "cpu" or "nvidia" for other libraries
    place: Place

    @property
    def name(self) -> str:
        """What tables call it."""
        if self.own:
            return f"{self.peer.name} {self.device}"
        return self.peer.name if self.place == "cpu" else f"{self.peer.name} {self.device}"

    @property
    def own(self) -> bool:
        """Whether it is polygrad."""
        return self.peer.package == "polygrad"


class Process:
    """A contender's process, started when it is first asked."""

    def __init__(self, contender: Contender, cpus: Sequence[int], limit: float) -> None:
        self.contender, self.cpus, self.limit = contender, list(cpus), limit
        self.version = ""
        self.failed = 0  # times in a row that it died
        self._child: subprocess.Popen[bytes] | None = None
        self._errors: Any = None
        self._rest = b""

    def _start(self) -> dict[str, Any]:
        peer = self.contender.peer
        environment = dict(os.environ)
        # Two threads that wait for each other spin by default, which costs whoever shares the machine most of its time.
        environment |= {"OMP_NUM_THREADS": str(len(self.cpus)), "OMP_WAIT_POLICY": "passive"} | dict(peer.environment)
        source = f"import sys; sys.path[:] = {sys.path!r}; from polygrad.bench.worker import main; main()"
        cpus = ",".join(map(str, self.cpus))
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  closed by `end`
        self._rest = b""
        # In a session of its own: Ctrl-C is the parent's, and what the library starts goes when it goes.
        self._child = subprocess.Popen(  # noqa: S603  this interpreter, and a text of our own
            [sys.executable, "-c", source, peer.module, peer.mode, self.contender.device, cpus],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, env=environment, start_new_session=True,
        )  # fmt: skip
        answer = self._answer(max(self.limit, STARTING))
        self.version = answer.get("version", self.version)
        return answer

    def ask(self, **question: Any) -> dict[str, Any]:
        """Return the answer, or ``{"error": why, "dead": True}`` if the process has died or hangs."""
        if self._child is None:
            started = self._start()
            if "error" in started:
                self.end()
                self.failed += 1
                return started | {"dead": True}
        assert self._child is not None  # noqa: S101  started above
        assert self._child.stdin is not None  # noqa: S101  a pipe
        with contextlib.suppress(BrokenPipeError):  # the answer says that it has died
            self._child.stdin.write(json.dumps(question).encode() + b"\n")
            self._child.stdin.flush()
        answer = self._answer(self.limit)
        if answer.get("dead"):
            self.failed += 1
        elif "error" not in answer:
            self.failed = 0
        return answer

    def _answer(self, limit: float) -> dict[str, Any]:
        child = self._child
        assert child is not None  # noqa: S101  callers have started it
        assert child.stdout is not None  # noqa: S101  a pipe
        end = time.monotonic() + limit
        with selectors.DefaultSelector() as selector:
            selector.register(child.stdout, selectors.EVENT_READ)
            while b"\n" not in self._rest:
                left = end - time.monotonic()
                if left <= 0 or not selector.select(left):
                    self.end()
                    return {"error": f"no answer in {limit:g} s", "dead": True, "hung": True}
                piece = os.read(child.stdout.fileno(), _PIECE)
                if not piece:
                    return self._died()
                self._rest += piece
        line, _, self._rest = self._rest.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _died(self) -> dict[str, Any]:
        assert self._child is not None  # noqa: S101  it was asked
        code = self._child.wait()
        how = f"was ended by {_signal_name(-code)}" if code < 0 else f"ended with code {code}"
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        last = f": {lines[-1].strip()[:_NOTE]}" if lines and code >= 0 else ""
        self.end()
        return {"error": f"its process {how}{last}", "dead": True}

    def end(self) -> None:
        """End the process and whatever it has started."""
        child, self._child = self._child, None
        if child is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):  # when all of them have ended
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        for pipe in (child.stdin, child.stdout, self._errors):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):  # a question that was never read
                    pipe.close()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
