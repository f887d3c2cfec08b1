"""How fast sorting, running sums and searching are on a device, beside a peer in the same run.

    python benchmarks/ordering.py cpu:0             PyTorch on as many threads
    python benchmarks/ordering.py cuda:0            CuPy on the same GPU

Times are the best of turns that the two sides take; a ratio above 1 is slower than the peer. The time includes
recording and Python. On a loaded machine `--cpu` compares processor time, which waits for nobody, instead.

Here: calls, their peers, times. Not here: accuracy.
"""

import argparse
import os
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

import polygrad as pg

GOALS = {"sort, both": 1.0, "sort, values": 1.0, "argmax": 1.0, "cumulative sum": 2.0}  # on cpu; 1.5 on cuda
CUDA_GOAL = 1.5


class Operands(NamedTuple):
    """What is sorted and searched: n float32, the same as a square, n small int64, and the n float32 sorted."""

    x: object
    m: object
    i: object
    s: object


def forms(n: int) -> dict[str, tuple[Callable, Callable, Callable]]:
    """Return name to (ours, PyTorch's, CuPy's), each taking operands as `Operands` names them."""
    side = int(n**0.5)
    return {
        "sort, both": (
            lambda d: pg.realize(*pg.topk(d.x, n, largest=False)),
            lambda torch, d: torch.sort(d.x),
            lambda cupy, d: cupy.take(d.x, cupy.argsort(d.x)),
        ),
        "sort, values": (
            lambda d: pg.sort(d.x).realize(),
            lambda torch, d: torch.sort(d.x),
            lambda cupy, d: cupy.sort(d.x),
        ),
        "sort, rows": (
            lambda d: pg.realize(*pg.topk(d.m, side, largest=False)),
            lambda torch, d: torch.sort(d.m),
            lambda cupy, d: cupy.argsort(d.m),
        ),
        "sort, int64": (
            lambda d: pg.argsort(d.i).realize(),
            lambda torch, d: torch.sort(d.i, stable=True),
            lambda cupy, d: cupy.argsort(d.i),
        ),
        "argmax": (
            lambda d: pg.argmax(d.x).realize(),
            lambda torch, d: torch.argmax(d.x),
            lambda cupy, d: cupy.argmax(d.x),
        ),
        "argmax of rows": (
            lambda d: pg.argmax(d.m, axis=1).realize(),
            lambda torch, d: torch.argmax(d.m, 1),
            lambda cupy, d: cupy.argmax(d.m, 1),
        ),
        "cumulative sum": (
            lambda d: pg.cumulative_sum(d.x).realize(),
            lambda torch, d: torch.cumsum(d.x, 0),
            lambda cupy, d: cupy.cumsum(d.x),
        ),
        "cumulative sum, rows": (
            lambda d: pg.cumulative_sum(d.m, axis=1).realize(),
            lambda torch, d: torch.cumsum(d.m, 1),
            lambda cupy, d: cupy.cumsum(d.m, 1),
        ),
        "nonzero": (
            lambda d: pg.realize(pg.nonzero(d.x > 0)),
            lambda torch, d: torch.nonzero(d.x > 0),
            lambda cupy, d: cupy.nonzero(d.x > 0),
        ),
        "unique values": (
            lambda d: pg.unique_values(d.i).realize(),
            lambda torch, d: torch.unique(d.i),
            lambda cupy, d: cupy.unique(d.i),
        ),
        "searchsorted": (
            lambda d: pg.searchsorted(d.s, d.x).realize(),
            lambda torch, d: torch.searchsorted(d.s, d.x),
            lambda cupy, d: cupy.searchsorted(d.s, d.x),
        ),
    }


def peer(device: str, operands: list[np.ndarray]) -> tuple[str, Callable[[tuple], Callable[[], None]]]:
    """Return the peer's name, and what makes of a form a call that waits until it is done."""
    if device.startswith("cuda"):
        import cupy  # there only beside a GPU

        given = Operands(*[cupy.asarray(a) for a in operands])

        def on_gpu(form: tuple) -> Callable[[], None]:
            def call() -> None:
                form[2](cupy, given)
                cupy.cuda.runtime.deviceSynchronize()

            return call

        return f"CuPy {cupy.__version__}", on_gpu
    import torch  # not a dependency

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    tensors = Operands(*[torch.from_numpy(a) for a in operands])
    return f"PyTorch {torch.__version__}", lambda form: lambda: form[1](torch, tensors)


def best(function: Callable[[], None], clock: Callable[[], float], times: int) -> float:
    """Return the shortest time of a call, in milliseconds."""
    shortest = float("inf")
    for _ in range(times):
        began = clock()
        function()
        shortest = min(shortest, clock() - began)
    return shortest * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("device", nargs="?", default="cpu:0")
    parser.add_argument("--elements", type=int, default=4_000_000)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--cpu", action="store_true", help="compare processor time, summed over threads")
    arguments = parser.parse_args()
    n, device = int(arguments.elements**0.5) ** 2, arguments.device
    rng = np.random.default_rng(0)
    x = rng.normal(size=n).astype(np.float32)
    operands = [x, x.reshape(int(n**0.5), -1), rng.integers(0, 1000, n), np.sort(x)]
    ours = Operands(*[pg.asarray(a, device=device).realize() for a in operands])
    name, theirs = peer(device, operands)
    clock = time.process_time if arguments.cpu else time.perf_counter
    print(f"{device} beside {name}: {n:,} elements, {'processor' if arguments.cpu else 'elapsed'} milliseconds")
    print(f"{'':24}{'polygrad':>10}{'peer':>10}{'ratio':>8}{'goal':>8}")
    for label, form in forms(n).items():

        def mine(form=form) -> None:
            form[0](ours)
            pg.synchronize(device)

        other = theirs(form)
        mine(), other()  # compile, and touch the memory
        turns = [(best(mine, clock, arguments.times), best(other, clock, arguments.times)) for _ in range(3)]
        a, b = (min(t[k] for t in turns) for k in (0, 1))
        goal = GOALS.get(label) if device.startswith("cpu") else CUDA_GOAL if device.startswith("cuda") else None
        print(f"{label:24}{a:10.2f}{b:10.2f}{a / b:8.2f}{goal if goal else '':>8}")


if __name__ == "__main__":
    main()
