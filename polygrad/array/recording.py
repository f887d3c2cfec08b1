"""Recording for differentiation: grad mode, recordings, `backward`.

Here: what users switch, and what puts gradients into `.grad`. One mechanism serves tapes, `backward` and the
transforms: a bit in the nodes' masks for each recording.
Not here: the sweep itself (`autograd`), tapes (`tape.py`), the transforms (`transforms.py`).
"""

import contextlib
import gc
import os
import threading
import weakref
from collections.abc import Sequence

from polygrad import dtypes
from polygrad.array.anomaly import swept
from polygrad.array.object import Array, _backward, make_leaf
from polygrad.autograd import spend
from polygrad.errors import DTypeError, GradError, ShapeError
from polygrad.graph.functions import F
from polygrad.graph.node import RECORDING, Node, PartOf, begin_watching, end_watching, scalar, share, watches
from polygrad.runtime.structure import ALWAYS, active_mask, set_active_mask


class GradMode(contextlib.ContextDecorator):
    """Sets this thread's grad mode within a block or a function."""

    def __init__(self, enabled: bool) -> None:
        self._enabled = enabled
        self._before: list[bool] = []

    def __enter__(self) -> "GradMode":
        self._before.append(RECORDING.enabled)
        RECORDING.enabled = self._enabled
        return self

    def __exit__(self, *_: object) -> None:
        RECORDING.enabled = self._before.pop()


def no_grad() -> GradMode:
    """Record nothing within a block, in this thread; as ``@pg.no_grad()`` within a function.

    >>> import polygrad as pg
    >>> x = pg.asarray(2.0).requires_grad_()
    >>> with pg.no_grad():
    ...     (x * x).requires_grad
    False
    """
    return GradMode(False)


def enable_grad() -> GradMode:
    """Record within a block, in this thread, whatever is around it.

    >>> import polygrad as pg
    >>> x = pg.asarray([1.0, 2.0]).requires_grad_()
    >>> with pg.no_grad(), pg.enable_grad():
    ...     (x * x).sum().backward()
    >>> x.grad.tolist()
    [2.0, 4.0]
    """
    return GradMode(True)


def is_grad_enabled() -> bool:
    """Whether this thread records.

    >>> import polygrad as pg
    >>> with pg.no_grad():
    ...     pg.is_grad_enabled()
    False
    """
    return RECORDING.enabled


def seed_for(output: Array, gradient: Array | None) -> Node:
    """Return the cotangent to start a backward pass of *output* from."""
    if output.dtype not in dtypes.DIFFERENTIABLE:
        raise GradError(
            f"cannot differentiate an array of {output.dtype.name}: only float and complex dtypes have gradients"
        )
    if gradient is None:
        if output.size != 1:
            raise GradError(
                f"cannot start backward from an array of shape {list(output.shape)}: only a scalar has a gradient "
                "without a seed; "
                f"pass gradient=... of that shape, or reduce it, by .sum() say"
            )
        if dtypes.KINDS[output.dtype] == "complex":
            raise GradError(
                f"cannot start backward from a value of {output.dtype.name} without a seed: pass gradient=..., or go "
                "backward from a real one, pg.abs(...) or pg.real(...) say"
            )
        one: Node = F.full_of(1.0, output._node) if output._node.aval.shape else scalar(1.0, output.dtype)
        one.device = output.device
        return one
    if gradient.shape != output.shape:
        raise ShapeError(
            f"cannot seed an array of shape {list(output.shape)} with a gradient of shape {list(gradient.shape)}"
        )
    return F.astype(gradient._node, output.dtype)  # type: ignore[no-any-return]


def backward(output: Array, gradient: Array | None, retain_graph: bool) -> None:
    """Add the gradients of *output* to its leaves; see `Array.backward`."""
    seed = seed_for(output, gradient)
    mask = public_mask()
    if not watches(mask, output._node):
        raise GradError(
            "cannot go backward: no array that this one was computed from has requires_grad=True, or it was "
            "computed in no_grad()"
        )
    before, RECORDING.enabled = RECORDING.enabled, False
    try:
        leaves, passed = swept([(output._node, seed)], mask)
        deposit(leaves)
    finally:
        RECORDING.enabled = before
    if not retain_graph:
        spend(passed)
    if output.size == 1:
        noted, key = _losses.noted, id(output)
        noted[key] = weakref.ref(output, lambda _: noted.pop(key, None))


