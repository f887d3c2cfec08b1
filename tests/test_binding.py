"""Tests of open devices: names, binding and rebinding, prepared kernels, wrapped errors, forks.

Here: `polygrad.driver.binding`, on drivers of host memory. Not here: how drivers are found (`test_loader.py`).
"""

import gc
import logging
import multiprocessing
import os
import threading
import warnings

import pytest

from polygrad import errors
from polygrad.driver import DONE, DeviceInfo, DriverBase, DriverInfo, Features, Instr, Kernel, Store, View, hookimpl
from polygrad.driver.binding import list_devices, open_device, parse_device_name
from polygrad.driver.loader import Registry
from polygrad.driver.types import Limits, MemoryInfo, Ref
from polygrad.driver.verify import VerifyError

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


@pytest.fixture
def registry():
    made = Registry(discovering=False)
    made.register(Toy)
    return made


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


# ---- names --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "meaning"), [("toy", ("toy", 0)), ("TOY:1", ("toy", 1)), ("a_2:10", ("a_2", 10)), ("toy:0", ("toy", 0))]
)
def test_a_device_name_is_a_driver_and_a_number(name, meaning):
    assert parse_device_name(name) == meaning


@pytest.mark.parametrize(
    "name",
    ["", "toy:", "toy: 0", " toy", "toy:0 ", "toy:-1", "toy:01", "toy:0:1", "toy:x", "toy:\u0661", ":0", 3, None],
)
def test_anything_else_is_refused(name, registry):
    assert sentence(errors.DeviceError, open_device, registry, name) == (
        f"{name!r} is not a device name; write the name of a driver, and after a colon the number of a device, "
        "such as 'acme' or 'acme:1'"
    )


def test_a_device_beyond_the_last_is_refused_with_the_count(registry):
    assert sentence(errors.DeviceError, open_device, registry, "toy:3") == (
        "toy has 2 device(s), so toy:3 does not exist; use toy:0 to toy:1 (`python -m polygrad devices` lists all)"
    )


def test_of_one_device_the_name_is_told():
    class Single(Toy):
        count = DriverBase.count

    registry = Registry(discovering=False)
    registry.register(Single)
    assert sentence(errors.DeviceError, open_device, registry, "toy:1") == (
        "toy has 1 device(s), so toy:1 does not exist; use toy:0 (`python -m polygrad devices` lists all)"
    )


# ---- opening and closing ------------------------------------------------------------------------------------


def test_opening_twice_gives_the_same_device(registry):
    device = open_device(registry, "toy")
    assert device is open_device(registry, "toy:0") is open_device(registry, "Toy:0", {})
    assert device is not open_device(registry, "toy:1")
    assert (device.name, device.info.ops, repr(device)) == ("toy:0", {"copy"}, "<device toy:0: a toy>")


def test_other_options_for_an_open_device_are_refused(registry):
    open_device(registry, "toy", {"threads": "2"})
    assert open_device(registry, "toy").options == {"threads": "2"}
    assert sentence(errors.DeviceError, open_device, registry, "toy", {"threads": "3"}) == (
        "device toy:0 is open with options {'threads': '2'}, not {'threads': '3'}; close it first"
    )


def test_many_threads_open_one_device(registry):
    found, barrier = [], threading.Barrier(8)

    def opening():
        barrier.wait()
        found.append(open_device(registry, "toy"))

    threads = [threading.Thread(target=opening) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(map(id, found))) == 1


def test_a_closed_device_refuses_all_but_free_and_close(registry):
    device, driver = open_device(registry, "toy"), None
    driver = driver_of(registry)
    launch = device.prepare(COPY)
    device.close()
    device.close()
    device.free(bytearray(4))
    assert driver.calls == ["prepare", "close"]
    said = "device toy:0 is closed; open it again with pg.set_device('toy:0')"
    for call, arguments in [
        (device.allocate, (4,)),
        (device.launch_op, ("copy", (), (), {})),
        (device.launch_fused, (COPY, (), (), ())),
        (device.synchronize, ()),
        (device.memory_info, ()),
        (device.view, (None, 4)),
        (device.adopt, (memoryview(b""),)),
        (device.prepare, (COPY,)),
        (launch, ((), (), ())),
    ]:
        assert sentence(errors.DeviceError, call, *arguments) == said
    assert open_device(registry, "toy") is not device


def test_unregistering_a_driver_closes_its_devices(registry):
    device = open_device(registry, "toy")
    registry.unregister(registry.load("toy").plugin)
    assert registry.devices == {}
    with pytest.raises(errors.DeviceError):
        device.allocate(4)
    with pytest.raises(errors.DriverNotFound):
        open_device(registry, "toy")


def faulty(**members):
    """Return a registry with a driver `toy` that differs from Toy in *members*."""
    registry = Registry(discovering=False)
    registry.register(type("Faulty", (Toy,), {"__module__": "faulty_driver", **members}))
    return registry


def raising(error):
    def fail(*_arguments):
        raise error

    return fail


