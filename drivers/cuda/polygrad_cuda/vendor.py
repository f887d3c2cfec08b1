"""CuPy, imported when a device is opened, and the translation of its errors into the waist's.

Here: the one place that imports CuPy and knows CUDA's error numbers. Not here: memory, kernels, anything that is
launched.
"""

import importlib
import importlib.util
from typing import Any

from polygrad.driver import DeviceLost, DriverError, DriverUnavailable, LaunchError

INSTALL = "pip install 'polygrad-array[cuda]'"

OUT_OF_MEMORY = 2
# After one of these the context is gone: every later call answers with the same number until the process ends.
STICKY = {
    46: "the device is in use by another process or cannot be used",
    214: "an uncorrectable memory error",
    219: "an invalid link between devices",
    220: "an uncorrectable link error",
    700: "a kernel touched memory that is not its own",
    702: "a kernel ran into the display's time limit",
    709: "the context was destroyed",
    710: "a kernel failed an assertion",
    714: "a kernel overran the hardware's stack",
    715: "a kernel ran into an illegal instruction",
    716: "a kernel used a misaligned address",
    717: "a kernel used an address of the wrong space",
    718: "a kernel jumped out of its code",
    719: "a kernel failed",
    721: "a launch was corrupted",
}


def load() -> Any:
    """Import CuPy and check that cuBLAS can be reached through nvmath's bindings.

    Returns
    -------
    module
        cupy

    Raises
    ------
    DriverUnavailable
        If one of them is not installed or does not load; the sentence says what to install.
    """
    try:
        cupy = importlib.import_module("cupy")
    except ImportError as error:
        raise DriverUnavailable(f"driver 'cuda' needs CuPy, which does not load ({error}); {INSTALL}") from error
    if importlib.util.find_spec("nvmath") is None:
        raise DriverUnavailable(f"driver 'cuda' needs nvmath-python for cuBLAS, which is not installed; {INSTALL}")
    return cupy


def device_count(cupy: Any) -> int:
    """Return how many CUDA devices there are, at least one.

    Raises
    ------
    DriverUnavailable
        If CUDA finds none, or NVIDIA's kernel driver is missing or too old.
    """
    try:
        count = int(cupy.cuda.runtime.getDeviceCount())
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise DriverUnavailable(
            f"driver 'cuda' finds no usable NVIDIA GPU ({_says(error)}); it needs one, its driver 580 or newer, and "
            f"{INSTALL}"
        ) from error
    if count == 0:
        raise DriverUnavailable(
            f"driver 'cuda' finds no NVIDIA GPU; it needs one, its driver 580 or newer, and {INSTALL}"
        )
    return count


def vendor_errors(cupy: Any) -> tuple[type[Exception], ...]:
    """Return the exception classes through which CuPy reports CUDA's errors."""
    return (cupy.cuda.runtime.CUDARuntimeError, cupy.cuda.driver.CUDADriverError)


def translated(error: Exception, device: str, doing: str) -> DriverError:
    """Return the waist's exception for a CUDA *error* met on *device* while *doing* something."""
    status = int(getattr(error, "status", 0))
    if status in STICKY:
        return DeviceLost(
            f"{device} is lost: {STICKY[status]} ({_says(error)}), noticed while {doing}; nothing on it can be read "
            "any more, start a new process"
        )
    return LaunchError(f"{device} failed while {doing}: {_says(error)}")


def _says(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
