"""How a kernel is run on a CPU device: its vector axis, how long vectors are, what is kept, what is split.

Here: decisions, from a kernel's structure and a launch's extents.
Not here: text (`cpu_style.py`, `cpu_walks.py`).
"""

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

from polygrad.driver.ir import ITEMSIZE, Kernel, guards_as_operands, placements
from polygrad.driver.render.addressing import named_ints, varying
from polygrad.driver.render.cpu_vector import DEAR, VECTOR, compared_indices
from polygrad.driver.render.dialect import Dialect

BLOCKS = 128  # vectors of columns in a strip at most: 4 KiB of contiguous memory
CARRIED = 1024  # vectors that a strip carries along at most, of all values together: 32 KiB
LEAST_STRIP = 16  # vectors
LEAST_PART = 16384  # elements; a walk is not split into less
SMALL = 4096  # elements; less is not divided among work-items at all
BLOCKS_FROM = 512  # elements of a reduction; a shorter one has few enough steps to be one block


class Plan(NamedTuple):
    """How one launch is rendered; hashable, and with the kernel the key of a program.

    `axis` is the vector axis, -1 for none; `width` the vectors' length; `kept` says whether dear values are kept from
    walk to walk; `split` whether the walks are divided and a launch is made for each; `blocks` whether sums along the
    vector axis are taken block by block; `streams` whether results go past the cache, which they would not fit in.
    """

    axis: int
    width: int
    kept: bool = False
    split: bool = False
    blocks: bool = False
    streams: bool = False


class Sizes(NamedTuple):
    """What one launch needs: work-items of each stage, parts of a split walk, bytes of scratch and of each kept row."""

    items: tuple[int, ...]
    parts: int
    scratch: int
    local: tuple[int, ...]


def plan(kernel: Kernel, ints: Sequence[int], items: int, dialect: Dialect, local_bytes: int = 1 << 17) -> Plan:
    """Choose how to run one launch on *items* work-items with *local_bytes* of private memory for kept rows.

    >>> from polygrad.driver.ir import Instr, Store, View
    >>> from polygrad.driver.render.dialect import OPENCL
    >>> double = Kernel(1, 0, ("float32", "float32"), (View(0, "float32", (1,)), View(1, "float32", (1,))), (),
    ...                 (Instr("load", "float32", (), 0), Instr("add", "float32", (0, 0))), (Store(1, 1),))
    >>> plan(double, (1000, 0, 0), 16, OPENCL)
    Plan(axis=0, width=8, kept=False, split=False, blocks=False, streams=False)
    """
    kernel = guards_as_operands(kernel)
    named = named_ints(kernel, ints)
    extents = [named[f"n{k}"] for k in range(kernel.rank)]
    axis = vector_axis(kernel, extents)
    width = vector_width(kernel, axis) if dialect.vectors and axis >= 0 else 1
    streams = 0 < dialect.streamed <= _streamed_bytes(kernel, axis, width, extents)
    if not walks(kernel):
        return Plan(axis, width, streams=streams)
    rows, along = math.prod(extents[: kernel.parallel]), math.prod(extents[kernel.parallel :])
    tasks = rows
    if 0 <= axis < kernel.parallel:
        tasks = rows // extents[axis] * -(-extents[axis] // (width * strip_blocks(kernel)))
    partial = any(view.partial for view in kernel.views)
    blocks = width > 1 and axis >= kernel.parallel and along > BLOCKS_FROM
    if tasks * 2 <= items and rows * along >= 2 * LEAST_PART and along >= 64 and not partial:  # noqa: PLR2004
        return Plan(axis, width, split=True, blocks=blocks, streams=streams)
    if axis >= kernel.parallel:
        kept = kept_values(kernel)
        size = sum(ITEMSIZE[kernel.body[n].dtype] for n in kept) * along
        if kept and size <= local_bytes:
            return Plan(axis, width, kept=True, blocks=blocks, streams=streams)
    return Plan(axis, width, blocks=blocks, streams=streams)


@functools.lru_cache(maxsize=4096)
def streamed_views(kernel: Kernel, axis: int, width: int) -> frozenset[int]:
    """Return the views of results that can go past the cache: whole vectors, of one value for each index.

    Memory that the kernel reads too is in the cache already.
    """
    read = {kernel.views[instr.attr].buffer for instr in kernel.body if instr.op == "load"}
    found = set()
    for store in kernel.stores:
        view = kernel.views[store.view]
        whole = width > 1 and view.strides[axis] == 1 and ITEMSIZE[view.dtype] * width == VECTOR
        each = placements(kernel)[store.value].full or not walks(kernel)
        if whole and each and not view.partial and view.buffer not in read:
            found.add(store.view)
    return frozenset(found)


def _streamed_bytes(kernel: Kernel, axis: int, width: int, extents: Sequence[int]) -> int:
    views = streamed_views(kernel, axis, width) if axis >= 0 else ()
    return math.prod(extents) * sum(ITEMSIZE[kernel.views[v].dtype] for v in views)


def vector_axis(kernel: Kernel, extents: Sequence[int]) -> int:
    """Return the axis along which most memory traffic is contiguous and which is long enough; -1 if there is none."""
    partial = any(view.partial for view in kernel.views)
    axes = range(kernel.parallel if partial else 0, kernel.rank if walks(kernel) else kernel.parallel)
    if not axes:
        return -1
    scores = [(_score(kernel, axis, extents), axis) for axis in axes]
    return max(scores)[1]


