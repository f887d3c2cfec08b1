"""Models exported to ONNX, run by onnxruntime.

Here: every primitive of the table, in its dtypes, exported and compared or refused; every function; whole models with
open sizes; what is refused; the file. Not here: how numbers are drawn (`polygrad.testing`).

What may differ. A runtime rounds its own functions: one op on one operand may be off by UNITS units of the dtype. In a
function or a model, sums are added up in another order: results may be off by DRIFT units times the largest result.
"""

import os

import numpy as np
import pytest

import polygrad as pg
from polygrad import dtypes
from polygrad.array.object import Array
from polygrad.array.tree import leaves_of
from polygrad.graph.functions import F
from polygrad.graph.node import RECORDING, apply, call_library
from polygrad.io import onnx_files, onnx_ops
from polygrad.ops import TABLE
from polygrad.testing.draw import Draw
from polygrad.testing.primitives import CALLS, operands_of

onnx = pytest.importorskip("onnx", reason="not run: needs onnx")
runtime = pytest.importorskip("onnxruntime", reason="not run: needs onnxruntime")

UNITS = 64
DRIFT = 256
ALL = dtypes.BY_NAME
PRIMITIVES = [op for op in TABLE.values() if op.kind != "composite"]
# Operators that the ONNX standard has in float64 and onnxruntime has not; onnx's own evaluator runs these.
LACKING = {"Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Asinh", "Acosh", "Atanh", "Erf"}


def session(path):
    """Return what runs a model."""
    try:
        options = runtime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 4
        return runtime.InferenceSession(os.fspath(path), options, providers=["CPUExecutionProvider"])
    except runtime.capi.onnxruntime_pybind11_state.NotImplemented as error:
        if not any(f"for {kind}(" in str(error) for kind in LACKING):
            raise
        from onnx.reference import ReferenceEvaluator

        return ReferenceEvaluator(os.fspath(path))


def run(path, inputs):
    """Return the outputs of a model in a file."""
    return run_session(session(path), inputs)


def run_session(made, inputs):
    if isinstance(made, runtime.InferenceSession):
        return _run_bound(made, dict(zip([i.name for i in made.get_inputs()], inputs, strict=True)))
    with np.errstate(all="ignore"):
        return made.run(None, dict(zip(made.input_names, inputs, strict=True)))


def _run_bound(made, feed):
    """Run a model whose inputs may have dtypes that NumPy does not know."""
    binding = made.io_binding()
    for name, x in feed.items():
        x = np.array(x, order="C")
        if x.dtype == dtypes.bfloat16:
            value = runtime.OrtValue.ortvalue_from_numpy_with_onnx_type(x.view(np.uint16), onnx.TensorProto.BFLOAT16)
        else:
            value = runtime.OrtValue.ortvalue_from_numpy(x)
        binding.bind_ortvalue_input(name, value)
    for end in made.get_outputs():
        binding.bind_output(end.name)
    made.run_with_iobinding(binding)
    return [_as_numpy(v) for v in binding.get_outputs()]


def _as_numpy(value):
    if value.element_type() == onnx.TensorProto.BFLOAT16:
        import ctypes

        count = int(np.prod(value.shape()))
        raw = (ctypes.c_uint16 * count).from_address(value.data_ptr())
        return np.array(raw, np.uint16).view(dtypes.bfloat16).reshape(value.shape())
    return value.numpy()


def values_of(result):
    return [a.detach().numpy() for a in leaves_of(result)]


def close(got, want, units, whole=False):
    """Assert that two lists of arrays are equal up to units of their dtype: of each element, or of the largest."""
    assert len(got) == len(want)
    for g, w in zip(got, want, strict=True):
        assert g.dtype == w.dtype
        assert g.shape == w.shape
        if w.dtype.kind in "biu" and w.dtype != dtypes.bfloat16:
            np.testing.assert_array_equal(g, w)
            continue
        eps = dtypes.float_limits(w.dtype)[0]
        g, w = g.astype(np.float64), w.astype(np.float64)
        finite = np.abs(w[np.isfinite(w)])
        room = units * eps * (finite.max(initial=0.0) if whole else 1e-3)
        np.testing.assert_allclose(g, w, rtol=units * eps, atol=room)


