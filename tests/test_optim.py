"""Optimisers, clipping and schedules.

Here: updates against formulas written out with NumPy, launches, saving, refusals. Not here: gradients.
"""

import math

import numpy as np
import pytest

import polygrad as pg

START = np.array([1.0, -2.0, 0.5, 3.0])
GRADS = [np.array([0.5, -1.0, 0.0, 2.0]) * (k + 1) * (-1) ** k for k in range(4)]


def followed(make, steps=4, dtype="float32", lr=None):
    w = pg.nn.Parameter(START, dtype=dtype)
    optimiser = make([w])
    for g in GRADS[:steps]:
        optimiser.step([pg.asarray(g, dtype=dtype)])
    return w.detach().numpy().astype("float64")


def sgd(lr=0.1, momentum=0.0, nesterov=False, decay=0.0):
    w, v = START.copy(), np.zeros(4)
    for g0 in GRADS:
        g = g0 + decay * w
        v = momentum * v + g
        w = w - lr * ((g + momentum * v if nesterov else v) if momentum else g)
    return w


def adam(lr=0.1, betas=(0.9, 0.999), eps=1e-8, decay=0.0, decoupled=False):
    w, m, s = START.copy(), np.zeros(4), np.zeros(4)
    for t, g0 in enumerate(GRADS, 1):
        g = g0 if decoupled else g0 + decay * w
        w = w * (1 - lr * decay) if decoupled else w
        m, s = betas[0] * m + (1 - betas[0]) * g, betas[1] * s + (1 - betas[1]) * g * g
        w = w - lr * (m / (1 - betas[0] ** t)) / (np.sqrt(s / (1 - betas[1] ** t)) + eps)
    return w


def rmsprop(lr=0.1, alpha=0.99, eps=1e-8, momentum=0.0, decay=0.0):
    w, s, v = START.copy(), np.zeros(4), np.zeros(4)
    for g0 in GRADS:
        g = g0 + decay * w
        s = alpha * s + (1 - alpha) * g * g
        v = momentum * v + g / (np.sqrt(s) + eps)
        w = w - lr * v
    return w


CASES = [
    (lambda p: pg.optim.SGD(p, 0.1), sgd()),
    (lambda p: pg.optim.SGD(p, 0.1, 0.9), sgd(momentum=0.9)),
    (lambda p: pg.optim.SGD(p, 0.1, 0.9, nesterov=True, weight_decay=0.2), sgd(momentum=0.9, nesterov=True, decay=0.2)),
    (lambda p: pg.optim.Adam(p, 0.1), adam()),
    (lambda p: pg.optim.Adam(p, 0.1, (0.8, 0.9), 1e-3, 0.1), adam(betas=(0.8, 0.9), eps=1e-3, decay=0.1)),
    (lambda p: pg.optim.AdamW(p, 0.1, weight_decay=0.3), adam(decay=0.3, decoupled=True)),
    (lambda p: pg.optim.RMSprop(p, 0.1), rmsprop()),
    (lambda p: pg.optim.RMSprop(p, 0.1, momentum=0.9, weight_decay=0.1), rmsprop(momentum=0.9, decay=0.1)),
]


