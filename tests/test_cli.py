"""Tests of the commands, run as people run them: in processes of their own, beside drivers that fail in every way.

Here: `python -m polygrad devices | drivers | doctor`. Not here: the sentences of failures (`test_loader.py`).
"""

import contextlib
import json
import os
import pathlib
import subprocess
import sys
import textwrap

import pytest

import polygrad
from polygrad.cli import main
from polygrad.distributed.__main__ import main as distributed
from polygrad.gpt import main as gpt

DRIVER = '''
    import struct

    from polygrad.driver import DeviceInfo, DriverBase, DriverInfo, DriverUnavailable, MemoryInfo

    class Acme(DriverBase):
        """A driver of bytearrays that doubles, which is all that the doctor asks for."""

        info = DriverInfo("acme", summary="a test")

        @classmethod
        def count(cls):
            return 2

        def open(self, ordinal, options):
            return DeviceInfo("acme", ordinal, "Acme 3000", dtypes=frozenset({"float32"}), version="1.2", vendor="Acme")

        def allocate(self, nbytes):
            return bytearray(nbytes)

        def free(self, handle):
            pass

        def op_write(self, outs, ins, attrs):
            outs[0].handle[:] = attrs["data"]

        def op_read(self, outs, ins, attrs):
            attrs["into"][:] = ins[0].handle

        def memory_info(self):
            return MemoryInfo(1 << 30, 2 << 30)

        def prepare_fused(self, kernel):
            def launch(buffers, ints, scalars):
                numbers = struct.unpack(f"{ints[0]}f", buffers[0])
                buffers[1][:] = struct.pack(f"{ints[0]}f", *(FACTOR * n for n in numbers))

            return launch

    FACTOR = 2
    plugin = Acme.plugin()
'''


