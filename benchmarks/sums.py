"""How accurate and how fast sums of float32 are on a device, beside NumPy's.

    python benchmarks/sums.py opencl:0
    PYTHONPATH=examples/driver-cc python benchmarks/sums.py cc:0 --plugin polygrad_driver_cc:plugin

Errors are relative to the sum of absolute values, in units of float32's epsilon (1.19e-7), against float64: the worst
of all elements of a result. Times are the best of many, ratios those of one process that takes turns with NumPy.

Here: forms of sums, their errors and times. Not here: which driver does what.
"""

import argparse
import importlib
import time

import numpy as np

import polygrad as pg
from polygrad.driver.loader import REGISTRY

EPSILON = float(np.finfo(np.float32).eps)
SHAPE = (1000, 1000)
TALL = (125_000, 8)

FORMS = {  # name: shape, the same text for polygrad and NumPy
    "sum of 10^6": ((1_000_000,), lambda xp, a, _: xp.sum(a)),
    "rows": (SHAPE, lambda xp, a, _: xp.sum(a, axis=1)),
    "columns": (SHAPE, lambda xp, a, _: xp.sum(a, axis=0)),
    "tall columns": (TALL, lambda xp, a, _: xp.sum(a, axis=0)),
    "dot of 10^6": ((1_000_000,), lambda xp, a, b: xp.sum(a * b)),
    "rows of a product": (SHAPE, lambda xp, a, b: xp.sum(a * b, axis=1)),
    "outer and inner axis": ((100, 50, 200), lambda xp, a, _: xp.sum(a, axis=(0, 2))),
    "greatest of rows": (SHAPE, lambda xp, a, _: xp.max(a, axis=1)),
}


def error_of(got: np.ndarray, form, a: np.ndarray, b: np.ndarray) -> float:
    """Return the worst relative error, in epsilons; products are those of float32, as both sides round them."""
    right = form(np, a.astype(np.float64), b.astype(np.float64))
    size = form(np, np.abs(a).astype(np.float64), np.abs(b).astype(np.float64))
    return float(np.max(np.abs(got - right) / np.maximum(np.abs(size), 1e-300))) / EPSILON


def best(function, seconds: float) -> float:
    """Return the shortest time of a call, in seconds."""
    function()
    end, shortest = time.perf_counter() + seconds, float("inf")
    while time.perf_counter() < end:
        began = time.perf_counter()
        function()
        shortest = min(shortest, time.perf_counter() - began)
    return shortest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("device", nargs="?", default="opencl:0")
    parser.add_argument("--plugin", action="append", default=[], help="MODULE:NAME of a driver to register first")
    parser.add_argument("--seconds", type=float, default=0.4, help="for each time")
    arguments = parser.parse_args()
    for name in arguments.plugin:
        module, _, attribute = name.partition(":")
        REGISTRY.register(getattr(importlib.import_module(module), attribute))
    rng = np.random.default_rng(0)
    print(f"{arguments.device}: sums of float32 in [0, 1)")
    print(f"{'':22}{'error':>9}{'NumPy':>9}{'ms':>9}{'NumPy':>9}{'ratio':>8}")
    for name, (shape, form) in FORMS.items():
        a, b = (rng.random(shape, dtype=np.float32) for _ in range(2))
        x, y = (pg.asarray(v, device=arguments.device) for v in (a, b))
        result = form(pg, x, y)
        ours = error_of(result.numpy(), form, a, b)
        theirs = error_of(form(np, a, b), form, a, b)

        def run(form=form, x=x, y=y) -> None:
            pg.realize(form(pg, x, y))
            pg.synchronize(arguments.device)

        turns = [
            (best(run, arguments.seconds / 4), best(lambda: form(np, a, b), arguments.seconds / 4)) for _ in range(4)
        ]
        mine, numpys = (min(t[k] for t in turns) for k in (0, 1))
        print(f"{name:22}{ours:9.2f}{theirs:9.2f}{mine * 1e3:9.3f}{numpys * 1e3:9.3f}{numpys / mine:8.2f}")


if __name__ == "__main__":
    main()