@pytest.mark.parametrize("case", range(len(CASES)))
def test_updates_follow_their_formulas(device, case):
    make, want = CASES[case]
    np.testing.assert_allclose(followed(make), want, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_adam_in_16_bits_keeps_float32_means_and_ignores_zero_gradients(dtype):
    w = pg.nn.Parameter([1.0, -2.0, 0.5], dtype=dtype)
    optimiser = pg.optim.Adam([w], lr=0.125)
    for _ in range(3):
        optimiser.step([pg.zeros_like(w)])
    assert w.tolist() == [1.0, -2.0, 0.5]
    assert str(w.dtype) == dtype
    assert optimiser.state["0"]["mean"].dtype == pg.float32
    fresh = pg.nn.Parameter([1.0, 1.0, 1.0], dtype=dtype)
    pg.optim.Adam([fresh], lr=0.125).step([pg.asarray([2.0, -0.5, 0.0], dtype=dtype)])
    assert fresh.tolist() == [0.875, 1.125, 1.0]


def test_step_uses_grad_and_leaves_parameters_without_one(device):
    a, b = pg.nn.Parameter([1.0]), pg.nn.Parameter([1.0])
    optimiser = pg.optim.Adam({"a": a, "b": b}, lr=0.5)
    (a * 3.0).sum().backward()
    optimiser.step()
    assert a.tolist() == [0.5]
    assert b.tolist() == [1.0]
    assert list(optimiser.state) == ["a"]
    optimiser.zero_grad()
    assert a.grad is None
    with pytest.raises(pg.GradError) as refused:
        optimiser.step()
    assert str(refused.value) == "cannot step: no parameter has a gradient; call loss.backward() first, or step(grads)"


def test_gradients_come_in_the_form_of_the_parameters():
    def made():
        return {"x": pg.nn.Parameter([1.0]), "y": [pg.nn.Parameter([1.0]), pg.nn.Parameter([1.0])]}

    g = [pg.asarray([k]) for k in (1.0, 2.0, 3.0)]
    for grads in (
        {"x": g[0], "y": [g[1], g[2]]},
        {"x": g[0], "y.0": g[1], "y.1": g[2]},
        {"y": [None, g[2]], "x": g[0]},
    ):
        tree = made()
        pg.optim.SGD(tree, lr=0.5).step(grads)
        assert tree["x"].tolist() == [0.5]
        assert tree["y"][1].tolist() == [-0.5]
    with pytest.raises(pg.GradError) as refused:
        pg.optim.SGD(made(), lr=0.5).step({"z": g[0]})
    assert str(refused.value) == "cannot step by a gradient called 'z': the parameters are x, y.0, y.1"
    tree = made()
    with pytest.raises(pg.ShapeError) as misfit:
        pg.optim.SGD(tree, lr=0.5).step({"y": g[:2], "x": pg.ones(3)})
    assert str(misfit.value) == "cannot step x of shape [1] by a gradient of shape [3]"
    assert [p.tolist() for p in tree["y"]] == [[1.0], [1.0]]


def test_a_parameter_given_twice_moves_once_by_the_sum_of_its_distinct_gradients(device):
    g = pg.asarray([1.0])
    w = pg.asarray([1.0])
    pg.optim.SGD([w, w], lr=0.5).step([g, g])
    assert w.tolist() == [0.5]
    w = pg.asarray([1.0])
    pg.optim.SGD([w, w], lr=0.5).step([g, pg.asarray([1.0])])
    assert w.tolist() == [0.0]
    p = pg.nn.Parameter([1.0])
    optimiser = pg.optim.SGD([p, p], lr=0.5)
    (p + p).sum().backward()
    optimiser.step()
    assert p.tolist() == [0.0]


def test_groups_have_hyper_parameters_of_their_own_and_no_decay_is_kept():
    a, b, c = (pg.nn.Parameter([1.0]) for _ in range(3))
    c.no_decay = True
    optimiser = pg.optim.SGD([{"params": [a], "lr": 0.5}, {"params": {"b": b, "c": c}}], lr=0.1, weight_decay=1.0)
    zero = pg.zeros(1)
    optimiser.step([[zero], {"b": zero, "c": zero}])
    assert [round(p.item(), 6) for p in (a, b, c)] == [0.5, 0.9, 1.0]
    assert optimiser.lr == 0.5
    optimiser.lr = 0.25
    assert [g["lr"] for g in optimiser.groups] == [0.25, 0.25]
    with pytest.raises(pg.GradError) as refused:
        pg.optim.SGD([{"params": [a], "lrr": 1}])
    assert str(refused.value) == "SGD has no hyper-parameter 'lrr'; it has lr, momentum, nesterov, weight_decay, dampening"


@pytest.mark.parametrize("make", [c[0] for c in CASES[::2]])
def test_warm_steps_build_and_allocate_nothing_whatever_the_learning_rate(device, make):
    net = pg.nn.Sequential(pg.nn.Linear(4, 8), pg.nn.Tanh(), pg.nn.Linear(8, 2))
    optimiser = make(net)
    x = pg.random.normal((16, 4), dtype=pg.float32)

    def step():
        optimiser.zero_grad()
        loss = (net(x) ** 2).mean()
        loss.backward()
        optimiser.step(also=loss)
        return loss

    optimiser.lr = 0.001

    first = float(step())
    for _ in range(3):
        loss = step()
    with pg.launch_counter() as c:
        for k in range(5):
            optimiser.lr = 0.0005 * (k + 1)
            loss = step()
    assert (c.builds, c.allocations) == (0, 0)
    assert float(loss) < first


def test_an_update_is_one_launch_a_parameter(device):
    w = pg.nn.Parameter(np.ones((64, 64)), dtype=pg.float32)
    optimiser = pg.optim.AdamW([w], lr=0.1)
    g = pg.ones((64, 64), dtype=pg.float32).realize()
    optimiser.step([g])
    with pg.launch_counter() as c:
        optimiser.step([g])
    assert (c.total, c.fused) == (1, 1)


def test_a_bad_label_stops_the_step_before_anything_moves(device):
    net = pg.nn.Linear(3, 4)
    optimiser = pg.optim.Adam(net, lr=0.1)
    before = net.weight.tolist()
    x = pg.ones((2, 3), dtype=pg.float32)
    pg.nn.cross_entropy(net(x), pg.asarray([1, 4])).backward()
    with pytest.raises(pg.OutOfBounds):
        optimiser.step()
    assert net.weight.tolist() == before
    assert optimiser.state == {}
    optimiser.zero_grad()
    pg.nn.cross_entropy(net(x), pg.asarray([1, 3])).backward()
    optimiser.step()
    assert net.weight.tolist() != before


def test_state_round_trip_goes_on_exactly(device):
    def run(optimiser, w, grads):
        for g in grads:
            optimiser.step([pg.asarray(g, dtype=pg.float32)])
        return w.tolist()

    whole = pg.nn.Parameter(START, dtype=pg.float32)
    want = run(pg.optim.AdamW([whole], 0.1), whole, GRADS)
    half = pg.nn.Parameter(START, dtype=pg.float32)
    first = pg.optim.AdamW([half], 0.1)
    run(first, half, GRADS[:2])
    saved = first.state_dict()
    run(first, pg.nn.Parameter(START), GRADS[2:])  # the saved state must not follow
    rest = pg.nn.Parameter(saved_value(START, GRADS[:2]), dtype=pg.float32)
    second = pg.optim.AdamW([rest], 7.0)
    second.load_state_dict(saved)
    assert second.lr == 0.1
    assert run(second, rest, GRADS[2:]) == want


def saved_value(start, grads):
    w = pg.nn.Parameter(start, dtype=pg.float32)
    optimiser = pg.optim.AdamW([w], 0.1)
    for g in grads:
        optimiser.step([pg.asarray(g, dtype=pg.float32)])
    return w.detach()


def test_loading_state_is_all_or_nothing():
    w = pg.nn.Parameter([1.0, 2.0])
    optimiser = pg.optim.Adam({"w": w}, lr=0.1)
    optimiser.step({"w": pg.ones(2)})
    good = optimiser.state_dict()
    bad = {
        "groups": [{**good["groups"][0], "lrr": 1}],
        "state": {"w": {"step": 1, "mean": pg.zeros(3)}, "v": {"step": 1}},
    }
    other = pg.optim.Adam({"w": pg.nn.Parameter([1.0, 2.0])}, lr=0.3)
    with pytest.raises(pg.StateError) as refused:
        other.load_state_dict(bad)
    assert str(refused.value) == (
        "cannot load this state into Adam: it has a hyper-parameter 'lrr', which is unknown here; w lacks 'square'; "
        "w's 'mean' has shape [3] and needs [2]; v is no parameter"
    )
    assert other.state == {}
    assert other.lr == 0.3
    with pytest.raises(pg.StateError, match="its groups hold other parameters"):
        pg.optim.Adam([w]).load_state_dict(good)
    with pytest.raises(pg.StateError, match="it has no 'groups' and 'state'"):
        other.load_state_dict({})
    other.load_state_dict(good)
    assert other.state["w"]["step"] == 1


def test_state_follows_a_model_to_another_device(device, other_device):
    w = pg.nn.Linear(2, 1)
    optimiser = pg.optim.Adam(w, lr=0.1)
    w(pg.ones((1, 2), dtype=pg.float32)).sum().backward()
    optimiser.step()
    w.to(other_device)
    w.zero_grad()
    w(pg.ones((1, 2), dtype=pg.float32, device=other_device)).sum().backward()
    optimiser.step()
    assert w.weight.device == other_device
    assert optimiser.state["weight"]["mean"].device == other_device
    assert optimiser.state["weight"]["step"] == 2


def test_refusals():
    w = pg.nn.Parameter([1.0])
    with pytest.raises(pg.GradError, match="cannot optimise nothing"):
        pg.optim.SGD([])
    with pytest.raises(pg.DTypeError, match="cannot optimise 0, which is int64"):
        pg.optim.SGD([pg.asarray([1])])
    with pytest.raises(pg.GradError, match=r"cannot optimise with lr=-1: it must be in \[0, inf\)"):
        pg.optim.SGD([w], lr=-1)
    with pytest.raises(pg.GradError, match=r"beta2=1\.0"):
        pg.optim.Adam([w], betas=(0.9, 1.0))
    with pytest.raises(pg.GradError, match="cannot use nesterov without momentum"):
        pg.optim.SGD([w], nesterov=True)
    with pytest.raises(pg.GradError, match="cannot take str as a parameter"):
        pg.optim.SGD(["w"])
    generator = pg.nn.Linear(2, 2).parameters()
    assert len(pg.optim.SGD(generator).groups[0]["params"]) == 2


def test_clipping_by_the_norm_of_all_gradients(device):
    grads = {"a": pg.asarray([3.0], dtype=pg.float32), "b": [pg.asarray([4.0], dtype=pg.float32)]}
    clipped, norm = pg.optim.clip_by_global_norm(grads, 1.0)
    assert float(norm) == 5.0
    assert clipped["a"].item() == pytest.approx(0.6)
    assert clipped["b"][0].item() == pytest.approx(0.8)
    kept, _ = pg.optim.clip_by_global_norm(grads, 10.0)
    assert kept["a"].tolist() == [3.0]


def test_clipping_parameters_replaces_their_gradients_and_float16_does_not_overflow():
    a, b, c = pg.nn.Parameter([1.0]), pg.nn.Parameter([1.0], dtype=pg.float16), pg.nn.Parameter([1.0])
    a.grad, b.grad = pg.asarray([0.0], dtype=pg.float32), pg.asarray([60000.0], dtype=pg.float16)
    _, norm = pg.optim.clip_by_global_norm(iter([a, b, c]), 1.0)
    assert math.isclose(float(norm), 60000.0, rel_tol=1e-3)
    assert b.grad.tolist() == [1.0]
    assert b.grad.dtype == pg.float16
    assert a.grad.tolist() == [0.0]
    assert c.grad is None
    with pytest.raises(pg.GradError, match="there are no gradients"):
        pg.optim.clip_by_global_norm([pg.nn.Parameter([1.0])], 1.0)
    with pytest.raises(pg.GradError, match="it must be positive"):
        pg.optim.clip_by_global_norm([a], 0.0)


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
