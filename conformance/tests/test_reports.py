"""Reports: the table, JSON, JUnit, the badge, the page, the difference of two.

Here: their contents. Not here: runs (`test_running.py`).
"""

import html
import html.parser
import importlib
import json
import sys
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


def test_a_failure_shows_its_smallest_kernel_its_source_and_how_to_repeat_it(reports):
    _, bad = reports
    failed = next(o for o in bad.outcomes if o.id == "L5.random.0")
    assert failed.kernel.startswith("kernel: ")
    assert len(failed.case["kernel"]["stores"]) == 1
    shown = outcome.from_json(bad.as_json())
    shown.outcomes = [outcome.Outcome(**{**vars(failed), "source": "float y = a < b;"})]
    text = report_page.page([shown])
    assert html.escape(failed.kernel) in text
    assert "float y = a &lt; b;" in text
    assert "--replay cases/L5.random.0.json --plugin bad_drivers:strict --plugin bad_drivers:lying" in text
    assert "-k L5.random.0 --profile quick --seed 0" in text


def test_the_heat_map_has_a_cell_for_each_function_and_dtype(reports):
    good, _ = reports
    text = report_page.page([good])
    for name, (worst, limit, _) in good.figures["ulp"].items():
        assert f'>{worst:.2f} <span class="soft">/ {limit:g}</span>' in text, name
    beyond = outcome.from_json(good.as_json())
    beyond.figures = {"ulp": {"exp.float32": (9.0, 4, "1.5")}}
    assert "hsl(0 75% 50% / .8)" in report_page.page([beyond])


def test_reports_of_one_device_keep_their_own_columns(reports):
    good, _ = reports
    other = outcome.from_json(good.as_json())
    other.described = {**good.described, "info": {**good.described["info"], "name": "another oracle"}}
    other.figures = {"ulp": {"exp.float32": (3.25, 4, "1.5")}}
    text = report_page.page([good, other])
    assert "strict:0 on oracle, plain" in text
    assert "strict:0 on another oracle" in text
    assert text.count(">3.25 <span") == 1


def test_matrix_writes_a_page_of_saved_reports(reports, tmp_path, capsys):
    paths = []
    for report, name in zip(reports, ("good.json", "bad.json"), strict=True):
        report_files.put(tmp_path / name, report_files.as_json(report))
        paths.append(str(tmp_path / name))
    assert main(["conformance", "matrix", *paths, "-o", str(tmp_path / "pages" / "matrix.html")]) == OK
    assert (tmp_path / "pages" / "matrix.html").read_text() == report_page.page(list(reports))
    assert "tier core" in capsys.readouterr().out


def test_json_alone_is_written_where_it_is_asked_for(tmp_path, capsys):
    sys.path.insert(0, str(HERE))
    try:
        ended = main(["conformance", "strict:0", "--plugin", "bad_drivers:strict", "-k", "L0.info.sets", "--json",
                      str(tmp_path / "new" / "strict.json")])  # fmt: skip
    finally:
        sys.path.remove(str(HERE))
    capsys.readouterr()
    assert ended == OK
    assert outcome.from_json(json.loads((tmp_path / "new" / "strict.json").read_text())).device == "strict:0"


@pytest.fixture
def browser(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(HERE))
    module = importlib.import_module("browser")
    if module.FOUND is None:
        pytest.skip("not run: needs Chromium")
    found = module.Browser(tmp_path / "profile")
    yield found
    found.close()


# What has the focus: its tag, whether it had not before, how its outline is drawn; null if nothing has.
LOOK = """(() => {
    const e = document.activeElement, before = seen.size;
    if (e === document.body) return null;
    seen.add(e);
    return [e.tagName, seen.size > before, getComputedStyle(e).outlineStyle];
})()"""


@pytest.mark.parametrize("which", ["run", "matrix"])
def test_a_page_is_read_with_the_keyboard_alone(which, reports, tmp_path, browser):
    path = tmp_path / "page.html"
    path.write_text(report_page.page(list(reports) if which == "matrix" else [reports[1]]), encoding="utf-8")
    browser.open(path)
    everything = "document.querySelectorAll('a[href], summary, [tabindex=\"0\"]')"
    wanted = browser.value(f"window.seen = new Set(); {everything}.length")
    opened = 0
    for _ in range(4 * wanted + 20):  # opening a failure brings what is in it into the round
        browser.press("Tab")
        here = browser.value(LOOK)
        if here is None or not here[1]:
            break
        assert here[2] == "solid", f"the focus on {here[0]} is not to be seen"
        if here[0] == "SUMMARY" and not opened:
            browser.press("Enter")
            opened = browser.value("document.querySelectorAll('details[open]').length")
            assert opened == 1
    reached = browser.value("seen.size")
    inside = browser.value(
        f"[...{everything}].filter(e => e.tagName === 'SUMMARY' || !e.closest('details:not([open])')).length"
    )
    assert reached == inside
    assert reached > 8


def test_the_page_fits_narrow_screens_and_is_drawn(reports, tmp_path, browser):
    path, picture = tmp_path / "page.html", tmp_path / "page.png"
    path.write_text(report_page.page(list(reports)), encoding="utf-8")
    for width in (1280, 380):
        browser.ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 500
        )
        browser.open(path)
        assert browser.value("document.documentElement.scrollWidth") <= width, f"{width} pixels are not enough"
        browser.picture(picture)
        assert picture.stat().st_size > 20_000


def test_report_writes_files_and_diff_reads_them(reports, tmp_path, capsys):
    good, bad = reports
    alike = outcome.from_json(bad.as_json())  # of the levels that both have
    alike.outcomes = [o for o in alike.outcomes if o.level <= 4]
    for report, name in ((good, "good"), (alike, "bad")):
        written = report_files.write(report, tmp_path / name)
        assert {p.name for p in written} >= {"report.json", "junit.xml", "badge.json", "badge.svg", "index.html"}
    assert list((tmp_path / "bad" / "cases").iterdir())
    good, bad = (str(tmp_path / n / "report.json") for n in ("good", "bad"))
    assert main(["conformance", "diff", good, bad]) == FAILED
    assert "worse  L2.scalar.minimum.float32: passed, now failed" in capsys.readouterr().out
    assert main(["conformance", "diff", bad, good]) == OK
    assert main(["conformance", "diff", good, good]) == OK
    assert "nothing has changed" in capsys.readouterr().out


def test_the_matrix_of_the_documentation_is_the_page_of_its_reports():
    folder = HERE.parents[1] / "docs" / "conformance"
    saved = [outcome.from_json(json.loads(p.read_text())) for p in sorted((folder / "reports").glob("*.json"))]
    assert len(saved) >= 4
    assert {r.tier for r in saved} == {"complete"}
    assert (folder / "matrix.html").read_text() == report_page.page(saved), (
        "docs/conformance/matrix.html is not the page of docs/conformance/reports/*.json; index.md says how to make it"
    )
