"""The rules of this house that a program can check.

Here: docstrings, lengths, names of files, introductions of folders, what importing polygrad loads. Not here: style and
types, which ruff and mypy check; who may import whom, which import-linter checks.
"""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = (
    "polygrad",
    "drivers/cpu/polygrad_cpu",
    "drivers/opencl/polygrad_opencl",
    "drivers/cuda/polygrad_cuda",
    "conformance/polygrad_conformance",
)
MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
TOP_FOLDERS = (
    "polygrad",
    "drivers/cpu",
    "drivers/opencl",
    "drivers/cuda",
    "conformance",
    "benchmarks",
    "examples",
    "docs",
    "tests",
    "changelog.d",
)
MOST_LINES = 600
BANNED_NAMES = {"utils", "util", "misc", "helpers", "helper", "common", "manager", "stuff"}
BANNED_WORDS = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")


def name(path):
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_a_module_says_what_lives_here_and_what_must_not(path):
    doc = ast.get_docstring(ast.parse(path.read_text())) or ""
    first = doc.partition("\n")[0]
    assert first, "no docstring"
    if path.name in ("__init__.py", "__main__.py") and len(path.read_text().splitlines()) <= 12:
        return  # a package that only names what is in it is introduced by that list
    assert re.search(r"^Here: ", doc, re.MULTILINE), "the docstring has no line 'Here: ...'"
    assert re.search(r"\bNot\s+here: ", doc), "the docstring does not say 'Not here: ...'"


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_a_module_is_short_enough_to_be_read_once(path):
    lines = len(path.read_text().splitlines())
    assert lines <= MOST_LINES, f"{lines} lines; split it by idea"


def test_file_names_say_what_is_inside():
    files = [*MODULES, *(ROOT / "tests").glob("*.py"), *(ROOT / "benchmarks").glob("*.py")]
    assert [name(p) for p in files if p.stem in BANNED_NAMES] == []


def test_nothing_is_left_for_later_without_a_word():
    found = [name(p) for p in MODULES if BANNED_WORDS.search(p.read_text())]
    assert found == []


def test_no_exception_is_swallowed_whole():
    found = []
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ExceptHandler):
                continue
            wide = node.type is None or (
                isinstance(node.type, ast.Name) and node.type.id in ("Exception", "BaseException")
            )
            if wide and all(isinstance(step, ast.Pass) for step in node.body):
                found.append(f"{name(path)}:{node.lineno}")
    assert found == []


@pytest.mark.parametrize("folder", TOP_FOLDERS)
def test_a_folder_introduces_itself(folder):
    assert (ROOT / folder / "README.md").exists()


def test_the_readme_says_the_two_commands():
    text = (ROOT / "README.md").read_text()
    assert "./dev demo" in text
    assert "./dev test" in text


def test_every_public_function_and_class_has_a_docstring():
    import polygrad as pg

    places = {
        "pg": pg, "pg.nn": pg.nn, "pg.optim": pg.optim, "pg.data": pg.data, "pg.io": pg.io, "pg.random": pg.random,
        "pg.training": pg.training, "pg.distributed": pg.distributed,
    }  # fmt: skip
    bare = [
        f"{place}.{n}"
        for place, module in places.items()
        for n in (getattr(module, "__all__", None) or [n for n in vars(module) if not n.startswith("_")])
        if getattr(getattr(module, n), "__module__", "").startswith("polygrad")
        and callable(getattr(module, n))
        and not (getattr(module, n).__doc__ or "").strip()
    ]
    assert bare == []


def test_importing_polygrad_loads_no_driver_and_nothing_heavy():
    code = (
        "import sys, polygrad\n"
        "heavy = ('polygrad_cpu', 'polygrad_opencl', 'polygrad_cuda', 'pyopencl', 'cupy', 'scipy', 'safetensors', "
        "'torch', 'pytest', 'polygrad.nn',\n"
        "         'polygrad.optim', 'polygrad.data', 'polygrad.io', 'polygrad.testing', 'polygrad.cli',\n"
        "         'polygrad.training', 'polygrad.distributed')\n"
        "print(*[m for m in heavy if m in sys.modules])\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert run.stdout.split() == []


def test_the_wheel_would_ship_what_is_typed():
    for package in PACKAGES:
        assert (ROOT / package / "py.typed").exists(), f"{package} has no py.typed"
