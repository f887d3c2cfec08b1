"""Convolutions and pooling over images [N, C, H, W].

Here: conv1d, conv2d, max_pool2d, avg_pool2d, made of padding, overlapping windows (a view) and a product or a
reduction.
Not here: the window view (`layout.py`), layers.
"""

import operator
from typing import Any

from polygrad import dtypes
from polygrad.errors import DTypeError, ShapeError
from polygrad.ops.internal import cast
from polygrad.ops.statistics import floating, wide
from polygrad.ops.table import composite

Pair = tuple[int, int]


def _pair(name: str, what: str, value: Any, least: int) -> Pair:
    """Return an int or a pair of ints as a pair, none below *least*."""
    given = tuple(value) if isinstance(value, (tuple, list)) else (value, value)
    try:
        out = tuple(operator.index(v) for v in given)
    except TypeError:
        out = ()
    if len(out) != 2 or min(out) < least:
        raise ShapeError(f"cannot apply {name} with {what} {value!r}: it is an int or a pair of ints, at least {least}")
    return out[0], out[1]


def _borders(padding: Any, kernel: Pair, stride: Pair, dilation: Pair) -> tuple[Pair, Pair]:
    """Return what is added before and after the rows and the columns."""
    if padding == "valid":
        return (0, 0), (0, 0)
    if padding == "same":
        if stride != (1, 1):
            raise ShapeError(
                f"cannot pad 'same' with stride {stride}: the result has the image's size only with stride 1"
            )
        spans = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
        return (spans[0] // 2, spans[1] // 2), (spans[0] - spans[0] // 2, spans[1] - spans[1] // 2)
    if isinstance(padding, str):
        raise ShapeError(f"cannot pad {padding!r}: padding is an int, a pair of ints, 'same' or 'valid'")
    both = _pair("a convolution", "padding", padding, 0)
    return both, both


def _bordered(xp: Any, x: Any, before: Pair, after: Pair, fill: Any) -> Any:
    if before == after == (0, 0):
        return x
    lead = (0,) * (x.ndim - 2)
    return xp.pad_(x, lead + before, lead + after, fill)


def _check(x: Any, weight: Any, groups: int) -> None:
    if x.ndim != 4 or weight.ndim != 4:
        raise ShapeError(
            f"cannot convolve shapes {list(x.shape)} and {list(weight.shape)}: images are [N, C, H, W], weights "
            "[out, C / groups, height, width]"
        )
    if groups < 1 or x.shape[1] != weight.shape[1] * groups or weight.shape[0] % groups or 0 in weight.shape:
        raise ShapeError(
            f"cannot convolve images of {x.shape[1]} channels with weights {list(weight.shape)} in {groups} groups: "
            "each group "
            f"has {weight.shape[1]} channels, and outputs must divide by the groups"
        )


def _conv_reference(
    np: Any, x: Any, w: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Any:
    (s, t), (d, e) = _pair("", "", stride, 1), _pair("", "", dilation, 1)
    before, after = _borders(padding, w.shape[2:], (s, t), (d, e))
    x = np.pad(x, ((0, 0), (0, 0), (before[0], after[0]), (before[1], after[1])))
    n, _, h, width = x.shape
    o, inside, kh, kw = w.shape
    rows, columns = (h - d * (kh - 1) - 1) // s + 1, (width - e * (kw - 1) - 1) // t + 1
    out = np.zeros((n, o, rows, columns), x.dtype)
    for i, j, g in np.ndindex(kh, kw, groups):
        seen = x[
            :,
            g * inside : (g + 1) * inside,
            i * d : i * d + (rows - 1) * s + 1 : s,
            j * e : j * e + (columns - 1) * t + 1 : t,
        ]
        to = slice(g * (o // groups), (g + 1) * (o // groups))
        out[:, to] += np.einsum("nchw,oc->nohw", seen, w[to, :, i, j])
    return out if bias is None else out + np.reshape(bias, (-1, 1, 1))


def _conv_samples(draw: Any) -> Any:
    cases: Any = (
        ((1, 2, 5, 6), (3, 2, 3, 2), {}), ((2, 1, 8, 7), (2, 1, 3, 3), {"stride": 3}), ((1, 1, 16, 16),
        (1, 1, 7, 7), {"stride": 3, "padding": 2}),
        ((1, 2, 9, 9), (2, 2, 3, 3), {"stride": 2, "padding": 2, "dilation": 2}), ((1, 4, 5, 5),
        (4, 1, 3, 3), {"stride": 2, "padding": 1, "groups": 4}),
        ((2, 4, 4, 4), (6, 2, 2, 2), {"groups": 2}), ((1, 3, 4, 4), (2, 3, 1, 1), {"stride": 2}), ((1, 1, 3, 3),
        (1, 1, 3, 3), {"padding": 2}),
        ((2, 2, 4, 3), (2, 2, 4, 3), {}), ((1, 2, 5, 4), (2, 2, 2, 3), {"padding": "same"}), ((0, 2, 3, 3),
        (2, 2, 2, 2), {}),
        ((1, 2, 4, 4), (4, 1, 2, 2), {"groups": 2, "padding": (1, 0), "stride": (1, 2), "dilation": (2, 1)}),
    )  # fmt: skip
    out = [((draw.array(x, -1, 1), draw.array(w, -1, 1)), more) for x, w, more in cases]
    biased = (draw.array((1, 2, 4, 4), -1, 1), draw.array((3, 2, 2, 2), -1, 1), draw.array((3,), -1, 1))
    return [*out, (biased, {"padding": "valid"})]


@composite(reference=_conv_reference, samples=_conv_samples, tolerance=4.0)  # sums of up to 49 products
def conv2d(
    xp: Any,
    x: Any,
    weight: Any,
    /,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: Any = 1,
) -> Any:
    """The cross-correlation of images [N, C, H, W] with weights [out, C / groups, height, width].

    *stride* and *dilation* are an int or a pair; *padding* too, or "same" or "valid".
    """
    groups = operator.index(groups)
    _check(x, weight, groups)
    step, apart = _pair("conv2d", "stride", stride, 1), _pair("conv2d", "dilation", dilation, 1)
    dtype = dtypes.promote(x.dtype, weight.dtype)
    if dtype is dtypes.bool_:
        raise DTypeError("cannot convolve bool arrays: cast with .astype(...)")
    x, weight = cast(xp, x, dtype), cast(xp, weight, dtype)
    kernel = (weight.shape[2], weight.shape[3])
    before, after = _borders(padding, kernel, step, apart)
    seen = xp.windows_(_bordered(xp, x, before, after, 0), kernel, step, apart)
    out = (
        _depthwise(xp, seen, weight)
        if weight.shape[1] == 1 and groups == weight.shape[0]
        else _product(xp, seen, weight, groups)
    )
    return out if bias is None else out + xp.reshape(bias, (bias.shape[0], 1, 1))


def _depthwise(xp: Any, seen: Any, weight: Any) -> Any:
    """Return the convolution of each channel with its own kernel: a sum over windows, without a product of matrices."""
    n, c, rows, columns, high, across = seen.shape
    if 0 in seen.shape:
        return xp.zeros((n, c, rows, columns), dtype=seen.dtype)
    spread = xp.reshape(weight, (c, 1, 1, high, across))
    total = xp.sum_(wide(xp, seen) * wide(xp, spread), (4, 5))
    return xp.reshape(cast(xp, total, seen.dtype), (n, c, rows, columns))


def _product(xp: Any, seen: Any, weight: Any, groups: int) -> Any:
    """Return the convolution as a product of matrices for each group: windows as rows, kernels as columns."""
    n, c, rows, columns, high, across = seen.shape
    outputs, inside = weight.shape[0], (c // groups) * high * across
    if groups == 1:
        lines = xp.reshape(xp.permute_dims(seen, (0, 2, 3, 1, 4, 5)), (n * rows * columns, inside))
        out = xp.matmul(lines, xp.swap_last(xp.reshape(weight, (outputs, inside))))
        return xp.permute_dims(xp.reshape(out, (n, rows, columns, outputs)), (0, 3, 1, 2))
    parts = xp.reshape(seen, (n, groups, c // groups, rows, columns, high, across))
    lines = xp.reshape(xp.permute_dims(parts, (1, 0, 3, 4, 2, 5, 6)), (groups, n * rows * columns, inside))
    out = xp.matmul(lines, xp.swap_last(xp.reshape(weight, (groups, outputs // groups, inside))))
    whole = xp.reshape(out, (groups, n, rows, columns, outputs // groups))
    return xp.reshape(xp.permute_dims(whole, (1, 0, 4, 2, 3)), (n, outputs, rows, columns))


def _conv1d_reference(
    np: Any, x: Any, w: Any, bias: Any = None, stride: int = 1, padding: Any = 0, dilation: int = 1, groups: int = 1
) -> Any:
    flat = padding if isinstance(padding, str) else (0, padding)
    return _conv_reference(np, x[:, :, None], w[:, :, None], bias, (1, stride), flat, (1, dilation), groups)[:, :, 0]


@composite(
    reference=_conv1d_reference,
    samples=lambda draw: [
        ((draw.array((2, 3, 8), -1, 1), draw.array((4, 3, 3), -1, 1)), {}),
        (
            (draw.array((1, 4, 9), -1, 1), draw.array((4, 2, 2), -1, 1)),
            {"stride": 2, "padding": 1, "dilation": 2, "groups": 2},
        ),
    ],
    tolerance=4.0,  # as conv2d
)
def conv1d(
    xp: Any,
    x: Any,
    weight: Any,
    /,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: Any = 1,
) -> Any:
    """The cross-correlation of [N, C, L] with weights [out, C / groups, length]."""
    if x.ndim != 3 or weight.ndim != 3:
        raise ShapeError(
            f"cannot convolve shapes {list(x.shape)} and {list(weight.shape)}: signals are [N, C, L], weights [out, "
            "C / groups, length]"
        )
    border = padding if isinstance(padding, str) else (0, padding)
    lifted = xp.expand_dims(x, 2), xp.expand_dims(weight, 2)
    out = xp.conv2d(*lifted, bias, (1, stride), border, (1, dilation), groups)
    return xp.squeeze(out, 2)


def _pool(name: str, x: Any, kernel_size: Any, stride: Any, padding: Any) -> tuple[Pair, Pair, Pair]:
    """Return kernel, stride and padding of a pooling as pairs, checked."""
    if x.ndim < 2:
        raise ShapeError(f"cannot apply {name} to shape {list(x.shape)}: it pools the last two axes")
    kernel = _pair(name, "kernel_size", kernel_size, 1)
    step = kernel if stride is None else _pair(name, "stride", stride, 1)
    border = _pair(name, "padding", padding, 0)
    if [1 for p, k in zip(border, kernel, strict=True) if p > k // 2]:
        raise ShapeError(
            f"cannot apply {name} with padding {border} and kernel_size {kernel}: padding is at most half of the kernel"
        )
    return kernel, step, border


def _pool_reference(np: Any, x: Any, kernel: Any, stride: Any, padding: Any, fill: float, over: Any) -> Any:
    (kh, kw), (p, q) = _pair("", "", kernel, 1), _pair("", "", padding, 0)
    s, t = (kh, kw) if stride is None else _pair("", "", stride, 1)
    x = np.pad(x, [(0, 0)] * (x.ndim - 2) + [(p, p), (q, q)], constant_values=fill)
    rows, columns = (x.shape[-2] - kh) // s + 1, (x.shape[-1] - kw) // t + 1
    out = np.zeros((*x.shape[:-2], rows, columns))
    for i, j in np.ndindex(rows, columns):
        out[..., i, j] = over(x[..., i * s : i * s + kh, j * t : j * t + kw], axis=(-2, -1))
    return out


def _pool_samples(draw: Any) -> Any:
    x = draw.array((2, 3, 7, 6), -2, 2)
    return [
        ((x, 2), {}),
        ((x, (3, 2)), {"stride": 1}),
        ((x, 3), {"stride": 2, "padding": 1}),
        ((x, 3), {"stride": (2, 1), "padding": (1, 0)}),
    ]


@composite(
    reference=lambda np, x, k, stride=None, padding=0: _pool_reference(np, x, k, stride, padding, -np.inf, np.max),
    samples=_pool_samples,
)
def max_pool2d(xp: Any, x: Any, kernel_size: Any, /, stride: Any = None, padding: Any = 0) -> Any:
    """The maximum of each window of the last two axes; windows touch unless *stride* is given.

    Equal maxima share the gradient.
    """
    kernel, step, border = _pool("max_pool2d", x, kernel_size, stride, padding)
    seen = xp.windows_(_bordered(xp, x, border, border, dtypes.lowest(x.dtype)), kernel, step, (1, 1))
    return xp.max(seen, axis=(-2, -1))


def _avg_reference(
    np: Any, x: Any, k: Any, stride: Any = None, padding: Any = 0, count_include_pad: bool = True
) -> Any:
    if count_include_pad:
        return _pool_reference(np, x, k, stride, padding, 0, np.mean)
    counts = _pool_reference(np, np.ones_like(x), k, stride, padding, 0, np.sum)
    return _pool_reference(np, x, k, stride, padding, 0, np.sum) / counts


@composite(
    reference=_avg_reference,
    samples=lambda draw: [
        *_pool_samples(draw),
        ((draw.array((1, 5, 5), -2, 2), 3), {"stride": 2, "padding": 1, "count_include_pad": False}),
    ],
)
def avg_pool2d(
    xp: Any, x: Any, kernel_size: Any, /, stride: Any = None, padding: Any = 0, count_include_pad: Any = True
) -> Any:
    """The mean of each window of the last two axes; padded zeros count unless *count_include_pad* is false."""
    x = floating(xp, "avg_pool2d", x)
    kernel, step, border = _pool("avg_pool2d", x, kernel_size, stride, padding)
    seen = xp.windows_(_bordered(xp, x, border, border, 0), kernel, step, (1, 1))
    if count_include_pad or border == (0, 0):
        return xp.mean(seen, axis=(-2, -1))
    inside = _bordered(xp, xp.ones(x.shape[-2:], dtype=x.dtype), border, border, 0)
    counts = xp.sum(xp.windows_(inside, kernel, step, (1, 1)), axis=(-2, -1))
    return xp.sum(seen, axis=(-2, -1)) / counts
