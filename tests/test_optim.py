"""Steps of optimisers: what they move, by which gradients, and when they move nothing.

Here: groups, forms of gradients, clipping, gradients that are not finite, refusals. Not here: values of updates
(`test_optim_rules.py`), saving (`test_optim_state.py`), schedules and averages (`test_optim_over_steps.py`).
"""

import math

import numpy as np
import pytest

import polygrad as pg


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
