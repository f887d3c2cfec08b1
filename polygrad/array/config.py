"""Which device new arrays go to, and the default dtypes that follow from it.

Here: the process-wide device, the per-thread override, default dtypes.
Not here: opening devices (the runtime).
"""

import contextlib
import os
import threading
from collections.abc import Iterator

from polygrad import dtypes
from polygrad.runtime.devices import state

FALLBACK = "cpu"


class _Local(threading.local):
    device: str | None = None


_local = _Local()
_process: list[str | None] = [None]


def set_device(device: str) -> str:
    """Make *device* the default of the whole process, opening it; return its full name.

    Parameters
    ----------
    device : str
        A driver's name and a number, such as ``"opencl:0"``; without a number the first; ``"auto"`` for the best that
        opens.

    Raises
    ------
    DeviceError
        If the driver has no such device.
    DriverError
        If the driver is missing, blocked, broken or cannot open it; the subclass and the sentence say which.

    Examples
    --------
    >>> import polygrad as pg
    >>> pg.set_device("cpu")
    'cpu:0'
    """
    name = state(device).name
    _process[0] = name
    return name


def get_device() -> str:
    """Return the device that new arrays go to.

    The innermost `device(...)` block's, else `set_device`'s, else ``POLYGRAD_DEVICE``.

    >>> import polygrad as pg
    >>> with pg.device("cpu:0"):
    ...     pg.get_device()
    'cpu:0'
    """
    found = _local.device or _process[0]
    if found is None:
        found = _process[0] = state(os.environ.get("POLYGRAD_DEVICE", FALLBACK)).name
    return found


@contextlib.contextmanager
def device(name: str) -> Iterator[str]:
    """Make *name* the default device of this thread within a block.

    >>> import polygrad as pg
    >>> with pg.device("cpu:0"):
    ...     pg.zeros(2).device
    'cpu:0'
    """
    before, _local.device = _local.device, state(name).name
    try:
        yield _local.device
    finally:
        _local.device = before


def resolve(name: object | None) -> str:
    """Return the full name of a ``device=`` argument; None is the default device."""
    return get_device() if name is None else state(str(name)).name


def default_float(name: str) -> dtypes.DType:
    """Return float64, or float32 on a device without it."""
    return dtypes.float64 if "float64" in state(name).info.dtypes else dtypes.float32


def default_complex(name: str) -> dtypes.DType:
    """Return complex128, or complex64 on a device without float64."""
    return dtypes.whole(default_float(name))


def held(name: str) -> frozenset[str]:
    """Return the names of the dtypes of a device's arrays: complex ones where it has those of their parts."""
    have = state(name).info.dtypes
    return have | {d.name for d in dtypes.COMPLEX if dtypes.part(d).name in have}


def default_int(name: str) -> dtypes.DType:
    """Return int64, or int32 on a device without it."""
    return dtypes.int64 if "int64" in state(name).info.dtypes else dtypes.int32
