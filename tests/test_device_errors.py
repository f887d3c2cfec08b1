"""Devices that are absent, mixed up, closed or full: one class and one sentence each, nothing corrupted.

Here: a second driver on the host's cores that fails when it is told to. Not here: drivers that do not load
(`test_loader.py`).
"""

import dataclasses
import gc
import re
import threading

import numpy as np
import pytest

import polygrad as pg
from polygrad.driver import DriverInfo
from polygrad.driver.loader import REGISTRY
from polygrad.errors import OutOfMemory

DTYPES = "bool, int8, int16, int32, int64, uint8, uint16, uint32, uint64, float16, bfloat16, float32, float64"


pytestmark = pytest.mark.usefixtures("usable_afterwards")


def refuses(error, sentence):
    return pytest.raises(error, match=f"^{re.escape(sentence)}$")


def test_devices_that_do_not_exist(device):
    known = ", ".join(r.name for r in pg.drivers())
    with refuses(
        pg.DriverNotFound,
        f"no installed driver is named 'acme' (known: {known}); install the distribution that provides it",
    ):
        pg.set_device("acme:0")
    with refuses(pg.DriverNotFound, f"no installed driver is named 'cpuu' (known: {known}); did you mean 'cpu'?"):
        pg.zeros(3, device="cpuu")
    with refuses(
        pg.DeviceError,
        "cpu has 1 device(s), so cpu:7 does not exist; use cpu:0 (`python -m polygrad devices` lists all)",
    ):
        pg.zeros(3).to_device("cpu:7")
    with refuses(
        pg.DeviceError,
        "'0x' is not a device name; write the name of a driver, and after a colon the number of a device, "
        "such as 'acme' or 'acme:1'",
    ):
        pg.set_device("0x")
    assert pg.get_device() == device


def test_a_driver_whose_library_is_absent(device):
    absent = [r for r in pg.drivers() if r.status == "unavailable"]
    if not absent:
        pytest.skip("not run: needs a driver that cannot be used here")
    with refuses(pg.DriverUnavailable, absent[0].reason):
        pg.set_device(absent[0].name)
    assert pg.get_device() == device


MIXED = {
    "add": (lambda x, y: x + y, "add"),
    "matmul": (lambda x, y: pg.reshape(x, (1, 3)) @ y, "matmul"),
    "concat": (lambda x, y: pg.concat([x, y]), "concat"),
    "where": (lambda x, y: pg.where(x > 0, x, y), "select between"),
}


@pytest.mark.parametrize("name", ["add", "concat"])
def test_operands_on_two_devices(name, device, twin):
    function, verb = MIXED[name]
    x, y = pg.ones(3, dtype="float32"), pg.ones(3, dtype="float32", device="twin:0")
    with refuses(
        pg.DeviceError,
        f"cannot {verb} float32[3] on {device} and float32[3] on twin:0: operands must be on one device; move "
        "one with .to_device(...)",
    ):
        function(x, y)
    assert (x + y.to_device(device)).tolist() == [2.0] * 3


def test_other_ops_on_two_devices(device, twin):
    x, y = pg.ones(3, dtype="float32"), pg.ones(3, dtype="float32", device="twin:0")
    for function, _ in MIXED.values():
        with pytest.raises(pg.DeviceError, match="operands must be on one device; move one with .to_device"):
            function(x, y)
    with pytest.raises(pg.DeviceError, match="operands must be on one device"):
        x[pg.asarray([0], device="twin:0")]


@pytest.fixture
def twin():
    """A driver `twin` on the host's cores, registered in this process; its class counts blocks and fails on demand."""
    from polygrad_cpu import CpuDriver

    class Twin(CpuDriver):
        info = DriverInfo("twin", requires="nothing")
        blocks = 0
        fail_after = None

        def open(self, ordinal, options):
            return dataclasses.replace(super().open(ordinal, options), driver="twin")

        def allocate(self, nbytes):
            if Twin.fail_after is not None:
                if Twin.fail_after <= 0:
                    message = "the twin is full"
                    raise OutOfMemory(message)
                Twin.fail_after -= 1
            Twin.blocks += 1
            return super().allocate(nbytes)

        def free(self, handle):
            Twin.blocks -= 1
            super().free(handle)

    Twin.__name__ = "Twin"
    pg.register_driver(Twin)
    yield Twin
    opened = REGISTRY.devices.get("twin:0")
    if opened is not None:
        opened.close()
    REGISTRY.unregister(REGISTRY.loaded["twin"].plugin)


