"""Launching a recorded call again, without the graph.

Here: `Replay`. Memory that is made and let go within the call is planned once and kept; what outlives the call is new
each time, or the memory of the call before, if nobody else holds it.
Not here: writing calls down (`recorder.py`), what makes each launch (`bound_calls.py`), arrays, the host's part.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any

from polygrad import shapes
from polygrad.driver.ir import ITEMSIZE
from polygrad.driver.types import Ref
from polygrad.runtime.bound_calls import Binding
from polygrad.runtime.bundles import Bundles, Launch, Place
from polygrad.runtime.devices import State
from polygrad.runtime.memory import Buffer, Storage
from polygrad.runtime.overwriting import Overwrite
from polygrad.runtime.packing import packed
from polygrad.runtime.recorder import MADE, LibraryCall, Recorder, blocks_of

FREED = 1 << 22  # bytes: less memory that lies free is kept for what comes


def _mark_of(state: State) -> Launch:
    """Return what makes a mark on a device, as a launch."""
    return Launch(lambda _numbers: state.mark(), state, (), lambda _capturing: True, None)


class Replay:
    """The launches of a recorded call.

    Parameters
    ----------
    recorder : Recorder
        Of the call.
    kept : set of int
        Blocks that are made in the call and outlive it.
    overwrites : list of Overwrite
        Launches that may write over what they read; in which calls they do, those say who hold arrays.
    """

    def __init__(self, recorder: Recorder, kept: set[int], overwrites: Sequence[Overwrite] = ()) -> None:
        self.states: tuple[State, ...] = tuple(recorder.states.values())
        self.blocks = recorder.blocks
        self.kept = sorted(k for k in kept if recorder.blocks[k].kind == MADE)
        self.overwrites = list(overwrites)
        self.overwritten = False  # whether the call at hand has, so far
        self._over = {new for one in overwrites for new in one.blocks}
        self.fused = sum(type(c) is not LibraryCall for c in recorder.calls)
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
        takes = {k: recorder.states[recorder.blocks[k].device].pool.take for k in self.kept}
        self._takes = {k: (take, recorder.blocks[k].nbytes) for k, take in takes.items()}
        binding = Binding(self.handles, self.offsets, self._starts, fixed)
        self._sites = binding.sites
        launches = [binding.launch(call) for call in recorder.calls]
        for one in overwrites:
            launches[one.position] = self._either(launches[one.position], binding.launch(one.call), one)
        self._looks = recorder.checked  # for bad indices, before an old value is gone
        self._marked = self._mark(recorder, launches) if recorder.checked else ()
        self._launches = [launch.make for launch in launches]
        self._bundles: Bundles | None = None
        if len(launches) > 1 and any(s.info.features.capture for s in self.states):
            places = self._places(recorder, fixed)
            self._bundles = Bundles(launches, self.handles, self.offsets, places, self._guests)
            self._bundles.overwrites = self.overwrites

    @property
    def private(self) -> int:
        """Bytes of the memory that is kept for what does not outlive a call."""
        return self._private + (0 if self._bundles is None else self._bundles.nbytes)

    @property
    def over(self) -> int:
        """How many arrays may get new values in the place of old ones, if nobody holds these."""
        return sum(len(one.blocks) for one in self.overwrites if not one.refused)

    def described(self) -> str:
        """Return in a few words how the launches go to a device that can take many at once; '' if none can."""
        return "" if self._bundles is None else self._bundles.described()

    def _mark(self, recorder: Recorder, launches: list[Launch]) -> Sequence[State]:
        """Put a mark after each device's last launch that may find a bad index; return the devices that take marks."""
        last = {recorder.calls[k].state: k for k in recorder.looks}
        taking = [state for state in last if state.info.features.notices]
        for state in sorted(taking, key=lambda s: -last[s]):
            launches.insert(last[state] + 1, _mark_of(state))
        return taking

    def _places(self, recorder: Recorder, fixed: list[bool]) -> list[Place]:
        """Return the memory that launches use and that may be elsewhere at the next call."""
        found, guests = [], {block for block, _ in self._guests}
        for block in dict.fromkeys(b for call in recorder.calls for b in blocks_of(call)):
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
        kept, launches = set(self.kept), [blocks_of(call) for call in recorder.calls]
        for state in self.states:
            sizes = {
                k: block.nbytes
                for k, block in enumerate(recorder.blocks)
                if block.kind == MADE and k not in kept and block.device == state.name
            }
            hosts = {
                k: recorder.blocks[k].nbytes
                for k in self.kept
                if recorder.blocks[k].device == state.name and k not in self._over
            }
            found = packed(launches, sizes, hosts)
            made = [state.pool.take(nbytes, nbytes) for nbytes in found.buffers]
            self._buffers += made
            for block, (at, start) in found.places.items():
                self.handles[block], self._starts[block] = made[at].handle, start
            for block, (host, start) in found.guests.items():
                self._guests.append((block, host))
                self._starts[block] = start

    def _either(self, apart: Launch, over: Launch, one: Overwrite) -> Launch:
        """Return a launch that writes over what it reads in the calls in which it may."""
        looks = bool(self._sites)

        def make(numbers: Sequence[Any]) -> None:
            if not one.active:
                apart.make(numbers)
                return
            if looks and self._looks:
                self.check()
            self.overwritten = True
            over.make(numbers)

        return apart._replace(make=make)

    def current(self) -> bool:
        """Whether the devices are still those that the call was recorded on."""
        for s in self.states:  # noqa: SIM110  a generator costs twice as much
            if s.pool.closed:
                return False
        return True

    def bind(self, block: int, storage: Storage) -> None:
        """Say which memory an input is in this call."""
        if storage.buffer is not None:
            self.handles[block] = storage.buffer.handle
            self.offsets[block] = storage.offset

    def take(self, block: int) -> Buffer:
        """Return new memory for what outlives this call."""
        take, nbytes = self._takes[block]
        made = take(nbytes, nbytes)
        self.handles[block] = made.handle
        return made

    def make_room(self) -> None:
        """Give back what lies free after the first replay: old and intermediate values of the captured call."""
        for s in self.states:
            found = s.pool.stats()
            if found["held"] - found["used"] >= FREED:
                s.pool.release_free()

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
        for block, host in self._guests:
            self.handles[block] = self.handles[host]
        self.overwritten = False
        over = [one for one in self.overwrites if one.active] if self.overwrites else ()
        for one in over:
            for new, old in one.blocks.items():
                self.handles[new] = self.handles[old]
        if over and self._looks and not self._sites:
            self.check()  # only launches of before this call may have met a bad index
        if self._sites:
            for state, sites in self._sites.items():
                state.expect(sites)
        if self._bundles is None or True in [s.device.watched for s in self.states]:
            for launch in self._launches:
                launch(numbers)
        else:
            self._bundles.run(numbers)
        for state in self._marked:
            state.marked()
        if self.states:
            self.states[0].fused += self.fused
            self.states[0].ops += self.ops

    def check(self) -> None:
        """Wait for the launches that look at indices; raise OutOfBounds if one has met a bad one."""
        for s in self.states:
            s.check()
