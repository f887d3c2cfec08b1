"""Softmax, normalisations, and what linear layers and embeddings compute.

Here: softmax, softmin, log_softmax, layer_norm, rms_norm, group_norm, instance_norm, batch_norm; each reads its input
once when fused; linear, bilinear, embedding.
Not here: activations, losses, convolutions (modules of these names), parameters and running statistics.
"""

from typing import Any

from polygrad import dtypes, shapes
from polygrad.errors import DTypeError, ShapeError
from polygrad.ops.indexing import checked_label
from polygrad.ops.internal import cast, unwatched
from polygrad.ops.statistics import floating, wide
from polygrad.ops.table import composite


def _along(low: float, high: float) -> Any:
    def samples(draw: Any) -> Any:
        cases = (
            ((5,), -1),
            ((3, 4), -1),
            ((3, 4), 0),
            ((2, 3, 4), (1, 2)),
            ((2, 3, 1), -1),
            ((0, 3), -1),
            ((2, 0), -1),
        )
        return [((draw.array(shape, low, high),), {"axis": axis}) for shape, axis in cases]

    return samples


def _softmax_reference(np: Any, x: Any, axis: Any = -1) -> Any:
    e = np.exp(x)
    return e / np.sum(e, axis=axis, keepdims=True)


def below_top(xp: Any, x: Any, axes: shapes.Shape) -> Any:
    """Return x less its maximum over axes, which is a constant for derivatives: any shift gives the same softmax."""
    return x - xp.max_(unwatched(xp, x), axes)


def _prepared(xp: Any, name: str, x: Any, axis: Any) -> tuple[Any, shapes.Shape]:
    x = floating(xp, name, x)
    return x, shapes.axes(f"apply {name}", axis, x.ndim)


@composite(reference=_softmax_reference, samples=_along(-9, 9), where="main special")
def softmax(xp: Any, x: Any, /, axis: Any = -1) -> Any:
    """exp(x) over its sum along an axis or several, without overflow."""
    x, axes = _prepared(xp, "softmax", x, axis)
    if not axes or 0 in x.shape:
        return xp.ones_like(x)
    e = xp.exp(below_top(xp, wide(xp, x), axes))
    return cast(xp, e / xp.sum_(e, axes), x.dtype)


@composite(reference=lambda np, x, axis=-1: _softmax_reference(np, -x, axis), samples=_along(-9, 9))
def softmin(xp: Any, x: Any, /, axis: Any = -1) -> Any:
    """`softmax` of -x."""
    return xp.softmax(-floating(xp, "softmin", x), axis)


@composite(
    reference=lambda np, x, axis=-1: np.log(_softmax_reference(np, x, axis)),
    samples=_along(-9, 9),
    where="main special",
)
def log_softmax(xp: Any, x: Any, /, axis: Any = -1) -> Any:
    """The logarithm of softmax, accurate where that underflows."""
    x, axes = _prepared(xp, "log_softmax", x, axis)
    if not axes or 0 in x.shape:
        return xp.zeros_like(x)
    z = below_top(xp, wide(xp, x), axes)
    return cast(xp, z - xp.log(xp.sum_(xp.exp(z), axes)), x.dtype)


def _standardise(xp: Any, x: Any, axes: shapes.Shape, eps: float) -> Any:
    away = x - xp.mean(x, axis=axes, keepdims=True)
    return away * xp.rsqrt(xp.mean(away * away, axis=axes, keepdims=True) + eps)


def _scaled(xp: Any, y: Any, weight: Any, bias: Any, dtype: Any) -> Any:
    y = y if weight is None else y * weight
    return cast(xp, y if bias is None else y + bias, dtype)


def _layer_norm_reference(
    np: Any, x: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5, axes: Any = -1
) -> Any:
    y = (x - np.mean(x, axis=axes, keepdims=True)) / np.sqrt(np.var(x, axis=axes, keepdims=True) + eps)
    return y * (1 if weight is None else weight) + (0 if bias is None else bias)


def _norm_samples(*operands: int) -> Any:
    """Return samples for a norm: x alone, and with as many operands of its last axis as asked for."""

    def samples(draw: Any) -> Any:
        extra = tuple(draw.array((4,), -2, 2) for _ in operands)
        return [
            ((draw.array((3, 4), -2, 2),), {}),
            ((draw.array((3, 4), -2, 2), *extra), {"eps": 1e-3}),
            ((draw.array((2, 3, 4), -2, 2), *extra), {"axes": (1, 2)}),
        ]

    return samples


@composite(
    reference=_layer_norm_reference, samples=_norm_samples(0, 1), tolerance=20.0
)  # a row of small variance magnifies rounding
def layer_norm(xp: Any, x: Any, /, weight: Any = None, bias: Any = None, eps: Any = 1e-5, axes: Any = -1) -> Any:
    """x less its mean over axes, over its standard deviation; then times weight and plus bias.

    The result has x's dtype.
    """
    x, over = _prepared(xp, "layer_norm", x, axes)
    return _scaled(xp, _standardise(xp, wide(xp, x), over, eps), weight, bias, x.dtype)


