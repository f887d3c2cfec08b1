"""The program that ranks of the tests run: ``mpiexec -n 2 python tests/ranks.py JOB ...``.

Here: the jobs, and how tests start them and read what ranks print. Not here: tests (`test_distributed*.py`).
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import polygrad as pg
from polygrad.distributed.link import Link
from support.mesh import mesh_driver

# ---- how tests start ranks -------------------------------------------------------------------------------------------


MPIEXEC = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
RANKS = 2
PROGRAM = __file__
LIMIT = 60  # seconds that a job may take


def needs_mpi():
    """Return the mark of tests that start ranks by MPI."""
    try:
        import mpi4py  # noqa: F401
    except ImportError:
        return pytest.mark.skip(reason="not run: needs mpi4py")
    return pytest.mark.skipif(MPIEXEC is None, reason="not run: needs an MPI")


def start(job, *arguments, ranks=RANKS, by_mpi=True, **variables):
    """Run a job of this file; return the finished process."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", **{k: str(v) for k, v in variables.items()}}
    before = [MPIEXEC, "-n", str(ranks)] if by_mpi else []
    command = [*before, sys.executable, PROGRAM, job, *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False)


def told(done):
    """Return what the ranks of a job that went well have printed, as JSON, in order of rank."""
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    return [what for _, what in sorted(lines, key=lambda line: line[0])]


def tell(job, what):
    """Print what a rank has found."""
    sys.stdout.write(json.dumps([job.rank, what]) + "\n")
    sys.stdout.flush()


# ---- jobs: what a rank does ------------------------------------------------------------------------------------------


def begun(**how):
    return pg.distributed.init(timeout=how.pop("timeout", 30.0), grace=3.0, **how)


def job_collectives(device):
    """Check each collective, dtype by dtype; where ranks differ every one of them says so."""
    job = begun(device=device)
    r, n = job.rank, job.size
    for dtype in (
        "float16",
        "bfloat16",
        "float32",
        "float64",
        "int8",
        "int32",
        "int64",
        "uint8",
        "uint64",
        "complex64",
    ):
        if (
            dtype not in ("complex64",)
            and dtype not in pg.__array_namespace_info__().dtypes(device=device)
            and (dtype not in ("float16", "bfloat16"))
        ):
            continue
        x = pg.astype(pg.reshape(pg.arange(6, dtype=pg.float32, device=device) + 10 * r, (2, 3)), dtype)
        both = [np.asarray(pg.astype(x, "complex64")) - 10 * r + 10 * k for k in range(n)]
        same(job.all_reduce(x), sum(both))
        same(job.all_gather(x), np.stack(both))
        same(job.broadcast(x, 1), both[1])
        same(job.reduce_scatter(x), sum(both)[r : r + 1])
        if dtype.startswith(("float", "bfloat", "complex")):
            same(job.all_reduce(x, "mean"), sum(both) / n)
        if not dtype.startswith("complex"):
            same(job.all_reduce(x, "max"), both[-1])
            same(job.all_reduce(x, "min"), both[0])
    flags = pg.asarray([True, False], device=device) if r else pg.asarray([False, False], device=device)
    assert job.all_reduce(flags, "max").tolist() == [True, False]
    assert job.all_gather(flags).tolist()[1] == [True, False]
    tree = {"big": pg.full((40_000,), float(r), device=device), "none": pg.zeros((0, 3), device=device), "view": (
        pg.reshape(pg.arange(4.0, device=device), (2, 2)).T)}  # fmt: skip
    out = job.all_reduce(tree)
    assert out["big"].tolist()[:2] == [1.0, 1.0]
    assert out["none"].shape == (0, 3)
    assert out["view"].tolist() == [[0.0, 4.0], [2.0, 6.0]]
    assert tree["view"].tolist() == [[0.0, 2.0], [1.0, 3.0]], "operands stay as they are"
    assert job.gather_objects({"rank": r}) == [{"rank": k} for k in range(n)]
    assert job.broadcast_object([r, "x"], 1) == [1, "x"]
    assert (job.any(r == 1), job.any(False)) == (True, False)
    job.barrier()
    pid = os.fork()
    if not pid:
        try:
            pg.distributed.rank()
        except pg.DistributedError as error:
            os._exit(0 if "this process was forked from a rank, and is none itself" in str(error) else 2)
        os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    pg.distributed.seed(4)
    own = pg.random.uniform((3,)).tolist()
    tell(job, [job.name, pg.get_device(), pg.distributed.local_rank(), own, wrong_calls(job, device)])


