"""Level 6, gradients and training: whole computations by polygrad on the device, against the same on the oracle.

Here: gradients of ops, and the loss curves of three small models.
Not here: whether the rules of derivatives are right; polygrad's own tests show that.

The reference is the strict device, where the oracle runs every kernel. Random numbers are the same on all devices, so
curves differ by rounding alone.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

import polygrad as pg
from polygrad_conformance import strict
from polygrad_conformance.bench import Bench
from polygrad_conformance.case import Array
from polygrad_conformance.checks import check

REFERENCE = "strict:0"
STEPS = 20

# name -> (function of arrays, ranges of the operands, shapes)
GRADIENTS: dict[str, tuple[Callable[..., Any], tuple[tuple[float, float], ...], tuple[tuple[int, ...], ...]]] = {
    "multiply": (lambda a, b: a * b, ((-2, 2), (-2, 2)), ((4, 5), (5,))),
    "divide": (lambda a, b: a / b, ((-2, 2), (0.5, 2)), ((4, 5), (4, 1))),
    "exp_log": (lambda a: pg.log(1 + pg.exp(a)), ((-3, 3),), ((4, 5),)),
    "sin_cos": (lambda a: pg.sin(a) * pg.cos(a), ((-3, 3),), ((20,),)),
    "tanh_sqrt": (lambda a: pg.tanh(pg.sqrt(a)), ((0.5, 3),), ((20,),)),
    "pow": (lambda a, b: a**b, ((0.5, 2), (-2, 2)), ((4, 5), (4, 5))),
    "max_sum": (lambda a: pg.sum(pg.max(a, axis=1)), ((-2, 2),), ((6, 9),)),
    "mean_var": (lambda a: (a - pg.mean(a, axis=0)) / pg.sqrt(pg.var(a, axis=0) + 0.1), ((-2, 2),), ((6, 9),)),
    "softmax": (lambda a: pg.nn.softmax(a, axis=-1) ** 2, ((-3, 3),), ((6, 9),)),
    "matmul": (lambda a, b: a @ b, ((-2, 2), (-2, 2)), ((5, 7), (7, 6))),
    "views": (lambda a: pg.permute_dims(a, (1, 0))[::-1, 1:] * 3, ((-2, 2),), ((6, 5),)),
    "where": (lambda a: pg.where(a > 0, a * a, -a), ((-2, 2),), ((20,),)),
    "take": (lambda a: pg.take(a, pg.asarray([2, 0, 2, -1], device=a.device), axis=0) ** 2, ((-2, 2),), ((5, 3),)),
    "concat": (lambda a, b: pg.concat([a, b * b]), ((-2, 2), (-2, 2)), ((3, 2), (4, 2))),
}


def _on(bench: Bench, device: str, dtype: str, name: str) -> list[Array]:
    function, ranges, shapes = GRADIENTS[name]
    rng = bench.rng(60, list(GRADIENTS).index(name))
    values = [rng.uniform(low, high, shape) for (low, high), shape in zip(ranges, shapes, strict=True)]
    with pg.device(device):
        arrays = [pg.asarray(v, dtype=getattr(pg, dtype)) for v in values]
        places = tuple(range(len(arrays)))

        def total(*operands: Any) -> Any:
            out = function(*operands)
            weights = pg.asarray(np.linspace(-1, 1, max(int(np.prod(out.shape)), 1)), dtype=out.dtype)
            return pg.sum(out * pg.reshape(weights, out.shape))

        value, gradients = pg.value_and_grad(total, argnums=places)(*arrays)
        pg.realize(value, *gradients)
        return [x.detach().numpy() for x in (value, *gradients)]


@check("L6.gradient.{0}", each=[(name,) for name in GRADIENTS])
def gradients(bench: Bench, name: str) -> None:
    """A value and its gradients are those of the oracle's run."""
    strict.register(bench.registry)
    dtype = "float64" if "float64" in bench.info.dtypes else "float32"
    tolerance = 1e-12 if dtype == "float64" else 2e-5
    got, want = (_on(bench, device, dtype, name) for device in (bench.device.name, REFERENCE))
    for place, (mine, right) in enumerate(zip(got, want, strict=True)):
        assert mine.shape == right.shape, f"{name}: result {place} has the shape {mine.shape}, not {right.shape}"
        apart = float(np.max(np.abs(mine - right), initial=0.0))
        scale = float(np.max(np.abs(right), initial=1.0))
        what = f"gradient {place - 1}" if place else "the value"
        assert apart <= tolerance * scale, f"{name}: {what} is {apart:.3g} off, of {scale:.3g}"


