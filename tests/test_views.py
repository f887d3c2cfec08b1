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

RELAXED = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]


def examples(device, many, few=3):
    return many if device.startswith("cpu") else few


def profile(count):
    return settings(max_examples=count, deadline=None, derandomize=True, suppress_health_check=RELAXED, database=None)


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
    if not a.size:
        return  # NumPy refuses where an array of no elements was broadcast, and writes nothing elsewhere
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


# ---- gradients ------------------------------------------------------------------------------------------------------
#
# A program is a list of steps over one array of 12 elements. It is run with writes, and again as a rewrite: every write
# is then a product with a matrix of zeros and ones, and every cut another, so that the gradient is known to be right.


def matrix_of(view, size):
    """Return the matrix that takes a flat array of *size* to a view, a function of arrays."""
    return np.eye(size)[view(np.arange(size).reshape(3, 4)).astype(int).reshape(-1)]


CUTS = [
    lambda x: x[1],
    lambda x: x[:, ::-2],
    lambda x: x[::-1, 1:3],
    lambda x: x.T[1:],
    lambda x: x.reshape(12)[::5],
    lambda x: x[None, 2, :, None],
    lambda x: x.reshape(2, 6)[1].reshape(3, 2)[:, 0],
    lambda x: x[2, 3],
    lambda x: x[:, 1:1],
]


@st.composite
def mutations(draw):
    return draw(
        st.lists(
            st.tuples(
                st.integers(0, len(CUTS) - 1),
                st.sampled_from(["scale", "square", "constant", "parameter", "shift", "whole"]),
                st.integers(0, len(CUTS) - 1),
            ),
            min_size=1,
            max_size=6,
        )
    )


def mutated(program, x, p):
    x = x * 1.0
    kept = [cut(x) for cut in CUTS]  # views that live on, and must see every write
    total = 0.0
    for where, what, look in program:
        v = kept[where]
        if what == "scale":
            v *= p
        elif what == "square":
            v[...] = v * v + x[0, 0]
        elif what == "constant":
            v[...] = 3.0
        elif what == "parameter":
            CUTS[where](x)[...] = p
        elif what == "shift":
            x[1:] = x[:-1]
        else:
            x += p
        total = total + pg.sum(kept[look] * kept[look])
        if look % 2:
            pg.realize(x, kept[look])  # what was recorded may need the old value of that memory
    return total + pg.sum(x * x)


def rewritten(program, x, p):
    """The same, by products with constant matrices."""
    flat = pg.reshape(x, (12,)) * 1.0
    pull = [pg.asarray(matrix_of(cut, 12), dtype=x.dtype) for cut in CUTS]
    total = 0.0
    for where, what, look in program:
        m = pull[where]
        old, keep = m @ flat, 1.0 - pg.sum(m, axis=0)
        if what == "scale":
            flat = flat * keep + m.T @ (old * p)
        elif what == "square":
            flat = flat * keep + m.T @ (old * old + flat[0])
        elif what == "constant":
            flat = flat * keep + m.T @ (old * 0.0 + 3.0)
        elif what == "parameter":
            flat = flat * keep + m.T @ (old * 0.0 + p)
        elif what == "shift":
            flat = pg.concat([flat[:4], flat[:8]])
        else:
            flat = flat + p
        seen = pull[look] @ flat
        total = total + pg.sum(seen * seen)
    return total + pg.sum(flat * flat)


def test_gradients_through_writes_are_those_of_a_rewrite_without_writes(device, float_dtype):
    start = pg.asarray(np.linspace(-1.0, 1.2, 12).reshape(3, 4), dtype=float_dtype)
    factor = pg.asarray(0.75, dtype=float_dtype)
    near = 1e-9 if float_dtype is pg.float64 else 1e-3

    @profile(examples(device, 30, 1))
    @given(mutations())
    def check(program):
        with pg.device(device):
            value, slopes = pg.value_and_grad(lambda x, p: mutated(program, x, p), argnums=(0, 1))(start, factor)
            want, right = pg.value_and_grad(lambda x, p: rewritten(program, x, p), argnums=(0, 1))(start, factor)
            np.testing.assert_allclose(float(value), float(want), rtol=near)
            for slope, exact in zip(slopes, right, strict=True):
                np.testing.assert_allclose(slope.numpy(), exact.numpy(), rtol=near, atol=near)
            forward = pg.jvp(lambda x, p: mutated(program, x, p), (start, factor), (start, factor * 2.0))[1]
            along = sum(pg.sum(a * b) for a, b in zip(right, (start, factor * 2.0), strict=True))
            np.testing.assert_allclose(float(forward), float(along), rtol=near, atol=near)

    check()


