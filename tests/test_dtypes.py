"""Dtypes: promotion, Python scalars, casts, values at the edges; arrays without elements and without axes.

Here: what holds for every op. Not here: dtypes that are refused (`test_errors.py`).
"""

import math

import numpy as np
import pytest

import polygrad as pg

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
FLOATS = ["float16", "bfloat16", "float32", "float64"]
# The standard's table for signed with unsigned integers; within a signedness the wider one wins.
MIXED = {
    ("int8", "uint8"): "int16",
    ("int8", "uint16"): "int32",
    ("int8", "uint32"): "int64",
    ("int16", "uint8"): "int16",
    ("int16", "uint16"): "int32",
    ("int16", "uint32"): "int64",
    ("int32", "uint8"): "int32",
    ("int32", "uint16"): "int32",
    ("int32", "uint32"): "int64",
    ("int64", "uint8"): "int64",
    ("int64", "uint16"): "int64",
    ("int64", "uint32"): "int64",
}


def expected_promotion(a, b):
    if a == b:
        return a
    floats = [d for d in (a, b) if d in FLOATS]
    if len(floats) == 1:
        return floats[0]
    if len(floats) == 2:
        if {a, b} == {"float16", "bfloat16"}:
            return "float32"
        return max(a, b, key=lambda d: (pg.finfo(d).bits, d))
    if "bool" in (a, b):
        return b if a == "bool" else a
    if a[0] == b[0]:
        return max(a, b, key=lambda d: int(d.strip("uint")))
    signed, unsigned = (a, b) if a[0] == "i" else (b, a)
    return MIXED.get((signed, unsigned))


@pytest.mark.parametrize("a", ["bool", *INTEGERS, *FLOATS])
def test_promotion_follows_the_standard(a, device):
    have = pg.__array_namespace_info__().dtypes(device=device)
    for b in ["bool", *INTEGERS, *FLOATS]:
        want = expected_promotion(a, b)
        if want is None:
            with pytest.raises(pg.DTypeError, match="no integer dtype holds both"):
                pg.result_type(getattr(pg, a), getattr(pg, b))
            continue
        assert pg.result_type(getattr(pg, a), getattr(pg, b)) == want
        if {a, b, want} <= set(have) and (a, b) != ("bool", "bool"):
            x, y = pg.ones(2, dtype=a), pg.ones(2, dtype=b)
            assert (x == y).dtype is pg.bool
            assert pg.maximum(x, y).dtype == want
            assert pg.where(x == y, x, y).dtype == want


def test_python_scalars_are_weak(device):
    have = pg.__array_namespace_info__().dtypes(device=device)
    for name in [*INTEGERS, *FLOATS]:
        if name in have:
            x = pg.ones(3, dtype=name)
            for y in (x + 1, 1 + x, x * 2, x - True, 3 - x):
                assert y.dtype == name
            if name in FLOATS:
                assert (x * 2.5).dtype == name
                assert (1 / x).dtype == name
    assert (pg.asarray([True]) & False).dtype is pg.bool
    assert pg.result_type(pg.int8, 1) is pg.int8
    assert pg.result_type(pg.int8, 1.0) is pg.float64
    assert pg.result_type(pg.bool, 1) is pg.int64
    assert pg.result_type(pg.float16, 1.0) is pg.float16
    assert (pg.asarray([1, 2], dtype="float32") * np.float64(2.0)).dtype is pg.float32


def test_default_dtypes_of_python_data(device):
    have = pg.__array_namespace_info__()
    defaults = have.default_dtypes(device=device)
    assert pg.asarray(1.0).dtype is pg.asarray([1.0]).dtype is defaults["real floating"]
    assert pg.asarray(1).dtype is pg.asarray([1]).dtype is defaults["integral"]
    assert pg.asarray(True).dtype is pg.asarray([True]).dtype is pg.bool
    assert pg.zeros(2).dtype is pg.linspace(0, 1, 3).dtype is defaults["real floating"]
    assert pg.arange(3).dtype is defaults["integral"]
    assert pg.full((2,), True).dtype is pg.bool
    assert pg.asarray(np.ones(2, np.float32)).dtype is pg.float32
    assert (pg.asarray([1]) / pg.asarray([2])).dtype is defaults["real floating"]


@pytest.mark.parametrize("source", ["bool", "int32", "uint8", "int64", "float32", "float16", "bfloat16", "float64"])
def test_casts_are_those_of_numpy(source, device):
    have = pg.__array_namespace_info__().dtypes(device=device)
    if source not in have:
        pytest.skip(f"not run: needs {source} on {device}")
    values = np.asarray([0, 1, 1, 0] if source == "bool" else [0, 1, 2.75, 100], np.float64).astype(have[source])
    x = pg.asarray(values)
    found = {target: x.astype(target) for target in have}
    pg.realize(found)  # together: one kernel
    for target, got in found.items():
        assert got.dtype == target
        np.testing.assert_array_equal(got.numpy(), values.astype(have[target]))


def test_casts_at_the_edges(device):
    assert pg.asarray([65520.0, 65504.0], dtype="float32").astype("float16").tolist() == [math.inf, 65504.0]
    assert pg.asarray([-2.9, 2.9], dtype="float32").astype("int32").tolist() == [-2, 2]
    assert pg.asarray([0.5, 0.0, math.nan], dtype="float32").astype("bool").tolist() == [True, False, True]
    assert pg.asarray([-1, 256], dtype="int32").astype("uint8").tolist() == [255, 0]
    assert pg.asarray([1, 2], dtype="int32").astype("int32", copy=False).tolist() == [1, 2]
    assert pg.asarray([1.0, 1 + 2**-8, 1 + 3 * 2**-8], dtype="float32").astype("bfloat16").tolist() == [
        1.0,
        1.0,
        1 + 2**-6,
    ]


