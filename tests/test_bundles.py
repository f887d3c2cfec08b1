"""Replays on a device that writes launches down: the same bits, whatever changes between calls.

`Scribe` is such a device: the host's, behind numbers for handles; it keeps launches as Python calls in a list.
"""

import collections
import dataclasses
import gc
import itertools
import re
import threading

import numpy as np
import pytest

import polygrad as pg
from polygrad.driver import DriverBase, DriverInfo, LaunchError, hookimpl
from polygrad.driver.loader import REGISTRY
from polygrad.runtime import bundles
from polygrad.runtime.memory import Pool
from polygrad.runtime.packing import packed
from polygrad_cpu.driver import CpuDriver

REFUSED = frozenset({"write", "read", "scatter_add"})  # ops that it does not write down


class Scribe(DriverBase):
    """One device, `scribe:0`."""

    info = DriverInfo("scribe", summary="writes launches down")
    opened = None  # the instance that is open, for tests to look at

    def open(self, ordinal, options):
        self.inner = CpuDriver()
        info = self.inner.open(ordinal, options)
        self.memory, self.addresses = {}, itertools.count(4096, 64)
        self.pages, self.changing, self.failing, self.error = None, None, "", LaunchError
        self.seen = collections.Counter()  # launches by what they are
        self.bundles = self.launched = self.changed = self.closed = 0
        features = dataclasses.replace(info.features, capture=True, host_memory=False, fork="unsafe")
        for op in (*CpuDriver.ops(), "write", "read"):
            setattr(self, f"op_{op}", self.launcher_of(op))
        Scribe.opened = self
        return dataclasses.replace(info, driver="scribe", features=features, ops=frozenset(CpuDriver.ops()))

    def allocate(self, nbytes):
        handle = next(self.addresses)
        self.memory[handle] = self.inner.allocate(nbytes)
        return handle

    def free(self, handle):
        self.inner.free(self.memory.pop(handle))

    def prepare_fused(self, kernel):
        prepared = self.inner.prepare_fused(kernel)

        def launch(buffers, ints, scalars):
            buffers, scalars = [self.memory[b] for b in buffers], list(scalars)
            self.do("fused", lambda: prepared(buffers, ints, scalars))

        return launch

    def launcher_of(self, op):
        """Return the method of an op."""
        method = getattr(self.inner, f"op_{op}")

        def launch(outs, ins, attrs):
            outs, ins = [[r._replace(handle=self.memory[r.handle]) for r in some] for some in (outs, ins)]
            attrs = {k: self.memory[v] if k == "status" else v for k, v in attrs.items()}
            self.do(op, lambda: method(outs, ins, attrs))

        return launch

    def do(self, what, launch):
        """Do a launch, or write it down, or put it in the place of one that is written down."""
        self.seen[what] += 1
        if self.changing is not None:
            pages, place = self.changing
            pages[place] = launch
        elif self.pages is None:
            launch()
        elif what in REFUSED or what == self.failing:
            raise self.error(f"{what} cannot be written down")
        else:
            self.pages.append(launch)

    def capture(self):
        return Writing(self)


class Writing:
    """What `polygrad_capture` gives."""

    def __init__(self, driver):
        self.driver = driver

    def takes(self, op, outs, ins, attrs):
        return op not in REFUSED

    def begin(self):
        self.driver.pages, self.places = [], []

    def varies(self):
        self.places.append(len(self.driver.pages))

    def end(self):
        driver = self.driver
        pages, driver.pages = driver.pages, None
        driver.bundles += 1
        return Written(driver, pages, self.places)

    def abandon(self):
        self.driver.pages = None


class Written:
    """A bundle: calls in a list."""

    def __init__(self, driver, pages, places):
        self.driver, self.pages, self.places = driver, pages, places

    def launch(self):
        self.driver.launched += 1
        for page in self.pages:
            page()

    def change(self, number, launch, scalars):
        self.driver.changed += 1
        self.driver.changing = self.pages, self.places[number]
        try:
            launch()
        finally:
            self.driver.changing = None

    def close(self):
        self.driver.closed += 1
        self.pages = []


def f32(values):
    return pg.asarray(np.asarray(values, np.float32))


def net():
    pg.random.seed(3)
    return pg.nn.Sequential(
        pg.nn.Linear(6, 16), pg.nn.BatchNorm1d(16), pg.nn.ReLU(), pg.nn.Dropout(0.2), pg.nn.Linear(16, 3)
    )


@pytest.fixture
def scribe():
    """The open driver, whose device is the default one."""
    REGISTRY.register(Scribe)
    try:
        with pg.device("scribe:0"):
            pg.zeros(1).realize()
            yield Scribe.opened
    finally:
        gc.collect()
        REGISTRY.unregister(REGISTRY.load("scribe").plugin)


