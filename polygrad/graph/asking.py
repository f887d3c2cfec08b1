"""What is asked of a device while a graph is recorded.

Here: `has_op`, by which a composite chooses between a device's own op and other ops; `look`, which reads a value that
the shape of a result depends on.
Not here: what a device has and holds, which the runtime knows.
"""

from collections.abc import Callable, Sequence

from polygrad.graph.node import Node

_askers: list[Callable[[str, str], bool]] = []


def on_asking(function: Callable[[str, str], bool]) -> None:
    """Install what knows whether a device has a library op of a name; the runtime does."""
    _askers[:] = [function]


answers = [0]  # how often answers may have changed: what was made by them is to be asked for anew


def on_opening() -> None:
    """Note that a device was opened, perhaps with other ops than it had before."""
    answers[0] += 1


def has_op(name: str, nodes: Sequence[Node]) -> bool:
    """Whether the device on which all *nodes* are has a library op of its own called *name*."""
    device = nodes[0].device
    return device is not None and all(n.device == device for n in nodes) and _askers[0](device, name)


_lookers: list[Callable[[Node], int]] = []
looks = [0]  # how often what was recorded followed from more than the form of the operands


def on_look(function: Callable[[Node], int]) -> None:
    """Install what reads a 0-d integer for ops whose result's shape depends on it; the array layer does."""
    _lookers[:] = [function]


def look(node: Node) -> int:
    """Return the value of a 0-d integer node, on which the shape of a result depends.

    It waits for the device; vmap, for which a node stands for many values, refuses.
    """
    looks[0] += 1
    return _lookers[0](node)
