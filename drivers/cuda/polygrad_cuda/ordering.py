"""Running reductions, sorting, and finding what is true: what is launched, in which order.

Here: the ops scan, sort and nonzero. Not here: the kernels' text (`ordering_sources.py`).

A sort is the vendor's stable radix sort of unsigned integers that stand for the elements. Rows are sorted all at once:
the row's number stands above the element's key if both fit 64 bits; if not, the order by elements is sorted by rows
once more.
"""

import math
from typing import TYPE_CHECKING, Any

from polygrad.driver import Ref
from polygrad_cuda import ordering_sources as sources
from polygrad_cuda.scratch import Scratch

if TYPE_CHECKING:
    from polygrad_cuda.driver import CudaDriver

BLOCK = (sources.THREADS, 1, 1)
TILE = sources.THREADS * sources.ITEMS


def _address(driver: "CudaDriver", ref: Ref) -> int:
    return int(ref.handle) + ref.offset * driver.itemsize(ref.dtype)


def _pieces(driver: "CudaDriver", rows: int, n: int) -> tuple[int, int]:
    """Return how many pieces a row is cut into, and the elements of one: enough blocks to fill the device."""
    wanted = max(1, min(-(-8 * driver.multiprocessors // rows), -(-n // TILE)))
    size = -(-n // (wanted * TILE)) * TILE
    return -(-n // size), size


def _join(driver: "CudaDriver", text: str, source: int, ends: int, rows: int, n: int, cut: tuple[int, int]) -> None:
    """Queue what reduces each piece, and then the pieces of each row on top of each other."""
    pieces, size = cut
    slots = ("pointer", "pointer", "int64", "int64", "int64")
    driver.launch(text, "ends", (rows * pieces, 1, 1), BLOCK, slots, (source, ends, n, pieces, size))
    driver.launch(text, "join", (rows, 1, 1), BLOCK, ("pointer", "int64"), (ends, pieces))


def scan(driver: "CudaDriver", out: Ref, x: Ref, kind: str) -> None:
    """Queue the running reduction along the last axis."""
    rows, n = math.prod(x.shape[:-1]), x.shape[-1]
    text = sources.scan(x.dtype, kind, driver.itemsize(x.dtype))
    source, target = _address(driver, x), _address(driver, out)
    pieces, size = _pieces(driver, rows, n)
    with driver.scratch() as scratch:
        ends = scratch.take(8 * rows * pieces) if pieces > 1 else 0
        if pieces > 1:
            _join(driver, text, source, ends, rows, n, (pieces, size))
        slots = ("pointer", "pointer", "pointer", "int64", "int64", "int64")
        driver.launch(text, "write", (rows * pieces, 1, 1), BLOCK, slots, (source, ends, target, n, pieces, size))


def nonzero(driver: "CudaDriver", out: Ref, mask: Ref) -> None:
    """Queue the positions at which a 1-D mask is true; *out* has room for as many as there are."""
    n = mask.shape[0]
    text, source = sources.nonzero(), _address(driver, mask)
    pieces, size = _pieces(driver, 1, n)
    with driver.scratch() as scratch:
        ends = scratch.take(8 * pieces)
        _join(driver, text, source, ends, 1, n, (pieces, size))
        slots = ("pointer", "pointer", "pointer", "int64", "int64")
        values = (source, ends, _address(driver, out), n, size)
        driver.launch(text, "positions", (pieces, 1, 1), BLOCK, slots, values)


def sort(driver: "CudaDriver", values: Ref, places: Ref, x: Ref) -> None:
    """Queue a stable sort of rows, and where each element came from."""
    rows, n = math.prod(x.shape[:-1]), x.shape[-1]
    count, width = rows * n, driver.itemsize(x.dtype)
    above = rows > 1 and width <= 4  # noqa: PLR2004  bytes: the row's number fits above the key
    text = sources.sort(x.dtype, width, above)
    grid = (min(-(-count // sources.THREADS), 32 * driver.multiprocessors), 1, 1)
    source = _address(driver, x)
    with driver.scratch() as scratch:
        size = 8 if above else width
        keys = scratch.take(size * count)
        driver.launch(text, "keys", grid, BLOCK, ("pointer", "pointer", "int64", "int64"), (source, keys, count, n))
        order = sorted_order(driver, keys, f"uint{8 * size}", count, scratch)
        if rows > 1 and not above:
            order = _by_row(driver, text, grid, order, count, n, scratch)
        driver.launch(
            text, "finish", grid, BLOCK, ("pointer",) * 4 + ("int64",) * 2,
            (source, order, _address(driver, values), _address(driver, places), count, n),
        )  # fmt: skip


def _by_row(driver: "CudaDriver", text: str, grid: Any, order: int, count: int, n: int, scratch: Scratch) -> int:
    """Return the address of *order* with all of a row's positions together, in the order that they had."""
    rows, whole = scratch.take(4 * count), scratch.take(8 * count)
    slots = ("pointer", "pointer", "int64", "int64")
    driver.launch(text, "row_numbers", grid, BLOCK, slots, (order, rows, count, n))
    then = sorted_order(driver, rows, "uint32", count, scratch)
    driver.launch(text, "followed", grid, BLOCK, ("pointer",) * 3 + ("int64",), (order, then, whole, count))
    return whole


def sorted_order(driver: "CudaDriver", keys: int, dtype: str, count: int, scratch: Scratch) -> int:
    """Return the address of int64 positions that sort *count* keys stably; the memory is *scratch*'s."""
    cupy = driver.cupy
    kind = cupy.dtype(dtype)
    block = cupy.cuda.UnownedMemory(keys, kind.itemsize * count, scratch, driver.ordinal)
    array = cupy.ndarray((count,), kind, cupy.cuda.MemoryPointer(block, 0))
    with driver.cupy_stream, cupy.cuda.using_allocator(scratch.array_memory):
        return int(cupy.argsort(array, kind="stable").data.ptr)
