"""The loops of a kernel in the CPU style whose vector axis is parallel: strips of columns.

Here: one layout of a function, in a whole and in a split form. Names in the text are those of `cpu_walks.py`.
Not here: the other layouts.
"""

from collections.abc import Sequence

from polygrad.driver.render.cpu_plan import LEAST_STRIP, Walk, strip_blocks
from polygrad.driver.render.cpu_vector import Scope
from polygrad.driver.render.cpu_walks import LIGHT, Layout


class Columns(Layout):
    """The vector axis is parallel: a work-item takes strips of columns and streams the reduced axes past them."""

    def body(self) -> list[str]:
        """Return the statements of the function."""
        n, width = f"n{self.axis}", self.width
        outer = self.product(self.outer)
        blocks = self._blocks(vector=width > 1)
        most, least = blocks * width, LEAST_STRIP * width if width > 1 else 8 * LEAST_STRIP
        # A split walk must be cut in the same strips by every stage, whatever its number of work-items.
        share = n if self.plan.split else f"({outer}) * {n} / items"
        strip = [
            f"{self.long} wide = ({share} + {width - 1}) / {width} * {width};",
            f"wide = wide < {least} ? {least} : wide > {most} ? {most} : wide;",
        ]
        divided = self.plan.split and bool(self.walks)
        total = f"({outer}) * strips" + (" * parts" if divided else "")
        return [
            *self.scratch_slots(),
            *strip,
            f"const {self.long} strips = ({n} + wide - 1) / wide;",
            *self.share(total),
            "for (; g < end; g++) {",
            f"const {self.long} task = {'g / parts, part = g - task * parts' if divided else 'g'};",
            f"const {self.long} o = task / strips, first = (task - o * strips) * wide;",
            f"const {self.long} stop = first + wide < {n} ? first + wide : {n};",
            *(self.part_range(self.product(range(self.kernel.parallel, self.kernel.rank))) if divided else []),
            *self.decode("o", self.outer),
            *(self._strip(vector=True) if width > 1 else []),
            *self._strip(vector=False),
            "}",
        ]

    def _blocks(self, *, vector: bool) -> int:
        """Return how many blocks a strip has at most: vectors, or the single columns beside them."""
        if vector:
            return strip_blocks(self.kernel)
        return self.width if self.width > 1 else 8 * strip_blocks(self.kernel)

    def _strip(self, *, vector: bool) -> list[str]:
        """Write all walks over the vectors of a strip, or over the columns that are left."""
        step = self.width if vector else 1
        if vector:
            head = [f"const {self.long} left = first, blocks = (stop - first) / {step};"]
        else:
            head = [
                f"const {self.long} left = first + (stop - first) / {self.width} * {self.width}, blocks = stop - left;"
            ]
            if self.width == 1:
                head = [f"const {self.long} left = first, blocks = stop - first;"]
        scope: Scope = {}
        arrays: set[int] = set()
        inside: list[str] = []
        for walk in self.walks:
            inside += self._section(self.row_values(walk), scope, arrays, walk, vector=vector)
            inside += self._walk(walk, scope, arrays, vector=vector)
        inside += self._section(self.row_values(None), scope, arrays, None, vector=vector)
        size = self._blocks(vector=vector)
        declared = [f"{self.partial_type(n, vector=vector)} m{n}[{size}];" for n in sorted(arrays)]
        return ["{", *head, "if (blocks > 0) {", *declared, *inside, "}", "}"]

    def _each_block(self, lines: list[str], *, vector: bool) -> list[str]:
        if not lines:
            return []
        step = self.width if vector else 1
        place = f"const {self.long} i{self.axis} = left + b * {step};"
        return [f"for ({self.long} b = 0; b < blocks; b++) {{", place, *lines, "}"]

    def _fetched(self, positions: Sequence[int], scope: Scope, arrays: set[int], *, vector: bool) -> list[str]:
        """Define, inside a loop over blocks, those of *positions* that earlier loops left in arrays."""
        out = []
        for n in positions:
            if n in arrays and (n, vector) not in scope:
                scope[n, vector] = f"{'y' if vector else 'x'}{n}"
                text = self.narrowed(n, f"m{n}[b]", vector=vector)
                out.append(f"const {self.values.type(n, vector=vector)} {scope[n, vector]} = {text};")
        return out

    def _section(
        self, positions: Sequence[int], scope: Scope, arrays: set[int], walk: Walk | None, *, vector: bool
    ) -> list[str]:
        """Define the ROW values that a walk needs (None: that the stores need) and do what comes with them.

        Those that vary along the strip are left in arrays for the walk; before a walk its accumulators start here too.
        """
        cell = f"o * n{self.axis} + i{self.axis}"
        still, moving = self.divided(positions)
        out: list[str] = []
        for n in still:
            if self.kernel.body[n].op == "reduce" and (n, False) not in scope:
                out += self.combine(n, f"o * n{self.axis} + first", vector=False)
                scope[n, False] = f"x{n}"
            else:
                out += self.values.define([n], scope, vector=False)
        inside = dict(scope)
        lines = self._fetched(moving, inside, arrays, vector=vector)
        for n in moving:
            if (n, vector) in inside or self.kernel.body[n].op == "const" or (vector and n in self.values.compared):
                continue
            if self.kernel.body[n].op == "reduce":
                lines += self.combine(n, cell, vector=vector)
                inside[n, vector] = f"{'y' if vector else 'x'}{n}"
            else:
                lines += self.values.define([n], inside, vector=vector)
            if walk is not None and n in self._carried():
                arrays.add(n)
                lines.append(f"m{n}[b] = {self.widened(n, inside[n, vector], vector=vector)};")
        if walk is not None:
            for n in walk.reduces:
                if self.values.varies[n]:
                    arrays.add(n)
                    lines.append(f"m{n}[b] = {self.start(n, vector=vector)};")
            return [*out, *self._each_block(lines, vector=vector)]
        for store in self.row_stores:
            lines += self.values.store(store.value, store.view, inside, vector=vector)
        block = self._each_block(lines, vector=vector)
        if block and self.plan.split and self.walks:
            block = ["if (part == 0) {", *block, "}"]
        return [*out, *block]

    def _carried(self) -> set[int]:
        """Return the ROW values that walks use, and the reductions: what must outlive the loop that defines it."""
        body = self.kernel.body
        used = {a for walk in self.walks for n in walk.values for a in body[n].args}
        used |= {body[n].args[0] for walk in self.walks for n in walk.reduces}
        return used | {n for n, instr in enumerate(body) if instr.op == "reduce"}

    def _walk(self, walk: Walk, scope: Scope, arrays: set[int], *, vector: bool) -> list[str]:
        still, moving = self.divided(walk.values)
        fixed = [n for n in walk.reduces if not self.values.varies[n]]
        here = dict(scope)
        before = self.values.define(still, here, vector=False)
        for n in fixed:
            operand = self.values.operand(self.kernel.body[n].args[0], here, before, vector=False)
            before.append(f"r{n} = {self.step(n, f'r{n}', operand, vector=False)};")
        out = [f"{self.partial_type(n)} r{n} = {self.start(n, vector=False)};" for n in fixed]
        several = 8 if not before and len(self.inner) == 1 and len(moving) <= LIGHT else 1

        def blocks(count: int) -> list[str]:
            inside = dict(here)
            lines = self._fetched(self.row_values(walk), inside, arrays, vector=vector)
            return self._each_block(
                [*lines, *self._at(walk, moving, fixed, inside, count, vector=vector)], vector=vector
            )

        out += self._reduced_loop([*before, *blocks(1)], blocks(several) if several > 1 else [], several)
        return [*out, *self._results(walk, fixed, scope, vector=vector)]

    def _at(
        self, walk: Walk, moving: Sequence[int], fixed: Sequence[int], scope: Scope, count: int, *, vector: bool
    ) -> list[str]:
        """Do a walk's work on one block for *count* indices at once; together they go into the accumulators."""
        reduces = [n for n in walk.reduces if n not in fixed]
        out = [f"{self.values.type(n, vector=vector)} a{n};" for n in reduces]
        for u in range(count):
            inside = dict(scope)
            lines = self.values.define(moving, inside, vector=vector)
            for n in reduces:
                operand = self.values.operand(self.kernel.body[n].args[0], inside, lines, vector=vector)
                text = self.element_step(n, f"a{n}", operand, vector=vector) if u else operand
                lines.append(f"a{n} = {text};")
            for s in walk.stores:
                lines += self.values.store(*self.kernel.stores[s], inside, vector=vector)
            place = [f"const {self.long} i{self.inner[0]} = w + {u};"] if count > 1 else []
            out += ["{", *place, *lines, "}"]
        for n in reduces:
            text = self.widened(n, f"a{n}", vector=vector)
            out.append(f"m{n}[b] = {self.step(n, f'm{n}[b]', text, vector=vector)};")
        return out

    def _reduced_loop(self, one: list[str], several: list[str], count: int) -> list[str]:
        """Write the loop over the reduced axes; *several* does *count* indices of the only one at once."""
        low, high = ("low", "high") if self.plan.split else ("0", self.product(self.inner))
        out = ["{", *self.decode(low, self.inner), f"{self.long} w = {low};"]
        if several:
            out += [f"for (; w + {count} <= {high}; w += {count}) {{", *several, "}", f"i{self.inner[0]} = w;"]
        return [*out, f"for (; w < {high}; w++) {{", *one, *self.advance(self.inner), "}", "}"]

    def _results(self, walk: Walk, fixed: Sequence[int], scope: Scope, *, vector: bool) -> list[str]:
        """Name the results of a walk, and leave them in scratch memory if it was one part of it."""
        out = []
        for n in fixed:
            out.append(f"const {self.values.type(n)} x{n} = r{n};")
            scope[n, False] = f"x{n}"
            if self.plan.split:
                out.append(self.leave(n, f"o * n{self.axis} + first", f"x{n}", vector=False))
        if self.plan.split:
            cell = f"o * n{self.axis} + i{self.axis}"
            moving = [n for n in walk.reduces if n not in fixed]
            lines = [self.leave(n, cell, self.narrowed(n, f"m{n}[b]", vector=vector), vector=vector) for n in moving]
            out += self._each_block(lines, vector=vector)
        return out
