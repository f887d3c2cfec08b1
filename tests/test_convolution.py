"""Convolutions and maxima over windows: the device's own ops against what stands in for them, and against definitions.

Here: random geometries on each device that has the ops: values, gradients, second order, forward mode, `vmap`,
`compile`; what is left to other ops; that the choice is made at all.
Not here: layers (`test_nn_layers.py`), PyTorch (`test_nn_torch.py`), the drivers' ops by themselves (their own tests).
"""

import math

import numpy as np
import pytest

import polygrad as pg
from polygrad.graph import asking
from polygrad.graph.functions import F
from polygrad.ops.table import TABLE

SEEDS = range(12)
OPS = ("convolution", "convolution_input", "convolution_weight", "max_pool", "max_pool_gradient")


@pytest.fixture
def composite(monkeypatch):
    """Return a function that calls another one as on a device without ops of its own."""

    def call(function, *arrays):
        with monkeypatch.context() as patched:
            patched.setattr(asking, "_askers", [lambda *_: False])
            return function(*arrays)

    return call


def has(device, op):
    x = pg.asarray(1.0, device=device)
    return asking.has_op(op, (x._node,))


ABLE = [device for device in pg.list_devices() if has(device, "convolution")]


@pytest.fixture(params=ABLE)
def able(request):
    """A device that convolves by itself, the default device of the test."""
    with pg.device(request.param):
        yield request.param


def ops_of(array):
    """Return the names of the ops that an array will be made by."""
    found, stack = set(), [array._node]
    while stack:
        n = stack.pop()
        if n not in found:
            found.add(n)
            stack += n.parents if n.storage is None else ()
    return {n.op.name for n in found}


def geometry(seed):
    """Return shapes of images and weights, and the keywords of a convolution over them."""
    rng = np.random.default_rng(seed)
    rank = 1 + seed % 3
    groups, inputs, outputs, images = (int(rng.choice(v)) for v in ([1, 1, 2, 3], [1, 2, 3], [1, 2], [1, 2, 3]))
    kernel, stride, padding = (tuple(int(n) for n in rng.integers(a, b, rank)) for a, b in ((1, 4), (1, 4), (0, 3)))
    dilation = tuple(int(n) for n in rng.integers(1, 3, rank))
    least = [max(1, d * (k - 1) + 1 - 2 * p) for k, d, p in zip(kernel, dilation, padding, strict=True)]
    sizes = tuple(n + int(rng.integers(0, 4)) for n in least)
    shapes = (images, groups * inputs, *sizes), (groups * outputs, inputs, *kernel)
    return rank, shapes, {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}


def convolution(seed):
    rank, shapes, more = geometry(seed)
    function = getattr(pg, f"conv{rank}d")
    return shapes, lambda x, w: function(x, w, **more)


def transposed(seed):
    rank, (_, (outputs, inputs, *kernel)), more = geometry(seed)
    rng = np.random.default_rng(seed + 100)
    groups = more["groups"]
    sizes = tuple(int(n) for n in rng.integers(3, 6, rank))
    extra = tuple(int(rng.integers(0, max(s, d))) for s, d in zip(more["stride"], more["dilation"], strict=True))
    more["padding"] = tuple(
        min(p, (k - 1) * d) for p, k, d in zip(more["padding"], kernel, more["dilation"], strict=True)
    )
    function = getattr(pg, f"conv_transpose{rank}d")
    shapes = (2, outputs, *sizes), (outputs, inputs, *kernel)
    return shapes, lambda x, w: function(x, w, output_padding=extra, **(more | {"groups": groups}))


def arrays(shapes, dtype="float64", seed=0):
    rng = np.random.default_rng(seed)
    return [pg.asarray(rng.standard_normal(s)).astype(dtype) for s in shapes]


def gradients(function, *given):
    """Return the value and the gradients for a cotangent that is not symmetric."""
    value, pull = pg.vjp(function, *given)
    cotangent = pg.reshape(pg.linspace(-1.0, 2.0, value.size, dtype=value.dtype), value.shape)
    return [value, *pull(cotangent)]


