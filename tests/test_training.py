"""`pg.training.fit`: the loop that one would write, with what it reads, stops for and refuses.

Here: `fit` in one go, with accumulation, precision, evaluation, reducers, compiled steps. Not here: runs that are ended
and gone on with (`test_training_resumed.py`), logs (`test_training_logs.py`), bars (`test_training_progress.py`);
optimisers (`test_optim*.py`), loaders (`test_data.py`).
"""

import io
import math
import os
import random
import re
import threading
import weakref

import numpy as np
import pytest

import polygrad as pg
from polygrad.training import (
    EarlyStopping,
    Progress,
    fit,
    read_csv,
)
from support.training import Setup, mse, poisoned_at, refuses

# ---- what fit does ---------------------------------------------------------------------------------------------------


def test_fit_is_the_loop_that_one_would_write(device, tmp_path):
    by_hand = Setup()
    schedule, wanted = by_hand.cosine(), []
    while len(wanted) < 9:
        for batch in by_hand.loader:
            loss = mse(by_hand.model, batch)
            loss.backward()
            by_hand.optimiser.step(max_norm=1.0, also=loss)
            by_hand.optimiser.zero_grad()
            schedule.step()
            wanted.append(float(loss))
            if len(wanted) == 9:
                break
    run = Setup()
    done = run.fit(steps=9, schedule=run.cosine(), max_norm=1.0, log=tmp_path / "a.csv")
    assert (done.losses, done.start, done.step, done.stopped) == (wanted, 0, 9, "steps")
    assert run.weights() == by_hand.weights()
    table = read_csv(tmp_path / "a.csv")
    assert table["loss"] == wanted
    assert table["step"] == list(range(1, 10))
    assert table["lr"][0] == pytest.approx(0.05 / 3)
    assert float(run.optimiser.norm) == table["norm"][-1]


def test_batches_of_one_step_are_one_bigger_batch():
    one, four = Setup(batch_size=8), Setup(batch_size=2)
    for run in (one, four):
        run.model.eval()  # without dropout, so that they are comparable
    bigger = one.fit(steps=3, max_norm=1.0)
    smaller = four.fit(steps=3, accumulate=4, max_norm=1.0)
    np.testing.assert_allclose(smaller.losses, bigger.losses, rtol=1e-5)
    assert smaller.step == 3
    assert not one.model.training  # modes are left alone


def test_epochs_end_where_the_data_does():
    assert Setup().fit(epochs=2).step == 8
    assert Setup().fit(epochs=2, accumulate=3).step == 2
    stream = [Setup().rows[:2]] * 3
    run = Setup()
    run.loader = (batch for batch in stream)  # neither length nor place
    done = run.fit(lambda model, x: pg.sum(model(pg.asarray(x)) ** 2), epochs=1, read_every=2)
    assert (done.step, len(done.losses), done.stopped) == (3, 3, "epochs")


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_precision_narrows_products_and_float16_has_a_scale(precision, tmp_path):
    dtypes, run = [], Setup()

    def loss(model, batch):
        out = model(batch[0])
        dtypes.append(out.dtype.name)
        return pg.nn.mse_loss(out, batch[1])

    before = run.weights()
    done = run.fit(loss, steps=12, precision=precision, log=tmp_path / "a.csv")
    assert set(dtypes) == {precision}
    assert done.losses[-1] < done.losses[0]
    assert all(run.weights()[name] != value for name, value in before.items())
    scales = read_csv(tmp_path / "a.csv").get("scale")
    if precision == "bfloat16":
        assert scales is None
    else:
        assert scales[0] == 2.0**16
        assert all(math.log2(scale).is_integer() for scale in scales)


