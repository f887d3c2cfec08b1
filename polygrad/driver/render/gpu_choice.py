"""Which form a kernel takes on a GPU: decided from its structure and the ints of a launch, kept in buckets.

Here: `GpuLimits`, `Choice`, `choose_gpu`.
Not here: text. A `Choice` is part of the program's key: powers of two and yes-or-no answers, no exact size, so that one
program serves many launches.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from polygrad.driver.ir import ITEMSIZE, Kernel, placements
from polygrad.driver.render.addressing import fits_int32, named_ints, varying, view_strides
from polygrad.driver.render.collapse import extent_products
from polygrad.driver.render.gpu_online import merge_online
from polygrad.driver.render.gpu_schedule import passes, words_between_passes

Strategy = Literal["elementwise", "tiles", "rows", "columns"]
VECTOR_BYTES = 16
VECTORS_PAY = 1 << 15  # elements: below, a launch is all latency, and one form serves every alignment
FLAT_THREADS = 128
COLUMN_THREADS = 256
MOST_LANES = 512  # of a row whose values are kept: with more, each has too few registers for them
REGISTERS = 64  # 32-bit registers a work-item may spend on kept values and sums
WARP = 32
EVEN_CHUNKS = 16  # the most vectors a lane for which every number, not only powers of two, is a form of its own
TILE = 32  # rows and columns of a tile of two parallel axes
TILE_BYTES = 24 * 1024  # of shared memory for all tiles of a group
WARP_ROW = 1024  # elements of a row that one warp takes
STREAMED = 16 * 1024  # elements of a row from which a loop that reads it once is better than keeping it in registers
LANE_ELEMENTS = 16  # elements of a longer row that a lane takes, while a group is not full


@dataclass(frozen=True)
class GpuLimits:
    """What the choice depends on of a device."""

    multiprocessors: int = 64
    threads: int = 1024  # of a group
    shared_bytes: int = 32 * 1024


@dataclass(frozen=True)
class Variant:
    """The form of one kernel function, or of one for each level if the reduced axes are split over groups.

    Attributes
    ----------
    strategy : "elementwise", "tiles", "rows" or "columns"
        Whether vectors lie along parallel axes without any reduction (in tiles of two of them, or not), along the
        reduced
        axes, or across them.
    stores : tuple of int
        The positions of the kernel's stores that this function performs.
    width, vectors
        Elements of a vector; for each view whether it is accessed by vectors.
    lanes, slots
        Work-items of a group along the reduced and along the parallel axes.
    chunks
        Vectors that a lane (elementwise: a work-item) takes; 0 is a loop of unknown length.
    exact
        Every vector of every lane exists; no bounds need be tested.
    splits
        The reduced axes are divided over groups; one launch a level.
    tiled, across
        For tiles: the loads that run along another parallel axis than the stores, and that axis.
    """

    strategy: Strategy
    stores: tuple[int, ...]
    width: int
    vectors: tuple[bool, ...]
    lanes: int
    slots: int
    chunks: int
    exact: bool
    splits: bool = False
    tiled: tuple[int, ...] = ()
    across: int = -1


@dataclass(frozen=True)
class Choice:
    """A kernel's form on a GPU: `wide` for 64-bit indices, the variants to launch one after the other."""

    wide: bool
    variants: tuple[Variant, ...]
    groups: int = 512  # how many groups fill the device; decides into how many parts a reduction is split


def above(n: int) -> int:
    """Return the least power of two that is not below *n*.

    >>> above(1), above(5), above(64)
    (1, 8, 64)
    """
    return 1 << max(0, n - 1).bit_length()


def choose_gpu(kernel: Kernel, ints: Sequence[int], limits: GpuLimits = GpuLimits()) -> Choice:
    """Return the form in which a launch of *kernel* (after `collapse`) should run.

    Examples
    --------
    >>> from polygrad.driver.ir import Instr, Store, View
    >>> view = View(0, "float32", (1,))
    >>> double = Kernel(1, 0, ("float32", "float32"), (view, view._replace(buffer=1)), (),
    ...                 (Instr("load", "float32", (), 0), Instr("add", "float32", (0, 0))), (Store(1, 1),))
    >>> choice = choose_gpu(double, (1 << 20, 0, 0))
    >>> choice.variants[0].strategy, choice.variants[0].width, choice.variants[0].exact
    ('elementwise', 4, True)
    """
    facts = Facts(kernel, ints, limits)
    variants = tuple(facts.variant(stores) for stores in store_groups(kernel, ints))
    return Choice(not fits_int32(kernel, ints), variants, above(4 * limits.multiprocessors))


