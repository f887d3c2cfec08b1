"""Learning rates that change with the step, bound to an optimiser.

Here: schedules; each sets ``lr`` of the optimiser's groups.
Not here: schedules made of others or led by a measured value (`composed.py`), optimisers, which read the rates.

Every schedule here is a formula of the number of steps and the first learning rate, so that it can be entered anywhere:
loading a state, or starting one schedule after another, needs no replay.
"""

import bisect
import math
from collections.abc import Callable, Sequence

from polygrad.errors import GradError
from polygrad.optim.composed import ChainedScheduler, ReduceLROnPlateau, SequentialLR
from polygrad.optim.optimizer import Optimizer
from polygrad.optim.scheduling import Scheduler

__all__ = [
    "ChainedScheduler",
    "ConstantLR",
    "CosineAnnealingLR",
    "CosineWithWarmup",
    "ExponentialLR",
    "LambdaLR",
    "LinearLR",
    "MultiStepLR",
    "OneCycleLR",
    "PolynomialLR",
    "ReduceLROnPlateau",
    "Scheduler",
    "SequentialLR",
    "StepLR",
]


def _positive(name: str, what: str, value: float) -> None:
    if not value > 0:
        raise GradError(f"cannot make {name} with {what}={value}: it must be positive")


class LambdaLR(Scheduler):
    """Multiply the first learning rate by what a function of the number of steps returns.

    >>> import polygrad as pg
    >>> optimiser = pg.optim.SGD([pg.ones(1)], lr=1.0)
    >>> schedule = pg.optim.lr_scheduler.LambdaLR(optimiser, lambda count: 0.5**count)
    >>> schedule.step(), optimiser.lr
    (None, 0.5)
    """

    def __init__(self, optimizer: Optimizer, lr_lambda: Callable[[int], float]) -> None:
        self.lr_lambda = lr_lambda
        super().__init__(optimizer)

    def rate(self, count: int, first: float) -> float:
        """Return the first rate times the function's value."""
        return first * float(self.lr_lambda(count))


