"""Fused kernels on the device: the shared renderer's text, compiled once a variant, launched with prepared arguments.

Here: from a kernel and launch ints to a list of ready launches, and the hot path over it.
Not here: text (`polygrad.driver.render`), NVRTC (`compiler.py`), argument blocks (`launching.py`, and `many.py` for
launches that are made together).

A launch with ints seen before costs one dict lookup and, for each stage, one `struct` call and one call of CUDA.
"""

import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from polygrad.driver import Instr, Kernel, Ref, Store, View
from polygrad.driver.render.addressing import Argument
from polygrad.driver.render.collapse import collapse
from polygrad.driver.render.dialect import CUDA, argument_value
from polygrad.driver.render.gpu_style import Choice, GpuLimits, Source, Stage, choose_gpu, render_gpu
from polygrad_cuda.launching import Launcher
from polygrad_cuda.many import ManyLaunches

if TYPE_CHECKING:
    from polygrad_cuda.driver import CudaDriver

TOGETHER = 256  # tuples of launch ints of many launches, remembered a kernel
PLANS = 4096  # launch ints remembered a kernel; more means that they change with every launch
CONVERTED = frozenset({"bool", "float16", "bfloat16"})  # scalars that do not travel as they come

Call = Callable[..., None]


class Plan(NamedTuple):
    """All that one launch of a kernel needs beside its buffers and scalars.

    Each stage is called with the buffers, then the scratch memory's address if `scratch` is not 0, then the scalars.
    Either all stages of a source take scratch memory or none does.
    """

    stages: tuple[Call, ...]
    launchers: tuple[Launcher, ...]  # whose calls the stages are
    scratch: int  # bytes that the stages share
    choice: Choice


