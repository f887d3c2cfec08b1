"""Jacobians, Hessians and products with them, linear maps, and derivatives written forward.

Here: `jacobian`, `jacrev`, `jacfwd`, `hessian`, `hvp`, `linearize`, `custom_jvp`. Not here: `grad`, `vjp`, `jvp`
(`test_transforms.py`).
"""

import dataclasses
import math
import re

import numpy as np
import pytest

import polygrad as pg


def refuses(error, sentence):
    return pytest.raises(error, match=f"^{re.escape(sentence)}$")


def curve(x, w):
    return pg.tanh(x @ w) * pg.sum(x * x)


def differences(f, x, h=1e-6):
    """Return the Jacobian of *f*, of NumPy arrays, by central differences."""
    out = np.zeros((*f(x).shape, *x.shape))
    for at in np.ndindex(x.shape):
        step = np.zeros(x.shape)
        step[at] = h
        out[(..., *at)] = (f(x + step) - f(x - step)) / (2 * h)
    return out


@pytest.mark.parametrize("mode", ["reverse", "forward"])
def test_a_jacobian_is_what_differences_show(mode, rng):
    with pg.device("cpu:0"):
        x, w = rng.standard_normal(3), rng.standard_normal((3, 2))
        by_x, by_w = pg.jacobian(curve, argnums=(0, 1), mode=mode)(pg.asarray(x), pg.asarray(w))
        want_x = differences(lambda v: np.tanh(v @ w) * np.sum(v * v), x)
        want_w = differences(lambda v: np.tanh(x @ v) * np.sum(x * x), w)
        assert (by_x.shape, by_w.shape) == ((2, 3), (2, 3, 2))
        np.testing.assert_allclose(by_x.numpy(), want_x, rtol=1e-7, atol=1e-8)
        np.testing.assert_allclose(by_w.numpy(), want_w, rtol=1e-7, atol=1e-8)
        assert not by_x.requires_grad


def test_both_modes_agree_on_each_device(device, rng):
    x, w = pg.asarray(rng.standard_normal(3)), pg.asarray(rng.standard_normal((3, 2)))
    np.testing.assert_allclose(pg.jacrev(curve)(x, w).numpy(), pg.jacfwd(curve)(x, w).numpy(), rtol=1e-4, atol=1e-6)


@dataclasses.dataclass
class Point:
    x: object
    label: str


@pytest.mark.parametrize("take", [pg.jacrev, pg.jacfwd])
def test_jacobians_of_trees(take, device):
    def f(p, scale=1.0):
        return {"s": p["a"] * p["b"][0], "t": [pg.sum(p["a"]) * scale, pg.asarray([7.0, 8.0])]}

    p = {"a": pg.asarray([1.0, 2.0]), "b": [pg.asarray(3.0)]}
    got = take(f)(p, scale=5.0)
    assert got["s"]["a"].tolist() == [[3.0, 0.0], [0.0, 3.0]]
    assert got["s"]["b"][0].tolist() == [1.0, 2.0]
    assert got["t"][0]["a"].tolist() == [5.0, 5.0]
    assert got["t"][1]["a"].tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert got["t"][0]["b"][0].tolist() == 0.0
    point = take(lambda q: q.x * q.x)(Point(pg.asarray([2.0, 3.0]), "here"))
    assert (point.x.tolist(), point.label) == ([[4.0, 0.0], [0.0, 6.0]], "here")
    rows, aux = take(lambda v: (v * v, {"twice": v * 2.0}), has_aux=True)(pg.asarray([3.0]))
    assert (rows.tolist(), aux["twice"].tolist()) == ([[6.0]], [6.0])
    assert take(lambda v: v * 2.0)(pg.ones(0)).shape == (0, 0)
    assert take(lambda v: pg.sum(v))(pg.ones((0, 2))).shape == (0, 2)


