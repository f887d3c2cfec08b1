"""What derivative rules and composites need of `xp` beside the public functions.

Here: small composites that users do not see: broadcasting backwards, spreading, constants shaped like an operand; and
functions of `xp` that several modules of ops call.
Not here: anything of the Array API.
"""

from typing import Any

from polygrad import dtypes, shapes
from polygrad.ops.table import composite

ALL = "bool int float complex"


@composite(reference=None, dtypes=ALL)
def as_nodes(xp: Any, *operands: Any) -> Any:
    """Return operands as nodes; Python scalars take their dtype from the nodes beside them."""
    from polygrad.graph.functions import _lifted  # noqa: PLC0415  the graph is made from this table

    return _lifted(operands)


@composite(reference=None, dtypes=ALL)
def like(xp: Any, value: Any, x: Any) -> Any:
    """Return a Python scalar as a node of x's dtype, or of the next kind if x's cannot hold it."""
    from polygrad.graph.node import lift  # noqa: PLC0415  as above

    return lift(value, x)


def number_of(scalar: Any) -> Any:
    """Return the number of a host scalar, to decide by."""
    from polygrad.graph.node import number_of as found  # noqa: PLC0415  as above

    return found(scalar)


def looked() -> None:
    """Say that what is recorded follows from more than the form of the operands: how one came about, or its value.

    Nodes of such a call, or of a backward pass with such a rule, are not made again from a template.
    """
    from polygrad.graph.asking import looks  # noqa: PLC0415  as above

    looks[0] += 1


def unwatched(xp: Any, x: Any) -> Any:
    """Return x where no gradient is needed: x itself, so that it is read once, or a constant if it is watched."""
    return xp.stop_gradient(x) if x.mask else x


@composite(reference=None, dtypes=ALL)
def constant(xp: Any, value: Any, dtype: Any) -> Any:
    """Return a host scalar of a dtype."""
    from polygrad.graph.node import scalar  # noqa: PLC0415  as above

    return scalar(value, dtype)


@composite(reference=None, dtypes=ALL, differentiable=False)
def cut(xp: Any, x: Any) -> Any:
    """Return x as a constant: an alias that no recording watches."""
    from polygrad.graph.node import RECORDING, share  # noqa: PLC0415  as above

    before, RECORDING.enabled = RECORDING.enabled, False
    try:
        out = xp.alias(x)
    finally:
        RECORDING.enabled = before
    share(out, x)
    return out


@composite(reference=None, dtypes=ALL, differentiable=False)
def full_of(xp: Any, value: Any, x: Any, dtype: Any = None) -> Any:
    """Return x's shape filled with a Python scalar, in x's dtype unless another is given."""
    out = xp.constant(value, dtype or x.dtype)
    return xp.expand_(out, x.shape) if x.shape else out


@composite(reference=None, dtypes=ALL)
def sum_to(xp: Any, g: Any, shape: Any) -> Any:
    """Sum g over the axes along which *shape* was broadcast to g's shape: the derivative of broadcasting."""
    if g.shape == shape:
        return g
    extra = g.ndim - len(shape)
    axes = tuple(range(extra)) + tuple(k + extra for k, n in enumerate(shape) if n == 1 and g.shape[k + extra] != 1)
    summed = xp.sum_(g, axes) if axes and shapes.size(g.shape) else g
    if axes and not shapes.size(g.shape):
        return xp.expand_(xp.constant(0, g.dtype), shape)
    return summed if summed.shape == shape else xp.reshape_(summed, shape)


@composite(reference=None, dtypes=ALL)
def spread(xp: Any, g: Any, steps: Any) -> Any:
    """Put steps - 1 zeros behind every element along each axis."""
    for k, step in enumerate(steps):
        if step > 1 and g.shape[k] > 0:
            shape = g.shape
            wide = xp.reshape_(g, (*shape[: k + 1], 1, *shape[k + 1 :]))
            zeros = (0,) * wide.ndim
            after = tuple(step - 1 if d == k + 1 else 0 for d in range(wide.ndim))
            g = xp.reshape_(xp.pad_(wide, zeros, after, 0), (*shape[:k], shape[k] * step, *shape[k + 1 :]))
    return g


@composite(reference=None, dtypes=ALL)
def swap_last(xp: Any, x: Any) -> Any:
    """Return x with its last two axes exchanged."""
    rank = x.ndim
    return xp.permute_(x, (*range(rank - 2), rank - 1, rank - 2))


