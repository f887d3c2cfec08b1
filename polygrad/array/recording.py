"""Recording for differentiation: grad mode, tapes, `backward`, anomaly detection.

Here: what users switch and what they call to get `.grad`. One mechanism serves all of it: a bit in the nodes' masks.
Not here: the sweep itself (`autograd`), the transforms (`transforms.py`).
"""

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from polygrad import dtypes
from polygrad.array.object import Array, make_leaf
from polygrad.autograd import spend, sweep
from polygrad.errors import GradError, ShapeError
from polygrad.graph.functions import F
from polygrad.graph.node import RECORDING, Node, creation_site
from polygrad.runtime.realize import ALWAYS, active_mask, realize, set_active_mask


class _Switch(contextlib.ContextDecorator):
    """Sets this thread's grad mode within a block or a function."""

    def __init__(self, enabled: bool) -> None:
        self._enabled = enabled
        self._before: list[bool] = []

    def __enter__(self) -> "_Switch":
        self._before.append(RECORDING.enabled)
        RECORDING.enabled = self._enabled
        return self

    def __exit__(self, *_: object) -> None:
        RECORDING.enabled = self._before.pop()


def no_grad() -> _Switch:
    """Record nothing within a block, in this thread; as ``@pg.no_grad()`` within a function.

    >>> import polygrad as pg
    >>> x = pg.asarray(2.0).requires_grad_()
    >>> with pg.no_grad():
    ...     (x * x).requires_grad
    False
    """
    return _Switch(False)


def enable_grad() -> _Switch:
    """Record within a block, in this thread, whatever is around it."""
    return _Switch(True)


def is_grad_enabled() -> bool:
    """Whether this thread records."""
    return RECORDING.enabled


# ---- backward ------------------------------------------------------------------------------------------------


def seed_for(output: Array, gradient: Array | None) -> Node:
    """Return the cotangent to start a backward pass of *output* from."""
    if dtypes.KINDS[output.dtype] != "float":
        raise GradError(f"cannot differentiate an array of {output.dtype.name}: only float dtypes have gradients")
    if gradient is None:
        if output.size != 1:
            raise GradError(
                f"cannot start backward from an array of shape {list(output.shape)}: only a scalar has a gradient without a seed; "
                f"pass gradient=... of that shape, or reduce it, by .sum() say"
            )
        one = F.full_of(1.0, output._node)
        one.device = output.device
        return one  # type: ignore[no-any-return]
    if gradient.shape != output.shape:
        raise ShapeError(f"cannot seed an array of shape {list(output.shape)} with a gradient of shape {list(gradient.shape)}")
    return F.astype(gradient._node, output.dtype)  # type: ignore[no-any-return]


def backward(output: Array, gradient: Array | None, retain_graph: bool) -> None:
    """Add the gradients of *output* to its leaves; see `Array.backward`."""
    seed = seed_for(output, gradient)
    if not output._node.mask & ALWAYS:
        raise GradError(
            "cannot go backward: no array that this one was computed from has requires_grad=True, or it was computed in no_grad()"
        )
    before, RECORDING.enabled = RECORDING.enabled, False
    try:
        leaves, passed = swept([(output._node, seed)], ALWAYS)
        for node, found in leaves.items():
            _deposit(node, found)
    finally:
        RECORDING.enabled = before
    if not retain_graph:
        spend(passed)


def _deposit(leaf: Node, gradient: Node) -> None:
    owner = leaf.leaf() if isinstance(leaf.leaf, weakref.ref) else None
    if owner is not None:
        old = owner._grad
        owner._grad = Array(gradient if old is None else F.add(old._node, gradient))


# ---- tapes --------------------------------------------------------------------------------------------------------


class _Tapes(threading.local):
    def __init__(self) -> None:
        self.stack: list[Tape | None] = []


_tapes = _Tapes()
_bits = threading.Lock()
_next_bit = [1]
BITS = 60


def open_recording() -> int:
    """Return the bit of a new recording, which is active until `close_recording`."""
    with _bits:
        for _ in range(BITS):
            bit = 1 << _next_bit[0]
            _next_bit[0] = _next_bit[0] % BITS + 1
            if not active_mask() & bit:
                set_active_mask(active_mask() | bit)
                return bit
    raise GradError(f"more than {BITS} recordings are open at once: close some tapes")


def close_recording(bit: int) -> None:
    """End a recording: nodes that only it watched let go of their operands when they are realized."""
    with _bits:
        set_active_mask(active_mask() & ~bit)


