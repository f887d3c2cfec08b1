"""A worker process and its end: answers, crashes and hangs as values.

Here: `Worker`. Not here: what it is asked (`worker.py`), what is made of the answers (`running.py`).
"""

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from typing import Any

LINGER = 10.0  # seconds for a process that has closed its output to end
MARK = "\x1epolygrad-conformance "


class Died(Exception):
    """The worker ended without an answer; the message says how."""


class Hung(Exception):
    """The worker gave no answer in time, and was killed."""


class Worker:
    """A child process that answers requests.

    Parameters
    ----------
    hello : dict
        The first request.
    limit : float
        Seconds within which it must answer.

    Attributes
    ----------
    answer : dict
        What it answered to *hello*.

    Raises
    ------
    Died, Hung
        If it does not answer.
    """

    def __init__(self, hello: dict[str, Any], limit: float) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  closed with the worker
        paths = os.pathsep.join(dict.fromkeys(p or os.getcwd() for p in sys.path))
        self._process = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", "-m", "polygrad_conformance.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**os.environ, "PYTHONPATH": paths},
        )
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()
        self.answer = self.ask(hello, limit)

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(MARK):
                self._lines.put(line[len(MARK) :])
        self._lines.put(None)

    def ask(self, request: dict[str, Any], limit: float) -> dict[str, Any]:
        """Send *request* and return the answer."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._lines.get(timeout=limit)
        except queue.Empty:
            self.close()
            raise Hung(f"no answer within {limit:g} s; the process was killed") from None
        except BrokenPipeError:
            line = None
        if line is None:
            raise Died(self._obituary())
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _obituary(self) -> str:
        try:
            code = self._process.wait(LINGER)
        except subprocess.TimeoutExpired:  # it has closed its output and lives on
            self.close()
            return "the process stopped answering; it was killed"
        how = f"ended with code {code}"
        if code < 0:
            how = f"was ended by {signal.Signals(-code).name}"
        self._errors.seek(0)
        tail = self._errors.read().decode(errors="replace").strip().splitlines()[-12:]
        self.close()
        return f"the process {how}" + (": " + " | ".join(line.strip() for line in tail) if tail else "")

    def close(self) -> None:
        """End the process, if it has not."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:
                    continue  # what was not sent is of no use to a process that has ended