def check(tmp_path, function, inputs, others=(), units=DRIFT, whole=True, **options):
    """Export a function, and compare what it gives there and here, for *others* of other sizes too."""
    path = tmp_path / "model.onnx"
    pg.io.export_onnx(function, path, *[pg.asarray(x) for x in inputs], **options)
    made = session(path)
    for xs in (inputs, *others):
        if isinstance(function, pg.nn.Module):
            function.eval()
        with pg.no_grad():
            want = values_of(function(*[pg.asarray(x) for x in xs]))
        close(run_session(made, xs), want, units, whole)
    return onnx.load(path)


def kinds_of(model):
    return [n.op_type for n in model.graph.node]


# ---- every primitive ------------------------------------------------------------------------------------------------

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


# ---- every function -------------------------------------------------------------------------------------------------

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


# ---- models ---------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _on_the_host():
    pg.random.seed(7)
    with pg.device("cpu:0"):
        yield


def floats(*shape, dtype=np.float32, seed=3):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def tokens(*shape):
    return np.random.default_rng(4).integers(0, 50, shape)


class Net(pg.nn.Module):
    """Convolutions of all kinds, norms and poolings."""

    def __init__(self):
        self.first = pg.nn.Conv2d(1, 4, 3, padding=1)
        self.norm = pg.nn.BatchNorm2d(4)
        self.grouped = pg.nn.Conv2d(4, 8, 3, stride=2, groups=2, bias=False)
        self.depthwise = pg.nn.Conv2d(8, 8, 3, padding=1, dilation=1, groups=8)
        self.up = pg.nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.head = pg.nn.Linear(4, 3)
        self.norm.running_mean = pg.asarray([0.1, -0.2, 0.3, 0.0], dtype=pg.float32)
        self.norm.running_var = pg.asarray([0.5, 2.0, 1.0, 1.5], dtype=pg.float32)

    def forward(self, x):
        x = pg.nn.relu(self.norm(self.first(x)))
        x = pg.nn.max_pool2d(x, 3, stride=2, padding=1)
        x = pg.nn.functional.dropout(x, 0.5, self.training)
        x = self.up(pg.nn.gelu(self.depthwise(self.grouped(x))))
        x = pg.nn.functional.avg_pool2d(x, 2)
        return self.head(pg.nn.functional.adaptive_avg_pool2d(x, 1).reshape((x.shape[0], -1)))


def mlp(**options):
    return pg.nn.Sequential(pg.nn.Linear(4, 8, **options), pg.nn.GELU(), pg.nn.LayerNorm(8, **options),
                            pg.nn.Linear(8, 3, **options), pg.nn.Softmax(-1))  # fmt: skip


def gpt(**options):
    return pg.nn.GPT(vocab_size=50, context=8, dim=16, layers=2, heads=2, **options)


def test_an_mlp_takes_any_batch(tmp_path):
    model = check(tmp_path, mlp(), [floats(2, 4)], [[floats(n, 4)] for n in (1, 5)], dynamic_batch=True)
    assert kinds_of(model).count("Gemm") == 2
    assert kinds_of(model)[-1] == "Softmax"
    (given,) = model.graph.input
    assert [d.dim_param or d.dim_value for d in given.type.tensor_type.shape.dim] == ["batch", 4]
    (out,) = model.graph.output
    assert [d.dim_param or d.dim_value for d in out.type.tensor_type.shape.dim] == ["batch", 3]


def test_a_cnn_has_the_operators_of_its_layers(tmp_path):
    model = check(tmp_path, Net(), [floats(2, 1, 17, 17)], [[floats(3, 1, 17, 17)]], dynamic_batch=True)
    kinds = kinds_of(model)
    assert [kinds.count(k) for k in ("Conv", "MaxPool", "AveragePool", "Relu", "Gemm")] == [4, 1, 1, 1, 1]
    convolutions = [n for n in model.graph.node if n.op_type == "Conv"]
    assert [len(n.input) for n in convolutions] == [3, 2, 3, 3]


def test_parameters_and_buffers_keep_their_names_and_values(tmp_path):
    net = Net()
    model = check(tmp_path, net, [floats(2, 1, 17, 17)])
    kept = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    for name, array in [*net.named_parameters(), *net.named_buffers()]:
        np.testing.assert_array_equal(kept[name], array.detach().numpy())


