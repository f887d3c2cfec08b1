"""Eigenvalues, singular values and orthogonal factors as library ops.

Here: the ops that a driver may bring, what they give, and their derivatives. A device without them borrows the host's.
Not here: functions that users call (`linalg_functions.py`), systems of equations (`linalg_solving.py`).

Derivatives: Giles (2008) for eigenvalues; C. Boeddeker, P. Hanebrink, L. Drude, J. Heymann, R. Haeb-Umbach, "On the
computation of complex-valued gradients with application to statistically optimum beamforming" (2017, rev. 2019) for
complex eigenvectors; J. Townsend, "Differentiating the singular value decomposition" (2016), and Z.-Q. Wan, S.-X.
Zhang, "Automatic differentiation for complex valued SVD" (2019); M. Seeger, A. Hetzel, Z. Dai, N. Lawrence,
"Auto-differentiating linear algebra" (2017) for QR.

Vectors are determined up to a sign, or a complex number of size 1, for each: derivatives take the path along which that
factor does not turn, so they are right for every function that does not depend on it. Vectors of a repeated value have
no derivative: a pair of equal values contributes nothing (see `linalg_parts.inverse_differences`).
"""

from typing import Any

from polygrad.errors import GradError
from polygrad.ops.linalg_parts import (
    adjoint,
    as_complex,
    as_parts,
    below,
    diagonal_of,
    from_diagonal,
    hermitian,
    inverse_differences,
    inverse_values,
    is_complex,
    merged,
    only_imaginary_diagonal,
    part_shape,
    real_part,
    rounding,
    scale_columns,
    shape_of,
    split,
    to_lower,
    zeros_of,
)
from polygrad.ops.linalg_solving import solve, triangular_solve
from polygrad.ops.table import library

# ---- Hermitian matrices ---------------------------------------------------------------------------------------


def _values_shape(a: Any, pairs: Any) -> Any:
    return shape_of(a, pairs)[:-1]


def _eigh_values_back(xp: Any, g: Any, vectors: Any, pairs: Any) -> Any:
    return merged(xp, to_lower(xp, scale_columns(xp, vectors, g) @ adjoint(xp, vectors)))


def _gaps(xp: Any, w: Any) -> Any:
    return inverse_differences(xp, rounding(xp, xp.abs(w)), w)


def _eigh_back(xp: Any, g: Any, out: Any, a: Any, index: int, pairs: Any) -> Any:
    v = split(xp, xp.sibling(out, 1), pairs)
    if index == 0:
        return _eigh_values_back(xp, g, v, pairs)
    inner = _gaps(xp, xp.sibling(out, 0)) * (adjoint(xp, v) @ split(xp, g, pairs))
    return merged(xp, to_lower(xp, v @ inner @ adjoint(xp, v)))


def _eigh_along(xp: Any, t: Any, out: Any, a: Any, index: int, pairs: Any) -> Any:
    v = split(xp, xp.sibling(out, 1), pairs)
    inner = adjoint(xp, v) @ hermitian(xp, split(xp, t, pairs)) @ v
    if index == 0:
        return real_part(xp, diagonal_of(xp, inner))
    return merged(xp, v @ (_gaps(xp, xp.sibling(out, 0)) * inner))


@library(
    results=lambda a, pairs: [(_values_shape(a, pairs), a.dtype), (a.shape, a.dtype)],
    fallback=None,
    vjp=(_eigh_back,),
    jvp=(_eigh_along,),
    call="eigh",
    params=lambda pairs: {"vectors": True, "complex": pairs},
    verb="take eigenvalues",
)
def eigh_(np: Any, a: Any, pairs: Any) -> Any:
    """The eigenvalues, ascending, and eigenvectors of Hermitian matrices, read from the lower triangle."""
    w, v = np.linalg.eigh(as_complex(np, a, pairs))
    return w, as_parts(np, v, pairs)


def _eigvalsh_back(xp: Any, g: Any, out: Any, a: Any, _index: int, pairs: Any) -> Any:
    return _eigh_values_back(xp, g, split(xp, xp.eigh_(a, pairs)[1], pairs), pairs)


def _eigvalsh_along(xp: Any, t: Any, out: Any, a: Any, _index: int, pairs: Any) -> Any:
    v = split(xp, xp.eigh_(a, pairs)[1], pairs)
    return real_part(xp, diagonal_of(xp, adjoint(xp, v) @ hermitian(xp, split(xp, t, pairs)) @ v))


