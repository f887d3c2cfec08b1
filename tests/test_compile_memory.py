"""pg.compile: whose memory is whose when a call is replayed.

Here: results, values and gradients that somebody holds, memory that was exported, what a compiled function keeps and
gives back. Not here: how much a training step holds at most (`test_step_memory.py`).
"""

import gc

import numpy as np

import polygrad as pg
from support.compiling import f32, warmed

# ---- what somebody holds stays ---------------------------------------------------------------------------------------


def test_results_of_earlier_calls_stay(device):
    compiled = pg.compile(lambda x: x + 1)
    results = [compiled(f32([k], device)) for k in range(6)]
    assert [r.item() for r in results] == [1, 2, 3, 4, 5, 6]


def test_small_results_lie_where_nobody_holds_one(device):
    compiled = pg.compile(lambda x: (x + 1, x * 2))
    rng, held = np.random.default_rng(0), []
    for k in range(80):
        a, b = compiled(f32([k, k], device))
        for value, want in (
            (a, k + 1),
            (b.detach(), 2 * k),
            (b[1:], 2 * k),
            (np.from_dlpack(a.to_device("cpu:0")), k + 1),
        ):
            if rng.random() < 0.3:
                held.append((value, want))
        del a, b, value
        while len(held) > 5:
            held.pop(int(rng.integers(len(held))))
        assert all((np.asarray(h if isinstance(h, np.ndarray) else h.numpy()) == want).all() for h, want in held)
    (capture,) = next(iter(compiled._captures.values()))
    assert all(1 <= len(last) <= 2 for _, last in capture._room._last)


def test_values_that_an_array_had_stay_with_whoever_holds_them(device):
    w = pg.nn.Parameter(f32([1.0], device))
    optimiser = pg.optim.SGD([w], lr=1.0)

    @pg.compile
    def step():
        (w * 1.0).sum().backward()
        optimiser.step()
        optimiser.zero_grad()

    seen = []
    for _ in range(6):
        seen.append(w.detach())
        step()
    assert [s.item() for s in seen] == [1.0, 0.0, -1.0, -2.0, -3.0, -4.0]
    assert w.item() == -5.0


def test_memory_that_was_exported_is_not_written_to(host):
    w = f32([1.0, 2.0])

    @pg.compile
    def step(x):
        w[...] = w + x
        return w.sum()

    held = []
    for _ in range(8):
        held.append((np.from_dlpack(w), w.tolist()))
        step(1.0)
    assert all(shared.tolist() == values for shared, values in held)


def test_an_argument_may_be_a_result_and_an_array_that_is_written(device):
    compiled = pg.compile(lambda x: x * 2)
    x = f32([1.0], device)
    for _ in range(5):
        x = compiled(x)
    assert x.item() == 32.0

    def double(y):
        y *= 2
        return y + 1

    twice = pg.compile(double)
    y = f32([1.0], device)
    results = [twice(y).item() for _ in range(4)]
    assert (results, y.item()) == ([3.0, 5.0, 9.0, 17.0], 16.0)


def test_a_result_that_is_an_argument_is_that_argument(host):
    compiled = warmed(lambda x, y: (y, x + y), f32([1.0], host), f32([2.0], host))
    x, y = f32([5.0], host), f32([6.0], host)
    out = compiled(x, y)
    assert out[0] is y
    assert out[1].item() == 11.0


def test_results_may_lie_in_an_argument(device):
    def f(x, factor, y):
        return x.detach(), pg.reshape(x, (2, 3)).detach(), x[2:].detach(), x * factor, y.detach(), y.detach()

    compiled = pg.compile(f)
    for k in range(5):
        data = np.arange(6, dtype=np.float32) + k
        x, y = f32(data, device), f32(data[:2], device)
        got = compiled(x, 2.0 + k, y)
        for a, b in zip(got, f(x, 2.0 + k, y), strict=True):
            np.testing.assert_array_equal(a.numpy(), b.numpy())
        got[0][...] = 0.0
        got[4][0] = 9.0
        assert x.tolist() == data.tolist()
        assert got[1].numpy().ravel().tolist() == data.tolist()
        assert got[2].tolist() == data[2:].tolist()
        assert y.tolist() == got[5].tolist() == data[:2].tolist()


def test_gradients_that_stay_are_not_replanned(device):
    w = pg.nn.Parameter(f32([1.0, 2.0], device))

    @pg.compile
    def gradients(x):
        (w * x).sum().backward()

    wanted = np.zeros(2, np.float32)
    kept = []
    for k in range(6):
        gradients(f32([k, 1.0], device))
        wanted = wanted + np.asarray([k, 1.0], np.float32)
        np.testing.assert_array_equal(w.grad.numpy(), wanted)
        kept.append((w.grad, wanted))
    for grad, value in kept:
        np.testing.assert_array_equal(grad.numpy(), value)
    w.grad = None
    gradients(f32([5.0, 5.0], device))
    np.testing.assert_array_equal(w.grad.numpy(), [5.0, 5.0])


# ---- what a compiled function holds ----------------------------------------------------------------------------------


def test_memory_neither_grows_nor_stays(device):
    w = pg.nn.Parameter(f32(np.ones((64, 64)), device))
    optimiser = pg.optim.AdamW([w], lr=0.1)

    @pg.compile
    def step(x):
        loss = pg.tanh(x @ w).sum()
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        return loss

    x = f32(np.ones((8, 64)), device)
    for _ in range(6):
        step(x)
    gc.collect()
    used = pg.memory_stats(device)["used"]
    for _ in range(20):
        step(x)
    gc.collect()
    assert pg.memory_stats(device)["used"] <= used


def test_memory_is_given_back(host):
    gc.collect()
    pg.empty_cache(host)
    before = pg.memory_stats(host)["used"]
    compiled = warmed(lambda x: pg.exp(pg.exp(x).sum(axis=0, keepdims=True) * x), f32(np.ones((64, 64)), host))
    assert pg.memory_stats(host)["used"] > before
    del compiled
    gc.collect()
    assert pg.memory_stats(host)["used"] == before
