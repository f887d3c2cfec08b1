"""How closely whole trainings follow PyTorch's: an MLP and a small CNN on the digits, a GPT of two layers on tokens.

    python benchmarks/parity.py cpu:0 opencl:0
    python benchmarks/parity.py --kinks cpu:0
    python benchmarks/parity.py --write tests/parity.json

Same initial weights, same batches, 200 steps. In float32 no two programs round alike, and training enlarges the
difference, so PyTorch itself sets the measure: T64 and T32 are its losses in float64 and in float32, and

    drift(t) = max over steps s <= t of |T32(s) - T64(s)|, or one rounding of the loss in float32 where that is more,
    ours(t)  = max over steps s <= t of |P(s) - T64(s)|, for polygrad's losses P in float32,

must satisfy ours(t) <= 3 drift(t) at every step t; and over the first 20 steps P differs from T32, and from T64, by at
most 1e-5 of it.

The CNN has tanh, as LeNet has. With ReLU and max pooling behind convolutions the losses of two programs agree until a
value rounds to the other side of a kink in one of them, and then jump apart; PyTorch's own do. ``--kinks`` counts from
how many first weights that happens within the 200 steps.

Here: the models, the data, the trainings in both libraries, the comparison. `tests/test_parity.py` uses the same, with
PyTorch's losses from `tests/parity.json`, which ``--write`` makes, so that it runs without PyTorch.
Not here: layers and optimisers one by one (`tests/test_nn_torch.py`, `tests/test_optim_torch.py`), times.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import polygrad as pg

STEPS = 200
BATCH = 32
FIRST, CLOSE = 20, 1e-5  # over how many steps the losses agree to how much of themselves
TIMES = 3.0  # how much of PyTorch's own drift is allowed
ROUNDING = 2.0**-24  # of float32, relative
GPT = {"vocab_size": 64, "context": 32, "dim": 64, "layers": 2, "heads": 4, "positions": "learned", "tied": False}
SEQUENCES = 8  # in a batch


# ---- numbers that are the same with every version of every library -----------------------------------------------


def uniform(seed: int, count: int) -> np.ndarray:
    """Return *count* numbers in [0, 1). Source: Steele et al., Fast splittable generators (2014), splitmix64."""
    with np.errstate(over="ignore"):
        z = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(seed << 32)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (z ^ (z >> np.uint64(31))).astype(np.float64) / 2.0**64


def weights(shapes: dict[str, tuple[int, ...]], seed: int = 1) -> dict[str, np.ndarray]:
    """Return first values: matrices uniform within 1/sqrt(inputs), gains of norms one, biases zero; float32 values."""
    found = {}
    for k, (name, shape) in enumerate(shapes.items()):
        if len(shape) > 1:
            bound = float(np.prod(shape[1:])) ** -0.5
            drawn = (2.0 * uniform(seed * 1000 + k, int(np.prod(shape))) - 1.0) * bound
        else:
            drawn = np.full(shape, 0.0 if name.endswith("bias") else 1.0)
        found[name] = drawn.reshape(shape).astype(np.float32)
    return found


def digits(job_shape: tuple[int, ...]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return a batch of images and labels for each step, in an order of their own for each pass."""
    from sklearn.datasets import load_digits

    data = load_digits()
    images, labels = (data.data / 16.0).astype(np.float32), data.target.astype(np.int64)
    a_pass = len(labels) // BATCH
    batches = []
    for step in range(STEPS):
        order = np.argsort(uniform(7 + step // a_pass, len(labels)), kind="stable")
        rows = order[step % a_pass * BATCH :][:BATCH]
        batches.append((images[rows].reshape(-1, *job_shape), labels[rows]))
    return batches


def tokens() -> list[tuple[np.ndarray, np.ndarray]]:
    """Return tokens and the next tokens for each step: a walk whose moves depend on where it is, and on chance."""
    size, length = GPT["vocab_size"], GPT["context"]
    batches = []
    for step in range(STEPS):
        chance = uniform(10_000 + step, SEQUENCES * (length + 1)).reshape(SEQUENCES, length + 1)
        walk = np.empty((SEQUENCES, length + 1), np.int64)
        walk[:, 0] = chance[:, 0] * size
        for k in range(1, length + 1):
            walk[:, k] = (walk[:, k - 1] * 5 + 7 + (chance[:, k] * 4).astype(np.int64)) % size
        batches.append((walk[:, :-1], walk[:, 1:]))
    return batches


# ---- the models --------------------------------------------------------------------------------------------------


def mlp(nn: Any) -> Any:
    """Return a network of two hidden layers, of polygrad's or of PyTorch's modules."""
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))


