"""Writing at positions, as new values: the elements of a block or at index arrays replaced, added to, multiplied, ...

Here: `put_`, which replaces a strided block; scatters that keep a maximum, a minimum or a product; `update_`, of which
``x[key] = v`` and ``x.at[key].add(v)`` are made.
Not here: reading (`indexing.py`, `selection.py`), handles and views (the array layer).

Where several values go to one element, `set` keeps the last in C order of the index, and the others combine all.
"""

from typing import Any

from polygrad import dtypes, shapes
from polygrad.errors import DTypeError, ShapeError
from polygrad.ops.indexing import Place, gather_plan
from polygrad.ops.internal import cast, looked, number_of
from polygrad.ops.selection import Fold
from polygrad.ops.table import composite, primitive

ALL = "bool int float"


def _put_reference(x: Any, value: Any, starts: Any, steps: Any, sizes: Any) -> Any:
    out = x.copy()
    place = [slice(b, b + s * n, s) for b, s, n in zip(starts, steps, sizes, strict=True)]
    out[tuple(place)] = value
    return out


def _zeros(xp: Any, like: Any, shape: Any) -> Any:
    zero = xp.constant(0, like.dtype)
    return xp.expand_(zero, shape) if shape else zero


@primitive(
    infer=lambda x, value, starts, steps, sizes: (x.shape, x.dtype),
    kind="put",
    vjp=(
        lambda xp, g, out, x, value, *at: xp.put_(g, _zeros(xp, g, value.shape), *at),
        lambda xp, g, out, x, value, *at: seen_through(xp, g, *at),
    ),
    jvp=(
        lambda xp, t, out, x, value, *at: xp.put_(t, _zeros(xp, t, value.shape), *at),
        lambda xp, t, out, x, value, *at: xp.put_(_zeros(xp, t, x.shape), t, *at),
    ),
    verb="write into",
    complex=lambda xp, x, value, *at: xp.pair_(*[xp.put_(xp.part_(x, k), xp.part_(value, k), *at) for k in (0, 1)]),
)
def put_(xp: Any, x: Any, value: Any, starts: Any, steps: Any, sizes: Any, /) -> Any:
    """x with the block of *sizes* from *starts* in positive *steps* replaced by a value of that shape and x's dtype."""
    return _put_reference(x, value, starts, steps, sizes)


def seen_through(xp: Any, x: Any, starts: Any, steps: Any, sizes: Any) -> Any:
    """Return a block of x, read past writes that do not touch it: gradients of a loop of writes need no copies then."""
    looked()
    while x.spec.op is put_ and x.storage is None:
        other, _, count = x.spec.attrs
        stride = x.spec.attrs[1]
        apart = any(
            b >= o + t * (m - 1) + 1 or b + s * (n - 1) + 1 <= o
            for b, s, n, o, t, m in zip(starts, steps, sizes, other, stride, count, strict=True)
        )
        if not apart:
            break
        x = x.parents[0]
    return xp.slice_(x, starts, steps, sizes)


@composite(reference=None, dtypes=ALL)
def store_(xp: Any, x: Any, value: Any, starts: Any, steps: Any, sizes: Any) -> Any:
    """Return x with a block replaced by a value of its shape; steps may be negative, and the block all of x."""
    if not shapes.size(sizes):
        return x
    if any(step < 0 for step in steps):
        turned = tuple(n - 1 if step < 0 else 0 for n, step in zip(sizes, steps, strict=True))
        value = xp.slice_(value, turned, tuple(-1 if step < 0 else 1 for step in steps), sizes)
        starts = tuple(b + (n - 1) * s if s < 0 else b for b, n, s in zip(starts, sizes, steps, strict=True))
        steps = tuple(abs(step) for step in steps)
    if sizes == x.shape:
        return value
    return xp.put_(x, value, starts, steps, sizes)


# ---- scatters -------------------------------------------------------------------------------------------------------

MODES = ("max", "min", "multiply")


def identity_of(mode: str, dtype: dtypes.DType) -> bool | int | float:
    """Return what a scatter of a mode leaves where nothing went."""
    if mode == "multiply":
        return 1
    kind = dtypes.KINDS[dtype]
    if kind == "float":
        return float("-inf") if mode == "max" else float("inf")
    low, high = dtypes.integer_range(dtype)
    return low if mode == "max" else high


