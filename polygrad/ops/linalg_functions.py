"""Decompositions, systems of equations and determinants that users call: ``pg.linalg``.

Here: the standard's functions with their empty and broadcasting cases, over the library ops.
Not here: these ops (`linalg_solving.py`, `linalg_spectra.py`), norms and ranks (`linalg_norms.py`), products.
"""

import operator
from typing import Any, NamedTuple

from polygrad import dtypes, shapes
from polygrad.errors import ShapeError
from polygrad.ops.internal import cast
from polygrad.ops.linalg_parts import (
    MATRIX,
    adjoint,
    as_given,
    check_matrix,
    check_square,
    computing,
    identity,
    is_complex,
    merged,
    split,
)
from polygrad.ops.linalg_solving import solve as solve_matrices
from polygrad.ops.linalg_solving import triangular_solve
from polygrad.ops.table import composite

BOTH = "float complex"
Calls = tuple[tuple[tuple[int, ...], dict[str, Any]], ...]


class EighResult(NamedTuple):
    """What `eigh` gives."""

    eigenvalues: Any
    eigenvectors: Any


class EigResult(NamedTuple):
    """What `eig` gives."""

    eigenvalues: Any
    eigenvectors: Any


class QRResult(NamedTuple):
    """What `qr` gives."""

    Q: Any
    R: Any


class SVDResult(NamedTuple):
    """What `svd` gives."""

    U: Any
    S: Any
    Vh: Any


class SlogdetResult(NamedTuple):
    """What `slogdet` gives."""

    sign: Any
    logabsdet: Any


def _stacked(xp: Any, x: Any) -> Any:
    """Return one matrix as a stack of one, so that what has one number a matrix is no 0-d result."""
    return xp.reshape_(x, (1, *x.shape)) if x.ndim == MATRIX else x


def _unstacked(xp: Any, out: Any, x: Any) -> Any:
    """Return a result for a stack as one for x, which may be one matrix."""
    return xp.reshape_(out, out.shape[1:]) if x.ndim == MATRIX else out


def empty_of(xp: Any, shape: Any, dtype: Any) -> Any:
    plain = xp.zeros(shape, dtype=dtypes.part(dtype))
    return xp.pair_(plain, plain) if dtypes.KINDS[dtype] == "complex" else plain


def _ones(xp: Any, shape: Any, dtype: Any) -> Any:
    plain = xp.ones(shape, dtype=dtypes.part(dtype))
    return cast(xp, plain, dtype)


# ---- samples and references -----------------------------------------------------------------------------------


def matrices(kind: str, *given: tuple[tuple[int, ...], dict[str, Any]]) -> Any:
    """Return samples: matrices of a kind (see `testing.draw.Draw.matrices`) and a shape, then keywords."""
    return lambda draw: [((draw.matrices(kind, *shape),), keywords) for shape, keywords in given]


def plain(*given: tuple[tuple[int, ...], dict[str, Any]]) -> Any:
    """Return samples: arrays of a shape, then keywords."""
    return lambda draw: [((draw.array(shape, -2, 2),), keywords) for shape, keywords in given]


# ---- Cholesky -------------------------------------------------------------------------------------------------


def _cholesky_reference(np: Any, x: Any, upper: bool = False) -> Any:
    low = np.linalg.cholesky(x)
    return low.conj().swapaxes(-1, -2) if upper else low


@composite(
    reference=_cholesky_reference,
    samples=matrices(
        "positive", ((3, 3), {}), ((2, 4, 4), {"upper": True}), ((1, 1), {}), ((0, 0), {}), ((0, 2, 2), {})
    ),
    dtypes=BOTH,
    tolerance=10.0,  # the condition of the samples
    where="linalg",
)
def cholesky(xp: Any, x: Any, /, *, upper: Any = False) -> Any:
    """The Cholesky factor of positive definite matrices: lower triangular L with L L^H = x, or U = L^H if *upper*.

    The lower triangle is read, and has the gradient. A matrix that is not positive definite gives NaN.
    """
    check_square("take the Cholesky factor of", x)
    a = computing(xp, "take the Cholesky factor of", x)
    if 0 in a.shape:
        return as_given(xp, a, x)
    low = split(xp, xp.cholesky_(merged(xp, a), is_complex(a)), is_complex(a))
    return as_given(xp, adjoint(xp, low) if upper else low, x)


# ---- systems of equations -------------------------------------------------------------------------------------


