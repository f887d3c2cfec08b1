"""Accumulation: one step of an optimiser for the gradients of several batches.

Here: counting batches, and computing the sums so far, so that no batch's graph outlives it.
Not here: the step itself.
"""

from collections.abc import Mapping
from typing import Any

from polygrad.array.capturing import capturing
from polygrad.array.creation import asarray
from polygrad.array.evaluation import realize
from polygrad.errors import CaptureError, GradError, StateError
from polygrad.nn import pending
from polygrad.optim.optimizer import Optimizer


class Accumulation:
    """Take a step with the mean of the gradients of every *batches* batches.

    Parameters
    ----------
    optimizer : Optimizer
        What to step; its gradients are forgotten after each step.
    batches : int
        How many calls of `step` make one step of it.

    Examples
    --------
    >>> import polygrad as pg
    >>> w = pg.nn.Parameter([1.0])
    >>> gathered = pg.optim.Accumulation(pg.optim.SGD([w], lr=1.0), batches=2)
    >>> for factor in (0.25, 0.75):
    ...     (w * factor).sum().backward()
    ...     print(gathered.step(), w.tolist())
    False [1.0]
    True [0.5]
    """

    def __init__(self, optimizer: Optimizer, batches: int) -> None:
        if batches < 1:
            raise GradError(f"cannot accumulate {batches} batches: it must be at least 1")
        self.optimizer = optimizer
        self.batches = batches
        self.count = 0

    def step(self, *, also: Any = (), **how: Any) -> bool:
        """Count the batch whose `backward` was just called; return whether the parameters were moved.

        Parameters
        ----------
        also : tree of arrays
            What to compute with it, such as the loss.
        **how
            As for `Optimizer.step`: ``max_norm``, ``scale``, ``nonfinite``.
        """
        if capturing() is not None:
            raise CaptureError(
                "cannot compile a step of Accumulation, which counts batches: compile what computes the gradients"
            )
        if self.count + 1 < self.batches:
            grads = [p.grad for g in self.optimizer.groups for p in g["params"].values() if p.grad is not None]
            realize(grads, pending.take(), also)
            self.count += 1
            return False
        how.setdefault("nonfinite", "allow")
        taken = self.optimizer.attempt(also=also, **{**how, "scale": how.get("scale", 1.0) * self.batches})
        self.optimizer.zero_grad()
        self.count = 0
        return taken

    def state_dict(self) -> dict[str, Any]:
        """Return how many batches are gathered, and their gradients by name."""
        named = {n: p for g in self.optimizer.groups for n, p in g["params"].items()}
        return {"count": self.count, "grads": {n: p.grad.detach() for n, p in named.items() if p.grad is not None}}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned; nothing is changed if it does not fit.

        Raises
        ------
        StateError
            If a gradient belongs to no parameter or has another shape, or there are too many batches.
        """
        named = {n: p for g in self.optimizer.groups for n, p in g["params"].items()}
        grads = {n: asarray(v).detach() for n, v in saved.get("grads", {}).items()}
        bad = [n for n, v in grads.items() if n not in named or v.shape != named[n].shape]
        if bad or not 0 <= int(saved.get("count", -1)) < self.batches:
            what = f"the gradient of {bad[0]} fits no parameter" if bad else f"it counts not less than {self.batches}"
            raise StateError(f"cannot load this state into Accumulation: {what}")
        for name, parameter in named.items():
            value = grads.get(name)
            parameter.grad = None if value is None else value.to_device(parameter.device).astype(parameter.dtype)
        self.count = int(saved["count"])
