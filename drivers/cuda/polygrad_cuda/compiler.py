"""CUDA C++ text to loaded functions: NVRTC, a cache on disk, a cache in the process.

Here: compiling and loading. Not here: where the text comes from, launching.

NVRTC is called with options of our own, not through `cupy.RawModule`: that one adds ``-ftz=true``, flushing float32
subnormals to zero.
"""

from typing import Any

from polygrad.driver import CompileError, count_build
from polygrad.driver.caches import ProgramCache, cache_folder, key_of

# IEEE arithmetic: no contraction to fma, subnormals kept, division and square root correctly rounded.
OPTIONS = ("--std=c++17", "--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true")


class Compiler:
    """Compile and load for one device; every text is compiled once and kept."""

    def __init__(self, cupy: Any, device: str, architecture: str) -> None:
        self.cupy = cupy
        self.device = device
        self.architecture = architecture
        self.modules: dict[str, Any] = {}
        self.cache = ProgramCache(cache_folder("cuda"))

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
        key = key_of(source, *OPTIONS, self.architecture, str(version))
        kept = self.cache.load(key)
        if kept is not None:
            return kept
        binary = self._compile(source)
        self.cache.store(key, binary)
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
