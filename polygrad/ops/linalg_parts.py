"""What the modules of linear algebra share: complex matrices as one real operand, and a few steps on matrices.

Here: `merged` and `split`, between a complex value and the real array that a library op takes; conjugate transposes,
triangles, the Hermitian matrix that a lower triangle stands for; the checks of shapes and dtypes.
Not here: any op.

A library op takes a complex matrix as one real operand with an axis of two more at its end, (real, imaginary): that is
how libraries keep complex numbers, so a driver reads and writes them in place; and a derivative rule sees the whole
complex cotangent at once, where two operands would make it run twice.
"""

from typing import Any

from polygrad import dtypes, shapes
from polygrad.errors import DTypeError, ShapeError
from polygrad.ops.internal import cast, places

MATRIX = 2  # axes


def is_complex(x: Any) -> bool:
    """Return whether x has a complex dtype."""
    return dtypes.KINDS[x.dtype] == "complex"


def merged(xp: Any, x: Any) -> Any:
    """Return a complex x as a real array with (real, imaginary) along a new last axis; a real x as it is."""
    return xp.stack([xp.real(x), xp.imag(x)], axis=-1) if is_complex(x) else x


def split(xp: Any, x: Any, pairs: Any) -> Any:
    """Return what `merged` made, as it was."""
    return xp.pair_(component(xp, x, 0), component(xp, x, 1)) if pairs else x


def component(xp: Any, x: Any, which: int) -> Any:
    """Return one place of the last axis, without it."""
    lead = (0,) * (x.ndim - 1)
    return xp.reshape_(xp.slice_(x, (*lead, which), (1,) * x.ndim, (*x.shape[:-1], 1)), x.shape[:-1])


def as_complex(np: Any, x: Any, pairs: Any) -> Any:
    """Return a library op's operand as the reference takes it: NumPy's complex array."""
    return (x[..., 0] + 1j * x[..., 1]).astype(np.result_type(x.dtype, np.complex64)) if pairs else x


def as_parts(np: Any, x: Any, pairs: Any) -> Any:
    """Return NumPy's complex result as a library op gives it."""
    return np.stack([x.real, x.imag], -1) if pairs else x


def shape_of(x: Any, pairs: Any) -> shapes.Shape:
    """Return the shape of the value that a library op's operand stands for."""
    return x.shape[:-1] if pairs else x.shape  # type: ignore[no-any-return]


def part_shape(shape: shapes.Shape, pairs: Any) -> shapes.Shape:
    """Return the shape of the operand that stands for a value of *shape*."""
    return (*shape, 2) if pairs else shape


def conjugate(xp: Any, x: Any) -> Any:
    """Return the complex conjugate; a real x as it is."""
    return xp.conj(x) if is_complex(x) else x


def real_part(xp: Any, x: Any) -> Any:
    """Return the real part; a real x as it is."""
    return xp.real(x) if is_complex(x) else x


def adjoint(xp: Any, x: Any) -> Any:
    """Return the conjugate transpose of the matrices in the last two axes."""
    return conjugate(xp, xp.matrix_transpose(x))


def zeros_of(xp: Any, x: Any) -> Any:
    """Return zeros of x's shape and dtype."""
    return xp.zeros_like(x)


def grid(xp: Any, rows: int, columns: int) -> tuple[Any, Any]:
    """Return the row numbers and the column numbers of a matrix, which broadcast against it."""
    return places(xp, rows, 0, MATRIX), places(xp, columns, 1, MATRIX)


def on_diagonal(xp: Any, n: int) -> Any:
    """Return where a square matrix has its diagonal."""
    rows, columns = grid(xp, n, n)
    return xp.equal(rows, columns)


def identity(xp: Any, batch: shapes.Shape, n: int, dtype: Any) -> Any:
    """Return identity matrices."""
    return xp.broadcast_to(cast(xp, on_diagonal(xp, n), dtype), (*batch, n, n))


def diagonal_of(xp: Any, x: Any) -> Any:
    """Return the main diagonals of square matrices."""
    n = x.shape[-1]
    return xp.sum(xp.where(on_diagonal(xp, n), x, zeros_of(xp, x)), axis=-1)


def from_diagonal(xp: Any, d: Any) -> Any:
    """Return square matrices with d on the diagonal and zeros elsewhere."""
    n = d.shape[-1]
    wide = xp.broadcast_to(xp.expand_dims(d, -2), (*d.shape, n))
    return xp.where(on_diagonal(xp, n), wide, zeros_of(xp, wide))


def below(xp: Any, x: Any) -> Any:
    """Return the elements below the diagonal, zeros elsewhere."""
    return xp.tril(x, k=-1)


