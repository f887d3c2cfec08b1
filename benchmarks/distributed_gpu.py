"""NCCL on one or more GPUs: every collective checked, bandwidth, losses, overlap, and tokens a second beside PyTorch's.

    python -m polygrad.distributed run -n 2 -- benchmarks/distributed_gpu.py      (or mpiexec -n 2 python ...)
    python benchmarks/distributed_gpu.py --one                                    (one GPU, through NCCL all the same)
    python -m polygrad.distributed run -n 2 -- benchmarks/distributed_gpu.py --only model torch

Parts: check (each collective and dtype against sums made on the host), bandwidth, losses (50 steps of a small GPT in
float32 against one process with the whole batch), overlap (the share of communication beside backward, from the
device's events), model (202 M parameters in bfloat16: tokens a second, and memory of the optimiser sharded and not),
torch (the same model by PyTorch's DistributedDataParallel in the same job). Scaling: the figures of ``-n 2`` beside
those of ``--one``.

Here: measuring and checking. Not here: tests; hosts and OpenCL (`distributed.py`).
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import polygrad as pg

PARTS = ("check", "bandwidth", "losses", "overlap", "model", "torch")
DTYPES = ("float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint32", "uint64")
LIMIT = 1e-4  # relative difference of losses after 50 steps in float32


def say(job: pg.distributed.Communicator, *words: object) -> None:
    """Print on the first rank."""
    if job.rank == 0:
        print(*words, flush=True)


def values(dtype: str, rank: int) -> pg.Array:
    """Return small whole numbers, which every dtype adds exactly."""
    base = np.arange(24).reshape(8, 3) % 7 + rank
    return pg.astype(pg.asarray(base.astype("float32")), dtype)


def check(job: pg.distributed.Communicator) -> None:
    """Compare each collective with what the host makes of all ranks' operands."""
    wrong = []
    for dtype in DTYPES:
        every = [np.arange(24).reshape(8, 3) % 7 + r for r in range(job.size)]
        x = values(dtype, job.rank)
        rows = slice(job.rank * 8 // job.size, (job.rank + 1) * 8 // job.size)
        wanted = {"sum": sum(every), "max": every[-1], "min": every[0]}
        found = {op: job.all_reduce(x, op) for op in wanted}
        wanted["gather"], found["gather"] = np.stack(every), job.all_gather(x)
        wanted["broadcast"], found["broadcast"] = every[-1], job.broadcast(x, job.size - 1)
        if 8 % job.size == 0:
            wanted["scatter"], found["scatter"] = sum(every)[rows], job.reduce_scatter(x)
        for name, value in wanted.items():
            got = pg.astype(found[name], "float64").numpy()
            if str(found[name].dtype) != dtype or not np.array_equal(got, value):
                wrong.append(f"{name} of {dtype}")
    odd = {"none": pg.zeros((0, 4)), "one": pg.asarray(float(job.rank)), "complex": pg.asarray([1j * job.rank])}
    found = job.all_reduce(odd)
    total = job.size * (job.size - 1) / 2
    if found["none"].shape != (0, 4) or found["one"].item() != total or found["complex"].tolist() != [1j * total]:
        wrong.append("odd shapes")
    told = job.gather_objects(wrong)
    say(job, "check:", "all right" if not any(told) else told)


def bandwidth(job: pg.distributed.Communicator) -> None:
    """Time all-reduces; the bandwidth of a ring is 2 (n - 1) / n of the bytes over the time."""
    for mib in (1, 25, 256):
        x = pg.ones((mib << 18,), dtype=pg.float32)
        pg.realize(x)
        for _ in range(3):
            job.begin_all_reduce([x._node], "sum").wait()
        pg.synchronize()
        job.barrier()
        began, count = time.perf_counter(), 20
        for _ in range(count):
            job.begin_all_reduce([x._node], "sum").wait()
        pg.synchronize()
        seconds = (time.perf_counter() - began) / count
        share = 2 * (job.size - 1) / job.size
        say(
            job, f"all_reduce of {mib:4d} MiB: {seconds * 1e3:8.3f} ms, {share * (mib << 20) / seconds / 1e9:7.1f} GB/s"
        )


def small(job: pg.distributed.Communicator, sharded: bool, steps: int = 50) -> list[float]:
    """Return the losses of a small GPT, whose batch of 16 is divided among the ranks."""
    pg.random.seed(1)
    model = pg.nn.GPT(vocab_size=512, context=64, dim=128, layers=4, heads=4)
    optimiser: pg.optim.Optimizer = pg.optim.AdamW(model, lr=1e-3)
    together = pg.distributed.DataParallel(model, job, bucket_bytes=1 << 20)
    if sharded:
        optimiser = pg.distributed.ShardedOptimizer(optimiser, job)
    tokens = np.random.default_rng(0).integers(0, 512, (steps, 16, 65))
    share = 16 // job.size
    losses = []
    for batch in tokens:
        mine = batch[job.rank * share : (job.rank + 1) * share]
        loss = model.loss(pg.asarray(mine[:, :-1]), pg.asarray(mine[:, 1:]))
        loss.backward()
        together.step(optimiser, also=loss, max_norm=1.0)
        optimiser.zero_grad()
        losses.append(job.all_reduce(loss.detach(), "mean").item())
    return losses


def losses(job: pg.distributed.Communicator) -> None:
    """Compare with one process, which every rank is for itself."""
    alone = small(pg.distributed.SingleProcess(), sharded=False)
    for sharded in (False, True):
        found = small(job, sharded)
        off = max(abs(a - b) / abs(a) for a, b in zip(alone, found, strict=True))
        verdict = "right" if off <= LIMIT else "WRONG"
        say(
            job,
            f"losses over 50 steps, optimiser {'sharded' if sharded else 'whole'}: {off:.2e} from one process,",
            verdict,
        )


def big(
    job: pg.distributed.Communicator, batch: int, sharded: bool
) -> tuple[Callable[[], pg.Array], pg.distributed.DataParallel]:
    """Return a step of the model of 202 M parameters, and what reduces its gradients."""
    model = pg.nn.GPT(
        vocab_size=32768, context=1024, dim=768, layers=16, heads=12, hidden=3072, positions="learned", tied=False
    )
    optimiser: pg.optim.Optimizer = pg.optim.AdamW(model, lr=3e-4)
    together = pg.distributed.DataParallel(model, job)
    if sharded:
        optimiser = pg.distributed.ShardedOptimizer(optimiser, job)
    x = pg.random.randint(0, 32768, (batch, 1024))
    y = pg.random.randint(0, 32768, (batch, 1024))
    pg.realize(x, y)

    def step() -> pg.Array:
        with pg.autocast("bfloat16"):
            loss = model.loss(x, y)
        loss.backward()
        together.step(optimiser, also=loss)
        optimiser.zero_grad()
        return loss

    return step, together


def timed(
    job: pg.distributed.Communicator, step: Callable[[], object], wait: Callable[[], object], count: int
) -> float:
    """Return the median seconds of a step, after some to warm up."""
    for _ in range(4):
        step()
    times = []
    for _ in range(count):
        wait()
        job.barrier()
        began = time.perf_counter()
        step()
        wait()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def overlap(job: pg.distributed.Communicator, batch: int) -> None:
    """Show how much communication runs beside backward, from the device's events."""
    step, together = big(job, batch, sharded=False)
    for _ in range(4):
        step()
        pg.synchronize()
    found = together.measure()
    say(job, f"overlap: {found.buckets} buckets, {found.communicating * 1e3:.1f} ms of communication, "
        f"{found.waiting * 1e3:.1f} ms of it after backward: {found.hidden:.0%} hidden")  # fmt: skip


def model(job: pg.distributed.Communicator, batch: int) -> None:
    """Time the big model, and measure the memory that its optimiser takes."""
    for sharded in (False, True):
        pg.empty_cache()
        step, _ = big(job, batch, sharded)
        step()
        pg.synchronize()
        seconds = timed(job, step, pg.synchronize, 10)
        used = pg.memory_stats()
        rate = job.size * batch * 1024 / seconds
        say(
            job,
            f"model, optimiser {'sharded' if sharded else 'whole'}: {seconds * 1e3:.1f} ms a step, {rate:.0f} tokens/s",
        )
        say(job, f"    {job.size} GPUs; {used['used'] / 2**30:.2f} GiB after a step, peak {used['peak'] / 2**30:.2f}")
        del step


def torch_model(job: pg.distributed.Communicator, batch: int, baseline: str) -> None:
    """Time PyTorch's model of the same shape under its DistributedDataParallel, if PyTorch is installed."""
    try:
        import torch
        import torch.distributed as td
    except ImportError:
        say(job, "torch: not measured, PyTorch is not installed")
        return
    if not (torch.cuda.is_available() and td.is_available()):
        say(job, "torch: not measured, it has no CUDA or no torch.distributed")
        return
    names: dict[str, object] = {}
    source = Path(baseline).read_text()
    start = source.index("class RMS(nn.Module)")
    head = "import math, torch, torch.nn as nn, torch.nn.functional as F\n"
    exec(head + source[start : source.index("def gpt(")], names)
    torch.cuda.set_device(job.local_rank)
    port = job.broadcast_object(29_000 + os.getpid() % 1000)
    td.init_process_group("nccl", init_method=f"tcp://127.0.0.1:{port}", rank=job.rank, world_size=job.size)
    net = names["GPT"](sdpa=True).cuda()  # type: ignore[operator]
    net = torch.nn.parallel.DistributedDataParallel(net, device_ids=[job.local_rank])
    optimiser = torch.optim.AdamW(net.parameters(), 3e-4, fused=True)
    x, y = (torch.randint(32768, (batch, 1024), device="cuda") for _ in range(2))

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            out = torch.nn.functional.cross_entropy(net(x).view(-1, 32768).float(), y.view(-1))
        out.backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)

    seconds = timed(job, step, torch.cuda.synchronize, 10)
    rate = job.size * batch * 1024 / seconds
    say(job, f"torch, DDP: {seconds * 1e3:.1f} ms a step, {rate:.0f} tokens/s on {job.size} GPUs")
    td.destroy_process_group()


def main() -> None:
    """Run the parts that were asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--one", action="store_true", help="one process, with a communicator of one rank all the same")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batch", type=int, default=16, help="sequences of a GPU, for the big model")
    parser.add_argument("--baseline", default="", help="the file with PyTorch's model, for the part torch")
    given = parser.parse_args()
    if given.one:
        os.environ.update(RANK="0", WORLD_SIZE="1")
    job = pg.distributed.init("device" if given.one else "auto", device=given.device)
    say(job, json.dumps({"ranks": job.size, "moves": job.name, "device": pg.get_device()}))
    for part in given.only:
        if part == "torch":
            if given.baseline:
                torch_model(job, given.batch, given.baseline)
            else:
                say(job, "torch: not measured, --baseline says where its model is")
        elif part in ("overlap", "model"):
            {"overlap": overlap, "model": model}[part](job, given.batch)
        else:
            {"check": check, "bandwidth": bandwidth, "losses": losses}[part](job)
        job.barrier()


if __name__ == "__main__":
    main()
