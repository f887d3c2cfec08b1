"""Values of a kernel as statements: what the strategies of the GPU style have in common.

Here: lines of text, positions in the iteration space, values computed on demand into a scope, loads and stores of
vectors.
Not here: which loop runs where (`gpu_elementwise.py`, `gpu_reduction.py`), single expressions (`expressions.py`).

A value is computed at one or several points; a point stands for `width` consecutive positions along the vector axis.
A value that varies along that axis has a name for each of them, any other value has one name.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from polygrad.driver.render.addressing import Addressing, varying
from polygrad.driver.render.expressions import Expressions

Names = tuple[str, ...]


class Lines:
    """The lines of a function's body, indented by their depth."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self.depth = 1

    def add(self, *lines: str) -> None:
        """Append lines."""
        self.text += ["    " * self.depth + line for line in lines]

    def open(self, line: str = "") -> None:
        """Append the head of a block."""
        self.add(f"{line} {{" if line else "{")
        self.depth += 1

    def close(self) -> None:
        """End a block."""
        self.depth -= 1
        self.add("}")

    def __str__(self) -> str:
        return "\n".join(self.text)


@dataclass(frozen=True)
class Point:
    """A vector's worth of positions: the index of the first along every axis, and when they exist."""

    indices: Sequence[str]
    inside: str = ""  # a condition; empty if always
    suffix: str = ""  # sets its names apart


def all_of(*conditions: str) -> str:
    """Return the conjunction of conditions, the empty one being true.

    >>> all_of("", "a", "b"), all_of("")
    ('a && b', '')
    """
    return " && ".join(c for c in conditions if c)


