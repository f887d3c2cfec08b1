"""Which kernels have to wait for which values: the question behind every value that a kernel makes beside its seed.

Here: `Reach`, which answers it for a plan in the making, so that no two kernels ever wait for each other.
Not here: what kernels are made of (`group.py`), what is shared (`fuse.py`).

A value waits for its operands; a value that a kernel makes waits for all that this kernel reads besides. Numbers grow
with creation, so operands lie below what is made of them, and most questions are answered by comparing two numbers.
Only kernels that read a value younger than one that they make lead upwards again; their spans are kept, and a walk goes
no deeper than the lowest span that it may have to pass.
"""

import bisect
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from polygrad.graph.node import Node

if TYPE_CHECKING:
    from polygrad.schedule.ordering import Step

PATIENCE = 64  # nodes visited for one answer: beyond, the answer is yes, which costs a chance to share, never a value


class Reach:
    """Paths through a graph of which some nodes have kernels already.

    Parameters
    ----------
    order : sequence of Node
        The nodes, operands first.
    produced : mapping of Node to Step
        What makes a node, as far as that is decided; the caller adds to it.
    """

    def __init__(self, order: Sequence[Node], produced: "Mapping[Node, Step]") -> None:
        self._order = order
        self._produced = produced
        self._lows: list[int] = []  # spans that lead upwards: disjoint, in order
        self._highs: list[int] = []
        self._places: dict[Node, tuple[int, int]] | None = None  # made when it pays: it only makes walks shorter
        self._walked = 0  # nodes

    def note(self, step: "Step") -> None:
        """Take into account what a step makes and reads."""
        if not step.outputs:
            return
        low = min([n.number for n in step.outputs])
        high = max([n.number for n in step.inputs if n.storage is None], default=0)
        if high <= low:
            return
        first = bisect.bisect_left(self._highs, low)
        last = bisect.bisect_right(self._lows, high)
        if first < last:
            low, high = min(low, self._lows[first]), max(high, self._highs[last - 1])
        self._lows[first:last] = [low]
        self._highs[first:last] = [high]

    def leads(self, sources: Iterable[Node], target: Node) -> bool:
        """Whether one of *sources* is *target*, or is yet to be computed and has to wait for it."""
        floor = target.number
        if self._lows:
            at = bisect.bisect_left(self._highs, floor)
            if at < len(self._lows):
                floor = min(floor, self._lows[at])
        stack = []
        for n in sources:
            if n.number >= floor and n.storage is None:
                if n is target:
                    return True
                stack.append(n)
        return bool(stack) and self._walk(stack, target, floor)

    def _walk(self, stack: list[Node], target: Node, floor: int) -> bool:
        if self._places is None and 8 * self._walked > len(self._order):
            self._places = _places(self._order)
        places, produced = self._places or {}, self._produced
        goal = places.get(target, _NOWHERE)[0]
        if places:
            for n in stack:
                begin, end = places.get(n, _NOWHERE)
                if begin <= goal < end:
                    return True
        seen = set(stack)
        limit = len(seen) + PATIENCE
        while stack:
            n = stack.pop()
            step = produced.get(n)
            for p in n.parents if step is None else (*n.parents, *step.inputs):
                if p.number >= floor and p.storage is None and p not in seen:
                    if p is target:
                        return True
                    if places:
                        begin, end = places.get(p, _NOWHERE)
                        if begin <= goal < end:
                            return True
                    seen.add(p)
                    stack.append(p)
            if len(seen) > limit:
                break
        self._walked += len(seen)
        return bool(stack)


_NOWHERE = (-1, -1)  # of a node that is not in the order


def _places(order: Sequence[Node]) -> dict[Node, tuple[int, int]]:
    """Return a span for each node; if one lies within another, the one's node is among those that the other is made of.

    The spans nest as the trees do in which each node hangs on the first that is made of it: most paths follow them.
    """
    count = len(order)
    position = dict(zip(order, range(count), strict=True))
    first = [-1] * count
    for k, n in enumerate(order):
        for p in n.parents:
            at = position.get(p)
            if at is not None and first[at] < 0:
                first[at] = k
    size = [1] * count
    for k, on in enumerate(first):
        if on >= 0:
            size[on] += size[k]
    begin = [0] * count
    free = [0] * count  # the first place within a node's span that none of those that hang on it has
    top = 0
    for k in range(count - 1, -1, -1):
        on = first[k]
        if on < 0:
            at, top = top, top + size[k]
        else:
            at = free[on]
            free[on] = at + size[k]
        begin[k] = at
        free[k] = at + 1
    return {n: (at, at + room) for n, at, room in zip(order, begin, size, strict=True)}
