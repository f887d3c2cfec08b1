"""The structure of a pending graph: its nodes in order, what they read, and the key under which its plan is kept.

Here: `Structure`, made in one pass, because it is made on every realize.
Not here: plans, memory, launching.
"""

import sys
from collections import Counter
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from polygrad.graph.node import RECORDING, Node, Siblings, scalar, spec_of, watches
from polygrad.graph.spec import COSTLY
from polygrad.graph.templates import Late, Piece, unfold
from polygrad.runtime.claims import calibrate, find_claims
from polygrad.runtime.memory import Buffer, Storage
from polygrad.schedule.readers import PER_ELEMENT
from polygrad.schedule.views import MOVEMENT
from polygrad.schedule.writes import Writes

ALWAYS = 1  # the mask bit of requires_grad, whose recording never ends
_active = [ALWAYS]  # bits of the recordings that are in progress
KEEPING = COSTLY  # worth a store if somebody holds them
LIGHT = MOVEMENT | {"scalar", "iota", "transfer", "check"}  # never worth memory for its own sake
HEAVY = PER_ELEMENT - LIGHT
LONG = 256  # nodes
FAR = 1 << 40  # more than there are nodes
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
        What counts as asked for, although nobody did. The first values of parameters, which would be drawn again by
        whatever reads them next. If the graph is long, the nodes that somebody holds and that no recording has: a loop
        that looks at a value in each round would compute all rounds before it again.
    calls : list of Node
        The nodes of `order` that are results of declared library ops.
    pieces : dict
        Pieces of graph that are not unfolded, if that is allowed: such a structure has a key, and cannot be planned.
    writes : bool
        Whether there are writes into arrays.
    key : tuple
        Equal keys mean equal plans.
    """

    __slots__ = ("_flags", "_held", "calls", "claimed", "history", "key", "leaves", "order", "pieces", "writes")

    def __init__(self, asked: list[Node], folded: bool = False) -> None:
        self.order, self.pieces = _pending(asked)
        if self.pieces and not folded:
            unfold(self.pieces)
            self.order, self.pieces = _pending(asked)
        self.history: list[Node] = []
        self.claimed: dict[int, int] = {}
        form = _Form(self.order, asked, self.pieces)
        references = _references(self.order)
        held = form.held(references)
        if held and len(self.order) + sum([len(piece.numbers) for piece in self.pieces]) > LONG:
            self.history = self._history(form, held)
        if form.begun:
            self.history = list(dict.fromkeys([*self.history, *self._parameters(form, references)]))
        if self.history:  # from here on these are asked for too; what is asked for does not count as held
            form = _Form(self.order, [*asked, *self.history], self.pieces)
        self.leaves = form.leaves
        self.calls = [self.order[k] for k in form.calls]
        self._flags = form.flags
        self._held = form.costly.intersection(held) if held else set()
        self.writes = bool(form.puts)
        if self.pieces:  # what goes into what somebody holds is not seen here
            self._held = set(held)
        elif held and form.reduces:
            self._held.update(self._below_held(held))
        if self.writes and not self.pieces and RECORDING.capture is None:  # what a captured call reads must stay
            # Writes that may take over memory, by position in the order, and the last write of each row of them.
            self.claimed = find_claims(self.order, form.uses(), self._flags, _SINGLE, _active[0])
            loose = Writes(self.claims()).loose(self.order)
            for k in form.puts:
                if self.order[k] in loose:
                    form.sigs[k] = anywhere(self.order[k])
            del loose
        layouts = [0 if p.storage.contiguous else p.storage.strides for p in self.leaves]
        avals = [p.aval.ident for p in self.leaves]
        # Where operands stand follows from the signatures but for their places: an op's signature has their number.
        self.key: tuple[Any, ...] = (
            tuple(form.sigs),
            tuple(form.places),
            tuple(self._flags),
            tuple(sorted(self._held)),
            tuple(self.claimed.items()),
            tuple(avals),
            *layouts,
        )

    def _below_held(self, held: list[int]) -> list[int]:
        """Return the positions of reductions that go, element by element, into what somebody holds.

        That is computed again when it is asked for, perhaps by a kernel that would add up in another order: with the
        reduction in memory it has the same bits then, and is equal to a maximum that was taken of it here.
        """
        order, flags = self.order, self._flags
        known = {k for k in held if order[k].spec.op.kind in HEAVY and not flags[k] & _ASKED}
        if not known:
            return []
        needed: set[Node] = set()
        found = []
        for k in range(max(known), -1, -1):
            kind = order[k].spec.op.kind
            if kind == "reduce":
                if order[k] in needed and not flags[k]:
                    found.append(k)
            elif kind in PER_ELEMENT and not flags[k] & _ASKED and (k in known or order[k] in needed):
                needed.update(order[k].parents)
        return found

    def _history(self, form: "_Form", held: list[int]) -> list[Node]:
        """Return what is worth computing too, the latest first, as long as it does not take much memory."""
        order = self.order
        found: list[Node] = []
        room = MUCH
        for k in sorted(held, reverse=True):
            if form.flags[k] or order[k].spec.op.kind in LIGHT or not order[k].aval.size:
                continue
            room -= order[k].aval.size * order[k].dtype.itemsize
            if room < 0:
                break
            found.append(order[k])
        return found[::-1]

    def _parameters(self, form: "_Form", references: list[int]) -> list[Node]:
        """Return those of the leaves of recordings that somebody holds, or holds frozen, and that are worth memory."""
        order, uses, found = self.order, form.uses(), []
        for k in form.begun:
            below = order[k]
            while below.spec.op.kind == "alias" and below.storage is None:
                below = below.parents[0]
            if not order[k].mask & ALWAYS or not below.parents or below.spec.op.kind in LIGHT:
                continue  # of a transform's own recording; constants, which kernels write as such
            aliases = [
                j
                for j in range(k + 1, len(order))
                if order[j].spec.op.kind == "alias" and order[j].parents[0] is order[k]
            ]
            if any(references[j] > _BASELINE + uses[j] for j in (k, *aliases)):
                found.append(order[k])
        return found

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


class _Form:
    """The graph as ints: made by whole lists and dicts at a time, for each realize makes it.

    Attributes
    ----------
    sigs : list of int
        The signature of each node.
    places : list of int
        Where the operands of the nodes stand, one after the other: in the order, or as -1, -2, ... among the leaves.
    leaves : dict of Node to int
        See `Structure`.
    flags : list of int
        A flag for each node: whether it is asked for, whether a recording watches it.
    costly : set of int
        The costly nodes that nobody asks for.
    calls : list of int
        The results of declared library ops: as positions, for a list of nodes would count as holding them.
    puts : list of int
        The writes.
    begun : list of int
        The leaves of recordings that nobody asks for.
    reduces : bool
        Whether a costly node is a reduction.
    """

    __slots__ = ("begun", "calls", "costly", "flags", "leaves", "places", "puts", "reduces", "sigs")

    def __init__(self, order: list[Node], asked: list[Node], pieces: dict[Piece, None]) -> None:
        mask = _active[0]
        position: dict[Any, int] = dict(zip(order, range(len(order)), strict=True))
        self.leaves: dict[Node, int] = {}
        if pieces:
            self.sigs, operands = _folded(order, position)
        else:
            self.sigs, operands = [n.spec.sig for n in order], [p for n in order for p in n.parents]
        places: list[Any] = list(map(position.get, operands))
        for k, at in enumerate(places):
            if at is None:
                places[k] = -1 - self.leaves.setdefault(operands[k], len(self.leaves))
        self.places: list[int] = places
        self.flags = [0] * len(order)
        for n in asked:
            self.flags[position[n]] = _ASKED
        self.costly: set[int] = set()
        self.calls: list[int] = []
        self.puts: list[int] = []
        self.begun: list[int] = []
        self.reduces = False
        for k in [k for k, n in enumerate(order) if n.mask or n.spec.costly]:
            n = order[k]
            if n.mask & mask:
                if n.leaf is not None and not self.flags[k]:
                    self.begun.append(k)
                if not n.spent and watches(mask, n):
                    self.flags[k] |= _TRACKED
            if n.spec.costly and n.__class__ is not Late:
                self._note(k, n, n.spec.op.kind)

    def _note(self, k: int, n: Node, kind: str) -> None:
        if n.value.__class__ is Siblings:
            self.calls.append(k)
        if kind == "put":
            self.puts.append(k)
        if not self.flags[k] or (kind == "put" and self.flags[k] == _TRACKED):
            self.costly.add(k)  # a recording does not need the value of a put
            self.reduces = self.reduces or kind == "reduce"

    def uses(self) -> "Counter[int]":
        """Return how often each node is an operand, by position."""
        return Counter(self.places)

    def held(self, references: list[int]) -> list[int]:
        """Return the nodes that nobody asks for and somebody holds, by how often they are referred to."""
        flags, most = self.flags, _BASELINE + 1
        several = [k for k, count in enumerate(references) if count > most and flags[k] < _ASKED]
        if not several and not self.calls:
            return []
        uses = self.uses()
        unused = [k for k in self.costly if k not in uses]  # results of a call of which somebody holds another
        return [k for k in {*several, *unused} if references[k] > _BASELINE + uses[k]]


def anywhere(put: Node) -> int:
    """Return the signature that puts at all places share."""
    _, steps, sizes = put.spec.attrs
    return spec_of(put.spec.op, ((0,) * len(sizes), steps, sizes), put.parents).sig


def _folded(order: list[Node], position: dict[Any, int]) -> tuple[list[int], list[Any]]:
    """Return the signatures and the operands of nodes of which some are late.

    The first result of a piece has the piece's operands, and the others the piece, as an operand that stands nowhere
    else: its position is out of the way of all nodes.
    """
    sigs: list[int] = []
    operands: list[Any] = []
    for n in order:
        if n.__class__ is not Late:
            sigs.append(n.spec.sig)
            operands += n.parents
            continue
        piece, sig = n.value
        sigs.append(sig)
        if piece in position:
            operands.append(piece)
        else:
            position[piece] = FAR + len(sigs)
            operands += piece.operands
    return sigs, operands


def _pending(asked: list[Node]) -> tuple[list[Node], dict[Piece, None]]:
    """Return the unrealized nodes under what was asked for, operands first, and the pieces that are not unfolded."""
    found = [*dict.fromkeys([n for n in asked if n.storage is None])]
    seen = set(found)
    pieces: dict[Piece, None] = {}
    for n in found:  # which grows
        together: Sequence[Node] = ()
        if n.__class__ is Late:
            piece = n.value[0]
            if piece in pieces:
                continue
            pieces[piece] = None
            operands, together = piece.operands, piece.living()
        else:
            operands = n.parents
            if n.value.__class__ is Siblings:  # one call gives them all
                together = n.value.living()
        for p in (*operands, *together) if together else operands:
            if p.storage is None and p not in seen:
                seen.add(p)
                found.append(p)
    found.reverse()  # which is nearly the order
    found.sort(key=_number)
    return found, pieces


def _references(order: list[Node]) -> list[int]:
    """Return how many references there are to each node."""
    return list(map(sys.getrefcount, order))


# The references to a node that `Structure` itself makes while it counts: one in the order, and those of the call; in
# `_references`, and where a single node is looked at.
_BASELINE = _SINGLE = 0


def _calibrate() -> tuple[int, int]:
    """Return how many references a node has that nobody but a Structure and its consumer holds, less the consumer's.

    Counted in `_references`, and of a single node.
    """
    from polygrad import dtypes  # noqa: PLC0415  needed once
    from polygrad.graph.node import apply  # noqa: PLC0415  as above
    from polygrad.ops.elementwise import negative  # noqa: PLC0415  as above

    consumer = apply(negative, (scalar(0.0, dtypes.float64),))
    found = Structure([consumer])
    baseline = _references(found.order)[0] - 1, sys.getrefcount(found.order[0]) - 1
    leaf = apply(negative, (scalar(0.0, dtypes.float64),))
    leaf.storage = Storage(Buffer(None, None, 0, True), 0, (), True)  # type: ignore[arg-type]  # of no pool
    consumer = apply(negative, (leaf,))
    del leaf
    found = Structure([consumer])
    calibrate(found.order)
    return baseline


_BASELINE, _SINGLE = _calibrate()
