"""pg.compile: replays are what calls are, on every device, and what cannot be replayed is refused or captured anew."""

import functools
import gc
import math
import threading
import types
import warnings

import numpy as np
import pytest

import polygrad as pg


@pytest.fixture
def host():
    """The host's device: for what does not depend on the device."""
    with pg.device("cpu:0"):
        yield "cpu:0"


def f32(values, device=None):
    return pg.asarray(np.asarray(values, np.float32), device=device)


def warmed(f, *args):
    """Return *f* compiled and past its two first calls with such arguments."""
    compiled = pg.compile(f)
    compiled(*args)
    compiled(*args)
    return compiled


# ---- replays equal calls ---------------------------------------------------------------------------------------------


def net(device):
    pg.random.seed(3)
    return pg.nn.Sequential(
        pg.nn.Linear(6, 16, device=device), pg.nn.BatchNorm1d(16, device=device), pg.nn.ReLU(), pg.nn.Dropout(0.2),
        pg.nn.Linear(16, 3, device=device),
    )  # fmt: skip


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

        def step(x, y):
            loss = pg.nn.cross_entropy(model(x), y)
            loss.backward()
            optimiser.step(max_norm=1.0)
            optimiser.zero_grad()
            schedule.step()
            average.update()
            return loss

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


# ---- the traps of others ---------------------------------------------------------------------------------------------


def test_results_of_earlier_calls_stay(device):
    compiled = pg.compile(lambda x: x + 1)
    results = [compiled(f32([k], device)) for k in range(6)]
    assert [r.item() for r in results] == [1, 2, 3, 4, 5, 6]


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


def test_numbers_are_not_frozen(host):
    compiled = pg.compile(lambda x, a, n: x * a + (n - 1) * math.pi)
    for k in range(5):
        assert compiled(f32([2.0], host), 0.5 * k, k).item() == pytest.approx(1.0 * k + (k - 1) * math.pi, rel=1e-6)
    assert "1 captures" in compiled.explain()


def test_numbers_that_python_decides_by_are_conditions(host):
    def f(x, a):
        return x + 1 if a > 0.5 else x - math.sqrt(a)

    compiled = pg.compile(f)
    x = f32([1.0], host)
    got = [compiled(x, a).item() for a in (0.9, 0.8, 0.7, 0.25, 0.25, 0.16, 0.9, 0.25)]
    assert got == pytest.approx([2, 2, 2, 0.5, 0.5, 0.6, 2, 0.5], rel=1e-6)


def test_whole_numbers_are_shapes_and_values(host):
    compiled = pg.compile(lambda x, n: (pg.reshape(x, (n, -1)) * n).sum(axis=0))
    x = f32(np.arange(12), host)
    for n in (2, 2, 3, 2, 3, 4):
        np.testing.assert_array_equal(compiled(x, n).numpy(), (np.arange(12).reshape(n, -1) * n).sum(axis=0))


def test_numbers_come_back_and_are_computed(host):
    compiled = pg.compile(lambda x, a: {"y": x * a, "half": a / 2, "name": "text"})
    for a in (1.0, 2.0, 3.0, 4.0):
        out = compiled(f32([2.0], host), a)
        assert (out["y"].item(), out["half"], out["name"]) == (2 * a, a / 2, "text")


def test_too_many_captures_warn_and_name_what_varies(host):
    compiled = pg.compile(lambda x, n: pg.reshape(x, (n, -1)).sum(axis=1))
    x = f32(np.arange(5040), host)

    def often():
        for n in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14):
            compiled(x, n)
            assert compiled(x, n).shape == (n,)

    with pytest.warns(pg.CompileWarning, match="captured 9 times, the last time because a number"):
        often()


FACTOR = 2.0


def test_names_outside_are_conditions(host):
    global FACTOR  # noqa: PLW0603  what is tested
    inner = {"shift": 1.0}
    scale = 10.0

    def helper(x):
        return x * FACTOR

    def f(x):
        return helper(x) * scale + inner["shift"]

    compiled = warmed(f, f32([1.0], host))
    assert compiled(f32([1.0], host)).item() == 21.0
    try:
        FACTOR = 3.0
        assert compiled(f32([1.0], host)).item() == 31.0
        scale = 1.0
        assert compiled(f32([1.0], host)).item() == 4.0
        inner["shift"] = 0.0
        assert compiled(f32([1.0], host)).item() == 3.0
        assert "last captured anew because inner.shift was 1.0 and is 0.0" in compiled.explain()
    finally:
        FACTOR = 2.0


