"""What a generated function is called with: parts of buffers for a block, registers and reducers for its shape.

Here: from parameters (`source.Item`) to arrays. Not here: which blocks there are, who runs them.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from polygrad.driver import Kernel
from polygrad.driver.ir import ITEMSIZE
from polygrad.driver.launch import Launch
from polygrad.driver.types import Handle
from polygrad_cpu.gather import Gather
from polygrad_cpu.geometry import Box, Geometry
from polygrad_cpu.reduction import Reducer, reducer
from polygrad_cpu.source import Code, Item, numpy_dtype
from polygrad_cpu.workers import Workspace

Array = np.ndarray[Any, Any]
ndarray = np.ndarray
NOTHING: Array = np.empty(0, np.uint8)
LARGE = 4096  # elements of a transposed operand from which it is turned before it is used


class Memory(NamedTuple):
    """How to see part of a buffer as an array: the buffer's number and the arguments of numpy.ndarray, in bytes."""

    buffer: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int
    strides: tuple[int, ...]
    first: int = 0  # of a gathering view: where in the array the element is whose indices are all zero

    def of(self, buffers: Sequence[Handle]) -> Array:
        """Return the array."""
        return ndarray(self.shape, self.dtype, buffers[self.buffer], self.offset, self.strides)


def memory_of(kernel: Kernel, geometry: Geometry, number: int, offset: int) -> Memory | None:
    """Return what view *number* reaches: of a windowed view what lies inside (None if nothing does).

    A gathering view is one-dimensional, from its least address to its greatest; a partial one has its parts as first
    axis.
    """
    view = kernel.views[number]
    strides, size, dtype = geometry.strides[number], ITEMSIZE[view.dtype], numpy_dtype(view.dtype)
    ranges = [(0, n) for n in geometry.view_extents(number, geometry.extents)]
    for k, inside in geometry.windows[number].items():
        ranges[k] = inside
    if any(lo >= hi for lo, hi in ranges):
        return None
    if view.gathers:
        ends = [(s * lo, s * (hi - 1)) for s, (lo, hi) in zip(strides, ranges, strict=True)]
        ends += [(0, s * (n - 1)) for s, n in geometry.gathers[number]]
        least, greatest = sum(map(min, ends)), sum(map(max, ends))
        return Memory(view.buffer, (greatest - least + 1,), dtype, (offset + least) * size, (size,), -least)
    start = offset + sum(s * lo for s, (lo, _) in zip(strides, ranges, strict=True))
    shape = tuple(hi - lo for lo, hi in ranges)
    steps = tuple(s * size for s in strides)
    if view.partial:
        parts, part_stride = geometry.parts[number]
        return Memory(view.buffer, (parts, *shape), dtype, start * size, (part_stride * size, *steps))
    return Memory(view.buffer, shape, dtype, start * size, steps)


class Place(NamedTuple):
    """Where a function is run: a box, the part of each partial view that its rows belong to, what lives outside."""

    box: Box
    parts: Mapping[int, int] = {}
    rows: Mapping[int, Array] = {}
    piles: Mapping[int, Callable[[Reducer, Array], None]] = {}
    workspace: Workspace | None = None


