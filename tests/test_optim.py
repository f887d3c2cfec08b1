"""Optimisers, clipping and schedules.

Here: updates against formulas written out with NumPy, launches, saving, refusals. Not here: gradients.
"""

import math

import numpy as np
import pytest

import polygrad as pg
from polygrad.array.config import held

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
    assert (
        str(refused.value) == "SGD has no hyper-parameter 'lrr'; it has lr, momentum, nesterov, weight_decay, dampening"
    )


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


def lion(lr=0.1, betas=(0.9, 0.99), decay=0.0):
    w, m = START.copy(), np.zeros(4)
    for g in GRADS:
        w = w * (1 - lr * decay) - lr * np.sign(betas[0] * m + (1 - betas[0]) * g)
        m = betas[1] * m + (1 - betas[1]) * g
    return w


def adagrad(lr=0.1, start=0.5, lr_decay=0.1, eps=1e-10):
    w, s = START.copy(), np.full(4, start)
    for t, g in enumerate(GRADS):
        s = s + g * g
        w = w - lr / (1 + t * lr_decay) * g / (np.sqrt(s) + eps)
    return w


def test_lion_and_adagrad_follow_their_formulas(device):
    np.testing.assert_allclose(followed(lambda p: pg.optim.Lion(p, 0.1, weight_decay=0.2)), lion(decay=0.2), rtol=2e-5)
    got = followed(lambda p: pg.optim.Adagrad(p, 0.1, lr_decay=0.1, initial_accumulator_value=0.5))
    np.testing.assert_allclose(got, adagrad(), rtol=2e-5)


def test_clipping_inside_the_step_is_the_clipping_before_it_and_costs_a_launch_for_each_gradient(device):
    def run(inside):
        ws = [pg.nn.Parameter(np.ones((32, 32)), dtype=pg.float32), pg.nn.Parameter(np.ones(32), dtype=pg.float32)]
        optimiser = pg.optim.SGD(ws, lr=0.5)
        grads = [pg.full((32, 32), 0.5, dtype=pg.float32), pg.full((32,), 2.0, dtype=pg.float32)]
        pg.realize(grads)
        for _ in range(2):
            with pg.launch_counter() as c:
                if inside:
                    optimiser.step(grads, max_norm=3.0)
                else:
                    optimiser.step(pg.optim.clip_by_global_norm(grads, 3.0)[0])
        return [w.detach().numpy() for w in ws], c, optimiser

    (a, c, optimiser), (b, _, _) = run(True), run(False)
    for x, y in zip(a, b, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-6)
    assert float(optimiser.norm) == pytest.approx(math.sqrt(1024 * 0.25 + 32 * 4), rel=1e-6)
    assert a[1][0] == pytest.approx(1 - 2 * 0.5 * 2.0 * 3.0 / float(optimiser.norm), rel=1e-5)
    assert c.total <= 2 + 2 + 1  # a sum of squares and an update a parameter, and at most one for the norm
    assert c.builds == 0


def test_a_loss_that_is_looked_at_after_a_step_was_computed_with_it(device):
    w = pg.nn.Parameter(np.ones((4, 4), np.float32), device=device)
    optimiser = pg.optim.SGD([w], lr=0.5)
    x = pg.asarray(np.eye(4, dtype=np.float32), device=device)
    for _ in range(2):
        loss = ((x @ w) ** 2).sum()
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
    with pg.launch_counter() as c:
        assert loss.item() == 0.0
    assert c.total == 0


def test_the_norm_of_each_step_is_an_array_of_its_own(device):
    w = pg.nn.Parameter([3.0, 4.0], device=device)
    optimiser = pg.optim.SGD([w], lr=0.5)
    one = pg.asarray(1.0, dtype=pg.float32, device=device)
    compiled = pg.compile(lambda x: optimiser.step([w.detach() * x], max_norm=100.0))
    norms = []
    for k in range(8):  # the last ones are replays, and one that is not compiled is among them
        if k == 5:
            optimiser.step([w.detach() * 1.0], max_norm=100.0)
        else:
            compiled(one)
        norms.append(optimiser.norm)
    assert [n.item() for n in norms] == [5.0 * 0.5**k for k in range(8)]


