"""Kernels written once and used for every group of the same structure: layers, unrolled steps, equal updates.

Here: `launch_of`, which describes a group in a few ints, and the launches that it knows by these.
Not here: how a kernel is written (`emit.py`).

The nodes of a group are numbered as its description meets them. A known launch has these numbers where an emitted one
has nodes; whatever else an Emitter looks at is part of the description.
"""

import threading
from operator import attrgetter
from typing import Any

from polygrad.driver.types import DeviceInfo
from polygrad.graph.node import Node
from polygrad.schedule.emit import STATUS, Emitter, FusedLaunch
from polygrad.schedule.group import Demand, Group
from polygrad.schedule.index import Axis, Expr, Map, settle, settle_map
from polygrad.schedule.twins import Twin

ROOM = 1 << 20  # ints of all descriptions together: when there are more, all are forgotten
_LOAD, _SCALAR, _REST = -1, -2, -3  # no op has such a signature
_known: dict[Any, FusedLaunch] = {}
_taken = [0]
_lock = threading.Lock()


def launch_of(group: Group, info: DeviceInfo) -> FusedLaunch:
    """Return the launch that computes a finished group."""
    if isinstance(group, Twin):
        return _of_twin(group, info)
    if group.target is not None:  # where it writes is not described
        return Emitter(group, info).emit()
    found = _Description(group)
    key = (found.key(), info.scalar_ops, info.reductions, info.limits.partials)
    known = _known.get(key)
    if known is not None:
        return _exchanged(known, list(found.nodes))  # type: ignore[no-any-return]
    launch = Emitter(group, info).emit()
    with _lock:
        _taken[0] += len(key[0])
        if _taken[0] > ROOM:
            _known.clear()
            _taken[0] = len(key[0])
        _known[key] = _exchanged(launch, found.nodes)
    return launch


def _of_twin(twin: Twin, info: DeviceInfo) -> FusedLaunch:
    """Return the launch of a kernel that is like that of an example."""
    example = twin.example
    stored = tuple([example.of[d] for d in twin.stores.values()])
    known = example.launches.get(stored)
    if known is None:
        group = example.group.copy()
        group.stores = {example.nodes[k]: d for k, d in zip(stored, twin.stores.values(), strict=True)}
        known = example.launches[stored] = _exchanged(launch_of(group, info), example.slots)
    return _exchanged(known, twin.nodes)  # type: ignore[no-any-return]


def forget() -> None:
    """Forget all known launches: what is scheduled next is written anew."""
    with _lock:
        _known.clear()
        _taken[0] = 0


class _Description:
    """All that decides what an Emitter makes of a group, but which nodes they are."""

    def __init__(self, group: Group) -> None:
        group.settle()
        self.group = group
        reduced = group.reduced or []
        rows = [a for a in group.axes if a not in reduced]
        self.axes: list[Axis] = [*rows, *reduced]
        self.words: list[Any] = [len(rows), *[a.extent for a in self.axes]]
        self.nodes: dict[Node, int] = {}
        self._position = {a: k for k, a in enumerate(self.axes)}
        self._maps: dict[int, Any] = {}  # by identity: most demands of a kernel share theirs

    def key(self) -> tuple[Any, ...]:
        """Return the description."""
        words = self.words
        for k, demand in enumerate(sorted(self.group.demands, key=_number)):
            how = demand.how
            if how == "op":
                demand.value = k
                words.append(demand.node.spec.sig)
                words += [a.value if a.same is None else _value(a) for a in demand.args]
            elif how == "alias":
                demand.value = _value(demand.args[0])
            else:
                demand.value = k
                self._describe(demand)
        words.append(_REST)
        for node, demand in self.group.stores.items():
            words += (self._node(node), node.aval.ident, _value(demand), self._map(demand.index))
        for node, demand in self.group.partials:
            words += (_REST, self._node(node), node.aval.ident, _value(demand))
        return tuple(words)

    def _describe(self, demand: Demand) -> None:
        """Add what is not elementwise."""
        node, how, words = demand.node, demand.how, self.words
        if how == "scalar":
            words += (_SCALAR, self._node(node), node.aval.ident)
        elif how == "load":
            base, flat = demand.extra
            where = self._map(demand.index) if flat is None else self._flat(flat)
            words += (_LOAD, flat is None, self._node(base), base.aval.ident, _strides(base), where)
            words.append(self._ranges(demand.windows))
        else:
            words += (node.spec.sig, self._map(demand.index), *[_value(a) for a in demand.args])
            if how in ("pad", "put"):
                words.append(None if demand.extra is None else self._ranges(demand.extra))
            elif how == "gather":
                source, *view = demand.extra
                words += (self._node(node), self._node(source), _strides(source), *view, self._ranges(demand.windows))
            elif how == "check":
                anchor = demand.extra
                words += (self._node(node), self._node(anchor), anchor.aval.ident, _strides(anchor))
                words.append(self._ranges(demand.windows))

    def _node(self, node: Node) -> int:
        return self.nodes.setdefault(node, len(self.nodes))

    def _map(self, index: Map) -> Any:
        found = self._maps.get(id(index))
        if found is None:
            found = self._maps[id(index)] = tuple([self._flat(e) for e in settle_map(index)])
        return found

    def _flat(self, expr: Expr) -> tuple[Any, ...]:
        const, terms = settle(expr)
        return const, *[(self._position[axis], c) for axis, c in terms]

    def _ranges(self, ranges: Any) -> tuple[Any, ...]:
        return tuple([(self._position[axis], low, high) for axis, low, high in ranges]) if ranges else ()


_number = attrgetter("node.number")


def _value(demand: Demand) -> int:
    while demand.same is not None:
        demand = demand.same
    return demand.value


def _strides(node: Node) -> Any:
    return None if node.storage is None else node.storage.strides


def _exchanged(launch: Any, other: Any) -> Any:
    """Return a launch with what *other* gives for each of its nodes, or of their numbers."""
    return FusedLaunch(
        launch.kernel,
        # Beside nodes there are the status word, and buffers of parts: a node and how many.
        tuple([b if b is STATUS else (other[b[0]], b[1]) if type(b) is tuple else other[b] for b in launch.buffers]),
        launch.ints,
        tuple([other[n] for n in launch.scalars]),
        tuple([(at, other[n]) for at, n in launch.offsets]),
        tuple([other[n] for n in launch.outputs]),
        {at: (other[n], size) for at, (n, size) in launch.partials.items()},
        {at: other[n] for at, n in launch.traced.items()},
    )
