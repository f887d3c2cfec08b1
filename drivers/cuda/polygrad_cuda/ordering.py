"""Running reductions, sorting, and finding what is true: what is launched, in which order.

Here: the ops scan, sort, sort_values and nonzero. Not here: the kernels' text (`ordering_sources.py`,
`sorting_sources.py`), searching (`searching.py`).

A sort is the vendor's stable radix sort. It takes one row of ints or floats as they are, in the memory of the result.
16-bit floats, and several rows, go by unsigned integers that stand for the elements: the row's number stands above the
element's key if both fit 64 bits; if not, the order by elements is sorted by rows once more.
"""

import math
from typing import TYPE_CHECKING, Any

from polygrad.driver import Ref
from polygrad_cuda import ordering_sources as sources
from polygrad_cuda import sorting_sources
from polygrad_cuda.scratch import Scratch

if TYPE_CHECKING:
    from polygrad_cuda.driver import CudaDriver

BLOCK = (sources.THREADS, 1, 1)
TILE = sources.THREADS * sources.ITEMS


def pieces_of(driver: "CudaDriver", rows: int, n: int) -> tuple[int, int]:
    """Return how many pieces a row is cut into, and the elements of one: enough blocks to fill the device."""
    wanted = max(1, min(-(-8 * driver.multiprocessors // rows), -(-n // TILE)))
    size = -(-n // (wanted * TILE)) * TILE
    return -(-n // size), size


def scan(driver: "CudaDriver", out: Ref, x: Ref, kind: str) -> None:
    """Queue the running reduction along the last axis."""
    rows, n = math.prod(x.shape[:-1]), x.shape[-1]
    text = sources.scan(x.dtype, kind, driver.itemsize(x.dtype))
    source, (pieces, size) = driver.address(x), pieces_of(driver, rows, n)
    with driver.scratch() as scratch:
        ends = _ends(driver, text, source, n, (rows, pieces, size), scratch) if pieces > 1 else 0
        slots = ("pointer", "pointer", "pointer", "int64", "int64", "int64")
        values = (source, ends, driver.address(out), n, pieces, size)
        driver.launch(text, "write", (rows * pieces, 1, 1), BLOCK, slots, values)


def nonzero(driver: "CudaDriver", out: Ref, mask: Ref) -> None:
    """Queue the positions at which a 1-D mask is true; *out* has room for as many as there are."""
    text, source, n = sources.nonzero(), driver.address(mask), mask.shape[0]
    pieces, size = pieces_of(driver, 1, n)
    with driver.scratch() as scratch:
        ends = _ends(driver, text, source, n, (1, pieces, size), scratch)
        slots = ("pointer", "pointer", "pointer", "int64", "int64")
        driver.launch(text, "positions", (pieces, 1, 1), BLOCK, slots, (source, ends, driver.address(out), n, size))


def _ends(driver: "CudaDriver", text: str, source: int, n: int, cut: tuple[int, int, int], scratch: Scratch) -> int:
    """Queue what reduces each piece of each row, and return the address of the results."""
    rows, pieces, size = cut
    ends = scratch.take(8 * rows * pieces)
    slots = ("pointer", "pointer", "int64", "int64", "int64")
    driver.launch(text, "ends", (rows * pieces, 1, 1), BLOCK, slots, (source, ends, n, pieces, size))
    return ends


def sort(driver: "CudaDriver", values: Ref, places: Ref | None, x: Ref) -> None:
    """Queue a stable sort of rows, and where each element came from if there are *places* for that."""
    rows, n = math.prod(x.shape[:-1]), x.shape[-1]
    order = 0 if places is None else driver.address(places)
    with driver.scratch() as scratch:
        if rows == 1 and x.dtype not in ("float16", "bfloat16"):
            _sort_row(driver, values, order, x, scratch)
        else:
            _sort_keys(driver, values, order, x, (rows, n), scratch)


def grid_of(driver: "CudaDriver", count: int) -> tuple[int, int, int]:
    """Return the grid of a kernel whose threads take elements in turns."""
    return (min(-(-count // sources.THREADS), 32 * driver.multiprocessors), 1, 1)


def _sort_row(driver: "CudaDriver", values: Ref, order: int, x: Ref, scratch: Scratch) -> None:
    """Sort one row where the result stands."""
    count, source, target = x.shape[-1], driver.address(x), driver.address(values)
    grid, floats = grid_of(driver, count), x.dtype.startswith("float")
    if floats:
        text = sorting_sources.nan_last(x.dtype)
        driver.launch(text, "one_nan", grid, BLOCK, ("pointer",) * 2 + ("int64",), (source, target, count))
    else:
        driver.copy(values, x)
    sort_in_place(driver, target, "uint8" if x.dtype == "bool" else x.dtype, count, order, scratch)
    if floats and order:
        driver.launch(text, "each_nan", grid, BLOCK, ("pointer",) * 3 + ("int64",), (source, order, target, count))


def _sort_keys(
    driver: "CudaDriver", values: Ref, places: int, x: Ref, extents: tuple[int, int], scratch: Scratch
) -> None:
    """Sort by keys, and gather the elements in their order."""
    (rows, n), width = extents, driver.itemsize(x.dtype)
    count, above = rows * n, rows > 1 and width <= 4  # noqa: PLR2004  bytes: the row's number fits above the key
    index = sorting_sources.index_type(count)
    text = sorting_sources.sort(x.dtype, width, index, rows=above)
    number = "uint32" if index == "unsigned int" else "uint64"
    grid, source, size = grid_of(driver, count), driver.address(x), 8 if above else width
    keys, order = scratch.take(size * count), scratch.take(8 * count)
    driver.launch(text, "keys", grid, BLOCK, ("pointer", "pointer", number, number), (source, keys, count, n))
    sort_in_place(driver, keys, f"uint{8 * size}", count, order, scratch)
    if rows > 1 and not above:
        numbers, then, whole = scratch.take(4 * count), scratch.take(8 * count), scratch.take(8 * count)
        slots = ("pointer", "pointer", number, number)
        driver.launch(text, "row_numbers", grid, BLOCK, slots, (order, numbers, count, n))
        sort_in_place(driver, numbers, "uint32", count, then, scratch)
        driver.launch(text, "followed", grid, BLOCK, ("pointer",) * 3 + (number,), (order, then, whole, count))
        order = whole
    driver.launch(
        text, "finish", grid, BLOCK, ("pointer",) * 4 + (number,) * 2,
        (source, order, driver.address(values), places, count, n),
    )  # fmt: skip


def sort_in_place(driver: "CudaDriver", keys: int, dtype: str, count: int, order: int, scratch: Scratch) -> None:
    """Queue the vendor's stable radix sort of *count* numbers at *keys*.

    At *order*, if that is no null, go the int64 positions that they come from.
    """
    cupy = driver.cupy
    kind: Any = cupy.dtype(dtype)
    with driver.cupy_stream, cupy.cuda.using_allocator(scratch.array_memory):
        if order:
            cupy.cuda.thrust.argsort(kind, order, keys, 0, [count])
        else:
            cupy.cuda.thrust.sort(kind, keys, 0, [count])
