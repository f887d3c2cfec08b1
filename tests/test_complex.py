"""Complex arrays: dtypes, making them, what goes in and out, arithmetic beside reals, special values, what is refused.

Here: what users see of complex numbers. Not here: accuracy (`test_complex_accuracy.py`), derivatives
(`test_complex_gradients.py`), the samples of each op (`test_ops_reference.py`, `test_ops_on_devices.py`).
"""

import copy
import math
import pickle

import numpy as np
import pytest

import polygrad as pg

Z = [1 + 2j, 3 - 1j, -0.5j]


@pytest.fixture
def both(device):
    """Return complex arrays of the dtypes that the device has."""
    names = [d for d in ("complex64", "complex128") if d in pg.__array_namespace_info__().dtypes(device=device)]
    return [pg.asarray(Z, dtype=name) for name in names]


# Dtypes


@pytest.mark.parametrize(
    ("operands", "want"),
    [
        ((pg.float32, pg.complex64), pg.complex64),
        ((pg.float64, pg.complex64), pg.complex128),
        ((pg.bfloat16, pg.complex64), pg.complex64),
        ((pg.complex64, pg.complex128), pg.complex128),
        ((pg.int64, pg.complex64), pg.complex64),
        ((pg.bool, pg.complex128), pg.complex128),
        ((pg.float32, 1j), pg.complex64),
        ((pg.float16, 1j), pg.complex64),
        ((pg.float64, 1j), pg.complex128),
        ((pg.int8, 1j), pg.complex128),
        ((pg.complex64, 2.5), pg.complex64),
        ((pg.complex64, 1j), pg.complex64),
    ],
)
def test_promotion(operands, want):
    assert pg.result_type(*operands) is want


def test_kinds_and_limits():
    assert pg.isdtype(pg.complex64, "complex floating")
    assert pg.isdtype(pg.complex128, "numeric")
    assert not pg.isdtype(pg.complex64, "real floating")
    assert pg.finfo(pg.complex64).bits == 32
    assert pg.finfo(pg.complex128).dtype is pg.float64
    assert pg.can_cast(pg.float32, pg.complex64)
    assert not pg.can_cast(pg.complex64, pg.float64)
    assert set(pg.__array_namespace_info__().dtypes(kind="complex floating")) >= {"complex64"}


def test_the_default_follows_the_device(device):
    wide = "float64" in pg.__array_namespace_info__().dtypes(device=device)
    want = pg.complex128 if wide else pg.complex64
    assert pg.__array_namespace_info__().default_dtypes(device=device)["complex floating"] is want
    assert pg.asarray([1j]).dtype is want
    assert pg.full(2, 1j).dtype is want
    assert pg.linspace(0.0, 1j, 3).dtype is want


# Making them


def test_creation(device):
    assert pg.asarray([1, 2.5, 1j]).tolist() == [1, 2.5, 1j]
    assert pg.full((2,), 1 + 1j, dtype="complex64").tolist() == [1 + 1j] * 2
    assert pg.zeros(2, dtype="complex64").tolist() == [0j, 0j]
    assert pg.eye(2, dtype="complex64").tolist() == [[1, 0], [0, 1]]
    np.testing.assert_allclose(pg.linspace(0, 2 + 4j, 3, dtype="complex64").numpy(), [0, 1 + 2j, 2 + 4j])
    assert pg.ones_like(pg.asarray([1j], dtype="complex64")).dtype is pg.complex64
    assert pg.full_like(pg.asarray([1j], dtype="complex64"), 2.5).tolist() == [2.5 + 0j]


def test_conversion(device, both):
    for z in both:
        assert z.astype("complex64").tolist() == Z
        assert z.astype("bool").tolist() == [True] * 3
        assert pg.asarray([1, 0]).astype(z.dtype).tolist() == [1 + 0j, 0j]
        assert pg.asarray([1.5, -0.0], dtype="float32").astype(z.dtype).numpy().imag.tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    "make",
    [
        lambda z: z.astype("float32"),
        lambda z: pg.asarray(Z, dtype="float32"),
        lambda z: pg.asarray(np.asarray(Z), dtype="int32"),
        lambda z: pg.full(2, 1j, dtype="float32"),
        lambda z: pg.full_like(pg.asarray([1.0], dtype="float32"), 1j),
    ],
)
def test_nothing_drops_an_imaginary_part(device, make):
    with pytest.raises(pg.DTypeError, match=r"cannot convert .*: the imaginary part would be lost; take "):
        make(pg.asarray(Z, dtype="complex64"))


