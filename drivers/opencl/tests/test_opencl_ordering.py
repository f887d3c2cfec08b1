"""Running reductions, sorting and finding what is true, in both ways that work is given out.

Here: the driver's ops against NumPy, as for a CPU and as for a GPU, at any offset. Not here: what is made of them.
"""

import numpy as np
import pytest

from support.operands import drawn, put, take

cl = pytest.importorskip("pyopencl", reason="not run: needs pyopencl")

from polygrad_opencl import ordering_source  # noqa: E402  the package is looked for first

SHAPES = [(1,), (3,), (64,), (65,), (5, 130), (2, 3, 40), (1, 4097), (3, 9000), (1, 50001), (7, 4100)]


@pytest.fixture(params=["cpu", "gpu"])
def driver(driver, request, monkeypatch):
    monkeypatch.setattr(driver.ordering, "chunked", request.param == "cpu")
    return driver


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "int32", "uint64", "float16", "float32", "float64"])
def test_a_sort_is_numpys_stable_one(driver, dtype):
    if dtype not in ordering_source.TYPES or (dtype == "float64" and not driver.session.float64):
        pytest.skip(f"not run: needs {dtype}")
    rng = np.random.default_rng(3)
    for shape in SHAPES:
        x = drawn(rng, shape, dtype)
        source = put(driver, x, dtype)
        values, places = put(driver, np.zeros_like(x), dtype), put(driver, np.zeros(shape, np.int64), "int64")
        driver.op_sort([values, places], [source], {})
        want = np.argsort(x, axis=-1, kind="stable")
        np.testing.assert_array_equal(take(driver, places), want)
        bits = np.dtype(f"u{x.dtype.itemsize}")
        got = take(driver, values).view(bits)
        np.testing.assert_array_equal(got, np.take_along_axis(x, want, -1).view(bits))
        driver.free(source.handle)


@pytest.mark.parametrize("kind", ["sum", "prod", "max", "min"])
@pytest.mark.parametrize("dtype", ["int8", "uint32", "float16", "float32"])
def test_a_scan_is_numpys_accumulate(driver, dtype, kind):
    ufunc = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}[kind]
    rng = np.random.default_rng(4)
    for shape in SHAPES:
        x = drawn(rng, shape, dtype)
        if dtype.startswith("float") and kind in ("sum", "prod"):
            x = rng.uniform(0.999, 1.001, shape).astype(dtype)
        source, out = put(driver, x, dtype), put(driver, np.zeros_like(x), dtype)
        driver.op_scan([out], [source], {"kind": kind})
        got = take(driver, out)
        driver.free(source.handle)
        if dtype.startswith("float") and kind in ("sum", "prod"):
            want = ufunc.accumulate(x.astype(np.float64), axis=-1)
            np.testing.assert_allclose(got, want, rtol=2e-3 if dtype == "float16" else 1e-4)
        else:
            np.testing.assert_array_equal(got, ufunc.accumulate(x, axis=-1, dtype=x.dtype))


def test_a_scan_that_starts_over_in_every_row(driver):
    x = np.ones((300, 5000), np.float32)
    source, out = put(driver, x, "float32"), put(driver, np.zeros_like(x), "float32")
    driver.op_scan([out], [source], {"kind": "sum"})
    np.testing.assert_array_equal(take(driver, out), np.cumsum(x, axis=1))
    driver.free(source.handle)


def test_positions_of_what_is_true(driver):
    rng = np.random.default_rng(5)
    for n, density in ((1, 1.0), (63, 0.5), (4096, 0.1), (100_001, 0.7)):
        mask = rng.random(n) < density
        mask[-1] = True
        source, out = put(driver, mask, "bool"), put(driver, np.zeros(mask.sum(), np.int64), "int64")
        driver.op_nonzero([out], [source], {})
        np.testing.assert_array_equal(take(driver, out), np.flatnonzero(mask))
        driver.free(source.handle)


DTYPES = ["bool", "int8", "uint16", "int32", "uint64", "float16", "float32", "float64"]


@pytest.mark.parametrize("kind", ["max", "min"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_an_extreme_is_numpys_first_one(driver, dtype, kind):
    if dtype == "float64" and not driver.session.float64:
        pytest.skip(f"not run: needs {dtype}")
    rng = np.random.default_rng(6)
    for shape in (*SHAPES, (2, 100_003)):
        x = drawn(rng, shape, dtype)
        if dtype.startswith("float") and len(shape) > 1:
            x[0] = np.where(np.isnan(x[0]), 0, x[0])  # a row without NaN
        source, out = put(driver, x, dtype), put(driver, np.zeros(shape[:-1], np.int64), "int64")
        driver.op_arg_extreme([out], [source], {"kind": kind})
        want = (np.argmax if kind == "max" else np.argmin)(x, axis=-1)
        np.testing.assert_array_equal(take(driver, out), want)
        driver.free(source.handle)


@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_search_is_numpys(driver, dtype, right):
    if dtype == "float64" and not driver.session.float64:
        pytest.skip(f"not run: needs {dtype}")
    rng = np.random.default_rng(7)
    for shape, each in (((1,), 5), ((64,), 1), ((4097,), 3000), ((5, 130), 40)):
        x, wanted = np.sort(drawn(rng, shape, dtype), axis=-1), drawn(rng, (*shape[:-1], each), dtype)
        operands = put(driver, x, dtype), put(driver, wanted, dtype)
        out = put(driver, np.zeros(wanted.shape, np.int64), "int64")
        driver.op_searchsorted([out], operands, {"right": right})
        rows = zip(x.reshape(-1, shape[-1]), wanted.reshape(-1, each), strict=True)
        want = np.stack([np.searchsorted(a, v, "right" if right else "left") for a, v in rows]).reshape(wanted.shape)
        np.testing.assert_array_equal(take(driver, out), want)
        for ref in operands:
            driver.free(ref.handle)
