"""A graph and its launches as a drawing in Graphviz's language DOT.

Here: `drawing`: boxes, clusters, arrows, colours, and what is left out of large graphs.
Not here: which launches there are (`runtime/outlining.py`), what users call and files (`picture.py`).

The fills are Paul Tol's light qualitative scheme (Colour schemes, SRON technical note 09-002, 2021), which the
colour-blind can tell apart and on which black text can be read. They repeat, so that numbers stand beside them.
"""

import collections
from collections.abc import Iterable, Iterator, Mapping, Sequence

from polygrad.graph.node import Node
from polygrad.runtime.outlining import Launch
from polygrad.schedule import Fused, Library

FILLS = ("#99DDFF", "#FFAABB", "#EEDD88", "#44BB99", "#EE8866", "#BBCC33", "#77AADD", "#AAAA00")
MEMORY = "#DDDDDD"
MOVEMENT = frozenset({"reshape", "permute", "expand", "slice", "pad", "windows", "alias"})
_NAMED = 3  # so many of the ops of a kernel, or of the values it reads, are named where there is no room for all
_KILO = 1024


def drawing(
    asked: Sequence[Node], found: Sequence[Launch], names: Mapping[Node, str], kernels: bool, limit: int
) -> str:
    """Return a drawing of the graph of *asked* as DOT.

    Parameters
    ----------
    asked : sequence of Node
        What the picture is of.
    found : sequence of Launch
        The launches that compute it.
    names : mapping of nodes to names
        Of values that have any.
    kernels : bool
        Whether launches are drawn as fields around their ops.
    limit : int
        The most ops that are drawn one by one.
    """
    nodes = _ancestors(asked)
    ops = sum(bool(operands(n)) and not is_quiet(n) for n in nodes)
    boxes = sum(not is_quiet(n) for launch in found for n in launch.members) if kernels else ops
    if max(ops, boxes) > limit:
        told = f"launches alone: their ops would be more than {limit} boxes"
        return _document(_kernels_alone(found, names), _caption(ops, found, told))
    lines = _Drawing(asked, found if kernels else [], names, nodes).lines()
    return _document(lines, _caption(ops, found, ""))


def is_quiet(node: Node) -> bool:
    """Whether a node is not drawn: a number, which stands in its user's box, or another name of its operand."""
    alias = node.op.kind == "alias" and node.storage is None and bool(node.parents)
    return alias or (node.storage is None and _number(node) is not None)


def operands(node: Node) -> tuple[Node, ...]:
    """Return what a node was computed from; a leaf of a recording in memory is only a name of an array."""
    return () if node.storage is not None and node.op.kind == "alias" else node.parents


def _ancestors(asked: Sequence[Node]) -> list[Node]:
    """Return what *asked* was computed from, as far as it is known: realized nodes that a recording keeps too."""
    seen: set[Node] = set()
    stack = list(asked)
    while stack:
        n = stack.pop()
        if n not in seen:
            seen.add(n)
            stack += operands(n)
    return sorted(seen, key=lambda n: n.number)


def quoted(text: str) -> str:
    r"""Return text as a string of DOT.

    >>> print(quoted('a "b"'))
    "a \"b\""
    """
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    # A text that ends in a newline has its lines flush left, as labels of fields have.
    escaped = escaped.replace("\n", "\\l" if text.endswith("\n") else "\\n")
    return f'"{escaped}"'


def _attributes(**given: object) -> str:
    return "[" + ", ".join(f"{key}={quoted(str(value))}" for key, value in given.items()) + "]"


def _document(lines: Iterable[str], caption: str) -> str:
    font = 'fontname="Helvetica,Arial,sans-serif"'
    box = 'shape=box, style="filled,rounded", fillcolor=white, color="#555555", height=0.3'
    head = [
        "digraph polygrad {",
        f"  graph [{font}, fontsize=11, labelloc=b, bgcolor=white, nslimit=2, label={quoted(caption)}]",
        f"  node [{font}, fontsize=10, {box}]",
        f'  edge [{font}, fontsize=9, color="#555555", arrowsize=0.6]',
    ]
    return "\n".join([*head, *[f"  {line}" for line in lines], "}", ""])


def _caption(ops: int, found: Sequence[Launch], more: str) -> str:
    devices = ", ".join(dict.fromkeys(launch.device for launch in found))
    count = len(found)
    told = f"{ops} op{'s' * (ops != 1)} in {count} launch{'es' * (count != 1)}" + (f" on {devices}" if devices else "")
    key = more or "grey: in memory · thick frame: written to memory · double frame: asked for · dashed: a view"
    return f"{told}\n{key}"


def describe_size(nbytes: int) -> str:
    """Return bytes for people.

    >>> describe_size(12), describe_size(2048), describe_size(3 * 2**20)
    ('12 B', '2 KiB', '3 MiB')
    """
    amount = float(nbytes)
    for unit in ("B", "KiB", "MiB"):
        if amount < _KILO:
            return f"{amount:.3g} {unit}"
        amount /= _KILO
    return f"{amount:.3g} GiB"


def _title(number: int, launch: Launch, several: bool) -> str:
    step = launch.step
    if step is None:
        what = f"copy from {launch.reads[0].device}"
    elif isinstance(step, Library):
        what = step.op
    else:
        extents = step.ints[: step.kernel.rank]
        rows, columns = list(extents[: step.kernel.parallel]), list(extents[step.kernel.parallel :])
        what = f"kernel over {rows}" + (f", reducing {columns}" if columns else "")
    read, written = launch.traffic
    device = f" on {launch.device}" if several else ""
    return f"{number}. {what}{device}\nreads {describe_size(read)}, writes {describe_size(written)}"


