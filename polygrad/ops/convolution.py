"""Convolutions over signals [N, C, L], images [N, C, H, W] and volumes [N, C, D, H, W].

Here: conv1d, conv2d, conv3d and conv_transpose1d, 2d, 3d: what they take, and the choice between the device's own op
(`convolution_steps.py`) and windows and a product (`convolution_fallback.py`).
Not here: how either computes, pooling (`pooling.py`), layers.
"""

import functools
import operator
from typing import Any

from polygrad import dtypes
from polygrad.errors import DTypeError, ShapeError
from polygrad.ops.convolution_fallback import Sizes, convolved, scattered
from polygrad.ops.internal import cast
from polygrad.ops.table import composite

_SUBJECTS = {1: "signals are [N, C, L]", 2: "images are [N, C, H, W]", 3: "volumes are [N, C, D, H, W]"}
_FIELDS = {1: "length", 2: "height, width", 3: "depth, height, width"}
_COUNTED = {1: "an int", 2: "an int or a pair of ints", 3: "an int or three ints"}


def sizes_of(name: str, what: str, value: Any, least: int, rank: int) -> Sizes:
    """Return an int, or one int for each of *rank* axes, as a tuple; none may be below *least*."""
    given = tuple(value) if isinstance(value, (tuple, list)) else (value,) * rank
    try:
        out = tuple(operator.index(v) for v in given)
    except TypeError:
        out = ()
    if len(out) != rank or min(out) < least:
        raise ShapeError(f"cannot apply {name} with {what} {value!r}: it is {_COUNTED[rank]}, at least {least}")
    return out


