"""Training by several processes: the same losses as one, and a clear end when one of them fails.

Here: what ranks do together, over MPI and over a device's own collectives, which a driver of this file imitates.
Not here: NCCL (the cuda driver's tests).

This file is also the program that the ranks run: ``mpiexec -n 2 python tests/test_distributed.py JOB ...``.
"""

import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import polygrad as pg
from polygrad.distributed import buckets, starting
from polygrad.distributed.launcher import run as launch
from polygrad.distributed.link import Link, start_hub
from polygrad.driver import hookimpl
from polygrad.driver.loader import REGISTRY
from polygrad.graph.node import Node
from polygrad.runtime.realize import realize

MPIEXEC = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
RANKS = 2
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
    command = [*before, sys.executable, __file__, job, *map(str, arguments)]
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


# ---- jobs: what a rank does -----------------------------------------------------------------------------------------


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


# ---- a driver with collectives --------------------------------------------------------------------------------------


class Files:
    """Collectives through files, of one device."""

    name, sums = "files", frozenset({"float32", "float64", "int64"})

    def __init__(self, driver, folder):
        self.driver, self.folder, self.number = driver, folder, 0

    def identity(self):
        return bytes(range(100, 228))

    def connect(self, identity, rank, size):
        assert identity == self.identity()
        self.rank, self.size = rank, size

    def memory(self, ref):
        whole = np.frombuffer(self.driver.view(ref.handle, 1 << 60), np.uint8)
        flat = whole[: whole.size // np.dtype(ref.dtype).itemsize * np.dtype(ref.dtype).itemsize].view(ref.dtype)
        return flat[ref.offset : ref.offset + int(np.prod(ref.shape))]

    def every(self, ref):
        self.number += 1
        Path(self.folder, f"{self.number}.{self.rank}.part").write_bytes(self.memory(ref).tobytes())
        os.rename(f"{self.folder}/{self.number}.{self.rank}.part", f"{self.folder}/{self.number}.{self.rank}")
        for r in range(self.size):
            there = Path(self.folder, f"{self.number}.{r}")
            while not there.exists():
                time.sleep(0.001)
            yield np.frombuffer(there.read_bytes(), ref.dtype)

    def put(self, ref, value):
        np.copyto(self.memory(ref), value.reshape(-1))
        return 1

    def all_reduce(self, pairs, op):
        return [
            self.put(o, {"sum": np.sum, "max": np.max, "min": np.min}[op](list(self.every(i)), axis=0))
            for i, o in pairs
        ]

    def broadcast(self, pairs, root):
        return [self.put(o, list(self.every(i))[root]) for i, o in pairs]

    def all_gather(self, pairs):
        return [self.put(o, np.stack(list(self.every(i)))) for i, o in pairs]

    def reduce_scatter(self, pairs):
        return [self.put(o, np.split(np.sum(list(self.every(i)), axis=0), self.size)[self.rank]) for i, o in pairs]

    def done(self, token):
        return True

    def wait(self, token):
        pass

    def mark(self):
        return 0

    def times(self, token):
        return 0.0, 0.0

    def abort(self):
        pass

    def close(self):
        pass


def mesh_driver(folder):
    """Return a driver whose devices move values through files."""
    from polygrad.driver import DriverInfo
    from polygrad_cpu.driver import CpuDriver

    class Mesh(CpuDriver):
        info = DriverInfo("mesh", summary="host memory, and files between processes")

        def open(self, ordinal, options):
            return dataclasses.replace(super().open(0, options), driver="mesh", ordinal=ordinal)

        @classmethod
        def count(cls):
            return 2

        def collectives(self):
            return Files(self, folder)

    return Mesh


# ---- by MPI ---------------------------------------------------------------------------------------------------------


@needs_mpi()
def test_collectives_give_what_they_say_and_wrong_calls_are_sentences(device):
    found = told(start("collectives", device))
    assert [(name, where, local) for name, where, local, _, _ in found] == [("mpi", device, 0), ("mpi", device, 1)]
    pg.random.seed(4)
    assert found[0][3] == pg.random.uniform((3,)).tolist(), "rank 0 has the common stream"
    assert found[0][3] != found[1][3]
    assert found[0][4] == found[1][4]
    assert found[0][4] == [
        "cannot combine arrays by 'product': it is one of 'sum', 'mean', 'max', 'min'",
        "there is no rank 7: there are 2, from 0 on",
        "cannot scatter an array of shape [3, 2] over 2 ranks: its first axis must be a multiple of their number",
        "cannot take the mean of int32 arrays over ranks",
        "cannot add bools over ranks: convert with .astype('int32'), or use 'max' or 'min'",
        f"the ranks do not do the same in all_reduce by sum: rank 0 has {float_of(device)}[2], rank 1 has "
        f"{float_of(device)}[3] (array 0 of 1)",
        "the ranks do not do the same: rank 0 is in all_gather; rank 1 is in barrier",
        "polygrad.distributed.init() was called before: once is enough",
        "the ranks train different models: weight is float32[2, 3] on rank 0, and rank 1 has weight, float32[2, 4], "
        "in its place",
        "the ranks train different models: rank 0 has 1 parameters, rank 1 2",
        "the ranks go on from different steps: rank 0 from 0, rank 1 from 1; give all of them the same checkpoints",
        "there is no gradient to reduce: call loss.backward() first",
    ]


def float_of(device):
    return np.dtype(pg.ones(1, device=device).dtype).name


@needs_mpi()
def test_two_ranks_train_as_one_with_all_of_the_batch(device, tmp_path):
    alone = {kind: trained(pg.distributed.SingleProcess(), device, kind, False)[0] for kind in ("mlp", "gpt")}
    lines = told(start("training", device, tmp_path))
    kernels, *sent = json.loads((tmp_path / "mlp1.json").read_text())["traceEvents"]
    assert (kernels["name"], kernels["ts"]) == ("kernels", 0.0)
    assert len(sent) > 1
    assert all(bucket["ts"] >= 0 and bucket["dur"] > 0 for bucket in sent)
    assert sorted(line[0] for line in lines) == ["gpt", "gpt", "mlp", "mlp"]
    for kind, whole, shards, _, _ in lines:
        np.testing.assert_allclose(whole, alone[kind], rtol=1e-5)
        np.testing.assert_allclose(shards, alone[kind], rtol=1e-5)
    for kind in ("gpt", "mlp"):
        shares = [line for line in lines if line[0] == kind]
        assert sum(line[3] for line in shares) == pytest.approx(1.0), "each state is kept once"
        assert all(line[4] for line in shares)


@needs_mpi()
def test_gradients_that_are_missing_tied_narrow_or_not_finite(device):
    first, second = told(start("odd", device))
    assert first == second
    moved, a, scale, mean = first
    assert moved == [False, False, True]
    np.testing.assert_allclose(a, np.array([[1.0, 2.0], [3.0, 4.0]]) - 1.5 * 1.5)
    assert scale == 2.0
    np.testing.assert_allclose(mean, [0.1 * 3.0, 0.1 * 4.5], rtol=1e-6)


FAILURES = {
    "killed": r"polygrad: rank 1 of 2 \(process \d+ on \S+\) is gone: it was killed",
    "leaves": r"polygrad: rank 1 of 2 \(process \d+ on \S+\) has ended its program, but rank 0 waits for it in all_red",
    "sleeps": r"polygrad: rank 0 has waited 1 seconds in collective number \d+, all_reduce of \d+ bytes, for rank 1, "
    r"whose last collective is number \d+, all_reduce",
    "memory": r"polygrad: rank 1 of 2 has failed, and the job ends: OutOfMemory: cpu:0 has no room for 8",
    "raises": r"polygrad: rank 1 of 2 has failed, and the job ends: ValueError: something is wrong here",
}


@needs_mpi()
@pytest.mark.parametrize("how", FAILURES)
def test_a_rank_that_fails_ends_the_job_and_is_named(how):
    began = time.monotonic()
    done = start("fails", how, POLYGRAD_DEVICE="cpu:0")
    assert time.monotonic() - began < 20
    assert done.returncode != 0
    assert re.search(FAILURES[how], done.stderr), done.stderr


@needs_mpi()
def test_a_job_that_lost_a_rank_resumes_on_any_number_of_ranks(tmp_path):
    whole = told(start("fit", tmp_path / "whole", 20, "dropout", POLYGRAD_DEVICE="cpu:0"))
    lost = start("fit", tmp_path / "lost", 20, "dropout", "kill", POLYGRAD_DEVICE="cpu:0")
    assert lost.returncode != 0
    assert "rank 1 of 2" in lost.stderr
    shutil.copytree(tmp_path / "lost", tmp_path / "one")
    two = told(start("fit", tmp_path / "lost", 20, "dropout", "resume", POLYGRAD_DEVICE="cpu:0"))
    assert two[0] == two[1]
    start_, step, losses = two[0]
    assert (start_, step) == (10, 20)
    assert losses == whole[0][2][10:], "bit for bit"
    (one,) = told(start("fit", tmp_path / "one", 20, "resume", ranks=1, POLYGRAD_DEVICE="cpu:0"))
    assert one[:2] == [10, 20]
    np.testing.assert_allclose(one[2], losses, rtol=0.2)  # other features are dropped


@needs_mpi()
def test_the_language_model_trains_by_two_ranks_and_resumes_by_one(tmp_path):
    pytest.importorskip("tokenizers", reason="not run: needs tokenizers")
    pytest.importorskip("rich", reason="not run: needs rich")
    from polygrad.gpt import main
    from polygrad.training import read_csv

    text = tmp_path / "text"
    text.mkdir()
    for module in ("ast", "bisect", "calendar", "copy", "enum", "queue"):
        shutil.copy(Path(os.__file__).parent / f"{module}.py", text)
    assert main(["tokenize", "--source", str(text), "--out", str(tmp_path / "corpus"), "--vocab-size", "300"]) == 0
    small = ["--data", tmp_path / "corpus", "--layers", 1, "--dim", 16, "--heads", 2, "--context", 16, "--batch", 4]
    watched = ["--log-every", 1, "--eval-every", 0, "--eval-batches", 1, "--device", "cpu:0"]
    arguments = ["train", *map(str, [*small, *watched, "--steps", 6, "--save-every", 3])]
    assert main([*arguments, "--out", str(tmp_path / "one")]) == 0
    ranks = [MPIEXEC, "-n", "2", sys.executable, "-m", "polygrad.gpt"]
    done = subprocess.run(
        [*ranks, *arguments, "--out", str(tmp_path / "two"), "--shard"], capture_output=True, text=True, timeout=LIMIT,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("step 6: loss") == 1, "the first rank alone speaks"
    ours, theirs = (read_csv(tmp_path / name / "log.csv") for name in ("one", "two"))
    np.testing.assert_allclose(theirs["loss"], ours["loss"], rtol=1e-5)
    (tmp_path / "two" / "checkpoints" / "step-00000006.ckpt").unlink()
    assert main([*arguments, "--out", str(tmp_path / "two"), "--resume"]) == 0
    np.testing.assert_allclose(read_csv(tmp_path / "two" / "log.csv")["loss"], ours["loss"], rtol=1e-5)
    wrong = [*arguments[:-4], "--out", str(tmp_path / "three"), "--steps", "2", "--batch", "3"]
    done = subprocess.run([*ranks, *wrong], capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode != 0
    said = "cannot divide a batch of 3 sequences (--batch) among 2 processes: it must be a multiple of their number"
    assert [line for line in done.stderr.splitlines() if "cannot divide" in line] == [
        f"polygrad.gpt train: rank 0 of 2: {said}"
    ]


# ---- without MPI ----------------------------------------------------------------------------------------------------


def test_ranks_on_devices_with_collectives_of_their_own_train_as_one(tmp_path, capfd):
    assert launch(RANKS, [__file__, "mesh", str(tmp_path), "trains"]) == 0
    out = capfd.readouterr().out
    found = sorted(json.loads(line) for line in out.splitlines() if line.startswith("["))
    assert [what[:2] for _, what in found] == [["device", "mesh:0"], ["device", "mesh:1"]]
    alone = trained(pg.distributed.SingleProcess(), "cpu:0", "mlp", False)[0]
    for _, (_, _, losses) in found:
        np.testing.assert_allclose(losses, alone, rtol=1e-5)


def test_ranks_that_share_a_device_are_told_so(tmp_path, capfd):
    assert launch(RANKS, [__file__, "mesh", str(tmp_path), "shared"]) != 0
    assert "ranks 0 and 1 have the same device, mesh:1 on " in capfd.readouterr().err


def test_the_launcher_names_the_rank_that_was_killed(tmp_path, capfd):
    began = time.monotonic()
    assert launch(RANKS, [__file__, "mesh", str(tmp_path), "killed"], grace=5.0) == 128 + signal.SIGKILL
    assert time.monotonic() - began < 20
    said = capfd.readouterr().err
    assert "polygrad: rank 1 of 2 was ended by SIGKILL (for want of memory, perhaps); the others are ended" in said
    assert re.search(r"rank 1 of 2 \(process \d+ on \S+\) is gone", said)


def test_the_launcher_gives_ranks_their_numbers_and_returns_their_code(tmp_path, capfd):
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys, time\n"
        "said = [os.environ[n] for n in ('RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'MASTER_ADDR')]\n"
        "os.write(1, (' '.join([*said, *sys.argv[1:]]) + chr(10)).encode())\n"
        "if os.environ['RANK'] == sys.argv[1]: sys.exit(7)\n"
        "if sys.argv[1] != '9': time.sleep(60)\n"
    )
    command = [sys.executable, "-m", "polygrad.distributed", "run", "-n", "3", "--", script, "9"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=True)
    assert sorted(done.stdout.splitlines()) == [f"{r} 3 {r} 127.0.0.1 9" for r in range(3)]
    assert launch(2, [str(script), "1"], grace=0.2) == 7
    assert "rank 1 of 2 has ended with code 7; the others are ended" in capfd.readouterr().err
    for wrong in ((0, ["x"]), (2, [])):
        with pytest.raises(pg.DistributedError, match="cannot start 0 processes|there is nothing to run"):
            launch(*wrong)


HUB_ENDS = {
    "killed": r"rank 1 of 2 \(process \d+ on \S+\) is gone: it was killed",
    "forks": r"rank 1 of 2 \(process \d+ on \S+\) is gone: it was killed",
    "leaves": r"rank 1 of 2 \(process \d+ on \S+\) has ended its program, but rank 0 waits for it in second: all ranks",
    "sleeps": r"rank 0 has waited 0.5 seconds in collective number 2, second, for rank 1, whose last collective is "
    r"number 1, first; if that can take longer, give init\(timeout=...\) more seconds",
}


@pytest.mark.parametrize("what", HUB_ENDS)
def test_who_waits_for_whom_is_known(what):
    hub = start_hub(2)
    other = subprocess.Popen([sys.executable, __file__, "link", str(hub["port"]), hub["token"], what])
    link = Link(0, 2, timeout=10.0, **hub)
    try:
        assert link.gather("first", 0) == [0, 1]
        link.timeout = 0.5 if what == "sleeps" else 10.0
        with pytest.raises(pg.DistributedError, match=HUB_ENDS[what]):
            link.gather("second", 0)
        with pytest.raises(pg.DistributedError, match=HUB_ENDS[what]):
            link.begin("third")
    finally:
        link.close()
        other.kill()
        other.wait()


def test_a_hub_refuses_who_does_not_belong():
    hub = start_hub(2)
    waited = []

    def wait():
        with pytest.raises(pg.DistributedError, match="rank 0 of 2 has waited 2 seconds for the others"):
            Link(0, 2, timeout=2.0, **hub)
        waited.append(True)

    first = threading.Thread(target=wait)
    first.start()
    time.sleep(0.2)
    for rank, size, token, sentence in (
        (0, 2, hub["token"], "there are two processes with rank 0, or it is none of 2"),
        (2, 2, hub["token"], "there are two processes with rank 2, or it is none of 2"),
        (1, 3, hub["token"], "rank 1 was told of 3 processes, rank 0 of 2: start all alike"),
        (1, 2, "other", "it does not belong to this job"),
    ):
        with pytest.raises(pg.DistributedError, match=f"^rank {rank} cannot join the job: {sentence}$"):
            Link(rank, size, hub["address"], hub["port"], token, timeout=5.0)
    first.join()
    assert waited
    with pytest.raises(pg.DistributedError, match="has waited 0.3 seconds for the others to start"):
        Link(1, 2, timeout=0.3, **start_hub(2))
    with pytest.raises(pg.DistributedError, match=r"has found no rank 0 at 127.0.0.1:9 in 0.2 seconds"):
        Link(1, 2, "127.0.0.1", 9, "", timeout=0.2)


def started(**variables):
    """Return what init says in a process with these variables."""
    clean = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE") and not k.startswith("PMI")}
    done = subprocess.run(
        [sys.executable, __file__, "environment"], env={**clean, **variables}, capture_output=True, text=True,
        timeout=LIMIT, check=True,
    )  # fmt: skip
    return done.stdout.strip()


@needs_mpi()
def test_processes_that_were_started_wrong_are_told_so(tmp_path):
    assert started() == "single 1"
    assert started(RANK="0", WORLD_SIZE="1") == "single 1"
    assert started(RANK="x", WORLD_SIZE="2") == "cannot join a job: the variable RANK is 'x', and must be a number"
    assert started(RANK="2", WORLD_SIZE="2") == "cannot join a job: RANK is 2 and WORLD_SIZE 2, but ranks count from 0"
    assert started(RANK="0", WORLD_SIZE="2", POLYGRAD_DEVICE="cpu:0") == (
        "cannot move arrays of cpu:0 between processes that no MPI has started: its driver has no collectives of its "
        "own here; start the processes with mpiexec -n 2"
    )
    assert started(OMPI_COMM_WORLD_SIZE="2").startswith(
        "this process was started as one of 2, but mpi4py takes it for the only one: it uses another MPI than the mpi"
    )
    (tmp_path / "mpi4py.py").write_text("raise ImportError('No module named mpi4py')")
    assert started(PMI_SIZE="2", PYTHONPATH=str(tmp_path)) == (
        "several processes need mpi4py, which does not load (No module named mpi4py): pip install "
        "'polygrad-array[distributed]', and an MPI: of the system, or pip install mpich"
    )


def test_one_process_is_a_job_too(device):
    with pytest.raises(pg.DistributedError, match=r"^no job was begun: call polygrad.distributed.init\(\) first$"):
        pg.distributed.rank()
    with pytest.raises(pg.DistributedError, match="no job was begun"):
        pg.distributed.DataParallel(pg.nn.Linear(1, 1))
    for wrong, sentence in (
        ({"backend": "x"}, "there is no backend 'x' on "),
        ({"timeout": 0}, "cannot wait 0 seconds"),
    ):
        with pytest.raises(pg.DistributedError, match=sentence):
            pg.distributed.init(**wrong)
    job = pg.distributed.init("single", device=device)
    try:
        assert (pg.distributed.rank(), pg.distributed.world_size(), pg.distributed.local_rank()) == (0, 1, 0)
        assert pg.distributed.current() is job
        x = pg.asarray([[1.0, 2.0]])
        assert job.all_reduce({"x": x}, "mean")["x"].tolist() == [[1.0, 2.0]]
        assert job.all_gather(x).shape == (1, 1, 2)
        assert job.reduce_scatter(x).tolist() == x.tolist()
        assert job.broadcast_object("o") == "o"
    finally:
        pg.distributed.shutdown()
    assert not pg.distributed.is_initialized()


# ---- parts ----------------------------------------------------------------------------------------------------------


def test_a_result_is_told_of_while_others_are_yet_to_be_launched(device):
    launched = []

    class Watcher:
        @hookimpl(wrapper=True)
        def polygrad_launch_op(self, device, op):
            launched.append(op)
            return (yield)

        @hookimpl(wrapper=True)
        def polygrad_launch_fused(self, device):
            launched.append("fused")
            return (yield)

    x = pg.ones((300, 300), dtype=pg.float32)
    early = x @ x
    late = pg.exp(early) @ x
    seen = {}

    def landed(node: Node) -> None:
        seen[node] = len(launched)
        if node is early._node:
            np.testing.assert_allclose(early.detach().numpy(), 300.0)
            seen[node] = len([op for op in launched if op != "read"])

    pg.realize(x)
    REGISTRY.register(watcher := Watcher())
    try:
        realize([early._node, late._node], landed)
    finally:
        REGISTRY.unregister(watcher)
    assert seen[early._node] < len([op for op in launched if op != "read"]) == seen[late._node] - 1


def test_gradients_travel_as_they_lie(device):
    layer = pg.nn.Linear(3, 5)
    layer(pg.ones((4, 3), dtype=pg.float32)).sum().backward()
    node = layer.weight.grad._node
    assert buckets.layout_of(node) == [1, 0]
    form = buckets.Form((1, 0), layer.weight.dtype, 60)
    wire = pg.Array(buckets.outgoing(node, form))
    assert wire.shape == (3, 5)
    pg.realize(wire)
    assert wire._node.storage.contiguous
    back = pg.Array(buckets.incoming(wire._node, form, layer.weight.dtype, 0.5))
    np.testing.assert_allclose(back.numpy(), 0.5 * layer.weight.grad.numpy())


def test_what_travels_over_host_memory_is_read_where_it_lies(device):
    from polygrad.distributed.host_memory import Blocks, messages

    big, small, other = (pg.full(n, float(k), dtype=pg.float32) for k, n in enumerate((100_000, 5, 7)))
    pg.realize(big, small, other)
    made, groups, empty = messages([small._node, big._node, other._node, pg.zeros((0,))._node], Blocks())
    assert (groups, empty) == ([[1], [0, 2]], [3])
    if device == "cpu:0":
        address = np.frombuffer(made[0].send, np.float32).__array_interface__["data"][0]
        assert address == np.from_dlpack(big).__array_interface__["data"][0]
    for m in made:
        m.receive[:] = m.send
    found = {k: n for m, group in zip(made, groups, strict=True) for k, n in zip(group, m.finish(), strict=True)}
    for k, x in enumerate((small, big, other)):
        assert pg.Array(found[k]).tolist() == x.tolist()


def test_what_talks_to_others_is_not_compiled():
    job = pg.distributed.SingleProcess()
    step = pg.compile(lambda x: job.all_reduce(x))
    with pytest.raises(pg.CaptureError, match="cannot compile a function that talks to other processes"):
        for _ in range(3):
            step(pg.ones(3))


def test_buckets_hold_what_fits_and_at_least_one():
    assert buckets.divide([2, 0, 1], [5, 5, 5], 10) == [[2, 0], [1]]
    assert buckets.divide([0, 1], [50, 1], 10) == [[0], [1]]
    assert buckets.divide([], [], 10) == []


def test_the_share_of_communication_that_is_hidden():
    assert pg.distributed.Overlap(1.0, 0.5, 0.1, 3).hidden == pytest.approx(0.8)
    assert pg.distributed.Overlap(1.0, 0.0, 0.0, 0).hidden == 1.0


def test_a_process_knows_who_started_it():
    assert starting._started_as({}) is None
    assert starting._started_as({"PMI_SIZE": "2", "RANK": "0", "WORLD_SIZE": "2"}) == "mpi"
    assert starting._started_as({"RANK": "0", "WORLD_SIZE": "2"}) == "sockets"
    assert starting._started_as({"PMIX_RANK": "0"}) == "mpi"
    assert starting._started_as({"PMI_SIZE": "1", "MPI_LOCALNRANKS": "1"}) is None, "mpiexec -n 1 is one process"


if __name__ == "__main__":
    globals()[f"job_{sys.argv[1]}"](*sys.argv[2:])
