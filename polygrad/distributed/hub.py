"""The hub of a job: a small process beside the ranks that outlives each of them and knows where each is.

Here: meeting, collecting small values of all ranks, noticing that a rank is gone, saying who waits for whom.
Not here: arrays; the ranks' side of the conversation (`link.py`).

Rank 0 starts it by its path, with the standard library alone, and it ends when no rank is connected any more.

Messages are lines of JSON with a kind, ``"t"``. Ranks say hello, gather (number, name and value of a collection), at
(number and name of the last collective that was begun, whether it waits), late (it has waited too long), failed (what
it raised) and bye; the hub says start, refused, gathered, where (answer with at) and end (why the job ends).

A rank that is killed cannot say so, but its connection ends. MPI's own launchers then name at best a process number.
"""

import json
import os
import selectors
import socket
import sys
import time
from typing import Any

QUIET = 60.0  # seconds without any rank before the hub ends
ANSWER = 1.0  # seconds that ranks have to say where they are
GREETING = 4096  # bytes that a connection may send before it has said who it is


class Rank:
    """One connection, and what is known of the rank at its other end."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.buffer = b""
        self.number = -1  # of the rank, once it has said hello
        self.who = "a process that has not said hello"
        self.left = False
        self.at: dict[str, Any] = {"n": 0, "what": "nothing yet", "waiting": False}
        self.answered = 0.0

    def send(self, **message: Any) -> None:
        """Send a message; a rank that is gone is noticed where messages are read."""
        try:
            self.connection.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            self.buffer = b""


class Hub:
    """The state of a job of *size* ranks."""

    def __init__(self, size: int, token: str, server: socket.socket) -> None:
        self.size, self.token, self.server = size, token, server
        self.selector = selectors.DefaultSelector()
        self.selector.register(server, selectors.EVENT_READ, None)
        self.ranks: dict[int, Rank] = {}
        self.open = 0
        self.began = time.monotonic()
        self.gathers: dict[int, dict[int, tuple[str, Any]]] = {}
        self.late: tuple[Rank, dict[str, Any], float] | None = None
        self.ended = False

    def run(self) -> None:
        """Serve until every rank is gone."""
        seen = time.monotonic()
        while True:
            for key, _ in self.selector.select(0.2):
                if key.data is None:
                    connection, _ = self.server.accept()
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    self.selector.register(connection, selectors.EVENT_READ, Rank(connection))
                    self.open += 1
                else:
                    self._read(key.data)
            if self.late is not None and time.monotonic() > self.late[2]:
                self._judge(*self.late[:2])
            if self.open:
                seen = time.monotonic()
            elif self.ranks or time.monotonic() - seen > QUIET:
                return

    def _read(self, rank: Rank) -> None:
        try:
            data = rank.connection.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            self._gone(rank)
            return
        *lines, rank.buffer = (rank.buffer + data).split(b"\n")
        if rank.number < 0 and len(rank.buffer) > GREETING:
            self._gone(rank)
            return
        for line in lines:
            try:
                message = json.loads(line)
                kind = message["t"]
            except (ValueError, TypeError, KeyError):
                self._gone(rank)  # not one of ours
                return
            if rank.number < 0 and kind != "hello":
                self._gone(rank)
                return
            getattr(self, f"_on_{kind}", self._ignored)(rank, message)

    def _ignored(self, rank: Rank, message: dict[str, Any]) -> None:
        pass

    def _on_hello(self, rank: Rank, message: dict[str, Any]) -> None:
        number, size = message.get("rank"), message.get("size")
        if message.get("token") != self.token or not isinstance(number, int):
            rank.send(t="refused", why="it does not belong to this job")
        elif size != self.size:
            rank.send(
                t="refused", why=f"rank {number} was told of {size} processes, rank 0 of {self.size}: start all alike"
            )
        elif number in self.ranks or not 0 <= number < self.size:
            rank.send(t="refused", why=f"there are two processes with rank {number}, or it is none of {self.size}")
        else:
            rank.number = number
            rank.who = f"rank {number} of {self.size} (process {message.get('pid')} on {message.get('host')})"
            self.ranks[number] = rank
            if len(self.ranks) == self.size:
                for other in self.ranks.values():
                    other.send(t="start")
            return
        self._close(rank)

    def _on_gather(self, rank: Rank, message: dict[str, Any]) -> None:
        rank.at = {"n": message["n"], "what": message["what"], "waiting": True}
        found = self.gathers.setdefault(message["n"], {})
        found[rank.number] = (message["what"], message["value"])
        if len(found) == self.size:
            del self.gathers[message["n"]]
            for other in self.ranks.values():
                other.at["waiting"] = False
                other.send(
                    t="gathered", n=message["n"], names=[found[r][0] for r in range(self.size)],
                    values=[found[r][1] for r in range(self.size)],
                )  # fmt: skip
        else:
            self._missing(rank)

    def _on_at(self, rank: Rank, message: dict[str, Any]) -> None:
        rank.at, rank.answered = message, time.monotonic()
        if message.get("waiting"):
            self._missing(rank)

    def _missing(self, waiting: Rank) -> None:
        """End the job if a rank waits for one that has left."""
        for other in self.ranks.values():
            if other.left and other.at["n"] < waiting.at["n"]:
                self._end(
                    f"{other.who} has ended its program, but rank {waiting.number} waits for it in "
                    f"{waiting.at['what']}: all ranks must do the same"
                )
                return

    def _on_late(self, rank: Rank, message: dict[str, Any]) -> None:
        if self.late is None and not self.ended:
            self.late = (rank, message, time.monotonic() + ANSWER)
            for other in self.ranks.values():
                other.answered = 0.0
                other.send(t="where")

    def _judge(self, rank: Rank, message: dict[str, Any]) -> None:
        """Say for whom a rank has waited too long, and end the job."""
        self.late = None
        behind = []
        for number in sorted(self.ranks):
            other = self.ranks[number]
            if other is rank:
                continue
            if not other.answered:
                behind.append(f"rank {number}, which does not answer")
            elif other.at["n"] < message["n"]:
                behind.append(f"rank {number}, whose last collective is number {other.at['n']}, {other.at['what']}")
        whom = " and ".join(behind) or "the network: all ranks are there"
        self._end(
            f"rank {rank.number} has waited {message['seconds']:g} seconds in collective number {message['n']}, "
            f"{message['what']}, for {whom}; if that can take longer, give init(timeout=...) more seconds"
        )

    def _on_failed(self, rank: Rank, message: dict[str, Any]) -> None:
        self._end(f"rank {rank.number} of {self.size} has failed: {message['why']}", quiet=True)

    def _on_bye(self, rank: Rank, message: dict[str, Any]) -> None:
        rank.left = True
        rank.at["n"] = message["n"]
        for other in self.ranks.values():
            if other.at.get("waiting") and not other.left:
                self._missing(other)

    def _gone(self, rank: Rank) -> None:
        if rank.number >= 0 and not rank.left:
            self._end(
                f"{rank.who} is gone: it was killed (for want of memory, perhaps) or ended at once; the job ends, and "
                "can be resumed from its last checkpoint"
            )
        self._close(rank)

    def _close(self, rank: Rank) -> None:
        try:
            self.selector.unregister(rank.connection)
        except KeyError:
            return
        rank.connection.close()
        self.open -= 1

    def _end(self, why: str, quiet: bool = False) -> None:
        """Tell every rank that the job ends; only the first reason counts. A rank that failed says so itself."""
        if self.ended:
            return
        self.ended = True
        if not quiet:
            sys.stderr.write(f"polygrad: {why}\n")
            sys.stderr.flush()
        for other in self.ranks.values():
            other.send(t="end", why=why)


def main() -> None:
    """Serve the job that the first line of the input describes; print the port."""
    given = json.loads(sys.stdin.readline())
    server = socket.create_server((given["address"], given["port"]), backlog=1024)
    sys.stdout.write(f"{server.getsockname()[1]}\n")
    sys.stdout.flush()
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # whoever reads our output is not kept waiting
    Hub(given["size"], given["token"], server).run()


if __name__ == "__main__":
    main()
