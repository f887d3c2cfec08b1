"""What users can do wrong with arrays: one class and one sentence each, the device usable afterwards, nothing leaked.

Here: shapes, dtypes, conversions, indices. Not here: devices (`test_device_errors.py`), drivers that do not load
(`test_loader.py`).
"""

import inspect
import math
import operator
import re

import numpy as np
import pytest

import polygrad as pg
from polygrad.array.words import OF_ARRAYS, OF_PACKAGE
from polygrad.runtime.devices import State

DTYPES = (
    "bool, int8, int16, int32, int64, uint8, uint16, uint32, uint64, float16, bfloat16, float32, float64, complex64, "
    "complex128"
)


pytestmark = pytest.mark.usefixtures("usable_afterwards")


def refuses(error, sentence):
    return pytest.raises(error, match=f"^{re.escape(sentence)}$")


SHAPES = {
    "add": (
        lambda: pg.zeros((2, 3)) + pg.zeros((2, 4)),
        "cannot add shapes [2, 3] and [2, 4]: axis -1 has sizes 3 and 4; they must be equal or 1",
    ),
    "matmul": (
        lambda: pg.zeros((2, 3)) @ pg.zeros((2, 3)),
        "cannot multiply matrices [2, 3] and [2, 3]: the last axis of the first has 3 elements, the last but "
        "one of the second 2; they must be equal",
    ),
    "matmul of a scalar": (
        lambda: pg.zeros(3) @ pg.asarray(1.0),
        "cannot multiply matrices when one is a scalar: matmul needs at least one axis on both sides; use * "
        "for scaling",
    ),
    "reshape": (lambda: pg.reshape(pg.zeros(3), (2, 2)), "cannot reshape shape [3] to [2, 2]: 3 elements are not 4"),
    "two unknown sizes": (
        lambda: pg.reshape(pg.zeros(3), (-1, -1)),
        "cannot reshape to [-1, -1]: sizes must not be negative, and one of them may be -1",
    ),
    "broadcast": (
        lambda: pg.broadcast_to(pg.zeros(3), (2,)),
        "cannot broadcast shape [3] to [2]: from the last axis on, sizes must be equal or 1",
    ),
    "axis": (
        lambda: pg.sum(pg.zeros((2, 3)), axis=3),
        "cannot sum along axis 3: the array has 2 axes, so it must be in [-2, 2)",
    ),
    "axis twice": (
        lambda: pg.sum(pg.zeros((2, 3)), axis=(0, -2)),
        "cannot sum over axes (0, -2): an axis is named twice",
    ),
    "axis of a scalar": (
        lambda: pg.softmax(pg.asarray(1.0)),
        "cannot apply softmax along axis -1: the array has no axes",
    ),
    "concat": (
        lambda: pg.concat([pg.zeros((2, 3)), pg.zeros((2, 4))]),
        "cannot concatenate shapes [2, 3] and [2, 4] along axis 0: all other axes must have equal sizes",
    ),
    "squeeze": (lambda: pg.squeeze(pg.zeros(3), 0), "cannot squeeze axis 0 of shape [3]: its size is 3, not 1"),
    "negative size": (lambda: pg.zeros((-1,)), "cannot fill to shape [-1]: sizes must not be negative"),
    "size that is no int": (lambda: pg.zeros(2.5), "cannot fill: a shape is made of ints, got 2.5"),
    "no step": (lambda: pg.arange(0, 1, 0), "cannot count from 0 to 1 by 0: the step must not be zero"),
    "empty maximum": (
        lambda: pg.max(pg.zeros((3, 0)), axis=1),
        "cannot take the maximum of shape [3, 0] over axes [1]: an empty axis has none",
    ),
    "transpose": (
        lambda: pg.zeros(3).T,
        "cannot transpose shape [3] by .T: it takes two axes; use .mT or permute_dims",
    ),
    "split": (
        lambda: pg.split(pg.zeros(3), 2),
        "cannot split axis 0 of size 3 into 2 equal parts: give positions, or a count that divides it",
    ),
    "keys": (lambda: pg.zeros(3)[0, 0], "cannot index shape [3] with 2 keys: it has 1 axes"),
    "item": (lambda: pg.zeros(3).item(), "item() takes an array of one element, this one has shape [3]; use .tolist()"),
    "gradient": (
        lambda: setattr(pg.zeros(3), "grad", pg.zeros(2)),
        "cannot set a gradient of shape [2] on an array of shape [3]",
    ),
}


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_that_do_not_fit(name, device):
    function, sentence = SHAPES[name]
    with refuses(pg.ShapeError, sentence) as caught:
        function()
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, pg.PolygradError)


