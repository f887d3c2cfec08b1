"""The cuda driver's convolutions: through cuDNN and by its own kernels, against definitions in float64.

Here: both ways on a GPU, engines that may not be chosen; the kernels' text compiled for the host where there is no GPU.
Not here: ``pg.conv2d``, whose tests run on every device present.
"""

import ctypes
import shutil
import subprocess

import numpy as np
import pytest

from polygrad.driver import Ref, UnsupportedOp
from polygrad_conformance import window_checks
from polygrad_cuda import convolution, cudnn
from polygrad_cuda.convolution_sources import text

NAMES = {"y": "convolution", "x": "convolution_input", "w": "convolution_weight"}
LIMITS = {"float64": 1e-12, "float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}
HOST = """
#define __global__
#define __device__
#define __shared__ static
#define __launch_bounds__(x)
#define __restrict__
struct Dim { int x, y, z; };
static Dim blockIdx{0, 0, 0}, threadIdx{0, 0, 0}, blockDim{1, 1, 1}, gridDim{1, 1, 1};
static void __syncthreads() {}
"""


@pytest.fixture
def own_kernels(driver, monkeypatch):
    """Take cuDNN away."""
    monkeypatch.setattr(cudnn.Cudnn, "planned", lambda *_, **__: None)


def check_all(call, dtype):
    for wanted, name in NAMES.items():
        for ins, attrs, shape, want in window_checks.convolutions(np.random.default_rng(2), dtype, wanted):
            (got,) = call(name, [shape], ins, **attrs)
            limit = LIMITS[dtype] * max(1, np.abs(want).max())
            np.testing.assert_allclose(got.astype(np.float64), want, atol=limit, err_msg=f"{name} {attrs}")


@pytest.mark.parametrize("dtype", LIMITS)
def test_convolutions_are_right(call, driver, dtype):
    if "convolution" not in driver.described.ops:
        pytest.skip("not run: needs nvidia-cudnn-frontend")
    check_all(call, dtype)


@pytest.mark.parametrize("dtype", LIMITS)
def test_the_drivers_own_kernels_are_right(call, driver, dtype, own_kernels):
    check_all(call, dtype)


def test_float32_is_float32_unless_tf32_is_asked_for(call, driver, rng):
    if "convolution" not in driver.described.ops:
        pytest.skip("not run: needs nvidia-cudnn-frontend")
    x = rng.standard_normal((8, 64, 16, 16)).astype(np.float32)
    w = rng.standard_normal((64, 64, 3, 3)).astype(np.float32)
    attrs = window_checks.Windows((3, 3), (1, 1), (1, 1), (1, 1), (1, 1)).attrs() | {"groups": 1}
    wide, single, narrow = (
        call("convolution", [(8, 64, 16, 16)], [a.astype(dtype) for a in (x, w)], precision=precision, **attrs)[0]
        for dtype, precision in (("float64", "highest"), ("float32", "highest"), ("float32", "tf32"))
    )
    errors = [np.abs(got - wide).max() / np.abs(wide).max() for got in (single, narrow)]
    assert errors[0] < 1e-6
    assert errors[1] < 1e-2
    again = call("convolution", [(8, 64, 16, 16)], [x, w], precision="highest", **attrs)[0]
    assert (again == single).all()
    with pytest.raises(UnsupportedOp, match="convolutions know the precisions 'highest' and 'tf32', not 'low'"):
        call("convolution", [(8, 64, 16, 16)], [x, w], precision="low", **attrs)


class OnTheHost:
    """What `convolution` needs of a driver to launch its kernels, by one thread of the host."""

    def __init__(self, folder):
        # Blocks of one thread have nothing to add up between threads.
        source = HOST + text("float64").replace("256", "1").replace("int half = 128", "int half = 0")
        (folder / "kernels.cpp").write_text(source)
        command = [
            "g++",
            "-O1",
            "-w",
            "-shared",
            "-fPIC",
            "-o",
            str(folder / "kernels.so"),
            str(folder / "kernels.cpp"),
        ]
        subprocess.run(command, check=True)
        self.kernels = ctypes.CDLL(str(folder / "kernels.so"))

    def launch(self, _text, name, _grid, _block, slots, values):
        kinds = {"pointer": ctypes.c_void_p, "int64": ctypes.c_longlong}
        getattr(self.kernels, name)(*[kinds[slot](value) for slot, value in zip(slots, values, strict=True)])


def test_the_text_of_the_kernels_says_what_a_convolution_is(tmp_path):
    if shutil.which("g++") is None:
        pytest.skip("not run: needs g++")
    host = OnTheHost(tmp_path)
    for wanted, name in NAMES.items():
        for ins, attrs, shape, want in window_checks.convolutions(np.random.default_rng(4), "float64", wanted):
            arrays = [*[np.ascontiguousarray(a) for a in ins], np.full(shape, np.nan)]
            refs = [Ref(0, 0, a.shape, (), "float64") for a in arrays]
            convolution._by_kernel(host, name, refs, [a.ctypes.data for a in arrays], attrs)
            np.testing.assert_allclose(arrays[-1], want, atol=1e-11)
