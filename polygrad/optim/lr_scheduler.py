"""Learning rates that change with the step, bound to an optimiser.

Here: schedules; each sets ``lr`` of the optimiser's groups.
Not here: optimisers, which read it at each step.
"""

import math
from collections.abc import Mapping
from typing import Any

from polygrad.errors import GradError, StateError
from polygrad.optim.optimizer import Optimizer


class Scheduler:
    """The base: subclasses write `factor`, what the first learning rates are multiplied with after so many steps."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.first = [float(group["lr"]) for group in optimizer.groups]
        self.count = 0
        self._apply()

    def rate(self, count: int, first: float) -> float:
        """Return the learning rate after *count* steps, for a group that began with *first*."""
        raise NotImplementedError(f"{type(self).__name__} has no rate(count, first)")

    def _apply(self) -> None:
        for group, first in zip(self.optimizer.groups, self.first, strict=True):
            group["lr"] = self.rate(self.count, first)

    def step(self) -> None:
        """Count one step of the optimiser, and set the learning rates for the next."""
        self.count += 1
        self._apply()

    def state_dict(self) -> dict[str, Any]:
        """Return where the schedule stands."""
        return {"count": self.count, "first": list(self.first)}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned.

        Raises
        ------
        StateError
            If it is of an optimiser with another number of groups.
        """
        if not {"count", "first"} <= set(saved) or len(saved["first"]) != len(self.first):
            raise StateError(
                f"cannot load this state into {type(self).__name__}: it must hold a count and {len(self.first)} first "
                "learning rates"
            )
        self.count, self.first = int(saved["count"]), [float(v) for v in saved["first"]]
        self._apply()


class StepLR(Scheduler):
    """Multiply the learning rate by *factor* after *every* so many steps.

    >>> import polygrad as pg
    >>> optimiser = pg.optim.SGD([pg.ones(1)], lr=1.0)
    >>> schedule = pg.optim.lr_scheduler.StepLR(optimiser, every=2, factor=0.1)
    >>> schedule.step(), optimiser.lr, schedule.step(), optimiser.lr
    (None, 1.0, None, 0.1)
    """

    def __init__(self, optimizer: Optimizer, every: int, factor: float = 0.1) -> None:
        if every < 1:
            raise GradError(f"cannot change the learning rate every {every} steps: it must be at least 1")
        self.every = every
        self.factor = factor
        super().__init__(optimizer)

    def rate(self, count: int, first: float) -> float:
        """Return the first rate times a power of the factor."""
        return float(first * self.factor ** (count // self.every))


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