def wrong_calls(job, device):
    """Return the sentences of calls that cannot be."""
    x = pg.ones((3, 2), device=device)
    said = []
    for call in (
        lambda: job.all_reduce(x, "product"),
        lambda: job.broadcast(x, 7),
        lambda: job.reduce_scatter(x),
        lambda: job.all_reduce(pg.ones(2, dtype=pg.int32), "mean"),
        lambda: job.all_reduce(pg.ones(2, dtype=pg.bool)),
        lambda: job.all_reduce(pg.ones((2 + job.rank,), device=device)),
        lambda: job.barrier() if job.rank else job.all_gather(x),
        lambda: pg.distributed.init(),
        lambda: pg.distributed.DataParallel(pg.nn.Linear(3 + job.rank, 2)),
        lambda: pg.distributed.DataParallel(
            {f"w{k}": pg.nn.Parameter([1.0]) for k in range(1 + job.rank)}, bucket_bytes=5
        ),
        lambda: pg.distributed.DataParallel(pg.nn.Parameter([1.0])).begin(job.rank),
        lambda: pg.distributed.DataParallel(pg.nn.Parameter([1.0])).reduce_gradients(),
    ):
        try:
            call()
            said.append("")
        except pg.PolygradError as error:
            said.append(str(error))
    return said


def same(got, wanted):
    np.testing.assert_allclose(np.asarray(pg.astype(got, "complex64")), wanted, rtol=1e-6)


def data_of(kind):
    rng = np.random.default_rng(0)
    if kind == "mlp":
        return rng.standard_normal((20, 8, 12)).astype("float32"), rng.integers(0, 4, (20, 8))
    tokens = rng.integers(0, 40, (20, 8, 13))
    return tokens[:, :, :-1], tokens[:, :, 1:]


def trained(job, device, kind, sharded, steps=20):
    """Return the mean losses of a short training, and the gathered state of its optimiser."""
    pg.set_device(device)
    pg.random.seed(3 + job.rank)  # the first weights are rank 0's all the same
    if kind == "mlp":
        model = pg.nn.Sequential(
            pg.nn.Linear(12, 96), pg.nn.GELU(), pg.nn.Linear(96, 200), pg.nn.LayerNorm(200), pg.nn.Linear(200, 4)
        )
    else:
        model = pg.nn.GPT(vocab_size=40, context=12, dim=16, layers=2, heads=2)
    optimiser = pg.optim.AdamW(model, lr=2e-3)
    together = pg.distributed.DataParallel(model, job, bucket_bytes=20_000)
    if sharded:
        optimiser = pg.distributed.ShardedOptimizer(optimiser, job)
    xs, ys = data_of(kind)
    share, losses = 8 // job.size, []
    for x, y in zip(xs[:steps], ys[:steps], strict=True):
        mine = slice(job.rank * share, (job.rank + 1) * share)
        x, y = pg.asarray(x[mine]), pg.asarray(y[mine])
        loss = pg.nn.cross_entropy(model(x), y) if kind == "mlp" else model.loss(x, y)
        loss.backward()
        together.step(optimiser, also=loss, max_norm=0.5)
        optimiser.zero_grad()
        losses.append(job.all_reduce(loss.detach(), "mean").item())
    return losses, optimiser, together


def job_training(device, folder):
    """Train as one process trains: an MLP and a GPT, with the optimiser's state whole and sharded."""
    job = begun(device=device)
    for kind in ("mlp", "gpt"):
        whole, plain, together = trained(job, device, kind, sharded=False)
        shards, sharded, _ = trained(job, device, kind, sharded=True)
        assert together.measure().buckets > 1
        together.export(f"{folder}/{kind}{job.rank}.json")
        ours = sharded.state_dict()
        theirs = plain.state_dict()
        assert list(ours["state"]) == list(theirs["state"])
        for name, state in theirs["state"].items():
            assert ours["state"][name]["step"] == state["step"] == 20
            for slot in ("m", "v") if "m" in state else [k for k in state if k != "step"]:
                np.testing.assert_allclose(np.asarray(ours["state"][name][slot]), np.asarray(state[slot]), 1e-4, 1e-7)
        kept = sum(a.nbytes for s in sharded.optimizer.state.values() for k, a in s.items() if k != "step")
        every = sum(a.nbytes for s in plain.state.values() for k, a in s.items() if k != "step")
        tell(job, [kind, whole, shards, kept / every, len(sharded.own)])


