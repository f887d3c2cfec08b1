"""Runs of `pg.training.fit` that are ended, by a wish, a signal or a full disk, and gone on with.

Here: that such a run ends bit for bit as one that was not ended; what folders, lists and signals may do to it. Not
here: the files of checkpoints (`test_io_checkpoints.py`); `fit` in one go (`test_training.py`).
"""

import os
import re
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest

import polygrad as pg
from polygrad.training import (
    read_csv,
)
from polygrad.training.batches import Batches
from support.training import Setup, mse, refuses, room, send

# ---- in one process --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [5, 8], ids=["within an epoch", "between epochs"])
@pytest.mark.parametrize("kept", [True, False], ids=["a loader with a state", "a list"])
def test_a_run_that_goes_on_is_the_run_that_was_not_ended(device, tmp_path, place, kept):
    def run(seed, **how):
        setup = Setup(seed)
        if not kept:
            setup.loader = [tuple(map(pg.asarray, (r, r[:, :2]))) for r in np.split(setup.rows[:28], 4)]
        how = {
            "schedule": setup.cosine(), "average": pg.optim.EMA(setup.model, 0.9), "max_norm": 1.0,
            "scaler": pg.optim.GradScaler(8.0, growth_interval=3), "log": tmp_path / "a.csv", **how,
        }  # fmt: skip
        return setup.fit(**how), setup

    whole, before = run(1, steps=12, log=())
    first, _ = run(1, steps=place, checkpoints=tmp_path / "c", save_every=3)
    rest, after = run(2, steps=12, checkpoints=tmp_path / "c", resume=True)
    assert first.losses + rest.losses == whole.losses
    assert (rest.start, rest.step) == (place, 12)
    assert after.weights() == before.weights()
    assert read_csv(tmp_path / "a.csv")["loss"] == whole.losses
    saved = rest.checkpoint.stat()
    nothing, _ = run(3, steps=12, checkpoints=tmp_path / "c", resume=True)
    assert (nothing.losses, nothing.step, nothing.checkpoint) == ([], 12, rest.checkpoint)
    assert nothing.checkpoint.stat() == saved  # not written again


def test_a_wish_to_stop_at_the_last_step_finds_a_run_that_is_done(tmp_path):
    run = Setup()
    done = run.fit(steps=3, after_step=lambda step: send() if step == 3 else None, evaluate=lambda model: 1.0)
    assert (done.stopped, done.evaluations) == ("steps", [(3, {"valid_loss": 1.0})])
    done = run.fit(steps=3, after_step=lambda step: send() if step == 2 else None, evaluate=lambda model: 1.0)
    assert (done.stopped, done.step, done.evaluations) == ("interrupted", 2, [])


def test_the_end_of_an_epoch_is_the_beginning_of_the_next():
    batches = Batches(Setup().loader, None)
    places = []
    for _ in range(5):
        next(batches)
        places.append(tuple(batches.state_dict()[key] for key in ("epoch", "batch")))
    assert places == [(0, 1), (0, 2), (0, 3), (1, 0), (1, 1)]
    batches.close()


def test_a_full_disk_between_steps_is_a_warning_and_at_the_end_an_error(tmp_path):
    run = Setup()
    run.fit(steps=2, checkpoints=tmp_path)
    last = tmp_path / "step-00000002.ckpt"
    whole = last.read_bytes()
    said = f"cannot save the checkpoint of step {{}} in {tmp_path}: File too large; the last one is {last}"
    with (
        room(1000),
        pytest.warns(UserWarning, match=f"^{re.escape(said.format(4) + '; the run goes on')}$"),
        refuses(pg.TrainingError, said.format(5)),
    ):
        run.fit(steps=5, checkpoints=tmp_path, resume=True, save_every=2)
    with room(1000), refuses(pg.TrainingError, said.format(4)):
        run.fit(steps=5, checkpoints=tmp_path, resume=True, save_every=2, unsaved="raise")
    assert last.read_bytes() == whole
    assert os.listdir(tmp_path) == [last.name]


def test_a_new_run_does_not_take_the_folder_of_another(tmp_path):
    Setup().fit(steps=2, checkpoints=tmp_path)
    with refuses(
        pg.TrainingError,
        f"cannot begin a run: {tmp_path} has checkpoints of another one, the newest called step-00000002.ckpt; go on "
        "from it with resume=True, or take another folder",
    ):
        Setup().fit(steps=2, checkpoints=tmp_path)
    wider = Setup()
    wider.model = pg.nn.Linear(4, 2)
    wider.optimiser = pg.optim.SGD(wider.model, lr=0.1)
    before = wider.weights()
    with pytest.raises(pg.StateError, match=r"cannot load model from .*step-00000002\.ckpt: "):
        wider.fit(steps=4, checkpoints=tmp_path, resume=True)
    assert wider.weights() == before
    (tmp_path / "step-00000002.ckpt").write_bytes(b"torn")
    with (
        pytest.warns(UserWarning, match="damaged"),
        refuses(pg.TrainingError, f"cannot resume from {tmp_path}: none of its 1 checkpoints is whole"),
    ):
        Setup().fit(steps=2, checkpoints=tmp_path, resume=True)


