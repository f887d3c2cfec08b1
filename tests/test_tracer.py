"""Tests of the profiler: what it notes, what it adds up, what it writes; and of the names and bytes of kernels.

Here: `polygrad.driver.tracer` and `polygrad.driver.describe`. Not here: how wrappers are called (`test_binding.py`).
"""

import json
import re
import time

import pytest

from polygrad.driver import DeviceInfo, DriverInfo, Instr, Kernel, LaunchError, Store, View
from polygrad.driver.binding import open_device
from polygrad.driver.describe import kernel_bytes, kernel_name, op_bytes
from polygrad.driver.loader import Registry
from polygrad.driver.tracer import Event, Profile, profile
from polygrad.driver.types import Ref
from support.toys import Toy

F32 = "float32"


class Slow(Toy):
    """A device whose kernels take three milliseconds, counted when it is synchronised."""

    info = DriverInfo("slow")

    def open(self, ordinal, options):
        self.pending = 0
        return DeviceInfo("slow", ordinal, "slow", dtypes=frozenset({F32}))

    def op_copy(self, outs, ins, attrs):
        self.pending += 1

    def prepare_fused(self, kernel):
        def launch(buffers, ints, scalars):
            self.pending += 1

        return launch

    def synchronize(self):
        time.sleep(0.003 * self.pending)
        self.pending = 0


def softmax():
    """Return the kernel of a softmax over the last axis: one load, one store."""
    body = (
        Instr("load", F32, (), 0),
        Instr("reduce", F32, (0,), "max"),
        Instr("subtract", F32, (0, 1)),
        Instr("exp", F32, (2,)),
        Instr("reduce", F32, (3,), "sum"),
        Instr("divide", F32, (3, 4)),
    )
    views = (View(0, F32, (None, 1)), View(1, F32, (None, 1)))
    return Kernel(1, 1, (F32, F32), views, (), body, (Store(5, 1),))


SOFTMAX = softmax()
INTS = (8, 16, 0, 16, 0, 16)  # the extents, then offset and row stride of each view


def work(device):
    """Use every hook that a profile notes."""
    block = device.allocate(8)
    ref = Ref(block, 0, (2,), (1,), F32)
    device.launch_op("write", (ref,), (), {"data": memoryview(bytes(8))})
    launch = device.prepare(SOFTMAX)
    for _ in range(3):
        launch((block, block), INTS, ())
    device.launch_op("copy", (ref,), (ref,), {})
    device.launch_op("read", (), (ref,), {"into": memoryview(bytearray(8))})


@pytest.fixture
def profiled():
    registry = Registry(discovering=False)
    registry.register(Slow)
    device = open_device(registry, "slow")
    with profile(registry) as measured:
        work(device)
    assert not device.wrapped
    return measured


NAME = "max,subtract,exp,sum,divide [1 load, 1 store]"


def test_every_call_is_noted_with_its_bytes(profiled):
    assert [(e.device, e.kind, e.name, e.nbytes) for e in profiled.events] == [
        ("slow:0", "allocate", "allocate", 8),
        ("slow:0", "write", "write", 8),
        ("slow:0", "prepare", NAME, 0),
        *[("slow:0", "fused", NAME, 2 * 8 * 16 * 4)] * 3,
        ("slow:0", "op", "copy float32[2]", 16),
        ("slow:0", "read", "read", 8),
    ]


def test_durations_are_those_of_the_work_not_of_its_submission(profiled):
    fused = [e.duration for e in profiled.events if e.kind == "fused"]
    assert all(duration >= 3_000_000 for duration in fused)
    starts = [e.start for e in profiled.events]
    assert starts == sorted(starts)
    assert starts[0] >= 0
    assert sum(e.duration for e in profiled.events) <= profiled.elapsed


def test_work_launched_before_is_not_charged_to_the_first_call():
    registry = Registry(discovering=False)
    registry.register(Slow)
    device = open_device(registry, "slow")
    ref = Ref(device.allocate(8), 0, (2,), (1,), F32)
    for _ in range(20):
        device.launch_op("copy", (ref,), (ref,), {})
    with profile(registry) as measured:
        device.launch_op("read", (), (ref,), {"into": memoryview(bytearray(8))})
    assert measured.events[0].duration < 30_000_000


def test_the_table_adds_up_by_kernel():
    measured = Profile()
    for duration in (1_000_000, 2_000_000):
        measured.events.append(Event(0, duration, "acme:0", 1, "fused", "exp [1 load, 1 store]", 6_000_000, SOFTMAX))
    measured.events.append(Event(0, 1_000_000, "acme:0", 1, "allocate", "allocate", 0))
    measured.elapsed = 5_000_000
    assert str(measured) == (
        "device  kind      name                    calls   total ms   share     GB/s\n"
        "acme:0  fused     exp [1 load, 1 store]       2      3.000   75.0%     4.00\n"
        "acme:0  allocate  allocate                    1      1.000   25.0%\n"
        "3 calls took 4.000 ms of 5.000 ms; devices were synchronised after each launch"
    )


