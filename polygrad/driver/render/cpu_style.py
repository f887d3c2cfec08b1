"""Kernels for CPU devices: few work-items, each with a contiguous range of the work, wide vectors, no barrier.

Here: `render`, from a kernel and a plan to source text and the launches to make of it. Not here: the decisions
(`cpu_plan.py`), loops (`cpu_walks.py`, `cpu_columns.py`), single values (`cpu_vector.py`), axes that could be joined
(`collapse.py`), queues and memory.

One axis is the vector axis: a reduced one (rows: the work-item walks along the row and folds vectors at its end) or a
parallel one (columns: a work-item owns a strip of columns, lanes are columns, reductions need no folding). Each level
of a kernel is one walk over the reduced axes; a later walk computes again, from the loads, what it needs of an
earlier one, except for values of a dear function, which are kept in a private row if it fits. If there are fewer rows
than work-items, the walk is split in parts: a launch for each level leaves partial results, and the next one, whose
work-items all combine them, goes on.
"""

from collections.abc import Sequence
from typing import NamedTuple

from polygrad.driver.ir import Kernel, guards_as_operands
from polygrad.driver.render.addressing import Addressing, Argument
from polygrad.driver.render.cpu_columns import Columns
from polygrad.driver.render.cpu_plan import Plan, Sizes, Walk, plan, sizes, streamed_views, walks
from polygrad.driver.render.cpu_vector import Values
from polygrad.driver.render.cpu_walks import Elements, Layout, Rows
from polygrad.driver.render.dialect import Dialect
from polygrad.driver.render.expressions import Expressions

__all__ = ["Plan", "Rendered", "Sizes", "Stage", "plan", "render", "sizes"]


class Stage(NamedTuple):
    """One launch: the kernel's name and its arguments.

    Beside the kinds of `Argument` there are ``extra`` (an int64, `Sizes.parts`), ``scratch`` (a buffer of
    `Sizes.scratch` bytes, shared by the stages) and ``local`` (private memory of `Sizes.local[position]` bytes).
    """

    name: str
    arguments: tuple[Argument, ...]


class Rendered(NamedTuple):
    """Source text and the launches to make of it, in order."""

    text: str
    stages: tuple[Stage, ...]


def render(kernel: Kernel, chosen: Plan, dialect: Dialect, name: str = "pg") -> Rendered:
    """Return the source of *kernel* for a plan; its functions are called *name* and a number.

    Examples
    --------
    >>> from polygrad.driver.ir import Instr, Store, View
    >>> from polygrad.driver.render.dialect import C99, OPENCL
    >>> double = Kernel(1, 0, ("float32", "float32"), (View(0, "float32", (1,)), View(1, "float32", (1,))), (),
    ...                 (Instr("load", "float32", (), 0), Instr("add", "float32", (0, 0))), (Store(1, 1),))
    >>> source = render(double, Plan(0, 8), OPENCL)
    >>> [line.strip() for line in source.text.splitlines() if "y0 =" in line]
    ['const float8 y0 = pg_float8_load(__global, b0 + (v0_o + i0));']
    """
    write = Expressions(dialect)
    text, stages = functions(kernel, chosen, write, name)
    return Rendered(dialect.prelude + write.helpers() + text, stages)


def functions(kernel: Kernel, chosen: Plan, write: Expressions, name: str) -> tuple[str, tuple[Stage, ...]]:
    """Return the functions of a kernel; *write* collects the helpers, so that several kernels can share a source."""
    kernel = guards_as_operands(kernel)
    at = Addressing(kernel, write, wide=True)
    streamed = streamed_views(kernel, chosen.axis, chosen.width) if chosen.streams else frozenset()
    values = Values(kernel, chosen.axis, chosen.width, at, write, streamed)
    passes: list[Walk | None] = [None]
    if chosen.split:
        passes = [*walks(kernel)]
        if walks(kernel)[-1].reduces:
            passes.append(None)  # only the values of rows are left to do
    stages, bodies = [], []
    for number, walk in enumerate(passes):
        layout = layout_of(kernel, chosen, values, walk, last=number == len(passes) - 1)
        bodies.append(function_text(f"{name}_{number}", at, layout))
        stages.append(Stage(f"{name}_{number}", (*at.arguments(), *layout.extra_arguments())))
    return "".join(bodies), tuple(stages)


def layout_of(kernel: Kernel, chosen: Plan, values: Values, walk: Walk | None, *, last: bool) -> Layout:
    """Return the layout for a plan. *walk* is the one that a split stage does, None for what is left (or all)."""
    if not walks(kernel):
        return Elements(kernel, chosen, values, walk, last=last)
    kind = Columns if 0 <= chosen.axis < kernel.parallel else Rows
    return kind(kernel, chosen, values, walk, last=last)


def function_text(title: str, at: Addressing, layout: Layout) -> str:
    """Return one function; where a language has no work-items, it takes its own number and how many there are."""
    dialect = at.dialect
    parameters = [*at.parameters(), *layout.extra_parameters()]
    kind = dialect.types["int64"]
    head = []
    if dialect.name == "opencl":
        head.append(f"const {kind} item = get_global_id(0), items = get_global_size(0);")
    else:
        parameters += [f"const {kind} item", f"const {kind} items"]
    tail = ["mem_fence(CLK_GLOBAL_MEM_FENCE);"] if layout.values.streamed else []  # streamed stores keep no order
    return indented([dialect.signature(title, parameters) + " {", *head, *layout.body(), *tail, "}"])


def indented(lines: Sequence[str]) -> str:
    """Return lines of C, four spaces a brace.

    >>> print(indented(["if (a) {", "b;", "}"]), end="")
    if (a) {
        b;
    }
    """
    out, depth = [], 0
    for line in lines:
        depth -= line.startswith("}")
        out.append("    " * depth + line)
        depth += line.endswith("{")
    return "\n".join(out) + "\n"
