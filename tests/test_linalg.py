"""``pg.linalg``: values against NumPy and identities, special matrices, conventions, derivatives to second order.

Here: tests derived from the table for every function of the namespace, and what holds of decompositions whose vectors
are determined up to a factor. Not here: the waist's ops of one driver (the drivers' own tests), `pg.einsum`.
"""

import zlib

import mpmath
import numpy as np
import pytest

import polygrad as pg
from polygrad import dtypes
from polygrad.array.functions import NAMESPACES
from polygrad.ops.table import TABLE
from polygrad.testing.draw import Draw

# a device that has no LAPACK asks the host, and says so: `test_library_ops.py` looks at that
pytestmark = pytest.mark.filterwarnings("ignore::polygrad.errors.FallbackWarning")
FUNCTIONS = NAMESPACES["linalg"]
STANDARD = [
    "cholesky", "cross", "det", "diagonal", "eig", "eigh", "eigvals", "eigvalsh", "inv", "matmul", "matrix_norm",
    "matrix_power", "matrix_rank", "matrix_transpose", "outer", "pinv", "qr", "slogdet", "solve", "svd", "svdvals",
    "tensordot", "trace", "vecdot", "vector_norm",
]  # fmt: skip
TOLERANCE = {"d": 1e-12, "D": 1e-12, "f": 3e-5, "F": 3e-5}
VECTORS = {"eigh", "eig", "svd", "qr"}  # compared by what they put together
WIDE = {"complex64": np.complex128, "float32": np.float64}


def kinds(name, given):
    return [d for d in given if dtypes.KINDS[dtypes.as_dtype(d)] in TABLE[name].dtypes.split()]


def samples(name, dtype):
    return list(TABLE[name].samples(Draw(np.random.default_rng(zlib.crc32(name.encode())), dtypes.as_dtype(dtype))))


def arrays(values):
    return [pg.asarray(v) if isinstance(v, np.ndarray) else v for v in values]


def as_tuple(result):
    return result if isinstance(result, tuple) else (result,)


def close(got, want, factor=1.0):
    value = got.numpy() if isinstance(got, pg.Array) else got
    want = np.asarray(want)
    assert value.shape == want.shape
    limit = TOLERANCE.get(value.dtype.char, 0) * factor
    np.testing.assert_allclose(value, want, rtol=limit, atol=limit)


@pytest.mark.parametrize("name", STANDARD)
def test_the_namespace_has_the_functions_of_the_standard(name):
    assert callable(getattr(pg.linalg, name))


CASES = [
    (name, dtype)
    for name in FUNCTIONS
    if name not in VECTORS and TABLE[name].reference is not None
    for dtype in kinds(name, ("float32", "float64", "complex64", "complex128"))
]


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_a_function_is_what_its_reference_says(name, dtype, device, fewer):
    op = TABLE[name]
    for args, keywords in fewer(samples(name, dtype)):
        got = as_tuple(FUNCTIONS[name](*arrays(args), **keywords))
        wide = [a.astype(WIDE.get(a.dtype.name, a.dtype)) if isinstance(a, np.ndarray) else a for a in args]
        for g, w in zip(got, as_tuple(op.reference(np, *wide, **keywords)), strict=True):
            assert g.device == device
            close(g, w, op.tolerance)


# ---- decompositions put together again --------------------------------------------------------------------------


def bound(dtype, n):
    """Return what LAPACK's backward stability promises of a residual relative to the matrix, with a factor of 20."""
    return 20 * max(n, 2) * np.finfo(dtype).eps


def drawn(rng, dtype, *shape):
    x = rng.standard_normal(shape)
    return (x + 1j * rng.standard_normal(shape) if np.dtype(dtype).kind == "c" else x).astype(dtype)


def adjoint(x):
    return x.conj().swapaxes(-1, -2)


def orthonormal(q):
    return np.abs(adjoint(q) @ q - np.eye(q.shape[-1])).max() if q.size else 0.0


SHAPES = ((5, 5), (2, 7, 4), (3, 4, 7), (1, 1), (40, 40))
NUMBERS = ("float32", "float64", "complex64", "complex128")


