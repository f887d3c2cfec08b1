"""Transforms of functions: grad, vjp, jvp, checkpoint, custom_vjp, nested in each other.

Here: what they return and refuse. Not here: the derivatives of ops (`test_gradients.py`).
"""

import math
import re

import numpy as np
import pytest

import polygrad as pg

NAN, INF = math.nan, math.inf


def leaf(value, dtype=None):
    return pg.asarray(value, dtype=dtype).requires_grad_()


def refuses(error, sentence):
    return pytest.raises(error, match=f"^{re.escape(sentence)}$")


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
    with refuses(
        pg.GradError, "cannot differentiate by argument 1: the function was called with 1 positional arguments"
    ):
        pg.grad(lambda x: x, argnums=1)(pg.asarray(1.0))
    with refuses(
        pg.GradError, "cannot differentiate by argument 0: 2.0 holds no arrays; convert it with pg.asarray(...)"
    ):
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

    with refuses(
        pg.GradError, "clip_gradient is a custom_vjp without a derivative: call its defvjp(forward, backward) first"
    ):
        clip_gradient(pg.asarray(1.0), 1.0)
    clip_gradient.defvjp(lambda x, limit: (x, limit), lambda limit, g: (pg.clip(g, -limit, limit), None))
    x = leaf([1.0, 2.0])
    pg.sum(clip_gradient(x * 3.0, 1.0) * pg.asarray([0.5, 7.0])).backward()
    assert x.grad.tolist() == [1.5, 3.0]
    assert pg.grad(lambda v: pg.sum(clip_gradient(v, 2.0) * 5.0))(pg.asarray([1.0])).tolist() == [2.0]
    _, tangent = pg.jvp(lambda v: clip_gradient(v * 3.0, 1.0), (pg.asarray(1.0),), (pg.asarray(2.0),))
    assert float(tangent) == 6.0  # the transpose of the written rule


def test_a_written_derivative_of_several_outputs(device):
    @pg.custom_vjp
    def both(x, y):
        return x + y, x * y

    both.defvjp(
        lambda x, y: ((x + y, x * y), (x, y)), lambda saved, g: (g[0] + g[1] * saved[1], g[0] + g[1] * saved[0])
    )
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
