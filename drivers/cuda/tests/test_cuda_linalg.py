"""The cuda driver's linear algebra and transforms, called through its op methods on a GPU.

Here: each op against NumPy, in stacks and alone, real and complex; bad matrices; operands at odd offsets.
Not here: ``pg.linalg``, whose tests run on every device present.
"""

import numpy as np
import pytest

DTYPES = {"float32": 3e-4, "float64": 1e-10}
KINDS = [(dtype, complex_) for dtype in DTYPES for complex_ in (False, True)]
BATCHES = [(), (3,), (2, 2)]
OFFSET = 0  # of operands, where a test does not go through several


def parts(x, dtype, complex_):
    return np.stack([x.real, x.imag], -1).astype(dtype) if complex_ else x.real.astype(dtype)


def whole(x, complex_):
    return x[..., 0] + 1j * x[..., 1] if complex_ else x


def shape_of(complex_, *shape):
    return (*shape, 2) if complex_ else shape


def drawn(rng, complex_, *shape):
    x = rng.standard_normal(shape)
    return x + 1j * rng.standard_normal(shape) if complex_ else x


def adjoint(x):
    return x.conj().swapaxes(-1, -2)


@pytest.mark.parametrize(("dtype", "complex_"), KINDS)
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize(("n", "m"), [(1, 1), (4, 3), (40, 5)])
def test_systems(call, driver, dtype, complex_, batch, n, m, rng):
    a, b = drawn(rng, complex_, *batch, n, n) + 3 * n**0.5 * np.eye(n), drawn(rng, complex_, *batch, n, m)
    given = [parts(v, dtype, complex_) for v in (a, b)]
    for name, attrs in (("solve", {}), ("triangular_solve", {"upper": True}), ("triangular_solve", {"upper": False})):
        for offset in (0, 1):
            (x,) = call(name, [given[1].shape], given, offset, complex=complex_, **attrs)
            read = a if not attrs else np.triu(a) if attrs["upper"] else np.tril(a)
            want = np.linalg.solve(read, b)
            np.testing.assert_allclose(whole(x, complex_), want, atol=DTYPES[dtype] * 10 * np.abs(want).max())


@pytest.mark.parametrize(("dtype", "complex_"), KINDS)
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("n", [1, 5, 40])
def test_factors_and_determinants(call, driver, dtype, complex_, batch, n, rng):
    x = drawn(rng, complex_, *batch, n, n)
    a = x @ adjoint(x) + n * np.eye(n)
    given = parts(np.tril(a) + 100 * np.triu(np.ones((n, n)), 1), dtype, complex_)
    (low,) = call("cholesky", [given.shape], [given], complex=complex_)
    low = whole(low, complex_)
    assert (np.triu(low, 1) == 0).all()
    assert np.abs(low @ adjoint(low) - a).max() < DTYPES[dtype] * np.abs(a).max()
    wide = (x / np.sqrt(n)).reshape(-1, n, n)
    count = len(wide)
    sign, size = call("slogdet", [shape_of(complex_, count), (count,)], [parts(wide, dtype, complex_)],
                      complex=complex_)  # fmt: skip
    (det,) = call("det", [shape_of(complex_, count)], [parts(wide, dtype, complex_)], complex=complex_)
    want = np.linalg.slogdet(wide)
    np.testing.assert_allclose(whole(sign, complex_), want.sign, atol=20 * n * DTYPES[dtype])
    np.testing.assert_allclose(size, want.logabsdet, atol=20 * n * DTYPES[dtype])
    np.testing.assert_allclose(
        whole(det, complex_), want.sign * np.exp(want.logabsdet), rtol=20 * n * DTYPES[dtype], atol=DTYPES[dtype]
    )


@pytest.mark.parametrize(("dtype", "complex_"), KINDS)
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("n", [1, 5, 40])
def test_eigenvalues(call, driver, dtype, complex_, batch, n, rng):
    x = drawn(rng, complex_, *batch, n, n)
    a, limit = x + adjoint(x), DTYPES[dtype] * n
    given = parts(np.tril(a), dtype, complex_)
    attrs = {"complex": complex_, "vectors": True}
    w, v = call("eigh", [(*batch, n), given.shape], [given], **attrs)
    v = whole(v, complex_)
    np.testing.assert_allclose(w, np.linalg.eigvalsh(a), atol=limit * np.abs(a).max())
    assert np.abs((v * w[..., None, :]) @ adjoint(v) - a).max() < limit * np.abs(a).max()
    (values,) = call("eigh", [(*batch, n)], [given], **attrs | {"vectors": False})
    np.testing.assert_allclose(values, w, atol=limit * np.abs(a).max())
    if "eig" not in driver.described.ops:
        return
    found = call("eig", [(*batch, n, 2), (*batch, n, n, 2)], [parts(x, dtype, complex_)], **attrs)
    w, v = (whole(r, True) for r in found)
    assert np.abs(x @ v - v * w[..., None, :]).max() < 50 * limit * np.abs(x).max()
    np.testing.assert_allclose(np.linalg.norm(v, axis=-2), 1, atol=1e-4)


