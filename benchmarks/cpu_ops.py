"""polygrad on CPU devices against PyTorch eager, side by side: chains, norms, softmax, matrix products, overhead.

Here: workloads written from primitives for each peer, every peer in a process of its own, interleaved rounds, medians
and ratios.
Not here: GPU workloads (`fused_ops.py`), single kernels (`cpu_kernels.py`).

    python benchmarks/cpu_ops.py [--work softmax,rms_norm] [--peers cpu:0,opencl:0] [--rounds 7] [--json out.json]

`torch` is PyTorch as it comes; `torch.pool` is told by GLIBC_TUNABLES not to return memory, which avoids the page
faults of fresh temporaries and is the fairer peer. Each peer computes forward and backward and gets the same data.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

NORM = (8, 1024, 768)
WORK: dict[str, tuple[tuple[int, ...], ...]] = {
    "add_1": ((1,), (1,)),
    "ew12_1m": ((1 << 20,),),
    "ew12_16m": ((1 << 24,),),
    "softmax": ((8192, 2048),),
    "rms_norm": (NORM, (768,)),
    "layer_norm": (NORM, (768,), (768,)),
    "matmul_1024": ((1024, 1024), (1024, 1024)),
}
POOL = "glibc.malloc.mmap_threshold=17179869184:glibc.malloc.trim_threshold=17179869184"


def maths(name: str, m: Any, mean: Callable[[Any], Any], top: Callable[[Any], Any], total: Callable[[Any], Any]) -> Any:
    """Return the workload as a function, over a namespace *m* and row reductions that keep the axis."""

    def ew12(x: Any) -> Any:
        u = x * x * x * 0.044715 + x
        y = (m.tanh(u * 0.79788456) + 1) * x * 0.5
        return y + m.exp(y * -0.1)

    def softmax(x: Any) -> Any:
        e = m.exp(x - top(x))
        return e / total(e)

    def layer_norm(x: Any, w: Any, b: Any) -> Any:
        d = x - mean(x)
        return d / m.sqrt(mean(d * d) + 1e-5) * w + b

    return {
        "add_1": lambda a, b: a + b,
        "ew12_1m": ew12,
        "ew12_16m": ew12,
        "softmax": softmax,
        "rms_norm": lambda x, w: x / m.sqrt(mean(x * x) + 1e-5) * w,
        "layer_norm": layer_norm,
        "matmul_1024": lambda a, b: a @ b,
    }[name]


def data(name: str) -> tuple[list[Any], Any]:
    """Return the inputs and the cotangent."""
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(shape, dtype=np.float32) for shape in WORK[name]]
    shape = (inputs[0] @ inputs[1]).shape if name.startswith("matmul") else inputs[0].shape
    return inputs, rng.standard_normal(shape, dtype=np.float32)


def polygrad_step(name: str, device: str) -> Callable[[], Any]:
    """Return one forward and backward pass of polygrad."""
    import polygrad as pg

    pg.set_device(device)
    inputs, seed = data(name)
    leaves = [pg.asarray(v).requires_grad_() for v in inputs]
    cotangent = pg.asarray(seed)
    f = maths(
        name,
        pg,
        lambda x: pg.mean(x, axis=-1, keepdims=True),
        lambda x: pg.max(x, axis=-1, keepdims=True),
        lambda x: pg.sum(x, axis=-1, keepdims=True),
    )

    def step() -> Any:
        for x in leaves:
            x.grad = None
        y = f(*leaves)
        y.backward(cotangent)
        pg.realize(y, [x.grad for x in leaves])
        pg.synchronize()
        return y.detach()

    return step


def torch_step(name: str) -> Callable[[], Any]:
    """Return one forward and backward pass of PyTorch, eager, on two threads."""
    import torch

    torch.set_num_threads(2)
    inputs, seed = data(name)
    leaves = [torch.tensor(v, requires_grad=True) for v in inputs]
    cotangent = torch.tensor(seed)
    f = maths(
        name,
        torch,
        lambda x: x.mean(-1, keepdim=True),
        lambda x: x.max(-1, keepdim=True).values,
        lambda x: x.sum(-1, keepdim=True),
    )
    if name == "softmax":
        f = lambda x: torch.softmax(x, -1)  # noqa: E731  PyTorch's own, which is what its users call

    def step() -> Any:
        for x in leaves:
            x.grad = None
        y = f(*leaves)
        y.backward(cotangent)
        return y.detach()

    return step


def worker(peer: str) -> None:
    """Answer lines ``name loops`` with the seconds of one step and a digest of the result."""
    steps: dict[str, Callable[[], Any]] = {}
    for line in sys.stdin:
        name, loops = line.split()
        if name not in steps:
            steps.clear()
            steps[name] = torch_step(name) if peer.startswith("torch") else polygrad_step(name, peer)
            steps[name]()
            steps[name]()
        start = time.perf_counter()
        for _ in range(int(loops)):
            out = steps[name]()
        seconds = (time.perf_counter() - start) / int(loops)
        print(json.dumps([seconds, float(np.abs(np.asarray(out)).mean())]), flush=True)


def spawn(peer: str) -> Any:
    """Start the process of a peer."""
    environment = dict(os.environ)
    environment.pop("OPENBLAS_CORETYPE", None)
    if peer == "torch.pool":
        environment["GLIBC_TUNABLES"] = POOL
    command = [sys.executable, __file__, "--worker", peer]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def ask(process: Any, name: str, loops: int) -> tuple[float, float]:
    """Return seconds and digest of one answer."""
    process.stdin.write(f"{name} {loops}\n")
    process.stdin.flush()
    seconds, digest = json.loads(process.stdout.readline())
    return seconds, digest


def recording() -> dict[str, float]:
    """Return the microseconds of recording one op, the best of several loops."""
    import polygrad as pg

    a, b = pg.asarray([1.0], dtype=pg.float32).realize(), pg.asarray([2.0], dtype=pg.float32).realize()
    out = {}
    for name, f in {"a + b": lambda: a + b, "a * 2.0": lambda: a * 2.0, "exp(a)": lambda: pg.exp(a)}.items():
        best = float("inf")
        for _ in range(9):
            start = time.perf_counter()
            for _ in range(5000):
                f()
            best = min(best, (time.perf_counter() - start) / 5000)
        out[name] = best * 1e6
    return out


def main() -> None:
    """Run the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", default=",".join(WORK))
    parser.add_argument("--peers", default="cpu:0")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json")
    parser.add_argument("--worker")
    options = parser.parse_args()
    if options.worker:
        worker(options.worker)
        return
    peers = [*options.peers.split(","), "torch", "torch.pool"]
    print("load", os.getloadavg(), "recording, us an op:", {k: round(v, 2) for k, v in recording().items()})
    processes = {p: spawn(p) for p in peers}
    rows: dict[str, Any] = {}
    print(f"{'forward + backward':20}" + "".join(f"{p + ' ms':>14}" for p in peers) + f"{'x torch':>9}{'x pool':>9}")
    for name in options.work.split(","):
        loops = 500 if name == "add_1" else 1
        times: dict[str, list[float]] = {p: [] for p in peers}
        digests = {}
        for _ in range(options.rounds):
            for p in peers:
                seconds, digests[p] = ask(processes[p], name, loops)
                times[p].append(seconds)
        medians = {p: statistics.median(t) for p, t in times.items()}
        reference = digests["torch"]
        wrong = [p for p in peers if abs(digests[p] - reference) > 2e-3 * abs(reference)]
        rows[name] = {p: t * 1e3 for p, t in medians.items()}
        first = medians[peers[0]]
        times_of_all = "".join(f"{medians[p] * 1e3:14.3f}" for p in peers)
        ratios = f"{first / medians['torch']:9.2f}{first / medians['torch.pool']:9.2f}"
        print(f"{name:20}{times_of_all}{ratios}" + (f"  DIFFERS: {wrong}" if wrong else ""))
    for process in processes.values():
        process.stdin.close()
    if options.json:
        with open(options.json, "w", encoding="utf-8") as out:
            json.dump(rows, out, indent=1)


if __name__ == "__main__":
    main()
