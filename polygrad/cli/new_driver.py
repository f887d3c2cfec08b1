"""Write a new driver, as a distribution that works at once on host memory and is then edited.

Here: the name, the folder, and filling in the templates. Not here: what is written (the folder ``templates``).

Exit code: 0 if the distribution was written, 1 if it was not.
"""

import argparse
import importlib.resources
import pathlib
import sys

from polygrad.driver.discovery import core_version
from polygrad.driver.examination import NAME
from polygrad.driver.ir import VERSION as IR_VERSION
from polygrad.driver.loader import REGISTRY
from polygrad.driver.types import API
from polygrad.errors import DriverError

SUFFIX = ".template"
# Template to the place of what is made of it. In both, acme stands for the driver's name.
FILES = {
    "pyproject.toml": "pyproject.toml",
    "README.md": "README.md",
    "gitignore": ".gitignore",
    "workflow.yml": ".github/workflows/test.yml",
    "package.py": "polygrad_driver_acme/__init__.py",
    "driver.py": "polygrad_driver_acme/driver.py",
    "py.typed": "polygrad_driver_acme/py.typed",
    "test.py": "tests/test_acme_driver.py",
}
RESERVED = ("auto", "all")  # words that stand for several devices


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Take the name, and where to write."""
    parser.add_argument("name", metavar="NAME", help="of the driver: the part of a device's name before the colon")
    parser.add_argument(
        "--into", type=pathlib.Path, default=pathlib.Path(), metavar="FOLDER", help="where to write (default: here)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Write the distribution and say what to do with it."""
    name = check_name(arguments.name, REGISTRY.names())
    folder = arguments.into / f"polygrad-driver-{name}"
    check_absent(folder)
    for path, text in distribution(name).items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
    sys.stdout.write(
        f"Wrote {folder}, a driver on host memory that works as it is. Go on with\n\n"
        f"    cd {folder}\n"
        "    python -m pip install -e '.[test]'\n"
        "    python -m pytest\n"
        f"    python -m polygrad conformance {name}:0\n\n"
        f"and then edit polygrad_driver_{name}/driver.py, from the top down.\n"
    )
    return 0


def check_name(name: str, installed: list[str]) -> str:
    """Return *name* if a driver may be called so and none of those *installed* is.

    >>> check_name("acme", ["other"])
    'acme'
    """
    if not NAME.fullmatch(name):
        raise DriverError(
            f"a driver cannot be called {name!r}: names are made of a-z, 0-9 and _, a letter first, as acme"
        )
    if name in RESERVED:
        raise DriverError(f"a driver cannot be called {name!r}: the word stands for several devices; choose another")
    if name in installed:
        raise DriverError(
            f"a driver {name!r} is installed already, and of two neither would be loaded; choose another name"
        )
    return name


def check_absent(folder: pathlib.Path) -> None:
    """Raise unless *folder* can be made without touching anything that exists."""
    if folder.exists():
        raise DriverError(f"{folder} exists already; remove it, or choose another folder with --into")
    above = next(parent for parent in (*folder.parents, pathlib.Path()) if parent.exists())
    if not above.is_dir():
        raise DriverError(f"{above} is a file, so nothing can be written into it; choose a folder with --into")


def distribution(name: str) -> dict[str, str]:
    """Return path to text of every file of a new driver's distribution.

    >>> sorted(distribution("xpu"))[-2:]
    ['pyproject.toml', 'tests/test_xpu_driver.py']
    """
    version = core_version()
    known = version if version[0].isdigit() else "0.1"
    values = {
        "{{core}}": known,
        "{{next}}": str(int(known.partition(".")[0]) + 1),
        "{{api}}": f"({API[0]}, {API[1]})",
        "{{ir}}": f"({IR_VERSION[0]}, {IR_VERSION[1]})",
        "Acme": "".join(part.capitalize() for part in name.split("_")),
        "acme": name,
    }
    found = importlib.resources.files("polygrad.cli") / "templates"
    made = {}
    for template, path in FILES.items():
        text = (found / (template + SUFFIX)).read_text(encoding="utf-8")
        for word, value in values.items():
            text = text.replace(word, value)
        made[path.replace("acme", name)] = text
    return made
