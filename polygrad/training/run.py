"""Run: the steps of a training run, and what belongs to each.

Here: the order of things.
Not here: what users ask for (`fitting.py`), the pieces.

After each step, in this order: the schedule moves on, the average follows, figures are read, the held-out data is
evaluated, the figures are logged, the checkpoint is saved, and only then is a wish to stop fulfilled. So a checkpoint
has everything of its step, and a run that goes on from it does what the other would have done, bit for bit.
"""

import contextlib
import math
import random as python_random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from polygrad.array import random
from polygrad.array.autocasting import autocast
from polygrad.array.compiling import Compiled
from polygrad.array.object import Array
from polygrad.array.recording import no_grad
from polygrad.errors import TrainingError
from polygrad.optim import Accumulation, GradScaler
from polygrad.optim.lr_scheduler import ReduceLROnPlateau
from polygrad.training.batches import Batches
from polygrad.training.early_stopping import EarlyStopping
from polygrad.training.figures import numbers, shown
from polygrad.training.interruption import Interruption
from polygrad.training.progress import Progress
from polygrad.training.saving import Saver


class Reducer(Protocol):
    """What `fit` wants of processes that train together: their gradients become one before each step.

    Besides `reduce` it may have ``rank`` (above 0 a process shows, logs and writes nothing), ``begin(step)`` (called
    when everything is loaded, before the first step), ``any(flag)`` (whether it is true in any process, so that all
    stop together) and ``mean(value)`` (the mean of a loss over the processes). `pg.distributed.DataParallel` is one.
    """

    def reduce(self, parameters: Sequence[Array], /, *, also: Any = ()) -> None:
        """Replace the `.grad` of each parameter by the mean over all processes, and compute *also* with them."""


@dataclass
class Taken:
    """A step whose figures were not read yet."""

    step: int
    losses: list[Array]  # of its batches
    figures: dict[str, Any]  # what is logged beside the loss; arrays are read with it
    moved: bool  # False if gradients that are not finite have prevented it


Row = tuple[int, dict[str, Any]]