def stepper(compiled):
    """Return a training step with all that changes from call to call, and what it changes."""
    model = net()
    optimiser = pg.optim.AdamW(model, lr=1e-2)
    schedule = pg.optim.lr_scheduler.CosineWithWarmup(optimiser, total=30, warmup=3)
    pg.random.seed(5)

    def step(x, y):
        loss = pg.nn.cross_entropy(model(x), y)
        loss.backward()
        optimiser.step(max_norm=1.0)
        optimiser.zero_grad()
        schedule.step()
        return loss

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


def test_slices_of_one_array_are_copied_to_where_they_stay(scribe):
    data = f32(np.arange(240.0).reshape(60, 4))
    compiled = pg.compile(lambda x: (x @ x @ x @ x).sum())
    for k in range(0, 56, 2):
        start = k % 50
        want = data.numpy()[start : start + 4]
        assert compiled(data[start : start + 4]).item() == (want @ want @ want @ want).sum()
    assert "arrays copied" in compiled.explain()
    assert scribe.launched >= 10


def test_large_arrays_that_move_leave_launches_as_they_are(scribe):
    compiled = pg.compile(lambda x: pg.cumulative_sum(pg.cumulative_sum(pg.cumulative_sum(x))))
    kept = [compiled(pg.full((5 << 20,), float(k), dtype=pg.float32)) for k in range(12)]
    assert [float(a[1]) for a in kept] == [4.0 * k for k in range(12)]
    assert "launched one by one: arrays that are elsewhere at every call are too big" in compiled.explain()
    assert not scribe.launched  # the buffers are kept, so that no two calls have one


def test_arrays_with_gaps_leave_launches_as_they_are(scribe):
    data = f32(np.arange(400.0).reshape(20, 20))
    compiled = pg.compile(lambda x: (x @ x.T @ x @ x.T).sum())
    for k in range(14):
        want = data.numpy()[:, k : k + 3]
        assert compiled(data[:, k : k + 3]).item() == pytest.approx((want @ want.T @ want @ want.T).sum())
    assert "launched one by one: arrays that are elsewhere" in compiled.explain()


def test_copies_of_few_launches_do_not_pay(scribe):
    compiled = pg.compile(lambda x: (x @ x, x + 1))
    kept = [compiled(f32(np.eye(2) * k)) for k in range(14)]
    assert [float(a[0, 0]) for a, _ in kept] == [float(k * k) for k in range(14)]
    assert "launched one by one: there would be nearly as many copies" in compiled.explain()


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


def test_values_from_before_a_step_stay_with_whoever_holds_them(scribe):
    w, m = f32([[1.0, 2.0]]), f32(np.eye(2))

    def f(x):
        w[...] = w + x
        return (w @ m @ m @ m @ m @ m @ m @ m).sum()

    compiled = pg.compile(f)
    held = []
    for k in range(30):
        held.append(w + 0 if k % 2 else pg.asarray(w, copy=True))
        view = w[:, :1] if k == 9 else None
        assert compiled(f32([[1.0, 0.0]])).item() == k + 4.0
        assert view is None or view.item() == 11.0
    assert [float(h[0, 0]) for h in held] == [1.0 + k for k in range(30)]
    assert w.tolist() == [[31.0, 2.0]]
    assert scribe.launched


def test_an_optimiser_writes_over_old_values_within_one_bundle(scribe):
    w, other = (pg.nn.Parameter(f32(np.ones((3, 3)))) for _ in range(2))
    optimiser, plain = pg.optim.AdamW([w], lr=0.1), pg.optim.AdamW([other], lr=0.1)
    compiled = pg.compile(lambda g: (optimiser.step([g]), (g @ g).sum())[1])
    g, held = f32(np.eye(3)), None
    for k in range(30):
        compiled(g)
        plain.step([g])
        np.testing.assert_array_equal(w.numpy(), other.numpy())
        assert held is None or held[0].tolist() == held[1]
        held = (w.detach(), w.tolist()) if k in (12, 13) else None
    assert scribe.launched
    (capture,) = next(iter(compiled._captures.values()))
    assert all(one.active for one in capture.replay.overwrites)
    assert len(capture.replay.overwrites) == 1


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


def test_no_room_for_what_would_be_copied_leaves_launches_as_they_are(scribe, monkeypatch):
    compiled = pg.compile(lambda x: (x @ x @ x @ x).sum())
    data = f32(np.arange(240.0).reshape(60, 4))

    def call(k):
        want = data.numpy()[k : k + 4]
        return compiled(data[k : k + 4]).item() == (want @ want @ want @ want).sum()

    assert all(call(k) for k in range(10))
    settle = bundles.Bundles._settle

    def without_room(self):
        monkeypatch.setattr(Pool, "take", out_of_memory)
        settle(self)
        monkeypatch.undo()

    monkeypatch.setattr(bundles.Bundles, "_settle", without_room)
    assert all(call(k) for k in range(10, 40))
    assert "launched one by one: no room" in compiled.explain()


def out_of_memory(*_):
    raise pg.OutOfMemory("no room")


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


