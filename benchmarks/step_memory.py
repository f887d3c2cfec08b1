"""How much memory a training step of a GPT holds at most, beside PyTorch's, as ratios.

    python benchmarks/step_memory.py cpu:0
    python benchmarks/step_memory.py cuda:0 --shape 768,16,1024,4,32768,12

Ours is counted by the pool of the device (`pg.memory_stats`): the peak of a step that computes loss, gradients and
update as training loops do ("whole"), and of forward, backward and update each, when the loss and then the gradients
are looked at in between. PyTorch's on a GPU is `torch.cuda.max_memory_allocated`; on the CPU it is the running sum of
what the profiler sees its allocator take and give back, on top of parameters and state. Both are float32 with AdamW,
gradients set to None after each step; counted is the third step. "kept" is ours when nothing is computed again (see
`polygrad/schedule/recompute.py`), whose price is the ratio of times.

Here: memory. Not here: how fast a step is beside PyTorch's.
"""

import argparse
import contextlib
import gc
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from torch_gpt import torch_gpt

import polygrad as pg
from polygrad.runtime.devices import state
from polygrad.schedule import recompute

SHAPES = ("256,4,256,2,4096,4", "256,4,256,8,4096,4", "256,4,512,4,1024,8")
MB = 1e6


def config_of(shape: list[int]) -> tuple[pg.nn.GPTConfig, np.ndarray, np.ndarray]:
    """Return a configuration, tokens and next tokens for dim, layers, positions, batch, vocabulary, heads."""
    dim, layers, length, batch, vocabulary, heads = shape
    tokens = np.random.default_rng(0).integers(0, vocabulary, (batch, length + 1))
    config = pg.nn.GPTConfig(vocabulary, length, dim, layers, heads, hidden=4 * dim, positions="learned", tied=False)
    return config, tokens[:, :-1], tokens[:, 1:]


@contextlib.contextmanager
def nothing_again() -> Iterator[None]:
    """Make plans that keep every value which they need twice."""
    before, recompute.ENOUGH = recompute.ENOUGH, 1 << 62
    try:
        yield
    finally:
        recompute.ENOUGH = before


def peak_of(device: str) -> float:
    """Return the peak in MB since the last call, and start anew."""
    pg.synchronize(device)
    gc.collect()
    found = pg.memory_stats(device)["peak"]
    pool = state(device).pool
    pool.peak = pg.memory_stats(device)["used"]
    return found / MB


def ours(shape: list[int], device: str, phases: bool) -> tuple[list[float], float]:
    """Return peaks in MB, of the whole step or of its phases, and the seconds of a step."""
    with pg.device(device):
        config, tokens, targets = config_of(shape)
        model = pg.nn.GPT(config)
        optimizer = pg.optim.AdamW(model, lr=3e-4)
        x, y = pg.asarray(tokens), pg.asarray(targets)
        for _ in range(3):
            peaks = []
            peak_of(device)
            began = time.perf_counter()
            loss = model.loss(x, y)
            if phases:
                pg.realize(loss)
                peaks.append(peak_of(device))
            loss.backward()
            if phases:
                pg.realize([p.grad for p in model.parameters()])
                peaks.append(peak_of(device))
            optimizer.step(also=loss)
            peaks.append(peak_of(device))
            seconds = time.perf_counter() - began
            del loss
            optimizer.zero_grad()
        return peaks, seconds


def pytorchs(shape: list[int], device: str, flash: bool) -> float:
    """Return the peak of PyTorch's step in MB."""
    import torch
    from torch.nn import functional

    config, tokens, targets = config_of(shape)
    model = torch_gpt(config, flash).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4, fused=True)
    x, y = torch.tensor(tokens, device=device), torch.tensor(targets, device=device)

    def step() -> None:
        functional.cross_entropy(model(x).view(-1, config.vocab_size), y.reshape(-1)).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    step()
    step()
    if device != "cpu":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        step()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() / MB
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        step()
    held = peak = 3.0 * sum(p.numel() * p.element_size() for p in model.parameters())
    events: list[Any] = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak / MB


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("device", nargs="?", default="cpu:0")
    parser.add_argument("--shape", action="append", help="dim,layers,positions,batch,vocabulary,heads")
    given = parser.parse_args()
    device = pg.set_device(given.device)
    theirs = "cuda" if device.startswith("cuda") else "cpu"
    print(f"{device}: peaks in MB of a step in float32 with AdamW; ratios of ours, whole, to PyTorch's")
    print(
        f"{'dim,layers,T,B,V,heads':24s} {'whole':>8s} {'forward':>8s} {'backward':>8s} {'update':>8s} {'kept':>8s}",
        end="",
    )
    print(f" {'time':>5s} | {'PyTorch, sdpa':>14s} {'ratio':>5s} {'written out':>12s} {'ratio':>5s}")
    for text in given.shape or SHAPES:
        shape = [int(n) for n in text.split(",")]
        (whole,), seconds = ours(shape, device, phases=False)
        parts, _ = ours(shape, device, phases=True)
        with nothing_again():
            state(device).plans.clear()
            (kept,), before = ours(shape, device, phases=False)
        state(device).plans.clear()
        row = "".join(f" {value:8.1f}" for value in (whole, *parts, kept))
        print(f"{text:24s}{row} {seconds / before:5.2f} |", end="", flush=True)
        fused, plain = pytorchs(shape, theirs, flash=True), pytorchs(shape, theirs, flash=False)
        print(f" {fused:14.1f} {whole / fused:5.2f} {plain:12.1f} {whole / plain:5.2f}", flush=True)


if __name__ == "__main__":
    main()
