"""Sorting, running reductions, sets and searching on every device, and on devices that lack the drivers' ops.

Here: values, shapes and dtypes against NumPy, order of equal elements, NaN and -0.0, derivatives at special points,
what is refused. Not here: what is derived from the table (`test_ops_on_devices.py`, `test_gradients.py`).
"""

import dataclasses

import numpy as np
import pytest

import polygrad as pg
from polygrad.runtime.devices import state

DTYPES = [
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "bfloat16", "float32",
    "float64",
]  # fmt: skip
SHAPES = [(1,), (2,), (7,), (64,), (65,), (3, 37), (40, 70), (2, 3, 5), (1, 1500), (2, 6000)]
FLOATS = ("float16", "bfloat16", "float32", "float64")


def held(dtype, device):
    if dtype not in state(device).info.dtypes:
        pytest.skip(f"not run: needs {dtype} on {device}")
    return dtype


def values(rng, shape, dtype):
    """Return an array on the default device and its NumPy twin (float64 for bfloat16), with ties and special values."""
    wide = rng.normal(size=shape) * 6
    if dtype == "bool":
        x = pg.asarray(wide > 0)
        return x, x.numpy()
    if dtype in FLOATS:
        wide = np.where(rng.random(shape) < 0.5, np.round(wide), wide)
        for special in (np.nan, np.inf, -np.inf, 0.0, -0.0, -np.nan):
            wide = np.where(rng.random(shape) < 0.04, special, wide)
        x = pg.astype(pg.asarray(wide.astype("float32")), dtype)
        return x, (x.astype("float32") if dtype == "bfloat16" else x).numpy()
    info = np.iinfo(dtype)
    whole = np.clip(np.round(wide), max(info.min, -100), 100).astype(dtype)
    whole = np.where(rng.random(shape) < 0.05, np.asarray(info.min, dtype), whole)
    whole = np.where(rng.random(shape) < 0.05, np.asarray(info.max, dtype), whole)
    x = pg.asarray(whole)
    return x, whole


def same(got, want):
    """Whether values, -0.0 and NaN are the same."""
    got = got.astype("float32").numpy() if got.dtype == pg.bfloat16 else got.numpy()
    np.testing.assert_array_equal(got, want)
    if want.dtype.kind == "f":
        np.testing.assert_array_equal(np.signbit(got[want == 0]), np.signbit(want[want == 0]))


def descending_places(w):
    flipped = np.argsort(w[..., ::-1], axis=-1, kind="stable")[..., ::-1]
    return w.shape[-1] - 1 - flipped


@pytest.fixture
def bare(device, monkeypatch):
    """The device without any op of its driver but what moves memory: all else is made of kernels."""
    found = state(device)
    monkeypatch.setattr(found, "info", dataclasses.replace(found.info, ops=frozenset()))
    monkeypatch.setattr(found, "plans", {})
    return device


@pytest.mark.parametrize("dtype", DTYPES)
def test_sorting_is_stable_with_nan_last(dtype, device, rng):
    held(dtype, device)
    for shape in SHAPES:
        x, w = values(rng, shape, dtype)
        places = np.argsort(w, axis=-1, kind="stable")
        np.testing.assert_array_equal(pg.argsort(x).numpy(), places)
        same(pg.sort(x), np.take_along_axis(w, places, -1))
        places = descending_places(w)
        np.testing.assert_array_equal(pg.argsort(x, descending=True).numpy(), places)
        same(pg.sort(x, descending=True), np.take_along_axis(w, places, -1))


def test_values_and_positions_of_one_sort(device, rng):
    x, w = values(rng, (3, 5000), "float32")
    with pg.launch_counter() as c:
        top, places = pg.realize(*pg.topk(x, 5000, largest=False))
    assert c.ops == 1
    np.testing.assert_array_equal(places.numpy(), np.argsort(w, axis=-1, kind="stable"))
    same(top, np.sort(w, axis=-1, kind="stable"))