def test_16_bit_sums_do_not_stop_growing(device):
    assert pg.sum(pg.ones(6000, dtype="float16")).item() == 6000
    assert pg.mean(pg.full((3000,), 8.0, dtype="float16")).item() == 8
    assert pg.sum(pg.ones(1024, dtype="bfloat16")).item() == 1024
    assert pg.matmul(pg.ones((1, 3000), dtype="float16"), pg.ones((3000, 1), dtype="float16")).item() == 3000
    assert pg.sum(pg.full((3000,), 255, dtype="uint8")).item() == 765_000
    assert pg.sum(pg.full((4,), 2**30, dtype="int32")).item() == 2**32


def test_integer_arithmetic_at_the_edges(device):
    x, y = pg.asarray([7, -7, 5, -(2**31)], dtype="int32"), pg.asarray([2, 2, 0, -1], dtype="int32")
    assert (x // y).tolist()[:3] == [3, -4, 0]
    assert (x % y).tolist()[:3] == [1, 1, 0]
    assert (pg.asarray([2**31 - 1], dtype="int32") + 1).tolist() == [-(2**31)]
    assert (pg.asarray([0], dtype="uint8") - 1).tolist() == [255]
    assert (pg.asarray([1, 1], dtype="int32") << pg.asarray([31, 40], dtype="int32")).tolist() == [-(2**31), 0]
    assert (pg.asarray([-8], dtype="int32") >> 1).tolist() == [-4]


def test_nan_goes_through_extremes_wherever_it_stands(device):
    for n, place in ((5, 0), (5, 4), (70_001, 0), (70_001, 33), (70_001, 70_000)):
        value = np.arange(n, dtype=np.float32)
        value[place] = math.nan
        x = pg.asarray(value)
        assert math.isnan(pg.max(x).item())
        assert math.isnan(pg.min(x * 1.0).item())
        assert pg.argmax(x).item() == pg.argmin(x).item() == place
    x = pg.asarray([[1.0, math.nan, 3.0], [4.0, 5.0, 6.0]], dtype="float32")
    np.testing.assert_array_equal(pg.max(x, axis=0).numpy(), [4, math.nan, 6])
    np.testing.assert_array_equal(pg.maximum(x[0], x[0][::-1]).numpy(), [3, math.nan, 3])
    assert pg.max(pg.asarray([-math.inf, -math.inf])).item() == -math.inf
    assert pg.max(pg.asarray([-5, -3], dtype="int32")).item() == -3


def test_arrays_without_elements(device):
    z = pg.zeros((0, 3), dtype="float32")
    assert z.numpy().shape == (0, 3)
    assert (z + 1.0).tolist() == []
    assert (z @ pg.ones((3, 2), dtype="float32")).shape == (0, 2)
    assert (pg.ones((2, 0), dtype="float32") @ z).tolist() == [[0.0] * 3] * 2
    assert pg.sum(z).item() == 0.0
    assert pg.prod(z, axis=0).tolist() == [1.0] * 3
    assert pg.concat([z, pg.ones((1, 3), dtype="float32")]).tolist() == [[1.0] * 3]
    assert pg.reshape(z, (3, 0, 5)).shape == (3, 0, 5)
    assert pg.exp(z[:, 1:]).realize().shape == (0, 2)
    assert pg.ones(5, dtype="float32")[7:].shape == (0,)
    assert pg.asarray([]).shape == (0,)
    assert pg.all(z == z).item() is True
    assert math.isnan(pg.mean(z).item())
    x = pg.zeros((0, 3), dtype="float32").requires_grad_()
    w = pg.ones((3, 2), dtype="float32").requires_grad_()
    pg.sum(pg.tanh(x @ w)).backward()
    assert x.grad.shape == (0, 3)
    assert w.grad.tolist() == [[0.0] * 2] * 3


def test_arrays_without_axes(device):
    x = pg.asarray(3.0)
    assert (x.shape, x.ndim, x.size) == ((), 0, 1)
    assert float(x) == x.item() == x.tolist() == 3.0
    assert int(pg.asarray(7)) == 7
    assert bool(pg.asarray(0.0)) is False
    assert [10, 20][pg.asarray(1)] == 20
    assert complex(x) == 3 + 0j
    assert x[()].item() == x[...].item() == 3.0
    assert x[None].tolist() == [3.0]
    assert pg.sum(x).item() == pg.max(x).item() == 3.0
    assert (x * pg.ones((2, 2))).tolist() == [[3.0, 3.0]] * 2
    assert x.numpy().shape == ()


def test_an_array_of_any_rank(device):
    value = np.arange(256.0, dtype=np.float32).reshape((2,) * 8)
    x = pg.asarray(value)
    order = (7, 0, 6, 1, 5, 2, 4, 3)
    np.testing.assert_array_equal(pg.permute_dims(x * 2.0, order).numpy(), np.transpose(value * 2, order))
    np.testing.assert_allclose(pg.sum(x, axis=(1, 3, 6)).numpy(), value.sum((1, 3, 6)))
    np.testing.assert_array_equal((x[0, :, None, 1, ..., ::-1] + 1.0).numpy(), value[0, :, None, 1, ..., ::-1] + 1)
