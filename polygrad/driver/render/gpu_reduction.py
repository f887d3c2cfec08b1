"""The strategies for kernels with reduced axes: rows, columns, and either with the reduced axes split over groups.

Here: the body of one function: indices, passes over the reduced axes, combinations, stores.
Not here: which pass does what (`gpu_schedule.py`), how lanes combine (`gpu_tree.py`), the decisions (`gpu_choice.py`).

A group's work-items are `lanes` along the reduced axes times `slots` along the parallel ones. In the rows strategy
vectors lie along the innermost reduced axis and every slot is one row; in the columns strategy they lie along the
innermost parallel axis and a slot is a vector of rows. Beside ordinary stores a function may sum values over
consecutive rows (partial stores): then a group walks through the rows of one part and keeps the sums in registers, or
in memory if there are too many.

With `split` a function is one of several that run after each other: function number s first combines what the groups
of all functions before it left in scratch memory, then walks over its span of the reduced axes; the last one stores
what is left.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from polygrad.driver.ir import Store, placements
from polygrad.driver.render.addressing import Addressing
from polygrad.driver.render.expressions import Expressions
from polygrad.driver.render.gpu_choice import REGISTERS, Variant
from polygrad.driver.render.gpu_online import finished, meet, merge_online, rescaled
from polygrad.driver.render.gpu_schedule import PACKED, Pass, passes
from polygrad.driver.render.gpu_tree import Partial, Tree, pairwise
from polygrad.driver.render.gpu_values import Lines, Names, Point, Values, all_of, decompose

UNROLL = 4  # iterations of a loop of unknown length that are taken together
SCRATCH_BYTES = 8  # of a partial result in scratch memory, whatever its dtype


@dataclass
class Written:
    """A finished body."""

    out: Lines
    values: Values
    shared: list[str]
    has_work: bool  # along the reduced axes


class Reduction:
    """Writes one function of the rows or columns strategy."""

    def __init__(self, at: Addressing, write: Expressions, variant: Variant) -> None:
        self.at = at
        self.write = write
        self.dialect = at.dialect
        self.kernel = at.kernel
        self.variant = variant
        self.places = placements(self.kernel)
        self.out = Lines()
        self.rows = variant.strategy == "rows"
        axis = self.kernel.rank - 1 if self.rows else self.kernel.parallel - 1
        self.width = variant.width
        self.values = Values(at, write, self.out, axis, self.width, variant.vectors)
        self.along = self.width if self.rows else 1  # reduced points of a vector
        self.tree = Tree(at, self.out, variant.lanes, variant.slots, lanes_first=self.rows)
        self.stores = [self.kernel.stores[k] for k in variant.stores]
        self.partials = [s for s in self.stores if self.kernel.views[s.view].partial]
        elements = variant.chunks * (self.width if self.rows else 1)
        budget = REGISTERS if self.rows else REGISTERS // self.width
        self.passes = passes(self.kernel, self.stores, elements, budget, packs=self.width > 1)
        self.online: dict[int, int] = {}
        if not variant.chunks:
            self.passes, self.online = merge_online(self.kernel, self.passes)
        self.index = at.index_type
        self.live = ""

    def whole(self) -> Written:
        """Write the function that does everything."""
        self._ids()
        if self.partials:
            self._parts()
        else:
            group = f"({self.index}){self.dialect.group_id[0]}"
            self._row(f"{group} * {self.variant.slots} + slot", guarded=self.variant.slots > 1)
            self._passes(self.passes)
            self._row_stores()
        return self._written(has_work=True)

    def split(self, number: int) -> Written:
        """Write function *number* of those that share the work: one a level, of which the last stores ROW values."""
        self._ids()
        work, last = self.passes[number], number == len(self.passes) - 1
        has_work = bool(work.reduces or work.targets)
        group = f"({self.index}){self.dialect.group_id[0]}"
        if has_work:
            self.out.add(f"const {self.index} split = {group} % splits, begin = split * span;")
            self.out.add(f"const {self.index} end = begin + span < points ? begin + span : points;")
            group = f"{group} / splits"
        self._row(f"({group}) * {self.variant.slots} + slot", guarded=self.variant.slots > 1)
        self._gather_splits(number)
        if has_work:
            self._passes([work])
            self._leave(work)
        if last:
            self._row_stores("split == 0" if has_work else "")
        return self._written(has_work=has_work)

    def _written(self, *, has_work: bool) -> Written:
        return Written(self.out, self.values, self.tree.declarations(), has_work)

    def _ids(self) -> None:
        first, second = self.dialect.local_id[:2] if self.rows else (self.dialect.local_id[1], self.dialect.local_id[0])
        kernel = self.kernel
        self.out.add(f"const int lane = (int){first}, slot = (int){second};")
        rows = " * ".join(f"n{k}" for k in range(kernel.parallel)) or "1"
        points = " * ".join(f"n{k}" for k in range(kernel.parallel, kernel.rank))
        self.out.add(f"const {self.index} rows = {rows}, points = {points};")

    def _row(self, text: str, *, guarded: bool, limit: str = "rows") -> None:
        """Declare the parallel indices of row (or first row of a vector) number *text*; the row of a dead slot is 0."""
        scale = 1 if self.rows else self.width
        text = f"({text}) * {scale}" if scale > 1 else text
        if guarded and not (self.variant.exact and not self.rows):
            self.out.add(f"const {self.index} wanted = {text};", f"const bool live = wanted < {limit};")
            self.out.add(f"const {self.index} row = live ? wanted : 0;")
            self.live = "live"
        else:
            self.out.add(f"const {self.index} row = {text};")
            self.live = ""
        names = [f"p{k}" for k in range(self.kernel.parallel)]
        decompose(self.out, self.index, "row", names, [f"n{k}" for k in range(self.kernel.parallel)])
        indices = [*names, *["0"] * self.kernel.reduced]
        self.values.points = [Point(indices)]

    def _reduced_point(self, flat: str, inside: str) -> Point:
        """Declare the reduced indices of reduced point number *flat*."""
        parallel = self.kernel.parallel
        names = [f"r{k}" for k in range(parallel, self.kernel.rank)]
        decompose(self.out, self.index, flat, names, [f"n{k}" for k in range(parallel, self.kernel.rank)])
        return Point([*(f"p{k}" for k in range(parallel)), *names], inside)

    def _passes(self, todo: Sequence[Pass]) -> None:
        for work in todo:
            if not work.reduces and not work.targets:
                continue
            self._compute_rows([*(self._operand(n) for n in work.reduces), *work.targets])
            accumulators = self._accumulators(work)
            if self.variant.chunks:
                self._unrolled(work, accumulators)
            else:
                self._looped(work, accumulators)
            self._combine(accumulators)

    def _operand(self, n: int) -> int:
        """Return the value that a reduction takes in: of an online sum of exponentials, what its maximum takes in."""
        return self.kernel.body[self.online.get(n, n)].args[0]

    def _compute_rows(self, targets: Sequence[int]) -> None:
        """Compute, once a row, the ROW values that a pass needs."""
        needed = [n for n in self.values.closure(targets) if not self.places[n].full]
        self.values.compute(needed)

    def _accumulators(self, work: Pass) -> dict[int, Names]:
        """Declare a partial result for each reduction of a pass and each element of a vector."""
        out = {}
        for n in work.reduces:
            instr = self.kernel.body[n]
            one = self.rows and n in (*self.online, *self.online.values())  # for a whole vector
            count = 1 if one else self.width if self.rows else self.values.elements(n)
            names = tuple(f"a{n}_{e}" for e in range(count))
            start = self.write.identity(instr.attr, instr.dtype)
            self.out.add(f"{self.dialect.register(instr.dtype)} {', '.join(f'{a} = {start}' for a in names)};")
            out[n] = names
        return out

    def _unrolled(self, work: Pass, accumulators: dict[int, Names]) -> None:
        """Write a pass over the vectors of a lane, with the loads in front and what later passes need in arrays."""
        early = [n for n in work.early if n not in self.values.scope]
        if self.variant.chunks == 1:
            early = [n for n in early if n in work.held]
        passing = [n for n in early if n not in work.held]
        for n in (*work.held, *work.keep):
            if n not in self.values.scope:
                self._array(n)
        if not passing:
            self._in_chunks(work, accumulators, early)
            return
        self.out.open()
        for n in passing:
            self._array(n)
        self._in_chunks(work, accumulators, early)
        self.out.close()
        for n in passing:
            del self.values.scope[n]

    def _in_chunks(self, work: Pass, accumulators: dict[int, Names], early: Sequence[int]) -> None:
        """Write the loops of a pass: one that loads, if there are several vectors, and one that does the rest."""
        late = [*work.keep]
        if self.variant.chunks == 1:
            late += early
        elif early:
            self._load_chunks(early)
        inner = self._open_chunk()
        if self.variant.chunks == 1:
            inner.compute(early)
        self._visit(work, accumulators, inner)
        for n in late:
            self._save(inner, n)
        self.out.close()
        self._know(late)

    def _load_chunks(self, loads: Sequence[int]) -> None:
        """Load all vectors of a lane into arrays."""
        inner = self._open_chunk()
        inner.compute(loads)
        for n in loads:
            self._save(inner, n)
        self.out.close()
        self._know(loads)

    def _open_chunk(self) -> Values:
        chunks, lanes = self.variant.chunks, self.variant.lanes
        if chunks > 1:
            self.out.add(self.dialect.unroll)
            self.out.open(f"for (int c = 0; c < {chunks}; ++c)")
            flat = f"({self.index})(c * {lanes} + lane)"
        else:
            self.out.open()
            flat = f"({self.index})lane"
        self.out.add(f"const {self.index} r = {flat}{f' * {self.along}' if self.along > 1 else ''};")
        inside = "" if self.variant.exact else "inside"
        if inside:
            self.out.add("const bool inside = r < points;")
        return self.values.inner([self._reduced_point("r", inside)])

    def _looped(self, work: Pass, accumulators: dict[int, Names]) -> None:
        step = self.variant.lanes * self.along
        begin, end = ("begin + ", "end") if self.variant.splits else ("", "points")
        start = f"{begin}({self.index})lane{f' * {self.along}' if self.along > 1 else ''}"
        self.out.add(f"{self.dialect.unroll} {UNROLL}")
        self.out.open(f"for ({self.index} r = {start}; r < {end}; r += {step})")
        self._visit(work, accumulators, self.values.inner([self._reduced_point("r", "")]))
        self.out.close()

    def _visit(self, work: Pass, accumulators: dict[int, Names], inner: Values) -> None:
        """Write what a pass does at one vector of reduced points."""
        inside = inner.points[0].inside
        inner.compute([*(self._operand(n) for n in work.reduces), *work.targets, *work.keep])
        updates = []
        for n, names in accumulators.items():
            instr = self.kernel.body[n]
            if n in self.online.values():
                updates += self._meet(n, accumulators, inner)
            elif n not in self.online:
                for e, a in enumerate(names):
                    value = inner.name(self._operand(n), 0, e)
                    updates.append(f"{a} = {self.write.reduce_step(instr.attr, instr.dtype, a, value)};")
        self._if(inside, updates)
        for store in work.stores:
            inner.store(store.value, store.view, self.live)
        for store in work.partials:
            self._add_to_part(store, inner, inside)

    def _meet(self, m: int, accumulators: dict[int, Names], inner: Values) -> list[str]:
        """Return what a running maximum and its sums do at one vector of reduced points."""
        sums = [n for n in accumulators if self.online.get(n) == m]
        count = self.width if self.rows else len(accumulators[m])
        values = [inner.name(self._operand(m), 0, e) for e in range(count)]
        lines = []
        for e, greatest in enumerate(accumulators[m]):
            totals = [(n, accumulators[n][e]) for n in sums]
            lines += meet(self.write, self.kernel, (m, greatest), totals, values if self.rows else values[e : e + 1])
        return lines

    def _if(self, condition: str, lines: Sequence[str]) -> None:
        if not lines:
            return
        if condition:
            self.out.open(f"if ({condition})")
        self.out.add(*lines)
        if condition:
            self.out.close()

    def _packs(self, n: int) -> bool:
        """Whether two elements of a value that is kept share a register."""
        return self.kernel.body[n].dtype in PACKED and self.values.elements(n) > 1

    def _array(self, n: int) -> None:
        dtype, size = self.kernel.body[n].dtype, self.variant.chunks * self.values.elements(n)
        if self._packs(n):
            dtype, size = "uint32", size // 2
        self.out.add(f"{self.dialect.register(dtype)} k{n}[{size}];")

    def _kept_registers(self, n: int) -> Names:
        count = self.values.elements(n) // (2 if self._packs(n) else 1)
        c = "c" if self.variant.chunks > 1 else "0"
        return tuple(f"k{n}[{c} * {count} + {e}]" if count > 1 else f"k{n}[{c}]" for e in range(count))

    def _kept_names(self, n: int) -> Names:
        registers = self._kept_registers(n)
        if not self._packs(n):
            return registers
        dtype = self.kernel.body[n].dtype
        both = [(k, f"{k} >> 16") for k in registers]
        return tuple(self.dialect.convert(half, dtype) for halves in both for half in halves)

    def _save(self, inner: Values, n: int) -> None:
        names = [inner.name(n, 0, e) for e in range(self.values.elements(n))]
        if self._packs(n):
            wide = [self.dialect.convert(name, "uint32") for name in names]
            names = [f"{low} | ({high} << 16)" for low, high in zip(wide[::2], wide[1::2], strict=True)]
        self.out.add(" ".join(f"{k} = {x};" for k, x in zip(self._kept_registers(n), names, strict=True)))

    def _know(self, kept: Sequence[int]) -> None:
        for n in kept:
            self.values.scope[n] = [self._kept_names(n)]

    def _combine(self, accumulators: dict[int, Names]) -> None:
        """Combine the partial results of a pass over a vector's elements (rows) and over the lanes."""
        self.tree.combine([p for n in accumulators if n not in self.online for p in self._fold(n, accumulators[n])])
        sums = [n for n in accumulators if n in self.online]
        for n in sums:
            m = self.online[n]
            for e, a in enumerate(accumulators[n]):
                scaled = rescaled(self.write, self.kernel, n, a, accumulators[m][e], self.values.name(m, 0, e))
                self.out.add(f"{a} = {scaled};")
        self.tree.combine([p for n in sums for p in self._fold(n, accumulators[n])])
        if not self.variant.splits:
            self._finish_online(sums)

    def _fold(self, n: int, names: Names) -> list[Partial]:
        """Fold the elements of a vector, if they lie along the reduced axes; put the result in scope."""
        instr = self.kernel.body[n]
        if self.rows:
            names = (pairwise(self.write.reduce_step, instr.attr, instr.dtype, names),)
        results = tuple(f"x{n}_{e}" if len(names) > 1 else f"x{n}" for e in range(len(names)))
        declared = ", ".join(f"{x} = {text}" for x, text in zip(results, names, strict=True))
        self.out.add(f"{self.dialect.register(instr.dtype)} {declared};")
        self.values.scope[n] = [results]
        return [Partial(instr.attr, instr.dtype, name) for name in results]

    def _finish_online(self, sums: Sequence[int]) -> None:
        for n in sums:
            for e, name in enumerate(self.values.scope[n][0]):
                final = self.values.name(self.online[n], 0, e)
                self.out.add(f"{name} = {finished(self.write, self.kernel, n, name, final)};")

    def _row_stores(self, condition: str = "") -> None:
        """Store ROW values, one lane for each row."""
        stores = [s for s in self.stores if not self.places[s.value].full]
        if not stores:
            return
        self.values.compute(store.value for store in stores)
        lane = "lane == 0" if self.variant.lanes > 1 else ""
        for store in stores:
            self.values.store(store.value, store.view, all_of(self.live, lane, condition))

    def _parts(self) -> None:
        """Walk through the rows of one part; the sums over them live as long."""
        first, slots = self.partials[0].view, self.variant.slots
        group, index = f"({self.index}){self.dialect.group_id[0]}", self.index
        self.out.add(f"const {index} part = {group}, height = (rows + v{first}_parts - 1) / v{first}_parts;")
        self.out.add(f"const {index} top = part * height, bottom = top + height < rows ? top + height : rows;")
        for store in self.partials if self.variant.chunks else ():
            dtype = self.kernel.body[store.value].dtype
            size = self.variant.chunks * self.width
            self.out.add(f"{self.dialect.register(dtype)} q{store.view}[{size}];", self.dialect.unroll)
            self.out.add(f"for (int c = 0; c < {size}; ++c) q{store.view}[c] = {self.write.identity('sum', dtype)};")
        self._invariants()
        outer = self.values
        self.out.open(f"for ({index} base = top; base < bottom; base += {slots})")
        self.values = outer.inner([])
        self._row("base + slot" if slots > 1 else "base", guarded=slots > 1, limit="bottom")
        self._passes(self.passes)
        self._row_stores()
        self.values = outer
        if self.tree.used:
            # The next row writes to shared memory. (At the end of the loop, not at its head: PoCL 3.0 corrupts memory
            # if a loop with barriers does not end in one.)
            self.out.add(self.dialect.barrier)
        self.out.close()
        if self.variant.chunks:
            self._part_stores()

    def _invariants(self) -> None:
        """Load once what is the same in every row, if there is room."""
        if not self.variant.chunks:
            return
        kernel, room = self.kernel, REGISTERS // 2
        for n in sorted({n for work in self.passes for n in work.early}):
            view = kernel.views[kernel.body[n].attr]
            still = all(s == 0 for s in view.strides[: kernel.parallel]) and not any(
                k < kernel.parallel for k in view.window
            )
            cost = self.variant.chunks * self.values.elements(n)
            if not still or kernel.body[n].guard >= 0 or cost > room:
                continue
            room -= cost
            self._array(n)
            self.values.points = [Point(["0"] * kernel.rank)]
            self._load_chunks([n])

    def _add_to_part(self, store: Store, inner: Values, inside: str) -> None:
        """Add a value to the sums of its part, in registers or, the walk being a loop, in memory."""
        dtype, v = self.kernel.body[store.value].dtype, store.view
        lines, names = [], [inner.name(store.value, 0, e) for e in range(self.width)]
        if self.variant.chunks:
            c = f"c * {self.width}" if self.variant.chunks > 1 else "0"
            for e, name in enumerate(names):
                spot = f"q{v}[{c} + {e}]"
                lines.append(f"{spot} = {self.write.reduce_step('sum', dtype, spot, name)};")
            self._if(all_of(inside, self.live), lines)
            return
        for e, name in enumerate(names):
            address = self.at.address(v, [inner.index(inner.points[0], k, e) for k in range(self.kernel.rank)])
            place = f"{self.at.buffer(v)}[{address} + part * v{v}_ps]"
            total = self.write.reduce_step("sum", dtype, place, name)
            lines.append(f"{place} = base == top ? {name} : {total};")
        self._if(inside, lines)

    def _part_stores(self) -> None:
        """Combine the sums of the slots and store them."""
        slots, size = self.variant.slots, self.variant.chunks * self.width
        if slots > 1:
            tree = Tree(self.at, self.out, slots, self.variant.lanes, lanes_first=False, names=("slot", "lane"))
            tree.arrays = self.tree.arrays
            partials = []
            for store in self.partials:
                dtype = self.kernel.body[store.value].dtype
                partials += [Partial("sum", dtype, f"q{store.view}[{k}]") for k in range(size)]
            tree.combine(partials)
        self.values.points = [Point(["0"] * self.kernel.rank)]
        for c in range(self.variant.chunks):
            self.out.open()
            self.out.add(f"const {self.index} r = ({self.index})({c * self.variant.lanes} + lane) * {self.width};")
            point = self._reduced_point("r", "" if self.variant.exact else "r < points")
            point = Point(["0" if name.startswith("p") else name for name in point.indices], point.inside)
            condition = all_of(point.inside, "slot == 0" if slots > 1 else "")
            for store in self.partials:
                names = [f"q{store.view}[{c * self.width + e}]" for e in range(self.width)]
                self.values.store_names(names, store.view, point, condition, f" + part * v{store.view}_ps")
            self.out.close()

    def _numbered(self) -> list[tuple[int, int]]:
        """Return the reductions of all passes with the function that leaves them in scratch memory."""
        return [(n, number) for number, work in enumerate(self.passes) for n in work.reduces]

    def _scratch(self, n: int) -> str:
        """Return the scratch memory of a reduction as a pointer."""
        region = [m for m, _ in self._numbered()].index(n)
        start = f"scratch + {region * SCRATCH_BYTES} * rows * splits" if region else "scratch"
        return self.dialect.pointer(f"({start})", self.kernel.body[n].dtype, const=False)

    def _scratch_place(self, split: str, e: int) -> str:
        if self.rows:
            return f"row * splits + {split}"
        return f"{split} * rows + row" + (f" + {e}" if e else "")

    def _gather_splits(self, number: int) -> None:
        """Combine what the functions before this one left of every reduction."""
        ready = [n for n, by in self._numbered() if by < number]
        self._gather_ready([n for n in ready if n not in self.online])
        sums = [n for n in ready if n in self.online]
        self._gather_ready(sums)
        self._finish_online(sums)

    def _gather_ready(self, ready: Sequence[int]) -> None:
        todo = []
        for n in ready:
            instr = self.kernel.body[n]
            register = self.dialect.register(instr.dtype)
            count = self.values.elements(n)
            names = tuple(f"x{n}_{e}" if count > 1 else f"x{n}" for e in range(count))
            start = self.write.identity(instr.attr, instr.dtype)
            self.out.add(f"{register} {', '.join(f'{x} = {start}' for x in names)};")
            self.values.scope[n] = [names]
            todo += [Partial(instr.attr, instr.dtype, name) for name in names]
        if not ready:
            return
        self.out.open(f"for ({self.index} s = lane; s < splits; s += {self.variant.lanes})")
        for n in ready:
            instr = self.kernel.body[n]
            for e, name in enumerate(self.values.scope[n][0]):
                place = self._scratch_place("s", e)
                read = self.at.from_memory(f"{self._scratch(n)}[{place}]", instr.dtype)
                if n in self.online:
                    m = self.online[n]
                    greatest, final = f"{self._scratch(m)}[{place}]", self.values.name(m, 0, e)
                    read = rescaled(self.write, self.kernel, n, read, greatest, final)
                self.out.add(f"{name} = {self.write.reduce_step(instr.attr, instr.dtype, name, read)};")
        self.out.close()
        self.tree.combine(todo)

    def _leave(self, work: Pass) -> None:
        """Leave this group's partial results in scratch memory."""
        lines = []
        for n in work.reduces:
            dtype = self.kernel.body[n].dtype
            for e, name in enumerate(self.values.scope[n][0]):
                place = f"{self._scratch(n)}[{self._scratch_place('split', e)}]"
                lines.append(f"{place} = {self.at.to_memory(name, dtype)};")
        lane = "lane == 0" if self.variant.lanes > 1 else ""
        self._if(all_of(self.live, lane), lines)
