"""Attention by a device's own op equals attention made of products and a softmax, in value and in all derivatives.

Here: random shapes against the composite, gradients of all orders, vmap, compile, devices without the op, memory, and
that nothing which the op does not know is left out.
Not here: layers (`test_nn_layers.py`), the op at the waist (the conformance suite), what each driver does inside.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import polygrad as pg
from polygrad.array.object import Array
from polygrad.graph.functions import F
from polygrad.ops import attention as declared
from polygrad.ops.fused_attention import attention_, attention_backward_
from polygrad.runtime.devices import state
from polygrad.runtime.lacking import stand_in

attend = pg.nn.functional.scaled_dot_product_attention
EPS = {"float32": 2.0**-23, "float64": 2.0**-52, "float16": 2.0**-10, "bfloat16": 2.0**-7}


@pytest.fixture(autouse=True)
def _on_cpu():
    with pg.device("cpu:0"):
        yield


@pytest.fixture
def composite(monkeypatch):
    """Return what runs a function with attention made of other ops."""

    def run(function, *arguments):
        with monkeypatch.context() as m:
            m.setattr(declared, "suits", lambda *_: False)
            return function(*arguments)

    return run


def operands(seed, batch, rows, columns, heads, shared, features, value_features, dtype="float64", size=1.0):
    rng = np.random.default_rng(seed)
    shapes = [(batch, heads, rows, features), (batch, shared, columns, features),
              (batch, shared, columns, value_features), (batch, heads, rows, value_features)]  # fmt: skip
    return [pg.asarray(size * rng.normal(size=s), dtype=dtype) for s in shapes]


def names(*arrays):
    """Return the names of all ops that arrays are made of."""
    seen, stack = set(), [a._node for a in arrays]
    while stack:
        n = stack.pop()
        if n not in seen:
            seen.add(n)
            stack += n.parents
    return {n.op.name for n in seen}


def near(got, want, dtype, terms):
    """Assert equality up to rounding of sums of so many terms."""
    for a, b in zip(got, want, strict=True):
        x, y = (np.asarray(v.numpy(), np.float64) for v in (a, b))
        assert x.shape == y.shape
        assert a.dtype == b.dtype
        scale = max(1.0, float(np.abs(y).max(initial=0.0)))
        assert np.abs(x - y).max(initial=0.0) <= 40 * EPS[dtype] * np.sqrt(terms) * scale


SHAPES = st.tuples(
    st.integers(1, 3), st.sampled_from([1, 2, 5, 33, 150]), st.sampled_from([1, 3, 40, 140]),
    st.sampled_from([(1, 1), (2, 2), (4, 2), (3, 1)]), st.sampled_from([1, 5, 16, 128]), st.sampled_from([1, 4, 7, 64]),
)  # fmt: skip


@settings(max_examples=25, deadline=None)
@given(SHAPES, st.booleans(), st.sampled_from(["float32", "float64", "float16", "bfloat16"]), st.integers(0, 1 << 30))
def test_values_and_gradients_are_those_of_the_composite(shape, causal, dtype, seed):
    batch, rows, columns, (heads, shared), features, value_features = shape
    features = min(features, 64) if dtype == "float64" else features
    *given_, g = operands(seed, batch, rows, columns, heads, shared, features, value_features, dtype)

    def loss(q, k, v):
        return (attend(q, k, v, is_causal=causal, enable_gqa=heads != shared) * g).sum()

    out = attend(*given_, is_causal=causal, enable_gqa=heads != shared)
    assert "attention_" in names(out)
    found = [out, *pg.grad(loss, argnums=(0, 1, 2))(*given_)]
    wide = [pg.asarray(a.numpy().astype(np.float64)) for a in (*given_, g)]
    values = [x.numpy().swapaxes(1, 2) for x in wide]
    want, lse = attention_.body(np, *values[:3], features**-0.5, causal)
    slopes = attention_backward_.body(np, *values[:3], want, lse, values[3], features**-0.5, causal)
    terms = features + columns + value_features  # the last of slopes, which may cancel each other
    near(found, [pg.asarray(w.swapaxes(1, 2), dtype=dtype) for w in (want, *slopes)], dtype, terms)


def test_large_scores_neither_overflow_nor_lose_rows(composite):
    q, k, v, _ = operands(3, 2, 20, 30, 2, 2, 8, 8, "float32", size=30.0)
    out = attend(q, k, v, is_causal=True)
    assert np.isfinite(out.numpy()).all()
    np.testing.assert_allclose(out.numpy(), composite(lambda: attend(q, k, v, is_causal=True).numpy()), atol=2e-3)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_query_that_is_no_number_spoils_its_own_row_alone(bad):
    q, k, v, _ = operands(4, 1, 6, 6, 1, 1, 4, 4, "float32")
    q = q.at[0, 0, 3, :].set(bad)
    wrong = np.isnan(attend(q, k, v, is_causal=True).numpy()).any(axis=(0, 1, 3))
    assert wrong.tolist() == [False, False, False, True, False, False]


def test_views_are_read_where_they_lie():
    rng = np.random.default_rng(5)
    packed = pg.asarray(rng.normal(size=(2, 40, 3 * 4 * 8)).astype(np.float32))
    parts = pg.swapaxes(pg.reshape(packed, (2, 40, 12, 8)), 1, 2)
    q, k, v = parts[:, :4], parts[:, 4:8], parts[:, 8:]
    with pg.launch_counter() as count:
        out = attend(q, k, v, is_causal=True).realize()
        merged = pg.reshape(pg.swapaxes(out, 1, 2), (2, 40, 32)).realize()
    assert count.total == 1, "heads are split and joined without a copy"
    copies = [pg.asarray(x.numpy()) for x in (q, k, v)]
    np.testing.assert_array_equal(out.numpy(), attend(*copies, is_causal=True).numpy())
    assert merged.shape == (2, 40, 32)


def test_fewer_and_more_axes_than_four(composite):
    rng = np.random.default_rng(6)
    for lead in ((), (3,), (2, 3, 2)):
        q, k, v = (pg.asarray(rng.normal(size=(*lead, n, 5))) for n in (4, 6, 6))
        got, want = attend(q, k, v), composite(lambda q=q, k=k, v=v: attend(q, k, v).realize())
        assert "attention_" in names(got)
        np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-12, atol=1e-14)


def test_what_the_op_does_not_know_is_computed_by_other_ops():
    q, k, v, _ = operands(7, 2, 6, 6, 2, 2, 8, 8)
    seen = pg.asarray(np.tri(6, k=2, dtype=bool))
    wide, double = operands(7, 1, 6, 6, 1, 1, 130, 4, "float32"), operands(7, 1, 6, 6, 1, 1, 66, 4)
    for out in (
        attend(q, k, v, seen),
        attend(q, k, v, pg.zeros((6, 6))),
        attend(q, k, v, dropout_p=0.5),
        attend(q, k[:1], v[:1]),
        attend(q, k, v[:, :1]),
        attend(q, k, pg.astype(v, pg.float32)),
        attend(*wide[:3]),
        attend(*double[:3]),
        attend(q, k[:, :, :0], v[:, :, :0]),
    ):
        assert "attention_" not in names(out)
    first = attend(q, k, v, seen).numpy()
    assert np.abs(first - attend(q, k, v).numpy()).max() > 0.01, "a mask is never left out"


def test_a_scale_of_numpy_is_a_number_and_one_that_changes_is_followed():
    q, k, v, _ = operands(14, 1, 6, 6, 2, 2, 4, 4)
    assert "attention_" in names(attend(q, k, v, scale=1 / np.sqrt(np.float64(4))))
    step = pg.compile(lambda scale: attend(q, k, v, scale=scale))
    for scale in (0.1, 0.2, 0.3, 0.4):
        np.testing.assert_allclose(step(scale).numpy(), attend(q, k, v, scale=scale).numpy(), rtol=1e-12)
    assert "1 captures" in step.explain()


def test_values_that_do_not_belong_to_the_keys_are_refused():
    q, k, v, _ = operands(14, 1, 6, 6, 2, 2, 4, 4)
    with pytest.raises(pg.ShapeError, match=r"cannot attend to keys \[1, 2, 6, 4\] with values \[1, 2, 5, 4\]"):
        attend(q, k, v[:, :, :5])


def test_derivatives_of_second_and_third_order():
    for heads, shared, causal in ((2, 1, True), (2, 2, False)):
        q, k, v, g = operands(8, 1, 3, 4, heads, shared, 2, 3)

        def value(q, k, v, causal=causal, gqa=heads != shared):
            return attend(q, k, v, is_causal=causal, enable_gqa=gqa, scale=0.7)

        pg.testing.gradcheck(value, q, k, v)
        pg.testing.gradgradcheck(value, q, k, v, tol=1e-5)

        def twice(q, k, v, value=value, g=g):
            first = pg.grad(lambda *x: (pg.sin(value(*x)) * g).sum(), argnums=(0, 1, 2))(q, k, v)
            return sum((pg.sin(x)).sum() for x in first)

        pg.testing.gradcheck(lambda *x, f=twice: pg.grad(f, argnums=(0, 1, 2))(*x), q, k, v, tol=1e-4)


def test_forward_mode_and_both_together(composite):
    q, k, v, g = operands(9, 2, 4, 5, 4, 2, 3, 2)

    def value(q, k, v):
        return attend(q, k, v, is_causal=True, enable_gqa=True)

    def slopes(q, k, v):
        return pg.grad(lambda *x: (pg.tanh(value(*x)) * g).sum(), argnums=(0, 1, 2))(q, k, v)

    tangents = tuple(pg.asarray(np.random.default_rng(n).normal(size=x.shape)) for n, x in enumerate((q, k, v)))
    for function in (value, slopes):
        got = pg.jvp(function, (q, k, v), tangents)[1]
        want = composite(lambda f=function: pg.realize(pg.jvp(f, (q, k, v), tangents)[1]))
        got, want = (x if isinstance(x, tuple) else (x,) for x in (got, want))
        near(got, want, "float64", 50)


@pytest.mark.parametrize("axes", [(0, 0, 0), (0, None, None), (None, 0, 0)])
def test_all_examples_of_vmap_are_one_call(axes):
    rng = np.random.default_rng(10)
    shapes = [(2, 4, 5, 6), (2, 2, 7, 6), (2, 2, 7, 3)]
    given_ = [pg.asarray(rng.normal(size=s if a is None else (3, *s))) for s, a in zip(shapes, axes, strict=True)]

    def slopes(q, k, v):
        return pg.grad(lambda *x: pg.sin(attend(*x, enable_gqa=True)).sum(), argnums=(0, 1, 2))(q, k, v)

    mapped = pg.vmap(slopes, in_axes=axes)(*given_)
    for i in range(3):
        one = slopes(*[x if a is None else x[i] for x, a in zip(given_, axes, strict=True)])
        near([m[i] for m in mapped], one, "float64", 50)


def test_a_compiled_step_equals_a_plain_one():
    q, k, v, g = operands(11, 2, 20, 20, 2, 2, 8, 8, "float32")

    def step(q, k, v):
        return pg.grad(lambda *x: (attend(*x, is_causal=True) * g).sum(), argnums=(0, 1, 2))(q, k, v)

    compiled = pg.compile(step)
    for _ in range(3):
        for a, b in zip(compiled(q, k, v), step(q, k, v), strict=True):
            np.testing.assert_array_equal(a.numpy(), b.numpy())


def test_a_device_that_lost_the_op_computes_the_same_from_others():
    q, k, v, g = operands(12, 2, 5, 6, 4, 2, 3, 2)
    q, k, v, g = (pg.swapaxes(x, 1, 2) for x in (q, k, v, g))
    nodes = [x._node for x in (q, k, v)]
    attrs = (0.5, True)
    want = F.attention_(*nodes, *attrs)
    slopes = F.attention_backward_(*nodes, *want, g._node, *attrs)
    expected = [Array(n).numpy() for n in (*want, *slopes)]
    got = F.attention_(*nodes, *attrs)
    stand_in(state("cpu:0"), got[0])
    again = F.attention_backward_(*nodes, *got, g._node, *attrs)
    stand_in(state("cpu:0"), again[0])
    for node, value in zip((*got, *again), expected, strict=True):
        np.testing.assert_allclose(Array(node).numpy(), value, rtol=1e-10, atol=1e-12)


def test_weights_are_kept_nowhere(composite):
    q, k, v, g = operands(13, 1, 512, 512, 4, 4, 16, 16, "float32")
    weights = 4 * 512 * 512 * 4
    pool = state("cpu:0").pool

    def peak():
        pg.empty_cache()
        before = pg.memory_stats("cpu:0")["used"]
        pool.peak = before
        pg.realize(pg.grad(lambda *x: (attend(*x, is_causal=True) * g).sum(), argnums=(0, 1, 2))(q, k, v))
        return pg.memory_stats("cpu:0")["peak"] - before

    assert peak() < weights / 4
    assert composite(peak) >= weights
