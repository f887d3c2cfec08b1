"""What the runtime executes: the steps of a plan, and the plan.

Here: records. Slots number the values of one run, see `plan.py`.
Not here: how they are found (`plan.py`, `alike.py`), memory, launching.
"""

from typing import Any, NamedTuple

from polygrad.driver.ir import Kernel


class Fused(NamedTuple):
    """A fused launch. `status` says where in `slots` the status word stands, or -1."""

    kernel: Kernel
    slots: tuple[int, ...]
    status: int
    ints: tuple[int, ...]
    scalars: tuple[int, ...]  # positions in the order
    offsets: tuple[tuple[int, int], ...]  # (position in ints, leaf slot)
    starts: tuple[tuple[int, int], ...]  # (position in ints, position in the order) of writes
    allocate: tuple[tuple[int, int], ...]  # (slot, bytes)
    release: tuple[int, ...]
    traced: dict[int, int]  # instruction to position in the order


class Operand(NamedTuple):
    """A strided view of a slot."""

    slot: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str


class Library(NamedTuple):
    """A launch of one of the driver's own ops."""

    op: str
    outs: tuple[Operand, ...]
    ins: tuple[Operand, ...]
    params: tuple[tuple[str, Any], ...]  # attrs known from the structure
    scalars: tuple[tuple[str, int], ...]  # attrs that are host scalars: (name, position in the order)
    allocate: tuple[tuple[int, int], ...]
    release: tuple[int, ...]
    traced: int  # position in the order


class Many(NamedTuple):
    """Launches of one kernel, none of which waits for another; a device with the feature `many` makes them at once.

    Memory is allocated and released here, and in none of the launches.
    """

    kernel: Kernel
    launches: tuple[Fused, ...]
    allocate: tuple[tuple[int, int], ...]
    release: tuple[int, ...]


Step = Fused | Library | Many


def slots_of(step: Step) -> list[int]:
    """Return the slots that a step reads and writes; -1 stands for a status word."""
    if isinstance(step, Many):
        return [slot for one in step.launches for slot in one.slots]
    return list(step.slots) if isinstance(step, Fused) else [o.slot for o in (*step.outs, *step.ins)]


class Plan(NamedTuple):
    """What to launch, and which nodes then have which memory."""

    steps: tuple[Step, ...]
    slots: int
    results: tuple[tuple[int, int], ...]  # (position in the order, slot)
    views: tuple[tuple[int, Operand], ...]  # (position in the order, view) of what needs no memory of its own
    taken: tuple[int, ...]  # slots of leaves whose memory a result has taken over
