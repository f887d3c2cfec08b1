"""The Node: an op applied to nodes. The lazy graph and the autograd graph are this one graph.

Here: nodes, pairs of them (complex values), the memo of shape and dtype inference, and `apply`, which refuses early.
Not here: values, kernels, derivatives; what the ops mean is in `ops`, and what they do to pairs in `pairs.py`.
"""

import itertools
import os
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from polygrad import dtypes, shapes
from polygrad.errors import DeviceError, DTypeError
from polygrad.graph.growth import CHECKED_EVERY, grown
from polygrad.graph.spec import Aval, Spec
from polygrad.ops.table import Op
from polygrad.symbols import applied, is_symbol, known, settled

_numbers = itertools.count(1)
_number = _numbers.__next__


_avals: dict[tuple[shapes.Shape, dtypes.DType], Aval] = {}
_lock = threading.Lock()


def _after_fork() -> None:
    global _lock  # noqa: PLW0603  a thread that does not exist in the child may have held the old one
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def aval(shape: shapes.Shape, dtype: dtypes.DType) -> Aval:
    """Return the one Aval of *shape* and *dtype*."""
    found = _avals.get((shape, dtype))
    if found is None:
        with _lock:
            found = _avals.setdefault((shape, dtype), Aval(shape, dtype, len(_avals)))
    return found


_memo: dict[Any, Spec] = {}
MEMO_LIMIT = 200_000


def newest() -> int:
    """Return a number that no node has yet: what is made from now on has a greater one."""
    return _number()


def reserve(count: int) -> list[int]:
    """Return rising numbers for nodes that are made later, but come before what is made from now on."""
    return list(itertools.islice(_numbers, count))


class Recording(threading.local):
    """Whether this thread records for differentiation, and what watches it."""

    enabled = True
    slopes: dict[Any, Any] | None = None  # of complex functions, shared while a sweep is under way
    observer: Callable[["Node"], None] | None = None  # detect_anomaly and tapes see every node that is made
    batches: tuple[Any, ...] = ()  # the calls of vmap whose functions are being read: nodes may have no values
    since = 0  # the gradients of nodes with numbers up to this one are asked for: rules do not look through them
    capture: Any = None  # what writes down a call that pg.compile captures, a `runtime.recorder.Recorder`


RECORDING = Recording()


class Node:
    """An op applied to nodes: shape and dtype are known, the value perhaps not yet.

    Attributes
    ----------
    spec : Spec
        The op, its attributes, shape and dtype.
    parents : tuple of Node
        Operands; dropped once the value is there, unless a recording needs them.
    device : str or None
        Where the value is or will be; None for host scalars, which go anywhere.
    storage : Storage or None
        The value, once realized.
    value : object
        The Python number of a host scalar, or the `Siblings` of a library op's result.
    mask : int
        One bit for each recording that this node depends on; 0 means that no gradient flows through it.
    number : int
        Grows with creation: operands have smaller numbers, so sorting by it is a topological order.
    spent : bool
        A backward pass has used this node up.
    trace : tuple or None
        Where the node was made, if that was asked for.
    """

    __slots__ = (
        "__weakref__",
        "aval",
        "depth",
        "device",
        "leaf",
        "mask",
        "number",
        "parents",
        "spec",
        "spent",
        "storage",
        "trace",
        "value",
    )

    def __init__(
        self, spec: Spec, parents: tuple["Node", ...], device: str | None, mask: int = 0, depth: int = 0
    ) -> None:
        self.spec = spec
        self.aval = spec.aval
        self.parents = parents
        self.device = device
        self.mask = mask
        self.number = _number()
        self.storage: Any = None
        self.value: Any = None
        self.spent = False
        self.leaf: Any = None
        self.trace: Any = None
        self.depth = depth

    @property
    def shape(self) -> shapes.Shape:
        """The sizes of the axes."""
        return self.aval.shape

    @property
    def dtype(self) -> dtypes.DType:
        """The dtype of the elements."""
        return self.aval.dtype

    @property
    def op(self) -> Op:
        """The op that makes this node."""
        return self.spec.op

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.aval.shape)

    def __repr__(self) -> str:
        return f"<{self.spec.op.name} {self.aval!r}{' on ' + self.device if self.device else ''}>"


