"""Matrix products through NumPy's BLAS.

Here: the op matmul: which copies make it one BLAS call, which dtype it runs in. Not here: how a product is computed.
"""

from typing import Any

import numpy as np

from polygrad.driver import Ref, blas
from polygrad_cpu.transfer import array
from polygrad_cpu.workers import Workspace, each, quiet_context

Array = np.ndarray[Any, Any]

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


def _floating(x: Array, y: Array, c: Array, threads: int = 1) -> None:
    if c.ndim > 2 and c.size:  # noqa: PLR2004  a stack of matrices
        x, y, c = _merge_stack(x, y, c)
    x, y, work = _for_blas(x), _for_blas(y), c.size * x.shape[-1]
    if work < SMALL or (work >= blas.SHARED and threads == 1) or not blas.adjustable():
        np.matmul(x, y, c)
        return

    def piece(_: Workspace, at: tuple[blas.Index, blas.Index, blas.Index]) -> None:
        np.matmul(x[at[0]], y[at[1]], c[at[2]])

    with blas.single():
        if work < blas.SHARED:
            np.matmul(x, y, c)
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