# ---- rules ----------------------------------------------------------------------------------------------------------


def test_what_is_a_view_and_what_is_a_copy(device):
    x = pg.asarray(np.arange(12.0).reshape(3, 4), dtype="float32")
    views = [
        x[1:], x[..., 0], x[None], x.T, x.mT, pg.reshape(x, (12,)), pg.permute_dims(x, (1, 0)), pg.expand_dims(x, 0),
        pg.flip(x), pg.moveaxis(x, 0, 1), pg.swapaxes(x, 0, 1), *pg.unstack(x), next(iter(x)), pg.split(x, 3)[1],
        pg.squeeze(x[None], 0), pg.reshape(x, (3, 4)), pg.matrix_transpose(x),
    ]  # fmt: skip
    copies = [
        x + 0.0, x.astype("float32"), x[[0, 1]], x[x >= 0.0], pg.take(x, pg.asarray([0])), pg.asarray(x, copy=True),
        x.detach(), pg.reshape(x, (12,), copy=True), pg.reshape(x.T, (12,)), pg.concat([x, x]), pg.roll(x, 1),
        x.at[0].get(),
    ]  # fmt: skip
    before = [c.tolist() for c in copies]
    x[...] = -1.0
    for k, v in enumerate(views):
        assert set(v.numpy().reshape(-1).tolist()) == {-1.0}, f"view {k}"
    for k, v in enumerate(views):
        v[...] = float(k)
        assert float(k) in x.tolist()[0] + x.tolist()[1] + x.tolist()[2], f"view {k}"
    assert [c.tolist() for c in copies] == before


def test_a_reshape_that_needs_a_copy_says_so_when_it_may_not(device):
    x = pg.asarray(np.arange(6.0).reshape(2, 3), dtype="float32")
    assert pg.reshape(x, (3, 2), copy=False).shape == (3, 2)
    with pytest.raises(ValueError, match=r"cannot reshape this view of shape \[3, 2\] to \[6\] without a copy"):
        pg.reshape(x.T, (6,), copy=False)


def test_writing_into_a_broadcast_view_is_refused(device):
    x = pg.asarray([[1.0], [2.0]], dtype="float32")
    wide = pg.broadcast_to(x, (2, 3))
    for write_into in (
        lambda: wide.__setitem__(0, 1.0),
        lambda: wide.__iadd__(1.0),
        lambda: wide[1].__setitem__(0, 1.0),
    ):
        with pytest.raises(pg.ShapeError, match="broadcast from"):
            write_into()
    x[0, 0] = 5.0
    assert wide.tolist() == [[5.0] * 3, [2.0] * 3]


def test_in_place_operators_keep_shape_and_dtype(device):
    x = pg.asarray([1, 2, 3], dtype="int32")
    other = x
    x += 1
    x *= pg.asarray([1, 2, 3], dtype="int8")
    x //= 2
    x **= 2
    x %= 7
    x <<= 1
    x |= 1
    assert other is x
    assert x.dtype is pg.int32
    assert x.tolist() == [3, 5, 3]
    for change, sentence in (
        (lambda: x.__iadd__(0.5), "the result has dtype float64, the array int32"),
        (lambda: x.__itruediv__(2), "the result has dtype float64, the array int32"),
        (lambda: x.__iadd__(pg.ones((2, 3), dtype="int32")), r"the result has shape \[2, 3\], the array \[3\]"),
    ):
        with pytest.raises((pg.DTypeError, pg.ShapeError), match=sentence):
            change()
    assert x.tolist() == [3, 5, 3]
    m = pg.asarray([[1.0, 2.0], [3.0, 4.0]], dtype="float32")
    m @= pg.asarray([[0.0, 1.0], [1.0, 0.0]], dtype="float32")
    m -= np.float64(1.0)
    assert m.tolist() == [[1.0, 0.0], [3.0, 2.0]]
    assert m.dtype is pg.float32


