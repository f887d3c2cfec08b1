"""Collectives over MPI, through host memory, for any device.

Here: the calls of mpi4py, made in one thread that looks after them while kernels run.
Not here: how values become bytes (`host_memory.py`), whether this process was started by MPI (`starting.py`).

mpi4py is imported when a job starts.
"""

import queue
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from polygrad import shapes
from polygrad.distributed.communicator import Communicator, Pending
from polygrad.distributed.host_memory import Blocks, Message, messages
from polygrad.distributed.link import Link
from polygrad.errors import DistributedError
from polygrad.graph.node import Node
from polygrad.runtime import transfer
from polygrad.runtime.memory import Storage

_TYPES = {
    "bool": "UINT8_T", "float32": "FLOAT", "float64": "DOUBLE",
    **{f"int{n}": f"INT{n}_T" for n in (8, 16, 32, 64)}, **{f"uint{n}": f"UINT{n}_T" for n in (8, 16, 32, 64)},
}  # fmt: skip
_OPS = {"sum": "SUM", "max": "MAX", "min": "MIN"}


class Task(Pending):
    """Requests that the thread of a communicator makes and looks after."""

    def __init__(self, owner: "MPICommunicator", start: Callable[[], list[Any]], what: str) -> None:
        self.owner, self.start, self.what = owner, start, what
        self.number = owner.link.begin(what)
        self.ready = threading.Condition()
        self.over = False
        self.fault: BaseException | None = None
        self.results: Callable[[], list[Node]] = list
        self.began = self.ended = 0.0

    def run(self) -> None:
        """Make the requests and wait for them; called in the communicator's thread."""
        self.began = time.perf_counter()
        try:
            if self.owner.wire is not None:
                self.owner.wire(self.what)
            requests = self.start()
            done = self.owner.mpi.Request.Testall
            self.owner.look_after(lambda: done(requests))
        except BaseException as error:
            self.fault = error
        self.ended = time.perf_counter()
        with self.ready:
            self.over = True
            self.ready.notify_all()

    def wait(self) -> list[Node]:
        self.owner.link.until(lambda: self.over, self.what, condition=self.ready)
        if self.fault is not None:
            if isinstance(self.fault, DistributedError):
                raise self.fault
            raise DistributedError(f"{self.what} failed: {self.fault}") from self.fault
        results, self.results, self.start = self.results, list, list  # values that it held are free
        return results()

    def seconds(self) -> tuple[float, float]:
        return self.began, self.ended


