"""Reading elements at positions.

Here: getitem with NumPy's basic and integer-array keys, take, take_along_axis, one_hot.
Not here: boolean masks, whose result has a shape that depends on values; writing.
"""

import operator
from typing import Any, NamedTuple

from polygrad import dtypes, shapes
from polygrad.errors import AxisError, DTypeError, OutOfBounds, ShapeError
from polygrad.ops.internal import cast, places
from polygrad.ops.selection import counted_as_axes
from polygrad.ops.table import composite

ALL = "bool int float complex"


def _is_array(entry: Any) -> bool:
    return hasattr(entry, "dtype") and hasattr(entry, "shape")


def _check_entry(entry: Any) -> None:
    """Refuse what is no key: bools, floats, lists."""
    if isinstance(entry, bool) or (_is_array(entry) and entry.dtype is dtypes.bool_):
        raise DTypeError(
            "cannot index by bool here: the result's shape would depend on values; use where, or a mask that the "
            "host knows"
        )
    if _is_array(entry):
        if entry.dtype not in dtypes.INTEGERS:
            raise DTypeError(
                f"cannot index by {entry.dtype.name}: an index array has an integer dtype; cast with .astype(...)"
            )
        return
    if entry is None or entry is Ellipsis or isinstance(entry, slice):
        return
    try:
        operator.index(entry)
    except TypeError:
        raise DTypeError(f"cannot index by {entry!r}: use ints, slices, ..., None and integer arrays") from None


def entries_of(key: Any, shape: shapes.Shape) -> list[Any]:
    """Return the key as a list with one entry for each axis, `...` filled in by full slices, None kept."""
    parts = list(key) if isinstance(key, tuple) else [key]
    for entry in parts:
        _check_entry(entry)
    dots = [k for k, entry in enumerate(parts) if entry is Ellipsis]
    if len(dots) > 1:
        raise ShapeError("cannot index with two '...': one stands for all axes that are not named")
    named = len([entry for entry in parts if entry is not None and entry is not Ellipsis])
    if named > len(shape):
        raise AxisError(f"cannot index shape {list(shape)} with {named} keys: it has {len(shape)} axes")
    at = dots[0] if dots else len(parts)
    return [*parts[:at], *[slice(None)] * (len(shape) - named), *parts[at + 1 :]]


def position_of(entry: Any, axis: int, n: int) -> int:
    """Return an int key as a position."""
    i = operator.index(entry)
    if not -n <= i < n:
        raise OutOfBounds(f"cannot take index {i} of axis {axis}, which has size {n}: it must be in [{-n}, {n})")
    return i % n


def _getitem_samples(draw: Any) -> Any:
    x, s = draw.array((4, 5, 6), -2, 2), slice
    keys: list[Any] = [
        1, -1, s(1, 3), s(None, None, -1), s(4, 0, -2), (s(None), 2), (..., 0), (None, ..., None), (s(10, 2), 1),
        (s(-100, 100, 3), s(3, 1)),
        (1, 2, 3), (), ..., (s(None), None, s(1, None, 2)), (s(None, None, -3), s(None, 1, -2), -2),
    ]  # fmt: skip
    i, j = draw.ints((3,), -4, 3), draw.ints((2, 1), 0, 4)
    keys += [
        i,
        (i, j),
        (s(None), j),
        (i, s(None), j),
        (0, s(None), i),
        (s(1, 3), 0, j),
        (..., i),
        (None, i, s(None, None, -1)),
        (s(None), i, 2),
    ]
    keys += [(i, None, s(1, 4)), (s(None), None, i, j), (draw.ints((0,), 0, 3), s(2))]
    return [((x, key), {}) for key in keys]


class Place(NamedTuple):
    """Where a key points: a strided block of the array, that block without the axes of ints, index arrays into it."""

    starts: tuple[int, ...]
    steps: tuple[int, ...]
    sizes: tuple[int, ...]
    shape: shapes.Shape  # of the block, new axes of size 1 included
    arrays: dict[int, Any]  # index arrays by the axis of that shape
    entries: list[Any]

    def whole(self, shape: shapes.Shape) -> bool:
        """Whether the block is the array itself, in its order."""
        return self.sizes == shape and not any(self.starts) and all(step == 1 for step in self.steps)


