"""Random numbers as users draw them: seeds, states, devices, ranges.

Here: `pg.random`. Not here: the distributions as functions of a key and a counter (`test_ops_randomness.py`).
"""

import numpy as np
import pytest

import polygrad as pg

DRAWS = {
    "normal": lambda **kw: pg.random.normal((7, 5), dtype="float32", **kw),
    "uniform": lambda **kw: pg.random.uniform((33,), -2.0, 3.0, dtype="float32", **kw),
    "exponential": lambda **kw: pg.random.exponential((9,), dtype="float32", **kw),
    "randint": lambda **kw: pg.random.randint(-5, 9, (50,), **kw),
    "bernoulli": lambda **kw: pg.random.bernoulli(0.3, (64,), **kw),
    "bits": lambda **kw: pg.random.bits((13,), **kw),
    "permutation": lambda **kw: pg.random.permutation(20, **kw),
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_seed_fixes_the_bits_and_what_follows_differs(device, name):
    pg.random.seed(11)
    first, second = DRAWS[name]().tolist(), DRAWS[name]().tolist()
    pg.random.seed(11)
    assert DRAWS[name]().tolist() == first
    assert second != first
    pg.random.seed(12)
    assert DRAWS[name]().tolist() != first


@pytest.mark.parametrize("name", DRAWS)
def test_all_devices_draw_the_same_bits(device, other_device, name):
    pg.random.seed(3)
    here = DRAWS[name]().numpy()
    pg.random.seed(3)
    there = DRAWS[name](device=other_device)
    assert there.device == other_device
    np.testing.assert_array_equal(here, there.numpy())


def test_a_saved_state_goes_on_where_it_was(device):
    pg.random.seed(5)
    pg.random.normal((3,))
    state = pg.random.get_state()
    following = pg.random.uniform((4,)).tolist()
    pg.random.seed(99)
    pg.random.set_state(state)
    assert pg.random.uniform((4,)).tolist() == following


def test_the_counter_is_taken_when_a_draw_is_recorded_not_when_it_is_read(device):
    pg.random.seed(5)
    a, b = pg.random.uniform((3,)), pg.random.uniform((3,))
    late, early = b.tolist(), a.tolist()
    pg.random.seed(5)
    assert [pg.random.uniform((3,)).tolist() for _ in range(2)] == [early, late]


def test_draws_stay_in_their_ranges_and_have_their_moments(device):
    pg.random.seed(1)
    x = pg.random.uniform((20_000,), -2.0, 3.0, dtype="float32").numpy()
    assert x.min() >= -2.0
    assert x.max() < 3.0
    assert abs(x.mean() - 0.5) < 0.05
    n = pg.random.normal((20_000,), 1.0, 2.0, dtype="float32").numpy()
    assert abs(n.mean() - 1.0) < 0.08
    assert abs(n.std() - 2.0) < 0.05
    k = pg.random.randint(-2, 3, (5_000,)).numpy()
    assert set(k.tolist()) == {-2, -1, 0, 1, 2}
    assert abs(pg.random.bernoulli(0.25, (20_000,)).numpy().mean() - 0.25) < 0.02
    assert sorted(pg.random.permutation(50).tolist()) == list(range(50))
