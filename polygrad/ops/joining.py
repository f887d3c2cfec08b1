"""Arrays put together, repeated, and put into larger ones.

Here: concat, stack, roll, tile, repeat, pad, diff, meshgrid.
Not here: views of one array (`manipulation.py`), reading at positions (`indexing.py`).
"""

import operator
from typing import Any

from polygrad import dtypes, shapes
from polygrad.errors import DTypeError, ShapeError
from polygrad.ops.internal import cast, places
from polygrad.ops.manipulation import part, with_calls
from polygrad.ops.table import composite
from polygrad.symbols import settled

ALL = "bool int float complex"
GROUP = 8  # as many inputs as a kernel takes comfortably; a thousand inputs are four levels of them


def _several(*cases: Any) -> Any:
    """Return samples: a list of arrays of the given shapes, then keywords."""
    return lambda draw: [(([draw.array(s, -2, 2) for s in group],), keywords) for group, keywords in cases]


def _check_parts(parts: Any, axis: int) -> None:
    first = parts[0].shape
    for x in parts[1:]:
        if x.ndim != len(first) or [n for k, n in enumerate(x.shape) if k != axis and n != first[k]]:
            raise ShapeError(
                f"cannot concatenate shapes {list(first)} and {list(x.shape)} along axis {axis}: all other axes must "
                "have equal sizes"
            )


def _arrays(verb: str, given: Any) -> list[Any]:
    """Return the arrays of a list, of which there must be one at least."""
    parts = list(given)
    if not parts:
        raise ShapeError(f"cannot {verb} no arrays: give at least one")
    for x in parts:
        if not hasattr(x, "ndim"):
            raise DTypeError(f"cannot {verb} {x!r}: it is no array; convert it with pg.asarray(...)")
    return parts


@composite(
    reference=lambda np, arrays, axis=0: np.concatenate(arrays, axis=axis),
    samples=_several(
        (((2, 3), (1, 3)), {}), (((2, 3), (2, 1), (2, 2)), {"axis": -1}), (((2, 3), (4,)), {"axis": None}),
        (((3,),) * 19, {}),
        (((2, 0), (2, 3)), {"axis": 1}), (((0,), (0,)), {}), (((0, 2), (0, 3)), {"axis": 1}), (((2, 2),), {}),
    ),
    dtypes=ALL,
)  # fmt: skip
def concat(xp: Any, arrays: Any, /, *, axis: Any = 0) -> Any:
    """Arrays one after another along an axis, or flattened if *axis* is None, in their common dtype."""
    parts = _arrays("concatenate", arrays)
    if axis is None:
        parts, axis = [xp.flatten(x) for x in parts], 0
    k = shapes.axis("concatenate", axis, parts[0].ndim)
    _check_parts(parts, k)
    dtype = parts[0].dtype
    for x in parts[1:]:
        dtype = dtypes.promote(dtype, x.dtype)
    full = [cast(xp, x, dtype) for x in parts if x.shape[k]] or [cast(xp, parts[0], dtype)]
    return full[0] if len(full) == 1 else _joined(xp, full, k)


def _joined(xp: Any, parts: list[Any], axis: int) -> Any:
    """Return parts joined in groups of groups, so that many parts make a wide graph and not a deep one."""
    while len(parts) > GROUP:
        parts = [_group(xp, parts[i : i + GROUP], axis) for i in range(0, len(parts), GROUP)]
    return _group(xp, parts, axis)


def _group(xp: Any, parts: list[Any], axis: int) -> Any:
    """Return a few parts joined by one selection: each is padded to the whole and read only where it lies."""
    if len(parts) == 1:
        return parts[0]
    sizes = [x.shape[axis] for x in parts]
    total = sum(sizes)
    here = places(xp, total, axis, parts[0].ndim)
    out, start = None, total
    for x, n in zip(reversed(parts), reversed(sizes), strict=True):
        start -= n
        before = tuple(start if k == axis else 0 for k in range(x.ndim))
        after = tuple(total - start - n if k == axis else 0 for k in range(x.ndim))
        wide = xp.pad_(x, before, after, 0)
        out = wide if out is None else xp.where(xp.less(here, start + n), wide, out)
    return out