def test_attributes_of_modules_and_parts_of_partials_are_conditions(host):
    settings = types.ModuleType("settings")
    settings.factor = 2.0
    shifts = {"by": 1.0}

    def f(shifts, x):
        return x * settings.factor + shifts["by"]

    compiled = warmed(functools.partial(f, shifts), f32([1.0], host))
    assert compiled(f32([1.0], host)).item() == 3.0
    settings.factor = 5.0
    assert compiled(f32([1.0], host)).item() == 6.0
    shifts["by"] = 0.0
    assert compiled(f32([1.0], host)).item() == 5.0


def test_arrays_outside_are_read_anew(device):
    model = pg.nn.Linear(2, 2, device=device)
    table = f32([1.0, 2.0], device)
    compiled = warmed(pg.no_grad()(lambda x: model(x) + table), f32([[1.0, 1.0]], device))
    state = {"weight": f32([[1, 0], [0, 1]], device), "bias": f32([0, 0], device)}
    model.load_state_dict(state)
    table[0] = 100.0
    np.testing.assert_array_equal(compiled(f32([[1.0, 1.0]], device)).numpy(), [[101.0, 3.0]])
    assert "1 captures" in compiled.explain()


def test_another_array_under_the_same_name_is_seen(host):
    table = f32([1.0], host)
    compiled = warmed(lambda x: x + table, f32([1.0], host))
    table = f32([5.0], host)
    assert compiled(f32([1.0], host)).item() == 6.0


def test_two_arrays_that_began_as_one_are_told_apart(host):
    first = f32([1.0], host)
    second = first.detach()
    holder = {"a": first, "b": second}

    def f(x):
        return x + 10 * holder["a"] + 100 * holder["b"]

    compiled = warmed(f, f32([1.0], host))
    first[...] = 2.0
    assert compiled(f32([1.0], host)).item() == 121.0
    second[...] = 3.0
    assert compiled(f32([1.0], host)).item() == 321.0


def test_training_mode_is_seen(host):
    model = net(host)
    compiled = pg.compile(pg.no_grad()(lambda x: model(x)))
    x = f32(np.random.default_rng(0).normal(size=(4, 6)), host)
    for _ in range(3):
        compiled(x)
    model.eval()
    np.testing.assert_array_equal(compiled(x).numpy(), model(x).detach().numpy())


def test_methods_have_captures_of_their_own(host):
    class Scaled:
        def __init__(self, factor):
            self.factor = factor

        @pg.compile
        def times(self, x):
            return x * self.factor

    two, three = Scaled(2.0), Scaled(3.0)
    x = f32([1.0], host)
    for _ in range(4):
        assert (two.times(x).item(), three.times(x).item()) == (2.0, 3.0)
    two.factor = 5.0
    assert two.times(x).item() == 5.0


def test_other_shapes_dtypes_layouts_and_structures_are_captured_apart(host):
    compiled = pg.compile(lambda tree: pg.add(*tree.values()))
    a = f32(np.arange(6).reshape(2, 3), host)
    cases = [
        {"a": a, "b": a}, {"a": a, "c": a}, {"a": a.T, "b": a.T}, {"a": a[:, 1:], "b": a[:, :2]},
        {"a": a, "b": pg.astype(a, pg.int32)}, {"a": a[0], "b": a},
    ]  # fmt: skip
    for _ in range(4):
        for case in cases:
            np.testing.assert_array_equal(compiled(case).numpy(), pg.add(*case.values()).numpy())


def test_the_same_array_twice_and_nested_compiled_functions(host):
    inner = pg.compile(lambda x: x * 2)
    outer = pg.compile(lambda x, y: inner(x) + inner(y) + inner(x))
    x, y = f32([1.0], host), f32([3.0], host)
    assert [outer(x, x).item(), outer(x, x).item(), outer(x, x).item()] == [6.0] * 3
    assert outer(x, y).item() == 10.0


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


def test_gradients_of_an_argument(host):
    @pg.compile
    def f(x):
        (x * x).sum().backward()

    for k in range(5):
        x = f32([k], host).requires_grad_()
        f(x)
        f(x)
        assert x.grad.item() == 4.0 * k


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


