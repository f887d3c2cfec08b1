"""A few bytes of pinned memory where kernels report what they met, and marks on the stream.

Here: the memory, and one event. Not here: what is written (the kernels), when it is looked at (the core).

Pinned memory has one address on the host and on the device. A kernel touches it only if there is something to report,
so that its distance costs nothing. What it wrote is there for the host when an event after it has happened.
"""

import ctypes
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from polygrad_cuda.driver import CudaDriver

MAPPED = 2  # cudaHostAllocMapped


class CudaNotices:
    """The status word of one device."""

    def __init__(self, driver: "CudaDriver", nbytes: int) -> None:
        self.driver = driver
        with driver.vendor_calls("asking for memory that the host reads"):
            self.handle = int(driver.runtime.hostAlloc(nbytes, MAPPED))
            self.memory = memoryview((ctypes.c_uint8 * nbytes).from_address(self.handle)).cast("B")
            self.memory[:] = bytes(nbytes)
            self.event = int(driver.runtime.eventCreateWithFlags(driver.runtime.eventDisableTiming))

    def mark(self) -> None:
        """Record the event on the stream, or write it into the graph that is captured."""
        driver = self.driver
        with driver.vendor_calls("marking a place among launches"):
            if driver.capturing:
                driver.nodes.record(self.event, driver.stream)
            else:
                driver.runtime.eventRecord(self.event, driver.stream)

    def wait(self) -> None:
        """Wait for the event."""
        driver = self.driver
        with driver.vendor_calls("waiting for launches that look at indices"):
            driver.runtime.eventSynchronize(self.event)

    def close(self) -> None:
        """Give event and memory back; the stream is idle."""
        self.driver.runtime.eventDestroy(self.event)
        self.driver.runtime.freeHost(self.handle)
