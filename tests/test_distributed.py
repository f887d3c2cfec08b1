"""Training by several processes: the same losses as one, and a clear end when one of them fails.

Here: what ranks do together, over MPI and over a device's own collectives, which `support.mesh` imitates. Not here: how
ranks find each other (`test_distributed_starting.py`), what they do each for itself (`test_distributed_parts.py`); NCCL
(the cuda driver's tests).
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import polygrad as pg
from polygrad.distributed.launcher import run as launch
from ranks import LIMIT, MPIEXEC, PROGRAM, RANKS, needs_mpi, start, told, trained

# ---- by MPI ----------------------------------------------------------------------------------------------------------


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


# ---- by collectives of the device ------------------------------------------------------------------------------------


def test_ranks_on_devices_with_collectives_of_their_own_train_as_one(tmp_path, capfd):
    assert launch(RANKS, [PROGRAM, "mesh", str(tmp_path), "trains"]) == 0
    out = capfd.readouterr().out
    found = sorted(json.loads(line) for line in out.splitlines() if line.startswith("["))
    assert [what[:2] for _, what in found] == [["device", "mesh:0"], ["device", "mesh:1"]]
    alone = trained(pg.distributed.SingleProcess(), "cpu:0", "mlp", False)[0]
    for _, (_, _, losses) in found:
        np.testing.assert_allclose(losses, alone, rtol=1e-5)


def test_ranks_that_share_a_device_are_told_so(tmp_path, capfd):
    assert launch(RANKS, [PROGRAM, "mesh", str(tmp_path), "shared"]) != 0
    assert "ranks 0 and 1 have the same device, mesh:1 on " in capfd.readouterr().err