def possible(kernel: Kernel, ints: Sequence[int], limits: GpuLimits = GpuLimits()) -> Iterator[Choice]:
    """Yield every form that can run a launch of *kernel*, for tests and for tuning; the chosen one comes first."""
    chosen = choose_gpu(kernel, ints, limits)
    yield chosen
    facts = Facts(kernel, ints, limits)
    groups = store_groups(kernel, ints)
    seen = {chosen.variants}
    if not kernel.reduced:
        tiles = tuple(form for stores in groups if (form := facts.tiles(stores, least=2)) is not None)
        if len(tiles) == len(groups) and tiles not in seen:
            seen.add(tiles)
            yield replace(chosen, variants=tiles)
    for strategy in ("rows", "columns") if kernel.reduced else ("elementwise",):
        for vector in (True, False):
            for splits in (False, True):
                for chunked in (True, False):
                    variants = tuple(
                        facts.form(strategy, stores, vector=vector, splits=splits, chunked=chunked) for stores in groups
                    )
                    if variants not in seen:
                        seen.add(variants)
                        yield replace(chosen, variants=variants)


def store_groups(kernel: Kernel, ints: Sequence[int]) -> list[tuple[int, ...]]:
    """Return the stores that one function can perform together: partial stores need the same number of parts.

    Ordinary stores come with the last group, for they may overwrite what the others load.
    """
    named = named_ints(kernel, ints)
    plain = [k for k, store in enumerate(kernel.stores) if not kernel.views[store.view].partial]
    parts: dict[int, list[int]] = {}
    for k, store in enumerate(kernel.stores):
        if kernel.views[store.view].partial:
            parts.setdefault(named[f"v{store.view}.parts"], []).append(k)
    groups = [*parts.values()] or [[]]
    groups[-1] = sorted([*groups[-1], *plain])
    return [tuple(group) for group in groups]