@pytest.mark.parametrize("dtype", NUMBERS)
def test_svd_gives_orthonormal_vectors_and_the_matrix_back(dtype, device, rng):
    for shape in SHAPES:
        for full in (False, True):
            x = drawn(rng, dtype, *shape)
            u, s, vh = (r.numpy() for r in pg.linalg.svd(pg.asarray(x), full_matrices=full))
            limit, k = bound(dtype, max(shape)), min(shape[-2:])
            assert u.shape[-1] == (shape[-2] if full else k)
            assert vh.shape[-2] == (shape[-1] if full else k)
            assert orthonormal(u) < limit
            assert orthonormal(adjoint(vh)) < limit
            assert (np.diff(s) <= 0).all()
            assert s.dtype == np.zeros(0, dtype).real.dtype
            back = (u[..., :k] * s[..., None, :]) @ vh[..., :k, :]
            assert np.abs(back - x).max() < limit * s.max()


@pytest.mark.parametrize("dtype", NUMBERS)
def test_qr_gives_orthonormal_columns_and_a_triangle(dtype, device, rng):
    for shape in SHAPES:
        for mode in ("reduced", "complete"):
            x = drawn(rng, dtype, *shape)
            q, r = (v.numpy() for v in pg.linalg.qr(pg.asarray(x), mode=mode))
            limit = bound(dtype, max(shape))
            assert orthonormal(q) < limit
            assert np.abs(np.tril(r, -1)).max(initial=0) == 0
            assert np.abs(q @ r - x).max() < limit * np.linalg.norm(x)
            assert q.shape[-1] == (shape[-2] if mode == "complete" else min(shape[-2:]))


@pytest.mark.parametrize("dtype", NUMBERS)
def test_eigh_gives_ascending_values_and_orthonormal_vectors_and_reads_the_lower_triangle(dtype, device, rng):
    for shape in ((5, 5), (2, 3, 3), (1, 1), (30, 30)):
        x = drawn(rng, dtype, *shape)
        x = x + adjoint(x)
        result = pg.linalg.eigh(pg.asarray(np.tril(x)))
        w, v = result.eigenvalues.numpy(), result.eigenvectors.numpy()
        limit = bound(dtype, shape[-1])
        assert (np.diff(w) >= 0).all()
        assert orthonormal(v) < limit
        assert np.abs((v * w[..., None, :]) @ adjoint(v) - x).max() < limit * np.abs(w).max()
        values = pg.linalg.eigvalsh(pg.asarray(np.tril(x))).numpy()
        assert np.abs(values - w).max() < limit * np.abs(w).max()


@pytest.mark.parametrize("dtype", NUMBERS)
def test_eig_gives_vectors_of_length_one_that_the_matrix_scales(dtype, device, rng):
    for shape in ((5, 5), (2, 3, 3), (1, 1)):
        x = drawn(rng, dtype, *shape)
        w, v = (r.numpy() for r in pg.linalg.eig(pg.asarray(x)))
        limit = bound(dtype, shape[-1]) * 10
        assert w.dtype == v.dtype == np.result_type(dtype, np.complex64)
        assert np.abs(np.linalg.norm(v, axis=-2) - 1).max() < limit
        assert np.abs(x @ v - v * w[..., None, :]).max() < limit * np.linalg.norm(x)
        values = np.sort_complex(pg.linalg.eigvals(pg.asarray(x)).numpy())
        assert np.abs(np.abs(values).sum() - np.abs(w).sum()) < limit * np.abs(w).sum()


@pytest.mark.parametrize("dtype", NUMBERS)
def test_solving_leaves_a_small_residual_whatever_the_condition(dtype, device, rng):
    for condition in (1e0, 1e4):
        n = 33  # more than one block of the kernels
        u, v = np.linalg.qr(drawn(rng, dtype, n, n))[0], np.linalg.qr(drawn(rng, dtype, n, n))[0]
        a = ((u * np.geomspace(1, 1 / condition, n)) @ adjoint(v)).astype(dtype)
        b = drawn(rng, dtype, n, 3)
        x = pg.linalg.solve(pg.asarray(a), pg.asarray(b)).numpy()
        # Backward stability: the residual is small relative to |a| |x| (Higham, Accuracy and Stability, section 9).
        assert np.linalg.norm(a @ x - b) < bound(dtype, n) * np.linalg.norm(a, 2) * np.linalg.norm(x)


