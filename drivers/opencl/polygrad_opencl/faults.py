"""What OpenCL's error codes mean in polygrad's words.

Here: the mapping from PyOpenCL's exceptions to polygrad's. Not here: retries (the core's memory pool does them).
"""

from typing import Any

from polygrad.driver import DeviceLost, LaunchError, OutOfMemory

NO_ROOM = ("MEM_OBJECT_ALLOCATION_FAILURE", "OUT_OF_RESOURCES", "OUT_OF_HOST_MEMORY", "INVALID_BUFFER_SIZE")
LOST = ("DEVICE_NOT_AVAILABLE", "INVALID_COMMAND_QUEUE", "INVALID_CONTEXT", "INVALID_DEVICE")


def translated(error: Exception, device: str, doing: str) -> Exception:
    """Return polygrad's exception for what PyOpenCL raised while *doing* something on *device*.

    >>> translated(RuntimeError("clFinish failed: OUT_OF_RESOURCES"), "opencl:0", "run kernel 'k'")
    OutOfMemory("opencl:0 could not run kernel 'k': clFinish failed: OUT_OF_RESOURCES")
    """
    text = f"{device} could not {doing}: {error}"
    kind: Any = LaunchError
    if isinstance(error, MemoryError) or any(code in str(error) for code in NO_ROOM):
        kind = OutOfMemory
    elif any(code in str(error) for code in LOST):
        kind = DeviceLost
    return kind(text)  # type: ignore[no-any-return]
