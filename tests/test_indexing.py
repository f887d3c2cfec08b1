"""Indexing and assignment against NumPy, on random shapes and keys, with gradients.

Here: all keys, alone and mixed; what is written where, and what is refused.
Not here: who sees a write (`test_views.py`), updates by `at` (`test_updates.py`).
"""

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import polygrad as pg

RELAXED = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
CPU, OTHERS = 300, 10  # examples: where a kernel costs nothing to build, and elsewhere


def examples(device, factor=1.0):
    return max(4, int((CPU if device.startswith("cpu") else OTHERS) * factor))


def explored(device, share):
    """How Hypothesis looks for cases: the same ones each time."""
    return settings(
        max_examples=examples(device, share),
        deadline=None,
        derandomize=True,
        suppress_health_check=RELAXED,
        database=None,
    )


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
    @explored(device, 0.7)
    @given(cases_of_integer_indexing())
    def check(case):
        check_indexing(*case, device)

    check()


def test_the_gradient_of_an_index_adds_up_where_it_reads(device):
    @explored(device, 0.4)
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
    @explored(device, 0.4)
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


# ---- masks and mixtures ---------------------------------------------------------------------------------------------


@st.composite
def cases_of_any_key(draw):
    """Keys with masks, bools, lists, scalars and index arrays among ints, slices, None and Ellipsis."""
    shape = draw(st.lists(st.integers(0, 4), min_size=1, max_size=4).map(tuple))
    count = draw(st.integers(0, 3))
    length = draw(st.integers(0, 3))
    parts, axis = [], 0
    while axis < len(shape):
        n = shape[axis]
        kind = draw(st.sampled_from(["slice", "slice", "int", "mask", "array", "list", "bool", "none", "numpy"]))
        if kind == "bool" and count:
            parts.append(draw(st.booleans()))
        elif kind == "none":
            parts.append(None)
        elif kind == "mask" and count:
            rank = draw(st.integers(1, min(2, len(shape) - axis)))
            size = math.prod(shape[axis : axis + rank])
            bits = draw(st.lists(st.booleans(), min_size=size, max_size=size))
            parts.append(np.asarray(bits, bool).reshape(shape[axis : axis + rank]))
            axis += rank
            count -= 1
            continue
        elif kind in ("array", "list") and n and count:
            values = draw(st.lists(st.integers(-n, n - 1), min_size=length, max_size=length))
            parts.append(values if kind == "list" else np.asarray(values, np.int64))
            count -= 1
            axis += 1
        elif kind in ("int", "numpy") and n:
            at = draw(st.integers(-n, n - 1))
            parts.append(np.int32(at) if kind == "numpy" else at)
            axis += 1
        else:
            edge = st.one_of(st.none(), st.integers(-n - 1, n + 1))
            parts.append(slice(draw(edge), draw(edge), draw(st.sampled_from([None, 2, -1]))))
            axis += 1
        if kind in ("bool", "none") and len(parts) > 6:
            break
    if draw(st.integers(0, 3)) == 0:
        parts.insert(draw(st.integers(0, len(parts))), ...)
    return shape, tuple(parts)


def ours_of(key):
    return tuple(pg.asarray(k) if isinstance(k, np.ndarray) else k for k in key)


def numpy_takes(value, key):
    """Whether NumPy can read there: masks and arrays must broadcast."""
    try:
        value[key]
    except IndexError:
        return False
    return True


def test_any_mixture_of_keys_reads_as_in_numpy(device):
    @settings(
        max_examples=examples(device), deadline=None, derandomize=True, suppress_health_check=RELAXED, database=None
    )
    @given(cases_of_any_key())
    def check(case):
        shape, key = case
        with pg.device(device):
            value = numbered(shape)
            x = pg.asarray(value, dtype="float32")
            if not numpy_takes(value, key):
                with pytest.raises((IndexError, ValueError)):
                    x[key]
                return
            want = value[key]
            for form in (key, ours_of(key)):
                got = x[form]
                assert got.shape == want.shape
                np.testing.assert_array_equal(got.numpy(), want)

    check()


def last_wins(value, key, new):
    """Assign in C order of the index, one element after the other."""
    place = np.arange(value.size).reshape(value.shape)[key]
    for at, one in zip(place.reshape(-1), np.broadcast_to(new, place.shape).reshape(-1), strict=True):
        value.reshape(-1)[at] = one


