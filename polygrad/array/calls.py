"""Functions whose derivative is not swept but called: checkpoints, and derivatives that somebody has written.

Here: `checkpoint` and `custom_vjp`.
Not here: the sweep that calls them (`autograd`), the other transforms (`transforms.py`).
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from polygrad import dtypes
from polygrad.array.anomaly import swept
from polygrad.array.object import Array
from polygrad.array.recording import close_recording, enable_grad, no_grad, open_recording, private_leaves, seed_for
from polygrad.array.transforms import sealed, zeros_like
from polygrad.array.tree import flatten
from polygrad.autograd import Call
from polygrad.errors import GradError
from polygrad.graph.functions import F
from polygrad.graph.node import RECORDING, Node, newest
from polygrad.runtime.structure import active_mask


def _call(
    outputs: list[Array], inputs: Sequence[Node], pull: Callable[[list[Array | None]], Sequence[Any]]
) -> list[Array]:
    """Return *outputs* as results of one call whose derivative by *inputs* is *pull*."""

    def rule(cotangents: list[Node | None]) -> list[Node | None]:
        found = pull([None if c is None else Array(c) for c in cotangents])
        return [None if g is None else g._node for g in found]

    call = Call(tuple(inputs), len(outputs), rule)
    nodes = [F.call_output_(o._node, *call.inputs, k) for k, o in enumerate(outputs)]
    for node in nodes:
        if node.mask:  # else nobody will ask, and the call would keep its inputs alive
            node.leaf = call
    return [Array(n) for n in nodes]


def checkpoint(f: Callable[..., Any]) -> Callable[..., Any]:
    """Return *f* that keeps nothing for the backward pass but its operands, and computes itself again there.

    Operands are its arguments, and arrays that *f* finds elsewhere: the parameters of a module, say. Random numbers are
    the same in both runs.

    >>> import polygrad as pg
    >>> pg.grad(pg.checkpoint(lambda x: pg.exp(x) * x))(pg.asarray(0.0))
    Array(1., dtype=float64, device='cpu:0')
    """
    from polygrad.array.random import replayed, snapshot  # noqa: PLC0415  built on arrays

    @functools.wraps(f)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        arguments, rebuild = flatten(list(args))
        floats = [k for k, x in enumerate(arguments) if dtypes.KINDS[x.dtype] == "float"]
        start = snapshot()
        with no_grad(), _found_elsewhere() as elsewhere:
            out = f(*rebuild([x.detach() for x in arguments]), **kwargs)
        outputs, rebuild_out = flatten(out)

        def pull(cotangents: list[Array | None]) -> Sequence[Any]:
            bit = open_recording()
            try:
                with replayed(start), enable_grad():
                    values: list[Array] = list(arguments)
                    for k, leaf in zip(floats, private_leaves([arguments[k] for k in floats], bit), strict=True):
                        values[k] = leaf
                    made, _ = flatten(f(*rebuild(values), **kwargs))
                    ends = [*[values[k]._node for k in floats], *elsewhere]
                    found = _swept_to(ends, made, cotangents, bit)
            finally:
                close_recording(bit)
            return [None if g is None else sealed(Array(g), bit) for g in found]

        return rebuild_out(_call(outputs, [*[arguments[k]._node for k in floats], *elsewhere], pull))

    return wrapped


@contextlib.contextmanager
def _found_elsewhere() -> Iterator[dict[Node, None]]:
    """Collect what is used in a block, was made before it, and needs gradients."""
    found: dict[Node, None] = {}
    start, outer = newest(), RECORDING.observer

    def look(node: Node) -> None:
        for p in node.parents:
            if p.mask & active_mask() and p.number <= start:
                found[p] = None
        if outer is not None:
            outer(node)

    RECORDING.observer = look
    try:
        yield found
    finally:
        RECORDING.observer = outer


def _swept_to(ends: list[Node], made: list[Array], cotangents: list[Array | None], bit: int) -> list[Node | None]:
    """Return the gradients of *ends*, which count as leaves, where there are any."""
    mask = bit
    for node in ends:
        mask |= node.mask & active_mask()
    seeds = [
        (m._node, seed_for(m, c))
        for m, c in zip(made, cotangents, strict=True)
        if c is not None and m._node.mask & mask
    ]
    found, _ = swept(seeds, mask, ends=frozenset(ends))
    return [found.get(node) for node in ends]


class custom_vjp:  # noqa: N801  used as a decorator, like a function
    """A function with a derivative of your own.

    ``f.defvjp(forward, backward)``: *forward* takes the arguments and returns (value, saved); *backward* takes (saved,
    cotangent) and returns a tuple with one gradient (or None) for each argument.

    Examples
    --------
    >>> import polygrad as pg
    >>> @pg.custom_vjp
    ... def clip_gradient(x):
    ...     return x
    >>> clip_gradient.defvjp(lambda x: (x, None), lambda saved, g: (pg.clip(g, -1.0, 1.0),))
    >>> pg.grad(lambda x: clip_gradient(x) * 5.0)(pg.asarray(1.0))
    Array(1., dtype=float64, device='cpu:0')
    """

    def __init__(self, f: Callable[..., Any]) -> None:
        functools.update_wrapper(self, f)
        self._f = f
        self._rules: tuple[Callable[..., Any], Callable[..., Any]] | None = None

    def defvjp(self, forward: Callable[..., Any], backward: Callable[..., Any]) -> None:
        """Give the two halves of the derivative."""
        self._rules = forward, backward

    def __call__(self, *args: Any) -> Any:
        """Apply the function."""
        if self._rules is None:
            raise GradError(
                f"{self._f.__name__} is a custom_vjp without a derivative: call its defvjp(forward, backward) first"
            )
        forward, backward = self._rules
        inputs, _ = flatten(list(args))
        with no_grad():
            out, saved = forward(*args)
        outputs, rebuild = flatten(out)

        def pull(cotangents: list[Array | None]) -> Sequence[Any]:
            full = [zeros_like(o) if c is None else c for o, c in zip(outputs, cotangents, strict=True)]
            found = backward(saved, rebuild(full))
            found = found if isinstance(found, tuple) else (found,)
            if len(found) != len(args):
                raise GradError(
                    f"the backward rule of {self._f.__name__} returned {len(found)} gradients for {len(args)} arguments"
                )
            grads: list[Any] = []
            for g, a in zip(found, args, strict=True):
                leaves, _ = flatten(a)
                grads += [None] * len(leaves) if g is None else flatten(g)[0]
            return grads

        return rebuild(_call(outputs, [x._node for x in inputs], pull))
