"""Philox-4x32-10, the counter-based generator of random bits.

Here: the op random_bits, over blocks of counters. Not here: distributions, which the core makes of bits.
Source: J. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

import itertools
from typing import Any

import numpy as np

from polygrad.driver import Ref
from polygrad_cpu.settings import Settings
from polygrad_cpu.transfer import array
from polygrad_cpu.workers import Workspace, share

Array = np.ndarray[Any, Any]

# Counters in a block: on one thread six registers fit the cache; several threads need calls that last.
ALONE, SHARED = 1 << 13, 1 << 16
NS = 20  # a counter's four words cost about so much
M0, M1 = np.array(0xD2511F53, np.uint64), np.array(0xCD9E8D57, np.uint64)
W0, W1 = 0x9E3779B9, 0xBB67AE85
LOW, SHIFT = np.array(0xFFFFFFFF, np.uint64), np.array(32, np.uint64)
ROUNDS = 10


def words(out: Array, key: int, counter: int) -> None:
    """Fill *out*, uint32[n, 4], with the words of counters counter, counter + 1, ... (modulo 2**64).

    >>> out = np.empty((1, 4), np.uint32); words(out, 0, 0); [hex(w) for w in out[0]]
    ['0x6627e8d5', '0xe169c58d', '0xbc57ac4c', '0x9b00dbd8']
    """
    n = len(out)
    numbers = np.arange(n, dtype=np.uint64)
    np.add(numbers, np.array(counter % 2**64, np.uint64), numbers)
    a, b = numbers & LOW, numbers >> SHIFT
    c, d, p, q = (np.zeros(n, np.uint64) for _ in range(4))
    for i in range(ROUNDS):
        k0 = np.array((key + i * W0) % 2**32, np.uint64)
        k1 = np.array(((key >> 32) + i * W1) % 2**32, np.uint64)
        np.multiply(a, M0, p)
        np.multiply(c, M1, q)
        np.right_shift(q, SHIFT, a)
        np.bitwise_xor(a, b, a)
        np.bitwise_xor(a, k0, a)
        np.bitwise_and(q, LOW, b)
        np.right_shift(p, SHIFT, c)
        np.bitwise_xor(c, d, c)
        np.bitwise_xor(c, k1, c)
        np.bitwise_and(p, LOW, d)
    for column, word in enumerate((a, b, c, d)):
        out[:, column] = word


def fill(out: Ref, key: int, counter: int, settings: Settings) -> None:
    """Write random bits to *out*, in blocks, on threads if there are many."""
    target = array(out).reshape(-1)
    n = len(target)
    whole = n // 4
    threads = settings.threads if whole * NS >= settings.split_ns else 1
    block = ALONE if threads == 1 else min(SHARED, -(-whole // threads))
    starts = range(0, whole, block)
    numbers = itertools.count()

    def some(_: Workspace) -> None:
        for i in numbers:
            if i >= len(starts):
                return
            lo, hi = starts[i], min(starts[i] + block, whole)
            words(target[4 * lo : 4 * hi].reshape(-1, 4), key, counter + lo)

    share(some, min(threads, len(starts)))
    if n % 4:
        last = np.empty((1, 4), np.uint32)
        words(last, key, counter + whole)
        target[4 * whole :] = last[0, : n % 4]
