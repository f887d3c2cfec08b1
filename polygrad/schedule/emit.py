"""A finished group of nodes as a Kernel and its launch arguments.

Here: the last step of fusion: numbering of axes, buffers, views and scalars.
Not here: decisions about what is in the kernel.
"""

from operator import attrgetter
from typing import Any, NamedTuple

from polygrad import shapes
from polygrad.driver.ir import STORAGE, Instr, Kernel, Store, View
from polygrad.driver.types import DeviceInfo
from polygrad.graph.node import Node
from polygrad.schedule.body import Body, guard_loads, name
from polygrad.schedule.group import Demand, Group
from polygrad.schedule.index import Axis, Expr, Map, address, combine, settle, settle_map


class FusedLaunch(NamedTuple):
    """A kernel with what it is launched with; a buffer is given as the node whose value it holds.

    `offsets` lists the ints to which the storage offset of a leaf is added at launch: (position in ints, node);
    `starts` those to which the place of a write is.
    `partials` gives for each buffer that holds parts of a node its number of elements and the node.
    """

    kernel: Kernel
    buffers: tuple[Any, ...]
    ints: tuple[int, ...]
    scalars: tuple[Node, ...]
    offsets: tuple[tuple[int, Node], ...]
    outputs: tuple[Node, ...]
    partials: dict[int, tuple[Node, int]]
    traced: dict[int, Node]
    starts: tuple[tuple[int, Node], ...] = ()


STATUS = "status"
LABEL_SHIFT = 2**62  # takes a negative label, which would count from the end, out of every range


