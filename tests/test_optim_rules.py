"""Update rules of optimisers: values, precision, launches.

Here: updates against formulas written out with NumPy, parameters of 16 bits and their masters, what a warm step builds.
Not here: which parameters a step moves (`test_optim.py`), equality to PyTorch (`test_optim_torch.py`).
"""

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
