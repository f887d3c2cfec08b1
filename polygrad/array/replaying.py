"""One captured call of a function, in terms of arrays: what it reads, writes and returns, and calling it again.

Here: `Capture`.
Not here: capturing (`compiling.py`, `capturing.py`), launches and memory (`runtime/replay.py`).
"""

import sys
from collections.abc import Callable, Sequence
from typing import Any

from polygrad import dtypes
from polygrad.array.capturing import Handle, Watch
from polygrad.array.environment import Environment
from polygrad.array.object import Array
from polygrad.array.tree import flatten
from polygrad.array.views import write
from polygrad.graph.functions import F
from polygrad.graph.node import Node, Pair, Spec, parts, spec_of, watches
from polygrad.ops.creation import buffer as buffer_op
from polygrad.runtime.memory import Buffer, Storage
from polygrad.runtime.realize import realize
from polygrad.runtime.recorder import INPUT, MADE, Place, Recorder
from polygrad.runtime.replay import Replay
from polygrad.runtime.structure import ALWAYS, active_mask
from polygrad.symbols import Symbol

Find = Callable[[], Array | None]


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
        made = []
        for spec, device, place in self.parts:
            node = Node(spec, (), device)
            node.storage = memory.storage(place)
            made.append(node)
        return Pair(*made) if self.pair else made[0]


class Input:
    """An array that a captured call reads: how it is found, and what it must be like."""

    def __init__(self, handle: Handle, recorder: Recorder) -> None:
        assert handle.node is not None  # noqa: S101  it was read
        self.find = handle.find
        self.device = handle.node.device
        self.needs_grad = bool(watches(ALWAYS, handle.node))
        self.parts = [(recorder.input(p), p.aval, p.storage.strides) for p in parts(handle.node)]
        self.pair = type(handle.node) is Pair

    def fits(self, found: dict[int, Storage]) -> bool:
        """Put the storages of the array as it is now into *found*; return whether it is what it was like."""
        array = self.find()
        if array is None:
            return False
        node = array._node
        if node.device != self.device or (type(node) is Pair) is not self.pair:
            return False
        if (node.mask or self.needs_grad) and bool(watches(active_mask() & ALWAYS, node)) is not self.needs_grad:
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
    """An array that a captured call gives a new value, and memory for the next call's."""

    def __init__(self, find: Find, value: Value) -> None:
        self.find, self.value = find, value
        self.spare: Buffer | None = None

    def give(self, array: Array, memory: "Memory") -> None:
        """Give an array its value of this call; keep the memory of the old one if nobody else holds it."""
        spec, device, place = self.value.parts[0]
        node = array._node
        simple = not self.value.pair and array._link is None and type(node) is not Pair and not node.parents
        fits = simple and node.aval is spec.aval and node.device == device
        del node
        if not fits or _node_count(array) > _alone[0]:
            write(array, F.cut(self.value.node(memory)))
            return
        node, new = array._node, memory.storage(place)
        if new.buffer is not None and node.storage.buffer is not None and not node.storage.offset:
            if _storage_count(node) <= _alone[1] and _buffer_count(node) <= _alone[2]:
                buffer = node.storage.buffer
                if buffer.nbytes == new.buffer.nbytes and buffer.pool is new.buffer.pool and buffer.owner is None:
                    self.spare = buffer
        node.storage = new


# How many references there are to an array's node, its storage and its buffer, counted in one way: `_alone` is what is
# counted if nobody else holds them, which differs between versions of Python.


def _node_count(array: Array) -> int:
    return sys.getrefcount(array._node)


def _storage_count(node: Node) -> int:
    return sys.getrefcount(node.storage)


def _buffer_count(node: Node) -> int:
    return sys.getrefcount(node.storage.buffer)


def _measured() -> tuple[int, int, int]:
    array = Array(Node(spec_of(buffer_op, ((), dtypes.bool_), ()), (), None))
    node = array._node
    node.storage = Storage(Buffer(None, None, 0, True), 0, (), True)  # type: ignore[arg-type]  # of no pool
    storage, buffer = _storage_count(node), _buffer_count(node)
    del node
    return _node_count(array), storage, buffer


_alone = _measured()


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