def second(function, *given):
    """Return the gradients of a scalar of the gradients."""
    inner = pg.grad(lambda *a: pg.sum(pg.sin(function(*a))), argnums=(0, 1))
    return pg.grad(lambda *a: sum(pg.sum(g * g) for g in inner(*a)), argnums=(0, 1))(*given)


def forward(function, *given):
    return pg.jvp(function, given, tuple(pg.cos(a) for a in given))


def close(got, want, units=400):
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        right = b.astype("float64").numpy()
        eps = float(pg.finfo(a.dtype).eps)
        np.testing.assert_allclose(
            a.astype("float64").numpy(), right, rtol=0, atol=units * eps * max(1, abs(right).max())
        )


@pytest.mark.parametrize("made", [convolution, transposed])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_devices_own_op_is_what_stands_in_for_it(able, made, seed, composite):
    shapes, function = made(seed)
    given = arrays(shapes)
    assert ops_of(function(*given)) & {"conv_", "conv_input_"} or made is transposed
    for way in (gradients, second, forward):
        close(way(function, *given), composite(way, function, *given))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("seed", SEEDS)
def test_narrow_dtypes_sum_in_float32(able, dtype, seed):
    shapes, function = convolution(seed)
    given = arrays(shapes, dtype)
    want = gradients(function, *[a.astype("float64") for a in given])
    close(gradients(function, *given), want, units=60 if dtype == "float32" else 4)


@pytest.mark.parametrize("made", [convolution, transposed])
@pytest.mark.parametrize("mapped", [(0, None), (None, 0), (0, 0)])
@pytest.mark.parametrize("seed", SEEDS[:6])
def test_vmap_is_a_loop(able, made, mapped, seed):
    shapes, function = made(seed)
    given = arrays([s if m is None else (3, *s) for s, m in zip(shapes, mapped, strict=True)])

    def both(*a):
        return tuple(gradients(function, *a))

    got = pg.vmap(both, in_axes=mapped)(*given)
    rows = [both(*[a if m is None else a[k] for a, m in zip(given, mapped, strict=True)]) for k in range(3)]
    close(got, [pg.stack(parts) for parts in zip(*rows, strict=True)])


def test_a_compiled_function_calls_the_ops(able):
    shapes, function = convolution(3)
    given = arrays(shapes, "float32")
    step = pg.compile(lambda *a: tuple(gradients(function, *a)))
    for factor in (1.0, 2.0, 3.0):
        scaled = [a * factor for a in given]
        close(step(*scaled), gradients(function, *scaled))
    assert "3 library calls" in str(step.explain())


def test_empty_batches_integers_and_whole_strides_behind_the_end_are_made_of_other_ops(device):
    x, w = pg.zeros((0, 2, 5), dtype=pg.float32), pg.ones((3, 2, 2), dtype=pg.float32)
    assert pg.conv1d(x, w).shape == (0, 3, 4)
    counts = pg.conv1d(pg.ones((1, 2, 5), dtype=pg.int32), w.astype("int32"))
    assert "conv_" not in ops_of(counts)
    assert counts.tolist() == [[[4] * 4] * 3]
    up = pg.conv_transpose1d(pg.ones((1, 1, 2)), pg.ones((1, 1, 2)), dilation=2, output_padding=1)
    assert "conv_input_" not in ops_of(up)
    assert up.tolist() == [[[1.0, 1.0, 1.0, 1.0, 0.0]]]


def test_a_kernel_beyond_the_padded_image_is_refused_when_it_is_asked_for(device):
    x, w = pg.ones((1, 1, 3, 3), dtype=pg.float32), pg.ones((1, 1, 6, 2), dtype=pg.float32)
    with pytest.raises(pg.ShapeError, match=r"cannot lay windows of \[6, 2\] with dilation \[1, 1\] on the last axes"):
        pg.conv2d(x, w, padding=1)
    assert pg.conv2d(x, w, padding=2).shape == (1, 1, 2, 6)


