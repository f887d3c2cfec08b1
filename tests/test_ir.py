"""The fused IR: what the oracle computes, what the verifier refuses, what survives JSON, what a mutant betrays.

Here: `polygrad.driver`'s ir, oracle, verify, serial, show, and the generator of random kernels that judges drivers.
Not here: any driver.
"""

import contextlib
import json
import math
import warnings

import ml_dtypes
import numpy as np
import pytest

from polygrad.driver import oracle
from polygrad.driver.ir import MANDATORY, SCALAR_OPS, Instr, Kernel, Store, View, placements
from polygrad.driver.launch import decode
from polygrad.driver.oracle import compute, run
from polygrad.driver.serial import from_json, to_json
from polygrad.driver.show import show
from polygrad.driver.verify import VerifyError, verify, verify_launch
from polygrad_conformance.random_kernels import Mismatch, compare, random_case

F, D = "float32", "float64"
RNG = np.random.default_rng(20)
CASES = [random_case(seed) for seed in range(2 * len(SCALAR_OPS))]  # two with each op for their subject


def program(*rows):
    """Write a body shortly: (op, dtype, args, attr) each."""
    return tuple(Instr(*row) for row in rows)


def launched(kernel, buffers, ints, scalars=(), *, exact=False):
    verify(kernel)
    verify_launch(kernel, [len(b) for b in buffers], ints, scalars)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(kernel, buffers, ints, scalars, exact=exact)


# ---- the oracle against NumPy written by hand -------------------------------------------------------------


def softmax(dtype=F):
    return Kernel(
        1, 1, (dtype, dtype), (View(0, dtype, (None, 1)), View(1, dtype, (None, 1))), (),
        program(
            ("load", dtype, (), 0), ("reduce", dtype, (0,), "max"), ("subtract", dtype, (0, 1)), ("exp", dtype, (2,)),
            ("reduce", dtype, (3,), "sum"), ("divide", dtype, (3, 4)),
        ), (Store(5, 1),),
    )  # fmt: skip


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


# ---- the semantics table ----------------------------------------------------------------------------------

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


# ---- the verifier -----------------------------------------------------------------------------------------

GOOD = Kernel(
    1, 1, (F, "int32", F, "int32", F),
    (View(0, F, (None, 1), (1,)), View(1, "int32", (1, 0)), View(0, F, (0, 0), gathers=1), View(2, F, (1, 0)),
     View(4, F, (0, 1), partial=True)), (F, "bool"),
    program(
        ("load", F, (), 0), ("load", "int32", (), 1), ("load", F, (1,), 2), ("scalar", F, (), 0),
        ("scalar", "bool", (), 1), ("const", F, (), 1.5), ("iota", "int64", (), 1), ("cast", F, (6,)),
        ("bitcast", "int32", (0,)),
        ("where", F, (4, 0, 3)), ("reduce", F, (9,), "sum"), ("add", F, (10, 2)), ("less", "bool", (0, 5)),
    ), (Store(11, 3), Store(9, 4)), 3,
)  # fmt: skip
INTS = (4, 6, 0, 6, 1, 6, 0, 0, 1, 9, 0, 0, 2, 6, 1)


def with_instr(position, instr):
    return GOOD._replace(body=(*GOOD.body[:position], instr, *GOOD.body[position + 1 :]))


def with_extra(*instr, **fields):
    return GOOD._replace(body=(*GOOD.body, Instr(*instr)), **fields)


def with_view(number, **fields):
    views = list(GOOD.views)
    views[number] = views[number]._replace(**fields)
    return GOOD._replace(views=tuple(views))


