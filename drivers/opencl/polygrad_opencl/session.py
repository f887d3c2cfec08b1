"""One open device: its context, its in-order queue, its programs, and how a kernel of known text is run.

Here: what the modules that launch something share. Not here: fused kernels (`fused.py`), ops, memory accounting.
"""

import threading
from collections.abc import Sequence
from typing import Any

from polygrad.driver.caches import ProgramCache, cache_folder
from polygrad_opencl import devices
from polygrad_opencl.faults import translated
from polygrad_opencl.programs import ProgramStore

KEPT = 1 << 14  # bytes
Argument = tuple[Any, Any]  # its scalar dtype, or None for a buffer or local memory; its value


class Session:
    """A device with everything that stays open while it is in use."""

    def __init__(self, device: Any, label: str) -> None:
        cl = devices.vendor_library()
        self.cl = cl
        self.label = label
        self.device = device
        self.context = cl.Context([device])
        self.queue = cl.CommandQueue(self.context, device)
        self.store = ProgramStore(cl, self.queue, ProgramCache(cache_folder("opencl")))
        self.kind = devices.device_kind(device)
        self.simulated = devices.is_simulator(device)
        self.compute_units = max(1, device.max_compute_units)
        self.unified = bool(device.host_unified_memory)
        self.extensions = frozenset(device.extensions.split())
        self.float64 = "cl_khr_fp64" in self.extensions or bool(getattr(device, "double_fp_config", 0))
        self._kept: list[Any] = []
        self.lock = threading.RLock()  # held over launches that share scratch memory and must not be interleaved
        self._scratch: Any = None

    def released(self, buffer: Any, nbytes: int) -> None:
        """Release a buffer.

        A simulator keeps the small ones: where a buffer takes the place of a smaller one, Oclgrind 21.10 goes on with
        the smaller one's record of what is initialised, and reports all that lies beyond it.
        """
        if self.simulated and nbytes <= KEPT:
            self._kept.append(buffer)
        else:
            buffer.release()

    def close(self) -> None:
        """Wait for the queue and give up the scratch memory."""
        self.finish()
        with self.lock:
            if self._scratch is not None:
                self._scratch.release()
                self._scratch = None

    def finish(self) -> None:
        """Wait for all launches."""
        devices.check_process()
        try:
            self.queue.finish()
        except self.cl.Error as error:
            raise translated(error, self.label, "finish its queue") from error

    def scratch(self, nbytes: int) -> Any:
        """Return a buffer of at least *nbytes* for one op, under `lock`; the queue's order makes reuse safe."""
        if self._scratch is None or self._scratch.size < nbytes:
            if self._scratch is not None:
                self.released(self._scratch, 0)  # always kept by a simulator, since a bigger one follows
                self._scratch = None
            size = 1 << max(16, (nbytes - 1).bit_length())
            try:
                self._scratch = self.cl.Buffer(self.context, self.cl.mem_flags.READ_WRITE, size)
            except (self.cl.Error, MemoryError) as error:
                raise translated(error, self.label, f"allocate {size} bytes of scratch memory") from error
        return self._scratch

    def run(
        self, source: str, name: str, size: tuple[int, ...], group: tuple[int, ...], arguments: Sequence[Argument]
    ) -> None:
        """Launch kernel *name* of *source* on a grid of *size* work-items in groups of *group*."""
        devices.check_process()
        program = self.store.program(source)
        kernel = program.kernel(name, [dtype for dtype, _ in arguments])
        try:
            kernel(self.queue, size, group, *[value for _, value in arguments])
        except self.cl.Error as error:
            raise translated(error, self.label, f"run kernel {name!r}") from error
        program.launched(name)
