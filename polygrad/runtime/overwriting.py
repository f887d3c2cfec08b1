"""New values in the place of old ones: which launches of a recorded call may write over what they read.

Here: `overwrites`, which finds them, and the launches with one buffer for both.
Not here: whether somebody holds the old value at a call (`array/captured.py`), launching (`replay.py`).

A launch may, if it alone makes the new value, element by element from the old one (a kernel without reduced axes, whose
loads and store have one view), if no later launch reads the old value, and if none can be found to be bad later, so
that the old value would be wanted back. The driver gets a kernel that has one buffer for both: see `ir.Store`.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from polygrad.driver.ir import Kernel, View
from polygrad.runtime.recorder import (
    INPUT,
    MADE,
    Call,
    FusedCall,
    LibraryCall,
    ManyCall,
    Recorder,
    blocks_of,
    is_checked,
)

LARGE = 1 << 24  # bytes of new values from which on it pays to wait for a device

MOVES = frozenset({"load", "bitcast"})


class Overwrite:
    """A launch that may write over what it reads.

    Attributes
    ----------
    position : int
        Of the launch among the calls.
    blocks : dict of int to int
        Of each block that it makes the input that it may write over.
    call : FusedCall or ManyCall
        The launch that does so.
    active : bool
        Whether it does so in the call at hand.
    refused : bool
        Whether it never does so any more: old values were held again and again.
    """

    def __init__(self, position: int, blocks: dict[int, int], call: FusedCall | ManyCall) -> None:
        self.position, self.blocks, self.call = position, blocks, call
        self.active = self.refused = False


class _Fit(NamedTuple):
    """A recorded call: who uses each block, what outlives it, and from which launch on none can be found to be bad."""

    calls: Sequence[Call]
    users: Mapping[int, Sequence[int]]
    kept: frozenset[int]
    first: int


def overwrites(recorder: Recorder, wanted: Mapping[int, int], used: Iterable[int]) -> list[Overwrite]:
    """Return the launches that may write over what they read.

    Parameters
    ----------
    recorder : Recorder
        Of the call.
    wanted : mapping of int to int
        Of a block with a new value the block of the old one; both are whole values without gaps, of one shape.
    used : iterable of int
        The blocks that outlive the call.
    """
    users: dict[int, list[int]] = {}
    for k, call in enumerate(recorder.calls):
        for block in dict.fromkeys(blocks_of(call)):
            users.setdefault(block, []).append(k)
    first = max((k + 1 for k, call in enumerate(recorder.calls) if is_checked(call)), default=0)
    fit = _Fit(recorder.calls, users, frozenset(used), first if recorder.checked else 0)
    pairs = {n: o for n, o in wanted.items() if recorder.blocks[n].kind == MADE and recorder.blocks[o].kind == INPUT}
    found: dict[int, dict[int, int]] = {}
    for new, old in pairs.items():
        at = _maker(fit, new, old)
        if at >= 0:
            found.setdefault(at, {})[new] = old
    made = [(k, blocks, _overwriting(recorder.calls[k], blocks)) for k, blocks in found.items()]
    out = [Overwrite(k, blocks, call) for k, blocks, call in made if call is not None]
    nbytes = sum(recorder.blocks[new].nbytes for one in out for new in one.blocks)
    return out if not fit.first or _may_wait(recorder, nbytes) else []


def _may_wait(recorder: Recorder, nbytes: int) -> bool:
    """Whether looking at indices in the middle of a call costs little, for new values of so many bytes.

    It does where launches are done when they return, and where the work takes long. Launches that go to a device
    together are not torn apart.
    """
    features = [s.info.features for s in recorder.states.values()]
    if any(f.capture for f in features):
        return False
    return nbytes >= LARGE or not any(f.asynchronous for f in features)


def _maker(fit: _Fit, new: int, old: int) -> int:
    """Return the position of the launch that may make *new* in the place of *old*; -1 if there is none."""
    makers, readers = fit.users.get(new, ()), fit.users.get(old, ())
    if not makers or not readers or makers[0] != readers[-1] or makers[0] < fit.first or old in fit.kept:
        return -1
    return -1 if any(old in _written(fit.calls[k]) for k in readers) else makers[0]


def _written(call: Call) -> list[int]:
    if isinstance(call, LibraryCall):
        return [r.handle for r in call.outs]
    parts = call.calls if isinstance(call, ManyCall) else (call,)
    return [one.blocks[one.kernel.views[s.view].buffer] for one in parts for s in one.kernel.stores]


def _overwriting(call: Call, blocks: Mapping[int, int]) -> FusedCall | ManyCall | None:
    """Return a launch that writes those *blocks* over what they stand for; None if it cannot."""
    if isinstance(call, LibraryCall):
        return None
    parts = call.calls if isinstance(call, ManyCall) else (call,)
    users = Counter(b for one in parts for b in set(one.blocks))
    if any(
        users[old] > 1 or (new in one.blocks) is not (old in one.blocks) for one in parts for new, old in blocks.items()
    ):
        return None  # launches that are made together: another one reads what this one would write over
    gone = [{k: one.blocks.index(blocks[b]) for k, b in enumerate(one.blocks) if b in blocks} for one in parts]
    if not gone[0] or any(g != gone[0] for g in gone) or not all(_elementwise(one, gone[0]) for one in parts):
        return None
    kernel, device = merged(parts[0].kernel, gone[0]), call.state.device
    if isinstance(call, ManyCall):
        each = tuple([_merged_call(one, gone[0], kernel, None) for one in parts])
        return call._replace(launch=device.prepare_many(kernel), calls=each)
    return _merged_call(call, gone[0], kernel, device.prepare(kernel))


def _merged_call(call: FusedCall, gone: Mapping[int, int], kernel: Kernel, launch: object) -> FusedCall:
    place = _places(len(call.blocks), gone)
    blocks = tuple([b for k, b in enumerate(call.blocks) if k not in gone])
    places = tuple([(at, place[k], size) for at, k, size in call.places])
    return call._replace(kernel=kernel, launch=launch, blocks=blocks, places=places)


def _places(count: int, gone: Mapping[int, int]) -> dict[int, int]:
    """Return of each of so many buffers its place when some are gone, and others stand for them."""
    left = [k for k in range(count) if k not in gone]
    return {k: left.index(gone.get(k, k)) for k in range(count)}


def merged(kernel: Kernel, gone: Mapping[int, int]) -> Kernel:
    """Return *kernel* with some of its buffers gone: others take their place; launch ints stay as they are.

    >>> a, b = View(0, "float32", (1,)), View(1, "float32", (1,))
    >>> merged(Kernel(1, 0, ("float32", "float32"), (a, b), (), (), ()), {1: 0}).views == (a, a)
    True
    """
    place = _places(len(kernel.buffers), gone)
    return kernel._replace(
        buffers=tuple([dtype for k, dtype in enumerate(kernel.buffers) if k not in gone]),
        views=tuple([v._replace(buffer=place[v.buffer]) for v in kernel.views]),
    )


def _elementwise(call: FusedCall, gone: Mapping[int, int]) -> bool:
    """Whether each element that is stored in a buffer that is *gone* is made from those in the same place alone.

    Kernels that only move values are left out: of two that change places, whichever is stored first is lost to a driver
    that reads memory as late as it can.
    """
    kernel, blocks = call.kernel, call.blocks
    if kernel.reduced or kernel.status >= 0 or any(kernel.body[s.value].op in MOVES for s in kernel.stores):
        return False
    stored = {s.view for s in kernel.stores}
    for target, source in gone.items():
        if blocks.count(blocks[target]) != 1 or blocks.count(blocks[source]) != 1:
            return False
        ways = [k for k, v in enumerate(kernel.views) if v.buffer in (target, source)]
        writes = [k for k in ways if kernel.views[k].buffer == target]
        if len(writes) != 1 or stored.isdisjoint(writes) or stored & set(ways) != set(writes):
            return False
        if any(not _plain(kernel.views[k]) or _bound(call, k) != _bound(call, writes[0]) for k in ways):
            return False
    return len(set(gone.values())) == len(gone)


def _plain(view: View) -> bool:
    return not (view.window or view.gathers or view.partial)


def _bound(call: FusedCall, number: int) -> tuple[object, ...]:
    """Return all that a plain view says of addresses in a launch."""
    view, at = call.kernel.views[number], call.kernel.int_names.index(f"v{number}.o")
    dynamic = sum(stride is None for stride in view.strides)
    return view.dtype, view.strides, call.ints[at : at + 1 + dynamic]
