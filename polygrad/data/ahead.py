"""Ahead: a thread that keeps the next batches ready while the caller works with this one.

Here: the thread, its queue, how errors and the end come through.
Not here: what a batch is.
"""

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

_PATIENCE = 0.05  # seconds between two looks at whether the reader has gone


class Ahead:
    """Iterates over what *start* returns, in a thread, at most *depth* items ahead of the reader."""

    def __init__(self, start: Callable[[], Iterator[Any]], depth: int) -> None:
        self._queue: queue.Queue[tuple[str, Any]] = queue.Queue(depth)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(start,), name="polygrad prefetch", daemon=True)
        self._thread.start()

    def _run(self, start: Callable[[], Iterator[Any]]) -> None:
        source = start()
        try:
            for item in source:
                if not self._put(("item", item)):
                    return
            self._put(("end", None))
        except BaseException as error:  # it belongs to the reader, whatever it is
            self._put(("error", error))
        finally:
            close = getattr(source, "close", None)
            if close is not None:
                close()

    def _put(self, entry: tuple[str, Any]) -> bool:
        while not self._stop.is_set():
            with contextlib.suppress(queue.Full):
                self._queue.put(entry, timeout=_PATIENCE)
                return True
        return False

    def __iter__(self) -> Iterator[Any]:
        try:
            while True:
                kind, value = self._queue.get()
                if kind == "end":
                    return
                if kind == "error":
                    raise value
                yield value
        finally:
            self.close()

    def close(self) -> None:
        """End the thread, whatever it had ready."""
        self._stop.set()
        with contextlib.suppress(queue.Empty):
            while True:
                self._queue.get_nowait()
        self._thread.join()
