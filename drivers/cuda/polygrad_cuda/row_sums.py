"""scatter_add and scatter_reduce without atomics: the same bits in every run.

Here: the order of the steps. Not here: the kernels' text (`row_sums_sources.py`).

Indices are checked and sorted, stably; then each row's values stand together in their order and are added up by
blocks of a fixed length. An atomic add would be shorter and would round differently from run to run.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from polygrad.driver import Ref, UnsupportedOp
from polygrad_cuda.ordering import sort_in_place
from polygrad_cuda.row_sums_sources import EACH, FEW, RUN, key_type, row_indices, row_sums, rows_in_order
from polygrad_cuda.sources import UNSIGNED

if TYPE_CHECKING:
    from polygrad_cuda.driver import CudaDriver

THREADS = 128
MANY = 4096  # blocks of a fill: each thread then takes several elements


def scatter(driver: "CudaDriver", mode: str, out: Ref, index: Ref, values: Ref, attrs: Mapping[str, Any]) -> None:
    """Queue ``out[index[j]] += values[j]`` on zeros, or what *mode* says in place of the sum, on its identity."""
    if out.dtype == "bool":
        raise UnsupportedOp("a scatter of bool is not offered by driver 'cuda'; cast to an integer dtype")
    rows, width = out.shape
    count = index.shape[0]
    size = driver.itemsize(out.dtype)
    target, key = driver.address(out), key_type(rows)
    text = row_sums(out.dtype, UNSIGNED[size], mode, key)
    nbytes = rows * width * size
    few = count <= FEW and key != "uint64"
    together = few and mode == "add" and target % 16 == nbytes % 16 == 0
    if mode != "add":
        blocks = min(-(-rows * width // THREADS), MANY)
        driver.launch(text, "fill", (blocks, 1, 1), (THREADS, 1, 1), ("pointer", "int64"), (target, rows * width))
    elif not together:
        driver.zero(target, nbytes)
    with driver.scratch() as scratch:
        keys, order = scratch.take(8 * count), scratch.take(8 * count)
        indices = (driver.address(index), index.strides[0], count, rows)
        status = (attrs.get("status") or 0, attrs.get("tag", 1))
        if few:
            _count_in_order(driver, key, indices, (keys, order), (target, nbytes // 16 if together else 0), status)
        else:
            slots = ("pointer", "int64", "int64", "int64", "pointer", "pointer", "int32")
            grid = (-(-count // 256), 1, 1)
            driver.launch(row_indices(key), "indices", grid, (256, 1, 1), slots, (*indices, keys, *status))
            sort_in_place(driver, keys, key, count, order, scratch)
        blocks = -(-count // RUN)
        wide = out.dtype == "float64" or ("float" not in out.dtype and size > 4)  # noqa: PLR2004  bytes
        kept = 8 if wide else 4
        head, tail = scratch.take(kept * blocks * width), scratch.take(kept * blocks * width)
        grid = (blocks, -(-width // THREADS), 1)
        source = driver.address(values)
        driver.launch(
            text, "sums", grid, (THREADS, 1, 1), ("pointer",) * 6 + ("int64",) * 2,
            (keys, order, source, target, head, tail, count, width),
        )  # fmt: skip
        driver.launch(
            text, "join", grid, (THREADS, 1, 1), ("pointer",) * 4 + ("int64",) * 2,
            (keys, target, head, tail, count, width),
        )  # fmt: skip


def _count_in_order(
    driver: "CudaDriver",
    key: str,
    indices: tuple[int, int, int, int],
    found: tuple[int, int],
    room: tuple[int, int],
    status: tuple[int, int],
) -> None:
    """Queue what checks and sorts row numbers, and zeros in *room*, of that many times 16 bytes."""
    sorters = -(-indices[2] // (8 * EACH))
    blocks = sorters + min(-(-room[1] // 256), 16 * driver.multiprocessors)
    slots = ("pointer", "int64", "int64", "int64", *("pointer",) * 3, "int64", "int32", "pointer", "int32")
    values = (*indices, *found, *room, sorters, *status)
    driver.launch(rows_in_order(key), "in_order", (blocks, 1, 1), (256, 1, 1), slots, values)
