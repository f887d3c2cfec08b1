"""Communicator: what the ranks of a job can do together.

Here: the interface, in arrays; what every kind of communicator has in common: names, checks, trees, complex numbers.
Not here: how bytes travel (`mpi.py`, `collectives.py`); which communicator a process gets (`starting.py`).

Arrays are never changed in place: a collective returns new ones. Every rank calls the same collectives in the same
order with arrays of the same shapes and dtypes; what the ranks are about to do is compared first, so that a mistake is
a sentence and not a job that hangs.
"""

import abc
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

from polygrad import dtypes
from polygrad.array.functions import FUNCTIONS
from polygrad.array.object import Array
from polygrad.array.recording import no_grad
from polygrad.array.tree import leaves_of, map_tree
from polygrad.distributed.link import Link
from polygrad.errors import CaptureError, DistributedError, DTypeError, ShapeError
from polygrad.graph.node import RECORDING, Node, like_parts, parts
from polygrad.runtime import transfer
from polygrad.runtime.realize import realize

OPS = ("sum", "mean", "max", "min")


def refuse_capture() -> None:
    """Raise CaptureError if a function is being compiled: what other ranks send is not in its launches."""
    if RECORDING.capture is not None:
        raise CaptureError(
            "cannot compile a function that talks to other processes: compile what comes before and after, and reduce "
            "between"
        )


class Pending(abc.ABC):
    """A collective on its way."""

    @abc.abstractmethod
    def wait(self) -> list[Node]:
        """Return the results, as realized nodes; on a device whose launches are queued they may still be on their way,
        and what is launched from now on waits for them there.
        """

    def seconds(self) -> tuple[float, float]:
        """Return when it began and ended, once it was waited for: seconds by any clock, but one for all."""
        return 0.0, 0.0

    def lag(self, mark: Any) -> float:  # noqa: ARG002  of those that have marks
        """Return how many seconds after a `Communicator.mark` it ended, on the device."""
        return 0.0


class Done(Pending):
    """A collective that was no work."""

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes

    def wait(self) -> list[Node]:
        return self.nodes


