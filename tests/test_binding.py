"""What open devices do: calls bound and rebound, kernels prepared once, wrappers, errors that name what failed.

Here: `polygrad.driver.binding`, on drivers of host memory. Not here: how devices are opened (`test_opening.py`), what a
fork does to them (`test_forks.py`).
"""

import threading

import pytest

from polygrad import errors
from polygrad.driver import DONE, DeviceInfo, DriverInfo, Instr, hookimpl
from polygrad.driver.binding import open_device
from polygrad.driver.types import Ref
from polygrad.driver.verify import VerifyError
from support.toys import (
    COPY,
    ROOT,
    Seen,
    driver_of,
    faulty,
    kernel_of,
    launched,
    named,
    raising,
    registry_of,
    sentence,
)

# ---- calls -----------------------------------------------------------------------------------------------------------


def test_memory_is_written_and_read_back(registry):
    device = open_device(registry, "toy")
    handle = device.allocate(4)
    ref = Ref(handle, 0, (4,), (1,), "uint8")
    device.launch_op("write", (ref,), (), {"data": memoryview(b"abcd")})
    into = bytearray(4)
    device.launch_op("read", (), (ref,), {"into": memoryview(into)})
    device.synchronize()
    device.free(handle)
    assert into == b"abcd"
    assert device.memory_info() == (1, 2)
    assert device.view(handle, 4) is None
    assert device.adopt(memoryview(b"")) is None


def test_no_empty_block_reaches_a_driver(registry):
    with pytest.raises(AssertionError):
        open_device(registry, "toy").allocate(0)


def test_the_drivers_own_function_is_bound_when_nobody_else_implements_the_hook(registry):
    device, plugin = open_device(registry, "toy"), registry.load("toy").plugin
    assert device._hook("launch_op") == plugin.polygrad_launch_op
    registry.register(named("other"))
    assert device._hook("launch_op") == plugin.polygrad_launch_op


def test_two_drivers_do_not_see_each_others_calls(registry):
    registry.register(named("other"))
    seen = Seen()
    registry.register(seen)
    toy, other = open_device(registry, "toy"), open_device(registry, "other")
    assert launched(toy) == launched(other) == b"abcd"
    assert [s[0] for s in seen.seen] == ["toy:0", "other:0"]
    assert driver_of(registry).calls == ["prepare", "launch"]
    assert driver_of(registry, "other").calls == ["prepare", "launch"]


class Old:
    """A driver of an earlier minor: its hooks take fewer arguments, in an order of their own."""

    def __init__(self):
        self.launches = []

    @hookimpl
    def polygrad_drivers(self):
        return [DriverInfo("old", api=(1, 0))]

    @hookimpl
    def polygrad_open(self, ordinal, driver):
        return DeviceInfo(driver, ordinal, "old", dtypes=frozenset({"uint8"})) if driver == "old" else None

    @hookimpl
    def polygrad_allocate(self, nbytes):
        return bytearray(nbytes)

    @hookimpl
    def polygrad_free(self):
        return DONE

    @hookimpl
    def polygrad_launch_op(self, outs, op, ins, device):
        self.launches.append((op, device.device))
        return DONE

    @hookimpl
    def polygrad_launch_fused(self, buffers, kernel):
        self.launches.append("fused")
        buffers[1][:] = buffers[0]
        return DONE


@pytest.mark.parametrize("wrapped", [False, True])
def test_an_old_driver_that_takes_fewer_arguments_works(wrapped):
    old, seen = Old(), Seen()
    registry = registry_of(old)
    if wrapped:
        registry.register(seen)
    device = open_device(registry, "old")
    device.launch_op("copy", (), (), {})
    assert len(device.allocate(3)) == 3
    device.free(None)
    device.synchronize()
    assert device.memory_info() is None
    assert launched(device) == b"abcd"
    assert old.launches == [("copy", "old:0"), "fused"]
    assert len(seen.seen) == (2 if wrapped else 0)
    device.close()


# ---- kernels ---------------------------------------------------------------------------------------------------------


