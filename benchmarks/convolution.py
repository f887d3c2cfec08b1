"""Convolutions and maxima over windows, forward and backward: the device's own ops beside what stands in for them.

Here: layers of known networks, each three ways in turns: polygrad, polygrad without the ops, PyTorch where it is
installed.
Not here: a whole training step (`python -m polygrad bench --work convnet`).

    python benchmarks/convolution.py [--device cuda:0] [--images 8] [--seconds 1]

Times on a host are of the processor, all threads together: others may use the machine meanwhile. On a GPU they are of
the clock, until the device is done.
"""

import argparse
import contextlib
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import polygrad as pg
from polygrad.graph import asking

# Channels and size of images, outputs, kernel, stride, padding, groups.
LAYERS = {
    "first of an MNIST net": ((1, 28), 32, 3, 1, 1, 1),
    "second of an MNIST net": ((32, 14), 64, 3, 1, 1, 1),
    "first of ResNet": ((3, 224), 64, 7, 2, 3, 1),
    "ResNet 56": ((64, 56), 64, 3, 1, 1, 1),
    "ResNet 7": ((512, 7), 512, 3, 1, 1, 1),
    "ResNet 28, 1x1": ((256, 28), 64, 1, 1, 0, 1),
    "ResNeXt 28": ((128, 28), 128, 3, 1, 1, 32),
    "MobileNet 28, depthwise": ((128, 28), 128, 3, 1, 1, 128),
}
POOLS = {"2x2": ((32, 28), 2, 2, 0), "3x3, stride 2": ((64, 56), 3, 2, 1)}


@contextlib.contextmanager
def without_ops() -> Iterator[None]:
    """Record as on a device that has no ops of its own."""
    before = asking._askers[:]
    asking._askers[:] = [lambda *_: False]
    try:
        yield
    finally:
        asking._askers[:] = before


def both_ways(function: Callable[..., Any], arrays: list[Any]) -> Callable[[], None]:
    """Return a call that computes a function and its gradients."""
    cotangent = pg.ones_like(function(*arrays)).realize()

    def call() -> None:
        value, pull = pg.vjp(function, *arrays)
        pg.realize(value, *pull(cotangent))
        pg.synchronize()

    return call


def of_torch(function: Callable[..., Any], arrays: list[Any], device: str) -> Callable[[], None]:
    """Return the same for PyTorch."""
    import torch

    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    where = "cuda" if device.startswith("cuda") else "cpu"
    tensors = [torch.from_numpy(a.numpy()).to(where).requires_grad_() for a in arrays]
    cotangent = torch.ones_like(function(*tensors))

    def call() -> None:
        torch.autograd.grad(function(*tensors), tensors, cotangent)
        if where == "cuda":
            torch.cuda.synchronize()

    return call


def best(calls: dict[str, Callable[[], None]], seconds: float, clock: Callable[[], float]) -> dict[str, float]:
    """Return the least time of each of several calls that take turns."""
    for call in calls.values():
        call()
    least = dict.fromkeys(calls, float("inf"))
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for name, call in calls.items():
            began = clock()
            call()
            least[name] = min(least[name], clock() - began)
    return least


def line(title: str, ours: Callable[..., Any], theirs: Callable[..., Any], shapes: list[Any], options: Any) -> None:
    """Measure one layer and print a line."""
    rng = np.random.default_rng(0)
    arrays = [pg.asarray(rng.standard_normal(s).astype(np.float32)).realize() for s in shapes]
    plain = both_ways(ours, arrays)

    def composite() -> None:
        with without_ops():
            plain()

    calls = {"own": plain, "composite": composite}
    with contextlib.suppress(ImportError):
        calls["torch"] = of_torch(theirs, arrays, options.device)
    on_host = options.device.startswith("cpu")
    found = best(calls, options.seconds, time.process_time if on_host else time.perf_counter)
    ratios = "   ".join(f"own / {name} {found['own'] / t:5.2f}" for name, t in found.items() if name != "own")
    print(f"{title:26} {found['own'] * 1e3:9.2f} ms   {ratios}")


def main() -> None:
    """Print the table."""
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # PyTorch's threads would count as busy while they wait
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu:0")
    parser.add_argument("--images", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=1.0, help="for each line")
    options = parser.parse_args()
    pg.set_device(options.device)
    try:
        import torch.nn.functional as functional
    except ImportError:
        functional = None
    print(f"forward and backward, float32, {options.images} images, on {options.device}")
    for title, ((channels, size), outputs, kernel, stride, padding, groups) in LAYERS.items():
        shapes = [(options.images, channels, size, size), (outputs, channels // groups, kernel, kernel)]
        more = {"stride": stride, "padding": padding, "groups": groups}
        line(title, lambda x, w: pg.conv2d(x, w, **more), lambda x, w: functional.conv2d(x, w, **more), shapes, options)
    for title, ((channels, size), kernel, stride, padding) in POOLS.items():
        shapes = [(options.images, channels, size, size)]
        more = {"stride": stride, "padding": padding}
        line(
            f"max pooling {title}", lambda x: pg.max_pool2d(x, kernel, **more),
            lambda x: functional.max_pool2d(x, kernel, **more), shapes, options,
        )  # fmt: skip


if __name__ == "__main__":
    main()
