"""EarlyStopping: when a figure does not get better any more.

Here: counting.
Not here: ending the loop (`fitting.py`, or the user's).
"""

import math
from collections.abc import Mapping
from typing import Any

from polygrad.errors import StateError, TrainingError
from polygrad.training.figures import number

_MODES = ("min", "max")
_FIELDS = ("best", "best_step", "count", "waited")


class EarlyStopping:
    """Follow a figure, such as the held-out loss, and say when it has not improved for too long.

    Parameters
    ----------
    patience : int
        How many updates in a row may bring no improvement; with the last of them `should_stop` becomes true.
    min_delta : float
        By how much a value must be better than the best one to count as an improvement.
    mode : {"min", "max"}
        Whether less is better, or more.

    Attributes
    ----------
    best, best_step : float and int, or None
        The best value so far and the step of its update; without steps, the number of the update, from 1.

    Examples
    --------
    >>> from polygrad.training import EarlyStopping
    >>> stopping = EarlyStopping(patience=2)
    >>> [(stopping.update(value), stopping.should_stop) for value in (1.0, 0.5, float("nan"), 0.75)]
    [(True, False), (True, False), (False, False), (False, True)]
    >>> stopping.best, stopping.best_step
    (0.5, 2)
    """

    def __init__(self, patience: int, min_delta: float = 0.0, mode: str = "min") -> None:
        if patience < 1 or not min_delta >= 0.0 or mode not in _MODES:
            raise TrainingError(
                f"cannot stop early with patience={patience}, min_delta={min_delta}, mode={mode!r}: they are at least "
                "1, at least 0, and 'min' or 'max'"
            )
        self.patience, self.min_delta, self.mode = patience, min_delta, mode
        self.best: float | None = None
        self.best_step: int | None = None
        self.count = 0
        self.waited = 0

    @property
    def should_stop(self) -> bool:
        """Whether the last *patience* updates have brought no improvement."""
        return self.waited >= self.patience

    def update(self, value: Any, step: int | None = None) -> bool:
        """Take the next value; return whether it is an improvement. NaN never is.

        Parameters
        ----------
        value : float or Array
            An array is read.
        step : int, optional
            What `best_step` says if it is the best.
        """
        new = float(number("a value to stop by", value))
        self.count += 1
        better = self._is_better(new)
        if better:
            self.best, self.best_step, self.waited = new, self.count if step is None else int(step), 0
        else:
            self.waited += 1
        return better

    def _is_better(self, new: float) -> bool:
        if math.isnan(new):
            return False
        if self.best is None:
            return True
        gain = self.best - new if self.mode == "min" else new - self.best
        return gain > self.min_delta

    def state_dict(self) -> dict[str, Any]:
        """Return what was seen so far."""
        return {name: getattr(self, name) for name in _FIELDS}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned; nothing is changed if it does not fit.

        Raises
        ------
        StateError
            If a number is missing or wrong.
        """
        bad = [k for k in _FIELDS if k not in saved or not _fits(saved[k], k)]
        if bad:
            raise StateError(f"cannot load this state into EarlyStopping: its {bad[0]} is {saved.get(bad[0])!r}")
        for name in _FIELDS:
            setattr(self, name, saved[name])


def _fits(value: Any, name: str) -> bool:
    if value is None:
        return name.startswith("best")
    kinds = (int, float) if name == "best" else (int,)
    return isinstance(value, kinds) and not isinstance(value, bool) and (name == "best" or value >= 0)
