"""Install polygrad's wheel and third-party drivers into an environment of their own, and try them as a stranger would.

Here: what `./dev test` runs as its part "third-party drivers": the drivers among the examples, and a new one as
`new-driver` writes it, from installation to the conformance suite and the training of digits. Not here: the drivers.

The environment holds nothing of this checkout but what pip was given: the wheel, and the distributions in the folders
of the examples. What they depend on is kept between runs; polygrad and the drivers are installed anew each time.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
TIERS = ("none", "core", "numeric", "complete")
# pip takes a build for processors alone of this release where it knows one, and elsewhere a far larger one.
TORCH = "torch==2.13.0"
NEW = "acme"
CASES = "50"  # random kernels in the tests of cc, which compile each; the suite has more


class Driver(NamedTuple):
    """A driver to try: its device, the tier it must reach, what it needs beside polygrad."""

    name: str
    tier: str
    needs: str = ""
    levels: str = "all"

    @property
    def device(self) -> str:
        """The name of its device."""
        return f"{self.name}:0"


DRIVERS = (Driver("cc", "complete"), Driver("torch", "numeric", TORCH), Driver(NEW, "core", levels="0-3"))


def say(text: str) -> None:
    """Print at once, so that the lines of child processes come after it."""
    print(text, flush=True)


class Environment:
    """A virtual environment, and a folder that is no checkout to run programs in."""

    def __init__(self, folder: Path, work: Path) -> None:
        self.folder, self.work, self.python = folder, work, folder / "bin" / "python"

    def pip(self, *arguments: str, fails: bool = False) -> bool:
        """Install; return whether it worked, and end this program if it did not and may not fail."""
        command = [sys.executable, "-m", "pip", "--python", str(self.python), "install", "--quiet"]
        done = subprocess.run(
            [*command, "--disable-pip-version-check", *arguments], check=False, capture_output=True, text=True
        )
        if done.returncode and not fails:
            say(done.stdout + done.stderr)
            raise SystemExit(f"pip could not install {' '.join(arguments)}; its message is above.")
        return done.returncode == 0

    def run(self, *arguments: str, show: bool = True) -> bool:
        """Run the environment's Python, and say how it ended if it failed or is to be shown."""
        start = time.monotonic()
        done = subprocess.run(
            [str(self.python), *arguments], cwd=self.work, check=False, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, env=clean(),
        )  # fmt: skip
        if done.returncode or show:
            say(done.stdout.rstrip())
            say(f"  ({' '.join(arguments)}: exit code {done.returncode}, {time.monotonic() - start:.0f} s)")
        return done.returncode == 0

    def prepare(self) -> None:
        """Make the environment unless it is there, and bring polygrad's wheel into it."""
        if not self.python.exists():
            shutil.rmtree(self.folder, ignore_errors=True)
            venv.create(self.folder, with_pip=False, symlinks=True)
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        extras = project["optional-dependencies"]
        self.pip("hatchling", *project["dependencies"], *extras["conformance"], *extras["demo"], *extras["test"])
        # An environment that was used before still has the drivers.
        remove = [sys.executable, "-m", "pip", "--python", str(self.python), "uninstall", "--quiet", "--yes"]
        subprocess.run([*remove, *(f"polygrad-driver-{d.name}" for d in DRIVERS)], check=False, capture_output=True)
        wheels = self.work / "wheels"
        command = [sys.executable, "-m", "pip", "--python", str(self.python), "wheel", "--quiet", "--no-deps"]
        subprocess.run([*command, "--no-build-isolation", "-w", str(wheels), str(ROOT)], check=True)
        self.add(str(next(wheels.glob("*.whl"))))

    def add(self, distribution: str) -> None:
        """Install a distribution, though one of this name and version may be there from an earlier run."""
        self.pip("--no-deps", "--no-build-isolation", "--force-reinstall", distribution)

    def place(self, name: str) -> str:
        """Return where the package *name* is imported from."""
        code = f"import {name}; print({name}.__file__)"
        return subprocess.run(
            [str(self.python), "-c", code], cwd=self.work, check=True, capture_output=True, text=True, env=clean()
        ).stdout.strip()


