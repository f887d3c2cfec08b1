"""DataParallel: every rank computes gradients of its own batch, and all step with their mean.

Here: one reduction of gradients a step, begun bucket by bucket while the rest of backward still runs.
Not here: what travels together (`buckets.py`), when it is sent (`reduction.py`), how (`communicator.py`).

Gradients are graphs until somebody computes them. `reduce_gradients` computes all of them in one realize, which says of
each when it is there; the last one of a bucket starts the bucket's all-reduce, and the next kernels run meanwhile.
"""

import json
import os
import time
from collections.abc import Iterable, Sequence
from typing import Any

from polygrad import dtypes
from polygrad.array.evaluation import realize as compute
from polygrad.array.files import replacing
from polygrad.array.functions import FUNCTIONS
from polygrad.array.object import Array
from polygrad.array.rebinding import rebind
from polygrad.array.recording import no_grad
from polygrad.array.tree import leaves_of
from polygrad.distributed import job
from polygrad.distributed.buckets import Form, divide, incoming, layout_of, outgoing
from polygrad.distributed.communicator import Communicator, SingleProcess, refuse_capture
from polygrad.distributed.reduction import Overlap, Reduction, Sending
from polygrad.errors import DistributedError, GradError
from polygrad.graph.node import Node, like_parts, parts
from polygrad.nn import pending
from polygrad.optim import Accumulation, GradScaler, Optimizer
from polygrad.optim.optimizer import named_arrays
from polygrad.runtime.realize import realize

BUCKET = 25 << 20  # bytes


