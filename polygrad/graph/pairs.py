"""Ops on complex values: each is recorded as real ops on the two parts of its operands.

Here: `record`, which `apply` and the composites call when an operand is a Pair; `pair`, which makes one.
Not here: what an op makes of complex operands, which its `complex` fact says; the class (`node.py`).
"""

from collections.abc import Sequence
from typing import Any

from polygrad import dtypes, shapes
from polygrad.errors import DTypeError
from polygrad.graph.node import RECORDING, Node, Pair, apply, cast, common_device, like_parts, parts, place
from polygrad.ops.complex_slopes import analytic_
from polygrad.ops.layout import expand_
from polygrad.ops.table import Op

_PARTS = (dtypes.float32, dtypes.float64)


def pair(re: Node, im: Node) -> Node:
    """Return re + i im, of two real float nodes that broadcast.

    Raises
    ------
    DTypeError
        If a part is not of a float dtype.
    """
    if re.aval is im.aval and re.device == im.device and re.aval.dtype in _PARTS:
        return Pair(re, im)
    dtype = dtypes.promote(re.aval.dtype, im.aval.dtype)
    if dtypes.KINDS[dtype] != "float":
        raise DTypeError(f"cannot make a complex value of {dtype.name} parts: they must have a float dtype")
    dtype = dtypes.part(dtypes.whole(dtype))
    shape = shapes.broadcast("pair", re.aval.shape, im.aval.shape)
    both = [cast(p, dtype) for p in (re, im)]
    both = [p if p.aval.shape == shape else apply(expand_, (p,), (shape,)) for p in both]
    name = common_device(analytic_, (re, im))
    if name is not None:
        both = [place(p, name) for p in both]
    return Pair(*both)


def refused(op: Op, operands: Sequence[Any]) -> DTypeError:
    """Return the error of an op that has no meaning for complex operands."""
    have = [p.aval.dtype.name for p in operands if isinstance(p, Node)] or ["complex"]
    kinds = [kind for kind in op.dtypes.split() if kind != "complex"]
    name = op.name.rstrip("_")
    return DTypeError(
        f"cannot {op.verb.rstrip('_') if op.verb != op.name else 'apply ' + name + ' to'} {' and '.join(have)}: {name} "
        f"takes {' or '.join(kinds)} dtypes; take pg.real(...), pg.imag(...) or pg.abs(...) first"
    )


def record(xp: Any, op: Op, operands: tuple[Any, ...], attrs: Any) -> Any:
    """Return *op* of operands of which at least one is complex, as real ops.

    Raises
    ------
    DTypeError
        If the op takes no complex operands.
    """
    rule = op.complex
    if rule is None:
        raise refused(op, operands)
    if op.kind == "elementwise":
        operands = _alike(op, operands)
    if isinstance(rule, str):
        return pair(
            *[apply(op, tuple([p.parents[k] if type(p) is Pair else p for p in operands]), attrs) for k in (0, 1)]
        )
    if op.slopes is not None and RECORDING.enabled and any(p.mask for p in operands):
        return _analytic(xp, op, operands)
    return rule(xp, *operands, *(attrs or ()))


def _alike(op: Op, operands: tuple[Node, ...]) -> tuple[Node, ...]:
    """Return operands of an elementwise op with parts of one dtype; refuse shapes and devices that do not fit."""
    if len(operands) == 1:
        return operands
    x, y = operands[-2:]
    if x.aval is y.aval and x.device == y.device and len(operands) == 2:  # noqa: PLR2004  two that are alike: the most
        return operands
    first = 1 if op.name == "where" else 0
    dtype = operands[first].aval.dtype
    for p in operands[first:]:
        dtype = dtypes.promote(dtype, p.aval.dtype)
    of_part = dtypes.part(dtype)
    shapes.broadcast(op.verb, *[p.aval.shape for p in operands])
    common_device(op, operands)
    return (*operands[:first], *[cast(p, dtype if type(p) is Pair else of_part) for p in operands[first:]])


def _analytic(xp: Any, op: Op, operands: tuple[Node, ...]) -> Node:
    """Return a function with a complex derivative: its value as a constant, with its slopes beside it."""
    assert callable(op.complex)  # noqa: S101  slopes are declared beside a rule
    RECORDING.enabled = False
    try:
        value = op.complex(xp, *operands)
    finally:
        RECORDING.enabled = True
    inputs = [part for p in operands for part in parts(p)]
    layout = tuple([(j, k) for j, p in enumerate(operands) for k in range(len(parts(p)))])
    made = [apply(analytic_, (v, *inputs), (op, k, layout)) for k, v in enumerate(parts(value))]
    return like_parts(value, made)