class Communicator(abc.ABC):
    """The ranks of a job, as one of them sees them.

    Attributes
    ----------
    rank, size : int
        Which of how many.
    local_rank : int
        Which of those on this host.
    name : str
        What moves arrays: "mpi", "device" or "single".
    """

    name = ""

    def __init__(self, rank: int, size: int, local_rank: int, link: Link | None) -> None:
        self.rank, self.size, self.local_rank = rank, size, local_rank
        self._link = link
        self._known: set[str] = set()

    @property
    def link(self) -> Link:
        """The link to the other ranks' small values; only where there are others."""
        if self._link is None:
            raise DistributedError("there is one rank alone: it has no link to others")
        return self._link

    # ---- arrays --------------------------------------------------------------------------------------------

    def all_reduce(self, arrays: Any, op: str = "sum") -> Any:
        """Return arrays (or a tree of them) combined over all ranks, element by element.

        Parameters
        ----------
        arrays : Array or tree of arrays
            Of the same shapes and dtypes on every rank.
        op : {"sum", "mean", "max", "min"}
            How. Means are of floats; float16 and bfloat16 are added in float32.

        Raises
        ------
        DTypeError
            If the op has no meaning for a dtype.
        DistributedError
            If the ranks do not call the same with the same, or one is gone.

        Examples
        --------
        >>> import polygrad as pg
        >>> job = pg.distributed.SingleProcess()
        >>> job.all_reduce({"loss": pg.asarray(2.0)}, "mean")["loss"].item()
        2.0
        """
        if op not in OPS:
            raise DistributedError(f"cannot combine arrays by {op!r}: it is one of {', '.join(map(repr, OPS))}")
        found = leaves_of(arrays)
        for x in found:
            kind = dtypes.KINDS[x.dtype]
            if (op == "mean" and kind not in ("float", "complex")) or (op in ("max", "min") and kind == "complex"):
                raise DTypeError(f"cannot take the {op} of {x.dtype.name} arrays over ranks")
            if kind == "bool" and op == "sum":
                raise DTypeError("cannot add bools over ranks: convert with .astype('int32'), or use 'max' or 'min'")
        self._agree(f"all_reduce by {op}", found)
        with no_grad():
            wide = [self._carried(x) for x in found]
            out = self.joined(self.begin_all_reduce(self.nodes(wide), "sum" if op == "mean" else op).wait(), wide)
            if op == "mean":
                out = [x * (1.0 / self.size) for x in out]
            return _like(arrays, [y.astype(x.dtype, copy=False) for x, y in zip(found, out, strict=True)])

    def broadcast(self, arrays: Any, root: int = 0) -> Any:
        """Return the arrays of rank *root* on every rank; the others give arrays of the same shapes and dtypes."""
        self._check_root(root)
        found = leaves_of(arrays)
        self._agree(f"broadcast from rank {root}", found)
        return _like(arrays, self.joined(self.begin_broadcast(self.nodes(found), root).wait(), found))

    def all_gather(self, arrays: Any) -> Any:
        """Return for each array those of all ranks, stacked along a new first axis, in order of rank."""
        found = leaves_of(arrays)
        self._agree("all_gather", found)
        shapes = [(self.size, *x.shape) for x in found]
        return _like(arrays, self.joined(self.begin_all_gather(self.nodes(found)).wait(), found, shapes))

    def reduce_scatter(self, arrays: Any, op: str = "sum") -> Any:
        """Return this rank's part of arrays combined over all ranks: of n * size rows, n rows from rank * n on.

        Raises
        ------
        ShapeError
            If the first axis cannot be divided by the number of ranks.
        """
        if op not in ("sum", "mean"):
            raise DistributedError(f"cannot combine arrays by {op!r}: it is 'sum' or 'mean'")
        found = leaves_of(arrays)
        for x in found:
            if not x.ndim or x.shape[0] % self.size:
                raise ShapeError(
                    f"cannot scatter an array of shape {list(x.shape)} over {self.size} ranks: its first axis must be "
                    "a multiple of their number"
                )
            if dtypes.KINDS[x.dtype] == "bool" or (op == "mean" and dtypes.KINDS[x.dtype] == "int"):
                raise DTypeError(f"cannot take the {op} of {x.dtype.name} arrays over ranks")
        self._agree(f"reduce_scatter by {op}", found)
        with no_grad():
            wide = [self._carried(x) for x in found]
            shapes = [(x.shape[0] // self.size, *x.shape[1:]) for x in found]
            out = self.joined(self.begin_reduce_scatter(self.nodes(wide)).wait(), wide, shapes)
            if op == "mean":
                out = [x * (1.0 / self.size) for x in out]
            return _like(arrays, [y.astype(x.dtype, copy=False) for x, y in zip(found, out, strict=True)])

    # ---- small values --------------------------------------------------------------------------------------

    def barrier(self) -> None:
        """Wait until every rank is here."""
        self.gather_objects(None, "barrier")

    def gather_objects(self, value: Any, what: str = "gather_objects") -> list[Any]:
        """Return the *value*, small and anything that JSON holds, of each rank, in order of rank, on every rank."""
        refuse_capture()
        return [value] if self._link is None else self._link.gather(what, value)

    def broadcast_object(self, value: Any, root: int = 0) -> Any:
        """Return the value of one rank, small and anything that JSON holds, on every rank."""
        self._check_root(root)
        own = value if self.rank == root else None
        return self.gather_objects(own, f"broadcast_object from rank {root}")[root]

    def any(self, flag: bool) -> bool:
        """Whether *flag* is true on some rank: every rank gets the same answer, to stop a loop with, say."""
        return any(self.gather_objects(bool(flag), "any"))

    # ---- the end -------------------------------------------------------------------------------------------

    def abort(self, why: str) -> None:
        """End this process and the job on all ranks, saying why."""
        if self._link is not None:
            self._link.failed(why)
        sys.stdout.flush()
        time.sleep(0.2)  # for the others to hear why
        os._exit(1)

    def close(self) -> None:
        """Leave the job; nothing is sent or received afterwards."""
        if self._link is not None:
            self._link.close()

    # ---- what kinds of communicators write -----------------------------------------------------------------

    @abc.abstractmethod
    def begin_all_reduce(self, nodes: list[Node], op: str) -> Pending:
        """Start to combine realized, contiguous nodes; nothing is compared: the caller knows that all ranks agree."""

    @abc.abstractmethod
    def begin_broadcast(self, nodes: list[Node], root: int) -> Pending:
        """Start to copy nodes from *root*."""

    @abc.abstractmethod
    def begin_all_gather(self, nodes: list[Node]) -> Pending:
        """Start to collect nodes: each result has the ranks as a new first axis."""

    @abc.abstractmethod
    def begin_reduce_scatter(self, nodes: list[Node]) -> Pending:
        """Start to add nodes; each result is this rank's part of the first axis."""

    def mark(self) -> Any:
        """Return a mark in the device's queue, behind what was launched so far; None where the host waits itself."""
        return None

    def carries(self, dtype: Any) -> bool:
        """Whether sums of *dtype* can be made on the way; others are sent as float32 or int32."""
        return dtypes.as_dtype(dtype) not in (dtypes.float16, dtypes.bfloat16)

    # ---- parts ---------------------------------------------------------------------------------------------

    def _carried(self, x: Array) -> Array:
        """Return an array in a dtype that can be added on the way."""
        kind = dtypes.KINDS[x.dtype]
        if kind not in ("float", "int") or self.carries(x.dtype):
            return x
        return x.astype(dtypes.float32 if kind == "float" else dtypes.int32)

    def _check_root(self, root: int) -> None:
        if not 0 <= root < self.size:
            raise DistributedError(f"there is no rank {root}: there are {self.size}, from 0 on")

    def _agree(self, what: str, arrays: Sequence[Array]) -> None:
        """Compare what the ranks are about to do."""
        if self._link is None:
            return
        told = [f"{x.dtype.name}{list(x.shape)}" for x in arrays]
        all_told = self._link.gather(what, told)
        for r, theirs in enumerate(all_told):
            if theirs != all_told[0]:
                here, there = _difference(all_told[0], theirs)
                raise DistributedError(
                    f"the ranks do not do the same in {what}: rank 0 has {here}, rank {r} has {there}"
                )

    @staticmethod
    def nodes(arrays: Sequence[Array]) -> list[Node]:
        """Return arrays as `begin_...` takes them."""
        refuse_capture()
        flat = [p for x in arrays for p in parts(x._node)]
        realize(flat)
        return [transfer.contiguous(n) for n in flat]

    @staticmethod
    def joined(
        nodes: list[Node], like: Sequence[Array], shapes: Sequence[tuple[int, ...]] | None = None
    ) -> list[Array]:
        """Return results as arrays; a complex one has come as two nodes. *shapes* are checked, not made."""
        out, rest = [], iter(nodes)
        for k, x in enumerate(like):
            node = like_parts(x._node, [next(rest) for _ in parts(x._node)])
            assert shapes is None or node.aval.shape == shapes[k], node.aval.shape  # noqa: S101  a kind's mistake
            out.append(Array(node))
        return out


def _difference(first: list[str], other: list[str]) -> tuple[str, str]:
    if len(first) != len(other):
        return f"{len(first)} arrays", f"{len(other)} arrays"
    k = next(k for k in range(len(first)) if first[k] != other[k])
    return first[k], f"{other[k]} (array {k} of {len(first)})"


def _like(tree: Any, arrays: list[Array]) -> Any:
    """Return a tree with its arrays replaced, in order."""
    rest = iter(arrays)
    return map_tree(lambda _: next(rest), tree)


class SingleProcess(Communicator):
    """One process alone: every collective gives back what it was given.

    Examples
    --------
    >>> import polygrad as pg
    >>> job = pg.distributed.SingleProcess()
    >>> job.rank, job.size, job.all_gather(pg.asarray([1.0])).shape
    (0, 1, (1, 1))
    """

    name = "single"

    def __init__(self) -> None:
        super().__init__(0, 1, 0, None)

    def begin_all_reduce(self, nodes: list[Node], op: str) -> Pending:  # noqa: ARG002  one rank: every op is the same
        return Done(nodes)

    def begin_broadcast(self, nodes: list[Node], root: int) -> Pending:  # noqa: ARG002  there is one
        return Done(nodes)

    def begin_all_gather(self, nodes: list[Node]) -> Pending:
        out = [FUNCTIONS["expand_dims"](Array(n), axis=0)._node for n in nodes]
        return Done(out)

    def begin_reduce_scatter(self, nodes: list[Node]) -> Pending:
        return Done(nodes)
