"""Memory of one device: blocks from the driver, kept and used again.

Here: `Pool`, `Buffer` (a block in use) and `Storage` (a strided view of a buffer).
Not here: which values need memory, and when; the schedule knows.

The pool keeps freed blocks by size class, because a fresh block is dear (page faults on a CPU, a driver call on a GPU).
On a device whose work is queued in order a block may be handed out again while an earlier launch still reads it: the
next one runs after it.
"""

import gc
import threading
from typing import Any

from polygrad import shapes
from polygrad.driver.binding import Device
from polygrad.errors import OutOfMemory

GRAIN = 512  # bytes: the smallest block
STEPS = 8  # size classes between two powers of two: at most 12.5 % of a block is padding


def size_class(nbytes: int) -> int:
    """Return the size of the block that holds *nbytes*.

    >>> size_class(1), size_class(4096), size_class(5000), size_class(9 << 20)
    (512, 4096, 5120, 9437184)
    """
    step = max(GRAIN, 1 << max(0, (nbytes - 1).bit_length() - 4))
    return -(-nbytes // step) * step


class Pool:
    """The blocks of one device."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self._free: dict[int, list[Any]] = {}
        self._returned: list[tuple[Any, int]] = []  # given back by finalizers, which must not take the lock
        self._lock = threading.Lock()
        self.held = 0  # bytes from the driver
        self.used = 0  # bytes in buffers
        self.peak = 0
        self.allocations = 0  # calls of the driver's allocate
        self.closed = False

    def after_fork(self) -> None:
        """Make a new lock: a thread that does not exist in the child may have held the old one."""
        self._lock = threading.Lock()

    def allocate(self, nbytes: int) -> "Buffer":
        """Return a buffer of at least *nbytes* > 0 bytes, contents unspecified.

        Raises
        ------
        OutOfMemory
            If there is no room even after everything that lies free was given back to the driver.
        """
        return self.take(size_class(nbytes), nbytes)

    def take(self, size: int, nbytes: int) -> "Buffer":
        """Return a buffer of the size class *size*, for *nbytes*; see `allocate`."""
        with self._lock:
            if self._returned:
                self._collect()
            blocks = self._free.get(size)
            if blocks:
                handle = blocks.pop()
                self._count(size)
            else:
                handle = None
        if handle is None:
            handle = self._fresh(size, nbytes)
        return Buffer(self, handle, size)

    def _count(self, size: int) -> None:
        self.used += size
        if self.used > self.peak:  # max() costs as much as all of this
            self.peak = self.used

    def _fresh(self, size: int, nbytes: int) -> Any:
        for attempt in range(3):
            try:
                handle = self.device.allocate(size)
                break
            except OutOfMemory as error:
                if attempt == 1:
                    gc.collect()
                freed = self.release_free() if attempt < 2 else 0  # noqa: PLR2004  the last attempt
                if attempt == 2 or (not freed and attempt):  # noqa: PLR2004
                    raise OutOfMemory(
                        f"{self.device.name} has no room for {nbytes} bytes: {self.used} bytes are in use by arrays; "
                        f"free some, use smaller ones, or another device ({error})"
                    ) from error
        with self._lock:
            self.allocations += 1
            self.held += size
            self._count(size)
        return handle

    def give_back(self, handle: Any, size: int) -> None:
        """Take a block back; called by finalizers at any moment, so it only leaves a note."""
        self._returned.append((handle, size))

    def _collect(self) -> None:
        returned, free = self._returned, self._free
        while returned:
            try:
                handle, size = returned.pop()
            except IndexError:
                return
            self.used -= size
            blocks = free.get(size)
            if blocks is None:
                free[size] = [handle]
            else:
                blocks.append(handle)

    def release_free(self) -> int:
        """Give all free blocks back to the driver; return how many bytes that were."""
        with self._lock:
            self._collect()
            blocks, self._free = self._free, {}
        total = 0
        for size, handles in blocks.items():
            for handle in handles:
                self.device.free(handle)
                total += size
        with self._lock:
            self.held -= total
        return total

    def stats(self) -> dict[str, int]:
        """Return bytes in use, held from the driver, the peak in use, and the number of driver allocations."""
        with self._lock:
            self._collect()
            return {"used": self.used, "held": self.held, "peak": self.peak, "allocations": self.allocations}


class Buffer:
    """A block in use; it goes back to its pool when nothing refers to it any more."""

    __slots__ = ("__weakref__", "handle", "nbytes", "owner", "pool")

    def __init__(self, pool: Pool, handle: Any, nbytes: int, owner: Any = None) -> None:
        self.pool = pool
        self.handle = handle
        self.nbytes = nbytes
        self.owner = owner  # foreign memory: what keeps it alive; such a block never enters the pool

    def __del__(self) -> None:
        if self.owner is None and not self.pool.closed:
            self.pool.give_back(self.handle, self.nbytes)


class Storage:
    """A strided view of a buffer: where the value of a node lies. Offset and strides count elements."""

    __slots__ = ("buffer", "contiguous", "offset", "strides")

    def __init__(self, buffer: Buffer | None, offset: int, strides: shapes.Shape, contiguous: bool) -> None:
        self.buffer = buffer
        self.offset = offset
        self.strides = strides
        self.contiguous = contiguous
