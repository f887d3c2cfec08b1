"""Small products of our own, products that end with a sum, and tuned ones, on a GPU; which are small, without one.

Here: the ops `matmul` and `matmul_add` by sizes that change who computes them. Not here: layouts and dtypes by the
library (`test_cuda_driver.py`), what any driver's products must do (the conformance suite).
"""

import ml_dtypes
import numpy as np
import pytest

from polygrad.driver import Ref
from polygrad_cuda.matmul_plan import plan
from polygrad_cuda.small_products import split_of
from polygrad_cuda.small_products_source import Form, text_of

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
EPS = {"float32": 2.0**-23, "float64": 2.0**-52, "float16": 2.0**-10, "bfloat16": 2.0**-7}


@pytest.mark.parametrize(
    ("shape", "k", "wanted"),
    [((128, 512), 784, 8), ((784, 512), 128, 0), ((128, 10), 256, 8), ((3, 70, 64), 40, 2), ((4096, 768), 768, 0),
     ((64, 64), 100_000, 0), ((1, 1), 1, 1)],
)  # fmt: skip
def test_products_of_few_tiles_and_short_parts_are_small(shape, k, wanted):
    *batch, m, n = shape
    count = len(batch)
    strides = [(*(m * k,) * count, k, 1), (*(k * n,) * count, n, 1), (*(m * n,) * count, n, 1)]
    assert split_of(plan(shape, k, tuple(strides))[0], 132) == wanted


def test_a_program_says_what_it_is():
    text = text_of(Form(4, True, False, True, False, addend=True, relu=False))
    assert text.startswith("#define SPLIT 4\n#define A_INNER 1\n#define B_INNER 0\n#define A_VECTOR 1\n")


@pytest.fixture
def multiply(driver):
    """A function of arrays, as they lie, an addend or None, and attrs, that returns the product."""
    blocks = []

    def put(array):
        base = array
        while isinstance(base.base, np.ndarray):
            base = base.base
        blocks.append(driver.allocate(base.nbytes))
        strides = tuple(s // array.itemsize for s in array.strides)
        offset = (array.__array_interface__["data"][0] - base.__array_interface__["data"][0]) // array.itemsize
        name = array.dtype.name
        data = memoryview(np.ascontiguousarray(base).reshape(-1).view(np.uint8))
        driver.op_write((Ref(blocks[-1], 0, (base.size,), (1,), name),), (), {"data": data})
        return Ref(blocks[-1], offset, array.shape, strides, name)

    def run(a, b, addend=None, **attrs):
        out = np.full((*a.shape[:-1], b.shape[-1]), 77, a.dtype)
        target, operands = put(out), [put(a), put(b)]
        if addend is None:
            driver.op_matmul((target,), operands, attrs)
        else:
            driver.op_matmul_add((target,), [*operands, put(np.broadcast_to(addend, out.shape))], attrs)
        driver.op_read((), (target,), {"into": memoryview(out.reshape(-1).view(np.uint8))})
        return out

    yield run
    for block in blocks:
        driver.free(block)


def drawn(rng, shape, dtype):
    return rng.standard_normal(shape).astype(BFLOAT16 if dtype == "bfloat16" else dtype)


def near(got, want, dtype, terms):
    bound = 8 * EPS[dtype] * np.sqrt(terms) * max(1.0, float(np.abs(want).max()))
    assert np.abs(got.astype(np.float64) - want).max() <= bound


TURNS = {
    "as it lies": lambda draw, m, n: draw((m, n)),
    "transposed": lambda draw, m, n: draw((n, m)).T,
    "sliced": lambda draw, m, n: draw((m + 1, n + 3))[1:, 3:],
    "transposed and sliced": lambda draw, m, n: draw((n + 1, m + 1))[1:, 1:].T,
}


@pytest.mark.parametrize("left", TURNS)
@pytest.mark.parametrize("right", TURNS)
@pytest.mark.parametrize(
    "size", [(1, 1, 1), (64, 64, 16), (65, 130, 77), (128, 10, 256), (70, 3, 1000), (300, 500, 90)]
)
def test_small_products_of_any_size_and_layout(multiply, rng, size, left, right):
    m, n, k = size
    draw = lambda shape: drawn(rng, shape, "float32")
    a, b, c = TURNS[left](draw, m, k), TURNS[right](draw, k, n), draw(n)
    wide = a.astype(np.float64) @ b
    near(multiply(a, b), wide, "float32", k)
    near(multiply(a, b, c, activation="relu"), np.maximum(wide + c, 0), "float32", k)
    assert np.array_equal(multiply(a, b), multiply(a, b))


@pytest.mark.parametrize("tune", [False, True])
@pytest.mark.parametrize("dtype", sorted(EPS))
@pytest.mark.parametrize("batch", [(), (3,), (2, 3), (7, 2)])
def test_products_end_with_a_sum_whoever_computes_them(multiply, rng, batch, dtype, tune):
    for m, k, n in ((5, 3, 7), (1000, 96, 1200)):
        if batch and m > 5:
            continue
        a, b = (drawn(rng, (*batch, *s), dtype) for s in ((m, k), (k, n)))
        wide = np.matmul(a.astype(np.float64), b.astype(np.float64))
        for c in (drawn(rng, n, dtype), drawn(rng, wide.shape, dtype)):
            total = wide + c.astype(np.float64)
            near(multiply(a, b, c, tune=tune), total, dtype, k)
            near(multiply(a, b, c, activation="relu", tune=tune), np.maximum(total, 0), dtype, k)
        near(multiply(a, b, tune=tune), wide, dtype, k)


def test_addends_that_are_not_aligned_arrive(multiply, rng):
    a, b, c = drawn(rng, (1000, 96), "float16"), drawn(rng, (96, 1200), "float16"), drawn(rng, 1201, "float16")
    want = a.astype(np.float64) @ b + c[1:]
    near(multiply(a, b, c[1:]), want, "float16", 96)


def test_what_is_tuned_is_remembered(multiply, rng, driver):
    a, b = drawn(rng, (2048, 512), "float32"), drawn(rng, (512, 1024), "float32")
    first = multiply(a, b, tune=True)
    count = len(driver.products().library().tuned)
    assert count
    assert np.array_equal(multiply(a, b, tune=True), first)
    assert len(driver.products().library().tuned) == count