def test_a_loss_that_is_not_finite_ends_the_run_and_the_last_checkpoint_is_whole(tmp_path):
    run = Setup()
    with pytest.raises(pg.TrainingError) as caught:
        run.fit(poisoned_at(6), steps=20, checkpoints=tmp_path / "c", save_every=4, log=tmp_path / "a.csv")
    last = tmp_path / "c" / "step-00000004.ckpt"
    table = read_csv(tmp_path / "a.csv")
    assert str(caught.value) == (
        f"cannot go on: the loss is nan at step 6 (it was {table['loss'][4]:.4g} at step 5); a smaller learning rate, "
        "max_norm=... or another precision may help, and pg.detect_anomaly() finds the op; "
        f"{last} is whole, and resume=True goes on from it"
    )
    assert table["step"] == [1, 2, 3, 4, 5, 6]
    assert math.isnan(table["loss"][5])
    assert os.listdir(tmp_path / "c") == [last.name]
    rest = Setup(seed=2).fit(steps=6, checkpoints=tmp_path / "c", resume=True)
    assert rest.losses[0] == table["loss"][4]
    assert math.isfinite(rest.losses[1])


def test_reading_seldom_finds_the_same_step(tmp_path):
    seldom = Setup()
    with pytest.raises(pg.TrainingError, match=r"^cannot go on: the loss is nan at step 6 \(it was \S+ at step 5\)"):
        seldom.fit(poisoned_at(6), steps=20, read_every=8, log=tmp_path / "a.csv")
    assert read_csv(tmp_path / "a.csv")["step"] == [1, 2, 3, 4, 5, 6]
    often, seldom = Setup().fit(steps=7), Setup().fit(steps=7, read_every=3, log=tmp_path / "b.csv")
    assert often.losses == seldom.losses == read_csv(tmp_path / "b.csv")["loss"]


def test_gradients_that_are_not_finite_leave_the_parameters_as_they_were():
    run = Setup()

    def loss(model, batch):
        return mse(model, batch) + pg.sum(pg.sqrt(model[0].bias * 0.0)) * (run.optimiser.state != {})

    with pytest.raises(
        pg.TrainingError, match=r"^cannot go on: the gradients are not finite at step 2, where the loss"
    ):
        run.fit(loss, steps=3, max_norm=1.0)
    again = Setup()
    again.fit(steps=1, max_norm=1.0)
    assert run.weights() == again.weights()


def test_an_evaluation_leaves_no_trace_in_the_training(tmp_path):
    def evaluate(model):
        assert not model.training
        assert not pg.is_grad_enabled()
        random.random()
        return {"valid_loss": float(pg.random.normal(())), "accuracy": 0.5}

    plain = Setup()
    wanted = plain.fit(steps=5)
    run = Setup()
    done = run.fit(steps=5, evaluate=evaluate, evaluate_every=2, log=tmp_path / "a.csv", log_every=3)
    assert done.losses == wanted.losses
    assert run.weights() == plain.weights()
    assert [step for step, _ in done.evaluations] == [2, 4, 5]
    table = read_csv(tmp_path / "a.csv")
    assert table["step"] == [2, 3, 4, 5]
    assert table["accuracy"] == [0.5, None, 0.5, 0.5]
    assert run.model.training


def test_early_stopping_and_plateaus_follow_the_held_out_loss(tmp_path):
    run, values = Setup(), iter([3.0, 2.0, 2.5, 2.5, 2.5])
    plateau = pg.optim.lr_scheduler.ReduceLROnPlateau(run.optimiser, factor=0.5, patience=0)
    stopping = EarlyStopping(patience=2)
    done = run.fit(
        steps=50, evaluate=lambda model: next(values), evaluate_every=3, early_stopping=stopping, schedule=plateau,
        checkpoints=tmp_path,
    )  # fmt: skip
    assert (done.step, done.stopped, stopping.best, stopping.best_step) == (12, "early stopping", 2.0, 6)
    assert done.checkpoint.name == "step-00000012.ckpt"
    assert run.optimiser.lr == 0.0125
    by_loss = Setup().fit(lambda model, batch: mse(model, batch) * 0.0 + 1.0, steps=50, early_stopping=EarlyStopping(4))
    assert by_loss.step == 5
    with refuses(pg.TrainingError, "cannot follow 'accuracy': the figures are loss, lr, valid_loss"):
        Setup().fit(
            steps=2, evaluate=lambda model: 1.0, evaluate_every=1, early_stopping=EarlyStopping(1), monitor="accuracy"
        )


