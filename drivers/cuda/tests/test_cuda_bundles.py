"""Launches written down as a graph: what is laid out for which node, without a GPU; and on one, that a step is a graph.

Here: the driver's side. Not here: what goes together, and bits of whole steps (`tests/test_bundles.py`, the suite).
"""

import contextlib
import ctypes
import types

import numpy as np
import pytest

import polygrad as pg
from polygrad.driver import LaunchError
from polygrad_cuda import bundles
from polygrad_cuda.launching import Launcher


class Driver:
    """As much of a driver as capturing needs; `given` is what kernels of the graph were given."""

    device, stream, dead, noting = "cuda:0", 5, None, None

    def __init__(self):
        self.launched, self.given, self.status, self.node = [], [], 0, 70
        self.launch_kernel = lambda *launched: self.launched.append(launched)
        self.route = [self.launch_kernel]
        self.bundles = set()
        self.nodes = types.SimpleNamespace(set_parameters=self.set_parameters, newest=self.newest)
        self.runtime = types.SimpleNamespace(
            streamBeginCapture=lambda stream, mode: None, streamEndCapture=lambda stream: 4,
            graphInstantiate=lambda graph: 9, graphDestroy=lambda graph: None, graphExecDestroy=lambda graph: None,
        )  # fmt: skip
        self.errors = (OSError,)

    def vendor_calls(self, doing):
        return contextlib.nullcontext()

    def library_plans(self):
        return []

    def newest(self, stream):
        self.node += 1
        return self.node

    def set_parameters(self, graph, node, address):
        block = address._obj.arguments
        first, second = (ctypes.cast(block, ctypes.POINTER(ctypes.c_uint64))[k] for k in range(2))
        scalar = ctypes.cast(second, ctypes.POINTER(ctypes.c_float))[0]
        self.given.append((graph.value, node.value, ctypes.cast(first, ctypes.POINTER(ctypes.c_uint64))[0], scalar))
        return self.status


@pytest.fixture
def captured():
    """A driver, a kernel's launcher and a bundle of two launches of it, of which the second varies."""
    driver = Driver()
    launcher = Launcher(driver.route, 123, (1, 1, 1), (32, 1, 1), ["pointer", "float32"], fixed={}, stream=5)
    kernel = types.SimpleNamespace(converts=False, converted=lambda scalars: tuple(min(s, 9.0) for s in scalars))
    capturing = bundles.CudaCapturing(driver)
    capturing.begin()
    launcher.call(1000, 0.5)
    capturing.varies()
    driver.noting.fused(kernel, (launcher,), [2000])
    launcher.call(2000, 1.5)
    driver.noting.fused(kernel, (launcher, launcher), [3000])  # of a launch that follows, and stays as it is
    launcher.call(3000, 2.5)
    return driver, launcher, capturing.end()


def test_a_kernel_of_a_graph_gets_other_scalars(captured):
    driver, _, bundle = captured
    launches = len(driver.launched)
    bundle.change(0, None, (4.0,))
    assert driver.given == [(9, 71, 2000, 4.0)]
    bundle.change(0, None, (2.0**200,))  # beyond float32: converted first
    assert driver.given[1:] == [(9, 71, 2000, 9.0)]
    assert len(driver.launched) == launches


def test_an_op_lays_its_arguments_out_by_launching(captured):
    driver, launcher, bundle = captured
    launches = len(driver.launched)
    bundle.change(0, lambda: launcher.call(2000, 6.0), None)
    assert driver.given == [(9, 71, 2000, 6.0)]
    assert len(driver.launched) == launches
    launcher.call(1000, 1.0)
    assert len(driver.launched) == launches + 1


def test_what_cuda_refuses_is_an_error(captured):
    driver, _, bundle = captured
    driver.status = 1
    with pytest.raises(LaunchError, match="cannot give a kernel of a graph on cuda:0 other numbers: 1"):
        bundle.change(0, None, (4.0,))
    assert driver.route == [driver.launch_kernel]


def test_launches_after_many_that_vary_are_not_theirs():
    numbered = []
    call = types.SimpleNamespace(number=numbered.append, arguments=77)
    varying = bundles.Varying()
    varying.kernel, varying.together = types.SimpleNamespace(converts=False), [call, call]
    launched = (123, 1, 1, 1, 32, 1, 1, 0, 5, 66, 0)
    varying.nodes = [bundles.Node(k, launched) for k in range(1, 5)]
    nodes = varying.lay_out([(1.0,)])
    assert [node.handle.value for node in nodes] == [1, 2]
    assert [node.parameters.arguments for node in varying.nodes] == [77, 77, 66, 66]
    assert numbered == [[(1.0,)], [(1.0,)]]


def test_a_capture_that_is_abandoned_launches_again():
    driver = Driver()
    capturing = bundles.CudaCapturing(driver)
    capturing.begin()
    capturing.varies()
    capturing.abandon()
    assert driver.route == [driver.launch_kernel]
    assert driver.noting is None


def test_a_step_is_two_graphs():
    if "cuda:0" not in pg.list_devices():
        pytest.skip("not run: needs a CUDA device")
    with pg.device("cuda:0"):
        step, x, y = training_step()
        losses = [step(x, y).item() for _ in range(12)]
    assert losses[-1] < losses[0]
    assert "launched as 2 bundles and 0 single launches" in step.explain()


def training_step():
    model = pg.nn.Sequential(pg.nn.Linear(64, 32), pg.nn.ReLU(), pg.nn.Linear(32, 4))
    optimiser = pg.optim.AdamW(model, lr=1e-2)

    @pg.compile
    def step(x, y):
        loss = pg.nn.cross_entropy(model(x), y)
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        return loss

    rng = np.random.default_rng(0)
    x = pg.asarray(rng.normal(size=(16, 64)).astype(np.float32))
    y = pg.asarray(rng.integers(0, 4, 16))
    return step, x, y
