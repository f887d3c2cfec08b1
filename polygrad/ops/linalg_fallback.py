"""Factorisations written over other ops, for devices whose driver has no library for them.

Here: Gaussian elimination with pivoting, Cholesky, triangular systems; each on whole stacks of matrices at once.
Not here: when they are used, which the declarations in `linalg_solving.py` say.

Elimination takes one step a column, a few kernels each. A triangular matrix is inverted by doubling: its diagonal
blocks of size 1, 2, 4, ... all at once, in log2(n) products of stacks of matrices.
"""

from typing import Any

from polygrad import dtypes
from polygrad.ops.internal import cast
from polygrad.ops.linalg_parts import adjoint, diagonal_of, grid, identity, is_complex, real_part, zeros_of


def _column(xp: Any, x: Any, k: int) -> Any:
    """Return column k, as a matrix of one column."""
    lead = (0,) * (x.ndim - 1)
    return _sliced(xp, x, (*lead, k), (*x.shape[:-1], 1))


def _row(xp: Any, x: Any, k: int) -> Any:
    lead = (0,) * (x.ndim - 2)
    return _sliced(xp, x, (*lead, k, 0), (*x.shape[:-2], 1, x.shape[-1]))


def _sliced(xp: Any, x: Any, starts: Any, sizes: Any) -> Any:
    return xp.slice_(x, starts, (1,) * x.ndim, sizes)


def eliminated(xp: Any, a: Any, b: Any | None) -> tuple[Any, Any, Any]:
    """Return what elimination with row exchanges makes of [a | b]: the triangle, b, and the number of exchanges.

    A column without a pivot is left as it is, so that the triangle of a singular matrix has a zero on its diagonal.
    """
    n = a.shape[-1]
    x = a if b is None else xp.concat([a, b], axis=-1)
    rows, _ = grid(xp, n, x.shape[-1])
    exchanges = None
    for k in range(n):
        column = _column(xp, x, k)
        size = xp.where(xp.greater_equal(rows, k), xp.abs(column), xp.full_of(-1.0, real_part(xp, column)))
        pivot = xp.argmax(size, axis=-2, keepdims=True)  # [..., 1, 1]
        moved = cast(xp, xp.not_equal(pivot, k), dtypes.int64)
        exchanges = moved if exchanges is None else exchanges + moved
        top, chosen = _row(xp, x, k), xp.take_along_axis(x, pivot, axis=-2)
        x = xp.where(xp.equal(rows, k), chosen, xp.where(xp.equal(rows, pivot), top, x))
        column, first = _column(xp, x, k), _column(xp, chosen, k)
        nothing = xp.equal(first, 0.0)
        safe = xp.where(nothing, xp.ones_like(first), first)
        factor = xp.where(
            xp.logical_and(xp.greater(rows, k), xp.logical_not(nothing)), column / safe, zeros_of(xp, column)
        )
        x = x - factor * chosen
    lead = (0,) * (x.ndim - 2)
    triangle = _sliced(xp, x, (*lead, 0, 0), (*x.shape[:-2], n, n))
    rest = None if b is None else _sliced(xp, x, (*lead, 0, n), b.shape)
    return triangle, rest, xp.reshape(exchanges, x.shape[:-2])


def solved(xp: Any, a: Any, b: Any) -> Any:
    """Return x with a x = b; what is not finite where a is singular."""
    triangle, rest, _ = eliminated(xp, a, b)
    return triangular_solved(xp, triangle, rest, True)


def signed_logarithm(xp: Any, a: Any) -> tuple[Any, Any]:
    """Return the sign of the determinant (a unit complex number, or 0) and the logarithm of its size."""
    triangle, _, exchanges = eliminated(xp, a, None)
    d = diagonal_of(xp, triangle)
    size = xp.abs(d)
    zero = xp.equal(size, 0.0)
    unit = xp.where(zero, zeros_of(xp, d), d / xp.where(zero, xp.ones_like(size), size))
    odd = xp.equal(xp.remainder(exchanges, 2), 1)
    sign = xp.prod(unit, axis=-1)
    return xp.where(odd, -sign, sign), xp.sum(xp.log(size), axis=-1)