@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_the_first_of_long_rows_are_those_of_the_sorted_ones(dtype, device, rng):
    for n, k in ((1 << 15, 5), (40_001, 50), (100_003, 1)):
        ties = rng.integers(-20, 20, (2, n)).astype(dtype)
        rows = [ties, rng.permutation(2 * n).reshape(2, n).astype(dtype)]
        if dtype == "float32":
            rows += [np.where(rng.random((2, n)) < 1e-3, np.nan, ties), np.where(ties < 20, -np.inf, ties)]
        for w in rows:
            w = w.astype(dtype)
            top, places = pg.topk(pg.asarray(w), k)
            np.testing.assert_array_equal(places.numpy(), descending_places(w)[:, :k])
            same(top, np.take_along_axis(w, places.numpy(), -1))
            low = pg.topk(pg.asarray(w), k, largest=False)[1].numpy()
            np.testing.assert_array_equal(low, np.argsort(w, axis=-1, kind="stable")[:, :k])
    x = pg.asarray(rng.permutation(50_000).astype("float32"))
    slope = pg.grad(lambda v: pg.sum(pg.topk(v, 3)[0] * pg.asarray([1.0, 2.0, 3.0], dtype="float32")))(x)
    np.testing.assert_array_equal(slope.numpy()[np.argsort(x.numpy())[:-4:-1]], [1.0, 2.0, 3.0])
    assert pg.sum(slope).item() == 6.0


@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_long_rows_and_constant_rows(dtype, device, rng):
    held(dtype, device)
    for w in (rng.normal(size=200_003) * 1e6, np.zeros(100_000), np.full(70_000, np.nan), np.arange(99_999)[::-1] % 7):
        if dtype == "int64" and np.isnan(w).any():
            continue
        w = w.astype(dtype)
        x = pg.asarray(w)
        np.testing.assert_array_equal(pg.argsort(x).numpy(), np.argsort(w, kind="stable"))
        np.testing.assert_array_equal(pg.sort(x).numpy(), np.sort(w, kind="stable"))


@pytest.mark.parametrize("dtype", ["int64", "uint64", "float64"])
def test_elements_of_64_bits_that_no_32_hold(dtype, device, rng):
    held(dtype, device)
    for n in (65, 100_000):
        bits = rng.integers(0, 1 << 64, n, dtype=np.uint64)
        w = bits.view(dtype) if dtype != "uint64" else bits
        x = pg.asarray(w)
        np.testing.assert_array_equal(pg.argsort(x).numpy(), np.argsort(w, kind="stable"))
        np.testing.assert_array_equal(pg.sort(x).numpy(), np.sort(w, kind="stable"))


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "float16", "float32"])
def test_sorting_and_scanning_without_the_drivers_ops(dtype, bare, rng):
    held(dtype, bare)
    for shape in ((7,), (3, 37)):
        x, w = values(rng, shape, dtype)
        places = np.argsort(w, axis=-1, kind="stable")
        np.testing.assert_array_equal(pg.argsort(x).numpy(), places)
        same(pg.sort(x), np.take_along_axis(w, places, -1))
        np.testing.assert_array_equal(
            pg.cumulative_max(x, axis=-1).astype("float32").numpy(), np.maximum.accumulate(w, -1).astype("float32")
        )
        clean = np.nan_to_num(w.astype("float64"), nan=0, posinf=1, neginf=-1) if dtype in FLOATS else w
        got = pg.cumulative_sum(pg.astype(pg.asarray(clean.astype(w.dtype)), dtype), axis=-1).numpy()
        np.testing.assert_allclose(
            got.astype("float64"),
            np.cumsum(clean, axis=-1, dtype=got.dtype if got.dtype.kind != "f" else None),
            rtol=3e-3 if dtype == "float16" else 1e-5,
            atol=1e-2,
        )
        for got, want in zip(pg.nonzero(x), np.nonzero(w), strict=True):
            np.testing.assert_array_equal(got.numpy(), want)


