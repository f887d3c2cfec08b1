"""In which turns a step gives large models their new values, so that old and new ones need not all fit at once.

Here: `in_turns`.
Not here: the step (`optimizer.py`).
"""

from collections.abc import Sequence
from typing import Any

from polygrad.array.object import Array

Member = tuple[str, Array, dict[str, Any]]  # a name, a parameter and its group

LARGE = 1 << 24  # bytes: parameters of fewer get their new values all at once
TURNS = 8  # about how many, unless a single parameter is larger than such a part


def in_turns(members: Sequence[Member]) -> list[list[Member]]:
    """Split parameters into lists that are computed one after the other, the largest parameters first.

    What the first turn frees is room for the later ones, so that it is the first that meets an OutOfMemory.

    >>> import polygrad as pg
    >>> [len(turn) for turn in in_turns([("a", pg.ones(3), {}), ("b", pg.ones(2), {})])]
    [2]
    """
    sizes = {name: p.size * p.dtype.itemsize for name, p, _ in members}
    total = sum(sizes.values())
    if total < LARGE:
        return [list(members)]
    turns: list[list[Member]] = []
    room = 0
    for member in sorted(members, key=lambda m: -sizes[m[0]]):
        if not turns or sizes[member[0]] > room:
            turns.append([])
            room = max(total // TURNS, sizes[member[0]])
        turns[-1].append(member)
        room -= sizes[member[0]]
    return turns
