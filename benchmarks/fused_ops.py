"""The fused operations of a transformer, written from polygrad's primitives, against PyTorch and the memory floor.

Here: RMSNorm, SwiGLU, causal softmax and cross-entropy forward and backward, and an AdamW step, float32, random data,
one device. Not here: CPU workloads against many peers (`cpu_ops.py`), hand-made kernels (`gpu_kernels.py`).

    python benchmarks/fused_ops.py --device cuda:0 [--scale 1] [--compile] [--json out.json]

Times are medians over rounds of the wall time of one iteration, in a loop of several that ends with a synchronisation.
The floor is the fewest bytes moved (each input read once, each output written once, forward and backward apart) over
the bandwidth of a device copy measured in the same run. PyTorch runs the same maths op by op ("eager") on the same
device where it can.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import polygrad as pg

RNG = np.random.default_rng(0)
APART = [False]
COMPILE = [False]


def normal(*shape: int) -> Any:
    """Return realized float32 normal numbers on the default device."""
    return pg.asarray(RNG.standard_normal(shape, dtype=np.float32)).realize()


def rms_norm(x: Any, w: Any) -> Any:
    return x / pg.sqrt(pg.mean(x * x, axis=-1, keepdims=True) + 1e-5) * w


def swiglu(a: Any, b: Any) -> Any:
    return a / (1.0 + pg.exp(-a)) * b


def causal_softmax(s: Any) -> Any:
    n = s.shape[-1]
    row, col = pg.arange(n, dtype=pg.int32)[:, None], pg.arange(n, dtype=pg.int32)[None, :]
    masked = pg.where(col <= row, s, -pg.inf)
    e = pg.exp(masked - pg.max(masked, axis=-1, keepdims=True))
    return e / pg.sum(e, axis=-1, keepdims=True)


def cross_entropy(x: Any, labels: Any) -> Any:
    m = pg.max(x, axis=-1, keepdims=True)
    lse = pg.log(pg.sum(pg.exp(x - m), axis=-1)) + m[:, 0]
    return pg.mean(lse - x[pg.arange(x.shape[0]), labels])


def adamw(p: Any, g: Any, m: Any, v: Any) -> tuple[Any, Any, Any]:
    lr, b1, b2, eps, decay, c1, c2 = 1e-3, 0.9, 0.999, 1e-8, 0.01, 10.0, 1000.0
    m = b1 * m + (1 - b1) * g
    v = b2 * v + (1 - b2) * g * g
    return p * (1 - lr * decay) - lr * (m * c1) / (pg.sqrt(v * c2) + eps), m, v


def training(f: Callable[..., Any], *inputs: Any, seed: Any = None) -> Callable[[], Any]:
    """Return a forward and backward pass of *f*, realized together, or apart as a step that looks at its loss would."""
    leaves = [x for x in inputs if x.dtype == pg.float32]
    for x in leaves:
        x.requires_grad = True

    def run() -> Any:
        for x in leaves:
            x.grad = None
        y = f(*inputs)
        if APART[0]:
            pg.realize(y)
        y.backward(seed)
        pg.realize(y, [x.grad for x in leaves])
        return y

    return run


def measure(run: Callable[[], Any], loop: int, rounds: int = 7) -> tuple[float, Any]:
    """Return the median seconds of one iteration, and the launch counts of one."""
    run = pg.compile(run) if COMPILE[0] else run
    run()
    run()
    run()
    pg.synchronize()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(loop):
            run()
        pg.synchronize()
        times.append((time.perf_counter() - start) / loop)
    with pg.launch_counter() as c:
        run()
    return statistics.median(times), c


def bandwidth(elements: int) -> float:
    """Return bytes a second of a copy on the device, read and written."""
    x = normal(elements)
    seconds, _ = measure(lambda: pg.realize(x + 0.0), 10)
    return 8.0 * elements / seconds


def torch_times(device: str, sizes: dict[str, Any], loop: int) -> dict[str, float]:
    """Return PyTorch's eager times of the same maths on the same device.

    Empty where PyTorch or the device is missing.
    """
    try:
        import torch
    except ImportError:
        return {}
    where = "cuda" if device.startswith("cuda") and torch.cuda.is_available() else "cpu"
    if where == "cpu" and not device.startswith("cpu"):
        return {}
    torch.backends.cuda.matmul.allow_tf32 = False

    def run(f: Callable[..., Any], *inputs: Any, seed: Any = None) -> float:
        def once() -> None:
            for x in inputs:
                x.grad = None
            f(*inputs).backward(seed)

        once()
        once()
        times = []
        for _ in range(7):
            if where == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(loop):
                once()
            if where == "cuda":
                torch.cuda.synchronize()
            times.append((time.perf_counter() - start) / loop)
        return statistics.median(times)

    def leaf(*shape: int) -> Any:
        return torch.randn(*shape, device=where, requires_grad=True)

    out = {}
    x, w, g = leaf(*sizes["norm"]), leaf(sizes["norm"][-1]), torch.randn(*sizes["norm"], device=where)
    out["rms_norm"] = run(lambda x, w: x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-5) * w, x, w, seed=g)
    out["swiglu"] = run(lambda a, b: a / (1 + torch.exp(-a)) * b, x, leaf(*sizes["norm"]), seed=g)
    del x, w, g
    s = leaf(*sizes["scores"])
    n = s.shape[-1]
    mask = torch.ones(n, n, dtype=torch.bool, device=where).tril()
    seed = torch.randn_like(s)
    out["causal_softmax"] = run(lambda s: torch.softmax(torch.where(mask, s, -torch.inf), -1), s, seed=seed)
    del s, seed
    logits = leaf(*sizes["logits"])
    labels = torch.randint(0, logits.shape[1], (logits.shape[0],), device=where)
    out["cross_entropy"] = run(lambda x: torch.nn.functional.cross_entropy(x, labels), logits)
    return out


def main() -> None:
    """Run the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu:0")
    parser.add_argument("--scale", type=int, default=1, help="divide the first axis of every shape by this")
    parser.add_argument("--loop", type=int, default=10)
    parser.add_argument("--apart", action="store_true", help="realize the forward pass before the backward pass")
    parser.add_argument("--compile", action="store_true", help="replay the iteration with pg.compile")
    parser.add_argument("--json")
    options = parser.parse_args()
    APART[0], COMPILE[0] = options.apart, options.compile
    pg.set_device(options.device)
    k = options.scale
    sizes = {
        "norm": (max(1, 8 // k), 1024, 4096),
        "scores": (8, max(1, 32 // k), 1024, 1024),
        "logits": (8192 // k, 32000),
    }
    copy = bandwidth((1 << 26) // k)
    print(f"{options.device}: a copy moves {copy / 1e9:.0f} GB/s")
    rows = {}

    def row(name: str, run: Callable[[], Any], nbytes: float) -> None:
        seconds, counts = measure(run, options.loop)
        rows[name] = {
            "ms": seconds * 1e3,
            "floor_ms": nbytes / copy * 1e3,
            "launches": counts.total,
            "builds": counts.builds,
        }

    size = 4.0 * np.prod(sizes["norm"])
    x, w, g = normal(*sizes["norm"]), normal(sizes["norm"][-1]), normal(*sizes["norm"])
    row("rms_norm", training(rms_norm, x, w, seed=g), 5 * size)
    row("swiglu", training(swiglu, x.detach(), normal(*sizes["norm"]), seed=g), 8 * size)
    del x, w, g
    size = 4.0 * np.prod(sizes["scores"])
    row("causal_softmax", training(causal_softmax, normal(*sizes["scores"]), seed=normal(*sizes["scores"])), 5 * size)
    size = 4.0 * np.prod(sizes["logits"])
    labels = pg.asarray(RNG.integers(0, sizes["logits"][1], sizes["logits"][0]))
    row("cross_entropy", training(cross_entropy, normal(*sizes["logits"]), labels), 3 * size)
    n = 4096 // k
    p, gradient, m, v = normal(n, 4096), normal(n, 4096), normal(n, 4096), pg.abs(normal(n, 4096)).realize()
    row("adamw", lambda: pg.realize(adamw(p, gradient, m, v)), 7 * 4.0 * n * 4096)
    peers = torch_times(options.device, sizes, options.loop)
    print(f"{'op':16}{'ms':>9}{'floor':>9}{'x floor':>9}{'torch ms':>10}{'ratio':>8}{'launches':>10}{'builds':>8}")
    for name, r in rows.items():
        torch_ms = peers.get(name, float("nan")) * 1e3
        r["torch_ms"] = torch_ms
        print(
            f"{name:16}{r['ms']:9.3f}{r['floor_ms']:9.3f}{r['ms'] / r['floor_ms']:9.2f}{torch_ms:10.3f}"
            f"{r['ms'] / torch_ms:8.2f}{r['launches']:10}{r['builds']:8}"
        )
    if options.json:
        with open(options.json, "w", encoding="utf-8") as out:
            json.dump({"device": options.device, "copy_GBps": copy / 1e9, "rows": rows}, out, indent=1)


if __name__ == "__main__":
    main()
