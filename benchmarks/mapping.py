"""What `vmap` costs on a device: beside a Python loop over the examples, and beside the batched expression by hand.

    python benchmarks/mapping.py cpu:0

Times are the best of turns that the sides take, recording included. The last column is vmap's time over that of the
expression by hand: 1 means that mapping costs nothing but reading the graph.

Here: calls and times. Not here: accuracy.
"""

import argparse
import time
from collections.abc import Callable

import numpy as np

import polygrad as pg

EXAMPLES, WIDTH = 256, 128


def loss(w: pg.Array, x: pg.Array) -> pg.Array:
    return pg.sum(pg.tanh(x @ w) ** 2)


def by_hand(w: pg.Array, x: pg.Array) -> pg.Array:
    """Return the gradient of `loss` for each row of x."""
    y = pg.tanh(x @ w)
    return x[:, :, None] * (2.0 * y * (1.0 - y * y))[:, None, :]


def forms(w: pg.Array, x: pg.Array) -> dict[str, tuple[Callable, Callable, Callable]]:
    """Return name to (mapped, loop, by hand)."""
    row, slope = lambda v: pg.tanh(v @ w), pg.grad(loss)
    mapped, each = pg.vmap(row), pg.vmap(slope, in_axes=(None, 0))
    return {
        "product with a shared matrix": (
            lambda: mapped(x),
            lambda: pg.stack([row(x[i]) for i in range(EXAMPLES)]),
            lambda: pg.tanh(x @ w),
        ),
        "a gradient for each example": (
            lambda: each(w, x),
            lambda: pg.stack([slope(w, x[i]) for i in range(EXAMPLES)]),
            lambda: by_hand(w, x),
        ),
        "softmax of each row": (
            lambda: pg.vmap(pg.softmax)(x),
            lambda: pg.stack([pg.softmax(x[i]) for i in range(EXAMPLES)]),
            lambda: pg.softmax(x, axis=1),
        ),
    }


def best(sides: list[Callable], turns: int) -> list[float]:
    times = [float("inf")] * len(sides)
    for _ in range(turns + 1):  # the first turn builds the kernels
        for k, side in enumerate(sides):
            pg.synchronize()
            start = time.perf_counter()
            pg.realize(side())
            pg.synchronize()
            times[k] = min(times[k], time.perf_counter() - start)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("device")
    parser.add_argument("--turns", type=int, default=5)
    asked = parser.parse_args()
    pg.set_device(asked.device)
    rng = np.random.default_rng(0)
    w = pg.asarray(rng.standard_normal((WIDTH, WIDTH)) / 12, dtype="float32")
    x = pg.asarray(rng.standard_normal((EXAMPLES, WIDTH)), dtype="float32")
    print(f"{asked.device}: {EXAMPLES} examples of {WIDTH} float32, milliseconds")
    print(f"{'':32} {'vmap':>8} {'loop':>9} {'by hand':>8} {'loop/vmap':>10} {'vmap/hand':>10}")
    for name, sides in forms(w, x).items():
        a, b, c = (t * 1e3 for t in best(list(sides), asked.turns))
        print(f"{name:32} {a:8.2f} {b:9.2f} {c:8.2f} {b / a:10.1f} {a / c:10.2f}")


if __name__ == "__main__":
    main()
