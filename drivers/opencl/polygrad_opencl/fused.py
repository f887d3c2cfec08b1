"""Fused kernels on one device: from a kernel to the callable that launches it.

Here: what is decided once a kernel, once a tuple of launch ints, and once a launch.
Not here: text (the shared renderer), compiling (`programs.py`).

For each tuple of ints that a kernel meets, its variant is rendered and compiled unless another launch has done so,
and the geometry and the argument values are kept: a launch in a warm loop is one dictionary look-up and one call of
PyOpenCL.
"""

import dataclasses
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from polygrad.driver import Kernel
from polygrad.driver.render import cpu_style, gpu_style
from polygrad.driver.render.addressing import Argument
from polygrad.driver.render.collapse import collapse
from polygrad.driver.render.dialect import OPENCL, argument_value
from polygrad_opencl import devices
from polygrad_opencl.faults import translated
from polygrad_opencl.programs import Program
from polygrad_opencl.session import Session

CONVERTED = ("bool", "float16", "bfloat16")
REMEMBERED = 1024  # tuples of ints a kernel; beyond it they are forgotten, programs are not
ITEMS_A_UNIT = 8  # work-items for each compute unit of a CPU device
MOST_KEPT = 1 << 17  # bytes of a row that is kept from walk to walk: what stays in the second cache of a core
LEAST_STREAMED = 1 << 25  # bytes of results that go past the cache; runtimes may tell the size of the second cache
MEMORY = ("buffer", "scratch", "local")


class Step(NamedTuple):
    """One enqueued kernel: everything but buffers and scalars, which come before `extra`; ints lie between them."""

    program: Program
    name: str
    dtypes: tuple[Any, ...]
    size: tuple[int, ...]
    group: tuple[int, ...]
    ints: tuple[int, ...]
    extra: tuple[tuple[str, int], ...]  # (kind, value) of what follows the scalars: a number, scratch or local memory


class Enqueued(NamedTuple):
    """One launch as a style wants it: function, arguments, grid, group, values of its extra arguments."""

    name: str
    arguments: tuple[Argument, ...]
    size: tuple[int, ...]
    group: tuple[int, ...]
    extra: tuple[int, ...]
    local: tuple[int, ...] = ()


class Launch:
    """A kernel with its launch ints: called with buffers and scalars."""

    def __init__(self, session: Session, steps: Sequence[Step], scalars: Sequence[str], scratch: int) -> None:
        self.session = session
        self.steps = tuple(steps)
        self.scratch = scratch
        self.converted = tuple(scalars) if any(dtype in CONVERTED for dtype in scalars) else ()
        self.plain = len(self.steps) == 1 and not self.steps[0].extra

    def __call__(self, buffers: Sequence[Any], scalars: Sequence[Any]) -> None:
        """Enqueue the steps."""
        if self.converted:
            scalars = [argument_value(value, dtype) for value, dtype in zip(scalars, self.converted, strict=True)]
        session = self.session
        step = self.steps[0]
        try:
            if self.plain:
                kernel = step.program.kernel(step.name, step.dtypes)
                kernel(session.queue, step.size, step.group, *buffers, *step.ints, *scalars)
                if step.name not in step.program.saved:
                    step.program.launched(step.name)
            else:
                self._steps(buffers, scalars)
        except session.cl.Error as error:
            raise translated(error, session.label, f"run kernel {step.name!r}") from error

    def _steps(self, buffers: Sequence[Any], scalars: Sequence[Any]) -> None:
        """Enqueue several steps, or one with scratch memory, as one: another thread's would mix up the scratch."""
        session = self.session
        with session.lock:
            scratch = session.scratch(self.scratch) if self.scratch else None
            for step in self.steps:
                extra: list[Any] = []
                for kind, value in step.extra:
                    if kind == "extra":
                        extra.append(value)
                    else:
                        extra.append(scratch if kind == "scratch" else session.cl.LocalMemory(value))
                kernel = step.program.kernel(step.name, step.dtypes)
                kernel(session.queue, step.size, step.group, *buffers, *step.ints, *scalars, *extra)
            for step in self.steps:
                step.program.launched(step.name)


