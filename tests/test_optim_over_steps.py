"""What goes with an optimiser over many steps: schedules, averages of weights, gradients of several batches.

Here: their numbers, their states, what they refuse. Not here: the steps (`test_optim.py`).
"""

import numpy as np
import pytest

import polygrad as pg


def test_schedules_set_the_learning_rate_of_all_groups_and_are_saved():
    a, b = pg.nn.Parameter([1.0]), pg.nn.Parameter([1.0])
    optimiser = pg.optim.SGD([{"params": [a]}, {"params": [b], "lr": 2.0}], lr=1.0)
    schedule = pg.optim.lr_scheduler.CosineWithWarmup(optimiser, total=6, warmup=2, lowest=0.1)
    seen = []
    for _ in range(8):
        seen.append(tuple(round(g["lr"], 4) for g in optimiser.groups))
        schedule.step()
    assert seen[:3] == [(0.5, 1.0), (1.0, 2.0), (1.0, 2.0)]
    assert seen[4] == (0.55, 1.05)
    assert seen[6] == seen[7] == (0.1, 0.1)
    saved = schedule.state_dict()
    other = pg.optim.lr_scheduler.CosineWithWarmup(optimiser, total=6, warmup=2)
    other.load_state_dict({**saved, "count": 0})
    assert [g["lr"] for g in optimiser.groups] == [0.5, 1.0]
    with pytest.raises(pg.StateError, match="it must hold a count and 2 first learning rates"):
        other.load_state_dict({"count": 1, "first": [1.0]})
    with pytest.raises(pg.GradError, match="cannot warm up for 6 of 6 steps"):
        pg.optim.lr_scheduler.CosineWithWarmup(optimiser, total=6, warmup=6)
    with pytest.raises(pg.GradError, match="must be at least 1"):
        pg.optim.lr_scheduler.StepLR(optimiser, step_size=0)


@pytest.mark.parametrize("kind", ["sequential", "chained", "plateau", "cycle"])
def test_composed_schedules_go_on_where_they_were_saved(kind):
    from polygrad.optim import lr_scheduler as s

    def made():
        o = pg.optim.SGD([pg.nn.Parameter([1.0])], lr=1.0, momentum=0.9)
        if kind == "sequential":
            return o, s.SequentialLR(o, [s.LinearLR(o, 0.1, total_iters=3), s.ExponentialLR(o, 0.5)], milestones=[3])
        if kind == "chained":
            return o, s.ChainedScheduler([s.LinearLR(o, 0.1, total_iters=3), s.ExponentialLR(o, 0.5)])
        return o, s.OneCycleLR(o, 1.0, 10) if kind == "cycle" else s.ReduceLROnPlateau(o, patience=2, factor=0.5)

    def go(schedule, o, n):
        out = []
        for _ in range(n):
            schedule.step(*([1.0] if kind == "plateau" else []))
            out.append((o.lr, o.groups[0]["momentum"]))
        return out

    o, whole = made()
    want = go(whole, o, 8)
    o, half = made()
    go(half, o, 5)
    saved = half.state_dict()
    o, rest = made()
    rest.load_state_dict(saved)
    assert go(rest, o, 3) == want[5:]
    broken = {**saved, "first": [1.0, 2.0], "rates": [1.0, 2.0]}
    before = (o.lr, rest.count)
    with pytest.raises(pg.StateError, match="cannot load this state into"):
        rest.load_state_dict(broken)
    assert (o.lr, rest.count) == before


def test_schedules_refuse_what_makes_no_sense():
    from polygrad.optim import lr_scheduler as s

    o = pg.optim.SGD([pg.nn.Parameter([1.0])], lr=1.0)
    other = pg.optim.SGD([pg.nn.Parameter([1.0])], lr=1.0)
    with pytest.raises(pg.GradError, match="it is bound to another optimiser"):
        s.SequentialLR(o, [s.ConstantLR(o), s.ConstantLR(other)], milestones=[2])
    with pytest.raises(pg.GradError, match="it follows a metric"):
        s.ChainedScheduler([s.ReduceLROnPlateau(o)])
    with pytest.raises(pg.GradError, match="they are 1 rising numbers"):
        s.SequentialLR(o, [s.ConstantLR(o), s.ConstantLR(o)], milestones=[])
    with pytest.raises(pg.GradError, match="without momentum: pass cycle_momentum=False"):
        s.OneCycleLR(o, 1.0, 10)
    cycle = s.OneCycleLR(o, 1.0, 2, cycle_momentum=False)
    cycle.step()
    cycle.step()
    with pytest.raises(pg.GradError, match="beyond its 2 steps"):
        cycle.step()
    assert cycle.count == 2
    with pytest.raises(pg.GradError, match="without a metric"):
        s.ReduceLROnPlateau(o).step()


