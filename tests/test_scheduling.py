"""Scheduling large graphs: kernels written once and used again, who waits for whom, plans that grow with the graph.

Here: that what saves work changes no plan. Not here: which ops become one kernel (`test_fusion.py`), values
(`test_fused_programs.py`), times (`benchmarks/graph_cost.py`).
"""

import dataclasses
import gc
import importlib
import importlib.util
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings

import polygrad as pg
from polygrad.graph import quiet
from polygrad.runtime.devices import state
from polygrad.runtime.outlining import launches
from polygrad.schedule import reach, stamps
from polygrad.schedule.emit import Emitter
from polygrad.schedule.twins import Twin
from support import fused_programs as fused

plan_module = importlib.import_module("polygrad.schedule.plan")  # the package gives the name to the function


@pytest.fixture
def compared(monkeypatch):
    """Compare every launch that a plan asks for with one that is written anew; return how many were known."""
    counts = {"known": 0, "all": 0}

    def launch_of(group, info):
        before = len(stamps._known)
        found = stamps.launch_of(group, info)
        if isinstance(group, Twin):
            return found  # its demands are of other nodes; `test_twins.py` compares
        counts["all"] += 1
        counts["known"] += len(stamps._known) == before
        assert found == Emitter(group, info).emit()
        coarser = dataclasses.replace(info, limits=dataclasses.replace(info.limits, partials=1))
        assert stamps.launch_of(group, coarser) == Emitter(group, coarser).emit()  # as on another device
        return found

    monkeypatch.setattr(plan_module, "launch_of", launch_of)
    return counts


def test_a_known_launch_equals_the_one_written_anew(device, compared):
    @settings(
        max_examples=fused.examples(device, 60, 2),
        deadline=None,
        derandomize=True,
        suppress_health_check=fused.relaxed,
        database=None,
    )
    @given(**fused.programs)
    def check(program, seed, keep, size):
        rng = np.random.default_rng(seed)
        shape = fused.SIZES[size]
        value = [rng.uniform(-1, 1, shape).astype(np.float32) for _ in range(2)]
        index = [rng.integers(0, shape[1], shape[1]) for _ in range(4)]
        first = fused.run_once(program, value, index, keep)
        state(device).plans.clear()
        again = fused.run_once(program, value, index, keep)
        for a, b in zip(first, again, strict=True):
            np.testing.assert_array_equal(a, b)

    stamps.forget()  # once: programs that are not quite the same are to meet
    with pg.device(device):
        check()
    assert compared["known"] > compared["all"] // 3


def test_views_of_leaves_have_launches_of_their_own(device, compared):
    """What is in memory with other strides, at other places or with other sizes is another kernel or another launch."""
    with pg.device(device):
        base = pg.asarray(np.arange(48, dtype=np.float32).reshape(4, 12))
        for x in (base[:, :6], base[:, ::2], base[:, 1:7], base[:2], base.T, base[1:3, 3:9], base[:, :6]):
            y = pg.sin(x) * 2.0 + pg.pad(x, ((0, 0), (1, 0)))[:, :-1]
            np.testing.assert_allclose(
                y.numpy(),
                np.sin(x.numpy()) * 2 + np.pad(x.numpy(), ((0, 0), (1, 0)))[:, :-1],
                rtol=1e-5,
            )


def test_where_elements_come_from_is_part_of_what_is_known(device, compared):
    """Movement that leaves the shape as it is makes kernels that differ in the places of their loads alone."""
    with pg.device(device):
        x = pg.asarray(np.arange(16, dtype=np.float32).reshape(4, 4))
        for move in (lambda x: x, lambda x: x.T, lambda x: x[::-1], lambda x: x[:, ::-1]):
            np.testing.assert_allclose(pg.tanh(move(x * 0.1)).numpy(), np.tanh(move(x.numpy() * 0.1)), rtol=1e-5)
        for width in (1, 2, 3):  # the same places, in windows of other sizes
            got = pg.pad(x[:, :width], ((0, 0), (0, 4 - width))) * 0.1
            np.testing.assert_allclose(got.numpy(), np.where(np.arange(4) < width, x.numpy(), 0) * 0.1, rtol=1e-6)


def test_parts_of_sums_are_as_many_as_a_device_takes(device, compared):
    stamps.forget()
    x, gain = (pg.asarray(np.ones(s, np.float32), device=device).requires_grad_() for s in ((512, 64), (64,)))
    y = x / pg.sqrt(pg.mean(x * x, axis=1, keepdims=True) + 1.0) * gain
    (y * y).sum().backward()
    pg.realize(x.grad, gain.grad)
    assert any(launch.partials for launch in stamps._known.values())


