"""The interpreter of kernels that drivers are compared with: what it computes.

Here: `polygrad.driver.oracle` against NumPy written by hand, and op by op where values are special. Not here: random
kernels (`test_random_kernels.py`); any driver.
"""

import math
import warnings

import ml_dtypes
import numpy as np
import pytest

from polygrad.driver import oracle
from polygrad.driver.ir import SCALAR_OPS, Instr, Kernel, Store, View, placements
from polygrad.driver.oracle import compute, run
from support.kernels import D, F, launched, program, softmax

RNG = np.random.default_rng(20)


# ---- the oracle against NumPy written by hand ------------------------------------------------------------------------


@pytest.mark.parametrize("exact", [False, True])
def test_softmax_reads_a_row_once_and_passes_over_it_three_times(exact):
    x = RNG.standard_normal((5, 7), dtype=np.float32)
    out = np.zeros(35, np.float64 if exact else np.float32)
    launched(softmax(), [x.ravel(), out], (5, 7, 0, 7, 0, 7), exact=exact)
    e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    want = e / e.sum(1, keepdims=True)
    np.testing.assert_allclose(out.reshape(5, 7), want, rtol=1e-15 if exact else 3e-7)
    assert [p.level for p in placements(softmax())] == [0, 1, 1, 1, 2, 2]


def test_exact_float64_is_computed_in_longdouble():
    x = RNG.standard_normal((3, 9))
    out = np.zeros(27, np.longdouble)
    launched(softmax(D), [x.ravel(), out], (3, 9, 0, 9, 0, 9), exact=True)
    e = np.exp(x.astype(np.longdouble) - x.max(1, keepdims=True))
    np.testing.assert_allclose(out.reshape(3, 9), e / e.sum(1, keepdims=True), rtol=1e-18 * 8, atol=0)


def test_cross_entropy_gathers_the_label_and_reports_the_first_bad_one():
    """loss[n] = logsumexp(x[n]) - x[n, label[n]]."""
    kernel = Kernel(
        1, 1, (F, "int64", F, "int32"),
        (View(0, F, (None, 1)), View(1, "int64", (1, 0)), View(0, F, (None, 0), gathers=1), View(2, F, (1, 0))), (),
        program(
            ("load", F, (), 0), ("reduce", F, (0,), "max"), ("subtract", F, (0, 1)), ("exp", F, (2,)),
            ("reduce", F, (3,), "sum"), ("log", F, (4,)), ("add", F, (5, 1)), ("load", "int64", (), 1),
            ("load", F, (7,), 2), ("subtract", F, (6, 8)),
        ), (Store(9, 3),), status=3,
    )  # fmt: skip
    x = RNG.standard_normal((6, 11), dtype=np.float32)
    label = np.array([0, 10, -1, 3, -11, 5], np.int64)
    ints = (6, 11, 0, 11, 0, 0, 11, 1, 11, 0, 42)
    loss, status = np.zeros(6, np.float32), np.zeros(4, np.int32)
    launched(kernel, [x.ravel(), label, loss, status], ints)
    lse = np.log(np.exp(x.astype(np.float64)).sum(1))
    np.testing.assert_allclose(loss, lse - x[np.arange(6), label], rtol=1e-6)
    assert status.tolist() == [0, 0, 0, 0]

    label[[1, 4]] = 11, -(2**40)
    launched(kernel, [x.ravel(), label, loss, status], ints)
    assert status.tolist() == [42, 8, 11, 0], "tag, position of the load, low and high word of the first bad index"
    clamped = lse - x[np.arange(6), [0, 10, -1, 3, 0, 5]]
    np.testing.assert_allclose(loss, clamped, rtol=1e-6)
    label[1] = 3
    launched(kernel, [x.ravel(), label, loss, status], ints)
    assert status.tolist() == [42, 8, 11, 0], "an earlier report stays"
    status[:] = 0
    launched(kernel, [x.ravel(), label, loss, status], ints)
    assert status.tolist() == [42, 8, 0, -(2**8)]


