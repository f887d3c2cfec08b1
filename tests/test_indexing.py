"""Indexing and assignment against NumPy, on random shapes and keys, with gradients.

Here: ints, slices, Ellipsis, None and integer arrays. Not here: indices that are out of range (`test_errors.py`).
"""

import math

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import polygrad as pg

RELAXED = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
CPU, OTHERS = 300, 10  # examples: where a kernel costs nothing to build, and elsewhere


def examples(device, factor=1.0):
    return max(4, int((CPU if device.startswith("cpu") else OTHERS) * factor))


shapes = st.lists(st.integers(0, 5), min_size=0, max_size=4).map(tuple)


@st.composite
def basic_keys(draw, shape):
    """Keys of ints, slices, Ellipsis and None."""
    parts = []
    count = draw(st.integers(0, len(shape)))
    dots = draw(st.sampled_from([None, *range(count + 1)]))
    axes = list(range(count)) if dots is None else [*range(dots), *range(len(shape) - (count - dots), len(shape))]
    for axis in axes:
        n = shape[axis]
        edge = st.one_of(st.none(), st.integers(-n - 2, n + 2))
        step = st.one_of(st.none(), st.sampled_from([1, 2, 3, -1, -2, -3]))
        cut = st.builds(slice, edge, edge, step)
        parts.append(draw(st.one_of(cut, st.integers(-n, n - 1)) if n else cut))
    if dots is not None:
        parts.insert(dots, ...)
    for _ in range(draw(st.integers(0, 2))):
        parts.insert(draw(st.integers(0, len(parts))), None)
    return parts[0] if len(parts) == 1 and draw(st.booleans()) else tuple(parts)


@st.composite
def cases_of_basic_indexing(draw):
    shape = draw(shapes)
    return shape, draw(basic_keys(shape))


@st.composite
def cases_of_integer_indexing(draw):
    """Keys with one or two integer arrays among ints, slices and None."""
    shape = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple))
    arrays = draw(st.sets(st.integers(0, len(shape) - 1), min_size=1, max_size=2))
    common = draw(st.lists(st.integers(0, 3), max_size=2).map(tuple))
    parts = []
    for axis, n in enumerate(shape):
        if axis in arrays:
            own = tuple(m if draw(st.booleans()) else 1 for m in common) if draw(st.booleans()) else common
            values = draw(st.lists(st.integers(-n, n - 1), min_size=math.prod(own), max_size=math.prod(own)))
            parts.append(
                np.asarray(
                    values,
                    draw(st.sampled_from(["int64", "int32", "uint8"])) if min(values, default=0) >= 0 else "int64",
                ).reshape(own)
            )
        else:
            parts.append(
                draw(
                    st.one_of(
                        st.builds(slice, st.none(), st.none(), st.sampled_from([None, 2, -1])), st.integers(-n, n - 1)
                    )
                )
            )
    while parts and isinstance(parts[-1], slice) and draw(st.booleans()):
        parts.pop()
    if draw(st.booleans()):
        parts.insert(draw(st.integers(0, len(parts))), None)
    return shape, tuple(parts)


def numbered(shape):
    return np.arange(float(math.prod(shape))).reshape(shape)


def check_indexing(shape, key, device):
    with pg.device(device):
        value = numbered(shape)
        x = pg.asarray(value, dtype="float32")
        want = value[key]
        ours = tuple(pg.asarray(k) if isinstance(k, np.ndarray) else k for k in key) if isinstance(key, tuple) else key
        got = x[ours]
        assert got.shape == want.shape
        np.testing.assert_array_equal(got.numpy(), want)
        doubled = (x * 2.0)[ours]  # of a value that is not in memory
        np.testing.assert_array_equal(doubled.numpy(), want * 2)


def test_basic_indexing_is_that_of_numpy(device):
    @settings(
        max_examples=examples(device), deadline=None, derandomize=True, suppress_health_check=RELAXED, database=None
    )
    @given(cases_of_basic_indexing())
    def check(case):
        check_indexing(*case, device)

    check()


def test_integer_array_indexing_is_that_of_numpy(device):
    @settings(
        max_examples=examples(device, 0.7),
        deadline=None,
        derandomize=True,
        suppress_health_check=RELAXED,
        database=None,
    )
    @given(cases_of_integer_indexing())
    def check(case):
        check_indexing(*case, device)

    check()


def test_the_gradient_of_an_index_adds_up_where_it_reads(device):
    @settings(
        max_examples=examples(device, 0.4),
        deadline=None,
        derandomize=True,
        suppress_health_check=RELAXED,
        database=None,
    )
    @given(st.one_of(cases_of_basic_indexing(), cases_of_integer_indexing()))
    def check(case):
        shape, key = case
        with pg.device(device):
            value = numbered(shape)
            weight = np.cos(numbered(value[key].shape))
            want = np.zeros(shape)
            np.add.at(want, key, weight)
            ours = (
                tuple(pg.asarray(k) if isinstance(k, np.ndarray) else k for k in key) if isinstance(key, tuple) else key
            )
            got = pg.grad(lambda x: pg.sum(x[ours] * pg.asarray(weight, dtype="float32")))(
                pg.asarray(value, dtype="float32")
            )
            assert got.shape == shape
            np.testing.assert_allclose(got.numpy(), want, rtol=1e-5, atol=1e-6)

    check()


def test_assignment_is_that_of_numpy(device):
    @settings(
        max_examples=examples(device, 0.4),
        deadline=None,
        derandomize=True,
        suppress_health_check=RELAXED,
        database=None,
    )
    @given(cases_of_basic_indexing())
    def check(case):
        shape, key = case
        with pg.device(device):
            value = numbered(shape)
            x = pg.asarray(value, dtype="float32")
            old = x + 0.0
            x[key] = -1.0
            value[key] = -1.0
            np.testing.assert_array_equal(x.numpy(), value)
            new = np.arange(float(value[key].size)).reshape(value[key].shape)
            x[key] = pg.asarray(new, dtype="float32")
            value[key] = new
            np.testing.assert_array_equal(x.numpy(), value)
            np.testing.assert_array_equal(old.numpy(), numbered(shape))

    check()


def test_lists_and_numpy_arrays_are_keys(device):
    x = pg.asarray([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    assert x[[2, 0]].tolist() == [[5.0, 6.0], [1.0, 2.0]]
    assert x[np.asarray([2, 0]), [1, 0]].tolist() == [6.0, 1.0]
    assert x[np.int64(1)].tolist() == [3.0, 4.0]
    assert x[pg.asarray(1)].tolist() == [3.0, 4.0]
    assert x[[]].shape == (0, 2)
