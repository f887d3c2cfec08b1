"""Maxima over windows as a library op, and their gradient, for devices that pool better than by fused kernels.

Here: what the two give, their derivatives, what stands in where a device lacks them.
Not here: what users call (`pooling.py`), means over windows, which fuse well everywhere.

Both work along the last axes. Their last attrs are the extents of windows, stride, padding before and after, dilation,
one int an axis each. Padding is -inf. Equal maxima share the gradient.
"""

from typing import Any

from polygrad import dtypes
from polygrad.ops.convolution_fallback import Sizes, bordered
from polygrad.ops.layout import laid_back, window_counts
from polygrad.ops.table import library


def _params(kernel: Sizes, stride: Sizes, before: Sizes, after: Sizes, dilation: Sizes) -> dict[str, Any]:
    return {"kernel": kernel, "stride": stride, "before": before, "after": after, "dilation": dilation}


def windows_over(
    xp: Any, x: Any, fill: Any, kernel: Sizes, stride: Sizes, before: Sizes, after: Sizes, dilation: Sizes
) -> Any:
    """Return the windows over x with *fill* around it: [..., *places, *kernel]."""
    return xp.windows_(bordered(xp, x, before, after, fill), kernel, stride, dilation)


def pooled(xp: Any, x: Any, *attrs: Any) -> Any:
    """Return the maxima of windows."""
    rank = len(attrs[0])
    return xp.max(windows_over(xp, x, dtypes.lowest(x.dtype), *attrs), axis=tuple(range(-rank, 0)))


def _results(x: Any, kernel: Sizes, stride: Sizes, before: Sizes, after: Sizes, dilation: Sizes) -> Any:
    rank = len(kernel)
    lead, sizes = x.shape[:-rank], x.shape[-rank:]
    padded = tuple(n + b + a for n, b, a in zip(sizes, before, after, strict=True))
    return [((*lead, *window_counts((*lead, *padded), kernel, stride, dilation)), x.dtype)]


def _shares(xp: Any, x: Any, y: Any, attrs: Any) -> Any:
    """Return for each element of each window its share of the window's gradient: none, all, or less among equals."""
    rank = len(attrs[0])
    seen = windows_over(xp, x, dtypes.lowest(x.dtype), *attrs)
    wins = xp.astype(xp.equal(seen, xp.reshape_(y, (*y.shape, *(1,) * rank))), x.dtype)
    return wins / xp.maximum(xp.sum_(wins, tuple(range(seen.ndim - rank, seen.ndim))), 1.0)


def _spread_back(xp: Any, g: Any, x: Any, y: Any, *attrs: Any) -> Any:
    kernel, stride, before, after, dilation = attrs
    rank = len(kernel)
    parts = _shares(xp, x, y, attrs) * xp.reshape_(g, (*g.shape, *(1,) * rank))
    sizes = tuple(n + b + a for n, b, a in zip(x.shape[-rank:], before, after, strict=True))
    whole = laid_back(xp, parts, (*x.shape[:-rank], *sizes), kernel, stride, dilation)
    return xp.slice_(whole, (*(0,) * (x.ndim - rank), *before), (1,) * x.ndim, x.shape)


def _gathered(xp: Any, t: Any, x: Any, y: Any, attrs: Any) -> Any:
    """Return the sum of what *t* has at the maxima of each window, shared: the transpose of `max_pool_back_`."""
    rank = len(attrs[0])
    parts = _shares(xp, x, y, attrs) * windows_over(xp, t, 0, *attrs)
    return xp.reshape_(xp.sum_(parts, tuple(range(parts.ndim - rank, parts.ndim))), y.shape)


@library(
    results=_results,
    fallback=pooled,
    vjp=(lambda xp, g, out, x, _index, *attrs: xp.max_pool_back_(g, x, out, *attrs),),
    jvp=(lambda xp, t, out, x, _index, *attrs: _gathered(xp, t, x, out, attrs),),
    call="max_pool",
    params=_params,
    verb="pool",
)
def max_pool_(np: Any, x: Any, /, *attrs: Any) -> Any:
    """The maximum of each window of the last axes."""
    kernel, stride, before, after, dilation = attrs
    rank = len(kernel)
    border = ((0, 0),) * (x.ndim - rank) + tuple(zip(before, after, strict=True))
    spans = tuple(d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True))
    every = np.lib.stride_tricks.sliding_window_view(
        np.pad(x, border, constant_values=-np.inf), spans, axis=tuple(range(-rank, 0))
    )
    seen = every[(..., *[slice(None, None, s) for s in stride], *[slice(None, None, d) for d in dilation])]
    return np.max(seen, axis=tuple(range(-rank, 0)))


@library(
    results=lambda g, x, y, *attrs: [(x.shape, x.dtype)],
    fallback=_spread_back,
    vjp=(lambda xp, h, out, g, x, y, _index, *attrs: _gathered(xp, h, x, y, attrs), None, None),
    jvp=(lambda xp, t, out, g, x, y, _index, *attrs: xp.max_pool_back_(t, x, y, *attrs), None, None),
    call="max_pool_gradient",
    params=_params,
    verb="pool",
)
def max_pool_back_(np: Any, g: Any, x: Any, y: Any, /, *attrs: Any) -> Any:
    """The gradient of maxima y over windows of x, for the gradient g by them."""
    kernel, stride, before, after, dilation = attrs
    rank = len(kernel)
    axes = tuple(range(-rank, 0))
    border = ((0, 0),) * (x.ndim - rank) + tuple(zip(before, after, strict=True))
    x = np.pad(x, border, constant_values=-np.inf)
    out = np.zeros_like(x)
    for at in np.ndindex(*y.shape[-rank:]):
        place = [
            slice(i * s, i * s + (k - 1) * d + 1, d) for i, s, k, d in zip(at, stride, kernel, dilation, strict=True)
        ]
        wins = x[(..., *place)] == np.expand_dims(y[(..., *at)], axes)
        share = np.expand_dims(g[(..., *at)], axes) / np.maximum(np.sum(wins, axis=axes, keepdims=True), 1)
        out[(..., *place)] += wins * share
    return out[(..., *[slice(b, n - a) for b, a, n in zip(before, after, x.shape[-rank:], strict=True)])]
