"""Every check of the suite as a test of pytest, once for each ``--device``.

Here: one test, and its parameters from the register.
Not here: checks; options (`plugin.py`).
"""

from typing import Any

import pytest

from polygrad_conformance import plugin, running
from polygrad_conformance.checks import Check, all_checks
from polygrad_conformance.outcome import BAD


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make a test of each check and device."""
    state = metafunc.config.stash.get(plugin.KEY, None)
    devices = state.devices if state is not None else []
    checks = all_checks()
    if sorted(checks) != sorted(running.manifest()):
        raise pytest.UsageError("the tests of polygrad_conformance are not those of its manifest; install it anew")
    pairs = [pytest.param(d, c, id=f"{d}-{c.id}") for d in devices for c in checks.values()]
    nothing = pytest.param("", None, id="none", marks=pytest.mark.skip(reason="not run: needs --device=DEVICE"))
    metafunc.parametrize(("device", "check"), pairs or [nothing])


def _run_of(state: Any, device: str) -> Any:
    run = state.runs.get(device)
    if run is None:
        run = state.runs[device] = running.DeviceRun(device, running.Options(**state.options))
        run.report.refused = run.start()
    if run.report.refused:
        pytest.fail(f"{device} cannot be opened: {run.report.refused}", pytrace=False)
    return run


def test_device(request: pytest.FixtureRequest, device: str, check: Check) -> None:
    """A device does what one check asks."""
    run = _run_of(request.config.stash[plugin.KEY], device)
    outcome = run.one(check)
    if outcome.status in BAD:
        pytest.fail(f"{check.id} on {device} {outcome.status}: {outcome.message}\n{check.doc}", pytrace=False)
    if outcome.status == "xfailed":
        pytest.xfail(outcome.reason)
    if outcome.status == "xpassed":
        pytest.fail(f"{check.id} passes, though it is expected to fail: {outcome.reason}", pytrace=False)
    if outcome.status in ("skipped", "unsupported"):
        pytest.skip(f"{device}: {outcome.reason}")
