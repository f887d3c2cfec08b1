"""A report as files: JSON, JUnit XML, a badge, cases to replay.

Here: what `--report FOLDER` writes beside the page. Not here: the page (`report_page.py`).
"""

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from polygrad_conformance import report_page
from polygrad_conformance.outcome import BAD, Report
from polygrad_conformance.report_text import case_file, repeat

COLOURS = {"complete": "#2e7d32", "numeric": "#558b2f", "core": "#9e9d24", "none": "#b71c1c"}
_CONTROL = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd]")  # what XML cannot hold


def write(report: Report, folder: Path) -> list[Path]:
    """Write all files of one run into *folder*, and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    files: dict[str, str] = {
        "report.json": as_json(report),
        "junit.xml": junit(report),
        "badge.json": json.dumps(badge_data(report)),
        "badge.svg": badge(report),
        "index.html": report_page.page([report]),
    }
    for outcome in report.outcomes:
        if outcome.case is not None:
            files[case_file(outcome.id)] = json.dumps(outcome.case)
    written = []
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        written.append(path)
    return written


def as_json(report: Report) -> str:
    """Return the report as JSON text."""
    return json.dumps(report.as_json(), indent=1, default=str) + "\n"


def put(path: Path, text: str) -> None:
    """Write *text*, in a folder that is made if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def junit(report: Report) -> str:
    """Return the report as JUnit XML, a test suite a level."""
    root = ET.Element("testsuites", name=f"polygrad conformance {report.device}")
    if report.refused:
        suite = ET.SubElement(root, "testsuite", name=report.device, tests="1", errors="1")
        case = ET.SubElement(suite, "testcase", classname=report.device, name="open")
        ET.SubElement(case, "error", message=_clean(report.refused))
    for level in sorted({o.level for o in report.outcomes}):
        mine = [o for o in report.outcomes if o.level == level]
        suite = ET.SubElement(
            root, "testsuite", name=f"{report.device} level {level}", tests=str(len(mine)),
            failures=str(sum(o.status in ("failed", "xpassed") for o in mine)),
            errors=str(sum(o.status in ("crashed", "hung") for o in mine)),
            skipped=str(sum(o.status in ("skipped", "unsupported", "xfailed", "not run") for o in mine)),
            time=f"{sum(o.seconds for o in mine):.3f}", timestamp=report.began,
        )  # fmt: skip
        for outcome in mine:
            case = ET.SubElement(
                suite, "testcase", classname=f"{report.device}.L{level}", name=outcome.id, time=f"{outcome.seconds:.3f}"
            )
            if outcome.status in ("failed", "xpassed"):
                text = ET.SubElement(case, "failure", message=_clean(outcome.message or outcome.reason))
                text.text = repeat(report, outcome.id)
            elif outcome.status in ("crashed", "hung"):
                ET.SubElement(case, "error", message=_clean(f"{outcome.status}: {outcome.message}"))
            elif outcome.status != "passed":
                ET.SubElement(case, "skipped", message=_clean(f"{outcome.status}: {outcome.reason}"))
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _clean(text: str) -> str:
    return _CONTROL.sub("?", text)


def badge_text(report: Report) -> str:
    """Return what the badge says: the tier, the suite's version, the day, what fails or is excused."""
    text = f"{report.tier} · {report.suite} · {report.began[:10]}"
    failed, excused = report.count(*BAD), report.count("xfailed")
    return text + (f" · {failed} failed" if failed else "") + (f" · {excused} expected to fail" if excused else "")


def badge_data(report: Report) -> dict[str, Any]:
    """Return the badge in the form that shields.io reads from an endpoint."""
    return {
        "schemaVersion": 1,
        "label": "polygrad conformance",
        "message": badge_text(report),
        "color": COLOURS[report.tier],
    }


def badge(report: Report) -> str:
    """Return the badge as SVG."""
    label, text = "polygrad conformance", badge_text(report)
    left, right = 6.6 * len(label) + 14, 6.3 * len(text) + 14
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right:.0f}" height="20" role="img" '
        f'aria-label="{label}: {text}"><title>{label}: {text}</title>'
        f'<rect width="{left:.0f}" height="20" fill="#444"/>'
        f'<rect x="{left:.0f}" width="{right:.0f}" height="20" fill="{COLOURS[report.tier]}"/>'
        '<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11" text-anchor="middle">'
        f'<text x="{left / 2:.0f}" y="14">{label}</text>'
        f'<text x="{left + right / 2:.0f}" y="14">{text}</text></g></svg>\n'
    )