def _borders(padding: Any, kernel: Sizes, stride: Sizes, dilation: Sizes) -> tuple[Sizes, Sizes]:
    """Return what is added before and after each axis."""
    rank = len(kernel)
    if padding == "valid":
        return (0,) * rank, (0,) * rank
    if padding == "same":
        if stride != (1,) * rank:
            raise ShapeError(
                f"cannot pad 'same' with stride {stride}: the result has the image's size only with stride 1"
            )
        spans = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
        return tuple(n // 2 for n in spans), tuple(n - n // 2 for n in spans)
    if isinstance(padding, str):
        raise ShapeError(f"cannot pad {padding!r}: padding is {_COUNTED[rank]}, 'same' or 'valid'")
    both = sizes_of("a convolution", "padding", padding, 0, rank)
    return both, both


def _check(x: Any, weight: Any, groups: int, rank: int) -> None:
    if x.ndim != rank + 2 or weight.ndim != rank + 2:
        raise ShapeError(
            f"cannot convolve shapes {list(x.shape)} and {list(weight.shape)}: {_SUBJECTS[rank]}, weights "
            f"[out, C / groups, {_FIELDS[rank]}]"
        )
    if groups < 1 or x.shape[1] != weight.shape[1] * groups or weight.shape[0] % groups or 0 in weight.shape:
        raise ShapeError(
            f"cannot convolve images of {x.shape[1]} channels with weights {list(weight.shape)} in {groups} groups: "
            "each group "
            f"has {weight.shape[1]} channels, and outputs must divide by the groups"
        )


def _alike(xp: Any, x: Any, weight: Any) -> tuple[Any, Any]:
    """Return both operands in one dtype."""
    dtype = dtypes.promote(x.dtype, weight.dtype)
    if dtype is dtypes.bool_:
        raise DTypeError("cannot convolve bool arrays: cast with .astype(...)")
    return cast(xp, x, dtype), cast(xp, weight, dtype)


def _biased(xp: Any, out: Any, bias: Any, rank: int) -> Any:
    if bias is None:
        return out
    if bias.shape != (out.shape[1],):
        raise ShapeError(
            f"cannot add a bias of shape {list(bias.shape)} to {out.shape[1]} feature maps: it has one value for each"
        )
    return out + xp.reshape(bias, (bias.shape[0],) + (1,) * rank)


def _has_own(xp: Any, op: str, x: Any, weight: Any) -> bool:
    """Return whether the device computes convolutions of this dtype itself; of integers it does not."""
    return dtypes.KINDS[x.dtype] == "float" and bool(xp.has_op_(op, x, weight))


def _convolve(xp: Any, rank: int, x: Any, weight: Any, bias: Any, *geometry: Any) -> Any:
    """Return a convolution over *rank* axes; *geometry* is stride, padding, dilation and groups."""
    stride, padding, dilation, count = geometry
    name, groups = f"conv{rank}d", operator.index(count)
    _check(x, weight, groups, rank)
    step, apart = (sizes_of(name, what, v, 1, rank) for what, v in (("stride", stride), ("dilation", dilation)))
    x, weight = _alike(xp, x, weight)
    before, after = _borders(padding, weight.shape[2:], step, apart)
    own = 0 not in x.shape and _has_own(xp, "convolution", x, weight)
    out = (xp.conv_ if own else functools.partial(convolved, xp))(x, weight, step, before, after, apart, groups)
    return _biased(xp, out, bias, rank)


def _conv_reference(
    np: Any, x: Any, w: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Any:
    rank = x.ndim - 2
    step, apart = sizes_of("", "", stride, 1, rank), sizes_of("", "", dilation, 1, rank)
    before, after = _borders(padding, w.shape[2:], step, apart)
    x = np.pad(x, ((0, 0), (0, 0), *zip(before, after, strict=True)))
    o, inside, *kernel = w.shape
    places = [(n - d * (k - 1) - 1) // s + 1 for n, k, s, d in zip(x.shape[2:], kernel, step, apart, strict=True)]
    out = np.zeros((x.shape[0], o, *places), x.dtype)
    for g, *at in np.ndindex(groups, *kernel):
        cut = [slice(i * d, i * d + (n - 1) * s + 1, s) for i, d, n, s in zip(at, apart, places, step, strict=True)]
        seen = x[(slice(None), slice(g * inside, (g + 1) * inside), *cut)]
        to = slice(g * (o // groups), (g + 1) * (o // groups))
        out[:, to] += np.einsum("nc...,oc->no...", seen, w[(to, slice(None), *at)])
    return out if bias is None else out + np.reshape(bias, (-1, *(1,) * rank))


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
    return _convolve(xp, 2, x, weight, bias, stride, padding, dilation, groups)


@composite(
    reference=_conv_reference,
    samples=lambda draw: [
        ((draw.array((2, 3, 8), -1, 1), draw.array((4, 3, 3), -1, 1)), {}),
        (
            (draw.array((1, 4, 9), -1, 1), draw.array((4, 2, 2), -1, 1)),
            {"stride": 2, "padding": 1, "dilation": 2, "groups": 2},
        ),
        ((draw.array((2, 3, 6), -1, 1), draw.array((3, 1, 3), -1, 1)), {"padding": "same", "groups": 3}),
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
    """The cross-correlation of signals [N, C, L] with weights [out, C / groups, length]."""
    return _convolve(xp, 1, x, weight, bias, stride, padding, dilation, groups)


@composite(
    reference=_conv_reference,
    samples=lambda draw: [
        ((draw.array((1, 2, 4, 3, 5), -1, 1), draw.array((3, 2, 2, 2, 3), -1, 1), draw.array((3,), -1, 1)), {}),
        (
            (draw.array((1, 2, 5, 4, 4), -1, 1), draw.array((4, 1, 2, 3, 2), -1, 1)),
            {"stride": (2, 1, 2), "padding": (1, 1, 0), "dilation": (1, 2, 1), "groups": 2},
        ),
    ],
    tolerance=4.0,  # as conv2d
)
def conv3d(
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
    """The cross-correlation of volumes [N, C, D, H, W] with weights [out, C / groups, depth, height, width]."""
    return _convolve(xp, 3, x, weight, bias, stride, padding, dilation, groups)


def _check_transposed(x: Any, weight: Any, groups: int, rank: int) -> None:
    if x.ndim != rank + 2 or weight.ndim != rank + 2:
        raise ShapeError(
            f"cannot convolve shapes {list(x.shape)} and {list(weight.shape)} transposed: {_SUBJECTS[rank]}, weights "
            f"[C, out / groups, {_FIELDS[rank]}]"
        )
    if groups < 1 or x.shape[1] != weight.shape[0] or x.shape[1] % groups or 0 in weight.shape:
        raise ShapeError(
            f"cannot convolve {x.shape[1]} channels with weights {list(weight.shape)} in {groups} groups transposed: "
            "the weights' first axis has one entry for each channel, and channels must divide by the groups"
        )


def _convolve_transposed(xp: Any, rank: int, x: Any, weight: Any, bias: Any, *geometry: Any) -> Any:
    """Return the transpose of a convolution: what its gradient does; a convolution of x with zeros between elements.

    *geometry* is stride, padding, output_padding, groups and dilation.
    """
    stride, padding, output_padding, count, dilation = geometry
    name, groups = f"conv_transpose{rank}d", operator.index(count)
    _check_transposed(x, weight, groups, rank)
    step, apart = (sizes_of(name, what, v, 1, rank) for what, v in (("stride", stride), ("dilation", dilation)))
    border = sizes_of(name, "padding", padding, 0, rank)
    extra = sizes_of(name, "output_padding", output_padding, 0, rank)
    if [1 for e, s, d in zip(extra, step, apart, strict=True) if e >= max(s, d)]:
        raise ShapeError(
            f"cannot apply {name} with output_padding {extra}: it must be less than stride {step} or dilation {apart}"
        )
    x, weight = _alike(xp, x, weight)
    kernel = weight.shape[2:]
    spans = [d * (k - 1) for k, d in zip(kernel, apart, strict=True)]
    sizes = [
        (n - 1) * s + 1 + w - 2 * p + e for n, s, w, p, e in zip(x.shape[2:], step, spans, border, extra, strict=True)
    ]
    if min(sizes) < 1:
        raise ShapeError(
            f"cannot apply {name} to shape {list(x.shape)}: with this geometry its result would have sizes {sizes}"
        )
    # An output_padding of a whole stride would be one more place of the convolution whose transpose this is.
    fits = all(e < s for e, s in zip(extra, step, strict=True)) and 0 not in x.shape
    own = fits and _has_own(xp, "convolution_input", x, weight)
    out = (xp.conv_input_ if own else functools.partial(scattered, xp))(
        x, weight, tuple(sizes), step, border, border, apart, groups
    )
    return _biased(xp, out, bias, rank)


def _transposed_reference(np: Any, x: Any, w: Any, bias: Any = None, **geometry: Any) -> Any:
    rank = x.ndim - 2
    wanted = {"stride": 1, "padding": 0, "output_padding": 0, "groups": 1, "dilation": 1, **geometry}
    step, border, extra, apart = (
        np.broadcast_to(wanted[k], rank) for k in ("stride", "padding", "output_padding", "dilation")
    )
    kernel, groups = np.array(w.shape[2:]), wanted["groups"]
    whole = (np.array(x.shape[2:]) - 1) * step + apart * (kernel - 1) + 1 + extra
    out = np.zeros((x.shape[0], w.shape[1] * groups, *whole))
    inputs = x.shape[1] // groups
    for g, *at in np.ndindex(groups, *w.shape[2:]):
        to = [slice(i * d, i * d + (n - 1) * s + 1, s) for i, d, n, s in zip(at, apart, x.shape[2:], step, strict=True)]
        given = slice(g * inputs, (g + 1) * inputs)
        made = np.einsum("nc...,co->no...", x[:, given], w[(given, slice(None), *at)])
        out[(slice(None), slice(g * w.shape[1], (g + 1) * w.shape[1]), *to)] += made
    cut = [slice(p, n - p) for p, n in zip(border, whole, strict=True)]
    out = out[(slice(None), slice(None), *cut)]
    return out if bias is None else out + np.reshape(bias, (-1, *(1,) * rank))


def _transposed_samples(rank: int) -> Any:
    def samples(draw: Any) -> Any:
        x, w = draw.array((2, 4, *(4, 3, 3)[:rank]), -1, 1), draw.array((4, 2, *(3, 2, 2)[:rank]), -1, 1)
        return [
            ((x, w), {}),
            ((x, w, draw.array((2,), -1, 1)), {"stride": 2, "padding": 1, "output_padding": 1}),
            ((x, w), {"stride": 3, "groups": 2, "dilation": 2, "padding": 2}),
        ]

    return samples


@composite(reference=_transposed_reference, samples=_transposed_samples(1), tolerance=4.0)  # as conv2d
def conv_transpose1d(
    xp: Any,
    x: Any,
    weight: Any,
    /,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: Any = 1,
    dilation: Any = 1,
) -> Any:
    """The transpose of `conv1d`: [N, C, L] with weights [C, out / groups, length] to a longer signal."""
    return _convolve_transposed(xp, 1, x, weight, bias, stride, padding, output_padding, groups, dilation)


@composite(reference=_transposed_reference, samples=_transposed_samples(2), tolerance=4.0)  # as conv2d
def conv_transpose2d(
    xp: Any,
    x: Any,
    weight: Any,
    /,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: Any = 1,
    dilation: Any = 1,
) -> Any:
    """The transpose of `conv2d`: [N, C, H, W] with weights [C, out / groups, height, width] to larger images."""
    return _convolve_transposed(xp, 2, x, weight, bias, stride, padding, output_padding, groups, dilation)


@composite(reference=_transposed_reference, samples=_transposed_samples(3), tolerance=4.0)  # as conv2d
def conv_transpose3d(
    xp: Any,
    x: Any,
    weight: Any,
    /,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: Any = 1,
    dilation: Any = 1,
) -> Any:
    """The transpose of `conv3d`: [N, C, D, H, W] with weights [C, out / groups, depth, height, width]."""
    return _convolve_transposed(xp, 3, x, weight, bias, stride, padding, output_padding, groups, dilation)