def place_of(key: Any, shape: shapes.Shape) -> Place:
    """Return where a key of ints, slices, `...`, None and integer arrays points in an array of a shape."""
    entries = entries_of(key, shape)
    axes = iter(enumerate(shape))
    cuts = [None if entry is None else _cut(entry, *next(axes)) for entry in entries]
    found = [cut for cut in cuts if cut is not None]
    starts, steps, sizes = (tuple(part) for part in zip(*found, strict=True)) if found else ((), (), ())
    kept = [(entry, cut) for entry, cut in zip(entries, cuts, strict=True) if not _is_int(entry)]
    block = tuple(1 if cut is None else cut[2] for _, cut in kept)
    arrays = {k: entry for k, (entry, _) in enumerate(kept) if _is_array(entry)}
    return Place(starts, steps, sizes, block, arrays, entries)


@composite(reference=lambda np, x, key: x[key], samples=_getitem_samples, dtypes=ALL)
def getitem(xp: Any, x: Any, key: Any, /) -> Any:
    """x[key] for ints, slices, `...`, None and integer arrays, mixed as in NumPy.

    Bad positions in arrays are reported by the device.
    """
    return read(xp, x, place_of(key, x.shape))


def read(xp: Any, x: Any, place: Place) -> Any:
    """Return the elements of x at a place."""
    if not place.whole(x.shape):
        x = xp.slice_(x, place.starts, place.steps, place.sizes)
    if place.shape != x.shape:
        x = xp.reshape_(x, place.shape)
    if not place.arrays:
        return x
    operands, shape, plan = gather_plan(xp, place)
    return xp.gather_(x, *operands, shape, plan)


def read_rows(xp: Any, x: Any, index: Any) -> Any:
    """Return the elements of x at one index array along its first axis: the short way for what is asked for most."""
    shape = index.shape + x.shape[1:]
    if x.shape[0] == 0 and shapes.size(shape):
        raise OutOfBounds(f"cannot index axis 0 of shape {list(x.shape)}: it is empty")
    operand = cast(xp, index, dtypes.int64)
    operand = operand if x.ndim == 1 else xp.reshape_(operand, index.shape + (1,) * (x.ndim - 1))
    plan = (-1, *range(index.ndim, len(shape)))
    return xp.gather_(x, operand, shape, counted_as_axes([operand], shape, x.shape, plan))


def _is_int(entry: Any) -> bool:
    return not (entry is None or isinstance(entry, slice) or _is_array(entry))


def _cut(entry: Any, axis: int, n: int) -> tuple[int, int, int]:
    """Return (start, step, size) of what a key takes of an axis of size n; an index array takes all, for now."""
    if _is_array(entry):
        return 0, 1, n
    if not isinstance(entry, slice):
        return position_of(entry, axis, n), 1, 1
    start, stop, step = entry.indices(n)
    size = len(range(start, stop, step))
    return start if size else 0, step if size > 1 else 1, size


def gather_plan(xp: Any, place: Place) -> tuple[list[Any], shapes.Shape, tuple[int, ...]]:
    """Return index operands, the result's shape and the plan by which `gather_` reads a block at its index arrays.

    The axes that the index arrays broadcast to stand where NumPy puts them.
    """
    arrays, entries, block = place.arrays, place.entries, place.shape
    common = shapes.broadcast("index with", *[i.shape for i in arrays.values()])
    # Ints beside arrays are index arrays too when NumPy decides whether they stand together.
    advanced = [k for k, entry in enumerate(entries) if _is_array(entry) or _is_int(entry)]
    front = 0
    if advanced == list(range(advanced[0], advanced[-1] + 1)):
        front = sum(not _is_int(entry) for entry in entries[: advanced[0]])
    kept = [k for k in range(len(block)) if k not in arrays]
    shape = tuple(block[k] for k in kept[:front]) + common + tuple(block[k] for k in kept[front:])
    tail = (1,) * (len(kept) - front)
    plan: list[int] = []
    operands: list[Any] = []
    for k, n in enumerate(block):
        if k in arrays:
            index = arrays[k]
            if n == 0 and shapes.size(shape):
                raise OutOfBounds(f"cannot index axis {k} of shape {list(block)}: it is empty")
            operands.append(xp.reshape(cast(xp, index, dtypes.int64), index.shape + tail))
            plan.append(-len(operands))
        else:
            place_in = kept.index(k)
            plan.append(place_in if place_in < front else place_in + len(common))
    return operands, shape, counted_as_axes(operands, shape, block, tuple(plan))


def _need_integers(name: str, index: Any) -> None:
    if index.dtype not in dtypes.INTEGERS:
        raise DTypeError(
            f"cannot {name} at {index.dtype.name} positions: indices have an integer dtype; cast with .astype(...)"
        )


