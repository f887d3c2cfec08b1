"""The derivatives of every op that takes complex numbers: differences, reverse and forward mode against each other.

Here: tests derived from the table, in complex128, and the convention of gradients by hand.
Not here: values (`test_complex.py`), real derivatives (`test_gradients.py`).
"""

import zlib

import numpy as np
import pytest

import polygrad as pg
from polygrad.array.tree import flatten
from polygrad.ops.table import TABLE
from polygrad.testing.draw import Draw

CALLS = {"getitem": lambda x, key: x[key], "astype": None}
# Their values move in steps, or have no slope that differences could show.
STEPS = {"round", "nextafter"}
NAMESPACES = [pg, *[space for name in ("linalg", "fft") if (space := getattr(pg, name, None)) is not None]]


def function_of(op):
    found = [getattr(space, op.name) for space in NAMESPACES if callable(getattr(space, op.name, None))]
    return CALLS.get(op.name) or (found[0] if found else None)


# Vectors of decompositions are free in their phase, eigenvalues in their order: their own tests check them.
OWN = {"eigh", "eig", "eigvals", "svd", "qr", "matrix_rank"}
OPS = [
    op
    for op in TABLE.values()
    if op.samples is not None
    and op.differentiable
    and "complex" in op.dtypes.split()
    and op.name not in STEPS | OWN
    and function_of(op)
]


def with_arrays(value):
    if isinstance(value, np.ndarray):
        return pg.asarray(value, device="cpu:0")
    if isinstance(value, (list, tuple)):
        return type(value)(with_arrays(v) for v in value)
    return value


def calls(op):
    """Return (function, inputs) for each sample of an op that holds complex numbers."""
    draw = Draw(np.random.default_rng(zlib.crc32(op.name.encode())), pg.complex128)
    call = function_of(op)
    for args, keywords in op.samples(draw):
        if op.name == "where":
            args = (np.asarray(args[0].real > 0), *args[1:])
        if keywords.get("dtype") is not None:
            continue  # the result is not of the operand's dtype
        arrays, rebuild = flatten(with_arrays(list(args)))
        if any(a.dtype == pg.complex128 and a.size for a in arrays):
            yield lambda *xs, r=rebuild, k=keywords: call(*r(list(xs)), **k), arrays


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_first_derivatives(op):
    with pg.device("cpu:0"):
        for k, (function, inputs) in enumerate(calls(op)):
            pg.testing.gradcheck(function, *inputs, seed=k)


@pytest.mark.parametrize("op", [op for op in OPS if op.second], ids=lambda op: op.name)
def test_second_derivatives(op):
    with pg.device("cpu:0"):
        for k, (function, inputs) in enumerate(list(calls(op))[:2]):
            pg.testing.gradgradcheck(function, *inputs, seed=k, tol=1e-5)


# Operands of two kinds, which samples do not mix


MIXED = {
    "add": lambda x, z: x + z,
    "subtract": lambda x, z: x - z,
    "subtracted": lambda x, z: z - x,
    "multiply": lambda x, z: x * z,
    "divide": lambda x, z: x / z,
    "divided": lambda x, z: z / x,
    "power": lambda x, z: x**z,
    "raised": lambda x, z: z**x,
    "where": lambda x, z: pg.where(x > 1.2, x, z),
    "scalars": lambda x, z: (2j - z) * (1j * x) / (1 + 2j) + 2.0 / z + 2.0**z,
    "matmul": lambda x, z: pg.reshape(x, (1, 3)) @ pg.reshape(z, (3, 1)),
    "vecdot": lambda x, z: pg.vecdot(z, x),
    "concat": lambda x, z: pg.concat([x, z]),
    "parts": lambda x, z: [pg.real(z) * pg.imag(z), pg.conj(z) * x, pg.abs(z), z.astype("complex128") + x],
    "cast": lambda x, z: x.astype("complex128") * z,
}