def test_leaves_refuse_writes_and_stay_leaves_in_no_grad(device):
    x = pg.asarray([1.0, 2.0], dtype="float32").requires_grad_()
    row = x[:1]
    for change in (lambda: x.__setitem__(0, 5.0), lambda: x.__imul__(2.0), lambda: row.__setitem__(0, 5.0)):
        with pytest.raises(pg.GradError, match="leaf"):
            change()
    with pg.no_grad():
        row[0] = 5.0
        x *= 2.0
    assert x.is_leaf
    assert x.tolist() == [10.0, 4.0]
    assert row.tolist() == [10.0]
    pg.sum(row * x).backward()
    assert x.grad.tolist() == [24.0, 10.0]


def test_a_view_may_be_a_leaf_of_its_own(device):
    flat = pg.zeros(4, dtype="float32")
    weight = flat[1:3].requires_grad_()
    flat[...] = pg.asarray([1.0, 2.0, 3.0, 4.0], dtype="float32")
    assert weight.is_leaf
    pg.sum(weight * weight).backward()
    assert weight.grad.tolist() == [4.0, 6.0]
    with pg.no_grad():
        weight -= weight.grad
    assert flat.tolist() == [1.0, -2.0, -3.0, 4.0]
    source = pg.ones(4, dtype="float32").requires_grad_()
    with pytest.raises(pg.GradError, match="where a view is a leaf"):
        flat[...] = source * 2.0


def test_a_function_may_write_into_its_argument_under_a_transform(device):
    def f(x):
        x[0] = x[1] * 3.0
        x[1:] *= 2.0
        return pg.sum(x)

    x = pg.asarray([1.0, 2.0, 3.0], dtype="float32")
    assert pg.grad(f)(x).tolist() == [0.0, 5.0, 2.0]
    assert x.tolist() == [1.0, 2.0, 3.0]


def test_views_written_in_no_grad_are_constants(device):
    x = pg.asarray([1.0, 2.0], dtype="float32").requires_grad_()
    y = x * 2.0
    with pg.no_grad():
        y[0] = 7.0
    assert not y.requires_grad


def test_writes_leave_memory_that_others_own_alone(device):
    if not device.startswith("cpu"):
        pytest.skip("not run: needs a device in host memory")
    theirs = np.arange(3.0)
    x = pg.asarray(theirs, copy=False)
    x[0] = 9.0
    x += 1.0
    assert x.tolist() == [10.0, 2.0, 3.0]
    assert theirs.tolist() == [0.0, 1.0, 2.0]
    y = pg.asarray([1.0, 2.0]).realize()
    seen = np.asarray(y, copy=False)
    y[0] = 9.0
    y.realize()
    assert seen.tolist() == [1.0, 2.0]


def test_op_by_op_evaluation_has_the_same_views(device):
    with pg.eager():
        x = pg.asarray([[1.0, 2.0], [3.0, 4.0]], dtype="float32")
        column, flat = x.T[0], pg.reshape(x, (4,))
        column += 10.0
        flat[3] = 0.0
    assert x.tolist() == [[11.0, 2.0], [13.0, 0.0]]


# ---- memory ---------------------------------------------------------------------------------------------------------


def test_views_and_writes_leave_nothing_behind_without_the_collector(device):
    gc.collect()
    gc.disable()
    try:
        pg.synchronize()
        before = pg.memory_stats()["used"]
        x = pg.asarray(np.ones((100, 100), np.float32))
        rows = list(x)
        x[3] = 2.0
        rows[4] += 1.0
        x.T[0] = 5.0
        pg.realize(x, rows[3])
        node, handle = weakref.ref(x._node), weakref.ref(x)
        del x
        assert handle() is not None  # its views hold it
        del rows
        assert handle() is None
        assert node() is None
        assert pg.memory_stats()["used"] == before
    finally:
        gc.enable()


