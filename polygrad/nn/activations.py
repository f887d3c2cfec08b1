"""Activations as modules.

Here: one class for each function; only PReLU has a parameter.
Not here: the functions (`polygrad.ops.activations`).
"""

from typing import Any

from polygrad import dtypes
from polygrad.array.functions import FUNCTIONS
from polygrad.array.object import Array
from polygrad.nn.module import Module
from polygrad.nn.parameter import Parameter


class ReLU(Module):
    """The larger of x and 0."""

    def forward(self, x: Array) -> Array:
        """Apply `relu`."""
        return FUNCTIONS["relu"](x)  # type: ignore[no-any-return]


class ReLU6(Module):
    """x limited to [0, 6]."""

    def forward(self, x: Array) -> Array:
        """Apply `relu6`."""
        return FUNCTIONS["relu6"](x)  # type: ignore[no-any-return]


class LeakyReLU(Module):
    """x where it is positive, else negative_slope * x."""

    def __init__(self, negative_slope: float = 0.01) -> None:
        self.negative_slope = negative_slope

    def forward(self, x: Array) -> Array:
        """Apply `leaky_relu`."""
        return FUNCTIONS["leaky_relu"](x, self.negative_slope)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        """Return what was asked for."""
        return f"negative_slope={self.negative_slope!r}"


class ELU(Module):
    """x where it is positive, else alpha * (exp(x) - 1)."""

    def __init__(self, alpha: float = 1.0) -> None:
        self.alpha = alpha

    def forward(self, x: Array) -> Array:
        """Apply `elu`."""
        return FUNCTIONS["elu"](x, self.alpha)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        """Return what was asked for."""
        return f"alpha={self.alpha!r}"


class CELU(Module):
    """x where it is positive, else alpha * (exp(x / alpha) - 1)."""

    def __init__(self, alpha: float = 1.0) -> None:
        self.alpha = alpha

    def forward(self, x: Array) -> Array:
        """Apply `celu`."""
        return FUNCTIONS["celu"](x, self.alpha)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        """Return what was asked for."""
        return f"alpha={self.alpha!r}"


class SELU(Module):
    """The exponential linear unit that keeps mean 0 and variance 1."""

    def forward(self, x: Array) -> Array:
        """Apply `selu`."""
        return FUNCTIONS["selu"](x)  # type: ignore[no-any-return]


class GELU(Module):
    """x times the normal distribution function of x, or with ``approximate="tanh"`` the usual approximation of it."""

    def __init__(self, approximate: str = "none") -> None:
        self.approximate = approximate

    def forward(self, x: Array) -> Array:
        """Apply `gelu`."""
        return FUNCTIONS["gelu"](x, self.approximate)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        """Return what was asked for."""
        return f"approximate={self.approximate!r}"


class SiLU(Module):
    """x times its sigmoid."""

    def forward(self, x: Array) -> Array:
        """Apply `silu`."""
        return FUNCTIONS["silu"](x)  # type: ignore[no-any-return]


class Mish(Module):
    """x * tanh(softplus(x))."""

    def forward(self, x: Array) -> Array:
        """Apply `mish`."""
        return FUNCTIONS["mish"](x)  # type: ignore[no-any-return]


class Softplus(Module):
    """log(1 + exp(beta * x)) / beta, without overflow."""

    def __init__(self, beta: float = 1.0) -> None:
        self.beta = beta

    def forward(self, x: Array) -> Array:
        """Apply `softplus`."""
        return FUNCTIONS["softplus"](x, self.beta)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        """Return what was asked for."""
        return f"beta={self.beta!r}"


class Softsign(Module):
    """x / (1 + |x|)."""

    def forward(self, x: Array) -> Array:
        """Apply `softsign`."""
        return FUNCTIONS["softsign"](x)  # type: ignore[no-any-return]


class Sigmoid(Module):
    """1 / (1 + exp(-x))."""

    def forward(self, x: Array) -> Array:
        """Apply `sigmoid`."""
        return FUNCTIONS["sigmoid"](x)  # type: ignore[no-any-return]


class LogSigmoid(Module):
    """The logarithm of the sigmoid of x."""

    def forward(self, x: Array) -> Array:
        """Apply `log_sigmoid`."""
        return FUNCTIONS["log_sigmoid"](x)  # type: ignore[no-any-return]


class Tanh(Module):
    """The hyperbolic tangent."""

    def forward(self, x: Array) -> Array:
        """Apply `tanh`."""
        return FUNCTIONS["tanh"](x)  # type: ignore[no-any-return]


