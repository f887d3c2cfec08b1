"""Launching a recorded call again, without the graph.

Here: `Replay`. Memory that is made and let go within the call is planned once and kept; what outlives the call is new
each time, or the memory of the call before, if nobody else holds it.
Not here: writing calls down (`recorder.py`), arrays, what a call does on the host.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from polygrad.driver.types import Ref
from polygrad.runtime.devices import State
from polygrad.runtime.memory import Buffer, Storage
from polygrad.runtime.recorder import MADE, Call, FusedCall, LibraryCall, Recorder
from polygrad.symbols import Symbol


class Replay:
    """The launches of a recorded call.

    Parameters
    ----------
    recorder : Recorder
        Of the call.
    kept : set of int
        Blocks that are made in the call and outlive it.

    Attributes
    ----------
    private : int
        Bytes of the memory that is kept for what does not outlive a call.
    """

    def __init__(self, recorder: Recorder, kept: set[int]) -> None:
        self.states: tuple[State, ...] = tuple(recorder.states.values())
        self.blocks = recorder.blocks
        self.kept = sorted(k for k in kept if recorder.blocks[k].kind == MADE)
        self.fused = sum(type(c) is FusedCall for c in recorder.calls)
        self.ops = len(recorder.calls) - self.fused
        self.constants = dict(recorder.constants)  # by block
        self._handles: list[Any] = [None] * len(recorder.blocks)
        self._offsets = [0] * len(recorder.blocks)
        for block, storage in recorder.constants.items():
            if storage.buffer is not None:
                self._handles[block], self._offsets[block] = storage.buffer.handle, storage.offset
        self._buffers: list[Buffer] = []
        self._plan(recorder)
        self.private = sum(b.nbytes for b in self._buffers)
        fixed = [b.kind == MADE and k not in kept for k, b in enumerate(recorder.blocks)]
        for block in recorder.constants:
            fixed[block] = True
        self._pools = {k: recorder.states[recorder.blocks[k].device].pool for k in self.kept}
        self._launches = [self._bound(call, fixed) for call in recorder.calls]

    def _plan(self, recorder: Recorder) -> None:
        """Give memory to the blocks that do not outlive the call: one buffer to several that are needed in turn."""
        last: dict[int, int] = {}
        for k, call in enumerate(recorder.calls):
            for block in _blocks(call):
                last[block] = k
        free: dict[tuple[str, int], list[Buffer]] = {}
        here: dict[int, Buffer] = {}
        kept = set(self.kept)
        for k, call in enumerate(recorder.calls):
            for block in dict.fromkeys(_blocks(call)):
                made = recorder.blocks[block]
                if made.kind == MADE and block not in kept and block not in here:
                    spare = free.get((made.device, made.nbytes))
                    if spare:
                        here[block] = spare.pop()
                    else:
                        here[block] = recorder.states[made.device].pool.take(made.nbytes, made.nbytes)
                        self._buffers.append(here[block])
                    self._handles[block] = here[block].handle
            for block in dict.fromkeys(_blocks(call)):
                if block in here and last[block] == k:
                    made = recorder.blocks[block]
                    free.setdefault((made.device, made.nbytes), []).append(here[block])

    def _bound(self, call: Call, fixed: Sequence[bool]) -> Callable[[Sequence[Any]], None]:
        return self._bound_fused(call, fixed) if isinstance(call, FusedCall) else self._bound_library(call, fixed)

    def _bound_fused(self, call: FusedCall, fixed: Sequence[bool]) -> Callable[[Sequence[Any]], None]:
        handles, offsets, launch, state = self._handles, self._offsets, call.launch, call.state
        blocks, status, site = call.blocks, call.status, call.site
        symbols = [(k, v.index) for k, v in enumerate(call.values) if type(v) is Symbol]
        plain = [v.now if type(v) is Symbol else v for v in call.values]
        ints = list(call.ints)
        for at, block in call.shifts:
            if fixed[block]:
                ints[at] += offsets[block]
        fixed_ints = tuple(ints)
        shifts = [(at, block) for at, block in call.shifts if not fixed[block]]

        def general(numbers: Sequence[Any]) -> None:
            where: tuple[int, ...] = fixed_ints
            if shifts:
                moved = list(fixed_ints)
                for at, block in shifts:
                    moved[at] += offsets[block]
                where = tuple(moved)
            values = plain
            if symbols:
                values = list(plain)
                for k, index in symbols:
                    values[k] = numbers[index]
            memory = [handles[b] for b in blocks]
            if status >= 0:
                memory[status] = state.status()
                where = (*where, state.tag(site))
            launch(memory, where, values)

        if status >= 0 or symbols or shifts or not all(fixed[b] for b in blocks):
            return general
        memory = [handles[b] for b in blocks]
        return lambda _numbers: launch(memory, fixed_ints, plain)

    def _bound_library(self, call: LibraryCall, fixed: Sequence[bool]) -> Callable[[Sequence[Any]], None]:
        handles, offsets, state, op, site = self._handles, self._offsets, call.state, call.op, call.site
        launch = state.device.launch_op
        symbols = [(k, v.index) for k, v in call.attrs.items() if type(v) is Symbol]
        plain = {k: v.now if type(v) is Symbol else v for k, v in call.attrs.items()}

        def bound(ref: Ref) -> Ref:
            return ref._replace(handle=handles[ref.handle], offset=ref.offset + offsets[ref.handle])

        fixed_outs = [bound(r) if fixed[r.handle] else None for r in call.outs]
        fixed_ins = [bound(r) if fixed[r.handle] else None for r in call.ins]

        def general(numbers: Sequence[Any]) -> None:
            attrs = dict(plain)
            for k, index in symbols:
                attrs[k] = numbers[index]
            if site is not None:
                attrs["status"], attrs["tag"] = state.status(), state.tag(site)
            outs = [f or bound(r) for f, r in zip(fixed_outs, call.outs, strict=True)]
            launch(op, outs, [f or bound(r) for f, r in zip(fixed_ins, call.ins, strict=True)], attrs)

        return general

    def current(self) -> bool:
        """Whether the devices are still those that the call was recorded on."""
        return all(not s.pool.closed for s in self.states)

    def bind(self, block: int, storage: Storage) -> None:
        """Say which memory an input is in this call."""
        if storage.buffer is not None:
            self._handles[block] = storage.buffer.handle
            self._offsets[block] = storage.offset

    def take(self, block: int, spare: Buffer | None) -> Buffer:
        """Return the memory of what outlives this call: *spare*, or new."""
        if spare is None:
            nbytes = self.blocks[block].nbytes
            spare = self._pools[block].take(nbytes, nbytes)
        self._handles[block] = spare.handle
        return spare

    def run(self, numbers: Sequence[Any], *, check: bool) -> None:
        """Launch everything.

        Raises
        ------
        OutOfBounds
            If *check*, and a launch met a bad index.
        """
        if len(self.states) == 1:
            with self.states[0].lock:
                self._run(numbers, check)
            return
        with ExitStack() as locks:
            for s in self.states:
                locks.enter_context(s.lock)
            self._run(numbers, check)

    def _run(self, numbers: Sequence[Any], check: bool) -> None:
        for launch in self._launches:
            launch(numbers)
        if self.states:
            self.states[0].fused += self.fused
            self.states[0].ops += self.ops
        if check:
            for s in self.states:
                s.check()


def _blocks(call: Call) -> list[int]:
    if isinstance(call, FusedCall):
        return [b for b in call.blocks if b >= 0]
    return [r.handle for r in (*call.outs, *call.ins)]
