"""Gradients of selections: `where` sends each element's gradient one way, and nothing the other; `relu` on or nowhere.

Here: `Chosen`, a gradient whose zeros are still to be put in. A branch may be infinite or NaN where it is not taken,
and zero times infinity is NaN; so the zeros are put in behind the slopes of the branch, not before them.
Not here: the sweep (`reverse.py`), the ops' rules.
"""

from typing import Any

from polygrad.graph.functions import F
from polygrad.graph.node import Node
from polygrad.graph.spec import Aval

SELECTING = frozenset({"where", "relu"})
# Ops of which each element of the result comes from one of the operand: zeros may wait until after their slopes.
CARRYING = frozenset({"alias", "astype", "reshape_", "permute_"})


def carries(node: Node) -> bool:
    """Whether zeros of a gradient of *node* may be put into those of its operands instead."""
    op = node.spec.op
    return op.kind == "elementwise" or op.name in CARRYING


class Chosen:
    """A gradient that counts only where a condition holds (or, unless *taken*, where it does not)."""

    __slots__ = ("condition", "gradient", "taken")

    def __init__(self, gradient: Node, condition: Node, taken: bool) -> None:
        self.gradient = gradient
        self.condition = condition
        self.taken = taken

    @property
    def aval(self) -> Aval:
        """The shape and dtype of the gradient."""
        return self.gradient.aval

    @property
    def device(self) -> str | None:
        """The device of the gradient."""
        return self.gradient.device

    @device.setter
    def device(self, name: str) -> None:
        self.gradient.device = name

    def settled(self) -> Node:
        """Return the gradient with its zeros."""
        g = self.gradient
        out: Node = F.where(self.condition, g, 0.0) if self.taken else F.where(self.condition, 0.0, g)
        out.device = out.device or g.device
        return out

    def through(self, node: Node, part: Node, rule: Any) -> "Chosen":
        """Return *part*, which the rule of *node* has made of the gradient, as one that counts in the same places."""
        condition = self.condition
        if node.spec.op.kind != "elementwise" and node.spec.op.name in ("reshape_", "permute_"):
            if condition.aval.shape != node.aval.shape:
                condition = F.expand_(condition, node.aval.shape)
            condition = rule(F, condition, node, *node.parents, *node.spec.attrs)
        return Chosen(part, condition, self.taken)


Gradient = Node | Chosen


def settled(gradient: Gradient) -> Node:
    """Return a gradient as a node."""
    return gradient.settled() if type(gradient) is Chosen else gradient  # type: ignore[return-value]


def select(gradient: Gradient, condition: Node, taken: bool) -> Chosen:
    """Return what a gradient gives one operand of `where`: the first (*taken*) or the second."""
    if type(gradient) is not Chosen:
        return Chosen(gradient, condition, taken)  # type: ignore[arg-type]
    both = [c if t else F.bitwise_invert(c) for c, t in ((gradient.condition, gradient.taken), (condition, taken))]
    return Chosen(gradient.gradient, F.bitwise_and(*both), True)