@pytest.mark.parametrize("positions", ["rotary", "learned"])
def test_a_gpt_takes_any_batch_and_any_length_of_its_context(positions, tmp_path):
    more = [[tokens(3, 8)], [tokens(1, 1)], [tokens(4, 2)]]
    axes = {"tokens": {0: "batch", 1: "time"}}
    net = gpt(positions=positions)
    check(tmp_path, net, [tokens(1, 8)], more, dynamic_axes=axes)
    model = check(tmp_path, net, [tokens(2, 5)], more, dynamic_axes=axes)
    assert kinds_of(model).count("Softmax") == 2
    for wrong in (50, -1):
        with pytest.raises(RuntimeError, match="out of data bounds"):
            run(tmp_path / "model.onnx", [np.asarray([[wrong]])])


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_recurrent_layers_are_unrolled(kind, tmp_path):
    layer = getattr(pg.nn, kind)(4, 5, 2, bidirectional=True)
    more = [[floats(3, 4, 4)]]
    model = check(tmp_path, layer, [floats(3, 2, 4)], more, dynamic_axes={"x": {1: "batch"}})
    assert "Concat" in kinds_of(model)
    assert "Pad" not in kinds_of(model)


def test_attention_with_a_mask_and_several_inputs(tmp_path):
    layer = pg.nn.MultiheadAttention(8, 2, batch_first=True)
    shapes = [(2, 3, 8), (2, 5, 8), (2, 5, 8)]
    inputs = [floats(*s, seed=k) for k, s in enumerate(shapes)]
    wider = [floats(4, *s[1:], seed=k) for k, s in enumerate(shapes)]
    mask = np.random.default_rng(0).integers(0, 2, (3, 5)).astype(bool)

    def attend(q, k, v):
        return layer(q, k, v, attn_mask=pg.asarray(mask))[0]

    layer.eval()
    check(tmp_path, attend, inputs, [wider], dynamic_batch=True)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sixteen_bit_models_round_as_polygrad_does(dtype, tmp_path):
    for model, given in ((mlp(), floats(2, 4)), (gpt(), tokens(2, 5)), (Net(), floats(2, 1, 17, 17))):
        model.to(dtype=dtype)
        x = given if given.dtype.kind == "i" else given.astype(ALL[dtype])
        made = check(tmp_path, model, [x], dynamic_batch=True, units=1)
        assert {t.data_type for t in made.graph.initializer} >= {10 if dtype == "float16" else 16}


def test_float64_models_stay_float64(tmp_path):
    check(tmp_path, gpt(dtype="float64"), [tokens(2, 5)], units=64)


def test_a_model_on_another_device_is_exported_too(device, tmp_path):
    with pg.device(device):
        model = pg.nn.Sequential(pg.nn.Linear(4, 3), pg.nn.ReLU())
        check(tmp_path, model, [floats(2, 4)])


def test_operator_sets_from_18_on_are_written(tmp_path):
    for opset in (18, 20, 21):
        made = check(tmp_path, Net(), [floats(2, 1, 17, 17)], opset=opset)
        assert [o.version for o in made.opset_import] == [opset]
    # Runtimes may not know the newest set that the package knows; its checker does.
    pg.io.export_onnx(Net(), tmp_path / "m.onnx", floats(2, 1, 17, 17), opset=onnx.defs.onnx_opset_version())