_backward[:] = [backward]


class _Losses(threading.local):
    """What this thread has gone backward from; by id, as arrays compare by value."""

    def __init__(self) -> None:
        self.noted: dict[int, weakref.ref[Array]] = {}


_losses = _Losses()


def take_losses() -> list[Array]:
    """Return the scalars from which this thread went backward since last asked, if somebody holds them still.

    An optimiser's step computes them with its own results: a loss that is looked at later would cost the whole forward
    pass again, because nothing that the step itself computes contains it.
    """
    alive = [loss for ref in _losses.noted.values() if (loss := ref()) is not None]
    _losses.noted.clear()
    return alive


def deposit(gradients: dict[Node, Node]) -> None:
    """Add the gradients of leaves to the `.grad` of the arrays whose leaves these are, if they are still alive."""
    halves: dict[int, tuple[Array, list[Node | None]]] = {}
    for leaf, gradient in gradients.items():
        if isinstance(leaf.leaf, PartOf):
            owner = leaf.leaf.owner()
            if owner is not None:
                halves.setdefault(id(owner), (owner, [None, None]))[1][leaf.leaf.which] = gradient
        else:
            owner = leaf.leaf() if isinstance(leaf.leaf, weakref.ref) else None
            if owner is not None:
                _accumulate(owner, gradient)
    for owner, found in halves.values():
        there = found[0] or found[1]
        assert there is not None  # noqa: S101  one of them was found
        _accumulate(owner, F.pair_(*[F.zeros_like(there) if g is None else g for g in found]))


def _accumulate(owner: Array, gradient: Node) -> None:
    old = owner._grad
    owner._grad = Array(gradient if old is None else F.add(old._node, gradient))


_bits = threading.RLock()  # a finalizer may close a recording while its thread opens another
_next_bit = [1]
_had: set[int] = set()  # bits that a recording has had
_public = [ALWAYS]
BITS = 60


def _after_fork() -> None:
    global _bits  # noqa: PLW0603  a thread that does not exist in the child may have held the old one
    _bits = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def public_mask() -> int:
    """Return the bits that `backward` goes through: that of requires_grad, and those of tapes."""
    return _public[0]


def open_recording(public: bool = False) -> int:
    """Return the bit of a new recording, which is active until `close_recording`; a tape's is *public*."""
    bit = _free_bit()
    if not bit:
        gc.collect()  # recordings that nobody can reach any more close themselves
        bit = _free_bit()
    if not bit:
        raise GradError(f"more than {BITS} recordings are open at once: let go of some tapes or pull-backs")
    if public:
        with _bits:
            _public[0] |= bit
    return bit


def _free_bit() -> int:
    """Return a bit that no recording has, now active; 0 if there is none."""
    with _bits:
        for _ in range(BITS):
            bit = 1 << _next_bit[0]
            _next_bit[0] = _next_bit[0] % BITS + 1
            if not active_mask() & bit:
                begin_watching(bit, bit in _had)
                _had.add(bit)
                set_active_mask(active_mask() | bit)
                return bit
    return 0


def close_recording(bit: int) -> None:
    """End a recording: nodes that only it watched let go of their operands when they are realized."""
    with _bits:
        end_watching(bit)
        set_active_mask(active_mask() & ~bit)
        _public[0] &= ~bit


def private_leaves(arrays: Sequence[Array], bit: int) -> list[Array]:
    """Return arrays of the same values that only the recording *bit* watches (and whatever watched them before)."""
    out = []
    for x in arrays:
        leaf = F.alias(x._node) if RECORDING.enabled else make_leaf(x._node, 0, x.dtype)
        if x.dtype not in dtypes.DIFFERENTIABLE:
            raise DTypeError(
                f"{x.dtype.name} arrays have no gradients: only float and complex dtypes do; convert with "
                ".astype('float32')"
            )
        leaf.mask |= bit
        share(leaf, x._node)
        out.append(Array(leaf))
    return out
