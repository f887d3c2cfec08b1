"""A device that does nothing before it is waited for: what a test finds undone, nobody has waited for.

Here: `Lagging`, the host's device behind numbers for handles and a queue; it has notices and, as `lagging:1`, writes
launches down.
Not here: tests.
"""

import dataclasses
import itertools

import numpy as np

from polygrad.driver import DriverBase, DriverInfo
from polygrad_cpu.driver import CpuDriver


class Lagging(DriverBase):
    """Devices `lagging:0` and `lagging:1`."""

    info = DriverInfo("lagging", summary="does nothing before it is waited for")
    opened = None  # the instance that was opened last, for tests to look at
    offered = True  # whether the hook gives the notices that the device declares

    @classmethod
    def count(cls):
        return 2

    def open(self, ordinal, options):
        self.inner = CpuDriver()
        info = self.inner.open(0, options)
        self.memory, self.addresses = {}, itertools.count(4096, 64)
        self.queue, self.pages, self.changing = [], None, None
        self.reads = self.launched = 0
        self.board = None
        for op in (*CpuDriver.ops(), "write"):
            setattr(self, f"op_{op}", self.launcher_of(op))
        features = dataclasses.replace(
            info.features, asynchronous=True, host_memory=False, fork="unsafe", notices=True, capture=ordinal == 1
        )
        Lagging.opened = self
        return dataclasses.replace(
            info, driver="lagging", ordinal=ordinal, features=features, ops=frozenset(CpuDriver.ops())
        )

    def allocate(self, nbytes):
        handle = next(self.addresses)
        self.memory[handle] = self.inner.allocate(nbytes)
        return handle

    def free(self, handle):
        self.catch_up()
        self.inner.free(self.memory.pop(handle))

    def prepare_fused(self, kernel):
        prepared = self.inner.prepare_fused(kernel)

        def launch(buffers, ints, scalars):
            buffers, scalars = [self.memory[b] for b in buffers], list(scalars)
            self.do(lambda: prepared(buffers, ints, scalars))

        return launch

    def launcher_of(self, op):
        """Return the method of an op."""
        method = getattr(self.inner, f"op_{op}")

        def launch(outs, ins, attrs):
            outs, ins = [[r._replace(handle=self.memory[r.handle]) for r in some] for some in (outs, ins)]
            attrs = {k: self.memory[v] if k == "status" else v for k, v in attrs.items()}
            if op == "write":
                attrs["data"] = memoryview(bytes(attrs["data"]))
            self.do(lambda: method(outs, ins, attrs))

        return launch

    def op_read(self, outs, ins, attrs):
        self.catch_up()
        self.reads += 1
        self.inner.op_read(outs, [r._replace(handle=self.memory[r.handle]) for r in ins], attrs)

    def do(self, launch):
        """Queue a launch, or write it down, or put it in the place of one that is written down."""
        if self.changing is not None:
            pages, place = self.changing
            pages[place] = launch
        else:
            (self.queue if self.pages is None else self.pages).append(launch)

    def catch_up(self, until=None):
        """Do what is queued; *until* a mark, if there is one."""
        while self.queue:
            launch = self.queue.pop(0)
            launch()
            if launch is until:
                return

    def synchronize(self):
        self.catch_up()

    def capture(self):
        return Writing(self)

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
        driver = self.driver
        if driver.pages is not None:
            driver.pages.append(self)
            return
        self.marks += 1
        self.last = lambda: None  # another each time
        driver.queue.append(self.last)

    def wait(self):
        if self.last in self.driver.queue:
            self.driver.catch_up(self.last)


class Writing:
    """What `polygrad_capture` gives."""

    def __init__(self, driver):
        self.driver = driver

    def takes(self, op, outs, ins, attrs):
        return op not in ("write", "read")

    def begin(self):
        self.driver.pages, self.places = [], []

    def varies(self):
        self.places.append(len(self.driver.pages))

    def end(self):
        pages, self.driver.pages = self.driver.pages, None
        return Written(self.driver, pages, self.places)

    def abandon(self):
        self.driver.pages = None


class Written:
    """A bundle: what goes into the queue when it is launched."""

    def __init__(self, driver, pages, places):
        self.driver, self.pages, self.places = driver, pages, places

    def launch(self):
        self.driver.launched += 1
        for page in self.pages:
            if page is self.driver.board:
                page.mark()
            else:
                self.driver.queue.append(page)

    def change(self, number, launch, scalars):
        self.pages = list(self.pages)  # what was launched keeps its numbers
        self.driver.changing = self.pages, self.places[number]
        try:
            launch()
        finally:
            self.driver.changing = None

    def close(self):
        self.pages = []
