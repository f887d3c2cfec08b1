"""The derivatives of every differentiable op: differences, reverse mode and forward mode against each other.

Here: tests derived from the table, in float64 on the first device that has it, and a few in float32 on each device.
Not here: special points (`test_autograd.py`, `test_ops_special_points.py`), tapes.
"""

import zlib

import numpy as np
import pytest

import polygrad as pg
from polygrad.array.tree import flatten
from polygrad.ops.table import TABLE
from polygrad.testing.draw import Draw

CALLS = {"getitem": lambda x, key: x[key], "astype": None}
OPS = [
    op
    for op in TABLE.values()
    if op.samples is not None
    and op.differentiable
    and "float" in op.dtypes.split()
    and (CALLS.get(op.name) or callable(getattr(pg, op.name, None)))
]
# Their samples lie where differences see a step or a kink: floor and its like are checked by hand below.
STEPS = {"nextafter", "floor_divide"}


def with_arrays(value, dtype, device):
    if isinstance(value, np.ndarray):
        floats = value.dtype.kind == "f"
        return pg.asarray(value, dtype=dtype if floats else None, device=device)
    if isinstance(value, (list, tuple)):
        return type(value)(with_arrays(v, dtype, device) for v in value)
    return value


def calls(op, dtype=pg.float64, device=None):
    """Return (function, inputs) for each sample of an op that holds floats, the function taking the arrays alone."""
    draw = Draw(np.random.default_rng(zlib.crc32(op.name.encode())), pg.float64)
    call = CALLS.get(op.name) or getattr(pg, op.name)
    for args, keywords in op.samples(draw):
        if op.name == "where":
            args = (np.asarray(args[0] > 0), *args[1:])
        if keywords.get("dtype") is not None:
            continue  # the result is not of the operand's dtype
        arrays, rebuild = flatten(with_arrays(list(args), dtype, device))
        if any(a.dtype == dtype and a.size for a in arrays):
            yield lambda *xs, r=rebuild, k=keywords: call(*r(list(xs)), **k), arrays


def first(op, count):
    """Return the first *count* samples; second derivatives of one sample tell what those of six do."""
    return list(calls(op))[:count]


@pytest.mark.parametrize("op", [op for op in OPS if op.name not in STEPS], ids=lambda op: op.name)
def test_first_derivatives(op):
    with pg.device("cpu:0"):
        for k, (function, inputs) in enumerate(calls(op)):
            pg.testing.gradcheck(function, *inputs, seed=k)


@pytest.mark.parametrize("op", [op for op in OPS if op.name not in STEPS and op.second], ids=lambda op: op.name)
def test_second_derivatives(op):
    with pg.device("cpu:0"):
        for k, (function, inputs) in enumerate(first(op, 3)):
            pg.testing.gradgradcheck(function, *inputs, seed=k, tol=1e-5)


SPOTS = [
    "multiply",
    "divide",
    "pow",
    "tanh",
    "erf",
    "maximum",
    "where",
    "sum",
    "prod",
    "max",
    "var",
    "logsumexp",
    "matmul",
    "tensordot",
    "getitem",
    "take_along_axis",
    "concat",
    "stack",
    "roll",
    "pad",
    "tril",
    "softmax",
    "layer_norm",
    "cross_entropy",
    "conv2d",
    "max_pool2d",
]


@pytest.mark.parametrize("name", SPOTS)
def test_gradients_of_float32_are_those_of_float64(name, device, fewer):
    op = TABLE[name]
    samples = zip(calls(op, pg.float64, "cpu:0"), calls(op, pg.float32, device), strict=True)
    for (exact, wide), (function, inputs) in fewer(list(samples)[:4]):
        grads = [pull(f, xs) for f, xs in ((exact, wide), (function, inputs))]
        for want, got in zip(*grads, strict=True):
            assert got.device == device
            assert got.dtype is pg.float32
            np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=2e-3, atol=2e-4)


