"""The pages for authors of drivers: made from the code as it is now, with commands that work and tests that exist.

Here: docs/reference, the console blocks of all pages, the ids and tables that pages tell. Not here: programs in Python
and local links (`test_documentation.py`), anchors (mkdocs, which the build runs strictly).
"""

import fnmatch
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from polygrad_conformance.checks import LEVELS, TIERS

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = ["README.md", *sorted(str(p.relative_to(ROOT)) for p in DOCS.rglob("*.md"))]
INSTALL = "python -m pip install -e '.[test]'"


@pytest.fixture(scope="module")
def reference():
    spec = importlib.util.spec_from_file_location("reference", DOCS / "reference.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["hooks.md", "kernels.md", "semantics.md"])
def test_a_page_of_reference_is_current(reference, name):
    made = reference.PAGES[name]().rstrip() + "\n"
    assert (DOCS / "reference" / name).read_text() == made, "run python docs/reference.py"


def test_every_page_of_reference_is_made(reference):
    assert {p.name for p in (DOCS / "reference").iterdir()} == set(reference.PAGES)


def test_the_reference_holds_every_hook_instruction_and_op(reference):
    from polygrad.driver import ACCELERATED_OPS
    from polygrad.driver.examination import KNOWN_HOOKS
    from polygrad.driver.ir import SCALAR_OPS

    hooks, kernels = reference.hooks_page(), reference.ir_page()
    assert all(f"\n## {hook}\n" in hooks for hook in KNOWN_HOOKS)
    assert all(f"| `{op}` |" in hooks for op in ACCELERATED_OPS)
    structural = ("load", "scalar", "const", "iota", "cast", "bitcast", "where", "reduce")
    assert all(f"\n| `{op}` |" in kernels for op in (*structural, *SCALAR_OPS))
    assert not re.search(r"<<\w+>>", kernels + hooks + reference.semantics_page())
    for cls in ("DriverInfo", "DeviceInfo", "Limits", "Features", "Ref", "MemoryInfo"):
        part = hooks.partition(f"### {cls}\n")[2].partition("\n##")[0]
        assert part.count("\n| `") == len(getattr(reference.types, cls).__annotations__), cls


def test_measured_errors_are_below_their_ceilings(reference):
    import json

    from polygrad_conformance import error_model, ulp

    for label, figures in json.loads((DOCS / "measured_ulp.json").read_text()).items():
        for name, worst in figures.items():
            op, _, dtype = name.partition(".")
            assert worst <= ulp.ceiling(op, dtype), (label, name)
            assert op in error_model.CEILING


# ---- commands --------------------------------------------------------------------------------------------------


def commands(page):
    """Return the console blocks of a page, each a list of commands."""
    found = re.findall(r"```console\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    return [[line[2:] for line in block.splitlines() if line.startswith("$ ")] for block in found]


class Shell:
    """A folder in which the commands of a page are run, one after the other."""

    def __init__(self, home):
        self.home = self.cwd = home
        programs = home / "bin"
        programs.mkdir()
        (programs / "python").symlink_to(sys.executable)
        paths = [str(ROOT), *(str(ROOT / f"drivers/{d}") for d in ("cpu", "opencl", "cuda")), str(ROOT / "conformance")]
        kept = {k: v for k, v in os.environ.items() if not k.startswith("POLYGRAD_")}
        # PATH leads to a link outside of the environment, so its packages are named.
        paths += [p for p in sys.path if p.endswith("site-packages")]
        self.environ = kept | {
            "PATH": f"{programs}{os.pathsep}{kept['PATH']}",
            "PYTHONPATH": os.pathsep.join(paths),
            "POLYGRAD_DRIVERS_ONLY": "cpu,acme",
        }

    def run(self, command):
        if command.startswith("cd "):
            self.cwd = self.cwd / command[3:]
            assert self.cwd.is_dir()
            return
        if command == INSTALL:
            self.install()
            return
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.cwd,
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"

    def install(self):
        """Do what pip does to an editable distribution, without pip: `examples/third_party.py` tries it with pip."""
        project = tomllib.loads((self.cwd / "pyproject.toml").read_text())["project"]
        info = self.cwd / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
        )
        entries = "".join(f"{k} = {v}\n" for k, v in project["entry-points"]["polygrad.drivers"].items())
        (info / "entry_points.txt").write_text(f"[polygrad.drivers]\n{entries}")
        self.environ["PYTHONPATH"] = f"{self.cwd}{os.pathsep}{self.environ['PYTHONPATH']}"


@pytest.mark.parametrize("page", [p for p in PAGES if commands(p)])
def test_the_commands_of_a_page_work_in_order(page, tmp_path):
    if shutil.which("bash") is None:
        pytest.skip("not run: needs bash")
    shell = Shell(tmp_path)
    for block in commands(page):
        assert block, f"a console block of {page} without a command"
        for command in block:
            shell.run(command)


def test_extras_that_pages_install_exist():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = [e for page in PAGES for e in re.findall(r"polygrad-array\[(\w[\w-]*)\]", (ROOT / page).read_text())]
    assert named
    assert set(named) <= set(extras)


def test_commands_that_prose_names_exist():
    from polygrad.cli import COMMANDS

    named = {word for page in PAGES for word in re.findall(r"python -m polygrad ([a-z-]+)", (ROOT / page).read_text())}
    assert named <= set(COMMANDS)
    assert {"new-driver", "conformance", "doctor", "drivers", "devices"} <= named


# ---- what pages tell of the suite --------------------------------------------------------------------------------


def test_tests_that_pages_cite_exist():
    manifest = (ROOT / "conformance/polygrad_conformance/manifest.txt").read_text().split()
    for page in ("docs/versions.md", "docs/read-a-report.md", "docs/write-a-driver.md"):
        cited = re.findall(r"\bL\d\.[\w.*]+[\w*]", (ROOT / page).read_text())
        assert cited
        for pattern in cited:
            assert fnmatch.filter(manifest, pattern), f"{page} cites {pattern}, which no test is called"


def test_the_page_of_reports_knows_every_level_and_tier():
    text = (DOCS / "read-a-report.md").read_text()
    for level, name in LEVELS.items():
        row = re.search(rf"^\| {level} {name} \| .* \| (\w+) \|$", text, re.MULTILINE)
        assert row, name
        assert row[1] == next(t for t, last in TIERS.items() if level <= last)
