"""Replays on a device that writes launches down: the same bits, whatever changes between calls.

Here: training steps and programs, numbers, what is not written down or fails meanwhile, watchers, threads, closing; the
device is `Scribe`. Not here: where the memory lies (`test_bundles_memory.py`), what a driver does
(`drivers/cuda/tests/test_cuda_bundles.py`).
"""

import gc
import re
import threading

import numpy as np
import pytest

import polygrad as pg
from polygrad.driver import hookimpl
from polygrad.driver.loader import REGISTRY
from polygrad.runtime import bundles
from support.compiling import f32, net, training_step
from support.scribe import Scribe


def stepper(compiled):
    """Return a training step with all that changes from call to call, and what it changes."""
    model = net()
    optimiser = pg.optim.AdamW(model, lr=1e-2)
    schedule = pg.optim.lr_scheduler.CosineWithWarmup(optimiser, total=30, warmup=3)
    pg.random.seed(5)
    step = training_step(model, optimiser, schedule.step)
    return pg.compile(step) if compiled else step, [*model.parameters(), *model.buffers()]


def batch(rng):
    return f32(rng.normal(size=(8, 6))), pg.asarray(rng.integers(0, 3, 8))


def training(compiled, steps, keep=False):
    """Return losses and parameters after some steps, and the step itself."""
    call, arrays = stepper(compiled)
    rng = np.random.default_rng(2)
    losses = []
    for _ in range(steps):
        loss = call(*batch(rng))
        losses.append(loss if keep else loss.item())
    return [float(x) for x in losses], [a.numpy() for a in arrays], call


