"""Systems of equations as library ops: solving, triangular systems, Cholesky factors, determinants.

Here: the ops that a driver may bring, what they give, their derivatives, and what stands in where none does.
Not here: functions that users call (`linalg_functions.py`), eigenvalues and singular values (`linalg_spectra.py`).

Derivatives: M. Giles, "Collected matrix derivative results for forward and reverse mode algorithmic differentiation"
(2008), with conjugate transposes for complex matrices. Operands have two or more axes and equal batch axes.
"""

from typing import Any

from polygrad.ops.linalg_fallback import factored, signed_logarithm, solved, triangular_solved
from polygrad.ops.linalg_parts import (
    adjoint,
    as_complex,
    as_parts,
    below,
    conjugate,
    diagonal_of,
    from_diagonal,
    hermitian,
    identity,
    is_complex,
    merged,
    on_diagonal,
    only_real_diagonal,
    part_shape,
    shape_of,
    split,
    to_lower,
)
from polygrad.ops.table import library

# ---- a x = b --------------------------------------------------------------------------------------------------


def _solve_by_a(xp: Any, g: Any, out: Any, a: Any, b: Any, _index: int, pairs: Any) -> Any:
    a, g, x = (split(xp, v, pairs) for v in (a, g, out))
    return merged(xp, -(solve(xp, adjoint(xp, a), g) @ adjoint(xp, x)))


def _solve_by_b(xp: Any, g: Any, out: Any, a: Any, b: Any, _index: int, pairs: Any) -> Any:
    a, g = split(xp, a, pairs), split(xp, g, pairs)
    return merged(xp, solve(xp, adjoint(xp, a), g))


def _solve_along_a(xp: Any, t: Any, out: Any, a: Any, b: Any, _index: int, pairs: Any) -> Any:
    a, t, x = (split(xp, v, pairs) for v in (a, t, out))
    return merged(xp, -solve(xp, a, t @ x))


@library(
    results=lambda a, b, pairs: [(b.shape, b.dtype)],
    fallback=lambda xp, a, b, pairs: merged(xp, solved(xp, split(xp, a, pairs), split(xp, b, pairs))),
    vjp=(_solve_by_a, _solve_by_b),
    jvp=(_solve_along_a, lambda xp, t, out, a, b, _index, pairs: xp.solve_(a, t, pairs)),
    params=lambda pairs: {"complex": pairs},
    verb="solve",
)
def solve_(np: Any, a: Any, b: Any, pairs: Any) -> Any:
    """x with a x = b, for square a and matrices b."""
    return as_parts(np, np.linalg.solve(as_complex(np, a, pairs), as_complex(np, b, pairs)), pairs)


def solve(xp: Any, a: Any, b: Any) -> Any:
    """Return x with a x = b, for matrices with equal batch axes and one dtype."""
    pairs = is_complex(b)
    return split(xp, xp.solve_(merged(xp, a), merged(xp, b), pairs), pairs)


def inverse(xp: Any, a: Any) -> Any:
    """Return the inverses of square matrices."""
    return solve(xp, a, identity(xp, a.shape[:-2], a.shape[-1], a.dtype))


# ---- a x = b, a triangular ------------------------------------------------------------------------------------


def _triangle(xp: Any, x: Any, upper: Any) -> Any:
    return xp.triu(x) if upper else xp.tril(x)


def _triangular_by_a(xp: Any, g: Any, out: Any, a: Any, b: Any, _index: int, upper: Any, pairs: Any) -> Any:
    a, g, x = (split(xp, v, pairs) for v in (a, g, out))
    back = triangular_solve(xp, adjoint(xp, a), g, not upper)
    return merged(xp, -_triangle(xp, back @ adjoint(xp, x), upper))


def _triangular_by_b(xp: Any, g: Any, out: Any, a: Any, b: Any, _index: int, upper: Any, pairs: Any) -> Any:
    a, g = split(xp, a, pairs), split(xp, g, pairs)
    return merged(xp, triangular_solve(xp, adjoint(xp, a), g, not upper))


def _triangular_along_a(xp: Any, t: Any, out: Any, a: Any, b: Any, _index: int, upper: Any, pairs: Any) -> Any:
    a, t, x = (split(xp, v, pairs) for v in (a, t, out))
    return merged(xp, -triangular_solve(xp, a, _triangle(xp, t, upper) @ x, upper))


def _triangular_fallback(xp: Any, a: Any, b: Any, upper: Any, pairs: Any) -> Any:
    return merged(xp, triangular_solved(xp, split(xp, a, pairs), split(xp, b, pairs), upper))


@library(
    results=lambda a, b, upper, pairs: [(b.shape, b.dtype)],
    fallback=_triangular_fallback,
    vjp=(_triangular_by_a, _triangular_by_b),
    jvp=(
        _triangular_along_a,
        lambda xp, t, out, a, b, _index, upper, pairs: xp.triangular_solve_(a, t, upper, pairs),
    ),
    params=lambda upper, pairs: {"upper": upper, "complex": pairs},
    verb="solve",
)
def triangular_solve_(np: Any, a: Any, b: Any, upper: Any, pairs: Any) -> Any:
    """x with a x = b, for triangular a of which only that triangle is read."""
    a, b = as_complex(np, a, pairs), as_complex(np, b, pairs)
    return as_parts(np, np.linalg.solve(np.triu(a) if upper else np.tril(a), b), pairs)