@dataclass
class Run:
    """A run under way: what `fit` was given, and what has happened so far."""

    model: Any
    loss: Callable[[Any, Any], Array]
    batches: Batches
    optimiser: Any
    total: int | None
    start: int
    schedule: Any
    scaler: GradScaler | None
    max_norm: float | None
    accumulate: int
    precision: str | None
    average: Any
    saver: Saver
    save_every: int | None
    evaluate: Callable[[Any], Any] | None
    evaluate_every: int | None
    stopping: EarlyStopping | None
    monitor: str | None
    after_step: Callable[[int], object] | None
    reducer: Reducer | None
    log_every: int
    read_every: int
    items: float | None
    unit: str
    compiled: bool = False
    logs: list[Any] = field(default_factory=list)
    progress: Progress | None = None
    interruption: Interruption | None = None
    stopped: str = ""
    losses: list[float] = field(default_factory=list)
    evaluations: list[tuple[int, dict[str, Any]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.step = self.start
        self._unread: list[Taken] = []
        self._stepper: Any = Accumulation(self.optimiser, self.accumulate) if self.accumulate > 1 else self.optimiser
        self._plateau = isinstance(self.schedule, ReduceLROnPlateau)
        self._follows = self.stopping is not None or self._plateau
        self._how: dict[str, Any] = {} if self.max_norm is None else {"max_norm": self.max_norm}
        if self.scaler is None:
            looked_at = self.max_norm is not None and self.read_every == 1  # the norm is known, and read anyway
            self._how["nonfinite"] = "skip" if looked_at else "allow"
        if self.compiled:
            self._how.pop("nonfinite", None)
            self._replayed = Compiled(_whole(self.loss, self.model, self.optimiser, self.precision, self._how))
        self._marked, self._marked_step = 0.0, self.start  # when figures were last read, and after which step

    def go(self) -> None:
        """Take steps until something ends the run."""
        self._marked = time.monotonic()
        while not self.stopped and (self.total is None or self.step < self.total):
            if not self._step():
                break
            self._after()
        if self._unread:  # the data ended, at a step that could not be foreseen to be the last
            self._write(self._read(), whole=False)
        evaluated = bool(self.evaluations) and self.evaluations[-1][0] == self.step
        if self.evaluate is not None and self.step > self.start and self.stopped != "interrupted" and not evaluated:
            self._write([(self.step, self._evaluated())], whole=True)
        self.saver.save(self.step, last=True)

    def _step(self) -> bool:
        """Take a step; return False if the data has ended before it."""
        losses: list[Array] = []
        moved = True
        figures: dict[str, Any] = {"lr": self.optimiser.lr}
        if self.scaler is not None and self.scaler.enabled:
            figures["scale"] = self.scaler.get_scale()
        for k in range(1, self.accumulate + 1):
            batch = next(self.batches, self)
            if batch is self:
                self.optimiser.zero_grad()
                return False
            if self.compiled:
                losses.append(self._replayed(batch))
                continue
            value = loss_of(self.loss, self.model, batch, self.precision)
            (value if self.scaler is None else self.scaler.scale(value)).backward()
            last = k == self.accumulate
            if last and self.reducer is not None:
                owned = [p for group in self.optimiser.groups for p in group["params"].values()]
                self.reducer.reduce(owned, also=value)
            moved = self._moved(value, last=last)
            losses.append(value)
        if not self.compiled:
            self.optimiser.zero_grad()
        self.step += 1
        norm = getattr(self.optimiser, "norm", None)
        if self.max_norm is not None and norm is not None:
            figures["norm"] = norm
        self._unread.append(Taken(self.step, losses, figures, moved))
        return True

    def _moved(self, value: Array, *, last: bool) -> bool:
        """Step the optimiser, or count a batch; return False if gradients that are not finite have prevented it."""
        if self.scaler is not None:
            self.scaler.step(self._stepper, also=value, **self._how)
            return True
        if self.accumulate == 1:
            return bool(self.optimiser.attempt(also=value, **self._how))
        return self._stepper.step(also=value, **self._how) or not last

    def _after(self) -> None:
        """Do what comes after a step."""
        if self.schedule is not None and not self._plateau:
            self.schedule.step()
        if self.average is not None:
            self.average.update()
        if self.after_step is not None:
            self.after_step(self.step)
        last, asked = self.step == self.total, self._asked()
        due = self.evaluate is not None and (last or _falls_on(self.step, self.evaluate_every))
        saved = _falls_on(self.step, self.save_every)
        each = self._follows and self.evaluate is None
        if asked and not last:
            self.stopped = "interrupted"
        if not (last or due or saved or asked or each or len(self._unread) >= self.read_every):
            return
        rows = self._read()
        if due:
            rows[-1][1].update(self._evaluated())
        self._write(rows, whole=due or last or asked)
        if (due or each) and self._had_enough(rows[-1][1]) and not self.stopped:
            self.stopped = "early stopping"
        if saved and not (last or self.stopped):  # then it is saved when all is done
            self.saver.save(self.step)
        self._marked, self._marked_step = time.monotonic(), self.step

    def _asked(self) -> bool:
        """Whether somebody wants the run to stop: in any process, if there are several."""
        here = self.interruption is not None and self.interruption.requested
        anywhere = getattr(self.reducer, "any", None)
        return here if anywhere is None else bool(anywhere(here))

    def _read(self) -> list[Row]:
        """Return the figures of the steps since the last reading; stop the run at one that is not finite."""
        rows: list[Row] = []
        unread, self._unread = self._unread, []
        for taken in unread:
            value = self._mean([float(one) for one in taken.losses])
            rows.append((taken.step, {"loss": value, **numbers(taken.figures)}))
            if not (math.isfinite(value) and taken.moved):
                self._write(rows, whole=True)
                raise TrainingError(self._failure(taken.step, value))
            self.losses.append(value)
        if self.items is not None:
            rate = self.items * (self.step - self._marked_step) / max(time.monotonic() - self._marked, 1e-9)
            for _, figures in rows:
                figures[f"{self.unit}/s"] = round(rate, 1)
        return rows

    def _mean(self, losses: list[float]) -> float:
        value = sum(losses) / len(losses)
        mean = getattr(self.reducer, "mean", None)
        return value if mean is None else float(mean(value))

    def _failure(self, step: int, value: float) -> str:
        before = f" (it was {shown(self.losses[-1])} at step {step - 1})" if self.losses else ""
        what = f"the loss is {value} at step {step}{before}"
        if math.isfinite(value):
            what = f"the gradients are not finite at step {step}, where the loss is {shown(value)}"
        kept = f"; {self.saver.last} is whole, and resume=True goes on from it" if self.saver.last else ""
        return (
            f"cannot go on: {what}; a smaller learning rate, max_norm=... or another precision may help, and "
            f"pg.detect_anomaly() finds the op{kept}"
        )

    def _evaluated(self) -> dict[str, Any]:
        """Return the figures of the held-out data, taken without a trace in the training."""
        if self.evaluate is None:
            return {}
        with _aside(self.model):
            found = self.evaluate(self.model)
            figures: dict[str, Any] = numbers(found if isinstance(found, Mapping) else {"valid_loss": found})
        own = [name for name in figures if name in ("step", "loss", "lr", "norm", "scale")]
        if own or not figures:
            what = f"a figure {own[0]!r}, which the training has too" if own else "no figures"
            raise TrainingError(f"cannot take what evaluate(model) returned: it has {what}")
        self.evaluations.append((self.step, figures))
        return figures

    def _had_enough(self, figures: Mapping[str, Any]) -> bool:
        """Show a figure to those who follow it; return whether one of them has had enough."""
        if not self._follows:
            return False
        name = self.monitor or ("loss" if self.evaluate is None else next(iter(self.evaluations[-1][1])))
        if name not in figures:
            raise TrainingError(f"cannot follow {name!r}: the figures are {', '.join(figures)}")
        if self._plateau:
            self.schedule.step(figures[name])
        if self.stopping is None:
            return False
        self.stopping.update(figures[name], self.step)
        return self.stopping.should_stop

    def _write(self, rows: list[Row], *, whole: bool) -> None:
        """Show and log rows: those whose turn it is, and the last one of what is *whole*."""
        for k, (step, figures) in enumerate(rows, 1):
            if self.progress is not None:
                self.progress.update(step, **{n: v for n, v in figures.items() if n != f"{self.unit}/s"})
            if step % self.log_every == 0 or (whole and k == len(rows)):
                for log in self.logs:
                    log.write(step, **figures)


def loss_of(loss: Callable[[Any, Any], Array], model: Any, batch: Any, precision: str | None) -> Array:
    """Return the loss of a batch, computed in a precision."""
    narrow = precision not in (None, "float32")
    with autocast(precision) if narrow else contextlib.nullcontext():
        value = loss(model, batch)
    if not isinstance(value, Array) or value.size != 1:
        what = f"shape {list(value.shape)}" if isinstance(value, Array) else type(value).__name__
        raise TrainingError(f"cannot train by a loss of {what}: loss(model, batch) must return one number")
    return value


def _whole(
    loss: Callable[[Any, Any], Array], model: Any, optimiser: Any, precision: str | None, how: dict[str, Any]
) -> Callable[[Any], Array]:
    """Return a whole step as a function of a batch, which depends on nothing that changes from step to step."""

    def step(batch: Any) -> Array:
        value = loss_of(loss, model, batch, precision)
        value.backward()
        optimiser.step(also=value, **how)
        optimiser.zero_grad()
        return value

    return step


def _falls_on(step: int, every: int | None) -> bool:
    return every is not None and step % every == 0


@contextlib.contextmanager
def _aside(model: Any) -> Iterator[None]:
    """Keep the modes of modules and the streams of random numbers as they are, and gradients off."""
    modes = [(module, module.training) for module in model.modules()] if hasattr(model, "modules") else []
    drawn, python = random.get_state(), python_random.getstate()
    try:
        if hasattr(model, "eval"):
            model.eval()
        with no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode
        random.set_state(drawn)
        python_random.setstate(python)
