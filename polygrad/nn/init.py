"""First values of parameters, drawn from ``pg.random``: one seed gives the same bits on every device.

Here: functions from a shape to an array.
Not here: parameters, layers.
"""

import math
from collections.abc import Sequence
from typing import Any

from polygrad import dtypes
from polygrad.array import random
from polygrad.array.functions import FUNCTIONS, NAMESPACES
from polygrad.array.object import Array
from polygrad.errors import ShapeError

__all__ = (
    "calculate_gain", "constant", "eye", "fans", "kaiming_normal", "kaiming_uniform", "normal", "ones", "orthogonal",
    "trunc_normal", "uniform", "xavier_normal", "xavier_uniform", "zeros",
)  # fmt: skip

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


_GAINS = {"linear": 1.0, "sigmoid": 1.0, "tanh": 5.0 / 3.0, "relu": math.sqrt(2.0), "selu": 0.75}


def calculate_gain(nonlinearity: str, param: float = 0.01) -> float:
    """Return by how much to scale weights before a nonlinearity, which makes up for what it takes away.

    >>> calculate_gain("tanh"), round(calculate_gain("leaky_relu", 0.2), 4)
    (1.6666666666666667, 1.3868)
    """
    if nonlinearity == "leaky_relu":
        return math.sqrt(2.0 / (1.0 + param**2))
    if nonlinearity not in _GAINS:
        raise ShapeError(f"no gain is known for {nonlinearity!r}; known are {', '.join(_GAINS)} and leaky_relu")
    return _GAINS[nonlinearity]


def constant(shape: Any, value: float, *, dtype: Any = None, device: Any = None) -> Array:
    """Return *value* everywhere, float32 unless another dtype is asked for."""
    return FUNCTIONS["full"](shape, float(value), dtype=dtype or dtypes.float32, device=device)  # type: ignore[no-any-return]


def eye(n: int, m: int | None = None, *, dtype: Any = None, device: Any = None) -> Array:
    """Return the identity matrix [n, m], float32 unless another dtype is asked for."""
    return FUNCTIONS["eye"](n, m, dtype=dtype or dtypes.float32, device=device)  # type: ignore[no-any-return]


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


def trunc_normal(
    shape: Any,
    mean: float = 0.0,
    std: float = 1.0,
    a: float = -2.0,
    b: float = 2.0,
    *,
    dtype: Any = None,
    device: Any = None,
) -> Array:
    """Return normal numbers, those outside of [a, b] cut away: the inverse distribution function of uniform ones.

    *a* and *b* are values, not multiples of *std*.
    """
    if not a < b or std <= 0:
        raise ShapeError(f"cannot draw normal numbers of std {std} in [{a}, {b}]: std must be positive, and a below b")
    low, high = (math.erf((limit - mean) / std / math.sqrt(2.0)) for limit in (a, b))
    share = random.uniform(shape, low, high, dtype=dtypes.float32, device=device)
    drawn = NAMESPACES["special"]["erfinv"](share) * (std * math.sqrt(2.0)) + mean
    return FUNCTIONS["clip"](drawn, a, b).astype(dtype or dtypes.float32, copy=False)  # type: ignore[no-any-return]


def orthogonal(shape: Any, gain: float = 1.0, *, dtype: Any = None, device: Any = None) -> Array:
    """Return a matrix with orthonormal rows or columns, whichever are fewer, times *gain*.

    Axes after the first count as one. Source: Saxe et al., Exact solutions to the nonlinear dynamics of learning in
    deep linear networks (2013).
    """
    sizes = tuple(shape)
    if len(sizes) < _MATRIX:
        raise ShapeError(f"cannot make shape {list(sizes)} orthogonal: it needs at least two axes")
    rows, columns = sizes[0], math.prod(sizes[1:])
    drawn = random.normal((max(rows, columns), min(rows, columns)), dtype=dtypes.float32, device=device)
    q, r = NAMESPACES["linalg"]["qr"](drawn)
    diagonal = NAMESPACES["linalg"]["diagonal"](r)
    q = q * FUNCTIONS["where"](diagonal < 0, -1.0, 1.0).astype(q.dtype)  # so that all rotations are equally likely
    q = q if rows >= columns else q.mT
    return (FUNCTIONS["reshape"](q, sizes) * gain).astype(dtype or dtypes.float32, copy=False)  # type: ignore[no-any-return]


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