DTYPE = {
    "unknown": (lambda: pg.asarray([1], dtype="float31"), f"polygrad has no dtype 'float31'; it has {DTYPES}"),
    "text": (lambda: pg.asarray(["a"]), f"cannot make an array of dtype <U1: polygrad has {DTYPES}"),
    "complex": (
        lambda: pg.asarray(1j, dtype="int8"),
        "cannot convert 1j to int8: the imaginary part would be lost; take its .real part",
    ),
    "exp of bool": (
        lambda: pg.exp(pg.asarray([True])),
        "cannot exp bool: exp takes float dtypes; cast with .astype(...)",
    ),
    "bits of floats": (
        lambda: pg.zeros(2, dtype="float32") & pg.zeros(2, dtype="float32"),
        "cannot and float32 and float32: bitwise_and takes bool or int dtypes; cast with .astype(...)",
    ),
    "sum of bools": (
        lambda: pg.asarray([True]) + pg.asarray([True]),
        "cannot add bool and bool: add takes int or float dtypes; cast with .astype(...)",
    ),
    "minus bool": (
        lambda: -pg.asarray([True]),
        "cannot negate bool: negative takes int or float dtypes; cast with .astype(...)",
    ),
    "no common dtype": (
        lambda: pg.asarray([1], dtype="uint64") + pg.asarray([1], dtype="int8"),
        "cannot promote int8 and uint64: no integer dtype holds both; cast one with .astype(...)",
    ),
    "condition": (
        lambda: pg.where(pg.zeros(2, dtype="float32"), 1.0, 2.0),
        "cannot select by float32: the condition of where must be bool; compare it first",
    ),
    "None": (
        lambda: pg.add(pg.zeros(2), None),
        "cannot use None in an expression of arrays: convert it with pg.asarray(...)",
    ),
    "index of text": (lambda: pg.zeros(3)["a"], "cannot index by 'a': use ints, slices, ..., None and integer arrays"),
    "index of floats": (
        lambda: pg.zeros(3)[pg.zeros(1, dtype="float32")],
        "cannot index by float32: an index array has an integer dtype; cast with .astype(...)",
    ),
    "finfo": (lambda: pg.finfo(pg.int8), "finfo takes a float or complex dtype, got int8; use iinfo"),
    "kind": (
        lambda: pg.isdtype(pg.int8, "number"),
        "there is no dtype kind 'number'; kinds are bool, signed integer, unsigned integer, integral, real "
        "floating, complex floating, numeric",
    ),
}


@pytest.mark.parametrize("name", DTYPE)
def test_dtypes_that_do_not_fit(name, device):
    function, sentence = DTYPE[name]
    with refuses(pg.DTypeError, sentence) as caught:
        function()
    assert isinstance(caught.value, TypeError)


OVERFLOWS = {
    "operand": lambda: pg.asarray([1], dtype="int8") + 1000,
    "number": lambda: pg.asarray(1000, dtype="int8"),
    "list": lambda: pg.asarray([1, 1000], dtype="int8"),
    "fill": lambda: pg.full((2,), 1000, dtype="int8"),
}


@pytest.mark.parametrize("name", OVERFLOWS)
def test_ints_that_do_not_fit(name, device):
    with refuses(OverflowError, "1000 does not fit int8, whose range is [-128, 127]; use a wider dtype"):
        OVERFLOWS[name]()


def test_operators_leave_what_they_do_not_know_to_others(device):
    x = pg.zeros(2)
    for other in ("a", None, object()):
        with pytest.raises(TypeError, match="unsupported operand type"):
            x + other
    assert (x == None) is False  # noqa: E711
    assert x != "a"


def test_ragged_lists(device):
    with pytest.raises(pg.ShapeError, match="^cannot make an array of list: its rows have different lengths"):
        pg.asarray([[1, 2], [3]])