class Site:
    """A folder with distributions, and the commands run where it can be seen."""

    def __init__(self, folder):
        self.folder = folder
        self.drivers = []

    def driver(self, name, source):
        """Install a distribution with the driver *name*, whose module has this source."""
        (self.folder / f"polygrad_{name}.py").write_text(textwrap.dedent(source).replace("acme", name))
        self.distribution(f"polygrad-{name}", f"[polygrad.drivers]\n{name} = polygrad_{name}:plugin\n")
        self.drivers.append(name)

    def distribution(self, name, entry_points="", packages="", version="0.3"):
        info = self.folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (info / "entry_points.txt").write_text(entry_points)
        (info / "top_level.txt").write_text(packages)

    def run(self, *arguments, **variables):
        """Run ``python -m polygrad`` with *arguments*, where no other driver is let in; return code, stdout, stderr."""
        home = pathlib.Path(polygrad.__file__).parents[1]
        environ = {
            **{k: v for k, v in os.environ.items() if not k.startswith("POLYGRAD_")},
            "PYTHONPATH": os.pathsep.join([str(self.folder), str(home)]),
            "POLYGRAD_DRIVERS_ONLY": ",".join(self.drivers) or "none",
            "POLYGRAD_CACHE_DIR": str(self.folder / "cache"),
            **variables,
        }
        done = subprocess.run(
            [sys.executable, "-m", "polygrad", *arguments],
            capture_output=True,
            text=True,
            env=environ,
            cwd=self.folder,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


# ---- devices ------------------------------------------------------------------------------------------------


def test_devices_lists_each_with_its_hardware_and_memory(site):
    site.driver("acme", DRIVER)
    code, out, err = site.run("devices")
    assert (code, err) == (0, "")
    assert out.splitlines()[:2] == [
        "acme:0  Acme 3000; 1.2; 1.0 of 2.0 GiB free",
        "acme:1  Acme 3000; 1.2; 1.0 of 2.0 GiB free",
    ]


def test_devices_tells_more_when_asked(site):
    site.driver("acme", DRIVER)
    out = site.run("devices", "-v")[1]
    assert "        vendor: Acme\n        dtypes: float32\n        ops: none beside write and read\n" in out


def test_devices_says_why_a_driver_has_none(site):
    site.driver("acme", DRIVER.replace("return 2", "raise DriverUnavailable('no Acme is plugged in; plug one in')"))
    code, out, err = site.run("devices")
    assert (code, err) == (1, "")
    assert out.startswith("There is no device; `python -m polygrad doctor` says more.\n\nNot usable:\n")
    assert "  acme: no Acme is plugged in; plug one in\n" in out


# ---- drivers ------------------------------------------------------------------------------------------------


def test_drivers_lists_each_with_status_and_reason_and_no_traceback(site):
    site.driver("acme", DRIVER)
    site.driver("bad", "1 / 0")
    site.driver("lacking", "import liblacking_that_is_not_there")
    code, out, err = site.run("drivers")
    assert (code, err) == (1, "")
    assert "Traceback" not in out
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "acme ok polygrad-acme 0.3: a test" in lines
    assert "bad broken polygrad-bad 0.3" in lines
    assert (
        "driver 'bad' (polygrad-bad 0.3) is broken: it could not be imported: ZeroDivisionError: division by zero; "
        "`python -m polygrad drivers -v` shows the traceback"
    ) in lines
    assert "lacking unavailable polygrad-lacking 0.3" in lines


def test_drivers_shows_tracebacks_when_asked(site):
    site.driver("bad", "1 / 0")
    out = site.run("drivers", "-v")[1]
    assert "Traceback (most recent call last):" in out
    assert "ZeroDivisionError: division by zero" in out


def test_drivers_prints_records_as_json(site):
    site.driver("acme", DRIVER)
    site.driver("bad", "1 / 0")
    code, out, _ = site.run("drivers", "--json")
    records = {r["name"]: r for r in json.loads(out)}
    assert code == 1
    assert records["acme"] == {
        "name": "acme",
        "distribution": "polygrad-acme",
        "version": "0.3",
        "status": "ok",
        "reason": "",
        "traceback": "",
        "summary": "a test",
    }
    assert records["bad"]["status"] == "broken"
    assert "ZeroDivisionError" in records["bad"]["traceback"]


def test_absent_hardware_and_blocked_drivers_are_no_fault(site):
    site.driver("acme", DRIVER.replace("return 2", "return 0"))
    site.driver("bad", "1 / 0")
    code, out, _ = site.run("drivers", POLYGRAD_DRIVERS_BLOCK="bad")
    assert code == 0
    assert "driver 'bad' is blocked by POLYGRAD_DRIVERS_BLOCK='bad'; take it out of that variable" in out
    assert "driver 'acme' (polygrad-acme 0.3) is unavailable: it found no device; install what it needs" in out


COUNTING = """        @classmethod
        def count(cls):
            return 2

"""


def test_a_driver_that_does_not_count_is_opened_before_it_is_called_ok(site):
    assert COUNTING in DRIVER
    one = DRIVER.replace(COUNTING, "")
    site.driver("acme", one)
    site.driver("none", one.replace("return DeviceInfo", "raise DriverUnavailable('none is plugged in'); DeviceInfo"))
    code, out, _ = site.run("drivers")
    status = {line.split()[0]: line.split()[1] for line in out.splitlines() if line[:1].strip()}
    assert (status["acme"], status["none"]) == ("ok", "unavailable")
    assert "none is plugged in" in out
    assert code == 0
    assert "acme:0 Acme 3000: works" in site.run("drivers", "-v")[1]


def test_drivers_tells_of_a_device_that_does_not_work(site):
    site.driver("acme", DRIVER.replace("FACTOR = 2", "FACTOR = 3"))
    assert site.run("drivers")[0] == 0
    code, out, _ = site.run("drivers", "-v")
    assert code == 1
    assert "acme:0 Acme 3000: a kernel that doubles (1, 2, 3, 4, 5, 6, 7, 8) gave (3.0, 6.0" in out


# ---- doctor -------------------------------------------------------------------------------------------------


def test_a_healthy_installation_is_said_to_be_well(site):
    site.driver("acme", DRIVER)
    (site.folder / "cache" / "acme").mkdir(parents=True)
    (site.folder / "cache" / "acme" / "program").write_bytes(bytes(1 << 20))
    code, out, err = site.run("doctor")
    assert (code, err) == (0, "")
    assert "\n  acme:0 Acme 3000: works\n  acme:1 Acme 3000: works\n" in out
    assert out.endswith("\n\nAll is well.\n")
    assert f"  {site.folder / 'cache'}: 1 files, 1.0 MiB\n" in out
    assert f"Python {sys.version.split()[0]} ({sys.executable})\n" in out
    assert "  POLYGRAD_DRIVERS_ONLY=acme\n" in out
    for library in ("numpy", "ml_dtypes", "pluggy", "pyopencl", "cupy"):
        assert f"\n  {library} " in out


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (
            ("FACTOR = 2", "FACTOR = 3"),
            "acme:0 Acme 3000: a kernel that doubles (1, 2, 3, 4, 5, 6, 7, 8) gave "
            "(3.0, 6.0, 9.0, 12.0, 15.0, 18.0, 21.0, 24.0)",
        ),
        (
            ('attrs["into"][:] = ins[0].handle', "pass"),
            "acme:0 Acme 3000: bytes that were written do not come back",
        ),
        (
            ("return bytearray(nbytes)", "raise MemoryError"),
            "acme:0 Acme 3000: no room left while allocating 32 bytes on acme:0: MemoryError; "
            "free arrays or take smaller ones",
        ),
        (
            ("return 2", "import os; os.abort()"),
            "driver 'acme' (polygrad-acme 0.3) is broken: the process in which it was tried was ended by SIGABRT; "
            "set POLYGRAD_DRIVERS_BLOCK=acme to keep it out, and tell its authors",
        ),
        (
            ("return 2", "import os, sys; sys.stderr.write('lost\\n'); sys.stderr.flush(); os._exit(3)"),
            "driver 'acme' (polygrad-acme 0.3) is broken: the process in which it was tried ended with code 3; its "
            "last words: lost; set POLYGRAD_DRIVERS_BLOCK=acme to keep it out, and tell its authors",
        ),
        (
            ("return 2", "1 / 0"),
            "driver 'acme' (polygrad-acme 0.3) is broken: it could not be asked for its devices: "
            "ZeroDivisionError: division by zero; `python -m polygrad drivers -v` shows the traceback",
        ),
    ],
)
def test_the_doctor_finds_what_a_driver_does_wrong(site, change, problem):
    assert change[0] in DRIVER
    site.driver("acme", DRIVER.replace(*change))
    code, out, err = site.run("doctor")
    assert (code, err) == (1, "")
    assert f"\n  problem: {problem}\n" in out
    assert "Traceback" not in out
    assert f"\n  {problem}\n" in out.partition("problem(s):")[2]


