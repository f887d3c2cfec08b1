"""Matrix products with what follows them: in one launch, beside a kernel of its own; the fastest algorithm, by asking.

Here: rows of layers of one size, as compiled functions that take turns. Not here: products by themselves on one driver
(`cuda_ops.py`, `opencl_gpu.py`), other libraries' (`python -m polygrad bench --work 'matmul*'`).

    python benchmarks/products.py [cpu:0] [--seconds 2] [--large]

A function is `LAYERS` products, one after the other, so that a replay's own cost meets many. `apart`: the sum has a
launch of its own; `ended`: the product ends with it; `tuned`: the device has timed its algorithms
(`pg.set_matmul_tuning`).
"""

import argparse
import contextlib
import sys
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
from turns import turns

import polygrad as pg
from polygrad.runtime.devices import state

LAYERS = 8
SMALL = ((16, 64), (128, 256), (128, 512), (512, 512), (2048, 256))  # rows, width
LARGE = ((4096, 768), (4096, 3072))
Step = Callable[[pg.Array, Any, Any], pg.Array]


def relu_layers(x: pg.Array, weights: Any, biases: Any) -> pg.Array:
    """Layers with a bias and relu."""
    for w, b in zip(weights, biases, strict=True):
        x = pg.nn.relu(x @ w + b)
    return x


def sums(x: pg.Array, weights: Any, _: Any) -> pg.Array:
    """Sums of two products."""
    for w, v in zip(weights, weights[::-1], strict=True):
        x = x @ w + x @ v
    return x


def plain(x: pg.Array, weights: Any, _: Any) -> pg.Array:
    """Products and nothing else."""
    for w in weights:
        x = x @ w
    return x


def compiled(step: Step, data: Any, *, joined: bool, tuned: bool) -> Callable[[], object]:
    """Return a replay of *step*, whose products end with sums or not."""
    planning = sys.modules["polygrad.schedule.plan"]
    keep = mock.patch.object(planning, "joined", lambda steps, *_: steps)
    replay = pg.compile(lambda x, weights, biases: step(x, weights, biases))

    def run() -> object:
        pg.set_matmul_tuning(tuned)
        out = replay(*data)
        pg.synchronize()
        return out

    state(str(pg.get_device())).plans.clear()
    with contextlib.nullcontext() if joined else keep:
        for _ in range(3):
            run()
    return run


def main() -> None:
    """Print a line for each size and kind of layer."""
    parser = argparse.ArgumentParser()
    parser.add_argument("device", nargs="?", default=pg.get_device())
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--large", action="store_true")
    options = parser.parse_args()
    pg.set_device(options.device)
    rng = np.random.default_rng(0)
    for rows, width in SMALL + (LARGE if options.large else ()):
        make = lambda *s: pg.asarray(rng.normal(size=s) / np.sqrt(width), dtype=pg.float32)  # noqa: E731
        data = pg.realize(
            (make(rows, width), [make(width, width) for _ in range(LAYERS)], [make(width) for _ in range(LAYERS)])
        )
        size = f"[{rows}, {width}] x {LAYERS}"
        for step in (relu_layers, sums):
            ways = [compiled(step, data, joined=joined, tuned=False) for joined in (False, True)]
            first, second = turns(*ways, options.seconds)
            said = f"apart {first * 1e6:.0f} us, ended {second * 1e6:.0f}, {second / first:.2f} times"
            print(f"{step.__name__} {size}: {said}", flush=True)
        ways = [compiled(plain, data, joined=True, tuned=tuned) for tuned in (False, True)]
        first, second = turns(*ways, options.seconds)
        said = f"{first * 1e6:.0f} us, tuned {second * 1e6:.0f}, {second / first:.2f} times"
        print(f"plain {size}: {said}", flush=True)
    pg.set_matmul_tuning(False)


if __name__ == "__main__":
    main()
