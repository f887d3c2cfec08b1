"""What computes with each node of a graph.

Here: `consumers`, and `elementwise`, which it needs. Not here: what follows from it (`fuse.py`).
"""

from polygrad.graph.node import Node
from polygrad.schedule.views import MOVEMENT

PER_ELEMENT = MOVEMENT | {"elementwise", "cast", "scalar"}
GLANCE = 1024  # elements of a value for each one that is read: from here on reading it does not justify keeping it


def elementwise(order: list[Node]) -> set[Node]:
    """Return the nodes of which an element is made of a few elements of what is in memory, and nothing else."""
    out: set[Node] = set()
    others: set[Node] = set()
    for n in order:
        if n.spec.op.kind in PER_ELEMENT and others.isdisjoint(n.parents):
            out.add(n)
        else:
            others.add(n)
    return out


def consumers(order: list[Node], per_element: set[Node]) -> dict[Node, list[Node]]:
    """Return what computes with each node; movement ops between the two are looked through, for they cost nothing.

    What only glances at a node does not count: for the few elements that it reads they are computed again, so that a
    loop that notes one element of each of its steps does not keep all of these in memory.
    """
    out: dict[Node, list[Node]] = {n: [] for n in order}
    for n in order:
        if n.spec.op.kind in MOVEMENT:
            continue
        glance = n.aval.size * GLANCE
        for p in n.parents:
            while p in out:
                if glance > p.aval.size or n not in per_element or p not in per_element:
                    out[p].append(n)
                if p.spec.op.kind not in MOVEMENT:
                    break
                p = p.parents[0]
    return out
