"""Reading and adding at integer positions.

Here: `gather_` and `scatter_add_`, each the derivative of the other, over the primitives that devices know.
Not here: take, indexing and one_hot, which are written with them; scatters that do not add (`placing.py`).

A gather's plan says for each axis of the source where its index comes from: ``k >= 0``, the k-th axis of the result;
``-1 - j``, the j-th index operand, which broadcasts to the result's shape. Indices count from the end if negative; a
bad one is reported by the device.
"""

from typing import Any

from polygrad import dtypes, shapes
from polygrad.ops.internal import looked
from polygrad.ops.table import composite, primitive


def _infer_gather(x: Any, *rest: Any) -> Any:
    shape = rest[-2]
    return shape, x.dtype


def _gather_reference(x: Any, *rest: Any) -> Any:
    *indices, shape, plan = rest
    import numpy  # noqa: PLC0415, ICN001  a reference, run in tests alone

    grid = numpy.ogrid[tuple(slice(n) for n in shape)]
    return x[tuple(grid[k] if k >= 0 else numpy.broadcast_to(indices[-1 - k], shape) for k in plan)]


def counted_as_axes(indices: Any, shape: shapes.Shape, source: shapes.Shape, plan: Any) -> Any:
    """Return a gather's plan with index operands that merely count, as arange does, replaced by axes of the result.

    ``x[arange(n), labels]`` then reads row i at labels[i], which fuses, and its gradient needs no scatter.
    """
    out = list(plan)
    for k, where in enumerate(plan):
        if where < 0:
            axis = _counting_axis(indices[-1 - where], len(shape), source[k])
            if axis is not None and axis not in out:
                out[k] = axis
    return tuple(out)


def _counting_axis(index: Any, rank: int, n: int) -> int | None:
    """Return the axis of the result along which an index operand counts 0 .. n - 1; None if it is anything else."""
    looked()
    wide = [k for k, size in enumerate(index.shape) if size != 1]
    base = index
    while base.storage is None and base.spec.op.kind in ("reshape", "alias", "cast"):
        base = base.parents[0]
    if len(wide) != 1 or base.storage is not None or base.spec.op.kind != "iota" or base.aval.shape != (n,):
        return None
    return rank - index.ndim + wide[0] if index.shape[wide[0]] == n else None


def _gather_back(xp: Any, g: Any, _out: Any, x: Any, *rest: Any) -> Any:
    *indices, shape, plan = rest
    indexed = [k for k, where in enumerate(plan) if where < 0]
    others = [n for d, n in enumerate(shape) if d not in plan]
    if len(indexed) == 1 and all(n == 1 for n in others) and len(set(plan)) == len(plan):
        return _one_position(xp, g, indices[-1 - plan[indexed[0]]], x.shape, shape, plan, indexed[0])
    return xp.scatter_add_(g, *indices, x.shape, plan)


def _one_position(xp: Any, g: Any, index: Any, target: Any, shape: Any, plan: Any, axis: int) -> Any:
    """Return g where the target's position along *axis* is the index, else 0: no two collide, so this is no scatter.

    The forward gather has checked the index. It is the gradient of picking one element of a row, and it fuses with what
    is around it.
    """
    order = tuple(where for where in plan if where >= 0)
    rest = tuple(d for d in range(len(shape)) if d not in order)

    def lay(value: Any) -> Any:
        full = xp.reshape_(value, (*(1,) * (len(shape) - value.ndim), *value.shape))
        moved = xp.permute_(full, (*order, *rest))
        kept = moved.shape[: len(order)]
        return xp.reshape_(moved, (*kept[:axis], 1, *kept[axis:]))

    at = lay(xp.astype(index, dtypes.int64))
    n = target[axis]
    at = xp.where(at < 0, at + n, at)
    count = xp.reshape_(xp.iota(n, dtypes.int64), (n, *(1,) * (len(target) - 1 - axis)))
    return xp.where(xp.equal(count, at), lay(g), xp.constant(0, g.dtype))


def _gather_forward(xp: Any, t: Any, _out: Any, _x: Any, *rest: Any) -> Any:
    return xp.gather_(t, *rest)


@primitive(
    infer=_infer_gather,
    kind="gather",
    vjp=(_gather_back,),
    jvp=(_gather_forward,),
    verb="gather from",
    complex="parts",
)
def gather_(xp: Any, x: Any, *rest: Any) -> Any:
    """Elements of x at positions made of axes of the result and of index operands; rest: indices, shape, plan."""
    return _gather_reference(x, *rest)


