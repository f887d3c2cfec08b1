"""Which OpenCL devices there are, and in which order polygrad numbers them.

Here: finding runtimes that pip installed, listing and sorting devices, picking by name, the guard against `fork`. Not
here: contexts, queues, memory. Nothing in this module runs before the first question is asked: enumerating freezes
the loader's list of runtimes for the life of the process, and some runtimes hang in a child that was forked after it.
"""

import atexit
import os
import pathlib
import shutil
import sys
import tempfile
import threading
from typing import Any

from polygrad.driver import DeviceLost, DriverUnavailable
from polygrad_opencl import processors

VENDORS = pathlib.Path("/etc/OpenCL/vendors")
SIMULATORS = ("oclgrind",)

_lock = threading.Lock()
_listed: list[Any] | None = None
_left_out: list[str] = []  # why devices are not listed
_forked = False


def _poison() -> None:
    """Remember in a child process that OpenCL was in use before the fork."""
    global _forked  # noqa: PLW0603  the state of this process
    _forked = _forked or _listed is not None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_poison)


def check_process() -> None:
    """Raise DeviceLost in a process that was forked after OpenCL was opened: its threads do not exist there."""
    if _forked:
        message = (
            "OpenCL was opened before this process was forked, and its threads did not survive the fork; "
            'start workers with multiprocessing.get_context("spawn") instead'
        )
        raise DeviceLost(message)


def register_installed_runtimes(environ: dict[str, str] | Any = os.environ, prefix: str = sys.prefix) -> str | None:
    """Tell the loader of Intel's CPU runtime if pip installed it, and return the folder made for it, or None.

    The wheel's own registration names a folder of its build machine, so the loader does not find it. A folder given
    in OCL_ICD_VENDORS replaces the system's, hence the copies. Does nothing if the user has set one of the loader's
    variables, or if the maths library that the runtime needs (package intel-cmplr-lib-rt) is missing.
    """
    if "OCL_ICD_VENDORS" in environ or "OPENCL_VENDOR_PATH" in environ:
        return None
    library = pathlib.Path(prefix, "lib")
    runtime = library / "libintelocl.so"
    if not (runtime.exists() and (library / "libsvml.so").exists()):
        return None
    folder = tempfile.mkdtemp(prefix="polygrad-opencl-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for registration in VENDORS.glob("*.icd"):
        pathlib.Path(folder, registration.name).write_text(registration.read_text())
    pathlib.Path(folder, "intel-pip.icd").write_text(f"{runtime}\n")
    environ["OCL_ICD_VENDORS"] = folder
    return folder


def vendor_library() -> Any:
    """Return the module `pyopencl`; DriverUnavailable says how to install it."""
    try:
        import pyopencl
    except ImportError as error:
        message = f"the opencl driver needs pyopencl ({error}); pip install 'pyopencl[pocl]' brings a CPU runtime too"
        raise DriverUnavailable(message) from error
    return pyopencl


def is_simulator(device: Any) -> bool:
    """Return whether the device belongs to a debugging simulator; those set every bit of their type."""
    return any(name in device.platform.name.lower() for name in SIMULATORS)


def device_kind(device: Any) -> str:
    """Return ``"gpu"``, ``"accelerator"`` or ``"cpu"``."""
    types = vendor_library().device_type
    if not is_simulator(device):
        if device.type & types.GPU:
            return "gpu"
        if device.type & types.ACCELERATOR:
            return "accelerator"
    return "cpu"


def rank(device: Any, position: int) -> tuple[bool, int, str, str, int]:
    """Return the sort key of a device: real before simulated, GPUs before CPUs, then names."""
    kind = ("gpu", "accelerator", "cpu").index(device_kind(device))
    return is_simulator(device), kind, device.platform.name, device.name, position


def _raw_devices(cl: Any) -> list[tuple[int, int, Any]]:
    """Return (platform number, number in the platform, device) as the loader gives them."""
    try:
        platforms = cl.get_platforms()
    except cl.LogicError as error:
        if "PLATFORM_NOT_FOUND" in str(error):
            return []
        raise
    found = []
    for p, platform in enumerate(platforms):
        try:
            devices = platform.get_devices()
        except cl.Error:  # a platform without devices answers with an error
            continue
        found += [(p, d, device) for d, device in enumerate(devices) if device.available and device.compiler_available]
    return [entry for entry in found if _compiles(entry[2])]


def _compiles(device: Any) -> bool:
    """Return whether the device's compiler knows its processor, and remember why not."""
    if not processors.is_unknown(device):
        return True
    why = processors.make_known(device, processors.host_features())
    if why is not None:
        _left_out.append(why)
    return why is None


def matches(wanted: str, platform: int, position: int, device: Any) -> bool:
    """Return whether *wanted* selects the device: ``"portable"``, ``"1"``, ``"intel:0"``, ``":0"``, as for PyOpenCL.

    Before the colon stands a part of the platform's or the device's name, or the platform's number; after it a part
    of the device's name or its number in the platform.
    """
    first, _, second = wanted.lower().partition(":")
    names = f"{device.platform.name}\n{device.platform.vendor}\n{device.name}".lower()
    if first and not (platform == int(first) if first.isdigit() else first in names):
        return False
    return not second or (position == int(second) if second.isdigit() else second in device.name.lower())


def list_devices() -> list[Any]:
    """Return the usable devices in polygrad's order; found once a process."""
    global _listed  # noqa: PLW0603  the loader's list is frozen for the process too
    check_process()
    with _lock:
        if _listed is None:
            cl = vendor_library()
            register_installed_runtimes()
            wanted = os.environ.get("POLYGRAD_OPENCL") or os.environ.get("PYOPENCL_CTX") or ""
            found = [(rank(device, d), device) for p, d, device in _raw_devices(cl) if matches(wanted, p, d, device)]
            _listed = [device for _, device in sorted(found, key=lambda pair: pair[0])]
        return _listed


def find_device(ordinal: int) -> Any:
    """Return device number *ordinal*; DriverUnavailable lists what there is."""
    devices = list_devices()
    if 0 <= ordinal < len(devices):
        return devices[ordinal]
    if not devices:
        wanted = os.environ.get("POLYGRAD_OPENCL") or os.environ.get("PYOPENCL_CTX")
        chosen = f" that matches {wanted!r}" if wanted else ""
        searched = os.environ.get("OCL_ICD_VENDORS") or os.environ.get("OPENCL_VENDOR_PATH") or str(VENDORS)
        message = (
            f"no OpenCL device{chosen} was found (the loader read {searched} and the folder of pyopencl); "
            "install a GPU's driver, or a CPU runtime with pip install 'pyopencl[pocl]'"
        )
        raise DriverUnavailable("; ".join(_left_out) or message)
    known = ", ".join(f"opencl:{n} is {d.name.strip()} ({d.platform.name.strip()})" for n, d in enumerate(devices))
    raise DriverUnavailable(f"there is no device opencl:{ordinal}; {known}")
