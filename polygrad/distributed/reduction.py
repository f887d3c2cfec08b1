"""One reduction of gradients: each bucket is sent as soon as it is whole, and how much of that ran beside the kernels.

Here: when a bucket is sent; what the reduction took.
Not here: what is in a bucket (`buckets.py`), who asks for the reduction (`data_parallel.py`).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from polygrad.distributed.communicator import Communicator, Pending
from polygrad.graph.node import Node
from polygrad.runtime import transfer


class Overlap(NamedTuple):
    """What the last reduction took, in seconds.

    Attributes
    ----------
    computing : float
        Until all kernels were launched, and on a device that does not queue them, done.
    communicating : float
        The time in which at least one bucket was on its way.
    waiting : float
        What of it was left when there was nothing more to launch.
    buckets : int
        How many there were.
    """

    computing: float
    communicating: float
    waiting: float
    buckets: int

    @property
    def hidden(self) -> float:
        """The share of communication that ran beside computation."""
        return max(0.0, 1.0 - self.waiting / self.communicating) if self.communicating else 1.0


class Reduction(NamedTuple):
    """A reduction that is over: its works, which hold no values any more, and when what happened.

    `first` and `last` are marks in the device's queue, around its kernels; None where the host waits for them itself.
    """

    works: Sequence[Pending]
    sizes: Sequence[int]  # bytes
    first: Any
    last: Any
    began: float
    launched: float
    ended: float

    def overlap(self) -> Overlap:
        """Return what it took."""
        busy, until = 0.0, 0.0
        for begun, ended in sorted(work.seconds() for work in self.works):
            busy += max(0.0, ended - max(begun, until))
            until = max(until, ended)
        left = self.ended - self.launched
        if self.last is not None:
            left = max(0.0, *[work.lag(self.last) for work in self.works])
        return Overlap(self.launched - self.began, busy, min(busy, left), len(self.works))

    def timeline(self, rank: int) -> dict[str, Any]:
        """Return it in the form of Chrome's traces, in microseconds from its beginning."""
        spans = [work.seconds() for work in self.works]
        start, end = self.began, self.launched
        if self.last is not None:
            end = spans[0][1] - self.works[0].lag(self.last)
            start = spans[0][1] - self.works[0].lag(self.first)
        rows = [("kernels", "kernels", start, end)]
        rows += [
            (f"bucket {k}, {size} bytes", "communication", *span)
            for k, (size, span) in enumerate(zip(self.sizes, spans, strict=True))
        ]
        return {
            "traceEvents": [
                {"name": name, "ph": "X", "pid": f"rank {rank}", "tid": row, "ts": (begun - start) * 1e6,
                 "dur": (ended - begun) * 1e6}
                for name, row, begun, ended in rows
            ]
        }  # fmt: skip


class Sending:
    """Starts the all-reduce of each bucket when all of it is there, in the order of the buckets on every rank."""

    def __init__(self, communicator: Communicator, buckets: list[list[Node]]) -> None:
        self.communicator, self.buckets = communicator, buckets
        self.places: dict[Node, list[int]] = {}
        self.missing = []
        for b, bucket in enumerate(buckets):
            lacking = {n for n in bucket if n.storage is None}
            self.missing.append(len(lacking))
            for n in lacking:
                self.places.setdefault(n, []).append(b)
        self.works: list[Pending] = []
        self.fault: BaseException | None = None

    def landed(self, node: Node) -> None:
        """Note that a gradient is there."""
        for b in self.places.pop(node, ()):
            self.missing[b] -= 1
        while self.fault is None and len(self.works) < len(self.buckets) and not self.missing[len(self.works)]:
            try:
                self._start()
            except Exception as error:  # told later: a realize must not be broken off in the middle
                self.fault = error

    def _start(self) -> None:
        bucket = self.buckets[len(self.works)]
        if any(n.aval.size and not n.storage.contiguous for n in bucket) and self.places:
            self.missing[len(self.works)] = -1  # a copy is made once everything is launched
            return
        self.works.append(self.communicator.begin_all_reduce([transfer.contiguous(n) for n in bucket], "sum"))

    def finish(self) -> list[Pending]:
        """Start what was not started yet; return all, in order."""
        self.places.clear()
        while self.fault is None and len(self.works) < len(self.buckets):
            self._start()
        if self.fault is not None:
            raise self.fault
        return self.works
