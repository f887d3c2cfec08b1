"""What is refused when a model is exported to ONNX, in one sentence that names it, with nothing written or changed.

Here: functions, modules, sizes and arguments. Not here: the ops that ONNX lacks (`test_onnx_ops.py`).
"""

import os

import pytest

import polygrad as pg
from support.onnx_models import (
    check,
    floats,
    kinds_of,
    mlp,
    onnx,
    saying,
    tokens,
)

pytestmark = pytest.mark.usefixtures("host")


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
