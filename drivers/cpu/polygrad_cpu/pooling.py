"""Maxima over windows, and their gradient, one place of the window after the other.

Here: the ops max_pool and max_pool_gradient. Not here: means over windows, which are fused kernels.

Maxima are taken along one axis after the other, the last one last: the others leave long runs of memory.
"""

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from polygrad.driver import Ref
from polygrad_cpu.settings import Settings
from polygrad_cpu.transfer import array
from polygrad_cpu.workers import Workspace, each

Array = np.ndarray[Any, Any]
Sizes = tuple[int, ...]

A_NS = 0.5  # elements that a core compares in a nanosecond
LEAST = 4  # blocks a thread, if there is so much


class Axis(NamedTuple):
    """Where windows lie along one axis."""

    size: int
    places: int
    kernel: int
    stride: int
    before: int
    dilation: int

    def reach(self, k: int) -> tuple[slice, slice]:
        """Return the windows of which element *k* is inside of the array, and those elements."""
        first = k * self.dilation - self.before  # of window 0
        low = max(0, -(first // self.stride))  # the first window with an element not below 0
        high = min(self.places, (self.size - 1 - first) // self.stride + 1)
        start = first + low * self.stride
        return slice(low, max(low, high)), slice(start, start + max(0, high - low) * self.stride, self.stride)

    def inside(self, number: int) -> int:
        """Return how many elements of window *number* are inside of the array."""
        first = number * self.stride - self.before
        return sum(0 <= first + k * self.dilation < self.size for k in range(self.kernel))


def max_pool(outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any], settings: Settings) -> None:
    """Take the maximum of each window."""
    axes = _axes(ins[0].shape, outs[0].shape, attrs)
    x, y = _planes(array(ins[0]), axes), _planes(array(outs[0]), axes)

    def step(workspace: Workspace, part: slice) -> None:
        seen = x[part]
        if seen.dtype.itemsize < _NARROWEST:
            seen = seen.astype(np.float32)
        for number, axis in enumerate(axes):
            shape = (*seen.shape[: 1 + number], axis.places, *seen.shape[2 + number :])
            last = number == len(axes) - 1
            into = y[part] if last and y.dtype == seen.dtype else workspace.named(f"maxima{number}", shape, seen.dtype)
            _along(seen, into, axis, 1 + number)
            seen = into
        if seen.dtype != y.dtype:
            y[part] = seen

    _over_planes(x, settings, step)


_NARROWEST = 4  # bytes of a dtype that NumPy compares fast


def _along(x: Array, into: Array, axis: Axis, number: int) -> None:
    """Take maxima along one axis."""
    lead = (slice(None),) * number
    reach = [axis.reach(k) for k in range(axis.kernel)]
    begun = all(windows == slice(0, axis.places) for windows, _ in reach)
    if not begun:
        into.fill(-np.inf)
    elif axis.kernel == 1:
        np.copyto(into, x[(*lead, reach[0][1])])
    else:
        np.maximum(x[(*lead, reach[0][1])], x[(*lead, reach[1][1])], out=into)
    for windows, elements in reach[2:] if begun else reach:
        here = into[(*lead, windows)]
        if here.size:
            np.maximum(here, x[(*lead, elements)], out=here)


def max_pool_gradient(outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any], settings: Settings) -> None:
    """Give each window's gradient to its maxima."""
    axes = _axes(outs[0].shape, ins[0].shape, attrs)
    g, x, y = (_planes(array(ref), axes) for ref in ins)
    out = _planes(array(outs[0]), axes)
    if all(a.stride == a.kernel and a.dilation == 1 and not a.before and a.places * a.kernel <= a.size for a in axes):

        def tiled(workspace: Workspace, part: slice) -> None:
            _tiled(workspace, axes, (g[part], x[part], y[part], out[part]))

        _over_planes(x, settings, tiled)
        return
    places = list(itertools.product(*[range(a.kernel) for a in axes]))
    apart = all(a.stride >= (a.kernel - 1) * a.dilation + 1 for a in axes)  # no element is in two windows
    outside = _outside(axes)

    def step(workspace: Workspace, part: slice) -> None:
        given, found, top = (a[part].astype(np.float32) if a.itemsize < _NARROWEST else a[part] for a in (g, x, y))
        wins = workspace.named("wins", (len(places), *top.shape), np.bool_)
        share = workspace.named("share", top.shape, top.dtype)
        weight = workspace.named("weight", top.shape, top.dtype)
        share.fill(0)
        for place, won in zip(places, wins, strict=True):
            windows, elements = _reach(axes, place)
            np.equal(found[elements], top[windows], won[windows])
            np.add(share[windows], won[windows], share[windows])
        if outside is not None:
            share += np.where(top == -np.inf, outside, 0)
        np.maximum(share, 1, out=share)
        np.divide(given, share, share)
        total = out[part] if out.dtype == top.dtype else workspace.named("total", found.shape, top.dtype)
        total.fill(0)
        for place, won in zip(places, wins, strict=True):
            windows, elements = _reach(axes, place)
            here, part_of = total[elements], weight[windows]
            np.multiply(share[windows], won[windows], here if apart else part_of)
            if not apart:
                np.add(here, part_of, here)
        if total.dtype != out.dtype:
            out[part] = total

    _over_planes(x, settings, step)


def _tiled(workspace: Workspace, axes: Sequence[Axis], arrays: Sequence[Array]) -> None:
    """Give the gradient of windows that lie side by side to their maxima, in long runs of memory."""
    g, x, y, out = arrays
    dtype = np.dtype(np.float32) if x.itemsize < _NARROWEST else x.dtype
    found = _tiles(x, axes).astype(dtype, copy=False)
    top = _lengthened(workspace, "top", y.astype(dtype, copy=False), axes)
    wins = workspace.named("wins", found.shape, np.bool_)
    np.equal(found, top, wins)
    share = g.astype(dtype, copy=False)
    if np.count_nonzero(wins) != y.size - np.count_nonzero(np.isnan(y)):  # some window has several maxima
        share = np.divide(share, _winners(wins, y.shape, axes), dtype=dtype)
    given = _lengthened(workspace, "share", share, axes)
    if any(a.places * a.kernel < a.size for a in axes):
        out.fill(0)
    np.multiply(given, wins, out=_tiles(out, axes), casting="unsafe")


def _tiles(x: Array, axes: Sequence[Axis]) -> Array:
    """Return what is inside of windows side by side as a view [planes, p, k, ..., p * k], the last axis whole."""
    *rest, last = axes
    inside = x[(slice(None), *[slice(a.places * a.kernel) for a in axes])]
    return inside.reshape(len(x), *itertools.chain(*[(a.places, a.kernel) for a in rest]), last.places * last.kernel)


def _lengthened(workspace: Workspace, name: str, y: Array, axes: Sequence[Axis]) -> Array:
    """Return one element for each window as often as the window is long, to go with `_tiles`."""
    *rest, last = axes
    shape = (len(y), *itertools.chain(*[(a.places, 1) for a in rest]), last.places * last.kernel)
    long = workspace.named(name, shape, y.dtype)
    each_window = y.reshape(*shape[:-1], last.places)
    for k in range(last.kernel):
        long[..., k :: last.kernel] = each_window
    return long


def _winners(wins: Array, shape: Sizes, axes: Sequence[Axis]) -> Array:
    """Return how many maxima each window has, at least 1."""
    dtype = np.uint8 if math.prod(a.kernel for a in axes) < 1 << 8 else np.int64
    counts = wins.sum(tuple(range(2, wins.ndim - 1, 2)), dtype=dtype)
    step = axes[-1].kernel
    total: Array = functools.reduce(np.add, [counts[..., k::step] for k in range(step)])
    np.maximum(total, 1, out=total)
    return total.reshape(shape)


def _reach(axes: Sequence[Axis], place: Sizes) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return the windows that have an element at *place*, and those elements, as indices of planes."""
    both = [a.reach(k) for a, k in zip(axes, place, strict=True)]
    return (slice(None), *[w for w, _ in both]), (slice(None), *[e for _, e in both])


def _outside(axes: Sequence[Axis]) -> Array | None:
    """Return how many elements of each window are outside of the array; None if no window has any."""
    inside = [np.array([a.inside(i) for i in range(a.places)], np.float32) for a in axes]
    counts = np.float32(math.prod(a.kernel for a in axes)) - functools.reduce(np.multiply.outer, inside)
    return counts if counts.any() else None


def _axes(sizes: Sizes, places: Sizes, attrs: Mapping[str, Any]) -> list[Axis]:
    rank = len(attrs["kernel"])
    facts = (attrs[key] for key in ("kernel", "stride", "before", "dilation"))
    return [Axis(*each_axis) for each_axis in zip(sizes[-rank:], places[-rank:], *facts, strict=True)]


def _planes(a: Array, axes: Sequence[Axis]) -> Array:
    """Return an array with its leading axes as one."""
    return a.reshape(-1, *a.shape[a.ndim - len(axes) :])


def _over_planes(x: Array, settings: Settings, step: Any) -> None:
    """Call *step* for blocks of planes that stay in the cache."""
    plane = math.prod(x.shape[1:])
    threads = settings.threads if x.size / A_NS > settings.split_ns else 1
    count = max(1, min(settings.block_bytes // (plane * x.itemsize), -(-len(x) // (threads * LEAST))))
    each([slice(k, min(k + count, len(x))) for k in range(0, len(x), count)], threads, step)