class Emitter:
    """Writes the kernel of one group."""

    def __init__(self, group: Group, info: DeviceInfo) -> None:
        group.settle()
        self.group = group
        reduced = group.reduced or []
        self.rows = [a for a in group.axes if a not in reduced]
        self.axes: list[Axis] = [*self.rows, *reduced]
        self.position = {a: k for k, a in enumerate(self.axes)}
        self.body = Body(info.scalar_ops, info.reductions)
        self.views: list[View] = []
        self.view_ints: list[list[int]] = []
        self.view_nodes: list[Node | None] = []
        self.buffers: list[Any] = []
        self.buffer_dtypes: list[str] = []
        self.scalars: dict[Node, int] = {}
        self.gathers: dict[int, Node] = {}
        self.partials: dict[int, tuple[Node, int]] = {}
        self.wanted_parts = info.limits.partials
        self._slots: dict[Any, int] = {}  # of nodes among the buffers
        self._views: dict[Any, int] = {}
        self._places: dict[tuple[int, shapes.Shape], Any] = {}  # of maps in memory, by identity and strides
        self._full: list[bool] = []

    def emit(self) -> FusedLaunch:
        """Return the launch."""
        apply = self.body.apply
        for demand in sorted(self.group.demands, key=_number):
            if demand.how == "op" and demand.node.spec.op.kind == "elementwise":
                demand.value = apply(
                    demand.node.spec.op, [(a if a.same is None else _first(a)).value for a in demand.args]
                )
            else:
                demand.value = self._value(demand)
        stores = []
        for node, d in self.group.stores.items():
            view = self._store_view(node, d)
            along = any(s != 0 for s in self.views[view].strides[len(self.rows) :])
            stores.append((self._spread(self.value(d)) if along else self.value(d), view))
        outputs = tuple(self.group.stores)
        for node, d in self.group.partials:
            value = self.body.cast(self._spread(self.value(d)), name(accumulator(node)))
            stores.append((value, self._partial_view(node)))
        gathers = {i.attr for i in self.body.instrs if i.op == "load" and i.args}
        instrs, numbers = guard_loads(self.body.instrs, [v for v, _ in stores])
        status = -1
        if gathers:
            status = len(self.buffers)
            self.buffers.append(STATUS)
            self.buffer_dtypes.append("int32")
        kernel = Kernel(
            len(self.rows),
            len(self.axes) - len(self.rows),
            tuple(self.buffer_dtypes),
            tuple(self.views),
            tuple([_wide(name(n.dtype)) for n in self.scalars]),
            tuple(instrs),
            tuple(Store(numbers[v], w) for v, w in stores),
            status,
        )
        ints = [a.extent for a in self.axes]
        offsets, starts = [], []
        for own, leaf in zip(self.view_ints, self.view_nodes, strict=True):
            if self.group.loose and leaf is not None and leaf is self.group.target:
                starts.append((len(ints), leaf))
            if leaf is not None and leaf.storage is not None:
                offsets.append((len(ints), leaf))
            ints += own
        traced = {numbers[k]: node for k, node in self.gathers.items() if numbers[k] >= 0}
        return FusedLaunch(
            kernel,
            tuple(self.buffers),
            tuple(ints),
            tuple(self.scalars),
            tuple(offsets),
            outputs,
            self.partials,
            traced,
            tuple(starts),
        )

    def value(self, demand: Demand) -> int:
        """Return the number of a demand's value."""
        return (demand if demand.same is None else _first(demand)).value

    def _value(self, demand: Demand) -> int:
        node, body, how = demand.node, self.body, demand.how
        if how == "alias":
            return self.value(demand.args[0])
        if how in ("load", "scalar"):
            return self._load(demand) if how == "load" else self._scalar(node)
        dtype = name(node.aval.dtype)
        if how == "iota":
            flat = settle(demand.index[0])
            return body.iota([(self.position[a], c) for a, c in flat.terms], flat.const, dtype)
        if how in ("pad", "put"):
            return self._pad(demand) if how == "pad" else self._put(demand)
        if how in ("gather", "check"):
            return self._gather(demand) if how == "gather" else self._check(demand)
        args = [self.value(a) for a in demand.args]
        if how == "reduce":
            return self._reduce(node.spec.op.instr, args[0])
        kind = node.spec.op.kind
        if kind == "cast":
            return body.cast(args[0], dtype)
        if kind == "bitcast":
            return body.add(Instr("bitcast", dtype, (args[0],)))
        return body.apply(node.spec.op, args)

    def _reduce(self, kind: str, value: int) -> int:
        """Reduce a value; one that does not vary along the reduced axes is its own maximum, but is spread for a sum."""
        if len(self.axes) == len(self.rows):
            return value  # every reduced axis has one element
        if kind in ("max", "min") and not self._is_full(value):
            return value
        known = self._scaled_sum(value) if kind == "sum" else None
        return self.body.reduce(kind, self._spread(value)) if known is None else known

    def _scaled_sum(self, value: int) -> int | None:
        """Return the sum of a value times a row value if the sum of the value itself is there already; else None.

        The backward pass of a softmax or a cross-entropy asks for such a sum: it saves a pass over the row.
        """
        instr = self.body.instrs[value]
        if instr.dtype not in ("float32", "float64"):
            return None
        if instr.op == "negative":
            inner = self._scaled_sum(instr.args[0])
            return None if inner is None else self.body("negative", inner)
        if instr.op not in ("multiply", "divide"):
            return None
        pairs = [instr.args, instr.args[::-1]] if instr.op == "multiply" else [instr.args]
        for full, row in pairs:
            if self._is_full(full) and not self._is_full(row):
                known = self.body.find(Instr("reduce", instr.dtype, (full,), "sum"))
                if known is not None:
                    return self.body(instr.op, known, row)
        return None

    def _spread(self, value: int) -> int:
        """Return a value as one that the kernel has at each place along the reduced axes."""
        if len(self.axes) == len(self.rows) or self._is_full(value):
            return value
        index = self.body.iota([(len(self.rows), 1)], 0, "int64")
        return self.body.where(self.body("less_equal", self.body.const(0, "int64"), index), value, value)

    def _is_full(self, value: int) -> bool:
        """Whether a value varies along the reduced axes."""
        for n in range(len(self._full), value + 1):
            instr = self.body.instrs[n]
            if instr.op == "reduce":
                full = False
            elif instr.op == "iota":
                full = instr.attr >= len(self.rows)
            else:
                full = any(self._full[a] for a in instr.args)
                if instr.op == "load":
                    view = self.views[instr.attr]
                    along = any(s != 0 for s in view.strides[len(self.rows) :])
                    full = full or along or any(k >= len(self.rows) for k in view.window)
            self._full.append(full)
        return self._full[value]

    def _scalar(self, node: Node) -> int:
        slot = self.scalars.setdefault(node, len(self.scalars))
        wanted = name(node.dtype)
        return self.body.cast(self.body.add(Instr("scalar", _wide(wanted), (), slot)), wanted)

    def _pad(self, demand: Demand) -> int:
        fill = self.body.const(_literal(demand.node.spec.attrs[2], name(demand.node.dtype)), name(demand.node.dtype))
        if not demand.args:
            return fill
        value, inside = self.value(demand.args[0]), self._inside(demand.extra)
        return value if inside is None else self.body.where(inside, value, fill)

    def _put(self, demand: Demand) -> int:
        old = self.value(demand.args[0])
        if demand.extra is None:
            return old
        value, inside = self.value(demand.args[1]), self._inside(demand.extra)
        return value if inside is None else self.body.where(inside, value, old)

    def _inside(self, conditions: list[tuple[Axis, int, int]]) -> int | None:
        """Return whether axes are in their ranges; None if there are no conditions."""
        inside: int | None = None
        for axis, low, high in conditions:
            index = self.body.iota([(self.position[axis], 1)], 0, "int64")
            for upper, bound, test in ((False, low, low > 0), (True, high, high < axis.extent)):
                if test:
                    limit = self.body.const(bound, "int64")
                    check = self.body("less", index, limit) if upper else self.body("less_equal", limit, index)
                    inside = check if inside is None else self.body("bitwise_and", inside, check)
        return inside

    def _buffer(self, node: Any, dtype: str) -> int:
        known = self._slots.get(node)
        if known is not None:
            return known
        self._slots[node] = len(self.buffers)
        self.buffers.append(node)
        self.buffer_dtypes.append(dtype)
        return len(self.buffers) - 1

    def _view(self, view: View, ints: list[int], node: Node | None) -> int:
        key = (view, tuple(ints), node)
        found = self._views.get(key)
        if found is None:
            found = self._views[key] = len(self.views)
            self.views.append(view)
            self.view_ints.append(ints)
            self.view_nodes.append(node)
        return found

    def _strides(self, flat: Expr) -> tuple[tuple[int | None, ...], list[int]]:
        """Return the classes of the strides over all axes, and the ints of the dynamic ones."""
        steps = [0] * len(self.axes)
        for axis, c in flat.terms:
            steps[self.position[axis]] += c
        return tuple(s if s in (0, 1) else None for s in steps), [s for s in steps if s not in (0, 1)]

    def _place(self, index: Map, strides: shapes.Shape) -> tuple[int, tuple[int | None, ...], list[int]]:
        """Return where a map begins in memory of some strides, and the classes and ints of its own strides there."""
        key = id(index), strides
        found = self._places.get(key)
        if found is None:
            flat = address(settle_map(index), strides)
            found = self._places[key] = (flat.const, *self._strides(flat), index)
        return found[:3]

    def _load(self, demand: Demand) -> int:
        base, flat = demand.extra
        if flat is None:
            strides = base.storage.strides if base.storage is not None else shapes.strides(base.aval.shape)
            const, classes, dynamic = self._place(demand.index, strides)
        else:
            flat = settle(flat)
            const, (classes, dynamic) = flat.const, self._strides(flat)
        windows = [(self.position[a], low, high) for a, low, high in demand.windows]
        dtype = name(base.dtype)
        view = View(self._buffer(base, dtype), dtype, classes, tuple([k for k, _, _ in windows]))
        ints = [const, *dynamic, *[b for _, low, high in windows for b in (low, high)]]
        return self.body.add(Instr("load", dtype, (), self._view(view, ints, base)))

    def _gather(self, demand: Demand) -> int:
        node = demand.node
        source, shape, strides, offset = demand.extra
        plan = node.spec.attrs[1]
        direct = [(demand.index[where], strides[k]) for k, where in enumerate(plan) if where >= 0]
        flat = address(settle_map(tuple(e for e, _ in direct)), tuple(s for _, s in direct), offset)
        indexed = [(k, -1 - where) for k, where in enumerate(plan) if where < 0]
        args = tuple(self.value(demand.args[j]) for _, j in indexed)
        return self._gather_load(demand, source, flat, args, [(strides[k], shape[k]) for k, _ in indexed])

    def _check(self, demand: Demand) -> int:
        """Report an index if it is bad: a gather of stride 0 reads the first element of some memory, and checks it."""
        body, (size, label) = self.body, demand.node.spec.attrs
        index = body.cast(self.value(demand.args[0]), "int64")
        negative = body("less", index, body.const(0, "int64"))
        asked = (
            body.where(negative, body("subtract", index, body.const(LABEL_SHIFT, "int64")), index) if label else index
        )
        seen = self._gather_load(demand, demand.extra, combine(0, []), (asked,), [(0, size)])
        index = body.where(body("equal", seen, seen), index, index)  # the load counts as used
        if label:
            return index
        return body.where(negative, body("add", index, body.const(size, "int64")), index)

    def _gather_load(
        self, demand: Demand, source: Node, flat: Expr, args: tuple[int, ...], gathers: list[tuple[int, int]]
    ) -> int:
        classes, dynamic = self._strides(flat)
        windows = [(self.position[a], low, high) for a, low, high in demand.windows]
        dtype = name(source.dtype)
        ints = [flat.const, *dynamic, *[b for _, low, high in windows for b in (low, high)]]
        ints += [n for pair in gathers for n in pair]
        view = View(self._buffer(source, dtype), dtype, classes, tuple(k for k, _, _ in windows), len(gathers))
        value = self.body.add(Instr("load", dtype, args, self._view(view, ints, source)))
        if gathers:
            self.gathers[value] = demand.node
        return value

    def _store_view(self, node: Node, demand: Demand) -> int:
        strides, offset = shapes.strides(node.aval.shape), 0
        if node is self.group.target:
            strides, offset = block_of(node)
            offset = 0 if self.group.loose else offset
        const, classes, dynamic = self._place(demand.index, strides)
        dtype = name(node.dtype)
        return self._view(View(self._buffer(node, dtype), dtype, classes), [offset + const, *dynamic], node)

    def _partial_view(self, node: Node) -> int:
        """Return the view of a buffer of parts, laid out [parts, size of the sum]."""
        rows = 1
        for axis in self.rows:
            rows *= axis.extent
        per = -(-rows // max(1, min(self.wanted_parts, rows)))
        parts = -(-rows // per)
        reduced = [a.extent for a in self.axes[len(self.rows) :]]
        steps = [*[0] * len(self.rows), *shapes.strides(tuple(reduced))]
        classes = tuple(s if s in (0, 1) else None for s in steps)
        size = shapes.size(tuple(reduced))
        dtype = name(accumulator(node))
        buffer = len(self.buffers)
        self.buffers.append((node, parts))
        self.buffer_dtypes.append(dtype)
        self.partials[buffer] = (node, parts * size)
        ints = [0, *[s for s in steps if s not in (0, 1)], parts, size]
        return self._view(View(buffer, dtype, classes, partial=True), ints, None)


_number = attrgetter("node.number")


def _first(demand: Demand) -> Demand:
    """Return the demand that one is the same as."""
    while demand.same is not None:
        demand = demand.same
    return demand


def _wide(dtype: str) -> str:
    """Return the dtype in which a scalar of some dtype is given to a launch."""
    return "float32" if dtype in STORAGE else dtype


def block_of(node: Node) -> tuple[tuple[int, ...], int]:
    """Return the strides of the block that a put writes, and its offset, in the memory of the whole array."""
    starts, steps, _ = node.spec.attrs
    strides = shapes.strides(node.aval.shape)
    return tuple(s * t for s, t in zip(strides, steps, strict=True)), sum(
        b * s for b, s in zip(starts, strides, strict=True)
    )


def accumulator(node: Node) -> Any:
    """Return the dtype in which parts of a sum are kept."""
    from polygrad import dtypes  # noqa: PLC0415  beside its one use

    return dtypes.float32 if node.dtype.name in ("float16", "bfloat16") else node.dtype


def _literal(value: Any, dtype: str) -> bool | int | float:
    if dtype == "bool":
        return bool(value)
    return float(value) if "float" in dtype else int(value)


def finishing(nodes: list[Node], parts: int, size: int, launch: FusedLaunch) -> FusedLaunch:
    """Return the launch that adds up the parts which *launch* has left for *nodes*."""
    body = Body()
    views: list[View] = []
    dtypes_of: list[str] = []
    stores: list[Store] = []
    buffers: list[Any] = []
    for node in nodes:
        at = next(k for k, (have, _) in launch.partials.items() if have is node)
        dtype = launch.kernel.buffers[at]
        views.append(View(len(buffers), dtype, (1, None)))
        buffers.append(launch.buffers[at])
        dtypes_of.append(dtype)
        value = body.add(Instr("reduce", dtype, (body.add(Instr("load", dtype, (), len(views) - 1)),), "sum"))
        views.append(View(len(buffers), name(node.dtype), (1, 0)))
        buffers.append(node)
        dtypes_of.append(name(node.dtype))
        stores.append(Store(body.cast(value, name(node.dtype)), len(views) - 1))
    ints = [size, parts]
    for view in views:
        ints += [0, size] if view.strides[1] is None else [0]
    kernel = Kernel(1, 1, tuple(dtypes_of), tuple(views), (), tuple(body.instrs), tuple(stores))
    return FusedLaunch(kernel, tuple(buffers), tuple(ints), (), (), tuple(nodes), {}, {})
