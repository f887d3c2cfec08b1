"""Gradients where formulas break: poles, kinks, ties, zeros, repeated positions, empty axes.

Here: values that mathematics or convention fixes. Not here: points where differences can be taken
(`test_gradients.py`).
"""

import math
import re

import numpy as np
import pytest

import polygrad as pg

NAN, INF = math.nan, math.inf


def leaf(value, dtype=None):
    return pg.asarray(value, dtype=dtype).requires_grad_()


def refuses(error, sentence):
    return pytest.raises(error, match=f"^{re.escape(sentence)}$")


def grad_of(function, value, dtype=None):
    return pg.grad(lambda x: pg.sum(function(x)))(pg.asarray(value, dtype=dtype)).tolist()


def test_a_zero_gradient_stays_zero_at_a_pole(device):
    assert grad_of(pg.sqrt, [0.0, 4.0]) == [INF, 0.25]
    assert grad_of(lambda x: pg.maximum(pg.sqrt(x), 1e-3), [0.0, 4.0]) == [0.0, 0.25]
    assert grad_of(lambda x: pg.where(x < 1.0, 3.0 * x, pg.sqrt(x)), [-1.0, 0.0, 0.25, 4.0]) == [3.0, 3.0, 3.0, 0.25]
    assert grad_of(lambda x: pg.where(x > 0.0, pg.log(x), 0.0), [-1.0, 0.0, 0.25, 4.0]) == [0.0, 0.0, 4.0, 0.25]

    def radius(p):
        return pg.maximum(pg.sqrt(p[:, 0] * p[:, 0] + p[:, 1] * p[:, 1]), 1e-10)

    np.testing.assert_allclose(grad_of(radius, [[0.0, 0.0], [3.0, 4.0]]), [[0.0, 0.0], [0.6, 0.8]], rtol=1e-6)


def test_ties_share_one_gradient(device):
    assert sum(grad_of(pg.max, [1.0, 3.0, 3.0, 2.0])) == 1.0
    assert grad_of(pg.max, [1.0, 3.0, 3.0, 2.0])[0] == 0.0
    assert sum(grad_of(pg.min, [4.0, 4.0, 4.0])) == pytest.approx(1.0)
    assert grad_of(lambda s: pg.max(pg.stack([s, s])), 2.0) == 1.0
    assert grad_of(lambda s: pg.maximum(s, s), 2.0) == 1.0
    assert grad_of(lambda x: pg.max(x, axis=1), [[0.0, 0.0], [5.0, 1.0]]) == [[0.5, 0.5], [1.0, 0.0]]


def test_kinks(device):
    assert grad_of(pg.abs, [-2.0, 0.0, 3.0]) == [-1.0, 0.0, 1.0]
    assert grad_of(pg.relu, [-1.0, 0.0, 2.0]) == [0.0, 0.0, 1.0]
    clipped = grad_of(lambda x: pg.clip(x, 1.0, 4.0), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0])
    assert clipped[2:4] == [1.0, 1.0]
    assert (clipped[0], clipped[5]) == (0.0, 0.0)
    assert clipped[1] == clipped[4]
    assert pg.clip(pg.asarray([NAN, 9.0]), 0.0, 1.0).tolist()[1] == 1.0
    assert math.isnan(pg.clip(pg.asarray([NAN, 9.0]), 0.0, 1.0).tolist()[0])


def test_powers_at_zero(device):
    assert grad_of(lambda x: x**2, [0.0, -3.0]) == [0.0, -6.0]
    assert grad_of(lambda x: x**1, [0.0]) == [1.0]
    assert grad_of(lambda x: x**0, [0.0, 2.0]) == [0.0, 0.0]
    assert grad_of(lambda x: x**3, [-2.0, 0.0]) == [12.0, 0.0]
    assert grad_of(lambda y: pg.pow(pg.asarray([0.0, 2.0]), y), [2.0, 3.0]) == pytest.approx([0.0, 8 * math.log(2.0)])


def test_products_with_zeros(device):
    assert grad_of(pg.prod, [2.0, 3.0, 4.0]) == pytest.approx([12.0, 8.0, 6.0])
    assert grad_of(pg.prod, [2.0, 0.0, 4.0]) == [0.0, 8.0, 0.0]
    assert grad_of(pg.prod, [2.0, 0.0, 0.0]) == [0.0, 0.0, 0.0]


