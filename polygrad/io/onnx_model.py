"""What is exported, as a graph of ONNX operators with named inputs and outputs.

Here: `build`: which sizes a function is read for, until the readings fit together; names of results; the graph's ends.
Not here: one reading, and what its nodes become (`onnx_tracing.py`), arguments (`onnx_export.py`), files.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from polygrad.array.tree import leaves_of
from polygrad.errors import ShapeError, StateError
from polygrad.graph.node import Node
from polygrad.io.onnx_files import End, Model
from polygrad.io.onnx_graph import Builder, Operator, is_fixed
from polygrad.io.onnx_sizes import STEPS, Formula, Sizes, Unfit
from polygrad.io.onnx_tracing import Trace, Writer, trace

MOST_TRIES = 24  # sets of sizes


class Request(NamedTuple):
    """What is to be exported.

    Attributes
    ----------
    function : callable
        Of arrays, with *args* as examples, whose arrays are called *names*.
    results : sequence of str or None
        What its results are to be called.
    open_axes : sequence of mappings
        For each input the names of its open sizes by axis.
    titles : mapping of nodes to names
        What constants are called.
    unchanged : callable
        Raises if reading the function has changed its state.
    """

    function: Callable[..., Any]
    args: Sequence[Any]
    names: list[str]
    results: Sequence[str] | None
    open_axes: Sequence[Mapping[int, str]]
    titles: Mapping[Node, str]
    unchanged: Callable[[], None]


def build(request: Request, opset: int, title: str, metadata: dict[str, str]) -> Model:
    """Return the graph of a function, read for sizes that let its readings be brought together.

    Raises
    ------
    ShapeError
        If none of those tried does; it says what was wrong with the first.
    """
    examples = {
        name: a.shape[axis]
        for a, own in zip(leaves_of(request.args), request.open_axes, strict=True)
        for axis, name in own.items()
    }
    if examples:  # a first reading, for functions that make something once and keep it
        trace(request.function, request.args, [a.shape for a in leaves_of(request.args)])
        request.unchanged()
    first: Unfit | None = None
    for steps in itertools.islice(itertools.product(STEPS, repeat=len(examples)), MOST_TRIES):
        sizes = Sizes([*examples], examples, dict(zip(examples, steps, strict=True)))
        if not sizes.possible:
            continue
        try:
            return _built(request, opset, title, metadata, sizes)
        except Unfit as error:
            first = first or error
    assert first is not None  # noqa: S101  sizes upwards are always possible
    raise ShapeError(str(first)) from first.__cause__


def checked_names(what: str, names: list[str], count: int, taken: Sequence[str] = ()) -> list[str]:
    """Return names for inputs or outputs, or raise StateError if they do not do."""
    if len(names) != count:
        raise StateError(f"cannot export: {len(names)} {what} names for {count} {what}s; give one for each array")
    if not all(isinstance(n, str) and n for n in names) or len({*names, *taken}) != len(names) + len(taken):
        raise StateError(f"cannot export: {what} names {names} must be text, and different from all other names")
    return names


def _output_names(wanted: Sequence[str] | None, count: int, taken: Sequence[str]) -> list[str]:
    if wanted is not None:
        return checked_names("output", list(wanted), count, taken)
    plain = ["output"] if count == 1 else [f"output_{k}" for k in range(count)]
    return checked_names("output", [f"{n}_" if n in taken else n for n in plain], count, taken)


def _built(request: Request, opset: int, title: str, metadata: dict[str, str], sizes: Sizes) -> Model:
    traces = _traced(request, sizes)
    names = request.names
    results = _output_names(request.results, len(traces[0].outputs), names)
    builder = Builder(opset, sizes)
    for name in (*names, *results):
        builder.name(name)
    inner, shapes = _written(builder, traces, request)
    outside = dict(zip(inner, results, strict=True))
    operators = _renamed(builder.needed(inner), outside)
    arrays = leaves_of(request.args)
    inputs = [
        End(name, a.dtype.name, [own.get(axis, n) for axis, n in enumerate(a.shape)])
        for name, a, own in zip(names, arrays, request.open_axes, strict=True)
    ]
    outputs = [
        End(name, n.dtype.name, [_dimension(sizes, f) for f in shape])
        for name, n, shape in zip(results, traces[0].outputs, shapes, strict=True)
    ]
    return Model(title, opset, builder.constants, operators, inputs, outputs, metadata)


def _traced(request: Request, sizes: Sizes) -> list[Trace]:
    """Return a reading for each set of sizes."""
    given = [a.shape for a in leaves_of(request.args)]
    traces = []
    for values in sizes.traces:
        known = dict(zip(sizes.names, values, strict=True))
        shapes = [
            tuple(known[own[k]] if k in own else n for k, n in enumerate(shape))
            for shape, own in zip(given, request.open_axes, strict=True)
        ]
        try:
            traces.append(trace(request.function, request.args, shapes))
        except (ValueError, IndexError) as error:
            request.unchanged()
            if shapes == given or isinstance(error, StateError):
                raise
            said = " and ".join(f"{name} {n}" for name, n in known.items())
            raise Unfit(
                f"cannot leave {' and '.join(sizes.names)} open: for {said} the function says: {error}; give a larger "
                "or a smaller example, or leave the size fixed"
            ) from error
        request.unchanged()
    return traces


def _dimension(sizes: Sizes, formula: Formula) -> int | str:
    return int(formula.get((), 0)) if is_fixed(formula) else sizes.text(formula)


def _written(b: Builder, traces: Sequence[Trace], request: Request) -> tuple[list[str], list[list[Formula]]]:
    """Write the graph; return the names and shapes of the results."""
    writer = Writer(b, [t.start for t in traces], request.titles)
    for node, name, own in zip(traces[0].inputs, request.names, request.open_axes, strict=True):
        writer.names[node] = b.enter(name, node.dtype.name)
        for axis, size in own.items():
            b.inputs.setdefault(size, (name, axis))
    inner = writer.write([t.outputs for t in traces])
    groups = list(zip(*[t.outputs for t in traces], strict=True))
    left = [b.leave(name, nodes[0].dtype.name) for name, nodes in zip(inner, groups, strict=True)]
    return _alone(b, left), [b.formulas(nodes, lambda n: n.shape) for nodes in groups]


def _alone(b: Builder, names: Sequence[str]) -> list[str]:
    """Return the results' names; what is an input, a constant or twice a result is copied."""
    found: list[str] = []
    for name in names:
        found.append(name if name in b.made and name not in found else b.copy(name))
    return found


def _renamed(operators: Iterable[Operator], new: Mapping[str, str]) -> list[Operator]:
    return [
        o._replace(inputs=tuple(new.get(n, n) for n in o.inputs), outputs=tuple(new.get(n, n) for n in o.outputs))
        for o in operators
    ]