class Binding:
    """A kernel, a geometry and the offsets of a launch: from these follow the arguments of a function anywhere."""

    def __init__(
        self, kernel: Kernel, geometry: Geometry, offsets: Sequence[int], memory: Sequence[Memory | None]
    ) -> None:
        self.kernel = kernel
        self.geometry = geometry
        self.offsets = offsets
        self.memory = memory
        self.everywhere: Box = tuple((0, n) for n in geometry.extents)
        stored = {store.view for store in kernel.stores}
        self.turns = [across and v not in stored for v, across in enumerate(geometry.across)]
        self._arguments: dict[str, Callable[[int, Sequence[Array], Sequence[Handle], Place], Any]] = {
            "view": self._view, "window": self._window, "gather": self._gather, "start": self._start,
            "row": self._row, "pile": self._pile,
        }  # fmt: skip

    @classmethod
    def of(cls, kernel: Kernel, launch: Launch, geometry: Geometry) -> "Binding":
        """Return the binding of *launch*."""
        memory = [memory_of(kernel, geometry, v, bound.offset) for v, bound in enumerate(launch.views)]
        return cls(kernel, geometry, [bound.offset for bound in launch.views], memory)

    def moved(self, offsets: Sequence[int]) -> "Binding":
        """Return the same launch at other *offsets*."""
        memory = [
            m if m is None or new == old else m._replace(offset=m.offset + (new - old) * m.dtype.itemsize)
            for m, new, old in zip(self.memory, offsets, self.offsets, strict=True)
        ]
        return Binding(self.kernel, self.geometry, offsets, memory)

    def arrays(self, buffers: Sequence[Handle]) -> list[Array]:
        """Return every view over the whole iteration space."""
        return [NOTHING if memory is None else memory.of(buffers) for memory in self.memory]

    def positional(self, code: Code, arrays: Sequence[Array], buffers: Sequence[Handle], place: Place) -> list[Any]:
        """Return the positional arguments of *code* at *place*."""
        return [self._arguments[item.what](item.number, arrays, buffers, place) for item in code.positional]

    # ---- positional arguments -----------------------------------------------------------------------------

    def _view(self, number: int, arrays: Sequence[Array], _: Sequence[Handle], place: Place) -> Array:
        array = arrays[number]
        if self.kernel.views[number].partial:
            array = array[place.parts[number], ...]
        if place.box != self.everywhere:
            spans = zip(array.shape, place.box, self.everywhere, strict=True)
            array = array[tuple(slice(None) if n == 1 or at == whole else slice(*at) for n, at, whole in spans)]
        if place.workspace is not None and self.turns[number] and array.size >= LARGE:
            return place.workspace.turn(number, array)
        return array

    def _window(
        self, number: int, arrays: Sequence[Array], _: Sequence[Handle], place: Place
    ) -> tuple[Array | None, tuple[slice, ...] | None]:
        view = self.kernel.body[number].attr
        window, strides = self.geometry.windows[view], self.geometry.strides[view]
        if self.memory[view] is None:
            return None, None
        source, target, whole = [], [], True
        for k, (start, stop) in enumerate(place.box):
            if k in window:
                lo, hi = window[k]
                first, last = max(lo, start), min(hi, stop)
                if first >= last:
                    return None, None
                whole = whole and (first, last) == (start, stop)
                source.append(slice(first - lo, last - lo))
                target.append(slice(first - start, last - start))
            else:
                source.append(slice(start, stop) if strides[k] else slice(None))
                target.append(slice(None))
        return arrays[view][tuple(source)], None if whole else tuple(target)

    def _gather(self, number: int, arrays: Sequence[Array], buffers: Sequence[Handle], place: Place) -> Gather:
        kernel, geometry = self.kernel, self.geometry
        v = kernel.body[number].attr
        memory = self.memory[v]
        return Gather(
            arrays[v], 0 if memory is None else memory.first, geometry.strides[v], place.box, geometry.gathers[v],
            geometry.windows[v], kernel.views[v].fill, buffers[kernel.status].view(np.int32), (geometry.tag, number),
        )  # fmt: skip

    def _start(self, number: int, _: Sequence[Array], __: Sequence[Handle], place: Place) -> Array | None:
        instr = self.kernel.body[number]
        axis = self.geometry.axis_of(instr.attr)
        start = place.box[axis][0] if axis >= 0 else 0
        return np.array(start, instr.dtype) if start else None

    @staticmethod
    def _row(number: int, _: Sequence[Array], __: Sequence[Handle], place: Place) -> Array:
        return place.rows[number]

    @staticmethod
    def _pile(number: int, _: Sequence[Array], __: Sequence[Handle], place: Place) -> Callable[[Reducer, Array], None]:
        return place.piles[number]

    # ---- frames ---------------------------------------------------------------------------------------------

    def frame_bytes(self, code: Code, shape: tuple[int, ...]) -> list[int]:
        """Return how many bytes each slot of *code* needs for a block of *shape*."""
        need = [0] * len(code.slots)
        for item in code.frame:
            if item.slot >= 0:
                count = math.prod(self.geometry.value_extents(item.number, shape))
                need[item.slot] = max(need[item.slot], count * ITEMSIZE[item.dtype])
        return need

    def frame(self, code: Code, shape: tuple[int, ...], room: Callable[[int], Array]) -> list[Any]:
        """Return the frame arguments of *code* for a block of *shape*; registers are in memory from *room*."""
        need = self.frame_bytes(code, shape)
        starts, total = [], 0
        for nbytes in need:
            starts.append(total)
            total += -(-nbytes // 64) * 64 + 192  # a little more, lest all registers fall on the same lines of a cache
        memory = room(total) if total else NOTHING
        return [self._frame_argument(item, shape, memory, starts) for item in code.frame]

    def _frame_argument(self, item: Item, shape: tuple[int, ...], memory: Array, starts: Sequence[int]) -> Any:
        geometry, number = self.geometry, item.number
        if item.what in ("register", "temporary"):
            extents = geometry.value_extents(number, shape)
            if math.prod(extents) == 1:  # NumPy takes 0.2 us for one element, but 0.7 if it is to be overwritten
                return np.empty(extents, numpy_dtype(item.dtype))
            return ndarray(extents, numpy_dtype(item.dtype), memory, starts[item.slot])
        if item.what == "range":
            instr = self.kernel.body[number]
            axis = geometry.axis_of(instr.attr)
            numbers = np.arange(shape[axis] if axis >= 0 else 1, dtype=instr.dtype)
            return numbers.reshape([n if k == axis else 1 for k, n in enumerate(shape)])
        if item.what == "reduce":
            instr = self.kernel.body[number]
            return reducer(instr.attr, geometry.value_extents(instr.args[0], shape), shape, geometry.reduced_axes)
        value = self.kernel.stores[number].value
        return _adder(geometry, geometry.value_extents(value, shape), shape, numpy_dtype(self.kernel.body[value].dtype))


def _adder(geometry: Geometry, extents: tuple[int, ...], block: tuple[int, ...], dtype: np.dtype[Any]) -> Reducer:
    """Return a function (value, target) that adds the sum of a block over its rows to part of a partial store."""
    reduce = reducer("sum", extents, block, geometry.parallel_axes)
    rows = np.empty([n if r else 1 for n, r in zip(extents, geometry.reduced, strict=True)], dtype)

    def add(value: Array, target: Array) -> None:
        reduce(value, rows)
        np.add(target, rows, target)

    return add
