"""Writing into arrays: ``x[key] = value`` and ``x += y``, as new values under the same handles.

Here: what is read from an array, what may be written into it, and how a value is made to fit.
Not here: how views see it (`views.py`), keys (`keys.py`), updates that return a new array (`at.py`).

A recorded value is never changed: the handles are bound to new nodes, and gradients go the way that the values went.
"""

from typing import Any

from polygrad import dtypes, shapes
from polygrad.array.creation import asarray
from polygrad.array.keys import basic_place, entries_of_key, place_in, single_mask
from polygrad.array.object import Array
from polygrad.array.operators import operand
from polygrad.array.views import Move, Steps, may_write, stored, view_of, write, write_root
from polygrad.errors import DTypeError, ShapeError
from polygrad.graph.functions import F
from polygrad.graph.node import RECORDING, Node, aval
from polygrad.ops.indexing import Place, read, read_rows
from polygrad.ops.layout import reshape_, slice_
from polygrad.ops.placing import wide_value


def taken(source: Array, key: Any) -> Array:
    """Return ``source[key]``: a view if the key is made of ints, slices, Ellipsis and None, else a copy."""
    basic = basic_place(key, source._node.aval.shape)
    if basic is not None:
        return view_of(source, _read, basic)
    if isinstance(key, Array) and dtypes.KINDS[key.dtype] == "int" and source.ndim:
        return Array(read_rows(F, source._node, key._node))
    entries = entries_of_key(key, source.device)
    node, place = place_in(entries, source._node, source.device)
    if node is not source._node or place.arrays:
        return Array(read(F, node, place))
    return view_of(source, _read, place)


def _read(node: Node, place: Place) -> Node:
    return read(F, node, place)  # type: ignore[no-any-return]


def assign(target: Array, key: Any, value: Any) -> None:
    """Replace the elements of *target* at *key*, in all handles that show them.

    Where an index array names an element several times, the last value stays, on every device.

    Raises
    ------
    GradError
        If *target* is a leaf that needs gradients, outside of `no_grad`.
    DTypeError
        If *key* is no key, or *value* cannot be cast to the array's dtype.
    ShapeError
        If *value* does not broadcast to the place, or *target* is a broadcast view.
    """
    may_write(target)
    place = basic_place(key, target.shape)
    if place is None:
        _assign_at_arrays(target, value_for(target, value), entries_of_key(key, target.device))
        return
    root, steps = _place_in_root(target, place)
    if isinstance(value, Array) and _shows(value, root, steps):
        return  # the second half of x[key] += y: the view has been written to
    wide = wide_value(F, value_for(target, value), place.shape)
    if shapes.size(place.shape):
        write_root(root, stored(root._node, steps, wide))


def _place_in_root(target: Array, place: Place) -> tuple[Array, Steps]:
    """Return the array at the root of *target*, and the way from there to a place without index arrays in *target*."""
    link, shape, dtype = target._link, target.shape, target.dtype
    root, steps = link[:2] if type(link) is tuple else (target, ())
    if not place.whole(shape):
        steps = (*steps, (Move(slice_, (place.starts, place.steps, place.sizes)), aval(shape, dtype)))
    if place.shape != place.sizes:
        steps = (*steps, (Move(reshape_, (place.shape,)), aval(place.sizes, dtype)))
    return root, steps


def _shows(value: Array, root: Array, steps: Steps) -> bool:
    """Whether an array is a view of *root* that was cut by the same steps."""
    link = value._link
    if type(link) is not tuple or link[0] is not root or len(link[1]) != len(steps):
        return False
    return all(a.op is b.op and a.attrs == b.attrs and u is v for (a, u), (b, v) in zip(link[1], steps, strict=True))


