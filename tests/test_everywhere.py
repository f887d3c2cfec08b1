"""The same answer everywhere: random programs of 1 to 30 ops, with their gradients, on every device present.

Here: programs drawn by Hypothesis, compared with the oracle (the references of the table's ops, by NumPy in float64);
random numbers, whose bits are compared. Not here: single ops (`test_ops_on_devices.py`).

What difference is allowed. A device rounds after each op; how much that matters depends on the program. So the oracle
computes each program several times more with every rounded result changed by a random part of up to ROUNDINGS units of
the dtype (Monte Carlo arithmetic: Parker, "Monte Carlo arithmetic", 1997). A device may differ from the undisturbed
float64 value by MARGIN times the largest change that was seen in its array, element by element not less than a few
units. Ops that move elements, choose among them or change a sign are exact and are not disturbed. Programs that the
disturbance takes to quite other results (beyond UNSTABLE of the size) decide between equals: they are left out.
"""

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

import polygrad as pg
from polygrad.array.object import Array
from polygrad.testing.interpret import evaluate, leaf

ROUNDINGS = 8  # units in the last place that one op may be off: what OpenCL allows its slower functions and more
MARGIN = 8.0
TRIALS = 4
UNSTABLE = 1e-2
EXACT = {"negative", "abs", "maximum", "minimum", "where", "copysign", "floor", "ceil", "trunc", "round"}

SHAPES = [(), (1,), (5,), (3, 4), (4, 3), (2, 3, 4), (1, 4), (3, 1), (17,), (4, 4)]


def settle(x):
    """Return values of moderate size, so that no program overflows."""
    return x / (1.0 + pg.abs(x) * 0.125)


def along(x, k):
    return k % x.ndim if x.ndim else None


def reduced(function):
    return lambda x, y, k: function(x, axis=along(x, k), keepdims=bool(k & 4)) if x.ndim else x


def moved(function):
    return lambda x, y, k: function(x, k) if x.ndim else x


