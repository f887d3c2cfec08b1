"""The body of one kernel while it is written: instructions without repetition, and the rules for storage dtypes.

Here: `Body`, called as ``body("add", a, b)``; decisions that hold for every kernel (float16 is computed in float32, an
op that the device lacks is decomposed).
Not here: which nodes are in a kernel (`group.py`), what a missing op is made of (`decompose.py`), what a driver makes
of it.
"""

import functools
import math
from collections.abc import Callable, Set
from typing import Any

from polygrad import dtypes
from polygrad.driver.ir import REDUCTIONS, SCALAR_OPS, STORAGE, Instr
from polygrad.ops.table import Op
from polygrad.schedule.decompose import decompose, decompose_reduction

_SIGNED = {"negative", "multiply", "divide", "add", "subtract"}
_COMPARING = frozenset(name for name, op in SCALAR_OPS.items() if op.compares)
_INDEX = frozenset({"iota", "const", "scalar"})
_instr: Callable[[tuple[Any, ...]], Instr] = functools.partial(tuple.__new__, Instr)  # all five fields, and fast
NAN: Any = vars(math)["nan"]  # the object itself, as a part of keys; compiled code would make another of a float


class Body:
    """Instructions by number; an instruction that is already there is not written again.

    Parameters
    ----------
    scalar_ops, reductions : set of str
        What the device declares; what is missing is decomposed.
    """

    def __init__(self, scalar_ops: Set[str] = SCALAR_OPS.keys(), reductions: Set[str] = frozenset(REDUCTIONS)) -> None:
        self.scalar_ops = scalar_ops
        self.reductions = reductions
        self.instrs: list[Instr] = []
        self._known: dict[Instr, int] = {}

    def add(self, instr: Instr) -> int:
        """Return the number of *instr*, appending it if it is new."""
        key = instr if instr.op != "const" else Instr("const", instr.dtype, (), (type(instr.attr), repr(instr.attr)))
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = len(self.instrs)
            self.instrs.append(instr)
        return found

    def find(self, instr: Instr) -> int | None:
        """Return the number of *instr* if it is there."""
        return self._known.get(instr)

    def dtype(self, value: int) -> str:
        """Return the dtype of a value."""
        return self.instrs[value].dtype

    def const(self, value: bool | int | float, dtype: str) -> int:
        """Return a literal; every NaN is the one."""
        return self.add(Instr("const", dtype, (), NAN if math.isnan(value) else value))

    def cast(self, value: int, dtype: str) -> int:
        """Return a value in another dtype."""
        return value if self.dtype(value) == dtype else self.add(Instr("cast", dtype, (value,)))

    def bitcast(self, value: int, dtype: str) -> int:
        """Return the bits of a value as another dtype of the same width."""
        return self.add(Instr("bitcast", dtype, (value,)))

    def where(self, condition: int, a: int, b: int) -> int:
        """Return a where the condition holds, else b."""
        return self.add(Instr("where", self.dtype(a), (condition, a, b)))

    def __call__(self, op: str, *args: int) -> int:
        """Return a scalar op of values of one dtype."""
        if op not in self.scalar_ops:
            return decompose(self, op, args)
        instrs = self.instrs
        dtype = instrs[args[0]].dtype
        if op in _SIGNED and (dtype == "float32" or dtype == "float64"):
            for a in args:
                if instrs[a].op == "negative":
                    moved = self._without_sign(op, args)
                    if moved is not None:
                        return moved
                    break
        instr = _instr((op, "bool" if op in _COMPARING else dtype, args, None, -1))
        found = self._known.get(instr)
        if found is None:
            found = self._known[instr] = len(instrs)
            instrs.append(instr)
        return found

    def _operand_of_negative(self, value: int) -> int | None:
        instr = self.instrs[value]
        return instr.args[0] if instr.op == "negative" else None

    def _without_sign(self, op: str, args: tuple[int, ...]) -> int | None:
        """Move a negation outwards, where it may cancel or end up on a row.

        Rounding is symmetric, so no bit changes.
        """
        inner = [self._operand_of_negative(a) for a in args]
        if op == "negative":
            return inner[0]
        a, b = args
        if op in ("multiply", "divide"):
            if inner[0] is not None and inner[1] is not None:
                return self(op, inner[0], inner[1])
            if inner[0] is not None or inner[1] is not None:
                positive = self(op, a if inner[0] is None else inner[0], b if inner[1] is None else inner[1])
                return self("negative", positive)
        elif op == "add":
            if inner[1] is not None:
                return self("subtract", a, inner[1])
            if inner[0] is not None:
                return self("subtract", b, inner[0])
        elif op == "subtract" and inner[1] is not None:
            return self("add", a, inner[1])
        return None

    def apply(self, op: Op, args: list[int]) -> int:
        """Return an elementwise op of the table; storage dtypes are computed in float32 and rounded back."""
        if op.name == "where":
            return self.where(*args)
        stored = self.instrs[args[0]].dtype
        if stored not in STORAGE:
            return op.lower(self, *args) if op.lower is not None else self(op.instr, *args)
        args = [self.cast(a, "float32") for a in args]
        out = op.lower(self, *args) if op.lower is not None else self(op.instr, *args)
        return out if op.compares else self.cast(out, stored)

    def reduce(self, kind: str, value: int) -> int:
        """Return a reduction over the reduced axes; storage dtypes accumulate in float32."""
        stored = self.dtype(value)
        wide = self.cast(value, "float32") if stored in STORAGE else value
        inner = self._operand_of_negative(wide)
        if kind == "sum" and inner is not None and self.dtype(wide) in ("float32", "float64"):
            return self("negative", self.reduce(kind, inner))
        if kind not in self.reductions:
            return self.cast(decompose_reduction(self, kind, wide), stored)
        return self.cast(self.add(Instr("reduce", self.dtype(wide), (wide,), kind)), stored)

    def iota(self, terms: list[tuple[int, int]], const: int, dtype: str) -> int:
        """Return const + sum(coefficient * index along axis)."""
        counting = dtype if dtype in ("int32", "int64") else "int64"
        total: int | None = None
        for axis, coefficient in terms:
            part = self.add(Instr("iota", counting, (), axis))
            if coefficient != 1:
                part = self("multiply", part, self.const(coefficient, counting))
            total = part if total is None else self("add", total, part)
        if total is None:
            return self.cast(self.const(const, counting), dtype)
        if const:
            total = self("add", total, self.const(const, counting))
        return self.cast(total, dtype)


