"""Views: programs of cuts and writes that must give NumPy's values in every handle, and the gradients of a rewrite.

Here: random programs run on NumPy and on polygrad side by side; what a view is and is not; gradients; what stays alive.
Not here: which elements a key names (`test_indexing.py`), updates by `at` (`test_updates.py`).
"""

import gc
import weakref

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import polygrad as pg

import os
from hypothesis import Phase
DEV = dict(phases=[Phase.explicit, Phase.generate], report_multiple_bugs=False) if os.environ.get("NOSHRINK") else {}
RELAXED = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]


def examples(device, many, few=3):
    return many if device.startswith("cpu") else few


def profile(count):
    return settings(max_examples=count, deadline=None, derandomize=True, suppress_health_check=RELAXED, database=None, **DEV)


# ---- random programs -----------------------------------------------------------------------------------------------


@st.composite
def a_key(draw, shape):
    parts = []
    for n in shape[: draw(st.integers(0, len(shape)))]:
        edge = st.one_of(st.none(), st.integers(-n - 1, n + 1))
        cut = st.builds(slice, edge, edge, st.sampled_from([None, 1, 2, -1, -2, 3]))
        parts.append(draw(st.one_of(cut, st.integers(-n, n - 1)) if n else cut))
    if draw(st.integers(0, 3)) == 0 or len(parts) == len(shape):
        parts.append(...)  # NumPy gives scalars, which are no views, where each axis has an int
    if draw(st.integers(0, 4)) == 0:
        parts.insert(draw(st.integers(0, len(parts))), None)
    return tuple(parts)


def divided(size):
    return [(size,), (-1, 1)] + [(k, size // k) for k in (2, 3, 4, 6) if size and size % k == 0]


@st.composite
def a_move(draw, shape):
    """A function from an array to a view of it, for both libraries."""
    kind = draw(st.sampled_from(["key", "key", "key", "reshape", "permute", "flip", "expand", "squeeze", "broadcast"]))
    if kind == "key" or not shape:
        key = draw(a_key(shape))
        return lambda xp, x: x[key]
    if kind == "reshape":
        new = draw(st.sampled_from(divided(int(np.prod(shape)))))
        return lambda xp, x: xp.reshape(x, new)
    if kind == "permute":
        order = draw(st.permutations(range(len(shape))))
        return lambda xp, x: xp.permute_dims(x, tuple(order))
    axis = draw(st.integers(0, len(shape) - 1))
    if kind == "flip":
        return lambda xp, x: xp.flip(x, axis=axis)
    if kind == "expand":
        return lambda xp, x: xp.expand_dims(x, axis)
    if kind == "squeeze":
        gone = tuple(k for k, n in enumerate(shape) if n == 1)
        return lambda xp, x: xp.squeeze(x, axis=gone)
    return lambda xp, x: xp.broadcast_to(x, (2, *shape))


class Both:
    """A NumPy array and ours, which must stay equal."""

    def __init__(self, theirs, ours):
        self.theirs, self.ours = theirs, ours

    def same(self):
        np.testing.assert_array_equal(self.ours.numpy(), self.theirs)


def refused(f):
    try:
        f()
    except (ValueError, IndexError):
        return True
    return False


def write(draw, both, other):
    """Write into one of the arrays in both libraries."""
    a, b = both.theirs, both.ours
    kind = draw(st.sampled_from(["scalar", "block", "own", "other", "add", "multiply", "mask", "index"]))
    if kind == "scalar":
        key, value = draw(a_key(a.shape)), float(draw(st.integers(-9, 9)))
        pairs = (lambda: a.__setitem__(key, value), lambda: b.__setitem__(key, value))
    elif kind == "block":
        key = draw(a_key(a.shape))
        value = np.arange(float(a[key].size)).reshape(a[key].shape) * 10
        pairs = (lambda: a.__setitem__(key, value), lambda: b.__setitem__(key, value))
    elif kind == "own":
        pairs = (lambda: a.__setitem__(..., a[::-1] + 1), lambda: b.__setitem__(..., b[::-1] + 1))
        if not a.ndim:
            return
    elif kind == "other":
        if other.theirs.shape != a.shape:
            return
        pairs = (lambda: a.__setitem__(..., other.theirs), lambda: b.__setitem__(..., other.ours))
    elif kind == "add":
        pairs = (lambda: a.__iadd__(2.0), lambda: b.__iadd__(2.0))
    elif kind == "multiply":
        pairs = (lambda: a.__imul__(np.full(a.shape, 3.0)), lambda: b.__imul__(pg.asarray(np.full(a.shape, 3.0))))
    elif kind == "mask":
        value = float(draw(st.integers(-9, 9)))
        pairs = (lambda: a.__setitem__(a % 2 == 0, value), lambda: b.__setitem__(b % 2 == 0, value))
    else:
        if not a.ndim or not a.shape[0]:
            return
        at = draw(st.lists(st.integers(-a.shape[0], a.shape[0] - 1), max_size=4))
        value = np.arange(float(len(at) * int(np.prod(a.shape[1:])))).reshape(len(at), *a.shape[1:])
        pairs = (lambda: a.__setitem__(np.asarray(at, int), value), lambda: b.__setitem__(at, value))
    theirs, ours = (refused(f) for f in pairs)
    assert theirs == ours, f"NumPy {'refuses' if theirs else 'takes'} a {kind} write, we do not agree"


@st.composite
def programs(draw):
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple))
    return shape, draw(st.data())


def run(draw, shape, steps):
    value = np.arange(float(np.prod(shape))).reshape(shape)
    all_of_them = [Both(value.copy(), pg.asarray(value))]
    for _ in range(steps):
        one = all_of_them[draw(st.integers(0, len(all_of_them) - 1))]
        action = draw(st.sampled_from(["move", "move", "move", "write", "write", "write", "copy", "drop", "look"]))
        if action == "move" and one.theirs.size <= 128:
            move = draw(a_move(one.theirs.shape))
            all_of_them.append(Both(move(np, one.theirs), move(pg, one.ours)))
        elif action == "write":
            write(draw, one, all_of_them[draw(st.integers(0, len(all_of_them) - 1))])
        elif action == "copy":
            all_of_them.append(Both(np.array(one.theirs, order="C"), one.ours + 0.0))
        elif action == "drop" and len(all_of_them) > 2:
            all_of_them.remove(one)
        elif action == "look":
            one.same()
    for one in all_of_them:
        one.same()


def test_programs_of_views_and_writes_give_the_values_of_numpy(device, float_dtype):
    if float_dtype is not pg.float64:
        pytest.skip("not run: needs float64")

    @profile(examples(device, 300))
    @given(st.data(), st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple), st.integers(2, 14))
    def check(data, shape, steps):
        with pg.device(device):
            run(data.draw, shape, steps)

    check()
