"""What is measured: each piece of work once, with its inputs, its maths, its least traffic and its arithmetic.

Here: the table, in three sizes.
Not here: the numbers in the inputs (`inputs.py`), how a library does the work (`peers/`, `foreign/`).

Bytes are the fewest that the work can move: every input read once and every output written once, forward and backward
counted apart. Arithmetic counts a multiplication and an addition as two. Where neither limits the work both are 0, and
no share of a ceiling is shown.
"""

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from polygrad.bench.inputs import Shape

Kind = Literal["function", "training", "optimiser", "graph"]
Inputs = tuple[tuple[Shape, str], ...]

SIZES = ("tiny", "small", "paper")
WORD = 4  # bytes of a float32
APART = (
    "overhead",
    "convolution",
    "graph",
)  # groups that have a geometric mean of their own and are not in the overall one

MATHS = {
    "copy": "-x: one pass over memory, for the ceiling",
    "add": "a + b",
    "chain100": "50 times x = x * a + b",
    "ew12": "u = x*x*x*0.044715 + x; y = (tanh(u*0.79788456) + 1)*x*0.5; y + exp(y*-0.1): 12 operations",
    "exp": "exp(x)",
    "tanh": "tanh(x)",
    "log": "log(x)",
    "sum": "sum(x, axis=-1)",
    "meanvar": "mean and population variance over the last axis",
    "softmax": "softmax(x, axis=-1)",
    "logsumexp": "logsumexp(x, axis=-1)",
    "rmsnorm": "x / sqrt(mean(x*x) + 1e-5) * w over the last axis, written out",
    "layernorm": "(x - mean) / sqrt(var + 1e-5) * w + b over the last axis, written out",
    "rmsnorm_builtin": "rmsnorm by the library's own function",
    "layernorm_builtin": "layernorm by the library's own function",
    "swiglu": "a * sigmoid(a) * b",
    "causal_softmax": "softmax(where(column <= row, x, -inf), axis=-1)",
    "cross_entropy": "mean cross-entropy of rows of scores and integer targets",
    "attention": "causal scaled-dot-product attention by the library's own function",
    "matmul": "a @ b",
    "take": "table[index]",
    "cumsum": "running sum",
    "sort": "sorted values",
    "argmax": "position of the largest value",
    "mlp": "a training step of a 784-512-256-10 perceptron with AdamW",
    "convnet": "a training step of two convolutions, two poolings and a linear layer with AdamW",
    "gpt": "a training step of a GPT (layer norm, GELU, learned positions, untied head) with AdamW",
    "llama": "forward and backward of a GPT (RMS norm, SwiGLU, learned positions, untied head)",
    "adamw": "one AdamW step with the library's default settings",
    "adamw_fastest": "one AdamW step with the library's fastest settings",
    "record": "recording a graph of so many operations",
    "schedule": "finding the kernels of such a graph for the first time",
    "differentiate": "recording the gradient of such a graph",
}


@dataclass(frozen=True)
class Work:
    """One piece of work.

    Parameters
    ----------
    name, group : str
        What tables call it, and what it is averaged with.
    kind : "function", "training", "optimiser" or "graph"
        A function of arrays, a whole training step, an optimiser's step alone, or costs of polygrad's own graphs.
    maths : str
        A key of `MATHS`.
    inputs : tuple of (shape, distribution)
        Of a function; `inputs.py` draws them.
    wrt : tuple of int
        The inputs that are differentiated; none: forward only. The cotangent has the shape *out*.
    flops, nbytes : float
        Arithmetic and least traffic of one call, or 0.
    heavy : bool
        Too large for a CPU: only accelerators do it unless it is asked for by name.
    settings : mapping
        Of a model, an optimiser or a graph.
    """

    name: str
    group: str
    kind: Kind
    maths: str
    inputs: Inputs = ()
    wrt: tuple[int, ...] = ()
    out: Shape = ()
    flops: float = 0.0
    nbytes: float = 0.0
    heavy: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def sized(self) -> str:
        """The sizes in short: the shapes of the inputs, or the settings."""
        if self.inputs:
            return " ".join("x".join(map(str, shape)) or "()" for shape, _ in self.inputs)
        return " ".join(f"{key}={_short(value)}" for key, value in self.settings.items())


def _short(value: Any) -> str:
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)


