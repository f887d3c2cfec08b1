"""The validator: the core's own calls keep the contract, and calls that do not are found.

Here: training, views and indexing under the validator, and each fault once.
Not here: drivers' faults.
"""

import gc

import numpy as np
import pytest

import polygrad as pg
from polygrad.driver import Instr, Ref
from polygrad.driver.binding import open_device
from polygrad.driver.loader import REGISTRY, Registry
from polygrad_conformance import building, strict
from polygrad_conformance.validator import CoreFault, Validator


@pytest.fixture
def validator():
    strict.register(REGISTRY)
    watching = Validator()
    REGISTRY.register(watching)
    yield watching
    REGISTRY.unregister(watching)
    assert watching.faults == []


@pytest.mark.parametrize("device", ["cpu:0", "strict:5"])
def test_the_core_keeps_the_contract(validator, device):
    with pg.device(device):
        pg.random.seed(1)
        nn = pg.nn
        model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 4))
        optimizer = pg.optim.Adam(model, lr=0.01)
        for _ in range(3):
            x = pg.random.normal((5, 1, 6, 6), dtype=pg.float32)
            loss = nn.cross_entropy(model(x), pg.asarray([0, 1, 2, 3, 0]))
            loss.backward()
            optimizer.step(also=loss)
            optimizer.zero_grad()
        a = pg.reshape(pg.arange(24, dtype=pg.float32), (4, 6))
        a[1:3, ::2] = -1
        pg.realize(a)
        a[:, 0] = pg.where(a[:, 1] > 0, a[:, 0] * 2, a[:, 0])
        a[0] += a[1]
        picked = pg.take(a.T[::-1], pg.asarray([0, 5, 2]), axis=0)
        pg.realize(picked @ a, pg.argmax(a, axis=1), pg.concat([a, a[::2]]))
        del a, picked, model, optimizer, x, loss
        gc.collect()
        pg.empty_cache(device)
    assert validator.calls > 100


@pytest.fixture
def watched():
    registry = Registry(discovering=False)
    registry.register(strict.StrictDriver.plugin())
    watching = Validator()
    registry.register(watching)
    device = open_device(registry, "strict:0")
    return device, watching


def _found(watching, sentence):
    assert watching.faults
    assert sentence in watching.faults[-1]


def test_use_after_free_is_found(watched):
    device, watching = watched
    handle = device.allocate(64)
    device.free(handle)
    data = memoryview(bytes(64))
    with pytest.raises(Exception, match="was freed before") as caught:
        device.launch_op("write", (Ref(handle, 0, (64,), (1,), "uint8"),), (), {"data": data})
    assert isinstance(caught.value.__cause__, CoreFault)
    with pytest.raises(Exception, match="was freed before"):
        device.free(handle)
    _found(watching, "freeing on strict:0")


@pytest.mark.parametrize(
    ("op", "ref", "attrs", "said"),
    [
        (
            "write",
            (1, (64,), (1,)),
            {"data": memoryview(bytes(64))},
            "elements 1 to 64 of uint8 in a block of 64",
        ),
        ("write", (0, (8,), (1,)), {"data": memoryview(bytes(7))}, "a contiguous memoryview of 8 bytes"),
        ("write", (0, (8,), (2,)), {"data": memoryview(bytes(8))}, "has the strides (2,)"),
        ("matmul", (0, (8,), (1,)), {}, "which does not declare it"),
    ],
)
def test_a_wrong_op_is_found(watched, op, ref, attrs, said):
    device, watching = watched
    with pytest.raises(Exception, match="CoreFault|strict:0"):
        device.launch_op(op, (Ref(device.allocate(64), *ref, "uint8"),), (), attrs)
    _found(watching, said)


def test_a_launch_beyond_its_block_is_found(watched):
    device, watching = watched
    launch = device.prepare(building.unary("float32", Instr("negative", "float32", (0,))))
    blocks = device.allocate(64), device.allocate(60)
    with pytest.raises(Exception, match="strict:0"):
        launch(blocks, (16, 0, 0), ())
    _found(watching, "launching a kernel on strict:0")


def test_a_launch_into_what_it_reads_is_found(watched):
    device, watching = watched
    block = device.allocate(64)
    with pytest.raises(Exception, match="CoreFault|strict:0"):
        device.prepare(building.unary("float32", Instr("negative", "float32", (0,))))((block, block), (16, 0, 0), ())
    _found(watching, "it loads from a block that it stores to")


def test_a_sound_launch_is_none_of_its_business(watched):
    device, watching = watched
    handle = device.allocate(64)
    device.launch_op(
        "write", (Ref(handle, 0, (16,), (1,), "float32"),), (), {"data": np.ones(16, np.float32).view("u1").data}
    )
    device.prepare(building.unary("float32", Instr("negative", "float32", (0,))))(
        (handle, device.allocate(64)), (16, 0, 0), ()
    )
    device.synchronize()
    device.free(handle)
    device.close()
    assert watching.faults == []