def test_resuming_where_nothing_was_saved_begins(tmp_path):
    assert Setup().fit(steps=2, checkpoints=tmp_path / "c", resume=True).start == 0
    with refuses(pg.TrainingError, "cannot resume a run without checkpoints=, the folder of its checkpoints"):
        Setup().fit(steps=2, resume=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(pg.TrainingError, match=rf"^cannot keep checkpoints in {tmp_path}/file/c: Not a directory$"):
        Setup().fit(steps=2, checkpoints=tmp_path / "file" / "c")


def test_a_list_that_became_shorter_cannot_be_gone_on_with(tmp_path):
    run = Setup()
    run.loader = list(run.loader)
    run.fit(steps=3, checkpoints=tmp_path)
    run.loader = run.loader[:2]
    with refuses(pg.StateError, "cannot go on after 3 batches: the loader gives only 2 of them now"):
        run.fit(steps=4, checkpoints=tmp_path, resume=True)
    run = Setup()
    with pytest.raises(pg.StateError, match="cannot load this state into a loader: it is of a loader of another kind"):
        run.fit(steps=4, checkpoints=tmp_path, resume=True)


# ---- signals ---------------------------------------------------------------------------------------------------------


RUN = """
    import hashlib, os, random, sys, time
    import numpy as np
    import polygrad as pg

    def main(folder, seed, steps, resume, workers):
        pg.random.seed(seed)
        random.seed(seed)
        rows = np.random.default_rng(0).standard_normal((40, 4)).astype("float32")
        data = pg.data.TensorDataset(rows, rows[:, :2] * 2)
        loader = pg.data.DataLoader(data, 8, shuffle=True, seed=seed, num_workers=workers, prefetch_factor=2)
        model = pg.nn.Sequential(pg.nn.Linear(4, 8), pg.nn.Dropout(0.2), pg.nn.BatchNorm1d(8), pg.nn.Linear(8, 2))
        optimiser = pg.optim.AdamW(model, lr=0.01)

        def loss(model, batch):
            noise = pg.random.normal(batch[0].shape, dtype=pg.float32) * random.random() * 0.1
            return pg.nn.mse_loss(model(batch[0] + noise), batch[1])

        def after_step(step):
            while step == 150 and not os.path.exists(f"{folder}/signalled"):
                time.sleep(0.01)

        done = pg.training.fit(
            model, loss, loader, optimiser, steps=steps, accumulate=2, max_norm=1.0, after_step=after_step,
            schedule=pg.optim.lr_scheduler.CosineWithWarmup(optimiser, total=500, warmup=5), resume=resume,
            checkpoints=f"{folder}/c", save_every=7, log=(f"{folder}/a.csv", f"{folder}/events"),
        )
        loader.close()
        digest = hashlib.sha256(b"".join(a.numpy().tobytes() for a in model.state_dict().values()))
        print(done.stopped, done.step, digest.hexdigest())

    if __name__ == "__main__":
        main(sys.argv[1], *map(int, sys.argv[2:]))
"""


@pytest.fixture
def started(tmp_path):
    """A function that starts the program above in a process group of its own."""
    script = tmp_path / "run.py"
    script.write_text(textwrap.dedent(RUN))
    running = []

    def start(*arguments):
        process = subprocess.Popen(
            [sys.executable, str(script), *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, start_new_session=True,
        )  # fmt: skip
        running.append(process)
        return process

    yield start
    for process in running:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def waited_for(path, rows):
    """Wait until a log has so many rows."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if path.exists() and len(path.read_text().splitlines()) > rows:
            return
        time.sleep(0.002)
    raise AssertionError(f"{path} has no {rows} rows after a minute")


def test_ctrl_c_saves_and_the_run_that_goes_on_ends_bit_for_bit_the_same(tmp_path, started):
    """The signal goes to the whole group of processes, as a terminal sends it, at a moment that nobody chose."""
    (tmp_path / "whole").mkdir()
    (tmp_path / "whole" / "signalled").touch()
    whole = started(tmp_path / "whole", 1, 160, 0, 0)
    halves = {workers: started(tmp_path / f"half{workers}", 1, 160, 0, workers) for workers in (0, 2)}
    for workers, half in halves.items():
        waited_for(tmp_path / f"half{workers}" / "a.csv", 11)
        os.killpg(half.pid, signal.SIGINT)
        (tmp_path / f"half{workers}" / "signalled").touch()  # so that it cannot have come too late
    for workers, half in halves.items():
        out, said = half.communicate(timeout=60)
        stopped, step, _ = out.split()
        assert (half.returncode, stopped) == (0, "interrupted"), said
        assert "stopping after this step, and saving; Ctrl-C again stops at once" in said.splitlines()
        assert "Traceback" not in said
        assert (tmp_path / f"half{workers}" / "c" / f"step-{int(step):08d}.ckpt").exists()
        halves[workers] = started(tmp_path / f"half{workers}", 2, 160, 1, workers)
    wanted, said = whole.communicate(timeout=120)
    assert wanted.startswith("steps 160 "), said
    losses = read_csv(tmp_path / "whole" / "a.csv")["loss"]
    for workers, half in halves.items():
        got, said = half.communicate(timeout=120)
        assert got == wanted, said
        assert read_csv(tmp_path / f"half{workers}" / "a.csv")["loss"] == losses


def test_a_second_ctrl_c_ends_at_once_and_loses_no_checkpoint(tmp_path, monkeypatch):
    run, calls = Setup(), []

    def loss(model, batch):
        calls.append(batch)
        if len(calls) == 6:
            send()
            send()
        return mse(model, batch)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        run.fit(loss, steps=20, checkpoints=tmp_path, save_every=2)
    assert signal.getsignal(signal.SIGINT) is before
    assert pg.io.Checkpoints(tmp_path).latest().name == "step-00000004.ckpt"


def test_a_worker_that_was_forked_dies_of_a_signal_as_ever():
    code = """
        import os, signal
        from polygrad.training import Interruption

        with Interruption(message="") as interruption:
            child = os.fork()
            if child == 0:
                os.kill(os.getpid(), signal.SIGTERM)
                os._exit(0)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), interruption.requested)
    """
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True
    )
    assert run.stdout == f"{-signal.SIGTERM} False\n"
