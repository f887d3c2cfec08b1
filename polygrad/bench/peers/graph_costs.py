"""What polygrad's own graphs cost: recording operations, finding kernels for the first time, recording gradients.

Here: a graph of a wanted size, and the clock around one part.
Not here: what it takes to run kernels (the other work).

The graph is that of a deep network on small arrays: branches of layers side by side, each not deeper than what polygrad
computes of its own accord, added up at the end.
"""

import time
from typing import Any

import polygrad as pg
from polygrad.bench.peers import Step
from polygrad.bench.work import Work
from polygrad.runtime.outlining import launches

WIDTH = 16  # of the arrays
DEEP = 1000  # operations in a branch
LAYER = 10  # operations in a layer


def network(x: Any, w: Any, nodes: int) -> Any:
    """Return the sum over branches of layers, about *nodes* operations in all; nothing is computed."""
    total = None
    for branch in range(0, nodes, DEEP):
        h = x * (1.0 + branch)
        for _ in range(0, min(DEEP, nodes - branch), LAYER):
            centred = h - pg.sum(h, axis=-1, keepdims=True) * (1.0 / WIDTH)
            h = h + pg.tanh(centred @ w * 0.5) * pg.sin(centred)
        total = h if total is None else total + h
    return total


def graph_cost(work: Work) -> Step:
    """Return a call that returns the seconds which one part took for a graph of its own."""
    nodes = int(work.settings["nodes"])
    x, w = pg.realize(pg.ones((WIDTH, WIDTH), dtype=pg.float32), pg.ones((WIDTH, WIDTH), dtype=pg.float32))

    def record() -> float:
        began = time.perf_counter()
        y = network(x, w, nodes)
        took = time.perf_counter() - began
        del y
        return took

    def schedule() -> float:
        y = network(x, w, nodes)
        began = time.perf_counter()
        launches([y._node])
        return time.perf_counter() - began

    def differentiate() -> float:
        _, pull = pg.vjp(lambda x: network(x, w, nodes), x)
        one = pg.ones((WIDTH, WIDTH), dtype=pg.float32)
        began = time.perf_counter()
        grads = pull(one)
        took = time.perf_counter() - began
        del grads
        return took

    return {"record": record, "schedule": schedule, "differentiate": differentiate}[work.maths]
