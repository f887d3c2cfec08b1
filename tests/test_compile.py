"""pg.compile: replays are what calls are, on every device.

Here: programs, training steps, transforms, random numbers and threads, replayed and called. Not here: when a function
is captured anew (`test_compile_conditions.py`), whose memory is whose (`test_compile_memory.py`), what is refused
(`test_compile_refusals.py`).
"""

import threading
import warnings

import numpy as np
import pytest

import polygrad as pg
from support.compiling import f32, net, training_step, warmed

# ---- programs --------------------------------------------------------------------------------------------------------


def test_a_replay_builds_no_graph_and_launches_what_the_call_launched(device):
    w = pg.nn.Parameter(np.ones((4, 4), np.float32), device=device)

    def f(x):
        return pg.exp(x @ w).sum().detach()

    x = f32(np.eye(4), device)
    f(x).realize()
    with pg.launch_counter() as plain:
        f(x).realize()
    compiled = warmed(f, x)
    with pg.launch_counter() as c:
        compiled(x)
    assert (c.fused, c.ops, c.builds) == (plain.fused, plain.ops, 0)


def test_random_programs_are_the_same(device):
    rng = np.random.default_rng(7)
    unary = [pg.exp, pg.tanh, pg.abs, lambda v: v * 0.5, lambda v: v - v.mean(axis=-1, keepdims=True), lambda v: v.T.T]
    binary = [pg.add, pg.multiply, pg.maximum, lambda a, b: pg.where(a > b, a, b * 2)]
    for _ in range(12):
        plan = [(int(rng.integers(2)), int(rng.integers(6)), rng.integers(0, 99, 2)) for _ in range(10)]

        def program(x, y, factor, plan=plan):
            values = [x, y * factor]
            for two, which, (a, b) in plan:
                one, other = values[a % len(values)], values[b % len(values)]
                values.append(binary[which % 4](one, other) if two else unary[which](one))
            return values[-1], values[-2].sum(), {"last": values[2]}

        compiled = pg.compile(program)
        for k in range(4):
            x, y = (f32(rng.normal(size=(5, 5)) / 4, device) for _ in range(2))
            got, wanted = compiled(x, y, 0.5 + k), program(x, y, 0.5 + k)
            for results in (got, wanted):  # together, as the capture did: apart they are other launches
                pg.realize(*results[:2], results[2]["last"])
            for g, w in zip((got[0], got[1], got[2]["last"]), (wanted[0], wanted[1], wanted[2]["last"]), strict=True):
                np.testing.assert_array_equal(g.numpy(), w.numpy())


def test_complex_values_views_and_integers(device):
    x = pg.asarray(np.arange(6, dtype=np.float32).reshape(2, 3), device=device)

    def f(z, v, n):
        return z * 2j, v[::-1, 1:], pg.argmax(v, axis=1) + n, z.real

    compiled = warmed(f, x + 1j, x, x.shape[0])
    for got, wanted in zip(compiled(x - 2j, x.T.T + 1, 2), f(x - 2j, x + 1, 2), strict=True):
        np.testing.assert_array_equal(got.numpy(), wanted.numpy())


def test_slices_of_one_array_as_arguments(device):
    data = f32(np.arange(40).reshape(10, 4), device)
    compiled = warmed(lambda x: (x * 2).sum(axis=0), data[0:2])
    for k in range(0, 10, 2):
        np.testing.assert_array_equal(compiled(data[k : k + 2]).numpy(), (data[k : k + 2] * 2).sum(axis=0).numpy())
    assert "1 captures" in compiled.explain()


def test_numpy_arrays_may_be_arguments(host):
    with pg.device(host):
        compiled = pg.compile(lambda x: x * 2)
        for k in range(4):
            np.testing.assert_array_equal(compiled(np.asarray([k, 1.0], np.float32)).numpy(), [2.0 * k, 2.0])


def test_numbers_come_back_and_are_computed(host):
    compiled = pg.compile(lambda x, a: {"y": x * a, "half": a / 2, "name": "text"})
    for a in (1.0, 2.0, 3.0, 4.0):
        out = compiled(f32([2.0], host), a)
        assert (out["y"].item(), out["half"], out["name"]) == (2 * a, a / 2, "text")


def test_the_same_array_twice_and_nested_compiled_functions(host):
    inner = pg.compile(lambda x: x * 2)
    outer = pg.compile(lambda x, y: inner(x) + inner(y) + inner(x))
    x, y = f32([1.0], host), f32([3.0], host)
    assert [outer(x, x).item(), outer(x, x).item(), outer(x, x).item()] == [6.0] * 3
    assert outer(x, y).item() == 10.0


