"""The proof that the suite bites, as a test.

Here: the two-way matrix of mutants and tests, its page in the documentation; the validity of mutants' names.
Not here: the matrix itself (`selftest.py`).
"""

from pathlib import Path

import pytest

from polygrad.cli import main
from polygrad.driver import ACCELERATED_OPS
from polygrad.ops.table import TABLE
from polygrad_conformance import mutant_page, selftest
from polygrad_conformance.checks import all_checks
from polygrad_conformance.mutants import KernelMutant, Mutant
from polygrad_conformance.outcome import FAILED

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def kills():
    return selftest.matrix()


def test_every_mutant_is_found_and_every_test_finds_one(kills):
    assert kills[1] == []
    assert {k.function for k in kills[0]} == {c.function for c in all_checks().values()}


def test_the_page_of_mutants_is_current(kills):
    page = ROOT / "docs" / "conformance" / "mutants.md"
    assert page.read_text(encoding="utf-8") == mutant_page.markdown(kills[0]), (
        "docs/conformance/mutants.md is not what the matrix is now; write it with "
        "python -m polygrad conformance --self-test --report FOLDER, and copy mutants.md"
    )


def test_self_test_is_a_command(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(selftest, "MUTANTS", selftest.MUTANTS[:1])
    assert main(["conformance", "--self-test", "--report", str(tmp_path)]) == FAILED
    assert "finds no mutant; nobody knows that it can fail" in capsys.readouterr().out
    assert {p.name for p in tmp_path.iterdir()} == {"self-test.json", "mutants.md"}


def test_mutants_are_many_and_named_once():
    names = [m.name for m in selftest.MUTANTS]
    assert len(names) == len(set(names)) >= 190


def test_killers_are_checks():
    checks = all_checks()
    assert [k for m in selftest.MUTANTS for k in m.killers if k not in checks] == []


def test_a_mutant_that_nobody_finds_is_a_fault(monkeypatch):
    harmless = Mutant("harmless", "views", lambda inner: KernelMutant(inner, lambda launch: launch), ("L3.rank.0",))
    monkeypatch.setattr(selftest, "MUTANTS", [harmless])
    _, faults = selftest.matrix()
    assert "L3.rank.0 does not find the mutant 'harmless': survived" in faults
    assert "the test level0_contract.declared_sets finds no mutant; nobody knows that it can fail" in faults
    assert "the test level9_threads.arrays_at_once finds no mutant; nobody knows that it can fail" in faults


def test_a_mutant_that_breaks_the_test_itself_is_a_fault(monkeypatch):
    def broken(_launch):
        raise ZeroDivisionError("in the mutant")

    crash = Mutant("crash", "order", lambda inner: KernelMutant(inner, broken), ("L7.order.read_after_many",))
    monkeypatch.setattr(selftest, "MUTANTS", [crash])
    _, faults = selftest.matrix()
    assert any(f.startswith("L7.order.read_after_many does not find the mutant 'crash': LaunchError") for f in faults)


def test_every_library_op_of_the_core_is_an_op_of_the_interface():
    declared = {op.call for op in TABLE.values() if op.kind == "library"}
    assert declared - set(ACCELERATED_OPS) == set()
    assert len(declared) > 10


def test_an_accelerated_op_without_a_test_is_a_fault(monkeypatch):
    monkeypatch.setattr(selftest, "ACCELERATED_OPS", {**selftest.ACCELERATED_OPS, "telepathy": "outs=(), ins=()"})
    assert selftest.untested_ops() == ["telepathy"]