def factored(xp: Any, a: Any) -> Any:
    """Return the lower Cholesky factor, read from the lower triangle; NaN where a matrix is not positive definite."""
    n = a.shape[-1]
    rows, columns = grid(xp, n, n)
    out = zeros_of(xp, a)
    x = a
    for k in range(n):
        column = _column(xp, x, k)
        first = real_part(xp, _row(xp, column, k))
        root = xp.sqrt(xp.where(xp.greater(first, 0.0), first, xp.full_of(float("nan"), first)))
        below = xp.where(xp.greater(rows, k), column / root, zeros_of(xp, column))
        whole = xp.where(xp.equal(rows, k), cast(xp, xp.broadcast_to(root, column.shape), column.dtype), below)
        out = xp.where(xp.equal(columns, k), whole, out)
        x = x - below * adjoint(xp, below)
    bad = xp.isnan(xp.sum(real_part(xp, diagonal_of(xp, out)), axis=-1))
    bad = xp.expand_dims(xp.expand_dims(bad, -1), -1)
    return xp.where(bad, xp.full_of(float("nan"), real_part(xp, out)), out)


def triangular_solved(xp: Any, a: Any, b: Any, upper: bool) -> Any:
    """Return x with a x = b for triangular a; only that triangle is read."""
    inverse = lower_inverse(xp, xp.matrix_transpose(a) if upper else a)
    return xp.matmul(xp.matrix_transpose(inverse) if upper else inverse, b)


def lower_inverse(xp: Any, a: Any) -> Any:
    """Return the inverse of lower triangular matrices, by doubling the inverted blocks on the diagonal."""
    n = a.shape[-1]
    whole = 1 << (n - 1).bit_length() if n > 1 else 1
    batch = a.shape[:-2]
    a = xp.tril(a)
    if whole > n:
        lead = (0,) * a.ndim
        after = (*lead[2:], whole - n, whole - n)
        parts = [xp.pad_(p, lead, after, 0) for p in ((xp.real(a), xp.imag(a)) if is_complex(a) else (a,))]
        a = xp.pair_(*parts) if is_complex(a) else parts[0]
        rows, columns = grid(xp, whole, whole)
        beyond = xp.logical_and(xp.equal(rows, columns), xp.greater_equal(rows, n))
        a = xp.where(beyond, xp.ones_like(a), a)
    inverse = xp.reshape(1.0 / diagonal_of(xp, a), (*batch, whole, 1, 1))
    size = 1
    while size < whole:
        count = whole // (2 * size)
        pairs = xp.reshape(inverse, (*batch, count, 2, size, size))
        first, second = (xp.reshape(_part(xp, pairs, k, 1), (*batch, count, size, size)) for k in range(2))
        corner = _corners(xp, a, batch, count, size)
        under = -xp.matmul(xp.matmul(second, corner), first)
        top = xp.concat([first, zeros_of(xp, first)], axis=-1)
        inverse = xp.concat([top, xp.concat([under, second], axis=-1)], axis=-2)
        size *= 2
    inverse = xp.reshape(inverse, (*batch, whole, whole))
    return _sliced(xp, inverse, (0,) * inverse.ndim, (*batch, n, n))


def _part(xp: Any, pairs: Any, k: int, count: int) -> Any:
    """Return the k-th of each pair, along the last axis but two."""
    starts = (*(0,) * (pairs.ndim - 3), k, 0, 0)
    return _sliced(xp, pairs, starts, (*pairs.shape[:-3], count, *pairs.shape[-2:]))


def _corners(xp: Any, a: Any, batch: Any, count: int, size: int) -> Any:
    """Return the blocks left below of the diagonal's blocks of twice *size*."""
    blocks = xp.reshape(a, (*batch, count, 2 * size, count, 2 * size))
    blocks = xp.permute_dims(blocks, (*range(len(batch)), *(len(batch) + k for k in (0, 2, 1, 3))))
    here = xp.reshape(identity(xp, (), count, dtypes.bool_), (count, count, 1, 1))
    picked = xp.sum(xp.where(here, blocks, zeros_of(xp, blocks)), axis=-3)  # [..., count, 2 size, 2 size]
    starts = (*(0,) * (picked.ndim - 2), size, 0)
    return _sliced(xp, picked, starts, (*picked.shape[:-2], size, size))