def _solve_samples(draw: Any) -> Any:
    pairs = (((3, 3), (3,)), ((3, 3), (3, 2)), ((2, 3, 3), (2, 3, 2)), ((2, 1, 3, 3), (4, 3, 1)), ((2, 2, 2), (2,)))
    empty: list[Any] = [
        ((draw.matrices("regular", 3, 3), draw.array((3, 0), -2, 2)), {}),
        ((draw.array((0, 0), -2, 2), draw.array((0,), -2, 2)), {}),
    ]
    return [((draw.matrices("regular", *a), draw.array(b, -2, 2)), {}) for a, b in pairs] + empty


def _solve_reference(np: Any, a: Any, b: Any) -> Any:
    return np.linalg.solve(a, b[:, None])[..., 0] if b.ndim == 1 else np.linalg.solve(a, b)


def _common(xp: Any, words: str, x1: Any, x2: Any) -> tuple[Any, Any, Any]:
    """Return a system's operands with equal batch axes and one dtype, b as matrices, and the result's shape."""
    a, b = computing(xp, words, x1), computing(xp, words, x2)
    dtype = dtypes.promote(a.dtype, b.dtype)
    a, b = cast(xp, a, dtype), cast(xp, b, dtype)
    vector = b.ndim == 1
    b = xp.reshape(b, (*b.shape, 1)) if vector else b
    if b.shape[-2] != a.shape[-1]:
        raise ShapeError(
            f"cannot {words} shapes {list(x1.shape)} and {list(x2.shape)}: the second needs {a.shape[-1]} rows, as the "
            "first has columns"
        )
    lead = shapes.broadcast(words, a.shape[:-2], b.shape[:-2])
    a = xp.broadcast_to(a, (*lead, *a.shape[-2:]))
    b = xp.broadcast_to(b, (*lead, *b.shape[-2:]))
    return a, b, (*lead, b.shape[-2]) if vector else b.shape


@composite(reference=_solve_reference, samples=_solve_samples, dtypes=BOTH, tolerance=10.0, where="linalg")
def solve(xp: Any, x1: Any, x2: Any, /) -> Any:
    """x with x1 x = x2, for square x1; x2 is one vector (one axis) or matrices, whose other axes broadcast.

    A singular matrix gives inf or NaN, never an error.
    """
    check_square("solve", x1)
    a, b, shape = _common(xp, "solve", x1, x2)
    if 0 in b.shape or 0 in a.shape:
        return as_given(xp, xp.reshape(b, shape), x1, x2)
    return as_given(xp, xp.reshape(solve_matrices(xp, a, b), shape), x1, x2)


def _triangular_reference(np: Any, a: Any, b: Any, upper: bool = False) -> Any:
    return np.linalg.solve(np.triu(a) if upper else np.tril(a), b)


def _triangular_samples(draw: Any) -> Any:
    pairs = (((3, 3), (3, 2), False), ((2, 4, 4), (2, 4, 1), True), ((5, 5), (2, 5, 2), False))
    return [((draw.matrices("regular", *a), draw.array(b, -2, 2)), {"upper": u}) for a, b, u in pairs]


@composite(reference=_triangular_reference, samples=_triangular_samples, dtypes=BOTH, tolerance=10.0, where="linalg")
def solve_triangular(xp: Any, x1: Any, x2: Any, /, *, upper: Any = False) -> Any:
    """x with x1 x = x2, for lower (or *upper*) triangular x1, of which only that triangle is read."""
    check_square("solve", x1)
    a, b, shape = _common(xp, "solve", x1, x2)
    if 0 in b.shape or 0 in a.shape:
        return as_given(xp, xp.reshape(b, shape), x1, x2)
    return as_given(xp, xp.reshape(triangular_solve(xp, a, b, bool(upper)), shape), x1, x2)


SQUARE: Calls = (((3, 3), {}), ((2, 4, 4), {}), ((1, 1), {}), ((0, 0), {}), ((2, 1, 3, 3), {}), ((0, 2, 2), {}))


@composite(reference=lambda np, x: np.linalg.inv(x), samples=matrices("regular", *SQUARE), dtypes=BOTH, where="linalg")
def inv(xp: Any, x: Any, /) -> Any:
    """The inverses of square matrices; a singular one gives inf or NaN, never an error."""
    check_square("invert", x)
    a = computing(xp, "invert", x)
    if 0 in a.shape:
        return as_given(xp, a, x)
    return as_given(xp, solve_matrices(xp, a, identity(xp, a.shape[:-2], a.shape[-1], a.dtype)), x)


def _power_samples(draw: Any) -> Any:
    return [((draw.matrices("regular", 2, 3, 3), n), {}) for n in (0, 1, 2, 5, -2)] + [
        ((draw.array((0, 0), -2, 2), 3), {})
    ]