@functools.lru_cache(maxsize=4096)
def instructions(op: str, dtype: str, scalar_ops: frozenset[str]) -> int:
    """Return how many instructions a scalar op takes on a device that declares *scalar_ops*: 1 if it is among them.

    >>> from polygrad.driver.ir import MANDATORY
    >>> instructions("ceil", "float32", frozenset(SCALAR_OPS)), instructions("ceil", "float32", MANDATORY)
    (1, 3)
    """
    if op in scalar_ops or op not in SCALAR_OPS:
        return 1
    body = Body(scalar_ops)
    wide = "float32" if dtype in STORAGE else dtype
    operands = [body.add(Instr("load", wide, (), k)) for k in range(SCALAR_OPS[op].arity)]
    body(op, *operands)
    return len(body.instrs) - len(operands)


@functools.lru_cache(maxsize=1024)
def emitted(op: Op, dtype: str, scalar_ops: frozenset[str]) -> int:
    """Return how many instructions an op of the table takes that is made of many, on a device with *scalar_ops*."""
    body = Body(scalar_ops)
    assert op.lower is not None  # noqa: S101  that is what such an op has
    operands = [body.add(Instr("load", dtype, (), k)) for k in range(len(op.vjp or ()))]
    body.apply(op, operands)
    return len(body.instrs) - len(operands)


def guard_loads(instrs: list[Instr], stored: list[int]) -> tuple[list[Instr], list[int]]:
    """Guard the loads that only one arm of a `where` uses, if its condition is known from indices and scalars alone.

    The loads of a masked element are then not made (a causal mask halves the traffic). The instructions come back in an
    order in which a guard stands before its load and without dead ones, together with the new number of each old one.
    """
    if not any(i.op == "where" for i in instrs):
        return _in_order(instrs, stored)
    index_only = _index_only(instrs)
    guards: list[int | None] = [None] * len(instrs)  # None: not used yet; -1: used without a guard
    for value in stored:
        guards[value] = -1
    marked = list(instrs)
    for n in range(len(instrs) - 1, -1, -1):
        op, dtype, args, attr, _ = instrs[n]
        own = guards[n]
        if op == "load":
            if own is not None and own >= 0 and not args:
                marked[n] = _instr((op, dtype, args, attr, own))
            own = -1
        elif own is None or op == "reduce":
            own = -1
        for k, a in enumerate(args):
            guard = args[0] if k == 1 and op == "where" and index_only[args[0]] else own
            guards[a] = guard if guards[a] is None or guards[a] == guard else -1
    return _in_order(marked, stored)


def _index_only(instrs: list[Instr]) -> list[bool]:
    out: list[bool] = []
    for op, _, args, _, _ in instrs:
        known = op in _INDEX
        if args and op != "load" and op != "reduce":
            known = False not in [out[a] for a in args]
        out.append(known)
    return out


def _in_order(instrs: list[Instr], stored: list[int]) -> tuple[list[Instr], list[int]]:
    """Renumber so that guards stand before the loads that they guard, and what no store needs is gone."""
    out: list[Instr] = []
    new = [-1] * len(instrs)
    stack = sorted(stored, reverse=True)
    pop, push = stack.pop, stack.append
    while stack:
        n = pop()
        done = n < 0  # what it needs is there
        if done:
            n = ~n
        elif new[n] >= 0:
            continue
        i = instrs[n]
        op, dtype, args, attr, guard = i
        if not done:
            missing = [a for a in args if new[a] < 0]
            if guard >= 0 and new[guard] < 0:
                missing.append(guard)
            if missing:
                push(~n)
                stack += missing
                continue
        new[n] = len(out)
        if guard >= 0:
            i = _instr((op, dtype, tuple([new[a] for a in args]), attr, new[guard]))
        elif len(args) == 2:  # noqa: PLR2004  most: worth a line
            i = _instr((op, dtype, (new[args[0]], new[args[1]]), attr, -1))
        elif args:
            i = _instr((op, dtype, tuple([new[a] for a in args]), attr, -1))
        out.append(i)
    return out, new


@functools.cache
def name(dtype: dtypes.DType) -> str:
    """Return the IR's name of a dtype."""
    return str(dtype.name)  # NumPy takes its time to spell it