REFUSED = [
    (GOOD._replace(parallel=-1), "both are >= 0"),
    (GOOD._replace(buffers=("float8", *GOOD.buffers[1:])), "buffer 0 has dtype 'float8'"),
    (GOOD._replace(scalars=("int4", "bool")), "scalar 0 has dtype 'int4'"),
    (with_view(0, buffer=9), "view 0: there is no buffer 9"),
    (with_view(1, buffer=3), "view 1: it addresses buffer 3, the status word"),
    (with_view(0, dtype=D), "view 0: its dtype is float64, that of buffer 0 is float32"),
    (with_view(0, strides=(1,)), "view 0: it has 1 strides; the kernel has 2 axes"),
    (with_view(0, strides=(2, 1)), "each is 0, 1 or None"),
    (with_view(0, window=(2,)), "its window names axes"),
    (with_view(0, window=(1, 1)), "its window names axes"),
    (with_view(0, gathers=-1), "it has -1 gathers"),
    (with_view(0, fill="x"), "view 0: its fill is 'x'"),
    (with_view(0, fill=-0.0), "view 0: its fill is -0.0"),
    (with_view(1, fill=2**31), "view 1: its fill is 2147483648; it must be an int that int32 can hold"),
    (with_instr(5, Instr("const", F, (), float("nan"))), "%5 = const: its value is a NaN other than math.nan"),
    (with_instr(5, Instr("const", F, (), True)), "%5 = const: its value is True"),
    (with_extra("const", "bool", (), 2), "%13 = const: its value is 2; a bool"),
    (with_extra("const", "uint8", (), -1), "%13 = const: its value is -1"),
    (with_extra("const", "int32", (), 1.0), "%13 = const: its value is 1.0"),
    (with_extra("frobnicate", F), "%13 = frobnicate: there is no such instruction"),
    (with_extra("add", "float8", (0, 0)), "%13 = add: its dtype is 'float8'"),
    (with_extra("add", F, (0, 13)), "%13 = add: it uses %13, which does not come before it"),
    (with_extra("add", F, (0, -1)), "%13 = add: it uses %-1"),
    (with_extra("add", F, (0,)), "%13 = add: it has 1 operands; it takes 2"),
    (with_extra("add", F, (0, 0), 1), "%13 = add: its attr is 1; it takes none"),
    (with_extra("add", F, (0, 1)), "%13 = add: its operands are float32 and int32"),
    (with_extra("add", D, (0, 0)), "%13 = add: its dtype is float64; on float32 operands it is float32"),
    (with_extra("add", "bool", (4, 4)), "%13 = add: its operands are bool; it takes int or float"),
    (with_extra("less", F, (0, 0)), "%13 = less: its dtype is float32; on float32 operands it is bool"),
    (with_extra("quotient", F, (0, 0)), "%13 = quotient: its operands are float32; it takes int"),
    (with_extra("add", F, (0, 0), None, 4), "%13 = add: it has a guard; only a load may"),
    (with_extra("load", F, (), 0, 13), "%13 = load: its guard is %13, which does not come before"),
    (with_extra("load", F, (), 0, 1), "%13 = load: its guard %1 is int32"),
    (with_extra("load", F, (), 7), "%13 = load: there is no view 7"),
    (with_extra("load", F, (), 4), "%13 = load: view 4 is partial"),
    (with_extra("load", D, (), 0), "%13 = load: its dtype is float64"),
    (with_extra("load", F, (), 2), "%13 = load: it has 0 operands; it takes 1"),
    (with_extra("load", F, (0,), 2), "%13 = load: its gather index %0 is float32"),
    (with_extra("scalar", F, (), 2), "%13 = scalar: there is no scalar 2"),
    (with_extra("scalar", D, (), 0), "%13 = scalar: its dtype is float64"),
    (with_extra("iota", "int16", (), 0), "%13 = iota: its dtype is int16"),
    (with_extra("iota", "int32", (), 2), "%13 = iota: there is no axis 2"),
    (with_extra("bitcast", D, (0,)), "%13 = bitcast: it goes from float32 to float64"),
    (with_extra("bitcast", "uint8", (4,)), "%13 = bitcast: it goes from bool to uint8; the bits of a bool"),
    (with_extra("cast", D, (0, 0)), "%13 = cast: it has 2 operands; it takes 1"),
    (with_extra("where", F, (0, 0, 0)), "%13 = where: its condition %0 is float32"),
    (with_extra("where", F, (4, 0, 1)), "%13 = where: its arms are float32 and int32"),
    (with_extra("reduce", F, (0,), "mean"), "%13 = reduce: its attr is 'mean'"),
    (with_extra("reduce", "bool", (12,), "sum"), "%13 = reduce: sum does not take bool"),
    (with_extra("reduce", D, (0,), "sum"), "%13 = reduce: its dtype is float64"),
    (with_extra("reduce", F, (10,), "sum"), "%13 = reduce: its operand %10 is a ROW value"),
    (GOOD._replace(stores=()), "the kernel stores nothing"),
    (GOOD._replace(stores=(Store(99, 3),)), "store 0 of %99"),
    (GOOD._replace(stores=(Store(11, 9),)), "store 0 of %11: there is no view 9"),
    (GOOD._replace(stores=(Store(1, 3),)), "store 0 of %1: the value is int32, view 3 is float32"),
    (GOOD._replace(stores=(Store(9, 0),)), "store 0 of %9: view 0 has a window or gathers"),
    (GOOD._replace(stores=(Store(11, 3), Store(10, 3))), "store 1 of %10: view 3 is stored to twice"),
    (GOOD._replace(stores=(Store(10, 4),)), "store 0 of %10: it is partial and the value is a ROW value"),
    (with_view(4, strides=(1, 1)), "store 1 of %9: it is partial and its strides"),
    (with_view(3, strides=(1, 1)), "store 0 of %11: it stores a ROW value and its strides"),
    (GOOD._replace(status=-1), "the kernel gathers and has no status word"),
    (softmax()._replace(status=0), "the status word, which only gathers write"),
    (softmax()._replace(buffers=(F, F, "int32"), status=2), "no load gathers"),
    (GOOD._replace(buffers=(*GOOD.buffers[:3], "int64", F)), "the status word is buffer 3; that must be an int32"),
]


