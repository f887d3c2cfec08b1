"""Memory for values that come and go: which of them may lie in one buffer, and where.

Here: `packed`.
Not here: buffers, launches (`replay.py`).

The largest values get buffers of their own, and smaller ones lie in these, wherever and whenever there is room: as
offsets are assigned greedily by size in Pisarchyk and Lee, Efficient memory management for deep neural net inference
(2020), but in buffers that never grow, which the pool is likely to have. Two values that one launch uses never lie in
one buffer: a driver may take a handle that is written for one that is not read. What outlives a call has memory from
its beginning, and is host to others until it is made.
"""

from collections.abc import Sequence
from typing import NamedTuple

SMALL = 1 << 16  # bytes: smaller values share buffers of exactly their size, in the order of the launches
GUEST = 1 << 20  # bytes: smaller values do not lie in memory that is elsewhere at the next call
MOST = 4096  # larger values that are compared with each other


class _Life(NamedTuple):
    """A value: the first and the last launch that use it, its place."""

    first: int
    last: int
    offset: int
    nbytes: int


class _Buffer:
    """What lies in one buffer."""

    def __init__(self, nbytes: int, host: int = -1, number: int = -1) -> None:
        self.nbytes, self.host, self.number = nbytes, host, number
        self.lives: list[_Life] = []
        self.values: set[int] = set()

    def gap(self, first: int, last: int, nbytes: int) -> tuple[int, int] | None:
        """Return size and offset of the smallest place for *nbytes* that is free between two launches."""
        busy = sorted((x.offset, x.offset + x.nbytes) for x in self.lives if x.first <= last and first <= x.last)
        best: tuple[int, int] | None = None
        end = 0
        for start, stop in (*busy, (self.nbytes, self.nbytes)):
            if start - end >= nbytes and (best is None or start - end < best[0]):
                best = (start - end, end)
            end = max(end, stop)
        return best


class Packed(NamedTuple):
    """Where values lie.

    Attributes
    ----------
    buffers : list of int
        The sizes of buffers for them.
    places : dict of int to (int, int)
        Of a value its buffer, by position, and its offset.
    guests : dict of int to (int, int)
        Of a value the host that it lies in, and its offset.
    """

    buffers: list[int]
    places: dict[int, tuple[int, int]]
    guests: dict[int, tuple[int, int]]


def packed(launches: Sequence[Sequence[int]], sizes: dict[int, int], hosts: dict[int, int]) -> Packed:
    """Find places for values.

    Parameters
    ----------
    launches : sequence of sequences of int
        The values that each launch uses; others than those of *sizes* and *hosts* are left out.
    sizes : dict of int to int
        The bytes of each value.
    hosts : dict of int to int
        The bytes of values that have memory, which stands empty until a launch uses them first.

    Examples
    --------
    >>> packed([[1, 2], [2, 3], [3, 4]], {1: 1 << 20, 2: 1 << 18, 3: 1 << 19, 4: 1 << 18}, {})
    Packed(buffers=[1048576, 262144], places={1: (0, 0), 3: (0, 0), 2: (1, 0), 4: (1, 0)}, guests={})
    >>> packed([[1, 2], [2, 3], [3, 4]], {1: 1 << 20, 2: 1 << 18, 3: 1 << 19}, {4: 1 << 20}).guests
    {1: (4, 0)}
    """
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    beside: dict[int, set[int]] = {}
    for k, used in enumerate(launches):
        mine = {v for v in used if v in sizes or v in hosts}
        for v in mine:
            first.setdefault(v, k)
            last[v] = k
            beside.setdefault(v, set()).update(mine)
    large = sorted((v for v in first if sizes.get(v, 0) >= SMALL), key=lambda v: (-sizes[v], first[v]))[:MOST]
    found = Packed([], {}, {})
    buffers = [_Buffer(nbytes, host) for host, nbytes in hosts.items() if nbytes >= GUEST and host in first]
    for buffer in buffers:
        buffer.lives.append(_Life(first[buffer.host], len(launches), 0, buffer.nbytes))
        buffer.values.add(buffer.host)
    for v in large:
        best: tuple[int, _Buffer, int] | None = None
        for buffer in buffers:
            if (buffer.host < 0 or sizes[v] >= GUEST) and buffer.values.isdisjoint(beside[v]):
                gap = buffer.gap(first[v], last[v], sizes[v])
                if gap is not None and (best is None or gap[0] < best[0]):
                    best = (gap[0], buffer, gap[1])
        if best is None:
            best = (0, _Buffer(sizes[v], -1, len(found.buffers)), 0)
            buffers.append(best[1])
            found.buffers.append(sizes[v])
        _, buffer, offset = best
        (found.places if buffer.host < 0 else found.guests)[v] = (max(buffer.host, buffer.number), offset)
        buffer.lives.append(_Life(first[v], last[v], offset, sizes[v]))
        buffer.values.add(v)
    rest = {v: sizes[v] for v in first if v in sizes and v not in found.places and v not in found.guests}
    _in_turn(launches, rest, last, found)
    return found


def _in_turn(launches: Sequence[Sequence[int]], sizes: dict[int, int], last: dict[int, int], found: Packed) -> None:
    """Give each value a buffer of its size, and pass that on after its last use."""
    free: dict[int, list[int]] = {}
    for k, used in enumerate(launches):
        for v in dict.fromkeys(used):
            if v in sizes and v not in found.places:
                spare = free.get(sizes[v])
                if not spare:
                    found.buffers.append(sizes[v])
                found.places[v] = (spare.pop() if spare else len(found.buffers) - 1, 0)
        for v in dict.fromkeys(used):
            if v in sizes and last[v] == k:
                free.setdefault(sizes[v], []).append(found.places[v][0])
