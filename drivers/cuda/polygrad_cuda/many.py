"""Many launches of one kernel as few launches of CUDA: all arguments in one struct, passed by value.

Here: which launches go together, and their struct, laid out once and written again where it changes: buffers, scalars.
Not here: text (`polygrad.driver.render.gpu_many`), single launches (`fused.py`), argument blocks of these
(`launching.py`).

Nothing is brought to the device beside the launch itself, so that it can be captured into a graph, as one node whose
struct takes all numbers of a call.
"""

import ctypes
import itertools
import operator
import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from polygrad.driver.render.gpu_many import NOBODY, Layout, Shared, choose_many, simplified

if TYPE_CHECKING:
    from polygrad_cuda.driver import CudaDriver
    from polygrad_cuda.fused import FusedKernel

ROOM = 4096  # bytes of arguments that a kernel takes
LARGE_ROOM, SINCE, VOLTA = 32764, 12010, 70  # and since this version of CUDA, from this architecture on

ALIGNMENT = 256  # bytes: of a launch's scratch memory

Values = Sequence[Sequence[Any]]


class Together:
    """Some of many launches as one launch of CUDA: called with the buffers, scalars and scratch memory of all of them.

    Parameters
    ----------
    route : list of one callable
        See `Launcher`.
    head : tuple of int
        What CUDA is told before the arguments: function, grid, block, shared memory, stream.
    layout : Layout
    members : sequence of int
        Which launches these are, two at least, in their order.
    places : sequence of int
        Where the scratch memory of each begins, if the kernel takes any.
    fixed : ctypes array
        The struct, with what stays the same.
    """

    def __init__(
        self, route: list[Callable[..., None]], head: tuple[int, ...], layout: Layout, members: Sequence[int],
        places: Sequence[int], fixed: Any,
    ) -> None:  # fmt: skip
        self._made = route, head, layout, members, places
        self._struct = fixed  # CUDA sees addresses alone: both live as long as this
        self._addresses = (ctypes.c_uint64 * 1)(ctypes.addressof(fixed))
        self.arguments = ctypes.addressof(self._addresses)
        self._pick = operator.itemgetter(*members)  # of two at least it gives a tuple
        self._pointers = struct.Struct(f"<{len(members) * layout.buffer_count}Q").pack_into
        self._numbers = struct.Struct("<" + layout.scalar_format * len(members)).pack_into
        self._sorts = layout.scalar_order != tuple(range(len(layout.scalar_order)))

    def __call__(self, buffers: Values, scalars: Values, scratch: int) -> None:
        """Launch them."""
        route, head, layout, members, places = self._made
        own = buffers if len(buffers) == len(members) else self._pick(buffers)
        if places:
            own = [(*some, scratch + place) for some, place in zip(own, places, strict=True)]
        self._pointers(self._struct, layout.buffers, *itertools.chain.from_iterable(own))
        self.number(scalars)
        route[0](*head, self.arguments, 0)

    def number(self, scalars: Values) -> None:
        """Write the scalars into the struct."""
        layout = self._made[2]
        if not layout.scalar_order:
            return
        own = scalars if len(scalars) == len(self._made[3]) else self._pick(scalars)  # those of all, in their order
        if self._sorts:
            own = [[some[k] for k in layout.scalar_order] for some in own]
        self._numbers(self._struct, layout.scalars, *itertools.chain.from_iterable(own))

    def copied(self) -> "Together":
        """Return the same launch, of the memory it was launched on last, with a struct of its own."""
        return Together(*self._made, type(self._struct).from_buffer_copy(self._struct))


class ManyLaunches:
    """Launches of one kernel, with the ints they come with.

    Attributes
    ----------
    calls : list of Together
        Each makes some of the launches.
    scratch : int
        Bytes of scratch memory that all take together; `calls` are given its address.
    alone : list of int
        The launches, by position, that are made by themselves.
    """

    def __init__(self, kernel: "FusedKernel", ints: tuple[tuple[int, ...], ...]) -> None:
        driver = kernel.driver
        simple = [simplified(kernel.kernel, one) for one in ints]
        self.calls: list[Together] = []
        self.scratch = 0
        self.alone: list[int] = []
        for group in choose_many(simple, driver.gpu_limits):
            most = Layout.most(group.kernel, group.choice, driver.parameter_bytes)
            for k in range(0, len(group.members), max(most, 1)):
                part = group._replace(members=group.members[k : k + max(most, 1)])
                if len(part.members) > 1:
                    self._add(driver, part, [simple[k][1] for k in part.members], most)
                else:
                    self.alone += part.members

    def _add(self, driver: "CudaDriver", group: Shared, ints: Sequence[tuple[int, ...]], most: int) -> None:
        """Add the launches of a group, one for each function of the kernel."""
        capacity = min(most, 1 << (len(ints) - 1).bit_length())  # few texts serve any number
        layout = Layout.of(group.kernel, group.choice, capacity)
        source = driver.source_of_many(group.kernel, group.choice, layout)
        geometries = [source.geometry(one) for one in ints]
        places: list[int] = []
        if layout.scratch:
            for geometry in geometries:
                places.append(self.scratch)
                self.scratch += -(-geometry.scratch // ALIGNMENT) * ALIGNMENT
        for k, stage in enumerate(source.stages):
            launches = [geometry.launches[k] for geometry in geometries]
            fixed = _fixed(layout, [(*one, *launch.extra) for one, launch in zip(ints, launches, strict=True)],
                             [launch.groups for launch in launches])  # fmt: skip
            function = driver.compiler.function(source.text, stage.name)
            head = (function, sum(launch.groups for launch in launches), 1, 1, *stage.block, 1, 0, driver.stream)
            self.calls.append(Together(driver.route, head, layout, group.members, places, fixed))


def _fixed(layout: Layout, ints: Sequence[tuple[int, ...]], counts: Sequence[int]) -> Any:
    """Return the struct with what stays the same from launch to launch: ints, and how many groups each launch has."""
    storage = (ctypes.c_uint64 * (layout.nbytes // 8))()
    pack = struct.Struct(f"<{layout.int_format}")
    for n, one in enumerate(ints):
        pack.pack_into(storage, layout.ints + n * pack.size, *one)
    first = [*itertools.accumulate(counts[:-1], initial=0), *[NOBODY] * (layout.capacity - len(counts))]
    struct.pack_into(f"<{layout.capacity}i", storage, layout.first, *first)
    return storage
