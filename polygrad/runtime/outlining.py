"""What a realize would launch, as data: for people who want to read or see it.

Here: `launches`, and the record `Launch`.
Not here: text (`explaining.py`), pictures (the array layer), times (the tracer), counts (`counting.py`).

Nothing is computed. Where launches follow each other because values go from one device to another, or because strided
memory is copied first, what the first would leave behind is lent to the graph while the next is planned.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from polygrad import shapes
from polygrad.driver.ir import ITEMSIZE
from polygrad.graph.node import RECORDING, Node, apply, parts
from polygrad.ops.elementwise import astype
from polygrad.runtime.devices import state
from polygrad.runtime.memory import Buffer, Storage
from polygrad.runtime.realize import crossings, strided
from polygrad.runtime.structure import Structure
from polygrad.schedule import Fused, Library, Many, Question, plan


class Launch(NamedTuple):
    """One launch.

    Attributes
    ----------
    device : str
        Where it runs.
    step : Fused, Library or None
        What the schedule says of it; None for a copy from another device.
    reads, writes : tuple of Node
        Values in memory. A kernel that leaves partial sums writes the node that they are of, and the one that adds
        them up reads it.
    members : tuple of Node
        What it computes on the way from the one to the other, operands first; `writes` is among them.
    traffic : tuple of two ints
        Bytes read and written if each element is moved once.
    """

    device: str
    step: Fused | Library | None
    reads: tuple[Node, ...]
    writes: tuple[Node, ...]
    members: tuple[Node, ...]
    traffic: tuple[int, int]


def launches(nodes: Sequence[Node]) -> list[Launch]:
    """Return the launches that computing *nodes* takes, in order."""
    pending = [p for n in nodes for p in parts(n) if p.storage is None and p.aval.size]
    transfers = crossings(pending)
    devices = {n.device for n in (*pending, *transfers, *[c.parents[0] for c in transfers])}
    made: list[Launch] = []
    with contextlib.ExitStack() as stack:
        for name in sorted(str(d) for d in devices):  # in one order, so that no two threads wait for each other
            stack.enter_context(state(name).lock)
        lent = stack.enter_context(_lending())
        for crossing in transfers:
            source = crossing.parents[0]
            if source.storage is None:
                made += _planned(str(source.device), [source], lent)
            made.append(_copy_between(source, crossing))
            lent(crossing)
        for device in dict.fromkeys(n.device for n in pending):
            asked = [n for n in pending if n.device == device and n.storage is None]
            if asked:
                made += _planned(str(device), asked, lent)
    return [_with_members(launch) for launch in made]


@contextlib.contextmanager
def _lending() -> Iterator[Any]:
    """Yield what gives a node memory that does not exist, until the block ends."""
    before: list[tuple[Node, Any]] = []

    def lend(node: Node) -> None:
        before.append((node, node.storage))
        node.storage = Storage(Buffer(None, None, 0, True), 0, shapes.strides(node.aval.shape), True)  # type: ignore[arg-type]  # of no pool

    try:
        yield lend
    finally:
        for node, storage in reversed(before):
            node.storage = storage


def _planned(device: str, asked: list[Node], lend: Any) -> list[Launch]:
    copied = strided(Structure(asked).order)  # the graph that is looked at must not stay: it counts as holding nodes
    made: list[Launch] = []
    for p in copied:
        copies = _made(device, [_copy(p)])
        made += [c._replace(reads=(p,)) for c in copies]
    for p in copied:
        lend(p)
    found = _made(device, asked)
    for n in asked:
        lend(n)
    return made + found


def _copy(node: Node) -> Node:
    """Return a node that is a copy of *node*, as `transfer.contiguous` makes it."""
    before, RECORDING.enabled = RECORDING.enabled, False
    try:
        return apply(astype, (node,), (node.dtype,))
    finally:
        RECORDING.enabled = before


def _made(device: str, asked: list[Node]) -> list[Launch]:
    graph = Structure(asked)
    asked = [*asked, *graph.history]
    held = graph.offered(), graph.retained()
    leaves = list(graph.leaves)
    made = plan(Question(graph.order, leaves, asked, *held, state(device).info, graph.claims()))
    values = dict(enumerate([*leaves, *graph.order]))
    steps = [one for step in made.steps for one in (step.launches if isinstance(step, Many) else (step,))]
    for step in steps:  # parts of sums have slots behind those of nodes: each is known by the sum beside it
        if isinstance(step, Fused):
            stored = _stored(step)
            for loose, whole in zip(step.slots[::2], step.slots[1::2], strict=False):
                if loose not in values and loose not in stored and whole in values:
                    values[loose] = values[whole]
    return [_launch(device, step, values) for step in steps]


def _stored(step: Fused) -> set[int]:
    """Return the slots that a kernel writes."""
    return {step.slots[step.kernel.views[s.view].buffer] for s in step.kernel.stores}


def _launch(device: str, step: Fused | Library, values: dict[int, Node]) -> Launch:
    if isinstance(step, Library):
        outs, ins = [o.slot for o in step.outs], [o.slot for o in step.ins]
        sizes = [shapes.size(o.shape) * ITEMSIZE[o.dtype] for o in (*step.ins, *step.outs)]
        traffic = sum(sizes[: len(ins)]), sum(sizes[len(ins) :])
    else:
        stored = _stored(step)
        outs, ins = list(stored), [s for k, s in enumerate(step.slots) if s not in stored and k != step.status]
        traffic = _traffic(step)
    reads, writes = (tuple(dict.fromkeys(values[s] for s in slots if s in values)) for slots in (ins, outs))
    # What reads memory that is no node's is a step of one node's own launches: it does not compute anything else.
    own = any(s not in values for s in ins)
    return Launch(device, step, reads, writes, writes if own else (), traffic)


def _traffic(step: Fused) -> tuple[int, int]:
    """Return the bytes read and written if each element is moved once."""
    kernel = step.kernel
    extents = step.ints[: kernel.rank]
    stored = {s.view for s in kernel.stores}
    read = written = 0
    for k, view in enumerate(kernel.views):
        count = 1
        for n, stride in zip(extents, view.strides, strict=True):
            count *= n if stride != 0 else 1
        nbytes = count * ITEMSIZE[view.dtype]
        if k in stored:
            written += nbytes
        else:
            read += nbytes
    return read, written


def _copy_between(source: Node, target: Node) -> Launch:
    nbytes = target.aval.size * target.aval.dtype.itemsize
    return Launch(str(target.device), None, (source,), (target,), (target,), (nbytes, nbytes))


def _with_members(launch: Launch) -> Launch:
    """Return a launch with the nodes between what it reads and what it writes."""
    if launch.members:
        return launch
    reads = set(launch.reads)
    seen: set[Node] = set()
    stack = [n for n in launch.writes if n not in reads]
    while stack:
        n = stack.pop()
        if n not in seen:
            seen.add(n)
            stack += [p for p in n.parents if p not in reads and p.storage is None]
    return launch._replace(members=tuple(sorted(seen, key=lambda n: n.number)))
