"""The numbers that the work is done on: the same for every library, drawn from a seed.

Here: arrays of inputs, models' parameters and data, cotangents; and the digest by which results are compared.
Not here: which shapes (`work.py`).
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Shape = tuple[int, ...]
Values = dict[str, Any]  # parameters by name, NumPy arrays

ADAMW = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.01}
SEED, COTANGENT, PROBE = 0, 1, 2  # seeds
PERIOD = 4093  # of the probe; prime, so that it is out of step with every row
TOLERANCE = 2e-3  # of a digest, relative; float32 in another order differs by less


def drawn(rng: np.random.Generator, shape: Shape, kind: str) -> Any:
    """Return an array: normal, near one, positive, or integers below a number.

    >>> drawn(np.random.default_rng(0), (3,), "below 5").dtype
    dtype('int32')
    """
    if kind == "normal":
        return rng.standard_normal(shape, dtype=np.float32)
    if kind == "positive":
        return rng.random(shape, dtype=np.float32) + np.float32(0.01)
    if kind == "near one":
        return (1 + 0.01 * rng.standard_normal(shape)).astype(np.float32)
    return rng.integers(0, int(kind.removeprefix("below ")), shape).astype(np.int32)


def arrays(inputs: Sequence[tuple[Shape, str]]) -> list[Any]:
    """Return the inputs of a function."""
    rng = np.random.default_rng(SEED)
    return [drawn(rng, shape, kind) for shape, kind in inputs]


def cotangent(shape: Shape) -> Any:
    """Return what a result of that shape is pulled back with; 1 for a scalar, as a loss is."""
    if not shape:
        return np.ones((), np.float32)
    return np.random.default_rng(COTANGENT).standard_normal(shape, dtype=np.float32)


def perceptron(settings: Mapping[str, Any], widths: Sequence[int]) -> tuple[Values, Any, Any]:
    """Return parameters, images and labels of the perceptron; weights are (in, out)."""
    rng = np.random.default_rng(SEED)
    values: Values = {}
    for k, (a, b) in enumerate(itertools.pairwise(widths)):
        values[f"w{k}"] = (rng.standard_normal((a, b)) / a**0.5).astype(np.float32)
        values[f"b{k}"] = np.zeros(b, np.float32)
    batch = settings["batch"]
    return values, drawn(rng, (batch, widths[0]), "normal"), drawn(rng, (batch,), f"below {widths[-1]}")


def convnet(settings: Mapping[str, Any]) -> tuple[Values, Any, Any]:
    """Return parameters, NCHW images and labels: 3x3 convolutions to 32 and 64 channels, each pooled by 2x2."""
    rng = np.random.default_rng(SEED)

    def normal(*shape: int, fan: int) -> Any:
        return (rng.standard_normal(shape) / fan**0.5).astype(np.float32)

    values = {
        "k0": normal(32, 1, 3, 3, fan=9), "c0": np.zeros(32, np.float32), "k1": normal(64, 32, 3, 3, fan=288),
        "c1": np.zeros(64, np.float32), "w": normal(3136, 10, fan=3136), "b": np.zeros(10, np.float32),
    }  # fmt: skip
    batch = settings["batch"]
    return values, drawn(rng, (batch, 1, 28, 28), "normal"), drawn(rng, (batch,), "below 10")


def language_model(settings: Mapping[str, Any], *, llama: bool) -> tuple[Values, Any, Any]:
    """Return parameters, tokens and targets; *llama*: RMS norms, SwiGLU and apart projections.

    Weights are large enough for every part to show in the loss: with those that training begins with, a model whose
    attention sees the future has the same loss to three digits.
    """
    rng = np.random.default_rng(SEED)
    dim, vocabulary = settings["dim"], settings["vocabulary"]

    def normal(*shape: int) -> Any:
        return rng.standard_normal(shape, dtype=np.float32) * np.float32(shape[0] ** -0.5)

    def table(rows: int) -> Any:
        return rng.standard_normal((rows, dim), dtype=np.float32)

    def one() -> Any:
        return np.ones(dim, np.float32)

    def zero() -> Any:
        return np.zeros(dim, np.float32)

    values: Values = {
        "tokens": table(vocabulary), "positions": table(settings["context"]), "gain": one(),
        "head": normal(dim, vocabulary),
    }  # fmt: skip
    if not llama:
        values["shift"] = zero()
    for k in range(settings["layers"]):
        values |= {f"gain1_{k}": one(), f"gain2_{k}": one(), f"out_{k}": normal(dim, dim)}
        if llama:
            values |= {f"{name}_{k}": normal(dim, dim) for name in ("query", "key", "value")}
            values |= {f"gate_{k}": normal(dim, 4 * dim), f"up_{k}": normal(dim, 4 * dim)}
        else:
            values |= {f"shift1_{k}": zero(), f"shift2_{k}": zero(), f"qkv_{k}": normal(dim, 3 * dim)}
            values |= {f"up_{k}": normal(dim, 4 * dim)}
        values[f"down_{k}"] = normal(4 * dim, dim)
    text = drawn(rng, (settings["batch"], settings["context"] + 1), f"below {vocabulary}")
    return values, text[:, :-1].copy(), text[:, 1:].copy()


def optimised(settings: Mapping[str, Any]) -> tuple[list[Any], list[Any]]:
    """Return parameters and gradients of an optimiser's step."""
    rng = np.random.default_rng(SEED)
    shape = settings["shape"]
    both = [[drawn(rng, shape, "normal") for _ in range(settings["count"])] for _ in range(2)]
    return both[0], both[1]


def digest(results: Sequence[Any]) -> list[Any]:
    """Return for each array its shape, its mean magnitude, and where in it the large values are.

    The last is the product with a fixed random vector, over the norm: a permutation, a flipped sign or a mistake in a
    part of the array shows in it.

    >>> a, b = digest([np.asarray([1.0, 2.0, 3.0])]), digest([np.asarray([3.0, 2.0, 1.0])])
    >>> agree(a, a), agree(a, b)
    (True, False)
    """
    rng = np.random.default_rng(PROBE)
    across, along = rng.standard_normal(PERIOD), rng.standard_normal(PERIOD)
    found = []
    for result in results:
        values = np.asarray(result)
        flat = values.astype(np.float64).ravel()
        norm = float(np.sqrt(flat @ flat))
        whole = np.zeros(-(-flat.size // PERIOD) * PERIOD)
        whole[: flat.size] = flat
        parts = whole.reshape(-1, PERIOD) @ across
        place = float(parts @ np.resize(along, parts.size))
        found.append(
            [list(values.shape), float(np.abs(flat).mean()) if flat.size else 0.0, place / norm if norm else 0.0]
        )
    return found


def agree(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Return whether two digests are of the same results; NaN agrees with nothing."""
    return len(one) == len(other) and all(
        a[0] == b[0]
        and abs(a[1] - b[1]) <= TOLERANCE * max(abs(a[1]), abs(b[1]), 1e-9)
        and abs(a[2] - b[2]) <= 5 * TOLERANCE * max(1.0, abs(a[2]))
        for a, b in zip(one, other, strict=True)
    )
