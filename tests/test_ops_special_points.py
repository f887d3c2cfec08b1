"""Ops where drawn samples do not go: NaN, infinities, empty axes, ties, extreme values, and what they refuse.

Here: composites as graphs, evaluated by NumPy; gradients by the backward sweep. Not here: devices.
"""

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from polygrad import dtypes
from polygrad.autograd.reverse import sweep
from polygrad.errors import DTypeError, OutOfBounds, PolygradError, ShapeError
from polygrad.graph import F, Node
from polygrad.ops import TABLE
from polygrad.testing.interpret import evaluate, leaf

NAN, INF = math.nan, math.inf


def node(values: Any, dtype: str = "float64") -> Node:
    return leaf(np.asarray(values, dtype))


def value(result: Node) -> Any:
    return evaluate(result).tolist()


def gradient(function: Callable[[Node], Node], values: Any, dtype: str = "float64") -> Any:
    """Return the gradient of the sum of function(values)."""
    x = node(values, dtype)
    x.mask = 1
    out = function(x)
    found, _ = sweep([(out, F.ones_like(out))], 1)
    return evaluate(found[x]).tolist() if x in found else np.zeros(x.shape).tolist()


def refuses(error: type[PolygradError], sentence: str) -> Any:
    return pytest.raises(error, match=f"^{re.escape(sentence)}$")


@pytest.mark.parametrize("place", [0, 1, 33, 70])
def test_the_first_nan_wins(place: int) -> None:
    x = np.arange(71.0)
    x[place] = NAN
    x[70] = NAN
    assert math.isnan(value(F.max(node(x))))
    assert math.isnan(value(F.min(node(x))))
    assert value(F.argmax(node(x))) == place
    assert value(F.argmin(node(x))) == place


def test_the_first_of_equal_extremes_is_named() -> None:
    assert value(F.argmax(node([1, 3, 3, 0, 0]))) == 1
    assert value(F.argmin(node([[1, 0, 0], [2, 2, 2]]), axis=1)) == [1, 0]
    assert value(F.argmax(node([-INF, -INF]))) == 0
    assert value(F.argmax(node([[0, 5], [9, 1]]), keepdims=True)) == [[2]]


def test_reductions_of_an_empty_axis_give_the_identity_or_refuse() -> None:
    empty, none = node(np.zeros((0,))), node(np.zeros((3, 0)))
    assert value(F.sum(empty)) == 0
    assert value(F.prod(none, axis=1)) == [1, 1, 1]
    assert value(F.all(none, axis=1)) == [True] * 3
    assert value(F.any(empty)) is False
    assert value(F.logsumexp(none, axis=1)) == [-INF] * 3
    assert math.isnan(value(F.mean(empty)))
    assert math.isnan(value(F.var(empty)))
    assert math.isnan(value(F.std(empty)))
    assert F.sum(none, axis=1, keepdims=True).shape == (3, 1)
    assert F.max(node(np.zeros((0, 3))), axis=1).shape == (0,)
    assert F.min(node(np.zeros((2, 0, 3))), axis=2).shape == (2, 0)
    with refuses(ShapeError, "cannot take the maximum of shape [3, 0] over axes [1]: an empty axis has none"):
        F.max(none, axis=1)
    with refuses(ShapeError, "cannot take the argmin of shape [0] along axis 0: an empty axis has none"):
        F.argmin(empty)


@pytest.mark.parametrize(
    ("dtype", "total"),
    [
        ("uint8", "uint64"),
        ("uint32", "uint64"),
        ("int8", "int64"),
        ("int32", "int64"),
        ("bool", "int64"),
        ("float16", "float16"),
        ("float32", "float32"),
    ],
)
def test_sums_have_the_standards_dtypes(dtype: str, total: str) -> None:
    x = node(np.ones(4), dtype)
    assert F.sum(x).dtype == total
    assert F.prod(x).dtype == total
    assert F.sum(x, dtype=dtypes.float32).dtype == "float32"


def test_integer_sums_do_not_wrap() -> None:
    assert value(F.sum(node(np.full(3000, 255), "uint8"))) == 765000
    assert value(F.prod(node(np.full(5, 100), "int8"))) == 10**10
    assert value(F.sum(node(np.full((4, 2), 2**30), "int32"), axis=0)) == [2**32, 2**32]


def test_a_half_precision_sum_is_rounded_once() -> None:
    x = node(np.full(5000, 1.0), "float16")
    assert value(F.sum(x)) == 5000
    assert value(F.mean(x)) == 1


