"""Examine this installation: Python, libraries, name clashes, drivers, caches; say what is wrong and what to do.

Here: the examination.
Not here: the processes in which drivers are tried (`probing.py`).

Exit code: 0 if some device works and nothing is wrong, else 1. Absent hardware and blocked drivers are not wrong.
"""

import argparse
import importlib.metadata
import os
import pathlib
import platform
import sys
import textwrap

from polygrad.cli.probing import FAULTS, add_timeout, try_drivers
from polygrad.driver.caches import cache_root
from polygrad.driver.discovery import core_version
from polygrad.driver.messages import DISTRIBUTION, sentence_of

PACKAGES = ("numpy", "ml_dtypes", "pluggy", "pyopencl", "cupy")
MIB = 1 << 20


class Report:
    """Lines as they are found, and the problems among them."""

    def __init__(self, *, verbose: bool) -> None:
        self.verbose = verbose
        self.problems: list[str] = []

    def line(self, text: str) -> None:
        """Print *text*."""
        sys.stdout.write(text + "\n")
        sys.stdout.flush()  # what comes next may take a while

    def problem(self, text: str) -> None:
        """Print *text* and remember it."""
        self.problems.append(text)
        self.line(f"  problem: {text}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Take ``--timeout``."""
    add_timeout(parser)


def run(arguments: argparse.Namespace) -> int:
    """Examine, print, judge."""
    report = Report(verbose=arguments.verbose)
    report.line(f"polygrad {core_version()} in {pathlib.Path(__file__).parents[1]}")
    report.line(f"Python {platform.python_version()} ({sys.executable})")
    report.line(f"{platform.platform()}, {os.cpu_count()} processors")
    _packages(report)
    _variables(report)
    _platforms(report)
    _caches(report)
    _drivers(report, arguments.timeout)
    if not report.problems:
        report.line("\nAll is well.")
        return 0
    report.line(f"\n{len(report.problems)} problem(s):")
    for text in report.problems:
        report.line(f"  {text}")
    return 1


def _packages(report: Report) -> None:
    report.line("\nlibraries")
    try:
        providers = importlib.metadata.packages_distributions()
    except Exception as error:
        report.problem(f"the metadata of installed distributions cannot be read: {sentence_of(error)}")
        return
    for package in PACKAGES:
        found = [f"{d} {importlib.metadata.version(d)}" for d in sorted(set(providers.get(package, [])))]
        report.line(f"  {package:10} {', '.join(found) or 'not installed'}")
    for other in sorted({d for d in providers.get("polygrad", []) if _normal(d) != DISTRIBUTION}):
        report.problem(
            f"the distribution {other!r} installs a package named polygrad too, so either may be imported; "
            f"pip uninstall {other}, then pip install --force-reinstall {DISTRIBUTION}"
        )


def _normal(distribution: str) -> str:
    return distribution.lower().replace("_", "-")


def _variables(report: Report) -> None:
    found = sorted(f"  {k}={v}" for k, v in os.environ.items() if k.startswith("POLYGRAD_"))
    if found:
        report.line("\nvariables")
    for text in found:
        report.line(text)


def _platforms(report: Report) -> None:
    """Say which OpenCL platforms the loader will find: the one library that asks for a second installation."""
    if not sys.platform.startswith("linux"):
        return
    folder = pathlib.Path(os.environ.get("OCL_ICD_VENDORS") or "/etc/OpenCL/vendors")
    found = sorted(p.name for p in folder.glob("*.icd")) if folder.is_dir() else []
    found += [d for d in ("pocl-binary-distribution", "intel-opencl-rt") if _installed(d)]
    report.line("\nOpenCL platforms")
    report.line(f"  {', '.join(found) or 'none; pip install pyopencl[pocl] brings one for the processor'}")


def _installed(distribution: str) -> bool:
    try:
        importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _caches(report: Report) -> None:
    root = cache_root()
    sizes = [p.stat().st_size for p in root.rglob("*") if p.is_file()] if root.is_dir() else []
    report.line(f"\ncompiled programs\n  {root}: {len(sizes)} files, {sum(sizes) / MIB:.1f} MiB")


def _drivers(report: Report, seconds: float) -> None:
    report.line("\ndrivers")
    tried = try_drivers(seconds, "run")
    working = 0
    for record, devices in tried:
        if record.status in FAULTS:
            report.problem(record.reason)
            if report.verbose and record.traceback:
                report.line(textwrap.indent(record.traceback.rstrip(), "    "))
        elif record.status != "ok":
            report.line(f"  {record.name}: {record.status}: {record.reason}")
        for device in devices:
            described = f"{device['name']} {device['hardware']}".strip()
            if not device["fault"]:
                report.line(f"  {described}: works")
                working += 1
            elif record.status == "ok":  # otherwise the reason is told already
                report.problem(f"{described}: {device['fault']}")
    if not working:
        report.problem(
            f"no device works; pip install --force-reinstall {DISTRIBUTION} brings one that needs no hardware"
        )
