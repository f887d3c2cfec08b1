"""Recording and differentiation as users meet them: backward and .grad, tapes, grad modes, transforms, anomaly detection.

Here: whose gradient goes where, and what is refused; gradients at special points, on each device.
Not here: the derivative of each op (`test_gradients.py`), launch counts (`test_fusion.py`).
"""

import gc
import inspect
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


# ---- backward and .grad --------------------------------------------------------------------------------------------------


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
        "cannot go backward through reshape a second time: the first backward has freed its graph; call that one with retain_graph=True",
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
        "cannot go backward: no array that this one was computed from has requires_grad=True, or it was computed in no_grad()",
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
    sentence = f"{x.dtype.name} arrays have no gradients: only float dtypes do; convert with .astype('float32')"
    with refuses(pg.DTypeError, sentence):
        x.requires_grad_()
    with refuses(pg.DTypeError, sentence):
        pg.grad(lambda v: pg.sum(v * 0.5))(x)
    with pytest.raises(pg.DTypeError, match="^bool arrays have no gradients"):
        pg.grad(lambda v: pg.sum(v * 0.5))(x > 1)
    w = leaf([1.0, 2.0, 3.0])
    pg.sum(w * x + w ** 2 * (x > 1) + pg.floor(w) * w.astype("int32") * 1.0).backward()
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


# ---- grad modes -------------------------------------------------------------------------------------------------------------


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


# ---- tapes ----------------------------------------------------------------------------------------------------------------------


def test_a_tape_gives_gradients_of_what_it_watches(device):
    x = pg.asarray([1.0, 2.0])
    with pg.Tape() as tape:
        tape.watch(x)
        y = pg.sum(x * x * x)
    assert pg.get_current_tape() is None
    assert tape.gradient(y, x).tolist() == [3.0, 12.0]
    assert not x.requires_grad
    with refuses(
        pg.GradError, "this tape has given its gradient already and freed the graph: make it with persistent=True to ask again"
    ):
        tape.gradient(y, x)


def test_a_persistent_tape_gives_them_again_and_again(device):
    x = pg.asarray([1.0, 2.0])
    with pg.Tape(persistent=True) as tape:
        tape.watch(x)
        h = x * x * x
        a, b = pg.sum(h), pg.sum(h * h)
    assert [tape.gradient(t, x).tolist() for t in (a, a, b)] == [[3.0, 12.0], [3.0, 12.0], [6.0, 192.0]]
    assert tape.gradient(a, {"h": h, "x": [x]})["h"].tolist() == [1.0, 1.0]
    assert not tape.gradient(a, x).requires_grad  # no tape is open


def test_a_tape_gives_zeros_for_what_does_not_matter(device):
    x, y = pg.asarray([1.0, 2.0]), pg.asarray([3.0])
    with pg.Tape() as tape:
        tape.watch([x, y])
        z = pg.sum(x * 2.0)
    gx, gy = tape.gradient(z, [x, y])
    assert (gx.tolist(), gy.tolist()) == ([2.0, 2.0], [0.0])


def test_an_inner_tape_gives_the_outer_one_back(device):
    x, y = pg.asarray(2.0), pg.asarray(3.0)
    with pg.Tape() as outer:
        outer.watch(x)
        a = x * x
        with pg.Tape() as inner:
            assert pg.get_current_tape() is inner
            inner.watch(y)
            b = y * y
        assert pg.get_current_tape() is outer
        c = a * b * x
    assert pg.get_current_tape() is None
    assert inner.gradient(b, y).item() == 6.0
    assert outer.gradient(c, x).item() == pytest.approx(3 * 4.0 * 9.0)


def test_an_error_within_a_tape_closes_it(device):
    x = pg.asarray(2.0)
    with pg.Tape() as outer:
        with pytest.raises(KeyError), pg.Tape():
            raise KeyError
        assert pg.get_current_tape() is outer
    assert pg.get_current_tape() is None
    assert not x.requires_grad


