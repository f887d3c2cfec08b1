"""From source text to kernel objects: compiling, remembering, and one set of kernel objects a thread.

Here: programs and kernels. Not here: what the source says, memory, geometry.

A kernel object holds its arguments until it is enqueued, so two threads must not share one: each thread makes its
own. PoCL compiles the code of a work-group at a kernel's first launch; the program's binary holds that code only
afterwards, which is why a binary goes to the disk cache after the first launch of each of its kernels, not after the
build. An entry of the cache is the names of the kernels whose code is in it, a line feed, and the binary.
"""

import threading
from collections.abc import Sequence
from typing import Any

from polygrad.driver import CompileError, count_build
from polygrad.driver.caches import ProgramCache, key_of
from polygrad_opencl import processors
from polygrad_opencl.devices import is_simulator

OPTIONS = "-w"  # no warnings about generated text; no flag that trades accuracy for speed, whatever the device
# Without it a GPU's division and square root of float32 may be 2.5 and 3 ULP off; CPUs round right anyhow.
EXACT = "-cl-fp32-correctly-rounded-divide-sqrt"
# Oclgrind 21.10 misreads optimised code: a vector select whose arm is a constant 1 gives 255, and it stops at `freeze`.
SIMULATED = f"{OPTIONS} -cl-opt-disable"


class Program:
    """A built program and what is known of its kernels."""

    def __init__(self, store: "ProgramStore", built: Any, key: str, saved: frozenset[str]) -> None:
        self.store = store
        self.built = built
        self.key = key
        self.saved = saved
        self._local = threading.local()

    def kernel(self, name: str, dtypes: Sequence[Any]) -> Any:
        """Return this thread's kernel object called *name*; *dtypes* are those of scalars, None for buffers."""
        kernels = self._local.__dict__
        found = kernels.get(name)
        if found is None:
            found = self.store.cl.Kernel(self.built, name)
            found.set_scalar_arg_dtypes(list(dtypes))
            kernels[name] = found
        return found

    def launched(self, name: str) -> None:
        """Note that a kernel has run; its code goes to the disk cache if it is not there yet, which waits."""
        if name not in self.saved:
            self.saved |= {name}
            self.store.save(self)


class ProgramStore:
    """The programs of one device, by source text."""

    def __init__(self, cl: Any, queue: Any, cache: ProgramCache) -> None:
        self.cl = cl
        self.queue = queue
        self.context = queue.context
        self.device = queue.device
        self.cache = cache
        self._programs: dict[str, Program] = {}
        self._lock = threading.Lock()
        device = self.device
        self.options = SIMULATED if is_simulator(device) else OPTIONS
        if device.single_fp_config & cl.device_fp_config.CORRECTLY_ROUNDED_DIVIDE_SQRT and not (
            device.type & cl.device_type.CPU
        ):
            self.options += f" {EXACT}"
        platform = device.platform
        identity = (platform.name, platform.version, device.name, device.version, device.driver_version)
        unique = getattr(device, "hashable_model_and_version_identifier", None)
        self._identity = (*map(str, identity), str(unique), self.options, processors.told(device))

    def program(self, source: str) -> Program:
        """Return the program of *source*, from memory, from disk or from the compiler."""
        found = self._programs.get(source)
        if found is None:
            with self._lock:
                found = self._programs.get(source)
                if found is None:
                    found = self._programs[source] = self._load(source) or self._compile(source)
        return found

    def _load(self, source: str) -> Program | None:
        key = key_of(source, *self._identity)
        entry = self.cache.load(key)
        if entry is None:
            return None
        names, _, binary = entry.partition(b"\n")
        try:
            built = self.cl._cl._Program(self.context, [self.device], [binary])
            built._build(self.options.encode(), None)
        except self.cl.Error:  # the runtime changed its mind about the format: compile again
            self.cache.drop(key)
            return None
        return Program(self, self.cl.Program(built), key, frozenset(names.decode().split()))

    def _compile(self, source: str) -> Program:
        # pyopencl's Program would consult a cache of its own, which compiles twice on PoCL (pyopencl#731),
        # and turn any remark of the compiler into a Python warning; the class underneath does neither.
        built = self.cl._cl._Program(self.context, source)
        try:
            built._build(self.options.encode(), None)
        except self.cl.Error as error:
            log = self._log(built)
            message = f"{self.device.name.strip()} could not compile a kernel: {log.strip()[:600] or error}"
            raise CompileError(message, source, log) from error
        count_build()
        return Program(self, self.cl.Program(built), key_of(source, *self._identity), frozenset())

    def _log(self, built: Any) -> str:
        try:
            return str(built.get_build_info(self.device, self.cl.program_build_info.LOG))
        except self.cl.Error:  # no log is no reason to hide the compiler's refusal
            return ""

    def save(self, program: Program) -> None:
        """Write the program's binary to the disk cache, once its launches are done."""
        try:
            self.queue.finish()
            binary = program.built.get_info(self.cl.program_info.BINARIES)[0]
        except self.cl.Error:  # a runtime without binaries simply compiles each time
            return
        if binary:
            self.cache.store(program.key, " ".join(sorted(program.saved)).encode() + b"\n" + binary)