@dataclass(frozen=True)
class _Size:
    """The sizes of one column of the table; what is not said here follows from these."""

    long: int  # elements of long vectors
    cached: int  # elements that stay in a cache
    square: Shape  # of sums over rows
    wide: Shape  # of softmax over rows
    norm: Shape  # of norms
    matrix: int
    matrix_large: int
    batched: Shape
    attention: Shape  # batch, heads, positions, features
    entropy: Shape  # rows, classes
    mlp: tuple[int, int]  # small and large batch
    images: int
    gpt: Mapping[str, int]
    parameters: tuple[int, Shape]  # of the optimiser: how many, of which shape
    table: Shape  # of the embedding
    lookups: Shape
    ordered: int
    row: Shape  # of the kernels for accelerators
    scores: Shape
    classes: Shape
    parameter: Shape
    llama: Mapping[str, int]
    graphs: tuple[int, ...]


_PAPER = _Size(
    long=1 << 24, cached=1 << 20, square=(4096, 4096), wide=(8192, 2048), norm=(8, 1024, 768), matrix=1024,
    matrix_large=2048, batched=(64, 128, 128), attention=(4, 8, 512, 64), entropy=(4096, 8192), mlp=(128, 4096),
    images=128, gpt={"layers": 2, "dim": 256, "heads": 4, "context": 256, "batch": 8, "vocabulary": 4096},
    parameters=(100, (500, 1000)), table=(50257, 768), lookups=(16, 512), ordered=1 << 22, row=(8, 1024, 4096),
    scores=(8, 32, 1024, 1024), classes=(8192, 32000), parameter=(4096, 4096),
    llama={"layers": 16, "dim": 768, "heads": 12, "context": 1024, "batch": 4, "vocabulary": 32768},
    graphs=(1_000, 10_000, 100_000),
)  # fmt: skip
_SMALL = _Size(
    long=1 << 21, cached=1 << 17, square=(1024, 2048), wide=(1024, 2048), norm=(2, 512, 768), matrix=512,
    matrix_large=1024, batched=(32, 96, 96), attention=(2, 4, 256, 64), entropy=(512, 4096), mlp=(128, 1024),
    images=16, gpt={"layers": 2, "dim": 128, "heads": 4, "context": 64, "batch": 4, "vocabulary": 1024},
    parameters=(40, (250, 400)), table=(8192, 256), lookups=(8, 256), ordered=1 << 18, row=(512, 2048),
    scores=(2, 4, 256, 256), classes=(512, 8000), parameter=(1024, 1024),
    llama={"layers": 2, "dim": 128, "heads": 4, "context": 128, "batch": 2, "vocabulary": 1024},
    graphs=(1_000, 10_000),
)  # fmt: skip
_TINY = _Size(
    long=1 << 10, cached=1 << 8, square=(32, 64), wide=(16, 64), norm=(2, 8, 32), matrix=16, matrix_large=32,
    batched=(2, 8, 8), attention=(1, 2, 16, 8), entropy=(8, 32), mlp=(4, 8), images=2,
    gpt={"layers": 1, "dim": 16, "heads": 2, "context": 8, "batch": 2, "vocabulary": 32}, parameters=(3, (8, 16)),
    table=(32, 8), lookups=(2, 8), ordered=1 << 8, row=(8, 64), scores=(1, 2, 16, 16), classes=(8, 64),
    parameter=(16, 16), llama={"layers": 1, "dim": 16, "heads": 2, "context": 8, "batch": 2, "vocabulary": 32},
    graphs=(100,),
)  # fmt: skip
_COLUMNS = {"tiny": _TINY, "small": _SMALL, "paper": _PAPER}
MLP_WIDTHS = (784, 512, 256, 10)
SHOWN = "query_0"  # the parameter whose gradient is a result where no optimiser's step would show in the loss


def table(size: str) -> dict[str, Work]:
    """Return all work of a size by name.

    >>> sorted({work.group for work in table("small").values()})[:3]
    ['attention', 'convolution', 'elementwise']
    >>> table("paper")["softmax_bwd"].sized, table("paper")["adamw"].sized
    ('8192x2048', 'count=100 shape=500x1000')
    """
    column = _COLUMNS[size]
    families = (
        _overhead(), _elementwise(column), _reductions(column), _norms(column), _matmuls(column), _attention(column),
        _training(column), _optimisers(column), _indexing(column), _kernels(column, heavy=size == "paper"),
        _graphs(column),
    )  # fmt: skip
    return {work.name: work for family in families for work in family}


def ceilings(size: str) -> dict[str, Work]:
    """Return the two pieces of work that the ceilings of a run are measured with."""
    n, side = {"tiny": (1 << 12, 32), "small": (1 << 24, 1024), "paper": (1 << 26, 2048)}[size]
    return {
        "ceiling_copy": Work("ceiling_copy", "ceiling", "function", "copy", (((n,), "normal"),), nbytes=2.0 * WORD * n),
        "ceiling_matmul": Work(
            "ceiling_matmul", "ceiling", "function", "matmul", (((side, side), "normal"),) * 2, flops=2.0 * side**3
        ),
    }


