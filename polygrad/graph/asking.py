"""What is asked about a device while a graph is recorded.

Here: `has_op`, by which a composite chooses between a device's own op and other ops.
Not here: what a device has, which the runtime knows.
"""

from collections.abc import Callable, Sequence

from polygrad.graph.node import Node

_askers: list[Callable[[str, str], bool]] = []


def on_asking(function: Callable[[str, str], bool]) -> None:
    """Install what knows whether a device has a library op of a name; the runtime does."""
    _askers[:] = [function]


def has_op(name: str, nodes: Sequence[Node]) -> bool:
    """Whether the device on which all *nodes* are has a library op of its own called *name*."""
    device = nodes[0].device
    return device is not None and all(n.device == device for n in nodes) and _askers[0](device, name)
