"""Other sizes of images: more or fewer elements along the last axes.

Here: interpolate (nearest and linear, one axis after the other), pixel_shuffle.
Not here: pooling, which takes means of windows (`pooling.py`).
"""

import math
import operator
from collections.abc import Sequence
from typing import Any

from polygrad import dtypes
from polygrad.errors import ShapeError
from polygrad.ops.internal import cast
from polygrad.ops.statistics import floating, wide
from polygrad.ops.table import composite

_MODES = {"nearest": 0, "linear": 1, "bilinear": 2, "trilinear": 3}  # the axes that a linear mode takes


def _sizes(x: Any, size: Any, scale_factor: Any, mode: str) -> tuple[list[int], list[float]]:
    """Return for each axis after [N, C] its new size, and how many old elements a new one stands for."""
    rank = x.ndim - 2
    if rank not in (1, 2, 3) or mode not in _MODES or (mode != "nearest" and _MODES[mode] != rank):
        raise ShapeError(
            f"cannot interpolate shape {list(x.shape)} in mode {mode!r}: the modes are 'nearest', and 'linear' for "
            "[N, C, L], 'bilinear' for [N, C, H, W], 'trilinear' for [N, C, D, H, W]"
        )
    if (size is None) == (scale_factor is None):
        raise ShapeError("cannot interpolate: give either size or scale_factor")
    given = size if scale_factor is None else scale_factor
    values = list(given) if isinstance(given, Sequence) else [given] * rank
    own = x.shape[2:]
    if len(values) == rank and scale_factor is not None:
        new = [math.floor(n * f) for n, f in zip(own, values, strict=True)]
        steps = [1.0 / f if f else 1.0 for f in values]
    else:
        new = [operator.index(v) for v in values]
        steps = [n / m if m else 1.0 for n, m in zip(own, new, strict=False)]
    if len(values) != rank or min(new) < 1 or 0 in own:
        raise ShapeError(
            f"cannot interpolate shape {list(x.shape)} to {new}: there is one size, at least 1, for each axis"
        )
    return new, steps


def _nearest(xp: Any, x: Any, axis: int, n: int, step: float) -> Any:
    old = x.shape[axis]
    if n % old == 0 and step == old / n:
        wide_x = xp.expand_dims(x, axis + 1)
        shape = (*x.shape[: axis + 1], n // old, *x.shape[axis + 1 :])
        return xp.reshape(xp.broadcast_to(wide_x, shape), (*x.shape[:axis], n, *x.shape[axis + 1 :]))
    at = xp.floor(cast(xp, xp.iota(n, dtypes.int64), dtypes.float32) * step)
    return xp.take(x, xp.minimum(cast(xp, at, dtypes.int64), old - 1), axis=axis)


def _linear(xp: Any, x: Any, axis: int, n: int, step: float, align_corners: bool) -> Any:
    old = x.shape[axis]
    count = cast(xp, xp.iota(n, dtypes.int64), x.dtype)
    if align_corners:
        at = count * ((old - 1) / (n - 1) if n > 1 else 0.0)
    else:
        at = xp.maximum((count + 0.5) * step - 0.5, 0.0)
    low = xp.minimum(cast(xp, xp.floor(at), dtypes.int64), old - 1)
    share = xp.reshape(at - cast(xp, low, x.dtype), (n,) + (1,) * (x.ndim - 1 - axis))
    first, second = xp.take(x, low, axis=axis), xp.take(x, xp.minimum(low + 1, old - 1), axis=axis)
    return first * (1.0 - share) + second * share


def _reference(
    np: Any, x: Any, size: Any = None, scale_factor: Any = None, mode: str = "nearest", align_corners: bool = False
) -> Any:
    new, steps = _sizes(x, size, scale_factor, mode)
    for k, (n, step) in enumerate(zip(new, steps, strict=True)):
        old, count, axis = x.shape[2 + k], np.arange(n), 2 + k
        if mode == "nearest":
            x = np.take(x, np.minimum(np.floor(count * step).astype(int), old - 1), axis=axis)
            continue
        at = count * ((old - 1) / max(1, n - 1)) if align_corners else np.maximum((count + 0.5) * step - 0.5, 0)
        places = np.minimum(np.maximum(0, 1 - np.abs(np.minimum(at, old - 1)[:, None] - np.arange(old))), 1)
        x = np.moveaxis(np.tensordot(x, places, axes=([axis], [1])), -1, axis)
    return x


@composite(
    reference=_reference,
    samples=lambda draw: [
        ((draw.array((2, 3, 4), -2, 2),), {"scale_factor": 2}),
        ((draw.array((1, 2, 3, 4), -2, 2), (5, 3)), {}),
        ((draw.array((1, 2, 3, 4), -2, 2), (5, 3)), {"mode": "bilinear"}),
        ((draw.array((1, 2, 3, 4), -2, 2),), {"scale_factor": (2, 1.5), "mode": "bilinear"}),
        ((draw.array((1, 2, 3), -2, 2), 7), {"mode": "linear", "align_corners": True}),
        ((draw.array((1, 1, 2, 3, 2), -2, 2), (3, 2, 4)), {"mode": "trilinear"}),
    ],
    tolerance=2.0,
)
def interpolate(
    xp: Any,
    x: Any,
    /,
    size: Any = None,
    scale_factor: Any = None,
    mode: Any = "nearest",
    align_corners: Any = False,
) -> Any:
    """[N, C, ...] with other sizes of the axes after the first two, by *size* or *scale_factor*.

    *mode* is "nearest", or "linear", "bilinear" or "trilinear" by the number of axes. With *align_corners* the first
    and the last elements stay where they are; else elements are areas, whose edges do.
    """
    x = floating(xp, "interpolate", x)
    new, steps = _sizes(x, size, scale_factor, mode)
    values = wide(xp, x)
    for k, (n, step) in enumerate(zip(new, steps, strict=True)):
        if mode == "nearest":
            values = _nearest(xp, values, 2 + k, n, step)
        else:
            values = _linear(xp, values, 2 + k, n, step, align_corners)
    return cast(xp, values, x.dtype)


def _shuffled_reference(np: Any, x: Any, r: int) -> Any:
    n, c, h, w = x.shape
    out = np.zeros((n, c // r**2, h * r, w * r), x.dtype)
    for i, j in np.ndindex(r, r):
        out[:, :, i::r, j::r] = x[:, i * r + j :: r * r]
    return out


@composite(
    reference=_shuffled_reference,
    samples=lambda draw: [((draw.array((2, 8, 3, 2), -2, 2), 2), {}), ((draw.array((1, 9, 1, 2), -2, 2), 3), {})],
    dtypes="bool int float",
)
def pixel_shuffle(xp: Any, x: Any, upscale_factor: Any, /) -> Any:
    """[N, C * r * r, H, W] as [N, C, H * r, W * r]: groups of channels become squares of elements."""
    r = operator.index(upscale_factor)
    if x.ndim != 4 or r < 1 or x.shape[1] % (r * r):
        raise ShapeError(
            f"cannot shuffle shape {list(x.shape)} by {r}: images are [N, C, H, W], and C divides by the "
            "factor's square"
        )
    n, c, h, w = x.shape
    parts = xp.reshape(x, (n, c // (r * r), r, r, h, w))
    return xp.reshape(xp.permute_dims(parts, (0, 1, 4, 2, 5, 3)), (n, c // (r * r), h * r, w * r))