def test_inverses_and_determinants_of_the_hilbert_matrix_are_those_of_mpmath(device, float_dtype):
    if float_dtype != pg.float64:
        pytest.skip("not run: needs float64")
    with mpmath.workdps(60):
        exact = mpmath.matrix([[mpmath.mpf(float(1 / (i + j + 1))) for j in range(6)] for i in range(6)])
        inverse, size = exact**-1, mpmath.log(mpmath.fabs(mpmath.det(exact)))
    h = pg.asarray([[1 / (i + j + 1) for j in range(6)] for i in range(6)], dtype=float_dtype)
    want = np.array(inverse.tolist(), float)
    got = pg.linalg.inv(h).numpy()
    condition = 1.5e7
    assert np.abs(got - want).max() < 50 * condition * 2.3e-16 * np.abs(want).max()
    assert abs(float(pg.linalg.slogdet(h).logabsdet) - float(size)) < 50 * condition * 2.3e-16


# ---- special matrices ----------------------------------------------------------------------------------------


def test_a_singular_matrix_gives_no_finite_solution_and_leaves_its_neighbours_alone(device, float_dtype):
    a = np.stack([np.eye(3), np.ones((3, 3)), 2 * np.eye(3)])
    x = pg.linalg.inv(pg.asarray(a, dtype=float_dtype)).numpy()
    assert not np.isfinite(x[1]).all()
    np.testing.assert_array_equal(x[0], np.eye(3))
    np.testing.assert_array_equal(x[2], np.eye(3) / 2)


def test_a_matrix_that_is_not_positive_definite_gives_nan_and_leaves_its_neighbours_alone(device, float_dtype):
    a = np.stack([np.eye(2), [[1.0, 2.0], [2.0, 1.0]], [[0.0, 0.0], [0.0, 1.0]], 4 * np.eye(2)])
    low = pg.linalg.cholesky(pg.asarray(a, dtype=float_dtype)).numpy()
    assert np.isnan(low[1]).all()
    assert np.isnan(low[2]).all()
    np.testing.assert_array_equal(low[0], np.eye(2))
    np.testing.assert_array_equal(low[3], 2 * np.eye(2))


def test_the_determinant_of_a_singular_matrix_is_zero_and_its_logarithm_minus_infinity(device, float_dtype):
    a = pg.asarray([[1.0, 2.0], [2.0, 4.0]], dtype=float_dtype)
    assert float(pg.linalg.det(a)) == 0.0
    sign, size = pg.linalg.slogdet(a)
    assert (float(sign), float(size)) == (0.0, -np.inf)


def test_a_matrix_with_nan_gives_nan_and_no_error(device, float_dtype):
    a = pg.asarray([[1.0, float("nan")], [float("nan"), 1.0]], dtype=float_dtype)
    for found in (
        pg.linalg.inv(a), pg.linalg.det(a), pg.linalg.svdvals(a), pg.linalg.eigvalsh(a), pg.linalg.cholesky(a),
        pg.abs(pg.linalg.eigvals(a)),
    ):  # fmt: skip
        assert np.isnan(found.numpy()).any()


def test_empty_matrices_have_the_shapes_of_the_standard(device):
    x = pg.zeros((2, 0, 3))
    assert [r.shape for r in pg.linalg.svd(x)] == [(2, 0, 0), (2, 0), (2, 3, 3)]
    assert [r.shape for r in pg.linalg.qr(x)] == [(2, 0, 0), (2, 0, 3)]
    assert pg.linalg.pinv(x).shape == (2, 3, 0)
    assert pg.linalg.matrix_rank(x).tolist() == [0, 0]
    assert pg.linalg.det(pg.zeros((0, 0))).item() == 1.0
    assert pg.linalg.solve(pg.zeros((2, 0, 0)), pg.zeros((2, 0, 4))).shape == (2, 0, 4)
    assert pg.linalg.svd(x).Vh.numpy()[1].tolist() == np.eye(3).tolist()


def test_ranks_and_pseudo_inverses_take_tolerances_for_each_matrix(device, float_dtype):
    a = np.stack([np.diag([1.0, 1e-2, 1e-4])] * 2)
    x, rtol = pg.asarray(a, dtype=float_dtype), pg.asarray([1e-3, 1e-1], dtype=float_dtype)
    assert pg.linalg.matrix_rank(x, rtol=rtol).tolist() == [2, 1]
    np.testing.assert_allclose(
        pg.linalg.pinv(x, rtol=rtol).numpy(), [np.diag([1, 100.0, 0]), np.diag([1.0, 0, 0])], rtol=1e-5
    )


