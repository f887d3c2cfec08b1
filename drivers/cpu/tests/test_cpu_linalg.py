"""The cpu driver's linear algebra and transforms, called through its op methods.

Here: bad matrices in a stack, triangular systems by blocks, operands at odd offsets. Not here: ``pg.linalg``.
"""

import numpy as np
import pytest


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("n", [1, 64, 65, 200])
def test_triangular_systems_of_any_size_read_one_triangle(call, driver, upper, n, rng):
    a = rng.standard_normal((2, n, n)) + 2 * n * np.eye(n)
    b = rng.standard_normal((2, n, 3))
    (x,) = call("triangular_solve", [b.shape], [a, b], upper=upper, complex=False)
    np.testing.assert_allclose((np.triu(a) if upper else np.tril(a)) @ x, b, atol=1e-10)


def test_a_bad_matrix_harms_no_other_of_its_stack(call, driver):
    a = np.stack([np.eye(2), np.ones((2, 2)), [[np.nan, 0], [0, 1]], 2 * np.eye(2)])
    attrs = {"complex": False, "vectors": True, "full": False}
    (x,) = call("solve", [(4, 2, 2)], [a, np.stack([np.eye(2)] * 4)], **attrs)
    assert np.isnan(x[1]).all()
    assert x[3].tolist() == [[0.5, 0], [0, 0.5]]
    for name, results in (("svd", [(4, 2, 2), (4, 2), (4, 2, 2)]), ("eigh", [(4, 2), (4, 2, 2)])):
        found = call(name, results, [a], **attrs)
        assert np.isnan(found[0][2]).any()
        assert np.isfinite(found[0][3]).all()
    w, v = call("eig", [(4, 2, 2), (4, 2, 2, 2)], [a], **attrs)
    assert np.isnan(w[2]).any()
    assert w[3].tolist() == [[2, 0], [2, 0]]
    assert np.isfinite(v[3]).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_transforms_keep_their_precision_and_take_no_factor(call, driver, dtype, rng):
    x = rng.standard_normal((3, 6, 2)).astype(dtype)
    z = x[..., 0] + 1j * x[..., 1]
    for inverse in (False, True):
        (y,) = call("fft", [x.shape], [x], inverse=inverse)
        want = np.fft.ifft(z, norm="forward") if inverse else np.fft.fft(z)
        assert y.dtype == dtype
        np.testing.assert_allclose(y[..., 0] + 1j * y[..., 1], want, atol=1e-5)
    (half,) = call("rfft", [(3, 4, 2)], [np.ascontiguousarray(x[..., 0])])
    np.testing.assert_allclose(half[..., 0], np.fft.rfft(x[..., 0]).real, atol=1e-5)
    (back,) = call("irfft", [(3, 6)], [half], n=6)
    np.testing.assert_allclose(back, 6 * x[..., 0], atol=1e-5)
