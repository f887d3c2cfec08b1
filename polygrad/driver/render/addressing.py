"""Addresses as text: views, windows, gathers and their reports, the arguments of a rendered kernel.

Here: the names of launch arguments in a source, index arithmetic over them, one element read or written.
Not here: loops, vectors and guards (the styles), the arithmetic of values (`expressions.py`).

A rendered kernel takes its buffers as ``b0 b1 ..``, its launch ints as ``n0 .. v0_o v0_s1 ..`` (the names of
`Kernel.int_names` with underscores) in the index type, its scalars as ``c0 c1 ..``. The index type is int if every
address of the launch stays below 2**31 (`fits_int32`), else a 64-bit integer.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from polygrad.driver.ir import ITEMSIZE, Kernel, View
from polygrad.driver.render.dialect import argument_dtype
from polygrad.driver.render.expressions import Expressions

LIMIT = 1 << 31
# Flat indices are rounded up to whole groups, and the ends of spans are computed before they are cut off.
FLAT_LIMIT = 1 << 30


def varying(kernel: Kernel, axis: int) -> tuple[bool, ...]:
    """Return for each instruction whether its value varies along *axis*; a reduction over it ends that.

    >>> from polygrad.driver.ir import Instr, View
    >>> row_sum = Kernel(1, 1, ("float32",), (View(0, "float32", (None, 1)),), (),
    ...                  (Instr("load", "float32", (), 0), Instr("reduce", "float32", (0,), "sum")), ())
    >>> varying(row_sum, 1), varying(row_sum, 0)
    ((True, False), (True, True))
    """
    out: list[bool] = []
    for instr in kernel.body:
        varies = any(out[a] for a in instr.args)
        if instr.op == "load":
            view = kernel.views[instr.attr]
            varies = varies or view.strides[axis] != 0 or axis in view.window
        elif instr.op == "iota":
            varies = instr.attr == axis
        elif instr.op == "reduce" and axis >= kernel.parallel:
            varies = False
        out.append(varies)
    return tuple(out)


class Argument(NamedTuple):
    """One argument of a rendered kernel, in its place: where the driver finds it, and as which dtype it is passed.

    kind      position                       dtype
    buffer    in the launch's buffers        of the elements
    int       in the launch's ints           int32 or int64
    scalar    in the launch's scalars        see `dialect.argument_value`
    scratch   in `Source.scratch`            of the elements
    """

    kind: str
    position: int
    dtype: str


def named_ints(kernel: Kernel, ints: Sequence[int]) -> dict[str, int]:
    """Return the launch ints by name."""
    return dict(zip(kernel.int_names, ints, strict=True))


def view_strides(view: View, v: int, named: Mapping[str, int]) -> tuple[int, ...]:
    """Return the strides of a view with the dynamic ones filled in."""
    return tuple(named[f"v{v}.s{k}"] if stride is None else stride for k, stride in enumerate(view.strides))


def fits_int32(kernel: Kernel, ints: Sequence[int]) -> bool:
    """Whether all index arithmetic of a launch stays below 2**31, so that int will do."""
    named = named_ints(kernel, ints)
    extents = [named[f"n{k}"] for k in range(kernel.rank)]
    total = 1
    for n in extents:
        total *= n
    if total >= FLAT_LIMIT or any(abs(value) >= LIMIT for value in ints):
        return False
    for v, view in enumerate(kernel.views):
        reach = abs(named[f"v{v}.o"])
        reach += sum(abs(s) * (n - 1) for s, n in zip(view_strides(view, v, named), extents, strict=True))
        reach += sum(abs(named[f"v{v}.gs{j}"]) * max(0, named[f"v{v}.gn{j}"] - 1) for j in range(view.gathers))
        if view.partial:
            reach += abs(named[f"v{v}.ps"]) * (named[f"v{v}.parts"] - 1)
        if reach * max(1, ITEMSIZE[view.dtype] // 4) >= LIMIT:
            return False
    return True


class Addressing:
    """Addresses of one kernel's views; `wide` chooses the 64-bit index type.

    Examples
    --------
    >>> from polygrad.driver.ir import Instr, Store
    >>> from polygrad.driver.render.dialect import OPENCL
    >>> kernel = Kernel(2, 0, ("float32",), (View(0, "float32", (None, 1), window=(1,)),), (), (), ())
    >>> at = Addressing(kernel, Expressions(OPENCL), wide=False)
    >>> at.address(0, ("i", "j")), at.window(0, ("i", "j")), at.element(0, "p")
    ('v0_o + v0_s0 * i + j', '(j >= v0_lo1 && j < v0_hi1)', 'b0[p]')
    """

    def __init__(self, kernel: Kernel, expressions: Expressions, *, wide: bool) -> None:
        self.kernel = kernel
        self.expressions = expressions
        self.dialect = expressions.dialect
        self.index_dtype = "int64" if wide else "int32"
        self.index_type = self.dialect.types[self.index_dtype]
        self.written = {kernel.views[store.view].buffer for store in kernel.stores}
        if kernel.status >= 0:
            self.written.add(kernel.status)

    def arguments(self) -> tuple[Argument, ...]:
        """Return the arguments in order: buffers, ints, scalars."""
        kernel = self.kernel
        buffers = [Argument("buffer", n, dtype) for n, dtype in enumerate(kernel.buffers)]
        ints = [Argument("int", n, self.index_dtype) for n in range(len(kernel.int_names))]
        scalars = [Argument("scalar", n, argument_dtype(dtype)) for n, dtype in enumerate(kernel.scalars)]
        return (*buffers, *ints, *scalars)

    def parameters(self) -> list[str]:
        """Return the declarations that belong to `arguments`."""
        kernel, dialect = self.kernel, self.dialect
        buffers = [dialect.parameter(d, f"b{n}", const=n not in self.written) for n, d in enumerate(kernel.buffers)]
        ints = [f"const {self.index_type} {name.replace('.', '_')}" for name in kernel.int_names]
        scalars = [f"const {dialect.types[argument_dtype(d)]} c{n}" for n, d in enumerate(kernel.scalars)]
        return [*buffers, *ints, *scalars]

    def scalar(self, slot: int) -> str:
        """Return a launch scalar as a value of its dtype."""
        return f"(c{slot} != 0)" if self.kernel.scalars[slot] == "bool" else f"c{slot}"

    def term(self, v: int, axis: int, index: str) -> str:
        """Return what an axis adds to the address of view *v*; empty if nothing."""
        stride = self.kernel.views[v].strides[axis]
        if stride == 0 or index == "0":
            return ""
        return index if stride == 1 else f"v{v}_s{axis} * {index}"

    def address(self, v: int, indices: Sequence[str], gathered: Sequence[str] = ()) -> str:
        """Return the element number of view *v* at *indices*, one for each axis, and at checked gather indices."""
        terms = [f"v{v}_o", *(self.term(v, axis, index) for axis, index in enumerate(indices))]
        terms += [f"v{v}_gs{j} * {index}" for j, index in enumerate(gathered)]
        return " + ".join(t for t in terms if t)

    def window(self, v: int, indices: Sequence[str]) -> str:
        """Return the condition under which view *v* reads memory, or the empty string."""
        axes = self.kernel.views[v].window
        tests = [f"{indices[k]} >= v{v}_lo{k} && {indices[k]} < v{v}_hi{k}" for k in axes]
        return f"({' && '.join(tests)})" if tests else ""

    def buffer(self, v: int, width: int = 1) -> str:
        """Return the buffer of view *v* as a pointer to its elements, or to vectors of them."""
        view = self.kernel.views[v]
        name = f"b{view.buffer}"
        if width == 1 and self.dialect.types[view.dtype] == self.dialect.types[self.kernel.buffers[view.buffer]]:
            return name
        return self.dialect.pointer(name, view.dtype, width, const=view.buffer not in self.written)

    def element(self, v: int, address: str) -> str:
        """Return the element of view *v* at an address, as a value in a register."""
        return self.from_memory(f"{self.buffer(v)}[{address}]", self.kernel.views[v].dtype)

    def fill(self, v: int) -> str:
        """Return what view *v* gives outside of its window."""
        view = self.kernel.views[v]
        return self.dialect.literal(view.fill, view.dtype)

    def write(self, v: int, address: str, value: str) -> str:
        """Return the statement that stores *value* through view *v*."""
        return f"{self.buffer(v)}[{address}] = {self.to_memory(value, self.kernel.views[v].dtype)};"

    def from_memory(self, text: str, dtype: str) -> str:
        """Return an element as it lies in memory as a value in a register."""
        return f"({text} != 0)" if dtype == "bool" else text

    def to_memory(self, text: str, dtype: str) -> str:
        """Return a value in a register as it lies in memory."""
        return f"({self.dialect.types['bool']})({text})" if dtype == "bool" else text

    def gather(self, position: int, j: int, value: str, dtype: str) -> str:
        """Return gather index number *j* of the load at *position*, checked: wrapped, clamped, reported.

        The report is a side effect, so this is evaluated exactly where the element is wanted.
        """
        v = self.kernel.body[position].attr
        unsigned = dtype == "uint64"
        name = f"pg_gather_{'unsigned' if unsigned else 'signed'}_{self.index_dtype}"
        name += "_reported" if self.kernel.status >= 0 else ""
        self.expressions.helper(name, lambda: self._gather_helper(name, unsigned=unsigned))
        wide = "uint64" if unsigned else "int64"
        operands = [self.dialect.convert(value, wide), f"v{v}_gn{j}"]
        if self.kernel.status >= 0:
            operands += [f"b{self.kernel.status}", "(int)tag", str(position)]
        return f"{name}({', '.join(operands)})"

    def _gather_helper(self, name: str, *, unsigned: bool) -> str:
        types, index = self.dialect.types, self.index_type
        wide = types["uint64" if unsigned else "int64"]
        reported = self.kernel.status >= 0
        parameters = f"{wide} i, {index} size"
        parameters += f", {self.dialect.global_space}int* status, int tag, int position" if reported else ""
        wrap = f"if (i < 0) i += ({wide})size;" if not unsigned else ""
        bad = f"i >= ({wide})size" if unsigned else f"i < 0 || i >= ({wide})size"
        swap = self.dialect.compare_and_swap("status", "0", "tag")
        bits = types["uint64"]
        report = (
            f"        if ({swap} == 0) {{\n            status[1] = position;\n"
            f"            status[2] = (int)(unsigned int)(({bits})given & 0xffffffffu);\n"
            f"            status[3] = (int)(unsigned int)(({bits})given >> 32);\n        }}\n"
        )
        last = (
            f"i = size > 0 ? ({wide})size - 1 : 0;" if unsigned else f"i = i < 0 || size <= 0 ? 0 : ({wide})size - 1;"
        )
        return (
            f"{self.dialect.function} {index} {name}({parameters}) {{\n    const {wide} given = i; {wrap}\n"
            f"    if ({bad}) {{\n{report if reported else ''}        {last}\n    }}\n    return ({index})i;\n}}\n"
        ).replace(f"const {wide} given = i; ", f"const {wide} given = i; " if reported else "")