def test_what_is_no_matrix_is_refused_in_a_sentence():
    with pytest.raises(pg.ShapeError, match=r"cannot invert shape \[2, 3\]: the last two axes must be equal"):
        pg.linalg.inv(pg.zeros((2, 3)))
    with pytest.raises(pg.ShapeError, match=r"a matrix has two axes"):
        pg.linalg.svd(pg.zeros((3,)))
    with pytest.raises(pg.DTypeError, match="cannot invert bool"):
        pg.linalg.inv(pg.zeros((2, 2), dtype=pg.bool))
    with pytest.raises(pg.ShapeError, match=r"cannot take a matrix norm of order 3"):
        pg.linalg.matrix_norm(pg.zeros((2, 2)), ord=3)
    with pytest.raises(pg.ShapeError, match=r"must have 3 elements in both"):
        pg.linalg.cross(pg.zeros((2,)), pg.zeros((2,)))


def test_half_precision_is_computed_in_float32(device):
    x = pg.asarray([[4.0, 1.0], [1.0, 3.0]], dtype=pg.float16)
    assert pg.linalg.inv(x).dtype == pg.float16
    np.testing.assert_allclose(pg.linalg.det(x).numpy(), 11.0, rtol=1e-3)


# ---- derivatives -----------------------------------------------------------------------------------------------


def real_outputs(name, result):
    """Return what of a result depends on its operand alone, not on the factors of vectors, as real arrays."""
    found = as_tuple(result)
    if name == "eigh":
        w, v = found
        back = (v * pg.astype(w, v.dtype)[..., None, :] ** 3) @ pg.conj(v).mT
        found = (w, back, pg.abs(v))
    elif name == "svd":
        u, s, vh = found
        found = (s, (u * pg.astype(s**2, u.dtype)[..., None, :]) @ vh, pg.abs(u), pg.abs(vh))
    elif name == "eig":
        w, v = found
        found = (w, pg.abs(v))
    return [part for f in found for part in ((pg.real(f), pg.imag(f)) if f.dtype.kind == "c" else (f,))]


def by_parts(name, args, keywords):
    """Return a function of the real and imaginary parts of a sample's arrays, and these parts."""
    held = [a for a in args if isinstance(a, np.ndarray)]
    complex_ = held[0].dtype.kind == "c"
    inputs = [pg.asarray(p.copy()) for a in held for p in ((a.real, a.imag) if complex_ else (a,))]

    def function(*values):
        left = iter(values)
        given = [
            (next(left) + 1j * next(left) if complex_ else next(left)) if isinstance(a, np.ndarray) else a for a in args
        ]
        return real_outputs(name, FUNCTIONS[name](*given, **keywords))

    return function, inputs


DERIVED = [
    (name, dtype)
    for name in FUNCTIONS
    if TABLE[name].differentiable and TABLE[name].samples is not None
    for dtype in kinds(name, ("float64", "complex128"))
]


@pytest.mark.parametrize(("name", "dtype"), DERIVED)
def test_first_and_second_derivatives(name, dtype):
    with pg.device("cpu:0"):
        calls = [c for c in samples(name, dtype) if all(a.size for a in c[0] if isinstance(a, np.ndarray))]
        for k, (args, keywords) in enumerate(calls[:3]):
            function, inputs = by_parts(name, args, keywords)
            pg.testing.gradcheck(function, *inputs, seed=k, tol=1e-5)
            if k < 2 and TABLE[name].second:
                pg.testing.gradgradcheck(function, *inputs, seed=k, tol=1e-4)


@pytest.mark.parametrize("name", ["inv", "cholesky", "det", "slogdet", "pinv", "svdvals", "eigvalsh", "matrix_norm"])
def test_gradients_are_the_same_on_every_device(name, device, float_dtype, rng):
    x = rng.standard_normal((2, 3, 3))
    x = x @ x.swapaxes(-1, -2) + 3 * np.eye(3) + np.diag([0, 1, 2])

    def loss(a):
        return sum(pg.sum(pg.sin(r)) for r in as_tuple(FUNCTIONS[name](a)))

    got = pg.grad(loss)(pg.asarray(x, dtype=float_dtype)).numpy()
    with pg.device("cpu:0"):
        want = pg.grad(loss)(pg.asarray(x)).numpy()
    np.testing.assert_allclose(got, want, rtol=1e-3 if float_dtype == pg.float32 else 1e-9, atol=1e-5)


