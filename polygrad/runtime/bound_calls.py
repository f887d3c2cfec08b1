"""Recorded calls bound to the memory of a replay: each becomes a function of the numbers of a call.

Here: `Binding`. What does not change from call to call is decided once.
Not here: where memory is, in what order launches are made (`replay.py`).
"""

import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from polygrad.driver.bundles import Capturing
from polygrad.driver.ir import ITEMSIZE
from polygrad.driver.types import Ref
from polygrad.runtime.bundles import Launch
from polygrad.runtime.devices import State
from polygrad.runtime.recorder import Call, FusedCall, LibraryCall, ManyCall, is_checked
from polygrad.symbols import Symbol


class _Given(NamedTuple):
    """What a kernel is launched with in a call: ints, scalars with the numbers of the call, what these depend on."""

    ints: Callable[[], tuple[int, ...]]
    scalars: Callable[[Sequence[Any]], Sequence[Any]]
    symbols: tuple[int, ...]
    shifts: list[tuple[int, int]]


class _Arguments(NamedTuple):
    """The arguments of a kernel: its blocks, ints and scalars as they are at first, and as they are in a call."""

    blocks: list[int]
    ints: tuple[int, ...]
    plain: list[Any]
    given: _Given


def _picker(places: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """Return a function that gives the items of a list at some places."""
    if len(places) > 1:
        return operator.itemgetter(*places)
    return lambda items: tuple([items[k] for k in places])


def _scalars_of(call: ManyCall) -> Callable[[Sequence[Any]], Sequence[Sequence[Any]]]:
    """Return what gives the scalars of each of many launches with the numbers of a call: all at once."""
    fixed: list[Any] = [0]
    bounds: list[tuple[int, int]] = []
    places: list[int] = []
    for one in call.calls:
        bounds.append((len(places), len(places) + len(one.values)))
        for value in one.values:
            places.append(value.index if type(value) is Symbol else -1 - len(fixed))
            fixed += [] if type(value) is Symbol else [value]
    # Numbers come first, fixed values after them from the end; two places more, so that there is never one alone.
    pick, last = operator.itemgetter(*places, -1, -1), fixed[::-1]

    def scalars(numbers: Sequence[Any]) -> Sequence[Sequence[Any]]:
        values = pick([*numbers, *last])
        return [values[begin:end] for begin, end in bounds]

    return scalars


class Binding:
    """What binds calls.

    Parameters
    ----------
    handles, offsets : list
        Where each block is in the call at hand.
    starts : list of int
        Of each block the bytes from the beginning of its buffer.
    fixed : list of bool
        Whether it is there in every call.

    Attributes
    ----------
    sites : dict of State to dict
        What the numbers of checked launches stand for.
    """

    def __init__(self, handles: list[Any], offsets: list[int], starts: list[int], fixed: list[bool]) -> None:
        self.handles, self.offsets, self.starts, self.fixed = handles, offsets, starts, fixed
        self.sites: dict[State, dict[int, Any]] = {}
        self._statuses: dict[State, int] = {}  # the blocks of status words

    def launch(self, call: Call) -> Launch:
        """Return what makes the launch of a call."""
        if is_checked(call):
            number = call.state.reserve()
            self.sites.setdefault(call.state, {})[number] = call.site
        else:
            number = 0
        if isinstance(call, FusedCall):
            return self._fused(call, number)
        if isinstance(call, ManyCall):
            return self._many(call)
        return self._library(call, number)

    def _fused(self, call: FusedCall, number: int) -> Launch:
        handles, launch = self.handles, call.launch
        blocks, fixed_ints, plain, given = self._arguments(call, number)
        memory, here = [handles[b] for b in blocks], _picker(blocks)
        ints, scalars = given.ints, given.scalars

        def general(numbers: Sequence[Any]) -> None:
            launch(here(handles), ints(), scalars(numbers))

        def shifted(_numbers: Sequence[Any]) -> None:
            launch(here(handles), ints(), plain)

        def moving(_numbers: Sequence[Any]) -> None:
            launch(here(handles), fixed_ints, plain)

        def still(_numbers: Sequence[Any]) -> None:
            launch(memory, fixed_ints, plain)

        make = general if given.symbols else shifted if given.shifts else moving
        if make is moving and all(self.fixed[b] for b in blocks):
            make = still
        return Launch(make, call.state, given.symbols, lambda _capturing: True, given.scalars)

    def _many(self, call: ManyCall) -> Launch:
        handles, launch = self.handles, call.launch
        each = [self._arguments(one, 0) for one in call.calls]
        blocks, givens = [one.blocks for one in each], [one.given for one in each]
        fixed_ints = tuple([one.ints for one in each])
        shifted = any(given.shifts for given in givens)

        def general(numbers: Sequence[Any]) -> None:
            where = tuple([given.ints() for given in givens]) if shifted else fixed_ints
            launch([[handles[b] for b in own] for own in blocks], where, scalars(numbers))

        scalars = _scalars_of(call)
        symbols = tuple([k for given in givens for k in given.symbols])
        return Launch(general, call.state, symbols, lambda _capturing: True, scalars)

    def _arguments(self, call: FusedCall, number: int) -> _Arguments:
        """Return what a kernel is launched with, as far as it does not change from call to call."""
        offsets, fixed = self.offsets, self.fixed
        symbols = [(k, v.index) for k, v in enumerate(call.values) if type(v) is Symbol]
        plain = [v.now if type(v) is Symbol else v for v in call.values]
        ints = list(call.ints)
        for at, block in call.shifts:
            if fixed[block]:
                ints[at] += offsets[block]
        for at, buffer, itemsize in call.places:
            if call.blocks[buffer] >= 0:
                ints[at] += self.starts[call.blocks[buffer]] // itemsize
        fixed_ints = (*ints, number) if number else tuple(ints)
        shifts = [(at, block) for at, block in call.shifts if not fixed[block]]
        blocks = list(call.blocks)
        if call.status >= 0:
            blocks[call.status] = self._status(call.state)

        starts = _picker([block for _, block in shifts])
        last: tuple[Any, tuple[int, ...]] = ((), fixed_ints)

        def moved() -> tuple[int, ...]:
            nonlocal last
            now = starts(offsets)
            was, found = last
            if now != was:
                where = list(fixed_ints)
                for (at, _), offset in zip(shifts, now, strict=True):
                    where[at] += offset
                found = tuple(where)
                last = now, found
            return found

        def scalars(numbers: Sequence[Any]) -> Sequence[Any]:
            if not symbols:
                return plain
            values = list(plain)
            for k, index in symbols:
                values[k] = numbers[index]
            return values

        return _Arguments(blocks, fixed_ints, plain, _Given(moved, scalars, tuple([k for _, k in symbols]), shifts))

    def _status(self, state: State) -> int:
        """Return the block that stands for a device's status word."""
        block = self._statuses.get(state)
        if block is None:
            block = self._statuses[state] = len(self.handles)
            self.handles.append(state.status())
            self.offsets.append(0)
            self.fixed.append(True)
        return block

    def _library(self, call: LibraryCall, number: int) -> Launch:
        handles, offsets, starts, fixed = self.handles, self.offsets, self.starts, self.fixed
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
