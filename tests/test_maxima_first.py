"""Maxima over windows that are taken before a bias is added and before relu.

Here: where that is done and where it is not, values and gradients against definitions, gradients of what lies between,
what the plan of a step reads. Not here: poolings by themselves (`test_convolution.py`).
"""

import numpy as np
import pytest

import polygrad as pg
from polygrad.graph import asking
from polygrad.runtime.outlining import launches
from polygrad.schedule import Library


def has(device, op):
    return asking.has_op(op, (pg.asarray(1.0, device=device)._node,))


ABLE = [device for device in pg.list_devices() if has(device, "convolution") and has(device, "max_pool")]


@pytest.fixture(params=ABLE)
def able(request):
    """A device that convolves and pools by itself, the default device of the test."""
    with pg.device(request.param):
        yield request.param


def operands(seed=0, dtype="float64"):
    rng = np.random.default_rng(seed)
    shapes = [(3, 2, 7, 8), (4, 2, 3, 3), (4,)]
    return pg.realize(*[pg.asarray(rng.standard_normal(s).astype(dtype)) for s in shapes])


def layer(x, w, b, **pooling):
    return pg.max_pool2d(pg.relu(pg.conv2d(x, w, b, padding=1)), 2, **pooling)


def chain(array):
    """Return the names of ops from a result down to the first that a device has by itself."""
    node, names = array._node, []
    while node.spec.op.kind != "library":
        names.append(node.spec.op.name)
        node = node.parents[0]
    return [*names, node.spec.op.name, node.parents[0].spec.op.name]


def test_a_layer_is_pooled_before_its_bias_and_relu(able):
    assert chain(layer(*operands()))[:4] == ["relu", "add", "max_pool_", "conv_"]


@pytest.mark.parametrize("pooling", [{}, {"stride": 1}, {"stride": 2, "padding": 1}, {"padding": 1, "ceil_mode": True}])
def test_values_and_gradients_are_those_of_the_order_that_is_written(able, pooling, monkeypatch):
    arrays = operands(1)
    weights = pg.asarray(np.random.default_rng(2).standard_normal(layer(*arrays, **pooling).shape))

    def all_of():
        def loss(*given):
            return pg.sum(layer(*given, **pooling) * weights)

        def twice(*given):
            return sum(pg.sum(g**3) for g in pg.grad(loss, argnums=(0, 1, 2))(*given))

        pushed = pg.jvp(loss, arrays, [pg.ones_like(a) for a in arrays])
        return [
            layer(*arrays, **pooling), *pushed, *pg.grad(loss, argnums=(0, 1, 2))(*arrays),
            *pg.grad(twice, argnums=(0, 1, 2))(*arrays),
        ]  # fmt: skip

    got = [a.numpy() for a in all_of()]
    monkeypatch.setattr(asking, "_askers", [lambda *_: False])
    for mine, want in zip(got, all_of(), strict=True):
        np.testing.assert_allclose(mine, want.numpy(), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_values_are_the_same_to_the_last_bit(able, dtype):
    x, w, b = operands(3, dtype)
    seen = pg.realize(pg.conv2d(x, w, padding=1))
    between = pg.relu(seen + pg.reshape(b, (-1, 1, 1)) * 100)
    first = pg.max_pool2d(between, 2)
    assert first._node.spec.op.name == "relu"
    np.testing.assert_array_equal(first.numpy(), pg.max_pool2d(pg.realize(between), 2).numpy())


def test_nan_stays_nan(able):
    x = pg.realize(pg.asarray([[[np.nan, 1.0, -2.0, -3.0]]]))
    np.testing.assert_array_equal(pg.max_pool1d(pg.relu(x), 2).numpy(), [[[np.nan, 0]]])


def test_a_window_of_padding_alone_stays_minus_infinite(able):
    x = pg.realize(pg.ones((1, 1, 2)))
    got = pg.max_pool1d(pg.relu(x), 2, padding=1, dilation=3)
    assert got.tolist() == [[[-np.inf]]]


def test_what_differs_within_a_window_is_added_before(able):
    x = pg.realize(pg.asarray([[[1.0, 2.0, 3.0, 4.0]]]))
    steep = pg.asarray([9.0, 0.0, 9.0, 0.0])
    assert pg.max_pool1d(x + steep, 2).tolist() == [[[10.0, 12.0]]]


def test_a_tape_finds_the_gradient_of_what_lies_between(able):
    x, w, b = operands(4)
    with pg.Tape() as tape:
        tape.watch(x)
        between = pg.relu(pg.conv2d(x, w, b, padding=1))
        y = pg.sum(pg.max_pool2d(between, 2))
    assert tape.gradient(y, between).numpy().sum() == pytest.approx(3 * 4 * 3 * 4)


def test_a_checkpoint_finds_the_gradient_of_what_was_made_before_it(able):
    x, w, b = operands(5)

    def loss(through, weights):
        between = pg.relu(pg.conv2d(x, weights, b, padding=1))
        return through(lambda: pg.sum(pg.max_pool2d(between, 2) ** 2))

    want = pg.grad(lambda v: loss(lambda f: f(), v))(w)
    got = pg.grad(lambda v: loss(lambda f: pg.checkpoint(f)(), v))(w)
    np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-12)


def test_a_constant_made_of_what_is_recorded_stays_one(able):
    x, w, b = operands(6)
    w.requires_grad_()
    seen = pg.conv2d(x, w, b, padding=1)
    with pg.no_grad():
        between = pg.relu(seen)
    assert not pg.max_pool2d(between, 2).requires_grad


def test_an_array_that_became_a_leaf_keeps_its_gradient(able):
    x, w, b = operands(7)
    between = pg.relu(pg.conv2d(x, w, b, padding=1)).requires_grad_()
    pg.sum(pg.max_pool2d(between, 2)).backward()
    assert between.grad.numpy().sum() == pytest.approx(3 * 4 * 3 * 4)


def test_a_backward_pass_reads_the_result_of_relu_and_not_what_it_was_made_of(able):
    x, w, b = pg.realize(pg.ones((3, 2, 16, 16)), pg.ones((4, 2, 3, 3)), pg.ones(4))
    w2 = pg.realize(pg.ones((5, 4, 3, 3)))
    for p in (w, b, w2):
        p.requires_grad_()
    loss = pg.sum(pg.conv2d(layer(x, w, b), w2, padding=1) ** 2)
    loss.backward()
    found = [launch.step for launch in launches([loss._node, w.grad._node, b.grad._node, w2.grad._node])]
    kernels = [s.kernel for s in found if not isinstance(s, Library)]
    made = [k for k in kernels if {"add", "less_equal"} <= {i.op for i in k.body}]
    assert len(made) == 1, made  # forward
