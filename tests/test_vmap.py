"""pg.vmap: a function of one example, run for all at once.

Here: what vmap takes, returns and refuses; vmap in and around the other transforms. Not here: every op
(`test_vmap_ops.py`).
"""

import re

import numpy as np
import pytest

import polygrad as pg


def refuses(error, sentence):
    return pytest.raises(error, match=f"^{re.escape(sentence)}$")


def test_axes_of_arguments_and_results(device, rng):
    x, w = rng.standard_normal((3, 5, 2)), rng.standard_normal((2, 4))
    got = pg.vmap(lambda a, b: a @ b, in_axes=(1, None), out_axes=-1)(pg.asarray(x), pg.asarray(w))
    assert got.shape == (3, 4, 5)
    np.testing.assert_allclose(got.numpy(), np.moveaxis(np.moveaxis(x, 1, 0) @ w, 0, -1), rtol=1e-5)
    tree = {"a": pg.asarray(x), "b": [pg.asarray(w), 2.0]}
    got = pg.vmap(
        lambda t, scale: {"s": pg.sum(t["a"]) * t["b"][1], "w": t["b"][0] * scale},
        in_axes=({"a": -1, "b": None}, None),
        out_axes={"s": 0, "w": None},
    )(tree, 3.0)
    np.testing.assert_allclose(got["s"].numpy(), 2.0 * x.sum((0, 1)), rtol=1e-5)
    np.testing.assert_allclose(got["w"].numpy(), 3.0 * w, rtol=1e-6)
    assert pg.vmap(lambda a, *, b: a + b)(pg.asarray([1.0, 2.0]), b=pg.asarray([10.0, 20.0])).tolist() == [11.0, 22.0]
    assert pg.vmap(lambda a: pg.asarray(7.0))(pg.ones((2, 3))).tolist() == [7.0, 7.0]


def test_what_vmap_refuses(device):
    x, y = pg.ones((3, 2)), pg.ones((4, 2))
    with refuses(
        pg.ShapeError,
        "cannot map over axes of 3 and 4 examples at once: the mapped axes of [3, 2] and [4, 2] must be of one size",
    ):
        pg.vmap(lambda a, b: a + b)(x, y)
    with refuses(pg.ShapeError, "cannot map over nothing: give vmap an array with an axis in in_axes"):
        pg.vmap(lambda a: a, in_axes=None)(x)
    with refuses(pg.ShapeError, "cannot map along axis 2: the array has 2 axes, so it must be in [-2, 2)"):
        pg.vmap(lambda a: a, in_axes=2)(x)
    with refuses(pg.ShapeError, "in_axes (0, 0) names axes for 2 arguments, but there are 1 positional ones"):
        pg.vmap(lambda a: a, in_axes=(0, 0))(x)
    with refuses(
        pg.ShapeError,
        "in_axes[0] {'b': 0} does not fit its value: it is an int, None, or a tree that has the same parts",
    ):
        pg.vmap(lambda a: a, in_axes=({"b": 0},))({"a": x})
    with refuses(
        pg.GradError,
        "cannot map over argument 0: 2.0 holds no arrays; convert it with pg.asarray(...), or say None in in_axes",
    ):
        pg.vmap(lambda a, b: b)(2.0, x)
    with refuses(
        pg.ShapeError, "out_axes is None for a result of shape [2] that differs between examples: name an axis"
    ):
        pg.vmap(lambda a: a, out_axes=None)(x)


LOOKS = {
    "bool": lambda x: x if x[0] > 0 else -x,
    "float": lambda x: x * float(x[0]),
    "item": lambda x: x[0].item(),
    "numpy": lambda x: x.numpy(),
    "realize": lambda x: pg.realize(x * 2.0),
    "tolist": lambda x: x.tolist(),
    "print": lambda x: repr(x),
    "mask": lambda x: x[x > 0],
}


@pytest.mark.parametrize("how", LOOKS)
def test_looking_at_a_value_is_one_clear_error(how, device):
    with pytest.raises(pg.CaptureError, match="^cannot look at a value that pg.vmap maps over: .* stands for all "):
        pg.vmap(LOOKS[how])(pg.asarray([[1.0, -1.0]], dtype="float32"))
    leaked = []
    pg.vmap(lambda x: leaked.append(x * 2.0) or x)(pg.ones((2, 2)))
    with pytest.raises(pg.CaptureError, match="^cannot look at a value that pg.vmap maps over"):
        leaked[0].numpy()


