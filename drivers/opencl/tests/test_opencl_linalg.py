"""The OpenCL driver's linear algebra: its own kernels, forced where LAPACK would do, and the mapped memory beside them.

Here: sizes around the kernels' blocks, stacks, pivots, bad matrices, operands at odd offsets. Not here: ``pg.linalg``.
"""

import numpy as np
import pytest

from polygrad_opencl import linalg
from polygrad_opencl.driver import OpenCLDriver
from polygrad_opencl.linalg_source import program

DTYPES = {"float32": 2e-4, "float64": 1e-11}


def parts(x, dtype, complex_):
    return np.stack([x.real, x.imag], -1).astype(dtype) if complex_ else x.real.astype(dtype)


def whole(x, complex_):
    return x[..., 0] + 1j * x[..., 1] if complex_ else x


def drawn(rng, complex_, *shape):
    x = rng.standard_normal(shape)
    return x + 1j * rng.standard_normal(shape) if complex_ else x


SIZES = [(1, 1), (2, 5), (32, 1), (33, 40), (70, 3)]
KINDS = [(dtype, complex_) for dtype in DTYPES for complex_ in (False, True)]


@pytest.mark.parametrize(("dtype", "complex_"), KINDS)
@pytest.mark.parametrize(("n", "m"), SIZES)
def test_systems_are_solved_in_stacks(call, driver, way, dtype, complex_, n, m, rng):
    if dtype not in driver.info_of.dtypes:
        pytest.skip("not run: needs float64")
    a, b = drawn(rng, complex_, 3, n, n), drawn(rng, complex_, 3, n, m)
    b = parts(b, dtype, complex_)
    for name, matrix, attrs in (
        ("solve", a, {}),
        ("triangular_solve", a + 4 * n * np.eye(n), {"upper": False}),
        ("triangular_solve", a + 4 * n * np.eye(n), {"upper": True}),
    ):
        given = parts(matrix, dtype, complex_)
        (x,) = call(name, [b.shape], [given, b], complex=complex_, **attrs)
        read = whole(given, complex_).astype(np.result_type(given, matrix))
        read = read if name == "solve" else np.triu(read) if attrs["upper"] else np.tril(read)
        left = read @ whole(x, complex_) - whole(b, complex_)
        scale = np.linalg.norm(read, axis=(-2, -1)) * np.linalg.norm(whole(x, complex_), axis=(-2, -1))
        assert (np.linalg.norm(left, axis=(-2, -1)) < DTYPES[dtype] * scale).all()


@pytest.mark.parametrize(("dtype", "complex_"), KINDS)
@pytest.mark.parametrize("n", [1, 5, 32, 33, 70])
def test_factors_and_determinants(call, driver, way, dtype, complex_, n, rng):
    if dtype not in driver.info_of.dtypes:
        pytest.skip("not run: needs float64")
    x = drawn(rng, complex_, 2, n, n)
    a = x @ x.conj().swapaxes(-1, -2) + n * np.eye(n)
    given = parts(np.tril(a) + 100 * np.triu(np.ones((n, n)), 1), dtype, complex_)
    (low,) = call("cholesky", [given.shape], [given], complex=complex_)
    low = whole(low, complex_)
    assert (np.triu(low, 1) == 0).all()
    back = low @ low.conj().swapaxes(-1, -2)
    assert np.abs(back - a).max() < DTYPES[dtype] * np.abs(a).max()

    batch, wide = (2, 2) if complex_ else (2,), x / np.sqrt(n)
    sign, size = call("slogdet", [batch, (2,)], [parts(wide, dtype, complex_)], complex=complex_)
    (det,) = call("det", [batch], [parts(wide, dtype, complex_)], complex=complex_)
    want = np.linalg.slogdet(wide)
    limit = DTYPES[dtype] * n
    np.testing.assert_allclose(whole(sign, complex_), want.sign, atol=20 * limit)
    np.testing.assert_allclose(size, want.logabsdet, atol=20 * limit)
    np.testing.assert_allclose(whole(det, complex_), want.sign * np.exp(want.logabsdet), rtol=20 * limit, atol=limit)


def test_rows_are_exchanged_and_bad_matrices_harm_no_other(call, driver, way):
    a = np.array([[[0, 1], [1, 0]], [[1, 1], [1, 1]], [[2, 0], [0, 1]]], np.float32)
    (x,) = call("solve", [(3, 2, 1)], [a, np.ones((3, 2, 1), np.float32)], complex=False)
    assert x[0].ravel().tolist() == [1, 1]
    assert not np.isfinite(x[1]).all()
    assert x[2].ravel().tolist() == [0.5, 1]
    sign, size = call("slogdet", [(3,), (3,)], [a], complex=False)
    assert sign.tolist() == [-1, 0, 1]
    assert size[1] == -np.inf
    (low,) = call("cholesky", [a.shape], [a], complex=False)
    assert np.isnan(low[0]).all()
    assert low[2].tolist() == [[np.float32(2**0.5), 0], [0, 1]]


def test_determinants_do_not_overflow_on_the_way(call, driver, way):
    a = np.diag(np.array([1e30, 1e30, 1e-30, 1e-30], np.float32))[None]
    (det,) = call("det", [(1,)], [a], complex=False)
    np.testing.assert_allclose(det, [1], rtol=1e-4)


def test_a_device_without_mapped_memory_declares_no_op_that_needs_it():
    assert set(OpenCLDriver.ops()) >= linalg.NEED_HOST
    assert {"solve", "cholesky", "slogdet", "det", "triangular_solve"}.isdisjoint(linalg.NEED_HOST)


@pytest.mark.parametrize("complex_", [False, True])
def test_the_text_names_its_number(complex_):
    assert ("typedef PAIR num" in program("float64", complex=complex_)) is complex_
