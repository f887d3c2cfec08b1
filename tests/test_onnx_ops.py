"""Ops exported to ONNX, run by onnxruntime.

Here: every primitive of the table, in its dtypes, exported and compared or refused; every function. Not here: models
(`test_onnx.py`); how numbers are drawn (`polygrad.testing`).
"""

import numpy as np
import pytest

import polygrad as pg
from polygrad import dtypes
from polygrad.array.object import Array
from polygrad.graph.functions import F
from polygrad.graph.node import RECORDING, apply, call_library
from polygrad.io import onnx_ops
from polygrad.ops import TABLE
from polygrad.testing.draw import Draw
from polygrad.testing.primitives import CALLS, operands_of
from support.onnx_models import ALL, UNITS, check, floats

pytestmark = pytest.mark.usefixtures("host")


PRIMITIVES = [op for op in TABLE.values() if op.kind != "composite"]


# ---- every primitive -------------------------------------------------------------------------------------------------


_MATRIX = np.asarray([[[4.0, 1.0, 0.5], [1.0, 5.0, 0.2], [0.5, 0.2, 6.0]]])
_TALL = np.asarray([[[1.0, 2.0], [0.5, 3.0], [2.0, 1.0]]])
# Operands, as a shape or values, and attributes of calls of library's ops that `testing.primitives` does not list.
LIBRARY = {
    "fft_": ([(2, 6, 2)], (True,)),
    "rfft_": ([(2, 6)], ()),
    "irfft_": ([(2, 4, 2)], (6,)),
    "solve_": ([_MATRIX, _TALL], (False,)),
    "triangular_solve_": ([_MATRIX, _TALL], (True, False)),
    "cholesky_": ([_MATRIX], (False,)),
    "slogdet_": ([_MATRIX], (False,)),
    "det_": ([_MATRIX], (False,)),
    "pinv_": ([_TALL, np.asarray([[1e-6]])], (False,)),
    "eigh_": ([_MATRIX], (False,)),
    "eigvalsh_": ([_MATRIX], (False,)),
    "eig_": ([_MATRIX], (False,)),
    "eigvals_": ([_MATRIX], (False,)),
    "svd_": ([_TALL], (False, False)),
    "svdvals_": ([_TALL], (False,)),
    "qr_": ([_TALL], (False, False)),
    "nonzero_": ([np.asarray([True, False, True, True])], (3,)),
}
# Ops that make nodes without operands, or that only a transform records: their calls, given one array.
OTHERS = {
    "host_scalar": lambda x: x * 0 + 3 if x.dtype is not dtypes.bool_ else pg.logical_or(x, True),
    "iota": lambda x: [x, placed(apply(TABLE["iota"], (), (5, x.dtype)))] if x.dtype is not dtypes.bool_ else x,
    "call_output_": lambda x: Array(apply(TABLE["call_output_"], (x._node, x._node), (0,))),
    "analytic_": lambda x: Array(apply(TABLE["analytic_"], (x._node, x._node), (TABLE["exp"], 0, ((0, 0),)))),
    "transfer_": lambda x: Array(apply(TABLE["transfer_"], (x._node,), (x.device,))) if RECORDING.batches else x,
    "buffer": lambda x: [x, pg.asarray([1, 0], dtype=x.dtype)],
    "random_bits_": lambda x: [x, pg.random.uniform((4,))],
    "pair_": lambda x: pg.astype(x, "complex64") if dtypes.KINDS[x.dtype] == "float" else x,
    "placeholder_": lambda x: pg.vmap(lambda row: -row)(x) if dtypes.KINDS[x.dtype] == "float" else x,
}


def attention_and_back(q, k, v, _out, _lse, g):
    """Return the gradients of attention, with what attention gives in place of the numbers that were drawn for it."""
    q, k, v, g = (x._node for x in (q, k, v, g))
    return [Array(n) for n in F.attention_backward_(q, k, v, *F.attention_(q, k, v, 0.5, False), g, 0.5, False)]


OTHERS["attention_backward_"] = attention_and_back
NOT_IN_ONNX = "polygrad makes it of nothing else, and ONNX has no operator for it"
BITS = "ONNX's operators do not show the bits of a float"
# What is refused, by op and dtype (or "*"), and the end of the sentence that says why.
REFUSED = {
    **{(f"{name}_", "*"): NOT_IN_ONNX for name in ("eigh", "eigvalsh", "eig", "eigvals", "svd", "svdvals", "qr")},
    ("pinv_", "*"): NOT_IN_ONNX,
    ("cofactors_", "*"): NOT_IN_ONNX,
    ("nextafter", "*"): "it needs the bits of a float, which ONNX's operators do not show",
    ("bitcast", "float64"): BITS,
    ("quotient", "uint64"): "runtimes do not divide uint64; cast it with .astype('int64')",
    ("modulo", "uint64"): "runtimes do not divide uint64; cast it with .astype('int64')",
    ("random_bits_", "*"): onnx_ops.REFUSED["random_bits_"],
    **{("pair_", d): onnx_ops.REFUSED["pair_"] for d in ("float16", "bfloat16", "float32", "float64")},
}
EXACT = ("permute", "reshape", "expand", "slice", "pad", "windows", "alias", "cast", "gather", "put", "elementwise")