def cofactors(a):
    n = len(a)
    return np.array([
        [(-1) ** (i + j) * np.linalg.det(np.delete(np.delete(a, i, 0), j, 1)) for j in range(n)] for i in range(n)
    ])  # fmt: skip


@pytest.mark.parametrize("rank", [0, 1, 2, 3])
def test_the_gradient_of_a_determinant_is_its_cofactors_whatever_the_rank(rank, device, float_dtype, rng):
    a = rng.standard_normal((3, rank)) @ rng.standard_normal((rank, 3)) if rank else np.zeros((3, 3))
    got = pg.grad(pg.linalg.det)(pg.asarray(a, dtype=float_dtype)).numpy()
    limit = 1e-4 if float_dtype == pg.float32 else 1e-12
    np.testing.assert_allclose(got, cofactors(a), atol=limit)


@pytest.mark.parametrize("rank", [1, 2])
def test_second_derivatives_of_determinants_of_singular_matrices_are_right(rank, rng):
    a = rng.standard_normal((3, rank)) @ rng.standard_normal((rank, 3))
    with pg.device("cpu:0"):
        pg.testing.gradgradcheck(pg.linalg.det, pg.asarray(a))


def test_repeated_eigenvalues_and_singular_values_have_the_gradients_of_their_sums():
    a = np.diag([2.0, 2.0, 5.0])
    x = pg.asarray(a)

    def both(g):
        return (g.numpy() + g.numpy().T) / 2

    np.testing.assert_allclose(both(pg.grad(lambda m: pg.sum(pg.linalg.eigvalsh(m) ** 3))(x)), 3 * a @ a, atol=1e-12)
    np.testing.assert_allclose(both(pg.grad(lambda m: pg.sum(pg.linalg.eigh(m)[0] ** 2))(x)), 2 * a, atol=1e-12)
    np.testing.assert_allclose(pg.grad(lambda m: pg.sum(pg.linalg.svdvals(m) ** 2))(x).numpy(), 2 * a, atol=1e-12)

    def again(m):
        u, s, vh = pg.linalg.svd(m, full_matrices=False)
        return pg.linalg.matrix_norm((u * s) @ vh)

    np.testing.assert_allclose(pg.grad(again)(x).numpy(), a / np.linalg.norm(a), atol=1e-12)


def test_norms_have_the_derivative_zero_at_zero():
    for order in (1, 2, 3, 1.5, np.inf):
        gradient = pg.grad(lambda v, order=order: pg.linalg.vector_norm(v, ord=order))(pg.zeros((3,)))
        assert gradient.tolist() == [0.0] * 3, order
    z = pg.grad(lambda v: pg.linalg.vector_norm(v))(pg.zeros((2,), dtype=pg.complex128))
    assert z.tolist() == [0, 0]
    rows = pg.asarray([[0.0, 0.0], [3.0, -4.0]])
    gradient = pg.grad(lambda m: pg.sum(pg.linalg.vector_norm(m, axis=1)))(rows)
    np.testing.assert_allclose(gradient.numpy(), [[0, 0], [0.6, -0.8]])


def test_only_the_triangle_that_is_read_has_a_gradient():
    a = pg.asarray([[4.0, 9.0], [1.0, 3.0]])
    for function in (pg.linalg.cholesky, pg.linalg.eigvalsh, lambda m: pg.linalg.eigh(m)[0]):
        assert pg.grad(lambda m, f=function: pg.sum(pg.sin(f(m))))(a).numpy()[0, 1] == 0.0
    upper = pg.grad(lambda m: pg.sum(pg.linalg.solve_triangular(m, pg.ones((2, 1)), upper=True)))(a)
    assert upper.numpy()[1, 0] == 0.0


def test_arbitrary_vectors_refuse_to_be_differentiated():
    x = pg.ones((3, 2))
    with pytest.raises(pg.GradError, match="full_matrices=False"):
        pg.grad(lambda m: pg.sum(pg.linalg.svd(m)[0]))(x)
    with pytest.raises(pg.GradError, match="mode='reduced'"):
        pg.grad(lambda m: pg.sum(pg.linalg.qr(m, mode="complete")[0]))(x)
    assert pg.grad(lambda m: pg.sum(pg.linalg.svd(m)[1]))(x).shape == (3, 2)


