"""Derivatives of analytic functions of complex numbers: one complex slope instead of those of all the real ops.

Here: `analytic_`, a part of a value with the real nodes that it is a function of beside it; its derivative by each of
these comes of the `slopes` of the op that made it.
Not here: the slopes, which stand at the ops; the values.

With f'(z) = p + iq at z = a + ib, the real part of f changes by p along a and by -q along b, its imaginary part by q
and by p (the equations of Cauchy and Riemann). A slope may itself be differentiated.
"""

from collections.abc import Callable
from typing import Any

from polygrad.ops.table import primitive

MOST = 4  # real operands of an analytic function: two complex numbers


def _rule(position: int) -> Callable[..., Any]:
    """Return the derivative of a part of a value by the real operand at *position*."""

    def rule(xp: Any, g: Any, _out: Any, _value: Any, *rest: Any) -> Any:
        *inputs, op, of_part, layout = rest
        number, by_part = layout[position]
        slope = xp.slope_(op, number, layout, *inputs)
        if of_part == by_part:
            return xp.multiply_no_nan(xp.part_(slope, 0), g)
        turned = xp.multiply_no_nan(xp.part_(slope, 1), g)
        return turned if of_part else -turned

    return rule


_RULES = (None, *[_rule(k) for k in range(MOST)])


def _batch(xp: Any, size: int, node: Any, lifted: tuple[bool, ...], operands: tuple[Any, ...], *attrs: Any) -> Any:
    """Return the node of all examples: operands get the batch axis in front, and ones behind it to broadcast."""
    rank = node.ndim
    wide = []
    for x, is_lifted in zip(operands, lifted, strict=True):
        shape = x.shape[1:] if is_lifted else x.shape
        front = x.shape[:1] if is_lifted else (1,)
        wide.append(xp.reshape_(x, (*front, *(1,) * (rank - len(shape)), *shape)))
    value, *inputs = wide
    if value.shape[0] != size:
        value = xp.expand_(value, (size, *value.shape[1:]))
    return xp.analytic_(value, *inputs, *attrs)


@primitive(
    infer=lambda value, *rest: (value.shape, value.dtype),
    kind="alias",
    vjp=_RULES,
    jvp=_RULES,
    batch=_batch,
    verb="differentiate",
)
def analytic_(xp: Any, value: Any, *rest: Any) -> Any:
    """A part of a value of an analytic function; rest: the real operands, the op, which part it is, their layout."""
    return value
