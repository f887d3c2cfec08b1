"""Layers that standardise their input.

Here: LayerNorm, RMSNorm, GroupNorm, InstanceNorm and BatchNorm with its running statistics.
Not here: the formulas (`polygrad.ops.neural`).
"""

import math
from typing import Any

from polygrad import dtypes
from polygrad.array.functions import FUNCTIONS
from polygrad.array.object import Array
from polygrad.array.rebinding import rebind
from polygrad.array.recording import no_grad
from polygrad.errors import ShapeError
from polygrad.nn import init, pending
from polygrad.nn.module import Module
from polygrad.nn.parameter import Parameter

_EPS = {dtypes.float16: 2.0**-10, dtypes.bfloat16: 2.0**-7, dtypes.float32: 2.0**-23, dtypes.float64: 2.0**-52}


def _shape(shape: int | tuple[int, ...] | list[int]) -> tuple[int, ...]:
    return (shape,) if isinstance(shape, int) else tuple(shape)


def _gain(shape: tuple[int, ...], wanted: bool, where: dict[str, Any]) -> Parameter | None:
    return Parameter(init.ones(shape, **where), no_decay=True) if wanted else None


def _shift(shape: tuple[int, ...], wanted: bool, where: dict[str, Any]) -> Parameter | None:
    return Parameter(init.zeros(shape, **where), no_decay=True) if wanted else None


def _check_tail(name: str, x: Array, shape: tuple[int, ...]) -> None:
    if x.ndim < len(shape) or x.shape[x.ndim - len(shape) :] != shape:
        raise ShapeError(
            f"cannot apply {name}({list(shape)}) to shape {list(x.shape)}: the last axes must be {list(shape)}"
        )


class LayerNorm(Module):
    """Standardise over the last axes, then scale and shift.

    Parameters
    ----------
    normalized_shape : int or tuple of int
        The sizes of the last axes.
    eps : float
        Added to the variance.
    elementwise_affine : bool
        Whether it scales and shifts.
    bias : bool
        Whether it shifts.
    dtype, device : optional
        Of the parameters; float32 and the default device.

    Examples
    --------
    >>> import polygrad as pg
    >>> round(float(pg.nn.LayerNorm(4)(pg.asarray([[1.0, 2.0, 3.0, 4.0]])).std()), 3)
    1.0
    """

    def __init__(
        self,
        normalized_shape: int | tuple[int, ...] | list[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        *,
        dtype: Any = None,
        device: Any = None,
    ) -> None:
        where = {"dtype": dtype, "device": device}
        self.normalized_shape = _shape(normalized_shape)
        self.eps = eps
        self.weight = _gain(self.normalized_shape, elementwise_affine, where)
        self.bias = _shift(self.normalized_shape, elementwise_affine and bias, where)

    def forward(self, x: Array) -> Array:
        """Return an array of *x*'s shape and dtype."""
        _check_tail("LayerNorm", x, self.normalized_shape)
        axes = tuple(range(-len(self.normalized_shape), 0))
        return FUNCTIONS["layer_norm"](x, self.weight, self.bias, self.eps, axes)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        """Return shape and eps."""
        return f"{self.normalized_shape}, eps={self.eps}"


class RMSNorm(Module):
    """Divide by the root mean square over the last axes, then scale.

    Parameters
    ----------
    normalized_shape : int or tuple of int
        The sizes of the last axes.
    eps : float or None
        Added to the mean square. None is the distance from 1 to the next number of the input's dtype, which is what
        PyTorch's default is.
    elementwise_affine : bool
        Whether it scales.
    dtype, device : optional
        Of the weight; float32 and the default device.
    """

    def __init__(
        self,
        normalized_shape: int | tuple[int, ...] | list[int],
        eps: float | None = 1e-6,
        elementwise_affine: bool = True,
        *,
        dtype: Any = None,
        device: Any = None,
    ) -> None:
        self.normalized_shape = _shape(normalized_shape)
        self.eps = eps
        self.weight = _gain(self.normalized_shape, elementwise_affine, {"dtype": dtype, "device": device})

    def forward(self, x: Array) -> Array:
        """Return an array of *x*'s shape and dtype."""
        _check_tail("RMSNorm", x, self.normalized_shape)
        axes = tuple(range(-len(self.normalized_shape), 0))
        eps = _EPS.get(x.dtype, 2.0**-52) if self.eps is None else self.eps
        return FUNCTIONS["rms_norm"](x, self.weight, eps, axes)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        """Return shape and eps."""
        return f"{self.normalized_shape}, eps={self.eps}"


class GroupNorm(Module):
    """Standardise groups of channels of [N, C, ...], then scale and shift each channel.

    Examples
    --------
    >>> import polygrad as pg
    >>> pg.nn.GroupNorm(2, 4)(pg.ones((1, 4, 3), dtype=pg.float32)).shape
    (1, 4, 3)
    """

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        *,
        dtype: Any = None,
        device: Any = None,
    ) -> None:
        if num_groups < 1 or num_channels % num_groups:
            raise ShapeError(
                f"cannot make {num_groups} groups of {num_channels} channels: channels must divide by their number"
            )
        where = {"dtype": dtype, "device": device}
        self.num_groups, self.num_channels, self.eps = num_groups, num_channels, eps
        self.weight = _gain((num_channels,), affine, where)
        self.bias = _shift((num_channels,), affine, where)

    def forward(self, x: Array) -> Array:
        """Return an array of *x*'s shape and dtype."""
        if x.ndim < 2 or x.shape[1] != self.num_channels:  # noqa: PLR2004  [N, C, ...]
            raise ShapeError(f"cannot apply GroupNorm to shape {list(x.shape)}: it takes [N, {self.num_channels}, ...]")
        return FUNCTIONS["group_norm"](x, self.num_groups, self.weight, self.bias, self.eps)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        """Return what was asked for."""
        return f"{self.num_groups}, {self.num_channels}, eps={self.eps}"


