"""Where one kernel ends and the next begins.

Here: the policy. Nodes are visited consumers first; a group grows from its seed towards the operands until something
must be in memory. Kept in memory: what was asked for, operands of library ops and gathers, reductions that do not fit
the space of their consumer, and values shared by several kernels that cost more to compute again than to read.
Not here: index arithmetic, kernel text, memory.
"""

import heapq
import math
from collections.abc import Callable, Collection, Iterable
from typing import Any

from polygrad import shapes
from polygrad.driver.types import DeviceInfo
from polygrad.graph.node import Node
from polygrad.schedule.group import Demand, Group
from polygrad.schedule.index import ZERO, variable
from polygrad.schedule.ordering import Step, in_order
from polygrad.schedule.prices import CHEAP_OPS, LIBRARY, SMALL, Prices
from polygrad.schedule.reach import Reach
from polygrad.schedule.readers import GLANCE, PER_ELEMENT, consumers, elementwise
from polygrad.schedule.twins import BEGIN, Twins, Verdict, recorded
from polygrad.schedule.views import MOVEMENT, VIEWS, View, contiguous, takes, view_of
from polygrad.schedule.writes import Writes

RESULTS = {"matmul", "library"}
PACKED = {"scatter", "library"}  # library ops whose operands are in C order
COMPUTED = PER_ELEMENT - MOVEMENT
LONG_COLUMNS = 1 << 20  # elements under a column sum that make it worth a launch to read them in another kernel
JOIN_WINDOW = 32  # kernels looked at when a seed asks for company
JOIN_TRIALS = 6  # of these, kernels that are grown for it in vain before it goes alone
JOIN_REFUSALS = 8  # and kernels that wait for it