class Record:
    """One recorded node, as a tape shows it."""

    __slots__ = ("_node", "_tape")

    def __init__(self, node: Node, tape: "Tape") -> None:
        self._node = node
        self._tape = tape

    @property
    def value(self) -> Array:
        """The array."""
        return Array(self._node)

    @property
    def op_name(self) -> str:
        """The op that made it."""
        return self._node.spec.op.name.rstrip("_")

    @property
    def parents(self) -> list["Record"]:
        """The operands."""
        return [Record(p, self._tape) for p in self._node.parents]

    @property
    def requires_grad(self) -> bool:
        """Whether gradients flow through it."""
        return bool(self._node.mask & active_mask())

    @property
    def grad(self) -> Array | None:
        """The gradient that the tape's backward brought here, or None."""
        found = self._tape._grads.get(self._node)
        return None if found is None else Array(found)

    @property
    def grad_fn(self) -> Callable[[Array], list[Array | None]] | None:
        """A function from this node's gradient to those of its operands; None for a leaf."""
        node = self._node
        if not node.parents or not self.requires_grad:
            return None

        def pull(gradient: Array) -> list[Array | None]:
            out: list[Array | None] = []
            for k, p in enumerate(node.parents):
                rule = node.spec.op.vjp[k] if node.spec.op.vjp and k < len(node.spec.op.vjp) else None
                if rule is None or not p.mask:
                    out.append(None)
                    continue
                part = rule(F, gradient._node, node, *node.parents, *(node.spec.attrs or ()))
                out.append(Array(F.sum_to(part, p.aval.shape)))
            return out

        return pull

    @property
    def creation_trace(self) -> tuple[str, int, str] | None:
        """File, line and function where it was made."""
        return self._node.trace  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return f"<record of {self._node!r}>"


class Tape:
    """A recording of what is computed from watched arrays, in a block of this thread; tapes nest.

    Parameters
    ----------
    persistent : bool
        Whether `gradient` may be called several times; otherwise the first frees the graph.

    Examples
    --------
    >>> import polygrad as pg
    >>> x = pg.asarray(3.0)
    >>> with pg.Tape() as tape:
    ...     tape.watch(x)
    ...     y = x * x
    >>> tape.gradient(y, x)
    Array(6., dtype=float64, device='cpu:0')
    """

    def __init__(self, persistent: bool = False) -> None:
        self._persistent = persistent
        self._used = False
        self._watched: list[Array] = []
        self._nodes: list[weakref.ref[Node]] = []
        self._grads: dict[Node, Node] = {}
        self._outer: Any = None
        self._nested = False

    def __enter__(self) -> "Tape":
        self._nested = bool(_tapes.stack)
        _tapes.stack.append(self)
        self._outer, RECORDING.observer = RECORDING.observer, self._note
        return self

    def __exit__(self, *_: object) -> None:
        if self in _tapes.stack:
            while _tapes.stack.pop() is not self:
                pass
        RECORDING.observer = self._outer

    def _note(self, node: Node) -> None:
        if node.mask:
            if node.trace is None:
                node.trace = creation_site()
            self._nodes.append(weakref.ref(node))
        if self._outer is not None:
            self._outer(node)

    def watch(self, x: Any) -> None:
        """Record what is computed from *x*, an array or a tree of arrays, from now on."""
        from polygrad.array.tree import leaves_of  # noqa: PLC0415  built on arrays

        for array in leaves_of(x):
            if not array.requires_grad:
                array.requires_grad = True
                self._watched.append(array)

    @property
    def nodes(self) -> list[Record]:
        """What was recorded and is still alive, in order."""
        return [Record(n, self) for ref in self._nodes if (n := ref()) is not None]

    def backward(self, loss: Array, grad: Array | None = None, *, retain_graph: bool = False) -> None:
        """Add the gradients of *loss* to the `.grad` of the leaves, as `Array.backward` does."""
        seed = seed_for(loss, grad)
        if not loss._node.mask & ALWAYS:
            raise GradError("cannot go backward: the tape has recorded nothing that leads to this array; watch its inputs first")
        with no_grad():
            found, passed = swept([(loss._node, seed)], ALWAYS, self._remember)
            for node, gradient in found.items():
                _deposit(node, gradient)
        if not (retain_graph or self._persistent):
            spend(passed)

    def _remember(self, node: Node, gradient: Node) -> None:
        self._grads[node] = gradient

    def gradient(self, target: Array, sources: Any) -> Any:
        """Return the gradients of *target* (a scalar, or the sum of its elements) for *sources*, an array or a tree of arrays.

        Raises
        ------
        GradError
            On a second call, unless the tape is persistent.
        """
        from polygrad.array.tree import map_tree  # noqa: PLC0415  built on arrays

        if self._used and not self._persistent:
            raise GradError("this tape has given its gradient already and freed the graph: make it with persistent=True to ask again")
        self._used = True
        grads: dict[Node, Node] = {}
        if target._node.mask & ALWAYS:
            seed = F.full_of(1.0, target._node)
            seed.device = target.device
            with _Switch(self._persistent or len(_tapes.stack) > 0):
                _, passed = swept([(target._node, seed)], ALWAYS, grads.__setitem__)
            if not self._persistent and not self._nested:  # else the outer tape needs the graph too
                spend(passed)
        result = map_tree(lambda x: Array(grads[x._node]) if x._node in grads else Array(_zeros(x)), sources)
        if not self._persistent:
            self.release()
        return result

    def release(self) -> None:
        """Let go of the recording: watched arrays stop needing gradients."""
        for array in self._watched:
            array.requires_grad = False
        self._watched.clear()
        self._nodes.clear()
        self._grads.clear()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # at interpreter exit the modules may be gone
            self.release()


