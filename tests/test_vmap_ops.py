"""pg.vmap of every op: one example's graph read for all of them, against a loop over the examples.

Here: tests derived from the table, by the ops' references. Not here: what users see of vmap (`test_vmap.py`).
"""

import re
import zlib

import numpy as np
import pytest

import polygrad as pg
from polygrad.array.functions import CREATION
from polygrad.autograd import Batch
from polygrad.graph.functions import F
from polygrad.graph.node import Node, apply, parts
from polygrad.ops import batching
from polygrad.ops.table import TABLE
from polygrad.testing.draw import Draw
from polygrad.testing.interpret import evaluate, leaf
from polygrad.testing.primitives import CALLS, operands_of
from support.graphs import ancestors

N = 3


def refuses(error, sentence):
    return pytest.raises(error, match=f"^{re.escape(sentence)}$")


def test_no_op_is_without_a_batching_rule():
    assert batching.without_rule() == []


def each(value, function):
    """Return *value* with *function* applied to each NumPy array in it."""
    if isinstance(value, np.ndarray):
        return function(value)
    if isinstance(value, (list, tuple)):
        return type(value)(each(v, function) for v in value)
    if isinstance(value, dict):
        return {k: each(v, function) for k, v in value.items()}
    return value


def arrays_of(value):
    found = []
    each(value, lambda a: found.append(a) or a)
    return found


def nodes_of(result):
    """Return the nodes of a result; of a complex one its parts."""
    if isinstance(result, (list, tuple)):
        return [n for r in result for n in nodes_of(r)]
    return list(parts(result)) if isinstance(result, Node) else []


def samples_of(op):
    """Return samples of an op, each drawn N times: (calls that differ in their arrays alone)."""
    dtype = {"float": pg.float64, "int": pg.int64, "bool": pg.bool}
    kind = next(k for k in ("float", "int", "bool") if k in (op.dtypes or "float"))
    seed = zlib.crc32(op.name.encode())
    drawn = [list(op.samples(Draw(np.random.default_rng(seed + i), dtype[kind]))) for i in range(N)]
    for calls in zip(*drawn, strict=True):
        if op.name == "where":
            calls = [((np.asarray(a[0] > 0), *a[1:]), k) for a, k in calls]
        yield calls


VALUES = {"nonzero", "unique_all", "unique_counts", "unique_inverse", "unique_values"}  # shapes depend on values
SAMPLED = [op for op in TABLE.values() if op.samples is not None and op.name not in CREATION]


@pytest.mark.parametrize("op", [op for op in SAMPLED if op.name not in VALUES], ids=lambda op: op.name)
def test_an_op_of_all_examples_is_that_of_each(op):
    function = getattr(F, op.name)
    tried = 0
    for calls in filter(usable, samples_of(op)):
        count = len(arrays_of(calls[0]))
        for moving in {tuple(range(count)), tuple(range(0, count, 2)), tuple(range(1, count, 2))} - {()}:
            check_against_loop(function, calls, moving)
            tried += 1
    assert tried, f"{op.name} has no samples that differ in their arrays alone"


@pytest.mark.parametrize("name", sorted(VALUES))
def test_an_op_whose_shape_depends_on_values_has_no_example(name):
    with pytest.raises(pg.CaptureError, match="^cannot look at a value that pg.vmap maps over"):
        pg.vmap(getattr(pg, name))(pg.asarray([[1.0, 0.0], [2.0, 2.0]]))


ELSEWHERE = {
    "analytic_": "complex examples, in test_vmap.py",
    "call_output_": "functions with written derivatives, in test_vmap.py",
    "nonzero_": "its caller looks at a value first",
    "random_bits_": "random numbers, in test_vmap.py",
    "transfer_": "a function that moves an array, in test_vmap.py",
}


def usable(calls):
    """Whether N draws of a sample differ in their arrays alone, so that they are examples of one call."""
    shapes = {tuple(a.shape for a in arrays_of(c)) for c in calls}
    return bool(arrays_of(calls[0])) and len(shapes) == 1 and len({repr(each(c, lambda a: None)) for c in calls}) == 1


def mapped(function, calls, moving):
    """Return the operands of all examples, and what reads their results."""
    stacks = [np.stack(v) for v in zip(*[arrays_of(c) for c in calls], strict=True)]
    batch = Batch(N)
    with batch.reading():
        given = iter([batch.placeholder(leaf(s)) if k in moving else leaf(s[0]) for k, s in enumerate(stacks)])
        args, keywords = each(calls[0], lambda a: next(given))
        made = nodes_of(function(*args, **keywords))
    return stacks, [batch.examples(n) for n in made]


def test_every_primitive_is_read_by_a_test():
    reached = set()
    for op in SAMPLED:
        if op.name not in VALUES:
            calls = next(c for c in samples_of(op) if usable(c))
            _, made = mapped(getattr(F, op.name), calls, range(len(arrays_of(calls[0]))))
            reached |= {n.op.name for n in ancestors(made)}
    kinds = batching.LEAVES | {"composite", "elementwise"}
    left = {op.name for op in TABLE.values() if op.kind not in kinds} - reached
    assert left <= CALLS.keys() | ELSEWHERE.keys(), "give them a call in polygrad/testing/primitives.py"


@pytest.mark.parametrize("name", sorted(CALLS))
def test_a_primitive_of_all_examples_is_that_of_each(name):
    draw = Draw(np.random.default_rng(5), pg.float64)
    drawn = [operands_of(name, draw) for _ in range(N)]
    calls = [((*operands, *attrs), {}) for operands, attrs in drawn]
    count = len(drawn[0][0])
    for moving in {tuple(range(count)), (0,), (count - 1,)}:
        check_against_loop(recorder(name), calls, moving)


def recorder(name):
    if name == "astype":
        return lambda x, dtype: apply(TABLE[name], (x,), (dtype,))
    return getattr(F, name)


# Without samples are those that give a computed value its slopes: their callers have samples, above.
ELEMENTWISE = [op for op in TABLE.values() if op.kind == "elementwise" and op.samples is not None]


@pytest.mark.parametrize("op", ELEMENTWISE, ids=lambda op: op.name)
def test_an_elementwise_op_of_all_examples_is_that_of_each(op):
    for calls in samples_of(op):
        count = len(calls[0][0])
        for moving in {tuple(range(count)), (0,), (count - 1,)}:
            check_against_loop(getattr(F, op.name), calls, moving)


def check_against_loop(function, calls, moving):
    stacks, made = mapped(function, calls, moving)
    got = [evaluate(n) for n in made]
    for i in range(N):
        alone = iter([leaf(s[i if k in moving else 0]) for k, s in enumerate(stacks)])
        args, keywords = each(calls[0], lambda a, alone=alone: next(alone))
        want = [evaluate(n) for n in nodes_of(function(*args, **keywords))]
        for all_examples, one in zip(got, want, strict=True):
            assert all_examples.dtype == one.dtype
            np.testing.assert_allclose(all_examples[i], one, rtol=1e-9, atol=1e-12)
