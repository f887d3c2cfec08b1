"""From a function to a graph of ONNX operators.

Here: reading a function without a value (`trace`), bringing several readings together, writing their nodes in order.
Not here: which operator a node becomes (`onnx_ops.py` and its neighbours), names and files (`onnx_export.py`).
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from polygrad.array import interchange
from polygrad.array.config import get_device
from polygrad.array.object import Array
from polygrad.array.recording import no_grad
from polygrad.array.tree import flatten, leaves_of
from polygrad.autograd import Batch
from polygrad.errors import CaptureError, DTypeError, StateError
from polygrad.graph.functions import F
from polygrad.graph.node import RECORDING, Node, Pair, newest, spec_of
from polygrad.io.onnx_graph import Builder, Constant, Nodes, refuse
from polygrad.io.onnx_ops import REFUSED, RULES, library_rule
from polygrad.io.onnx_patterns import PATTERNS
from polygrad.io.onnx_scalars import elementwise
from polygrad.io.onnx_sizes import Unfit
from polygrad.ops.creation import placeholder_
from polygrad.runtime.realize import realize


class Trace(NamedTuple):
    """One reading of a function: what stands for its arrays, what it returned, and the first node that was made."""

    inputs: list[Node]
    outputs: list[Node]
    start: int


@contextlib.contextmanager
def evaluating(module: Any) -> Iterator[Callable[[], None]]:
    """Put a module into evaluation mode within a block; yield what sees that its state has not changed.

    That raises StateError if a parameter or a buffer has another value, and gives it its old one again.
    """
    if module is None:
        yield lambda: None
        return
    modes = [(m, m.training) for m in module.modules()]
    arrays = dict([*module.named_parameters(), *module.named_buffers()])
    realize([a._node for a in arrays.values()])
    before = {name: a._node for name, a in arrays.items()}

    def restore() -> list[str]:
        changed = [name for name, a in arrays.items() if a._node is not before[name]]
        for name in changed:
            arrays[name]._node = before[name]
        return changed

    def unchanged() -> None:
        changed = restore()
        if changed:
            raise StateError(
                f"cannot export: forward writes to {', '.join(changed)}, and a model of ONNX keeps no state"
            )

    module.eval()
    try:
        yield unchanged
    finally:
        for m, training in modes:
            m.training = training
        restore()


def trace(function: Callable[..., Any], args: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> Trace:
    """Read a function of arrays of given shapes, which stand for no values.

    Raises
    ------
    CaptureError
        If it looks at a value.
    """
    arrays, rebuild = flatten(list(args))
    start = newest()
    stands = [
        Node(spec_of(placeholder_, (shape, a.dtype), ()), (), a.device) for a, shape in zip(arrays, shapes, strict=True)
    ]
    # What vmap's reading does is what is needed here: nothing is computed, however large the graph becomes.
    with no_grad(), Batch(1).reading():
        try:
            result = function(*rebuild([Array(n) for n in stands]))
        except CaptureError:
            raise CaptureError(
                "cannot export: the function looks at a value (by float(), if, .numpy(), a mask as a key, ...), which "
                "an exported model cannot do; choose by pg.where(...)"
            ) from None
    outputs = [a._node for a in leaves_of(result)]
    if not outputs:
        raise StateError(f"cannot export: the function returns {type(result).__name__}, which holds no array")
    if any(type(n) is Pair for n in outputs):
        raise DTypeError(f"cannot export a result of {outputs[0].dtype.name}: {REFUSED['pair_']}")
    return Trace(stands, outputs, start)


class Writer:
    """Writes the nodes of traces as operators.

    Parameters
    ----------
    builder : Builder
        What they are written to.
    starts : sequence of int
        For each trace the number of its first node: older ones are constants.
    titles : mapping of nodes to names
        What constants are called.
    """

    def __init__(self, builder: Builder, starts: Sequence[int], titles: Mapping[Node, str]) -> None:
        self.builder = builder
        self.starts = starts
        self.titles = titles
        self.names: dict[Node, str] = {}  # by the node of the first trace
        self._calls: dict[Any, tuple[str, ...]] = {}

    def write(self, roots: Sequence[Sequence[Node]]) -> list[str]:
        """Return the names of values: *roots* holds for each trace its nodes."""
        orders = [self._order(nodes, start) for nodes, start in zip(roots, self.starts, strict=True)]
        for order, start in zip(orders, self.starts, strict=True):
            _settle([n for n in order if n.storage is None and n.number < start and n.op.kind not in _VALUELESS])
        drawn = [n for n in orders[0] if n.op.kind == "random" and n.storage is None]
        if drawn:  # before anything that its key may be made of
            raise refuse((drawn[0],), REFUSED[drawn[0].op.name])
        if any(len(order) != len(orders[0]) for order in orders):
            raise self._changes(f"it takes {' and '.join(str(len(order)) for order in orders)} ops")
        places = [{n: k for k, n in enumerate(order)} for order in orders]
        for k, nodes in enumerate(zip(*orders, strict=True)):
            if any(n.op is not nodes[0].op or n.dtype is not nodes[0].dtype for n in nodes):
                raise self._changes(f"op {k} is {' and '.join(n.op.name for n in nodes)}")
            if not self._held(nodes[0]):
                wanted = [[place[p] for p in n.parents] for place, n in zip(places, nodes, strict=True)]
                if any(w != wanted[0] for w in wanted):
                    raise self._changes(f"operands of {nodes[0].op.name.rstrip('_')} differ")
            if nodes[0] not in self.names:
                self.names[nodes[0]] = self._written(nodes)
        return [self.names[n] for n in roots[0]]

    def _changes(self, how: str) -> Unfit:
        return Unfit(
            f"cannot export with open sizes: what is computed changes with {' and '.join(self.builder.sizes.names)} "
            f"({how}), as a loop over a size does; leave the size fixed"
        )

    def _held(self, node: Node) -> bool:
        return node.storage is not None and node.op.kind != "scalar"

    def _order(self, roots: Sequence[Node], start: int) -> list[Node]:
        """Return what values are made of, operands first; constants are among them, what made them is not."""
        seen: set[Node] = set()
        stack = list(roots)
        while stack:
            n = stack.pop()
            if n not in seen:
                seen.add(n)
                if n.storage is None and (n.number >= start or n in self.names):
                    stack += n.parents
        return sorted(seen, key=lambda n: n.number)

    def _written(self, nodes: Nodes) -> str:
        node, b = nodes[0], self.builder
        if self._held(node):
            return self._constant(nodes)
        if all(_facts(n) == _facts(node) for n in nodes):
            b.steady.add(node)
        if node.op.name in REFUSED:
            raise refuse(nodes, REFUSED[node.op.name])
        operands = [self.names[p] for p in node.parents]
        for pattern in PATTERNS.get(node.op.name, ()):
            whole = pattern(b, self.names, nodes)
            if whole is not None:
                return whole
        if node.op.kind == "elementwise":
            return elementwise(b, nodes, *operands)
        if node.op.kind == "library":
            index: int = node.spec.attrs[0]
            return self._results(nodes, operands)[index]
        rule = RULES.get(node.op.name)
        if rule is None:
            raise refuse(nodes, "no rule says what it is in ONNX")
        found = rule(b, nodes, *operands)
        assert isinstance(found, str)  # noqa: S101  only library's ops have several results
        return found

    def _constant(self, nodes: Nodes) -> str:
        node = nodes[0]
        value = interchange.to_numpy(node)
        data = bytes(interchange.as_bytes(value))
        for other in nodes[1:]:
            if other is not node and bytes(interchange.as_bytes(interchange.to_numpy(other))) != data:
                raise self._changes(f"a constant of shape {list(node.shape)} has other values")
        constant = Constant(node.dtype.name, node.shape, data)
        name = self.builder.add_constant(self.titles.get(node, "constant"), constant)
        return self.builder.enter(name, node.dtype.name)

    def _results(self, nodes: Nodes, operands: Sequence[str]) -> tuple[str, ...]:
        """Return the results of a call of a library's op, each written once."""
        node = nodes[0]
        key = (node.op, node.parents, node.spec.attrs[1:])
        if key not in self._calls:
            rule = library_rule(node)
            made = rule(self.builder, nodes, *operands) if rule is not None else self._by_fallback(nodes)
            self._calls[key] = (made,) if isinstance(made, str) else made
        return self._calls[key]

    def _by_fallback(self, nodes: Nodes) -> tuple[str, ...]:
        fallback = nodes[0].op.fallback
        if fallback is None:
            raise refuse(nodes, "polygrad makes it of nothing else, and ONNX has no operator for it")
        roots: list[list[Node]] = []
        before, RECORDING.enabled = RECORDING.enabled, False
        try:
            with Batch(1).reading():
                for n in nodes:
                    made = fallback(F, *n.parents, *n.spec.attrs[1:])
                    roots.append(list(made) if isinstance(made, (tuple, list)) else [made])
        finally:
            RECORDING.enabled = before
        return tuple(self.write(roots))


def _facts(node: Node) -> tuple[Any, ...]:
    """Return what a node is beside its op and operands."""
    return node.spec.attrs, node.value if node.op.kind == "scalar" else None


_VALUELESS = ("scalar", "placeholder")


def _settle(nodes: Sequence[Node]) -> None:
    """Compute what was there, or waited, before a function was read: it is a constant for the function."""
    for n in nodes:
        n.device = n.device or get_device()
    try:
        realize(nodes)
    except CaptureError:
        raise StateError(
            "cannot export: the function uses an array that it made of its inputs when it was called before; it must "
            "keep nothing between calls"
        ) from None
