"""The mutants of levels 6 to 9 that show in whole computations alone: training, exhausted memory, closing, threads.

Here: the list. Not here: mutants of single launches (the other lists), how they are tried (`selftest.py`).
"""

import threading
import time
from collections.abc import Callable
from typing import Any

from polygrad.driver import DONE, DeviceInfo, Instr, Kernel, OutOfMemory, hookimpl
from polygrad_conformance.mutant_list_upper import Pending
from polygrad_conformance.mutants import (
    Change,
    KernelMutant,
    Launch,
    MemoryMutant,
    Mutant,
    OpMutant,
    expanded,
    other_op,
    renumbered,
    stored_views,
    swapped,
    view_of,
)

MUTANTS: list[Mutant] = []
TINY, LIBRARY, CAPTURE = 4, 7, 8  # ordinals of strict devices


def _kernel(name: str, group: str, change: Callable[[], Change], *killers: str) -> None:
    MUTANTS.append(Mutant(name, group, lambda inner: KernelMutant(inner, change()), killers))


def _add(name: str, group: str, make: Callable[[Any], Any], *killers: str, ordinal: int = 0) -> None:
    MUTANTS.append(Mutant(name, group, make, killers, ordinal))


# ---- gradients and training -------------------------------------------------------------------------------------


def _narrowed(instr: Instr, first: int, _kernel: Kernel) -> list[Instr]:
    return [instr, Instr("cast", "bfloat16", (first,)), Instr("cast", instr.dtype, (first + 1,))]


def _frozen_scalars() -> Change:
    given: dict[Kernel, tuple[Any, ...]] = {}
    return lambda launch: launch._replace(scalars=given.setdefault(launch.kernel, launch.scalars))


def _losing() -> Change:
    seen = [0]

    def change(launch: Launch) -> Launch | None:
        seen[0] += 1
        return None if seen[0] % 50 == 0 else launch

    return change


def _loads(name: str, launch: Launch) -> bool:
    return view_of(name) >= 0 and view_of(name) not in stored_views(launch.kernel)


_kernel("negative strides turned, in a gradient", "training", lambda: renumbered(
    lambda name, v, launch: abs(v) if ".s" in name and _loads(name, launch) else v), "L6.gradient.views")  # fmt: skip
_kernel("where swapped, in a gradient", "training", lambda: swapped("where", 1), "L6.gradient.where")
_kernel("sine for cosine", "training", lambda: other_op("sin", "cos"), "L6.gradient.sin_cos")
_kernel("maxima of the negative", "training", lambda: expanded(
    lambda i, _k: i.op == "reduce" and i.attr == "max", lambda i, n, _k: [
        Instr("negative", i.dtype, i.args), i._replace(args=(n,))]), "L6.gradient.max_sum")  # fmt: skip
_kernel("indices ignored", "training", lambda: renumbered(lambda name, v, _l: 0 if ".gs" in name else v),
        "L6.gradient.take", "L6.train.attention")  # fmt: skip
_kernel("sums of float32 through bfloat16", "training", lambda: expanded(
    lambda i, _k: i.op == "reduce" and i.attr == "sum" and i.dtype == "float32", _narrowed),
    "L6.train.mlp")  # fmt: skip
_kernel("scalars of the first step in every step", "training", _frozen_scalars, "L6.train.mlp")
_kernel("every 50th launch of a training lost", "training", _losing, "L6.train.cnn")
_kernel("every 50th launch of a compiled training lost", "training", _losing, "L6.compiled.mlp", "L6.compiled.cnn")

# ---- order ------------------------------------------------------------------------------------------------------

_add("library ops overtake kernels", "order", lambda inner: Pending(inner, rules="copy"), "L7.order.ops_and_kernels",
     ordinal=LIBRARY)  # fmt: skip

# ---- errors and resources ---------------------------------------------------------------------------------------


def _unknown_is_done(inner: Any, device: DeviceInfo, op: str, outs: Any, ins: Any, attrs: Any) -> None:
    if op in ("write", "read"):
        inner.polygrad_launch_op(device, op, outs, ins, attrs)


def _room_before_refusing(inner: Any, device: DeviceInfo, nbytes: int) -> Any:
    if nbytes > device.limits.max_alloc:
        inner.polygrad_allocate(device, 1 << 14)  # what it took for the attempt stays taken
    return inner.polygrad_allocate(device, nbytes)


