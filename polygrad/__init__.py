"""polygrad.

Arrays of the Array API standard that differentiate themselves and run on any device somebody wrote a driver for.

Here: the public names, once.
Not here: any code. Read in this order: `array/object.py` (what users hold), `graph/node.py` (what it stands for),
`ops/table.py` (what can be done), `schedule/fuse.py` (what becomes one kernel), `runtime/realize.py` (when it runs),
`driver/hookspecs.py` (what a device must do).
"""

import math as _math
import sys as _sys
from typing import TYPE_CHECKING, Any

from polygrad.array import Array, fft, linalg, random, special
from polygrad.array import ufuncs as _ufuncs
from polygrad.array.anomaly import detect_anomaly
from polygrad.array.autocasting import autocast
from polygrad.array.calls import checkpoint, custom_jvp, custom_vjp
from polygrad.array.config import device, get_device, set_device
from polygrad.array.creation import asarray, astype, can_cast, from_dlpack, result_type
from polygrad.array.evaluation import (
    drivers,
    eager,
    empty_cache,
    explain,
    launch_counter,
    list_devices,
    memory_stats,
    profile,
    realize,
    register_driver,
    set_matmul_precision,
    set_matmul_tuning,
    synchronize,
)
from polygrad.array.functions import FUNCTIONS as _FUNCTIONS
from polygrad.array.jacobians import hessian, hvp, jacfwd, jacobian, jacrev
from polygrad.array.namespace import __array_namespace_info__, broadcast_shapes, finfo, iinfo, isdtype
from polygrad.array.picture import viz
from polygrad.array.recording import enable_grad, is_grad_enabled, no_grad
from polygrad.array.tape import Tape, get_current_tape, set_current_tape
from polygrad.array.transforms import grad, jvp, linearize, stop_gradient, value_and_grad, vjp
from polygrad.array.vmapping import vmap
from polygrad.dtypes import (
    bfloat16,
    complex64,
    complex128,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
)
from polygrad.dtypes import bool_ as bool
from polygrad.errors import (
    AxisError,
    CaptureError,
    CompileError,
    CompileWarning,
    DataError,
    DeviceError,
    DeviceLost,
    DistributedError,
    DriverBlocked,
    DriverBroken,
    DriverError,
    DriverIncompatible,
    DriverNotFound,
    DriverUnavailable,
    DTypeError,
    FallbackWarning,
    GradError,
    LaunchError,
    OutOfBounds,
    OutOfMemory,
    PolygradError,
    ShapeError,
    StateError,
    TrainingError,
    UnsupportedOp,
)

__version__ = "0.1.0"
__array_api_version__ = "2025.12"

e = _math.e
pi = _math.pi
inf = _math.inf
nan = _math.nan
newaxis = None

globals().update(_FUNCTIONS)

_LAZY = ("nn", "optim", "data", "distributed", "io", "testing", "training")
_ELSEWHERE = {"compile": "polygrad.array.compiling", "summary": "polygrad.nn"}  # names, and what they are imported from

if TYPE_CHECKING:
    from polygrad import data, distributed, io, nn, optim, testing, training


def __getattr__(name: str) -> Any:
    """Import the kit when it is asked for."""
    if name in _LAZY:
        import importlib  # noqa: PLC0415  needed only for the kit

        return importlib.import_module(f"polygrad.{name}")
    if name in _ELSEWHERE:
        import importlib  # noqa: PLC0415  as above

        return getattr(importlib.import_module(_ELSEWHERE[name]), name)
    from polygrad.array.words import OF_PACKAGE, lacking  # noqa: PLC0415  only an error needs it

    raise lacking(name, "module 'polygrad'", _sys.modules[__name__], OF_PACKAGE)


__all__ = [
    "Array",
    "AxisError",
    "CaptureError",
    "CompileError",
    "CompileWarning",
    "DTypeError",
    "DataError",
    "DeviceError",
    "DeviceLost",
    "DistributedError",
    "DriverBlocked",
    "DriverBroken",
    "DriverError",
    "DriverIncompatible",
    "DriverNotFound",
    "DriverUnavailable",
    "FallbackWarning",
    "GradError",
    "LaunchError",
    "OutOfBounds",
    "OutOfMemory",
    "PolygradError",
    "ShapeError",
    "StateError",
    "Tape",
    "TrainingError",
    "UnsupportedOp",
    "asarray",
    "astype",
    "autocast",
    "bfloat16",
    "bool",
    "broadcast_shapes",
    "can_cast",
    "checkpoint",
    "complex64",
    "complex128",
    "custom_jvp",
    "custom_vjp",
    "data",
    "detect_anomaly",
    "device",
    "distributed",
    "drivers",
    "e",
    "eager",
    "empty_cache",
    "enable_grad",
    "explain",
    "fft",
    "finfo",
    "float16",
    "float32",
    "float64",
    "from_dlpack",
    "get_current_tape",
    "get_device",
    "grad",
    "hessian",
    "hvp",
    "iinfo",
    "inf",
    "int16",
    "int32",
    "int64",
    "int8",
    "io",
    "is_grad_enabled",
    "isdtype",
    "jacfwd",
    "jacobian",
    "jacrev",
    "jvp",
    "launch_counter",
    "linalg",
    "linearize",
    "list_devices",
    "memory_stats",
    "nan",
    "newaxis",
    "nn",
    "no_grad",
    "optim",
    "pi",
    "profile",
    "random",
    "realize",
    "register_driver",
    "result_type",
    "set_current_tape",
    "set_device",
    "set_matmul_precision",
    "set_matmul_tuning",
    "special",
    "stop_gradient",
    "synchronize",
    "testing",
    "training",
    "uint16",
    "uint32",
    "uint64",
    "uint8",
    "value_and_grad",
    "viz",
    "vjp",
    "vmap",
]
__all__.extend(sorted(_FUNCTIONS))