def _score(kernel: Kernel, axis: int, extents: Sequence[int]) -> float:
    placed = placements(kernel)
    score = 0.0
    # Where there are walks, what is loaded or stored once a row is a small part of the traffic.
    for n, instr in enumerate(kernel.body):
        if instr.op == "load" and kernel.views[instr.attr].strides[axis] == 1:
            score += 2 if placed[n].full or not kernel.reduced else 0.2
    for store in kernel.stores:
        if kernel.views[store.view].strides[axis] == 1:
            score += 2.5 if placed[store.value].full or not kernel.reduced else 0.25
    # Along an axis shorter than a vector everything is tail and folding: lanes across it serve better, even if strided.
    if extents[axis] < 8:  # noqa: PLR2004
        return 0.02 * score - (10 if extents[axis] == 1 else 0)
    return score + 0.1


@functools.lru_cache(maxsize=4096)
def vector_width(kernel: Kernel, axis: int) -> int:
    """Return the length of vectors along *axis*: 32 bytes of the widest value that is ever one, never more.

    Wider vectors gain little where registers have 32 bytes, and where they have 64, PoCL 3.0 (LLVM 14) does not
    survive them.
    """
    varies, never = varying(kernel, axis), compared_indices(kernel, axis)
    vectors = {n for n in range(len(kernel.body)) if varies[n] and n not in never}
    vectors |= {store.value for store in kernel.stores}
    vectors |= {instr.args[0] for instr in kernel.body if instr.op == "reduce"}
    return VECTOR // max([4, *(ITEMSIZE[kernel.body[n].dtype] for n in vectors)])


@functools.lru_cache(maxsize=4096)
def strip_blocks(kernel: Kernel) -> int:
    """Return how many vectors of columns a work-item takes through a walk: fewer if there is much to carry for each.

    Never few, for short pieces of a row of memory are slow to stream.
    """
    used = {a for walk in walks(kernel) for n in walk.values for a in kernel.body[n].args}
    carried = sum(i.op == "reduce" or (n in used and not placements(kernel)[n].full) for n, i in enumerate(kernel.body))
    return max(LEAST_STRIP, min(BLOCKS, CARRIED // max(1, carried)))


class Walk(NamedTuple):
    """One pass over the reduced axes: its level, its reductions and stores (by position), the FULL values for them."""

    level: int
    reduces: tuple[int, ...]
    stores: tuple[int, ...]
    values: tuple[int, ...]


@functools.lru_cache(maxsize=4096)
def walks(kernel: Kernel) -> tuple[Walk, ...]:
    """Return the walks over the reduced axes, in order of level."""
    placed = placements(kernel)
    levels = max((p.level for p in placed), default=0)
    found = []
    for level in range(levels + 1):
        reduces = [n for n, i in enumerate(kernel.body) if i.op == "reduce" and placed[n].level == level + 1]
        stores = [s for s, store in enumerate(kernel.stores) if placed[store.value] == (True, level)]
        if reduces or stores:
            roots = [kernel.body[n].args[0] for n in reduces] + [kernel.stores[s].value for s in stores]
            found.append(Walk(level, tuple(reduces), tuple(stores), needed(kernel, roots, full=True)))
    return tuple(found)


def needed(kernel: Kernel, roots: Sequence[int], *, full: bool, given: frozenset[int] = frozenset()) -> tuple[int, ...]:
    """Return the values of one space that *roots* are made of, in order; those *given* are not looked into."""
    placed = placements(kernel)
    seen: set[int] = set()
    todo = list(roots)
    while todo:
        n = todo.pop()
        if n in seen or placed[n].full != full:
            continue
        seen.add(n)
        if n not in given and kernel.body[n].op != "reduce":
            todo += kernel.body[n].args
    return tuple(sorted(seen))


@functools.lru_cache(maxsize=4096)
def kept_values(kernel: Kernel) -> tuple[int, ...]:
    """Return the FULL values that a walk computes with a dear function and a later walk needs again."""
    dear: list[bool] = []
    for instr in kernel.body:
        dear.append(instr.op in DEAR or (instr.op != "reduce" and any(dear[a] for a in instr.args)))
    computed: set[int] = set()
    kept: set[int] = set()
    for walk in walks(kernel):
        given = frozenset(n for n in computed if dear[n] and kernel.body[n].dtype != "bool")
        roots = [kernel.body[n].args[0] for n in walk.reduces] + [kernel.stores[s].value for s in walk.stores]
        again = needed(kernel, roots, full=True, given=given)
        kept |= given & set(again)
        computed |= set(again) - given
    return tuple(sorted(kept))


def sizes(kernel: Kernel, chosen: Plan, ints: Sequence[int], items: int) -> Sizes:
    """Return what a launch of a plan needs on *items* work-items."""
    kernel = guards_as_operands(kernel)
    named = named_ints(kernel, ints)
    extents = [named[f"n{k}"] for k in range(kernel.rank)]
    rows, along = math.prod(extents[: kernel.parallel]), math.prod(extents[kernel.parallel :])
    tasks = rows
    columns = walks(kernel) and 0 <= chosen.axis < kernel.parallel
    if columns:
        tasks = rows // extents[chosen.axis] * -(-extents[chosen.axis] // (chosen.width * strip_blocks(kernel)))
    if not chosen.split:
        whole = 1 if rows * along <= SMALL else min(items, rows if not columns else items)
        return Sizes(
            (whole,), 1, 0, tuple(along * ITEMSIZE[kernel.body[n].dtype] for n in kept_values(kernel) if chosen.kept)
        )
    parts = max(1, min(-(-items // tasks), along * rows // tasks // LEAST_PART, along))
    slots = sum(ITEMSIZE[instr.dtype] for instr in kernel.body if instr.op == "reduce")
    passes = walks(kernel)
    stages = [tasks * parts] * len(passes) + [min(tasks, items)] * bool(passes[-1].reduces)
    return Sizes(tuple(stages), parts, parts * rows * slots, ())
