"""Mutants: wrappers around a correct driver that make it wrong in one way, and the means to write one in a line.

Here: `Mutant`, the plugins behind it, and changes of kernels and launches.
Not here: the list of mutants (`mutant_list.py`), the proof that tests find them (`selftest.py`).

A mutant is a plugin of pluggy like a profiler: it answers a hook before the driver does, with what the driver does to
something slightly different.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from polygrad.driver import DONE, DeviceInfo, Instr, Kernel, Ref, Store, hookimpl, oracle
from polygrad.driver.ir import ITEMSIZE


class Launch(NamedTuple):
    """A launch of a fused kernel, as a mutant changes it."""

    kernel: Kernel
    buffers: tuple[Any, ...]
    ints: tuple[int, ...]
    scalars: tuple[Any, ...]

    def with_ints(self, change: Callable[[str, int], int]) -> "Launch":
        """Return the launch with each launch int as *change* makes it of its name and value."""
        names = self.kernel.int_names
        return self._replace(ints=tuple(change(n, v) for n, v in zip(names, self.ints, strict=True)))

    def with_body(self, change: Callable[[Instr], Instr]) -> "Launch":
        """Return the launch with each instruction as *change* makes it."""
        return self._replace(kernel=self.kernel._replace(body=tuple(change(i) for i in self.kernel.body)))


Change = Callable[[Launch], "Launch | None"]


@dataclass
class Mutant:
    """One way to be wrong.

    Attributes
    ----------
    name, group : str
    make : callable
        Takes the driver's plugin, returns the plugin that spoils it.
    killers : tuple of str
        Ids of checks, each of which must fail on it by an assertion.
    ordinal : int
        Of the strict device that it spoils.
    early : bool
        Whether it is there when the device is opened.
    """

    name: str
    group: str
    make: Callable[[Any], Any]
    killers: tuple[str, ...]
    ordinal: int = 0
    early: bool = False
    environment: dict[str, str] = field(default_factory=dict)


class _Plugin:
    """What all mutants know: the plugin that they spoil."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def mine(self, device: DeviceInfo) -> bool:
        """Say whether a device is of the driver that is to be spoiled."""
        return bool(device.driver == self.inner.driver.info.name)


class KernelMutant(_Plugin):
    """Launches something else; a change that gives None loses the launch. *after* spoils what is there afterwards."""

    def __init__(
        self, inner: Any, change: Change, after: "Callable[[Any, DeviceInfo, Launch], None] | None" = None
    ) -> None:
        super().__init__(inner)
        self.change, self.after = change, after

    @hookimpl(tryfirst=True)
    def polygrad_launch_fused(
        self, device: DeviceInfo, kernel: Kernel, buffers: Sequence[Any], ints: tuple[int, ...], scalars: Sequence[Any]
    ) -> Any:
        if not self.mine(device):
            return None
        given = Launch(kernel, tuple(buffers), tuple(ints), tuple(scalars))
        changed = self.change(given)
        if changed is not None:
            self.inner.polygrad_launch_fused(device, *changed)
        if self.after is not None:
            self.after(self.inner, device, given)
        return DONE


class OpMutant(_Plugin):
    """Does something else for write and read; *work* gets the plugin and the hook's arguments."""

    def __init__(self, inner: Any, work: Callable[..., None]) -> None:
        super().__init__(inner)
        self.work = work

    @hookimpl(tryfirst=True)
    def polygrad_launch_op(
        self, device: DeviceInfo, op: str, outs: Sequence[Ref], ins: Sequence[Ref], attrs: dict[str, Any]
    ) -> Any:
        if not self.mine(device):
            return None
        self.work(self.inner, device, op, outs, ins, attrs)
        return DONE


class MemoryMutant(_Plugin):
    """Allocates or frees otherwise."""

    def __init__(
        self, inner: Any, allocate: "Callable[..., Any] | None" = None, free: "Callable[..., None] | None" = None
    ) -> None:
        super().__init__(inner)
        self.allocating, self.freeing = allocate, free

    @hookimpl(tryfirst=True)
    def polygrad_allocate(self, device: DeviceInfo, nbytes: int) -> Any:
        if self.allocating is None or not self.mine(device):
            return None
        return self.allocating(self.inner, device, nbytes)

    @hookimpl(tryfirst=True)
    def polygrad_free(self, device: DeviceInfo, handle: Any) -> Any:
        if self.freeing is None or not self.mine(device):
            return None
        self.freeing(self.inner, device, handle)
        return DONE


class AnswerMutant:
    """Changes what one hook answers; *change* gets the answer and how often it was asked before."""

    def __init__(self, hook: str, change: Callable[[Any, int], Any]) -> None:
        self.times = 0

        def spoiled(result: Any) -> Any:
            self.times += 1
            return change(result, self.times - 1)

        setattr(self, hook, _ANSWERS[hook](spoiled))


def _wrapping_open(spoiled: Callable[[Any], Any]) -> Any:
    @hookimpl(wrapper=True)
    def polygrad_open(driver: str) -> Any:  # noqa: ARG001  pluggy finds arguments by name
        return spoiled((yield))

    return polygrad_open


def _wrapping_drivers(spoiled: Callable[[Any], Any]) -> Any:
    @hookimpl(wrapper=True)
    def polygrad_drivers() -> Any:
        return spoiled((yield))

    return polygrad_drivers


def _wrapping_count(spoiled: Callable[[Any], Any]) -> Any:
    @hookimpl(wrapper=True)
    def polygrad_count(driver: str) -> Any:  # noqa: ARG001  pluggy finds arguments by name
        return spoiled((yield))

    return polygrad_count


