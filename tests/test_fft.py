"""``pg.fft``: values against NumPy and exact sums, any length, conventions, derivatives.

Here: tests derived from the table for every function of the namespace; the transforms over other ops that stand in on a
device without a library. Not here: the waist's ops of one driver.
"""

import zlib

import mpmath
import numpy as np
import pytest

import polygrad as pg
from polygrad import dtypes
from polygrad.array.functions import NAMESPACES
from polygrad.graph.functions import F
from polygrad.ops import fft_fallback
from polygrad.ops.table import TABLE
from polygrad.testing.draw import Draw
from polygrad.testing.interpret import evaluate, leaf

FUNCTIONS = NAMESPACES["fft"]
STANDARD = [
    "fft", "ifft", "fftn", "ifftn", "rfft", "irfft", "rfftn", "irfftn", "hfft", "ihfft", "fftfreq", "rfftfreq",
    "fftshift", "ifftshift",
]  # fmt: skip
TOLERANCE = {"d": 1e-13, "D": 1e-13, "f": 3e-6, "F": 3e-6}
WIDE = {"complex64": np.complex128, "float32": np.float64}


def kinds(name, given):
    return [d for d in given if dtypes.KINDS[dtypes.as_dtype(d)] in TABLE[name].dtypes.split()]


def samples(name, dtype):
    return list(TABLE[name].samples(Draw(np.random.default_rng(zlib.crc32(name.encode())), dtypes.as_dtype(dtype))))


@pytest.mark.parametrize("name", STANDARD)
def test_the_namespace_has_the_functions_of_the_standard(name):
    assert callable(getattr(pg.fft, name))


CASES = [
    (name, dtype) for name in FUNCTIONS for dtype in kinds(name, ("float32", "float64", "complex64", "complex128"))
]


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_a_function_is_what_numpy_says(name, dtype, device, fewer):
    for args, keywords in fewer(samples(name, dtype)):
        got = FUNCTIONS[name](*[pg.asarray(a) if isinstance(a, np.ndarray) else a for a in args], **keywords)
        wide = [a.astype(WIDE.get(a.dtype.name, a.dtype)) if isinstance(a, np.ndarray) else a for a in args]
        want = TABLE[name].reference(np, *wide, **keywords)
        assert got.device == device
        assert got.shape == want.shape
        limit = TOLERANCE[got.dtype.char] * max(1.0, np.abs(want).max(initial=0))
        np.testing.assert_allclose(got.numpy(), want, atol=limit)


def test_transforms_keep_the_precision_of_their_operand(device):
    assert pg.fft.fft(pg.ones((4,), dtype=pg.float32)).dtype == pg.complex64
    assert pg.fft.rfft(pg.ones((4,), dtype=pg.float32)).dtype == pg.complex64
    assert pg.fft.irfft(pg.ones((3,), dtype=pg.complex64)).dtype == pg.float32
    assert pg.fft.fftfreq(4, dtype=pg.float32).dtype == pg.float32
    assert pg.fft.fftfreq(4, device=device).device == device


@pytest.mark.parametrize("n", [1, 2, 3, 16, 31, 64, 97, 100, 210, 257])
def test_a_transform_of_any_length_is_close_to_the_exact_sums(n, device, rng):
    z = (rng.standard_normal(n) + 1j * rng.standard_normal(n)).astype(np.complex64)
    got = pg.fft.fft(pg.asarray(z)).numpy()
    turns = np.exp(-2j * np.pi * (np.outer(np.arange(n), np.arange(n)) % n) / n)
    want = turns @ z.astype(np.complex128)
    # A transform's error grows with log2(n), relative to the norm (Schatzman, 1996).
    assert np.linalg.norm(got - want) < 4 * (1 + np.log2(n)) * 6e-8 * np.linalg.norm(want)


def test_what_has_no_transform_is_refused_in_a_sentence():
    with pytest.raises(pg.DTypeError, match="cannot apply rfft to complex128"):
        pg.fft.rfft(pg.ones((3,), dtype=pg.complex128))
    with pytest.raises(pg.ShapeError, match="cannot transform 0 elements"):
        pg.fft.fft(pg.ones((0,)))
    with pytest.raises(pg.ShapeError, match="it is one of 'backward', 'ortho', 'forward'"):
        pg.fft.fft(pg.ones((3,)), norm="none")
    with pytest.raises(pg.ShapeError, match="give one length for each axis"):
        pg.fft.fftn(pg.ones((3, 3)), s=(2,), axes=(0, 1))
    with pytest.raises(pg.DTypeError, match="real float dtype"):
        pg.fft.fftfreq(4, dtype=pg.int64)


