"""From nodes to values: the only place where the graph meets a device.

Here: `realize`. It walks the unrealized nodes, looks the structure up among the plans of the device, makes a plan if it
is new, and runs it.
Not here: what a plan consists of (`schedule`), what a launch does (the driver).
"""

import sys
from collections.abc import Callable, Iterable
from typing import Any

from polygrad import shapes
from polygrad.driver.types import Ref
from polygrad.errors import DTypeError
from polygrad.graph.node import Node
from polygrad.runtime.devices import State, check_alive, reopened, state, states
from polygrad.runtime.memory import Buffer, Storage
from polygrad.schedule import Fused, Library, Operand, Plan, plan

PLAN_LIMIT = 4096  # plans a device; the oldest go first
ALWAYS = 1  # the mask bit of requires_grad, whose recording never ends
_active = [ALWAYS]  # bits of the recordings that are in progress
_KEEPING = {"reduce", "matmul", "scatter", "random", "gather"}


def active_mask() -> int:
    """Return the bits of all recordings in progress."""
    return _active[0]


def set_active_mask(mask: int) -> None:
    """Say which recordings are in progress."""
    _active[0] = mask


def realize(nodes: Iterable[Node]) -> None:
    """Compute *nodes*; afterwards each has its storage.

    Raises
    ------
    OutOfMemory
        If the device has no room; nothing is changed then.
    """
    pending = [n for n in nodes if n.storage is None]
    if not pending:
        return
    if len(states()) > 1:
        _settle_transfers(pending)
    for name in dict.fromkeys(n.device for n in pending):
        assert name is not None  # noqa: S101  arrays always have a device
        found = state(name)
        with found.lock:
            _realize_on(found, [n for n in pending if n.device == name and n.storage is None])


def _realize_on(found: State, asked: list[Node]) -> None:
    for n in asked:
        if n.aval.size == 0:
            n.storage = Storage(None, 0, shapes.strides(n.aval.shape), True)
            _release(n)
    asked = [n for n in asked if n.storage is None]
    if not asked:
        return
    order, leaves = _walk(asked)
    if found.name in reopened:
        for leaf in leaves:
            check_alive(found, leaf.storage)
    offered, retained, flags = _held(order, asked)
    key = _key(order, leaves, flags)
    program = found.plans.get(key)
    if program is None:
        _check_dtypes(found, order)
        made = plan(order, list(leaves), asked, offered, retained, found.info)
        program = Program(found, made)
        if len(found.plans) >= PLAN_LIMIT:
            found.plans.pop(next(iter(found.plans)), None)
        found.plans[key] = program
    program.run(order, list(leaves))


def _settle_transfers(pending: list[Node]) -> None:
    """Bring operands from other devices before any device's lock is taken.

    Two threads may copy in opposite directions.
    """
    seen: set[Node] = set()
    transfers = []
    stack = list(pending)
    while stack:
        n = stack.pop()
        if n not in seen and n.storage is None:
            seen.add(n)
            stack += n.parents
            if n.spec.op.kind == "transfer":
                transfers.append(n)
    for n in sorted(transfers, key=_number):
        if n.storage is None:
            _transfer(n)


def _walk(asked: list[Node]) -> tuple[list[Node], dict[Node, int]]:
    """Return the unrealized nodes under *asked*, operands first, and the realized ones that they read, numbered."""
    seen: set[Node] = set()
    stack = list(asked)
    while stack:
        n = stack.pop()
        if n.storage is None and n not in seen:
            seen.add(n)
            stack += n.parents
    order = sorted(seen, key=_number)
    leaves: dict[Node, int] = {}
    for n in order:
        for p in n.parents:
            if p.storage is not None and p not in leaves:
                leaves[p] = len(leaves)
    return order, leaves


def _number(n: Node) -> int:
    return n.number


def _transfer(node: Node) -> None:
    from polygrad.runtime.transfer import copy_between  # noqa: PLC0415  the two modules need each other

    copy_between(node.parents[0], node)
    _release(node)


