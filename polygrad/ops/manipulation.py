"""Functions that show the same elements under another shape or order.

Here: reshape, the transposes, broadcasting, flip, split, unstack, triangles; each is a few movement ops and so a view.
Not here: joining and repeating (`joining.py`), reading at positions (`indexing.py`).
"""

import itertools
import operator
from typing import Any

from polygrad import shapes
from polygrad.errors import ShapeError
from polygrad.ops.internal import places
from polygrad.ops.layout import check_permutation
from polygrad.ops.table import composite

ALL = "bool int float complex"


def with_calls(*calls: Any) -> Any:
    """Return samples: an array of a shape, and the arguments after it; a dict at the end is keywords."""

    def samples(draw: Any) -> Any:
        out = []
        for shape, *rest in calls:
            keywords = rest.pop() if rest and isinstance(rest[-1], dict) else {}
            out.append(((draw.array(shape, -2, 2), *rest), keywords))
        return out

    return samples


@composite(
    reference=lambda np, x, shape, copy=None: np.reshape(x, shape),
    samples=with_calls(
        ((2, 6), (3, 4)), ((2, 6), (-1,)), ((2, 6), (4, -1)), ((), (1, 1)), ((2, 0), (0, 5)), ((6,), -1)
    ),
    dtypes=ALL,
)
def reshape(xp: Any, x: Any, /, shape: Any, *, copy: Any = None) -> Any:
    """The same elements in C order under another shape; one size may be -1.

    *copy* asks for memory of its own (True) or refuses it (False).
    """
    new = shapes.reshape("reshape", x.shape, shape)
    return x if new == x.shape and not copy else xp.reshape_(x, new)


@composite(reference=lambda np, x: np.reshape(x, -1), samples=with_calls(((2, 3),), ((),), ((0, 2),)), dtypes=ALL)
def flatten(xp: Any, x: Any, /) -> Any:
    """All elements in C order along one axis."""
    return xp.reshape(x, (shapes.size(x.shape),))


@composite(
    reference=lambda np, x, axes: np.transpose(x, axes),
    samples=with_calls(((2, 3, 4), (2, 0, 1)), ((2, 3), (-1, 0)), ((), ()), ((2, 0), (1, 0))),
    dtypes=ALL,
)
def permute_dims(xp: Any, x: Any, /, axes: Any) -> Any:
    """The axes in another order."""
    order = check_permutation("permute", tuple(axes), x.ndim)
    return x if order == tuple(range(x.ndim)) else xp.permute_(x, order)


@composite(
    reference=lambda np, x: np.swapaxes(x, -1, -2),
    samples=with_calls(((2, 3),), ((2, 3, 4),), ((0, 2),)),
    dtypes=ALL,
    where="main linalg",
)
def matrix_transpose(xp: Any, x: Any, /) -> Any:
    """The last two axes exchanged."""
    if x.ndim < 2:
        raise ShapeError(f"cannot transpose matrices in shape {list(x.shape)}: at least two axes are needed")
    return xp.swap_last(x)


@composite(
    reference=lambda np, x, a, b: np.swapaxes(x, a, b),
    samples=with_calls(((2, 3, 4), 0, 2), ((2, 3, 4), -2, 1), ((2, 3), 0, 1)),
    dtypes=ALL,
)
def swapaxes(xp: Any, x: Any, axis1: Any, axis2: Any, /) -> Any:
    """Two axes exchanged."""
    a, b = shapes.axis("swap", axis1, x.ndim), shapes.axis("swap", axis2, x.ndim)
    order = list(range(x.ndim))
    order[a], order[b] = b, a
    return xp.permute_dims(x, order)


def _same_axis(rank: int, a: int, b: int) -> bool:
    return shapes.axis("move", a, rank) == shapes.axis("move", b, rank)