@library(
    results=lambda a, pairs: [(_values_shape(a, pairs), a.dtype)],
    fallback=None,
    vjp=(_eigvalsh_back,),
    jvp=(_eigvalsh_along,),
    call="eigh",
    params=lambda pairs: {"vectors": False, "complex": pairs},
    verb="take eigenvalues",
)
def eigvalsh_(np: Any, a: Any, pairs: Any) -> Any:
    """The eigenvalues of Hermitian matrices, ascending, read from the lower triangle."""
    return np.linalg.eigvalsh(as_complex(np, a, pairs))


# ---- any square matrix ----------------------------------------------------------------------------------------


def _fitting(xp: Any, gradient: Any, pairs: Any) -> Any:
    """Return a complex gradient as the operand has it: a real matrix takes the real part."""
    return merged(xp, gradient) if pairs else xp.real(gradient)


def _eig_inner_back(xp: Any, inner: Any, v: Any, pairs: Any) -> Any:
    """Return v^-H inner v^H."""
    return _fitting(xp, solve(xp, adjoint(xp, v), inner @ adjoint(xp, v)), pairs)


def _eig_gaps(xp: Any, w: Any) -> Any:
    return inverse_differences(xp, rounding(xp, xp.abs(w)), w)


def _eig_back(xp: Any, g: Any, out: Any, a: Any, index: int, pairs: Any) -> Any:
    g, v = split(xp, g, True), split(xp, xp.sibling(out, 1), True)
    if index == 0:
        return _eig_inner_back(xp, from_diagonal(xp, g), v, pairs)
    w = split(xp, xp.sibling(out, 0), True)
    # Vectors have length 1: what lengthens them is taken out.
    g = g - scale_columns(xp, v, diagonal_of(xp, adjoint(xp, v) @ g))
    return _eig_inner_back(xp, xp.conj(_eig_gaps(xp, w)) * (adjoint(xp, v) @ g), v, pairs)


def _as_whole(xp: Any, t: Any, pairs: Any) -> Any:
    """Return an operand's tangent as a complex matrix."""
    return split(xp, t, pairs) if pairs else xp.pair_(t, zeros_of(xp, t))


def _eig_along(xp: Any, t: Any, out: Any, a: Any, index: int, pairs: Any) -> Any:
    v = split(xp, xp.sibling(out, 1), True)
    inner = solve(xp, v, _as_whole(xp, t, pairs) @ v)
    if index == 0:
        return merged(xp, diagonal_of(xp, inner))
    z = v @ (_eig_gaps(xp, split(xp, xp.sibling(out, 0), True)) * inner)
    return merged(xp, z - scale_columns(xp, v, diagonal_of(xp, adjoint(xp, v) @ z)))


def _eig_results(a: Any, pairs: Any) -> Any:
    shape = shape_of(a, pairs)
    return [((*shape[:-1], 2), a.dtype), ((*shape, 2), a.dtype)]


@library(
    results=_eig_results,
    fallback=None,
    vjp=(_eig_back,),
    jvp=(_eig_along,),
    call="eig",
    params=lambda pairs: {"vectors": True, "complex": pairs},
    verb="take eigenvalues",
)
def eig_(np: Any, a: Any, pairs: Any) -> Any:
    """The complex eigenvalues and eigenvectors of square matrices, in no order; vectors have length 1."""
    w, v = np.linalg.eig(as_complex(np, a, pairs))
    return as_parts(np, w + 0j, True), as_parts(np, v + 0j, True)


def _eigvals_back(xp: Any, g: Any, out: Any, a: Any, _index: int, pairs: Any) -> Any:
    # These may stand in another order than those with vectors: each takes the cotangent of the nearest.
    w, v = (split(xp, r, True) for r in xp.eig_(a, pairs))
    return _eig_inner_back(xp, from_diagonal(xp, _matched(xp, split(xp, out, True), w, split(xp, g, True))), v, pairs)


def _matched(xp: Any, given: Any, own: Any, values: Any) -> Any:
    """Return *values*, which belong to the eigenvalues *given*, in the order of the eigenvalues *own*."""
    return _picked(xp, values, _nearest(xp, own, given))


def _nearest(xp: Any, own: Any, given: Any) -> Any:
    distance = xp.abs(xp.expand_dims(own, -1) - xp.expand_dims(given, -2))
    return xp.argmin(distance, axis=-1)


