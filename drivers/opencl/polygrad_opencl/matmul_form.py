"""Which program and how many parts a product on a GPU takes, from its sizes, strides and the device's size.

Here: decisions, pure and testable without a device. Not here: text (`matmul_tiles.py`), launching (`matmul.py`).
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from polygrad_opencl.matmul_tiles import ITEMS, WIDE, Form, Reading, local_bytes, vector_width

LARGE = (128, 128, 16)  # rows, columns, step along the inner axis
LEAN = (128, 128, 8)  # where local memory is small, or elements are read one by one
SMALL = (64, 64, 16)
FLAT, TALL = (16, 128, 16), (128, 16, 16)
WIDE_LARGE, WIDE_SMALL = (128, 64, 8), (64, 64, 8)  # of elements of eight bytes
TINY = (16, 16, 16)
SHORTEST = 256  # terms of a part, if the inner axis is split
FILLING = 2  # groups a compute unit that are worth splitting for


class Layout(NamedTuple):
    """A product as loops: batch axes as (extent, stride in out, in a, in b), then sizes and strides of matrices."""

    batch: tuple[tuple[int, int, int, int], ...]
    m: int
    n: int
    k: int
    a: tuple[int, int]
    b: tuple[int, int]


class Split(NamedTuple):
    """How many groups share the inner axis of a tile, and how many terms each takes."""

    parts: int
    span: int


class Size(NamedTuple):
    """What a choice depends on of a device; a *tiny* one interprets kernels."""

    units: int
    local_bytes: int
    tiny: bool = False


def form_of(dtype: str, layout: Layout, offsets: Sequence[int], size: Size) -> tuple[Form, Split]:
    """Return the program for a product whose out, a and b start at *offsets*.

    >>> square = Layout((), 4096, 4096, 4096, (4096, 1), (4096, 1))
    >>> form, split = form_of("float32", square, (0, 0, 0), Size(132, 48 * 1024))
    >>> form.rows, form.a, form.b, split.parts
    (128, Reading(inner=True, vector=True), Reading(inner=False, vector=True), 1)
    """
    count = math.prod(extent for extent, *_ in layout.batch)
    rows, columns, deep = tile_of(dtype, layout, count, size)
    groups = tiles(layout, rows, columns) * count
    split = split_of(layout.k, deep, FILLING * size.units // max(1, groups))
    out, a, b = offsets
    steps_a, steps_b = ([entry[which] for entry in layout.batch] for which in (2, 3))
    left = reading(dtype, (layout.m, layout.k), layout.a, [a, *steps_a], rows * deep)
    right = reading(dtype, (layout.n, layout.k), (layout.b[1], layout.b[0]), [b, *steps_b], columns * deep)
    if (rows, columns, deep) == LARGE and not (left.vector or right.vector):
        deep = LEAN[2]
    whole = layout.n % 4 == 0 and (out % 4 == 0 or split.parts > 1) and columns >= SMALL[1]
    return Form(dtype, rows, columns, deep, left, right, whole, split.parts > 1), split


def tiles(layout: Layout, rows: int, columns: int) -> int:
    """Return how many tiles cover one matrix of the result."""
    return -(-layout.m // rows) * -(-layout.n // columns)


def tile_of(dtype: str, layout: Layout, count: int, size: Size) -> tuple[int, int, int]:
    """Return rows, columns and step: the large tile if enough of them, or of their parts, fill the device."""
    if size.tiny:
        return TINY
    wide = dtype in WIDE
    if min(layout.m, layout.n) <= FLAT[0] and not wide:
        return FLAT if layout.m <= layout.n else TALL
    large, small = (WIDE_LARGE, WIDE_SMALL) if wide else (LARGE, SMALL)
    most = tiles(layout, *large[:2]) * count * max(1, layout.k // SHORTEST)
    if min(layout.m, layout.n) <= SMALL[0] or most < size.units:
        return small
    return large if wide or local_bytes(dtype, *large) <= size.local_bytes else LEAN


def split_of(k: int, deep: int, wanted: int) -> Split:
    """Return the parts of an inner axis: about as many as wanted, none short, each a multiple of a step.

    >>> split_of(4096, 8, 3), split_of(300, 8, 9)
    (Split(parts=3, span=1368), Split(parts=1, span=300))
    """
    parts = max(1, min(wanted, k // SHORTEST))
    if parts == 1:
        return Split(1, k)
    span = -(-k // parts // deep) * deep
    return Split(-(-k // span), span)


def reading(
    dtype: str, extents: tuple[int, int], strides: tuple[int, int], aligned: Sequence[int], elements: int
) -> Reading:
    """Return how to read an operand of *extents* and *strides*, the inner axis last, in slices of so many elements.

    *aligned* are its offset and its strides along the batch: vectors need all of them to be multiples of their width.
    """
    inner = abs(strides[1]) <= abs(strides[0])
    fast, slow, length = strides[inner], strides[not inner], extents[inner]
    width = vector_width(dtype)
    vector = fast == 1 and elements >= ITEMS * width and all(n % width == 0 for n in (slow, length, *aligned))
    return Reading(inner, vector)