class _ByChannel(Module):
    """What norms with statistics of channels share."""

    ranks: tuple[int, ...] = ()
    layout = ""

    def _check(self, x: Array, channels: int) -> None:
        if x.ndim not in self.ranks or x.shape[1] != channels:
            raise ShapeError(
                f"cannot apply {type(self).__name__}({channels}) to shape {list(x.shape)}: "
                + self.layout.replace("C", str(channels))
            )


class _InstanceNorm(_ByChannel):
    """Standardise each channel of each example by itself; it has no running statistics."""

    def __init__(
        self, num_features: int, eps: float = 1e-5, affine: bool = False, *, dtype: Any = None, device: Any = None
    ) -> None:
        where = {"dtype": dtype, "device": device}
        self.num_features, self.eps = num_features, eps
        self.weight = _gain((num_features,), affine, where)
        self.bias = _shift((num_features,), affine, where)

    def forward(self, x: Array) -> Array:
        """Return an array of *x*'s shape and dtype."""
        self._check(x, self.num_features)
        return FUNCTIONS["instance_norm"](x, self.weight, self.bias, self.eps)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        """Return what was asked for."""
        return f"{self.num_features}, eps={self.eps}, affine={self.weight is not None}"


class InstanceNorm1d(_InstanceNorm):
    """Standardise each channel of each signal of [N, C, L]; with *affine* scale and shift channels."""

    ranks = (3,)
    layout = "signals are [N, C, L]"


class InstanceNorm2d(_InstanceNorm):
    """Standardise each channel of each image of [N, C, H, W]; with *affine* scale and shift channels."""

    ranks = (4,)
    layout = "images are [N, C, H, W]"


class InstanceNorm3d(_InstanceNorm):
    """Standardise each channel of each volume of [N, C, D, H, W]; with *affine* scale and shift channels."""

    ranks = (5,)
    layout = "volumes are [N, C, D, H, W]"


