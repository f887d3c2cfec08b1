"""Which launches of a plan are the first to look at an index; all others would report what was reported already.

Here: `first_looks`.
Not here: how a bad index is reported (`polygrad.driver.ir`), who waits for which launch (the runtime).

The gradient of a lookup scatters to the rows that the lookup has read, at the very end of a step; a label is looked at
again where its gradient is computed. If these indices are bad, an earlier launch has said so.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from polygrad import dtypes
from polygrad.driver.ir import Kernel
from polygrad.driver.launch import Launch, decode
from polygrad.graph.node import Node
from polygrad.schedule.steps import Fused, Library, Step

SAME = frozenset({"reshape", "alias", "expand", "permute", "check"})  # kinds of nodes that have their operand's indices


class _Look(NamedTuple):
    """Indices that are looked at, and of how many rows they may be; negative ones too, unless they are labels."""

    of: Node
    size: int
    label: bool


def first_looks(steps: Sequence[Step], order: Sequence[Node]) -> frozenset[int]:
    """Return the steps that may report an index that no earlier step has reported.

    Parameters
    ----------
    steps : sequence of Fused, Library and Many
    order : sequence of Node
        The nodes that these make, before they are realized.
    """
    known: set[_Look] = set()
    first: set[int] = set()
    for k, step in enumerate(steps):
        if isinstance(step, Fused) and step.status >= 0:
            launch = decode(step.kernel, (*step.ints, 1))
            found = [(at, look) for at, n in step.traced.items() for look in _looks(order[n])]
            if not found or any(not _is_known(look, known) for _, look in found):
                first.add(k)
            known |= {look for at, look in found if look and _looks_at_all(step.kernel, launch, at, look.of)}
        elif isinstance(step, Library) and step.op in ("scatter_add", "scatter_reduce"):
            node = order[step.traced]
            if not _is_known(_Look(_bare(node.parents[1]), node.aval.shape[0], False), known):
                first.add(k)
    return frozenset(first)


def _is_known(look: _Look | None, known: set[_Look]) -> bool:
    return look is not None and (look in known or look._replace(label=True) in known)


def _looks(node: Node) -> Iterator[_Look | None]:
    """Give what a node looks at; None if that cannot be told."""
    if node.spec.op.kind == "check":
        size, label = node.spec.attrs
        yield _Look(_bare(node.parents[0]), size, bool(label))
        return
    if node.spec.op.kind != "gather":  # a scatter, where the device has no op for it
        yield None
        return
    source, *indices = node.parents
    planned: Any = node.spec.attrs[1]
    axes = [n for n, where in zip(source.aval.shape, planned, strict=True) if where < 0]
    yield _Look(_bare(indices[0]), axes[0], False) if len(indices) == len(axes) == 1 else None


def _bare(index: Node) -> Node:
    """Return the node whose numbers an index has, in some order, each at least once."""
    while index.storage is None and index.parents:
        kind, source = index.spec.op.kind, index.parents[0]
        wider = kind == "cast" and index.dtype == dtypes.int64 and source.dtype.kind == "i"
        if kind not in SAME and not wider:
            break
        index = source
    return index


def _looks_at_all(kernel: Kernel, launch: Launch, at: int, index: Node) -> bool:
    """Whether a load that gathers looks at every element of an index: nothing keeps it from being made anywhere."""
    load = kernel.body[at]
    if load.guard >= 0 or kernel.views[load.attr].window:
        return False
    waiting, seen, sources = list(load.args), set(), set()
    while waiting:
        number = waiting.pop()
        if number in seen:  # values that are used twice again and again have too many paths to walk each
            continue
        seen.add(number)
        instr = kernel.body[number]
        if instr.op == "load" and kernel.views[instr.attr].gathers == 0:
            sources.add(instr.attr)
            if instr.guard >= 0 or kernel.views[instr.attr].window:
                return False
        waiting += [] if instr.op == "reduce" else instr.args
    if len(sources) != 1:
        return False
    strides = launch.views[sources.pop()].strides
    moves = sorted((abs(s), n) for s, n in zip(strides, launch.extents, strict=True) if s)
    reach, count = 0, 1
    for stride, extent in moves:
        if stride <= reach:
            return False
        reach += stride * (extent - 1)
        count *= extent
    return count == index.aval.size
