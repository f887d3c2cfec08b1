"""The results of a captured call that are new arrays at each call.

Here: what is known of them beforehand, making them, and their memory.
Not here: results that were there before the call, or are complex (`replaying.py`).
"""

from collections.abc import Mapping, Sequence
from sys import getrefcount
from typing import Any, NamedTuple

from polygrad.array.captured import Value
from polygrad.array.object import Array
from polygrad.graph.node import Node
from polygrad.graph.spec import Spec
from polygrad.runtime.memory import Buffer, Storage
from polygrad.runtime.recorder import INPUT, Block, Place
from polygrad.runtime.replay import Replay

NEW, PASSED_ON, SAME = range(3)
SMALL = 1 << 16  # bytes of a result whose memory is kept
_KEPT: list[object] = [object()]
ALONE = getrefcount(_KEPT[0])  # what is counted of something that is held by one list alone


class Result(NamedTuple):
    """A new real array, and where its value lies.

    That is, by *where*, in memory that the call makes (the number of it is *at*), in an operand's (of block *at*), or
    where the result with number *at* has it.
    """

    spec: Spec
    device: str
    where: int
    at: int
    offset: int
    strides: tuple[int, ...]
    contiguous: bool


class Room:
    """Memory for the blocks that a call makes for its results.

    A small one gets that of the call before the last, if nobody holds the result any more: to take memory, and to give
    it back, costs twice as much Python.
    """

    def __init__(self, replay: Replay, blocks: Sequence[int]) -> None:
        self._replay = replay
        self._last: list[tuple[int, list[Buffer] | None]] = [
            (block, [] if replay.blocks[block].nbytes <= SMALL else None) for block in blocks
        ]

    def take(self) -> list[Buffer]:
        """Return memory for each block, of which the replay hears."""
        made = []
        for block, last in self._last:
            if last and getrefcount(last[0]) == ALONE:
                buffer = last[0]
                last.reverse()
                self._replay.handles[block] = buffer.handle
            else:
                buffer = self._replay.take(block)
                if last is not None:
                    last.append(buffer)
                    del last[:-2]
            made.append(buffer)
        return made


def new_results(outputs: Sequence[Any], made: Sequence[int], blocks: Sequence[Block]) -> list[Result] | None:
    """Return what is known of results if all are new, real and no constants; None if not.

    Parameters
    ----------
    outputs : sequence
        A `Value` for each that is new.
    made : sequence of int
        The blocks that the call makes for its results, in the order in which `arrays_of` gets their memory.
    blocks : sequence of Block
        Of the call.
    """
    results: list[Result] = []
    places: list[Place] = []
    for o in outputs:
        if not isinstance(o, Value) or o.pair:
            return None
        spec, device, place = o.parts[0]
        view = place.offset, place.strides, place.contiguous
        if place in places:
            results.append(Result(spec, device, SAME, places.index(place), *view))
        elif place.block in made:
            results.append(Result(spec, device, NEW, made.index(place.block), *view))
        elif blocks[place.block].kind == INPUT:
            results.append(Result(spec, device, PASSED_ON, place.block, *view))
        else:
            return None
        places.append(place)
    return results


def arrays_of(results: Sequence[Result], found: Mapping[int, Storage], made: Sequence[Buffer]) -> list[Array]:
    """Return the results of one call; *found* are the storages of its operands by block, *made* what it has made."""
    arrays: list[Array] = []
    for spec, device, where, at, offset, strides, contiguous in results:
        node = Node(spec, (), device)
        if where == NEW:
            node.storage = Storage(made[at], offset, strides, contiguous)
        elif where == SAME:
            node.storage = arrays[at]._node.storage
        else:
            base = found[at]
            node.storage = Storage(base.buffer, base.offset + offset, strides, contiguous)
        arrays.append(Array(node))
    return arrays
