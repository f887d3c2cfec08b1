"""Compilers that rendered text is given to.

Here: a C compiler, PyOpenCL and nvcc, and the mark of tests that need a program. Not here: tests; the fixture `queue`
(`conftest.py`).
"""

import ctypes
import shutil
import subprocess
import warnings

import pytest

from polygrad.driver.render.dialect import C99, CUDA


def needs(tool):
    return pytest.mark.skipif(shutil.which(tool) is None, reason=f"not run: needs {tool}")


def compile_c(path, text, level="-O1"):
    """Write C to *path*, whose name ends in ``.c``, and return the library that gcc makes of it beside it."""
    path.write_text(text)
    library = path.with_suffix(".so")
    subprocess.run(["gcc", level, *C99.options, "-shared", "-fPIC", str(path), "-o", str(library), "-lm"], check=True)
    return ctypes.CDLL(str(library))


def compile_cuda(folder, text):
    source = folder / "cases.cu"
    source.write_text(text)
    quiet = "-diag-suppress=177,550"  # unused variables
    command = ["nvcc", "-arch=sm_90", "--ptx", *CUDA.options, "-Werror=all-warnings", quiet]
    command += [str(source), "-o", str(folder / "cases.ptx")]
    subprocess.run(command, check=True)
    return (folder / "cases.ptx").read_text()


def build(queue, text):
    cl = pytest.importorskip("pyopencl")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exact = cl.device_fp_config.CORRECTLY_ROUNDED_DIVIDE_SQRT
        gpu = not queue.device.type & cl.device_type.CPU and queue.device.single_fp_config & exact
        return cl.Program(queue.context, text).build(["-cl-fp32-correctly-rounded-divide-sqrt"] if gpu else [])
