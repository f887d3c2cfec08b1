"""Copy the sample drivers as they are now into `tests/frozen`, once for each minor version of the interface.

Here: the copying. Not here: running the copies (`test_frozen_drivers.py`). Run it as `python tests/freeze.py` when
`API` in `polygrad/driver/types.py` has grown; a folder that exists is left alone.
"""

import hashlib
import shutil
import sys
from pathlib import Path

from polygrad.cli import new_driver
from polygrad.driver import API

ROOT = Path(__file__).resolve().parent.parent
FROZEN = ROOT / "tests" / "frozen"
EXAMPLES = ("cc", "torch")
DIGEST = "SHA256"


def name_of(api):
    """Return the name of the folder of a version of the interface."""
    return f"driver_{api[0]}_{api[1]}"


def freeze(folder):
    """Copy every sample driver into *folder*, a folder for each distribution; tests are left out."""
    for name in EXAMPLES:
        source = ROOT / "examples" / f"driver-{name}"
        shutil.copytree(
            source / f"polygrad_driver_{name}", folder / name / f"polygrad_driver_{name}",
            ignore=shutil.ignore_patterns("__pycache__"),
        )  # fmt: skip
        shutil.copy(source / "pyproject.toml", folder / name)
    for path, text in new_driver.distribution("acme").items():
        if path == "pyproject.toml" or path.startswith("polygrad_driver_acme/"):
            place = folder / "acme" / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text, encoding="utf-8")


def digest(folder):
    """Return a hash of all files in *folder*, names and contents, but for the one that holds it."""
    whole = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts):
        if path.name != DIGEST:
            whole.update(f"{path.relative_to(folder).as_posix()}\n".encode() + path.read_bytes())
    return whole.hexdigest()


if __name__ == "__main__":
    wanted = FROZEN / name_of(API)
    if wanted.exists():
        sys.exit(f"{wanted.name} is frozen already, and is never edited")
    freeze(wanted)
    (wanted / DIGEST).write_text(digest(wanted) + "\n")
    print(f"frozen: {wanted.name}")
