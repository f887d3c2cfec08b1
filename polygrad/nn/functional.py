"""The functions of neural networks: those of the op table, and the few that draw random numbers.

Here: re-exports, PyTorch's names for some of them, the dropouts, scaled_dot_product_attention.
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


# PyTorch's spellings of what the table has under another.
_ALSO = {
    "hardsigmoid": "hard_sigmoid",
    "hardswish": "hard_swish",
    "logsigmoid": "log_sigmoid",
    "tanhshrink": "tanh_shrink",
}
OPS = _collected()
OPS.update({name: OPS[op] for name, op in _ALSO.items()})
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
    _check_probability(p)
    if not training or p == 0.0:
        return x
    kept = random.bernoulli(1.0 - p, x.shape, device=x.device)
    scale = 0.0 if p == 1.0 else 1.0 / (1.0 - p)
    return FUNCTIONS["where"](kept, x * scale, 0.0)  # type: ignore[no-any-return]


def feature_dropout(x: Array, p: float = 0.5, training: bool = True, lead: int = 2) -> Array:
    """Return *x* with whole channels zero with probability *p* and the others divided by 1 - p.

    Parameters
    ----------
    x : Array
        Of shape [N, C, ...], or [C, ...] with ``lead=1``.
    p, training : optional
        As for `dropout`.
    lead : int
        How many axes tell channels apart.
    """
    _check_probability(p)
    if not training or p == 0.0:
        return x
    kept = random.bernoulli(1.0 - p, x.shape[:lead] + (1,) * (x.ndim - lead), device=x.device)
    return FUNCTIONS["where"](kept, x * (0.0 if p == 1.0 else 1.0 / (1.0 - p)), 0.0)  # type: ignore[no-any-return]


_SELU_LIMIT = -1.7580993408473766  # what selu falls to


def alpha_dropout(x: Array, p: float = 0.5, training: bool = True) -> Array:
    """Return *x* with each element at selu's lower limit with probability *p*, and mean 0 and variance 1 kept.

    Source: Klambauer et al., Self-normalizing neural networks (2017), section 3.
    """
    _check_probability(p)
    if not training or p == 0.0:
        return x
    if p == 1.0:
        return x * 0.0
    scale = ((1.0 - p) * (1.0 + p * _SELU_LIMIT**2)) ** -0.5
    kept = random.bernoulli(1.0 - p, x.shape, device=x.device)
    return FUNCTIONS["where"](kept, x, _SELU_LIMIT) * scale - scale * p * _SELU_LIMIT  # type: ignore[no-any-return]


def scaled_dot_product_attention(
    query: Array,
    key: Array,
    value: Array,
    attn_mask: Array | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Array:
    """Return softmax(query @ key.T * scale) @ value, over the last two axes, for all heads.

    Parameters
    ----------
    query, key, value : Array
        Shapes [..., heads, L, E], [..., heads, S, E] and [..., heads, S, F].
    attn_mask : Array, optional
        Broadcasts to [..., heads, L, S]: bool, true where a query may look, or float and added to the scores.
    dropout_p : float
        With which probability a weight is dropped; there is no training mode here.
    is_causal : bool
        Query i looks at keys 0 to i alone. With *attn_mask* too, what either forbids is forbidden.
    scale : float, optional
        1 / sqrt(E) unless given.
    enable_gqa : bool
        Whether heads of queries share heads of keys and values, in groups of neighbours.

    Returns
    -------
    Array
        Shape [..., heads, L, F]; zeros for a query that may look nowhere.

    Examples
    --------
    >>> import polygrad as pg
    >>> q = pg.ones((1, 4, 3, 8), dtype=pg.float32)
    >>> k = pg.ones((1, 2, 3, 8), dtype=pg.float32)
    >>> pg.nn.scaled_dot_product_attention(q, k, k, is_causal=True, enable_gqa=True).shape
    (1, 4, 3, 8)
    """
    _check_probability(dropout_p)
    kept = None
    if dropout_p > 0.0:
        shape = (*query.shape[:-1], key.shape[-2])
        scale_kept = 0.0 if dropout_p == 1.0 else 1.0 / (1.0 - dropout_p)
        kept = random.bernoulli(1.0 - dropout_p, shape, device=query.device).astype(query.dtype) * scale_kept
    call = FUNCTIONS["attention"]
    return call(query, key, value, attn_mask, kept, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa)  # type: ignore[no-any-return]


def _check_probability(p: float) -> None:
    if not 0.0 <= p <= 1.0:
        raise ShapeError(f"cannot drop elements with probability {p}: it must be in [0, 1]")


__all__ = ["alpha_dropout", "dropout", "feature_dropout", "scaled_dot_product_attention"]
__all__.extend(sorted(OPS))
