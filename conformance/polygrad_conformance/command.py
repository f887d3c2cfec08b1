"""The command line of the suite: ``python -m polygrad conformance ...``.

Here: what each way of calling it does, and exit codes.
Not here: the arguments' declaration, which is polygrad's (`polygrad.cli.conformance`).
"""

import argparse
import json
import sys
from pathlib import Path

from polygrad.commands import of_file
from polygrad.driver.binding import list_devices
from polygrad.driver.loader import REGISTRY
from polygrad_conformance import outcome, report_files, report_page, report_text, running
from polygrad_conformance.outcome import FAILED, NOT_LOADED, OK, STALE, TOO_LITTLE, USAGE, Outcome, Report
from polygrad_conformance.running import DeviceRun, Options

WORST_FIRST = (FAILED, NOT_LOADED, STALE, TOO_LITTLE, OK)
BAR = 24


def run(arguments: argparse.Namespace) -> int:
    """Do what *arguments* ask, and return the exit code."""
    try:
        return _dispatched(arguments)
    except (ValueError, OSError) as error:
        sys.stderr.write(f"polygrad conformance: {of_file(error) or error}\n")
        return USAGE


def _dispatched(arguments: argparse.Namespace) -> int:
    devices = list(arguments.devices)
    if devices[:1] == ["diff"]:
        return _diff(devices[1:])
    if devices[:1] == ["matrix"]:
        return _matrix(devices[1:], arguments.output)
    options = Options(
        arguments.profile, arguments.level, arguments.pattern, arguments.seed, arguments.time, arguments.limit,
        tuple(arguments.plugin), arguments.allow_xpass,
    )  # fmt: skip
    checks = running.selected(options)
    if not checks:
        raise ValueError(f"no test matches -k {options.pattern} and --level {options.level}; --list shows all")
    if arguments.list:
        sys.stdout.writelines(f"{c.id}\n" for c in checks)
        return OK
    if arguments.self_test:
        from polygrad_conformance import selftest  # noqa: PLC0415  it loads every mutant

        return selftest.run(arguments.report)
    if arguments.all_installed:
        devices += [d for d in list_devices(REGISTRY) if d not in devices]
    if not devices:
        raise ValueError(
            "name a device, such as acme:0, or give --all-installed; `python -m polygrad devices` lists them"
        )
    if arguments.replay is not None:
        return max(_replayed(device, options, arguments.replay) for device in devices)
    if arguments.report is not None:
        arguments.report.mkdir(parents=True, exist_ok=True)  # what cannot be written is said before minutes have gone
    reports = [_one(device, options, arguments.report, several=len(devices) > 1) for device in devices]
    if arguments.json is not None:
        if len(reports) > 1:
            raise ValueError("--json takes the report of one device; give --report FOLDER for several")
        report_files.put(arguments.json, report_files.as_json(reports[0]))
    if len(reports) > 1 and arguments.report is not None:
        path = arguments.report / "index.html"
        path.write_text(report_page.page(reports), encoding="utf-8")
        sys.stdout.write(f"all devices: {path}\n")
    codes = {r.exit_code for r in reports}
    return next(code for code in WORST_FIRST if code in codes)


def _one(device: str, options: Options, folder: Path | None, *, several: bool) -> Report:
    progress = _bar if sys.stderr.isatty() else None
    report = running.run(device, options, progress)
    if progress is not None:
        sys.stderr.write("\r\x1b[2K")
    sys.stdout.write(report_text.table(report))
    if folder is not None:
        place = folder / device.replace(":", "_") if several else folder
        report_files.write(report, place)
        sys.stdout.write(f"report: {place / 'index.html'}\n")
    sys.stdout.flush()
    return report


def _bar(done: int, total: int, name: str, ended: Outcome | None) -> None:
    if ended is not None and ended.status in outcome.BAD:
        sys.stderr.write(f"\r\x1b[2K{ended.status.upper()} {ended.id}: {ended.message[:160]}\n")
    full = BAR * done // total
    sys.stderr.write(f"\r\x1b[2K[{'#' * full}{'.' * (BAR - full)}] {done}/{total} {name}")
    sys.stderr.flush()


def _replayed(device: str, options: Options, path: Path) -> int:
    try:
        case = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        case = None
    if not isinstance(case, dict) or "polygrad_case" not in case:
        raise ValueError(f"{path} holds no case; give a file of the folder cases/ that --report has written")
    job = DeviceRun(device, options)
    refused = job.start()
    if refused:
        sys.stdout.write(f"{device} cannot be opened: {refused}\n")
        return NOT_LOADED
    ended = job.replay(case)
    job.finish()
    sys.stdout.write(f"{device}: {ended.id} {ended.status}{': ' + ended.message if ended.message else ''}\n")
    return OK if ended.status == "passed" else FAILED


def _matrix(paths: list[str], output: Path | None) -> int:
    """Write the page of several saved reports side by side, and print a line for each."""
    if not paths or output is None:
        raise ValueError("matrix takes reports and a page: polygrad conformance matrix A.json B.json -o matrix.html")
    reports = [_read(p) for p in paths]
    report_files.put(output, report_page.page(reports))
    sys.stdout.writelines(f"{report_text.summary(r)}\n" for r in reports)
    sys.stdout.write(f"matrix: {output}\n")
    return OK


def _read(path: str) -> Report:
    try:
        return outcome.from_json(json.loads(Path(path).read_text(encoding="utf-8")))
    except ValueError as error:
        raise ValueError(f"cannot read {path}: {error}") from error


def _diff(paths: list[str]) -> int:
    if len(paths) != 2:
        raise ValueError("diff takes two reports: polygrad conformance diff BEFORE.json AFTER.json")
    before, after = (_read(p) for p in paths)
    text, worse = report_text.difference(before, after)
    sys.stdout.write(text)
    return FAILED if worse else OK
