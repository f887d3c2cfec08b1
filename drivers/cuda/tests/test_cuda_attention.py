"""Attention on a GPU: by our kernels in all dtypes, by cuDNN in 16 bits.

Here: both against their definition in float64, at any offset and stride, and that a graph of launches takes them.
Not here: attention as users call it.
"""

import numpy as np
import pytest

import polygrad as pg
from polygrad.driver.render.attention import KERNELS, Tiling
from polygrad_cuda import attention, attention_vendor
from support.operands import attention_and_slopes, numpy_dtype, put, take

DTYPES = ["float32", "float64", "float16", "bfloat16"]
EPS = {"float32": 2.0**-23, "float64": 2.0**-52, "float16": 2.0**-10, "bfloat16": 2.0**-7}
SIZES = [  # batch, rows, columns, heads, shared heads, features, value features, causal
    (1, 1, 1, 1, 1, 8, 8, False),
    (2, 130, 65, 4, 2, 32, 16, True),
    (1, 65, 200, 3, 1, 80, 128, False),
    (2, 64, 129, 2, 2, 7, 5, True),
    (1, 300, 300, 2, 2, 64, 64, True),
]


def test_every_text_names_its_kernel_and_its_types():
    for kernel in KERNELS:
        for dtype in DTYPES:
            text = attention.text_of(kernel, Tiling(20, 7, 2, 1), dtype, causal=True, wide=False)
            assert f"KERNEL void {kernel}(" in text
            assert text.count("ELEMENT;") == 1
            assert ("#define VALUE double" in text) == (dtype == "float64")


@pytest.mark.parametrize("value", ["", "1"])
def test_one_order_of_sums_is_an_option(value, monkeypatch):
    monkeypatch.setenv("POLYGRAD_CUDA_DETERMINISTIC", value)
    assert attention_vendor.one_order_wanted() == (value == "1")


# Each is a few programs to compile: what does not depend on the dtype is tried in float32.
CASES = [(size, "float32", "own") for size in SIZES]
CASES += [(size, d, "own") for d in DTYPES[1:] for size in SIZES[1::2]]
CASES += [(size, d, "vendor") for d in attention_vendor.DTYPES for size in SIZES]


@pytest.mark.parametrize(("sizes", "dtype", "way"), CASES, ids=str)
def test_attention_and_its_gradients(driver, sizes, dtype, way, monkeypatch):
    if way == "own":
        monkeypatch.setattr(attention, "vendor_attention", lambda *_, **__: False)
    batch, rows, columns, heads, shared, features, value_features, causal = sizes
    rng = np.random.default_rng(1)
    mine, theirs = (batch, rows, heads), (batch, columns, shared)
    shapes = [(*mine, features), (*theirs, features), (*theirs, value_features), (*mine, value_features)]
    arrays = [rng.normal(size=s).astype(numpy_dtype(dtype)) for s in shapes]
    want = attention_and_slopes(*[a.astype(np.float64) for a in arrays], 0.3, causal)
    logarithm = "float64" if dtype == "float64" else "float32"
    for gap in (0, 3):
        q, k, v, g = refs = [put(driver, a, dtype, before=0, gap=gap) for a in arrays]
        kinds = (dtype, logarithm, dtype, dtype, dtype)
        out, lse, *slopes = made = [
            put(driver, np.zeros(w.shape), d, before=0) for w, d in zip(want, kinds, strict=True)
        ]
        driver.op_attention([out, lse], [q, k, v], {"scale": 0.3, "causal": causal})
        driver.op_attention_backward(slopes, [q, k, v, out, lse, g], {"scale": 0.3, "causal": causal})
        for ref, value, kind in zip(made, want, kinds, strict=True):
            allowed = 20 * EPS[kind] * max(1.0, np.abs(value).max())
            assert np.abs(take(driver, ref).astype(np.float64) - value).max() <= allowed
        for ref in refs:
            driver.free(ref.handle)


@pytest.mark.usefixtures("driver")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_compiled_steps_launch_it_in_graphs(dtype, monkeypatch):
    monkeypatch.setenv("POLYGRAD_CUDA_DETERMINISTIC", "1")
    rng = np.random.default_rng(2)
    with pg.device("cuda:0"):
        q, k, v, g = (pg.asarray(rng.normal(size=(2, 4, 128, 64)), dtype=dtype) for _ in range(4))

        def step(q, k, v):
            def loss(*x):
                return (pg.nn.functional.scaled_dot_product_attention(*x, is_causal=True) * g).sum()

            return pg.grad(loss, argnums=(0, 1, 2))(q, k, v)

        want = [x.numpy() for x in step(q, k, v)]
        compiled = pg.compile(step)
        for _ in range(4):
            for got, value in zip(compiled(q, k, v), want, strict=True):
                np.testing.assert_array_equal(got.numpy().astype(np.float64), value.astype(np.float64))
