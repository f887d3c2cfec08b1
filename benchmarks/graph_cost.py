"""What graphs cost before anything is computed: recording, differentiating and scheduling them, in microseconds a node.

    python benchmarks/graph_cost.py                      # all kinds, 1,000 and 10,000 nodes
    python benchmarks/graph_cost.py rnn gpt --nodes 1000 100000 --times 3

For each kind of graph and each size: nodes that are planned, kernels, and processor time in microseconds a node to
record it, to differentiate it, to schedule it for the first time ("cold": no plan and no kernel is known; compiling is
not counted) and to look its plan up ("warm"). The last columns are the sum of the first three, and how it compares with
12 us. Best of several.

Here: the clock. Not here: what it takes to compile and to run kernels.
"""

import argparse
import gc
import importlib
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import polygrad as pg
from polygrad.bench.peers import graph_costs
from polygrad.runtime.devices import state
from polygrad.schedule import stamps

runtime: Any = importlib.import_module("polygrad.runtime.realize")  # the package gives the name to the function
GOAL = 12  # microseconds a node
DEEP = 900  # operations in a row: deeper graphs are computed while they grow
Graph = tuple[Callable[[], Any], list[Any]]


def fresh(*shape: int) -> Any:
    """Return a random array in memory."""
    return pg.asarray(np.random.default_rng(sum(shape)).uniform(0.5, 1.5, shape).astype(np.float32))


def in_branches(step: Callable[[Any], Any], x: Any, nodes: int, of_step: int) -> Any:
    """Return the sum over branches of steps in a row, about *nodes* operations in all."""
    total = None
    while nodes > 0:
        h = x * (1.0 + nodes)
        for _ in range(0, min(DEEP, nodes), of_step):
            h = step(h)
        nodes -= DEEP
        total = h if total is None else total + h
    return pg.sum(total)


def chain(nodes: int) -> Graph:
    """Elementwise operations on a small array, one after the other."""
    x = fresh(64)
    return lambda: in_branches(lambda h: pg.sin(h) * 0.5 + x, x, nodes, 3), [x]


