"""New values in the place of old ones in replays: never seen by whoever holds an old value, and the same bits.

Here: which launches may write over what they read, and in which calls they do.
Not here: other memory of replays (`test_compile_memory.py`), what drivers do with such kernels (the suite).
"""

import gc

import numpy as np
import pytest

import polygrad as pg
from polygrad.driver.ir import Instr, Kernel, Store, View
from polygrad.runtime.devices import state
from polygrad.runtime.overwriting import _elementwise, merged
from polygrad.runtime.recorder import FusedCall
from support.compiling import f32

N = 1000


def captured(compiled):
    """Return the one capture of a compiled function."""
    (some,) = compiled._captures.values()
    (one,) = some
    return one


def overwritten(compiled):
    """Return how many arrays the last call wrote over."""
    return sum(len(one.blocks) for one in captured(compiled).replay.overwrites if one.active)


def stepper(device, optimiser=pg.optim.AdamW, shapes=((20, 30), (30,), (7, 5, 3))):
    """Return a compiled step of an optimiser with given gradients, and its parameters."""
    rng = np.random.default_rng(5)
    parameters = [pg.nn.Parameter(f32(rng.normal(size=s), device)) for s in shapes]
    chosen = optimiser(parameters, lr=0.01)
    return pg.compile(lambda grads: chosen.step(grads)), chosen, parameters


def gradients(rng, parameters, device):
    """Return random gradients."""
    return [f32(rng.normal(size=p.shape), device) for p in parameters]


