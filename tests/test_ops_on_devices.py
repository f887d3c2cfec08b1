"""Every public op, on its own samples, on every device: value, shape and dtype against its reference in float64.

Here: tests derived from the table, and the accuracy of the elementary functions in units of the last place.
Not here: derivatives (`test_gradients.py`), special points (`test_ops_special_points.py`).
"""

import math
import zlib

import numpy as np
import pytest

import polygrad as pg
from polygrad import dtypes
from polygrad.ops.table import TABLE
from polygrad.testing.draw import Draw

USUAL = {"bool": [pg.bool], "int": [pg.int32], "float": [pg.float32], "complex": [pg.complex64]}
WHOLE = {
    "bool": [],
    "int": [pg.int8, pg.int16, pg.int64, pg.uint8, pg.uint16, pg.uint32, pg.uint64],
    "float": [pg.float64, pg.float16, pg.bfloat16],
    "complex": [pg.complex128],
}
WIDE = {"float": np.float64, "complex": np.complex128}
TOLERANCE = {"float64": 1e-12, "float32": 3e-5, "float16": 6e-3, "bfloat16": 5e-2}
HALF = ("float16", "bfloat16")

# Ops whose samples give keywords or values that a public function does not take as they are.
CALLS = {"getitem": lambda x, key: x[key]}
OPS = [
    op
    for op in TABLE.values()
    if op.samples is not None
    and op.reference is not None
    and (op.name in CALLS or callable(getattr(pg, op.name, None)))
]


def cases(table):
    return [
        pytest.param(op, dtype, id=f"{op.name}-{dtype.name}")
        for op in OPS
        for kind in op.dtypes.split()
        for dtype in table[kind]
    ]


def with_arrays(value):
    """Return a call's argument with NumPy arrays as arrays of the default device."""
    if isinstance(value, np.ndarray):
        return pg.asarray(value)
    if isinstance(value, (list, tuple)):
        return type(value)(with_arrays(v) for v in value)
    return value


def widened(value):
    """Return a call's argument with floats as float64, for the reference."""
    if isinstance(value, np.ndarray) and value.dtype in dtypes.DIFFERENTIABLE:
        return value.astype(WIDE[dtypes.KINDS[value.dtype]])
    if isinstance(value, (list, tuple)):
        return type(value)(widened(v) for v in value)
    return value


def samples(op, dtype):
    draw = Draw(np.random.default_rng(zlib.crc32(op.name.encode())), dtype)
    for args, keywords in op.samples(draw):
        first = (np.asarray(args[0] > 0),) if op.name == "where" else args[:1]
        yield (*first, *args[1:]), keywords


def supported(dtype, device):
    if dtype.name not in pg.__array_namespace_info__().dtypes(device=device):
        pytest.skip(f"not run: needs {dtype.name} on {device}")


def check(got, want, dtype, factor):
    want = np.asarray(want)
    assert got.shape == want.shape
    value = got.numpy()
    assert value.shape == want.shape
    assert value.dtype == got.dtype
    assert dtypes.KINDS[got.dtype] == dtypes.KINDS[dtypes.as_dtype(want.dtype)]
    if got.dtype not in dtypes.DIFFERENTIABLE:
        np.testing.assert_array_equal(value, want.astype(value.dtype))
        return
    assert dtype not in dtypes.DIFFERENTIABLE or dtypes.part(got.dtype) is dtypes.part(dtype)
    limit = TOLERANCE[dtypes.part(got.dtype).name] * factor
    np.testing.assert_allclose(value.astype(WIDE[dtypes.KINDS[got.dtype]]), want, rtol=limit, atol=limit)


