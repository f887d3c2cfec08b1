"""Updates that return a new array: ``x.at[key].add(v)`` and its like, against NumPy, with gradients.

Here: values, duplicates, ties, gradients to second order, every kind of key.
Not here: writing in place (`test_indexing.py`, `test_views.py`).
"""

import numpy as np
import pytest

import polygrad as pg
from polygrad.testing import gradcheck, gradgradcheck

HOW = {
    "add": np.add.at,
    "subtract": np.subtract.at,
    "multiply": np.multiply.at,
    "divide": np.divide.at,
    "min": np.minimum.at,
    "max": np.maximum.at,
    "power": np.power.at,
}
ROWS = [1, 3, 1, -1, 1]
KEYS = {
    "row": 1,
    "block": (slice(None, None, -2), slice(1, 3)),
    "new axis": (None, ..., 0),
    "rows": (np.asarray(ROWS),),
    "elements": (np.asarray([0, 2, 0]), np.asarray([1, 1, 1])),
    "mixture": (slice(1, None), np.asarray([[0, 2], [2, 2]])),
    "mask": (np.arange(12).reshape(4, 3) % 5 < 2,),
    "nothing": (slice(2, 2),),
    "no rows": (np.asarray([], int),),
}


def key_of(key):
    return tuple(pg.asarray(k) if isinstance(k, np.ndarray) else k for k in key) if isinstance(key, tuple) else key


@pytest.mark.parametrize("how", HOW)
def test_updates_take_all_values_as_in_numpy(device, how, rng, fewer):
    for dtype in ("float32", "int32"):
        if dtype == "int32" and how in ("divide", "power"):
            continue
        value = rng.integers(1, 5, (4, 3)).astype(dtype)
        for name in fewer([*KEYS, "mixture"]) if not device.startswith("cpu") else KEYS:
            key = KEYS[name]
            new = rng.integers(1, 4, value[key].shape).astype(dtype)
            for given in (new, 2):
                want = value.copy()
                HOW[how](want, key, given)
                x = pg.asarray(value)
                got = getattr(x.at[key_of(key)], how)(pg.asarray(given) if given is new else given)
                assert got.dtype is x.dtype
                np.testing.assert_allclose(got.numpy(), want, rtol=1e-6, err_msg=f"{name} {dtype}")
                np.testing.assert_array_equal(x.numpy(), value)


def test_set_keeps_the_last_value_and_get_and_apply_read(device):
    x = pg.asarray(np.arange(8.0).reshape(4, 2), dtype="float32")
    last = x.at[pg.asarray([1, 3, 1])].set(pg.asarray([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], dtype="float32"))
    assert last.tolist() == [[0.0, 1.0], [5.0, 6.0], [4.0, 5.0], [3.0, 4.0]]
    assert x.at[1:, 0].set(9).tolist() == [[0.0, 1.0], [9.0, 3.0], [9.0, 5.0], [9.0, 7.0]]
    assert x.at[[0, 2]].get().tolist() == [[0.0, 1.0], [4.0, 5.0]]
    assert x.at[x > 5.0].apply(lambda v: -v).tolist() == [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0], [-6.0, -7.0]]
    assert x.at[...].set(1.0).tolist() == [[1.0, 1.0]] * 4
    many = np.arange(3000) % 7
    counted = pg.zeros(7, dtype="int64").at[pg.asarray(many)].add(1)
    assert counted.tolist() == np.bincount(many).tolist()
    assert pg.zeros(7, dtype="int64").at[pg.asarray(many)].set(np.arange(3000)).tolist() == [
        int(np.flatnonzero(many == k)[-1]) for k in range(7)
    ]


def test_maxima_and_minima_of_bools_and_nans(device):
    flags = pg.asarray([False, False, True])
    assert flags.at[pg.asarray([0, 0])].max(pg.asarray([True, False])).tolist() == [True, False, True]
    assert flags.at[pg.asarray([2, 0])].min(pg.asarray([False, True])).tolist() == [False, False, False]
    with pytest.raises(pg.DTypeError, match="bool array"):
        flags.at[pg.asarray([0])].add(True)
    x = pg.asarray([1.0, 2.0], dtype="float32")
    top = x.at[pg.asarray([0, 0, 1])].max(pg.asarray([3.0, np.nan, 1.0], dtype="float32"))
    assert np.isnan(top.numpy()[0])
    assert top.tolist()[1] == 2.0


@pytest.mark.parametrize("how", ["set", *HOW])
def test_updates_differentiate_by_the_array_and_by_the_values(device, how, rng, fewer, float_dtype):
    if float_dtype is not pg.float64:
        pytest.skip("not run: needs float64")
    for name in ("block", "rows", "mixture", "mask") if device.startswith("cpu") else ("rows",):
        key = KEYS[name]
        at = key_of(key)
        x = pg.asarray(rng.uniform(0.5, 1.5, (4, 3)))
        v = pg.asarray(rng.uniform(0.5, 1.5, np.zeros((4, 3))[key].shape))

        def f(x, v, at=at):
            return getattr(x.at[at], how)(v)

        gradcheck(f, x, v)
        if name != "mask":
            gradgradcheck(f, x, v)


def test_ties_share_the_gradient(device):
    x, v = pg.asarray([2.0, 1.0], dtype="float32"), pg.asarray([2.0, 2.0, 0.0], dtype="float32")
    at = pg.asarray([0, 0, 1])
    left, right = pg.grad(lambda x, v: pg.sum(x.at[at].max(v)), argnums=(0, 1))(x, v)
    assert left.tolist() == [0.5, 1.0]
    assert right.tolist() == [0.25, 0.25, 0.0]


def test_products_differentiate_right_beside_zeros(device):
    x, v = pg.asarray([3.0, 2.0, 1.0], dtype="float32"), pg.asarray([0.0, 5.0, 0.0, 0.0, 7.0], dtype="float32")
    at = pg.asarray([0, 0, 1, 1, 2])
    out = x.at[at].multiply(v)
    assert out.tolist() == [0.0, 0.0, 7.0]
    left, right = pg.grad(lambda x, v: pg.sum(x.at[at].multiply(v)), argnums=(0, 1))(x, v)
    assert left.tolist() == [0.0, 0.0, 7.0]
    assert right.tolist() == [15.0, 0.0, 0.0, 0.0, 1.0]


def test_a_bad_index_is_reported(device):
    for how in ("set", "add", "max"):
        out = getattr(pg.zeros(3, dtype="float32").at[pg.asarray([0, 3])], how)(1.0)
        with pytest.raises(IndexError, match="index 3 is out of range for an axis of size 3"):
            out.numpy()
    with pytest.raises(ValueError, match=r"cannot assign shape \[3\] to a place of shape \[2\]"):
        pg.zeros(3).at[pg.asarray([0, 1])].add([1.0, 2.0, 3.0])