def _look(number: int, launch: Launch) -> dict[str, object]:
    """Return how a launch is drawn: kernels have fields of colour, all other calls are white with a thick frame."""
    if isinstance(launch.step, Fused):
        return {"fillcolor": FILLS[(number - 1) % len(FILLS)], "color": "#555555"}
    return {"fillcolor": "white", "color": "#004488", "penwidth": 2.5}


def _kernels_alone(found: Sequence[Launch], names: Mapping[Node, str]) -> Iterator[str]:
    makers: dict[Node, int] = {}
    several = len({launch.device for launch in found}) > 1
    for k, launch in enumerate(found, 1):
        counts = collections.Counter(n.op.name.rstrip("_") for n in launch.members if not is_quiet(n))
        common = [f"{n} {name}" if n > 1 else name for name, n in counts.most_common(_NAMED)]
        named = [names[n] for n in launch.reads if n in names]
        about = (
            [", ".join(common) + (", ..." if len(counts) > _NAMED else "")] if isinstance(launch.step, Fused) else []
        )
        about += ["of " + ", ".join(named[:_NAMED]) + (", ..." if len(named) > _NAMED else "")] if named else []
        label = "\n".join([_title(k, launch, several), *about])
        yield f"l{k} {_attributes(label=label, **_look(k, launch))}"
        for source in dict.fromkeys(makers[n] for n in launch.reads if n in makers):
            yield f"l{source} -> l{k}"
        makers.update(dict.fromkeys(launch.writes, k))


class _Drawing:
    """Every op as a box. What several kernels compute stands in each of them."""

    def __init__(
        self, asked: Sequence[Node], found: Sequence[Launch], names: Mapping[Node, str], nodes: Sequence[Node]
    ) -> None:
        self.made = {n for launch in found for n in launch.members}
        self.asked = {n if n in self.made else self._shown(n) for n in asked}
        self.found = found
        self.names = names
        self.nodes = nodes
        self.arrows: dict[str, None] = {}

    def lines(self) -> list[str]:
        """Return the statements."""
        out: list[str] = []
        makers: dict[Node, str] = {}  # where a value that is in memory was written
        several = len({launch.device for launch in self.found}) > 1
        for k, launch in enumerate(self.found, 1):
            out += self._launch(k, launch, makers, several)
        members = {n: f"v{n.number}" for n in self.nodes}
        for n in self.nodes:
            if n not in self.made and (not is_quiet(n) or n in self.asked):
                out.append(f"v{n.number} {self._box(n, in_memory=n.storage is not None)}")
                self._arrows(n, f"v{n.number}", {**members, **makers})
        return [*out, *self.arrows]

    def _launch(self, k: int, launch: Launch, makers: dict[Node, str], several: bool) -> list[str]:
        label = _title(k, launch, several)
        facts = _attributes(
            label=f"{label}\n", style="filled,rounded", margin=10, labelloc="t", labeljust="l", **_look(k, launch)
        )
        out = [f"subgraph cluster_{k} {{", f"  graph {facts}"]
        members = {n: f"k{k}n{n.number}" for n in launch.members}
        if not members:
            out.append(f"  k{k} {_attributes(label='add up the parts')}")
            for n in launch.reads:
                self.arrows[f"{makers.get(n, f'v{n.number}')} -> k{k}"] = None
            makers.update(dict.fromkeys(launch.writes, f"k{k}"))
            return [*out, "}"]
        around = {n: makers.get(n, f"v{n.number}") for n in self.nodes}
        for n, name in members.items():
            if not is_quiet(n) or n in launch.writes:
                out.append(f"  {name} {self._box(n, stored=n in launch.writes)}")
                self._arrows(n, name, {**around, **members}, launch.reads)
        makers.update({n: members.get(n, f"k{k}") for n in launch.writes})
        if launch.step is not None and not set(launch.writes) & set(self.nodes):  # a copy of strided memory
            makers.update(dict.fromkeys(launch.reads, members[launch.writes[0]]))
        return [*out, "}"]

    def _box(self, n: Node, stored: bool = False, in_memory: bool = False) -> str:
        facts: dict[str, object] = {}
        name, made = self.names.get(n), operands(n)
        words = n.op.name.rstrip("_")
        if in_memory and not made:
            words = name or ("parameter" if n.mask else "array")
        elif name:
            words = f"{name} = {words}"
        numbers = [_number(p) for p in made]
        if any(text is not None for text in numbers):
            words += f"({', '.join('·' if text is None else text for text in numbers)})"
        facts["label"] = f"{words}\n{n.aval!r}"
        if in_memory:
            facts["fillcolor"] = MEMORY
            facts["shape"] = "box" if made else "cylinder"
            facts["style"] = "filled"
        elif n.op.kind in MOVEMENT:
            facts |= {"style": "filled,rounded,dashed", "fontcolor": "#444444"}
        if stored:
            facts["penwidth"] = 2.5
        if n in self.asked:
            facts["peripheries"] = 2
        return _attributes(**facts)

    def _arrows(self, n: Node, name: str, places: Mapping[Node, str], reads: Sequence[Node] = ()) -> None:
        for p in operands(n):
            shown = p if p in reads else self._shown(p, reads)
            if _number(shown) is None:
                self.arrows[f"{places[shown]} -> {name}"] = None

    def _shown(self, n: Node, reads: Sequence[Node] = ()) -> Node:
        while is_quiet(n) and _number(n) is None and n not in reads:
            n = n.parents[0]
        return n


def _number(node: Node) -> str | None:
    """Return a host scalar, perhaps broadcast, as text; None for any other node."""
    while node.storage is None and node.op.kind in ("expand", "reshape", "alias") and node.parents:
        node = node.parents[0]
    if node.op.kind != "scalar":
        return None
    return f"{node.value:.6g}" if isinstance(node.value, float) else str(node.value)
