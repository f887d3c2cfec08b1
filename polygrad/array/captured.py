"""The arrays of a captured call: those that it reads, those that it gives new values, and those that it returns.

Here: what each must be like, where its value lies, and giving an array its value of this call.
Not here: the call itself (`replaying.py`), launches and memory (`runtime/replay.py`).

What is written at every call changes between two storages: an array gets one, and the other is kept for the next call
if reference counts say that nobody else holds it. Where a launch may write over the old value, and nobody else holds
that, one storage does (`runtime/overwriting.py`).
"""

from collections.abc import Callable
from sys import getrefcount
from typing import Any

from polygrad import dtypes
from polygrad.array.capturing import Handle
from polygrad.array.object import Array
from polygrad.array.views import write
from polygrad.graph.functions import F
from polygrad.graph.node import Node, Pair, parts, spec_of, watches
from polygrad.graph.spec import Spec
from polygrad.ops.creation import buffer as buffer_op
from polygrad.runtime.memory import Buffer, Storage
from polygrad.runtime.overwriting import Overwrite
from polygrad.runtime.realize import realize
from polygrad.runtime.recorder import INPUT, MADE, Place, Recorder
from polygrad.runtime.replay import Replay
from polygrad.runtime.structure import ALWAYS

Find = Callable[[], Array | None]
Given = tuple[Array, Node, Storage | None]  # an array, the node it had, and its storage if the node has another now


class Value:
    """A realized value of a captured call: of each part what it is, its device, its place."""

    def __init__(self, node: Node, recorder: Recorder) -> None:
        self.pair = type(node) is Pair
        self.parts: list[tuple[Spec, str, Place]] = []
        for p in parts(node):
            assert p.device is not None  # noqa: S101  arrays always have a device
            self.parts.append((spec_of(buffer_op, (p.aval.shape, p.aval.dtype), ()), p.device, recorder.place(p)))

    def node(self, memory: "Memory") -> Node:
        """Return a node of the value as it is in this call."""
        if not self.pair:
            spec, device, place = self.parts[0]
            node = Node(spec, (), device)
            node.storage = memory.storage(place)
            return node
        made = []
        for spec, device, place in self.parts:
            node = Node(spec, (), device)
            node.storage = memory.storage(place)
            made.append(node)
        return Pair(*made)


class Input:
    """An array that a captured call reads: how it is found, and what it must be like."""

    def __init__(self, handle: Handle, recorder: Recorder) -> None:
        assert handle.node is not None  # noqa: S101  it was read
        self.find = handle.find
        self.device = handle.node.device
        self.needs_grad = bool(watches(ALWAYS, handle.node))
        self.parts = [(recorder.input(p), p.aval, p.storage.strides) for p in parts(handle.node)]
        self.pair = type(handle.node) is Pair
        # What is compared first, of an array that is one realized node.
        self.block, self.aval, self.strides = self.parts[0]
        self.mask = ALWAYS if self.needs_grad else 0

    def fits(self, found: dict[int, Storage]) -> bool:
        """Put the storages of the array as it is now into *found*; return whether it is what it was like."""
        array = self.find()
        if array is None:
            return False
        node = array._node
        if node.device != self.device or (type(node) is Pair) is not self.pair or node.mask & ALWAYS != self.mask:
            return False
        for p, (block, aval, strides) in zip(parts(node), self.parts, strict=True):
            if p.aval is not aval:
                return False
            if p.storage is None:
                realize([node])
            if p.storage.strides != strides:
                return False
            found[block] = p.storage
        return True


