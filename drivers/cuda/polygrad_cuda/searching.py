"""Finding extremes, and places in what is sorted: what is launched.

Here: the ops arg_extreme and searchsorted. Not here: the kernels' text (`searching_sources.py`).
"""

import math
from typing import TYPE_CHECKING

from polygrad.driver import Ref
from polygrad_cuda import searching_sources as sources
from polygrad_cuda.ordering import BLOCK, grid_of, pieces_of
from polygrad_cuda.sorting_sources import index_type

if TYPE_CHECKING:
    from polygrad_cuda.driver import CudaDriver


def arg_extreme(driver: "CudaDriver", out: Ref, x: Ref, kind: str) -> None:
    """Queue the positions of the first greatest or least elements along the last axis."""
    rows, n = math.prod(x.shape[:-1]), x.shape[-1]
    text = sources.extreme(x.dtype, kind, driver.itemsize(x.dtype))
    pieces, size = pieces_of(driver, rows, n)
    count = rows * pieces
    slots = ("pointer",) * 5 + ("int64",) * 3
    with driver.scratch() as scratch:
        ranks, places = (scratch.take(8 * count), scratch.take(8 * count)) if pieces > 1 else (0, 0)
        ends = (driver.address(x), ranks, places, driver.address(out), driver.counter())
        driver.launch(text, "extreme", (count, 1, 1), BLOCK, slots, (*ends, n, pieces, size))


def searchsorted(driver: "CudaDriver", out: Ref, x: Ref, wanted: Ref, *, right: bool) -> None:
    """Queue how many elements of a sorted row lie before each wanted one."""
    count, n, each = math.prod(wanted.shape), x.shape[-1], wanted.shape[-1]
    index = index_type(max(count, math.prod(x.shape)))
    text = sources.search(x.dtype, driver.itemsize(x.dtype), index, right=right)
    number = "uint32" if index == "unsigned int" else "uint64"
    values = (driver.address(x), driver.address(wanted), driver.address(out), count, n, each)
    slots = ("pointer", "pointer", "pointer", number, number, number)
    driver.launch(text, "search", grid_of(driver, count), BLOCK, slots, values)