def triangular_solve(xp: Any, a: Any, b: Any, upper: bool) -> Any:
    """Return x with a x = b, for triangular a, matrices with equal batch axes and one dtype."""
    pairs = is_complex(b)
    return split(xp, xp.triangular_solve_(merged(xp, a), merged(xp, b), upper, pairs), pairs)


# ---- Cholesky -------------------------------------------------------------------------------------------------


def _half_lower(xp: Any, x: Any) -> Any:
    """Return the lower triangle with half of the (real) diagonal."""
    return below(xp, x) + 0.5 * only_real_diagonal(xp, x)


def _cholesky_back(xp: Any, g: Any, out: Any, a: Any, _index: int, pairs: Any) -> Any:
    g, low = split(xp, g, pairs), split(xp, out, pairs)
    high = adjoint(xp, low)
    inner = _half_lower(xp, high @ _triangle(xp, g, False))
    left = triangular_solve(xp, high, inner, True)
    both = adjoint(xp, triangular_solve(xp, high, adjoint(xp, left), True))
    return merged(xp, to_lower(xp, 0.5 * (both + adjoint(xp, both))))


def _cholesky_along(xp: Any, t: Any, out: Any, a: Any, _index: int, pairs: Any) -> Any:
    t, low = hermitian(xp, split(xp, t, pairs)), split(xp, out, pairs)
    left = triangular_solve(xp, low, t, False)
    both = triangular_solve(xp, low, adjoint(xp, left), False)
    return merged(xp, low @ _half_lower(xp, both))


@library(
    results=lambda a, pairs: [(a.shape, a.dtype)],
    fallback=lambda xp, a, pairs: merged(xp, factored(xp, split(xp, a, pairs))),
    vjp=(_cholesky_back,),
    jvp=(_cholesky_along,),
    params=lambda pairs: {"complex": pairs},
    verb="factor",
)
def cholesky_(np: Any, a: Any, pairs: Any) -> Any:
    """The lower Cholesky factor, read from the lower triangle."""
    return as_parts(np, np.linalg.cholesky(as_complex(np, a, pairs)), pairs)


# ---- determinants ---------------------------------------------------------------------------------------------


def _scalars(xp: Any, x: Any) -> Any:
    """Return one number for each matrix as matrices of one element."""
    return xp.expand_dims(xp.expand_dims(x, -1), -1)


def _slogdet_results(a: Any, pairs: Any) -> Any:
    batch = shape_of(a, pairs)[:-2]
    return [(part_shape(batch, pairs), a.dtype), (batch, a.dtype)]


def _turn(xp: Any, sign: Any, amount: Any) -> Any:
    """Return i * amount * sign, for a real amount."""
    return xp.pair_(-amount * xp.imag(sign), amount * xp.real(sign))


def _slogdet_back(xp: Any, g: Any, out: Any, a: Any, index: int, pairs: Any) -> Any:
    if index == 0 and not pairs:
        return xp.zeros_like(a)
    whole = split(xp, a, pairs)
    flat = adjoint(xp, inverse(xp, whole))
    if index == 1:
        return merged(xp, _scalars(xp, g) * flat)
    sign, g = split(xp, out, pairs), split(xp, g, pairs)
    # sign = exp(i phase), d phase = Im tr(inv(a) da): the real inner product with i sign is the gradient by the phase.
    amount = xp.real(xp.conj(g) * _turn(xp, sign, xp.ones_like(xp.real(sign))))
    return merged(xp, _turn(xp, flat, _scalars(xp, amount)))


def _slogdet_along(xp: Any, t: Any, out: Any, a: Any, index: int, pairs: Any) -> Any:
    if index == 0 and not pairs:
        return xp.zeros_like(out)
    trace = xp.sum(diagonal_of(xp, solve(xp, split(xp, a, pairs), split(xp, t, pairs))), axis=-1)
    if index == 1:
        return xp.real(trace) if pairs else trace
    return merged(xp, _turn(xp, split(xp, out, pairs), xp.imag(trace)))


def _slogdet_fallback(xp: Any, a: Any, pairs: Any) -> Any:
    sign, size = signed_logarithm(xp, split(xp, a, pairs))
    return merged(xp, sign), size


@library(
    results=_slogdet_results,
    fallback=_slogdet_fallback,
    vjp=(_slogdet_back,),
    jvp=(_slogdet_along,),
    params=lambda pairs: {"complex": pairs},
    verb="take determinants",
)
def slogdet_(np: Any, a: Any, pairs: Any) -> Any:
    """The sign of the determinants and the logarithms of their sizes."""
    sign, size = np.linalg.slogdet(as_complex(np, a, pairs))
    return as_parts(np, np.asarray(sign), pairs), np.asarray(size)