class PreparedKernel:
    """What `prepare_fused` returns."""

    def __init__(self, fused: "FusedKernels", kernel: Kernel) -> None:
        self.fused = fused
        self.kernel = kernel
        self.launches: dict[tuple[int, ...], Launch] = {}

    def __call__(self, buffers: Sequence[Any], ints: tuple[int, ...], scalars: Sequence[Any]) -> None:
        """Enqueue the kernel."""
        launch = self.launches.get(ints)
        if launch is None or devices._forked:
            devices.check_process()
            launch = self.fused.launch(self.kernel, ints)
            if len(self.launches) >= REMEMBERED:
                self.launches.clear()
            self.launches[ints] = launch
        launch(buffers, scalars)


class FusedKernels:
    """The fused kernels of one device, by structure."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.style = os.environ.get("POLYGRAD_OPENCL_STYLE") or ("cpu" if session.kind == "cpu" else "gpu")
        streamed = max(session.device.global_mem_cache_size, LEAST_STREAMED)
        self.dialect = dataclasses.replace(OPENCL, wide_sums=session.float64, streamed=streamed)
        self.items = ITEMS_A_UNIT * session.compute_units
        self.local_bytes = min(session.device.local_mem_size // 2, MOST_KEPT)
        self.limits = gpu_style.GpuLimits(
            multiprocessors=session.compute_units,
            threads=session.device.max_work_group_size,
            shared_bytes=session.device.local_mem_size,
        )
        self._prepared: dict[Kernel, PreparedKernel] = {}
        self._sources: dict[tuple[Kernel, Any], Any] = {}

    def prepare(self, kernel: Kernel) -> PreparedKernel:
        """Return the callable of *kernel*; its variants are compiled when launches ask for them."""
        found = self._prepared.get(kernel)
        if found is None:
            found = self._prepared.setdefault(kernel, PreparedKernel(self, kernel))
        return found

    def launch(self, kernel: Kernel, ints: tuple[int, ...]) -> Launch:
        """Return the launch of *kernel* with *ints*, compiling its variant if it is new."""
        kernel, ints = collapse(kernel, ints)
        text, scratch, wanted = (self._cpu if self.style == "cpu" else self._gpu)(kernel, ints)
        program = self.session.store.program(text)
        steps = []
        for one in wanted:
            dtypes = tuple(None if a.kind in MEMORY else np.dtype(a.dtype) for a in one.arguments)
            values = {"extra": one.extra, "scratch": (scratch,), "local": one.local}
            extra = tuple((a.kind, values[a.kind][a.position]) for a in one.arguments if a.kind in values)
            steps.append(Step(program, one.name, dtypes, one.size, one.group, ints, extra))
        return Launch(self.session, steps, kernel.scalars, scratch)

    def text(self, kernel: Kernel, ints: tuple[int, ...]) -> str:
        """Return the source of the launch of *kernel* with *ints*."""
        return (self._cpu if self.style == "cpu" else self._gpu)(*collapse(kernel, ints))[0]

    def _cpu(self, kernel: Kernel, ints: tuple[int, ...]) -> tuple[str, int, list[Enqueued]]:
        plan = cpu_style.plan(kernel, ints, self.items, self.dialect, self.local_bytes)
        source = self._sources.get((kernel, plan))
        if source is None:
            source = self._sources[kernel, plan] = cpu_style.render(kernel, plan, self.dialect)
        sizes = cpu_style.sizes(kernel, plan, ints, self.items)
        wanted = [
            Enqueued(stage.name, stage.arguments, (items,), (1,), (sizes.parts,), sizes.local)
            for stage, items in zip(source.stages, sizes.items, strict=True)
        ]
        return source.text, sizes.scratch, wanted

    def _gpu(self, kernel: Kernel, ints: tuple[int, ...]) -> tuple[str, int, list[Enqueued]]:
        choice = gpu_style.choose_gpu(kernel, ints, self.limits)
        source = self._sources.get((kernel, choice))
        if source is None:
            source = self._sources[kernel, choice] = gpu_style.render_gpu(kernel, OPENCL, choice)
        geometry = source.geometry(ints)
        wanted = [
            Enqueued(
                stage.name,
                stage.arguments,
                (launch.groups * stage.block[0], stage.block[1]),
                stage.block,
                launch.extra,
            )
            for stage, launch in zip(source.stages, geometry.launches, strict=True)
        ]
        return source.text, geometry.scratch, wanted
