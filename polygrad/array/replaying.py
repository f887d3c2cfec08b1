"""One captured call of a function, in terms of arrays, and calling it again.

Here: `Capture`.
Not here: capturing (`compiling.py`, `capturing.py`), what is known of each array (`captured.py`), how arrays are found
(`shortcut.py`, `finding.py`) and results made (`results.py`), launches and memory (`runtime/replay.py`).
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from polygrad.array.captured import Find, Given, Input, Memory, State, Value
from polygrad.array.capturing import Watch
from polygrad.array.environment import Environment
from polygrad.array.finding import finder
from polygrad.array.object import Array
from polygrad.array.results import Room, arrays_of, new_results
from polygrad.array.slots import has_slots, without_slots
from polygrad.array.tree import flatten
from polygrad.graph.node import Node
from polygrad.runtime.memory import Buffer, Storage
from polygrad.runtime.overwriting import overwrites
from polygrad.runtime.recorder import Recorder
from polygrad.runtime.replay import Replay

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
        read = dict(zip([h for h in handles if h.node is not None], self.inputs, strict=True))
        self.states = [State(h, Value(h.array._node, recorder), read.get(h)) for h in handles if h.written]
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
        wanted = {s.block: s.old for s in self.states if s.swaps and s.old >= 0}
        self.replay = Replay(recorder, set(used), overwrites(recorder, wanted, used))
        makers = {new: one for one in self.replay.overwrites for new in one.blocks}
        for s in self.states:
            s.over = makers.get(s.block)
        self._over = [(one, [s for s in self.states if s.over is one]) for one in self.replay.overwrites]
        self._swapping = [s for s in self.states if s.swaps]
        self._others = [s for s in self.states if not s.swaps]
        swapped = {s.block for s in self._swapping}
        self._made = [block for block in self.replay.kept if block not in swapped]
        self._room = Room(self.replay, self._made)
        self._results = new_results(self._outputs, self._made, recorder.blocks)
        self._writes = bool(self.states or self._grads)
        given = [(i, i.find.number if isinstance(i.find, ArgumentOf) else -1) for i in self.inputs]
        self._given = [(k, i.block) for i, k in given if k >= 0]
        self._find = finder([i for i, k in given if k < 0], self.replay)
        for h in handles:  # the call that was captured is over: hold nothing of it
            h.array = h.node = None  # type: ignore[assignment]

    def call(
        self,
        arrays: Sequence[Array],
        numbers: Sequence[int | float],
        undone: list[Undo] | None = None,
        *,
        storages: list[Storage] | None = None,
    ) -> Any:
        """Replay the call with other arguments; return `MISS`, with nothing done, if it does not fit.

        What undoes what was done on the host is put into *undone*, if it is given. If all arguments are plain arrays
        that are known to fit, *storages* are theirs; the list is emptied.
        """
        self.arrays, self.numbers = arrays, numbers
        replay = self.replay
        try:
            if not replay.current():
                return MISS
            found = self._arguments() if storages is None else self._fitting(storages)
            if found is None or not self._find(found):
                return MISS
            if self._grads_wanted and not self._has_gradients():
                return MISS
            made = self._room.take()
            if self._swapping:
                self._choose()
            ran = self.host.run()
            if ran is None:
                return MISS
            values, undo = ran
            try:
                with replay.locked():
                    replay.run(values)
                    out = self._finish(found, made, values)
            except BaseException as error:
                for back in reversed(undo):
                    back()
                if replay.overwritten:
                    error.add_note("some arrays had their new values by then, and others not: load what was saved last")
                raise
            self.replays += 1
            if self.replays == 1:
                replay.make_room()
            if self.after:
                undo += [do() for do in self.after]
            if undone is not None:
                undone += undo
            return out
        finally:
            self.arrays = self.numbers = ()

    def _choose(self) -> None:
        """Choose where arrays get their new values: over the old ones, or in other memory."""
        replay = self.replay
        for one, states in self._over:
            one.active = not one.refused and all(s.alone() for s in states)
        for state in self._swapping:
            if state.over is not None and state.over.active:
                state.next = None
                continue
            if state.next is None:
                state.next = Storage(replay.take(state.block), 0, state.strides, True)
            replay.handles[state.block] = state.next.buffer.handle  # type: ignore[union-attr]  # never empty

    def written(self) -> list[tuple[Array, Node, Array | None]]:
        """Return the arrays that a call gives new values or gradients, with those that they have."""
        finds = dict.fromkeys([*[s.find for s in self.states], *[find for find, _ in self._grads]])
        found = [a for a in (find() for find in finds) if a is not None]
        return [(a, a._node, a._grad) for a in {id(a): a for a in found}.values()]

    def _fitting(self, storages: list[Storage]) -> dict[int, Storage]:
        """Take the storages of arguments that fit; return them by block."""
        found: dict[int, Storage] = {}
        handles, offsets = self.replay.handles, self.replay.offsets
        for k, block in self._given:
            found[block] = storage = storages[k]
            if storage.buffer is not None:
                handles[block], offsets[block] = storage.buffer.handle, storage.offset
        storages.clear()  # who holds a value is counted
        return found

    def _arguments(self) -> dict[int, Storage] | None:
        """Return the storages of the arguments, by block; None if they do not fit."""
        found: dict[int, Storage] = {}
        for i in self.inputs:
            if isinstance(i.find, ArgumentOf) and not i.fits(found):
                return None
        for block, storage in found.items():
            self.replay.bind(block, storage)
        return found

    def _has_gradients(self) -> bool:
        """Whether gradients are there, or not, where the function looked at them."""
        for find, wanted in self._grads_wanted:
            owner = find()
            if owner is None or (owner._grad is not None) is not wanted:
                return False
        return True

    def _finish(self, found: dict[int, Storage], made: list[Buffer], values: Sequence[Any]) -> Any:
        """Give arrays their new values, and return the result; after a check that fails they have the old ones.

        The check comes last: the device works while all the rest is done.
        """
        results = self._results
        given: list[tuple[State, Given]] = []
        grads: list[tuple[Array, Array | None]] = []
        if results is not None:
            outputs: list[Any] = arrays_of(results, found, made)
        if results is None or self._writes:
            memory = Memory(self.replay, found, dict(zip(self._made, made, strict=True)))
            if results is None:
                outputs = [Array(o.node(memory)) if isinstance(o, Value) else o() for o in self._outputs]
            given, grads = self._write(memory)
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
        memory.inputs.clear()  # what nobody else holds then may be written to by the next call
        given, had = [], []
        for s in self.states:
            if s.over is None or not s.over.active:
                array = s.find()
                if array is not None:
                    given.append((s, s.give(array, memory)))
        for owner, grad in grads:
            if owner is not None:
                had.append((owner, owner._grad))
                owner._grad = grad
        return given, had


class _Miss:
    """Says that a capture does not fit a call."""


MISS = _Miss()


def _of(array: Array, watch: Watch, recorder: Recorder) -> Find | Value:
    """Return how an array that was there before the call is found, or the value of a new one."""
    handle = watch.handles.get(id(array))
    return handle.find if handle is not None else Value(array._node, recorder)


def _returned(output: Find | Value | None, memory: Memory) -> Array | None:
    if output is None:
        return None
    return Array(output.node(memory)) if isinstance(output, Value) else output()
