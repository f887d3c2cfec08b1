"""Linear algebra that cannot be built from smaller ops without losing the device's own library.

Here: the primitive `matmul_` on at least two axes with equal batch axes.
Not here: `matmul` with its 1-D and broadcasting rules, in `products.py`.
"""

from typing import Any

from polygrad import dtypes
from polygrad.errors import DTypeError, ShapeError
from polygrad.ops import complex_arithmetic
from polygrad.ops.table import primitive


def _infer(a: Any, b: Any) -> Any:
    if a.shape[-1] != b.shape[-2]:
        raise ShapeError(
            f"cannot multiply matrices {list(a.shape)} and {list(b.shape)}: the last axis of the first has "
            f"{a.shape[-1]} elements, "
            f"the last but one of the second {b.shape[-2]}; they must be equal"
        )
    dtype = dtypes.promote(a.dtype, b.dtype)
    if dtype is dtypes.bool_:
        raise DTypeError("cannot multiply bool matrices: cast with .astype(...)")
    return (*a.shape[:-1], b.shape[-1]), dtype


def _product(xp: Any, a: Any, b: Any) -> Any:
    """Return the product of two matrices; where there is nothing to add up no device is asked for it."""
    if a.shape[-1] == 0:
        return xp.sum(xp.expand_dims(a, -1) * xp.expand_dims(b, -3), axis=-2)
    return xp.matmul_(a, b)


@primitive(
    infer=_infer,
    kind="matmul",
    kinds="int float",
    vjp=(
        lambda xp, g, out, a, b: _product(xp, g, xp.swap_last(b)),
        lambda xp, g, out, a, b: _product(xp, xp.swap_last(a), g),
    ),
    jvp=(lambda xp, t, out, a, b: xp.matmul_(t, b), lambda xp, t, out, a, b: xp.matmul_(a, t)),
    verb="multiply matrices",
    complex=complex_arithmetic.matmul,
)
def matmul_(xp: Any, a: Any, b: Any, /) -> Any:
    """The product of matrices in the last two axes; batch axes are equal."""
    return xp.matmul(a, b)
