"""Positions of extremes of what is computed, which a kernel may compute again on its way to them.

Here: argmax, argmin, topk, sort, searchsorted and unique of sums, softmax and functions; what is equal to a maximum.
Not here: these functions of what is in memory (`test_ordering.py`); gradients of extremes (`test_gradient_points.py`).

A value that was added up in another order, or by another function for single elements than for vectors, is equal to no
maximum: the position would be out of range, and the mask of the maxima empty.
"""

import numpy as np
import pytest

import polygrad as pg

VALUES = {
    "a softmax": lambda x: pg.nn.softmax(x, axis=-1),
    "shares": lambda x: x / pg.sum(x, axis=-1, keepdims=True),
    "a function": lambda x: pg.exp(x) * 1.5,
    "sums": lambda x: pg.sum(x[..., None] * pg.asarray([0.1, 0.7, 1.3], dtype=x.dtype), axis=-1),
    "standard scores": lambda x: (x - pg.mean(x, axis=0)) / pg.std(x, axis=0),
}
SHAPES = [(301, 9), (11, 70, 37)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("what", VALUES)
def test_what_is_equal_to_a_maximum_that_was_looked_at_stays_equal(device, rng, what, shape):
    x = pg.asarray(rng.random(shape, dtype=np.float32))
    for axis in (-1, 0):
        v = VALUES[what](x)
        peak = pg.max(v, axis=axis, keepdims=True).realize()
        hits = pg.sum(pg.astype(v == peak, pg.int32), axis=axis)
        assert hits.numpy().min() >= 1, axis


@pytest.mark.parametrize("what", VALUES)
def test_the_position_of_an_extreme_is_that_of_the_value(device, fewer, rng, what):
    for shape, axis in fewer([((300, 9), 1), ((2, 70_001), 1), ((40_003, 3), 0), ((3, 50, 7), None)]):
        x = pg.asarray(rng.random(shape, dtype=np.float32))
        if what == "sums" and x.size > 100_000:
            continue
        for name in ("argmax", "argmin"):
            found = getattr(pg, name)(VALUES[what](x), axis=axis).numpy()
            v = VALUES[what](x).numpy()
            flat = v.reshape(-1) if axis is None else v
            k = 0 if axis is None else axis
            assert found.min() >= 0
            assert found.max() < flat.shape[k]
            got = np.take_along_axis(flat, np.expand_dims(found, k), k).squeeze(k)
            right = getattr(flat, name[3:])(axis=k)
            np.testing.assert_allclose(got, right, rtol=0, atol=4 * 2.0**-23 * np.abs(v).max())


@pytest.mark.parametrize("what", ["a softmax", "sums"])
def test_orders_of_what_is_computed_are_permutations(device, rng, what):
    x = pg.asarray(rng.random((40, 130), dtype=np.float32))
    v = VALUES[what](x)
    exact = v.numpy()
    order = pg.argsort(VALUES[what](x), axis=-1).numpy()
    np.testing.assert_array_equal(np.sort(order, axis=-1), np.broadcast_to(np.arange(130), (40, 130)))
    values, places = pg.topk(VALUES[what](x), 5)
    np.testing.assert_array_equal(np.take_along_axis(exact, places.numpy(), -1), values.numpy())
    flat = VALUES[what](x).reshape(-1)
    before = pg.searchsorted(pg.sort(flat), flat).numpy()
    np.testing.assert_array_equal(before, np.searchsorted(np.sort(exact.reshape(-1)), exact.reshape(-1)))
    every = pg.unique_all(VALUES[what](x))
    np.testing.assert_array_equal(every.values.numpy()[every.inverse_indices.numpy()].reshape(exact.shape), exact)
