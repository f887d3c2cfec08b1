"""The mutants of levels 4, 5, 7 and 9 that show in launches: inexact, out of order, or confused by threads.

Here: the list. Not here: mutants of the core levels (`mutant_list.py`), of accelerated ops (`mutant_list_library.py`)
and of whole computations (`mutant_list_runs.py`); how mutants are made (`mutants.py`).
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

from polygrad.driver import DONE, DeviceInfo, Instr, Kernel, Ref, hookimpl
from polygrad_conformance.mutants import Change, KernelMutant, Launch, MemoryMutant, Mutant, expanded, other_op, swapped

MUTANTS: list[Mutant] = []
TINY = 4  # the ordinal of a strict device


def _kernel(name: str, group: str, change: Callable[[], Change], *killers: str) -> None:
    """Add a mutant of kernels; *change* is made anew for each trial, for it may count."""
    MUTANTS.append(Mutant(name, group, lambda inner: KernelMutant(inner, change()), killers))


# ---- numbers ----------------------------------------------------------------------------------------------------


def _is(op: str, dtype: str) -> Callable[[Instr, Kernel], bool]:
    return lambda instr, _kernel: instr.op == op and instr.dtype == dtype


def _grown(instr: Instr, first: int, _kernel: Kernel) -> list[Instr]:
    return [instr, Instr("const", instr.dtype, (), 1.000001), Instr("multiply", instr.dtype, (first, first + 1))]


def _fused(instr: Instr, first: int, kernel: Kernel) -> list[Instr]:
    """Compute a * b + c with one rounding, as an fma would."""
    product = kernel.body[instr.args[0]]
    wide = [Instr("cast", "float64", (a,)) for a in (*product.args, instr.args[1])]
    return [
        *wide,
        Instr("multiply", "float64", (first, first + 1)),
        Instr(instr.op, "float64", (first + 3, first + 2)),
        Instr("cast", "float32", (first + 4,)),
    ]


def _of_a_product(instr: Instr, kernel: Kernel) -> bool:
    ready = instr.op == "add" and instr.dtype == "float32" and len(kernel.body) < 12
    return ready and kernel.body[instr.args[0]].op == "multiply"


def _cut(instr: Instr, first: int, _kernel: Kernel) -> list[Instr]:
    """Cast float32 to bfloat16 by cutting bits off."""
    return [
        Instr("bitcast", "uint32", instr.args),
        Instr("const", "uint32", (), 0xFFFF0000),
        Instr("bitwise_and", "uint32", (first, first + 1)),
        Instr("bitcast", "float32", (first + 2,)),
        instr._replace(args=(first + 3,)),
    ]


def _narrowed(narrow: str) -> Callable[[Instr, int, Kernel], list[Instr]]:
    return lambda instr, first, _kernel: [
        instr, Instr("cast", narrow, (first,)), Instr("cast", instr.dtype, (first + 1,)),
    ]  # fmt: skip


_kernel("exp off by eight ULP", "numbers", lambda: expanded(_is("exp", "float32"), _grown), "L4.ulp.exp.float32")
_kernel("ceil as floor", "numbers", lambda: other_op("floor", "ceil"), "L4.exact.float32", "L4.exact.float64")
_kernel("an fma, undeclared", "numbers", lambda: expanded(_of_a_product, _fused), "L4.contract.float32")
_kernel(
    "bfloat16 by cutting bits", "numbers",
    lambda: expanded(lambda i, k: i.op == "cast" and i.dtype == "bfloat16" and k.buffers[0] == "float32", _cut),
    "L4.storage.bfloat16",
)  # fmt: skip
_kernel("sums rounded to float16", "numbers", lambda: expanded(
    lambda i, _k: i.op == "reduce" and i.attr == "sum" and i.dtype == "float32", _narrowed("float16")),
    "L4.reduce.sum.float32", "L4.product.float32")  # fmt: skip
_kernel("sums of bfloat16 stay bfloat16", "numbers", lambda: expanded(
    lambda i, k: i.op == "reduce" and k.buffers[0] == "bfloat16", _narrowed("bfloat16")),
    "L4.reduce.storage.bfloat16")  # fmt: skip
_kernel("one operand of products twice", "numbers", lambda: lambda launch: launch.with_body(
    lambda i: i._replace(args=(i.args[0], i.args[0])) if i.op == "multiply" else i), "L4.product.float64")  # fmt: skip
_kernel("subtract swapped, found at random", "fusion", lambda: swapped("subtract"), "L5.random.3")

# ---- order ------------------------------------------------------------------------------------------------------


def _losing() -> Change:
    seen = [0]

    def change(launch: Launch) -> Launch | None:
        seen[0] += 1
        return None if seen[0] % 37 == 0 else launch

    return change


_kernel("every 37th launch lost", "order", _losing, "L7.order.read_after_many", "L7.order.read_after_write")


class Pending:
    """Makes launches late: `rules` say what does not wait for them."""

    def __init__(self, inner: Any, *, rules: str, most: int = 1) -> None:
        self.inner, self.rules, self.most = inner, rules, most
        self.waiting: list[Any] = []

    def flush(self) -> None:
        """Make the launches that wait, the latest first if that is the rule."""
        waiting, self.waiting = self.waiting, []
        for launch in reversed(waiting) if self.rules == "launches" else waiting:
            self.inner.polygrad_launch_fused(*launch)

    @hookimpl(tryfirst=True)
    def polygrad_launch_fused(
        self, device: DeviceInfo, kernel: Kernel, buffers: Sequence[Any], ints: tuple[int, ...], scalars: Sequence[Any]
    ) -> Any:
        if len(self.waiting) >= self.most:
            self.flush()
        self.waiting.append((device, kernel, buffers, ints, scalars))
        return DONE

    @hookimpl(tryfirst=True)
    def polygrad_launch_op(
        self, device: DeviceInfo, op: str, outs: Sequence[Ref], ins: Sequence[Ref], attrs: dict[str, Any]
    ) -> Any:
        if op != self.rules:
            self.flush()
        self.inner.polygrad_launch_op(device, op, outs, ins, attrs)
        return DONE

    @hookimpl(tryfirst=True)
    def polygrad_free(self, device: DeviceInfo, handle: Any) -> Any:
        if self.rules == "free":
            poison = memoryview(bytes(64))
            ref = Ref(handle, 0, (64,), (1,), "uint8")
            self.inner.polygrad_launch_op(device, "write", (ref,), (), {"data": poison})
        self.flush()
        self.inner.polygrad_free(device, handle)
        return DONE


def _order(name: str, rules: str, *killers: str, most: int = 1) -> None:
    MUTANTS.append(Mutant(name, "order", lambda inner: Pending(inner, rules=rules, most=most), killers))


_order("writes overtake launches", "write", "L7.order.write_after_read", "L7.order.source_reuse")
_order("reads do not wait", "read", "L7.order.slow_then_read")
_order("launches in reverse", "launches", "L7.order.write_after_write", most=2)
_order("memory is reused before its launch", "free", "L7.order.free_early")
_order("launch scalars read late", "nothing", "L7.order.scalars")
MUTANTS.append(
    Mutant(
        "free does nothing, in a loop",
        "order",
        lambda i: MemoryMutant(i, None, lambda *_: None),
        ("L7.order.room",),
        TINY,
    )
)

# ---- threads ----------------------------------------------------------------------------------------------------


class _SharedSlot:
    """Keeps what it is asked in one place for all threads, and looks a moment later."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.slot: Any = None

    @hookimpl(tryfirst=True)
    def polygrad_launch_fused(
        self, device: DeviceInfo, kernel: Kernel, buffers: Sequence[Any], ints: tuple[int, ...], scalars: Sequence[Any]
    ) -> Any:
        self.slot = (device, kernel, buffers, ints, scalars)
        time.sleep(0.002)
        self.inner.polygrad_launch_fused(*self.slot)
        return DONE


