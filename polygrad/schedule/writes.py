"""Writes into arrays: which are stored on their own, and which go to the memory of the old array.

Here: `Writes`, the policy. A put (an array with a block replaced) is fused like any op where few follow each other.
In a row of many, or on an array that nobody else holds, each is a kernel that stores its block alone: the first takes
over the memory of the old array if it may, or copies it, and the next ones write into that.
Not here: who holds an array, which the runtime finds out; the kernel that computes a block (`fuse.py`, `group.py`).
"""

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from polygrad import shapes
from polygrad.driver.ir import Instr, Kernel, Store, View
from polygrad.graph.node import Node
from polygrad.schedule.body import Body, name
from polygrad.schedule.emit import FusedLaunch

if TYPE_CHECKING:
    from polygrad.schedule.ordering import Step

FUSED = 2  # writes in a row that a kernel computes at every element of the array


class Writes:
    """What is known of the puts of a plan.

    Parameters
    ----------
    claims : mapping of put to put
        Puts on realized arrays that nobody else holds: they may take over the memory. The value is the last put of the
        row that does, which stays in memory.
    kept : collection of Node
        Nodes that must have memory of their own after the run.
    """

    def __init__(self, claims: Mapping[Node, Node] | None = None, kept: Collection[Node] = ()) -> None:
        self.claims = claims or {}
        self.kept = {*kept, *self.claims.values()}

    def apart(self, order: list[Node]) -> set[Node]:
        """Return the puts that get a kernel of their own."""
        puts = [n for n in order if n.spec.op.kind == "put"]
        row: dict[Node, int] = {}
        for n in puts:
            row[n] = row.get(n.parents[0], 0) + 1
        found: set[Node] = set()
        claimed = set(self.claims)
        for n in puts:
            if n.parents[0] in claimed:
                claimed.add(n)
        for n in reversed(puts):
            if n in found or n in claimed or row[n] > FUSED or any(step != 1 for step in n.spec.attrs[1]):
                found.add(n)
                if row[n] > FUSED and n.parents[0] in row:
                    found.add(n.parents[0])
        return found

    def loose(self, order: list[Node]) -> set[Node]:
        """Return the puts apart whose place is an argument of the launch: one plan serves a loop over places.

        Those whose value has nothing to do with an array that is written into; else it matters where both lie.
        """
        apart = self.apart(order)
        roots = {n.parents[0] for n in order if n.spec.op.kind == "put"}
        tainted: set[Node] = set()
        for n in order:
            if n.spec.op.kind == "put" or any(p in tainted or p in roots for p in n.parents):
                tainted.add(n)
        return {n for n in apart if n.parents[1] not in tainted and n.parents[1] not in roots}

    def settle(self, steps: "list[Step]", produced: "dict[Node, Step]") -> None:
        """Decide which writes copy the old array first: those that somebody must read it after."""
        readers: dict[Node, list[Step]] = {}
        for step in steps:
            for n in step.inputs:
                readers.setdefault(n, []).append(step)
        taken: set[Node] = set()
        for step in steps:
            if step.write is None:
                continue
            root = step.write.parents[0]
            free = step.write in self.claims if root.storage is not None else root not in self.kept
            others = [s for s in readers[root] if s is not step]
            if not free or root in taken or any(_depends(s, step, produced) for s in others):
                step.copies = True
            else:
                taken.add(root)
                step.after = others


def _depends(step: "Step", on: "Step", produced: "dict[Node, Step]") -> bool:
    """Whether a step must run after another."""
    seen = {id(step)}
    stack = [step]
    while stack:
        s = stack.pop()
        if s is on:
            return True
        before = [produced[n] for n in s.inputs if n.storage is None] + s.after
        for other in before:
            if id(other) not in seen:
                seen.add(id(other))
                stack.append(other)
    return False


def copy_launch(node: Node) -> FusedLaunch:
    """Return the launch that gives a put the old array's elements in memory of its own."""
    root = node.parents[0]
    shape, own = node.aval.shape, shapes.strides(node.aval.shape)
    strides = root.storage.strides if root.storage is not None else own
    if strides == own:
        shape, strides, own = (node.aval.size,), (1,), (1,)
    body, dtype = Body(), name(node.dtype)
    value = body.add(Instr("load", dtype, (), 0))
    views, ints = [], list(shape)
    offsets = []
    for k, steps in enumerate((strides, own)):
        classes = tuple(s if s in (0, 1) else None for s in steps)
        views.append(View(k, dtype, classes))
        if k == 0 and root.storage is not None:
            offsets.append((len(ints), root))
        ints += [0, *[s for s in steps if s not in (0, 1)]]
    kernel = Kernel(len(shape), 0, (dtype, dtype), tuple(views), (), tuple(body.instrs), (Store(value, 1),))
    return FusedLaunch(kernel, (root, node), tuple(ints), (), tuple(offsets), (node,), {}, {})
