"""Which writes may take over the memory of the array that they write into: those on arrays that nobody else holds.

Here: `find_claims`, which reads reference counts, as `Structure` does for what somebody holds.
Not here: whether a plan makes use of it (`schedule/writes.py`), memory.

An array may be overwritten if its value is never asked for again: nobody holds its node, its storage or its buffer but
the graph at hand, and nothing that is still pending afterwards was computed from it. What a recording keeps may be
asked for; it may be overwritten if it is itself a write that can be made again from its operands.
"""

import sys
from collections.abc import Callable, Mapping

from polygrad.graph.node import Node
from polygrad.schedule.views import MOVEMENT

ASKED, TRACKED = 4, 1  # bits of a node's flag in a Structure


class _Baseline:
    """The references to a leaf, a storage and a buffer that the graph itself makes, measured once."""

    leaf = storage = buffer = 0


def find_claims(order: list[Node], uses: Mapping[int, int], flags: list[int], held: int, active: int) -> dict[int, int]:
    """Return the claims: from the position of a write in *order* to that of the last write of the row it starts.

    Parameters
    ----------
    order, uses, flags
        The pending nodes, how often each is an operand, and their flags.
    held : int
        The references that the graph makes to a node that nobody else holds, without those of its consumers.
    active : int
        The bits of all recordings in progress.
    """
    writes = [k for k in range(len(order)) if order[k].spec.op.kind == "put"]
    if not writes or not _Baseline.leaf:
        return {}
    position = {id(order[k]): k for k in range(len(order))}
    following: dict[int, list[int]] = {}
    reads: dict[int, int] = {}
    for k in range(len(order)):
        for p in order[k].parents:
            reads[id(p)] = reads.get(id(p), 0) + 1
    p = None  # type: ignore[assignment]  # a reference too many
    for k in writes:
        following.setdefault(id(order[k].parents[0]), []).append(k)

    def unheld(k: int) -> bool:
        return sys.getrefcount(order[k]) <= held + uses[k]

    found: dict[int, int] = {}
    for k in writes:
        root = id(order[k].parents[0])
        if root in position or not _is_free(order, k, reads[root]):
            continue
        row = [k]
        while not flags[row[-1]] & ASKED and unheld(row[-1]):
            after = following.get(id(order[row[-1]]), ())
            if len(after) != 1:
                break
            row.append(after[0])
        if _may_go(order, row, flags, active) and not _still_needed(order, root, row[-1], position, flags, unheld):
            found[k] = row[-1]
    return found


def _is_free(order: list[Node], k: int, reads: int) -> bool:
    """Whether only the graph refers to the array that a write goes into, and its memory is whole and our own."""
    if sys.getrefcount(order[k].parents[0]) > _Baseline.leaf + reads:
        return False
    if sys.getrefcount(order[k].parents[0].storage) > _Baseline.storage:
        return False
    storage = order[k].parents[0].storage
    if not storage.contiguous or storage.offset or storage.buffer is None or storage.buffer.owner is not None:
        return False
    return sys.getrefcount(storage.buffer) <= _Baseline.buffer


def _may_go(order: list[Node], row: list[int], flags: list[int], active: int) -> bool:
    """Whether no recording needs the old array, or it can be made again."""
    root = order[row[0]].parents[0]
    if not root.mask & active and not any(flags[k] & TRACKED for k in row):
        return True
    return root.spec.op.kind == "put" and bool(root.parents)


def _still_needed(
    order: list[Node], root: int, end: int, position: dict[int, int], flags: list[int], unheld: Callable[[int], bool]
) -> bool:
    """Whether something was computed from the old array, not through its last write, that is asked for later.

    What is asked for now is in memory afterwards, unless it is a view of that very array.
    """
    depends = [False] * len(order)
    for k in range(len(order)):
        if k == end:
            continue
        for p in order[k].parents:
            if id(p) == root or depends[position.get(id(p), k)]:
                depends[k] = True
        p = None  # type: ignore[assignment]  # as above
        if depends[k]:
            if flags[k] & ASKED:
                if order[k].spec.op.kind in MOVEMENT:
                    return True
            elif not unheld(k):
                return True
    return False


def calibrate(consumer: list[Node]) -> None:
    """Measure on the operand of a node, given in a list of its own, that nobody else holds."""
    _Baseline.leaf = sys.getrefcount(consumer[0].parents[0]) - 1
    _Baseline.storage = sys.getrefcount(consumer[0].parents[0].storage)
    storage = consumer[0].parents[0].storage
    _Baseline.buffer = sys.getrefcount(storage.buffer)
