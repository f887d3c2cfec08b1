"""Fewer and better ordered axes: a kernel and the ints of one launch, rewritten to the same work over simpler axes.

Here: `collapse`.
Not here: any decision about threads or vectors.

Axes of extent 1 go; neighbours that every view strides through as through one axis become one; parallel axes are put in
the order in which stores (or else loads) run through memory, reduced axes likewise; strides that are 0 or 1 in this
launch become part of the structure. The body keeps its positions: only iotas change. What FULL means is preserved: a
load that varies along reduced axes by its structure still does.
"""

import math
from collections.abc import Sequence

from polygrad.driver.ir import ITEMSIZE, Instr, Kernel, View
from polygrad.driver.launch import BoundView, decode


class _Axes:
    """The axes of one launch, while they change; every list over axes has one entry an axis."""

    def __init__(self, kernel: Kernel, ints: Sequence[int]) -> None:
        launch = decode(kernel, ints)
        self.kernel = kernel
        self.launch = launch
        self.extents = list(launch.extents)
        self.strides = [list(view.strides) for view in launch.views]
        self.windows = [{axis: (lo, hi) for axis, lo, hi in view.window} for view in launch.views]
        self.order = list(range(kernel.rank))  # the old axes still there, in their new order; merged ones are gone
        self.iotas = {instr.attr for instr in kernel.body if instr.op == "iota"}
        self.stored = [store.view for store in kernel.stores]
        self.loaded = [instr.attr for instr in kernel.body if instr.op == "load"]
        self.partial = any(kernel.views[v].partial for v in self.stored)
        for windows in self.windows:
            for axis, (lo, hi) in list(windows.items()):
                if lo <= 0 and hi >= self.extents[axis]:
                    del windows[axis]  # it excludes nothing

    def reduced(self, axis: int) -> bool:
        return axis >= self.kernel.parallel

    def drop(self) -> None:
        """Forget axes of extent 1 along which nothing asks for the index; one reduced axis stays."""
        for axis in range(self.kernel.rank):
            needed = any(axis in windows for windows in self.windows) or (self.reduced(axis) and axis in self.iotas)
            if self.extents[axis] == 1 and not needed:
                self.order.remove(axis)
        if self.kernel.reduced and not any(self.reduced(axis) for axis in self.order):
            self.order.append(self.kernel.rank - 1)

    def sort(self) -> None:
        """Order axes as memory does; parts number the rows in C order, so partial stores pin the parallel axes."""
        parallel = [axis for axis in self.order if not self.reduced(axis)]
        reduced = [axis for axis in self.order if self.reduced(axis)]
        if not self.partial:
            parallel = self._by_stride(parallel)
        self.order = parallel + self._by_stride(reduced)

    def _by_stride(self, axes: list[int]) -> list[int]:
        if len(axes) < 2:  # noqa: PLR2004  one axis is in order
            return axes
        views = [*self.stored, *self.loaded]

        def contiguous(axis: int) -> tuple[int, int]:
            unit = [v for v in views if abs(self.strides[v][axis]) == 1 and self.extents[axis] > 1]
            weight = sum(ITEMSIZE[self.kernel.views[v].dtype] * (2 if v in self.stored else 1) for v in unit)
            return weight, self.extents[axis]

        innermost = max(axes, key=contiguous)
        guide = next((v for v in views if any(self.strides[v][axis] for axis in axes)), None)
        if guide is None:
            return axes
        rest = [axis for axis in axes if axis != innermost]
        rest.sort(key=lambda axis: -abs(self.strides[guide][axis]))
        return [*rest, innermost]

    def merge(self) -> None:
        """Join neighbours that compose in every view, from the innermost outwards."""
        position = len(self.order) - 2
        while position >= 0:
            outer, inner = self.order[position], self.order[position + 1]
            if self._composes(outer, inner):
                self.extents[inner] *= self.extents[outer]
                self.order.remove(outer)
            position -= 1

    def _composes(self, outer: int, inner: int) -> bool:
        if self.reduced(outer) != self.reduced(inner) or {outer, inner} & self.iotas:
            return False
        if any(axis in windows for windows in self.windows for axis in (outer, inner)):
            return False
        n = self.extents[inner]
        used = {*self.stored, *self.loaded}
        return all(self.strides[v][outer] == self.strides[v][inner] * n for v in used)

    def view(self, v: int) -> tuple[View, list[int]]:
        """Return view *v* over the new axes, and its launch ints."""
        old, bound = self.kernel.views[v], self.launch.views[v]
        strides: list[int | None] = []
        for axis in self.order:
            value = self.strides[v][axis]
            strides.append(
                value if value in (0, 1) and self.extents[axis] > 1 else 0 if self.extents[axis] == 1 else None
            )
        window = tuple(sorted(self.order.index(axis) for axis in self.windows[v]))
        self._keep_full(old, strides, window)
        ints = [bound.offset]
        ints += [self.strides[v][axis] for axis, stride in zip(self.order, strides, strict=True) if stride is None]
        for position in window:
            ints += self.windows[v][self.order[position]]
        ints += _tail(old, bound)
        return old._replace(strides=tuple(strides), window=window), ints

    def _keep_full(self, old: View, strides: list[int | None], window: tuple[int, ...]) -> None:
        """Leave one reduced stride open if the structure said that the view varies along them and now would not."""
        parallel = sum(not self.reduced(axis) for axis in self.order)
        was = any(s != 0 for s in old.strides[self.kernel.parallel :]) or any(self.reduced(k) for k in old.window)
        now = any(s != 0 for s in strides[parallel:]) or any(k >= parallel for k in window)
        if was and not now:
            strides[-1] = None

    def result(self) -> tuple[Kernel, tuple[int, ...]]:
        views, tails = [], []
        for v in range(len(self.kernel.views)):
            view, ints = self.view(v)
            views.append(view)
            tails += ints
        body = []
        for instr in self.kernel.body:
            if instr.op == "iota" and instr.attr not in self.order:
                body.append(Instr("const", instr.dtype, (), 0))
            elif instr.op == "iota":
                body.append(instr._replace(attr=self.order.index(instr.attr)))
            else:
                body.append(instr)
        parallel = sum(not self.reduced(axis) for axis in self.order)
        kernel = self.kernel._replace(
            parallel=parallel, reduced=len(self.order) - parallel, views=tuple(views), body=tuple(body)
        )
        tag = (self.launch.tag,) if self.kernel.status >= 0 else ()
        return kernel, (*(self.extents[axis] for axis in self.order), *tails, *tag)


