"""Attention layers.

Here: MultiheadAttention with PyTorch's parameters and masks; SelfAttention of transformer blocks, with shared heads,
rotary positions and a cache.
Not here: the formula (`polygrad.ops.attention`), positions (`positions.py`), the cache (`kv_cache.py`), blocks
(`transformer.py`).
"""

import math
from typing import Any

from polygrad import dtypes
from polygrad.array.functions import FUNCTIONS
from polygrad.array.object import Array
from polygrad.errors import DTypeError, ShapeError
from polygrad.nn import init
from polygrad.nn.functional import dropout, scaled_dot_product_attention
from polygrad.nn.kv_cache import KVCache, KVPlace, filled
from polygrad.nn.layers import Linear
from polygrad.nn.module import Module
from polygrad.nn.parameter import Parameter
from polygrad.nn.positions import RotaryEmbedding

_BATCHED = 3  # axes of [N, length, features]


def _heads(name: str, dim: int, heads: int) -> int:
    if heads < 1 or dim % heads:
        raise ShapeError(f"cannot split {dim} features of {name} into {heads} heads: they must divide by their number")
    return dim // heads


class MultiheadAttention(Module):
    """Attention of several heads, each over its own projections; parameters are called as PyTorch calls them.

    Parameters
    ----------
    embed_dim, num_heads : int
        Features of queries and results, and into how many heads they are split.
    dropout : float
        With which probability a weight is dropped in training.
    bias : bool
        Whether the projections have biases.
    kdim, vdim : int, optional
        Features of keys and values; *embed_dim* unless given.
    batch_first : bool
        Whether arrays are [N, length, features]; else they are [length, N, features], as in PyTorch.
    dtype, device : optional
        Of the parameters; float32 and the default device.

    Examples
    --------
    >>> import polygrad as pg
    >>> layer = pg.nn.MultiheadAttention(8, 2, batch_first=True)
    >>> x = pg.ones((1, 3, 8), dtype=pg.float32)
    >>> out, weights = layer(x, x, x, is_causal=True)
    >>> out.shape, weights.shape
    ((1, 3, 8), (1, 3, 3))
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        *,
        dtype: Any = None,
        device: Any = None,
    ) -> None:
        where = {"dtype": dtype, "device": device}
        self.head_dim = _heads("MultiheadAttention", embed_dim, num_heads)
        self.embed_dim, self.num_heads, self.dropout, self.batch_first = embed_dim, num_heads, dropout, batch_first
        sizes = (embed_dim, kdim or embed_dim, vdim or embed_dim)
        self.packed = sizes == (embed_dim,) * 3
        if self.packed:
            self.in_proj_weight = Parameter(init.xavier_uniform((3 * embed_dim, embed_dim), **where))
        else:
            for name, size in zip("qkv", sizes, strict=True):
                weight = Parameter(init.xavier_uniform((embed_dim, size), **where))
                self.register_parameter(f"{name}_proj_weight", weight)
        self.in_proj_bias = Parameter(init.zeros((3 * embed_dim,), **where), no_decay=True) if bias else None
        self.out_proj = Linear(embed_dim, embed_dim, bias, dtype=dtype, device=device)
        if self.out_proj.bias is not None:
            self.out_proj.bias = Parameter(init.zeros((embed_dim,), **where), no_decay=True)

    def forward(
        self,
        query: Array,
        key: Array,
        value: Array,
        key_padding_mask: Array | None = None,
        need_weights: bool = True,
        attn_mask: Array | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Array, Array | None]:
        """Return what the queries take, and the weights with which they do.

        Parameters
        ----------
        query, key, value : Array
            Of three axes, or of two for a single example.
        key_padding_mask : Array, optional
            [N, S]: true, as in PyTorch, for keys that are not to be seen; or float, and added.
        need_weights : bool
            Whether to return weights; they are computed only when somebody reads them.
        attn_mask : Array, optional
            [L, S] or [N * num_heads, L, S]: true, as in PyTorch, where a query must not look; or float, and added.
        average_attn_weights : bool
            Whether weights are the mean over heads, [N, L, S], or those of each head, [N, heads, L, S].
        is_causal : bool
            Query i looks at keys 0 to i alone, whatever the masks say beside that.

        Returns
        -------
        tuple of (Array, Array or None)
            The result in the form of the query; weights before dropout.
        """
        single = query.ndim == _BATCHED - 1
        arrays = [FUNCTIONS["expand_dims"](a, 0) if single else a for a in (query, key, value)]
        if not single and not self.batch_first:
            arrays = [FUNCTIONS["swapaxes"](a, 0, 1) for a in arrays]
        self._check(arrays)
        if single and key_padding_mask is not None:
            key_padding_mask = FUNCTIONS["expand_dims"](key_padding_mask, 0)
        q, k, v = (self._split(a) for a in self._projected(arrays))
        mask = self._mask(q, k, attn_mask, key_padding_mask)
        share = self.dropout if self.training else 0.0
        out = scaled_dot_product_attention(q, k, v, mask, share, is_causal)
        out = FUNCTIONS["reshape"](FUNCTIONS["swapaxes"](out, 1, 2), (*arrays[0].shape[:2], self.embed_dim))
        out = self.out_proj(out)
        if single:
            out = FUNCTIONS["squeeze"](out, 0)
        elif not self.batch_first:
            out = FUNCTIONS["swapaxes"](out, 0, 1)
        if not need_weights:
            return out, None
        weights = FUNCTIONS["attention_weights"](q, k, mask, is_causal=is_causal)
        weights = FUNCTIONS["mean"](weights, axis=1) if average_attn_weights else weights
        return out, FUNCTIONS["squeeze"](weights, 0) if single else weights

    def _check(self, arrays: list[Array]) -> None:
        q, k, v = (a.shape for a in arrays)
        if any(len(s) != _BATCHED for s in (q, k, v)) or q[0] != k[0] or k[:2] != v[:2]:
            raise ShapeError(
                f"cannot attend with query, key and value of shapes {', '.join(str(list(s)) for s in (q, k, v))} (as "
                "[N, length, features]): N must be equal, and keys and values equally many"
            )

    def _projected(self, arrays: list[Array]) -> list[Array]:
        n = self.embed_dim
        out = []
        for j, (name, a) in enumerate(zip("qkv", arrays, strict=True)):
            weight = self.in_proj_weight[j * n : (j + 1) * n] if self.packed else getattr(self, f"{name}_proj_weight")
            bias = None if self.in_proj_bias is None else self.in_proj_bias[j * n : (j + 1) * n]
            out.append(FUNCTIONS["linear"](a, weight, bias))
        return out

    def _split(self, x: Array) -> Array:
        """Return [N, length, features] as [N, heads, length, features of a head]."""
        parts = FUNCTIONS["reshape"](x, (*x.shape[:2], self.num_heads, self.head_dim))
        return FUNCTIONS["swapaxes"](parts, 1, 2)  # type: ignore[no-any-return]

    def _mask(self, q: Array, k: Array, mask: Array | None, padding: Array | None) -> Array | None:
        """Return both masks as one of `scaled_dot_product_attention`: true where a query may look, or float."""
        n, length, keys = q.shape[0], q.shape[2], k.shape[2]
        parts = []
        if mask is not None:
            if mask.shape not in ((length, keys), (n * self.num_heads, length, keys), (1, length, keys)):
                raise ShapeError(
                    f"cannot mask with shape {list(mask.shape)}: attn_mask is [{length}, {keys}] or "
                    f"[{n * self.num_heads}, {length}, {keys}]"
                )
            whole = mask.ndim == _BATCHED and mask.shape[0] != 1
            parts.append(FUNCTIONS["reshape"](mask, (n, self.num_heads, length, keys)) if whole else mask)
        if padding is not None:
            if padding.shape != (n, keys):
                raise ShapeError(f"cannot mask with shape {list(padding.shape)}: key_padding_mask is [{n}, {keys}]")
            parts.append(FUNCTIONS["reshape"](padding, (n, 1, 1, keys)))
        if not parts:
            return None
        if all(p.dtype is dtypes.bool_ for p in parts):
            hidden = parts[0]
            for p in parts[1:]:
                hidden = hidden | p
            return FUNCTIONS["logical_not"](hidden)  # type: ignore[no-any-return]
        total: Any = 0.0
        for p in parts:
            if p.dtype is not dtypes.bool_ and dtypes.KINDS[p.dtype] != "float":
                raise DTypeError(f"cannot mask with {p.dtype.name}: a mask is bool or float")
            total = (FUNCTIONS["where"](p, -math.inf, 0.0) if p.dtype is dtypes.bool_ else p) + total
        return total  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        """Return the sizes."""
        return f"{self.embed_dim}, {self.num_heads}, dropout={self.dropout}, batch_first={self.batch_first}"


class SelfAttention(Module):
    """Attention of positions to each other, with one projection for queries, keys and values.

    Parameters
    ----------
    dim, heads : int
        Features, and into how many heads they are split.
    kv_heads : int, optional
        How many heads of keys and values there are, shared by groups of heads of queries; *heads* unless given.
    bias : bool
        Whether the projections have biases.
    dropout : float
        With which probability a weight, and an element of the result, is dropped in training.
    causal : bool
        Whether a position looks only at itself and those before.
    rotary : RotaryEmbedding, optional
        Turns queries and keys by their positions.
    dtype, device : optional
        Of the parameters; float32 and the default device.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        kv_heads: int | None = None,
        *,
        bias: bool = False,
        dropout: float = 0.0,
        causal: bool = True,
        rotary: RotaryEmbedding | None = None,
        dtype: Any = None,
        device: Any = None,
    ) -> None:
        self.head_dim = _heads("SelfAttention", dim, heads)
        self.dim, self.heads, self.kv_heads = dim, heads, kv_heads or heads
        if heads % self.kv_heads:
            raise ShapeError(f"cannot share {self.kv_heads} heads of keys among {heads} heads of queries evenly")
        self.dropout, self.causal = dropout, causal
        outputs = (heads + 2 * self.kv_heads) * self.head_dim
        self.qkv = Linear(dim, outputs, bias, dtype=dtype, device=device)
        self.out = Linear(dim, dim, bias, dtype=dtype, device=device)
        self.rotary = rotary

    def forward(self, x: Array, mask: Array | None = None, cache: KVCache | KVPlace | None = None) -> Array:
        """Return [N, T, dim] for [N, T, dim].

        *mask* is that of `scaled_dot_product_attention`; causality is kept beside it. With *cache* the positions follow
        those in it, and look at them too.
        """
        n, length, _ = x.shape
        parts = FUNCTIONS["reshape"](self.qkv(x), (n, length, self.heads + 2 * self.kv_heads, self.head_dim))
        parts = FUNCTIONS["swapaxes"](parts, 1, 2)
        q = parts[:, : self.heads]
        k = parts[:, self.heads : self.heads + self.kv_heads]
        v = parts[:, self.heads + self.kv_heads :]
        start = 0 if cache is None else cache.start
        if self.rotary is not None:
            q, k = self.rotary(q, start), self.rotary(k, start)
        causal = self.causal and length > 1
        if cache is not None:
            k, v = cache.append(k, v)
            if mask is None and self.causal and start > 0:
                # More room than is filled, and a mask that shows how much: the graph of the next token is this one's
                # graph, with other offsets, and need not be planned again.
                k, v = cache.up_to(cache.room)
                mask, causal = filled(start, length, cache.room, x.device), False
        if causal and start > 0:
            mask, causal = _later_rows(start, length, mask, x.device), False
        share = self.dropout if self.training else 0.0
        grouped = self.heads != self.kv_heads
        out = scaled_dot_product_attention(q, k, v, mask, share, causal, enable_gqa=grouped)
        out = FUNCTIONS["reshape"](FUNCTIONS["swapaxes"](out, 1, 2), (n, length, self.dim))
        return dropout(self.out(out), self.dropout, self.training)

    def extra_repr(self) -> str:
        """Return the sizes."""
        return f"{self.dim}, heads={self.heads}, kv_heads={self.kv_heads}"


def _later_rows(start: int, length: int, mask: Array | None, device: str) -> Array:
    """Return the rows of a causal mask from position *start* on, joined with another mask."""
    rows = FUNCTIONS["arange"](start, start + length, device=device)
    seen = FUNCTIONS["expand_dims"](rows, -1) >= FUNCTIONS["arange"](start + length, device=device)
    if mask is None:
        return seen  # type: ignore[no-any-return]
    if mask.dtype is dtypes.bool_:
        return seen & mask  # type: ignore[no-any-return]
    return FUNCTIONS["where"](seen, mask, -math.inf)  # type: ignore[no-any-return]
