"""The scripts that run the suite's kernels under Oclgrind and compute-sanitizer.

Here: what they make of the tools' words, and Oclgrind itself where it is installed (OCLGRIND_LIBRARY may name it).
Not here: the tools on a whole suite (`conformance/checkers`, run by hand).
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

CHECKERS = Path(__file__).resolve().parents[1] / "checkers"


@pytest.fixture
def checkers(monkeypatch):
    monkeypatch.syspath_prepend(str(CHECKERS))
    import oclgrind
    import sample
    import sanitizer

    return oclgrind, sample, sanitizer


def end(sanitizer, name, errors=0, ran=5):
    kind = "RACECHECK" if name.startswith("racecheck") else "ERROR"
    text = f"RAN {ran}\n========= {kind} SUMMARY: {errors} hazards displayed ({errors} errors, 0 warnings)\n"
    return sanitizer.ended(name, text, 0)


def all_ends(sanitizer, **errors):
    plain = sanitizer.ended("0", "RAN 5\n", 0)
    names = ("memcheck 0", "racecheck 0", "memcheck wrong", "racecheck wrong")
    return [plain, *(end(sanitizer, n, errors.get(n.replace(" ", "_"), int("wrong" in n))) for n in names)]


def test_silence_of_the_sanitizer_is_success_only_if_it_sees_what_is_wrong(checkers, capsys):
    sanitizer = checkers[2]
    assert sanitizer.told(all_ends(sanitizer), "some", 1, dry=False) == 0
    assert capsys.readouterr().out == (
        "compute-sanitizer: 5 kernels (some): 0 by memcheck, 0 by racecheck, 0 faults, 1 s\n"
    )
    for name in ("memcheck_wrong", "racecheck_wrong"):
        assert sanitizer.told(all_ends(sanitizer, **{name: 0}), "some", 1, dry=False) == 1
        assert "its silence means nothing" in capsys.readouterr().out


def test_reports_of_the_sanitizer_are_faults(checkers, capsys):
    sanitizer = checkers[2]
    assert sanitizer.told(all_ends(sanitizer, racecheck_0=3), "some", 1, dry=False) == 1
    assert "0 by memcheck, 3 by racecheck, 1 faults" in capsys.readouterr().out


def test_a_process_that_dies_hangs_or_says_nothing_is_a_fault(checkers, capsys):
    sanitizer = checkers[2]
    assert sanitizer.ended("0", "Killed", -9).faults == ["0 ended with code -9: Killed"]
    assert sanitizer.ended("0", "", None).faults == ["0 took more than 420 s"]
    silent = [*all_ends(sanitizer), sanitizer.ended("memcheck 1", "RAN 5\n", 0)]
    assert sanitizer.told(silent, "some", 1, dry=False) == 1
    assert "memcheck 1: no summary by compute-sanitizer" in capsys.readouterr().out
    assert sanitizer.told([sanitizer.ended("0", "RAN 0\n", 0)], "some", 1, dry=True) == 1


def test_a_machine_that_the_sanitizer_refuses_is_not_run(checkers, capsys):
    sanitizer = checkers[2]
    refused = sanitizer.ended("memcheck 0", "========= Error: Device not supported\n", 1)
    assert sanitizer.told([*all_ends(sanitizer)[:1], refused], "some", 1, dry=False) == 0
    assert capsys.readouterr().out == "not run: compute-sanitizer refuses this machine's device\n"


def test_without_the_tools_the_scripts_say_so(checkers, capsys, monkeypatch):
    oclgrind, _, sanitizer = checkers
    monkeypatch.setattr(sanitizer.shutil, "which", lambda _: None)
    monkeypatch.setattr(oclgrind, "find_library", lambda _: None)
    assert sanitizer.main([]) == 0
    assert oclgrind.main([]) == 0
    assert [line.split(" (")[0].split(",")[0] for line in capsys.readouterr().out.splitlines()] == [
        "not run: needs compute-sanitizer", "not run: needs Oclgrind",
    ]  # fmt: skip


def test_a_sample_has_kernels_of_each_level_and_a_wrong_device_fails_it(checkers, tmp_path, monkeypatch):
    sample = checkers[1]
    monkeypatch.setattr(sample, "KEPT", 2)
    cases = sample.collect(24, 0)
    assert {c["check"][:2] for c in cases} == {"L2", "L3", "L4", "L5"}
    assert len(cases) == 24
    path = tmp_path / "cases.json"
    path.write_text(json.dumps(cases))
    command = [sys.executable, str(CHECKERS / "sample.py"), "--run", str(path), "--device", "cpu:0"]
    good = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (good.returncode, good.stdout) == (0, "RAN 24\n")
    parts = [sample.run(path, "cpu:0", part, 5)[0] for part in range(5)]
    assert sum(parts) == 24
    monkeypatch.setattr(sample.Bench, "launch", lambda self, kernel, arrays, ints, scalars=(): list(arrays))
    assert sample.run(path, "cpu:0", 0, 1)[1]


def test_oclgrind_finds_faulty_kernels_and_none_in_ours(checkers, capsys):
    oclgrind = checkers[0]
    library = oclgrind.find_library(os.environ.get("OCLGRIND_LIBRARY"))
    if library is None:
        pytest.skip(f"not run: needs Oclgrind ({oclgrind.INSTALL})")
    assert oclgrind.main(["--library", library, "--match", "L3.window.*"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in told] == ["oclgrind, cpu style", "oclgrind, gpu style"]
    assert all(" 0 faults" in line for line in told)


def test_what_oclgrind_reports_during_a_check_is_a_fault_of_the_check(checkers, tmp_path):
    oclgrind = checkers[0]
    from polygrad_conformance.running import Options

    run = oclgrind.StyleRun("cpu", str(tmp_path), tmp_path, Options())
    run.log.write_text("Invalid read of size 4\n\tKernel: pg_0\n")
    run._grown("L3.some", 0)
    assert run.faults == ["L3.some: Oclgrind reports:\n    Invalid read of size 4\n    \tKernel: pg_0"]
    run._grown("L3.other", oclgrind.size(run.log))
    assert len(run.faults) == 1
