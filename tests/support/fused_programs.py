"""Random programs of elementwise, reducing, moving and indexing ops, for tests of what is fused and planned.

Here: their steps, as strategies of Hypothesis, and how they are run. Not here: tests.

A program is a list of steps; each takes one or two earlier values by number (modulo how many there are) and adds a
value. All values have three axes of the same sizes, so that the steps fit together; these differ, so that a confused
axis shows. The small size is below every threshold of the schedule, the large one above.
"""

from hypothesis import HealthCheck
from hypothesis import strategies as st

import polygrad as pg

SIZES = {"small": (3, 4, 5), "large": (9, 8, 20)}


def _to_size(x, size):
    """Bring any array back to *size*, by a gather on each axis that is neither whole nor 1."""
    for axis, n in enumerate(size):
        if x.shape[axis] not in (1, n):
            x = pg.take(x, pg.arange(n) % x.shape[axis], axis=axis)
    return pg.broadcast_to(x, size)


UNARY = {
    "tanh": pg.tanh,
    "sin": pg.sin,
    "square": lambda x: x * x * 0.5,
    "exp": lambda x: pg.exp(-x * x),
    "abs": pg.abs,
    "sqrt": lambda x: pg.sqrt(x * x + 1.0),
    "log": lambda x: pg.log(x * x + 0.5),
    "relu": lambda x: pg.where(x > 0, x, 0.1 * x),
    "scale": lambda x: x * 1.25 - 0.5,
    "recip": lambda x: 1.0 / (x * x + 1.0),
    "clip": lambda x: pg.clip(x, -0.7, 0.9),
    "long": lambda x: (
        pg.sin(pg.tanh(x * 1.1 + 0.2) * pg.cos(x) + pg.sqrt(x * x + 2.0) / (x * x + 3.0)) * pg.exp(-x * x) + pg.atan(x)
    ),
}
BINARY = {
    "add": lambda x, y: x + y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / (y * y + 1.0),
    "maximum": pg.maximum,
    "choose": lambda x, y: pg.where(x < y, x, y * 2.0),
    "atan2": lambda x, y: pg.atan2(x, y * y + 0.5),
    "sub": lambda x, y: x - y,
    "matmul": lambda x, y: x @ pg.permute_dims(y[:, :1], (0, 2, 1)) * 0.2,
}
REDUCE = {
    "sum": lambda x, axis: pg.sum(x, axis=axis, keepdims=True) * 0.2,
    "mean": lambda x, axis: pg.mean(x, axis=axis, keepdims=True),
    "max": lambda x, axis: pg.max(x, axis=axis, keepdims=True),
    "min": lambda x, axis: pg.min(x, axis=axis, keepdims=True),
    "softmax": lambda x, axis: pg.softmax(x),
    "centre": lambda x, axis: x - pg.mean(x, axis=axis, keepdims=True),
    "prod": lambda x, axis: pg.prod(x[:3, :3, :3] * 0.1 + 1.0, axis=axis, keepdims=True),
    "std": lambda x, axis: x / (1.0 + pg.std(x, axis=axis, keepdims=True)),
    "norm": lambda x, axis: x / pg.sqrt(pg.sum(x * x, axis=axis, keepdims=True) + 1.0),
}
MOVE = {
    "flip": lambda x: pg.flip(x, axis=(0, 2)),
    "turn": lambda x: pg.permute_dims(x, (2, 0, 1)),
    "roll": lambda x: pg.roll(x, 2, axis=1),
    "cut": lambda x: x[1:, ::-2, 1:4],
    "pad": lambda x: pg.pad(x, ((1, 0), (0, 2), (1, 1)))[:-1, 2:, 1:-1],
    "reshape": lambda x: pg.reshape(pg.reshape(x, (x.shape[1], -1)), x.shape),
    "merge": lambda x: pg.reshape(pg.reshape(x, (-1, x.shape[2])) * 2.0, x.shape),
    "concat": lambda x: pg.concat([x[:, 2:], x * 0.5], axis=1),
    "stack": lambda x: pg.sum(pg.stack([x, x * x], axis=2), axis=2),
    "row": lambda x: x[1:2],
    "tril": pg.tril,
    "tile": lambda x: pg.tile(x[:1, :1], (x.shape[0], x.shape[1], 1)),
    "repeat": lambda x: pg.repeat(x[:, : x.shape[1] // 2], 2, axis=1),
    "half": lambda x: x.astype("float32").astype(x.dtype),
    "mix": lambda x: pg.reshape(pg.permute_dims(x, (1, 0, 2)), x.shape),
    "column": lambda x: x[:, :, 2:3],
}
INDEX = {
    "take": lambda x, i: pg.take(x, i, axis=1),
    "fancy": lambda x, i: x[i % x.shape[0], i][:, None, :],
    "along": lambda x, i: pg.take_along_axis(x, pg.broadcast_to(i[None, :, None], x.shape), axis=1),
    "negative": lambda x, i: x[:, i - x.shape[1]],
    "pick": lambda x, i: pg.take_along_axis(
        x, (i[None, :, None] + pg.arange(x.shape[0])[:, None, None]) % x.shape[2], axis=2
    ),
}
number = st.integers(0, 9)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("unary"), st.sampled_from(sorted(UNARY)), number, st.none()),
        st.tuples(st.just("binary"), st.sampled_from(sorted(BINARY)), number, number),
        st.tuples(
            st.just("reduce"),
            st.sampled_from(sorted(REDUCE)),
            number,
            st.sampled_from([0, 1, 2, (0, 1), (0, 2), (1, 2), (0, 1, 2)]),
        ),
        st.tuples(st.just("move"), st.sampled_from(sorted(MOVE)), number, st.none()),
        st.tuples(st.just("index"), st.sampled_from(sorted(INDEX)), number, number),
    ),
    min_size=1,
    max_size=8,
)


def run_step(values, indices, kind, name, first, more):
    x = values[first % len(values)]
    if kind == "unary":
        return UNARY[name](x)
    if kind == "binary":
        return BINARY[name](x, values[more % len(values)])
    if kind == "reduce":
        return REDUCE[name](x, more)
    return MOVE[name](x) if kind == "move" else INDEX[name](x, indices[more % len(indices)])


def run_program(program, inputs, indices):
    """Return the values that a program makes of two inputs."""
    values = [*inputs]
    size = inputs[0].shape
    for step in program:
        values.append(_to_size(run_step(values, indices, *step), size))
    return values


def run_once(program, value, index, keep):
    """Return the values and gradients of a program as NumPy arrays; *keep* says what is realized beside the loss."""
    inputs = [pg.asarray(v).requires_grad_() for v in value]
    indices = [pg.asarray(i) for i in index]
    values = run_program(program, inputs, indices)
    kept = [values[k % len(values)] for k in keep]
    loss = pg.sum(values[-1] * pg.sin(values[-1]))
    pg.realize(loss, kept)
    loss.backward()
    grads = [x.grad if x.grad is not None else pg.zeros(x.shape) for x in inputs]
    return [a.detach().numpy() for a in (*kept, loss, *grads)]


programs = {
    "program": steps,
    "seed": st.integers(0, 1000),
    "keep": st.lists(st.integers(0, 9), max_size=2),
    "size": st.sampled_from(sorted(SIZES)),
}
relaxed = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


def examples(device, host, other):
    """Kernels of the default host device cost nothing to build, others half a second each."""
    return host if device.startswith("cpu") else other
