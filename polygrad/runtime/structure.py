"""The structure of a pending graph: its nodes in order, what they read, and the key under which its plan is kept.

Here: `Structure`, made in one pass, because it is made on every realize.
Not here: plans, memory, launching.
"""

import sys
from operator import attrgetter
from typing import Any

from polygrad.graph.node import RECORDING, Node, Siblings, scalar, spec_of, watches
from polygrad.runtime.claims import calibrate, find_claims
from polygrad.runtime.memory import Buffer, Storage
from polygrad.schedule.fuse import PER_ELEMENT
from polygrad.schedule.views import MOVEMENT
from polygrad.schedule.writes import Writes

ALWAYS = 1  # the mask bit of requires_grad, whose recording never ends
_active = [ALWAYS]  # bits of the recordings that are in progress
# Costly: worth a store if somebody holds them.
KEEPING = frozenset({"reduce", "matmul", "scatter", "random", "gather", "library", "put"})
LIGHT = MOVEMENT | {"scalar", "iota", "transfer", "check"}  # never worth memory for its own sake
LONG = 256  # nodes
MUCH = 1 << 26  # bytes: the values of a long graph that are computed only because somebody holds them take no more
_number = attrgetter("number")
_ASKED, _TRACKED = 4, 1  # bits of a node's flag


def active_mask() -> int:
    """Return the bits of all recordings in progress."""
    return _active[0]


def set_active_mask(mask: int) -> None:
    """Say which recordings are in progress."""
    _active[0] = mask


class Structure:
    """The unrealized nodes under what was asked for.

    Attributes
    ----------
    order : list of Node
        The unrealized nodes, operands first.
    leaves : dict of Node to int
        The realized nodes that they read, numbered as they are met.
    history : list of Node
        If the graph is long: the nodes that somebody holds and that no recording has. They count as asked for: a loop
        that looks at a value in each round would compute all rounds before it again.
    calls : list of Node
        The nodes of `order` that are results of declared library ops.
    key : tuple
        Equal keys mean equal plans.
    """

    __slots__ = ("_flags", "_held", "calls", "claimed", "history", "key", "leaves", "order")

    def __init__(self, asked: list[Node]) -> None:
        self.order = _pending(asked)
        self.leaves: dict[Node, int] = {}
        self.calls: list[Node] = []
        self.claimed: dict[int, int] = {}
        words, uses, costly, self._flags, puts = self._words(set(asked))
        self.history = self._history(uses) if len(self.order) > LONG else []
        if self.history:  # from here on these are asked for too; what is asked for does not count as held
            self.leaves.clear()
            self.calls.clear()
            words, uses, costly, self._flags, puts = self._words({*asked, *self.history})
        self._held = [k for k in costly if sys.getrefcount(self.order[k]) > _BASELINE + uses[k]]
        if any(self.order[k].spec.op.kind == "reduce" for k in costly):
            self._held = sorted({*self._held, *self._below_held(uses)})
        if puts and RECORDING.capture is None:  # a captured call is replayed: what it reads must stay
            # Writes that may take over memory, by position in the order, and the last write of each row of them.
            self.claimed = find_claims(self.order, uses, self._flags, _BASELINE, _active[0])
            loose = Writes(self.claims()).loose(self.order)
            for k, at in puts:
                if self.order[k] in loose:
                    words[at] = anywhere(self.order[k]) * 8 + self._flags[k]
            del loose
        layouts = [0 if p.storage.contiguous else p.storage.strides for p in self.leaves]
        avals = tuple([p.aval.ident for p in self.leaves])
        self.key: tuple[Any, ...] = (tuple(words), tuple(self._held), tuple(self.claimed.items()), avals, *layouts)

    def _words(self, goal: set[Node]) -> tuple[list[int], list[int], list[int], list[int], list[tuple[int, int]]]:
        """Return the graph as ints, how often each node is an operand, the costly nodes, a flag for each node.

        And the puts, each with the place of its word.
        """
        order, leaves, mask = self.order, self.leaves, _active[0]
        position: dict[Node, int] = {}
        words: list[int] = []
        uses = [0] * len(order)
        costly: list[int] = []
        flags: list[int] = []
        puts: list[tuple[int, int]] = []
        for k, n in enumerate(order):
            spec = n.spec
            flag = _ASKED if n in goal else 0
            if n.mask & mask and not n.spent and watches(mask, n):
                flag |= _TRACKED
            if spec.op.kind in KEEPING and (not flag or (spec.op.kind == "put" and flag == _TRACKED)):
                costly.append(k)  # a recording does not need the value of a put
            if spec.op.kind == "put":
                puts.append((k, len(words)))
            flags.append(flag)
            words.append(spec.sig * 8 + flag)
            for p in n.parents:
                at = position.get(p)
                if at is None:
                    at = leaves.get(p)
                    if at is None:
                        at = leaves[p] = len(leaves)
                    words.append(-1 - at)
                else:
                    uses[at] += 1
                    words.append(at)
            position[n] = k
            if n.value.__class__ is Siblings:
                self.calls.append(n)
        return words, uses, costly, flags, puts

    def _below_held(self, uses: list[int]) -> list[int]:
        """Return the positions of reductions that go, element by element, into what somebody holds.

        That is computed again when it is asked for, perhaps by a kernel that would add up in another order: with the
        reduction in memory it has the same bits then, and is equal to a maximum that was taken of it here.
        """
        order, flags = self.order, self._flags
        needed: set[Node] = set()
        found = []
        for k in range(len(order) - 1, -1, -1):
            kind = order[k].spec.op.kind
            if kind == "reduce":
                if order[k] in needed and not flags[k]:
                    found.append(k)
            elif kind in PER_ELEMENT and not flags[k] & _ASKED:
                held = kind not in LIGHT and sys.getrefcount(order[k]) > _BASELINE + uses[k]
                if held or order[k] in needed:
                    needed.update(order[k].parents)
        return found

    def _history(self, uses: list[int]) -> list[Node]:
        """Return what is worth computing too, the latest first, as long as it does not take much memory."""
        order, flags = self.order, self._flags
        found: list[Node] = []
        room = MUCH
        for k in range(len(order) - 1, -1, -1):  # no name for order[k], which would count
            if flags[k] or order[k].spec.op.kind in LIGHT or not order[k].aval.size:
                continue
            if sys.getrefcount(order[k]) <= _BASELINE + uses[k]:
                continue
            room -= order[k].aval.size * order[k].dtype.itemsize
            if room < 0:
                break
            found.append(order[k])
        return found[::-1]

    def retained(self) -> set[Node]:
        """Return the nodes that a recording needs: if they must be in memory on the way, they stay there."""
        return {
            n for n, flag in zip(self.order, self._flags, strict=True) if flag & _TRACKED and n.spec.op.kind != "put"
        }

    def offered(self) -> set[Node]:
        """Return the costly nodes that somebody holds or a recording needs: stored if a kernel has them anyway."""
        return {n for n in self.retained() if n.spec.op.kind in KEEPING} | {self.order[k] for k in self._held}

    def claims(self) -> dict[Node, Node]:
        """Return the writes that may take over the memory of the array they write into; see `claims.py`."""
        return {self.order[k]: self.order[end] for k, end in self.claimed.items()}