def placed(node):
    """Return an array of a node that has no device yet."""
    node.device = node.device or "cpu:0"
    return Array(node)


def case_of(op, dtype):
    """Return operands and attributes of a call of a primitive in a dtype, or None if it takes none of that."""
    draw = Draw(np.random.default_rng(5), dtype)
    if op.name == "bitcast":
        after = {"float64": dtypes.int64, "uint64": dtypes.int64, "int64": dtypes.uint64}.get(dtype.name)
        return after and ([draw.array((3, 4), -2, 2)], (after,))
    if op.name == "where":
        return [draw.bools((3, 1)), draw.array((4,), -2, 2), draw.array((3, 4), -2, 2)], ()
    if op.kind == "elementwise":
        if op.samples is None:
            return [draw.array((3, 4), 0.5, 2) for _ in op.vjp or (1,)], ()
        return list(op.samples(draw)[3][0]), ()
    if op.kind == "library" and dtype in (dtypes.float16, dtypes.bfloat16):
        return None  # the functions around them compute in float32
    if op.name == "scan_" and dtype is dtypes.bool_:
        return [draw.bools((3, 4))], ("max",)  # other kinds cast bools first
    if op.name in CALLS:
        return operands_of(op.name, draw)
    if op.name in LIBRARY:
        operands, attrs = LIBRARY[op.name]
        return [
            draw.array(x, -1, 1) if isinstance(x, tuple) else x if x.dtype == bool else x.astype(dtype)
            for x in operands
        ], attrs
    return [draw.array((3, 4), -2, 2)], None


def call_of(op, attrs):
    """Return a call of a primitive as a function of arrays."""
    if op.name in OTHERS:
        return OTHERS[op.name]
    if op.kind == "library":
        return lambda *xs: [Array(n) for n in call_library(op, tuple(x._node for x in xs), attrs)]
    return lambda *xs: Array(apply(op, tuple(x._node for x in xs), attrs or None))


@pytest.mark.parametrize("op", PRIMITIVES, ids=lambda op: op.name)
def test_a_primitive_is_exported_and_computes_the_same_or_is_refused_with_a_reason(op, tmp_path):
    seen = 0
    for dtype in ALL.values():
        case = case_of(op, dtype) if dtypes.KINDS[dtype] in op.kinds.split() else None
        if case is None:
            continue
        seen += 1
        operands, attrs = case
        function = call_of(op, attrs)
        why = REFUSED.get((op.name, "*")) or REFUSED.get((op.name, dtype.name))
        if why is None:
            units = 2**30 if (op.name, dtype.name) == ("erf", "float64") else UNITS  # onnx's evaluator has float32's
            check(tmp_path, function, operands, units=units, whole=op.kind not in EXACT)
            continue
        with pytest.raises((pg.UnsupportedOp, pg.DTypeError)) as caught:
            check(tmp_path, function, operands)
        assert str(caught.value).endswith(why)
        assert str(caught.value).startswith("cannot export")
    assert seen


def test_each_primitive_has_a_rule_or_a_reason_and_no_other_op_has():
    known = {*onnx_ops.RULES, *onnx_ops.REFUSED}
    made = {op.name for op in PRIMITIVES if op.kind == "elementwise" or op.fallback is not None}
    assert {op.name for op in PRIMITIVES} - known - made == set()
    assert known - {op.name for op in PRIMITIVES} == set()


LEAST = {d: dtypes.integer_range(d)[0] for d in (dtypes.int8, dtypes.int32, dtypes.int64)}


@pytest.mark.parametrize("dtype", LEAST, ids=lambda d: d.name)
def test_integers_wrap_and_never_trap(dtype, tmp_path):
    least, most = dtypes.integer_range(dtype)
    xs = np.asarray([least, least, -7, 7, 5, most, 0, -1, 9], dtype)
    ys = np.asarray([-1, 0, 2, -2, 0, 1, 3, 100, -1], dtype)
    functions = [F.quotient, F.modulo, F.bitwise_left_shift, F.bitwise_right_shift, F.add, F.multiply]
    both = lambda x, y: [
        *(Array(f(x._node, y._node)) for f in functions),
        -x,
        abs(x),
        x // y,
        x % y,
        x.astype("uint8"),
    ]
    check(tmp_path, both, [xs, ys])