def test_tapes_differentiate_each_other(device):
    x = pg.asarray(2.0)
    with pg.Tape() as outer:
        outer.watch(x)
        with pg.Tape() as inner:
            inner.watch(x)
            y = x**4
        first = inner.gradient(y, x)
    assert first.item() == pytest.approx(32.0)
    assert outer.gradient(first, x).item() == pytest.approx(48.0)


def test_tape_backward_adds_to_grad(device):
    w = leaf([1.0, 2.0])
    for k in range(3):
        with pg.Tape() as tape:
            loss = pg.sum(w * w * float(k + 1))
        tape.backward(loss)
    assert w.grad.tolist() == [12.0, 24.0]
    with pytest.raises(pg.GradError, match="retain_graph=True"):
        tape.backward(loss)
    assert w.grad.tolist() == [12.0, 24.0]
    with pg.Tape() as tape:
        loss = pg.sum(w * w)
    tape.backward(loss, retain_graph=True)
    tape.backward(loss)
    assert w.grad.tolist() == [16.0, 32.0]


def test_tape_backward_leaves_data_alone(device):
    w, data = leaf([1.0, 2.0]), pg.asarray([3.0, 4.0])
    with pg.Tape() as tape:
        loss = pg.sum(w * data)
    tape.backward(loss)
    assert data.grad is None
    assert w.grad.tolist() == [3.0, 4.0]


def test_a_tape_asked_for_by_name_records_inside_no_grad(device):
    w = leaf([1.0, 2.0])
    tape = pg.Tape()
    with pg.no_grad():
        plain = pg.exp(w)
        y = pg.exp(w, tape=tape)
        loss = pg.sum(y, tape=tape)
    assert not plain.requires_grad
    assert [r.op_name for r in tape.nodes] == ["exp", "sum", "reshape"]
    tape.backward(loss)
    np.testing.assert_allclose(w.grad.numpy(), np.exp([1.0, 2.0]), rtol=1e-6)


def test_records_show_what_happened(device):
    w = leaf([1.0, 2.0])
    with pg.Tape() as tape:
        y = pg.exp(w)
        line = inspect.currentframe().f_lineno - 1
        loss = pg.sum(y * 2.0)
    first = tape.nodes[0]
    assert first.op_name == "exp"
    assert first.requires_grad
    assert first.value.detach().tolist() == pytest.approx([math.e, math.e**2])
    assert first.parents[0].value.detach().tolist() == [1.0, 2.0]
    file, at, function = first.creation_trace
    assert (file.endswith("test_autograd.py"), at, function) == (True, line, "test_records_show_what_happened")
    assert first.grad is None
    assert first.grad_fn(pg.asarray([1.0, 1.0]))[0].detach().tolist() == pytest.approx([math.e, math.e**2])
    assert first.parents[0].grad_fn is None
    tape.backward(loss, retain_graph=True)
    assert first.grad.tolist() == [2.0, 2.0]


def test_a_tape_can_be_set_by_hand(device):
    w = leaf(2.0)
    tape = pg.Tape()
    pg.set_current_tape(tape)
    try:
        assert pg.get_current_tape() is tape
        y = w * w
    finally:
        pg.set_current_tape(None)
    assert pg.get_current_tape() is None
    assert [r.op_name for r in tape.nodes] == ["multiply"]
    tape.backward(y)
    assert w.grad.item() == 4.0


def test_tapes_belong_to_their_threads(device):
    found = {}

    def work(k):
        with pg.device(device):
            x = pg.asarray(float(k))
            with pg.Tape() as tape:
                tape.watch(x)
                y = x * x
                found[k] = (pg.get_current_tape() is tape, tape.gradient(y, x).item())

    with pg.Tape() as mine:
        threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert pg.get_current_tape() is mine
    assert mine.nodes == []
    assert found == {k: (True, 2.0 * k) for k in range(8)}


def test_a_dropped_tape_lets_go(device):
    pg.synchronize()
    before = pg.memory_stats()["used"]
    x = pg.asarray(np.ones((100, 100)))
    with pg.Tape() as tape:
        tape.watch(x)
        y = pg.sum(pg.exp(x) @ x)
    y.realize()
    del tape
    assert not x.requires_grad
    del x, y
    assert pg.memory_stats()["used"] == before


