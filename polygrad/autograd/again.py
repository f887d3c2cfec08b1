"""Backward passes that were made before: of a graph of the same form the gradients are made again from a template.

Here: `sweep_again`, and the passes that are known.
Not here: the sweep itself (`reverse.py`), what a template is (`polygrad.graph.templates`).

The form of a graph is all that derivative rules see of it: ops, attributes, shapes, dtypes, the device, which operands
a recording watches, and the numbers among the operands. A pass is written down when its form comes a second time.
"""

from typing import Any

from polygrad.autograd.reverse import Call, sweep, watched
from polygrad.graph.asking import answers, looks
from polygrad.graph.node import RECORDING, Node, Pair, doubtful, newest
from polygrad.graph.templates import Template, template

SHORTEST = 8  # nodes: rules for fewer are asked in no more time
LONGEST = 4096  # nodes: a longer pass is made by its rules each time, so that forms take no memory to speak of
MOST = 64  # forms that are known at once


class _Pass:
    """A pass of one form: the gradients, and to which nodes they belong."""

    __slots__ = ("gradients", "leaves", "passed")

    def __init__(self, gradients: Template, leaves: list[int], passed: list[int]) -> None:
        self.gradients = gradients
        self.leaves = leaves
        self.passed = passed


_known: dict[Any, _Pass | bool | None] = {}  # False: seen once; None: no template


def sweep_again(output: Node, seed: Node, mask: int) -> tuple[dict[Node, Node], list[Node]]:
    """Return what ``sweep([(output, seed)], mask)`` does."""
    quiet = RECORDING.observer is None and RECORDING.capture is None and not (RECORDING.enabled or RECORDING.batches)
    if not quiet or type(output) is Pair or doubtful(mask):
        return sweep([(output, seed)], mask)
    order = watched([output], mask)
    found = _form(order, seed) if SHORTEST <= len(order) <= LONGEST and not _calls_library(order) else None
    if found is None:
        return sweep([(output, seed)], mask, order=order)
    key, operands, device = found
    known = _known.get(key, True)
    if type(known) is _Pass:
        made = known.gradients.make(operands, device)
        return dict(zip([order[k] for k in known.leaves], made, strict=True)), [order[k] for k in known.passed]
    start, looked = newest(), looks[0]
    leaves, passed = sweep([(output, seed)], mask, order=order)
    if known is True:
        for old in list(_known)[: max(0, len(_known) - MOST + 1)]:  # at once: other threads note theirs meanwhile
            _known.pop(old, None)
        _known[key] = False
    elif known is False:
        place = {n: k for k, n in enumerate(order)}
        made_of = template(list(leaves.values()), operands, start) if looks[0] == looked else None
        _known[key] = (
            None if made_of is None else _Pass(made_of, [place[n] for n in leaves], [place[n] for n in passed])
        )
    return leaves, passed


def _calls_library(order: list[Node]) -> bool:
    """Whether there are results of library ops, whose rules look for other results of the same calls."""
    return any([n.spec.op.kind == "library" for n in order])  # noqa: C419  a generator takes twice as long


def _form(order: list[Node], seed: Node) -> tuple[Any, list[Node], str] | None:
    """Return the form of what is differentiated, the nodes that its rules see, and the device; None if it has none."""
    device = order[0].device
    if (seed.parents[0] if seed.spec.op.kind == "expand" else seed).spec.op.kind != "scalar":
        return None  # a rule may look at how a gradient came about
    place = dict(zip(order, range(len(order)), strict=True))
    operands = [p for n in order for p in n.parents]
    places = list(map(place.get, operands))
    others: list[Any] = [device, answers[0]]
    for k, at in enumerate(places):
        if at is None:
            p = operands[k]
            found = place.get(p)
            if found is None:
                found = place[p] = len(place)
                others += _seen(p)
            places[k] = found
    others += (place.setdefault(seed, len(place)), *_seen(seed))
    nodes = list(place)
    devices = {p.device for p in nodes}
    devices.discard(None)  # of numbers
    if devices != {device} or Call in {n.leaf.__class__ for n in order}:
        return None
    if device is None:
        return None
    sigs, counts = [n.spec.sig for n in order], [len(n.parents) for n in order]
    return (tuple(sigs), tuple(counts), tuple(places), tuple(others)), nodes, device


def _seen(p: Node) -> tuple[Any, ...]:
    """Return what rules may see of an operand that no pass goes through; zeros differ by their sign."""
    value = p.value if p.spec.op.kind == "scalar" else None
    return (p.aval.ident, p.mask != 0, p.device is None, type(value), value or str(value))
