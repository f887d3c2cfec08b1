"""The optimisers: each is its update formula.

Here: SGD, Adam, AdamW, NAdam, Adamax, RMSprop, Adagrad, Lion.
Not here: groups, gradients, saving (`optimizer.py`).

Each update is written from elementwise ops, so it is one kernel a parameter. Branches depend only on whether a
hyper-parameter is used at all.
"""

import functools
import math
from collections.abc import Mapping
from typing import Any, ClassVar

from polygrad.array.functions import FUNCTIONS
from polygrad.array.object import Array
from polygrad.errors import GradError
from polygrad.optim.optimizer import Optimizer, State
from polygrad.optim.recipes import formula
from polygrad.symbols import applied


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
    dampening : float
        How much less than 1 of each gradient after the first is added to the velocity, in [0, 1).

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
        self,
        params: Any,
        lr: float = 1e-2,
        momentum: float = 0.0,
        *,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        dampening: float = 0.0,
    ) -> None:
        _check(0.0, math.inf, lr=lr, weight_decay=weight_decay)
        _check(0.0, 1.0, momentum=momentum, dampening=dampening)
        if nesterov and (not momentum or dampening):
            raise GradError("cannot use nesterov without momentum or with dampening: pass momentum=0.9, say")
        self.slots = ("velocity",) if momentum else ()
        super().__init__(
            params, lr=lr, momentum=momentum, nesterov=nesterov, weight_decay=weight_decay, dampening=dampening
        )

    @formula
    def update(
        self, parameter: Array, gradient: Array, state: State, group: Mapping[str, Any], decay: float
    ) -> tuple[Array, State]:
        """Return the value less lr times the direction, and the velocity."""
        p: Any = parameter
        g: Any = gradient + p * decay if decay else gradient
        if not self.slots:
            return p - g * group["lr"], {}
        damped = g * (1.0 - group["dampening"]) if group["dampening"] and state["step"] > 1 else g
        velocity = state["velocity"] * group["momentum"] + damped
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
    amsgrad : bool
        Whether elements are scaled by the largest mean square so far. Source: Reddi et al., On the Convergence of Adam
        and Beyond (2018).
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
        *,
        amsgrad: bool = False,
    ) -> None:
        _check(0.0, math.inf, lr=lr, eps=eps, weight_decay=weight_decay)
        _check(0.0, 1.0, beta1=betas[0], beta2=betas[1])
        self.slots = ("mean", "square", "largest") if amsgrad else ("mean", "square")
        super().__init__(params, lr=lr, betas=tuple(betas), eps=eps, weight_decay=weight_decay, amsgrad=amsgrad)

    @formula
    def update(
        self, parameter: Array, gradient: Array, state: State, group: Mapping[str, Any], decay: float
    ) -> tuple[Array, State]:
        """Return the new value and the running means."""
        p: Any = parameter
        g: Any = gradient
        (first, second), rate = group["betas"], group["lr"]
        if decay and self.decoupled:
            p = p * (1.0 - rate * decay)
        elif decay:
            g = g + p * decay
        mean = state["mean"] * first + g * (1.0 - first)
        square = state["square"] * second + g * g * (1.0 - second)
        new = {"mean": mean, "square": square}
        if "largest" in self.slots:
            new["largest"] = FUNCTIONS["maximum"](state["largest"], square)
        root = FUNCTIONS["sqrt"](new.get("largest", square)) * (1.0 / applied(math.sqrt, 1.0 - second ** state["step"]))
        return p - mean * (rate / (1.0 - first ** state["step"])) / (root + group["eps"]), new


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
        *,
        amsgrad: bool = False,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad=amsgrad)


def _momentum(first: Any, decay: Any, count: Any) -> Any:
    """Return NAdam's momentum at a step: it rises from half of *first* to *first*."""
    return first * (1.0 - 0.5 * 0.96 ** (count * decay))


@functools.lru_cache(maxsize=256)
def _momenta(first: float, decay: float, count: int) -> float:
    """Return the product of the momenta of the steps 1 to *count*."""
    return float(math.prod(_momentum(first, decay, k) for k in range(1, count + 1)))