def test_infinities_stay_in_their_windows(device):
    x = pg.asarray([[[1.0, np.inf, 2.0, 3.0, np.nan, 5.0, 6.0]]], dtype=pg.float32)
    y = pg.conv1d(x, pg.asarray([[[1.0, 1.0]]], dtype=pg.float32), padding=1)
    np.testing.assert_array_equal(y.numpy()[0, 0], [1, np.inf, np.inf, 5, np.nan, np.nan, 11, 6])


# ---- maxima over windows ----------------------------------------------------------------------------------------


def pooling(seed):
    rng = np.random.default_rng(seed)
    rank = 1 + seed % 3
    kernel, dilation = (tuple(int(n) for n in rng.integers(1, b, rank)) for b in (4, 3))
    padding = tuple(int(rng.integers(0, k // 2 + 1)) for k in kernel)
    stride = tuple(int(n) for n in rng.integers(1, 4, rank))
    more = {"stride": stride, "dilation": dilation, "padding": padding, "ceil_mode": bool(seed % 2)}
    sizes = tuple(d * (k - 1) + 1 + int(rng.integers(0, 5)) for k, d in zip(kernel, dilation, strict=True))
    function = getattr(pg, f"max_pool{rank}d")
    return (2, 3, *sizes), lambda x: function(x, kernel, **more)


@pytest.mark.parametrize("spoilt", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_maxima_are_what_stands_in_for_them(able, seed, spoilt, composite):
    if not has(able, "max_pool"):
        pytest.skip("not run: needs a device that pools by itself")
    shape, function = pooling(seed)
    rng = np.random.default_rng(seed)
    values = rng.integers(-2, 3, shape).astype("float64")  # many are equal
    if spoilt:
        values[rng.random(shape) < 0.3] = -np.inf
        values[rng.random(shape) < 0.1] = np.nan
    x = pg.asarray(values)
    assert "max_pool_" in ops_of(function(x))
    for way in (gradients, forward):
        for got, want in zip(way(function, x), composite(way, function, x), strict=True):
            np.testing.assert_allclose(got.numpy(), want.numpy(), atol=1e-12)
    twice = pg.grad(lambda v: pg.sum(pg.grad(lambda u: pg.sum(function(u) ** 3))(v) ** 2))
    if not spoilt:
        close([twice(x)], [composite(twice, x)])


@pytest.mark.parametrize("kernel", [2, 3])
def test_windows_side_by_side_go_back_without_additions(device, kernel):
    x = pg.asarray(np.arange(2.0 * 7 * 8).reshape(1, 2, 7, 8))
    back = pg.grad(lambda v: pg.sum(pg.avg_pool2d(v, kernel) * 4.0))(x)
    inside = np.zeros((7, 8))
    inside[: 7 // kernel * kernel, : 8 // kernel * kernel] = 4.0 / kernel**2
    np.testing.assert_allclose(back.numpy(), np.broadcast_to(inside, (1, 2, 7, 8)))


# ---- what stands in, on every device -----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS[:6])
def test_the_declared_fallbacks_are_the_references(device, seed):
    _, (x_shape, w_shape), more = geometry(seed)
    attrs = (more["stride"], more["padding"], more["padding"], more["dilation"], more["groups"])
    rng = np.random.default_rng(seed)
    x, w = rng.standard_normal(x_shape), rng.standard_normal(w_shape)
    y = TABLE["conv_"].reference(np, x, w, *attrs)
    g = rng.standard_normal(y.shape)
    for name, operands, first in (
        ("conv_", (x, w), ()), ("conv_input_", (g, w), (x_shape[2:],)), ("conv_weight_", (x, g), (w_shape[2:],)),
    ):  # fmt: skip
        op = TABLE[name]
        made = op.fallback(F, *[pg.asarray(a)._node for a in operands], *first, *attrs)
        want = op.reference(np, *operands, *first, *attrs)
        np.testing.assert_allclose(pg.Array(made).numpy(), want, atol=1e-12 * math.prod(want.shape))


def test_every_op_of_the_waist_has_its_op_in_the_table():
    assert {op.call for op in TABLE.values() if op.kind == "library"} >= set(OPS)