def lenet(nn: Any, act: str = "Tanh") -> Any:
    """Return a network of LeNet's size, for images of 8 x 8. Source: LeCun et al., Gradient-based learning (1998)."""
    act = getattr(nn, act)
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), act(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5, padding=2), act(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64, 120), act(), nn.Linear(120, 84), act(), nn.Linear(84, 10),
    )  # fmt: skip


def gpt(nn: Any) -> Any:
    """Return a GPT of two layers: polygrad's, or the same written with PyTorch, with the same names."""
    if nn is pg.nn:
        return nn.GPT(**GPT)
    from torch_gpt import torch_gpt

    return torch_gpt(pg.nn.GPTConfig(**GPT))


class Job(NamedTuple):
    """A model, its batches, the optimiser and its hyper-parameters, which both libraries call alike."""

    model: Callable[[Any], Any]
    batches: Callable[[], list[tuple[np.ndarray, np.ndarray]]]
    optimizer: str
    options: dict[str, Any]


SGD = {"lr": 0.05, "momentum": 0.9}
ADAMW = {"lr": 1e-3, "betas": (0.9, 0.95), "weight_decay": 0.1}
JOBS = {
    "MLP, SGD": Job(mlp, lambda: digits((64,)), "SGD", SGD),
    "MLP, AdamW": Job(mlp, lambda: digits((64,)), "AdamW", ADAMW),
    "CNN, SGD": Job(lenet, lambda: digits((1, 8, 8)), "SGD", SGD),
    "CNN, AdamW": Job(lenet, lambda: digits((1, 8, 8)), "AdamW", ADAMW),
    "GPT, SGD": Job(gpt, tokens, "SGD", SGD),
    "GPT, AdamW": Job(gpt, tokens, "AdamW", ADAMW),
}


# ---- the trainings -----------------------------------------------------------------------------------------------


