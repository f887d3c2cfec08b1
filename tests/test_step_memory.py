"""What a training step holds at once: values computed again, the order of launches, updates in turns.

Here: that all of it gives the same values as keeping everything, that less memory is in use, and that a step that fails
leaves parameters alone. Not here: the figures beside PyTorch's (`benchmarks/step_memory.py`).
"""

import gc
import re

import numpy as np
import pytest

import polygrad as pg
from polygrad.errors import OutOfMemory
from polygrad.optim import turns
from polygrad.runtime.devices import state
from polygrad.runtime.memory import Pool
from polygrad.schedule import recompute

NEVER = 1 << 62


def choosing(device, monkeypatch):
    """Return a function that says whether values of any size are computed again from now on."""

    def choose(wanted):
        monkeypatch.setattr(recompute, "ENOUGH", 1 if wanted else NEVER)
        monkeypatch.setattr(recompute, "WORTH", 1)
        state(device).plans.clear()

    return choose


@pytest.fixture
def again(device, monkeypatch):
    yield choosing(device, monkeypatch)
    state(device).plans.clear()


@pytest.fixture
def again_on_cpu(monkeypatch):
    with pg.device("cpu:0"):
        yield choosing("cpu:0", monkeypatch)
        state("cpu:0").plans.clear()


def peak_of(device, do):
    """Return the result of a function, and how much memory was in use at most, in bytes more than before."""
    gc.collect()
    before = pg.memory_stats(device)["used"]
    state(device).pool.peak = before
    out = do()
    return out, pg.memory_stats(device)["peak"] - before


def language_model(dropout=0.0, **more):
    pg.random.seed(3)
    fields = {"vocab_size": 64, "context": 64, "dim": 32, "layers": 2, "heads": 4, "dropout": dropout}
    model = pg.nn.GPT(**{**fields, **more})
    pg.realize(list(model.parameters()))  # so that the first step is like any other
    return model


def batch(n=4, length=64):
    rng = np.random.default_rng(1)
    return pg.asarray(rng.integers(0, 64, (n, length))), pg.asarray(rng.integers(0, 64, (n, length)))


def gradients(model, looked_at=False):
    """Return the loss and the gradients of a model; *looked_at*: the loss is computed before the backward pass."""
    pg.random.seed(5)
    loss = model.loss(*batch())
    if looked_at:
        pg.realize(loss)
    loss.backward()
    found = [p.grad for p in model.parameters()]
    model.zero_grad()
    pg.realize(loss, found)
    return [loss.item(), *[g.numpy() for g in found]]


def test_values_computed_again_are_the_same_and_take_less_memory(device, again, fewer):
    model = language_model(layers=len(fewer([1, 2])), dropout=0.1)
    for looked_at in fewer([True, False]):
        again(False)
        (kept, most), launches = counted(lambda first=looked_at: peak_of(device, lambda: gradients(model, first)))
        again(True)
        (made, less), more = counted(lambda first=looked_at: peak_of(device, lambda: gradients(model, first)))
        assert more > launches
        assert less < 0.8 * most
        for a, b in zip(kept, made, strict=True):  # sums of rows may be taken in another order by another kernel
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-7)


def counted(do):
    with pg.launch_counter() as c:
        out = do()
    return out, c.total


def test_a_compiled_step_computes_the_same_again(again_on_cpu):
    model = language_model(layers=1)

    def step(tokens, targets):
        loss = model.loss(tokens, targets)
        loss.backward()
        found = [p.grad for p in model.parameters()]
        model.zero_grad()
        return [loss.detach(), *found]

    made = []
    for wanted in (False, True):
        again_on_cpu(wanted)
        compiled = pg.compile(step)
        made.append([[a.numpy() for a in compiled(*batch())] for _ in range(3)][-1])
    for a, b in zip(*made, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-7)


def test_small_plans_are_left_alone(monkeypatch):
    with pg.device("cpu:0") as device:
        state(device).plans.clear()
        model = language_model(layers=1)
        _, launches = counted(lambda: gradients(model))
        state(device).plans.clear()
        monkeypatch.setattr(recompute, "ENOUGH", NEVER)
        assert counted(lambda: gradients(model))[1] == launches