def test_trees_several_results_and_names(tmp_path):
    def function(pair, scale, flag):
        assert flag is None
        return {"sum": pair["a"] + pair["b"], "rest": [pair["a"], pair["a"] * scale, pair["a"] * scale]}

    a, b = pg.asarray([1.0, 2.0]), pg.asarray([3.0, 4.0])
    path = tmp_path / "model.onnx"
    pg.io.export_onnx(function, path, {"a": a, "b": b}, np.asarray(2.0), None)
    made = onnx.load(path)
    assert [i.name for i in made.graph.input] == ["pair_0", "pair_1", "scale"]
    assert [o.name for o in made.graph.output] == ["output_0", "output_1", "output_2", "output_3"]
    found = run(path, [np.asarray([1.0, 2.0]), np.asarray([3.0, 4.0]), np.asarray(2.0)])
    assert [x.tolist() for x in found] == [[4.0, 6.0], [1.0, 2.0], [2.0, 4.0], [2.0, 4.0]]
    names = {"input_names": ["u", "v", "w"], "output_names": ["p", "q", "r", "s"], "metadata": {"made": "by us"}}
    pg.io.export_onnx(function, path, {"a": a, "b": b}, np.asarray(2.0), None, **names)
    made = onnx.load(path)
    assert [i.name for i in made.graph.input] == ["u", "v", "w"]
    assert [o.name for o in made.graph.output] == ["p", "q", "r", "s"]
    assert {p.key: p.value for p in made.metadata_props} == {"made": "by us"}
    assert made.producer_name == "polygrad"


def test_what_was_computed_before_is_a_constant_and_random_numbers_too(tmp_path):
    noise = pg.random.normal((3,))
    check(tmp_path, lambda x: x + noise, [floats(2, 3, dtype=np.float64)], dynamic_batch=True)


def test_methods_and_wrapped_modules_are_read_like_the_module(tmp_path):
    model = gpt()
    for function, given in ((model.loss, [tokens(2, 5), tokens(2, 5)]), (pg.vmap(mlp()), [floats(2, 3, 4)])):
        made = check(tmp_path, function, given)
        assert any(t.name.endswith("weight") for t in made.graph.initializer)


def test_derivatives_and_other_transforms_are_exported(tmp_path):
    def function(x):
        slope = pg.grad(lambda v: pg.sum(pg.tanh(v) * v))(x)
        return slope, pg.vmap(lambda row: pg.softmax(row * row.sum()))(x), pg.checkpoint(pg.exp)(x)

    check(tmp_path, function, [floats(2, 3)], [[floats(4, 3)]], dynamic_batch=True)


def test_writing_into_arrays_is_exported(tmp_path):
    def function(x):
        y = x * 1.0
        y[0, 1:] = 5.0
        y[:, 0] += 2.0
        x[..., ::2] = 0.0
        return y, x

    inputs = [floats(3, 5)]
    path = tmp_path / "model.onnx"
    pg.io.export_onnx(function, path, *inputs, dynamic_batch=True)
    for n in (3, 6):
        close(run(path, [floats(n, 5)]), values_of(function(pg.asarray(floats(n, 5)))), UNITS)


def test_numbers_that_follow_from_open_sizes(tmp_path):
    def function(x):
        n, m = x.shape
        flipped = pg.flip(x, axis=0)
        rows = pg.arange(n, dtype=pg.float32)
        joined = pg.concat([x, flipped, x * 2.0], axis=0)
        written = pg.zeros((n, m), dtype=pg.float32).at[1:, 0].set(3.0)
        return [
            flipped,
            x - pg.mean(x, axis=0),
            pg.mean(x * 1.0),
            rows[:, None] * x,
            joined,
            written,
            x.reshape((-1,))[::2],
            pg.take(x, pg.asarray([0, -1]), axis=0),
            pg.sort(x, axis=0),
            pg.cumulative_sum(x, axis=0),
            x.mT @ x / n,
            pg.pad(x, ((1, 2), (0, 0))),
        ]

    sizes = {"x": {0: "n"}}
    check(tmp_path, function, [floats(4, 6)], [[floats(n, 6)] for n in (2, 9)], dynamic_axes=sizes)


# ---- what is refused ------------------------------------------------------------------------------------------------


def saying(error, sentence):
    import re

    return pytest.raises(error, match="^" + re.escape(sentence))


def test_training_stays_as_it_was_and_dropout_is_never_exported(tmp_path):
    model = pg.nn.Sequential(pg.nn.Linear(4, 4), pg.nn.Dropout(0.5))
    model[0].eval()
    check_modes = [m.training for m in model.modules()]
    pg.io.export_onnx(model, tmp_path / "model.onnx", floats(2, 4))
    assert [m.training for m in model.modules()] == check_modes == [True, False, True]
    assert kinds_of(onnx.load(tmp_path / "model.onnx")) == ["Gemm"]
    with saying(pg.UnsupportedOp, "cannot export random_bits of uint32 to ONNX: random numbers differ from run to run"):
        pg.io.export_onnx(lambda x: model(x), tmp_path / "other.onnx", floats(2, 4))
    assert os.listdir(tmp_path) == ["model.onnx"]


