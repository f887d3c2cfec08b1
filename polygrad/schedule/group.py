"""One kernel in the making: which nodes it computes, at which indices, and what it must read.

Here: `Group`, a set of demands (a node read at a map), grown from a seed towards its operands.
Not here: where one kernel ends and the next begins, which the policy in `fuse.py` decides; the kernel's text, in
`emit.py`.
"""

import heapq
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from typing import Any

from polygrad import shapes
from polygrad.graph.node import Node
from polygrad.schedule.index import (
    Axis,
    Expr,
    Map,
    address,
    align,
    is_bijection,
    run,
    settle_map,
    splits,
    through_reshape,
    variable,
)
from polygrad.schedule.moving import Windows, block, permuted, sliced, spread, windowed
from polygrad.schedule.views import view_of

# A row longer than this is reduced in a kernel of its own unless there are rows enough to fill a device.
NEVER_STORED = frozenset({"load", "scalar", "alias"})  # what a kernel does not compute itself
LONG_ROW = 32_768
MANY_ROWS = 256
SPREAD = 8  # elements of a kernel's space for each of a value that is read in another arrangement all the same


class Demand:
    """A node read at a map inside a kernel; `how` says what the kernel does for it."""

    __slots__ = ("args", "asked", "extra", "how", "index", "node", "same", "value", "windows")

    def __init__(self, node: Node, index: Map, windows: Windows) -> None:
        self.node = node
        self.index = index
        self.windows = windows
        self.how = ""  # op, load, scalar, iota, gather, check, pad, put, reduce, alias
        self.args: Sequence[Demand] = ()
        self.extra: Any = None
        self.same: Demand | None = None
        self.value = -1
        self.asked = 1  # times, while it waits


