"""Log: the base of what writes figures to a file, a record at a time.

Here: appending whole records, and what happens while the disk is full.
Not here: what a record looks like (`csv_log.py`, `tensorboard.py`).

A record that cannot be written waits and is tried again with the next one, so that a disk that was full for a while
costs nothing; what was written before stays as it was.
"""

import contextlib
import os
import warnings
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from polygrad.errors import TrainingError
from polygrad.training.figures import numbers

_ON_ERROR = ("warn", "raise")


def sentence(what: str, path: str | os.PathLike[str], error: OSError, then: str = "") -> OSError:
    """Return an error of the same class that says in one sentence what could not be done with which file, and why."""
    reason = error.strerror or str(error) or type(error).__name__
    said = type(error)(f"cannot {what} {os.fspath(path)}: {reason}{then and '; ' + then}")
    said.errno = error.errno
    return said


class Log:
    """The base: subclasses make records and say where they go."""

    def __init__(self, path: str | os.PathLike[str], on_error: str) -> None:
        if on_error not in _ON_ERROR:
            raise TrainingError(f"cannot log with on_error={on_error!r}: it is 'warn' or 'raise'")
        self.path = Path(path)
        self._on_error = on_error
        self._waiting: list[Any] = []
        self._troubled = False
        self._file: FileIO | None = None

    def _open(self, mode: str) -> None:
        """Open the file, in a folder that is made if it is not there."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = FileIO(self.path, mode)
        except OSError as error:
            raise sentence("log to", self.path, error) from error

    def write(self, step: int, **figures: Any) -> None:
        """Write one record, at once.

        Parameters
        ----------
        step : int
            The number of steps done.
        **figures
            Numbers, or arrays of one element, which are read.

        Raises
        ------
        TrainingError
            If a figure is no number, or the log was closed.
        OSError
            With ``on_error="raise"``, if it cannot be written; it is tried again with the next record.
        """
        if self._file is None:
            raise TrainingError(f"cannot log to {self.path}: it was closed")
        self._waiting.append(self._record(int(step), numbers(figures)))
        try:
            self._drain()
        except OSError as error:
            then = "the run goes on, and what could not be written is tried again with each record"
            if self._on_error == "raise":
                raise sentence("log to", self.path, error) from error
            if not self._troubled:  # said once, not at each step
                warnings.warn(str(sentence("log to", self.path, error, then)), stacklevel=2)
            self._troubled = True
        else:
            self._troubled = False

    def close(self) -> None:
        """Write what waits and close the file; of records that still cannot be written it warns."""
        if self._file is None:
            return
        try:
            self._drain()
        except OSError as error:
            lost = len(self._waiting)
            then = f"the last {lost} records are not in it"
            warnings.warn(str(sentence("log to", self.path, error, then)), stacklevel=2)
        finally:
            self._file.close()
            self._file = None

    def _append(self, data: bytes) -> None:
        """Append to the file all of it or nothing."""
        if self._file is None or self._file.closed:  # it was replaced by another one
            self._file = FileIO(self.path, "a")
        end = self._file.seek(0, os.SEEK_END)
        view = memoryview(data)
        try:
            while view:
                view = view[self._file.write(view) or 0 :]
        except BaseException:
            with contextlib.suppress(OSError):
                self._file.truncate(end)
            raise

    def _record(self, step: int, figures: dict[str, int | float]) -> Any:
        raise NotImplementedError

    def _drain(self) -> None:
        """Write what waits, and forget it once it is written."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