def _zeros(x: Array) -> Node:
    zeros = F.zeros_like(F.cut(x._node))
    zeros.device = x.device
    return zeros  # type: ignore[no-any-return]


def get_current_tape() -> Tape | None:
    """Return the innermost tape of this thread, or None."""
    return _tapes.stack[-1] if _tapes.stack else None


def set_current_tape(tape: Tape | None) -> None:
    """Make *tape* the innermost tape of this thread; None for none."""
    if tape is None:
        _tapes.stack.clear()
        RECORDING.observer = None
    else:
        _tapes.stack.append(tape)
        RECORDING.observer = tape._note


# ---- anomaly detection ------------------------------------------------------------------------------------------------


_anomaly = threading.local()


@contextlib.contextmanager
def detect_anomaly() -> Iterator[None]:
    """Check every value and every gradient of this thread for NaN and infinity as it is made; slow, for debugging.

    Raises
    ------
    GradError
        Naming the op, whether forward or backward, and the line that made it.
    """
    outer = RECORDING.observer
    checking = [False]

    def observe(node: Node) -> None:
        if outer is not None:
            outer(node)
        if not checking[0] and not getattr(_anomaly, "sweeping", False):  # the sweep checks its own
            node.trace = creation_site()
            checking[0] = True
            try:
                _check_finite(node, node, "forward")
            finally:
                checking[0] = False

    def observe_gradient(node: Node, gradient: Node) -> None:
        if not checking[0]:
            checking[0] = True
            gradient.device = gradient.device or node.device
            try:
                _check_finite(gradient, node, "backward")
            finally:
                checking[0] = False

    before = getattr(_anomaly, "observer", None)
    RECORDING.observer, _anomaly.observer = observe, observe_gradient
    try:
        yield
    finally:
        RECORDING.observer, _anomaly.observer = outer, before


def swept(
    seeds: list[tuple[Node, Node]], mask: int, observer: Callable[[Node, Node], None] | None = None
) -> tuple[dict[Node, Node], list[Node]]:
    """Return what `sweep` does, its gradients checked if this thread detects anomalies."""
    inspector = getattr(_anomaly, "observer", None)
    before, _anomaly.sweeping = getattr(_anomaly, "sweeping", False), inspector is not None
    try:
        return sweep(seeds, mask, observer, inspector)
    finally:
        _anomaly.sweeping = before


def _check_finite(value: Node, culprit: Node, direction: str) -> None:
    if dtypes.KINDS[value.aval.dtype] != "float" or not value.aval.size or value.device is None:
        return
    with no_grad():
        fine = F.all(F.isfinite(F.cut(value)))
    realize([fine])
    if not Array(fine).item():
        where = f"{culprit.trace[0]}:{culprit.trace[1]}, in {culprit.trace[2]}" if culprit.trace else "an unknown line"
        what = "value" if direction == "forward" else "gradient"
        raise GradError(
            f"{direction} anomaly: the {what} of {culprit.spec.op.name.rstrip('_')} {culprit.aval!r}, made at {where}, holds a NaN or an infinity"
        )


def private_leaves(arrays: Sequence[Array], bit: int) -> list[Array]:
    """Return arrays of the same values that only the recording *bit* watches (and whatever watched them before)."""
    out = []
    for x in arrays:
        leaf = F.alias(x._node) if RECORDING.enabled else make_leaf(x._node, 0, x.dtype)
        if dtypes.KINDS[x.dtype] != "float":
            raise GradError(f"{x.dtype.name} arrays have no gradients: only float dtypes do; convert with .astype('float32')")
        leaf.mask |= bit
        if x._node.storage is not None:
            leaf.storage = x._node.storage
        out.append(Array(leaf))
    return out


