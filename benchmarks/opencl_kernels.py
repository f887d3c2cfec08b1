"""How fast the OpenCL driver's kernels are, against NumPy in the same process; products on a GPU against cuBLAS too.

Here: single kernels launched through the driver: row softmax, sums of rows and columns, elementwise chains, copies,
matrix products, and what a launch costs in Python. Not here: whole models, other drivers.

    python benchmarks/opencl_kernels.py [--device 0] [--repeat 9] [only ...]

The two sides take turns; each line gives the best wall time of each, their ratio (above 1: OpenCL is faster), and the
CPU time, which says how the ratio would be on an idle machine.
"""

import argparse
import dataclasses
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from polygrad.driver import Instr, Kernel, Ref, Store, View
from polygrad_opencl import plugin

F32 = "float32"
Side = Callable[[], Any]


class Bench:
    """An open device with a few arrays on it."""

    def __init__(self, ordinal: int) -> None:
        self.info: Any = plugin.polygrad_open("opencl", ordinal, {})
        self.driver: Any = plugin.devices[ordinal]

    def put(self, array: np.ndarray[Any, Any]) -> Any:
        """Return a device copy of *array*."""
        handle = self.driver.allocate(array.nbytes)
        ref = Ref(handle, 0, array.shape, (), str(array.dtype))
        self.driver.op_write([ref], [], {"data": array.reshape(-1).view(np.uint8).data})
        return handle

    def launch(
        self, kernel: Kernel, handles: list[Any], ints: tuple[int, ...], scalars: tuple[float, ...] = ()
    ) -> Side:
        """Return a function that launches and waits."""
        prepared = self.driver.prepare_fused(kernel)

        def run() -> None:
            prepared(handles, ints, scalars)
            self.driver.synchronize()

        return run


def rows(count: int) -> tuple[View, ...]:
    """Return views of *count* matrices whose rows are contiguous."""
    return tuple(View(b, F32, (None, 1)) for b in range(count))


def softmax_kernel() -> Kernel:
    """Softmax over the last axis: three levels."""
    body = (
        Instr("load", F32, (), 0), Instr("reduce", F32, (0,), "max"), Instr("subtract", F32, (0, 1)),
        Instr("exp", F32, (2,)), Instr("reduce", F32, (3,), "sum"), Instr("divide", F32, (3, 4)),
    )  # fmt: skip
    return Kernel(1, 1, (F32, F32), rows(2), (), body, (Store(5, 1),))


def chain_kernel() -> Kernel:
    """Twelve elementwise instructions, one of them an exp: x -> a gated polynomial."""
    body = [Instr("load", F32, (), 0), Instr("load", F32, (), 1), Instr("scalar", F32, (), 0)]
    for op, a, b in (
        ("multiply", 0, 2), ("add", 3, 1), ("multiply", 4, 0), ("subtract", 5, 1), ("multiply", 6, 6), ("add", 7, 0),
        ("multiply", 8, 2), ("negative", 9, -1), ("exp", 10, -1), ("add", 11, 2), ("divide", 8, 12), ("maximum", 13, 1),
    ):  # fmt: skip
        body.append(Instr(op, F32, (a,) if b < 0 else (a, b)))
    views = tuple(View(b, F32, (1,)) for b in range(3))
    return Kernel(1, 0, (F32,) * 3, views, (F32,), tuple(body), (Store(len(body) - 1, 2),))


def chain_numpy(x: Any, y: Any, s: Any, out: Any, t: Any) -> None:
    """Compute the same with NumPy, in place."""
    np.multiply(x, s, out=t)
    np.add(t, y, out=t)
    np.multiply(t, x, out=t)
    np.subtract(t, y, out=t)
    np.multiply(t, t, out=t)
    np.add(t, x, out=t)
    np.multiply(t, s, out=out)
    np.negative(out, out=out)
    np.exp(out, out=out)
    np.add(out, s, out=out)
    np.divide(t, out, out=out)
    np.maximum(out, y, out=out)


