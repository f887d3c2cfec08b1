"""Tokens of a GPT one by one: with a cache and without, and what it saves that a step is compiled.

``python benchmarks/generation.py [--device cpu:0] [--dim 128] [--layers 4] [--context 256]``

Here: the time of a token, and its parts as ratios.
Not here: training (`training.py`), the model.

"called" computes the same step with a cache by calling the model for each token. The first tokens are not counted; the
figures are the medians of the rest.
"""

import argparse
import contextlib
import statistics
import time
from unittest import mock

import polygrad as pg
from polygrad.array import compiling

SKIPPED = 40  # tokens


def token_times(model, count, *, cache=True, compiled=True):
    """Return the median time of a token in milliseconds."""
    stream = model.stream(pg.asarray([[1, 2, 3]]), count + SKIPPED, temperature=0.0, use_cache=cache)
    times = []
    with contextlib.nullcontext() if compiled else mock.patch.object(compiling, "compile", lambda f: f):
        for _ in range(count + SKIPPED):
            began = time.perf_counter()
            next(stream)
            times.append(time.perf_counter() - began)
    return statistics.median(times[SKIPPED:]) * 1e3


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cpu:0")
    for name, default in (("dim", 128), ("layers", 4), ("context", 256), ("tokens", 40)):
        parser.add_argument(f"--{name}", type=int, default=default)
    a = parser.parse_args()
    pg.set_device(a.device)
    pg.random.seed(0)
    model = pg.nn.GPT(vocab_size=2048, context=a.context, dim=a.dim, layers=a.layers, heads=max(1, a.dim // 32))
    print(
        f"{a.device}, {a.layers} layers of {a.dim}, context {a.context}, tokens {SKIPPED + 1} to {SKIPPED + a.tokens}"
    )
    print(f"{'':14}  ms a token   times the first")
    ours = token_times(model, a.tokens)
    for name, took in (
        ("cached", ours),
        ("called", token_times(model, a.tokens, compiled=False)),
        ("no cache", token_times(model, a.tokens, cache=False)),
    ):
        print(f"{name:14}  {took:10.2f}   {took / ours:10.2f}", flush=True)


if __name__ == "__main__":
    main()