class _Mine:
    """What these mutants know: the plugin that they spoil."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.seen = inner, 0

    def mine(self, device: DeviceInfo) -> bool:
        return bool(device.driver == self.inner.driver.info.name)


class _OtherError(_Mine):
    """Gives another exception for OutOfMemory, and spoils nothing else."""

    @hookimpl(wrapper=True)
    def polygrad_allocate(self, device: DeviceInfo, nbytes: int) -> Any:
        try:
            return (yield)
        except OutOfMemory as error:
            if not self.mine(device):
                raise
            raise RuntimeError(f"vendor error 2 for {nbytes} bytes") from error


class _DeadAfterOne(_Mine):
    """Refuses every allocation after the first that failed."""

    @hookimpl(wrapper=True)
    def polygrad_allocate(self, device: DeviceInfo, nbytes: int) -> Any:
        try:
            handle = yield
        except OutOfMemory:
            self.seen += self.mine(device)
            raise
        if self.seen and self.mine(device):
            raise OutOfMemory(f"no room for {nbytes} bytes, nor ever again")
        return handle


class _Scratch(_Mine):
    """Takes a block for each launch and keeps it."""

    @hookimpl(tryfirst=True)
    def polygrad_launch_fused(self, device: DeviceInfo) -> Any:
        if self.mine(device):
            self.inner.polygrad_allocate(device, 1 << 14)


class _LostWhenReopened(_Mine):
    """Launches nothing on a device that was closed and opened again."""

    @hookimpl(tryfirst=True)
    def polygrad_close(self, device: DeviceInfo) -> Any:
        self.seen += self.mine(device)

    @hookimpl(tryfirst=True)
    def polygrad_launch_fused(self, device: DeviceInfo) -> Any:
        return DONE if self.seen and self.mine(device) else None


_add("an unknown op does nothing", "errors", lambda inner: OpMutant(inner, _unknown_is_done), "L8.errors.unknown_op")
_add("refusals keep some memory", "errors", lambda inner: MemoryMutant(inner, _room_before_refusing),
     "L8.memory.over_limit_again", ordinal=TINY)  # fmt: skip
_add("what is freed stays full", "errors", lambda inner: MemoryMutant(inner, None, lambda *_: None),
     "L8.memory.exhaust", ordinal=TINY)  # fmt: skip
_add("out of memory as the vendor's error", "errors", _OtherError, "L8.oom.persistent.0", "L8.oom.persistent.4")
_add("out of memory as the vendor's error, in a compiled step", "errors", _OtherError, "L8.oom.compiled")
_add("no allocation after one that failed", "errors", _DeadAfterOne, "L8.oom.once")
_add("freed blocks are kept", "errors", lambda inner: MemoryMutant(inner, None, lambda *_: None), "L8.leak.kernels")
_add("each launch keeps a block", "errors", _Scratch, "L8.leak.training")
_add("a device that was closed launches nothing", "errors", _LostWhenReopened, "L8.close.live_arrays")

# ---- threads ----------------------------------------------------------------------------------------------------


class _OneThread(_Mine):
    """Knows its device in the thread alone that made it, as some vendors' contexts do."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.thread = threading.get_ident()

    @hookimpl(tryfirst=True)
    def polygrad_launch_fused(self, device: DeviceInfo) -> Any:
        return DONE if self.mine(device) and threading.get_ident() != self.thread else None


class _SharedStaging(_Mine):
    """Has one staging buffer for the writes of all threads, and copies from it a moment later."""

    @hookimpl(tryfirst=True)
    def polygrad_launch_op(self, device: DeviceInfo, op: str, outs: Any, ins: Any, attrs: dict[str, Any]) -> Any:
        if op != "write" or not self.mine(device):
            return None
        self.staged = bytes(attrs["data"])
        wanted = len(self.staged)
        time.sleep(0.002)
        data = self.staged[:wanted].ljust(wanted, b"\0")
        self.inner.polygrad_launch_op(device, op, outs, ins, {"data": memoryview(data)})
        return DONE


_kernel("every 50th launch of replays lost", "threads", _losing, "L9.replay.programs", "L9.replay.lifetimes")
_add("a context of one thread", "threads", _OneThread, "L9.threads.arrays")
_add("one staging buffer for all threads", "threads", _SharedStaging, "L9.threads.memory")

# ---- launches that are written down ------------------------------------------------------------------------------


class _Captures(_Mine):
    """Spoils one method of what writes launches down, or of the bundles that come of it."""

    def __init__(self, inner: Any, method: str, instead: Callable[..., Any]) -> None:
        super().__init__(inner)
        self.method, self.instead = method, instead
        self.bundles: list[Any] = []

    @hookimpl(tryfirst=True)
    def polygrad_capture(self, device: DeviceInfo) -> Any:
        if not self.mine(device):
            return None
        found = self.inner.polygrad_capture(device)
        end = found.end

        def spoilt() -> Any:
            self.bundles.append(self._spoilt(end()))
            return self.bundles[-1]

        found.end = spoilt
        return self._spoilt(found)

    def _spoilt(self, thing: Any) -> Any:
        original = getattr(thing, self.method, None)
        if original is not None:
            setattr(thing, self.method, lambda *given: self.instead(self.bundles, original, *given))
        return thing


def _captures(name: str, method: str, instead: Callable[..., Any], killer: str) -> None:
    _add(name, "capture", lambda inner: _Captures(inner, method, instead), f"L9.capture.{killer}", ordinal=CAPTURE)