@pytest.mark.parametrize(("dtype", "complex_"), KINDS)
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize(("m", "n"), [(1, 1), (5, 3), (3, 5), (40, 36)])
@pytest.mark.parametrize("full", [False, True])
def test_singular_values_and_orthogonal_factors(call, driver, dtype, complex_, batch, m, n, full, rng):
    a, k, limit = drawn(rng, complex_, *batch, m, n), min(m, n), DTYPES[dtype] * max(m, n)
    given = parts(a, dtype, complex_)
    attrs = {"complex": complex_, "full": full}
    shapes = [
        shape_of(complex_, *batch, m, m if full else k),
        (*batch, k),
        shape_of(complex_, *batch, n if full else k, n),
    ]
    u, s, vh = call("svd", shapes, [given], vectors=True, **attrs)
    u, vh = whole(u, complex_), whole(vh, complex_)
    np.testing.assert_allclose(s, np.linalg.svd(a, compute_uv=False), atol=limit)
    assert np.abs((u[..., :k] * s[..., None, :]) @ vh[..., :k, :] - a).max() < limit
    assert np.abs(adjoint(u) @ u - np.eye(u.shape[-1])).max() < limit
    (values,) = call("svd", [(*batch, k)], [given], vectors=False, **attrs)
    np.testing.assert_allclose(values, s, atol=limit)
    inner = m if full else k
    q, r = call("qr", [shape_of(complex_, *batch, m, inner), shape_of(complex_, *batch, inner, n)], [given], **attrs)
    q, r = whole(q, complex_), whole(r, complex_)
    assert np.abs(q @ r - a).max() < limit
    assert np.abs(adjoint(q) @ q - np.eye(inner)).max() < limit
    assert (np.tril(r, -1) == 0).all()


def test_bad_matrices_harm_no_other_of_their_stack(call, driver):
    a = np.stack([np.eye(2), [[1.0, 2.0], [2.0, 1.0]], np.ones((2, 2)), 4 * np.eye(2)])
    (low,) = call("cholesky", [a.shape], [a], complex=False)
    assert np.isnan(low[1]).all()
    assert low[3].tolist() == [[2, 0], [0, 2]]
    (x,) = call("solve", [a.shape], [a, np.stack([np.eye(2)] * 4)], complex=False)
    assert not np.isfinite(x[2]).all()
    np.testing.assert_allclose(x[3], np.eye(2) / 4)
    sign, size = call("slogdet", [(4,), (4,)], [a], complex=False)
    assert sign.tolist() == [1, -1, 0, 1]
    assert size[2] == -np.inf
    (alone,) = call("cholesky", [(2, 2)], [a[1]], complex=False)
    assert np.isnan(alone).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 2, 12, 97, 1024])
@pytest.mark.parametrize("offset", [0, 1])
def test_transforms(call, driver, dtype, n, offset, rng):
    x = rng.standard_normal((2, 3, n, 2)).astype(dtype)
    z, limit = x[..., 0] + 1j * x[..., 1].astype(np.float64), DTYPES[dtype] * n**0.5
    for inverse in (False, True):
        (y,) = call("fft", [x.shape], [x], offset, inverse=inverse)
        want = np.fft.ifft(z, norm="forward") if inverse else np.fft.fft(z)
        np.testing.assert_allclose(whole(y, True), want, atol=limit)
    real = np.ascontiguousarray(x[..., 0])
    (half,) = call("rfft", [(2, 3, n // 2 + 1, 2)], [real], offset)
    np.testing.assert_allclose(whole(half, True), np.fft.rfft(real), atol=limit)
    (back,) = call("irfft", [(2, 3, n)], [half], offset, n=n)
    np.testing.assert_allclose(back, n * real, atol=limit * n**0.5)