def test_a_gradient_that_is_not_finite_can_be_skipped_or_refused_and_nothing_moves(device):
    a, b = pg.nn.Parameter([1.0, 2.0]), pg.nn.Parameter([3.0])
    optimiser = pg.optim.Adam({"a": a, "b": b}, lr=0.1)
    good = {"a": pg.ones(2, dtype=pg.float32), "b": pg.ones(1, dtype=pg.float32)}
    optimiser.step(good, nonfinite="raise")
    before, state = (a.tolist(), b.tolist()), {k: dict(v) for k, v in optimiser.state.items()}
    bad = {"a": pg.asarray([1.0, math.inf], dtype=pg.float32), "b": good["b"]}
    optimiser.step(bad, nonfinite="skip")
    assert optimiser.skipped == 1
    assert (a.tolist(), b.tolist()) == before
    assert optimiser.state == state
    with pytest.raises(pg.GradError) as refused:
        optimiser.step(bad, nonfinite="raise", max_norm=1.0)
    assert str(refused.value) == (
        "cannot step: the gradient of a is not finite; nothing was changed; a smaller learning rate, max_norm=... or "
        "pg.detect_anomaly() may help"
    )
    assert (a.tolist(), b.tolist()) == before
    with pytest.raises(pg.GradError, match="nonfinite='no': it is one of 'allow', 'skip', 'raise'"):
        optimiser.step(good, nonfinite="no")
    with pytest.raises(pg.GradError, match="by the scale 0"):
        optimiser.step(good, scale=0)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bit_parameters_have_float32_masters_that_small_steps_move(device, dtype):
    if dtype not in held(device):
        pytest.skip(f"not run: needs {dtype}")
    w = pg.nn.Parameter([1.0, 2.0], dtype=dtype)
    optimiser = pg.optim.SGD([w], lr=1e-4)
    g = pg.ones(2, dtype=dtype)
    for _ in range(300):  # no single step would change a digit of the parameter
        optimiser.step([g])
    np.testing.assert_allclose(optimiser.state["0"]["master"].numpy(), [0.97, 1.97], rtol=1e-5)
    assert w.tolist() == pg.asarray([0.97, 1.97], dtype=pg.float32).astype(dtype).tolist()
    with pg.no_grad():
        w.assign_([5.0, 2.0])  # somebody else writes: the master follows
    optimiser.step([g])
    np.testing.assert_allclose(optimiser.state["0"]["master"].numpy(), [4.9999, 1.9999], atol=0.01)
    assert optimiser.state["0"]["master"].numpy()[0] == pytest.approx(4.9999, rel=1e-6)
    other = pg.optim.SGD([pg.nn.Parameter([1.0, 2.0], dtype=dtype)], lr=1.0)
    other.load_state_dict(optimiser.state_dict())
    assert other.state["0"]["master"].tolist() == optimiser.state["0"]["master"].tolist()


def test_a_model_that_comes_to_16_bits_later_gets_masters_too(device):
    if "bfloat16" not in held(device):
        pytest.skip("not run: needs bfloat16")
    net = pg.nn.Linear(1, 1)
    optimiser = pg.optim.SGD(net, lr=1e-4, momentum=0.0)
    with pg.no_grad():
        net.weight.assign_([[1.0]])
    step = {"weight": pg.ones((1, 1), dtype=pg.float32)}
    net.to(dtype="bfloat16")
    optimiser.step(step)
    net.to(dtype="float32").to(dtype="bfloat16")
    for _ in range(99):
        optimiser.step(step)
    assert optimiser.state["weight"]["master"].item() == pytest.approx(0.99, rel=1e-4)
    net.to(dtype="float32")
    optimiser.step(step)
    assert list(optimiser.state["weight"]) == ["step"]


def test_a_model_that_comes_to_16_bits_after_a_step_gets_masters(device):
    if "bfloat16" not in held(device):
        pytest.skip("not run: needs bfloat16")
    net = pg.nn.Linear(1, 1)
    with pg.no_grad():
        net.weight.assign_([[1.0]])
    optimiser = pg.optim.SGD(net, lr=2.0**-13)
    step = {"weight": pg.ones((1, 1), dtype=pg.float32)}
    optimiser.step(step)
    net.to(dtype="bfloat16")  # rounds the value to 1
    for _ in range(64):
        optimiser.step(step)
    assert optimiser.state["weight"]["master"].item() == 1.0 - 2.0**-7
    assert net.weight.item() == 1.0 - 2.0**-7


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


def test_groups_can_be_added_and_a_bad_one_changes_nothing():
    a, b = pg.nn.Parameter([1.0]), pg.nn.Parameter([1.0])
    optimiser = pg.optim.SGD({"a": a}, lr=0.5)
    schedule = pg.optim.lr_scheduler.ExponentialLR(optimiser, 0.5)
    with pytest.raises(pg.DTypeError):
        optimiser.add_group({"params": {"b": b, "c": pg.asarray([1])}})
    with pytest.raises(pg.GradError, match="two parameters are called 'a'"):
        optimiser.add_group({"params": {"b": b, "a": a}})
    optimiser.add_group({"params": {"b": b}, "lr": 1.0})
    optimiser.step({"a": pg.ones(1), "b": pg.ones(1)})
    assert (a.item(), b.item()) == (0.5, 0.0)
    schedule.step()
    assert [g["lr"] for g in optimiser.groups] == [0.25, 0.5]


def test_hyper_parameters_come_back_from_json_as_they_were():
    w = pg.nn.Parameter([1.0])
    optimiser = pg.optim.Adam({"w": w}, lr=0.1)
    saved = optimiser.state_dict()
    saved["groups"][0]["betas"] = [0.5, 0.6]
    optimiser.load_state_dict(saved)
    assert optimiser.groups[0]["betas"] == (0.5, 0.6)
    saved["groups"][0]["betas"] = [0.5]
    saved["groups"][0]["lr"] = "fast"
    with pytest.raises(pg.StateError, match=r"its lr is 'fast'; its betas is \[0\.5\]"):
        optimiser.load_state_dict(saved)
    assert optimiser.groups[0]["betas"] == (0.5, 0.6)


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