def _wrapping_info(spoiled: Callable[[Any], Any]) -> Any:
    @hookimpl(wrapper=True)
    def polygrad_memory_info(device: DeviceInfo) -> Any:  # noqa: ARG001  pluggy finds arguments by name
        return spoiled((yield))

    return polygrad_memory_info


def _wrapping_requirements(spoiled: Callable[[Any], Any]) -> Any:
    @hookimpl(wrapper=True)
    def polygrad_requirements(device: DeviceInfo) -> Any:  # noqa: ARG001  pluggy finds arguments by name
        return spoiled((yield))

    return polygrad_requirements


def _wrapping_view(spoiled: Callable[[Any], Any]) -> Any:
    @hookimpl(wrapper=True)
    def polygrad_view(device: DeviceInfo, handle: Any, nbytes: int) -> Any:  # noqa: ARG001  pluggy finds arguments by name
        return spoiled((yield))

    return polygrad_view


_ANSWERS = {
    "polygrad_open": _wrapping_open, "polygrad_drivers": _wrapping_drivers, "polygrad_count": _wrapping_count,
    "polygrad_memory_info": _wrapping_info, "polygrad_requirements": _wrapping_requirements,
    "polygrad_view": _wrapping_view,
}  # fmt: skip


# ---- changes of a launch: each returns a Change ---------------------------------------------------------------


def other_op(wrong: str, right: str) -> Change:
    """Return the change that computes *wrong* where *right* is asked."""
    return lambda launch: launch.with_body(lambda i: i._replace(op=wrong) if i.op == right else i)


def swapped(op: str, first: int = 0) -> Change:
    """Return the change that swaps two operands of *op*."""

    def change(instr: Instr) -> Instr:
        if instr.op != op or len(instr.args) < first + 2:
            return instr
        args = list(instr.args)
        args[first], args[first + 1] = args[first + 1], args[first]
        return instr._replace(args=tuple(args))

    return lambda launch: launch.with_body(change)


def expanded(match: Callable[[Instr, Kernel], bool], build: Callable[[Instr, int, Kernel], list[Instr]]) -> Change:
    """Return the change that puts several instructions in place of one.

    *build* gets the instruction with its operands renumbered, the number that the first of the new ones will have, and
    the kernel; the last of what it returns is the value.
    """

    def change(launch: Launch) -> Launch:
        body: list[Instr] = []
        new = {-1: -1}
        for number, old in enumerate(launch.kernel.body):
            instr = old._replace(args=tuple(new[a] for a in old.args), guard=new[old.guard])
            body += build(instr, len(body), launch.kernel) if match(old, launch.kernel) else [instr]
            new[number] = len(body) - 1
        stores = tuple(Store(new[s.value], s.view) for s in launch.kernel.stores)
        return launch._replace(kernel=launch.kernel._replace(body=tuple(body), stores=stores))

    return change


def renumbered(change: Callable[[str, int, Launch], int]) -> Change:
    """Return the change of launch ints by name."""
    return lambda launch: launch.with_ints(lambda name, value: change(name, value, launch))


def stored_views(kernel: Kernel) -> set[int]:
    """Return the numbers of the views that are stored through."""
    return {s.view for s in kernel.stores}


def view_of(name: str) -> int:
    """Return the number of the view that a launch int belongs to, or -1.

    >>> view_of("v12.o"), view_of("n0")
    (12, -1)
    """
    return int(name[1:].partition(".")[0]) if name.startswith("v") else -1


def poke(inner: Any, device: DeviceInfo, handle: Any, dtype: str, element: int, value: bytes = b"") -> None:
    """Overwrite one element of a block."""
    data = (value or b"\x01" * 8)[: ITEMSIZE[dtype]].ljust(ITEMSIZE[dtype], b"\x01")
    ref = Ref(handle, element, (1,), (1,), dtype)
    inner.polygrad_launch_op(device, "write", (ref,), (), {"data": memoryview(data)})


def array_of(inner: Any, device: DeviceInfo, ref: Ref) -> Any:
    """Return what *ref* sees, as an array of the host's."""
    dtype = oracle.compute_dtype(ref.dtype)
    count = ref.offset + sum(max(s, 0) * (n - 1) for n, s in zip(ref.shape, ref.strides, strict=True)) + 1
    flat = np.empty(count, dtype)
    into = flat.view(np.uint8).data
    inner.polygrad_launch_op(device, "read", (), (Ref(ref.handle, 0, (count,), (1,), ref.dtype),), {"into": into})
    strides = [s * dtype.itemsize for s in ref.strides]
    return np.lib.stride_tricks.as_strided(flat[ref.offset :], ref.shape, strides)


def put_array(inner: Any, device: DeviceInfo, ref: Ref, array: Any) -> None:
    """Write *array* where the contiguous *ref* is."""
    flat = np.ascontiguousarray(array).astype(oracle.compute_dtype(ref.dtype)).reshape(-1)
    target = Ref(ref.handle, ref.offset, flat.shape, (1,), ref.dtype)
    inner.polygrad_launch_op(device, "write", (target,), (), {"data": flat.view(np.uint8).data})


def for_op(name: str, work: Callable[..., Any]) -> Callable[[Any], OpMutant]:
    """Return the maker of a mutant that does *work* for one op; what *work* returns is written to its output."""

    def spoiled(inner: Any, device: DeviceInfo, op: str, outs: Any, ins: Any, attrs: Any) -> None:
        if op != name:
            inner.polygrad_launch_op(device, op, outs, ins, attrs)
            return
        result = work(inner, device, outs, ins, attrs)
        if result is not None:
            put_array(inner, device, outs[0], result)

    return lambda inner: OpMutant(inner, spoiled)