@composite(
    reference=lambda np, arrays, axis=0: np.stack(arrays, axis=axis),
    samples=_several(
        (((2, 3), (2, 3)), {}),
        (((2, 3),) * 3, {"axis": -1}),
        (((), ()), {}),
        (((3,),) * 9, {"axis": 1}),
        (((2, 0),) * 2, {"axis": 1}),
    ),
    dtypes=ALL,
)
def stack(xp: Any, arrays: Any, /, *, axis: Any = 0) -> Any:
    """Arrays of one shape along a new axis, in their common dtype."""
    parts = _arrays("stack", arrays)
    for x in parts[1:]:
        if x.shape != parts[0].shape:
            raise ShapeError(f"cannot stack shapes {list(parts[0].shape)} and {list(x.shape)}: they must be equal")
    k = shapes.axis("stack", axis, parts[0].ndim + 1, of="the result")
    return xp.concat([xp.expand_dims(x, k) for x in parts], axis=k)


@composite(
    reference=lambda np, x, shift, axis=None: np.roll(x, shift, axis),
    samples=with_calls(
        ((5,), 2),
        ((3, 4), 5),
        ((3, 4), -1, {"axis": 1}),
        ((3, 4), (1, -6), {"axis": (0, 1)}),
        ((3, 4), 1, {"axis": (0, 1)}),
        ((2, 0), 1, {"axis": 1}),
    ),
    dtypes=ALL,
)
def roll(xp: Any, x: Any, /, shift: Any, axis: Any = None) -> Any:
    """Elements moved along axes by *shift* places; those that fall off the end come in at the front."""
    if axis is None:
        if isinstance(shift, (tuple, list)):
            raise ShapeError(f"cannot roll by {shift!r} without axes: give one axis for each shift")
        return xp.reshape(xp.roll(xp.flatten(x), shift, 0), x.shape)
    axes = axis if isinstance(axis, (tuple, list)) else (axis,)
    shifts = shift if isinstance(shift, (tuple, list)) else (shift,) * len(axes)
    if len(shifts) != len(axes):
        raise ShapeError(f"cannot roll by {shift!r} along {axis!r}: give one axis for each shift")
    for by, k in zip(shifts, axes, strict=True):
        x = _roll_one(xp, x, operator.index(by), shapes.axis("roll", k, x.ndim))
    return x


def _roll_one(xp: Any, x: Any, by: int, axis: int) -> Any:
    n = x.shape[axis]
    by = by % n if n else 0
    if by == 0:
        return x
    return xp.concat([part(xp, x, axis, n - by, by), part(xp, x, axis, 0, n - by)], axis=axis)


@composite(
    reference=lambda np, x, repetitions: np.tile(x, repetitions),
    samples=with_calls(
        ((2, 3), (2, 2)), ((3,), (2, 2)), ((2, 3), (2,)), ((2, 3), (0, 1)), ((), (3,)), ((2, 3), (1, 1))
    ),
    dtypes=ALL,
)
def tile(xp: Any, x: Any, repetitions: Any, /) -> Any:
    """x laid out repeatedly along each axis."""
    counts = shapes.as_shape("tile", repetitions)
    rank = max(x.ndim, len(counts))
    counts = (1,) * (rank - len(counts)) + counts
    sizes = (1,) * (rank - x.ndim) + x.shape
    pairs = list(zip(counts, sizes, strict=True))
    split_up = xp.reshape(x, tuple(m for _, n in pairs for m in (1, n)))
    repeated = xp.broadcast_to(split_up, tuple(m for pair in pairs for m in pair))
    return xp.reshape(repeated, tuple(c * n for c, n in pairs))


