"""The loops of a kernel in the CPU style: ranges of elements, rows.

Here: what all layouts of a function share, and two of them, the one with reductions in a whole and in a split form.
Not here: strips of columns (`cpu_columns.py`), which layout is chosen (`cpu_plan.py`), the statements inside
(`cpu_vector.py`).

Names in the text, beside those of `addressing.py`: ``i0 i1 ..`` the index along each axis, ``item`` and ``items``
this work-item and how many there are, ``[g, end)`` its range of work, ``r3`` and ``a3_0 a3_1 ..`` the accumulators of
reduction 3 (an element, vectors), ``d3`` the one that takes in the vectors block by block, ``m3`` an array over the
blocks of a strip, ``k3`` a kept row, ``s3`` the partial results of reduction 3 in scratch memory, ``h2 p2 f2`` rows a
part, part and "first row of its part" of partial view 2.
"""

from collections.abc import Callable, Sequence

from polygrad.driver.ir import ITEMSIZE, Kernel, placements
from polygrad.driver.render import cpu_lanes
from polygrad.driver.render.addressing import Argument
from polygrad.driver.render.cpu_plan import Plan, Walk, kept_values, needed, walks
from polygrad.driver.render.cpu_vector import DEAR, Scope, Values

ALIGN = 64  # elements; ranges of work start at multiples of it, so that two work-items share no cache line
UNROLLED = 4  # vectors that the compiler is to take at once, so that their arithmetic overlaps (measured: a tenth)
LIGHT = 4  # instructions; the loop of a walk with no more is unrolled, so that accumulators do not wait for each other

Work = Callable[[bool, int], list[str]]