class _BatchNorm(_ByChannel):
    """What batch norms share; see `BatchNorm2d`."""

    running_mean: Array | None
    running_var: Array | None
    num_batches_tracked: Array | None
    foreign_state = "num_batches_tracked"

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        *,
        dtype: Any = None,
        device: Any = None,
    ) -> None:
        where = {"dtype": dtype, "device": device}
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.weight = _gain((num_features,), affine, where)
        self.bias = _shift((num_features,), affine, where)
        self.track_running_stats = track_running_stats
        self.running_mean = self.running_var = self.num_batches_tracked = None
        if track_running_stats:
            wide = dtype if dtype is not None and dtypes.as_dtype(dtype) is dtypes.float64 else None
            self.register_buffer("running_mean", init.zeros((num_features,), dtype=wide, device=device))
            self.register_buffer("running_var", init.ones((num_features,), dtype=wide, device=device))
            if momentum is None:
                count = FUNCTIONS["zeros"]((), dtype=dtypes.int64, device=device)
                self.register_buffer("num_batches_tracked", count)

    def forward(self, x: Array) -> Array:
        """Return an array of *x*'s shape and dtype."""
        self._check(x, self.num_features)
        if not self.training and self.running_mean is not None and self.running_var is not None:
            return self._normal(x, self.running_mean, self.running_var)
        count = math.prod(x.shape) // max(1, self.num_features)
        if self.training and count < 2:  # noqa: PLR2004  one value has no variance
            raise ShapeError(
                f"cannot apply {type(self).__name__} to shape {list(x.shape)} in training: a channel needs at least 2 "
                "values; use .eval()"
            )
        axes = (0, *range(2, x.ndim))
        wide = x.astype(dtypes.float32, copy=False) if x.dtype.itemsize < dtypes.float32.itemsize else x
        mean = FUNCTIONS["mean"](wide, axis=axes)
        variance = FUNCTIONS["var"](wide, axis=axes)
        if self.training:
            self._follow(mean, variance, count / (count - 1))
        return self._normal(x, mean, variance)

    def _normal(self, x: Array, mean: Array, variance: Array) -> Array:
        return FUNCTIONS["batch_norm"](x, mean, variance, self.weight, self.bias, self.eps)  # type: ignore[no-any-return]

    def _follow(self, mean: Array, variance: Array, unbiased: float) -> None:
        """Move the running statistics; the running variance is the unbiased one."""
        if self.running_mean is None or self.running_var is None:
            return
        with no_grad():
            share: Any = self.momentum
            if self.num_batches_tracked is not None:  # the mean of all batches so far
                rebind(self.num_batches_tracked, self.num_batches_tracked + 1)
                pending.note(self.num_batches_tracked)
                share = 1.0 / self.num_batches_tracked.astype(self.running_mean.dtype)
            for buffer, value in ((self.running_mean, mean.detach()), (self.running_var, variance.detach() * unbiased)):
                rebind(buffer, buffer * (1.0 - share) + value * share)
                pending.note(buffer)

    def extra_repr(self) -> str:
        """Return what was asked for."""
        return f"{self.num_features}, eps={self.eps}, momentum={self.momentum}"


class BatchNorm1d(_BatchNorm):
    """Standardise each channel of [N, C] or [N, C, L], then scale and shift; see `BatchNorm2d`."""

    ranks = (2, 3)
    layout = "it takes [N, C] or [N, C, L]"


class BatchNorm2d(_BatchNorm):
    """Standardise each channel of images [N, C, H, W], then scale and shift.

    In training mode by the statistics of the batch, which also move the running ones; in evaluation mode by the running
    ones.

    Parameters
    ----------
    num_features : int
        C.
    eps : float
        Added to the variance.
    momentum : float or None
        How far the running statistics move towards the batch's, in [0, 1]; None makes them the mean of all batches.
    affine : bool
        Whether it scales and shifts.
    track_running_stats : bool
        Whether there are running statistics; without them a batch's own are used in evaluation mode too.
    dtype, device : optional
        Of the parameters; float32 and the default device. Running statistics of 16-bit layers are float32.
    """

    ranks = (4,)
    layout = "images are [N, C, H, W]"


class BatchNorm3d(_BatchNorm):
    """Standardise each channel of volumes [N, C, D, H, W], then scale and shift; see `BatchNorm2d`."""

    ranks = (5,)
    layout = "volumes are [N, C, D, H, W]"
