"""Time kernels of the cpu driver, made by hand, against PyTorch doing the same.

Here: kernels as the schedule should make them for a fused chain, softmax, the norms, AdamW and plain sums, with their
medians.
Not here: anything that goes through polygrad's arrays.

    OMP_NUM_THREADS=2 python benchmarks/cpu_kernels.py [--rounds 9] [--only softmax,adamw] [--peers]

Every result is checked before it is timed. Rounds of the driver and of PyTorch alternate, so that both see the same
machine. PyTorch is timed as it comes: it takes fresh memory for each result, the driver reuses its own, as the core's
pool would.
"""

import argparse
import functools
import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from polygrad.driver import Instr, Kernel, Store, View
from polygrad_cpu import plugin

Array = np.ndarray[Any, Any]
F = "float32"


class Body:
    """A kernel in the making: call it with an op and operands, get a position."""

    def __init__(self) -> None:
        self.instrs: list[Instr] = []

    def __call__(self, op: str, *args: int, attr: Any = None, dtype: str = F) -> int:
        self.instrs.append(Instr(op, dtype, args, attr))
        return len(self.instrs) - 1

    def const(self, value: float) -> int:
        return self("const", attr=value)


class Case(NamedTuple):
    """A kernel, its launch, and what it should give."""

    name: str
    kernel: Kernel
    ints: tuple[int, ...]
    arrays: tuple[Array, ...]  # one a buffer; outputs are zeros
    outputs: tuple[int, ...]
    expected: Callable[[], Sequence[Array]]
    torch: Callable[[Any], Callable[[], Any]]


def kernel_of(parallel: int, reduced: int, views: Sequence[View], body: Body, stores: Sequence[Store]) -> Kernel:
    """Return the kernel; every buffer is float32."""
    count = 1 + max(v.buffer for v in views)
    return Kernel(parallel, reduced, (F,) * count, tuple(views), (), tuple(body.instrs), tuple(stores))


def data(*shape: int, seed: int = 0) -> Array:
    """Return normal numbers."""
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def ew12(n: int) -> Case:
    """Return twelve instructions, two of them tanh and exp."""
    body = Body()
    x = body("load", attr=0)
    cube = body("multiply", body("multiply", x, x), x)
    u = body("add", body("multiply", cube, body.const(0.044715)), x)
    t = body("tanh", body("multiply", u, body.const(0.79788456)))
    y = body("multiply", body("multiply", body("add", t, body.const(1.0)), x), body.const(0.5))
    z = body("add", y, body("exp", body("multiply", y, body.const(-0.1))))
    views = [View(0, F, (1,)), View(1, F, (1,))]
    a = data(n)

    def expected() -> Sequence[Array]:
        w = a.astype(np.float64)
        v = (np.tanh((w * w * w * 0.044715 + w) * 0.79788456) + 1) * w * 0.5
        return [v + np.exp(v * -0.1)]

    def torch_call(torch: Any) -> Callable[[], Any]:
        w = torch.from_numpy(a)

        def call() -> Any:
            v = (torch.tanh((w * w * w * 0.044715 + w) * 0.79788456) + 1) * w * 0.5
            return v + torch.exp(v * -0.1)

        return call

    return Case(
        f"ew12 {n >> 20}M",
        kernel_of(1, 0, views, body, [Store(z, 1)]),
        (n, 0, 0),
        (a, np.zeros_like(a)),
        (1,),
        expected,
        torch_call,
    )


def softmax(n: int = 8192, m: int = 2048) -> Case:
    """Return a softmax over rows."""
    body = Body()
    x = body("load", attr=0)
    e = body("exp", body("subtract", x, body("reduce", x, attr="max")))
    y = body("divide", e, body("reduce", e, attr="sum"))
    views = [View(0, F, (None, 1)), View(1, F, (None, 1))]
    a = data(n, m)

    def expected() -> Sequence[Array]:
        w = np.exp(a.astype(np.float64) - a.max(1, keepdims=True))
        return [w / w.sum(1, keepdims=True)]

    def torch_call(torch: Any) -> Callable[[], Any]:
        w = torch.from_numpy(a)

        def call() -> Any:
            exp = torch.exp(w - torch.amax(w, 1, keepdim=True))
            return exp / exp.sum(1, keepdim=True)

        return call

    ints = (n, m, 0, m, 0, m)
    return Case(
        f"softmax {n}x{m}",
        kernel_of(1, 1, views, body, [Store(y, 1)]),
        ints,
        (a, np.zeros_like(a)),
        (1,),
        expected,
        torch_call,
    )


