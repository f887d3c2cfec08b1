"""What it costs to compute a node again rather than to read it.

Here: `Prices`, found once for all nodes of a plan.
Not here: whether it is done, which `fuse.py` decides.
"""

from collections.abc import Collection, Sequence

from polygrad.driver.ir import SCALAR_OPS
from polygrad.driver.types import DeviceInfo
from polygrad.errors import UnsupportedOp
from polygrad.graph.node import Node
from polygrad.schedule.body import emitted, instructions
from polygrad.schedule.views import MOVEMENT

LIBRARY = {"matmul", "random", "scatter", "library"}
CHEAP_OPS = 24  # a value of at most this many instructions from one load is computed again rather than stored
DEAR = 1 << 30  # instructions: more than any limit
SMALL = 256  # elements: up to so many, what takes few instructions is not worth sharing, whatever it reads
_NOTHING: frozenset[Node] = frozenset()
SLIGHT_OPS = 48  # few, for such a value


class Prices:
    """The instructions that nodes take.

    Parameters
    ----------
    order : sequence of Node
        The nodes, operands first.
    apart : collection of Node
        Those with launches of their own, beside library ops.
    info : DeviceInfo
        What the device can do.

    Attributes
    ----------
    again : dict of Node to int
        The instructions that computing a node again from one load of about its own size takes; `DEAR` if it takes more.
    slight : set of Node
        Small nodes that take few instructions, whatever they read.
    extras : dict of Node to int
        The instructions that a node takes beside the first, where there are any.

    Raises
    ------
    UnsupportedOp
        If a node takes more instructions than a kernel of the device may hold.
    """

    def __init__(self, order: Sequence[Node], apart: Collection[Node], info: DeviceInfo) -> None:
        self.again: dict[Node, int] = {}
        self.slight: set[Node] = set()
        self.extras: dict[Node, int] = {}
        self._info = info
        self._missing = SCALAR_OPS.keys() - info.scalar_ops
        self._constants: set[Node] = set()  # numbers spread over a shape: nothing is read for them
        self._reads: dict[Node, Node | None] = {}  # the one node that is read; None if there are several
        # What is computed; None if that is too much: sets that grew along a chain would be quadratic in it.
        self._work: dict[Node, frozenset[Node] | None] = {}
        for n in order:
            kind = n.spec.op.kind
            if kind in LIBRARY or kind == "reduce" or n in apart:
                self._reads[n], self._work[n], self.again[n] = n, _NOTHING, 0
                if n.aval.size <= SMALL:
                    self.slight.add(n)
            elif kind != "scalar":
                self._add(n, kind in MOVEMENT)

    def source(self, n: Node) -> Node | None:
        """Return the one node of about its own size that computing *n* again reads; None if there are several."""
        return self._reads.get(n)

    def _add(self, n: Node, moves: bool) -> None:
        """Find what a node takes that is computed within a kernel."""
        size = n.aval.size
        # What is computed for it, itself included, None if that is too much; the one node of its size that is read.
        made: frozenset[Node] | None = _NOTHING
        if not moves:
            made = frozenset((n,))
            extra = self._extra(n)
            if extra:
                self.extras[n] = extra
        found: Node | None = None
        several, constant, reads = False, bool(n.parents), self._reads
        for p in n.parents:
            if p.spec.op.kind == "scalar":
                continue
            if p not in self._constants:
                constant = False
                if p.aval.size * 8 >= size:
                    read = reads.get(p, p)
                    if found is None and read is not None:
                        found = read
                    elif read is not found or read is None:
                        several = True
            if made is not None:
                more = self._work.get(p, _NOTHING)
                made = None if more is None else made | more if more else made
        if constant:
            self._constants.add(n)
        count = 0
        if made is not None:
            extras = self.extras
            count = len(made) + (sum([extras.get(m, 0) for m in made]) if extras else 0)
            if size <= SMALL and count <= SLIGHT_OPS:
                self.slight.add(n)
            elif count > CHEAP_OPS:
                made = None
        self._work[n] = made
        reads[n] = None if several else n if found is None else found
        self.again[n] = DEAR if made is None or several else count

    def _extra(self, node: Node) -> int:
        """Return how many instructions more than one a node takes: its op is long, or the device lacks it.

        Raises
        ------
        UnsupportedOp
            If that is more than a kernel of the device may hold.
        """
        op = node.spec.op
        if not op.long and (not self._missing or op.kind != "elementwise" or op.instr not in self._missing):
            return 0
        info, dtype = self._info, node.parents[0].aval.dtype.name
        if op.lower is not None and "float" not in dtype:  # rounding an integer
            return 0
        declared = frozenset(info.scalar_ops)
        count = emitted(op, dtype, declared) if op.long else instructions(op.instr, dtype, declared)
        if count + len(node.parents) > info.limits.max_instructions:
            what = f"has no room for {op.name!r}" if op.long else f"does not declare {op.instr!r}"
            raise UnsupportedOp(
                f"{info.device} {what}; made of {'its own' if op.long else 'the mandatory'} ops it takes {count} "
                f"instructions on {dtype}, and a kernel there holds {info.limits.max_instructions}: compute it on "
                "another device with .to_device(...)"
            )
        return count - 1
