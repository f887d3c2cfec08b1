"""A device that does nothing before it is waited for: what a test finds undone, nobody has waited for.

Here: `Lagging`, a device behind numbers for handles with a queue; it has notices and, as `lagging:1`, writes launches
down. Not here: tests; how launches are written down (`scribe.py`).
"""

import numpy as np

from polygrad.driver import DriverInfo
from support.scribe import Writer


class Lagging(Writer):
    """Devices `lagging:0` and `lagging:1`."""

    info = DriverInfo("lagging", summary="does nothing before it is waited for")
    offered = True  # whether the hook gives the notices that the device declares

    @classmethod
    def count(cls):
        return 2

    def open(self, ordinal, options):
        self.queue, self.reads, self.board = [], 0, None
        return super().open(ordinal, options)

    def features(self, ordinal):
        return {"asynchronous": True, "notices": True, "capture": ordinal == 1}

    def free(self, handle):
        self.catch_up()
        super().free(handle)

    def do(self, what, launch):
        super().do(what, launch)
        if what == "read":
            self.catch_up()
            self.reads += 1

    def make(self, launch):
        self.queue.append(launch)

    def catch_up(self, until=None):
        """Do what is queued; *until* a mark, if there is one."""
        while self.queue:
            launch = self.queue.pop(0)
            launch()
            if launch is until:
                return

    def synchronize(self):
        self.catch_up()

    def notices(self, nbytes):
        if self.offered:
            self.board = Board(self, nbytes)
        return self.board


class Board:
    """What `polygrad_notices` gives."""

    def __init__(self, driver, nbytes):
        self.driver, self.handle, self.last = driver, next(driver.addresses), None
        driver.memory[self.handle] = np.zeros(nbytes, np.uint8)
        self.memory = memoryview(driver.memory[self.handle])
        self.marks = 0

    def mark(self):
        if self.driver.pages is not None:
            self.driver.pages.append(self.mark)
            return
        self.marks += 1
        self.last = lambda: None  # another each time
        self.driver.make(self.last)

    def wait(self):
        if self.last in self.driver.queue:
            self.driver.catch_up(self.last)
