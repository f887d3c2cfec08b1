"""Attention in blocks of queries whose scores stay in the cache.

Here: the ops attention and attention_backward: how heads and rows are cut up, and the steps on one block.
Not here: products (NumPy's BLAS), threads (`workers.py`).

A block is some rows of one head, or all rows of some heads where rows are short. Threads take heads; within BLAS each
is alone. Of keys that nobody in a block may see nothing is computed. Backward makes the weights of a block again.
"""

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from polygrad.driver import Ref, blas
from polygrad_cpu.settings import Settings
from polygrad_cpu.transfer import array
from polygrad_cpu.workers import Workspace, each

Array = np.ndarray[Any, Any]

SCORES = 1 << 16  # of a block: what a core's cache holds beside operands
LEAST, MOST = 16, 128  # rows of a block
SHARED = 1 << 21  # multiplications from which heads are divided among threads


class _Heads(NamedTuple):
    """What one task computes: heads first .. last of queries in an example, which read heads of keys."""

    example: int
    first: int
    last: int
    keys: slice


class _Problem:
    """One call: its operands as arrays, its tasks, and the rows of a block."""

    def __init__(self, ins: Sequence[Ref], attrs: Mapping[str, Any], settings: Settings) -> None:
        q, k = ins[0], ins[1]
        self.batch, self.rows, self.heads, _ = q.shape
        self.columns, self.shared = k.shape[1:3]
        self.share = self.heads // self.shared
        self.dtype = np.dtype("float64" if q.dtype == "float64" else "float32")
        self.scale = self.dtype.type(attrs["scale"])
        self.causal = attrs["causal"]
        self.height = min(self.rows, max(LEAST, min(MOST, SCORES // self.columns)))
        work = self.batch * self.heads * self.rows * self.columns * q.shape[-1]
        self.threads = settings.threads if blas.adjustable() and work >= SHARED else 1

    def tasks(self) -> list[_Heads]:
        """Return the heads that are computed together: those that share keys, or several whose scores are few."""
        if self.share > 1:
            return [
                _Heads(b, j * self.share, (j + 1) * self.share, slice(j, j + 1))
                for b in range(self.batch)
                for j in range(self.shared)
            ]
        count = max(1, min(self.heads, SCORES // (self.rows * self.columns))) if self.rows == self.height else 1
        starts = range(0, self.heads, count)
        ends = [min(self.heads, h + count) for h in starts]
        return [
            _Heads(b, h, end, slice(h, end)) for b in range(self.batch) for h, end in zip(starts, ends, strict=True)
        ]

    def blocks(self, heads: _Heads) -> Iterator[tuple[slice, slice, int]]:
        """Yield heads and rows of each block, and how many keys it sees."""
        step = heads.last - heads.first if self.share == 1 else 1
        for h in range(heads.first, heads.last, step):
            for start in range(0, self.rows, self.height):
                end = min(self.rows, start + self.height)
                yield slice(h, h + step), slice(start, end), min(self.columns, end) if self.causal else self.columns

    def run(self, step: Any) -> None:
        """Call *step* for each task."""
        with blas.single():
            each(self.tasks(), self.threads, step)

    def scores(self, workspace: Workspace, q: Array, k: Array, rows: slice, name: str) -> Array:
        """Return the scores of a block of scaled queries, -inf where they must not look."""
        columns = k.shape[-2]
        s = workspace.named(name, (q.shape[0], q.shape[1], columns), self.dtype)
        np.matmul(q, k.swapaxes(-1, -2), out=s)
        if self.causal and columns > rows.start:
            hidden = _above(rows.stop - rows.start)[:, : columns - rows.start]
            np.copyto(s[..., rows.start :], -np.inf, where=hidden)
        return s


@functools.lru_cache(maxsize=16)
def _above(n: int) -> Array:
    """Return where a square matrix is above its diagonal."""
    return ~np.tri(n, dtype=bool)


def _wide(x: Array, dtype: Any) -> Array:
    """Return heads as [heads, length, features] in the dtype of sums."""
    return x.swapaxes(0, 1).astype(dtype, copy=False)


def attention(outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any], settings: Settings) -> None:
    """Take from values, and keep the logarithms of the sums of exponentials."""
    p = _Problem(ins, attrs, settings)
    q, k, v = map(array, ins)
    out, lse = map(array, outs)

    def step(workspace: Workspace, heads: _Heads) -> None:
        b = heads.example
        keys, values = (_wide(x[b, :, heads.keys], p.dtype) for x in (k, v))
        for which, rows, columns in p.blocks(heads):
            queries = _wide(q[b, rows, which], p.dtype) * p.scale
            s = p.scores(workspace, queries, keys[:, :columns], rows, "scores")
            top = np.max(s, axis=-1, keepdims=True)
            np.subtract(s, top, out=s)
            np.exp(s, out=s)
            total = np.sum(s, axis=-1, keepdims=True)
            taken = np.matmul(s, values[:, :columns])
            np.divide(taken, total, out=taken)
            out[b, rows, which] = taken.swapaxes(0, 1)
            lse[b, which, rows] = (np.log(total) + top)[..., 0]

    p.run(step)


def attention_backward(outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any], settings: Settings) -> None:
    """Make the weights again from *lse*, and the gradients by queries, keys and values of them."""
    p = _Problem(ins, attrs, settings)
    q, k, v, out, lse, g = map(array, ins)
    dq, dk, dv = map(array, outs)

    def step(workspace: Workspace, heads: _Heads) -> None:
        b = heads.example
        keys, values = (_wide(x[b, :, heads.keys], p.dtype) for x in (k, v))
        by_keys, by_values = np.zeros(keys.shape, p.dtype), np.zeros(values.shape, p.dtype)
        for which, rows, columns in p.blocks(heads):
            mine, theirs = _wide(g[b, rows, which], p.dtype), _wide(out[b, rows, which], p.dtype)
            queries = _wide(q[b, rows, which], p.dtype) * p.scale
            weights = p.scores(workspace, queries, keys[:, :columns], rows, "weights")
            np.subtract(weights, lse[b, which, rows][..., None], out=weights)
            np.exp(weights, out=weights)
            by_values[:, :columns] += np.matmul(weights.swapaxes(-1, -2), mine)
            s = workspace.named("scores", weights.shape, p.dtype)
            np.matmul(mine, values[:, :columns].swapaxes(-1, -2), out=s)
            np.subtract(s, np.vecdot(mine, theirs)[..., None], out=s)
            np.multiply(s, weights, out=s)
            by_keys[:, :columns] += np.matmul(s.swapaxes(-1, -2), queries)
            dq[b, rows, which] = (np.matmul(s, keys[:, :columns]) * p.scale).swapaxes(0, 1)
        dk[b, :, heads.keys] = by_keys.swapaxes(0, 1)
        dv[b, :, heads.keys] = by_values.swapaxes(0, 1)

    p.run(step)
