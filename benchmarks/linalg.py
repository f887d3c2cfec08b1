"""How fast linear algebra and Fourier transforms are on a device, beside the library that has them in the same run.

    python benchmarks/linalg.py cpu:0             NumPy
    python benchmarks/linalg.py opencl:0          NumPy; POLYGRAD_OPENCL_LINALG=own for the kernels that GPUs use
    python benchmarks/linalg.py cuda:0            CuPy on the same GPU

Times are the best of turns that the two sides take; a ratio above 1 is slower than the peer. The time includes
recording and Python. On a loaded machine `--cpu` compares processor time, which waits for nobody, instead.

Here: calls, their peers, times. Not here: accuracy.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import polygrad as pg


class Operands(NamedTuple):
    """A matrix, a positive definite one, a stack of small ones, real and complex signals, two stacks of heads."""

    a: Any
    p: Any
    small: Any
    real: Any
    complex: Any
    heads: Any


FORMS: dict[str, tuple[Callable[[Operands], Any], Callable[[Any, Operands], Any]]] = {
    "solve": (lambda d: pg.linalg.solve(d.p, d.a), lambda xp, d: xp.linalg.solve(d.p, d.a)),
    "inv of a stack": (lambda d: pg.linalg.inv(d.small), lambda xp, d: xp.linalg.inv(d.small)),
    "cholesky": (lambda d: pg.linalg.cholesky(d.p), lambda xp, d: xp.linalg.cholesky(d.p)),
    "slogdet": (lambda d: list(pg.linalg.slogdet(d.a)), lambda xp, d: xp.linalg.slogdet(d.a)),
    "eigh": (lambda d: list(pg.linalg.eigh(d.p)), lambda xp, d: xp.linalg.eigh(d.p)),
    "svd": (
        lambda d: list(pg.linalg.svd(d.a, full_matrices=False)),
        lambda xp, d: xp.linalg.svd(d.a, full_matrices=False),
    ),
    "qr": (lambda d: list(pg.linalg.qr(d.a)), lambda xp, d: xp.linalg.qr(d.a)),
    "fft": (lambda d: pg.fft.fft(d.complex), lambda xp, d: xp.fft.fft(d.complex)),
    "rfft": (lambda d: pg.fft.rfft(d.real), lambda xp, d: xp.fft.rfft(d.real)),
    "einsum": (
        lambda d: pg.einsum("bhqd,bhkd->bhqk", d.heads, d.heads),
        lambda xp, d: xp.einsum("bhqd,bhkd->bhqk", d.heads, d.heads),
    ),
}


def made(n: int) -> Operands:
    """Return float32 operands: matrices of n rows, 2**20 samples in rows of 4096."""
    rng = np.random.default_rng(0)
    a = rng.standard_normal((n, n)).astype(np.float32)
    real = rng.standard_normal((256, 4096)).astype(np.float32)
    small = (rng.standard_normal((4096, 4, 4)) + 4 * np.eye(4)).astype(np.float32)
    heads = rng.standard_normal((4, 8, 128, 64)).astype(np.float32)
    return Operands(a, a @ a.T + n * np.eye(n, dtype=np.float32), small, real, (real + 1j * real[::-1]), heads)


def best(function: Callable[[], Any], clock: Callable[[], float], times: int) -> float:
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
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--cpu", action="store_true", help="compare processor time, summed over threads")
    arguments = parser.parse_args()
    device, operands = arguments.device, made(arguments.rows)
    if device.startswith("cuda"):
        import cupy as xp  # there only beside a GPU

        wait = xp.cuda.runtime.deviceSynchronize
    else:
        xp, wait = np, lambda: None
    given = Operands(*[xp.asarray(a) for a in operands])
    ours = Operands(*[pg.asarray(a, device=device) for a in operands])
    pg.realize(list(ours))
    clock = time.process_time if arguments.cpu else time.perf_counter
    print(f"{device} beside {xp.__name__} {xp.__version__}, {'processor' if arguments.cpu else 'elapsed'} milliseconds")
    print(f"{'':20}{'polygrad':>10}{'peer':>10}{'ratio':>8}")
    for label, (mine, theirs) in FORMS.items():

        def run(mine: Any = mine) -> None:
            pg.realize(mine(ours))
            pg.synchronize(device)

        def other(theirs: Any = theirs) -> None:
            theirs(xp, given)
            wait()

        run(), other()  # compile, and touch the memory
        turns = [(best(run, clock, arguments.times), best(other, clock, arguments.times)) for _ in range(3)]
        a, b = (min(t[k] for t in turns) for k in (0, 1))
        print(f"{label:20}{a:10.2f}{b:10.2f}{a / b:8.2f}")


if __name__ == "__main__":
    main()
