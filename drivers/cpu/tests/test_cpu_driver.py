"""The cpu driver against the oracle, against definitions, and against itself.

Here: kernels in every way of running them, ops, memory, threads. Not here: what holds for every driver (the
conformance suite).
"""

import math
import multiprocessing
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from polygrad.driver import DriverUnavailable, Instr, Kernel, OutOfMemory, Ref, Store, View, oracle
from polygrad.driver.counters import builds
from polygrad_conformance.random_kernels import compare, random_case
from polygrad_cpu.driver import CpuDriver
from polygrad_cpu.error_function import erf32, erf64
from polygrad_cpu.philox import words
from polygrad_cpu.program import prepare
from polygrad_cpu.reduction import Pile, reducer
from polygrad_cpu.settings import Settings, read_settings
from polygrad_cpu.workers import share

CASES = int(os.environ.get("POLYGRAD_CPU_CASES", "150"))
# threads, block bytes, nanoseconds from which work is split, bytes up to which a launch is one call
WAYS = {
    "as shipped": Settings(threads=2),
    "blocks of 64 bytes on two threads": Settings(2, 64, 1, 1),
    "blocks of 8 bytes on two threads": Settings(2, 8, 1, 1),
    "blocks of 256 bytes on one thread": Settings(1, 256, 10**12, 1 << 16),
    "blocks of 1 KiB on three threads": Settings(3, 1024, 1, 1),
    "one block in shared scratch": Settings(1, 1 << 19, 10**12, 1),
}


@pytest.mark.parametrize("settings", WAYS.values(), ids=WAYS.keys())
def test_random_kernels_agree_with_the_oracle_however_they_are_cut(settings):
    for seed in range(CASES):
        case = random_case(seed)
        launch = prepare(case.kernel, settings)
        for _ in range(2):  # the second launch finds its plan and its registers used
            got = case.fresh()
            launch([b.view(np.uint8) for b in got], case.ints, case.scalars)
            compare(case, got)


def kernel_of(parallel, reduced, views, body, stores, status=-1):
    count = 1 + max(v.buffer for v in views)
    dtypes = {v.buffer: v.dtype for v in views} | ({status: "int32"} if status >= 0 else {})
    return Kernel(
        parallel, reduced, tuple(dtypes.get(b, "int32") for b in range(max(count, status + 1))), tuple(views), (),
        tuple(body), tuple(stores), status,
    )  # fmt: skip


def run(kernel, arrays, ints, scalars=(), settings=WAYS["as shipped"]):
    prepare(kernel, settings)([a.reshape(-1).view(np.uint8) for a in arrays], tuple(ints), scalars)


def softmax(strides):
    body = (
        Instr("load", "float32", (), 0), Instr("reduce", "float32", (0,), "max"), Instr("subtract", "float32", (0, 1)),
        Instr("exp", "float32", (2,)), Instr("reduce", "float32", (3,), "sum"), Instr("divide", "float32", (3, 4)),
    )  # fmt: skip
    return kernel_of(1, 1, [View(0, "float32", strides), View(1, "float32", strides)], body, [Store(5, 1)])


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 70_000), (1, 1_500_000), (2000, 9), (9, 2000), (700, 701)])
@pytest.mark.parametrize("along_rows", [True, False])
def test_softmax_of_every_shape_keeps_or_recomputes_and_agrees(rows, columns, along_rows):
    x = np.random.default_rng(0).standard_normal((rows, columns), dtype=np.float32)
    out = np.zeros_like(x)
    if along_rows:
        run(softmax((None, 1)), [x, out], (rows, columns, 0, columns, 0, columns))
    else:
        run(softmax((1, None)), [x, out], (columns, rows, 0, columns, 0, columns))
    axis = 1 if along_rows else 0
    e = np.exp(x.astype(np.float64) - x.max(axis, keepdims=True))
    np.testing.assert_allclose(out, e / e.sum(axis, keepdims=True), rtol=1e-5)