def test_a_driver_that_cannot_open_is_broken_with_its_cause_and_traceback():
    registry = faulty(open=raising(KeyError("bus")))
    with pytest.raises(errors.DriverBroken) as caught:
        open_device(registry, "toy")
    assert str(caught.value) == (
        "driver 'toy' (registered in this process) is broken: it could not be opened: KeyError: 'bus'; "
        "`python -m polygrad drivers -v` shows the traceback"
    )
    assert isinstance(caught.value.__cause__, KeyError)
    record = registry.record("toy")
    assert record.status == "broken"
    assert "in fail" in record.traceback


@pytest.mark.parametrize("method", ["open", "count"])
def test_a_library_missing_when_opened_makes_the_driver_unavailable_with_what_it_requires(method):
    error = ModuleNotFoundError("No module named 'libtoy'", name="libtoy")
    registry = faulty(**{method: classmethod(raising(error)) if method == "count" else raising(error)})
    assert sentence(errors.DriverUnavailable, open_device, registry, "toy") == (
        "driver 'toy' (registered in this process) is unavailable: No module named 'libtoy'; it requires nothing"
    )
    assert registry.record("toy").status == "unavailable"


def test_a_module_of_its_own_missing_when_opened_makes_the_driver_broken():
    registry = faulty(open=raising(ModuleNotFoundError("No module named 'faulty_driver.x'", name="faulty_driver.x")))
    assert sentence(errors.DriverBroken, open_device, registry, "toy") == (
        "driver 'toy' (registered in this process) is broken: it could not be opened: "
        "No module named 'faulty_driver.x'; `python -m polygrad drivers -v` shows the traceback"
    )


def test_a_driver_that_says_it_is_unavailable_is_quoted():
    registry = faulty(open=raising(errors.DriverUnavailable("no toy is plugged in; plug one in")))
    assert sentence(errors.DriverUnavailable, open_device, registry, "toy") == "no toy is plugged in; plug one in"
    assert registry.record("toy")[3:5] == ("unavailable", "no toy is plugged in; plug one in")


def test_a_driver_without_devices_is_unavailable():
    registry = faulty(count=classmethod(lambda cls: 0))
    assert sentence(errors.DriverUnavailable, open_device, registry, "toy") == (
        "driver 'toy' (registered in this process) is unavailable: it found no device; it requires nothing"
    )


@pytest.mark.parametrize("count", [-1, 1.5, True, "2"])
def test_a_count_that_is_none_is_refused(count):
    registry = faulty(count=classmethod(lambda cls: count))
    assert sentence(errors.DriverBroken, open_device, registry, "toy") == (
        f"driver 'toy' (registered in this process) is broken: polygrad_count() gave {count!r}; "
        "give the number of devices"
    )


def test_an_answer_for_another_device_is_refused():
    info = DeviceInfo("toy", 1, "x", dtypes=frozenset({"float32"}))
    registry = faulty(open=lambda self, ordinal, options: info)
    assert sentence(errors.DriverBroken, open_device, registry, "toy:0") == (
        "driver 'toy' (registered in this process) is broken: polygrad_open() gave toy:1 for toy:0; "
        "give the DeviceInfo of that device"
    )


def test_a_device_without_mandatory_ops_is_refused():
    mandatory = DeviceInfo.__dataclass_fields__["scalar_ops"].default
    info = DeviceInfo("toy", 0, "x", dtypes=frozenset({"float32"}), scalar_ops=mandatory - {"add", "sqrt"})
    registry = faulty(open=lambda self, ordinal, options: info)
    assert sentence(errors.DriverBroken, open_device, registry, "toy:0") == (
        "driver 'toy' (registered in this process) is broken: toy:0 lacks the scalar ops add, sqrt; "
        "every driver has the mandatory ones"
    )


def test_a_device_of_too_short_kernels_is_refused():
    info = DeviceInfo("toy", 0, "x", dtypes=frozenset({"float32"}), limits=Limits(max_instructions=319))
    registry = faulty(open=lambda self, ordinal, options: info)
    assert sentence(errors.DriverBroken, open_device, registry, "toy:0") == (
        "driver 'toy' (registered in this process) is broken: toy:0 takes kernels of at most 319 instructions; "
        "ops that a device lacks are made of others in one kernel, so take at least 320"
    )


@pytest.mark.parametrize(
    ("declared", "found"), [(None, {"copy", "double"}), (frozenset(), set()), (frozenset({"matmul"}), {"matmul"})]
)
def test_ops_are_derived_unless_they_are_declared(declared, found):
    info = DeviceInfo("toy", 0, "x", dtypes=frozenset({"float32"}), ops=declared)
    registry = faulty(open=lambda self, ordinal, options: info, op_double=lambda self, outs, ins, attrs: None)
    assert open_device(registry, "toy:0").info.ops == found


def test_a_driver_that_is_no_driver_base_and_declares_no_ops_has_none():
    class Plain:
        @hookimpl
        def polygrad_drivers(self):
            return [DriverInfo("plain")]

        @hookimpl
        def polygrad_open(self, driver, ordinal, options):
            return DeviceInfo("plain", ordinal, "x", dtypes=frozenset({"float32"}))

    for hook in ("allocate", "free", "launch_op", "launch_fused"):
        setattr(Plain, f"polygrad_{hook}", hookimpl(getattr(Toy.plugin(), f"polygrad_{hook}").__func__))
    registry = Registry(discovering=False)
    registry.register(Plain())
    assert open_device(registry, "plain:0").info.ops == frozenset()


