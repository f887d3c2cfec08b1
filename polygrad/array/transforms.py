"""Transforms of functions: gradients and products with Jacobians.

Here: functions that take functions of arrays (or trees of arrays) and return such functions.
Not here: the sweeps (`autograd`), `.grad` and tapes (`recording.py`), functions that bring a derivative of their own
(`calls.py`).
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from polygrad.array.anomaly import swept
from polygrad.array.object import Array
from polygrad.array.recording import close_recording, enable_grad, open_recording, private_leaves, seed_for
from polygrad.array.tree import flatten, map_tree
from polygrad.autograd import gradient_of, push
from polygrad.errors import GradError, ShapeError
from polygrad.graph.functions import F
from polygrad.graph.node import Node, share


def sealed(array: Array, bit: int) -> Array:
    """Return an array that the ended recording *bit* no longer watches."""
    node = F.alias(array._node)
    node.mask &= ~bit
    share(node, array._node)
    return Array(node)


def zeros_like(x: Array) -> Array:
    """Return constant zeros like *x*, on its device."""
    node = F.zeros_like(F.cut(x._node))
    node.device = x.device
    return Array(node)


def collected(found: dict[Node, Node], arrays: Sequence[Array]) -> list[Array]:
    """Return what a sweep has found for each of *arrays*, zeros where it has found nothing."""
    gradients = [gradient_of(found, x._node) for x in arrays]
    return [zeros_like(x) if g is None else Array(g) for x, g in zip(arrays, gradients, strict=True)]


def value_and_grad(
    f: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """Return a function that gives *f*'s value and its gradient.

    Parameters
    ----------
    f : callable
        Returns a scalar array, or (scalar, anything) if *has_aux*.
    argnums : int or sequence of int
        Which positional arguments to differentiate by: arrays or trees of float arrays.
    has_aux : bool
        Whether *f* returns something beside the scalar.

    Raises
    ------
    GradError
        If *f* does not return a scalar, or an argument holds integers.

    Examples
    --------
    >>> import polygrad as pg
    >>> value, slope = pg.value_and_grad(lambda x: (x ** 3).sum())(pg.asarray([1.0, 2.0]))
    >>> value, slope
    (Array(9., dtype=float64, device='cpu:0'), Array([ 3., 12.], dtype=float64, device='cpu:0'))
    """
    several = not isinstance(argnums, int)
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)

    @functools.wraps(f)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        bit = open_recording()
        try:
            with enable_grad():
                call, watched, rebuilds = watch_arguments(args, numbers, bit)
                out = f(*call, **kwargs)
                value, aux = out if has_aux else (out, None)
                if not isinstance(value, Array):
                    raise GradError(f"the function to differentiate must return an array, got {type(value).__name__}")
                grads = _gradients(value, watched, bit)
        finally:
            close_recording(bit)
        parts, at = [], 0
        for leaves, rebuild in rebuilds:
            parts.append(rebuild([sealed(g, bit) for g in grads[at : at + leaves]]))
            at += leaves
        result = tuple(parts) if several else parts[0]
        value = sealed(value, bit)
        return ((value, map_tree(lambda x: sealed(x, bit), aux)), result) if has_aux else (value, result)

    return wrapped


def watch_arguments(args: Sequence[Any], numbers: Sequence[int], bit: int) -> tuple[list[Any], list[Array], list[Any]]:
    """Return arguments with those of *numbers* watched by the recording *bit*.

    Also their arrays, and for each argument how many arrays it has and what rebuilds it from others.
    """
    call = list(args)
    watched: list[Array] = []
    rebuilds = []
    for k in numbers:
        if not -len(args) <= k < len(args):
            raise GradError(
                f"cannot differentiate by argument {k}: the function was called with {len(args)} positional arguments"
            )
        leaves, rebuild = flatten(args[k])
        if not leaves:
            raise GradError(
                f"cannot differentiate by argument {k}: {args[k]!r} holds no arrays; convert it with pg.asarray(...)"
            )
        private = private_leaves(leaves, bit)
        call[k] = rebuild(private)
        watched += [Array(x._node) for x in private]  # the function may bind its own handles to other nodes
        rebuilds.append((len(leaves), rebuild))
    return call, watched, rebuilds


def _gradients(value: Array, watched: list[Array], bit: int, seed: Array | None = None) -> list[Array]:
    start = seed_for(value, seed)
    found: dict[Node, Node] = {}
    if value._node.mask & bit:
        found, _ = swept([(value._node, start)], bit)
    return collected(found, watched)


def grad(f: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Callable[..., Any]:
    """Return a function that gives the gradient of *f*, a function with a scalar result; see `value_and_grad`.

    >>> import polygrad as pg
    >>> pg.grad(pg.grad(lambda x: x ** 3))(pg.asarray(2.0))
    Array(12., dtype=float64, device='cpu:0')
    """
    both = value_and_grad(f, argnums, has_aux)

    @functools.wraps(f)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        value, result = both(*args, **kwargs)
        return (result, value[1]) if has_aux else result

    return wrapped


def _apart(out: Any, has_aux: bool, bit: int) -> tuple[Any, tuple[Any, ...]]:
    """Return what a function returned to be differentiated, and what it returned beside it, as constants."""
    if not has_aux:
        return out, ()
    if not (isinstance(out, tuple) and len(out) == 2):  # noqa: PLR2004  value and aux
        raise GradError("has_aux says that the function returns a pair (value, anything): it does not")
    return out[0], (map_tree(lambda x: sealed(x, bit), out[1]),)


def vjp(f: Callable[..., Any], *primals: Any, has_aux: bool = False) -> tuple[Any, ...]:
    """Return *f*'s value at *primals*, and its pull-back.

    That takes a cotangent (a tree like the value) and returns a tuple with one gradient for each primal; it can be
    called as often as you like. With *has_aux*, *f* returns (value, anything), and the anything comes third.

    >>> import polygrad as pg
    >>> value, pull = pg.vjp(lambda x: x * x, pg.asarray([1.0, 2.0]))
    >>> pull(pg.asarray([1.0, 10.0]))
    (Array([ 2., 40.], dtype=float64, device='cpu:0'),)
    """
    recording = _Open()
    bit = recording.bit
    with enable_grad():
        call, watched, rebuilds = watch_arguments(primals, range(len(primals)), bit)
        out, aux = _apart(f(*call), has_aux, bit)
    outputs, rebuild_out = flatten(out)

    def pull(cotangents: Any) -> Any:
        given, _ = flatten(cotangents)
        if len(given) != len(outputs):
            raise GradError(f"the pull-back takes {len(outputs)} cotangents, one for each output, got {len(given)}")
        with enable_grad():
            seeds = [(o._node, seed_for(o, c)) for o, c in zip(outputs, given, strict=True) if o._node.mask & bit]
            found, _ = swept(seeds, bit) if seeds else ({}, [])
        grads = collected(found, watched)
        parts, at = [], 0
        for leaves, rebuild in rebuilds:
            parts.append(rebuild([sealed(g, bit) for g in grads[at : at + leaves]]))
            at += leaves
        return tuple(parts)

    pull._recording = recording  # type: ignore[attr-defined]
    return (rebuild_out([sealed(o, bit) for o in outputs]), pull, *aux)


class _Open:
    """A recording that is open as long as something refers to this object."""

    def __init__(self) -> None:
        self.bit = open_recording()

    def __del__(self) -> None:
        close_recording(self.bit)


def linearize(f: Callable[..., Any], *primals: Any, has_aux: bool = False) -> tuple[Any, ...]:
    """Return *f*'s value at *primals*, and its derivative there: a linear function of tangents, one for each primal.

    *f* is called once; the derivative can be called as often as you like. With *has_aux*, *f* returns (value,
    anything), and the anything comes third.

    Raises
    ------
    ShapeError
        From the derivative, if the tangents have not the shapes of the primals.

    Examples
    --------
    >>> import polygrad as pg
    >>> value, push = pg.linearize(lambda x: x * x, pg.asarray(3.0))
    >>> push(pg.asarray(1.0)), push(pg.asarray(10.0))
    (Array(6., dtype=float64, device='cpu:0'), Array(60., dtype=float64, device='cpu:0'))
    """
    recording = _Open()
    bit = recording.bit
    with enable_grad():
        call, watched, _ = watch_arguments(primals, range(len(primals)), bit)
        out, aux = _apart(f(*call), has_aux, bit)
    outputs, rebuild = flatten(out)

    def pushed(*tangents: Any) -> Any:
        given, _ = flatten(list(tangents))
        if [t.shape for t in given] != [x.shape for x in watched]:
            raise ShapeError(
                f"tangents of shapes {[list(t.shape) for t in given]} do not fit primals of shapes "
                f"{[list(x.shape) for x in watched]}"
            )
        with enable_grad():
            start = {x._node: F.astype(t._node, x.dtype) for x, t in zip(watched, given, strict=True)}
            found = push(start, [o._node for o in outputs], bit)
            moved = [zeros_like(o) if t is None else Array(t) for o, t in zip(outputs, found, strict=True)]
        return rebuild([sealed(t, bit) for t in moved])

    pushed._recording = recording  # type: ignore[attr-defined]
    return (rebuild([sealed(o, bit) for o in outputs]), pushed, *aux)


def jvp(
    f: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any], has_aux: bool = False
) -> tuple[Any, ...]:
    """Return *f*'s value at *primals* and the tangent of it, by forward mode.

    With *has_aux*, *f* returns (value, anything), and the anything comes third.

    >>> import polygrad as pg
    >>> pg.jvp(lambda x: x * x, (pg.asarray(3.0),), (pg.asarray(1.0),))[1]
    Array(6., dtype=float64, device='cpu:0')
    """
    value, pushed, *aux = linearize(f, *primals, has_aux=has_aux)
    return (value, pushed(*tangents), *aux)


def stop_gradient(x: Any) -> Any:
    """Return an array (or a tree of arrays) as constants: no gradient flows through them.

    >>> import polygrad as pg
    >>> pg.grad(lambda x: pg.sum(x * pg.stop_gradient(x)))(pg.asarray([1.0, 2.0]))
    Array([1., 2.], dtype=float64, device='cpu:0')
    """
    return map_tree(lambda a: a.detach(), x)
