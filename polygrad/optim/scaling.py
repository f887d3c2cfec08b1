"""GradScaler: losses multiplied so that small gradients survive in float16.

Here: the scale, how it grows and falls.
Not here: which ops run in 16 bits (`pg.autocast`), the step.
"""

from collections.abc import Mapping
from typing import Any

from polygrad.array.object import Array
from polygrad.errors import GradError, StateError
from polygrad.optim.accumulation import Accumulation
from polygrad.optim.optimizer import Optimizer

_NUMBERS = ("scale", "growth_factor", "backoff_factor", "growth_interval", "good")


class GradScaler:
    """Multiply the loss; divide the gradients inside the step; leave a step out and scale less if one is not finite.

    bfloat16 has float32's range and needs no scaling: pass ``enabled=False`` there, and the loop stays the same.

    Parameters
    ----------
    init_scale : float
        The first scale.
    growth_factor, backoff_factor : float
        What the scale is multiplied with after *growth_interval* good steps, and after a bad one.
    growth_interval : int
        In steps.
    enabled : bool
        Whether to do anything.

    Examples
    --------
    >>> import polygrad as pg
    >>> w = pg.nn.Parameter([1.0])
    >>> optimiser, scaler = pg.optim.SGD([w], lr=0.5), pg.optim.GradScaler()
    >>> scaler.scale((w * 1.0).sum()).backward()
    >>> scaler.step(optimiser)
    True
    >>> w.tolist()
    [0.5]
    """

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        *,
        enabled: bool = True,
    ) -> None:
        if not (init_scale > 0 and growth_factor >= 1.0 and 0.0 < backoff_factor < 1.0 and growth_interval >= 1):
            raise GradError(
                f"cannot scale losses with init_scale={init_scale}, growth_factor={growth_factor}, "
                f"backoff_factor={backoff_factor}, growth_interval={growth_interval}: they are positive, at least 1, "
                "between 0 and 1, and at least 1"
            )
        self.enabled = enabled
        self._scale = float(init_scale) if enabled else 1.0
        self.growth_factor, self.backoff_factor, self.growth_interval = growth_factor, backoff_factor, growth_interval
        self._good = 0

    def get_scale(self) -> float:
        """Return what losses are multiplied with now."""
        return self._scale

    def scale(self, loss: Array) -> Array:
        """Return the loss to call `backward` on."""
        return loss * self._scale if self.enabled else loss

    def step(self, optimizer: Optimizer | Accumulation, grads: Any = None, **how: Any) -> bool:
        """Step with the gradients of the scaled loss, unless one is not finite; return whether parameters moved.

        Parameters
        ----------
        optimizer : Optimizer or Accumulation
            What to step. Clipping (``max_norm=``) sees the gradients as they are without the scale.
        grads : tree of arrays, optional
            Gradients of the scaled loss; without it each parameter's `.grad`.
        **how
            As for `Optimizer.step`.
        """
        wanted = {**how, "scale": self._scale * how.get("scale", 1.0)}
        if self.enabled:
            wanted["nonfinite"] = "skip"
        if isinstance(optimizer, Accumulation):
            last = optimizer.count + 1 == optimizer.batches
            taken = optimizer.step(**wanted)
            if not last:
                return False
        else:
            taken = optimizer.attempt(grads, **{"nonfinite": "allow", **wanted})
        if self.enabled:
            self._follow(taken)
        return taken

    def _follow(self, taken: bool) -> None:
        if not taken:
            self._scale *= self.backoff_factor
            self._good = 0
            if self._scale < 2.0**-126:  # the least normal float32
                raise GradError(
                    "cannot scale losses any less: gradients were not finite at any scale; the loss itself is likely "
                    "not finite"
                )
            return
        self._good += 1
        if self._good >= self.growth_interval:
            self._scale = min(self._scale * self.growth_factor, 2.0**127)
            self._good = 0

    def state_dict(self) -> dict[str, Any]:
        """Return the scale and how it changes."""
        return {
            "scale": self._scale,
            "growth_factor": self.growth_factor,
            "backoff_factor": self.backoff_factor,
            "growth_interval": self.growth_interval,
            "good": self._good,
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned; nothing is changed if it does not fit.

        Raises
        ------
        StateError
            If a number is missing or wrong.
        """
        values = {key: saved.get(key) for key in _NUMBERS}
        bad = [k for k, v in values.items() if not isinstance(v, (int, float)) or v < 0 or (k == "scale" and v == 0)]
        if bad:
            raise StateError(f"cannot load this state into GradScaler: its {bad[0]} is {values[bad[0]]!r}")
        self._scale = float(saved["scale"]) if self.enabled else 1.0
        self.growth_factor, self.backoff_factor = saved["growth_factor"], saved["backoff_factor"]
        self.growth_interval, self._good = int(saved["growth_interval"]), int(saved["good"])
