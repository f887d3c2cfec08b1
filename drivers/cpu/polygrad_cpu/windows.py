"""Where the windows of a convolution lie.

Here: the geometry of one convolution; windows as a strided view; adding windows to where they lie.
Not here: any product.

Images are [images, groups, inputs, *sizes], results [images, groups, outputs, *places], weights
[groups, outputs, inputs, *kernel].
"""

import itertools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from polygrad_cpu.workers import Workspace

Array = np.ndarray[Any, Any]
Sizes = tuple[int, ...]
Index = tuple[Any, ...]

MORE = 1.5


class Geometry(NamedTuple):
    """The sizes of a convolution; hashable."""

    images: int
    groups: int
    inputs: int  # channels of a group
    outputs: int
    sizes: Sizes
    kernel: Sizes
    places: Sizes
    stride: Sizes
    before: Sizes
    dilation: Sizes

    @classmethod
    def of(cls, x: Sizes, w: Sizes, y: Sizes, attrs: Mapping[str, Any]) -> "Geometry":
        """Return the geometry of operands of these shapes."""
        groups = attrs["groups"]
        return cls(
            x[0], groups, w[1], w[0] // groups, tuple(x[2:]), tuple(w[2:]), tuple(y[2:]), attrs["stride"],
            attrs["before"], attrs["dilation"],
        )  # fmt: skip

    @property
    def rank(self) -> int:
        """The number of axes that kernels have."""
        return len(self.kernel)

    @property
    def taps(self) -> int:
        """The elements of a kernel."""
        return math.prod(self.kernel)

    @property
    def windows(self) -> int:
        """The windows of an image."""
        return math.prod(self.places)

    @property
    def pointwise(self) -> bool:
        """Whether every window is one element, and every element a window."""
        return self.taps == 1 and self.places == self.sizes and not any(self.before) and set(self.stride) == {1}

    @property
    def depthwise(self) -> bool:
        """Whether every channel has kernels of its own."""
        return self.inputs == 1 and self.groups > 1

    def turned(self) -> "Geometry | None":
        """Return the convolution that is the gradient by the images; None if it is none, or one of far more windows."""
        before = tuple((k - 1) * d - b for k, d, b in zip(self.kernel, self.dilation, self.before, strict=True))
        if set(self.stride) != {1} or min(before) < 0 or math.prod(self.sizes) > MORE * self.windows:
            return None
        return self._replace(
            inputs=self.outputs, outputs=self.inputs, sizes=self.places, places=self.sizes, before=before
        )

    def grouped(self, a: Array, role: str) -> Array:
        """Return an operand (x, w or y) with an axis of groups."""
        if role == "w":
            return a.reshape(self.groups, self.outputs, self.inputs, *self.kernel)
        return a.reshape(self.images, self.groups, self.inputs if role == "x" else self.outputs, *a.shape[2:])

    def span(self, axis: int, count: int) -> int:
        """Return over how many elements of an axis *count* windows reach."""
        return (count - 1) * self.stride[axis] + (self.kernel[axis] - 1) * self.dilation[axis] + 1

    def framed(self, workspace: Workspace, x: Array, unit: tuple[slice, slice, slice]) -> Array:
        """Return what windows look at, [images, groups, inputs, *extents]: a view of x, or a copy with zeros around."""
        images, groups, rows = unit
        part = x[images, groups]
        spans = [self.span(k, n) for k, n in enumerate((rows.stop - rows.start, *self.places[1:]))]
        starts = [rows.start * self.stride[0] - self.before[0], *[-b for b in self.before[1:]]]
        if all(b >= 0 and b + n <= m for b, n, m in zip(starts, spans, self.sizes, strict=True)):
            inside: Index = (..., *[slice(b, b + n) for b, n in zip(starts, spans, strict=True)])
            return part[inside]
        source = workspace.named("padded", (*part.shape[:3], *spans), x.dtype)
        source.fill(0)
        ends = [(max(b, 0), max(min(b + n, m), 0)) for b, n, m in zip(starts, spans, self.sizes, strict=True)]
        if all(low < high for low, high in ends):
            to: Index = (..., *[slice(low - b, high - b) for (low, high), b in zip(ends, starts, strict=True)])
            given: Index = (..., *[slice(low, high) for low, high in ends])
            source[to] = part[given]
        return source

    def seen(self, workspace: Workspace, x: Array, unit: tuple[slice, slice, slice]) -> Array:
        """Return windows as a view [images, groups, inputs, *kernel, *places] of what they look at."""
        source = self.framed(workspace, x, unit)
        counts = (unit[2].stop - unit[2].start, *self.places[1:])
        steps = source.strides[3:]
        strides = (*source.strides[:3], *[s * d for s, d in zip(steps, self.dilation, strict=True)],
                   *[s * d for s, d in zip(steps, self.stride, strict=True)])  # fmt: skip
        return np.lib.stride_tricks.as_strided(source, (*source.shape[:3], *self.kernel, *counts), strides)

    def bands(self, workspace: Workspace, x: Array, unit: tuple[slice, slice, slice]) -> Array:
        """Return what one row of the kernel sees, [images, groups, inputs, *kernel[1:], rows, *places[1:]], as a view.

        It has all rows that any row of the kernel sees: with stride 1, what the next one sees begins further down.
        """
        source = self.framed(workspace, x, unit)
        steps = source.strides[3:]
        strides = (*source.strides[:3], *[s * d for s, d in zip(steps[1:], self.dilation[1:], strict=True)], steps[0],
                   *[s * d for s, d in zip(steps[1:], self.stride[1:], strict=True)])  # fmt: skip
        shape = (*source.shape[:3], *self.kernel[1:], source.shape[3], *self.places[1:])
        return np.lib.stride_tricks.as_strided(source, shape, strides)

    def accumulator(self, workspace: Workspace, x: Array) -> Array:
        """Return zeros that windows of *x*, a part of the images, are added to: x itself where windows stay inside."""
        extents = [max(b + n, self.span(k, m)) for k, (b, n, m) in
                   enumerate(zip(self.before, self.sizes, self.places, strict=True))]  # fmt: skip
        inside = not any(self.before) and tuple(extents) == self.sizes
        total = x if inside else workspace.named("padded", (*x.shape[:3], *extents), x.dtype)
        total[...] = 0
        return total

    @staticmethod
    def tap(windows: Array, place: Sizes) -> Array:
        """Return the elements of all windows at one place of the kernel."""
        index: Index = (slice(None), slice(None), slice(None), *place)
        return windows[index]

    def lie(self, total: Array, place: Sizes, rows: slice) -> Array:
        """Return where in *total* the elements at one place of *rows* of windows lie."""
        counts = (rows.stop - rows.start, *self.places[1:])
        firsts = (rows.start * self.stride[0], *[0] * (self.rank - 1))
        cut = [
            slice(b + k * d, b + k * d + (n - 1) * s + 1, s)
            for b, k, d, n, s in zip(firsts, place, self.dilation, counts, self.stride, strict=True)
        ]
        index: Index = (..., *cut)
        return total[index]

    def add(self, total: Array, windows: Array, rows: slice) -> None:
        """Add [images, groups, inputs, *kernel, *places], *rows* of all windows, to where they lie in *total*."""
        for place in itertools.product(*map(range, self.kernel)):
            here = self.lie(total, place, rows)
            np.add(here, self.tap(windows, place), here)

    def settle(self, total: Array, x: Array) -> None:
        """Store what was added up in *total*, if that is not x itself."""
        if total is not x:
            inside: Index = (..., *[slice(b, b + n) for b, n in zip(self.before, self.sizes, strict=True)])
            x[...] = total[inside]
