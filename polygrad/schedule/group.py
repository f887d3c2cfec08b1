"""One kernel in the making: which nodes it computes, at which indices, and what it must read.

Here: `Group`, a set of demands (a node read at a map), grown from a seed towards its operands.
Not here: where one kernel ends and the next begins, which the policy in `fuse.py` decides; the kernel's text, in
`emit.py`.
"""

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from polygrad import shapes
from polygrad.graph.node import Node
from polygrad.schedule.index import (
    ZERO,
    Axis,
    Expr,
    Map,
    address,
    align,
    combine,
    is_bijection,
    run,
    settle_map,
    splits,
    through_reshape,
    variable,
)
from polygrad.schedule.views import view_of

Windows = tuple[tuple[Axis, int, int], ...]

# A row longer than this is reduced in a kernel of its own unless there are rows enough to fill a device.
LONG_ROW = 32_768
MANY_ROWS = 256


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
        self.members: set[Node] = set()
        self.inputs: dict[Node, None] = {}  # nodes that must be in memory before this kernel runs
        self.stores: dict[Node, Demand] = {}
        self.partials: list[tuple[Node, Demand]] = []
        self.target: Node | None = None  # a written array: this kernel stores its block alone
        self.loose = False  # where that block starts is an argument of the launch
        self._waiting: list[tuple[int, int, Demand]] = []
        self._known: dict[Node, Demand] = {}
        self._others: dict[Node, list[Demand]] = {}  # of nodes that are read in several ways: all but the first
        self._count = 0
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

    def copy(self) -> "Group":
        """Return this group again, to be grown further without harm to the first."""
        other = object.__new__(Group)
        other.__dict__.update(self.__dict__)
        for own in ("axes", "demands", "_waiting"):
            setattr(other, own, list(getattr(self, own)))
        other.partials = list(self.partials)
        other.reduced = None if self.reduced is None else list(self.reduced)
        other.members = set(self.members)
        other.inputs = dict(self.inputs)
        other.stores = dict(self.stores)
        other._known = dict(self._known)
        other._others = {n: [*have] for n, have in self._others.items()}
        return other

    def holds(self, instructions: int) -> bool:
        """Whether a kernel of so many instructions is full with what is here: each demand may take two."""
        return 2 * len(self.demands) + self._extra >= instructions

    def beside(self, other: "Group") -> int:
        """Return how many nodes are here that *other* has not."""
        return len(self._known.keys() - other._known.keys())

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
        have = self._known.get(node)
        if have is not None and (have.how == "scalar" or (have.index is index and have.windows == windows)):
            if not have.how:
                have.asked += 1
                self._asked += 1
            return have
        demand = Demand(node, index, windows)
        if have is None:
            self._known[node] = demand
            if node.spec.op.kind == "scalar" and node.storage is None:  # the same everywhere
                demand.how = "scalar"
                self.demands.append(demand)
                self.members.add(node)
                return demand
        self._asked += 1
        self._count += 1
        heapq.heappush(self._waiting, (-node.number, self._count, demand))
        return demand

    def grow(
        self, decide: Callable[["Group", Demand], bool], limit: int, buffers: int, extras: Mapping[Node, int]
    ) -> None:
        """Work through the waiting demands, consumers first.

        *decide* says whether a node is computed here or read from memory. *limit* is half of what a kernel may hold,
        for a demand may take two instructions; what *extras* says of a node with a decomposed op is counted exactly.
        """
        waiting, demands, known, pop = self._waiting, self.demands, self._known, heapq.heappop
        while waiting:
            demand = pop(waiting)[2]
            node = demand.node
            self._asked -= demand.asked
            if self._begun != splits():
                self.settle()
                demand.index = settle_map(demand.index)
            if known[node] is not demand and self._is_known(demand):
                continue
            demands.append(demand)
            more = self._extra + extras.get(node, 0)
            full = 2 * (len(demands) + self._asked) + more > 2 * limit or len(self.inputs) > buffers
            if node.spec.op.kind != "elementwise" or node.storage is not None:
                self._place(demand, decide, full)
            elif (full and node is not self.seed) or not decide(self, demand):
                self._load(demand)
            else:
                self._compute(demand)
                self._extra = more

    def _is_known(self, demand: Demand) -> bool:
        """Whether the node is demanded at the same places already; if not, remember it beside the first."""
        others = self._others.setdefault(demand.node, [])
        for other in (self._known[demand.node], *others):
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

    @staticmethod
    def broadcast(index: Map, operand: Node) -> Map:
        """Return the map of an operand that broadcasts to the node read at *index*."""
        shape = operand.aval.shape
        if not shape:
            return ()
        skip = len(index) - len(shape)
        return tuple([ZERO if n == 1 else index[k + skip] for k, n in enumerate(shape)])

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
        order = demand.node.spec.attrs[0]
        index: list[Expr] = [ZERO] * len(order)
        for k, source in enumerate(order):
            index[source] = demand.index[k]
        demand.how = "alias"
        demand.args = [self.need(demand.node.parents[0], tuple(index), demand.windows)]

    def _expand(self, demand: Demand) -> None:
        parent = demand.node.parents[0]
        demand.how = "alias"
        demand.args = [self.need(parent, self.broadcast(demand.index, parent), demand.windows)]

    def _slice(self, demand: Demand) -> None:
        starts, steps, _ = demand.node.spec.attrs
        index = tuple(combine(b, [(e, s)]) for e, b, s in zip(demand.index, starts, steps, strict=True))
        demand.how = "alias"
        demand.args = [self.need(demand.node.parents[0], index, demand.windows)]

    def _windows(self, demand: Demand) -> None:
        kernel, stride, dilation = demand.node.spec.attrs
        index, axes = demand.index, len(kernel)
        lead = len(index) - 2 * axes
        moved = [combine(0, [(index[lead + k], stride[k]), (index[lead + axes + k], dilation[k])]) for k in range(axes)]
        demand.how = "alias"
        demand.args = [self.need(demand.node.parents[0], (*index[:lead], *moved), demand.windows)]

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
        """Return the map of a block that lies at *starts* in the node demanded, and where the block is not left.

        That is windows for loads, and conditions (axis, low, high), None if it is left everywhere. None if the kernel's
        axes do not tell.
        """
        index, windows, conditions = list(demand.index), list(demand.windows), []
        for k, (start, n) in enumerate(zip(starts, sizes, strict=True)):
            if not start and n == demand.node.aval.shape[k]:
                continue
            expr = combine(-start, [(demand.index[k], 1)])
            if len(expr.terms) > 1:
                return None
            index[k] = expr
            if not expr.terms:
                if not 0 <= expr.const < n:
                    return (), (), None
                continue
            axis, c = expr.terms[0]
            bounds = (-expr.const, n - 1 - expr.const) if c > 0 else (expr.const - n + 1, expr.const)
            low, high = max(0, -(-bounds[0] // abs(c))), min(axis.extent, bounds[1] // abs(c) + 1)
            if low > 0 or high < axis.extent:
                if low >= high:
                    return (), (), None
                conditions.append((axis, low, high))
        for axis, low, high in conditions:
            old = next((w for w in windows if w[0] is axis), None)
            if old is not None:
                windows.remove(old)
                low, high = max(low, old[1]), min(high, old[2])
                if low >= high:
                    return None
            windows.append((axis, low, high))
        for axis, _, _ in conditions:
            axis.pinned = True
        windows.sort(key=lambda w: w[0].serial)
        return tuple(index), tuple(windows), conditions

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
