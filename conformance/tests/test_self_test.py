"""The proof that the suite bites, as a test.

Here: the two-way matrix of mutants and tests; the validity of mutants' names.
Not here: the matrix itself (`selftest.py`).
"""

from polygrad_conformance import selftest
from polygrad_conformance.checks import all_checks
from polygrad_conformance.mutants import KernelMutant, Mutant


def test_every_mutant_is_found_and_every_test_finds_one(capsys, tmp_path):
    assert selftest.run(tmp_path) == 0
    assert "every mutant is found, and every test to level 3 finds one" in capsys.readouterr().out
    assert (tmp_path / "self-test.json").exists()


def test_mutants_are_many_and_named_once():
    names = [m.name for m in selftest.MUTANTS]
    assert len(names) == len(set(names)) >= 60


def test_killers_are_checks():
    checks = all_checks()
    assert [k for m in selftest.MUTANTS for k in m.killers if k not in checks] == []


def test_a_mutant_that_nobody_finds_is_a_fault(monkeypatch):
    harmless = Mutant("harmless", "views", lambda inner: KernelMutant(inner, lambda launch: launch), ("L3.rank.0",))
    monkeypatch.setattr(selftest, "MUTANTS", [harmless])
    _, faults = selftest.matrix()
    assert "L3.rank.0 does not find the mutant 'harmless': survived" in faults
    assert "the test level0_contract.declared_sets finds no mutant; nobody knows that it can fail" in faults
