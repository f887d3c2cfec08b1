"""The functions of neural networks: those of the op table, and the few that draw random numbers.

Here: re-exports and dropout.
Not here: the ops themselves (`polygrad.ops`), modules.
"""

from typing import Any

from polygrad.array import random
from polygrad.array.functions import FUNCTIONS
from polygrad.array.object import Array
from polygrad.errors import ShapeError

# Modules of the table whose every op belongs here, and single ones of others.
_FAMILIES = (
    "activations",
    "neural",
    "losses",
    "losses_elementwise",
    "losses_margin",
    "convolution",
    "attention",
    "pooling",
    "resampling",
)
_SINGLE = ("logsumexp", "tanh", "one_hot", "pad")


def _collected() -> dict[str, Any]:
    from polygrad.ops.table import TABLE  # noqa: PLC0415  only to see where an op was declared

    own = tuple(f"polygrad.ops.{family}" for family in _FAMILIES)
    return {n: f for n, f in FUNCTIONS.items() if n in _SINGLE or getattr(TABLE[n].body, "__module__", "") in own}


OPS = _collected()
globals().update(OPS)


def dropout(x: Array, p: float = 0.5, training: bool = True) -> Array:
    """Return *x* with each element zero with probability *p* and the others divided by 1 - p; *x* itself when not
    training.

    Every call draws anew from ``pg.random``; *p* is a launch argument, so another p builds nothing.

    Raises
    ------
    ShapeError
        If *p* is not in [0, 1].

    Examples
    --------
    >>> import polygrad as pg
    >>> pg.random.seed(0)
    >>> kept = pg.nn.dropout(pg.ones(1000), 0.1)
    >>> 850 < int(pg.count_nonzero(kept)) < 950
    True
    """
    if not 0.0 <= p <= 1.0:
        raise ShapeError(f"cannot drop elements with probability {p}: it must be in [0, 1]")
    if not training or p == 0.0:
        return x
    kept = random.bernoulli(1.0 - p, x.shape, device=x.device)
    scale = 0.0 if p == 1.0 else 1.0 / (1.0 - p)
    return FUNCTIONS["where"](kept, x * scale, 0.0)  # type: ignore[no-any-return]


__all__ = ["dropout"]
__all__.extend(sorted(OPS))
