"""Convolutions as library ops: forward, and the gradients by the images and by the weights.

Here: what the three give, their derivatives, which are each other, and how `vmap` reads them.
Not here: what users call (`convolution.py`), what stands in where a device lacks them (`convolution_fallback.py`).

A convolution is linear in both operands, so each of the three is the derivative of the other two, to every order.
Their last attrs are stride, padding before and after, dilation (one int an axis each) and groups.
"""

from typing import Any

from polygrad.ops.convolution_fallback import convolved, correlated, scattered
from polygrad.ops.layout import window_counts
from polygrad.ops.table import library


def _params(*attrs: Any) -> dict[str, Any]:
    stride, before, after, dilation, groups = attrs[-5:]
    return {"stride": stride, "before": before, "after": after, "dilation": dilation, "groups": groups}


# ---- vmap -----------------------------------------------------------------------------------------------------------
# The examples go into an axis that the ops have: the batch where the weights are shared, else the channels.


def _folded(xp: Any, x: Any, axis: int, groups: int) -> Any:
    """Return x with its first axis, the examples, inside of *axis* of the others, behind that axis's groups."""
    n, *shape = x.shape
    split = xp.reshape_(x, (n, *shape[:axis], groups, shape[axis] // groups, *shape[axis + 1 :]))
    at = 1 + axis
    order = (*range(1, at), at, 0, *range(at + 1, split.ndim))
    return xp.reshape_(xp.permute_(split, order), (*shape[:axis], n * shape[axis], *shape[axis + 1 :]))


def _unfolded(xp: Any, x: Any, n: int, axis: int, groups: int) -> Any:
    """Return x with *n* examples, which `_folded` put into *axis*, in front again."""
    shape = x.shape
    inside = shape[axis] // n
    split = xp.reshape_(x, (*shape[:axis], groups, n, inside // groups, *shape[axis + 1 :]))
    at = axis + 1
    order = (at, *range(at), *range(at + 1, split.ndim))
    return xp.reshape_(xp.permute_(split, order), (n, *shape[:axis], inside, *shape[axis + 1 :]))


# For each op: the axis of the first operand, of the second and of the result that the examples go into, where both
# operands, the first alone or the second alone have them. Where one alone has, they go behind the groups of an axis.
_FIRST, _OUTPUTS, _CHANNELS = (0, False), (0, True), (1, True)
_INPUTS = (1, False)  # of weights, which have the channels of one group
_PLACES: dict[str, dict[tuple[bool, bool], tuple[Any, Any, Any]]] = {
    "conv_": {(True, False): (_FIRST, None, _FIRST), (False, True): (None, _OUTPUTS, _CHANNELS)},
    "conv_input_": {(True, False): (_FIRST, None, _FIRST), (False, True): (None, _INPUTS, _CHANNELS)},
    "conv_weight_": {(True, False): (_CHANNELS, None, _INPUTS), (False, True): (None, _CHANNELS, _OUTPUTS)},
}
_TOGETHER = {"conv_": (1, 0, 1), "conv_input_": (1, 0, 1), "conv_weight_": (1, 1, 0)}


def _batch(xp: Any, n: int, out: Any, lifted: Any, operands: Any, _index: int, *attrs: Any) -> Any:
    name, groups = out.op.name, attrs[-1]
    function = getattr(xp, name)
    if all(lifted):  # every example is a group
        *into, result = _TOGETHER[name]
        given = [_folded(xp, x, place, 1) for x, place in zip(operands, into, strict=True)]
        return _unfolded(xp, function(*given, *attrs[:-1], n * groups), n, result, 1)
    *places, (axis, grouped) = _PLACES[name][tuple(lifted)]
    given = [
        x if place is None else _folded(xp, x, place[0], groups if place[1] else 1)
        for x, place in zip(operands, places, strict=True)
    ]
    return _unfolded(xp, function(*given, *attrs), n, axis, groups if grouped else 1)


# ---- the three ------------------------------------------------------------------------------------------------------


def _results(x: Any, w: Any, stride: Any, before: Any, after: Any, dilation: Any, _groups: Any) -> Any:
    padded = tuple(n + b + a for n, b, a in zip(x.shape[2:], before, after, strict=True))
    counts = window_counts((*x.shape[:2], *padded), w.shape[2:], stride, dilation)
    return [((x.shape[0], w.shape[0], *counts), x.dtype)]


def _places(np: Any, x: Any, g_shape: Any, w_shape: Any, attrs: Any) -> Any:
    """Yield for every group and place of a kernel where it lies in x padded, in g and in the weights."""
    stride, dilation, groups = attrs[0], attrs[3], attrs[4]
    inputs, outputs = x.shape[1] // groups, g_shape[1] // groups
    for group, *at in np.ndindex(groups, *w_shape[2:]):
        cut = [
            slice(k * d, k * d + (m - 1) * s + 1, s)
            for k, d, m, s in zip(at, dilation, g_shape[2:], stride, strict=True)
        ]
        channels = slice(group * outputs, (group + 1) * outputs)
        yield (slice(None), slice(group * inputs, (group + 1) * inputs), *cut), channels, (channels, slice(None), *at)


def _padded(np: Any, x: Any, before: Any, after: Any) -> Any:
    return np.pad(x, ((0, 0), (0, 0), *zip(before, after, strict=True)))


@library(
    results=_results,
    fallback=convolved,
    vjp=(
        lambda xp, g, out, x, w, _index, *attrs: xp.conv_input_(g, w, x.shape[2:], *attrs),
        lambda xp, g, out, x, w, _index, *attrs: xp.conv_weight_(x, g, w.shape[2:], *attrs),
    ),
    jvp=(
        lambda xp, t, out, x, w, _index, *attrs: xp.conv_(t, w, *attrs),
        lambda xp, t, out, x, w, _index, *attrs: xp.conv_(x, t, *attrs),
    ),
    call="convolution",
    params=_params,
    verb="convolve",
    batch=_batch,
)
def conv_(np: Any, x: Any, w: Any, /, *attrs: Any) -> Any:
    """The cross-correlation of images [N, C, ...] with weights [out, C / groups, ...]."""
    shape = _results(x, w, *attrs)[0][0]
    padded, out = _padded(np, x, attrs[1], attrs[2]), np.zeros(shape, x.dtype)
    for seen, channels, kernel in _places(np, padded, shape, w.shape, attrs):
        out[:, channels] += np.einsum("nc...,oc->no...", padded[seen], w[kernel])
    return out


@library(
    results=lambda g, w, sizes, *attrs: [((g.shape[0], w.shape[1] * attrs[-1], *sizes), g.dtype)],
    fallback=scattered,
    vjp=(
        lambda xp, h, out, g, w, _index, sizes, *attrs: xp.conv_(h, w, *attrs),
        lambda xp, h, out, g, w, _index, sizes, *attrs: xp.conv_weight_(h, g, w.shape[2:], *attrs),
    ),
    jvp=(
        lambda xp, t, out, g, w, _index, *attrs: xp.conv_input_(t, w, *attrs),
        lambda xp, t, out, g, w, _index, *attrs: xp.conv_input_(g, t, *attrs),
    ),
    call="convolution_input",
    params=_params,
    verb="convolve",
    batch=_batch,
)
def conv_input_(np: Any, g: Any, w: Any, /, sizes: Any, *attrs: Any) -> Any:
    """The gradient of a convolution by its images, whose last axes have *sizes*, for the gradient g by its result."""
    before, after = attrs[1], attrs[2]
    out = _padded(np, np.zeros((g.shape[0], w.shape[1] * attrs[4], *sizes), g.dtype), before, after)
    for seen, channels, kernel in _places(np, out, g.shape, w.shape, attrs):
        out[seen] += np.einsum("no...,oc->nc...", g[:, channels], w[kernel])
    return out[(..., *(slice(b, b + n) for b, n in zip(before, sizes, strict=True)))]


@library(
    results=lambda x, g, kernel, *attrs: [((g.shape[1], x.shape[1] // attrs[-1], *kernel), x.dtype)],
    fallback=correlated,
    vjp=(
        lambda xp, v, out, x, g, _index, kernel, *attrs: xp.conv_input_(g, v, x.shape[2:], *attrs),
        lambda xp, v, out, x, g, _index, kernel, *attrs: xp.conv_(x, v, *attrs),
    ),
    jvp=(
        lambda xp, t, out, x, g, _index, *attrs: xp.conv_weight_(t, g, *attrs),
        lambda xp, t, out, x, g, _index, *attrs: xp.conv_weight_(x, t, *attrs),
    ),
    call="convolution_weight",
    params=_params,
    verb="convolve",
    batch=_batch,
)
def conv_weight_(np: Any, x: Any, g: Any, /, kernel: Any, *attrs: Any) -> Any:
    """The gradient of a convolution by its weights, of extents *kernel*, for the gradient g by its result."""
    padded = _padded(np, x, attrs[1], attrs[2])
    out = np.zeros((g.shape[1], x.shape[1] // attrs[4], *kernel), x.dtype)
    for seen, channels, place in _places(np, padded, g.shape, out.shape, attrs):
        axes = (0, *range(2, x.ndim))
        out[place] = np.tensordot(g[:, channels], padded[seen], (axes, axes))
    return out
