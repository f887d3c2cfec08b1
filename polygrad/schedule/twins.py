"""Kernels grown by example: layers, unrolled steps and rows of a stencil make equal kernels of other nodes.

Here: `Twins`, which remembers the kernels that were grown and compares the nodes under a new seed with theirs; `Twin`,
a kernel that is equal to another but for its nodes.
Not here: how a kernel is grown (`group.py`), what is decided meanwhile (`fuse.py`).

A twin is what growing would give. What growing looks at is compared: ops, shapes, layouts and order of the nodes, and
which of them are one; every decision that is not of the kind "easy" is made again, and must come out the same.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

from polygrad.graph.node import Node
from polygrad.schedule.group import NEVER_STORED, SPREAD, SPREADING, Demand, Group
from polygrad.schedule.index import Map

BEGIN = 16  # steps that a plan has before it is worth to remember kernels
EXAMPLES = 4  # kernels compared with a seed, the latest first
_PLAIN = frozenset({"op", "load", "scalar", "alias", "reduce", "pad", "iota"})  # hows whose operands are the node's


class Verdict:
    """A decision about a demand, and how the kernel stood when it was made."""

    __slots__ = ("axes", "before", "computed", "demand", "inputs", "known", "members", "slot")

    def __init__(self, group: Group, demand: Demand, computed: bool) -> None:
        self.demand = demand
        self.computed = computed
        self.before = len(group.demands) - 1
        self.axes = list(group.axes)
        self.known = group.size
        self.inputs: Any = len(group.inputs)
        # By slot, once they have slots: the node, and the members and inputs that have come since the last decision.
        self.slot = -1
        self.members: list[int] = []


class Example:
    """A grown kernel with its nodes numbered: slots, the seed first."""

    def __init__(self, group: Group, verdicts: list[Verdict]) -> None:
        self.group = group
        self.demands = group.demands
        self.verdicts = verdicts
        self.axes = list(group.axes)
        self.nodes: list[Node] = []
        self.slots: dict[Node, int] = {}
        self.origins: list[tuple[int, int]] = []  # of slots but the first: a consumer's slot, and which operand it is
        self.edges: list[tuple[int, int, int]] = []  # what else is operand of what
        self.launches: dict[tuple[int, ...], Any] = {}  # by the slots that are stored; see `stamps.py`
        self.of: dict[Demand, int] = {}  # the slot of a demand
        self._covers: dict[Demand, bool] = {}
        self._first: dict[int, Demand] = {}
        self._number()
        self.known = len(self.nodes)
        self._hide()
        self.kinds = [n.spec if n.storage is None else n.aval for n in self.nodes]
        self.leaves = [
            (k, n.storage.strides, n.storage.contiguous) for k, n in enumerate(self.nodes) if n.storage is not None
        ]
        numbers = [n.number for n in self.nodes]
        self.order = sorted(range(len(numbers)), key=numbers.__getitem__)
        self.easy = self._undoubted({v.demand for v in verdicts})
        self._divide()
        self.made = [(self.of[d], d) for d in self.demands if d.how not in NEVER_STORED]

    def _undoubted(self, judged: set[Demand]) -> list[int]:
        """Return the slots of what was computed because it is easy."""
        seed = self.group.seed
        return [
            self.of[d]
            for d in self.demands
            if d.how == "op" and d.node.spec.op.kind == "elementwise" and d not in judged and d.node is not seed
        ]

    def _divide(self) -> None:
        """Find what has come between one decision and the next."""
        inputs = [self.slots[n] for n in self.group.inputs]
        begin = taken = 0
        for v in self.verdicts:
            v.slot = self.of[v.demand]
            v.members = self._members(begin, v.before)
            begin, taken, v.inputs = v.before, v.inputs, inputs[taken : v.inputs]
        self.members = self._members(begin, len(self.demands))
        self.inputs = inputs[taken:]

    def _members(self, begin: int, end: int) -> list[int]:
        return [self.of[d] for d in self.demands[begin:end] if d.how not in ("load", "scalar")]

    @staticmethod
    def possible(group: Group) -> bool:
        """Whether what a kernel looks at are the operands of its nodes."""
        return not any(d.how not in _PLAIN for d in group.demands)

    def _number(self) -> None:
        """Give each node that is demanded a slot, in the order in which they are looked at."""
        slots, nodes = self.slots, self.nodes
        seed = self.group.seed
        slots[seed] = 0
        nodes.append(seed)
        for demand in self.demands:
            node = demand.node
            at = self.of[demand] = slots[node]
            if demand.how in ("load", "scalar", "iota"):
                continue
            for which in range(len(demand.args)):
                self._reach(at, which, node.parents[which])

    def _reach(self, at: int, which: int, node: Node) -> None:
        slot = self.slots.get(node)
        if slot is None:
            self.slots[node] = len(self.nodes)
            self.nodes.append(node)
            self.origins.append((at, which))
        else:
            self.edges.append((at, which, slot))

    def _hide(self) -> None:
        """Give slots to nodes between a reshape and the memory that it is read from."""
        for demand in self.demands:
            if demand.how != "load":
                continue
            node, base = demand.node, demand.extra[0]
            while node is not base:
                at = self.slots[node]
                node = node.parents[0]
                self._reach(at, 0, node)

    def intact(self) -> bool:
        """Whether no axis has been split since."""
        return all(a.parts is None for a in self.axes)

    def first(self, slot: int) -> Demand:
        """Return the first demand of a node."""
        if not self._first:
            for demand, at in self.of.items():
                self._first.setdefault(at, demand)
        return self._first[slot]

    def covers(self, demand: Demand) -> bool:
        """Whether a demand runs over every element of its node once."""
        found = self._covers.get(demand)
        if found is None:
            found = self._covers[demand] = self.group.covers(demand)
        return found

    def regrown(self, like: Group, grow: Callable[..., None]) -> Group:
        """Return a twin, or the kernel of the example itself, as one that can be grown further."""
        hows = [d.how for d in self.demands]
        group = Group(like.seed)
        group.need(like.seed, group.index)
        grow(group, lambda group, _: hows[len(group.demands) - 1] != "load")
        places = {d: k for k, d in enumerate(self.demands)}
        for node, demand in like.stores.items():
            group.stores[node] = group.demands[places[demand]]
        return group

    def match(self, seed: Node) -> list[Node] | None:
        """Return the nodes under *seed* in the order of the slots, if they are like those of the example."""
        nodes = [seed]
        add = nodes.append
        try:
            for at, which in self.origins:
                add(nodes[at].parents[which])
        except IndexError:
            return None
        if [n.spec if n.storage is None else n.aval for n in nodes] != self.kinds:
            return None
        for at, which, slot in self.edges:
            if nodes[at].parents[which] is not nodes[slot]:
                return None
        for slot, strides, contiguous in self.leaves:
            storage = nodes[slot].storage
            if storage.strides != strides or storage.contiguous is not contiguous:
                return None
        numbers = [nodes[k].number for k in self.order]
        return nodes if sorted(set(numbers)) == numbers else None


class Twin(Group):
    """A kernel like that of an example, of other nodes. It has what of a group is looked at once that is grown.

    Its demands are those of the example: their nodes are others.
    """

    def __init__(self, example: Example, nodes: list[Node]) -> None:  # none of what growing needs
        group = example.group
        self.example = example
        self._like: Example = example
        self.nodes = nodes
        self.seed = nodes[0]
        self.members: set[Node] = set()
        self.inputs: dict[Node, None] = {}
        self.stores: dict[Node, Demand] = {}
        self.partials: list[Any] = []
        self.target = None
        self.loose = False
        self.demands = example.demands
        self.axes, self.reduced, self.row_seed = group.axes, group.reduced, group.row_seed
        self._touched: set[Node] | None = None
        self._numbers: set[int] | None = None
        self._slots: dict[Node, int] | None = None
        self._met = example.known

    def agrees(self, decide: Callable[[Any, Demand], bool]) -> bool:
        """Whether *decide* says of these nodes what it has said of the example's."""
        example, nodes = self._like, self.nodes
        members, inputs = self.members, self.inputs
        demand = Demand(self.seed, (), ())
        for v in example.verdicts:
            for k in v.members:
                members.add(nodes[k])
            for k in v.inputs:
                inputs[nodes[k]] = None
            self.axes = v.axes
            demand.node, demand.index, demand.same = nodes[v.slot], v.demand.index, v.demand
            self._met = v.known
            if decide(self, demand) is not v.computed:
                return False
        members.update([nodes[k] for k in example.members])
        for k in example.inputs:
            inputs[nodes[k]] = None
        self.axes, self._met = example.group.axes, example.known
        return True

    def covers(self, demand: Demand) -> bool:
        """See `Group.covers`; *demand* is one of the example."""
        return self._like.covers(demand.same or demand)

    def of(self, node: Node) -> list[Demand]:
        """See `Group.of`."""
        return [d for k, d in self._like.made if self.nodes[k] is node]

    def has(self, node: Node, index: Map) -> bool:
        """See `Group.has`."""
        example = self._like
        if self._slots is None:
            self._slots = {n: k for k, n in enumerate(self.nodes)}
        slots, met = self._slots, self._met
        slot = slots.get(node, met)
        if slot < met:
            known = example.first(slot).index
            return known is index or known == example.group.broadcast(index, node)
        while node.storage is None and node.spec.op.kind in SPREADING:
            node = node.parents[0]
            slot = slots.get(node, met)
            if slot < met:
                scalar = example.first(slot).how == "scalar"
                return scalar or node.aval.size * SPREAD <= math.prod([a.extent for a in self.axes])
        return False

    def settle(self) -> None:
        """See `Group.settle`."""
        self._like.group.settle()
        self.axes, self.reduced = self._like.group.axes, self._like.group.reduced

    def loaded(self, demand: Demand) -> Demand:
        """See `Group.loaded`."""
        base, flat = demand.extra
        own = Demand(self.nodes[self._like.of[demand]], demand.index, demand.windows)
        own.how, own.extra = "load", (self.nodes[self._like.slots[base]], flat)
        return own

    def made(self) -> Iterator[tuple[Node, Demand]]:
        """See `Group.made`."""
        nodes = self.nodes
        for k, demand in self._like.made:
            yield nodes[k], demand

    def room(self, instructions: int) -> int:
        """See `Group.room`."""
        return self._like.group.room(instructions)

    @property
    def size(self) -> int:
        """See `Group.size`."""
        return self._like.known

    @property
    def known(self) -> set[int]:
        """See `Group.known`."""
        if self._numbers is None:
            self._numbers = {n.number for n in self.nodes[: self.size]}
        return self._numbers


