"""Running a launch that is more than one call: in blocks of whole rows, or in chunks of rows, on several threads.

Here: the two loops. Not here: the size of a block (`geometry.py`), what is computed in one (`source.py`).
"""

import copy
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from polygrad.driver import Kernel
from polygrad.driver.types import Handle
from polygrad_cpu import source
from polygrad_cpu.frame import Binding, Place
from polygrad_cpu.geometry import Box, Cut, blocks, row_boxes
from polygrad_cpu.reduction import Pile
from polygrad_cpu.source import Programs
from polygrad_cpu.workers import Workspace, call, share

Array = np.ndarray[Any, Any]

SEGMENTS = 4  # runs of chunks for each thread; their number fixes the order of a sum, which threads must not change

_serial = itertools.count()  # of executions: workspaces remember frames by it


def launch_scalars(dtypes: Sequence[str], values: Sequence[Any]) -> list[Array]:
    """Return *values* as 0-d arrays, which a ufunc takes twice as fast as scalars."""
    return [np.array(value, source.numpy_dtype(dtype)) for dtype, value in zip(dtypes, values, strict=True)]


Task = list[tuple[dict[int, int], Box]]  # boxes, each with the part of every partial view that its rows belong to


def tasks(kernel: Kernel, binding: Binding) -> list[Task]:
    """Cut the rows where parts of partial stores begin; tasks never add to the same memory, the boxes of one may."""
    geometry = binding.geometry
    rows = math.prod(geometry.extents[k] for k in geometry.parallel_axes)
    heights = {v: -(-rows // geometry.parts[v][0]) for v, view in enumerate(kernel.views) if view.partial}
    if not heights:
        return [[({}, binding.everywhere)]]
    starts = sorted({start for height in heights.values() for start in range(0, rows, height)})
    found = [
        [({v: first // height for v, height in heights.items()}, box) for box in row_boxes(geometry, first, last)]
        for first, last in itertools.pairwise([*starts, rows])
    ]
    # Views with unequal parts: a part of one may hold several of another, so that no two tasks are independent.
    return found if len(set(heights.values())) == 1 else [list(itertools.chain.from_iterable(found))]


def cut_tasks(kernel: Kernel, binding: Binding, cut: Cut) -> list[Task]:
    """Cut tasks into blocks along the parallel axes; if none adds to memory, each block is a task of its own."""
    axes = binding.geometry.parallel_axes
    work = [[(parts, b) for parts, box in task for b in blocks(box, cut.step, axes)] for task in tasks(kernel, binding)]
    return work if any(view.partial for view in kernel.views) else [[block] for block in work[0]]


class Execution:
    """What both loops share: the launch, and functions called in a workspace at a place."""

    def __init__(self, programs: Programs, binding: Binding, cut: Cut, threads: int) -> None:
        kernel = programs.kernel
        self.kernel, self.binding, self.cut, self.threads = kernel, binding, cut, threads
        self.serial = next(_serial)
        self.work = cut_tasks(kernel, binding, cut)
        self.partial = [v for v, view in enumerate(kernel.views) if view.partial]

    def moved(self, binding: Binding) -> "Execution":
        """Return the same launch at other offsets."""
        other = copy.copy(self)
        other.binding = binding
        return other

    def run(self, buffers: Sequence[Handle], scalars: Sequence[Any]) -> None:
        """Run a launch."""
        raise NotImplementedError

    def begin(self, buffers: Sequence[Handle], scalars: Sequence[Any]) -> tuple[list[Array], list[Array]]:
        """Return the views and the scalars of a launch; parts of partial stores are zero, to be added to."""
        arrays = self.binding.arrays(buffers)
        for view in self.partial:
            arrays[view][...] = 0
        return arrays, launch_scalars(self.kernel.scalars, scalars)

    def frame(self, code: source.Code, box: Box, workspace: Workspace) -> list[Any]:
        """Return the frame of *code* for a block of the shape of *box*, remembered in the workspace."""
        shape = tuple(stop - start for start, stop in box)
        key = (self.serial, id(code), shape)
        frame: list[Any] | None = workspace.frames.get(key)
        if frame is None:
            # The scratch of the largest block first: growing it later would forget the frames made until then.
            most = self.binding.frame_bytes(code, self.cut.step)
            workspace.room(sum(most) + 256 * len(most))
            frame = self.binding.frame(code, shape, workspace.room)
            workspace.remember(key, frame)
        return frame


class Blocks(Execution):
    """Blocks that hold all reduced axes: every value is computed once."""

    def __init__(self, programs: Programs, binding: Binding, cut: Cut, threads: int) -> None:
        super().__init__(programs, binding, cut, threads)
        self.code = programs.whole

    def run(self, buffers: Sequence[Handle], scalars: Sequence[Any]) -> None:
        """Run a launch."""
        arrays, slots = self.begin(buffers, scalars)
        numbers, work, code, binding = itertools.count(), self.work, self.code, self.binding
        function = code.function

        def some(workspace: Workspace) -> None:
            for n in numbers:
                if n >= len(work):
                    return
                for parts, box in work[n]:
                    place = Place(box, parts, workspace=workspace)
                    positional = binding.positional(code, arrays, buffers, place)
                    function(*positional, *slots, *self.frame(code, box, workspace))

        share(some, min(self.threads, len(work)))


class Chunks(Execution):
    """Chunks of the reduced axes: a pass for each level, FULL values computed again in each."""

    def __init__(self, programs: Programs, binding: Binding, cut: Cut, threads: int) -> None:
        super().__init__(programs, binding, cut, threads)
        self.levels = programs.levels
        self.rows = sorted(
            {i.number for level in self.levels for c in level[:2] if c for i in c.positional if i.what == "row"}
        )
        self.rows += [p for level in self.levels for p in level.reduces if p not in self.rows]
        # Enough boxes for all threads: each thread takes boxes. Else all threads work on one box's chunks.
        self.by_box = len(self.work) >= 2 * threads
        self.segments = SEGMENTS * threads if threads > 1 and not self.by_box else 1

    def run(self, buffers: Sequence[Handle], scalars: Sequence[Any]) -> None:
        """Run a launch."""
        call(lambda _: self._run(buffers, scalars))  # piles are combined between the passes, quietly too

    def _run(self, buffers: Sequence[Handle], scalars: Sequence[Any]) -> None:
        arrays, slots = self.begin(buffers, scalars)
        if not self.by_box:
            for parts, box in itertools.chain.from_iterable(self.work):
                self._box(parts, box, (arrays, buffers, slots), self.threads)
            return
        numbers, work = itertools.count(), self.work

        def some(_: Workspace) -> None:
            for n in numbers:
                if n >= len(work):
                    return
                for parts, box in work[n]:
                    self._box(parts, box, (arrays, buffers, slots), 1)

        share(some, min(self.threads, len(work)))

    def _box(self, parts: dict[int, int], box: Box, launch: tuple[Any, Any, Any], threads: int) -> None:
        """Run every level over the rows of *box*."""
        shape = tuple(stop - start for start, stop in box)
        geometry = self.binding.geometry
        body = self.kernel.body
        rows = {p: np.empty(geometry.value_extents(p, shape), source.numpy_dtype(body[p].dtype)) for p in self.rows}
        for level in self.levels:
            if level.row is not None:
                call(self._caller(level.row, Place(box, parts, rows), launch))
            if level.chunk is not None:
                self._chunks(level.chunk, level.reduces, Place(box, parts, rows), launch, threads)

    def _caller(self, code: source.Code, place: Place, launch: tuple[Any, Any, Any]) -> Callable[[Workspace], None]:
        arrays, buffers, slots = launch

        def work(workspace: Workspace) -> None:
            here = place._replace(workspace=workspace)
            positional = self.binding.positional(code, arrays, buffers, here)
            code.function(*positional, *slots, *self.frame(code, place.box, workspace))

        return work

    def _chunks(
        self, code: source.Code, reduces: Sequence[int], place: Place, launch: tuple[Any, Any, Any], threads: int
    ) -> None:
        """Run one level's loop; each segment of chunks has piles of its own, combined in order at the end."""
        body, geometry = self.kernel.body, self.binding.geometry
        chunks = list(blocks(place.box, self.cut.step, geometry.reduced_axes))
        count = min(self.segments, len(chunks))
        piles = [
            {p: Pile(body[p].attr, place.rows[p].shape, place.rows[p].dtype) for p in reduces} for _ in range(count)
        ]
        numbers = itertools.count()

        def some(workspace: Workspace) -> None:
            for n in numbers:
                if n >= count:
                    return
                for chunk in chunks[n * len(chunks) // count : (n + 1) * len(chunks) // count]:
                    self._caller(code, Place(chunk, place.parts, place.rows, piles[n]), launch)(workspace)

        share(some, min(threads, count))
        for p in reduces:
            last = Pile(body[p].attr, place.rows[p].shape, place.rows[p].dtype)
            for pile in piles:
                last.push(pile[p].total())
            place.rows[p][...] = last.total()