def test_any_mixture_of_keys_is_written_as_in_numpy_and_the_last_value_stays(device):
    @settings(
        max_examples=examples(device), deadline=None, derandomize=True, suppress_health_check=RELAXED, database=None
    )
    @given(cases_of_any_key(), st.sampled_from(["scalar", "whole", "row", "integers"]))
    def check(case, what):
        shape, key = case
        with pg.device(device):
            value = numbered(shape)
            if not numpy_takes(value, key):
                return
            x = pg.asarray(value, dtype="float32")
            place = value[key].shape
            new = {
                "scalar": -1.0,
                "whole": -numbered(place) - 1,
                "row": -numbered(place[-1:]) - 1,
                "integers": -np.arange(math.prod(place)).reshape(place) - 1,
            }[what]
            last_wins(value, key, new)
            for form in (key, ours_of(key)):
                x[form] = new
                np.testing.assert_array_equal(x.numpy(), value)

    check()


def test_the_gradient_of_a_write_goes_to_what_is_left_and_to_the_values_that_stay(device):
    x = pg.asarray([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], dtype="float32")
    v = pg.asarray([[10.0, 20.0], [30.0, 40.0], [50.0, 60.0]], dtype="float32")

    def f(x, v):
        y = x * 1.0
        y[[2, 0, 2]] = v
        y[y > 45.0] *= 2.0
        return pg.sum(y * pg.asarray([[1.0, 10.0], [100.0, 1000.0], [1e4, 1e5]], dtype="float32"))

    left, right = pg.grad(f, argnums=(0, 1))(x, v)
    assert left.tolist() == [[0.0, 0.0], [100.0, 1000.0], [0.0, 0.0]]
    assert right.tolist() == [[0.0, 0.0], [1.0, 10.0], [2e4, 2e5]]


def test_keys_that_do_not_fit_are_refused_in_a_sentence(device):
    x = pg.zeros((3, 4), dtype="float32")
    for key, error, sentence in (
        (pg.asarray([True, False]), IndexError, r"with a mask of shape \[2\]"),
        (
            np.ones((3, 3), bool),
            IndexError,
            r"cannot index axes 0 to 1 of shape \[3, 4\] with a mask of shape \[3, 3\]",
        ),
        ((pg.asarray([True, False, True]), 0, 0), ValueError, "with 3 keys"),
        (1.5, TypeError, "cannot index by 1.5"),
        (pg.asarray([0.5]), TypeError, "cannot index by float"),
        ((..., ...), ValueError, "two '...'"),
        (3, IndexError, "cannot take index 3 of axis 0"),
    ):
        with pytest.raises(error, match=sentence):
            x[key]
        with pytest.raises(error, match=sentence):
            x[key] = 1.0
    with pytest.raises(ValueError, match=r"cannot assign shape \[3\] to a place of shape \[4\]"):
        x[0] = [1.0, 2.0, 3.0]
    with pytest.raises(TypeError, match="cannot assign None"):
        x[0] = None
    assert not x.numpy().any()


def test_an_index_out_of_range_is_reported_and_nothing_is_written(device):
    x = pg.zeros(4, dtype="float32")
    x[pg.asarray([1, 4])] = 1.0
    with pytest.raises(IndexError, match="index 4 is out of range for an axis of size 4"):
        x.numpy()
    y = pg.zeros((2, 3), dtype="float32")
    y[pg.asarray([0, 1]), pg.asarray([1, -4])] = 1.0
    with pytest.raises(IndexError, match="index -4 is out of range for an axis of size 3"):
        y.numpy()
    assert pg.ones(3).tolist() == [1.0, 1.0, 1.0]


def test_values_take_the_dtype_of_the_array(device):
    x = pg.asarray([1, 2, 3], dtype="int16")
    x[0] = pg.asarray(7, dtype="uint8")
    x[1:] = [4, 5]
    assert (x.dtype, x.tolist()) == (pg.int16, [7, 4, 5])
    with pytest.raises(OverflowError):
        x[0] = 70_000
    y = pg.zeros(2, dtype="float32")
    y[...] = np.asarray([1, 2])
    y[1] = True
    assert (y.dtype, y.tolist()) == (pg.float32, [1.0, 1.0])
    with pytest.raises(TypeError, match="cannot assign complex64 to an array of float32"):
        y[0] = 1j