def test_a_closed_device(twin):
    x = pg.ones(3, device="twin:0").realize()
    pending = x + 1.0
    uses = [x.numpy, pending.numpy, (x * 2.0).realize, x.to_device("cpu:0").numpy]
    REGISTRY.devices["twin:0"].close()
    sentence = (
        "cannot use an array of twin:0 that is older than the device: it was closed and opened again, and "
        "what was on it is lost; "
        "make the array anew"
    )
    for use in uses:
        with refuses(pg.DeviceError, sentence):
            use()
    assert pg.ones(3, device="twin:0").tolist() == [1.0] * 3
    assert pg.ones(3, device="cpu:0").tolist() == [1.0] * 3


def test_no_room_for_one_array(device):
    if pg.memory_stats()["used"] > 2**30:
        pytest.skip("not run: needs an empty device")
    x = pg.zeros((1 << 44,), dtype="float32")  # nothing happens yet
    with pytest.raises(pg.OutOfMemory) as caught:
        x.realize()
    assert isinstance(caught.value, MemoryError)
    assert re.match(
        rf"{device} has no room for {2**46} bytes: \d+ bytes are in use by arrays; free some, use smaller "
        r"ones, or another device \(",
        str(caught.value),
    )
    assert "\n" not in str(caught.value)
    assert pg.zeros(3, dtype="float32").tolist() == [0.0] * 3


def train_once(x, w):
    h = pg.tanh(x * 0.01) @ (w * 0.001)
    loss = pg.sum(h * h)
    loss.backward()
    pg.realize(loss, x.grad, w.grad)
    return loss.item(), x.grad.numpy(), w.grad.numpy()


@pytest.mark.parametrize("n", range(7))
def test_the_nth_allocation_fails(n, twin):
    """Whatever allocation fails: OutOfMemory, nothing changed, the same works when there is room."""
    with pg.device("twin:0"):
        x = pg.asarray(np.arange(600.0)).requires_grad_()
        w = pg.asarray(np.arange(1200.0).reshape(600, 2)).requires_grad_()
        gc.collect()
        pg.empty_cache()
        used = pg.memory_stats()["used"]
        twin.fail_after = n

        try:
            first = train_once(x, w)
        except pg.OutOfMemory as error:
            assert "the twin is full" in str(error)
            first = None
            del error
        twin.fail_after = None
        x.grad = w.grad = None
        gc.collect()
        assert pg.memory_stats()["used"] == used
        got = train_once(x, w)
        h = np.tanh(np.arange(600.0) * 0.01) @ (np.arange(1200.0).reshape(600, 2) * 0.001)
        assert got[0] == pytest.approx(float(np.sum(h * h)))
        if first is not None:
            np.testing.assert_array_equal(first[1], got[1])
        del x, w
        gc.collect()
        pg.empty_cache()
        assert pg.memory_stats()["used"] <= 1024


def test_free_blocks_are_given_back_before_memory_runs_out(twin):
    with pg.device("twin:0"):
        x = pg.ones(100_000).realize()
        del x
        gc.collect()
        twin.fail_after = 0
        blocks = twin.blocks
        assert blocks >= 1
        with pytest.raises(pg.OutOfMemory):
            pg.ones(900_000).realize()
        assert twin.blocks < blocks  # what lay free was given back before giving up
        twin.fail_after = None
        assert pg.sum(pg.ones(900_000)).item() == 900_000


def test_errors_in_many_threads_leave_the_device_usable(device):
    x = pg.asarray([10.0, 20.0, 30.0]).realize()
    found = []

    def work(k):
        with pg.device(device):
            try:
                x[pg.asarray([k])].numpy()
                found.append("fine")
            except pg.OutOfBounds:
                found.append("refused")

    threads = [threading.Thread(target=work, args=(k,)) for k in (0, 1, 5, 2, 7, 0)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(found) == 6
    assert "refused" in found
    assert (x + 1.0).tolist() == [11.0, 21.0, 31.0]
