"""The strict driver: a device that does not exist, correct by definition and unforgiving.

Here: integer handles, memory that is reached through write and read alone, worker threads with seeded delays, and
kernels run by the oracle. Not here: speed.

Devices: ``strict:0`` plain, ``:1`` without float64, ``:2`` without int64, ``:3`` without float16 and bfloat16, ``:4``
with a megabyte of memory, ``:5`` with two queues, ``:6`` with host memory, ``:7`` with every accelerated op (the others
have none), ``:8`` with these too, and launches can be written down and leave notices. A launch names the blocks that it
touches; it starts when the earlier launches that touch them have ended, whichever queue they are in. What a launch
raises comes out at the next read or synchronisation. Option ``delay``: the longest pause before a launch, in seconds;
``seed`` its generator.
"""

import functools
import itertools
import queue
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from polygrad.driver import (
    REDUCTIONS,
    SCALAR_OPS,
    DeviceInfo,
    DriverBase,
    DriverError,
    DriverInfo,
    DriverUnavailable,
    Features,
    Kernel,
    Limits,
    MemoryInfo,
    OutOfMemory,
    Prepared,
    Ref,
)
from polygrad.driver.ir import DTYPES, ITEMSIZE
from polygrad.driver.loader import Registry
from polygrad_conformance import strict_capture, strict_many, strict_notices, strict_ops, strict_sharing

VARIANTS = (
    "plain", "no_float64", "no_int64", "no_float16", "tiny_memory", "two_queues", "host_memory", "library",
    "capture",
)  # fmt: skip
LACKS = {
    "no_float64": {"float64"},
    "no_int64": {"int64", "uint64", "float64"},
    "no_float16": {"float16", "bfloat16"},
}
Array = np.ndarray[Any, Any]


class Job:
    """A launch under way."""

    def __init__(self, work: Callable[[], None], after: list["Job"]) -> None:
        self.work: Callable[[], None] | None = work
        self.after = after
        self.done = threading.Event()


class Queue:
    """Work in order, done by a thread of its own after seeded delays."""

    def __init__(self, seed: int, delay: float, failed: Callable[[BaseException], None]) -> None:
        self.jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        arguments = (self.jobs, random.Random(seed), delay, failed)  # noqa: S311  delays, not secrets
        self.thread = threading.Thread(target=_serve, args=arguments, daemon=True, name="strict queue")
        self.thread.start()
        weakref.finalize(self, self.jobs.put, None)

    def put(self, job: Job) -> None:
        """Enqueue *job*."""
        self.jobs.put(job)


def _serve(
    jobs: "queue.SimpleQueue[Job | None]", rng: random.Random, delay: float, failed: Callable[[BaseException], None]
) -> None:
    while (job := jobs.get()) is not None:
        for earlier in job.after:
            earlier.done.wait()
        if delay and rng.random() < 0.1:
            time.sleep(delay * rng.random())
        try:
            assert job.work is not None
            job.work()
        except Exception as error:
            failed(error)
        finally:
            job.work, job.after = None, []
            job.done.set()


