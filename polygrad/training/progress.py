"""Progress: how far a loop is, with its figures, its rate and the time that is left.

Here: what is shown, and when figures are read.
Not here: the loop.

On a terminal it is a bar, drawn with rich; elsewhere (a pipe, a file, CI) a plain line now and then. Everything happens
within `update`: there is no thread, so that processes can still be forked, and an array that was passed as a figure is
read only when it is shown, a few times a second, so that a device can run ahead of the loop.
"""

import collections
import contextlib
import sys
import time
from collections.abc import Iterable, Iterator, Sized
from types import TracebackType
from typing import Any, Self

from polygrad.errors import TrainingError
from polygrad.training.figures import counted, duration, number, shown

_PAUSE = 0.25  # seconds between two pictures of the bar
_KEPT = 40  # moments from which the rate is computed
_BAR, _WIDE = 20, 100  # characters of the bar, and of a terminal that has room for it
_GAPS = 3  # between description, bar and text, and at the end of the line
_SMOOTHING = 0.9  # of the loss: how much of the average is kept at each reading


class Smoothed:
    """An exponential average that is right from the first value on; what is not finite shows, and is not averaged."""

    def __init__(self, kept: float = _SMOOTHING) -> None:
        self._kept, self._sum, self._weight = kept, 0.0, 0.0
        self.value = 0.0

    def take(self, value: float) -> None:
        """Take the next value."""
        if not abs(value) < float("inf"):
            self.value = value
            return
        self._sum = self._kept * self._sum + (1.0 - self._kept) * value
        self._weight = self._kept * self._weight + (1.0 - self._kept)
        self.value = self._sum / self._weight


class Progress:
    """Show a loop's progress within a block.

    Parameters
    ----------
    total : int or None
        How many steps there are in all, if that is known.
    start : int
        How many were done before, by the run that this one goes on with.
    description : str
        Shown in front.
    items_per_step : float, optional
        How many tokens, samples, ... a step takes; then their rate is shown too.
    unit : str
        What is counted: the items, or the steps if there are no items.
    console : rich Console or text stream, optional
        Where to show it; the standard error unless given.
    interval : float
        Seconds between two lines where there is no terminal.

    Examples
    --------
    >>> import sys
    >>> from polygrad.training import Progress
    >>> with Progress(2, description="train", console=sys.stdout, interval=1e9) as progress:
    ...     for step in (1, 2):
    ...         progress.update(step, loss=1.5)  # doctest: +ELLIPSIS
    train 2/2, loss 1.5, ... it/s, 0:00 gone
    """

    def __init__(
        self,
        total: int | None,
        start: int = 0,
        description: str = "",
        items_per_step: float | None = None,
        unit: str = "it",
        console: Any = None,
        *,
        interval: float = 10.0,
    ) -> None:
        if (total is not None and total < 0) or start < 0:
            raise TrainingError(f"cannot show step {start} of {total}: they must be at least 0")
        self.total, self.step, self.description = total, start, description
        self.items_per_step, self.unit, self.interval = items_per_step, unit, interval
        self._console = console
        self._figures: dict[str, Any] = {}
        self._loss: dict[str, Smoothed] = {}
        self._texts: dict[str, str] = {}
        self._start = start
        self._began = self._seen = self._written = 0.0
        self._moments: collections.deque[tuple[float, int]] = collections.deque(maxlen=_KEPT)
        self._bar: Any = None
        self._task: Any = None
        self._stream: Any = None
        self.active = False

    def __enter__(self) -> Self:
        self._began = self._seen = self._written = time.monotonic()
        self._moments.append((self._began, self.step))
        self.active = True
        console = _terminal(self._console)
        if console is None:
            self._stream = getattr(self._console, "file", self._console) or sys.stderr
            return self
        self._bar, self._task = _bar(console, self.description, self.total, self.step)
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.active = False
        self._read(arrays=kind is None)
        self._show(time.monotonic(), last=True)
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def update(self, step: int | None = None, **figures: Any) -> None:
        """Say that so many steps are done, or one more; and what the figures are now.

        Parameters
        ----------
        step : int, optional
            The number of steps done.
        **figures
            Numbers, or arrays of one element: an array is read only when it is shown. Those called ``loss`` or
            ``..._loss`` are shown smoothed.
        """
        self.step = self.step + 1 if step is None else step
        for name, value in figures.items():
            self._figures[name] = value
            if _is_loss(name) and isinstance(value, (int, float)):  # costs nothing to read, so each one counts
                self._loss.setdefault(name, Smoothed()).take(value)
        now = time.monotonic()
        if now - self._seen >= _PAUSE:
            self._seen = now
            if self._bar is not None:
                self._read()
                now = time.monotonic()  # the device may have had to catch up
            self._moments.append((now, self.step))
            if self._bar is not None or now - self._written >= self.interval:
                if self._bar is None:
                    self._read()
                self._show(now)

    def _read(self, *, arrays: bool = True) -> None:
        for name, value in self._figures.items():
            if not arrays and not isinstance(value, (int, float)):  # after an error a device may not answer
                continue
            read = number(name, value)
            if _is_loss(name):
                if not isinstance(value, (int, float)):
                    self._loss.setdefault(name, Smoothed()).take(read)
                read = self._loss[name].value
            self._texts[name] = shown(read)

    def _rate(self, now: float) -> float:
        """Return steps a second, lately."""
        first, before = self._moments[0]
        return (self.step - before) / max(now - first, 1e-9)

    def _rates(self, now: float, last: bool) -> tuple[float, list[str]]:
        rate = (self.step - self._start) / max(now - self._began, 1e-9) if last else self._rate(now)
        if self.items_per_step is None:
            return rate, [f"{counted(rate)} {self.unit}/s"]
        return rate, [f"{counted(rate)} it/s", f"{counted(rate * self.items_per_step)} {self.unit}/s"]

    def _times(self, now: float, rate: float) -> list[str]:
        """Return the time gone, and the time left if it is known."""
        times = [duration(now - self._began)]
        if self.total is not None and self.step < self.total and rate > 0:
            times.append(duration((self.total - self.step) / rate))
        return times

    def _text(self, now: float, last: bool, room: int) -> str:
        """Return what is shown in at most *room* characters, if that can be: figures that find none are left out."""
        count = f"{self.step}" if self.total is None else f"{self.step}/{self.total}"
        rate, rates = self._rates(now, last)
        times = self._times(now, rate)
        if self._bar is None:
            tail = [*rates, *(f"{time} {word}" for time, word in zip(times, ("gone", "left"), strict=False))]
        else:
            tail = [*rates, " < ".join(times)]
        ordered = sorted(self._texts, key=lambda name: not _is_loss(name))  # losses find room first
        figures = [f"{name} {self._texts[name]}" for name in ordered]
        while len(figures) > 1 and len(", ".join([count, *figures, *tail])) > room:
            figures.pop()
        return ", ".join([count, *figures, *tail])

    def _show(self, now: float, last: bool = False) -> None:
        if self._bar is not None:
            room = self._bar.console.width - _bar_width(self._bar.console) - len(self.description) - _GAPS
            self._bar.update(self._task, completed=self.step, text=self._text(now, last, room))
            self._bar.refresh()
        elif self._stream is not None:
            self._written = now
            try:
                print(
                    f"{self.description} {self._text(now, last, sys.maxsize)}".lstrip(), file=self._stream, flush=True
                )
            except (OSError, ValueError):  # whoever was reading has gone, which is no reason to end the run
                self._stream = None

    @classmethod
    def over(cls, iterable: Iterable[Any], **how: Any) -> Iterator[Any]:
        """Yield what *iterable* yields, with a bar; *how* is as for the class.

        >>> import sys
        >>> from polygrad.training import Progress
        >>> [x for x in Progress.over([1, 2, 3], console=sys.stdout, interval=1e9)]  # doctest: +ELLIPSIS
        3/3, ... it/s, 0:00 gone
        [1, 2, 3]
        """
        total = how.pop("total", len(iterable) if isinstance(iterable, Sized) else None)
        with cls(total, **how) as progress:
            for item in iterable:
                yield item
                progress.update()