def wide(nodes: int) -> Graph:
    """Many values of one array, added up."""
    x = fresh(16, 16)

    def run() -> Any:
        many = [pg.exp(x * (1.0 / k)) - x for k in range(1, max(2, nodes // 5))]
        while len(many) > 1:
            many = [a + b for a, b in zip(many[::2], many[1::2], strict=False)] + many[len(many) & ~1 :]
        return pg.sum(many[0])

    return run, [x]


def rows(nodes: int) -> Graph:
    """Norms of rows and elementwise operations, one after the other."""
    x = fresh(16, 16)

    def step(h: Any) -> Any:
        centred = h - pg.mean(h, axis=-1, keepdims=True)
        return centred / pg.sqrt(pg.mean(centred * centred, axis=-1, keepdims=True) + 1e-5) + x

    return lambda: in_branches(step, x, nodes, 9), [x]


def rnn(nodes: int) -> Graph:
    """A recurrent network over many steps, in sequences that start anew."""
    w, u, b, xs = fresh(16, 16), fresh(8, 16), fresh(16), fresh(64, 4, 8)
    count = [0]

    def step(h: Any) -> Any:
        count[0] = (count[0] + 1) % 64
        return pg.tanh(h @ w + xs[count[0]] @ u + b)

    def run() -> Any:
        count[0] = 0
        return in_branches(step, fresh(4, 16), nodes, 6)

    return run, [w, u, b]


def ode(nodes: int) -> Graph:
    """Runge-Kutta steps of two coupled oscillators, for many starting points."""
    x, k = fresh(2, 32), fresh(2, 1)

    def slope(y: Any) -> Any:
        return pg.sin(y) * k - y * 0.1

    def step(y: Any) -> Any:
        a = slope(y)
        b = slope(y + a * 0.05)
        c = slope(y + b * 0.05)
        d = slope(y + c * 0.1)
        return y + (a + b * 2.0 + c * 2.0 + d) * (0.1 / 6)

    return lambda: in_branches(step, x, nodes, 29), [x, k]


def heat(nodes: int) -> Graph:
    """A rod that cools: slices of one array beside each other."""
    x = fresh(258)

    def step(u: Any) -> Any:
        inner = u[1:-1] + (u[2:] - u[1:-1] * 2.0 + u[:-2]) * 0.1
        return pg.concat([u[:1], inner, u[-1:]])

    return lambda: in_branches(step, x, nodes, 18), [x]


def network(nodes: int) -> Graph:
    """Residual layers on small arrays, as `python -m polygrad bench` has them."""
    x, w = fresh(16, 16), fresh(16, 16)
    return lambda: pg.sum(graph_costs.network(x, w, nodes)), [x, w]


KINDS = {k.__name__: k for k in (chain, wide, rows, rnn, ode, heat, network)}
BACKWARD = 3  # nodes for each operation of a function when its backward pass is there too
LAYER = 460  # nodes for each layer of a GPT, with its backward pass and its update


class Clock:
    """Processor seconds by part, and counts. Within its `with` block what realizes is measured part by part."""

    def __init__(self) -> None:
        self.look = self.plan = self.whole = 0.0
        self.nodes = self.kernels = 0  # that were planned

    def __enter__(self) -> "Clock":
        self._before = runtime.Structure, runtime.plan, runtime._realize_on
        look, plan, whole = self._before
        runtime.Structure, runtime.plan = self._timed(look, "look"), self._timed(plan, "plan")
        runtime._realize_on = self._timed(whole, "whole")
        return self

    def __exit__(self, *_: object) -> None:
        runtime.Structure, runtime.plan, runtime._realize_on = self._before

    def _timed(self, function: Callable[..., Any], part: str) -> Callable[..., Any]:
        def timed(*args: Any, **options: Any) -> Any:
            began = time.process_time()
            result = function(*args, **options)
            setattr(self, part, getattr(self, part) + time.process_time() - began)
            if part == "plan":
                self.nodes += len(args[0].order)
                self.kernels += len(result.steps)
            return result

        return timed


class Parts(NamedTuple):
    """What a graph cost: nodes and kernels, processor seconds to record it and so on."""

    nodes: int
    kernels: int
    record: float
    differentiate: float
    cold: float
    warm: float


def measured(record: Callable[[], Any], differentiate: Callable[[Any], list[Any]], finish: Callable[..., Any]) -> Parts:
    """Measure a graph that has no plan yet, then the same graph again with the plan."""
    state("cpu:0").plans.clear()
    stamps.forget()
    rounds = []
    for _ in range(2):
        gc.collect()
        clock = Clock()
        with clock:
            began = time.process_time()
            y = record()
            middle, meanwhile = time.process_time(), clock.whole
            grads = differentiate(y)
            end, later = time.process_time(), clock.whole
            finish(y, grads)
            after = time.process_time() - end - (clock.whole - later)
        recording = middle - began - meanwhile + after
        rounds.append((clock, recording, end - middle - (later - meanwhile)))
        del y, grads
    (cold, recording, back), (warm, *_) = rounds
    return Parts(cold.nodes, cold.kernels, recording, back, cold.look + cold.plan, warm.look)


def of_function(kind: str, nodes: int) -> Callable[[], Parts]:
    """Return what measures a function and its gradient."""
    run, over = KINDS[kind](max(1, nodes // BACKWARD))

    def record() -> Any:
        for x in over:
            x.requires_grad = True
            x.grad = None
        return run()

    def differentiate(y: Any) -> list[Any]:
        y.backward()
        return [x.grad for x in over]

    return lambda: measured(record, differentiate, lambda y, grads: pg.realize(y, *grads))


def of_gpt(nodes: int) -> Callable[[], Parts]:
    """Return what measures a training step of a GPT: forward, backward and the update."""
    config = pg.nn.GPTConfig(64, 16, 32, max(1, round(nodes / LAYER)), 4)
    model = pg.nn.GPT(config)
    optimizer = pg.optim.AdamW(model, lr=1e-3)
    tokens = pg.asarray(np.random.default_rng(0).integers(0, 64, (2, 17)))
    x, y = pg.realize(tokens[:, :-1] + 0, tokens[:, 1:] + 0)

    def differentiate(loss: Any) -> list[Any]:
        optimizer.zero_grad()
        loss.backward()
        return []

    def call() -> Parts:
        return measured(lambda: model.loss(x, y), differentiate, lambda loss, _: optimizer.step(also=loss))

    call()  # the first step makes the optimiser's state
    return call


def main() -> None:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kinds", nargs="*", default=[*KINDS, "gpt"])
    parser.add_argument("--nodes", type=int, nargs="+", default=[1000, 10_000])
    parser.add_argument("--times", type=int, default=3)
    options = parser.parse_args()
    print(f"{'':8}{'nodes':>9}{'kernels':>9}{'record':>9}{'diff':>9}{'cold':>9}{'warm':>9}{'sum':>9}  us a node")
    for kind in options.kinds:
        for nodes in options.nodes:
            call = of_gpt(nodes) if kind == "gpt" else of_function(kind, nodes)
            found = [call() for _ in range(options.times)]
            count, kernels = found[0][:2]
            record, back, cold, warm = (1e6 * min(p[k] for p in found) / count for k in range(2, 6))
            total = record + back + cold
            figures = "".join(f"{v:9.2f}" for v in (record, back, cold, warm, total))
            print(f"{kind:8}{count:9}{kernels:9}{figures}  {total / GOAL:.2f}x the goal", flush=True)


if __name__ == "__main__":
    main()
