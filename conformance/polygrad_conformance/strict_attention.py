"""Attention of the strict driver: one row of queries after the other, as the words of the interface say.

Here: both ops, of arrays. Not here: when they run (`strict.py`).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from polygrad_conformance.case import Array


def _rows(ins: Sequence[Array], attrs: Mapping[str, Any]) -> Iterator[tuple[tuple[int, int, int], int, int, Array]]:
    """Yield where a row of queries is, its head of keys, how many keys it sees, and its scores."""
    q, k = (x.astype(np.float64) for x in ins[:2])
    batch, rows, heads, _ = q.shape
    for b, i, h in np.ndindex(batch, rows, heads):
        j = h // (heads // k.shape[2])
        count = min(i + 1, k.shape[1]) if attrs["causal"] else k.shape[1]
        yield (b, i, h), j, count, attrs["scale"] * (k[b, :count, j] @ q[b, i, h])


def attention(outs: Sequence[Array], ins: Sequence[Array], attrs: Mapping[str, Any]) -> None:
    """Take from values, and keep the logarithm of the sum of exponentials."""
    v = ins[2].astype(np.float64)
    for (b, i, h), j, count, scores in _rows(ins, attrs):
        lse = np.logaddexp.reduce(scores)
        outs[0][b, i, h] = (np.exp(scores - lse) @ v[b, :count, j]).astype(outs[0].dtype)
        outs[1][b, h, i] = lse


def backward(outs: Sequence[Array], ins: Sequence[Array], attrs: Mapping[str, Any]) -> None:
    """Add up what each row gives to the gradients."""
    q, k, v, out, lse, g = (x.astype(np.float64) for x in ins)
    dq, dk, dv = (np.zeros(x.shape) for x in (q, k, v))
    for (b, i, h), j, count, scores in _rows(ins, attrs):
        p = np.exp(scores - lse[b, h, i])
        s = attrs["scale"] * p * (v[b, :count, j] @ g[b, i, h] - out[b, i, h] @ g[b, i, h])
        dq[b, i, h] = s @ k[b, :count, j]
        dk[b, :count, j] += np.outer(s, q[b, i, h])
        dv[b, :count, j] += np.outer(p, g[b, i, h])
    for to, value in zip(outs, (dq, dk, dv), strict=True):
        to[...] = value.astype(to.dtype)
