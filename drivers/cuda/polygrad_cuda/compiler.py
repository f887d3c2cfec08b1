"""CUDA C++ text to loaded functions: NVRTC, a cache on disk, a cache in the process.

Here: compiling and loading. Not here: where the text comes from, launching.

NVRTC is called with options of our own, not through `cupy.RawModule`: that one adds ``-ftz=true``, flushing float32
subnormals to zero.
"""

import hashlib
import os
import tempfile
from pathlib import Path
from typing import Any

from polygrad.driver import CompileError, count_build

# IEEE arithmetic: no contraction to fma, subnormals kept, division and square root correctly rounded.
OPTIONS = ("--std=c++17", "--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true")


def cache_folder() -> Path:
    """Return where compiled kernels are kept: under POLYGRAD_CACHE_DIR, else under the user's cache folder."""
    root = os.environ.get("POLYGRAD_CACHE_DIR")
    if root:
        return Path(root) / "cuda"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "polygrad" / "cuda"


class Compiler:
    """Compile and load for one device; every text is compiled once and kept."""

    def __init__(self, cupy: Any, device: str, architecture: str) -> None:
        self.cupy = cupy
        self.device = device
        self.architecture = architecture
        self.modules: dict[str, Any] = {}

    def function(self, source: str, name: str) -> int:
        """Return the address of the kernel *name* in *source*, compiling it if need be.

        Raises
        ------
        CompileError
            With the source and the compiler's log.
        """
        module = self.modules.get(source)
        if module is None:
            module = self.cupy.cuda.function.Module()
            module.load(self._binary(source))
            self.modules[source] = module
        return int(module.get_function(name).ptr)

    def _binary(self, source: str) -> bytes:
        version = self.cupy.cuda.nvrtc.getVersion()
        key = repr((source, OPTIONS, self.architecture, version)).encode()
        path = cache_folder() / f"{hashlib.sha256(key).hexdigest()}.bin"
        kept = _read(path)
        if kept is not None:
            return kept
        binary = self._compile(source)
        _write(path, binary)
        return binary

    def _compile(self, source: str) -> bytes:
        compiler = self.cupy.cuda.compiler
        try:
            binary, _ = compiler.compile_using_nvrtc(source, OPTIONS, arch=self.architecture, cache_in_memory=True)
        except compiler.CompileException as error:
            log = str(error)
            first = next((line for line in log.splitlines() if "error" in line), log[:200])
            raise CompileError(
                f"{self.device}: NVRTC refused a kernel: {first.strip()}; its text and the whole log are in the "
                "exception's source and log",
                source=source,
                log=log,
            ) from error
        count_build()
        return bytes(binary)


def _read(path: Path) -> bytes | None:
    """Return the kept binary, or None if there is none or it is damaged (it opens with its own digest)."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    return data[32:] if hashlib.sha256(data[32:]).digest() == data[:32] else None


def _write(path: Path, binary: bytes) -> None:
    """Keep *binary*; a cache that cannot be written only costs time, so a failure is passed over."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(hashlib.sha256(binary).digest() + binary)
        Path(file.name).replace(path)  # at once, so that no other process reads half a file
    except OSError:
        return
