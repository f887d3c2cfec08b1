"""Devices that write launches down: the host's, behind numbers for handles; a page is a call of Python.

Here: `Writer`, from which such devices are made, and the plainest of them, `Scribe`. Not here: tests; the fixture
`scribe` (`conftest.py`); a device whose work lags behind (`lagging.py`).
"""

import collections
import dataclasses
import functools
import itertools

from polygrad.driver import DriverBase, DriverInfo, LaunchError
from polygrad_cpu.driver import CpuDriver


class Writer(DriverBase):
    """The host's device, whose launches are made by `make` or written down."""

    opened = None  # the instance of the class that was opened last, for tests to look at
    refused = frozenset({"write", "read"})  # ops that it does not write down

    def open(self, ordinal, options):
        self.inner = CpuDriver()
        info = self.inner.open(0, options)
        self.memory, self.addresses = {}, itertools.count(4096, 64)
        self.pages, self.changing, self.failing, self.error = None, None, "", LaunchError
        self.seen = collections.Counter()  # launches by what they are
        self.bundles = self.launched = self.changed = self.closed = 0
        for op in (*CpuDriver.ops(), "write", "read"):
            setattr(self, f"op_{op}", self.launcher_of(op))
        features = dataclasses.replace(info.features, host_memory=False, fork="unsafe", **self.features(ordinal))
        type(self).opened = self
        return dataclasses.replace(
            info, driver=self.info.name, ordinal=ordinal, features=features, ops=frozenset(CpuDriver.ops())
        )

    def features(self, ordinal):
        """Return the features of a device in which it is not as the host's."""
        return {"capture": True}

    def allocate(self, nbytes):
        handle = next(self.addresses)
        self.memory[handle] = self.inner.allocate(nbytes)
        return handle

    def free(self, handle):
        self.inner.free(self.memory.pop(handle))

    def prepare_fused(self, kernel):
        prepared = self.inner.prepare_fused(kernel)

        def launch(buffers, ints, scalars):
            buffers, scalars = [self.memory[b] for b in buffers], list(scalars)
            self.do("fused", lambda: prepared(buffers, ints, scalars))

        return launch

    def launcher_of(self, op):
        """Return the method of an op."""
        method = getattr(self.inner, f"op_{op}")

        def launch(outs, ins, attrs):
            outs, ins = [[r._replace(handle=self.memory[r.handle]) for r in some] for some in (outs, ins)]
            attrs = {k: self.memory[v] if k == "status" else v for k, v in attrs.items()}
            if op == "write":
                attrs["data"] = memoryview(bytes(attrs["data"]))
            self.do(op, lambda: method(outs, ins, attrs))

        return launch

    def do(self, what, launch):
        """Make a launch, or write it down, or put it in the place of one that is written down."""
        self.seen[what] += 1
        page = functools.partial(self.make, launch)
        if self.changing is not None:
            pages, place = self.changing
            pages[place] = page
        elif self.pages is None:
            page()
        elif what in self.refused or what == self.failing:
            raise self.error(f"{what} cannot be written down")
        else:
            self.pages.append(page)

    def make(self, launch):
        launch()

    def capture(self):
        return Writing(self)


class Writing:
    """What `polygrad_capture` gives."""

    def __init__(self, driver):
        self.driver = driver

    def takes(self, op, outs, ins, attrs):
        return op not in self.driver.refused

    def begin(self):
        self.driver.pages, self.places = [], []

    def varies(self):
        self.places.append(len(self.driver.pages))

    def end(self):
        driver = self.driver
        pages, driver.pages = driver.pages, None
        driver.bundles += 1
        return Written(driver, pages, self.places)

    def abandon(self):
        self.driver.pages = None


class Written:
    """A bundle: calls in a list."""

    def __init__(self, driver, pages, places):
        self.driver, self.pages, self.places = driver, pages, places

    def launch(self):
        self.driver.launched += 1
        for page in self.pages:
            page()

    def change(self, number, launch, scalars):
        self.driver.changed += 1
        self.driver.changing = self.pages, self.places[number]
        try:
            launch()
        finally:
            self.driver.changing = None

    def close(self):
        self.driver.closed += 1
        self.pages = []


class Scribe(Writer):
    """One device, `scribe:0`, which makes launches at once and does not write all ops down."""

    info = DriverInfo("scribe", summary="writes launches down")
    refused = Writer.refused | {"scatter_add"}