def test_a_full_sum_is_as_accurate_as_a_pairwise_one():
    n = 1 << 22
    x = np.random.default_rng(1).random(n, dtype=np.float32)
    out = np.zeros(1, np.float32)
    kernel = kernel_of(
        0, 1, [View(0, "float32", (1,)), View(1, "float32", (0,))],
        [Instr("load", "float32", (), 0), Instr("reduce", "float32", (0,), "sum")], [Store(1, 1)],
    )  # fmt: skip
    run(kernel, [x, out], (n, 0, 0))
    exact = math.fsum(x.tolist())
    assert abs(float(out[0]) - exact) / exact < 4e-7


def test_a_sum_of_columns_does_not_add_row_after_row():
    n = 1 << 19
    x = np.random.default_rng(1).random((n, 8), dtype=np.float32)
    out = np.zeros((8, 64), np.float32)
    wide = np.repeat(x[: n // 8], 8, axis=1)
    kernel = kernel_of(
        1, 1, [View(0, "float32", (1, None)), View(1, "float32", (1, 0))],
        [Instr("load", "float32", (), 0), Instr("reduce", "float32", (0,), "sum")], [Store(1, 1)],
    )  # fmt: skip
    for a in (x, wide):
        run(kernel, [a, out], (a.shape[1], len(a), 0, a.shape[1], 0))
        exact = a.sum(0, dtype=np.float64)
        assert np.abs(out.reshape(-1)[: a.shape[1]] - exact).max() / exact.max() < 1e-6


@pytest.mark.parametrize(
    "shape", [(100_000, 3), (3, 100_000), (50_000, 1), (1, 50_000), (4097, 33), (300, 400), (1031, 90)]
)
@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("kind", ["sum", "max", "min", "prod"])
def test_blocks_of_every_shape_are_reduced_right(shape, axes, kind):
    a = (np.random.default_rng(2).integers(-5, 6, shape)).astype(np.int64)
    out = np.zeros([1 if k in axes else n for k, n in enumerate(shape)], np.int64)
    reducer(kind, shape, shape, axes)(a, out)
    want = {"sum": np.sum, "max": np.max, "min": np.min, "prod": np.prod}[kind](a, axis=axes, keepdims=True)
    np.testing.assert_array_equal(out, want)


@pytest.mark.parametrize("kind", ["sum", "max"])
@pytest.mark.parametrize("axes", [(2,), (4,), (2, 4), (1, 2, 4)])
def test_a_few_elements_of_strided_memory_are_reduced_right(axes, kind):
    whole = np.random.default_rng(3).integers(-50, 51, (40, 3, 7, 4, 9, 3)).astype(np.float32)
    a = whole.transpose(0, 1, 3, 2, 5, 4)[:, ::2, ::3, :, :2]
    shape = a.shape
    out = np.zeros([1 if k in axes else n for k, n in enumerate(shape)], np.float32)
    reducer(kind, shape, shape, axes)(a, out)
    want = {"sum": np.sum, "max": np.max}[kind](a, axis=axes, keepdims=True)
    np.testing.assert_array_equal(out, want)


def test_a_value_that_does_not_vary_counts_once_for_each_index():
    out = np.zeros((2, 1))
    reducer("sum", (2, 1), (2, 7), (1,))(np.array([[1.0], [2.0]]), out)
    np.testing.assert_array_equal(out.ravel(), [7, 14])


def test_piles_combine_any_number_of_parts():
    for n in range(1, 20):
        pile = Pile("sum", (1,), np.dtype(np.int64))
        for k in range(n):
            pile.push(np.array([k]))
        assert int(pile.total()[0]) == n * (n - 1) // 2


def test_integer_division_and_shifts_never_trap_and_truncate():
    values = np.array([-(2**31), -7, -1, 0, 1, 7, 2**31 - 1], np.int32)
    a, b = (np.ascontiguousarray(v).ravel() for v in np.meshgrid(values, values))
    ops = ("quotient", "modulo", "bitwise_left_shift", "bitwise_right_shift")
    views = [View(k, "int32", (1,)) for k in range(6)]
    body = [Instr("load", "int32", (), 0), Instr("load", "int32", (), 1), *(Instr(op, "int32", (0, 1)) for op in ops)]
    kernel = kernel_of(1, 0, views, body, [Store(2 + k, 2 + k) for k in range(4)])
    got = [a, b, *(np.zeros_like(a) for _ in ops)]
    want = [v.copy() for v in got]
    run(kernel, got, (len(a), *(0,) * 6))
    oracle.run(kernel, want, (len(a), *(0,) * 6), ())
    for op, x, y in zip(ops, got[2:], want[2:], strict=True):
        np.testing.assert_array_equal(x, y, op)


@pytest.mark.parametrize("n", [3, 5000])
@pytest.mark.parametrize("dtype", ["bool", "int8", "int16", "float16", "bfloat16", "float32", "float64"])
def test_where_selects_bits_and_lets_no_nan_through(n, dtype):
    rng = np.random.default_rng(3)
    target = oracle.compute_dtype(dtype)
    c = rng.random(n) < 0.5
    a, b = (rng.integers(0, 2, n).astype(np.float32) for _ in range(2))
    if dtype not in ("bool", "int8", "int16"):
        a[~c], b[c] = np.nan, np.inf
    a, b = a.astype(target), b.astype(target)
    body = (
        Instr("load", "bool", (), 0), Instr("load", dtype, (), 1), Instr("load", dtype, (), 2),
        Instr("where", dtype, (0, 1, 2)),
        Instr("const", dtype, (), 0), Instr("where", dtype, (0, 1, 4)), Instr("where", dtype, (0, 4, 2)),
    )  # fmt: skip
    views = [View(0, "bool", (1,)), *(View(k, dtype, (1,)) for k in range(1, 6))]
    got = [c, a, b, *(np.zeros_like(a) for _ in range(3))]
    run(kernel_of(1, 0, views, body, [Store(3, 3), Store(5, 4), Store(6, 5)]), got, (n, *(0,) * 6))
    zero = np.zeros_like(a)
    for found, want in zip(got[3:], (np.where(c, a, b), np.where(c, a, zero), np.where(c, zero, b)), strict=True):
        assert found.tobytes() == want.tobytes()


def test_float64_and_int64_are_rounded_to_bfloat16_once():
    half_way = 1 + 2**-8  # between two neighbours in bfloat16
    x = np.array([half_way, half_way + 2**-40, half_way - 2**-40, -half_way - 2**-40, np.inf, np.nan, 0.0, 1e-41])
    want = [1.0, 1 + 2**-7, 1.0, -1 - 2**-7]
    out = np.zeros(8, oracle.BFLOAT16)
    body = [Instr("load", "float64", (), 0), Instr("cast", "bfloat16", (0,))]
    run(
        kernel_of(1, 0, [View(0, "float64", (1,)), View(1, "bfloat16", (1,))], body, [Store(1, 1)]), [x, out], (8, 0, 0)
    )
    assert out[:4].astype(np.float64).tolist() == want
    assert np.isinf(out[4].astype(np.float32))
    assert np.isnan(out[5].astype(np.float32))
    i = np.array([2**62 + 2**54, 2**62 + 2**54 + 1], np.int64)
    out = np.zeros(2, oracle.BFLOAT16)
    body = [Instr("load", "int64", (), 0), Instr("cast", "bfloat16", (0,))]
    run(kernel_of(1, 0, [View(0, "int64", (1,)), View(1, "bfloat16", (1,))], body, [Store(1, 1)]), [i, out], (2, 0, 0))
    assert out.astype(np.float64).tolist() == [2.0**62, 2.0**62 + 2.0**55]


@pytest.mark.parametrize(("dtype", "ceiling"), [(np.float32, 8), (np.float64, 2)])
def test_erf_is_within_a_few_ulp_of_the_c_library(dtype, ceiling):
    x = np.concatenate([np.linspace(-7, 7, 20_001), np.logspace(-30, 0, 5001), [0.0, np.inf, -np.inf]]).astype(dtype)
    got = np.empty_like(x)
    if dtype == np.float32:
        erf32(x, got, *np.empty((3, len(x)), dtype))
    else:
        erf64(x, got)
    want = np.array([math.erf(float(v)) for v in x])
    ulp = np.abs(got - want) / np.spacing(np.abs(want).astype(dtype))
    assert ulp.max() <= ceiling
    assert np.abs(got).max() == 1


@pytest.mark.parametrize(("dtype", "stride"), [("float32", 4), ("float64", 8), ("int32", 4), ("int64", 8)])
def test_strided_to_strided_negation_is_right_whatever_numpy_does(dtype, stride):
    x = np.arange(1, 100 * stride + 1).astype(dtype)
    out = np.zeros(300, dtype)
    body = [Instr("load", dtype, (), 0), Instr("negative", dtype, (0,))]
    kernel = kernel_of(1, 0, [View(0, dtype, (None,)), View(1, dtype, (None,))], body, [Store(1, 1)])
    run(kernel, [x, out], (100, 0, stride, 0, 3))
    np.testing.assert_array_equal(out[::3], -(x[::stride].copy()))


def test_operands_in_any_memory_order_and_short_axes_agree():
    rng = np.random.default_rng(4)
    n, m = 700, 600
    a, b, w = rng.random((n, m)), rng.random((m, n)), rng.random((n, 3))
    out = np.zeros((n, m))
    views = [View(0, "float64", (None, 1)), View(1, "float64", (1, None)), View(2, "float64", (None, 1))]
    body = [Instr("load", "float64", (), 0), Instr("load", "float64", (), 1), Instr("subtract", "float64", (0, 1))]
    run(kernel_of(2, 0, views, body, [Store(2, 2)]), [a, b, out], (n, m, 0, m, 0, n, 0, m))
    np.testing.assert_array_equal(out, a - b.T)
    sums = np.zeros(n)
    views = [View(0, "float64", (None, 1)), View(1, "float64", (0, 1)), View(2, "float64", (1, 0))]
    body[2:] = [Instr("multiply", "float64", (0, 1)), Instr("reduce", "float64", (2,), "sum")]
    run(kernel_of(1, 1, views, body, [Store(3, 2)]), [w, w[0], sums], (n, 3, 0, 3, 0, 0))
    np.testing.assert_allclose(sums, w @ w[0], rtol=1e-14)


def embedding(rows, columns, size):
    views = [View(0, "int64", (1, 0)), View(1, "float32", (0, 1), gathers=1), View(3, "float32", (None, 1))]
    body = [Instr("load", "int64", (), 0), Instr("load", "float32", (0,), 1)]
    kernel = kernel_of(2, 0, views, body, [Store(1, 2)], status=2)
    return kernel, (rows, columns, 0, 0, columns, size, 0, columns, 77)


def test_rows_are_gathered_wrapped_and_bad_indices_reported():
    table = np.arange(5 * 40, dtype=np.float32).reshape(5, 40)
    index = np.array([0, 4, -1, 2], np.int64)
    status, out = np.zeros(4, np.int32), np.zeros((4, 40), np.float32)
    kernel, ints = embedding(4, 40, 5)
    run(kernel, [index, table, status, out], ints)
    np.testing.assert_array_equal(out, table[index])
    assert status.tolist() == [0, 0, 0, 0]
    index[1:] = (-6, 9, 1)
    run(kernel, [index, table, status, out], ints)
    np.testing.assert_array_equal(out, table[[0, 0, 4, 1]])
    assert status.tolist() == [77, 1, -6, -1]


def test_a_gathered_constant_that_is_stored_may_be_computed_with():
    views = [
        View(0, "float64", (0,), gathers=1),
        View(1, "float64", (1,)),
        View(3, "float64", (1,)),
        View(4, "float64", (1,)),
    ]
    body = [
        Instr("const", "int64", (), 2), Instr("load", "float64", (0,), 0), Instr("load", "float64", (), 1),
        Instr("add", "float64", (1, 1)), Instr("multiply", "float64", (3, 2)),
    ]  # fmt: skip
    kernel = kernel_of(1, 0, views, body, [Store(1, 2), Store(4, 3)], status=2)
    table, x = np.arange(5.0), np.arange(7.0)
    status, taken, out = np.zeros(4, np.int32), np.zeros(7), np.zeros(7)
    run(kernel, [table, x, status, taken, out], (7, 0, 1, 5, 0, 0, 0, 77))
    np.testing.assert_array_equal(taken, np.full(7, 2.0))
    np.testing.assert_array_equal(out, 4 * x)


def test_a_structure_is_built_once_and_new_extents_build_nothing():
    kernel = softmax((None, 1))._replace(scalars=("float32",))  # a structure that no other test has
    before = builds()
    launch = prepare(kernel, Settings())
    x, out = np.ones((8, 64), np.float32), np.zeros((8, 64), np.float32)
    for rows in range(1, 9):
        launch([x.reshape(-1).view(np.uint8), out.reshape(-1).view(np.uint8)], (rows, 64, 0, 64, 0, 64), (1.0,))
    assert builds() == before + 1


def test_plans_do_not_pile_up():
    body = [Instr("load", "float32", (), 0), Instr("negative", "float32", (0,))]
    kernel = kernel_of(1, 0, [View(0, "float32", (1,)), View(1, "float32", (1,))], body, [Store(1, 1)])
    x, out = np.ones(2000, np.float32), np.zeros(2000, np.float32)
    launch = prepare(kernel, Settings())
    for offset in range(1999):
        launch([x.view(np.uint8), out.view(np.uint8)], (1, offset, offset), ())
    assert (out[:1999] == -1).all()
    held = [c.cell_contents for c in launch.__closure__]
    plans = next(h for h in held if hasattr(h, "older"))
    assert len(plans.recent) + len(plans.older) <= 128


# ---- ops -----------------------------------------------------------------------------------------------------


def ref(array):
    size = array.itemsize
    base = array
    while base.base is not None and isinstance(base.base, np.ndarray):
        base = base.base
    flat = base.reshape(-1).view(np.uint8)
    offset = (array.ctypes.data - flat.ctypes.data) // size
    return Ref(flat, offset, array.shape, tuple(s // size for s in array.strides), array.dtype.name)


def launch_op(driver, op, outs, ins, **attrs):
    getattr(driver, f"op_{op}")([ref(o) for o in outs], [ref(i) for i in ins], attrs)


def philox(key, counter):
    """Philox-4x32-10 of Salmon et al. (2011), one counter at a time; *key* has two words, *counter* four."""
    k0, k1 = key
    c = list(counter)
    for _ in range(10):
        high0, low0 = divmod(0xD2511F53 * c[0], 2**32)
        high1, low1 = divmod(0xCD9E8D57 * c[2], 2**32)
        c = [high1 ^ c[1] ^ k0, low1, high0 ^ c[3] ^ k1, low0]
        k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
    return c


def test_philox_gives_the_published_answers():
    answers = {
        ((0, 0), (0, 0, 0, 0)): (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8),
        ((2**32 - 1,) * 2, (2**32 - 1,) * 4): (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
        ((0xA4093822, 0x299F31D0), (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)): (
            0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1,
        ),
    }  # fmt: skip
    for (key, counter), answer in answers.items():
        assert tuple(philox(key, counter)) == answer
    out = np.empty((1, 4), np.uint32)
    words(out, 0, 0)
    assert tuple(out[0].tolist()) == answers[(0, 0), (0, 0, 0, 0)]


@pytest.mark.parametrize("counter", [0, 12345, 2**32 - 2, 2**64 - 2])
@pytest.mark.parametrize("n", [1, 4, 11, 200_003])
def test_random_bits_are_those_of_the_scalar_definition(driver, counter, n):
    key = 0x1234567890ABCDEF
    out = np.zeros(n, np.uint32)
    launch_op(driver, "random_bits", [out], [], key=key, counter=counter)
    for e in {0, 1, n // 2, n - 1} & set(range(n)):
        at = (counter + e // 4) % 2**64
        assert int(out[e]) == philox((key % 2**32, key >> 32), (at % 2**32, at >> 32, 0, 0))[e % 4]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int8", "int32", "uint64"])
def test_matmul_of_any_strides_agrees_with_the_definition(driver, dtype):
    rng = np.random.default_rng(5)
    target = oracle.compute_dtype(dtype)

    def draw(*shape):
        return rng.integers(0 if dtype[0] == "u" else -4, 5, shape).astype(target)

    a, b = draw(3, 17, 40), draw(3, 40, 23)
    for x, y in (
        (a, b), (a, np.broadcast_to(b[0], b.shape)), (np.broadcast_to(a[0], a.shape), b),
        (draw(3, 40, 17).swapaxes(1, 2), draw(3, 23, 40).swapaxes(1, 2)), (draw(3, 17, 80)[:, :, ::2], b),
        (a[:, ::-1, :], b[:, :, ::-1]), (draw(17, 40), draw(40, 23)), (draw(1, 40), draw(40, 1)),
    ):  # fmt: skip
        out = np.zeros((*x.shape[:-1], y.shape[-1]), target)
        launch_op(driver, "matmul", [out], [x, y])
        want = np.matmul(x.astype(np.float64), y.astype(np.float64))
        if dtype == "int8":
            want = want.astype(np.int64).astype(np.int8)
        np.testing.assert_array_equal(out.astype(np.float64), want.astype(target).astype(np.float64))


def test_big_integer_products_wrap_as_integers_do(driver):
    a = np.full((64, 64), 2**31 - 1, np.int32)
    out = np.zeros_like(a)
    launch_op(driver, "matmul", [out], [a, a])
    np.testing.assert_array_equal(out, a @ a)
    small = np.full((64, 64), 3, np.int32)
    launch_op(driver, "matmul", [out], [small, small])
    np.testing.assert_array_equal(out, small @ small)


@pytest.mark.parametrize("width", [1, 5, 300])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int64"])
def test_scatter_add_accumulates_duplicates_and_drops_bad_rows(driver, width, dtype):
    rng = np.random.default_rng(6)
    index = rng.integers(-7, 7, 500)
    values = rng.integers(-3, 4, (500, width)).astype(dtype)
    out, status = np.full((7, width), 9, dtype), np.zeros(4, np.int32)
    want = np.zeros((7, width))
    np.add.at(want, index, values)
    launch_op(driver, "scatter_add", [out], [index, values], status=status, tag=5)
    np.testing.assert_array_equal(out, want)
    assert status[0] == 0
    index[3] = 7
    launch_op(driver, "scatter_add", [out], [index, values], status=status, tag=5)
    assert status.tolist() == [5, 0, 7, 0]


@pytest.mark.parametrize("width", [1, 5, 300])
@pytest.mark.parametrize("mode", ["max", "min", "multiply"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "uint8"])
def test_scatter_reduce_combines_duplicates_and_drops_bad_rows(driver, width, mode, dtype):
    function = {"max": np.maximum, "min": np.minimum, "multiply": np.multiply}[mode]
    start = 1 if mode == "multiply" else {"max": -np.inf, "min": np.inf}[mode]
    if "float" not in dtype and mode != "multiply":
        start = np.iinfo(dtype).min if mode == "max" else np.iinfo(dtype).max
    rng = np.random.default_rng(6)
    index, values = rng.integers(-7, 6, 12), rng.integers(0, 4, (12, width)).astype(dtype)
    out, status = np.full((8, width), 9).astype(dtype), np.zeros(4, np.int32)
    want = np.full((8, width), start).astype(dtype)
    function.at(want, index[1:], values[1:])
    index[0] = 8
    launch_op(driver, "scatter_reduce", [out], [index, values], mode=mode, status=status, tag=5)
    np.testing.assert_array_equal(out, want)
    assert status.tolist() == [5, 0, 8, 0]


@pytest.mark.parametrize("shape", [(), (5,), (300, 400), (3, 200, 150)])
def test_copies_take_any_strides(driver, shape):
    x = np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
    for y in (x, x.T, x[::-1] if shape else x, np.broadcast_to(x, (2, *shape))):
        out = np.zeros(y.shape, np.float32)
        launch_op(driver, "copy", [out], [y])
        np.testing.assert_array_equal(out, y)


def test_bytes_go_in_and_out(driver):
    handle = driver.allocate(24)
    at = Ref(handle, 1, (2,), (1,), "float64")
    driver.op_write([at], [], {"data": memoryview(np.array([1.5, 2.5])).cast("B")})
    into = bytearray(16)
    driver.op_read([], [at], {"into": memoryview(into)})
    assert np.frombuffer(into).tolist() == [1.5, 2.5]
    driver.free(handle)


# ---- memory, threads, processes ------------------------------------------------------------------------------


def test_blocks_are_aligned_and_counted(driver):
    handles = [driver.allocate(n) for n in (1, 63, 64, 5_000_000)]
    assert [len(h) for h in handles] == [1, 63, 64, 5_000_000]
    assert all(h.ctypes.data % driver.info_of.limits.alignment == 0 for h in handles)
    assert driver.memory.used == sum(map(len, handles))
    for h in handles:
        driver.free(h)
    assert driver.memory.used == 0


def test_what_cannot_fit_is_refused_in_a_sentence(driver):
    total = driver.info_of.limits.total
    for nbytes in (total + 1, 1 << 60):
        with pytest.raises(
            OutOfMemory, match=f"cpu:0 cannot allocate {nbytes} bytes: {total} of {total} are not allocated"
        ):
            driver.allocate(nbytes)
    info = driver.memory_info()
    assert 0 < info.free <= info.total == total


def test_foreign_memory_is_shared_read_only_too(driver):
    mine = np.arange(6, dtype=np.float32)
    handle = driver.adopt(memoryview(mine))
    mine[0] = 9
    assert handle[:4].view(np.float32)[0] == 9
    mine.flags.writeable = False
    frozen = driver.adopt(memoryview(mine))
    out = np.zeros(6, np.float32)
    body = [Instr("load", "float32", (), 0), Instr("negative", "float32", (0,))]
    kernel = kernel_of(1, 0, [View(0, "float32", (1,)), View(1, "float32", (1,))], body, [Store(1, 1)])
    prepare(kernel, Settings())([frozen, out.view(np.uint8)], (6, 0, 0), ())
    np.testing.assert_array_equal(out, -mine)
    assert driver.view(frozen, 8).readonly
    driver.free(frozen)
    assert driver.memory.used == 0


def check_softmax_in_threads():
    launch = prepare(softmax((None, 1)), Settings(2, 4096, 1, 1))
    x = np.random.default_rng(7).standard_normal((64, 128), dtype=np.float32)
    e = np.exp(x.astype(np.float64))
    want = e / e.sum(1, keepdims=True)
    wrong = []

    def work():
        for rows in range(1, 65):
            out = np.zeros_like(x)
            launch([x.reshape(-1).view(np.uint8), out.reshape(-1).view(np.uint8)], (rows, 128, 0, 128, 0, 128), ())
            if not np.allclose(out[:rows], want[:rows], rtol=1e-5) or out[rows:].any():
                wrong.append(rows)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return wrong


def test_one_kernel_may_be_launched_by_many_threads():
    assert check_softmax_in_threads() == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="not run: needs os.fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_makes_threads_of_its_own():
    check_softmax_in_threads()
    child = multiprocessing.get_context("fork").Process(target=lambda: sys.exit(len(check_softmax_in_threads())))
    child.start()
    child.join(60)
    assert child.exitcode == 0


def test_an_error_in_a_helper_thread_reaches_the_caller():
    started = threading.Barrier(2, timeout=10)
    caller = threading.current_thread()

    def work(_):
        started.wait()
        if threading.current_thread() is not caller:
            raise KeyError("from the helper")

    with pytest.raises(KeyError, match="from the helper"):
        share(work, 2)


def test_no_floating_point_warning_escapes_and_the_users_settings_stay():
    before = np.geterr()
    body = [Instr("load", "float32", (), 0), Instr("log", "float32", (0,))]
    kernel = kernel_of(1, 0, [View(0, "float32", (1,)), View(1, "float32", (1,))], body, [Store(1, 1)])
    for settings in WAYS.values():
        run(kernel, [-np.ones(5000, np.float32), np.zeros(5000, np.float32)], (5000, 0, 0), (), settings)
    assert np.geterr() == before


def test_importing_the_plugin_loads_nothing_but_the_driver_class():
    code = (
        "import sys, polygrad_cpu; polygrad_cpu.plugin.polygrad_drivers(); "
        "print(sorted(m for m in sys.modules if m.startswith('polygrad_cpu')))"
    )
    path = os.pathsep.join(p for p in sys.path if p)
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": path}
    )
    assert out.stdout.strip() == "['polygrad_cpu', 'polygrad_cpu.driver']"


def test_there_is_one_device_and_settings_are_checked():
    with pytest.raises(DriverUnavailable, match="there is no device cpu:1"):
        CpuDriver().open(1, {})
    with pytest.raises(ValueError, match="POLYGRAD_CPU_THREADS is 'many'; it must be a whole number"):
        read_settings({"threads": "many"})