# ---- what is refused, and bad input ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("look", "words"),
    [
        (lambda x: float(x.sum()), "looks at the value"),
        (lambda x: bool(x.sum() > 0), "looks at the value"),
        (lambda x: x.sum().item(), "looks at the value"),
        (lambda x: x.numpy(), "looks at the value"),
        (lambda x: x[x > 0], "looks at the value"),
        (lambda x: repr(x), "looks at the value"),
        (lambda x: x + pg.asarray(np.ones(2, np.float32), device=x.device), "NumPy"),
        (lambda x: x + np.ones(2, np.float32), "NumPy"),
    ],
)
def test_what_a_replay_could_not_see_is_refused(host, look, words):
    compiled = pg.compile(look)
    x = f32([1.0, 2.0], host)
    compiled(x)
    with pytest.raises(pg.CaptureError, match=words):
        compiled(x)
    assert (x + 1).tolist() == [2.0, 3.0]  # nothing is left switched over
    with pytest.raises(pg.CaptureError, match=words):
        compiled(x)


def test_arrays_left_behind_are_refused(host):
    kept = []

    @pg.compile
    def f(x):
        kept.append(x * 2)
        return x

    f(f32([1.0], host))
    with pytest.raises(pg.CaptureError, match=r"keeps an array it made, float32\[1\]"):
        f(f32([1.0], host))


def test_results_that_need_gradients_are_refused(host):
    model = pg.nn.Linear(2, 1, device=host)
    compiled = pg.compile(lambda x: model(x))
    x = f32([[1.0, 2.0]], host)
    compiled(x)
    with pytest.raises(pg.CaptureError, match="needs gradients"):
        compiled(x)
    with pg.no_grad():
        for _ in range(3):
            compiled(x)


def test_steps_that_look_at_values_are_refused(host):
    w = pg.nn.Parameter(f32([1.0], host))
    optimiser = pg.optim.SGD([w], lr=0.1)
    gathered = pg.optim.Accumulation(optimiser, batches=2)
    for call, words in [
        (lambda: optimiser.step(nonfinite="skip"), "nonfinite='skip'"), (gathered.step, "Accumulation"),
    ]:  # fmt: skip

        @pg.compile
        def step(call=call):
            w.sum().backward()
            call()

        step()
        with pytest.raises(pg.CaptureError, match=words):
            step()


def test_errors_of_the_function_and_of_launches_leave_everything_as_it_was(device):
    w = pg.nn.Parameter(f32(np.ones((3, 2)), device))
    optimiser = pg.optim.SGD([w], lr=1.0, momentum=0.9)
    schedule = pg.optim.lr_scheduler.ExponentialLR(optimiser, gamma=0.5)

    @pg.compile
    def step(index):
        pg.nn.cross_entropy(w, index).backward()
        optimiser.step()
        optimiser.zero_grad()
        schedule.step()

    good, bad = pg.asarray([0, 1, 1], device=device), pg.asarray([0, 1, 7], device=device)
    for _ in range(4):
        step(good)
    before, lr, count = w.numpy(), optimiser.lr, optimiser.state["0"]["step"]
    with pytest.raises(pg.OutOfBounds, match="it is 7, but there are 2 classes"):
        step(bad)
    np.testing.assert_array_equal(w.numpy(), before)
    assert (optimiser.lr, optimiser.state["0"]["step"]) == (lr, count)
    step(good)
    assert optimiser.state["0"]["step"] == count + 1

    with pytest.raises(pg.ShapeError):
        step(pg.asarray([0, 1], device=device))


def test_a_first_call_that_failed_is_made_again(host):
    w = pg.nn.Parameter(f32([1.0], host))
    optimiser = pg.optim.AdamW([w], lr=0.1)
    failing = iter([True])

    @pg.compile
    def step():
        if next(failing, False):
            raise ValueError("not yet")
        w.sum().backward()
        optimiser.step()
        optimiser.zero_grad()

    with pytest.raises(ValueError, match="not yet"):
        step()
    for _ in range(4):
        step()
    assert optimiser.state["0"]["step"] == 4
    assert "replayed 2 times" in step.explain()


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


def test_numpy_arrays_may_be_arguments(host):
    with pg.device(host):
        compiled = pg.compile(lambda x: x * 2)
        for k in range(4):
            np.testing.assert_array_equal(compiled(np.asarray([k, 1.0], np.float32)).numpy(), [2.0 * k, 2.0])


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


def test_compiling_what_is_no_function_is_refused():
    with pytest.raises(TypeError, match="cannot compile 3: it is no function"):
        pg.compile(3)


def test_no_warning_comes_of_ordinary_use(host):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled = pg.compile(lambda x: x + 1)
        for k in range(12):
            compiled(f32(np.zeros(k % 3 + 1), host))
