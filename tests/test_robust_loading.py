"""A bad driver disturbs no other, and every command says what is wrong with it and what to type.

Here: each kind of fault against each command, all faults installed at once beside a driver that works, every command
in a process of its own. Not here: the sentences one by one (`test_loader.py`), other output (`test_cli.py`).
"""

import os
import pathlib
import subprocess
import sys
import textwrap
from typing import NamedTuple

import pytest

import polygrad
from polygrad.cli import new_driver

LIMIT = "10"  # seconds, for a driver that hangs; the one that works takes about one
BASE = """
    import time, os
    from polygrad.driver import DeviceInfo, DriverBase, DriverInfo, DriverUnavailable, hookimpl

    class Bad(DriverBase):
        info = DriverInfo("NAME", requires="libNAME 4"MORE)

        def open(self, ordinal, options):
            OPEN

    plugin = Bad.plugin()
"""
PLAIN = """
    from polygrad.driver import DriverInfo, hookimpl

    class Plugin:
        @hookimpl
        def polygrad_drivers(self): return [DriverInfo("NAME")]
        @hookimpl
        def polygrad_open(self, driver, ordinal, options): pass
        @hookimpl
        def polygrad_alocate(self, device, nbytes): pass

    plugin = Plugin()
"""


def based(opening, more=""):
    return BASE.replace("OPEN", opening).replace("MORE", more)


class Fault(NamedTuple):
    """Source of a driver (NAME is its name), its status, what is told of it: what is wrong, and the way out."""

    source: str
    status: str
    wrong: str
    way_out: str
    quits: bool = False  # trying it in one's own process ends that process, or never comes back


FAULTS = {
    "raises": Fault(
        "raise RuntimeError('the firmware is cross')", "broken", "RuntimeError: the firmware is cross",
        "`python -m polygrad drivers -v` shows the traceback",
    ),
    "exits": Fault(
        "import sys; sys.exit('goodbye')", "broken", "SystemExit: goodbye",
        "`python -m polygrad drivers -v` shows the traceback",
    ),
    "hangs": Fault(
        based("time.sleep(600)"), "broken", f"gave no answer within {LIMIT} seconds (it was in ",
        "POLYGRAD_DRIVERS_BLOCK=hangs", quits=True,
    ),
    "stalls": Fault(
        "import time; time.sleep(600)", "broken", f"gave no answer within {LIMIT} seconds (it was in ",
        "POLYGRAD_DRIVERS_BLOCK=stalls", quits=True,
    ),
    "crashes": Fault(
        based("os.abort()"), "broken", "was ended by SIGABRT", "POLYGRAD_DRIVERS_BLOCK=crashes", quits=True,
    ),
    "misspelt": Fault(
        PLAIN, "broken", "there is no hook 'polygrad_alocate'", "did you mean 'polygrad_allocate'?",
    ),
    "newer": Fault(
        based("pass", ", api=(9, 0)"), "incompatible", "speaks driver interface 9.0 and polygrad",
        "pip install --upgrade polygrad-array",
    ),
    "older": Fault(
        based("pass", ", api=(0, 3)"), "incompatible", "speaks driver interface 0.3 and polygrad",
        "pip install --upgrade polygrad-older",
    ),
    "twice": Fault(
        "raise SystemError('imported')", "duplicate", "is advertised by polygrad-twice 0.3 and twice-fork 1.0",
        "uninstall all but one",
    ),
    "absent": Fault(
        based("raise DriverUnavailable('no device NAME is plugged in; plug one in')"), "unavailable",
        "no device absent is plugged in", "plug one in",
    ),
    "unlinked": Fault(
        based("import libunlinked_that_is_not_there"), "unavailable", "No module named 'libunlinked_that_is_not_there'",
        "it requires libunlinked 4",
    ),
    "empty": Fault(
        based("pass").replace("def open", "@classmethod\n        def count(cls): return 0\n\n        def open"),
        "unavailable", "it found no device", "it requires libempty 4",
    ),
    "mumbles": Fault(
        based("return 7"), "broken", "polygrad_open() gave 7 for mumbles:0", "give the DeviceInfo of that device",
    ),
}  # fmt: skip
COMMANDS = {
    "devices": ["devices", "--timeout", LIMIT],
    "drivers -v": ["drivers", "-v", "--timeout", LIMIT],
    "doctor": ["doctor", "--timeout", LIMIT],
}
TRY = """
import polygrad as pg
import polygrad.driver.loader as loader
loader.PATIENCE = 1.0
WORK = '''
with pg.device("good:0"):
    print("good:0 gave", pg.sum(pg.asarray([1.0, 2.5], dtype=pg.float32)).item())
'''
exec(WORK)
try:
    pg.set_device("NAME:0")
except Exception as error:
    print(type(error).__name__, error)
exec(WORK)
"""


def distribution(folder, name, module="", version="0.3", driver=None):
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(f"[polygrad.drivers]\n{driver} = {module}:plugin\n")


def driver(folder, name, source):
    (folder / f"polygrad_{name}.py").write_text(textwrap.dedent(source).replace("NAME", name))
    distribution(folder, f"polygrad-{name}", f"polygrad_{name}", driver=name)