def _shares(xp: Any, out: Any, values: Any, rows: Any, n: int) -> tuple[Any, Any]:
    """Return where values are the extreme of their row, and how many of that row are, by value; NaN is none."""
    at = xp.reshape_(rows, (rows.shape[0], 1))
    wins = xp.astype(xp.equal(values, xp.gather_(out, at, values.shape, (-1, 1))), values.dtype)
    return wins, xp.maximum(xp.scatter_rows_(wins, rows, n), 1.0)


def _reduce_back(xp: Any, g: Any, out: Any, values: Any, rows: Any, n: int, mode: str) -> Any:
    at = xp.reshape_(rows, (rows.shape[0], 1))
    if mode == "multiply":  # update_ sees to it that no value is zero
        return xp.gather_(g * out, at, values.shape, (-1, 1)) / values
    wins, count = _shares(xp, out, values, rows, n)
    return wins * xp.gather_(g / count, at, values.shape, (-1, 1))


def _reduce_forward(xp: Any, t: Any, out: Any, values: Any, rows: Any, n: int, mode: str) -> Any:
    if mode == "multiply":
        return out * xp.scatter_rows_(t / values, rows, n)
    wins, count = _shares(xp, out, values, rows, n)
    return xp.scatter_rows_(wins * t, rows, n) / count


def _reduce_reference(values: Any, rows: Any, n: int, mode: str) -> Any:
    import numpy  # noqa: PLC0415, ICN001  a reference, run in tests alone

    out = numpy.full((n, values.shape[1]), identity_of(mode, values.dtype), values.dtype)
    {"max": numpy.maximum, "min": numpy.minimum, "multiply": numpy.multiply}[mode].at(out, rows, values)
    return out


@primitive(
    infer=lambda values, rows, n, mode: ((n, values.shape[1]), values.dtype),
    kind="scatter",
    kinds="int float",
    vjp=(_reduce_back, None),
    jvp=(_reduce_forward, None),
    verb="scatter into",
)
def scatter_reduce_rows_(xp: Any, values: Any, rows: Any, n: Any, mode: Any, /) -> Any:
    """The maximum, minimum or product of values [k, m] by row number [k], in n rows; the identity where there is none.

    Row numbers count from the end if negative.
    """
    return _reduce_reference(values, rows, n, mode)


def _set(xp: Any, x: Any, values: Any, fold: Fold) -> Any:
    """Replace rows; the last value that goes to a row is found as the greatest of their numbers."""
    looked()
    count = fold.rows.shape[0]
    number = xp.reshape_(xp.iota(count, dtypes.int64), (count, 1))
    last = xp.scatter_reduce_rows_(number, fold.rows, fold.count, "max")
    hit = xp.greater_equal(last, 0)
    flat = xp.reshape_(x, (fold.count, fold.length))
    if shapes.size(values.shape) == 1 or (values.spec.op.kind == "expand" and values.parents[0].aval.size == 1):
        one = values.parents[0] if values.aval.size > 1 else values
        return xp.where(hit, xp.reshape_(one, ()) if one.shape else one, flat)
    picked = xp.gather_(fold.rows_of(values), xp.where(hit, last, 0), flat.shape, (-1, 1))
    return xp.where(hit, picked, flat)


def _add(xp: Any, x: Any, values: Any, fold: Fold) -> Any:
    return _added_rows(xp, x, fold.rows_of(values), fold.rows, (fold.count, fold.length))


def add_at_rows(xp: Any, x: Any, index: Any, value: Any) -> Any:
    """Return x with values added at one index array along its first axis: the short way for what is asked for most.

    Neither x nor what is added is empty.
    """
    wide = wide_value(xp, value, index.shape + x.shape[1:])
    count, places = x.shape[0], shapes.size(index.shape)
    length = shapes.size(x.shape) // count
    rows, index = _shaped(xp, wide, (places, length)), _shaped(xp, cast(xp, index, dtypes.int64), (places,))
    return _shaped(xp, _added_rows(xp, x, rows, index, (count, length)), x.shape)


def _shaped(xp: Any, x: Any, shape: shapes.Shape) -> Any:
    return x if x.shape == shape else xp.reshape_(x, shape)


def _added_rows(xp: Any, x: Any, values: Any, rows: Any, shape: tuple[int, int]) -> Any:
    """Return x, as rows of *shape*, with values added at row numbers."""
    looked()
    total = xp.scatter_rows_(values, rows, shape[0])
    base = x
    while base.storage is None and base.spec.op.kind in ("reshape", "expand"):
        base = base.parents[0]
    if base.spec.op.kind == "scalar" and number_of(base) == 0:
        return total  # sums start from zeros anyway
    return xp.reshape_(x, shape) + total


