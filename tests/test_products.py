"""Matrix products in every layout, and with what follows them.

Here: that operands are read as they lie, without a launch that copies; sums and activations that become part of a
product, against NumPy in float64 and against the product by itself; when they must not.
Not here: the rules of `matmul` for users (`test_linalg.py`), the ops at the waist (the conformance suite).
"""

import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import polygrad as pg
from polygrad.runtime.outlining import launches
from polygrad.schedule import Library

plan = sys.modules["polygrad.schedule.plan"]  # the package has a function of that name
LAYOUTS = {
    "A B": lambda a, b: (a((5, 7)), b((7, 4))),
    "A' B": lambda a, b: (a((7, 5)).T, b((7, 4))),
    "A B'": lambda a, b: (a((5, 7)), b((4, 7)).T),
    "A' B'": lambda a, b: (a((7, 5)).T, b((4, 7)).T),
    "rows of a longer array": lambda a, b: (a((9, 7))[2:7], b((7, 4))),
    "columns of a wider array": lambda a, b: (a((5, 12))[:, 3:10], b((7, 9))[:, 2:6]),
    "a stack": lambda a, b: (a((3, 5, 7)), b((3, 7, 4))),
    "a stack, both transposed": lambda a, b: (a((3, 7, 5)).mT, b((3, 4, 7)).mT),
    "one matrix for a stack": lambda a, b: (a((3, 5, 7)), b((7, 4))),
    "one matrix before a stack": lambda a, b: (a((5, 7)), b((3, 7, 4))),
    "heads split from features": lambda a, b: (
        pg.permute_dims(pg.reshape(a((2, 5, 3 * 7)), (2, 5, 3, 7)), (0, 2, 1, 3)),
        pg.permute_dims(pg.reshape(b((2, 4, 3 * 7)), (2, 4, 3, 7)), (0, 2, 3, 1)),
    ),
    "a stack broadcast along both axes": lambda a, b: (a((2, 1, 5, 7)), b((1, 3, 7, 4))),
    "every other matrix": lambda a, b: (a((6, 5, 7))[::2], b((6, 7, 4))[1::2]),
}


@pytest.fixture
def quarters(rng):
    """A function that makes arrays of quarters: their products and sums are exact in float32."""
    return lambda shape: pg.realize(pg.asarray(rng.integers(-8, 9, shape) / 4, dtype="float32"))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_product_is_one_launch_in_every_layout(device, quarters, layout):
    a, b = LAYOUTS[layout](quarters, quarters)
    want = np.matmul(a.numpy(), b.numpy())
    with pg.launch_counter() as count:
        got = pg.realize(a @ b)
    assert (count.ops, count.fused) == (1, 0)
    assert np.array_equal(got.numpy(), want)


# ---- what follows a product --------------------------------------------------------------------------------------

ENDINGS = {
    "a bias": lambda x, w, v, row, whole: x @ w + row,
    "a bias before it": lambda x, w, v, row, whole: row + x @ w,
    "a bias, then relu": lambda x, w, v, row, whole: pg.nn.relu(x @ w + row),
    "an array of its size": lambda x, w, v, row, whole: x @ w + whole,
    "an array, then relu": lambda x, w, v, row, whole: pg.nn.relu(whole + x @ w),
    "another product": lambda x, w, v, row, whole: x @ w + x @ v,
    "three products": lambda x, w, v, row, whole: x @ w + x @ v + (2 * x) @ w,
    "a linear layer": lambda x, w, v, row, whole: pg.nn.functional.linear(x, w.mT, row),
    "a stack with a bias": lambda x, w, v, row, whole: pg.expand_dims(x, axis=0) @ pg.stack([w, v]) + row,
    "a view of the product": lambda x, w, v, row, whole: pg.reshape(x @ w, (1, *whole.shape)) + row,
}
EPS = {"float32": 2.0**-23, "float64": 2.0**-52, "float16": 2.0**-10, "bfloat16": 2.0**-7}
SHAPE = st.tuples(st.sampled_from([1, 3, 33, 128]), st.sampled_from([1, 7, 64, 300]), st.sampled_from([1, 5, 64, 130]))


