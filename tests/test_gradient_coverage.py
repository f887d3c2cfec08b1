"""That no op is without a derivative, and that none is without a test of it.

Here: what the table must say of each op; derivatives of the ops that users do not see; operands of no and of one
element, and views with negative steps. Not here: the samples of public functions as they are (`test_gradients.py`).
"""

import zlib

import numpy as np
import pytest

import polygrad as pg
from polygrad.array.functions import NAMESPACES
from polygrad.array.object import Array
from polygrad.array.tree import flatten
from polygrad.graph.functions import F
from polygrad.graph.node import apply, parts
from polygrad.ops.table import TABLE
from polygrad.testing.draw import Draw
from polygrad.testing.primitives import CALLS, operands_of
from support.graphs import ancestors

# Ops whose value does not move with any operand, or that have none: their derivative is nothing, by nature.
NOTHING = {
    "scalar": "no operands",
    "buffer": "no operands",
    "iota": "no operands",
    "placeholder": "no operands",
    "random": "a key and a counter are integers",
    "check": "indices are integers",
    "pair": "two nodes side by side, differentiated by each",
}


def test_every_op_says_what_its_derivative_is():
    silent = []
    for op in TABLE.values():
        if op.vjp is not None or op.kind in NOTHING or op.kind == "composite":
            continue
        integers = "float" not in op.dtypes and "complex" not in op.dtypes
        if not integers:
            silent.append(op.name)
    assert silent == [], "declare vjp and jvp, or None for each operand that has none"


def test_both_modes_have_rules_for_the_same_operands():
    uneven = [
        op.name
        for op in TABLE.values()
        if op.kind != "composite" and [r is None for r in op.vjp or ()] != [r is None for r in op.jvp or ()]
    ]
    assert uneven == []


def shown(op):
    """Return the function that users call, of any namespace; None for an op that they do not see."""
    if not op.public or op.name.endswith("_"):
        return None
    found = [functions[op.name] for functions in NAMESPACES.values() if op.name in functions]
    return found[0] if found else getattr(pg, op.name, None)


# Differentiable functions without samples, and what tests them instead.
BY_HAND = {
    "to_device_": "test_arrays.py",
}


def test_every_differentiable_function_has_samples_with_floats():
    left = [
        op.name
        for op in TABLE.values()
        if op.differentiable and shown(op) and (op.samples is None or "float" not in op.dtypes.split())
    ]
    assert sorted(set(left) - BY_HAND.keys()) == [], "give them samples, which derive the tests of their gradients"


def through_nodes(function):
    """Return a function from nodes to nodes as one from arrays to arrays."""

    def call(*arrays):
        made = function(*[x._node for x in arrays])
        made = made if isinstance(made, tuple) else (made,)
        return [Array(n) for n in made if n.dtype in (pg.float64, pg.float32)]

    return call


# Those without samples are parts of one function each, whose derivatives are checked in `test_special.py`.
SAMPLED_ELEMENTWISE = [op for op in TABLE.values() if op.kind == "elementwise" and op.samples is not None]
HIDDEN = [op for op in SAMPLED_ELEMENTWISE if not op.public and op.differentiable]
STEPPED = {"fmod"}  # its slope by the divisor steps where the quotient does: by the dividend alone


@pytest.mark.parametrize("op", HIDDEN, ids=lambda op: op.name)
def test_elementwise_ops_that_users_do_not_see(op):
    draw = Draw(np.random.default_rng(zlib.crc32(op.name.encode())), pg.float64)
    with pg.device("cpu:0"):
        for operands, _ in op.samples(draw):
            if op.name in STEPPED:
                operands = (np.asarray(operands[0] * 0.01 + 0.03), np.asarray(np.abs(operands[1]) + 1.0))
            inputs = [pg.asarray(x) for x in operands]
            pg.testing.gradcheck(through_nodes(getattr(F, op.name)), *inputs)
            if op.second:
                pg.testing.gradgradcheck(through_nodes(getattr(F, op.name)), *inputs, tol=1e-5)


# What it gets from attention_ depends on its other operands: its derivatives are the second ones of attention_.
DEPENDENT = {"attention_backward_"}
PRIMITIVES = [name for name in CALLS if TABLE[name].differentiable and name not in {"astype"} | DEPENDENT]


def recorder(name, attrs):
    if TABLE[name].kind == "library":
        return lambda *nodes: getattr(F, name)(*nodes, *attrs)
    return lambda *nodes: apply(TABLE[name], nodes, attrs or None)


