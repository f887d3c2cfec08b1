"""What a realize would launch, for people.

Here: `explain_nodes`.
Not here: times (the tracer) and counts (`counting.py`).
"""

from polygrad.driver.ir import ITEMSIZE
from polygrad.driver.show import show
from polygrad.graph.node import Node
from polygrad.runtime.devices import state
from polygrad.runtime.structure import Structure
from polygrad.schedule import Fused, Library, plan


def explain_nodes(nodes: list[Node]) -> str:
    """Return the launches that computing *nodes* takes, one paragraph each."""
    pending = [n for n in nodes if n.storage is None and n.aval.size]
    if not pending:
        return "nothing to launch: the values are there"
    lines: list[str] = []
    for device in dict.fromkeys(n.device for n in pending):
        assert device is not None  # noqa: S101  arrays always have a device
        asked = [n for n in pending if n.device == device]
        graph = Structure(asked)
        made = plan(graph.order, list(graph.leaves), asked, graph.offered(), graph.retained(), state(device).info)
        lines.append(f"{device}: {len(made.steps)} launches" if len(made.steps) != 1 else f"{device}: 1 launch")
        for k, step in enumerate(made.steps, 1):
            lines.append(f"{k}. " + (_fused(step) if isinstance(step, Fused) else _library(step)))
    return "\n".join(lines)


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


def _library(step: Library) -> str:
    operands = " and ".join(f"{o.dtype}{list(o.shape)}" for o in step.ins)
    return (
        f"{step.op}" + (f" of {operands}" if operands else "") + f" to {step.outs[0].dtype}{list(step.outs[0].shape)}"
    )


def _indent(text: str) -> str:
    return "\n".join("   " + line for line in text.splitlines())
