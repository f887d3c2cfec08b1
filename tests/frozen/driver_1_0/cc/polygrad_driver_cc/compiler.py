"""The system's C compiler: found, asked what it makes, and run once for each source text that is new.

Here: source text to loaded functions. Not here: what the text says (the shared renderer writes it), launching.
"""

import ctypes
import functools
import os
import pathlib
import shlex
import shutil
import subprocess
import tempfile

from polygrad.driver import CompileError, DriverUnavailable, count_build
from polygrad.driver.caches import ProgramCache, cache_folder, key_of
from polygrad.driver.render import C99

run = functools.partial(subprocess.run, check=False, capture_output=True, text=True)


class Compiler:
    """A C compiler; shared objects are kept in a cache folder, by what they were made from and with."""

    def __init__(self) -> None:
        asked = shlex.split(os.environ.get("CC", ""))
        found = next((path for name in (asked[:1] or ("cc", "gcc", "clang")) if (path := shutil.which(name))), None)
        if found is None:
            looked = f"CC names {asked[0]!r}, which is not" if asked else "none of cc, gcc and clang is"
            raise DriverUnavailable(f"{looked} on PATH; install a C compiler, such as gcc, or set CC to one")
        # Its macros say all that matters of compiler and processor: which it is, its version, the instruction sets.
        for native in (["-march=native"], []):
            self.command = [found, *asked[1:], *C99.options, "-O3", *native, "-shared", "-fPIC", "-w"]
            told = run([*self.command, "-E", "-dM", "-x", "c", os.devnull])
            if told.returncode == 0:
                break
        else:
            raise DriverUnavailable(f"{found} does not compile C; set CC to a C compiler\n{told.stderr}")
        self.cache = ProgramCache(cache_folder("cc"))
        self.identity = shlex.join(self.command) + told.stdout
        self.version = told.stdout.partition('__VERSION__ "')[2].partition('"')[0]

    def load(self, text: str) -> ctypes.CDLL:
        """Return the library of *text*, compiled now unless it lies in the cache folder."""
        path = self.cache.path(key_of(self.identity, text), ".so")
        if not self.cache.claim(path):
            self._build(text, path)
        return ctypes.CDLL(str(path))

    def _build(self, text: str, path: pathlib.Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Compiled beside its place and moved there: another process sees a whole library or none.
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            source, made = pathlib.Path(folder, "kernel.c"), pathlib.Path(folder, "kernel.so")
            source.write_text(text, encoding="ascii")
            told = run([*self.command, "-o", str(made), str(source), "-lm"])
            if told.returncode:
                raise CompileError(f"{self.command[0]} refused a kernel: {told.stderr.strip()}", text, told.stderr)
            made.replace(path)
        count_build()