def test_a_value_that_somebody_holds_does_not_keep_all_others_of_a_long_graph(device):
    x = pg.full((64, 64), 0.01, dtype=pg.float32)
    pg.realize(x)

    def chain():
        y, held = x, None
        for k in range(140):
            y = pg.tanh(y @ x) + 0.5
            held = y if k == 70 else held
        pg.realize(y)
        return y, held

    _, peak = peak_of(device, chain)
    assert peak <= 6 * 64 * 64 * 4


def test_gradients_are_computed_while_their_activations_are_there(again_on_cpu):
    # The gradient of the positions is a sum that is placed last of all: it must not pull the whole chain before the
    # gradients of the weights, for which the chain's values would have to stay.
    model = language_model(layers=3, positions="learned", tied=False)
    again_on_cpu(False)
    _, most = peak_of("cpu:0", lambda: gradients(model))
    again_on_cpu(True)
    _, less = peak_of("cpu:0", lambda: gradients(model))
    assert less < 0.55 * most


def test_a_sum_of_many_values_is_kept_rather_than_added_up_again(again_on_cpu, monkeypatch):
    # What all layers before have added, that is: a late one would read two values of each of them.
    model = language_model(layers=10)
    longest = []
    for dear in (recompute.DEAR, NEVER):
        monkeypatch.setattr(recompute, "DEAR", dear)
        again_on_cpu(True)
        with pg.profile() as seen:
            gradients(model)
        longest.append(max((int(n) for n in re.findall(r" add \[(\d+) loads", str(seen))), default=0))
    assert longest[0] <= recompute.MOST * 3 < longest[1]


# ---- updates in turns ------------------------------------------------------------------------------------------------


def trained(large, monkeypatch, steps=3, **how):
    monkeypatch.setattr(turns, "LARGE", large)
    pg.random.seed(3)
    model = pg.nn.Sequential(pg.nn.Linear(16, 32), pg.nn.ReLU(), pg.nn.Linear(32, 8))
    optimizer = pg.optim.AdamW(model, lr=1e-2)
    x = pg.asarray(np.random.default_rng(1).normal(size=(8, 16)).astype("float32"))
    labels = pg.asarray(np.arange(8))
    for _ in range(steps):
        loss = pg.nn.cross_entropy(model(x), labels)
        loss.backward()
        optimizer.step(also=loss, **how)
        optimizer.zero_grad()
    found = {name: p.detach().numpy() for name, p in model.named_parameters()}
    return found | {f"{name} square": s["square"].numpy() for name, s in optimizer.state.items()}


def test_updates_in_turns_are_those_at_once(device, monkeypatch, fewer):
    for how in fewer([{}, {"nonfinite": "skip"}, {"max_norm": 0.5}]):
        at_once, turned = trained(1 << 40, monkeypatch, **how), trained(0, monkeypatch, **how)
        assert at_once.keys() == turned.keys()
        for (
            name,
            value,
        ) in at_once.items():  # a clipped gradient is summed in another order where it is read from memory
            np.testing.assert_allclose(turned[name], value, rtol=1e-5, atol=2e-6, err_msg=name)


def test_turns_hold_each_parameter_once_the_largest_first():
    members = [(str(n), pg.zeros(n, dtype="float32"), {}) for n in (10, 4 << 20, 5, 1 << 20, 2 << 20, 300)]
    found = turns.in_turns(members)
    assert [[m[0] for m in turn] for turn in found] == [["4194304"], ["2097152"], ["1048576"], ["300", "10", "5"]] or [
        [m[0] for m in turn] for turn in found
    ] == [["4194304"], ["2097152"], ["1048576", "300", "10", "5"]]
    assert len(turns.in_turns(members[:1])) == 1


@pytest.fixture
def pair(device, monkeypatch):
    """Three parameters with gradients, an optimiser that moves them in turns, and what they were."""
    monkeypatch.setattr(turns, "LARGE", 0)
    parameters = [pg.nn.Parameter(np.full((n, 64), 1.0, "float32")) for n in (64, 48, 32)]
    optimizer = pg.optim.AdamW(parameters, lr=0.1)
    for p in parameters:
        p.grad = pg.ones(p.shape, dtype=pg.float32)
    optimizer.step()
    for p in parameters:
        p.grad = pg.ones(p.shape, dtype=pg.float32)
    return parameters, optimizer, [p.detach().numpy().copy() for p in parameters]