@composite(
    reference=lambda np, x, n: np.linalg.matrix_power(x, n),
    samples=_power_samples,
    dtypes=BOTH,
    tolerance=20.0,  # five products
    where="linalg",
)
def matrix_power(xp: Any, x: Any, n: Any, /) -> Any:
    """The n-th power of square matrices, of their inverses if n is negative."""
    check_square("take a power of", x)
    power = operator.index(n)
    if power < 0:
        x, power = xp.inv(x), -power
    if power == 0:
        return identity(xp, x.shape[:-2], x.shape[-1], x.dtype)
    out, square = None, x
    while power:
        if power & 1:
            out = square if out is None else xp.matmul(out, square)
        power >>= 1
        if power:
            square = xp.matmul(square, square)
    return out


# ---- determinants ---------------------------------------------------------------------------------------------


@composite(
    reference=lambda np, x: np.linalg.det(x),
    samples=plain(*SQUARE),
    dtypes=BOTH,
    tolerance=30.0,  # a sum of n! products of up to 2**n
    where="linalg",
)
def det(xp: Any, x: Any, /) -> Any:
    """The determinants of square matrices; the gradient is that of their cofactors, singular matrices included."""
    check_square("take the determinant of", x)
    a = computing(xp, "take the determinant of", x)
    n = a.shape[-1]
    if n == 0 or 0 in a.shape:
        return as_given(xp, _ones(xp, a.shape[:-2], a.dtype), x)
    if n == 1:
        return as_given(xp, xp.reshape(a, a.shape[:-2]), x)
    wide = _stacked(xp, a)
    out = split(xp, xp.det_(merged(xp, wide), is_complex(a)), is_complex(a))
    return as_given(xp, _unstacked(xp, out, a), x)


@composite(
    reference=lambda np, x: tuple(np.linalg.slogdet(x)),
    samples=matrices("regular", *SQUARE),
    dtypes=BOTH,
    tolerance=10.0,
    where="linalg",
)
def slogdet(xp: Any, x: Any, /) -> Any:
    """The sign of the determinant, or its complex phase, and the logarithm of its size: (0, -inf) if it is 0."""
    check_square("take the determinant of", x)
    a = computing(xp, "take the determinant of", x)
    if a.shape[-1] == 0 or 0 in a.shape:
        part = dtypes.part(a.dtype)
        found = _ones(xp, a.shape[:-2], a.dtype), xp.zeros(a.shape[:-2], dtype=part)
    else:
        sign, size = xp.slogdet_(merged(xp, _stacked(xp, a)), is_complex(a))
        found = _unstacked(xp, split(xp, sign, is_complex(a)), a), _unstacked(xp, size, a)
    return SlogdetResult(*[as_given(xp, f, x) for f in found])


# ---- eigenvalues ----------------------------------------------------------------------------------------------


@composite(reference=None, samples=matrices("hermitian", *SQUARE), dtypes=BOTH, where="linalg")
def eigh(xp: Any, x: Any, /) -> Any:
    """The eigenvalues, ascending, and orthonormal eigenvectors (columns) of Hermitian matrices.

    The lower triangle is read, and has the gradient. Vectors are determined up to a factor of size 1.
    """
    check_square("take the eigenvalues of", x)
    a = computing(xp, "take the eigenvalues of", x)
    if 0 in a.shape:
        return EighResult(as_given(xp, empty_of(xp, a.shape[:-1], dtypes.part(a.dtype)), x), as_given(xp, a, x))
    w, v = xp.eigh_(merged(xp, a), is_complex(a))
    return EighResult(as_given(xp, w, x), as_given(xp, split(xp, v, is_complex(a)), x))


@composite(
    reference=lambda np, x: np.linalg.eigvalsh(x), samples=matrices("hermitian", *SQUARE), dtypes=BOTH, tolerance=10.0,
    where="linalg",
)  # fmt: skip
def eigvalsh(xp: Any, x: Any, /) -> Any:
    """The eigenvalues of Hermitian matrices, ascending; the lower triangle is read, and has the gradient."""
    check_square("take the eigenvalues of", x)
    a = computing(xp, "take the eigenvalues of", x)
    if 0 in a.shape:
        return as_given(xp, empty_of(xp, a.shape[:-1], dtypes.part(a.dtype)), x)
    return as_given(xp, xp.eigvalsh_(merged(xp, a), is_complex(a)), x)


