"""Matrix products that end with a sum: what is added, and a relu behind it, becomes part of the product's launch.

Here: `joined`, a pass over the ordered steps of a plan. It finds kernels that do nothing but add a vector, or an array
of the product's own size, to a product that nobody else reads: layers with a bias, sums of two products, gradients that
are added to earlier ones. The device offers `matmul_add`; the product is then never in memory without its addend.
Not here: sums that go on in the same kernel, such as a residual that a norm reads at once: they cost no pass of their
own.
"""

import math
from collections.abc import Collection, Mapping
from typing import NamedTuple

from polygrad import dtypes, shapes
from polygrad.driver.types import DeviceInfo
from polygrad.graph.node import Node
from polygrad.schedule.group import Demand
from polygrad.schedule.index import Expr, address, settle, settle_map
from polygrad.schedule.ordering import Epilogue, Step
from polygrad.schedule.views import View


class _Sum(NamedTuple):
    """What a kernel stores that does nothing but add two arrays."""

    result: Node
    place: Expr  # of an element of the result
    terms: tuple[Demand, Demand]
    activation: str


def joined(steps: list[Step], info: DeviceInfo, kept: Collection[Node]) -> list[Step]:
    """Return *steps* with the sums that products can end with as part of these.

    Parameters
    ----------
    steps : list of Step
        In the order in which they run.
    info : DeviceInfo
        Of a device that may offer `matmul_add`.
    kept : collection of Node
        What stays in memory afterwards.
    """
    if not {"matmul", "matmul_add"} <= info.ops:
        return steps
    made = {n: k for k, step in enumerate(steps) for n in step.outputs}
    readers: dict[Node, set[int]] = {}
    for k, step in enumerate(steps):
        for n in step.inputs:
            readers.setdefault(n, set()).add(k)
    out: list[Step | None] = [*steps]
    for k, step in enumerate(steps):
        found = _sum(step)
        if found is None:
            continue
        free = [t for t in found.terms if _free(t, found, kept, readers) and out[made[_base(t)]] is not None]
        for term in sorted(free, key=lambda t: -made[_base(t)]):  # the later one of two products takes the other
            if _join(out, k, found, term, made):
                break
    return [step for step in out if step is not None]


def _sum(step: Step) -> _Sum | None:
    """Return what a step adds up, if it does that and nothing else."""
    group = step.group
    if group is None or group.reduced or group.partials or group.target is not None or len(group.stores) != 1:
        return None
    ((result, store),) = group.stores.items()
    demand, activation = _seen(store), ""
    if demand.how == "op" and demand.node.spec.op.name == "relu":
        demand, activation = _seen(demand.args[0]), "relu"
    if demand.how != "op" or demand.node.spec.op.name != "add":
        return None
    terms = [_seen(a) for a in demand.args]
    if any(t.how != "load" or t.windows for t in terms):
        return None
    first, second = (group.loaded(t) for t in terms)
    if any(_base(t).aval.dtype is not result.aval.dtype for t in (first, second)):
        return None
    place = address(settle_map(store.index), shapes.strides(result.aval.shape))
    return _Sum(result, place, (first, second), activation)


def _seen(demand: Demand) -> Demand:
    """Return the demand whose value this one has."""
    while demand.same is not None or demand.how == "alias":
        demand = demand.same if demand.same is not None else demand.args[0]
    return demand


def _base(load: Demand) -> Node:
    base: Node = load.extra[0]
    return base


def _place(load: Demand) -> Expr:
    """Return which element of memory a load reads."""
    base, flat = load.extra
    if flat is not None:
        return settle(flat)
    strides = base.storage.strides if base.storage is not None else shapes.strides(base.aval.shape)
    return address(settle_map(load.index), strides)


def _free(load: Demand, found: _Sum, kept: Collection[Node], readers: Mapping[Node, set[int]]) -> bool:
    """Whether a term is a product that this sum alone reads, element by element."""
    base = _base(load)
    return (
        base.storage is None
        and base.spec.op.kind == "matmul"
        and base.aval.dtype in dtypes.FLOATS
        and base not in kept
        and len(readers[base]) == 1
        and base.aval.size == found.result.aval.size  # all of it
        and _place(load) == found.place
    )


def _join(out: list[Step | None], k: int, found: _Sum, term: Demand, made: dict[Node, int]) -> bool:
    """Let the product *term* end with the sum of step *k*, if the other term is one that it can add."""
    product = _base(term)
    other = found.terms[0] if found.terms[1] is term else found.terms[1]
    view = _addend(other, found.place, product)
    step = out[made[product]]
    if view is None or _base(other) is product or step is None or step.epilogue is not None:
        return False
    at = made[product]
    late = view[0].storage is None and made[view[0]] > at  # what is added is not there before
    if late and any(s is not None and s.write is not None for s in out[at:k]):
        return False  # the operands' memory may be written over
    ended = Step(None, product)
    ended.operands, ended.outputs = step.operands, [found.result]
    ended.inputs = [*step.inputs, view[0]]
    ended.epilogue = Epilogue(found.result, view, found.activation)
    out[at] = out[k] = None
    at = k if late else at
    out[at] = ended
    made[found.result] = at
    return True


def _addend(load: Demand, place: Expr, product: Node) -> View | None:
    """Return what is added as a view of the product's shape: all of it, or one row for all of its rows."""
    base, own, shape = _base(load), _place(load), product.aval.shape
    if own.terms == place.terms:
        return base, shape, shapes.strides(shape), own.const
    along = tuple(t for t in place.terms if t[1] < shape[-1])  # of the last axis
    if own.terms != along or math.prod(axis.extent for axis, _ in along) != shape[-1]:
        return None
    return base, shape, (*(0,) * (len(shape) - 1), 1), own.const