def test_gradients_of_several_processes_become_one_before_each_step(tmp_path, capsys):
    class Doubled:
        rank = 1
        calls = 0
        begun = None

        def begin(self, step):
            self.begun = step

        def reduce(self, parameters, *, also):
            assert also.shape == ()
            self.calls += 1
            for p in parameters:
                p.grad = p.grad * 2.0

        def any(self, flag):
            return flag or self.calls == 4

        def mean(self, value):
            return value + 100.0

    run, reducer = Setup(batch_size=4), Doubled()
    run.optimiser = pg.optim.SGD(run.model, lr=0.05)
    done = run.fit(
        steps=6, accumulate=2, reducer=reducer, log=tmp_path / "a.csv", checkpoints=tmp_path / "c", progress=True
    )
    assert (done.step, done.stopped, reducer.calls, reducer.begun) == (4, "interrupted", 4, 0)
    assert os.listdir(tmp_path / "c") == []  # another process writes
    assert not (tmp_path / "a.csv").exists()
    assert capsys.readouterr() == ("", "")
    alone = Setup(batch_size=4)
    alone.optimiser = pg.optim.SGD(alone.model, lr=0.1)
    assert [v - 100.0 for v in done.losses] == pytest.approx(alone.fit(steps=4, accumulate=2).losses, rel=1e-5)


def test_the_average_and_other_parts_are_saved_and_a_hook_is_called(tmp_path):
    run, calls = Setup(), []
    ema = pg.optim.EMA(run.model, decay=0.5)
    run.fit(
        steps=3, average=ema, after_step=calls.append, checkpoints=tmp_path, parts={"extra": EarlyStopping(3)},
        metadata={"config": {"width": 8}},
    )  # fmt: skip
    assert calls == [1, 2, 3]
    assert ema.count == 3
    saved = pg.io.read_checkpoint(tmp_path / "step-00000003.ckpt")
    assert saved == {
        "config": {"width": 8}, "step": 3, "parts": ["model", "optimiser", "loader", "average", "extra"]
    }  # fmt: skip
    run = Setup()
    with refuses(pg.TrainingError, "cannot save a part called 'model': the run has one of this name"):
        run.fit(steps=3, parts={"model": run.model})
    with refuses(
        pg.TrainingError,
        "cannot keep checkpoints with extra, which is dict: it has no state_dict and load_state_dict",
    ):
        run.fit(steps=3, parts={"extra": {}}, checkpoints=tmp_path / "new")


def test_fit_works_in_any_thread():
    found = []
    thread = threading.Thread(target=lambda: found.append(Setup().fit(steps=2).step))
    thread.start()
    thread.join()
    assert found == [2]


def test_fit_shows_what_it_does_and_takes_logs_of_ones_own(capsys):
    class Kept(list):
        def write(self, step, **figures):
            self.append((step, sorted(figures)))

    kept = Kept()
    Setup().fit(steps=2, log=[kept], progress=True, items_per_step=8, unit="samples", description="digits")
    assert kept == [(1, ["loss", "lr", "samples/s"]), (2, ["loss", "lr", "samples/s"])]
    (line,) = capsys.readouterr().err.splitlines()
    assert re.match(r"digits 2/2, loss \S+, lr 0.05, \S+ it/s, \S+ samples/s, 0:00 gone$", line)
    out = io.StringIO()
    with Progress(2, console=out, interval=0.0) as progress:
        Setup().fit(steps=2, progress=progress)
        assert progress.active
    assert out.getvalue().startswith("2/2, ")


def test_no_batch_and_no_graph_outlives_its_step():
    alive = []

    def loss(model, batch):
        alive.append(weakref.ref(batch[0]))
        value = mse(model, batch)
        assert sum(ref() is not None for ref in alive) <= 2  # this one, and the one that the loop's name still has
        return value

    Setup().fit(loss, steps=6, read_every=6)


