"""One captured call of a function, in terms of arrays, and calling it again.

Here: `Capture`.
Not here: capturing (`compiling.py`, `capturing.py`), what is known of each array (`captured.py`), launches and memory
(`runtime/replay.py`).
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from polygrad.array.captured import Find, Given, Input, Memory, State, Value
from polygrad.array.capturing import Watch
from polygrad.array.environment import Environment
from polygrad.array.object import Array
from polygrad.array.slots import has_slots, without_slots
from polygrad.array.tree import flatten
from polygrad.graph.node import Node
from polygrad.runtime.memory import Storage
from polygrad.runtime.recorder import Recorder
from polygrad.runtime.replay import Replay
from polygrad.runtime.structure import ALWAYS

Undo = Callable[[], None]


class ArgumentOf:
    """Finds an argument of the call at hand; while the first one is captured, that one's."""

    def __init__(self, box: "list[Capture | None]", held: list[Array], number: int) -> None:
        self.box, self.held, self.number = box, held, number

    def __call__(self) -> Array | None:
        """Return the array."""
        capture = self.box[0]
        return self.held[self.number] if capture is None else capture.arrays[self.number]


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
        self._flat = type(result) in (tuple, list) and all(isinstance(x, Array) for x in result)
        self._kind = type(result)
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
        used = Counter(place.block for v in some if isinstance(v, Value) for _, _, place in v.parts)
        for s in self.states:
            s.settle(used, recorder)
        self.replay = Replay(recorder, set(used))
        self._swapping = [s for s in self.states if s.swaps]
        self._others = [s for s in self.states if not s.swaps]
        swapped = {s.block for s in self._swapping}
        self._writes = bool(self.states or self._grads)
        self._made = [block for block in self.replay.kept if block not in swapped]
        given = [(i, i.find.number if isinstance(i.find, ArgumentOf) else -1) for i in self.inputs]
        self._given = [(k, i.block) for i, k in given if k >= 0]
        self._found = [(i, *_looked_at(i)) for i, k in given if k < 0]
        for h in handles:  # the call that was captured is over: hold nothing of it
            h.array = h.node = None  # type: ignore[assignment]

    def call(
        self,
        arrays: Sequence[Array],
        numbers: Sequence[int | float],
        undone: list[Undo] | None = None,
        *,
        fitting: bool = False,
    ) -> Any:
        """Replay the call with other arguments; return `MISS`, with nothing done, if it does not fit.

        What undoes what was done on the host is put into *undone*, if it is given. If *fitting*, all arguments are
        plain arrays that are known to fit.
        """
        self.arrays, self.numbers = arrays, numbers
        replay = self.replay
        try:
            if not replay.current():
                return MISS
            found = self._arguments(fitting)
            if found is None or not self._find(found) or not self._has_gradients():
                return MISS
            made = {block: replay.take(block) for block in self._made}
            for state in self._swapping:
                if state.next is None:
                    state.next = Storage(replay.take(state.block), 0, state.strides, True)
                replay.handles[state.block] = state.next.buffer.handle  # type: ignore[union-attr]  # never empty
            ran = self.host.run()
            if ran is None:
                return MISS
            values, undo = ran
            try:
                with replay.locked():
                    replay.run(values)
                    out = self._finish(Memory(replay, found, made), values)
            except BaseException:
                for back in reversed(undo):
                    back()
                raise
            self.replays += 1
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

    def _arguments(self, fitting: bool) -> dict[int, Storage] | None:
        """Return the storages of the arguments, by block; None if they do not fit."""
        found: dict[int, Storage] = {}
        if fitting:
            for k, block in self._given:
                found[block] = storage = self.arrays[k]._node.storage
                self.replay.bind(block, storage)
            return found
        for i in self.inputs:
            if isinstance(i.find, ArgumentOf) and not i.fits(found):
                return None
        for block, storage in found.items():
            self.replay.bind(block, storage)
        return found

    def _find(self, found: dict[int, Storage]) -> bool:
        """Add the storages of the arrays that the function finds itself; return whether these fit."""
        handles, offsets = self.replay.handles, self.replay.offsets
        for one, find, kind, aval, device, mask, strides, block in self._found:
            array = find()
            if array is None:
                return False
            node = array._node
            if type(node) is kind and node.aval is aval and node.device == device and node.mask & ALWAYS == mask:
                storage = node.storage
                if storage is not None and storage.strides == strides and storage.buffer is not None:
                    found[block] = storage
                    handles[block], offsets[block] = storage.buffer.handle, storage.offset
                    continue
            those: dict[int, Storage] = {}
            if not one.fits(those):
                return False
            for place, storage in those.items():
                self.replay.bind(place, storage)
            found |= those
        return True

    def _has_gradients(self) -> bool:
        """Whether gradients are there, or not, where the function looked at them."""
        for find, wanted in self._grads_wanted:
            owner = find()
            if owner is None or (owner._grad is not None) is not wanted:
                return False
        return True

    def _finish(self, memory: Memory, values: Sequence[Any]) -> Any:
        """Give arrays their new values, and return the result; after a check that fails they have the old ones.

        The check comes last: the device works while all the rest is done.
        """
        outputs = [Array(o.node(memory)) if isinstance(o, Value) else o() for o in self._outputs]
        given, grads = self._write(memory) if self._writes else ([], [])
        if self.checked:
            try:
                self.replay.check()
            except BaseException:
                for state, (array, node, storage) in given:
                    state.take_back(array, node, storage)
                for owner, grad in grads:
                    owner._grad = grad
                raise
        if self._alone:
            return outputs[0]
        out = self._kind(outputs) if self._flat else self._rebuild(outputs)
        return without_slots(out, lambda slot: values[slot.index]) if self._numbered else out

    def _write(self, memory: Memory) -> tuple[list[tuple[State, Given]], list[tuple[Array, Array | None]]]:
        """Give arrays their new values and gradients; return what they had."""
        grads = [(find(), _returned(value, memory)) for find, value in self._grads]
        for s in self._others:  # before the inputs are let go of: what is written may be a view of one
            for _, _, place in s.value.parts:
                memory.storage(place)
        targets = [(s, s.find()) for s in self.states]
        memory.inputs.clear()  # what nobody else holds then may be written to by the next call
        given = [(state, state.give(array, memory)) for state, array in targets if array is not None]
        had = [(owner, owner._grad) for owner, _ in grads if owner is not None]
        for owner, grad in grads:
            if owner is not None:
                owner._grad = grad
        return given, had


class _Miss:
    """Says that a capture does not fit a call."""


MISS = _Miss()


def _looked_at(one: Input) -> tuple[Any, ...]:
    """Return what an array that the function finds is compared with first; arrays of two parts never fit that."""
    kind = None if one.pair else Node
    return one.find, kind, one.aval, one.device, one.mask, one.strides, one.block


def _of(array: Array, watch: Watch, recorder: Recorder) -> Find | Value:
    """Return how an array that was there before the call is found, or the value of a new one."""
    handle = watch.handles.get(id(array))
    return handle.find if handle is not None else Value(array._node, recorder)


def _returned(output: Find | Value | None, memory: Memory) -> Array | None:
    if output is None:
        return None
    return Array(output.node(memory)) if isinstance(output, Value) else output()
