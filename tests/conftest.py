"""What all tests share: the devices they run on, their seeds, and how a missing one is reported.

Here: the fixtures `device`, `host`, `other_device` and `rng`, the marker `thorough` and the closing lines of the
summary. Not here: tests; tolerances; functions that tests share (`support`).

A test that takes `device` runs once on each device present, which is then the default device of its thread. The
variable ``POLYGRAD_TEST_DEVICES="cpu:0,opencl:0"`` restricts them, and naming one that is absent is an error. What
cannot run for lack of something is skipped with "not run: needs X", and the summary counts it. The big sweeps carry the
marker `thorough` and run with ``--thorough`` (or ``POLYGRAD_TEST_THOROUGH=1``) alone.
"""

import collections
import gc
import os
import zlib

import numpy as np
import pytest

import polygrad as pg
from polygrad.driver.loader import REGISTRY
from support.scribe import Scribe
from support.toys import Toy, registry_of

VARIABLE = "POLYGRAD_TEST_DEVICES"
NOT_RUN = "not run: needs "


def present() -> list[str]:
    """Return the devices to test on."""
    have = pg.list_devices()
    asked = [name.strip() for name in os.environ.get(VARIABLE, "").split(",") if name.strip()]
    absent = [name for name in asked if name not in have]
    if absent:
        raise pytest.UsageError(f"{VARIABLE} names {', '.join(absent)}, but the devices present are {', '.join(have)}")
    return asked or have


DEVICES = present()


def pytest_addoption(parser):
    parser.addoption("--thorough", action="store_true", help="also run the big sweeps")


def pytest_configure(config):
    config.addinivalue_line("markers", "thorough: a big sweep, run with --thorough alone")
    config.addinivalue_line("markers", "slow: takes more than about ten seconds on a device that compiles")


def _thorough(config):
    return config.getoption("--thorough", default=False) or bool(os.environ.get("POLYGRAD_TEST_THOROUGH"))


def pytest_generate_tests(metafunc):
    if "device" in metafunc.fixturenames:
        metafunc.parametrize("device", DEVICES, indirect=True)


def pytest_collection_modifyitems(config, items):
    if _thorough(config):
        return
    kept, left = [], []
    for item in items:
        (left if item.get_closest_marker("thorough") else kept).append(item)
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = kept


def pytest_terminal_summary(terminalreporter):
    """Say in one line for each missing thing how many tests it has cost."""
    missing = collections.Counter()
    for report in terminalreporter.stats.get("skipped", []):
        reason = str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if NOT_RUN in reason:
            missing[reason.split(NOT_RUN)[1].strip()] += 1
    for thing, count in sorted(missing.items()):
        terminalreporter.write_line(f"{count} tests {NOT_RUN}{thing}")
    for record in pg.drivers():
        if record.status not in ("ok", "unloaded"):
            terminalreporter.write_line(f"tests on {record.name} {NOT_RUN}its device ({record.reason.splitlines()[0]})")


@pytest.fixture
def device(request):
    """The name of a device, which is the default one within the test."""
    with pg.device(request.param) as name:
        yield name


@pytest.fixture
def host():
    """The host's device, the default one within the test: for what does not depend on the device."""
    with pg.device("cpu:0") as name:
        yield name


@pytest.fixture
def fewer(device):
    """A function that picks from a list of samples: all on a device of the cpu driver, one where each "
    "kernel costs a compiler run."""
    return list if device.startswith("cpu") else lambda samples: list(samples)[len(samples) // 2 :][:1]


@pytest.fixture
def other_device(device):
    """Another device than `device`."""
    for name in DEVICES:
        if name != device:
            return name
    pytest.skip(NOT_RUN + "a second device")


@pytest.fixture
def float_dtype(device):
    """The widest float dtype of the device, for tests that do not care."""
    return pg.float64 if "float64" in pg.__array_namespace_info__().dtypes(device=device) else pg.float32


@pytest.fixture
def registry():
    """A registry that knows one driver, `toy`, whose device is memory of the host."""
    return registry_of(Toy)


@pytest.fixture
def scribe(cheap_collection):
    """The open driver of a device that writes launches down, which is the default one within the test."""
    REGISTRY.register(Scribe)
    try:
        with pg.device("scribe:0"):
            pg.zeros(1).realize()
            yield Scribe.opened
    finally:
        gc.collect()
        REGISTRY.unregister(REGISTRY.load("scribe").plugin)


@pytest.fixture(scope="module")
def queue():
    """A queue of PyOpenCL on the first device of the first platform, for text that no driver runs."""
    cl = pytest.importorskip("pyopencl", reason="not run: needs pyopencl")
    try:
        context = cl.Context([cl.get_platforms()[0].get_devices()[0]])
    except (cl.Error, IndexError):
        pytest.skip("not run: needs an OpenCL device")
    return cl.CommandQueue(context)


@pytest.fixture
def rng(request):
    """A NumPy generator whose seed is the test's own."""
    return np.random.default_rng(zlib.crc32(request.node.nodeid.encode()))


@pytest.fixture(autouse=True)
def _fresh_state(request):
    """Give each test the same random key, and see that it left no grad mode or tape behind."""
    pg.random.seed(zlib.crc32(request.node.nodeid.encode()))
    yield
    assert pg.is_grad_enabled(), "the test left gradients switched off"
    assert pg.get_current_tape() is None, "the test left a tape open"


@pytest.fixture
def cheap_collection():
    """Let `gc.collect` look at what the test itself has made: thousands of plans of earlier tests take it seconds."""
    gc.collect(0)
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def _cheap_where_collected(request):
    """Give `cheap_collection` to the tests of every module that imports gc."""
    if hasattr(request.module, "gc"):
        request.getfixturevalue("cheap_collection")


@pytest.fixture
def usable_afterwards(request, cheap_collection):
    """See that a test's errors have left its device usable, and no memory on it in use."""
    if "device" not in request.fixturenames:
        yield
        return
    device = request.getfixturevalue("device")
    before = pg.memory_stats(device)["used"]
    yield
    x = pg.asarray([1.0, 2.0], dtype=pg.float32, device=device)
    assert pg.grad(lambda v: pg.sum(v * v))(x).tolist() == [2.0, 4.0]
    del x
    gc.collect()
    pg.synchronize(device)
    assert pg.memory_stats(device)["used"] <= before + 512  # the status word may have been made
