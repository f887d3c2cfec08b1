"""Norms, ranks, pseudo-inverses, and what takes a matrix's diagonal: ``pg.linalg``.

Here: vector_norm, matrix_norm, matrix_rank, pinv, diagonal, trace, cross.
Not here: decompositions and systems of equations (`linalg_functions.py`), products.
"""

import math
from typing import Any

from polygrad import dtypes, shapes
from polygrad.errors import DTypeError, ShapeError
from polygrad.ops.internal import cast
from polygrad.ops.linalg_functions import OBLONG, Calls, empty_of, matrices, plain
from polygrad.ops.linalg_parts import (
    adjoint,
    as_complex,
    as_given,
    as_parts,
    check_matrix,
    computing,
    is_complex,
    merged,
    part_shape,
    scale_columns,
    shape_of,
    split,
)
from polygrad.ops.table import composite, library

BOTH = "float complex"
ALL = "int float complex"


# ---- norms of vectors -----------------------------------------------------------------------------------------


def _norm_samples(draw: Any) -> Any:
    orders = (2, 1, 0, math.inf, -math.inf, 3, 2.5, -1)
    calls: list[Any] = [((draw.array((3, 4), 0.5, 2),), {"axis": 1, "ord": order}) for order in orders]
    calls += [((draw.array((2, 3, 4), -2, 2),), {"axis": axis}) for axis in (None, (0, 2), 1)]
    calls += [((draw.array((3, 4), -2, 2),), {"axis": (0, 1), "keepdims": True, "ord": 1})]
    return [*calls, ((draw.array((2, 0), -2, 2),), {"axis": 1}), ((draw.array((), -2, 2),), {})]


def _norm_reference(np: Any, x: Any, axis: Any = None, keepdims: bool = False, ord: Any = 2) -> Any:  # noqa: A002
    axes = tuple(range(x.ndim)) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    size = np.abs(x)
    if ord == math.inf:
        return np.max(size, axis=axes, keepdims=keepdims)
    if ord == -math.inf:
        return np.min(size, axis=axes, keepdims=keepdims)
    if ord == 0:
        return np.sum(size != 0, axis=axes, keepdims=keepdims).astype(size.dtype)
    return np.sum(size**ord, axis=axes, keepdims=keepdims) ** (1.0 / ord)


@composite(reference=_norm_reference, samples=_norm_samples, dtypes=BOTH, tolerance=5.0, where="linalg")
def vector_norm(xp: Any, x: Any, /, *, axis: Any = None, keepdims: Any = False, ord: Any = 2) -> Any:  # noqa: A002  the standard's name
    """The norm over axes, of the flattened array if *axis* is None: of order 2, inf, -inf, 0 (how many are not 0) or p.

    At 0 the derivative is 0.
    """
    a = computing(xp, "take the norm of", x)
    axes = shapes.axes("take the norm", axis, a.ndim)
    if not isinstance(ord, (int, float)) or math.isnan(ord):
        raise ShapeError(f"cannot take a vector norm of order {ord!r}: it is a number, inf or -inf")
    if not axes:
        return as_given(xp, xp.abs(a) if ord else cast(xp, xp.not_equal(a, 0.0), dtypes.part(a.dtype)), x)
    out = _order(xp, a, axes, bool(keepdims), float(ord))
    return as_given(xp, out, x)


def _order(xp: Any, a: Any, axes: Any, keepdims: bool, order: float) -> Any:
    over = {"axis": axes, "keepdims": keepdims}
    if order == 2:
        return _root(xp, xp.sum(_squares(xp, a), **over))
    size = xp.abs(a)
    if math.isinf(order):
        if 0 in [a.shape[k] for k in axes]:
            if order < 0:
                raise ShapeError("cannot take the norm of order -inf of no elements: there is no least one")
            return xp.sum(size, **over)
        return (xp.max if order > 0 else xp.min)(size, **over)
    if order == 0:
        return xp.sum(cast(xp, xp.not_equal(size, 0.0), size.dtype), **over)
    if order == 1:
        return xp.sum(size, **over)
    if order < 0:
        return xp.pow(xp.sum(xp.pow(size, order), **over), 1.0 / order)
    nothing = xp.equal(size, 0.0)
    powers = xp.pow(xp.where(nothing, xp.ones_like(size), size), order)
    total = xp.sum(xp.where(nothing, xp.zeros_like(size), powers), **over)
    zero = xp.equal(total, 0.0)
    return xp.where(zero, xp.zeros_like(total), xp.pow(xp.where(zero, xp.ones_like(total), total), 1.0 / order))


