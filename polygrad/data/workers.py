"""Workers: processes that read batches for a loader.

Here: starting and ending them, tasks there and batches back, what their failures say.
Not here: what they read (`reading.py`), in which order (`order.py`).

A forked process must not use a device that its parent has open: its threads and handles stay behind. So workers are
forked only while no device is open, and spawned otherwise. They send batches as NumPy arrays.
"""

import contextlib
import multiprocessing
import os
import pickle
import signal
import threading
import traceback
import weakref
from collections import deque
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait
from typing import Any

from polygrad.array.config import FALLBACK
from polygrad.data.collating import host
from polygrad.data.reading import Reader
from polygrad.errors import DataError
from polygrad.runtime.devices import states

_ORPHANED = 5.0  # seconds between two looks at whether the parent is still there
_GRACE = 1.0  # seconds that a worker has to end by itself


def serve(pipe: Connection, reader: Any) -> None:
    """Answer tasks until the pipe closes; what a worker process runs."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    os.environ["POLYGRAD_DEVICE"] = FALLBACK  # the parent's device is the parent's
    parent = os.getppid()
    trouble = ""
    if isinstance(reader, bytes):
        try:
            reader = pickle.loads(reader)  # noqa: S301  made by the parent a moment ago
        except Exception:  # told with the first batch
            trouble = traceback.format_exc()
    begun = None
    while True:
        if not pipe.poll(_ORPHANED):
            if os.getppid() != parent:
                return
            continue
        try:
            turn, epoch, k, indices = pipe.recv()
        except EOFError:
            return
        try:
            if trouble:
                raise DataError("the data set could not be unpacked in the worker")  # noqa: TRY301
            if begun != turn:
                reader.begin(epoch)
                begun = turn
            found = (True, reader.chosen(epoch, k, indices)) if indices is not None else reader.streamed(epoch, k)
            answer = (turn, "batch", host(found))
        except Exception as error:  # the parent raises it
            answer = (turn, "error", (f"{type(error).__name__}: {error}", trouble or traceback.format_exc()))
        with contextlib.suppress(BrokenPipeError):
            pipe.send(answer)


def start_method(wanted: str | None) -> str:
    """Return how workers are started.

    Raises
    ------
    DataError
        If forking is asked for while a device is open.
    """
    opened = [s.name for s in states()]
    if wanted == "fork" and opened:
        raise DataError(
            f"cannot fork workers while {opened[0]} is open: its threads and handles do not survive that; leave "
            "start_method out"
        )
    if wanted is not None:
        return wanted
    safe = not opened and threading.active_count() == 1 and "fork" in multiprocessing.get_all_start_methods()
    return "fork" if safe else "spawn"


class Pool:
    """So many workers, each with a pipe; batch k belongs to worker k modulo their number."""

    def __init__(self, reader: Reader, count: int, method: str | None) -> None:
        self.method = start_method(method)
        given: Any = reader
        if self.method != "fork":
            try:
                given = pickle.dumps(reader)
            except Exception as error:
                raise DataError(
                    f"cannot send the data set to workers ({error}): define its class, its functions and collate_fn at "
                    "the top of a module, or use num_workers=0"
                ) from error
        context: Any = multiprocessing.get_context(self.method)
        self.processes: list[Any] = []
        self.pipes: list[Connection] = []
        for _ in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=serve, args=(theirs, given), name="polygrad data", daemon=True)
            process.start()
            theirs.close()
            self.processes.append(process)
            self.pipes.append(ours)
        self._turn = 0
        self._finish = weakref.finalize(self, _end, self.processes, self.pipes)

    def batches(self, epoch: int, tasks: Iterator[tuple[int, Any]], ahead: int) -> Iterator[Any]:
        """Yield the batches of tasks (number, samples) in order, with *ahead* tasks a worker under way."""
        self._turn += 1
        turn = self._turn
        waiting: deque[int] = deque()

        def submit() -> None:
            found = next(tasks, None)
            if found is not None:
                k, indices = found
                self._send(k, (turn, epoch, k, indices))
                waiting.append(k)

        for _ in range(ahead * len(self.pipes)):
            submit()
        while waiting:
            k = waiting.popleft()
            there, batch = self._receive(k, turn)
            if not there:
                return
            submit()
            yield batch

    def _send(self, k: int, task: Any) -> None:
        number = k % len(self.pipes)
        try:
            self.pipes[number].send(task)
        except OSError:
            raise self._dead(number) from None

    def _receive(self, k: int, turn: int) -> Any:
        number = k % len(self.pipes)
        pipe, process = self.pipes[number], self.processes[number]
        while True:
            ready = wait([pipe, process.sentinel])
            if pipe not in ready:
                raise self._dead(number)
            try:
                answered, kind, value = pipe.recv()
            except (EOFError, OSError):
                raise self._dead(number) from None
            if answered != turn:  # of a pass that was left early
                continue
            if kind == "error":
                what, trace = value
                raise DataError(f"worker {number} failed on batch {k}: {what}\n\nIn the worker:\n{trace}")
            return value

    def _dead(self, number: int) -> DataError:
        process = self.processes[number]
        process.join(_GRACE)
        code = process.exitcode
        how = f"was ended by signal {-code}" if code is not None and code < 0 else f"ended with exit code {code}"
        hint = (
            "out of memory, perhaps" if code is not None and code < 0
            else "a script that starts workers needs its code under if __name__ == '__main__'"
        )  # fmt: skip
        return DataError(f"worker {number} of the data loader {how} before its batch was there: {hint}")

    def close(self) -> None:
        """End the workers."""
        self._finish()


def _end(processes: list[Any], pipes: list[Connection]) -> None:
    for pipe in pipes:
        with contextlib.suppress(OSError):
            pipe.close()
    for process in processes:
        process.join(_GRACE / 10)
    for process in processes:
        if process.is_alive():
            process.terminate()
    for process in processes:
        process.join(_GRACE)
        if process.is_alive():
            process.kill()
            process.join()