def operands(seed, shape, dtype):
    """Return x, two matrices for its right, a row, and an array of the products' size."""
    rng = np.random.default_rng(seed)
    m, k, n = shape
    made = [pg.asarray(rng.normal(size=s), dtype=dtype) for s in ((m, k), (k, n), (k, n), (n,), (m, n))]
    return pg.realize(made)


def apart(function, *arrays):
    """Return what *function* gives with every product in memory by itself."""
    with pytest.MonkeyPatch.context() as patch, pg.eager():
        patch.setattr(plan, "joined", lambda steps, *_: steps)
        return function(*arrays)


def launched(function, *arrays):
    """Return the names of the ops that *function* takes, and how many fused kernels."""
    found = [launch.step for launch in launches([function(*arrays)._node])]
    return sorted(s.op for s in found if isinstance(s, Library)), sum(not isinstance(s, Library) for s in found)


@pytest.mark.parametrize("ending", ENDINGS)
@settings(max_examples=12, deadline=None)
@given(SHAPE, st.sampled_from(sorted(EPS)), st.integers(0, 1 << 30))
def test_a_product_and_its_ending_equal_the_two_apart(ending, shape, dtype, seed):
    with pg.device("cpu:0"):
        arrays = operands(seed, shape, dtype)
        got, same = ENDINGS[ending](*arrays), apart(ENDINGS[ending], *arrays)
        wide = ENDINGS[ending](*[pg.astype(a, pg.float64) for a in arrays])
    want = wide.numpy()
    bound = 8 * EPS[dtype] * np.sqrt(shape[1] + 1) * max(1.0, float(np.abs(want).max()))
    for found in (got, same):
        assert found.dtype == arrays[0].dtype
        assert np.abs(found.numpy().astype(np.float64) - want).max() <= bound


@pytest.mark.parametrize(
    ("ending", "ops"),
    [
        ("a bias", ["matmul_add"]),
        ("a bias before it", ["matmul_add"]),
        ("a bias, then relu", ["matmul_add"]),
        ("an array, then relu", ["matmul_add"]),
        ("another product", ["matmul", "matmul_add"]),
        ("a linear layer", ["matmul_add"]),
        ("a view of the product", ["matmul_add"]),
    ],
)
def test_an_ending_takes_no_launch_of_its_own(host, ending, ops):
    assert launched(ENDINGS[ending], *operands(1, (8, 16, 4), "float32")) == (ops, 0)


def squared(product, row):
    return pg.sum((product + row) * product)


def twice(product):
    return product + product


APART = {
    "another reader": lambda x, w, v, row, whole: squared(x @ w, row),
    "a sum that goes on": lambda x, w, v, row, whole: pg.sum(x @ w + whole, axis=-1),
    "a column": lambda x, w, v, row, whole: x @ w + whole[:, :1],
    "an array in another order": lambda x, w, v, row, whole: x @ w[:, :3] + pg.flip(whole[:, :3], axis=0),
    "another dtype": lambda x, w, v, row, whole: x @ w + pg.astype(row, pg.float64),
    "a difference": lambda x, w, v, row, whole: x @ w - row,
    "a product with itself": lambda x, w, v, row, whole: twice(x @ w),
    "part of the product": lambda x, w, v, row, whole: (x @ w)[:4] + row,
}


@pytest.mark.parametrize("case", APART)
def test_what_a_product_cannot_end_with_stays_apart(host, case):
    arrays = operands(2, (8, 16, 4), "float32")
    ops, _ = launched(APART[case], *arrays)
    assert "matmul_add" not in ops
    wide = [pg.astype(a, pg.float64) for a in arrays]
    np.testing.assert_allclose(APART[case](*arrays).numpy(), APART[case](*wide).numpy(), rtol=1e-4, atol=1e-4)


def test_a_product_that_somebody_holds_is_computed(host):
    x, w, _, row, _ = operands(3, (8, 16, 4), "float32")
    product = x @ w
    total = product + row
    pg.realize(product, total)
    np.testing.assert_array_equal(total.numpy(), product.numpy() + row.numpy())


