"""Values as bytes of the host, to be sent, and bytes that arrived, as values.

Here: `Message`, which several small values share; memory that is used again.
Not here: who sends what to whom (`mpi.py`).

On a device whose memory is the host's nothing is copied but what is small: what is sent is read where it lies, and what
arrives is written to where it will stay. For other devices there are blocks of host memory between.
"""

import threading
from collections.abc import Sequence

from polygrad import shapes
from polygrad.graph.node import Node
from polygrad.runtime import transfer
from polygrad.runtime.devices import State, state
from polygrad.runtime.memory import Storage, size_class

SMALL = 1 << 16  # bytes: smaller values of one dtype travel together
GRAIN = 64  # bytes: where values in one message begin


class Blocks:
    """Blocks of host memory, kept by size and used again."""

    def __init__(self) -> None:
        self._free: dict[int, list[bytearray]] = {}
        self._lock = threading.Lock()

    def take(self, nbytes: int) -> bytearray:
        """Return a block of at least *nbytes*."""
        size = size_class(max(1, nbytes))
        with self._lock:
            found = self._free.get(size)
            if found:
                return found.pop()
        return bytearray(size)

    def give_back(self, block: bytearray) -> None:
        """Take a block back."""
        with self._lock:
            self._free.setdefault(len(block), []).append(block)


class Message:
    """Values of one dtype that travel as one run of elements.

    Parameters
    ----------
    nodes : list of Node
        Realized, contiguous, of one dtype and device, with elements.
    received : list of shapes
        The shapes of what comes back; several nodes only come back in the shapes they had.
    sends : bool
        Whether what they hold is sent; otherwise only the room for it is needed.
    """

    def __init__(
        self, nodes: Sequence[Node], received: Sequence[tuple[int, ...]], blocks: Blocks, sends: bool = True
    ) -> None:
        assert nodes[0].device is not None  # noqa: S101  arrays always have a device
        self.found: State = state(nodes[0].device)
        self.dtype = nodes[0].dtype
        self.nodes = list(nodes)  # they stay alive, and as they are, until the message has arrived
        self.received = list(received)
        self.blocks = blocks
        self.onto: bytearray | None = None
        self.out: bytearray | None = None
        size = self.dtype.itemsize
        grain = max(1, GRAIN // size)
        self.starts = [0]
        for n in nodes:
            self.starts.append(self.starts[-1] + (n.aval.size if len(nodes) == 1 else -(-n.aval.size // grain) * grain))
        self.count = self.starts[-1]
        self.send = self._outgoing(size) if sends else memoryview(b"")
        self.arrives = shapes.size(self.received[0]) if len(nodes) == 1 else self.count  # elements
        nbytes = self.arrives * size
        if self.found.info.features.host_memory:
            self.target = self.found.pool.allocate(nbytes)
            with self.found.lock:
                view = self.found.device.view(self.target.handle, self.target.nbytes)
            assert view is not None  # noqa: S101  the device declares host memory
            self.receive = view.cast("B")[:nbytes]
        else:
            self.onto = blocks.take(nbytes)
            self.receive = memoryview(self.onto)[:nbytes]

    def _outgoing(self, size: int) -> memoryview:
        if len(self.nodes) == 1 and transfer.on_host(self.nodes[0]):
            return _bytes_of(self.nodes[0])
        self.out = self.blocks.take(self.count * size)
        whole = memoryview(self.out)[: self.count * size]
        for n, start in zip(self.nodes, self.starts, strict=False):
            part = whole[start * size : start * size + n.aval.size * size]
            if transfer.on_host(n):
                part[:] = _bytes_of(n)
            else:
                transfer.download(n, part)
        return whole

    def finish(self) -> list[Node]:
        """Return what has arrived as realized nodes; the message is used up."""
        if self.out is not None:
            self.send = memoryview(b"")
            self.blocks.give_back(self.out)
        found = self.found
        if self.onto is None:
            whole = self.target
        else:
            flat = transfer.upload(found.name, (self.arrives,), self.dtype, self.receive.toreadonly())
            whole = flat.storage.buffer
            self.receive = memoryview(b"")
            self.blocks.give_back(self.onto)
        return [
            transfer.leaf(found.name, shape, self.dtype, Storage(whole, start, shapes.strides(shape), True))
            for shape, start in zip(self.received, self.starts, strict=False)
        ]


def _bytes_of(node: Node) -> memoryview:
    memory, _, offset = transfer.view(node)
    size = node.dtype.itemsize
    return memory.cast("B")[offset * size : (offset + node.aval.size) * size]


def messages(
    nodes: Sequence[Node], blocks: Blocks, sends: bool = True
) -> tuple[list[Message], list[list[int]], list[int]]:
    """Return messages that hold all nodes, the positions of the nodes in each, and those of nodes of no elements."""
    together: dict[tuple[object, str | None], list[int]] = {}
    alone: list[list[int]] = []
    empty = []
    for k, n in enumerate(nodes):
        if not n.aval.size:
            empty.append(k)
        elif n.aval.size * n.dtype.itemsize < SMALL:
            together.setdefault((n.dtype, n.device), []).append(k)
        else:
            alone.append([k])
    groups = [*alone, *together.values()]
    made = [Message([nodes[k] for k in g], [nodes[k].aval.shape for k in g], blocks, sends) for g in groups]
    return made, groups, empty
