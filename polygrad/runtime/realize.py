"""From nodes to values: the only place where the graph meets a device.

Here: `realize`. It walks the unrealized nodes, looks the structure up among the plans of the device, makes a plan if it
is new, and runs it.
Not here: what a plan consists of (`schedule`), what a launch does (the driver).
"""

from collections.abc import Callable, Iterable
from typing import Any

from polygrad import shapes
from polygrad.driver.types import Ref
from polygrad.errors import CaptureError, DTypeError
from polygrad.graph.node import RECORDING, Node, Pair, describe, parts, watches
from polygrad.graph.templates import operands_of
from polygrad.runtime.devices import State, check_alive, reopened, state, states
from polygrad.runtime.folding import Folded, Standing
from polygrad.runtime.memory import Buffer, Storage, size_class
from polygrad.runtime.structure import Structure, active_mask
from polygrad.schedule import Fused, Library, Many, Operand, Plan, Question, plan
from polygrad.schedule.emit import block_of
from polygrad.schedule.fuse import PACKED
from polygrad.schedule.index import nests
from polygrad.schedule.looking import first_looks
from polygrad.schedule.steps import Step, slots_of
from polygrad.schedule.views import strides_do

# Ops that may use TF32.
PRECISE = frozenset({"matmul", "matmul_add", "convolution", "convolution_input", "convolution_weight"})
TUNED = frozenset({"matmul", "matmul_add"})  # ops of which a device may try several ways
CHECKED = frozenset({"scatter_add", "scatter_reduce"})  # ops that report indices which are out of bounds
PLAN_LIMIT = 4096  # plans a device; the oldest go first


Landed = Callable[[Node], None]


def realize(nodes: Iterable[Node], landed: Landed | None = None) -> None:
    """Compute *nodes*; afterwards each has its storage.

    Parameters
    ----------
    nodes : iterable of Node
        What to compute.
    landed : callable, optional
        Called with a node, asked for or not, once its storage is settled and all that gives it its value has been
        launched, while the rest is yet to be launched. It must not raise. Nodes of no elements, and some views, come
        without a call.

    Raises
    ------
    OutOfMemory
        If the device has no room; nothing is changed then.
    """
    pending = [n for n in nodes if n.storage is None]
    if not pending:
        return
    for n in pending:
        if type(n) is Pair:  # it has no memory of its own: its parts have
            pending = list(dict.fromkeys(p for n in pending for p in parts(n) if p.storage is None))
            break
    if len(states()) > 1:
        _settle_transfers(pending)
    for name in dict.fromkeys(n.device for n in pending):
        assert name is not None  # noqa: S101  arrays always have a device
        found = state(name)
        while True:
            with found.lock:
                lacking = _realize_on(found, [n for n in pending if n.device == name and n.storage is None], landed)
            if lacking is None:
                break
            from polygrad.runtime.lacking import stand_in  # noqa: PLC0415  built on this module

            stand_in(found, lacking)  # may go to another device: not with this one's lock


def _realize_on(found: State, asked: list[Node], landed: Landed | None = None) -> Node | None:
    """Compute *asked* on one device; or do nothing, and return a result of a library op that the device lacks."""
    for n in asked:
        if n.aval.size == 0:
            n.storage = Storage(None, 0, shapes.strides(n.aval.shape), True)
            release(n)
    asked = [n for n in asked if n.storage is None]
    if not asked:
        return None
    graph = Structure(asked, folded=RECORDING.capture is None and landed is None)
    asked += graph.history
    lacking = _lacking(found, graph)
    if lacking is not None:
        return lacking
    standing = None
    if graph.pieces:
        known = None if graph.writes else found.folded.get(graph.key)
        if known is not None and (program := known.program()) is not None:
            program.run(*known.nodes(graph))
            return None
        standing = None if graph.writes else Standing(graph)
        del graph  # it holds every node, and the next one counts who does
        graph = Structure(asked)
        asked += graph.history
    program = found.plans.get(_key(graph, landed))
    if program is None and _straighten(graph.order):
        del graph  # as above
        graph = Structure(asked)
        asked += graph.history
        program, standing = found.plans.get(_key(graph, landed)), None
    if program is None:
        program = _kept(found.plans, _key(graph, landed), _planned(found, graph, asked, landed))
    if standing is not None:
        known = Folded(program, standing, graph)
        if known.whole:
            _kept(found.folded, standing.key, known)
    program.run(graph.order, list(graph.leaves), landed)
    return None