def _picked(xp: Any, values: Any, at: Any) -> Any:
    return xp.take_along_axis(values, at, axis=-1)


def _eigvals_along(xp: Any, t: Any, out: Any, a: Any, _index: int, pairs: Any) -> Any:
    w, v = (split(xp, r, True) for r in xp.eig_(a, pairs))
    change = diagonal_of(xp, solve(xp, v, _as_whole(xp, t, pairs) @ v))
    return merged(xp, _matched(xp, w, split(xp, out, True), change))


@library(
    results=lambda a, pairs: _eig_results(a, pairs)[:1],
    fallback=None,
    vjp=(_eigvals_back,),
    jvp=(_eigvals_along,),
    call="eig",
    params=lambda pairs: {"vectors": False, "complex": pairs},
    verb="take eigenvalues",
)
def eigvals_(np: Any, a: Any, pairs: Any) -> Any:
    """The complex eigenvalues of square matrices, in no order."""
    return as_parts(np, np.linalg.eigvals(as_complex(np, a, pairs)) + 0j, True)


# ---- singular values ------------------------------------------------------------------------------------------


def _svd_sizes(a: Any, pairs: Any) -> Any:
    *batch, m, n = shape_of(a, pairs)
    return tuple(batch), m, n, min(m, n)


def _svd_results(a: Any, full: Any, pairs: Any) -> Any:
    batch, m, n, k = _svd_sizes(a, pairs)
    u, vh = (*batch, m, m if full else k), (*batch, n if full else k, n)
    return [(part_shape(u, pairs), a.dtype), ((*batch, k), a.dtype), (part_shape(vh, pairs), a.dtype)]


def _thin(xp: Any, out: Any, a: Any, pairs: Any) -> tuple[Any, Any, Any]:
    """Return u, s, v with as many vectors as there are values, v with vectors in its columns."""
    _, m, n, k = _svd_sizes(a, pairs)
    u, vh = split(xp, xp.sibling(out, 0), pairs), split(xp, xp.sibling(out, 2), pairs)
    if u.shape[-1] > k:
        u = _first(xp, u, (*u.shape[:-2], m, k))
    if vh.shape[-2] > k:
        vh = _first(xp, vh, (*vh.shape[:-2], k, n))
    return u, xp.sibling(out, 1), adjoint(xp, vh)


def _first(xp: Any, x: Any, shape: Any) -> Any:
    return xp.slice_(x, (0,) * x.ndim, (1,) * x.ndim, shape)


def _check_determined(result: str, wide: bool) -> None:
    if wide:
        raise GradError(
            f"cannot differentiate {result} of svd(full_matrices=True) of matrices that are not square: the vectors "
            "beyond the singular values are arbitrary; use full_matrices=False"
        )


def _squared_gaps(xp: Any, s: Any) -> Any:
    """Return 1 / (s[j]**2 - s[i]**2) at [i, j], 0 where values are equal."""
    total = xp.expand_dims(s, -2) + xp.expand_dims(s, -1)
    positive = xp.greater(total, 0.0)
    inverse = xp.where(positive, 1.0 / xp.where(positive, total, xp.ones_like(total)), zeros_of(xp, total))
    return inverse_differences(xp, rounding(xp, s), s) * inverse


def _outside(xp: Any, u: Any, x: Any) -> Any:
    """Return what of x's columns lies outside of the space of u's."""
    return x - u @ (adjoint(xp, u) @ x)


def _half_turns(xp: Any, x: Any, s: Any) -> Any:
    """Return i Im(x[i, i]) / (2 s[i]) on the diagonal: how left and right vectors share a turn of phase."""
    return 0.5 * scale_columns(xp, only_imaginary_diagonal(xp, x), inverse_values(xp, s))


def _svd_back(xp: Any, g: Any, out: Any, a: Any, index: int, full: Any, pairs: Any) -> Any:
    _, m, n, k = _svd_sizes(a, pairs)
    u, s, v = _thin(xp, out, a, pairs)
    if index == 1:
        return merged(xp, scale_columns(xp, u, g) @ adjoint(xp, v))
    g = split(xp, g, pairs)
    if index == 0:
        _check_determined("U", full and m > k)
        return merged(xp, _left_back(xp, g, u, s, v))
    _check_determined("Vh", full and n > k)
    # Right vectors are the left vectors of the conjugate transpose, but for the sense in which phases turn.
    return merged(xp, adjoint(xp, _left_back(xp, adjoint(xp, g), v, s, u)))


