"""Running reductions, sorting, and finding what is true: how much is launched, in which order.

Here: `Ordering`, called by the driver's `op_scan`, `op_sort` and `op_nonzero`. Not here: kernel text
(`ordering_source.py`), searching (`searching.py`).
"""

import math
from typing import Any

import numpy as np

from polygrad.driver import Ref, UnsupportedOp
from polygrad_opencl import ordering_source as source
from polygrad_opencl.session import Session

LONG, INT = np.dtype(np.int64), np.dtype(np.int32)
SHORT = 64  # elements of a row that are sorted by comparing each with each
WIDE = 4096  # elements of a row from which a CPU device takes digits of 8 bits
PIECE = 4096  # elements of a piece of a running reduction, at least
ENDS = 1024  # pieces of a row of which one work-item adds up the ends


def _rows(ref: Ref) -> tuple[int, int]:
    return math.prod(ref.shape[:-1]), ref.shape[-1]


class Ordering:
    """The ops of one device."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.chunked = session.kind == "cpu"  # a work-item goes through a piece alone

    def _geometry(self, work: int) -> tuple[tuple[int], tuple[int]]:
        """Return grid and group for *work* pieces or elements that work-items take alone."""
        session = self.session
        if self.chunked:
            return (max(1, min(work, 8 * session.compute_units)),), (1,)
        group = min(64, session.device.max_work_group_size)
        return (group * max(1, min(-(-work // group), 64 * session.compute_units)),), (group,)

    def run(self, text: str, name: str, work: int, *arguments: Any, together: bool = False) -> None:
        """Launch a kernel; ints are 64 bits wide, buffers and (dtype, value) pairs are passed as they are."""
        given = [(LONG, a) if isinstance(a, int) else a if isinstance(a, tuple) else (None, a) for a in arguments]
        if together:
            groups = max(1, min(work, 64 * self.session.compute_units))
            size, group = (groups * source.GROUP,), (source.GROUP,)
        else:
            size, group = self._geometry(work)
        self.session.run(text, name, size, group, given)

    # ---- running reductions ---------------------------------------------------------------------------

    def scan(self, out: Ref, x: Ref, kind: str) -> None:
        """Reduce each element with all before it along the last axis."""
        rows, n = _rows(x)
        with self.session.lock:
            room = self.session.scratch(8 * rows * self.pieces(rows, n)[0])
            self._scan(out.dtype, kind, (x.handle, x.offset), (out.handle, out.offset), rows, n, room, 0)

    def pieces(self, rows: int, n: int) -> tuple[int, int]:
        """Return how many pieces a row is cut into, and how many elements a piece has."""
        wanted = 4 * source.TOGETHER * self.session.compute_units if self.chunked else 16 * self.session.compute_units
        least = PIECE if self.chunked else 8 * source.GROUP
        pieces = max(1, min(-(-wanted // rows), n // least, ENDS))
        size = -(-n // pieces)
        return -(-n // size), size

    def _scan(self, dtype: str, kind: str, x: Any, out: Any, rows: int, n: int, room: Any, at: int) -> None:
        """Scan; the ends of pieces go to *room* from element *at* of their own type, at most 8 bytes each."""
        text = source.scan(dtype, kind, chunked=self.chunked, wide=self.session.float64)
        pieces, size = self.pieces(rows, n)
        work, together = rows * pieces, not self.chunked
        if pieces > 1:
            self.run(text, "scan_pieces", work, *x, room, at, rows, n, pieces, size, together=together)
            self.run(text, "scan_ends", rows, room, at, rows, pieces)
        self.run(text, "scan_write", work, *x, room, at, *out, rows, n, pieces, size, together=together)

    # ---- what is true ---------------------------------------------------------------------------------

    def nonzero(self, out: Ref, mask: Ref) -> None:
        """Write the positions at which a 1-D mask is true."""
        n = mask.shape[0]
        wanted = 4 * self.session.compute_units if self.chunked else 64 * 64
        pieces = max(1, min(wanted, n // 64))
        size = -(-n // pieces)
        pieces = -(-n // size)
        text = source.nonzero(chunked=self.chunked)
        with self.session.lock:
            ends = self.session.scratch(8 * (pieces + self.pieces(1, pieces)[0]))
            self.run(text, "true_count", pieces, mask.handle, mask.offset, ends, n, pieces, size)
            self._scan("uint64", "sum", (ends, 0), (ends, 0), 1, pieces, ends, pieces)
            self.run(
                text, "true_write", pieces, mask.handle, mask.offset, ends, out.handle, out.offset, n, pieces, size
            )

    # ---- sorting --------------------------------------------------------------------------------------

    def sort(self, values: Ref, places: Ref, x: Ref) -> None:
        """Sort rows stably, and tell where each element came from."""
        rows, n = _rows(x)
        if n >= 1 << 32:
            raise UnsupportedOp(f"{self.session.label} sorts rows of fewer than 2**32 elements, not of {n}")
        here, ends = (x.handle, x.offset), (values.handle, values.offset, places.handle, places.offset)
        bits = 8 if self.chunked and n >= WIDE else 4
        text = source.sort(x.dtype, 1 << bits, chunked=self.chunked)
        if n <= SHORT:
            self.run(text, "sort_short", rows * n, *here, *ends, rows, n)
            return
        with self.session.lock:
            self._sort(text, x.dtype, bits, here, ends, rows, n)

    def _sort(self, text: str, dtype: str, bits: int, here: Any, ends: Any, rows: int, n: int) -> None:
        _, width = source.word_of(dtype)
        pieces, size = self._sort_pieces(rows, n)
        count, table = rows * n, (1 << bits) * pieces
        # One block holds, in this order and each from a multiple of 8 bytes: keys twice, places twice, counts, ends.
        keys = [0, -(-count * width // 8) * 8]
        places = [2 * keys[1], 2 * keys[1] + -(-count * 4 // 8) * 8]
        counts = 2 * places[1] - places[0]
        sums = counts + -(-rows * table * 4 // 8) * 8
        room = self.session.scratch(sums + 8 * rows * self.pieces(rows, table)[0])
        k, f, c = [start // width for start in keys], [start // 4 for start in places], counts // 4
        self.run(text, "sort_keys", count, *here, room, k[0], room, f[0], rows, n)
        a, b = 0, 1
        for shift in range(0, 8 * width, bits):
            by = (INT, shift)
            self.run(text, "sort_count", rows * pieces, room, k[a], room, c, rows, n, pieces, size, by)
            self._scan("uint32", "sum", (room, c), (room, c), rows, table, room, sums // 4)
            moved = (room, k[a], room, f[a], room, c, room, k[b], room, f[b], rows, n, pieces, size, by)
            self.run(text, "sort_move", rows * pieces, *moved)
            a, b = b, a
        self.run(text, "sort_finish", count, *here, room, f[a], *ends, rows, n)

    def _sort_pieces(self, rows: int, n: int) -> tuple[int, int]:
        wanted = 4 * self.session.compute_units if self.chunked else 64 * self.session.compute_units
        pieces = max(1, min(-(-wanted // rows), n // (1024 if self.chunked else 256)))
        size = -(-n // pieces)
        return -(-n // size), size
