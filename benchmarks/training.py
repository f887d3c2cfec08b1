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
from polygrad.graph.node import RECORDING
from polygrad.runtime.devices import state
from polygrad.schedule import alike

SHAPES = [(1024, 1024), (1024,)] * 8  # of parameters
SMALL_SHAPES = [(64, 64), (64,), (256, 64), (256,), (32, 16, 3, 3)] * 20
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


def recording() -> tuple[Callable[[], object], Callable[[], object]]:
    """Return a training step of a tiny network recorded by rules, and from templates: nearly all of it is Python."""
    model = pg.nn.Sequential(pg.nn.Linear(8, 8), pg.nn.ReLU(), pg.nn.Linear(8, 8), pg.nn.ReLU(), pg.nn.Linear(8, 4))
    optimiser = pg.optim.AdamW(model, lr=1e-4)
    x, y = pg.random.normal((16, 8), dtype=pg.float32), pg.random.randint(0, 4, (16,))

    def step() -> None:
        loss = pg.nn.cross_entropy(model(x), y)
        loss.backward()
        optimiser.step(also=loss)
        optimiser.zero_grad()

    def by_rules() -> None:
        RECORDING.observer = lambda _: None  # it is to see all nodes: templates are for graphs that nobody watches
        try:
            step()
        finally:
            RECORDING.observer = None

    for _ in range(8):
        by_rules(), step()
    return by_rules, step


def marking(steps: int = 20) -> tuple[Callable[[], object], Callable[[], object]]:
    """Return compiled steps that wait for the device before they look at indices, and such that wait for a mark."""
    _, step = compiling()
    found = state(pg.get_device())
    looks = found._looked_at

    def waits(idle: bool) -> bytes | None:
        if not idle:
            found.device.synchronize()
        return looks(True)

    def run(look: Callable[[bool], bytes | None]) -> None:
        found._looked_at = look
        try:
            for _ in range(steps):
                step()
            pg.synchronize()
        finally:
            found._looked_at = looks

    return lambda: run(waits), lambda: run(looks)


def updating(*, compiled: bool) -> tuple[Callable[[], object], Callable[[], object]]:
    """Return an AdamW step of 100 small parameters with a launch for each, and one whose launches are made together.

    They are the same on devices that do not make launches together.
    """
    rng = np.random.default_rng(0)

    def stepper(most: int) -> Callable[[], object]:
        parameters, gradients = ([pg.asarray(rng.normal(size=s).astype("f4")) for s in SMALL_SHAPES] for _ in range(2))
        pg.realize(parameters, gradients)
        # Parameters in another order are another plan: what is planned for the one does not serve the other.
        order = range(100) if most else range(99, -1, -1)
        optimiser = pg.optim.AdamW([parameters[k] for k in order], lr=1e-6)
        own = [gradients[k] for k in order]
        step = pg.compile(lambda: optimiser.step(own)) if compiled else (lambda: optimiser.step(own))
        before, alike.SMALL = alike.SMALL, most
        try:
            for _ in range(6):
                step()
        finally:
            alike.SMALL = before
        return lambda: (step(), pg.synchronize())

    return stepper(0), stepper(alike.SMALL)


def overwriting() -> tuple[Callable[[], object], Callable[[], object]]:
    """Return a compiled AdamW step of large parameters whose values change places, and one that writes over them."""

    def stepper(*, apart: bool) -> Callable[[], object]:
        parameters = [pg.nn.Parameter(np.ones((2000, 1000), dtype="float32")) for _ in range(6)]
        grads = [pg.full(p.shape, 0.5, dtype=pg.float32) for p in parameters]
        pg.realize(grads)
        optimiser = pg.optim.AdamW(parameters, lr=1e-6)
        held: list[pg.Array] = []

        @pg.compile
        def step() -> None:
            optimiser.step(grads)

        def run() -> None:
            if apart:  # what is held is not written over
                held[:] = [x.detach() for x in (*parameters, *optimiser_arrays(optimiser))]
            step()
            pg.synchronize()

        for _ in range(4):
            run()
        return run

    return stepper(apart=True), stepper(apart=False)


def optimiser_arrays(optimiser: pg.optim.Optimizer) -> list[pg.Array]:
    """Return the arrays of an optimiser's state."""
    return [x for state in optimiser.state.values() for x in state.values() if isinstance(x, pg.Array)]


def torch_updating(device: str) -> str:
    """Return what the same step takes in PyTorch on the same device, in ms; empty where that is not to be had."""
    try:
        import torch
    except ImportError:
        return ""
    where = device.split(":", maxsplit=1)[0]
    if where != "cpu" and not (where == "cuda" and torch.cuda.is_available()):
        return ""
    wait = torch.cuda.synchronize if where == "cuda" else lambda: None
    found = []
    for how in ("foreach", "fused"):
        parameters = [torch.nn.Parameter(torch.randn(*s, device=where)) for s in SMALL_SHAPES]
        for p in parameters:
            p.grad = torch.randn_like(p)
        optimiser = torch.optim.AdamW(parameters, 1e-6, **{how: True})

        def step(optimiser: torch.optim.Optimizer = optimiser) -> None:
            optimiser.step()
            wait()

        found.append(f"{how} {turns(step, step, 0.5)[0] * 1e3:.3f}")
    return f"AdamW of 100 small parameters in PyTorch, ms: {', '.join(found)}"


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
        "tiny MLP, by rules | from templates": recording(),
        "20 such, wait for everything | for a mark": marking(),
        "AdamW of 100, launches apart | together": updating(compiled=False),
        "the same, compiled": updating(compiled=True),
        "AdamW of 12M, beside | over old values": overwriting(),
    }.items():
        a, b = turns(first, second, given.seconds)
        print(f"{name:44s} {a * 1e3:9.2f} {b * 1e3:9.2f} {a / b:6.2f}")
    print(torch_updating(given.device))


if __name__ == "__main__":
    main()
