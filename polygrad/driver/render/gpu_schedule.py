"""What each pass over the reduced axes computes, loads early, keeps for later passes and stores.

Here: `passes`, from a kernel and the registers there are to a list of `Pass`.
Not here: text.

A kernel whose values have levels 0 to K takes K + 1 passes over the reduced axes, one a level; a pass without FULL
work is empty. What a later pass needs of an earlier one is kept in registers if there is room: loads first of all,
and values of expensive ops; the rest is computed again. If there is more room, what only a later pass loads is loaded
by the first one, so that all of a row is under way before its work-items wait for each other.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from polygrad.driver.ir import ITEMSIZE, Kernel, Store, placements

EXPENSIVE = frozenset(
    (
        *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "pow", "erf", "fmod", "rsqrt", "sqrt", "divide"),
        *("sin", "cos", "tan", "asin", "acos", "atan", "atan2", "quotient", "modulo"),
        *("sinh", "cosh", "tanh", "asinh", "acosh", "atanh"),
    )
)
PACKED = frozenset({"float16", "bfloat16"})  # 16 bits in a register of their own


@dataclass(frozen=True)
class Pass:
    """One walk over the reduced axes.

    `early` are loads to be made before anything is computed, into arrays, of which `held` stay for later passes;
    `keep` are values computed here for later passes, which go to arrays too; `reduces` are the instructions completed
    by it; `partials` the stores whose sums it adds to.
    """

    level: int
    reduces: tuple[int, ...]
    stores: tuple[Store, ...]
    partials: tuple[Store, ...]
    early: tuple[int, ...]
    held: tuple[int, ...]
    keep: tuple[int, ...]

    @property
    def targets(self) -> tuple[int, ...]:
        """The positions of the stored values; the operands of `reduces` come on top."""
        return tuple(store.value for store in (*self.stores, *self.partials))


def passes(
    kernel: Kernel, stores: Sequence[Store], elements: int, registers: int, *, packs: bool = False
) -> list[Pass]:
    """Return the passes of *kernel* for some of its stores.

    Parameters
    ----------
    elements : int
        Elements that a work-item has of every FULL value; 0 if it walks in a loop and can keep nothing.
    registers : int
        32-bit registers that it may spend on keeping them.
    packs : bool
        Whether values of 16 bits share registers, two and two.
    """
    return _Scheduler(kernel, stores, elements, registers, packs).result()


def words_between_passes(
    kernel: Kernel, stores: Sequence[Store], *, loads_only: bool = False, packs: bool = False
) -> float:
    """Return the most 32-bit registers that an element of the reduced axes occupies from one pass to the next.

    With *loads_only* whatever was computed is computed again; *packs* as for `passes`.

    >>> from polygrad.driver.ir import Instr, View
    >>> view = View(0, "float32", (None, 1))
    >>> centred = Kernel(1, 1, ("float32", "float32"), (view, view._replace(buffer=1)), (),
    ...                  (Instr("load", "float32", (), 0), Instr("reduce", "float32", (0,), "max"),
    ...                   Instr("subtract", "float32", (0, 1))), (Store(2, 1),))
    >>> words_between_passes(centred, centred.stores)
    1
    """
    computed = {n for n, instr in enumerate(kernel.body) if instr.op != "load"} if loads_only else set[int]()
    return _Scheduler(kernel, stores, 1, 1 << 30, packs).words_between(computed)


class _Scheduler:
    def __init__(self, kernel: Kernel, stores: Sequence[Store], elements: int, registers: int, packs: bool) -> None:
        self.kernel = kernel
        self.packs = packs
        self.places = placements(kernel)
        self.elements = elements
        self.needed = self._needed([store.value for store in stores])
        self.reduces = [n for n in self.needed if kernel.body[n].op == "reduce"]
        full = [store for store in stores if self.places[store.value].full]
        self.last = max(
            [self.places[n].level for n in self.reduces] + [self.places[s.value].level for s in full], default=0
        )
        busy = [self.places[n].level - 1 for n in self.reduces] + [self.places[s.value].level for s in full]
        self.final = max(busy, default=0)  # the last pass with FULL work
        self.stores = [(self._level(store), store) for store in full]
        sums = sum(self._words(store.value) for store in full if kernel.views[store.view].partial)
        self.registers: float = registers - sums * elements

    def _needed(self, targets: Iterable[int]) -> list[int]:
        found: set[int] = set()
        todo = list(targets)
        while todo:
            n = todo.pop()
            if n >= 0 and n not in found:
                found.add(n)
                todo += [*self.kernel.body[n].args, self.kernel.body[n].guard]
        return sorted(found)

    def _level(self, store: Store) -> int:
        """Store a value as soon as it is there, but not before the last load from the same buffer."""
        buffer = self.kernel.views[store.view].buffer
        loaded = any(i.op == "load" and self.kernel.views[i.attr].buffer == buffer for i in self.kernel.body)
        return self.final if loaded else self.places[store.value].level

    def _words(self, n: int) -> float:
        dtype = self.kernel.body[n].dtype
        return 0.5 if self.packs and dtype in PACKED else -(-ITEMSIZE[dtype] // 4)

    def _targets(self, level: int) -> list[int]:
        operands = [self.kernel.body[n].args[0] for n in self.reduces if self.places[n].level == level + 1]
        return operands + [store.value for at, store in self.stores if at == level]

    def result(self) -> list[Pass]:
        banned: set[int] = set()
        while True:
            kept = self._kept(banned)
            words = sum(self._words(n) for n in kept)
            if words * self.elements <= self.registers or not kept:
                break
            costly = [n for n in kept if self.kernel.body[n].op != "load"]
            banned.add(max(costly or kept))
        ahead = self._ahead(kept)
        return [self._pass(level, kept, ahead) for level in range(self.last + 1)]

    def _kept(self, banned: set[int]) -> dict[int, int]:
        """Return the values worth keeping, with the pass that computes them."""
        if not self.elements:
            return {}
        computed: dict[int, int] = {}
        kept: dict[int, int] = {}
        worth = self._worth_keeping(banned)
        for level in range(self.last + 1):
            fresh: set[int] = set()
            todo = self._targets(level)
            while todo:
                n = todo.pop()
                if n < 0 or n in fresh or not self.places[n].full:
                    continue
                if n in computed and n in worth:
                    kept[n] = computed[n]
                    continue
                fresh.add(n)
                todo += [*self.kernel.body[n].args, self.kernel.body[n].guard]
            for n in fresh:
                computed.setdefault(n, level)
        return kept

    def _ahead(self, kept: dict[int, int]) -> dict[int, int]:
        """Return the loads that the first pass makes for a later one, with the last pass that has them."""
        busy = [level for level in range(self.last + 1) if self._targets(level)]
        ahead: dict[int, int] = {}
        seen: set[int] = set()
        for level in busy if self.elements else ():
            for n in self._fresh(level, {n for n, at in kept.items() if at < level}):
                if n in seen or level == busy[0] or not self._is_early(n):
                    continue
                trial = ahead | {n: self.last if n in kept else level}
                if self._most_alive(kept, trial) * self.elements <= self.registers:
                    ahead = trial
            seen |= set(self._fresh(level, set()))
        return ahead

    def _most_alive(self, kept: dict[int, int], ahead: dict[int, int]) -> float:
        """Return the most words of an element that wait between two passes."""
        return max(
            sum(self._words(n) for n, at in kept.items() if at <= level and n not in ahead)
            + sum(self._words(n) for n, until in ahead.items() if level < until or n in kept)
            for level in range(self.last + 1)
        )

    def _worth_keeping(self, banned: set[int]) -> set[int]:
        """Return the values worth keeping: loads, or what their only user makes of them, and dear ones."""
        full = [n for n in self.needed if self.places[n].full]
        worth = {n for n in full if self.kernel.body[n].op == "load" or self.kernel.body[n].op in EXPENSIVE}
        for n in full:
            if self.kernel.body[n].op != "load":
                continue
            users = [m for m in self.needed if n in self.kernel.body[m].args]
            if len(users) == 1 and users[0] not in banned and self._stands_for(users[0], n):
                worth = (worth - {n}) | {users[0]}
        return worth - banned

    def _stands_for(self, m: int, n: int) -> bool:
        """Whether value *m* can stand for the load *n*: as small, as early, and made of nothing else that is loaded."""
        instr = self.kernel.body[m]
        if instr.op not in ("where", "cast") or self._words(m) > self._words(n):
            return False
        if self.places[m].level != self.places[n].level:
            return False
        todo = [a for a in instr.args if a != n]
        while todo:
            k = todo.pop()
            if self.places[k].full and self.kernel.body[k].op in ("load", *EXPENSIVE):
                return False
            todo += self.kernel.body[k].args if self.places[k].full else ()
        return True

    def words_between(self, banned: set[int]) -> float:
        """Return the most words of kept values that are alive between two passes."""
        kept = self._kept(banned)
        until = self._last_uses(kept)
        alive = [
            sum(self._words(n) for n, at in kept.items() if at <= level < until.get(n, at))
            for level in range(self.last + 1)
        ]
        return max(alive, default=0)

    def _last_uses(self, kept: dict[int, int]) -> dict[int, int]:
        """Return for every FULL value the last pass that asks for it, itself kept or not."""
        last: dict[int, int] = {}
        for level in range(self.last + 1):
            for n in self._fresh(level, {n for n, at in kept.items() if at < level}):
                for used in (*self.kernel.body[n].args, self.kernel.body[n].guard):
                    if used >= 0:
                        last[used] = level
            for n in self._targets(level):
                last[n] = level
        return last

    def _pass(self, level: int, kept: dict[int, int], ahead: dict[int, int]) -> Pass:
        first = next((k for k in range(self.last + 1) if self._targets(k)), level)
        known = {n for n, at in kept.items() if at < level} | (set(ahead) if level > first else set())
        fresh = self._fresh(level, known)
        loads = [n for n in fresh if self._is_early(n)]
        # Even a load that nothing keeps goes through an array if it fits: all loads of a pass are then under way
        # together.
        there = {n for n, at in kept.items() if at < level} | {n for n, until in ahead.items() if level <= until}
        fits = self.elements and self._words_within(level, {*loads, *there}, kept) * self.elements <= self.registers
        early = loads if fits else [n for n in loads if n in kept]
        early += sorted(ahead) if level == first else []
        here = [store for at, store in self.stores if at == level]
        return Pass(
            level,
            tuple(n for n in self.reduces if self.places[n].level == level + 1),
            tuple(s for s in here if not self.kernel.views[s.view].partial),
            tuple(s for s in here if self.kernel.views[s.view].partial),
            tuple(early),
            tuple(n for n in early if n in kept or n in ahead),
            tuple(n for n, at in sorted(kept.items()) if at == level and n not in early and n not in ahead),
        )

    def _words_within(self, level: int, there: set[int], kept: dict[int, int]) -> float:
        """Return the words of an element while a pass runs; what it computes takes the place of loads that it ends."""
        ended = sum(self._words(n) for n in there if n not in kept)
        made = sum(self._words(n) for n, at in kept.items() if at == level and n not in there)
        return sum(self._words(n) for n in there) + max(0, made - ended)

    def _fresh(self, level: int, known: set[int]) -> list[int]:
        found: set[int] = set()
        todo = self._targets(level)
        while todo:
            n = todo.pop()
            if n >= 0 and n not in found and n not in known and self.places[n].full:
                found.add(n)
                todo += [*self.kernel.body[n].args, self.kernel.body[n].guard]
        return sorted(found)

    def _is_early(self, n: int) -> bool:
        """Whether a load waits for no other load along the reduced axes."""
        instr = self.kernel.body[n]
        if instr.op != "load" or instr.args:
            return False
        todo, seen = [instr.guard], set()
        while todo:
            m = todo.pop()
            if m < 0 or m in seen or not self.places[m].full:
                continue
            seen.add(m)
            if self.kernel.body[m].op == "load":
                return False
            todo += self.kernel.body[m].args
        return True
