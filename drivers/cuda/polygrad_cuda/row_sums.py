"""scatter_add and scatter_reduce without atomics: the same bits in every run.

Here: the order of the steps. Not here: the kernels' text (`sources.py`).

Indices are checked and sorted, stably; then each row's values stand together in their order and are added up by
blocks of a
fixed length. An atomic add would be shorter and would round differently from run to run.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from polygrad.driver import Ref, UnsupportedOp
from polygrad_cuda.sources import ROW_INDICES, RUN, UNSIGNED, row_sums

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
    target = out.handle + out.offset * size
    text = row_sums(out.dtype, UNSIGNED[size], mode)
    if mode == "add":
        driver.zero(target, rows * width * size)
    else:
        blocks = min(-(-rows * width // THREADS), MANY)
        driver.launch(text, "fill", (blocks, 1, 1), (THREADS, 1, 1), ("pointer", "int64"), (target, rows * width))
    status = attrs.get("status")
    with driver.scratch() as scratch:
        keys = scratch.take(8 * count)
        driver.launch(
            ROW_INDICES, "indices", (-(-count // 256), 1, 1), (256, 1, 1),
            ("pointer", "int64", "int64", "int64", "pointer", "pointer", "int32"),
            (index.handle + 8 * index.offset, index.strides[0], count, rows, keys, status or 0, attrs.get("tag", 1)),
        )  # fmt: skip
        order = driver.sorted_order(keys, count, scratch)
        blocks = -(-count // RUN)
        wide = out.dtype == "float64" or ("float" not in out.dtype and size > 4)  # noqa: PLR2004  bytes
        kept = 8 if wide else 4
        head, tail = scratch.take(kept * blocks * width), scratch.take(kept * blocks * width)
        grid = (blocks, -(-width // THREADS), 1)
        source = values.handle + values.offset * size
        driver.launch(
            text, "sums", grid, (THREADS, 1, 1), ("pointer",) * 6 + ("int64",) * 2,
            (keys, order, source, target, head, tail, count, width),
        )  # fmt: skip
        driver.launch(
            text, "join", grid, (THREADS, 1, 1), ("pointer",) * 5 + ("int64",) * 2,
            (keys, order, target, head, tail, count, width),
        )  # fmt: skip
