"""Replays on devices that can write launches down: many launches go to the device as one.

Here: `Bundles`, which decides what goes together, for which memory it was written down, and what to do when the memory
is another at each call.
Not here: what a launch is (`replay.py`), how a driver writes launches down (`polygrad.driver.bundles`).

A bundle is bound to the memory that its launches name. What a step writes at every call changes between two blocks, so
there are two bundles, told apart by addresses. Memory that is elsewhere at every call (a batch, a result that the user
keeps) is brought to, or from, memory that stays; if that would be much to copy, launches stay as they are. Numbers that
may be others at the next call are given to the bundle before it is launched.
"""

import functools
import operator
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from polygrad.driver.bundles import Bundle, Capturing
from polygrad.driver.types import Ref
from polygrad.errors import CompileWarning, DeviceLost, OutOfMemory, PolygradError
from polygrad.runtime.devices import State
from polygrad.runtime.memory import Buffer, size_class
from polygrad.runtime.overwriting import Overwrite

MEETINGS = 8  # places of the memory that are remembered, and bundles that are kept
WRITTEN, SELDOM = 64, 32  # times that launches are written down; beyond, once in so many calls: it costs a hundred
AHEAD = 4  # launches that go ahead as a bundle of their own, while the numbers of those after them are changed
COPIED = 16 << 20  # bytes that are brought to memory that stays, at most

Step = Callable[[Sequence[Any]], None]
Key = tuple[Any, ...]


class Launch(NamedTuple):
    """One launch of a replay: `make` it with the numbers of a call; `taken` says if it can be written down."""

    make: Step
    state: State
    symbols: tuple[int, ...]  # the numbers of a call that it takes
    taken: Callable[[Capturing], bool]
    scalars: Callable[[Sequence[Any]], Sequence[Any]] | None  # of a kernel, with the numbers of a call


class Place(NamedTuple):
    """Memory of a replay that may be elsewhere at the next call."""

    block: int
    state: State
    written: bool  # made by the replay, and not an operand of it
    ref: Ref | None  # all of it, with the block for a handle; None if it cannot be copied
    nbytes: int


Settled = list[tuple[Place, Buffer]]


class Segment:
    """Launches that were written down together."""

    def __init__(self, bundle: Bundle, varying: Sequence[Launch], numbers: Sequence[Any], state: State) -> None:
        self._bundle, self._varying = bundle, varying
        self._picks = [operator.itemgetter(*launch.symbols, launch.symbols[0]) for launch in varying]  # never one alone
        self._last = [pick(numbers) for pick in self._picks]
        weakref.finalize(self, _close, bundle, state).atexit = False

    def __call__(self, numbers: Sequence[Any]) -> None:
        """Launch them, with the numbers of this call."""
        last = self._last
        for k, pick in enumerate(self._picks):
            now = pick(numbers)
            if now != last[k] or 0 in now:  # -0.0 equals 0.0
                launch = self._varying[k]
                scalars = None if launch.scalars is None else launch.scalars(numbers)
                self._bundle.change(k, functools.partial(launch.make, numbers), scalars)
                last[k] = now
        self._bundle.launch()


