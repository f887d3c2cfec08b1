"""The checks of attention and of its backward pass, by definition, in float64.

Here: operands, attrs and values of both ops, for `library_checks.py`, which registers them.
Not here: what each op is, which `polygrad.driver.ACCELERATED_OPS` says.

Some operands are views: heads of one array that holds queries, keys and values, and rows with NaN between them.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from polygrad.driver import oracle
from polygrad_conformance.case import Array

ALL_FLOATS = ("float32", "float64", "float16", "bfloat16")
Case = tuple[Sequence[Array], dict[str, Any], Sequence[tuple[tuple[int, ...], str]], Sequence[Array]]


class Sizes(NamedTuple):
    """Of one call."""

    batch: int
    rows: int
    columns: int
    heads: int
    shared: int
    features: int
    value_features: int


CASES = (  # sizes, causal, how operands lie
    (Sizes(1, 1, 1, 1, 1, 1, 1), False, "whole"),
    (Sizes(2, 5, 3, 4, 2, 3, 5), True, "apart"),
    (Sizes(1, 1, 70, 2, 1, 8, 16), False, "turned"),
    (Sizes(2, 70, 1, 3, 3, 16, 8), True, "whole"),
    (Sizes(1, 130, 130, 2, 2, 64, 64), True, "turned"),
    (Sizes(1, 200, 67, 4, 1, 64, 64), True, "apart"),
    (Sizes(1, 67, 200, 2, 1, 128, 128), False, "apart"),
)


def weights(q: Array, k: Array, scale: float, *, causal: bool) -> tuple[Array, Array]:
    """Return weights [batch, heads, rows, columns] and the logarithms of the sums of exponentials."""
    scores = scale * np.einsum("blhd,bshd->bhls", q, np.repeat(k, q.shape[2] // k.shape[2], axis=2))
    if causal:
        scores = np.where(np.arange(scores.shape[-1]) <= np.arange(scores.shape[-2])[:, None], scores, -np.inf)
    top = scores.max(-1, keepdims=True)
    e = np.exp(scores - top)
    total = e.sum(-1, keepdims=True)
    return e / total, (top + np.log(total))[..., 0]


def slopes(q: Array, k: Array, v: Array, g: Array, scale: float, *, causal: bool) -> list[Array]:
    """Return the gradients by queries, keys and values."""
    share = q.shape[2] // k.shape[2]
    p, _ = weights(q, k, scale, causal=causal)
    towards = np.einsum("blhe,bshe->bhls", g, np.repeat(v, share, axis=2))
    s = scale * p * (towards - (p * towards).sum(-1, keepdims=True))
    by_head = np.einsum("bhls,blhd->bshd", s, q), np.einsum("bhls,blhe->bshe", p, g)
    shared = [x.reshape(*k.shape[:3], share, x.shape[-1]).sum(3) for x in by_head]
    return [np.einsum("bhls,bshd->blhd", s, np.repeat(k, share, axis=2)), *shared]


def _cases(dtype: str) -> Iterator[tuple[Sizes, bool, str]]:
    """Yield what is asked in a dtype: in float64 64 features at most."""
    for n, causal, lie in CASES:
        most = 64 if dtype == "float64" else 128
        yield n._replace(features=min(n.features, most), value_features=min(n.value_features, most)), causal, lie


def _apart(x: Array) -> Array:
    """Return an equal view of an array with NaN before and after each row."""
    wide = np.full((*x.shape[:-1], x.shape[-1] + 16), np.nan, x.dtype)
    wide[..., 8 : 8 + x.shape[-1]] = x
    return wide[..., 8 : 8 + x.shape[-1]]


def _operands(rng: np.random.Generator, n: Sizes, dtype: str, lie: str) -> list[Array]:
    """Return q, k, v and the cotangent: whole, or with heads before positions in memory, or rows apart."""
    mine, theirs = (n.batch, n.rows, n.heads), (n.batch, n.columns, n.shared)
    shapes = ((*mine, n.features), (*theirs, n.features), (*theirs, n.value_features), (*mine, n.value_features))
    given = [rng.normal(size=s).astype(oracle.compute_dtype(dtype)) for s in shapes]
    if lie == "turned":
        return [np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2) for x in given]
    return [_apart(x) for x in given] if lie == "apart" else given


def attentions(rng: np.random.Generator, dtype: str) -> Iterator[Case]:
    """What queries take, and *lse*."""
    for n, causal, lie in _cases(dtype):
        q, k, v, _ = _operands(rng, n, dtype, lie)
        attrs = {"scale": 0.3, "causal": causal}
        p, lse = weights(q.astype(np.float64), k.astype(np.float64), 0.3, causal=causal)
        want = np.einsum("bhls,bshe->blhe", p, np.repeat(v.astype(np.float64), n.heads // n.shared, axis=2))
        outs = [(want.shape, dtype), (lse.shape, "float64" if dtype == "float64" else "float32")]
        yield [q, k, v], attrs, outs, [want, lse]


def gradients(rng: np.random.Generator, dtype: str) -> Iterator[Case]:
    """The gradients by queries, keys and values."""
    for n, causal, lie in _cases(dtype):
        q, k, v, g = _operands(rng, n, dtype, lie)
        attrs = {"scale": 0.3, "causal": causal}
        wide_q, wide_k, wide_v, wide_g = (x.astype(np.float64) for x in (q, k, v, g))
        p, lse = weights(wide_q, wide_k, 0.3, causal=causal)
        out = np.einsum("bhls,bshe->blhe", p, np.repeat(wide_v, n.heads // n.shared, axis=2)).astype(q.dtype)
        lse = lse.astype("float64" if dtype == "float64" else "float32")
        want = slopes(wide_q, wide_k, wide_v, wide_g, 0.3, causal=causal)
        yield [q, k, v, out, lse, g], attrs, [(x.shape, dtype) for x in want], want
