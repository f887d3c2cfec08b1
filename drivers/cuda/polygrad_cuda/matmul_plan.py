"""From strided operands to the arguments of cuBLAS: pure arithmetic on shapes and strides.

Here: which operand needs a flag, a leading dimension or a copy, and how batch axes fold. Not here: any device, any
library.

cuBLAS is column-major. A row-major product C = A @ B is the column-major product C' = B' A' of the same memory, so the
operands are swapped and nothing is copied. An operand whose rows or columns are contiguous is taken as it is, with a
flag.
"""

from typing import NamedTuple

Axis = tuple[int, int, int, int]  # extent, and the strides of a, b and c along it


class Operand(NamedTuple):
    """One operand as cuBLAS sees it: transposed or not, and the distance between its columns."""

    transposed: bool
    leading: int


class Plan(NamedTuple):
    """One product of cuBLAS, in elements; `m`, `n`, `k` as in C[m, n] = A[m, k] @ B[k, n], row-major.

    `batch` is the axis that cuBLAS walks itself (extent 1 if there is none), `outer` are the axes left over.
    """

    m: int
    n: int
    k: int
    a: Operand
    b: Operand
    batch: Axis
    outer: tuple[Axis, ...]


def operand(rows: int, columns: int, row_stride: int, column_stride: int) -> Operand | None:
    """Return how cuBLAS can read a row-major [rows, columns] operand in place, or None if it must be copied.

    >>> operand(4, 5, 5, 1), operand(4, 5, 1, 4), operand(4, 5, 10, 2)
    (Operand(transposed=False, leading=5), Operand(transposed=True, leading=4), None)
    """
    if (column_stride == 1 or columns == 1) and (row_stride >= columns or rows == 1):
        return Operand(transposed=False, leading=max(row_stride, columns) if rows > 1 else columns)
    if (row_stride == 1 or rows == 1) and (column_stride >= rows or columns == 1):
        return Operand(transposed=True, leading=max(column_stride, rows) if columns > 1 else rows)
    return None


def collapse(axes: list[Axis]) -> list[Axis]:
    """Drop axes of extent 1 and merge neighbours that are one axis for all three operands.

    >>> collapse([(2, 60, 0, 30), (3, 20, 0, 10), (1, 7, 7, 7)])
    [(6, 20, 0, 10)]
    """
    out: list[Axis] = []
    for axis in axes:
        extent, *strides = axis
        if extent == 1:
            continue
        if out and all(last == extent * inner for last, inner in zip(out[-1][1:], strides, strict=True)):
            out[-1] = (out[-1][0] * extent, strides[0], strides[1], strides[2])
        else:
            out.append(axis)
    return out


def plan(
    shape: tuple[int, ...], k: int, strides: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
) -> tuple[Plan | None, tuple[bool, bool]]:
    """Plan C[..., m, n] = A[..., m, k] @ B[..., k, n].

    Parameters
    ----------
    shape : of C
    k : the contracted extent
    strides : of A, B and C, in elements; C is contiguous

    Returns
    -------
    Plan or None
        None if an operand must be made contiguous first.
    (bool, bool)
        Whether A and B must.

    Examples
    --------
    >>> plan((8, 16), 4, ((4, 1), (16, 1), (16, 1)))[0].m
    8
    >>> folded, _ = plan((3, 8, 16), 4, ((32, 4, 1), (0, 16, 1), (128, 16, 1)))  # one B for all: one tall product
    >>> folded.m, folded.batch
    (24, (1, 0, 0, 0))
    """
    a_strides, b_strides, c_strides = strides
    m, n = shape[-2:]
    a = operand(m, k, *a_strides[-2:])
    b = operand(k, n, *b_strides[-2:])
    axes = collapse(list(zip(shape[:-2], a_strides[:-2], b_strides[:-2], c_strides[:-2], strict=True)))
    poor = (a is None or any(x[1] < 0 for x in axes), b is None or any(x[2] < 0 for x in axes))
    if a is None or b is None or any(poor):
        return None, poor
    if len(axes) == 1 and axes[0][2] == 0 and not a.transposed and axes[0][1] == m * a.leading:
        # Every matrix of A meets the same B, and A's matrices follow each other row by row: one tall product.
        m, axes = m * axes[0][0], []
    widest = max(range(len(axes)), key=lambda i: axes[i][0], default=-1)
    batch = axes.pop(widest) if axes else (1, 0, 0, 0)
    return Plan(m, n, k, a, b, batch, tuple(axes)), poor