@composite(
    reference=lambda np, x, source, destination: np.moveaxis(x, source, destination),
    samples=with_calls(((2, 3, 4), 0, -1), ((2, 3, 4), (0, 1), (-1, 0)), ((2, 3, 4), 2, 0)),
    dtypes=ALL,
)
def moveaxis(xp: Any, x: Any, source: Any, destination: Any, /) -> Any:
    """Axes moved to other places; the others keep their order."""
    if type(source) is int and type(destination) is int and _same_axis(x.ndim, source, destination):
        return x
    ends = [given if isinstance(given, (tuple, list)) else (given,) for given in (source, destination)]
    start, goal = ([shapes.axis("move", k, x.ndim) for k in end] for end in ends)
    if len(start) != len(goal) or len(set(start)) != len(start) or len(set(goal)) != len(goal):
        raise ShapeError(
            f"cannot move axes {source!r} to {destination!r}: both sides need as many axes, each named once"
        )
    order = [k for k in range(x.ndim) if k not in start]
    for to, origin in sorted(zip(goal, start, strict=True)):
        order.insert(to, origin)
    return xp.permute_dims(x, order)


@composite(
    reference=lambda np, x, axis=0: np.expand_dims(x, axis),
    samples=with_calls(
        ((2, 3), 0), ((2, 3), {"axis": -1}), ((2, 3), {"axis": (0, -1)}), ((), {"axis": (0, 1)}), ((2, 0), 1)
    ),
    dtypes=ALL,
)
def expand_dims(xp: Any, x: Any, /, axis: Any = 0) -> Any:
    """New axes of size 1 at *axis*, an int or several, counted in the result."""
    given = axis if isinstance(axis, (tuple, list)) else (axis,)
    rank = x.ndim + len(given)
    new = shapes.axes("expand", tuple(given), rank, of="the result")
    old = iter(x.shape)
    return xp.reshape(x, tuple(1 if k in new else next(old) for k in range(rank)))


@composite(
    reference=lambda np, x, axis=None: np.squeeze(x, axis),
    samples=with_calls(((2, 1, 3), 1), ((1, 2, 1), {"axis": (0, -1)}), ((1, 2, 1),), ((1, 0), 0)),
    dtypes=ALL,
)
def squeeze(xp: Any, x: Any, /, axis: Any = None) -> Any:
    """The axes of size 1 that *axis* names removed; all of them if it is None."""
    gone = tuple(k for k, n in enumerate(x.shape) if n == 1) if axis is None else shapes.axes("squeeze", axis, x.ndim)
    for k in gone:
        if x.shape[k] != 1:
            raise ShapeError(f"cannot squeeze axis {k} of shape {list(x.shape)}: its size is {x.shape[k]}, not 1")
    return xp.reshape(x, tuple(n for k, n in enumerate(x.shape) if k not in gone))


@composite(
    reference=lambda np, x, shape: np.broadcast_to(x, shape),
    samples=with_calls(((3, 1), (2, 3, 4)), ((), (2,)), ((3,), (3,)), ((1,), (0,)), ((1, 3), (0, 3))),
    dtypes=ALL,
)
def broadcast_to(xp: Any, x: Any, /, shape: Any) -> Any:
    """x repeated along axes of size 1 and new leading ones, without copying."""
    new = shapes.as_shape("broadcast", shape)
    if new == x.shape:
        return x
    fits = len(new) >= x.ndim and not [
        n for n, m in zip(reversed(x.shape), reversed(new), strict=False) if n not in (1, m)
    ]
    if not fits:
        raise ShapeError(
            f"cannot broadcast shape {list(x.shape)} to {list(new)}: from the last axis on, sizes must be equal or 1"
        )
    return xp.expand_(x, new)


@composite(
    reference=lambda np, *xs: np.broadcast_arrays(*xs),
    samples=lambda draw: [((draw.array((3, 1), -2, 2), draw.array((4,), -2, 2), draw.array((), -2, 2)), {})],
    dtypes=ALL,
)
def broadcast_arrays(xp: Any, *arrays: Any) -> Any:
    """Arrays broadcast to their common shape, as a tuple."""
    if not arrays:
        return ()
    shape = shapes.broadcast("broadcast", *[x.shape for x in arrays])
    return tuple([xp.broadcast_to(x, shape) for x in arrays])


@composite(
    reference=lambda np, x, axis=None: np.flip(x, axis),
    samples=with_calls(((3, 4), {"axis": 0}), ((3, 4),), ((2, 3, 4), {"axis": (0, -1)}), ((),), ((2, 0),)),
    dtypes=ALL,
)
def flip(xp: Any, x: Any, /, axis: Any = None) -> Any:
    """The order of elements reversed along axes; along all of them if *axis* is None."""
    turned = [k for k in shapes.axes("flip", axis, x.ndim) if x.shape[k] > 1]
    if not turned:
        return x
    starts = tuple(n - 1 if k in turned else 0 for k, n in enumerate(x.shape))
    return xp.slice_(x, starts, tuple(-1 if k in turned else 1 for k in range(x.ndim)), x.shape)


