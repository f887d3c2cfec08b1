"""Reductions that the schedule knows: they keep the reduced axes as size 1 and accumulate in the operand's dtype.

Here: sum_, max_, min_, prod_ as primitives. Ties of max_ and min_ share the gradient equally.
Not here: what users call (sum with axis and keepdims, mean, var, argmax, ...), which is in `statistics.py`.
"""

from typing import Any

from polygrad import dtypes, shapes
from polygrad.ops import complex_arithmetic
from polygrad.ops.internal import looked
from polygrad.ops.table import primitive


def _infer(x: Any, axes: Any) -> Any:
    return tuple(1 if k in axes else n for k, n in enumerate(x.shape)), x.dtype


SLACK = 16  # units: how far a value may come out otherwise when its sums are added up in another order
WALK = 256  # nodes


def _wins(xp: Any, x: Any, out: Any) -> Any:
    """Return where x is the extreme *out*.

    A kernel may compute x again, and where x is made of sums, add them up in another order than the kernel that found
    the extreme: then nearly equal must do, or no element would win.
    """
    same = xp.equal(x, out)
    if not _made_of_sums(x):
        return same
    eps = dtypes.float_limits(x.dtype)[0]
    return xp.bitwise_or(same, xp.abs(x - out) < xp.abs(out) * (SLACK * eps))  # not where both are infinite


def _made_of_sums(x: Any) -> bool:
    """Whether a reduction stands between x and what is or will be in memory."""
    looked()
    stack: list[Any] = [x]
    seen: set[Any] = set()
    while stack and len(seen) < WALK:
        node = stack.pop()
        if node in seen or node.storage is not None or node.spec.op.kind in ("matmul", "scatter", "library", "random"):
            continue
        if node.spec.op.kind == "reduce":
            return True
        seen.add(node)
        stack += node.parents
    return bool(stack)


def _ties_share(xp: Any, g: Any, out: Any, x: Any, axes: Any) -> Any:
    """Share *g* equally among the elements equal to *out*; a NaN equals nothing, so it gets no share."""
    wins = xp.astype(_wins(xp, x, out), x.dtype)
    return wins * (g / xp.maximum(xp.sum_(wins, axes), 1.0))


def _ties_mean(xp: Any, t: Any, out: Any, x: Any, axes: Any) -> Any:
    wins = xp.astype(_wins(xp, x, out), x.dtype)
    return xp.sum_(wins * t, axes) / xp.maximum(xp.sum_(wins, axes), 1.0)


@primitive(
    infer=_infer,
    kind="reduce",
    instr="sum",
    kinds="int float",
    vjp=(lambda xp, g, out, x, axes: xp.expand_(g, x.shape),),
    jvp=(lambda xp, t, out, x, axes: xp.sum_(t, axes),),
    complex="parts",
)
def sum_(xp: Any, x: Any, axes: Any, /) -> Any:
    """The sum over axes, which stay as size 1."""
    return xp.sum(x, axis=axes, keepdims=True)


@primitive(infer=_infer, kind="reduce", instr="max", vjp=(_ties_share,), jvp=(_ties_mean,))
def max_(xp: Any, x: Any, axes: Any, /) -> Any:
    """The maximum over axes, which stay as size 1; NaN wins."""
    return xp.max(x, axis=axes, keepdims=True)


@primitive(infer=_infer, kind="reduce", instr="min", vjp=(_ties_share,), jvp=(_ties_mean,))
def min_(xp: Any, x: Any, axes: Any, /) -> Any:
    """The minimum over axes, which stay as size 1; NaN wins."""
    return xp.min(x, axis=axes, keepdims=True)


def _others(xp: Any, x: Any, axes: Any) -> Any:
    """Return for each element the product of all others along *axes*: exact with any number of zeros."""
    order = tuple(k for k in range(x.ndim) if k not in axes)
    rows = xp.permute_(x, (*order, *axes))
    shape = rows.shape
    flat = xp.reshape(rows, (*shape[: len(order)], shapes.size(shape[len(order) :])))
    rest = xp.products_of_others(flat)
    back = xp.reshape(rest, shape)
    moved = (*order, *axes)
    return xp.permute_(back, tuple(moved.index(k) for k in range(x.ndim)))


@primitive(
    infer=_infer,
    kind="reduce",
    instr="prod",
    kinds="int float",
    vjp=(lambda xp, g, out, x, axes: g * _others(xp, x, axes),),
    jvp=(lambda xp, t, out, x, axes: xp.sum_(t * _others(xp, x, axes), axes),),
    complex=complex_arithmetic.prod,
)
def prod_(xp: Any, x: Any, axes: Any, /) -> Any:
    """The product over axes, which stay as size 1."""
    return xp.prod(x, axis=axes, keepdims=True)