def layer_norm(n: int = 8192, m: int = 768) -> Case:
    """Return mean, variance, scale and shift; rows."""
    body = Body()
    x = body("load", attr=0)
    count = body.const(float(m))
    d = body("subtract", x, body("divide", body("reduce", x, attr="sum"), count))
    variance = body("divide", body("reduce", body("multiply", d, d), attr="sum"), count)
    scale = body("divide", body.const(1.0), body("sqrt", body("add", variance, body.const(1e-5))))
    y = body("add", body("multiply", body("multiply", d, scale), body("load", attr=1)), body("load", attr=2))
    views = [View(0, F, (None, 1)), View(1, F, (0, 1)), View(2, F, (0, 1)), View(3, F, (None, 1))]
    a, g, b = data(n, m), data(m, seed=1), data(m, seed=2)

    def expected() -> Sequence[Array]:
        w = a.astype(np.float64)
        w = w - w.mean(1, keepdims=True)
        return [w / np.sqrt((w * w).mean(1, keepdims=True) + 1e-5) * g + b]

    def torch_call(torch: Any) -> Callable[[], Any]:
        w, gain, bias = (torch.from_numpy(v) for v in (a, g, b))

        def call() -> Any:
            centred = w - w.mean(1, keepdim=True)
            return centred * torch.rsqrt((centred * centred).mean(1, keepdim=True) + 1e-5) * gain + bias

        return call

    ints = (n, m, 0, m, 0, 0, 0, m)
    return Case(
        f"layer norm {n}x{m}",
        kernel_of(1, 1, views, body, [Store(y, 3)]),
        ints,
        (a, g, b, np.zeros_like(a)),
        (3,),
        expected,
        torch_call,
    )


def rms_norm_backward(n: int = 8192, m: int = 768, parts: int = 8) -> Case:
    """Return the gradient of an RMSNorm: dx, and dgamma as partial sums."""
    body = Body()
    x, g, dy = (body("load", attr=k) for k in range(3))
    count = body.const(float(m))
    mean = body("divide", body("reduce", body("multiply", x, x), attr="sum"), count)
    r = body("divide", body.const(1.0), body("sqrt", body("add", mean, body.const(1e-5))))
    gdy = body("multiply", g, dy)
    dot = body("divide", body("reduce", body("multiply", gdy, x), attr="sum"), count)
    xr = body("multiply", x, r)
    dx = body("subtract", body("multiply", gdy, r), body("multiply", xr, body("multiply", body("multiply", r, r), dot)))
    dgamma = body("multiply", dy, xr)
    views = [
        View(0, F, (None, 1)), View(1, F, (0, 1)), View(2, F, (None, 1)), View(3, F, (None, 1)),
        View(4, F, (0, 1), partial=True),
    ]  # fmt: skip
    a, w, d = data(n, m), data(m, seed=1), data(n, m, seed=2)

    def expected() -> Sequence[Array]:
        x64, d64 = a.astype(np.float64), d.astype(np.float64)
        s = 1 / np.sqrt((x64 * x64).mean(1, keepdims=True) + 1e-5)
        gd = d64 * w
        rows = d64 * x64 * s
        return [gd * s - x64 * s**3 * (gd * x64).mean(1, keepdims=True), rows.reshape(parts, -1, m).sum(1)]

    def torch_call(torch: Any) -> Callable[[], Any]:
        tx, tw, td = (torch.from_numpy(v) for v in (a, w, d))

        def call() -> Any:
            s = torch.rsqrt((tx * tx).mean(1, keepdim=True) + 1e-5)
            gd, xs = td * tw, tx * s
            return gd * s - xs * (s * s * (gd * tx).mean(1, keepdim=True)), (td * xs).sum(0)

        return call

    ints = (n, m, 0, m, 0, 0, m, 0, m, 0, parts, m)
    arrays = (a, w, d, np.zeros_like(a), np.zeros((parts, m), np.float32))
    return Case(
        f"RMSNorm backward {n}x{m}",
        kernel_of(1, 1, views, body, [Store(dx, 3), Store(dgamma, 4)]),
        ints,
        arrays,
        (3, 4),
        expected,
        torch_call,
    )


