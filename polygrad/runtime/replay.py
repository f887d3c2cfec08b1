"""Launching a recorded call again, without the graph.

Here: `Replay`. Memory that is made and let go within the call is planned once and kept; what outlives the call is new
each time, or the memory of the call before, if nobody else holds it.
Not here: writing calls down (`recorder.py`), arrays, what a call does on the host.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any

from polygrad import shapes
from polygrad.driver.bundles import Capturing
from polygrad.driver.ir import ITEMSIZE
from polygrad.driver.types import Ref
from polygrad.runtime.bundles import Bundles, Launch, Place
from polygrad.runtime.devices import State
from polygrad.runtime.memory import Buffer, Storage
from polygrad.runtime.packing import packed
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
    """

    def __init__(self, recorder: Recorder, kept: set[int]) -> None:
        self.states: tuple[State, ...] = tuple(recorder.states.values())
        self.blocks = recorder.blocks
        self.kept = sorted(k for k in kept if recorder.blocks[k].kind == MADE)
        self.fused = sum(type(c) is FusedCall for c in recorder.calls)
        self.ops = len(recorder.calls) - self.fused
        self.constants = dict(recorder.constants)  # by block
        self.handles: list[Any] = [None] * len(recorder.blocks)
        self.offsets = [0] * len(recorder.blocks)
        for block, storage in recorder.constants.items():
            if storage.buffer is not None:
                self.handles[block], self.offsets[block] = storage.buffer.handle, storage.offset
        self._buffers: list[Buffer] = []
        self._guests: list[tuple[int, int]] = []  # blocks that lie in others, which outlive the call
        self._starts = [0] * len(recorder.blocks)  # bytes from the beginning of a buffer
        self._plan(recorder)
        self._private = sum(b.nbytes for b in self._buffers)
        fixed = [b.kind == MADE and k not in kept for k, b in enumerate(recorder.blocks)]
        for block in recorder.constants:
            fixed[block] = True
        for block, _ in self._guests:
            fixed[block] = False
        self._pools = {k: recorder.states[recorder.blocks[k].device].pool for k in self.kept}
        self._statuses: dict[State, int] = {}  # the blocks of status words
        self._sites: dict[State, dict[int, Any]] = {}  # what the numbers of checked launches stand for
        launches = [self._bound(call, fixed) for call in recorder.calls]
        self._launches = [launch.make for launch in launches]
        self._bundles: Bundles | None = None
        if len(launches) > 1 and any(s.info.features.capture for s in self.states):
            places = self._places(recorder, fixed)
            self._bundles = Bundles(launches, self.handles, self.offsets, places, self._guests)

    @property
    def private(self) -> int:
        """Bytes of the memory that is kept for what does not outlive a call."""
        return self._private + (0 if self._bundles is None else self._bundles.nbytes)

    def described(self) -> str:
        """Return in a few words how the launches go to a device that can take many at once; '' if none can."""
        return "" if self._bundles is None else self._bundles.described()

    def _places(self, recorder: Recorder, fixed: list[bool]) -> list[Place]:
        """Return the memory that launches use and that may be elsewhere at the next call."""
        found, guests = [], {block for block, _ in self._guests}
        for block in dict.fromkeys(b for call in recorder.calls for b in _blocks(call)):
            if fixed[block] or block in guests:
                continue
            kind, device, nbytes = recorder.blocks[block]
            if kind == MADE:
                ref: Ref | None = Ref(block, 0, (nbytes // 4,), (1,), "int32")
            else:
                ref = recorder.whole.get(block)
                nbytes = 0 if ref is None else shapes.size(ref.shape) * ITEMSIZE[ref.dtype]
            found.append(Place(block, recorder.states[device], kind == MADE, ref, nbytes))
        return found

    def _plan(self, recorder: Recorder) -> None:
        """Give memory to the blocks that do not outlive the call."""
        kept, launches = set(self.kept), [_blocks(call) for call in recorder.calls]
        for state in self.states:
            sizes = {
                k: block.nbytes
                for k, block in enumerate(recorder.blocks)
                if block.kind == MADE and k not in kept and block.device == state.name
            }
            hosts = {k: recorder.blocks[k].nbytes for k in self.kept if recorder.blocks[k].device == state.name}
            found = packed(launches, sizes, hosts)
            made = [state.pool.take(nbytes, nbytes) for nbytes in found.buffers]
            self._buffers += made
            for block, (at, start) in found.places.items():
                self.handles[block], self._starts[block] = made[at].handle, start
            for block, (host, start) in found.guests.items():
                self._guests.append((block, host))
                self._starts[block] = start

    def _bound(self, call: Call, fixed: list[bool]) -> Launch:
        if call.site is not None and (not isinstance(call, FusedCall) or call.status >= 0):
            number = call.state.reserve()
            self._sites.setdefault(call.state, {})[number] = call.site
        else:
            number = 0
        if isinstance(call, FusedCall):
            return self._bound_fused(call, fixed, number)
        return self._bound_library(call, fixed, number)

    def _bound_fused(self, call: FusedCall, fixed: list[bool], number: int) -> Launch:
        handles, offsets, launch = self.handles, self.offsets, call.launch
        symbols = [(k, v.index) for k, v in enumerate(call.values) if type(v) is Symbol]
        plain = [v.now if type(v) is Symbol else v for v in call.values]
        ints = list(call.ints)
        for at, block in call.shifts:
            if fixed[block]:
                ints[at] += offsets[block]
        for at, buffer, itemsize in call.places:
            if call.blocks[buffer] >= 0:
                ints[at] += self._starts[call.blocks[buffer]] // itemsize
        fixed_ints = (*ints, number) if number else tuple(ints)
        shifts = [(at, block) for at, block in call.shifts if not fixed[block]]
        blocks = list(call.blocks)
        if call.status >= 0:
            blocks[call.status] = self._status(call.state, fixed)
        memory = [handles[b] for b in blocks]

        def scalars(numbers: Sequence[Any]) -> Sequence[Any]:
            values = list(plain)
            for k, index in symbols:
                values[k] = numbers[index]
            return values

        def general(numbers: Sequence[Any]) -> None:
            where: tuple[int, ...] = fixed_ints
            if shifts:
                moved = list(fixed_ints)
                for at, block in shifts:
                    moved[at] += offsets[block]
                where = tuple(moved)
            launch([handles[b] for b in blocks], where, scalars(numbers))

        def moving(_numbers: Sequence[Any]) -> None:
            launch([handles[b] for b in blocks], fixed_ints, plain)

        def still(_numbers: Sequence[Any]) -> None:
            launch(memory, fixed_ints, plain)

        make = general if symbols or shifts else still if all(fixed[b] for b in blocks) else moving
        return Launch(make, call.state, tuple([k for _, k in symbols]), lambda _capturing: True, scalars)

    def _status(self, state: State, fixed: list[bool]) -> int:
        """Return the block that stands for a device's status word."""
        block = self._statuses.get(state)
        if block is None:
            block = self._statuses[state] = len(self.handles)
            self.handles.append(state.status())
            self.offsets.append(0)
            fixed.append(True)
        return block

    def _bound_library(self, call: LibraryCall, fixed: list[bool], number: int) -> Launch:
        handles, offsets, starts = self.handles, self.offsets, self._starts
        op, launch = call.op, call.state.device.launch_op
        symbols = [(k, v.index) for k, v in call.attrs.items() if type(v) is Symbol]
        plain = {k: v.now if type(v) is Symbol else v for k, v in call.attrs.items()}
        if number:
            plain["status"], plain["tag"] = call.state.status(), number

        def bound(ref: Ref) -> Ref:
            start = starts[ref.handle] // ITEMSIZE[ref.dtype]
            return ref._replace(handle=handles[ref.handle], offset=ref.offset + offsets[ref.handle] + start)

        fixed_outs = [bound(r) if fixed[r.handle] else None for r in call.outs]
        fixed_ins = [bound(r) if fixed[r.handle] else None for r in call.ins]

        def operands() -> tuple[list[Ref], list[Ref]]:
            outs = [f or bound(r) for f, r in zip(fixed_outs, call.outs, strict=True)]
            return outs, [f or bound(r) for f, r in zip(fixed_ins, call.ins, strict=True)]

        def general(numbers: Sequence[Any]) -> None:
            attrs = plain
            if symbols:
                attrs = dict(plain)
                for k, index in symbols:
                    attrs[k] = numbers[index]
            outs, ins = operands()
            launch(op, outs, ins, attrs)

        def taken(capturing: Capturing) -> bool:
            outs, ins = operands()
            return capturing.takes(op, outs, ins, plain)

        return Launch(general, call.state, tuple([k for _, k in symbols]), taken, None)

    def current(self) -> bool:
        """Whether the devices are still those that the call was recorded on."""
        return True not in [s.pool.closed for s in self.states]

    def bind(self, block: int, storage: Storage) -> None:
        """Say which memory an input is in this call."""
        if storage.buffer is not None:
            self.handles[block] = storage.buffer.handle
            self.offsets[block] = storage.offset

    def take(self, block: int) -> Buffer:
        """Return new memory for what outlives this call."""
        nbytes = self.blocks[block].nbytes
        made = self._pools[block].take(nbytes, nbytes)
        self.handles[block] = made.handle
        return made

    def locked(self) -> AbstractContextManager[Any]:
        """Return a context in which no other thread computes on the devices of the call."""
        if len(self.states) == 1:
            return self.states[0].lock
        locks = ExitStack()
        for s in self.states:
            locks.enter_context(s.lock)
        return locks

    def run(self, numbers: Sequence[Any]) -> None:
        """Launch everything, within `locked`."""
        for state, sites in self._sites.items():
            state.expect(sites)
        for block, host in self._guests:
            self.handles[block] = self.handles[host]
        if self._bundles is None or True in [s.device.watched for s in self.states]:
            for launch in self._launches:
                launch(numbers)
        else:
            self._bundles.run(numbers)
        if self.states:
            self.states[0].fused += self.fused
            self.states[0].ops += self.ops

    def check(self) -> None:
        """Wait for the launches if any of them looks at indices; raise OutOfBounds if one has met a bad one."""
        for s in self.states:
            s.check()


def _blocks(call: Call) -> list[int]:
    if isinstance(call, FusedCall):
        return [b for b in call.blocks if b >= 0]
    return [r.handle for r in (*call.outs, *call.ins)]