CONVERSIONS = {
    "bool": (
        lambda: bool(pg.zeros(3)),
        ValueError,
        "the truth of an array of shape [3] is ambiguous: use pg.any(x) or pg.all(x)",
    ),
    "float": (
        lambda: float(pg.zeros(3)),
        TypeError,
        "float() takes a 0-d array, this one has shape [3]; use .item() or .tolist()",
    ),
    "int": (
        lambda: int(pg.zeros(3)),
        TypeError,
        "int() takes a 0-d array, this one has shape [3]; use .item() or .tolist()",
    ),
    "len": (lambda: len(pg.asarray(1.0)), TypeError, "a 0-d array has no length"),
    "iter": (lambda: list(pg.asarray(1.0)), TypeError, "cannot iterate over a 0-d array"),
    "index": (
        lambda: [1, 2][pg.asarray(1.0, dtype="float32")],
        TypeError,
        "only integer arrays are an index, this one is float32",
    ),
    "numpy": (
        lambda: pg.zeros(1).requires_grad_().numpy(),
        pg.GradError,
        "numpy() of an array that needs gradients would leave the recording: use .detach() first, or .item() "
        "for a number",
    ),
    "array": (
        lambda: np.asarray(pg.zeros(1).requires_grad_()),
        pg.GradError,
        "__array__ of an array that needs gradients would leave the recording: use .detach() first, or "
        ".item() for a number",
    ),
    "copy": (
        lambda: pg.asarray([1, 2], copy=False),
        ValueError,
        "cannot make an array of a list without a copy: leave copy=False out",
    ),
    "revision": (
        lambda: pg.zeros(1).__array_namespace__(api_version="1999.12"),
        ValueError,
        "polygrad does not know revision '1999.12' of the Array API standard",
    ),
    "stream": (
        lambda: pg.zeros(1).to_device("cpu", stream=3),
        ValueError,
        "polygrad orders its own work: stream must be None",
    ),
    "precision": (
        lambda: pg.set_matmul_precision("low"),
        ValueError,
        "matmul precision is 'highest' or 'tf32', got 'low'",
    ),
}


@pytest.mark.parametrize("name", CONVERSIONS)
def test_conversions_that_lose_something(name, device):
    function, error, sentence = CONVERSIONS[name]
    with refuses(error, sentence):
        function()


def test_an_index_known_on_the_host_is_refused_at_once(device):
    x = pg.zeros((3, 4))
    with refuses(pg.OutOfBounds, "cannot take index 3 of axis 0, which has size 3: it must be in [-3, 3)") as caught:
        x[3]
    assert isinstance(caught.value, IndexError)
    with refuses(pg.OutOfBounds, "cannot take index -5 of axis 1, which has size 4: it must be in [-4, 4)"):
        x[:, -5]
    with refuses(pg.OutOfBounds, "cannot index axis 0 of shape [0]: it is empty"):
        pg.zeros(0)[pg.asarray([0])]


INDEXED = {
    "fancy": (lambda x, i: x[i], 3, 7),
    "negative": (lambda x, i: x[i], 3, -4),
    "take": (lambda x, i: pg.take(x, i, axis=0), 3, 3),
    "along": (lambda x, i: pg.take_along_axis(x, i, axis=0), 3, 5),
    "huge": (lambda x, i: x[i], 3, 2**40),
    "second axis": (lambda x, i: pg.stack([x, x])[pg.asarray([0]), i], 3, 4),
}


@pytest.mark.parametrize("read", ["numpy", "item", "synchronize", "print", "later"])
@pytest.mark.parametrize("name", INDEXED)
def test_an_index_on_the_device_is_reported_with_the_line_that_used_it(name, read, device):
    function, size, index = INDEXED[name]
    if abs(index) > 2**31 and "int64" not in pg.__array_namespace_info__().dtypes(device=device):
        pytest.skip(f"not run: needs int64 on {device}")
    x, i = pg.asarray([10.0, 20.0, 30.0]), pg.asarray([index])
    y = function(x, i)
    with pytest.raises(pg.OutOfBounds) as caught:
        if read == "numpy":
            y.numpy()
        elif read == "item":
            y.item()
        elif read == "print":
            repr(y)
        elif read == "synchronize":
            y.realize()
            pg.synchronize()
        else:
            y.realize()
            (x + 1.0).numpy()
    axis = "2 or 3" if name == "second axis" else rf"{size}; it must be in \[-{size}, {size}\)"
    assert re.fullmatch(
        rf"cannot index at .*test_errors\.py:\d+: index {index} is out of range for an axis of size {axis}",
        str(caught.value),
    )
    del caught
    assert x[pg.asarray([-1, -3])].tolist() == [30.0, 10.0]
    assert (x + 1.0).tolist() == [11.0, 21.0, 31.0]


def test_the_line_of_a_bad_index(device):
    x = pg.asarray([10.0, 20.0, 30.0])
    y = x[pg.asarray([9])] * 2.0
    line = inspect.currentframe().f_lineno - 1
    with pytest.raises(pg.OutOfBounds, match=f"test_errors.py:{line}: index 9"):
        y.numpy()


def test_a_line_that_runs_again_is_the_same_launch_to_a_driver(device, monkeypatch):
    """A number that changed with each launch would make a driver plan each of them anew."""
    fresh = []
    make = State._new_number
    monkeypatch.setattr(State, "_new_number", lambda self: fresh.append(make(self)) or fresh[-1])
    x, good = pg.asarray([10.0, 20.0, 30.0]), pg.asarray([0, 2])
    for index in (good, good, pg.asarray([5])):
        y, line = x[index].realize(), inspect.currentframe().f_lineno
    assert len(fresh) == 1
    z = x[good].realize()
    assert len(fresh) == 2
    with pytest.raises(pg.OutOfBounds, match=f"test_errors.py:{line}: index 5"):
        pg.synchronize()
    assert (y.shape, z.shape) == ((1,), (2,))