def pull(function, inputs):
    """Return the gradients of the sum of sin of a function for its float inputs."""
    moving = [x for x in inputs if x.dtype.kind == "f"]

    def total(*xs):
        given = iter(xs)
        out = function(*[next(given) if x.dtype.kind == "f" else x for x in inputs])
        return sum(pg.sum(pg.sin(o * 0.5)) for o in flatten(out)[0])

    return pg.grad(total, argnums=tuple(range(len(moving))))(*moving)


@pytest.mark.parametrize("name", ["floor", "ceil", "trunc", "round", "sign", "floor_divide"])
def test_steps_have_zero_slope(name, device):
    x = pg.asarray([-1.5, -0.3, 0.4, 1.7])
    function = getattr(pg, name)
    inputs = (x, pg.asarray(0.7)) if name == "floor_divide" else (x,)
    assert pg.grad(lambda *v: pg.sum(function(*v) * 3.0 + 0.0 * v[0]))(*inputs).tolist() == [0.0] * 4


def test_a_cast_hands_gradients_through(device):
    x = pg.asarray([1.5, 2.5], dtype="float32")
    g = pg.grad(lambda v: pg.sum(v.astype("float16").astype("float32") * pg.asarray([2.0, 3.0], dtype="float32")))(x)
    assert g.dtype is pg.float32
    assert g.tolist() == [2.0, 3.0]


def wrong_rule():
    @pg.custom_vjp
    def double(x):
        return x * 2.0

    double.defvjp(lambda x: (x * 2.0, None), lambda _, g: (g * 2.001,))
    return double


def test_gradcheck_sees_a_wrong_rule():
    with pg.device("cpu:0"), pytest.raises(AssertionError, match="reverse mode gives"):
        pg.testing.gradcheck(wrong_rule(), pg.asarray([1.0, 2.0]), forward=False)


def test_gradgradcheck_sees_a_wrong_second_rule():
    @pg.custom_vjp
    def cube(x):
        return x**3

    cube.defvjp(lambda x: (x**3, x), lambda x, g: (g * pg.stop_gradient(3.0 * x * x),))
    with pg.device("cpu:0"):
        pg.testing.gradcheck(cube, pg.asarray([1.0, 2.0]), forward=False)
        with pytest.raises(AssertionError, match="reverse mode gives"):
            pg.testing.gradgradcheck(cube, pg.asarray([1.0, 2.0]), forward=False)


def test_gradcheck_wants_float64():
    with pg.device("cpu:0"):
        with pytest.raises(
            pg.DTypeError, match="^gradcheck needs float64, got float32: convert with .astype\\('float64'\\)$"
        ):
            pg.testing.gradcheck(pg.exp, pg.asarray([1.0], dtype="float32"))
        with pytest.raises(
            pg.GradError, match="^gradcheck needs a float64 or complex128 array to differentiate by: none"
        ):
            pg.testing.gradcheck(pg.square, pg.asarray([1]))
        with pytest.raises(
            pg.GradError, match="^gradcheck needs a float array among the outputs of the function: there is none$"
        ):
            pg.testing.gradcheck(lambda x: x > 0, pg.asarray([1.0]))


def test_assert_close_names_what_differs(device):
    x = pg.asarray([1.0, 2.0], dtype="float32")
    pg.testing.assert_close({"a": [x, 1]}, {"a": [x + 1e-6, 1]})
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        pg.testing.assert_close(x, x + 1e-3)
    with pytest.raises(AssertionError, match="dtypes differ: float32 and int32"):
        pg.testing.assert_close(x, pg.asarray([1, 2], dtype="int32"))
    with pytest.raises(AssertionError, match="shapes differ: \\[2\\] and \\[1, 2\\]"):
        pg.testing.assert_close(x, x[None])
    with pytest.raises(AssertionError, match="has keys \\['a'\\], not \\['b'\\]"):
        pg.testing.assert_close({"a": x}, {"b": x})
