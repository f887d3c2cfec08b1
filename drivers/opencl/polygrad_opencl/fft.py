"""Fourier transforms along the last axis: their launches.

Here: `Transforms`, which the driver's op methods call. Not here: kernel text (`fft_source.py`), and pocketfft, which
takes over on CPU devices with unified memory (`mapped.py`).
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from polygrad.driver import Ref
from polygrad_opencl.fft_source import copies, one_pass, radices
from polygrad_opencl.session import Argument, Session

LONG, INT = np.dtype(np.int64), np.dtype(np.int32)
COMPLEX, REAL, HALF = 0, 1, 2  # what `enter` and `leave` make of an operand
FORWARD, INVERSE = -1, 1  # the sign of the exponent


class Transforms:
    """The transforms of one device."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def fft(self, out: Ref, x: Ref, inverse: bool) -> None:
        """Transform complex numbers, without a factor."""
        n = x.shape[-2]
        self._transform(out, x, n, (COMPLEX, n), (COMPLEX, n), INVERSE if inverse else FORWARD)

    def rfft(self, out: Ref, x: Ref) -> None:
        """Transform real numbers into half a spectrum."""
        n = x.shape[-1]
        self._transform(out, x, n, (REAL, n), (COMPLEX, n // 2 + 1), FORWARD)

    def irfft(self, out: Ref, x: Ref, n: int) -> None:
        """Transform half a spectrum into n real numbers, without a factor."""
        self._transform(out, x, n, (HALF, n // 2 + 1), (REAL, n), INVERSE)

    # ---- launches -------------------------------------------------------------------------------------

    def _run(self, text: str, name: str, work: int, *arguments: Argument) -> None:
        session = self.session
        if session.kind == "cpu":
            size, group = 1 if work < 4096 else 8 * session.compute_units, 1  # noqa: PLR2004  not worth waking threads
        else:
            group = min(64, session.device.max_work_group_size)
            size = group * max(1, min(-(-work // group), 32 * session.compute_units))
        session.run(text, name, (size,), (group,), arguments)

    def _transform(self, out: Ref, x: Ref, n: int, taken: tuple[int, int], given: tuple[int, int], sign: int) -> None:
        """Transform rows of n: *taken* and *given* say what operand and result hold of a row, and how many."""
        session, dtype = self.session, x.dtype
        chunked = session.kind == "cpu"
        text = copies(dtype, chunked=chunked)
        rows = math.prod(out.shape[:-2] if given[0] == COMPLEX else out.shape[:-1])
        total, passes = rows * n, radices(n)
        wide = n if passes else 1 << (2 * n - 2).bit_length()
        room = 2 * rows * wide + (0 if passes else 2 * wide)
        with session.lock:
            w = session.scratch(room * 2 * np.dtype(dtype).itemsize)
            numbers = [(LONG, x.offset), (LONG, n), (LONG, taken[1]), (INT, taken[0]), (LONG, total)]
            self._run(text, "enter", total, (None, x.handle), (None, w), *numbers)
            if passes:
                at = self._passes(w, dtype, passes, 0, total, n, rows, sign)
            else:
                at = self._chirped(w, dtype, text, n, wide, rows, sign)
            count = rows * given[1]
            ends = [(LONG, v) for v in (at, out.offset, n, given[1])]
            buffers: list[Argument] = [(None, w), (None, out.handle)]
            self._run(text, "leave", count, *buffers, *ends, (INT, given[0]), (LONG, count))

    def _passes(
        self, w: Any, dtype: str, passes: Sequence[int], here: int, there: int, n: int, rows: int, sign: int
    ) -> int:
        """Transform rows of n numbers that stand at *here*; return where they stand then: there, or at *there*."""
        done, chunked = 1, self.session.kind == "cpu"
        for radix in passes:
            work = rows * n // radix
            numbers = [(LONG, v) for v in (here, there, n, done)]
            text = one_pass(dtype, radix, chunked=chunked)
            self._run(text, "pass", work, (None, w), *numbers, (INT, sign), (LONG, work))
            here, there, done = there, here, done * radix
        return here

    def _chirped(self, w: Any, dtype: str, text: str, n: int, wide: int, rows: int, sign: int) -> int:
        """Transform rows of n numbers at the start by a convolution of length *wide*; return where they are."""
        passes, total = radices(wide), rows * wide
        first, second = 2 * total, 2 * total + wide  # the chirp's own room
        self._run(text, "chirps", wide, (None, w), (LONG, first), (LONG, n), (LONG, wide), (INT, sign))
        filter_ = self._passes(w, dtype, passes, first, second, wide, 1, FORWARD)
        sizes = [(LONG, n), (LONG, wide), (INT, sign)]
        self._run(text, "spread", total, (None, w), (LONG, 0), (LONG, total), *sizes, (LONG, total))
        at = self._passes(w, dtype, passes, total, 0, wide, rows, FORWARD)
        self._run(text, "multiply", total, (None, w), (LONG, at), (LONG, filter_), (LONG, wide), (LONG, total))
        at = self._passes(w, dtype, passes, at, total - at, wide, rows, INVERSE)
        end = total - at
        self._run(text, "gather", rows * n, (None, w), (LONG, at), (LONG, end), *sizes, (LONG, rows * n))
        return end