@pytest.mark.parametrize("name", MIXED)
def test_real_and_complex_operands_together(name):
    with pg.device("cpu:0"):
        x, z = pg.asarray([0.7, 1.1, 1.5]), pg.asarray([1 + 2j, 3 - 1j, -0.5j])
        pg.testing.gradcheck(MIXED[name], x, z)
        pg.testing.gradgradcheck(MIXED[name], x, z, tol=1e-5)


def test_writing_differentiates():
    def function(x, z):
        y = z * 1.0
        y[0] = x[0] * 2j
        y[1:] *= x[1:]
        return y

    with pg.device("cpu:0"):
        pg.testing.gradcheck(function, pg.asarray([0.7, 1.1, 1.5]), pg.asarray([1 + 2j, 3 - 1j, -0.5j]))


# The convention, by hand


def test_the_gradient_is_dl_da_plus_i_dl_db(device):
    z = pg.asarray([1 + 2j, 3 - 1j], dtype="complex64")
    got = pg.grad(lambda v: pg.sum(pg.real(v) ** 2 * 3.0 + pg.imag(v)))(z)
    assert got.dtype is pg.complex64
    assert got.tolist() == [6 + 1j, 18 + 1j]
    assert pg.grad(lambda v: pg.sum(pg.abs(v) ** 2))(z).tolist() == pytest.approx([2 + 4j, 6 - 2j])


def test_backward_puts_complex_gradients_into_leaves(device):
    z = pg.asarray([1 + 2j, 3 - 1j], dtype="complex64").requires_grad_()
    x = pg.asarray([2.0, 5.0], dtype="float32").requires_grad_()
    assert z.requires_grad
    assert z.is_leaf
    y = z * x
    assert not y.is_leaf
    pg.sum(pg.real(y * pg.conj(y))).backward()
    assert z.grad.tolist() == pytest.approx([8 + 16j, 150 - 50j])
    assert x.grad.tolist() == pytest.approx([20, 100])
    pg.sum(pg.imag(z)).backward()  # of one part alone
    assert z.grad.tolist() == pytest.approx([8 + 17j, 150 - 49j])


def test_a_complex_value_needs_a_seed(device):
    z = pg.asarray(1 + 2j, dtype="complex64").requires_grad_()
    with pytest.raises(
        pg.GradError, match=r"from a value of complex64 without a seed: pass gradient=..., or go backward"
    ):
        (z * z).backward()
    (z * z).backward(pg.asarray(1j, dtype="complex64"))
    assert z.grad.item() == 1j * (2 * (1 + 2j)).conjugate()


def test_a_tape_watches_complex_arrays(device):
    z = pg.asarray([1 + 2j, 3 - 1j], dtype="complex64")
    with pg.Tape() as tape:
        tape.watch(z)
        y = pg.sum(pg.abs(z * z))
    assert tape.gradient(y, z).tolist() == pytest.approx([2 + 4j, 6 - 2j])
    assert not z.requires_grad


def test_gradients_are_those_of_holomorphic_functions_conjugated(device):
    z = pg.asarray([0.3 + 0.2j], dtype="complex64")
    value, pull = pg.vjp(pg.exp, z)
    _, push = pg.jvp(pg.exp, (z,), (pg.asarray([1 + 0j], dtype="complex64"),))
    np.testing.assert_allclose(push.numpy(), value.numpy(), rtol=1e-6)
    np.testing.assert_allclose(pull(pg.asarray([1 + 0j]))[0].numpy(), value.numpy().conj(), rtol=1e-6)


def test_checkpoint_and_written_derivatives(device):
    z = pg.asarray([0.3 + 0.2j, 1j], dtype="complex64")

    @pg.custom_vjp
    def sine(v):
        return pg.sin(v)

    sine.defvjp(lambda v: (pg.sin(v), v), lambda v, g: (g * pg.conj(pg.cos(v)),))

    def plain(v):
        return pg.sum(pg.abs(pg.sin(v) * v))

    want = pg.grad(plain)(z).numpy()
    np.testing.assert_allclose(pg.grad(pg.checkpoint(plain))(z).numpy(), want, rtol=1e-5)
    np.testing.assert_allclose(pg.grad(lambda v: pg.sum(pg.abs(sine(v) * v)))(z).numpy(), want, rtol=1e-5)