def compare(op, dtype, device, pick=list):
    supported(dtype, device)
    call = CALLS.get(op.name) or getattr(pg, op.name)
    chosen = pick(list(samples(op, dtype)))
    results = [
        call(*with_arrays(args), **{k: with_arrays(v) for k, v in keywords.items()}) for args, keywords in chosen
    ]
    pg.realize(results)  # together: fewer kernels
    for got, (args, keywords) in zip(results, chosen, strict=True):
        with np.errstate(all="ignore"):
            want = op.reference(np, *widened(args), **{k: widened(v) for k, v in keywords.items()})
        own = dtypes.as_dtype(keywords.get("dtype") or dtype)
        if isinstance(got, (tuple, list)):
            assert len(got) == len(want)
        else:
            got, want = [got], [want]
        for g, w in zip(got, want, strict=True):
            assert g.device == device
            check(g, w, own, op.tolerance)


@pytest.mark.parametrize(("op", "dtype"), cases(USUAL))
def test_an_op_is_what_its_reference_says(op, dtype, device, fewer):
    compare(op, dtype, device, fewer)


@pytest.mark.thorough
@pytest.mark.parametrize(("op", "dtype"), cases({k: USUAL[k] + WHOLE[k] for k in USUAL}))
def test_an_op_is_what_its_reference_says_in_every_dtype(op, dtype, device):
    compare(op, dtype, device)


# Name: (units in the last place in float32 and float64, domain, reference). The ceilings are those of OpenCL's full
# profile, and 4 for log, which NumPy misses 3 by. 16-bit floats are computed in float32 and rounded once. Half a unit
# is added for the reference.

ACCURACY = {
    "exp": (4, 3, (-87, 88), np.exp),
    "exp2": (4, 3, (-125, 127), np.exp2),
    "expm1": (4, 4, (-10, 80), np.expm1),
    "log": (4, 3, (1e-30, 1e30), np.log),
    "log2": (4, 3, (1e-30, 1e30), np.log2),
    "log10": (4, 4, (1e-30, 1e30), np.log10),
    "log1p": (4, 4, (-0.99, 1e6), np.log1p),
    "sqrt": (3, 0.5, (0, 1e30), np.sqrt),
    "sin": (4, 4, (-3e4, 3e4), np.sin),
    "cos": (4, 4, (-3e4, 3e4), np.cos),
    "tan": (5, 5, (-1.5, 1.5), np.tan),
    "asin": (5, 5, (-1, 1), np.arcsin),
    "acos": (5, 5, (-1, 1), np.arccos),
    "atan": (5, 5, (-50, 50), np.arctan),
    "sinh": (5, 5, (-80, 80), np.sinh),
    "cosh": (5, 5, (-80, 80), np.cosh),
    "tanh": (5, 5, (-8, 8), np.tanh),
    "asinh": (5, 5, (-1e5, 1e5), np.arcsinh),
    "acosh": (5, 5, (1, 1e5), np.arccosh),
    "atanh": (5, 5, (-0.999, 0.999), np.arctanh),
    "erf": (16, 16, (-4, 4), np.vectorize(math.erf, otypes=[float])),
    "reciprocal": (2.5, 0.5, (1e-20, 1e20), np.reciprocal),
}
ABSOLUTE = {"sin": 2.0**-23, "cos": 2.0**-23}  # near their zeros, which float32 arguments miss by more
MANTISSA = {"float64": 52, "float32": 23, "float16": 10, "bfloat16": 7}
LEAST = {"float64": -1022, "float32": -126, "float16": -14, "bfloat16": -126}


def units(value, want, name):
    """Return the error of each value in units in the last place of the wanted one."""
    _, exponent = np.frexp(want)
    unit = np.ldexp(1.0, np.maximum(exponent - 1, LEAST[name]) - MANTISSA[name])
    return np.abs(value.astype(np.float64) - want) / unit


def points(rng, low, high, dtype):
    """Return points of a range: uniform ones, ones near zero and the ends."""
    even = rng.uniform(low, high, 3000)
    small = np.clip(
        np.exp(rng.uniform(-20, np.log(max(abs(low), abs(high), 2)), 3000)) * rng.choice([-1, 1], 3000), low, high
    )
    return np.concatenate([even, small, [low, high]]).astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("name", ACCURACY)