def test_a_gradient_of_a_complex_determinant_is_the_conjugate_of_its_cofactors(rng):
    a = rng.standard_normal((3, 3)) + 1j * rng.standard_normal((3, 3))
    got = pg.grad(lambda m: pg.real(pg.linalg.det(m)))(pg.asarray(a)).numpy()
    np.testing.assert_allclose(got, np.conj(cofactors(a)), rtol=1e-10)


def test_a_pseudo_inverse_of_lower_rank_is_differentiated_with_its_rank_held(rng):
    tall, wide = pg.asarray(rng.standard_normal((4, 2))), pg.asarray(rng.standard_normal((2, 3)))
    with pg.device("cpu:0"):
        pg.testing.gradcheck(lambda b, c: pg.linalg.pinv(b @ c), tall, wide)
        pg.testing.gradgradcheck(lambda b, c: pg.linalg.pinv(b @ c), tall, wide, tol=1e-5)


def test_results_have_the_names_of_the_standard():
    x = pg.eye(2)
    assert pg.linalg.eigh(x)._fields == pg.linalg.eig(x)._fields == ("eigenvalues", "eigenvectors")
    assert pg.linalg.svd(x)._fields == ("U", "S", "Vh")
    assert pg.linalg.qr(x)._fields == ("Q", "R")
    assert pg.linalg.slogdet(x)._fields == ("sign", "logabsdet")


MAPPED = {
    "det": pg.linalg.det,
    "solve": lambda a: pg.linalg.solve(a, a[:, 0]),
    "qr": lambda a: pg.linalg.qr(a).R,
    "complex": lambda a: pg.abs(pg.linalg.inv(a + 1j * a.mT)),
    "gradient of det": pg.grad(pg.linalg.det),
    "gradient of svdvals": pg.grad(lambda a: pg.sum(pg.linalg.svdvals(a) ** 3)),
    "gradient of fft": pg.grad(lambda a: pg.sum(pg.abs(pg.fft.fft(a)) ** 3)),
}


@pytest.mark.parametrize("name", MAPPED)
def test_a_mapped_function_is_that_of_each_example(name, rng):
    x = pg.asarray(rng.standard_normal((4, 3, 3)) + 3 * np.eye(3))
    want = np.stack([MAPPED[name](x[k]).numpy() for k in range(4)])
    np.testing.assert_allclose(pg.vmap(MAPPED[name])(x).numpy(), want, rtol=1e-10, atol=1e-12)


# ---- what a device lacks -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("name", ["solve_", "triangular_solve_", "cholesky_", "slogdet_", "det_"])
def test_the_fallbacks_over_other_ops_are_what_the_libraries_give(name, dtype, rng):
    from polygrad.graph.functions import F
    from polygrad.ops.linalg_parts import merged
    from polygrad.testing.interpret import evaluate, leaf

    op, complex_ = TABLE[name], dtype == "complex128"
    for n in (1, 2, 5):
        x = drawn(rng, dtype, 2, n, n)
        a = x @ adjoint(x) + np.eye(n)
        b = drawn(rng, dtype, 2, n, 3)
        operands = [a, b] if "solve" in name else [a]
        nodes = [leaf(np.stack([v.real, v.imag], -1) if complex_ else v) for v in operands]
        attrs = ((True,) if name == "triangular_solve_" else ()) + (complex_,)
        got = evaluate(*as_tuple(op.fallback(F, *nodes, *attrs)))
        want = as_tuple(op.body(np, *[v.storage for v in nodes], *attrs))
        for g, w in zip(as_tuple(got), want, strict=True):
            np.testing.assert_allclose(g, w, rtol=1e-10, atol=1e-10)
    assert merged(F, nodes[0]) is nodes[0]


def test_the_fallback_of_elimination_exchanges_rows_and_sees_singular_matrices():
    from polygrad.graph.functions import F
    from polygrad.ops.linalg_fallback import signed_logarithm, solved
    from polygrad.testing.interpret import evaluate, leaf

    a = np.array([[[0.0, 1.0], [2.0, 0.0]], [[1.0, 2.0], [2.0, 4.0]]])
    sign, size = evaluate(*signed_logarithm(F, leaf(a)))
    assert sign.tolist() == [-1.0, 0.0]
    np.testing.assert_allclose(size, [np.log(2), -np.inf])
    x = evaluate(solved(F, leaf(a), leaf(np.ones((2, 2, 1)))))
    np.testing.assert_allclose(x[0], [[0.5], [1.0]])
    assert not np.isfinite(x[1]).all()