class Values:
    """Computes values at points, each once in a scope.

    `scope` maps an instruction to its names, one tuple a point. `vectors` says of each view whether a point of it is
    read and written as one vector.
    """

    def __init__(
        self, at: Addressing, write: Expressions, out: Lines, axis: int, width: int, vectors: Sequence[bool]
    ) -> None:
        self.at = at
        self.kernel = at.kernel
        self.write = write
        self.dialect = at.dialect
        self.out = out
        self.axis = axis
        self.width = width
        self.vectors = vectors
        self.varies = varying(self.kernel, axis) if width > 1 else (False,) * len(self.kernel.body)
        self.scope: dict[int, list[Names]] = {}
        self.points: list[Point] = []
        self.memory_vectors: set[tuple[str, int]] = set()

    def inner(self, points: Sequence[Point]) -> "Values":
        """Return the same with a scope of its own inside this one, at other points."""
        child = Values(self.at, self.write, self.out, self.axis, self.width, self.vectors)
        child.scope = dict(self.scope)
        child.points = list(points)
        child.memory_vectors = self.memory_vectors
        return child

    def elements(self, n: int) -> int:
        """Return how many names value *n* has at a point."""
        return self.width if self.varies[n] else 1

    def name(self, n: int, point: int, e: int) -> str:
        """Return element *e* of value *n* at a point."""
        names = self.scope[n][point]
        return names[e] if len(names) > 1 else names[0]

    def closure(self, targets: Iterable[int]) -> list[int]:
        """Return what must be computed for *targets*, in order, apart from what is in scope."""
        found: set[int] = set()
        todo = list(targets)
        while todo:
            n = todo.pop()
            if n < 0 or n in found or n in self.scope:
                continue
            found.add(n)
            todo += [*self.kernel.body[n].args, self.kernel.body[n].guard]
        return sorted(found)

    def compute(self, targets: Iterable[int]) -> None:
        """Compute *targets* and what they need."""
        for n in self.closure(targets):
            self.scope[n] = [self._value(n, k) for k in range(len(self.points))]

    def _value(self, n: int, k: int) -> Names:
        instr, point = self.kernel.body[n], self.points[k]
        if instr.op == "const":
            return (self.dialect.literal(instr.attr, instr.dtype),)
        if instr.op == "scalar":
            return (self.at.scalar(instr.attr),)
        if instr.op == "load":
            return self._load(n, k)
        if self._shares_divisor(n):
            return self._divide(n, k)
        names, count = [], self.elements(n)
        for e in range(count):
            if instr.op == "iota":
                text = self.dialect.convert(self.index(point, instr.attr, e), instr.dtype)
            else:
                operands = [self.name(a, k, e) for a in instr.args]
                text = self.write.instruction(instr, operands, [self.kernel.body[a].dtype for a in instr.args])
            names.append(self._declare(n, point, e, count, text))
        return tuple(names)

    def _shares_divisor(self, n: int) -> bool:
        """Whether value *n* is a division of float32 vectors by one number that is no power of two."""
        instr = self.kernel.body[n]
        if (instr.op, instr.dtype) != ("divide", "float32") or not self.varies[n] or self.varies[instr.args[1]]:
            return False
        divisor = self.kernel.body[instr.args[1]]
        return divisor.op != "const" or abs(math.frexp(divisor.attr)[0]) != 0.5  # noqa: PLR2004  its mantissa

    def _divide(self, n: int, k: int) -> Names:
        """Divide a whole vector by one number."""
        (value, divisor), count, suffix = self.kernel.body[n].args, self.elements(n), self.points[k].suffix
        names = tuple(f"x{n}{suffix}" + (f"_{e}" if count > 1 else "") for e in range(count))
        values = (self.name(value, k, e) for e in range(count))
        self.out.add(f"{self.dialect.register(self.kernel.body[n].dtype)} {', '.join(names)};")
        arguments = ", ".join((self.name(divisor, k, 0), *values, *(f"&{name}" for name in names)))
        self.out.add(f"{self.write.shared_division(count)}({arguments});")
        return names

    def _declare(self, n: int, point: Point, e: int, count: int, text: str) -> str:
        name = f"x{n}{point.suffix}" + (f"_{e}" if count > 1 else "")
        self.out.add(f"const {self.dialect.register(self.kernel.body[n].dtype)} {name} = {text};")
        return name

    def index(self, point: Point, axis: int, e: int) -> str:
        """Return the index along an axis of element *e* of a point."""
        text = point.indices[axis]
        return text if axis != self.axis or e == 0 else f"({text} + {e})"

    def _indices(self, point: Point, e: int) -> list[str]:
        return [self.index(point, axis, e) for axis in range(self.kernel.rank)]

    def _guard(self, n: int, k: int, e: int | None) -> str:
        """Return the guard of a load at element *e*; at any element if None."""
        guard = self.kernel.body[n].guard
        if guard < 0:
            return ""
        if e is not None:
            return self.name(guard, k, e)
        return "(" + " | ".join(self.scope[guard][k]) + ")"

    def _load(self, n: int, k: int) -> Names:
        instr, point = self.kernel.body[n], self.points[k]
        v, count = instr.attr, self.elements(n)
        if count > 1 and self.vectors[v]:
            return self._load_vector(n, k)
        names = []
        for e in range(count):
            indices = self._indices(point, e)
            gathered = self._gathered(n, k, e)
            text = self.at.element(v, self.at.address(v, indices, gathered))
            condition = all_of(point.inside, self.at.window(v, indices), self._guard(n, k, e if count > 1 else None))
            if condition:
                text = f"{condition} ? {text} : {self.at.fill(v)}"
            names.append(self._declare(n, point, e, count, text))
        return tuple(names)

    def _gathered(self, n: int, k: int, e: int) -> list[str]:
        """Return the checked gather indices of a load at element *e*."""
        args = self.kernel.body[n].args
        return [self.at.gather(n, j, self.name(a, k, e), self.kernel.body[a].dtype) for j, a in enumerate(args)]

    def _load_vector(self, n: int, k: int) -> Names:
        instr, point, width = self.kernel.body[n], self.points[k], self.width
        v, dtype = instr.attr, instr.dtype
        self.memory_vectors.add((dtype, width))
        indices = self._indices(point, 0)
        condition = all_of(point.inside, self.at.window(v, indices), self._guard(n, k, None))
        vector = f"t{n}{point.suffix}"
        kind = self.dialect.memory(dtype, width)
        more = "".join(f" + v{v}_gs{j} * {index}" for j, index in enumerate(self._gathered(n, k, 0)))
        read = f"const {kind} {vector} = *{self._place(v, indices, more)};"
        elements = [self.at.from_memory(self.dialect.element(vector, e), dtype) for e in range(width)]
        names = tuple(f"x{n}{point.suffix}_{e}" for e in range(width))
        register = self.dialect.register(dtype)
        if not condition:
            self.out.add(read, *(f"const {register} {x} = {t};" for x, t in zip(names, elements, strict=True)))
            return names
        fill = self.at.fill(v)
        self.out.add(f"{register} {', '.join(f'{x} = {fill}' for x in names)};")
        self.out.open(f"if ({condition})")
        self.out.add(read, " ".join(f"{x} = {t};" for x, t in zip(names, elements, strict=True)))
        self.out.close()
        return names

    def _place(self, v: int, indices: Sequence[str], more: str = "") -> str:
        view = self.kernel.views[v]
        text = f"({self.at.buffer(v)} + ({self.at.address(v, indices)}{more}))"
        return self.dialect.pointer(text, view.dtype, self.width, const=view.buffer not in self.at.written)

    def store(self, n: int, v: int, condition: str = "") -> None:
        """Store value *n*, which is in scope, through view *v* at every point."""
        for k, point in enumerate(self.points):
            names = [self.name(n, k, e) for e in range(self.width)]
            self.store_names(names, v, point, all_of(point.inside, condition))

    def store_names(self, names: Sequence[str], v: int, point: Point, condition: str, more: str = "") -> None:
        """Store elements through view *v* at a point; *more* is added to the address.

        If the view does not vary along the vector axis there is one position, and the first element goes there.
        """
        dtype = self.kernel.views[v].dtype
        lines = []
        if self.width == 1 or self.kernel.views[v].strides[self.axis] == 0:
            lines.append(self.at.write(v, self.at.address(v, self._indices(point, 0)) + more, names[0]))
        elif self.vectors[v]:
            self.memory_vectors.add((dtype, self.width))
            kind = self.dialect.memory(dtype, self.width)
            value = self.dialect.vector_value(dtype, names)
            lines.append(f"const {kind} o{v}{point.suffix} = {value};")
            lines.append(f"*{self._place(v, self._indices(point, 0), more)} = o{v}{point.suffix};")
        else:
            for e, name in enumerate(names):
                lines.append(self.at.write(v, self.at.address(v, self._indices(point, e)) + more, name))
        if not condition:
            self.out.add(*lines)
            return
        self.out.open(f"if ({condition})")
        self.out.add(*lines)
        self.out.close()


def decompose(out: Lines, kind: str, flat: str, names: Sequence[str], extents: Sequence[str]) -> None:
    """Declare the indices along axes of a flat index in C order."""
    if not names:
        return
    if len(names) == 1:
        out.add(f"const {kind} {names[0]} = {flat};")
        return
    rest = flat
    for axis in range(len(names) - 1, 0, -1):
        out.add(f"const {kind} {names[axis]} = {rest} % {extents[axis]};")
        if axis > 1:
            out.add(f"const {kind} {names[axis]}_rest = {rest} / {extents[axis]};")
            rest = f"{names[axis]}_rest"
        else:
            out.add(f"const {kind} {names[0]} = {rest} / {extents[axis]};")