def test_a_kernel_is_prepared_once(registry):
    device = open_device(registry, "toy")
    launch = device.prepare(COPY)
    assert device.prepare(kernel_of(Instr("load", "float32", (), 0))) is launch
    assert launched(device) == launched(device) == b"abcd"
    device.prepare(ROOT)
    assert driver_of(registry).calls == ["prepare", "launch", "launch", "prepare"]


def test_many_threads_prepare_a_kernel_once(registry):
    device, barrier, found = open_device(registry, "toy"), threading.Barrier(8), []

    def preparing():
        barrier.wait()
        found.append(device.prepare(COPY))

    threads = [threading.Thread(target=preparing) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, found))) == 1
    assert driver_of(registry).calls == ["prepare"]


def test_minus_zero_is_not_taken_for_the_zero_of_a_prepared_kernel(registry):
    device = open_device(registry, "toy")
    plus, minus = (kernel_of(Instr("const", "float32", (), zero)) for zero in (0.0, -0.0))
    assert plus == minus
    device.prepare(plus)
    with pytest.raises(VerifyError):
        device.prepare(minus)


def test_an_ill_formed_kernel_never_reaches_the_driver(registry):
    device = open_device(registry, "toy")
    with pytest.raises(VerifyError):
        device.prepare(kernel_of(Instr("sqrt", "float32", (5,))))
    assert driver_of(registry).calls == []


# ---- wrappers --------------------------------------------------------------------------------------------------------


def test_a_wrapper_sees_every_launch_of_callables_prepared_before_it_came(registry):
    device, seen = open_device(registry, "toy"), Seen()
    launch = device.prepare(COPY)
    buffers = (bytearray(b"abcd"), bytearray(4))
    launch(buffers, (1, 0, 0), ())
    registry.register(seen)
    assert device.wrapped
    launch(buffers, (4, 0, 0), ())
    launch(buffers, (3, 0, 0), ())
    device.launch_op("copy", (Ref(bytearray(1), 0, (1,), (1,), "uint8"),) * 1, (Ref(b"x", 0, (1,), (1,), "uint8"),), {})
    registry.unregister(seen)
    assert not device.wrapped
    launch(buffers, (2, 0, 0), ())
    assert seen.seen == [("toy:0", COPY, (4, 0, 0)), ("toy:0", COPY, (3, 0, 0)), "copy"]
    # One compilation, four launches: through pluggy, too, the prepared program is what runs.
    assert driver_of(registry).calls == ["prepare", "launch", "launch", "launch", "launch"]


def test_an_implementation_registered_after_the_driver_comes_before_it(registry):
    class Thief:
        @hookimpl
        def polygrad_launch_fused(self, device):
            return DONE

    device = open_device(registry, "toy")
    registry.register(Thief())
    assert launched(device) == bytes(4)
    assert driver_of(registry).calls == ["prepare"]


def test_a_wrapper_of_one_hook_leaves_the_others_bound(registry):
    class Allocations:
        @hookimpl(wrapper=True)
        def polygrad_allocate(self, nbytes):
            sizes.append(nbytes)
            return (yield)

    sizes = []
    device = open_device(registry, "toy")
    registry.register(Allocations())
    device.allocate(3)
    assert sizes == [3]
    assert not device.wrapped
    assert device._hook("launch_op") == registry.load("toy").plugin.polygrad_launch_op


def test_a_wrapper_may_make_launches_fail(registry):
    injected = OSError("injected")

    class Injector:
        @hookimpl(wrapper=True)
        def polygrad_launch_fused(self):
            yield
            raise injected

    device = open_device(registry, "toy")
    registry.register(Injector())
    assert sentence(errors.LaunchError, launched, device) == (
        "the driver failed while running copy [1 load, 1 store] on toy:0: OSError: injected"
    )


# ---- errors ----------------------------------------------------------------------------------------------------------


