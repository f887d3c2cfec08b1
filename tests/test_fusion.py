"""What becomes one kernel: launch counts of the functions that models are made of, written from primitives.

Here: forward, backward, warm steps without builds and allocations. Not here: that fusion changes no value
(`test_fused_programs.py`), speed.
"""

import math

import numpy as np
import pytest

import polygrad as pg

SHAPES = [(64, 100), (48, 32_000), (4, 16, 768)]


def softmax(x):
    e = pg.exp(x - pg.max(x, axis=-1, keepdims=True))
    return e / pg.sum(e, axis=-1, keepdims=True)


def log_softmax(x):
    z = x - pg.max(x, axis=-1, keepdims=True)
    return z - pg.log(pg.sum(pg.exp(z), axis=-1, keepdims=True))


def layer_norm(x, scale, shift):
    centred = x - pg.mean(x, axis=-1, keepdims=True)
    variance = pg.mean(centred * centred, axis=-1, keepdims=True)
    return centred / pg.sqrt(variance + 1e-5) * scale + shift


def rms_norm(x, scale):
    return x / pg.sqrt(pg.mean(x * x, axis=-1, keepdims=True) + 1e-6) * scale


def gelu(x):
    return 0.5 * x * (1.0 + pg.erf(x * (1 / math.sqrt(2))))


