"""The torch driver against the oracle and in training.

Here: what is this driver's own. Not here: what holds for every driver (`python -m polygrad conformance torch:0`).
"""

import os
import subprocess
import sys

import numpy as np
import pytest
from polygrad_driver_torch import plugin

import polygrad as pg
from polygrad.driver import OutOfMemory, Ref, oracle
from polygrad_conformance.random_kernels import compare, random_case

pytest.importorskip("torch", reason="not run: needs torch")
CASES, BATCH = int(os.environ.get("POLYGRAD_TORCH_CASES", "200")), 50


@pytest.fixture
def info():
    info = plugin.polygrad_open("torch", 0, {})
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
    return array


@pytest.mark.parametrize("first", range(0, CASES, BATCH))
def test_random_kernels_agree_with_the_oracle(info, first):
    for seed in range(first, min(first + BATCH, CASES)):
        case = random_case(seed, dtypes=info.dtypes, scalar_ops=info.scalar_ops, reductions=info.reductions)
        got, dtypes = case.fresh(), case.kernel.buffers
        handles = [put(info, array, dtype) for array, dtype in zip(got, dtypes, strict=True)]
        plugin.polygrad_prepare_fused(info, case.kernel)(handles, case.ints, case.scalars)
        for handle, array, dtype in zip(handles, got, dtypes, strict=True):
            look(info, handle, array, dtype)
            plugin.polygrad_free(info, handle)
        compare(case, got)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "uint8", "uint16", "int64"])
def test_products_of_matrices(info, dtype):
    rng = np.random.default_rng(5)
    kind = oracle.compute_dtype(dtype)
    a, b, out = (x.astype(kind) for x in (rng.integers(0, 4, (2, 3, 4)), rng.integers(0, 4, (4, 5)), np.zeros(30)))
    handles = [put(info, x.reshape(-1), dtype) for x in (out, a, b)]
    refs = [Ref(handles[0], 0, (2, 3, 5), (15, 5, 1), dtype), Ref(handles[1], 0, (2, 3, 4), (12, 4, 1), dtype)]
    refs.append(Ref(handles[2], 15, (2, 4, 5), (0, -5, 1), dtype))  # the same matrix twice, upside down
    plugin.polygrad_launch_op(info, "matmul", refs[:1], refs[1:], {"precision": "highest"})
    flat = look(info, handles[0], out, dtype)
    np.testing.assert_array_equal(flat.reshape(2, 3, 5).astype(float), a.astype(float) @ b[::-1].astype(float))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_wide_numbers_are_rounded_to_sixteen_bits_once(info, dtype):
    from polygrad.driver import Instr, Kernel, Store, View

    for source, values in (
        ("float64", [1 + 2.0**-11 + 2.0**-40, 1 + 2.0**-9 + 2.0**-40, 65519.999, -(1 + 2.0**-11 - 2.0**-40)]),
        ("int64", [(1 << 62) + (1 << 54) + 1, -(1 << 62) - (1 << 54) - 1, (1 << 62) + (1 << 54), 257]),
    ):
        a, out = np.array(values, source), np.zeros(4, oracle.compute_dtype(dtype))
        body = (Instr("load", source, (), 0), Instr("cast", dtype, (0,)))
        views = (View(0, source, (1,)), View(1, dtype, (1,)))
        kernel = Kernel(1, 0, (source, dtype), views, (), body, (Store(1, 1),))
        want = out.copy()
        oracle.run(kernel, [a, want], (4, 0, 0), ())
        handles = [put(info, a, source), put(info, out, dtype)]
        plugin.polygrad_prepare_fused(info, kernel)(handles, (4, 0, 0), ())
        np.testing.assert_array_equal(look(info, handles[1], out, dtype).astype(float), want.astype(float))


def test_absurd_sizes_are_refused(info):
    with pytest.raises(OutOfMemory, match=r"torch:0 cannot allocate 2\d{18,} bytes: 0 of \d+ are in use; drop arrays"):
        plugin.polygrad_allocate(info, 1 << 61)


def test_training_in_a_process_of_its_own():
    if "torch" not in {record.name for record in pg.drivers()}:
        pytest.skip("not run: needs polygrad-driver-torch to be installed (pip install ./examples/driver-torch)")
    program = (
        "import polygrad as pg\n"
        "curves = []\n"
        "for device in ('cpu:0', 'torch:0'):\n"
        "    pg.set_device(device)\n"
        "    pg.random.seed(1)\n"
        "    x = pg.random.normal((64, 8), dtype=pg.float32)\n"
        "    y = pg.sum(x, axis=1, keepdims=True)\n"
        "    model = pg.nn.Sequential(pg.nn.Linear(8, 16), pg.nn.ReLU(), pg.nn.Linear(16, 1))\n"
        "    optimizer = pg.optim.AdamW(model, lr=1e-2)\n"
        "    losses = []\n"
        "    for _ in range(30):\n"
        "        optimizer.zero_grad()\n"
        "        loss = pg.mean((model(x) - y) ** 2)\n"
        "        loss.backward()\n"
        "        optimizer.step()\n"
        "        losses.append(float(loss))\n"
        "    curves.append(losses)\n"
        "assert losses[-1] < 0.5 * losses[0], losses\n"
        "assert max(abs(a - b) for a, b in zip(*curves)) < 1e-4, curves\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
