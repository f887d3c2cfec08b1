"""Movement ops: the same elements under another index. They cost no kernel: views compose into loads.

Here: reshape, permute_dims, broadcast_to, slice, pad, windows, alias, as primitives; each is the derivative of another.
Not here: functions made of these (flip, roll, concat, ...), which are in `manipulation.py`.
"""

import itertools
from typing import Any

from polygrad import shapes
from polygrad.errors import ShapeError
from polygrad.ops import complex_arithmetic
from polygrad.ops.table import composite, primitive


def _sum_to(xp: Any, g: Any, shape: shapes.Shape) -> Any:
    return xp.sum_to(g, shape)


def _inverse(order: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(order.index(k) for k in range(len(order)))


def _slice_back(xp: Any, g: Any, shape: shapes.Shape, starts: Any, steps: Any, sizes: Any) -> Any:
    """Put a gradient back where a slice was taken: reverse negative steps, spread by |step|, pad to the old extents."""
    if any(step < 0 for step in steps):
        flipped = tuple(n - 1 if step < 0 else 0 for n, step in zip(sizes, steps, strict=True))
        g = xp.slice_(g, flipped, tuple(-1 if step < 0 else 1 for step in steps), sizes)
        starts = tuple(b + (n - 1) * s if s < 0 else b for b, n, s in zip(starts, sizes, steps, strict=True))
        steps = tuple(-s if s < 0 else s for s in steps)
    if any(step > 1 for step in steps):
        g = xp.spread(g, steps)
    after = tuple(n - b - m for n, b, m in zip(shape, starts, g.shape, strict=True))
    if any(m < 0 for m in after):  # the zeros that `spread` put behind the last element
        cut = tuple(m + min(0, a) for m, a in zip(g.shape, after, strict=True))
        g = xp.slice_(g, (0,) * len(cut), (1,) * len(cut), cut)
        after = tuple(max(0, a) for a in after)
    return xp.pad_(g, starts, after, 0)


@primitive(
    infer=lambda x, shape: (shape, x.dtype),
    kind="reshape",
    vjp=(lambda xp, g, out, x, shape: xp.reshape_(g, x.shape),),
    jvp=(lambda xp, t, out, x, shape: xp.reshape_(t, shape),),
    complex="parts",
)
def reshape_(xp: Any, x: Any, shape: Any, /) -> Any:
    """The same elements in C order under another shape."""
    return xp.reshape(x, shape)


@primitive(
    infer=lambda x, order: (tuple(x.shape[k] for k in order), x.dtype),
    kind="permute",
    vjp=(lambda xp, g, out, x, order: xp.turned(g, _inverse(order)),),
    jvp=(lambda xp, t, out, x, order: xp.permute_(t, order),),
    complex="parts",
)
def permute_(xp: Any, x: Any, order: Any, /) -> Any:
    """The axes in another order."""
    return xp.transpose(x, order)


@primitive(
    infer=lambda x, shape: (shape, x.dtype),
    kind="expand",
    vjp=(lambda xp, g, out, x, shape: _sum_to(xp, g, x.shape),),
    jvp=(lambda xp, t, out, x, shape: xp.expand_(t, shape),),
    complex="parts",
)
def expand_(xp: Any, x: Any, shape: Any, /) -> Any:
    """x broadcast to a shape that it is known to broadcast to."""
    return xp.broadcast_to(x, shape)


@primitive(
    infer=lambda x, starts, steps, sizes: (sizes, x.dtype),
    kind="slice",
    vjp=(lambda xp, g, out, x, *attrs: _slice_back(xp, g, x.shape, *attrs),),
    jvp=(lambda xp, t, out, x, starts, steps, sizes: xp.slice_(t, starts, steps, sizes),),
    complex="parts",
)
def slice_(xp: Any, x: Any, starts: Any, steps: Any, sizes: Any, /) -> Any:
    """For each axis *size* elements from *start* in *steps*, which may be negative."""
    parts = []
    for b, s, n in zip(starts, steps, sizes, strict=True):
        stop = b + s * n
        parts.append(slice(b, None if stop < 0 else stop, s))
    return x[tuple(parts)]


def _infer_pad(x: Any, before: Any, after: Any, _fill: Any) -> Any:
    return tuple(n + b + a for n, b, a in zip(x.shape, before, after, strict=True)), x.dtype


def _pad_back(xp: Any, g: Any, _out: Any, x: Any, before: Any, _after: Any, _fill: Any) -> Any:
    return xp.slice_(g, before, (1,) * len(before), x.shape)


@primitive(
    infer=_infer_pad,
    kind="pad",
    vjp=(_pad_back,),
    jvp=(lambda xp, t, out, x, before, after, fill: xp.pad_(t, before, after, 0),),
    complex=complex_arithmetic.pad,
)
def pad_(xp: Any, x: Any, before: Any, after: Any, fill: Any, /) -> Any:
    """x with *fill* around it; sizes are not negative."""
    return xp.pad(x, list(zip(before, after, strict=True)), constant_values=fill)


def window_counts(shape: shapes.Shape, kernel: Any, stride: Any, dilation: Any) -> tuple[int, ...]:
    """Return how many windows the last axes of a shape have, or raise ShapeError if there is none."""
    rank = len(kernel)
    spans = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    counts = tuple((n - span) // s + 1 for n, span, s in zip(shape[-rank:], spans, stride, strict=True))
    if min(counts) < 1:
        raise ShapeError(
            f"cannot lay windows of {list(kernel)} with dilation {list(dilation)} on the last axes of shape "
            f"{list(shape)}: they span "
            f"{spans} elements; pad the array or take a smaller kernel"
        )
    return counts


def _infer_windows(x: Any, kernel: Any, stride: Any, dilation: Any) -> Any:
    counts = window_counts(x.shape, kernel, stride, dilation)
    return (*x.shape[: -len(kernel)], *counts, *kernel), x.dtype


def laid_back(xp: Any, g: Any, shape: shapes.Shape, kernel: Any, stride: Any, dilation: Any) -> Any:
    """Return windows added up where they come from, in an array of *shape*.

    The elements at one place of all windows are a slice, and go back like one. Windows that lie side by side need no
    additions: they are the array in another order.
    """
    rank = len(kernel)
    lead, counts = shape[:-rank], g.shape[-2 * rank : -rank]
    if stride == kernel and set(dilation) == {1}:
        return _side_by_side(xp, g, shape, lead, counts, kernel)
    whole = g.shape[:-rank]
    total: Any = None
    for place in itertools.product(*map(range, kernel)):
        one = xp.slice_(g, (*[0] * len(whole), *place), (1,) * g.ndim, (*whole, *[1] * rank))
        starts = (*[0] * len(lead), *[p * d for p, d in zip(place, dilation, strict=True)])
        steps = (*[1] * len(lead), *stride)
        back = _slice_back(xp, xp.reshape_(one, whole), shape, starts, steps, (*lead, *counts))
        total = back if total is None else total + back
    return total


def _side_by_side(xp: Any, g: Any, shape: Any, lead: Any, counts: Any, kernel: Any) -> Any:
    rank, first = len(kernel), len(lead)
    order = (*range(first), *(k for d in range(rank) for k in (first + d, first + rank + d)))
    covered = tuple(n * k for n, k in zip(counts, kernel, strict=True))
    whole = xp.reshape_(xp.permute_(g, order), (*lead, *covered))
    after = tuple(n - m for n, m in zip(shape[first:], covered, strict=True))
    return xp.pad_(whole, (0,) * len(shape), (*(0,) * first, *after), 0) if any(after) else whole


@primitive(
    infer=_infer_windows,
    kind="windows",
    vjp=(lambda xp, g, out, x, *attrs: laid_back(xp, g, x.shape, *attrs),),
    jvp=(lambda xp, t, out, x, kernel, stride, dilation: xp.windows_(t, kernel, stride, dilation),),
    complex="parts",
)
def windows_(xp: Any, x: Any, kernel: Any, stride: Any, dilation: Any, /) -> Any:
    """Overlapping windows of the last axes: [..., H, W] to [..., window row, window column, row in it, column in it].

    The element at window i and place k of an axis is the one at ``i * stride + k * dilation``.
    """
    rank = len(kernel)
    spans = tuple(d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True))
    every = xp.lib.stride_tricks.sliding_window_view(x, spans, axis=tuple(range(-rank, 0)))
    return every[(..., *[slice(None, None, s) for s in stride], *[slice(None, None, d) for d in dilation])]


@primitive(
    infer=lambda x: (x.shape, x.dtype),
    kind="alias",
    vjp=(lambda xp, g, out, x: g,),
    jvp=(lambda xp, t, out, x: t,),
    complex="parts",
)
def alias(xp: Any, x: Any, /) -> Any:
    """x itself, as a node of its own: a leaf of a recording, or a value cut off from one."""
    return x


@primitive(
    infer=lambda x, *rest: (x.shape, x.dtype),
    kind="alias",
    vjp=(lambda xp, g, out, x, *rest: g,),
    jvp=(lambda xp, t, out, x, *rest: t,),
)
def call_output_(xp: Any, x: Any, *rest: Any) -> Any:
    """The output of a function with a written derivative whose number is the attribute; rest: the function's inputs."""
    return x


@primitive(
    infer=lambda x, device: (x.shape, x.dtype),
    kind="transfer",
    vjp=(lambda xp, g, out, x, device: xp.to_device_(g, x.device),),
    jvp=(lambda xp, t, out, x, device: xp.to_device_(t, device),),
    complex="parts",
)
def transfer_(xp: Any, x: Any, device: Any, /) -> Any:
    """x on another device."""
    return x


@composite(reference=None, dtypes="bool int float complex")
def to_device_(xp: Any, x: Any, device: Any) -> Any:
    """Return x on *device*, as a node that belongs there."""
    if x.device == device or x.device is None:
        return x
    out = xp.transfer_(x, device)
    out.device = device
    return out


def check_permutation(op: str, order: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """Return *order* as non-negative axes, or raise ShapeError."""
    found = tuple(shapes.axis(op, k, rank) for k in order)
    if sorted(found) != list(range(rank)):
        raise ShapeError(f"cannot {op} {rank} axes by {tuple(order)}: each axis must stand in it exactly once")
    return found