def _is_loss(name: str) -> bool:
    return name == "loss" or name.endswith("_loss")


def _terminal(given: Any) -> Any:
    """Return the rich console of a terminal, or None if there is none, or only a simple one."""
    if given is not None and hasattr(given, "is_terminal"):
        return given if given.is_terminal and not given.is_dumb_terminal else None
    stream = given or sys.stderr
    if stream is None or not getattr(stream, "isatty", lambda: False)():
        return None
    try:
        from rich.console import Console  # noqa: PLC0415  an optional package
    except ImportError:
        with contextlib.suppress(OSError, ValueError):
            print("a progress bar needs the package rich: pip install 'polygrad-array[training]'", file=stream)
        return None
    console = Console(stderr=True) if given is None else Console(file=given)
    return console if console.is_terminal and not console.is_dumb_terminal else None


def _bar_width(console: Any) -> int:
    return _BAR if console.width >= _WIDE else _BAR // 2


def _bar(console: Any, description: str, total: int | None, done: int) -> tuple[Any, Any]:
    """Return rich's bar, which draws when it is told to, and its task."""
    from rich.progress import BarColumn, TextColumn  # noqa: PLC0415  an optional package
    from rich.progress import Progress as RichProgress  # noqa: PLC0415
    from rich.table import Column  # noqa: PLC0415

    text = Column(no_wrap=True, overflow="ellipsis")
    columns = [
        BarColumn(bar_width=_bar_width(console)),
        TextColumn("{task.fields[text]}", markup=False, table_column=text),
    ]
    if description:
        columns.insert(0, TextColumn("{task.description}", markup=False))
    bar = RichProgress(*columns, console=console, auto_refresh=False)
    count = f"{done}" if total is None else f"{done}/{total}"
    return bar, bar.add_task(description, total=total, completed=done, text=count)
