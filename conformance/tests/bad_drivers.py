"""Drivers that do what drivers should not: the suite must say so and go on.

Here: subclasses of the strict driver, each bad in one way, for ``--plugin bad_drivers:name``.
Not here: tests.
"""

import os
import signal
import time

from polygrad.driver import DriverInfo, ExpectedFailure, Requirements
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
        import dataclasses

        print("hello from the vendor's library")
        info = super().open(ordinal, options)
        return dataclasses.replace(info, scalar_ops=info.scalar_ops - {"erf"}, reductions=info.reductions - {"prod"})


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


crashing, hanging, raising, exiting = (d.plugin() for d in (Crashing, Hanging, Raising, Exiting))
chatty, excused, stale = (d.plugin() for d in (Chatty, Excused, Stale))
lying = KernelMutant(strict_plugin, other_op("maximum", "minimum"))  # a wrapper of strict:0, declared and wrong
strict = strict_plugin