class Tanhshrink(Module):
    """x - tanh(x)."""

    def forward(self, x: Array) -> Array:
        """Apply `tanh_shrink`."""
        return FUNCTIONS["tanh_shrink"](x)  # type: ignore[no-any-return]


class Hardsigmoid(Module):
    """A sigmoid of straight lines."""

    def forward(self, x: Array) -> Array:
        """Apply `hard_sigmoid`."""
        return FUNCTIONS["hard_sigmoid"](x)  # type: ignore[no-any-return]


class Hardswish(Module):
    """x times a sigmoid of straight lines."""

    def forward(self, x: Array) -> Array:
        """Apply `hard_swish`."""
        return FUNCTIONS["hard_swish"](x)  # type: ignore[no-any-return]


class Hardtanh(Module):
    """x limited to [min_val, max_val]."""

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0) -> None:
        self.min_val = min_val
        self.max_val = max_val

    def forward(self, x: Array) -> Array:
        """Apply `hardtanh`."""
        return FUNCTIONS["hardtanh"](x, self.min_val, self.max_val)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        """Return what was asked for."""
        return f"min_val={self.min_val!r}, max_val={self.max_val!r}"


class Hardshrink(Module):
    """x where it is farther from 0 than lambd, else 0."""

    def __init__(self, lambd: float = 0.5) -> None:
        self.lambd = lambd

    def forward(self, x: Array) -> Array:
        """Apply `hardshrink`."""
        return FUNCTIONS["hardshrink"](x, self.lambd)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        """Return what was asked for."""
        return f"lambd={self.lambd!r}"


class Softshrink(Module):
    """x moved by lambd towards 0, and not beyond."""

    def __init__(self, lambd: float = 0.5) -> None:
        self.lambd = lambd

    def forward(self, x: Array) -> Array:
        """Apply `softshrink`."""
        return FUNCTIONS["softshrink"](x, self.lambd)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        """Return what was asked for."""
        return f"lambd={self.lambd!r}"


class Threshold(Module):
    """x where it is greater than *threshold*, else *value*."""

    def __init__(self, threshold: float, value: float) -> None:
        self.threshold = threshold
        self.value = value

    def forward(self, x: Array) -> Array:
        """Apply `threshold`."""
        return FUNCTIONS["threshold"](x, self.threshold, self.value)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        """Return what was asked for."""
        return f"{self.threshold}, {self.value}"


class Softmax(Module):
    """exp(x) over its sum along an axis, or several."""

    def __init__(self, dim: Any = -1) -> None:
        self.dim = dim

    def forward(self, x: Array) -> Array:
        """Apply `softmax`."""
        return FUNCTIONS["softmax"](x, self.dim)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        """Return the axis."""
        return f"dim={self.dim}"


class Softmin(Module):
    """`Softmax` of -x."""

    def __init__(self, dim: Any = -1) -> None:
        self.dim = dim

    def forward(self, x: Array) -> Array:
        """Apply `softmin`."""
        return FUNCTIONS["softmin"](x, self.dim)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        """Return the axis."""
        return f"dim={self.dim}"


class LogSoftmax(Module):
    """The logarithm of `Softmax`, accurate where that underflows."""

    def __init__(self, dim: Any = -1) -> None:
        self.dim = dim

    def forward(self, x: Array) -> Array:
        """Apply `log_softmax`."""
        return FUNCTIONS["log_softmax"](x, self.dim)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        """Return the axis."""
        return f"dim={self.dim}"


class GLU(Module):
    """The first half of x along an axis, times the sigmoid of the second."""

    def __init__(self, dim: Any = -1) -> None:
        self.dim = dim

    def forward(self, x: Array) -> Array:
        """Apply `glu`."""
        return FUNCTIONS["glu"](x, self.dim)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        """Return the axis."""
        return f"dim={self.dim}"


class PReLU(Module):
    """x where it is positive, else weight * x with a learnt weight: one, or one for each channel of [N, C, ...]."""

    def __init__(self, num_parameters: int = 1, init: float = 0.25, *, dtype: Any = None, device: Any = None) -> None:
        start = FUNCTIONS["full"]((num_parameters,), init, dtype=dtype or dtypes.float32, device=device)
        self.weight = Parameter(start, no_decay=True)

    def forward(self, x: Array) -> Array:
        """Apply `prelu`."""
        return FUNCTIONS["prelu"](x, self.weight)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        """Return the number of weights."""
        return f"{self.weight.size}"
