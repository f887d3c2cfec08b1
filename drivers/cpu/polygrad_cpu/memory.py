"""Host memory: blocks, their account, and other people's memory as blocks.

Here: allocation with a limit, alignment, adoption, notices. Not here: pooling, which is the core's.
"""

import os
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np

from polygrad.driver import MemoryInfo, OutOfMemory

Array = np.ndarray[Any, Any]

ALIGNMENT = 64


def total_memory() -> int:
    """Return the bytes of memory that this process may use: the machine's, or its container's if that is less."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 1 << 62
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = Path(limit).read_text(encoding="ascii").strip()
        except OSError:
            continue
        if text.isdecimal():
            total = min(total, int(text))
    return total


def available_memory(total: int) -> int:
    """Return the bytes that the system says it could still give, *total* if it does not say."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return total
    found = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    return min(total, found[0]) if found else total


class Memory:
    """Blocks of host memory.

    Linux grants what it does not have and kills who uses it; so what is asked for is added up and refused beyond the
    total. numpy.empty asks for huge pages from 4 MiB on, without which first use costs ten times as much; mapping
    memory by hand was no faster.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self.used = 0
        self.lock = threading.Lock()
        _accounts.add(self)

    def allocate(self, nbytes: int) -> Array:
        """Return *nbytes* bytes, aligned.

        Raises
        ------
        OutOfMemory
            If they do not fit beside what is allocated already.
        """
        with self.lock:
            free = self.total - self.used
            if nbytes > free:
                raise self.full(nbytes, free)
            self.used += nbytes
        try:
            raw = np.empty(nbytes + ALIGNMENT, np.uint8)
        except MemoryError as error:
            self.give_back(nbytes)
            raise self.full(nbytes, free) from error
        skip = -raw.ctypes.data % ALIGNMENT
        return raw[skip : skip + nbytes]

    def full(self, nbytes: int, free: int) -> OutOfMemory:
        """Return the error for a request of *nbytes*."""
        return OutOfMemory(
            f"cpu:0 cannot allocate {nbytes} bytes: {free} of {self.total} are not allocated yet; "
            "drop arrays that are no longer needed or work in smaller pieces"
        )

    def give_back(self, nbytes: int) -> None:
        """Take *nbytes* off the account; the memory goes when nobody refers to it."""
        with self.lock:
            self.used -= nbytes

    def info(self) -> MemoryInfo:
        """Return free and total bytes."""
        return MemoryInfo(min(self.total - self.used, available_memory(self.total)), self.total)


class Notices:
    """A few bytes that launches write and everybody reads; a launch is done when it returns, so marks are nothing."""

    def __init__(self, nbytes: int) -> None:
        self.handle: Array = np.zeros(nbytes, np.uint8)
        self.memory = self.handle.data

    def mark(self) -> None:
        """Do nothing."""

    def wait(self) -> None:
        """Do nothing."""


_accounts: weakref.WeakSet[Memory] = weakref.WeakSet()


def _after_fork() -> None:
    """Make new locks: a thread that does not exist in the child may have held an old one."""
    for account in _accounts:
        account.lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def adopt(memory: memoryview) -> Array:
    """Return foreign *memory*, read-only or not, as a block that shares it."""
    return np.frombuffer(memory.cast("B") if memory.ndim != 1 or memory.itemsize != 1 else memory, np.uint8)
