"""Products of vectors and matrices that users call.

Here: matmul with its 1-D, batch and empty cases, vecdot, tensordot, outer, kron; transposes stay views.
Not here: the primitive `matmul_` (`linalg.py`), decompositions, einsum.
"""

import math
import operator
from typing import Any

from polygrad import dtypes, shapes
from polygrad.errors import DTypeError, ShapeError
from polygrad.ops.internal import cast
from polygrad.ops.statistics import wide
from polygrad.ops.table import composite

NUMERIC = "int float complex"


def _numeric(xp: Any, words: str, x1: Any, x2: Any) -> tuple[Any, Any]:
    """Return two operands in their common dtype, refusing bool."""
    dtype = dtypes.promote(x1.dtype, x2.dtype)
    if dtype is dtypes.bool_:
        raise DTypeError(f"cannot {words} bool arrays: cast with .astype(...)")
    return cast(xp, x1, dtype), cast(xp, x2, dtype)


def _matmul_samples(draw: Any) -> Any:
    pairs = (
        ((3, 4), (4, 2)), ((4,), (4,)), ((4,), (4, 2)), ((3, 4), (4,)), ((2, 3, 4), (4, 5)), ((2, 3, 4), (2, 4, 1)),
        ((5, 1, 3, 4), (2, 4, 3)),
        ((2, 3, 4), (4,)), ((4,), (2, 4, 3)), ((0, 4), (4, 2)), ((3, 0), (0, 2)), ((0,), (0,)), ((2, 3, 0), (0, 4)),
        ((1, 1), (1, 1)),
    )  # fmt: skip
    return [((draw.array(a, -2, 2), draw.array(b, -2, 2)), {}) for a, b in pairs]


@composite(reference=lambda np, a, b: np.matmul(a, b), samples=_matmul_samples, dtypes=NUMERIC, where="main linalg")
def matmul(xp: Any, x1: Any, x2: Any, /) -> Any:
    """The matrix product over the last two axes.

    Other axes broadcast; a 1-D operand is a row on the left and a column on the right.
    """
    if not (hasattr(x1, "shape") and hasattr(x2, "shape")) or x1.ndim == 0 or x2.ndim == 0:
        raise ShapeError(
            "cannot multiply matrices when one is a scalar: matmul needs at least one axis on both sides; use * for "
            "scaling"
        )
    a, b = _numeric(xp, "multiply matrices of", x1, x2)
    inner_b = b.shape[0] if b.ndim == 1 else b.shape[-2]
    if a.shape[-1] != inner_b:
        raise ShapeError(
            f"cannot multiply matrices {list(x1.shape)} and {list(x2.shape)}: the last axis of the first has "
            f"{a.shape[-1]} elements, "
            f"the {'only' if b.ndim == 1 else 'last but one'} of the second {inner_b}; they must be equal"
        )
    a = xp.reshape_(a, (1, *a.shape)) if a.ndim == 1 else a
    b = xp.reshape_(b, (*b.shape, 1)) if b.ndim == 1 else b
    out = _matrices(xp, a, b)
    keep = [
        n
        for k, n in enumerate(out.shape)
        if not (k == out.ndim - 2 and x1.ndim == 1) and not (k == out.ndim - 1 and x2.ndim == 1)
    ]
    return out if len(keep) == out.ndim else xp.reshape_(out, tuple(keep))


def _matrices(xp: Any, a: Any, b: Any) -> Any:
    """Return the product of operands that have at least two axes and one dtype."""
    rows, inner, columns = a.shape[-2], a.shape[-1], b.shape[-1]
    lead = shapes.broadcast("multiply matrices of batch", a.shape[:-2], b.shape[:-2])
    if inner == 0:
        return xp.sum(xp.expand_dims(a, -1) * xp.expand_dims(b, -3), axis=-2, dtype=a.dtype)
    if b.ndim == 2 and a.ndim > 2 and 0 not in a.shape:
        # One big product instead of many small ones: so is the gradient of b, which would else be a sum of many.
        flat = xp.matmul_(xp.reshape_(a, (math.prod(a.shape[:-1]), inner)), b)
        return xp.reshape_(flat, (*lead, rows, columns))
    if a.shape[:-2] != lead:
        a = xp.broadcast_to(a, (*lead, rows, inner))
    if b.shape[:-2] != lead:
        b = xp.broadcast_to(b, (*lead, inner, columns))
    return xp.matmul_(a, b)


def _vecdot_reference(np: Any, a: Any, b: Any, axis: int = -1) -> Any:
    a, b = np.broadcast_arrays(a, b)
    return np.sum(np.conj(a) * b, axis=axis, dtype=np.result_type(a, b))


@composite(
    reference=_vecdot_reference,
    samples=lambda draw: [
        ((draw.array(a, -2, 2), draw.array(b, -2, 2)), {"axis": axis})
        for a, b, axis in (
            ((4,), (4,), -1),
            ((3, 4), (3, 4), -1),
            ((3, 4), (3, 1), -2),
            ((2, 3, 4), (4,), -1),
            ((2, 0), (2, 0), -1),
        )
    ],
    dtypes=NUMERIC,
    where="main linalg",
)
def vecdot(xp: Any, x1: Any, x2: Any, /, *, axis: Any = -1) -> Any:
    """The sum of conj(x1) * x2 along an axis, in their common dtype."""
    a, b = _numeric(xp, "take the dot product of", x1, x2)
    a = xp.conj(a) if a.dtype in dtypes.COMPLEX else a
    shape = shapes.broadcast("take the dot product of", a.shape, b.shape)
    k = shapes.axis("take the dot product", axis, len(shape))
    back = k - len(shape)
    sizes = [x.shape[back] if x.ndim >= -back else None for x in (a, b)]
    if sizes[0] != sizes[1]:
        raise ShapeError(
            f"cannot take the dot product of {list(x1.shape)} and {list(x2.shape)} along axis {axis}: "
            "that axis must have one size in both"
        )
    if shape[k] == 0:
        return xp.zeros(shape[:k] + shape[k + 1 :], dtype=a.dtype)
    total = xp.sum_(wide(xp, a) * wide(xp, b), (k,))
    return xp.reshape_(cast(xp, total, a.dtype), shape[:k] + shape[k + 1 :])


