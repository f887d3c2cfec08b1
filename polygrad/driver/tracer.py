"""A profiler, as a plugin: it wraps the hooks of every device and notes what each call took.

Here: the wrapper, the profile that it fills, its table and its trace file.
Not here: how calls come to pass through plugins (`binding.py`). It is also the example of a wrapper plugin: it has no
means that yours lacks.
"""

import json
import math
import os
import threading
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

from polygrad.driver.describe import kernel_bytes, kernel_name, op_bytes
from polygrad.driver.hookspecs import hookimpl
from polygrad.driver.ir import Kernel
from polygrad.driver.loader import REGISTRY, Registry
from polygrad.driver.types import DeviceInfo, Ref

Kind = Literal["fused", "op", "write", "read", "allocate", "prepare"]
TRANSFERS = ("write", "read")


class Work(NamedTuple):
    """What a call of a driver did; `structure` is the Kernel of a fused one, for two kernels may have one name."""

    kind: Kind
    name: str
    nbytes: int
    structure: Kernel | None = None


class Event(NamedTuple):
    """One call of a driver: `start` (since the profile began) and `duration` are nanoseconds."""

    start: int
    duration: int
    device: str
    thread: int
    kind: Kind
    name: str
    nbytes: int
    structure: Kernel | None = None


class Row(NamedTuple):
    """All events of one device, kind, name and structure, added up."""

    device: str
    kind: Kind
    name: str
    calls: int
    duration: int  # nanoseconds
    nbytes: int

    @property
    def rate(self) -> float:
        """Bytes moved, in GB/s; NaN if none were."""
        return self.nbytes / self.duration if self.nbytes and self.duration else math.nan


class Profile:
    """What was measured: a list of events, `print`able as a table, exportable as a trace.

    Attributes
    ----------
    events : list of Event
        In the order in which the calls ended.
    elapsed : int
        Nanoseconds from the beginning to the end of the profile; 0 before its end.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.elapsed = 0

    def rows(self) -> list[Row]:
        """Add up equal events; the longest total comes first."""
        groups: dict[Any, list[Event]] = {}
        for event in self.events:
            groups.setdefault((event.device, event.kind, event.name, event.structure), []).append(event)
        rows = [
            Row(device, kind, name, len(es), sum(e.duration for e in es), sum(e.nbytes for e in es))
            for (device, kind, name, _), es in groups.items()
        ]
        return sorted(rows, key=lambda r: -r.duration)

    def __str__(self) -> str:
        rows = self.rows()
        total = sum(r.duration for r in rows)
        device, name = (max([6, *map(len, column)]) for column in ([r.device for r in rows], [r.name for r in rows]))
        layout = f"{{:{device}}}  {{:8}}  {{:{name}}}  {{:>6}}  {{:>9}}  {{:>6}}  {{:>7}}"
        lines = [layout.format("device", "kind", "name", "calls", "total ms", "share", "GB/s")]
        for row in rows:
            rate = "" if math.isnan(row.rate) else f"{row.rate:.2f}"
            share = f"{row.duration / max(total, 1):.1%}"
            cells = (row.device, row.kind, row.name, row.calls, f"{row.duration / 1e6:.3f}", share, rate)
            lines.append(layout.format(*cells).rstrip())
        spent = f"{len(self.events)} calls took {total / 1e6:.3f} ms of {self.elapsed / 1e6:.3f} ms"
        return "\n".join([*lines, f"{spent}; devices were synchronised after each launch"])

    def export(self, path: str | os.PathLike[str]) -> None:
        """Write the events to *path* in the trace event format, which Perfetto and Chrome's about:tracing open."""
        devices = sorted({e.device for e in self.events})
        trace: list[Mapping[str, Any]] = [
            {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": device}}
            for pid, device in enumerate(devices)
        ]
        trace += [
            {
                "ph": "X",
                "name": e.name,
                "cat": e.kind,
                "ts": e.start / 1e3,  # the format counts microseconds
                "dur": e.duration / 1e3,
                "pid": devices.index(e.device),
                "tid": e.thread,
                "args": {"bytes": e.nbytes},
            }
            for e in self.events
        ]
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"traceEvents": trace, "displayTimeUnit": "ns"}, file)