@primitive(infer=lambda index, size, label: (index.shape, dtypes.int64), kind="check", kinds="int", vjp=None, jvp=None)
def check_(xp: Any, index: Any, size: Any, label: Any, /) -> Any:
    """Indices as int64 in [0, size); the device reports the first that is out of range.

    Negative ones count from the end, but not those of a *label*, which are out of range.
    """
    return xp.where(index < 0, index + size, index)


def _row_numbers(xp: Any, indices: Any, shape: shapes.Shape, target: shapes.Shape, plan: Any, folded: int) -> Any:
    """Return the row number of each element of a scatter: its place in the first *folded* axes of the target."""
    if folded == 1 and plan[0] < 0:
        return xp.astype(indices[-1 - plan[0]], dtypes.int64)  # the device wraps and checks it
    steps = shapes.strides(target[:folded])
    rows: Any = None
    for where, n, step in zip(plan[:folded], target[:folded], steps, strict=True):
        if where >= 0:
            part = xp.reshape_(xp.iota(n, dtypes.int64), tuple(n if d == where else 1 for d in range(len(shape))))
        else:
            part = xp.checked_index(indices[-1 - where], n)
        part = part * step if step != 1 else part
        rows = part if rows is None else rows + part
    return xp.constant(0, dtypes.int64) if rows is None else rows


@composite(reference=None, dtypes="int float")
def scatter_add_(xp: Any, values: Any, *rest: Any) -> Any:
    """Zeros of a target shape, with values added where `gather_` would read; rest: indices, target, plan.

    Axes at the target's end along which no index varies stay together as rows; all others are folded into a row number.
    """
    *indices, target, plan = rest
    if not shapes.size(target) or not shapes.size(values.shape):
        return xp.expand_(xp.constant(0, values.dtype), target)
    fold = Fold(xp, values.shape, indices, target, plan)
    return xp.reshape_(xp.scatter_rows_(fold.rows_of(values), fold.rows, fold.count), target)


class Fold:
    """A scatter as one of rows: axes of the target that no index moves along, at its end, make up a row.

    `rows` are the row numbers, `count` of how many, `length` elements in each.
    """

    def __init__(self, xp: Any, shape: shapes.Shape, indices: Any, target: shapes.Shape, plan: Any) -> None:
        varying = {len(shape) - i.ndim + k for i in indices for k, n in enumerate(i.shape) if n != 1}
        keep = 0
        while keep < len(plan) and plan[-1 - keep] >= 0 and plan[-1 - keep] not in varying:
            keep += 1
        folded = len(plan) - keep
        self._xp = xp
        self._inside = tuple(plan[folded:])
        self._outside = tuple(k for k in range(len(shape)) if k not in self._inside)
        rows = _row_numbers(xp, indices, shape, target, plan, folded)
        lifted = xp.reshape_(rows, (*(1,) * (len(shape) - rows.ndim), *rows.shape))
        flat = tuple(n if k in self._outside else 1 for k, n in enumerate(shape))
        wide = xp.expand_(lifted, flat) if lifted.shape != flat else lifted
        self.rows = xp.reshape_(wide, (shapes.size(flat),))
        self.count = shapes.size(target[:folded])
        self.length = shapes.size(target[folded:])

    def rows_of(self, values: Any) -> Any:
        """Return values of the scatter's shape as [rows, length]."""
        moved = self._xp.permute_(values, (*self._outside, *self._inside))
        return self._xp.reshape_(moved, (self.rows.shape[0], self.length))


def _rows_back(xp: Any, g: Any, _out: Any, values: Any, rows: Any, _n: int) -> Any:
    return xp.gather_(g, xp.reshape_(rows, (rows.shape[0], 1)), values.shape, (-1, 1))


def _rows_reference(values: Any, rows: Any, n: int) -> Any:
    import numpy  # noqa: PLC0415, ICN001  a reference, run in tests alone

    out = numpy.zeros((n, values.shape[1]), values.dtype)
    numpy.add.at(out, rows, values)
    return out


@primitive(
    infer=lambda values, rows, n: ((n, values.shape[1]), values.dtype),
    kind="scatter",
    kinds="int float",
    vjp=(_rows_back, None),
    jvp=(lambda xp, t, out, values, rows, n: xp.scatter_rows_(t, rows, n), None),
    verb="scatter into",
    complex="parts",
)
def scatter_rows_(xp: Any, values: Any, rows: Any, n: Any, /) -> Any:
    """Zeros of n rows, with values [k, m] added at row numbers [k], which count from the end if negative."""
    return _rows_reference(values, rows, n)