def test_what_jacobian_refuses(device):
    with refuses(ValueError, "a Jacobian is taken in mode 'reverse' or 'forward', got 'both'"):
        pg.jacobian(curve, mode="both")
    with pytest.raises(pg.GradError, match="^cannot take the Jacobian of int64 outputs: they must have a float dtype"):
        pg.jacobian(lambda x: x.astype("int64"))(pg.ones(2))
    with refuses(
        pg.GradError, "cannot differentiate by argument 0: 1.0 holds no arrays; convert it with pg.asarray(...)"
    ):
        pg.jacobian(lambda x: x)(1.0)


def test_hessians(device, rng):
    a = rng.standard_normal((3, 3))
    x = pg.asarray(rng.standard_normal(3))
    square = pg.hessian(lambda v: v @ pg.asarray(a) @ v)(x)
    np.testing.assert_allclose(square.numpy(), a + a.T, rtol=1e-4, atol=1e-5)
    mixed = pg.hessian(lambda d: d["u"] * d["v"] ** 3)({"u": pg.asarray(2.0), "v": pg.asarray(3.0)})
    assert mixed["u"]["v"].item() == pytest.approx(27.0)
    assert mixed["v"]["v"].item() == pytest.approx(36.0)
    both = pg.hessian(lambda u, v: u * u * v, argnums=(0, 1))(pg.asarray(2.0), pg.asarray(3.0))
    assert [[h.item() for h in row] for row in both] == [[6.0, 4.0], [4.0, 0.0]]


