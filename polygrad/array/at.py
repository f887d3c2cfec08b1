"""Updates that return a new array: ``x.at[key].add(v)`` and its like.

Here: the object behind `x.at`, under the names that JAX gave its methods.
Not here: writing into an array (`mutation.py`), what an update computes (`ops/placing.py`).
"""

from collections.abc import Callable
from typing import Any

from polygrad import dtypes
from polygrad.array.keys import entries_of_key, place_in
from polygrad.array.mutation import taken, value_for
from polygrad.array.object import Array
from polygrad.graph.functions import F
from polygrad.graph.node import Node
from polygrad.ops.placing import add_at_rows


class At:
    """What `x.at` returns: index it, then say what to do there."""

    __slots__ = ("_array",)

    def __init__(self, array: Array) -> None:
        self._array = array

    def __getitem__(self, key: Any) -> "Place":
        return Place(self._array, key)


class Place:
    """A place in an array, any key of ``x[key]``; each method returns a new array and leaves the old one alone.

    Values broadcast to the place and are cast to the array's dtype. Where index arrays name an element several times,
    `set` keeps the last value; the others take all of them. Sums and products of floats are rounded in an order that
    is the device's own; those of integers, maxima and minima are the same everywhere. Gradients flow to the array and
    to the values; where several are the maximum, or the minimum, they share it.

    Examples
    --------
    >>> import polygrad as pg
    >>> x = pg.asarray([1.0, 2.0, 3.0])
    >>> x.at[[0, 0, 2]].add(10.0)
    Array([21.,  2., 13.], dtype=float64, device='cpu:0')
    >>> x.at[1:].set(0.0)
    Array([1., 0., 0.], dtype=float64, device='cpu:0')
    """

    __slots__ = ("_array", "_key")

    def __init__(self, array: Array, key: Any) -> None:
        self._array = array
        self._key = key

    def _updated(self, how: str, value: Any, change: Callable[[Any], Any] | None = None) -> Array:
        x = self._array
        put = value_for(x, value)
        whole, place = place_in(entries_of_key(self._key, x.device), x._node, x.device)
        return self._on_device(F.reshape(F.update_(whole, change(put) if change else put, how, place), x.shape))

    def _on_device(self, out: Node) -> Array:
        if out.device is None:
            out.device = self._array.device
        return Array(out)

    def get(self) -> Array:
        """Return the elements, as a copy."""
        return Array(F.alias(taken(self._array, self._key)._node))

    def set(self, value: Any) -> Array:
        """Return the array with the elements replaced."""
        return self._updated("set", value)

    def add(self, value: Any) -> Array:
        """Return the array with values added."""
        x, key = self._array, self._key
        rows = isinstance(key, Array) and dtypes.KINDS[key.dtype] == "int" and x.ndim
        if rows and key.size and x.size and dtypes.KINDS[x.dtype] != "bool":
            return self._on_device(add_at_rows(F, x._node, key._node, value_for(x, value)))
        return self._updated("add", value)

    def subtract(self, value: Any) -> Array:
        """Return the array with values subtracted."""
        return self._updated("add", value, F.negative)

    def multiply(self, value: Any) -> Array:
        """Return the array with elements multiplied by values."""
        return self._updated("multiply", value)

    def divide(self, value: Any) -> Array:
        """Return the array, of a float dtype, with elements divided by values."""
        return self._updated("divide", value)

    def power(self, value: Any) -> Array:
        """Return the array with elements raised to the power of values; of several, to that of their product."""
        return self._updated("pow", value)

    def min(self, value: Any) -> Array:
        """Return the array with elements replaced by smaller values; NaN wins."""
        return self._updated("min", value)

    def max(self, value: Any) -> Array:
        """Return the array with elements replaced by greater values; NaN wins."""
        return self._updated("max", value)

    def apply(self, f: Callable[[Array], Array]) -> Array:
        """Return the array with elements replaced by those of ``f(elements)``, which is called once."""
        return self.set(f(self.get()))