@pytest.mark.parametrize("row", [True, False])
def test_special_values_of_the_addend_arrive(device, row):
    addend = np.array([[np.nan, np.inf, -np.inf, -0.0]], np.float32)
    addend = addend[0] if row else np.repeat(addend, 3, axis=0)
    x, w = pg.zeros((3, 5), dtype=pg.float32), pg.zeros((5, 4), dtype=pg.float32)
    c = pg.asarray(addend)
    pg.realize(x, w, c)
    np.testing.assert_array_equal((x @ w + c).numpy(), np.broadcast_to(addend + 0, (3, 4)))
    np.testing.assert_array_equal(pg.nn.relu(x @ w + c).numpy(), np.broadcast_to([np.nan, np.inf, 0, 0], (3, 4)))


def test_gradients_are_added_to_earlier_ones_by_the_product(device):
    x, w, *_ = operands(4, (64, 16, 4), "float32")
    w.requires_grad = True
    want = 0
    for factor in (1.0, 3.0):
        pg.sum(pg.tanh(x @ w) * factor).backward()
        pg.realize(w.grad)
        slope = 1 - np.tanh(x.numpy().astype(np.float64) @ w.detach().numpy()) ** 2
        want = want + x.numpy().T.astype(np.float64) @ (slope * factor)
        np.testing.assert_allclose(w.grad.numpy(), want, rtol=1e-4, atol=1e-4)


def test_a_layer_keeps_its_activation_and_not_what_it_was_made_of(host):
    """The backward pass of a linear layer and relu reads the result, so the product without them is never stored."""
    x, w, v, row, _ = operands(5, (64, 32, 128), "float32")
    w.requires_grad = row.requires_grad = True
    hidden = pg.nn.relu(x @ w + row)
    loss = pg.sum((hidden @ v.mT) ** 2)
    loss.backward()
    found = [launch.step for launch in launches([loss._node, w.grad._node, row.grad._node])]
    ops = [(s.op, s.outs[0].shape) for s in found if isinstance(s, Library)]
    assert ("matmul_add", (64, 128)) in ops
    assert ops.count(("matmul", (64, 128))) == 1  # the gradient that arrives
    wide = x.numpy().astype(np.float64)
    layer = np.maximum(wide @ w.detach().numpy() + row.detach().numpy(), 0)
    slope = (layer > 0) * (2 * layer @ v.numpy().T @ v.numpy())
    np.testing.assert_allclose(w.grad.numpy(), wide.T @ slope, rtol=1e-4, atol=1)
    np.testing.assert_allclose(row.grad.numpy(), slope.sum(0), rtol=1e-4, atol=1)


def test_a_compiled_step_ends_its_products_too(device):
    pg.random.seed(1)
    net = pg.nn.Sequential(pg.nn.Linear(6, 9), pg.nn.ReLU(), pg.nn.Linear(9, 3))
    optimiser = pg.optim.SGD(net, lr=0.1)
    data = pg.realize(pg.random.normal((16, 6)), pg.random.normal((16, 3)))

    def step():
        loss = pg.nn.mse_loss(net(data[0]), data[1])
        loss.backward()
        optimiser.step(also=loss)
        optimiser.zero_grad()
        return loss.detach()

    plain = [float(step()) for _ in range(3)]
    pg.random.seed(1)
    net = pg.nn.Sequential(pg.nn.Linear(6, 9), pg.nn.ReLU(), pg.nn.Linear(9, 3))
    optimiser = pg.optim.SGD(net, lr=0.1)
    data = pg.realize(pg.random.normal((16, 6)), pg.random.normal((16, 3)))
    compiled = pg.compile(step)
    assert [float(compiled()) for _ in range(3)] == plain


@pytest.fixture
def tuned():
    pg.set_matmul_tuning()
    yield
    pg.set_matmul_tuning(False)


def test_tuned_products_are_products(device, tuned):
    x, w, v, row, whole = operands(6, (70, 40, 36), "float32")
    for found in (x @ w, x @ w + row, pg.nn.relu(x @ w + whole)):
        again = found.numpy()
        assert again.shape == (70, 36)
    np.testing.assert_allclose((x @ w + x @ v).numpy(), x.numpy() @ (w.numpy() + v.numpy()), rtol=1e-4, atol=1e-4)
