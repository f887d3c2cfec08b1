"""Index arithmetic of fusion: how the indices of a kernel's axes address the elements of a node.

Here: kernel axes that can be split, affine expressions over them, and the way of a reshape through them.
Not here: nodes, kernels.

Every node inside a kernel is read at a *map*: for each of its axes one affine expression over the kernel's axes.
Movement ops rewrite maps, so they cost nothing. A reshape is followed by splitting kernel axes; where that fails, the
operand is materialised.
"""

import functools
import itertools
import math
from typing import NamedTuple

from polygrad import shapes

_serial = itertools.count().__next__
_splits = itertools.count(1).__next__
_latest = [0]


def splits() -> int:
    """Return a number that changes with every split of an axis: as long as it stays, what was settled still is."""
    return _latest[0]


class Axis:
    """One axis of a kernel's iteration space; `parts` is (outer, inner) once it was split."""

    __slots__ = ("extent", "parts", "pinned", "serial")

    def __init__(self, extent: int) -> None:
        self.extent = extent
        self.parts: tuple[Axis, Axis] | None = None
        self.pinned = False  # a window names this axis: it must stay whole
        self.serial = _serial()

    def split(self, inner: int) -> bool:
        """Split into an outer and an inner axis of extent *inner*; return whether that is possible."""
        if self.pinned or self.extent % inner:
            return False
        self.parts = (Axis(self.extent // inner), Axis(inner))
        _latest[0] = _splits()
        return True

    def leaves(self) -> list["Axis"]:
        """Return the unsplit axes that this one consists of, outermost first."""
        return [self] if self.parts is None else [*self.parts[0].leaves(), *self.parts[1].leaves()]


class Expr(NamedTuple):
    """const + sum(coefficient * axis), the terms ordered by axis."""

    const: int
    terms: tuple[tuple[Axis, int], ...]


Map = tuple[Expr, ...]
ZERO = Expr(0, ())


def variable(axis: Axis) -> Expr:
    """Return the index along *axis* itself."""
    return Expr(0, ((axis, 1),)) if axis.extent != 1 else ZERO


def combine(const: int, parts: list[tuple[Expr, int]]) -> Expr:
    """Return const + sum(factor * expression)."""
    found: dict[Axis, int] = {}
    for expr, factor in parts:
        const += expr.const * factor
        for axis, coefficient in expr.terms:
            found[axis] = found.get(axis, 0) + coefficient * factor
    terms = [(a, c) for a, c in found.items() if c]
    if len(terms) > 1:
        terms.sort(key=_by_serial)
    return Expr(const, tuple(terms))


def _by_serial(term: tuple[Axis, int]) -> int:
    return term[0].serial


def settle(expr: Expr) -> Expr:
    """Return *expr* over unsplit axes."""
    for axis, _ in expr.terms:
        if axis.parts is not None:
            break
    else:
        return expr
    parts = []
    for axis, coefficient in expr.terms:
        for leaf in reversed(axis.leaves()):
            parts.append((variable(leaf), coefficient))
            coefficient *= leaf.extent
    return combine(expr.const, parts)


def settle_map(index: Map) -> Map:
    """Return *index* over unsplit axes; itself, if it is."""
    for expr in index:
        for axis, _ in expr.terms:
            if axis.parts is not None:
                return tuple([settle(e) if e.terms else e for e in index])
    return index


def address(index: Map, strides: tuple[int, ...], offset: int = 0) -> Expr:
    """Return the element that *index* addresses in memory of the given strides."""
    return settle(combine(offset, [(e, s) for e, s in zip(index, strides, strict=True) if s]))


def through_reshape(index: Map, shape: shapes.Shape, source: shapes.Shape) -> Map | None:
    """Return the map of the operand of a reshape to *shape* read at *index*; None if no splitting of axes gives one."""
    out: list[Expr] = []
    at = 0
    for inner, outer in _blocks(source, shape):
        if len(outer) == 1:
            linear = settle(index[at])
        else:
            linear = settle(combine(0, list(zip(index[at : at + len(outer)], shapes.strides(outer), strict=True))))
        at += len(outer)
        if len(inner) == 1:
            out.append(linear if inner[0] > 1 else ZERO)
            continue
        found = _digits(linear, inner)
        if found is None:
            return None
        out += found
    return tuple(out)


def nests(shape: shapes.Shape, source: shapes.Shape) -> bool:
    """Whether the axes of *shape*, split where need be, make up those of *source*.

    >>> nests((2, 15), (2, 3, 5)), nests((2, 15), (3, 10))
    (True, False)
    """
    return through_reshape(tuple([variable(Axis(n)) for n in shape]), shape, source) is not None


@functools.lru_cache(maxsize=4096)
def _blocks(a: shapes.Shape, b: shapes.Shape) -> list[tuple[shapes.Shape, shapes.Shape]]:
    """Cut two shapes of one size into the smallest pairs of pieces of equal size, in order."""
    out = []
    i = j = 0
    while i < len(a) or j < len(b):
        start = i, j
        left, right = 1, 1
        if i < len(a):
            left, i = a[i], i + 1
        if j < len(b):
            right, j = b[j], j + 1
        while left != right:
            if left < right and i < len(a):
                left, i = left * a[i], i + 1
            elif right < left and j < len(b):
                right, j = right * b[j], j + 1
            elif i < len(a):
                left, i = left * a[i], i + 1
            else:
                right, j = right * b[j], j + 1
        out.append((a[start[0] : i], b[start[1] : j]))
    return out


def _digits(linear: Expr, shape: shapes.Shape) -> list[Expr] | None:
    """Write a linear index as indices of *shape*, splitting axes where one straddles two of them."""
    wide = [k for k, n in enumerate(shape) if n > 1]
    if len(wide) <= 1:
        return [linear if k in wide else ZERO for k in range(len(shape))]
    if any(c < 0 for _, c in linear.terms) or linear.const < 0:
        return None
    strides = shapes.strides(shape)
    out: list[list[tuple[Expr, int]]] = [[] for _ in shape]
    consts, rest = [0] * len(shape), linear.const
    for k in wide:
        consts[k], rest = divmod(rest, strides[k])
    for axis, coefficient in linear.terms:
        pieces = _place(axis, coefficient, shape, strides, wide)
        if pieces is None:
            return None
        for k, leaf, c in pieces:
            out[k].append((variable(leaf), c))
    found = [combine(const, parts) for const, parts in zip(consts, out, strict=True)]
    for expr, n in zip(found, shape, strict=True):
        if expr.const + sum(c * (a.extent - 1) for a, c in expr.terms) >= n:
            return None  # digits would carry into the next axis
    return found


def _place(
    axis: Axis, coefficient: int, shape: shapes.Shape, strides: shapes.Shape, wide: list[int]
) -> list[tuple[int, Axis, int]] | None:
    """Return (axis of shape, kernel axis, coefficient) for the parts of one term of a linear index."""
    home = next((k for k in wide if strides[k] <= coefficient), None)
    if home is None or coefficient % strides[home]:
        return None
    step = coefficient // strides[home]
    if step * (axis.extent - 1) < shape[home]:
        return [(home, axis, step)]
    room = shape[home] // step
    if shape[home] % step or not axis.split(room):
        return None
    assert axis.parts is not None  # noqa: S101  split has just made them
    outer, inner = axis.parts
    rest = _place(outer, coefficient * room, shape, strides, wide)
    return None if rest is None else [*rest, (home, inner, step)]


def align(axes: list[Axis], extents: list[int]) -> list[list[Axis]] | None:
    """Group kernel axes into runs whose extents multiply to *extents*, splitting some; None if they do not fit."""
    if math.prod(a.extent for a in axes) != math.prod(extents):
        return None
    pending = list(reversed(axes))
    groups: list[list[Axis]] = []
    for extent in extents:
        group: list[Axis] = []
        need = extent
        while need > 1:
            if not pending:
                return None
            axis = pending.pop()
            if axis.extent > need:
                if axis.extent % need or not axis.split(axis.extent // need):
                    return None
                assert axis.parts is not None  # noqa: S101  split has just made them
                pending.append(axis.parts[1])
                axis = axis.parts[0]
            if need % axis.extent:
                return None
            group.append(axis)
            need //= axis.extent
        groups.append(group)
    return groups


def run(group: list[Axis]) -> Expr:
    """Return the index along an axis that consists of the axes of *group*."""
    extents = tuple(a.extent for a in group)
    return combine(0, [(variable(a), s) for a, s in zip(group, shapes.strides(extents), strict=True)])


def is_bijection(expr: Expr, axes: list[Axis], size: int) -> bool:
    """Whether *expr* runs over 0 .. size - 1, each once, as *axes* run over their extents."""
    terms = sorted(expr.terms, key=lambda t: t[1])
    if expr.const or {a for a, _ in terms} != {a for a in axes if a.extent > 1}:
        return False
    reach = 1
    for axis, coefficient in terms:
        if coefficient != reach:
            return False
        reach *= axis.extent
    return reach == size
