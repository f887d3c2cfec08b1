"""Checkpoints of training runs.

Here: that a run goes on bit for bit, that damage is seen, that a kill loses nothing. Not here: safetensors files of
models (`test_io.py`).
"""

import os
import random
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import polygrad as pg

try:
    import safetensors
except ImportError:
    safetensors = None


class Run:
    """A small training run with everything in it that has a state."""

    def __init__(self, seed):
        pg.random.seed(seed)
        random.seed(seed)
        self.model = pg.nn.Sequential(pg.nn.Linear(4, 8), pg.nn.Tanh(), pg.nn.Linear(8, 2))
        self.optimiser = pg.optim.AdamW(self.model, lr=0.05)
        self.schedule = pg.optim.lr_scheduler.CosineWithWarmup(self.optimiser, total=40, warmup=3)
        self.ema = pg.optim.EMA(self.model, decay=0.9)
        self.scaler = pg.optim.GradScaler(init_scale=8.0, growth_interval=4)
        rows = np.random.default_rng(0).standard_normal((30, 4)).astype("float32")
        data = pg.data.TensorDataset(rows, rows[:, :2] * 2)
        self.loader = pg.data.DataLoader(data, batch_size=8, shuffle=True, seed=seed)

    def parts(self):
        return dict(vars(self))

    def go(self, steps):
        losses = []
        while len(losses) < steps:
            for x, y in self.loader:
                noisy = x + pg.random.normal(x.shape, std=0.01, dtype=pg.float32) + random.random() * 0.01
                loss = pg.nn.mse_loss(self.model(pg.nn.dropout(noisy, 0.1)), y)
                self.scaler.scale(loss).backward()
                self.scaler.step(self.optimiser, max_norm=1.0, also=loss)
                self.optimiser.zero_grad()
                self.schedule.step()
                self.ema.update()
                losses.append(float(loss))
                if len(losses) == steps:
                    break
        return losses

    def values(self):
        return {n: a.numpy().tobytes() for n, a in {**self.model.state_dict(), **self.ema.state_dict()["mean"]}.items()}


def test_a_run_that_was_interrupted_ends_bit_for_bit_where_the_other_does(device, tmp_path):
    whole = Run(1)
    want = whole.go(18)
    half = Run(1)
    first = half.go(7)  # in the middle of an epoch
    pg.io.save_checkpoint(tmp_path / "a", **half.parts(), metadata={"step": 7, "config": {"dim": [1, 2.5, None]}})
    half.go(3)
    rest = Run(2)  # another start, which the checkpoint replaces
    rest.go(1)
    assert pg.io.load_checkpoint(tmp_path / "a", **rest.parts()) == {"step": 7, "config": {"dim": [1, 2.5, None]}}
    assert first + rest.go(11) == want
    assert rest.values() == whole.values()
    assert rest.optimiser.lr == whole.optimiser.lr
    assert rest.scaler.get_scale() == whole.scaler.get_scale()


def test_any_tree_of_values_is_kept_and_given_back(tmp_path):
    tree = {
        "a": [pg.asarray([1, 2]), {"b": pg.asarray(2.5, dtype=pg.bfloat16)}], "n": None, "t": True, "inf": float("inf"),
        "big": 2**63, "x": 0.1, "s": "text",
    }  # fmt: skip
    pg.io.save_checkpoint(tmp_path / "a", tree=tree)
    back = pg.io.load_checkpoint(tmp_path / "a", tree=None)["tree"]
    assert back["a"][0].tolist() == [1, 2]
    assert (back["a"][1]["b"].dtype, back["a"][1]["b"].item()) == (pg.bfloat16, 2.5)
    assert {k: back[k] for k in ("n", "t", "inf", "big", "x", "s")} == {k: v for k, v in tree.items() if k != "a"}
    assert pg.io.read_checkpoint(tmp_path / "a") == {"parts": ["tree"]}


@pytest.mark.skipif(safetensors is None, reason="not run: needs safetensors")
def test_others_can_read_the_arrays(tmp_path):
    model = pg.nn.Linear(3, 2)
    pg.io.save_checkpoint(tmp_path / "a", model=model, more=[pg.asarray([True]), pg.asarray([1, 2, 3])])
    back = pg.io.load_safetensors(tmp_path / "a")
    assert back["model.weight"].tolist() == model.weight.tolist()
    assert back["more.0"].tolist() == [True]


