"""What passes through the waist beside kernels: descriptions of drivers and devices, references to memory, answers.

Here: plain immutable data.
Not here: behaviour; the hooks that use these types are in `hookspecs.py`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from polygrad.driver.ir import MANDATORY, MANDATORY_REDUCTIONS

API = (1, 0)

Handle = Any  # opaque to the core: whatever a driver's allocate returns

# A prepared kernel: called with (buffers, ints, scalars); enqueues the work and returns. See ir.py for the arguments.
Prepared = Callable[[Sequence[Handle], tuple[int, ...], Sequence[bool | int | float]], Any]


class Done:
    """The type of DONE. pluggy's firstresult hooks read None as "nobody handled it", so finished work returns DONE."""

    def __repr__(self) -> str:
        return "DONE"


DONE = Done()


class Ref(NamedTuple):
    """Memory seen as an array: what an op of `launch_op` reads or writes.

    `offset` and `strides` count elements of `dtype` (a name such as ``"float32"``); strides may be 0 or negative for
    inputs. The memory belongs to the core: a driver does not keep a Ref beyond the launch.
    """

    handle: Handle
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class DriverInfo:
    """A driver as discovery sees it; making one touches no device and imports no vendor library."""

    name: str  # lower case, the entry point's name, the part of a device's name before the colon
    summary: str = ""
    requires: str = ""  # what must be installed, for people
    url: str = ""
    api: tuple[int, int] = API
    ir: tuple[int, int] = (1, 0)
    priority: int = 0  # set_device("auto") tries higher ones first


# What every device takes in one kernel: the longest decomposition of an op that a device may lack, pow of float64, has
# 303 instructions with its operands. A device that takes less is refused when it is opened.
LEAST_INSTRUCTIONS = 320


@dataclass(frozen=True)
class Limits:
    """What one device can take; bytes unless said otherwise."""

    max_alloc: int = 1 << 62
    total: int = 1 << 62
    alignment: int = 64  # of every allocation
    max_buffers: int = 64  # buffer arguments a kernel
    max_instructions: int = 512  # instructions a kernel, at least LEAST_INSTRUCTIONS
    partials: int = 64  # parts into which a partial store is best divided (rows are a multiple of no number)


@dataclass(frozen=True)
class Features:
    """Every ability beyond the mandatory, one polarity: true means can."""

    asynchronous: bool = False  # launches return before the work is done
    host_memory: bool = False  # handles are host memory that `polygrad_view` exposes without a copy
    capture: bool = False
    subnormals: bool = True
    correctly_rounded: bool = False  # divide and sqrt within 0.5 ULP in float32
    thread_safety: Literal["serialised", "free"] = "serialised"
    fork: Literal["safe", "unsafe"] = "unsafe"


@dataclass(frozen=True)
class DeviceInfo:
    """An open device, as the driver declares it. Declared means implemented: the suite checks both directions."""

    driver: str
    ordinal: int
    name: str  # of the hardware, for people
    dtypes: frozenset[str]  # of ir.DTYPES
    scalar_ops: frozenset[str] = MANDATORY  # of ir.SCALAR_OPS
    reductions: frozenset[str] = MANDATORY_REDUCTIONS
    # Names that launch_op takes beside "write" and "read". None, the default, becomes what DriverBase derives from its
    # op methods, or no ops at all, when the device is opened: an open device has a set. An empty set means none.
    ops: frozenset[str] = None  # type: ignore[assignment]
    limits: Limits = Limits()
    features: Features = Features()
    vendor: str = ""
    version: str = ""
    extra: Mapping[str, str] = field(default_factory=dict)  # lines for reports

    @property
    def device(self) -> str:
        """The device's name, such as ``opencl:0``."""
        return f"{self.driver}:{self.ordinal}"


class MemoryInfo(NamedTuple):
    """Bytes of a device's memory as the vendor's library counts them."""

    free: int
    total: int


# The ops of launch_op, with their operands; `attrs` is a dict. All but write and read are optional and have a
# decomposition in the core.
ACCELERATED_OPS = {
    "write": "outs=(contiguous,), attrs data: a contiguous read-only memoryview of bytes. The driver has copied it, or "
    "is done with it, when it returns.",
    "read": "ins=(contiguous,), attrs into: a writable contiguous memoryview of bytes. Blocks; ordered after all "
    "launches before.",
    "copy": "outs=(contiguous,), ins=(strided,): same shape and dtype.",
    "matmul": "outs=(contiguous [..., m, n],), ins=([..., m, k], [..., k, n]): batch axes equal, or stride 0; any "
    "strides; float dtypes (float16 and bfloat16 accumulate in float32) and integers. attrs precision: 'highest' "
    "(default: float32 is float32) or 'tf32'.",
    "random_bits": "outs=(contiguous uint32 [n],), attrs key: int < 2**64, counter: int < 2**64. Element e is word "
    "e % 4 of Philox-4x32-10 at counter (counter + e // 4 as the low 64 bits, 0 as the high) under key; words little "
    "end first.",
    "scatter_add": "outs=(contiguous [n, m],), ins=(index int64 [k], values contiguous [k, m]): out starts as zeros, "
    "then out[index[j]] += values[j], duplicates accumulate; negative indices count from the end. attrs status, a "
    "handle, and tag: a bad index is reported as a kernel does, at position 0, and its row is left out.",
}
