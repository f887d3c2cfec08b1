"""Training in 16 bits: autocast, loss scaling, master weights.

Here: dtypes, that parameters move, that losses follow float32's. Not here: how ops round.
"""

import math
import threading

import numpy as np
import pytest

import polygrad as pg
from polygrad.array.config import held

NARROW = ["bfloat16", "float16"]


def needs(device, dtype):
    if dtype not in held(device):
        pytest.skip(f"not run: needs {dtype}")


def problem(seed=5):
    pg.random.seed(seed)
    net = pg.nn.Sequential(pg.nn.Linear(8, 32), pg.nn.Tanh(), pg.nn.Linear(32, 4))
    rng = np.random.default_rng(0)
    x = rng.standard_normal((64, 8)).astype("float32")
    return net, pg.asarray(x), pg.asarray(np.argmax(x[:, :4], axis=1))


def train(dtype, steps=60, scaler=None):
    net, x, y = problem()
    start = {name: p.detach().numpy() for name, p in net.named_parameters()}
    optimiser = pg.optim.AdamW(net, lr=0.01)
    scaler = scaler or pg.optim.GradScaler(enabled=dtype == "float16")
    losses = []
    for _ in range(steps):
        optimiser.zero_grad()
        with pg.autocast(dtype or "bfloat16", enabled=dtype is not None):
            loss = pg.nn.cross_entropy(net(x), y)
        assert loss.dtype == pg.float32
        scaler.scale(loss).backward()
        scaler.step(optimiser, max_norm=1.0, also=loss)
        losses.append(float(loss))
    moved = {name: float(np.abs(p.detach().numpy() - start[name]).max()) for name, p in net.named_parameters()}
    return net, losses, moved


@pytest.mark.parametrize("dtype", NARROW)
def test_training_under_autocast_moves_every_parameter_and_follows_float32(device, dtype):
    needs(device, dtype)
    net, losses, moved = train(dtype)
    _, want, _ = train(None)
    assert all(p.dtype == pg.float32 for p in net.parameters())
    assert min(moved.values()) > 0.05
    assert losses[-1] < 0.4 * losses[0]
    np.testing.assert_allclose(losses, want, rtol=0.05, atol=0.02)
    assert losses != want  # 16 bits were used


def test_which_ops_autocast_concerns(device):
    needs(device, "bfloat16")
    x = pg.ones((2, 4), dtype=pg.float32)
    with pg.autocast("bfloat16"):
        narrow = [x @ x.T, pg.matmul(x, x.T), pg.einsum("ij,kj->ik", x, x), pg.tensordot(x, x.T, axes=1)]
        y = narrow[0]
        wide = [y.sum(), pg.mean(y), pg.var(y), pg.nn.softmax(y), pg.nn.log_softmax(y), pg.nn.rms_norm(y)]
        wide += [pg.nn.mse_loss(y, x[:, :2]), pg.nn.cross_entropy(y, pg.asarray([0, 1]))]
        same = [pg.exp(y), pg.nn.relu(y), y + y]
        with pg.autocast(enabled=False):
            assert (x @ x.T).dtype == pg.float32
        assert (x @ x.T).dtype == pg.bfloat16
        assert (x.astype(pg.float16) @ x.T).dtype == pg.bfloat16
    assert [a.dtype.name for a in narrow + same] == ["bfloat16"] * 7
    assert [a.dtype.name for a in wide] == ["float32"] * 8
    assert (x @ x.T).dtype == pg.float32


def test_autocast_leaves_float64_and_integers_alone():
    d, i = pg.ones((2, 2), dtype=pg.float64), pg.ones((2, 2), dtype=pg.int64)
    with pg.autocast("bfloat16"):
        assert (d @ d).dtype == pg.float64
        assert (i @ i).dtype == pg.int64


def test_autocast_is_of_its_thread_and_works_as_a_decorator():
    x = pg.ones((2, 2), dtype=pg.float32)
    seen = []

    @pg.autocast("float16")
    def f():
        return (x @ x).dtype

    with pg.autocast("bfloat16"):
        thread = threading.Thread(target=lambda: seen.append((x @ x).dtype))
        thread.start()
        thread.join()
        assert f() == pg.float16
        assert (x @ x).dtype == pg.bfloat16
    assert seen == [pg.float32]
    with pytest.raises(pg.DTypeError, match="products are computed in bfloat16 or float16"):
        pg.autocast("float32")


def test_gradients_under_autocast_reach_the_parameter_itself_in_float32(device):
    needs(device, "bfloat16")
    w = pg.nn.Parameter(np.full((3, 2), 1.001), dtype=pg.float32)
    x = pg.full((4, 3), 2.0, dtype=pg.float32)
    with pg.autocast("bfloat16"):
        (x @ w).sum().backward()
    assert w.grad.dtype == pg.float32
    assert w.grad.tolist() == [[8.0, 8.0]] * 3