def _key(graph: Structure, landed: Landed | None) -> Any:
    return graph.key if landed is None else (graph.key, "prompt")


def _kept(where: dict[Any, Any], key: Any, value: Any) -> Any:
    """Return *value*, kept under a key; the oldest goes where there are too many."""
    if len(where) >= PLAN_LIMIT:
        where.pop(next(iter(where)), None)
    where[key] = value
    return value


def _planned(found: State, graph: Structure, asked: list[Node], landed: Landed | None) -> "Program":
    """Return a new program for a graph."""
    _check_dtypes(found, graph.order)
    held = graph.offered(), graph.retained()
    leaves = list(graph.leaves)
    made = plan(Question(graph.order, leaves, asked, *held, found.info, graph.claims(), prompt=landed is not None))
    return Program(found, made, graph.order)


def _lacking(found: State, graph: Structure) -> Node | None:
    """Return a result of a library op that a device lacks, if there is one; refuse memory of its earlier life."""
    for n in graph.calls:
        if n.spec.op.call not in found.info.ops:
            return n
    if found.name in reopened:
        for leaf in graph.leaves:
            check_alive(found, leaf.storage)
    return None


def _straighten(order: list[Node]) -> bool:
    """Give strided operands contiguous memory where strides do not do; return whether there was one."""
    from polygrad.runtime.transfer import contiguous  # noqa: PLC0415  the two modules need each other

    found = strided(order)
    for p in found:
        p.storage = contiguous(p).storage
    return bool(found)


def strided(order: list[Node]) -> list[Node]:
    """Return the realized operands whose strides do not do: each is copied before *order* is planned.

    Scatters read in C order; so do reshapes whose axes do not nest in those of the operand.
    """
    found: dict[Node, None] = {}
    for n in order:
        kind = n.spec.op.kind
        if kind not in PACKED and kind != "reshape":
            continue
        for p in n.parents:
            if p.storage is None or p.storage.contiguous or (kind == "reshape" and nests(n.aval.shape, p.aval.shape)):
                continue
            if n.spec.op.strided and strides_do(p.aval.shape, p.storage.strides):
                continue
            found[p] = None
    return list(found)


def _settle_transfers(pending: list[Node]) -> None:
    """Bring operands from other devices before any device's lock is taken: two threads may copy in both directions."""
    for n in crossings(pending):
        if n.storage is None:
            _transfer(n)


def crossings(pending: list[Node]) -> list[Node]:
    """Return the unrealized copies between devices under *pending*, operands first."""
    found: list[Node] = []
    seen: set[Node] = set()
    stack = list(pending)
    while stack:
        n = stack.pop()
        if n not in seen and n.storage is None:
            seen.add(n)
            stack += operands_of(n)
            if n.spec.op.kind == "transfer":
                found.append(n)
    return sorted(found, key=lambda n: n.number)


def _transfer(node: Node) -> None:
    from polygrad.runtime.transfer import copy_between  # noqa: PLC0415  the two modules need each other

    copy_between(node.parents[0], node)
    release(node)


def _check_dtypes(found: State, order: list[Node]) -> None:
    have = found.info.dtypes
    for n in order:
        if n.spec.op.kind == "placeholder":
            raise CaptureError(
                f"cannot look at a value that pg.vmap maps over: {describe(n)} stands for all examples at once; choose "
                "by pg.where(...), or look at it outside of the mapped function"
            )
        name = n.aval.dtype.name
        if name not in have and n.spec.op.kind != "scalar":
            raise DTypeError(
                f"{found.name} has no {name}, which {n.spec.op.name} of shape {list(n.aval.shape)} needs; "
                f"it has {', '.join(sorted(have))}: convert with .astype(...)"
            )