# In and out


def test_values_come_back(device, both):
    for z in both:
        value = z.numpy()
        assert value.dtype == z.dtype
        assert value.tolist() == Z
        assert z.tolist() == Z
        assert z[1].item() == 3 - 1j
        assert complex(z[1]) == 3 - 1j
        assert pickle.loads(pickle.dumps(z)).tolist() == Z
        assert copy.deepcopy(z).dtype is z.dtype
        assert str(z.dtype) in repr(z)
        assert z.nbytes == 3 * z.dtype.itemsize
        assert pg.asarray(value[::-1]).tolist() == Z[::-1]


def test_a_real_zero_d_array_is_a_complex_number():
    assert complex(pg.asarray(2.5)) == 2.5 + 0j


@pytest.mark.parametrize("number", [float, int])
def test_a_complex_array_is_no_real_number(number):
    with pytest.raises(TypeError, match=r"takes a real array, this one has complex128; use complex\(\) or pg.real"):
        number(pg.asarray(1j))


def test_safetensors_hold_complex64(device, tmp_path):
    path = tmp_path / "z.safetensors"
    pg.io.save_safetensors({"z": pg.asarray([Z, Z], dtype="complex64")}, path)
    assert pg.io.load_safetensors(path)["z"].tolist() == [Z, Z]
    with (
        pg.device("cpu:0"),
        pytest.raises(pg.DTypeError, match="cannot save z: safetensors files hold no complex128; conv"),
    ):
        pg.io.save_safetensors({"z": pg.asarray(Z)}, path)


def test_dlpack_both_ways():
    with pg.device("cpu:0"):
        z = pg.asarray(Z)
        assert np.from_dlpack(z).tolist() == Z
        assert (np.from_dlpack(z[::-1]) * 2).tolist() == [2 * v for v in Z[::-1]]
        assert z.tolist() == Z
        assert pg.from_dlpack(np.asarray(Z)).tolist() == Z
        with pytest.raises(ValueError, match="cannot make an array of complex128 without a copy"):
            pg.asarray(np.asarray(Z), copy=False)


def test_arrays_move_between_devices(device):
    z = pg.asarray(Z, dtype="complex64")
    there = (z * 2j).to_device("cpu:0")
    assert there.device == "cpu:0"
    assert there.tolist() == [2j * v for v in Z]
    assert there.to_device(device).device == device


# Arithmetic


def test_operators_take_python_numbers_and_reals(device, both):
    for z in both:
        x = pg.asarray([1, 2, 3])
        want = np.asarray(Z)
        for got, value in (
            (z + 1, want + 1), (1j - z, 1j - want), (z * 2.5, want * 2.5), (2 / z, 2 / want), (z / 2j, want / 2j),
            (z * x, want * [1, 2, 3]), (x - z, [1, 2, 3] - want), (z**2, want**2), (z**-1, 1 / want),
            (z**0.5, want**0.5),
            (z**x, want ** [1, 2, 3]), (2**z, 2**want), (-z, -want), (+z, want), (abs(z), np.abs(want)),
            (np.float32(2) * z, 2 * want), (z + np.asarray([1j, 2, 3], np.complex64), want + np.asarray([1j, 2, 3])),
            (pg.conj(z), want.conj()), (z.real, want.real), (z.imag, want.imag), (pg.square(z), want**2),
        ):  # fmt: skip
            assert got.dtype in (z.dtype, z.real.dtype)
            np.testing.assert_allclose(got.numpy(), value, rtol=1e-6, atol=1e-7)


def test_comparisons_look_at_both_parts(device, both):
    for z in both:
        assert (z == 1 + 2j).tolist() == [True, False, False]
        assert (z != 1).tolist() == [True] * 3
        assert pg.all(z).item()
        assert pg.count_nonzero(pg.asarray([0j, 1j, 1 + 0j, 0j], dtype=z.dtype)).item() == 2
        assert not pg.any(z * 0).item()


