"""What clipping inside a step, reading ahead, orders without lists, figures read seldom and compiling save, and what
`fit` costs, as ratios.

    python benchmarks/training.py cpu:0

Each ratio is of two times of one process that takes turns; a time is the best of many.

Here: the optimiser's step, the loader, the loop.
Not here: layers and kernels (the other benchmarks).
"""

import argparse
import io
import random
import time
from collections.abc import Callable

import numpy as np
from turns import turns

import polygrad as pg

SHAPES = [(1024, 1024), (1024,)] * 8  # of parameters
WORK = 0.004  # seconds a batch, of reading and of training


def clipping() -> tuple[Callable[[], object], Callable[[], object]]:
    """Return a step after clipped gradients were computed, and one that clips."""
    parameters = [pg.nn.Parameter(np.ones(s, dtype="float32")) for s in SHAPES]
    grads = [pg.full(s, 0.5, dtype=pg.float32) for s in SHAPES]
    pg.realize(grads)
    optimiser = pg.optim.AdamW(parameters, lr=1e-6)

    def apart() -> None:
        clipped, norm = pg.optim.clip_by_global_norm(grads, 1.0)
        pg.realize(clipped, norm)
        optimiser.step(clipped)
        pg.synchronize()

    def inside() -> None:
        optimiser.step(grads, max_norm=1.0)
        pg.synchronize()

    return apart, inside


def launches(*steps: Callable[[], object]) -> list[int]:
    """Return how many launches each step takes."""
    out = []
    for step in steps:
        step()
        with pg.launch_counter() as c:
            step()
        out.append(c.total)
    return out


class Slow(pg.data.Dataset):
    """Samples that take their time, as files do."""

    def __len__(self) -> int:
        """Return how many."""
        return 20

    def __getitem__(self, k: int) -> np.ndarray:
        """Wait, and return a sample."""
        time.sleep(WORK)
        return np.full(1000, k, dtype="float32")


def reading() -> tuple[Callable[[], object], Callable[[], object]]:
    """Return an epoch that reads when asked, and one that reads ahead."""

    def epoch(prefetch: int) -> None:
        for _ in pg.data.DataLoader(Slow(), prefetch_factor=prefetch):
            time.sleep(WORK)  # the device is at work

    return lambda: epoch(0), lambda: epoch(2)


def shuffling(n: int = 1_000_000, used: int = 3200) -> tuple[Callable[[], object], Callable[[], object]]:
    """Return a shuffled list of which the first 100 batches are taken, and those elements of a permutation."""

    def listed() -> list[int]:
        order = list(range(n))
        random.Random(1).shuffle(order)
        return order[:used]

    def computed() -> list[int]:
        order = pg.data.Permutation(n, key=1)
        return [order[k] for k in range(used)]

    return listed, computed


def looping(steps: int = 50) -> tuple[Callable[[], object], Callable[[], object]]:
    """Return a loop written by hand that reads each loss, and `fit`."""
    x = pg.random.normal((16, 8), dtype=pg.float32)  # small, so that Python's share shows
    model = pg.nn.Sequential(pg.nn.Linear(8, 16), pg.nn.GELU(), pg.nn.Linear(16, 8))
    optimiser = pg.optim.AdamW(model, lr=1e-6)

    def loss(model: pg.nn.Module, batch: pg.Array) -> pg.Array:
        return pg.nn.mse_loss(model(batch), batch)

    def by_hand() -> None:
        for _ in range(steps):
            value = loss(model, x)
            value.backward()
            optimiser.step(also=value)
            optimiser.zero_grad()
            float(value)

    def fitted() -> None:
        with pg.training.Progress(steps, console=io.StringIO()) as progress:
            pg.training.fit(model, loss, [x] * steps, optimiser, steps=steps, progress=progress)

    return by_hand, fitted


def showing(steps: int = 400) -> tuple[Callable[[], object], Callable[[], object]]:
    """Return steps whose loss is read by each, and steps whose loss a bar reads when it shows it."""
    x = pg.ones((1000,), dtype=pg.float32)

    def each() -> None:
        y = x
        for _ in range(steps):
            y = y * 0.99
            pg.realize(y)
            float(pg.sum(y))

    def seldom() -> None:
        y = x
        with pg.training.Progress(steps, console=io.StringIO()) as progress:
            for _ in range(steps):
                y = y * 0.99
                pg.realize(y)
                progress.update(loss=pg.sum(y))

    return each, seldom


def compiling() -> tuple[Callable[[], object], Callable[[], object]]:
    """Return a training step of a small network, and the same step compiled."""
    model = pg.nn.Sequential(
        pg.nn.Linear(784, 512), pg.nn.ReLU(), pg.nn.Linear(512, 256), pg.nn.ReLU(), pg.nn.Linear(256, 10)
    )
    optimiser = pg.optim.AdamW(model, lr=1e-4)
    x = pg.random.normal((128, 784), dtype=pg.float32)
    y = pg.random.randint(0, 10, (128,))

    def step(x: pg.Array, y: pg.Array) -> pg.Array:
        loss = pg.nn.cross_entropy(model(x), y)
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        return loss

    compiled = pg.compile(step)
    for _ in range(8):
        compiled(x, y)
    return lambda: step(x, y), lambda: compiled(x, y)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("device", nargs="?", default="cpu:0")
    parser.add_argument("--seconds", type=float, default=2.0)
    given = parser.parse_args()
    print(f"{pg.set_device(given.device)}: launches of clipping apart and inside: {launches(*clipping())}")
    print("times in ms, and the ratio of the first to the second")
    for name, (first, second) in {
        "clip, then step | step(max_norm=)": clipping(),
        "read when asked | prefetch_factor=2": reading(),
        "shuffled list | Permutation, 3200 of 1e6": shuffling(),
        "loop by hand | fit with a bar, 50 steps": looping(),
        "loss read at each step | shown by Progress": showing(),
        "MLP 784-512-256-10, AdamW | compiled": compiling(),
    }.items():
        a, b = turns(first, second, given.seconds)
        print(f"{name:44s} {a * 1e3:9.2f} {b * 1e3:9.2f} {a / b:6.2f}")


if __name__ == "__main__":
    main()