def _moved(count: float, shape: Shape) -> float:
    return WORD * count * math.prod(shape)


def _pair(
    name: str, group: str, maths: str, inputs: Inputs, out: Shape, *, wrt: tuple[int, ...], moved: tuple[float, float],
    flops: float = 0.0, backward_flops: float | None = None, heavy: bool = False,
) -> Iterator[Work]:  # fmt: skip
    """Yield a function forward, and forward and backward; *moved* is bytes of the one and of the other's whole."""
    yield Work(f"{name}_fwd", group, "function", maths, inputs, flops=flops, nbytes=moved[0], heavy=heavy)
    whole = 3.0 * flops if backward_flops is None else backward_flops
    yield Work(f"{name}_bwd", group, "function", maths, inputs, wrt, out, whole, moved[1], heavy)


def _overhead() -> Iterator[Work]:
    one: Shape = (1,)
    yield from _pair("add1", "overhead", "add", ((one, "normal"),) * 2, one, wrt=(0, 1), moved=(0.0, 0.0))
    few: Shape = (64,)
    chain = ((few, "normal"), (few, "near one"), (few, "normal"))
    yield Work("chain100_bwd", "overhead", "function", "chain100", chain, (0, 1), few)


def _elementwise(size: _Size) -> Iterator[Work]:
    for name, n in (("ew12", size.long), ("ew12_cached", size.cached)):
        shape: Shape = (n,)
        moved = _moved(2, shape), _moved(2 + 3, shape)
        yield from _pair(name, "elementwise", "ew12", ((shape, "normal"),), shape, wrt=(0,), moved=moved)
    for name, kind in (("exp", "normal"), ("tanh", "normal"), ("log", "positive")):
        yield Work(name, "elementwise", "function", name, (((size.long,), kind),), nbytes=_moved(2, (size.long,)))


def _reductions(size: _Size) -> Iterator[Work]:
    for name in ("sum", "meanvar"):
        moved = _moved(1, size.square) + _moved(1 if name == "sum" else 2, size.square[:-1])
        yield Work(name, "reductions", "function", name, ((size.square, "normal"),), nbytes=moved)
    rows = ((size.wide, "normal"),)
    both = _moved(2, size.wide), _moved(2 + 3, size.wide)
    yield from _pair("softmax", "reductions", "softmax", rows, size.wide, wrt=(0,), moved=both)
    once = _moved(1, size.wide) + _moved(1, size.wide[:-1])
    yield Work("logsumexp", "reductions", "function", "logsumexp", rows, nbytes=once)
    yield Work(
        "cross_entropy_bwd", "reductions", "function", "cross_entropy",
        ((size.entropy, "normal"), (size.entropy[:-1], f"below {size.entropy[-1]}")), (0,), (),
        nbytes=_moved(1 + 2, size.entropy),
    )  # fmt: skip


def _norms(size: _Size) -> Iterator[Work]:
    width: Shape = size.norm[-1:]
    moved = _moved(2, size.norm), _moved(2 + 3, size.norm)
    for name, count in (("rmsnorm", 1), ("layernorm", 2)):
        inputs: Inputs = ((size.norm, "normal"), (width, "near one"), (width, "normal"))[: 1 + count]
        for maths in (name, f"{name}_builtin"):
            yield from _pair(maths, "norms", maths, inputs, size.norm, wrt=tuple(range(1 + count)), moved=moved)


def _matmuls(size: _Size) -> Iterator[Work]:
    for name, n in (("matmul", size.matrix), ("matmul_large", size.matrix_large)):
        square: Shape = (n, n)
        moved = _moved(3, square), _moved(3 + 5, square)
        yield from _pair(
            name, "matmul", "matmul", ((square, "normal"),) * 2, square, wrt=(0, 1), moved=moved, flops=2.0 * n**3
        )
    batch, n, _ = size.batched
    moved = _moved(3, size.batched), _moved(3 + 5, size.batched)
    yield from _pair(
        "bmm", "matmul", "matmul", ((size.batched, "normal"),) * 2, size.batched, wrt=(0, 1), moved=moved,
        flops=2.0 * batch * n**3,
    )  # fmt: skip


def _attention(size: _Size) -> Iterator[Work]:
    batch, heads, positions, features = size.attention
    flops = 2.0 * batch * heads * positions**2 * features  # two products, of which the mask leaves one half
    moved = _moved(4, size.attention), _moved(4 + 8, size.attention)
    yield from _pair(
        "attention", "attention", "attention", ((size.attention, "normal"),) * 3, size.attention, wrt=(0, 1, 2),
        moved=moved, flops=flops, backward_flops=3.5 * flops,
    )  # fmt: skip