class Fusion:
    """Turns unrealized nodes into an ordered list of steps."""

    def __init__(
        self,
        order: list[Node],
        wanted: Iterable[Node],
        offered: Iterable[Node],
        info: DeviceInfo,
        sharing: bool = True,
        writes: Writes | None = None,
    ) -> None:
        self.info = info
        self.sharing = sharing  # whether kernels may make more than their seed; off when a plan has turned out circular
        self.wanted: set[Node] = set()
        self.offered = set(offered)
        self.produced: dict[Node, Step] = {}
        self.steps: list[Step] = []
        self._calls: dict[
            tuple[Any, ...], list[Node]
        ] = {}  # of library ops, with their results; filled when one is met
        self.order = order
        self._elementwise = elementwise(order)
        self.consumers = consumers(order, self._elementwise)
        self.writes = writes or Writes()
        self._apart = self.writes.apart(order)
        self._loose = self.writes.loose(order) if self._apart else set()
        self._prices = Prices(order, self._apart, info)
        self._easy = set(self._prices.slight)  # less what is wanted
        self._late = self._lateness()
        self._makers: dict[Node, Step] = {}  # of what kernels compute, the last that does
        self._trials = self._refusals = 0  # of the node that looks for company
        self._reach = Reach(order, self.produced)
        self._twins = Twins(self._easy)
        self._riding: set[Node] = set()  # column sums that ride in other kernels
        self._heap: list[tuple[int, Node]] = []
        self._deferred: list[tuple[int, Node]] = []  # column sums, which look for a kernel to ride in last of all
        self.asked = frozenset(wanted)
        for n in self.asked:
            self.want(n)

    def run(self) -> list[Step]:
        """Return the steps in an order in which operands come first."""
        self._drain()
        while self._deferred:  # what is started now may ask for more of them
            node = heapq.heappop(self._deferred)[1]
            if node not in self.produced and not self._rides(node):
                self._start(node, last=True)
            self._drain()
        self.writes.settle(self.steps, self.produced)
        self._twins.close()
        return in_order(self.steps, self.produced, self.asked)

    def want(self, node: Node) -> None:
        """Ask for *node* in memory."""
        if node.storage is None and node not in self.wanted:
            self.wanted.add(node)
            self._easy.discard(node)
            heapq.heappush(self._heap, (-node.number, node))

    def _lateness(self) -> set[Node]:
        """Return the column sums that may ride in another kernel, and what only they consume."""
        late: set[Node] = set()
        for n in reversed(self.order):
            if n.spec.op.kind == "reduce" and self._is_column_sum(n):
                late.add(n)
            elif late:
                readers = self.consumers[n]
                if readers and late.issuperset(readers):
                    late.add(n)
        return late

    def _is_column_sum(self, node: Node) -> bool:
        if node.spec.op.kind != "reduce" or node.spec.op.instr != "sum":
            return False
        parent = node.parents[0]
        over, shape = node.spec.attrs[0], parent.aval.shape
        kept = [k for k in range(len(shape)) if k not in over and shape[k] > 1]
        return bool(kept) and all(k < kept[0] for k in over if shape[k] > 1) and parent.aval.size > SMALL

    def _drain(self) -> None:
        while self._heap:
            node = heapq.heappop(self._heap)[1]
            if node in self.produced or node.storage is not None:
                continue
            if self._is_column_sum(node):
                heapq.heappush(self._deferred, (-node.number, node))
            else:
                self._start(node)

    def _alone(self, node: Node) -> bool:
        """Whether a node has launches of its own: library ops, some writes, products if the device lacks them."""
        op = node.spec.op
        if op.kind in LIBRARY or node in self._apart:
            return True
        return op.kind == "reduce" and op.instr == "prod" and "prod" not in self.info.reductions

    def _start(self, node: Node, last: bool = False) -> None:
        if node in self._apart:
            self._write(node)
            return
        if self._alone(node):
            self._library(node)
            return
        if self.sharing and self._ride(node):
            return
        group, demand = self._grown(node)
        columns = self._long_columns(group) if self.sharing else []
        if columns and not last:  # the kernels in which they may ride are not there yet
            heapq.heappush(self._deferred, (-node.number, node))
            return
        riding = [n for n in columns if self._rides(n)]
        if riding:
            group, demand = self._grown(node)
        if self.sharing and self._join(node, group):
            return
        step = Step(group, None)
        group.stores[node] = demand
        self._record(step, node)
        self._add(step)

    def _grown(self, node: Node) -> tuple[Group, Demand]:
        """Return the kernel that computes *node*, as it is if nothing shares it, and the demand for that."""
        if len(self.steps) < BEGIN:
            group = Group(node)
            demand = group.need(node, group.index)
            self._grow(group)
            return group, demand
        twin = self._twins.find(node, self._decide)
        if twin is not None:
            return twin, twin.example.demands[0]
        group = Group(node)
        demand = group.need(node, group.index)
        verdicts: list[Verdict] = []
        self.grow(group, recorded(self._decide, verdicts), self._easy)
        self._twins.remember(group, verdicts)
        return group, demand

    def _add(self, step: Step) -> None:
        step.place = len(self.steps)
        self.steps.append(step)

    def _long_columns(self, group: Group) -> list[Node]:
        """Return the column sums in a kernel that read much: another kernel may have that at hand."""
        if not group.row_seed:
            return []
        reduced = [n for n in group.members if n.spec.op.kind == "reduce" and n.parents[0].aval.size >= LONG_COLUMNS]
        return [n for n in reduced if self._is_column_sum(n)]

    def _rides(self, node: Node) -> bool:
        """Whether another kernel makes the parts of a column sum, from now on if it did not before."""
        if node in self._riding:
            return True
        if not self.sharing or node in self.produced or not self._is_column_sum(node):
            return False
        return self._as_partial(node)

    def _record(self, step: Step, seed: Node) -> None:
        group = step.group
        assert group is not None  # noqa: S101  only groups are recorded
        self._keep_extras(group, seed)
        if group.target is None:
            self._makers.update(dict.fromkeys(group.members, step))
        step.inputs = list(group.inputs)
        step.outputs = [*group.stores, *[n for n, _ in group.partials]]
        for n in step.outputs:
            self.produced[n] = step
        for n in group.inputs:
            self.want(n)
        self._reach.note(step)

    def _grow(self, group: Group) -> None:
        self.grow(group, self._decide, self._easy)

    def grow(self, group: Group, decide: Callable[[Group, Demand], bool], easy: Collection[Node] = ()) -> None:
        """Grow a kernel as far as the device's limits and *decide* let it, which need not be asked what is *easy*."""
        limits = self.info.limits
        group.grow(decide, limits.max_instructions // 2, limits.max_buffers // 2, self._prices.extras, easy)

    def _library(self, node: Node) -> None:
        step = Step(None, node)
        for p in node.parents:
            if p.spec.op.kind == "scalar":
                continue
            view = view_of(p, self.wanted) or self._view_to_be(p)
            if node.spec.op.kind in PACKED and not contiguous(view) and not takes(node.spec.op, view):
                view = (p, p.aval.shape, shapes.strides(p.aval.shape), 0)
            step.operands.append(view)
            step.inputs.append(view[0])
            self.want(view[0])
        step.outputs = self._results(node)
        for n in step.outputs:
            self.produced[n] = step
        self._reach.note(step)
        self._add(step)

    def _view_to_be(self, node: Node) -> View:
        """Return a node that is no view as a view of what is nearest to memory below it, so that others share that."""
        chain = [node]
        while chain[-1].parents[0].storage is None and chain[-1].parents[0].spec.op.kind in VIEWS:
            chain.append(chain[-1].parents[0])
        found = (view_of(node, {n}) for n in reversed(chain))
        return next(view for view in found if view is not None)  # of itself, if of no other

    def _write(self, node: Node) -> None:
        """Start the kernel that computes what is written into an array and stores it in the block where it goes."""
        root, value = node.parents
        group = Group(value)
        group.seed = group.target = node
        group.members.add(node)
        demand = group.need(value, group.index)
        self._grow(group)
        if root in group.inputs:  # a kernel does not read memory that it writes: drivers may store as they go
            group = Group(value)
            group.seed = group.target = node
            demand = Demand(value, group.index, ())
            group.demands.append(demand)
            group.load_at(demand, value, None)
        group.stores[node] = demand
        group.loose = node in self._loose
        step = Step(group, None)
        step.write = node
        self._record(step, node)
        self.want(root)
        step.inputs = [*dict.fromkeys([*step.inputs, root])]
        self._reach.note(step)
        self._add(step)

    def _results(self, node: Node) -> list[Node]:
        """Return all nodes here that the call of a library op gives."""
        if node.spec.op.kind != "library":
            return [node]
        if not self._calls:
            for n in self.order:
                if n.spec.op.kind == "library":
                    self._calls.setdefault(call_of(n), []).append(n)
        return self._calls[call_of(node)]

    def _decide(self, group: Group, demand: Demand) -> bool:
        """Whether the node of *demand* is computed in *group*; if not, it is read from memory."""
        node = demand.node
        if node is group.seed or (group.partials and node in [n for n, _ in group.partials]):
            return True
        if (node.spec.op.kind != "elementwise" or self._apart) and self._alone(node):
            return False
        if node in self._riding:
            return False
        if node in self.wanted:
            waits = self._replaces_result(group, node) and self._reach.leads(group.inputs, node)
            return not waits and self._compute_wanted(group, demand)
        if node in self._prices.slight:
            return True
        members, late = group.members, self._late
        for c in self.consumers.get(node, ()):
            if c not in members and c not in late:
                break
        else:
            return True
        if self._glances(group, node) or self._at_hand(group, demand):
            return True
        if node.spec.op.kind == "reduce":
            return not self._reach.leads(group.inputs, node)
        if self._replaces_result(group, node):
            return group.covers(demand) and not self._reach.leads(group.inputs, node)
        return self._prices.again[node] <= CHEAP_OPS or self._compute_wanted(group, demand)

    def _at_hand(self, group: Group, demand: Demand) -> bool:
        """Whether *group* has all that one instruction makes a node of: it need not be read, whoever stores it."""
        node = demand.node
        if node.spec.op.kind not in COMPUTED or node in self._prices.extras:
            return False
        return all(p.spec.op.kind == "scalar" or group.has(p, demand.index) for p in node.parents)

    def _replaces_result(self, group: Group, node: Node) -> bool:
        """Whether a node comes to memory for a library op, and could be made again from another one's result alone.

        An activation, say: a kernel that reads the activation itself lets go of what it was made of, or computes less.
        """
        source = self._prices.source(node)
        if source is None or source is node or source.spec.op.kind not in RESULTS or source.storage is not None:
            return False
        if source in group.members or source in group.inputs:
            return False
        return any(c.spec.op.kind in RESULTS for c in self.consumers[node])

    def _glances(self, group: Group, node: Node) -> bool:
        """Whether *group* reads so few elements of a node, which goes on to one kernel at most, that it makes them."""
        if node not in self._elementwise or len(self.consumers[node]) > 1:
            return False
        return math.prod(a.extent for a in group.axes) * GLANCE <= node.aval.size

    def _compute_wanted(self, group: Group, demand: Demand) -> bool:
        node = demand.node
        if not self._reach.leads(group.inputs, node):
            if group.covers(demand) or node.spec.op.kind == "reduce":
                return True
        limit = CHEAP_OPS // 2 if node in self.wanted else CHEAP_OPS
        return self._prices.again[node] <= limit and node.spec.op.kind != "reduce"

    def _keep_extras(self, group: Group, seed: Node) -> None:
        """Store from *group* what is wanted elsewhere, or offered, and computed here anyway."""
        if not self.sharing:
            return
        easy, offered = self._easy, self.offered
        for node, demand in group.made():
            if node in easy and node not in offered and node.spec.op.kind != "reduce":
                continue
            if node is seed or node in self.produced or node in group.stores:
                continue
            if node not in self.wanted and node not in self.offered and not self._shared_outside(group, node):
                continue
            if node.spec.op.kind in MOVEMENT:
                continue
            if len(group.stores) + len(group.inputs) + 2 > self.info.limits.max_buffers:
                return
            if group.covers(demand) and not self._reach.leads(group.inputs, node):
                group.stores[node] = demand
                self.wanted.add(node)
                self._easy.discard(node)

    def _shared_outside(self, group: Group, node: Node) -> bool:
        if node in self._prices.slight and node.spec.op.kind != "reduce":
            return False
        members, late = group.members, self._late
        for c in self.consumers.get(node, ()):
            if c not in members and c not in late and not self._served(c):
                break
        else:
            return False
        return node.spec.op.kind == "reduce" or self._prices.again[node] > CHEAP_OPS

    def _served(self, consumer: Node) -> bool:
        """Whether a library op has asked for what it reads, which may be another arrangement of a node's elements."""
        return consumer in self.produced and consumer.spec.op.kind in LIBRARY

    def _ride(self, node: Node) -> bool:
        """Store *node* from a kernel that computes it anyway, if there is one."""
        step = self._makers.get(node)
        if step is None or step.group is None or step.place < len(self.steps) - JOIN_WINDOW:
            return False
        group = step.group
        if len(group.inputs) + len(step.outputs) + 2 > self.info.limits.max_buffers:
            return False
        for demand in group.of(node):
            if group.covers(demand) and not self._reach.leads(group.inputs, node):
                group.stores[node] = demand
                step.outputs.append(node)
                self.produced[node] = step
                self._reach.note(step)
                return True
        return False

    def _join(self, node: Node, alone: Group) -> bool:
        """Compute *node* in a kernel that runs over the same space and reads the same memory, if there is one.

        A reduction rides beside another over the same operand shape and axes. *alone* is its kernel if there is none.
        """
        reduces = node.spec.op.kind == "reduce"
        if node.aval.size <= 1 and not reduces:
            return False
        self._trials = self._refusals = 0
        touched, limit = alone.touched, self.info.limits.max_instructions
        for step in reversed(self.steps[-JOIN_WINDOW:]):
            group = step.group
            if self._trials == JOIN_TRIALS or self._refusals == JOIN_REFUSALS:
                break
            if group is None or group.partials or group.target is not None or not self._alike(group, node, reduces):
                continue
            if touched.isdisjoint(group.touched) or group.room(limit) < 0:
                continue
            if self._has_room(group, alone) and self._try(step, node):
                return True
        return False

    @staticmethod
    def _alike(group: Group, node: Node, reduces: bool) -> bool:
        """Whether a kernel runs over the space of *node*, or over that of the operand which it reduces."""
        seed = group.seed
        if not reduces:
            return not group.row_seed and seed.aval.shape == node.aval.shape
        whole = node.parents[0].aval.shape
        if not group.row_seed:
            return group.reduced is not None and seed.aval.shape == whole
        reads = seed.parents[0].aval.shape if seed.spec.op.kind == "reduce" else whole
        return seed.aval.shape == node.aval.shape and reads == whole

    def _has_room(self, group: Group, alone: Group) -> bool:
        """Whether a kernel that has something in common with what is asked for has room for the rest of it."""
        if len(self.steps) <= JOIN_WINDOW:
            return True  # a small plan can afford to try
        room = group.room(self.info.limits.max_instructions)
        if room >= alone.size or room < alone.size - group.size:
            return room >= alone.size
        return alone.beside(group) <= room

    def _try(self, step: Step, node: Node) -> bool:
        """Add *node* to the kernel of *step* if that needs no new kernel between the two and shares a load."""
        old = step.group
        assert old is not None  # noqa: S101  callers have looked
        if self._reach.leads(old.inputs, node):
            self._refusals += 1
            return False
        self._trials += 1
        if old.example is not None:
            old = step.group = old.example.regrown(old, self.grow)
        trial = old.copy()
        demand = trial.need(node, trial.broadcast(trial.index, node))
        self._grow(trial)
        if demand.same is None and demand.how == "load":
            return False
        before, outputs = old.inputs, set(step.outputs)
        fresh = [n for n in trial.inputs if n not in before]
        if any(n in outputs for n in fresh) or any(self._reach.leads(fresh, n) for n in outputs):
            return False
        if (
            not self._shares(trial, node, before)
            or len(trial.inputs) + len(step.outputs) + 2 > self.info.limits.max_buffers
        ):
            return False
        trial.stores[node] = demand
        if not trial.covers(demand if demand.same is None else demand.same):
            return False
        step.group = trial
        self._record(step, node)
        return True

    def _shares(self, trial: Group, node: Node, before: Collection[Node]) -> bool:
        own: set[Node] = set()
        stack = [node]
        while stack:
            n = stack.pop()
            if n in own:
                continue
            own.add(n)
            if n in trial.members:
                stack += n.parents
        return any(n in own and n.aval.size * 4 >= node.aval.size for n in before)

    def _as_partial(self, node: Node) -> bool:
        """Let a column sum ride as partial sums in a kernel over the rows of its operand."""
        source = node.parents[0]
        over = node.spec.attrs[0]
        shape = source.aval.shape
        lead = [n for k, n in enumerate(shape) if k in over and n > 1]
        tail = [n for k, n in enumerate(shape) if k not in over and n > 1]
        for step in reversed(self.steps):
            group = step.group
            if group is None or group.target is not None:
                continue
            if group.row_seed or [a.extent for a in group.axes] != [*lead, *tail]:
                continue
            if self._try_partial(step, node, source, len(lead)):
                return True
        return False

    def _try_partial(self, step: Step, node: Node, source: Node, lead: int) -> bool:
        old = step.group
        assert old is not None  # noqa: S101  the caller has looked
        tail = old.axes[lead:]
        if (old.reduced is not None and old.reduced != tail) or self._reach.leads(old.inputs, node):
            return False
        if old.example is not None:
            old = step.group = old.example.regrown(old, self.grow)
        trial = old.copy()
        before = old.inputs
        trial.reduced = trial.axes[lead:]
        axes = iter(trial.axes)
        index = tuple(variable(next(axes)) if n > 1 else ZERO for n in source.aval.shape)
        demand = trial.need(source, index)
        trial.partials.append((node, demand))
        self._grow(trial)
        fresh = [n for n in trial.inputs if n not in before]
        outputs = set(step.outputs)
        if source in fresh or any(n in outputs for n in fresh) or any(self._reach.leads(fresh, n) for n in outputs):
            return False
        if not self._shares(trial, source, before):
            return False
        step.group = trial
        step.finish.append(node)
        self._riding.add(node)
        self._record(step, trial.seed)
        return True


def call_of(node: Node) -> tuple[Any, ...]:
    """Return what is equal for the results of equal calls of a library op."""
    return node.spec.op, node.spec.attrs[1:], node.parents
