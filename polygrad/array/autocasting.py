"""Autocast: products in 16 bits, sums and losses in float32, while the user's code and parameters stay as they are.

Here: the switch, and which ops it concerns.
Not here: the scaling of losses that float16 needs (`polygrad.optim.scaling`), how ops compute in 16 bits.

Parameters stay float32 and are what the optimiser moves (master weights); each product sees them cast, and the cast's
derivative brings their gradients back to float32.
"""

import contextlib
import threading
from collections.abc import Callable
from typing import Any

from polygrad import dtypes
from polygrad.errors import DTypeError
from polygrad.graph.functions import F
from polygrad.graph.node import Node

# Cast to 16 bits: what is made of multiplications followed by sums, which devices do in float32 inside.
NARROWED = {"matmul", "vecdot", "tensordot", "einsum", "outer", "linear", "bilinear"}
_NARROWED_STARTS = ("conv", "attention", "scaled_dot_product_attention")
# Cast to float32: where many terms are added, or small differences matter.
WIDENED = {
    "sum", "mean", "prod", "var", "std", "cumulative_sum", "cumulative_prod", "logsumexp", "softmax", "log_softmax",
    "layer_norm", "rms_norm", "group_norm", "batch_norm", "instance_norm", "vector_norm", "matrix_norm",
}  # fmt: skip
_WIDENED_MODULES = "polygrad.ops.losses"  # and its siblings, losses_elementwise say
_NARROW = (dtypes.float16, dtypes.bfloat16)


class _Local(threading.local):
    dtype: dtypes.DType | None = None


_local = _Local()


class autocast(contextlib.ContextDecorator):  # noqa: N801  used like a function
    """Compute products of float32 arrays in 16 bits within a block, in this thread; as ``@pg.autocast(...)`` within a
    function.

    Matrix products, convolutions and attention take float32 operands as *dtype* and return it; sums, means, softmax,
    normalisation and losses take 16-bit operands as float32 and return that; everything else follows the dtypes it is
    given, where float32 with 16 bits gives float32. float64 is left alone. Parameters stay float32, and so do their
    gradients. Losses of float16 want `pg.optim.GradScaler`.

    Parameters
    ----------
    dtype : {"bfloat16", "float16"} or dtype
        In which products are computed.
    enabled : bool
        False switches an outer autocast off within the block.

    Raises
    ------
    DTypeError
        If *dtype* is not one of the two.

    Examples
    --------
    >>> import polygrad as pg
    >>> w = pg.nn.Parameter([[1.0], [2.0]])
    >>> x = pg.ones((3, 2), dtype=pg.float32)
    >>> with pg.autocast("bfloat16"):
    ...     y = x @ w
    ...     loss = y.sum()
    >>> loss.backward()
    >>> y.dtype.name, loss.dtype.name, w.grad.dtype.name
    ('bfloat16', 'float32', 'float32')
    """

    def __init__(self, dtype: Any = "bfloat16", enabled: bool = True) -> None:
        self._dtype = dtypes.as_dtype(dtype) if enabled else None
        if enabled and self._dtype not in _NARROW:
            raise DTypeError(f"cannot autocast to {self._dtype}: products are computed in bfloat16 or float16")
        self._before: list[dtypes.DType | None] = []

    def __enter__(self) -> "autocast":
        self._before.append(_local.dtype)
        _local.dtype = self._dtype
        return self

    def __exit__(self, *_: object) -> None:
        _local.dtype = self._before.pop()


def autocast_dtype() -> dtypes.DType | None:
    """Return the dtype that this thread computes products in, or None."""
    return _local.dtype


def following(name: str, function: Callable[..., Any], module: str = "") -> Callable[..., Any]:
    """Return *function*, which takes nodes, as one that heeds `autocast`; itself if autocast does not concern it."""
    wide = name in WIDENED or module.startswith(_WIDENED_MODULES)
    if not wide and name not in NARROWED and not name.startswith(_NARROWED_STARTS):
        return function
    convert = _widened if wide else _narrowed

    def heeding(*args: Any, **kwargs: Any) -> Any:
        wanted = _local.dtype
        if wanted is None:
            return function(*args, **kwargs)
        if not wide and _any_double([*args, *kwargs.values()]):
            return function(*args, **kwargs)
        given = {k: convert(v, wanted) for k, v in kwargs.items()}
        return function(*[convert(a, wanted) for a in args], **given)

    return heeding


def _mapped(value: Any, change: Callable[[Node], Node]) -> Any:
    if isinstance(value, Node):
        return change(value)
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(_mapped(v, change) for v in value)
    return value


def _narrowed(value: Any, wanted: dtypes.DType) -> Any:
    other = _NARROW[0] if wanted is _NARROW[1] else _NARROW[1]
    return _mapped(value, lambda n: F.astype(n, wanted) if n.aval.dtype in (dtypes.float32, other) else n)


def _widened(value: Any, _: dtypes.DType) -> Any:
    return _mapped(value, lambda n: F.astype(n, dtypes.float32) if n.aval.dtype in _NARROW else n)


def _any_double(values: list[Any]) -> bool:
    for value in values:
        if isinstance(value, Node) and value.aval.dtype in (dtypes.float64, *dtypes.COMPLEX):
            return True
        if isinstance(value, (list, tuple)) and _any_double(list(value)):
            return True
    return False