class State:
    """An array that a captured call gives a new value.

    Attributes
    ----------
    swaps : bool
        Whether the value is all of one block, which nothing else of the call lies in: then `next` is its storage.
    old : int
        The block of the array's value before, if the call reads it, it is one whole storage too, and of the same shape;
        else -1.
    over : Overwrite or None
        The launch that may write over the value before.
    """

    def __init__(self, handle: Handle, value: Value, read: "Input | None") -> None:
        self.find, self.value = handle.find, value
        self.swaps = False
        self.over: Overwrite | None = None
        self.spec, self.device, place = value.parts[0]
        self.aval = self.spec.aval
        self.block, self.strides = place.block, place.strides
        self.next: Storage | None = None  # what the array gets after this call
        self.old = -1
        if read is not None and not (read.pair or value.pair) and read.aval is self.spec.aval:
            if read.strides == self.strides and read.device == self.device:
                self.old = read.block

    def settle(self, used: dict[int, int], recorder: Recorder) -> None:
        """Find out whether it swaps; *used* counts how often each block is a result."""
        place = self.value.parts[0][2]
        whole = recorder.blocks[self.block].kind == MADE and place.contiguous and not place.offset
        self.swaps = whole and not self.value.pair and used[self.block] == 1

    def alone(self) -> bool:
        """Whether nobody but the array, and the list of inputs of this call, holds the value that it has."""
        array = self.find()
        if array is None or array._link:
            return False
        node = array._node
        if type(node) is not Node or node.parents or getrefcount(node) > NODES:
            return False
        old = node.storage
        if old is None or old.offset or getrefcount(old) > STORAGES + 1:
            return False
        buffer = old.buffer
        return getrefcount(buffer) <= BUFFERS and buffer.owner is None

    def give(self, array: Array, memory: "Memory") -> Given:
        """Give an array its value of this call; return what `take_back` needs."""
        if not self.swaps:
            before = array._node
            write(array, F.cut(self.value.node(memory)))
            return array, before, None
        new, self.next = self.next, None
        node = array._node
        alike = type(node) is Node and node.aval is self.aval and not node.parents and node.device == self.device
        if not alike or array._link or getrefcount(node) > NODES:  # it has views, or another holds the node
            made = Node(self.spec, (), self.device)
            made.storage = new
            write(array, made)
            return array, node, None
        old = node.storage
        node.storage = new
        if getrefcount(old) < STORAGES and not old.offset and old.strides == self.strides:  # less by the node's
            buffer = old.buffer
            other: Any = new.buffer  # type: ignore[union-attr]  # what swaps is never empty
            if getrefcount(buffer) <= BUFFERS and buffer.nbytes == other.nbytes and buffer.pool is other.pool:
                if buffer.owner is None:
                    self.next = old
        return array, node, old

    def take_back(self, array: Array, node: Node, old: Storage | None) -> None:
        """Give an array the value that it had, as `give` has told."""
        if old is not None:
            self.next, node.storage = node.storage, old
        elif array._link is None:
            array._node = node
        else:
            write(array, node)


def _counted(array: Array) -> tuple[int, int, int]:
    """Return how many references there are to an array's node, storage and buffer, counted as in `State.give`."""
    node = array._node
    nodes = getrefcount(node)
    old = node.storage
    storages = getrefcount(old)
    buffer = old.buffer
    return nodes, storages, getrefcount(buffer)


def _measured() -> tuple[int, int, int]:
    """Return what is counted if nobody else holds them; it differs between versions of Python."""
    array = Array(Node(spec_of(buffer_op, ((), dtypes.bool_), ()), (), None))
    array._node.storage = Storage(Buffer(None, None, 0, True), 0, (), True)  # type: ignore[arg-type]  # of no pool
    return _counted(array)


NODES, STORAGES, BUFFERS = _measured()


class Memory:
    """The memory of one call: that of its inputs, of what it makes and that outlives it, and of constants."""

    def __init__(self, replay: Replay, inputs: dict[int, Storage], made: dict[int, Buffer]) -> None:
        self.replay, self.inputs, self.made = replay, inputs, made
        self._storages: dict[Place, Storage] = {}

    def storage(self, place: Place) -> Storage:
        """Return the storage at a place, one for all who ask."""
        found = self._storages.get(place)
        if found is None:
            kind = self.replay.blocks[place.block].kind
            if kind == MADE:
                found = Storage(self.made[place.block], place.offset, place.strides, place.contiguous)
            else:
                base = self.inputs[place.block] if kind == INPUT else self.replay.constants[place.block]
                found = Storage(base.buffer, base.offset + place.offset, place.strides, place.contiguous)
            self._storages[place] = found
        return found
