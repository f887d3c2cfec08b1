"""What views, writes, gathers and scatters cost on a device, beside what they cost without care, and PyTorch.

    python benchmarks/writes.py cpu:0

Each ratio is of two times of one process that takes turns; a time is the best of many.

Here: forms of reading and writing at places, and their times.
Not here: which driver does what.
"""

import argparse
from collections.abc import Callable

import numpy as np
from turns import turns

import polygrad as pg
from polygrad.array.object import Array
from polygrad.graph.functions import F

ROWS, COLUMNS = 1000, 1000
SIZES = {"": (8192, 768, 50257), ", a few": (20, 8, 50)}  # rows, their length, rows of the table: of a few it is Python


def filled(looked_at: bool, held: bool) -> None:
    """Write the rows of an array one by one; if *held*, somebody keeps each old value, so that it is copied."""
    x, row = pg.zeros((ROWS // 10, COLUMNS), dtype="float32").realize(), pg.ones(COLUMNS, dtype="float32").realize()
    for k in range(ROWS // 10):
        old = x.detach() if held else None
        x[k] = row
        if looked_at or held:
            x.realize()
        del old
    x.realize()
    pg.synchronize()


def views(create: bool) -> None:
    """Transpose a small array many times, as a view or as a node alone."""
    x = pg.ones((2, 3), dtype="float32").realize()
    node = x._node
    for _ in range(2000):
        _ = x.mT if create else Array(F.swap_last(node))


def on_the_host(table: np.ndarray, at: np.ndarray, rows: np.ndarray) -> tuple[str, Callable, Callable]:
    """Return PyTorch's name, its gather and its scatter-add."""
    import torch  # a peer, not a need

    x, i, v = torch.from_numpy(table), torch.from_numpy(at), torch.from_numpy(rows)
    return "PyTorch", lambda: x[i], lambda: torch.zeros(table.shape).index_add_(0, i, v)


def on_a_gpu(table: np.ndarray, at: np.ndarray, rows: np.ndarray) -> tuple[str, Callable, Callable]:
    """Return CuPy's name, its gather and its scatter-add."""
    import cupy  # as above

    x, i, v = cupy.asarray(table), cupy.asarray(at), cupy.asarray(rows)

    def gather() -> None:
        x[i]
        cupy.cuda.get_current_stream().synchronize()

    def scatter() -> None:
        cupy.add.at(cupy.zeros(table.shape, cupy.float32), i, v)
        cupy.cuda.get_current_stream().synchronize()

    return "CuPy", gather, scatter


def peers(seconds: float, device: str, size: str) -> None:
    """Print gathers and scatters of rows beside those of a peer on the same device, where it is installed."""
    rng, (tokens, width, words) = np.random.default_rng(0), SIZES[size]
    table, at = rng.standard_normal((words, width)).astype(np.float32), rng.integers(0, words, tokens)
    rows = rng.standard_normal((tokens, width)).astype(np.float32)
    try:
        peer, gather, scatter = (on_the_host if device.startswith("cpu") else on_a_gpu)(table, at, rows)
    except ImportError as error:
        print(f"no peer: {error}")
        return
    x, i, v = pg.asarray(table), pg.asarray(at), pg.asarray(rows)
    zeros = pg.zeros((words, width), dtype="float32")
    pg.realize(x, i, v)

    def computed(make: Callable[[], pg.Array]) -> None:
        make().realize()
        pg.synchronize()

    for name, ours, theirs in (
        ("gather of rows", lambda: computed(lambda: x[i]), gather),
        ("scatter-add of rows into zeros", lambda: computed(lambda: zeros.at[i].add(v)), scatter),
    ):
        a, b = turns(ours, theirs, seconds)
        print(f"{name + size:<38} {a * 1e3:9.3f} ms  {peer:>7} {b * 1e3:9.3f} ms  ratio {a / b:5.2f}")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("device", nargs="?", default="cpu:0")
    parser.add_argument("--seconds", type=float, default=3.0, help="for each pair of times")
    arguments = parser.parse_args()
    with pg.device(arguments.device):
        for name, first, second, count in (
            ("a row written, looked at", lambda: filled(True, False), lambda: filled(True, True), ROWS // 10),
            ("a row written, looked at last", lambda: filled(False, False), lambda: filled(True, True), ROWS // 10),
        ):
            a, b = turns(first, second, arguments.seconds)
            a, b = a / count * 1e6, b / count * 1e6
            print(f"{name:<34} {a:9.1f} us  copied  {b:9.1f} us  ratio {a / b:5.2f}")
        a, b = turns(lambda: views(True), lambda: views(False), arguments.seconds)
        a, b = a / 2e3 * 1e6, b / 2e3 * 1e6
        print(f"{'a view':<34} {a:9.2f} us  a node  {b:9.2f} us  ratio {a / b:5.2f}")
        if not arguments.device.startswith("opencl"):
            for size in SIZES:
                peers(arguments.seconds, arguments.device, size)


if __name__ == "__main__":
    main()