def test_views_that_are_gone_are_forgotten(device):
    x = pg.zeros((50, 2), dtype="float32")
    kept = x[0]
    for _ in range(5):
        for row in x:
            row[0] = 1.0
    assert len(x._link) <= 2
    assert kept.tolist() == [1.0, 0.0]


def test_filling_an_array_row_by_row_copies_it_at_most_once(device):
    n, m = 200, 50
    x = pg.zeros((n, m), dtype="float32").realize()
    row = pg.asarray(np.arange(float(m)), dtype="float32").realize()
    x[0] = row
    x.realize()
    pg.synchronize()
    memory, held = x._node.storage.buffer, pg.memory_stats()["peak"]
    with pg.launch_counter() as lazily:
        for k in range(n):
            x[k] = row + float(k)
        x.realize()
    assert x._node.storage.buffer is not memory  # this test holds it
    memory = id(x._node.storage.buffer)
    x[0] = row
    x.realize()
    assert id(x._node.storage.buffer) == memory
    assert lazily.allocations <= 1
    assert lazily.total <= n + 2
    assert pg.memory_stats()["peak"] <= held + 2 * n * m * 4
    np.testing.assert_array_equal(x.numpy(), np.arange(float(m)) + np.arange(float(n))[:, None])


def test_a_value_that_somebody_may_still_ask_for_is_not_overwritten(device):
    x = pg.asarray([1.0, 2.0, 3.0], dtype="float32").realize()
    pending, seen = x + 10.0, x[1:]
    seen_twice = seen * 2.0
    x[0] = 7.0
    total = pg.sum(x + pending)
    assert float(total) == 7.0 + 2 + 3 + 11 + 12 + 13
    assert pending.tolist() == [11.0, 12.0, 13.0]
    x[1:] = x[:-1] * 2.0
    assert x.tolist() == [7.0, 14.0, 4.0]
    assert seen.tolist() == [14.0, 4.0]
    assert seen_twice.tolist() == [4.0, 6.0]
    old = x.astype("float32").realize()
    x[0] = 0.0
    x.realize()
    assert old.tolist() == [7.0, 14.0, 4.0]
    other = pg.asarray(x)
    x[1] = -1.0
    assert other.tolist() == [0.0, -1.0, 4.0]


def test_what_is_pending_on_an_old_value_is_computed_from_it(device):
    x = pg.asarray([1.0, 2.0, 3.0], dtype="float32").realize()
    pending = x[1:] * 3.0
    total = pg.sum(pending)
    x[1] = 7.0
    pg.realize(x, total)  # the sum is all that is read of the old value now
    assert pending.tolist() == [6.0, 9.0]
    y = pg.asarray([1.0, 2.0, 3.0], dtype="float32").realize()
    before = y * 2.0
    y[0] = 7.0
    both = y + before  # reads what it was and what it is
    del before
    pg.realize(both, y)
    assert both.tolist() == [9.0, 6.0, 9.0]
    assert y.tolist() == [7.0, 2.0, 3.0]


def test_a_write_that_reads_what_it_overwrites_reads_the_old_value(device):
    value = np.arange(6_000_000.0, dtype=np.float32)  # more than one thread of the cpu driver takes at a time
    x = pg.asarray(value).realize()
    for start, stop in ((0, -1), (1, None), (2, None), (0, -2)):  # the same place, one further on, ...
        x[start:stop] = pg.sqrt(x[: stop if stop else -start] * 0.5 + 1.0)
        value[start:stop] = np.sqrt(value[: stop if stop else -start] * np.float32(0.5) + np.float32(1.0))
        x.realize()
    x[::-1] = x * 1.0
    value[::-1] = value.copy()
    np.testing.assert_array_equal(x.numpy(), value)