def _tail(view: View, bound: BoundView) -> list[int]:
    ints = [n for pair in bound.gathers for n in pair]
    return [*ints, bound.parts, bound.part_stride] if view.partial else ints


def collapse(kernel: Kernel, ints: Sequence[int]) -> tuple[Kernel, tuple[int, ...]]:
    """Return an equivalent kernel over simpler axes and its launch ints; buffers, scalars and body positions stay.

    The result depends on the ints and is right for them: launch it with its own ints, and for others collapse again.

    Examples
    --------
    >>> from polygrad.driver.ir import Store
    >>> view = View(0, "float32", (None, None))
    >>> double = Kernel(2, 0, ("float32", "float32"), (view, view._replace(buffer=1)), (),
    ...                 (Instr("load", "float32", (), 0), Instr("add", "float32", (0, 0))), (Store(1, 1),))
    >>> simpler, ints = collapse(double, (3, 4, 0, 4, 1, 0, 4, 1))
    >>> simpler.parallel, simpler.views[0].strides, ints
    (1, (1,), (12, 0, 0))
    """
    axes = _Axes(kernel, ints)
    axes.drop()
    axes.sort()
    axes.merge()
    return axes.result()


def extent_products(kernel: Kernel, ints: Sequence[int]) -> tuple[int, int]:
    """Return how many rows and how many reduced points a launch has.

    >>> extent_products(Kernel(1, 2, (), (), (), (), ()), (5, 2, 3))
    (5, 6)
    """
    return math.prod(ints[: kernel.parallel]), math.prod(ints[kernel.parallel : kernel.rank])
