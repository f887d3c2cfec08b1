"""A graph of ONNX operators while it is written.

Here: `Builder`: names, constants, operators without repetition, sizes as tensors, the dtypes that values are kept in,
and leaving out what no output needs.
Not here: which operator an op of polygrad becomes (`onnx_ops.py`, `onnx_scalars.py`), files (`onnx_export.py`).

Runtimes have few operators for 8- and 16-bit numbers and for unsigned ones, so values of these are *carried* in wider
dtypes, as polygrad's kernels carry 16-bit floats: after every operator that may leave the narrow dtype the value is
brought back into it. Integers wrap and 16-bit floats round as they do in polygrad.
"""

import math
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from polygrad.errors import UnsupportedOp
from polygrad.graph.node import Node
from polygrad.io.onnx_sizes import Formula, Sizes, Unfit

Nodes = tuple[Node, ...]  # one node of each trace: the same place of the same graph for other sizes

CODES = {
    "float32": 1, "uint8": 2, "int8": 3, "uint16": 4, "int16": 5, "int32": 6, "int64": 7, "bool": 9, "float16": 10,
    "float64": 11, "uint32": 12, "uint64": 13, "bfloat16": 16,
}  # fmt: skip
CARRIERS = {
    "bool": "bool", "int8": "int32", "int16": "int32", "uint8": "int32", "uint16": "int32", "int32": "int32",
    "uint32": "int64", "int64": "int64", "uint64": "int64", "float16": "float32", "bfloat16": "float32",
    "float32": "float32", "float64": "float64",
}  # fmt: skip  # uint64 is carried as the int64 of the same bits
PACKED = {"bool": "?", "int32": "i", "int64": "q", "float32": "f", "float64": "d"}
FAR = 2**63 - 1  # beyond every end of an axis


class Operator(NamedTuple):
    """One operator of the graph."""

    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: tuple[tuple[str, Any], ...]


