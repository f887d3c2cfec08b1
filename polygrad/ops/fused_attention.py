"""Attention as a call of the device's own op, which keeps no weights: they go through no memory.

Here: `attention_` and `attention_backward_`, which devices may have, what they are made of elsewhere, and their
derivatives.
Not here: masks other than the causal one, dropout, and who decides for these ops (`attention.py`).

Queries, results and what belongs to them are [batch, length, heads, features], keys and values [batch, keys, shared
heads, features]: so lie the projections that they come from and go to, and nobody copies them. Head h of the queries
looks at head h // (heads / shared heads) of the keys. The logarithm of the sum of a row's exponentials, *lse*, is all
that the backward pass needs beside operands and result to make the weights again.

Notes
-----
Dao, Fu, Ermon, Rudra and Re, "FlashAttention: fast and memory-efficient exact attention with IO-awareness" (2022). With
weights P = softmax(S), S = scale Q K^T, O = P V, and primes for cotangents: V' = P^T O', P' = O' V^T,
S' = P (P' - sum(P P')), Q' = scale S' K, K' = scale S'^T Q.
"""

import math
from typing import Any, NamedTuple

from polygrad import dtypes
from polygrad.ops.internal import cast
from polygrad.ops.statistics import wide
from polygrad.ops.table import library


def _kept(dtype: Any) -> Any:
    """Return the dtype in which sums are taken and *lse* is given."""
    return dtypes.float64 if dtype is dtypes.float64 else dtypes.float32


def _results(q: Any, _k: Any, v: Any, _scale: float, _causal: bool) -> Any:
    batch, rows, heads, _ = q.shape
    return [((batch, rows, heads, v.shape[-1]), q.dtype), ((batch, heads, rows), _kept(q.dtype))]


def _turned(xp: Any, x: Any) -> Any:
    """Return [batch, length, heads, features] as [batch, heads, length, features] in the dtype of sums, and back."""
    return wide(xp, xp.permute_(x, (0, 2, 1, 3)))