def _squares(xp: Any, a: Any) -> Any:
    if is_complex(a):
        re, im = xp.real(a), xp.imag(a)
        return re * re + im * im
    return a * a


def _root(xp: Any, total: Any) -> Any:
    """Return the square root, with derivative 0 at 0."""
    zero = xp.equal(total, 0.0)
    return xp.where(zero, xp.zeros_like(total), xp.sqrt(xp.where(zero, xp.ones_like(total), total)))


# ---- norms of matrices ----------------------------------------------------------------------------------------

ORDERS = ("fro", "nuc", 1, -1, 2, -2, math.inf, -math.inf)


def _matrix_norm_samples(draw: Any) -> Any:
    calls: list[Any] = [((draw.matrices("apart", 2, 4, 3),), {"ord": order}) for order in ORDERS]
    return [
        *calls,
        ((draw.matrices("apart", 3, 3),), {"keepdims": True}),
        ((draw.array((0, 3), -2, 2),), {"ord": "fro"}),
    ]


def _matrix_norm_reference(np: Any, x: Any, keepdims: bool = False, ord: Any = "fro") -> Any:  # noqa: A002
    return np.linalg.norm(x, ord=ord, axis=(-2, -1), keepdims=keepdims)


@composite(reference=_matrix_norm_reference, samples=_matrix_norm_samples, dtypes=BOTH, tolerance=10.0, where="linalg")
def matrix_norm(xp: Any, x: Any, /, *, keepdims: Any = False, ord: Any = "fro") -> Any:  # noqa: A002  as above
    """The norm of each matrix: "fro", "nuc" (the sum of singular values), 2 and -2 (the greatest, the least), or 1, inf
    and -1, -inf (the greatest and least sum over a column, over a row).
    """
    check_matrix("take the norm of", x)
    if ord not in ORDERS or isinstance(ord, bool):
        raise ShapeError(f"cannot take a matrix norm of order {ord!r}: it is one of {', '.join(map(repr, ORDERS))}")
    a = computing(xp, "take the norm of", x)
    out = _matrix_order(xp, a, ord)
    out = xp.expand_dims(xp.expand_dims(out, -1), -1) if keepdims else out
    return as_given(xp, out, x)


def _matrix_order(xp: Any, a: Any, order: Any) -> Any:
    if order == "fro":
        return _order(xp, a, (a.ndim - 2, a.ndim - 1), False, 2.0)
    if 0 in a.shape[-2:]:
        if order != "nuc" and order < 0:
            raise ShapeError(f"cannot take the norm of order {order} of an empty matrix: there is no least sum")
        return xp.zeros(a.shape[:-2], dtype=dtypes.part(a.dtype))
    if order in ("nuc", 2, -2):
        s = xp.svdvals(a)
        return xp.sum(s, axis=-1) if order == "nuc" else (xp.max if order > 0 else xp.min)(s, axis=-1)
    sums = xp.sum(xp.abs(a), axis=-2 if abs(order) == 1 else -1)
    return (xp.max if order > 0 else xp.min)(sums, axis=-1)


# ---- rank and pseudo-inverse ----------------------------------------------------------------------------------


def _tolerances(xp: Any, a: Any, rtol: Any) -> Any:
    """Return the relative tolerance as a number, or as a node that broadcasts against the batch."""
    if rtol is None:
        return max(a.shape[-2:]) * dtypes.float_limits(a.dtype)[0]
    if hasattr(rtol, "shape"):
        return cast(xp, rtol, dtypes.part(a.dtype))
    return float(rtol)


def _rank_samples(draw: Any) -> Any:
    low = draw.matrices("apart", 4, 3) * [1, 1, 0]
    return [
        ((draw.matrices("apart", 2, 3, 4),), {}),
        ((low.astype(draw.dtype),), {}),
        ((low.astype(draw.dtype),), {"rtol": 1e-3}),
        ((draw.matrices("apart", 3, 3) * 0,), {}),
    ]


def _rank_reference(np: Any, x: Any, rtol: Any = None) -> Any:
    s = np.linalg.svd(x, compute_uv=False)
    rtol = 2e-6 if rtol is None else rtol  # the samples have gaps there, whatever their dtype
    return np.sum(s > rtol * np.max(s, axis=-1, keepdims=True), axis=-1)


