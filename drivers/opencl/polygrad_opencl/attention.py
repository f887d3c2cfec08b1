"""Attention and its backward pass: which tiles, which strides, what is launched.

Here: `Attention`, called by the driver's `op_attention` and `op_attention_backward`; how OpenCL C spells what the text
leaves open. Not here: the kernels (`polygrad.driver.render.attention`, which CUDA shares).
"""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from polygrad.driver import Ref
from polygrad.driver.render.attention import (
    FORWARD,
    GROUP,
    KEYS,
    QUERIES,
    Tiling,
    attention_text,
    tiling_for,
)
from polygrad_opencl.session import Session
from polygrad_opencl.source import PRELUDE, STORAGE, accessors

LONG = np.dtype(np.int64)
WIDEST = {4: Tiling(128, 128, 1, 1), 8: Tiling(64, 64, 1, 1)}  # the least that has to fit, by bytes of a value
SMALL = (2, 1)  # rows and columns of a work-item

WORDS = """
#define LONG long
#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define VEC JOIN(VALUE, 4)
#define MAKE(x, y, z, w) ((VEC)(x, y, z, w))
#define KERNEL __attribute__((reqd_work_group_size(256, 1, 1))) kernel
#define DEVICE inline
#define GLOBAL global
#define LOCAL local
#define POOL(n) local VEC pool[n];
#define ROOM 1
#define THREAD ((int)get_local_id(0))
#define WORK ((long)get_group_id(0))
#define BARRIER barrier(CLK_LOCAL_MEM_FENCE);
#define ROW_BARRIER barrier(CLK_LOCAL_MEM_FENCE);
#define FMA(a, b, c) ((a) * (b) + (c))
#define EXP2 exp2
#define LOG2 log2
#define GREATER fmax
#define INF ((VALUE)INFINITY)
#define LOAD load
#define STORE store
"""
UNROLLING = {"UNROLL": '_Pragma("unroll")', "UNROLL4": '_Pragma("unroll 4")'}
# Rows are reduced by way of shared memory; whoever writes there again has met a barrier since.
REDUCTIONS = """
inline void rows_max(VALUE* m, local VALUE* room, int x, int y)
{
    for (int i = 0; i < R; i++) room[(y + 16 * i) * 17 + x] = m[i];
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int i = 0; i < R; i++) for (int w = 0; w < 16; w++) m[i] = fmax(m[i], room[(y + 16 * i) * 17 + w]);
}
inline void rows_sum(VALUE* m, local VALUE* room, int x, int y)
{
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int i = 0; i < R; i++) room[(y + 16 * i) * 17 + x] = m[i];
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int i = 0; i < R; i++) {
        m[i] = 0;
        for (int w = 0; w < 16; w++) m[i] += room[(y + 16 * i) * 17 + w];
    }
}
"""


def able(session: Session) -> bool:
    """Whether a device runs these kernels, and is not better served by products in memory: a CPU is."""
    gpu = session.kind != "cpu" or os.environ.get("POLYGRAD_OPENCL_STYLE") == "gpu"
    largest = max(WIDEST[size].vectors(kernel, room=True) * 4 * size for size in WIDEST for kernel in (QUERIES, KEYS))
    room = session.device.local_mem_size >= largest
    return gpu and room and not session.simulated and session.device.max_work_group_size >= GROUP


def text_of(
    kernel: str, tiling: Tiling, dtype: str, *, causal: bool, wide: bool, unrolled: bool = True, kept: bool = False
) -> str:
    """Return the program of one kernel.

    A compiler for CPUs, which makes a loop of each stretch between barriers, takes a minute for it *unrolled*.

    >>> "vload4" in text_of(FORWARD, Tiling(64, 64, 4, 2), "float32", causal=True, wide=True)
    True
    """
    four = "(float4)(load(p, i), load(p, i + 1), load(p, i + 2), load(p, i + 3))"
    loads = four if dtype in STORAGE else "vload4(0, (p) + (i))"
    body = attention_text(kernel, tiling, causal=causal, wide=wide, kept=kept)
    sizes = f"#define R {tiling.rows}\n"
    hints = "".join(f"#define {name} {hint if unrolled else ''}\n" for name, hint in UNROLLING.items())
    words = f"{WORDS}#define LOAD4(p, i) {loads}\n{hints}"
    return f"{PRELUDE}{accessors(dtype)}{words}{sizes}{REDUCTIONS}#undef R\n{body}"


