"""Level 0, the contract: what the driver says of itself, and opening its device.

Here: declarations that can be judged without a launch, open and close.
Not here: whether what is declared works; the levels above see to that.
"""

import subprocess
import sys

from polygrad.driver import (
    ACCELERATED_OPS,
    API,
    MANDATORY,
    MANDATORY_REDUCTIONS,
    REDUCTIONS,
    SCALAR_OPS,
    DeviceInfo,
    DriverInfo,
)
from polygrad.driver.binding import count_devices, open_device
from polygrad.driver.calls import bound_hook
from polygrad.driver.ir import DTYPES, VERSION
from polygrad.driver.types import LEAST_INSTRUCTIONS, Features, Limits
from polygrad.errors import PolygradError
from polygrad_conformance import gating
from polygrad_conformance.bench import Bench
from polygrad_conformance.checks import check

LEAST_BUFFERS = 8
IMPORTS_NOTHING = (
    "import sys, polygrad\n"
    "from polygrad.driver.loader import REGISTRY\n"
    "names = REGISTRY.names()\n"
    "entry = REGISTRY.advertised().get({driver!r})\n"
    "package = entry.package if entry else ''\n"
    "sys.exit(package in sys.modules)\n"
)


@check("L0.info.sets")
def declared_sets(bench: Bench) -> None:
    """What is declared has the names of the IR, and the mandatory part is there."""
    info = bench.info
    assert isinstance(info, DeviceInfo), f"polygrad_open gave {info!r}"
    for what, given, known, least in (
        ("dtypes", info.dtypes, DTYPES, {"bool", "float32"}),
        ("scalar_ops", info.scalar_ops, SCALAR_OPS, MANDATORY),
        ("reductions", info.reductions, REDUCTIONS, MANDATORY_REDUCTIONS),
        ("ops", info.ops, ACCELERATED_OPS, set()),
    ):
        assert isinstance(given, frozenset), f"{what} must be a frozenset, not {type(given).__name__}"
        assert given <= set(known), f"{what} has {sorted(given - set(known))}, which are no names of the interface"
        assert given >= set(least), f"{what} lacks {sorted(set(least) - given)}, which every device has"
    assert info.dtypes & {"int32", "int64"}, "dtypes lacks int32 and int64; indices need one of them"
    assert info.name.strip(), "the device has no name for people"


@check("L0.info.limits")
def declared_limits(bench: Bench) -> None:
    """Limits are ints that can be true."""
    limits = bench.info.limits
    assert isinstance(limits, Limits), f"limits is {limits!r}"
    for name, value in vars(limits).items():
        assert type(value) is int, f"limits.{name} is {value!r}; it must be an int"
        assert value > 0, f"limits.{name} is {value}; it must be positive"
    assert limits.alignment & (limits.alignment - 1) == 0, f"alignment {limits.alignment} is no power of two"
    assert limits.max_alloc <= limits.total, f"max_alloc {limits.max_alloc} is more than total {limits.total}"
    assert limits.max_buffers >= LEAST_BUFFERS, f"max_buffers is {limits.max_buffers}; {LEAST_BUFFERS} is the least"
    assert limits.max_instructions >= LEAST_INSTRUCTIONS, f"max_instructions is {limits.max_instructions}"


@check("L0.info.features")
def declared_features(bench: Bench) -> None:
    """Features are bools, or one of their words."""
    features = bench.info.features
    assert isinstance(features, Features), f"features is {features!r}"
    for name, value in vars(features).items():
        words = {"thread_safety": ("serialised", "free"), "fork": ("safe", "unsafe")}.get(name)
        fits = type(value) is bool if words is None else value in words
        assert fits, f"features.{name} is {value!r}; it must be {' or '.join(words) if words else 'a bool'}"


@check("L0.info.driver")
def driver_describes_itself(bench: Bench) -> None:
    """polygrad_drivers() names this driver and its versions, twice alike, and imports nothing."""
    plugin = bench.registry.loaded[bench.info.driver].plugin
    before = set(sys.modules)
    first, second = (list(bound_hook(bench.registry, plugin, "polygrad_drivers")()) for _ in range(2))
    flat = [d for part in first for d in (part if isinstance(part, list) else [part])]
    again = [d for part in second for d in (part if isinstance(part, list) else [part])]
    assert flat == again, f"polygrad_drivers() gave {flat}, then {again}"
    loaded = sorted(set(sys.modules) - before)
    assert not loaded, f"polygrad_drivers() imported {loaded[0]}; it must be cheap and pure"
    mine = [d for d in flat if isinstance(d, DriverInfo) and d.name == bench.info.driver]
    assert len(mine) == 1, f"polygrad_drivers() describes {bench.info.driver} {len(mine)} times"
    assert mine[0].api[0] == API[0], f"the driver is for API {mine[0].api}, this is {API}"
    assert mine[0].ir[0] == VERSION[0], f"the driver is for IR {mine[0].ir}, this is {VERSION}"


@check("L0.info.count")
def count_holds_this_device(bench: Bench) -> None:
    """polygrad_count() is above this device's number, and a number beyond it is refused."""
    loaded = bench.registry.loaded[bench.info.driver]
    count = count_devices(bench.registry, loaded)
    if count is None:
        count = 1
    assert bench.info.ordinal < count, f"the device has number {bench.info.ordinal}, but polygrad_count() gives {count}"
    with bench.raises(PolygradError, f"opening {bench.info.driver}:{count}"):
        open_device(bench.registry, f"{bench.info.driver}:{count}")


@check("L0.info.requirements")
def requirements_are_readable(bench: Bench) -> None:
    """polygrad_requirements() gives a Requirements or nothing."""
    try:
        gating.requirements_of(bench.registry, bench.device)
    except TypeError as error:
        raise AssertionError(str(error)) from None


@check("L0.discovery.no_import")
def discovery_imports_nothing(bench: Bench) -> None:
    """Listing drivers does not import this one; an import of polygrad does not either."""
    code = IMPORTS_NOTHING.format(driver=bench.info.driver)
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)  # noqa: S603
    assert run.returncode == 0, f"listing drivers imported the package of {bench.info.driver}: {run.stderr[-300:]}"


@check("L0.open.reopen")
def device_opens_again(bench: Bench) -> None:
    """Three times closed and opened, the device describes itself alike and keeps bytes."""
    import numpy as np  # noqa: PLC0415  the other checks of this level need no arrays

    name, options, before = bench.device.name, bench.device.options, bench.info
    for turn in range(3):
        bench.device.close()
        bench.device = open_device(bench.registry, name, options)
        assert bench.info == before, f"opened again it says {bench.info}, before {before}"
        data = np.arange(100, dtype=np.uint8) + np.uint8(turn)
        handle = bench.put(data)
        assert (bench.read(handle, "uint8", 100) == data).all(), "bytes do not come back after opening again"
        bench.free(handle)
