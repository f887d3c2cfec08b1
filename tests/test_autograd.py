"""Backward and `.grad`: whose gradient goes where, grad modes, long chains.

Here: recording as users meet it without tapes. Not here: the derivative of each op (`test_gradients.py`), launch
counts.
"""

import gc
import math
import re
import threading
import tracemalloc

import numpy as np
import pytest

import polygrad as pg

NAN, INF = math.nan, math.inf


def leaf(value, dtype=None):
    return pg.asarray(value, dtype=dtype).requires_grad_()


def refuses(error, sentence):
    return pytest.raises(error, match=f"^{re.escape(sentence)}$")


def test_backward_fills_grad_of_leaves_alone(device):
    x, y, c = leaf([1.0, 2.0]), leaf([3.0, 4.0]), pg.asarray([5.0, 6.0])
    middle = x * y
    pg.sum(middle * c).backward()
    assert x.grad.tolist() == [15.0, 24.0]
    assert y.grad.tolist() == [5.0, 12.0]
    assert middle.grad is None
    assert c.grad is None
    assert x.grad.device == device
    assert not x.grad.requires_grad


def test_gradients_add_up_over_backward_passes_and_uses(device):
    x = leaf(3.0)
    (x * x).backward()
    (x * x * x).backward()
    assert x.grad.item() == 6.0 + 27.0
    x.grad = None
    y = x * 2.0
    (y * y + y + x).backward()
    assert x.grad.item() == 8 * 3.0 + 2.0 + 1.0


def test_an_array_used_many_times_gets_all_its_gradients(device):
    x = leaf([1.0, -2.0, 3.0])
    pg.sum(pg.stack([x, x, x[::-1]]) * pg.concat([x, x])[:3] + x[0] * x[2]).backward()
    value = np.asarray([1.0, -2.0, 3.0])
    want = 4 * value + 2 * value[::-1]
    want[0] += 9 * value[2]
    want[2] += 9 * value[0]
    np.testing.assert_allclose(x.grad.numpy(), want, rtol=1e-5)


def test_a_seed_weighs_the_outputs(device):
    x = leaf([1.0, 2.0])
    (x * x).backward(pg.asarray([1.0, 10.0]))
    assert x.grad.tolist() == [2.0, 40.0]
    with refuses(pg.ShapeError, "cannot seed an array of shape [2] with a gradient of shape [3]"):
        (x * x).backward(pg.ones(3))


def test_a_second_backward_is_refused_unless_the_graph_is_retained(device):
    x = leaf([1.0, 2.0])
    z = pg.sum(x * x)
    z.backward()
    with refuses(
        pg.GradError,
        "cannot go backward through reshape a second time: the first backward has freed its graph; call that "
        "one with retain_graph=True",
    ):
        z.backward()
    assert x.grad.tolist() == [2.0, 4.0]
    x.grad = None
    z = pg.sum(x * x)
    z.backward(retain_graph=True)
    z.backward()
    assert x.grad.tolist() == [4.0, 8.0]


@pytest.mark.parametrize("read", [False, True])
def test_losses_that_share_a_trunk(read, device):
    x = leaf([1.0, 2.0])
    trunk = pg.exp(x)
    a, b = pg.sum(trunk * 2.0), pg.sum(trunk * trunk)
    if read:
        pg.realize(a, b)
    a.backward(retain_graph=True)
    b.backward()
    e = np.exp([1.0, 2.0])
    np.testing.assert_allclose(x.grad.numpy(), 2 * e + 2 * e * e, rtol=1e-6)


def test_a_freed_trunk_is_refused_by_the_second_loss(device):
    x = leaf(1.0)
    trunk = pg.exp(x)
    a, b = trunk * 2.0, trunk * 3.0
    a.backward()
    with pytest.raises(pg.GradError, match="retain_graph=True"):
        b.backward()


@pytest.mark.parametrize("read", [False, True])
def test_values_read_before_backward_change_nothing(read, device):
    x = leaf([[1.0, 2.0, 3.0]])
    h = pg.tanh(x) @ pg.ones((3, 2))
    loss = pg.sum(h * h)
    if read:
        loss.item()
        h.realize()
    loss.backward()
    t = np.tanh([[1.0, 2.0, 3.0]])
    np.testing.assert_allclose(x.grad.numpy(), 4 * t.sum() * (1 - t * t), rtol=1e-5)


