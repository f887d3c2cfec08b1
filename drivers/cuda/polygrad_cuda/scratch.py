"""Memory that an op needs for a moment, in the order of the stream.

Here: taking and giving back. Not here: the blocks of arrays, which the core pools.

The blocks come from CUDA's stream-ordered allocator: giving back is queued behind the kernels that use them, and
nobody waits.
"""

from types import TracebackType
from typing import TYPE_CHECKING, Any

from polygrad.driver import Ref

if TYPE_CHECKING:
    from polygrad_cuda.driver import CudaDriver


class Scratch:
    """Use as a context: what was taken inside is given back at its end."""

    def __init__(self, driver: "CudaDriver") -> None:
        self.driver = driver
        self.runtime = driver.runtime
        self.blocks: list[int] = []

    def __enter__(self) -> "Scratch":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for block in self.blocks:
            self.runtime.freeAsync(block, self.driver.stream)
        self.blocks = []

    def take(self, nbytes: int) -> int:
        """Return the address of a block of *nbytes*, aligned to 256."""
        with self.driver.memory_errors(nbytes):
            block = int(self.runtime.mallocAsync(max(1, nbytes), self.driver.stream))
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
