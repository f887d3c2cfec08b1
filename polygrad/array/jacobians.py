"""Whole matrices of derivatives, and products with the second one.

Here: `jacobian` (`jacrev`, `jacfwd`), `hessian`, `hvp`. A Jacobian is one sweep of the recorded graph, read for all
directions at once as vmap does it.
Not here: the sweeps (`autograd`), gradients and products with Jacobians (`transforms.py`).
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from polygrad import dtypes
from polygrad.array.anomaly import swept
from polygrad.array.object import Array
from polygrad.array.recording import close_recording, enable_grad, open_recording
from polygrad.array.transforms import grad, jvp, sealed, watch_arguments
from polygrad.array.tree import flatten, map_tree
from polygrad.autograd import Batch, push
from polygrad.errors import GradError
from polygrad.graph.functions import F
from polygrad.graph.node import Node

Argnums = int | Sequence[int]


def jacobian(
    f: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False, *, mode: str = "reverse"
) -> Callable[..., Any]:
    """Return a function that gives the Jacobian of *f*: all derivatives of its outputs by its arguments.

    Parameters
    ----------
    f : callable
        Returns an array or a tree of arrays; (value, anything) if *has_aux*.
    argnums : int or sequence of int
        Which positional arguments to differentiate by: arrays or trees of float arrays.
    has_aux : bool
        Whether *f* returns something beside its value; it is then returned beside the Jacobian.
    mode : str
        "reverse": a sweep for each element of the outputs, good where these are few; "forward": one for each element of
        the arguments. The result is the same; `jacrev` and `jacfwd` are short for the two. All sweeps run as one.

    Returns
    -------
    callable
        It returns a tree like *f*'s value whose leaves are trees like the argument (tuples of these for several): for
        an output of shape s and an argument of shape t an array of shape s + t.

    Examples
    --------
    >>> import polygrad as pg
    >>> pg.jacobian(lambda x: x * x)(pg.asarray([1.0, 2.0, 3.0]))
    Array([[2., 0., 0.],
           [0., 4., 0.],
           [0., 0., 6.]], dtype=float64, device='cpu:0')
    """
    if mode not in ("reverse", "forward"):
        raise ValueError(f"a Jacobian is taken in mode 'reverse' or 'forward', got {mode!r}")
    several = not isinstance(argnums, int)
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    blocks = _by_rows if mode == "reverse" else _by_columns

    @functools.wraps(f)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        bit = open_recording()
        try:
            with enable_grad():
                call, watched, rebuilds = watch_arguments(args, numbers, bit)
                out = f(*call, **kwargs)
                value, aux = out if has_aux else (out, None)
                outputs, rebuild_out = flatten(value)
                for o in outputs:
                    if dtypes.KINDS[o.dtype] != "float":
                        raise GradError(
                            f"cannot take the Jacobian of {o.dtype.name} outputs: they must have a float dtype; of a "
                            "complex function take that of its pg.real(...) and pg.imag(...)"
                        )
                for x in watched:
                    if dtypes.KINDS[x.dtype] != "float":
                        raise GradError(
                            f"cannot take the Jacobian by {x.dtype.name} inputs: they must have a float dtype; make "
                            "the complex number of two real ones inside of the function"
                        )
                table = blocks([o._node for o in outputs], [x._node for x in watched], bit)
        finally:
            close_recording(bit)
        rows = []
        for row in table:
            parts, at = [], 0
            for leaves, rebuild in rebuilds:
                parts.append(rebuild([sealed(Array(n), bit) for n in row[at : at + leaves]]))
                at += leaves
            rows.append(tuple(parts) if several else parts[0])
        result = rebuild_out(rows)
        return (result, map_tree(lambda x: sealed(x, bit), aux)) if has_aux else result

    return wrapped


def jacrev(f: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False) -> Callable[..., Any]:
    """Return a function that gives the Jacobian of *f* by reverse mode; see `jacobian`.

    >>> import polygrad as pg
    >>> pg.jacrev(lambda x: x * x)(pg.asarray([1.0, 3.0])).tolist()
    [[2.0, 0.0], [0.0, 6.0]]
    """
    return jacobian(f, argnums, has_aux)


def jacfwd(f: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False) -> Callable[..., Any]:
    """Return a function that gives the Jacobian of *f* by forward mode; see `jacobian`.

    >>> import polygrad as pg
    >>> pg.jacfwd(lambda x: x * x)(pg.asarray([1.0, 3.0])).tolist()
    [[2.0, 0.0], [0.0, 6.0]]
    """
    return jacobian(f, argnums, has_aux, mode="forward")


def _directions(node: Node) -> tuple[Batch, Node]:
    """Return a batch of the unit directions of *node*'s elements, and what stands for one of them."""
    count = node.aval.size
    batch = Batch(count)
    unit = F.equal(F.reshape_(F.iota(count, dtypes.int64), (count, 1)), F.iota(count, dtypes.int64))
    basis = F.reshape_(F.astype(unit, node.dtype), (count, *node.shape))
    basis.device = node.device
    return batch, batch.placeholder(basis)