def softmax_cases(bench: Bench) -> Iterator[tuple[str, Side, Side]]:
    """Row softmax."""
    for r, c in ((8192, 2048), (4096, 1024)):
        x = np.random.default_rng(0).standard_normal((r, c)).astype(F32)

        def on_host(x: Any = x) -> None:
            e = np.exp(x - x.max(1, keepdims=True))
            e /= e.sum(1, keepdims=True)

        yield (
            f"softmax {r}x{c}",
            on_host,
            bench.launch(softmax_kernel(), [bench.put(x), bench.put(x)], (r, c, 0, c, 0, c)),
        )


def sum_cases(bench: Bench) -> Iterator[tuple[str, Side, Side]]:
    """Sums of everything, of rows and of columns."""
    x = np.random.default_rng(0).standard_normal((4096, 4096)).astype(F32)
    body = (Instr("load", F32, (), 0), Instr("reduce", F32, (0,), "sum"))
    handles = [bench.put(x), bench.put(x[0])]
    whole = Kernel(0, 1, (F32, F32), (View(0, F32, (1,)), View(1, F32, (0,))), (), body, (Store(1, 1),))
    yield "sum of 16 Mi", lambda: x.sum(), bench.launch(whole, handles, (x.size, 0, 0))
    of_rows = Kernel(1, 1, (F32, F32), (View(0, F32, (None, 1)), View(1, F32, (1, 0))), (), body, (Store(1, 1),))
    yield "sums of rows 4096x4096", lambda: x.sum(1), bench.launch(of_rows, handles, (4096, 4096, 0, 4096, 0))
    columns = Kernel(1, 1, (F32, F32), (View(0, F32, (1, None)), View(1, F32, (1, 0))), (), body, (Store(1, 1),))
    yield "sums of columns 4096x4096", lambda: x.sum(0), bench.launch(columns, handles, (4096, 4096, 0, 4096, 0))
    narrow = x.reshape(-1, 64)
    yield (
        "sums of columns 262144x64",
        lambda: narrow.sum(0),
        bench.launch(columns, handles, (64, len(narrow), 0, 64, 0)),
    )


def chain_cases(bench: Bench) -> Iterator[tuple[str, Side, Side]]:
    """Elementwise chains."""
    for n in (1 << 20, 1 << 24):
        x, y = (np.random.default_rng(s).standard_normal(n).astype(F32) for s in (0, 1))
        out, t = np.empty_like(x), np.empty_like(x)

        def on_host(x: Any = x, y: Any = y, out: Any = out, t: Any = t) -> None:
            with np.errstate(all="ignore"):
                chain_numpy(x, y, np.float32(0.5), out, t)

        handles = [bench.put(a) for a in (x, y, out)]
        yield f"chain of 12, {n >> 20} Mi", on_host, bench.launch(chain_kernel(), handles, (n, 0, 0, 0), (0.5,))


def copy_cases(bench: Bench) -> Iterator[tuple[str, Side, Side]]:
    """A pass over memory whose result goes past the cache (on CPU devices), beside one whose result does not."""
    n, fused = 1 << 24, bench.driver.fused
    body = (Instr("load", F32, (), 0), Instr("negative", F32, (0,)))
    kernel = Kernel(1, 0, (F32, F32), (View(0, F32, (1,)), View(1, F32, (1,))), (), body, (Store(1, 1),))
    handles = [bench.put(np.ones(n, F32)) for _ in range(2)]
    past = bench.launch(kernel, handles, (n, 0, 0))
    past()
    before, fused.dialect = fused.dialect, dataclasses.replace(fused.dialect, streamed=0)
    fused._prepared.clear()
    within = bench.launch(kernel, handles, (n, 0, 0))
    within()
    fused.dialect = before
    yield "copy of 64 MiB", within, past


def matmul_cases(bench: Bench) -> Iterator[tuple[str, Side, Side]]:
    """Matrix products, by both ways."""
    for n, way in ((1024, "host"), (1024, "own"), (256, "host"), (256, "own"), (64, "host"), (64, "own")):
        a = np.random.default_rng(0).standard_normal((n, n)).astype(F32)
        out = np.empty_like(a)
        refs = [Ref(bench.put(a), 0, (n, n), (n, 1), F32) for _ in range(3)]

        def on_device(refs: Any = refs, way: str = way) -> None:
            os.environ["POLYGRAD_OPENCL_GEMM"] = way
            bench.driver.op_matmul([refs[2]], refs[:2], {})
            bench.driver.synchronize()

        def on_host(a: Any = a, out: Any = out) -> None:
            np.matmul(a, a, out=out)

        yield f"matmul {n}^3 ({way})", on_host, on_device


