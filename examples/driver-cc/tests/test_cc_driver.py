"""The cc driver against the oracle, in training, and without a compiler.

Here: what is this driver's own. Not here: what holds for every driver (`python -m polygrad conformance cc:0`).
"""

import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from polygrad_driver_cc import plugin
from polygrad_driver_cc.compiler import Compiler

import polygrad as pg
from polygrad.driver import DriverUnavailable, OutOfMemory, Ref, oracle
from polygrad.driver.counters import builds
from polygrad.driver.ir import DTYPES
from polygrad_conformance.random_kernels import compare, random_case

NAMES = os.environ.get("CC", "").split()[:1] or ["cc", "gcc", "clang"]
if not any(map(shutil.which, NAMES)):
    pytest.skip("not run: needs a C compiler", allow_module_level=True)
CASES, BATCH = int(os.environ.get("POLYGRAD_CC_CASES", "200")), 25


@pytest.fixture(scope="module", autouse=True)
def _own_cache(tmp_path_factory):
    """Keep compiled kernels out of the user's cache folder, unless the environment names one."""
    with pytest.MonkeyPatch.context() as patch:
        if "POLYGRAD_CACHE_DIR" not in os.environ:
            patch.setenv("POLYGRAD_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def info():
    info = plugin.polygrad_open("cc", 0, {})
    yield info
    plugin.polygrad_close(info)


def put(info, array, dtype):
    handle = plugin.polygrad_allocate(info, max(array.nbytes, 1))
    data = memoryview(array.view(np.uint8)).toreadonly()
    plugin.polygrad_launch_op(info, "write", (Ref(handle, 0, array.shape, (1,), dtype),), (), {"data": data})
    return handle


def look(info, handle, array, dtype):
    into = memoryview(array.view(np.uint8))
    plugin.polygrad_launch_op(info, "read", (), (Ref(handle, 0, array.shape, (1,), dtype),), {"into": into})


def check(info, seed):
    case = random_case(seed, dtypes=info.dtypes, scalar_ops=info.scalar_ops, reductions=info.reductions)
    got, dtypes = case.fresh(), case.kernel.buffers
    handles = [put(info, array, dtype) for array, dtype in zip(got, dtypes, strict=True)]
    plugin.polygrad_prepare_fused(info, case.kernel)(handles, case.ints, case.scalars)
    for handle, array, dtype in zip(handles, got, dtypes, strict=True):
        look(info, handle, array, dtype)
        plugin.polygrad_free(info, handle)
    compare(case, got)


@pytest.mark.parametrize("first", range(0, CASES, BATCH))
def test_random_kernels_agree_with_the_oracle(info, first):
    for seed in range(first, min(first + BATCH, CASES)):
        check(info, seed)


def test_a_kernel_is_compiled_once_for_all_processes(info):
    check(info, 3)
    before = builds()
    plugin.polygrad_close(info)
    plugin.polygrad_open("cc", 0, {})
    check(info, 3)
    assert builds() == before


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d != "bool"])
def test_products_of_matrices(info, dtype):
    rng = np.random.default_rng(5)
    kind = oracle.compute_dtype(dtype)
    a, b, out = (
        rng.integers(0, 4, (2, 3, 4)).astype(kind),
        rng.integers(0, 4, (4, 5)).astype(kind),
        np.zeros((2, 3, 5), kind),
    )
    handles = [put(info, x.reshape(-1), dtype) for x in (out, a, b)]
    refs = [Ref(handles[0], 0, (2, 3, 5), (15, 5, 1), dtype), Ref(handles[1], 0, (2, 3, 4), (12, 4, 1), dtype)]
    refs.append(Ref(handles[2], 15, (2, 4, 5), (0, -5, 1), dtype))  # the same matrix twice, upside down
    plugin.polygrad_launch_op(info, "matmul", refs[:1], refs[1:], {"precision": "highest"})
    flat = out.reshape(-1)
    look(info, handles[0], flat, dtype)
    np.testing.assert_array_equal(flat.reshape(2, 3, 5).astype(float), a.astype(float) @ b[::-1].astype(float))


def test_the_source_of_a_kernel_is_told(info):
    case = random_case(3, dtypes=info.dtypes, scalar_ops=info.scalar_ops, reductions=info.reductions)
    assert "void" in plugin.polygrad_source(info, case.kernel, case.ints)


def test_absurd_sizes_are_refused(info):
    with pytest.raises(OutOfMemory, match=r"cc:0 cannot allocate 2\d{18,} bytes: 0 of \d+ are in use; drop arrays"):
        plugin.polygrad_allocate(info, 1 << 61)


def test_without_a_compiler_the_driver_is_unavailable(monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler -m64")
    with pytest.raises(
        DriverUnavailable, match=r"CC names 'no-such-compiler', which is not on PATH; install a C compiler"
    ):
        Compiler()
    monkeypatch.delenv("CC")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(DriverUnavailable, match="none of cc, gcc and clang is on PATH"):
        Compiler()
    monkeypatch.setenv("CC", sys.executable)
    with pytest.raises(DriverUnavailable, match="does not compile C; set CC to a C compiler"):
        Compiler()


def test_training_in_a_process_of_its_own():
    if "cc" not in {record.name for record in pg.drivers()}:
        pytest.skip("not run: needs polygrad-driver-cc to be installed (pip install ./examples/driver-cc)")
    program = (
        "import polygrad as pg\n"
        "pg.set_device('cc:0')\n"
        "pg.random.seed(1)\n"
        "x = pg.random.normal((64, 8), dtype=pg.float32)\n"
        "y = pg.sum(x, axis=1, keepdims=True)\n"
        "model = pg.nn.Sequential(pg.nn.Linear(8, 16), pg.nn.ReLU(), pg.nn.Linear(16, 1))\n"
        "optimizer = pg.optim.AdamW(model, lr=1e-2)\n"
        "losses = []\n"
        "for _ in range(60):\n"
        "    optimizer.zero_grad()\n"
        "    loss = pg.mean((model(x) - y) ** 2)\n"
        "    loss.backward()\n"
        "    optimizer.step()\n"
        "    losses.append(float(loss))\n"
        "assert losses[-1] < 0.2 * losses[0], losses\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
