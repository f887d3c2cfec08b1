"""Activations as modules.

Here: one class for each function, without state.
Not here: the functions (`polygrad.ops.activations`).
"""

from typing import Any

from polygrad.array.functions import FUNCTIONS
from polygrad.array.object import Array
from polygrad.nn.module import Module


class ReLU(Module):
    """The larger of x and 0."""

    def forward(self, x: Array) -> Array:
        """Apply `relu`."""
        return FUNCTIONS["relu"](x)  # type: ignore[no-any-return]


class GELU(Module):
    """x times the normal distribution function of x, or with ``approximate="tanh"`` the usual approximation of it."""

    def __init__(self, approximate: str = "none") -> None:
        self.approximate = approximate

    def forward(self, x: Array) -> Array:
        """Apply `gelu`."""
        return FUNCTIONS["gelu"](x, self.approximate)  # type: ignore[no-any-return]


class SiLU(Module):
    """x times its sigmoid."""

    def forward(self, x: Array) -> Array:
        """Apply `silu`."""
        return FUNCTIONS["silu"](x)  # type: ignore[no-any-return]


class Tanh(Module):
    """The hyperbolic tangent."""

    def forward(self, x: Array) -> Array:
        """Apply `tanh`."""
        return FUNCTIONS["tanh"](x)  # type: ignore[no-any-return]


class Sigmoid(Module):
    """1 / (1 + exp(-x))."""

    def forward(self, x: Array) -> Array:
        """Apply `sigmoid`."""
        return FUNCTIONS["sigmoid"](x)  # type: ignore[no-any-return]


class Softmax(Module):
    """exp(x) over its sum along an axis."""

    def __init__(self, axis: Any = -1) -> None:
        self.axis = axis

    def forward(self, x: Array) -> Array:
        """Apply `softmax`."""
        return FUNCTIONS["softmax"](x, self.axis)  # type: ignore[no-any-return]