def _contracted(words: str, axes: Any, a: Any, b: Any) -> tuple[list[int], list[int]]:
    """Return the axes of both operands that a tensordot sums over."""
    if not isinstance(axes, (tuple, list)):
        n = operator.index(axes)
        if not 0 <= n <= (a.ndim if a.ndim < b.ndim else b.ndim):
            raise ShapeError(f"cannot {words} over {n} axes: the arrays have {a.ndim} and {b.ndim}")
        return list(range(a.ndim - n, a.ndim)), list(range(n))
    left, right = (list(e) if isinstance(e, (tuple, list)) else [e] for e in axes)
    left = [shapes.axis(words, k, a.ndim) for k in left]
    right = [shapes.axis(words, k, b.ndim) for k in right]
    if len(left) != len(right) or len(set(left)) != len(left) or len(set(right)) != len(right):
        raise ShapeError(f"cannot {words} over axes {axes!r}: both sides need as many axes, each named once")
    return left, right


def _tensordot_samples(draw: Any) -> Any:
    cases = (
        ((2, 3, 4), (3, 4, 5), 2), ((2, 3), (4,), 0), ((2, 3, 4), (4, 3), ((1, 2), (1, 0))), ((3, 4), (4, 2), 1),
        ((2, 3), (2, 3), 2),
        ((2, 3, 4), (5, 3), ((-2,), (-1,))), ((2, 0), (0, 3), 1),
    )  # fmt: skip
    return [((draw.array(a, -2, 2), draw.array(b, -2, 2)), {"axes": axes}) for a, b, axes in cases]


@composite(
    reference=lambda np, a, b, axes=2: np.tensordot(a, b, axes),
    samples=_tensordot_samples,
    dtypes=NUMERIC,
    where="main linalg",
)
def tensordot(xp: Any, x1: Any, x2: Any, /, *, axes: Any = 2) -> Any:
    """The sum of products over the last *axes* axes of x1 and the first of x2, or over two sequences of axes."""
    a, b = _numeric(xp, "contract", x1, x2)
    left, right = _contracted("contract", axes, a, b)
    free_a = [k for k in range(a.ndim) if k not in left]
    free_b = [k for k in range(b.ndim) if k not in right]
    if [a.shape[k] for k in left] != [b.shape[k] for k in right]:
        raise ShapeError(
            f"cannot contract {list(x1.shape)} and {list(x2.shape)} over axes {left} and {right}: sizes "
            f"{[a.shape[k] for k in left]} and {[b.shape[k] for k in right]} must be equal"
        )
    shape_a, shape_b = tuple(a.shape[k] for k in free_a), tuple(b.shape[k] for k in free_b)
    inner = math.prod(a.shape[k] for k in left)
    a = xp.reshape_(xp.permute_dims(a, (*free_a, *left)), (math.prod(shape_a), inner))
    b = xp.reshape_(xp.permute_dims(b, (*right, *free_b)), (inner, math.prod(shape_b)))
    return xp.reshape_(_matrices(xp, a, b), shape_a + shape_b)


@composite(
    reference=lambda np, a, b: np.outer(a, b),
    samples=lambda draw: [
        ((draw.array(a, -2, 2), draw.array(b, -2, 2)), {}) for a, b in (((3,), (4,)), ((2, 2), (3,)), ((0,), (2,)))
    ],
    dtypes=NUMERIC,
    where="main linalg",
)
def outer(xp: Any, x1: Any, x2: Any, /) -> Any:
    """The products of all pairs of an element of x1 and one of x2; both are flattened."""
    a, b = _numeric(xp, "multiply", x1, x2)
    return xp.reshape_(a, (shapes.size(a.shape), 1)) * xp.reshape_(b, (1, shapes.size(b.shape)))


@composite(
    reference=lambda np, a, b: np.kron(a, b),
    samples=lambda draw: [
        ((draw.array(a, -2, 2), draw.array(b, -2, 2)), {}) for a, b in (((3,), (4,)), ((2, 2), (3, 1)), ((2,), (2, 3)))
    ],
    dtypes=NUMERIC,
    where="main linalg",
)
def kron(xp: Any, x1: Any, x2: Any, /) -> Any:
    """The Kronecker product: blocks of x2, each multiplied by an element of x1."""
    a, b = _numeric(xp, "multiply", x1, x2)
    rank = a.ndim if a.ndim > b.ndim else b.ndim
    left = (1,) * (rank - a.ndim) + a.shape
    right = (1,) * (rank - b.ndim) + b.shape
    a = xp.reshape_(a, tuple(n for m in left for n in (m, 1)))
    b = xp.reshape_(b, tuple(n for m in right for n in (1, m)))
    return xp.reshape_(a * b, tuple(p * q for p, q in zip(left, right, strict=True)))
