"""Pooling over the last one, two or three axes.

Here: max and avg pooling with windows, and adaptive pooling to a given size.
Not here: convolutions, the window view (`layout.py`), layers.
"""

from collections.abc import Callable
from typing import Any

from polygrad import dtypes
from polygrad.errors import ShapeError
from polygrad.ops.convolution import sizes_of
from polygrad.ops.convolution_fallback import Sizes, bordered
from polygrad.ops.manipulation import part
from polygrad.ops.maxima_first import maxima_first
from polygrad.ops.pooling_steps import pooled, windows_over
from polygrad.ops.statistics import floating
from polygrad.ops.table import composite

_WORDS = {1: "the last axis", 2: "the last two axes", 3: "the last three axes"}


class _Windows:
    """Where the windows of a pooling lie; everything is checked."""

    def __init__(self, name: str, x: Any, rank: int, *geometry: Any) -> None:
        kernel_size, stride, padding, dilation, ceil = geometry
        if x.ndim < rank:
            raise ShapeError(f"cannot apply {name} to shape {list(x.shape)}: it pools {_WORDS[rank]}")
        self.kernel = sizes_of(name, "kernel_size", kernel_size, 1, rank)
        self.stride = self.kernel if stride is None else sizes_of(name, "stride", stride, 1, rank)
        self.border = sizes_of(name, "padding", padding, 0, rank)
        self.dilation = sizes_of(name, "dilation", dilation, 1, rank)
        if [1 for p, k in zip(self.border, self.kernel, strict=True) if p > k // 2]:
            raise ShapeError(
                f"cannot apply {name} with padding {self.border} and kernel_size {self.kernel}: padding is at most "
                "half of the kernel"
            )
        self.beyond = self._beyond(x.shape[-rank:]) if ceil else (0,) * rank

    def _beyond(self, sizes: Sizes) -> Sizes:
        """Return how far the last windows reach over the padded end if they need only begin before it."""
        out = []
        for n, k, s, p, d in zip(sizes, self.kernel, self.stride, self.border, self.dilation, strict=True):
            span = d * (k - 1) + 1
            count = -(-(n + 2 * p - span) // s) + 1
            if (count - 1) * s >= n + p:  # a window that begins in the right padding is none
                count -= 1
            out.append(max(0, (count - 1) * s + span - (n + 2 * p)))
        return tuple(out)

    @property
    def axes(self) -> Sizes:
        """The axes within windows."""
        return tuple(range(-len(self.kernel), 0))

    @property
    def facts(self) -> tuple[Sizes, Sizes, Sizes, Sizes, Sizes]:
        """Extents, stride, padding before and after, dilation."""
        after = tuple(p + b for p, b in zip(self.border, self.beyond, strict=True))
        return self.kernel, self.stride, self.border, after, self.dilation

    def laid(self, xp: Any, x: Any) -> Any:
        """Return the windows over x as it is."""
        return xp.windows_(x, self.kernel, self.stride, self.dilation)


def _max_pool(xp: Any, rank: int, x: Any, *geometry: Any) -> Any:
    windows = _Windows(f"max_pool{rank}d", x, rank, *geometry)
    own = dtypes.KINDS[x.dtype] == "float" and 0 not in x.shape and xp.has_op_("max_pool", x)
    if not own:
        return pooled(xp, x, *windows.facts)
    if max(windows.dilation) > 1 and any(windows.border):  # a window may have no element but padding
        return xp.max_pool_(x, *windows.facts)
    return maxima_first(xp, x, rank, lambda node: xp.max_pool_(node, *windows.facts))


def _avg_pool(xp: Any, rank: int, x: Any, count_include_pad: Any, *geometry: Any) -> Any:
    name = f"avg_pool{rank}d"
    x = floating(xp, name, x)
    windows = _Windows(name, x, rank, *geometry[:-1], 1, geometry[-1])
    seen = windows_over(xp, x, 0, *windows.facts)
    if not any(windows.beyond) and (count_include_pad or not any(windows.border)):
        return xp.mean(seen, axis=windows.axes)
    inside = xp.ones(x.shape[-rank:], dtype=x.dtype)
    inside = bordered(xp, inside, windows.border, windows.border, 1 if count_include_pad else 0)
    counts = xp.sum(windows.laid(xp, bordered(xp, inside, (0,) * rank, windows.beyond, 0)), axis=windows.axes)
    return xp.sum(seen, axis=windows.axes) / counts


def _window_reference(np: Any, x: Any, k: Any, more: dict[str, Any], rank: int, over: Callable[..., Any]) -> Any:
    """Return over(elements, axes, padded places in the window) for each window, one by one."""
    facts = {"stride": None, "padding": 0, "dilation": 1, "ceil_mode": False, **more}
    kernel = np.broadcast_to(k, rank)
    step = kernel if facts["stride"] is None else np.broadcast_to(facts["stride"], rank)
    pad, apart = np.broadcast_to(facts["padding"], rank), np.broadcast_to(facts["dilation"], rank)
    size = np.array(x.shape[-rank:])
    span = apart * (kernel - 1) + 1
    room = (size + 2 * pad - span) / step
    counts = (np.ceil(room) if facts["ceil_mode"] else np.floor(room)).astype(int) + 1
    if facts["ceil_mode"]:
        counts -= (counts - 1) * step >= size + pad
    out = np.zeros((*x.shape[:-rank], *counts))
    for at in np.ndindex(*counts):
        first = np.array(at) * step - pad
        lines = [b + np.arange(n) * d for b, n, d in zip(first, kernel, apart, strict=True)]
        padded = np.prod([np.sum(v < s + p) for v, s, p in zip(lines, size, pad, strict=True)])
        inside = [v[(v >= 0) & (v < s)] for v, s in zip(lines, size, strict=True)]
        out[(..., *at)] = over(x[(..., *np.ix_(*inside))], tuple(range(-rank, 0)), padded)
    return out


def _max_reference(rank: int) -> Any:
    return lambda np, x, k, **more: _window_reference(np, x, k, more, rank, lambda v, axes, _: np.max(v, axis=axes))


def _avg_reference(rank: int) -> Any:
    def reference(np: Any, x: Any, k: Any, count_include_pad: bool = True, **more: Any) -> Any:
        def over(v: Any, axes: Any, padded: int) -> Any:
            return np.sum(v, axis=axes) / padded if count_include_pad else np.mean(v, axis=axes)

        return _window_reference(np, x, k, more, rank, over)

    return reference


def _samples(rank: int, **also: Any) -> Any:
    sizes = {1: (7,), 2: (7, 6), 3: (5, 4, 5)}[rank]
    more = {1: (1,), 2: (2, 1), 3: (2, 1, 1)}[rank]

    def samples(draw: Any) -> Any:
        x = draw.array((2, 3, *sizes), -2, 2)
        plain: list[Any] = [
            ((x, 2), {}),
            ((x, (3, 2, 2)[:rank]), {"stride": 1}),
            ((x, 3), {"stride": 2, "padding": 1}),
            ((x, 3), {"stride": more, "padding": 1, "ceil_mode": True}),
        ]
        return [*plain, ((draw.array((1, *sizes), -2, 2), 2), {"stride": 2, "padding": 1, "ceil_mode": True, **also})]

    return samples


@composite(reference=_max_reference(1), samples=_samples(1, dilation=2))
def max_pool1d(
    xp: Any,
    x: Any,
    kernel_size: Any,
    /,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: Any = False,
) -> Any:
    """The maximum of each window of the last axis; see `max_pool2d`."""
    return _max_pool(xp, 1, x, kernel_size, stride, padding, dilation, ceil_mode)


@composite(reference=_max_reference(2), samples=_samples(2, dilation=(1, 2)))
def max_pool2d(
    xp: Any,
    x: Any,
    kernel_size: Any,
    /,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: Any = False,
) -> Any:
    """The maximum of each window of the last two axes; windows touch unless *stride* is given.

    Equal maxima share the gradient. With *ceil_mode* a window may reach over the end.
    """
    return _max_pool(xp, 2, x, kernel_size, stride, padding, dilation, ceil_mode)


@composite(reference=_max_reference(3), samples=_samples(3))
def max_pool3d(
    xp: Any,
    x: Any,
    kernel_size: Any,
    /,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: Any = False,
) -> Any:
    """The maximum of each window of the last three axes; see `max_pool2d`."""
    return _max_pool(xp, 3, x, kernel_size, stride, padding, dilation, ceil_mode)


@composite(reference=_avg_reference(1), samples=_samples(1, count_include_pad=False))
def avg_pool1d(
    xp: Any,
    x: Any,
    kernel_size: Any,
    /,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: Any = False,
    count_include_pad: Any = True,
) -> Any:
    """The mean of each window of the last axis; see `avg_pool2d`."""
    return _avg_pool(xp, 1, x, count_include_pad, kernel_size, stride, padding, ceil_mode)


@composite(reference=_avg_reference(2), samples=_samples(2, count_include_pad=False))
def avg_pool2d(
    xp: Any,
    x: Any,
    kernel_size: Any,
    /,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: Any = False,
    count_include_pad: Any = True,
) -> Any:
    """The mean of each window of the last two axes; padded zeros count unless *count_include_pad* is false.

    With *ceil_mode* a window may reach over the end; what lies beyond the padding never counts.
    """
    return _avg_pool(xp, 2, x, count_include_pad, kernel_size, stride, padding, ceil_mode)


@composite(reference=_avg_reference(3), samples=_samples(3, count_include_pad=False))
def avg_pool3d(
    xp: Any,
    x: Any,
    kernel_size: Any,
    /,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: Any = False,
    count_include_pad: Any = True,
) -> Any:
    """The mean of each window of the last three axes; see `avg_pool2d`."""
    return _avg_pool(xp, 3, x, count_include_pad, kernel_size, stride, padding, ceil_mode)


def _adaptive(xp: Any, name: str, rank: int, x: Any, output_size: Any, over: Callable[..., Any]) -> Any:
    """Reduce one axis after the other to its size in the result.

    Element i of n covers the places from floor(i * size / n) to ceil((i + 1) * size / n).
    """
    if x.ndim < rank:
        raise ShapeError(f"cannot apply {name} to shape {list(x.shape)}: it pools {_WORDS[rank]}")
    given = tuple(output_size) if isinstance(output_size, (tuple, list)) else (output_size,) * rank
    own = x.shape[-rank:]
    wanted = [n if size is None else size for n, size in zip(own, given, strict=True)] if len(given) == rank else given
    for k, n in enumerate(sizes_of(name, "output_size", tuple(wanted), 1, rank)):
        axis, size = x.ndim - rank + k, own[k]
        if size == 0:
            raise ShapeError(f"cannot apply {name} to shape {list(x.shape)}: axis {axis} is empty")
        if n == size:
            continue
        if size % n == 0:
            split = xp.reshape(x, (*x.shape[:axis], n, size // n, *x.shape[axis + 1 :]))
            x = over(split, axis + 1, False)
            continue
        bounds = [(i * size // n, -(-(i + 1) * size // n)) for i in range(n)]
        x = xp.concat([over(part(xp, x, axis, low, high - low), axis, True) for low, high in bounds], axis=axis)
    return x


def _adaptive_reference(rank: int, name: str) -> Any:
    def reference(np: Any, x: Any, size: Any) -> Any:
        given = size if isinstance(size, tuple) else (size,) * rank
        sizes = [n if m is None else m for n, m in zip(x.shape[-rank:], given, strict=True)]
        out = np.zeros((*x.shape[:-rank], *sizes))
        for at in np.ndindex(*sizes):
            cut = [slice(i * n // m, -(-(i + 1) * n // m)) for i, n, m in zip(at, x.shape[-rank:], sizes, strict=True)]
            out[(..., *at)] = getattr(np, name)(x[(..., *cut)], axis=tuple(range(-rank, 0)))
        return out

    return reference


def _adaptive_samples(rank: int) -> Any:
    sizes = (7, 6, 5)[:rank]
    cases = (1, (3, 4, 5)[:rank], (None, 3, 2)[-rank:], (7, 2, 1)[:rank])
    return lambda draw: [((draw.array((2, 2, *sizes), -2, 2), size), {}) for size in cases]


def _mean_over(xp: Any) -> Callable[..., Any]:
    return lambda v, axis, keep: xp.mean(v, axis=axis, keepdims=keep)


def _max_over(xp: Any) -> Callable[..., Any]:
    return lambda v, axis, keep: xp.max(v, axis=axis, keepdims=keep)


@composite(reference=_adaptive_reference(1, "mean"), samples=_adaptive_samples(1))
def adaptive_avg_pool1d(xp: Any, x: Any, output_size: Any, /) -> Any:
    """The means of *output_size* windows that cover the last axis evenly."""
    return _adaptive(xp, "adaptive_avg_pool1d", 1, floating(xp, "pooling", x), output_size, _mean_over(xp))


@composite(reference=_adaptive_reference(2, "mean"), samples=_adaptive_samples(2))
def adaptive_avg_pool2d(xp: Any, x: Any, output_size: Any, /) -> Any:
    """The means of windows that cover the last two axes evenly.

    *output_size* is an int or a pair; None keeps the size of an axis.
    """
    return _adaptive(xp, "adaptive_avg_pool2d", 2, floating(xp, "pooling", x), output_size, _mean_over(xp))


@composite(reference=_adaptive_reference(3, "mean"), samples=_adaptive_samples(3))
def adaptive_avg_pool3d(xp: Any, x: Any, output_size: Any, /) -> Any:
    """The means of windows that cover the last three axes evenly; see `adaptive_avg_pool2d`."""
    return _adaptive(xp, "adaptive_avg_pool3d", 3, floating(xp, "pooling", x), output_size, _mean_over(xp))


@composite(reference=_adaptive_reference(1, "max"), samples=_adaptive_samples(1))
def adaptive_max_pool1d(xp: Any, x: Any, output_size: Any, /) -> Any:
    """The maxima of *output_size* windows that cover the last axis evenly."""
    return _adaptive(xp, "adaptive_max_pool1d", 1, x, output_size, _max_over(xp))


@composite(reference=_adaptive_reference(2, "max"), samples=_adaptive_samples(2))
def adaptive_max_pool2d(xp: Any, x: Any, output_size: Any, /) -> Any:
    """The maxima of windows that cover the last two axes evenly; see `adaptive_avg_pool2d`."""
    return _adaptive(xp, "adaptive_max_pool2d", 2, x, output_size, _max_over(xp))


@composite(reference=_adaptive_reference(3, "max"), samples=_adaptive_samples(3))
def adaptive_max_pool3d(xp: Any, x: Any, output_size: Any, /) -> Any:
    """The maxima of windows that cover the last three axes evenly; see `adaptive_avg_pool2d`."""
    return _adaptive(xp, "adaptive_max_pool3d", 3, x, output_size, _max_over(xp))