def test_a_driver_that_hangs_is_given_up_and_the_next_one_tried(site):
    site.driver("acme", DRIVER.replace("return 2", "import time; time.sleep(600)"))
    site.driver("good", DRIVER)
    code, out, _ = site.run("doctor", "--timeout", "8")
    assert code == 1
    assert (
        "\n  problem: driver 'acme' (polygrad-acme 0.3) is broken: it gave no answer within 8 seconds (it was in "
        f"{site.folder}/polygrad_acme.py, line 13, in count); a larger --timeout tells a slow driver from one that "
        "hangs, POLYGRAD_DRIVERS_BLOCK=acme keeps it out\n"
    ) in out
    assert "  good:1 Acme 3000: works\n" in out


def test_an_installation_without_a_device_is_not_well(site):
    code, out, _ = site.run("doctor")
    assert code == 1
    assert (
        "problem: no device works; pip install --force-reinstall polygrad-array brings one that needs no hardware\n"
        in out
    )


def test_another_distribution_with_our_package_is_found(site):
    site.driver("acme", DRIVER)
    site.distribution("polygrad", packages="polygrad\n", version="9.0")
    code, out, _ = site.run("doctor")
    assert code == 1
    assert (
        "problem: the distribution 'polygrad' installs a package named polygrad too, so either may be imported; "
        "pip uninstall polygrad, then pip install --force-reinstall polygrad-array\n"
    ) in out


# ---- the command line -----------------------------------------------------------------------------------------


def test_help_says_what_the_exit_code_means(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "--help"])
    assert ended.value.code == 0
    assert "Exit code: 0 if some device works and nothing is wrong, else 1." in capsys.readouterr().out


def test_an_unknown_command_is_refused(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["heal"])
    assert ended.value.code == 2
    assert "invalid choice: 'heal'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("program", "words", "usage"),
    [
        (main, ["doctor", "cpu:0", "--fast"], "usage: polygrad doctor"),
        (gpt, ["generate", "cpu:0", "--fast"], "usage: python -m polygrad.gpt generate"),
        (distributed, ["run", "-n", "2", "--fast"], "usage: python -m polygrad.distributed run"),
    ],
)
def test_what_a_command_does_not_know_is_refused_with_its_own_usage(program, words, usage, capsys):
    with contextlib.suppress(SystemExit):
        assert program(words) == 2
    said = capsys.readouterr().err
    assert said.startswith(usage)
    assert said.endswith(f"error: unrecognized arguments: {' '.join(words[-2:] if 'cpu:0' in words else words[-1:])}\n")


def test_the_version_is_told(capsys):
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"polygrad {polygrad.__version__}\n"


@pytest.mark.parametrize("verbose", [False, True])
def test_a_command_that_fails_shows_a_traceback_only_when_asked(monkeypatch, capsys, verbose):
    def fail(arguments):
        raise ZeroDivisionError

    monkeypatch.setattr("polygrad.cli.drivers.run", fail)
    assert main(["drivers", *(["-v"] if verbose else [])]) == 1
    err = capsys.readouterr().err
    assert err.endswith("polygrad drivers: ZeroDivisionError\n")
    assert ("Traceback" in err) is verbose


def test_no_command_or_loader_knows_the_name_of_a_driver():
    home = pathlib.Path(polygrad.__file__).parent
    sources = [*home.glob("cli/*.py"), *home.glob("driver/*.py")]
    assert len(sources) > 10
    for source in sources:
        text = source.read_text()
        for name in ("cpu", "opencl", "cuda"):
            assert f'"{name}"' not in text, source
            assert f"'{name}'" not in text, source
