"""The pytest plugin: ``pytest --pyargs polygrad_conformance --device=acme:0``.

Here: the options, the fixture behind the one test, and a run that tested nothing as a failure.
Not here: checks; nothing heavy either, for pytest imports this module in every run of every project.

An option that a package's own conftest declares is not seen with ``--pyargs``, and ``--device`` always on would collide
with other plugins: so this is an entry point, and adds its options only if an argument names the package.
"""

from typing import Any

import pytest

PACKAGE = "polygrad_conformance"
KEY: "pytest.StashKey[State]" = pytest.StashKey()


class State:
    """What a session of pytest knows of the suite's run: devices by name, and whether anything passed."""

    def __init__(self, devices: list[str], options: dict[str, Any]) -> None:
        self.devices, self.options = devices, options
        self.runs: dict[str, Any] = {}
        self.passed = 0


def pytest_load_initial_conftests(early_config: pytest.Config, parser: pytest.Parser, args: list[str]) -> None:
    """Add the options if the command line names the suite."""
    _spare_the_core(getattr(early_config.pluginmanager, "rewrite_hook", None))
    if not names_the_suite([str(a) for a in args]):
        return
    group = parser.getgroup("polygrad", "conformance of polygrad drivers")
    group.addoption("--device", action="append", default=[], help="test this device, such as acme:0; may be repeated")
    group.addoption(
        "--profile", choices=("quick", "standard", "full"), default="quick", help="how thorough the suite is"
    )
    group.addoption("--suite-seed", type=int, default=0, help="seed of the suite's random kernels")
    group.addoption("--driver-plugin", action="append", default=[], help="MODULE:NAME of a driver to register first")


def names_the_suite(args: list[str]) -> bool:
    """Say whether a command line asks for tests of the suite; ``-p polygrad_conformance.plugin`` alone does not.

    >>> names_the_suite(["--pyargs", PACKAGE]), names_the_suite(["-p", f"{PACKAGE}.plugin", "tests"])
    (True, False)
    """
    before = ["", *args]
    return any(PACKAGE in a and not a.startswith("-") and b != "-p" for b, a in zip(before, args, strict=False))


def _spare_the_core(hook: Any) -> None:
    """Leave the library's own asserts alone.

    pytest rewrites every module of a distribution that has a plugin, and polygrad is one distribution: without this
    the code under test would not be the code that users run.
    """
    marked = getattr(hook, "_must_rewrite", None)
    if isinstance(marked, set):
        marked -= {name for name in marked if str(name).startswith("polygrad") and not str(name).startswith(PACKAGE)}


def pytest_configure(config: pytest.Config) -> None:
    """Keep what the command line asks for."""
    devices = config.getoption("--device", default=None)
    if isinstance(devices, list) and config.getoption("--driver-plugin", default=None) is not None:
        options = {
            "profile": config.getoption("--profile"),
            "seed": config.getoption("--suite-seed"),
            "plugins": tuple(config.getoption("--driver-plugin")),
            "time": 1e9,  # pytest has its own ways to stop
        }
        config.stash[KEY] = State(devices, options)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Count what passed."""
    if report.when == "call" and report.passed and _current is not None:
        _current.passed += 1


_current: State | None = None


def pytest_sessionstart(session: pytest.Session) -> None:
    """Remember the session's state, for reports come without it."""
    global _current  # noqa: PLW0603  one session of pytest a process
    _current = session.config.stash.get(KEY, None)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """End the workers; a run for devices in which nothing passed, or a whole one that tested too little, has failed."""
    state = session.config.stash.get(KEY, None)
    if state is None:
        return
    too_little = False
    for run in state.runs.values():
        report = run.finish()
        too_little |= run.whole and report.exit_code != 0
    nothing = state.devices and not state.passed and not session.config.option.collectonly
    if (nothing or too_little) and exitstatus in (0, 5):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say what a run for devices came to."""
    state = config.stash.get(KEY, None)
    if state is None or not state.devices:
        return
    if not state.passed:
        terminalreporter.write_line("polygrad conformance: nothing was tested, which is a failure", red=True)
    for run in state.runs.values():
        report = run.report
        sentences = [*report.stale, *(f"{word} is declared, and no test has used it" for word in report.vacuous)]
        sentences += [f"the test {name} of the manifest is lost" for name in report.missing]
        for sentence in sentences:
            terminalreporter.write_line(f"polygrad conformance: {sentence}", red=True)