@pytest.mark.parametrize("name", ["AdamW", "SGD", "RMSprop", "Adagrad", "Lion"])
def test_an_optimiser_holds_one_generation_and_gives_the_same_bits(device, name):
    compiled, _, parameters = stepper(device, getattr(pg.optim, name))
    _, plain, others = stepper(device, getattr(pg.optim, name))
    rng, again = np.random.default_rng(6), np.random.default_rng(6)
    for _ in range(8):
        compiled(gradients(rng, parameters, device))
        plain.step(gradients(again, parameters, device))
    for a, b in zip(parameters, others, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    assert overwritten(compiled) == len(captured(compiled).states)


def test_a_step_of_large_arrays_takes_no_second_memory(device):
    pool = state(device).pool
    compiled, _, parameters = stepper(device, shapes=((1 << 11, 1 << 11),))
    grads = gradients(np.random.default_rng(1), parameters, device)
    gc.collect()  # what other tests have left
    for _ in range(3):
        compiled(grads)
    before, held = pool.stats()["used"], pool.stats()["held"]
    pool.peak = pool.used
    for _ in range(3):
        compiled(grads)
    after = pool.stats()
    assert after["peak"] == after["used"] == before
    assert after["held"] == held
    assert held - before < 1 << 24, "the old values of the captured call were given back"


HOLDERS = {
    "nobody": lambda w: None,
    "the value": lambda w: w.detach(),
    "a view": lambda w: w[10:20],
    "a row's view of a view": lambda w: w.reshape((10, 100))[3],
    "something to be computed": lambda w: w + 1,
    "its gradient's operand": lambda w: pg.sum(w * w),
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_who_holds_an_old_value_keeps_it(device, holder):
    w, x = f32(np.arange(N), device), f32(np.ones(N), device)
    compiled = pg.compile(lambda x: w.__setitem__(..., w * 0.5 + x))
    for _ in range(4):
        compiled(x)
    assert overwritten(compiled) == 1
    values, held = w.numpy().copy(), HOLDERS[holder](w)
    looks = "view" in holder  # then it sees what is written to the array
    wanted = None if held is None else HOLDERS[holder](f32(values, device)).numpy().copy()
    for _ in range(2):
        compiled(x)
        values = values * np.float32(0.5) + 1
    np.testing.assert_array_equal(w.numpy(), values)
    if held is not None:
        np.testing.assert_array_equal(held.numpy(), HOLDERS[holder](w).numpy() if looks else wanted)
    del held
    compiled(x)
    compiled(x)
    assert overwritten(compiled) == 1, "nobody holds it any more"


def test_memory_that_others_share_is_not_written_over(host):
    w, x = f32(np.arange(N)), f32(np.ones(N))
    compiled = pg.compile(lambda x: w.__setitem__(..., w * 0.5 + x))
    for _ in range(4):
        compiled(x)
    shared, copy = np.from_dlpack(w), w.numpy().copy()
    compiled(x)
    np.testing.assert_array_equal(shared, copy)
    foreign = np.ones(N, dtype="float32")
    v = pg.asarray(foreign, copy=False)
    over = pg.compile(lambda x: v.__setitem__(..., v * 0.5 + x))
    for _ in range(5):
        over(x)
    np.testing.assert_array_equal(foreign, np.ones(N))


def test_an_array_that_is_two_arguments_is_not_written_over(device):
    def f(a, b):
        a[...] = a * 2
        return a + b

    compiled = pg.compile(f)
    a = f32(np.arange(N), device)
    for _ in range(4):
        compiled(a, f32(np.zeros(N), device))
    before = a.numpy().copy()
    b = a.detach()
    np.testing.assert_array_equal(compiled(a, b).numpy(), before * 3)


# ---- which launches may ----------------------------------------------------------------------------------------------

UPDATES = {
    "element by element": (lambda w, x: w * 0.5 + x, 1),
    "of one that is broadcast": (lambda w, x: w * x[3] + 1, 1),
    "reversed": (lambda w, x: w[::-1] + x, 0),
    "transposed": (lambda w, x: (w.reshape((20, 50)) + 1).reshape((50, 20)).T.reshape((N,)) + x, 0),
    "shifted": (lambda w, x: pg.concat([w[1:], w[:1]]) + x, 0),
    "beside its mean": (lambda w, x: w - pg.mean(w) + x, None),
    "scaled by its norm in one kernel": (lambda w, x: w / pg.sqrt(pg.sum(w * w)), None),
    "running sum": (lambda w, x: pg.cumulative_sum(w) * 0.01, None),
    "not of itself": (lambda w, x: x * 2, 0),
    "a copy": (lambda w, x: x + 0, 0),
}


@pytest.mark.parametrize("name", UPDATES)
def test_replays_equal_calls_whatever_the_update(device, name):
    update, count = UPDATES[name]
    rng = np.random.default_rng(3)
    first = rng.normal(size=N)
    w, v = f32(first, device), f32(first, device)

    def f(w, x):
        w[...] = update(w, x)
        return pg.sum(x)

    compiled = pg.compile(f)
    for _ in range(6):
        x = f32(rng.normal(size=N), device)
        got, wanted = compiled(w, x), f(v, x)
        pg.realize(wanted, v)
        np.testing.assert_array_equal(got.numpy(), wanted.numpy())
        np.testing.assert_array_equal(w.numpy(), v.numpy())
    if count is not None:
        assert overwritten(compiled) == count


def test_a_value_that_is_read_later_is_not_written_over(device):
    w = f32(np.arange(N), device)
    m = f32(np.eye(N), device)

    def f(x):
        old = w.detach()
        new = w * 0.5 + x
        pg.realize(new)
        out = m @ old
        w[...] = new
        return out

    compiled = pg.compile(f)
    for _ in range(5):
        before = w.numpy().copy()
        np.testing.assert_array_equal(compiled(f32(np.ones(N), device)).numpy(), before)


def test_what_only_moves_is_not_written_over():
    views = tuple(View(k, "float32", (1,)) for k in range(4))
    body = (Instr("load", "float32", (), 0), Instr("load", "float32", (), 1))
    kernel = Kernel(1, 0, ("float32",) * 4, views, (), body, (Store(0, 3), Store(1, 2)))  # two that change places
    call = FusedCall(None, kernel, None, (0, 1, 2, 3), -1, (8, 0, 0, 0, 0), (), (), (), {})
    assert not _elementwise(call, {3: 1, 2: 0})
    added = kernel._replace(body=(*body, Instr("add", "float32", (0, 1))), stores=(Store(2, 3), Store(2, 2)))
    assert _elementwise(call._replace(kernel=added), {3: 1, 2: 0})


def test_arrays_that_change_places(device):
    a, b = f32(np.arange(N), device), f32(np.arange(N) * 2.0, device)

    def f(k):
        a[...], b[...] = b * k, a * k

    compiled = pg.compile(f)
    for k in range(6):
        x, y = a.numpy().copy(), b.numpy().copy()
        compiled(1.0 + k)
        np.testing.assert_array_equal(a.numpy(), y * np.float32(1 + k))
        np.testing.assert_array_equal(b.numpy(), x * np.float32(1 + k))


def test_random_updates_of_several_arrays_that_are_sometimes_held(device):
    rng = np.random.default_rng(11)
    ops = [pg.add, pg.multiply, pg.maximum, lambda a, b: a - pg.mean(b), lambda a, b: a + b[::-1], lambda a, b: a]
    for _ in range(8):
        plan = rng.integers(0, (6, 3, 3, 3), size=(6, 4))
        arrays, others = ([f32(np.linspace(-1, 1, N) * (k + 1), device) for k in range(3)] for _ in range(2))

        def f(some, x, plan=plan):
            values = [a * 0.5 for a in some]
            for op, i, j, target in plan:
                values[target] = ops[op](values[i], values[j]) * 0.5 + x
            for a, value in zip(some, values, strict=True):
                a[...] = value

        compiled = pg.compile(lambda x, arrays=arrays, f=f: f(arrays, x))
        held = []
        for k in range(8):
            if k % 3 == 2:
                which = int(rng.integers(3))
                held.append((arrays[which].detach(), arrays[which].numpy().copy()))
            compiled(0.25 * k)
            f(others, 0.25 * k)
            pg.realize(*others)
            for a, b in zip(arrays, others, strict=True):
                np.testing.assert_array_equal(a.numpy(), b.numpy())
        for array, values in held:
            np.testing.assert_array_equal(array.numpy(), values)


# ---- what fails ------------------------------------------------------------------------------------------------------


def test_a_bad_index_leaves_old_values(device):
    rng = np.random.default_rng(2)
    table = pg.nn.Parameter(f32(rng.normal(size=(300, 1 << 14)), device))  # large: such a step writes over old values
    optimiser = pg.optim.SGD([table], lr=0.1)

    @pg.compile
    def step(index):
        loss = pg.sum(table[index] * 0.5)
        loss.backward()
        optimiser.step(also=loss)
        optimiser.zero_grad()
        return loss

    good = pg.asarray(np.array([1, 2, 299]), device=device)
    for _ in range(4):
        step(good)
    if not state(device).info.features.capture:
        assert overwritten(step) == 1
    before = table.numpy().copy()
    with pytest.raises(pg.OutOfBounds):
        step(pg.asarray(np.array([1, 300, 2]), device=device))
    np.testing.assert_array_equal(table.numpy(), before)
    step(good)
    assert not np.array_equal(table.numpy(), before)


def test_a_bad_index_that_is_found_after_an_update_undoes_it(device):
    rng = np.random.default_rng(2)
    table, w = pg.nn.Parameter(f32(rng.normal(size=(30, 4)), device)), f32(rng.normal(size=N), device)
    optimiser = pg.optim.SGD([table], lr=0.1)

    @pg.compile
    def step(index):
        w[...] = w * 0.5
        pg.realize(w)
        loss = pg.sum(table[index] * 0.5)
        loss.backward()
        optimiser.step(also=loss)
        optimiser.zero_grad()

    for _ in range(4):
        step(pg.asarray(np.array([1, 2, 29]), device=device))
    before = w.numpy().copy()
    with pytest.raises(pg.OutOfBounds):
        step(pg.asarray(np.array([1, 30, 2]), device=device))
    np.testing.assert_array_equal(w.numpy(), before)


def test_a_launch_that_fails_is_told_apart(host, monkeypatch):
    a, b = f32(np.arange(N)), f32(np.eye(40))

    def f(x):
        a[...] = a * 0.5 + x
        pg.realize(a)
        b[...] = b @ b

    compiled = pg.compile(f)
    for _ in range(4):
        compiled(1.0)
    replay = captured(compiled).replay

    def failing(_numbers):
        raise RuntimeError("no more")

    monkeypatch.setattr(replay, "_launches", [*replay._launches, failing])
    with pytest.raises(RuntimeError) as caught:
        compiled(1.0)
    assert overwritten(compiled)
    assert "load what was saved last" in "".join(caught.value.__notes__)


def test_merged_kernels_keep_launch_ints():
    views = tuple(View(k, "float32", (1, None)) for k in range(4))
    body = (Instr("load", "float32", (), 0), Instr("load", "float32", (), 2), Instr("add", "float32", (0, 1)))
    kernel = Kernel(2, 0, ("float32",) * 4, views, (), body, (Store(2, 1), Store(2, 3)))
    one = merged(kernel, {1: 0, 3: 2})
    assert one.buffers == ("float32",) * 2
    assert [v.buffer for v in one.views] == [0, 0, 1, 1]
    assert one.int_names == kernel.int_names
