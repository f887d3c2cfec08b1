"""Memory that an op needs for a moment, in the order of the stream.

Here: taking and giving back. Not here: the blocks of arrays, which the core pools.

Ops run one after the other, so that all use the same bytes: those of one block, which grows to what the largest of
them has taken and stays. A fresh block would cost more than most ops do: CUDA's stream-ordered allocator, from which
comes what has no room in it, gives memory back to the system whenever somebody waits for the stream. What such an
allocation is given back by is queued behind the kernels that use it, and nobody waits.
"""

from types import TracebackType
from typing import TYPE_CHECKING, Any

from polygrad.driver import OutOfMemory, Ref

if TYPE_CHECKING:
    from polygrad_cuda.driver import CudaDriver

ALIGNMENT = 256  # bytes
LEAST, MOST = 1 << 20, 256 << 20  # bytes of the block that stays


class Arena:
    """The block that stays, given out from its start to its end."""

    def __init__(self, driver: "CudaDriver") -> None:
        self.driver = driver
        self.block = self.size = 0
        self.used = 0
        self.wanted = 0  # what would have been used of a block without end

    def take(self, nbytes: int) -> int:
        """Return the address of *nbytes*; 0 if there is no room."""
        if nbytes > MOST:
            return 0
        start = self.used
        self.used = -(-(start + nbytes) // ALIGNMENT) * ALIGNMENT
        self.wanted = max(self.wanted, self.used)
        return self.block + start if self.used <= self.size else 0

    def settle(self, used: int) -> None:
        """Give back all but the first *used* bytes; grow, if nothing is in use and there was too little room."""
        self.used = used
        if used == 0 and self.size < min(self.wanted, MOST):
            size = min(MOST, max(LEAST, 1 << (self.wanted - 1).bit_length()))
            self.close()
            try:
                self.block = self.driver.allocate(size)
            except OutOfMemory:  # ops go on with blocks of their own
                return
            self.size = size

    def close(self) -> None:
        """Give the block to the system."""
        self.driver.retire(self.block)
        self.block = self.size = 0


class Scratch:
    """Use as a context: what was taken inside is given back at its end."""

    def __init__(self, driver: "CudaDriver") -> None:
        self.driver = driver
        self.arena = driver.arena
        self.start = self.arena.used
        self.blocks: list[int] = []

    def __enter__(self) -> "Scratch":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for block in self.blocks:
            self.driver.runtime.freeAsync(block, self.driver.stream)
        self.blocks = []
        self.arena.settle(self.start)

    def take(self, nbytes: int) -> int:
        """Return the address of a block of *nbytes*, aligned to 256."""
        found = self.arena.take(nbytes)
        if found:
            return found
        with self.driver.memory_errors(nbytes):
            block = int(self.driver.runtime.mallocAsync(max(1, nbytes), self.driver.stream))
        self.blocks.append(block)
        return block

    def array_memory(self, nbytes: int) -> Any:
        """Return a block as CuPy's memory pointer: the form of an allocator for `cupy.cuda.using_allocator`."""
        cuda = self.driver.cupy.cuda
        block = cuda.UnownedMemory(self.take(nbytes), nbytes, self, self.driver.ordinal)
        return cuda.MemoryPointer(block, 0)

    def contiguous(self, ref: Ref) -> Ref:
        """Return a contiguous copy of *ref*; an axis of stride 0 among the leading ones stays one."""
        leading = [0 if s == 0 and n > 1 else 1 for n, s in zip(ref.shape[:-2], ref.strides[:-2], strict=True)]
        shape = tuple(n if kept else 1 for n, kept in zip(ref.shape[:-2], leading, strict=True)) + ref.shape[-2:]
        strides = contiguous_strides(shape)
        count = 1
        for extent in shape:
            count *= extent
        copy = Ref(self.take(count * self.driver.itemsize(ref.dtype)), 0, shape, strides, ref.dtype)
        self.driver.copy(copy, ref._replace(shape=shape))
        spread = tuple(s if kept else 0 for s, kept in zip(strides[:-2], leading, strict=True)) + strides[-2:]
        return copy._replace(shape=ref.shape, strides=spread)


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides, in elements, of a C-contiguous array.

    >>> contiguous_strides((2, 3, 4))
    (12, 4, 1)
    """
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))
