"""Kernels for GPUs: many work-items, vectors of 16 bytes, rows kept in registers.

Here: what a driver calls.
Not here: decisions (`gpu_choice.py`), bodies (`gpu_elementwise.py`, `gpu_tiles.py`, `gpu_reduction.py`), compilers,
launches.

How a driver uses it::

    simple, simple_ints = collapse(kernel, ints)              # axes joined; cache by (kernel, ints)
    choice = choose_gpu(simple, simple_ints, limits)
    source = render_gpu(simple, OPENCL, choice)               # cache by (simple, choice); compile source.text
    geometry = source.geometry(simple_ints)                   # cache by simple_ints
    for stage, launch in zip(source.stages, geometry.launches):
        ...  # launch.groups groups of stage.block work-items of function stage.name, with one argument for each of
             # stage.arguments, whose kind says what `position` counts:
             #     buffer   buffers[position]
             #     int      simple_ints[position], as dtype (int32 or int64)
             #     scalar   argument_value(scalars[position], kernel.scalars[position]), as dtype
             #     scratch  geometry.scratch bytes of the device's memory, the same for all stages
             #     extra    launch.extra[position], as dtype

Stages run in order. OpenCL: global size (groups * block[0], block[1]), local size block. CUDA: grid (groups, 1, 1),
block (*block, 1). Every buffer starts at a multiple of 16 bytes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from polygrad.driver.describe import kernel_identifier
from polygrad.driver.ir import Kernel
from polygrad.driver.render.addressing import Addressing, Argument, named_ints
from polygrad.driver.render.dialect import Dialect
from polygrad.driver.render.expressions import Expressions
from polygrad.driver.render.gpu_choice import TILE, Choice, GpuLimits, Variant, choose_gpu, possible
from polygrad.driver.render.gpu_elementwise import elementwise_body
from polygrad.driver.render.gpu_many import WITHIN, Layout, many_head
from polygrad.driver.render.gpu_reduction import SCRATCH_BYTES, Reduction
from polygrad.driver.render.gpu_tiles import tiles_body

__all__ = ["Choice", "Geometry", "GpuLimits", "Launch", "Source", "Stage", "choose_gpu", "possible", "render_gpu"]


class Launch(NamedTuple):
    """One launch of a stage: how many groups, and the extra ints."""

    groups: int
    extra: tuple[int, ...] = ()


class Geometry(NamedTuple):
    """The launches of a source for some ints, one a stage, and the bytes of scratch memory that they share."""

    launches: tuple[Launch, ...]
    scratch: int


@dataclass(frozen=True)
class Stage:
    """One function of a source, its arguments in order, and the size of its groups."""

    name: str
    arguments: tuple[Argument, ...]
    block: tuple[int, int]
    variant: Variant
    has_work: bool = True  # along the reduced axes: its groups are as many as there are splits


@dataclass(frozen=True)
class Source:
    """A rendered kernel."""

    name: str
    text: str
    stages: tuple[Stage, ...]
    kernel: Kernel
    choice: Choice

    def geometry(self, ints: Sequence[int]) -> Geometry:
        """Return how to launch it for the ints of a launch, those that belong to the rendered kernel.

        The choice must fit them: the driver takes it from `choose_gpu` for the same ints, or for ints whose choice is
        equal.
        """
        named = named_ints(self.kernel, ints)
        rows, points = math.prod(ints[: self.kernel.parallel]), math.prod(ints[self.kernel.parallel : self.kernel.rank])
        launches, scratch = [], 0
        for stage in self.stages:
            variant = stage.variant
            if variant.splits:
                splits, span = _splits(variant, rows, points, self.choice.groups)
                groups = _row_groups(variant, rows) * (splits if stage.has_work else 1)
                launches.append(Launch(groups, (splits, span)))
                regions = sum(instr.op == "reduce" for instr in self.kernel.body)
                scratch = max(scratch, SCRATCH_BYTES * regions * rows * splits)
            else:
                launches.append(Launch(self._groups(variant, rows, named)))
        return Geometry(tuple(launches), scratch)

    def _groups(self, variant: Variant, rows: int, named: dict[str, int]) -> int:
        if variant.strategy == "tiles":
            along, across = named[f"n{self.kernel.parallel - 1}"], named[f"n{variant.across}"]
            return rows // (along * across) * -(-along // TILE) * -(-across // TILE)
        for k in variant.stores:
            view = self.kernel.stores[k].view
            if self.kernel.views[view].partial:
                return named[f"v{view}.parts"]
        return _row_groups(variant, rows)


def _row_groups(variant: Variant, rows: int) -> int:
    """Return how many groups cover the parallel axes."""
    if variant.strategy == "rows":
        return -(-rows // variant.slots)
    taken = variant.width * variant.slots * (variant.chunks if variant.strategy == "elementwise" else 1)
    return -(-rows // taken)


def _splits(variant: Variant, rows: int, points: int, groups: int) -> tuple[int, int]:
    """Return into how many spans the reduced points are divided, and their length."""
    unit = variant.lanes * (variant.width if variant.strategy == "rows" else 1)
    wanted = max(1, groups // _row_groups(variant, rows))
    units = -(-points // unit)
    span = -(-units // min(wanted, units)) * unit
    return -(-points // span), span


def render_gpu(kernel: Kernel, dialect: Dialect, choice: Choice, name: str = "") -> Source:
    """Return the source of *kernel* in the form of *choice*.

    Its functions are called *name*, underscore, number; without a name, after what the kernel computes.

    Examples
    --------
    >>> from polygrad.driver.ir import Instr, Store, View
    >>> from polygrad.driver.render.dialect import OPENCL
    >>> view = View(0, "float32", (1,))
    >>> double = Kernel(1, 0, ("float32", "float32"), (view, view._replace(buffer=1)), (),
    ...                 (Instr("load", "float32", (), 0), Instr("add", "float32", (0, 0))), (Store(1, 1),))
    >>> source = render_gpu(double, OPENCL, choose_gpu(double, (1 << 20, 0, 0)))
    >>> [stage.block for stage in source.stages], source.geometry((1 << 20, 0, 0)).launches
    ([(128, 1)], (Launch(groups=1024, extra=()),))
    """
    name = name or kernel_identifier(kernel)
    parts = render_parts(kernel, Expressions(dialect), choice, name)
    return Source(name, join_parts(dialect, [parts]), parts.stages, kernel, choice)


def render_many(kernel: Kernel, choice: Choice, layout: Layout, name: str = "") -> Source:
    """Return the source, in CUDA C++, of *kernel* for many launches at once: see `gpu_many.py`.

    Examples
    --------
    >>> from polygrad.driver.ir import Instr, Store, View
    >>> view = View(0, "float32", (1,))
    >>> double = Kernel(1, 0, ("float32", "float32"), (view, view._replace(buffer=1)), (),
    ...                 (Instr("load", "float32", (), 0), Instr("add", "float32", (0, 0))), (Store(1, 1),))
    >>> choice = choose_gpu(double, (96, 0, 0))
    >>> "pg_all.first[pg_one]" in render_many(double, choice, Layout.of(double, choice, 8)).text
    True
    """
    name = name or f"{kernel_identifier(kernel)}_many"
    parts = render_parts(kernel, Expressions(WITHIN), choice, name, layout)
    return Source(name, join_parts(WITHIN, [parts]), parts.stages, kernel, choice)


class Parts(NamedTuple):
    """A rendered kernel before its text is put together, so that several kernels can share one."""

    write: Expressions
    functions: str
    stages: tuple[Stage, ...]
    vectors: frozenset[tuple[str, int]]


def render_parts(kernel: Kernel, write: Expressions, choice: Choice, name: str, layout: Layout | None = None) -> Parts:
    """Render like `render_gpu`, or `render_many` with a layout, with helper functions collected in *write*."""
    functions: list[str] = []
    stages: list[Stage] = []
    vectors: set[tuple[str, int]] = set()
    for variant in choice.variants:
        _render_variant(kernel, write, choice, variant, name, (functions, stages, vectors), layout)
    return Parts(write, "".join(functions), tuple(stages), frozenset(vectors))


def join_parts(dialect: Dialect, parts: Sequence[Parts]) -> str:
    """Return one source text for kernels that were rendered with one `Expressions`."""
    vectors = sorted({vector for part in parts for vector in part.vectors})
    helpers = parts[0].write.helpers()
    return dialect.prelude + dialect.vector_types(vectors) + helpers + "".join(part.functions for part in parts)


def _render_variant(
    kernel: Kernel, write: Expressions, choice: Choice, variant: Variant, name: str,
    into: tuple[list[str], list[Stage], set[tuple[str, int]]], layout: Layout | None,
) -> None:  # fmt: skip
    functions, stages, vectors = into
    block = (variant.lanes, variant.slots) if variant.strategy == "rows" else (variant.slots, variant.lanes)
    count = len(Reduction(Addressing(kernel, write, wide=choice.wide), write, variant).passes) if variant.splits else 1
    for number in range(count):
        at = Addressing(kernel, write, wide=choice.wide)
        shared: list[str] = []
        has_work = True
        if variant.strategy == "elementwise":
            values = elementwise_body(at, write, variant)
            body = str(values.out)
        elif variant.strategy == "tiles":
            values, shared = tiles_body(at, write, variant)
            body = str(values.out)
        else:
            reduction = Reduction(at, write, variant)
            written = reduction.split(number) if variant.splits else reduction.whole()
            values, body, shared, has_work = written.values, str(written.out), written.shared, written.has_work
        vectors |= values.memory_vectors
        arguments, parameters = [*at.arguments()], at.parameters()
        if variant.splits:
            arguments += [
                Argument("scratch", 0, "uint8"),
                Argument("extra", 0, at.index_dtype),
                Argument("extra", 1, at.index_dtype),
            ]
            parameters += [write.dialect.parameter("uint8", "scratch", const=False)]
            parameters += [f"const {at.index_type} {extra}" for extra in ("splits", "span")]
        title = f"{name}_{len(stages)}"
        declarations = "".join(f"    {line}\n" for line in shared)
        if layout is None:
            head = write.dialect.signature(title, parameters, block)
        else:
            head, reads = many_head(title, arguments, parameters, block, layout)
            declarations += reads
        functions.append(f"{head} {{\n{declarations}{body}\n}}\n")
        stages.append(Stage(title, tuple(arguments), block, variant, has_work))
