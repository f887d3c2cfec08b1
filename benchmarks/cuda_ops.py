"""What the cuda driver's own ops cost: products, transfers, random bits, row sums, a bare launch.

Here: timing. Not here: fused kernels (`gpu_kernels.py`), correctness (`drivers/cuda/tests`).

    python benchmarks/cuda_ops.py
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import cupy
import ml_dtypes
import numpy as np

from polygrad.driver import Ref
from polygrad_cuda.driver import CudaDriver

NAMES = {"bfloat16": ml_dtypes.bfloat16}


def ref(array: Any) -> Ref:
    """Return a CuPy array as the driver sees it."""
    strides = tuple(s // array.itemsize for s in array.strides)
    return Ref(int(array.data.ptr), 0, array.shape, strides, array.dtype.name)


def device_ms(driver: CudaDriver, call: Callable[[], Any], repeat: int = 10) -> float:
    """Return the median time of *call* on the device."""
    for _ in range(3):
        call()
    times = []
    for _ in range(repeat):
        start, stop = cupy.cuda.Event(), cupy.cuda.Event()
        start.record(driver.cupy_stream)
        call()
        stop.record(driver.cupy_stream)
        stop.synchronize()
        times.append(cupy.cuda.get_elapsed_time(start, stop))
    return statistics.median(times)


def python_us(driver: CudaDriver, call: Callable[[], Any], repeat: int = 500) -> float:
    """Return the least time of *call* on the host, in groups short enough not to fill the queue."""
    best = 1.0
    for _ in range(8):
        driver.synchronize()
        start = time.perf_counter()
        for _ in range(repeat // 8):
            call()
        best = min(best, (time.perf_counter() - start) / (repeat // 8))
    return best * 1e6


def products(driver: CudaDriver) -> None:
    """Time square products in every float dtype, and the shapes of attention."""
    for dtype, precision in (
        ("float32", "highest"),
        ("float32", "tf32"),
        ("bfloat16", ""),
        ("float16", ""),
        ("float64", ""),
    ):
        n = 8192 if dtype != "float64" else 4096
        a, b = (cupy.random.standard_normal((n, n), dtype=cupy.float32).astype(NAMES.get(dtype, dtype)) for _ in "ab")
        out = cupy.empty_like(a)
        attrs = {"precision": precision} if precision else {}
        ms = device_ms(driver, lambda: driver.op_matmul((ref(out),), (ref(a), ref(b)), attrs), 5)
        print(f"matmul {n} {dtype} {precision}: {2 * n**3 / ms / 1e9:.0f} TFLOP/s")
    a = cupy.random.standard_normal((16, 1024, 12, 64), dtype=cupy.float32)
    q, k = a.transpose(0, 2, 1, 3), a.transpose(0, 2, 3, 1)
    out = cupy.empty((16, 12, 1024, 1024), cupy.float32)
    ms = device_ms(driver, lambda: driver.op_matmul((ref(out),), (ref(q), ref(k)), {}), 5)
    print(f"matmul of heads, [16,12,1024,64]: {2 * 192 * 1024**2 * 64 / ms / 1e9:.1f} TFLOP/s, {ms:.3f} ms")
    small = cupy.ones((64, 64), cupy.float32)
    refs = (ref(cupy.empty_like(small)),), (ref(small), ref(small))
    print(f"matmul 64: {python_us(driver, lambda: driver.op_matmul(*refs, {})):.1f} us of Python")
    ints = cupy.ones((2048, 2048), cupy.int32)
    out = cupy.empty_like(ints)
    ms = device_ms(driver, lambda: driver.op_matmul((ref(out),), (ref(ints), ref(ints)), {}), 3)
    print(f"matmul 2048 int32: {2 * 2048**3 / ms / 1e9:.2f} TOP/s")


def transfers(driver: CudaDriver) -> None:
    """Time writes and reads of one element, of 1 MiB and of 256 MiB."""
    for nbytes in (4, 1 << 20, 256 << 20):
        host, block = np.ones(nbytes, np.uint8), cupy.empty(nbytes, cupy.uint8)
        for name, call in (
            ("write", lambda: driver.op_write((ref(block),), (), {"data": memoryview(host)})),
            ("read", lambda: driver.op_read((), (ref(block),), {"into": memoryview(host)})),
        ):
            call()
            driver.synchronize()
            start, repeat = time.perf_counter(), 3 if nbytes > 1 << 20 else 50
            for _ in range(repeat):
                call()
            driver.synchronize()
            taken = (time.perf_counter() - start) / repeat
            print(f"{name} {nbytes} bytes: {taken * 1e6:.1f} us, {nbytes / taken / 1e9:.2f} GB/s")


def others(driver: CudaDriver) -> None:
    """Time random bits, row sums and a bare launch."""
    out = cupy.empty(1 << 27, cupy.uint32)
    ms = device_ms(driver, lambda: driver.op_random_bits((ref(out),), (), {"key": 1, "counter": 2}))
    print(f"random_bits 2**27: {ms:.3f} ms, {out.nbytes / ms / 1e6:.0f} GB/s")
    index = cupy.random.randint(0, 32768, 16384).astype(cupy.int64)
    values, rows = cupy.ones((16384, 768), cupy.float32), cupy.empty((32768, 768), cupy.float32)
    for name, used in (("spread", index), ("all alike", index * 0)):
        call = lambda used=used: driver.op_scatter_add((ref(rows),), (ref(used), ref(values)), {})  # noqa: E731
        print(f"scatter_add [16384, 768] into [32768, 768], {name}: {device_ms(driver, call):.3f} ms")
    print(f"scatter_add: {python_us(driver, call, 80):.0f} us of Python")
    text = 'extern "C" __global__ void nothing(float* a, float* b, int n, float c) {}'
    values = (int(rows.data.ptr), int(rows.data.ptr), 3, 0.5)
    slots = ("pointer", "pointer", "int32", "float32")
    bare = lambda: driver.launch(text, "nothing", (1, 1, 1), (32, 1, 1), slots, values)  # noqa: E731
    print(f"launch of an op's kernel: {python_us(driver, bare):.2f} us")
    print(f"synchronize: {python_us(driver, driver.synchronize):.2f} us")
    print(f"allocate and free 1 MiB: {python_us(driver, lambda: driver.free(driver.allocate(1 << 20)), 80):.1f} us")


if __name__ == "__main__":
    opened = CudaDriver()
    print(opened.open(0, {}))
    products(opened)
    transfers(opened)
    others(opened)
