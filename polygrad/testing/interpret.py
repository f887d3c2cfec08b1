"""The meaning of a graph, by NumPy alone.

Here: `leaf`, which makes a node of an array, and `evaluate`, which computes a node from the references of the table's
ops.
Not here: kernels, devices, speed. It is what scheduled results are compared with.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from polygrad import dtypes
from polygrad.array.interchange import to_numpy
from polygrad.errors import OutOfBounds
from polygrad.graph.node import Node, Pair, aval
from polygrad.graph.spec import Spec
from polygrad.ops.creation import buffer
from polygrad.ops.table import Op


def leaf(array: Any) -> Node:
    """Return a node whose value is *array*.

    >>> evaluate(leaf(np.arange(3)) + 1)
    array([1, 2, 3])
    """
    value = np.asarray(array)
    if value.dtype in dtypes.COMPLEX:
        return Pair(leaf(value.real), leaf(value.imag))
    node = Node(Spec(buffer, None, aval(value.shape, dtypes.as_dtype(value.dtype)), None), (), None)
    node.storage = value
    return node


def evaluate(*nodes: Node, disturb: Callable[[Node, Any], Any] | None = None) -> Any:
    """Return the value of a node as an array; of several, a tuple of arrays.

    16-bit floats are computed in float32, op by op. *disturb* is given each node and its value and returns the value to
    go on with: with small random changes it shows how much rounding matters.
    """
    known: dict[int, Any] = {}
    with np.errstate(all="ignore"):
        for node in _order(nodes):
            value = _value(node, [known[p.number] for p in node.parents])
            known[node.number] = value if disturb is None else disturb(node, value)
    found = tuple(known[node.number] for node in nodes)
    return found[0] if len(nodes) == 1 else found


def _order(nodes: tuple[Node, ...]) -> list[Node]:
    """Return all ancestors, operands first: a node's number is greater than its operands'."""
    seen: dict[int, Node] = {}
    todo = list(nodes)
    while todo:
        node = todo.pop()
        if node.number not in seen:
            seen[node.number] = node
            todo.extend(node.parents)
    return [seen[k] for k in sorted(seen)]


def _value(node: Node, operands: list[Any]) -> Any:
    if node.storage is not None:
        return node.storage if isinstance(node.storage, np.ndarray) else to_numpy(node)
    op = node.op
    if op.kind == "scalar":
        return np.asarray(node.value, node.dtype)
    attrs: tuple[Any, ...] = node.spec.attrs or ()
    if op.kind == "random":
        value = philox(int(operands[0]), int(operands[1]), attrs[0])
    elif op.kind == "check":
        value = _checked(operands[0], *attrs)
    elif op.kind == "library":
        results = _call(op, operands, attrs[1:])
        value = results[attrs[0]] if isinstance(results, tuple) else results
    elif op.kind in ("cast", "bitcast"):
        value = op.body(np, operands[0], *attrs)
    else:
        value = _call(op, operands, attrs)
    value = np.asarray(value)
    if value.shape != tuple(node.shape):
        raise AssertionError(f"{op.name} was inferred to give shape {list(node.shape)} but gives {list(value.shape)}")
    return value if value.dtype == node.dtype else value.astype(node.dtype)


def _checked(index: Any, size: int, label: bool) -> Any:
    """Return indices in [0, size), or raise as a device's report does."""
    bad = index[(index < (0 if label else -size)) | (index >= size)]
    if bad.size:
        raise OutOfBounds(f"index {bad.flat[0]} is out of range for an axis of size {size}")
    return np.where(index < 0, index + size, index)


def _call(op: Op, operands: list[Any], attrs: tuple[Any, ...]) -> Any:
    """Return the value of the op's reference, with 16-bit floats widened."""
    return op.body(np, *[_widened(x) for x in operands], *attrs)


def _widened(x: Any) -> Any:
    return x.astype(np.float32) if x.dtype in (dtypes.float16, dtypes.bfloat16) else x


_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)


def philox(key: int, counter: int, n: int) -> Any:
    """Return n words of Philox-4x32-10 under a 64-bit key from a 64-bit counter.

    Notes
    -----
    Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.

    >>> [hex(int(w)) for w in philox(0, 0, 4)]
    ['0x6627e8d5', '0xe169c58d', '0xbc57ac4c', '0x9b00dbd8']
    """
    blocks = (np.arange(-(-n // 4), dtype=np.uint64) + np.uint64(counter)) if n else np.zeros(0, np.uint64)
    a, b = blocks & _LOW, blocks >> np.uint64(32)
    c, d = np.zeros_like(a), np.zeros_like(a)
    low, high = key & 0xFFFFFFFF, key >> 32
    for _ in range(10):
        p, q = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        a, b, c, d = (
            (q >> np.uint64(32)) ^ b ^ np.uint64(low),
            q & _LOW,
            (p >> np.uint64(32)) ^ d ^ np.uint64(high),
            p & _LOW,
        )
        low, high = (low + _WEYL[0]) & 0xFFFFFFFF, (high + _WEYL[1]) & 0xFFFFFFFF
    return np.stack([a, b, c, d], axis=-1).astype(np.uint32).ravel()[:n]
