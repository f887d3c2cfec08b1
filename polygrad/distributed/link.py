"""A rank's link to the hub: small values of all ranks, and word of ranks that are gone or late.

Here: the connection, the number of each collective, waiting with a limit.
Not here: the hub (`hub.py`), arrays.
"""

import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from polygrad.errors import DistributedError

NOTE = 0.5  # seconds of waiting after which the hub is told
ANSWER = 5.0  # seconds that the hub has to say who is late


def start_hub(size: int, address: str = "127.0.0.1", port: int = 0, token: str | None = None) -> dict[str, Any]:
    """Start the hub of a job as a process of its own; return its address, port and token.

    Raises
    ------
    DistributedError
        If it cannot listen there.
    """
    token = secrets.token_hex(16) if token is None else token
    program = Path(__file__).with_name("hub.py")
    process = subprocess.Popen(  # noqa: S603  our own file, by this interpreter
        [sys.executable, "-I", "-S", os.fspath(program)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stdin is not None  # noqa: S101  asked for above
    assert process.stdout is not None  # noqa: S101  the same
    with contextlib.suppress(BrokenPipeError), process.stdin:
        process.stdin.write(json.dumps({"size": size, "address": address, "port": port, "token": token}) + "\n")
    with process.stdout:
        line = process.stdout.readline()
    if not line.strip():
        process.wait()
        raise DistributedError(
            f"cannot start a job of {size} processes: nothing can listen on {address}:{port or 'any port'}, see above; "
            "is another job using it?"
        )
    _hubs.append(process)  # it outlives this process: nobody waits for it
    return {"address": address, "port": int(line), "token": token}


_hubs: list[Any] = []


class Link:
    """The connection of one rank.

    Parameters
    ----------
    rank, size : int
        Which of how many.
    address, port, token
        Where the hub is, from `start_hub`.
    timeout : float
        Seconds that a rank waits for others before the job ends.
    grace : float
        Seconds that this process has to end by itself once the job is at its end.

    Raises
    ------
    DistributedError
        If the hub is not there, refuses, or the other ranks do not come.
    """

    def __init__(
        self, rank: int, size: int, address: str, port: int, token: str, timeout: float = 600.0, grace: float = 10.0
    ) -> None:
        self.rank, self.size, self.timeout, self.grace = rank, size, timeout, grace
        self.fault: str | None = None
        self.lost = False  # whether the fault is another rank's
        self._count = 0
        self._what = "nothing yet"
        self._waiting = False
        self._closing = False
        self._started = False
        self._gathered: dict[int, tuple[list[str], list[Any]]] = {}
        self._news = threading.Condition()
        self._sending = threading.Lock()
        self._socket = self._connect(address, port)
        self._send(t="hello", rank=rank, size=size, pid=os.getpid(), host=socket.gethostname(), token=token)
        threading.Thread(target=self._listen, name="polygrad link", daemon=True).start()
        try:
            self._meet()
        except BaseException:
            self._closing = True
            self._hang_up()
            raise

    def _connect(self, address: str, port: int) -> socket.socket:
        end = time.monotonic() + self.timeout
        while True:
            try:
                found = socket.create_connection((address, port), timeout=10.0)
            except OSError as error:
                if time.monotonic() > end:
                    raise DistributedError(
                        f"rank {self.rank} of {self.size} has found no rank 0 at {address}:{port} in "
                        f"{self.timeout:g} seconds ({error}): is it running, and its address right?"
                    ) from None
                time.sleep(0.1)
                continue
            found.settimeout(None)
            found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return found

    def _meet(self) -> None:
        with self._news:
            self._news.wait_for(lambda: self._started or self.fault, self.timeout)
        if self.fault:
            raise DistributedError(f"rank {self.rank} cannot join the job: {self.fault}")
        if not self._started:
            raise DistributedError(
                f"rank {self.rank} of {self.size} has waited {self.timeout:g} seconds for the others to start: are all "
                f"{self.size} processes running?"
            )

    # ---- collectives ---------------------------------------------------------------------------------------

    def begin(self, what: str) -> int:
        """Return the number of the next collective, which is called *what*: every rank counts alike."""
        self.check()
        self._count += 1
        self._what = what
        return self._count

    def gather(self, what: str, value: Any) -> list[Any]:
        """Return the *value*, anything that JSON holds, of each rank; every rank calls it.

        Raises
        ------
        DistributedError
            If other ranks collect something else, or a rank is gone or late.
        """
        number = self.begin(what)
        self._waiting = True
        self._send(t="gather", n=number, what=what, value=value)
        self.until(lambda: number in self._gathered, what, told=True, condition=self._news)
        self._waiting = False
        names, values = self._gathered.pop(number)
        if len(set(names)) > 1:
            told = "; ".join(f"rank {r} is in {name}" for r, name in enumerate(names))
            raise DistributedError(f"the ranks do not do the same: {told}")
        return values

    def until(
        self,
        done: Callable[[], object],
        what: str,
        *,
        told: bool = False,
        condition: threading.Condition | None = None,
        pause: float = 0.001,
    ) -> None:
        """Wait until *done* returns something true, looking every *pause* seconds, or when *condition* is notified.

        Raises
        ------
        DistributedError
            If a rank is gone, or it takes longer than the limit; the sentence says who waits for whom.
        """
        began, late = time.monotonic(), False
        while not done():
            self.check()
            waited = time.monotonic() - began
            if waited > NOTE and not told:
                told = self._waiting = True
                self._send(**self._at())
            if waited > self.timeout and not late:
                late = True
                self._send(t="late", n=self._count, what=what, seconds=self.timeout)
            if waited > self.timeout + ANSWER:
                raise DistributedError(
                    f"rank {self.rank} has waited {waited:.0f} seconds in {what}, and no rank answers"
                )
            if condition is not None:
                with condition:
                    if not done() and self.fault is None:
                        condition.wait(0.2)
            else:
                time.sleep(pause)
        if told and self._waiting:
            self._waiting = False
            self._send(**self._at())

    def check(self) -> None:
        """Raise DistributedError if the job is at its end."""
        if self.fault is not None:
            raise DistributedError(self.fault)

    def _at(self) -> dict[str, Any]:
        return {"t": "at", "n": self._count, "what": self._what, "waiting": self._waiting}

    # ---- the conversation ----------------------------------------------------------------------------------

    def _send(self, **message: Any) -> None:
        data = json.dumps(message).encode() + b"\n"
        try:
            with self._sending:
                self._socket.sendall(data)
        except OSError:
            self._fail("the connection to rank 0's host is gone")

    def _listen(self) -> None:
        with contextlib.suppress(OSError, ValueError), self._socket.makefile("rb") as lines:
            for line in lines:
                message = json.loads(line)
                kind = message["t"]
                if kind == "gathered":
                    with self._news:
                        self._gathered[message["n"]] = (message["names"], message["values"])
                        self._news.notify_all()
                elif kind == "start":
                    with self._news:
                        self._started = True
                        self._news.notify_all()
                elif kind == "where":
                    self._send(**self._at())
                else:  # end or refused
                    self.lost = kind == "end"
                    self._fail(message["why"])
        self._fail("the connection to rank 0's host is gone")

    def _fail(self, why: str) -> None:
        if self.fault is not None or self._closing:
            return
        with self._news:
            self.fault = why
            self._news.notify_all()
        if self._started:
            threading.Thread(target=self._end_soon, name="polygrad end", daemon=True).start()

    def _end_soon(self) -> None:
        """End this process if its main thread does not notice: it may be inside of a library, waiting for ever."""
        time.sleep(self.grace)
        if not self._closing:
            sys.stderr.write(f"polygrad: rank {self.rank} of {self.size} ends: {self.fault}\n")
            sys.stderr.flush()
            os._exit(1)

    def failed(self, why: str) -> None:
        """Tell the other ranks that this one has failed."""
        if self.fault is None:
            self._send(t="failed", why=why)

    def abandon(self) -> None:
        """Let go of the connection in a forked child, so that it does not live on there when this process is gone."""
        self._closing = True
        self.fault = (
            "this process was forked from a rank, and is none itself: start processes with "
            "multiprocessing.get_context('spawn'), and let them call polygrad.distributed.init()"
        )
        os.close(self._socket.detach())  # close() would wait for the reader, whose thread does not exist here

    def close(self) -> None:
        """Say goodbye."""
        if self._closing:
            return
        self._send(t="bye", n=self._count)
        self._closing = True
        self._hang_up()

    def _hang_up(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
