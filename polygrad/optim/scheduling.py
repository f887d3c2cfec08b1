"""Scheduler: what changes the learning rates of an optimiser with the step.

Here: the base class, which counts, binds, saves.
Not here: any schedule (`lr_scheduler.py`, `composed.py`).
"""

from collections.abc import Callable, Mapping
from typing import Any

from polygrad.array.capturing import effect
from polygrad.errors import StateError
from polygrad.optim.optimizer import Optimizer


class Scheduler:
    """The base: subclasses write `rate`, the learning rate after so many steps of a group that began with *first*."""

    captures_itself = True  # a compiled function counts at each call

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.first = optimizer.initial_rates()
        self.count = 0
        self._apply()

    def rate(self, count: int, first: float) -> float:
        """Return the learning rate after *count* steps, for a group that began with *first*."""
        raise NotImplementedError(f"{type(self).__name__} has no rate(count, first)")

    def rates(self, count: int) -> list[float]:
        """Return the learning rates of all groups after *count* steps."""
        return [self.rate(count, first) for first in self.first]

    def at(self, count: int) -> None:
        """Go to where the schedule is after *count* steps."""
        before, self.count = self.count, count
        try:
            self._apply()
        except BaseException:
            self.count = before
            raise

    def _apply(self) -> None:
        for group, rate in zip(self.optimizer.groups, self.rates(self.count), strict=True):
            group["lr"] = rate

    @property
    def lr(self) -> list[float]:
        """The learning rates of the optimiser's groups now."""
        return [float(group["lr"]) for group in self.optimizer.groups]

    def step(self) -> None:
        """Count one step of the optimiser, and set the learning rates for the next."""

        def do() -> Callable[[], None]:
            if len(self.first) != len(self.optimizer.groups):  # a group was added
                self.first += self.optimizer.initial_rates()[len(self.first) :]
            before = self.count
            self.at(before + 1)
            return lambda: self.at(before)

        effect(do)

    def state_dict(self) -> dict[str, Any]:
        """Return where the schedule stands."""
        return {"count": self.count, "first": list(self.first)}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned; nothing is changed if it does not fit.

        Raises
        ------
        StateError
            If it is of an optimiser with another number of groups, or its values are no numbers.
        """
        try:
            count, first = int(saved["count"]), [float(v) for v in saved["first"]]
        except (KeyError, TypeError, ValueError):
            count, first = -1, []
        if count < 0 or len(first) != len(self.first):
            raise StateError(
                f"cannot load this state into {type(self).__name__}: it must hold a count and {len(self.first)} first "
                "learning rates"
            )
        self.first = first
        self.at(count)