# ---- compiled steps --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [{}, {"max_norm": 0.5, "precision": "bfloat16"}])
def test_compiled_steps_are_the_steps(device, tmp_path, how):
    def run(compiled, folder):
        pg.random.seed(3)
        with pg.device(device):
            x = pg.random.normal((48, 6), dtype=pg.float32)
            data = pg.data.TensorDataset(x, pg.argmax(x[:, :3], axis=1))
            model = pg.nn.Sequential(pg.nn.Linear(6, 8), pg.nn.Dropout(0.2), pg.nn.Tanh(), pg.nn.Linear(8, 3))
            optimiser = pg.optim.AdamW(model, lr=1e-2)
            done = fit(
                model, lambda model, batch: pg.nn.cross_entropy(model(batch[0]), batch[1]),
                pg.data.DataLoader(data, batch_size=16, shuffle=True, seed=1), optimiser, steps=9, progress=False,
                schedule=pg.optim.lr_scheduler.CosineWithWarmup(optimiser, total=9, warmup=2), compiled=compiled,
                average=pg.optim.EMA(model, decay=0.9), log=folder / "log.csv", **how,
            )  # fmt: skip
        return done.losses, [p.numpy() for p in model.parameters()], read_csv(folder / "log.csv")

    folders = [tmp_path / name for name in ("plain", "compiled")]
    for folder in folders:
        folder.mkdir()
    plain, replayed = run(False, folders[0]), run(True, folders[1])
    assert plain[0] == replayed[0]
    for a, b in zip(plain[1], replayed[1], strict=True):
        np.testing.assert_array_equal(a, b)
    assert plain[2] == replayed[2]


def test_compiled_steps_are_replayed(monkeypatch):
    from polygrad.runtime.replay import Replay

    runs = []
    run = Replay.run
    monkeypatch.setattr(Replay, "run", lambda self, numbers: (runs.append(1), run(self, numbers)))
    data = pg.data.TensorDataset(pg.ones((12, 2), dtype=pg.float32))
    model = pg.nn.Linear(2, 1)
    fit(
        model, lambda model, batch: pg.mean(model(batch[0]) ** 2), pg.data.DataLoader(data, batch_size=4),
        pg.optim.SGD(model, lr=0.1), steps=8, progress=False, compiled=True,
    )  # fmt: skip
    assert len(runs) == 6


@pytest.mark.parametrize(("how", "what"), [({"accumulate": 2}, "accumulate"), ({"precision": "float16"}, "a scaler")])
def test_what_decides_by_values_is_not_compiled(how, what):
    model = pg.nn.Linear(2, 1)
    with refuses(
        pg.TrainingError, f"cannot train compiled with {what}, which decides by values: leave one of the two out"
    ):
        fit(model, None, [], pg.optim.SGD(model, lr=0.1), steps=1, compiled=True, progress=False, **how)


# ---- what is refused -------------------------------------------------------------------------------------------------


NO_BATCHES = (
    "cannot train: the loader gave no batches in epoch {}; it has too little data, or it is an iterator, which can be "
    "read once"
)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"steps": 0}, "cannot train with steps=0: it must be at least 1"),
        ({"epochs": -1}, "cannot train with epochs=-1: it must be at least 1"),
        ({"steps": 1, "accumulate": 0}, "cannot train with accumulate=0: it must be at least 1"),
        ({}, "cannot train without knowing how long: give steps= or epochs=, one of the two"),
        ({"steps": 1, "epochs": 1}, "cannot train without knowing how long: give steps= or epochs=, one of the two"),
        (
            {"steps": 1, "precision": "float8"},
            "cannot train in precision 'float8': it is 'float32', 'bfloat16' or 'float16'",
        ),
        ({"steps": 1, "unsaved": "no"}, "cannot train with unsaved='no': it is 'warn' or 'raise'"),
        (
            {"steps": 1, "loss": lambda model, batch: model(batch[0])},
            "cannot train by a loss of shape [8, 2]: loss(model, batch) must return one number",
        ),
        (
            {"steps": 1, "loss": lambda model, batch: 1.0},
            "cannot train by a loss of float: loss(model, batch) must return one number",
        ),
        (
            {"steps": 1, "evaluate": lambda model: {"loss": 1.0}},
            "cannot take what evaluate(model) returned: it has a figure 'loss', which the training has too",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(how, said):
    run = Setup()
    before = run.weights()
    with refuses(pg.TrainingError, said):
        run.fit(**how)
    assert "evaluate" in how or run.weights() == before


def test_a_loader_without_batches_is_no_endless_loop():
    for loader, epoch in (([], 1), (iter(list(Setup().loader)), 2)):
        run = Setup()
        run.loader = loader
        with refuses(pg.TrainingError, NO_BATCHES.format(epoch)):
            run.fit(steps=50)
