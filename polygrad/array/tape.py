"""Tapes: recordings in a block, as an object.

Here: `Tape`, its stack in each thread, and `Record`, a node as a tape shows it.
Not here: the sweep (`autograd`), `.grad` and grad mode (`recording.py`).
"""

import contextlib
import threading
import weakref
from collections.abc import Callable
from typing import Any

from polygrad import dtypes
from polygrad.array.anomaly import swept
from polygrad.array.object import Array
from polygrad.array.recording import (
    GradMode,
    close_recording,
    deposit,
    no_grad,
    open_recording,
    private_leaves,
    public_mask,
    seed_for,
)
from polygrad.array.tree import leaves_of, map_tree
from polygrad.autograd import gradient_of, spend
from polygrad.errors import GradError
from polygrad.graph.functions import F
from polygrad.graph.node import RECORDING, Node, creation_site, watches
from polygrad.runtime.structure import ALWAYS, active_mask


class _Tapes(threading.local):
    def __init__(self) -> None:
        self.stack: list[Tape | None] = []


_tapes = _Tapes()


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
        return bool(watches(active_mask(), self._node))

    @property
    def grad(self) -> Array | None:
        """The gradient that the tape's backward brought here, or None."""
        found = gradient_of(self._tape._grads, self._node)
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
        self._bit = 0  # of its recording, which the first array to be watched opens
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
        for array in leaves_of(x):
            if not watches(public_mask(), array._node):
                self._bit = self._bit or open_recording(public=True)
                array._node = private_leaves([array], self._bit)[0]._node
                array._node.leaf = weakref.ref(array)
                self._watched.append(array)

    @property
    def nodes(self) -> list[Record]:
        """What was recorded and is still alive, in order."""
        return [Record(n, self) for ref in self._nodes if (n := ref()) is not None]

    def backward(self, loss: Array, grad: Array | None = None, *, retain_graph: bool = False) -> None:
        """Add the gradients of *loss* to the `.grad` of the leaves, as `Array.backward` does."""
        seed = seed_for(loss, grad)
        mask = public_mask()
        if not watches(mask, loss._node):
            raise GradError(
                "cannot go backward: the tape has recorded nothing that leads to this array; watch its inputs first"
            )
        with no_grad():
            found, passed = swept([(loss._node, seed)], mask, self._remember)
            deposit(found)
        if not (retain_graph or self._persistent):
            spend(passed)

    def _remember(self, node: Node, gradient: Node) -> None:
        self._grads[node] = gradient

    def gradient(self, target: Array, sources: Any) -> Any:
        """Return the gradients of *target* (a scalar, or the sum of its elements) for *sources*, an array or a tree.

        Raises
        ------
        GradError
            On a second call, unless the tape is persistent.
        """
        if self._used and not self._persistent:
            raise GradError(
                "this tape has given its gradient already and freed the graph: make it with persistent=True to ask "
                "again"
            )
        if dtypes.KINDS[target.dtype] == "complex":
            raise GradError(
                f"cannot take the gradient of a value of {target.dtype.name}: take it of a real one, pg.abs(...) or "
                "pg.real(...) say"
            )
        self._used = True
        grads: dict[Node, Node] = {}
        mask = public_mask()
        if watches(mask, target._node):
            seed = F.full_of(1.0, target._node)
            seed.device = target.device
            outside = target._node.mask & active_mask() & ~mask  # a transform around this tape differentiates again
            with GradMode(bool(outside or _tapes.stack)):  # a tape that is open records the gradient too
                _, passed = swept([(target._node, seed)], mask, grads.__setitem__)
            if not (self._persistent or self._nested or outside):  # else what is around needs the graph too
                spend(passed)
        result = map_tree(lambda x: Array(gradient_of(grads, x._node) or _zeros(x)), sources)
        if not self._persistent:
            self.release()
        return result

    def release(self) -> None:
        """Let go of the recording: watched arrays, and what was computed from them alone, stop needing gradients."""
        if self._bit:
            close_recording(self._bit)
        for array in self._watched:
            array._node.mask &= ~self._bit
            if array._node.mask & ALWAYS:  # it was bound to another value since
                array.requires_grad = False
        self._bit = 0
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
