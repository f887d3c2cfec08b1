"""The OpenCL driver's Fourier transforms: its own kernels, forced where pocketfft would do, and the mapped memory.

Here: lengths of every kind of pass and of the chirp, both directions, real and complex, odd offsets, both precisions.
Not here: ``pg.fft``.
"""

import numpy as np
import pytest

from polygrad_opencl.fft_source import radices

EPS = {"float32": 6e-8, "float64": 1.2e-16}


def numbers(x):
    return x[..., 0] + 1j * x[..., 1]


def close(got, want, dtype, n):
    assert np.linalg.norm(got - want) <= 6 * (2 + np.log2(n)) * EPS[dtype] * np.linalg.norm(want)


@pytest.mark.parametrize("dtype", EPS)
@pytest.mark.parametrize("n", [1, 2, 3, 8, 60, 7 * 11 * 13, 4096, 17, 2 * 19, 257])
def test_a_transform_of_any_length_is_as_close_as_its_precision(call, driver, way, dtype, n, rng):
    if dtype not in driver.info_of.dtypes:
        pytest.skip("not run: needs float64")
    x = rng.standard_normal((2, 3, n, 2)).astype(dtype)
    for inverse in (False, True):
        want = (
            np.fft.ifft(numbers(x.astype(float)), norm="forward") if inverse else np.fft.fft(numbers(x.astype(float)))
        )
        close(numbers(call("fft", [x.shape], [x], inverse=inverse)[0]), want, dtype, n)
    real = np.ascontiguousarray(x[..., 0])
    half = np.fft.rfft(real.astype(float))
    close(numbers(call("rfft", [(2, 3, n // 2 + 1, 2)], [real])[0]), half, dtype, n)
    # Imaginary parts that no real signal's spectrum has are unread.
    half = half + 1j * (np.arange(half.shape[-1]) * 2 % n == 0)
    given = np.stack([half.real, half.imag], -1).astype(dtype)
    close(call("irfft", [(2, 3, n)], [given], n=n)[0], n * real.astype(float), dtype, n)


def test_lengths_are_split_into_passes():
    for n in range(1, 300):
        found = radices(n)
        assert not found or np.prod(found) == n
    assert radices(17 * 8) == []
