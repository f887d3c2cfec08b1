"""What several of the CUDA driver's tests share: the driver, opened on a GPU.

Here: the fixtures `gpu` and `driver`, which are the same; the fixture `call` (`drivers/conftest.py`) wants the latter.
Not here: tests.
"""

import importlib.util

import pytest

from polygrad.driver import DriverUnavailable
from polygrad_cuda.driver import CudaDriver


@pytest.fixture(scope="module")
def gpu():
    if importlib.util.find_spec("cupy") is None:
        pytest.skip("not run: needs CuPy and an NVIDIA GPU")
    opened = CudaDriver()
    try:
        opened.described = opened.open(0, {})
    except DriverUnavailable as error:
        pytest.skip(f"not run: needs an NVIDIA GPU ({error})")
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def driver(gpu):
    return gpu