def branches(count, length=60):
    """Return a loss of several long branches over one array, whose backward passes all use what they computed."""
    x = pg.asarray(np.linspace(0.5, 1.5, 64, dtype=np.float32)).requires_grad_()
    total = 0.0
    for k in range(count):
        h = x * (1.0 + k)
        for _ in range(length):
            h = pg.sin(h) * 0.5 + x
        total = total + h
    loss = pg.sum(total)
    loss.backward()
    return loss, x.grad


def test_no_plan_of_these_is_made_twice(device, monkeypatch):
    """No kernels wait for each other, so no plan is given up for one that shares nothing."""
    original = plan_module.Fusion

    def fusion(*args, sharing=True, **keywords):
        assert sharing
        return original(*args, **keywords)

    monkeypatch.setattr(plan_module, "Fusion", fusion)
    with pg.device(device):
        launches([a._node for a in branches(16)])


def instructions(layers):
    """Return how many instructions the kernels of residual layers on small arrays have together."""
    x, w = pg.asarray(np.ones((8, 8), np.float32)), pg.asarray(np.ones((8, 8), np.float32))
    for _ in range(layers):
        x = x + pg.tanh(x @ w) * pg.sin(x * 0.5)
    return sum(len(launch.step.kernel.body) for launch in launches([x._node]) if hasattr(launch.step, "kernel"))


def test_small_values_that_take_many_instructions_are_kept(device):
    with pg.device(device):
        assert instructions(64) < 6 * instructions(16)


def waits(nodes, produced, source, target):
    """Whether *source* is *target* or waits for it, by walking everywhere."""
    seen, stack = set(), [source]
    while stack:
        n = stack.pop()
        if n is target:
            return True
        if n.number not in seen:
            seen.add(n.number)
            stack += n.parents
            if n in produced:
                stack += produced[n].inputs
    return False


class Point(SimpleNamespace):
    """What `Reach` knows of a node."""

    __hash__ = object.__hash__
    __eq__ = object.__eq__


@pytest.mark.parametrize("seed", range(40))
def test_who_waits_for_whom_is_found_by_numbers(seed):
    rng = np.random.default_rng(seed)
    count = int(rng.integers(5, 60))
    order = []
    for number in range(1, count + 1):
        parents = [order[int(k)] for k in rng.integers(0, len(order), 2)] if order else []
        order.append(Point(number=number, parents=tuple(parents), storage=None))
    produced = {}
    found = reach.Reach(order, produced)
    for _ in range(int(rng.integers(0, 12))):
        outputs = [order[int(k)] for k in rng.integers(0, count, 2)]
        step = SimpleNamespace(outputs=outputs, inputs=[order[int(k)] for k in rng.integers(0, count, 2)])
        for n in outputs:
            produced.setdefault(n, step)
        found.note(step)
    for _ in range(60):
        sources = [order[int(k)] for k in rng.integers(0, count, 2)]
        target = order[int(rng.integers(0, count))]
        assert found.leads(sources, target) == any(waits(order, produced, s, target) for s in sources)


def test_without_patience_the_answer_is_yes(monkeypatch):
    monkeypatch.setattr(reach, "PATIENCE", 3)
    order = [Point(number=1, parents=(), storage=None), Point(number=2, parents=(), storage=None)]
    for number in range(3, 20):
        order.append(Point(number=number, parents=(order[-1],), storage=None))
    order.append(Point(number=20, parents=(order[0],), storage=None))
    found = reach.Reach(order, {})
    assert found.leads([order[-1]], order[0])
    assert not found.leads([order[3]], order[0])  # two steps down there is nothing more
    assert found.leads([order[-2]], order[0])  # it is not, but that would be seen sixteen steps down


def test_what_is_known_stays_bounded(device, monkeypatch):
    monkeypatch.setattr(stamps, "ROOM", 200)
    stamps.forget()
    with pg.device(device):
        x = pg.asarray(np.ones(8, np.float32))
        for k in range(1, 12):
            y = x
            for _ in range(k):
                y = pg.tanh(y)
            launches([y._node])
    assert 0 < sum(len(words) for words, *_ in stamps._known) <= 200


def test_the_collector_rests_while_somebody_plans():
    assert gc.isenabled()
    with quiet.quiet():
        assert not gc.isenabled()
        with quiet.quiet():
            assert not gc.isenabled()
        assert not gc.isenabled()
        other = quiet.quiet()
        thread = threading.Thread(target=other.__enter__)
        thread.start()
        thread.join()
    assert not gc.isenabled()  # another thread is still at it
    other.__exit__(None, None, None)
    assert gc.isenabled()
    with pytest.raises(ZeroDivisionError), quiet.quiet():
        raise ZeroDivisionError
    assert gc.isenabled()
    gc.disable()
    try:
        with quiet.quiet():
            pass
        assert not gc.isenabled()  # as the user has it
    finally:
        gc.enable()
