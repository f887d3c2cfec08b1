"""Memory of replays on a device that writes launches down: what lies where, what is copied, what is given up.

Here: operands and results that are elsewhere at every call, values that launches write over, values packed together;
the device is `Scribe`. Not here: the values of replays (`test_bundles.py`).
"""

import itertools

import numpy as np
import pytest

import polygrad as pg
from polygrad.runtime import bundles
from polygrad.runtime.memory import Pool
from polygrad.runtime.packing import packed
from support.compiling import f32


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


@pytest.mark.parametrize("count", range(4, 14))
def test_a_value_that_was_held_for_some_calls_and_then_is_not_goes_on(scribe, count):
    w, m = f32([[1.0, 2.0]]), f32(np.eye(2))

    def f(x):
        w[...] = w + x
        return (w @ m @ m @ m @ m @ m @ m @ m).sum()

    compiled, x, held = pg.compile(f), f32([[1.0, 0.0]]), []
    for k in range(count + 6):
        if k < count:  # the new value lies elsewhere at each call, until it is brought to memory that stays
            held.append(w.detach())
        assert compiled(x).item() == k + 4.0
        assert w.tolist() == [[k + 2.0, 2.0]]
    assert [h.tolist() for h in held] == [[[k + 1.0, 2.0]] for k in range(count)]


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