def _spread(xp: Any, x: Any, heads: int) -> Any:
    """Return [batch, shared heads, a, b] with a head for each head of the queries."""
    batch, shared, a, b = x.shape
    if shared == heads:
        return x
    apart = xp.broadcast_to(xp.expand_dims(x, 2), (batch, shared, heads // shared, a, b))
    return xp.reshape_(apart, (batch, heads, a, b))


def _gathered(xp: Any, x: Any, like: Any) -> Any:
    """Return the sum over the heads that share one, as *like* lies: [batch, keys, shared heads, features]."""
    batch, heads, a, b = x.shape
    shared = like.shape[2]
    if shared != heads:
        x = xp.sum(xp.reshape_(x, (batch, shared, heads // shared, a, b)), axis=2)
    return cast(xp, _turned(xp, x), like.dtype)


def _summed(xp: Any, x: Any) -> Any:
    return xp.sum_(x, (x.ndim - 1,))


class _Parts(NamedTuple):
    """Operands by heads, in the dtype of sums, and their weights."""

    q: Any
    k: Any
    v: Any
    weights: Any
    lse: Any  # [batch, heads, rows, 1]


def _parts(xp: Any, q: Any, k: Any, v: Any, scale: float, causal: bool) -> _Parts:
    heads = q.shape[2]
    q, k, v = _turned(xp, q), *[_spread(xp, _turned(xp, x), heads) for x in (k, v)]
    scores = xp.matmul_(q, xp.swap_last(k)) * scale
    if causal:
        rows, columns = scores.shape[-2:]
        seen = xp.reshape_(xp.iota(rows, dtypes.int64), (rows, 1)) >= xp.iota(columns, dtypes.int64)
        scores = xp.where(seen, scores, xp.full_of(-math.inf, scores))
    top = xp.max_(xp.cut(scores), (scores.ndim - 1,))
    e = xp.exp(scores - top)
    total = _summed(xp, e)
    return _Parts(q, k, v, e / total, top + xp.log(total))


def _attention_here(xp: Any, q: Any, k: Any, v: Any, scale: float, causal: bool) -> Any:
    p = _parts(xp, q, k, v, scale, causal)
    out = cast(xp, _turned(xp, xp.matmul_(p.weights, p.v)), q.dtype)
    return out, xp.reshape_(p.lse, p.lse.shape[:-1])


def _to_scores(xp: Any, p: _Parts, weights: Any) -> Any:
    """Return the cotangent of scores for that of *weights*; the tangents of both go the other way in the same way."""
    moved = p.weights * weights
    return moved - p.weights * _summed(xp, moved)


def _backward_here(
    xp: Any, q: Any, k: Any, v: Any, _out: Any, _lse: Any, g: Any, scale: float, causal: bool
) -> tuple[Any, Any, Any]:
    p = _parts(xp, q, k, v, scale, causal)
    g = _turned(xp, g)
    s = _to_scores(xp, p, xp.matmul_(g, xp.swap_last(p.v))) * scale
    return (
        cast(xp, _turned(xp, xp.matmul_(s, p.k)), q.dtype),
        _gathered(xp, xp.matmul_(xp.swap_last(s), p.q), k),
        _gathered(xp, xp.matmul_(xp.swap_last(p.weights), g), v),
    )


def _tangent_of_scores(xp: Any, p: _Parts, t: Any, which: int, scale: float) -> Any:
    """Return the tangent of scores for *t*, that of queries (0) or of keys (1)."""
    t = _turned(xp, t)
    pair = (t, p.k) if which == 0 else (p.q, _spread(xp, t, p.q.shape[1]))
    return xp.matmul_(pair[0], xp.swap_last(pair[1])) * scale


def _along(which: int) -> Any:
    """Return the rule of the tangent that operand *which* of attention gives."""

    def rule(xp: Any, t: Any, _out: Any, q: Any, k: Any, v: Any, index: int, scale: float, causal: bool) -> Any:
        p = _parts(xp, q, k, v, scale, causal)
        if which == 2:
            if index == 1:
                return xp.zeros_like(xp.reshape_(p.lse, p.lse.shape[:-1]))
            value = xp.matmul_(p.weights, _spread(xp, _turned(xp, t), q.shape[2]))
        else:
            s = _tangent_of_scores(xp, p, t, which, scale)
            if index == 1:
                return xp.reshape_(_summed(xp, p.weights * s), p.lse.shape[:-1])
            value = xp.matmul_(_to_scores(xp, p, s), p.v)
        return cast(xp, _turned(xp, value), q.dtype)

    return rule


def _back(which: int) -> Any:
    """Return the rule of the cotangent of operand *which* of attention."""

    def rule(xp: Any, g: Any, out: Any, q: Any, k: Any, v: Any, index: int, scale: float, causal: bool) -> Any:
        if index == 0:
            return xp.attention_backward_(q, k, v, out, xp.sibling(out, 1), g, scale, causal)[which]
        p = _parts(xp, q, k, v, scale, causal)
        s = p.weights * xp.expand_dims(g, -1) * scale
        if which == 0:
            return cast(xp, _turned(xp, xp.matmul_(s, p.k)), q.dtype)
        return _gathered(xp, xp.matmul_(xp.swap_last(s), p.q), k) if which == 1 else xp.zeros_like(v)

    return rule


class _Curve(NamedTuple):
    """How the results of the backward pass change: tangents of the gradients by queries, keys, values; and of *out*."""

    q: Any
    k: Any
    v: Any
    out: Any


def _curve(xp: Any, t: Any, which: int, q: Any, k: Any, v: Any, g: Any, scale: float, causal: bool) -> _Curve:
    """Return how things change along *t*, a tangent of queries (0), keys (1) or values (2)."""
    p = _parts(xp, q, k, v, scale, causal)
    g = _turned(xp, g)
    weights = xp.matmul_(g, xp.swap_last(p.v))  # the cotangent of the weights
    s = _to_scores(xp, p, weights) * scale
    if which == 2:
        step = _spread(xp, _turned(xp, t), q.shape[2])
        bent = _to_scores(xp, p, xp.matmul_(g, xp.swap_last(step))) * scale
        along_q, along_k, out = xp.matmul_(bent, p.k), xp.matmul_(xp.swap_last(bent), p.q), xp.matmul_(p.weights, step)
        along_v = xp.zeros_like(p.v)
    else:
        change = _to_scores(xp, p, _tangent_of_scores(xp, p, t, which, scale))  # of the weights
        # Of s: the weights in p.weights * (weights - sum(p.weights * weights)) change, where they stand twice.
        bent = (
            change * (weights - _summed(xp, p.weights * weights)) - p.weights * _summed(xp, change * weights)
        ) * scale
        along_q, along_k = xp.matmul_(bent, p.k), xp.matmul_(xp.swap_last(bent), p.q)
        step = _turned(xp, t)
        if which == 0:
            along_k = along_k + xp.matmul_(xp.swap_last(s), step)
        else:
            along_q = along_q + xp.matmul_(s, _spread(xp, step, q.shape[2]))
        along_v, out = xp.matmul_(xp.swap_last(change), g), xp.matmul_(change, p.v)
    return _Curve(
        cast(xp, _turned(xp, along_q), q.dtype),
        _gathered(xp, along_k, k),
        _gathered(xp, along_v, v),
        cast(xp, _turned(xp, out), q.dtype),
    )


def _bent_along(which: int) -> Any:
    """Return the rule of the tangent that operand *which* of the backward pass gives."""

    def rule(xp: Any, t: Any, _out: Any, q: Any, k: Any, v: Any, _o: Any, _l: Any, g: Any, *attrs: Any) -> Any:
        return _curve(xp, t, which, q, k, v, g, *attrs[1:])[attrs[0]]

    return rule


def _bent_back(which: int) -> Any:
    """Return the rule of the cotangent of operand *which* of the backward pass.

    The backward pass is the slope of the number sum(out * g), so its own slopes are symmetric: a cotangent of the
    gradient by one operand goes back to another as a tangent of that one would go along.
    """

    def rule(xp: Any, c: Any, _out: Any, q: Any, k: Any, v: Any, _o: Any, _l: Any, g: Any, *attrs: Any) -> Any:
        return _curve(xp, c, attrs[0], q, k, v, g, *attrs[1:])[which]

    return rule


def _cotangent_along(
    xp: Any, t: Any, _out: Any, q: Any, k: Any, v: Any, o: Any, lse: Any, _g: Any, index: int, *attrs: Any
) -> Any:
    """Gradients are linear in the cotangent that they begin with; *out* weighs it too, and so comes in full."""
    return xp.attention_backward_(q, k, v, o, lse, t, *attrs)[index]


def _batch(xp: Any, n: int, out: Any, lifted: Any, operands: Any, index: int, *attrs: Any) -> Any:
    """More examples are more of the batch, which is the first axis of everything."""
    given = []
    for x, moved in zip(operands, lifted, strict=True):
        whole = x if moved else xp.expand_(xp.reshape_(x, (1, *x.shape)), (n, *x.shape))
        given.append(xp.reshape_(whole, (n * whole.shape[1], *whole.shape[2:])))
    made = getattr(xp, out.op.name)(*given, *attrs)[index]
    return xp.reshape_(made, (n, made.shape[0] // n, *made.shape[1:]))


def _attrs(scale: float, causal: bool) -> dict[str, Any]:
    return {"scale": scale, "causal": causal}


def _reference_parts(np: Any, q: Any, k: Any, v: Any, scale: float, causal: bool) -> Any:
    share = q.shape[2] // k.shape[2]
    k, v = np.repeat(k, share, 2), np.repeat(v, share, 2)
    scores = np.einsum("blhd,bshd->bhls", q, k) * scale
    if causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    top = scores.max(-1, keepdims=True)
    e = np.exp(scores - top)
    total = e.sum(-1, keepdims=True)
    return k, v, e / total, (top + np.log(total))[..., 0]


@library(
    results=_results,
    fallback=_attention_here,
    vjp=(_back(0), _back(1), _back(2)),
    jvp=(_along(0), _along(1), _along(2)),
    params=_attrs,
    batch=_batch,
    strided=True,
)
def attention_(np: Any, q: Any, k: Any, v: Any, scale: float, causal: bool) -> Any:
    """What queries take from values, and the logarithm of the sum of each row's exponentials."""
    _, values, weights, lse = _reference_parts(np, q, k, v, scale, causal)
    return np.einsum("bhls,bshd->blhd", weights, values), lse


@library(
    results=lambda q, k, v, out, lse, g, scale, causal: [(x.shape, x.dtype) for x in (q, k, v)],
    fallback=_backward_here,
    vjp=(_bent_back(0), _bent_back(1), _bent_back(2), None, None, _bent_back(3)),
    jvp=(_bent_along(0), _bent_along(1), _bent_along(2), None, None, _cotangent_along),
    params=_attrs,
    batch=_batch,
    strided=True,
    placed=True,
)
def attention_backward_(np: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, g: Any, scale: float, causal: bool) -> Any:
    """The gradients by queries, keys and values, for that by the result; *out* and *lse* are what attention gave."""
    keys, values, weights, _ = _reference_parts(np, q, k, v, scale, causal)
    towards = np.einsum("blhd,bshd->bhls", g, values)
    s = weights * (towards - (weights * towards).sum(-1, keepdims=True)) * scale
    by_head = np.einsum("bhls,blhd->bshd", s, q), np.einsum("bhls,blhd->bshd", weights, g)
    batch, length, shared, _ = k.shape
    k_gradient, v_gradient = (x.reshape(batch, length, shared, -1, x.shape[-1]).sum(3) for x in by_head)
    return np.einsum("bhls,bshd->blhd", s, keys), k_gradient, v_gradient