def _model_flops(settings: Mapping[str, int], block: int) -> float:
    """Return the arithmetic of forward and backward; a block has *block* x dim x dim weights."""
    tokens = settings["batch"] * settings["context"]
    weights = settings["layers"] * block * settings["dim"] ** 2 + settings["dim"] * settings["vocabulary"]
    scores = settings["layers"] * settings["context"] * settings["dim"]
    return 6.0 * tokens * weights + 6.0 * tokens * scores  # scores: two products, half of each


def _training(size: _Size) -> Iterator[Work]:
    weights = sum(a * b for a, b in itertools.pairwise(MLP_WIDTHS))
    for name, batch in zip(("mlp_small_batch", "mlp_large_batch"), size.mlp, strict=True):
        yield Work(name, "training", "training", "mlp", flops=6.0 * batch * weights, settings={"batch": batch})
    yield Work("gpt", "training", "training", "gpt", flops=_model_flops(size.gpt, 12), settings=size.gpt)
    multiplied = 28 * 28 * 9 * 32 + 14 * 14 * 288 * 64 + 3136 * 10
    yield Work(
        "convnet", "convolution", "training", "convnet", flops=6.0 * size.images * multiplied,
        settings={"batch": size.images},
    )  # fmt: skip


def _optimisers(size: _Size) -> Iterator[Work]:
    count, shape = size.parameters
    for name in ("adamw", "adamw_fastest"):
        yield Work(
            name, "optimiser", "optimiser", name, nbytes=count * _moved(7, shape),
            settings={"count": count, "shape": shape},
        )  # fmt: skip


def _indexing(size: _Size) -> Iterator[Work]:
    rows, width = size.table
    looked: Shape = (*size.lookups, width)
    moved = _moved(2, looked), _moved(3, looked) + _moved(1, size.table)
    yield from _pair(
        "embedding", "indexing", "take", ((size.table, "normal"), (size.lookups, f"below {rows}")), looked, wrt=(0,),
        moved=moved,
    )  # fmt: skip
    for name in ("cumsum", "sort", "argmax"):
        moves = _moved(1 if name == "argmax" else 2, (size.ordered,))
        yield Work(name, "indexing", "function", name, (((size.ordered,), "normal"),), nbytes=moves)


def _kernels(size: _Size, *, heavy: bool) -> Iterator[Work]:
    """Yield the work of accelerators, forward and backward."""
    width: Shape = size.row[-1:]
    row = ((size.row, "normal"), (width, "near one"))
    rms = _moved(2 + 3, size.row)
    yield Work("kernel_rmsnorm", "kernels", "function", "rmsnorm", row, (0, 1), size.row, 0.0, rms, heavy)
    two = ((size.row, "normal"),) * 2
    glu = _moved(3 + 5, size.row)
    yield Work("kernel_swiglu", "kernels", "function", "swiglu", two, (0, 1), size.row, 0.0, glu, heavy)
    scores = ((size.scores, "normal"),)
    soft = _moved(2 + 3, size.scores)
    yield Work(
        "kernel_causal_softmax", "kernels", "function", "causal_softmax", scores, (0,), size.scores, 0.0, soft, heavy
    )
    rows = ((size.classes, "normal"), (size.classes[:-1], f"below {size.classes[-1]}"))
    loss = _moved(1 + 2, size.classes)
    yield Work("kernel_cross_entropy", "kernels", "function", "cross_entropy", rows, (0,), (), 0.0, loss, heavy)
    yield Work(
        "kernel_adamw", "kernels", "optimiser", "adamw_fastest", nbytes=_moved(7, size.parameter), heavy=heavy,
        settings={"count": 1, "shape": size.parameter},
    )  # fmt: skip
    plain = {**size.llama, "dtype": "float32", "step": 0}
    yield Work(
        "llama_float32", "language", "training", "llama", flops=_model_flops(size.llama, 16), heavy=heavy,
        settings=plain,
    )  # fmt: skip
    more = {**size.llama, "batch": 4 * size.llama["batch"]}
    narrow = {**more, "dtype": "bfloat16", "step": 1}
    yield Work(
        "llama_bfloat16", "language", "training", "llama", flops=_model_flops(more, 16), heavy=heavy, settings=narrow
    )


def _graphs(size: _Size) -> Iterator[Work]:
    for maths in ("record", "schedule", "differentiate"):
        for nodes in size.graphs:
            yield Work(f"{maths}_{nodes}", "graph", "graph", maths, settings={"nodes": nodes})
