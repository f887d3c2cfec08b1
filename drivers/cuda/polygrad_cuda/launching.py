"""A kernel with its arguments laid out ready: what a launch costs in Python is one `struct` call and one call of CUDA.

Here: argument blocks and launches. Not here: which kernel is launched, or how it was made.

CUDA takes an array of addresses, one an argument, and copies what they point to before it returns. So the block is
laid out once, in slots of eight bytes, and only what changes is written again.
"""

import ctypes
import functools
import struct
from collections.abc import Callable, Sequence
from typing import Any

# One slot of eight bytes an argument, little end first.
SLOTS = {
    "pointer": "Q", "bool": "?7x", "int8": "b7x", "int16": "h6x", "int32": "i4x", "int64": "q", "uint8": "B7x",
    "uint16": "H6x", "uint32": "I4x", "uint64": "Q", "float32": "f4x", "float64": "d",
}  # fmt: skip

Grid = tuple[int, int, int]


class Launcher:
    """One kernel with a fixed grid; some arguments fixed, the others given at each call.

    Parameters
    ----------
    route : list of one callable
        The vendor's launchKernel, or what stands in for it while launches are written down.
    function : int
        The kernel's address.
    grid, block : three ints each
    slots : sequence of str
        The kind of each argument in the kernel's order, a key of SLOTS.
    fixed : dict of int to value
        Position of an argument to its value for all launches.
    varying : sequence of int
        Positions of the others, in the order in which `call` takes them; their own order if None.
    stream : int
    shared : int
        Bytes of dynamic shared memory.
    """

    __slots__ = ("arguments", "call", "lay_out")

    def __init__(
        self,
        route: list[Callable[..., None]],
        function: int,
        grid: Grid,
        block: Grid,
        slots: Sequence[str],
        *,
        fixed: dict[int, Any],
        varying: Sequence[int] | None = None,
        stream: int,
        shared: int = 0,
    ) -> None:
        varying = [i for i in range(len(slots)) if i not in fixed] if varying is None else varying
        order = [*varying, *sorted(fixed)]
        storage = (ctypes.c_uint64 * max(1, len(slots)))()
        addresses = (ctypes.c_uint64 * max(1, len(slots)))()
        base = ctypes.addressof(storage)
        for place, position in enumerate(order):
            addresses[position] = base + 8 * place
        tail = struct.Struct("<" + "".join(SLOTS[slots[i]] for i in sorted(fixed)))
        tail.pack_into(storage, 8 * len(varying), *(fixed[i] for i in sorted(fixed)))
        pack = struct.Struct("<" + "".join(SLOTS[slots[i]] for i in varying)).pack_into
        arguments = ctypes.addressof(addresses)
        head = (function, *grid, *block, shared, stream, arguments, 0)

        def call(
            *values: Any, _kept: Any = addresses
        ) -> None:  # CUDA sees addresses alone: they live as long as `call`
            pack(storage, 0, *values)
            route[0](*head)

        self.call = call
        self.arguments = arguments  # where the block is; it lives as long as `call`
        self.lay_out = functools.partial(pack, storage, 0)  # as `call`, without the launch
