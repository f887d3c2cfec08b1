"""The strict driver's notices: a block that the host sees, and marks in the queue.

Here: `Notices`. Not here: the driver (`strict.py`).
"""

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from polygrad_conformance.strict import Job, StrictDriver


class Notices:
    """Some bytes, and the last mark; in a list of what is written down, it stands for a mark."""

    def __init__(self, driver: "StrictDriver", nbytes: int) -> None:
        self.driver = driver
        block = np.zeros(nbytes, np.uint8)
        self.handle, self.memory = driver.enter(block), block.data
        self.job: Job | None = None

    def __call__(self) -> None:
        """Do nothing, in its turn."""

    def mark(self) -> None:
        """Put a mark into the queue, or write it down."""
        if self.driver.pages is None:
            self.job = self.driver.enqueue([self.handle], self)
        else:
            self.driver.pages.append(([self.handle], self))

    def wait(self) -> None:
        """Wait for the last mark."""
        if self.job is not None:
            self.job.done.wait()
        self.driver.raise_errors()
