"""The OpenCL driver's Fourier transforms: its own kernels, forced where pocketfft would do, and the mapped memory.

Here: lengths of every kind of pass and of the chirp, both directions, real and complex, odd offsets, both precisions.
Not here: ``pg.fft``.
"""

import numpy as np
import pytest

from polygrad.driver import Ref
from polygrad_opencl import devices, linalg
from polygrad_opencl.driver import OpenCLDriver
from polygrad_opencl.fft_source import radices

EPS = {"float32": 6e-8, "float64": 1.2e-16}


@pytest.fixture(scope="module")
def driver():
    if not devices.list_devices():
        pytest.skip("not run: needs an OpenCL device")
    opened = OpenCLDriver()
    opened.info_of = opened.open(0, {})
    yield opened
    opened.close()


@pytest.fixture(params=["own", "mapped"])
def way(request, driver, monkeypatch):
    if request.param == "mapped" and not linalg.able(driver.session):
        pytest.skip("not run: needs a CPU device with unified memory")
    monkeypatch.setenv("POLYGRAD_OPENCL_LINALG", "own" if request.param == "own" else "")
    return request.param


@pytest.fixture
def rng():
    return np.random.default_rng(7)


def ref(driver, array, offset=1):
    array = np.ascontiguousarray(array)
    block = driver.allocate((array.size + offset) * array.itemsize)
    steps = tuple(s // array.itemsize for s in array.strides)
    made = Ref(block, offset, array.shape, steps, array.dtype.name)
    driver.op_write([made], [], {"data": memoryview(array.reshape(-1).view(np.uint8))})
    return made


def call(driver, name, shape, x, **attrs):
    source, made = ref(driver, x), ref(driver, np.full(shape, 77.0, x.dtype))
    getattr(driver, f"op_{name}")([made], [source], attrs)
    out = np.empty(shape, x.dtype)
    driver.op_read([], [made], {"into": memoryview(out.reshape(-1).view(np.uint8))})
    driver.free(source.handle)
    driver.free(made.handle)
    return out


def numbers(x):
    return x[..., 0] + 1j * x[..., 1]


def close(got, want, dtype, n):
    assert np.linalg.norm(got - want) <= 6 * (2 + np.log2(n)) * EPS[dtype] * np.linalg.norm(want)


@pytest.mark.parametrize("dtype", EPS)
@pytest.mark.parametrize("n", [1, 2, 3, 8, 60, 7 * 11 * 13, 4096, 17, 2 * 19, 257])
def test_a_transform_of_any_length_is_as_close_as_its_precision(driver, way, dtype, n, rng):
    if dtype not in driver.info_of.dtypes:
        pytest.skip("not run: needs float64")
    x = rng.standard_normal((2, 3, n, 2)).astype(dtype)
    for inverse in (False, True):
        want = (
            np.fft.ifft(numbers(x.astype(float)), norm="forward") if inverse else np.fft.fft(numbers(x.astype(float)))
        )
        close(numbers(call(driver, "fft", x.shape, x, inverse=inverse)), want, dtype, n)
    real = np.ascontiguousarray(x[..., 0])
    half = np.fft.rfft(real.astype(float))
    close(numbers(call(driver, "rfft", (2, 3, n // 2 + 1, 2), real)), half, dtype, n)
    # Imaginary parts that no real signal's spectrum has are unread.
    half = half + 1j * (np.arange(half.shape[-1]) * 2 % n == 0)
    given = np.stack([half.real, half.imag], -1).astype(dtype)
    close(call(driver, "irfft", (2, 3, n), given, n=n), n * real.astype(float), dtype, n)


def test_lengths_are_split_into_passes():
    for n in range(1, 300):
        found = radices(n)
        assert not found or np.prod(found) == n
    assert radices(17 * 8) == []