def clean() -> dict[str, str]:
    """Return the variables for a child: none that would let it see the checkout or block a driver."""
    hidden = ("PYTHONPATH", "POLYGRAD_DRIVERS_ONLY", "POLYGRAD_DRIVERS_BLOCK", "POLYGRAD_DEVICE", "VIRTUAL_ENV")
    return {k: v for k, v in os.environ.items() if k not in hidden} | {"POLYGRAD_CC_CASES": CASES}


def folder_of(environment: Environment, driver: Driver) -> Path:
    """Return the folder of a driver's distribution; that of a new one is written first."""
    if driver.name != NEW:
        return HERE / f"driver-{driver.name}"
    environment.run("-m", "polygrad", "new-driver", NEW, show=False)
    return environment.work / f"polygrad-driver-{NEW}"


def try_driver(environment: Environment, driver: Driver) -> list[str]:
    """Install a driver from its folder, run its tests and the suite; return a sentence for each fault."""
    if driver.needs and not environment.pip(driver.needs, fails=True):
        say(f"{driver.name}: not run: needs {driver.needs}, which pip could not install")
        return []
    say(f"\n--- driver {driver.name}")
    folder, faults = folder_of(environment, driver), []
    environment.add(str(folder))
    if not Path(environment.place(f"polygrad_driver_{driver.name}")).is_relative_to(environment.folder):
        faults.append(f"{driver.name} is not imported from the environment.")
    tests = environment.work / f"tests-{driver.name}"
    shutil.copytree(folder / "tests", tests)
    if not environment.run("-m", "pytest", "-q", "-p", "no:cacheprovider", str(tests)):
        faults.append(f"the tests of {driver.name} fail.")
    report = environment.work / f"report-{driver.name}"
    arguments = ["-m", "polygrad", "conformance", driver.device, "--level", driver.levels, "--report", str(report)]
    passed = environment.run(*arguments)
    tiers = json.loads((report / "report.json").read_text())["tiers"] if (report / "report.json").exists() else {}
    if not passed or tiers.get(driver.tier) != "reached":
        faults.append(f"{driver.device} does not reach the tier {driver.tier}: {tiers or 'there is no report'}.")
    return faults


def main(argv: Sequence[str] | None = None) -> int:
    """Try every driver and train on those of the examples; return 1 if anything is not as it should be."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="of the environment; made if it is not there")
    parser.add_argument("--drivers", default=",".join(d.name for d in DRIVERS), help="which (default: %(default)s)")
    parser.add_argument("--thorough", action="store_true", help="train the convolutional network too")
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as work:
        environment = Environment(arguments.folder.resolve(), Path(work))
        environment.prepare()
        say(f"polygrad from {environment.place('polygrad')}")
        chosen = [driver for driver in DRIVERS if driver.name in arguments.drivers.split(",")]
        faults = [fault for driver in chosen for fault in try_driver(environment, driver)]
        frozen = ["-p", "no:cacheprovider", str(ROOT / "tests" / "test_frozen_drivers.py"), "-k", "torch"]
        if installed(environment, DRIVERS[1]) and not environment.run("-m", "pytest", "-q", *frozen):
            faults.append("a frozen driver fails.")  # the others are run where ./dev runs its tests, which has no torch
        say("\n--- training")
        shutil.copy(HERE / "digits" / "train.py", work)
        devices = ",".join(["cpu:0", *(d.device for d in DRIVERS if d.name != NEW and installed(environment, d))])
        models = [] if arguments.thorough else ["--models", "MLP"]
        if not environment.run("train.py", "--plain", "--devices", devices, *models):
            faults.append("the training of digits fails.")
    for fault in faults:
        say(fault)
    return 1 if faults else 0


def installed(environment: Environment, driver: Driver) -> bool:
    """Whether a driver got into the environment."""
    return any(environment.folder.glob(f"lib/python*/site-packages/polygrad_driver_{driver.name}-*.dist-info"))


if __name__ == "__main__":
    sys.exit(main())
