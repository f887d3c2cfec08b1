"""What the kernels of a training step read and write: no value twice, and none that nobody reads.

Here: bytes moved by fused kernels, in units of the arrays that a step has, beside the values that come out.
Not here: launch counts of single functions (`test_fusion.py`), how much is held at once (`test_step_memory.py`).
"""

import importlib

import numpy as np
import pytest

import polygrad as pg
from polygrad.runtime.devices import state

fuse = importlib.import_module("polygrad.schedule.fuse")
plan = importlib.import_module("polygrad.schedule.plan")
ROWS, COLUMNS = 512, 64
UNIT = ROWS * COLUMNS * 4  # bytes of one array [ROWS, COLUMNS] of float32


@pytest.fixture
def planning(device, monkeypatch):
    """As large steps are planned, from small arrays on."""
    monkeypatch.setattr(fuse, "LONG_COLUMNS", 1)
    state(device).plans.clear()
    yield
    state(device).plans.clear()


def units(seen):
    """Return how much the fused kernels of a profile moved, in arrays of UNIT bytes."""
    return sum(e.nbytes for e in seen.events if e.kind == "fused") / UNIT


def normal(rng, *shape):
    return pg.asarray(rng.standard_normal(shape).astype("float32")).realize()


def rms_norm(x, scale):
    return x / pg.sqrt(pg.mean(x * x, axis=-1, keepdims=True) + 1e-5) * scale


def updated(p, momentum, slope):
    momentum = momentum * 0.9 + slope
    return p - momentum * 0.1, momentum


def test_an_update_does_not_read_again_what_its_gradient_is_made_of(device, planning, rng):
    x, g = normal(rng, 8 * ROWS, COLUMNS).requires_grad_(), normal(rng, 8 * ROWS, COLUMNS)
    scale, momentum = normal(rng, COLUMNS).requires_grad_(), normal(rng, COLUMNS)
    (rms_norm(x, scale) * g).sum().backward()
    slopes = x.grad, scale.grad
    with pg.profile() as seen:
        new = updated(scale.detach(), momentum, slopes[1])
        pg.realize(slopes[0], new)
    # x and g are read, the gradient of x is written; the sums over rows ride along, in parts, which are read once more.
    assert units(seen) / 8 < 3 + 0.5
    value, weight = x.detach().numpy().astype(float), g.numpy().astype(float)
    size = np.sqrt((value**2).mean(-1, keepdims=True) + 1e-5)
    slope = (weight * value / size).sum(0)
    wanted = updated(scale.detach().numpy(), momentum.numpy(), slope)
    for have, want in zip(new, wanted, strict=True):
        np.testing.assert_allclose(have.numpy(), want, rtol=1e-3, atol=1e-3)
    turned = weight * scale.detach().numpy()
    want = turned / size - value * (turned * value).mean(-1, keepdims=True) / size**3
    np.testing.assert_allclose(slopes[0].numpy(), want, rtol=1e-3, atol=1e-4)


def test_a_sum_that_finds_no_other_kernel_stays_in_its_update(device, planning, rng):
    x, p, momentum = normal(rng, ROWS, COLUMNS), normal(rng, COLUMNS), normal(rng, COLUMNS)
    with pg.launch_counter() as c:
        new = updated(p, momentum, pg.sum(pg.tanh(x), axis=0))
        pg.realize(new)
    assert c.total == 1
    want = updated(p.numpy(), momentum.numpy(), np.tanh(x.numpy().astype(float)).sum(0))
    np.testing.assert_allclose(new[0].numpy(), want[0], rtol=1e-3, atol=1e-3)


