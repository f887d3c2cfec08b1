"""Runs of the suite: good devices pass, bad drivers are reported, and the suite goes on.

Here: outcomes, gating, exit codes, the command line, replay.
Not here: whether tests find faults (`test_self_test.py`), reports (`test_reports.py`).
"""

import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from polygrad.cli import main
from polygrad.driver import ExpectedFailure, Requirements
from polygrad_conformance import gating, report_files, running
from polygrad_conformance.checks import all_checks
from polygrad_conformance.outcome import FAILED, NOT_LOADED, OK, STALE, TOO_LITTLE, USAGE
from polygrad_conformance.running import Options, run

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def _bad_drivers(monkeypatch):
    monkeypatch.syspath_prepend(str(HERE))


def bad(name, **options):
    return run("bad:0", Options(plugins=(f"bad_drivers:{name}",), **options))


def ended(report):
    return {o.id: o.status for o in report.outcomes}


def test_the_manifest_is_the_list_of_tests():
    assert running.manifest() == list(all_checks())


def test_every_check_says_what_it_checks():
    assert [c.id for c in all_checks().values() if not c.doc] == []


@pytest.mark.parametrize("ordinal", range(8))
def test_the_strict_devices_reach_the_core_tier(ordinal):
    report = run(f"strict:{ordinal}", Options(level="0-3", plugins=("bad_drivers:strict",)))
    assert [(o.id, o.message) for o in report.outcomes if o.status not in ("passed", "skipped")] == []
    assert report.tiers["core"] == "reached"
    assert report.tiers["numeric"] == "not all was asked for"
    assert report.exit_code == OK


def test_what_a_device_lacks_is_skipped_with_its_name():
    report = run("strict:1", Options(pattern="L2.scalar.add.*", plugins=("bad_drivers:strict",)))
    skipped = [o for o in report.outcomes if o.status == "skipped"]
    assert [(o.id, o.reason) for o in skipped] == [("L2.scalar.add.float64", "dtype.float64")]


def test_a_crash_is_an_outcome_and_the_rest_runs():
    report = bad("crashing", pattern="L2.trap.*")
    found = ended(report)
    assert found["L2.trap.quotient_by_zero.int32"] == "crashed"
    assert found["L2.trap.shift_left_too_far.int64"] == "passed"
    assert "SIGSEGV" in next(o.message for o in report.outcomes if o.status == "crashed")
    assert report.exit_code == FAILED


def test_a_hang_is_an_outcome_and_the_rest_runs():
    report = bad("hanging", pattern="L2.iota.int*", limit=4)
    assert ended(report) == {"L2.iota.int32": "hung", "L2.iota.int64": "hung"}
    assert report.exit_code == FAILED


def test_an_exception_of_any_kind_is_an_outcome():
    report = bad("raising", pattern="L1.write.order")
    assert ended(report) == {"L1.write.order": "failed"}
    assert "KeyError" in report.outcomes[0].message


def test_a_driver_that_ends_the_process_cannot_be_opened():
    report = bad("exiting")
    assert "ended with code 7" in report.refused
    assert report.exit_code == NOT_LOADED


@pytest.mark.parametrize(
    ("name", "check", "status", "said"),
    [
        ("boasting", "L2.scalar.erf.float32", "failed", "erf is not there"),
        ("boasting", "L2.const.float64", "failed", "constants of float64"),
        ("boasting", "L1.memory.over_limit", "passed", ""),
        ("leaking", "L8.leak.kernels", "failed", "the device lost"),
        ("throwing", "L2.scalar.sqrt.float32", "failed", "SystemExit"),
        ("throwing", "L2.scalar.floor.float32", "failed", "KeyboardInterrupt"),
        ("throwing", "L2.scalar.less.float32", "failed", "its message cannot be shown"),
        ("throwing", "L2.launch.extents", "failed", "RecursionError"),
        ("aborting", "L1.write.order", "crashed", "SIGABRT"),
        ("mute", "L2.iota.int32", "passed", ""),
    ],
)
def test_whatever_a_driver_does_is_an_outcome_and_the_rest_runs(name, check, status, said, monkeypatch):
    monkeypatch.setattr(running, "REPEATS", 0)
    job = running.DeviceRun("bad:0", Options(plugins=(f"bad_drivers:{name}",)))
    assert job.start() == ""
    checks = all_checks()
    outcome = job.one(checks[check])
    assert (outcome.status, said in outcome.message) == (status, True), outcome
    assert job.one(checks["L0.info.sets"]).status == "passed"
    job.finish()


def test_a_driver_that_never_opens_is_refused(monkeypatch):
    monkeypatch.setattr(running, "START", 3.0)
    report = bad("asleep", limit=3)
    assert "no answer within 3 s" in report.refused
    assert report.exit_code == NOT_LOADED


def test_a_driver_that_ends_the_program_when_it_is_opened_is_refused():
    report = bad("forgetful")
    assert "SystemExit: the licence has expired" in report.refused
    assert report.exit_code == NOT_LOADED


def test_a_report_holds_no_path_and_no_host_name(tmp_path):
    report = bad("telling", pattern="L2.[it]*")
    assert {o.status for o in report.outcomes} == {"failed"}
    assert any("a / b / c" in o.source for o in report.outcomes)
    report_files.write(report, tmp_path)
    words = [platform.node(), str(Path.home()), os.getcwd(), str(HERE), tempfile.gettempdir() + "/"]
    texts = {p: p.read_text() for p in tmp_path.rglob("*") if p.is_file()}
    found = [(p.name, w) for p, text in texts.items() for w in words if len(w) > 2 and w in text]
    assert found == []
    assert ".../bad_drivers.py" in texts[tmp_path / "report.json"]