def test_detach_stops_gradients(device):
    x = leaf(3.0)
    (x * x.detach()).backward()
    assert x.grad.item() == 3.0
    assert not (x * 2.0).detach().requires_grad
    with refuses(
        pg.GradError,
        "cannot go backward: no array that this one was computed from has requires_grad=True, or it was "
        "computed in no_grad()",
    ):
        x.detach().backward()


def test_requires_grad_can_be_set_and_cleared(device):
    x = pg.asarray([1.0, 2.0])
    assert not x.requires_grad
    assert x.is_leaf
    x.requires_grad = True
    y = x * 2.0
    assert (x.requires_grad, x.is_leaf, y.requires_grad, y.is_leaf) == (True, True, True, False)
    x.requires_grad = False
    assert not (x * 2.0).requires_grad


def test_no_gradient_is_computed_for_what_needs_none(device):
    a, b = leaf(np.ones((50, 60))), pg.asarray(np.ones((60, 70)))
    pg.realize(a, b)
    out = pg.sum(a @ b)
    out.realize()
    with pg.launch_counter() as c:
        out.backward()
        a.grad.realize()
    assert b.grad is None
    assert c.ops <= 1  # one product, for a


def test_gradients_have_the_dtype_and_shape_of_their_arrays(device):
    x, y = leaf(np.ones((3, 1)), "float32"), leaf(2.0, "float32")
    z = pg.sum(x * pg.ones((2, 1, 4), dtype="float32") * y)
    z.backward()
    assert (x.grad.shape, x.grad.dtype) == ((3, 1), pg.float32)
    assert (y.grad.shape, y.grad.dtype) == ((), pg.float32)
    assert x.grad.tolist() == [[16.0]] * 3
    assert y.grad.item() == 24.0


def test_mixed_dtypes_keep_each_its_own(device, float_dtype):
    if float_dtype is not pg.float64:
        pytest.skip(f"not run: needs float64 on {device}")
    a, b = leaf([1.0, 2.0], "float32"), leaf([3.0, 4.0], "float64")
    pg.sum(a * b).backward()
    assert (a.grad.dtype, b.grad.dtype) == (pg.float32, pg.float64)


def test_integers_have_no_gradients(device):
    x = pg.asarray([1, 2, 3])
    sentence = (
        f"{x.dtype.name} arrays have no gradients: only float and complex dtypes do; convert with .astype('float32')"
    )
    with refuses(pg.DTypeError, sentence):
        x.requires_grad_()
    with refuses(pg.DTypeError, sentence):
        pg.grad(lambda v: pg.sum(v * 0.5))(x)
    with pytest.raises(pg.DTypeError, match="^bool arrays have no gradients"):
        pg.grad(lambda v: pg.sum(v * 0.5))(x > 1)
    w = leaf([1.0, 2.0, 3.0])
    pg.sum(w * x + w**2 * (x > 1) + pg.floor(w) * w.astype("int32") * 1.0).backward()
    assert w.grad.tolist() == [1.0, 6.0, 9.0]


def test_a_gradient_of_a_non_scalar_needs_a_seed(device):
    x = leaf([1.0, 2.0])
    with refuses(
        pg.GradError,
        "cannot start backward from an array of shape [2]: only a scalar has a gradient without a seed; "
        "pass gradient=... of that shape, or reduce it, by .sum() say",
    ):
        (x * 2.0).backward()


def test_dropping_a_graph_frees_it_without_the_collector(device):
    gc.collect()
    gc.disable()
    try:
        pg.synchronize()
        before = pg.memory_stats()["used"]
        x = leaf(np.ones((100, 100)))
        y = pg.exp(x) @ x
        loss = pg.sum(y * y)
        pg.realize(y, loss)
        loss.backward()
        x.grad.realize()
        del x, y, loss
        assert pg.memory_stats()["used"] == before
        x = leaf(np.ones((100, 100)))
        loss = pg.sum(pg.exp(x) @ x)
        loss.realize()
        del x, loss  # never gone backward through
        assert pg.memory_stats()["used"] == before
    finally:
        gc.enable()


