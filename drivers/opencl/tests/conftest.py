"""What several of the OpenCL driver's tests share: a session, an open driver, the two ways of its linear algebra.

Here: the fixtures `session`, `driver` and `way`. Not here: tests.
"""

import pytest

from polygrad_opencl import devices, linalg
from polygrad_opencl.driver import OpenCLDriver
from polygrad_opencl.session import Session


@pytest.fixture(scope="module")
def session():
    if not devices.list_devices():
        pytest.skip("not run: needs an OpenCL device")
    return Session(devices.find_device(0), "opencl:0")


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
    """Whether the driver's own kernels do the work, or a library on mapped memory."""
    if request.param == "mapped" and not linalg.able(driver.session):
        pytest.skip("not run: needs a CPU device with unified memory")
    monkeypatch.setenv("POLYGRAD_OPENCL_LINALG", "own" if request.param == "own" else "")
    return request.param
