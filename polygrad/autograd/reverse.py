"""Reverse mode: one backward sweep, as a function from graph to graph.

Here: `sweep`, which walks nodes from the outputs to what is watched and applies the table's vjp rules; the result is
more graph.
Not here: the rule of any op, any value, any device; whose `.grad` receives what, which the array layer decides.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from operator import attrgetter

from polygrad.autograd.selection import SELECTING, Chosen, Gradient, carries, select, settled
from polygrad.errors import GradError
from polygrad.graph.functions import F
from polygrad.graph.node import RECORDING, Node, Pair, doubtful, parts, watches
from polygrad.graph.quiet import quiet
from polygrad.ops.table import Rule

LONG = 1000  # nodes of a sweep from which the garbage collector's looking takes a part of the time worth speaking of


class Call:
    """A function whose derivative somebody has written: the nodes of its outputs share one Call, kept in their `leaf`.

    `vjp` takes one cotangent node for each output (None where none arrived) and returns one for each input. `jvp` takes
    one tangent for each input (None where it does not move) and returns one for each output; where it is None, forward
    mode transposes `vjp`.
    """

    __slots__ = ("count", "inputs", "jvp", "vjp")

    def __init__(
        self,
        inputs: tuple[Node, ...],
        count: int,
        vjp: Callable[[list[Node | None]], Iterable[Node | None]],
        jvp: Callable[[list[Node | None]], list[Node | None]] | None = None,
    ) -> None:
        self.inputs = inputs
        self.count = count
        self.vjp = vjp
        self.jvp = jvp


_number = attrgetter("number")
Observer = Callable[[Node, Node], None]
# Called with (node, part): what a node's rule has given for an operand.
Inspector = Callable[[Node, Node], None]


def gradient_of(found: Mapping[Node, Node], node: Node) -> Node | None:
    """Return what a sweep or a push has found for *node*; for a complex one, what it has found for its parts."""
    if type(node) is not Pair:
        return found.get(node)
    re, im = (found.get(p) for p in node.parents)
    if re is None and im is None:
        return None
    out: Node = F.pair_(
        *[F.zeros_like(F.cut(p)) if g is None else g for p, g in zip(node.parents, (re, im), strict=True)]
    )
    out.device = out.device or node.device
    return out


def sweep(
    seeds: list[tuple[Node, Node]],
    mask: int,
    observer: Observer | None = None,
    inspector: Inspector | None = None,
    ends: Collection[Node] = (),
    order: list[Node] | None = None,
) -> tuple[dict[Node, Node], list[Node]]:
    """Return the gradients of what *mask* watches, and the nodes passed on the way.

    Parameters
    ----------
    seeds : list of (output, cotangent)
        Where to start; an output may come several times. A complex output has a complex cotangent.
    mask : int
        The bits of the recording: only nodes that carry one of them are visited.
    observer : callable, optional
        Called with (node, gradient) for each node that a gradient arrives at.
    inspector : callable, optional
        Called with (node, part) for each gradient that a node's rule gives for one of its operands.
    ends : collection of Node
        Nodes that count as leaves whatever they were computed from.
    order : list of Node, optional
        What `watched` gives for all this, if it has been asked.

    Returns
    -------
    gradients : dict
        From each watched leaf to its gradient; `gradient_of` reads it for complex ones, whose parts are the leaves.
    passed : list of Node
        The nodes between, outputs first.

    Raises
    ------
    GradError
        If the sweep needs a node that an earlier backward has used up.
    """
    # Slopes of complex functions are made once within a sweep, for the real and imaginary parts alike.
    before, RECORDING.slopes = RECORDING.slopes, {}
    try:
        ends = frozenset(p for n in ends for p in parts(n)) if ends else ends
        if order is not None and len(order) > LONG and Call not in {n.leaf.__class__ for n in order}:
            with quiet():  # all nodes that are made live until it ends; rules that somebody has written may make more
                return _sweep(seeds, mask, observer, inspector, ends, order)
        return _sweep(seeds, mask, observer, inspector, ends, order)
    finally:
        RECORDING.slopes = before


def _sweep(
    seeds: list[tuple[Node, Node]],
    mask: int,
    observer: Observer | None,
    inspector: Inspector | None,
    ends: Collection[Node],
    order: list[Node] | None,
) -> tuple[dict[Node, Node], list[Node]]:
    arrived: dict[Node, Gradient] = {}
    for node, cotangent in seeds:
        for part, found in zip(parts(node), parts(cotangent), strict=True):
            _add(arrived, part, found)
    if order is None:
        order = watched(list(arrived), mask, ends)
    leaves: dict[Node, Node] = {}
    passed: list[Node] = []
    calls: dict[Call, list[Node | None]] = {}
    for node in order:
        if calls:
            _finish_calls(calls, node, mask, arrived)
        incoming = arrived.pop(node, None)
        if incoming is None:
            continue
        goes_on = not isinstance(node.leaf, Call) and _depends(node, mask) and node not in ends
        gradient = incoming if goes_on and carries(node) else settled(incoming)
        if gradient.device is None:  # made of host scalars alone, or of no elements
            gradient.device = node.device
        if observer is not None:
            observer(node, settled(gradient))
        if goes_on:
            passed.append(node)
            _propagate(node, gradient, mask, arrived, inspector)
        elif isinstance(node.leaf, Call) and node not in ends:
            passed.append(node)
            calls.setdefault(node.leaf, [None] * node.leaf.count)[node.spec.attrs[0]] = settled(gradient)
        else:
            _arrive(node, settled(gradient), leaves, ends)
    if calls:
        _finish_calls(calls, None, mask, arrived)
        # What the last calls handed to leaves was not yet visited: leaves come before every call in number.
        for node in order:
            if node in arrived:
                leaves[node] = settled(arrived.pop(node))
                leaves[node].device = leaves[node].device or node.device
    return leaves, passed


def _depends(node: Node, mask: int) -> bool:
    """Whether an operand carries a bit of *mask*."""
    found = 0
    for p in node.parents:  # no generator, for it is asked of every node
        found |= p.mask
    return bool(found & mask)


def _arrive(node: Node, gradient: Node, leaves: dict[Node, Node], ends: Collection[Node]) -> None:
    if node.spent and node not in ends:
        raise _spent(node)
    leaves[node] = gradient


def watched(outputs: list[Node], mask: int, ends: Collection[Node] = ()) -> list[Node]:
    """Return the nodes under *outputs*, no further than *ends*, that carry *mask*, consumers first."""
    sure = not doubtful(mask)
    seen: set[Node] = set()
    stack = [n for n in outputs if watches(mask, n)]
    while stack:
        n = stack.pop()
        if n in seen:
            continue
        seen.add(n)
        if n.spent:
            raise _spent(n)
        if n not in ends:
            for p in n.parents:
                if p.mask & mask and p not in seen and (sure or watches(mask, p)):
                    stack.append(p)
    return sorted(seen, key=_number, reverse=True)


def _spent(node: Node) -> GradError:
    return GradError(
        f"cannot go backward through {node.spec.op.name.rstrip('_')} a second time: the first backward has "
        "freed its graph; "
        f"call that one with retain_graph=True"
    )


def _propagate(
    node: Node, gradient: Gradient, mask: int, arrived: dict[Node, Gradient], inspector: Inspector | None
) -> None:
    op, parents, attrs = node.spec.op, node.parents, node.spec.attrs or ()
    plain = type(gradient) is not Chosen and op.name not in SELECTING
    for k, (p, rule) in enumerate(zip(parents, op.vjp or (), strict=False)):
        if rule is None or not p.mask & mask:
            continue
        part = rule(F, gradient, node, *parents, *attrs) if plain else _part(node, gradient, k, rule)
        if part.aval is not p.aval and part.aval.shape != p.aval.shape:
            part = F.sum_to(settled(part), p.aval.shape)
        if inspector is not None:
            inspector(node, settled(part))
        _add(arrived, p, part)


def _part(node: Node, gradient: Gradient, k: int, rule: Rule) -> Gradient:
    """Return what a selection, or a node behind one, gives operand *k* of a gradient that has arrived."""
    parents, attrs = node.parents, node.spec.attrs or ()
    chosen = gradient if type(gradient) is Chosen else None
    if node.spec.op.name == "where":
        return select(gradient, parents[0], k == 1)
    if node.spec.op.name == "relu":
        return select(gradient, F.less_equal(node, 0), taken=False)
    assert chosen is not None  # noqa: S101  the caller has applied the rule to any other
    return chosen.through(node, rule(F, chosen.gradient, node, *parents, *attrs), rule)


def _add(arrived: dict[Node, Gradient], node: Node, part: Gradient) -> None:
    have = arrived.get(node)
    arrived[node] = part if have is None else F.add(settled(have), settled(part))


def _finish_calls(
    calls: dict[Call, list[Node | None]], following: Node | None, mask: int, arrived: dict[Node, Gradient]
) -> None:
    """Run the calls all of whose outputs have been visited: their nodes were made one after the other."""
    for call in [c for c in calls if following is None or following.leaf is not c]:
        cotangents = calls.pop(call)
        for p, part in zip(call.inputs, call.vjp(cotangents), strict=True):
            if part is not None and p.mask & mask:
                _add(arrived, p, part if part.aval.shape == p.aval.shape else F.sum_to(part, p.aval.shape))


def spend(passed: list[Node]) -> None:
    """Free the graph that a backward has used: the nodes are not differentiated again and let go of their operands."""
    for node in passed:
        node.spent = True
        if node.storage is not None:
            node.parents = ()
            node.leaf = None
