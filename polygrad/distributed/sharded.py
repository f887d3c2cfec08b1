"""ShardedOptimizer: each rank keeps the state of its share of the parameters alone.

Here: the shares, the step, the whole state from all shares and back.
Not here: update formulas (`pg.optim`), gradients (`data_parallel.py`).

Source: Rajbhandari et al., ZeRO: memory optimizations toward training trillion parameter models (2020), stage 1.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from polygrad import dtypes
from polygrad.array.creation import asarray
from polygrad.array.functions import FUNCTIONS
from polygrad.array.object import Array
from polygrad.array.rebinding import rebind
from polygrad.array.recording import no_grad
from polygrad.distributed import job
from polygrad.distributed.communicator import Communicator
from polygrad.errors import DistributedError, StateError
from polygrad.optim.optimizer import Optimizer


class ShardedOptimizer(Optimizer):
    """An optimiser whose state is divided among the ranks: each updates its share, and all get the new values.

    Every rank calls the same methods. Gradients are reduced before, by `DataParallel`, so that clipping and gradients
    that are not finite are seen alike by all.

    Parameters
    ----------
    optimizer : Optimizer
        Of all parameters, alike on every rank; it belongs to this object from now on.
    communicator : Communicator, optional
        That of `init` unless given.

    Raises
    ------
    DistributedError
        If the ranks have different parameters.

    Examples
    --------
    >>> import polygrad as pg
    >>> model = pg.nn.Linear(3, 1)
    >>> alone = pg.distributed.SingleProcess()
    >>> optimiser = pg.distributed.ShardedOptimizer(pg.optim.AdamW(model, lr=0.1), alone)
    >>> pg.nn.mse_loss(model(pg.ones((4, 3), dtype=pg.float32)), pg.zeros((4, 1), dtype=pg.float32)).backward()
    >>> optimiser.step(max_norm=1.0)
    >>> sorted(optimiser.state_dict()["state"]) == sorted(optimiser.own)
    True
    """

    def __init__(self, optimizer: Optimizer, communicator: Communicator | None = None) -> None:
        self.optimizer = optimizer
        self.communicator = communicator if communicator is not None else job.current()
        self.owners: dict[str, int] = {}
        self._share()

    def __getattr__(self, name: str) -> Any:
        """Return what the optimiser inside has: its groups, state, norm, count of skipped steps."""
        if name == "optimizer":
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    @property
    def own(self) -> list[str]:
        """The names of the parameters whose state this rank keeps."""
        return [name for name, owner in self.owners.items() if owner == self.communicator.rank]

    @property
    def lr(self) -> float:
        """The learning rate of the first group; setting it sets that of all groups."""
        return self.optimizer.lr

    @lr.setter
    def lr(self, value: float) -> None:
        self.optimizer.lr = value

    def initial_rates(self) -> list[float]:
        return self.optimizer.initial_rates()

    def add_group(self, group: Mapping[str, Any]) -> None:
        self.optimizer.add_group(group)
        self._share()

    def _share(self) -> None:
        """Give each parameter an owner, the largest first, to the rank that has least; drop the state of others."""
        members = {name: p for name, p, _ in self.optimizer._members()}
        told = [[name, list(p.shape)] for name, p in members.items()]
        for r, theirs in enumerate(self.communicator.gather_objects(told, "ShardedOptimizer")):
            if theirs != told:
                raise DistributedError(
                    f"the ranks optimise different parameters: rank {r} has others than rank {self.communicator.rank}"
                )
        loads = [0] * self.communicator.size
        owners = {}
        for name in sorted(members, key=lambda n: -members[n].size):
            least = loads.index(min(loads))
            owners[name] = least
            loads[least] += members[name].size
        self.owners = {name: owners[name] for name in members}
        self.optimizer.share = frozenset(self.own)
        self.optimizer.state = {n: s for n, s in self.optimizer.state.items() if n in self.optimizer.share}

    def attempt(
        self,
        grads: Any = None,
        *,
        also: Any = (),
        max_norm: float | None = None,
        scale: float = 1.0,
        nonfinite: str = "skip",
    ) -> bool:
        """Do as `Optimizer.attempt` does, for this rank's share; then give all ranks all new values."""
        taken = self.optimizer.attempt(grads, also=also, max_norm=max_norm, scale=scale, nonfinite=nonfinite)
        if taken:
            self._spread()
        return taken

    def step(
        self,
        grads: Any = None,
        *,
        also: Any = (),
        max_norm: float | None = None,
        scale: float = 1.0,
        nonfinite: str = "allow",
    ) -> None:
        """Do as `Optimizer.step` does, on every rank."""
        self.attempt(grads, also=also, max_norm=max_norm, scale=scale, nonfinite=nonfinite)

    def _spread(self) -> None:
        """Give every rank the values that their owners have computed."""
        if self.communicator.size == 1:
            return
        members = {name: p for name, p, _ in self.optimizer._members()}
        works = []
        with no_grad():
            for owner in range(self.communicator.size):
                held = [members[n].detach() for n, r in self.owners.items() if r == owner]
                if held:
                    works.append((owner, self.communicator.begin_broadcast(self.communicator.nodes(held), owner)))
            for owner, work in works:
                names = [n for n, r in self.owners.items() if r == owner]
                arrived = self.communicator.joined(work.wait(), [members[n] for n in names])
                if owner != self.communicator.rank:
                    for name, value in zip(names, arrived, strict=True):
                        rebind(members[name], value)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of all shares, as an ordinary optimiser's: every rank calls it, and gets all of it."""
        own = self.optimizer.state_dict()
        if self.communicator.size == 1:
            return own
        about = {
            name: {k: v if k == "step" else [v.dtype.name, list(v.shape)] for k, v in state.items()}
            for name, state in own["state"].items()
        }
        told = self.communicator.gather_objects(about, "ShardedOptimizer.state_dict")
        members = {name: p for name, p, _ in self.optimizer._members()}
        state: dict[str, dict[str, Any]] = {}
        with no_grad():
            for owner, theirs in enumerate(told):
                slots = [(n, k) for n, one in theirs.items() for k in one if k != "step"]
                arrays = [
                    own["state"][n][k] if owner == self.communicator.rank else _empty(theirs[n][k], members[n])
                    for n, k in slots
                ]
                found = iter(self._from(owner, arrays))
                for n, one in theirs.items():
                    state[n] = {k: v if k == "step" else next(found) for k, v in one.items()}
        return {"groups": own["groups"], "state": {n: state[n] for n in members if n in state}}

    def _from(self, owner: int, arrays: Sequence[Array]) -> list[Array]:
        if not arrays:
            return []
        work = self.communicator.begin_broadcast(self.communicator.nodes(arrays), owner)
        return self.communicator.joined(work.wait(), arrays)

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Take this rank's share of a whole state, from any number of ranks; nothing is changed if it does not fit.

        Raises
        ------
        StateError
            If it does not fit.
        """
        faults = self.optimizer._misfits(saved)
        if faults:
            raise StateError(f"cannot load this state into {type(self.optimizer).__name__}: {'; '.join(faults)}")
        share = self.optimizer.share or ()
        own = {n: s for n, s in saved["state"].items() if n in share}
        self.optimizer.load_state_dict({"groups": saved["groups"], "state": own})

    def __repr__(self) -> str:
        return f"ShardedOptimizer({self.optimizer!r}, rank {self.communicator.rank} of {self.communicator.size})"


def _empty(about: Sequence[Any], parameter: Array) -> Array:
    """Return an array for values to arrive in."""
    name, shape = about
    made: Array = FUNCTIONS["empty"](tuple(shape), dtype=dtypes.BY_NAME[name], device=parameter.device)
    return asarray(made)
