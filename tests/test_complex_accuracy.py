"""How exact functions of complex numbers are, in units of the last place of the result's length, against mpmath.

Here: random numbers of all sizes, near 1, near branch points and near where terms cancel.
Not here: special values (`test_complex.py`).

The error of a result w is |w - exact| / (eps * |exact|), with eps the spacing of floats at 1. A part that is much
smaller than the other is only as exact as that allows where a formula cancels in it alone (expm1, square).
"""

import mpmath
import numpy as np
import pytest

import polygrad as pg

CEILING = 4.0  # ULP; the worst that was seen on the CPU is 2.4
FEW = 20  # numbers of a kind; mpmath takes its time

EXACT = {
    "exp": mpmath.exp,
    "expm1": lambda z: mpmath.exp(z) - 1,
    "log": mpmath.log,
    "log2": lambda z: mpmath.log(z) / mpmath.log(2),
    "log10": lambda z: mpmath.log(z) / mpmath.log(10),
    "log1p": lambda z: mpmath.log(1 + z),
    "sqrt": mpmath.sqrt,
    "square": lambda z: z * z,
    "reciprocal": lambda z: 1 / z,
    "abs": abs,
    "sign": lambda z: z / abs(z),
    **{
        name: getattr(mpmath, name)
        for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh", "asin", "acos", "atan", "asinh", "acosh", "atanh")
    },
}
PERIODIC = {"exp", "expm1", "sin", "cos", "tan", "sinh", "cosh", "tanh"}


def numbers(rng, dtype, wide):
    """Return numbers of common sizes, of all sizes, near the unit circle, and near 1, -1, i and -i."""

    def sizes(low, high):
        parts = 10.0 ** rng.uniform(low, high, (2, FEW)) * rng.choice([-1, 1], (2, FEW))
        return parts[0] + 1j * parts[1]

    def turned(length):
        return length * np.exp(1j * rng.uniform(-np.pi, np.pi, FEW))

    most = 25 if wide else 1.5
    near = [c + turned(10.0 ** rng.uniform(-7, -0.5, FEW)) for c in (1, -1, 1j, -1j)]
    circle = turned(1 + 10.0 ** rng.uniform(-8, -1, FEW) * rng.choice([-1, 1], FEW))
    return np.concatenate([sizes(-6, 1.5), sizes(-most, most), circle, *near]).astype(dtype)


def error(got, want, info):
    """Return the error of a value in ULP, 0 where the exact one is out of range."""
    size = abs(want)
    if not mpmath.mpf(float(info.tiny)) < size < 0.9 * mpmath.mpf(float(info.max)):
        return 0.0
    given = mpmath.mpc(float(np.real(got)), float(np.imag(got)))
    return float(abs(given - want) / size / float(info.eps)) if np.isfinite(got) else np.inf


def exact(value):
    return mpmath.mpc(float(value.real), float(value.imag))


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("name", EXACT)
def test_functions_of_one_number(name, dtype, device):
    if dtype not in pg.__array_namespace_info__().dtypes(device=device):
        pytest.skip(f"not run: needs {dtype} on {device}")
    z = numbers(np.random.default_rng(7), dtype, name not in PERIODIC)
    got = getattr(pg, name)(pg.asarray(z)).numpy()
    info = np.finfo(dtype)
    with mpmath.workprec(450):
        errors = [error(g, EXACT[name](exact(v)), info) for g, v in zip(got, z, strict=True)]
    worst = int(np.argmax(errors))
    assert errors[worst] <= CEILING, (z[worst], got[worst])


def pairs(rng, dtype):
    """Return numbers of all sizes, and others of about the same size."""
    x = numbers(rng, dtype, True)
    ratio = rng.standard_normal(x.shape) + 1j * rng.standard_normal(x.shape)
    return x, (x * ratio).astype(dtype)


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("name", ["multiply", "divide"])
def test_products_and_quotients(name, dtype, device):
    if dtype not in pg.__array_namespace_info__().dtypes(device=device):
        pytest.skip(f"not run: needs {dtype} on {device}")
    x, y = pairs(np.random.default_rng(8), dtype)
    got = getattr(pg, name)(pg.asarray(x), pg.asarray(y)).numpy()
    info = np.finfo(dtype)
    with mpmath.workprec(450):
        op = (lambda a, b: a * b) if name == "multiply" else (lambda a, b: a / b)
        errors = [error(g, op(exact(a), exact(b)), info) for g, a, b in zip(got, x, y, strict=True)]
    assert max(errors) <= CEILING


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_powers_lose_what_their_angle_loses(dtype, device):
    if dtype not in pg.__array_namespace_info__().dtypes(device=device):
        pytest.skip(f"not run: needs {dtype} on {device}")
    rng = np.random.default_rng(9)
    x, y = ((rng.standard_normal(300) * 3 + 1j * rng.standard_normal(300)).astype(dtype) for _ in range(2))
    info = np.finfo(dtype)
    for exponent in (y, y.real):
        got = (pg.asarray(x) ** pg.asarray(exponent)).numpy()
        with mpmath.workprec(400):
            for g, a, b in zip(got, x, exponent, strict=True):
                turned = abs(mpmath.log(exact(a)) * exact(b))
                assert error(g, mpmath.power(exact(a), exact(b)), info) <= CEILING * (1 + float(turned))


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_the_logarithm_keeps_its_real_part_near_the_unit_circle(dtype, device):
    if dtype not in pg.__array_namespace_info__().dtypes(device=device):
        pytest.skip(f"not run: needs {dtype} on {device}")
    rng = np.random.default_rng(10)
    angle, eps = rng.uniform(-np.pi, np.pi, 200), float(np.finfo(dtype).eps)
    z = ((1 + 10.0 ** rng.uniform(-7, -2, 200)) * np.exp(1j * angle)).astype(dtype)
    got = pg.log(pg.asarray(z)).numpy().real
    beside = pg.log1p(pg.asarray(z - 1)).numpy().real
    with mpmath.workprec(200):
        for g, b, v in zip(got, beside, z, strict=True):
            want = mpmath.log(exact(v)).real
            assert abs(float(g) - want) <= CEILING * eps * (abs(want) + eps)
            near = mpmath.log(1 + exact(v - 1)).real
            assert abs(float(b) - near) <= CEILING * eps * (abs(near) + eps)