def test_a_real_operand_stays_real(device):
    infinite = pg.asarray(math.inf, dtype="float32")
    assert (infinite * pg.asarray(1 + 2j, dtype="complex64")).item() == complex(math.inf, math.inf)
    assert (pg.asarray(complex(math.inf, 1), dtype="complex64") * 2).item() == complex(math.inf, 2)
    lost = pg.where(pg.asarray([True, False]), pg.asarray([1.0, 2.0], dtype="float32"), 3j)
    assert lost.tolist() == [1 + 0j, 3j]


def test_movement_and_reductions(device, both):
    want = np.asarray([Z, Z[::-1]])
    for z in both:
        m = pg.stack([z, pg.flip(z)])
        close = {"rtol": 1e-6, "atol": 1e-6}
        np.testing.assert_allclose((m @ m.mT).numpy(), want @ want.T, **close)
        np.testing.assert_allclose((m @ pg.asarray([1.0, 2, 3], dtype="float32")).numpy(), want @ [1, 2, 3], **close)
        np.testing.assert_allclose(pg.vecdot(z, m).numpy(), (np.conj(Z) * want).sum(1), **close)
        np.testing.assert_allclose(pg.prod(m, axis=1).numpy(), want.prod(1), **close)
        np.testing.assert_allclose(pg.mean(m, axis=0, keepdims=True).numpy(), want.mean(0, keepdims=True), **close)
        np.testing.assert_allclose(pg.pad(z, 1, constant_values=2j).numpy(), np.pad(Z, 1, constant_values=2j), **close)
        np.testing.assert_allclose(pg.take(z, pg.asarray([2, -2])).numpy(), np.take(Z, [2, -2]), **close)
        assert pg.sum(pg.zeros((0,), dtype=z.dtype)).item() == 0
        assert pg.sum(pg.asarray([1, 2]), dtype=z.dtype).item() == 3 + 0j


def test_writing(device, both):
    for z in both:
        y = pg.asarray(Z, dtype=z.dtype)
        y[1] = 5 - 1j
        y[0:2] *= 2
        y[2] = 1.5
        assert y.tolist() == [2 + 4j, 10 - 2j, 1.5]


def test_one_kernel_makes_both_parts():
    with pg.device("cpu:0"):
        z, w = pg.asarray(Z), pg.asarray(Z[::-1])
        pg.realize(z, w)
        with pg.launch_counter() as count:
            pg.realize(pg.exp(z) * w + 1j)
        assert count.total == 1


# Special values: the grid of C99's annex G and of the standard's tables

AXIS = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 1e-5, math.inf, -math.inf, math.nan]
NUMPY = {
    "acos": "arccos",
    "asin": "arcsin",
    "atan": "arctan",
    "acosh": "arccosh",
    "asinh": "arcsinh",
    "atanh": "arctanh",
}
# NumPy calls the C library for these, which keeps to annex G.
GRID = ["exp", "log", "log2", "log10", "sqrt", "sin", "sinh", "acos", "asin", "atan", "acosh", "asinh", "atanh"]
# Here C99 leaves signs of zeros open beside a NaN.
OPEN = ["cos", "cosh", "tan", "tanh"]


def extremes(dtype):
    info = np.finfo(dtype)
    return [float(info.smallest_subnormal), -float(info.tiny), float(info.max), -float(info.max)]


def grid(dtype, more=True):
    axis = AXIS + (extremes(dtype) if more else [])
    return np.asarray([complex(a, b) for a in axis for b in axis]).astype(dtype)


def same(got, want, info, signs):
    step = 2 * float(info.smallest_subnormal)  # what is subnormal may be a step beside
    limit = 8 * info.eps * np.abs(want) + step
    near = (got == want) | (np.isnan(got) & np.isnan(want)) | (np.abs(got - want) <= limit)
    zeros = (got == 0) & (want == 0) & (np.signbit(got) != np.signbit(want)) & signs
    return near & ~zeros


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("name", GRID + OPEN)
def test_special_values_are_those_of_c(name, dtype):
    z = grid(dtype)
    if name in ("tan", "tanh"):  # NumPy's have errors where one part is huge and the other infinite
        z = grid(dtype, more=False)
        z = z[~np.isinf(z.real) & ~np.isinf(z.imag)]
    with np.errstate(all="ignore"), pg.device("cpu:0"):
        want = getattr(np, NUMPY.get(name, name))(z)
        got = getattr(pg, name)(pg.asarray(z)).numpy()
        signs = ~np.isnan(want.real) & ~np.isnan(want.imag) & np.isfinite(z)
        info = np.finfo(dtype)
        right = same(got.real, want.real, info, signs) & same(got.imag, want.imag, info, signs)
    assert right.all(), list(zip(z[~right], got[~right], want[~right], strict=True))


INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    ("name", "z", "want"),
    [
        # where NumPy differs from the standard
        ("expm1", complex(-0.0, 0.0), complex(0.0, 0.0)), ("expm1", complex(INF, 0), complex(INF, 0)),
        ("expm1", complex(INF, INF), complex(INF, NAN)), ("expm1", complex(INF, NAN), complex(INF, NAN)),
        ("expm1", complex(-INF, INF), complex(-1, 0)), ("expm1", complex(-INF, NAN), complex(-1, 0)),
        ("expm1", complex(NAN, 0), complex(NAN, 0)), ("expm1", complex(-INF, 1), complex(-1, 0)),
        ("tanh", complex(INF, 2.5), complex(1, 0)), ("tanh", complex(INF, INF), complex(1, 0)),
        ("tanh", complex(INF, NAN), complex(1, 0)), ("tanh", complex(30.0, INF), complex(NAN, NAN)),
        ("log1p", complex(-1, 0), complex(-INF, 0)), ("log1p", complex(1, INF), complex(INF, math.pi / 2)),
        ("log1p", complex(-INF, 1), complex(INF, math.pi)), ("log1p", complex(INF, NAN), complex(INF, NAN)),
        ("log1p", complex(NAN, INF), complex(INF, NAN)), ("log1p", complex(-INF, INF), complex(INF, 0.75 * math.pi)),
        ("sign", 0j, 0j), ("sign", complex(NAN, 1), complex(NAN, NAN)), ("sign", 3 + 4j, 0.6 + 0.8j),
        ("abs", complex(INF, NAN), INF), ("abs", complex(NAN, -INF), INF), ("abs", complex(NAN, 1), NAN),
        ("abs", 3e300 + 4e300j, 5e300), ("abs", 3e-320 + 4e-320j, 5e-320),
        ("square", complex(INF, 0), complex(INF, NAN)),
        ("isfinite", complex(1, INF), False), ("isinf", complex(NAN, INF), True), ("isnan", complex(1, NAN), True),
        ("round", 2.5 - 3.5j, 2 - 4j),
    ],
)  # fmt: skip
def test_special_values_of_the_standard(name, z, want):
    with pg.device("cpu:0"):
        got = getattr(pg, name)(pg.asarray(z)).item()
    if isinstance(want, complex):
        for g, w in ((got.real, want.real), (got.imag, want.imag)):
            assert (math.isnan(g) and math.isnan(w)) or math.isclose(g, w, rel_tol=1e-15), (got, want)
            if not math.isnan(want.real) and not math.isnan(want.imag):
                assert math.copysign(1, g) == math.copysign(1, w), (got, want)
    else:
        assert (got != got and want != want) or got == pytest.approx(want, rel=1e-15), (got, want)


@pytest.mark.parametrize(
    ("x", "y", "want"),
    [
        (1e308 + 1e308j, 1e308 + 1e308j, 1.0 + 0j),
        (1 + 1j, 1 + 1e307j, 1e-307 - 1e-307j),
        (5e-324 + 5e-324j, 5e-324 + 0j, 1 + 1j),
        (1e-310 + 0j, 1e-310 + 1e-310j, 0.5 - 0.5j),
        (1e308 + 0j, 0.0 + 1e308j, -1j),
        (1.0 + 1j, complex(INF, 1), 0j),
    ],
)
def test_quotients_do_not_overflow_on_the_way(x, y, want):
    with pg.device("cpu:0"):
        got = (pg.asarray(x) / pg.asarray(y)).item()
    assert got == pytest.approx(want, rel=1e-15)


def test_dividing_by_zero_is_infinite():
    with pg.device("cpu:0"):
        got = (pg.asarray([1 + 1j, -1 + 0j]) / pg.asarray(0j)).numpy()
    assert np.isinf(got.real).all()
    assert np.isnan(got.imag[1])


def test_powers_of_zero():
    with pg.device("cpu:0"):
        got = (pg.asarray(0j) ** pg.asarray([0, 1.5, 2j + 1, 0.5])).tolist()
    assert got == [1, 0, 0, 0]


