"""The optimisers: each is its update formula.

Here: SGD, Adam, AdamW, RMSprop.
Not here: groups, gradients, saving (`optimizer.py`).

Each update is written from elementwise ops, so it is one kernel a parameter. Branches depend only on whether a
hyper-parameter is used at all.
"""

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from polygrad.array.functions import FUNCTIONS
from polygrad.array.object import Array
from polygrad.errors import GradError
from polygrad.optim.optimizer import Optimizer, State


def _check(low: float, high: float, **values: float) -> None:
    for name, value in values.items():
        if not low <= value < high:
            raise GradError(f"cannot optimise with {name}={value}: it must be in [{low:g}, {high:g})")


class SGD(Optimizer):
    """Stochastic gradient descent, with momentum and weight decay.

    Parameters
    ----------
    params : Module, tree of arrays, iterable of arrays, or list of groups
        See `Optimizer`.
    lr : float
        The learning rate.
    momentum : float
        How much of the last move is kept, in [0, 1).
    nesterov : bool
        Whether the gradient counts as if the momentum had been applied already.
    weight_decay : float
        This times the parameter is added to the gradient.

    Examples
    --------
    >>> import polygrad as pg
    >>> w = pg.nn.Parameter([1.0, -2.0])
    >>> optimiser = pg.optim.SGD([w], lr=0.5)
    >>> (w * w).sum().backward()
    >>> optimiser.step()
    >>> w.tolist()
    [0.0, 0.0]
    """

    slots: tuple[str, ...] = ("velocity",)

    def __init__(
        self, params: Any, lr: float = 1e-2, momentum: float = 0.0, *, nesterov: bool = False, weight_decay: float = 0.0
    ) -> None:
        _check(0.0, math.inf, lr=lr, weight_decay=weight_decay)
        _check(0.0, 1.0, momentum=momentum)
        if nesterov and not momentum:
            raise GradError("cannot use nesterov without momentum: pass momentum=0.9, say")
        self.slots = ("velocity",) if momentum else ()
        super().__init__(params, lr=lr, momentum=momentum, nesterov=nesterov, weight_decay=weight_decay)

    def update(
        self, parameter: Array, gradient: Array, state: State, group: Mapping[str, Any], decay: float
    ) -> tuple[Array, State]:
        """Return the value less lr times the direction, and the velocity."""
        p: Any = parameter
        g: Any = gradient + p * decay if decay else gradient
        if not self.slots:
            return p - g * group["lr"], {}
        velocity = state["velocity"] * group["momentum"] + g
        direction = g + velocity * group["momentum"] if group["nesterov"] else velocity
        return p - direction * group["lr"], {"velocity": velocity}


class Adam(Optimizer):
    """Adam: steps of about lr, each element scaled by the root of its mean squared gradient.

    16-bit parameters are updated in float32, where a zero gradient moves nothing. Source: Kingma and Ba, Adam (2015),
    algorithm 1.

    Parameters
    ----------
    params : Module, tree of arrays, iterable of arrays, or list of groups
        See `Optimizer`.
    lr : float
        The learning rate.
    betas : pair of float
        How much of the running means of gradients and of their squares is kept at each step.
    eps : float
        Added to the root.
    weight_decay : float
        This times the parameter is added to the gradient; `AdamW` decays the parameter itself.
    """

    slots: tuple[str, ...] = ("mean", "square")
    decoupled: ClassVar[bool] = False

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        _check(0.0, math.inf, lr=lr, eps=eps, weight_decay=weight_decay)
        _check(0.0, 1.0, beta1=betas[0], beta2=betas[1])
        super().__init__(params, lr=lr, betas=tuple(betas), eps=eps, weight_decay=weight_decay)

    def update(
        self, parameter: Array, gradient: Array, state: State, group: Mapping[str, Any], decay: float
    ) -> tuple[Array, State]:
        """Return the new value and both running means."""
        p: Any = parameter
        g: Any = gradient
        (first, second), rate = group["betas"], group["lr"]
        if decay and self.decoupled:
            p = p * (1.0 - rate * decay)
        elif decay:
            g = g + p * decay
        mean = state["mean"] * first + g * (1.0 - first)
        square = state["square"] * second + g * g * (1.0 - second)
        root = FUNCTIONS["sqrt"](square) * (1.0 / math.sqrt(1.0 - second ** state["step"])) + group["eps"]
        return p - mean * (rate / (1.0 - first ** state["step"])) / root, {"mean": mean, "square": square}


class AdamW(Adam):
    """Adam that shrinks the parameters themselves by ``lr * weight_decay``, not through the gradient.

    Source: Loshchilov and Hutter, Decoupled Weight Decay Regularization (2019), algorithm 2.
    """

    decoupled: ClassVar[bool] = True

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay)


class RMSprop(Optimizer):
    """Steps scaled by the root of the mean squared gradient, with momentum if asked for.

    Parameters
    ----------
    params : Module, tree of arrays, iterable of arrays, or list of groups
        See `Optimizer`.
    lr : float
        The learning rate.
    alpha : float
        How much of the running mean of squares is kept at each step.
    eps : float
        Added to the root.
    momentum : float
        How much of the last move is kept, in [0, 1).
    weight_decay : float
        This times the parameter is added to the gradient.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        momentum: float = 0.0,
        *,
        weight_decay: float = 0.0,
    ) -> None:
        _check(0.0, math.inf, lr=lr, eps=eps, weight_decay=weight_decay)
        _check(0.0, 1.0, alpha=alpha, momentum=momentum)
        self.slots = ("square", "velocity") if momentum else ("square",)
        super().__init__(params, lr=lr, alpha=alpha, eps=eps, momentum=momentum, weight_decay=weight_decay)

    def update(
        self, parameter: Array, gradient: Array, state: State, group: Mapping[str, Any], decay: float
    ) -> tuple[Array, State]:
        """Return the new value, the running mean of squares, and the velocity if there is momentum."""
        p: Any = parameter
        g: Any = gradient + p * decay if decay else gradient
        square = state["square"] * group["alpha"] + g * g * (1.0 - group["alpha"])
        scaled = g / (FUNCTIONS["sqrt"](square) + group["eps"])
        if "velocity" not in self.slots:
            return p - scaled * group["lr"], {"square": square}
        velocity = state["velocity"] * group["momentum"] + scaled
        return p - velocity * group["lr"], {"square": square, "velocity": velocity}
