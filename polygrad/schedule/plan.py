"""A plan: the steps of a realize with nodes replaced by slots, so that it serves every graph of the same structure.

Here: `plan(...)`, the whole of scheduling in one call.
Not here: the records of a plan (`steps.py`), memory, launching, caching of plans.

Slots number the values of one run: first the leaves (values already on the device, in the order in which they are met),
then the nodes of the order, then buffers of partial sums.
"""

from typing import Any, NamedTuple

from polygrad import shapes
from polygrad.driver.ir import ITEMSIZE
from polygrad.driver.types import DeviceInfo
from polygrad.errors import UnsupportedOp
from polygrad.graph.node import Node
from polygrad.graph.quiet import quiet
from polygrad.schedule.alike import together
from polygrad.schedule.body import name as name_of
from polygrad.schedule.decompose_product import product_launches
from polygrad.schedule.emit import STATUS, FusedLaunch, finishing
from polygrad.schedule.epilogues import joined
from polygrad.schedule.fallback import library_launch
from polygrad.schedule.fuse import Fusion
from polygrad.schedule.ordering import CycleError, Epilogue, Step
from polygrad.schedule.placed import placed
from polygrad.schedule.recompute import lighter, spared
from polygrad.schedule.stamps import launch_of
from polygrad.schedule.steps import Fused, Library, Many, Operand, Plan
from polygrad.schedule.unread import shared, unburdened
from polygrad.schedule.views import View, view_of
from polygrad.schedule.writes import Writes, copy_launch


class Question(NamedTuple):
    """What is to be computed on a device.

    Attributes
    ----------
    order : list of Node
        All unrealized nodes under what was asked for, operands first; none of size zero.
    leaves : list of Node
        The realized operands, in the order of their slots.
    asked : list of Node
        What must be in memory afterwards.
    offered : set of Node
        Costly nodes that somebody else still holds or a recording needs: stored if some kernel computes them anyway.
    retained : set of Node
        What a recording needs: if it must be in memory on the way, it stays there.
    info : DeviceInfo
        What the device can do.
    claims : dict of Node to Node
        Writes that may take over the memory of the array they write into, and the last write of each row of them.
    prompt : bool
        Whether somebody waits for each result, so that no launch may wait for others like it.
    """

    order: list[Node]
    leaves: list[Node]
    asked: list[Node]
    offered: set[Node]
    retained: set[Node]
    info: DeviceInfo
    claims: dict[Node, Node] | None = None
    prompt: bool = False


def plan(question: Question) -> Plan:
    """Return how to compute what is asked for."""
    with quiet():
        made = _planned(question)
        if made.taken and _much(made, question.leaves):
            made = _planned(question._replace(claims=None))
    return made


def _planned(question: Question) -> Plan:
    order, leaves, asked, offered, retained, info, claims, prompt = question
    wanted, views = _resolve(asked)
    bases = {base for base, *_ in views.values()}
    writes = Writes(claims, set(wanted) | bases | offered | retained)
    try:
        fusion = Fusion(order, wanted, offered, info, writes=writes)
        steps = fusion.run()
    except CycleError:
        fusion = Fusion(order, wanted, offered, info, sharing=False, writes=writes)
        steps = fusion.run()
    shared(steps, writes.kept)
    kept = writes.kept - spared(steps, fusion, retained - set(wanted) - bases)
    unburdened(steps, kept)
    if info.features.placed:
        steps = placed(steps, kept)
    steps = lighter(joined(steps, info, kept), fusion, kept)
    unburdened(steps, kept)
    return _Numbering(order, leaves, info).finish(steps, kept, views, prompt=prompt)


def _much(made: Plan, leaves: list[Node]) -> bool:
    """Whether a plan that takes memory over allocates much else: it gets all of that before it starts, see `Plan`."""
    fresh = sum(nbytes for step in made.steps for _, nbytes in step.allocate)
    return fresh > MUCH * sum(_bytes(leaves[slot]) for slot in made.taken)


MUCH = 4


def _resolve(asked: list[Node]) -> tuple[list[Node], dict[Node, Any]]:
    """Split what was asked for into nodes to compute and views of them."""
    wanted: dict[Node, None] = {}
    views: dict[Node, Any] = {}
    for node in asked:
        base = node
        while base.storage is None and base.spec.op.kind in ("reshape", "permute", "expand", "alias"):
            base = base.parents[0]
        if base is node or base.spec.op.kind == "scalar":
            wanted[node] = None
            continue
        if base.storage is None:
            wanted[base] = None
    for node in [n for n in wanted if n.spec.op.kind == "slice"]:
        found = view_of(node, set(wanted) - {node})
        if found is not None and (
            found[0].storage is not None or found[0].spec.op.kind in ("matmul", "reduce", "scatter", "put")
        ):
            del wanted[node]
            if found[0].storage is None:
                wanted[found[0]] = None
    held = set(wanted)
    for node in asked:
        if node in held:
            continue
        found = view_of(node, held)
        if found is None:
            wanted[node] = None
        else:
            views[node] = found
    return list(wanted), views