def part(xp: Any, x: Any, axis: int, start: int, size: int, step: int = 1) -> Any:
    """Return *size* elements from *start* along one axis."""
    if start == 0 and size == x.shape[axis] and step == 1:
        return x
    at = tuple(start if k == axis else 0 for k in range(x.ndim))
    steps = tuple(step if k == axis else 1 for k in range(x.ndim))
    return xp.slice_(x, at, steps, tuple(size if k == axis else n for k, n in enumerate(x.shape)))


@composite(
    reference=lambda np, x, axis=0: tuple(np.moveaxis(x, axis, 0)),
    samples=with_calls(((3, 2),), ((3, 2), {"axis": 1}), ((2, 0),)),
    dtypes=ALL,
)
def unstack(xp: Any, x: Any, /, *, axis: Any = 0) -> Any:
    """The slices along an axis, without it, as a tuple."""
    k = shapes.axis("unstack", axis, x.ndim)
    shape = x.shape[:k] + x.shape[k + 1 :]
    return tuple([xp.reshape_(part(xp, x, k, i, 1), shape) for i in range(x.shape[k])])


@composite(
    reference=lambda np, x, sections, axis=0: np.split(x, sections, axis),
    samples=with_calls(((6, 2), 3), ((6, 2), (1, 4)), ((2, 6), 2, {"axis": 1}), ((6,), (2, 2))),
    dtypes=ALL,
)
def split(xp: Any, x: Any, /, indices_or_sections: Any, *, axis: Any = 0) -> Any:
    """Parts along an axis, as a tuple: that many equal ones, or cut before the given positions."""
    k = shapes.axis("split", axis, x.ndim)
    n = x.shape[k]
    if isinstance(indices_or_sections, (tuple, list)):
        edges = [0, *[min(max(operator.index(i) + (n if i < 0 else 0), 0), n) for i in indices_or_sections], n]
    else:
        count = operator.index(indices_or_sections)
        if count < 1 or n % count:
            raise ShapeError(
                f"cannot split axis {k} of size {n} into {count} equal parts: give positions, or a count that "
                "divides it"
            )
        edges = [i * (n // count) for i in range(count + 1)]
    return tuple([part(xp, x, k, a, max(b - a, 0)) for a, b in itertools.pairwise(edges)])


def _triangle(xp: Any, name: str, x: Any, k: Any) -> tuple[Any, Any]:
    """Return row numbers moved by k, and column numbers, of the matrices in x."""
    if x.ndim < 2:
        raise ShapeError(f"cannot take {name} of shape {list(x.shape)}: at least two axes are needed")
    rows, columns = places(xp, x.shape[-2], 0, 2), places(xp, x.shape[-1], 1, 2)
    by = operator.index(k)
    return (rows + by if by else rows), columns


@composite(
    reference=lambda np, x, k=0: np.tril(x, k),
    samples=with_calls(((3, 4),), ((2, 3, 3), {"k": 1}), ((4, 3), {"k": -1}), ((0, 3),)),
    dtypes=ALL,
)
def tril(xp: Any, x: Any, /, *, k: Any = 0) -> Any:
    """The elements on and below the k-th diagonal of each matrix, zeros above."""
    rows, columns = _triangle(xp, "tril", x, k)
    return xp.where(xp.less_equal(columns, rows), x, xp.zeros_like(x))


@composite(
    reference=lambda np, x, k=0: np.triu(x, k),
    samples=with_calls(((3, 4),), ((2, 3, 3), {"k": 1}), ((4, 3), {"k": -1}), ((0, 3),)),
    dtypes=ALL,
)
def triu(xp: Any, x: Any, /, *, k: Any = 0) -> Any:
    """The elements on and above the k-th diagonal of each matrix, zeros below."""
    rows, columns = _triangle(xp, "triu", x, k)
    return xp.where(xp.greater_equal(columns, rows), x, xp.zeros_like(x))