def _left_back(xp: Any, g: Any, u: Any, s: Any, v: Any) -> Any:
    """Return the gradient by a = u diag(s) v^H of a function whose gradient by u is g."""
    x = adjoint(xp, u) @ g
    inner = scale_columns(xp, _squared_gaps(xp, s) * (x - adjoint(xp, x)), s)
    if is_complex(g):
        inner = inner + _half_turns(xp, x, s)
    back = u @ inner @ adjoint(xp, v)
    if u.shape[-2] > u.shape[-1]:
        back = back + scale_columns(xp, _outside(xp, u, g), inverse_values(xp, s)) @ adjoint(xp, v)
    return back


def _left_along(xp: Any, t: Any, u: Any, s: Any, v: Any) -> Any:
    """Return how the left vectors u of a = u diag(s) v^H change along t."""
    p = adjoint(xp, u) @ t @ v
    scaled = scale_columns(xp, p, s)
    inner = _squared_gaps(xp, s) * (scaled + adjoint(xp, scaled))
    if is_complex(p):
        inner = inner + _half_turns(xp, p, s)
    along = u @ inner
    if u.shape[-2] > u.shape[-1]:
        along = along + scale_columns(xp, _outside(xp, u, t @ v), inverse_values(xp, s))
    return along


def _svd_along(xp: Any, t: Any, out: Any, a: Any, index: int, full: Any, pairs: Any) -> Any:
    _, m, n, k = _svd_sizes(a, pairs)
    u, s, v = _thin(xp, out, a, pairs)
    t = split(xp, t, pairs)
    if index == 1:
        return real_part(xp, diagonal_of(xp, adjoint(xp, u) @ t @ v))
    if index == 0:
        _check_determined("U", full and m > k)
        return merged(xp, _left_along(xp, t, u, s, v))
    _check_determined("Vh", full and n > k)
    return merged(xp, adjoint(xp, _left_along(xp, adjoint(xp, t), v, s, u)))


@library(
    results=_svd_results,
    fallback=None,
    vjp=(_svd_back,),
    jvp=(_svd_along,),
    call="svd",
    params=lambda full, pairs: {"vectors": True, "full": full, "complex": pairs},
    verb="take singular values",
)
def svd_(np: Any, a: Any, full: Any, pairs: Any) -> Any:
    """u, s and v^H of a = u diag(s) v^H, singular values descending."""
    u, s, vh = np.linalg.svd(as_complex(np, a, pairs), full_matrices=full)
    return as_parts(np, u, pairs), s, as_parts(np, vh, pairs)


def _svdvals_back(xp: Any, g: Any, out: Any, a: Any, _index: int, pairs: Any) -> Any:
    u, _, vh = xp.svd_(a, False, pairs)
    return merged(xp, scale_columns(xp, split(xp, u, pairs), g) @ split(xp, vh, pairs))


def _svdvals_along(xp: Any, t: Any, out: Any, a: Any, _index: int, pairs: Any) -> Any:
    u, _, vh = (r if k == 1 else split(xp, r, pairs) for k, r in enumerate(xp.svd_(a, False, pairs)))
    return real_part(xp, diagonal_of(xp, adjoint(xp, u) @ split(xp, t, pairs) @ adjoint(xp, vh)))


@library(
    results=lambda a, pairs: _svd_results(a, False, pairs)[1:2],
    fallback=None,
    vjp=(_svdvals_back,),
    jvp=(_svdvals_along,),
    call="svd",
    params=lambda pairs: {"vectors": False, "full": False, "complex": pairs},
    verb="take singular values",
)
def svdvals_(np: Any, a: Any, pairs: Any) -> Any:
    """The singular values, descending."""
    return np.linalg.svd(as_complex(np, a, pairs), compute_uv=False)


# ---- orthogonal factors ---------------------------------------------------------------------------------------


def _qr_results(a: Any, full: Any, pairs: Any) -> Any:
    batch, m, n, k = _svd_sizes(a, pairs)
    inner = m if full else k
    return [(part_shape((*batch, m, inner), pairs), a.dtype), (part_shape((*batch, inner, n), pairs), a.dtype)]


def _check_thin(m: int, n: int, full: Any) -> None:
    if full and m > n:
        raise GradError(
            "cannot differentiate qr(mode='complete') of matrices with more rows than columns: the last columns of Q "
            "are arbitrary; use mode='reduced'"
        )