@composite(
    reference=_rank_reference, samples=_rank_samples, dtypes="float complex", differentiable=False, where="linalg"
)
def matrix_rank(xp: Any, x: Any, /, *, rtol: Any = None) -> Any:
    """How many singular values are greater than rtol times the greatest; max(M, N) eps if no rtol is given."""
    check_matrix("take the rank of", x)
    a = computing(xp, "take the rank of", x)
    if 0 in a.shape:
        return xp.zeros(a.shape[:-2], dtype=dtypes.int64)
    s = xp.svdvals(a)
    tolerance = _tolerances(xp, a, rtol)
    least = xp.max(s, axis=-1) * tolerance
    return xp.sum(cast(xp, xp.greater(s, xp.expand_dims(least, -1)), dtypes.int64), axis=-1)


def _pinv_back(xp: Any, g: Any, out: Any, a: Any, rtol: Any, _index: int, pairs: Any) -> Any:
    a, p, g = (split(xp, v, pairs) for v in (a, out, g))
    high, gh = adjoint(xp, p), adjoint(xp, g)
    back = -(high @ g @ high)
    left = gh @ p @ high
    right = high @ p @ gh
    back = back + (left - a @ (p @ left)) + (right - (right @ p) @ a)
    return merged(xp, back)


def _pinv_along(xp: Any, t: Any, out: Any, a: Any, rtol: Any, _index: int, pairs: Any) -> Any:
    a, p, t = (split(xp, v, pairs) for v in (a, out, t))
    high, th = adjoint(xp, p), adjoint(xp, t)
    along = -(p @ t @ p)
    left = p @ high @ th
    right = th @ high @ p
    return merged(xp, along + (left - (left @ a) @ p) + (right - p @ (a @ right)))


def _pinv_fallback(xp: Any, a: Any, rtol: Any, pairs: Any) -> Any:
    u, s, vh = (r if k == 1 else split(xp, r, pairs) for k, r in enumerate(xp.svd_(a, False, pairs)))
    least = rtol * xp.max(s, axis=-1, keepdims=True)
    kept = xp.greater(s, least)
    inverse = xp.where(kept, 1.0 / xp.where(kept, s, xp.ones_like(s)), xp.zeros_like(s))
    return merged(xp, scale_columns(xp, adjoint(xp, vh), inverse) @ adjoint(xp, u))


def _pinv_results(a: Any, rtol: Any, pairs: Any) -> Any:
    *batch, m, n = shape_of(a, pairs)
    return [(part_shape((*batch, n, m), pairs), a.dtype)]


@library(
    results=_pinv_results,
    fallback=_pinv_fallback,
    vjp=(_pinv_back, None),
    jvp=(_pinv_along, None),
    params=lambda pairs: {"complex": pairs},
    verb="invert",
)
def pinv_(np: Any, a: Any, rtol: Any, pairs: Any) -> Any:
    """The pseudo-inverses of matrices; singular values up to rtol [..., 1] times the greatest count as 0.

    The derivative holds the rank: G. Golub, V. Pereyra, "The differentiation of pseudo-inverses and nonlinear least
    squares problems whose variables separate" (1973).
    """
    whole = as_complex(np, a, pairs)
    u, s, vh = np.linalg.svd(whole, full_matrices=False)
    kept = s > rtol * np.max(s, axis=-1, keepdims=True)
    inverse = np.where(kept, 1.0 / np.where(kept, s, 1.0), 0.0)
    out = (vh.conj().swapaxes(-1, -2) * inverse[..., None, :]) @ u.conj().swapaxes(-1, -2)
    return as_parts(np, out, pairs)


@composite(
    reference=lambda np, x, rtol=None: np.linalg.pinv(x, rtol),
    samples=matrices("apart", *OBLONG, ((2, 4, 3), {"rtol": 1e-3})),
    dtypes=BOTH,
    tolerance=10.0,
    where="linalg",
)
def pinv(xp: Any, x: Any, /, *, rtol: Any = None) -> Any:
    """The Moore-Penrose pseudo-inverses of matrices.

    Singular values up to rtol times the greatest count as 0; max(M, N) eps if no rtol is given.
    """
    check_matrix("take the pseudo-inverse of", x)
    a = computing(xp, "take the pseudo-inverse of", x)
    if 0 in a.shape:
        return as_given(xp, empty_of(xp, (*a.shape[:-2], a.shape[-1], a.shape[-2]), a.dtype), x)
    tolerance = _tolerances(xp, a, rtol)
    batch = a.shape[:-2]
    if not hasattr(tolerance, "shape"):
        tolerance = xp.constant(tolerance, dtypes.part(a.dtype))
    tolerance = xp.expand_dims(xp.broadcast_to(tolerance, batch), -1)
    return as_given(xp, split(xp, xp.pinv_(merged(xp, a), tolerance, is_complex(a)), is_complex(a)), x)


