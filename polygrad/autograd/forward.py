"""Forward mode: tangents pushed along the graph, by the table's jvp rules.

Here: `push`, from graph to graph.
Not here: reverse mode, any value.
"""

from polygrad.autograd.reverse import Call, gradient_of, sweep
from polygrad.graph.functions import F
from polygrad.graph.node import RECORDING, Node, parts, watches


def push(leaves: dict[Node, Node], outputs: list[Node], mask: int) -> list[Node | None]:
    """Return the tangents of *outputs*, given those of *leaves*; None where an output does not depend on them.

    Parameters
    ----------
    leaves : dict
        From watched leaf to tangent, of the same shape; from a complex one to a complex tangent.
    outputs : list of Node
    mask : int
        The bit of the recording that watches the leaves.
    """
    tangents: dict[Node, Node] = {}
    for leaf, tangent in leaves.items():
        tangents.update(zip(parts(leaf), parts(tangent), strict=True))
    before, RECORDING.slopes = RECORDING.slopes, {}
    try:
        _push(tangents, [p for n in outputs for p in parts(n)], mask)
    finally:
        RECORDING.slopes = before
    return [gradient_of(tangents, n) for n in outputs]


def _push(tangents: dict[Node, Node], outputs: list[Node], mask: int) -> None:
    written: dict[Call, list[Node | None]] = {}
    for node in _between(outputs, mask):
        if node not in tangents:
            call = node.leaf
            if not isinstance(call, Call):
                tangent = _of_op(node, tangents)
            elif call.jvp is None:
                tangent = _of_call(node, tangents, mask)
            else:
                if call not in written:
                    written[call] = _by_rule(call, tangents)
                tangent = written[call][node.spec.attrs[0]]
            if tangent is not None:
                tangents[node] = tangent


def _between(outputs: list[Node], mask: int) -> list[Node]:
    seen: set[Node] = set()
    stack = [n for n in outputs if watches(mask, n)]
    while stack:
        n = stack.pop()
        if n not in seen:
            seen.add(n)
            stack += [p for p in n.parents if p.mask and watches(mask, p)]
    return sorted(seen, key=lambda n: n.number)


def _of_op(node: Node, tangents: dict[Node, Node]) -> Node | None:
    op, parents, attrs = node.spec.op, node.parents, node.spec.attrs or ()
    rules = op.jvp or ()
    total: Node | None = None
    for k, p in enumerate(parents):
        tangent = tangents.get(p)
        rule = rules[k] if k < len(rules) else None
        if tangent is None or rule is None:
            continue
        part = rule(F, tangent, node, *parents, *attrs)
        total = part if total is None else F.add(total, part)
    if total is not None and total.aval.shape != node.aval.shape:
        total = F.expand_(total, node.aval.shape)
    if total is not None and total.device is None:  # made of host scalars alone, or of no elements
        total.device = node.device
    return total


def _by_rule(call: Call, tangents: dict[Node, Node]) -> list[Node | None]:
    given = [tangents.get(p) for p in call.inputs]
    if not any(t is not None for t in given) or call.jvp is None:
        return [None] * call.count
    return call.jvp(given)


def _of_call(node: Node, tangents: dict[Node, Node], mask: int) -> Node | None:
    """Push through a call by its pull-back: that is linear, and its transpose is taken by reverse mode itself."""
    call = node.leaf
    if not any(p in tangents for p in call.inputs):
        return None
    probe = F.alias(F.zeros_like(F.cut(node)))
    probe.mask, probe.device = mask, node.device
    cotangents: list[Node | None] = [None] * call.count
    cotangents[node.spec.attrs[0]] = probe
    seeds = [
        (part, F.astype(tangents[p], part.dtype))
        for p, part in zip(call.inputs, call.vjp(cotangents), strict=True)
        if part is not None and part.mask & mask and p in tangents
    ]
    found, _ = sweep(seeds, mask, ends=(probe,))
    return found.get(probe)