def test_python_may_look_at_shapes(device):
    def f(x):
        total = x[0]
        for k in range(1, x.shape[0]):
            total = total + x[k] if x.ndim == 1 else total
        return total / len(x)

    assert pg.vmap(f)(pg.asarray([[1.0, 3.0], [5.0, 9.0]])).tolist() == [2.0, 7.0]


def test_no_examples_and_one(device):
    f = pg.vmap(lambda x, w: pg.sort(pg.tanh(x @ w))[::-1], in_axes=(0, None))
    w = pg.ones((2, 3))
    assert f(pg.ones((0, 2)), w).shape == (0, 3)
    assert f(pg.ones((1, 2)), w).shape == (1, 3)
    assert pg.grad(lambda v: pg.sum(f(pg.ones((0, 2)), v)))(w).tolist() == [[0.0] * 3] * 2


def test_writes_within_an_example(device):
    def f(x):
        y = x * 1.0
        y[1:] = y[:-1] * 2.0
        y[0] += 5.0
        return y

    x = np.arange(6.0).reshape(2, 3)
    want = np.stack([[r[0] + 5.0, 2.0 * r[0], 2.0 * r[1]] for r in x])
    assert pg.vmap(f)(pg.asarray(x)).tolist() == want.tolist()


def test_it_is_one_kernel_not_a_loop(device):
    x = pg.realize(pg.ones((50, 8)))
    with pg.launch_counter() as c:
        pg.realize(pg.vmap(lambda v: pg.exp(v - pg.max(v)) / pg.sum(pg.exp(v - pg.max(v))))(x))
    assert c.total <= 2


# ---- with other transforms ------------------------------------------------------------------------------------------


def model(params, x):
    return pg.sum(pg.tanh(x @ params["w"] + params["b"]) ** 2)


@pytest.fixture
def trained(device, rng):
    params = {"w": pg.asarray(rng.standard_normal((4, 3))), "b": pg.asarray(rng.standard_normal(3))}
    return params, pg.asarray(rng.standard_normal((5, 4)))


def test_a_gradient_for_each_example(trained):
    params, x = trained
    each_one = pg.vmap(pg.grad(model), in_axes=(None, 0))(params, x)
    assert each_one["w"].shape == (5, 4, 3)
    for i in range(5):
        alone = pg.grad(model)(params, x[i])
        for k in params:
            np.testing.assert_allclose(each_one[k][i].numpy(), alone[k].numpy(), rtol=1e-4, atol=1e-6)
    whole = pg.grad(lambda p: pg.sum(pg.vmap(model, in_axes=(None, 0))(p, x)))(params)
    for k in params:
        np.testing.assert_allclose(whole[k].numpy(), each_one[k].numpy().sum(0), rtol=1e-4, atol=1e-6)


def test_gradients_of_what_the_function_finds_elsewhere(device):
    w = pg.asarray([1.0, 2.0]).requires_grad_()
    x = pg.asarray([[1.0, 0.0], [3.0, 4.0]])
    pg.sum(pg.vmap(lambda v: v @ w)(x)).backward()
    assert w.grad.tolist() == [4.0, 4.0]
    assert pg.grad(lambda v: pg.sum(pg.vmap(lambda r: pg.stop_gradient(r @ v) * (r @ v))(x)))(w.detach()).tolist() == [
        1.0 + 33.0,
        44.0,
    ]
    with pg.no_grad():
        assert not pg.vmap(lambda v: v @ w)(x).requires_grad


def test_vmap_nests(device, rng):
    a, b = rng.standard_normal((3, 4)), rng.standard_normal((5, 4))
    table = pg.vmap(lambda r: pg.vmap(lambda s: pg.sum(r * s))(pg.asarray(b)))(pg.asarray(a))
    np.testing.assert_allclose(table.numpy(), a @ b.T, rtol=1e-4, atol=1e-6)
    both = pg.vmap(pg.vmap(lambda r, s: r * s, in_axes=(None, 0)), in_axes=(0, None))
    np.testing.assert_allclose(both(pg.asarray(a[:, 0]), pg.asarray(b[:, 0])).numpy(), np.outer(a[:, 0], b[:, 0]), 1e-5)


