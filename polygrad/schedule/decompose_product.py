"""Products along axes for a device that does not declare the reduction prod.

Here: a tree of launches, each of which multiplies a few slices of one axis. Sums and maxima in one kernel do not make
a product: a sum of logarithms is inexact, and of integers it is none. Not here: other reductions, which `decompose.py`
makes within a kernel.
"""

from typing import Any

from polygrad import shapes
from polygrad.driver.ir import STORAGE, Instr, Kernel, Store, View, kind
from polygrad.graph.node import Node
from polygrad.schedule.body import Body, name
from polygrad.schedule.emit import FusedLaunch
from polygrad.schedule.views import View as Operand

SLICES = 8  # of an axis are multiplied in one launch, so n elements take log8(n) launches


def product_launches(node: Node, operand: Operand) -> list[FusedLaunch]:
    """Return the launches, in order, that compute *node*, a product of *operand*; the last one stores it."""
    source: Any
    source, shape, strides, offset = operand
    over = node.spec.attrs[0]
    launches: list[FusedLaunch] = []
    while not launches or any(shape[k] > 1 for k in over):
        axis = next((k for k in over if shape[k] > 1), over[0])
        rows = -(-shape[axis] // SLICES)
        out = tuple(rows if k == axis else n for k, n in enumerate(shape))
        last = all(out[k] == 1 for k in over)
        target = node if last else (node, len(launches))
        launches.append(_fold(node, (source, shape, strides, offset), axis, out, target))
        source, shape, strides, offset = target, out, shapes.strides(out), 0
    return launches


def _fold(node: Node, operand: tuple[Any, ...], axis: int, out: tuple[int, ...], target: Any) -> FusedLaunch:
    """Return a launch that multiplies slices of ``out[axis]`` rows; a short last slice is filled up with ones."""
    source, shape, strides, offset = operand
    stored = name(node.dtype)
    wide = "float32" if stored in STORAGE else stored
    dtype = stored if isinstance(source, Node) else wide
    body, ints = Body(), list(out)
    views: list[View] = []
    offsets: list[tuple[int, Node]] = []
    value = -1
    for start in range(0, shape[axis], out[axis]):
        room = shape[axis] - start
        short = room < out[axis]
        classes = tuple(s if s in (0, 1) else None for s in strides)
        view = View(0, dtype, classes, (axis,) if short else (), 0, 1.0 if kind(dtype) == "float" else 1)
        if isinstance(source, Node) and source.storage is not None:
            offsets.append((len(ints), source))
        ints += [
            offset + start * strides[axis],
            *[s for s in strides if s not in (0, 1)],
            *([0, room] if short else []),
        ]
        element = body.cast(body.add(Instr("load", dtype, (), len(views))), wide)
        value = element if value < 0 else body("multiply", value, element)
        views.append(view)
    result = stored if target is node else wide
    value = body.cast(value, result)
    steps = shapes.strides(out)
    views.append(View(1, result, tuple(s if s in (0, 1) else None for s in steps)))
    ints += [0, *[s for s in steps if s not in (0, 1)]]
    kernel = Kernel(len(out), 0, (dtype, result), tuple(views), (), tuple(body.instrs), (Store(value, len(views) - 1),))
    made = (node,) if target is node else ()
    partials = {} if target is node else {1: (node, shapes.size(out))}
    return FusedLaunch(kernel, (source, target), tuple(ints), (), tuple(offsets), made, partials, {})