def polygrads(job: Job, device: str, steps: int = STEPS, dtype: str = "float32", seed: int = 1) -> list[float]:
    """Return the losses of *job* in polygrad on *device*."""
    with pg.device(device):
        model = job.model(pg.nn).to(dtype=getattr(pg, dtype))
        first = weights({name: tuple(p.shape) for name, p in model.named_parameters()}, seed)
        model.load_state_dict({name: value.astype(dtype) for name, value in first.items()})
        for p in model.parameters():
            p.no_decay = False  # PyTorch decays all of them
        optimizer = getattr(pg.optim, job.optimizer)(model, **job.options)
        losses = []
        for x, labels in job.batches()[:steps]:
            given = pg.asarray(x if x.dtype.kind == "i" else x.astype(dtype))
            scores = model(given)
            loss = pg.nn.cross_entropy(pg.reshape(scores, (-1, scores.shape[-1])), pg.asarray(labels.reshape(-1)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step(also=loss)
            losses.append(float(loss))
        return losses


def pytorchs(job: Job, dtype: str, steps: int = STEPS, seed: int = 1) -> list[float]:
    """Return the losses of *job* in PyTorch on the CPU, on one thread."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        kind = getattr(torch, dtype)
        model = job.model(torch.nn).to(kind)
        first = weights({name: tuple(p.shape) for name, p in model.named_parameters()}, seed)
        model.load_state_dict({name: torch.tensor(value).to(kind) for name, value in first.items()})
        optimizer = getattr(torch.optim, job.optimizer)(model.parameters(), **job.options)
        losses = []
        for x, labels in job.batches()[:steps]:
            given = torch.tensor(x) if x.dtype.kind == "i" else torch.tensor(x).to(kind)
            scores = model(given)
            wanted = torch.tensor(labels.reshape(-1))
            loss = torch.nn.functional.cross_entropy(scores.reshape(-1, scores.shape[-1]), wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses
    finally:
        torch.set_num_threads(threads)


# ---- the comparison ----------------------------------------------------------------------------------------------


class Comparison(NamedTuple):
    """What a training came to: the largest differences of losses, and whether they are small enough."""

    drift: float  # of PyTorch's float32 from its float64, at the end
    from64: float  # of ours from PyTorch's float64, at the end
    from32: float
    ratio: float  # the largest ours(t) / drift(t)
    close: float  # the largest relative difference over the first steps

    @property
    def good(self) -> bool:
        """Whether the losses follow PyTorch's."""
        return self.ratio <= TIMES and self.close <= CLOSE


def compare(ours: Sequence[float], t32: Sequence[float], t64: Sequence[float]) -> Comparison:
    """Return how far the losses *ours* are from PyTorch's, which may be longer."""
    p, low, high = (np.asarray(values[: len(ours)], np.float64) for values in (ours, t32, t64))
    drift = np.maximum.accumulate(np.maximum(np.abs(low - high), ROUNDING * np.abs(high)))
    gap = np.maximum.accumulate(np.where(np.isnan(p), np.inf, np.abs(p - high)))
    early = max(float(np.max(np.abs(p - t)[:FIRST] / np.abs(t[:FIRST]))) for t in (low, high))
    return Comparison(
        float(drift[-1]), float(gap[-1]), float(np.max(np.abs(p - low))), float(np.max(gap / drift)), early
    )


def references(jobs: Sequence[str]) -> dict[str, dict[str, list[float]]]:
    """Return PyTorch's losses in both dtypes by job."""
    return {name: {dtype: pytorchs(JOBS[name], dtype) for dtype in ("float64", "float32")} for name in jobs}


def written(found: dict[str, dict[str, list[float]]]) -> str:
    """Return losses as JSON: float32 ones have nine digits, float64 ones twelve, ten to a line."""
    lines = []
    for name, by_dtype in found.items():
        rows = []
        for dtype, losses in by_dtype.items():
            texts = [f"{x:.9g}" if dtype == "float32" else f"{x:.12g}" for x in losses]
            body = ",\n   ".join(", ".join(texts[k : k + 8]) for k in range(0, len(texts), 8))
            rows.append(f"  {json.dumps(dtype)}: [\n   {body}\n  ]")
        lines.append(f" {json.dumps(name)}: {{\n" + ",\n".join(rows) + "\n }")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def kinks(devices: Sequence[str], seeds: int = 8) -> None:
    """Print from how many first weights a CNN with kinks has a loss that is 1e-5 or more from PyTorch's float64."""
    job = Job(lambda nn: lenet(nn, "ReLU"), lambda: digits((1, 8, 8)), "AdamW", ADAMW)
    jumps = dict.fromkeys(["PyTorch", *devices], 0)
    for seed in range(2, 2 + seeds):
        high = np.asarray(pytorchs(job, "float64", seed=seed))
        for who in jumps:
            ours = pytorchs(job, "float32", seed=seed) if who == "PyTorch" else polygrads(job, who, seed=seed)
            jumps[who] += int(np.max(np.abs(np.asarray(ours) - high)) > CLOSE)
    for who, count in jumps.items():
        print(f"CNN with ReLU, {who}: from {count} of {seeds} first weights a loss jumps by more than {CLOSE}")


def main() -> int:
    """Print a table of what is asked for; return 1 if a training strays."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("devices", nargs="*", default=["cpu:0"])
    parser.add_argument("--jobs", default="", help="names that contain this alone")
    parser.add_argument("--write", type=Path, help="write PyTorch's losses there, and compare nothing")
    parser.add_argument("--kinks", action="store_true", help="count jumps of a network that has kinks, no more")
    given = parser.parse_args()
    if given.kinks:
        kinks(given.devices)
        return 0
    chosen = [name for name in JOBS if given.jobs in name]
    found = references(chosen)
    if given.write:
        given.write.write_text(written(found))
        return 0
    print(
        f"largest differences of losses over {STEPS} steps; ratio: the largest, over steps, of ours to PyTorch's drift"
    )
    print(f"{'':11s} {'device':12s} {'T32-T64':>9s} {'P-T64':>9s} {'P-T32':>9s} {'ratio':>6s} {'first 20':>9s}  loss")
    strayed = False
    for name in chosen:
        t64, t32 = found[name]["float64"], found[name]["float32"]
        for device in given.devices:
            ours = polygrads(JOBS[name], device)
            c = compare(ours, t32, t64)
            strayed |= not c.good
            print(
                f"{name:11s} {device:12s} {c.drift:9.1e} {c.from64:9.1e} {c.from32:9.1e} {c.ratio:6.2f} {c.close:9.1e}"
                f"  {ours[0]:.3f} to {ours[-1]:.3f}: {'follows' if c.good else 'STRAYS'}",
                flush=True,
            )
    return int(strayed)


if __name__ == "__main__":
    raise SystemExit(main())