def test_forward_mode_of_vmap_and_vmap_of_forward_mode(trained, rng):
    params, x = trained
    t = pg.asarray(rng.standard_normal((5, 4)))

    def f(v):
        return pg.tanh(v @ params["w"])

    _, pushed = pg.jvp(pg.vmap(f), (x,), (t,))
    each_one = pg.vmap(lambda v, d: pg.jvp(f, (v,), (d,))[1])(x, t)
    want = pg.jvp(f, (x,), (t,))[1].numpy()
    np.testing.assert_allclose(pushed.numpy(), want, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(each_one.numpy(), want, rtol=1e-4, atol=1e-6)


def test_second_derivatives_of_each_example(device):
    x = pg.asarray([[1.0, 2.0], [3.0, 4.0]])
    curved = pg.vmap(pg.hessian(lambda v: v[0] ** 2 * v[1]))(x)
    np.testing.assert_allclose(curved.numpy(), [[[4, 2], [2, 0]], [[8, 6], [6, 0]]], rtol=1e-5)
    f = pg.grad(lambda v: pg.sum(pg.vmap(pg.grad(lambda u: u**3))(v)))
    assert f(x[0]).tolist() == pytest.approx([6.0, 12.0])


def test_functions_with_written_derivatives(device):
    @pg.custom_vjp
    def clipped(x, limit):
        return x * limit

    clipped.defvjp(lambda x, c: (x * c, (x, c)), lambda saved, g: (pg.clip(g, -1.0, 1.0), pg.sum(g * saved[0]) * 0.5))
    x, c = pg.asarray([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), pg.asarray(2.0)
    weight = pg.asarray([[0.5, 5.0], [-3.0, 0.1], [1.0, 2.0]])

    def total(v, limit):
        return pg.sum(pg.vmap(clipped, in_axes=(0, None))(v, limit) * weight)

    by_x, by_c = pg.grad(total, argnums=(0, 1))(x, c)
    np.testing.assert_allclose(by_x.numpy(), np.clip(weight.numpy(), -1, 1), rtol=1e-6)
    assert by_c.item() == pytest.approx(0.5 * float((weight.numpy() * x.numpy()).sum()))
    each_one = pg.vmap(pg.grad(lambda v, w: pg.sum(clipped(v, 2.0) * w)))(x, weight)
    np.testing.assert_allclose(each_one.numpy(), np.clip(weight.numpy(), -1, 1), rtol=1e-6)

    @pg.custom_jvp
    def square(v):
        return v * v

    square.defjvp(lambda p, t: (p[0] * p[0], 3.0 * p[0] * t[0]))  # wrong by half, so that it is seen to be used
    np.testing.assert_allclose(pg.grad(lambda v: pg.sum(pg.vmap(square)(v)))(x).numpy(), 3.0 * x.numpy(), rtol=1e-6)
    np.testing.assert_allclose(pg.vmap(pg.grad(lambda v: pg.sum(square(v))))(x).numpy(), 3.0 * x.numpy(), rtol=1e-6)
    pushed = pg.jvp(pg.vmap(square), (x,), (pg.ones((3, 2), dtype=x.dtype),))[1]
    np.testing.assert_allclose(pushed.numpy(), 3.0 * x.numpy(), rtol=1e-6)


def test_checkpoints(trained):
    params, x = trained

    def total(p, f):
        return pg.sum(pg.vmap(lambda v: f(p, v))(x))

    saved = pg.grad(total)(params, pg.checkpoint(model))
    plain = pg.grad(total)(params, model)
    for k in params:
        np.testing.assert_allclose(saved[k].numpy(), plain[k].numpy(), rtol=1e-4, atol=1e-6)
    inside = pg.vmap(pg.grad(pg.checkpoint(model)), in_axes=(None, 0))(params, x)
    np.testing.assert_allclose(inside["b"].numpy().sum(0), plain["b"].numpy(), rtol=1e-4, atol=1e-6)


def test_random_numbers_differ_between_examples_and_are_those_of_the_folded_key(device):
    def noisy(x):
        return x + pg.random.normal((7,), dtype="float32"), pg.random.randint(0, 1000, (3,), dtype="int32")

    pg.random.seed(11)
    start = pg.random.get_state()
    noise, numbers = pg.vmap(noisy)(pg.zeros((4, 7), dtype="float32"))
    after = pg.random.get_state()
    noise, numbers = noise.numpy(), numbers.numpy()
    assert len({r.tobytes() for r in noise}) == 4
    for i in range(4):
        pg.random.set_state({**start, "key": pg.random.fold_in(start["key"], i)})
        alone = noisy(pg.zeros(7, dtype="float32"))
        assert alone[0].numpy().tobytes() == noise[i].tobytes()
        assert alone[1].tolist() == numbers[i].tolist()
    assert pg.random.get_state()["counter"] == after["counter"]
    pg.random.seed(11)
    twice = pg.vmap(pg.vmap(lambda x: x + pg.random.uniform((), dtype="float32")))(pg.zeros((2, 3), dtype="float32"))
    key = pg.random.fold_in(pg.random.fold_in(start["key"], 1), 2)
    pg.random.set_state({"key": key, "counter": 0})
    assert twice[1, 2].item() == pg.random.uniform((), dtype="float32").item()


def test_random_numbers_of_a_checkpoint_are_drawn_again(device):
    def dropped(x):
        return pg.where(pg.random.uniform((50,), dtype="float32") < 0.5, x * 3.0, 0.0)

    x = pg.ones((2, 50), dtype="float32")
    pg.random.seed(3)
    value = pg.vmap(pg.checkpoint(dropped))(x).numpy()
    pg.random.seed(3)
    slope = pg.grad(lambda v: pg.sum(pg.vmap(pg.checkpoint(dropped))(v)))(x).numpy()
    assert np.array_equal(value, slope)
    assert not np.array_equal(value[0], value[1])


def test_a_function_that_moves_an_array(device, other_device):
    x = pg.asarray([[1.0, 2.0], [3.0, 4.0]], dtype="float32")
    moved = pg.vmap(lambda v: v.to_device(other_device) * 2.0)(x)
    assert moved.device == other_device
    assert moved.tolist() == [[2.0, 4.0], [6.0, 8.0]]
    assert pg.grad(lambda v: pg.sum(pg.vmap(lambda r: r.to_device(other_device) ** 2)(v)))(x).tolist() == [
        [2, 4],
        [6, 8],
    ]


def test_per_example_gradients_of_a_module(device):
    layer = pg.nn.Linear(3, 2)
    x = pg.ones((4, 3), dtype="float32")
    pg.sum(pg.vmap(layer)(x)).backward()
    assert layer.weight.grad.shape == (2, 3)
    assert layer.bias.grad.tolist() == [4.0, 4.0]
    layer.weight.grad = None

    def loss(parameters, v):
        return pg.sum(pg.nn.functional_call(layer, parameters, v) ** 2)

    parameters = dict(layer.named_parameters())
    each_one = pg.vmap(pg.grad(loss), in_axes=(None, 0))(parameters, x * pg.asarray([[1.0], [2.0], [3.0], [4.0]]))
    assert {k: g.shape for k, g in each_one.items()} == {"weight": (4, 2, 3), "bias": (4, 2)}
    whole = pg.grad(lambda p: pg.sum(pg.vmap(loss, in_axes=(None, 0))(p, x)))(parameters)
    assert whole["bias"].shape == (2,)
    assert layer.weight.grad is None
    assert layer.weight.is_leaf


def test_tapes_and_eager_mode(device):
    x = pg.asarray([[1.0, 2.0], [3.0, 4.0]])
    with pg.eager(), pg.Tape() as tape:
        tape.watch(x)
        y = pg.sum(pg.vmap(lambda v: pg.sum(v * v))(x))
    assert tape.gradient(y, x).tolist() == [[2.0, 4.0], [6.0, 8.0]]
    with pg.detect_anomaly():
        assert pg.vmap(pg.grad(lambda v: pg.sum(v * v)))(x).tolist() == [[2.0, 4.0], [6.0, 8.0]]
        with pytest.raises(pg.GradError, match="^forward anomaly: the value of log"):
            pg.vmap(lambda v: pg.log(v - 1.0))(x)


def test_complex_examples(device):
    if "complex64" not in pg.__array_namespace_info__().dtypes(device=device):
        pytest.skip("not run: needs complex numbers on the device")
    z = pg.asarray([[1 + 2j, 3 - 1j], [0.5j, 2 + 0j]], dtype="complex64")

    def f(v):
        return pg.sum(pg.abs(pg.exp(v) * v) ** 2)

    np.testing.assert_allclose(pg.vmap(lambda v: v * v, 1, 1)(z).numpy(), z.numpy() ** 2, rtol=1e-5, atol=1e-6)
    each_one = pg.vmap(pg.grad(f))(z).numpy()
    whole = pg.grad(lambda v: pg.sum(pg.vmap(f)(v)))(z).numpy()
    np.testing.assert_allclose(each_one, pg.grad(f)(z).numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(whole, each_one, rtol=1e-4, atol=1e-5)
