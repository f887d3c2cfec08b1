"""Library ops: calls of a driver's own op with several results, on devices that have it and on devices that lack it.

Here: an op made for these tests, `two_`, which the cpu driver is given and no other device has: what is called, how
often, what is kept, derivatives through several results, the fallback on the device and the loan from the host.
Not here: the library ops that polygrad has (`test_ordering.py` and its like).
"""

import dataclasses
import gc
import warnings

import numpy as np
import pytest

import polygrad as pg
from polygrad.graph import functions
from polygrad.ops.table import TABLE, library
from polygrad.runtime import lacking
from polygrad.runtime.devices import state

F = functions.F


def on_the_host(self, outs, ins, attrs):
    """Do what the op of these tests does, as a method of the cpu driver."""
    from polygrad_cpu.transfer import array

    x = array(ins[0])
    array(outs[0])[...] = x * attrs["factor"]
    array(outs[1])[...] = x.sum(axis=-1, keepdims=True)


def over_primitives(xp, x, factor):
    return x * float(factor), xp.sum_(x, (x.ndim - 1,))


def spread(xp, g, x, index, factor):
    return g * float(factor) if index == 0 else xp.expand_(g, x.shape)


def gathered(xp, t, index, factor):
    return t * float(factor) if index == 0 else xp.sum_(t, (t.ndim - 1,))


def declare(fallback, called):
    def two_(np, x, factor):
        """x times a factor, and the sum of each row."""
        return x * factor, x.sum(axis=-1, keepdims=True)

    return library(
        results=lambda x, factor: [(x.shape, x.dtype), ((*x.shape[:-1], 1), x.dtype)],
        fallback=fallback,
        vjp=(lambda xp, g, out, x, index, factor: spread(xp, g, x, index, factor),),
        jvp=(lambda xp, t, out, x, index, factor: gathered(xp, t, index, factor),),
        call=called,
        params=lambda factor: {"factor": factor},
    )(two_)


@pytest.fixture
def two(monkeypatch):
    """A function that makes the op: ``two(x, factor)`` returns two arrays; `fallback` and `called` declare it."""

    def make(fallback=over_primitives, called="two"):
        op = declare(fallback, called)
        del TABLE[op.name]  # the tests that are derived from the table do not see it
        made = functions._library(op)
        monkeypatch.setattr(F, "two_", made, raising=False)
        return lambda x, factor=3: tuple(pg.Array(r) for r in made(x._node, factor))

    return make


@pytest.fixture
def able(monkeypatch):
    """Give cpu:0 the op; the default device of the test."""
    from polygrad_cpu.driver import CpuDriver

    with pg.device("cpu:0"):
        monkeypatch.setattr(CpuDriver, "op_two", on_the_host, raising=False)
        found = state("cpu:0")
        monkeypatch.setattr(found, "info", dataclasses.replace(found.info, ops=found.info.ops | {"two"}))
        monkeypatch.setattr(found, "plans", {})
        monkeypatch.setattr(found.device, "info", found.info)
        yield "cpu:0"


@pytest.fixture
def unable(able):
    """Another device, without the op."""
    for name in pg.list_devices():
        if name != able:
            with pg.device(name):
                yield name
            return
    pytest.skip("not run: needs a second device")


X = np.asarray([[1.0, 2.0, 4.0], [8.0, 16.0, 32.0]], np.float32)
SUMS = X.sum(axis=-1, keepdims=True)


def test_both_results_come_from_one_call(two, able):
    doubled, sums = two()(pg.asarray(X))
    with pg.launch_counter() as c:
        pg.realize(doubled, sums)
    assert (c.ops, c.fused) == (1, 0)
    np.testing.assert_array_equal(doubled.numpy(), X * 3)
    np.testing.assert_array_equal(sums.numpy(), SUMS)


def test_a_result_that_somebody_holds_is_kept_when_the_other_is_looked_at(two, able):
    doubled, sums = two()(pg.asarray(X))
    with pg.launch_counter() as c:
        assert doubled.tolist() == (X * 3).tolist()
        assert sums.tolist() == SUMS.tolist()
    assert c.ops == 1


def test_a_result_that_nobody_holds_takes_no_memory(two, able):
    x = pg.asarray(np.ones((1000, 1000), np.float32))
    function = two()
    gc.collect()
    before = pg.memory_stats(able)["used"]
    sums = function(x)[1].realize()
    gc.collect()
    assert pg.memory_stats(able)["used"] - before < x.nbytes
    assert sums.shape == (1000, 1)


def test_what_surrounds_a_call_is_fused_around_it(two, able):
    x = pg.asarray(X)
    doubled, sums = two()(pg.exp(x * 0.25))
    with pg.launch_counter() as c:
        out = (doubled + 1.0) * sums
        value = out.numpy()
    assert (c.ops, c.fused) == (1, 2)
    wide = np.exp(X * np.float32(0.25))
    np.testing.assert_allclose(value, (wide * 3 + 1) * wide.sum(-1, keepdims=True), rtol=1e-5)


