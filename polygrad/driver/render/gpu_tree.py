"""Combining partial results of work-items: through registers of a warp where it can, else through shared memory.

Here: `Tree`, which combines all reductions of one level in one go.
Not here: where the partial results come from. Barriers stand in uniform control flow: whoever calls `combine` is
outside of any condition on the work-item.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from polygrad.driver.ir import ITEMSIZE
from polygrad.driver.render.addressing import Addressing
from polygrad.driver.render.gpu_values import Lines

WARP = 32
FAN = 16  # values that one work-item combines from shared memory
SHARED_BYTES = 24 * 1024  # of shared memory for one round; more reductions take several rounds


class Partial(NamedTuple):
    """A partial result of every work-item: a mutable variable that `combine` turns into the result."""

    how: str
    dtype: str
    name: str


class Tree:
    """Combines over `lanes` work-items, separately for each of `slots`.

    `lanes_first` says that neighbouring work-items are lanes (rows), so that a warp holds whole rows or parts of one;
    else neighbours are slots (columns).
    """

    def __init__(
        self,
        at: Addressing,
        out: Lines,
        lanes: int,
        slots: int,
        *,
        lanes_first: bool,
        names: tuple[str, str] = ("lane", "slot"),
    ) -> None:
        self.at = at
        self.dialect = at.dialect
        self.write = at.expressions
        self.out = out
        self.lanes = lanes
        self.slots = slots
        self.lanes_first = lanes_first
        self.lane, self.slot = names
        self.arrays: dict[tuple[str, int], str] = {}
        self.used = False

    def declarations(self) -> list[str]:
        """Return the shared arrays of all rounds, for the head of the kernel."""
        size = self.lanes * self.slots
        return [self.dialect.shared(dtype, name, size) for (dtype, _), name in sorted(self.arrays.items())]

    def combine(self, partials: Sequence[Partial]) -> None:
        """Replace every variable by its combination over the lanes, in all of them."""
        if self.lanes == 1 or not partials:
            return
        left = self.lanes
        if self.dialect.shuffles and self.lanes_first:
            left = self._shuffle(partials)
        if left > 1:
            for batch in self._batches(partials):
                self._share(batch, left)

    def _shuffle(self, partials: Sequence[Partial]) -> int:
        offset = min(self.lanes, WARP) // 2
        while offset:
            for p in partials:
                other = self._exchange(p, offset)
                self.out.add(f"{p.name} = {self.write.reduce_step(p.how, p.dtype, p.name, other)};")
            offset //= 2
        return self.lanes // WARP

    def _exchange(self, partial: Partial, offset: int) -> str:
        register, name = self.dialect.register(partial.dtype), partial.name
        if partial.dtype == "bool" or ITEMSIZE[partial.dtype] < 4:  # noqa: PLR2004  a register's bytes
            return f"(({register})__shfl_xor_sync(0xffffffffu, (int){name}, {offset}))"
        return f"__shfl_xor_sync(0xffffffffu, {name}, {offset})"

    def _batches(self, partials: Sequence[Partial]) -> list[list[Partial]]:
        batches: list[list[Partial]] = [[]]
        held = 0
        for p in partials:
            size = self.lanes * self.slots * ITEMSIZE[p.dtype]
            if held + size > SHARED_BYTES and batches[-1]:
                batches.append([])
                held = 0
            batches[-1].append(p)
            held += size
        return batches

    def _array(self, dtype: str, position: int) -> str:
        return self.arrays.setdefault((dtype, position), f"s_{dtype}_{position}")

    def _spot(self, left: int, lane: str) -> str:
        """Return the place in shared memory of a lane's value while *left* values are left a slot."""
        if self.lanes_first:
            return lane if self.slots == 1 else f"{self.slot} * {left} + {lane}"
        return f"({lane}) * {self.slots} + {self.slot}"

    def _share(self, partials: Sequence[Partial], left: int) -> None:
        counts: dict[str, int] = {}
        arrays = []
        for p in partials:
            arrays.append(self._array(p.dtype, counts.get(p.dtype, 0)))
            counts[p.dtype] = counts.get(p.dtype, 0) + 1
        if self.used:
            self.out.add(self.dialect.barrier)  # the readers of the round before
        self.used = True
        if left < self.lanes:
            self._write(partials, arrays, left, f"{self.lane} / {WARP}", f"{self.lane} % {WARP} == 0")
        else:
            self._write(partials, arrays, left, self.lane, "")
        self.out.add(self.dialect.barrier)
        fan = WARP if left < self.lanes else FAN
        while left > fan:
            fewer = max(1, left // FAN)
            self.out.open(f"if ({self.lane} < {fewer})")
            self._read(partials, arrays, left, [f"{self.lane} + {fewer * k}" for k in range(left // fewer)])
            self.out.close()
            self.out.add(self.dialect.barrier)
            self._write(partials, arrays, fewer, self.lane, f"{self.lane} < {fewer}")
            self.out.add(self.dialect.barrier)
            left = fewer
        self._read(partials, arrays, left, [str(k) for k in range(left)])

    def _write(self, partials: Sequence[Partial], arrays: Sequence[str], left: int, lane: str, condition: str) -> None:
        writes = []
        for p, array in zip(partials, arrays, strict=True):
            writes.append(f"{array}[{self._spot(left, lane)}] = {self.at.to_memory(p.name, p.dtype)};")
        self.out.add(f"if ({condition}) {{ {' '.join(writes)} }}" if condition else " ".join(writes))

    def _read(self, partials: Sequence[Partial], arrays: Sequence[str], left: int, lanes: Sequence[str]) -> None:
        for p, array in zip(partials, arrays, strict=True):
            values = [self.at.from_memory(f"{array}[{self._spot(left, lane)}]", p.dtype) for lane in lanes]
            self._fold(p, values)

    def _fold(self, partial: Partial, values: Sequence[str]) -> None:
        """Combine in pairs: short chains of dependence and small errors of sums."""
        register = self.dialect.register(partial.dtype)
        if len(values) == 1:
            self.out.add(f"{partial.name} = {values[0]};")
            return
        self.out.open()
        self.out.add(*(f"const {register} y{k} = {value};" for k, value in enumerate(values)))
        text = pairwise(self.write.reduce_step, partial.how, partial.dtype, [f"y{k}" for k in range(len(values))])
        self.out.add(f"{partial.name} = {text};")
        self.out.close()


def pairwise(step: Callable[[str, str, str, str], str], how: str, dtype: str, names: Sequence[str]) -> str:
    """Return the combination of names as a balanced tree of *step*, which is `Expressions.reduce_step`."""
    level = list(names)
    while len(level) > 1:
        level = [
            step(how, dtype, *level[k : k + 2]) if k + 1 < len(level) else level[k] for k in range(0, len(level), 2)
        ]
    return level[0]