def release(n: Node) -> None:
    """Let a realized node go of its operands, unless a recording needs them."""
    n.depth = 0
    if not watches(active_mask(), n) or n.spent:
        n.parents = ()


class Program:
    """A plan bound to a device: prepared kernels and the order of launches."""

    def __init__(self, found: State, made: Plan, order: list[Node]) -> None:
        self.state = found
        self.plan = made
        self.launches: list[Any] = []  # of the kernels, by step
        self.steps = [self._bind(s) for s in made.steps]
        self.looks = first_looks(made.steps, order)  # behind the last of these, nothing new is reported
        if self.looks and found.info.features.notices:
            last = max(self.looks)
            self.steps[last] = _marking(self.steps[last], found)
        self.fused = sum(not isinstance(s, Library) for s in made.steps)
        self.ops = len(made.steps) - self.fused
        self.results = [(at, slot, shapes.strides(order[at].aval.shape)) for at, slot in made.results]
        self._landings: list[list[int]] | None = None

    def run(self, order: list[Node], leaves: list[Node], landed: Landed | None = None) -> None:
        """Launch everything and give the results their storage; tell *landed* of each as soon as it has it."""
        found, made = self.state, self.plan
        buffers: list[Buffer | None] = [None] * made.slots
        for k, n in enumerate(leaves):
            buffers[k] = n.storage.buffer
        moved = any(n.storage.offset for n in leaves)
        written = None if RECORDING.capture is None else RECORDING.capture.begin(self, order, leaves)
        if made.taken:  # an array is overwritten: from here on nothing may go wrong
            for planned in made.steps:
                for slot, nbytes in planned.allocate:
                    buffers[slot] = found.pool.allocate(nbytes)
        if written is not None:
            written.launch(self.steps, buffers, moved)
        elif landed is None:
            for step in self.steps:
                step(buffers, order, leaves, moved)
        else:
            self._run_telling(buffers, order, leaves, landed)
        if self.looks:
            found.marked()  # by the last of them
        found.fused += self.fused
        found.ops += self.ops
        self._settle(buffers, order, leaves)
        if written is not None:
            written.end()
        for slot in made.taken:
            leaves[slot].storage = None
        for at, _ in (*made.results, *made.views):
            if order[at] is not None:
                release(order[at])

    def _settle(self, buffers: list[Buffer | None], order: list[Node], leaves: list[Node]) -> None:
        """Give the results that have none yet their storage; of a folded graph some may not be there."""
        for at, slot, strides in self.results:
            if order[at] is not None and order[at].storage is None:
                order[at].storage = Storage(buffers[slot], 0, strides, True)
        for at, operand in self.plan.views:
            n = order[at]
            if n.storage is None:
                offset = operand.offset + (leaves[operand.slot].storage.offset if operand.slot < len(leaves) else 0)
                n.storage = Storage(
                    buffers[operand.slot], offset, operand.strides, operand.strides == shapes.strides(n.aval.shape)
                )

    def _run_telling(self, buffers: list[Buffer | None], order: list[Node], leaves: list[Node], landed: Landed) -> None:
        if self._landings is None:
            self._landings = _landings(self.plan)
        moved = any(n.storage.offset for n in leaves)
        views = dict(self.plan.views)
        made = {at: (slot, strides) for at, slot, strides in self.results}
        for step, ready in zip(self.steps, self._landings, strict=True):
            step(buffers, order, leaves, moved)
            for at in ready:
                n, operand = order[at], views.get(at)
                if operand is None:
                    n.storage = Storage(buffers[made[at][0]], 0, made[at][1], True)
                else:
                    flat = operand.strides == shapes.strides(n.aval.shape)
                    n.storage = Storage(buffers[operand.slot], operand.offset, operand.strides, flat)
                landed(n)

    def _bind(self, step: Step) -> Callable[..., None]:
        if isinstance(step, Fused):
            return self._bind_fused(step)
        if isinstance(step, Many):
            return self._bind_many(step)
        self.launches.append(None)
        return self._bind_library(step)

    @staticmethod
    def origins(step: Fused, order: list[Node]) -> dict[int, Any]:
        """Return what the checked instructions of a kernel belong to, by instruction."""
        return {k: _origin(order[at]) for k, at in step.traced.items()}

    @staticmethod
    def library_call(
        step: Library, order: list[Node]
    ) -> tuple[tuple[Operand, ...], tuple[Operand, ...], dict[str, Any], dict[int, Any] | None]:
        """Return outputs, inputs and attributes of a library call, and of a checked one what it belongs to."""
        attrs: dict[str, Any] = dict(step.params)
        site = None
        if step.op in CHECKED:
            node = order[step.traced]
            site = {0: ("scatter", node.aval.shape[:1], node.trace)}
        if step.op in PRECISE and _precision[0] != "highest":
            attrs["precision"] = _precision[0]
        if _tuning[0] and step.op in TUNED:
            attrs["tune"] = True
        outs = step.outs
        if step.op == "random_bits":
            outs = tuple([o._replace(shape=(shapes.size(o.shape),), strides=(1,)) for o in outs])
        return outs, step.ins, attrs, site

    def _bind_fused(self, step: Fused) -> Callable[..., None]:
        launch = self.state.device.prepare(step.kernel)
        self.launches.append(launch)
        take = self.state.pool.take
        slots, ints, scalars = step.slots, step.ints, step.scalars
        makes = [(slot, size_class(nbytes), nbytes) for slot, nbytes in step.allocate]
        ends = step.release

        def run(buffers: list[Any], order: list[Node], leaves: list[Node], moved: bool) -> None:
            for slot, size, nbytes in makes:
                if buffers[slot] is None:
                    buffers[slot] = take(size, nbytes)
            here = self._offset(step, leaves) if moved and step.offsets else ints
            if step.starts:
                here = _placed(here, step, order)
            values = [order[k].value for k in scalars]
            if step.status < 0:
                launch([buffers[s].handle for s in slots], here, values)
            else:
                status = self.state.status()
                tag = self.state.tag(self.origins(step, order))
                launch([buffers[s].handle if s >= 0 else status for s in slots], (*here, tag), values)
            for slot in ends:
                buffers[slot] = None

        return run

    def _bind_many(self, step: Many) -> Callable[..., None]:
        launch = self.state.device.prepare_many(step.kernel)
        self.launches.append(launch)
        take = self.state.pool.take
        makes = [(slot, size_class(nbytes), nbytes) for slot, nbytes in step.allocate]
        each, ints, ends = step.launches, tuple([one.ints for one in step.launches]), step.release

        def run(buffers: list[Any], order: list[Node], leaves: list[Node], moved: bool) -> None:
            for slot, size, nbytes in makes:
                if buffers[slot] is None:
                    buffers[slot] = take(size, nbytes)
            here = tuple([self._offset(one, leaves) for one in each]) if moved else ints
            memory = [[buffers[s].handle for s in one.slots] for one in each]
            launch(memory, here, [[order[k].value for k in one.scalars] for one in each])
            for slot in ends:
                buffers[slot] = None

        return run

    @staticmethod
    def _offset(step: Fused, leaves: list[Node]) -> tuple[int, ...]:
        """Return the launch ints with the storage offsets of leaves that are views added."""
        ints = list(step.ints)
        for at, leaf in step.offsets:
            ints[at] += leaves[leaf].storage.offset
        return tuple(ints)

    def _bind_library(self, step: Library) -> Callable[..., None]:
        device = self.state.device
        take = self.state.pool.take
        makes = [(slot, size_class(nbytes), nbytes) for slot, nbytes in step.allocate]

        def ref(operand: Operand, buffers: list[Any], leaves: list[Node], moved: bool) -> Ref:
            slot, offset, shape, strides, dtype = operand
            if moved and slot < len(leaves):
                offset += leaves[slot].storage.offset
            return Ref(buffers[slot].handle, offset, shape, strides, dtype)

        def run(buffers: list[Any], order: list[Node], leaves: list[Node], moved: bool) -> None:
            for slot, size, nbytes in makes:
                if buffers[slot] is None:
                    buffers[slot] = take(size, nbytes)
            outs, ins, attrs, site = self.library_call(step, order)
            for name, k in step.scalars:
                attrs[name] = order[k].value
            if site is not None:
                attrs["status"], attrs["tag"] = self.state.status(), self.state.tag(site)
            results = [ref(o, buffers, leaves, moved) for o in outs]
            device.launch_op(step.op, results, [ref(o, buffers, leaves, moved) for o in ins], attrs)
            for slot in step.release:
                buffers[slot] = None

        return run


