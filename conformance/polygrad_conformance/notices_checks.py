"""What launches leave for the host to read without a copy, and marks among launches.

Here: the checks of drivers with the feature `notices`, which importing this module registers.
Not here: what a status word means (`level3_views.py`), launches that are written down (`level9_threads.py`).
"""

import numpy as np

from polygrad.driver import Instr, Kernel, Store, View
from polygrad_conformance.bench import Bench
from polygrad_conformance.case import Array
from polygrad_conformance.checks import check

NOTICES = ("feature.notices",)
F = "float32"
ROWS, WORDS = 5, 4  # of the table; of a status word
TURNS = 40
BUSY = 12  # launches that a mark has to come after


def _taking() -> Kernel:
    """Return the kernel that takes elements of a table at given places."""
    views = (View(0, "int64", (1,)), View(1, F, (0,), gathers=1), View(2, F, (1,)))
    body = (Instr("load", "int64", (), 0), Instr("load", F, (0,), 1))
    return Kernel(1, 0, ("int64", F, F, "int32"), views, (), body, (Store(1, 2),), 3)


def _long() -> Kernel:
    """Return a kernel that takes a while: roots of sums of rows."""
    body = (Instr("load", F, (), 0), Instr("reduce", F, (0,), "sum"), Instr("sqrt", F, (1,)))
    return Kernel(1, 1, (F, F), (View(0, F, (None, 1)), View(1, F, (1, 0))), (), body, (Store(2, 1),))


class _Posts:
    """Launches that post bad indices, and others that take a while."""

    def __init__(self, bench: Bench) -> None:
        found = bench.device.notices(4 * WORDS)
        assert found is not None, "the device declares the feature 'notices', but answers None"
        self.bench, self.notices = bench, found
        assert len(found.memory) == 4 * WORDS, f"16 bytes were asked for, and there are {len(found.memory)}"
        assert not any(found.memory), "the bytes are not zero at first"
        self.take, self.work = bench.prepare(_taking()), bench.prepare(_long())
        table, out = bench.put(np.arange(ROWS, dtype=F)), bench.put(np.zeros(3, F))
        self.good, self.bad = (bench.put(np.array([0, k, 1], np.int64)) for k in (-ROWS, ROWS + 4))
        self.rest = table, out, found.handle
        self.rows, self.sums = bench.put(np.ones(64 * 64, F)), bench.put(np.zeros(64, F))

    def post(self, tag: int, *, bad: bool = True) -> None:
        """Make a launch that posts *tag* if it is *bad*."""
        self.take((self.bad if bad else self.good, *self.rest), (3, 0, 0, 1, ROWS, 0, tag), ())

    def busy(self) -> None:
        """Make launches that take a while."""
        for _ in range(BUSY):
            self.work((self.rows, self.sums), (64, 64, 0, 64, 0), ())

    def seen(self) -> Array:
        """Return what the host sees."""
        return np.frombuffer(bytes(self.notices.memory), np.int32)

    def clear(self) -> None:
        """Forget what was posted, as the core does."""
        self.notices.memory[:] = bytes(4 * WORDS)

    def expect(self, tag: int, when: str) -> None:
        """Compare what the host sees with what a launch with *tag* posts; 0: nothing."""
        want = [tag, 1, ROWS + 4, 0] if tag else [0] * WORDS
        got = self.seen().tolist()
        assert got == want, f"{when} the host sees {got}; it should be {want}"


@check("L9.notices.posted", needs=(*NOTICES, "dtype.int64"))
def posted_notices(bench: Bench) -> None:
    """What launches post, and what is written, is seen through memory and read through the handle; both are one."""
    it = _Posts(bench)
    it.post(7, bad=False)
    it.notices.mark()
    it.notices.wait()
    it.expect(0, "after a launch with good indices")
    it.post(8)
    it.post(9)
    it.notices.mark()
    it.notices.wait()
    it.expect(8, "after two launches with bad indices")
    got = bench.read(it.rest[-1], "int32", WORDS).tolist()
    assert got == [8, 1, ROWS + 4, 0], f"the handle reads {got}, and memory has what the launch has posted"
    it.clear()
    it.post(10)
    it.notices.mark()
    it.notices.wait()
    it.expect(10, "after memory was cleared, and another launch with bad indices")
    bench.write(it.rest[-1], np.zeros(WORDS, np.int32))
    it.notices.mark()
    it.notices.wait()
    it.expect(0, "after zeros were written through the handle")
    bench.exercised.add("feature.notices")


@check("L9.notices.marks", needs=(*NOTICES, "dtype.int64"))
def marks_among_launches(bench: Bench) -> None:
    """Whoever waits waits for all launches before the last mark, however many marks there were before it."""
    it = _Posts(bench)
    for turn in range(1, TURNS):
        it.notices.mark()
        it.busy()
        it.post(turn)
        it.notices.mark()
        it.busy()  # after the mark: nobody waits for these
        it.notices.wait()
        it.expect(turn, f"in turn {turn}, past the mark,")
        it.notices.wait()
        it.clear()


@check("L9.notices.written", needs=(*NOTICES, "dtype.int64", "feature.capture"))
def marks_that_are_written_down(bench: Bench) -> None:
    """A mark that was written down is made each time the launches are; before that it is not."""
    it = _Posts(bench)
    it.busy()
    it.post(1)
    it.notices.mark()
    it.notices.wait()
    it.clear()
    capturing = bench.device.capture()
    assert capturing is not None, "the device declares the feature 'capture', but answers None"
    capturing.begin()
    it.busy()
    it.post(3)
    it.notices.mark()
    it.busy()
    bundle = capturing.end()
    it.notices.wait()  # for the mark before
    it.expect(0, "after launches were written down")
    for turn in range(TURNS):
        bundle.launch()
        it.notices.wait()
        it.expect(3, f"after a bundle with a mark was launched {turn + 1} times")
        it.clear()
    bundle.close()
    it.post(5)
    it.notices.mark()
    it.notices.wait()
    it.expect(5, "after a bundle with a mark was closed, and a launch made alone,")