def test_a_function_that_looks_at_values_is_refused(tmp_path):
    with saying(pg.CaptureError, "cannot export: the function looks at a value"):
        pg.io.export_onnx(lambda x: x if float(x.sum()) > 0 else -x, tmp_path / "m.onnx", floats(2))
    assert os.listdir(tmp_path) == []


def test_a_module_that_changes_its_state_is_refused_and_unharmed(tmp_path):
    class Counting(pg.nn.Module):
        def __init__(self):
            self.register_buffer("seen", pg.zeros(2, dtype=pg.float32))

        def forward(self, x):
            self.seen += x.sum(axis=0)
            return x * 2.0

    model = Counting()
    with saying(pg.StateError, "cannot export: forward writes to seen, and a model of ONNX keeps no state"):
        pg.io.export_onnx(model, tmp_path / "m.onnx", floats(3, 2))
    assert model.seen.tolist() == [0.0, 0.0]


class Keeping(pg.nn.Module):
    """Keeps an array between calls: of nothing else, or of its input."""

    def __init__(self, make):
        self.make, self.kept = make, None

    def forward(self, x):
        if self.kept is None:
            self.kept = (self.make(x),)
        return x + self.kept[0]


def test_what_a_module_keeps_between_calls_is_a_constant_unless_it_depends_on_the_input(tmp_path):
    made_once = Keeping(lambda x: pg.tril(pg.ones((4, 4), dtype=x.dtype)))
    check(tmp_path, made_once, [floats(2, 4, 4)], [[floats(3, 4, 4)]], dynamic_batch=True)
    with saying(
        pg.StateError, "cannot export: the function uses an array that it made of its inputs when it was called"
    ):
        pg.io.export_onnx(Keeping(lambda x: pg.mean(x)), tmp_path / "m.onnx", floats(2, 4), dynamic_batch=True)