class Bundles:
    """The launches of one replay, written down for the memory that was met more than once.

    Parameters
    ----------
    launches : sequence of Launch
    handles, offsets : list
        Where each block is in the call at hand.
    places : sequence of Place
        The blocks that may be elsewhere at the next call.
    guests : list of (int, int)
        Blocks that lie in others, and these.

    Attributes
    ----------
    nbytes : int
        Of the memory that stays, which was taken for what is copied.
    refused : str
        Why launches are made one by one, if they are.
    overwrites : sequence of Overwrite
        Launches that may write over what they read, as long as what they use is not settled.
    """

    def __init__(
        self,
        launches: list[Launch],
        handles: list[Any],
        offsets: list[int],
        places: list[Place],
        guests: list[tuple[int, int]],
    ) -> None:
        self._launches, self._handles, self._offsets, self._guests = launches, handles, offsets, guests
        self._plain: list[Step] = [launch.make for launch in launches]
        self._capturing = {launch.state: launch.state.device.capture() for launch in launches}
        self._ready: dict[Key, list[Step]] = {}
        self._met: list[Key] = []
        self._calls = self._written = self.nbytes = 0
        self.refused = "" if any(self._capturing.values()) else "no device writes launches down"
        self._places = places
        self._settled: Settled = []
        self.overwrites: Sequence[Overwrite] = ()
        self._follow()

    def _follow(self) -> None:
        """Tell memory apart by the places that are not settled."""
        settled = {place.block for place, _ in self._settled}
        self._followed = [p for p in self._places if p.block not in settled]
        blocks = [p.block for p in self._followed]
        self._where = operator.itemgetter(*blocks, blocks[0]) if blocks else lambda _: ()  # two at least give a tuple

    def run(self, numbers: Sequence[Any]) -> None:
        """Make all launches."""
        self._calls += 1
        settled = self._settled  # what happens meanwhile makes another list
        if settled:
            places = [(self._handles[p.block], self._offsets[p.block]) for p, _ in settled]
            self._enter(settled, places)
            self._run(numbers)
            self._leave(settled, places)
        else:
            self._run(numbers)

    def _run(self, numbers: Sequence[Any]) -> None:
        key = (self._where(self._handles), self._where(self._offsets))
        steps = self._ready.get(key)
        if steps is None:
            steps = self._plain if self.refused else self._meet(key, numbers)
        for step in steps:
            step(numbers)

    def _enter(self, settled: Settled, places: list[tuple[Any, int]]) -> None:
        """Bring operands that are settled to where they stay."""
        for (place, buffer), (handle, offset) in zip(settled, places, strict=True):
            if not place.written:
                _copy(place, buffer.handle, 0, handle, offset)
            self._handles[place.block], self._offsets[place.block] = buffer.handle, 0
        for block, host in self._guests:
            self._handles[block] = self._handles[host]

    def _leave(self, settled: Settled, places: list[tuple[Any, int]]) -> None:
        """Bring results that are settled to where they are wanted."""
        for (place, buffer), (handle, offset) in zip(settled, places, strict=True):
            if place.written:
                _copy(place, handle, offset, buffer.handle, 0)
            self._handles[place.block], self._offsets[place.block] = handle, offset

    def _meet(self, key: Key, numbers: Sequence[Any]) -> list[Step]:
        """Return what to do for memory that nothing is written down for: at the second meeting, write it down."""
        if key in self._met:
            if self._written > WRITTEN + self._calls // SELDOM:
                return self._plain
            self._met.remove(key)
            self._ready[key] = steps = self._write(numbers)
            return steps
        self._met.append(key)
        if len(self._met) + len(self._ready) > MEETINGS:
            self._settle()
        return self._plain

    def _write(self, numbers: Sequence[Any]) -> list[Step]:
        """Write the launches down; return what makes them."""
        steps: list[Step] = []
        self._written += 1
        try:
            for run in self._runs():
                capturing = self._capturing[run[0].state]
                if capturing is None or len(run) == 1:
                    steps += [launch.make for launch in run]
                else:
                    steps.append(_segment(capturing, run, numbers))
        except DeviceLost:
            raise
        except Exception as error:
            self._refuse(str(error))
            name = self._launches[0].state.name
            warnings.warn(
                f"the launches of a compiled function on {name} could not be written down, so that each is made by "
                f"itself: {error}",
                CompileWarning,
                stacklevel=2,
            )
        return self._plain if self.refused else steps

    def _runs(self) -> list[list[Launch]]:
        """Return the launches in runs that can be written down together, and others alone."""
        runs: list[list[Launch]] = []
        open_to: State | None = None  # whose launches the last run takes
        for launch in self._launches:
            capturing = self._capturing[launch.state]
            takes = capturing is not None and launch.taken(capturing)
            ahead = launch.symbols and len(runs) and len(runs[-1]) >= AHEAD and not any(k.symbols for k in runs[-1])
            if takes and launch.state is open_to and not ahead:
                runs[-1].append(launch)
            else:
                runs.append([launch])
            open_to = launch.state if takes else None
        return runs

    def _settle(self) -> None:
        """Give memory that is elsewhere again and again a place where it stays; or give up."""
        keys = [*self._met, *self._ready]
        moving = [
            p
            for k, p in enumerate(self._followed)
            if len({(handles[k], offsets[k]) for handles, offsets in keys}) > 2  # noqa: PLR2004  what is written at every call changes between two
        ]
        self._ready.clear()
        self._met.clear()
        if not moving:
            return
        nbytes = self.nbytes + sum(p.nbytes for p in moving)
        if 2 * (len(self._settled) + len(moving)) > len(self._launches):
            self._refuse(
                "there would be nearly as many copies, of arrays that are elsewhere at every call, as launches"
            )
            return
        if nbytes > COPIED or any(p.ref is None or "copy" not in p.state.info.ops for p in moving):
            self._refuse("arrays that are elsewhere at every call are too big to be copied, or have gaps")
            return
        try:
            more = [(p, p.state.pool.take(size_class(p.nbytes), p.nbytes)) for p in moving]
        except OutOfMemory as error:
            self._refuse(str(error))
            return
        self.nbytes, self._settled = nbytes, [*self._settled, *more]
        stays = {p.block for p in moving}
        for one in self.overwrites:  # what is brought to where it is wanted lies in memory of its own
            one.refused |= not stays.isdisjoint((*one.blocks, *one.blocks.values()))
        self._follow()

    def _refuse(self, why: str) -> None:
        self.refused, self.nbytes, self._settled = why, 0, []
        self._ready.clear()
        self._met.clear()

    def described(self) -> str:
        """Return in a few words what goes to the device together."""
        if self.refused:
            return f"launched one by one: {self.refused}"
        if not self._ready:
            return "launched one by one so far"
        steps = next(reversed(self._ready.values()))
        bundles = sum(isinstance(step, Segment) for step in steps)
        copied = f", {len(self._settled)} arrays copied" if self._settled else ""
        return f"launched as {bundles} bundles and {len(steps) - bundles} single launches{copied}"


def _segment(capturing: Capturing, run: list[Launch], numbers: Sequence[Any]) -> Segment:
    """Write a run of launches down."""
    capturing.begin()
    try:
        for launch in run:
            if launch.symbols:
                capturing.varies()
            launch.make(numbers)
        bundle = capturing.end()
    except BaseException:
        capturing.abandon()
        raise
    return Segment(bundle, [launch for launch in run if launch.symbols], numbers, run[0].state)


def _copy(place: Place, target: Any, target_offset: int, source: Any, source_offset: int) -> None:
    ref = place.ref
    assert ref is not None  # noqa: S101  it would not be settled
    to, of = ref._replace(handle=target, offset=target_offset), ref._replace(handle=source, offset=source_offset)
    place.state.device.launch_op("copy", (to,), (of,), {})


def _close(bundle: Bundle, state: State) -> None:
    if not state.pool.closed:
        try:
            bundle.close()
        except PolygradError:  # a device that is lost has given everything back
            return