class StepLR(Scheduler):
    """Multiply the learning rate by *gamma* after every *step_size* steps.

    >>> import polygrad as pg
    >>> optimiser = pg.optim.SGD([pg.ones(1)], lr=1.0)
    >>> schedule = pg.optim.lr_scheduler.StepLR(optimiser, step_size=2, gamma=0.1)
    >>> schedule.step(), optimiser.lr, schedule.step(), optimiser.lr
    (None, 1.0, None, 0.1)
    """

    def __init__(self, optimizer: Optimizer, step_size: int, gamma: float = 0.1) -> None:
        if step_size < 1:
            raise GradError(f"cannot change the learning rate every {step_size} steps: it must be at least 1")
        self.step_size = step_size
        self.gamma = gamma
        super().__init__(optimizer)

    def rate(self, count: int, first: float) -> float:
        """Return the first rate times a power of gamma."""
        return float(first * self.gamma ** (count // self.step_size))


class MultiStepLR(Scheduler):
    """Multiply the learning rate by *gamma* when the number of steps reaches each of *milestones*."""

    def __init__(self, optimizer: Optimizer, milestones: Sequence[int], gamma: float = 0.1) -> None:
        self.milestones = sorted(milestones)
        self.gamma = gamma
        super().__init__(optimizer)

    def rate(self, count: int, first: float) -> float:
        """Return the first rate times a power of gamma."""
        return float(first * self.gamma ** bisect.bisect_right(self.milestones, count))


class ExponentialLR(Scheduler):
    """Multiply the learning rate by *gamma* after each step."""

    def __init__(self, optimizer: Optimizer, gamma: float) -> None:
        _positive("ExponentialLR", "gamma", gamma)
        self.gamma = gamma
        super().__init__(optimizer)

    def rate(self, count: int, first: float) -> float:
        """Return the first rate times a power of gamma."""
        return float(first * self.gamma**count)


class LinearLR(Scheduler):
    """Go in equal steps from *start_factor* times the first learning rate to *end_factor* times, in *total_iters*."""

    def __init__(
        self, optimizer: Optimizer, start_factor: float = 1.0 / 3.0, end_factor: float = 1.0, total_iters: int = 5
    ) -> None:
        _positive("LinearLR", "total_iters", total_iters)
        _positive("LinearLR", "start_factor", start_factor)
        self.start_factor, self.end_factor, self.total_iters = start_factor, end_factor, total_iters
        super().__init__(optimizer)

    def rate(self, count: int, first: float) -> float:
        """Return the first rate times the factor on the line."""
        done = min(1.0, count / self.total_iters)
        return first * (self.start_factor + (self.end_factor - self.start_factor) * done)


class ConstantLR(Scheduler):
    """Multiply the learning rate by *factor* for the first *total_iters* steps."""

    def __init__(self, optimizer: Optimizer, factor: float = 1.0 / 3.0, total_iters: int = 5) -> None:
        self.factor, self.total_iters = factor, total_iters
        super().__init__(optimizer)

    def rate(self, count: int, first: float) -> float:
        """Return the first rate, times the factor before the end."""
        return first * self.factor if count < self.total_iters else first


class PolynomialLR(Scheduler):
    """Fall to zero in *total_iters* steps, along ``(1 - done) ** power``."""

    def __init__(self, optimizer: Optimizer, total_iters: int = 5, power: float = 1.0) -> None:
        _positive("PolynomialLR", "total_iters", total_iters)
        self.total_iters, self.power = total_iters, power
        super().__init__(optimizer)

    def rate(self, count: int, first: float) -> float:
        """Return the first rate times the power of what is left."""
        return float(first * (1.0 - min(1.0, count / self.total_iters)) ** self.power)


class CosineAnnealingLR(Scheduler):
    """Fall along half a cosine to *eta_min* in *T_max* steps, and rise along the other half after it.

    Source: Loshchilov and Hutter, SGDR (2017), equation 5, without restarts.
    """

    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0) -> None:  # noqa: N803  PyTorch's name
        _positive("CosineAnnealingLR", "T_max", T_max)
        self.T_max, self.eta_min = T_max, eta_min
        super().__init__(optimizer)

    def rate(self, count: int, first: float) -> float:
        """Return the rate on the cosine."""
        return self.eta_min + (first - self.eta_min) * 0.5 * (1.0 + math.cos(math.pi * count / self.T_max))


class CosineWithWarmup(Scheduler):
    """Rise linearly for *warmup* steps, then fall along half a cosine to *lowest* at *total* steps, and stay there.

    >>> import polygrad as pg
    >>> optimiser = pg.optim.SGD([pg.ones(1)], lr=1.0)
    >>> schedule = pg.optim.lr_scheduler.CosineWithWarmup(optimiser, total=10, warmup=2)
    >>> rates = []
    >>> for _ in range(11):
    ...     rates.append(round(optimiser.lr, 2))
    ...     schedule.step()
    >>> rates
    [0.5, 1.0, 1.0, 0.96, 0.85, 0.69, 0.5, 0.31, 0.15, 0.04, 0.0]
    """

    def __init__(self, optimizer: Optimizer, total: int, warmup: int = 0, lowest: float = 0.0) -> None:
        if not 0 <= warmup < total:
            raise GradError(f"cannot warm up for {warmup} of {total} steps: warmup must be in [0, total)")
        self.total = total
        self.warmup = warmup
        self.lowest = lowest
        super().__init__(optimizer)

    def rate(self, count: int, first: float) -> float:
        """Return the rate on the ramp or on the cosine."""
        if count < self.warmup:
            return first * (count + 1) / self.warmup
        done = min(1.0, (count - self.warmup) / (self.total - self.warmup))
        return self.lowest + (first - self.lowest) * 0.5 * (1.0 + math.cos(math.pi * done))


class OneCycleLR(Scheduler):
    """Rise to *max_lr*, then fall far below the start, while momentum does the opposite.

    Source: Smith and Topin, Super-Convergence (2019).

    Parameters
    ----------
    optimizer : Optimizer
        Its groups' learning rates are replaced by ``max_lr / div_factor``.
    max_lr : float or sequence of float
        The top, for all groups or for each.
    total_steps : int
        The length of the cycle; further steps are refused.
    pct_start : float
        The part of the cycle that rises.
    anneal_strategy : {"cos", "linear"}
        The form of the rise and the fall.
    cycle_momentum : bool
        Whether momentum (or the first of betas) goes from *max_momentum* to *base_momentum* and back.
    base_momentum, max_momentum : float
        Its bounds.
    div_factor, final_div_factor : float
        The first rate is ``max_lr / div_factor``, the last is the first divided by *final_div_factor*.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        max_lr: float | Sequence[float],
        total_steps: int,
        pct_start: float = 0.3,
        *,
        anneal_strategy: str = "cos",
        cycle_momentum: bool = True,
        base_momentum: float = 0.85,
        max_momentum: float = 0.95,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
    ) -> None:
        tops = list(max_lr) if isinstance(max_lr, Sequence) else [max_lr] * len(optimizer.groups)
        if len(tops) != len(optimizer.groups):
            raise GradError(f"cannot cycle {len(optimizer.groups)} groups with {len(tops)} max_lr: give one for each")
        if anneal_strategy not in ("cos", "linear"):
            raise GradError(f"cannot anneal by {anneal_strategy!r}: it is 'cos' or 'linear'")
        _positive("OneCycleLR", "total_steps", total_steps)
        if not 0.0 < pct_start < 1.0:
            raise GradError(f"cannot make OneCycleLR with pct_start={pct_start}: it must be between 0 and 1")
        self.total_steps, self.pct_start, self.anneal_strategy = total_steps, pct_start, anneal_strategy
        self.div_factor, self.final_div_factor = div_factor, final_div_factor
        self.base_momentum, self.max_momentum = base_momentum, max_momentum
        self._momentum = _momentum_key(optimizer) if cycle_momentum else None
        optimizer.lr = 0.0  # the first rates follow from the tops
        for group, top in zip(optimizer.groups, tops, strict=True):
            group["lr"] = top / div_factor
        super().__init__(optimizer)

    def rate(self, count: int, first: float) -> float:
        """Return the rate on the rise or on the fall."""
        return self._along(count, first, first * self.div_factor, first / self.final_div_factor)

    def _along(self, count: int, start: float, middle: float, end: float) -> float:
        top, last = float(self.pct_start * self.total_steps) - 1, self.total_steps - 1
        if count < top:
            return self._between(start, middle, count / top)
        return self._between(middle, end, min(1.0, (count - top) / (last - top)))

    def _between(self, start: float, end: float, done: float) -> float:
        if self.anneal_strategy == "linear":
            return start + (end - start) * done
        return end + (start - end) * 0.5 * (1.0 + math.cos(math.pi * done))

    def _apply(self) -> None:
        if self.count > self.total_steps:
            raise GradError(
                f"cannot step OneCycleLR beyond its {self.total_steps} steps: its cycle is over; make it longer"
            )
        super()._apply()
        for group in self.optimizer.groups if self._momentum else []:
            value = self._along(self.count, self.max_momentum, self.base_momentum, self.max_momentum)
            group[str(self._momentum)] = value if self._momentum == "momentum" else (value, *group["betas"][1:])


def _momentum_key(optimizer: Optimizer) -> str:
    for key in ("betas", "momentum"):
        if optimizer.groups[0].get(key):
            return key
    raise GradError(
        f"cannot cycle the momentum of {type(optimizer).__name__} without momentum: pass cycle_momentum=False"
    )
