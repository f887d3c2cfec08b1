"""What the tests of Array API clients share: the data, and how a client's result is compared.

Here: a maker of arrays for either library, flattening of results, the guard that forbids leaving the device.
Not here: any client's call.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

array_api_compat = pytest.importorskip("array_api_compat", reason="needs the extra interop")
import polygrad as pg

draw = np.random.default_rng(0)
POINTS = draw.normal(size=(60, 5))
WEIGHTS = np.array([1.0, -2.0, 0.5, 3.0, 0.0])
TARGET = POINTS @ WEIGHTS + 0.1 * draw.normal(size=60)
HALVES = (TARGET > 0).astype(np.int64)
CLASSES = np.digitize(TARGET, [-1.5, 1.5]).astype(np.int64)
SIGNAL = np.sin(np.linspace(0, 20, 256)) + 0.1 * draw.normal(size=256)
POSITIVE = POINTS.T @ POINTS + np.eye(5)


class Maker:
    """Makes arrays of one library: called with a NumPy array; `xp` is the namespace."""

    def __init__(self, make: Callable[[Any], Any]) -> None:
        self.make = make
        self.xp: Any = array_api_compat.array_namespace(make(np.zeros(1)))

    def __call__(self, value: Any) -> Any:
        return self.make(np.array(value))


def ours(device: str | None = None) -> Maker:
    """Return the maker of polygrad's arrays."""
    return Maker(lambda value: pg.asarray(value, device=device))


def numpys() -> Maker:
    """Return the maker of NumPy's arrays."""
    return Maker(np.asarray)


def leaves(result: Any) -> Iterator[Any]:
    """Yield the arrays and numbers of a result."""
    if isinstance(result, (tuple, list)):
        for part in result:
            yield from leaves(part)
    else:
        yield result


def as_numpy(value: Any) -> Any:
    """Return a result as a NumPy array."""
    return value.detach().numpy() if isinstance(value, pg.Array) else np.asarray(value)


def check_same(call: Callable[[Maker], Any], tolerance: float, native: bool = True, device: str | None = None) -> None:
    """Assert that *call* gives the same on our arrays as on NumPy's, and arrays of ours where *native*."""
    expected = list(leaves(call(numpys())))
    got = list(leaves(call(ours(device))))
    assert len(got) == len(expected)
    for g, e in zip(got, expected, strict=True):
        if native and not isinstance(g, (bool, int, float)):
            assert isinstance(g, pg.Array), f"the result is a {type(g).__name__}"
        np.testing.assert_allclose(as_numpy(g), as_numpy(e), rtol=tolerance, atol=tolerance)