def test_variance_without_degrees_of_freedom_is_not_finite() -> None:
    assert math.isnan(value(F.var(node([2.0]), correction=1)))
    assert value(F.var(node([2.0, 4.0]), correction=2)) == INF
    assert value(F.std(node([2.0]))) == 0


def test_the_slope_of_std_is_zero_where_all_are_equal() -> None:
    assert gradient(F.std, [3.0, 3.0, 3.0]) == [0, 0, 0]
    assert gradient(lambda x: F.std(x, axis=1), [[1.0, 1.0], [1.0, 3.0]]) == [[0, 0], [-0.5, 0.5]]


def test_logsumexp_of_infinities() -> None:
    assert value(F.logsumexp(node([[-INF, -INF], [0, -INF], [INF, 0]]), axis=1)) == [-INF, 0, INF]
    assert math.isnan(value(F.logsumexp(node([0, NAN]))))
    assert value(F.logsumexp(node([1e4, 1e4]))) == 1e4 + math.log(2)
    assert gradient(lambda x: F.logsumexp(x, axis=1), [[-INF, -INF], [0, -INF], [1e4, 1e4]]) == [
        [0, 0],
        [1, 0],
        [0.5, 0.5],
    ]


def test_extremes_share_their_gradient() -> None:
    assert gradient(F.max, [1, 3, 3, 2]) == [0, 0.5, 0.5, 0]
    assert sum(gradient(F.min, [4, 4, 4])) == pytest.approx(1)


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("sigmoid", 0, 1), ("softplus", 0, 1000), ("log_sigmoid", -1000, 0), ("silu", 0, 1000), ("mish", 0, 1000),
        ("gelu", 0, 1000),
        ("elu", -1, 1000), ("celu", -1, 1000), ("relu", 0, 1000), ("relu6", 0, 6), ("hard_sigmoid", 0, 1),
        ("hard_swish", 0, 1000),
    ],
)  # fmt: skip
def test_activations_have_their_limits_and_finite_slopes(name: str, low: float, high: float) -> None:
    function = getattr(F, name)
    assert value(function(node([-1000, 1000]))) == [low, high]
    assert np.isfinite(gradient(function, [-1000, -1, 0, 1, 1000])).all()
    assert math.isnan(value(function(node(NAN))))


@pytest.mark.parametrize(
    ("name", "slope"),
    [
        ("sigmoid", 0.25),
        ("softplus", 0.5),
        ("log_sigmoid", 0.5),
        ("silu", 0.5),
        ("gelu", 0.5),
        ("relu", 0),
        ("relu6", 0),
        ("elu", 1),
        ("softsign", 1),
    ],
)
def test_slopes_at_zero(name: str, slope: float) -> None:
    assert gradient(getattr(F, name), 0.0) == pytest.approx(slope)


def test_sigmoid_keeps_its_digits_near_zero() -> None:
    assert value(F.sigmoid(node(-50.0))) == pytest.approx(math.exp(-50), rel=1e-14)


def test_softmax_of_huge_logits() -> None:
    x = [[-400.0, 300.0, 450.0]]
    assert value(F.softmax(node(x, "float32"), axis=1)) == [[0, 0, 1]]
    assert gradient(lambda v: F.softmax(v, axis=1), x, "float32") == [[0, 0, 0]]
    assert gradient(lambda v: F.getitem(F.log_softmax(v, axis=1), (0, 0)), x, "float32") == [[1, 0, -1]]
    assert value(F.softmax(node([-1e30, -1e30], "float32"))) == [0.5, 0.5]
    assert value(F.softmax(node([0, -INF]))) == [1, 0]


def test_cross_entropy_of_huge_logits() -> None:
    label = node([0], "int64")
    x = [[-400.0, 300.0, 450.0]]
    assert value(F.cross_entropy(node(x, "float32"), label)) == 850
    assert gradient(lambda v: F.cross_entropy(v, label), x, "float32") == [[-1, 0, 1]]
    assert value(F.cross_entropy(node(np.full((1, 4), 1e8), "float32"), label)) == pytest.approx(math.log(4))


LOGITS = [[2.0, -1.0, 0.5], [9.0, 9.0, 9.0], [0.0, 1.0, -3.0]]


