"""Nodes that are views: movement ops over memory, as strides and an offset.

Here: `view_of`.
Not here: movement inside a kernel, which rewrites maps (`group.py`).
"""

import functools
import itertools
from typing import Any

from polygrad import shapes
from polygrad.graph.node import Node
from polygrad.ops.table import Op
from polygrad.schedule.index import Axis, address, settle_map, through_reshape, variable

MOVEMENT = {"reshape", "permute", "expand", "slice", "alias", "pad", "windows"}
VIEWS = MOVEMENT - {"pad"}
View = tuple[Node, tuple[int, ...], tuple[int, ...], int]


def view_of(node: Node, wanted: set[Node]) -> View | None:
    """Return *node* as a strided view (base, shape, strides, offset) of memory; None if it is not one.

    The base is the nearest node below a chain of movement ops; an unrealized base counts as contiguous.
    """
    if node.storage is not None:
        return node, node.aval.shape, plain(node.aval.shape, node.storage.strides), 0
    if node in wanted or node.spec.op.kind not in VIEWS:
        if node.spec.op.kind == "scalar":
            return None
        return node, node.aval.shape, shapes.strides(node.aval.shape), 0
    chain = []
    base = node
    while base.storage is None and base not in wanted and base.spec.op.kind in VIEWS:
        chain.append(base)
        base = base.parents[0]
    if base.spec.op.kind == "scalar":
        return None
    shape: tuple[int, ...] = base.aval.shape
    strides = base.storage.strides if base.storage is not None else shapes.strides(shape)
    offset = 0
    for n in reversed(chain):
        at = moved(n.spec.op.kind, n.spec.attrs, n.aval.shape, shape, strides)
        if at is None:
            return None
        shape, strides, offset = at[0], at[1], offset + at[2]
    return base, shape, plain(shape, strides), offset


@functools.lru_cache(maxsize=4096)
def plain(shape: shapes.Shape, strides: shapes.Shape) -> shapes.Shape:
    """Return strides, or those of C order if they differ from these along axes of size 1 alone, where none is taken.

    >>> plain((1, 5), (0, 1)), plain((2, 1, 3), (3, 7, 1)), plain((2, 1), (0, 1))
    ((5, 1), (3, 3, 1), (0, 1))
    """
    order = shapes.strides(shape)
    if strides == order or any(n != 1 and s != o for n, s, o in zip(shape, strides, order, strict=True)):
        return strides
    return order


def contiguous(view: View) -> bool:
    """Whether a view is in C order without gaps."""
    return view[2] == shapes.strides(view[1])


def takes(op: Op, view: View) -> bool:
    """Whether a library op reads a view as it lies: its rows contiguous, and none of them on another."""
    return op.strided and strides_do(view[1], view[2])


def strides_do(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether strides are those that an op of strided operands takes.

    >>> strides_do((2, 3, 4), (4, 8, 1)), strides_do((2, 3, 4), (12, 1, 3)), strides_do((2, 4), (0, 1))
    (True, False, False)
    """
    *lead, (n, step) = zip(shape, strides, strict=True)
    return (n == 1 or step == 1) and all(m == 1 or s > 0 for m, s in lead)


def moved(kind: str, attrs: Any, out: Any, shape: Any, strides: Any) -> tuple[Any, Any, int] | None:
    """Return shape, strides and the change of the offset after a movement op to the shape *out*.

    None if no strides describe it.
    """
    if kind == "alias":
        return shape, strides, 0
    if kind == "permute":
        return out, tuple(strides[k] for k in attrs[0]), 0
    if kind == "expand":
        skip = len(out) - len(shape)
        wide = (0,) * skip + tuple(0 if n == 1 else s for n, s in zip(shape, strides, strict=True))
        return out, wide, 0
    if kind == "slice":
        starts, steps, _ = attrs
        offset = sum(b * s for b, s in zip(starts, strides, strict=True))
        return out, tuple(s * t for s, t in zip(strides, steps, strict=True)), offset
    if kind == "windows":
        kernel, stride, dilation = attrs
        lead = len(shape) - len(kernel)
        along = [s * t for s, t in zip(strides[lead:], stride, strict=True)]
        spread = [s * t for s, t in zip(strides[lead:], dilation, strict=True)]
        return out, (*strides[:lead], *along, *spread), 0
    return _reshape_view(shape, strides, out)


@functools.lru_cache(maxsize=4096)
def _reshape_view(shape: Any, strides: Any, out: Any) -> tuple[Any, Any, int] | None:
    """Return the strides of a reshape without a copy, if there are any."""
    axes = [Axis(n) for n in out]
    index = through_reshape(tuple(variable(a) for a in axes), out, shape)
    if index is None:
        return None
    flat = address(settle_map(index), strides)
    steps = dict(flat.terms)
    merged = [_merged(a, steps) for a in axes]
    return None if None in merged else (out, tuple(merged), flat.const)


def _merged(axis: Axis, steps: dict[Axis, int]) -> int | None:
    """Return the one stride of an axis that consists of several memory axes; None if they do not follow each other."""
    leaves = [a for a in axis.leaves() if a.extent > 1]
    for outer, inner in itertools.pairwise(leaves):
        if steps.get(outer, 0) != steps.get(inner, 0) * inner.extent:
            return None
    return steps.get(leaves[-1], 0) if leaves else 0