class Pair(Node):
    """A complex value: two real nodes of one shape, dtype and device, its parents.

    It is no operand of any node and never has memory: an op on it is recorded as ops on its parts, so that only `apply`
    and what looks at values need to know of it. What is set on it is set on its parts.
    """

    __slots__ = ()

    def __init__(self, re: Node, im: Node) -> None:
        self.spec = _pair_spec(re.aval)
        self.aval = self.spec.aval
        self.parents = (re, im)
        self.number = _number()
        self.depth = max(re.depth, im.depth)
        self.storage = None

    @property
    def device(self) -> str | None:
        """The device of the parts."""
        return self.parents[0].device

    @device.setter
    def device(self, name: str | None) -> None:
        if name is not None:
            self.parents = tuple([place(p, name) for p in self.parents])

    @property
    def mask(self) -> int:
        """The recordings that either part depends on; a bit that is set or cleared is so in both."""
        return self.parents[0].mask | self.parents[1].mask

    @mask.setter
    def mask(self, wanted: int) -> None:
        have = self.mask
        for p in self.parents:
            p.mask = p.mask & ~(have & ~wanted) | (wanted & ~have)

    @property
    def value(self) -> complex | None:
        """The Python number, if both parts are host scalars."""
        re, im = self.parents
        return complex(re.value, im.value) if re.spec.op.kind == im.spec.op.kind == "scalar" else None

    @property
    def trace(self) -> Any:
        """Where the parts were made, if that was asked for."""
        return self.parents[0].trace

    @trace.setter
    def trace(self, site: Any) -> None:
        for p in self.parents:
            p.trace = site

    @property
    def leaf(self) -> None:
        """None: the parts are the leaves of a recording; their owner is told which part each is."""

    @leaf.setter
    def leaf(self, owner: Any) -> None:
        for k, p in enumerate(self.parents):
            p.leaf = None if owner is None else PartOf(owner, k)

    spent = False  # that a sweep has used up the parts stands at these


class PartOf:
    """Whose part a leaf is, and which."""

    __slots__ = ("owner", "which")

    def __init__(self, owner: Callable[[], Any], which: int) -> None:
        self.owner = owner
        self.which = which


_pair_specs: dict[Aval, Spec] = {}


def _pair_spec(of_part: Aval) -> Spec:
    found = _pair_specs.get(of_part)
    if found is None:
        from polygrad.ops.creation import pair_  # noqa: PLC0415  the table is filled after this module is loaded

        whole = aval(of_part.shape, dtypes.whole(of_part.dtype))
        found = _pair_specs[of_part] = Spec(pair_, None, whole, None)
    return found


def place(node: Node, device: str) -> Node:
    """Return a node that has no device yet as one of *device*; a host scalar stays free for others, as a copy."""
    if node.device == device:
        return node
    if node.spec.op.kind == "scalar" and node.device is None:
        node = scalar(number_of(node), node.aval.dtype)
    node.device = device
    return node


def parts(node: Node) -> tuple[Node, ...]:
    """Return the real nodes that a node stands for: two of a Pair, else itself."""
    return node.parents if type(node) is Pair else (node,)


def like_parts(node: Node, found: Sequence[Node]) -> Node:
    """Return *found*, one real node for each of ``parts(node)``, as one node of that kind."""
    return Pair(*found) if type(node) is Pair else found[0]


def describe(node: Node) -> str:
    """Return ``float32[3, 4] on cpu:0``, for errors."""
    return f"{node.aval!r} on {node.device}" if node.device else f"{node.aval!r}"


def spec_of(op: Op, attrs: Any, operands: tuple[Node, ...]) -> Spec:
    """Return the memoised Spec of applying *op* with *attrs* to *operands*, or raise what is wrong with them."""
    key = (op, attrs, *[p.aval for p in operands])
    found = _memo.get(key)
    if found is None:
        if RECORDING.capture is not None:
            attrs = settled(attrs)
            key = (op, attrs, *key[2:])
        out, casts = (_infer_elementwise if op.kind == "elementwise" else _infer_other)(op, attrs, operands)
        if len(_memo) > MEMO_LIMIT:
            _memo.clear()
        found = _memo[key] = Spec(op, attrs, out, casts)
    return found


def _infer_other(op: Op, attrs: Any, operands: tuple[Node, ...]) -> tuple[Aval, None]:
    assert op.infer is not None, op.name  # noqa: S101  a broken declaration, not a user's mistake
    shape, dtype = op.infer(*[p.aval for p in operands], *(attrs or ()))
    return aval(shape, dtype), None


def _infer_elementwise(op: Op, _attrs: Any, operands: tuple[Node, ...]) -> tuple[Aval, tuple[Any, ...] | None]:
    shape = shapes.broadcast(op.verb, *[p.aval.shape for p in operands])
    have = [p.aval.dtype for p in operands]
    if op.name == "where":
        if have[0] is not dtypes.bool_:
            raise DTypeError(f"cannot select by {have[0].name}: the condition of where must be bool; compare it first")
        common = dtypes.promote(have[1], have[2])
        wanted = [dtypes.bool_, common, common]
    else:
        common = have[0]
        for other in have[1:]:
            common = dtypes.promote(common, other)
        if dtypes.KINDS[common] not in op.kinds:
            if dtypes.KINDS[common] == "int" and op.kinds == "float":
                common = dtypes.float64
            else:
                raise DTypeError(
                    f"cannot {op.verb} {' and '.join(d.name for d in have)}: {op.name} takes "
                    f"{' or '.join(op.kinds.split())} dtypes; cast with .astype(...)"
                )
        wanted = [common] * len(have)
    casts = tuple(None if h is w else w for h, w in zip(have, wanted, strict=True))
    out = dtypes.bool_ if op.compares else common
    return aval(shape, out), (casts if any(c is not None for c in casts) else None)