class MPICommunicator(Communicator):
    """The ranks that an MPI has started.

    Values travel through host memory, without a copy where that is the device's own. Non-blocking collectives are begun
    and looked after in a thread, in the order in which they were asked for, so that kernels run meanwhile.

    Parameters
    ----------
    mpi : module
        ``mpi4py.MPI``.
    comm : mpi4py communicator
        Whose ranks take part; it is duplicated.
    link : Link
        To the other ranks' small values.
    local_rank : int
        Which of the ranks on this host.
    """

    name = "mpi"

    def __init__(self, mpi: Any, comm: Any, link: Link, local_rank: int) -> None:
        super().__init__(comm.rank, comm.size, local_rank, link)
        self.mpi = mpi
        self.comm = comm.Dup()
        self.blocks = Blocks()
        self.wire: Callable[[str], None] | None = None  # called before each collective, to imitate a slow network
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="polygrad mpi", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            task = self._tasks.get()
            if task is None:
                return
            task.run()

    def look_after(self, done: Callable[[], object]) -> None:
        """Look whether requests are done until they are, more seldom the longer it takes: MPI works while it looks."""
        looks = 0
        while not done():
            self.link.check()
            looks += 1
            time.sleep(0.0 if looks < 200 else 0.0001 if looks < 2000 else 0.001)  # noqa: PLR2004  at first at once

    def begin_all_reduce(self, nodes: list[Node], op: str) -> Pending:
        made, groups, empty = messages(nodes, self.blocks)
        call = getattr(self.mpi, _OPS[op])
        what = f"all_reduce of {sum(n.aval.size * n.dtype.itemsize for n in nodes)} bytes"

        def start() -> list[Any]:
            return [self.comm.Iallreduce(self._typed(m, m.send), self._typed(m, m.receive), call) for m in made]

        return self._collecting(start, what, nodes, made, groups, empty)

    def begin_broadcast(self, nodes: list[Node], root: int) -> Pending:
        made, groups, empty = messages(nodes, self.blocks, sends=self.rank == root)
        byte = self.mpi.BYTE

        def start() -> list[Any]:
            if self.rank == root:
                for m in made:
                    m.receive[:] = m.send
            return [self.comm.Ibcast([m.receive, byte], root) for m in made]

        return self._collecting(start, f"broadcast from rank {root}", nodes, made, groups, empty)

    def begin_all_gather(self, nodes: list[Node]) -> Pending:
        shaped = [(self.size, *n.aval.shape) for n in nodes]
        byte = self.mpi.BYTE

        def call(m: Message) -> Any:
            return self.comm.Iallgather([m.send, byte], [m.receive, byte])

        return self._singly("all_gather", nodes, shaped, call)

    def begin_reduce_scatter(self, nodes: list[Node]) -> Pending:
        shaped = [(n.aval.shape[0] // self.size, *n.aval.shape[1:]) for n in nodes]

        def call(m: Message) -> Any:
            return self.comm.Ireduce_scatter_block(self._typed(m, m.send), self._typed(m, m.receive), self.mpi.SUM)

        return self._singly("reduce_scatter", nodes, shaped, call)

    def _singly(
        self, what: str, nodes: list[Node], shaped: list[tuple[int, ...]], call: Callable[[Message], Any]
    ) -> Pending:
        """Begin one request for each node whose result has elements."""
        full = [k for k, shape in enumerate(shaped) if shapes.size(shape)]
        made = [Message([nodes[k]], [shaped[k]], self.blocks) for k in full]
        task = Task(self, lambda: [call(m) for m in made], what)

        def results() -> list[Node]:
            out = [_empty(n, shape) for n, shape in zip(nodes, shaped, strict=True)]
            for k, m in zip(full, made, strict=True):
                (out[k],) = m.finish()
            return out

        task.results = results
        self._tasks.put(task)
        return task

    def _collecting(
        self, start: Callable[[], list[Any]], what: str, nodes: list[Node], made: list[Message],
        groups: list[list[int]], empty: list[int],
    ) -> Task:  # fmt: skip
        task = Task(self, start, what)

        def results() -> list[Node]:
            out = list(nodes)
            for m, positions in zip(made, groups, strict=True):
                for k, found in zip(positions, m.finish(), strict=True):
                    out[k] = found
            for k in empty:
                out[k] = nodes[k]
            return out

        task.results = results
        self._tasks.put(task)
        return task

    def _typed(self, m: Message, memory: memoryview) -> list[Any]:
        name = _TYPES.get(m.dtype.name)
        if name is None:
            raise DistributedError(f"cannot add {m.dtype.name} over ranks by MPI, which has no such numbers")
        return [memory, getattr(self.mpi, name)]

    def abort(self, why: str) -> None:
        self.link.failed(why)
        sys.stdout.flush()
        time.sleep(0.2)  # for the others to hear why
        self.comm.Abort(1)

    def close(self) -> None:
        if self._thread.is_alive() and self.link.fault is None:
            self._tasks.put(None)
            self._thread.join(1.0)
        super().close()


def _empty(node: Node, shape: tuple[int, ...]) -> Node:
    assert node.device is not None  # noqa: S101  arrays always have a device
    return transfer.leaf(node.device, shape, node.dtype, Storage(None, 0, shapes.strides(shape), True))