@composite(
    reference=lambda np, x, repeats, axis=None: np.repeat(x, repeats, axis),
    samples=with_calls(
        ((2, 3), 2),
        ((2, 3), 3, {"axis": 0}),
        ((2, 3), 2, {"axis": -1}),
        ((2,), 0),
        ((), 2),
        ((2, 3), (1, 0, 2), {"axis": 1}),
    ),
    dtypes=ALL,
)
def repeat(xp: Any, x: Any, repeats: Any, /, *, axis: Any = None) -> Any:
    """Each element repeated along an axis, or in the flattened array.

    *repeats* is an int, or ints, one for each element; if they are an array, the host waits for their sum.
    """
    if axis is None:
        x, axis = xp.flatten(x), 0
    k = shapes.axis("repeat", axis, x.ndim)
    n = x.shape[k]
    if isinstance(repeats, (tuple, list)):
        counts = shapes.as_shape("repeat", repeats)
        if len(counts) not in (1, n):
            raise ShapeError(
                f"cannot repeat {n} elements along axis {k} by {len(counts)} counts: give one count, or {n}"
            )
        if len(set(counts)) > 1:
            return xp.concat([xp.repeat(part(xp, x, k, i, 1), count, axis=k) for i, count in enumerate(counts)], axis=k)
        repeats = counts[0] if counts else 1
    if hasattr(repeats, "shape"):
        return _repeat_by_array(xp, x, repeats, k)
    (count,) = shapes.as_shape("repeat", repeats)
    shape = x.shape
    apart = xp.reshape(x, (*shape[: k + 1], 1, *shape[k + 1 :]))
    wide = xp.broadcast_to(apart, (*shape[: k + 1], count, *shape[k + 1 :]))
    return xp.reshape(wide, (*shape[:k], n * count, *shape[k + 1 :]))


def _repeat_by_array(xp: Any, x: Any, repeats: Any, axis: int) -> Any:
    """Return each element along an axis repeated as often as an array says."""
    n = x.shape[axis]
    if repeats.dtype not in dtypes.INTEGERS or repeats.ndim > 1 or (repeats.ndim and repeats.shape[0] not in (1, n)):
        raise ShapeError(
            f"cannot repeat {n} elements along axis {axis} by {repeats.aval!r}: give one count, or {n}, of an integer "
            "dtype"
        )
    counts = xp.broadcast_to(cast(xp, repeats, dtypes.int64), (n,))
    if n == 0:
        return x
    ends = xp.cumulative_sum(counts)
    least = xp.look_(xp.min(counts))
    if least < 0:
        raise ShapeError(f"cannot repeat an element {least} times: counts must not be negative")
    total = xp.look_(xp.reshape_(part(xp, ends, 0, n - 1, 1), ()))
    at = xp.searchsorted(ends, xp.iota(total, dtypes.int64), side="right") if total else xp.iota(0, dtypes.int64)
    return xp.getitem(x, (*[slice(None)] * axis, at))


def _widths(pad_width: Any, rank: int) -> list[tuple[int, int]]:
    """Return (before, after) for each axis from an int, one pair, or a pair for each axis."""
    given = pad_width
    try:
        if not isinstance(given, (tuple, list)):
            pairs = [(operator.index(given), operator.index(given))] * rank
        elif len(given) == 2 and not isinstance(given[0], (tuple, list)):
            pairs = [(operator.index(given[0]), operator.index(given[1]))] * rank
        else:
            pairs = [(operator.index(a), operator.index(b)) for a, b in given]
            pairs = pairs * rank if len(pairs) == 1 else pairs
    except (TypeError, ValueError):
        pairs = []
        rank = -1
    if len(pairs) != rank or [p for p in pairs if p[0] < 0 or p[1] < 0]:
        raise ShapeError(
            f"cannot pad by {pad_width!r}: give an int, a pair (before, after), or one pair for each axis, none "
            "negative"
        )
    return pairs


def _pad_reference(np: Any, x: Any, pad_width: Any, mode: str = "constant", constant_values: Any = 0) -> Any:
    return np.pad(x, pad_width, mode=mode, constant_values=constant_values)


