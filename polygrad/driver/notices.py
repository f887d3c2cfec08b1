"""What a driver offers if the host can read what launches wrote without asking the device for a copy.

Here: the interface.
Not here: any implementation; what is written there (`ir.py`), when it is read (`polygrad.runtime.devices`).

Whether launches met a bad index is asked for often, and mostly by somebody who has more to launch. With a copy he waits
until the device has done everything, and launches the rest when it is idle. With a mark he waits for the launches that
look at indices, which come early in a step.
"""

from typing import Protocol

from polygrad.driver.types import Handle


class Notices(Protocol):
    """A few bytes of one open device that launches write and the host reads, from `polygrad_notices`.

    Kernels take the handle as the buffer of their status word, ops in their attribute ``status``; "write" and "read"
    take it as any other. The core reads and writes `memory` only when the device is past every launch that may write
    there.

    Attributes
    ----------
    handle : Handle
        As of `polygrad_allocate`; it stays until the device is closed, and is not given to `polygrad_free`.
    memory : memoryview
        The same bytes on the host, writable; zero at first.
    """

    handle: Handle
    memory: memoryview

    def mark(self) -> None:
        """Mark the place after all launches made so far, without waiting; only the last mark counts.

        While launches are written down (see `bundles.py`), so is the mark: each launch of the bundle makes it anew.
        """

    def wait(self) -> None:
        """Wait until the device is past the last mark; what the launches before it wrote is in `memory` then.

        Launches after the mark may still be under way. Raise what the device met.
        """