def test_a_failure_is_forgotten_when_the_device_opens():
    states = iter([errors.DriverUnavailable("not yet"), None])

    def open_later(self, ordinal, options):
        error = next(states)
        if error:
            raise error
        return Toy.open(self, ordinal, options)

    registry = faulty(open=open_later)
    with pytest.raises(errors.DriverUnavailable):
        open_device(registry, "toy")
    open_device(registry, "toy")
    assert registry.record("toy")[3:6] == ("ok", "", "")


# ---- lists --------------------------------------------------------------------------------------------------


def named(name, **members):
    """Return a driver like Toy of another name."""

    def opens(self, ordinal, options):
        Toy.open(self, ordinal, options)
        return DeviceInfo(name, ordinal, "x", dtypes=frozenset({"float32"}))

    return type(name, (Toy,), {"info": DriverInfo(name, priority=members.pop("priority", 0)), "open": opens, **members})


def test_all_devices_are_listed_and_absent_hardware_is_no_error(registry):
    registry.register(named("absent", count=classmethod(raising(errors.DriverUnavailable("none")))))
    registry.register(named("broken", count=classmethod(raising(ValueError("x")))))
    registry.register(named("empty", count=classmethod(lambda cls: 0)))
    registry.register(named("silent", count=DriverBase.count))
    registry.register(named("unable", count=DriverBase.count, open=raising(errors.DriverUnavailable("none"))))
    assert list_devices(registry) == ["silent:0", "toy:0", "toy:1"]
    assert [(r.name, r.status) for r in registry.records()] == [
        ("absent", "unavailable"),
        ("broken", "broken"),
        ("empty", "unavailable"),
        ("silent", "ok"),
        ("toy", "ok"),
        ("unable", "unavailable"),
    ]


def test_auto_opens_the_first_that_can_be_opened_by_priority_and_logs_what_it_passes_over(registry, caplog):
    registry.register(named("fast", priority=9, open=raising(errors.DriverUnavailable("no fast"))))
    registry.register(named("good", priority=5))
    with caplog.at_level(logging.INFO, "polygrad.driver"):
        assert open_device(registry, "auto").name == "good:0"
    assert caplog.messages == ["auto passes over fast: no fast"]


def test_auto_without_any_device_says_so():
    assert sentence(errors.DriverUnavailable, open_device, Registry(discovering=False), "auto") == (
        "no driver has a usable device (drivers: none is installed); `python -m polygrad doctor` says why"
    )


# ---- calls --------------------------------------------------------------------------------------------------


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
    registry, old, seen = Registry(discovering=False), Old(), Seen()
    registry.register(old)
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


# ---- kernels ------------------------------------------------------------------------------------------------


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


# ---- wrappers -----------------------------------------------------------------------------------------------


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


# ---- errors -------------------------------------------------------------------------------------------------


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


# ---- forks --------------------------------------------------------------------------------------------------


def in_child(call):
    """Return the text that *call* gives or raises in a forked child."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of forks beside threads, as we do
        child = os.fork()
    if child == 0:
        try:
            said = str(call())
        except BaseException as error:  # the child must end here, whatever happens
            said = f"{type(error).__name__}: {error}"
        os.write(write, said.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return said


FORKED = (
    "DeviceLost: device toy:0 was opened before this process was forked, and its driver cannot be used in a child; "
    'start processes with multiprocessing.get_context("spawn")'
)
forking = pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="not run: needs a system that forks"
)


@forking
def test_a_device_of_the_parent_is_refused_in_a_child(registry):
    device = open_device(registry, "toy")
    launch = device.prepare(COPY)
    for call in (
        lambda: device.allocate(4),
        lambda: launch((bytearray(4), bytearray(4)), (1, 0, 0), ()),
        lambda: device.prepare(COPY),
        lambda: open_device(registry, "toy"),
        lambda: (registry.register(Seen()), device.allocate(4)),
    ):
        assert in_child(call) == FORKED
    assert in_child(lambda: (device.free(1), device.close(), gc.collect())[:2]) == "(None, None)"
    assert in_child(lambda: open_device(registry, "toy:1").name) == "toy:1"
    assert launched(device) == b"abcd"


@forking
def test_a_driver_that_survives_forks_is_used_in_a_child():
    device = open_device(faulty(fork="safe"), "toy")
    assert in_child(lambda: launched(device)) == "b'abcd'"


@forking
def test_a_lock_held_by_another_thread_at_the_fork_does_not_hang_the_child(registry):
    open_device(registry, "toy")
    held, done = threading.Event(), threading.Event()

    def holding():
        with registry.lock:
            held.set()
            done.wait()

    thread = threading.Thread(target=holding)
    thread.start()
    held.wait()
    assert in_child(lambda: open_device(registry, "toy:1").name) == "toy:1"
    done.set()
    thread.join()
