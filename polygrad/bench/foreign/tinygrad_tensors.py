"""tinygrad on the CPU, each call within TinyJit, which captures the second and replays from the third.

Here: the work in tinygrad's own methods.
Not here: the gradient of an embedding, which sums over every row of the table and does not end in minutes.
"""

from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from tinygrad import Device, Tensor, TinyJit
from tinygrad.nn.optim import AdamW

from polygrad.bench import inputs, maths
from polygrad.bench.peers import Step
from polygrad.bench.work import MLP_WIDTHS, Work

Values = dict[str, Any]


def _chain100(x: Any, a: Any, b: Any) -> Any:
    for _ in range(maths.STEPS):
        x = x * a + b
    return x


def _ew12(x: Any) -> Any:
    u = x * x * x * 0.044715 + x
    y = ((u * 0.79788456).tanh() + 1) * x * 0.5
    return y + (y * -0.1).exp()


def _rmsnorm(x: Any, w: Any) -> Any:
    return x * ((x * x).mean(-1, keepdim=True) + maths.EPSILON).rsqrt() * w


def _layernorm(x: Any, w: Any, b: Any) -> Any:
    centred = x - x.mean(-1, keepdim=True)
    return centred * ((centred * centred).mean(-1, keepdim=True) + maths.EPSILON).rsqrt() * w + b


FUNCTIONS: dict[str, maths.Function] = {
    "copy": lambda x: -x,
    "add": lambda a, b: a + b,
    "chain100": _chain100,
    "ew12": _ew12,
    "exp": Tensor.exp,
    "tanh": Tensor.tanh,
    "log": Tensor.log,
    "sum": lambda x: x.sum(-1),
    "meanvar": lambda x: (x.mean(-1), x.var(-1, correction=0)),
    "softmax": lambda x: x.softmax(-1),
    "logsumexp": lambda x: x.logsumexp(-1),
    "rmsnorm": _rmsnorm,
    "layernorm": _layernorm,
    "layernorm_builtin": lambda x, w, b: x.layernorm(eps=maths.EPSILON) * w + b,
    "swiglu": lambda a, b: a.silu() * b,
    "cross_entropy": lambda scores, targets: scores.sparse_categorical_crossentropy(targets),
    "attention": lambda q, k, v: q.scaled_dot_product_attention(k, v, is_causal=True),
    "matmul": lambda a, b: a @ b,
    "take": lambda table, index: table[index],
    "cumsum": lambda x: x.cumsum(0),
    "argmax": lambda x: x.argmax(),
}


def _mlp(p: Values, x: Any) -> Any:
    return ((x @ p["w0"] + p["b0"]).relu() @ p["w1"] + p["b1"]).relu() @ p["w2"] + p["b2"]


def _convnet(p: Values, x: Any) -> Any:
    x = x.conv2d(p["k0"], p["c0"], padding=1).relu().max_pool2d()
    x = x.conv2d(p["k1"], p["c1"], padding=1).relu().max_pool2d()
    return x.flatten(1) @ p["w"] + p["b"]