def test_kernels_of_one_name_and_different_structure_are_kept_apart():
    measured = Profile()
    for kernel in (SOFTMAX, SOFTMAX._replace(views=(View(0, F32, (None, None)), View(1, F32, (None, 1))))):
        measured.events.append(Event(0, 1, "acme:0", 1, "fused", kernel_name(kernel), 0, kernel))
    assert len(measured.rows()) == 2


def test_an_empty_profile_prints():
    with profile(Registry(discovering=False)) as measured:
        pass
    assert re.search(r"^0 calls took 0\.000 ms of \d+\.\d{3} ms; ", str(measured), re.MULTILINE)


def test_the_trace_is_what_a_viewer_expects(profiled, tmp_path):
    profiled.export(tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text())
    meta, *calls = trace["traceEvents"]
    assert meta == {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "slow:0"}}
    assert len(calls) == len(profiled.events)
    for call, event in zip(calls, profiled.events, strict=True):
        assert (call["ph"], call["name"], call["cat"], call["pid"]) == ("X", event.name, event.kind, 0)
        assert call["ts"] == event.start / 1000
        assert call["dur"] == event.duration / 1000
        assert call["args"] == {"bytes": event.nbytes}


def test_a_profile_ends_when_the_work_raises():
    registry = Registry(discovering=False)
    registry.register(Slow)
    device = open_device(registry, "slow")
    with pytest.raises(LaunchError), profile(registry) as measured:
        device.launch_op("write", (), (), {})
    assert not device.wrapped
    assert measured.elapsed > 0


def test_profiles_nest():
    registry = Registry(discovering=False)
    registry.register(Slow)
    device = open_device(registry, "slow")
    with profile(registry) as outer:
        with profile(registry) as inner:
            work(device)
        work(device)
    assert (len(inner.events), len(outer.events)) == (8, 15)  # the second time the kernel is prepared already


# ---- names and bytes ------------------------------------------------------------------------------------------


def loads(*views, then=()):
    """Return a kernel that loads each view but the last, does *then* and stores the last value through the last."""
    body = (*(Instr("load", F32, (), v) for v in range(len(views) - 1)), *then)
    rank = len(views[0].strides)
    return Kernel(rank, 0, (F32,) * 2, views, (), body, (Store(len(body) - 1, len(views) - 1),))


def test_a_long_kernel_has_a_short_name():
    ops = ("exp", "sqrt", "floor", "sin", "cos", "tan", "log", "erf", "exp")
    kernel = loads(View(0, F32, (1,)), View(1, F32, (1,)), then=tuple(Instr(op, F32, (0,)) for op in ops))
    assert kernel_name(kernel) == "exp,sqrt,floor,sin,cos,tan,+2 [1 load, 1 store]"


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ((Instr("load", F32, (), 0),), "copy [1 load, 1 store]"),
        ((Instr("load", F32, (), 0), Instr("cast", "int32", (0,))), "cast [1 load, 1 store]"),
        ((Instr("iota", "int32", (), 0),), "iota [0 loads, 1 store]"),
        ((Instr("const", F32, (), 1.0),), "copy [0 loads, 1 store]"),
    ],
)
def test_a_kernel_without_arithmetic_is_named_after_what_it_does(body, name):
    assert kernel_name(Kernel(1, 0, (F32,), (View(0, F32, (1,)),), (), body, (Store(len(body) - 1, 0),))) == name


def test_a_broadcast_element_counts_once():
    kernel = loads(
        View(0, F32, (None, 1)), View(0, F32, (0, 1)), View(1, F32, (None, 1)), then=(Instr("add", F32, (0, 1)),)
    )
    assert kernel_bytes(kernel, (8, 16, 0, 16, 0, 0, 16)) == 4 * (8 * 16 + 16 + 8 * 16)


def test_padding_is_not_loaded():
    kernel = loads(View(0, F32, (1,), window=(0,)), View(1, F32, (1,)))
    assert kernel_bytes(kernel, (10, 0, 2, 7, 0)) == 4 * (5 + 10)


def test_a_gather_loads_an_element_for_each_index():
    views = (View(0, "int64", (1, 0)), View(1, F32, (0, 1), gathers=1), View(2, F32, (None, 1)))
    body = (Instr("load", "int64", (), 0), Instr("load", F32, (0,), 1))
    kernel = Kernel(2, 0, ("int64", F32, F32), views, (), body, (Store(1, 2),))
    assert kernel_bytes(kernel, (5, 3, 0, 0, 3, 100, 0, 3)) == 8 * 5 + 4 * 15 + 4 * 15


def test_a_partial_store_counts_its_parts():
    views = (View(0, F32, (None, 1)), View(1, F32, (0, 1), partial=True))
    kernel = Kernel(1, 1, (F32, F32), views, (), (Instr("load", F32, (), 0),), (Store(0, 1),))
    assert kernel_bytes(kernel, (100, 7, 0, 7, 0, 4, 7)) == 4 * (700 + 4 * 7)


def test_the_bytes_of_an_op_are_those_of_its_operands():
    operands = [
        Ref(None, 0, (2, 3), (3, 1), F32),
        Ref(None, 0, (2, 3), (0, 1), "float64"),
        Ref(None, 0, (), (), "bool"),
    ]
    assert op_bytes(operands) == 24 + 24 + 1
