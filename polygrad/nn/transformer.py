"""Transformer blocks.

Here: FeedForward, SwiGLU, TransformerBlock.
Not here: attention (`attention.py`), whole models (`gpt.py`).
"""

from typing import Any

from polygrad.array.functions import FUNCTIONS
from polygrad.array.object import Array
from polygrad.errors import ShapeError
from polygrad.nn.attention import SelfAttention
from polygrad.nn.functional import dropout
from polygrad.nn.kv_cache import KVCache, KVPlace
from polygrad.nn.layers import Linear
from polygrad.nn.module import Module
from polygrad.nn.normalisation import LayerNorm, RMSNorm
from polygrad.nn.positions import RotaryEmbedding

NORMS = ("rms", "layer")
ACTIVATIONS = {"gelu": ("gelu", "none"), "gelu_tanh": ("gelu", "tanh"), "relu": ("relu",), "silu": ("silu",)}


def norm_of(kind: str, dim: int, where: dict[str, Any]) -> Module:
    """Return a norm by its name, "rms" or "layer"."""
    if kind not in NORMS:
        raise ShapeError(f"there is no norm {kind!r}: it is one of {', '.join(map(repr, NORMS))}")
    return LayerNorm(dim, **where) if kind == "layer" else RMSNorm(dim, **where)


class FeedForward(Module):
    """Linear, an activation, Linear, and dropout.

    Parameters
    ----------
    dim, hidden : int
        Features outside and inside.
    activation : str
        "gelu", "gelu_tanh", "relu" or "silu".
    bias : bool
        Whether the linear layers have biases.
    dropout : float
        With which probability an element of the result is dropped in training.
    dtype, device : optional
        Of the parameters; float32 and the default device.
    """

    def __init__(
        self,
        dim: int,
        hidden: int,
        activation: str = "gelu",
        bias: bool = True,
        dropout: float = 0.0,
        *,
        dtype: Any = None,
        device: Any = None,
    ) -> None:
        if activation not in ACTIVATIONS:
            raise ShapeError(
                f"there is no activation {activation!r} for FeedForward: it is one of "
                f"{', '.join(map(repr, ACTIVATIONS))}; SwiGLU is a module of its own"
            )
        self.activation = activation
        self.up = Linear(dim, hidden, bias, dtype=dtype, device=device)
        self.down = Linear(hidden, dim, bias, dtype=dtype, device=device)
        self.dropout = dropout

    def forward(self, x: Array) -> Array:
        """Return an array of *x*'s shape."""
        name, *more = ACTIVATIONS[self.activation]
        return dropout(self.down(FUNCTIONS[name](self.up(x), *more)), self.dropout, self.training)


class SwiGLU(Module):
    """down(silu(gate(x)) * up(x)), the feed-forward part of many language models.

    Source: Shazeer, GLU variants improve transformer (2020).

    Examples
    --------
    >>> import polygrad as pg
    >>> pg.nn.SwiGLU(4, 8)(pg.ones((2, 4), dtype=pg.float32)).shape
    (2, 4)
    """

    def __init__(
        self, dim: int, hidden: int, bias: bool = False, dropout: float = 0.0, *, dtype: Any = None, device: Any = None
    ) -> None:
        self.gate = Linear(dim, hidden, bias, dtype=dtype, device=device)
        self.up = Linear(dim, hidden, bias, dtype=dtype, device=device)
        self.down = Linear(hidden, dim, bias, dtype=dtype, device=device)
        self.dropout = dropout

    def forward(self, x: Array) -> Array:
        """Return an array of *x*'s shape."""
        return dropout(self.down(FUNCTIONS["swiglu"](self.gate(x), self.up(x))), self.dropout, self.training)


class TransformerBlock(Module):
    """x + attention(norm(x)), then x + feed-forward(norm(x)).

    Parameters
    ----------
    dim, heads : int
        Features, and heads of attention.
    hidden : int, optional
        Features inside of the feed-forward part; 4 * dim unless given.
    kv_heads : int, optional
        Heads of keys and values; *heads* unless given.
    norm : str
        "rms" or "layer".
    activation : str
        "swiglu", or what `FeedForward` takes.
    causal : bool
        Whether a position looks only at itself and those before.
    bias : bool
        Whether linear layers have biases.
    dropout : float
        In attention and behind both parts, in training.
    rotary : RotaryEmbedding, optional
        Turns queries and keys by their positions.
    dtype, device : optional
        Of the parameters; float32 and the default device.

    Examples
    --------
    >>> import polygrad as pg
    >>> pg.nn.TransformerBlock(8, 2)(pg.ones((1, 3, 8), dtype=pg.float32)).shape
    (1, 3, 8)
    """

    def __init__(  # noqa: PLR0913  all but three by name
        self,
        dim: int,
        heads: int,
        hidden: int | None = None,
        *,
        kv_heads: int | None = None,
        norm: str = "rms",
        activation: str = "swiglu",
        causal: bool = True,
        bias: bool = False,
        dropout: float = 0.0,
        rotary: RotaryEmbedding | None = None,
        dtype: Any = None,
        device: Any = None,
    ) -> None:
        where = {"dtype": dtype, "device": device}
        self.attention_norm = norm_of(norm, dim, where)
        self.attention = SelfAttention(
            dim, heads, kv_heads, bias=bias, dropout=dropout, causal=causal, rotary=rotary, **where
        )
        self.mlp_norm = norm_of(norm, dim, where)
        inside = 4 * dim if hidden is None else hidden
        self.mlp: Module = (
            SwiGLU(dim, inside, bias, dropout, **where)
            if activation == "swiglu"
            else FeedForward(dim, inside, activation, bias, dropout, **where)
        )

    def forward(self, x: Array, mask: Array | None = None, cache: KVCache | KVPlace | None = None) -> Array:
        """Return an array of *x*'s shape, [N, T, dim]; see `SelfAttention` for *mask* and *cache*."""
        x = x + self.attention(self.attention_norm(x), mask, cache)
        return x + self.mlp(self.mlp_norm(x))  # type: ignore[no-any-return]
