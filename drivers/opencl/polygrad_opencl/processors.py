"""Names of processors that PoCL does not know, so that its compiler can be used on them.

PoCL asks its LLVM what the processor is called and hands the answer to its compiler. An LLVM that is older than the
processor answers "generic", which the compiler refuses: every kernel fails with "unknown target CPU 'generic'"
(pocl#1049). The PoCL that pip installs has LLVM 14, which knows no processor of the family of AMD's Zen 5. From
version 5.0 on PoCL reads the name from an environment variable (POCL_LLVM_CPU_NAME); this one has no such way, so the
name is written where PoCL keeps it: the field of its device that follows the target triple.

Here: finding that field, and which older processor's name to put there. Not here: devices of other runtimes; those of
PoCL that name their processor are left as they are.
"""

import ctypes
import itertools
import struct
from pathlib import Path
from typing import Any

UNKNOWN = "generic"
SEARCHED = 2048  # bytes of PoCL's device that are looked through; the field is within the first 700 of version 3.0
WORD = struct.Struct("P")
HASWELL = frozenset({"avx2", "fma", "bmi1", "bmi2", "f16c", "movbe", "abm"})
SKYLAKE = HASWELL | {"avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl", "adx"}
# A processor with AVX-512 gets PoCL's built-in functions for AVX-512, which code for a lesser one must not call.
OLDER = {"skylake-avx512": SKYLAKE, "haswell": HASWELL}

_names: dict[str, Any] = {}  # the texts that PoCL's devices point to, kept for the life of the process


def is_unknown(device: Any) -> bool:
    """Return whether the device is PoCL's on an x86 processor whose name its compiler refuses."""
    pocl = device.platform.name == "Portable Computing Language"
    return pocl and "x86_64" in device.version and device.version.endswith("-" + UNKNOWN)


def older_processor(features: set[str]) -> str | None:
    """Return the name of an older processor all of whose instructions this one has, or None.

    Examples
    --------
    >>> older_processor({*HASWELL, "sse4a"}), older_processor({"sse4_2"})
    ('haswell', None)
    """
    if "avx512f" in features and not features >= SKYLAKE:
        return None
    return next((name for name, needed in OLDER.items() if features >= needed), None)


def host_features(cpuinfo: Path = Path("/proc/cpuinfo")) -> set[str]:
    """Return the instructions of this processor by Linux's names; elsewhere none."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return set()
    return set(next((line.partition(":")[2] for line in lines if line.startswith("flags")), "").split())


def told(device: Any) -> str:
    """Return the name that the device's compiler was told by `make_known`, for caches of what it compiled; or ""."""
    return (older_processor(host_features()) or "") if is_unknown(device) else ""


def make_known(device: Any, features: set[str]) -> str | None:
    """Give a device for which `is_unknown` a name that its compiler takes; return None, or why that cannot be done."""
    advice = "install a newer PoCL, or Intel's runtime with pip install intel-opencl-rt intel-cmplr-lib-rt"
    message = f"{device.name.strip()} is left out: {device.version} does not know this processor ({{}}); {advice}"
    name = older_processor(features)
    if name is None:
        return message.format("nor is it like an older one that PoCL knows")
    try:
        place = _field(device.int_ptr)
    except (OSError, ValueError):
        place = None
    if place is None:
        return message.format("nor can it be told what to call it")
    text = _names.setdefault(name, ctypes.create_string_buffer(name.encode()))
    ctypes.memmove(place, WORD.pack(ctypes.addressof(text)), WORD.size)
    return None


def _field(device: int) -> int | None:
    """Return the address of the pointer to the processor's name in PoCL's device at an address; None if not found.

    Memory is read through the kernel, which answers with an error where there is none.
    """
    with Path("/proc/self/mem").open("rb", buffering=0) as memory:

        def text(address: int) -> bytes:
            try:
                memory.seek(address)
                return memory.read(64).partition(b"\0")[0]
            except (OSError, OverflowError, ValueError):
                return b""

        memory.seek(device)
        words = [word for (word,) in WORD.iter_unpack(memory.read(SEARCHED))]
        found = [
            n + 1
            for n, (triple, name) in enumerate(itertools.pairwise(words))
            if text(name).decode("latin-1") in (UNKNOWN, *OLDER) and text(triple).startswith(b"x86_64-")
        ]
    return device + found[0] * WORD.size if len(found) == 1 else None