def _gpt(p: Values, x: Any, settings: Any) -> Any:
    dim, heads = settings["dim"], settings["heads"]
    batch, positions = x.shape
    h = p["tokens"][x] + p["positions"]

    def norm(h: Any, gain: str, shift: str) -> Any:
        return h.layernorm(eps=maths.EPSILON) * p[gain] + p[shift]

    for k in range(settings["layers"]):
        n = norm(h, f"gain1_{k}", f"shift1_{k}") @ p[f"qkv_{k}"]
        n = n.reshape(batch, positions, 3, heads, dim // heads).permute(2, 0, 3, 1, 4)
        out = n[0].scaled_dot_product_attention(n[1], n[2], is_causal=True)
        h = h + out.transpose(1, 2).reshape(batch, positions, dim) @ p[f"out_{k}"]
        h = h + (norm(h, f"gain2_{k}", f"shift2_{k}") @ p[f"up_{k}"]).gelu() @ p[f"down_{k}"]
    return (norm(h, "gain", "shift") @ p["head"]).reshape(-1, settings["vocabulary"])


class Adapter:
    """tinygrad's CPU device, which needs clang."""

    version = version("tinygrad")

    def __init__(self, mode: str, device: str, threads: int) -> None:
        del mode, device, threads

    def build(self, work: Work) -> Step | None:
        """Return one call of the work."""
        if work.kind == "function":
            return self._function(work)
        if work.maths == "adamw":
            return self._optimiser(work)
        return self._training(work) if work.maths in {"mlp", "convnet", "gpt"} else None

    def _function(self, work: Work) -> Step | None:
        function = FUNCTIONS.get(work.maths)
        if function is None or (work.maths == "take" and work.wrt):
            return None
        tensors = [Tensor(a).realize() for a in inputs.arrays(work.inputs)]
        if work.out:  # a loss has the cotangent 1 without being told
            tensors.append(Tensor(inputs.cotangent(work.out)).realize())

        @TinyJit  # type: ignore[untyped-decorator]
        def call(*tensors: Any) -> Any:
            if work.wrt:
                given, cotangent = (tensors[:-1], tensors[-1]) if work.out else (tensors, None)
                value = function(*given)
                out = (value, *value.gradient(*(given[k] for k in work.wrt), gradient=cotangent))
            else:
                out = maths.results(function(*tensors))
            Tensor.realize(*out)
            return out

        return lambda: call(*tensors)

    def _optimiser(self, work: Work) -> Step:
        values, given = inputs.optimised(work.settings)
        parameters = [Tensor(v).realize().is_param_(True) for v in values]
        grads = [Tensor(g).realize() for g in given]
        optimiser = _adamw(parameters)

        @TinyJit  # type: ignore[untyped-decorator]
        def once() -> Any:
            for parameter, grad in zip(parameters, grads, strict=True):
                parameter.grad = grad
            optimiser.step()
            return parameters[0]

        return lambda: (once(),)

    def _training(self, work: Work) -> Step:
        values, x, y, model = _model(work)
        parameters = {name: Tensor(v).realize().is_param_(True) for name, v in values.items()}
        x, y = Tensor(x).realize(), Tensor(y.reshape(-1)).realize()
        optimiser = _adamw(list(parameters.values()))

        @TinyJit  # type: ignore[untyped-decorator]
        def step(x: Any, y: Any) -> Any:
            optimiser.zero_grad()
            loss = model(parameters, x).sparse_categorical_crossentropy(y).backward()
            return loss.realize(*optimiser.schedule_step())

        return lambda: (step(x, y),)

    def wait(self, results: Any) -> None:
        """Wait for the device."""
        del results
        Device[Device.DEFAULT].synchronize()

    def numbers(self, result: Any) -> Any:
        """Return a result's values."""
        return result.numpy()

    def let_go(self) -> None:
        """Wait: there is no pool to empty."""
        Device[Device.DEFAULT].synchronize()

    def peak(self, *, reset: bool = False) -> int | None:
        """Say that memory is the process's own."""
        del reset
        return None


def _adamw(parameters: Any) -> Any:
    a = inputs.ADAMW
    return AdamW(parameters, lr=a["lr"], b1=a["beta1"], b2=a["beta2"], eps=a["eps"], weight_decay=a["weight_decay"])


def _model(work: Work) -> tuple[Values, Any, Any, Callable[[Values, Any], Any]]:
    settings = work.settings
    if work.maths == "mlp":
        return *inputs.perceptron(settings, MLP_WIDTHS), _mlp
    if work.maths == "convnet":
        return *inputs.convnet(settings), _convnet
    values, x, y = inputs.language_model(settings, llama=False)
    return values, x, y, lambda p, x: _gpt(p, x, settings)
