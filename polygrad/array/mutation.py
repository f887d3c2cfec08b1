"""Writing into arrays: x[key] = value, as a new value under the same handle.

Here: assignment by basic indices. A recorded value is never changed: the handle is bound to a new node.
Not here: views that see each other's writes, masks and integer arrays as keys; they come with the rest of the standard.
"""

from typing import Any

from polygrad import dtypes
from polygrad.array.creation import asarray
from polygrad.array.object import Array
from polygrad.array.operators import operand
from polygrad.errors import DTypeError, GradError, ShapeError
from polygrad.graph.functions import F
from polygrad.graph.node import RECORDING
from polygrad.ops.indexing import entries_of, position_of
from polygrad.ops.layout import slice_


def assign(target: Array, key: Any, value: Any) -> None:
    """Bind *target* to its value with the elements at *key* replaced.

    Raises
    ------
    GradError
        If *target* is a leaf that needs gradients, outside of `no_grad`.
    DTypeError
        If *key* is not made of ints, slices, Ellipsis and None.
    ShapeError
        If *value* does not broadcast to the place.
    """
    leaf = target.requires_grad and target.is_leaf
    if leaf and RECORDING.enabled:
        raise GradError("cannot write into a leaf that needs gradients: do it in pg.no_grad(), or on a copy")
    node = target._node
    found = basic_slices(key, node.shape)
    if found is None:
        raise DTypeError(
            f"cannot assign at {key!r}: keys are ints, slices, Ellipsis and None; for others build the array with "
            "pg.where(...)"
        )
    starts, steps, sizes, shape = found
    put = asarray(value, device=target.device)._node if isinstance(value, (list, tuple)) else operand(value, node)
    if put is None:
        raise DTypeError(f"cannot assign {value!r}: convert it with pg.asarray(...)")
    put = F.astype(put, node.dtype)
    try:
        wide = F.broadcast_to(put, shape)
    except ShapeError:
        raise ShapeError(
            f"cannot assign shape {list(put.shape)} to a place of shape {list(shape)}: it must broadcast to it"
        ) from None
    back = slice_.vjp[0]  # type: ignore[index]
    assert back is not None  # noqa: S101  slices are differentiable
    block = F.reshape_(wide, sizes)
    here = F.full_of(True, block, dtypes.bool_)
    placed = back(F, block, None, node, starts, steps, sizes)
    mask = back(F, here, None, node, starts, steps, sizes)
    target._node = F.where(mask, placed, node)
    if leaf:  # in no_grad: the handle stays a leaf, of the new value
        target.requires_grad = True


def basic_slices(key: Any, shape: tuple[int, ...]) -> tuple[Any, Any, Any, Any] | None:
    """Return starts, steps and sizes for each axis, and the shape of the place; None if the key is not a basic one."""
    parts = key if isinstance(key, tuple) else (key,)
    if any(hasattr(k, "dtype") or isinstance(k, (list, bool)) for k in parts):
        return None
    starts, steps, sizes, place = [], [], [], []
    axis = 0
    for entry in entries_of(key, shape):
        if entry is None:
            place.append(1)
            continue
        n = shape[axis]
        if isinstance(entry, slice):
            start, stop, step = entry.indices(n)
            size = len(range(start, stop, step))
            place.append(size)
        else:
            start, step, size = position_of(entry, axis, n), 1, 1
        starts.append(start if size else 0)
        steps.append(step if size else 1)
        sizes.append(size)
        axis += 1
    return tuple(starts), tuple(steps), tuple(sizes), tuple(place)
