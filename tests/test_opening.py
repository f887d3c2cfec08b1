"""Devices by name: which there are, how they are opened and closed, what is said of those that cannot be.

Here: `polygrad.driver.binding`'s names, lists and opening, on drivers of host memory. Not here: what open devices do
(`test_binding.py`); how drivers are found (`test_loader.py`).
"""

import logging
import threading

import pytest

from polygrad import errors
from polygrad.driver import DeviceInfo, DriverBase, DriverInfo, hookimpl
from polygrad.driver.binding import list_devices, open_device, parse_device_name
from polygrad.driver.types import Limits
from support.toys import (
    COPY,
    Toy,
    driver_of,
    faulty,
    named,
    raising,
    registry_of,
    sentence,
)

# ---- names -----------------------------------------------------------------------------------------------------------


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

    registry = registry_of(Single)
    assert sentence(errors.DeviceError, open_device, registry, "toy:1") == (
        "toy has 1 device(s), so toy:1 does not exist; use toy:0 (`python -m polygrad devices` lists all)"
    )


# ---- opening and closing ---------------------------------------------------------------------------------------------


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
    registry = registry_of(Plain())
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


# ---- lists -----------------------------------------------------------------------------------------------------------


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
    assert sentence(errors.DriverUnavailable, open_device, registry_of(), "auto") == (
        "no driver has a usable device (drivers: none is installed); `python -m polygrad doctor` says why"
    )