def test_unsigned_integers_keep_their_order_and_their_bits(tmp_path):
    for dtype in (np.uint8, np.uint32, np.uint64):
        most = np.iinfo(dtype).max
        x, y = np.asarray([0, 1, most, most - 1], dtype), np.asarray([most, 2, 1, most], dtype)
        functions = lambda x, y: [
            x < y,
            pg.maximum(x, y),
            pg.sort(x),
            pg.max(x),
            x + y,
            x * y,
            ~x,
            -x,
            x << pg.asarray(3, dtype=x.dtype),
            x >> pg.asarray(1, dtype=x.dtype),
            x.astype("float64"),
            y.astype("int64"),
        ]
        check(tmp_path, functions, [x, y], units=4)


def test_narrow_values_are_brought_back_after_every_op(tmp_path):
    for dtype in ("float16", "bfloat16"):
        x, y = (floats(40, seed=k).astype(ALL[dtype]) for k in (1, 2))
        check(tmp_path, lambda x, y: [(x * y + x) * y - x, pg.exp(x) / y * x, pg.sum(x) - y], [x, y], units=0)
    for dtype in (np.int8, np.uint8, np.int16, np.uint32):
        most = np.iinfo(dtype).max
        x = np.asarray([most, most - 1, 3, 1], dtype)
        check(tmp_path, lambda x: [(x + x) // 3, (x * x) >> pg.asarray(1, dtype=x.dtype), x + 1 > x, -x // 2], [x])


def test_special_values_of_floats_come_out_alike(tmp_path):
    zero, inf, nan = 0.0, np.inf, np.nan
    values = np.asarray([zero, -zero, 1.0, -1.5, 2.5, inf, -inf, nan, 1e-30, -1e-6, 88.0, 3e38], np.float32)
    x, y = (a.ravel().copy() for a in np.meshgrid(values, values))
    one = [pg.trunc, pg.round, pg.expm1, pg.isnan, pg.sign, pg.nn.relu, pg.nn.sigmoid, lambda v: v.astype("bool")]
    two = [pg.maximum, pg.minimum, pg.copysign, pg.less, pg.equal, pg.pow, pg.atan2]
    check(tmp_path, lambda v: [f(v) for f in one], [values], units=UNITS, whole=False)
    check(tmp_path, lambda v, w: [f(v, w) for f in two], [x, y], units=UNITS, whole=False)
    near = np.asarray([-0.5, -1e-7, 1e-20, 1e-4, 3.0, 1e30, inf], np.float32)
    check(tmp_path, lambda v: [pg.log1p(v), pg.expm1(v)], [near], units=UNITS, whole=False)


# ---- every function --------------------------------------------------------------------------------------------------


COMPOSITES = [op for op in TABLE.values() if op.kind == "composite" and op.samples is not None]
LOOKS = "which an exported model cannot do; choose by pg.where(...)"
REFUSED_FUNCTIONS = {
    **dict.fromkeys(("fft", "ifft", "fftn", "ifftn", "rfft", "rfftn", "ihfft", "eig", "eigvals"),
                    onnx_ops.REFUSED["pair_"]),
    **dict.fromkeys(("eigh", "eigvalsh", "svd", "svdvals", "qr", "matrix_norm", "matrix_rank", "pinv"), NOT_IN_ONNX),
    **dict.fromkeys(("nonzero", "unique_all", "unique_counts", "unique_inverse", "unique_values"), LOOKS),
}  # fmt: skip


def function_of(op, args, keywords):
    """Return a call of a function of nodes as one of arrays, and the arrays."""
    found = []

    def collect(value):
        if isinstance(value, np.ndarray):
            place = len(found)
            found.append(value)
            return lambda xs: xs[place]._node
        if isinstance(value, (list, tuple)):
            parts = [collect(v) for v in value]
            return lambda xs: type(value)(p(xs) for p in parts)
        return lambda xs: value

    call = [collect(a) for a in args]
    named = {name: collect(v) for name, v in keywords.items()}

    def function(*xs):
        out = getattr(F, op.name)(*[c(xs) for c in call], **{name: c(xs) for name, c in named.items()})
        return [placed(n) for n in (out if isinstance(out, (tuple, list)) else [out])]

    return function, found or [np.zeros(1)]  # what makes an array of nothing gets an input that it does not look at


@pytest.mark.parametrize("op", COMPOSITES, ids=lambda op: op.name)
def test_a_function_is_exported_and_computes_the_same(op, tmp_path):
    kinds = op.dtypes.split()
    dtype = dtypes.float32 if "float" in kinds else dtypes.int64 if "int" in kinds else dtypes.bool_
    samples = list(op.samples(Draw(np.random.default_rng(1), dtype)))
    function, operands = function_of(op, *samples[1 if len(samples) > 1 else 0])
    why = REFUSED_FUNCTIONS.get(op.name)
    if why is None:
        check(tmp_path, function, operands)
        return
    with pytest.raises(pg.PolygradError) as caught:
        check(tmp_path, function, operands)
    assert str(caught.value).endswith(why)
