"""Interruption: Ctrl-C and SIGTERM as a wish that the loop fulfils at a good moment.

Here: the handlers of signals.
Not here: what a loop does about it.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Any, Self

from polygrad.errors import TrainingError

_active: list["Interruption"] = []  # outermost first


class Interruption:
    """Within a block, the first Ctrl-C or SIGTERM sets `requested` instead of ending the program; a second Ctrl-C ends
    it at once, with KeyboardInterrupt.

    The handlers that were there before are put back at the end. Blocks may be nested: the wish reaches all of them.

    Parameters
    ----------
    signals : sequence of signals
        Which to take.
    message : str
        The line that is written to the standard error when the first comes.

    Raises
    ------
    TrainingError
        If the block is entered in another thread than the main one, where Python allows no handlers.

    Examples
    --------
    >>> import os, signal
    >>> from polygrad.training import Interruption
    >>> with Interruption(message="") as interruption:
    ...     os.kill(os.getpid(), signal.SIGTERM)
    ...     interruption.requested
    True
    """

    def __init__(
        self,
        signals: Sequence[int] = (signal.SIGINT, signal.SIGTERM),
        *,
        message: str = "stopping after this step, and saving; Ctrl-C again stops at once",
    ) -> None:
        self.signals = tuple(signals)
        self.message = message
        self.requested = False
        self.signal: int | None = None
        self._before: dict[int, Any] = {}
        self._process = 0

    def __enter__(self) -> Self:
        if threading.current_thread() is not threading.main_thread():
            raise TrainingError(
                f"cannot catch signals in thread {threading.current_thread().name!r}: Python allows it in the main "
                "thread alone; enter Interruption there"
            )
        if self in _active:
            raise TrainingError("cannot enter this Interruption twice: it is active already; make another one")
        self.requested, self.signal = False, None
        self._before = {}
        self._process = os.getpid()
        _active.append(self)
        try:
            for number in self.signals:
                self._before[number] = signal.signal(number, self._handle)
        except (OSError, ValueError) as error:
            self.__exit__(None, None, None)
            raise TrainingError(f"cannot catch signal {number}: {error}") from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():  # None: a handler that was not installed from Python
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._before = {}
        _active.remove(self)

    def _handle(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002  what a handler is called with
        if os.getpid() != self._process:  # a worker that was forked meanwhile has no loop to end
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        again = self.requested
        for block in _active:
            block.requested, block.signal = True, block.signal or number
        if again and number == signal.SIGINT:
            raise KeyboardInterrupt
        if not again and self.message:
            _say(self.message)


def _say(line: str) -> None:
    """Write a line to the standard error, from within whatever the main thread was doing."""
    try:
        print(f"\n{line}", file=sys.stderr, flush=True)  # noqa: T201  the user has asked at the keyboard
    except RuntimeError:  # the signal came in the middle of a write to the same stream
        with contextlib.suppress(OSError):
            os.write(2, f"\n{line}\n".encode())
    except (AttributeError, OSError, ValueError):  # there is no standard error any more
        return
