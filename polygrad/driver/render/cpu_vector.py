"""Values of a kernel in the CPU style: statements that define them, one element or a vector of them at a time.

Here: for one choice of the vector axis, how each instruction is written at a width, how operands that do not vary along
that axis are widened, how vectors are loaded, stored and folded into one element.
Not here: loops, work-items and the order of things (`cpu_style.py`), the arithmetic (`expressions.py`).

A name in the text says what it holds: ``x7`` is value 7 as one element, ``y7`` as a vector along the vector axis.
Which of them exist at a place is kept in a `Scope`, a dict from (position, is a vector) to the name.
"""

import functools
from collections.abc import Iterable, Sequence

from polygrad.driver.ir import ITEMSIZE, SCALAR_OPS, Instr, Kernel, View
from polygrad.driver.render.addressing import Addressing, varying
from polygrad.driver.render.expressions import Expressions

Scope = dict[tuple[int, bool], str]
VECTOR = 32  # bytes

# Ops whose cost is that of a library routine; a value that needs one is worth keeping rather than computing again.
DEAR = frozenset(
    {
        "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "atan2",
        "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "pow", "erf", "fmod", "nextafter", "quotient", "modulo",
    }
)  # fmt: skip

# Of these PoCL has one algorithm for vectors of any length, and another for single elements, which rounds otherwise; or
# `vector_functions.py` has ours, for vectors. An element that stands behind the last vector of a row in one kernel is
# in the midst of one in another: it is computed as a vector in both, so that a value computed again is the same.
AS_VECTORS = frozenset({"exp", "exp2", "log", "tanh", "asin", "acos", "atan", "atan2", "erf", "pow"})


_LANE = """static inline int pg_lane(long value, long start, int width) {
    return value < start ? -1 : value - start < width ? (int)(value - start) : width;
}
"""


@functools.lru_cache(maxsize=4096)
def compared_indices(kernel: Kernel, axis: int) -> frozenset[int]:
    """Return the int64 indices along *axis* that are only compared with what does not vary along it.

    Such a comparison is made with the lane's number, in 32 bits: masks and targets then do not halve all vectors.
    """
    varies = varying(kernel, axis)
    found = {n for n, instr in enumerate(kernel.body) if (instr.op, instr.dtype, instr.attr) == ("iota", "int64", axis)}
    for instr in kernel.body:
        compares = instr.op in SCALAR_OPS and SCALAR_OPS[instr.op].compares
        if not (compares and sum(varies[a] for a in instr.args) == 1):
            found -= set(instr.args)
    return frozenset(found - {store.value for store in kernel.stores})


