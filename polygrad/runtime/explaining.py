"""What a realize would launch, for people.

Here: `explain_nodes`.
Not here: which launches these are (`outlining.py`), times (the tracer) and counts (`counting.py`).
"""

from polygrad.driver.show import show
from polygrad.graph.node import Node
from polygrad.runtime.devices import state
from polygrad.runtime.outlining import Launch, launches
from polygrad.schedule import Fused, Library


def explain_nodes(nodes: list[Node]) -> str:
    """Return the launches that computing *nodes* takes, one paragraph each, those of one device together."""
    found = launches(nodes)
    if not found:
        return "nothing to launch: the values are there"
    lines: list[str] = []
    for device in dict.fromkeys(launch.device for launch in found):
        own = [launch for launch in found if launch.device == device]
        count = sum(launch.step is not None for launch in own)
        lines.append(f"{device}: {count} launches" if count != 1 else f"{device}: 1 launch")
        lines += [f"{k}. {_described(launch)}" for k, launch in enumerate(own, 1)]
    return "\n".join(lines)


def _described(launch: Launch) -> str:
    if launch.step is None:
        (source,) = launch.reads
        return f"copy of {source.aval!r} from {source.device}"
    return _fused(launch, launch.step) if isinstance(launch.step, Fused) else _library(launch.step, launch.device)


def _fused(launch: Launch, step: Fused) -> str:
    kernel = step.kernel
    extents = step.ints[: kernel.rank]
    rows, columns = list(extents[: kernel.parallel]), list(extents[kernel.parallel :])
    read, written = launch.traffic
    head = f"fused kernel over {rows}" + (f", reducing {columns}" if columns else "")
    return f"{head}: reads {read:,} bytes, writes {written:,} bytes\n" + _indent(
        show(kernel, (*step.ints, 0) if kernel.status >= 0 else step.ints)
    )


def _library(step: Library, device: str) -> str:
    operands, results = (" and ".join(f"{o.dtype}{list(o.shape)}" for o in ends) for ends in (step.ins, step.outs))
    text = step.op + (f" of {operands}" if operands else "") + f" to {results}"
    text += f", then {dict(step.params)['activation']}" if step.op == "matmul_add" and step.params else ""
    lacking = step.op not in state(device).info.ops
    return text + ", which the driver lacks: made of other launches, or borrowed from the host" if lacking else text


def _indent(text: str) -> str:
    return "\n".join("   " + line for line in text.splitlines())