class _Attention(pg.nn.Module):
    """One block of attention with an embedding below it and a linear layer above."""

    def __init__(self) -> None:
        self.embedding = pg.nn.Embedding(11, 8)
        self.mix = pg.nn.Linear(8, 24)
        self.norm = pg.nn.LayerNorm(8)
        self.head = pg.nn.Linear(8, 11)

    def forward(self, tokens: Any) -> Any:
        """Return logits of the next token."""
        x = self.embedding(tokens)
        mixed = self.mix(self.norm(x))
        q, k, v = (mixed[..., 8 * n : 8 * n + 8] for n in range(3))
        scores = q @ pg.matrix_transpose(k) / 8**0.5
        n = tokens.shape[1]
        rows, columns = pg.arange(n, device=x.device)[:, None], pg.arange(n, device=x.device)[None, :]
        scores = pg.where(columns <= rows, scores, -pg.inf)
        return self.head(x + pg.nn.softmax(scores, axis=-1) @ v)


def _mlp() -> Any:
    nn = pg.nn
    return nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 4))


def _cnn() -> Any:
    nn = pg.nn
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(4 * 9, 4))


MODELS: dict[str, tuple[Callable[[], Any], Callable[[np.random.Generator], tuple[Array, Array]], int]] = {
    "mlp": (_mlp, lambda rng: _clusters(rng, (12,)), STEPS),
    "cnn": (_cnn, lambda rng: _clusters(rng, (1, 6, 6)), 10),
    "attention": (_Attention, lambda rng: _sequences(rng), 10),
}


def _clusters(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[Array, Array]:
    labels = np.arange(32) % 4
    centres = rng.normal(size=(4, *shape))
    return (centres[labels] + 0.3 * rng.normal(size=(32, *shape))).astype(np.float32), labels


def _sequences(rng: np.random.Generator) -> tuple[Array, Array]:
    start = rng.integers(0, 11, (8, 1))
    walks = (start + 3 * np.arange(7)) % 11
    return walks[:, :-1], walks[:, 1:]


def _curve(bench: Bench, device: str, name: str, *, compiled: bool = False) -> tuple[Array, list[Array]]:
    """Return the losses of a training, and the parameters that it ends with."""
    build, make, steps = MODELS[name]
    inputs, labels = make(bench.rng(61))
    integer = pg.int64 if "int64" in bench.info.dtypes else pg.int32
    with pg.device(device):
        pg.random.seed(3)
        model = build()
        optimizer = pg.optim.AdamW(model, lr=0.01)
        x = pg.asarray(inputs, dtype=pg.float32 if inputs.dtype == np.float32 else integer)
        y = pg.asarray(labels, dtype=integer)

        def step(inputs: Any, labels: Any) -> Any:
            logits = model(inputs)
            loss = pg.nn.cross_entropy(pg.reshape(logits, (-1, logits.shape[-1])), pg.reshape(labels, (-1,)))
            loss.backward()
            optimizer.step(also=loss)
            optimizer.zero_grad()
            return loss

        call = pg.compile(step) if compiled else step
        losses = [float(call(x, y)) for _ in range(steps)]
        return np.array(losses), [p.detach().numpy() for p in model.parameters()]


@check("L6.train.{0}", each=[(name,) for name in MODELS])
def training(bench: Bench, name: str) -> None:
    """The loss falls, along the curve of the oracle's run."""
    strict.register(bench.registry)
    (got, _), (want, _) = (_curve(bench, device, name) for device in (bench.device.name, REFERENCE))
    assert np.isfinite(got).all(), f"{name}: the losses are {got}"
    assert got[-1] < got[0], f"{name}: the loss went from {got[0]:.4f} to {got[-1]:.4f}"
    apart = np.abs(got - want)
    assert apart.max() <= 1e-4, f"{name}: at step {int(apart.argmax())} the loss is {apart.max():.3g} off the oracle's"
    bench.figures.setdefault("loss curves", {})[name] = float(apart.max())


@check("L6.compiled.{0}", each=[("mlp",), ("cnn",)])
def compiled_training(bench: Bench, name: str) -> None:
    """A step that is captured and replayed gives the losses and parameters of the step itself, bit for bit."""
    plain, replayed = (_curve(bench, bench.device.name, name, compiled=compiled) for compiled in (False, True))
    for step, (mine, right) in enumerate(zip(replayed[0], plain[0], strict=True)):
        assert mine == right, f"{name}: at step {step} the loss is {mine!r} compiled, {right!r} as it is"
    for place, (mine, right) in enumerate(zip(replayed[1], plain[1], strict=True)):
        assert mine.tobytes() == right.tobytes(), f"{name}: compiled, parameter {place} is another one"
