"""Kernels grown by example: plans are the same whether kernels are grown one by one or found to be like earlier ones.

Here: random programs in many layers, graphs that repeat themselves up to a point. Not here: what is fused
(`test_fusion.py`), kernels written once (`test_scheduling.py`), times (`benchmarks/graph_cost.py`).
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import polygrad as pg
from polygrad.runtime import outlining
from polygrad.runtime.outlining import launches
from polygrad.schedule import fuse, twins
from support import fused_programs as fused


@pytest.fixture
def compared(monkeypatch):
    """Make every plan twice, with examples from the first kernel on and without; return how many were twins."""
    counts = {"twins": 0, "plans": 0}
    plan, find = outlining.plan, twins.Twins.find

    def counted(self, *args):
        found = find(self, *args)
        counts["twins"] += found is not None
        return found

    def both(question):
        monkeypatch.setattr(twins.Twins, "find", lambda *_: None)
        alone = plan(question)
        monkeypatch.setattr(twins.Twins, "find", counted)
        made = plan(question)
        counts["plans"] += 1
        assert repr(made) == repr(alone)
        return made

    monkeypatch.setattr(outlining, "plan", both)
    monkeypatch.setattr(fuse, "BEGIN", 0)
    return counts


def test_layers_of_random_programs_have_the_same_plans(device, compared):
    @settings(
        max_examples=60,
        deadline=None,
        derandomize=True,
        suppress_health_check=fused.relaxed,
        database=None,
    )
    @given(layers=st.integers(3, 7), **fused.programs)
    def check(layers, program, seed, keep, size):
        rng = np.random.default_rng(seed)
        shape = fused.SIZES[size]
        x, w = (pg.asarray(rng.uniform(-1, 1, shape).astype(np.float32)).requires_grad_() for _ in range(2))
        index = [pg.asarray(rng.integers(0, shape[1], shape[1])) for _ in range(4)]
        kept, h = [], x
        for _ in range(layers):
            values = fused.run_program(program, [h, w], index)
            h = values[-1] + 0.5 * h
            kept += [values[k % len(values)] for k in keep[:1]]
        loss = pg.sum(h * h)
        loss.backward()
        launches([a._node for a in (loss, *kept, x.grad, w.grad) if a is not None])

    with pg.device(device):
        check()
    assert compared["twins"] > compared["plans"]


def heat(x, steps):
    """A rod that cools, step by step."""
    for _ in range(steps):
        inner = x[1:-1] + (x[2:] - x[1:-1] * 2.0 + x[:-2]) * 0.1
        x = pg.concat([x[:1], inner, x[-1:]])
    return x


def recurrent(x, steps):
    """Products and an activation, step by step."""
    w = pg.asarray(np.linspace(-1, 1, x.size**2, dtype=np.float32).reshape(x.size, x.size))
    for _ in range(steps):
        x = pg.tanh(w @ x + x)
    return x


def uneven(x, steps):
    """Steps that differ now and then: in a number, in what they read, in what somebody holds."""
    first = x
    for k in range(steps):
        x = pg.sin(x) * (2.0 if k % 3 else 0.5) + (first if k % 4 else x)
        if k % 5 == 0:
            x = x / (1.0 + pg.mean(x * x))
    return x


@pytest.mark.parametrize("function", [heat, recurrent, uneven])
@pytest.mark.parametrize("size", [40, 300])
def test_steps_in_a_row_have_the_same_plans(device, compared, function, size):
    with pg.device(device):
        x = pg.asarray(np.linspace(0.5, 1.5, size, dtype=np.float32)).requires_grad_()
        loss = pg.sum(function(x, 30))
        loss.backward()
        launches([loss._node, x.grad._node])
    assert compared["plans"] >= 1
    assert compared["twins"] >= (0 if function is uneven else 5)


def rows(change):
    """Return a sum of values of equal structure, one of which *change* makes in another way."""
    rng = np.random.default_rng(0)
    arrays = [pg.asarray(rng.uniform(0.1, 0.5, (20, 20)).astype(np.float32)) for _ in range(17)]
    total = arrays[16]
    for k in range(8):  # each of its own arrays: kernels that read the same ones would become one
        total = total + change(*arrays[2 * k : 2 * k + 2], k == 3) @ arrays[16]
    return total


@pytest.mark.parametrize(
    "change",
    [
        lambda x, w, other: pg.sin(x) * 2.0,
        lambda x, w, other: pg.cos(x) if other else pg.sin(x),
        lambda x, w, other: (y := pg.sin(x)) + (pg.sin(w) if other else y),
        lambda x, w, other: pg.sin(x) + (pg.permute_dims(x, (1, 0)) if other else x),
        lambda x, w, other: pg.sin(x) * pg.sum(x, axis=int(other)),
        lambda x, w, other: pg.sin(pg.realize(pg.permute_dims(x, (1, 0))) if other else x),
    ],
    ids=["alike", "op", "shared", "movement", "axis", "layout"],
)
def test_what_differs_is_no_twin(device, compared, change):
    with pg.eager():
        expected = rows(change).numpy()
    with pg.device(device):
        value = rows(change)
        launches([value._node])
        assert compared["twins"]
        np.testing.assert_allclose(value.numpy(), expected, rtol=1e-4)