def _assign_at_arrays(target: Array, put: Node, entries: list[Any]) -> None:
    node = target._node
    mask = single_mask(entries)
    if mask is not None and put.aval.size == 1 and mask.aval.shape == node.aval.shape[: mask.ndim]:
        wide = F.reshape_(mask, (*mask.aval.shape, *(1,) * (node.ndim - mask.ndim)))
        write(target, F.where(wide, F.reshape_(put, ()), node))  # needs no count of what is true
        return
    whole, place = place_in(entries, node, target.device)
    write(target, F.reshape(F.update_(whole, put, "set", place), node.aval.shape))


LONGEST = 32  # writes in a row that wait to be done


def bounded(target: Array) -> None:
    """Compute an array that many writes in a row wait for: a plan for so many serves the next ones too.

    Nothing of a vmap can be computed yet; and in `pg.eager` all has been.
    """
    root = target._link[0] if type(target._link) is tuple else target
    node = root._node
    if node.depth < LONGEST or node.depth % LONGEST or RECORDING.batches:
        return
    for _ in range(LONGEST):
        if node.spec.op.kind != "put" or node.storage is not None:
            return
        node = node.parents[0]
    del node
    root.realize()


def value_for(target: Array, value: Any) -> Node:
    """Return what is written as a node of the target's dtype."""
    node = target._node
    if isinstance(value, (list, tuple)):
        put: Node | None = asarray(value, device=target.device)._node
    else:
        put = operand(value, node)
    if put is None:
        raise DTypeError(f"cannot assign {value!r}: convert it with pg.asarray(...)")
    if dtypes.KINDS[put.aval.dtype] == "complex" and dtypes.KINDS[node.aval.dtype] != "complex":
        raise DTypeError(
            f"cannot assign {put.aval.dtype.name} to an array of {node.aval.dtype.name}: take pg.real(...) of it"
        )
    return F.astype(put, node.aval.dtype)  # type: ignore[no-any-return]


_LADDER = ("bool", "int", "float", "complex")


def replace(target: Array, result: Node, verb: str) -> None:
    """Give *target* the result of an in-place operator, which keeps its shape and dtype.

    Raises
    ------
    ShapeError
        If the result has another shape.
    DTypeError
        If the result has a dtype of a higher kind, or would lose its sign.
    """
    may_write(target)
    if result.aval.shape != target.shape:
        raise ShapeError(
            f"cannot {verb} in place: the result has shape {list(result.aval.shape)}, the array "
            f"{list(target.shape)}; write x = x ... for a new array"
        )
    have, wanted = result.aval.dtype, target.dtype
    if have is not wanted:
        lower = _LADDER.index(dtypes.KINDS[have]) > _LADDER.index(dtypes.KINDS[wanted])
        if lower or (have in dtypes.SIGNED and wanted in dtypes.UNSIGNED):
            raise DTypeError(
                f"cannot {verb} in place: the result has dtype {have.name}, the array {wanted.name}; cast an operand "
                "with .astype(...), or write x = x ... for a new array"
            )
        result = F.astype(result, wanted)
    write(target, result)


def _transposed(self: Array) -> Array:
    """The transpose of a matrix, as a view."""
    if self.ndim != 2:  # noqa: PLR2004  a matrix has two axes
        raise ShapeError(f"cannot transpose shape {list(self.shape)} by .T: it takes two axes; use .mT or permute_dims")
    return view_of(self, F.permute_, (1, 0))


def _matrix_transposed(self: Array) -> Array:
    """The transpose of the last two axes, as a view."""
    if self.ndim < 2:  # noqa: PLR2004  a matrix has two axes
        raise ShapeError(f"cannot transpose shape {list(self.shape)} by .mT: it takes at least two axes")
    return view_of(self, F.swap_last)


def _set(self: Array, key: Any, value: Any) -> None:
    assign(self, key, value)
    bounded(self)  # when nothing refers to the old value any more


def _install() -> None:
    for name, member in {
        "T": property(_transposed), "mT": property(_matrix_transposed), "__getitem__": taken, "__setitem__": _set,
    }.items():  # fmt: skip
        setattr(Array, name, member)


_install()
