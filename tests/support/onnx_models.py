"""What tests of the export to ONNX share: a model exported, run and compared with what polygrad computes.

Here: onnxruntime, what may differ, small models and their inputs. Not here: tests.

What may differ. A runtime rounds its own functions: one op on one operand may be off by UNITS units of the dtype. In a
function or a model, sums are added up in another order: results may be off by DRIFT units times the largest result.
"""

import os

import numpy as np
import pytest

import polygrad as pg
from polygrad import dtypes
from polygrad.array.tree import leaves_of

onnx = pytest.importorskip("onnx", reason="not run: needs onnx")
runtime = pytest.importorskip("onnxruntime", reason="not run: needs onnxruntime")
UNITS = 64
DRIFT = 256
ALL = dtypes.BY_NAME
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


def floats(*shape, dtype=np.float32, seed=3):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def tokens(*shape):
    return np.random.default_rng(4).integers(0, 50, shape)


def mlp(**options):
    return pg.nn.Sequential(pg.nn.Linear(4, 8, **options), pg.nn.GELU(), pg.nn.LayerNorm(8, **options),
                            pg.nn.Linear(8, 3, **options), pg.nn.Softmax(-1))  # fmt: skip


def gpt(**options):
    return pg.nn.GPT(vocab_size=50, context=8, dim=16, layers=2, heads=2, **options)


def saying(error, sentence):
    import re

    return pytest.raises(error, match="^" + re.escape(sentence))