# What has no meaning


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda z: z < z, "cannot compare complex64 and complex64: less takes bool or int or float dtypes; "),
        (lambda z: pg.floor(z), "cannot apply floor to complex64: floor takes "),
        (lambda z: pg.max(z), "cannot apply max to complex64: max takes bool or int or float dtypes; take pg.real"),
        (lambda z: pg.argmax(z), "cannot apply argmax to complex64"),
        (lambda z: pg.sort(z), "cannot apply sort to complex64"),
        (lambda z: pg.argsort(z), "cannot apply argsort to complex64"),
        (lambda z: pg.var(z), "cannot apply var to complex64"),
        (lambda z: z // 2, "cannot apply floor_divide to complex64"),
        (lambda z: z % 2, "cannot apply remainder to complex64"),
        (lambda z: z & z, "cannot and complex64 and complex64: bitwise_and takes bool or int dtypes"),
        (lambda z: pg.maximum(z, 1.0), "cannot take the maximum of complex64 and float32: maximum takes"),
        (lambda z: pg.maximum(pg.real(z), 1j), "cannot take the maximum of float32 and complex64: maximum takes"),
        (lambda z: pg.atan2(z, z), "cannot take the angle of complex64 and complex64: atan2 takes"),
        (lambda z: pg.clip(z, 0, 1), "cannot apply clip to complex64"),
        (lambda z: pg.logaddexp(z, z), "cannot apply logaddexp to complex64 and complex64"),
        (lambda z: pg.arange(3, dtype="complex64"), "cannot count in complex64: ask for an int or float dtype"),
        (lambda z: pg.sum(z, dtype="float32"), "cannot convert complex64 to float32: the imaginary part would be lost"),
    ],
)  # fmt: skip
def test_what_has_no_meaning_is_refused_in_a_sentence(device, call, sentence):
    with pytest.raises(pg.DTypeError) as caught:
        call(pg.asarray(Z, dtype="complex64"))
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)


def test_shapes_are_refused_in_the_users_words(device):
    z = pg.asarray(Z, dtype="complex64")
    with pytest.raises(pg.ShapeError, match=r"cannot divide shapes \[3\] and \[2\]"):
        z / pg.asarray([1j, 2], dtype="complex64")


# Random programs: what is fused must mean what is written

STEPS = {
    "add": lambda xp, a, b: a + b,
    "subtract": lambda xp, a, b: b - a * 0.5,
    "multiply": lambda xp, a, b: a * b * 0.25,
    "divide": lambda xp, a, b: a / (2.0 + xp.abs(b)),
    "conjugate": lambda xp, a, b: xp.conj(a) * 1j,
    "exponential": lambda xp, a, b: xp.exp(a * 0.1),
    "root": lambda xp, a, b: xp.sqrt(a + 3.0),
    "tangent": lambda xp, a, b: xp.tanh(a * 0.3) + b,
    "parts": lambda xp, a, b: xp.real(a) - xp.imag(b) * 1j,
    "sum": lambda xp, a, b: a - xp.mean(b, axis=0, keepdims=True),
    "product": lambda xp, a, b: (a @ xp.permute_dims(b, (1, 0))) * 0.1 + a,
    "select": lambda xp, a, b: xp.where(xp.real(a) > 0.1, a, xp.real(b)),
    "turn": lambda xp, a, b: xp.roll(xp.flip(a, axis=0), 1, axis=1) + b,
    "pick": lambda xp, a, b: xp.take(a, xp.asarray([2, 0, 1]), axis=0) * b,
}


@pytest.mark.parametrize("seed", range(12))
def test_random_programs(seed, device):
    rng = np.random.default_rng(seed)
    dtype = "complex128" if "complex128" in pg.__array_namespace_info__().dtypes(device=device) else "complex64"
    values = [(rng.standard_normal((3, 3)) + 1j * rng.standard_normal((3, 3))).astype(dtype) for _ in range(2)]
    arrays = [pg.asarray(v) for v in values]
    for name in rng.choice(list(STEPS), 12):
        a, b = rng.integers(0, len(values), 2)
        values.append(STEPS[name](np, values[a], values[b]))
        arrays.append(STEPS[name](pg, arrays[a], arrays[b]))
    eps = np.finfo(dtype).eps
    for got, want in zip(arrays[-3:], values[-3:], strict=True):
        np.testing.assert_allclose(got.numpy(), want, rtol=3e3 * eps, atol=3e3 * eps * np.abs(want).max())