class Layout:
    """What the layouts share; `body` gives the statements of the function."""

    def __init__(self, kernel: Kernel, chosen: Plan, values: Values, walk: Walk | None, *, last: bool) -> None:
        self.kernel = kernel
        self.plan = chosen
        self.values = values
        self.walk = walk
        self.last = last
        self.axis = chosen.axis
        self.width = chosen.width
        self.dialect = values.dialect
        self.long = values.dialect.types["int64"]
        self.lanes = self.width == 1 and not self.dialect.vectors
        self.parallel = range(kernel.parallel)
        self.outer = [k for k in range(kernel.parallel) if k != chosen.axis]
        self.inner = [k for k in range(kernel.parallel, kernel.rank) if k != chosen.axis]
        self.walks = [walk] if walk is not None else [] if chosen.split else list(walks(kernel))
        # A value that stands still along the vector axis is computed once for a whole strip: not worth a kept row.
        self.kept = [n for n in kept_values(kernel) if values.varies[n]] if chosen.kept else []
        self.row_stores = [s for s in kernel.stores if not placements(kernel)[s.value].full] if last else []

    def body(self) -> list[str]:
        """Return the statements of the function."""
        raise NotImplementedError

    def extra_arguments(self) -> tuple[Argument, ...]:
        """Return the arguments beyond those of `Addressing`."""
        if self.plan.split:
            return (Argument("extra", 0, "int64"), Argument("scratch", 0, "uint8"))
        places = kept_values(self.kernel)
        return tuple(Argument("local", places.index(n), self.kernel.body[n].dtype) for n in self.kept)

    def extra_parameters(self) -> list[str]:
        """Return the declarations that belong to `extra_arguments`."""
        if self.plan.split:
            return [f"const {self.long} parts", f"{self.dialect.global_space}{self.dialect.types['uint8']}* scratch"]
        return [f"{self.dialect.local_space}{self.dialect.types[self.kernel.body[p].dtype]}* k{p}" for p in self.kept]

    def product(self, axes: Sequence[int]) -> str:
        """Return the number of indices of some axes."""
        return " * ".join(f"n{k}" for k in axes) or "1"

    def decode(self, flat: str, axes: Sequence[int]) -> list[str]:
        """Declare the indices of *axes* for a number in C order over them."""
        out = []
        for position, k in enumerate(axes):
            below = axes[position + 1 :]
            text = flat if not below else f"{flat} / ({self.product(below)})"
            out.append(f"{self.long} i{k} = {text if position == 0 else f'({text}) % n{k}'};")
        return out

    def advance(self, axes: Sequence[int]) -> list[str]:
        """Step the indices of *axes* to the next in C order."""
        text = ""
        for position, k in enumerate(axes):
            text = f"if (++i{k} == n{k}) {{ i{k} = 0; {text} }}" if position else f"++i{k};"
        return [text] if text else []

    def share(self, total: str, *, align: int = 1) -> list[str]:
        """Declare the range [g, end) of this work-item in *total* pieces of work."""
        chunk = "(total + items - 1) / items"
        if align > 1:
            chunk = f"({chunk} + {align - 1}) / {align} * {align}"
        return [
            f"const {self.long} total = {total}, chunk = {chunk};",
            f"{self.long} g = item * chunk;",
            f"const {self.long} end = g + chunk < total ? g + chunk : total;",
        ]

    def part_range(self, total: str) -> list[str]:
        """Declare the range [low, high) of part number `part` of a walk over *total* indices."""
        return [
            f"const {self.long} length = {total}, span = ((length + parts - 1) / parts + 15) / 16 * 16;",
            f"const {self.long} low = part * span < length ? part * span : length;",
            f"const {self.long} high = low + span < length ? low + span : length;",
        ]

    def divided(self, positions: Sequence[int]) -> tuple[list[int], list[int]]:
        """Divide values into those that do not vary along the vector axis and those that do."""
        varies = self.values.varies
        return [n for n in positions if not varies[n]], [n for n in positions if varies[n]]

    def strip(self, start: str, stop: str, work: Work, unroll: int = 1) -> list[str]:
        """Write the loop along the vector axis: several vectors at once, then one by one, then single elements."""
        i, width = f"i{self.axis}", self.width
        out = ["{", f"{self.long} {i} = {start};"]
        if width > 1 and unroll > 1:
            out.append(f"while ({i} + {width * unroll} <= {stop}) {{")
            for u in range(unroll):
                out += ["{", *work(True, u), "}", f"{i} += {width};"]
            out.append("}")
        if width > 1:
            out += [f"{self.dialect.unroll} {UNROLLED}"] * (unroll == 1)
            out += [f"for (; {i} + {width} <= {stop}; {i} += {width}) {{", *work(True, 0), "}"]
        return [*out, f"for (; {i} < {stop}; {i}++) {{", *work(False, 0), "}", "}"]

    def row_values(self, walk: Walk | None) -> tuple[int, ...]:
        """Return the ROW values that a walk uses, or for None those that the stores of ROW values need."""
        if walk is None:
            return needed(self.kernel, [store.value for store in self.row_stores], full=False)
        roots = [self.kernel.body[n].args[0] for n in walk.reduces]
        roots += [a for n in walk.values for a in self.kernel.body[n].args]
        return needed(self.kernel, roots, full=False)

    def scratch_slots(self) -> list[str]:
        """Declare a pointer to the partial results of each reduction: parts x cells of each, the wide dtypes first."""
        if not self.plan.split:
            return []
        out, before = [f"const {self.long} cells = {self.product(self.parallel)};"], 0
        reduces = [n for n, instr in enumerate(self.kernel.body) if instr.op == "reduce"]
        for n in sorted(reduces, key=lambda n: -ITEMSIZE[self.kernel.body[n].dtype]):
            dtype = self.kernel.body[n].dtype
            kind = f"{self.dialect.global_space}{self.dialect.types[dtype]}*"
            out.append(f"{kind} s{n} = ({kind})(scratch + parts * cells * {before});")
            before += ITEMSIZE[dtype]
        return out

    def combine(self, n: int, cell: str, *, vector: bool) -> list[str]:
        """Define reduction *n* from its partial results at *cell*."""
        instr, total = self.kernel.body[n], f"t{n}"
        where = f"q * cells + ({cell})"
        text = self.values.loaded(f"s{n} + {where}", instr.dtype) if vector else f"s{n}[{where}]"
        text = self.widened(n, self.values.from_memory(text, instr.dtype, vector=vector), vector=vector)
        return [
            f"{self.partial_type(n, vector=vector)} {total} = {self.start(n, vector=vector)};",
            f"for ({self.long} q = 0; q < parts; q++) {total} = {self.step(n, total, text, vector=vector)};",
            f"const {self.values.type(n, vector=vector)} {'y' if vector else 'x'}{n} = "
            f"{self.narrowed(n, total, vector=vector)};",
        ]

    def leave(self, n: int, cell: str, text: str, *, vector: bool) -> str:
        """Write the result of this part of reduction *n* to scratch memory."""
        dtype = self.kernel.body[n].dtype
        if vector:
            return self.values.stored(self.values.to_memory(text, dtype), f"s{n} + part * cells + ({cell})", dtype)
        return f"s{n}[part * cells + ({cell})] = {self.values.at.to_memory(text, dtype)};"

    def partial_dtype(self, n: int) -> str:
        """Return the dtype of an accumulator of value *n*, or of the value itself if it is no reduction."""
        return cpu_lanes.partial_dtype(self.kernel.body[n], self.dialect)

    def start(self, n: int, *, vector: bool) -> str:
        """Return the neutral element of reduction *n*."""
        return self.values.write.identity(self.kernel.body[n].attr, self.partial_dtype(n), self.width if vector else 1)

    def step(self, n: int, a: str, b: str, *, vector: bool) -> str:
        """Return two partial results of reduction *n* combined."""
        width = self.width if vector else 1
        return self.values.write.reduce_step(self.kernel.body[n].attr, self.partial_dtype(n), a, b, width)

    def element_step(self, n: int, a: str, b: str, *, vector: bool) -> str:
        """Return two operands of reduction *n* combined in their own dtype."""
        width = self.width if vector else 1
        return self.values.write.reduce_step(self.kernel.body[n].attr, self.kernel.body[n].dtype, a, b, width)

    def widened(self, n: int, text: str, *, vector: bool) -> str:
        """Return an operand of reduction *n* as its accumulator takes it; C widens single elements itself."""
        return self._converted(text, self.kernel.body[n].dtype, self.partial_dtype(n)) if vector else text

    def narrowed(self, n: int, text: str, *, vector: bool) -> str:
        """Return an accumulator as value *n*."""
        return self._converted(text, self.partial_dtype(n), self.kernel.body[n].dtype) if vector else text

    def _converted(self, text: str, source: str, target: str) -> str:
        """Return a vector in another dtype.

        It goes by halves: where registers have 64 bytes, PoCL 3.0 (LLVM 14) cannot select the conversion of so many.
        """
        if source == target:
            return text
        name = f"pg_{source}_to_{target}x{self.width}"
        return f"{self.values.write.helper(name, lambda: self._conversion(name, source, target))}({text})"

    def _conversion(self, name: str, source: str, target: str) -> str:
        types = [self.dialect.register(dtype, self.width) for dtype in (source, target)]
        halves = ", ".join(self.dialect.convert(f"a.{half}", target, self.width // 2) for half in ("lo", "hi"))
        return f"{self.dialect.function} {types[1]} {name}({types[0]} a) {{ return ({types[1]})({halves}); }}\n"

    def partial_type(self, n: int, *, vector: bool = False) -> str:
        """Return the type of an accumulator of value *n*, or of the value itself if it is no reduction."""
        return self.dialect.register(self.partial_dtype(n), self.width if vector else 1)


class Elements(Layout):
    """No walk over reduced axes: ranges of elements in C order, the vector axis innermost."""

    def body(self) -> list[str]:
        """Return the statements of the function."""
        still, moving = self.divided(self.row_values(None))
        scope: Scope = {}
        before = self.values.define(still, scope, vector=False)
        if self.axis < 0:
            return ["if (item == 0) {", *before, *self._stores(scope, vector=False), "}"]

        def work(vector: bool, _: int) -> list[str]:
            inside = dict(scope)
            return [*self.values.define(moving, inside, vector=vector), *self._stores(inside, vector=vector)]

        n = f"n{self.axis}"
        return [
            *self.share(self.product(self.parallel), align=ALIGN),
            "if (g < end) {",
            f"const {self.long} o = g / {n};",
            f"{self.long} j = g - o * {n};",
            *self.decode("o", self.outer),
            "while (g < end) {",
            f"const {self.long} stop = {n} < j + (end - g) ? {n} : j + (end - g);",
            "g += stop - j;",
            *before,
            *self.strip("j", "stop", work),
            "j = 0;",
            *self.advance(self.outer),
            "}",
            "}",
        ]

    def _stores(self, scope: Scope, *, vector: bool) -> list[str]:
        return [
            s for store in self.row_stores for s in self.values.store(store.value, store.view, scope, vector=vector)
        ]


class Rows(Layout):
    """The vector axis is reduced: a work-item takes a range of rows (or of parts of rows) and walks along each."""

    def body(self) -> list[str]:
        """Return the statements of the function."""
        rows = self.product(self.parallel)
        if self.plan.split:
            return self._split(rows)
        partial = [v for v, view in enumerate(self.kernel.views) if view.partial]
        head = self._parts(rows, partial) if partial else [*self.share(rows), f"{self.long} row = g;"]
        last = "rows" if partial else "end"
        return [
            *head,
            *self.decode("row", self.parallel),
            f"for (; row < {last}; row++) {{",
            *(f"const {self.long} p{v} = row / h{v}; const int f{v} = row == p{v} * h{v};" for v in partial),
            *self._row(),
            *self.advance(self.parallel),
            "}",
        ]

    def _parts(self, rows: str, partial: Sequence[int]) -> list[str]:
        """Share out parts of rows, one work-item a part; views divided differently leave it all to one."""
        out = [f"const {self.long} every = {rows};"]
        out += [f"const {self.long} h{v} = (every + v{v}_parts - 1) / v{v}_parts;" for v in partial]
        first = f"h{partial[0]}"
        equal = " && ".join(f"h{v} == {first}" for v in partial[1:])
        out.append(f"const {self.long} unit = {f'{equal} ? {first} : every' if equal else first};")
        return [
            *out,
            *self.share("(every + unit - 1) / unit"),
            f"{self.long} row = g * unit;",
            f"const {self.long} rows = end * unit < every ? end * unit : every;",
        ]

    def _split(self, rows: str) -> list[str]:
        total = f"({rows}) * parts" if self.walks else rows
        row = "g / parts" if self.walks else "g"
        return [
            *self.scratch_slots(),
            *self.share(total),
            "for (; g < end; g++) {",
            f"const {self.long} row = {row}, part = g - row * {'parts' if self.walks else '1'};",
            *(self.part_range(self.product(range(self.kernel.parallel, self.kernel.rank))) if self.walks else []),
            *self.decode("row", self.parallel),
            *self._row(),
            "}",
        ]

    def _row(self) -> list[str]:
        scope: Scope = {}
        out: list[str] = []
        done: set[int] = set()
        for walk in self.walks:
            out += self._define_rows(self.row_values(walk), scope)
            out += self._walk(walk, scope, done)
        out += self._define_rows(self.row_values(None), scope)
        stores = [
            s for store in self.row_stores for s in self.values.store(store.value, store.view, scope, vector=False)
        ]
        if stores and self.plan.split and self.walks:
            stores = ["if (part == 0) {", *stores, "}"]
        return [*out, *stores]

    def _define_rows(self, positions: Sequence[int], scope: Scope) -> list[str]:
        out: list[str] = []
        for n in positions:
            if self.kernel.body[n].op == "reduce" and (n, False) not in scope:
                out += self.combine(n, "row", vector=False)
                scope[n, False] = f"x{n}"
            else:
                out += self.values.define([n], scope, vector=False)
        return out

    def _walk(self, walk: Walk, scope: Scope, done: set[int]) -> list[str]:
        given = frozenset(done & set(self.kept))
        roots = [self.kernel.body[n].args[0] for n in walk.reduces] + [self.kernel.stores[s].value for s in walk.stores]
        positions = needed(self.kernel, roots, full=True, given=given)
        still, moving = self.divided(positions)
        unroll = self._unroll(walk, moving)
        out, ends = self._accumulators(walk, unroll)
        self.blocked = [n for n in walk.reduces if self._in_blocks(n)]  # for `strip`, in the loops written next

        def inside(outer: Scope) -> Work:
            def work(vector: bool, u: int) -> list[str]:
                return self._at(walk, moving, given, dict(outer), vector=vector, u=u)

            return work

        # What does not vary along the vector axis is defined once for each index of the other reduced axes.
        here = dict(scope)
        before = self.values.define(still, here, vector=False)
        if self.inner and self.blocked and unroll > 1:
            out += ["{", f"{self.long} room = {self._block(self.blocked)};"]
        out += self._loops(before, inside(here), unroll)
        out += ["}"] * (bool(self.inner and self.blocked) and unroll > 1)
        done |= set(positions)
        for n in walk.reduces:
            scope[n, False] = f"x{n}"
        return [*out, *ends]

    def _element_start(self, n: int) -> str:
        """Return the neutral element of reduction *n* as a vector of its own dtype."""
        instr = self.kernel.body[n]
        return self.values.write.identity(instr.attr, instr.dtype, self.width)

    def _unroll(self, walk: Walk, moving: Sequence[int]) -> int:
        work = [self.kernel.body[n] for n in moving]
        light = len(work) <= LIGHT and not any(instr.op in DEAR for instr in work)
        return 4 if light and walk.reduces and self.width > 1 else 1

    def _accumulators(self, walk: Walk, unroll: int) -> tuple[list[str], list[str]]:
        """Return the declarations before a walk and the statements after it that give its reductions."""
        before, after = [], []
        for n in walk.reduces:
            instr, kind = self.kernel.body[n], self.values.type(n)
            result = f"r{n}"
            if self.lanes:
                before += cpu_lanes.declared(n, self.partial_type(n), self.start(n, vector=False))
                after += cpu_lanes.folded(n, instr, self.values.write)
                result = f"a{n}[0]"
            else:
                before.append(f"{self.partial_type(n)} r{n} = {self.start(n, vector=False)};")
            if self.width > 1:
                wide, start = self.values.type(n, vector=True), self._element_start(n)
                before += [f"{wide} a{n}_{u} = {start};" for u in range(unroll)]
                root = f"a{n}_0"
                if self._in_blocks(n):
                    root = f"d{n}"
                    before.append(f"{self.partial_type(n, vector=True)} {root} = {self.start(n, vector=True)};")
                    after.append(self._taken_in(n, unroll))
                else:
                    folded = [self.element_step(n, root, f"a{n}_{u}", vector=True) for u in range(1, unroll)]
                    after += [f"{root} = {text};" for text in folded]
                dtype = self.partial_dtype(n)
                result = self.step(n, result, self.values.fold(root, instr.attr, dtype, after), vector=False)
            after.append(f"const {kind} x{n} = {result};")
            if self.plan.split:
                after.append(self.leave(n, "row", f"x{n}", vector=False))
        return before, after

    def partial_dtype(self, n: int) -> str:
        """Return the dtype of an accumulator; a short row of vectors needs none but its own."""
        short = self.width > 1 and not self.plan.blocks
        return self.kernel.body[n].dtype if short else super().partial_dtype(n)

    def _in_blocks(self, n: int) -> bool:
        """Whether the vectors of reduction *n* are added up block by block."""
        return self.plan.blocks and cpu_lanes.in_blocks(self.kernel.body[n])

    def _taken_in(self, n: int, unroll: int) -> str:
        """Return the statement that adds the vectors of a block to the accumulator of reduction *n*."""
        names = [f"a{n}_{u}" for u in range(unroll)]
        while len(names) > 1:  # in pairs; `unroll` is a power of two
            names = [self.element_step(n, a, b, vector=True) for a, b in zip(names[::2], names[1::2], strict=True)]
        return f"d{n} = {self.step(n, f'd{n}', self.widened(n, names[0], vector=True), vector=True)};"

    def _block(self, reduces: Sequence[int]) -> int:
        """Return how many vectors an accumulator takes in before its block ends."""
        wide = all(self.partial_dtype(n) != self.kernel.body[n].dtype for n in reduces if self._in_blocks(n))
        return cpu_lanes.BLOCK if wide else cpu_lanes.LONG_BLOCK

    def _at(
        self, walk: Walk, moving: Sequence[int], given: frozenset[int], scope: Scope, *, vector: bool, u: int
    ) -> list[str]:
        """Do a walk's work at one place: define, accumulate, keep, store."""
        values, out = self.values, []
        flat = f"w * n{self.axis} + i{self.axis}" if self.inner else f"i{self.axis}"
        for n in moving:
            if n in given:
                dtype = self.kernel.body[n].dtype
                text = values.loaded(f"k{n} + ({flat})", dtype, local=True) if vector else f"k{n}[{flat}]"
                scope[n, vector] = f"{'y' if vector else 'x'}{n}"
                out.append(f"const {values.type(n, vector=vector)} {scope[n, vector]} = {text};")
                continue
            out += values.define([n], scope, vector=vector)
            if n in self.kept:
                name = scope[n, vector]
                dtype = self.kernel.body[n].dtype
                kept = (
                    values.stored(name, f"k{n} + ({flat})", dtype, local=True) if vector else f"k{n}[{flat}] = {name};"
                )
                out.append(kept)
        for n in walk.reduces:
            name = f"a{n}_{u}" if vector else f"a{n}[lane]" if self.lanes else f"r{n}"
            operand = values.operand(self.kernel.body[n].args[0], scope, out, vector=vector)
            step = self.element_step if vector else self.step
            out.append(f"{name} = {step(n, name, operand, vector=vector)};")
        for s in walk.stores:
            value, v = self.kernel.stores[s]
            where, first = (f" + p{v} * v{v}_ps", f"f{v}") if self.kernel.views[v].partial else ("", "")
            out += values.store(value, v, scope, vector=vector, where=where, before=first)
        return out

    def strip(self, start: str, stop: str, work: Work, unroll: int = 1) -> list[str]:
        if self.lanes:
            return cpu_lanes.strip(f"i{self.axis}", self.long, start, stop, work(False, 0))
        if not self.blocked:
            return super().strip(start, stop, work, unroll)
        return self._strip_in_blocks(start, stop, work, unroll)

    def _strip_in_blocks(self, start: str, stop: str, work: Work, unroll: int) -> list[str]:
        """Write the loop along the vector axis; what is less than a block at its end is one too.

        A light loop is written once for whole blocks and once for the rest of a strip, which may be all there is of a
        short one: then several strips make a block, `room` being how many more vectors an accumulator may take in.
        """
        i, width, several = f"i{self.axis}", self.width, self.width * unroll
        length = self._block(self.blocked)
        taken = [self._taken_in(n, unroll) for n in self.blocked]
        taken += [f"a{n}_{u} = {self._element_start(n)};" for n in self.blocked for u in range(unroll)]
        if unroll == 1:
            return [
                "{", f"{self.long} {i} = {start};",
                f"while ({i} + {width} <= {stop}) {{",
                f"const {self.long} until = {i} + {width * length} < {stop} ? {i} + {width * length} : {stop};",
                f"{self.dialect.unroll} {UNROLLED}",
                f"for (; {i} + {width} <= until; {i} += {width}) {{", *work(True, 0), "}",
                *taken, "}",
                f"for (; {i} < {stop}; {i}++) {{", *work(False, 0), "}", "}",
            ]  # fmt: skip
        inside = [line for u in range(unroll) for line in ("{", *work(True, u), "}", f"{i} += {width};")]
        out = [
            "{", f"{self.long} whole = {start};",
            f"for (; whole + {several * length} <= {stop}; whole += {several * length}) {{",
            f"{self.long} {i} = whole;",
            f"for (int step = 0; step < {length}; step++) {{", *inside, "}",
            *taken, "}",
            *super().strip("whole", stop, work, unroll),
        ]  # fmt: skip
        if self.inner:
            out += [f"room -= 1 + ({stop} - whole) / {several};", "if (room <= 0) {", *taken, f"room = {length};", "}"]
        return [*out, "}"]

    def _loops(self, before: list[str], work: Work, unroll: int) -> list[str]:
        """Write the walk over the reduced axes, of the whole row or of [low, high)."""
        n = f"n{self.axis}"
        if not self.inner:
            start, stop = ("low", "high") if self.plan.split else ("0", n)
            return ["{", *before, *self.strip(start, stop, work, unroll), "}"]
        if not self.plan.split:
            return [
                "{",
                *(f"{self.long} i{k} = 0;" for k in self.inner),
                f"for ({self.long} w = 0; w < {self.product(self.inner)}; w++) {{",
                *before,
                *self.strip("0", n, work, unroll),
                *self.advance(self.inner),
                "}",
                "}",
            ]
        return [
            "{",
            f"{self.long} at = low, w = at / {n}, j = at - w * {n};",
            *self.decode("w", self.inner),
            "while (at < high) {",
            f"const {self.long} stop = {n} < j + (high - at) ? {n} : j + (high - at);",
            "at += stop - j;",
            *before,
            *self.strip("j", "stop", work, unroll),
            "j = 0;",
            *self.advance(self.inner),
            "}",
            "}",
        ]