def test_angles_at_the_origin(device):
    def masked(p):
        ok = p[:, 0] ** 2 + p[:, 1] ** 2 > 0
        return pg.where(ok, pg.atan2(p[:, 1], p[:, 0]), 0.0)

    np.testing.assert_allclose(grad_of(masked, [[0.0, 0.0], [1.0, 1.0]]), [[0.0, 0.0], [-0.5, 0.5]], rtol=1e-6)
    tiny, huge = 2.0**-80, 2.0**80  # their squares are no float32
    for size in (tiny, huge):
        slope = grad_of(lambda y, x=size: pg.atan2(y, pg.asarray([x], dtype="float32")), [size], "float32")
        assert slope == [pytest.approx(0.5 / size)]
    assert grad_of(pg.sinc, [0.0]) == [0.0]
    assert grad_of(pg.sinc, [0.5, 1.0]) == pytest.approx([-4 / math.pi, -1.0], rel=1e-5)


def test_large_logits(device):
    x = [[-400.0, 300.0, 450.0]]
    assert grad_of(lambda v: pg.softmax(v, axis=1), x, "float32") == [[0.0, 0.0, 0.0]]
    assert grad_of(lambda v: pg.cross_entropy(v, pg.asarray([0])), x, "float32") == [[-1.0, 0.0, 1.0]]
    assert pg.cross_entropy(pg.asarray(x, dtype="float32"), pg.asarray([0])).item() == 850.0
    equal = pg.full((1, 4), 1e8, dtype="float32")
    assert pg.cross_entropy(equal, pg.asarray([2])).item() == pytest.approx(math.log(4.0), rel=1e-6)
    assert grad_of(lambda v: pg.logsumexp(v, axis=1), [[-INF, -INF], [0.0, -INF]]) == [[0.0, 0.0], [1.0, 0.0]]


def test_positions_that_repeat_gather_their_gradients(device):
    weight = pg.asarray([0.25, 0.5, 4.0], dtype="float32")

    def at(function, value):
        return grad_of(lambda v: function(v) * weight, value, "float32")

    assert at(lambda v: v[pg.asarray([0, 0, 1])], [1.0, 2.0]) == [0.75, 4.0]
    assert at(lambda v: v[pg.asarray([-1, 1, 0])], [1.0, 2.0]) == [4.0, 0.75]
    assert at(lambda v: pg.take(v, pg.asarray([1, 1, 1]), axis=0), [1.0, 2.0]) == [0.0, 4.75]
    assert at(lambda v: pg.take_along_axis(v, pg.asarray([[0, 0, 0]]), axis=1), [[1.0, 2.0]]) == [[4.75, 0.0]]
    many = pg.asarray(np.arange(30_000) % 3)
    assert grad_of(lambda v: v[many], [1.0, 1.0, 1.0], "float32") == [10_000.0] * 3
    rows = grad_of(lambda v: v[pg.asarray([[1, 1], [3, 1]])], np.ones((4, 2)))
    assert rows == [[0.0, 0.0], [3.0, 3.0], [0.0, 0.0], [1.0, 1.0]]
    assert grad_of(lambda v: v[pg.asarray([0, 0]), pg.asarray([1, 1])], [[1.0, 2.0], [3.0, 4.0]]) == [
        [0.0, 2.0],
        [0.0, 0.0],
    ]


MATMULS = [
    ((3,), (3,)),
    ((2, 3), (3,)),
    ((3,), (3, 4)),
    ((2, 3), (3, 4)),
    ((5, 2, 3), (3, 4)),
    ((2, 3), (5, 3, 4)),
    ((5, 1, 2, 3), (4, 3, 2)),
    ((3,), (5, 3, 4)),
    ((0, 3), (3, 2)),
    ((2, 0), (0, 3)),
]


@pytest.mark.parametrize(("a", "b"), MATMULS, ids=str)
def test_matmul_gradients_for_each_rank(a, b, device, rng):
    x, y = rng.standard_normal(a), rng.standard_normal(b)
    weight = rng.standard_normal(np.matmul(x, y).shape)
    p, q = leaf(x), leaf(y)
    pg.sum((p @ q) * pg.asarray(weight)).backward()
    for array, other, kind in ((p, y, "left"), (q, x, "right")):
        value = x if kind == "left" else y
        want = np.zeros(value.shape)
        for k in np.ndindex(value.shape):
            unit = np.zeros(value.shape)
            unit[k] = 1.0
            want[k] = np.sum((np.matmul(unit, other) if kind == "left" else np.matmul(other, unit)) * weight)
        assert array.grad.shape == value.shape
        np.testing.assert_allclose(array.grad.numpy(), want, rtol=1e-5, atol=1e-6)


