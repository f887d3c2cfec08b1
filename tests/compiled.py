"""Build a wheel whose scheduler is compiled and test it: python tests/compiled.py ENV

Here: what `./dev test` runs as its part "compiled scheduler". ENV is an environment with what the tests need, such as
that of the third-party drivers; polygrad is installed anew in it. Not here: the hook that compiles (`hatch_build.py`).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TESTS = (  # those that plan most graphs, and replace nothing in what is compiled
    "alike", "bundles*", "compile*", "dtypes", "einsum", "fused_*", "fusion", "indexing", "library_ops", "looking",
    "maxima_first", "nn", "optim*", "ordering", "overwriting", "products", "random_kernels", "regressions", "sharing",
    "sums", "templates", "threads", "updates", "views", "vmap",
)  # fmt: skip
IS_COMPILED = "import polygrad.schedule.fuse as f, sys; print(f.__file__); sys.exit(f.__file__.endswith('.py'))"


def clean() -> dict[str, str]:
    """Return the variables for a child: none that would let it see the checkout."""
    hidden = ("PYTHONPATH", "VIRTUAL_ENV", "POLYGRAD_DEVICE")
    kept = {k: v for k, v in os.environ.items() if k not in hidden}
    return kept | {"PYTHONSAFEPATH": "1", "POLYGRAD_DRIVERS_ONLY": "cpu"}


def main(folder: str) -> int:
    """Build, install and test; return 1 if anything fails."""
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        print("not run: compiling the scheduler needs a C compiler")
        return 0
    python = str(Path(folder, "bin", "python").absolute())  # not resolved: what the link leads to is the system's
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python]
    with tempfile.TemporaryDirectory() as work:
        environment = os.environ | {"HATCH_BUILD_HOOKS_ENABLE": "true"}
        subprocess.run([*pip, "wheel", "-q", "--no-deps", "-w", work, str(ROOT)], env=environment, check=True)
        wheel = str(next(Path(work).glob("polygrad_array-*.whl")))
        subprocess.run([*pip, "install", "-q", "--no-deps", "--force-reinstall", wheel], check=True)
        if subprocess.run([python, "-c", IS_COMPILED], cwd=work, env=clean(), check=False).returncode:
            print("polygrad is installed there, but its scheduler is not compiled")
            return 1
        files = [str(path) for name in TESTS for path in sorted(Path(ROOT, "tests").glob(f"test_{name}.py"))]
        command = [python, "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile", "-p", "no:cacheprovider", *files]
        return subprocess.run(command, cwd=ROOT, env=clean(), check=False).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