def adamw(n: int) -> Case:
    """Return one AdamW step, in place: parameters, gradients, two moments."""
    body = Body()
    p, g, m, v = (body("load", attr=k) for k in range(4))
    rate, b1, b2, eps, decay = 1e-3, 0.9, 0.999, 1e-8, 0.01
    m2 = body("add", body("multiply", m, body.const(b1)), body("multiply", g, body.const(1 - b1)))
    v2 = body("add", body("multiply", v, body.const(b2)), body("multiply", body("multiply", g, g), body.const(1 - b2)))
    root = body("add", body("multiply", body("sqrt", v2), body.const(1 / math.sqrt(1 - b2))), body.const(eps))
    step = body("multiply", body("divide", m2, root), body.const(rate / (1 - b1)))
    p2 = body("subtract", body("multiply", p, body.const(1 - rate * decay)), step)
    views = [View(k, F, (1,)) for k in range(4)]
    arrays = (*(data(n, seed=k) for k in range(3)), abs(data(n, seed=3)))

    def expected() -> Sequence[Array]:
        p0, g0, m0, v0 = (a.astype(np.float64) for a in arrays)
        m1, v1 = m0 * b1 + g0 * (1 - b1), v0 * b2 + g0 * g0 * (1 - b2)
        return [p0 * (1 - rate * decay) - m1 / (np.sqrt(v1) / math.sqrt(1 - b2) + eps) * (rate / (1 - b1)), m1, v1]

    def torch_call(torch: Any) -> Callable[[], Any]:
        parameter = torch.nn.Parameter(torch.from_numpy(arrays[0].copy()))
        parameter.grad = torch.from_numpy(arrays[1].copy())
        return torch.optim.AdamW([parameter], lr=rate).step  # type: ignore[no-any-return]

    stores = [Store(p2, 0), Store(m2, 2), Store(v2, 3)]
    return Case(
        f"AdamW {n >> 20}M",
        kernel_of(1, 0, views, body, stores),
        (n, 0, 0, 0, 0),
        arrays,
        (0, 2, 3),
        expected,
        torch_call,
    )


def sums(n: int) -> Case:
    """Return the sum of everything."""
    body = Body()
    total = body("reduce", body("load", attr=0), attr="sum")
    a = data(n)
    return Case(
        f"sum {n >> 20}M",
        kernel_of(0, 1, [View(0, F, (1,)), View(1, F, (0,))], body, [Store(total, 1)]),
        (n, 0, 0),
        (a, np.zeros(1, np.float32)),
        (1,),
        lambda: [a.sum(dtype=np.float64)[None]],
        lambda torch: torch.from_numpy(a).sum,
    )


def column_sums(n: int = 8192, m: int = 768) -> Case:
    """Return the sum over rows: the parallel axis is along memory."""
    body = Body()
    total = body("reduce", body("load", attr=0), attr="sum")
    a = data(n, m)
    return Case(
        f"column sum {n}x{m}",
        kernel_of(1, 1, [View(0, F, (1, None)), View(1, F, (1, 0))], body, [Store(total, 1)]),
        (m, n, 0, m, 0),
        (a, np.zeros(m, np.float32)),
        (1,),
        lambda: [a.sum(0, dtype=np.float64)],
        lambda torch: functools.partial(torch.from_numpy(a).sum, 0),
    )


CASES: dict[str, Callable[[], Case]] = {
    "ew12_1m": lambda: ew12(1 << 20),
    "ew12_4m": lambda: ew12(1 << 22),
    "ew12_16m": lambda: ew12(1 << 24),
    "softmax": softmax,
    "layernorm": layer_norm,
    "rmsnorm_bwd": rms_norm_backward,
    "adamw": lambda: adamw(1 << 24),
    "sum": lambda: sums(1 << 24),
    "colsum": column_sums,
}


def main() -> None:
    """Print one line a case: medians in milliseconds, and the ratio to PyTorch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", default=",".join(CASES))
    parser.add_argument("--peers", action="store_true", help="time PyTorch too")
    options = parser.parse_args()
    torch: Any = None
    if options.peers:
        import torch  # type: ignore[no-redef]
    device = plugin.polygrad_open("cpu", 0, {})
    print("threads", device.extra["threads"], "block", device.extra["block"])
    for name in options.only.split(","):
        print(measure(device, CASES[name](), torch, options.rounds))


def measure(device: Any, case: Case, torch: Any, rounds: int) -> str:
    """Check *case*, then time it."""
    handles = []
    for array in case.arrays:
        handle = plugin.polygrad_allocate(device, array.nbytes)
        handle[...] = array.reshape(-1).view(np.uint8)
        handles.append(handle)
    expected = case.expected()
    launch = plugin.polygrad_prepare_fused(device, case.kernel)
    launch(handles, case.ints, ())
    for output, want in zip(case.outputs, expected, strict=True):
        got = handles[output].view(np.float32).reshape(want.shape)
        error = float(np.abs(got - want).max() / (np.abs(want).max() + 1e-30))
        if error > 1e-5:
            message = f"{case.name}: output {output} is off by {error:.1e} of its largest value"
            raise AssertionError(message)
    peer = case.torch(torch) if torch else None
    mine: list[float] = []
    theirs: list[float] = []
    for _ in range(rounds):
        mine.append(clock(lambda: launch(handles, case.ints, ())))
        if peer:
            theirs.append(clock(peer))
    line = f"{case.name:28s} {statistics.median(mine):8.2f} ms (best {min(mine):7.2f})"
    if peer:
        line += f"   torch {statistics.median(theirs):8.2f} ms (best {min(theirs):7.2f})"
        line += f"   ratio {statistics.median(mine) / statistics.median(theirs):5.2f}"
    return line


def clock(call: Callable[[], Any]) -> float:
    """Return the milliseconds of one call."""
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e3


if __name__ == "__main__":
    main()