# ---- transforms ---------------------------------------------------------------------------------------------------------------


def test_grad_of_grad_of_grad(device):
    f = pg.grad(pg.grad(pg.grad(lambda x: x**5 + pg.exp(2.0 * x))))
    assert f(pg.asarray(1.5)).item() == pytest.approx(60 * 1.5**2 + 8 * math.exp(3.0), rel=1e-5)
    hessian_row = pg.grad(lambda v: pg.sum(pg.grad(lambda u: pg.sum(pg.sin(u) * u[0]))(v) * pg.asarray([1.0, 0.0])))
    x = np.asarray([0.3, 0.7])
    want = [2 * math.cos(x[0]) - math.sin(x[0]) * x[0], math.cos(x[1])]
    np.testing.assert_allclose(hessian_row(pg.asarray(x)).numpy(), want, rtol=1e-5)


def test_mixed_second_derivatives(device):
    def outer(x):
        return pg.grad(lambda y: x * x * y * y * y)(pg.asarray(2.0))

    assert pg.grad(outer)(pg.asarray(3.0)).item() == pytest.approx(2 * 3.0 * 3 * 4.0)


def test_grad_does_not_confuse_its_levels(device):
    def inner(x):
        return pg.grad(lambda y: x + y)(pg.asarray(1.0)) * x  # the inner gradient is 1, whatever x is

    assert pg.grad(inner)(pg.asarray(5.0)).item() == 1.0


def test_grad_ignores_no_grad_and_touches_no_grad_attribute(device):
    w = leaf(3.0)
    with pg.no_grad():
        assert pg.grad(lambda x: x * x * w)(pg.asarray(2.0)).item() == 12.0
    assert pg.grad(lambda x: x * x)(w).item() == 6.0
    assert w.grad is None
    assert w.requires_grad


def test_backward_through_grad(device):
    w = leaf(2.0)
    penalty = pg.grad(lambda x: w * x**3)(pg.asarray(1.5)) ** 2
    penalty.backward()
    assert w.grad.item() == pytest.approx(2 * 2.0 * (3 * 1.5**2) ** 2)


def test_value_and_grad_of_trees(device):
    def loss(params, x, scale=1.0):
        return pg.sum((x @ params["w"] + params["b"][0]) ** 2) * scale, {"scale": scale}

    params = {"w": pg.asarray([[1.0], [2.0]]), "b": [pg.asarray([0.5])]}
    x = pg.asarray([[1.0, 1.0], [0.0, 2.0]])
    (value, aux), grads = pg.value_and_grad(loss, has_aux=True)(params, x, scale=2.0)
    assert value.item() == pytest.approx(2 * (3.5**2 + 4.5**2))
    assert aux == {"scale": 2.0}
    assert grads["w"].tolist() == [[14.0], [50.0]]
    assert grads["b"][0].tolist() == [32.0]
    assert not grads["w"].requires_grad
    gx, gw = pg.grad(lambda a, b: pg.sum(a * b), argnums=(0, 1))(pg.asarray([1.0]), pg.asarray([2.0]))
    assert (gx.tolist(), gw.tolist()) == ([2.0], [1.0])


def test_what_grad_refuses(device):
    with refuses(pg.GradError, "cannot differentiate by argument 1: the function was called with 1 positional arguments"):
        pg.grad(lambda x: x, argnums=1)(pg.asarray(1.0))
    with refuses(pg.GradError, "cannot differentiate by argument 0: 2.0 holds no arrays; convert it with pg.asarray(...)"):
        pg.grad(lambda x: x)(2.0)
    with refuses(pg.GradError, "the function to differentiate must return an array, got float"):
        pg.grad(lambda x: 1.0)(pg.asarray(1.0))
    with pytest.raises(pg.GradError, match="^cannot start backward from an array of shape \\[2\\]"):
        pg.grad(lambda x: x * 2.0)(pg.asarray([1.0, 2.0]))
    assert pg.grad(lambda x: x * 2.0)(pg.asarray(1.0)).item() == 2.0