def _emptied(bundles: list[Any], original: Callable[[], None]) -> None:
    """Close a bundle, and forget what all others would launch."""
    original()
    for each in bundles:
        each.pages = []


def _twice(_bundles: list[Any], original: Callable[[], None]) -> None:
    original()
    original()


_captures("a bundle that is launched twice", "launch", _twice, "launches")
_captures("numbers stay what they were", "change", lambda *_: None, "numbers")
_captures("a bundle that is closed takes the others along", "close", _emptied, "lifetimes")
_captures("what is abandoned is still written down", "abandon", lambda *_: None, "abandoned")

# ---- launches that are made together ---------------------------------------------------------------------------------

Rows = list[tuple[Any, tuple[int, ...], Any]]  # of each launch: buffers, ints, scalars


class _Together:
    """A prepared kernel that makes other launches when it is asked for many."""

    def __init__(self, prepared: Any, instead: Callable[[Rows], Rows]) -> None:
        self.prepared, self.instead = prepared, instead

    def __call__(self, *launch: Any) -> None:
        self.prepared(*launch)

    def many(self, buffers: Any, ints: Any, scalars: Any) -> None:
        rows = self.instead(list(zip(buffers, ints, scalars, strict=True)))
        self.prepared.many([row[0] for row in rows], tuple(row[1] for row in rows), [row[2] for row in rows])


class _Notices(_Mine):
    """Spoils one method of a device's notices."""

    def __init__(self, inner: Any, spoil: Callable[[Any], None]) -> None:
        super().__init__(inner)
        self.spoil = spoil

    @hookimpl(tryfirst=True)
    def polygrad_notices(self, device: DeviceInfo, nbytes: int) -> Any:
        if not self.mine(device):
            return None
        found = self.inner.polygrad_notices(device, nbytes)
        self.spoil(found)
        return found


def _notices(name: str, spoil: Callable[[Any], None], killer: str) -> None:
    _add(name, "notices", lambda inner: _Notices(inner, spoil), f"L9.notices.{killer}", ordinal=CAPTURE)


def _copied(notices: Any) -> None:
    notices.memory = memoryview(bytearray(notices.memory))


def _hasty(notices: Any) -> None:
    notices.wait = lambda: None


def _first_mark_only(notices: Any) -> None:
    original = notices.mark
    notices.mark = lambda: original() if notices.job is None else None


def _marked_at_once(notices: Any) -> None:
    """Make a mark that is to be written down when it is written down, and never again."""
    original = notices.mark

    def mark() -> None:
        pages, notices.driver.pages = notices.driver.pages, None
        try:
            original()
        finally:
            notices.driver.pages = pages

    notices.mark = mark


_notices("notices that the host has a copy of", _copied, "posted")
_notices("a mark that nobody waits for", _hasty, "marks")
_notices("a mark that is made once", _first_mark_only, "marks")
_notices("a mark that is not written down", _marked_at_once, "written")


class _Prepares(_Mine):
    """Spoils launches that are made together, those of one kernel each for itself."""

    def __init__(self, inner: Any, instead: Callable[[], Callable[[Rows], Rows]]) -> None:
        super().__init__(inner)
        self.instead = instead

    @hookimpl(tryfirst=True)
    def polygrad_prepare_fused(self, device: DeviceInfo, kernel: Kernel) -> Any:
        if not self.mine(device):
            return None
        return _Together(self.inner.polygrad_prepare_fused(device, kernel), self.instead())


def _together(name: str, instead: Callable[[], Callable[[Rows], Rows]], *killers: str) -> None:
    ids = [f"L5.many.{killer}" for killer in killers]
    _add(name, "many", lambda inner: _Prepares(inner, instead), *ids, ordinal=CAPTURE)


def _numbers_of_first() -> Callable[[Rows], Rows]:
    """Keep the scalars of the first call with so many launches, as a struct that is laid out once."""
    kept: dict[int, list[Any]] = {}

    def instead(rows: Rows) -> Rows:
        own = kept.setdefault(len(rows), [row[2] for row in rows])
        return [(row[0], row[1], scalars) for row, scalars in zip(rows, own, strict=True)]

    return instead


_together("the last of many launches lost", lambda: lambda rows: rows[: max(2, len(rows) - 1)], "sizes.3", "random")
_together("more launches than there is room for lost", lambda: lambda rows: rows[:128], "sizes.200")
_together("the scalars of the first for all", lambda: lambda rows: [(b, n, rows[0][2]) for b, n, _ in rows], "sizes.2")
_together("the ints of the first for all", lambda: lambda rows: [(b, rows[0][1][:1] + n[1:], s) for b, n, s in
          sorted(rows, key=lambda row: row[1][0])], "sums")  # fmt: skip
_together("scalars of many launches stay what they were", _numbers_of_first, "written")
