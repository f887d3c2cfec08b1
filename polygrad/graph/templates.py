"""Templates: a piece of graph that was recorded once is made again without its rules being asked again.

Here: `Template`, what it takes to make one of recorded nodes, and to make nodes of it, at once or late: `Late` nodes
are results whose operands are made when somebody asks for them, which a graph that has a plan does not.
Not here: when a piece of graph may be made so, which those who keep templates know: its rules must have looked at
nothing but the operands' shapes, dtypes and devices, and at what the template is kept under.

What a template makes has the ops, the attributes and the order of what was recorded, so that the plan of the one serves
the other.
"""

import weakref
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any

from polygrad.graph.growth import CHECKED_EVERY, grown
from polygrad.graph.node import Node, Pair, creation_site, reserve, share
from polygrad.graph.spec import signature

TRACED = frozenset({"gather", "check", "scatter"})  # kinds of ops whose nodes know where the user asked for them
NEVER_LATE = frozenset({"put", "transfer"})  # kinds of ops that are looked for before there is a plan
PAYS = 2  # steps for each result from which it pays to make them late
# Spec; the places of the operands, first and second (-1: none); all of them if there are more, or the number of a host
# scalar if there are none; whether the node is on the device; whether a recording watches it if it watches operands.
Step = tuple[Any, int, int, Any, bool, bool]


_depth = attrgetter("depth")
_number = attrgetter("number")


class Template:
    """Nodes over operands, in the order in which they were recorded.

    A place below the number of used operands stands for one of them, the following ones for the nodes.

    Attributes
    ----------
    steps : list of Step
        The nodes.
    used : list of int
        Those operands that the nodes have.
    late : bool
        Whether it makes its nodes late, where no recording watches.
    """

    __slots__ = ("_aliases", "_height", "_late", "_of_late", "_results", "_traced", "late", "steps", "used")

    def __init__(self, steps: list[Step], results: list[int], used: list[int]) -> None:
        self.steps = steps
        self.used = used
        self._results = results
        named = list(enumerate(steps, len(used)))
        self._aliases = [k for k, step in named if step[0].op.name == "alias"]
        self._traced = [k for k, step in named if step[0].op.kind in TRACED]  # they remember the user's line
        own = [k for k in dict.fromkeys(results) if k >= len(used)]
        levels = _levels(steps, len(used))
        self._height = max(levels, default=0)
        # Of the results that are nodes: place, step, spec, height above the operands, and number in structures.
        self._late = [(k, k - len(used), steps[k - len(used)][0], levels[k], signature()) for k in own]
        self._of_late = [own.index(k) if k in own else -1 - k for k in results]
        fixed = any(step[0].op.kind in NEVER_LATE for step in steps)
        self.late = not (fixed or self._aliases or self._traced) and len(steps) > PAYS * len(own)

    def make(self, operands: Sequence[Node], device: str) -> list[Node]:
        """Return the results over other operands of the same avals, all of *device* or host scalars.

        No gradient flows through them.
        """
        made = [operands[k] for k in self.used]
        if self.late:
            return self._made_late(made, device)
        add = made.append
        for spec, first, second, more, placed, _ in self.steps:
            if second >= 0:
                a, b = made[first], made[second]
                depth = (a.depth if a.depth > b.depth else b.depth) + 1
                add(Node(spec, (a, b), device if placed else None, 0, depth))
            elif first >= 0:
                a = made[first]
                add(Node(spec, (a,), device if placed else None, 0, a.depth + 1))
            else:
                add(_other(spec, made, more, device if placed else None))
        return self._finished(made)

    def make_watched(self, operands: Sequence[Node]) -> list[Node]:
        """Return the same for operands that recordings watch, if they watched the first ones."""
        device = operands[0].device
        made = [operands[k] for k in self.used]
        add = made.append
        for spec, first, second, more, placed, watched in self.steps:
            if second >= 0:
                a, b = made[first], made[second]
                depth = (a.depth if a.depth > b.depth else b.depth) + 1
                add(Node(spec, (a, b), device if placed else None, (a.mask | b.mask) if watched else 0, depth))
            elif first >= 0:
                a = made[first]
                add(Node(spec, (a,), device if placed else None, a.mask if watched else 0, a.depth + 1))
            else:
                node = _other(spec, made, more, device if placed else None)
                if watched:
                    for p in node.parents:
                        node.mask |= p.mask
                add(node)
        return self._finished(made)

    def _made_late(self, operands: list[Node], device: str) -> list[Node]:
        numbers = reserve(len(self.steps))
        piece = Piece(self, operands, device, numbers)
        depth = max([p.depth for p in operands], default=0)
        made: list[Node] = []
        for k, at, spec, level, sig in self._late:
            node = Node(spec, (), device, 0, depth + level)
            node.number = numbers[at]
            node.value = piece, sig
            node.__class__ = Late
            piece.results.append((k, weakref.ref(node)))
            made.append(node)
        results = [made[k] if k >= 0 else operands[-1 - k] for k in self._of_late]
        if depth + self._height >= CHECKED_EVERY:
            _look_at(results)
        return results

    def _finished(self, made: list[Node]) -> list[Node]:
        for k in self._aliases:
            share(made[k], made[k].parents[0])
        for k in self._traced:
            made[k].trace = creation_site()
        results = [made[k] for k in self._results]
        _look_at(results)
        return results


