"""In which order samples come: shuffled without a list, cut into batches and shares.

Here: permutations that are computed element by element, and the plan of an epoch.
Not here: the samples.
"""

import hashlib
import struct
from collections.abc import Iterator

from polygrad.errors import DataError

_ROUNDS = 6  # even, so that both halves come back to their places
_LEAST_BITS = 4
_MASK = 2**64 - 1


def mixed(*numbers: int) -> int:
    """Return 64 bits that depend on all of the numbers.

    >>> mixed(1, 2) == mixed(1, 2), mixed(1, 2) == mixed(2, 1)
    (True, False)
    """
    words = b"".join((number & _MASK).to_bytes(8, "little") for number in numbers)
    return int.from_bytes(hashlib.blake2b(words, digest_size=8).digest(), "little")


class Permutation:
    """0 .. n - 1 in an order that depends on a key; each element is computed when it is asked for.

    So the order of a thousand million samples takes no memory, and any place in it can be entered at once. It is a
    Feistel network over the least power of two that is not below n; elements that fall outside go round again. Source:
    Black and Rogaway, Ciphers with Arbitrary Finite Domains (2002).

    Examples
    --------
    >>> order = Permutation(10, key=1)
    >>> sorted(order) == list(range(10)), list(order) == list(Permutation(10, key=1))
    (True, True)
    """

    def __init__(self, n: int, key: int) -> None:
        self._n = n
        bits = max(_LEAST_BITS, (n - 1).bit_length())
        self._left, self._right = bits // 2, bits - bits // 2
        digest = hashlib.blake2b(struct.pack("<QQ", key & _MASK, n), digest_size=8 * _ROUNDS).digest()
        keys = struct.unpack(f"<{_ROUNDS}Q", digest)
        # Each round changes the half that the round before used: of the left's size, and then of the right's.
        self._rounds = [(k, (1 << (self._right if r % 2 else self._left)) - 1) for r, k in enumerate(keys)]

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, index: int) -> int:
        if not 0 <= index < self._n:
            raise IndexError(f"cannot take element {index} of a permutation of {self._n}")
        low = (1 << self._right) - 1
        value = index
        while True:
            changed, used = value >> self._right, value & low
            for key, mask in self._rounds:
                word = ((used ^ key) * 0x9E3779B97F4A7C15) & _MASK
                word ^= word >> 29
                word = (word * 0xBF58476D1CE4E5B9) & _MASK
                changed, used = used, changed ^ ((word >> 32) & mask)
            value = changed << self._right | used
            if value < self._n:
                return value

    def __iter__(self) -> Iterator[int]:
        return (self[k] for k in range(self._n))


class Plan:
    """Which samples each batch of an epoch has, for one of several processes that share them.

    All processes together take *world* times *size* samples a step, the first *size* of them process 0: so several
    processes see what one with a bigger batch would. Where the last step cannot be dealt evenly, samples from the
    beginning of the order fill it up, so that no process waits for another.
    """

    def __init__(self, n: int, size: int, *, drop_last: bool, rank: int = 0, world: int = 1) -> None:
        self.n, self.size, self.rank, self.world = n, size, rank, world
        step = size * world
        self.batches = n // step if drop_last else -(-n // step)
        if self.batches == 0:
            raise DataError(
                f"cannot make one batch: {n} samples are fewer than {step if drop_last else 1}; take smaller "
                "batches, or drop_last=False"
            )

    def batch(self, order: "Permutation | range", k: int) -> list[int]:
        """Return the samples of batch *k*."""
        step = self.size * self.world
        start = k * step
        present = min(step, self.n - start)
        share = -(-present // self.world)  # the last step may be smaller
        first = start + self.rank * share
        return [order[p if p < self.n else (p - self.n) % self.n] for p in range(first, first + share)]
