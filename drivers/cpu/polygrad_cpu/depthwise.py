"""Convolutions of channels that have kernels of their own, element by element: such products are too small for BLAS.

Here: forward and both gradients, place by place of the kernel, over blocks that stay in the cache.
Not here: where windows lie (`windows.py`), convolutions over several channels (`convolution.py`).
"""

import itertools
import math
from collections.abc import Callable

import numpy as np

from polygrad_cpu.settings import Settings
from polygrad_cpu.windows import Array, Geometry, Index
from polygrad_cpu.workers import Workspace, each

ELEMENTS_A_NS = 1.5  # multiplied and added

Steps = Callable[[Workspace, tuple[slice, slice]], None]


def _over_blocks(g: Geometry, itemsize: int, settings: Settings, step: Steps) -> None:
    """Call *step* for blocks of channels and images, as many as a register has room for."""
    channel = g.outputs * g.windows * itemsize
    channels = max(1, min(-(-g.groups // settings.threads), settings.block_bytes // channel))
    images = max(1, min(g.images, settings.block_bytes // (channel * channels)))
    work = g.images * g.groups * g.outputs * g.windows * g.taps / ELEMENTS_A_NS
    parts = [slice(k, min(k + channels, g.groups)) for k in range(0, g.groups, channels)]

    def some(workspace: Workspace, part: slice) -> None:
        for k in range(0, g.images, images):
            step(workspace, (slice(k, min(k + images, g.images)), part))

    each(parts, settings.threads if work > settings.split_ns else 1, some)


def _kernels(w: Array, channels: slice, place: tuple[int, ...], rank: int) -> Array:
    """Return the elements at one place of the kernels, to be multiplied with [images, channels, outputs, *places]."""
    index: Index = (channels, slice(None), 0, *place)
    return w[index].reshape(channels.stop - channels.start, -1, *(1,) * rank)


def forward(g: Geometry, settings: Settings, x: Array, w: Array, y: Array) -> None:
    """Compute y."""
    sliding = set(g.stride) == {1}

    def step(workspace: Workspace, block: tuple[slice, slice]) -> None:
        source = g.framed(workspace, x, (*block, slice(0, g.places[0])))
        if sliding and source[0, 0, 0].flags.c_contiguous:
            _slide(g, workspace, source, w, block[1], y[block])
            return
        total = y[block]
        seen = g.seen(workspace, x, (*block, slice(0, g.places[0])))
        product = workspace.named("product", total.shape, y.dtype)
        for number, place in enumerate(itertools.product(*map(range, g.kernel))):
            np.multiply(g.tap(seen, place), _kernels(w, block[1], place, g.rank), product if number else total)
            if number:
                np.add(total, product, total)

    _over_blocks(g, y.itemsize, settings, step)


def _slide(g: Geometry, workspace: Workspace, source: Array, w: Array, channels: slice, y: Array) -> None:
    """Compute y from contiguous images, a whole image at a time: sums between the ends of rows are left out.

    Windows that move by one element see one run of memory at each place of the kernel, not one for each row.
    """
    pitches = [s // source.itemsize for s in source.strides[3:]]
    images, groups = source.shape[:2]
    flat = source.reshape(images, groups, 1, -1)
    length = 1 + sum((n - 1) * p for n, p in zip(g.places, pitches, strict=True))
    total, product = (
        workspace.named(name, (images, groups, g.outputs, length), y.dtype) for name in ("sums", "product")
    )
    for number, place in enumerate(itertools.product(*map(range, g.kernel))):
        start = sum(k * d * p for k, d, p in zip(place, g.dilation, pitches, strict=True))
        here = flat[..., start : start + length]
        np.multiply(here, _kernels(w, channels, place, 1), product if number else total)
        if number:
            np.add(total, product, total)
    steps = (*total.strides[:3], *[p * total.itemsize for p in pitches])
    y[...] = np.lib.stride_tricks.as_strided(total, y.shape, steps)


def by_input(g: Geometry, settings: Settings, y: Array, w: Array, x: Array) -> None:
    """Compute the gradient by x."""
    turned = g.turned()
    if turned is not None and g.outputs == 1:
        forward(turned, settings, y, np.flip(w, tuple(range(3, w.ndim))), x)
        return

    def step(workspace: Workspace, block: tuple[slice, slice]) -> None:
        given, into = y[block], x[block]
        total = g.accumulator(workspace, into)
        product = workspace.named("product", given.shape, y.dtype)
        for place in itertools.product(*map(range, g.kernel)):
            np.multiply(given, _kernels(w, block[1], place, g.rank), product)
            sums = product if g.outputs == 1 else product.sum(2, keepdims=True)
            here = g.lie(total, place, slice(0, g.places[0]))
            np.add(here, sums, here)
        g.settle(total, into)

    _over_blocks(g, x.itemsize, settings, step)


def by_weight(g: Geometry, settings: Settings, x: Array, y: Array, w: Array) -> None:
    """Compute the gradient by w."""
    w[...] = 0

    def step(workspace: Workspace, block: tuple[slice, slice]) -> None:
        given = y[block]
        seen = g.seen(workspace, x, (*block, slice(0, g.places[0])))
        product = workspace.named("product", given.shape, y.dtype)
        rows = product.reshape(*given.shape[:3], math.prod(g.places))
        for place in itertools.product(*map(range, g.kernel)):
            np.multiply(g.tap(seen, place), given, product)
            index: Index = (block[1], slice(None), 0, *place)
            here = w[index]
            np.add(here, rows.sum(-1).sum(0), here)

    _over_blocks(g, x.itemsize, settings, step)
