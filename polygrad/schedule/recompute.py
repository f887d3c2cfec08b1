"""Computing a value again rather than keeping it: what a training step holds at once is most of the memory it needs.

Here: `spared`, what a recording need not keep; `lighter`, a pass over the ordered steps of a plan. While it lowers the
peak, a large value that lies unused over the moment of most memory is dropped and computed again before it is next
read, from what is in memory then: elementwise values and rows (activations, norms, softmax), products over a short
inner axis (scores of attention), random bits.
Not here: which values there are (`fuse.py`).

A value computed again is made by the same operations on the same operands; only the sums of a row may be taken in
another order by another kernel, and round differently.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from polygrad.graph.node import Node
from polygrad.schedule.fuse import Fusion
from polygrad.schedule.group import Demand, Group
from polygrad.schedule.ordering import Step

WORTH = 1 << 20  # bytes: a smaller value is left alone
ENOUGH = 1 << 24  # bytes: a plan that holds less at once is left alone
PART = 1024  # what is less than this part of the most that is held at once is not worth a launch
LEAST = 32  # all that is dropped has to lower the peak by this part of it
SHORT = 128  # the longest inner axis of a product that is made again: more work than reading its result, but not much
SLIGHT = 8  # what is this much smaller than a value may be kept longer for it
DEEPEST = 3  # launches, one needing the other, that make one value again
LABOUR = 4  # a product made again must save this many times as much as another value
DEAR = 6  # values of its own size: one that takes more reading is not made again, such as a sum along all layers
MOST = 2  # values of about its own size that one is computed from again in a backward pass
Ready = Callable[[Node, int], bool]
_NEVER = {"gather", "check", "put", "scatter", "library"}


class _Life(NamedTuple):
    """When a value is in memory: the steps that make it, and those that read it, as positions."""

    makes: list[int]
    reads: list[int]


def lighter(steps: list[Step], fusion: Fusion, kept: set[Node]) -> list[Step]:
    """Return *steps* with some values computed again, so that less memory is in use at once.

    Parameters
    ----------
    steps : list of Step
        In the order in which they run.
    fusion : Fusion
        Which has made them.
    kept : set of Node
        What stays in memory afterwards.
    """
    if any(step.write is not None for step in steps):
        return steps  # memory that is written over holds several values, one after the other
    if sum(nbytes(n) for step in steps for n in step.outputs) < ENOUGH:
        return steps
    search = _Search(steps, fusion, kept)
    peak = search.peak
    while search.improve():
        pass
    return search.steps if (peak - search.peak) * LEAST >= peak else steps


class _Search:
    """The steps as they stand, and what they hold."""

    def __init__(self, steps: list[Step], fusion: Fusion, kept: set[Node]) -> None:
        self.steps = list(steps)
        self.fusion = fusion
        self.kept = kept
        self.hopeless: set[tuple[Node, int]] = set()  # values, and the steps before which they cannot be made again
        self._look()

    def _look(self) -> None:
        """Find when each value is in memory, and how much there is at each step."""
        self.lives: dict[Node, _Life] = {}
        for k, step in enumerate(self.steps):
            for n in step.outputs:
                self.lives.setdefault(n, _Life([], [])).makes.append(k)
            for n in step.inputs:
                if n.storage is None:
                    self.lives[n].reads.append(k)
        change = [0] * (len(self.steps) + 1)
        for n, life in self.lives.items():
            for begin, end in self._spans(n, life):
                change[begin] += nbytes(n)
                change[end + 1] -= nbytes(n)
        self.held = []
        total = 0
        for k in range(len(self.steps)):
            total += change[k]
            self.held.append(total)
        self.peak = max(self.held, default=0)

    def _spans(self, n: Node, life: _Life) -> Iterable[tuple[int, int]]:
        """Yield from which step to which a value is in memory."""
        for k, begin in enumerate(life.makes):
            until = life.makes[k + 1] if k + 1 < len(life.makes) else len(self.steps)
            end = max((r for r in life.reads if begin <= r < until), default=begin)
            yield begin, (len(self.steps) - 1 if n in self.kept and until == len(self.steps) else end)

    def improve(self) -> bool:
        """Drop one more value over the step that holds most; return whether that was possible."""
        if self.peak < ENOUGH:
            return False
        top = self.held.index(self.peak)
        found = []
        for n, life in self.lives.items():
            if nbytes(n) < max(WORTH, self.peak // PART) or n in self.kept or len(life.makes) > 1:
                continue
            before = [k for k in (*life.makes, *life.reads) if k < top]
            after = [k for k in life.reads if k > top]
            if before and after and top not in life.reads and (n, id(self.steps[min(after)])) not in self.hopeless:
                labour = LABOUR if n.spec.op.kind == "matmul" else 1
                found.append((nbytes(n) // labour, n.number, n, min(after)))
        return any(self._drop(n, at) for _, _, n, at in sorted(found, key=lambda f: (-f[0], f[1])))

    def _drop(self, n: Node, at: int) -> bool:
        """Make *n* again before step *at* if that lowers the peak, or one of several; return whether it was done."""
        made: list[Step] = []
        if recipe(n, self.fusion, lambda m, size: self._ready(m, at, size), made) and affordable(n, made):
            steps, before = self.steps, (self.peak, self.held.count(self.peak))
            self.steps = [*steps[:at], *made, *steps[at:]]
            self._look()
            if (self.peak, self.held.count(self.peak)) < before:
                return True
            self.steps = steps
            self._look()
        self.hopeless.add((n, id(self.steps[at])))
        return False

    def _ready(self, n: Node, at: int, size: int) -> bool:
        """Whether *n* is in memory at step *at* anyway, or small enough beside *size* bytes to be kept until then."""
        if n.storage is not None:
            return True
        life = self.lives.get(n)
        if life is None or life.makes[0] >= at:
            return False
        if nbytes(n) * SLIGHT <= size:
            return True
        return any(begin < at <= end for begin, end in self._spans(n, life))


def recipe(n: Node, fusion: Fusion, ready: Ready, made: list[Step], depth: int = DEEPEST) -> bool:
    """Add to *made* the steps that compute *n* from what is *ready*; return whether there are such.

    Parameters
    ----------
    n : Node
        A node that *fusion* has found a step for.
    fusion : Fusion
        Which has made the plan.
    ready : callable
        Whether a node, given with the size of *n* in bytes, is in memory.
    made : list of Step
        In the order in which they have to run.
    depth : int
        How many steps may need each other.
    """
    kind = n.spec.op.kind
    if depth == 0 or kind in _NEVER:
        return False
    if any(n in step.outputs for step in made):
        return True
    if kind in ("matmul", "random"):
        known = fusion.produced.get(n)
        if known is None or (kind == "matmul" and n.parents[0].aval.shape[-1] > SHORT):
            return False
        step = Step(None, n)
        step.operands, step.inputs = known.operands, known.inputs
    else:
        group = _kernel(n, fusion, ready)
        if group is None:
            return False
        step = Step(group, None)
        step.inputs = list(group.inputs)
    step.outputs = [n]
    size = nbytes(n)
    if not all(ready(m, size) or recipe(m, fusion, ready, made, depth - 1) for m in step.inputs):
        return False
    made.append(step)
    return True


def affordable(n: Node, made: list[Step]) -> bool:
    """Whether the steps that make *n* again read little enough."""
    own = {m for step in made for m in step.outputs}
    read = {m for step in made for m in step.inputs} - own
    return sum(map(nbytes, read)) <= DEAR * nbytes(n)


def _kernel(n: Node, fusion: Fusion, ready: Ready) -> Group | None:
    """Return a kernel that computes *n* from what is *ready*, as far as there is such."""
    size = nbytes(n)

    def decide(_: Group, demand: Demand) -> bool:
        return demand.node is n or not ready(demand.node, size)

    group = Group(n)
    demand = group.need(n, group.index)
    fusion.grow(group, decide)
    if demand.how == "load" or any(d.node.spec.op.kind in _NEVER for d in group.demands if d.how != "load"):
        return None
    group.stores[n] = demand
    return group


def spared(steps: list[Step], fusion: Fusion, kept: set[Node]) -> set[Node]:
    """Return which of the values that a recording would keep for its backward pass are computed again there instead.

    Those that few others give which are kept: a product of two activations, say, or the weights of attention.

    Parameters
    ----------
    steps : list of Step
        In the order in which they run.
    fusion : Fusion
        Which has made them.
    kept : set of Node
        What nobody but a recording has asked to keep.
    """
    stay = {n for step in steps for n in step.outputs if n in kept}
    if sum(map(nbytes, stay)) < ENOUGH:
        return set()
    out: set[Node] = set()
    needed: set[Node] = set()  # for those that are computed again
    for n in sorted(stay, key=lambda m: m.number):
        if nbytes(n) < WORTH or n in needed:
            continue
        made: list[Step] = []
        stay.discard(n)
        if recipe(n, fusion, lambda m, _: m.storage is not None or m in stay, made) and affordable(n, made):
            read = {m for step in made for m in step.inputs} & stay
            if sum(nbytes(m) * SLIGHT > nbytes(n) for m in read) <= MOST:
                needed |= read
                out.add(n)
                continue
        stay.add(n)
    return out


def nbytes(n: Node) -> int:
    """Return how much memory the value of a node takes."""
    return n.aval.size * n.aval.dtype.itemsize
