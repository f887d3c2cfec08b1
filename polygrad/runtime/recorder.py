"""What a captured call launches: every step of every plan, with the memory that it reads and writes given numbers.

Here: `Recorder`, which `Program.run` tells of its steps while `pg.compile` captures a function, and the records.
Not here: launching them again (`replay.py`), which arrays of the user's the memory belongs to (`array/capturing.py`).

A *block* is a number for memory: one for each input (the storage of an array that was there before the call), for each
buffer made in the call, for each constant.
"""

import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

from polygrad.driver.ir import ITEMSIZE, Kernel
from polygrad.driver.types import Ref
from polygrad.errors import CaptureError
from polygrad.graph.node import Node
from polygrad.runtime.devices import State
from polygrad.runtime.memory import Buffer, Storage, size_class
from polygrad.schedule import Fused, Library, Many
from polygrad.schedule.emit import block_of
from polygrad.schedule.steps import Step
from polygrad.symbols import HostProgram, Symbol

INPUT, MADE, CONSTANT = range(3)


class Block(NamedTuple):
    """Memory: of which kind, on which device, of how many bytes (0 unless it is made in the call)."""

    kind: int
    device: str
    nbytes: int


class Place(NamedTuple):
    """Where a value lies: a block, and the view of it."""

    block: int
    offset: int
    strides: tuple[int, ...]
    contiguous: bool


class FusedCall(NamedTuple):
    """A launch of a kernel.

    `blocks` has -1 for the status word, whose place is `status`; `shifts` are (position in `ints`, block) of inputs,
    whose offset is added; `places` are (position in `ints`, position in `blocks`, bytes of an element) of the offsets
    of all views; `values` are numbers and Symbols; `site` says what an index that is out of bounds belongs to.
    """

    state: State
    kernel: Kernel
    launch: Any
    blocks: tuple[int, ...]
    status: int
    ints: tuple[int, ...]
    shifts: tuple[tuple[int, int], ...]
    places: tuple[tuple[int, int, int], ...]
    values: tuple[Any, ...]
    site: dict[int, Any]


class LibraryCall(NamedTuple):
    """A launch of a driver's op: refs with blocks in the place of handles, attributes that may be Symbols."""

    state: State
    op: str
    outs: tuple[Ref, ...]
    ins: tuple[Ref, ...]
    attrs: dict[str, Any]
    site: dict[int, Any] | None  # of a scatter, which has a status word


class ManyCall(NamedTuple):
    """Launches of one kernel made at once, none of which is checked."""

    state: State
    launch: Any
    calls: tuple[FusedCall, ...]
    site: None = None


Call = FusedCall | LibraryCall | ManyCall


def blocks_of(call: Call) -> list[int]:
    """Return the blocks that a launch uses."""
    if isinstance(call, FusedCall):
        return [b for b in call.blocks if b >= 0]
    if isinstance(call, ManyCall):
        return [b for one in call.calls for b in one.blocks]
    return [r.handle for r in (*call.outs, *call.ins)]


def is_checked(call: Call) -> bool:
    """Whether a launch writes the status word if it meets an index that is out of bounds."""
    return call.site is not None and (not isinstance(call, FusedCall) or call.status >= 0)


class Recorder:
    """Writes down one call of a function.

    Attributes
    ----------
    calls : list of FusedCall, LibraryCall and ManyCall
        The launches, in order.
    looks : list of int
        Those of them that are the first of a plan to look at some index.
    blocks : list of Block
        By number.
    host : HostProgram
        What is done on the host.
    symbols : dict of Node to Symbol
        Host scalars whose number may be another at the next call.
    after : list of callable
        What is done once everything was launched, with nothing left that can fail.
    checked : bool
        Whether the function looked at the status word, so that its calls must.
    """

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.looks: list[int] = []
        self.blocks: list[Block] = []
        self.host = HostProgram()
        self.symbols: dict[Node, Symbol] = {}
        self.after: list[Any] = []
        self.checked = False
        self.constants: dict[int, Storage] = {}  # by block
        self.states: dict[str, State] = {}
        self.whole: dict[int, Ref] = {}  # all of an input without gaps, with the block for a handle
        self._inputs: dict[int, tuple[Storage, int]] = {}  # by the storage's id, which is kept so that it stays one
        self._views: dict[int, tuple[Storage, Place]] = {}  # of inputs and constants, by the storage's id
        self._made: weakref.WeakKeyDictionary[Buffer, int] = weakref.WeakKeyDictionary()

    def block(self, kind: int, device: str, nbytes: int = 0) -> int:
        """Return the number of a new block."""
        self.blocks.append(Block(kind, device, nbytes))
        return len(self.blocks) - 1

    def input(self, node: Node) -> int:
        """Return the block of the storage of an array that was there before the call."""
        found = self._inputs.get(id(node.storage))
        if found is None:
            assert node.device is not None  # noqa: S101  arrays always have a device
            found = self._inputs[id(node.storage)] = (node.storage, self.block(INPUT, node.device))
            if node.storage.contiguous and node.storage.buffer is not None:
                shape, dtype = node.aval.shape, node.aval.dtype.name
                self.whole[found[1]] = Ref(found[1], 0, shape, node.storage.strides, dtype)
        return found[1]

    def is_input(self, storage: Storage) -> bool:
        """Whether a storage is that of an input."""
        return id(storage) in self._inputs

    def place(self, node: Node) -> Place:
        """Return where the value of a realized node lies."""
        storage = node.storage
        found = self._inputs.get(id(storage))
        if found is not None:
            return Place(found[1], 0, storage.strides, storage.contiguous)
        if id(storage) in self._views:
            return self._views[id(storage)][1]
        made = None if storage.buffer is None else self._made.get(storage.buffer)
        if made is not None:
            return Place(made, storage.offset, storage.strides, storage.contiguous)
        assert node.device is not None  # noqa: S101  arrays always have a device
        block = self.block(CONSTANT, node.device)
        self.constants[block] = storage
        self._inputs[id(storage)] = (storage, block)
        return Place(block, 0, storage.strides, storage.contiguous)

    def begin(self, program: Any, order: list[Node], leaves: list[Node]) -> "Run":
        """Begin to write down a run of a plan."""
        self.states[program.state.name] = program.state
        return Run(self, program, order, leaves)

    def refuse_read(self) -> None:
        """Raise: the function looks at a value."""
        raise CaptureError(
            "cannot compile a function that looks at the value of an array (by float(), bool(), item(), numpy(), "
            "printing, or a shape that depends on it): its calls are replayed without Python; choose by pg.where(...), "
            "or look at it outside"
        )

    def refuse_upload(self) -> None:
        """Raise: the function brings in data of the host's."""
        raise CaptureError(
            "cannot compile a function that makes arrays of NumPy arrays: later calls would not see them change; pass "
            "them as arguments, or convert them outside with pg.asarray(...)"
        )