@composite(
    reference=_pad_reference,
    samples=with_calls(
        ((2, 3), 1),
        ((2, 3), (1, 2)),
        ((2, 3), ((0, 1), (2, 0))),
        ((3,), ((1, 1),), {"constant_values": 1}),
        ((0, 2), 1),
    ),
    dtypes=ALL,
)
def pad(xp: Any, x: Any, pad_width: Any, /, *, mode: Any = "constant", constant_values: Any = 0) -> Any:
    """x with *constant_values* around it; widths are an int, a pair (before, after), or one pair for each axis."""
    if mode != "constant":
        raise ShapeError(f"cannot pad in mode {mode!r}: polygrad has 'constant'")
    pairs = _widths(pad_width, x.ndim)
    if not [p for p in pairs if p != (0, 0)]:
        return x
    value = constant_values
    if not isinstance(value, (bool, int, float, complex)):
        raise DTypeError(f"cannot pad with {value!r}: the value is a Python number")
    value = xp.constant(settled(value), x.dtype).value
    return xp.pad_(x, tuple(b for b, _ in pairs), tuple(a for _, a in pairs), value)


def _diff_reference(np: Any, x: Any, axis: int = -1, n: int = 1, prepend: Any = None, append: Any = None) -> Any:
    extra = {k: v for k, v in (("prepend", prepend), ("append", append)) if v is not None}
    return np.diff(x, n=n, axis=axis, **extra)


def _diff_samples(draw: Any) -> Any:
    x = draw.array((3, 5), -2, 2)
    ends = {"prepend": draw.array((3, 1), -2, 2), "append": draw.array((3, 2), -2, 2)}
    return [((x,), {}), ((x,), {"axis": 0}), ((x,), {"n": 2}), ((x,), {"n": 0}), ((x,), ends), ((x,), {"n": 7})]


@composite(reference=_diff_reference, samples=_diff_samples, dtypes=ALL)
def diff(xp: Any, x: Any, /, n: Any = 1, axis: Any = -1, *, prepend: Any = None, append: Any = None) -> Any:
    """The differences of neighbours along an axis, taken n times; of bools, whether they differ."""
    k = shapes.axis("take differences", axis, x.ndim)
    if n < 0:
        raise ShapeError(f"cannot take differences {n} times: the count must not be negative")
    if prepend is not None or append is not None:
        x = xp.concat([part_ for part_ in (prepend, x, append) if part_ is not None], axis=k)
    subtract = xp.not_equal if x.dtype is dtypes.bool_ else xp.subtract
    for _ in range(min(n, x.shape[k])):
        size = x.shape[k] - 1
        x = subtract(part(xp, x, k, 1, size), part(xp, x, k, 0, size))
    return x


@composite(
    reference=lambda np, *xs, indexing="xy": np.meshgrid(*xs, indexing=indexing),
    samples=lambda draw: (
        [
            ((draw.array((2,), -2, 2), draw.array((3,), -2, 2), draw.array((4,), -2, 2)), {"indexing": mode})
            for mode in ("xy", "ij")
        ]
        + [((draw.array((3,), -2, 2),), {})]
    ),
    dtypes=ALL,
)
def meshgrid(xp: Any, *arrays: Any, indexing: Any = "xy") -> Any:
    """Coordinate grids of 1-D arrays, as a tuple; *indexing* "xy" exchanges the first two axes, "ij" does not."""
    if indexing not in ("xy", "ij"):
        raise ShapeError(f"cannot make a grid with indexing {indexing!r}: it is 'xy' or 'ij'")
    for x in arrays:
        if x.ndim > 1:
            raise ShapeError(f"cannot make a grid of shape {list(x.shape)}: coordinates have one axis")
    rank = len(arrays)
    order = [1, 0, *range(2, rank)] if indexing == "xy" and rank > 1 else list(range(rank))
    sizes = [shapes.size(x.shape) for x in arrays]
    shape = tuple(sizes[k] for k in order)
    out = []
    for k, x in enumerate(arrays):
        view = tuple(sizes[k] if d == k else 1 for d in order)
        out.append(xp.broadcast_to(xp.reshape(x, view), shape))
    return tuple(out)