def test_loading_is_all_or_nothing(tmp_path):
    one = Run(1)
    one.go(3)
    pg.io.save_checkpoint(tmp_path / "a", **one.parts())
    other = Run(2)
    other.go(2)
    state = pg.random.get_state()
    before, lr = other.values(), other.optimiser.lr
    other.schedule = pg.optim.lr_scheduler.ReduceLROnPlateau(other.optimiser)  # cannot take what was saved
    with pytest.raises(pg.StateError, match=r"cannot load schedule from .*: cannot load this state into ReduceLROnPl"):
        pg.io.load_checkpoint(tmp_path / "a", **other.parts())
    assert other.values() == before
    assert other.optimiser.lr == lr
    assert pg.random.get_state() == state
    with pytest.raises(
        pg.StateError, match=r"cannot load net from .*: it holds model, optimiser, schedule, ema, scaler"
    ):
        pg.io.load_checkpoint(tmp_path / "a", net=other.model)
    wider = pg.nn.Sequential(pg.nn.Linear(5, 8), pg.nn.Tanh(), pg.nn.Linear(8, 2))
    with pytest.raises(
        pg.StateError, match=r"cannot load model from .*0\.weight has shape \[8, 4\] and needs \[8, 5\]"
    ):
        pg.io.load_checkpoint(tmp_path / "a", model=wider)


def test_what_no_checkpoint_can_hold_is_named(tmp_path):
    for bad, message in [
        ({"x": {"y": object()}}, "cannot save x.y, which is object"),
        ({"x": {1: 2}}, "its key 1 is no text of its own"),
        ({"x": pg.zeros(1, dtype=pg.complex128)}, "safetensors files hold no complex128"),
    ]:
        with pytest.raises((pg.StateError, pg.DTypeError), match=message):
            pg.io.save_checkpoint(tmp_path / "a", **bad)
    with pytest.raises(pg.StateError, match="it must be what JSON can hold"):
        pg.io.save_checkpoint(tmp_path / "a", metadata={"x": pg.ones(1)})
    assert list(tmp_path.iterdir()) == []