@pytest.mark.parametrize("label", [3, -1, 255])
@pytest.mark.parametrize("function", ["cross_entropy", "nll_loss", "one_hot"])
def test_a_label_outside_the_classes(function, label, device):
    labels = pg.asarray([0, label], dtype="int32")
    value = (
        pg.one_hot(labels, 3)
        if function == "one_hot"
        else getattr(pg, function)(pg.zeros((2, 3), dtype="float32"), labels)
    )
    with pytest.raises(pg.OutOfBounds) as caught:
        value.numpy()
    assert re.fullmatch(
        rf"cannot take a label at .*test_errors\.py:\d+: it is {label}, but there are 3 classes; it must be in "
        r"\[0, 3\)",
        str(caught.value),
    )
    assert pg.cross_entropy(pg.zeros((2, 3), dtype="float32"), pg.asarray([0, 2])).item() == pytest.approx(
        math.log(3.0), rel=1e-6
    )


def test_a_bad_label_is_reported_after_backward_too(device):
    x = pg.zeros((2, 3), dtype="float32").requires_grad_()
    pg.cross_entropy(x, pg.asarray([0, 3])).backward()
    with pytest.raises(pg.OutOfBounds, match="it is 3, but there are 3 classes"):
        x.grad.numpy()


def test_a_gather_never_reads_outside_of_memory(device):
    x = pg.asarray(np.arange(1000.0, dtype=np.float32))
    for index in (1000, -1001, 2**30, -(2**30)):
        y = x[pg.asarray([5, index, 7], dtype="int32")]
        y.realize()
        with pytest.raises(pg.OutOfBounds):
            pg.synchronize()
        value = y.numpy()
        assert (value[0], value[2]) == (5.0, 7.0)
        assert 0 <= value[1] < 1000


CALLS = {
    "a keyword of another library": (
        lambda x: x.sum(dim=0), TypeError,
        "sum(x, /, axis=None, *, dtype=None, keepdims=False): got an unexpected keyword argument 'dim'",
    ),
    "a shape in pieces": (
        lambda x: pg.zeros(2, 3), TypeError, "zeros(shape, *, dtype=None, device=None): too many positional arguments",
    ),
    "an operand too few": (
        lambda x: pg.where(x > 1, x), TypeError, "where(condition, x1, x2, /): missing a required argument: 'x2'",
    ),
    "a number among arrays": (
        lambda x: pg.concat([x, 3]), pg.DTypeError,
        "cannot concatenate 3: it is no array; convert it with pg.asarray(...)",
    ),
    "an axis of the result": (
        lambda x: pg.expand_dims(x, 7), pg.AxisError,
        "cannot expand along axis 7: the result has 2 axes, so it must be in [-2, 2)",
    ),
    "a function of NumPy": (
        lambda x: pg.array([1]), TypeError, "pg.array is a package: pg.asarray(...) makes an array",
    ),
    "a function of PyTorch": (
        lambda x: pg.cat([x, x]), AttributeError, "module 'polygrad' has no attribute 'cat'; here it is pg.concat",
    ),
    "a method of PyTorch": (
        lambda x: x.unsqueeze(0), AttributeError,
        "'Array' object has no attribute 'unsqueeze'; here it is expand_dims(...)",
    ),
    "a name of nobody": (lambda x: x.colour, AttributeError, "'Array' object has no attribute 'colour'"),
    "a step that is none": (
        lambda x: pg.nn.Sequential(pg.nn.ReLU(), 3), TypeError,
        "cannot chain 3: a step is a module or a function of an array",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_calls_that_were_meant_for_another_library_or_do_not_fit(name, device):
    call, kind, sentence = CALLS[name]
    with refuses(kind, sentence):
        call(pg.asarray([1.0, 2.0], dtype=pg.float32))


@pytest.mark.parametrize(("words", "there"), [(OF_ARRAYS, pg.Array), (OF_PACKAGE, pg)], ids=["arrays", "package"])
def test_a_word_of_another_library_stands_for_something_that_is_here(words, there):
    for word, here in words.items():
        assert not hasattr(there, word), f"{word} is here by that name"
        for path in re.findall(r"\bpg\.([\w.]+\w)", here):
            operator.attrgetter(path)(pg)
        if there is pg.Array and re.match(r"(?!pg)[a-z]", here):
            assert hasattr(pg.Array, re.match(r"\w+", here)[0])
