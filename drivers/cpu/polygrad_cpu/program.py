"""A prepared kernel: the callable that the core keeps, and its plans by launch ints.

Here: the caches, the choice between one call, blocks, and chunks, and the way that a small launch takes.
Not here: blocks and chunks themselves (`execution.py`).
"""

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from polygrad.driver import Kernel, Prepared
from polygrad.driver.ir import guards_as_operands
from polygrad.driver.launch import decode
from polygrad.driver.types import Handle
from polygrad_cpu import geometry
from polygrad_cpu.execution import Blocks, Chunks, Execution, launch_scalars
from polygrad_cpu.frame import Binding, Place, ndarray
from polygrad_cpu.settings import Settings
from polygrad_cpu.source import Programs
from polygrad_cpu.workers import quiet_context

NO_REGISTERS = 8  # times as large are blocks that read and write buffers alone: nothing is to stay in the cache
PLANS = 64  # launch ints that a kernel remembers, twice

Run = Callable[[Sequence[Handle], Sequence[Any]], None]


def prepare(kernel: Kernel, settings: Settings) -> Prepared:
    """Return a callable (buffers, ints, scalars) that runs *kernel* to its end; any thread may call it."""
    plans = _Plans(guards_as_operands(kernel), settings)
    recent = plans.recent

    def launch(buffers: Sequence[Handle], ints: tuple[int, ...], scalars: Sequence[bool | int | float]) -> None:
        run = recent.get(ints)
        if run is None:
            run = plans.find(ints)
        run(buffers, scalars)

    _ = plans.programs.whole  # so that it is built here, not at the first launch
    return launch


class _Plans:
    """The plans of one kernel, by launch ints: a recent generation and an older one, cheaper than a list by use."""

    def __init__(self, kernel: Kernel, settings: Settings) -> None:
        self.kernel = kernel
        self.programs = Programs(kernel)
        self.settings = settings
        self.recent: dict[tuple[int, ...], Run] = {}
        self.older: dict[tuple[int, ...], Run] = {}
        self.shapes: dict[tuple[int, ...], Execution | Single] = {}
        self.offsets = tuple(i for i, name in enumerate(kernel.int_names) if name.endswith(".o"))

    def find(self, ints: tuple[int, ...]) -> Run:
        """Return the plan for *ints*. Each step on a dict is atomic; threads that meet here make a plan twice."""
        run = self.older.pop(ints, None) or self.make(ints)
        if len(self.recent) >= PLANS:
            self.older = dict(self.recent)
            self.recent.clear()  # in place: the launch function holds it
        self.recent[ints] = run
        return run

    def make(self, ints: tuple[int, ...]) -> Run:
        """Plan a launch. Offsets change often (a window that slides), so what does not depend on them is kept."""
        offsets = [ints[i] for i in self.offsets]
        shape = tuple(0 if i in self.offsets else n for i, n in enumerate(ints))
        known = self.shapes.get(shape)
        if known is None:
            launch = decode(self.kernel, ints)
            binding = Binding.of(self.kernel, launch, geometry.arrange(self.kernel, launch))
            known = plan(self.programs, binding, self.settings)
            if len(self.shapes) >= PLANS:
                self.shapes.clear()
            self.shapes[shape] = known
        return known.moved(known.binding.moved(offsets)).run


def plan(programs: Programs, binding: Binding, settings: Settings) -> "Execution | Single":
    """Choose how to run one launch."""
    kernel, arranged = programs.kernel, binding.geometry
    total = math.prod(arranged.extents)
    budget = max(1, settings.block_bytes // geometry.element_bytes(kernel))
    if not any(full for _, full in programs.whole.slots):
        budget *= NO_REGISTERS
    threads = settings.threads if geometry.work_ns(kernel, arranged) >= settings.split_ns else 1
    if threads == 1 and total <= budget and not any(view.partial for view in kernel.views):
        single = Single(programs, binding)
        if single.nbytes <= settings.small_bytes:
            return single
    if threads > 1:  # no fewer blocks than threads, and no thread with one block more than the others
        count = -(-total // budget)
        budget = max(1, -(-total // (-(-count // threads) * threads)))
    cut = geometry.cut(kernel, arranged, budget)
    return (Blocks if cut.whole else Chunks)(programs, binding, cut, threads)


Frame = tuple[Callable[..., Any], list[Any], list[Any]]  # a quiet context's run, registers and such, scalars


class Single:
    """A small launch in one call; its registers are kept, one set for each thread that is in here at a time."""

    def __init__(self, programs: Programs, binding: Binding) -> None:
        self.kernel, self.binding = programs.kernel, binding
        self.code = programs.whole
        self.nbytes = sum(binding.frame_bytes(self.code, binding.geometry.extents))
        self.frames: list[Frame] = []  # shared with the same launch at other offsets
        self.run: Run = self._any

    def moved(self, binding: Binding) -> "Single":
        """Return the same launch at other offsets."""
        other = copy.copy(self)
        other.binding = binding
        other.run = other._plain() if all(item.what == "view" for item in self.code.positional) else other._any
        return other

    def frame(self) -> Frame:
        """Make a set of arguments."""
        extents = self.binding.geometry.extents
        made = self.binding.frame(self.code, extents, lambda nbytes: np.empty(nbytes, np.uint8))
        return quiet_context(), made, launch_scalars(self.kernel.scalars, [0] * len(self.kernel.scalars))

    def _plain(self) -> Run:
        """Return a function for a launch whose arguments are views and nothing else: the shortest way there is."""
        memory = [self.binding.memory[item.number] for item in self.code.positional]
        views = tuple((m.shape, m.dtype, m.buffer, m.offset, m.strides) for m in memory if m is not None)
        function, frames, make = self.code.function, self.frames, self.frame

        def run(buffers: Sequence[Handle], scalars: Sequence[Any]) -> None:
            try:
                frame = frames.pop()
            except IndexError:
                frame = make()
            enter, arguments, slots = frame
            if slots:
                for slot, value in zip(slots, scalars, strict=True):
                    slot[()] = value
            enter(function, *[ndarray(s, t, buffers[b], o, st) for s, t, b, o, st in views], *slots, *arguments)
            frames.append(frame)

        return run

    def _any(self, buffers: Sequence[Handle], scalars: Sequence[Any]) -> None:
        """Run a launch with windows, gathers or iotas."""
        try:
            frame = self.frames.pop()
        except IndexError:
            frame = self.frame()
        enter, arguments, slots = frame
        for slot, value in zip(slots, scalars, strict=True):
            slot[()] = value
        binding = self.binding
        place = Place(binding.everywhere)
        positional = binding.positional(self.code, binding.arrays(buffers), buffers, place)
        enter(self.code.function, *positional, *slots, *arguments)
        self.frames.append(frame)
