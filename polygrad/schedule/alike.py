"""Launches of one kernel that need not wait for each other, brought together: a device may make them at once.

Here: `together`, a pass over the ordered steps of a plan, for devices with the feature `many`. A small launch waits
until something needs its result, or its operands' memory; those of one kernel that wait at the same time become one
step (updates of an optimiser, casts, sums for biases), and later ones that read nothing but what was there before the
plan join them (casts of weights). The peak of the plan does not grow noticeably. Elementwise kernels over contiguous
arrays of any shapes are one kernel over one axis.
Not here: how a device makes many launches at once.

Plans that write into existing arrays stay as they are, and so do kernels that look at indices: of several bad ones, the
first is reported.
"""

import collections
import math
from collections.abc import Sequence
from typing import Any

from polygrad.driver.ir import ITEMSIZE, Kernel
from polygrad.schedule.flatten import flattened
from polygrad.schedule.steps import Fused, Many, Step

SMALL = 1 << 26  # bytes that a launch moves: a larger one keeps a device busy for long enough by itself
SLACK = 1 << 24  # bytes, or a part of the peak, by which the peak may grow
PART = 128
AHEAD = 4096  # steps that a launch may come earlier

Draft = tuple[Any, list[tuple[int, int]], list[int]]  # a step, what it makes as (slot, bytes), the slots that it reads


def together(drafts: list[Draft], planned: Sequence[Step]) -> list[Draft]:
    """Return *drafts* with launches of one kernel brought together, or the same list if there are none.

    Parameters
    ----------
    drafts : list of Draft
        In the order in which they run.
    planned : sequence of Step
        The same with memory allocated and released.
    """
    kinds = _kinds(drafts)
    return _Waiting(drafts, planned, kinds).run() if kinds else drafts


def _kinds(drafts: list[Draft]) -> dict[int, tuple[int, Fused]]:
    """Return of each launch that others are like which kernel it has, by number, and itself in the common form."""
    numbers: dict[Kernel, int] = {}
    flat: dict[Any, Kernel] = {}
    members: list[list[tuple[int, Fused]]] = []
    for k, (record, _, _) in enumerate(drafts):
        if isinstance(record, Fused) and record.status < 0 and not record.starts and _traffic(record) <= SMALL:
            form = flattened(record, flat)
            number = numbers.setdefault(form.kernel, len(members))
            if number == len(members):
                members.append([])
            members[number].append((k, form))
    return {k: (n, form) for n, them in enumerate(members) if len(them) > 1 for k, form in them}


def _traffic(record: Fused) -> int:
    kernel = record.kernel
    return math.prod(record.ints[: kernel.rank]) * sum(ITEMSIZE[dtype] for dtype in kernel.buffers)


class _Waiting:
    """The launches that wait for others like them, while the steps are gone through in order."""

    def __init__(self, drafts: list[Draft], planned: Sequence[Step], kinds: dict[int, tuple[int, Fused]]) -> None:
        self.drafts, self.kinds = drafts, kinds
        self.at = 0  # the step that is looked at
        self.out: list[Draft] = []
        self.waiting: dict[int, list[Draft]] = {}  # by kernel
        self.makers: dict[int, int] = {}  # of a slot, the kernel that waits to make it
        self.readers: dict[int, list[int]] = {}  # of a slot, the kernels of the launches that wait to read it
        self.sizes = {slot: nbytes for _, makes, _ in drafts for slot, nbytes in makes}
        self.late: set[int] = set()  # slots that are kept for those who wait, and would have been released
        self.early: set[int] = set()  # steps that were made before their time
        self.extra = 0  # bytes of what is kept too late or made too early
        self.ends = [step.release for step in planned]
        self.held, total = [], 0
        for step in planned:
            total += sum(self.sizes[slot] for slot, _ in step.allocate)
            self.held.append(total)
            total -= sum(self.sizes[slot] for slot in step.release)
        peak = max(self.held)
        self.most = peak + max(SLACK, peak // PART)
        self.ready = self._ready()

    def _ready(self) -> dict[int, list[int]]:
        """Return by kernel the launches that can be made at any time before theirs: they read nothing made here."""
        times = collections.Counter(slot for _, makes, _ in self.drafts for slot, _ in makes)
        found: dict[int, list[int]] = {}
        for k, (number, _) in self.kinds.items():
            _, makes, reads = self.drafts[k]
            if self.sizes.keys().isdisjoint(reads) and all(times[slot] == 1 for slot, _ in makes):
                found.setdefault(number, []).append(k)
        return {number: sorted(them, reverse=True) for number, them in found.items()}

    def run(self) -> list[Draft]:
        """Return the steps."""
        for k, draft in enumerate(self.drafts):
            self.at = k
            if k in self.early:
                self.extra -= sum(nbytes for _, nbytes in draft[1])
                continue
            self._make_for(draft)
            if self.held[k] + self.extra > self.most:
                self._make_all()
            if k in self.kinds:
                self._wait(k, draft)
            else:
                self.out.append(draft)
            for slot in self.ends[k]:
                if slot in self.readers:
                    self.late.add(slot)
                    self.extra += self.sizes[slot]
        self._make_all()
        return self.out

    def _make_for(self, draft: Draft) -> None:
        """Make what has to come before a step: what makes its operands, what uses the memory that it makes."""
        _, makes, reads = draft
        for slot in reads:
            self._make(self.makers.get(slot))
        for slot, _ in makes:
            self._make(self.makers.get(slot))
            for number in set(self.readers.get(slot, ())):
                self._make(number)

    def _wait(self, k: int, draft: Draft) -> None:
        number, form = self.kinds[k]
        _, makes, reads = draft
        self.waiting.setdefault(number, []).append((form, makes, reads))
        self.makers.update((slot, number) for slot, _ in makes)
        for slot in reads:
            self.readers.setdefault(slot, []).append(number)

    def _make(self, number: int | None) -> None:
        """Make the launches of a kernel that wait, and later ones for which there is room."""
        batch = self.waiting.pop(number, None) if number is not None else None
        if number is None or batch is None:
            return
        for _, makes, reads in batch:
            for slot, _ in makes:
                self.makers.pop(slot, None)
            for slot in reads:
                left = self.readers[slot]
                left.remove(number)
                if not left:
                    del self.readers[slot]
                    if slot in self.late:
                        self.late.remove(slot)
                        self.extra -= self.sizes[slot]
        batch += self._before_time(number)
        self.out.append(batch[0] if len(batch) == 1 else _merged(batch))

    def _before_time(self, number: int) -> list[Draft]:
        """Return launches of a kernel that would come later, as long as the memory for their results is there."""
        found: list[Draft] = []
        ahead, top, seen = self.ready.get(number, []), 0, self.at
        while ahead:
            k = ahead[-1]
            if k > self.at:
                top, seen = max(top, *self.held[seen : k + 1]), k
                _, makes, reads = self.drafts[k]
                nbytes = sum(size for _, size in makes)
                if k - self.at > AHEAD or top + self.extra + nbytes > self.most:
                    break
                self.early.add(k)
                self.extra += nbytes
                found.append((self.kinds[k][1], makes, reads))
            ahead.pop()
        return found

    def _make_all(self) -> None:
        for number in list(self.waiting):
            self._make(number)


def _merged(batch: list[Draft]) -> Draft:
    launches = tuple([record for record, _, _ in batch])
    makes = [made for _, makes, _ in batch for made in makes]
    reads = list(dict.fromkeys(slot for _, _, reads in batch for slot in reads))
    return Many(launches[0].kernel, launches, (), ()), makes, reads