def test_rmsnorm_gradient_writes_dx_and_the_parts_of_dgamma_in_one_kernel():
    n, m, parts = 10, 6, 4
    kernel = Kernel(
        1, 1, (F, F, F, F, F),
        (View(0, F, (None, 1)), View(1, F, (0, 1)), View(2, F, (None, 1)), View(3, F, (None, 1)),
         View(4, F, (0, 1), partial=True)), (F, F),
        program(
            ("load", F, (), 0), ("load", F, (), 1), ("load", F, (), 2), ("scalar", F, (), 0), ("scalar", F, (), 1),
            ("multiply", F, (0, 0)), ("reduce", F, (5,), "sum"), ("divide", F, (6, 3)), ("add", F, (7, 4)),
            ("rsqrt", F, (8,)), ("multiply", F, (1, 2)), ("multiply", F, (10, 0)), ("reduce", F, (11,), "sum"),
            ("divide", F, (12, 3)), ("multiply", F, (9, 9)), ("multiply", F, (14, 13)), ("multiply", F, (0, 15)),
            ("subtract", F, (10, 16)), ("multiply", F, (17, 9)), ("multiply", F, (0, 9)), ("multiply", F, (19, 2)),
        ), (Store(18, 3), Store(20, 4)),
    )  # fmt: skip
    x, dy = RNG.standard_normal((2, n, m), dtype=np.float32)
    gamma = RNG.standard_normal(m, dtype=np.float32)
    dx, dgamma = np.zeros(n * m, np.float32), np.full(1 + parts * m, -7, np.float32)
    launched(
        kernel, [x.ravel(), gamma, dy.ravel(), dx, dgamma], (n, m, 0, m, 0, 0, m, 0, m, 1, parts, m), (float(m), 1e-5)
    )
    X, G, DY = x.astype(np.float64), gamma.astype(np.float64), dy.astype(np.float64)
    r = 1 / np.sqrt((X * X).mean(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(
        dx.reshape(n, m), r * (G * DY - X * r**2 * (G * DY * X).mean(1, keepdims=True)), rtol=1e-4, atol=1e-6
    )
    rows = X * r * DY
    want = [rows[0:3].sum(0), rows[3:6].sum(0), rows[6:9].sum(0), rows[9:10].sum(0)]
    np.testing.assert_allclose(dgamma[1:].reshape(parts, m), want, rtol=1e-5, atol=1e-6)
    assert dgamma[0] == -7, "what lies before the offset is not touched"


def test_columns_are_summed_by_strides_that_say_so():
    kernel = Kernel(
        1, 1, (D, D), (View(0, D, (1, None)), View(1, D, (None, 0))), (),
        program(("load", D, (), 0), ("reduce", D, (0,), "sum")), (Store(1, 1),),
    )  # fmt: skip
    x, out = RNG.standard_normal((9, 4)), np.zeros(4)
    launched(kernel, [x.ravel(), out], (4, 9, 0, 4, 3, -1))
    np.testing.assert_allclose(out, x.sum(0)[::-1], rtol=1e-15)


def test_a_window_pads_without_touching_memory():
    kernel = Kernel(
        2, 0, ("int16", "int16"), (View(0, "int16", (None, 1), (0, 1), fill=-5), View(1, "int16", (None, 1))), (),
        program(("load", "int16", (), 0)), (Store(0, 1),),
    )  # fmt: skip
    x, out = np.arange(6, dtype=np.int16).reshape(2, 3), np.zeros(4 * 6, np.int16)
    launched(kernel, [x.ravel(), out], (4, 6, -3 - 2, 3, 1, 3, 2, 5, 0, 6))
    want = np.pad(x, ((1, 1), (2, 1)), constant_values=-5)
    assert (out.reshape(4, 6) == want).all()


def test_a_guard_of_indices_hides_what_is_masked():
    kernel = Kernel(
        1, 1, (F, F), (View(0, F, (None, 1)), View(1, F, (None, 1))), (),
        program(
            ("iota", "int32", (), 1), ("iota", "int32", (), 0), ("less_equal", "bool", (0, 1)),
            ("load", F, (), 0, 2), ("const", F, (), -math.inf), ("where", F, (2, 3, 4)), ("reduce", F, (5,), "max"),
            ("subtract", F, (5, 6)), ("exp", F, (7,)), ("reduce", F, (8,), "sum"), ("divide", F, (8, 9)),
        ), (Store(10, 1),),
    )  # fmt: skip
    x = RNG.standard_normal((5, 5), dtype=np.float32)
    poisoned = np.where(np.tri(5, dtype=bool), x, np.float32(np.nan))
    out = np.zeros(25, np.float32)
    launched(kernel, [poisoned.ravel(), out], (5, 5, 0, 5, 0, 5))
    e = np.where(np.tri(5), np.exp(x), 0)
    np.testing.assert_allclose(out.reshape(5, 5), e / e.sum(1, keepdims=True), rtol=1e-6)


def test_a_kernel_without_axes_computes_one_element():
    kernel = Kernel(
        0, 0, (F, F), (View(0, F, ()), View(1, F, ())), (F,),
        program(("load", F, (), 0), ("scalar", F, (), 0), ("multiply", F, (0, 1))), (Store(2, 1),),
    )  # fmt: skip
    out = np.zeros(2, np.float32)
    launched(kernel, [np.array([1, 3], np.float32), out], (1, 1), (0.5,))
    assert out.tolist() == [0, 1.5]


def test_in_place_a_load_sees_the_old_value():
    view = View(0, "int32", (None,))
    body = program(("load", "int32", (), 0), ("add", "int32", (0, 0)))
    buffer = np.arange(7, dtype=np.int32)
    launched(Kernel(1, 0, ("int32",), (view,), (), body, (Store(1, 0),)), [buffer], (3, 1, 2))
    assert buffer.tolist() == [0, 2, 2, 6, 4, 10, 6]


def test_no_address_leaves_its_buffer_even_unverified():
    with pytest.raises(
        IndexError, match=r"view 0 addresses elements 0 to 9 of buffer 0, which has 9 .* axis 0 reaches"
    ):
        run(softmax(), [np.zeros(9, np.float32), np.zeros(10, np.float32)], (2, 5, 0, 5, 0, 5), ())
    with pytest.raises(IndexError, match="view 1"):
        run(softmax(), [np.zeros(10, np.float32), np.zeros(10, np.float32)], (2, 5, 0, 5, -1, 5), ())


# ---- the semantics table ---------------------------------------------------------------------------------------------


LEAST = {f"int{n}": -(2 ** (n - 1)) for n in (8, 16, 32, 64)}
NAN, INF = math.nan, math.inf


def rows():
    for dtype, least in LEAST.items():
        width = int(dtype[3:])
        yield "quotient", dtype, [(7, 2, 3), (-7, 2, -3), (7, -2, -3), (5, 0, 0), (least, -1, least), (least, 0, 0)]
        yield "modulo", dtype, [(7, 2, 1), (-7, 2, -1), (7, -2, 1), (5, 0, 0), (least, -1, 0), (least, 0, 0)]
        yield "add", dtype, [(-(least + 1), 1, least)]
        yield "subtract", dtype, [(least, 1, -(least + 1))]
        yield "multiply", dtype, [(least, -1, least)]
        yield "negative", dtype, [(least, least), (3, -3)]
        yield "absolute", dtype, [(least, least), (-3, 3)]
        yield "bitwise_left_shift", dtype, [(1, width, 0), (1, width - 1, least), (3, -1, 0), (3, 1, 6)]
        yield "bitwise_right_shift", dtype, [(-8, 1, -4), (-8, width, -1), (8, width, 0), (-8, -1, -1), (8, -3, 0)]
    for dtype, width in (("uint8", 8), ("uint16", 16), ("uint32", 32), ("uint64", 64)):
        top = 2**width - 1
        yield "negative", dtype, [(1, top), (0, 0)]
        yield "quotient", dtype, [(top, 0, 0), (top, 2, top // 2)]
        yield "modulo", dtype, [(top, 0, 0), (top, 10, top % 10)]
        yield "bitwise_right_shift", dtype, [(top, width, 0), (top, width - 1, 1)]
        yield "bitwise_invert", dtype, [(0, top)]
    yield "bitwise_invert", "bool", [(True, False), (False, True)]
    yield "maximum", "bool", [(False, True, True), (False, False, False)]
    yield "minimum", "bool", [(False, True, False), (True, True, True)]
    for dtype in (F, D):
        yield "maximum", dtype, [(1, NAN, NAN), (NAN, 1, NAN), (1, 2, 2), (-INF, 1, 1)]
        yield "minimum", dtype, [(1, NAN, NAN), (NAN, 1, NAN), (1, 2, 1), (-INF, 1, -INF)]
        yield "divide", dtype, [(1, 0, INF), (-1, 0, -INF), (0, 0, NAN), (1, -0.0, -INF)]
        yield "sqrt", dtype, [(-1, NAN), (-0.0, -0.0), (INF, INF)]
        yield "rsqrt", dtype, [(0, INF), (-0.0, -INF), (INF, 0), (4, 0.5)]
        yield "floor", dtype, [(-0.5, -1), (2.5, 2), (-0.0, -0.0), (INF, INF)]
        yield "ceil", dtype, [(-0.5, -0.0), (2.5, 3)]
        yield "trunc", dtype, [(-1.5, -1), (1.5, 1)]
        yield "round", dtype, [(0.5, 0), (1.5, 2), (2.5, 2), (-2.5, -2), (-0.25, -0.0)]
        yield "absolute", dtype, [(-0.0, 0.0), (-INF, INF), (NAN, NAN)]
        yield "copysign", dtype, [(3, -0.0, -3), (-3, 0.0, 3), (0, -1, -0.0)]
        yield "pow", dtype, [(NAN, 0, 1), (1, NAN, 1), (-1, INF, 1), (0, -1, INF), (-0.0, -1, -INF), (-8, 1 / 3, NAN)]
        yield "atan2", dtype, [(0.0, 0.0, 0.0), (-0.0, 0.0, -0.0), (INF, INF, math.pi / 4)]
        yield "fmod", dtype, [(-5, 3, -2), (5, -3, 2), (5, 0, NAN), (INF, 1, NAN), (5, INF, 5), (-6, 3, -0.0)]
        yield "exp", dtype, [(-INF, 0), (INF, INF), (0, 1)]
        yield "expm1", dtype, [(-INF, -1), (1e-20, 1e-20)]
        yield "log", dtype, [(0, -INF), (-1, NAN), (1, 0)]
        yield "log1p", dtype, [(-1, -INF), (1e-20, 1e-20)]
        yield "erf", dtype, [(INF, 1), (-INF, -1), (0, 0), (NAN, NAN), (0.5, 0.5204998778130465)]
        yield "tanh", dtype, [(INF, 1), (-INF, -1)]
        yield "sin", dtype, [(INF, NAN), (1e15, math.sin(float(np.dtype(dtype).type(1e15))))]


@pytest.mark.parametrize(("op", "dtype", "table"), [pytest.param(*r, id=f"{r[0]}-{r[1]}") for r in rows()])
def test_special_values_mean_what_the_table_says(op, dtype, table):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        columns = [np.array(column, dtype) for column in zip(*table, strict=True)]
        got = compute(Instr(op, dtype), columns[:-1])
    assert got.dtype == columns[-1].dtype
    if np.dtype(dtype).kind != "f":
        assert got.tolist() == columns[-1].tolist()
        return
    np.testing.assert_allclose(got, columns[-1], rtol=0 if dtype == F else 3e-16, atol=0)
    known = ~np.isnan(got)
    assert (np.signbit(got) == np.signbit(columns[-1]))[known].all()


@pytest.mark.parametrize(
    ("op", "want"),
    [("less", [False] * 3), ("less_equal", [False] * 3), ("equal", [False] * 3), ("not_equal", [True] * 3)],
)
def test_a_comparison_with_nan_is_false_unless_it_is_not_equal(op, want):
    a, b = np.array([NAN, 1, NAN]), np.array([1, NAN, NAN])
    assert compute(Instr(op, "bool"), [a, b]).tolist() == want


def test_nextafter_steps_in_the_declared_dtype_even_when_exact():
    one, two = np.array([1.0]), np.array([2.0])
    assert compute(Instr("nextafter", F), [one, two], exact=True)[0] == 1 + 2.0**-23


CASTS = [
    (F, "int8", [-1.9, 1.9, 127.9], [-1, 1, 127]),
    (F, "bool", [0.0, -0.0, 0.1, NAN], [False, False, True, True]),
    ("int32", "uint8", [-1, 257], [255, 1]),
    ("int64", "int32", [2**31, -(2**33) - 1], [-(2**31), -1]),
    ("int64", F, [2**24 + 1, 2**24 + 3], [2.0**24, 2.0**24 + 4]),
    ("uint8", "bool", [0, 2], [False, True]),
    ("bool", F, [True, False], [1, 0]),
    (F, "float16", [65520.0, 65519.0, 1 + 2**-11, 1 + 3 * 2**-11], [INF, 65504, 1, 1 + 2 * 2**-10]),
    (F, "bfloat16", [1 + 2**-8, 1 + 3 * 2**-8, NAN], [1, 1 + 2 * 2**-7, NAN]),
    (D, "bfloat16", [1 + 2**-8 + 2**-40, 1 + 2**-8 - 2**-40, 1e300, -INF], [1 + 2**-7, 1, INF, -INF]),
    ("int64", "bfloat16", [2**62 + 2**54 + 1, 2**62 + 2**54, -3], [2.0**62 + 2.0**55, 2.0**62, -3]),
    ("bfloat16", "int16", [-2.5, 3.5], [-2, 3]),
    ("float16", "bfloat16", [1 + 2**-8, 2.0], [1, 2]),
]


@pytest.mark.parametrize(("source", "target", "given", "want"), CASTS)
def test_a_cast_rounds_once_truncates_or_wraps(source, target, given, want):
    a = np.array(given).astype(oracle.compute_dtype(source))
    got = compute(Instr("cast", target), [a])
    assert got.dtype == oracle.compute_dtype(target)
    np.testing.assert_array_equal(got.astype(np.float64), np.array(want, np.float64))


def test_a_bitcast_keeps_bits():
    one = np.array([1.0], np.float32)
    assert compute(Instr("bitcast", "int32"), [one])[0] == 0x3F800000
    assert compute(Instr("bitcast", "int32"), [one.astype(np.float64)], exact=True)[0] == 0x3F800000
    assert compute(Instr("bitcast", "bfloat16"), [np.array([0x3F80], np.int16)])[0] == ml_dtypes.bfloat16(1)


@pytest.mark.parametrize(("how", "dtype", "given", "want"), [
    ("sum", "int8", [100, 100], -56), ("prod", "uint8", [16, 17], 16), ("max", F, [1, NAN, 3], NAN),
    ("min", D, [1, NAN, 3], NAN), ("max", "bool", [False, True], True), ("min", "bool", [False, True], False),
    ("max", "int8", [-5, -3], -3), ("sum", F, [INF, -INF], NAN), ("max", F, [-INF, -INF], -INF),
])  # fmt: skip
def test_reductions_wrap_and_propagate_nan(how, dtype, given, want):
    a = np.array(given, np.int64).astype(dtype) if dtype[0] in "iu" else np.array(given, dtype)
    got = oracle.reduce(Instr("reduce", dtype, (0,), how), a, (len(a),), 0)
    np.testing.assert_array_equal(got, np.array([want], dtype))


def test_every_scalar_op_has_a_function():
    assert set(oracle.FUNCTIONS) == set(SCALAR_OPS)