class Attention:
    """The ops of one device."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def _launch(self, kernel: str, ins: Sequence[Ref], tiles: int, arguments: Any, *, causal: bool) -> None:
        session, (q, _, v) = self.session, ins
        dtype, size = q.dtype, 8 if q.dtype == "float64" else 4
        features, value_features = q.shape[-1], v.shape[-1]
        tiling = tiling_for(kernel, features, value_features, size, session.device.local_mem_size, room=True)
        if session.kind == "cpu":  # where tests run these kernels: its compiler takes long for large tiles
            tiling = Tiling(features, value_features, *SMALL)
        wide = features % 4 == 0 and value_features % 4 == 0
        text = text_of(kernel, tiling, dtype, causal=causal, wide=wide, unrolled=session.kind != "cpu")
        rows = (ins[1] if kernel == KEYS else q).shape[1]
        groups = tiles * -(-rows // tiling.tile)
        session.run(text, kernel, (GROUP * groups,), (GROUP,), arguments)

    def forward(self, outs: Sequence[Ref], ins: Sequence[Ref], *, scale: float, causal: bool) -> None:
        """Queue attention."""
        q = ins[0]
        refs = (*ins, *outs)
        arguments = [*_buffers(refs), *_sizes(ins), *_strides(*ins), _scale(q, scale)]
        self._launch(FORWARD, ins, q.shape[0] * q.shape[2], arguments, causal=causal)

    def backward(self, outs: Sequence[Ref], ins: Sequence[Ref], *, scale: float, causal: bool) -> None:
        """Queue its backward pass."""
        session = self.session
        q, k, v, out, lse, g = ins
        operands, sizes = (q, k, v), _sizes((q, k, v))
        end = [*_strides(*operands), _scale(q, scale)]
        with session.lock:
            delta = (None, session.scratch(lse.shape[0] * lse.shape[1] * lse.shape[2] * 8))
            buffers = _buffers((q, k, v, out, lse, g, outs[0]))
            queries = [*buffers[:7], delta, *buffers[7:], *sizes, *_strides(outs[0], out, g, lse), *end]
            self._launch(QUERIES, operands, q.shape[0] * q.shape[2], queries, causal=causal)
            buffers = _buffers((q, k, v, lse, g, outs[1], outs[2]))
            whole = [(LONG, 0), (LONG, k.shape[0] * k.shape[2])]
            ends = _strides(*outs[1:], g, lse)
            keys = [*buffers[:5], delta, *buffers[5:7], delta, *buffers[7:], *whole, *sizes, *ends, *end]
            self._launch(KEYS, operands, k.shape[0] * k.shape[2], keys, causal=causal)


def _buffers(refs: Sequence[Ref]) -> list[Any]:
    return [*[(None, ref.handle) for ref in refs], *[(LONG, ref.offset) for ref in refs]]


def _sizes(ins: Sequence[Ref]) -> list[Any]:
    q, k = ins[:2]
    return [(LONG, n) for n in (q.shape[0], q.shape[1], k.shape[1], q.shape[2], k.shape[2])]


def _strides(*refs: Ref) -> list[Any]:
    """Return the first three strides of each."""
    return [(LONG, s) for ref in refs for s in ref.strides[:3]]


def _scale(q: Ref, scale: float) -> Any:
    return np.dtype("float64" if q.dtype == "float64" else "float32"), scale
