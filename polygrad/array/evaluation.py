"""When and where things are computed, and what that takes.

Here: realize, eager, explain, counters, memory, devices and drivers as users ask for them.
Not here: how any of it works (runtime, schedule, driver).
"""

import contextlib
from collections.abc import Iterator
from typing import Any

from polygrad.array import interchange
from polygrad.array.config import resolve
from polygrad.array.tree import leaves_of
from polygrad.driver import binding, tracer
from polygrad.driver.loader import REGISTRY
from polygrad.driver.records import DriverRecord
from polygrad.graph.asking import on_look
from polygrad.graph.growth import on_growth
from polygrad.graph.node import RECORDING, Node
from polygrad.runtime import launch_counter, set_matmul_precision, set_matmul_tuning, transfer
from polygrad.runtime import realize as _realize
from polygrad.runtime.devices import state
from polygrad.runtime.explaining import explain_nodes

__all__ = ["launch_counter", "set_matmul_precision", "set_matmul_tuning"]


def realize(*trees: Any) -> Any:
    """Compute arrays (or trees of arrays) now, together; return what was given.

    >>> import polygrad as pg
    >>> x = pg.asarray([1.0, 2.0])
    >>> y, z = pg.realize(x + 1, x * 2)
    """
    _realize([a._node for a in leaves_of(trees)])
    return trees[0] if len(trees) == 1 else trees


@contextlib.contextmanager
def eager() -> Iterator[None]:
    """Compute op by op within a block of this thread: errors of a device come at the line that made them.

    Nothing is fused.

    >>> import polygrad as pg
    >>> with pg.eager():
    ...     y = pg.exp(pg.asarray([0.0]))
    """
    outer = RECORDING.observer

    def now(node: Node) -> None:
        if node.device is not None and node.storage is None and not RECORDING.batches:
            _realize([node])
        if outer is not None:
            outer(node)

    RECORDING.observer = now
    try:
        yield
    finally:
        RECORDING.observer = outer


def explain(*trees: Any) -> str:
    """Print and return the kernels that computing arrays would launch: their loads, stores, bytes and instructions.

    Nothing is computed.

    >>> import polygrad as pg
    >>> x = pg.ones((4, 3), dtype=pg.float32).realize()
    >>> told = pg.explain(pg.sum(x * x, axis=1))  # doctest: +ELLIPSIS
    cpu:0: 1 launch
    1. fused kernel over [4], reducing [3]: reads 48 bytes, writes 16 bytes
    ...
         %1 = multiply %0 %0 : float32       # FULL
         %2 = reduce sum %1 : float32        # ROW, after 1 reduction
         store b1[i0] = %2
    """
    text = explain_nodes([a._node for a in leaves_of(list(trees))])
    print(text)  # noqa: T201  printing is what it is for
    return text


def synchronize(device: str | None = None) -> None:
    """Wait until a device has done everything, and raise what its launches met (a bad index, say)."""
    transfer.synchronize(resolve(device))


def memory_stats(device: str | None = None) -> dict[str, int]:
    """Return the bytes in use by arrays, their peak, the bytes held from the driver, and how often it allocated.

    >>> import polygrad as pg
    >>> before = pg.memory_stats("cpu:0")["used"]
    >>> x = pg.zeros(1000, dtype=pg.float32, device="cpu:0").realize()
    >>> pg.memory_stats("cpu:0")["used"] - before >= 4000
    True
    """
    return state(resolve(device)).pool.stats()


def empty_cache(device: str | None = None) -> int:
    """Give memory that no array uses back to the driver; return how many bytes that were.

    >>> import polygrad as pg
    >>> pg.empty_cache("cpu:0") >= 0
    True
    """
    found = state(resolve(device))
    found.device.synchronize()
    return found.pool.release_free()


def list_devices() -> list[str]:
    """Return the names of the devices of all drivers that can be loaded; what cannot is in `drivers()`.

    >>> import polygrad as pg
    >>> "cpu:0" in pg.list_devices()
    True
    """
    return binding.list_devices(REGISTRY)


def drivers() -> list[DriverRecord]:
    """Return a record for each advertised driver: its status, and why it cannot be used if it cannot."""
    return binding.examine_drivers(REGISTRY)


def register_driver(plugin: Any) -> None:
    """Add a driver of this process, a pluggy plugin or a DriverBase subclass, without installing anything."""
    REGISTRY.register(plugin)


@contextlib.contextmanager
def profile() -> Iterator[Any]:
    """Record every launch, transfer and allocation in a block, waiting for each, so that its time is its own.

    Yields a profile: print it for a table, or ``export("trace.json")`` for Chrome's or Perfetto's viewer.

    >>> import polygrad as pg
    >>> with pg.profile() as seen:
    ...     _ = pg.sum(pg.ones(8) * 2.0).realize()
    >>> "sum" in str(seen)
    True
    """
    with tracer.profile(REGISTRY) as p:
        yield p


DEEPEST = 4096  # operands: a pending graph deeper than this is computed
FULLEST = 0.6  # of a device's memory: when arrays take more, pending graphs, which hold operands, are computed


def _bound(node: Node) -> None:
    """Compute a node whose pending graph has become too deep, or holds memory while the device fills up."""
    if node.device is None or node.storage is not None or RECORDING.batches:
        return
    found = state(node.device)
    if node.depth > DEEPEST or found.pool.used > FULLEST * found.info.limits.total:
        _realize([node])


on_growth(_bound)


def _look(node: Node) -> int:
    """Read a 0-d integer on which the shape of a result depends."""
    node.device = node.device or resolve(None)
    return int(interchange.to_numpy(node))


on_look(_look)
