"""The suite as a plugin of pytest, in processes of their own.

Here: options, outcomes as pytest shows them, runs that tested nothing.
Not here: checks.
"""

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
PLUGIN = "polygrad_conformance.plugin"


def pytest_run(folder, *arguments):
    """Run pytest in *folder* with this plugin and no other; return its code and output."""
    paths = os.pathsep.join([str(HERE), *(p for p in sys.path if p)])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", PLUGIN, "-p", "no:cacheprovider", "-rs", *arguments],
        capture_output=True, text=True, check=False, cwd=folder, timeout=300,
        env={**os.environ, "PYTHONPATH": paths, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""},
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


SUITE = ("--pyargs", "polygrad_conformance")
STRICT = (*SUITE, "--device=strict:0", "--driver-plugin=bad_drivers:strict")


def test_a_device_is_tested(tmp_path):
    code, text = pytest_run(tmp_path, *STRICT, "-k", "L2.iota", "-v")
    assert code == 0, text
    assert "test_device[strict:0-L2.iota.int32] PASSED" in text
    assert "2 passed" in text


def test_a_failure_says_what_was_wrong_without_a_traceback_of_the_suite(tmp_path):
    code, text = pytest_run(tmp_path, *STRICT, "--driver-plugin=bad_drivers:lying", "-k", "L2.scalar.minimum.float32")
    assert code == 1, text
    assert "minimum of float32" in text
    assert "running.py" not in text


def test_what_is_not_declared_is_skipped_with_its_name(tmp_path):
    code, text = pytest_run(tmp_path, *STRICT, "-k", "L5.accel.copy or L2.iota.int32")
    assert code == 0, text
    assert "strict:0: op.copy" in text


def test_expected_failures_are_xfails(tmp_path):
    bad = (*SUITE, "--device=bad:0", "--driver-plugin=bad_drivers:excused")
    code, text = pytest_run(tmp_path, *bad, "-k", "L4.ulp.exp.float32 or L2.iota.int32")
    assert code == 0, text
    assert "1 passed" in text
    assert "1 xfailed" in text


def test_a_run_that_tested_nothing_fails(tmp_path):
    code, text = pytest_run(tmp_path, *STRICT, "-k", "L5.accel.copy")
    assert code == 1, text
    assert "nothing was tested, which is a failure" in text


def test_a_run_that_tests_less_than_is_declared_fails(tmp_path):
    bad = (*SUITE, "--device=bad:0", "--driver-plugin=bad_drivers:hidden")
    code, text = pytest_run(tmp_path, *bad, "-q")
    assert code == 1, text
    assert "8 passed" in text
    assert "scalar.add is declared, and no test has used it" in text
    code, text = pytest_run(tmp_path, *bad, "-q", "-k", "L0.info.sets")
    assert code == 0, text


def test_a_device_that_cannot_be_opened_fails(tmp_path):
    code, text = pytest_run(tmp_path, *SUITE, "--device=no_such:0", "-k", "L0.info.sets")
    assert code == 1, text
    assert "no_such:0 cannot be opened" in text


def test_without_a_device_there_is_nothing_to_test(tmp_path):
    _, text = pytest_run(tmp_path, *SUITE)
    assert "1 skipped" in text


def test_other_projects_do_not_see_the_options(tmp_path):
    (tmp_path / "test_own.py").write_text(
        "def test_own(pytestconfig):\n    assert not hasattr(pytestconfig.option, 'device')\n"
    )
    code, text = pytest_run(tmp_path, "test_own.py")
    assert code == 0, text
    code, text = pytest_run(tmp_path, "test_own.py", "--device=x:0")
    assert code == 4, text


def test_the_core_is_not_rewritten_by_pytest(tmp_path):
    (tmp_path / "test_own.py").write_text(
        "import polygrad.graph\n\n\n"
        "def test_own():\n    assert 'assertion' not in type(polygrad.graph.__loader__).__module__\n"
    )
    code, text = pytest_run(tmp_path, "test_own.py")
    assert code == 0, text