class NAdam(Optimizer):
    """Adam with Nesterov's momentum. Source: Dozat, Incorporating Nesterov Momentum into Adam (2016).

    Parameters
    ----------
    params, lr, betas, eps, weight_decay
        As for `Adam`.
    momentum_decay : float
        How fast the momentum rises to the first of *betas*.
    """

    slots: tuple[str, ...] = ("mean", "square")

    def __init__(
        self,
        params: Any,
        lr: float = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum_decay: float = 4e-3,
    ) -> None:
        _check(0.0, math.inf, lr=lr, eps=eps, weight_decay=weight_decay, momentum_decay=momentum_decay)
        _check(0.0, 1.0, beta1=betas[0], beta2=betas[1])
        super().__init__(
            params, lr=lr, betas=tuple(betas), eps=eps, weight_decay=weight_decay, momentum_decay=momentum_decay
        )

    @formula
    def update(
        self, parameter: Array, gradient: Array, state: State, group: Mapping[str, Any], decay: float
    ) -> tuple[Array, State]:
        """Return the new value and both running means."""
        p: Any = parameter
        g: Any = gradient + p * decay if decay else gradient
        (first, second), rate, count = group["betas"], group["lr"], state["step"]
        now, following = (_momentum(first, group["momentum_decay"], k) for k in (count, count + 1))
        past = applied(_momenta, first, group["momentum_decay"], count)
        mean = state["mean"] * first + g * (1.0 - first)
        square = state["square"] * second + g * g * (1.0 - second)
        root = FUNCTIONS["sqrt"](square * (1.0 / (1.0 - second**count))) + group["eps"]
        ahead = rate * following / (1.0 - past * following)
        move = g * (rate * (1.0 - now) / (1.0 - past)) + mean * ahead
        return p - move / root, {"mean": mean, "square": square}


