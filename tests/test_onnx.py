"""Models exported to ONNX, run by onnxruntime, and the file that is written.

Here: whole models with open sizes, wrapped and transformed ones, constants apart from the model. Not here: single ops
(`test_onnx_ops.py`), what is refused (`test_onnx_refusals.py`).
"""

import os

import numpy as np
import pytest

import polygrad as pg
from polygrad.io import onnx_files
from support.onnx_models import (
    ALL,
    UNITS,
    check,
    close,
    floats,
    gpt,
    kinds_of,
    mlp,
    onnx,
    run,
    tokens,
    values_of,
)

pytestmark = pytest.mark.usefixtures("host")


# ---- models ----------------------------------------------------------------------------------------------------------


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


# ---- the file --------------------------------------------------------------------------------------------------------


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
