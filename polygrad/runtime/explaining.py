"""What a realize would launch, for people.

Here: `explain_nodes`.
Not here: times (the tracer) and counts (`counting.py`).
"""

from polygrad import shapes
from polygrad.driver.ir import ITEMSIZE
from polygrad.driver.show import show
from polygrad.graph.node import RECORDING, Node, apply, parts
from polygrad.ops.elementwise import astype
from polygrad.runtime.devices import state
from polygrad.runtime.memory import Storage
from polygrad.runtime.realize import strided
from polygrad.runtime.structure import Structure
from polygrad.schedule import Fused, Library, plan


def explain_nodes(nodes: list[Node]) -> str:
    """Return the launches that computing *nodes* takes, one paragraph each."""
    pending = [p for n in nodes for p in parts(n) if p.storage is None and p.aval.size]
    if not pending:
        return "nothing to launch: the values are there"
    lines: list[str] = []
    for device in dict.fromkeys(n.device for n in pending):
        assert device is not None  # noqa: S101  arrays always have a device
        steps = _steps(device, [n for n in pending if n.device == device])
        lines.append(f"{device}: {len(steps)} launches" if len(steps) != 1 else f"{device}: 1 launch")
        for k, step in enumerate(steps, 1):
            lines.append(f"{k}. " + (_fused(step) if isinstance(step, Fused) else _library(step, device)))
    return "\n".join(lines)


def _steps(device: str, asked: list[Node]) -> list[Fused | Library]:
    """Return the launches that `realize` would make, the copies that it makes of strided memory among them."""
    found = state(device)
    with found.lock:  # so that nobody sees the layouts that are borrowed below
        copied = strided(Structure(asked).order)  # a list that is kept would count as holding every node
        steps = [step for p in copied for step in _planned(device, [_copy(p)])]
        before = [p.storage for p in copied]
        try:
            for p, storage in zip(copied, before, strict=True):
                p.storage = Storage(storage.buffer, 0, shapes.strides(p.aval.shape), True)
            return steps + _planned(device, asked)
        finally:
            for p, storage in zip(copied, before, strict=True):
                p.storage = storage


def _copy(node: Node) -> Node:
    """Return a node that is a copy of *node*, as `transfer.contiguous` makes it."""
    before, RECORDING.enabled = RECORDING.enabled, False
    try:
        return apply(astype, (node,), (node.dtype,))
    finally:
        RECORDING.enabled = before


def _planned(device: str, asked: list[Node]) -> list[Fused | Library]:
    graph = Structure(asked)
    held = graph.offered(), graph.retained()
    made = plan(graph.order, list(graph.leaves), asked, *held, state(device).info, graph.claims())
    return list(made.steps)


def _fused(step: Fused) -> str:
    kernel = step.kernel
    extents = step.ints[: kernel.rank]
    rows, columns = list(extents[: kernel.parallel]), list(extents[kernel.parallel :])
    read, written = _traffic(step)
    head = f"fused kernel over {rows}" + (f", reducing {columns}" if columns else "")
    return f"{head}: reads {read:,} bytes, writes {written:,} bytes\n" + _indent(
        show(kernel, (*step.ints, 0) if kernel.status >= 0 else step.ints)
    )


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


def _library(step: Library, device: str) -> str:
    operands, results = (" and ".join(f"{o.dtype}{list(o.shape)}" for o in ends) for ends in (step.ins, step.outs))
    text = step.op + (f" of {operands}" if operands else "") + f" to {results}"
    lacking = step.op not in state(device).info.ops
    return text + ", which the driver lacks: made of other launches, or borrowed from the host" if lacking else text


def _indent(text: str) -> str:
    return "\n".join("   " + line for line in text.splitlines())
