"""Layers that tell a model where in a sequence an element stands.

Here: learnt, sinusoidal and rotary positions.
Not here: attention, embeddings of tokens.
"""

import math
from typing import Any

from polygrad import dtypes
from polygrad.array.functions import FUNCTIONS
from polygrad.array.object import Array
from polygrad.errors import ShapeError
from polygrad.nn import init
from polygrad.nn.module import Module
from polygrad.nn.parameter import Parameter


def _check(name: str, length: int, start: int, most: int) -> None:
    if start + length > most:
        raise ShapeError(
            f"cannot apply {name} to positions {start} to {start + length - 1}: it knows {most}; make it larger or the "
            "sequence shorter"
        )


def rows(start: int, length: int, device: Any) -> Array:
    """Return positions *start* on, [length]; *start* is a number beside their graph, which the next token has too."""
    return FUNCTIONS["arange"](length, device=device) + start  # type: ignore[no-any-return]


def _of(table: Array, start: int, length: int) -> Array:
    """Return the rows of a table from position *start* on."""
    if start > 0:
        return FUNCTIONS["take"](table, rows(start, length, table.device), axis=0)  # type: ignore[no-any-return]
    return table[:length]


def _angles(positions: int, pairs: int, base: float, device: Any) -> Array:
    """Return position * base ** (-pair / pairs) as [positions, pairs], in float32."""
    at = FUNCTIONS["arange"](positions, dtype=dtypes.float32, device=device)
    steps = FUNCTIONS["arange"](pairs, dtype=dtypes.float32, device=device)
    rates = FUNCTIONS["exp"](steps * (-math.log(base) / pairs))
    return FUNCTIONS["expand_dims"](at, -1) * rates  # type: ignore[no-any-return]


class PositionalEmbedding(Module):
    """Add a learnt vector for each position to [..., T, dim].

    Examples
    --------
    >>> import polygrad as pg
    >>> pg.nn.PositionalEmbedding(16, 4)(pg.zeros((2, 3, 4), dtype=pg.float32)).shape
    (2, 3, 4)
    """

    def __init__(self, positions: int, dim: int, *, std: float = 0.02, dtype: Any = None, device: Any = None) -> None:
        self.positions = positions
        self.dim = dim
        self.weight = Parameter(init.normal((positions, dim), 0.0, std, dtype=dtype, device=device))

    def forward(self, x: Array, start: int = 0) -> Array:
        """Return *x* plus the vectors of positions *start* on."""
        length = x.shape[-2]
        _check("PositionalEmbedding", length, start, self.positions)
        return x + _of(self.weight, start, length)

    def extra_repr(self) -> str:
        """Return the sizes."""
        return f"{self.positions}, {self.dim}"


class SinusoidalEmbedding(Module):
    """Add sines and cosines of the position, at falling rates, to [..., T, dim]; nothing is learnt.

    Element 2i is sin(position / base ** (2i / dim)), element 2i + 1 the cosine. Source: Vaswani et al., Attention is
    all you need (2017), section 3.5.
    """

    table: Array

    def __init__(self, positions: int, dim: int, base: float = 10000.0, *, device: Any = None) -> None:
        if dim % 2:
            raise ShapeError(f"cannot tell positions by pairs of {dim} features: their number must be even")
        self.positions = positions
        self.dim = dim
        angles = FUNCTIONS["expand_dims"](_angles(positions, dim // 2, base, device), -1)
        pairs = FUNCTIONS["concat"]([FUNCTIONS["sin"](angles), FUNCTIONS["cos"](angles)], axis=-1)
        table = FUNCTIONS["reshape"](pairs, (positions, dim)).realize()
        self.register_buffer("table", table, persistent=False, converts=False)

    def forward(self, x: Array, start: int = 0) -> Array:
        """Return *x* plus the vectors of positions *start* on, in *x*'s dtype."""
        length = x.shape[-2]
        _check("SinusoidalEmbedding", length, start, self.positions)
        return x + _of(self.table, start, length).astype(x.dtype, copy=False)

    def extra_repr(self) -> str:
        """Return the sizes."""
        return f"{self.positions}, {self.dim}"


class RotaryEmbedding(Module):
    """Turn pairs of features of queries or keys [..., T, dim] by angles that grow with the position.

    The product of a turned query and a turned key depends on their distance alone. Source: Su et al., RoFormer (2021).

    Parameters
    ----------
    dim : int
        Features of a head; even.
    positions : int
        How many positions the tables hold.
    base : float
        Pair i turns by base ** (-2i / dim) a position.
    interleaved : bool
        Whether a pair is elements 2i and 2i + 1, or else elements i and i + dim / 2.
    device : optional
        The default device unless given.

    Examples
    --------
    >>> import polygrad as pg
    >>> rotary = pg.nn.RotaryEmbedding(4, positions=8)
    >>> q = pg.ones((1, 2, 3, 4), dtype=pg.float32)
    >>> bool(pg.all(rotary(q)[:, :, 2] == rotary(q[:, :, 2:], start=2)[:, :, 0]))
    True
    """

    cos: Array
    sin: Array

    def __init__(
        self, dim: int, positions: int = 2048, base: float = 10000.0, *, interleaved: bool = False, device: Any = None
    ) -> None:
        if dim % 2:
            raise ShapeError(f"cannot turn pairs of {dim} features: their number must be even")
        self.dim, self.positions, self.base, self.interleaved = dim, positions, base, interleaved
        angles = _angles(positions, dim // 2, base, device)
        self.register_buffer("cos", FUNCTIONS["cos"](angles).realize(), persistent=False, converts=False)
        self.register_buffer("sin", FUNCTIONS["sin"](angles).realize(), persistent=False, converts=False)

    def forward(self, x: Array, start: int = 0) -> Array:
        """Return *x*, whose second last axis is positions *start* on, turned."""
        length = x.shape[-2]
        _check("RotaryEmbedding", length, start, self.positions)
        cos, sin = _of(self.cos, start, length), _of(self.sin, start, length)
        if x.dtype is dtypes.float64:
            cos, sin = cos.astype(x.dtype), sin.astype(x.dtype)
        return FUNCTIONS["rotary"](x, cos, sin, interleaved=self.interleaved)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        """Return what was asked for."""
        return f"{self.dim}, positions={self.positions}, base={self.base}"