class Facts:
    """One launch, measured."""

    def __init__(self, kernel: Kernel, ints: Sequence[int], limits: GpuLimits) -> None:
        self.kernel = kernel
        self.limits = limits
        self.named = named_ints(kernel, ints)
        self.extents = list(ints[: kernel.rank])
        self.rows, self.points = extent_products(kernel, ints)
        self.strides = [view_strides(view, v, self.named) for v, view in enumerate(kernel.views)]
        self.loads = {i.attr for i in kernel.body if i.op == "load"}
        self.places = placements(kernel)

    def variant(self, stores: tuple[int, ...]) -> Variant:
        """Return the best form for some of the stores."""
        if not self.kernel.reduced:
            return self.tiles(stores) or self.form("elementwise", stores, vector=self.rows >= VECTORS_PAY)
        partial = any(self.kernel.views[self.kernel.stores[k].view].partial for k in stores)
        strategy: Strategy = "rows" if partial or not self._across() else "columns"
        return self.form(strategy, stores, splits=None)

    def _across(self) -> bool:
        """Whether most bytes lie contiguously along the parallel axes."""
        if not self.kernel.parallel:
            return False
        along = across = 0
        for n, instr in enumerate(self.kernel.body):
            if instr.op == "load" and self.places[n].full:
                strides, size = self.strides[instr.attr], ITEMSIZE[instr.dtype]
                along += size * (abs(strides[-1]) == 1)
                across += size * (abs(strides[self.kernel.parallel - 1]) == 1)
        return across > along and self.extents[self.kernel.parallel - 1] > 1

    def form(
        self,
        strategy: str,
        stores: tuple[int, ...],
        *,
        vector: bool = True,
        splits: bool | None = False,
        chunked: bool = True,
    ) -> Variant:
        """Return the form of a strategy, with or without vectors, splitting and unrolled chunks."""
        axis = self.kernel.rank - 1 if strategy == "rows" else self.kernel.parallel - 1
        width, vectors = self.vectors(axis, stores) if vector and axis >= 0 else (1, (False,) * len(self.kernel.views))
        if strategy == "elementwise":
            return self._elementwise(stores, width, vectors, chunked=chunked)
        if strategy == "rows":
            return self._rows(stores, width, vectors, splits=splits, chunked=chunked)
        return self._columns(stores, width, vectors, splits=splits, chunked=chunked)

    def vectors(self, axis: int, stores: tuple[int, ...]) -> tuple[int, tuple[bool, ...]]:
        """Return the widest vectors along *axis*, and which views can be accessed by them."""
        used = self.loads | {self.kernel.stores[k].view for k in stores}
        unit = [v for v in used if self.kernel.views[v].strides[axis] == 1 and v not in self._scattered(axis)]
        unit = [v for v in unit if axis not in self.kernel.views[v].window]
        none = (1, (False,) * len(self.kernel.views))
        if not unit:
            return none
        width = min(VECTOR_BYTES // max(ITEMSIZE[self.kernel.views[v].dtype] for v in unit), 16)
        while width > 1:
            if self.extents[axis] % width == 0:
                fits = tuple(v in unit and self._aligned(v, axis, width) for v in range(len(self.kernel.views)))
                if any(fits):
                    return width, fits
            width //= 2
        return none

    def _scattered(self, axis: int) -> set[int]:
        """Return the views whose gather indices vary along *axis*."""
        varies = varying(self.kernel, axis)
        loads = [i for i in self.kernel.body if i.op == "load"]
        return {i.attr for i in loads if any(varies[a] for a in i.args)}

    def _aligned(self, v: int, axis: int, width: int) -> bool:
        ints = [self.named[f"v{v}.o"]]
        ints += [s for k, s in enumerate(self.strides[v]) if k != axis and self.extents[k] > 1]
        ints += [self.named[f"v{v}.gs{j}"] for j in range(self.kernel.views[v].gathers)]
        if self.kernel.views[v].partial:
            ints.append(self.named[f"v{v}.ps"])
        return all(n % width == 0 for n in ints)

    def _elementwise(self, stores: tuple[int, ...], width: int, vectors: tuple[bool, ...], *, chunked: bool) -> Variant:
        total = self.rows // width
        statements = len(self.kernel.body) * width  # a point
        heavy = statements > 160  # noqa: PLR2004  not doubled beyond
        if statements > 256 and width > 4:  # noqa: PLR2004  they need registers: shorter vectors leave room for others
            width //= 2
        fills = total >= 2 * FLAT_THREADS * 8 * self.limits.multiprocessors
        chunks = 2 if chunked and fills and not heavy and width < 16 else 1  # noqa: PLR2004
        if chunks > 1 and width == 1 and len(self.kernel.body) <= 40:  # noqa: PLR2004  as many bytes under way as with vectors
            chunks = 4
        if self.rows < VECTORS_PAY:  # one form for all small sizes, so that a new size compiles nothing
            return Variant(
                "elementwise", stores, width, vectors, 1, min(FLAT_THREADS, self.limits.threads), 1, exact=False
            )
        threads = min(FLAT_THREADS, self.limits.threads, max(WARP, above(total)))
        exact = total % (threads * chunks) == 0
        return Variant("elementwise", stores, width, vectors, 1, threads, chunks, exact)

    def tiles(self, stores: tuple[int, ...], least: int = TILE // 2) -> Variant | None:
        """Return the form in tiles of two axes of *least* indices or more, or None if nothing is to be transposed."""
        along = self.kernel.parallel - 1
        if along < 1 or self.extents[along] < least:
            return None
        loads: dict[int, list[int]] = {}
        for n, instr in enumerate(self.kernel.body):
            if instr.op != "load" or instr.args or instr.guard >= 0 or self.kernel.views[instr.attr].window:
                continue
            strides = self.strides[instr.attr]
            axis = next((k for k in range(along) if strides[k] == 1 and self.extents[k] >= least), -1)
            if axis >= 0 and abs(strides[along]) > 1:
                loads.setdefault(axis, []).append(n)
        if not loads:
            return None
        across = max(loads, key=lambda k: len(loads[k]))
        tiled, held = [], 0
        for n in loads[across]:
            held += TILE * (TILE + 1) * ITEMSIZE[self.kernel.body[n].dtype]
            if held <= min(TILE_BYTES, self.limits.shared_bytes):
                tiled.append(n)
        if not tiled or self.limits.threads < TILE:
            return None
        lanes = min(8, self.limits.threads // TILE)
        exact = self.extents[along] % TILE == 0 and self.extents[across] % TILE == 0
        none = (False,) * len(self.kernel.views)
        return Variant("tiles", stores, 1, none, lanes, TILE, TILE // lanes, exact, tiled=tuple(tiled), across=across)

    def _rows(
        self, stores: tuple[int, ...], width: int, vectors: tuple[bool, ...], *, splits: bool | None, chunked: bool
    ) -> Variant:
        steps = -(-self.points // width)
        partial = any(self.kernel.views[self.kernel.stores[k].view].partial for k in stores)
        most = self.limits.threads
        if splits is None:
            splits = not partial and self.points >= 16 * 1024 and self.rows < self.limits.multiprocessors
        if splits and not partial:
            return Variant("rows", stores, width, vectors, min(256, most), 1, 0, exact=False, splits=True)
        lanes, chunks = self._lanes(stores, width, steps)
        if not chunked:
            chunks = 0
        slots = min(max(1, FLAT_THREADS // lanes), above(self.rows), max(1, most // lanes))
        if partial and not chunks:
            slots = 1  # its sums are kept in memory, by one work-item each
        exact = chunks > 0 and self.points == lanes * width * chunks
        return Variant("rows", stores, width, vectors, lanes, slots, chunks, exact)

    def _lanes(self, stores: tuple[int, ...], width: int, steps: int) -> tuple[int, int]:
        """Return the lanes of a row, and the vectors that each takes; 0 vectors if a row does not fit in registers."""
        most = self.limits.threads
        repeats = self._repeats(stores)
        if self.points >= STREAMED and self._reads_once(stores):
            return min(256, most), 0
        if self.points <= WARP_ROW:
            # A lane with one vector has too little under way; but lanes that store need neighbours to write whole
            # lines.
            stores_full = any(self.places[self.kernel.stores[k].value].full for k in stores)
            lanes = min(WARP, above(-(-steps // (2 if stores_full else max(2, 8 // width)))), most)
        else:
            lanes = min(most, max(2 * WARP, above(-(-self.points // LANE_ELEMENTS))), MOST_LANES if repeats else 256)
        # All that is worth keeping, or if that is too much, what was loaded: the rest is computed again.
        for words in (self._words(stores, width), self._words(stores, width, loads_only=True)):
            taken = lanes
            while taken < min(most, MOST_LANES) and above(-(-steps // taken)) * width * words > REGISTERS:
                taken *= 2
            each = -(-steps // taken)
            # A row that divides evenly, such as 768 elements over 32 lanes, is taken exactly; others go into buckets.
            chunks = each if steps % taken == 0 and each <= EVEN_CHUNKS else above(each)
            if chunks * width * words <= REGISTERS:
                return taken, chunks
        # Rows that are read again and again: few of them at a time, so that they stay in the cache.
        return (most if repeats else min(256, most)), 0

    def _columns(
        self, stores: tuple[int, ...], width: int, vectors: tuple[bool, ...], *, splits: bool | None, chunked: bool
    ) -> Variant:
        partial = any(self.kernel.views[self.kernel.stores[k].view].partial for k in stores)
        if partial:  # sums over rows need the lanes to own columns of the result
            return self.form("rows", stores, vector=width > 1, splits=False, chunked=chunked)
        columns = self.rows // width
        threads = min(COLUMN_THREADS, self.limits.threads)
        slots = min(WARP, above(columns), threads)
        lanes = min(threads // slots, above(self.points))
        groups = -(-columns // slots)
        if splits is None:
            splits = groups < 2 * self.limits.multiprocessors and self.points >= 16 * lanes
        chunks = above(-(-self.points // lanes))
        if splits or not chunked or chunks * width * self._words(stores, width) > REGISTERS // 2:
            chunks = 0
        exact = chunks > 0 and self.points == lanes * chunks and columns % slots == 0
        return Variant("columns", stores, width, vectors, lanes, slots, chunks, exact, splits=bool(splits))

    def _repeats(self, stores: tuple[int, ...]) -> bool:
        """Whether FULL values are needed at more than one level."""
        levels = {p.level for n, p in enumerate(self.places) if p.full}
        return len(levels) > 1 or any(self.places[self.kernel.stores[k].value].full for k in stores)

    def _reads_once(self, stores: tuple[int, ...]) -> bool:
        """Whether a loop over the row, maxima and what is summed around them together, is one pass."""
        todo, online = merge_online(self.kernel, passes(self.kernel, [self.kernel.stores[k] for k in stores], 0, 0))
        return bool(online) and sum(bool(work.reduces or work.targets) for work in todo) == 1

    def _words(self, stores: tuple[int, ...], width: int, *, loads_only: bool = False) -> float:
        """Return the 32-bit registers that an element costs: what passes keep, and sums of partial stores."""
        done = [self.kernel.stores[k] for k in stores]
        sums = [self.kernel.views[store.view] for store in done if self.kernel.views[store.view].partial]
        kept = words_between_passes(self.kernel, done, loads_only=loads_only, packs=width > 1)
        return max(0.5, kept + sum(math.ceil(ITEMSIZE[view.dtype] / 4) for view in sums))