def test_what_a_launch_raises_names_device_and_op_and_keeps_its_cause():
    registry = faulty(op_copy=raising(ZeroDivisionError("by zero")))
    with pytest.raises(errors.LaunchError) as caught:
        open_device(registry, "toy").launch_op("copy", (), (), {})
    assert str(caught.value) == "the driver failed while running copy on toy:0: ZeroDivisionError: by zero"
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_our_own_errors_pass_with_a_note():
    mine = errors.DeviceLost("the toy is broken")
    registry = faulty(op_copy=raising(mine))
    with pytest.raises(errors.DeviceLost) as caught:
        open_device(registry, "toy").launch_op("copy", (), (), {})
    assert caught.value is mine
    assert mine.__notes__ == ["while running copy on toy:0"]


def test_an_op_that_the_driver_lacks_is_unsupported(registry):
    device = open_device(registry, "toy")
    assert sentence(errors.UnsupportedOp, device.launch_op, "matmul", (), (), {}) == (
        "toy:0 has no op 'matmul'; it declares copy"
    )
    device = open_device(faulty(op_copy=raising(NotImplementedError("only 1-d"))), "toy")
    assert sentence(errors.UnsupportedOp, device.launch_op, "copy", (), (), {}) == (
        "the driver does not implement running copy on toy:0: NotImplementedError: only 1-d"
    )


def test_a_memory_error_becomes_out_of_memory():
    device = open_device(faulty(allocate=raising(MemoryError())), "toy")
    assert sentence(errors.OutOfMemory, device.allocate, 64) == (
        "no room left while allocating 64 bytes on toy:0: MemoryError; free arrays or take smaller ones"
    )
    full = errors.OutOfMemory("full")
    device = open_device(faulty(allocate=raising(full)), "toy")
    with pytest.raises(errors.OutOfMemory) as caught:
        device.allocate(64)
    assert caught.value is full


def test_an_allocation_of_none_is_an_error():
    device = open_device(faulty(allocate=lambda self, nbytes: None), "toy")
    assert sentence(errors.DriverError, device.allocate, 64) == (
        "the driver gave None for 64 bytes on toy:0; a handle is any other object, and no room is OutOfMemory"
    )


@pytest.mark.parametrize(
    ("method", "call", "kind", "doing"),
    [
        ("free", lambda d: d.free(1), errors.DriverError, "freeing memory"),
        ("synchronize", lambda d: d.synchronize(), errors.LaunchError, "waiting"),
        ("memory_info", lambda d: d.memory_info(), errors.DriverError, "asking for its memory"),
        ("view", lambda d: d.view(1, 2), errors.DriverError, "viewing memory"),
        ("adopt", lambda d: d.adopt(memoryview(b"")), errors.DriverError, "adopting memory"),
        ("close", lambda d: d.close(), errors.DriverError, "closing"),
        ("prepare_fused", lambda d: d.prepare(ROOT), errors.CompileError, "compiling sqrt [1 load, 1 store]"),
        (
            "prepare_fused",
            lambda d: d.launch_fused(ROOT, (), (), ()),
            errors.LaunchError,
            "running sqrt [1 load, 1 store]",
        ),
    ],
)
def test_every_call_explains_what_it_was_doing(method, call, kind, doing):
    device = open_device(faulty(**{method: raising(ValueError("odd"))}), "toy")
    assert sentence(kind, call, device) == f"the driver failed while {doing} on toy:0: ValueError: odd"


def test_a_kernel_that_failed_to_compile_is_tried_again():
    registry = faulty(prepare_fused=raising(ValueError("odd")))
    device = open_device(registry, "toy")
    for _ in range(2):
        with pytest.raises(errors.CompileError):
            device.prepare(ROOT)


def test_a_launch_that_fails_names_the_kernel():
    registry = faulty(prepare_fused=lambda self, kernel: raising(ValueError("odd")))
    launch = open_device(registry, "toy").prepare(ROOT)
    assert sentence(errors.LaunchError, launch, (), (), ()) == (
        "the driver failed while running sqrt [1 load, 1 store] on toy:0: ValueError: odd"
    )
