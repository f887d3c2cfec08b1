"""The cc driver: open, memory, kernels. Read top to bottom.

Here: what the waist asks for. Not here: the compiler (`compiler.py`), the C text (polygrad's shared renderer).
"""

import ctypes
import os
import platform
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from polygrad.driver import (
    REDUCTIONS, SCALAR_OPS, DeviceInfo, DriverBase, DriverInfo, DriverUnavailable, Features, Kernel, Limits,
    OutOfMemory, Prepared, Ref,
)  # fmt: skip
from polygrad.driver.ir import DTYPES, ITEMSIZE
from polygrad.driver.render import C99, argument_value, collapse, cpu_style
from polygrad_driver_cc.compiler import Compiler

ALIGNMENT = 64
C_TYPES = {"float32": ctypes.c_float, "float64": ctypes.c_double}
C_TYPES |= {f"{sign}int{n}": getattr(ctypes, f"c_{sign}int{n}") for sign in ("", "u") for n in (8, 16, 32, 64)}
MEMORY = ("buffer", "scratch", "local")


class Block:
    """Host memory, its own or adopted: a NumPy array of bytes and the address of its first."""

    def __init__(self, memory: Any, owned: int) -> None:
        self.memory, self.address, self.owned = memory, memory.ctypes.data, owned


class CcDriver(DriverBase):
    """Kernels as C99 from the shared renderer, compiled by the system's compiler, run on a few threads."""

    info = DriverInfo(
        "cc", "the host's cores through the system's C compiler", "a C compiler: cc, gcc or clang", api=(1, 0), ir=(1, 0)
    )

    def open(self, ordinal: int, options: Mapping[str, str]) -> DeviceInfo:
        if ordinal != 0:
            raise DriverUnavailable(f"there is no device cc:{ordinal}; the cores of this machine are one device, cc:0")
        self.compiler, self.lock, self.used = Compiler(), threading.Lock(), 0
        self.threads = int(options.get("threads", os.cpu_count() or 1))
        self.pool = ThreadPoolExecutor(self.threads, "polygrad-cc")
        self.total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        self.prepared: dict[Kernel, Program] = {}
        return DeviceInfo(
            "cc", 0, platform.processor() or platform.machine(), frozenset(DTYPES), frozenset(SCALAR_OPS),
            frozenset(REDUCTIONS), version=self.compiler.version, extra={"threads": str(self.threads)},
            limits=Limits(self.total, self.total, ALIGNMENT, partials=4 * self.threads),
            features=Features(host_memory=True, correctly_rounded=True, thread_safety="free"),
        )  # fmt: skip

    def close(self) -> None:
        self.pool.shutdown()

    # ---- memory -------------------------------------------------------------------------------------------

    def allocate(self, nbytes: int) -> Block:
        with self.lock:  # the system grants what it does not have, so what is asked for is added up
            if nbytes > self.total - self.used:
                raise OutOfMemory(
                    f"cc:0 cannot allocate {nbytes} bytes: {self.used} of {self.total} are in use; drop arrays that "
                    "are no longer needed"
                )
            self.used += nbytes
        raw = np.empty(nbytes + ALIGNMENT, np.uint8)
        skip = -raw.ctypes.data % ALIGNMENT
        return Block(raw[skip : skip + nbytes], nbytes)

    def free(self, handle: Block) -> None:
        with self.lock:
            self.used -= handle.owned

    def view(self, handle: Block, nbytes: int) -> memoryview:
        return memoryview(handle.memory)[:nbytes]

    def adopt(self, memory: memoryview) -> Block:
        return Block(np.frombuffer(memory, np.uint8), 0)

    def op_write(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        data, start = np.frombuffer(attrs["data"], np.uint8), outs[0].offset * ITEMSIZE[outs[0].dtype]
        outs[0].handle.memory[start : start + data.size] = data

    def op_read(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        into, start = np.frombuffer(attrs["into"], np.uint8), ins[0].offset * ITEMSIZE[ins[0].dtype]
        into[:] = ins[0].handle.memory[start : start + into.size]

    # ---- kernels ------------------------------------------------------------------------------------------

    def prepare_fused(self, kernel: Kernel) -> Prepared:
        return self.prepared.setdefault(kernel, Program(self, kernel))


class Program:
    """A kernel; for each tuple of launch ints that it meets, the functions to call and what they take."""

    def __init__(self, driver: CcDriver, kernel: Kernel) -> None:
        self.driver, self.kernel, self.launches = driver, kernel, dict[tuple[int, ...], Any]()

    def __call__(self, buffers: Sequence[Block], ints: tuple[int, ...], scalars: Sequence[Any]) -> None:
        found = self.launches.get(ints)
        if found is None:
            found = self.launches[ints] = self._plan(ints)
        bound, sizes, stages = found
        scratch = np.empty(sizes.scratch, np.uint8)
        values = [argument_value(value, dtype) for value, dtype in zip(scalars, self.kernel.scalars, strict=True)]
        first = [*(block.address for block in buffers), *bound, *values]

        for (function, rest), items in zip(stages, sizes.items, strict=True):

            def run(item: int, function: Any = function, rest: Any = rest, items: int = items) -> None:
                rows = [np.empty(n, np.uint8) for n in sizes.local]  # what an item keeps of a row
                given = {"extra": [sizes.parts], "scratch": [scratch.ctypes.data], "local": [r.ctypes.data for r in rows]}
                function(*first, *[given[a.kind][a.position] for a in rest], item, items)

            if items == 1:
                run(0)
            else:
                list(self.driver.pool.map(run, range(items)))

    def _plan(self, ints: tuple[int, ...]) -> tuple[tuple[int, ...], cpu_style.Sizes, list[Any]]:
        kernel, ints = collapse(self.kernel, ints)
        plan = cpu_style.plan(kernel, ints, self.driver.threads, C99)
        source = cpu_style.render(kernel, plan, C99)
        library, stages = self.driver.compiler.load(source.text), []
        for stage in source.stages:
            function = library[stage.name]
            types = [ctypes.c_void_p if a.kind in MEMORY else C_TYPES[a.dtype] for a in stage.arguments]
            function.argtypes, function.restype = [*types, ctypes.c_int64, ctypes.c_int64], None
            rest = [a for a in stage.arguments if a.kind not in ("buffer", "int", "scalar")]
            stages.append((function, rest))
        return ints, cpu_style.sizes(kernel, plan, ints, self.driver.threads), stages