class Twins:
    """The kernels that a plan has grown, by what their seeds are.

    Parameters
    ----------
    easy : set of Node
        The nodes that kernels compute without a decision.
    """

    def __init__(self, easy: set[Node]) -> None:
        self._easy = easy
        self._known: dict[Any, list[Any]] = {}
        self._used: list[Group] = []

    def find(self, seed: Node, decide: Callable[[Any, Demand], bool]) -> Twin | None:
        """Return the kernel that growing *seed* would give, if one like it is known."""
        known = self._known.get(_look(seed))
        if known is None:
            return None
        for k, example in enumerate(known):
            if type(example) is tuple:  # numbered when it is first needed
                example = known[k] = Example(*example)
            nodes = example.match(seed)
            if nodes is None or not self._easy.issuperset([nodes[k] for k in example.easy]) or not example.intact():
                continue
            twin = Twin(example, nodes)
            if twin.agrees(decide):
                if k:
                    known.insert(0, known.pop(k))
                if example.group.example is None:
                    example.group.example = example
                    self._used.append(example.group)
                return twin
        return None

    def close(self) -> None:
        """Let go of what refers to each other, which only the collector would find."""
        for group in self._used:
            group.example = None

    def remember(self, group: Group, verdicts: list[Verdict]) -> None:
        """Keep a grown kernel as an example."""
        if not Example.possible(group):
            return
        known = self._known.setdefault(_look(group.seed), [])
        known.insert(0, (group, verdicts))
        del known[EXAMPLES:]


def recorded(decide: Callable[[Any, Demand], bool], verdicts: list[Verdict]) -> Callable[[Group, Demand], bool]:
    """Return what decides as *decide* does, and writes down in *verdicts* how."""

    def decided(group: Group, demand: Demand) -> bool:
        found = decide(group, demand)
        verdicts.append(Verdict(group, demand, found))
        return found

    return decided


def _look(seed: Node) -> tuple[Any, ...]:
    """Return what seeds of equal kernels have in common at first sight: their ops, and those two levels below."""
    out: list[Any] = [seed.spec]
    for p in seed.parents:
        out.append(_kind(p))
        if p.storage is None:
            out += [_kind(q) for q in p.parents]
    return tuple(out)


def _kind(node: Node) -> Any:
    return node.spec if node.storage is None else node.aval