class Values:
    """Writes the values of *kernel* with *axis* as the vector axis and vectors of *width* elements (1: no vectors)."""

    def __init__(
        self, kernel: Kernel, axis: int, width: int, at: Addressing, write: Expressions, streamed: frozenset[int]
    ) -> None:
        self.kernel = kernel
        self.axis = axis
        self.width = width
        self.at = at
        self.write = write
        self.streamed = streamed  # views of results that go past the cache
        self.dialect = write.dialect
        self.varies = varying(kernel, axis) if axis >= 0 else (False,) * len(kernel.body)
        self.compared = compared_indices(kernel, axis) if axis >= 0 else frozenset()
        self.indices = tuple(f"i{k}" for k in range(kernel.rank))

    def type(self, position: int, *, vector: bool = False) -> str:
        """Return the register type of a value."""
        return self.dialect.register(self.kernel.body[position].dtype, self.width if vector else 1)

    def operand(self, position: int, scope: Scope, out: list[str], *, vector: bool) -> str:
        """Return value *position* as an operand; a vector of equal elements is declared in *out* if need be."""
        instr = self.kernel.body[position]
        if instr.op == "const":
            return self.dialect.literal(instr.attr, instr.dtype, self.width if vector else 1)
        found = scope.get((position, vector))
        if found is None:
            text = self.widened(scope[position, False], instr.dtype)
            out.append(f"const {self.type(position, vector=True)} y{position} = {text};")
            found = scope[position, True] = f"y{position}"
        return found

    def widened(self, text: str, dtype: str) -> str:
        """Return a vector whose elements all are *text*."""
        one = f"({text} ? -1 : 0)" if dtype == "bool" else text
        return f"({self.dialect.register(dtype, self.width)})({one})"

    def define(self, positions: Iterable[int], scope: Scope, *, vector: bool) -> list[str]:
        """Return statements that define the values at *positions*, in order, and enter them in *scope*."""
        out: list[str] = []
        for position in positions:
            if self.kernel.body[position].op == "const" or (position, vector) in scope:
                continue
            if vector and position in self.compared:
                continue
            name = f"{'y' if vector else 'x'}{position}"
            kind = self.type(position, vector=vector)
            if vector and self._needs_branch(position):
                out += self._branched_load(position, name, scope, out)
            else:
                text = self._text(position, scope, out, vector=vector)
                out.append(f"const {kind} {name} = {text};")
            scope[position, vector] = name
        return out

    def _text(self, position: int, scope: Scope, out: list[str], *, vector: bool) -> str:
        instr = self.kernel.body[position]
        if instr.op == "load":
            return self._load(position, scope, out, vector=vector)
        if instr.op == "scalar":
            return self.at.scalar(instr.attr)
        if instr.op == "iota":
            return self._iota(instr, vector=vector)
        if vector and any(a in self.compared for a in instr.args):
            return self._compared(instr, scope, out)
        operands = [self.operand(a, scope, out, vector=vector) for a in instr.args]
        dtypes = [self.kernel.body[a].dtype for a in instr.args]
        if not vector and self.dialect.vectors and instr.op in AS_VECTORS:
            width = VECTOR // ITEMSIZE[instr.dtype]
            operands = [f"({self.dialect.register(instr.dtype, width)})({text})" for text in operands]
            return self.dialect.element(f"({self.write.instruction(instr, operands, dtypes, width)})", 0)
        return self.write.instruction(instr, operands, dtypes, self.width if vector else 1)

    def _iota(self, instr: Instr, *, vector: bool) -> str:
        one = self.dialect.convert(self.indices[instr.attr], instr.dtype)
        if not vector:
            return one
        kind = self.dialect.register(instr.dtype, self.width)
        return f"({kind})({one}) + ({kind})({', '.join(str(j) for j in range(self.width))})"

    def _compared(self, instr: Instr, scope: Scope, out: list[str]) -> str:
        """Return the comparison of the index along the vector axis with a value that stands still."""
        lane, index = self.write.helper("pg_lane", _LANE), self.indices[self.axis]
        form = f"(({self.dialect.register('int32', self.width)})({{}}))".format
        texts = [
            form(", ".join(str(j) for j in range(self.width))) if a in self.compared
            else form(f"{lane}({self.operand(a, scope, out, vector=False)}, {index}, {self.width})")
            for a in instr.args
        ]  # fmt: skip
        return self.write.scalar(instr.op, "int32", texts, self.width)

    def lane(self, j: int) -> tuple[str, ...]:
        """Return the axis indices of element *j* of a vector."""
        here = list(self.indices)
        here[self.axis] = f"(i{self.axis} + {j})" if j else f"i{self.axis}"
        return tuple(here)

    def _needs_branch(self, position: int) -> bool:
        """Whether a vector load has a whole-vector form under a condition, and an element-wise form otherwise."""
        instr = self.kernel.body[position]
        if instr.op != "load":
            return False
        view = self.kernel.views[instr.attr]
        return self.axis in view.window and not view.gathers and view.strides[self.axis] in (0, 1)

    def _branched_load(self, position: int, name: str, scope: Scope, out: list[str]) -> list[str]:
        v = self.kernel.body[position].attr
        low, high = (f"v{v}_{side}{self.axis}" for side in ("lo", "hi"))
        here = f"i{self.axis}"
        tests = [f"{here} >= {low} && {here} + {self.width} <= {high}"]
        tests += [f"i{k} >= v{v}_lo{k} && i{k} < v{v}_hi{k}" for k in self.kernel.views[v].window if k != self.axis]
        return [
            f"{self.type(position, vector=True)} {name};",
            f"if ({' && '.join(tests)}) {name} = {self._whole(v)};",
            f"else {name} = {self._lanes(position, scope, out)};",
        ]

    def _load(self, position: int, scope: Scope, out: list[str], *, vector: bool) -> str:
        v = self.kernel.body[position].attr
        view = self.kernel.views[v]
        if not vector:
            return self._element(self.indices, self._gathered(position, scope, out, -1), v)
        apart = view.gathers and any(self.varies[a] for a in self.kernel.body[position].args)
        if apart or view.strides[self.axis] is None or self.axis in view.window:
            return self._lanes(position, scope, out)
        inside = self.at.window(v, self.indices)
        whole = self._whole(v, self._gathered(position, scope, out, -1))
        if not inside:
            return whole
        return f"({inside} ? {whole} : {self.dialect.literal(view.fill, view.dtype, self.width)})"

    def _whole(self, v: int, gathered: Sequence[str] = ()) -> str:
        """Return the elements of a view from the current index on, as a vector read at once or one element repeated."""
        view = self.kernel.views[v]
        address = self.at.address(v, self.indices, gathered)
        if view.strides[self.axis] == 0:
            return self.widened(self.at.element(v, address), view.dtype)
        return self.from_memory(self.loaded(f"{self.at.buffer(v)} + ({address})", view.dtype), view.dtype, vector=True)

    def from_memory(self, text: str, dtype: str, *, vector: bool) -> str:
        """Return a value as it lies in memory as a value in a register."""
        if not vector:
            return self.at.from_memory(text, dtype)
        if dtype != "bool":
            return text
        kind = self.dialect.memory("bool", self.width)
        return f"convert_int{self.width}({text} != ({kind})(0))"

    def _lanes(self, position: int, scope: Scope, out: list[str]) -> str:
        v = self.kernel.body[position].attr
        dtype = self.kernel.views[v].dtype
        lanes = [self._element(self.lane(j), self._gathered(position, scope, out, j), v) for j in range(self.width)]
        if dtype == "bool":
            lanes = [f"-(int)({text})" for text in lanes]
        return f"({self.dialect.register(dtype, self.width)})({', '.join(lanes)})"

    def _element(self, indices: Sequence[str], gathered: Sequence[str], v: int) -> str:
        inside = self.at.window(v, indices)
        text = self.at.element(v, self.at.address(v, indices, gathered))
        return f"({inside} ? {text} : {self.at.fill(v)})" if inside else text

    def _gathered(self, position: int, scope: Scope, out: list[str], j: int) -> list[str]:
        """Return the checked gather indices of a load for element *j* of a vector, or for one element if *j* is -1.

        Where the guard, behind the indices (`ir.guards_as_operands`), is false the index is 0, which is good.
        """
        instr = self.kernel.body[position]
        count = self.kernel.views[instr.attr].gathers
        operands = []
        for a in instr.args:
            vector = j >= 0 and self.varies[a]
            text = self.operand(a, scope, out, vector=vector)
            operands.append(self.dialect.element(text, j) if vector else text)
        indices, guards = operands[:count], operands[count:]
        if guards:
            indices = [f"({guards[0]} ? {text} : 0)" for text in indices]
        dtypes = [self.kernel.body[a].dtype for a in instr.args]
        return [self.at.gather(position, n, text, dtypes[n]) for n, text in enumerate(indices)]

    def store(self, value: int, v: int, scope: Scope, *, vector: bool, where: str = "", before: str = "") -> list[str]:
        """Return statements that store *value* through view *v*.

        *where* is added to the address. *before*, a condition, makes it an addition to what is there wherever it is
        false.
        """
        out: list[str] = []
        view = self.kernel.views[v]
        text = self.operand(value, scope, out, vector=vector)
        if not vector:
            address = self.at.address(v, self.indices) + where
            if before:
                sum_ = self.write.reduce_step("sum", view.dtype, self.at.element(v, address), text)
                text = f"({before} ? {text} : {sum_})"
            return [*out, self.at.write(v, address, text)]
        if view.strides[self.axis] == 1:
            return [*out, self._store_whole(v, view, text, where, before)]
        for j in range(self.width):
            address = self.at.address(v, self.lane(j)) + where
            one = self.dialect.element(text if text.isidentifier() else f"({text})", j)
            if before:
                sum_ = self.write.reduce_step("sum", view.dtype, self.at.element(v, address), one)
                one = f"({before} ? {one} : {sum_})"
            out.append(self.at.write(v, address, f"({one} != 0)" if view.dtype == "bool" else one))
        return out

    def _store_whole(self, v: int, view: View, text: str, where: str, before: str) -> str:
        pointer = f"{self.at.buffer(v)} + ({self.at.address(v, self.indices)}{where})"
        if before:
            there = self.loaded(pointer, view.dtype)
            sum_ = self.write.reduce_step("sum", view.dtype, there, text, self.width)
            text = f"({before} ? {text} : {sum_})"
        elif v in self.streamed:
            space = self.dialect.global_space
            return self.write.stream(self.to_memory(text, view.dtype), pointer, view.dtype, self.width, space)
        return self.stored(self.to_memory(text, view.dtype), pointer, view.dtype)

    def loaded(self, pointer: str, dtype: str, *, local: bool = False) -> str:
        """Return the vector at *pointer*, as it lies in memory."""
        space = self.dialect.local_space if local else self.dialect.global_space
        return self.write.load(pointer, dtype, self.width, space)

    def stored(self, text: str, pointer: str, dtype: str, *, local: bool = False) -> str:
        """Return the statement that puts the vector *text* at *pointer*."""
        space = self.dialect.local_space if local else self.dialect.global_space
        return self.write.store(text, pointer, dtype, self.width, space)

    def to_memory(self, text: str, dtype: str) -> str:
        """Return a vector in a register as it lies in memory."""
        return f"convert_uchar{self.width}({text} & (int{self.width})(1))" if dtype == "bool" else text

    def fold(self, name: str, how: str, dtype: str, out: list[str]) -> str:
        """Return the elements of vector *name* reduced to one, with the statements for it added to *out*."""
        root, width = name, self.width
        while width > 2:  # noqa: PLR2004  down to pairs
            width //= 2
            step = self.write.reduce_step(how, dtype, f"{name}.lo", f"{name}.hi", width)
            name = f"{root}_{width}"
            out.append(f"const {self.dialect.register(dtype, width)} {name} = {step};")
        ends = [self.dialect.element(name, j) for j in (0, 1)]
        if dtype == "bool":
            ends = [f"({end} != 0)" for end in ends]
        return self.write.reduce_step(how, dtype, ends[0], ends[1])
