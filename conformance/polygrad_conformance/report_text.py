"""A report as a table for the terminal, and the difference of two.

Here: text. Not here: files (`report_files.py`).
"""

from collections.abc import Sequence

from polygrad_conformance.bench import EFFORTS
from polygrad_conformance.checks import LEVELS
from polygrad_conformance.outcome import BAD, Report

WORST, SLOWEST, SHOWN = 5, 5, 20


def headline(report: Report) -> str:
    """Return one line: which suite, which driver, which device."""
    info = report.described.get("info", {})
    parts = [
        f"polygrad conformance {report.suite}",
        f"polygrad {report.system['polygrad']}",
        f"driver {info.get('driver', report.device.partition(':')[0])} ({report.described.get('distribution', '?')} "
        f"{report.described.get('version', '')})".replace(" )", ")"),
        f'device {report.device} "{info.get("name", "?")}"',
        f"seed {report.options['seed']}",
        f"profile {report.options['profile']}",
    ]
    return " · ".join(parts)


def table(report: Report) -> str:
    """Return the whole report as lines of text."""
    if report.refused:
        return f"{report.device} cannot be opened: {report.refused}\n"
    lines = [headline(report), "", " level          passed failed xfail skipped not run     time"]
    for level, name in LEVELS.items():
        mine = [o for o in report.outcomes if o.level == level]
        if mine:
            lines.append(
                f" {level} {name:10} {report.count('passed', level=level):8} {report.count(*BAD, level=level):6} "
                f"{report.count('xfailed', 'xpassed', level=level):5} "
                f"{report.count('skipped', 'unsupported', level=level):7} {report.count('not run', level=level):7} "
                f"{sum(o.seconds for o in mine):7.1f}s{_lacking(report, level)}"
            )
    lines += ["", *_findings(report), *_failures(report), ""]
    states = "  ".join(f"{t} {'yes' if s == 'reached' else f'no ({s})'}" for t, s in report.tiers.items())
    lines.append(f"tier: {report.tier}   [{states}]   {report.seconds:.1f} s")
    return "\n".join(lines) + "\n"


def summary(report: Report) -> str:
    """Return one line for a note: what was tested, and how it ended."""
    passed, failed, skipped = (report.count(*s) for s in (("passed",), BAD, ("skipped", "unsupported")))
    counts = f"{passed} passed, {failed} failed, {skipped} skipped"
    return f"{headline(report)}: tier {report.tier}, {counts}, {report.seconds:.0f} s"


def _lacking(report: Report, level: int) -> str:
    reasons = sorted({o.reason for o in report.outcomes if o.level == level and o.status in ("skipped", "unsupported")})
    shown = ", ".join(reasons[:3]) + (", ..." if len(reasons) > 3 else "")
    return f"   ({shown})" if shown else ""


def _findings(report: Report) -> list[str]:
    lines = []
    measured = [(n, f) for n, f in report.figures.get("ulp", {}).items() if f[1] > 0.5 or f[0] > 0.51]
    worst = sorted(measured, key=lambda item: -item[1][0] / item[1][1])[:WORST]
    if worst:
        lines.append("worst ULP: " + "   ".join(f"{name} {found:.2f}/{limit:g}" for name, (found, limit, _) in worst))
    kernels = report.figures.get("random kernels")
    if kernels:
        lines.append(f"random kernels: {kernels}")
    slow = sorted(report.outcomes, key=lambda o: -o.seconds)[:SLOWEST]
    if slow and slow[0].seconds > 1:
        lines.append("slowest: " + "   ".join(f"{o.id} {o.seconds:.1f}s" for o in slow))
    for title, items in (
        ("right in a short try, but not declared", report.undeclared),
        ("declared but used by no test", report.vacuous),
        ("stale", report.stale),
        ("lost from the suite", report.missing),
    ):
        if items:
            lines.append(f"{title}: " + "; ".join(items))
    if report.count("not run"):
        cap = report.options["time"] or EFFORTS[report.options["profile"]].seconds
        lines.append(f"{report.count('not run')} tests did not run; give more time with --time (now {cap:g} s)")
    return lines


def _failures(report: Report) -> list[str]:
    failed = [o for o in report.outcomes if o.status in BAD]
    lines = []
    for outcome in failed[:SHOWN]:
        flaky = ", but passed when it was repeated" if outcome.flaky else ""
        lines += [
            f"{outcome.status.upper()} {outcome.id}{flaky}",
            f"    {outcome.message}",
            f"    {repeat(report, outcome.id)}",
        ]
    if len(failed) > SHOWN:
        lines.append(f"... and {len(failed) - SHOWN} more; --report FOLDER writes them all")
    return lines


def repeat(report: Report, name: str) -> str:
    """Return the command that runs one check again."""
    options = report.options
    plugins = "".join(f" --plugin {p}" for p in options["plugins"])
    how = f"--profile {options['profile']} --seed {options['seed']}{plugins}"
    return f"python -m polygrad conformance {report.device} -k {name} {how}"


def replay_command(report: Report, name: str) -> str:
    """Return the command that launches a check's saved case again, on this device or any other."""
    plugins = "".join(f" --plugin {p}" for p in report.options["plugins"])
    return f"python -m polygrad conformance {report.device} --replay {case_file(name)}{plugins}"


def case_file(name: str) -> str:
    """Return where in a report's folder the case of a check lies."""
    return f"cases/{name.replace(' ', '_')}.json"


def labels(reports: Sequence[Report]) -> list[str]:
    """Return a name for each report: its device, with the hardware where two reports have the same."""
    devices = [r.device for r in reports]
    hardware = [str(r.described.get("info", {}).get("name", "?")) for r in reports]
    names = [d if devices.count(d) == 1 else f"{d} on {h}" for d, h in zip(devices, hardware, strict=True)]
    return [n if names.count(n) == 1 else f"{n} ({k + 1})" for k, n in enumerate(names)]


def difference(before: Report, after: Report) -> tuple[str, bool]:
    """Return what changed between two reports, as text, and whether anything got worse."""
    lines, worse = [f"before: {headline(before)}", f"after:  {headline(after)}"], False
    old, new = ({o.id: o.status for o in r.outcomes} for r in (before, after))
    for name in dict.fromkeys((*old, *new)):
        was, now = old.get(name, "absent"), new.get(name, "absent")
        if was != now:
            lost = was == "passed" or now in BAD
            worse |= lost
            lines.append(f"{'worse ' if lost else 'better' if now == 'passed' else 'other '} {name}: {was}, now {now}")
    ulp_old, ulp_new = (r.figures.get("ulp", {}) for r in (before, after))
    for name in ulp_old:
        if name in ulp_new and abs(ulp_new[name][0] - ulp_old[name][0]) > 0.1:
            lines.append(f"ULP    {name}: {ulp_old[name][0]:.2f}, now {ulp_new[name][0]:.2f} of {ulp_new[name][1]:g}")
    if before.tier != after.tier:
        lines.append(f"tier: {before.tier}, now {after.tier}")
    if len(lines) == 2:
        lines.append("nothing has changed")
    return "\n".join(lines) + "\n", worse
