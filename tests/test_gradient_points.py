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
