"""The waist: all that a driver author imports, and all that polygrad knows of a device.

Here: the public, versioned interface. A driver imports this package and nothing else of polygrad. Read `hookspecs.py`
for the contract, `ir.py` for the form of a kernel, `oracle.py` for what it means, `base.py` for the class to subclass.
Not here: arrays, gradients, graphs.
"""

from polygrad.driver.base import DriverBase
from polygrad.driver.bundles import Bundle, Capturing
from polygrad.driver.collectives import Collectives
from polygrad.driver.counters import count_build
from polygrad.driver.hookspecs import hookimpl
from polygrad.driver.ir import (
    MANDATORY,
    MANDATORY_REDUCTIONS,
    REDUCTIONS,
    SCALAR_OPS,
    Instr,
    Kernel,
    Placement,
    Store,
    View,
    placements,
)
from polygrad.driver.notices import Notices
from polygrad.driver.requirements import ExpectedFailure, Requirements
from polygrad.driver.types import (
    ACCELERATED_OPS,
    API,
    DONE,
    DeviceInfo,
    DriverInfo,
    Features,
    Limits,
    MemoryInfo,
    Prepared,
    PreparedMany,
    Ref,
)
from polygrad.errors import (
    CompileError,
    DeviceError,
    DeviceLost,
    DriverError,
    DriverUnavailable,
    LaunchError,
    OutOfMemory,
    UnsupportedOp,
)

__all__ = [
    "ACCELERATED_OPS",
    "API",
    "DONE",
    "MANDATORY",
    "MANDATORY_REDUCTIONS",
    "REDUCTIONS",
    "SCALAR_OPS",
    "Bundle",
    "Capturing",
    "Collectives",
    "CompileError",
    "DeviceError",
    "DeviceInfo",
    "DeviceLost",
    "DriverBase",
    "DriverError",
    "DriverInfo",
    "DriverUnavailable",
    "ExpectedFailure",
    "Features",
    "Instr",
    "Kernel",
    "LaunchError",
    "Limits",
    "MemoryInfo",
    "Notices",
    "OutOfMemory",
    "Placement",
    "Prepared",
    "PreparedMany",
    "Ref",
    "Requirements",
    "Store",
    "UnsupportedOp",
    "View",
    "count_build",
    "hookimpl",
    "placements",
]
