"""What NumPy does to one block of rows, into memory that is there: forward, and backward where it is written.

Here: one function a kind of work; each gets rows, weights, the cotangent or None, outputs, scratch and sums over rows.
Not here: threads and which rows (`numpy_arrays.py`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from polygrad.bench import inputs
from polygrad.bench.maths import EPSILON

BLOCK_BYTES = 1 << 19  # what two threads do best with here: large enough for the calls, small enough for a cache
ELEMENTWISE = ("copy", "exp", "tanh", "log", "ew12")
F = np.float32

Arrays = Sequence[Any]
Run = Callable[[Any, Arrays, Any, Arrays, Arrays, Arrays], None]


@dataclass(frozen=True)
class Block:
    """How a block is done: the function, its scratch arrays, what comes out, and whether it goes backward too."""

    run: Run
    scratch: int = 0
    reduced: int = 0  # how many outputs are one number a row; none: one output like the rows
    backward: bool = False

    def outs(self, rows: Any, *, backward: bool) -> list[Any]:
        """Return memory for the results: outputs, and the gradient of the rows."""
        count = self.reduced or 1
        shape = rows.shape[:1] if self.reduced else rows.shape
        return [np.empty(shape, F) for _ in range(count)] + ([np.empty_like(rows)] if backward else [])


def _unary(function: Callable[..., Any]) -> Block:
    def run(x: Any, weights: Arrays, ct: Any, outs: Arrays, scratch: Arrays, sums: Arrays) -> None:
        del weights, ct, scratch, sums
        function(x, out=outs[0])

    return Block(run)


def _ew12(x: Any, weights: Arrays, ct: Any, outs: Arrays, scratch: Arrays, sums: Arrays) -> None:
    del weights, sums
    t, q, e = scratch
    y = outs[0]
    np.multiply(x, x, out=q)
    np.multiply(q, x, out=t)
    np.multiply(t, F(0.044715), out=t)
    np.add(t, x, out=t)
    np.multiply(t, F(0.79788456), out=t)
    np.tanh(t, out=t)
    np.add(t, F(1), out=e)
    np.multiply(e, x, out=e)
    np.multiply(e, F(0.5), out=y)
    np.multiply(y, F(-0.1), out=e)
    np.exp(e, out=e)
    np.add(y, e, out=y)
    if ct is None:
        return
    dx = outs[1]
    np.multiply(e, F(-0.1), out=e)
    np.add(e, F(1), out=e)
    np.multiply(e, ct, out=e)  # e: the cotangent of y before the last addition
    np.multiply(q, F(3 * 0.044715), out=q)
    np.add(q, F(1), out=q)
    np.multiply(q, F(0.79788456), out=q)
    np.multiply(q, x, out=q)
    np.multiply(t, t, out=dx)
    np.subtract(F(1), dx, out=dx)
    np.multiply(dx, q, out=dx)
    np.add(dx, t, out=dx)
    np.add(dx, F(1), out=dx)
    np.multiply(dx, F(0.5), out=dx)
    np.multiply(dx, e, out=dx)


def _softmax(x: Any, weights: Arrays, ct: Any, outs: Arrays, scratch: Arrays, sums: Arrays) -> None:
    del weights, scratch, sums
    y = outs[0]
    np.subtract(x, x.max(-1, keepdims=True), out=y)
    np.exp(y, out=y)
    np.multiply(y, F(1) / y.sum(-1, keepdims=True), out=y)
    if ct is not None:
        np.subtract(ct, np.einsum("ij,ij->i", y, ct)[:, None], out=outs[1])
        np.multiply(outs[1], y, out=outs[1])


def _logsumexp(x: Any, weights: Arrays, ct: Any, outs: Arrays, scratch: Arrays, sums: Arrays) -> None:
    del weights, ct, sums
    (t,) = scratch
    top = x.max(-1)
    np.subtract(x, top[:, None], out=t)
    np.exp(t, out=t)
    t.sum(-1, out=outs[0])
    np.log(outs[0], out=outs[0])
    np.add(outs[0], top, out=outs[0])


def _sum(x: Any, weights: Arrays, ct: Any, outs: Arrays, scratch: Arrays, sums: Arrays) -> None:
    del weights, ct, scratch, sums
    x.sum(-1, out=outs[0])


def _meanvar(x: Any, weights: Arrays, ct: Any, outs: Arrays, scratch: Arrays, sums: Arrays) -> None:
    del weights, ct, sums
    (t,) = scratch
    mean, var = outs
    x.mean(-1, out=mean)
    np.subtract(x, mean[:, None], out=t)
    np.einsum("ij,ij->i", t, t, out=var)
    np.divide(var, F(x.shape[-1]), out=var)


def _norm(*, centred: bool) -> Run:
    def run(x: Any, weights: Arrays, ct: Any, outs: Arrays, scratch: Arrays, sums: Arrays) -> None:
        h, t = scratch
        y, w, n = outs[0], weights[0], F(x.shape[-1])
        if centred:
            np.subtract(x, x.mean(-1, keepdims=True), out=h)
        source = h if centred else x
        scale = F(1) / np.sqrt(np.einsum("ij,ij->i", source, source) / n + F(EPSILON))[:, None]
        np.multiply(source, scale, out=h)
        np.multiply(h, w, out=y)
        if centred:
            np.add(y, weights[1], out=y)
        if ct is None:
            return
        dx = outs[1]
        np.multiply(ct, h, out=t)
        sums[0][:] += t.sum(0)
        along = np.einsum("ij,j->i", t, w)[:, None] / n
        np.multiply(ct, w, out=dx)
        np.multiply(h, along, out=t)
        if centred:
            sums[1][:] += ct.sum(0)
            np.subtract(dx, dx.mean(-1, keepdims=True), out=dx)
        np.subtract(dx, t, out=dx)
        np.multiply(dx, scale, out=dx)

    return run


_RMS, _LAYER = Block(_norm(centred=False), 2, backward=True), Block(_norm(centred=True), 2, backward=True)
BLOCKS = {
    "copy": _unary(np.negative),
    "exp": _unary(np.exp),
    "tanh": _unary(np.tanh),
    "log": _unary(np.log),
    "ew12": Block(_ew12, 3, backward=True),
    "softmax": Block(_softmax, backward=True),
    "logsumexp": Block(_logsumexp, 1, 1),
    "sum": Block(_sum, 0, 1),
    "meanvar": Block(_meanvar, 1, 2),
    "rmsnorm": _RMS,
    "rmsnorm_builtin": _RMS,
    "layernorm": _LAYER,
    "layernorm_builtin": _LAYER,
}


def adamw_block(p: Any, g: Any, m: Any, v: Any, scratch: Arrays, step: int) -> None:
    """Move a block of a parameter."""
    a = inputs.ADAMW
    s, u = scratch
    first, second = 1 - a["beta1"] ** step, 1 - a["beta2"] ** step
    np.multiply(m, F(a["beta1"]), out=m)
    np.multiply(g, F(1 - a["beta1"]), out=s)
    np.add(m, s, out=m)
    np.multiply(v, F(a["beta2"]), out=v)
    np.multiply(g, g, out=s)
    np.multiply(s, F(1 - a["beta2"]), out=s)
    np.add(v, s, out=v)
    np.multiply(v, F(1 / second), out=s)
    np.sqrt(s, out=s)
    np.add(s, F(a["eps"]), out=s)
    np.multiply(m, F(a["lr"] / first), out=u)
    np.divide(u, s, out=u)
    np.multiply(p, F(1 - a["lr"] * a["weight_decay"]), out=p)
    np.subtract(p, u, out=p)