def sliced(x, k):
    n = x.shape[0]
    return [x[1:] if n > 1 else x, x[::-1], x[:: max(n // 2, 1)], x[n - 1 : n], x[..., ::-2]][k % 5]


def fitted(x, y):
    """Return y, or a number made of it if it does not broadcast with x."""
    try:
        np.broadcast_shapes(x.shape, y.shape)
    except ValueError:
        return pg.mean(y)
    return y


def paired(function):
    return lambda x, y, k: function(x, fitted(x, y))


def product(x, y, k):
    if x.ndim < 2:
        return x * 0.5
    other = y if y.ndim == 2 and y.shape[0] == x.shape[-1] else x.mT
    return (x @ other) / float(x.shape[-1])


def picked(x, k):
    n = x.shape[0]
    return pg.take(x, pg.asarray([(k + i * i) % n for i in range(4)], device=x.device), axis=0)


def written(x, k):
    out = x * 1.0
    out[k % x.shape[0]] = 0.5 * x[-1]
    out[::2] *= 0.75
    return out


OPS = {
    "add": paired(lambda x, y: x + y),
    "subtract": paired(lambda x, y: x - y * 0.5),
    "multiply": paired(lambda x, y: x * y),
    "divide": paired(lambda x, y: x / (1.5 + y * y)),
    "maximum": paired(pg.maximum),
    "minimum": paired(pg.minimum),
    "atan2": paired(lambda x, y: pg.atan2(x, 2.0 + y * y)),
    "logaddexp": paired(pg.logaddexp),
    "where": paired(lambda x, y: pg.where(pg.arange(x.shape[-1] if x.ndim else 1, device=x.device) % 2 == 0, x, y)),
    "exp": lambda x, y, k: pg.exp(pg.tanh(x)),
    "tanh": lambda x, y, k: pg.tanh(x),
    "sin": lambda x, y, k: pg.sin(x),
    "cos": lambda x, y, k: pg.cos(x),
    "sqrt": lambda x, y, k: pg.sqrt(x * x + 0.5),
    "log": lambda x, y, k: pg.log(x * x + 0.5),
    "erf": lambda x, y, k: pg.erf(x),
    "atan": lambda x, y, k: pg.atan(x),
    "sigmoid": lambda x, y, k: pg.sigmoid(x),
    "expm1": lambda x, y, k: pg.expm1(pg.sin(x)),
    "pow": lambda x, y, k: (x * x + 0.5) ** (0.5 * (k % 5) - 1.0),
    "negative": lambda x, y, k: -x,
    "relu": lambda x, y, k: pg.relu(x),
    "sum": reduced(pg.sum),
    "mean": reduced(pg.mean),
    "max": reduced(pg.max),
    "min": reduced(pg.min),
    "prod": reduced(lambda x, **how: pg.prod(1.0 + 0.5 * pg.sin(x), **how)),
    "var": reduced(lambda x, **how: pg.var(x, **how)),
    "logsumexp": reduced(pg.logsumexp),
    "softmax": moved(lambda x, k: pg.softmax(x, axis=along(x, k))),
    "matmul": product,
    "transpose": moved(lambda x, k: x.mT if x.ndim > 1 else x),
    "flip": moved(lambda x, k: pg.flip(x, axis=along(x, k))),
    "roll": moved(lambda x, k: pg.roll(x, k, axis=0)),
    "slice": moved(sliced),
    "reshape": moved(lambda x, k: pg.reshape(x, (-1,))[: 24 + k]),
    "pad": moved(lambda x, k: pg.pad(x, [(k % 3, 1)] + [(0, 0)] * (x.ndim - 1))),
    "stack": moved(lambda x, k: pg.stack([x, x * 0.5])[k % 2 :] if x.ndim < 3 else x),
    "concat": moved(lambda x, k: pg.concat([x, -x[:1]], axis=0)),
    "expand": moved(lambda x, k: pg.broadcast_to(x[:1], (3, *x.shape[1:]))),
    "tril": moved(lambda x, k: pg.tril(x, k=k % 3 - 1) if x.ndim > 1 else x),
    "take": moved(picked),
    "sort": moved(lambda x, k: pg.sort(x, axis=along(x, k))),
    "cumulative_sum": moved(lambda x, k: pg.cumulative_sum(x, axis=along(x, k))),
    "cumulative_prod": moved(lambda x, k: pg.cumulative_prod(1.0 + 0.25 * pg.sin(x), axis=along(x, k))),
    "write": moved(written),
    "scatter": moved(lambda x, k: x.at[pg.asarray([0, k % x.shape[0], 0], device=x.device)].add(0.5 * x[:1])),
    "vmap": moved(lambda x, k: pg.vmap(lambda row: pg.exp(-row * row) * pg.sum(row))(x)),
}

STEP = st.tuples(st.sampled_from(sorted(OPS)), st.integers(0, 40), st.integers(0, 40), st.integers(0, 7))
PROGRAMS = st.tuples(
    st.lists(st.sampled_from(SHAPES), min_size=1, max_size=3),
    st.lists(STEP, min_size=1, max_size=30),
    st.integers(0, 2**32 - 1),
)


def run(steps, inputs):
    """Return the last value of a program, and a scalar that depends on all of its values."""
    values = list(inputs)
    for name, a, b, k in steps:
        x, y = values[a % len(values)], values[b % len(values)]
        values.append(settle(OPS[name](x, y, k)))
    total = None
    for k, v in enumerate(values[-3:]):
        part = pg.mean(pg.sin(v + 0.25 * k))
        total = part if total is None else total + part
    return values[-1], total


def all_of(steps, inputs):
    """Return the last value, the scalar, and its gradient for each input."""
    numbers = tuple(range(len(inputs)))
    (total, last), grads = pg.value_and_grad(lambda *xs: run(steps, xs)[::-1], argnums=numbers, has_aux=True)(*inputs)
    return [last, total, *grads]


def disturbed(rng, unit):
    def change(node, value):
        rounded = node.op.kind in ("elementwise", "reduce", "matmul", "scatter", "library", "buffer", "cast")
        if not rounded or value.dtype.kind != "f" or node.op.name in EXACT or node.op.instr in ("max", "min"):
            return value
        return value * (1.0 + unit * rng.uniform(-1.0, 1.0, value.shape))

    return change


def oracle(steps, arrays, dtype):
    """Return what a program gives in float64, and how far each element of it may be off."""
    nodes = [x._node for x in all_of(steps, [Array(leaf(a)) for a in arrays])]
    want = evaluate(*nodes)
    unit = np.finfo(dtype).eps / 2
    rng = np.random.default_rng(0)
    worst = [np.zeros(w.shape) for w in want]
    for _ in range(TRIALS):
        for k, got in enumerate(evaluate(*nodes, disturb=disturbed(rng, ROUNDINGS * unit))):
            worst[k] = np.maximum(worst[k], np.abs(got - want[k]))
    limits = []
    for w, off in zip(want, worst, strict=True):
        size = np.max(np.abs(w), initial=0.0)
        spread = np.max(off, initial=0.0)
        stable = np.isfinite(spread) and spread <= UNSTABLE * max(size, 1e-3)
        limits.append(MARGIN * (spread + unit * size) if stable else None)
    return want, limits


def check(program, dtype, device):
    """Compare a program's results on a device with the oracle's; return whether it is one that can be compared."""
    shapes, steps, seed = program
    rng = np.random.default_rng(seed)
    arrays = [np.asarray(rng.uniform(-2.0, 2.0, s), np.float32).astype(np.float64) for s in shapes]
    want, limits = oracle(steps, arrays, dtype)
    if any(limit is None for limit in limits):
        return False
    found = pg.realize(all_of(steps, [pg.asarray(a, dtype=dtype, device=device) for a in arrays]))
    for k, (x, w, limit) in enumerate(zip(found, want, limits, strict=True)):
        what = ["the value", "the scalar", *[f"the gradient of input {i}" for i in range(len(arrays))]][k]
        assert x.device == device
        assert x.dtype == dtype
        assert x.shape == w.shape
        off = np.max(np.abs(x.numpy().astype(np.float64) - w), initial=0.0)
        assert off <= limit, f"{what} is off by {off:.3g}, more than {limit:.3g}"
    return True


QUIET = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much, HealthCheck.too_slow],
}
COMPILED = 6  # programs on a device that runs a compiler for each kernel


@pytest.mark.slow
def test_programs_give_the_same_answer(device, float_dtype):
    @settings(max_examples=60 if device.startswith("cpu") else COMPILED, derandomize=True, **QUIET)
    @given(program=PROGRAMS, wide=st.booleans())
    @example(program=([(3, 4)], [("matmul", 0, 0, 0), ("softmax", 1, 0, 1), ("max", 2, 0, 0)], 5), wide=False)
    def same(program, wide):
        assume(check(program, float_dtype if wide else pg.float32, device))

    same()


@pytest.mark.thorough
def test_many_programs_give_the_same_answer(device, float_dtype):
    @settings(max_examples=1000 if device.startswith("cpu") else 100, **QUIET)
    @given(program=PROGRAMS, wide=st.booleans())
    def same(program, wide):
        assume(check(program, float_dtype if wide else pg.float32, device))

    same()


def test_the_comparison_sees_a_wrong_op(monkeypatch):
    program = ([(3, 4)], [("sin", 0, 0, 0), ("tanh", 1, 0, 0), ("sum", 2, 0, 1)], 1)
    assert check(program, pg.float32, "cpu:0")
    right = OPS["tanh"]
    monkeypatch.setitem(OPS, "tanh", lambda x, y, k: right(x, y, k) * (1.0 if x.dtype == pg.float64 else 1.0001))
    with pytest.raises(AssertionError, match="is off by"):
        check(program, pg.float32, "cpu:0")


# ---- random numbers -------------------------------------------------------------------------------------------------

DRAWS = {
    "uniform": lambda s, d: pg.random.uniform(s, dtype=d),
    "range": lambda s, d: pg.random.uniform(s, -3.0, 5.0, dtype=d),
    "normal": lambda s, d: pg.random.normal(s, dtype=d),
    "shifted": lambda s, d: pg.random.normal(s, 2.0, 0.25, dtype=d),
    "exponential": lambda s, d: pg.random.exponential(s, 2.0, dtype=d),
    "randint": lambda s, d: pg.random.randint(-7, 1000, s, dtype="int32"),
    "bernoulli": lambda s, d: pg.random.bernoulli(0.3, s),
    "bits": lambda s, d: pg.random.bits(s),
    "permutation": lambda s, d: pg.random.permutation(int(np.prod(s))),
    "mapped": lambda s, d: pg.vmap(lambda x: x + pg.random.normal(s, dtype=d))(pg.zeros((3, *s), dtype=d)),
}


def bytes_of(name, seed, shape, dtype, device):
    pg.random.seed(seed)
    with pg.device(device):
        return DRAWS[name](shape, dtype).numpy().tobytes()


@pytest.mark.parametrize("name", sorted(DRAWS))
def test_random_numbers_have_the_same_bits(name, device, float_dtype):
    few = device.startswith("cpu")
    for seed, shape in [(0, (3,)), (2**64 - 1, (2, 5)), (12345, (0,)), (7, (1031,))][: 4 if few else 2]:
        for dtype in {pg.float32, float_dtype} | ({pg.float16} if few else set()):
            pg.random.seed(seed)
            with pg.device("cpu:0"):
                drawn = DRAWS[name](shape, dtype)
            want = drawn.numpy() if name == "permutation" else evaluate(drawn._node)
            assert bytes_of(name, seed, shape, dtype, device) == want.tobytes()