class Group:
    """A kernel in the making."""

    def __init__(self, seed: Node) -> None:
        self.seed = seed
        self.axes: list[Axis] = []
        self.reduced: list[Axis] | None = None
        self.demands: list[Demand] = []
        self.members: set[Node] = set()  # what is computed, but for host scalars
        self.inputs: dict[Node, None] = {}  # nodes that must be in memory before this kernel runs
        self.stores: dict[Node, Demand] = {}
        self.partials: list[tuple[Node, Demand]] = []
        self.target: Node | None = None  # a written array: this kernel stores its block alone
        self.loose = False  # where that block starts is an argument of the launch
        self._waiting: list[int] = []  # a heap: numbers of nodes, negative
        self._known: dict[int, Demand] = {}  # of a node, by its number, the first
        self._queues: dict[int, list[Demand]] = {}  # of nodes that are read in several ways: what waits but the first
        self._others: dict[int, list[Demand]] = {}  # and what has been looked at
        self._moved: dict[tuple[Any, ...], Any] = {}  # maps and windows behind movement, by those before it
        self._kept: dict[Any, Any] = {}  # those, so that equal ones are one object
        self._touched: set[Node] | None = None
        self._extra = 0
        self._asked = 0  # how often something is waited for
        self._begun = self._settled = splits()
        index = []
        for n in seed.aval.shape:
            axis = Axis(n)
            index.append(variable(axis))
            if n != 1:
                self.axes.append(axis)
        self.index: Map = tuple(index)
        self._shape = seed.aval.shape
        self.row_seed = False
        self.example: Any = None  # that this kernel is for others, see `twins.py`: its axes must stay whole

    def copy(self) -> "Group":
        """Return this group again, to be grown further without harm to the first."""
        other = Group(self.seed)  # a compiled class has no instances without what its `__init__` gives them
        other.index, other._shape, other.row_seed = self.index, self._shape, self.row_seed
        other.target, other.loose = self.target, self.loose
        other._moved, other._kept = self._moved, self._kept
        other._extra, other._asked, other._begun, other._settled = self._extra, self._asked, self._begun, self._settled
        other._touched = self._touched
        other.axes = list(self.axes)
        other.demands = list(self.demands)
        other.partials = list(self.partials)
        other._waiting, other._queues, other.example = [], {}, None
        other.reduced = None if self.reduced is None else list(self.reduced)
        other.members = set(self.members)
        other.inputs = dict(self.inputs)
        other.stores = dict(self.stores)
        other._known = dict(self._known)
        other._others = {n: [*have] for n, have in self._others.items()}
        return other

    def of(self, node: Node) -> list[Demand]:
        """Return what is demanded of a node that is computed here."""
        found = self._known.get(node.number)
        if found is None:
            return []
        return [d for d in (found, *self._others.get(node.number, ())) if d.how not in ("load", "scalar")]

    def room(self, instructions: int) -> int:
        """Return how much more a kernel of so many instructions takes: each demand may take two. Negative if full."""
        return instructions - 2 * len(self.demands) - self._extra - 1

    @property
    def size(self) -> int:
        """How many nodes are here."""
        return len(self._known)

    @property
    def touched(self) -> Set[Node]:
        """The nodes that are computed here or read."""
        if self._touched is None:
            self._touched = self.members.union(self.inputs)
        return self._touched

    def has(self, node: Node, index: Map) -> bool:
        """Whether an operand of what is read at *index* is asked for here at the same place, or is spread over it."""
        demand = self._known.get(node.number)
        if demand is not None:
            return demand.index is index or demand.index == self.broadcast(index, node)
        while node.storage is None and node.spec.op.kind in SPREADING:
            node = node.parents[0]
            demand = self._known.get(node.number)
            if demand is not None:
                return demand.how == "scalar" or node.aval.size * SPREAD <= math.prod([a.extent for a in self.axes])
        return False

    def loaded(self, demand: Demand) -> Demand:
        """Return a demand of this kernel as one for which its own nodes are read: this one, unless it is a twin."""
        return demand

    @property
    def known(self) -> Set[int]:
        """The numbers of the nodes that are here."""
        return self._known.keys()

    def beside(self, other: Any) -> int:
        """Return how many nodes are here that *other* has not."""
        return len(self.known - other.known)

    def made(self) -> Iterator[tuple[Node, Demand]]:
        """Yield what is computed here, but not by movement alone."""
        for demand in self.demands:
            if demand.how not in NEVER_STORED:
                yield demand.node, demand

    def settle(self) -> None:
        """Replace split axes by their parts."""
        if self._settled == splits():
            return
        self._settled = splits()
        self.axes = [leaf for a in self.axes for leaf in a.leaves()]
        if self.reduced is not None:
            self.reduced = [leaf for a in self.reduced for leaf in a.leaves()]

    @property
    def parallel(self) -> list[Axis]:
        """The axes that are not reduced."""
        return [a for a in self.axes if a not in (self.reduced or ())]

    def covers(self, demand: Demand) -> bool:
        """Whether *demand* runs over every element of its node once: then the kernel can store it."""
        if demand.windows:
            return False
        if demand.index is self.index and demand.node.aval.shape == self._shape:
            return True
        self.settle()
        flat = address(settle_map(demand.index), shapes.strides(demand.node.aval.shape))
        axes = {a for a, _ in flat.terms}
        if axes & set(self.reduced or ()):
            return is_bijection(flat, self.axes, demand.node.aval.size)
        return is_bijection(flat, self.parallel, demand.node.aval.size)

    def need(self, node: Node, index: Map, windows: Windows = ()) -> Demand:
        """Ask for *node* at *index*; it is looked at when all its consumers have been."""
        number = node.number
        have = self._known.get(number)
        if have is None:
            have = self._known[number] = Demand(node, index, windows)
            if node.spec.op.kind == "scalar" and node.storage is None:  # the same everywhere
                have.how = "scalar"
                self.demands.append(have)
                return have
        elif have.how == "scalar":
            return have
        elif have.index is index and have.windows == windows:
            if not have.how:
                have.asked += 1
                self._asked += 1
            return have
        else:
            have = self._queued(number, node, index, windows)
        self._asked += 1
        heapq.heappush(self._waiting, -number)
        return have

    def _queued(self, number: int, node: Node, index: Map, windows: Windows) -> Demand:
        """Return what is to wait for a node that is asked for in another way than before; it may have waited before."""
        queue = self._queues.get(number)
        if queue is None:
            queue = self._queues[number] = []
        for demand in [*queue, *self._others.get(number, [])]:
            if demand.index is index and demand.windows == windows:
                queue.append(demand)
                return demand
        demand = Demand(node, index, windows)
        queue.append(demand)
        return demand

    def grow(  # noqa: C901, PLR0912, PLR0915  most of the time of a plan goes here
        self,
        decide: Callable[["Group", Demand], bool],
        limit: int,
        buffers: int,
        extras: Mapping[Node, int],
        easy: Collection[Node] = (),
    ) -> None:
        """Work through the waiting demands, consumers first.

        *decide* says whether a node is computed here or read from memory; elementwise nodes that are *easy* are
        computed. *limit* is half of what a kernel may hold, for a demand may take two instructions; what *extras* says
        of a node with a decomposed op is counted exactly.
        """
        waiting, demands, known, inputs = self._waiting, self.demands, self._known, self.inputs
        members, seed, push, pop = self.members, self.seed, heapq.heappush, heapq.heappop
        limit, asked, extra, begun = 2 * limit, self._asked, self._extra, self._begun
        self._touched = None
        split = begun != splits()
        while waiting:
            number = -pop(waiting)
            demand = first = known[number]
            if first.how:
                demand = self._queues[number].pop(0)
                asked -= 1
                if demand.how:
                    continue
            else:
                asked -= first.asked
            if split:
                self.settle()
                demand.index = settle_map(demand.index)
            if demand is not first and self._is_known(number, demand):
                continue
            demands.append(demand)
            node = demand.node
            if node.storage is not None:
                demand.how, demand.extra = "load", (node, None)
                inputs[node] = None
                continue
            more = extra + extras[node] if node in extras else extra
            full = 2 * (len(demands) + asked) + more > limit or len(inputs) > buffers
            spec = node.spec
            if spec.op.kind != "elementwise":
                self._asked, self._extra = asked, extra
                self._place(demand, decide, full)
                asked, split = self._asked, begun != splits()
                continue
            if (full and node is not seed) or not (node in easy or decide(self, demand)):
                demand.how, demand.extra = "load", (node, None)
                inputs[node] = None
                continue
            extra = more
            members.add(node)
            demand.how = "op"
            # What follows is `_compute` with `need` written out: most of what a kernel consists of comes this way.
            index, windows, shape = demand.index, demand.windows, spec.aval.shape
            whole = 1 not in shape  # no operand of this shape broadcasts
            demand.args = args = []
            for p in node.parents:
                own = p.aval.shape
                where = index if whole and own == shape else self.broadcast(index, p) if own else ()
                number = p.number
                have = known.get(number)
                if have is None:
                    have = known[number] = Demand(p, where, windows)
                    if p.spec.op.kind == "scalar" and p.storage is None:
                        have.how = "scalar"
                        demands.append(have)
                    else:
                        asked += 1
                        push(waiting, -number)
                elif have.index is where and (have.windows is windows or have.windows == windows):
                    if not have.how:
                        have.asked += 1
                        asked += 1
                elif have.how != "scalar":
                    have = self._queued(number, p, where, windows)
                    asked += 1
                    push(waiting, -number)
                args.append(have)
        self._asked, self._extra = asked, extra

    def _is_known(self, number: int, demand: Demand) -> bool:
        """Whether the node is demanded at the same places already; if not, remember it beside the first."""
        others = self._others.get(number)
        if others is None:
            others = self._others[number] = []
        for other in (self._known[number], *others):
            if other.index == demand.index and other.windows == demand.windows:
                demand.same = other
                return True
        others.append(demand)
        return False

    def _place(self, demand: Demand, decide: Callable[["Group", Demand], bool], full: bool) -> None:
        node = demand.node
        kind = node.spec.op.kind
        if node.storage is not None:
            self._load(demand)
        elif kind in _FREE:
            _FREE[kind](self, demand)
        elif (full and node is not self.seed) or kind in _BARRIERS or not decide(self, demand):
            self._load(demand)
        elif kind == "reduce":
            if not self._reduce(demand):
                self._load(demand)
        elif kind == "gather":
            self._gather(demand)
        elif kind == "put":
            self._put(demand)
        elif kind == "check":
            self._check(demand)
        else:
            self._compute(demand)
        if demand.how != "load":
            self.members.add(node)

    def _compute(self, demand: Demand) -> None:
        """Compute an element from one of each operand."""
        node, index, windows = demand.node, demand.index, demand.windows
        shape = node.aval.shape
        whole = 1 not in shape  # no operand of this shape broadcasts
        demand.how = "op"
        demand.args = [
            self.need(p, index if whole and p.aval.shape == shape else self.broadcast(index, p), windows)
            for p in node.parents
        ]
        self.members.add(node)

    def broadcast(self, index: Map, operand: Node) -> Map:
        """Return the map of an operand that broadcasts to the node read at *index*."""
        shape = operand.aval.shape
        if not shape:
            return ()
        known = self._moved.get((id(index), shape))
        if known is None:
            return self._keep((id(index), shape), spread(index, shape), index)
        return known[0]  # type: ignore[no-any-return]

    def _keep(self, key: tuple[Any, ...], found: Map, before: Map) -> Map:
        """Return a map behind movement as the one object that equal ones are; *before* must live as long as the key."""
        found = self._kept.setdefault(found, found)
        self._moved[key] = found, before
        return found

    def _load(self, demand: Demand) -> None:
        self.load_at(demand, demand.node, None)

    def load_at(self, demand: Demand, base: Node, flat: Expr | None) -> None:
        """Read *base* from memory; at *flat* if given (C order), else at the demand's map."""
        demand.how = "load"
        demand.extra = (base, flat)
        self.inputs[base] = None

    def _alias(self, demand: Demand) -> None:
        demand.how = "alias"
        demand.args = [self.need(demand.node.parents[0], demand.index, demand.windows)]

    def _reshape(self, demand: Demand) -> None:
        node, source = demand.node, demand.node.parents[0]
        shape = node.aval.shape
        base = source
        while base.storage is None and base.spec.op.kind in ("reshape", "alias"):
            base = base.parents[0]
        if base.storage is not None and base.storage.contiguous:
            self.load_at(demand, base, address(demand.index, shapes.strides(shape)))
            return
        flat = source.storage is None
        found = through_reshape(demand.index, shape, source.aval.shape)
        if found is None:
            self.settle()
            self.load_at(demand, source, address(settle_map(demand.index), shapes.strides(shape)) if flat else None)
            if not flat:  # strided memory that no single view describes: the reshape itself is materialised
                self.load_at(demand, node, None)
                del self.inputs[source]
            return
        demand.how = "alias"
        demand.args = [self.need(source, found, demand.windows)]

    def _permute(self, demand: Demand) -> None:
        self._move(demand, permuted)

    def _expand(self, demand: Demand) -> None:
        parent = demand.node.parents[0]
        demand.how = "alias"
        demand.args = [self.need(parent, self.broadcast(demand.index, parent), demand.windows)]

    def _slice(self, demand: Demand) -> None:
        self._move(demand, sliced)

    def _windows(self, demand: Demand) -> None:
        self._move(demand, windowed)

    def _move(self, demand: Demand, rule: Callable[[Map, Any], Map]) -> None:
        """Ask for the operand of a movement op at the map that *rule* gives, found once for equal ops and maps."""
        node, index = demand.node, demand.index
        known = self._moved.get((id(index), node.spec))
        found = known[0] if known else self._keep((id(index), node.spec), rule(index, node.spec.attrs), index)
        demand.how = "alias"
        demand.args = [self.need(node.parents[0], found, demand.windows)]

    def _pad(self, demand: Demand) -> None:
        before, _after, _fill = demand.node.spec.attrs
        found = self._within(demand, before, demand.node.parents[0].aval.shape)
        if found is None:
            self._load(demand)
            return
        index, windows, conditions = found
        demand.how, demand.extra = "pad", conditions
        if conditions is not None:
            demand.args = [self.need(demand.node.parents[0], index, windows)]

    def _put(self, demand: Demand) -> None:
        """Compute a written array at each place: the value inside of the block, the old array outside."""
        starts, _steps, sizes = demand.node.spec.attrs
        root, value = demand.node.parents
        found = self._within(demand, starts, sizes)
        if found is None:
            self._load(demand)
            return
        index, windows, conditions = found
        demand.how, demand.extra = "put", conditions
        old = self.need(root, demand.index, demand.windows)
        demand.args = [old] if conditions is None else [old, self.need(value, index, windows)]

    def _within(self, demand: Demand, starts: Any, sizes: Any) -> tuple[Map, Windows, Any] | None:
        """Return what `block` does, found once for equal ops, maps and windows."""
        key = id(demand.index), id(demand.windows), demand.node.spec
        known = self._moved.get(key)
        if known is None:
            found = block(demand.index, demand.windows, demand.node.aval.shape, starts, sizes)
            if found is not None:
                index, windows, conditions = found
                found = self._kept.setdefault(index, index), self._kept.setdefault(windows, windows), conditions
            known = self._moved[key] = found, demand.index, demand.windows
        return known[0]

    def _iota(self, demand: Demand) -> None:
        demand.how = "iota"

    def _gather(self, demand: Demand) -> None:
        source, *indices = demand.node.parents
        demand.how = "gather"
        demand.args = [self.need(i, self.broadcast(demand.index, i), demand.windows) for i in indices]
        demand.extra = view_of(source, set()) or (source, source.aval.shape, shapes.strides(source.aval.shape), 0)
        self.inputs[demand.extra[0]] = None

    def _check(self, demand: Demand) -> None:
        """Compute an index and report it if it is bad: a load can, so there is one from memory that it is made of."""
        parent = anchor = demand.node.parents[0]
        while anchor.storage is None and anchor.spec.op.kind in _LIGHT:
            parts = [p for p in anchor.parents if p.spec.op.kind != "scalar"]
            if not parts:
                anchor = parent  # made of nothing in memory
                break
            anchor = parts[0]
        demand.how = "check"
        demand.args = [self.need(parent, demand.index, demand.windows)]
        demand.extra = anchor
        self.inputs[anchor] = None

    def _reduce(self, demand: Demand) -> bool:
        """Place a reduction in this kernel's space; return whether it fits."""
        node, parent = demand.node, demand.node.parents[0]
        over = node.spec.attrs[0]
        extents = [parent.aval.shape[k] for k in over]
        varies = {a for e in demand.index for a, _ in e.terms}
        groups = self._reduced_groups(varies, extents, demand.windows)
        if groups is None:
            return False
        self.settle()
        index = list(settle_map(demand.index))
        for k, group in zip(over, groups, strict=True):
            index[k] = run([leaf for a in group for leaf in a.leaves()])
        demand.how = "reduce"
        demand.args = [self.need(parent, tuple(index), demand.windows)]
        return True

    def _reduced_groups(self, varies: set[Axis], extents: list[int], windows: Windows) -> list[list[Axis]] | None:
        windowed = {w[0] for w in windows}
        if self.reduced is None:
            still = [a for a in self.axes if a not in varies]
            if not still:
                fresh = [Axis(n) for n in extents]
                self.reduced = [a for a in fresh if a.extent > 1]
                self.axes += self.reduced
                self.row_seed = True
                return [[a] if a.extent > 1 else [] for a in fresh]
            rows = math.prod(a.extent for a in varies)
            columns = math.prod(extents)
            innermost = self.axes[len(self.axes) - len(still) :] == still
            if not innermost or windowed & set(still) or (columns > LONG_ROW and rows < MANY_ROWS):
                return None
            groups = align(still, extents)
            if groups is not None:
                self.reduced = [leaf for a in still for leaf in a.leaves()]
                self.settle()
            return groups
        if varies & set(self.reduced) or set(self.parallel) - varies:
            return None
        if windowed & set(self.reduced):
            return None
        return align(self.reduced, extents)


SPREADING = {"reshape", "expand", "alias"}
_LIGHT = {"elementwise", "cast", "reshape", "permute", "expand", "slice", "alias", "pad"}
_BARRIERS = {"matmul", "random", "scatter", "buffer", "custom"}
_FREE: dict[str, Callable[[Group, Demand], None]] = {
    "alias": Group._alias,
    "reshape": Group._reshape,
    "permute": Group._permute,
    "expand": Group._expand,
    "slice": Group._slice,
    "windows": Group._windows,
    "pad": Group._pad,
    "iota": Group._iota,
}
