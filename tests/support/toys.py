"""Drivers of host memory that tests of `polygrad.driver` open, and what those tests do with them.

Here: a driver of bytearrays and variants of it, registries, tiny kernels, the launch of one. Not here: tests.
"""

import pytest

from polygrad.driver import DeviceInfo, DriverBase, DriverInfo, Features, Instr, Kernel, Store, View, hookimpl
from polygrad.driver.loader import Registry
from polygrad.driver.types import MemoryInfo

VECTOR = View(0, "uint8", (1,))


def kernel_of(*body, dtype="float32"):
    """Return a kernel that stores the last value of *body* into buffer 1; load 0 is of buffer 0."""
    views = (View(0, dtype, (1,)), View(1, dtype, (1,)))
    return Kernel(1, 0, (dtype, dtype), views, (), body, (Store(len(body) - 1, 1),))


COPY = kernel_of(Instr("load", "float32", (), 0))
ROOT = kernel_of(Instr("load", "float32", (), 0), Instr("sqrt", "float32", (0,)))


class Toy(DriverBase):
    """A driver of bytearrays; a kernel copies bytes, whatever it says."""

    info = DriverInfo("toy", requires="nothing")
    fork = "unsafe"
    calls: list

    @classmethod
    def count(cls):
        return 2

    def open(self, ordinal, options):
        self.calls = []
        return DeviceInfo(
            "toy", ordinal, "a toy", dtypes=frozenset({"float32", "uint8"}), features=Features(fork=self.fork)
        )

    def allocate(self, nbytes):
        return bytearray(nbytes)

    def free(self, handle):
        self.calls.append("free")

    def op_write(self, outs, ins, attrs):
        outs[0].handle[:] = attrs["data"]

    def op_read(self, outs, ins, attrs):
        attrs["into"][:] = ins[0].handle

    def op_copy(self, outs, ins, attrs):
        outs[0].handle[:] = ins[0].handle

    def prepare_fused(self, kernel):
        self.calls.append("prepare")

        def launch(buffers, ints, scalars):
            self.calls.append("launch")
            buffers[1][:] = buffers[0]

        return launch

    def close(self):
        self.calls.append("close")

    def memory_info(self):
        return MemoryInfo(1, 2)


class Seen:
    """A wrapper that notes the launches that it sees."""

    def __init__(self):
        self.seen = []

    @hookimpl(wrapper=True)
    def polygrad_launch_fused(self, device, kernel, buffers, ints, scalars):
        self.seen.append((device.device, kernel, ints))
        return (yield)

    @hookimpl(wrapper=True)
    def polygrad_launch_op(self, op):
        self.seen.append(op)
        return (yield)


def raising(error):
    def fail(*_arguments):
        raise error

    return fail


def registry_of(*drivers):
    """Return a registry that has these drivers and looks for no others."""
    registry = Registry(discovering=False)
    for driver in drivers:
        registry.register(driver)
    return registry


def faulty(**members):
    """Return a registry with a driver `toy` that differs from Toy in *members*."""
    return registry_of(type("Faulty", (Toy,), {"__module__": "faulty_driver", **members}))


def named(name, **members):
    """Return a driver like Toy of another name."""

    def opens(self, ordinal, options):
        Toy.open(self, ordinal, options)
        return DeviceInfo(name, ordinal, "x", dtypes=frozenset({"float32"}))

    return type(name, (Toy,), {"info": DriverInfo(name, priority=members.pop("priority", 0)), "open": opens, **members})


def driver_of(registry, name="toy", ordinal=0):
    return registry.load(name).plugin.devices[ordinal]


def launched(device, kernel=COPY):
    """Launch *kernel* on fresh buffers and return what it wrote."""
    buffers = (bytearray(b"abcd"), bytearray(4))
    device.prepare(kernel)(buffers, (1, 0, 0), ())
    return bytes(buffers[1])


def sentence(kind, call, *arguments):
    with pytest.raises(kind) as caught:
        call(*arguments)
    assert type(caught.value) is kind
    return str(caught.value)