class DataParallel:
    """Keeps a model alike on all ranks: the same first values, and the mean of all ranks' gradients in each step.

    With equal batches on all ranks, and losses that are means, a step is that of one process with all of them.

    Parameters
    ----------
    model : Module or tree of arrays
        What is trained; parameters and buffers get rank 0's values.
    communicator : Communicator, optional
        That of `init` unless given.
    bucket_bytes : int
        Gradients travel together up to this size.

    Raises
    ------
    DistributedError
        If the ranks have different parameters; the sentence says which.

    Examples
    --------
    >>> import polygrad as pg
    >>> model = pg.nn.Linear(3, 1)
    >>> optimiser = pg.optim.SGD(model, lr=0.1)
    >>> together = pg.distributed.DataParallel(model, pg.distributed.SingleProcess())
    >>> loss = pg.nn.mse_loss(model(pg.ones((4, 3), dtype=pg.float32)), pg.zeros((4, 1), dtype=pg.float32))
    >>> loss.backward()
    >>> together.reduce_gradients(also=loss)
    >>> optimiser.step()
    """

    def __init__(self, model: Any, communicator: Communicator | None = None, *, bucket_bytes: int = BUCKET) -> None:
        self.communicator = communicator if communicator is not None else job.current()
        if bucket_bytes < 1:
            raise DistributedError(f"cannot divide gradients into buckets of {bucket_bytes} bytes")
        self.model, self.bucket_bytes = model, bucket_bytes
        unique: dict[int, tuple[str, Array]] = {}
        for name, array in named_arrays(model):
            if array.requires_grad:
                unique.setdefault(id(array), (name, array))
        self.names = [name for name, _ in unique.values()]
        self.parameters = [array for _, array in unique.values()]
        if not self.parameters:
            raise GradError("there is nothing to train in parallel: no parameter needs gradients")
        self._last: Reduction | None = None
        self._forms: dict[int, Form] = {}  # of the parameters that get gradients
        self._buckets: list[list[int]] = []
        self._compare()
        self.broadcast()

    # ---- what fit asks -------------------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        """The number of this process."""
        return self.communicator.rank

    @property
    def size(self) -> int:
        """How many processes there are."""
        return self.communicator.size

    def any(self, flag: bool) -> bool:
        """Whether *flag* is true on some rank."""
        return self.communicator.any(flag)

    def mean(self, value: float) -> float:
        """Return the mean of a number over the ranks, such as a loss to show."""
        told = self.communicator.gather_objects(float(value), "mean")
        return float(sum(told)) / len(told)

    def begin(self, step: int = 0) -> None:
        """Start training alike on all ranks after *step* steps: rank 0's values, and a stream of random numbers each.

        Raises
        ------
        DistributedError
            If the ranks go on from different steps.
        """
        told = self.communicator.gather_objects(int(step), "the beginning of training")
        for r, other in enumerate(told):
            if other != told[0]:
                raise DistributedError(
                    f"the ranks go on from different steps: rank 0 from {told[0]}, rank {r} from {other}; give all of "
                    "them the same checkpoints"
                )
        self.broadcast()
        job.split_random(self.communicator.rank)

    def reduce(self, parameters: Iterable[Array] | None = None, *, also: Any = ()) -> None:
        """Do as `reduce_gradients` does; *parameters*, if given, must be the model's."""
        if parameters is not None:
            known = {id(p) for p in self.parameters}
            for p in parameters:
                if id(p) not in known and p.requires_grad and p.grad is not None:
                    raise DistributedError(
                        f"cannot reduce the gradient of a parameter of shape {list(p.shape)}: it is none of the model "
                        "that DataParallel was made of"
                    )
        self.reduce_gradients(also=also)

    # ---- values --------------------------------------------------------------------------------------------

    def _compare(self) -> None:
        """Raise unless all ranks have the same parameters."""
        told = [[n, p.dtype.name, list(p.shape)] for n, p in zip(self.names, self.parameters, strict=True)]
        every = self.communicator.gather_objects(told, "DataParallel")
        for r, theirs in enumerate(every):
            if theirs == every[0]:
                continue
            if len(theirs) != len(every[0]):
                raise DistributedError(
                    f"the ranks train different models: rank 0 has {len(every[0])} parameters, rank {r} {len(theirs)}"
                )
            (name, dtype, shape), (other, other_dtype, other_shape) = next(
                (a, b) for a, b in zip(every[0], theirs, strict=True) if a != b
            )
            raise DistributedError(
                f"the ranks train different models: {name} is {dtype}{shape} on rank 0, and rank {r} has {other}, "
                f"{other_dtype}{other_shape}, in its place"
            )

    def _held(self) -> list[Array]:
        """Return parameters and buffers, each once."""
        model = self.model
        buffers = dict(model.named_buffers()).values() if hasattr(model, "named_buffers") else ()
        every = [*[a for _, a in named_arrays(model)], *buffers]
        return list({id(a): a for a in every}.values())

    def broadcast(self) -> None:
        """Give parameters and buffers rank 0's values, on every rank."""
        if self.communicator.size == 1:
            return
        held = self._held()
        with no_grad():
            for mine, value in zip(held, self.communicator.broadcast([a.detach() for a in held]), strict=True):
                if self.communicator.rank:
                    rebind(mine, value)

    def average_buffers(self) -> None:
        """Give float buffers, such as running statistics, the mean of all ranks', before a checkpoint or evaluation."""
        model = self.model
        found = dict(model.named_buffers()).values() if hasattr(model, "named_buffers") else ()
        floats = [b for b in found if dtypes.KINDS[b.dtype] == "float"]
        if self.communicator.size == 1 or not floats:
            return
        with no_grad():
            for mine, value in zip(floats, self.communicator.all_reduce(floats, "mean"), strict=True):
                rebind(mine, value)

    # ---- gradients -----------------------------------------------------------------------------------------

    def reduce_gradients(self, *, also: Any = ()) -> None:
        """Replace each parameter's `.grad` by its mean over all ranks; call it after `backward`, on every rank.

        A parameter without a gradient on one rank counts as zeros there; one that had none on any rank in the first
        step has none ever.

        Parameters
        ----------
        also : tree of arrays
            What to compute with it, such as the loss, which then costs nothing more when it is read.

        Raises
        ------
        GradError
            If no parameter has a gradient.
        DistributedError
            If a rank is gone or late, or a parameter has a gradient for the first time after the first step.
        OutOfBounds
            If a launch met a bad index, such as a label that is no class.
        """
        refuse_capture()
        with no_grad():
            extra = [p for a in (*leaves_of(also), *pending.take()) for p in parts(a._node)]
            if isinstance(self.communicator, SingleProcess):
                grads = [p.grad for p in self.parameters if p.grad is not None]
                if not grads:
                    raise GradError("there is no gradient to reduce: call loss.backward() first")
                compute(grads)
                realize(extra)
                return
            if not self._buckets:
                self._plan()
            self._check_members()
            self._reduce(extra)

    def _plan(self) -> None:
        """Agree with the other ranks on which gradients travel, in which order and form."""
        found = {k: p.grad for k, p in enumerate(self.parameters) if p.grad is not None}
        nodes = {k: g._node for k, g in found.items()}
        order = sorted(nodes, key=lambda k: nodes[k].number)
        landed: dict[Node, int] = {}

        def note(node: Node) -> None:
            landed.setdefault(node, len(landed))

        realize([p for n in nodes.values() for p in parts(n)], note)
        last = {k: max(landed.get(p, len(landed)) for p in parts(n)) for k, n in nodes.items()}
        order.sort(key=lambda k: last[k])  # stable: by number where they came together
        told = self.communicator.gather_objects(
            {"order": order, "layouts": [[k, layout_of(n)] for k, n in nodes.items()]}, "the first reduction"
        )
        layouts = {k: axes for one in reversed(told) for k, axes in one["layouts"]}
        members = list(dict.fromkeys(k for one in told for k in one["order"]))
        if not members:
            raise GradError("there is no gradient to reduce: call loss.backward() first")
        for k in members:
            parameter, axes = self.parameters[k], layouts[k]
            dtype = parameter.dtype
            if dtypes.KINDS[dtype] == "float" and not self.communicator.carries(dtype):
                dtype = dtypes.float32
            size = parameter.size * dtype.itemsize
            self._forms[k] = Form(tuple(axes) if axes else None, dtype, size)
        sizes = [self._forms[k].nbytes if k in self._forms else 0 for k in range(len(self.parameters))]
        self._buckets = divide(members, sizes, self.bucket_bytes)

    def _check_members(self) -> None:
        for k, p in enumerate(self.parameters):
            if p.grad is not None and k not in self._forms:
                raise DistributedError(
                    f"{self.names[k]} has a gradient, but had none on any rank in the first step: if it is to be "
                    "trained from now on, make a new DataParallel, on every rank"
                )

    def _reduce(self, extra: Sequence[Node]) -> None:
        began = time.perf_counter()
        buckets = [[self._outgoing(k) for k in bucket] for bucket in self._buckets]
        flat = [[p for wire in bucket for p in parts(wire)] for bucket in buckets]
        sending = Sending(self.communicator, flat)
        first = self.communicator.mark()
        realize([*[n for bucket in flat for n in bucket], *extra], sending.landed)
        launched, last = time.perf_counter(), self.communicator.mark()
        works = sending.finish()
        for bucket, wires, work in zip(self._buckets, buckets, works, strict=True):
            rest = iter(work.wait())
            for k, wire in zip(bucket, wires, strict=True):
                arrived = like_parts(wire, [next(rest) for _ in parts(wire)])
                parameter = self.parameters[k]
                node = incoming(arrived, self._forms[k], parameter.dtype, 1.0 / self.communicator.size)
                parameter.grad = Array(node)
        ended = time.perf_counter()
        sizes = [sum(self._forms[k].nbytes for k in bucket) for bucket in self._buckets]
        self._last = Reduction(works, sizes, first, last, began, launched, ended)

    def measure(self) -> Overlap:
        """Return how much of the last reduction's communication ran beside computation; waits for the device."""
        return Overlap(0.0, 0.0, 0.0, 0) if self._last is None else self._last.overlap()

    def export(self, path: str | os.PathLike[str]) -> None:
        """Write the last reduction as a timeline for Chrome's or Perfetto's viewer: kernels, and buckets beside them.

        Raises
        ------
        GradError
            If there was none.
        """
        if self._last is None:
            raise GradError("there is no reduction to write down: call reduce_gradients() first, in a job of several")
        with replacing(path) as file:
            file.write(json.dumps(self._last.timeline(self.communicator.rank)).encode())

    def _outgoing(self, k: int) -> Node:
        parameter, form = self.parameters[k], self._forms[k]
        if parameter.grad is None:
            zeros: Array = FUNCTIONS["zeros_like"](parameter.detach())
            return outgoing(zeros._node, form)
        return outgoing(parameter.grad.to_device(parameter.device)._node, form)

    # ---- one call for all ----------------------------------------------------------------------------------

    def step(
        self, optimizer: Optimizer | Accumulation, *, scaler: GradScaler | None = None, also: Any = (), **how: Any
    ) -> bool:
        """Reduce the gradients, if this call is one at which parameters move, and step; return whether they moved.

        Parameters
        ----------
        optimizer : Optimizer or Accumulation
            What to step, on every rank alike.
        scaler : GradScaler, optional
            Whose scaled loss the gradients are of.
        also : tree of arrays
            What to compute with it, such as the loss.
        **how
            As for `Optimizer.step`: ``max_norm``, which sees the mean gradients, and ``nonfinite``.
        """
        due = not isinstance(optimizer, Accumulation) or optimizer.count + 1 == optimizer.batches
        if due:
            self.reduce_gradients(also=also)
        if scaler is not None:
            return scaler.step(optimizer, also=also, **how)
        if isinstance(optimizer, Accumulation):
            return optimizer.step(also=also, **how)
        how.setdefault("nonfinite", "allow")
        return optimizer.attempt(also=also, **how)
