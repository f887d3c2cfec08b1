"""Schedules made of others, and one led by a measured value.

Here: one after another, several at once, less when nothing improves.
Not here: formulas of the step (`lr_scheduler.py`).
"""

import bisect
import math
from collections.abc import Mapping, Sequence
from typing import Any

from polygrad.array.capturing import capturing
from polygrad.errors import CaptureError, GradError, StateError
from polygrad.optim.optimizer import Optimizer
from polygrad.optim.scheduling import Scheduler


def _check_parts(name: str, optimizer: Optimizer, parts: Sequence[Scheduler]) -> None:
    if not parts:
        raise GradError(f"cannot make {name} of nothing: give it schedulers")
    for part in parts:
        if isinstance(part, ReduceLROnPlateau):
            raise GradError(f"cannot put ReduceLROnPlateau into {name}: it follows a metric, not the step")
        if part.optimizer is not optimizer:
            raise GradError(f"cannot put {type(part).__name__} into {name}: it is bound to another optimiser")


class _Composed(Scheduler):
    """A schedule whose parts are saved with it."""

    schedulers: list[Scheduler]

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "schedulers": [part.state_dict() for part in self.schedulers]}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        states = saved.get("schedulers")
        if not isinstance(states, (list, tuple)) or len(states) != len(self.schedulers):
            raise StateError(
                f"cannot load this state into {type(self).__name__}: it must hold the states of "
                f"{len(self.schedulers)} schedulers"
            )
        before = [part.state_dict() for part in self.schedulers]
        try:
            for part, state in zip(self.schedulers, states, strict=True):
                part.load_state_dict(state)
            super().load_state_dict(saved)
        except StateError:
            for part, state in zip(self.schedulers, before, strict=True):
                part.load_state_dict(state)
            self._apply()
            raise


class SequentialLR(_Composed):
    """One schedule after another: the next one starts from its own beginning at each of *milestones*.

    >>> import polygrad as pg
    >>> from polygrad.optim.lr_scheduler import ConstantLR, ExponentialLR, SequentialLR
    >>> optimiser = pg.optim.SGD([pg.ones(1)], lr=1.0)
    >>> parts = [ConstantLR(optimiser, 0.25, 2), ExponentialLR(optimiser, 0.5)]
    >>> schedule = SequentialLR(optimiser, parts, milestones=[2])
    >>> rates = []
    >>> for _ in range(5):
    ...     rates.append(optimiser.lr)
    ...     schedule.step()
    >>> rates
    [0.25, 0.25, 1.0, 0.5, 0.25]
    """

    def __init__(self, optimizer: Optimizer, schedulers: Sequence[Scheduler], milestones: Sequence[int]) -> None:
        _check_parts("SequentialLR", optimizer, schedulers)
        if len(milestones) != len(schedulers) - 1 or list(milestones) != sorted(set(milestones)):
            raise GradError(
                f"cannot follow {len(schedulers)} schedulers with milestones {list(milestones)}: they are "
                f"{len(schedulers) - 1} rising numbers of steps"
            )
        self.schedulers = list(schedulers)
        self.milestones = list(milestones)
        super().__init__(optimizer)

    def _apply(self) -> None:
        k = bisect.bisect_right(self.milestones, self.count)
        self.schedulers[k].at(self.count - (self.milestones[k - 1] if k else 0))

    def rates(self, count: int) -> list[float]:
        """Return the rates of the schedule whose turn it is."""
        k = bisect.bisect_right(self.milestones, count)
        return self.schedulers[k].rates(count - (self.milestones[k - 1] if k else 0))


class ChainedScheduler(_Composed):
    """Several schedules at once: the first learning rate is multiplied by the factors of all of them."""

    def __init__(self, schedulers: Sequence[Scheduler], optimizer: Optimizer | None = None) -> None:
        bound = optimizer if optimizer is not None or not schedulers else schedulers[0].optimizer
        _check_parts("ChainedScheduler", bound, schedulers)  # type: ignore[arg-type]
        self.schedulers = list(schedulers)
        super().__init__(bound)  # type: ignore[arg-type]

    def rates(self, count: int) -> list[float]:
        """Return the first rates times all factors."""
        out = list(self.first)
        for part in self.schedulers:
            for k, (rate, first) in enumerate(zip(part.rates(count), part.first, strict=True)):
                out[k] *= rate / first if first else 0.0
        return out