def test_vjp_pulls_back_as_often_as_asked(device):
    x, y = pg.asarray([1.0, 2.0]), pg.asarray(3.0)
    value, pull = pg.vjp(lambda a, b: {"p": a * b, "s": pg.sum(a)}, x, y)
    assert value["p"].tolist() == [3.0, 6.0]
    for scale in (1.0, 2.0):
        gx, gy = pull({"p": pg.asarray([scale, 0.0]), "s": pg.asarray(10.0)})
        assert (gx.tolist(), gy.item()) == ([3.0 * scale + 10.0, 10.0], scale)
    with refuses(pg.GradError, "the pull-back takes 2 cotangents, one for each output, got 1"):
        pull([pg.asarray([1.0, 1.0])])


def test_many_open_pull_backs(device):
    pulls = [pg.vjp(lambda x, k=k: x * float(k), pg.asarray(1.0))[1] for k in range(40)]
    assert [p(pg.asarray(1.0))[0].item() for p in pulls] == [float(k) for k in range(40)]


def test_jvp_is_the_transpose_of_vjp(device, rng):
    x = rng.standard_normal((3, 4))
    t, u = rng.standard_normal((3, 4)), rng.standard_normal((3,))

    def f(v):
        return pg.sum(pg.tanh(v) * pg.flip(v, axis=1), axis=1)

    value, pushed = pg.jvp(f, (pg.asarray(x),), (pg.asarray(t),))
    _, pull = pg.vjp(f, pg.asarray(x))
    np.testing.assert_allclose(value.numpy(), f(pg.asarray(x)).numpy())
    left, right = float(np.sum(pushed.numpy() * u)), float(np.sum(pull(pg.asarray(u))[0].numpy() * t))
    assert left == pytest.approx(right, rel=1e-5)
    with refuses(pg.ShapeError, "tangents of shapes [[2]] do not fit primals of shapes [[3]]"):
        pg.jvp(lambda v: v, (pg.ones(3),), (pg.ones(2),))


def test_jvp_of_grad_is_a_hessian_product(device):
    x, v = pg.asarray([1.0, 2.0]), pg.asarray([1.0, -1.0])
    _, hv = pg.jvp(pg.grad(lambda u: pg.sum(u**3) + u[0] * u[1]), (x,), (v,))
    assert hv.tolist() == pytest.approx([6.0 - 1.0, -12.0 + 1.0])


def test_stop_gradient(device):
    assert pg.grad(lambda x: x * pg.stop_gradient(x))(pg.asarray(3.0)).item() == 3.0


def test_checkpoint_computes_again_and_agrees(device):
    calls = []

    def block(x, w):
        calls.append(1)
        return pg.tanh(x @ w)

    x, w = leaf(np.full((2, 3), 0.1)), leaf(np.full((3, 3), 0.2))
    pg.sum(pg.checkpoint(block)(pg.checkpoint(block)(x, w), w)).backward()
    once = len(calls)
    got = x.grad.numpy(), w.grad.numpy()
    assert once == 4
    x.grad = w.grad = None
    pg.sum(block(block(x, w), w)).backward()
    np.testing.assert_allclose(got[0], x.grad.numpy(), rtol=1e-6)
    np.testing.assert_allclose(got[1], w.grad.numpy(), rtol=1e-6)


def test_checkpoint_draws_the_same_random_numbers(device):
    def noisy(x):
        keep = pg.random.uniform((1000,)) < 0.5
        return pg.sum(pg.where(keep, x * 2.0, 0.0) * pg.random.normal((1000,)))

    x = pg.asarray(np.ones(1000))
    pg.random.seed(5)
    want = pg.grad(noisy)(x).numpy()
    after = pg.random.uniform(()).item()
    pg.random.seed(5)
    np.testing.assert_allclose(pg.grad(pg.checkpoint(noisy))(x).numpy(), want, rtol=1e-6)
    assert pg.random.uniform(()).item() == after


def test_checkpoint_keeps_less_memory(device):
    def block(x):
        for _ in range(6):
            x = pg.tanh(x @ pg.eye(200))
        return x

    def held(f):
        x = leaf(np.ones((200, 200)))
        pg.synchronize()
        before = pg.memory_stats()["used"]
        y = pg.sum(f(f(x)))
        y.realize()
        return pg.memory_stats()["used"] - before

    assert held(pg.checkpoint(block)) < held(block) / 2


