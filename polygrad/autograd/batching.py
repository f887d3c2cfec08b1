"""Batching: a graph of one example read as the graph of all of them, by the table's batching rules.

Here: `Batch`, which makes placeholders and lifts nodes that were computed from them.
Not here: the rules (`ops/batching.py`), trees, axes and arrays (`array/vmapping.py`), any value.

A lifted node has a batch axis in front. What was not computed from a placeholder is the same for all examples, and
stays as it is. A node's mask says which recordings watch it; the lifted one is watched by no others, so that what is
constant for one example (stop_gradient) is so for all.
"""

import contextlib
from collections.abc import Iterator

from polygrad import dtypes
from polygrad.autograd.reverse import Call
from polygrad.errors import GradError
from polygrad.graph.functions import F
from polygrad.graph.node import RECORDING, Node, newest, spec_of
from polygrad.ops.batching import folded, full, rule_of
from polygrad.ops.creation import placeholder_


class Batch:
    """The examples of one call of a mapped function.

    Parameters
    ----------
    size : int
        How many examples there are.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._known: dict[Node, Node | None] = {}  # None: the same for all examples
        self._calls: dict[Call, Call] = {}
        self._results: dict[object, Node] = {}  # of library ops, by what their results share
        self._start = newest()
        self._index: Node | None = None

    def placeholder(self, examples: Node) -> Node:
        """Return a node that stands for one example of *examples*, whose first axis is the batch axis."""
        shape, dtype = examples.aval.shape[1:], examples.aval.dtype
        node = Node(spec_of(placeholder_, (shape, dtype), ()), (), examples.device, examples.mask)
        self._known[node] = examples
        return node

    @property
    def index(self) -> Node:
        """The number of the example, as a 0-d node of dtype uint64."""
        if self._index is None:
            self._index = self.placeholder(F.iota(self.size, dtypes.uint64))
        return self._index

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Say that this thread computes with placeholders within the block; random numbers differ between examples."""
        outer = RECORDING.batches
        RECORDING.batches = (*outer, self)
        try:
            yield
        finally:
            RECORDING.batches = outer

    def lift(self, nodes: list[Node]) -> list[Node | None]:
        """Return *nodes* of all examples; None for one that is the same for all."""
        known = self._known
        for node in self._unread(nodes):
            operands = [known.get(p) for p in node.parents]
            lifted = tuple([x is not None for x in operands])
            if not any(lifted):
                known[node] = None
                continue
            given = tuple([p if x is None else x for p, x in zip(node.parents, operands, strict=True)])
            known[node] = self._read(node, lifted, given)
        return [known.get(node) for node in nodes]

    def examples(self, node: Node) -> Node:
        """Return *node* of all examples, repeated if it is the same for all."""
        (found,) = self.lift([node])
        if found is None:
            found = full(F, self.size, node)
            found.device = found.device or node.device
        return found

    def _unread(self, nodes: list[Node]) -> list[Node]:
        """Return what was made since the reading began and is under *nodes*, operands first."""
        known = self._known
        seen: set[Node] = set()
        stack = [n for n in nodes if n not in known]
        while stack:
            n = stack.pop()
            if n in seen or n.number < self._start:
                continue
            seen.add(n)
            stack += [p for p in n.parents if p not in known]
        return sorted(seen, key=lambda n: n.number)

    def _read(self, node: Node, lifted: tuple[bool, ...], operands: tuple[Node, ...]) -> Node:
        out: Node
        if not self.size:
            out = F.expand_(F.constant(0, node.dtype), (0, *node.shape))
        elif isinstance(node.leaf, Call):
            out = self._output_of(node, operands)
        else:
            out = self._by_rule(node, lifted, operands)
        if any(out is x for x in operands):
            out = F.alias(out)
        out.mask &= node.mask
        out.device = out.device or node.device
        out.trace = node.trace
        return out

    def _by_rule(self, node: Node, lifted: tuple[bool, ...], operands: tuple[Node, ...]) -> Node:
        op = node.spec.op
        rule = rule_of(op)
        if rule is None:
            raise GradError(f"pg.vmap cannot map {op.name.rstrip('_')}: its op declares no batching rule")
        together = op.kind == "library" and op.batch is None  # with a rule of its own the results are views of a call's
        if together and node.value in self._results:
            return F.sibling(self._results[node.value], node.spec.attrs[0])  # type: ignore[no-any-return]
        out: Node = rule(F, self.size, node, lifted, operands, *(node.spec.attrs or ()))
        if together:
            self._results[node.value] = out
        return out

    def _output_of(self, node: Node, operands: tuple[Node, ...]) -> Node:
        """Return an output of a call whose derivative is that of all examples."""
        value, *inputs = operands
        if value is node.parents[0]:
            value = full(F, self.size, value)
        out: Node = F.call_output_(value, *inputs, node.spec.attrs[0])
        out.leaf = self._calls.get(node.leaf) or self._calls.setdefault(node.leaf, self._call(node.leaf, inputs))
        return out

    def _call(self, call: Call, inputs: list[Node]) -> Call:
        same = [x is p for x, p in zip(inputs, call.inputs, strict=True)]

        def pull(cotangents: list[Node | None]) -> list[Node | None]:
            with self.reading():
                given = [None if c is None else self.placeholder(c) for c in cotangents]
                found = list(call.vjp(given))
                parts = [
                    None if g is None else F.sum_to(g, p.aval.shape) for g, p in zip(found, call.inputs, strict=True)
                ]
            return [
                None if g is None else self._total(g) if shared else self.examples(g)
                for g, shared in zip(parts, same, strict=True)
            ]

        def push(tangents: list[Node | None]) -> list[Node | None]:
            with self.reading():
                given = [
                    None if t is None else t if shared else self.placeholder(t)
                    for t, shared in zip(tangents, same, strict=True)
                ]
                assert call.jvp is not None  # noqa: S101  this is only used where there is one
                found = call.jvp(given)
            return [None if t is None else self.examples(t) for t in found]

        return Call(tuple(inputs), call.count, pull, None if call.jvp is None else push)

    def _total(self, node: Node) -> Node:
        """Return the sum over all examples, for an operand that they share."""
        total = F.reshape_(F.sum_(self.examples(node), (0,)), node.aval.shape)
        total.device = total.device or node.device
        return total  # type: ignore[no-any-return]


def folded_key(key: Node) -> Node:
    """Return the key of random numbers in this thread: folded with the number of the example in each vmap around."""
    for batch in RECORDING.batches:
        key = folded(key, batch.index, lambda z: z)
    return key
