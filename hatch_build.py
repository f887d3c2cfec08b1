"""Compiles the scheduler into the wheel: HATCH_BUILD_HOOKS_ENABLE=true python -m build --wheel

The modules that `pyproject.toml` names are compiled by mypyc; they are the same modules, with their annotations taken
at their word, and a new graph costs about two thirds of the time. A wheel that is built without the variable has them
as Python alone and runs everywhere. It takes a C compiler; nothing is written into the source tree.

Here: the build hook. Not here: why there are two ways (docs/adr/0027-the-scheduler-can-be-compiled.md).
"""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SETUP = """
from mypyc.build import mypycify
from setuptools import setup
modules = mypycify({arguments!r}, opt_level="2", group_name="polygrad", target_dir={target!r})
setup(name="compiled", packages=[], ext_modules=modules)
"""
# Types are checked strictly elsewhere: here nothing is read but what is compiled, and none of what that imports.
CHECKS = ("--config-file=", "--follow-imports=silent", "--ignore-missing-imports")


class CompileHook(BuildHookInterface[Any]):
    """Puts compiled modules into a wheel, beside their sources."""

    def dependencies(self) -> list[str]:
        """Return what the build needs beside hatchling."""
        return ["mypy>=1.18", "setuptools>=77"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, unless an editable installation is made: that one would not see edits any more."""
        if version == "editable":
            raise SystemExit("an editable installation cannot be compiled: unset HATCH_BUILD_HOOKS_ENABLE")
        root = Path(self.root)
        sources = [path for pattern in self.config["compile"] for path in sorted(root.glob(pattern))]
        names = [str(path.relative_to(root)) for path in sources if path.name != "__init__.py"]
        self._folder = tempfile.TemporaryDirectory(prefix="polygrad-compiled-")
        setup, cache, built, rest = (Path(self._folder.name, name) for name in ("setup.py", "cache", "built", "rest"))
        setup.write_text(SETUP.format(arguments=[*CHECKS, f"--cache-dir={cache}", *names], target=str(rest)))
        command = [sys.executable, str(setup), "build_ext", "--build-lib", str(built), "--build-temp", str(rest)]
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)  # noqa: S603  our own text
        if done.returncode:
            last = "\n".join((done.stdout + done.stderr).strip().splitlines()[-20:])
            raise SystemExit(f"the scheduler could not be compiled (is there a C compiler?):\n{last}")
        for library in built.rglob("*.*"):
            build_data["force_include"][str(library)] = str(library.relative_to(built))
        build_data["pure_python"], build_data["infer_tag"] = False, True

    def finalize(self, *_: Any) -> None:
        """Remove the temporary folder."""
        self._folder.cleanup()