def test_a_written_derivative_is_used(device):
    @pg.custom_vjp
    def clip_gradient(x, limit):
        return x

    with refuses(pg.GradError, "clip_gradient is a custom_vjp without a derivative: call its defvjp(forward, backward) first"):
        clip_gradient(pg.asarray(1.0), 1.0)
    clip_gradient.defvjp(lambda x, limit: (x, limit), lambda limit, g: (pg.clip(g, -limit, limit), None))
    x = leaf([1.0, 2.0])
    pg.sum(clip_gradient(x * 3.0, 1.0) * pg.asarray([0.5, 7.0])).backward()
    assert x.grad.tolist() == [1.5, 3.0]
    assert pg.grad(lambda v: pg.sum(clip_gradient(v, 2.0) * 5.0))(pg.asarray([1.0])).tolist() == [2.0]
    with refuses(
        pg.GradError,
        "cannot push tangents through a function with a custom_vjp or a checkpoint: it has a reverse rule alone; "
        "use pg.vjp or pg.grad, or define it with pg.custom_jvp",
    ):
        pg.jvp(lambda v: clip_gradient(v, 1.0), (pg.asarray(1.0),), (pg.asarray(1.0),))


def test_a_written_derivative_of_several_outputs(device):
    @pg.custom_vjp
    def both(x, y):
        return x + y, x * y

    both.defvjp(lambda x, y: ((x + y, x * y), (x, y)), lambda saved, g: (g[0] + g[1] * saved[1], g[0] + g[1] * saved[0]))
    x, y = leaf(2.0), leaf(5.0)
    a, b = both(x, y)
    (a * 10.0 + b).backward()
    assert (x.grad.item(), y.grad.item()) == (15.0, 12.0)
    x.grad = y.grad = None
    a, b = both(x, y)
    b.backward()
    assert (x.grad.item(), y.grad.item()) == (5.0, 2.0)


def test_a_written_derivative_must_fit(device):
    @pg.custom_vjp
    def wrong(x, y):
        return x * y

    wrong.defvjp(lambda x, y: (x * y, None), lambda saved, g: (g,))
    with refuses(pg.GradError, "the backward rule of wrong returned 1 gradients for 2 arguments"):
        pg.grad(wrong)(pg.asarray(1.0), pg.asarray(2.0))


# ---- anomalies ---------------------------------------------------------------------------------------------------------------


def test_a_forward_anomaly_names_op_and_line(device):
    x = leaf([1.0, 0.0, -1.0])
    with pytest.raises(pg.GradError) as caught, pg.detect_anomaly():
        line = inspect.currentframe().f_lineno + 1
        y = pg.log(x)
        pg.sum(y)
    assert re.fullmatch(
        rf"forward anomaly: the value of log {x.dtype.name}\[3\], made at .*test_autograd.py:{line}, "
        r"in test_a_forward_anomaly_names_op_and_line, holds a NaN or an infinity",
        str(caught.value),
    )


def test_a_backward_anomaly_names_op_and_line(device):
    x = leaf([4.0, 0.0])
    with pytest.raises(pg.GradError) as caught, pg.detect_anomaly():
        line = inspect.currentframe().f_lineno + 1
        y = pg.sqrt(x)
        pg.sum(y).backward()
    assert re.fullmatch(
        rf"backward anomaly: the gradient of sqrt {x.dtype.name}\[2\], made at .*test_autograd.py:{line}, "
        r"in test_a_backward_anomaly_names_op_and_line, holds a NaN or an infinity",
        str(caught.value),
    )


def test_what_is_fine_passes_the_detector(device):
    x = leaf([4.0, 1.0])
    with pg.detect_anomaly():
        pg.sum(pg.sqrt(x)).backward()
    assert x.grad.tolist() == [0.25, 0.5]
    assert pg.log(pg.asarray(0.0)).item() == -INF


