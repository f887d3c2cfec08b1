"""A new driver as written: it installs, loads, computes, trains, and passes its own tests.

Here: `python -m polygrad new-driver`, and the lengths that the guide tells. Not here: the conformance suite on it; the
drivers among the examples, which have tests of their own.
"""

import ast
import os
import pathlib
import re
import subprocess
import sys

import pytest

from polygrad.cli import main, new_driver
from polygrad.driver import API
from polygrad.driver.ir import VERSION
from support.programs import TRAINING

ROOT = pathlib.Path(__file__).resolve().parent.parent
CHECKS = """
z = pg.asarray([1.0, 2.0, 3.0], dtype=pg.float32)
assert z.device == "NAME:0"
assert (z * z + 1).tolist() == [2.0, 5.0, 10.0]
assert pg.grad(lambda v: pg.sum(v * v))(z).tolist() == [2.0, 4.0, 6.0]
"""


def command(*arguments):
    return main(["new-driver", *map(str, arguments)])


def environment(*folders):
    """Return the variables of a process that imports from *folders* too, and whose drivers nobody blocks."""
    kept = {k: v for k, v in os.environ.items() if k not in ("POLYGRAD_DRIVERS_ONLY", "POLYGRAD_DRIVERS_BLOCK")}
    paths = [*map(str, folders), str(ROOT), str(ROOT / "conformance"), *kept.get("PYTHONPATH", "").split(os.pathsep)]
    return kept | {"PYTHONPATH": os.pathsep.join(p for p in paths if p)}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A distribution written for a driver with an awkward name, and the metadata that an installation would leave."""
    folder = tmp_path_factory.mktemp("new")
    assert command("xpu_2", "--into", folder) == 0
    distribution = folder / "polygrad-driver-xpu_2"
    info = distribution / "polygrad_driver_xpu_2-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: polygrad-driver-xpu_2\nVersion: 0.1.0\n")
    project = (distribution / "pyproject.toml").read_text()
    entry = re.search(r'\[project.entry-points."polygrad.drivers"\]\n(\w+) = "(.*)"', project)
    (info / "entry_points.txt").write_text(f"[polygrad.drivers]\n{entry[1]} = {entry[2]}\n")
    return distribution


def test_it_trains_as_written(written):
    program = (TRAINING + CHECKS).replace("NAME", "xpu_2")
    subprocess.run([sys.executable, "-c", program], check=True, env=environment(written), cwd=written.parent)


def test_it_passes_its_own_tests(written):
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"],
        cwd=written, env=environment(written), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    assert "5 passed" in run.stdout


def test_pip_can_install_it(written, tmp_path):
    pytest.importorskip("hatchling", reason="not run: needs hatchling")
    pytest.importorskip("pip", reason="not run: needs pip")
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--target", str(tmp_path)]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, str(written)], check=True, cwd=tmp_path)
    entries = next(tmp_path.glob("*.dist-info")) / "entry_points.txt"
    assert entries.read_text().split() == ["[polygrad.drivers]", "xpu_2", "=", "polygrad_driver_xpu_2:plugin"]
    assert (tmp_path / "polygrad_driver_xpu_2" / "py.typed").exists()


def test_it_says_for_which_versions_it_was_written(written):
    text = (written / "polygrad_driver_xpu_2" / "driver.py").read_text()
    assert f"api={API}," in text
    assert f"ir={VERSION}," in text


def test_nothing_of_the_templates_is_left(written):
    files = [p for p in written.rglob("*") if p.is_file() and "dist-info" not in str(p) and "__pycache__" not in str(p)]
    named = {str(p.relative_to(written)) for p in files if ".pytest_cache" not in str(p)}
    assert named == {p.replace("acme", "xpu_2") for p in new_driver.FILES.values()}
    for path in files:
        text = path.read_text()
        assert "acme" not in (text + path.name).lower()
        assert "{{" not in text.replace("${{ matrix.python }}", "")
    assert "class Xpu2Driver(" in (written / "polygrad_driver_xpu_2" / "driver.py").read_text()


def test_what_is_written_is_in_the_style_of_the_house(written):
    pytest.importorskip("ruff", reason="not run: needs ruff")
    config = ["--config", str(ROOT / "pyproject.toml"), "--no-cache"]
    sources = [str(written / "polygrad_driver_xpu_2"), str(written / "tests")]
    check = [sys.executable, "-m", "ruff", "check", *config, "--ignore", "ARG002,I001", *sources]
    run = subprocess.run(check, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["Acme"], "a driver cannot be called 'Acme': names are made of a-z, 0-9 and _, a letter first, as acme"),
        (["9lives"], "a driver cannot be called '9lives': names are made of a-z, 0-9 and _, a letter first, as acme"),
        ([""], "a driver cannot be called '': names are made of a-z, 0-9 and _, a letter first, as acme"),
        (["auto"], "a driver cannot be called 'auto': the word stands for several devices; choose another"),
        (["cpu"], "a driver 'cpu' is installed already, and of two neither would be loaded; choose another name"),
    ],
)
def test_a_name_that_will_not_do_is_refused(arguments, sentence, capsys, tmp_path):
    assert command(*arguments, "--into", tmp_path) == 1
    assert capsys.readouterr().err == f"polygrad new-driver: {sentence}\n"
    assert list(tmp_path.iterdir()) == []


def test_nothing_that_exists_is_touched(capsys, tmp_path):
    folder = tmp_path / "polygrad-driver-acme"
    folder.mkdir()
    assert command("acme", "--into", tmp_path) == 1
    text = capsys.readouterr().err
    assert text == f"polygrad new-driver: {folder} exists already; remove it, or choose another folder with --into\n"
    assert list(folder.iterdir()) == []
    (tmp_path / "file").write_text("")
    assert command("acme", "--into", tmp_path / "file") == 1
    text = capsys.readouterr().err
    assert text == (
        f"polygrad new-driver: {tmp_path / 'file'} is a file, so nothing can be written into it; "
        "choose a folder with --into\n"
    )


def sources(name):
    """Return the texts of the Python files of a driver among the examples."""
    return [path.read_text() for path in sorted((ROOT / f"examples/driver-{name}").glob("polygrad_*/*.py"))]


def lengths(name):
    """Return how many lines such a driver has, and how many of them are code: no docstring, comment, empty line."""
    every = code = 0
    for text in sources(name):
        skipped = set()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
                skipped |= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
        lines = text.splitlines()
        every += len(lines)
        code += sum(bool(re.match(r"\s*[^#\s]", line)) and n not in skipped for n, line in enumerate(lines, 1))
    return every, code


@pytest.mark.parametrize("name", ["cc", "torch"])
def test_the_examples_are_short_and_stay_outside(name):
    assert lengths(name)[0] < 200
    imported = [
        (node.module, alias.name)
        for text in sources(name)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ] + [
        (alias.name, "")
        for text in sources(name)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Import)
        for alias in node.names
    ]
    ours = {(module, what) for module, what in imported if module.partition(".")[0] == "polygrad"}
    assert ours
    assert {m for m, what in ours if not f"{m}.{what}.".startswith("polygrad.driver.")} == set()


def test_the_guide_counts_right():
    guide = (ROOT / "docs" / "write-a-driver.md").read_text()
    for path, text in new_driver.distribution("acme").items():
        if path.endswith(".py"):
            assert f"| `{path}` | {len(text.splitlines())} |" in guide
    for name in ("cc", "torch"):
        every, code = lengths(name)
        assert f"{every} lines, of which {code} are code" in guide, name
