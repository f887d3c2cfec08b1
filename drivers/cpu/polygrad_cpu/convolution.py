"""Convolutions and their gradients as matrix products over blocks of windows that stay in the cache.

Here: the three ops; which images, groups and rows one product takes; the threads that share them.
Not here: where windows lie (`windows.py`), channels that have a kernel each (`depthwise.py`).

A block of windows is copied to scratch as a matrix, one row for each channel and place of the kernel, one column for
each window; a product with the weights gives the result where it belongs. Where there are many such rows for each
channel of the result, what one row of the kernel sees is copied instead, and the products of all rows of the kernel
with it, each beginning further down, are added up. Backwards, a product gives a matrix of windows, whose rows are added
where their windows lie; with stride 1, the gradient may be a convolution with the kernels reversed instead. Kernels of
one element with stride 1 need no copies.
"""

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from polygrad.driver import Ref, blas
from polygrad_cpu import depthwise
from polygrad_cpu.settings import Settings
from polygrad_cpu.transfer import array
from polygrad_cpu.windows import Array, Geometry
from polygrad_cpu.workers import Task, Workspace, each, quiet_context

FEW = 96  # windows of one image that are too few for a product of its own: those of several are put side by side
ENOUGH = 512  # windows side by side
REGISTERS = 4  # times as large as a register are the windows of a block: each is read but once, and in order
BANDS = 4  # rows of a matrix of windows for each channel of the result: with fewer, additions take longer than copies
DEEP = 64  # rows of one product: with fewer, BLAS takes longer for several
LEAST = 256  # windows of a product: with fewer, reading the weights takes the time
PRODUCTS_A_NS, COPIES_A_NS = 20.0, 1.0  # multiplications with additions, and copied elements, that one core does
LARGE = 1 << 17  # elements of weights
ADDED = 4  # times as long as to copy a window does it take to add it where it lies

Unit = tuple[slice, slice, slice]  # images, groups, rows of windows


