"""Making a failing case small: fewer stores, smaller extents, while it still fails.

Here: `shrink`. Not here: launches; the caller says whether a case fails.
"""

from collections.abc import Callable, Iterator

from polygrad.driver import Instr, Kernel, Store, oracle
from polygrad.driver.verify import verify, verify_launch
from polygrad.errors import PolygradError
from polygrad_conformance.case import Case

MOST = 60  # attempts, each of which may compile


def shrink(case: Case, fails: Callable[[Case], bool]) -> Case:
    """Return the smallest case found that *fails*, starting from one that does."""
    attempts, shrunk = 0, True
    while shrunk and attempts < MOST:
        shrunk = False
        for smaller in _smaller(case):
            attempts += 1
            if attempts > MOST:
                break
            if fails(smaller):
                case, shrunk = smaller, True
                break
    return case


def _smaller(case: Case) -> Iterator[Case]:
    kernel = case.kernel
    if len(kernel.stores) > 1:
        for store in kernel.stores:
            yield from _made(case, pruned(kernel, (store,)), case.ints)
    partial = any(v.partial for v in kernel.views)
    for axis in range(kernel.rank):
        for extent in dict.fromkeys((1, 2, case.ints[axis] // 2, case.ints[axis] - 1)):
            if 0 < extent < case.ints[axis] and not partial:
                yield from _made(case, kernel, (*case.ints[:axis], extent, *case.ints[axis + 1 :]))


def pruned(kernel: Kernel, stores: tuple[Store, ...]) -> Kernel:
    """Return *kernel* with these stores alone, and no instruction that they do not need; views and buffers stay."""
    live: set[int] = set()
    wanted = [s.value for s in stores]
    while wanted:
        n = wanted.pop()
        if n not in live:
            live.add(n)
            wanted += [a for a in (*kernel.body[n].args, kernel.body[n].guard) if a >= 0]
    kept = sorted(live)
    new = {n: k for k, n in enumerate(kept)} | {-1: -1}

    def renumbered(n: int) -> Instr:
        instr = kernel.body[n]
        return instr._replace(args=tuple(new[a] for a in instr.args), guard=new[instr.guard])

    return kernel._replace(
        body=tuple(renumbered(n) for n in kept), stores=tuple(Store(new[s.value], s.view) for s in stores)
    )


def _made(case: Case, kernel: Kernel, ints: tuple[int, ...]) -> Iterator[Case]:
    """Yield the case of *kernel*, if it is well formed, with the oracle's answer and the bounds of *case*."""
    try:
        verify(kernel)
        verify_launch(kernel, [len(b) for b in case.buffers], ints, case.scalars)
        expected = case.fresh()
        oracle.run(kernel, expected, ints, case.scalars)
    except (PolygradError, IndexError):
        return
    yield Case(case.seed, kernel, case.buffers, ints, case.scalars, case.outputs, tuple(expected), case.allowed)