# ---- diagonals and the cross product --------------------------------------------------------------------------

DIAGONALS: Calls = (
    ((3, 4), {}), ((2, 4, 3), {"offset": 1}), ((4, 3), {"offset": -2}), ((3, 3), {"offset": 5}), ((0, 3), {}),
    ((3, 3), {"offset": -3}),
)  # fmt: skip


@composite(
    reference=lambda np, x, offset=0: np.diagonal(x, offset, -2, -1),
    samples=plain(*DIAGONALS),
    dtypes="bool " + ALL,
    where="linalg",
)
def diagonal(xp: Any, x: Any, /, *, offset: Any = 0) -> Any:
    """The diagonals of matrices: the main one, one above if *offset* is positive, one below if it is negative."""
    check_matrix("take the diagonal of", x)
    *batch, m, n = x.shape
    count = min(m, n - offset) if offset >= 0 else min(m + offset, n)
    if count <= 0:
        return xp.reshape_(xp.slice_(x, (0,) * x.ndim, (1,) * x.ndim, (*batch, 0, n)), (*batch, 0))
    start = offset if offset >= 0 else -offset * n
    flat = xp.reshape(x, (*batch, m * n))
    lead = (0,) * len(batch)
    return xp.slice_(flat, (*lead, start), (*(1,) * len(batch), n + 1), (*batch, count))


@composite(
    reference=lambda np, x, offset=0, dtype=None: np.trace(x, offset, -2, -1, dtype),
    samples=plain(*DIAGONALS),
    dtypes=ALL,
    tolerance=2.0,
    where="linalg",
)
def trace(xp: Any, x: Any, /, *, offset: Any = 0, dtype: Any = None) -> Any:
    """The sums of the diagonals of matrices, in the dtype that `sum` gives."""
    check_matrix("take the trace of", x)
    return xp.sum(xp.diagonal(x, offset=offset), axis=-1, dtype=dtype)


def _cross_samples(draw: Any) -> Any:
    pairs = (((3,), (3,), -1), ((2, 3), (2, 3), -1), ((3, 4), (3, 1), 0), ((2, 1, 3), (4, 3), -1))
    return [((draw.array(a, -2, 2), draw.array(b, -2, 2)), {"axis": axis}) for a, b, axis in pairs if axis < 0 or a]


def _cross_reference(np: Any, a: Any, b: Any, axis: int = -1) -> Any:
    a, b = np.broadcast_arrays(a, b)
    (a0, a1, a2), (b0, b1, b2) = (np.moveaxis(x, axis, 0) for x in (a, b))
    return np.stack([a1 * b2 - a2 * b1, a2 * b0 - a0 * b2, a0 * b1 - a1 * b0], axis)


@composite(reference=_cross_reference, samples=_cross_samples, dtypes=ALL, where="linalg")
def cross(xp: Any, x1: Any, x2: Any, /, *, axis: Any = -1) -> Any:
    """The cross products of vectors of three elements along an axis; other axes broadcast."""
    dtype = dtypes.promote(x1.dtype, x2.dtype)
    if dtype is dtypes.bool_:
        raise DTypeError("cannot take the cross product of bool arrays: cast with .astype(...)")
    a, b = cast(xp, x1, dtype), cast(xp, x2, dtype)
    shape = shapes.broadcast("take the cross product of", a.shape, b.shape)
    k = shapes.axis("take the cross product", axis, len(shape))
    back = k - len(shape)
    for x in (a, b):
        if x.ndim < -back or x.shape[back] != 3:
            raise ShapeError(
                f"cannot take the cross product of {list(x1.shape)} and {list(x2.shape)} along axis {axis}: that axis "
                "must have 3 elements in both"
            )
    one = xp.multiply(a, xp.roll(b, -1, back))
    other = xp.multiply(xp.roll(a, -1, back), b)
    return xp.roll(xp.subtract(one, other), -1, back)
