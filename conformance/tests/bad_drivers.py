"""Drivers that do what drivers should not: the suite must say so and go on.

Here: subclasses of the strict driver, each bad in one way, for ``--plugin bad_drivers:name``.
Not here: tests.
"""

import contextlib
import dataclasses
import os
import platform
import signal
import tempfile
import time

from polygrad.driver import DriverInfo, ExpectedFailure, Requirements, UnsupportedOp
from polygrad_conformance.mutants import KernelMutant, other_op
from polygrad_conformance.strict import StrictDriver
from polygrad_conformance.strict import plugin as strict_plugin


def uses(kernel, op):
    return any(i.op == op for i in kernel.body)


class Crashing(StrictDriver):
    """Takes the process down with an integer division."""

    info = DriverInfo("bad")

    def prepare_fused(self, kernel):
        if uses(kernel, "quotient"):
            os.kill(os.getpid(), signal.SIGSEGV)
        return super().prepare_fused(kernel)


class Hanging(StrictDriver):
    """Never comes back from compiling an iota."""

    info = DriverInfo("bad")

    def prepare_fused(self, kernel):
        if uses(kernel, "iota"):
            time.sleep(1000)
        return super().prepare_fused(kernel)


class Raising(StrictDriver):
    """Raises what nobody expects."""

    info = DriverInfo("bad")

    def op_write(self, outs, ins, attrs):
        raise KeyError("surprise")


class Exiting(StrictDriver):
    """Ends the process in open."""

    info = DriverInfo("bad")

    def open(self, ordinal, options):
        os._exit(7)


class Chatty(StrictDriver):
    """Prints lines of its own, and declares less than it can."""

    info = DriverInfo("bad")

    def open(self, ordinal, options):
        print("hello from the vendor's library")
        info = super().open(ordinal, options)
        return dataclasses.replace(
            info,
            scalar_ops=info.scalar_ops - {"erf"},
            reductions=info.reductions - {"prod"},
            dtypes=info.dtypes - {"int16", "uint64"},
        )

    def prepare_fused(self, kernel):
        if any(i.op == "bitwise_xor" and i.dtype == "uint64" for i in kernel.body):  # it can move uint64, and no more
            raise UnsupportedOp("uint64 can be moved, and no more")
        return super().prepare_fused(kernel)


class Excused(StrictDriver):
    """Has requirements."""

    info = DriverInfo("bad")

    def requirements(self):
        fault = ExpectedFailure("not mended yet", issue="https://example.org/1", until="2999-01-01")
        return Requirements(
            unsupported={"L1.memory.info": "the vendor counts nothing"},
            expected_failure={"L4.ulp.exp.float32": fault, "L4.ulp.log.float32": fault},
        )

    def prepare_fused(self, kernel):
        if uses(kernel, "exp"):
            kernel = kernel._replace(body=tuple(i._replace(op="exp2") if i.op == "exp" else i for i in kernel.body))
        return super().prepare_fused(kernel)


class Stale(StrictDriver):
    """Has requirements that are not allowed."""

    info = DriverInfo("bad")

    def requirements(self):
        old = ExpectedFailure("was wrong once", issue="https://example.org/2", until="2001-01-01")
        return Requirements(
            unsupported={"L1.no.such": "a typo"}, expected_failure={"L4.ulp.exp.float32": old, "L2.const.int8": old}
        )


class Boasting(StrictDriver):
    """Declares what it has not: a function, a dtype, more memory."""

    info = DriverInfo("bad")

    def open(self, ordinal, options):
        info = super().open(ordinal, options)
        more = dataclasses.replace(info.limits, max_alloc=1 << 40, total=1 << 41, max_buffers=64)
        return dataclasses.replace(info, limits=more)

    def prepare_fused(self, kernel):
        if uses(kernel, "erf"):
            raise UnsupportedOp("erf is not there")
        if "float64" in kernel.buffers:
            kernel = kernel._replace(
                body=tuple(i._replace(attr=0.0) if i.op == "const" and i.dtype == "float64" else i for i in kernel.body)
            )
        return super().prepare_fused(kernel)


class Leaking(StrictDriver):
    """Takes memory for each write and never gives it back."""

    info = DriverInfo("bad")

    def op_write(self, outs, ins, attrs):
        self.kept = [*getattr(self, "kept", []), bytearray(os.urandom(len(attrs["data"])))]
        self.used += len(attrs["data"])
        super().op_write(outs, ins, attrs)


class Unspeakable(Exception):
    """An exception that cannot be shown."""

    def __str__(self):
        raise ValueError("no words")


class Throwing(StrictDriver):
    """Raises what is no Exception, and one that cannot be shown."""

    info = DriverInfo("bad")
    thrown = {"sqrt": SystemExit(0), "floor": KeyboardInterrupt(), "less": Unspeakable(), "add": RecursionError()}

    def prepare_fused(self, kernel):
        for op, error in self.thrown.items():
            if uses(kernel, op):
                raise error
        return super().prepare_fused(kernel)


class Aborting(StrictDriver):
    """Aborts the process when a block is freed, as an allocator does that has found its lists spoilt."""

    info = DriverInfo("bad")

    def free(self, handle):
        os.abort()


class Asleep(StrictDriver):
    """Never opens."""

    info = DriverInfo("bad")

    def open(self, ordinal, options):
        time.sleep(1000)


class Mute(StrictDriver):
    """Closes the process's standard output."""

    info = DriverInfo("bad")

    def prepare_fused(self, kernel):
        with contextlib.suppress(OSError):  # it is closed already
            os.write(1, b"half a line")
            os.close(1)
        return super().prepare_fused(kernel)


class Hidden(StrictDriver):
    """Lets no test near what it declares."""

    info = DriverInfo("bad")

    def requirements(self):
        return Requirements(unsupported={"L[1-9]*": "no time"})


class Forgetful(StrictDriver):
    """Raises in open: what is no error of polygrad's."""

    info = DriverInfo("bad")

    def open(self, ordinal, options):
        raise SystemExit("the licence has expired")


class Telling(StrictDriver):
    """Tells of the machine in every message."""

    info = DriverInfo("bad")

    def open(self, ordinal, options):
        return dataclasses.replace(super().open(ordinal, options), extra={"library": self.secret()})

    @staticmethod
    def secret():
        places = (os.path.expanduser("~"), os.getcwd(), __file__, tempfile.gettempdir() + "/cache/kernel.c")
        return f"{platform.node()}: in {', '.join(places)}"

    def prepare_fused(self, kernel):
        raise RuntimeError(self.secret())

    def source_text(self, kernel, ints):
        return f"// written to {self.secret()}\nint x = a / b / c;"


crashing, hanging, raising, exiting = (d.plugin() for d in (Crashing, Hanging, Raising, Exiting))
chatty, excused, stale, boasting, leaking = (d.plugin() for d in (Chatty, Excused, Stale, Boasting, Leaking))
throwing, aborting, asleep, mute = (d.plugin() for d in (Throwing, Aborting, Asleep, Mute))
forgetful, telling, hidden = Forgetful.plugin(), Telling.plugin(), Hidden.plugin()
lying = KernelMutant(strict_plugin, other_op("maximum", "minimum"))  # a wrapper of strict:0, declared and wrong
strict = strict_plugin
