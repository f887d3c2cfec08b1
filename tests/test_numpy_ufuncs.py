"""NumPy's ufuncs on our arrays go through the table: results are ours, on the same device and in the graph.

Here: calls, reductions, mixed operands, what is refused. Not here: the functions' values, which other tests hold.
"""

import numpy as np
import pytest

import polygrad as pg
from polygrad.array.ufuncs import ACCUMULATIONS, REDUCTIONS, RENAMED


@pytest.mark.parametrize(
    ("ufunc", "point"),
    [(np.exp, [0.5, -1.0]), (np.arctan, [0.5, -1.0]), (np.absolute, [0.5, -1.0]), (np.isnan, [0.5, np.nan])],
)
def test_unary_ufunc_is_ours(ufunc, point) -> None:
    out = ufunc(pg.asarray(point))
    assert isinstance(out, pg.Array)
    np.testing.assert_allclose(out.numpy(), ufunc(np.asarray(point)))


@pytest.mark.parametrize("ufunc", [np.add, np.true_divide, np.power, np.maximum, np.arctan2, np.less])
@pytest.mark.parametrize("other", [np.float64(2.0), np.array([2.0, 0.5]), 2.0])
def test_binary_ufunc_takes_either_order(ufunc, other) -> None:
    point = np.array([1.5, 2.5])
    for got, expected in (
        (ufunc(pg.asarray(point), other), ufunc(point, other)),
        (ufunc(other, pg.asarray(point)), ufunc(other, point)),
    ):
        assert isinstance(got, pg.Array)
        np.testing.assert_allclose(got.numpy(), expected)


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
    assert np.sin(pg.asarray([1.0], dtype=pg.float32, device=device)).device == device


def test_reduce_and_accumulate() -> None:
    x = np.array([[1.0, 2.0], [3.0, 4.0]])
    for got, expected in (
        (np.add.reduce(pg.asarray(x)), np.add.reduce(x)),
        (np.maximum.reduce(pg.asarray(x), axis=1), np.maximum.reduce(x, axis=1)),
        (np.multiply.reduce(pg.asarray(x), axis=None, keepdims=True), np.multiply.reduce(x, axis=None, keepdims=True)),
        (np.add.accumulate(pg.asarray(x), axis=1), np.add.accumulate(x, axis=1)),
    ):
        assert isinstance(got, pg.Array)
        np.testing.assert_allclose(got.numpy(), expected)


def test_keyword_without_a_meaning_is_refused() -> None:
    x = pg.asarray([1.0])
    with pytest.raises(TypeError, match="takes no out="):
        np.add(x, x, out=np.zeros(1))


def test_ufunc_that_the_table_lacks_is_refused() -> None:
    with pytest.raises(TypeError, match="spacing"):
        np.spacing(pg.asarray([1.0]))


def test_names_stand_in_the_table() -> None:
    for names in (RENAMED, REDUCTIONS, ACCUMULATIONS):
        for ours in filter(None, names.values()):
            assert hasattr(pg, ours), ours
