"""The kernels of `gpu_kernels.py`, written as IR, with their launch arguments and the results they should give.

Here: the kernels of a transformer's step, plain reductions, other shapes. Not here: devices, timing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from polygrad.driver.ir import Instr, Kernel, Store, View

PARTS = 528  # of dgamma: four for each multiprocessor of an H200
F = "float32"


class Build:
    """Writes one kernel instruction by instruction; every value is a position."""

    def __init__(self, parallel: int, reduced: int) -> None:
        self.parallel, self.reduced = parallel, reduced
        self.buffers: list[str] = []
        self.names: list[str] = []
        self.views: list[View] = []
        self.body: list[Instr] = []
        self.stores: list[Store] = []
        self.scalars: list[str] = []
        self.status = -1

    def buffer(self, name: str, dtype: str) -> int:
        """Return the number of the buffer called *name*."""
        if name not in self.names:
            self.names.append(name)
            self.buffers.append(dtype)
        return self.names.index(name)

    def op(self, op: str, *args: int, dtype: str = F, attr: Any = None, guard: int = -1) -> int:
        """Append an instruction."""
        self.body.append(Instr(op, dtype, args, attr, guard))
        return len(self.body) - 1

    def load(self, name: str, strides: Sequence[int | None], *gathers: int, dtype: str = F, guard: int = -1) -> int:
        """Append a load through a view of its own."""
        self.views.append(View(self.buffer(name, dtype), dtype, tuple(strides), gathers=len(gathers)))
        return self.op("load", *gathers, dtype=dtype, attr=len(self.views) - 1, guard=guard)

    def store(self, value: int, name: str, strides: Sequence[int | None], *, partial: bool = False) -> None:
        """Append a store through a view of its own."""
        dtype = self.body[value].dtype
        self.views.append(View(self.buffer(name, dtype), dtype, tuple(strides), partial=partial))
        self.stores.append(Store(value, len(self.views) - 1))

    def const(self, value: float, dtype: str = F) -> int:
        """Append a literal."""
        return self.op("const", dtype=dtype, attr=value)

    def scalar(self, dtype: str = F) -> int:
        """Append a launch scalar."""
        self.scalars.append(dtype)
        return self.op("scalar", dtype=dtype, attr=len(self.scalars) - 1)

    def reduce(self, value: int, how: str) -> int:
        """Append a reduction."""
        return self.op("reduce", value, attr=how, dtype=self.body[value].dtype)

    def kernel(self) -> Kernel:
        """Return what was written."""
        return Kernel(
            self.parallel, self.reduced, tuple(self.buffers), tuple(self.views), tuple(self.scalars), tuple(self.body),
            tuple(self.stores), self.status,
        )  # fmt: skip


@dataclass
class Case:
    """One launch: a kernel, its launch arguments and the shapes of its buffers."""

    name: str
    build: Build
    extents: tuple[int, ...]
    ints: dict[str, int]
    shapes: dict[str, tuple[int, ...]]
    scalars: tuple[float, ...] = ()
    nbytes: int = 0
    reference: Callable[[Any, dict[str, Any]], dict[str, Any]] | None = None  # (cupy, inputs) to float64 outputs
    kernel: Kernel = field(init=False)

    def __post_init__(self) -> None:
        self.kernel = self.build.kernel()

    @property
    def arguments(self) -> tuple[int, ...]:
        """The launch ints in order."""
        given = {f"n{k}": n for k, n in enumerate(self.extents)} | self.ints
        return tuple(given.get(name, 0) for name in self.kernel.int_names)


def rows(names: Sequence[str], build: Build, stride: int) -> dict[str, int]:
    """Return a row stride for every view whose buffer is among *names* and whose first stride is a launch argument."""
    return {
        f"v{v}.s0": stride
        for v, view in enumerate(build.views)
        if build.names[view.buffer] in names and view.strides and view.strides[0] is None
    }


# ---- the kernels ------------------------------------------------------------------------------------


def inverse_norm(b: Build, x: int, n: int) -> int:
    """Append 1 / sqrt(mean(x * x) + eps)."""
    mean = b.op("divide", b.reduce(b.op("multiply", x, x), "sum"), b.const(n))
    return b.op("divide", b.const(1.0), b.op("sqrt", b.op("add", mean, b.const(1e-5))))


def rmsnorm(n: int, m: int) -> list[Case]:
    """Forward; backward with partial sums of dgamma; their sum."""
    f = Build(1, 1)
    x, g = f.load("x", (None, 1)), f.load("g", (0, 1))
    f.store(f.op("multiply", f.op("multiply", x, inverse_norm(f, x, m)), g), "y", (None, 1))
    b = Build(1, 1)
    x, g, dy = b.load("x", (None, 1)), b.load("g", (0, 1)), b.load("dy", (None, 1))
    r = inverse_norm(b, x, m)
    gd = b.op("multiply", g, dy)
    mean = b.op("divide", b.reduce(b.op("multiply", gd, x), "sum"), b.const(m))
    cube = b.op("multiply", b.op("multiply", r, r), r)
    b.store(
        b.op("subtract", b.op("multiply", gd, r), b.op("multiply", x, b.op("multiply", cube, mean))), "dx", (None, 1)
    )
    b.store(b.op("multiply", b.op("multiply", dy, x), r), "parts", (0, 1), partial=True)
    full = {"x": (n, m), "g": (m,), "y": (n, m), "dy": (n, m), "dx": (n, m)}
    height = -(-n // min(PARTS, n))
    parts = -(-n // height)  # no part is empty
    more = {f"v{len(b.views) - 1}.parts": parts, f"v{len(b.views) - 1}.ps": m}
    s = Build(1, 1)
    s.store(s.reduce(s.load("parts", (1, None)), "sum"), "dg", (1, 0))
    return [
        Case("rmsnorm fwd", f, (n, m), rows("xy", f, m), {k: full[k] for k in "xgy"}, nbytes=8 * n * m),
        Case(
            "rmsnorm bwd", b, (n, m), rows(("x", "dy", "dx"), b, m) | more,
            {k: full[k] for k in ("x", "g", "dy", "dx")} | {"parts": (parts, m)}, nbytes=12 * n * m,
        ),
        Case("rmsnorm dgamma", s, (m, parts), {"v0.s1": m}, {"parts": (parts, m), "dg": (m,)}, nbytes=0),
    ]  # fmt: skip


def sigmoid(b: Build, x: int) -> int:
    """Append 1 / (1 + exp(-x))."""
    return b.op("divide", b.const(1.0), b.op("add", b.const(1.0), b.op("exp", b.op("negative", x))))


def swiglu(n: int, m: int) -> list[Case]:
    """Return a * sigmoid(a) * c, and its gradients."""
    f = Build(1, 0)
    a, c = f.load("a", (1,)), f.load("c", (1,))
    f.store(f.op("multiply", f.op("multiply", a, sigmoid(f, a)), c), "y", (1,))
    b = Build(1, 0)
    a, c, dy = (b.load(k, (1,)) for k in ("a", "c", "dy"))
    s = sigmoid(b, a)
    silu = b.op("multiply", a, s)
    slope = b.op("add", s, b.op("multiply", silu, b.op("subtract", b.const(1.0), s)))
    b.store(b.op("multiply", b.op("multiply", dy, c), slope), "da", (1,))
    b.store(b.op("multiply", dy, silu), "dc", (1,))
    shapes = dict.fromkeys(("a", "c", "y", "dy", "da", "dc"), (n * m,))
    return [
        Case("swiglu fwd", f, (n * m,), {}, {k: shapes[k] for k in ("a", "c", "y")}, nbytes=12 * n * m),
        Case("swiglu bwd", b, (n * m,), {}, {k: shapes[k] for k in ("a", "c", "dy", "da", "dc")}, nbytes=20 * n * m),
    ]


def causal_softmax(heads: int, n: int) -> list[Case]:
    """Softmax over the keys up to the query, masked elements never read; and its gradient."""
    shapes = dict.fromkeys(("x", "y", "dy", "dx"), (heads * n, n))
    square = heads * n * n * 4

    def mask(b: Build) -> int:
        return b.op(
            "less_equal", b.op("iota", dtype="int32", attr=2), b.op("iota", dtype="int32", attr=1), dtype="bool"
        )

    f = Build(2, 1)
    kept = mask(f)
    x = f.op("where", kept, f.load("x", (None, None, 1), guard=kept), f.const(float("-inf")))
    e = f.op("exp", f.op("subtract", x, f.reduce(x, "max")))
    f.store(f.op("divide", e, f.reduce(e, "sum")), "y", (None, None, 1))
    b = Build(2, 1)
    kept = mask(b)
    y = b.op("where", kept, b.load("y", (None, None, 1), guard=kept), b.const(0.0))
    dy = b.op("where", kept, b.load("dy", (None, None, 1), guard=kept), b.const(0.0))
    total = b.reduce(b.op("multiply", y, dy), "sum")
    b.store(b.op("multiply", y, b.op("subtract", dy, total)), "dx", (None, None, 1))

    def strides(build: Build) -> dict[str, int]:
        return {f"v{v}.s{k}": (n * n, n)[k] for v in range(len(build.views)) for k in (0, 1)}

    extents = (heads, n, n)
    return [
        Case("causal softmax fwd", f, extents, strides(f), {k: shapes[k] for k in ("x", "y")}, nbytes=square * 3 // 2),
        Case(
            "causal softmax bwd", b, extents, strides(b), {k: shapes[k] for k in ("y", "dy", "dx")}, nbytes=square * 2
        ),
    ]


def softmax(n: int, m: int) -> list[Case]:
    """Softmax of rows."""
    f = Build(1, 1)
    x = f.load("x", (None, 1))
    e = f.op("exp", f.op("subtract", x, f.reduce(x, "max")))
    f.store(f.op("divide", e, f.reduce(e, "sum")), "y", (None, 1))
    return [Case("softmax", f, (n, m), rows("xy", f, m), {"x": (n, m), "y": (n, m)}, nbytes=8 * n * m)]


def cross_entropy(n: int, m: int) -> list[Case]:
    """logsumexp(x) - x[label] with labels through a gather; and its gradient."""
    f = Build(1, 1)
    label = f.load("t", (1, 0), dtype="int64")
    x = f.load("x", (None, 1))
    top = f.reduce(x, "max")
    lse = f.op("add", f.op("log", f.reduce(f.op("exp", f.op("subtract", x, top)), "sum")), top)
    picked = f.load("x", (None, 0), label)
    f.store(f.op("subtract", lse, picked), "loss", (1, 0))
    f.store(lse, "lse", (1, 0))
    f.status = f.buffer("status", "int32")
    v = f.body[picked].attr
    b = Build(2, 0)
    x, lse, label = b.load("x", (None, 1)), b.load("lse", (1, 0)), b.load("t", (1, 0), dtype="int64")
    hit = b.op("equal", b.op("iota", dtype="int64", attr=1), label, dtype="bool")
    p = b.op("exp", b.op("subtract", x, lse))
    grad = b.op("subtract", p, b.op("cast", hit))
    b.store(b.op("multiply", grad, b.scalar()), "dx", (None, 1))
    return [
        Case(
            "cross-entropy fwd", f, (n, m), rows("x", f, m) | {f"v{v}.gs0": 1, f"v{v}.gn0": m, "tag": 7},
            {"t": (n,), "x": (n, m), "loss": (n,), "lse": (n,), "status": (4,)}, nbytes=4 * n * m,
        ),
        Case(
            "cross-entropy bwd", b, (n, m), rows(("x", "dx"), b, m),
            {"x": (n, m), "lse": (n,), "t": (n,), "dx": (n, m)}, (1.0 / n,), nbytes=8 * n * m,
        ),
    ]  # fmt: skip


def adamw(n: int) -> list[Case]:
    """One step in place: p, m, v read and written, g read."""
    b = Build(1, 0)
    p, g, m, v = (b.load(k, (1,)) for k in ("p", "g", "m", "v"))
    rate, beta1, beta2, rest1, rest2, eps, decay, fix1, fix2 = (b.scalar() for _ in range(9))
    m2 = b.op("add", b.op("multiply", beta1, m), b.op("multiply", rest1, g))
    v2 = b.op("add", b.op("multiply", beta2, v), b.op("multiply", rest2, b.op("multiply", g, g)))
    below = b.op("add", b.op("sqrt", b.op("multiply", v2, fix2)), eps)
    step = b.op("divide", b.op("multiply", rate, b.op("multiply", m2, fix1)), below)
    b.store(b.op("subtract", b.op("multiply", p, decay), step), "p", (1,))
    b.store(m2, "m", (1,))
    b.store(v2, "v", (1,))
    scalars = (1e-3, 0.9, 0.999, 0.1, 0.001, 1e-8, 1 - 1e-5, 10.0, 1000.0)
    return [Case("adamw", b, (n,), {}, dict.fromkeys("pgmv", (n,)), scalars, nbytes=28 * n)]


def total(n: int) -> list[Case]:
    """Return the sum of all elements."""
    b = Build(0, 1)
    b.store(b.reduce(b.load("x", (1,)), "sum"), "s", (0,))
    return [Case("sum", b, (n,), {}, {"x": (n,), "s": (1,)}, nbytes=4 * n)]


def column_sum(n: int, m: int) -> list[Case]:
    """Return the sum over rows."""
    b = Build(1, 1)
    b.store(b.reduce(b.load("x", (1, None)), "sum"), "s", (1, 0))
    return [Case("column sum", b, (m, n), {"v0.s1": m}, {"x": (n, m), "s": (m,)}, nbytes=4 * n * m)]


def groups(scale: int = 1) -> dict[str, list[Case]]:
    """Return all cases, by the row of the table they are added up in; *scale* divides the sizes, for tests."""
    s = scale
    return {
        "rmsnorm": rmsnorm(8192 // s, 4096 // s),
        "swiglu": swiglu(8192 // s, 4096 // s),
        "causal softmax": causal_softmax(256 // s, 1024 // s),
        "cross-entropy": cross_entropy(8192 // s, 32000 // s),
        "adamw": adamw(4096 * 4096 // s // s),
        "sum": total((1 << 26) // s),
        "column sum": column_sum(8192 // s, 4096 // s),
        "softmax": softmax(8192 // s, 2048 // s),
    }


# ---- other shapes, to find cliffs -------------------------------------------------------------------


def row_sum(n: int, m: int) -> list[Case]:
    """Return the kernel that sums rows."""
    b = Build(1, 1)
    b.store(b.reduce(b.load("x", (None, 1)), "sum"), "s", (1, 0))
    return [
        Case(f"row sum {n} x {m}", b, (n, m), rows("x", b, m), {"x": (n, m), "s": (n,)}, nbytes=4 * n * m + 4 * n,
             reference=lambda cp, a: {"s": a["x"].sum(1, dtype=cp.float64)})
    ]  # fmt: skip


def column_sum_of(n: int, m: int) -> list[Case]:
    """Return the kernel that sums columns, checked on all of them."""
    (case,) = column_sum(n, m)
    case.name = f"column sum {n} x {m}"
    case.reference = lambda cp, a: {"s": a["x"].sum(0, dtype=cp.float64)}
    return [case]


def layer_norm(n: int, m: int) -> list[Case]:
    """Return (x - mean) / sqrt(var + eps) * g + c."""
    b = Build(1, 1)
    x = b.load("x", (None, 1))
    centred = b.op("subtract", x, b.op("divide", b.reduce(x, "sum"), b.const(m)))
    scaled = b.op("multiply", centred, inverse_norm(b, centred, m))
    b.store(b.op("add", b.op("multiply", scaled, b.load("g", (0, 1))), b.load("c", (0, 1))), "y", (None, 1))

    def reference(cp: Any, a: dict[str, Any]) -> dict[str, Any]:
        x = a["x"][:64].astype(cp.float64)
        x = x - x.mean(1, keepdims=True)
        return {"y": x / cp.sqrt((x * x).mean(1, keepdims=True) + 1e-5) * a["g"] + a["c"]}

    shapes = {"x": (n, m), "g": (m,), "c": (m,), "y": (n, m)}
    return [Case(f"layer norm {n} x {m}", b, (n, m), rows("xy", b, m), shapes, nbytes=8 * n * m, reference=reference)]


def bias_tanh(n: int, m: int) -> list[Case]:
    """Return tanh(x + c), c along the last axis."""
    b = Build(2, 0)
    b.store(b.op("tanh", b.op("add", b.load("x", (None, 1)), b.load("c", (0, 1)))), "y", (None, 1))
    return [
        Case(f"bias tanh {n} x {m}", b, (n, m), rows("xy", b, m), {"x": (n, m), "c": (m,), "y": (n, m)},
             nbytes=8 * n * m, reference=lambda cp, a: {"y": cp.tanh(a["x"][:64].astype(cp.float64) + a["c"])})
    ]  # fmt: skip


def take_rows(n: int, m: int, k: int) -> list[Case]:
    """Return rows of a table by index, as an embedding does."""
    b = Build(2, 0)
    index = b.load("t", (1, 0), dtype="int64")
    b.store(b.load("x", (0, 1), index), "y", (None, 1))
    b.status = b.buffer("status", "int32")
    ints = {"v1.gs0": m, "v1.gn0": n, "v2.s0": m, "tag": 3}
    shapes = {"t": (k,), "x": (n, m), "y": (k, m), "status": (4,)}
    return [
        Case(f"take {k} rows of {n} x {m}", b, (k, m), ints, shapes, nbytes=8 * k * m,
             reference=lambda cp, a: {"y": a["x"][a["t"]].astype(cp.float64)})
    ]  # fmt: skip


def permuted(name: str, extents: tuple[int, ...], order: tuple[int, ...]) -> list[Case]:
    """Return the copy of an array of *extents* with its axes in another order."""
    b = Build(len(extents), 0)
    b.store(b.load("x", (None,) * len(extents)), "y", (None,) * len(extents))
    out = tuple(extents[k] for k in order)
    steps = [int(np.prod(extents[k + 1 :])) for k in range(len(extents))]
    ints = {f"v0.s{i}": steps[k] for i, k in enumerate(order)}
    ints |= {f"v1.s{i}": int(np.prod(out[i + 1 :])) for i in range(len(out))}
    count = int(np.prod(extents))
    return [
        Case(f"copy {name}", b, out, ints, {"x": extents, "y": out}, nbytes=8 * count,
             reference=lambda cp, a: {"y": a["x"].transpose(order).astype(cp.float64)})
    ]  # fmt: skip


def half_norm(n: int, m: int) -> list[Case]:
    """Return RMSNorm of bfloat16, computed in float32."""
    b = Build(1, 1)
    x = b.op("cast", b.load("hx", (None, 1), dtype="bfloat16"))
    g = b.op("cast", b.load("hg", (0, 1), dtype="bfloat16"))
    y = b.op("multiply", b.op("multiply", x, inverse_norm(b, x, m)), g)
    b.store(b.op("cast", y, dtype="bfloat16"), "hy", (None, 1))

    def reference(cp: Any, a: dict[str, Any]) -> dict[str, Any]:
        x = a["hx"][:64].astype(cp.float64)
        return {"hy": x / cp.sqrt((x * x).mean(1, keepdims=True) + 1e-5) * a["hg"].astype(cp.float64)}

    shapes = {"hx": (n, m), "hg": (m,), "hy": (n, m)}
    return [
        Case(
            f"bfloat16 rmsnorm {n} x {m}",
            b,
            (n, m),
            rows(("hx", "hy"), b, m),
            shapes,
            nbytes=4 * n * m,
            reference=reference,
        )
    ]


def softmax_of(n: int, m: int) -> list[Case]:
    """Return softmax with its shape in its name."""
    (case,) = softmax(n, m)
    case.name = f"softmax {n} x {m}"

    def reference(cp: Any, a: dict[str, Any]) -> dict[str, Any]:
        e = cp.exp(a["x"][:64].astype(cp.float64) - a["x"][:64].max(1, keepdims=True))
        return {"y": e / e.sum(1, keepdims=True)}

    case.reference = reference
    return [case]


def more() -> dict[str, list[Case]]:
    """Return kernels of other shapes: short, odd and long rows, tall columns, gathers, permuted copies, bfloat16."""
    cases = [
        *softmax_of(65536, 1000), *softmax_of(4096, 50257), *softmax_of(1 << 20, 64), *softmax_of(64, 1 << 20),
        *row_sum(64, 1 << 20), *row_sum(1 << 20, 64), *row_sum(1 << 22, 9), *column_sum_of(1 << 20, 64),
        *column_sum_of(65536, 768), *column_sum_of(1000, 50257), *layer_norm(16384, 768), *layer_norm(16384, 3072),
        *bias_tanh(16384, 3072), *take_rows(32768, 768, 65536), *permuted("transposed", (8192, 8192), (1, 0)),
        *permuted("of heads", (16, 1024, 12, 64), (0, 2, 1, 3)), *permuted("of keys", (16, 1024, 12, 64), (0, 2, 3, 1)),
        *half_norm(8192, 4096),
    ]  # fmt: skip
    grouped = {case.name: [case] for case in cases}
    return grouped | {"rmsnorm 768": rmsnorm(16384, 768), "cross-entropy 50257": cross_entropy(4096, 50257)}


# ---- what they should give --------------------------------------------------------------------------


def expected(name: str, get: Callable[[str, slice], Any]) -> dict[str, Any]:
    """Return float64 results for the first rows of each output; *get(buffer, rows)* reads an input as float64."""
    few = slice(0, 64)
    if name == "rmsnorm fwd":
        x = get("x", few)
        return {"y": x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * get("g", slice(None))}
    if name == "rmsnorm bwd":
        x, dy, g = get("x", few), get("dy", few), get("g", slice(None))
        r = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)
        return {"dx": dy * g * r - x * r**3 * (dy * g * x).mean(-1, keepdims=True)}
    if name == "rmsnorm dgamma":
        x, dy = get("x", slice(None)), get("dy", slice(None))
        return {"dg": (dy * x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)).sum(0)}
    if name.startswith("swiglu"):
        few = slice(0, 1 << 16)
        a, c = get("a", few), get("c", few)
        s = 1 / (1 + np.exp(-a))
        if name == "swiglu fwd":
            return {"y": a * s * c}
        dy = get("dy", few)
        return {"da": dy * c * (s + a * s * (1 - s)), "dc": dy * a * s}
    if name.startswith("causal"):
        few = slice(0, 1024)
        first = get("y" if name.endswith("bwd") else "x", few)
        kept = np.arange(first.shape[1])[None, :] <= (np.arange(first.shape[0]) % first.shape[1])[:, None]
        if name.endswith("fwd"):
            e = np.where(kept, np.exp(first - np.where(kept, first, -np.inf).max(-1, keepdims=True)), 0)
            return {"y": e / e.sum(-1, keepdims=True)}
        y, dy = np.where(kept, first, 0), get("dy", few)
        return {"dx": y * (dy - (y * dy).sum(-1, keepdims=True))}
    if name == "softmax":
        x = get("x", few)
        e = np.exp(x - x.max(-1, keepdims=True))
        return {"y": e / e.sum(-1, keepdims=True)}
    if name.startswith("cross"):
        x, t = get("x", few), get("t", few).astype(np.int64)
        lse = np.log(np.exp(x - x.max(-1, keepdims=True)).sum(-1)) + x.max(-1)
        if name.endswith("fwd"):
            return {"lse": lse, "loss": lse - x[np.arange(len(t)), t]}
        grad = np.exp(x - lse[:, None])
        grad[np.arange(len(t)), t] -= 1
        return {"dx": grad / get("lse", slice(None)).size}
    if name == "sum":
        return {"s": get("x", slice(None)).sum()[None]}
    if name == "column sum":
        return {"s": get("x", slice(None)).sum(0)}
    few = slice(0, 1 << 16)  # adamw, from the state before
    p, g, m, v = (get(k, few) for k in "pgmv")
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    return {"p": p * (1 - 1e-5) - 1e-3 * m * 10 / (np.sqrt(v * 1000) + 1e-8), "m": m, "v": v}