class _SharedBlock:
    """Gives the block that was allocated last, a moment later; frees none."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.latest: Any = None

    @hookimpl(tryfirst=True)
    def polygrad_allocate(self, device: DeviceInfo, nbytes: int) -> Any:
        self.latest = self.inner.polygrad_allocate(device, max(nbytes, 1 << 14))
        time.sleep(0.002)
        return self.latest

    @hookimpl(tryfirst=True)
    def polygrad_free(self, device: DeviceInfo, handle: Any) -> Any:  # noqa: ARG002  pluggy finds arguments by name
        return DONE


class _SharedProgram:
    """Runs the program that was asked for last, a moment later, on the right arguments."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.kernel: Any = None

    @hookimpl(tryfirst=True)
    def polygrad_launch_fused(
        self, device: DeviceInfo, kernel: Kernel, buffers: Sequence[Any], ints: tuple[int, ...], scalars: Sequence[Any]
    ) -> Any:
        self.kernel = kernel
        time.sleep(0.002)
        self.inner.polygrad_launch_fused(device, self.kernel, buffers, ints, scalars)
        return DONE


MUTANTS += [
    Mutant("one argument list for all threads", "threads", _SharedSlot, ("L9.threads.one_kernel",)),
    Mutant("one program for all threads", "threads", _SharedProgram, ("L9.threads.many_kernels",)),
    Mutant("one block for all threads", "threads", _SharedBlock, ("L9.threads.memory",)),
]