def test_batches_of_nothing_have_their_shapes():
    assert pg.fft.fft(pg.zeros((0, 4))).shape == (0, 4)
    assert pg.fft.rfft(pg.zeros((0, 4))).shape == (0, 3)
    assert pg.fft.irfft(pg.zeros((0, 4))).shape == (0, 6)


# ---- derivatives -------------------------------------------------------------------------------------------------

DERIVED = [
    (name, dtype)
    for name in FUNCTIONS
    if TABLE[name].differentiable
    for dtype in kinds(name, ("float64", "complex128"))
]


@pytest.mark.parametrize(("name", "dtype"), DERIVED)
def test_first_and_second_derivatives(name, dtype):
    with pg.device("cpu:0"):
        for k, (args, keywords) in enumerate([c for c in samples(name, dtype) if c[0][0].size][:3]):
            x = args[0]

            def function(*parts, keywords=keywords):
                value = parts[0] + 1j * parts[1] if len(parts) > 1 else parts[0]
                out = FUNCTIONS[name](value, **keywords)
                return [pg.real(out), pg.imag(out)] if out.dtype.kind == "c" else [pg.sin(out)]

            inputs = [pg.asarray(p.copy()) for p in ((x.real, x.imag) if x.dtype.kind == "c" else (x,))]
            pg.testing.gradcheck(function, *inputs, seed=k)
            pg.testing.gradgradcheck(function, *inputs, seed=k, tol=1e-5)


def test_the_gradient_of_a_spectrum_follows_the_convention_for_complex_numbers(rng):
    """dL/da + i dL/db: of the power of a spectrum it is 2 n z, by Parseval."""
    z = rng.standard_normal(6) + 1j * rng.standard_normal(6)
    got = pg.grad(lambda v: pg.sum(pg.abs(pg.fft.fft(v)) ** 2))(pg.asarray(z)).numpy()
    np.testing.assert_allclose(got, 12 * z, rtol=1e-12)


# ---- transforms over other ops -----------------------------------------------------------------------------------


def parts(z):
    return np.stack([z.real, z.imag], -1)


@pytest.mark.parametrize("n", [1, 2, 5, 12, 32, 36, 96, 37, 74, 101, 1024])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_fallback_is_as_accurate_as_the_library(n, dtype, rng):
    z = rng.standard_normal((2, n)) + 1j * rng.standard_normal((2, n))
    limit = 4 * (2 + np.log2(n)) * np.finfo(dtype).eps
    for inverse in (False, True):
        x = leaf(parts(z).astype(dtype))
        got = evaluate(fft_fallback.transformed(F, x, inverse))
        want = parts(np.fft.ifft(z, norm="forward") if inverse else np.fft.fft(z))
        assert got.dtype == dtype
        assert np.linalg.norm(got - want) < limit * np.linalg.norm(want)


@pytest.mark.parametrize("n", [1, 2, 5, 12, 41])
def test_the_fallbacks_of_real_transforms(n, rng):
    x = rng.standard_normal((3, n))
    half = np.fft.rfft(x)
    np.testing.assert_allclose(evaluate(fft_fallback.of_real(F, leaf(x))), parts(half), atol=1e-12)
    odd = half + 1j * np.eye(1, half.shape[-1])  # an imaginary part that no real signal has is unread
    np.testing.assert_allclose(evaluate(fft_fallback.to_real(F, leaf(parts(odd)), n)), n * x, atol=1e-11)


def test_turns_are_right_to_the_last_place_whatever_their_number():
    n, steps = 1_000_003, np.array([0, 1, 250_001, 500_001, 1_000_002, 10**12 + 7, -5])
    c, s = evaluate(*fft_fallback.turned(F, leaf(steps), n, dtypes.float64))
    with mpmath.workdps(40):
        angles = [2 * mpmath.pi * (int(k) % n) / n for k in steps]
        want = np.array([[float(mpmath.cos(a)) for a in angles], [float(mpmath.sin(a)) for a in angles]])
    assert np.abs(np.stack([c, s]) - want).max() < 2.3e-16


def test_lengths_are_split_into_few_factors():
    assert fft_fallback.factors(1 << 20) == [32, 32, 32, 32]
    assert fft_fallback.factors(1) == [1]
    for n in range(1, 500):
        assert np.prod(fft_fallback.factors(n)) == n


@pytest.mark.parametrize("n", [12, 37])
def test_the_fallback_runs_on_a_device(n, device, rng):
    z = (rng.standard_normal((2, n)) + 1j * rng.standard_normal((2, n))).astype(np.complex64)
    x = pg.asarray(parts(z))
    got = pg.Array(fft_fallback.transformed(F, x._node, False)).numpy()
    np.testing.assert_allclose(got[..., 0] + 1j * got[..., 1], np.fft.fft(z), atol=2e-4)