def test_ignored_labels_count_for_nothing() -> None:
    rows = np.asarray(LOGITS)
    logp = rows - np.log(np.exp(rows).sum(1, keepdims=True))
    mean = -(logp[0, 0] + logp[2, 2]) / 2
    labels = node([0, -100, 2], "int64")
    assert value(F.cross_entropy(node(LOGITS), labels, ignore_index=-100)) == pytest.approx(mean)
    assert value(F.cross_entropy(node(LOGITS), node([0, 1, 2], "int64"), ignore_index=1)) == pytest.approx(mean)
    alone = value(F.cross_entropy(node(LOGITS), node([0, 255, 2], "int32"), ignore_index=255, reduction="none"))
    assert alone == pytest.approx([-logp[0, 0], 0, -logp[2, 2]])
    back = gradient(lambda v: F.cross_entropy(v, labels, ignore_index=-100), LOGITS)
    assert back[1] == [0, 0, 0]
    assert back[0] == pytest.approx(((np.exp(logp[0]) - [1, 0, 0]) / 2).tolist())
    none = node([-100] * 3, "int64")
    assert gradient(lambda v: F.cross_entropy(v, none, ignore_index=-100), LOGITS) == [[0] * 3] * 3


@pytest.mark.parametrize("label", [3, -1, 10**9])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_a_label_outside_the_classes_is_reported_when_read(label: int, reduction: str) -> None:
    with pytest.raises(IndexError):
        evaluate(F.cross_entropy(node([[0.1, 0.2, 0.3]]), node([label], "int64"), reduction=reduction))
    with pytest.raises(IndexError):
        evaluate(F.one_hot(node([label], "int64"), 3))


def test_losses_name_what_does_not_fit() -> None:
    with refuses(
        ShapeError,
        "cannot take cross_entropy of scores [3, 3] with labels [2]: classes lie along axis 1, so labels must have "
        "shape [3]",
    ):
        F.cross_entropy(node(LOGITS), node([0, 1], "int64"))
    with refuses(
        ShapeError, "cannot take mse_loss of shapes [2] and [2, 1]: they must be equal, as a loss does not broadcast"
    ):
        F.mse_loss(node([1, 2]), node([[1], [2]]))
    with refuses(ShapeError, "cannot reduce a loss by 'avg': it is one of 'mean', 'sum', 'none'"):
        F.l1_loss(node([1]), node([1]), reduction="avg")


def test_binary_cross_entropy_keeps_its_digits() -> None:
    assert value(F.binary_cross_entropy_with_logits(node([40.0]), node([1.0]))) == pytest.approx(
        math.exp(-40), rel=1e-12
    )
    assert value(F.binary_cross_entropy_with_logits(node([-1000.0, 1000.0]), node([1.0, 0.0]))) == 1000
    assert gradient(lambda v: F.binary_cross_entropy_with_logits(v, node([0.0])), [0.0]) == [0.5]


def test_joining_keeps_nan_and_infinities_where_they_lie() -> None:
    parts = [node([NAN, 1]), node([INF]), node([-INF, 2])]
    np.testing.assert_array_equal(evaluate(F.concat(parts)), [NAN, 1, INF, -INF, 2])
    assert gradient(lambda x: F.concat([node([NAN, INF]), 1.0 / x]), [1.0, 2.0]) == [-1, -0.25]


def test_thousands_of_parts_make_a_wide_graph() -> None:
    parts = [node([float(k)]) for k in range(3000)]
    joined = F.concat(parts)
    assert joined.depth < 100
    assert value(joined) == [float(k) for k in range(3000)]


def test_joining_promotes() -> None:
    assert F.concat([node([1], "int8"), node([1], "int32")]).dtype == "int32"
    assert F.stack([node(1, "bool"), node(1, "float32")]).dtype == "float32"
    with refuses(
        ShapeError, "cannot concatenate shapes [2, 3] and [2, 4] along axis 0: all other axes must have equal sizes"
    ):
        F.concat([node(np.zeros((2, 3))), node(np.zeros((2, 4)))])
    with refuses(ShapeError, "cannot stack shapes [2] and [3]: they must be equal"):
        F.stack([node([1, 2]), node([1, 2, 3])])


def test_keys_that_are_refused() -> None:
    x = node(np.zeros((3, 4)))
    with refuses(OutOfBounds, "cannot take index 3 of axis 0, which has size 3: it must be in [-3, 3)"):
        F.getitem(x, 3)
    with refuses(ShapeError, "cannot index shape [3, 4] with 3 keys: it has 2 axes"):
        F.getitem(x, (0, 0, 0))
    with refuses(ShapeError, "cannot index with two '...': one stands for all axes that are not named"):
        F.getitem(x, (..., 0, ...))
    with refuses(DTypeError, "cannot index by float64: an index array has an integer dtype; cast with .astype(...)"):
        F.getitem(x, node([0.0]))
    with refuses(DTypeError, "cannot index by 1.5: use ints, slices, ..., None and integer arrays"):
        F.getitem(x, 1.5)
    for key in (True, (0, False), node([True], "bool")):
        with pytest.raises(DTypeError, match="cannot index by bool here"):
            F.getitem(x, key)
    with refuses(OutOfBounds, "cannot index axis 0 of shape [0, 2]: it is empty"):
        F.getitem(node(np.zeros((0, 2))), node([0], "int64"))