class StrictDriver(DriverBase):
    """See the module's docstring."""

    info: ClassVar[DriverInfo] = DriverInfo("strict", summary="a correct and unforgiving device, for tests")

    @classmethod
    def count(cls) -> int:
        return len(VARIANTS)

    def open(self, ordinal: int, options: Mapping[str, str]) -> DeviceInfo:
        """Open one of the variants."""
        if ordinal >= len(VARIANTS):
            raise DriverUnavailable(f"there is no device strict:{ordinal}")
        self.variant = VARIANTS[ordinal]
        tiny, hosted = self.variant == "tiny_memory", self.variant == "host_memory"
        self.total = 1 << 20 if tiny else 1 << 30
        self.limits = Limits(max_alloc=self.total // 4, total=self.total, alignment=64, partials=4)
        self.used = 0
        self.blocks: dict[int, Array] = {}
        self.touched: dict[int, Job] = {}  # the last job of each block
        self.handles = itertools.count(1000, 8)
        self.lock = threading.RLock()
        self.errors: list[BaseException] = []
        seed, delay = int(options.get("seed", "0")), float(options.get("delay", "0.0005"))
        count = 2 if self.variant == "two_queues" else 1
        self.queues = [Queue(seed + k, delay, self.errors.append) for k in range(count)]
        self.turn = 0
        self.pages: list[strict_capture.Page] | None = None  # what is written down
        return DeviceInfo(
            self.info.name,
            ordinal,
            f"oracle, {self.variant}",
            dtypes=frozenset(DTYPES) - LACKS.get(self.variant, set()),
            scalar_ops=frozenset(SCALAR_OPS),
            reductions=frozenset(REDUCTIONS),
            # None: what the driver implements, which DriverBase fills in; DeviceInfo is typed as it is afterwards.
            ops=None if self.variant in ("library", "capture") else frozenset(),  # type: ignore[arg-type]
            limits=self.limits,
            features=Features(
                asynchronous=not hosted,
                host_memory=hosted,
                correctly_rounded=True,
                thread_safety="free",
                capture=self.variant == "capture",
                many=self.variant == "capture",
                notices=self.variant == "capture",
                placed=self.variant == "library",
            ),
        )

    def close(self) -> None:
        self.synchronize()
        for each in self.queues:
            each.jobs.put(None)
        self.blocks.clear()

    # ---- memory -------------------------------------------------------------------------------------------

    def allocate(self, nbytes: int) -> int:
        if nbytes <= 0:
            raise DriverError(f"cannot allocate {nbytes} bytes: a block has at least 1")
        with self.lock:
            if nbytes > self.limits.max_alloc or self.used + nbytes > self.total:
                raise OutOfMemory(f"cannot allocate {nbytes} bytes: {self.used} of {self.total} are in use")
            self.used += nbytes
            handle = next(self.handles)
            room = np.full(nbytes + 64, 0xCD, np.uint8)
            start = -room.ctypes.data % 64
            self.blocks[handle] = room[start : start + nbytes]
        return handle

    def free(self, handle: int) -> None:
        with self.lock:
            self.block(handle)
            self.used -= len(self.blocks[handle])
            self.enqueue([handle], lambda: self._drop(handle))

    def _drop(self, handle: int) -> None:
        with self.lock:
            del self.blocks[handle]
            del self.touched[handle]

    def block(self, handle: Any) -> Array:
        """Return the bytes behind a handle."""
        found = self.blocks.get(handle) if type(handle) is int else None
        if found is None:
            raise DriverError(f"{handle!r} is no block of this device, or was freed")
        return found

    def memory_info(self) -> MemoryInfo:
        return MemoryInfo(self.total - self.used, self.total)

    def view(self, handle: int, nbytes: int) -> memoryview | None:
        if self.variant != "host_memory":
            return None
        self.synchronize()
        return self.block(handle)[:nbytes].data

    def adopt(self, memory: memoryview) -> int | None:
        return self.enter(np.frombuffer(memory, np.uint8)) if self.variant == "host_memory" else None

    def enter(self, block: Array) -> int:
        """Return a handle on foreign memory."""
        with self.lock:
            handle = next(self.handles)
            self.blocks[handle] = block
            self.used += len(block)
        return handle

    def export(self, ref: Ref, owner: object) -> Any | None:
        return strict_sharing.export(self, ref, owner) if self.variant == "host_memory" else None

    def import_(self, producer: Any) -> tuple[Ref, object] | None:
        return strict_sharing.import_(self, producer) if self.variant == "host_memory" else None

    # ---- work ---------------------------------------------------------------------------------------------

    def enqueue(self, handles: Iterable[int], work: Callable[[], None]) -> Job:
        """Put work that touches some blocks into a queue."""
        with self.lock:
            handles = list(handles)
            job = Job(work, [self.touched[h] for h in handles if h in self.touched])
            for handle in handles:
                self.touched[handle] = job
            self.turn = (self.turn + 1) % len(self.queues)
            self.queues[self.turn].put(job)
        return job

    def launch(self, handles: Iterable[int], work: Callable[[], None]) -> None:
        """Enqueue a launch, or write it down."""
        if self.pages is None:
            self.enqueue(handles, work)
        else:
            self.pages.append((list(handles), work))

    def capture(self) -> strict_capture.Capturing | None:
        return strict_capture.Capturing(self) if self.variant == "capture" else None

    def notices(self, nbytes: int) -> strict_notices.Notices | None:
        return strict_notices.Notices(self, nbytes) if self.variant == "capture" else None

    def synchronize(self) -> None:
        for job in list(self.touched.values()):
            job.done.wait()
        self.raise_errors()

    def raise_errors(self) -> None:
        """Raise what a launch has met since this was last asked."""
        with self.lock:
            errors = list(self.errors)
            self.errors.clear()
        if errors:
            raise errors[0]

    def op_write(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:  # noqa: ARG002  every op is called with three
        ref, data = outs[0], np.frombuffer(attrs["data"], np.uint8).copy()
        target = self._bytes(ref, len(data))
        self.enqueue([ref.handle], lambda: np.copyto(target, data))

    def op_read(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:  # noqa: ARG002  every op is called with three
        ref, into = ins[0], np.frombuffer(attrs["into"], np.uint8)
        source = self._bytes(ref, len(into))
        self.enqueue([ref.handle], lambda: np.copyto(into, source)).done.wait()
        self.raise_errors()

    def _bytes(self, ref: Ref, nbytes: int) -> Array:
        block, start = self.block(ref.handle), ref.offset * ITEMSIZE[ref.dtype]
        if nbytes != int(np.prod(ref.shape)) * ITEMSIZE[ref.dtype] or start < 0 or start + nbytes > len(block):
            raise DriverError(f"{nbytes} bytes from {start} do not fit {ref} in a block of {len(block)}")
        return block[start : start + nbytes]

    def op_copy(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        self._op(strict_ops.copy, outs, ins, attrs)

    def op_matmul(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        self._op(strict_ops.matmul, outs, ins, attrs)

    def op_matmul_add(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        self._op(strict_ops.matmul_add, outs, ins, attrs)

    def op_random_bits(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        self._op(strict_ops.random_bits, outs, ins, attrs)

    def op_scatter_add(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        self._op(strict_ops.scatter_add, outs, ins, attrs)

    def op_scatter_reduce(self, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        self._op(strict_ops.scatter_reduce, outs, ins, attrs)

    def _op(self, work: Callable[..., None], outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        given, handles = dict(attrs), [r.handle for r in (*outs, *ins)]
        if given.get("status") is not None:
            handles.append(given["status"])
            given["status"] = strict_many.typed(self.block(given["status"]), "int32")
        targets, sources = (
            [strict_ops.seen(strict_many.typed(self.block(r.handle), r.dtype), r) for r in refs] for refs in (outs, ins)
        )
        self.launch(dict.fromkeys(handles), lambda: work(targets, sources, given))

    def prepare_fused(self, kernel: Kernel) -> Prepared:
        return strict_many.Prepared(self, kernel)


def _library_op(name: str) -> Callable[..., None]:
    work = functools.partial(strict_ops.library, name)

    def op(self: StrictDriver, outs: Sequence[Ref], ins: Sequence[Ref], attrs: Mapping[str, Any]) -> None:
        self._op(work, outs, ins, attrs)

    return op


for _name in strict_ops.LIBRARY:
    setattr(StrictDriver, f"op_{_name}", _library_op(_name))


plugin = StrictDriver.plugin()


def register(registry: Registry) -> None:
    """Make the strict devices known to *registry*, if they are not."""
    if "strict" not in registry.loaded:
        registry.register(plugin)
