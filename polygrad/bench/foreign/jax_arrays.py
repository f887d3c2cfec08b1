"""JAX: everything within `jax.jit`; training steps donate their state, and AdamW is written out.

Here: the work in JAX's own functions. Images are NHWC, which XLA does fastest on a CPU.
Not here: op-by-op execution, which nobody uses for speed.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, nn

from polygrad.bench import inputs, maths
from polygrad.bench.peers import Step
from polygrad.bench.work import MLP_WIDTHS, SHOWN, Work

Values = dict[str, Any]


def _cross_entropy(scores: Any, targets: Any) -> Any:
    picked = jnp.take_along_axis(scores, targets[:, None], 1)[:, 0]
    return (nn.logsumexp(scores, -1) - picked).mean()


def _functions() -> dict[str, maths.Function]:
    written = maths.functions(jnp)

    def causal_softmax(s: Any) -> Any:
        mask = jnp.arange(s.shape[-1])[None, :] <= jnp.arange(s.shape[-2])[:, None]
        return nn.softmax(jnp.where(mask, s, -jnp.inf), -1)

    def attention(q: Any, k: Any, v: Any) -> Any:
        moved = (jnp.swapaxes(a, 1, 2) for a in (q, k, v))
        return jnp.swapaxes(nn.dot_product_attention(*moved, is_causal=True), 1, 2)

    return written | {
        "softmax": lambda x: nn.softmax(x, -1),
        "logsumexp": lambda x: nn.logsumexp(x, -1),
        "rmsnorm_builtin": written["rmsnorm"],  # it has none of its own
        "layernorm_builtin": written["layernorm"],
        "swiglu": lambda a, b: nn.silu(a) * b,
        "causal_softmax": causal_softmax,
        "cross_entropy": _cross_entropy,
        "attention": attention,
        "take": lambda table, index: jnp.take(table, index, axis=0),
        "cumsum": jnp.cumsum,
        "sort": jnp.sort,
    }


def _mlp(p: Values, x: Any) -> Any:
    h = nn.relu(x @ p["w0"] + p["b0"])
    h = nn.relu(h @ p["w1"] + p["b1"])
    return h @ p["w2"] + p["b2"]


def _convnet(p: Values, x: Any) -> Any:
    def layer(x: Any, kernel: Any, bias: Any) -> Any:
        x = lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        return lax.reduce_window(nn.relu(x + bias), -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")

    x = layer(layer(x, p["k0"], p["c0"]), p["k1"], p["c1"])
    return x.reshape(x.shape[0], -1) @ p["w"] + p["b"]


def _attended(parts: Any, heads: int) -> Any:
    batch, positions, dim = parts[0].shape
    q, k, v = (part.reshape(batch, positions, heads, dim // heads) for part in parts)
    return nn.dot_product_attention(q, k, v, is_causal=True).reshape(batch, positions, dim)


def _gpt(p: Values, x: Any, settings: Any) -> Any:
    norm = maths.functions(jnp)["layernorm"]
    h = p["tokens"][x] + p["positions"]
    for k in range(settings["layers"]):
        n = norm(h, p[f"gain1_{k}"], p[f"shift1_{k}"])
        h = h + _attended(jnp.split(n @ p[f"qkv_{k}"], 3, -1), settings["heads"]) @ p[f"out_{k}"]
        n = norm(h, p[f"gain2_{k}"], p[f"shift2_{k}"])
        h = h + nn.gelu(n @ p[f"up_{k}"]) @ p[f"down_{k}"]
    return (norm(h, p["gain"], p["shift"]) @ p["head"]).reshape(-1, settings["vocabulary"])


def _llama(p: Values, x: Any, settings: Any) -> Any:
    norm = maths.functions(jnp)["rmsnorm"]
    h = p["tokens"][x] + p["positions"]
    for k in range(settings["layers"]):
        n = norm(h, p[f"gain1_{k}"])
        parts = [n @ p[f"{name}_{k}"] for name in ("query", "key", "value")]
        h = h + _attended(parts, settings["heads"]) @ p[f"out_{k}"]
        n = norm(h, p[f"gain2_{k}"])
        h = h + (nn.silu(n @ p[f"gate_{k}"]) * (n @ p[f"up_{k}"])) @ p[f"down_{k}"]
    return (norm(h, p["gain"]) @ p["head"]).reshape(-1, settings["vocabulary"])


def _adamw(p: Any, g: Any, m: Any, v: Any, t: Any) -> tuple[Any, Any, Any, Any]:
    a, each = inputs.ADAMW, jax.tree_util.tree_map
    t = t + 1
    m = each(lambda m, g: a["beta1"] * m + (1 - a["beta1"]) * g, m, g)
    v = each(lambda v, g: a["beta2"] * v + (1 - a["beta2"]) * g * g, v, g)
    first, second = 1 - a["beta1"] ** t, 1 - a["beta2"] ** t

    def moved(p: Any, m: Any, v: Any) -> Any:
        return p * (1 - a["lr"] * a["weight_decay"]) - a["lr"] * (m / first) / (jnp.sqrt(v / second) + a["eps"])

    return each(moved, p, m, v), m, v, t


def _zeros(tree: Any) -> Any:
    return jax.tree_util.tree_map(jnp.zeros_like, tree)


class Adapter:
    """JAX on the CPU, or on a GPU if its plug-in is installed."""

    version = str(jax.__version__)

    def __init__(self, mode: str, device: str, threads: int) -> None:
        del mode, threads  # XLA uses the cores that the process may
        jax.config.update("jax_platforms", "cuda" if device == "nvidia" else "cpu")
        jax.config.update("jax_default_matmul_precision", "highest")
        self.host = device != "nvidia"
        jax.devices()

    def build(self, work: Work) -> Step | None:
        """Return one call of the work."""
        if work.kind == "graph" or work.settings.get("dtype") == "bfloat16" or work.maths == "adamw_fastest":
            return None
        return {"function": self._function, "training": self._training, "optimiser": self._optimiser}[work.kind](work)

    def _function(self, work: Work) -> Step:
        function = _functions()[work.maths]
        arrays = [jnp.asarray(a) for a in inputs.arrays(work.inputs)]
        if not work.wrt:
            forward = jax.jit(lambda *a: maths.results(function(*a)))
            return lambda: forward(*arrays)
        cotangent = jnp.asarray(inputs.cotangent(work.out))

        def both(cotangent: Any, *arrays: Any) -> Any:
            def of(*varied: Any) -> Any:
                given = list(arrays)
                for k, a in zip(work.wrt, varied, strict=True):
                    given[k] = a
                return function(*given)

            value, pull = jax.vjp(of, *(arrays[k] for k in work.wrt))
            return (value, *pull(cotangent))

        compiled = jax.jit(both)
        return lambda: compiled(cotangent, *arrays)

    def _optimiser(self, work: Work) -> Step:
        values, grads = inputs.optimised(work.settings)
        parameters, grads = [jnp.asarray(v) for v in values], [jnp.asarray(g) for g in grads]
        update = jax.jit(_adamw, donate_argnums=(0, 2, 3))
        state = [parameters, _zeros(parameters), _zeros(parameters), jnp.float32(0)]

        def once() -> Any:
            p, m, v, t = state
            state[:] = update(p, grads, m, v, t)
            return (state[0][0] + 0.0,)  # the next call takes the parameters' memory

        return once

    def _training(self, work: Work) -> Step:
        values, x, y, model = _model(work)
        parameters = {name: jnp.asarray(v) for name, v in values.items()}
        x, y = jnp.asarray(x), jnp.asarray(y).reshape(-1)

        def gradients(p: Any, x: Any, y: Any) -> Any:
            return jax.value_and_grad(lambda p: _cross_entropy(model(p, x), y))(p)

        if not work.settings.get("step", 1):
            compiled = jax.jit(gradients)

            def plain() -> Any:
                loss, grads = compiled(parameters, x, y)
                jax.block_until_ready(grads)
                return loss, grads[SHOWN]

            return plain

        def train(p: Any, m: Any, v: Any, t: Any, x: Any, y: Any) -> Any:
            loss, grads = gradients(p, x, y)
            return loss, *_adamw(p, grads, m, v, t)

        update = jax.jit(train, donate_argnums=(0, 1, 2))
        state = [parameters, _zeros(parameters), _zeros(parameters), jnp.float32(0)]

        def step() -> Any:
            loss, *state[:] = update(*state, x, y)
            return (loss,)

        return step

    def wait(self, results: Any) -> None:
        """Wait for the last results, which come last."""
        jax.block_until_ready(results)

    def numbers(self, result: Any) -> Any:
        """Return a result's values."""
        return np.asarray(result)

    def let_go(self) -> None:
        """Forget compiled code."""
        jax.clear_caches()

    def peak(self, *, reset: bool = False) -> int | None:
        """Return the allocator's peak, which counts from the beginning of the process."""
        del reset
        if self.host:
            return None
        return int((jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0))


def _model(work: Work) -> tuple[Values, Any, Any, Callable[[Values, Any], Any]]:
    settings = work.settings
    if work.maths == "mlp":
        return *inputs.perceptron(settings, MLP_WIDTHS), _mlp
    if work.maths == "convnet":
        values, x, y = inputs.convnet(settings)
        for name in ("k0", "k1"):
            values[name] = values[name].transpose(2, 3, 1, 0)
        values["w"] = values["w"].reshape(64, 7, 7, 10).transpose(1, 2, 0, 3).reshape(3136, 10)
        return values, x.transpose(0, 2, 3, 1), y, _convnet
    llama = work.maths == "llama"
    values, x, y = inputs.language_model(settings, llama=llama)
    return values, x, y, lambda p, x: (_llama if llama else _gpt)(p, x, settings)
