"""What a rank does for itself when several train together.

Here: when results are told of, how gradients travel, buckets, the share of communication that is hidden. Not here:
several processes (`test_distributed.py`).
"""

import numpy as np
import pytest

import polygrad as pg
from polygrad.distributed import buckets
from polygrad.driver import hookimpl
from polygrad.driver.loader import REGISTRY
from polygrad.graph.node import Node
from polygrad.runtime.realize import realize


def test_a_result_is_told_of_while_others_are_yet_to_be_launched(device):
    launched = []

    class Watcher:
        @hookimpl(wrapper=True)
        def polygrad_launch_op(self, device, op):
            launched.append(op)
            return (yield)

        @hookimpl(wrapper=True)
        def polygrad_launch_fused(self, device):
            launched.append("fused")
            return (yield)

    x = pg.ones((300, 300), dtype=pg.float32)
    early = x @ x
    late = pg.exp(early) @ x
    seen = {}

    def landed(node: Node) -> None:
        seen[node] = len(launched)
        if node is early._node:
            np.testing.assert_allclose(early.detach().numpy(), 300.0)
            seen[node] = len([op for op in launched if op != "read"])

    pg.realize(x)
    REGISTRY.register(watcher := Watcher())
    try:
        realize([early._node, late._node], landed)
    finally:
        REGISTRY.unregister(watcher)
    assert seen[early._node] < len([op for op in launched if op != "read"]) == seen[late._node] - 1


def test_gradients_travel_as_they_lie(device):
    weight = pg.nn.Parameter(np.ones((5, 3), np.float32))
    (weight.T * pg.asarray(np.arange(15, dtype=np.float32).reshape(3, 5))).sum().backward()
    node = weight.grad._node
    assert buckets.layout_of(node) == [1, 0]
    form = buckets.Form((1, 0), weight.dtype, 60)
    wire = pg.Array(buckets.outgoing(node, form))
    assert wire.shape == (3, 5)
    pg.realize(wire)
    assert wire._node.storage.contiguous
    back = pg.Array(buckets.incoming(wire._node, form, weight.dtype, 0.5))
    np.testing.assert_allclose(back.numpy(), 0.5 * weight.grad.numpy())


def test_what_travels_over_host_memory_is_read_where_it_lies(device):
    from polygrad.distributed.host_memory import Blocks, messages

    big, small, other = (pg.full(n, float(k), dtype=pg.float32) for k, n in enumerate((100_000, 5, 7)))
    pg.realize(big, small, other)
    made, groups, empty = messages([small._node, big._node, other._node, pg.zeros((0,))._node], Blocks())
    assert (groups, empty) == ([[1], [0, 2]], [3])
    if device == "cpu:0":
        address = np.frombuffer(made[0].send, np.float32).__array_interface__["data"][0]
        assert address == np.from_dlpack(big).__array_interface__["data"][0]
    for m in made:
        m.receive[:] = m.send
    found = {k: n for m, group in zip(made, groups, strict=True) for k, n in zip(group, m.finish(), strict=True)}
    for k, x in enumerate((small, big, other)):
        assert pg.Array(found[k]).tolist() == x.tolist()


def test_what_talks_to_others_is_not_compiled():
    job = pg.distributed.SingleProcess()
    step = pg.compile(lambda x: job.all_reduce(x))
    with pytest.raises(pg.CaptureError, match="cannot compile a function that talks to other processes"):
        for _ in range(3):
            step(pg.ones(3))


def test_buckets_hold_what_fits_and_at_least_one():
    assert buckets.divide([2, 0, 1], [5, 5, 5], 10) == [[2, 0], [1]]
    assert buckets.divide([0, 1], [50, 1], 10) == [[0], [1]]
    assert buckets.divide([], [], 10) == []


def test_the_share_of_communication_that_is_hidden():
    assert pg.distributed.Overlap(1.0, 0.5, 0.1, 3).hidden == pytest.approx(0.8)
    assert pg.distributed.Overlap(1.0, 0.0, 0.0, 0).hidden == 1.0