# ---- where values of a replay lie -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_values_that_are_there_at_once_lie_apart(seed):
    rng = np.random.default_rng(seed)
    count, launches = 60, []
    sizes = {v: int(512 * 2 ** rng.integers(0, 14)) for v in range(count)}
    hosts = {count + v: int(2**20 * rng.integers(1, 9)) for v in range(4)}
    alive: list[int] = []
    for v in range(count):
        used = [v, *rng.choice(alive, min(2, len(alive)), replace=False).tolist()]
        launches.append(used)
        alive = [a for a in (*alive, v) if rng.random() < 0.8]
    launches += [[host, int(rng.integers(count))] for host in hosts]
    found = packed(launches, sizes, hosts)
    where = {v: ("own", *place) for v, place in found.places.items()}
    where |= {v: ("host", *place) for v, place in found.guests.items()}
    assert where.keys() == sizes.keys()
    lives = {v: [k for k, used in enumerate(launches) if v in used] for v in (*sizes, *hosts)}
    for v, (kind, at, start) in where.items():
        room = found.buffers[at] if kind == "own" else hosts[at]
        assert start % 512 == 0
        assert start + sizes[v] <= room
        assert kind == "own" or lives[v][-1] < lives[at][0]
        for other, (kind_there, there, begin) in where.items():
            if other == v or (kind, at) != (kind_there, there):
                continue
            at_once = lives[v][0] <= lives[other][-1] and lives[other][0] <= lives[v][-1]
            assert not at_once or start + sizes[v] <= begin or begin + sizes[other] <= start
            assert not any(v in used and other in used for used in launches)
    most = max(sum(sizes[v] for v in sizes if lives[v][0] <= k <= lives[v][-1]) for k in range(len(launches)))
    assert sum(found.buffers) <= 1.5 * most


def test_a_replay_takes_less_memory_than_its_values_together(scribe):
    sizes = (300, 900, 700, 500, 300)
    weights = [f32(np.eye(m, n)) for m, n in itertools.pairwise(sizes)]

    def f(x):
        for w in weights:
            x = x @ w
        return x

    x = f32(np.diag(np.arange(300.0)))
    compiled = pg.compile(f)
    for _ in range(6):
        np.testing.assert_array_equal(compiled(x).numpy(), np.diag(np.arange(300.0)))
    kept = int(compiled.explain().split(" bytes kept")[0].split()[-1])
    assert kept < 1.1 * 4 * 300 * (900 + 700)  # 300 x 500 lies where 300 x 900 was


def test_memory_that_never_settles_is_written_down_seldom(scribe, monkeypatch):
    monkeypatch.setattr(bundles, "WRITTEN", 3)
    monkeypatch.setattr(bundles.Bundles, "_settle", lambda self: self._met.clear())
    w = f32(np.eye(2))
    compiled = pg.compile(lambda x: (x @ w @ w).sum())
    xs = [f32(np.eye(2) * k) for k in range(40)]
    for k in range(100):  # each twice in turn
        assert compiled(xs[k // 2 % 40]).item() == 2.0 * (k // 2 % 40)
    assert scribe.bundles <= 3 + 1 + 100 // bundles.SELDOM


def test_values_that_lie_in_results_follow_them_to_where_they_stay(scribe):
    weights = [f32(np.eye(600) * k) for k in (1, 2, 1, 2, 1, 2)]

    def f(x):
        for w in weights:
            x = x @ w
        return x

    compiled = pg.compile(f)
    x = f32(np.eye(600))
    kept = [compiled(x * float(k)) for k in range(24)]
    assert any(c.replay._guests for some in compiled._captures.values() for c in some)
    assert "arrays copied" in compiled.explain()
    for k, result in enumerate(kept):
        np.testing.assert_array_equal(result.numpy(), np.eye(600, dtype=np.float32) * 8 * k)
    assert scribe.launched


@pytest.mark.parametrize("size", [4, 5 << 20])
def test_more_memory_may_begin_to_move_later(scribe, size):
    def f(x, y):
        for _ in range(5):
            x = pg.cumulative_sum(x)
        return x.sum() + y.sum()

    compiled = pg.compile(f)
    xs, y = f32(np.arange(64.0)), f32(np.ones(size))
    kept = []
    for k in range(60):
        if k > 30:  # at first the slices move, then the other argument does too
            y = f32(np.full(size, float(k)))
            kept.append(y)
        x = xs[k % 50 : k % 50 + 4]
        want = x.numpy()
        for _ in range(5):
            want = np.cumulative_sum(want)
        assert compiled(x, y).item() == pytest.approx(want.sum() + size * (float(k) if k > 30 else 1.0))
    assert ("launched one by one" in compiled.explain()) is (size > 4)
    copies = scribe.seen["copy"]
    compiled(x, y)
    assert (scribe.seen["copy"] == copies) is (size > 4)  # what is launched one by one is read where it lies
    assert scribe.launched