class Capture:
    """One captured call of a function."""

    def __init__(self, recorder: Recorder, watch: Watch, result: Any, environment: Environment) -> None:
        self.arrays: Sequence[Array] = ()  # of the call at hand
        self.numbers: Sequence[int | float] = ()
        self.environment = environment
        self.host, self.after, self.checked = recorder.host, recorder.after, recorder.checked
        self.replays = 0
        leaves, self._rebuild = flatten(result)
        self._alone = isinstance(result, Array)
        self._numbered = has_slots(result)
        self._outputs = [_of(a, watch, recorder) for a in leaves]
        handles = list(watch.handles.values())
        self.inputs = [Input(h, recorder) for h in handles if h.node is not None]
        self.states = [State(h.find, Value(h.array._node, recorder)) for h in handles if h.written]
        self._grads = [
            (h.find, None if h.array._grad is None else _of(h.array._grad, watch, recorder))
            for h in handles
            if h.grad_written
        ]
        self._grads_wanted = [(h.find, h.grad_read) for h in handles if h.grad_read is not None]
        some = (*self._outputs, *[s.value for s in self.states], *[v for _, v in self._grads])
        kept = {place.block for v in some if isinstance(v, Value) for _, _, place in v.parts}
        self.replay = Replay(recorder, kept)
        by_block = {s.value.parts[0][2].block: s for s in self.states if not s.value.pair}
        self._kept = [(block, by_block.get(block)) for block in self.replay.kept]
        for h in handles:  # the call that was captured is over: hold nothing of it
            h.array = h.node = None  # type: ignore[assignment]

    def call(
        self, arrays: Sequence[Array], numbers: Sequence[int | float], undone: list[Callable[[], None]] | None = None
    ) -> Any:
        """Replay the call with other arguments; return `MISS`, with nothing done, if it does not fit.

        What undoes what was done on the host is put into *undone*, if it is given.
        """
        self.arrays, self.numbers = arrays, numbers
        try:
            found: dict[int, Storage] = {}
            if not self.replay.current() or not self._fits(found):
                return MISS
            made = self._memory(found)
            ran = self.host.run()
            if ran is None:
                return MISS
            values, undo = ran
            try:
                self.replay.run(values, check=self.checked)
            except BaseException:
                for back in reversed(undo):
                    back()
                raise
            out = self._finish(Memory(self.replay, found, made), values)
            undo += [do() for do in self.after]
            if undone is not None:
                undone += undo
            return out
        finally:
            self.arrays = self.numbers = ()

    def written(self) -> list[tuple[Array, Node, Array | None]]:
        """Return the arrays that a call gives new values or gradients, with those that they have."""
        finds = dict.fromkeys([*[s.find for s in self.states], *[find for find, _ in self._grads]])
        found = [a for a in (find() for find in finds) if a is not None]
        return [(a, a._node, a._grad) for a in {id(a): a for a in found}.values()]

    def _fits(self, found: dict[int, Storage]) -> bool:
        for one in self.inputs:
            if not one.fits(found):
                return False
        for find, wanted in self._grads_wanted:
            owner = find()
            if owner is None or (owner._grad is not None) is not wanted:
                return False
        return True

    def _memory(self, found: dict[int, Storage]) -> dict[int, Buffer]:
        """Tell the replay which memory the inputs are; return memory for what outlives the call."""
        replay = self.replay
        for block, storage in found.items():
            replay.bind(block, storage)
        storage = None  # type: ignore[assignment]  # a reference that would count
        made = {}
        for block, state in self._kept:
            if state is None or state.spare is None:
                made[block] = replay.take(block, None)
            else:
                spare, state.spare = state.spare, None
                made[block] = replay.take(block, spare)
        return made

    def _finish(self, memory: Memory, values: Sequence[Any]) -> Any:
        """Give arrays their new values; return the result."""
        self.replays += 1
        outputs = [_returned(o, memory) for o in self._outputs]
        grads = [(find(), None if value is None else _returned(value, memory)) for find, value in self._grads]
        targets = [(s, s.find()) for s in self.states]
        for s in self.states:  # before the inputs are let go of: what is written may be a view of one
            for _, _, place in s.value.parts:
                memory.storage(place)
        memory.inputs.clear()  # what nobody else holds then may be written to by the next call
        for state, array in targets:
            if array is not None:
                state.give(array, memory)
        for owner, grad in grads:
            if owner is not None:
                owner._grad = grad
        if self._alone:
            return outputs[0]
        out = self._rebuild(outputs)
        return without_slots(out, lambda slot: values[slot.index]) if self._numbered else out


class _Miss:
    """Says that a capture does not fit a call."""


MISS = _Miss()


def _of(array: Array, watch: Watch, recorder: Recorder) -> Find | Value:
    """Return how an array that was there before the call is found, or the value of a new one."""
    handle = watch.handles.get(id(array))
    return handle.find if handle is not None else Value(array._node, recorder)


def _returned(output: Find | Value, memory: Memory) -> Any:
    return Array(output.node(memory)) if isinstance(output, Value) else output()


# ---- numbers in results ----------------------------------------------------------------------------------------------


class Slot:
    """Stands in a result for a number that is computed at each call."""

    def __init__(self, symbol: Symbol) -> None:
        self.index, self.now = symbol.index, symbol.now


def with_slots(tree: Any) -> Any:
    """Return a result with slots for its Symbols."""
    return _replaced(tree, Symbol, Slot)


def without_slots(tree: Any, number: Callable[[Slot], Any]) -> Any:
    """Return a result with numbers for its slots."""
    return _replaced(tree, Slot, number)


def has_slots(tree: Any) -> bool:
    """Whether a result has slots."""
    found: list[Slot] = []
    _replaced(tree, Slot, found.append)
    return bool(found)


def _replaced(tree: Any, kind: type, by: Callable[[Any], Any]) -> Any:
    if type(tree) is kind:
        return by(tree)
    if type(tree) is dict:
        return {k: _replaced(v, kind, by) for k, v in tree.items()}
    if isinstance(tree, (list, tuple)):
        made = [_replaced(v, kind, by) for v in tree]
        return type(tree)(*made) if hasattr(tree, "_fields") else type(tree)(made)
    return tree