class Blocks:
    """How a convolution of one geometry is cut into products."""

    def __init__(self, geometry: Geometry, itemsize: int, settings: Settings, *, bands: bool) -> None:
        g = self.geometry = geometry
        self.settings = settings
        row = g.windows // g.places[0]
        self.joined = g.windows < FEW and g.images > 1
        self.bands = bands and not self.joined and _bands_pay(g)
        column = g.inputs * g.taps * itemsize // (g.kernel[0] if self.bands else 1)  # bytes
        room = max(min(LEAST, settings.block_bytes), REGISTERS * settings.block_bytes // column)  # windows
        self.images = _even(g.images, max(1, room // g.windows), settings.threads)
        if self.joined:
            self.images = min(self.images, max(1, ENOUGH // g.windows))
        self.groups = min(g.groups, max(1, room // (g.windows * self.images)))
        self.rows = g.places[0] if g.pointwise and not self.joined else max(1, min(g.places[0], room // row))
        blocks = -(-g.images // self.images) * -(-g.groups // self.groups)
        if blocks < settings.threads:
            self.rows = min(self.rows, -(-g.places[0] * blocks // settings.threads))
        self.rows = _even(g.places[0], self.rows, 1)
        work = g.images * g.groups * g.inputs * g.taps * g.windows
        enough = work * (g.outputs / PRODUCTS_A_NS + 1 / COPIES_A_NS) > settings.split_ns
        self.threads = settings.threads if enough and blas.adjustable() else 1

    def units(self, *, rows: bool = True) -> list[Unit]:
        """Return all blocks; with all rows of an image in each unless *rows*."""
        g = self.geometry
        height = self.rows if rows else g.places[0]
        return list(
            itertools.product(_cut(g.images, self.images), _cut(g.groups, self.groups), _cut(g.places[0], height))
        )

    def columns(self, workspace: Workspace, x: Array, unit: Unit) -> Array:
        """Return windows as matrices [images, groups, inputs * taps, windows], or [groups, ..., images * windows]."""
        g = self.geometry
        if g.pointwise and not self.joined:
            return self.across(x, unit)
        seen = g.seen(workspace, x, unit)
        images, groups, _, *rest = seen.shape
        if self.joined:
            seen = np.moveaxis(seen, 0, 2 + g.rank)
        columns = workspace.named("columns", seen.shape, x.dtype)
        np.copyto(columns, seen)
        windows = math.prod(rest[g.rank :])
        inside = g.inputs * g.taps
        return columns.reshape((groups, inside, -1) if self.joined else (images, groups, inside, windows))

    def across(self, y: Array, unit: Unit) -> Array:
        """Return a unit's part of an array [images, groups, channels, *places] as matrices of channels by windows."""
        images, groups, rows = unit
        part = y[images, groups, :, rows]
        return part.reshape(*part.shape[:3], math.prod(part.shape[3:]))

    def beside(self, workspace: Workspace, matrices: Array) -> Array:
        """Return [images, groups, channels, windows] as columns of one product: a copy if images are joined."""
        if not self.joined:
            return matrices
        images, groups, channels, windows = matrices.shape
        copy = workspace.named("beside", (groups, channels, images, windows), matrices.dtype)
        np.copyto(copy, matrices.transpose(1, 2, 0, 3))
        return copy.reshape(groups, channels, images * windows)


def _even(size: int, most: int, parts: int) -> int:
    """Return at most *most*, so that blocks of so many are alike and each of *parts* threads gets as many of them."""
    count = -(-size // most)
    return -(-size // min(size, -(-count // parts) * parts))


def _cut(size: int, step: int) -> list[slice]:
    return [slice(k, min(k + step, size)) for k in range(0, size, step)]


@functools.lru_cache(maxsize=256)
def _blocks(geometry: Geometry, itemsize: int, settings: Settings, *, bands: bool) -> Blocks:
    return Blocks(geometry, itemsize, settings, bands=bands)


def _bands_pay(g: Geometry) -> bool:
    """Whether several products that are added up take less time than to copy windows for each row of the kernel."""
    inside = g.inputs * g.taps
    return g.stride[0] == 1 < g.kernel[0] and inside >= BANDS * g.outputs and inside >= DEEP * g.kernel[0]


def _each(tasks: Sequence[Task], threads: int, step: Callable[[Workspace, Task], None]) -> None:
    """Call *step* for every task, on threads that call BLAS each for itself; BLAS has its own for a task alone."""
    with contextlib.nullcontext() if threads > len(tasks) == 1 else blas.single():
        each(tasks, threads, step)


# ---- the ops --------------------------------------------------------------------------------------------------------


def convolution(outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any], settings: Settings) -> None:
    """Compute y from x and w."""
    _run({"x": ins[0], "w": ins[1], "y": outs[0]}, "xwy", attrs, settings)


def input_gradient(outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any], settings: Settings) -> None:
    """Compute the gradient by x from y and w."""
    _run({"x": outs[0], "w": ins[1], "y": ins[0]}, "ywx", attrs, settings)


def weight_gradient(outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any], settings: Settings) -> None:
    """Compute the gradient by w from x and y."""
    _run({"x": ins[0], "w": outs[0], "y": ins[1]}, "xyw", attrs, settings)


def _run(refs: Mapping[str, Ref], order: str, attrs: Mapping[str, Any], settings: Settings) -> None:
    """Compute the last operand in *order* from the others, in float32 where they are narrower."""
    geometry = Geometry.of(refs["x"].shape, refs["w"].shape, refs["y"].shape, attrs)
    arrays = {name: array(ref) for name, ref in refs.items()}
    result = arrays[order[-1]]
    if refs[order[-1]].dtype in ("float16", "bfloat16"):
        arrays = {name: np.empty(a.shape, np.float32) if a is result else a.astype(np.float32)
                  for name, a in arrays.items()}  # fmt: skip
    given = [geometry.grouped(arrays[name], name) for name in order]
    if geometry.depthwise:
        _DEPTHWISE[order](geometry, settings, *given)
    else:
        _PRODUCTS[order](_blocks(geometry, given[0].itemsize, settings, bands=order == "xwy"), *given)
    if arrays[order[-1]] is not result:
        quiet_context()(np.copyto, result, arrays[order[-1]], casting="unsafe")


def _forward(blocks: Blocks, x: Array, w: Array, y: Array) -> None:
    if blocks.bands:
        _forward_by_bands(blocks, x, w, y)
        return
    g = blocks.geometry
    matrices = w.reshape(g.groups, g.outputs, g.inputs * g.taps)

    def step(workspace: Workspace, unit: Unit) -> None:
        columns, target = blocks.columns(workspace, x, unit), blocks.across(y, unit)
        if not blocks.joined:
            np.matmul(matrices[unit[1]], columns, target)
            return
        images, groups, outputs, windows = target.shape
        product = workspace.named("product", (groups, outputs, images * windows), y.dtype)
        np.matmul(matrices[unit[1]], columns, product)
        target[...] = product.reshape(groups, outputs, images, windows).transpose(2, 0, 1, 3)

    _each(blocks.units(), blocks.threads, step)


def _forward_by_bands(blocks: Blocks, x: Array, w: Array, y: Array) -> None:
    g = blocks.geometry
    down = g.dilation[0] * g.windows // g.places[0]  # from where a row of the kernel sees its first window to the next
    matrices = np.ascontiguousarray(np.moveaxis(w, 3, 0)).reshape(g.kernel[0], g.groups, g.outputs, -1)

    def step(workspace: Workspace, unit: Unit) -> None:
        target = blocks.across(y, unit)
        seen = g.bands(workspace, x, unit)
        copy = workspace.named("columns", seen.shape, x.dtype)
        np.copyto(copy, seen)
        bands = copy.reshape(*target.shape[:2], matrices.shape[3], -1)
        product = workspace.named("product", target.shape, y.dtype)
        for k, weights in enumerate(matrices[:, unit[1]]):
            np.matmul(weights, bands[..., k * down : k * down + target.shape[3]], product if k else target)
            if k:
                np.add(target, product, target)

    _each(blocks.units(), blocks.threads, step)


def _by_input(blocks: Blocks, y: Array, w: Array, x: Array) -> None:
    g = blocks.geometry
    turned = g.turned()
    if turned is not None and _pays(g, turned):
        _forward(_blocks(turned, x.itemsize, blocks.settings, bands=True), y, _turned(w), x)
        return
    units = blocks.units(rows=False)
    # Channels of the images are apart from each other: they are shared out if there are not enough images and groups.
    parts = blocks.threads if len(units) < blocks.threads else 1
    channels = _cut(g.inputs, -(-g.inputs // parts))

    def step(workspace: Workspace, task: tuple[Unit, slice]) -> None:
        (images, groups, _), inside = task
        matrices = w[groups, :, inside].reshape(groups.stop - groups.start, g.outputs, -1).swapaxes(1, 2)
        into = x[images, groups, inside]
        if g.pointwise and not blocks.joined:
            np.matmul(matrices, blocks.across(y, task[0]), into.reshape(*into.shape[:3], g.windows))
            return
        total = g.accumulator(workspace, into)
        for rows in _cut(g.places[0], blocks.rows):
            given = blocks.beside(workspace, blocks.across(y, (images, groups, rows)))
            product = workspace.named("columns", (*given.shape[:-2], matrices.shape[1], given.shape[-1]), x.dtype)
            np.matmul(matrices, given, product)
            g.add(total, _apart(blocks, product, into.shape[:3], rows), rows)
        g.settle(total, into)

    _each(list(itertools.product(units, channels)), blocks.threads, step)


def _pays(g: Geometry, turned: Geometry) -> bool:
    """Whether to copy the windows of a gradient, and the weights, takes less time than to add windows up."""
    return g.inputs * g.images * g.windows * ADDED >= g.outputs * (g.images * turned.windows + g.inputs * ADDED)


def _turned(w: Array) -> Array:
    """Return the weights of the convolution that is another's gradient: channels exchanged, kernels reversed."""
    return np.ascontiguousarray(np.flip(w, tuple(range(3, w.ndim))).swapaxes(1, 2))


def _apart(blocks: Blocks, product: Array, lead: tuple[int, ...], rows: slice) -> Array:
    """Return a product as [images, groups, inputs, *kernel, *places]."""
    g = blocks.geometry
    images, groups, inputs = lead
    places = (rows.stop - rows.start, *g.places[1:])
    if not blocks.joined:
        return product.reshape(images, groups, inputs, *g.kernel, *places)
    return np.moveaxis(product.reshape(groups, inputs, *g.kernel, images, *places), 2 + g.rank, 0)


def _by_weight(blocks: Blocks, x: Array, y: Array, w: Array) -> None:
    g = blocks.geometry
    units = blocks.units()
    count = min(blocks.threads, len(units))
    segments = [units[k * len(units) // count : (k + 1) * len(units) // count] for k in range(count)]
    # Of two matrices that run along the sum, BLAS packs the second: better the results. But large weights that come
    # out transposed take longer to turn.
    straight = w.size > LARGE
    sides = (g.outputs, g.inputs * g.taps) if straight else (g.inputs * g.taps, g.outputs)
    totals = np.empty((count, g.groups, *sides), w.dtype)

    def step(workspace: Workspace, number: int) -> None:
        begun: set[int] = set()  # the first of the groups that a sum has begun for
        for unit in segments[number]:
            pair = blocks.columns(workspace, x, unit), blocks.beside(workspace, blocks.across(y, unit))
            left, right = pair[::-1] if straight else pair
            here = totals[number, unit[1]]
            fresh = unit[1].start not in begun
            if fresh and math.prod(left.shape[:-3]) == 1:
                np.matmul(left.reshape(left.shape[-3:]), right.reshape(right.shape[-3:]).swapaxes(1, 2), here)
            else:
                products = workspace.named("product", (*left.shape[:-2], *sides), w.dtype)
                np.matmul(left, right.swapaxes(-1, -2), products)
                _add(products.reshape(-1, *here.shape), here, fresh=fresh)
            begun.add(unit[1].start)
        for groups in {unit[1].start: unit[1] for unit in units}.values():
            if groups.start not in begun:
                totals[number, groups] = 0

    _each(range(count), blocks.threads, step)
    # In the order of the segments: the result does not depend on who was first.
    total = quiet_context()(functools.reduce, lambda a, b: np.add(a, b, a), totals)
    w.reshape(g.groups, g.outputs, -1)[...] = total if straight else total.swapaxes(1, 2)


def _add(several: Array, total: Array, *, fresh: bool) -> None:
    """Add up arrays, to what *total* has unless it is fresh."""
    if fresh:
        several.sum(0, out=total)
    else:
        np.add(total, several.sum(0) if len(several) > 1 else several[0], total)


_PRODUCTS: dict[str, Callable[..., None]] = {"xwy": _forward, "ywx": _by_input, "xyw": _by_weight}
_DEPTHWISE: dict[str, Callable[..., None]] = {
    "xwy": depthwise.forward, "ywx": depthwise.by_input, "xyw": depthwise.by_weight,
}  # fmt: skip