def anywhere(put: Node) -> int:
    """Return the signature that puts at all places share."""
    _, steps, sizes = put.spec.attrs
    return spec_of(put.spec.op, ((0,) * len(sizes), steps, sizes), put.parents).sig


def _pending(asked: list[Node]) -> list[Node]:
    seen: set[Node] = set()
    stack = list(asked)
    while stack:
        n = stack.pop()
        if n.storage is None and n not in seen:
            seen.add(n)
            stack += n.parents
            if n.value.__class__ is Siblings:  # one call gives them all
                stack += n.value.living()
    return sorted(seen, key=_number)


# The references to a node that `Structure` itself makes while it counts: one in the order, and those of the call.
_BASELINE = 0


def _calibrate() -> int:
    """Return how many references a node has that nobody but a Structure and its consumer holds, less the consumer's."""
    from polygrad import dtypes  # noqa: PLC0415  needed once
    from polygrad.graph.node import apply  # noqa: PLC0415  as above
    from polygrad.ops.elementwise import negative  # noqa: PLC0415  as above

    consumer = apply(negative, (scalar(0.0, dtypes.float64),))
    found = Structure([consumer])
    baseline = sys.getrefcount(found.order[0]) - 1
    leaf = apply(negative, (scalar(0.0, dtypes.float64),))
    leaf.storage = Storage(Buffer(None, None, 0, True), 0, (), True)  # type: ignore[arg-type]  # of no pool
    consumer = apply(negative, (leaf,))
    del leaf
    found = Structure([consumer])
    calibrate(found.order)
    return baseline


_BASELINE = _calibrate()