def test_sizes_that_change_what_is_computed_cannot_be_left_open(tmp_path):
    path = tmp_path / "m.onnx"
    with saying(pg.ShapeError, "cannot export with open sizes: what is computed changes with time ("):
        pg.io.export_onnx(pg.nn.LSTM(4, 5), path, floats(3, 2, 4), dynamic_axes={"x": {0: "time"}})
    with saying(pg.ShapeError, "cannot export slice with open sizes: a number in it is 1, 2, 3 for n of 3; 4; 6,"):
        pg.io.export_onnx(lambda x: x[: x.shape[0] // 2], path, floats(3, 4), dynamic_axes={"x": {0: "n"}})
    fixed = pg.nn.GPT(vocab_size=50, context=4, dim=8, layers=1, heads=1)
    with saying(pg.ShapeError, "cannot leave time open: for time 6 the function says: cannot read 6 positions: this"):
        pg.io.export_onnx(fixed, path, tokens(1, 3), dynamic_axes={"tokens": {1: "time"}})
    with saying(pg.ShapeError, "cannot read 5 positions: this GPT has a context of 4"):
        pg.io.export_onnx(fixed, path, tokens(1, 5))


@pytest.mark.parametrize(
    ("options", "error", "sentence"),
    [
        ({"opset": 11}, pg.StateError, "cannot export with opset 11: this version of polygrad and of onnx write 18 to"),
        ({"input_names": ["a", "b"]}, pg.StateError, "cannot export: 2 input names for 1 inputs; give one for each"),
        ({"input_names": [""]}, pg.StateError, "cannot export: input names [''] must be text, and different from all"),
        ({"output_names": ["x"]}, pg.StateError, "cannot export: output names ['x'] must be text, and different"),
        ({"metadata": {"a": 1}}, pg.StateError, "cannot export: names and values of metadata are text"),
        ({"dynamic_axes": {"y": {0: "n"}}}, pg.StateError, "cannot leave axes of 'y' open: the inputs are x"),
        ({"dynamic_axes": {"x": [0]}}, pg.StateError, "cannot leave axes [0] of 'x' open: give their names, as in"),
        ({"dynamic_axes": {"x": {5: "n"}}}, pg.ShapeError, "cannot leave axis 5 of 'x' open: it has 2 axes"),
        ({"dynamic_axes": {"x": {0: "a b"}}}, pg.StateError, "cannot call an open size 'a b': it takes a name like"),
        ({"dynamic_axes": {"x": {0: "n", 1: "n"}}}, pg.ShapeError, "cannot leave n open: the examples have 2 and 4 of"),
    ],
)
def test_wrong_arguments_are_refused_in_one_sentence(options, error, sentence, tmp_path):
    with saying(error, sentence):
        pg.io.export_onnx(lambda x: x * 2.0, tmp_path / "m.onnx", floats(2, 4), **options)
    assert os.listdir(tmp_path) == []


def test_models_without_arrays_and_complex_ones_are_refused(tmp_path):
    path = tmp_path / "m.onnx"
    with saying(pg.StateError, "cannot export: give an example of each input, as in export_onnx(model, path, x)"):
        pg.io.export_onnx(mlp(), path)
    with saying(pg.StateError, "cannot export: the function returns NoneType, which holds no array"):
        pg.io.export_onnx(lambda x: None, path, floats(2))
    with saying(pg.DTypeError, "cannot export input 'x' of complex64: ONNX's operators take no complex numbers"):
        pg.io.export_onnx(lambda x: pg.real(x), path, pg.asarray([1j], dtype=pg.complex64))


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "onnx", None)
    with saying(pg.StateError, "exporting a model needs the package onnx: pip install 'polygrad-array[onnx]'"):
        pg.io.export_onnx(mlp(), tmp_path / "m.onnx", floats(2, 4))


# ---- the file -------------------------------------------------------------------------------------------------------


def test_constants_that_are_too_large_for_a_message_get_a_file_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_files, "LARGEST", 10_000)
    path = tmp_path / "model.onnx"
    model = pg.nn.Sequential(pg.nn.Linear(64, 64), pg.nn.ReLU(), pg.nn.Linear(64, 3))
    check(tmp_path, model, [floats(2, 64)])
    (data,) = [n for n in os.listdir(tmp_path) if n != "model.onnx"]
    assert data.startswith("model.onnx.")
    assert os.path.getsize(path) < 10_000 < os.path.getsize(tmp_path / data)
    before = (path.read_bytes(), (tmp_path / data).read_bytes())
    # Another model's constants are in another file, so that the old pair is whole until the new one is.
    other = pg.nn.Sequential(pg.nn.Linear(64, 64))
    replace = os.replace

    def full_behind_the_constants(source, target):
        if str(target).endswith("model.onnx"):
            raise OSError(28, "no room")
        replace(source, target)

    for full in (_failing, full_behind_the_constants):
        monkeypatch.setattr("polygrad.array.files.os.replace", full)
        with pytest.raises(OSError, match="no room"):
            pg.io.export_onnx(other, path, floats(2, 64))
        assert sorted(os.listdir(tmp_path)) == sorted(["model.onnx", data])
        assert before == (path.read_bytes(), (tmp_path / data).read_bytes())
    monkeypatch.undo()
    monkeypatch.setattr(onnx_files, "LARGEST", 10_000)
    check(tmp_path, other, [floats(2, 64)])
    assert data not in os.listdir(tmp_path)
    assert len(os.listdir(tmp_path)) == 2
    monkeypatch.undo()
    check(tmp_path, other, [floats(2, 64)])
    assert os.listdir(tmp_path) == ["model.onnx"]


def _failing(*_):
    raise OSError(28, "no room")


def test_a_model_that_cannot_be_written_leaves_the_old_one(tmp_path, monkeypatch):
    path = tmp_path / "model.onnx"
    pg.io.export_onnx(mlp(), path, floats(2, 4))
    before = path.read_bytes()
    monkeypatch.setattr("polygrad.array.files.os.fsync", _failing)
    with pytest.raises(OSError, match="no room"):
        pg.io.export_onnx(mlp(), path, floats(2, 4))
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["model.onnx"]


def test_onnx_is_imported_only_when_a_model_is_exported():
    import subprocess
    import sys

    code = "import sys, polygrad as pg; pg.io.export_onnx; print('onnx' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "False\n"
