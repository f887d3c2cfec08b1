"""Marks and the status word on a GPU: a step looks at indices while the device works on.

Here: what only a device with work under way can show. Not here: what the core makes of marks (`tests/test_notices.py`),
the contract (the conformance suite).
"""

import numpy as np
import pytest

import polygrad as pg
from polygrad.driver.loader import REGISTRY

NOT_READY = 600
SIDE, PRODUCTS = 4096, 12  # of float32 matrices: some 30 ms


@pytest.fixture
def cuda():
    """The open driver, whose device is the default one."""
    if "cuda:0" not in pg.list_devices():
        pytest.skip("not run: needs a CUDA device")
    with pg.device("cuda:0"):
        pg.zeros(1).realize()
        yield REGISTRY.load("cuda").plugin.devices[0]


def stepper():
    """Return a step that looks at indices first and then has much to do, and what it writes."""
    w = pg.zeros((SIDE, SIDE), dtype="float32").realize()
    square = (pg.random.normal((SIDE, SIDE), dtype="float32") / SIDE).realize()
    optimiser = pg.optim.SGD([w], lr=1.0)

    def step(rows):
        gradient = square[rows]
        for _ in range(PRODUCTS):
            gradient = gradient @ square
        optimiser.step([gradient])

    return step, w


def warmed(compiled):
    """Return such a step after some calls, compiled or not, the indices that it was called with, and what it writes."""
    step, w = stepper()
    call = pg.compile(step) if compiled else step
    rows = pg.arange(SIDE).realize()
    for _ in range(6):
        call(rows)
    return call, rows, w


def busy(driver):
    """Whether the device has something left to do."""
    return int(driver.runtime.streamQuery(driver.stream)) == NOT_READY


@pytest.mark.parametrize("compiled", [False, True])
def test_a_step_looks_while_the_device_works(cuda, compiled):
    call, rows, _ = warmed(compiled)
    pg.synchronize()
    for _ in range(3):
        call(rows)
        assert busy(cuda)
    pg.synchronize()
    assert not busy(cuda)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_bad_index_leaves_everything_as_it_was(cuda, compiled):
    call, rows, w = warmed(compiled)
    before = w.numpy()
    with pytest.raises(pg.OutOfBounds, match=f"index {SIDE} is out of range for an axis of size {SIDE}"):
        call((rows + 1).realize())
    np.testing.assert_array_equal(w.numpy(), before)
    call(rows)
    assert not (w.numpy() == before).all()


def test_the_first_of_many_bad_indices_is_reported_whole(cuda):
    x = pg.zeros(10, dtype="float32")
    x[pg.full((100_000,), -(1 << 40), dtype=pg.int64)].realize()
    with pytest.raises(pg.OutOfBounds, match=f"index {-(1 << 40)} is out of range"):
        pg.synchronize()
    assert x[pg.asarray([9])].tolist() == [0.0]