@pytest.mark.parametrize("name", PRIMITIVES)
def test_primitives_that_users_do_not_see(name):
    operands, attrs = operands_of(name, Draw(np.random.default_rng(3), pg.float64))
    with pg.device("cpu:0"):
        inputs = [pg.asarray(x) for x in operands]
        pg.testing.gradcheck(through_nodes(recorder(name, attrs)), *inputs)
        pg.testing.gradgradcheck(through_nodes(recorder(name, attrs)), *inputs, tol=1e-5)


SAMPLED = [
    op
    for op in TABLE.values()
    if op.samples is not None and op.differentiable and "float" in op.dtypes.split() and shown(op)
]
STEPS = {"nextafter", "floor_divide"}  # differences see their steps
SMOOTH = [op for op in SAMPLED if op.name not in STEPS]


def arrays_of(value):
    """Return a call's arguments with NumPy arrays as arrays."""
    if isinstance(value, np.ndarray):
        return pg.asarray(value)
    if isinstance(value, (list, tuple)):
        return type(value)(arrays_of(v) for v in value)
    return value


def samples(op, wanted):
    """Return (function, inputs) for the samples of an op among whose float operands there is a *wanted* one."""
    draw = Draw(np.random.default_rng(zlib.crc32(op.name.encode()) + 1), pg.float64)
    function = shown(op)
    for args, keywords in op.samples(draw):
        if keywords.get("dtype") is not None:
            continue
        if op.name == "where":
            args = (np.asarray(args[0] > 0), *args[1:])
        inputs, rebuild = flatten(arrays_of(list(args)))
        if any(x.dtype is pg.float64 and wanted(x) for x in inputs):
            yield lambda *xs, r=rebuild, k=keywords: function(*r(list(xs)), **k), inputs


def smooth(result):
    """Whether a result can be differentiated and moved: it holds floats, and none is infinite or NaN."""
    floats = [x for x in flatten(result)[0] if x.dtype is pg.float64]
    return bool(floats) and all(bool(pg.all(pg.isfinite(x))) for x in floats)


@pytest.mark.parametrize("op", SMOOTH, ids=lambda op: op.name)
def test_operands_without_elements_and_with_one(op):
    with pg.device("cpu:0"):
        for function, inputs in samples(op, lambda x: x.size < 2):
            if smooth(function(*inputs)):
                pg.testing.gradcheck(function, *inputs)
                pg.testing.gradgradcheck(function, *inputs, tol=1e-5)


def turned(x):
    return pg.flip(x) if x.ndim and x.dtype is pg.float64 else x


@pytest.mark.parametrize("op", SMOOTH, ids=lambda op: op.name)
def test_operands_that_are_views_with_negative_steps(op):
    with pg.device("cpu:0"):
        for function, inputs in list(samples(op, lambda x: x.ndim > 0 and x.size > 1))[:2]:
            if not smooth(function(*inputs)):
                continue
            stored = pg.realize([pg.asarray(turned(x).numpy()) if x.dtype is pg.float64 else x for x in inputs])
            views = [pg.realize(turned(x)) for x in stored]
            pg.testing.gradcheck(function, *views)  # whose memory is read backwards
            pg.testing.gradcheck(lambda *xs, f=function: f(*map(turned, xs)), *stored)


# Differentiable ops that neither a sample nor a call above reaches, and what tests them instead.
ELSEWHERE = {
    "analytic_": "test_complex_gradients.py",
    "call_output_": "test_jacobians.py and test_transforms.py",
    "nextafter": "test_gradient_points.py: differences see its steps",
    "scatter_reduce_rows_": "maxima and minima: test_updates.py",
    "transfer_": "test_arrays.py",
}


def test_every_differentiable_primitive_is_reached_by_a_check():
    reached = set(CALLS)
    with pg.device("cpu:0"):
        for op in SMOOTH:
            for function, inputs in samples(op, lambda x: x.size > 0):
                made = [p for x in flatten(function(*inputs))[0] for p in parts(x._node)]
                reached |= {n.op.name for n in ancestors(made)}
    left = {op.name for op in TABLE.values() if op.kind != "composite" and op.differentiable} - reached
    hidden = {op.name for op in HIDDEN}
    assert left - hidden <= ELSEWHERE.keys(), "give them a call in polygrad/testing/primitives.py"
