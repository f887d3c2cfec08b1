"""netcl on its OpenCL device: its tape, its functions, its AdamW.

Here: the work in netcl's own functions.
Not here: what it has no function for: reductions over rows, norms written out, attention.
"""

from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import numpy as np
from netcl import autograd
from netcl.core.device import manager
from netcl.core.parameter import Parameter
from netcl.core.tensor import Tensor
from netcl.optim.adamw import AdamW

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
    y = (autograd.tanh(u * 0.79788456) + 1.0) * x * 0.5
    return y + autograd.exp(y * -0.1)


def _product(a: Any, b: Any) -> Any:
    return a @ b if len(a.shape) == len((0, 0)) else autograd.bmm(a, b)


def _functions() -> dict[str, maths.Function]:
    return {
        "add": lambda a, b: a + b,
        "chain100": _chain100,
        "ew12": autograd.jit_compile(_ew12),
        "exp": autograd.exp,
        "tanh": autograd.tanh,
        "log": autograd.log,
        "softmax": lambda x: autograd.softmax(x, -1),
        "layernorm_builtin": lambda x, w, b: autograd.layer_norm(x, w, b, maths.EPSILON),
        "rmsnorm_builtin": lambda x, w: autograd.rms_norm(x, w, maths.EPSILON),
        "matmul": _product,
    }


def _mlp(p: Values, x: Any) -> Any:
    for k in (0, 1):
        x = autograd.relu(autograd.bias_add(x @ p[f"w{k}"], p[f"b{k}"]))
    return autograd.bias_add(x @ p["w2"], p["b2"])


def _convnet(p: Values, x: Any) -> Any:
    for k in (0, 1):
        x = autograd.conv2d(x, p[f"k{k}"], p[f"c{k}"], stride=1, pad=1)
        x = autograd.max_pool2d(autograd.relu(x), 2, 2)
    return autograd.bias_add(autograd.flatten(x, (x.shape[0], 3136)) @ p["w"], p["b"])


class Adapter:
    """netcl's default device."""

    version = version("netcl")

    def __init__(self, mode: str, device: str, threads: int) -> None:
        del mode, device, threads
        self.queue = manager.default().queue

    def build(self, work: Work) -> Step | None:
        """Return one call of the work."""
        if work.kind == "function":
            return self._function(work)
        if work.kind == "optimiser":
            return self._optimiser(work) if work.maths == "adamw" else None
        return self._training(work) if work.maths in {"mlp", "convnet"} else None

    def _sent(self, array: Any) -> Any:
        return Tensor.from_host(self.queue, np.ascontiguousarray(array))

    def _function(self, work: Work) -> Step | None:
        function = _functions().get(work.maths)
        if function is None:
            return None
        tensors = [self._sent(a) for a in inputs.arrays(work.inputs)]
        if not work.wrt:

            def forward() -> Any:
                with autograd.no_grad():
                    return (function(*(autograd.tensor(t) for t in tensors)).value,)

            return forward
        cotangent = self._sent(inputs.cotangent(work.out))

        def both() -> Any:
            for tensor in tensors:
                tensor.grad = None
            with autograd.Tape(retain_grads=False) as tape:
                nodes = [autograd.tensor(t, requires_grad=k in work.wrt) for k, t in enumerate(tensors)]
                value = function(*nodes)
            tape.backward(value, cotangent)
            return (value.value, *(nodes[k].grad for k in work.wrt))

        return both

    def _optimiser(self, work: Work) -> Step:
        values, given = inputs.optimised(work.settings)
        parameters = [Parameter.from_host(self.queue, v) for v in values]
        grads = [self._sent(g) for g in given]
        optimiser = _adamw(parameters)

        def once() -> Any:
            for parameter, grad in zip(parameters, grads, strict=True):
                parameter.grad = grad
            optimiser.step()
            return (parameters[0],)

        return once

    def _training(self, work: Work) -> Step:
        values, x, y, model = _model(work)
        parameters = {name: Parameter.from_host(self.queue, v) for name, v in values.items()}
        x = self._sent(x)
        y = Tensor.from_host(self.queue, y.reshape(-1), dtype="int32")
        optimiser = _adamw(list(parameters.values()))

        def step() -> Any:
            optimiser.zero_grad()
            with autograd.Tape(retain_grads=False) as tape:
                watched = {name: autograd.tensor(p, requires_grad=True) for name, p in parameters.items()}
                loss = autograd.cross_entropy_indices(model(watched, autograd.tensor(x)), y)
            tape.backward(loss)
            optimiser.step()
            return (loss.value,)

        return step

    def wait(self, results: Any) -> None:
        """Wait for the queue."""
        del results
        self.queue.finish()

    def numbers(self, result: Any) -> Any:
        """Return a result's values."""
        return result.to_host()

    def let_go(self) -> None:
        """Wait for the queue."""
        self.queue.finish()

    def peak(self, *, reset: bool = False) -> int | None:
        """Say that memory is the process's own, as it is with an OpenCL for CPUs."""
        del reset
        return None


def _adamw(parameters: Any) -> Any:
    a = inputs.ADAMW
    return AdamW(parameters, a["lr"], (a["beta1"], a["beta2"]), a["eps"], a["weight_decay"])


def _model(work: Work) -> tuple[Values, Any, Any, Callable[[Values, Any], Any]]:
    if work.maths == "mlp":
        return *inputs.perceptron(work.settings, MLP_WIDTHS), _mlp
    return *inputs.convnet(work.settings), _convnet
