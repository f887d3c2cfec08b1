"""Mapping: a function of one example as a function of many.

Here: `vmap`: which axes of which arguments are mapped, and the arrays before and after.
Not here: how a graph is read for all examples (`autograd/batching.py`), the rule of any op (`ops/batching.py`).
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from polygrad import shapes
from polygrad.array.object import Array
from polygrad.array.recording import enable_grad
from polygrad.array.tree import children, flatten, leaves_of
from polygrad.autograd import Batch
from polygrad.errors import GradError, ShapeError
from polygrad.graph.functions import F
from polygrad.graph.node import Node, parts


def vmap(f: Callable[..., Any], in_axes: Any = 0, out_axes: Any = 0) -> Callable[..., Any]:
    """Return *f* mapped over an axis of its arguments: written for one example, run for all of them at once.

    *f* is called once, with arrays that stand for one example each; what it records is then read again with a batch
    axis in front. So Python control flow on shapes works, and looking at a value does not. Transforms nest in any
    order: ``vmap(grad(loss))`` gives a gradient for each example.

    Random numbers differ between examples: example i draws what it would draw alone under the key
    ``pg.random.fold_in(key, i)``.

    Parameters
    ----------
    f : callable
        Takes and returns trees of arrays.
    in_axes : int, None or tuple
        The axis to map over: for all arguments, or in a tuple for each positional one. None passes an argument whole to
        all examples. An entry may be a tree like its argument, or the upper part of one. Keyword arguments are mapped
        over axis 0.
    out_axes : int, None or tree
        Where the new axis of the results goes; None for a result that is the same for all examples.

    Returns
    -------
    callable

    Raises
    ------
    ShapeError
        If the mapped axes differ in size, or there is none.
    CaptureError
        If *f* looks at a value.

    Examples
    --------
    >>> import polygrad as pg
    >>> weights, rows = pg.asarray([[1.0, 2.0], [3.0, 4.0]]), pg.asarray([[1.0, 0.0], [1.0, 1.0], [0.0, 2.0]])
    >>> pg.vmap(lambda w, x: w @ x, in_axes=(None, 0))(weights, rows)
    Array([[1., 3.],
           [3., 7.],
           [4., 8.]], dtype=float64, device='cpu:0')
    >>> pg.vmap(pg.grad(lambda x: pg.sum(x * x * x)))(rows)
    Array([[ 3.,  0.],
           [ 3.,  3.],
           [ 0., 12.]], dtype=float64, device='cpu:0')
    """

    @functools.wraps(f)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        arrays, rebuild = flatten([list(args), kwargs])
        axes = _axes(args, kwargs, in_axes)
        batch = Batch(_size(arrays, axes))
        with enable_grad():  # what is recorded here is decided by what was recorded for one example
            inputs = [x if k is None else _one(batch, x, k) for x, k in zip(arrays, axes, strict=True)]
        with batch.reading():
            given, named = rebuild(inputs)
            result = f(*given, **named)
        made, rebuild_out = flatten(result)
        where = spread(out_axes, result, "out_axes")
        with enable_grad():
            return rebuild_out([_all(batch, x, k) for x, k in zip(made, where, strict=True)])

    return wrapped


def _axes(args: Sequence[Any], kwargs: dict[str, Any], in_axes: Any) -> list[int | None]:
    """Return the axis of each array of a call, in the order of `flatten`."""
    if isinstance(in_axes, (tuple, list)) and len(in_axes) != len(args):
        raise ShapeError(
            f"in_axes {in_axes!r} names axes for {len(in_axes)} arguments, but there are {len(args)} positional ones"
        )
    entries = in_axes if isinstance(in_axes, (tuple, list)) else [in_axes] * len(args)
    out: list[int | None] = []
    for k, (entry, arg) in enumerate(zip(entries, args, strict=True)):
        found = spread(entry, arg, f"in_axes[{k}]")
        if entry is not None and not found:
            raise GradError(
                f"cannot map over argument {k}: {arg!r} holds no arrays; convert it with pg.asarray(...), or say None "
                "in in_axes"
            )
        out += found
    return out + [0] * len(leaves_of(kwargs))


def spread(prefix: Any, tree: Any, name: str) -> list[int | None]:
    """Return the axis of each array of *tree* by a tree of axes like it, or like its upper part."""
    if prefix is None or isinstance(prefix, int):
        return [prefix] * len(leaves_of(tree))
    parts, under = children(prefix), children(tree)
    if parts is None or under is None or [k for k, _ in parts] != [k for k, _ in under]:
        raise ShapeError(
            f"{name} {prefix!r} does not fit its value: it is an int, None, or a tree that has the same parts"
        )
    return [axis for (key, p), (_, t) in zip(parts, under, strict=True) for axis in spread(p, t, f"{name}[{key!r}]")]


def _size(arrays: list[Array], axes: list[int | None]) -> int:
    sizes: dict[int, Array] = {}
    for x, k in zip(arrays, axes, strict=True):
        if k is not None:
            sizes.setdefault(x.shape[shapes.axis("map", k, x.ndim)], x)
    if not sizes:
        raise ShapeError("cannot map over nothing: give vmap an array with an axis in in_axes")
    if len(sizes) > 1:
        (a, x), (b, y) = list(sizes.items())[:2]
        raise ShapeError(
            f"cannot map over axes of {a} and {b} examples at once: the mapped axes of {list(x.shape)} and "
            f"{list(y.shape)} must be of one size"
        )
    return next(iter(sizes))


def _one(batch: Batch, x: Array, axis: int) -> Array:
    """Return an array that stands for one example of *x*."""

    def one(node: Node) -> Node:
        examples = _front(node, axis)
        with batch.reading():
            # What it stands for is no leaf of a recording: it comes from the array of all examples.
            return F.alias(batch.placeholder(examples))  # type: ignore[no-any-return]

    return Array(_each(one, x._node))


def _all(batch: Batch, x: Array, axis: int | None) -> Array:
    """Return the array of all examples of *x*."""

    def shared(n: Node) -> Node:
        if batch.lift([n])[0] is not None:
            raise ShapeError(
                f"out_axes is None for a result of shape {list(n.shape)} that differs between examples: name an axis"
            )
        return n

    return Array(_each(shared if axis is None else lambda n: _place(batch.examples(n), axis), x._node))


def _each(function: Callable[[Node], Node], node: Node) -> Node:
    """Return *function* of a node; of a complex one, of its real and imaginary part."""
    made = [function(p) for p in parts(node)]
    return made[0] if len(made) == 1 else F.pair_(*made)


def _front(node: Node, axis: int) -> Node:
    k = axis % node.ndim
    if not k:
        return node
    return F.permute_(node, (k, *[d for d in range(node.ndim) if d != k]))  # type: ignore[no-any-return]


def _place(node: Node, axis: int) -> Node:
    """Return a node with its first axis moved to *axis*."""
    k = shapes.axis("map", axis, node.ndim)
    if not k:
        return node
    order = [*range(1, k + 1), 0, *range(k + 1, node.ndim)]
    return F.permute_(node, tuple(order))  # type: ignore[no-any-return]
