"""Attention: what queries take from values, by how they match keys; and the rotation that tells positions.

Here: attention_weights, attention, rotary.
Not here: projections, heads' parameters, dropout and caches, which are in `polygrad.nn`.
"""

import math
from typing import Any

from polygrad import dtypes
from polygrad.errors import DTypeError, ShapeError
from polygrad.ops.internal import cast, unwatched
from polygrad.ops.statistics import floating, wide
from polygrad.ops.table import composite
from polygrad.symbols import is_symbol

# Features of a head that a device's own op is asked for at most: tiles of them have to fit a group's memory.
FEATURES = {dtypes.float32: 128, dtypes.float64: 64, dtypes.float16: 128, dtypes.bfloat16: 128}
_MATRIX = 2  # axes of positions and features; those before are a batch, the last of them the heads


def _check(q: Any, k: Any) -> None:
    if q.ndim < _MATRIX or k.ndim < _MATRIX or q.shape[-1] != k.shape[-1]:
        raise ShapeError(
            f"cannot attend with queries {list(q.shape)} to keys {list(k.shape)}: they are [..., length, features], "
            "with equally many features"
        )


def _groups(q: Any, k: Any, enable_gqa: bool) -> int:
    """Return how many heads of queries share one head of keys."""
    if not enable_gqa or q.ndim == _MATRIX:
        return 1
    if k.ndim != q.ndim or k.shape[-3] == 0 or q.shape[-3] % k.shape[-3]:
        raise ShapeError(
            f"cannot share keys {list(k.shape)} among the heads of queries {list(q.shape)}: the number of heads, axis "
            "-3, of the queries must be a multiple of that of the keys"
        )
    return int(q.shape[-3] // k.shape[-3])


def _apart(xp: Any, x: Any, groups: int) -> Any:
    """Return [..., heads, a, b] as [..., heads / groups, groups, a, b]."""
    return xp.reshape(x, (*x.shape[:-3], x.shape[-3] // groups, groups, *x.shape[-2:]))


def _mask_apart(xp: Any, mask: Any, groups: int) -> Any:
    """Return a mask whose axis of heads, if it has one, is split like that of the queries."""
    if mask.ndim <= _MATRIX:
        return mask
    return xp.expand_dims(mask, -3) if mask.shape[-3] == 1 else _apart(xp, mask, groups)


def _masked(xp: Any, scores: Any, mask: Any, is_causal: bool) -> Any:
    """Return scores with -inf where a query must not look."""
    if mask is not None:
        fits = mask.ndim <= scores.ndim and all(
            m in (1, n) for m, n in zip(mask.shape[::-1], scores.shape[::-1], strict=False)
        )
        if not fits:
            raise ShapeError(
                f"cannot mask scores of shape {list(scores.shape)} with a mask of shape {list(mask.shape)}: it must "
                "broadcast to [..., queries, keys]"
            )
        if mask.dtype is dtypes.bool_:
            scores = xp.where(mask, scores, xp.full_of(-math.inf, scores))
        elif dtypes.KINDS[mask.dtype] == "float":
            scores = scores + cast(xp, mask, scores.dtype)
        else:
            raise DTypeError(
                f"cannot mask with {mask.dtype.name}: a mask is bool, true where a query may look, or float, and added"
            )
    if is_causal:
        rows, columns = scores.shape[-2:]
        seen = xp.reshape_(xp.iota(rows, dtypes.int64), (rows, 1)) >= xp.iota(columns, dtypes.int64)
        scores = xp.where(seen, scores, xp.full_of(-math.inf, scores))
    return scores


def _weights(xp: Any, scores: Any, masked: bool, dtype: Any) -> Any:
    """Return the softmax over keys; a query that may look nowhere has weights 0."""
    if 0 in scores.shape:
        return cast(xp, scores, dtype)
    top = xp.max_(unwatched(xp, scores), (scores.ndim - 1,))
    if masked:
        top = xp.where(xp.equal(top, -math.inf), xp.zeros_like(top), top)
    e = xp.exp(scores - top)
    total = xp.sum_(e, (scores.ndim - 1,))
    if masked:
        total = xp.where(xp.equal(total, 0.0), xp.ones_like(total), total)
    return cast(xp, e / total, dtype)


def _prepare(
    xp: Any, query: Any, key: Any, mask: Any, is_causal: bool, scale: Any, enable_gqa: bool
) -> tuple[Any, int]:
    """Return the weights, their heads apart if heads of keys are shared, and how many queries share one."""
    q, k = floating(xp, "attention", query), floating(xp, "attention", key)
    _check(q, k)
    groups = _groups(q, k, enable_gqa)
    if groups > 1:
        q, k = _apart(xp, q, groups), xp.expand_dims(k, -3)
        mask = None if mask is None else _mask_apart(xp, mask, groups)
    factor = 1.0 / math.sqrt(max(1, q.shape[-1])) if scale is None else scale
    scores = wide(xp, xp.matmul(q, xp.swap_last(k))) * factor
    scores = _masked(xp, scores, mask, is_causal)
    return _weights(xp, scores, mask is not None, dtypes.promote(q.dtype, k.dtype)), groups


def suits(xp: Any, q: Any, k: Any, v: Any, scale: Any, enable_gqa: Any) -> bool:
    """Whether the device's own op, if it has one, computes this attention; what is wrong with it is said elsewhere."""
    if not (q.dtype is k.dtype is v.dtype and q.dtype in FEATURES and q.ndim == k.ndim == v.ndim >= _MATRIX):
        return False
    known = scale is None or (isinstance(scale, (int, float)) and not is_symbol(scale))  # it is part of the structure
    if not known or 0 in (*q.shape, *k.shape, *v.shape):
        return False
    if q.shape[-1] != k.shape[-1] or k.shape[:-1] != v.shape[:-1] or max(q.shape[-1], v.shape[-1]) > FEATURES[q.dtype]:
        return False
    if q.shape[:-3] != k.shape[:-3]:
        return False
    if q.shape[:-2] != k.shape[:-2] and (not enable_gqa or q.shape[-3] % k.shape[-3]):
        return False
    return bool(xp.has_op_("attention", q, k, v))


def _called(xp: Any, query: Any, key: Any, value: Any, is_causal: Any, scale: Any) -> Any:
    """Return attention by the device's own op, which takes [batch, length, heads, features]."""

    def laid(x: Any) -> Any:
        heads = x.shape[-3] if x.ndim > _MATRIX else 1
        return xp.permute_(xp.reshape(x, (math.prod(x.shape[:-3]), heads, *x.shape[-2:])), (0, 2, 1, 3))

    factor = 1.0 / math.sqrt(query.shape[-1]) if scale is None else float(scale)
    out, _ = xp.attention_(laid(query), laid(key), laid(value), factor, bool(is_causal))
    return xp.reshape(xp.permute_(out, (0, 2, 1, 3)), (*query.shape[:-1], value.shape[-1]))


def _reference_weights(
    np: Any, q: Any, k: Any, mask: Any = None, is_causal: bool = False, scale: Any = None, enable_gqa: bool = False
) -> Any:
    if enable_gqa:
        k = np.repeat(k, q.shape[-3] // k.shape[-3], axis=-3)
    scores = np.einsum("...ld,...sd->...ls", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    if is_causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    top = np.max(scores, axis=-1, keepdims=True)
    e = np.exp(scores - np.where(np.isinf(top), 0, top))
    total = np.sum(e, axis=-1, keepdims=True)
    return e / np.where(total == 0, 1, total)


def _reference(np: Any, q: Any, k: Any, v: Any, mask: Any = None, kept: Any = None, **more: Any) -> Any:
    if more.get("enable_gqa"):
        v = np.repeat(v, q.shape[-3] // v.shape[-3], axis=-3)
    weights = _reference_weights(np, q, k, mask, **more) * (1 if kept is None else kept)
    return np.einsum("...ls,...sd->...ld", weights, v)


def _samples(draw: Any) -> Any:
    def pick(*shape: int) -> Any:
        return draw.array(shape, -2, 2)

    q, k, v = pick(2, 4, 3, 5), pick(2, 4, 6, 5), pick(2, 4, 6, 2)
    shared = pick(2, 2, 6, 5), pick(2, 2, 6, 3)
    some = draw.bools((3, 6))
    some[0] = False  # a query that may look nowhere
    return [
        ((q, k, v), {}),
        ((q, k, v), {"is_causal": True, "scale": 0.3}),
        ((q, k, v, some), {}),
        ((q, k, v, draw.bools((2, 1, 3, 6))), {"is_causal": True}),
        ((q, k, v, pick(4, 1, 6)), {}),
        ((q, *shared), {"enable_gqa": True, "is_causal": True}),
        ((q, *shared, draw.bools((2, 4, 3, 6))), {"enable_gqa": True}),
        ((pick(3, 4), pick(2, 4), pick(2, 4), None, draw.array((3, 2), 0, 1)), {}),
    ]


@composite(reference=_reference, samples=_samples, tolerance=4.0)  # a sum of products of sums
def attention(
    xp: Any,
    query: Any,
    key: Any,
    value: Any,
    /,
    attn_mask: Any = None,
    kept: Any = None,
    *,
    is_causal: Any = False,
    scale: Any = None,
    enable_gqa: Any = False,
) -> Any:
    """softmax(query @ key.T * scale) @ value, over the last two axes; *scale* is 1 / sqrt(features) unless given.

    *attn_mask* is bool, true where a query may look, or float and added to the scores; with *is_causal* query i looks
    at keys 0 to i alone; both together forbid what either does. A query that may look nowhere gets zeros. *kept* is
    multiplied with the weights, as dropout does. With *enable_gqa* heads of queries share heads of keys and values.
    """
    if attn_mask is None and kept is None and suits(xp, query, key, value, scale, enable_gqa):
        return _called(xp, query, key, value, is_causal, scale)
    weights, groups = _prepare(xp, query, key, attn_mask, is_causal, scale, enable_gqa)
    v = floating(xp, "attention", value)
    if v.ndim < _MATRIX or v.shape[-2] != key.shape[-2]:
        raise ShapeError(
            f"cannot attend to keys {list(key.shape)} with values {list(v.shape)}: both have one row for each position"
        )
    if kept is not None:
        weights = weights * (cast(xp, kept, weights.dtype) if groups == 1 else _mask_apart(xp, kept, groups))
    if groups == 1:
        return xp.matmul(weights, v)
    out = xp.matmul(weights, xp.expand_dims(v, -3))
    return xp.reshape(out, (*query.shape[:-1], v.shape[-1]))


@composite(
    reference=_reference_weights,
    samples=lambda draw: [
        ((draw.array((2, 4, 3, 5), -2, 2), draw.array((2, 2, 6, 5), -2, 2)), {"enable_gqa": True, "is_causal": True}),
        ((draw.array((3, 5), -2, 2), draw.array((4, 5), -2, 2), draw.bools((3, 4))), {"scale": 1.0}),
    ],
    tolerance=4.0,  # as attention
)
def attention_weights(
    xp: Any,
    query: Any,
    key: Any,
    /,
    attn_mask: Any = None,
    *,
    is_causal: Any = False,
    scale: Any = None,
    enable_gqa: Any = False,
) -> Any:
    """The weights with which `attention` takes values: one row for each query, summing to 1."""
    weights, groups = _prepare(xp, query, key, attn_mask, is_causal, scale, enable_gqa)
    return weights if groups == 1 else xp.reshape(weights, (*query.shape[:-1], key.shape[-2]))


def _rotary_reference(np: Any, x: Any, cos: Any, sin: Any, interleaved: bool = False) -> Any:
    a, b = (x[..., ::2], x[..., 1::2]) if interleaved else np.split(x, 2, -1)
    turned = a * cos - b * sin, b * cos + a * sin
    return np.reshape(np.stack(turned, -1), x.shape) if interleaved else np.concatenate(turned, -1)


@composite(
    reference=_rotary_reference,
    samples=lambda draw: [
        ((draw.array((2, 3, 6), -2, 2), draw.array((3, 3), -1, 1), draw.array((3, 3), -1, 1)), {"interleaved": how})
        for how in (False, True)
    ],
)
def rotary(xp: Any, x: Any, cos: Any, sin: Any, /, *, interleaved: Any = False) -> Any:
    """Turn pairs of the last axis by angles: (a, b) becomes (a cos - b sin, b cos + a sin).

    A pair is element i and element i + size / 2, or with *interleaved* elements 2i and 2i + 1. Source: Su et al.,
    RoFormer (2021), section 3.2.
    """
    x = floating(xp, "rotary", x)
    if x.ndim == 0 or x.shape[-1] % 2 or cos.shape[-1:] != (x.shape[-1] // 2,):
        raise ShapeError(
            f"cannot turn pairs of shape {list(x.shape)} by angles {list(cos.shape)}: the last axis holds an even "
            "number of elements, and one angle for two of them"
        )
    half = x.shape[-1] // 2
    values = wide(xp, x)
    if interleaved:
        pairs = xp.reshape(values, (*x.shape[:-1], half, 2))
        sizes = (*pairs.shape[:-1], 1)
        starts = (0,) * (pairs.ndim - 1)
        a, b = (xp.reshape(xp.slice_(pairs, (*starts, k), (1,) * pairs.ndim, sizes), sizes[:-1]) for k in (0, 1))
        turned = [xp.expand_dims(a * cos - b * sin, -1), xp.expand_dims(b * cos + a * sin, -1)]
        return cast(xp, xp.reshape(xp.concat(turned, axis=-1), x.shape), x.dtype)
    sizes = (*x.shape[:-1], half)
    starts = (0,) * (x.ndim - 1)
    a, b = (xp.slice_(values, (*starts, k * half), (1,) * x.ndim, sizes) for k in (0, 1))
    return cast(xp, xp.concat([a * cos - b * sin, b * cos + a * sin], axis=-1), x.dtype)
