"""polygrad: the work as a user writes it, plain or within `pg.compile`.

Here: calls of polygrad's public names.
Not here: costs of graphs, which look inside (`graph_costs.py`).
"""

from collections.abc import Callable
from typing import Any

import polygrad as pg
from polygrad.bench import inputs, maths
from polygrad.bench.peers import Step, place_of
from polygrad.bench.peers.graph_costs import graph_cost
from polygrad.bench.work import MLP_WIDTHS, SHOWN, Work
from polygrad.driver.binding import open_device
from polygrad.driver.loader import REGISTRY
from polygrad.runtime.devices import state

F: Any = pg.nn.functional  # made when it is imported
Values = dict[str, Any]


def _functions() -> dict[str, maths.Function]:
    def causal_softmax(s: Any) -> Any:
        rows, columns = s.shape[-2:]
        mask = pg.arange(columns)[None, :] <= pg.arange(rows)[:, None]
        return F.softmax(pg.where(mask, s, -pg.inf), axis=-1)

    return maths.functions(pg) | {
        "softmax": lambda x: F.softmax(x, axis=-1),
        "logsumexp": lambda x: F.logsumexp(x, axis=-1),
        "rmsnorm_builtin": lambda x, w: pg.rms_norm(x, w, eps=maths.EPSILON),
        "layernorm_builtin": lambda x, w, b: pg.layer_norm(x, w, b, eps=maths.EPSILON),
        "swiglu": lambda a, b: F.silu(a) * b,
        "causal_softmax": causal_softmax,
        "cross_entropy": lambda scores, targets: F.cross_entropy(scores, targets),
        "attention": lambda q, k, v: pg.nn.scaled_dot_product_attention(q, k, v, is_causal=True),
        "take": lambda table, index: F.embedding(index, table),
        "cumsum": lambda x: pg.cumulative_sum(x, axis=0),
        "sort": lambda x: pg.sort(x),
    }


def _mlp(p: Values, x: Any) -> Any:
    h = pg.relu(x @ p["w0"] + p["b0"])
    h = pg.relu(h @ p["w1"] + p["b1"])
    return h @ p["w2"] + p["b2"]


def _convnet(p: Values, x: Any) -> Any:
    x = pg.max_pool2d(pg.relu(pg.conv2d(x, p["k0"], p["c0"], padding=1)), 2)
    x = pg.max_pool2d(pg.relu(pg.conv2d(x, p["k1"], p["c1"], padding=1)), 2)
    return pg.reshape(x, (x.shape[0], -1)) @ p["w"] + p["b"]