def test_threads_may_share_a_compiled_function(device):
    compiled = pg.compile(lambda x: pg.exp(x).sum(axis=1))
    wrong = []

    def work(seed):
        rng = np.random.default_rng(seed)
        for _ in range(15):
            x = rng.normal(size=(6, 7)).astype(np.float32)
            got = compiled(pg.asarray(x, device=device)).numpy()
            if not np.allclose(got, np.exp(x).sum(axis=1), rtol=1e-5):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_no_warning_comes_of_ordinary_use(host):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled = pg.compile(lambda x: x + 1)
        for k in range(12):
            compiled(f32(np.zeros(k % 3 + 1), host))


# ---- training steps --------------------------------------------------------------------------------------------------


OPTIMISERS = {
    "sgd": lambda m: pg.optim.SGD(m, lr=0.1),
    "momentum": lambda m: pg.optim.SGD(m, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": lambda m: pg.optim.Adam(m, lr=1e-2, amsgrad=True),
    "adamw": lambda m: pg.optim.AdamW(m, lr=1e-2),
    "nadam": lambda m: pg.optim.NAdam(m, lr=1e-2),
    "adamax": lambda m: pg.optim.Adamax(m, lr=1e-2),
    "rmsprop": lambda m: pg.optim.RMSprop(m, lr=1e-3, momentum=0.5, centered=True),
    "adagrad": lambda m: pg.optim.Adagrad(m, lr=1e-2, lr_decay=0.1),
    "lion": lambda m: pg.optim.Lion(m, lr=1e-3),
}


def test_a_training_step_is_the_same_bit_for_bit(device):
    same_step("adamw", device)


@pytest.mark.parametrize("name", sorted({*OPTIMISERS} - {"adamw"}))
def test_a_step_of_every_optimiser_is_the_same(name):
    same_step(name, "cpu:0")


def same_step(name, device):
    rng = np.random.default_rng(1)
    batches = [
        (f32(rng.normal(size=(8, 6)), device), pg.asarray(rng.integers(0, 3, 8), device=device)) for _ in range(3)
    ]

    def run(compiled):
        model = net(device)
        optimiser = OPTIMISERS[name](model)
        schedule = pg.optim.lr_scheduler.CosineWithWarmup(optimiser, total=9, warmup=2)
        average = pg.optim.EMA(model, decay=0.9, warmup=True)
        pg.random.seed(5)

        step = training_step(model, optimiser, schedule.step, average.update)
        call = pg.compile(step) if compiled else step
        losses = [call(*batches[k % 3]).item() for k in range(7)]
        with average.averaged():
            averages = [p.numpy() for p in model.parameters()]
        arrays = [p.numpy() for p in model.parameters()] + [b.numpy() for b in model.buffers()] + averages
        counts = [s["step"] for s in optimiser.state.values()]
        return losses, arrays, counts, optimiser.lr, pg.random.get_state(), call

    plain, replayed = run(False), run(True)
    assert "replayed 5 times" in replayed[5].explain()
    assert plain[0] == replayed[0]
    for a, b in zip(plain[1], replayed[1], strict=True):
        np.testing.assert_array_equal(a, b)
    assert plain[2:5] == replayed[2:5]


def test_gradients_of_an_argument(host):
    @pg.compile
    def f(x):
        (x * x).sum().backward()

    for k in range(5):
        x = f32([k], host).requires_grad_()
        f(x)
        f(x)
        assert x.grad.item() == 4.0 * k


def test_learning_rates_and_counts_are_read_anew(host):
    w = pg.nn.Parameter(f32([0.0], host))
    optimiser = pg.optim.SGD([w], lr=1.0)

    @pg.compile
    def step():
        w.sum().backward()
        optimiser.step()
        optimiser.zero_grad()

    for _ in range(3):
        step()
    optimiser.lr = 0.25
    step()
    assert w.item() == -3.25
    assert "1 captures" in step.explain()


def test_a_loaded_state_and_an_added_group_are_seen(host):
    def run(compiled):
        w, v = pg.nn.Parameter(f32([1.0], host)), pg.nn.Parameter(f32([1.0], host))
        optimiser = pg.optim.Adam({"w": w}, lr=0.1)

        def step():
            (w * w + v * v).sum().backward()
            optimiser.step()
            optimiser.zero_grad()
            v.grad = None

        call = pg.compile(step) if compiled else step
        for _ in range(3):
            call()
        saved, mean = optimiser.state_dict(), optimiser.state["w"]["mean"]
        for _ in range(3):
            call()
        optimiser.load_state_dict(saved)
        for _ in range(3):
            call()
        optimiser.add_group({"params": {"v": v}, "lr": 0.2})
        for _ in range(4):
            call()
        return w.item(), v.item(), optimiser.state["w"]["step"], optimiser.state["v"]["step"], mean is not None

    assert run(True) == run(False)


# ---- transforms and random numbers -----------------------------------------------------------------------------------


def test_transforms_see_through(host):
    compiled = pg.compile(lambda x: (x**3).sum())
    x = f32([2.0], host)
    for _ in range(3):
        assert compiled(x).item() == 8.0
        assert pg.grad(compiled)(x).item() == 12.0
        assert pg.vmap(compiled)(pg.stack([x, x])).tolist() == [8.0, 8.0]
    step = pg.compile(pg.grad(lambda x: (x**3).sum()))
    assert [step(f32([k], host)).item() for k in range(4)] == [0.0, 3.0, 12.0, 27.0]


def test_random_numbers_go_on(device):
    compiled = pg.compile(lambda n: pg.random.normal((3,), device=device, dtype=pg.float32) + n)
    pg.random.seed(1)
    got = [compiled(0.0).numpy() for _ in range(5)]
    pg.random.seed(1)
    for g in got:
        np.testing.assert_array_equal(g, pg.random.normal((3,), device=device, dtype=pg.float32).numpy())
    pg.random.seed(1)
    np.testing.assert_array_equal(compiled(0.0).numpy(), got[0])


def test_checkpointed_parts_draw_the_same_numbers(host):
    def run(compiled):
        pg.random.seed(2)
        w = pg.nn.Parameter(f32(np.ones((4, 4)), host))
        optimiser = pg.optim.SGD([w], lr=0.1)

        def step(x):
            loss = pg.checkpoint(lambda v: pg.nn.dropout(v @ w, 0.5).sum())(x)
            loss.backward()
            optimiser.step()
            optimiser.zero_grad()

        call = pg.compile(step) if compiled else step
        for _ in range(5):
            call(f32(np.eye(4), host))
        return w.numpy()

    np.testing.assert_array_equal(run(False), run(True))


# ---- replays compared with calls on demand ---------------------------------------------------------------------------


def test_replays_are_compared_on_demand(device, monkeypatch):
    monkeypatch.setenv("POLYGRAD_VALIDATE", "compile:2")

    def run(compiled):
        pg.random.seed(4)
        w = pg.nn.Parameter(f32(np.ones(3), device))
        optimiser = pg.optim.AdamW([w], lr=0.1)
        schedule = pg.optim.lr_scheduler.ExponentialLR(optimiser, gamma=0.9)
        average = pg.optim.EMA([w], decay=0.5, warmup=True)

        def step(x):
            loss = (pg.nn.dropout(w * x, 0.3) ** 2).sum()
            loss.backward()
            optimiser.step()
            optimiser.zero_grad()
            schedule.step()
            average.update()
            return loss

        call = pg.compile(step) if compiled else step
        losses = [call(f32([k, 1.0, 2.0], device)).item() for k in range(9)]
        return losses, w.tolist(), optimiser.state["0"]["step"], schedule.count, average.count, call

    plain, replayed = run(False), run(True)
    assert plain[:5] == replayed[:5]
    assert "replayed 7 times" in replayed[5].explain()


def test_a_replay_that_is_wrong_is_found(host, monkeypatch):
    from polygrad.runtime.replay import Replay

    monkeypatch.setenv("POLYGRAD_VALIDATE", "compile:1")
    w = f32([1.0, 2.0], host)

    def f(x):
        w[...] = w + x
        return w * 2

    compiled = warmed(f, 1.0)
    assert compiled(1.0).tolist() == [8.0, 10.0]
    run = Replay.run

    def lazy(self, numbers):
        self._launches = self._launches[:-1]
        run(self, numbers)

    monkeypatch.setattr(Replay, "run", lazy)
    with pytest.raises(pg.CaptureError, match="differs from the call itself in value"):
        compiled(1.0)
    assert w.tolist() == [5.0, 6.0]
    monkeypatch.setenv("POLYGRAD_VALIDATE", "compile:often")
    with pytest.raises(ValueError, match="does not say how often"):
        pg.compile(f)