# ---- long chains --------------------------------------------------------------------------------------------------------------


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


# ---- special points ---------------------------------------------------------------------------------------------------------


def grad_of(function, value, dtype=None):
    return pg.grad(lambda x: pg.sum(function(x)))(pg.asarray(value, dtype=dtype)).tolist()


def test_a_zero_gradient_stays_zero_at_a_pole(device):
    assert grad_of(pg.sqrt, [0.0, 4.0]) == [INF, 0.25]
    assert grad_of(lambda x: pg.maximum(pg.sqrt(x), 1e-3), [0.0, 4.0]) == [0.0, 0.25]
    assert grad_of(lambda x: pg.where(x < 1.0, 3.0 * x, pg.sqrt(x)), [-1.0, 0.0, 0.25, 4.0]) == [3.0, 3.0, 3.0, 0.25]
    assert grad_of(lambda x: pg.where(x > 0.0, pg.log(x), 0.0), [-1.0, 0.0, 0.25, 4.0]) == [0.0, 0.0, 4.0, 0.25]

    def radius(p):
        return pg.maximum(pg.sqrt(p[:, 0] * p[:, 0] + p[:, 1] * p[:, 1]), 1e-10)

    np.testing.assert_allclose(grad_of(radius, [[0.0, 0.0], [3.0, 4.0]]), [[0.0, 0.0], [0.6, 0.8]], rtol=1e-6)


def test_ties_share_one_gradient(device):
    assert sum(grad_of(pg.max, [1.0, 3.0, 3.0, 2.0])) == 1.0
    assert grad_of(pg.max, [1.0, 3.0, 3.0, 2.0])[0] == 0.0
    assert sum(grad_of(pg.min, [4.0, 4.0, 4.0])) == pytest.approx(1.0)
    assert grad_of(lambda s: pg.max(pg.stack([s, s])), 2.0) == 1.0
    assert grad_of(lambda s: pg.maximum(s, s), 2.0) == 1.0
    assert grad_of(lambda x: pg.max(x, axis=1), [[0.0, 0.0], [5.0, 1.0]]) == [[0.5, 0.5], [1.0, 0.0]]


def test_kinks(device):
    assert grad_of(pg.abs, [-2.0, 0.0, 3.0]) == [-1.0, 0.0, 1.0]
    assert grad_of(pg.relu, [-1.0, 0.0, 2.0]) == [0.0, 0.0, 1.0]
    clipped = grad_of(lambda x: pg.clip(x, 1.0, 4.0), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0])
    assert clipped[2:4] == [1.0, 1.0]
    assert (clipped[0], clipped[5]) == (0.0, 0.0)
    assert clipped[1] == clipped[4]
    assert pg.clip(pg.asarray([NAN, 9.0]), 0.0, 1.0).tolist()[1] == 1.0
    assert math.isnan(pg.clip(pg.asarray([NAN, 9.0]), 0.0, 1.0).tolist()[0])


def test_powers_at_zero(device):
    assert grad_of(lambda x: x**2, [0.0, -3.0]) == [0.0, -6.0]
    assert grad_of(lambda x: x**1, [0.0]) == [1.0]
    assert grad_of(lambda x: x**0, [0.0, 2.0]) == [0.0, 0.0]
    assert grad_of(lambda x: x**3, [-2.0, 0.0]) == [12.0, 0.0]
    assert grad_of(lambda y: pg.pow(pg.asarray([0.0, 2.0]), y), [2.0, 3.0]) == pytest.approx([0.0, 8 * math.log(2.0)])


def test_products_with_zeros(device):
    assert grad_of(pg.prod, [2.0, 3.0, 4.0]) == pytest.approx([12.0, 8.0, 6.0])
    assert grad_of(pg.prod, [2.0, 0.0, 4.0]) == [0.0, 8.0, 0.0]
    assert grad_of(pg.prod, [2.0, 0.0, 0.0]) == [0.0, 0.0, 0.0]


