"""What may be tuned: how many threads, how big a block, from which amount of work on threads are used.

Here: the numbers, their defaults with the reason, and where they come from. Not here: what is done with them.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """Measured on 2 cores with 1 MiB of L2 each; README.md says how to measure again.

    `block_bytes` is the size of a register: below 128 KiB threads spend their time handing the interpreter's lock
    over, above 1 MiB the registers leave the cache. `split_ns` is the estimated work from which a launch is split over
    threads: waking a thread costs 15 to 20 microseconds. Kernels whose registers are all below `small_bytes` keep
    them, instead of sharing scratch.
    """

    threads: int = 1
    block_bytes: int = 1 << 19
    split_ns: int = 150_000
    small_bytes: int = 1 << 16


def read_settings(options: Mapping[str, str]) -> Settings:
    """Return the settings that *options* ask for, then the environment, then the defaults.

    Parameters
    ----------
    options : mapping
        ``threads``, ``block_bytes``, ``split_ns``, ``small_bytes``, each a decimal number; the variables of the
        environment are ``POLYGRAD_CPU_THREADS`` and so on.

    Raises
    ------
    ValueError
        If one of them is not a number of at least 1.

    Examples
    --------
    >>> read_settings({"threads": "3"}).threads
    3
    """

    def number(name: str, default: int) -> int:
        text = options.get(name) or os.environ.get(f"POLYGRAD_CPU_{name.upper()}") or str(default)
        if not text.isdecimal() or int(text) < 1:
            message = (
                f"POLYGRAD_CPU_{name.upper()} is {text!r}; it must be a whole number of at least 1, such as {default}"
            )
            raise ValueError(message)
        return int(text)

    return Settings(
        threads=number("threads", _cores()),
        block_bytes=number("block_bytes", Settings.block_bytes),
        split_ns=number("split_ns", Settings.split_ns),
        small_bytes=number("small_bytes", Settings.small_bytes),
    )


def _cores() -> int:
    """Return how many cores this process may use, which a container may have limited."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0)) or 1
    return os.cpu_count() or 1