def _marking(step: Callable[..., None], found: State) -> Callable[..., None]:
    """Return a step that makes a mark after it, so that whoever asks for bad indices waits no longer than for it."""

    def run(buffers: list[Any], order: list[Node], leaves: list[Node], moved: bool) -> None:
        step(buffers, order, leaves, moved)
        found.mark()

    return run


def _landings(made: Plan) -> list[list[int]]:
    """Return for each step the results, as positions in the order, whose memory no later step reads or writes.

    Views of what was there before the plan, and of memory that it takes over, are in none of the lists.
    """
    last: dict[int, int] = {}
    for k, step in enumerate(made.steps):
        for slot in (*slots_of(step), *[slot for slot, _ in step.allocate]):
            last[slot] = k
    fresh = {slot for step in made.steps for slot, _ in step.allocate}
    out: list[list[int]] = [[] for _ in made.steps]
    for at, slot in (*made.results, *[(at, operand.slot) for at, operand in made.views]):
        if slot in fresh:
            out[last[slot]].append(at)
    return out


def _placed(ints: tuple[int, ...], step: Fused, order: list[Node]) -> tuple[int, ...]:
    """Return the launch ints with the places of writes added."""
    out = list(ints)
    for at, k in step.starts:
        out[at] += block_of(order[k])[1]
    return tuple(out)