def test_old_values_stay_with_those_who_hold_them(pair):
    parameters, optimizer, before = pair
    snapshots = [(p.detach(), p.detach()[1:3].T, p * 2.0) for p in parameters]
    optimizer.step()
    for p, (whole, view, double), old in zip(parameters, snapshots, before, strict=True):
        assert not np.any(p.detach().numpy() == old)
        np.testing.assert_array_equal(whole.numpy(), old)
        np.testing.assert_array_equal(view.numpy(), old[1:3].T)
        np.testing.assert_array_equal(double.detach().numpy(), old * 2.0)


def test_the_turns_need_room_for_the_largest_alone(device, pair):
    parameters, optimizer, _ = pair
    pg.realize([p.grad for p in parameters])
    total = sum(p.size * 4 for p in parameters)
    _, peak = peak_of(device, optimizer.step)
    assert peak <= 3 * parameters[0].size * 4 + 4096  # value and two means, old and new
    assert peak < 3 * total


def test_a_bad_label_or_a_gradient_that_is_not_finite_leaves_everything(device, pair):
    parameters, optimizer, before = pair
    scores = parameters[0] @ pg.ones((64, 5), dtype=pg.float32)
    labels = pg.asarray(np.full(64, 7))
    with pytest.raises(IndexError, match="there are 5 classes"):
        optimizer.step(also=pg.nn.cross_entropy(scores, labels))
    parameters[2].grad = pg.full(parameters[2].shape, float("inf"), dtype=pg.float32)
    assert not optimizer.attempt(nonfinite="skip")
    for p, old in zip(parameters, before, strict=True):
        np.testing.assert_array_equal(p.detach().numpy(), old)
    assert all(s["step"] == 1 for s in optimizer.state.values())


@pytest.mark.parametrize("after", [0, 4])
def test_running_out_of_memory_moves_nothing_in_the_first_turn_and_says_so_in_a_later_one(pair, monkeypatch, after):
    parameters, optimizer, before = pair
    pg.realize([p.grad for p in parameters])
    taken = Pool.take
    count = [0]

    def take(self, size, nbytes):
        if nbytes >= 32 * 64 * 4:
            count[0] += 1
            if count[0] > after:
                raise OutOfMemory("no room, says the test")
        return taken(self, size, nbytes)

    found = state(parameters[0].device)
    found.plans.clear()  # kernels have bound the pool's own function
    with monkeypatch.context() as patch:
        patch.setattr(Pool, "take", take)
        with pytest.raises(OutOfMemory) as caught:
            optimizer.step()
    found.plans.clear()
    unmoved = [np.array_equal(p.detach().numpy(), old) for p, old in zip(parameters, before, strict=True)]
    notes = getattr(caught.value, "__notes__", [])
    if after == 0:
        assert unmoved == [True, True, True]
        assert not notes
    else:
        assert unmoved == [False, True, True]
        assert "some parameters had been moved" in notes[0]


@pytest.mark.filterwarnings("ignore::polygrad.errors.FallbackWarning")  # of QR
def test_results_of_calls_go_when_nobody_needs_them_any_more(device):
    x = pg.asarray(np.random.default_rng(0).standard_normal((64, 64))).realize()

    def roots(count):
        y = x
        for _ in range(count):
            y = pg.linalg.qr(y + 1.0)[0]
        return y.realize()

    roots(2), roots(8)  # what is built once
    (_, few), (_, many) = (peak_of(device, lambda count=count: roots(count)) for count in (2, 8))
    assert many <= few + 64


def test_nothing_is_made_again_if_all_of_it_lowers_the_peak_by_little(device, again, monkeypatch):
    model = language_model()

    def launches(wanted):
        again(wanted)
        with pg.launch_counter() as c:
            gradients(model)
        return c.total

    few, many = launches(False), launches(True)
    assert few < many
    monkeypatch.setattr(recompute, "LEAST", 1)  # as if the peak had to go down to nothing
    assert launches(True) == few