class _Numbering:
    """Replaces nodes by slots and finds where each slot is made and last used."""

    def __init__(self, order: list[Node], leaves: list[Node], info: DeviceInfo) -> None:
        self.info = info
        self.leaves = {n: k for k, n in enumerate(leaves)}
        self.position = {n: k for k, n in enumerate(order)}
        self.next = len(leaves) + len(order)
        self.slots: dict[Any, int] = dict(zip([*leaves, *order], range(self.next), strict=True))
        self.same: dict[Node, Node] = {}  # from a written array, or an equal result, to the node whose memory it has

    def slot(self, node: Any) -> int:
        """Return the slot of a node, or of a buffer of its parts."""
        while node in self.same:
            node = self.same[node]
        found = self.slots.get(node)
        if found is None:
            found = self.slots[node] = self.next
            self.next += 1
        return found

    def finish(self, steps: list[Step], wanted: set[Node], views: dict[Node, Any], *, prompt: bool) -> Plan:
        """Return the plan."""
        drafts: list[Any] = []
        made: set[Node] = set()
        for step in steps:
            if step.write is not None and not step.copies:
                self.same[step.write] = step.write.parents[0]
            if step.node is not None and step.node.spec.op.kind == "library":
                self._join_equal([n for n in step.outputs if n.spec.op.kind == "library"])
        for step in steps:
            drafts += self._drafts(step)
            made.update(step.outputs)
        for base, *_ in views.values():
            if base.storage is None:
                wanted = wanted | {base}
        results = sorted((n for n in made if n in wanted), key=lambda n: n.number)
        keep = {self.slot(n) for n in results}
        finished = self._lifetimes(drafts, keep)
        if self.info.features.many and not prompt and all(step.write is None for step in steps):
            joined = together(drafts, finished)
            finished = finished if joined is drafts else self._lifetimes(joined, keep)
        operands = tuple(
            (self.position[n], Operand(self.slot(base), offset, shape, strides, name_of(base.aval.dtype)))
            for n, (base, shape, strides, offset) in views.items()
        )
        taken = tuple(sorted(self.leaves[old] for old in self.same.values() if old in self.leaves))
        slots = tuple((self.position[n], self.slot(n)) for n in results)
        return Plan(tuple(finished), self.next, slots, operands, taken)

    def _join_equal(self, results: list[Node]) -> None:
        """Give one memory to equal results of equal calls, which are made once."""
        first: dict[int, Node] = {}
        for n in results:
            known = first.setdefault(n.spec.attrs[0], n)
            if known is not n:
                self.same[n] = known

    def _drafts(self, step: Step) -> list[Any]:
        if step.group is None:
            assert step.node is not None  # noqa: S101  a step has one or the other
            return self._library(step)
        launch = launch_of(step.group, self.info)
        if step.write is not None:
            return self._write(step, step.write, launch)
        drafts = [self._fused(launch, list(launch.outputs))]
        for group in _by_size(step.finish, launch):
            parts, size = group[0]
            drafts.append(self._fused(finishing(group[1], parts, size, launch), group[1]))
        return drafts

    def _write(self, step: Step, node: Node, launch: FusedLaunch) -> list[Any]:
        before = [self._fused(copy_launch(node), [node])] if step.copies else []
        return [*before, self._fused(launch, [n for n in launch.outputs if n is not node])]

    def _fused(self, launch: FusedLaunch, outputs: list[Node]) -> tuple[Any, list[tuple[int, int]], list[int]]:
        slots = [-1 if b is STATUS else self.slot(b) for b in launch.buffers]
        makes = [(self.slot(n), _bytes(n)) for n in outputs]
        for at, (_, elements) in launch.partials.items():
            makes.append((slots[at], elements * ITEMSIZE[launch.kernel.buffers[at]]))
        position = self.position
        record = Fused(
            launch.kernel, tuple(slots), launch.kernel.status, launch.ints,
            tuple([position[n] for n in launch.scalars]),
            tuple([(at, self.leaves[n]) for at, n in launch.offsets]),
            tuple([(at, position[n]) for at, n in launch.starts]), (), (),
            {k: position[n] for k, n in launch.traced.items()},
        )  # fmt: skip
        made = {s for s, _ in makes}
        return record, makes, [s for s in slots if s >= 0 and s not in made]

    def _library(self, step: Step) -> list[Any]:
        node = step.node
        assert node is not None  # noqa: S101  a step has a group or a node
        if node.spec.op.kind == "reduce":
            return [self._fused(launch, list(launch.outputs)) for launch in product_launches(node, step.operands[0])]
        if node.spec.op.kind == "library":
            return [self._call(step, node)]
        if step.epilogue is not None:
            return [self._product(step, node, step.epilogue)]
        name = {"matmul": "matmul", "random": "random_bits", "scatter": "scatter_add"}[node.spec.op.kind]
        mode = node.spec.attrs[1:] if name == "scatter_add" else ()
        if mode:
            name = "scatter_reduce"
        if name == "random_bits" and name not in self.info.ops and "uint64" not in self.info.dtypes:
            raise UnsupportedOp(
                f"{self.info.device} cannot draw random numbers: its driver has neither the op random_bits nor uint64, "
                "from which the core would make it; draw on another device and move them with .to_device(...)"
            )
        if name not in self.info.ops:
            return [self._fused(library_launch(node, step.operands), [node])]
        out = Operand(self.slot(node), 0, node.aval.shape, shapes.strides(node.aval.shape), name_of(node.aval.dtype))
        ins = [self._operand(view) for view in step.operands]
        scalars: tuple[tuple[str, int], ...] = ()
        if name == "random_bits":
            scalars = (("key", self.position[node.parents[0]]), ("counter", self.position[node.parents[1]]))
        if name in ("scatter_add", "scatter_reduce"):
            ins.reverse()  # the driver takes row numbers first
        params = (("mode", mode[0]),) if mode else ()
        record = Library(name, (out,), tuple(ins), params, scalars, (), (), self.position[node])
        return [(record, [(out.slot, _bytes(node))], [o.slot for o in ins])]

    def _product(self, step: Step, node: Node, epilogue: Epilogue) -> Any:
        """Return the draft of a product that ends with a sum."""
        result, shape = epilogue.result, node.aval.shape
        out = Operand(self.slot(result), 0, shape, shapes.strides(shape), name_of(result.aval.dtype))
        ins = tuple(self._operand(view) for view in (*step.operands, epilogue.addend))
        params = (("activation", epilogue.activation),) if epilogue.activation else ()
        record = Library("matmul_add", (out,), ins, params, (), (), (), self.position[node])
        return record, [(out.slot, _bytes(result))], [o.slot for o in ins]

    def _call(self, step: Step, node: Node) -> Any:
        """Return the draft of a declared library op; a result that nobody wants gets memory for the launch alone."""
        op, attrs = node.spec.op, node.spec.attrs[1:]
        assert op.results is not None, op.name  # noqa: S101  a broken declaration, not a user's mistake
        wanted = {n.spec.attrs[0]: n for n in reversed(step.outputs) if n.spec.op is op}
        elsewhere = {n.spec.attrs[0]: place for n, place in step.places.items()}
        outs, sizes = [], {}
        for k, (shape, dtype) in enumerate(op.results(*[p.aval for p in node.parents], *attrs)):
            if k in elsewhere:
                array, offset, strides = elsewhere[k]
                slot, size = self.slot(array), _bytes(array)
            else:
                slot, offset, strides = self.slot(wanted.get(k, (node, k))), 0, shapes.strides(shape)
                size = shapes.size(shape) * dtype.itemsize
            outs.append(Operand(slot, offset, shape, strides, name_of(dtype)))
            sizes[slot] = size
        params = tuple(op.params(*attrs).items()) if op.params else ()
        ins = tuple(self._operand(view) for view in step.operands)
        record = Library(op.call, tuple(outs), ins, params, (), (), (), self.position[node])
        return record, list(sizes.items()), [o.slot for o in ins]

    def _operand(self, view: View) -> Operand:
        base, shape, strides, offset = view
        return Operand(self.slot(base), offset, shape, strides, name_of(base.aval.dtype))

    def _lifetimes(self, drafts: list[Any], keep: set[int]) -> list[Fused | Library | Many]:
        """Say where memory begins and ends: a slot that is made again has none between its last reader and that."""
        fresh = {slot for _, makes, _ in drafts for slot, _ in makes}
        ahead = set(keep)  # slots that are read later on, before they are made again
        finished: list[Fused | Library | Many] = []
        for record, makes, reads in drafts[::-1]:
            ends = []
            made = [slot for slot, _ in makes]
            for slot in (*reads, *made):
                if slot not in ahead and slot in fresh:
                    ends.append(slot)
                    ahead.add(slot)
            for slot in made:
                if slot not in reads:
                    ahead.discard(slot)
            if type(record) is Many:
                finished.append(record._replace(allocate=tuple(makes), release=tuple(ends)))
            else:  # quicker
                *head, _, _, traced = record
                finished.append(type(record)(*head, tuple(makes), tuple(ends), traced))
        return finished[::-1]


def _bytes(node: Node) -> int:
    return node.aval.size * node.aval.dtype.itemsize


def _by_size(nodes: list[Node], launch: FusedLaunch) -> list[tuple[tuple[int, int], list[Node]]]:
    """Group the sums to be finished by their layout, so that one launch finishes all of one layout."""
    found: dict[tuple[int, int], list[Node]] = {}
    for at, (node, elements) in launch.partials.items():
        parts = launch.buffers[at][1]
        if node in nodes:
            found.setdefault((parts, elements // parts), []).append(node)
    return list(found.items())
