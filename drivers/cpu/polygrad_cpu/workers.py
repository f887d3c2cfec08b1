"""Threads and their scratch memory: who computes, and where.

Here: workspaces (scratch, floating-point error state), the lazily made pool, what happens at a fork.
Not here: what is computed.
"""

import contextvars
import itertools
import math
import os
import queue
import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

import numpy as np

Array = np.ndarray[Any, Any]
Task = TypeVar("Task")

FRAMES = 64  # argument lists that one workspace remembers
KEPT = 1 << 23  # bytes: larger parts of scratch are not kept


def quiet_context() -> Callable[..., Any]:
    """Return the `run` of a context in which NumPy's floating-point warnings are off.

    NumPy keeps that state in a context variable. To enter such a context takes 60 ns, ``np.errstate`` takes 900.
    """
    context = contextvars.Context()
    context.run(np.seterr, all="ignore")
    return context.run


class Workspace:
    """Scratch memory and a context for one thread at a time; taken with `borrow`, given back with `give_back`."""

    __slots__ = ("frames", "parts", "run", "scratch", "turned")

    def __init__(self) -> None:
        self.run = quiet_context()
        self.scratch: Array = np.empty(0, np.uint8)
        self.frames: dict[Hashable, Any] = {}
        self.turned: dict[int, Array] = {}
        self.parts: dict[str, Array] = {}

    def room(self, nbytes: int) -> Array:
        """Return *nbytes* or more of scratch; growing it forgets the frames, which pointed into the old one."""
        if len(self.scratch) < nbytes:
            self.frames.clear()
            raw = np.empty(nbytes + 64, np.uint8)
            skip = -raw.ctypes.data % 64
            self.scratch = raw[skip : skip + nbytes]
        return self.scratch

    def turn(self, number: int, a: Array) -> Array:
        """Return *a*, copied in its own memory order to scratch of this *number* whose rows are padded.

        Whoever reads it across then finds it in the cache, and not in a few sets of it: a power of two between rows
        would make each read a miss (measured: 1.3 ns an element instead of 6).
        """
        order = sorted(range(a.ndim), key=lambda k: -abs(a.strides[k]) if a.shape[k] > 1 else -1 << 62)
        b = a.transpose(order)
        shape = (*b.shape[:-1], b.shape[-1] + 64 // a.itemsize)
        nbytes = math.prod(shape) * a.itemsize
        memory = self.turned.get(number)
        if memory is None or len(memory) < nbytes:
            memory = self.turned[number] = np.empty(nbytes, np.uint8)
        copy = np.ndarray(shape, a.dtype, memory)[..., : b.shape[-1]]
        copy[...] = b
        return copy.transpose(np.argsort(order))

    def named(self, name: str, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return contiguous scratch of this *name*, as it was left; it stays until the next of the name."""
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        memory = self.parts.get(name)
        if memory is None or len(memory) < nbytes:
            memory = np.empty(nbytes, np.uint8)
            if nbytes <= KEPT:
                self.parts[name] = memory
        return np.ndarray(shape, dtype, memory)

    def remember(self, key: Hashable, frame: Any) -> Any:
        """Keep *frame* for the next block of this shape."""
        if len(self.frames) >= FRAMES:
            self.frames.clear()
        self.frames[key] = frame
        return frame


_idle: list[Workspace] = []


def borrow() -> Workspace:
    """Take an idle workspace, or make one. list.pop is atomic, so threads and re-entrant callers never share one."""
    try:
        return _idle.pop()
    except IndexError:
        return Workspace()


def give_back(workspace: Workspace) -> None:
    """Return a workspace to the idle ones."""
    _idle.append(workspace)


class _Job:
    """Work that several threads do together: each calls `work` once, and takes tasks in it until there are none."""

    def __init__(self, work: Callable[[Workspace], None]) -> None:
        self.work = work
        self.lock = threading.Lock()
        self.active = 0
        self.closed = False
        self.finished = threading.Event()
        self.error: BaseException | None = None

    def help(self) -> None:
        """Do a share, unless the work is already over."""
        with self.lock:
            if self.closed:
                return
            self.active += 1
        try:
            call(self.work)
        except BaseException as error:  # carried to the thread that launched, and raised there
            self.error = error
        with self.lock:
            self.active -= 1
            if self.closed and not self.active:
                self.finished.set()

    def close(self) -> None:
        """Wait for those who have begun; who has not will not."""
        with self.lock:
            self.closed = True
            if not self.active:
                self.finished.set()
        self.finished.wait()
        if self.error is not None:
            raise self.error


class _Pool:
    """Helper threads that wait for jobs; daemons, made when first needed."""

    def __init__(self) -> None:
        self.jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self.size = 0
        self.lock = threading.Lock()

    def grow(self, size: int) -> None:
        with self.lock:
            while self.size < size:
                self.size += 1
                threading.Thread(target=self.serve, name=f"polygrad-cpu-{self.size}", daemon=True).start()

    def serve(self) -> None:
        while True:
            self.jobs.get().help()


_pool = _Pool()


def _after_fork() -> None:
    """Forget threads that do not exist in the child, and workspaces that they may have held."""
    global _pool  # noqa: PLW0603  the child's pool
    _pool = _Pool()
    _idle.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def call(work: Callable[[Workspace], None]) -> None:
    """Call *work* in this thread, in a workspace and its quiet context."""
    workspace = borrow()
    try:
        workspace.run(work, workspace)
    finally:
        give_back(workspace)


def share(work: Callable[[Workspace], None], threads: int) -> None:
    """Call *work* in up to *threads* threads at once, this one among them, and return when all are done.

    *work* must take its tasks from something shared, and must not mind being called by fewer threads.
    """
    if threads <= 1:
        call(work)
        return
    pool = _pool
    if pool.size < threads - 1:
        pool.grow(threads - 1)
    job = _Job(work)
    for _ in range(threads - 1):
        pool.jobs.put(job)
    try:
        call(work)
    finally:
        job.close()


def each(tasks: Sequence[Task], threads: int, step: Callable[[Workspace, Task], None]) -> None:
    """Call *step* for every task, in up to *threads* threads."""
    numbers = itertools.count()

    def some(workspace: Workspace) -> None:
        for k in numbers:  # next() of a count is atomic: no task is taken twice
            if k >= len(tasks):
                return
            step(workspace, tasks[k])

    share(some, min(threads, len(tasks)))