def test_a_scalar_to_the_power_of_zero_has_a_device(device):
    x = pg.asarray(2.0)
    assert ((x**0).item(), (x**0.0).item(), (x**0).device) == (1.0, 1.0, device)
    assert pg.grad(lambda v: v**0)(x).item() == 0.0


def both(function, x, y):
    gx, gy = pg.grad(lambda a, b: pg.sum(function(a, b)), argnums=(0, 1))(pg.asarray(x), pg.asarray(y))
    return gx.tolist(), gy.tolist()


def second(function, value):
    return grad_of(lambda x: pg.grad(lambda y: pg.sum(function(y)))(x), value)


def test_an_untaken_branch_may_be_infinite(device):
    assert grad_of(lambda x: pg.where(x > 0, 1 / x, 0.0), [0.0, 2.0]) == [0.0, -0.25]
    assert grad_of(lambda x: pg.where(x < 9.0, pg.exp(x), x), [1000.0, 0.0], "float32") == [1.0, 1.0]
    assert both(lambda x, y: pg.where(pg.isnan(y), x, x * y), [1.0, 2.0], [NAN, 3.0]) == ([1.0, 3.0], [0.0, 2.0])
    assert grad_of(lambda x: pg.where(x > 0, pg.where(x < 5, 1 / x, 0.0), x * x), [0.0, 2.0, 7.0]) == [0.0, -0.25, 0.0]
    assert grad_of(lambda x: pg.where(x[None] > 0, pg.reshape(1 / x, (1, 2)), 0.0), [0.0, 2.0]) == [0.0, -0.25]
    assert grad_of(lambda x: pg.where(x.sum() > 0, x / x.sum(), 0.0), [0.0, 0.0]) == [0.0, 0.0]
    assert second(lambda x: pg.where(x > 0, 1 / x, x * x), [0.0, 2.0]) == [2.0, 0.25]

    def direction(x):
        size = pg.sqrt(pg.sum(x * x, axis=-1, keepdims=True))
        return pg.where(size > 0, x / size, 0.0)

    np.testing.assert_allclose(grad_of(direction, [[0.0, 0.0], [3.0, 4.0]]), [[0.0, 0.0], [0.032, -0.024]], rtol=1e-4)
    with pg.Tape() as tape:
        x = pg.asarray([0.0, 2.0])
        tape.watch(x)
        y = pg.sum(pg.where(x > 0, 1 / x, 0.0))
    assert tape.gradient(y, x).tolist() == [0.0, -0.25]
    pushed = pg.jvp(lambda v: pg.where(v > 0, 1 / v, v * v), (pg.asarray([0.0, 2.0]),), (pg.ones(2, dtype=x.dtype),))[1]
    assert pushed.tolist() == [0.0, -0.25]
    with pg.detect_anomaly():  # it looks at gradients as they count
        assert grad_of(lambda v: pg.where(v > 0, pg.sqrt(v), 0.0), [4.0, 0.0]) == [0.25, 0.0]


def test_equal_and_missing_operands(device):
    assert both(pg.maximum, [1.0, 2.0], [1.0, 3.0]) == ([0.5, 0.0], [0.5, 1.0])
    assert both(pg.minimum, [1.0, 2.0], [1.0, 3.0]) == ([0.5, 1.0], [0.5, 0.0])
    assert grad_of(lambda x: pg.max_pool2d(x, 2), [[[1.0, 1.0], [1.0, 1.0]]]) == [[[0.25, 0.25], [0.25, 0.25]]]
    weight = pg.asarray([1.0, 2.0, 3.0])
    assert grad_of(lambda x: pg.sort(x) * weight, [2.0, 2.0, 1.0]) == [2.0, 3.0, 1.0]  # equal ones stay in order
    assert grad_of(pg.cumulative_max, [3.0, 3.0, 1.0]) == [3.0, 0.0, 0.0]  # the first of equal ones
    assert grad_of(pg.max, [1.0, NAN, 3.0]) == [0.0, 0.0, 0.0]


