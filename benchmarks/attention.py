"""Causal attention by the device's own op, beside what it replaces (products and a softmax) and PyTorch.

Here: forward, and forward with backward, in turns in one process, random data. Not here: models (`step_memory.py`,
`python -m polygrad bench`).

    python benchmarks/attention.py --device cuda:0 [--shape 4,12,1024,64] [--dtype float32] [--seconds 4]

Times are the shortest of rounds in which all take turns, each ended by a synchronisation; on the host, processor time
of all threads stands beside. The peak is what the pool of arrays held at once.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np

import polygrad as pg

attend = pg.nn.scaled_dot_product_attention
ROUND = 5  # calls between synchronisations


def ours(arrays: list[Any], by_op: bool) -> dict[str, Callable[[], object]]:
    """Return forward, and forward with backward, by the op or by what it replaces."""
    q, k, v, g = arrays

    def loss(*x: Any) -> Any:
        return (attend(*x, is_causal=True) * g).sum()

    def run(function: Callable[[], Any]) -> Callable[[], object]:
        def call() -> None:
            if by_op:
                pg.realize(function())
                return
            with mock.patch("polygrad.ops.attention.suits", return_value=False):
                pg.realize(function())

        return call

    return {
        "forward": run(lambda: attend(q, k, v, is_causal=True)),
        "both": run(lambda: pg.grad(loss, argnums=(0, 1, 2))(q, k, v)),
    }


def peers(values: list[Any], device: str, dtype: str) -> tuple[dict[str, Callable[[], object]], Callable[[], None]]:
    """Return the same by PyTorch on the same device, and what waits for it; nothing if it is not there."""
    try:
        import torch
    except ImportError:
        return {}, lambda: None
    if device.startswith("cuda") and not torch.cuda.is_available():
        return {}, lambda: None
    where = "cuda" if device.startswith("cuda") else "cpu"
    *x, g = (torch.tensor(a, dtype=getattr(torch, dtype), device=where) for a in values)
    leaves = [a.clone().requires_grad_() for a in x]
    function = torch.nn.functional.scaled_dot_product_attention
    found = {
        "forward": lambda: function(*x, is_causal=True),
        "both": lambda: torch.autograd.grad((function(*leaves, is_causal=True) * g).sum(), leaves),
    }
    return found, torch.cuda.synchronize if where == "cuda" else lambda: None


def timed(call: Callable[[], object], wait: Callable[[], object]) -> tuple[float, float]:
    """Return wall and processor seconds of a call."""
    wait()
    began, used = time.perf_counter(), time.process_time()
    for _ in range(ROUND):
        call()
    wait()
    return (time.perf_counter() - began) / ROUND, (time.process_time() - used) / ROUND


def peak(call: Callable[[], object], device: str) -> float:
    """Return how many MiB a call holds at once beside what was there."""
    from polygrad.runtime.devices import state

    pool = state(device).pool
    pg.empty_cache()
    pool.peak = before = pg.memory_stats(device)["used"]
    call()
    return (pg.memory_stats(device)["peak"] - before) / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu:0")
    parser.add_argument("--shape", default="4,8,512,64", help="batch, heads, positions, features")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--seconds", type=float, default=4.0, help="for each of forward and both")
    given = parser.parse_args()
    pg.set_device(given.device)
    shape = tuple(int(n) for n in given.shape.split(","))
    rng = np.random.default_rng(0)
    values = [rng.standard_normal(shape, dtype=np.float32) for _ in range(4)]
    arrays = [pg.asarray(a, dtype=given.dtype).realize() for a in values]
    other, wait = peers(values, given.device, given.dtype)
    ways = {"op": ours(arrays, True), "composite": ours(arrays, False), "torch": other}
    work = 4 * shape[0] * shape[1] * shape[2] ** 2 * shape[3] / 2
    print(f"{given.device} ({pg.get_device()}), {list(shape)}, {given.dtype}, causal")
    for what, factor in (("forward", 1.0), ("both", 3.5)):
        calls = {name: way[what] for name, way in ways.items() if what in way}
        best = {name: (float("inf"), float("inf")) for name in calls}
        for call in calls.values():
            call()
        end = time.perf_counter() + given.seconds
        while time.perf_counter() < end:
            for name, call in calls.items():
                found = timed(call, wait if name == "torch" else pg.synchronize)
                best[name] = (min(best[name][0], found[0]), min(best[name][1], found[1]))
        for name, (wall, cpu) in best.items():
            base, rate = best["op"], work * factor / wall / 1e12
            held = "" if name == "torch" else f", peak {peak(calls[name], given.device):.0f} MiB"
            print(
                f"  {what:8} {name:10} {wall * 1e3:8.3f} ms ({wall / base[0]:.2f} of op), {rate:6.2f} TFLOP/s, "
                f"processor {cpu * 1e3:8.3f} ms ({cpu / base[1]:.2f}){held}"
            )


if __name__ == "__main__":
    main()