def test_every_damage_is_seen(tmp_path):
    model = pg.nn.Linear(3, 2)
    path = tmp_path / "a"
    pg.io.save_checkpoint(path, model=model, metadata={"step": 1})
    good = path.read_bytes()
    weight, bias = model.weight.tolist(), model.bias.tolist()
    rng = random.Random(1)
    places = [rng.randrange(len(good)) for _ in range(150)]
    for place in places:
        path.write_bytes(good[:place] + bytes([good[place] ^ 1 << rng.randrange(8)]) + good[place + 1 :])
        with pytest.raises(pg.StateError):
            pg.io.load_checkpoint(path, model=model)
    for cut in [0, 5, 8, 100, len(good) // 2, len(good) - 1]:
        path.write_bytes(good[:cut])
        with pytest.raises(pg.StateError, match="cannot (read|load)"):
            pg.io.load_checkpoint(path, model=model)
    path.write_bytes(good + b"\0")
    with pytest.raises(pg.StateError, match="it was cut short or added to"):
        pg.io.load_checkpoint(path, model=model)
    assert (model.weight.tolist(), model.bias.tolist()) == (weight, bias)
    path.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    with pytest.raises(pg.StateError) as refused:
        pg.io.load_checkpoint(path, model=model)
    assert str(refused.value) == f"cannot load {path}: its checksum does not fit, so it is torn or damaged"


@pytest.mark.skipif(safetensors is None, reason="not run: needs safetensors")
def test_foreign_and_later_files_are_refused(tmp_path):
    path = tmp_path / "a"
    pg.io.save_safetensors({"x": pg.ones(2)}, path)
    with pytest.raises(pg.StateError, match="it is a safetensors file but no checkpoint of a training run"):
        pg.io.load_checkpoint(path)
    path.write_bytes(b"PK\x03\x04" + bytes(200))
    with pytest.raises(pg.StateError, match="it is damaged or no safetensors file"):
        pg.io.load_checkpoint(path)
    pg.io.save_safetensors({"x": pg.ones(2)}, path, {"format": "polygrad checkpoint", "version": "2"})
    with pytest.raises(pg.StateError, match="it has version 2, and this polygrad reads up to 1"):
        pg.io.load_checkpoint(path)
    pg.io.save_safetensors({"x": pg.ones(2)}, path, {"format": "polygrad checkpoint", "version": "1", "content": "{"})
    with pytest.raises(pg.StateError, match="its header is damaged"):
        pg.io.load_checkpoint(path)


def test_a_full_disk_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "a"
    pg.io.save_checkpoint(path, x=[pg.zeros(2)])

    def full(_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        pg.io.save_checkpoint(path, x=[pg.ones(2)], previous=tmp_path / "b")
    monkeypatch.undo()
    assert pg.io.load_checkpoint(path, x=None)["x"][0].tolist() == [0.0, 0.0]
    assert [p.name for p in tmp_path.iterdir()] == ["a"]
    pg.io.save_checkpoint(path, x=[pg.ones(2)], previous=tmp_path / "b")
    pg.io.save_checkpoint(path, x=[pg.full((2,), 2.0)], previous=tmp_path / "b")
    assert pg.io.load_checkpoint(path, x=None)["x"][0].tolist() == [2.0, 2.0]
    assert pg.io.load_checkpoint(tmp_path / "b", x=None)["x"][0].tolist() == [1.0, 1.0]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b"]


def test_a_folder_keeps_the_newest_and_finds_the_newest_whole_one(tmp_path):
    run = pg.io.Checkpoints(tmp_path / "run", keep=2)
    assert run.latest() is None
    with pytest.raises(pg.StateError, match="there is no checkpoint in it"):
        run.load(x=None)
    for step in (1, 2, 10):
        path = run.save(step, x=[pg.asarray(step)], metadata={"loss": 0.5})
    assert [p.name for p in run.paths()] == ["step-00000002.ckpt", "step-00000010.ckpt"]
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.warns(UserWarning, match=r"step-00000010.ckpt: .*; taking the one before it"):
        found = run.load(x=None)
    assert (found["step"], found["loss"], found["x"][0].item()) == (2, 0.5, 2)
    run.save(5, x=[pg.asarray(5)])  # the run goes on from the older one: what was later is gone
    assert [p.name for p in run.paths()] == ["step-00000002.ckpt", "step-00000005.ckpt"]
    assert run.load(x=None)["step"] == 5
    (tmp_path / "run" / "notes.txt").write_text("mine")
    run.save(6, x=[pg.asarray(6)])
    assert (tmp_path / "run" / "notes.txt").exists()
    with pytest.raises(pg.StateError, match="cannot keep 0 checkpoints"):
        pg.io.Checkpoints(tmp_path, keep=0)


KILLED = """
    import os, random, signal, sys, time
    import polygrad as pg

    folder, kills = sys.argv[1], int(sys.argv[2])
    data = [pg.full((50_000,), 0.0), pg.arange(1000)]
    pg.realize(data)
    pg.io.Checkpoints(folder, keep=2).save(0, data=data, count=[0])
    rng = random.Random(5)
    for turn in range(kills):
        child = os.fork()
        if child == 0:  # saves until it is killed; reads its arrays, and computes nothing
            run = pg.io.Checkpoints(folder, keep=2)
            step = run.load(data=None)["step"]
            while True:
                step += 1
                run.save(step, data=data, count=[step])
        time.sleep(rng.uniform(0.0, 0.06))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        run = pg.io.Checkpoints(folder, keep=2)
        newest = run.paths()[-1]
        assert run.latest() == newest, (turn, newest)  # the newest name is always a whole file
        found = run.load(count=None)
        assert [int(newest.name[5:13])] == found["count"] == [found["step"]]
    print(found["step"])
"""


@pytest.mark.parametrize("kills", [10, pytest.param(100, marks=pytest.mark.thorough)])
def test_a_kill_while_saving_loses_nothing(tmp_path, kills):
    script = tmp_path / "killed.py"
    script.write_text(textwrap.dedent(KILLED))
    run = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", script, str(tmp_path / "run"), str(kills)],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) > 0
    pg.io.Checkpoints(tmp_path / "run", keep=2).save(10**6, x=[1])
    assert not list((tmp_path / "run").glob(".*.part"))