# What refers to a node during a walk beside its consumers: the order, the set, the position table, locals. Measured
# once, below.
_BASELINE = 0


def _uses(order: list[Node]) -> dict[Node, int]:
    """Return how often each node is an operand of another; a function of its own, so that no local outlives it."""
    uses = dict.fromkeys(order, 0)
    for n in order:
        for p in n.parents:
            if p in uses:
                uses[p] += 1
    return uses


def _held(order: list[Node], asked: list[Node]) -> tuple[set[Node], set[Node], list[int]]:
    """Return the costly nodes that are worth a store, all that a recording needs.

    And one flag a node for the plan's key.
    """
    uses = _uses(order)
    goal = set(asked)
    offered: set[Node] = set()
    retained: set[Node] = set()
    flags = []
    mask = _active[0]
    for n in order:
        flag = 4 if n in goal else 0
        if n.mask & mask and not n.spent:
            retained.add(n)
            flag |= 1
            if n.spec.op.kind in _KEEPING:
                offered.add(n)
        elif n.spec.op.kind in _KEEPING and sys.getrefcount(n) > _BASELINE + uses[n] and not flag:
            offered.add(n)
            flag |= 2
        flags.append(flag)
    return offered, retained, flags


def _calibrate() -> int:
    """Return how many references `_held` itself sees on a node that only its consumers refer to."""
    from polygrad import dtypes  # noqa: PLC0415  needed once
    from polygrad.graph.node import scalar  # noqa: PLC0415  as above

    node = scalar(0.0, dtypes.float64)
    order = sorted({node}, key=_number)
    uses = dict.fromkeys(order, 0)
    del node
    for n in order:
        if n in uses:
            return sys.getrefcount(n)
    raise AssertionError("unreachable")


def _key(order: list[Node], leaves: dict[Node, int], flags: list[int]) -> tuple[Any, ...]:
    """Return the structure of the graph: equal keys mean equal plans."""
    position = {n: k for k, n in enumerate(order)}
    out: list[Any] = []
    for n, flag in zip(order, flags, strict=True):
        out.append(n.spec.sig)
        out.append(flag)
        for p in n.parents:
            at = position.get(p)
            out.append(-1 - leaves[p] if at is None else at)
    for p in leaves:
        out.append(p.aval.ident)
        out.append(0 if p.storage.contiguous else p.storage.strides)
    return tuple(out)


def _check_dtypes(found: State, order: list[Node]) -> None:
    have = found.info.dtypes
    for n in order:
        name = n.aval.dtype.name
        if name not in have and n.spec.op.kind != "scalar":
            raise DTypeError(
                f"{found.name} has no {name}, which {n.spec.op.name} of shape {list(n.aval.shape)} needs; "
                f"it has {', '.join(sorted(have))}: convert with .astype(...)"
            )


def _release(n: Node) -> None:
    """Let a realized node go of its operands, unless a recording needs them."""
    n.depth = 0
    if not (n.mask & _active[0]) or n.spent:
        n.parents = ()


