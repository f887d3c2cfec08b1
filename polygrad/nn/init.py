"""First values of parameters, drawn from ``pg.random``: one seed gives the same bits on every device.

Here: functions from a shape to an array.
Not here: parameters, layers.
"""

import math
from collections.abc import Sequence
from typing import Any

from polygrad import dtypes
from polygrad.array import random
from polygrad.array.functions import FUNCTIONS
from polygrad.array.object import Array
from polygrad.errors import ShapeError

_MATRIX = 2


def fans(shape: Sequence[int]) -> tuple[int, int]:
    """Return how many inputs and outputs a weight of *shape* connects: (out, in, receptive field...).

    >>> fans((8, 4)), fans((8, 4, 3, 3))
    ((4, 8), (36, 72))
    """
    if len(shape) < _MATRIX:
        raise ShapeError(f"cannot count the connections of a weight of shape {list(shape)}: it needs at least two axes")
    field = math.prod(shape[_MATRIX:])
    return shape[1] * field, shape[0] * field


def _limit(variance: float) -> float:
    return math.sqrt(3.0 * variance)  # uniform numbers in (-a, a) have the variance a**2 / 3


def zeros(shape: Any, *, dtype: Any = None, device: Any = None) -> Array:
    """Return zeros, float32 unless another dtype is asked for."""
    return FUNCTIONS["zeros"](shape, dtype=dtype or dtypes.float32, device=device)  # type: ignore[no-any-return]


def ones(shape: Any, *, dtype: Any = None, device: Any = None) -> Array:
    """Return ones, float32 unless another dtype is asked for."""
    return FUNCTIONS["ones"](shape, dtype=dtype or dtypes.float32, device=device)  # type: ignore[no-any-return]


def normal(shape: Any, mean: float = 0.0, std: float = 1.0, *, dtype: Any = None, device: Any = None) -> Array:
    """Return normal numbers, float32 unless another dtype is asked for."""
    return random.normal(shape, mean, std, dtype=dtype or dtypes.float32, device=device)


def uniform(shape: Any, low: float = 0.0, high: float = 1.0, *, dtype: Any = None, device: Any = None) -> Array:
    """Return uniform numbers, float32 unless another dtype is asked for."""
    return random.uniform(shape, low, high, dtype=dtype or dtypes.float32, device=device)


def kaiming_uniform(shape: Any, gain: float = math.sqrt(2.0), *, dtype: Any = None, device: Any = None) -> Array:
    """Return uniform numbers of variance gain**2 / inputs, which keeps the size of activations through layers.

    The default gain fits ReLU. Source: He et al., Delving Deep into Rectifiers (2015), section 2.2.
    """
    limit = _limit(gain**2 / max(1, fans(shape)[0]))
    return uniform(shape, -limit, limit, dtype=dtype, device=device)


def kaiming_normal(shape: Any, gain: float = math.sqrt(2.0), *, dtype: Any = None, device: Any = None) -> Array:
    """Return normal numbers of variance gain**2 / inputs; see `kaiming_uniform`."""
    return normal(shape, 0.0, gain / math.sqrt(max(1, fans(shape)[0])), dtype=dtype, device=device)


def xavier_uniform(shape: Any, gain: float = 1.0, *, dtype: Any = None, device: Any = None) -> Array:
    """Return uniform numbers of variance 2 gain**2 / (inputs + outputs), which suits tanh.

    Source: Glorot and Bengio, Understanding the difficulty of training deep feedforward neural networks (2010),
    equation 16.
    """
    limit = _limit(2.0 * gain**2 / max(1, sum(fans(shape))))
    return uniform(shape, -limit, limit, dtype=dtype, device=device)


def xavier_normal(shape: Any, gain: float = 1.0, *, dtype: Any = None, device: Any = None) -> Array:
    """Return normal numbers of variance 2 gain**2 / (inputs + outputs); see `xavier_uniform`."""
    return normal(shape, 0.0, gain * math.sqrt(2.0 / max(1, sum(fans(shape)))), dtype=dtype, device=device)