def test_elementary_functions_keep_their_digits(name, dtype, device, rng):
    supported(dtypes.as_dtype(dtype), device)
    single, double, (low, high), reference = ACCURACY[name]
    if dtype == "float16":
        low, high = max(low, -10), min(high, 10)
    x = points(rng, low, high, dtypes.as_dtype(dtype))
    x = x[(x.astype(float) >= low) & (x.astype(float) <= high)]
    wide = x.astype(np.float64)
    want = reference(wide)
    held = np.abs(want) <= pg.finfo(dtype).max
    x, wide, want = x[held], wide[held], want[held]
    got = getattr(pg, name)(pg.asarray(x)).numpy()
    assert got.dtype == x.dtype
    ceiling = {"float64": double, "float32": single}.get(dtype, 1) + 0.5
    error = units(got, want, dtype)
    error = np.where(np.abs(got.astype(np.float64) - want) <= ABSOLUTE.get(name, 0.0) * (dtype == "float32"), 0, error)
    worst = int(np.nanargmax(error))
    assert not np.isnan(error).any()
    assert error[worst] <= ceiling, (
        f"{name}({wide[worst]!r}) is {got[worst]!r}, not {want[worst]!r}: {error[worst]:.2f} units"
    )


@pytest.mark.parametrize("name", ["pow", "atan2", "divide", "hypot", "logaddexp"])
def test_elementary_functions_of_two_operands_keep_their_digits(name, device, rng):
    x = rng.uniform(0.01, 20, 5000).astype(np.float32)
    y = rng.uniform(-6, 6, 5000).astype(np.float32)
    reference = {
        "pow": np.power,
        "atan2": np.arctan2,
        "divide": np.divide,
        "hypot": np.hypot,
        "logaddexp": np.logaddexp,
    }[name]
    ceiling = {"pow": 16, "atan2": 6, "divide": 2.5, "hypot": 4, "logaddexp": 8}[name]
    got = getattr(pg, name)(pg.asarray(x), pg.asarray(y)).numpy()
    want = reference(x.astype(float), y.astype(float))
    error = units(got, want, "float32")
    if name == "logaddexp":  # a difference of two logarithms of one size: its error is absolute near zero
        error = np.where(np.abs(got - want) <= 2.0**-22, 0, error)
    assert error.max() <= ceiling


@pytest.mark.parametrize("n", [1, 7, 1000, 70001, 3_000_000])
def test_sums_have_the_error_of_a_tree(n, device, rng):
    x = rng.standard_normal(n).astype(np.float32)
    exact = math.fsum(x.tolist())
    bound = (8 + 2 * math.log2(n + 1)) * 2.0**-24 * float(np.abs(x.astype(float)).sum())
    assert abs(float(pg.sum(pg.asarray(x))) - exact) <= bound


@pytest.mark.parametrize(("rows", "columns"), [(3, 5), (70, 4097), (1, 100_000), (5000, 3)])
def test_sums_along_either_axis(rows, columns, device, rng):
    x = rng.standard_normal((rows, columns)).astype(np.float32)
    a = pg.asarray(x)
    wide = x.astype(float)
    for axis in (0, 1, None):
        n = x.size if axis is None else x.shape[axis]
        bound = (8 + 2 * math.log2(n + 1)) * 2.0**-24 * np.abs(wide).sum(axis=axis)
        assert np.all(np.abs(pg.sum(a, axis=axis).numpy() - wide.sum(axis=axis)) <= bound + 1e-12)
        np.testing.assert_array_equal(pg.max(a, axis=axis).numpy(), x.max(axis=axis))
        np.testing.assert_array_equal(pg.argmin(a, axis=axis).numpy(), x.argmin(axis=axis))