class Program:
    """A plan bound to a device: prepared kernels and the order of launches."""

    def __init__(self, found: State, made: Plan) -> None:
        self.state = found
        self.plan = made
        self.steps = [self._bind(s) for s in made.steps]
        self.fused = sum(isinstance(s, Fused) for s in made.steps)
        self.ops = len(made.steps) - self.fused

    def run(self, order: list[Node], leaves: list[Node]) -> None:
        """Launch everything and give the results their storage."""
        found, made = self.state, self.plan
        buffers: list[Buffer | None] = [None] * made.slots
        for k, n in enumerate(leaves):
            buffers[k] = n.storage.buffer
        moved = any(n.storage.offset for n in leaves)
        for step in self.steps:
            step(buffers, order, leaves, moved)
        found.fused += self.fused
        found.ops += self.ops
        for at, slot in made.results:
            n = order[at]
            n.storage = Storage(buffers[slot], 0, shapes.strides(n.aval.shape), True)
        for at, operand in made.views:
            n = order[at]
            offset = operand.offset + (leaves[operand.slot].storage.offset if operand.slot < len(leaves) else 0)
            n.storage = Storage(
                buffers[operand.slot], offset, operand.strides, operand.strides == shapes.strides(n.aval.shape)
            )
        for at, _ in (*made.results, *made.views):
            _release(order[at])

    def _bind(self, step: Fused | Library) -> Callable[..., None]:
        return self._bind_fused(step) if isinstance(step, Fused) else self._bind_library(step)

    def _bind_fused(self, step: Fused) -> Callable[..., None]:
        launch = self.state.device.prepare(step.kernel)
        allocate = self.state.pool.allocate
        slots, ints, scalars = step.slots, step.ints, step.scalars
        makes, ends = step.allocate, step.release

        def run(buffers: list[Any], order: list[Node], leaves: list[Node], moved: bool) -> None:
            for slot, nbytes in makes:
                buffers[slot] = allocate(nbytes)
            here = self._offset(step, leaves) if moved and step.offsets else ints
            values = [order[k].value for k in scalars]
            if step.status < 0:
                launch([buffers[s].handle for s in slots], here, values)
            else:
                status = self.state.status()
                tag = self.state.tag({k: _origin(order[at], k) for k, at in step.traced.items()})
                launch([buffers[s].handle if s >= 0 else status for s in slots], (*here, tag), values)
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
        allocate = self.state.pool.allocate

        def ref(operand: Operand, buffers: list[Any], leaves: list[Node]) -> Ref:
            base = leaves[operand.slot].storage.offset if operand.slot < len(leaves) else 0
            handle = buffers[operand.slot].handle
            return Ref(handle, operand.offset + base, operand.shape, operand.strides, operand.dtype)

        def run(buffers: list[Any], order: list[Node], leaves: list[Node], _moved: bool) -> None:
            for slot, nbytes in step.allocate:
                buffers[slot] = allocate(nbytes)
            attrs: dict[str, Any] = {name: order[k].value for name, k in step.scalars}
            if step.op == "scatter_add":
                node = order[step.traced]
                attrs["status"] = self.state.status()
                attrs["tag"] = self.state.tag({0: ("scatter", node.aval.shape[:1], node.trace)})
            if step.op == "matmul" and _precision[0] != "highest":
                attrs["precision"] = _precision[0]
            outs = [ref(o, buffers, leaves) for o in step.outs]
            if step.op == "random_bits":
                outs = [o._replace(shape=(shapes.size(o.shape),), strides=(1,)) for o in outs]
            device.launch_op(step.op, outs, [ref(o, buffers, leaves) for o in step.ins], attrs)
            for slot in step.release:
                buffers[slot] = None

        return run


_precision = ["highest"]


def set_matmul_precision(precision: str) -> None:
    """Say whether float32 matrix products may use a device's reduced-precision units ('tf32') or not ('highest')."""
    if precision not in ("highest", "tf32"):
        raise ValueError(f"matmul precision is 'highest' or 'tf32', got {precision!r}")
    _precision[0] = precision


def _origin(node: Node, _instruction: int) -> tuple[str, tuple[int, ...], Any]:
    """Return what an OutOfBounds says of a gather.

    Its verb, the sizes of the axes that are indexed, the user's line.
    """
    if node.spec.op.kind == "check":
        size, label = node.spec.attrs
        return ("take a label" if label else "index"), (size,), node.trace
    if node.spec.op.kind == "scatter":
        return "scatter", node.aval.shape[:1], node.trace
    source, planned = node.parents[0], node.spec.attrs[1]
    return "index", tuple([n for n, where in zip(source.aval.shape, planned, strict=True) if where < 0]), node.trace


_BASELINE = _calibrate()