def _det_back(xp: Any, g: Any, out: Any, a: Any, _index: int, pairs: Any) -> Any:
    flat = split(xp, xp.cofactors_(a, pairs), pairs)
    return merged(xp, _scalars(xp, split(xp, g, pairs)) * conjugate(xp, flat))


def _det_along(xp: Any, t: Any, out: Any, a: Any, _index: int, pairs: Any) -> Any:
    flat = split(xp, xp.cofactors_(a, pairs), pairs)
    return merged(xp, xp.sum(flat * split(xp, t, pairs), axis=(-2, -1)))


def _det_fallback(xp: Any, a: Any, pairs: Any) -> Any:
    sign, size = xp.slogdet_(a, pairs)
    return xp.exp(xp.expand_dims(size, -1) if pairs else size) * sign


@library(
    results=lambda a, pairs: [(part_shape(shape_of(a, pairs)[:-2], pairs), a.dtype)],
    fallback=_det_fallback,
    vjp=(_det_back,),
    jvp=(_det_along,),
    params=lambda pairs: {"complex": pairs},
    verb="take determinants",
)
def det_(np: Any, a: Any, pairs: Any) -> Any:
    """The determinants of square matrices; differentiated by their cofactors, so that singular ones have gradients."""
    return as_parts(np, np.asarray(np.linalg.det(as_complex(np, a, pairs))), pairs)


# ---- cofactors ------------------------------------------------------------------------------------------------


def _decomposed(xp: Any, a: Any) -> tuple[Any, Any, Any, Any]:
    """Return u, s, v of a = u diag(s) v^H, and det(u) det(v^H), a number of size 1."""
    pairs = is_complex(a)
    u, s, vh = xp.svd_(merged(xp, a), False, pairs)
    signs = [split(xp, xp.slogdet_(f, pairs)[0], pairs) for f in (u, vh)]
    return split(xp, u, pairs), s, adjoint(xp, split(xp, vh, pairs)), signs[0] * signs[1]


def _other_products(xp: Any, s: Any) -> Any:
    """Return at [i, j] the product of all values but those at i and j."""
    n = s.shape[-1]
    wide = xp.broadcast_to(xp.expand_dims(s, -2), (*s.shape, n))
    return xp.products_of_others(xp.where(on_diagonal(xp, n), xp.ones_like(wide), wide))


def _cofactors(xp: Any, a: Any) -> Any:
    """Return conj(u) diag(products of the other values) v^T times the phase: no division, so any rank will do."""
    u, s, v, phase = _decomposed(xp, a)
    others = xp.products_of_others(s)
    conj = xp.matrix_transpose(adjoint(xp, u))
    return _scalars(xp, phase) * ((conj * xp.expand_dims(others, -2)) @ xp.matrix_transpose(v))


def _cofactors_along(xp: Any, a: Any, t: Any) -> Any:
    """Return how the cofactors change along t: those of diag(s) + m, m = u^H t v, to first order in m."""
    u, s, v, phase = _decomposed(xp, a)
    m = adjoint(xp, u) @ t @ v
    others = _other_products(xp, s)
    here = on_diagonal(xp, s.shape[-1])
    off = xp.where(here, xp.zeros_like(others), others)
    inner = from_diagonal(xp, xp.sum(off * xp.expand_dims(diagonal_of(xp, m), -2), axis=-1))
    inner = inner - off * xp.matrix_transpose(m)
    conj = xp.matrix_transpose(adjoint(xp, u))
    return _scalars(xp, phase) * (conj @ inner @ xp.matrix_transpose(v))


def _cofactors_jvp(xp: Any, t: Any, out: Any, a: Any, _index: int, pairs: Any) -> Any:
    return merged(xp, _cofactors_along(xp, split(xp, a, pairs), split(xp, t, pairs)))


def _cofactors_vjp(xp: Any, g: Any, out: Any, a: Any, _index: int, pairs: Any) -> Any:
    # The derivative is symmetric: cofactors are themselves the gradient of the determinant.
    back = _cofactors_along(xp, split(xp, a, pairs), conjugate(xp, split(xp, g, pairs)))
    return merged(xp, conjugate(xp, back))


@library(
    results=lambda a, pairs: [(a.shape, a.dtype)],
    fallback=lambda xp, a, pairs: merged(xp, _cofactors(xp, split(xp, a, pairs))),
    vjp=(_cofactors_vjp,),
    jvp=(_cofactors_jvp,),
    params=lambda pairs: {"complex": pairs},
    verb="take cofactors",
)
def cofactors_(np: Any, a: Any, pairs: Any) -> Any:
    """The cofactors of square matrices: the gradient of the determinant, whatever the rank."""
    a = as_complex(np, a, pairs)
    u, s, vh = np.linalg.svd(a)
    n = a.shape[-1]
    others = np.stack([np.prod(np.delete(s, k, -1), -1) for k in range(n)], -1)
    phase = np.linalg.det(u) * np.linalg.det(vh)
    return as_parts(np, phase[..., None, None] * ((u.conj() * others[..., None, :]) @ vh.conj()), pairs)