def test_angles_at_the_origin(device):
    def masked(p):
        ok = p[:, 0] ** 2 + p[:, 1] ** 2 > 0
        return pg.where(ok, pg.atan2(p[:, 1], p[:, 0]), 0.0)

    np.testing.assert_allclose(grad_of(masked, [[0.0, 0.0], [1.0, 1.0]]), [[0.0, 0.0], [-0.5, 0.5]], rtol=1e-6)
    assert grad_of(pg.sinc, [0.0]) == [0.0]
    assert grad_of(pg.sinc, [0.5, 1.0]) == pytest.approx([-4 / math.pi, -1.0], rel=1e-5)


def test_large_logits(device):
    x = [[-400.0, 300.0, 450.0]]
    assert grad_of(lambda v: pg.softmax(v, axis=1), x, "float32") == [[0.0, 0.0, 0.0]]
    assert grad_of(lambda v: pg.cross_entropy(v, pg.asarray([0])), x, "float32") == [[-1.0, 0.0, 1.0]]
    assert pg.cross_entropy(pg.asarray(x, dtype="float32"), pg.asarray([0])).item() == 850.0
    equal = pg.full((1, 4), 1e8, dtype="float32")
    assert pg.cross_entropy(equal, pg.asarray([2])).item() == pytest.approx(math.log(4.0), rel=1e-6)
    assert grad_of(lambda v: pg.logsumexp(v, axis=1), [[-INF, -INF], [0.0, -INF]]) == [[0.0, 0.0], [1.0, 0.0]]


def test_positions_that_repeat_gather_their_gradients(device):
    weight = pg.asarray([0.25, 0.5, 4.0], dtype="float32")

    def at(function, value):
        return grad_of(lambda v: function(v) * weight, value, "float32")

    assert at(lambda v: v[pg.asarray([0, 0, 1])], [1.0, 2.0]) == [0.75, 4.0]
    assert at(lambda v: v[pg.asarray([-1, 1, 0])], [1.0, 2.0]) == [4.0, 0.75]
    assert at(lambda v: pg.take(v, pg.asarray([1, 1, 1]), axis=0), [1.0, 2.0]) == [0.0, 4.75]
    assert at(lambda v: pg.take_along_axis(v, pg.asarray([[0, 0, 0]]), axis=1), [[1.0, 2.0]]) == [[4.75, 0.0]]
    many = pg.asarray(np.arange(30_000) % 3)
    assert grad_of(lambda v: v[many], [1.0, 1.0, 1.0], "float32") == [10_000.0] * 3
    rows = grad_of(lambda v: v[pg.asarray([[1, 1], [3, 1]])], np.ones((4, 2)))
    assert rows == [[0.0, 0.0], [3.0, 3.0], [0.0, 0.0], [1.0, 1.0]]
    assert grad_of(lambda v: v[pg.asarray([0, 0]), pg.asarray([1, 1])], [[1.0, 2.0], [3.0, 4.0]]) == [[0.0, 2.0], [0.0, 0.0]]


MATMULS = [((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 4)), ((2, 3), (3, 4)), ((5, 2, 3), (3, 4)), ((2, 3), (5, 3, 4)), ((5, 1, 2, 3), (4, 3, 2)),
           ((3,), (5, 3, 4)), ((0, 3), (3, 2)), ((2, 0), (0, 3))]  # fmt: skip


@pytest.mark.parametrize(("a", "b"), MATMULS, ids=str)
def test_matmul_gradients_for_each_rank(a, b, device, rng):
    x, y = rng.standard_normal(a), rng.standard_normal(b)
    weight = rng.standard_normal(np.matmul(x, y).shape)
    p, q = leaf(x), leaf(y)
    pg.sum((p @ q) * pg.asarray(weight)).backward()
    for array, other, kind in ((p, y, "left"), (q, x, "right")):
        value = x if kind == "left" else y
        want = np.zeros(value.shape)
        for k in np.ndindex(value.shape):
            unit = np.zeros(value.shape)
            unit[k] = 1.0
            want[k] = np.sum((np.matmul(unit, other) if kind == "left" else np.matmul(other, unit)) * weight)
        assert array.grad.shape == value.shape
        np.testing.assert_allclose(array.grad.numpy(), want, rtol=1e-5, atol=1e-6)