class Piece:
    """One making of a template whose nodes, but for the results, are not made yet."""

    __slots__ = ("device", "numbers", "operands", "results", "template")

    def __init__(self, template: Template, operands: list[Node], device: str, numbers: list[int]) -> None:
        self.template = template
        self.operands = operands
        self.device = device
        self.numbers = numbers  # of its nodes
        self.results: list[tuple[int, weakref.ref[Node]]] = []  # by place; they hold the piece

    def living(self) -> list[Node]:
        """Return the results that somebody holds."""
        return [n for n in [r() for _, r in self.results] if n is not None]

    def unfold(self) -> None:
        """Make the nodes. Results that are there get their operands, and are like any other node from then on."""
        known = {k: n for k, n in [(k, r()) for k, r in self.results] if n is not None}
        made = [*self.operands]
        for (spec, first, second, more, placed, _), number in zip(self.template.steps, self.numbers, strict=True):
            at = (first, second) if second >= 0 else (first,) if first >= 0 else more if type(more) is tuple else ()
            parents = tuple([made[k] for k in at])
            node = known.get(len(made))
            if node is None:
                depth = max([p.depth for p in parents], default=0) + 1
                node = Node(spec, parents, self.device if placed else None, 0, depth)
                node.number = number
                node.value = more if spec.op.kind == "scalar" else None
            elif node.__class__ is Late:
                node.parents = parents
            made.append(node)


def unfold(pieces: Iterable[Piece]) -> None:
    """Unfold pieces; afterwards nobody here holds one, and with it its operands."""
    for piece in pieces:
        piece.unfold()


class Late(Node):
    """A result of a piece that is not unfolded; its `value` is the piece and its number in structures.

    Whoever asks for its operands unfolds the piece. When they are there, or the value is, it is a Node.
    """

    __slots__ = ()

    @property
    def parents(self) -> tuple[Node, ...]:
        """The operands."""
        self.value[0].unfold()
        return self.parents

    @parents.setter
    def parents(self, operands: tuple[Node, ...]) -> None:
        self.value = None
        self.__class__ = Node  # type: ignore[assignment]  # the two have the same slots
        self.parents = operands


def operands_of(node: Node) -> Sequence[Node]:
    """Return what a node is computed from, without unfolding a piece: the operands of its piece, if it is late."""
    return node.value[0].operands if node.__class__ is Late else node.parents


def _look_at(results: list[Node]) -> None:
    """Have a graph that has become deep looked at, as recording does from time to time."""
    deepest = max(results, key=_depth, default=None)
    if deepest is not None and deepest.depth >= CHECKED_EVERY:
        grown(deepest)


def _levels(steps: list[Step], count: int) -> list[int]:
    """Return how far above the operands each place is."""
    levels = [0] * count
    for _, first, second, more, _, _ in steps:
        at = (first, second) if second >= 0 else (first,) if first >= 0 else more if type(more) is tuple else ()
        levels.append(1 + max([levels[k] for k in at], default=0))
    return levels


def _other(spec: Any, made: list[Node], more: Any, device: str | None) -> Node:
    """Return a node of no operands, a host scalar among them, or of more than two."""
    if type(more) is tuple:
        parents = tuple([made[k] for k in more])
        return Node(spec, parents, device, 0, max([p.depth for p in parents], default=0) + 1)
    node = Node(spec, (), device)
    node.value = more
    return node


def template(results: Sequence[Node], operands: Sequence[Node], start: int) -> Template | None:
    """Return *results* as a template over *operands*; None if there is more to them.

    Parameters
    ----------
    results : sequence of Node
        What was recorded; a result may be an operand.
    operands : sequence of Node
        Different nodes.
    start : int
        A number between those of the operands and those of what was recorded: what is older is an operand.
    """
    place = {p: k for k, p in enumerate(operands)}
    if len(place) < len(operands):
        return None
    order = _recorded(results, place, start)
    if order is None:
        return None
    above = {p for n in order for p in n.parents}.union(results)
    used = [k for k, p in enumerate(operands) if p in above]
    place = {operands[k]: at for at, k in enumerate(used)}
    steps: list[Step] = []
    for n in order:
        at = tuple([place[p] for p in n.parents])
        place[n] = len(place)
        more = n.value if n.spec.op.kind == "scalar" else at
        first, second = (*at, -1, -1)[:2] if len(at) in (1, 2) else (-1, -1)
        steps.append((n.spec, first, second, more, n.device is not None, n.mask != 0))
    return Template(steps, [place[r] for r in results], used)


def _recorded(results: Sequence[Node], place: dict[Node, int], start: int) -> list[Node] | None:
    """Return the nodes between operands and results in order; None if one of them cannot be made by a template."""
    seen: set[Node] = set()
    stack = [r for r in results if r not in place]
    while stack:
        n = stack.pop()
        if n in seen:
            continue
        plain = n.value is None or n.spec.op.kind == "scalar"  # results of a library op belong together
        if n.number <= start or type(n) is Pair or n.storage is not None or n.leaf is not None or not plain:
            return None
        seen.add(n)
        stack += [p for p in n.parents if p not in place]
    return sorted(seen, key=_number)