def common_device(op: Op, operands: tuple[Node, ...]) -> str | None:
    """Return the device of *operands*; host scalars have none. Raise DeviceError if there are two."""
    device = None
    for p in operands:
        other = p.device
        if other is not device and other is not None:
            if device is not None and other != device:
                raise DeviceError.mixed(op.verb, [describe(q) for q in operands if q.device is not None])
            device = other
    return device


def apply(op: Op, operands: tuple[Node, ...], attrs: Any = None) -> Node:
    """Return the node of *op* applied to *operands*.

    Shapes, dtypes and devices are checked now, at the line that a user wrote; nothing is computed.

    Raises
    ------
    ShapeError, DTypeError, DeviceError
        If the operands do not fit.
    """
    if len(operands) == 2:  # noqa: PLR2004  most ops are binary: this path is worth its lines
        a, b = operands
        spec = _memo.get((op, attrs, a.aval, b.aval))
    else:
        spec = _memo.get((op, attrs, *[p.aval for p in operands]))
    if spec is None:
        if any(type(p) is Pair for p in operands):  # never in the memo
            return _on_pairs[0](op, operands, attrs)
        spec = spec_of(op, attrs, operands)
    if spec.casts is not None:
        operands = tuple([p if c is None else cast(p, c) for p, c in zip(operands, spec.casts, strict=True)])
    if len(operands) == 2:  # noqa: PLR2004  as above
        a, b = operands
        device, other = a.device, b.device
        if other is not device and other is not None:
            device = other if device is None else common_device(op, operands)
        mask = a.mask | b.mask
        depth = a.depth if a.depth > b.depth else b.depth
    else:
        device = None
        mask = depth = 0
        for p in operands:
            other = p.device
            if other is not device and other is not None:
                device = other if device is None else common_device(op, operands)
            mask |= p.mask
            if p.depth > depth:
                depth = p.depth
    if mask:
        mask = _recorded(mask, operands) if spec.records and RECORDING.enabled else 0
    node = Node(spec, operands, device, mask, depth + 1)
    if depth and not depth % CHECKED_EVERY:
        grown(node)
    if RECORDING.observer is not None:
        RECORDING.observer(node)
    return node


# What records an op on complex operands; `pairs.py` puts it here.
_on_pairs: list[Callable[[Op, tuple[Node, ...], Any], Node]] = []


def on_pairs(function: Callable[[Op, tuple[Node, ...], Any], Node]) -> None:
    """Install what `apply` hands operands to of which one is complex."""
    _on_pairs[:] = [function]


_begun: dict[int, int] = {}  # from the bit of a recording in progress to the number of the first node it can watch
_again = [0]  # the bits in progress that ended recordings have had: nodes that have outlived these may carry them still


def begin_watching(bit: int, again: bool) -> None:
    """Say that a recording begins whose nodes carry *bit*; *again*: an ended one has had it."""
    _begun[bit] = newest()
    if again:
        _again[0] |= bit


def end_watching(bit: int) -> None:
    """Say that the recording of *bit* has ended."""
    _again[0] &= ~bit


def watches(mask: int, node: Node) -> int:
    """Return those bits of *mask* whose recordings watch *node*.

    A node that is older than a recording carries its bit because an earlier recording had the same: it loses it now.
    """
    old = node.mask & _again[0]
    while old:
        bit = old & -old
        old ^= bit
        if node.number < _begun[bit]:
            node.mask &= ~bit
    return node.mask & mask


def doubtful(mask: int) -> bool:
    """Whether nodes may carry bits of *mask* that `watches` takes from them."""
    return bool(mask & _again[0])


def _recorded(united: int, operands: tuple[Node, ...]) -> int:
    """Return the mask of what is made of operands whose masks are *united*."""
    if united & _again[0]:
        united = 0
        for p in operands:
            united |= watches(-1, p)
    return united


