"""Loads through indices: checked, wrapped, clamped, reported, then taken.

Here: a gathering view over one block. Not here: views without indices.
"""

import os
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

_report_lock = threading.Lock()


def _after_fork() -> None:
    """Make a new lock: a thread that does not exist in the child may have held the old one."""
    global _report_lock  # noqa: PLW0603  the child's lock
    _report_lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class Gather:
    """Elements of a view through indices, over one block.

    Called by generated code with (out, *indices), or (out, *indices, guard).

    Parameters
    ----------
    flat : 1-D ndarray
        The memory from the least address that the view can reach to the greatest.
    first : int
        Where in `flat` the element is whose indices are all zero.
    strides, box : tuple
        In elements, and the block's range, for each axis.
    gathers : tuple of (int, int)
        Stride and size for each index.
    window : dict of axis to (lo, hi)
    fill : scalar
        What lies outside the window.
    status : ndarray or None
        The status word.
    report : (int, int)
        The launch's tag, the position of the load.
    """

    __slots__ = ("box", "fill", "first", "flat", "gathers", "report", "status", "strides", "window")

    def __init__(
        self,
        flat: Array,
        first: int,
        strides: tuple[int, ...],
        box: tuple[tuple[int, int], ...],
        gathers: tuple[tuple[int, int], ...],
        window: dict[int, tuple[int, int]],
        fill: Any,
        status: Array,
        report: tuple[int, int],
    ) -> None:
        self.flat, self.first, self.strides, self.box = flat, first, strides, box
        self.gathers, self.window, self.fill = gathers, window, fill
        self.status, self.report = status, report

    def __call__(self, out: Array, *indices: Array) -> None:
        """Fill *out*, a register of the block's shape where the load varies and 1 where it does not."""
        if not self.window:
            self.take(out, indices, self.box)
            return
        out[...] = self.fill
        inside = list(self.box)
        place = [slice(None)] * len(inside)
        for k, (lo, hi) in self.window.items():
            start, stop = self.box[k]
            inside[k] = (max(lo, start), min(hi, stop))
            if inside[k][0] >= inside[k][1]:
                return
            place[k] = slice(inside[k][0] - start, inside[k][1] - start)
        part = out[tuple(place)]
        cut = [i if i.ndim == 0 else i[_where_wide(i, place)] for i in indices]
        found = np.empty(part.shape, out.dtype)
        self.take(found, cut, tuple(inside))
        part[...] = found

    def take(self, out: Array, indices: Sequence[Array], box: tuple[tuple[int, int], ...]) -> None:
        """Fill *out* with the elements of *box*."""
        if len(indices) > len(self.gathers):  # where the guard, behind them, is false they are 0, which is good
            *indices, guard = indices
            indices = [np.where(guard, i, i.dtype.type(0)) for i in indices]
        checked = [self.check(i, size) for i, (_, size) in zip(indices, self.gathers, strict=True)]
        if self._take_rows(out, checked, box):
            return
        address = np.full((1,) * len(box), self.first, np.int64)
        for k, ((start, stop), stride) in enumerate(zip(box, self.strides, strict=True)):
            if stride:
                shape = [1] * len(box)
                shape[k] = stop - start
                address = address + (np.arange(start, stop, dtype=np.int64) * stride).reshape(shape)
        for index, (stride, _) in zip(checked, self.gathers, strict=True):
            address = address + (index if stride == 1 else index * stride)
        # Every address is inside, so that "clip" changes none; it merely spares a second check and a copy of `out`.
        np.take(self.flat, np.broadcast_to(address, out.shape), out=out, mode="clip")

    def _take_rows(self, out: Array, indices: Sequence[Array], box: tuple[tuple[int, int], ...]) -> bool:
        """Copy whole runs of memory, if one index chooses among rows behind one another; say whether that was so."""
        if len(indices) != 1 or self.first or not out.flags.c_contiguous:
            return False
        (stride, size), index = self.gathers[0], indices[0]
        wide = [k for k, s in enumerate(self.strides) if s]
        chosen = [k for k in range(index.ndim) if index.shape[k] > 1]
        run = 1
        for k in reversed(wide):
            if box[k][0] or self.strides[k] != run:
                return False
            run *= box[k][1]
        if stride != run or (wide and chosen and wide[0] <= chosen[-1]) or index.size * run != out.size:
            return False
        if run == 1:
            np.take(self.flat, index.reshape(-1), out=out.reshape(-1), mode="clip")
        else:
            np.take(self.flat.reshape(size, run), index.reshape(-1), axis=0, out=out.reshape(-1, run), mode="clip")
        return True

    def check(self, index: Array, size: int) -> Array:
        """Return *index* as int64 in [0, size): negative ones wrapped, bad ones clamped and reported."""
        least, greatest = int(index.min()), int(index.max())
        if least >= 0 and greatest < size:
            return index.astype(np.int64, copy=False)
        if least < -size or greatest >= size:
            # Only uint64 holds numbers beyond int64, and those are as bad as the greatest int64.
            limit = np.iinfo(np.int64).max
            signed = (np.minimum(index, limit) if index.dtype == np.uint64 else index).astype(np.int64)
            bad = (signed < -size) | (signed >= size)
            self.tell(int(index[bad][0]))
            index = np.clip(signed, -size, size - 1)
        index = index.astype(np.int64, copy=False)
        return np.asarray(np.where(index < 0, index + size, index))

    def tell(self, index: int) -> None:
        """Write *index* to the status word, unless there is one already."""
        tell(self.status, *self.report, index)


def tell(status: Array, tag: int, position: int, index: int) -> None:
    """Report a bad *index* in *status*, int32[4], unless an earlier one is there."""
    with _report_lock:
        if status[0] == 0:
            status.view(np.uint32)[1:4] = position, index & 0xFFFFFFFF, index >> 32 & 0xFFFFFFFF
            status[0] = tag


def _where_wide(index: Array, place: Sequence[slice]) -> tuple[slice, ...]:
    return tuple(p if n > 1 else slice(None) for p, n in zip(place, index.shape, strict=True))
