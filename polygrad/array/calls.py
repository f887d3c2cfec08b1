"""Functions whose derivative is not swept but called: checkpoints, and derivatives that somebody has written.

Here: `checkpoint`, `custom_vjp` and `custom_jvp`.
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
from polygrad.array.tree import flatten, map_tree
from polygrad.autograd import Call, gradient_of
from polygrad.errors import GradError
from polygrad.graph.functions import F
from polygrad.graph.node import RECORDING, Node, like_parts, newest, parts, watches
from polygrad.runtime.structure import active_mask

Side = Callable[[list[Array | None]], Sequence[Any]]


def _call(outputs: list[Array], inputs: Sequence[Node], pull: Side, push: Side | None = None) -> list[Array]:
    """Return *outputs* as results of one call whose derivative by *inputs* is *pull*, and forward *push*."""
    values = [o._node for o in outputs]

    def of_nodes(side: Side, before: Sequence[Node], after: Sequence[Node]) -> Callable[..., list[Node | None]]:
        def rule(given: list[Node | None]) -> list[Node | None]:
            found = side([None if g is None else Array(g) for g in _joined(given, before)])
            return _split([None if g is None else g._node for g in found], after)

        return rule

    flat = [p for value in values for p in parts(value)]
    call = Call(
        tuple([p for x in inputs for p in parts(x)]),
        len(flat),
        of_nodes(pull, values, inputs),
        None if push is None else of_nodes(push, inputs, values),
    )
    nodes = [F.call_output_(p, *call.inputs, k) for k, p in enumerate(flat)]
    for node in nodes:
        if node.mask:  # else nobody will ask, and the call would keep its inputs alive
            node.leaf = call
    made = iter(nodes)
    return [Array(like_parts(value, [next(made) for _ in parts(value)])) for value in values]


def _joined(given: Sequence[Node | None], like: Sequence[Node]) -> list[Node | None]:
    """Return what was given for the parts of nodes as one for each node."""
    rest = iter(given)
    return [gradient_of({p: g for p in parts(n) if (g := next(rest)) is not None}, n) for n in like]


def _split(found: Sequence[Node | None], like: Sequence[Node]) -> list[Node | None]:
    """Return nodes, one for each of *like*, as the parts that those have."""
    out: list[Node | None] = []
    for g, n in zip(found, like, strict=True):
        out += (
            [None] * len(parts(n)) if g is None else parts(F.astype(g, n.aval.dtype) if type(g) is not type(n) else g)
        )
    return out


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
        floats = [k for k, x in enumerate(arguments) if x.dtype in dtypes.DIFFERENTIABLE]
        start = snapshot()
        with no_grad(), _found_elsewhere() as elsewhere:
            out = f(*rebuild([x.detach() for x in arguments]), **kwargs)
        outputs, rebuild_out = flatten(out)

        def pull(cotangents: list[Array | None]) -> Sequence[Any]:
            bit = open_recording()
            since, RECORDING.since = RECORDING.since, newest()  # gradients stop at what was found elsewhere
            try:
                with replayed(start), enable_grad():
                    values: list[Array] = list(arguments)
                    for k, leaf in zip(floats, private_leaves([arguments[k] for k in floats], bit), strict=True):
                        values[k] = leaf
                    made, _ = flatten(f(*rebuild(values), **kwargs))
                    ends = [*[values[k]._node for k in floats], *elsewhere]
                    found = _swept_to(ends, made, cotangents, bit)
            finally:
                RECORDING.since = since
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
            if p.mask and p.number <= start and watches(active_mask(), p):
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
    return [gradient_of(found, node) for node in ends]


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
                given = flatten(g)[0]
                grads += given if leaves and len(given) == len(leaves) else [None] * len(leaves)
            return grads

        return rebuild(_call(outputs, [x._node for x in inputs], pull))


class custom_jvp:  # noqa: N801  used as a decorator, like a function
    """A function with a derivative of your own, written once for forward and reverse mode.

    ``f.defjvp(rule)``: *rule* takes a tuple of arguments and a tuple of their tangents and returns (value, tangent). It
    must be linear in the tangents: reverse mode is its transpose. Arguments that are no float arrays have zeros for
    tangents (numbers 0.0, anything else None).

    Examples
    --------
    >>> import polygrad as pg
    >>> @pg.custom_jvp
    ... def softplus(x):
    ...     return pg.log1p(pg.exp(-pg.abs(x))) + pg.maximum(x, 0.0)
    >>> @softplus.defjvp
    ... def rule(primals, tangents):
    ...     (x,), (t,) = primals, tangents
    ...     return softplus(x), t * pg.sigmoid(x)
    >>> pg.grad(softplus)(pg.asarray(0.0)), pg.jvp(softplus, (pg.asarray(0.0),), (pg.asarray(2.0),))[1]
    (Array(0.5, dtype=float64, device='cpu:0'), Array(1., dtype=float64, device='cpu:0'))
    """

    def __init__(self, f: Callable[..., Any]) -> None:
        functools.update_wrapper(self, f)
        self._f = f
        self._rule: Callable[..., Any] | None = None

    def defjvp(self, rule: Callable[..., Any]) -> Callable[..., Any]:
        """Give the derivative; return it, so that this is a decorator."""
        self._rule = rule
        return rule

    def defjvps(self, *rules: Callable[..., Any] | None) -> None:
        """Give the derivative as one rule for each argument, ``(tangent, value, *arguments) -> tangent``.

        None stands for zero; the tangents are added up.
        """

        def rule(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
            value = self(*primals)
            parts = [r(t, value, *primals) for r, t in zip(rules, tangents, strict=True) if r is not None]
            return value, functools.reduce(lambda a, b: a + b, parts) if parts else map_tree(zeros_like, value)

        self._rule = rule

    def __call__(self, *args: Any) -> Any:
        """Apply the function."""
        if self._rule is None:
            raise GradError(f"{self._f.__name__} is a custom_jvp without a derivative: call its defjvp(rule) first")
        leaves, _ = flatten(list(args))
        moving = [k for k, x in enumerate(leaves) if x.dtype in dtypes.DIFFERENTIABLE]
        with no_grad():
            outputs, rebuild = flatten(self._f(*args))

        def push(tangents: list[Array | None]) -> list[Array]:
            full = [zeros_like(x) for x in leaves]
            for k, t in zip(moving, tangents, strict=True):
                full[k] = full[k] if t is None else t
            return self._tangents(args, full, outputs)

        def pull(cotangents: list[Array | None]) -> Sequence[Any]:
            bit = open_recording()
            try:
                with enable_grad():
                    probes = private_leaves([zeros_like(leaves[k]) for k in moving], bit)
                    made = push(list(probes))
                    found = _swept_to([p._node for p in probes], made, cotangents, bit)
            finally:
                close_recording(bit)
            return [None if g is None else sealed(Array(g), bit) for g in found]

        return rebuild(_call(outputs, [leaves[k]._node for k in moving], pull, push))

    def _tangents(self, args: Sequence[Any], full: list[Array], outputs: list[Array]) -> list[Array]:
        """Return the tangents of the outputs, as the rule gives them for tangents *full* of all arrays."""
        given, at = [], 0
        for a in args:
            leaves, rebuild = flatten(a)
            number = isinstance(a, (int, float)) and not isinstance(a, bool)
            given.append(rebuild(full[at : at + len(leaves)]) if leaves else 0.0 if number else None)
            at += len(leaves)
        assert self._rule is not None  # noqa: S101  __call__ has seen to it
        found = self._rule(tuple(args), tuple(given))
        if not (isinstance(found, tuple) and len(found) == 2):  # noqa: PLR2004  value and tangent
            raise GradError(f"the rule of {self._f.__name__} must return a pair (value, tangent)")
        tangents, _ = flatten(found[1])
        if [t.shape for t in tangents] != [o.shape for o in outputs]:
            raise GradError(
                f"the rule of {self._f.__name__} returned tangents of shapes {[list(t.shape) for t in tangents]} for "
                f"values of shapes {[list(o.shape) for o in outputs]}"
            )
        return tangents
