"""Results of one call that are joined along an axis: the call writes them side by side, and nobody copies them.

Here: `placed`, a pass over the steps of a plan, for devices with the feature `placed`. The gradients by queries, keys
and values go back through the product that made all three: padded with zeros and added up, which is a kernel that only
moves them.
Not here: how a device writes to strided memory.

A kernel that only joins reads results of one call, each in a window of its own; the windows lie side by side along one
axis and fill it. Zeros that are added to a result leave it as it is, but for the sign of its zeros.
"""

from collections.abc import Collection

from polygrad import shapes
from polygrad.graph.node import Node
from polygrad.schedule.group import Demand, Group
from polygrad.schedule.index import address, settle_map
from polygrad.schedule.ordering import Place, Step


def placed(steps: list[Step], kept: Collection[Node]) -> list[Step]:
    """Return *steps* without kernels that only join the results of one call; the calls' `places` say where they go.

    Parameters
    ----------
    steps : list of Step
        In any order; calls are changed in place.
    kept : collection of Node
        What has to be there afterwards.
    """
    calls = {n: step for step in steps if _places_results(step) for n in step.outputs}
    if not calls:
        return steps
    readers: dict[Node, int] = {}
    for step in steps:
        for n in step.inputs:
            readers[n] = readers.get(n, 0) + 1
    out = []
    for step in steps:
        found = _joined(step)
        call = calls.get(next(iter(found), step.outputs[0]))
        if found and call is not None and _alone(found, call, readers, kept):
            call.places = found
            call.outputs = [*[n for n in call.outputs if n not in found], *step.outputs]
        else:
            out.append(step)
    return out


def _places_results(step: Step) -> bool:
    return step.node is not None and step.node.spec.op.kind == "library" and step.node.spec.op.placed


def _alone(found: dict[Node, Place], call: Step, readers: dict[Node, int], kept: Collection[Node]) -> bool:
    """Whether one call makes all that is joined, and nobody else reads it."""
    numbers = [n.spec.attrs[0] for n in call.outputs]
    return not call.places and all(
        n in call.outputs and numbers.count(n.spec.attrs[0]) == 1 and readers[n] == 1 and n not in kept for n in found
    )


def _joined(step: Step) -> dict[Node, Place]:
    """Return the results that a kernel joins, and where; none if it does anything else."""
    group = step.group
    if group is None or group.target is not None or group.reduced or group.partials or len(group.stores) != 1:
        return {}
    if any(not _only_moves(d) for d in group.demands):
        return {}
    result, whole = next(iter(group.stores.items()))
    loads = [group.loaded(d) for d in group.demands if d.how == "load" and d.same is None]
    found = {}
    for d in loads:
        place = _place(group, d, result, whole)
        if place is None or d.extra[0] in found:
            return {}
        found[d.extra[0]] = place
    return found if len(found) > 1 and _fill(loads) else {}


def _only_moves(demand: Demand) -> bool:
    """Whether a demand adds what is padded with zeros, or is a step of that."""
    node, how = demand.node, demand.how
    if how == "pad":
        return bool(node.spec.attrs[2] == 0)
    return how in ("alias", "load") or (how == "op" and node.spec.op.name == "add")


def _place(group: Group, load: Demand, result: Node, whole: Demand) -> Place | None:
    """Return where a result that is read whole, in one window, lies in the array that is stored."""
    base, flat = load.extra
    if flat is not None or base.storage is not None or len(load.windows) != 1 or load.node is not base:
        return None
    group.settle()
    strides = shapes.strides(result.aval.shape)
    along = dict(address(settle_map(whole.index), strides).terms)
    axis, low, _ = load.windows[0]
    steps = []
    for expr, n in zip(settle_map(load.index), base.aval.shape, strict=True):
        if len(expr.terms) > 1 or any(c != 1 for _, c in expr.terms):
            return None
        own = expr.terms[0][0] if expr.terms else None
        if (own is None and n != 1) or expr.const != (-low if own is axis else 0):
            return None
        steps.append(along.get(own, 0) if own is not None else 0)
    if axis not in along:
        return None
    return result, low * along[axis], tuple(steps)


def _fill(loads: list[Demand]) -> bool:
    """Whether windows lie side by side along one axis, and fill it."""
    windows = sorted((low, high) for load in loads for _, low, high in load.windows)
    axes = {axis for load in loads for axis, _, _ in load.windows}
    ends = [0, *[high for _, high in windows]]
    return len(axes) == 1 and [low for low, _ in windows] == ends[:-1] and ends[-1] == next(iter(axes)).extent
