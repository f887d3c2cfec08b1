"""The fused kernels of a transformer's step and plain reductions, as IR: how near a GPU comes to its memory floor.

Here: inputs, a check of a slice against float64, timing.
Not here: the kernels (`gpu_cases.py`), the driver and the renderer, which are what is measured.

    python benchmarks/gpu_kernels.py                 check and time on cuda:0
    python benchmarks/gpu_kernels.py --only softmax  only cases whose name holds the word
    python benchmarks/gpu_kernels.py --more          other shapes, to find cliffs
    python benchmarks/gpu_kernels.py --text DIR      no device: write each kernel's CUDA text to DIR

The floor is the fewest bytes (each input read once, each output written once; for a causal mask only the unmasked
half is read) over 4.3 TB/s, what a copy moves on an H200. Inputs are random; outputs are filled with NaN before the
check.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from gpu_cases import Case, expected, groups, more

COPY_RATE = 4.3e12  # bytes per second, read and written
WAIT = """extern "C" __global__ void wait(long long nanoseconds) {
    unsigned long long now, start;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    do { asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); } while (now - start < nanoseconds);
}"""


class Device:
    """cuda:0 through polygrad's driver; CuPy makes the inputs and the clocks."""

    def __init__(self) -> None:
        import cupy

        from polygrad_cuda.driver import CudaDriver

        self.cupy = cupy
        self.driver = CudaDriver()
        self.info = self.driver.open(0, {})
        self.stream = self.driver.cupy_stream

    def random(self, name: str, shape: tuple[int, ...], dtype: str, classes: int) -> Any:
        """Return a random input; labels stay below *classes*, variances are not negative."""
        cupy = self.cupy
        if dtype == "int64":
            return cupy.random.randint(0, classes, shape).astype(cupy.int64)
        if dtype == "int32":
            return cupy.zeros(shape, cupy.int32)
        if dtype == "bfloat16":
            return cupy.random.standard_normal(shape, dtype=cupy.float32).astype(ml_dtypes.bfloat16)
        made = cupy.random.standard_normal(shape, dtype=cupy.float32)
        return cupy.abs(made) if name == "v" else made

    def milliseconds(self, launches: Callable[[], None], repeat: int = 20) -> float:
        """Return the median time of *launches* between two events.

        The device is kept busy until all is queued: else the first event would pass while the host still prepares
        the launch.
        """
        cuda = self.cupy.cuda
        for _ in range(3):
            launches()
        times = []
        for _ in range(repeat):
            start, stop = cuda.Event(), cuda.Event()
            self.driver.launch(WAIT, "wait", (1, 1, 1), (1, 1, 1), ("int64",), (100_000,))
            start.record(self.stream)
            launches()
            stop.record(self.stream)
            stop.synchronize()
            times.append(cuda.get_elapsed_time(start, stop))
        return statistics.median(times)