def test_the_scale_falls_at_a_bad_step_which_is_left_out_and_grows_after_good_ones(device):
    w = pg.nn.Parameter([1.0])
    optimiser = pg.optim.Adam([w], lr=0.1)
    scaler = pg.optim.GradScaler(init_scale=8.0, growth_interval=2)
    w.grad = pg.asarray([math.nan], dtype=pg.float32)
    assert not scaler.step(optimiser)
    assert (scaler.get_scale(), w.tolist(), optimiser.state, optimiser.skipped) == (4.0, [1.0], {}, 1)
    for _ in range(2):
        optimiser.zero_grad()
        scaler.scale((w * 3.0).sum()).backward()
        assert w.grad.tolist() == [12.0]
        assert scaler.step(optimiser)
    assert scaler.get_scale() == 8.0
    assert optimiser.state["0"]["step"] == 2
    assert w.item() == pytest.approx(0.8, rel=1e-5)
    other = pg.optim.GradScaler()
    other.load_state_dict(scaler.state_dict())
    assert other.state_dict() == scaler.state_dict()
    with pytest.raises(pg.StateError, match="its scale is None"):
        other.load_state_dict({})


def test_scaling_saves_gradients_that_float16_would_lose(device):
    needs(device, "float16")

    def grad(scale):
        w = pg.nn.Parameter([[1.0]])
        with pg.autocast("float16"):
            y = pg.ones((1, 1), dtype=pg.float32) @ w
        scaler = pg.optim.GradScaler(init_scale=scale)
        scaler.scale((y.astype(pg.float32) * 1e-9).sum()).backward()
        before = w.item()
        scaler.step(pg.optim.SGD([w], lr=1e8))
        return before - w.item()

    assert grad(1.0) == 0.0
    assert grad(2.0**16) == pytest.approx(0.1, rel=0.01)


def test_a_loss_that_is_never_finite_ends_in_a_sentence():
    w = pg.nn.Parameter([1.0])
    optimiser, scaler = pg.optim.SGD([w], lr=0.1), pg.optim.GradScaler(init_scale=2.0**-120, backoff_factor=0.01)
    w.grad = pg.asarray([math.inf], dtype=pg.float32)
    with pytest.raises(pg.GradError, match="the loss itself is likely not finite"):
        for _ in range(10):
            scaler.step(optimiser)


def test_scaling_and_accumulation_work_together():
    w = pg.nn.Parameter([1.0])
    optimiser = pg.optim.SGD([w], lr=1.0)
    gathered, scaler = pg.optim.Accumulation(optimiser, 2), pg.optim.GradScaler(init_scale=4.0, growth_interval=1)
    taken = []
    for factor in (0.25, 0.75):
        scaler.scale((w * factor).sum()).backward()
        taken.append(scaler.step(gathered))
    assert taken == [False, True]
    assert w.tolist() == [0.5]
    assert scaler.get_scale() == 8.0


@pytest.mark.parametrize("dtype", NARROW)
def test_a_language_model_trains_under_autocast(dtype):
    follow_float32(dtype)


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", NARROW)
def test_a_language_model_trains_under_autocast_everywhere(device, dtype):
    needs(device, dtype)
    follow_float32(dtype)


def follow_float32(dtype):
    tokens = np.arange(64).reshape(4, 16) * 7 % 13

    def losses(enabled):
        pg.random.seed(1)
        model = pg.nn.GPT(vocab_size=13, context=16, dim=16, layers=1, heads=2)
        start = {n: p.detach().numpy() for n, p in model.named_parameters()}
        optimiser, scaler = pg.optim.AdamW(model, lr=0.01), pg.optim.GradScaler(enabled=enabled and dtype == "float16")
        out = []
        for _ in range(15):
            with pg.autocast(dtype, enabled=enabled):
                scores = model(pg.asarray(tokens[:, :-1]))
                loss = pg.nn.cross_entropy(scores.reshape(-1, 13), pg.asarray(tokens[:, 1:].reshape(-1)))
            assert scores.dtype == (getattr(pg, dtype) if enabled else pg.float32)
            scaler.scale(loss).backward()
            scaler.step(optimiser, also=loss)
            optimiser.zero_grad()
            out.append(float(loss))
        assert all(np.abs(p.detach().numpy() - start[n]).max() > 1e-3 for n, p in model.named_parameters())
        return out

    narrow, wide = losses(True), losses(False)
    assert narrow[-1] < 0.8 * narrow[0]
    np.testing.assert_allclose(narrow, wide, rtol=0.03)