def _heads(x: Any, heads: int) -> Any:
    batch, positions, dim = x.shape
    return pg.permute_dims(pg.reshape(x, (batch, positions, heads, dim // heads)), (0, 2, 1, 3))


def _attended(parts: Any, heads: int) -> Any:
    q, k, v = (_heads(part, heads) for part in parts)
    out = pg.nn.scaled_dot_product_attention(q, k, v, is_causal=True)
    return pg.reshape(pg.permute_dims(out, (0, 2, 1, 3)), parts[0].shape)


def _gpt(p: Values, x: Any, settings: Any) -> Any:
    dim, heads = settings["dim"], settings["heads"]
    h = F.embedding(x, p["tokens"]) + p["positions"]
    for k in range(settings["layers"]):
        n = pg.layer_norm(h, p[f"gain1_{k}"], p[f"shift1_{k}"], eps=maths.EPSILON) @ p[f"qkv_{k}"]
        parts = [n[..., j * dim : (j + 1) * dim] for j in range(3)]
        h = h + _attended(parts, heads) @ p[f"out_{k}"]
        n = pg.layer_norm(h, p[f"gain2_{k}"], p[f"shift2_{k}"], eps=maths.EPSILON)
        h = h + pg.gelu(n @ p[f"up_{k}"], approximate="tanh") @ p[f"down_{k}"]
    h = pg.layer_norm(h, p["gain"], p["shift"], eps=maths.EPSILON) @ p["head"]
    return pg.reshape(h, (-1, settings["vocabulary"]))


def _llama(p: Values, x: Any, settings: Any) -> Any:
    h = F.embedding(x, p["tokens"]) + p["positions"]
    for k in range(settings["layers"]):
        n = pg.rms_norm(h, p[f"gain1_{k}"], eps=maths.EPSILON)
        parts = [n @ p[f"{name}_{k}"] for name in ("query", "key", "value")]
        h = h + _attended(parts, settings["heads"]) @ p[f"out_{k}"]
        n = pg.rms_norm(h, p[f"gain2_{k}"], eps=maths.EPSILON)
        h = h + (pg.silu(n @ p[f"gate_{k}"]) * (n @ p[f"up_{k}"])) @ p[f"down_{k}"]
    return pg.reshape(pg.rms_norm(h, p["gain"], eps=maths.EPSILON) @ p["head"], (-1, settings["vocabulary"]))


class Adapter:
    """polygrad on one device."""

    version = pg.__version__

    def __init__(self, mode: str, device: str, threads: int) -> None:
        del threads  # polygrad uses the cores that the process may
        self.device = device
        self.compiled = mode == "compile"
        pg.set_device(device)
        info = open_device(REGISTRY, device).info
        self.host = place_of(info.driver, info.extra.get("kind", ""), info.vendor) == "cpu"

    def build(self, work: Work) -> Step | None:
        """Return one call of the work."""
        if work.kind == "graph":
            return None if self.compiled else graph_cost(work)
        return {"function": self._function, "training": self._training, "optimiser": self._optimiser}[work.kind](work)

    def _wrapped(self, function: Callable[..., Any], *arguments: Any) -> Step:
        """Return a call that computes and does not wait; arguments are passed, so that a capture keeps to them."""
        if self.compiled:
            function = pg.compile(function)
        return lambda: pg.realize(function(*arguments))

    def _function(self, work: Work) -> Step:
        function = _functions()[work.maths]
        arrays = [pg.asarray(a) for a in inputs.arrays(work.inputs)]

        if not work.wrt:

            def forward(*arrays: Any) -> Any:
                with pg.no_grad():
                    return maths.results(function(*arrays))

            return self._wrapped(forward, *arrays)

        def both(cotangent: Any, *arrays: Any) -> Any:
            def of(*varied: Any) -> Any:
                given = list(arrays)
                for k, a in zip(work.wrt, varied, strict=True):
                    given[k] = a
                return function(*given)

            value, pull = pg.vjp(of, *(arrays[k] for k in work.wrt))
            return (value, *maths.results(pull(cotangent)))

        return self._wrapped(both, pg.asarray(inputs.cotangent(work.out)), *arrays)

    def _optimiser(self, work: Work) -> Step:
        values, grads = inputs.optimised(work.settings)
        parameters = [pg.nn.Parameter(v) for v in values]
        optimiser = _adamw(parameters)

        def step(grads: Any) -> Any:
            optimiser.step(grads)

        call = pg.compile(step) if self.compiled else step
        arrays = [pg.asarray(g) for g in grads]

        def once() -> Any:
            call(arrays)
            pg.realize(parameters)
            return (parameters[0],)

        return once

    def _training(self, work: Work) -> Step:
        values, x, y, model = _model(work)
        parameters = {name: pg.nn.Parameter(v) for name, v in values.items()}
        optimiser = _adamw(parameters)
        narrow = work.settings.get("dtype") == "bfloat16"
        stepping = work.settings.get("step", 1)

        def step(x: Any, y: Any) -> Any:
            if narrow:
                with pg.autocast():
                    scores = model(parameters, x)
            else:
                scores = model(parameters, x)
            loss = F.cross_entropy(scores.astype(pg.float32), pg.reshape(y, (-1,)))
            loss.backward()
            found: tuple[Any, ...] = (loss.detach(),)
            if stepping:
                optimiser.step(also=loss)
            else:
                pg.realize(loss, [p.grad for p in parameters.values()])
                found += (parameters[SHOWN].grad,)
            optimiser.zero_grad()
            return found

        return self._wrapped(step, pg.asarray(x), pg.asarray(y))

    def wait(self, results: Any) -> None:
        """Wait for the device."""
        del results
        pg.synchronize()

    def numbers(self, result: Any) -> Any:
        """Return a result's values."""
        return result.detach().numpy()

    def let_go(self) -> None:
        """Empty the pool."""
        pg.empty_cache()

    def peak(self, *, reset: bool = False) -> int | None:
        """Return the pool's peak."""
        if self.host:
            return None
        pool = state(self.device).pool
        if reset:
            pool.peak = pool.used
        return pool.stats()["peak"]


def _adamw(parameters: Any) -> Any:
    a = inputs.ADAMW
    return pg.optim.AdamW(
        parameters, lr=a["lr"], betas=(a["beta1"], a["beta2"]), eps=a["eps"], weight_decay=a["weight_decay"]
    )


def _model(work: Work) -> tuple[Values, Any, Any, Callable[[Values, Any], Any]]:
    settings = work.settings
    if work.maths == "mlp":
        return *inputs.perceptron(settings, MLP_WIDTHS), _mlp
    if work.maths == "convnet":
        return *inputs.convnet(settings), _convnet
    llama = work.maths == "llama"
    values, x, y = inputs.language_model(settings, llama=llama)
    return values, x, y, lambda p, x: (_llama if llama else _gpt)(p, x, settings)
