"""Linear algebra through NumPy's LAPACK.

Here: the ops solve, triangular_solve, cholesky, slogdet, det, eigh, eig, svd, qr.
Not here: any factorisation.

NumPy raises for a whole stack when one matrix of it is singular or not positive definite; the waist wants values that
are not finite for that matrix alone. Then the stack is gone through matrix by matrix.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from polygrad.driver import Ref
from polygrad_cpu.fft import numbers
from polygrad_cpu.transfer import array
from polygrad_cpu.workers import quiet_context

Array = np.ndarray[Any, Any]

BLOCK = 64  # rows of a triangular matrix that are solved by LAPACK's general routine at a time


def operand(ref: Ref, attrs: Mapping[str, Any]) -> Array:
    """Return an operand or result as an array of its numbers."""
    return numbers(ref) if attrs["complex"] else array(ref)


def _put(outs: Sequence[Array], values: Any) -> None:
    values = values if isinstance(values, tuple) else (values,)
    for out, value in zip(outs, values, strict=True):
        out[...] = value


def _each(outs: Sequence[Array], function: Callable[..., Any], *stacks: Array) -> None:
    """Put *function* of stacks of matrices into *outs*; NaN for those matrices for which it raises."""
    try:
        values = quiet_context()(function, *stacks)
    except np.linalg.LinAlgError:
        if stacks[0].ndim > 2:  # noqa: PLR2004  a stack
            for index in np.ndindex(stacks[0].shape[:-2]):
                _each([out[index] for out in outs], function, *[s[index] for s in stacks])
            return
        values = (np.nan,) * len(outs)
    _put(outs, values)


def solve(outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
    """Solve a x = b for x."""
    a, b = (operand(r, attrs) for r in ins)
    _each([operand(outs[0], attrs)], np.linalg.solve, a, b)


def triangular_solve(outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
    """Solve a x = b for x, a triangular: by blocks, whose off-diagonal part is matrix products."""
    a, b = (operand(r, attrs) for r in ins)
    out = operand(outs[0], attrs)
    out[...] = b
    quiet_context()(_substitute, a, out, attrs["upper"])


def _substitute(a: Array, x: Array, upper: bool) -> None:
    """Solve in place: each half of the rows by itself, what the first gives taken off the second between them."""
    n = a.shape[-1]
    if n <= BLOCK:
        _each([x], np.linalg.solve, np.triu(a) if upper else np.tril(a), x.copy())
        return
    half = n // 2
    low, high = slice(None, half), slice(half, None)
    first, second = (high, low) if upper else (low, high)
    _substitute(a[..., first, first], x[..., first, :], upper)
    x[..., second, :] -= a[..., second, first] @ x[..., first, :]
    _substitute(a[..., second, second], x[..., second, :], upper)


def cholesky(outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
    """The lower factor, read from the lower triangle."""
    _each([operand(outs[0], attrs)], np.linalg.cholesky, operand(ins[0], attrs))


def slogdet(outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
    """The sign of the determinant and the logarithm of its size."""
    _put([operand(outs[0], attrs), array(outs[1])], tuple(quiet_context()(np.linalg.slogdet, operand(ins[0], attrs))))


def det(outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
    """The determinant."""
    _put([operand(outs[0], attrs)], quiet_context()(np.linalg.det, operand(ins[0], attrs)))


def eigh(outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
    """The eigenvalues, and vectors if they are asked for, of Hermitian matrices."""
    a = operand(ins[0], attrs)
    if attrs["vectors"]:
        _each([array(outs[0]), operand(outs[1], attrs)], lambda m: tuple(np.linalg.eigh(m)), a)
    else:
        _each([array(outs[0])], np.linalg.eigvalsh, a)


def eig(outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
    """The complex eigenvalues, and vectors if they are asked for, of square matrices."""
    a, targets = operand(ins[0], attrs), [numbers(r) for r in outs]
    if attrs["vectors"]:
        _each(targets, lambda m: tuple(np.linalg.eig(m)), a)
    else:
        _each(targets, np.linalg.eigvals, a)


def svd(outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
    """The singular values, and vectors if they are asked for."""
    a = operand(ins[0], attrs)
    if attrs["vectors"]:
        targets = [operand(outs[0], attrs), array(outs[1]), operand(outs[2], attrs)]
        _each(targets, lambda m: tuple(np.linalg.svd(m, full_matrices=attrs["full"])), a)
    else:
        _each([array(outs[0])], lambda m: np.linalg.svd(m, compute_uv=False), a)


def qr(outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
    """The orthogonal and the triangular factor."""
    mode: Any = "complete" if attrs["full"] else "reduced"
    targets = [operand(r, attrs) for r in outs]
    _each(targets, lambda m: tuple(np.linalg.qr(m, mode=mode)), operand(ins[0], attrs))
