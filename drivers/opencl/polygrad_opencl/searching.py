"""Finding extremes, and places in what is sorted: how much is launched, in which order.

Here: the ops arg_extreme and searchsorted, on top of the launching of `ordering.py`. Not here: kernel text
(`searching_source.py`).
"""

import math

from polygrad.driver import Ref
from polygrad_opencl import searching_source as source
from polygrad_opencl.ordering import Ordering


def arg_extreme(ordering: Ordering, out: Ref, x: Ref, kind: str) -> None:
    """Write the positions of the first greatest or least elements along the last axis."""
    rows, n = math.prod(x.shape[:-1]), x.shape[-1]
    pieces, size = ordering.pieces(rows, n)
    text, count = source.extreme(x.dtype, kind, chunked=ordering.chunked), rows * pieces
    together = not ordering.chunked
    with ordering.session.lock:
        room = ordering.session.scratch(16 * count)  # ranks, of at most 8 bytes each, then places
        found = (room, 0, room, count)
        ordering.run(
            text, "extreme_pieces", count, x.handle, x.offset, *found, rows, n, pieces, size, together=together
        )
        ordering.run(text, "extreme_rows", rows, *found, out.handle, out.offset, rows, pieces, together=together)


def searchsorted(ordering: Ordering, out: Ref, x: Ref, wanted: Ref, *, right: bool) -> None:
    """Write how many elements of a sorted row come before each wanted value."""
    text = source.search(x.dtype, right=right, chunked=ordering.chunked)
    count = math.prod(wanted.shape)
    ends = (x.handle, x.offset, wanted.handle, wanted.offset, out.handle, out.offset)
    ordering.run(text, "search", count, *ends, count, x.shape[-1], wanted.shape[-1])
