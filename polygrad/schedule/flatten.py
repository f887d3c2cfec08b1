"""Launches brought to as few axes as they have ways through memory, so that those of arrays of any shape are alike.

Here: `flattened`, for launches without windows, gathers and indices.
Not here: other simplifications, which depend on the device (`polygrad.driver.render.collapse`).
"""

import math
from collections.abc import Sequence
from typing import Any

from polygrad import shapes
from polygrad.driver.ir import Kernel, View
from polygrad.schedule.steps import Fused


def flattened(record: Fused, known: dict[Any, Kernel]) -> Fused:
    """Return a launch with its parallel axes as one, and its reduced axes, where each view runs through them from end
    to end, or not at all; else the launch itself.

    *known* remembers kernels. An elementwise launch without axes gets one.
    """
    kernel, ints = record.kernel, record.ints
    if any(v.window or v.gathers for v in kernel.views) or any(instr.op == "iota" for instr in kernel.body):
        return record
    starts, strides = _strides(kernel, ints)
    groups = range(kernel.parallel), range(kernel.parallel, kernel.rank)
    steps = [_steps(kernel, ints, strides, axes) for axes in groups]
    if not kernel.rank:
        steps[0] = [1] * len(kernel.views)
    if steps == [None, None]:
        return record
    key = (kernel, *[own and tuple(own) for own in steps])
    form = known.get(key)
    if form is None:
        form = known[key] = _form(kernel, groups, steps)
    flat: list[int] = []
    for axes, own in zip(groups, steps, strict=True):
        flat += [ints[k] for k in axes] if own is None else [math.prod(ints[k] for k in axes)]
    places = {}
    for view, start, own_strides in zip(kernel.views, starts, strides, strict=True):
        places[start] = len(flat)
        flat.append(ints[start])
        for axes, own in zip(groups, steps, strict=True):
            flat += [own_strides[k] for k in axes if own is None and view.strides[k] is None]
        if view.partial:
            end = start + 1 + view.strides.count(None)
            flat += ints[end : end + 2]
    offsets = tuple([(places[at], leaf) for at, leaf in record.offsets])
    return record._replace(kernel=form, ints=tuple(flat), offsets=offsets)


def _strides(kernel: Kernel, ints: Sequence[int]) -> tuple[list[int], list[list[int]]]:
    """Return of each view where its offset is among the ints, and its strides."""
    starts, strides, at = [], [], kernel.rank
    for view in kernel.views:
        starts.append(at)
        at += 1
        own = []
        for stride in view.strides:
            own.append(ints[at] if stride is None else stride)
            at += stride is None
        strides.append(own)
        at += 2 * view.partial
    return starts, strides


def _steps(kernel: Kernel, ints: Sequence[int], strides: list[list[int]], axes: range) -> list[int] | None:
    """Return of each view its stride, 0 or 1, along all *axes* as one; None if they have to stay."""
    if len(axes) < 2:  # noqa: PLR2004  one is one already
        return None
    whole = shapes.strides(tuple(ints[axes.start : axes.stop]))
    found = []
    for view, own in zip(kernel.views, strides, strict=True):
        used = [(own[k], whole[k - axes.start]) for k in axes if ints[k] != 1]
        if all(stride == end for stride, end in used):
            found.append(1)
        elif all(stride == 0 for stride, _ in used) and (
            axes.start == 0 or not any(view.strides[k] != 0 for k in axes)
        ):
            found.append(0)  # as the structure says: what varies along reduced axes must not seem to be the same there
        else:
            return None
    return found


def _form(kernel: Kernel, groups: Sequence[range], steps: Sequence[list[int] | None]) -> Kernel:
    views: list[View] = []
    for v, view in enumerate(kernel.views):
        strides: list[int | None] = []
        for axes, own in zip(groups, steps, strict=True):
            strides += [view.strides[k] for k in axes] if own is None else [own[v]]
        views.append(view._replace(strides=tuple(strides)))
    counts = [len(axes) if own is None else 1 for axes, own in zip(groups, steps, strict=True)]
    return kernel._replace(parallel=counts[0], reduced=counts[1], views=tuple(views))
