"""Maxima over windows of a layer's result, taken before its bias is added and before its relu.

Here: `maxima_first`, which looks at how an operand of a pooling came about.
Not here: the windows (`pooling.py`), the device's own op (`pooling_steps.py`).

Both grow with their operand, so they come to the same behind the maxima, where there are fewer elements: forward, and
in the gradients of the bias and of relu. What lies in memory anyway, a convolution say, is then read once by the
pooling, and not rewritten before. Rounding grows too, so the values are the same to the last bit. Where two elements of
a window differ, and their sums with the bias do not, the larger one alone gets the gradient.
"""

from collections.abc import Callable
from typing import Any

from polygrad.ops.internal import looked

STEPS = 4  # this many are looked through


def maxima_first(xp: Any, x: Any, rank: int, pool: Callable[[Any], Any]) -> Any:
    """Return pool(x), which takes maxima along the last *rank* axes, each of at least one element."""
    looked()
    node = x
    steps: list[Any] = []
    while len(steps) < STEPS and xp.open_(node):
        found = _step(node, rank)
        if found is None:
            break
        node, addend = found
        steps.append(addend)
    if not steps or (node.storage is None and node.spec.op.kind != "library"):
        return pool(x)
    out = pool(node)
    for addend in reversed(steps):
        out = xp.relu(out) if addend is None else xp.add(out, addend)
    return out


def _step(node: Any, rank: int) -> tuple[Any, Any] | None:
    """Return the operand that a node grows with, and what it adds, one value for a window; None for relu."""
    looked()
    if node.spec.op.name == "relu":
        return node.parents[0], None
    if node.spec.op.name == "add" and node.spec.casts is None:
        for operand, addend in (node.parents, node.parents[::-1]):
            if operand.aval is node.aval and all(n == 1 for n in addend.shape[-rank:]):
                return operand, addend
    return None