def test_a_repeated_position_gathers_all_its_gradients() -> None:
    positions = node([0, 2, 0, -1], "int64")
    assert gradient(lambda x: F.take(x, positions, axis=0), [1.0, 2.0, 3.0]) == [2, 0, 2]
    assert gradient(lambda x: F.getitem(x, (slice(None, None, -2), positions)), np.ones((3, 3))) == [
        [2, 0, 2],
        [0, 0, 0],
        [2, 0, 2],
    ]


def test_counting_is_exact() -> None:
    assert value(F.arange(2**53, 2**53 + 3)) == [2**53, 2**53 + 1, 2**53 + 2]
    assert value(F.arange(2**64 - 3, 2**64, dtype="uint64")) == [2**64 - 3, 2**64 - 2, 2**64 - 1]
    assert value(F.arange(5, 0, -2, dtype="uint8")) == [5, 3, 1]
    assert value(F.arange(0.0, 0.3, 0.1)) == np.arange(0.0, 0.3, 0.1).tolist()
    assert F.arange(3).dtype == "int64"
    assert F.arange(3.0).dtype == "float64"
    assert F.full((2,), True).dtype == "bool"
    with pytest.raises(OverflowError, match="299 does not fit uint8"):
        F.arange(300, dtype="uint8")


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_a_line_ends_exactly(dtype: str) -> None:
    line = evaluate(F.linspace(0.1, 0.7, 7, dtype=dtype))
    assert line[-1] == np.asarray(0.7, dtype)
    assert line[0] == np.asarray(0.1, dtype)
    assert np.isfinite(evaluate(F.linspace(-1.7e308, 1.7e308, 5))).all()


def test_products_refuse_scalars_and_unequal_sizes() -> None:
    with pytest.raises(ShapeError, match="matmul needs at least one axis on both sides"):
        F.matmul(node(1.0), node([1.0]))
    with refuses(
        ShapeError,
        "cannot multiply matrices [2, 3] and [2]: the last axis of the first has 3 elements, the only of the second "
        "2; they must be equal",
    ):
        F.matmul(node(np.zeros((2, 3))), node(np.zeros(2)))
    with refuses(DTypeError, "cannot multiply matrices of bool arrays: cast with .astype(...)"):
        F.matmul(node([True], "bool"), node([True], "bool"))


def test_products_promote_and_empty_sums_are_zero() -> None:
    assert F.matmul(node([[1]], "int8"), node([[1]], "float32")).dtype == "float32"
    assert value(F.matmul(node(np.zeros((2, 0))), node(np.zeros((0, 3))))) == [[0, 0, 0]] * 2


def test_padding_of_a_maximum_never_wins() -> None:
    assert value(F.max_pool2d(node([[[-5.0, -3.0], [-2.0, -9.0]]]), 2, stride=1, padding=1)) == [
        [[-5, -3, -3], [-2, -2, -3], [-2, -2, -9]]
    ]
    assert value(F.max_pool2d(node([[[-5, -3], [-2, -9]]], "int8"), 2, padding=1)) == [[[-5, -3], [-2, -9]]]


def test_overlapping_windows_add_their_gradients() -> None:
    assert gradient(lambda x: F.max_pool2d(x, (1, 3), stride=1), [[[0.0, 1.0, 5.0, 2.0, 1.0]]]) == [[[0, 0, 3, 0, 0]]]
    assert gradient(lambda x: F.avg_pool2d(x, (1, 2), stride=1), [[[0.0, 1.0, 2.0]]]) == [[[0.5, 1, 0.5]]]


def test_windows_that_do_not_fit_are_refused() -> None:
    with refuses(
        ShapeError,
        "cannot lay windows of [3, 3] with dilation [1, 1] on the last axes of shape [1, 1, 2, 2]: they span [3, 3] "
        "elements; "
        "pad the array or take a smaller kernel",
    ):
        F.conv2d(node(np.zeros((1, 1, 2, 2))), node(np.zeros((1, 1, 3, 3))))
    with pytest.raises(ShapeError, match="padding is at most half of the kernel"):
        F.max_pool2d(node(np.zeros((1, 4, 4))), 2, padding=2)


def test_the_table_is_as_wide_as_it_should_be() -> None:
    users = [op for op in TABLE.values() if op.public and op.reference is not None]
    assert len(users) >= 130
