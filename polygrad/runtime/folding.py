"""Running the plan of a graph without making all its nodes: late nodes of known pieces stay as they are.

Here: `Folded`, which knows where the nodes that a plan needs stand in the folded graph.
Not here: structures, plans, what a piece is (`polygrad.graph.templates`).

The key of a folded graph says all that decides what it unfolds to. So the first graph of a key is unfolded and planned,
and the next ones only say which of their nodes are which.
"""

import weakref
from typing import Any

from polygrad.graph.node import Node
from polygrad.runtime.structure import Structure


class Standing:
    """Where nodes stand in a folded graph, by their numbers: no references, which are counted while it is planned."""

    __slots__ = ("key", "leaves", "order")

    def __init__(self, graph: Structure) -> None:
        self.key = graph.key
        self.order = {n.number: k for k, n in enumerate(graph.order)}
        self.leaves = {n.number: k for k, n in enumerate(graph.leaves)}


class Folded:
    """The program of an unfolded graph, and which nodes of a folded one it is run with.

    Attributes
    ----------
    whole : bool
        Whether that does: all that the program gives memory is there in a folded graph too.
    """

    __slots__ = ("_constants", "_leaves", "_nodes", "_program", "whole")

    def __init__(self, program: Any, standing: Standing, graph: Structure) -> None:
        there = [n.number in standing.order for n in graph.order]
        made = program.plan
        # A node within a piece is kept if another result of the piece, which is not asked for, will need it; or because
        # it has the memory of a result, which will do.
        bases, offered = {operand.slot for _, operand in made.views}, graph.offered()
        within = [(graph.order[at], slot) for at, slot in made.results if not there[at]]
        self.whole = all(slot in bases and n not in offered for n, slot in within) and all(
            there[at] for at, _ in made.views
        )
        self._program = weakref.ref(program)  # it may be dropped with the device's plans
        self._leaves = [standing.leaves[n.number] for n in graph.leaves]
        self._nodes = [(at, standing.order[n.number]) for at, n in enumerate(graph.order) if there[at]]
        # Nodes within pieces have no value of their own, but for numbers that are the same each time.
        constant = [n.spec.op.kind == "scalar" and not there[at] for at, n in enumerate(graph.order)]
        self._constants: list[Any] = [n if constant[at] else None for at, n in enumerate(graph.order)]

    def program(self) -> Any:
        """Return the program; None if it was dropped."""
        return self._program()

    def nodes(self, graph: Structure) -> tuple[list[Node], list[Node]]:
        """Return the order and the leaves to run the program with; what it does not need is missing."""
        order, leaves, there = self._constants.copy(), list(graph.leaves), graph.order
        for at, k in self._nodes:
            order[at] = there[k]
        return order, [leaves[k] for k in self._leaves]
