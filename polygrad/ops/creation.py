"""Leaves: values that come from nowhere.

Here: primitives for host scalars, realized buffers, placeholders, counting and random bits; and the pair of two real
values that is a complex one.
Not here: what users call (zeros, arange, linspace, normal, ...), which is in `constructors.py` and `random.py`.
"""

from typing import Any

from polygrad import dtypes
from polygrad.ops.table import primitive


@primitive(infer=lambda: ((), dtypes.float64), kind="scalar", vjp=None, jvp=None)
def host_scalar(xp: Any) -> Any:
    """A Python number; its value is a launch argument."""
    raise NotImplementedError("a host scalar has no reference: it is a value")


@primitive(infer=lambda shape, dtype: (shape, dtype), kind="buffer", vjp=None, jvp=None)
def buffer(xp: Any, shape: Any, dtype: Any) -> Any:
    """A value on a device."""
    raise NotImplementedError("a buffer has no reference: it is a value")


@primitive(infer=lambda n, dtype: ((n,), dtype), kind="iota", vjp=None, jvp=None)
def iota(xp: Any, n: Any, dtype: Any) -> Any:
    """0, 1, ..., n - 1."""
    return xp.arange(n, dtype=dtype)


@primitive(infer=lambda key, counter, n: ((n,), dtypes.uint32), kind="random", vjp=None, jvp=None)
def random_bits_(xp: Any, key: Any, counter: Any, n: Any) -> Any:
    """n words of Philox-4x32-10; key and counter are host scalars of dtype uint64."""
    raise NotImplementedError("random bits are checked against published vectors")


@primitive(infer=lambda shape, dtype: (shape, dtype), kind="placeholder", vjp=None, jvp=None)
def placeholder_(xp: Any, shape: Any, dtype: Any) -> Any:
    """What stands for the value of one example while vmap reads a function; it has none itself."""
    raise NotImplementedError("a placeholder has no reference: it stands for a value")


@primitive(
    infer=lambda re, im: (re.shape, dtypes.whole(re.dtype)),
    kind="pair",
    vjp=None,
    jvp=None,
)
def pair_(xp: Any, re: Any, im: Any, /) -> Any:
    """The complex value re + i im; never a node of a schedule: ops on it are recorded as ops on its parts."""
    out = xp.empty(re.shape, dtypes.whole(re.dtype))
    out.real, out.imag = re, im
    return out
