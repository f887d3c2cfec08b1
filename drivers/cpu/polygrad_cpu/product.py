"""Matrix products through NumPy's BLAS.

Here: the ops matmul and matmul_add: which copies make them one BLAS call, which dtype they run in. Not here: how a
product is computed.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from polygrad.driver import Ref, blas
from polygrad_cpu.transfer import array
from polygrad_cpu.workers import Workspace, each, quiet_context

Array = np.ndarray[Any, Any]
Finish = Callable[[Array, blas.Index], None]  # a block of the result, and where it lies

EXACT = 2**53  # float64 holds every integer up to here
SMALL = 1 << 18  # multiplications from which BLAS divides a product, though waiting takes longer up to `blas.SHARED`
FEW = 1 << 15  # multiplications below which integers are not worth a conversion


def matmul(out: Ref, a: Ref, b: Ref, threads: int = 1) -> None:
    """Multiply matrices, or stacks of them, in up to *threads* threads; in those of BLAS if it is 1."""
    c, x, y = array(out), array(a), array(b)
    if out.dtype in ("float32", "float64"):
        quiet_context()(_floating, x, y, c, threads)
    elif out.dtype in ("float16", "bfloat16"):
        wide = np.empty(c.shape, np.float32)
        quiet_context()(_floating, x.astype(np.float32), y.astype(np.float32), wide, threads)
        quiet_context()(np.copyto, c, wide, casting="unsafe")
    else:
        _integers(x, y, c)


def matmul_add(out: Ref, a: Ref, b: Ref, c: Ref, activation: str, threads: int = 1) -> None:
    """Multiply matrices and add *c*, to each piece while it is in the cache; then relu, if that is the *activation*."""
    total, x, y, addend = array(out), array(a), array(b), array(c)
    wide = total
    if out.dtype in ("float16", "bfloat16"):
        wide, x, y = np.empty(total.shape, np.float32), x.astype(np.float32), y.astype(np.float32)
    finish = functools.partial(_end, addend, activation == "relu")
    quiet_context()(_floating, x, y, wide, threads, finish)
    if wide is not total:
        quiet_context()(np.copyto, total, wide, casting="unsafe")


def _end(addend: Array, relu: bool, block: Array, at: blas.Index) -> None:
    """Add the part of *addend* that belongs to a block of the product."""
    if addend.ndim != len(at):  # the stack was merged, and *addend* is in C order or one row
        addend = addend[(0,) * (addend.ndim - 1)] if addend.strides[-2] == 0 else addend.reshape(-1, block.shape[-1])
    np.add(block, addend[at[-addend.ndim :]], block, dtype=block.dtype)
    if relu:
        np.maximum(block, 0, out=block)


def _floating(x: Array, y: Array, c: Array, threads: int = 1, finish: Finish | None = None) -> None:
    if c.ndim > 2 and c.size:  # noqa: PLR2004  a stack of matrices
        x, y, c = _merge_stack(x, y, c)
    x, y, work = _for_blas(x), _for_blas(y), c.size * x.shape[-1]

    def whole() -> None:
        np.matmul(x, y, c)
        if finish is not None:
            finish(c, tuple([slice(0, n) for n in c.shape]))

    def piece(_: Workspace, at: tuple[blas.Index, blas.Index, blas.Index]) -> None:
        block = c[at[2]]
        np.matmul(x[at[0]], y[at[1]], block)
        if finish is not None:
            finish(block, at[2])

    if work < SMALL or (work >= blas.SHARED and threads == 1) or not blas.adjustable():
        whole()
        return
    with blas.single():
        if work < blas.SHARED:
            whole()
        else:
            each(blas.pieces(c.shape, threads), threads, piece)


def _merge_stack(x: Array, y: Array, c: Array) -> tuple[Array, Array, Array]:
    """Return one tall product for a stack whose right factors are all the same matrix."""
    shared = all(s == 0 or n == 1 for s, n in zip(y.strides[:-2], y.shape[:-2], strict=True))
    if not (shared and x.flags.c_contiguous):
        return x, y, c
    return x.reshape(-1, x.shape[-1]), y[(0,) * (y.ndim - 2)], c.reshape(-1, c.shape[-1])


def _for_blas(x: Array) -> Array:
    """Return *x*, copied if BLAS could not take it.

    One of the last two strides must be the itemsize, the other at least a row. NumPy would multiply other layouts
    without BLAS, a hundred times slower.
    """
    rows, columns = x.strides[-2:]
    (m, n), size = x.shape[-2:], x.itemsize
    along_columns = (columns == size or n == 1) and (rows >= n * size or m == 1) and rows % size == 0
    along_rows = (rows == size or m == 1) and (columns >= m * size or n == 1) and columns % size == 0
    return x if (along_columns or along_rows) else np.ascontiguousarray(x)


def _integers(x: Array, y: Array, c: Array) -> None:
    """Multiply integers, in float64 if no sum can leave its exact range: NumPy's own loop for integers is slow."""
    k = x.shape[-1]
    if c.size * k > FEW:
        bound = k * _largest(x) * _largest(y)
        if bound < EXACT:
            wide = np.empty(c.shape, np.float64)
            _floating(x.astype(np.float64), y.astype(np.float64), wide)
            c[...] = wide.astype(np.int64)
            return
    np.matmul(x, y, c)


def _largest(x: Array) -> int:
    return max(abs(int(x.min())), abs(int(x.max()))) if x.size else 0