@pytest.mark.parametrize("kind", ["sum", "prod", "max", "min"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_running_reductions(dtype, kind, device, rng):
    held(dtype, device)
    ufunc = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}[kind]
    function = getattr(pg, f"cumulative_{kind}")
    for shape in [*SHAPES, (2, 50_000)]:
        x, w = values(rng, shape, dtype)
        if kind in ("sum", "prod") and dtype in FLOATS:
            w = rng.uniform(0.99, 1.01, shape).astype("float32")
            x = pg.astype(pg.asarray(w), dtype)
            w = x.astype("float32").numpy().astype("float64")
        got = function(x, axis=-1)
        want = ufunc.accumulate(w, axis=-1, dtype=None if dtype in FLOATS or kind in ("max", "min") else got.dtype)
        narrow = dtype in ("float16", "bfloat16")
        value = (got.astype("float32") if narrow else got).numpy()
        if kind in ("max", "min") or got.dtype.kind in "iu":
            assert got.dtype == x.dtype or kind in ("sum", "prod")
            np.testing.assert_array_equal(value, want)
        else:
            limit = {"float64": 1e-9, "float32": 2e-4, "float16": 4e-3, "bfloat16": 3e-2}[dtype]
            np.testing.assert_allclose(value, want, rtol=limit)
            assert got.dtype == dtype


@pytest.mark.parametrize("dtype", ["int32", "float32", "float64"])
def test_running_reductions_of_one_long_row(dtype, device, rng):
    held(dtype, device)
    w = rng.integers(-9, 9, 300_003).astype(dtype)
    x = pg.asarray(w)
    np.testing.assert_array_equal(pg.cumulative_sum(x).numpy(), np.cumsum(w, dtype="int64"))
    rising = w + np.arange(len(w), dtype=dtype) // 5
    np.testing.assert_array_equal(pg.cumulative_max(pg.asarray(rising)).numpy(), np.maximum.accumulate(rising))


def test_running_sums_keep_infinities_and_nan(device):
    for n in (5, 300):
        w = np.ones(n, np.float32)
        w[2], w[4] = np.inf, -np.inf
        want = [1.0, 2.0, np.inf, np.inf] + [np.nan] * (n - 4)
        np.testing.assert_array_equal(pg.cumulative_sum(pg.asarray(w)).numpy(), want)


def test_cumulative_functions_follow_the_standard(device):
    x = pg.asarray([[1, 2], [3, 4]], dtype="uint8")
    assert pg.cumulative_sum(x, axis=0).dtype == pg.uint64
    assert pg.cumulative_prod(pg.asarray([2, 3], dtype="int8")).dtype == pg.int64
    assert pg.cumulative_sum(x, axis=1, include_initial=True).tolist() == [[0, 1, 3], [0, 3, 7]]
    assert pg.cumulative_prod(x, axis=0, include_initial=True).tolist() == [[1, 1], [1, 2], [3, 8]]
    assert pg.cumulative_sum(x, axis=0, dtype="float32").dtype == pg.float32
    with pytest.raises(
        pg.ShapeError, match="^cannot take the cumulative sum of shape \\[2, 2\\] without an axis: say which one$"
    ):
        pg.cumulative_sum(x)


def test_running_products_with_zeros_differentiate_to_second_order():
    with pg.device("cpu:0"):
        for w in ([2.0, 0.0, 3.0, 0.0, 4.0], [0.0, 1.0, 2.0], [0.0, 0.0, 0.0], [1.5, 2.0, 0.5]):
            pg.testing.gradcheck(pg.cumulative_prod, pg.asarray(w))
            pg.testing.gradgradcheck(pg.cumulative_prod, pg.asarray(w))


def test_a_running_product_that_overflows_on_the_way_has_a_finite_gradient(device):
    x = pg.asarray([1e-30, 1e-30, 1e30, 1e30], dtype="float32")
    g = pg.grad(lambda v: pg.cumulative_prod(v)[0])(x)
    assert g.tolist() == [1.0, 0.0, 0.0, 0.0]


def test_equal_extremes_give_the_first_the_gradient(device):
    x = pg.asarray([1.0, 3.0, 3.0, 2.0, 5.0], dtype="float32")
    assert pg.grad(lambda v: pg.sum(pg.cumulative_max(v)))(x).tolist() == [1.0, 3.0, 0.0, 0.0, 1.0]
    assert pg.grad(lambda v: pg.sum(pg.cumulative_min(v)))(-x).tolist() == [1.0, 3.0, 0.0, 0.0, 1.0]
    y = pg.asarray([1.0, np.nan, 9.0], dtype="float32")
    assert pg.grad(lambda v: pg.sum(pg.cumulative_max(v)))(y).tolist() == [1.0, 2.0, 0.0]


def test_running_logsumexp_of_nothing_yet(device):
    x = pg.asarray([-np.inf, 0.0, -np.inf, 800.0], dtype="float32")
    assert pg.cumulative_logsumexp(x).tolist() == [-np.inf, 0.0, 0.0, 800.0]
    assert pg.grad(lambda v: pg.sum(pg.cumulative_logsumexp(v)[1:3]))(x).tolist() == [0.0, 2.0, 0.0, 0.0]


def test_sorted_values_differentiate_by_their_positions(device):
    x = pg.asarray([3.0, 1.0, 2.0, 1.0], dtype="float32")
    weights = pg.asarray([1.0, 10.0, 100.0, 1000.0], dtype="float32")
    assert pg.grad(lambda v: pg.sum(pg.sort(v) * weights))(x).tolist() == [1000.0, 1.0, 100.0, 10.0]
    assert pg.grad(lambda v: pg.sum(pg.sort(v, descending=True) * weights))(x).tolist() == [1.0, 100.0, 10.0, 1000.0]
    assert pg.grad(lambda v: pg.sum(pg.topk(v, 2)[0] * weights[:2]))(x).tolist() == [1.0, 0.0, 10.0, 0.0]
    # Recorded after the fact: the sort that kept no positions is done again.
    y = pg.sort(x)
    assert pg.jvp(lambda v: pg.sort(v), (x,), (weights,))[1].tolist() == [10.0, 1000.0, 100.0, 1.0]
    assert y.tolist() == [1.0, 1.0, 2.0, 3.0]


def test_unique_values_differentiate_by_the_first_of_each(device):
    x = pg.asarray([3.0, 1.0, 3.0, 2.0], dtype="float32")
    weights = pg.asarray([1.0, 10.0, 100.0], dtype="float32")
    assert pg.grad(lambda v: pg.sum(pg.unique_values(v) * weights))(x).tolist() == [100.0, 1.0, 0.0, 10.0]


@pytest.mark.parametrize("dtype", ["bool", "int16", "uint64", "float16", "float32", "float64"])
def test_sets(dtype, device, rng):
    held(dtype, device)
    for shape in ((1,), (50,), (4, 90), (5000,)):
        x, w = values(rng, shape, dtype)
        want = np.unique(w, return_index=True, return_inverse=True, return_counts=True, equal_nan=False)
        got = pg.unique_all(x)
        assert got._fields == ("values", "indices", "inverse_indices", "counts")
        missing = int(np.isnan(w).sum()) if w.dtype.kind == "f" else 0
        np.testing.assert_array_equal(got.values.numpy(), want[0])
        np.testing.assert_array_equal(got.counts.numpy(), want[3])
        assert got.inverse_indices.shape == shape
        np.testing.assert_array_equal(got.values.numpy()[got.inverse_indices.numpy()], w)
        kept = len(want[0]) - missing
        np.testing.assert_array_equal(got.indices.numpy()[:kept], want[1][:kept])
        assert sorted(got.indices.numpy()[kept:]) == sorted(np.flatnonzero(w != w))
        same(pg.unique_values(x)[:kept], w.reshape(-1)[want[1][:kept]])
        assert pg.unique_counts(x)._fields == ("values", "counts")
        assert pg.unique_inverse(x)._fields == ("values", "inverse_indices")


def test_sets_of_nothing(device):
    found = pg.unique_all(pg.zeros((0, 3), dtype="float32"))
    assert [f.shape for f in found] == [(0,), (0,), (0, 3), (0,)]
    assert found.values.dtype == pg.float32
    assert found.counts.dtype == pg.int64


def test_is_in(device, rng):
    for m in (3, 400):
        x, y = rng.integers(0, 500, (30, 7)), rng.integers(0, 500, m)
        for invert in (False, True):
            got = pg.isin(pg.asarray(x), pg.asarray(y), invert=invert)
            np.testing.assert_array_equal(got.numpy(), np.isin(x, y, invert=invert))
    assert pg.isin(pg.asarray([1.0, np.nan]), pg.asarray([np.nan, 1.0])).tolist() == [True, False]
    assert pg.isin(pg.asarray([0.0, 2.0]), -0.0).tolist() == [True, False]
    assert pg.isin(3, pg.asarray([1, 3])).tolist() is True


@pytest.mark.parametrize("side", ["left", "right"])
def test_searching_what_is_sorted(side, device, rng):
    for n in (1, 2, 31, 32, 33, 1000):
        w = np.sort(np.round(rng.normal(size=n) * 8)).astype("float32")
        w[-1] = np.nan if n > 2 else w[-1]
        v = np.concatenate([np.round(rng.normal(size=20) * 8), [np.nan, np.inf, -np.inf]]).astype("float32")
        got = pg.searchsorted(pg.asarray(w), pg.asarray(v), side=side)
        np.testing.assert_array_equal(got.numpy(), np.searchsorted(w, v, side))
        assert got.dtype == pg.int64
    order = rng.permutation(9)
    x = np.empty(9)
    x[order] = np.arange(9.0)
    assert pg.searchsorted(pg.asarray(x), 4, side=side, sorter=pg.asarray(order)).item() == (4 if side == "left" else 5)


def test_where_elements_are_not_zero(device, rng):
    for shape, density in (
        ((1,), 1.0),
        ((7,), 0.5),
        ((30, 41), 0.1),
        ((3, 4, 5), 0.9),
        ((100_001,), 0.3),
        ((64, 3), 0.0),
    ):
        w = (rng.random(shape) < density) * rng.normal(size=shape)
        found = pg.nonzero(pg.asarray(w.astype("float32")))
        assert isinstance(found, tuple)
        for got, want in zip(found, np.nonzero(w), strict=True):
            assert got.dtype == pg.int64
            np.testing.assert_array_equal(got.numpy(), want)
    with pytest.raises(
        pg.ShapeError, match="^cannot find what is not zero in a 0-d array: reshape it to one axis first$"
    ):
        pg.nonzero(pg.asarray(1.0))


def test_repeating_by_an_array_of_counts(device):
    x = pg.asarray([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], dtype="float32")
    counts = pg.asarray([2, 0, 3])
    assert pg.repeat(x, counts, axis=1).tolist() == [[1.0, 1.0, 3.0, 3.0, 3.0], [4.0, 4.0, 6.0, 6.0, 6.0]]
    assert pg.grad(lambda v: pg.sum(pg.repeat(v, counts, axis=1)))(x).tolist() == [[2.0, 0.0, 3.0]] * 2
    assert pg.repeat(x, pg.asarray(2), axis=0).shape == (4, 3)
    assert pg.repeat(x, pg.asarray([0, 0, 0]), axis=1).shape == (2, 0)
    with pytest.raises(pg.ShapeError, match="^cannot repeat an element -1 times: counts must not be negative$"):
        pg.repeat(x, pg.asarray([1, -1, 1]), axis=1)
    with pytest.raises(
        pg.ShapeError,
        match="^cannot repeat 3 elements along axis 1 by float64\\[3\\]: give one count, or 3, of an integer dtype$",
    ):
        pg.repeat(x, pg.asarray([1.0, 1.0, 1.0]), axis=1)


def test_first_extremes_of_long_rows(device, rng):
    for n in (1 << 16, (1 << 16) + 1, 100_003):
        base = rng.normal(size=(2, n)).astype("float32")
        for w in (base, np.round(base), np.zeros_like(base)):
            x = pg.asarray(w)
            assert pg.argmax(x, axis=1).tolist() == w.argmax(1).tolist()
            assert pg.argmin(x, axis=-1, keepdims=True).tolist() == w.argmin(1, keepdims=True).tolist()
        for place in (0, n // 2, n - 1):
            w = base.copy()
            w[0, place], w[1, place] = np.nan, np.inf
            assert pg.argmax(pg.asarray(w), axis=1).tolist() == [place, place]
            assert pg.argmin(pg.asarray(w), axis=1).tolist() == w.argmin(1).tolist()


def test_long_rows_and_searches_without_ops_of_the_driver(bare, rng):
    w = np.round(rng.normal(size=(2, 70_000)) * 100).astype("float32")
    w[0, 40_000:] = np.nan
    x = pg.asarray(w)
    assert pg.argmax(x, axis=1).tolist() == w.argmax(1).tolist()
    assert pg.argmin(x, axis=1).tolist() == w.argmin(1).tolist()
    ordered, wanted = np.sort(w[1, :300]), w[:, :50]
    for side in ("left", "right"):
        found = pg.searchsorted(pg.asarray(ordered), pg.asarray(wanted), side=side)
        np.testing.assert_array_equal(found.numpy(), np.searchsorted(ordered, wanted, side))


def test_a_search_in_a_row_larger_than_a_cache(device, rng):
    ordered = np.sort(np.round(rng.normal(size=300_000) * 1000).astype("float32"))
    wanted = np.round(rng.normal(size=150_000) * 1000).astype("float32")
    wanted[::1000], wanted[1::1000], wanted[2::1000] = np.nan, np.inf, -np.inf
    for side in ("left", "right"):
        found = pg.searchsorted(pg.asarray(ordered), pg.asarray(wanted), side=side)
        np.testing.assert_array_equal(found.numpy(), np.searchsorted(ordered, wanted, side))


@pytest.mark.parametrize("rows", [False, True])
def test_a_search_for_each_example(rows, device, rng):
    """In a row that all share, and in one of its own; with the driver's op."""
    ordered = np.sort(np.round(rng.normal(size=(4, 60)) * 9), axis=-1)
    wanted = np.round(rng.normal(size=(4, 3, 5)) * 9)
    given = ordered if rows else ordered[0]
    found = pg.vmap(lambda a, b: pg.searchsorted(a, b, side="right"), in_axes=(0 if rows else None, 0))(
        pg.asarray(given), pg.asarray(wanted)
    )
    want = [np.searchsorted(a, v, "right") for a, v in zip(ordered if rows else [given] * 4, wanted, strict=True)]
    np.testing.assert_array_equal(found.numpy(), want)
    shared = pg.vmap(lambda a: pg.searchsorted(a, pg.asarray(wanted[0])))(pg.asarray(ordered))
    np.testing.assert_array_equal(shared.numpy(), [np.searchsorted(a, wanted[0]) for a in ordered])


def test_what_has_no_order_is_refused(device):
    z = pg.asarray([1j, 2.0])
    for function in (pg.sort, pg.argsort, lambda v: pg.topk(v, 1), lambda v: pg.searchsorted(v, v), pg.argmax):
        with pytest.raises(pg.DTypeError, match="complex"):
            function(z)
    with pytest.raises(pg.ShapeError, match="^cannot take 4 elements along axis 0 of shape \\[3\\]: there are 3$"):
        pg.topk(pg.asarray([1.0, 2.0, 3.0]), 4)
    with pytest.raises(pg.ShapeError, match="^cannot search from side 'middle': it is 'left' or 'right'$"):
        pg.searchsorted(pg.asarray([1.0]), 1.0, side="middle")


def test_sets_of_complex_numbers(device):
    dtype = "complex128" if "float64" in pg.__array_namespace_info__().dtypes(device=device) else "complex64"
    w = np.asarray([1 + 1j, 2, 1 + 1j, 3j, 2, 1 - 1j, complex(np.nan, 1), complex(np.nan, 1)], dtype)
    found = pg.unique_all(pg.asarray(w))
    np.testing.assert_array_equal(found.values.numpy()[found.inverse_indices.numpy()], w)
    assert sorted(found.counts.tolist()) == [1, 1, 1, 1, 2, 2]
    assert [int(k) for k in pg.nonzero(pg.asarray([0j, 1j, 1.0]))[0].tolist()] == [1, 2]
    assert (
        pg.isin(pg.asarray(w), pg.asarray([2 + 0j], dtype=dtype)).tolist()
        == [False, True, False, False, True] + [False] * 3
    )
    np.testing.assert_allclose(pg.cumulative_prod(pg.asarray(w[:6])).numpy(), np.cumprod(w[:6]), rtol=1e-5)
    np.testing.assert_allclose(pg.cumulative_sum(pg.asarray(w[:6])).numpy(), np.cumsum(w[:6]), rtol=1e-5)


def test_vmap_over_ordered_functions_and_its_refusal(device, rng):
    x = pg.asarray(rng.normal(size=(3, 5)).astype("float32"))
    for function in (pg.sort, pg.argsort, pg.cumulative_prod, pg.cumulative_max, lambda v: pg.topk(v, 2)[1]):
        want = np.stack([function(row).numpy() for row in x])
        np.testing.assert_allclose(pg.vmap(function)(x).numpy(), want, rtol=1e-5)
    with pytest.raises(pg.CaptureError, match="^cannot look at a value that pg.vmap maps over"):
        pg.vmap(pg.unique_values)(x)
