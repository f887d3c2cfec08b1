"""NumPy's ufuncs on our arrays go through the table: results are ours, on the same device and in the graph.

Here: calls, reductions, mixed operands, what is refused. Not here: the functions' values, which other tests hold.
"""

import numpy as np
import pytest

import polygrad as pg
from polygrad.array.ufuncs import ACCUMULATIONS, REDUCTIONS, RENAMED

FLOATS = np.array([0.5, -0.75, 0.25, 1.0])
ABOVE_ONE = ("arccosh",)


def assert_same(got, expected) -> None:
    """Compare class, shape and elements, which `assert_allclose` would broadcast."""
    assert isinstance(got, pg.Array)
    assert got.shape == np.shape(expected)
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize(
    "name",
    [n for n in ("exp", "isnan", "negative", "sqrt", "floor", "sign", *RENAMED) if getattr(np, n).nin == 1 and
     RENAMED.get(n) != "bitwise_invert"],
)  # fmt: skip
def test_unary_ufunc_is_ours(name: str) -> None:
    point = FLOATS + 2 if name in ABOVE_ONE else np.abs(FLOATS) / 2 if name in ("sqrt", "arctanh") else FLOATS * 0.9
    assert_same(getattr(np, name)(pg.asarray(point)), getattr(np, name)(point))


@pytest.mark.parametrize("name", ["invert", "left_shift", "right_shift", "bitwise_and", "mod", "floor_divide", "power"])
def test_ufunc_of_integers_is_ours(name: str) -> None:
    ufunc, a, b = getattr(np, name), np.array([5, 12, 7]), np.array([1, 3, 2])
    operands = (a, b)[: ufunc.nin]
    assert_same(ufunc(*map(pg.asarray, operands)), ufunc(*operands))
    assert_same(np.invert(pg.asarray([True, False])), np.array([False, True]))


@pytest.mark.parametrize("ufunc", [np.add, np.true_divide, np.power, np.maximum, np.arctan2, np.less, np.mod])
@pytest.mark.parametrize("other", [np.float64(2.0), np.array([2.0, 0.5]), 2.0])
def test_binary_ufunc_takes_either_order(ufunc, other) -> None:
    point = np.array([1.5, 2.5])
    for got, expected in (
        (ufunc(pg.asarray(point), other), ufunc(point, other)),
        (ufunc(other, pg.asarray(point)), ufunc(other, point)),
    ):
        assert_same(got, expected)


@pytest.mark.parametrize("make", [lambda x: np.float64(2.0) * x, lambda x: np.ones(3) * x, lambda x: np.exp(x)])
def test_gradient_flows_through_numpy(make) -> None:
    x = pg.asarray([1.0, 2.0, 3.0]).requires_grad_()
    out = make(x)
    assert out.requires_grad
    pg.sum(out).backward()
    assert x.grad is not None


def test_scalar_of_numpy_takes_the_arrays_dtype() -> None:
    assert (np.float64(2.0) * pg.asarray([1.0], dtype=pg.float32)).dtype is pg.float32


def test_result_stays_on_the_device(device: str) -> None:
    x = pg.asarray([1.0, 2.0], dtype=pg.float32, device=device)
    with pg.device("cpu:0"):
        for out in (np.sin(x), np.add(x, np.ones(2, np.float32)), np.add(np.float32(2.0), x)):
            assert out.device == device


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reduce_is_ours(name: str) -> None:
    ufunc = getattr(np, name)
    x = np.array([[1.0, 2.0, 0.0], [3.0, 0.0, 0.0]])
    for keywords in ({}, {"axis": 1}, {"axis": None}, {"axis": None, "keepdims": True}, {"axis": 0, "keepdims": True}):
        assert_same(ufunc.reduce(pg.asarray(x), **keywords), ufunc.reduce(x, **keywords))


@pytest.mark.parametrize("name", ACCUMULATIONS)
def test_accumulate_is_ours(name: str) -> None:
    ufunc = getattr(np, name)
    x = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 0.5]])
    for keywords in ({}, {"axis": 1}):
        assert_same(ufunc.accumulate(pg.asarray(x), **keywords), ufunc.accumulate(x, **keywords))


@pytest.mark.parametrize(
    ("keyword", "value"),
    [("out", np.zeros(1)), ("where", np.array([True])), ("casting", "same_kind"), ("order", "C"), ("subok", False)],
)
def test_keyword_without_a_meaning_is_refused(keyword: str, value) -> None:
    x = pg.asarray([1.0])
    with pytest.raises(TypeError, match=f"takes no {keyword}="):
        np.add(x, x, **{keyword: value})
    with pytest.raises(TypeError, match="takes no initial="):
        np.add.reduce(x, initial=1.0)


def test_ufunc_that_the_table_lacks_is_refused() -> None:
    x = pg.asarray([1.0])
    with pytest.raises(TypeError, match="spacing"):
        np.spacing(x)
    for name in ("fmax", "fmin", "float_power"):  # near to one of ours, but not the same
        with pytest.raises(TypeError, match=name):
            getattr(np, name)(x, x)
    for call in (np.subtract.reduce, np.maximum.accumulate, lambda x: np.add.at(x, 0, 1.0)):
        with pytest.raises(TypeError):
            call(x)


def test_names_stand_in_the_table() -> None:
    for names in (RENAMED, REDUCTIONS, ACCUMULATIONS):
        for ours in filter(None, names.values()):
            assert hasattr(pg, ours), ours
