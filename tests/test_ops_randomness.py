"""Random numbers as graphs: moments, bounds, accuracy, and that only exact steps are used.

Here: the nodes of `ops/randomness.py` and `ops/softmath.py`, evaluated by NumPy. Not here: seeds, devices.
"""

import math

import numpy as np
import pytest

from polygrad import dtypes
from polygrad.errors import DTypeError, ShapeError
from polygrad.graph import F, Node, scalar
from polygrad.ops import softmath
from polygrad.ops.randomness import words_for
from polygrad.testing.interpret import evaluate, leaf, philox

KEY, COUNTER = scalar(1234, dtypes.uint64), scalar(0, dtypes.uint64)
N = 100_000
EXACT = {
    "add", "subtract", "multiply", "negative", "bitcast", "astype", "bitwise_and", "bitwise_or", "bitwise_right_shift",
    "bitwise_left_shift", "where", "equal", "less", "iota", "random_bits_", "host_scalar", "reshape_", "expand_",
    "slice_", "permute_",
}  # fmt: skip
FLOATS = pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64, dtypes.float16, dtypes.bfloat16], ids=str)


def ops_of(node: Node) -> set[str]:
    found, todo = set(), [node]
    while todo:
        node = todo.pop()
        found.add(node.op.name)
        todo += node.parents
    return found


def test_philox_gives_the_published_words() -> None:
    assert [hex(int(w)) for w in philox(0, 0, 4)] == ["0x6627e8d5", "0xe169c58d", "0xbc57ac4c", "0x9b00dbd8"]


def test_bits_are_the_words_in_order() -> None:
    np.testing.assert_array_equal(evaluate(F.random_bits((2, 3), KEY, COUNTER)).ravel(), philox(1234, 0, 6))


@FLOATS
def test_uniform_numbers_fill_the_half_open_range(dtype: dtypes.DType) -> None:
    u = evaluate(F.uniform((N,), KEY, COUNTER, dtype=dtype)).astype(np.float64)
    assert u.min() >= 0
    assert u.max() < 1
    assert abs(u.mean() - 0.5) < 0.004
    assert abs(u.var() - 1 / 12) < 0.002
    v = evaluate(F.uniform((N,), KEY, COUNTER, dtype=dtype, low=-3, high=5)).astype(np.float64)
    assert v.min() >= -3
    assert v.max() < 5


@FLOATS
def test_normal_numbers_have_their_moments(dtype: dtypes.DType) -> None:
    z = evaluate(F.normal((N + 1,), KEY, COUNTER, dtype=dtype)).astype(np.float64)
    assert z.shape == (N + 1,)
    assert np.isfinite(z).all()
    assert abs(z.mean()) < 0.015
    assert abs(z.std() - 1) < 0.01
    assert abs((z**3).mean()) < 0.05
    assert abs((z**4).mean() - 3) < 0.1
    w = evaluate(F.normal((N,), KEY, COUNTER, dtype=dtype, mean=2.0, std=3.0)).astype(np.float64)
    assert abs(w.mean() - 2) < 0.05


@pytest.mark.parametrize("shape", [(), (1,), (3,), (0,), (2, 3, 5)])
def test_normal_has_the_shape_that_was_asked_for(shape: tuple[int, ...]) -> None:
    assert evaluate(F.normal(shape, KEY, COUNTER)).shape == shape


@FLOATS
def test_normal_and_exponential_use_only_exact_steps(dtype: dtypes.DType) -> None:
    assert ops_of(F.normal((7,), KEY, COUNTER, dtype=dtype)) <= EXACT
    assert ops_of(F.exponential((7,), KEY, COUNTER, dtype=dtype)) <= EXACT