def test_accumulated_batches_give_the_step_of_one_big_batch(device):
    rows = np.linspace(-1.0, 1.0, 32).reshape(8, 4).astype("float32")

    def made():
        pg.random.seed(3)
        return pg.nn.Linear(4, 2)

    whole, parts = made(), made()
    big, small = (pg.optim.SGD(net, lr=0.1, momentum=0.9) for net in (whole, parts))
    gathered = pg.optim.Accumulation(small, batches=4)
    for _ in range(3):
        (whole(pg.asarray(rows)) ** 2).mean().backward()
        big.step(max_norm=0.5)
        big.zero_grad()
        taken = []
        for k in range(4):
            (parts(pg.asarray(rows[2 * k : 2 * k + 2])) ** 2).mean().backward()
            taken.append(gathered.step(max_norm=0.5))
        assert taken == [False, False, False, True]
        assert parts.weight.grad is None
    np.testing.assert_allclose(parts.weight.detach().numpy(), whole.weight.detach().numpy(), rtol=1e-4, atol=1e-6)
    assert small.state["weight"]["step"] == 3


def test_accumulation_keeps_no_graph_and_is_saved_in_the_middle():
    w = pg.nn.Parameter([1.0])
    gathered = pg.optim.Accumulation(pg.optim.SGD([w], lr=1.0), batches=2)
    (w * 0.5).sum().backward()
    gathered.step()
    assert w.grad._node.storage is not None
    saved = gathered.state_dict()
    v = pg.nn.Parameter([1.0])
    other = pg.optim.Accumulation(pg.optim.SGD([v], lr=1.0), batches=2)
    other.load_state_dict(saved)
    (v * 1.5).sum().backward()
    assert other.step()
    assert v.tolist() == [0.0]
    with pytest.raises(pg.StateError, match="the gradient of 1 fits no parameter"):
        other.load_state_dict({"count": 1, "grads": {"1": pg.ones(1)}})


def test_an_average_follows_the_weights_and_stands_in_for_them(device):
    net = pg.nn.Linear(2, 1)
    start = net.weight.detach().numpy()
    optimiser, ema = pg.optim.SGD(net, lr=0.5), pg.optim.EMA(net, decay=0.75)
    want = start.copy()
    for _ in range(4):
        optimiser.step({"weight": pg.ones((1, 2), dtype=pg.float32)})
        ema.update()
        want = 0.75 * want + 0.25 * net.weight.detach().numpy()
    now = net.weight.tolist()
    with ema.averaged():
        np.testing.assert_allclose(net.weight.detach().numpy(), want, rtol=1e-5, atol=1e-6)
        with pytest.raises(pg.GradError, match="swap it out first"):
            ema.update()
    assert net.weight.tolist() == now
    saved = ema.state_dict()
    other = pg.optim.EMA(pg.nn.Linear(2, 1), decay=0.75)
    with pytest.raises(pg.StateError, match="it lacks bias"):
        other.load_state_dict({**saved, "mean": {"weight": saved["mean"]["weight"]}})
    assert other.count == 0
    other.load_state_dict(saved)
    assert (other.count, other.state_dict()["mean"]["weight"].tolist()) == (4, saved["mean"]["weight"].tolist())


def test_an_average_warms_up_and_its_decay_builds_nothing(device):
    w = pg.nn.Parameter([0.0])
    ema = pg.optim.EMA([w], decay=0.999, warmup=True)
    with pg.no_grad():
        w.assign_([1.0])
    ema.update()
    assert ema.state_dict()["mean"]["0"].item() == pytest.approx(0.9)  # keeps (1 + 0) / (10 + 0)
    ema.update()
    with pg.launch_counter() as c:
        ema.update()
    assert c.builds == 0


@pytest.mark.parametrize("compiled", [False, True])
def test_gradients_that_stay_are_computed_by_the_step_and_not_again(device, compiled):
    counts = []
    for clear_first in (True, False):
        sizes = ((12, 20), (20, 8), (8, 5))
        layers = [pg.nn.Linear(*size, device=device) for size in sizes]
        model = pg.nn.Sequential(layers[0], pg.nn.ReLU(), layers[1], pg.nn.ReLU(), layers[2])
        optimizer = pg.optim.AdamW(model, lr=1e-3)
        x = pg.asarray(np.ones((16, 12), np.float32), device=device)
        y = pg.asarray(np.arange(16) % 5, device=device)

        def step(x, y, model=model, optimizer=optimizer, clear_first=clear_first):
            if clear_first:
                optimizer.zero_grad()
            loss = pg.nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step(also=loss)
            if not clear_first:
                optimizer.zero_grad()
            return loss.detach()

        call = pg.compile(step) if compiled else step
        for _ in range(4):
            with pg.launch_counter() as c:
                pg.realize(call(x, y))
        counts.append((c.fused, c.ops))
        with pg.launch_counter() as c:
            pg.realize(*[p.grad for p in model.parameters() if p.grad is not None])
        assert c.total == 0
    assert counts[0] == counts[1]