class Constant(NamedTuple):
    """A value that stands in the file: elements in C order, little-endian."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


class Builder:
    """Operators and constants by name; an operator that is already there is not written again.

    Parameters
    ----------
    opset : int
        The version of ONNX's operators.
    sizes : Sizes
        The sizes that stay open.
    """

    def __init__(self, opset: int, sizes: Sizes) -> None:
        self.opset = opset
        self.sizes = sizes
        self.operators: list[Operator] = []
        self.constants: dict[str, Constant] = {}
        self.inputs: dict[str, tuple[str, int]] = {}  # from a size's name to the input and axis that have it
        self.steady: set[Node] = set()  # nodes of the first trace whose facts are the same in all
        self.made: dict[str, Operator] = {}  # by the names of results
        self.expanded: dict[str, str] = {}  # from what was broadcast to what it was before
        self._known: dict[Any, tuple[str, ...]] = {}
        self._names: set[str] = set()

    def name(self, wanted: str) -> str:
        """Return a name that nothing has yet: the one wanted, or one with a number behind it."""
        found, k = wanted, 0
        while found in self._names:
            k += 1
            found = f"{wanted}_{k}"
        self._names.add(found)
        return found

    def several(self, kind: str, inputs: Sequence[str], count: int, **attributes: Any) -> tuple[str, ...]:
        """Return the *count* results of an operator."""
        facts = tuple(sorted(attributes.items()))
        key = (kind, tuple(inputs), facts, count)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = tuple(self.name(kind.lower()) for _ in range(count))
            self.operators.append(Operator(kind, tuple(inputs), found, facts))
            self.made.update(dict.fromkeys(found, self.operators[-1]))
        return found

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Return the result of an operator."""
        return self.several(kind, inputs, 1, **attributes)[0]

    def copy(self, x: str) -> str:
        """Return x under a name of its own."""
        found = self.name("identity")
        self.operators.append(Operator("Identity", (x,), (found,), ()))
        self.made[found] = self.operators[-1]
        return found

    def add_constant(self, wanted: str, constant: Constant) -> str:
        """Return the name of a constant that is written under a wanted name."""
        found = self.name(wanted)
        self.constants[found] = constant
        return found

    def literal(self, values: Sequence[Any], dtype: str, shape: tuple[int, ...] | None = None) -> str:
        """Return a constant of the elements given, of a dtype that carries; 1-D unless a shape is given."""
        data = struct.pack(f"<{len(values)}{PACKED[dtype]}", *[_packable(v, dtype) for v in values])
        constant = Constant(dtype, (len(values),) if shape is None else shape, data)
        key = ("literal", constant)
        if key not in self._known:
            self._known[key] = (self.add_constant("const", constant),)
        return self._known[key][0]

    def scalar(self, value: Any, dtype: str) -> str:
        """Return a 0-d constant of one of polygrad's dtypes, as it is carried."""
        return self.settle(self.literal([value], CARRIERS[dtype], ()), dtype)

    # ---- dtypes -----------------------------------------------------------------------------------------------------

    def cast(self, x: str, dtype: str) -> str:
        """Return x in another dtype of ONNX's."""
        return self.op("Cast", x, to=CODES[dtype])

    def enter(self, x: str, dtype: str) -> str:
        """Return a value of one of polygrad's dtypes as it is carried."""
        return x if CARRIERS[dtype] == dtype else self.cast(x, CARRIERS[dtype])

    def leave(self, x: str, dtype: str) -> str:
        """Return what is carried in its own dtype."""
        return x if CARRIERS[dtype] == dtype else self.cast(x, dtype)

    def settle(self, x: str, dtype: str) -> str:
        """Bring a value back into its dtype: narrow integers wrap, 16-bit floats are rounded."""
        return x if CARRIERS[dtype] == dtype or dtype == "uint64" else self.enter(self.leave(x, dtype), dtype)

    # ---- sizes ------------------------------------------------------------------------------------------------------

    def same(self, nodes: Nodes, fact: Callable[[Node], Any], what: str) -> Any:
        """Return a fact of a node that no size may change."""
        found = [fact(n) for n in nodes]
        if any(f != found[0] for f in found):
            raise Unfit(
                f"cannot export {nodes[0].op.name.rstrip('_')} with open sizes: its {what} changes with "
                f"{' and '.join(self.sizes.names)}; leave the size fixed"
            )
        return found[0]

    def formulas(self, nodes: Nodes, numbers: Callable[[Node], Sequence[int | float]]) -> list[Formula]:
        """Return numbers that a node has as formulas of the open sizes."""
        rows = [list(numbers(n)) for n in nodes]
        self.same(nodes, lambda n: len(list(numbers(n))), "number of axes")
        out = []
        for values in zip(*rows, strict=True):
            formula = self.sizes.fit(values)
            if formula is None:
                asked = [", ".join(map(str, trace)) for trace in self.sizes.traces]
                raise Unfit(
                    f"cannot export {nodes[0].op.name.rstrip('_')} with open sizes: a number in it is "
                    f"{', '.join(f'{v:g}' for v in values)} for {' and '.join(self.sizes.names)} of "
                    f"{'; '.join(asked)}, which is no sum of products of different sizes; leave the size fixed"
                )
            out.append(formula)
        return out

    def ints(self, nodes: Nodes, numbers: Callable[[Node], Sequence[int]]) -> str:
        """Return numbers that a node has as a 1-D int64 tensor: a constant, or computed from the inputs' sizes."""
        return self.tensor(self.formulas(nodes, numbers))

    def tensor(self, formulas: Sequence[Formula]) -> str:
        """Return formulas as a 1-D int64 tensor."""
        if all(is_fixed(f) for f in formulas):
            return self.literal([f.get((), 0) for f in formulas], "int64")
        parts: list[str] = []
        fixed: list[Any] = []
        for f in formulas:
            if is_fixed(f):
                fixed.append(f.get((), 0))
                continue
            parts += [self.literal(fixed, "int64")] if fixed else []
            parts.append(self.computed(f))
            fixed = []
        parts += [self.literal(fixed, "int64")] if fixed else []
        return parts[0] if len(parts) == 1 else self.op("Concat", *parts, axis=0)

    def computed(self, formula: Formula) -> str:
        """Return a formula as an int64 tensor of one element."""
        total = ""
        for key, c in sorted(formula.items(), key=lambda item: (-len(item[0]), item[0])):
            term = ""
            for k in key:
                source, axis = self.inputs[self.sizes.names[k]]
                size = self.op("Shape", source, start=axis, end=axis + 1)
                term = self.op("Mul", term, size) if term else size
            if not term:
                term = self.literal([c], "int64")
            elif c != 1:
                term = self.op("Mul", term, self.literal([c], "int64"))
            total = self.op("Add", total, term) if total else term
        return total

    def size(self, nodes: Nodes, number: Callable[[Node], int]) -> str:
        """Return a number that a node has as a 0-d int64 tensor."""
        (formula,) = self.formulas(nodes, lambda n: [number(n)])
        if is_fixed(formula):
            return self.literal([formula.get((), 0)], "int64", ())
        return self.op("Squeeze", self.computed(formula))

    def reshaped(self, x: str, nodes: Nodes, shape: Callable[[Node], Sequence[int]]) -> str:
        """Return x in a shape; the one open size of it is left to the operator."""
        formulas = self.formulas(nodes, shape)
        zero = any(f.get((), 0) == 0 for f in formulas if is_fixed(f))
        if sum(not is_fixed(f) for f in formulas) == 1 and not zero:
            formulas = [f if is_fixed(f) else {(): -1} for f in formulas]
        return self.op("Reshape", x, self.tensor(formulas), **({"allowzero": 1} if zero else {}))

    # ---- the end ----------------------------------------------------------------------------------------------------

    def needed(self, outputs: Sequence[str]) -> list[Operator]:
        """Return the operators that outputs need, and drop the constants that they do not."""
        wanted = set(outputs)
        kept: list[Operator] = []
        for operator in reversed(self.operators):
            if wanted.intersection(operator.outputs):
                kept.append(operator)
                wanted.update(operator.inputs)
        self.constants = {name: c for name, c in self.constants.items() if name in wanted}
        return kept[::-1]


def is_fixed(formula: Formula) -> bool:
    """Whether a formula is a plain number."""
    return all(key == () for key in formula)


def _packable(value: Any, dtype: str) -> Any:
    """Return a number as `struct` packs it: beyond float32's range an infinity, of uint64 the int64 of its bits."""
    if dtype == "float32" and math.isfinite(value):
        try:
            struct.pack("<f", value)
        except OverflowError:
            return math.copysign(math.inf, value)
    if dtype == "int64":
        return (int(value) + 2**63) % 2**64 - 2**63
    return int(value) if dtype == "int32" else value


def refuse(nodes: Nodes, why: str) -> UnsupportedOp:
    """Return the error that an op cannot be exported."""
    node = nodes[0]
    return UnsupportedOp(f"cannot export {node.op.name.rstrip('_')} of {node.dtype.name} to ONNX: {why}")