def same(plain, replayed):
    assert plain[0] == replayed[0]
    for a, b in zip(plain[1], replayed[1], strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("keep", [False, True])
def test_a_training_step_is_the_same_bit_for_bit(scribe, keep):
    plain, replayed = training(False, 30, keep), training(True, 30, keep)
    same(plain, replayed)
    assert "launched as 1 bundles and 0 single launches" in replayed[2].explain()
    assert ("1 arrays copied" in replayed[2].explain()) is keep  # losses that are kept lie elsewhere each time
    assert scribe.launched >= 15
    assert scribe.changed >= 4 * scribe.launched  # learning rates, counts of steps and random counters


def test_numbers_that_stay_are_not_given_again(scribe):
    compiled = pg.compile(lambda x, factor: ((x * factor).sum(), x @ x))
    x = f32(np.eye(3))
    factors = [2.0] * 10 + [3.0, 3.0, 3.0]
    assert [compiled(x, factor)[0].item() for factor in factors] == [3 * factor for factor in factors]
    assert scribe.launched >= 6
    assert scribe.changed <= scribe.bundles


def test_zeros_of_both_signs_are_told_apart(scribe):
    compiled = pg.compile(lambda x, factor: (pg.copysign(x * 1.0, x * factor), x + 1.0))
    x = f32([3.0])
    signs = [compiled(x, factor)[0].item() for factor in [0.0] * 6 + [-0.0, 0.0, -0.0]]
    assert signs == [3.0] * 6 + [-3.0, 3.0, -3.0]
    assert scribe.launched


def test_ops_that_are_not_written_down_are_made_between_bundles(scribe):
    table = pg.nn.Parameter(np.ones((5, 4), np.float32))

    def f(rows):
        loss = (table[rows] * table[rows]).sum()
        loss.backward()
        out = table.grad * 2 + 1
        table.grad = None
        return out, pg.exp(out) @ pg.ones((4, 2))

    rows = pg.asarray(np.array([0, 1, 1, 3]))
    compiled = pg.compile(f)
    want = f(rows)
    for _ in range(8):
        for got, right in zip(compiled(rows), want, strict=True):
            np.testing.assert_array_equal(got.numpy(), right.numpy())
    assert re.search("launched as [1-9] bundles and [1-9] single launches", compiled.explain())
    assert scribe.launched


def test_parameters_that_are_replaced_are_seen(scribe):
    (call, arrays), (plain, others) = stepper(True), stepper(False)
    rng, again = np.random.default_rng(4), np.random.default_rng(4)
    for k in range(24):
        pg.random.seed(k)
        loss = call(*batch(rng)).item()
        pg.random.seed(k)
        assert loss == plain(*batch(again)).item()
        if k % 7 == 6:
            for some in (arrays, others):
                with pg.no_grad():
                    some[0][...] = some[0] * 0.5
    for a, b in zip(arrays, others, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    assert scribe.launched


def test_a_bad_index_is_found_and_leaves_everything_as_it_was(scribe):
    call, arrays = stepper(True)
    rng = np.random.default_rng(3)
    for _ in range(8):
        call(*batch(rng))
    before = [a.numpy() for a in arrays]
    x, y = batch(rng)
    with pytest.raises(pg.OutOfBounds, match="it is 7, but there are 3 classes"):
        call(x, y + 7 - y)
    for a, b in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(a.numpy(), b)
    launched = scribe.launched
    for _ in range(4):
        assert np.isfinite(call(x, y).item())
    assert scribe.launched > launched


@pytest.mark.parametrize("what", ["fused", "matmul"])
def test_what_fails_while_launches_are_written_down_is_said_once(scribe, what):
    scribe.failing = what
    plain = training(False, 6)
    with pytest.warns(pg.CompileWarning, match=f"could not be written down.*{what} cannot be written down") as seen:
        replayed = training(True, 6)
    assert len(seen) == 1
    same(plain, replayed)
    assert f"launched one by one: {what} cannot be written down" in replayed[2].explain()
    assert not scribe.launched


def test_a_device_that_is_lost_while_launches_are_written_down_says_so(scribe):
    scribe.failing, scribe.error = "fused", pg.DeviceLost
    with pytest.raises(pg.DeviceLost, match="fused cannot be written down"):
        training(True, 6)


def test_launches_before_the_first_number_go_ahead(scribe):
    def f(x, factor):
        for _ in range(bundles.AHEAD):
            x = pg.cumulative_sum(x)
        return pg.cumulative_sum(x * factor)

    compiled, x = pg.compile(f), f32([1.0, 2.0])
    for k in range(6):
        np.testing.assert_array_equal(compiled(x, float(k)).numpy(), f(x, float(k)).numpy())
    assert "launched as 2 bundles and 0 single launches" in compiled.explain()


def test_while_somebody_watches_launches_are_made_one_by_one(scribe):
    call, _ = stepper(True)
    rng = np.random.default_rng(3)
    for _ in range(8):
        call(*batch(rng))
    launched = scribe.launched
    assert launched

    class Watcher:
        seen = 0

        @hookimpl(wrapper=True)
        def polygrad_launch_op(self, op):
            self.seen += op != "read"
            return (yield)

    watcher = Watcher()
    REGISTRY.register(watcher)
    try:
        call(*batch(rng))
    finally:
        REGISTRY.unregister(watcher)
    assert watcher.seen
    assert scribe.launched == launched
    call(*batch(rng))
    call(*batch(rng))
    assert scribe.launched > launched


def test_counters_count_what_is_launched_together(scribe):
    x = f32(np.eye(4))
    compiled = pg.compile(lambda x: (pg.exp(x @ x).sum(), x + 1))
    for _ in range(8):
        compiled(x)
    assert scribe.launched
    with pg.launch_counter() as c:
        compiled(x)
    assert (c.fused, c.ops) == (2, 1)


def test_memory_is_counted_and_given_back(scribe):
    _, arrays, call = training(True, 30, keep=True)
    del arrays
    assert scribe.bundles
    used = pg.memory_stats("scribe:0")["used"]
    kept = int(call.explain().split(" bytes kept")[0].split()[-1])
    del call
    gc.collect()
    assert scribe.closed == scribe.bundles
    assert pg.memory_stats("scribe:0")["used"] <= used - kept


def test_a_device_that_is_closed_takes_its_bundles_along(scribe):
    compiled = pg.compile(lambda x: ((x * 2).sum(), x @ x))
    x = f32(np.eye(3))
    for _ in range(8):
        compiled(x)
    assert scribe.launched
    REGISTRY.devices["scribe:0"].close()
    x = f32(np.eye(3) * 2)
    first = Scribe.opened
    assert first is not scribe
    for _ in range(8):
        assert float(compiled(x)[0]) == 12.0
    assert first.launched
    del compiled
    gc.collect()
    assert not scribe.closed  # a bundle of a closed device is not touched again


def test_replays_are_compared_on_demand(scribe, monkeypatch):
    monkeypatch.setenv("POLYGRAD_VALIDATE", "compile:1")
    plain = training(False, 40)
    monkeypatch.setenv("POLYGRAD_VALIDATE", "compile:4")
    same(plain, training(True, 40))
    assert scribe.launched


def test_threads_may_share_a_compiled_function(scribe):
    def powers(x, k):
        product = x
        for _ in range(7):  # launches enough for copies of what each thread brings to pay
            product = product @ x
        return (x * k).sum(), product

    compiled = pg.compile(powers)
    wrong = []

    def work(n):
        with pg.device("scribe:0"):
            x = f32(np.eye(3) * n)
            for k in range(20):
                one, two = compiled(x, float(k))
                if float(one) != 3.0 * n * k or two.numpy()[0, 0] != n**8:
                    wrong.append((n, k))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(1, 5)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
    assert scribe.launched


def test_random_programs_are_the_same(scribe):
    rng = np.random.default_rng(8)
    unary = (pg.exp, pg.abs, lambda v: v.sum(axis=0, keepdims=True) + v, lambda v: v @ v.T @ v, pg.negative)

    def program(steps):
        def f(x, factor):
            values = [x, x * factor]
            for which, a, b in steps:
                values.append(unary[which](pg.clip(values[a % len(values)], -3, 3)) - values[b % len(values)])
            return values[-1], values[-2].sum()

        return f

    for _ in range(6):
        f = program([tuple(rng.integers(0, 5, 3)) for _ in range(6)])
        compiled = pg.compile(f)
        kept = []
        for k in range(20):
            x, factor = f32(rng.normal(size=(4, 4))), float(rng.integers(-2, 3))
            kept.append((compiled(x, factor), f(x, factor)))
            if k % 3 == 0:
                kept.clear()
        for got, want in kept:
            for a, b in zip(got, want, strict=True):
                np.testing.assert_array_equal(a.numpy(), b.numpy())
    assert scribe.launched
