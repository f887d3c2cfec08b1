"""Operands and operators: what may stand beside an array, and the dunder methods made from the table.

Here: the step from whatever a user writes to nodes, and `Array`'s operators, installed when this module is imported.
Not here: named functions (`functions.py`), what an op does.
"""

import functools
from collections.abc import Callable
from typing import Any

from polygrad import dtypes
from polygrad.array import interchange
from polygrad.array.autocasting import following
from polygrad.array.config import get_device
from polygrad.array.object import Array
from polygrad.graph.functions import OPERATORS, ORDERINGS, F
from polygrad.graph.node import Node, apply, lift, place
from polygrad.ops.table import TABLE, Op


def as_node(value: Any, device: str | None = None) -> Any:
    """Return an Array's node, a NumPy array as a node on *device*, a NumPy scalar as a number, all else as it is."""
    if isinstance(value, Array):
        return value._node
    if type(value) in (bool, int, float, complex):
        return value
    if isinstance(value, (list, tuple)):
        if not _has_array(value):
            return value
        nodes = [as_node(v, device) for v in value]
        return type(value)(*nodes) if hasattr(value, "_fields") else type(value)(nodes)
    if interchange.is_numpy_scalar(value):
        return value.item()
    if interchange.is_numpy(value):
        return interchange.from_numpy(value, device or get_device(), None)
    return value


def _has_array(values: Any) -> bool:
    return any(isinstance(v, Array) or interchange.is_numpy(v) or interchange.is_numpy_scalar(v) for v in values)


def as_key(key: Any, device: str) -> Any:
    """Return an entry of a key, arrays as nodes; a mask that the host knows stays a NumPy array.

    Lists count as arrays.
    """
    if isinstance(key, list):
        key = interchange.as_numpy(key) if key else interchange.as_numpy(key).astype(dtypes.int64)
    if interchange.is_numpy(key):
        return key if key.dtype == dtypes.bool_ else interchange.from_numpy(key, device, None)
    return as_node(key, device)


def operand(value: Any, like: Node) -> Node | None:
    """Return the other operand of an operator as a node, or None if polygrad cannot take it."""
    kind = type(value)
    if kind is float or kind is int or kind is bool:
        return lift(value, like)
    if isinstance(value, Array):
        return value._node
    if interchange.is_numpy_scalar(value):
        return lift(value.item(), like)
    if interchange.is_numpy(value):
        return interchange.from_numpy(value, like.device or get_device(), None)
    if isinstance(value, (bool, int, float, complex)):
        return lift(value, like)
    return None


def _binary(op: Op) -> tuple[Callable[[Array, Any], Any], Callable[[Array, Any], Any]]:
    def forward(self: Array, other: Any) -> Any:
        a = self._node
        b = other._node if type(other) is Array else operand(other, a)
        return NotImplemented if b is None else Array(apply(op, (a, b)))

    def reflected(self: Array, other: Any) -> Any:
        a = self._node
        b = operand(other, a)
        return NotImplemented if b is None else Array(apply(op, (b, a)))

    return forward, reflected


def _through(name: str) -> tuple[Callable[[Array, Any], Any], Callable[[Array, Any], Any]]:
    """Return operators of a composite, which takes Python scalars as they are."""
    function = following(name, getattr(F, name))

    def forward(self: Array, other: Any) -> Any:
        b = as_node(other, self.device)
        if not isinstance(b, (Node, bool, int, float, complex)):
            return NotImplemented
        return Array(_placed(function(self._node, b), self))

    def reflected(self: Array, other: Any) -> Any:
        b = as_node(other, self.device)
        if isinstance(b, (bool, int, float, complex)):
            b = lift(b, self._node)
        return Array(_placed(function(b, self._node), self)) if isinstance(b, Node) else NotImplemented

    return forward, reflected


def _placed(node: Node, like: Array) -> Node:
    """Return a result that may be made of host scalars alone (x ** 0) as one on the array's device."""
    return node if node.device is not None else place(node, like.device)


def _install() -> None:
    for dunder, name in OPERATORS.items():
        forward, reflected = _binary(TABLE[name]) if TABLE[name].kind == "elementwise" else _through(name)
        setattr(Array, f"__{dunder}__", forward)
        setattr(Array, f"__r{dunder}__", reflected)
        setattr(Array, f"__i{dunder}__", _in_place(TABLE[name], forward))
    for dunder, name in {**ORDERINGS, "eq": "equal", "ne": "not_equal"}.items():
        setattr(Array, f"__{dunder}__", _binary(TABLE[name])[0])
    for dunder, name in {"neg": "negative", "pos": "positive", "invert": "bitwise_invert", "abs": "abs"}.items():
        setattr(Array, f"__{dunder}__", functools.partialmethod(_unary, getattr(F, name)))


def _in_place(op: Op, forward: Callable[[Array, Any], Any]) -> Callable[[Array, Any], Any]:
    """Return the in-place form of an operator: the handle, and whoever shows its elements, get the result."""

    def operator(self: Array, other: Any) -> Any:
        from polygrad.array.mutation import replace  # noqa: PLC0415  built on this module

        out = forward(self, other)
        if out is NotImplemented:
            return out
        replace(self, out._node, op.verb)
        return self

    return operator


def _unary(self: Array, function: Callable[[Node], Node]) -> Array:
    return Array(function(self._node))


_install()
