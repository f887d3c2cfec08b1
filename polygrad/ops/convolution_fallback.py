"""Convolutions made of other ops, for devices without their own and for dtypes that those do not take.

Here: a convolution and its two gradients from padding, overlapping windows (a view) and products.
Not here: what users may ask for (`convolution.py`), the ops that a device may have (`convolution_steps.py`).

All take stride, padding before and after, dilation, each with one int an axis, and the number of groups.
"""

from typing import Any

from polygrad import shapes
from polygrad.ops.internal import cast
from polygrad.ops.statistics import wide

Sizes = tuple[int, ...]


def bordered(xp: Any, x: Any, before: Sizes, after: Sizes, fill: Any) -> Any:
    """Return x with *fill* around its last axes."""
    if not any(before) and not any(after):
        return x
    lead = (0,) * (x.ndim - len(before))
    return xp.pad_(x, lead + before, lead + after, fill)


def convolved(
    xp: Any, x: Any, weight: Any, stride: Sizes, before: Sizes, after: Sizes, dilation: Sizes, groups: int
) -> Any:
    """Return the convolution of x [N, C, ...] with weights [out, C / groups, ...]."""
    rank = x.ndim - 2
    seen = xp.windows_(bordered(xp, x, before, after, 0), weight.shape[2:], stride, dilation)
    if weight.shape[1] == 1 and groups == weight.shape[0]:
        return _depthwise(xp, seen, weight, rank)
    return _product(xp, seen, weight, groups, rank)


def scattered(
    xp: Any, g: Any, weight: Any, sizes: Sizes, stride: Sizes, before: Sizes, after: Sizes, dilation: Sizes, groups: int
) -> Any:
    """Return the gradient by x, of which the last axes have *sizes*: a convolution of g with zeros between elements."""
    spans = [d * (k - 1) for k, d in zip(weight.shape[2:], dilation, strict=True)]
    apart = xp.spread(g, (1, 1, *stride))  # stride - 1 zeros behind every element, the last one too
    first = tuple(w - b for w, b in zip(spans, before, strict=True))
    last = tuple(n + w - f - m for n, w, f, m in zip(sizes, spans, first, apart.shape[2:], strict=True))
    one, none = (1,) * len(sizes), (0,) * len(sizes)
    return convolved(
        xp, _fitted(xp, apart, first, last), _turned(xp, weight, groups), one, none, none, dilation, groups
    )


def correlated(
    xp: Any, x: Any, g: Any, kernel: Sizes, stride: Sizes, before: Sizes, after: Sizes, dilation: Sizes, groups: int
) -> Any:
    """Return the gradient by weights of extents *kernel*: a convolution of x with g whose examples are channels."""
    n, c = x.shape[:2]
    outputs = g.shape[1]
    padded = bordered(xp, x, before, after, 0)
    sizes = padded.shape[2:]
    parts = xp.reshape(padded, (n, groups, c // groups, *sizes))
    lines = xp.permute_dims(parts, (2, 1, 0, *range(3, parts.ndim)))
    turned = xp.permute_dims(g, (1, 0, *range(2, g.ndim)))
    none = (0,) * len(kernel)
    found = convolved(
        xp, xp.reshape(lines, (c // groups, groups * n, *sizes)), turned, dilation, none, none, stride, groups
    )
    found = xp.slice_(found, (0,) * found.ndim, (1,) * found.ndim, (c // groups, outputs, *kernel))
    return xp.permute_dims(found, (1, 0, *range(2, found.ndim)))


def _depthwise(xp: Any, seen: Any, weight: Any, rank: int) -> Any:
    """Return the convolution of each channel with its own kernel: a sum over windows, without a product of matrices."""
    c, shape = seen.shape[1], seen.shape[: 2 + rank]
    if 0 in seen.shape:
        return xp.zeros(shape, dtype=seen.dtype)
    spread = xp.reshape(weight, (c, *(1,) * rank, *weight.shape[2:]))
    total = xp.sum_(wide(xp, seen) * wide(xp, spread), tuple(range(2 + rank, 2 + 2 * rank)))
    return xp.reshape(cast(xp, total, seen.dtype), shape)


def _product(xp: Any, seen: Any, weight: Any, groups: int, rank: int) -> Any:
    """Return the convolution as a product of matrices for each group: windows as rows, kernels as columns."""
    n, c = seen.shape[:2]
    places, kernel = seen.shape[2 : 2 + rank], seen.shape[2 + rank :]
    rows = n * shapes.size(places)
    outputs, inside = weight.shape[0], (c // groups) * shapes.size(kernel)
    at, within = tuple(range(2, 2 + rank)), tuple(range(2 + rank, 2 + 2 * rank))
    if groups == 1:
        lines = xp.reshape(xp.permute_dims(seen, (0, *at, 1, *within)), (rows, inside))
        out = xp.matmul(lines, xp.swap_last(xp.reshape(weight, (outputs, inside))))
        return xp.permute_dims(xp.reshape(out, (n, *places, outputs)), (0, rank + 1, *range(1, rank + 1)))
    parts = xp.reshape(seen, (n, groups, c // groups, *places, *kernel))
    order = (1, 0, *(k + 1 for k in at), 2, *(k + 1 for k in within))
    lines = xp.reshape(xp.permute_dims(parts, order), (groups, rows, inside))
    out = xp.matmul(lines, xp.swap_last(xp.reshape(weight, (groups, outputs // groups, inside))))
    whole = xp.reshape(out, (groups, n, *places, outputs // groups))
    return xp.reshape(xp.permute_dims(whole, (1, 0, rank + 2, *at)), (n, outputs, *places))


def _fitted(xp: Any, x: Any, before: Sizes, after: Sizes) -> Any:
    """Return x with zeros around its last axes, or with elements cut off where a count is negative."""
    rank = len(before)
    if min(before + after) < 0:
        starts = tuple(max(0, -b) for b in before)
        ends = tuple(max(0, -a) for a in after)
        kept = tuple(n - b - a for n, b, a in zip(x.shape[-rank:], starts, ends, strict=True))
        lead = x.ndim - rank
        x = xp.slice_(x, (0,) * lead + starts, (1,) * x.ndim, x.shape[:lead] + kept)
    return bordered(xp, x, tuple(max(0, b) for b in before), tuple(max(0, a) for a in after), 0)


def _turned(xp: Any, weight: Any, groups: int) -> Any:
    """Return weights [C, out / groups, ...] as [out, C / groups, ...] with every kernel reversed."""
    inputs, outputs, *kernel = weight.shape
    ends = (0, 0, *(k - 1 for k in kernel))
    weight = xp.slice_(weight, ends, (1, 1, *(-1 for _ in kernel)), weight.shape)
    parts = xp.reshape(weight, (groups, inputs // groups, outputs, *kernel))
    turned = xp.permute_dims(parts, (0, 2, 1, *range(3, parts.ndim)))
    return xp.reshape(turned, (groups * outputs, inputs // groups, *kernel))