def test_products_with_the_hessian(device, rng):
    def f(v, w):
        return pg.sum(pg.exp(v * w)) + v[0] * w[1]

    x, y, s, t = (pg.asarray(rng.standard_normal(3)) for _ in range(4))
    (hx, hy), ((a, b), (c, d)) = pg.hvp(f, (x, y), (s, t)), pg.hessian(f, argnums=(0, 1))(x, y)
    np.testing.assert_allclose(hx.numpy(), (a @ s + b @ t).numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(hy.numpy(), (c @ s + d @ t).numpy(), rtol=1e-4, atol=1e-5)
    assert pg.hvp(lambda v: pg.sum(v**3), pg.asarray([1.0, 2.0]), pg.asarray([1.0, 10.0])).tolist() == [6.0, 120.0]
    tree = pg.hvp(lambda p: p["a"] ** 3, {"a": pg.asarray(2.0)}, {"a": pg.asarray(1.0)})
    assert tree["a"].item() == pytest.approx(12.0)


def test_a_linear_map_is_used_again(device):
    calls = []

    def f(x, y):
        calls.append(1)
        return {"p": pg.sin(x) * y}, "beside"

    x, y = pg.asarray([0.1, 0.2]), pg.asarray(3.0)
    value, push, aux = pg.linearize(f, x, y, has_aux=True)
    assert aux == "beside"
    np.testing.assert_allclose(value["p"].numpy(), np.sin([0.1, 0.2]) * 3.0, rtol=1e-6)
    zero, one = pg.asarray(0.0), pg.asarray(1.0)
    for scale in (1.0, -2.0):
        moved = push(pg.asarray([scale, 0.0]), zero)["p"]
        np.testing.assert_allclose(moved.numpy(), [scale * 3.0 * math.cos(0.1), 0.0], rtol=1e-6)
    np.testing.assert_allclose(push(pg.zeros_like(x), one)["p"].numpy(), np.sin([0.1, 0.2]), rtol=1e-6)
    assert len(calls) == 1
    rows = pg.vmap(lambda t: push(t, zero)["p"])(pg.eye(2, dtype=x.dtype))
    np.testing.assert_allclose(rows.numpy(), np.diag(3.0 * np.cos([0.1, 0.2])), rtol=1e-6)
    with refuses(pg.ShapeError, "tangents of shapes [[2]] do not fit primals of shapes [[2], []]"):
        push(x)


def test_aux_of_vjp_and_jvp(device):
    value, pull, aux = pg.vjp(lambda x: (x * x, [x + 1.0]), pg.asarray(3.0), has_aux=True)
    assert (value.item(), pull(pg.asarray(1.0))[0].item(), aux[0].item()) == (9.0, 6.0, 4.0)
    value, tangent, aux = pg.jvp(lambda x: (x * x, "s"), (pg.asarray(3.0),), (pg.asarray(1.0),), has_aux=True)
    assert (value.item(), tangent.item(), aux) == (9.0, 6.0, "s")
    with refuses(pg.GradError, "has_aux says that the function returns a pair (value, anything): it does not"):
        pg.vjp(lambda x: x, pg.asarray(3.0), has_aux=True)


# ---- derivatives written forward ------------------------------------------------------------------------------------


@pg.custom_jvp
def softplus(x):
    return pg.maximum(x, 0.0) + pg.log1p(pg.exp(-pg.abs(x)))


@softplus.defjvp
def _softplus_rule(primals, tangents):
    (x,), (t,) = primals, tangents
    return softplus(x), t * pg.sigmoid(x)


def test_a_rule_written_forward_serves_both_modes():
    with pg.device("cpu:0"):
        x = pg.asarray([-3.0, 0.5, 2.0])
        pg.testing.gradcheck(softplus, x)
        pg.testing.gradgradcheck(softplus, x)
        assert pg.grad(softplus)(pg.asarray(0.0)).item() == 0.5  # autodiff of the formula says 0: max and abs at a tie
        assert pg.grad(pg.grad(softplus))(pg.asarray(0.0)).item() == 0.25
        w = pg.asarray([1.0, 0.0, 2.0]).requires_grad_()
        pg.sum(softplus(w) * 3.0).backward()
        np.testing.assert_allclose(w.grad.numpy(), 3.0 / (1.0 + np.exp([-1.0, 0.0, -2.0])), rtol=1e-12)
        assert not w.grad.requires_grad


def test_a_rule_of_several_arguments_and_outputs(device):
    @pg.custom_jvp
    def both(x, y, factor):
        return {"sum": x + y * factor, "product": x * y}

    seen = []

    @both.defjvp
    def rule(primals, tangents):
        x, y, factor = primals
        s, t, nothing = tangents
        seen.append(nothing)
        return both(x, y, factor), {"sum": s + t * factor, "product": s * y + x * t}

    x, y = pg.asarray([2.0, 3.0]), pg.asarray([5.0, 7.0])
    value, pushed = pg.jvp(lambda a: both(a, y, 10.0), (x,), (pg.ones(2, dtype=x.dtype),))
    assert value["sum"].tolist() == [52.0, 73.0]
    assert (pushed["sum"].tolist(), pushed["product"].tolist()) == ([1.0, 1.0], [5.0, 7.0])
    gx, gy = pg.grad(lambda a, b: pg.sum(both(a, b, 10.0)["product"]), argnums=(0, 1))(x, y)
    assert (gx.tolist(), gy.tolist()) == ([5.0, 7.0], [2.0, 3.0])
    assert pg.grad(lambda b: pg.sum(both(x, b, 10.0)["sum"]))(y).tolist() == [10.0, 10.0]
    assert set(seen) == {0.0}


def test_rules_for_each_argument(device):
    @pg.custom_jvp
    def scaled(x, y):
        return x * y

    scaled.defjvps(lambda t, value, x, y: t * y, None)
    assert pg.grad(scaled)(pg.asarray(3.0), pg.asarray(4.0)).item() == 4.0
    assert pg.grad(scaled, argnums=1)(pg.asarray(3.0), pg.asarray(4.0)).item() == 0.0


def test_a_rule_written_forward_must_fit(device):
    @pg.custom_jvp
    def wrong(x):
        return x * 2.0

    x = pg.asarray([1.0, 2.0])
    with refuses(pg.GradError, "wrong is a custom_jvp without a derivative: call its defjvp(rule) first"):
        wrong(x)
    wrong.defjvp(lambda primals, tangents: tangents[0])
    with refuses(pg.GradError, "the rule of wrong must return a pair (value, tangent)"):
        pg.grad(lambda v: pg.sum(wrong(v)))(x)
    wrong.defjvp(lambda primals, tangents: (primals[0], pg.sum(tangents[0])))
    with refuses(pg.GradError, "the rule of wrong returned tangents of shapes [[]] for values of shapes [[2]]"):
        pg.jvp(wrong, (x,), (x,))