def product_cases(bench: Bench) -> Iterator[tuple[str, Side, Side]]:
    """Products that a GPU's tiles must fit: large, small, long, thin, transposed, in batches; against cuBLAS."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    shapes = [(1, n, n, n) for n in (8192, 4096, 1024, 512)]
    shapes += [
        (1, 4095, 4095, 4095),
        (1, 768, 768, 32768),
        (1, 4096, 768, 768),
        (48, 1024, 1024, 64),
        (1, 1, 4096, 4096),
    ]
    for batch, m, n, k in shapes:
        for turned in (False, True):
            a = torch.randn(batch, *((k, m) if turned else (m, k)), device="cuda")
            b = torch.randn(batch, *((n, k) if turned else (k, n)), device="cuda")
            pair = (a.mT, b.mT) if turned else (a, b)
            refs = [
                Ref(bench.put(x.cpu().numpy()), 0, tuple(view.shape), tuple(view.stride()), F32)
                for x, view in zip((a, b), pair, strict=True)
            ]
            out = Ref(bench.driver.allocate(4 * batch * m * n), 0, (batch, m, n), (m * n, n, 1), F32)

            def on_device(out: Ref = out, refs: Any = refs) -> None:
                bench.driver.op_matmul([out], refs, {})
                bench.driver.synchronize()

            def by_library(pair: Any = pair) -> None:
                torch.matmul(*pair)
                torch.cuda.synchronize()

            yield f"{batch}x[{m},{k}]x[{k},{n}]{' turned' * turned}", by_library, on_device
            for ref in (*refs, out):
                bench.driver.free(ref.handle)


def launch_cost(bench: Bench) -> None:
    """Print what a launch costs in Python, without waiting."""
    handles = [bench.put(np.zeros(64, F32)) for _ in range(3)]
    prepared = bench.driver.prepare_fused(chain_kernel())
    best = float("inf")
    for _ in range(20):
        start = time.perf_counter()
        for _ in range(200):
            prepared(handles, (64, 0, 0, 0), (0.5,))
        best = min(best, (time.perf_counter() - start) / 200)
        bench.driver.synchronize()
    print(f"launch of a prepared kernel: {best * 1e6:.1f} us")


def compare(name: str, host: Side, device: Side, repeat: int, peer: str = "numpy") -> None:
    """Print one line."""
    best = {peer: [float("inf")] * 2, "opencl": [float("inf")] * 2}
    host()
    device()
    for _ in range(repeat):
        for side, run in ((peer, host), ("opencl", device)):
            wall, cpu = time.perf_counter(), time.process_time()
            run()
            times = time.perf_counter() - wall, time.process_time() - cpu
            best[side] = [min(pair) for pair in zip(best[side], times, strict=True)]
    (a, a_cpu), (b, b_cpu) = best[peer], best["opencl"]
    walls = f"{peer} {a * 1e3:8.2f} ms  opencl {b * 1e3:8.2f} ms  {a / b:5.2f}x"
    print(f"{name:28} {walls}   CPU {a_cpu * 1e3:.2f} and {b_cpu * 1e3:.2f} ms")


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("only", nargs="*", help="softmax, sum, chain, copy, matmul, launch; default: all; or products")
    options = parser.parse_args()
    bench = Bench(options.device)
    print(bench.info.name, bench.info.version)
    kinds = {
        "softmax": softmax_cases,
        "sum": sum_cases,
        "chain": chain_cases,
        "copy": copy_cases,
        "matmul": matmul_cases,
    }
    for kind in options.only or [*kinds, "launch"]:
        if kind == "launch":
            launch_cost(bench)
            continue
        if kind == "products":
            for case in product_cases(bench):
                compare(*case, options.repeat, "cublas")
            continue
        for case in kinds[kind](bench):
            compare(*case, options.repeat, "cached" if kind == "copy" else "numpy")


if __name__ == "__main__":
    main()
