"""The system's C compiler: found, asked what it makes, and run once for each source text that is new.

Here: source text to loaded functions. Not here: what the text says (the shared renderer writes it), launching.
"""

import ctypes
import hashlib
import os
import pathlib
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence

from polygrad.driver import CompileError, DriverUnavailable, count_build
from polygrad.driver.caches import cache_folder
from polygrad.driver.render import C99

NAMES = ("cc", "gcc", "clang")


class Compiler:
    """A C compiler; shared objects are kept in a cache folder, by what they were made from and with."""

    def __init__(self) -> None:
        asked = shlex.split(os.environ.get("CC", ""))
        found = next((path for name in (asked[:1] or NAMES) if (path := shutil.which(name))), None)
        if found is None:
            looked = f"CC names {asked[0]!r}, which" if asked else f"none of {', '.join(NAMES)}"
            raise DriverUnavailable(f"{looked} is on PATH; install a C compiler, such as gcc, or set CC to one")
        self.program, self.libraries = [found, *asked[1:]], dict[str, ctypes.CDLL]()
        # Its macros say all that matters of compiler and processor: which it is, its version, the instruction sets.
        for native in (["-march=native"], []):
            self.flags = [*C99.options, "-O3", *native, "-shared", "-fPIC", "-w"]
            told = self._run([*self.program, *self.flags, "-E", "-dM", "-x", "c", os.devnull])
            if told.returncode == 0:
                break
        else:
            raise DriverUnavailable(f"{found} cannot compile C: {told.stderr.strip()}; set CC to a C compiler")
        self.identity = shlex.join([*self.program, *self.flags]) + told.stdout
        macros = dict(line.split(" ", 2)[1:] for line in told.stdout.splitlines() if line.count(" ") > 1)
        self.version = f"{pathlib.Path(found).name} {macros.get('__VERSION__', '').strip(chr(34))}".strip()

    @staticmethod
    def _run(command: Sequence[str]) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(command, check=False, capture_output=True, text=True)  # noqa: S603  the user's compiler

    def load(self, text: str) -> ctypes.CDLL:
        """Return the library of *text*, from this process, from the cache folder, or compiled now.

        Raises
        ------
        CompileError
            With what the compiler says.
        """
        name = hashlib.sha256((self.identity + text).encode()).hexdigest()[:32]
        if name not in self.libraries:
            path = cache_folder("cc") / f"{name}.so"
            if not path.exists():
                self._build(text, path)
            self.libraries[name] = ctypes.CDLL(str(path))
        return self.libraries[name]

    def _build(self, text: str, path: pathlib.Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Compiled beside its place and moved there: another process sees a whole library or none.
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            source, made = pathlib.Path(folder, "kernel.c"), pathlib.Path(folder, "kernel.so")
            source.write_text(text, encoding="ascii")
            told = self._run([*self.program, *self.flags, "-o", str(made), str(source), "-lm"])
            if told.returncode:
                raise CompileError(f"{self.version} cannot compile a kernel: {told.stderr.strip()}\n{text}")
            made.replace(path)
        count_build()
