"""EMA: an average of a model's weights over the steps.

Here: following the weights, and putting the average in their place for a while.
Not here: the steps.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from polygrad.array.capturing import afterwards, number
from polygrad.array.creation import asarray
from polygrad.array.evaluation import realize
from polygrad.array.object import Array
from polygrad.array.rebinding import rebind
from polygrad.array.recording import no_grad
from polygrad.errors import GradError, StateError
from polygrad.optim.optimizer import named_arrays, working
from polygrad.symbols import applied


class EMA:
    """An exponential moving average of parameters, in float32 at least.

    Parameters
    ----------
    params : Module or tree of arrays
        What to follow; of a module its buffers too, which are copied as they are.
    decay : float
        How much of the average is kept at each `update`, in [0, 1); a launch argument, so that changing it builds
        nothing.
    warmup : bool
        Whether the first updates keep less: at most ``(1 + n) / (10 + n)`` after n of them, so that the first values
        are soon forgotten.

    Examples
    --------
    >>> import polygrad as pg
    >>> w = pg.nn.Parameter([0.0])
    >>> ema = pg.optim.EMA([w], decay=0.5)
    >>> with pg.no_grad():
    ...     _ = w.assign_([1.0])
    >>> ema.update()
    >>> with ema.averaged():
    ...     w.tolist()
    [0.5]
    >>> w.tolist()
    [1.0]
    """

    captures_itself = True  # a compiled function reads the count and the decay at each call

    def __init__(self, params: Any, decay: float = 0.999, *, warmup: bool = False) -> None:
        if not 0.0 <= decay < 1.0:
            raise GradError(f"cannot average with decay={decay}: it must be in [0, 1)")
        self.decay = decay
        self.warmup = warmup
        self.count = 0
        self._owned = dict(named_arrays(params))
        if not self._owned:
            raise GradError("cannot average nothing: no parameters were given")
        buffers = getattr(params, "named_buffers", None)
        self._buffers: dict[str, Array] = dict(buffers()) if buffers else {}
        with no_grad():
            self._mean = {name: working(p.detach()) for name, p in self._owned.items()}
            self._copies = {name: b.detach() for name, b in self._buffers.items()}
        self._swapped: dict[str, Array] | None = None
        realize(self._mean, self._copies)

    def update(self) -> None:
        """Move the average towards the parameters as they are now; after each step of the optimiser.

        Raises
        ------
        GradError
            While the average is swapped in.
        """
        if self._swapped is not None:
            raise GradError("cannot update an average while it is in the parameters' place: swap it out first")
        count, kept = number(lambda: self.count), number(lambda: self.decay)
        if self.warmup:
            kept = applied(min, kept, (1.0 + count) / (10.0 + count))
        with no_grad():
            new = {}
            for name, parameter in self._owned.items():
                value: Any = working(parameter.detach())
                new[name] = self._mean[name].to_device(value.device) * kept + value * (1.0 - kept)
            copies = {name: b.detach() for name, b in self._buffers.items()}
            realize(new, copies)
            for name, value in new.items():
                rebind(self._mean[name], value)
            for name, value in copies.items():
                rebind(self._copies[name], value)
        afterwards(self._count)

    def _count(self) -> Callable[[], None]:
        self.count += 1

        def undo() -> None:
            self.count -= 1

        return undo

    def swap_in(self) -> None:
        """Put the average in the parameters' place, and keep them aside until `swap_out`."""
        if self._swapped is not None:
            raise GradError("cannot swap an average in twice: swap it out first")
        everything = {**self._owned, **self._buffers}
        aside = {name: a.detach() for name, a in everything.items()}
        with no_grad():
            for name, array in everything.items():
                value = self._mean[name] if name in self._mean else self._copies[name]
                rebind(array, value.to_device(array.device))
        self._swapped = aside

    def swap_out(self) -> None:
        """Put the parameters back."""
        if self._swapped is None:
            raise GradError("cannot swap an average out: it is not in")
        with no_grad():
            for name, value in self._swapped.items():
                rebind({**self._owned, **self._buffers}[name], value)
        self._swapped = None

    @contextlib.contextmanager
    def averaged(self) -> Iterator[None]:
        """Have the average in the parameters' place within a block."""
        self.swap_in()
        try:
            yield
        finally:
            self.swap_out()

    def state_dict(self) -> dict[str, Any]:
        """Return the averages by name, and how many updates made them."""
        mean, copies = ({n: a.detach() for n, a in found.items()} for found in (self._mean, self._copies))
        return {"count": self.count, "mean": mean, "buffers": copies}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned; nothing is changed if it does not fit.

        Raises
        ------
        StateError
            If names or shapes differ; the sentence says which.
        """
        faults = [f"it has no {key!r}" for key in ("count", "mean", "buffers") if key not in saved]
        for key, own in (("mean", self._mean), ("buffers", self._copies)) if not faults else ():
            faults += [f"it lacks {n}" for n in own if n not in saved[key]]
            faults += [f"it has {n}, which is unknown here" for n in saved[key] if n not in own]
            faults += [
                f"{n} has shape {list(asarray(saved[key][n]).shape)} and needs {list(a.shape)}"
                for n, a in own.items()
                if n in saved[key] and asarray(saved[key][n]).shape != a.shape
            ]
        if faults:
            raise StateError(f"cannot load this state into EMA: {'; '.join(faults)}")
        self._mean = {n: _as(saved["mean"][n], a) for n, a in self._mean.items()}
        self._copies = {n: _as(saved["buffers"][n], a) for n, a in self._copies.items()}
        self.count = int(saved["count"])


def _as(value: Any, like: Array) -> Array:
    return asarray(value).detach().astype(like.dtype, copy=False).to_device(like.device)