def test_what_two_products_take_in_another_dtype_is_in_memory_once(device, rng):
    x, scale = normal(rng, ROWS, COLUMNS), normal(rng, COLUMNS)
    weights = [normal(rng, COLUMNS, 8).astype("float64").realize() for _ in range(2)]

    def products():
        y = rms_norm(x, scale)
        return [pg.matmul(y.astype("float64"), w) for w in weights]

    with pg.profile() as seen:
        both = products()
        pg.realize(both)
    assert units(seen) == pytest.approx(1 + 2, abs=0.1)  # x is read, and y written, in eight bytes
    value = x.numpy().astype(float)
    y = value / np.sqrt((value**2).mean(-1, keepdims=True) + 1e-5) * scale.numpy()
    for have, w in zip(both, weights, strict=True):
        np.testing.assert_allclose(have.numpy(), y @ w.numpy(), rtol=1e-4, atol=1e-4)


def test_equal_values_that_are_both_asked_for_are_both_there(device, rng):
    x = normal(rng, ROWS, COLUMNS)
    y = pg.exp(x)
    first, second = y.astype("float64"), y.astype("float64")
    pg.realize(first, second)
    np.testing.assert_array_equal(first.numpy(), second.numpy())
    np.testing.assert_allclose(first.numpy(), np.exp(x.numpy().astype(float)), rtol=1e-6)


def test_a_loss_and_its_gradient_read_the_scores_once(device, rng):
    x, w = normal(rng, ROWS, 8), normal(rng, 8, COLUMNS).requires_grad_()
    labels = pg.asarray(rng.integers(0, COLUMNS, ROWS)).realize()
    loss = pg.cross_entropy(x @ w, labels)
    loss.backward()
    with pg.profile() as seen:
        pg.realize(loss, w.grad)
    assert units(seen) == pytest.approx(2, abs=0.2)
    scores, rows = x.numpy().astype(float) @ w.detach().numpy(), np.arange(ROWS)
    p = np.exp(scores - scores.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    assert loss.item() == pytest.approx(-np.log(p[rows, labels.numpy()]).mean(), rel=1e-5)
    p[rows, labels.numpy()] -= 1
    np.testing.assert_allclose(w.grad.numpy(), x.numpy().T @ p / ROWS, rtol=1e-3, atol=1e-5)


def test_products_share_a_transposed_operand_that_is_yet_to_be_computed(device, rng):
    # Heads come first in memory, rows in the products: one arrangement is made, and the other product runs through it.
    x = normal(rng, 4, ROWS // 4, COLUMNS)
    a, b = normal(rng, 4 * COLUMNS, 8), normal(rng, ROWS // 4, 8)

    def products(x, exp, permute, a, b):
        y = permute(exp(x), (1, 0, 2)).reshape((ROWS // 4, 4 * COLUMNS))
        return y @ a, y.T @ b

    with pg.profile() as seen:
        found = products(x, pg.exp, pg.permute_dims, a, b)
        pg.realize(found)
    assert units(seen) == pytest.approx(2, abs=0.1)
    wanted = products(x.numpy().astype(float), np.exp, np.transpose, a.numpy(), b.numpy())
    for have, want in zip(found, wanted, strict=True):
        np.testing.assert_allclose(have.numpy(), want, rtol=1e-3, atol=1e-3)


def test_gradients_that_go_back_through_one_product_are_written_side_by_side(device, rng):
    if not {"attention", "attention_backward"} <= state(device).info.ops or not state(device).info.features.placed:
        return  # where attention is made of other ops there are no such results
    layer = pg.nn.SelfAttention(COLUMNS, 4)
    pg.realize(*layer.parameters())
    x, g = normal(rng, 2, ROWS // 2, COLUMNS), normal(rng, 2, ROWS // 2, COLUMNS)

    def gradients():
        for p in layer.parameters():
            p.grad = None
        (layer(x) * g).sum().backward()
        return [p.grad for p in layer.parameters()]

    def realized():
        state(device).plans.clear()
        found = gradients()
        with pg.profile() as seen:
            pg.realize(found)
        return [x.numpy() for x in found], units(seen)

    placed, fewer = realized()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "placed", lambda steps, kept: steps)
        apart, more = realized()
    assert more - fewer == pytest.approx(6)  # three arrays are read, and three written
    for have, want in zip(placed, apart, strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-5, atol=1e-5)
