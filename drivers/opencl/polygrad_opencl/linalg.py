"""Linear algebra: which of two ways, and the launches of the second.

Here: `LinearAlgebra`, which the driver's op methods call. Not here: kernel text (`linalg_source.py`).

On a CPU device with unified memory NumPy's LAPACK works in the device's own memory: operands and results are mapped,
which waits for the queue, and unmapped afterwards (`mapped.py`). Every other device has kernels of ours for
elimination, Cholesky factors and triangular systems: a work-group takes a block of columns of a matrix, then all groups
bring the rest up to date. Eigenvalues, singular values and QR have no kernels of ours: a device that cannot be mapped
does not declare them, and the core borrows the host's. Fourier transforms (`fft.py`) go either way too. With
POLYGRAD_OPENCL_LINALG=own a CPU device does as these others do.
"""

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from polygrad.driver import Ref
from polygrad_opencl.fft import Transforms
from polygrad_opencl.linalg_source import BLOCK, TILE, program
from polygrad_opencl.mapped import HOST, by_host
from polygrad_opencl.session import Argument, Session

LONG, INT = np.dtype(np.int64), np.dtype(np.int32)
NEED_HOST = frozenset(("eigh", "eig", "svd", "qr"))
COLUMNS = 32  # of right sides that one group solves


def able(session: Session) -> bool:
    """Return whether the device's memory is mapped for LAPACK."""
    if os.environ.get("POLYGRAD_OPENCL_LINALG", "") == "own":
        return False
    return session.kind == "cpu" and session.unified and not session.simulated