def test_lengths_and_angles_at_the_origin(device):
    assert both(pg.hypot, [0.0, 3.0, INF], [0.0, 4.0, 1.0]) == (
        pytest.approx([0.0, 0.6, 0.0]),
        pytest.approx([0.0, 0.8, 0.0]),
    )
    assert both(pg.atan2, [0.0], [0.0]) == ([0.0], [0.0])
    assert grad_of(pg.linalg.vector_norm, [0.0, 0.0]) == [0.0, 0.0]
    assert grad_of(lambda x: pg.linalg.vector_norm(x) ** 2, [0.0, 0.0]) == [0.0, 0.0]


def test_powers_of_zero_and_of_negative_numbers(device):
    powers = pg.asarray([0.0, 0.5, 1.0, 2.0, -1.0])
    assert grad_of(lambda x: x**powers, [0.0] * 5) == [0.0, INF, 1.0, 0.0, -INF]
    slopes = grad_of(lambda x: x ** pg.asarray([2.0, 3.0, 0.5, -2.0]), [-2.0] * 4)
    np.testing.assert_allclose(slopes, [-4.0, 12.0, NAN, 0.25], rtol=1e-5)
    by_exponent = grad_of(lambda y: pg.asarray([0.0, 0.0, 0.0, -2.0]) ** y, [0.0, 2.0, -1.0, 2.0])
    assert by_exponent[:3] == [0.0, 0.0, -INF]
    assert math.isnan(by_exponent[3])
    assert second(lambda x: x**2, [0.0]) == [2.0]
    assert second(lambda x: x ** pg.asarray(2.0), [0.0]) == [2.0]
    assert second(lambda x: x ** pg.asarray(1.0), [0.0]) == [0.0]


def test_running_products_with_zeros(device):
    assert grad_of(pg.cumulative_prod, [2.0, 0.0, 4.0]) == [1.0, 10.0, 0.0]
    assert grad_of(pg.cumulative_prod, [0.0, 0.0, 4.0]) == [1.0, 0.0, 0.0]
    assert pg.hessian(pg.prod)(pg.asarray([2.0, 0.0, 4.0])).tolist() == [
        [0.0, 4.0, 0.0],
        [4.0, 0.0, 2.0],
        [0.0, 2.0, 0.0],
    ]


def test_spread_of_one_element_and_of_equal_ones(device):
    assert grad_of(pg.std, [3.0]) == [0.0]
    assert grad_of(pg.std, [2.0, 2.0]) == [0.0, 0.0]
    assert grad_of(pg.var, [3.0]) == [0.0]
    assert math.isnan(grad_of(lambda x: pg.std(x, correction=1), [3.0])[0])


def test_logarithms_of_nothing(device):
    assert grad_of(pg.logsumexp, [-INF, -INF]) == [0.0, 0.0]
    assert both(pg.logaddexp, [-INF, INF, INF, 0.0], [-INF, 0.0, INF, -INF]) == (
        [0.0, 1.0, 0.5, 1.0],
        [0.0, 0.0, 0.5, 0.0],
    )
    assert second(lambda x: pg.logaddexp(x, pg.asarray([0.0])), [0.0]) == pytest.approx([0.25])
    weight = pg.asarray([1.0, 2.0])
    assert grad_of(lambda x: pg.softmax(x) * weight, [-INF, 0.0]) == [0.0, 0.0]


def test_ends_of_domains(device):
    assert [grad_of(f, [at])[0] for f, at in ((pg.log, 0.0), (pg.log1p, -1.0), (pg.asin, 1.0), (pg.atanh, 1.0))] == [
        INF
    ] * 4
    assert grad_of(pg.acos, [1.0]) == [-INF]
    assert grad_of(lambda x: 0.0 * pg.log(x), [0.0]) == [0.0]


def test_sinc_near_zero(device):
    assert grad_of(pg.sinc, [1e-8, 1e-3], "float32") == pytest.approx(
        [-(math.pi**2) / 3 * 1e-8, -(math.pi**2) / 3 * 1e-3], rel=1e-4
    )
    assert second(pg.sinc, [0.0, 1e-6]) == pytest.approx([-(math.pi**2) / 3] * 2, rel=1e-5)


def test_the_next_number_moves_with_its_first_operand(device):
    assert both(pg.nextafter, [1.0, 2.0], [5.0, 0.0]) == ([1.0, 1.0], [0.0, 0.0])