def run_group(device: Device, label: str, cases: list[Case]) -> dict[str, Any]:
    """Check and time the cases of one row; return what a table needs."""
    cupy = device.cupy
    arrays: dict[str, Any] = {}
    outcome: dict[str, Any] = {"group": label, "cases": []}
    launches = []
    for case in cases:
        classes = case.shapes["x"][-1 if "cross" in case.name else 0] if "x" in case.shapes else 1
        names = case.build.names
        stored = {names[case.kernel.views[s.view].buffer] for s in case.kernel.stores}
        loaded = {names[case.kernel.views[i.attr].buffer] for i in case.kernel.body if i.op == "load"}
        for name, dtype in zip(names, case.kernel.buffers, strict=True):
            if name not in arrays:
                arrays[name] = device.random(name, case.shapes[name], dtype, classes)
            if name in stored - loaded:
                arrays[name].fill(float("nan"))
        before = {n: cupy.asnumpy(arrays[n][: 1 << 16]) for n in stored & loaded}

        def get(name: str, part: slice, before: dict[str, Any] = before) -> Any:
            source = before[name] if name in before else cupy.asnumpy(arrays[name][part])
            return source[part].astype(np.float64) if name in before else source.astype(np.float64)

        started = time.perf_counter()
        prepared = device.driver.prepare_fused(case.kernel)
        handles = tuple(int(arrays[n].data.ptr) for n in names)
        ints, scalars = case.arguments, case.scalars
        cupy.cuda.Device().synchronize()
        prepared(handles, ints, scalars)
        device.driver.synchronize()
        built = time.perf_counter() - started
        worst = 0.0
        wanted = expected(case.name, get) if case.reference is None else case.reference(cupy, arrays)
        for name, want in wanted.items():
            got = cupy.asnumpy(arrays[name][: want.shape[0]]).astype(np.float64)
            want = cupy.asnumpy(want)
            # A sum of n numbers of size 1 has size sqrt(n), but may come out near 0: the size counts.
            scale = case.extents[-1] ** 0.5 if "sum" in case.name or "dgamma" in case.name else 1.0
            error = np.abs(got.reshape(want.shape) - want) / (scale + np.abs(want))
            worst = max(worst, float("inf") if np.isnan(got).any() else float(error.max()))
        for name in stored:
            if bool(cupy.isnan(arrays[name].astype(cupy.float32)).any()):
                worst = float("inf")
        if "status" in arrays and int(arrays["status"][0]) != 0:
            worst = float("inf")

        def launch(prepared: Any = prepared, handles: Any = handles, ints: Any = ints, scalars: Any = scalars) -> None:
            prepared(handles, ints, scalars)

        taken = device.milliseconds(launch)
        outcome["cases"].append(
            {"name": case.name, "ms": taken, "GB/s": case.nbytes / taken / 1e6, "error": worst, "build_s": built,
             "how": str(getattr(prepared, "described", lambda _: "")(ints))}
        )  # fmt: skip
        launches.append(launch)
    outcome["ms"] = device.milliseconds(lambda: [launch() for launch in launches])
    outcome["floor_ms"] = sum(case.nbytes for case in cases) / COPY_RATE * 1e3
    outcome["ratio"] = outcome["ms"] / outcome["floor_ms"]
    arrays.clear()
    cupy.get_default_memory_pool().free_all_blocks()
    return outcome


def report(outcome: dict[str, Any]) -> str:
    """Return the lines of one row."""
    lines = [
        f"{outcome['group']:<28}{outcome['ms']:9.4f} ms  floor {outcome['floor_ms']:.4f}  ratio {outcome['ratio']:.2f}"
    ]
    lines += [
        f"    {case['name']:<20}{case['ms']:9.4f} ms {case['GB/s']:7.0f} GB/s  error {case['error']:.1e}  "
        f"build {case['build_s']:.2f} s  {case['how']}"
        for case in outcome["cases"]
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cases; return 1 if one is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="only groups whose name holds this")
    parser.add_argument("--text", type=Path, help="write the CUDA texts here and use no device")
    parser.add_argument("--more", action="store_true", help="other shapes instead")
    parser.add_argument("--json", type=Path, help="write all figures here")
    options = parser.parse_args(arguments)
    chosen = {label: cases for label, cases in (more() if options.more else groups()).items() if options.only in label}
    if options.text:
        write_texts(chosen, options.text)
        return 0
    device = Device()
    outcomes = []
    for label, cases in chosen.items():
        outcomes.append(run_group(device, label, cases))
        print(report(outcomes[-1]), flush=True)
    if options.json:
        options.json.write_text(json.dumps(outcomes, indent=1))
    return int(
        any(
            case["error"] > (1e-2 if "bfloat" in case["name"] else 1e-4)
            for outcome in outcomes
            for case in outcome["cases"]
        )
    )


def write_texts(chosen: dict[str, list[Case]], folder: Path) -> None:
    """Write the CUDA text of every case to *folder*."""
    from polygrad.driver.render.gpu_style import GpuLimits
    from polygrad_cuda.fused import texts

    folder.mkdir(parents=True, exist_ok=True)
    for cases in chosen.values():
        for case in cases:
            for number, text in enumerate(texts(case.kernel, case.arguments, GpuLimits(132, 1024, 48 * 1024))):
                (folder / f"{case.name.replace(' ', '_').replace('-', '_')}_{number}.cu").write_text(text)


if __name__ == "__main__":
    sys.exit(main())
