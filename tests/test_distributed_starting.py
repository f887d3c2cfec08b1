"""How ranks are started, find each other and are told of each other's end, without MPI.

Here: the launcher, the hub, the variables that say who started a process, a job of one. Not here: what ranks do
together (`test_distributed.py`).
"""

import os
import re
import signal
import subprocess
import sys
import threading
import time

import pytest

import polygrad as pg
from polygrad.distributed import starting
from polygrad.distributed.launcher import run as launch
from polygrad.distributed.link import Link, start_hub
from ranks import LIMIT, PROGRAM, RANKS, needs_mpi

# ---- the launcher ----------------------------------------------------------------------------------------------------


def test_the_launcher_names_the_rank_that_was_killed(tmp_path, capfd):
    began = time.monotonic()
    assert launch(RANKS, [PROGRAM, "mesh", str(tmp_path), "killed"], grace=5.0) == 128 + signal.SIGKILL
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


# ---- the hub ---------------------------------------------------------------------------------------------------------


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
    other = subprocess.Popen([sys.executable, PROGRAM, "link", str(hub["port"]), hub["token"], what])
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


# ---- processes -------------------------------------------------------------------------------------------------------


def started(**variables):
    """Return what init says in a process with these variables."""
    clean = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE") and not k.startswith("PMI")}
    done = subprocess.run(
        [sys.executable, PROGRAM, "environment"], env={**clean, **variables}, capture_output=True, text=True,
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


def test_a_process_knows_who_started_it():
    assert starting._started_as({}) is None
    assert starting._started_as({"PMI_SIZE": "2", "RANK": "0", "WORLD_SIZE": "2"}) == "mpi"
    assert starting._started_as({"RANK": "0", "WORLD_SIZE": "2"}) == "sockets"
    assert starting._started_as({"PMIX_RANK": "0"}) == "mpi"
    assert starting._started_as({"PMI_SIZE": "1", "MPI_LOCALNRANKS": "1"}) is None, "mpiexec -n 1 is one process"
