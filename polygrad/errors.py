"""Every exception that polygrad raises, and the sentence that each one says.

Here: classes only. A class that can own its wording takes facts and writes the sentence, so that the sentence exists
once; the general ones (`ShapeError`, `DTypeError`, `GradError`) are given theirs by the rule that found the fault.
Not here: the checks themselves.

    PolygradError
        ShapeError(ValueError)          shapes, axes or sizes that do not fit
        DTypeError(TypeError)           dtypes that do not fit
        DeviceError(ValueError)         operands on different devices, a device that does not exist or is closed
        GradError(RuntimeError)         a derivative that cannot be had
        OutOfBounds(IndexError)         an index or label outside its axis
        CaptureError(RuntimeError)      a function that cannot be captured
        StateError(ValueError)          a saved state or file that does not fit, or is damaged
        DataError(RuntimeError)         a data set or a worker that failed, too little data
        TrainingError(RuntimeError)     a training run that cannot go on, or cannot begin
        DistributedError(RuntimeError)  a job of several processes that was not started, does not agree, or lost one
        DriverError(RuntimeError)
            DriverNotFound              no distribution advertises the name
            DriverUnavailable           its hardware or library is absent
            DriverBroken                it raised while it was loaded or opened
            DriverIncompatible          it speaks another version of the interface
            DriverBlocked               it was blocked by environment
            OutOfMemory(MemoryError)    the device has no room
            UnsupportedOp(NotImplementedError)
            CompileError                the device's compiler refused a kernel
            LaunchError                 a launch failed
            DeviceLost                  the device is gone; nothing on it can be read
"""

from collections.abc import Sequence


class PolygradError(Exception):
    """The root: `except pg.PolygradError` catches whatever polygrad itself raises."""


class ShapeError(PolygradError, ValueError):
    """Shapes, axes or sizes do not fit."""


class AxisError(ShapeError, IndexError):
    """An axis that an array does not have; what NumPy calls so."""


class DTypeError(PolygradError, TypeError):
    """Dtypes do not fit."""


class DeviceError(PolygradError, ValueError):
    """Operands live on different devices, or a device does not exist or is closed; polygrad never copies silently."""

    @classmethod
    def mixed(cls, op: str, operands: Sequence[str]) -> "DeviceError":
        """Operands of one op on several devices; *operands* are descriptions like ``float32[3, 4] on cpu:0``."""
        return cls(
            f"cannot {op} {' and '.join(operands)}: operands must be on one device; move one with .to_device(...)"
        )


class GradError(PolygradError, RuntimeError):
    """A derivative cannot be had."""


class OutOfBounds(PolygradError, IndexError):
    """An index or label lies outside its axis."""


class CaptureError(PolygradError, RuntimeError):
    """A function cannot be captured by pg.compile or read by pg.vmap: it looks at a value."""


class StateError(PolygradError, ValueError):
    """A saved state does not fit what it is loaded into, or a file of it is damaged; nothing was changed."""


class DataError(PolygradError, RuntimeError):
    """A data set or a worker that reads it failed, or there is too little data."""


class TrainingError(PolygradError, RuntimeError):
    """A training run cannot go on (a loss that is not finite, say), or one of its parts cannot be made as was asked."""


class DistributedError(PolygradError, RuntimeError):
    """A job of several processes was not started right, its ranks do not do the same, or one of them is gone."""


class DriverError(PolygradError, RuntimeError):
    """A driver failed; the subclass says how."""


class DriverNotFound(DriverError):
    """No installed distribution advertises a driver of this name."""


class DriverUnavailable(DriverError):
    """The driver is installed, but its hardware or library is absent."""


class DriverBroken(DriverError):
    """The driver raised while it was imported, registered or opened."""


class DriverIncompatible(DriverError):
    """The driver speaks another version of the interface."""


class DriverBlocked(DriverError):
    """The driver was blocked by environment before it was imported."""


class OutOfMemory(DriverError, MemoryError):
    """The device has no room for an allocation."""


class UnsupportedOp(DriverError, NotImplementedError):
    """A driver was asked for an op, a dtype or a signature that it does not offer."""


class CompileError(DriverError):
    """The device's compiler refused a kernel; `source` and `log` hold what it was given and what it said."""

    def __init__(self, message: str, source: str = "", log: str = "") -> None:
        super().__init__(message)
        self.source = source
        self.log = log


class LaunchError(DriverError):
    """A launch failed on the device."""


class DeviceLost(DriverError):
    """The device is gone: its arrays cannot be read any more."""


class FallbackWarning(UserWarning):
    """An op ran on the host's device because the array's own device lacks it."""


class CompileWarning(UserWarning):
    """A compiled function is captured again and again."""