def _skew(xp: Any, x: Any) -> Any:
    """Return the skew-Hermitian matrix whose triangle below the diagonal, and imaginary diagonal, is x's."""
    low = below(xp, x)
    out = low - adjoint(xp, low)
    return out + only_imaginary_diagonal(xp, x) if is_complex(x) else out


def _skew_back(xp: Any, x: Any) -> Any:
    """Return the transpose of `_skew`."""
    out = below(xp, x - adjoint(xp, x))
    return out + only_imaginary_diagonal(xp, x) if is_complex(x) else out


def _over(xp: Any, x: Any, r: Any) -> Any:
    """Return x r^-H, for upper triangular r."""
    return adjoint(xp, triangular_solve(xp, r, adjoint(xp, x), True))


def _after(xp: Any, x: Any, r: Any) -> Any:
    """Return x r^-1, for upper triangular r."""
    return adjoint(xp, triangular_solve(xp, adjoint(xp, r), adjoint(xp, x), False))


def _columns(xp: Any, x: Any, start: int, count: int) -> Any:
    lead = (0,) * (x.ndim - 1)
    return xp.slice_(x, (*lead, start), (1,) * x.ndim, (*x.shape[:-1], count))


def _q_back(xp: Any, g: Any, q: Any, r: Any) -> Any:
    """Return the gradient by a = q r of a function whose gradient by q is g."""
    inner = _skew_back(xp, adjoint(xp, q) @ g)
    back = q @ inner
    if q.shape[-2] > q.shape[-1]:
        back = back + _outside(xp, q, g)
    return _over(xp, back, r)


def _qr_back(xp: Any, g: Any, out: Any, a: Any, index: int, full: Any, pairs: Any) -> Any:
    _, m, n, k = _svd_sizes(a, pairs)
    _check_thin(m, n, full)
    q, r = (split(xp, xp.sibling(out, j), pairs) for j in range(2))
    g = split(xp, g, pairs)
    square = _columns(xp, r, 0, k)
    if index == 0:
        back = _q_back(xp, g, q, square)
    else:
        own = _columns(xp, g, 0, k)
        y = own @ adjoint(xp, square)
        back = _over(xp, q @ (y - _skew_back(xp, y)), square)
    if n == k:
        return merged(xp, back)
    if index == 0:
        return merged(xp, xp.concat([back, xp.zeros_like(_columns(xp, r, k, n - k))], axis=-1))
    rest = _columns(xp, g, k, n - k)  # r's last columns are q^H times those of a
    back = back + _q_back(xp, _columns(xp, split(xp, a, pairs), k, n - k) @ adjoint(xp, rest), q, square)
    return merged(xp, xp.concat([back, q @ rest], axis=-1))


def _qr_along(xp: Any, t: Any, out: Any, a: Any, index: int, full: Any, pairs: Any) -> Any:
    _, m, n, k = _svd_sizes(a, pairs)
    _check_thin(m, n, full)
    q, r = (split(xp, xp.sibling(out, j), pairs) for j in range(2))
    t = split(xp, t, pairs)
    square, own = _columns(xp, r, 0, k), _columns(xp, t, 0, k)
    scaled = _after(xp, own, square)
    inner = adjoint(xp, q) @ scaled
    turning = _skew(xp, inner)
    along = q @ turning
    if m > k:
        along = along + _outside(xp, q, scaled)
    if index == 0:
        return merged(xp, along)
    change = (inner - turning) @ square
    if n == k:
        return merged(xp, change)
    rest = adjoint(xp, along) @ _columns(xp, split(xp, a, pairs), k, n - k)
    rest = rest + adjoint(xp, q) @ _columns(xp, t, k, n - k)
    return merged(xp, xp.concat([change, rest], axis=-1))


@library(
    results=_qr_results,
    fallback=None,
    vjp=(_qr_back,),
    jvp=(_qr_along,),
    call="qr",
    params=lambda full, pairs: {"full": full, "complex": pairs},
    verb="factor",
)
def qr_(np: Any, a: Any, full: Any, pairs: Any) -> Any:
    """q with orthonormal columns and upper triangular r, a = q r."""
    q, r = np.linalg.qr(as_complex(np, a, pairs), mode="complete" if full else "reduced")
    return as_parts(np, q, pairs), as_parts(np, r, pairs)