def _product(xp: Any, values: Any, fold: Fold) -> Any:
    """Return the product of the values of each row, whose derivative is right beside a zero too.

    Products run over what is not zero. A row with one zero is the zero times the others, so that its slope is theirs.
    """
    if dtypes.KINDS[values.dtype] != "float":
        return xp.scatter_reduce_rows_(values, fold.rows, fold.count, "multiply")
    zero = xp.equal(values, 0)
    others = xp.scatter_reduce_rows_(xp.where(zero, 1, values), fold.rows, fold.count, "multiply")
    zeros = xp.scatter_rows_(xp.astype(zero, values.dtype), fold.rows, fold.count)
    at = xp.reshape_(fold.rows, (fold.rows.shape[0], 1))
    single = xp.gather_(xp.where(xp.equal(zeros, 1), others, 0), at, values.shape, (-1, 1))
    slope = xp.scatter_rows_(xp.where(zero, values * single, 0), fold.rows, fold.count)
    return xp.where(xp.equal(zeros, 0), others, slope)


def _scattered(xp: Any, how: str, x: Any, values: Any, fold: Fold) -> Any:
    if how == "set":
        return _set(xp, x, values, fold)
    rows = fold.rows_of(values)
    if how == "add":
        return _add(xp, x, values, fold)
    flat = xp.reshape_(x, (fold.count, fold.length))
    if how in ("multiply", "divide", "pow"):
        return {"multiply": xp.multiply, "divide": xp.divide, "pow": xp.pow}[how](flat, _product(xp, rows, fold))
    function = {"max": xp.maximum, "min": xp.minimum}[how]
    return function(flat, xp.scatter_reduce_rows_(rows, fold.rows, fold.count, how))


def wide_value(xp: Any, value: Any, shape: shapes.Shape) -> Any:
    """Return a value broadcast to a place; leading axes of size 1 too many are left out, as NumPy does."""
    extra = value.ndim - len(shape)
    if extra > 0 and all(n == 1 for n in value.shape[:extra]):
        value = xp.reshape_(value, value.shape[extra:])
    try:
        return xp.broadcast_to(value, shape)
    except ShapeError:
        raise ShapeError(
            f"cannot assign shape {list(value.shape)} to a place of shape {list(shape)}: it must broadcast to it"
        ) from None


@composite(reference=None, dtypes=ALL)
def update_(xp: Any, x: Any, value: Any, how: Any, place: Place) -> Any:
    """Return x with a value of its dtype set at, added to, ... the elements at a place.

    *how* is set, add, multiply, divide, pow, max or min.
    """
    block = x if place.whole(x.shape) else xp.slice_(x, place.starts, place.steps, place.sizes)
    block = block if block.shape == place.shape else xp.reshape_(block, place.shape)
    if place.arrays:
        new = _at_arrays(xp, block, value, how, place)
    else:
        wide = wide_value(xp, value, place.shape)
        new = wide if how == "set" else _ELEMENTWISE[how](xp)(block, wide)
    new = new if new.shape == place.sizes else xp.reshape_(new, place.sizes)
    return xp.store_(x, new, place.starts, place.steps, place.sizes)


_ELEMENTWISE: dict[str, Any] = {
    "add": lambda xp: xp.add,
    "multiply": lambda xp: xp.multiply,
    "divide": lambda xp: xp.divide,
    "pow": lambda xp: xp.pow,
    "max": lambda xp: xp.maximum,
    "min": lambda xp: xp.minimum,
}


def _at_arrays(xp: Any, block: Any, value: Any, how: str, place: Place) -> Any:
    operands, shape, plan = gather_plan(xp, place)
    wide = wide_value(xp, value, shape)
    if not shapes.size(shape) or not shapes.size(block.shape):
        return block
    narrow = dtypes.KINDS[block.dtype] == "bool" and how != "set"
    if narrow:
        if how not in ("max", "min"):
            raise DTypeError(f"cannot {how} at index arrays of a bool array: cast it with .astype('int32') first")
        block, wide = xp.astype(block, dtypes.uint8), xp.astype(wide, dtypes.uint8)
    fold = Fold(xp, shape, operands, block.shape, plan)
    new = xp.reshape_(_scattered(xp, how, block, wide, fold), block.shape)
    return xp.astype(new, dtypes.bool_) if narrow else new