def _rms_norm_reference(np: Any, x: Any, weight: Any = None, eps: float = 1e-6, axes: Any = -1) -> Any:
    y = x / np.sqrt(np.mean(x * x, axis=axes, keepdims=True) + eps)
    return y * (1 if weight is None else weight)


@composite(reference=_rms_norm_reference, samples=_norm_samples(0), tolerance=5.0)
def rms_norm(xp: Any, x: Any, /, weight: Any = None, eps: Any = 1e-6, axes: Any = -1) -> Any:
    """x over its root mean square over axes; then times weight. The result has x's dtype."""
    x, over = _prepared(xp, "rms_norm", x, axes)
    values = wide(xp, x)
    y = values * xp.rsqrt(xp.mean(values * values, axis=over, keepdims=True) + eps)
    return _scaled(xp, y, weight, None, x.dtype)


def _channels(xp: Any, v: Any, rank: int) -> Any:
    """Return a value for each channel, shaped to broadcast over [N, C, ...]."""
    return None if v is None else xp.reshape(v, (v.shape[0],) + (1,) * (rank - 2))


def _group_norm_reference(np: Any, x: Any, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    apart = np.reshape(x, (x.shape[0], groups, -1))
    y = np.reshape(_layer_norm_reference(np, apart, eps=eps), x.shape)
    view = (-1,) + (1,) * (x.ndim - 2)
    return y * (1 if weight is None else np.reshape(weight, view)) + (0 if bias is None else np.reshape(bias, view))


@composite(
    reference=_group_norm_reference,
    samples=lambda draw: [
        ((draw.array((2, 4, 3), -2, 2), 2), {}),
        ((draw.array((2, 4, 2, 3), -2, 2), 1, draw.array((4,), -2, 2), draw.array((4,), -2, 2)), {}),
        ((draw.array((3, 4, 5), -2, 2), 4), {"eps": 1e-3}),
    ],
    tolerance=20.0,  # as layer_norm
)
def group_norm(xp: Any, x: Any, groups: Any, /, weight: Any = None, bias: Any = None, eps: Any = 1e-5) -> Any:
    """`layer_norm` of groups of channels of [N, C, ...]; weight and bias have one value for each channel."""
    x, _ = _prepared(xp, "group_norm", x, ())
    if x.ndim < 2 or groups < 1 or x.shape[1] % groups:
        raise ShapeError(
            f"cannot make {groups} groups of the channels of shape {list(x.shape)}: axis 1 must divide by their number"
        )
    if 0 in x.shape:
        return x
    inside = (x.shape[1] // groups) * shapes.size(x.shape[2:])
    apart = xp.reshape(wide(xp, x), (x.shape[0], groups, inside))
    y = xp.reshape(_standardise(xp, apart, (2,), eps), x.shape)
    return _scaled(xp, y, _channels(xp, weight, x.ndim), _channels(xp, bias, x.ndim), x.dtype)


def _instance_norm_reference(np: Any, x: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    return _group_norm_reference(np, x, x.shape[1], weight, bias, eps)


@composite(
    reference=_instance_norm_reference,
    samples=lambda draw: [
        ((draw.array((2, 4, 5), -2, 2),), {}),
        ((draw.array((2, 3, 4, 2), -2, 2), draw.array((3,), -2, 2), draw.array((3,), -2, 2)), {"eps": 1e-3}),
    ],
    tolerance=20.0,  # as layer_norm
)
def instance_norm(xp: Any, x: Any, /, weight: Any = None, bias: Any = None, eps: Any = 1e-5) -> Any:
    """`layer_norm` of each channel of each example of [N, C, ...]; weight and bias have one value for each channel."""
    if x.ndim < 3 or x.shape[1] == 0:
        raise ShapeError(f"cannot apply instance_norm to shape {list(x.shape)}: it is [N, C, ...], with channels")
    return xp.group_norm(x, x.shape[1], weight, bias, eps)


def _batch_norm_reference(
    np: Any, x: Any, mean: Any, variance: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    view = (-1,) + (1,) * (x.ndim - 2)
    y = (x - np.reshape(mean, view)) / np.sqrt(np.reshape(variance, view) + eps)
    return y * (1 if weight is None else np.reshape(weight, view)) + (0 if bias is None else np.reshape(bias, view))


def _batch_norm_samples(draw: Any) -> Any:
    def channel(low: float) -> Any:
        return draw.array((3,), low, 2)

    x = draw.array((2, 3, 4), -2, 2)
    return [
        ((x, channel(-2), channel(0.5)), {}),
        ((x, channel(-2), channel(0.5), channel(-2), channel(-2)), {"eps": 1e-3}),
    ]


@composite(reference=_batch_norm_reference, samples=_batch_norm_samples, tolerance=5.0)
def batch_norm(
    xp: Any, x: Any, mean: Any, variance: Any, /, weight: Any = None, bias: Any = None, eps: Any = 1e-5
) -> Any:
    """x of shape [N, C, ...] less a mean, over the root of a variance; one value for each channel.

    Then times weight and plus bias. The result has x's dtype.
    """
    x, _ = _prepared(xp, "batch_norm", x, ())
    centre, scale, weight, bias = (_channels(xp, v, x.ndim) for v in (mean, variance, weight, bias))
    return _scaled(xp, (wide(xp, x) - centre) * xp.rsqrt(scale + eps), weight, bias, x.dtype)


def _linear_reference(np: Any, x: Any, weight: Any, bias: Any = None) -> Any:
    return np.matmul(x, np.swapaxes(weight, -1, -2)) + (0 if bias is None else bias)


@composite(
    reference=_linear_reference,
    samples=lambda draw: [
        ((draw.array((2, 3, 4), -1, 1), draw.array((5, 4), -1, 1)), {}),
        ((draw.array((3, 4), -1, 1), draw.array((5, 4), -1, 1), draw.array((5,), -1, 1)), {}),
        ((draw.array((4,), -1, 1), draw.array((5, 4), -1, 1), draw.array((5,), -1, 1)), {}),
    ],
    tolerance=4.0,  # sums of products
)
def linear(xp: Any, x: Any, weight: Any, /, bias: Any = None) -> Any:
    """``x @ weight.T + bias``, with weights [out, in], over the last axis."""
    if x.ndim == 0 or weight.ndim != 2 or x.shape[-1] != weight.shape[1]:
        raise ShapeError(
            f"cannot apply linear to shape {list(x.shape)} with weights {list(weight.shape)}: weights are [out, in], "
            "and the last axis has as many elements as there are inputs"
        )
    out = xp.matmul(x, xp.swap_last(weight))
    return out if bias is None else out + bias


@composite(
    reference=lambda np, a, b, w, bias=None: np.einsum("...i,oij,...j->...o", a, w, b) + (0 if bias is None else bias),
    samples=lambda draw: [
        ((draw.array((2, 4), -1, 1), draw.array((2, 3), -1, 1), draw.array((5, 4, 3), -1, 1)), {}),
        (
            (
                draw.array((2, 3, 2), -1, 1),
                draw.array((2, 3, 2), -1, 1),
                draw.array((1, 2, 2), -1, 1),
                draw.array((1,), -1, 1),
            ),
            {},
        ),
    ],
    tolerance=4.0,  # sums of products
)
def bilinear(xp: Any, x1: Any, x2: Any, weight: Any, /, bias: Any = None) -> Any:
    """The sum of x1[i] * weight[o, i, j] * x2[j] over i and j, for each o, plus bias; over the last axes."""
    if weight.ndim != 3 or x1.shape[:-1] != x2.shape[:-1] or (x1.shape[-1:] + x2.shape[-1:]) != weight.shape[1:]:
        raise ShapeError(
            f"cannot apply bilinear to shapes {list(x1.shape)} and {list(x2.shape)} with weights {list(weight.shape)}: "
            "weights are [out, in1, in2], and all axes but the last must be equal"
        )
    o, i, j = weight.shape
    lines = xp.matmul(
        xp.reshape(x1, (*x1.shape[:-1], 1, i)), xp.reshape(xp.permute_dims(weight, (1, 0, 2)), (i, o * j))
    )
    out = xp.sum(xp.reshape(lines, (*x1.shape[:-1], o, j)) * xp.expand_dims(x2, -2), axis=-1)
    return out if bias is None else out + bias


@composite(
    reference=lambda np, i, w, padding_idx=None: w[i],
    samples=lambda draw: [
        ((draw.ints((2, 3), 0, 3), draw.array((4, 5), -2, 2)), {}),
        ((draw.ints((), 0, 3), draw.array((4, 5), -2, 2)), {}),
        ((draw.ints((7,), 0, 1), draw.array((4, 2), -2, 2)), {}),
    ],
)
def embedding(xp: Any, indices: Any, weight: Any, /, padding_idx: Any = None) -> Any:
    """A row of the weight for each index; the row of *padding_idx* gets no gradient.

    An index outside of the rows, a negative one too, is reported by the device.
    """
    if weight.ndim != 2:
        raise ShapeError(f"cannot embed with weights {list(weight.shape)}: they are [rows, features]")
    if dtypes.KINDS[indices.dtype] != "int":
        raise DTypeError(f"cannot embed indices of {indices.dtype.name}: they are integers; cast with .astype(...)")
    count, size = weight.shape
    flat = xp.reshape(checked_label(xp, indices, count), (shapes.size(indices.shape),))
    rows = xp.reshape(xp.take(weight, flat, axis=0), (*indices.shape, size))
    if padding_idx is None:
        return rows
    if not -count <= padding_idx < count:
        raise ShapeError(f"cannot pad with row {padding_idx} of {count} rows: there is no such row")
    padded = xp.expand_dims(xp.equal(cast(xp, indices, dtypes.int64), padding_idx % count), -1)
    return xp.where(padded, xp.stop_gradient(rows), rows)
