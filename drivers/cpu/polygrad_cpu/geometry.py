"""The axes of one launch: merged, ordered by memory, and cut into blocks.

Here: what follows from a kernel and its extents and strides. Not here: offsets, buffers, threads, code.

Axes of extent 1 go. Neighbours over which every view runs on are merged. The rest is ordered by the strides of the
biggest view, so that a column reduction and a transposed operand run along memory; a very short innermost axis is
moved outwards, for NumPy's inner loop is the last axis.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from polygrad.driver import Kernel, placements
from polygrad.driver.ir import ITEMSIZE
from polygrad.driver.launch import Launch
from polygrad_cpu import source

SHORT = 16  # elements of an innermost axis, if it is reduced, that are too few for a loop of their own
FEW = 4  # the same if it is parallel
TILE = 512  # elements of the innermost axis in a block where two views disagree about the order of the axes
KEEP = 4  # a row may exceed the block so many times before its values are computed again for each reduction
NARROW = 16  # columns of a block, at least, where rows are reduced and columns are along memory

# Nanoseconds an element, roughly: enough to say whether a launch is worth a second thread.
DEAR = (
    "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan atan2 sinh cosh tanh asinh acosh atanh pow fmod "
    "modulo quotient"
)
COST = dict.fromkeys(DEAR.split(), 1.5) | {
    "erf": 6.0,
    "sqrt": 0.4,
    "rsqrt": 0.6,
    "where": 0.45,
    "reduce": 0.2,
    "load": 0.1,
}

Box = tuple[tuple[int, int], ...]  # a half-open range for each axis


class Geometry(NamedTuple):
    """Axes with what each view and each value does along them."""

    extents: tuple[int, ...]
    reduced: tuple[bool, ...]
    members: tuple[tuple[int, ...], ...]  # the kernel's axes that each axis stands for
    strides: tuple[tuple[int, ...], ...]  # of each view
    windows: tuple[dict[int, tuple[int, int]], ...]  # of each view
    gathers: tuple[tuple[tuple[int, int], ...], ...]
    parts: tuple[tuple[int, int], ...]  # parts and part stride of each view
    varies: tuple[tuple[bool, ...], ...]  # of each instruction: along which axes
    memory: tuple[int, ...]  # the axes, from the one along memory outwards
    across: tuple[bool, ...]  # of each view
    short: int  # a parallel axis so short that blocks hold one index of it, or -1
    tag: int

    @property
    def rank(self) -> int:
        return len(self.extents)

    @property
    def reduced_axes(self) -> tuple[int, ...]:
        return tuple(k for k, r in enumerate(self.reduced) if r)

    @property
    def parallel_axes(self) -> tuple[int, ...]:
        return tuple(k for k, r in enumerate(self.reduced) if not r)

    def axis_of(self, member: int) -> int:
        """Return the axis that stands for axis *member* of the kernel, or -1 if that has extent 1."""
        return next((k for k, group in enumerate(self.members) if member in group), -1)

    def view_extents(self, view: int, block: Sequence[int]) -> tuple[int, ...]:
        """Return the block's extents, or 1 where *view* does not vary."""
        strides, window = self.strides[view], self.windows[view]
        return tuple(n if strides[k] or k in window else 1 for k, n in enumerate(block))

    def value_extents(self, position: int, block: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of a value over a block."""
        return tuple(n if v else 1 for n, v in zip(block, self.varies[position], strict=True))


def arrange(kernel: Kernel, launch: Launch) -> Geometry:
    """Return the geometry of *launch*."""
    bound = launch.views
    pinned = {axis for view in kernel.views for axis in view.window}
    pinned |= {i.attr for i in kernel.body if i.op == "iota" and launch.extents[i.attr] > 1}
    axes = [k for k, n in enumerate(launch.extents) if n > 1 or k in pinned]
    strides = [view.strides for view in bound]
    order = _sorted(axes, _by_weight(kernel, launch, axes), strides, launch.extents)
    partial = any(view.partial for view in kernel.views)
    groups: list[list[int]] = []
    for axis in order:
        if groups and _mergeable(kernel, launch, groups[-1][-1], axis, pinned, partial=partial):
            groups[-1].append(axis)
        else:
            groups.append([axis])
    extents = [math.prod(launch.extents[a] for a in group) for group in groups]
    memory = list(range(len(groups)))[::-1]
    short = -1
    if _should_swap(groups, extents, kernel.parallel):
        short, long = len(groups) - 2, len(groups) - 1
        memory = [short, long, *memory[2:]]
        groups[short:] = groups[long], groups[short]
        extents[short:] = extents[long], extents[short]
    flat = [tuple(s[group[-1]] if launch.extents[group[-1]] > 1 else 0 for group in groups) for s in strides]
    reduced = tuple(group[0] >= kernel.parallel for group in groups)
    place = {a: k for k, group in enumerate(groups) for a in group}
    windows = [
        {place[axis]: (max(lo, 0), max(0, min(hi, launch.extents[axis]))) for axis, lo, hi in view.window}
        for view in bound
    ]
    return Geometry(
        extents=tuple(extents),
        reduced=reduced,
        members=tuple(map(tuple, groups)),
        strides=tuple(flat),
        windows=tuple(windows),
        gathers=tuple(view.gathers for view in bound),
        parts=tuple((view.parts, view.part_stride) for view in bound),
        varies=_variation(kernel, flat, windows, reduced, place),
        memory=tuple(memory),
        across=_across(kernel, flat, extents),
        short=short if short >= 0 and not reduced[short] else -1,
        tag=launch.tag,
    )


def _should_swap(groups: Sequence[Sequence[int]], extents: Sequence[int], parallel: int) -> bool:
    """Say whether the last axis is short and the one before it would be a better inner loop.

    Columns that are summed stay as they are: rows of a few columns are joined to long ones instead.
    """
    if len(groups) == 1 or not groups or extents[-2] < (2 * FEW if extents[-1] <= FEW else 4 * SHORT):
        return False
    if groups[-1][0] >= parallel:
        return extents[-1] <= SHORT
    return extents[-1] <= FEW and groups[-2][0] < parallel


def _by_weight(kernel: Kernel, launch: Launch, axes: Sequence[int]) -> list[int]:
    """Return the views, the one that moves most bytes first; of equals a store, for a load may be turned."""
    stored = {store.view for store in kernel.stores}

    def weight(v: int) -> tuple[int, bool]:
        count = math.prod(launch.extents[a] for a in axes if launch.views[v].strides[a])
        return (count * ITEMSIZE[kernel.views[v].dtype], v in stored)

    return sorted(range(len(kernel.views)), key=weight, reverse=True)


def _sorted(
    axes: Sequence[int], views: Sequence[int], strides: Sequence[Sequence[int]], extents: Sequence[int]
) -> list[int]:
    """Order axes from the greatest stride to the least, by the first view that tells two of them apart."""
    order: list[int] = []
    for axis in axes:
        at = len(order)
        while at and _inside_out(order[at - 1], axis, views, strides, extents):
            at -= 1
        order.insert(at, axis)
    return order


def _inside_out(
    outer: int, inner: int, views: Sequence[int], strides: Sequence[Sequence[int]], extents: Sequence[int]
) -> bool:
    """Say whether the pair is in the wrong order."""
    if extents[outer] == 1 or extents[inner] == 1:
        return False
    for v in views:
        a, b = abs(strides[v][outer]), abs(strides[v][inner])
        if a and b and a != b:
            return a < b
    return False


def _mergeable(kernel: Kernel, launch: Launch, outer: int, inner: int, pinned: set[int], *, partial: bool) -> bool:
    if outer in pinned or inner in pinned or (outer < kernel.parallel) != (inner < kernel.parallel):
        return False
    if partial and inner < kernel.parallel:  # rows are numbered in the kernel's order, which merged axes must keep
        following = (a for a in range(outer + 1, kernel.parallel) if launch.extents[a] > 1)
        if next(following, -1) != inner:
            return False
    size = launch.extents[inner]
    return all(view.strides[outer] == view.strides[inner] * size for view in launch.views)


def _variation(
    kernel: Kernel,
    strides: Sequence[Sequence[int]],
    windows: Sequence[dict[int, tuple[int, int]]],
    reduced: Sequence[bool],
    place: dict[int, int],
) -> tuple[tuple[bool, ...], ...]:
    found: list[tuple[bool, ...]] = []
    rank = len(reduced)
    # A value that is computed into the memory where it is stored has the store's shape: so has, then, any that could
    # be.
    stored = {store.value: store.view for store in kernel.stores if not kernel.views[store.view].partial}
    for position, instr in enumerate(kernel.body):
        varies = [any(found[a][k] for a in instr.args) for k in range(rank)]
        if instr.op == "load":
            varies = [v or strides[instr.attr][k] != 0 or k in windows[instr.attr] for k, v in enumerate(varies)]
        elif instr.op == "iota":
            varies = [k == place.get(instr.attr, -1) for k in range(rank)]
        elif instr.op == "reduce":
            varies = [v and not reduced[k] for k, v in enumerate(varies)]
        if position in stored and source.may_be_direct(kernel, position):
            varies = [v or strides[stored[position]][k] != 0 for k, v in enumerate(varies)]
        found.append(tuple(varies))
    return tuple(found)


def _across(kernel: Kernel, strides: Sequence[Sequence[int]], extents: Sequence[int]) -> tuple[bool, ...]:
    """Say of each view whether it runs along memory on another axis than the innermost: a transposed operand."""
    last = len(extents) - 1
    return tuple(
        bool(extents and extents[last] > SHORT and s[last] and not view.gathers)
        and any(0 < abs(s[k]) < abs(s[last]) and extents[k] > SHORT for k in range(last))
        for view, s in zip(kernel.views, strides, strict=True)
    )


# ---- blocks ------------------------------------------------------------------------------------------------


def work_ns(kernel: Kernel, geometry: Geometry) -> float:
    """Estimate the work of a launch on one thread."""
    places = placements(kernel)
    each = 0.1 + sum(COST.get(i.op, 0.15) for p, i in enumerate(kernel.body) if places[p].full or not kernel.reduced)
    return each * math.prod(geometry.extents)


def element_bytes(kernel: Kernel) -> int:
    """Return the width of the widest value."""
    return max((ITEMSIZE[i.dtype] for p, i in enumerate(kernel.body) if source.is_register(kernel, p)), default=4)


class Cut(NamedTuple):
    """How far a block reaches along each axis; `whole` says that it holds all of the reduced axes."""

    step: tuple[int, ...]
    whole: bool


def cut(kernel: Kernel, geometry: Geometry, budget: int) -> Cut:
    """Choose blocks of about *budget* elements.

    With several levels a row that fits is kept whole, so that no value is computed twice; else blocks follow memory.
    """
    rows = math.prod(geometry.extents[k] for k in geometry.reduced_axes)
    several = rows > 1 and any(p.full and p.level for p in placements(kernel))
    if several or rows == 1:
        parallel = [k for k in geometry.memory if not geometry.reduced[k]]
        along = geometry.memory and not geometry.reduced[geometry.memory[0]]
        least = min(NARROW, geometry.extents[geometry.memory[0]]) if along and rows > 1 else 1
        if rows * least <= budget * (KEEP if several else 1) or budget < NARROW:
            step = _fill(geometry, parallel, max(least, budget // rows))
            return Cut(tuple(n if geometry.reduced[k] else step[k] for k, n in enumerate(geometry.extents)), whole=True)
        return _by_chunks(geometry, budget)
    step = _fill(geometry, geometry.memory, budget)
    if all(step[k] == geometry.extents[k] for k in geometry.reduced_axes):
        return Cut(tuple(step[k] for k in range(geometry.rank)), whole=True)
    return _by_chunks(geometry, budget)


def _by_chunks(geometry: Geometry, budget: int) -> Cut:
    parallel = [k for k in geometry.memory if not geometry.reduced[k]]
    reduced = [k for k in geometry.memory if geometry.reduced[k]]
    inside = list(itertools.takewhile(lambda k: geometry.reduced[k], geometry.memory))
    # Short runs of memory that are reduced, as the places of each channel of images: several runs make a block.
    run = math.prod(geometry.extents[k] for k in inside)
    step = _fill(geometry, parallel, max(1, budget // (run if inside else 16)))
    width = math.prod(step[k] for k in parallel)
    step |= _fill(geometry, reduced, max(1, budget // width))
    return Cut(tuple(step[k] for k in range(geometry.rank)), whole=False)


def _fill(geometry: Geometry, axes: Sequence[int], budget: int) -> dict[int, int]:
    """Give *axes*, in this order, as much as there is room for; the first no more than a tile if orders conflict."""
    step = {}
    room = max(1, budget)
    for i, k in enumerate(axes):
        n = geometry.extents[k]
        if k == geometry.short:  # its neighbours share lines of the cache, so that the blocks of all should fit it
            step[k] = 1
            room = max(1, room // n)
            continue
        most = min(room, TILE) if any(geometry.across) and i == 0 and len(axes) > 1 else room
        step[k] = n if n <= most else -(-n // -(-n // most))  # pieces of one size
        room = max(1, room // step[k])
    return step


def blocks(box: Box, step: Sequence[int], axes: Sequence[int]) -> Iterator[Box]:
    """Cut *box* along *axes* into blocks, first axis slowest."""
    ranges = [range(*box[k], step[k]) if k in axes else (box[k][0],) for k in range(len(box))]
    for starts in itertools.product(*ranges):
        yield tuple((start, min(start + step[k], box[k][1])) if k in axes else box[k] for k, start in enumerate(starts))


def row_boxes(geometry: Geometry, first: int, last: int) -> list[Box]:
    """Return boxes that cover rows first .. last - 1, numbered in C order over the kernel's parallel axes."""
    axes = sorted(geometry.parallel_axes, key=lambda k: geometry.members[k])
    whole = [(0, n) for n in geometry.extents]
    found: list[Box] = []

    def cover(depth: int, fixed: list[tuple[int, int]], lo: int, hi: int) -> None:
        if depth == len(axes):
            found.append(tuple(fixed))
            return
        inner = math.prod(geometry.extents[k] for k in axes[depth + 1 :])
        k = axes[depth]
        start, stop = -(-lo // inner), hi // inner
        if lo % inner or start > stop:  # a row that is cut at its beginning (and perhaps its end)
            part = lo // inner
            cover(depth + 1, _with(fixed, k, part), lo - part * inner, min(hi - part * inner, inner))
        if start < stop:
            found.append(tuple(_with(fixed, k, start, stop)))
        if hi % inner and stop >= start:
            cover(depth + 1, _with(fixed, k, stop), 0, hi - stop * inner)

    cover(0, whole, first, last)
    return found


def _with(fixed: list[tuple[int, int]], axis: int, start: int, stop: int = -1) -> list[tuple[int, int]]:
    return [*fixed[:axis], (start, start + 1 if stop < 0 else stop), *fixed[axis + 1 :]]