@pytest.mark.parametrize(("dtype", "limit"), [(dtypes.float32, 1e-6), (dtypes.float64, 1e-12)], ids=str)
def test_the_parts_of_box_muller_are_accurate(dtype: dtypes.DType, limit: float) -> None:
    rng = np.random.default_rng(0)
    u = np.concatenate(
        [rng.uniform(0, 1, 20_000), 1 - 2.0 ** -rng.uniform(1, 24, 2000), 2.0 ** -rng.uniform(0, 53, 2000)]
    ).astype(dtype)
    u = np.append(u[u > 0], np.asarray([1], dtype))
    wide = u.astype(np.longdouble)
    np.testing.assert_allclose(evaluate(softmath.log(F, leaf(u))), np.log(wide).astype(np.float64), rtol=limit, atol=0)
    x = np.concatenate([rng.uniform(0, 80, 20_000), 10.0 ** rng.uniform(-12, 2, 2000), [0.0]]).astype(dtype)
    np.testing.assert_allclose(evaluate(softmath.sqrt(F, leaf(x))), np.sqrt(x.astype(np.float64)), rtol=limit, atol=0)
    quarter, r = rng.integers(-5, 5, 20_000), rng.uniform(-0.5, 0.5, 20_000).astype(dtype)
    got = evaluate(softmath.cos_of_quarters(F, leaf(quarter), leaf(r)))
    whole = np.cos(
        (quarter + r.astype(np.longdouble)) * (np.longdouble(math.pi) / 2)
        + quarter * np.longdouble(6.123233995736766e-17)
    )
    np.testing.assert_allclose(got, whole.astype(np.float64), rtol=0, atol=limit)


RANGES = [
    (0, 10, "int64"), (-5, 5, "int8"), (0, 2**40, "int64"), (-(2**63), 2**63, "int64"), (0, 2**64, "uint64"),
    (250, 256, "uint8"),
    (3, 4, "int32"),
]  # fmt: skip


@pytest.mark.parametrize(("low", "high", "dtype"), RANGES)
def test_integers_fill_their_range(low: int, high: int, dtype: str) -> None:
    value = evaluate(F.randint((N,), KEY, COUNTER, low, high, dtype=dtype))
    assert value.dtype == np.dtype(dtype)
    assert int(value.min()) >= low
    assert int(value.max()) < high
    middle = (value.astype(np.float64) - low) / (high - low)
    assert abs(middle.mean() - (0.5 if high - low > 1000 else (high - low - 1) / (2 * (high - low)))) < 0.005
    if high - low <= 10:
        assert len(np.unique(value)) == high - low


@pytest.mark.parametrize("factor", [1, 7, 2**32 - 1, 2**32, 2**40 + 12345, 2**64 - 1])
def test_an_integer_is_the_upper_half_of_the_product(factor: int) -> None:
    words = philox(1234, 0, 20)
    want = [((int(words[i]) << 32 | int(words[10 + i])) * factor) >> 64 for i in range(10)]
    assert evaluate(F.randint((10,), KEY, COUNTER, 0, factor, dtype="uint64")).tolist() == want


def test_bernoulli_and_exponential_have_their_means() -> None:
    assert abs(evaluate(F.bernoulli((N,), KEY, COUNTER, 0.3)).mean() - 0.3) < 0.006
    assert evaluate(F.bernoulli((N,), KEY, COUNTER, 1.0)).all()
    assert not evaluate(F.bernoulli((N,), KEY, COUNTER, 0.0)).any()
    assert abs(evaluate(F.exponential((N,), KEY, COUNTER, scale=2.0)).mean() - 2) < 0.03


def test_a_draw_takes_the_words_that_it_announces() -> None:
    for name, call in {
        "uniform": lambda d: F.uniform((5,), KEY, COUNTER, dtype=d),
        "normal": lambda d: F.normal((5,), KEY, COUNTER, dtype=d),
        "exponential": lambda d: F.exponential((5,), KEY, COUNTER, dtype=d),
    }.items():
        for dtype in dtypes.FLOATS:
            node, todo = None, [call(dtype)]
            while todo:
                node = todo.pop()
                if node.op.name == "random_bits_":
                    break
                todo += node.parents
            assert node is not None
            assert node.shape == (words_for(name, 5, dtype),)


def test_what_cannot_be_drawn_is_refused_in_a_sentence() -> None:
    with pytest.raises(ShapeError, match=r"cannot draw integers in \[3, 3\): there are none"):
        F.randint((2,), KEY, COUNTER, 3, 3)
    with pytest.raises(OverflowError, match="300 does not fit int8"):
        F.randint((2,), KEY, COUNTER, 0, 301, dtype="int8")
    with pytest.raises(DTypeError, match="cannot draw normal numbers of int32: ask for a float dtype"):
        F.normal((2,), KEY, COUNTER, dtype="int32")
    with pytest.raises(ShapeError, match=r"cannot draw with probability 1.5: it must be in \[0, 1\]"):
        F.bernoulli((2,), KEY, COUNTER, 1.5)