def only_imaginary_diagonal(xp: Any, x: Any) -> Any:
    """Return i times the imaginary part of the diagonal, as a matrix."""
    im = xp.imag(x)
    kept = xp.where(on_diagonal(xp, x.shape[-1]), im, zeros_of(xp, im))
    return xp.pair_(zeros_of(xp, kept), kept)


def only_real_diagonal(xp: Any, x: Any) -> Any:
    """Return the real part of the diagonal, as a matrix of x's dtype."""
    re = real_part(xp, x)
    kept = xp.where(on_diagonal(xp, x.shape[-1]), re, zeros_of(xp, re))
    return cast(xp, kept, x.dtype)


def hermitian(xp: Any, x: Any) -> Any:
    """Return the Hermitian matrix with x's lower triangle; what stands above, and an imaginary diagonal, is unread."""
    low = below(xp, x)
    return low + adjoint(xp, low) + only_real_diagonal(xp, x)


def to_lower(xp: Any, x: Any) -> Any:
    """Return the gradient by the lower triangle, from that by a Hermitian matrix: the transpose of `hermitian`."""
    return below(xp, x + adjoint(xp, x)) + only_real_diagonal(xp, x)


def inverse_differences(xp: Any, low: Any, values: Any) -> Any:
    """Return 1 / (values[j] - values[i]) at [i, j], and 0 where the two are equal up to rounding.

    *low* is the least difference that counts, for each matrix; vectors of a repeated value have no derivative, and what
    only seems to depend on them (their cotangents cancel, or are zero) is right with a factor of 0.
    """
    gaps = xp.expand_dims(values, -2) - xp.expand_dims(values, -1)
    size = xp.abs(gaps)
    apart = xp.greater(size, xp.expand_dims(xp.expand_dims(low, -1), -1))
    safe = xp.where(apart, gaps, xp.ones_like(gaps))
    return xp.where(apart, 1.0 / safe, zeros_of(xp, gaps))


def rounding(xp: Any, sizes: Any) -> Any:
    """Return below which difference values of these sizes are equal: n eps times the greatest, for each matrix."""
    eps = dtypes.float_limits(sizes.dtype)[0]
    return xp.max(sizes, axis=-1) * (eps * sizes.shape[-1])


def inverse_values(xp: Any, values: Any) -> Any:
    """Return 1 / values, and 0 where a value is zero up to rounding."""
    large = xp.greater(values, xp.expand_dims(rounding(xp, values), -1))
    safe = xp.where(large, values, xp.ones_like(values))
    return xp.where(large, 1.0 / safe, zeros_of(xp, values))


def scale_rows(xp: Any, d: Any, x: Any) -> Any:
    """Return diag(d) @ x."""
    return xp.expand_dims(d, -1) * x


def scale_columns(xp: Any, x: Any, d: Any) -> Any:
    """Return x @ diag(d)."""
    return x * xp.expand_dims(d, -2)


# ---- checks of operands ---------------------------------------------------------------------------------------


def check_matrix(words: str, x: Any) -> None:
    """Raise ShapeError unless x has at least two axes."""
    if not hasattr(x, "shape"):
        raise DTypeError(f"cannot {words} {x!r}: it takes an array; convert it with pg.asarray(...)")
    if x.ndim < MATRIX:
        raise ShapeError(f"cannot {words} shape {list(x.shape)}: a matrix has two axes, a stack of them more")


def check_square(words: str, x: Any) -> None:
    """Raise ShapeError unless x holds square matrices."""
    check_matrix(words, x)
    if x.shape[-1] != x.shape[-2]:
        raise ShapeError(
            f"cannot {words} shape {list(x.shape)}: the last two axes must be equal, as of a square matrix"
        )


def computing(xp: Any, words: str, x: Any) -> Any:
    """Return x in the dtype in which libraries compute: 16-bit floats in float32, integers in float64; refuse bool."""
    kind = dtypes.KINDS[x.dtype]
    if kind == "bool":
        raise DTypeError(f"cannot {words} bool: it takes float or complex dtypes; cast with .astype(...)")
    if kind == "int":
        return cast(xp, x, dtypes.float64)
    return cast(xp, x, dtypes.float32) if x.dtype in (dtypes.float16, dtypes.bfloat16) else x


def as_given(xp: Any, out: Any, *operands: Any) -> Any:
    """Return a result in 16 bits if the operands were."""
    dtype = operands[0].dtype
    for x in operands[1:]:
        dtype = dtypes.promote(dtype, x.dtype)
    return cast(xp, out, dtype) if dtype in (dtypes.float16, dtypes.bfloat16) else out