@composite(reference=None, samples=matrices("apart", *SQUARE), dtypes=BOTH, where="linalg")
def eig(xp: Any, x: Any, /) -> Any:
    """The complex eigenvalues, in no order, and eigenvectors (columns of length 1) of square matrices."""
    check_square("take the eigenvalues of", x)
    a = computing(xp, "take the eigenvalues of", x)
    whole = dtypes.whole(a.dtype)
    if 0 in a.shape:
        return EigResult(empty_of(xp, a.shape[:-1], whole), cast(xp, a, whole))
    w, v = xp.eig_(merged(xp, a), is_complex(a))
    return EigResult(split(xp, w, True), split(xp, v, True))


@composite(reference=None, samples=matrices("apart", *SQUARE), dtypes=BOTH, where="linalg")
def eigvals(xp: Any, x: Any, /) -> Any:
    """The complex eigenvalues of square matrices, in no order."""
    check_square("take the eigenvalues of", x)
    a = computing(xp, "take the eigenvalues of", x)
    if 0 in a.shape:
        return empty_of(xp, a.shape[:-1], dtypes.whole(a.dtype))
    return split(xp, xp.eigvals_(merged(xp, a), is_complex(a)), True)


# ---- singular values ------------------------------------------------------------------------------------------

OBLONG: Calls = (((4, 3), {}), ((2, 3, 5), {}), ((3, 3), {}), ((1, 4), {}), ((0, 3), {}), ((3, 0), {}), ((2, 0, 0), {}))


@composite(
    reference=None,
    samples=matrices("apart", *((shape, {"full_matrices": False}) for shape, _ in OBLONG)),
    dtypes=BOTH,
    where="linalg",
)
def svd(xp: Any, x: Any, /, *, full_matrices: Any = True) -> Any:
    """U, S, Vh with x = U diag(S) Vh, singular values descending.

    Pairs of columns of U and rows of Vh are determined up to a common factor of size 1; those beyond the singular
    values, which *full_matrices* asks for, are arbitrary and have no derivative.
    """
    check_matrix("take the singular values of", x)
    a = computing(xp, "take the singular values of", x)
    full = bool(full_matrices)
    *batch, m, n = a.shape
    k = min(m, n)
    if 0 in a.shape:
        u, vh = ((*batch, m, m if full else k), (*batch, n if full else k, n))
        made = [_eye_like(xp, shape, a.dtype) for shape in (u, vh)]
        found = made[0], empty_of(xp, (*batch, k), dtypes.part(a.dtype)), made[1]
        return SVDResult(*[as_given(xp, f, x) for f in found])
    u, s, vh = xp.svd_(merged(xp, a), full, is_complex(a))
    found = split(xp, u, is_complex(a)), s, split(xp, vh, is_complex(a))
    return SVDResult(*[as_given(xp, f, x) for f in found])


def _eye_like(xp: Any, shape: Any, dtype: Any) -> Any:
    """Return orthogonal matrices of a shape: identities, or nothing."""
    return identity(xp, shape[:-2], shape[-1], dtype) if shape[-1] == shape[-2] else empty_of(xp, shape, dtype)


@composite(
    reference=lambda np, x: np.linalg.svd(x, compute_uv=False),
    samples=matrices("apart", *OBLONG),
    dtypes=BOTH,
    tolerance=10.0,
    where="linalg",
)
def svdvals(xp: Any, x: Any, /) -> Any:
    """The singular values of matrices, descending."""
    check_matrix("take the singular values of", x)
    a = computing(xp, "take the singular values of", x)
    *batch, m, n = a.shape
    if 0 in a.shape:
        return as_given(xp, empty_of(xp, (*batch, min(m, n)), dtypes.part(a.dtype)), x)
    return as_given(xp, xp.svdvals_(merged(xp, a), is_complex(a)), x)


@composite(reference=None, samples=matrices("apart", *OBLONG), dtypes=BOTH, where="linalg")
def qr(xp: Any, x: Any, /, *, mode: Any = "reduced") -> Any:
    """Q with orthonormal columns and upper triangular R, x = Q R; *mode* "complete" makes Q square.

    Columns of Q and rows of R are determined up to a factor of size 1.
    """
    check_matrix("take the QR factors of", x)
    if mode not in ("reduced", "complete"):
        raise ShapeError(f"cannot take QR factors in mode {mode!r}: it is 'reduced' or 'complete'")
    a = computing(xp, "take the QR factors of", x)
    full = mode == "complete"
    *batch, m, n = a.shape
    if 0 in a.shape:
        inner = m if full else min(m, n)
        found = _eye_like(xp, (*batch, m, inner), a.dtype), empty_of(xp, (*batch, inner, n), a.dtype)
        return QRResult(*[as_given(xp, f, x) for f in found])
    q, r = xp.qr_(merged(xp, a), full, is_complex(a))
    return QRResult(*[as_given(xp, split(xp, f, is_complex(a)), x) for f in (q, r)])
