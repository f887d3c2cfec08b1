"""Reports: the table, JSON, JUnit, the badge, the page, the difference of two.

Here: their contents. Not here: runs (`test_running.py`).
"""

import html.parser
import json
import shutil
import subprocess
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from polygrad.cli import main
from polygrad_conformance import outcome, report_files, report_page, report_text
from polygrad_conformance.outcome import FAILED, OK
from polygrad_conformance.running import Options, run

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def reports():
    """A report of a sound device and one of the same with a lie."""
    import sys

    sys.path.insert(0, str(HERE))
    try:
        good = run("strict:0", Options(level="0-4", plugins=("bad_drivers:strict",)))
        bad = run("strict:0", Options(level="0-5", plugins=("bad_drivers:strict", "bad_drivers:lying")))
    finally:
        sys.path.remove(str(HERE))
    return good, bad


def test_the_table_says_what_failed_and_how_to_repeat_it(reports):
    good, bad = (report_text.table(r) for r in reports)
    assert "tier: core" in good
    assert "worst ULP: " in good
    assert "tier: none" in bad
    assert "FAILED L2.scalar.minimum.float32" in bad
    assert "python -m polygrad conformance strict:0 -k L2.scalar.minimum.float32 --profile quick --seed 0" in bad


def test_json_comes_back(reports):
    for report in reports:
        again = outcome.from_json(json.loads(json.dumps(report.as_json(), default=str)))
        assert again.as_json() == json.loads(json.dumps(report.as_json()))
    with pytest.raises(ValueError, match="no report of version"):
        outcome.from_json({"polygrad_conformance": 99})


def test_junit_counts_every_test(reports):
    for report in reports:
        root = ET.fromstring(report_files.junit(report))
        assert len(root.findall(".//testcase")) == len(report.outcomes)
        assert len(root.findall(".//failure")) == report.count("failed")
        assert sum(int(s.get("failures")) for s in root) == report.count("failed")


def test_junit_takes_any_message(reports):
    good, _ = reports
    odd = outcome.from_json(good.as_json())
    odd.outcomes = [outcome.Outcome("L0.x", 0, "failed", message="\x00\x1b[31m<&>")]
    ET.fromstring(report_files.junit(odd))


def test_the_badge_has_tier_version_day_and_failures(reports):
    good, bad = (report_files.badge_data(r)["message"] for r in reports)
    assert good.startswith("core · ")
    assert good.count(" · ") == 2
    assert bad.startswith("none · ")
    assert bad.endswith(" failed")
    ET.fromstring(report_files.badge(reports[0]))


class _Links(html.parser.HTMLParser):
    """Notes what a page refers to, and the ids that it has."""

    def __init__(self):
        super().__init__()
        self.open, self.wanted, self.ids, self.outside = [], [], [], []

    def handle_starttag(self, tag, attrs):
        facts = dict(attrs)
        if tag not in ("meta", "br"):
            self.open.append(tag)
        self.ids += [facts["id"]] if "id" in facts else []
        for key in ("href", "src"):
            if key in facts:
                (self.wanted if facts[key].startswith("#") else self.outside).append(facts[key])

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_stands_alone_and_is_well_formed(reports):
    for which in ([reports[0]], [reports[1]], list(reports)):
        text = report_page.page(which)
        page = _Links()
        page.feed(text)
        assert page.open == []
        assert page.outside == []
        assert {w[1:] for w in page.wanted} <= set(page.ids)
        assert len(page.ids) == len(set(page.ids))
        assert "<script" not in text
    assert "kernel: i0 &lt;" in report_page.page([reports[1]])


def test_a_message_cannot_become_markup(reports):
    odd = outcome.from_json(reports[0].as_json())
    odd.outcomes.append(outcome.Outcome("L0.x", 0, "failed", message="<script>alert(1)</script>"))
    assert "<script" not in report_page.page([odd])


def test_the_page_is_drawn_by_a_browser(reports, tmp_path):
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("not run: needs Chromium")
    page, picture = tmp_path / "index.html", tmp_path / "page.png"
    page.write_text(report_page.page(list(reports)), encoding="utf-8")
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    subprocess.run(
        [*command, "--window-size=1200,2400", f"--screenshot={picture}", page.as_uri()],
        check=True, capture_output=True, timeout=120,
    )  # fmt: skip
    assert picture.stat().st_size > 20_000


def test_report_writes_files_and_diff_reads_them(reports, tmp_path, capsys):
    for report, name in zip(reports, ("good", "bad"), strict=True):
        written = report_files.write(report, tmp_path / name)
        assert {p.name for p in written} >= {"report.json", "junit.xml", "badge.json", "badge.svg", "index.html"}
    assert list((tmp_path / "bad" / "cases").iterdir())
    good, bad = (str(tmp_path / n / "report.json") for n in ("good", "bad"))
    assert main(["conformance", "diff", good, bad]) == FAILED
    assert "worse  L2.scalar.minimum.float32: passed, now failed" in capsys.readouterr().out
    assert main(["conformance", "diff", bad, good]) == OK
    assert main(["conformance", "diff", good, good]) == OK
    assert "nothing has changed" in capsys.readouterr().out