def test_the_good_kernel_is_accepted():
    verify(GOOD)
    verify_launch(GOOD, [24, 4, 4, 4, 12], INTS, (1.5, True))


@pytest.mark.parametrize(("kernel", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_a_malformed_kernel_is_refused_in_a_sentence_that_names_it(kernel, words):
    with pytest.raises(VerifyError) as caught:
        verify(kernel)
    assert words in str(caught.value)


def test_arithmetic_on_storage_is_refused():
    views = (View(0, "float16", (1, 1)), View(1, "float16", (0, 1), partial=True))
    half = Kernel(1, 1, ("float16", "float16"), views, (),
                  program(("load", "float16", (), 0), ("add", "float16", (0, 0))), (Store(1, 1),))  # fmt: skip
    with pytest.raises(VerifyError, match="%1 = add: its operands are float16, which is storage only"):
        verify(half)
    with pytest.raises(VerifyError, match="%1 = reduce: its operand is float16, which is storage only"):
        verify(half._replace(body=program(half.body[0], ("reduce", "float16", (0,), "max"))))
    with pytest.raises(VerifyError, match="store 0 of %0: it is partial and the value is float16"):
        verify(half._replace(body=half.body[:1], stores=(Store(0, 1),)))


def launch_ints(**changes):
    found = dict(zip(GOOD.int_names, INTS, strict=True))
    found.update({name.replace("_", "."): value for name, value in changes.items()})
    return tuple(found.values())


SIZES = [24, 4, 4, 4, 12]
LAUNCHES = [
    (SIZES[:4], INTS, (1.5, True), "the launch has 4 buffers; the kernel takes 5"),
    (SIZES, INTS[:-1], (1.5, True), "the launch has 14 ints; the kernel takes 15"),
    (SIZES, INTS, (1.5,), "the launch has 1 scalars; the kernel takes 2"),
    (SIZES, INTS, ("a", True), "scalar 0 is 'a'"),
    (SIZES, INTS, (1.5, 3), "scalar 1 is 3; a bool"),
    (SIZES, launch_ints(n0=4.0), (1.5, True), "launch int n0 is 4.0"),
    (SIZES, launch_ints(n1=0), (1.5, True), "axis 1 has extent 0"),
    (SIZES, launch_ints(tag=0), (1.5, True), "the tag is 0"),
    (SIZES, launch_ints(tag=2**31), (1.5, True), "the tag is 2147483648"),
    ([24, 4, 4, 3, 12], INTS, (1.5, True), "the status buffer has 3 elements"),
    ([23, 4, 4, 4, 12], INTS, (1.5, True), "%0 = load of view 0: addresses 1 to 23 leave a buffer of 23"),
    (SIZES, launch_ints(v0_o=-2), (1.5, True), "%0 = load of view 0: addresses -1 to 21 leave"),
    (SIZES, launch_ints(v2_gn0=25), (1.5, True), "%2 = load of view 2: addresses 0 to 24 leave"),
    (SIZES, launch_ints(v2_gn0=0), (1.5, True), "%2 = load of view 2: it gathers from an axis of size 0"),
    ([24, 4, 3, 4, 12], INTS, (1.5, True), "store 0 of %11: addresses 0 to 3 leave a buffer of 3"),
    ([24, 4, 4, 4, 11], INTS, (1.5, True), "store 1 of %9: addresses 0 to 11 leave"),
    (SIZES, launch_ints(v4_parts=0), (1.5, True), "store 1 of %9: 0 parts of 4 rows"),
    (SIZES, launch_ints(v4_parts=5), (1.5, True), "store 1 of %9: 5 parts of 4 rows"),
    ([99, 4, 4, 4, 99], launch_ints(v4_parts=3), (1.5, True), "store 1 of %9: 3 parts of 4 rows; no part may be empty"),
    (SIZES, launch_ints(v4_ps=5), (1.5, True), "store 1 of %9: strides (1, 5) over extents (6, 2) may write one"),
]


@pytest.mark.parametrize(("sizes", "ints", "scalars", "words"), LAUNCHES, ids=[row[3] for row in LAUNCHES])
def test_a_wrong_launch_is_refused_in_a_sentence(sizes, ints, scalars, words):
    with pytest.raises(VerifyError) as caught:
        verify_launch(GOOD, sizes, ints, scalars)
    assert words in str(caught.value)


def copier(store_view, reduced=0):
    view = View(0, F, (None, None))
    return Kernel(2 - reduced, reduced, (F,), (view, store_view), (), program(("load", F, (), 0)), (Store(0, 1),))


@pytest.mark.parametrize(("load", "store", "fine"), [
    ((0, 4, 1), (0, 4, 1), True),      # identical
    ((0, 4, 1), (0, 1, 4), False),     # a transpose in place
    ((0, 4, 1), (1, 4, 1), False),     # shifted by one
    ((0, 4, 1), (12, 4, 1), True),     # apart
    ((0, 8, 2), (1, 8, 2), True),      # even and odd
    ((0, 8, 1), (4, 8, 1), True),      # left half into right half
    ((11, -4, -1), (12, 4, 1), True),  # reversed, apart
    ((11, -4, -1), (0, 4, 1), False),  # reversed, in place
])  # fmt: skip
def test_a_kernel_writes_what_it_reads_only_through_an_identical_view(load, store, fine):
    kernel = copier(View(0, F, (None, None)))
    verify(kernel)
    if fine:
        verify_launch(kernel, [40], (3, 4, *load, *store), ())
    else:
        with pytest.raises(VerifyError, match="%0 = load of view 0: it may overlap store 0 of %0 in buffer 0"):
            verify_launch(kernel, [40], (3, 4, *load, *store), ())


def test_in_place_needs_a_kernel_without_reduced_axes():
    with pytest.raises(VerifyError, match="without reduced axes"):
        verify_launch(copier(View(0, F, (None, None)), reduced=1), [12], (3, 4, 0, 4, 1, 0, 4, 1), ())


def test_stores_may_interleave_but_not_overlap():
    kernel = Kernel(1, 0, (F,), (View(0, F, (None,)), View(0, F, (None,))), (F,),
                    program(("scalar", F, (), 0)), (Store(0, 0), Store(0, 1)))  # fmt: skip
    verify(kernel)
    verify_launch(kernel, [10], (5, 0, 2, 1, 2), (1.0,))
    with pytest.raises(VerifyError, match="store 1 of %0 may overlap store 0 of %0 in buffer 0"):
        verify_launch(kernel, [10], (5, 0, 1, 4, 1), (1.0,))
    with pytest.raises(VerifyError, match="must be injective"):
        verify_launch(kernel, [10], (5, 0, 0, 4, 1), (1.0,))


def touched(case, ints):
    """Return the addresses that each store of a launch writes, with their buffers."""
    launch = decode(case.kernel, ints)
    values = oracle.evaluate(case.kernel, case.fresh(), ints, case.scalars)
    for store in case.kernel.stores:
        full = placements(case.kernel)[store.value].full
        address, _ = oracle.written(case.kernel, launch, store.view, values[store.value], full)
        yield case.kernel.views[store.view].buffer, address.ravel()


def test_a_launch_that_is_accepted_stays_in_bounds_and_writes_nothing_twice():
    accepted = refused = 0
    for case in CASES:
        for _ in range(8):
            ints = list(case.ints)
            ints[RNG.integers(len(ints))] += int(RNG.choice([-7, -2, -1, 1, 2, 7]))
            try:
                verify_launch(case.kernel, [len(b) for b in case.buffers], ints, case.scalars)
            except VerifyError:
                refused += 1
                continue
            accepted += 1
            run(case.kernel, case.fresh(), ints, case.scalars)
            written = {}
            for buffer, address in touched(case, ints):
                written.setdefault(buffer, []).append(address)
            for addresses in written.values():
                every = np.concatenate(addresses)
                assert len(np.unique(every)) == len(every)
    assert min(accepted, refused) > 100


def test_an_empty_window_reads_nothing_so_any_address_is_fine():
    kernel = Kernel(
        1, 0, (F, F), (View(0, F, (1,), (0,)), View(1, F, (1,))), (), program(("load", F, (), 0)), (Store(0, 1),)
    )
    out = np.ones(3, np.float32)
    launched(kernel, [np.zeros(1, np.float32), out], (3, 500, 2, 2, 0))
    assert out.tolist() == [0, 0, 0]


# ---- serial and show --------------------------------------------------------------------------------------


def test_kernels_survive_json():
    for seed in range(200):
        kernel = random_case(seed).kernel
        back = from_json(to_json(kernel))
        assert back == kernel
        assert repr(back) == repr(kernel), "1, 1.0 and True are equal but not the same"


def test_non_finite_literals_survive_json():
    kernel = Kernel(
        1, 0, (F,), (View(0, F, (1,), (0,), fill=math.nan), View(0, F, (1,))), (),
        program(("const", F, (), math.inf), ("const", F, (), -math.inf), ("load", F, (), 0)), (Store(1, 1),),
    )  # fmt: skip
    assert from_json(to_json(kernel)) == kernel


def test_another_major_version_is_refused_and_a_later_minor_is_read():
    text = json.loads(to_json(softmax()))
    text["polygrad_ir"] = [1, 7]
    assert from_json(json.dumps(text)) == softmax()
    text["polygrad_ir"] = [2, 0]
    with pytest.raises(VerifyError, match=r"the kernel is of IR 2\.0 and this is IR 1\.0"):
        from_json(json.dumps(text))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"polygrad_ir": [1, 0]}', "null"])
def test_what_is_no_kernel_is_refused(text):
    with pytest.raises(VerifyError, match="the text is no kernel"):
        from_json(text)


def test_damaged_json_is_refused_and_nothing_worse():
    for case in CASES:
        data = json.loads(to_json(case.kernel))
        for _ in range(10):
            damaged = json.loads(json.dumps(data))
            rows = damaged[str(RNG.choice(["views", "body", "stores"]))]
            row = rows[RNG.integers(len(rows))]
            row[RNG.integers(len(row))] = [None, -1, 99, "add", [0], [[]], {}, True, 1.5][RNG.integers(9)]
            with contextlib.suppress(VerifyError):
                from_json(json.dumps(damaged))


def test_json_of_a_malformed_kernel_is_refused():
    with pytest.raises(VerifyError, match="stores nothing"):
        from_json(to_json(softmax()._replace(stores=())))


def test_show_reads_like_a_program():
    assert show(softmax(), (5, 7, 0, 7, 2, 9)).splitlines() == [
        "kernel: i0 < 5; reduced i1 < 7; 3 passes over the reduced axes",
        "  %0 = load b0[7*i0 + i1] : float32   # FULL",
        "  %1 = reduce max %0 : float32        # ROW, after 1 reduction",
        "  %2 = subtract %0 %1 : float32       # FULL, after 1 reduction",
        "  %3 = exp %2 : float32               # FULL, after 1 reduction",
        "  %4 = reduce sum %3 : float32        # ROW, after 2 reductions",
        "  %5 = divide %3 %4 : float32         # FULL, after 2 reductions",
        "  store b1[2 + 9*i0 + i1] = %5",
    ]
    text = show(GOOD)
    assert "%2 = load b0[v2.o + v2.gs0*(%1 of v2.gn0)] : float32" in text
    assert "where v0.lo1 <= i1 < v0.hi1 else 0" in text
    assert "store b4[v4.o + i1 + v4.ps*part] = %9 summed over i0 in v4.parts parts" in text


def test_every_random_kernel_can_be_shown():
    for case in CASES:
        lines = show(case.kernel, case.ints).splitlines()
        assert len(lines) == 1 + len(case.kernel.body) + len(case.kernel.stores)


# ---- random kernels and what they catch -------------------------------------------------------------------


def played(case):
    buffers = case.fresh()
    run(case.kernel, buffers, case.ints, case.scalars)
    compare(case, buffers)


def test_random_cases_are_verified_and_repeatable():
    for case in CASES:
        verify(case.kernel)
        verify_launch(case.kernel, [len(b) for b in case.buffers], case.ints, case.scalars)
        again = random_case(case.seed)
        assert again.kernel == case.kernel
        assert all(a.tobytes() == b.tobytes() for a, b in zip(again.buffers, case.buffers, strict=True))
        played(case)


def test_a_seed_for_each_scalar_op_has_that_op():
    for seed, op in enumerate(SCALAR_OPS):
        assert op in {i.op for i in random_case(seed).kernel.body}


def test_random_cases_keep_to_what_a_device_declares():
    for seed in range(60):
        case = random_case(seed, dtypes=(F, "int32", "bool"), scalar_ops=MANDATORY, reductions=("sum", "max"))
        assert {i.dtype for i in case.kernel.body} | set(case.kernel.buffers) <= {F, "int32", "bool"}
        assert {i.op for i in case.kernel.body} & set(SCALAR_OPS) <= MANDATORY
        assert {i.attr for i in case.kernel.body if i.op == "reduce"} <= {"sum", "max"}


def test_arithmetic_without_a_wider_format_stays_within_the_bounds(monkeypatch):
    """NumPy's own float32 and float64 are a correct driver; bounds that refuse them would be wrong."""
    cases = [random_case(seed) for seed in range(200)]
    monkeypatch.setattr(oracle, "WIDER", {})
    for case in cases:
        played(case)


def test_guard_bands_are_compared():
    case = CASES[0]
    got = list(case.expected)
    number = case.outputs[0]
    got[number] = got[number].copy()
    got[number].view(np.uint8)[-1] ^= 1
    with pytest.raises(Mismatch, match=f"seed 0, buffer {number}"):
        compare(case, got)


def of_op(op, function):
    """Make a mutant that computes scalar op *op* by *function*."""
    return lambda patch: patch.setitem(oracle.FUNCTIONS, op, function)


def of_instr(op, change):
    """Make a mutant that hands `compute` something else for *op*."""

    def install(patch):
        honest = oracle.compute
        patch.setattr(
            oracle, "compute",
            lambda i, a, exact=False: change(honest, i, a) if i.op == op else honest(i, a, exact=exact),
        )  # fmt: skip

    return install


def of_view(change):
    """Make a mutant that decodes launches to something else."""

    def install(patch):
        patch.setattr(oracle, "decode", lambda k, ints: change(decode(k, ints)))

    return install


def each_view(change):
    return of_view(lambda launch: launch._replace(views=tuple(change(v) for v in launch.views)))


def of_leaves(change):
    """Make a mutant that evaluates another kernel on other scalars."""

    def install(patch):
        honest = oracle.evaluate

        def evaluate(kernel, buffers, ints, scalars, *, exact=False):
            kernel, scalars = change(kernel, scalars)
            return honest(kernel, buffers, ints, scalars, exact=exact)

        patch.setattr(oracle, "evaluate", evaluate)

    return install


def reducer(name, change):
    return lambda patch: patch.setitem(oracle._REDUCERS, name, change(oracle._REDUCERS[name]))


def iota_of_axis_0(kernel, scalars):
    body = tuple(i._replace(attr=0) if i.op == "iota" else i for i in kernel.body)
    return kernel._replace(body=body), scalars


def last_part_dropped(patch):
    honest = oracle.written

    def written(kernel, launch, number, value, full):
        address, value = honest(kernel, launch, number, value, full)
        return (address[:-1], value[:-1]) if kernel.views[number].partial else (address, value)

    patch.setattr(oracle, "written", written)


def last_element_dropped(patch):
    honest = oracle.written

    def written(*args):
        address, value = honest(*args)
        return address.ravel()[: max(1, address.size - 1)], value.ravel()[: max(1, address.size - 1)]

    patch.setattr(oracle, "written", written)


def second_store_dropped(patch):
    honest = oracle.run
    patch.setitem(globals(), "run", lambda k, *rest: honest(k._replace(stores=k.stores[:1]), *rest))


MUTANTS = {
    "where swaps its arms": of_instr("where", lambda f, i, a: f(i, [a[0], a[2], a[1]])),
    "offset is ignored": each_view(lambda v: v._replace(offset=0)),
    "window is ignored": each_view(lambda v: v._replace(window=())),
    "window is one short": each_view(lambda v: v._replace(window=tuple((k, lo, hi - 1) for k, lo, hi in v.window))),
    "negative strides are taken as positive": each_view(lambda v: v._replace(strides=tuple(map(abs, v.strides)))),
    "a partial store drops its last part": last_part_dropped,
    "a store drops its last element": last_element_dropped,
    "stores after the first are dropped": second_store_dropped,
    "subtract is swapped": of_op("subtract", lambda a, b: np.subtract(b, a)),
    "less is less_equal": of_op("less", np.less_equal),
    "maximum drops NaN": of_op("maximum", np.fmax),
    "floor truncates": of_op("floor", np.trunc),
    "ceil floors": of_op("ceil", np.floor),
    "quotient floors": of_op("quotient", lambda a, b: np.where(b == 0, np.zeros_like(a), a // np.where(b == 0, 1, b))),
    "quotient by zero is all ones": of_op(
        "quotient", lambda a, b: np.where(b == 0, ~a * 0 - 1, oracle._quotient(a, b))
    ),
    "a shift by the width is by zero": of_op("bitwise_left_shift", lambda a, b: np.left_shift(a, b % a.dtype.type(8))),
    "a right shift is logical": of_op(
        "bitwise_right_shift",
        lambda a, b: oracle._right_shift(a.view(f"u{a.itemsize}"), b.view(f"u{a.itemsize}")).view(a.dtype),
    ),
    "a cast to an integer rounds": of_instr(
        "cast", lambda f, i, a: f(i, [np.rint(a[0]) if a[0].dtype.kind == "f" and i.dtype[0] in "iu" else a[0]])
    ),
    "exp is 40 ULP off": of_op("exp", lambda a: np.exp(a) * (1 + 40 * 2.0 ** (-24 if a.dtype == np.float64 else -53))),
    "iota counts axis 0": of_leaves(iota_of_axis_0),
    "scalars are frozen": of_leaves(lambda k, s: (k, [type(x)(1) for x in s])),
    "fill is zero": of_leaves(lambda k, s: (k._replace(views=tuple(v._replace(fill=0) for v in k.views)), s)),
    "sum is one short": reducer("sum", lambda f: lambda a, axes: f(a[..., : max(1, a.shape[-1] - 1)], axes)),
    "sum starts at one": reducer("sum", lambda f: lambda a, axes: f(a, axes) + a.dtype.type(1)),
    "max starts at zero": reducer("max", lambda f: lambda a, axes: np.maximum(f(a, axes), a.dtype.type(0))),
    "min ignores NaN": reducer("min", lambda f: lambda a, axes: np.fmin.reduce(a, axis=axes, keepdims=True)),
    "gathers clamp negative indices": lambda patch: patch.setattr(
        oracle, "_clamped", lambda index, size: np.clip(index, 0, size - 1)
    ),
    "bad indices are not reported": lambda patch: patch.setattr(oracle, "_report", lambda *_: None),
    "the tag is not written": of_view(lambda launch: launch._replace(tag=1)),
}


# What touches most kernels must show in few; what touches one op may need that op's own cases.
AT_ONCE = {
    "where swaps its arms", "offset is ignored", "window is ignored", "window is one short", "fill is zero",
    "negative strides are taken as positive", "a partial store drops its last part", "a store drops its last element",
    "stores after the first are dropped", "subtract is swapped", "iota counts axis 0", "scalars are frozen",
    "sum is one short", "sum starts at one", "max starts at zero",
}  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_oracle_is_caught(name, monkeypatch):
    MUTANTS[name](monkeypatch)
    caught = []
    for case in CASES:
        try:
            played(case)
        except (Mismatch, IndexError):
            caught.append(case.seed)
    assert caught, f"no random case tells that {name}"
    if name in AT_ONCE:
        assert caught[0] < 50


def test_the_mutants_of_every_kernel_are_mutants():
    assert set(MUTANTS) >= AT_ONCE
