"""Copies between host memory and a device through two pinned slabs.

Here: the slabs, and the order in which they are filled and reused. Not here: device memory, kernels, error translation.

A copy from ordinary host memory would wait for the stream; a copy from a pinned slab is queued. So a write costs one
memory copy on the host and returns, and the slab is used again only once the device has read it.
"""

import ctypes
from typing import Any

import numpy as np

SLAB = 8 << 20  # bytes; two of them keep a link of 50 GB/s busy while the host copies


class Staging:
    """Two pinned slabs for one stream of one device; not for two threads at once."""

    def __init__(self, runtime: Any, stream: int) -> None:
        self.runtime = runtime
        self.stream = stream
        self.pointers = [runtime.hostAlloc(SLAB, runtime.hostAllocDefault) for _ in range(2)]
        self.slabs = [
            np.frombuffer(memoryview((ctypes.c_uint8 * SLAB).from_address(p)), np.uint8) for p in self.pointers
        ]
        self.events = [runtime.eventCreateWithFlags(runtime.eventDisableTiming) for _ in range(2)]
        self.active = 0
        self.used = 0  # bytes of the active slab that queued copies may still read

    def close(self) -> None:
        """Give the slabs back; the stream must be idle."""
        for pointer in self.pointers:
            self.runtime.freeHost(pointer)
        for event in self.events:
            self.runtime.eventDestroy(event)
        self.pointers, self.slabs, self.events = [], [], []

    def write(self, target: int, data: memoryview) -> None:
        """Queue a copy of *data* to the device address *target*; *data* is free for reuse when this returns."""
        source = np.frombuffer(data, np.uint8)
        runtime, done = self.runtime, 0
        while done < source.size:
            if self.used >= SLAB:
                self._turn()
            taken = min(source.size - done, SLAB - self.used)
            self.slabs[self.active][self.used : self.used + taken] = source[done : done + taken]
            place = self.pointers[self.active] + self.used
            runtime.memcpyAsync(target + done, place, taken, runtime.memcpyHostToDevice, self.stream)
            done += taken
            self.used += -(-taken // 64) * 64

    def read(self, source: int, into: memoryview) -> None:
        """Copy from the device address *source* after all that is queued, and wait for it."""
        target = np.frombuffer(into, np.uint8)
        runtime, size = self.runtime, target.size
        if size <= SLAB:
            runtime.memcpyAsync(self.pointers[0], source, size, runtime.memcpyDeviceToHost, self.stream)
            runtime.streamSynchronize(self.stream)
            target[:] = self.slabs[0][:size]
            self.used = 0
            return
        starts = list(range(0, size, SLAB))
        self._fetch(source, starts[0], size, 0)
        for number, start in enumerate(starts):
            slot = number % 2
            if number + 1 < len(starts):
                self._fetch(source, starts[number + 1], size, 1 - slot)
            runtime.eventSynchronize(self.events[slot])
            end = min(start + SLAB, size)
            target[start:end] = self.slabs[slot][: end - start]
        self.used = 0  # the stream is in order: what was queued from the slabs before is done too

    def _fetch(self, source: int, start: int, size: int, slot: int) -> None:
        runtime, taken = self.runtime, min(SLAB, size - start)
        runtime.memcpyAsync(self.pointers[slot], source + start, taken, runtime.memcpyDeviceToHost, self.stream)
        runtime.eventRecord(self.events[slot], self.stream)

    def _turn(self) -> None:
        runtime = self.runtime
        runtime.eventRecord(self.events[self.active], self.stream)
        self.active = 1 - self.active
        runtime.eventSynchronize(self.events[self.active])
        self.used = 0