def test_equal_calls_in_one_realize_are_one_call(two, able):
    x, function = pg.asarray(X), two()
    first, second = function(x), function(x)
    other = function(x, 5)
    with pg.launch_counter() as c:
        pg.realize(first[0], second[1], other[0])
    assert c.ops == 2
    np.testing.assert_array_equal(other[0].numpy(), X * 5)


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.T,
        lambda x: x[:, ::-1],
        lambda x: x[1:],
        lambda x: pg.broadcast_to(x[:1], (4, 3)),
        lambda x: x[:, 1:],
    ],
    ids=["transposed", "reversed", "offset", "broadcast", "columns"],
)
def test_operands_in_any_layout(two, able, view):
    x = view(pg.asarray(X).realize())
    doubled, sums = two()(x)
    np.testing.assert_array_equal(doubled.numpy(), x.numpy() * 3)
    np.testing.assert_array_equal(sums.numpy(), x.numpy().sum(-1, keepdims=True))


def test_an_operand_made_of_constants(two, able, device):
    """On the device that has the op, and by its fallback on each."""
    x = pg.ones((2, 3), dtype="float32", device=device)
    assert two()(x)[0].tolist() == [[3.0] * 3] * 2
    total = pg.cumulative_sum(pg.ones_like(x), axis=1) * x
    assert total.tolist() == [[1.0, 2.0, 3.0]] * 2


def test_a_call_in_eager_mode_and_under_vmap(two, able):
    x, function = pg.asarray(X), two()
    with pg.eager():
        doubled, sums = function(x)
    np.testing.assert_array_equal(doubled.numpy(), X * 3)
    np.testing.assert_array_equal(sums.numpy(), SUMS)
    np.testing.assert_array_equal(pg.vmap(lambda row: function(row)[1])(x).numpy(), SUMS)


def test_a_plan_is_used_again_for_a_call_of_the_same_structure(two, able):
    function = two()
    plans = state(able).plans
    for k in range(4):
        assert function(pg.asarray(X * k))[0].tolist() == (X * k * 3).tolist()
    assert len(plans) == 1


def test_explain_shows_the_call_and_computes_nothing(two, able):
    doubled, sums = two()(pg.asarray(X))
    text = pg.explain(doubled, sums)
    assert text == "cpu:0: 1 launch\n1. two of float32[2, 3] to float32[2, 3] and float32[2, 1]"
    with pg.launch_counter() as c:
        pg.realize(doubled)
    assert c.ops == 1


def test_explain_says_what_the_driver_lacks(two, device):
    text = pg.explain(two(called="nothing")(pg.asarray(X))[0])
    assert text.endswith(", which the driver lacks: made of other launches, or borrowed from the host")


def test_gradients_through_several_results(two, able):
    function = two()
    x = pg.asarray(X)
    weights = pg.asarray([[1.0], [10.0]], dtype="float32")
    first = pg.grad(lambda v: pg.sum(function(v)[0] * v))(x)
    np.testing.assert_array_equal(first.numpy(), 6 * X)
    second = pg.grad(lambda v: pg.sum(function(v)[1] * weights))(x)
    np.testing.assert_array_equal(second.numpy(), [[1.0] * 3, [10.0] * 3])
    both = pg.grad(lambda v: pg.sum(function(v)[0] * function(v)[1]))(x)
    np.testing.assert_array_equal(both.numpy(), 3 * SUMS + 3 * SUMS + np.zeros_like(X))

    def product(v):
        doubled, sums = function(v * v)
        return pg.sum(doubled * sums)

    with pg.device("cpu:0"):
        wide = pg.asarray(X.astype("float64") / 8)
        pg.testing.gradcheck(product, wide)
        pg.testing.gradgradcheck(product, wide)


def test_backward_computes_the_call_once(two, able):
    x = pg.asarray(X).requires_grad_()
    doubled, sums = two()(x * 1.0)
    loss = pg.sum(doubled * sums)
    with pg.launch_counter() as c:
        loss.backward()
        pg.realize(x.grad, loss)
    assert c.ops == 1
    np.testing.assert_array_equal(x.grad.numpy(), 3 * SUMS + 3 * SUMS + np.zeros_like(X))


def test_tangents_through_several_results(two, able):
    function = two()
    x, t = pg.asarray(X), pg.asarray(np.ones_like(X))
    (value, _), (first, second) = pg.jvp(lambda v: function(v), (x,), (t,))
    np.testing.assert_array_equal(value.numpy(), X * 3)
    np.testing.assert_array_equal(first.numpy(), np.full_like(X, 3))
    np.testing.assert_array_equal(second.numpy(), [[3.0], [3.0]])