class Run:
    """One run of a plan: which block each of its slots is."""

    def __init__(self, recorder: Recorder, program: Any, order: list[Node], leaves: list[Node]) -> None:
        self.recorder, self.program, self.order, self.leaves = recorder, program, order, leaves
        self.places = [recorder.place(n) for n in leaves]
        self.slots: list[int] = [p.block for p in self.places] + [-1] * (program.plan.slots - len(leaves))

    def launch(self, steps: Sequence[Any], buffers: list[Buffer | None], moved: bool) -> None:
        """Launch the steps of the plan, and write each down."""
        for k, step in enumerate(steps):
            self._write(k)
            step(buffers, self.order, self.leaves, moved)
        for slot in range(len(self.places), len(buffers)):
            buffer = buffers[slot]
            if buffer is not None:
                self.recorder._made[buffer] = self.slots[slot]

    def end(self) -> None:
        """Remember which results are views of what the plan has read."""
        for at, operand in self.program.plan.views:
            if operand.slot < len(self.places):
                storage, base = self.order[at].storage, self.places[operand.slot]
                place = Place(base.block, base.offset + operand.offset, storage.strides, storage.contiguous)
                self.recorder._views[id(storage)] = (storage, place)

    def _write(self, k: int) -> None:
        step, device = self.program.plan.steps[k], self.program.state.name
        for slot, nbytes in step.allocate:
            if self.slots[slot] < 0:
                self.slots[slot] = self.recorder.block(MADE, device, size_class(nbytes))
        if k in self.program.looks:
            self.recorder.looks.append(len(self.recorder.calls))
        self.recorder.calls.append(self._call(step, self.program.launches[k]))
        for slot in step.release:
            self.slots[slot] = -1  # a value that is made again has another block then

    def _call(self, step: Step, launch: Any) -> Call:
        if isinstance(step, Library):
            return self._library(step)
        if isinstance(step, Many):
            return ManyCall(self.program.state, launch, tuple([self._fused(one, None) for one in step.launches]))
        return self._fused(step, launch)

    def _number(self, at: int) -> Any:
        node = self.order[at]
        return self.recorder.symbols.get(node, node.value)

    def _fused(self, step: Fused, launch: Any) -> FusedCall:
        ints, shifts = list(step.ints), []
        for at, leaf in step.offsets:
            ints[at] += self.places[leaf].offset
            if self.recorder.blocks[self.places[leaf].block].kind != MADE:
                shifts.append((at, self.places[leaf].block))
        for at, n in step.starts:
            ints[at] += block_of(self.order[n])[1]
        return FusedCall(
            self.program.state, step.kernel, launch, tuple([self.slots[s] if s >= 0 else -1 for s in step.slots]),
            step.status, tuple(ints), tuple(shifts), _offsets(step.kernel),
            tuple([self._number(at) for at in step.scalars]), self.program.origins(step, self.order),
        )  # fmt: skip

    def _library(self, step: Library) -> LibraryCall:
        outs, ins, attrs, site = self.program.library_call(step, self.order)
        attrs.update({name: self._number(at) for name, at in step.scalars})
        return LibraryCall(
            self.program.state, step.op, tuple([self._ref(o) for o in outs]), tuple([self._ref(o) for o in ins]), attrs,
            site,
        )  # fmt: skip

    def _ref(self, operand: Any) -> Ref:
        base = self.places[operand.slot].offset if operand.slot < len(self.places) else 0
        return Ref(self.slots[operand.slot], operand.offset + base, operand.shape, operand.strides, operand.dtype)


def _offsets(kernel: Kernel) -> tuple[tuple[int, int, int], ...]:
    """Return of each view the position of its offset among the launch ints, its buffer, and the bytes of an element."""
    names = kernel.int_names
    return tuple([(names.index(f"v{k}.o"), v.buffer, ITEMSIZE[v.dtype]) for k, v in enumerate(kernel.views)])