@composite(
    reference=lambda np, x, i, axis=None: np.take(x, i, axis=axis),
    samples=lambda draw: [
        ((draw.array(s, -2, 2), draw.ints(i, -2, 1)), {"axis": axis})
        for s, i, axis in (
            ((4, 3), (5,), 0),
            ((4, 3), (2, 2), -1),
            ((5,), (), None),
            ((2, 0, 3), (2,), 2),
            ((2, 3), (4,), None),
        )
    ],
    dtypes=ALL,
)
def take(xp: Any, x: Any, indices: Any, /, *, axis: Any = None) -> Any:
    """The elements of x at positions along an axis, or of the flattened array."""
    _need_integers("take", indices)
    if axis is None:
        x, axis = xp.flatten(x), 0
    k = shapes.axis("take", axis, x.ndim)
    return xp.getitem(x, (*[slice(None)] * k, indices))


def _along_samples(draw: Any) -> Any:
    x = draw.array((3, 4), -2, 2)
    cases = (((3, 2), 1), ((2, 4), 0), ((1, 3), 1), ((3, 0), 1))
    return [((x, draw.ints(shape, -3, 2)), {"axis": axis}) for shape, axis in cases] + [
        ((draw.array((2, 1, 4), -2, 2), draw.ints((2, 3, 2), -4, 3)), {})
    ]


def _along_reference(np: Any, x: Any, i: Any, axis: int = -1) -> Any:
    lead = list(np.broadcast_shapes(np.delete(x.shape, axis).tolist(), np.delete(i.shape, axis).tolist()))
    k = axis % x.ndim
    x = np.broadcast_to(x, (*lead[:k], x.shape[k], *lead[k:]))
    return np.take_along_axis(x, np.broadcast_to(i, (*lead[:k], i.shape[k], *lead[k:])), k)


@composite(reference=_along_reference, samples=_along_samples, dtypes=ALL)
def take_along_axis(xp: Any, x: Any, indices: Any, /, *, axis: Any = -1) -> Any:
    """For each line along an axis, the elements at the positions that *indices* holds for that line.

    Other axes broadcast.
    """
    _need_integers("take", indices)
    if x.ndim != indices.ndim:
        raise ShapeError(
            f"cannot take along axis {axis} of {x.ndim} axes with indices of {indices.ndim}: they must have as many "
            "axes"
        )
    k = shapes.axis("take", axis, x.ndim)
    others = [tuple(1 if d == k else n for d, n in enumerate(a.shape)) for a in (x, indices)]
    lead = shapes.broadcast("take along an axis of", *others)
    shape = (*lead[:k], indices.shape[k], *lead[k + 1 :])
    x = xp.broadcast_to(x, (*lead[:k], x.shape[k], *lead[k + 1 :]))
    if x.shape[k] == 0 and shapes.size(shape):
        raise OutOfBounds(f"cannot take along axis {k} of shape {list(x.shape)}: it is empty")
    plan = tuple(-1 if d == k else d for d in range(x.ndim))
    return xp.gather_(x, cast(xp, indices, dtypes.int64), shape, plan)


@composite(
    reference=lambda np, labels, n, dtype=None, axis=-1: np.moveaxis(
        np.eye(n, dtype=dtype or "float32")[labels], -1, axis
    ),
    samples=lambda draw: [
        ((draw.ints((4,), 0, 2), 3), {}),
        ((draw.ints((2, 3), 0, 2), 3), {"axis": 0, "dtype": draw.dtype}),
    ],
    dtypes="int",
    differentiable=False,
)
def one_hot(xp: Any, labels: Any, num_classes: Any, /, *, dtype: Any = None, axis: Any = -1) -> Any:
    """1 at each label along a new axis, 0 elsewhere, in float32 unless a dtype is given.

    Labels outside are reported by the device.
    """
    _need_integers("one-hot", labels)
    n = operator.index(num_classes)
    if n < 1:
        raise ShapeError(f"cannot one-hot {n} classes: there must be at least one")
    k = shapes.axis("one-hot", axis, labels.ndim + 1, of="the result")
    wide = xp.expand_dims(checked_label(xp, labels, n), k)
    hit = xp.equal(wide, places(xp, n, k, labels.ndim + 1))
    return cast(xp, hit, dtypes.float32 if dtype is None else dtypes.as_dtype(dtype))


def checked_label(xp: Any, labels: Any, count: int) -> Any:
    """Return labels as int64, reported by the device where they are not in [0, count).

    Negative ones do not count from the end.
    """
    return xp.checked_index(labels, count, True)