def test_a_device_that_lacks_the_op_computes_it_from_others(two, device):
    function = two()
    x = pg.asarray(X)
    before = state(device).fallbacks
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        doubled, sums = function(x + 0.0)
        with pg.launch_counter() as c:
            pg.realize(doubled, sums)
    assert c.ops == 0
    assert (doubled.device, sums.device) == (device, device)
    assert state(device).fallbacks == before
    np.testing.assert_array_equal(doubled.numpy(), X * 3)
    np.testing.assert_array_equal(sums.numpy(), SUMS)
    grad = pg.grad(lambda v: pg.sum(function(v)[0] * function(v * v)[1]))(x)
    want = 3 * (X * X).sum(-1, keepdims=True) + 2 * X * 3 * SUMS
    np.testing.assert_allclose(grad.numpy(), want, rtol=1e-6)


def test_a_fallback_may_be_made_of_library_ops_that_are_lacking_too(two, device, monkeypatch):
    found = state(device)
    monkeypatch.setattr(found, "info", dataclasses.replace(found.info, ops=frozenset()))
    monkeypatch.setattr(found, "plans", {})
    function = two(lambda xp, x, factor: (xp.sort_(x)[0] * float(factor), xp.sum_(xp.scan_(x, "max"), (x.ndim - 1,))))
    doubled, sums = function(pg.asarray(X[:, ::-1].copy()))
    np.testing.assert_array_equal(doubled.numpy(), X * 3)
    np.testing.assert_array_equal(sums.numpy(), X[:, -1:] * 3)


def test_a_fallback_that_gives_what_was_not_inferred_is_a_fault_of_its_own(two, device):
    function = two(lambda xp, x, factor: (x, x))
    with pytest.raises(AssertionError, match="the fallback of two_ gives .* where .* was inferred"):
        function(pg.asarray(X))[1].numpy()


@pytest.fixture
def unwarned(monkeypatch):
    monkeypatch.setattr(lacking, "_warned", set())


def test_the_host_lends_its_op_and_says_so_once(two, unable, unwarned, monkeypatch):
    monkeypatch.delenv("POLYGRAD_FALLBACK", raising=False)
    function = two(fallback=None)
    x = pg.asarray(X)
    before = state(unable).fallbacks
    with pytest.warns(pg.errors.FallbackWarning, match=f"^{unable}: it has no 'two', which runs on cpu:0"):
        doubled, sums = pg.realize(*function(x))
    assert (doubled.device, sums.device) == (unable, unable)
    np.testing.assert_array_equal(doubled.numpy(), X * 3)
    np.testing.assert_array_equal(sums.numpy(), SUMS)
    assert state(unable).fallbacks == before + 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert function(x, 4)[0].tolist() == (X * 4).tolist()
    assert state(unable).fallbacks == before + 2


def test_a_loan_may_be_silent(two, unable, unwarned, monkeypatch):
    monkeypatch.setenv("POLYGRAD_FALLBACK", "allow")
    before = state(unable).fallbacks
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert two(fallback=None)(pg.asarray(X))[1].tolist() == SUMS.tolist()
    assert state(unable).fallbacks == before + 1


def test_a_loan_may_be_forbidden(two, unable, unwarned, monkeypatch):
    monkeypatch.setenv("POLYGRAD_FALLBACK", "error")
    before = state(unable).fallbacks
    with pytest.raises(
        pg.UnsupportedOp,
        match=f"^{unable} has no op 'two', and POLYGRAD_FALLBACK=error forbids the host's: compute it on another",
    ):
        two(fallback=None)(pg.asarray(X))[0].numpy()
    assert state(unable).fallbacks == before
    monkeypatch.setenv("POLYGRAD_FALLBACK", "perhaps")
    with pytest.raises(ValueError, match="^POLYGRAD_FALLBACK is one of warn, error, allow, got 'perhaps'$"):
        two(fallback=None)(pg.asarray(X))[0].numpy()


def test_a_loan_carries_gradients(two, unable, unwarned, monkeypatch):
    monkeypatch.setenv("POLYGRAD_FALLBACK", "allow")
    function = two(fallback=None)
    grad = pg.grad(lambda v: pg.sum(function(v)[0] * function(v)[1]))(pg.asarray(X))
    assert grad.device == unable
    np.testing.assert_array_equal(grad.numpy(), 3 * SUMS + 3 * SUMS + np.zeros_like(X))


def test_the_host_itself_may_lack_the_op(two):
    with (
        pg.device("cpu:0"),
        pytest.raises(
            pg.UnsupportedOp, match="^cpu:0 has no op 'nothing', and nor has cpu:0: compute it on another device$"
        ),
    ):
        two(fallback=None, called="nothing")(pg.asarray(X))[0].numpy()
