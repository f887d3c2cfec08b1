"""The cc driver: open, memory, kernels, one op. Read top to bottom.

Here: what the waist asks for. Not here: the compiler (`compiler.py`), the C text (polygrad's shared renderer).
"""

import ctypes
import functools
import os
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from polygrad import driver as pg
from polygrad.driver.ir import DTYPES, ITEMSIZE, STORAGE
from polygrad.driver.oracle import compute_dtype
from polygrad.driver.render import C99, argument_value, collapse, cpu_style
from polygrad_driver_cc.compiler import Compiler

ALIGNMENT = 64
C_TYPES = {"float32": ctypes.c_float, "float64": ctypes.c_double}
C_TYPES |= {f"{sign}int{n}": getattr(ctypes, f"c_{sign}int{n}") for sign in ("", "u") for n in (8, 16, 32, 64)}
NUMBERS = ("int", "scalar", "extra")


class Block:
    """Host memory, its own or adopted: an array of bytes, the address of the first, how many count as allocated."""

    def __init__(self, memory: Any, counted: int) -> None:
        self.memory, self.address, self.counted = memory, memory.ctypes.data, counted


class CcDriver(pg.DriverBase):
    """Kernels as C99 from the shared renderer, compiled by the system's compiler, run on a few threads."""

    info = pg.DriverInfo("cc", "the host's cores through C", "a compiler: cc, gcc or clang", api=(1, 0), ir=(1, 0))

    def open(self, ordinal: int, options: Mapping[str, str]) -> pg.DeviceInfo:
        if ordinal != 0:
            raise pg.DriverUnavailable(f"there is no device cc:{ordinal}; the cores of a machine are one device, cc:0")
        self.compiler, self.lock, self.used = Compiler(), threading.Lock(), 0
        self.total, self.threads = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), os.cpu_count() or 1
        self.pool, self.programs = ThreadPoolExecutor(self.threads, "polygrad-cc"), dict[pg.Kernel, Program]()
        return pg.DeviceInfo(
            "cc", 0, os.uname().machine, frozenset(DTYPES), frozenset(pg.SCALAR_OPS),
            frozenset(pg.REDUCTIONS), version=self.compiler.version, extra={"threads": str(self.threads)},
            limits=pg.Limits(self.total, self.total, ALIGNMENT, partials=4 * self.threads),
            features=pg.Features(host_memory=True, correctly_rounded=True, thread_safety="free"),
        )  # fmt: skip

    def close(self) -> None:
        self.pool.shutdown()

    def allocate(self, nbytes: int) -> Block:
        with self.lock:  # the system grants what it does not have, so what is asked for is added up
            if nbytes > self.total - self.used:
                have = f"{self.used} of {self.total} are in use"
                raise pg.OutOfMemory(f"cc:0 cannot allocate {nbytes} bytes: {have}; drop arrays no longer needed")
            self.used += nbytes
        raw = np.empty(nbytes + ALIGNMENT, np.uint8)
        skip = -raw.ctypes.data % ALIGNMENT
        return Block(raw[skip : skip + nbytes], nbytes)

    def free(self, handle: Block) -> None:
        with self.lock:
            self.used -= handle.counted

    def view(self, handle: Block, nbytes: int) -> memoryview:
        return memoryview(handle.memory)[:nbytes]

    def adopt(self, memory: memoryview) -> Block:
        return Block(np.frombuffer(memory, np.uint8), 0)

    def op_write(self, outs: Sequence[pg.Ref], ins: Sequence[pg.Ref], attrs: Mapping[str, Any]) -> None:
        start = outs[0].offset * ITEMSIZE[outs[0].dtype]
        memoryview(outs[0].handle.memory)[start : start + len(attrs["data"])] = attrs["data"]

    def op_read(self, outs: Sequence[pg.Ref], ins: Sequence[pg.Ref], attrs: Mapping[str, Any]) -> None:
        start = ins[0].offset * ITEMSIZE[ins[0].dtype]
        attrs["into"][:] = memoryview(ins[0].handle.memory)[start : start + len(attrs["into"])]

    def op_matmul(self, outs: Sequence[pg.Ref], ins: Sequence[pg.Ref], attrs: Mapping[str, Any]) -> None:
        out, a, b = map(_array, (*outs, *ins))
        out[...] = np.matmul(a, b, dtype=np.float32 if outs[0].dtype in STORAGE else out.dtype)

    def source_text(self, kernel: pg.Kernel, ints: tuple[int, ...]) -> str:
        kernel, ints = collapse(kernel, ints)
        return cpu_style.render(kernel, cpu_style.plan(kernel, ints, self.threads, C99), C99).text

    def prepare_fused(self, kernel: pg.Kernel) -> pg.Prepared:
        return self.programs.setdefault(kernel, Program(self, kernel))


def _array(ref: pg.Ref) -> Any:
    size, memory = ITEMSIZE[ref.dtype], ref.handle.memory
    return np.ndarray(ref.shape, compute_dtype(ref.dtype), memory, size * ref.offset, [size * s for s in ref.strides])


class Program:
    """A kernel; for each tuple of launch ints that it meets, the functions to call and what they take."""

    def __init__(self, driver: CcDriver, kernel: pg.Kernel) -> None:
        self.driver, self.kernel, self.launches = driver, kernel, dict[tuple[int, ...], Any]()

    def __call__(self, buffers: Sequence[Block], ints: tuple[int, ...], scalars: Sequence[Any]) -> None:
        bound, sizes, stages = self.launches.get(ints) or self.launches.setdefault(ints, self._plan(ints))
        given = [*(block.address for block in buffers), *bound, *map(argument_value, scalars, self.kernel.scalars)]
        scratch = np.empty(sizes.scratch, np.uint8)
        given += [sizes.parts, scratch.ctypes.data] if sizes.scratch else []
        for (function, kept), items in zip(stages, sizes.items, strict=True):
            run = functools.partial(self._run, function, given, kept, items)
            list((self.driver.pool.map if items > 1 else map)(run, range(items)))

    @staticmethod
    def _run(function: Any, given: Sequence[Any], kept: Sequence[int], items: int, item: int) -> None:
        rows = [np.empty(nbytes, np.uint8) for nbytes in kept]  # what this item keeps of a row, from walk to walk
        function(*given, *(row.ctypes.data for row in rows), item, items)

    def _plan(self, ints: tuple[int, ...]) -> tuple[tuple[int, ...], cpu_style.Sizes, list[Any]]:
        kernel, ints = collapse(self.kernel, ints)
        plan = cpu_style.plan(kernel, ints, self.driver.threads, C99)
        sizes, source = cpu_style.sizes(kernel, plan, ints, self.driver.threads), cpu_style.render(kernel, plan, C99)
        library, stages = self.driver.compiler.load(source.text), []
        for name, arguments in source.stages:
            function = library[name]
            function.argtypes = [C_TYPES[a.dtype] if a.kind in NUMBERS else ctypes.c_void_p for a in arguments]
            function.argtypes += [ctypes.c_int64, ctypes.c_int64]
            stages.append((function, [sizes.local[a.position] for a in arguments if a.kind == "local"]))
        return ints, sizes, stages