def test_a_driver_that_does_not_exist_cannot_be_opened():
    report = run("no_such:0", Options())
    assert "no_such" in report.refused
    assert report.exit_code == NOT_LOADED


def test_a_lying_driver_is_found_by_a_small_case_that_can_be_replayed(tmp_path, capsys):
    report = run("strict:0", Options(pattern="L5.random.*", plugins=("bad_drivers:strict", "bad_drivers:lying")))
    failed = [o for o in report.outcomes if o.status == "failed"]
    assert failed
    case = failed[0].case
    assert len(case["kernel"]["stores"]) == 1
    path = tmp_path / "case.json"
    path.write_text(json.dumps(case))
    plugins = ["--plugin", "bad_drivers:strict"]
    assert main(["conformance", "strict:0", *plugins, "--replay", str(path)]) == OK
    assert main(["conformance", "strict:0", *plugins, "--plugin", "bad_drivers:lying", "--replay", str(path)]) == FAILED
    assert "wrong" in capsys.readouterr().out


def test_expected_failures_and_unsupported_tests_are_kept_apart():
    report = bad("excused", pattern="L[14].[mu]*")
    found = ended(report)
    assert found["L4.ulp.exp.float32"] == "xfailed"
    assert found["L4.ulp.log.float32"] == "xpassed"
    assert found["L1.memory.info"] == "unsupported"
    assert found["L4.ulp.sin.float32"] == "passed"
    assert report.stale == ["L4.ulp.log.float32 passes, though it is expected to fail; remove the expectation"]
    assert report.exit_code == FAILED  # exp is wrong in float64 too, which is not excused


def test_expectations_that_are_not_allowed_are_stale():
    report = bad("stale", pattern="L0.*")
    assert report.exit_code == STALE
    assert sorted(report.stale) == [
        "L1.no.such matches no test of this suite; correct or remove it",
        "L2.const.int8 expects L2.const.int8 to fail, which is below level 4; none there may",
        "L2.const.int8 was expected to fail until 2001-01-01; mend it or set a new date",
        "L4.ulp.exp.float32 was expected to fail until 2001-01-01; mend it or set a new date",
    ]


def test_random_tests_cannot_be_expected_to_fail():
    fault = ExpectedFailure("flaky", issue="https://example.org/3", until="2999-01-01")
    said = gating.stale(Requirements(expected_failure={"L5.random.*": fault}), all_checks().values())
    assert said == ["L5.random.* expects L5.random.0 to fail, which draws random kernels; no such test may"]


def test_an_expected_failure_wants_its_facts():
    with pytest.raises(ValueError, match="needs a reason and an issue"):
        ExpectedFailure("", issue="x", until="2999-01-01")
    with pytest.raises(ValueError, match="must be a date"):
        ExpectedFailure("wrong", issue="x", until="soon")
    with pytest.raises(ValueError, match="needs a reason"):
        Requirements(unsupported={"L1.*": ""})


def test_a_driver_may_print_and_what_works_undeclared_is_told(monkeypatch):
    only = {"L0.info.sets": all_checks()["L0.info.sets"]}
    monkeypatch.setattr(running, "all_checks", lambda: only)
    job = running.DeviceRun("bad:0", Options(plugins=("bad_drivers:chatty",)))
    assert job.start() == ""
    job.one(only["L0.info.sets"])
    report = job.finish()
    assert report.undeclared == ["scalar.erf", "reduction.prod", "dtype.int16"]
    assert "op.matmul" not in report.vacuous  # it is not declared
    assert "scalar.add" in report.vacuous
    assert report.exit_code == TOO_LITTLE


def test_a_driver_that_lets_no_test_near_what_it_declares_has_not_passed():
    report = bad("hidden")
    assert report.count("unsupported") > 500
    assert "scalar.add" in report.vacuous
    assert report.tier == "none"
    assert report.exit_code == TOO_LITTLE


def test_time_that_is_over_leaves_tests_not_run():
    report = run("strict:0", Options(level="0-1", time=1e-9, plugins=("bad_drivers:strict",)))
    assert set(ended(report).values()) <= {"not run", "skipped"}
    assert report.exit_code == TOO_LITTLE


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "name a device"),
        (["strict:0", "--level", "12"], "there is no level '12'"),
        (["strict:0", "-k", "nonsense"], "no test matches"),
        (["diff", "one.json"], "diff takes two reports"),
        (["strict:0", "--replay", "no-such-file.json"], "cannot use no-such-file.json: No such file or directory"),
        (["strict:0", "--replay", __file__], "test_running.py holds no case"),
        (["strict:0", "--report", f"{__file__}/below"], "test_running.py/below: Not a directory"),
        (["diff", "a.json", "b.json"], "cannot use a.json: No such file or directory"),
        (["diff", __file__, "b.json"], "test_running.py: Extra data"),
        (["matrix", "one.json"], "matrix takes reports and a page"),
    ],
)
def test_a_wrong_command_line_is_code_2(arguments, said, capsys):
    assert main(["conformance", *arguments]) == USAGE
    assert said in capsys.readouterr().err


def test_list_prints_ids(capsys):
    assert main(["conformance", "--list", "--level", "0"]) == OK
    assert capsys.readouterr().out.split()[0] == "L0.info.sets"


def test_without_the_suite_the_command_says_how_to_install_it():
    code = (
        "import sys; sys.modules['polygrad_conformance'] = None\n"
        "from polygrad.cli import main; sys.exit(main(['conformance', 'cpu:0']))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == USAGE
    assert "pip install 'polygrad-array[conformance]'" in done.stderr