def job_odd(device):
    """Gradients that are missing on a rank, tied, transposed, of 16 bits, not finite; accumulated and scaled."""
    job = begun(device=device)
    pg.set_device(device)
    a, b, never = (pg.nn.Parameter([[1.0, 2.0], [3.0, 4.0]]) for _ in range(3))
    half = pg.nn.Parameter(pg.ones(3, dtype=pg.bfloat16))
    together = pg.distributed.DataParallel({"a": a, "b": b, "never": never, "half": half}, job)
    for _ in range(2):
        loss = (a.T * pg.asarray([[1.0, 2.0], [3.0, 4.0]], dtype=pg.float32)).sum() + half.sum() * (job.rank + 1)
        if job.rank:
            loss = loss + (a * b).sum()
        loss.backward()
        together.reduce_gradients()
        assert never.grad is None
        np.testing.assert_allclose(a.grad.numpy(), np.array([[1.0, 3.0], [2.0, 4.0]]) + b.numpy() / 2)
        np.testing.assert_allclose(b.grad.numpy(), a.numpy() / 2)
        assert (half.grad.dtype, half.grad.tolist()) == (pg.bfloat16, [1.5] * 3)
        for p in together.parameters:
            p.grad = None
    optimiser = pg.optim.SGD({"a": a, "b": b}, lr=1.0)
    scaler = pg.optim.GradScaler(init_scale=4.0)
    bad = pg.asarray(float("inf") if job.rank else 1.0, dtype=pg.float32)
    scaler.scale((a * bad).sum()).backward()
    moved = [together.step(optimiser, scaler=scaler)]
    optimiser.zero_grad()
    gathered = pg.optim.Accumulation(optimiser, batches=2)
    for factor in (1.0, 2.0):
        (a * factor * (job.rank + 1)).sum().backward()
        moved.append(together.step(gathered))
    with pytest.raises(pg.DistributedError, match="never has a gradient, but had none on any rank in the first step"):
        (never.sum() + a.sum()).backward()
        together.reduce_gradients()
    norm = pg.nn.BatchNorm1d(2)
    other = pg.distributed.DataParallel(norm, job)
    norm(pg.asarray([[1.0, 2.0], [3.0, 4.0]], dtype=pg.float32) * (job.rank + 1)).sum().backward()
    other.reduce_gradients()
    other.average_buffers()
    tell(job, [moved, a.tolist(), scaler.get_scale(), norm.running_mean.tolist()])


def job_fails(how):
    """Fail in one of many ways at step 3."""
    job = begun(timeout=1.0 if how == "sleeps" else 30.0)
    model = pg.nn.Linear(5, 30)
    together = pg.distributed.DataParallel(model)
    optimiser = pg.optim.SGD(model, lr=0.1)
    for k in range(1000):
        if k == 3 and job.rank == 1:
            if how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if how == "leaves":
                sys.exit(0)
            if how == "sleeps":
                time.sleep(LIMIT)
            if how == "memory":
                pg.ones((10**13,)).realize()
            if how == "raises":
                raise ValueError("something is wrong here")
        (model(pg.ones((4, 5), dtype=pg.float32)) ** 2).mean().backward()
        together.step(optimiser)
        optimiser.zero_grad()


def job_fit(folder, steps, *flags):
    """Train by `fit`, with checkpoints; rank 1 may be killed at step 13."""
    job = begun()
    pg.random.seed(5)
    rng = np.random.default_rng(0)
    data = pg.data.TensorDataset(
        pg.asarray(rng.standard_normal((64, 12)).astype("float32")), pg.asarray(rng.integers(0, 4, 64))
    )
    dropout = pg.nn.Dropout(0.1 if "dropout" in flags else 0.0)
    model = pg.nn.Sequential(pg.nn.Linear(12, 64), pg.nn.GELU(), dropout, pg.nn.Linear(64, 4))
    optimiser = pg.optim.AdamW(model, lr=1e-2)
    together = pg.distributed.DataParallel(model)
    schedule = pg.optim.lr_scheduler.CosineWithWarmup(optimiser, total=40, warmup=4)
    sharded = pg.distributed.ShardedOptimizer(optimiser)
    loader = pg.data.DataLoader(data, 8 // job.size, shuffle=True, seed=1, rank=job.rank, world=job.size)

    def after(step):
        if "kill" in flags and step == 13 and job.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    done = pg.training.fit(
        model, lambda m, batch: pg.nn.cross_entropy(m(batch[0]), batch[1]), loader, sharded, steps=int(steps),
        schedule=schedule, max_norm=1.0, checkpoints=folder, save_every=5, resume="resume" in flags, reducer=together,
        progress=False, after_step=after,
    )  # fmt: skip
    tell(job, [done.start, done.step, done.losses])


def job_mesh(folder, how):
    """Train on a device that has collectives of its own."""
    pg.register_driver(mesh_driver(folder))
    job = begun(backend="files" if how == "trains" else "auto", device="mesh:1" if how == "shared" else "mesh")
    if how == "killed" and job.rank:
        os.kill(os.getpid(), signal.SIGKILL)
    tell(job, [job.name, pg.get_device(), trained(job, pg.get_device(), "mlp", sharded=True)[0]])


def job_link(port, token, what):
    """Join a hub without MPI and do one thing."""
    link = Link(1, 2, "127.0.0.1", int(port), token, timeout=10.0)
    link.gather("first", 1)
    if what == "forks" and not os.fork():
        link.abandon()
        time.sleep(LIMIT)
    if what == "killed" or what == "forks":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "leaves":
        link.close()
    if what == "sleeps":
        time.sleep(LIMIT)


def job_environment():
    """Say what init says."""
    try:
        job = pg.distributed.init()
        sys.stdout.write(f"{job.name} {job.size}\n")
    except pg.DistributedError as error:
        sys.stdout.write(f"{error}\n")


if __name__ == "__main__":
    globals()[f"job_{sys.argv[1]}"](*sys.argv[2:])
