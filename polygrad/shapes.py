"""Arithmetic on shapes and axes: plain tuples of ints in, plain tuples out.

Here: broadcasting, axis normalisation, sizes and strides.
Not here: nodes, dtypes, views.
"""

import functools
import math
import operator
from collections.abc import Sequence
from typing import Any

from polygrad.errors import AxisError, ShapeError

Shape = tuple[int, ...]


def size(shape: Shape) -> int:
    """Return the number of elements.

    >>> size(()), size((2, 3)), size((2, 0))
    (1, 6, 0)
    """
    return math.prod(shape)


@functools.lru_cache(maxsize=8192)
def strides(shape: Shape) -> Shape:
    """Return the strides, in elements, of a C-contiguous array.

    >>> strides((2, 3, 4))
    (12, 4, 1)
    """
    out = [1] * len(shape)
    for k in range(len(shape) - 2, -1, -1):
        out[k] = out[k + 1] * int(shape[k + 1])
    return tuple(out)


def broadcast(op: str, *shapes: Shape) -> Shape:
    """Return the shape that *shapes* broadcast to; *op* is the verb of the error.

    >>> broadcast("add", (3, 1), (4,))
    (3, 4)
    """
    first = shapes[0]
    if all(s == first for s in shapes):
        return first
    rank = max(map(len, shapes))
    out = []
    for axis in range(-rank, 0):
        sizes = [s[axis] for s in shapes if len(s) >= -axis]
        wide = [n for n in sizes if n != 1]
        if any(n != wide[0] for n in wide):
            bad = next(n for n in wide if n != wide[0])
            listed = " and ".join(str(list(s)) for s in shapes)
            raise ShapeError(
                f"cannot {op} shapes {listed}: axis {axis} has sizes {wide[0]} and {bad}; they must be equal or 1"
            )
        out.append(wide[0] if wide else 1)
    return tuple(out)


def axis(op: str, value: Any, rank: int, of: str = "the array") -> int:
    """Return one axis of an array, or of what *of* says, as a non-negative int."""
    try:
        k = operator.index(value)
    except TypeError:
        raise ShapeError(f"cannot {op}: an axis is an int, got {value!r}") from None
    if not -rank <= k < rank:
        if rank == 0:
            raise AxisError(f"cannot {op} along axis {k}: {of} has no axes")
        raise AxisError(f"cannot {op} along axis {k}: {of} has {rank} axes, so it must be in [{-rank}, {rank})")
    return k % rank


def axes(op: str, value: Any, rank: int, of: str = "the array") -> Shape:
    """Return axes, given as None (all), an int or a tuple, as sorted distinct non-negative ints."""
    if value is None:
        return tuple(range(rank))
    given = value if isinstance(value, (tuple, list)) else (value,)
    found = [axis(op, v, rank, of) for v in given]
    if len(set(found)) != len(found):
        raise ShapeError(f"cannot {op} over axes {tuple(given)}: an axis is named twice")
    return tuple(sorted(found))


def as_shape(op: str, value: Any) -> Shape:
    """Return a shape given as an int or a sequence of ints, all of them non-negative."""
    given: Sequence[Any] = value if isinstance(value, (tuple, list)) else (value,)
    try:
        out = tuple(operator.index(v) for v in given)
    except TypeError:
        raise ShapeError(f"cannot {op}: a shape is made of ints, got {value!r}") from None
    if any(n < 0 for n in out):
        raise ShapeError(f"cannot {op} to shape {list(out)}: sizes must not be negative")
    return out


def reshape(op: str, old: Shape, new: Any) -> Shape:
    """Return the shape that *new* means for an array of shape *old*; one size may be -1."""
    given: Sequence[Any] = new if isinstance(new, (tuple, list)) else (new,)
    try:
        out = [operator.index(v) for v in given]
    except TypeError:
        raise ShapeError(f"cannot {op}: a shape is made of ints, got {new!r}") from None
    unknown = [k for k, n in enumerate(out) if n == -1]
    if any(n < -1 for n in out) or len(unknown) > 1:
        raise ShapeError(f"cannot {op} to {out}: sizes must not be negative, and one of them may be -1")
    known = math.prod(n for n in out if n != -1)
    total = size(old)
    if unknown:
        if known == 0 or total % known:
            raise ShapeError(f"cannot {op} shape {list(old)} to {out}: {total} elements do not divide by {known}")
        out[unknown[0]] = total // known
    elif known != total:
        raise ShapeError(f"cannot {op} shape {list(old)} to {out}: {total} elements are not {known}")
    return tuple(out)
