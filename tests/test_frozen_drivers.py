"""Drivers written for earlier versions of the interface still load, conform and train.

Here: the copies in `tests/frozen`, each in a process of its own. Not here: the drivers as they are now.
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from polygrad.driver import API
from support.programs import TRAINING

ROOT = Path(__file__).resolve().parent.parent
FROZEN = ROOT / "tests" / "frozen"
DRIVERS = sorted(p.parent for p in FROZEN.glob("driver_*/*/pyproject.toml"))


def test_this_version_of_the_interface_is_frozen():
    found = {p.name for p in (FROZEN / f"driver_{API[0]}_{API[1]}").iterdir() if p.is_dir()}
    assert found == {"acme", "cc", "torch"}, "run python tests/freeze.py"


@pytest.fixture(scope="module")
def freeze():
    spec = importlib.util.spec_from_file_location("freeze", ROOT / "tests" / "freeze.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("folder", sorted(FROZEN.glob("driver_*")), ids=lambda p: p.name)
def test_what_is_frozen_is_never_edited(folder, freeze, tmp_path):
    assert freeze.digest(folder) == (folder / "SHA256").read_text().strip()
    shutil.copytree(folder, tmp_path / "copy")
    source = next((tmp_path / "copy").rglob("driver.py"))
    source.write_text(source.read_text() + "\n")
    assert freeze.digest(tmp_path / "copy") != freeze.digest(folder)


def needs(name):
    if name == "torch":
        pytest.importorskip("torch", reason="not run: needs torch")
    if name == "cc" and not any(map(shutil.which, ("cc", "gcc", "clang"))):
        pytest.skip("not run: needs a C compiler")


@pytest.fixture(params=DRIVERS, ids=lambda p: f"{p.parent.name}-{p.name}")
def installed(request, tmp_path):
    """A frozen driver's name, and the variables of a process that finds it and no other."""
    needs(request.param.name)
    project = tomllib.loads((request.param / "pyproject.toml").read_text())["project"]
    info = tmp_path / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    ((name, target),) = project["entry-points"]["polygrad.drivers"].items()
    (info / "entry_points.txt").write_text(f"[polygrad.drivers]\n{name} = {target}\n")
    kept = {k: v for k, v in os.environ.items() if not k.startswith("POLYGRAD_") or k == "POLYGRAD_CACHE_DIR"}
    paths = [str(tmp_path), str(request.param), str(ROOT), str(ROOT / "conformance")]
    return name, kept | {"PYTHONPATH": os.pathsep.join(paths), "POLYGRAD_DRIVERS_ONLY": name}


def run(arguments, environ, folder):
    done = subprocess.run(
        [sys.executable, *arguments], env=environ, cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_frozen_driver_trains(installed, tmp_path):
    name, environ = installed
    told = run(["-c", TRAINING.replace("NAME", name) + "print(pg.drivers())"], environ, tmp_path)
    assert f"name='{name}', distribution='polygrad-driver-{name}'" in told


def test_a_frozen_driver_conforms(installed, tmp_path):
    name, environ = installed
    levels = "0-1" if name == "cc" else "0-3"  # cc compiles each kernel of the levels above
    arguments = ["-m", "polygrad", "conformance", f"{name}:0", "--level", levels, "--report", "report"]
    run(arguments, environ, tmp_path)
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    assert {o["status"] for o in report["outcomes"]} <= {"passed", "skipped"}
    assert sum(o["status"] == "passed" for o in report["outcomes"]) > 25