_precision = ["highest"]


def set_matmul_precision(precision: str) -> None:
    """Say whether float32 matrix products may use a device's reduced-precision units ('tf32') or not ('highest')."""
    if precision not in ("highest", "tf32"):
        raise ValueError(f"matmul precision is 'highest' or 'tf32', got {precision!r}")
    _precision[0] = precision


_tuning = [False]


def set_matmul_tuning(on: bool = True) -> None:
    """Say whether a device may time several ways of a matrix product at its first use, and keep the fastest.

    Results then differ in their last bits between runs, as another way may win; by default they do not.
    """
    _tuning[0] = bool(on)


def matmul_tuning() -> bool:
    """Return what `set_matmul_tuning` was told last."""
    return _tuning[0]


def matmul_precision() -> str:
    """Return what `set_matmul_precision` was told last."""
    return _precision[0]


def _origin(node: Node) -> tuple[str, tuple[int, ...], Any]:
    """Return what an OutOfBounds says of a node: a verb, the sizes of the axes that are indexed, the user's line."""
    if node.spec.op.kind == "check":
        size, label = node.spec.attrs
        return ("take a label" if label else "index"), (size,), node.trace
    if node.spec.op.kind == "scatter":
        return "scatter", node.aval.shape[:1], node.trace
    source, planned = node.parents[0], node.spec.attrs[1]
    return "index", tuple([n for n, where in zip(source.aval.shape, planned, strict=True) if where < 0]), node.trace