def gelu_tanh(x):
    return 0.5 * x * (1.0 + pg.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def swiglu(gate, x):
    return gate / (1.0 + pg.exp(-gate)) * x


def cross_entropy_along_axis(x, labels):
    picked = pg.take_along_axis(x, pg.expand_dims(labels, axis=-1), axis=-1)
    top = pg.max(x, axis=-1, keepdims=True)
    return pg.squeeze(top + pg.log(pg.sum(pg.exp(x - top), axis=-1, keepdims=True)) - picked, axis=-1)


def cross_entropy_by_index(x, labels):
    picked = x[pg.arange(x.shape[0]), labels]
    top = pg.max(x, axis=-1, keepdims=True)
    return pg.log(pg.sum(pg.exp(x - top), axis=-1)) + pg.squeeze(top, axis=-1) - picked


FUNCTIONS = {
    "softmax": (softmax, 0),
    "log_softmax": (log_softmax, 0),
    "layer_norm": (layer_norm, 2),
    "rms_norm": (rms_norm, 1),
    "gelu": (gelu, 0),
    "gelu_tanh": (gelu_tanh, 0),
}
LOSSES = {"along_axis": cross_entropy_along_axis, "by_index": cross_entropy_by_index}
REFERENCES = {
    "softmax": lambda x: (
        np.exp(x - x.max(-1, keepdims=True)) / np.exp(x - x.max(-1, keepdims=True)).sum(-1, keepdims=True)
    ),
    "log_softmax": lambda x: (
        x - x.max(-1, keepdims=True) - np.log(np.exp(x - x.max(-1, keepdims=True)).sum(-1, keepdims=True))
    ),
    "layer_norm": lambda x, g, b: (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * g + b,
    "rms_norm": lambda x, g: x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * g,
    "gelu": lambda x: 0.5 * x * (1 + np.vectorize(math.erf, otypes=[float])(x / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
}


def operands(rng, shape, vectors):
    """Return float32 arrays in memory that need gradients: one of *shape*, and *vectors* of its last axis."""
    made = [pg.asarray(rng.standard_normal(s).astype(np.float32)) for s in [shape, *[shape[-1:]] * vectors]]
    pg.realize(made)
    return [x.requires_grad_() for x in made]


def labels_for(rng, rows, classes):
    return pg.asarray(rng.integers(0, classes, rows)).realize()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_forward_is_one_launch_and_backward_at_most_two(name, shape, device, rng):
    function, vectors = FUNCTIONS[name]
    xs = operands(rng, shape, vectors)
    seed = pg.asarray(rng.standard_normal(shape).astype(np.float32)).realize()
    with pg.launch_counter() as forward:
        y = function(*xs).realize()
    assert (forward.total, forward.fused) == (1, 1)
    y.backward(seed)
    with pg.launch_counter() as backward:
        pg.realize([x.grad for x in xs])
    assert backward.total <= 2
    want = REFERENCES[name](*[x.detach().numpy().astype(float) for x in xs])
    np.testing.assert_allclose(y.detach().numpy(), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_loss_that_is_read_first_changes_nothing(name, shape, device, rng):
    function, vectors = FUNCTIONS[name]
    xs = operands(rng, shape, vectors)
    weight = pg.asarray(rng.standard_normal(shape).astype(np.float32)).realize()
    loss = pg.sum(function(*xs) * weight)
    with pg.launch_counter() as forward:
        loss.item()
    assert forward.total <= 2
    loss.backward()
    with pg.launch_counter() as backward:
        pg.realize([x.grad for x in xs])
    assert backward.total <= 2


@pytest.mark.parametrize("shape", SHAPES[:2], ids=str)
def test_swiglu_is_one_launch_each_way(shape, device, rng):
    gate, x = (operands(rng, shape, 0)[0] for _ in range(2))
    with pg.launch_counter() as forward:
        y = swiglu(gate, x).realize()
    assert forward.total == 1
    y.backward(pg.ones(shape, dtype=pg.float32))
    with pg.launch_counter() as backward:
        pg.realize(gate.grad, x.grad)
    assert backward.total == 1  # both gradients read the same operands


def test_parts_of_an_activation_are_made_again_rather_than_kept(device, rng):
    # Numbers spread over a shape, as in where(x < 0, e, ones), count for nothing that is read.
    a, b, c = (pg.nn.Parameter(rng.normal(size=s).astype("float32")) for s in ((16, 64), (16, 64), (64, 16)))
    x = pg.asarray(rng.normal(size=(32, 16)).astype("float32"))
    with pg.profile() as seen:
        (((pg.nn.silu(x @ a) * (x @ b)) @ c) ** 2).sum().backward()
        pg.realize(a.grad, b.grad, c.grad)
    text = str(seen)
    assert "[2 loads, 1 store]" in text
    assert "[3 loads, 2 stores]" in text
    assert "[5 loads" not in text


@pytest.mark.parametrize("rows", [64, 300])
@pytest.mark.parametrize("classes", [10, 1000, 32_000])
@pytest.mark.parametrize("spelling", LOSSES)
def test_cross_entropy_is_one_launch_forward(spelling, classes, rows, device, rng):
    if classes == 32_000 and rows > 64:
        rows = 128
    (x,) = operands(rng, (rows, classes), 0)
    labels = labels_for(rng, rows, classes)
    with pg.launch_counter() as forward:
        loss = LOSSES[spelling](x, labels).realize()
    assert (forward.total, forward.fused) == (1, 1)
    loss.backward(pg.full((rows,), 1 / rows, dtype=pg.float32))
    with pg.launch_counter() as backward:
        x.grad.realize()
    assert backward.total <= 2
    value, t = x.detach().numpy().astype(float), labels.numpy()
    p = np.exp(value - value.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    np.testing.assert_allclose(loss.detach().numpy(), -np.log(p[np.arange(rows), t]), rtol=1e-4, atol=1e-5)
    p[np.arange(rows), t] -= 1
    np.testing.assert_allclose(x.grad.numpy(), p / rows, rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize("read", [False, True])
@pytest.mark.parametrize("spelling", LOSSES)
def test_the_mean_of_cross_entropy_adds_one_launch(spelling, read, device, rng):
    (x,) = operands(rng, (256, 1000), 0)
    labels = labels_for(rng, 256, 1000)
    loss = pg.mean(LOSSES[spelling](x, labels))
    with pg.launch_counter() as forward:
        if read:
            loss.item()
        else:
            loss.realize()
    assert forward.total <= 2
    loss.backward()
    with pg.launch_counter() as backward:
        x.grad.realize()
    assert backward.total <= 2


def test_the_ready_made_cross_entropy_fuses_too(device, rng):
    (x,) = operands(rng, (256, 1000), 0)
    labels = labels_for(rng, 256, 1000)
    with pg.launch_counter() as forward:
        loss = pg.cross_entropy(x, labels).realize()
    assert forward.total <= 2
    loss.backward()
    with pg.launch_counter() as backward:
        x.grad.realize()
    assert backward.total <= 2


def adamw(w, m, v, g, step, lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8, decay=0.01):
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g * g
    rate = lr / (1 - beta1**step)
    scale = 1 / math.sqrt(1 - beta2**step)
    return w * (1 - lr * decay) - rate * m / (pg.sqrt(v) * scale + eps), m, v


@pytest.mark.parametrize("shape", [(100,), (128, 65), (1000, 1000)], ids=str)
def test_adamw_is_one_launch(shape, device, rng):
    w, g = (pg.asarray(rng.standard_normal(shape).astype(np.float32)).realize() for _ in range(2))
    m, v = (pg.zeros(shape, dtype=pg.float32).realize() for _ in range(2))
    with pg.launch_counter() as c:
        out = pg.realize(list(adamw(w, m, v, g, 1)))
    assert (c.total, c.fused) == (1, 1)
    gradient = g.numpy().astype(float)
    want = w.numpy() * (1 - 1e-5) - 1e-3 * gradient / (np.abs(gradient) + 1e-8)
    np.testing.assert_allclose(out[0].numpy(), want, rtol=1e-5, atol=1e-6)


def test_a_masked_softmax_is_one_launch(device, rng):
    (x,) = operands(rng, (2, 4, 64, 64), 0)
    rows, columns = pg.expand_dims(pg.arange(64), axis=1), pg.arange(64)
    with pg.launch_counter() as forward:
        y = softmax(pg.where(rows >= columns, x * 0.125, -math.inf)).realize()
    assert forward.total == 1
    y.backward(pg.ones(x.shape, dtype=pg.float32))
    with pg.launch_counter() as backward:
        x.grad.realize()
    assert backward.total == 1
    scores = np.where(np.tri(64, dtype=bool), x.detach().numpy().astype(float) / 8, -np.inf)
    np.testing.assert_allclose(y.detach().numpy(), REFERENCES["softmax"](scores), rtol=1e-4, atol=1e-6)


def test_a_chain_of_elementwise_ops_is_one_launch_each_way(device, rng):
    (x,) = operands(rng, (1000, 100), 0)
    with pg.launch_counter() as forward:
        y = x
        for _ in range(4):
            y = pg.tanh(y * 1.1 + 0.1) * pg.sqrt(y * y + 1.0)
        y.realize()
    assert forward.total == 1
    y.backward(pg.ones(x.shape, dtype=pg.float32))
    with pg.launch_counter() as backward:
        x.grad.realize()
    assert backward.total == 1


def training_step(params, m, v, x, labels, step):
    w1, b1, w2, b2 = [p.requires_grad_() for p in params]
    hidden = gelu(x @ w1 + b1)
    loss = pg.mean(cross_entropy_along_axis(hidden @ w2 + b2, labels))
    loss.backward()
    new = [adamw(p.detach(), mm, vv, p.grad, step) for p, mm, vv in zip(params, m, v, strict=True)]
    pg.realize(loss, new)
    return [[part[k] for part in new] for k in range(3)], loss.item()


def test_a_warm_training_step_builds_and_allocates_nothing(device, rng):
    shapes = [(20, 50), (50,), (50, 10), (10,)]
    params = [pg.asarray(rng.standard_normal(s).astype(np.float32) * 0.3) for s in shapes]
    m, v = ([pg.zeros(s, dtype=pg.float32) for s in shapes] for _ in range(2))
    pg.realize(params, m, v)
    x = pg.asarray(rng.standard_normal((64, 20)).astype(np.float32)).realize()
    labels = labels_for(rng, 64, 10)
    losses = []
    for step in range(1, 4):
        (params, m, v), loss = training_step(params, m, v, x, labels, step)
        losses.append(loss)
    with pg.launch_counter() as c:
        for step in range(4, 9):
            (params, m, v), loss = training_step(params, m, v, x, labels, step)
            losses.append(loss)
    assert (c.builds, c.allocations) == (0, 0)
    assert losses == sorted(losses, reverse=True)


@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_scalar_values_are_no_part_of_a_kernel(dtype, device):
    x = pg.asarray(np.arange(1000), dtype=dtype).realize()
    (x * 3 + 7).realize()
    with pg.launch_counter() as c:
        for k in range(20):
            y = (x * (k + 5) + (k - 3)).numpy()
            np.testing.assert_array_equal(y, np.arange(1000) * (k + 5) + (k - 3))
    assert c.builds == 0
    assert c.total == 20


def test_python_scalars_keep_their_digits(device, float_dtype):
    if float_dtype is not pg.float64:
        pytest.skip(f"not run: needs float64 on {device}")
    x = pg.asarray([1.0, 2.0])
    assert (x * 0.1).tolist() == [0.1, 0.2]
    assert (x + 1e-16).tolist() == [1.0 + 1e-16, 2.0 + 1e-16]
    assert (x * math.pi).tolist() == [math.pi, 2 * math.pi]


def test_other_extents_use_the_same_kernel(device, rng):
    softmax(pg.asarray(rng.standard_normal((33, 1000)).astype(np.float32))).realize()
    gelu(pg.asarray(rng.standard_normal((33, 1000)).astype(np.float32))).realize()
    with pg.launch_counter() as c:
        for shape in ((34, 1000), (100, 1000)):
            softmax(pg.asarray(rng.standard_normal(shape).astype(np.float32))).realize()
            gelu(pg.asarray(rng.standard_normal(shape).astype(np.float32))).realize()
    assert c.builds == 0


def test_a_slice_that_moves_uses_the_same_kernel(device, rng):
    value = rng.standard_normal((40, 50)).astype(np.float32)
    x = pg.asarray(value).realize()
    pg.exp(x[2:12, 3:13]).realize()
    with pg.launch_counter() as c:
        for k in range(4, 20):
            np.testing.assert_allclose(
                pg.exp(x[k : k + 10, k : k + 10]).numpy(), np.exp(value[k : k + 10, k : k + 10]), rtol=1e-6
            )
    assert c.builds == 0


def test_dropping_everything_gives_the_memory_back(device, rng):
    pg.synchronize()
    before = pg.memory_stats()["used"]
    (x,) = operands(rng, (300, 400), 0)
    loss = pg.sum(softmax(x) ** 2)
    loss.backward()
    pg.realize(x.grad, loss)
    del x, loss
    assert pg.memory_stats()["used"] == before


@pytest.mark.parametrize("n", [100, 100_000, 2_000_000])
def test_a_full_sum_takes_at_most_two_launches(n, device, rng):
    x = pg.asarray(rng.standard_normal(n).astype(np.float32)).realize()
    with pg.launch_counter() as c:
        total = pg.sum(x * x).item()
    assert c.total <= 2
    assert total == pytest.approx(float(np.sum(x.numpy().astype(float) ** 2)), rel=1e-5)


@pytest.mark.parametrize("shape", [(10_000, 64), (100, 3, 5, 7)], ids=str)
def test_a_sum_over_rows_takes_at_most_two_launches(shape, device, rng):
    value = rng.standard_normal(shape).astype(np.float32)
    x = pg.asarray(value).realize()
    over = tuple(range(len(shape) - 1))
    with pg.launch_counter() as c:
        total = pg.sum(pg.tanh(x), axis=over).numpy()
    assert c.total <= 2
    np.testing.assert_allclose(total, np.tanh(value.astype(float)).sum(over), rtol=1e-4, atol=1e-3)
