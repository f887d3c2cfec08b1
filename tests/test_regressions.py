"""Faults that were there once, each as the smallest program that showed it.

Here: one test a fault; its name says what must hold.
Not here: what the other tests derive from the table and from the documentation.
"""

import gc
import re
import weakref

import numpy as np
import pytest

import polygrad as pg
from polygrad import nn
from polygrad.runtime.memory import Pool
from polygrad.runtime.structure import active_mask


def refuses(error, sentence):
    return pytest.raises(error, match=f"^{re.escape(sentence)}$")


def test_a_column_sum_may_need_another_column_sum_of_other_rows(device):
    x, y = np.random.default_rng(0).random((100, 64)), np.random.default_rng(1).random((50, 64))
    found = pg.sum(pg.asarray(y) * pg.sum(pg.asarray(x), axis=0), axis=0)
    np.testing.assert_allclose(found.numpy(), np.sum(y * np.sum(x, axis=0), axis=0))


def test_gradients_that_do_not_depend_on_a_value_can_be_had_op_by_op(device):
    with pg.eager():
        slope = pg.grad(lambda x: pg.sum(x))(pg.asarray([1.0, 2.0]))
    assert slope.tolist() == [1.0, 1.0]


def test_a_function_that_raises_in_vjp_leaves_no_recording_open(device):
    before = active_mask()
    for _ in range(70):
        with pytest.raises(ZeroDivisionError):
            pg.vjp(lambda x: x / (1 // 0), pg.asarray(1.0))
    gc.collect()
    assert active_mask() == before


def test_what_a_tape_has_recorded_is_free_when_the_tape_is_released(device):
    weight, state = pg.asarray(2.0), pg.asarray(1.0)
    for _ in range(3):
        with pg.Tape() as tape:
            tape.watch(weight)
            state = state * weight
            loss = state * state
        slope = tape.gradient(loss, weight)
    assert not state.requires_grad
    assert float(loss.numpy()) == 64.0
    assert float(slope) == 64.0  # the state of the step before counts as a constant


def test_a_released_tape_leaves_other_recordings_alone(device):
    weight, x = pg.asarray(2.0).requires_grad_(), pg.asarray(3.0)
    with pg.Tape() as tape:
        tape.watch(x)
        y = x * weight
    del tape
    assert (x.requires_grad, y.requires_grad) == (False, True)
    y.backward()
    assert float(weight.grad) == 3.0


def test_a_transform_differentiates_through_a_tape_inside_it(device):
    def slope(x):
        with pg.Tape() as tape:
            tape.watch(x)
            y = x**3
        return tape.gradient(y, x)

    assert float(pg.grad(slope)(pg.asarray(2.0))) == 12.0
    assert float(pg.jvp(slope, (pg.asarray(2.0),), (pg.asarray(1.0),))[1]) == 12.0


def test_more_tapes_than_recordings_can_be_made_one_after_the_other(device):
    for _ in range(200):
        x = pg.asarray(3.0)
        with pg.Tape(persistent=True) as tape:
            tape.watch(x)
            y = x * x
        tape.itself = tape  # a cycle, which only the collector can free
    assert float(tape.gradient(y, x)) == 6.0


def test_a_checkpoint_has_gradients_for_the_parameters_that_it_finds_elsewhere(device):
    layer, x = nn.Linear(3, 4), pg.asarray(np.ones((2, 3), np.float32))
    pg.sum(pg.checkpoint(layer)(x) ** 2).backward()
    found = layer.weight.grad.numpy()
    layer.weight.grad = None
    pg.sum(layer(x) ** 2).backward()
    np.testing.assert_allclose(found, layer.weight.grad.numpy(), rtol=1e-6)


def test_a_checkpoint_goes_no_further_than_what_it_finds_elsewhere(device):
    def f(x):
        square = x * x
        return pg.checkpoint(lambda y: y * square)(x) + square

    assert float(pg.grad(f)(pg.asarray(2.0))) == 16.0
    assert float(pg.grad(pg.grad(f))(pg.asarray(2.0))) == 14.0
    with pg.eager():
        assert float(pg.grad(f)(pg.asarray(2.0))) == 16.0


def test_checkpoints_nest_and_have_higher_derivatives(device):
    def kept(w):
        return pg.sin(2.0 * w * w) * w

    def again(w):
        return pg.checkpoint(lambda x: pg.checkpoint(lambda y: pg.sin(y * w) * w)(x * w))(pg.asarray(2.0))

    w = pg.asarray(3.0)
    for order in (pg.grad, lambda f: pg.grad(pg.grad(f))):
        np.testing.assert_allclose(float(order(again)(w)), float(order(kept)(w)), rtol=1e-12)


def test_tangents_are_pushed_through_checkpoints_and_written_derivatives(device):
    @pg.custom_vjp
    def both(x, y):
        return x * y, x + y

    both.defvjp(lambda x, y: ((x * y, x + y), (x, y)), lambda s, g: (g[0] * s[1] + g[1], g[0] * s[0] + g[1]))

    def written(x, y):
        product, total = both(x, y)
        return pg.checkpoint(lambda p, q: pg.sin(p) * q)(product, total)

    at, along = (pg.asarray(2.0), pg.asarray(3.0)), (pg.asarray(1.0), pg.asarray(-0.5))
    value, tangent = pg.jvp(written, at, along)
    plain, wanted = pg.jvp(lambda x, y: pg.sin(x * y) * (x + y), at, along)
    np.testing.assert_allclose([float(value), float(tangent)], [float(plain), float(wanted)], rtol=1e-12)


def test_lists_can_be_assigned(device):
    x = pg.zeros((2, 3))
    x[0] = [1, 2, 3]
    x[1] = [pg.asarray(7.0), 8, 9.0]
    assert x.tolist() == [[1.0, 2.0, 3.0], [7.0, 8.0, 9.0]]


def test_arrays_of_another_byte_order_are_taken(device):
    assert pg.asarray(np.array([1, 2], ">i4")).tolist() == [1, 2]
    assert pg.asarray(np.array([1.5], ">f4")).dtype == pg.float32


def test_an_int_in_a_list_that_fits_no_int64_is_refused_like_the_int_itself(device):
    for value in (2**63, [2**63], [1, 2**63]):
        with pytest.raises(OverflowError, match="9223372036854775808 does not fit int64"):
            pg.asarray(value)


def test_dlpack_shares_host_memory_and_keeps_it_alive():
    x = pg.asarray(np.arange(6.0).reshape(2, 3), device="cpu:0")
    shared = np.from_dlpack(x.T)
    assert not shared.flags.writeable
    assert np.shares_memory(shared, np.asarray(x, copy=False))
    del x
    pg.zeros((2, 3), device="cpu:0").realize()
    assert shared.tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]
    assert pg.asarray([1.0], device="cpu:0").__dlpack_device__() == (1, 0)
    assert memoryview(pg.asarray([1.0, 2.0], device="cpu:0").__buffer__(0)).tolist() == [1.0, 2.0]


def test_dlpack_and_buffers_refuse_in_a_sentence():
    x = pg.asarray([1.0, 2.0], device="cpu:0")
    leaf = pg.asarray([1.0], device="cpu:0").requires_grad_()
    for export in (leaf.__dlpack__, lambda: leaf.__buffer__(0)):
        with pytest.raises(pg.GradError, match=r"use \.detach\(\) first"):
            export()
    with refuses(BufferError, "an array's memory is read-only for others: copy it, with .numpy()"):
        x.__buffer__(1)
    with refuses(
        BufferError, "cannot export bfloat16 by DLPack: NumPy has no such dtype; use .astype('float32') first"
    ):
        x.astype("bfloat16").__dlpack__()
    with refuses(
        BufferError,
        "cannot export an array of cpu:0 to DLPack device (2, 0): it lies on (1, 0), and only the host, (1, 0), can "
        "get a copy",
    ):
        x.__dlpack__(dl_device=(2, 0))


def test_a_realize_that_runs_out_of_memory_changes_nothing_and_can_be_tried_again(device, monkeypatch):
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(64, 48)).astype("float32"), rng.normal(size=(48, 32)).astype("float32")
    take = Pool.take
    for nth in range(1, 9):
        scores = pg.sin(pg.asarray(x)) @ pg.asarray(w)
        rows, columns = pg.softmax(scores, axis=1), pg.sum(scores, axis=0)
        calls = iter(range(1, 100))

        def failing(pool, size, nbytes, calls=calls, nth=nth):
            if next(calls) == nth:
                raise pg.OutOfMemory("no room")
            return take(pool, size, nbytes)

        monkeypatch.setattr(Pool, "take", failing)
        try:
            pg.realize(rows, columns)
        except pg.OutOfMemory:
            assert [rows._node.storage, columns._node.storage] == [None, None]
        monkeypatch.setattr(Pool, "take", take)
        np.testing.assert_allclose(columns.numpy(), (np.sin(x) @ w).sum(axis=0), rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(rows.numpy().sum(axis=1), np.ones(64), rtol=1e-5)


def test_nothing_of_a_gradient_stays_behind_without_the_collector(device):
    seen = []

    def f(x):
        y = pg.sin(x)
        seen.append(weakref.ref(y._node))
        return pg.sum(y * y)

    gc.disable()
    try:
        x = pg.asarray([1.0, 2.0])
        pg.realize(*pg.value_and_grad(f)(x))
        value, pull = pg.vjp(f, x)
        pg.realize(value, *pull(value))
        del pull
        with pg.Tape() as tape:
            tape.watch(x)
            y = f(x)
        pg.realize(y, tape.gradient(y, x))
        assert [ref() for ref in seen] == [None, None, None]
    finally:
        gc.enable()


def test_a_written_derivative_keeps_nothing_alive_when_nobody_records(device):
    x = pg.asarray([1.0, 2.0])
    with pg.no_grad():
        y = pg.checkpoint(pg.exp)(x).realize()
    node = weakref.ref(x._node)
    del x
    assert node() is None
    assert y.shape == (2,)


def test_equal_calls_of_a_library_op_are_made_once(device):
    x = pg.asarray([3.0, 1.0, 2.0], dtype="float32")
    a, b = pg.realize(pg.sort(x) * 2.0, pg.sort(x) * 3.0)
    assert (a.tolist(), b.tolist()) == ([2.0, 4.0, 6.0], [3.0, 6.0, 9.0])
    s, order = pg.realize(pg.sort(x), pg.argsort(x))
    again = pg.realize(pg.sort(x), pg.argsort(x), pg.sort(x) + 1.0)
    assert [y.tolist() for y in again] == [s.tolist(), order.tolist(), [2.0, 3.0, 4.0]]


def test_a_write_may_be_computed_from_what_it_replaces(device):
    a, b, c = np.random.default_rng(0).normal(size=(3, 1000)).astype(np.float32)

    def program(xp, a, b, c):
        x = xp.zeros((1000, 3), dtype=a.dtype)
        x[..., 1] = b
        x[..., 0] = c * 2
        x[..., 0] = xp.where(b > 0, a, x[..., 0])  # in the same memory, block by block
        x[..., 2] = a
        return x

    with pg.device(device):
        got = program(pg, *[pg.asarray(v) for v in (a, b, c)])
    np.testing.assert_array_equal(got.numpy(), program(np, a, b, c))


def test_a_loop_that_notes_one_element_of_each_step_does_not_keep_all_steps():
    with pg.device("cpu:0"):
        x, total = pg.zeros((1 << 18,), dtype=pg.float32), pg.zeros((), dtype=pg.float64)
        pg.empty_cache()
        before = pg.memory_stats("cpu:0")["held"]
        for _ in range(300):
            x = x * 0.5 + 1.0  # 1 MiB
            total = total + pg.astype(x[0], pg.float64)
        assert float(x[-1]) == 2.0
        assert pg.memory_stats("cpu:0")["held"] - before < 100 << 20
        assert abs(float(total) - 598.0) < 1e-6
        assert pg.memory_stats("cpu:0")["held"] - before < 100 << 20
