"""Training by several processes: what moving gradients costs, and how much of it runs beside backward, as ratios.

    mpiexec -n 2 python benchmarks/distributed.py cpu:0
    mpiexec -n 2 python benchmarks/distributed.py cpu:0 --wire 2e8    (imitates a network of so many bytes a second)

In the memory of one machine gradients are moved by the same cores that compute; over a network they are not. A wire is
imitated by a pause of the thread that communicates, before each bucket travels.

Here: all-reduce beside MPI's own, a training step without communication, with it afterwards, and with it overlapped.
Not here: GPUs (`distributed_gpu.py`).
"""

import argparse
import statistics
import time
from collections.abc import Callable

import polygrad as pg


def median(function: Callable[[], object], barrier: Callable[[], object], count: int) -> float:
    """Return the median time of a function that all ranks call together."""
    times = []
    function()
    for _ in range(count):
        barrier()
        began = time.perf_counter()
        function()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def all_reduces(job: pg.distributed.Communicator, device: str) -> None:
    """Compare all-reduce with MPI's own, blocking and on bare memory."""
    for mib in (1, 16, 64):
        x = pg.ones((mib << 18,), dtype=pg.float32, device=device)
        pg.realize(x)
        ours = median(lambda: job.begin_all_reduce([x._node], "sum").wait(), job.barrier, 9)
        send, receive = bytearray(mib << 20), bytearray(mib << 20)
        bare = median(lambda: job.comm.Allreduce([send, job.mpi.FLOAT], [receive, job.mpi.FLOAT]), job.barrier, 9)
        if job.rank == 0:
            print(
                f"all_reduce of {mib:3d} MiB: {ours * 1e3:8.2f} ms, MPI_Allreduce {bare * 1e3:8.2f} ms, "
                f"ratio {ours / bare:.2f}"
            )


def model_and_data(device: str, width: int, layers: int, rows: int) -> tuple[pg.nn.Module, pg.Array]:
    """Return layers whose gradients are many bytes for their work."""
    parts: list[pg.nn.Module] = []
    for _ in range(layers):
        parts += [pg.nn.Linear(width, width), pg.nn.GELU()]
    return pg.nn.Sequential(*parts), pg.random.normal((rows, width), dtype=pg.float32, device=device)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("device", nargs="?", default="cpu:0")
    parser.add_argument("--wire", type=float, default=0.0, help="bytes a second of an imitated network")
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--bucket", type=int, default=8 << 20)
    parser.add_argument("--steps", type=int, default=9)
    given = parser.parse_args()
    job = pg.distributed.init("mpi", device=given.device)
    if job.rank == 0:
        print(f"{job.size} ranks on {given.device}, {given.layers} layers of {given.width}, {given.rows} rows a rank")
    if not given.wire:
        all_reduces(job, given.device)
    model, x = model_and_data(given.device, given.width, given.layers, given.rows)
    together = pg.distributed.DataParallel(model, bucket_bytes=given.bucket)
    if given.wire:
        job.wire = lambda what: time.sleep(int(what.split()[2]) / given.wire if "bytes" in what else 0.0)
    optimiser = pg.optim.SGD(model, lr=1e-4)
    waits: list[pg.distributed.Overlap] = []

    def backward() -> None:
        (model(x) ** 2).mean().backward()

    def step() -> None:
        optimiser.step()
        optimiser.zero_grad()

    def alone() -> None:
        backward()
        pg.realize([p.grad for p in together.parameters])
        step()

    def after() -> None:
        backward()
        pg.realize([p.grad for p in together.parameters])
        pg.synchronize(given.device)
        together.reduce_gradients()
        step()

    def beside() -> None:
        backward()
        together.reduce_gradients()
        step()
        waits.append(together.measure())

    ways = (alone, after, beside)
    found: dict[str, list[float]] = {f.__name__: [] for f in ways}
    for k in range(given.steps + 1):  # in turns, since other programs may run too
        for function in ways:
            job.barrier()
            began = time.perf_counter()
            function()
            pg.synchronize(given.device)
            job.barrier()  # a step is over when it is over on all ranks
            if k:
                found[function.__name__].append(time.perf_counter() - began)
    times = {name: min(every) for name, every in found.items()}
    if job.rank == 0:
        last = waits[-1]
        nbytes = sum(p.nbytes for p in together.parameters)
        left = (times["beside"] - times["alone"]) / (times["after"] - times["alone"])
        print(f"gradients: {nbytes / 2**20:.0f} MiB in {last.buckets} buckets")
        for name, seconds in times.items():
            print(
                f"step, communication {name:7s}: {seconds * 1e3:8.1f} ms, ratio to none {seconds / times['alone']:.2f}"
            )
        own = statistics.median(w.hidden for w in waits[1:])
        print(f"communication hidden: {1 - left:.0%} by the shortest steps, {own:.0%} by their own account (median)")
        print(f"the last step: {last}")


if __name__ == "__main__":
    main()
