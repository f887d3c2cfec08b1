"""Making a failing case small: fewer stores, smaller extents, while it still fails.

Here: `shrink`. Not here: launches; the caller says whether a case fails.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from polygrad.driver import Instr, Kernel, Store, oracle
from polygrad.driver.verify import verify, verify_launch
from polygrad.errors import PolygradError
from polygrad_conformance.case import Case

MOST = 60  # attempts, each of which may compile
SECONDS = 20.0


def shrink(case: Case, fails: Callable[[Case], bool], seconds: float = SECONDS) -> Case:
    """Return the smallest case found in *seconds* that *fails*, starting from one that does."""
    attempts, shrunk, end = 0, True, time.monotonic() + seconds
    while shrunk and attempts < MOST:
        shrunk = False
        for smaller in _smaller(case):
            attempts += 1
            if attempts > MOST or time.monotonic() > end:
                break
            if fails(smaller):
                case, shrunk = smaller, True
                break
        if time.monotonic() > end:
            break
    return case


def _smaller(case: Case) -> Iterator[Case]:
    kernel = case.kernel
    if len(kernel.stores) > 1:
        for store in kernel.stores:
            yield from _made(pruned(case, (store,)))
    partial = any(v.partial for v in kernel.views)
    for axis in range(kernel.rank):
        for extent in dict.fromkeys((1, 2, case.ints[axis] // 2, case.ints[axis] - 1)):
            if 0 < extent < case.ints[axis] and not partial:
                yield from _made(replace(case, ints=(*case.ints[:axis], extent, *case.ints[axis + 1 :])))


def pruned(case: Case, stores: tuple[Store, ...]) -> Case:
    """Return *case* with these stores alone, and nothing that they do not need; its answer is not computed anew.

    Examples
    --------
    >>> from polygrad_conformance.random_kernels import random_case
    >>> case = random_case(7)
    >>> small = pruned(case, case.kernel.stores[:1])
    >>> len(small.kernel.stores), len(small.kernel.body) <= len(case.kernel.body)
    (1, True)
    """
    kernel = case.kernel
    kept = sorted(_needed(kernel, [s.value for s in stores]))
    new = {n: k for k, n in enumerate(kept)} | {-1: -1}
    loads = {kernel.body[n].attr for n in kept if kernel.body[n].op == "load"}
    views = sorted(loads | {s.view for s in stores})
    slots = sorted({kernel.body[n].attr for n in kept if kernel.body[n].op == "scalar"})
    status = kernel.status if any(kernel.views[v].gathers for v in views) else -1
    buffers = sorted({kernel.views[v].buffer for v in views} | ({status} - {-1}))

    def renumbered(n: int) -> Instr:
        instr = kernel.body[n]
        lists = {"load": views, "scalar": slots}
        attr = lists[instr.op].index(instr.attr) if instr.op in lists else instr.attr
        return instr._replace(args=tuple(new[a] for a in instr.args), attr=attr, guard=new[instr.guard])

    smaller = kernel._replace(
        buffers=tuple(kernel.buffers[b] for b in buffers),
        views=tuple(kernel.views[v]._replace(buffer=buffers.index(kernel.views[v].buffer)) for v in views),
        scalars=tuple(kernel.scalars[s] for s in slots),
        body=tuple(renumbered(n) for n in kept),
        stores=tuple(Store(new[s.value], views.index(s.view)) for s in stores),
        status=buffers.index(status) if status >= 0 else -1,
    )
    named = list(zip(kernel.int_names, case.ints, strict=True))
    ints = [value for name, value in named if name.startswith("n")]
    ints += [value for v in views for name, value in named if name.startswith(f"v{v}.")]
    ints += [value for name, value in named if name == "tag" and status >= 0]
    outputs = sorted({smaller.views[s.view].buffer for s in smaller.stores} | ({smaller.status} - {-1}))
    return Case(
        case.seed,
        smaller,
        tuple(case.buffers[b] for b in buffers),
        tuple(ints),
        tuple(case.scalars[s] for s in slots),
        tuple(outputs),
        tuple(case.expected[b] for b in buffers),
        tuple(case.allowed[b] for b in buffers),
    )


def _needed(kernel: Kernel, values: list[int]) -> set[int]:
    """Return the numbers of the instructions that *values* need, themselves too."""
    live: set[int] = set()
    wanted = list(values)
    while wanted:
        n = wanted.pop()
        if n not in live:
            live.add(n)
            wanted += [a for a in (*kernel.body[n].args, kernel.body[n].guard) if a >= 0]
    return live


def _made(case: Case) -> Iterator[Case]:
    """Yield *case* with the oracle's answer, if it is well formed."""
    try:
        verify(case.kernel)
        verify_launch(case.kernel, [len(b) for b in case.buffers], case.ints, case.scalars)
        expected = case.fresh()
        oracle.run(case.kernel, expected, case.ints, case.scalars)
    except (PolygradError, IndexError):
        return
    yield replace(case, expected=tuple(expected))
