"""The state of optimisers: saved, loaded, taken to another device.

Here: runs that go on exactly, states that do not fit. Not here: schedules and averages (`test_optim_over_steps.py`),
files (`test_io_checkpoints.py`).
"""

import numpy as np
import pytest

import polygrad as pg

START = np.array([1.0, -2.0, 0.5, 3.0])
GRADS = np.random.default_rng(3).normal(size=(4, 4))


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