def cast(node: Node, dtype: dtypes.DType) -> Node:
    """Return *node* converted to *dtype*; a host scalar is converted at once."""
    from polygrad.ops.elementwise import astype  # noqa: PLC0415  the table is filled after this module is loaded

    if node.aval.dtype is dtype:
        return node
    if type(node) is Pair:
        if dtypes.KINDS[dtype] != "complex":
            raise DTypeError(
                f"cannot convert {node.aval.dtype.name} to {dtype.name}: the imaginary part would be lost; take "
                "pg.real(...), pg.imag(...) or pg.abs(...)"
            )
        return Pair(*[cast(p, dtypes.part(dtype)) for p in node.parents])
    if dtypes.KINDS[dtype] == "complex" and node.spec.op.kind != "scalar":
        return with_zero(cast(node, dtypes.part(dtype)))
    if node.device is None and node.value is not None and type(node.value) is not Siblings:
        return scalar(number_of(node), dtype)
    return apply(astype, (node,), (dtype,))


def with_zero(node: Node) -> Pair:
    """Return a real float node as a complex one whose imaginary part is zero."""
    from polygrad.ops.layout import expand_  # noqa: PLC0415  as above

    zero = scalar(0.0, node.aval.dtype)
    wide = apply(expand_, (zero,), (node.aval.shape,)) if node.aval.shape else zero
    return Pair(node, wide if node.device is None else place(wide, node.device))


def share(alias: Node, source: Node) -> None:
    """Give an alias the memory of what it stands for, if that is there: it then needs no realize of its own."""
    if type(source) is Pair:
        for a, s in zip(alias.parents, source.parents, strict=True):
            share(a, s)
        return
    if source.storage is not None:
        alias.storage, alias.depth = source.storage, 0
        if not alias.mask:
            alias.parents = ()


def scalar(value: bool | int | float | complex, dtype: dtypes.DType) -> Node:
    """Return a host scalar: a launch argument, never part of a kernel's structure."""
    spec = _scalar_specs.get(dtype)
    if spec is None:
        if dtypes.KINDS[dtype] == "complex":
            number, of_part = complex(value), dtypes.part(dtype)
            return Pair(scalar(number.real, of_part), scalar(number.imag, of_part))
        from polygrad.ops.creation import host_scalar  # noqa: PLC0415  as above

        spec = _scalar_specs[dtype] = Spec(host_scalar, None, aval((), dtype), None)
    node = Node(spec, (), None)
    if is_symbol(value):
        exact = dtypes.KINDS[dtype] == "float"  # what `convert` does then, in a fifth of the time at each replay
        converted = applied(float, value) if exact else applied(dtypes.convert, value, dtype)
        node.value = known(converted)
        if RECORDING.capture is not None:
            RECORDING.capture.symbols[node] = converted
    else:
        node.value = dtypes.convert(value, dtype)
    return node


def number_of(node: Node) -> Any:
    """Return the number of a host scalar; under `pg.compile` as the Symbol that it is, if it is one."""
    return node.value if RECORDING.capture is None else RECORDING.capture.symbols.get(node, node.value)


_scalar_specs: dict[dtypes.DType, Spec] = {}


class Siblings:
    """The results of one call of a library op, as long as somebody holds them."""

    __slots__ = ("results",)

    def __init__(self, results: Sequence[Node]) -> None:
        self.results = [weakref.ref(n) for n in results]

    def living(self) -> list[Node]:
        """Return the results that somebody holds."""
        return [n for n in [r() for r in self.results] if n is not None]


def call_library(op: Op, operands: tuple[Node, ...], attrs: tuple[Any, ...]) -> tuple[Node, ...]:
    """Return the results of a library op, each a node."""
    assert op.results is not None, op.name  # noqa: S101  a broken declaration, not a user's mistake
    count = len(op.results(*[p.aval for p in operands], *attrs))
    made = tuple([apply(op, operands, (k, *attrs)) for k in range(count)])
    siblings = Siblings(made)
    for node in made:
        node.value = siblings
    return made


def sibling(node: Node, index: int) -> Node:
    """Return another result of the call that *node* is a result of; it is called again if nobody holds that one."""
    found: Node | None = node.value.results[index]()
    if found is None:
        found = apply(node.spec.op, node.parents, (index, *node.spec.attrs[1:]))
        found.value = node.value
        node.value.results[index] = weakref.ref(found)
    return found


def lift(value: Any, like: Node) -> Node:
    """Return a Python scalar as a node that adapts to the dtype of *like* (weak promotion).

    A real one beside a complex array stays real, so that no 0 * inf comes of it.
    """
    dtype = dtypes.weak(value, like.aval.dtype)
    return scalar(value, dtype if isinstance(value, complex) else dtypes.part(dtype))


def creation_site() -> tuple[str, int, str] | None:
    """Return file, line and function of the innermost frame outside of polygrad."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if not (name.startswith("polygrad.") or name == "polygrad"):
            return frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name
        frame = frame.f_back  # type: ignore[assignment]
    return None
