"""Fused kernels on one device: from a kernel to the callable that launches it.

Here: what is decided once a kernel, once a tuple of launch ints, and once a launch.
Not here: text (the shared renderer), compiling (`programs.py`).

For each tuple of ints that a kernel meets, its variant is rendered and compiled unless another launch has done so, and the
geometry and the argument values are kept: a launch in a warm loop is one dictionary look-up and one call of PyOpenCL.
"""

import os
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from polygrad_opencl import devices
from polygrad_opencl.faults import translated
from polygrad_opencl.programs import Program
from polygrad_opencl.session import Session

from polygrad.driver import Kernel
from polygrad.driver.render import cpu_style
from polygrad.driver.render.dialect import OPENCL, argument_value

CONVERTED = ("bool", "float16", "bfloat16")
REMEMBERED = 1024  # tuples of ints a kernel; beyond it they are forgotten, programs are not
ITEMS_A_UNIT = 8  # work-items for each compute unit of a CPU device


class Step(NamedTuple):
    """One enqueued kernel: everything but buffers, scalars and the values that depend on them."""

    program: Program
    name: str
    dtypes: tuple[Any, ...]
    size: tuple[int, ...]
    group: tuple[int, ...]
    buffers: int  # the leading arguments are the launch's buffers; then come ints, then scalars
    ints: tuple[int, ...]
    extra: tuple[tuple[str, int], ...]  # (kind, value) of what follows the scalars


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
        """Enqueue several steps, or one with scratch or local memory, as one: another thread's would mix up the scratch."""
        session = self.session
        with session.lock:
            scratch = session.scratch(self.scratch) if self.scratch else None
            for step in self.steps:
                extra: list[Any] = []
                for kind, value in step.extra:
                    if kind == "parts":
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
        self.items = ITEMS_A_UNIT * session.compute_units
        self.local_bytes = min(session.device.local_mem_size // 2, 1 << 17)
        self._prepared: dict[Kernel, PreparedKernel] = {}
        self._rendered: dict[tuple[Kernel, Any], tuple[cpu_style.Rendered, Program]] = {}
        self._lock = threading.Lock()

    def prepare(self, kernel: Kernel) -> PreparedKernel:
        """Return the callable of *kernel*; its variants are compiled when launches ask for them."""
        found = self._prepared.get(kernel)
        if found is None:
            found = self._prepared.setdefault(kernel, PreparedKernel(self, kernel))
        return found

    def launch(self, kernel: Kernel, ints: tuple[int, ...]) -> Launch:
        """Return the launch of *kernel* with *ints*, compiling its variant if it is new."""
        chosen = cpu_style.plan(kernel, ints, self.items, OPENCL, self.local_bytes)
        sizes = cpu_style.sizes(kernel, chosen, ints, self.items)
        rendered, program = self._variant(kernel, chosen)
        steps = []
        for stage, items in zip(rendered.stages, sizes.items, strict=True):
            extra = []
            dtypes: list[Any] = []
            for argument in stage.arguments:
                dtypes.append(None if argument.kind in ("buffer", "scratch", "local") else np.dtype(argument.dtype))
                if argument.kind == "parts":
                    extra.append(("parts", sizes.parts))
                elif argument.kind == "scratch":
                    extra.append(("scratch", sizes.scratch))
                elif argument.kind == "local":
                    extra.append(("local", sizes.local[argument.position]))
            steps.append(Step(program, stage.name, tuple(dtypes), (items,), (1,), len(kernel.buffers), ints, tuple(extra)))
        return Launch(self.session, steps, kernel.scalars, sizes.scratch)

    def _variant(self, kernel: Kernel, chosen: cpu_style.Plan) -> tuple[cpu_style.Rendered, Program]:
        found = self._rendered.get((kernel, chosen))
        if found is None:
            rendered = cpu_style.render(kernel, chosen, OPENCL)
            found = rendered, self.session.store.program(rendered.text)
            self._rendered[kernel, chosen] = found
        return found