def healthy(folder):
    """Install the driver that `new-driver` writes."""
    for path, text in new_driver.distribution("good").items():
        if path.startswith("polygrad_driver_good/"):
            (folder / path).parent.mkdir(exist_ok=True)
            (folder / path).write_text(text)
    distribution(folder, "polygrad-driver-good", "polygrad_driver_good", driver="good")


def run(folder, arguments, only, wait=120, **variables):
    """Run Python with *arguments* and drivers *only* from *folder*; return what it printed, stderr and all."""
    home = pathlib.Path(polygrad.__file__).parents[1]
    environ = {
        **{k: v for k, v in os.environ.items() if not k.startswith("POLYGRAD_")},
        "PYTHONPATH": os.pathsep.join([str(folder), str(home)]),
        "PYTHONUNBUFFERED": "1",  # what a process has printed is seen even if it is given up
        "POLYGRAD_DRIVERS_ONLY": only,
        "POLYGRAD_CACHE_DIR": str(folder / "cache"),
        **variables,
    }
    child = subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environ,
        cwd=folder,
    )
    try:
        return child.communicate(timeout=wait)[0]
    except subprocess.TimeoutExpired:
        child.kill()
        return child.communicate()[0] + "\n(it was given up)\n"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder with every bad driver and one that works, and what each command has printed there."""
    folder = tmp_path_factory.mktemp("site")
    for name, fault in FAULTS.items():
        driver(folder, name, fault.source)
    distribution(folder, "twice-fork", "polygrad_twice", version="1.0", driver="twice")
    healthy(folder)
    return folder


@pytest.fixture(scope="module")
def printed(site):
    """A function from a command to what it printed; each is run once."""
    known = {}

    def output(command):
        if command not in known:
            known[command] = run(site, ["-m", "polygrad", *COMMANDS[command]], ",".join(["good", *FAULTS]))
        return known[command]

    return output


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", FAULTS)
def test_a_command_says_what_is_wrong_and_what_to_type(printed, name, command):
    fault, text = FAULTS[name], printed(command)
    assert any(fault.wrong in line and fault.way_out in line and name in line for line in text.splitlines()), text
    if command == "drivers -v":
        status = {line.split()[0]: line.split()[1] for line in text.splitlines() if line[:1].strip()}
        assert status[name] == fault.status


@pytest.mark.parametrize("command", COMMANDS)
def test_the_driver_that_works_is_not_disturbed(printed, command):
    lines = [" ".join(line.split()) for line in printed(command).splitlines()]
    assert {"devices": "good:0 host memory", "drivers -v": "good:0 host memory: works"}.get(
        command, "good:0 host memory: works"
    ) in lines


def test_the_place_where_a_driver_hangs_is_told(printed, site):
    for command in COMMANDS:
        assert f"(it was in {site}/polygrad_hangs.py, line 9, in open)" in printed(command)
        assert f"(it was in {site}/polygrad_stalls.py, line 1, in <module>)" in printed(command)


def test_a_traceback_is_shown_when_asked(printed):
    assert 'polygrad_raises.py", line 1, in <module>' in printed("drivers -v")
    assert "Traceback" not in printed("devices") + printed("doctor")


@pytest.mark.parametrize("name", [n for n, f in FAULTS.items() if not f.quits])
def test_the_error_itself_says_it_and_the_process_goes_on(site, name):
    text = run(site, ["-c", TRY.replace("NAME", name)], f"good,{name}")
    before, told, after = text.strip().splitlines()
    assert before == after == "good:0 gave 3.5"
    assert FAULTS[name].wrong in told
    assert FAULTS[name].way_out in told
    assert told.startswith("Driver")


@pytest.mark.parametrize("name", ["hangs", "stalls"])
def test_whoever_waits_for_a_driver_that_hangs_is_told_for_which(site, name):
    text = run(site, ["-c", TRY.replace("NAME", name)], f"good,{name}", wait=10)
    assert text.startswith("good:0 gave 3.5\n") or "good:0 gave 3.5" in text
    doing = "opened" if name == "hangs" else "imported"
    assert (
        f"driver '{name}' (polygrad-{name} 0.3) is still being {doing} after 1 seconds; if it hangs, end this process "
        f"and set POLYGRAD_DRIVERS_BLOCK={name} to keep it out; `python -m polygrad doctor` tells where it hangs\n"
    ) in text
    assert "(it was given up)" in text


IMPORTED = "open('NAME-was-imported', 'w').close()\n1 / 0\n"


@pytest.mark.parametrize("command", [*COMMANDS, "error"])
def test_a_blocked_driver_is_not_even_imported(tmp_path, command):
    driver(tmp_path, "spy", IMPORTED)
    healthy(tmp_path)
    arguments = ["-c", TRY.replace("NAME", "spy")] if command == "error" else ["-m", "polygrad", *COMMANDS[command]]
    trace = tmp_path / "spy-was-imported"
    for variables, told in (
        ({"POLYGRAD_DRIVERS_BLOCK": "spy", "POLYGRAD_DRIVERS_ONLY": "good,spy"}, "POLYGRAD_DRIVERS_BLOCK='spy'"),
        ({"POLYGRAD_DRIVERS_ONLY": "good"}, "POLYGRAD_DRIVERS_ONLY='good' does not name it"),
    ):
        text = run(tmp_path, arguments, "", **variables)
        assert told in text
        assert "good:0" in text
        assert not trace.exists()
    assert "division by zero" in run(tmp_path, arguments, "good,spy")
    assert trace.exists()
