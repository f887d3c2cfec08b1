"""Buckets: which gradients travel together, and in which form.

Here: the plan, which all ranks have alike; a gradient's form on the way.
Not here: computing and sending (`data_parallel.py`).

The plan is made once, from what the ranks have seen in the first step: rank 0's order in which backward finishes
gradients, and its layout of each. A gradient that is a transposed product lies in memory as the product; it travels as
it lies, so that nothing is copied.
"""

from collections.abc import Sequence
from typing import NamedTuple

from polygrad import dtypes
from polygrad.graph.functions import F
from polygrad.graph.node import Node


class Form(NamedTuple):
    """How one gradient travels."""

    axes: tuple[int, ...] | None  # its axes in the order in which they lie in memory, if that is not their own
    dtype: dtypes.DType  # in which it is added
    nbytes: int


def layout_of(gradient: Node) -> list[int] | None:
    """Return the order of axes in which a gradient that is yet to be computed will lie in memory; None for its own.

    >>> import polygrad as pg
    >>> layout_of((pg.ones((2, 3)) * 2.0).T._node)
    [1, 0]
    """
    if gradient.spec.op.kind != "permute":
        return None
    axes = list(gradient.spec.attrs[0])
    back = [axes.index(k) for k in range(len(axes))]
    return back if back != list(range(len(back))) else None


def outgoing(gradient: Node, form: Form) -> Node:
    """Return a gradient as it travels, to be computed."""
    out: Node = gradient if gradient.dtype is form.dtype else F.astype(gradient, form.dtype)
    return out if form.axes is None else F.permute_(out, form.axes)


def incoming(arrived: Node, form: Form, dtype: dtypes.DType, factor: float) -> Node:
    """Return a gradient from its form on the way: a graph that whoever takes it computes with what he does to it."""
    out: Node = arrived
    if form.axes is not None:
        out = F.permute_(out, tuple(form.axes.index(k) for k in range(len(form.axes))))
    if factor != 1.0:
        out = F.multiply(out, F.full_of(factor, out))
    return out if out.dtype is dtype else F.astype(out, dtype)


def divide(order: Sequence[int], sizes: Sequence[int], limit: int) -> list[list[int]]:
    """Return *order* cut into buckets of at most *limit* bytes; what is larger is a bucket of its own.

    >>> divide([3, 2, 1, 0], [10, 10, 50, 10], 25)
    [[3], [2], [1, 0]]
    >>> divide([3, 2, 1, 0], [10, 10, 10, 10], 25)
    [[3, 2], [1, 0]]
    """
    buckets: list[list[int]] = []
    filled = limit
    for k in order:
        if buckets and filled + sizes[k] <= limit:
            buckets[-1].append(k)
            filled += sizes[k]
        else:
            buckets.append([k])
            filled = sizes[k]
    return buckets