def test_per_example_gradients(device):
    z = pg.asarray([0.3 + 0.2j, 1j, 2 - 1j], dtype="complex64")
    one = pg.vmap(pg.grad(lambda v: pg.abs(pg.tanh(v) / (v + 2.0))))(z)
    all_at_once = pg.grad(lambda v: pg.sum(pg.abs(pg.tanh(v) / (v + 2.0))))(z)
    np.testing.assert_allclose(one.numpy(), all_at_once.numpy(), rtol=1e-5)
    outside = pg.grad(lambda v: pg.sum(pg.abs(pg.vmap(lambda u: pg.tanh(u) / (u + 2.0))(v))))(z)
    np.testing.assert_allclose(outside.numpy(), all_at_once.numpy(), rtol=1e-5)


@pytest.mark.parametrize(
    ("function", "z", "want"),
    [
        (pg.abs, 0j, 0j),
        (lambda v: pg.real(pg.sign(v)), 0j, 0j),
        (lambda v: pg.real(v * v), 0j, 0j),
        (lambda v: 0.0 * pg.real(pg.sqrt(v)), 0j, 0j),
        (lambda v: 0.0 * pg.real(pg.log(v)), 0j, 0j),
        (lambda v: pg.real(pg.where(pg.abs(v) > 0.0, pg.log(v), v)), 0j, 1 + 0j),
        (lambda v: pg.real(v**2), 0j, 0j),
        (lambda v: pg.real(pg.prod(pg.stack([v, v * 0.0, v + 1.0]))), 1j, 0j),
    ],
)
def test_special_points(function, z, want):
    with pg.device("cpu:0"):
        assert pg.grad(function)(pg.asarray(z)).item() == want


def test_jacobians_are_of_real_functions():
    with pytest.raises(
        pg.GradError, match="cannot take the Jacobian by complex128 inputs: they must have a float dtype"
    ):
        pg.jacobian(pg.real)(pg.asarray([1j]))
    with pytest.raises(pg.GradError, match="cannot take the Jacobian of complex128 outputs"):
        pg.jacobian(lambda x: x * 1j)(pg.asarray([1.0]))


def test_gradcheck_sees_a_wrong_complex_rule():
    @pg.custom_vjp
    def double(z):
        return z * 2.0

    double.defvjp(lambda z: (z * 2.0, None), lambda _, g: (pg.conj(g) * 2.0,))
    with pytest.raises(AssertionError, match="reverse mode gives"):
        pg.testing.gradcheck(double, pg.asarray([1j, 2.0]), forward=False)
    with pytest.raises(pg.DTypeError, match="gradcheck needs complex128, got complex64"):
        pg.testing.gradcheck(double, pg.asarray([1j], dtype="complex64"))


STANDARD = {
    "abs", "acos", "acosh", "add", "asin", "asinh", "atan", "atanh", "conj", "cos", "cosh", "divide", "exp", "expm1",
    "imag", "log", "log1p", "log2", "log10", "multiply", "negative", "positive", "pow", "real", "reciprocal", "sign",
    "sin", "sinh", "square", "sqrt", "subtract", "tan", "tanh", "where", "sum", "prod", "mean", "cumulative_sum",
    "cumulative_prod", "diff", "matmul", "tensordot", "vecdot", "take", "take_along_axis", "concat", "stack", "reshape",
    "permute_dims", "roll", "repeat", "tile", "flip", "tril", "triu", "broadcast_to", "expand_dims", "squeeze",
}  # fmt: skip


def test_the_standards_functions_of_complex_numbers_are_among_them():
    assert {op.name for op in OPS} >= STANDARD