class Adamax(Optimizer):
    """Adam with the running maximum of the gradients' sizes in place of the root mean square.

    Source: Kingma and Ba, Adam (2015), algorithm 2. Parameters as for `Adam`.
    """

    slots: tuple[str, ...] = ("mean", "largest")

    def __init__(
        self,
        params: Any,
        lr: float = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        _check(0.0, math.inf, lr=lr, eps=eps, weight_decay=weight_decay)
        _check(0.0, 1.0, beta1=betas[0], beta2=betas[1])
        super().__init__(params, lr=lr, betas=tuple(betas), eps=eps, weight_decay=weight_decay)

    @formula
    def update(
        self, parameter: Array, gradient: Array, state: State, group: Mapping[str, Any], decay: float
    ) -> tuple[Array, State]:
        """Return the new value, the running mean and the running maximum."""
        p: Any = parameter
        g: Any = gradient + p * decay if decay else gradient
        first, second = group["betas"]
        mean = state["mean"] * first + g * (1.0 - first)
        largest = FUNCTIONS["maximum"](state["largest"] * second, FUNCTIONS["abs"](g) + group["eps"])
        rate = group["lr"] / (1.0 - first ** state["step"])
        return p - mean * rate / largest, {"mean": mean, "largest": largest}


class Adagrad(Optimizer):
    """Steps scaled by the root of the sum of all squared gradients so far.

    Source: Duchi, Hazan and Singer, Adaptive Subgradient Methods (2011).

    Parameters
    ----------
    params : Module, tree of arrays, iterable of arrays, or list of groups
        See `Optimizer`.
    lr : float
        The learning rate.
    lr_decay : float
        The learning rate is divided by ``1 + lr_decay * (steps before this)``.
    weight_decay : float
        This times the parameter is added to the gradient.
    initial_accumulator_value : float
        What the sum starts from.
    eps : float
        Added to the root.
    """

    slots: tuple[str, ...] = ("sum",)

    def __init__(
        self,
        params: Any,
        lr: float = 1e-2,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
    ) -> None:
        _check(0.0, math.inf, lr=lr, lr_decay=lr_decay, eps=eps, weight_decay=weight_decay)
        _check(0.0, math.inf, initial_accumulator_value=initial_accumulator_value)
        self._start = initial_accumulator_value
        super().__init__(params, lr=lr, lr_decay=lr_decay, eps=eps, weight_decay=weight_decay)

    def first_state(self, slot: str, value: Array) -> Array:  # noqa: ARG002  there is one
        """Return the sum's first value."""
        return FUNCTIONS["full_like"](value, self._start)  # type: ignore[no-any-return]

    @formula
    def update(
        self, parameter: Array, gradient: Array, state: State, group: Mapping[str, Any], decay: float
    ) -> tuple[Array, State]:
        """Return the new value and the sum."""
        p: Any = parameter
        g: Any = gradient + p * decay if decay else gradient
        rate = group["lr"] / (1.0 + (state["step"] - 1) * group["lr_decay"])
        total = state["sum"] + g * g
        return p - g * rate / (FUNCTIONS["sqrt"](total) + group["eps"]), {"sum": total}


class Lion(Optimizer):
    """Steps of exactly lr in the direction of the sign of the momentum; the parameter itself decays, as in `AdamW`.

    Source: Chen et al., Symbolic Discovery of Optimization Algorithms (2023), algorithm 2.

    Parameters
    ----------
    params : Module, tree of arrays, iterable of arrays, or list of groups
        See `Optimizer`.
    lr : float
        The learning rate: about a tenth of what Adam takes.
    betas : pair of float
        How much of the momentum counts in the direction, and how much of it is kept.
    weight_decay : float
        The parameter shrinks by ``lr * weight_decay``.

    Examples
    --------
    >>> import polygrad as pg
    >>> w = pg.asarray([1.0, -2.0])
    >>> pg.optim.Lion([w], lr=0.5).step([pg.asarray([0.1, -7.0])])
    >>> w.tolist()
    [0.5, -1.5]
    """

    slots: tuple[str, ...] = ("mean",)

    def __init__(
        self, params: Any, lr: float = 1e-4, betas: tuple[float, float] = (0.9, 0.99), weight_decay: float = 0.0
    ) -> None:
        _check(0.0, math.inf, lr=lr, weight_decay=weight_decay)
        _check(0.0, 1.0, beta1=betas[0], beta2=betas[1])
        super().__init__(params, lr=lr, betas=tuple(betas), weight_decay=weight_decay)

    @formula
    def update(
        self, parameter: Array, gradient: Array, state: State, group: Mapping[str, Any], decay: float
    ) -> tuple[Array, State]:
        """Return the new value and the momentum."""
        p: Any = parameter
        g: Any = gradient
        first, second = group["betas"]
        if decay:
            p = p * (1.0 - group["lr"] * decay)
        direction = FUNCTIONS["sign"](state["mean"] * first + g * (1.0 - first))
        return p - direction * group["lr"], {"mean": state["mean"] * second + g * (1.0 - second)}


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
    centered : bool
        Whether steps are scaled by the running standard deviation: the mean's square is taken off.
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
        centered: bool = False,
    ) -> None:
        _check(0.0, math.inf, lr=lr, eps=eps, weight_decay=weight_decay)
        _check(0.0, 1.0, alpha=alpha, momentum=momentum)
        self.slots = ("square", *(("mean",) if centered else ()), *(("velocity",) if momentum else ()))
        super().__init__(
            params, lr=lr, alpha=alpha, eps=eps, momentum=momentum, weight_decay=weight_decay, centered=centered
        )

    @formula
    def update(
        self, parameter: Array, gradient: Array, state: State, group: Mapping[str, Any], decay: float
    ) -> tuple[Array, State]:
        """Return the new value, the running means, and the velocity if there is momentum."""
        p: Any = parameter
        g: Any = gradient + p * decay if decay else gradient
        square = state["square"] * group["alpha"] + g * g * (1.0 - group["alpha"])
        new = {"square": square}
        spread = square
        if "mean" in self.slots:
            new["mean"] = state["mean"] * group["alpha"] + g * (1.0 - group["alpha"])
            spread = square - new["mean"] * new["mean"]
        scaled = g / (FUNCTIONS["sqrt"](spread) + group["eps"])
        if "velocity" not in self.slots:
            return p - scaled * group["lr"], new
        new["velocity"] = state["velocity"] * group["momentum"] + scaled
        return p - new["velocity"] * group["lr"], new