class LinearAlgebra:
    """The linear algebra of one device."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.transforms = Transforms(session)

    def __call__(self, name: str, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        """Compute the op *name*."""
        if able(self.session):
            by_host(self.session, HOST[name], outs, ins, attrs)
        else:
            with self.session.lock:
                getattr(self, f"_{name}")(outs, ins, attrs)

    def _fft(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        self.transforms.fft(outs[0], ins[0], attrs["inverse"])

    def _rfft(self, outs: Sequence[Ref], ins: Sequence[Ref], _attrs: Mapping[str, Any]) -> None:
        self.transforms.rfft(outs[0], ins[0])

    def _irfft(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        self.transforms.irfft(outs[0], ins[0], attrs["n"])

    # ---- launches -------------------------------------------------------------------------------------

    def _run(self, ref: Ref, attrs: Mapping[str, Any], name: str, size: Any, group: Any, *arguments: Argument) -> None:
        self.session.run(program(ref.dtype, complex=attrs["complex"]), name, size, group, arguments)

    def _items(self) -> int:
        """Return the work-items of a group that has a matrix for itself."""
        return 8 if self.session.kind == "cpu" else min(256, self.session.device.max_work_group_size)

    def _over(self, work: int) -> tuple[tuple[int], tuple[int]]:
        """Return grid and group for *work* independent pieces."""
        if self.session.kind == "cpu":
            return (8 * self.session.compute_units,), (1,)
        group = min(64, self.session.device.max_work_group_size)
        return (group * max(1, min(-(-work // group), 32 * self.session.compute_units)),), (group,)

    def _scratch(self, ref: Ref, attrs: Mapping[str, Any], numbers: int, words: int) -> tuple[Any, Any]:
        """Return scratch memory for numbers, and a buffer of int words in it."""
        size = np.dtype(ref.dtype).itemsize * (2 if attrs["complex"] else 1)
        alignment = max(1, self.session.device.mem_base_addr_align // 8)
        start = -(-numbers * size // alignment) * alignment
        whole = self.session.scratch(start + 4 * words)
        return whole, whole.get_sub_region(start, 4 * words)

    def _joined(self, a: Ref, b: Ref | None, attrs: Mapping[str, Any]) -> tuple[Any, Any, int, int, int]:
        """Return [a | b] in scratch memory, words for pivots, how many matrices, rows, and right sides."""
        shape = a.shape[:-1] if attrs["complex"] else a.shape
        batch, n = math.prod(shape[:-2]), shape[-1]
        m = 0 if b is None else (b.shape[:-1] if attrs["complex"] else b.shape)[-1]
        total = batch * n * (n + m)
        x, words = self._scratch(a, attrs, total, batch * n)
        other = a if b is None else b
        numbers = [(LONG, v) for v in (a.offset, other.offset, n, m, total)]
        self._run(a, attrs, "join", *self._over(total), (None, x), (None, a.handle), (None, other.handle), *numbers)
        return x, words, batch, n, m

    def _eliminate(self, a: Ref, b: Ref | None, attrs: Mapping[str, Any]) -> tuple[Any, Any, int, int, int]:
        """Return what elimination makes of [a | b], and the rest as `_joined` does."""
        cl = self.session.cl
        x, pivots, batch, n, m = self._joined(a, b, attrs)
        width, items = n + m, self._items()
        real = np.dtype(a.dtype).itemsize
        for k in range(0, n, BLOCK):
            end = min(n, k + BLOCK)
            numbers = [(LONG, v) for v in (n, width, k, end)]
            rooms = [(None, cl.LocalMemory(items * size)) for size in (real, 4)]
            buffers = [(None, x), (None, pivots)]
            self._run(a, attrs, "eliminate", (batch * items,), (items,), *buffers, *numbers, *rooms)
            if k or width > end:
                (grid,), (group,) = self._over(width)
                self._run(a, attrs, "follow", (batch, grid), (1, group), *buffers, *numbers)
            if end < n:
                tiles = [TILE * -(-(size - end) // TILE) for size in (width, n)]
                self._run(a, attrs, "update", (batch, *tiles), (1, TILE, TILE), (None, x), *numbers)
        return x, pivots, batch, n, m

    def _substitute(self, a: Ref, attrs: Mapping[str, Any], x: Any, batch: int, n: int, m: int, upper: bool) -> None:
        items, groups = self._items(), -(-m // COLUMNS)
        numbers = [(LONG, n), (LONG, m), (INT, int(upper)), (LONG, COLUMNS)]
        self._run(a, attrs, "substitute", (batch * items, groups), (items, 1), (None, x), *numbers)

    def _part(self, out: Ref, attrs: Mapping[str, Any], x: Any, batch: int, n: int, m: int) -> None:
        total = batch * n * m
        numbers = [(LONG, v) for v in (out.offset, n, m, total)]
        self._run(out, attrs, "part", *self._over(total), (None, x), (None, out.handle), *numbers)

    # ---- ops ------------------------------------------------------------------------------------------

    def _solve(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        a, b = ins
        x, _, batch, n, m = self._eliminate(a, b, attrs)
        self._substitute(a, attrs, x, batch, n, m, True)
        self._part(outs[0], attrs, x, batch, n, m)

    def _triangular_solve(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        a, b = ins
        x, _, batch, n, m = self._joined(a, b, attrs)
        self._substitute(a, attrs, x, batch, n, m, attrs["upper"])
        self._part(outs[0], attrs, x, batch, n, m)

    def _cholesky(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        a = ins[0]
        x, bad, batch, n, _ = self._joined(a, None, attrs)
        items = self._items()
        self._run(a, attrs, "clear", (items,), (1,), (None, bad), (LONG, batch))
        for k in range(0, n, BLOCK):
            end = min(n, k + BLOCK)
            numbers = [(LONG, v) for v in (n, k, end)]
            self._run(a, attrs, "root", (batch * items,), (items,), (None, x), (None, bad), *numbers)
            if end < n:
                size = TILE * -(-(n - end) // TILE)
                self._run(a, attrs, "update_lower", (batch, size, size), (1, TILE, TILE), (None, x), *numbers)
        total = batch * n * n
        numbers = [(LONG, v) for v in (outs[0].offset, n, total)]
        buffers = [(None, x), (None, bad), (None, outs[0].handle)]
        self._run(a, attrs, "lower", *self._over(total), *buffers, *numbers)

    def _determinants(self, outs: Sequence[Ref], a: Ref, attrs: Mapping[str, Any], logarithm: bool) -> None:
        x, pivots, batch, n, _ = self._eliminate(a, None, attrs)
        first, second = outs[0], outs[-1]
        numbers = [(LONG, v) for v in (first.offset, second.offset, n, batch)]
        buffers = [(None, x), (None, pivots), (None, first.handle), (None, second.handle)]
        self._run(a, attrs, "determinants", *self._over(batch), *buffers, *numbers, (INT, int(logarithm)))

    def _slogdet(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        self._determinants(outs, ins[0], attrs, True)

    def _det(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        self._determinants(outs, ins[0], attrs, False)