def test_writing_into_a_recorded_array_keeps_its_gradient_right(device):
    x = leaf([1.0, 2.0, 3.0])
    y = x * x
    z = pg.sum(y * y)
    y[0] = 100.0
    w = pg.sum(y * x)
    (z + w).backward()
    value = np.asarray([1.0, 2.0, 3.0])
    want = 4 * value**3 + 3 * value**2
    want[0] = 4.0 + 100.0
    np.testing.assert_allclose(x.grad.numpy(), want, rtol=1e-6)


def test_a_leaf_is_written_in_no_grad_alone(device):
    x = leaf([1.0, 2.0])
    with refuses(pg.GradError, "cannot write into a leaf that needs gradients: do it in pg.no_grad(), or on a copy"):
        x[0] = 5.0
    with pg.no_grad():
        x[0] = 5.0
    assert x.tolist() == [5.0, 2.0]
    assert x.requires_grad
    pg.sum(x * x).backward()
    assert x.grad.tolist() == [10.0, 4.0]


def test_x_minus_equals_trains(device):
    w = leaf([4.0, -2.0])
    for _ in range(60):
        loss = pg.sum((w - 1.0) ** 2)
        loss.backward()
        with pg.no_grad():
            w -= 0.1 * w.grad
        w.grad = None
        w.requires_grad = True
    np.testing.assert_allclose(w.detach().numpy(), [1.0, 1.0], atol=1e-4)


def test_no_grad_records_nothing_and_nests(device):
    x = leaf(2.0)
    with pg.no_grad():
        y = x * x
        assert (type(y), y.requires_grad, pg.is_grad_enabled()) == (type(x), False, False)
        with pg.enable_grad():
            z = x * x
            assert z.requires_grad
        assert not pg.is_grad_enabled()
    assert pg.is_grad_enabled()
    z.backward()
    assert x.grad.item() == 4.0

    @pg.no_grad()
    def plain(v):
        return v * v

    assert not plain(x).requires_grad
    assert pg.is_grad_enabled()


def test_no_grad_ends_with_an_error(device):
    with pytest.raises(KeyError), pg.no_grad():
        raise KeyError
    assert pg.is_grad_enabled()


def test_grad_mode_belongs_to_its_thread(device):
    seen = {}
    inside, go = threading.Event(), threading.Event()

    def other():
        with pg.device(device):
            seen["before"] = pg.is_grad_enabled()
            inside.wait(10)
            x = leaf(3.0)
            y = x * x
            y.backward()
            seen["gradient"] = x.grad.item()
            go.set()

    thread = threading.Thread(target=other)
    thread.start()
    with pg.no_grad():
        inside.set()
        assert go.wait(10)
        assert not (leaf(1.0) * 2.0).requires_grad
    thread.join()
    assert seen == {"before": True, "gradient": 6.0}


def test_a_chain_of_many_ops_forward_and_backward(device):
    """A chain as long as on any device, shorter where each of its kernels is compiled for half a second."""
    x = leaf(3.0)
    y = x
    length = 100_000
    for k in range(length // 2):
        y = y * 1.0 if k % 2 else y + 0.001
        y = y + 0.0 * x if k % 2 else y - 0.001
    y.backward()
    assert y.item() == pytest.approx(3.0, rel=1e-3)
    assert x.grad.item() == pytest.approx(1.0)


def test_a_long_chain_is_dropped(device):
    y = pg.asarray(0.0)
    for _ in range(100_000):
        y = y + 1.0
    del y
    x = leaf(0.0)
    y = x
    for _ in range(100_000):
        y = y + 1.0
    del y


def test_a_loop_of_steps_holds_no_memory(device):
    x = leaf(np.ones(1000))
    data = pg.asarray(np.ones(1000))

    def step():
        loss = pg.sum((x * data) ** 2)
        loss.backward()
        x.grad.realize()
        x.grad = None

    for _ in range(5):
        step()
    pg.synchronize()
    used = pg.memory_stats()["used"]
    tracemalloc.start()
    try:
        for _ in range(10):
            step()
        first = tracemalloc.get_traced_memory()[0]
        for _ in range(100):
            step()
        last = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert pg.memory_stats()["used"] == used
    assert last - first < 100_000
