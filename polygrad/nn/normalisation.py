"""Layers that standardise their input.

Here: LayerNorm, RMSNorm, BatchNorm2d with its running statistics.
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

_IMAGES = 4  # axes of images [N, C, H, W]


def _shape(shape: int | tuple[int, ...]) -> tuple[int, ...]:
    return (shape,) if isinstance(shape, int) else tuple(shape)


def _check_tail(name: str, x: Array, shape: tuple[int, ...]) -> None:
    if x.ndim < len(shape) or x.shape[x.ndim - len(shape) :] != shape:
        raise ShapeError(
            f"cannot apply {name}({list(shape)}) to shape {list(x.shape)}: the last axes must be {list(shape)}"
        )


class LayerNorm(Module):
    """Standardise over the last axes, then scale and shift.

    Parameters
    ----------
    shape : int or tuple of int
        The sizes of the last axes.
    eps : float
        Added to the variance.
    bias : bool
        Whether there is a shift.

    Examples
    --------
    >>> import polygrad as pg
    >>> round(float(pg.nn.LayerNorm(4)(pg.asarray([[1.0, 2.0, 3.0, 4.0]])).std()), 3)
    1.0
    """

    def __init__(
        self,
        shape: int | tuple[int, ...],
        eps: float = 1e-5,
        bias: bool = True,
        *,
        dtype: Any = None,
        device: Any = None,
    ) -> None:
        self.shape = _shape(shape)
        self.eps = eps
        self.weight = Parameter(init.ones(self.shape, dtype=dtype, device=device), no_decay=True)
        self.bias = Parameter(init.zeros(self.shape, dtype=dtype, device=device), no_decay=True) if bias else None

    def forward(self, x: Array) -> Array:
        """Return an array of *x*'s shape and dtype."""
        _check_tail("LayerNorm", x, self.shape)
        axes = tuple(range(-len(self.shape), 0))
        return FUNCTIONS["layer_norm"](x, self.weight, self.bias, self.eps, axes)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        """Return shape and eps."""
        return f"{self.shape}, eps={self.eps}"


class RMSNorm(Module):
    """Divide by the root mean square over the last axes, then scale."""

    def __init__(
        self, shape: int | tuple[int, ...], eps: float = 1e-6, *, dtype: Any = None, device: Any = None
    ) -> None:
        self.shape = _shape(shape)
        self.eps = eps
        self.weight = Parameter(init.ones(self.shape, dtype=dtype, device=device), no_decay=True)

    def forward(self, x: Array) -> Array:
        """Return an array of *x*'s shape and dtype."""
        _check_tail("RMSNorm", x, self.shape)
        axes = tuple(range(-len(self.shape), 0))
        return FUNCTIONS["rms_norm"](x, self.weight, self.eps, axes)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        """Return shape and eps."""
        return f"{self.shape}, eps={self.eps}"


class BatchNorm2d(Module):
    """Standardise each channel of images [N, C, H, W], then scale and shift.

    In training mode by the statistics of the batch, which also move the running ones; in evaluation mode by the running
    ones.

    Parameters
    ----------
    channels : int
        C.
    eps : float
        Added to the variance.
    momentum : float
        How far the running statistics move towards the batch's, in [0, 1].
    """

    running_mean: Array
    running_var: Array

    def __init__(
        self, channels: int, eps: float = 1e-5, momentum: float = 0.1, *, dtype: Any = None, device: Any = None
    ) -> None:
        self.channels = channels
        self.eps = eps
        self.momentum = momentum
        self.weight = Parameter(init.ones((channels,), dtype=dtype, device=device), no_decay=True)
        self.bias = Parameter(init.zeros((channels,), dtype=dtype, device=device), no_decay=True)
        self.register_buffer("running_mean", init.zeros((channels,), device=device))
        self.register_buffer("running_var", init.ones((channels,), device=device))

    def forward(self, x: Array) -> Array:
        """Return an array of *x*'s shape and dtype."""
        if x.ndim != _IMAGES or x.shape[1] != self.channels:
            raise ShapeError(
                f"cannot apply BatchNorm2d({self.channels}) to shape {list(x.shape)}: images are [N, {self.channels}, "
                "H, W]"
            )
        if not self.training:
            return self._normal(x, self.running_mean, self.running_var)
        count = math.prod(x.shape) // max(1, self.channels)
        if count < 2:  # noqa: PLR2004  one value has no variance
            raise ShapeError(
                f"cannot apply BatchNorm2d to shape {list(x.shape)} in training: a channel needs at least 2 values; "
                "use .eval()"
            )
        wide = x.astype(dtypes.float32, copy=False) if x.dtype.itemsize < dtypes.float32.itemsize else x
        mean = FUNCTIONS["mean"](wide, axis=(0, 2, 3))
        variance = FUNCTIONS["var"](wide, axis=(0, 2, 3))
        self._follow(mean, variance, count / (count - 1))
        return self._normal(x, mean, variance)

    def _normal(self, x: Array, mean: Array, variance: Array) -> Array:
        return FUNCTIONS["batch_norm"](x, mean, variance, self.weight, self.bias, self.eps)  # type: ignore[no-any-return]

    def _follow(self, mean: Array, variance: Array, unbiased: float) -> None:
        """Move the running statistics; the running variance is the unbiased one."""
        with no_grad():
            for buffer, value in ((self.running_mean, mean.detach()), (self.running_var, variance.detach() * unbiased)):
                rebind(buffer, buffer * (1.0 - self.momentum) + value * self.momentum)
                pending.note(buffer)

    def extra_repr(self) -> str:
        """Return what was asked for."""
        return f"{self.channels}, eps={self.eps}, momentum={self.momentum}"
