"""What kernels need not leave in memory after all: values that nobody reads there, and values that are there twice.

Here: `shared`, which lets readers of equal values read one of them; `unburdened`, which takes away stores without a
reader.
Not here: which kernels there are (`fuse.py`), which values are dropped and made again (`recompute.py`).

Kernels are made one after the other, consumers first, so a store is decided before all of its readers are known: a
reader may then be computed in the same kernel, or look for another copy. Only the finished plan tells.
"""

from collections.abc import Collection, Mapping
from typing import Any

from polygrad.graph.node import Node
from polygrad.schedule.group import Group
from polygrad.schedule.ordering import Step

READING = frozenset({"load", "gather", "check"})


def shared(steps: list[Step], kept: Collection[Node]) -> None:
    """Let a kernel store one of several equal values if only library ops read the others.

    A value that two products take in 16 bits is cast for each of them: recordings tell the two apart, for each has its
    gradient, but in memory one is enough.

    Parameters
    ----------
    steps : list of Step
        In any order; they are changed in place.
    kept : collection of Node
        What has to be there afterwards.
    """
    other: dict[Node, Node] = {}
    read = {n for step in steps if step.group is not None for n in step.group.inputs}
    for step in steps:
        if step.group is None or step.group.target is not None or len(step.group.stores) == 1:
            continue
        first: dict[Any, Node] = {}
        for n in list(step.group.stores):
            known = first.setdefault((n.spec, n.parents), n)
            if known is not n and n not in kept and n not in read and n is not step.group.seed:
                other[n] = known
                del step.group.stores[n]
                step.outputs.remove(n)
    if other:
        for step in steps:
            _redirect(step, other)


def _redirect(step: Step, other: Mapping[Node, Node]) -> None:
    """Make a library op read the equal values that are in memory."""
    if step.group is None and any(n in other for n in step.inputs):
        step.operands = [(other.get(base, base), *view) for base, *view in step.operands]  # type: ignore[misc]
        step.inputs = [other.get(n, n) for n in step.inputs]


def unburdened(steps: list[Step], kept: Collection[Node]) -> None:
    """Take away what kernels store although no later step reads it before it is made again, and nobody keeps it.

    Parameters
    ----------
    steps : list of Step
        In the order in which they run; they are changed in place.
    kept : collection of Node
        What has to be there afterwards.
    """
    ahead = set(kept)
    for step in reversed(steps):
        group = step.group
        if group is not None and group.target is None and len(step.outputs) > 1:
            unread = [n for n in group.stores if n not in ahead]
            if unread and len(unread) < len(step.outputs) and _spares(group, unread):  # all of them, mostly
                _forget(step, group, unread)
            else:
                for n in unread:
                    if len(step.outputs) > 1 and _spares(group, [n]):
                        _forget(step, group, [n])
        ahead.difference_update(step.outputs)
        ahead.update(step.inputs)


def _forget(step: Step, group: Group, nodes: list[Node]) -> None:
    """Do not store *nodes*."""
    for n in nodes:
        del group.stores[n]
        step.outputs.remove(n)


def _spares(group: Group, nodes: list[Node]) -> bool:
    """Whether a kernel that does not store *nodes* still has use for everything that it reads."""
    todo = [d for n, d in group.stores.items() if n not in nodes] + [d for _, d in group.partials]
    found = set(todo)
    while todo:
        demand = todo.pop()
        for d in demand.args if demand.same is None else (demand.same,):
            if d not in found:
                found.add(d)
                todo.append(d)
    return all(d in found for d in group.demands if d.how in READING)
