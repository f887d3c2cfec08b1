"""What nodes share: shapes with dtypes, and ops applied to them.

Here: `Aval` and `Spec`, which the schedule looks at more often than at anything else, so that they may be compiled.
Not here: how they are interned (`node.py`).
"""

import itertools
from typing import Any

from polygrad import dtypes, shapes
from polygrad.ops.table import Op

# Kinds of ops whose results are worth a store if somebody holds them.
COSTLY = frozenset({"reduce", "matmul", "scatter", "random", "gather", "library", "put"})

signature = itertools.count(1).__next__


class Aval:
    """A shape and a dtype, interned: two nodes with equal shape and dtype share one Aval."""

    __slots__ = ("dtype", "ident", "shape", "size")

    def __init__(self, shape: shapes.Shape, dtype: dtypes.DType, ident: int) -> None:
        self.shape = shape
        self.dtype = dtype
        self.size = shapes.size(shape)
        self.ident = ident

    def __repr__(self) -> str:
        return f"{self.dtype.name}{list(self.shape)}"


class Spec:
    """What applying an op to operands of certain avals gives: interned, so that `sig` stands for all of it in keys."""

    __slots__ = ("attrs", "aval", "casts", "costly", "op", "records", "sig")

    def __init__(self, op: Op, attrs: Any, out: Aval, casts: tuple[Any, ...] | None) -> None:
        self.op = op
        self.attrs = attrs
        self.aval = out
        self.casts = casts  # for each operand the dtype that it is cast to first, or None
        self.records = op.differentiable and dtypes.KINDS[out.dtype] == "float"
        self.costly = op.kind in COSTLY
        self.sig = signature()
