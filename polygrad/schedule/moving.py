"""Maps behind movement: where the operand of a movement op is read, by where the op is.

Here: functions of maps (`index.py`). Reshapes, which split axes, are followed there.
Not here: nodes, kernels.
"""

from typing import Any

from polygrad import shapes
from polygrad.schedule.index import ZERO, Axis, Expr, Map, combine

Windows = tuple[tuple[Axis, int, int], ...]


def spread(index: Map, shape: shapes.Shape) -> Map:
    """Return the map of an operand of *shape* that broadcasts to what is read at *index*."""
    skip = len(index) - len(shape)
    return tuple([ZERO if n == 1 else index[k + skip] for k, n in enumerate(shape)])


def permuted(index: Map, attrs: Any) -> Map:
    """Return the map of what is permuted."""
    order = attrs[0]
    out: list[Expr] = [ZERO] * len(order)
    for k, source in enumerate(order):
        out[source] = index[k]
    return tuple(out)


def sliced(index: Map, attrs: Any) -> Map:
    """Return the map of what is sliced."""
    return tuple([combine(b, [(e, s)]) for e, b, s in zip(index, attrs[0], attrs[1], strict=True)])


def windowed(index: Map, attrs: Any) -> Map:
    """Return the map of what is read in windows."""
    kernel, stride, dilation = attrs
    axes = len(kernel)
    lead = len(index) - 2 * axes
    moved = [combine(0, [(index[lead + k], stride[k]), (index[lead + axes + k], dilation[k])]) for k in range(axes)]
    return (*index[:lead], *moved)


def block(where: Map, within: Windows, shape: shapes.Shape, starts: Any, sizes: Any) -> tuple[Map, Windows, Any] | None:
    """Return the map of a block that lies at *starts* in what is read at *where*, and where the block is not left.

    That is windows for loads, and conditions (axis, low, high), None if it is left everywhere. None if the kernel's
    axes do not tell.
    """
    index, windows, conditions = list(where), list(within), []
    for k, (start, n) in enumerate(zip(starts, sizes, strict=True)):
        if not start and n == shape[k]:
            continue
        expr = combine(-start, [(where[k], 1)])
        if len(expr.terms) > 1:
            return None
        index[k] = expr
        if not expr.terms:
            if not 0 <= expr.const < n:
                return (), (), None
            continue
        axis, c = expr.terms[0]
        bounds = (-expr.const, n - 1 - expr.const) if c > 0 else (expr.const - n + 1, expr.const)
        low, high = max(0, -(-bounds[0] // abs(c))), min(axis.extent, bounds[1] // abs(c) + 1)
        if low > 0 or high < axis.extent:
            if low >= high:
                return (), (), None
            conditions.append((axis, low, high))
    for axis, low, high in conditions:
        old = next((w for w in windows if w[0] is axis), None)
        if old is not None:
            windows.remove(old)
            low, high = max(low, old[1]), min(high, old[2])
            if low >= high:
                return None
        windows.append((axis, low, high))
    for axis, _, _ in conditions:
        axis.pinned = True
    windows.sort(key=lambda w: w[0].serial)
    return tuple(index), tuple(windows), conditions