class Tracer:
    """The plugin that fills *profile* while it is registered in *registry*."""

    def __init__(self, registry: Registry, profile: Profile) -> None:
        self.registry, self.profile = registry, profile
        self.began = time.perf_counter_ns()
        self._names: dict[Kernel, str] = {}

    def _finished(self, device: DeviceInfo, start: int) -> int:
        """Wait for the device, and return how long the call took from *start*."""
        opened = self.registry.devices.get(device.device)
        if opened is not None:
            opened.synchronize()
        return time.perf_counter_ns() - start

    def _note(self, device: DeviceInfo, start: int, duration: int, work: Work) -> None:
        thread = threading.get_native_id()
        self.profile.events.append(Event(start - self.began, duration, device.device, thread, *work))

    def _name(self, kernel: Kernel) -> str:
        found = self._names.get(kernel)
        if found is None:
            found = self._names[kernel] = kernel_name(kernel)
        return found

    @hookimpl(wrapper=True)
    def polygrad_allocate(self, device: DeviceInfo, nbytes: int) -> Generator[None, Any, Any]:
        """Time an allocation."""
        start = time.perf_counter_ns()
        result = yield
        self._note(device, start, time.perf_counter_ns() - start, Work("allocate", "allocate", nbytes))
        return result

    @hookimpl(wrapper=True)
    def polygrad_prepare_fused(self, device: DeviceInfo, kernel: Kernel) -> Generator[None, Any, Any]:
        """Time a compilation."""
        start = time.perf_counter_ns()
        result = yield
        self._note(device, start, time.perf_counter_ns() - start, Work("prepare", self._name(kernel), 0, kernel))
        return result

    @hookimpl(wrapper=True)
    def polygrad_launch_op(
        self, device: DeviceInfo, op: str, outs: Sequence[Ref], ins: Sequence[Ref]
    ) -> Generator[None, Any, Any]:
        """Time an op or a transfer."""
        start = time.perf_counter_ns()
        result = yield
        duration = self._finished(device, start)
        kind: Kind = op if op in TRANSFERS else "op"  # type: ignore[assignment]  # "write" and "read" are kinds
        first = [*outs, *ins][0] if kind == "op" and (outs or ins) else None
        name = f"{op} {first.dtype}{list(first.shape)}" if first is not None else op
        self._note(device, start, duration, Work(kind, name, op_bytes([*outs, *ins])))
        return result

    @hookimpl(wrapper=True)
    def polygrad_launch_fused(
        self, device: DeviceInfo, kernel: Kernel, ints: tuple[int, ...]
    ) -> Generator[None, Any, Any]:
        """Time a fused kernel."""
        start = time.perf_counter_ns()
        result = yield
        duration = self._finished(device, start)
        self._note(device, start, duration, Work("fused", self._name(kernel), kernel_bytes(kernel, ints), kernel))
        return result


@contextmanager
def profile(registry: Registry = REGISTRY) -> Iterator[Profile]:
    """Measure what drivers do inside the context.

    While it lasts every device is synchronised after each launch. So a duration is that of the work, not of its
    submission; and work that would overlap does not: the sum is no forecast of an unprofiled run. Each call also passes
    through pluggy, which costs some microseconds outside of the durations. What is lazy when the context ends is not
    measured: realize it inside.

    Examples
    --------
    >>> with profile(Registry(discovering=False)) as p:
    ...     pass
    >>> p.events
    []
    """
    measured = Profile()
    for device in list(registry.devices.values()):
        device.synchronize()  # what was launched before is not charged to the first call
    tracer = Tracer(registry, measured)
    registry.register(tracer)
    try:
        yield measured
    finally:
        registry.unregister(tracer)
        measured.elapsed = time.perf_counter_ns() - tracer.began
