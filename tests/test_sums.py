"""How accurate long sums of float32 are on every device: total, along rows, along columns, running, inside of kernels.

Here: errors in units of float32's epsilon, against float64; what a running sum makes of infinities.
Not here: times (`benchmarks/sums.py`), other dtypes (the conformance suite), the renderer (`test_render_sums.py`).

Each element is the same number in the worst of these, since then each addition rounds the same way: one accumulator
would be 10^5 epsilons off.
"""

import numpy as np
import pytest

import polygrad as pg

EPSILON = 2.0**-23
TENTH = float(np.float32(0.1))
FEW = 12  # epsilons: as many as NumPy's order of additions may cost


def tenths(*shape):
    return pg.full(shape, 0.1, dtype=pg.float32)


def ramp(*shape):
    """Numbers from 0 to 1 that leave no pattern, and their float64 twins."""
    rng = np.random.default_rng(5)
    wide = rng.random(shape, dtype=np.float32)
    return pg.asarray(wide), wide.astype(np.float64)


def assert_close(got, right):
    """Compare with a result of positive terms."""
    error = np.max(np.abs(got.numpy().astype(np.float64) - right) / np.abs(right)) / EPSILON
    assert error <= FEW, f"{error} epsilons"


@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((3_000_000,), None),
        ((4, 700_000), 1),
        ((700_000, 4), 0),
        ((100_000, 40), 0),
        ((50, 300_000), 1),
        ((60, 5, 9000), (0, 2)),
        ((20_000, 5, 23), (0, 2)),
        ((300, 7, 300, 3), (0, 2)),
    ],
)
def test_a_long_sum_of_equal_numbers(device, shape, axis):
    x = tenths(*shape)
    axes = range(len(shape)) if axis is None else np.atleast_1d(axis)
    count = float(np.prod([shape[k] for k in axes]))
    assert_close(pg.sum(x, axis=axis), np.float64(TENTH * count))
    assert_close(pg.mean(x, axis=axis), np.float64(TENTH))
    assert_close(pg.sum(x * x, axis=axis), np.float64(float(np.float32(TENTH * TENTH)) * count))


@pytest.mark.parametrize(("shape", "axis"), [((2_000_003,), 0), ((3, 400_001), 1), ((400_001, 3), 0)])
def test_a_long_sum_of_other_numbers(device, shape, axis):
    x, wide = ramp(*shape)
    assert_close(pg.sum(x, axis=axis), wide.sum(axis=axis))
    assert_close(pg.var(x, axis=axis), wide.var(axis=axis))
    assert_close(pg.linalg.vector_norm(x, axis=axis), np.sqrt((wide**2).sum(axis=axis)))
    assert_close(pg.sum(pg.sqrt(x) * x, axis=axis), (np.sqrt(wide) * wide).sum(axis=axis))


def test_a_number_that_is_read_again_and_again(device):
    one = pg.broadcast_to(pg.full((1,), 0.1, dtype=pg.float32), (20_000_000,))
    assert_close(pg.sum(one), np.float64(2e7 * TENTH))


def test_a_mask_and_a_running_index_inside_of_the_sum(device):
    index = pg.arange(1_500_000, dtype=pg.int32)
    x = pg.where(index % 3 == 0, tenths(1_500_000), pg.zeros((), dtype=pg.float32))
    assert_close(pg.sum(x), np.float64(5e5 * TENTH))


def test_the_parts_of_a_softmax_over_a_long_row(device):
    x, wide = ramp(2, 600_000)
    parts = pg.nn.softmax(x, axis=-1)
    right = np.exp(wide - wide.max(axis=-1, keepdims=True))
    assert_close(parts, right / right.sum(axis=-1, keepdims=True))
    assert_close(pg.sum(parts, axis=-1), np.ones(2))


def test_a_gradient_that_is_a_long_sum(device):
    x = tenths(500_000, 3)
    slope = pg.grad(lambda w: pg.sum(x * w))(pg.ones((3,), dtype=pg.float32))
    assert_close(slope, np.full(3, 5e5 * TENTH))


@pytest.mark.parametrize("shape", [(1_500_000,), (3, 300_007), (500, 400), (300_000, 2)])
def test_a_running_sum(device, shape):
    x = tenths(*shape)
    assert_close(pg.cumulative_sum(x, axis=-1), np.cumsum(np.full(shape, TENTH), axis=-1))
    assert_close(pg.cumulative_sum(x, axis=0), np.cumsum(np.full(shape, TENTH), axis=0))
    y, wide = ramp(*shape)
    assert_close(pg.cumulative_sum(y, axis=-1), np.cumsum(wide, axis=-1))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("special", [np.inf, -np.inf, np.nan])
def test_a_running_sum_is_finite_up_to_the_first_number_that_is_not(device, dtype, special):
    if dtype not in pg.__array_namespace_info__().dtypes(device=device):
        pytest.skip(f"not run: needs {dtype} on {device}")
    for n, at in ((70, 3), (5000, 4098), (300_000, 200_005), (300_000, 299_999)):
        x = np.ones(n, dtype)
        x[at] = special
        with np.errstate(invalid="ignore"):
            np.testing.assert_array_equal(pg.cumulative_sum(pg.asarray(x)).numpy(), np.cumsum(x))
