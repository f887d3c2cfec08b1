"""Philox-4x32-10 in plain NumPy: the words that every device must give.

Here: the generator, from its definition (Salmon et al., Parallel random numbers: as easy as 1, 2, 3; SC 2011).
Not here: distributions.
"""

import numpy as np

from polygrad_conformance.case import Array

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
LOW = np.uint64(0xFFFFFFFF)
HALF = np.uint64(32)


def words(key: int, counter: int, count: int) -> Array:
    """Return *count* uint32 words: word e % 4 of the block at *counter* + e // 4, whose high 64 bits are 0.

    Examples
    --------
    >>> [hex(w) for w in words(0, 0, 4)]
    ['0x6627e8d5', '0xe169c58d', '0xbc57ac4c', '0x9b00dbd8']
    """
    blocks = np.arange(-(-count // 4), dtype=np.uint64) + np.uint64(counter)
    lanes = [blocks & LOW, blocks >> HALF, np.zeros_like(blocks), np.zeros_like(blocks)]
    keys = [np.uint64(key & 0xFFFFFFFF), np.uint64(key >> 32)]
    for _ in range(10):
        first, second = lanes[0] * np.uint64(MULTIPLIERS[0]), lanes[2] * np.uint64(MULTIPLIERS[1])
        lanes = [(second >> HALF) ^ lanes[1] ^ keys[0], second & LOW, (first >> HALF) ^ lanes[3] ^ keys[1], first & LOW]
        keys = [(k + np.uint64(w)) & LOW for k, w in zip(keys, WEYL, strict=True)]
    return np.stack(lanes, axis=1).reshape(-1)[:count].astype(np.uint32)
