"""How accurate sums of the CPU style in C99 are: many accumulators, and double for float32.

Here: long sums through a C compiler, against float64. Not here: what else kernels compute
(`test_render_expressions.py`, `test_render_gpu.py`).
"""

import ctypes
import itertools

import numpy as np
import pytest

from polygrad.driver.ir import Instr, Kernel, Store, View
from polygrad.driver.render import C99, collapse, cpu_style
from support.compilers import compile_c, needs

EPSILON = 2.0**-23
EACH = itertools.count()


def row_sums(dtype, how="sum", *, product=False):
    """The kernel that reduces the second axis of the first buffer, or of the product of two."""
    loads = (Instr("load", dtype, (), 0), Instr("load", dtype, (), 1), Instr("multiply", dtype, (0, 1)))
    body = (*(loads if product else loads[:1]),)
    body += (Instr("reduce", dtype, (len(body) - 1,), how),)
    count = 2 if product else 1
    views = (*(View(k, dtype, (None, None)) for k in range(count)), View(count, dtype, (1, 0)))
    return Kernel(1, 1, (dtype,) * (count + 1), views, (), body, (Store(len(body) - 1, count),))


def launched(folder, kernel, arrays, ints, items):
    """Compile a kernel for a launch and run its items one after the other."""
    kernel, ints = collapse(kernel, ints)
    plan = cpu_style.plan(kernel, ints, items, C99)
    source, sizes = cpu_style.render(kernel, plan, C99), cpu_style.sizes(kernel, plan, ints, items)
    loaded = compile_c(folder / f"sums{next(EACH)}.c", source.text, "-O2")
    scratch = np.empty(sizes.scratch, np.uint8)
    given = [*(ctypes.c_void_p(a.ctypes.data) for a in arrays), *map(ctypes.c_int64, ints)]
    given += [ctypes.c_int64(sizes.parts), ctypes.c_void_p(scratch.ctypes.data)] if sizes.scratch else []
    for (name, _), count in zip(source.stages, sizes.items, strict=True):
        for item in range(count):
            loaded[name](*given, ctypes.c_int64(item), ctypes.c_int64(count))


@needs("gcc")
@pytest.mark.parametrize("items", [1, 4])
@pytest.mark.parametrize(("rows", "long", "strides"), [(1, 1_000_003, (1_000_003, 1)), (3, 300_007, (300_007, 1)),
                                                 (40, 20_001, (1, 40))])  # fmt: skip
def test_sums_of_float32_are_right_to_one_rounding_of_each_part(tmp_path, items, rows, long, strides):
    rng = np.random.default_rng(3)
    a, b = (rng.random(rows * long, dtype=np.float32) for _ in range(2))
    out = np.zeros(rows, np.float32)
    views = np.lib.stride_tricks.as_strided(a, (rows, long), [4 * s for s in strides]).astype(np.float64)
    launched(tmp_path, row_sums("float32"), (a, out), (rows, long, 0, *strides, 0), items)
    right = views.sum(axis=1)
    assert np.abs(out - right).max() <= 2 * EPSILON * right.max()
    other = np.lib.stride_tricks.as_strided(b, (rows, long), [4 * s for s in strides])
    products = (views.astype(np.float32) * other).astype(np.float64).sum(axis=1)
    kernel, ints = row_sums("float32", product=True), (rows, long, 0, *strides, 0, *strides, 0)
    launched(tmp_path, kernel, (a, b, out), ints, items)
    assert np.abs(out - products).max() <= 2 * EPSILON * products.max()


@needs("gcc")
@pytest.mark.parametrize("how", ["sum", "prod", "max", "min"])
@pytest.mark.parametrize("long", [1, 15, 16, 17, 100])
def test_every_element_is_in_one_accumulator(tmp_path, how, long):
    rng = np.random.default_rng(long)
    for dtype in ("float64", "float32", "int32"):
        a = rng.integers(1, 3, (2, long)).astype(dtype)
        out = np.zeros(2, dtype)
        launched(tmp_path, row_sums(dtype, how), (a, out), (2, long, 0, long, 1, 0), 2)
        if dtype == "int32" or how != "prod":
            np.testing.assert_array_equal(out, getattr(a, how)(axis=1, dtype=dtype) if how in ("sum", "prod") else
                                          getattr(a, how)(axis=1))  # fmt: skip
        else:
            np.testing.assert_allclose(out, a.prod(axis=1), rtol=1e-5)