class FusedKernel:
    """One kernel of the IR on one device; called with (buffers, ints, scalars)."""

    def __init__(self, driver: "CudaDriver", kernel: Kernel) -> None:
        self.driver = driver
        self.kernel = kernel
        self.plans: dict[tuple[int, ...], Plan] = {}
        self.together: dict[tuple[tuple[int, ...], ...], ManyLaunches] = {}
        self.converts = any(dtype in CONVERTED for dtype in kernel.scalars)
        self.ordinal = driver.ordinal
        self.set_device = driver.set_device
        self.errors = driver.errors

    def __call__(self, buffers: Sequence[Any], ints: tuple[int, ...], scalars: Sequence[Any]) -> None:
        """Queue one launch."""
        driver = self.driver
        if driver.dead is not None:
            raise driver.dead
        try:
            self.set_device(self.ordinal)
            plan = self.plans.get(ints) or self.plan(ints)
            if plan.scratch:
                buffers = (*buffers, driver.scratch_memory(plan.scratch))
            if driver.noting is not None:
                driver.noting.fused(self, plan.launchers, buffers)
            if self.converts:
                scalars = self.converted(scalars)
            try:
                for stage in plan.stages:
                    stage(*buffers, *scalars)
            except (struct.error, OverflowError):  # a scalar beyond its dtype: convert as the IR says
                scalars = self.converted(scalars)
                for stage in plan.stages:
                    stage(*buffers, *scalars)
        except self.errors as error:
            raise driver.failure(error, "launching a fused kernel") from error

    def many(
        self, buffers: Sequence[Sequence[Any]], ints: tuple[tuple[int, ...], ...], scalars: Sequence[Sequence[Any]]
    ) -> None:
        """Queue launches that do not wait for each other, as few launches of CUDA: see `many.py`."""
        driver = self.driver
        if driver.dead is not None:
            raise driver.dead
        try:
            self.set_device(self.ordinal)
            launches = self.together.get(ints) or self.plan_many(ints)
            if self.converts:
                scalars = [self.converted(own) for own in scalars]
            scratch = driver.scratch_memory(launches.scratch) if launches.scratch else 0
            for call in launches.calls:
                try:
                    call(buffers, scalars, scratch)
                except (struct.error, OverflowError):  # a scalar beyond its dtype: convert as the IR says
                    call(buffers, [self.converted(own) for own in scalars], scratch)
            if driver.noting is not None:
                driver.noting.many(self, launches)
        except self.errors as error:
            raise driver.failure(error, "launching a fused kernel many times") from error
        for k in launches.alone:
            self(buffers[k], ints[k], scalars[k])

    def plan_many(self, ints: tuple[tuple[int, ...], ...]) -> ManyLaunches:
        """Return, and remember, the launches for some ints together."""
        if len(self.together) >= TOGETHER:
            self.together.clear()
        made = self.together[ints] = ManyLaunches(self, ints)
        return made

    def converted(self, scalars: Sequence[Any]) -> tuple[Any, ...]:
        """Return the scalars as they travel."""
        return tuple(argument_value(value, dtype) for value, dtype in zip(scalars, self.kernel.scalars, strict=True))

    def plan(self, ints: tuple[int, ...]) -> Plan:
        """Return, and remember, the launches for some ints; compile what is new."""
        driver = self.driver
        simple, simple_ints = collapse(self.kernel, ints)
        choice = choose_gpu(simple, simple_ints, driver.gpu_limits)
        source = driver.source(simple, choice)
        geometry = source.geometry(simple_ints)
        launchers = tuple(
            self.launcher(source, stage, launch.groups, simple_ints, launch.extra)
            for stage, launch in zip(source.stages, geometry.launches, strict=True)
        )
        if len(self.plans) >= PLANS:
            self.plans.clear()
        uses = any(argument.kind == "scratch" for stage in source.stages for argument in stage.arguments)
        stages = tuple(launcher.call for launcher in launchers)
        made = self.plans[ints] = Plan(stages, launchers, max(1, geometry.scratch) if uses else 0, choice)
        return made

    def launcher(
        self, source: Source, stage: Stage, groups: int, ints: Sequence[int], extra: Sequence[int]
    ) -> Launcher:
        """Return one stage, to be called with what varies."""
        given: dict[str, Sequence[int]] = {"int": ints, "extra": extra}
        fixed = {
            place: given[argument.kind][argument.position]
            for place, argument in enumerate(stage.arguments)
            if argument.kind in given
        }
        return Launcher(
            self.driver.route,
            self.driver.compiler.function(source.text, stage.name),
            (groups, 1, 1),
            (*stage.block, 1),
            [slot(argument) for argument in stage.arguments],
            fixed=fixed,
            varying=sorted(
                (i for i in range(len(stage.arguments)) if i not in fixed), key=lambda i: order(stage.arguments[i])
            ),
            stream=self.driver.stream,
        )

    def described(self, ints: tuple[int, ...]) -> str:
        """Return in a few words how a launch with these ints runs; for reports."""
        choice = (self.plans.get(ints) or self.plan(ints)).choice
        forms = [f"{v.strategy} {v.lanes}x{v.slots} w{v.width} c{v.chunks}{' exact' * v.exact}{' split' * v.splits}"
                 for v in choice.variants]  # fmt: skip
        return " + ".join(forms) + (" wide" if choice.wide else "")


def slot(argument: Argument) -> str:
    """Return the kind of slot that an argument takes."""
    return "pointer" if argument.kind in ("buffer", "scratch") else argument.dtype


def order(argument: Argument) -> tuple[int, int]:
    """Return the place of a varying argument in a call: buffers, scratch, scalars."""
    return ("buffer", "scratch", "scalar").index(argument.kind), argument.position


def texts(kernel: Kernel, ints: tuple[int, ...], limits: GpuLimits) -> list[str]:
    """Return the CUDA text of a launch; for those who want to read it, without a device."""
    simple, simple_ints = collapse(kernel, ints)
    return [render_gpu(simple, CUDA, choose_gpu(simple, simple_ints, limits)).text]


def copy_kernel(out: Ref, source: Ref) -> tuple[Kernel, tuple[int, ...]]:
    """Return the kernel that copies a strided array to a contiguous one, and its launch ints."""
    rank = max(1, len(out.shape))
    views = tuple(View(n, out.dtype, (None,) * rank) for n in range(2))
    body = (Instr("load", out.dtype, (), 0),)
    kernel = Kernel(rank, 0, (out.dtype, out.dtype), views, (), body, (Store(0, 1),))
    shape, inner, outer = (out.shape, source.strides, out.strides) if out.shape else ((1,), (0,), (0,))
    return kernel, (*shape, source.offset, *inner, out.offset, *outer)
