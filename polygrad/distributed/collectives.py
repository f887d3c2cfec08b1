"""Collectives by the device's own library (NCCL on CUDA): values go from device to device, beside the kernels.

Here: the communicator over what a driver offers; watching that the work ends.
Not here: the library (the driver), how ranks find each other (`starting.py`).
"""

import queue
import threading
from collections.abc import Callable
from typing import Any

from polygrad import shapes
from polygrad.distributed.communicator import Communicator, Done, Pending
from polygrad.distributed.link import Link
from polygrad.driver.types import Ref
from polygrad.errors import DistributedError, PolygradError
from polygrad.graph.node import Node
from polygrad.runtime import transfer
from polygrad.runtime.devices import check_alive, state
from polygrad.runtime.memory import Storage

WATCH = 0.02  # seconds between looks at work under way, whose end nobody waits for: each takes time from the launches


def offers(device: str) -> bool:
    """Whether the driver of a device has collectives of its own."""
    return state(device).device.collectives() is not None


class Running(Pending):
    """Work that the device does beside its launches."""

    def __init__(self, owner: "DeviceCommunicator", token: Any, what: str, nodes: list[Node], out: list[Node]) -> None:
        self.owner, self.token, self.what = owner, token, what
        self.nodes = nodes  # they stay as they are until it is done
        self.out = out

    def wait(self) -> list[Node]:
        found = self.owner.state
        with found.lock:
            self.owner.collectives.wait(self.token)
        self.nodes = []  # memory is used again in the order of launches, which wait from now on
        out, self.out = self.out, []
        return out

    def seconds(self) -> tuple[float, float]:
        return self.owner.collectives.times(self.token)

    def lag(self, mark: Any) -> float:
        return self.owner.collectives.times(self.token)[1] - self.owner.collectives.times(mark)[1]


class DeviceCommunicator(Communicator):
    """Ranks whose devices move values by themselves.

    Parameters
    ----------
    device : str
        This rank's.
    link : Link or None
        To the other ranks' small values; None for one rank alone.
    local_rank : int
        Which of the ranks on this host.
    """

    name = "device"

    def __init__(self, device: str, link: Link | None, local_rank: int) -> None:
        super().__init__(link.rank if link else 0, link.size if link else 1, local_rank, link)
        self.state = state(device)
        made = self.state.device.collectives()
        if made is None:
            raise DistributedError(
                f"the driver of {device} has no collectives of its own here: is its library installed?"
            )
        self.collectives = made
        own = list(made.identity()) if self.rank == 0 else None
        self.collectives.connect(bytes(self.broadcast_object(own)), self.rank, self.size)
        self._watched: queue.SimpleQueue[tuple[Any, str] | None] = queue.SimpleQueue()
        if link is not None:
            threading.Thread(target=self._watch, name="polygrad collectives", daemon=True).start()

    def carries(self, dtype: Any) -> bool:
        return str(getattr(dtype, "name", dtype)) in self.collectives.sums

    def mark(self) -> Any:
        with self.state.lock:
            return self.collectives.mark()

    def _watch(self) -> None:
        """Look whether work that was begun ends; give the job up if another rank is gone."""
        while True:
            found = self._watched.get()
            while found is not None and not self._watched.empty():
                found = self._watched.get()  # work ends in the order of its beginning: the newest speaks for all
            if found is None:
                return
            token, what = found
            try:
                self.link.until(lambda token=token: self.collectives.done(token), what, pause=WATCH)  # type: ignore[misc]
            except PolygradError as error:
                if self.link.fault is None:
                    self.link.failed(str(error))
                self.collectives.abort()
                return

    def _begin(
        self, what: str, nodes: list[Node], received: list[tuple[int, ...]], call: Callable[[Any], Any]
    ) -> Pending:
        for n in nodes:
            if n.device != self.state.name:
                raise DistributedError(
                    f"cannot {what} an array of {n.device}: this rank's device is {self.state.name}; move it there"
                )
        out = [self._room(n, shape) for n, shape in zip(nodes, received, strict=True)]
        pairs = [(self._ref(n), self._ref(o)) for n, o in zip(nodes, out, strict=True) if o.aval.size]
        if self._link is not None:
            self._link.begin(what)
        if not pairs:
            return Done(out)
        with self.state.lock:
            token = call(pairs)
        if self._link is not None:
            self._watched.put((token, what))
        return Running(self, token, what, nodes, out)

    def _room(self, node: Node, shape: tuple[int, ...]) -> Node:
        nbytes = shapes.size(shape) * node.dtype.itemsize
        block = self.state.pool.allocate(nbytes) if nbytes else None
        return transfer.leaf(self.state.name, shape, node.dtype, Storage(block, 0, shapes.strides(shape), True))

    def _ref(self, node: Node) -> Ref:
        storage = node.storage
        check_alive(self.state, storage)
        return Ref(storage.buffer.handle, storage.offset, node.aval.shape, storage.strides, node.dtype.name)

    def begin_all_reduce(self, nodes: list[Node], op: str) -> Pending:
        same = [n.aval.shape for n in nodes]
        return self._begin(f"all_reduce by {op}", nodes, same, lambda pairs: self.collectives.all_reduce(pairs, op))

    def begin_broadcast(self, nodes: list[Node], root: int) -> Pending:
        same = [n.aval.shape for n in nodes]
        return self._begin(
            f"broadcast from rank {root}", nodes, same, lambda pairs: self.collectives.broadcast(pairs, root)
        )

    def begin_all_gather(self, nodes: list[Node]) -> Pending:
        wider = [(self.size, *n.aval.shape) for n in nodes]
        return self._begin("all_gather", nodes, wider, self.collectives.all_gather)

    def begin_reduce_scatter(self, nodes: list[Node]) -> Pending:
        parts = [(n.aval.shape[0] // self.size, *n.aval.shape[1:]) for n in nodes]
        return self._begin("reduce_scatter", nodes, parts, self.collectives.reduce_scatter)

    def abort(self, why: str) -> None:
        self.collectives.abort()
        super().abort(why)

    def close(self) -> None:
        if self._link is None or self._link.fault is None:
            self._watched.put(None)
            self.collectives.close()
        super().close()