def _none(o: Node, x: Node) -> Node:
    out = F.expand_(F.constant(0, o.dtype), o.shape + x.shape)
    out.device = o.device
    return out  # type: ignore[no-any-return]


def _by_rows(outputs: list[Node], inputs: list[Node], bit: int) -> list[list[Node]]:
    table = []
    for o in outputs:
        batch, seed = _directions(o)
        with batch.reading():
            found = swept([(o, seed)], bit)[0] if o.mask & bit else {}
        row = [batch.examples(found[x]) if x in found else None for x in inputs]
        table.append(
            [_none(o, x) if g is None else F.reshape_(g, o.shape + x.shape) for g, x in zip(row, inputs, strict=True)]
        )
    return table


def _by_columns(outputs: list[Node], inputs: list[Node], bit: int) -> list[list[Node]]:
    table: list[list[Node]] = [[] for _ in outputs]
    for x in inputs:
        batch, direction = _directions(x)
        with batch.reading():
            moved = push({x: direction}, outputs, bit)
        for row, o, t in zip(table, outputs, moved, strict=True):
            if t is None:
                row.append(_none(o, x))
                continue
            columns = batch.examples(t)
            last = F.permute_(columns, (*range(1, columns.ndim), 0))
            row.append(F.reshape_(last, o.shape + x.shape))
    return table


def hessian(f: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False) -> Callable[..., Any]:
    """Return a function that gives the second derivatives of *f*: the Jacobian, forward, of its Jacobian, in reverse.

    For a scalar function of an array of shape s the result has shape s + s; trees nest as in `jacobian`, twice.

    >>> import polygrad as pg
    >>> pg.hessian(lambda x: x[0] * x[0] * x[1])(pg.asarray([2.0, 5.0]))
    Array([[10.,  4.],
           [ 4.,  0.]], dtype=float64, device='cpu:0')
    """
    return jacfwd(jacrev(f, argnums, has_aux), argnums, has_aux)


def hvp(f: Callable[..., Any], primals: Any, tangents: Any) -> Any:
    """Return the product of the second derivatives of a scalar function *f* at *primals* with *tangents*.

    The matrix itself is never made: this costs a few gradients.

    Parameters
    ----------
    f : callable
        Returns a scalar array.
    primals, tangents : array or tree; or tuple or list with one for each argument
        Where, and which direction.

    Returns
    -------
    Like *primals*: one product, or a tuple of them.

    Examples
    --------
    >>> import polygrad as pg
    >>> pg.hvp(lambda x: pg.sum(x ** 3), pg.asarray([1.0, 2.0]), pg.asarray([1.0, 10.0]))
    Array([  6., 120.], dtype=float64, device='cpu:0')
    """
    several = isinstance(primals, (tuple, list))
    points, directions = (tuple(primals), tuple(tangents)) if several else ((primals,), (tangents,))
    slopes = grad(f, argnums=tuple(range(len(points))))
    product = jvp(slopes, points, directions)[1]
    return product if several else product[0]