@composite(reference=None, dtypes="int")
def checked_index(xp: Any, index: Any, size: Any, label: Any = False) -> Any:
    """Return an index operand as int64 in [0, size); the device reports one outside of [-size, size).

    With *label* it reports negative ones too.
    """
    wide = cast(xp, index, dtypes.int64)
    if size == 0 or shapes.size(wide.shape) == 0:
        return wide
    return xp.check_(wide, size, label)


@composite(reference=None, dtypes=ALL)
def products_of_others(xp: Any, x: Any) -> Any:
    """Return for each element the product of all others along the last axis, by running products from both ends."""
    n = x.shape[-1]
    return _exclusive_product(xp, x, n, True) * _exclusive_product(xp, x, n, False)


def _exclusive_product(xp: Any, x: Any, n: int, forward: bool) -> Any:
    """Return the product of all elements before (or after) each one, in log2(n) shifted multiplications."""
    y = _shift(xp, x, 1, n, forward)
    step = 1
    while step < n:
        y = y * _shift(xp, y, step, n, forward)
        step *= 2
    return y


def _shift(xp: Any, x: Any, by: int, n: int, forward: bool) -> Any:
    """Return x moved by places along the last axis, ones coming in."""
    lead = (0,) * (x.ndim - 1)
    by = min(by, n)
    start = 0 if forward else by
    kept = xp.slice_(x, (*lead, start), (1,) * x.ndim, (*x.shape[:-1], n - by))
    return xp.pad_(kept, (*lead, by if forward else 0), (*lead, 0 if forward else by), 1)


@composite(reference=None, dtypes="int", differentiable=False)
def look_(xp: Any, x: Any) -> Any:
    """Return the value of a 0-d integer node, on which the shape of a result depends: the host waits for it."""
    from polygrad.graph.asking import look  # noqa: PLC0415  as above

    return look(x)


@composite(reference=None, dtypes=ALL)
def slope_(xp: Any, op: Any, number: Any, layout: Any, *inputs: Any) -> Any:
    """Return the slope of *op* by its operand of that number, made once in a sweep however often it is asked for."""
    from polygrad.graph.node import RECORDING  # noqa: PLC0415  as above

    known = RECORDING.slopes
    key = (op, number, *inputs)
    found = None if known is None else known.get(key)
    if found is None:
        operands: dict[int, list[Any]] = {}
        for (j, _), node in zip(layout, inputs, strict=True):
            operands.setdefault(j, []).append(node)
        given = [xp.pair_(*nodes) if len(nodes) > 1 else nodes[0] for nodes in operands.values()]
        found = op.slopes[number](xp, *given)
        if known is not None:
            known[key] = found
    return found


@composite(reference=None, dtypes=ALL, differentiable=False)
def recorded_(xp: Any, x: Any) -> bool:
    """Return whether a recording will want x's derivative: what it needs is then computed at once."""
    from polygrad.graph.node import RECORDING  # noqa: PLC0415  as above

    return bool(x.mask) and RECORDING.enabled


@composite(reference=None, dtypes=ALL, differentiable=False)
def open_(xp: Any, x: Any) -> bool:
    """Return whether a gradient may go around a pending node: nobody asks for its own, and none stops there."""
    from polygrad.graph.node import RECORDING  # noqa: PLC0415  as above

    looked()
    if x.storage is not None or x.leaf is not None or RECORDING.observer is not None or x.number <= RECORDING.since:
        return False
    mask = 0
    for p in x.parents:
        mask |= p.mask
    return bool(x.mask == mask)


@composite(reference=None, dtypes=ALL, differentiable=False)
def has_op_(xp: Any, name: str, *nodes: Any) -> bool:
    """Return whether the device of *nodes* has the library op *name*: a composite may then call that."""
    from polygrad.graph.asking import has_op  # noqa: PLC0415  as above

    return has_op(name, nodes)


def cast(xp: Any, x: Any, dtype: Any) -> Any:
    """Return x in *dtype*: x itself where it has it already, so that no node is made."""
    return x if x.dtype is dtype else xp.astype(x, dtype)


def places(xp: Any, n: int, axis: int, rank: int) -> Any:
    """Return 0 .. n - 1 along one of *rank* axes, of size 1 along the others after it."""
    count = xp.iota(n, dtypes.int64)
    return count if axis == rank - 1 else xp.reshape_(count, (n,) + (1,) * (rank - 1 - axis))
