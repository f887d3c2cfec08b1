"""PyTorch: eager, or `torch.compile` around the forward function or the loss.

Here: the work in PyTorch's own functions; float32 stays float32 (no TF32).
Not here: the memory allocator's settings of "torch.pool" (`peers/__init__.py`).

Compiled training steps use PyTorch's fused optimiser, eager ones its default; "adamw_fastest" is the fused one.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  what everybody calls it

from polygrad.bench import inputs, maths
from polygrad.bench.peers import Step
from polygrad.bench.work import MLP_WIDTHS, SHOWN, Work

Values = dict[str, Any]
NOT_COMPILED = ("copy", "matmul", "take", "sort", "cumsum", "argmax")  # a library's single call, with nothing to fuse


def _functions() -> dict[str, maths.Function]:
    def causal_softmax(s: Any) -> Any:
        rows, columns = s.shape[-2:]
        row = torch.arange(rows, device=s.device)[:, None]
        mask = torch.arange(columns, device=s.device)[None, :] <= row
        return torch.softmax(torch.where(mask, s, -torch.inf), -1)

    return maths.functions(torch) | {
        "meanvar": lambda x: (x.mean(-1), x.var(-1, correction=0)),
        "softmax": lambda x: torch.softmax(x, -1),
        "logsumexp": lambda x: torch.logsumexp(x, -1),
        "rmsnorm_builtin": lambda x, w: F.rms_norm(x, w.shape, w, maths.EPSILON),
        "layernorm_builtin": lambda x, w, b: F.layer_norm(x, w.shape, w, b, maths.EPSILON),
        "swiglu": lambda a, b: F.silu(a) * b,
        "causal_softmax": causal_softmax,
        "cross_entropy": lambda scores, targets: F.cross_entropy(scores, targets.long()),
        "attention": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        "take": lambda table, index: F.embedding(index, table),
        "cumsum": lambda x: torch.cumsum(x, 0),
        "sort": lambda x: torch.sort(x)[0],
    }


def _mlp(p: Values, x: Any) -> Any:
    h = F.relu(torch.addmm(p["b0"], x, p["w0"]))
    h = F.relu(torch.addmm(p["b1"], h, p["w1"]))
    return torch.addmm(p["b2"], h, p["w2"])


def _convnet(p: Values, x: Any) -> Any:
    x = F.max_pool2d(F.relu(F.conv2d(x, p["k0"], p["c0"], padding=1)), 2)
    x = F.max_pool2d(F.relu(F.conv2d(x, p["k1"], p["c1"], padding=1)), 2)
    return torch.addmm(p["b"], x.flatten(1), p["w"])


def _attended(parts: Any, heads: int) -> Any:
    batch, positions, dim = parts[0].shape
    q, k, v = (part.reshape(batch, positions, heads, dim // heads).transpose(1, 2) for part in parts)
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return out.transpose(1, 2).reshape(batch, positions, dim)


def _gpt(p: Values, x: Any, settings: Any) -> Any:
    dim = settings["dim"]
    h = F.embedding(x, p["tokens"]) + p["positions"]
    for k in range(settings["layers"]):
        n = F.layer_norm(h, (dim,), p[f"gain1_{k}"], p[f"shift1_{k}"], maths.EPSILON)
        parts = (n @ p[f"qkv_{k}"]).split(dim, -1)
        h = h + _attended(parts, settings["heads"]) @ p[f"out_{k}"]
        n = F.layer_norm(h, (dim,), p[f"gain2_{k}"], p[f"shift2_{k}"], maths.EPSILON)
        h = h + F.gelu(n @ p[f"up_{k}"], approximate="tanh") @ p[f"down_{k}"]
    h = F.layer_norm(h, (dim,), p["gain"], p["shift"], maths.EPSILON)
    return (h @ p["head"]).view(-1, settings["vocabulary"])


def _llama(p: Values, x: Any, settings: Any) -> Any:
    dim = settings["dim"]
    h = F.embedding(x, p["tokens"]) + p["positions"]
    for k in range(settings["layers"]):
        n = F.rms_norm(h, (dim,), p[f"gain1_{k}"], maths.EPSILON)
        parts = [n @ p[f"{name}_{k}"] for name in ("query", "key", "value")]
        h = h + _attended(parts, settings["heads"]) @ p[f"out_{k}"]
        n = F.rms_norm(h, (dim,), p[f"gain2_{k}"], maths.EPSILON)
        h = h + (F.silu(n @ p[f"gate_{k}"]) * (n @ p[f"up_{k}"])) @ p[f"down_{k}"]
    return (F.rms_norm(h, (dim,), p["gain"], maths.EPSILON) @ p["head"]).view(-1, settings["vocabulary"])


class Adapter:
    """PyTorch on the CPU or on an NVIDIA GPU."""

    version = str(torch.__version__)

    def __init__(self, mode: str, device: str, threads: int) -> None:
        self.compiled = mode == "compile"
        self.device = torch.device("cuda" if device == "nvidia" else "cpu")
        torch.set_num_threads(threads)
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False

    def build(self, work: Work) -> Step | None:
        """Return one call of the work."""
        if work.kind == "graph" or (self.compiled and work.maths in NOT_COMPILED):
            return None
        return {"function": self._function, "training": self._training, "optimiser": self._optimiser}[work.kind](work)

    def _sent(self, array: Any) -> Any:
        return torch.from_numpy(array).to(self.device)

    def _wrapped(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return torch.compile(function, dynamic=False) if self.compiled else function

    def _function(self, work: Work) -> Step:
        function = self._wrapped(_functions()[work.maths])
        tensors = [self._sent(a) for a in inputs.arrays(work.inputs)]
        if not work.wrt:

            def forward() -> Any:
                with torch.no_grad():
                    return maths.results(function(*tensors))

            return forward
        varied = [tensors[k].requires_grad_() for k in work.wrt]
        cotangent = torch.as_tensor(inputs.cotangent(work.out), device=self.device)

        def both() -> Any:
            value = function(*tensors)
            return (value, *torch.autograd.grad(value, varied, cotangent))

        return both

    def _adamw(self, parameters: Any, *, fastest: bool) -> Any:
        a = inputs.ADAMW
        return torch.optim.AdamW(
            parameters, lr=a["lr"], betas=(a["beta1"], a["beta2"]), eps=a["eps"], weight_decay=a["weight_decay"],
            fused=True if fastest else None,
        )  # fmt: skip

    def _optimiser(self, work: Work) -> Step:
        values, grads = inputs.optimised(work.settings)
        parameters = [self._sent(v).requires_grad_() for v in values]
        for parameter, grad in zip(parameters, grads, strict=True):
            parameter.grad = self._sent(grad)
        optimiser = self._adamw(parameters, fastest=work.maths == "adamw_fastest")
        step = torch.compile(optimiser.step) if self.compiled and work.maths == "adamw" else optimiser.step

        def once() -> Any:
            step()
            return (parameters[0],)

        return once

    def _training(self, work: Work) -> Step:
        values, x, y, model = _model(work)
        parameters = {name: self._sent(v).requires_grad_() for name, v in values.items()}
        x, y = self._sent(x), self._sent(y).long().reshape(-1)
        narrow = work.settings.get("dtype") == "bfloat16"
        stepping = work.settings.get("step", 1)
        optimiser = self._adamw(list(parameters.values()), fastest=self.compiled or work.group == "language")

        def loss_of(parameters: Values, x: Any, y: Any) -> Any:
            with torch.autocast(self.device.type, torch.bfloat16, enabled=narrow):
                scores = model(parameters, x)
            return F.cross_entropy(scores.float(), y)

        loss_of = self._wrapped(loss_of)

        def step() -> Any:
            optimiser.zero_grad()
            loss = loss_of(parameters, x, y)
            loss.backward()
            if stepping:
                optimiser.step()
                return (loss.detach(),)
            return loss.detach(), parameters[SHOWN].grad

        return step

    def wait(self, results: Any) -> None:
        """Wait for the GPU; on the CPU calls return when they are done."""
        del results
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def numbers(self, result: Any) -> Any:
        """Return a result's values."""
        return result.detach().cpu().numpy()

    def let_go(self) -> None:
        """Forget compiled code, and empty the GPU's pool."""
        if self.compiled:
            torch.compiler.reset()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def peak(self, *, reset: bool = False) -> int | None:
        """Return the most bytes of tensors on the GPU."""
        if self.device.type != "cuda":
            return None
        if reset:
            torch.cuda.reset_peak_memory_stats()
        return int(torch.cuda.max_memory_allocated())


def _model(work: Work) -> tuple[Values, Any, Any, Callable[[Values, Any], Any]]:
    settings = work.settings
    if work.maths == "mlp":
        return *inputs.perceptron(settings, MLP_WIDTHS), _mlp
    if work.maths == "convnet":
        return *inputs.convnet(settings), _convnet
    llama = work.maths == "llama"
    values, x, y = inputs.language_model(settings, llama=llama)
    return values, x, y, lambda p, x: (_llama if llama else _gpt)(p, x, settings)