class ReduceLROnPlateau(Scheduler):
    """Multiply the learning rate by *factor* when a metric has not improved for more than *patience* steps.

    Parameters
    ----------
    optimizer : Optimizer
        Whose rates.
    mode : {"min", "max"}
        What counts as better.
    factor : float
        In (0, 1).
    patience, cooldown : int
        Steps without improvement that are borne; steps after a reduction in which none is counted.
    threshold : float
        How much better is better, relative to the best or, with ``threshold_mode="abs"``, absolute.
    min_lr : float
        Below which no rate falls.
    eps : float
        A smaller change of a rate is not made.

    Examples
    --------
    >>> import polygrad as pg
    >>> optimiser = pg.optim.SGD([pg.ones(1)], lr=1.0)
    >>> schedule = pg.optim.lr_scheduler.ReduceLROnPlateau(optimiser, patience=1, factor=0.5)
    >>> for loss in [1.0, 1.0, 1.0]:
    ...     schedule.step(loss)
    >>> optimiser.lr
    0.5
    """

    def __init__(
        self,
        optimizer: Optimizer,
        mode: str = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        *,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_lr: float = 0.0,
        eps: float = 1e-8,
    ) -> None:
        if mode not in ("min", "max") or threshold_mode not in ("rel", "abs"):
            raise GradError(
                f"cannot watch a metric with mode={mode!r} and threshold_mode={threshold_mode!r}: they are 'min' or "
                "'max', and 'rel' or 'abs'"
            )
        if not 0.0 < factor < 1.0:
            raise GradError(f"cannot reduce by the factor {factor}: it must be between 0 and 1")
        self.mode, self.factor, self.patience, self.threshold = mode, factor, patience, threshold
        self.threshold_mode, self.cooldown, self.min_lr, self.eps = threshold_mode, cooldown, min_lr, eps
        self.best = math.inf if mode == "min" else -math.inf
        self.bad = self.cooling = 0
        super().__init__(optimizer)

    def _apply(self) -> None:
        """Leave the rates alone: they change with the metric."""

    def step(self, metric: Any = None) -> None:
        """Take the metric of one more step, a number or an array of one element; not a number counts as no better."""
        if metric is None:
            raise GradError("cannot step ReduceLROnPlateau without a metric: pass the loss of this step or epoch")
        if capturing() is not None:
            raise CaptureError("cannot compile a step of ReduceLROnPlateau, which looks at a metric: step it outside")
        value = float(metric)
        self.count += 1
        if self._better(value):
            self.best, self.bad = value, 0
        else:
            self.bad += 1
        if self.cooling > 0:
            self.cooling -= 1
            self.bad = 0
        if self.bad > self.patience:
            self._reduce()
            self.cooling, self.bad = self.cooldown, 0

    def _better(self, value: float) -> bool:
        sign = 1.0 if self.mode == "min" else -1.0
        if self.threshold_mode == "abs":
            return sign * value < sign * self.best - self.threshold
        if math.isinf(self.best):
            return sign * value < sign * self.best
        return sign * value < sign * self.best * (1.0 - sign * self.threshold)

    def _reduce(self) -> None:
        for group in self.optimizer.groups:
            rate = max(float(group["lr"]) * self.factor, self.min_lr)
            if float(group["lr"]) - rate > self.eps:
                group["lr"] = rate

    def state_dict(self) -> dict[str, Any]:
        """Return the best metric, the counts, and the rates, which no formula gives."""
        best = None if math.isinf(self.best) else self.best  # JSON has no infinity
        return {**super().state_dict(), "best": best, "bad": self.bad, "cooling": self.cooling, "rates": self.lr}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned; nothing is changed if it does not fit."""
        try:
            best = saved["best"]
            found = float(best) if best is not None else (math.inf if self.mode == "min" else -math.inf)
            bad, cooling, rates = int(saved["bad"]), int(saved["cooling"]), [float(r) for r in saved["rates"]]
        except (KeyError, TypeError, ValueError):
            rates = []
        if len(rates) != len(self.optimizer.groups):
            raise StateError(
                "cannot load this state into ReduceLROnPlateau: it must hold best, bad, cooling and the rates of "
                f"{len(self.optimizer.groups)} groups"
            )
        super().load_state_dict(saved)
        self.best, self.bad, self.cooling = found, bad, cooling
        for group, rate in zip(self.optimizer.groups, rates, strict=True):
            group["lr"] = rate
