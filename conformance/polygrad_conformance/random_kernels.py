"""Random launches of random kernels, with the right answers and how far from them a driver may be.

Here: `random_case`, which grows a kernel instruction by instruction beside its values.
Not here: what is right (the oracle), how bounds grow (`error_model.py`), how results are compared (`case.py`).

A case exercises several reductions after each other, row and column layouts, broadcast, negative and overlapping
strides, windows whose outside lies beyond the buffer, gathers with bad indices, guards over poisoned memory, partial
sums, stores in place. Every buffer that is written is filled with 0x5A bytes around and between the stored elements.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from polygrad.driver import oracle
from polygrad.driver.ir import (
    ARITHMETIC,
    DTYPES,
    ITEMSIZE,
    REDUCTIONS,
    SCALAR_OPS,
    STORAGE,
    Instr,
    Kernel,
    Store,
    View,
    kind,
    placements,
)
from polygrad.driver.launch import decode
from polygrad.driver.regions import injective
from polygrad.driver.verify import verify, verify_launch
from polygrad_conformance import error_model
from polygrad_conformance.case import Case, Mismatch, compare
from polygrad_conformance.draws import DOMAINS, Draws, Placed
from polygrad_conformance.error_model import IllConditioned

__all__ = ["Case", "Mismatch", "compare", "random_case"]

Array = np.ndarray[Any, Any]

GUARD = 0x5A
EXTENTS = (1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 31, 33, 64, 65, 127, 257)
SPACES = (
    *((0, 0), (1, 0), (1, 0), (2, 0), (3, 0), (4, 0)),
    *((0, 1), (1, 1), (1, 1), (1, 1), (2, 1), (2, 1), (3, 1), (1, 2), (0, 2), (2, 2), (1, 3)),
)
MOST_ELEMENTS = 3000
WEIGHTS = {"float32": 6.0, "float64": 4.0, "int32": 2.0, "int64": 2.0}  # how often an op is drawn with a dtype


def random_case(
    seed: int,
    *,
    dtypes: Iterable[str] = DTYPES,
    scalar_ops: Iterable[str] = tuple(SCALAR_OPS),
    reductions: Iterable[str] = REDUCTIONS,
) -> Case:
    """Return the case of number *seed*, of the dtypes, scalar ops and reductions that a device declares.

    Seeds 0 to ``len(scalar_ops) - 1`` make each scalar op the subject of one case, on floats if it takes them; so do
    later runs of that length, every second one on any dtype.

    Examples
    --------
    >>> case = random_case(3, dtypes=["float32", "int32", "bool"])
    >>> set(case.kernel.buffers) <= {"float32", "int32", "bool"}
    True
    """
    offered = tuple(d for d in DTYPES if d in set(dtypes))
    names = tuple(op for op in SCALAR_OPS if op in set(scalar_ops))
    kinds = tuple(r for r in REDUCTIONS if r in set(reductions))
    for attempt in range(100):
        rng = np.random.default_rng((seed, attempt))
        try:
            return _Builder(rng, seed, offered, names, kinds).case(names[seed % len(names)])
        except IllConditioned:
            continue
    raise RuntimeError(f"seed {seed}: 100 draws in a row were ill conditioned; the generator is at fault")


@dataclass
class _Builder(Draws):
    """A kernel that grows beside its values, bounds and flags."""

    seed: int
    dtypes: tuple[str, ...]
    ops: tuple[str, ...]
    reductions: tuple[str, ...]
    parallel: int = 0
    reduced: int = 0
    extents: tuple[int, ...] = ()
    views: list[Placed] = field(default_factory=list)
    buffers: list[Array] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    scalars: list[tuple[str, Any]] = field(default_factory=list)
    body: list[Instr] = field(default_factory=list)
    values: list[Array] = field(default_factory=list)
    errors: list[Array] = field(default_factory=list)
    free: list[bool] = field(default_factory=list)
    hidden: set[int] = field(default_factory=set)  # values that only their `where` may use
    status: int = -1
    tag: int = 0
    has_bad: bool = False

    def buffer(self, dtype: str, contents: Array) -> int:
        self.buffers.append(contents)
        self.names.append(dtype)
        return len(self.buffers) - 1

    def kernel(self, stores: Sequence[Store] = ()) -> Kernel:
        return Kernel(
            self.parallel, self.reduced, tuple(self.names), tuple(v.view for v in self.views),
            tuple(d for d, _ in self.scalars), tuple(self.body), tuple(stores), self.status,
        )  # fmt: skip

    def ints(self) -> tuple[int, ...]:
        tag = (self.tag,) if self.status >= 0 else ()
        return (*self.extents, *(n for v in self.views for n in v.ints()), *tag)

    # ---- instructions -----------------------------------------------------------------------------------

    def append(self, instr: Instr) -> int:
        """Add *instr* and return its position, or raise IllConditioned and leave everything as it was."""
        args, errors = [self.values[a] for a in instr.args], [self.errors[a] for a in instr.args]
        free = [self.free[a] for a in instr.args]
        if instr.op in ("load", "const", "scalar", "iota"):
            self.body.append(instr)
            before = [b.copy() if n == self.status else b for n, b in enumerate(self.buffers)]
            value = oracle.evaluate(self.kernel(), before, self.ints(), [s for _, s in self.scalars])[-1]
            error = np.zeros(value.shape)
        else:
            error_model.check_sign(instr, args, free)
            if instr.op == "reduce":
                value = oracle.reduce(instr, args[0], self.extents, self.parallel)
            else:
                value = oracle.compute(instr, args)
            error = error_model.bound(instr, args, errors, value, self.extents[self.parallel :])
            lost = 1.0 if instr.op == "reduce" and self.chance(0.5) else 0.25
            if kind(instr.dtype) == "float" and (~np.isfinite(value.astype(np.float64))).mean() > lost:
                raise IllConditioned
            self.body.append(instr)
        self.values.append(value)
        self.errors.append(np.broadcast_to(error, value.shape))
        self.free.append(error_model.frees_sign(instr, free))
        return len(self.body) - 1

    def attempt(self, make: Callable[[], int]) -> int | None:
        """Return what *make* added, or None and no trace of it if it was ill conditioned."""
        length = len(self.body)
        try:
            return make()
        except IllConditioned:
            for items in (self.body, self.values, self.errors, self.free):
                del items[length:]
            self.hidden = {h for h in self.hidden if h < length}
            return None

    def load(
        self, dtype: str, *, full: bool | None = None, domain: tuple[float, float] | None = None, gathers: int = 0,
        guard: int = -1, windows: bool = True, awkward: float = 0.3,
    ) -> int:  # fmt: skip
        """Add a load of fresh data. *full*: along reduced axes too (True), not (False), or either (None)."""
        rank = len(self.extents)
        last = rank if full or (full is None and self.chance(0.7)) else self.parallel
        constant = [k for k in range(rank) if k >= last or self.chance(0.2)]
        if full and self.reduced and all(k in constant for k in range(self.parallel, rank)):
            constant.remove(int(self.rng.integers(self.parallel, rank)))
        still = [k for k in range(rank) if k not in constant and self.chance(0.06)]  # dynamic strides that are 0
        window: dict[int, tuple[int, int]] = {}
        for axis in range(last):
            if windows and guard < 0 and self.chance(0.12):
                window[axis] = self.window(self.extents[axis])
        sizes = [int(self.pick((1, 2, 3, 5, 8, 17))) for _ in range(gathers)]
        indices = [self.gather_index(n) for n in sizes]
        axes = []
        for axis in range(rank):
            lo, hi = window.get(axis, (0, self.extents[axis]))
            lo, hi = max(lo, 0), min(hi, self.extents[axis])
            if axis not in constant and axis not in still:
                axes.append((axis, lo, max(hi - lo, 1)))
        axes += [(rank + j, 0, n) for j, n in enumerate(sizes)]
        by_key, offset, size = self.layout(axes, overlap=True)
        strides = [by_key.get(k, 0) for k in range(rank)]
        contents = self.data(dtype, size + (self.below(4) if self.chance(0.5) else 0), domain, awkward)
        fill = self.literal(dtype, domain) if window else 0
        view = View(
            self.buffer(dtype, contents),
            dtype,
            self.structural(strides, constant),
            tuple(sorted(window)),
            gathers,
            fill,
        )
        bound = tuple((by_key[rank + j], n) for j, n in enumerate(sizes))
        self.views.append(Placed(view, offset, tuple(strides), tuple(window[k] for k in sorted(window)), bound))
        return self.append(Instr("load", dtype, tuple(indices), len(self.views) - 1, guard))

    def window(self, extent: int) -> tuple[int, int]:
        """Draw a window of an axis: mostly some of it, at times all and more, or nothing."""
        lo = self.below(min(3, extent))
        hi = extent - self.below(min(3, extent - lo))
        return self.pick(((lo - 2, hi + 2), (lo, lo), (hi, lo))) if self.chance(0.1) else (lo, hi)

    def gather_index(self, size: int) -> int:
        """Add integer values that are indices of an axis of *size*, perhaps one bad one, and return their position."""
        if self.status < 0:
            self.status = self.buffer("int32", np.zeros(4, np.int32))
            self.tag = int(self.pick((1, 7, -3, 2**31 - 1)))
        dtypes = [d for d in self.dtypes if kind(d) == "int" and d in ARITHMETIC]
        dtype = self.pick(dtypes)
        position = self.load(dtype, windows=False)
        buffer = self.views[-1].view.buffer
        low = 0 if dtype[0] == "u" else -size
        indices = self.rng.integers(low, size, len(self.buffers[buffer])).astype(dtype)
        if not self.has_bad and self.chance(0.4):
            # One bad value in one load only: which of several is reported first is a driver's own business.
            self.has_bad = True
            bad = self.pick((size, size + 3, 100) if dtype[0] == "u" else (size, -size - 1, 100, -100))
            indices[self.rng.random(len(indices)) < 0.15] = bad
        self.buffers[buffer][:] = indices
        self.values[position] = oracle.evaluate(
            self.kernel(), self.scratch(), self.ints(), [s for _, s in self.scalars])[position]  # fmt: skip
        self.hidden.add(position)  # a second gather by the same index would report a bad one too
        return position

    def scratch(self) -> list[Array]:
        return [b.copy() if n == self.status else b for n, b in enumerate(self.buffers)]

    def leaf(self, dtype: str, domain: tuple[float, float] | None) -> int:
        """Add a value of *dtype* (arithmetic) that is made of nothing."""
        roll = self.rng.random()
        loads = sum(i.op == "load" for i in self.body)
        if roll < 0.7 and loads < 7:
            gathers = int(self.pick((1, 1, 2))) if self.chance(0.3) and self.integers() else 0
            source = dtype
            if dtype == "float32" and domain is None and self.chance(0.3):
                source = self.pick([d for d in ("float16", "bfloat16", "float32") if d in self.dtypes])
            position = self.load(source, domain=domain, gathers=gathers)
            return position if source == dtype else self.append(Instr("cast", dtype, (position,)))
        if roll < 0.8 and self.extents and domain is None and dtype != "bool":
            kept = [d for d in ("int32", "int64") if d in self.dtypes]
            if kept and max(self.extents) < 120:
                integer = dtype if dtype in kept else self.pick(kept)
                position = self.append(Instr("iota", integer, (), self.below(len(self.extents))))
                return position if integer == dtype else self.append(Instr("cast", dtype, (position,)))
        literal = self.literal(dtype, domain)
        if self.chance(0.5):
            return self.append(Instr("const", dtype, (), literal))
        self.scalars.append((dtype, literal))
        return self.append(Instr("scalar", dtype, (), len(self.scalars) - 1))

    def literal(self, dtype: str, domain: tuple[float, float] | None) -> Any:
        """Draw a Python scalar that may be part of a cache key: neither -0.0 nor any NaN but one."""
        value: Any = self.data(dtype, 1, domain)[0].item()
        return math.nan if value != value else abs(value) if value == 0 else value  # noqa: PLR0124  NaN

    def integers(self) -> bool:
        return any(kind(d) == "int" for d in self.dtypes) and "int32" in self.dtypes

    def operand(self, dtype: str, domain: tuple[float, float] | None = None, fresh: float = 0.15) -> int:
        """Return a value of *dtype*, preferably a recent one that lies in the domain."""
        fits = [n for n, i in enumerate(self.body) if i.dtype == dtype and n not in self.hidden]
        if domain is not None:
            fits = [n for n in fits if self.lies(n, domain)]
        if not fits or self.chance(fresh):
            return self.leaf(dtype, domain)
        return fits[-1 - min(int(self.rng.exponential(1.5)), len(fits) - 1)]

    def lies(self, position: int, domain: tuple[float, float]) -> bool:
        value = self.values[position]
        if value.dtype.kind != "f":
            return True
        inside = (value >= domain[0]) & (value <= domain[1])
        return bool(inside.all())

    def apply(self, name: str, fresh: float = 0.2, *, floats: bool = False) -> int:
        """Add scalar op *name*, with the chance *fresh* that an operand is loaded for it; *floats* if it can."""
        op = SCALAR_OPS[name]
        choices = [d for d in self.dtypes if d in ARITHMETIC and kind(d) in op.kinds.split()]
        if not choices:
            raise IllConditioned
        if floats:
            choices = [d for d in choices if kind(d) == "float"] or choices
        weights = [WEIGHTS.get(d, 1.0) for d in choices]
        dtype = str(self.rng.choice(choices, p=np.array(weights) / sum(weights)))
        domains: Sequence[Any] = DOMAINS.get(name, ()) if kind(dtype) == "float" and not self.chance(0.08) else ()
        domains = domains or (None,) * op.arity
        args = [
            self.load(dtype, full=bool(self.reduced), domain=domains[k], windows=False, awkward=1.0 if floats else 0.6)
            if self.chance(fresh)
            else self.operand(dtype, domains[k])
            for k in range(op.arity)
        ]
        if name.endswith("shift") and self.chance(0.7):
            args[1] = self.shift_amount(dtype)
        if self.chance(0.15):
            args.reverse()
        return self.append(Instr(name, "bool" if op.compares else dtype, tuple(args)))

    def shift_amount(self, dtype: str) -> int:
        position = self.load(dtype, windows=False)
        buffer = self.buffers[self.views[-1].view.buffer]
        width = 8 * ITEMSIZE[dtype]
        buffer[:] = self.rng.integers(0 if dtype[0] == "u" else -2, width + 3, len(buffer)).astype(dtype)
        self.values[position] = oracle.evaluate(
            self.kernel(), self.scratch(), self.ints(), [s for _, s in self.scalars])[position]  # fmt: skip
        return position

    # ---- patterns ---------------------------------------------------------------------------------------

    def cast(self) -> int:
        """Add a cast, to an integer if some float has values for it, which random floats seldom have."""
        floats = [n for n, i in enumerate(self.body) if i.dtype in ("float32", "float64") and n not in self.hidden]
        integers = [d for d in self.dtypes if kind(d) == "int"]
        if floats and integers and self.chance(0.6):
            for _ in range(5):
                source, dtype = self.pick(floats), self.pick(integers)
                made = self.attempt(lambda s=source, d=dtype: self.append(Instr("cast", d, (s,))))  # type: ignore[misc]
                if made is not None:
                    return made
        source = self.pick([n for n in range(len(self.body)) if n not in self.hidden])
        dtype = self.pick([d for d in self.dtypes if d != self.body[source].dtype] or self.dtypes)
        if self.body[source].dtype == "float64" and dtype in STORAGE:
            dtype = "float32"  # one rounding or two: the rare ties between are tested by name, not at random
        return self.append(Instr("cast", dtype, (source,)))

    def bitcast(self) -> int:
        source = self.pick([n for n in range(len(self.body)) if n not in self.hidden])
        width = ITEMSIZE[self.body[source].dtype]
        dtypes = [d for d in self.dtypes if ITEMSIZE[d] == width and d != "bool" and kind(d) != "float"]
        if not dtypes or self.body[source].dtype == "bool":
            raise IllConditioned
        return self.append(Instr("bitcast", self.pick(dtypes), (source,)))

    def where(self) -> int:
        condition = self.operand("bool")
        dtype = self.pick(self.dtypes)
        source = self.load if dtype in STORAGE else self.operand
        arms = (source(dtype), source(dtype))
        return self.append(Instr("where", dtype, (condition, *arms)))

    def guarded(self) -> int:
        """Add a load that an index comparison guards, its masked elements poisoned, and the `where` that hides them."""
        integer = self.pick([d for d in ("int32", "int64") if d in self.dtypes])
        axis = len(self.extents) - 1
        index = self.append(Instr("iota", integer, (), axis))
        if axis and self.chance(0.6):
            other = self.append(Instr("iota", integer, (), self.below(axis)))
        else:
            limit = self.below(self.extents[axis] + 1)
            other = self.append(Instr("const", integer, (), limit))
        condition = self.append(Instr(self.pick(("less", "less_equal")), "bool", (index, other)))
        if self.chance(0.3):
            condition = self.append(Instr("bitwise_invert", "bool", (condition,)))
        dtype = self.pick([d for d in self.dtypes if d in ARITHMETIC and d != "bool"])
        loaded = self.load(dtype, guard=condition, domain=(-4, 4))
        view = self.views[-1]
        bound = decode(self.kernel(), self.ints()).views[-1]
        address, shown = np.broadcast_arrays(oracle.addresses(bound, self.extents), self.values[condition])
        unseen = np.setdiff1d(address[~shown], address[shown])
        self.buffers[view.view.buffer][unseen] = np.nan if kind(dtype) == "float" else 77
        self.values[loaded] = np.broadcast_to(self.buffers[view.view.buffer][address], address.shape)
        self.errors[loaded] = np.zeros(address.shape)
        self.hidden.add(loaded)
        literal: Any = {"int": -1 if dtype[0] == "i" else 3, "float": self.pick((0.0, -1.5, -float("inf")))}[
            kind(dtype)
        ]
        other = self.append(Instr("const", dtype, (), literal))
        return self.append(Instr("where", dtype, (condition, loaded, other)))

    def full_value(self, dtypes: Sequence[str], fresh: float = 0.25, awkward: float = 0.2) -> int:
        """Return a FULL value of one of *dtypes*."""
        where = placements(self.kernel())
        fits = [n for n, i in enumerate(self.body) if where[n].full and i.dtype in dtypes and n not in self.hidden]
        if fits and not self.chance(fresh):
            return fits[-1 - min(int(self.rng.exponential(1.5)), len(fits) - 1)]
        return self.load(self.pick(dtypes), full=True, awkward=awkward)

    def reduce(self) -> int:
        allowed = [d for d in self.dtypes if d in ARITHMETIC]
        how = self.pick(self.reductions)
        if how in ("sum", "prod"):
            allowed = [d for d in allowed if d != "bool"]
        elif self.chance(0.6):
            allowed = [d for d in allowed if kind(d) == "float"]  # where NaN may be
        source = self.full_value(allowed, 0.4, 0.8)
        position = self.append(Instr("reduce", self.body[source].dtype, (source,), how))
        if self.chance(0.3) and how == "sum":  # a sibling
            sibling = self.pick([r for r in self.reductions if r != "prod"])
            self.attempt(lambda: self.append(Instr("reduce", self.body[source].dtype, (source,), sibling)))
        return position

    def softmax(self) -> int:
        x = self.full_value([d for d in ("float32", "float64") if d in self.dtypes])
        dtype = self.body[x].dtype
        greatest = self.append(Instr("reduce", dtype, (x,), "max"))
        shifted = self.append(Instr("subtract", dtype, (x, greatest)))
        grown = self.append(Instr("exp", dtype, (shifted,)))
        total = self.append(Instr("reduce", dtype, (grown,), "sum"))
        if self.chance(0.3):
            total = self.append(Instr("log", dtype, (total,)))
            return self.append(Instr("subtract", dtype, (shifted, total)))
        return self.append(Instr("divide", dtype, (grown, total)))

    def normalised(self) -> int:
        x = self.full_value([d for d in ("float32", "float64") if d in self.dtypes])
        dtype = self.body[x].dtype
        squares = self.append(Instr("multiply", dtype, (x, x)))
        total = self.append(Instr("reduce", dtype, (squares,), "sum"))
        count = self.append(Instr("const", dtype, (), float(np.prod(self.extents[self.parallel :]))))
        small = self.append(Instr("const", dtype, (), 1e-5))
        mean = self.append(Instr("add", dtype, (self.append(Instr("divide", dtype, (total, count))), small)))
        root = self.append(Instr("sqrt", dtype, (mean,)))
        return self.append(Instr("divide", dtype, (x, root)))

    # ---- the whole --------------------------------------------------------------------------------------

    def case(self, subject: str) -> Case:
        """Grow a kernel around scalar op *subject* and finish it."""
        self.parallel, self.reduced = self.pick(SPACES)
        while True:
            self.extents = tuple(int(self.pick(EXTENTS)) for _ in range(self.parallel + self.reduced))
            count = np.prod(self.extents)
            if count <= MOST_ELEMENTS and (count >= 12 or not self.extents or self.chance(0.1)):
                break
        self.leaf(self.pick([d for d in ("float32", "float64") if d in self.dtypes]), None)
        steps = self.steps()
        for k in self.rng.permutation(len(steps)):
            self.attempt(steps[int(k)])
        floats = self.seed // len(self.ops) % 2 == 0
        for _ in range(20):
            if self.attempt(lambda: self.apply(subject, 0.7, floats=floats)) is not None:
                break
        else:
            raise IllConditioned
        return self.finish(len(self.body) - 1)

    def steps(self) -> list[Callable[[], int]]:
        """Draw what the kernel does beside its subject."""
        chains = [self.reduce, self.reduce]
        if "exp" in self.ops and "log" in self.ops:
            chains += [self.softmax]
        chains += [self.normalised]
        steps: list[Callable[[], int]] = [
            lambda: self.apply(self.pick(self.ops)) for _ in range(int(self.rng.integers(1, 8)))
        ]
        if self.reduced:
            steps += [self.pick(chains) for _ in range(int(self.rng.integers(1, 4)))]
        if self.extents and any(d in self.dtypes for d in ("int32", "int64")) and self.chance(0.25):
            steps.append(self.guarded)
        steps += [step for step, p in ((self.cast, 0.6), (self.bitcast, 0.15), (self.where, 0.3)) if self.chance(p)]
        return steps

    def finish(self, subject: int) -> Case:
        used = {a for i in self.body for a in (*i.args, i.guard)}
        ends = [n for n in range(len(self.body)) if n not in used and n != subject and n not in self.hidden]
        levels = placements(self.kernel())
        # Ends that come after reductions first: they carry the longest chains.
        ends.sort(key=lambda n: (-levels[n].level, self.rng.random()))
        chosen = [subject, *ends[: int(self.rng.integers(0, 5))]]
        visible = [n for n in range(len(self.body)) if n not in self.hidden]
        if self.chance(0.3):
            chosen.append(int(self.pick(visible)))
        stores: list[Store] = []
        written: set[int] = set()
        for value in dict.fromkeys(chosen):
            stores.append(self.store(value, written))
        self.prune(stores)
        return self.freeze(stores)

    def store(self, value: int, written: set[int]) -> Store:
        """Choose where *value* is stored: in place, as partial sums, beside another store, in a buffer of its own."""
        dtype, full = self.body[value].dtype, placements(self.kernel())[value].full
        if dtype == "float32" and self.chance(0.2):
            narrow = [d for d in STORAGE if d in self.dtypes]
            made = self.attempt(lambda: self.append(Instr("cast", self.pick(narrow), (value,)))) if narrow else None
            value, dtype = (value, dtype) if made is None else (made, self.body[made].dtype)
        if not self.reduced and self.chance(0.3):
            target = self.in_place(dtype, written)
            if target is not None:
                return Store(value, target)
        rank = len(self.extents)
        partial = full and self.chance(0.35) and dtype in ARITHMETIC and dtype != "bool" and self.summable(value)
        kept = range(self.parallel if partial else 0, rank if full else self.parallel)
        axes = [(k, 0, self.extents[k]) for k in kept]
        parts: tuple[int, ...] = ()
        if partial:
            rows = int(np.prod(self.extents[: self.parallel]))
            counts = [p for p in range(1, min(rows, 6) + 1) if (p - 1) * -(-rows // p) < rows]
            parts = (int(self.pick(counts)),)
            axes.insert(0, (rank, 0, parts[0]))
        by_key, offset, size = self.layout(axes)
        strides = tuple(by_key.get(k, 0) for k in range(rank))
        if partial:
            parts = (*parts, by_key[rank])
        shared = [b for b in sorted(written) if self.names[b] == dtype and self.chance(0.4)]
        if shared:
            buffer = shared[0]
            offset += len(self.buffers[buffer])
            self.buffers[buffer] = np.concatenate([self.buffers[buffer], self.blank(dtype, size + self.below(4))])
        else:
            ahead = int(self.rng.integers(1, 9))
            offset += ahead
            buffer = self.buffer(dtype, self.blank(dtype, ahead + size + int(self.rng.integers(1, 9))))
            written.add(buffer)
        view = View(
            buffer, dtype, self.structural(strides, [k for k in range(rank) if k not in kept]), partial=bool(partial)
        )
        self.views.append(Placed(view, offset, strides, parts=parts))
        return Store(value, len(self.views) - 1)

    def summable(self, value: int) -> bool:
        a = self.values[value]
        return a.dtype.kind != "f" or bool(np.isfinite(a).all())

    @staticmethod
    def blank(dtype: str, count: int) -> Array:
        return np.full(count * ITEMSIZE[dtype], GUARD, np.uint8).view(oracle.compute_dtype(dtype))

    def in_place(self, dtype: str, written: set[int]) -> int | None:
        """Return a view through which a load and a store may go to the same addresses, if there is one."""
        for number, placed in enumerate(self.views):
            view = placed.view
            loads = [i for i in self.body if i.op == "load" and self.views[i.attr].view.buffer == view.buffer]
            if view.dtype != dtype or view.window or view.gathers or len(loads) != 1 or view.buffer in written:
                continue
            moving = [(abs(s), n) for s, n in zip(placed.strides, self.extents, strict=True) if n > 1]
            if injective(moving):
                written.add(view.buffer)
                if self.chance(0.5):
                    return number
                self.views.append(Placed(view, placed.offset, placed.strides))
                return len(self.views) - 1
        return None

    def prune(self, stores: list[Store]) -> None:
        """Drop what no store needs, so that no bad index is in dead code, and number the rest anew."""
        live, queue = set(), [s.value for s in stores]
        while queue:
            n = queue.pop()
            if n not in live:
                live.add(n)
                queue += [a for a in (*self.body[n].args, self.body[n].guard) if a >= 0]
        kept = sorted(live)
        new = {n: k for k, n in enumerate(kept)} | {-1: -1}
        views = sorted({self.body[n].attr for n in kept if self.body[n].op == "load"} | {s.view for s in stores})
        slots = sorted({self.body[n].attr for n in kept if self.body[n].op == "scalar"})
        if not any(self.body[n].op == "load" and self.body[n].args for n in kept):
            self.status = -1
        buffers = sorted({self.views[v].view.buffer for v in views} | ({self.status} - {-1}))

        def renumbered(n: int) -> Instr:
            instr = self.body[n]
            attr = instr.attr
            if instr.op in ("load", "scalar"):
                attr = (views if instr.op == "load" else slots).index(attr)
            return instr._replace(args=tuple(new[a] for a in instr.args), attr=attr, guard=new[instr.guard])

        self.body = [renumbered(n) for n in kept]
        self.values, self.errors = [self.values[n] for n in kept], [self.errors[n] for n in kept]
        self.views = [self.views[v] for v in views]
        for placed in self.views:
            placed.view = placed.view._replace(buffer=buffers.index(placed.view.buffer))
        stores[:] = [Store(new[s.value], views.index(s.view)) for s in stores]
        self.scalars = [self.scalars[s] for s in slots]
        self.status = buffers.index(self.status) if self.status >= 0 else -1
        self.buffers, self.names = [self.buffers[b] for b in buffers], [self.names[b] for b in buffers]

    def freeze(self, stores: Sequence[Store]) -> Case:
        kernel, ints, scalars = self.kernel(stores), self.ints(), tuple(s for _, s in self.scalars)
        verify(kernel)
        verify_launch(kernel, [len(b) for b in self.buffers], ints, scalars)
        if self.status >= 0 and self.chance(0.1):
            self.buffers[self.status][:] = (9, 8, 7, 6)  # reported before: must stay
        expected = [b.copy() for b in self.buffers]
        oracle.run(kernel, expected, ints, scalars)
        launch = decode(kernel, ints)
        allowed = [np.zeros(len(b)) for b in self.buffers]
        for store in stores:
            value, full = self.values[store.value], placements(kernel)[store.value].full
            error = self.errors[store.value]
            if kernel.views[store.view].partial:
                error = error_model.partial(kernel.parallel, self.extents, launch.views[store.view].parts, value, error)
                address, _ = oracle.written(kernel, launch, store.view, value, full)
            else:
                address, error = oracle.written(kernel, launch, store.view, error, full)
            allowed[kernel.views[store.view].buffer][address] = error
        outputs = sorted({kernel.views[s.view].buffer for s in stores} | ({self.status} - {-1}))
        return Case(
            self.seed, kernel, tuple(self.buffers), ints, scalars, tuple(outputs), tuple(expected), tuple(allowed)
        )
