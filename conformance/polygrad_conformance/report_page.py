"""A report as one HTML page that needs nothing else: no network, no script to read it.

Here: `page`, for one run or several side by side.
Not here: numbers; they are in the reports.
"""

import html
import json
from collections.abc import Sequence
from typing import Any

from polygrad.driver import serial
from polygrad.driver.show import show
from polygrad_conformance.checks import LEVELS, TIERS
from polygrad_conformance.outcome import BAD, Report
from polygrad_conformance.report_text import headline, repeat

SLOWEST = 15
EXACT = 0.5  # ULP of a correctly rounded result
STYLE = """
:root { color-scheme: light dark; --ground: #fbfaf7; --ink: #1d2021; --soft: #6b6f72; --line: #dedbd3; --card: #fff;
  --good: #1b6e3a; --bad: #b3261e; --other: #8a6d00; --accent: #234f9e; }
@media (prefers-color-scheme: dark) { :root { --ground: #15171a; --ink: #e8e6e1; --soft: #9da3a8; --line: #33373c;
  --card: #1d2024; --good: #6fcf8f; --bad: #ff8a80; --other: #e0c060; --accent: #8fb4ff; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 72rem; padding: 2rem 1.25rem 4rem; background: var(--ground); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; margin: 0 0 .25rem; letter-spacing: -.01em; } h2 { font-size: 1.15rem; margin: 2.5rem 0 .75rem; }
h3 { font-size: 1rem; margin: 1.25rem 0 .5rem; }
.soft { color: var(--soft); } .good { color: var(--good); } .bad { color: var(--bad); } .other { color: var(--other); }
nav a { margin-right: 1rem; } a { color: var(--accent); } :focus-visible { outline: 3px solid var(--accent); outline-offset: 2px; }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: 8px; background: var(--card); }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
caption { text-align: left; padding: .6rem .8rem; color: var(--soft); }
th, td { padding: .35rem .8rem; text-align: right; border-top: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } thead th { font-weight: 600; color: var(--soft); border-top: 0; }
td.wrap { white-space: normal; text-align: left; min-width: 16rem; }
.heat td, .heat thead th { text-align: center; min-width: 7rem; } .list td, .list th { text-align: left; }
.heat th[scope=row] { font: 14px ui-monospace, monospace; text-align: left; }
.tiers { display: flex; flex-wrap: wrap; gap: .75rem; margin: 1rem 0; padding: 0; list-style: none; }
.tiers li { border: 1px solid var(--line); border-radius: 8px; background: var(--card); padding: .6rem 1rem; }
.tiers b { display: block; } details { border: 1px solid var(--line); border-radius: 8px; background: var(--card);
  margin: .5rem 0; padding: .5rem .8rem; } summary { cursor: pointer; }
pre { overflow-x: auto; background: var(--ground); padding: .75rem; border-radius: 6px; font: 13px/1.45 ui-monospace, monospace; }
code { font: 13px ui-monospace, monospace; }
"""


def page(reports: Sequence[Report]) -> str:
    """Return the page of one run, or of several with a column each."""
    names = ", ".join(r.device for r in reports)
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>polygrad conformance: {_text(names)}</title><style>{STYLE}</style></head><body>",
        f"<header><h1>polygrad conformance: {_text(names)}</h1>",
        *(f'<div class="soft">{_text(headline(r))}</div>' for r in reports),
        '<nav aria-label="Sections"><a href="#levels">Levels</a><a href="#heat">Accuracy</a>'
        '<a href="#failures">Failures</a><a href="#excused">Not tested</a><a href="#slow">Time</a>'
        '<a href="#device">Device</a></nav></header><main>',
        *(_tiers(r, several=len(reports) > 1) for r in reports),
        _levels(reports),
        _heat(reports),
        _failures(reports),
        _excused(reports),
        _slow(reports),
        '<div id="device">',
        *(_device(r) for r in reports),
        "</div>",
        "</main></body></html>\n",
    ]
    return "\n".join(parts)


def _text(value: object) -> str:
    return html.escape(str(value))


def _tiers(report: Report, *, several: bool) -> str:
    items = []
    for tier, state in report.tiers.items():
        reached = state == "reached"
        items.append(
            f'<li><b class="{"good" if reached else "bad"}">{"✔" if reached else "✘"} {tier}</b>'
            f'<span class="soft">levels 0 to {TIERS[tier]}: {_text(state)}</span></li>'
        )
    title = f"<h3>{_text(report.device)}</h3>" if several else ""
    return f'{title}<ul class="tiers">{"".join(items)}</ul>'


def _levels(reports: Sequence[Report]) -> str:
    head = "".join(f'<th scope="col">{_text(r.device)}</th>' for r in reports)
    if len(reports) == 1:
        titles = ("passed", "failed", "expected to fail", "not tested", "not run", "seconds")
        head = "".join(f'<th scope="col">{t}</th>' for t in titles)
    rows = []
    for level, name in LEVELS.items():
        if len(reports) == 1:
            cells = _level_cells(reports[0], level)
        else:
            cells = "".join(_level_cell(r, level) for r in reports)
        rows.append(f'<tr><th scope="row">{level} {name}</th>{cells}</tr>')
    return (
        '<section id="levels"><h2>Levels</h2><div class="scroll" tabindex="0" role="region" aria-label="Levels">'
        f'<table><thead><tr><th scope="col">level</th>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div></section>'
    )


def _level_cells(report: Report, level: int) -> str:
    counts = [
        report.count("passed", level=level), report.count(*BAD, level=level), report.count("xfailed", "xpassed", level=level),
        report.count("skipped", "unsupported", level=level), report.count("not run", level=level),
    ]  # fmt: skip
    classes = ("good", "bad", "other", "soft", "bad")
    cells = [f'<td class="{c if n else "soft"}">{n}</td>' for n, c in zip(counts, classes, strict=True)]
    seconds = sum(o.seconds for o in report.outcomes if o.level == level)
    return "".join(cells) + f"<td>{seconds:.1f}</td>"


def _level_cell(report: Report, level: int) -> str:
    passed, failed = report.count("passed", level=level), report.count(*BAD, level=level)
    if failed:
        return f'<td class="bad">✘ {failed} of {passed + failed} failed</td>'
    return f'<td class="{"good" if passed else "soft"}">{f"✔ {passed}" if passed else "none"}</td>'


def _heat(reports: Sequence[Report]) -> str:
    """Return the table of functions and dtypes: the worst ULP, shaded by how near it is to the ceiling."""
    found = {(r.device, name): value for r in reports for name, value in r.figures.get("ulp", {}).items()}
    if not found:
        return '<section id="heat"><h2>Accuracy</h2><p class="soft">No function was measured.</p></section>'
    ops = sorted({name.rpartition(".")[0] for _, name in found})
    dtypes = sorted({name.rpartition(".")[2] for _, name in found})
    columns = [(r.device, d) for r in reports for d in dtypes]
    head = "".join(f'<th scope="col">{_text(d if len(reports) == 1 else f"{n} {d}")}</th>' for n, d in columns)
    rows = []
    for op in ops:
        cells = "".join(_shade(found.get((device, f"{op}.{d}"))) for device, d in columns)
        rows.append(f'<tr><th scope="row">{op}</th>{cells}</tr>')
    return (
        '<section id="heat"><h2>Accuracy</h2><div class="scroll" tabindex="0" role="region" aria-label="Accuracy">'
        '<table class="heat"><caption>Worst error in ULP against the ceiling; the redder, the nearer. '
        "The operands are listed below.</caption>"
        f'<thead><tr><th scope="col">op</th>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>{_operands(found)}</section>'
    )


def _operands(found: dict[tuple[str, str], Any]) -> str:
    rows = "".join(
        f"<tr><td>{_text(device)}</td><td><code>{_text(name)}</code></td><td>{worst:.2f}</td><td>{_text(where)}</td></tr>"
        for (device, name), (worst, _, where) in found.items()
    )
    return (
        "<details><summary>Where each is worst</summary><table class='list'><thead><tr><th scope='col'>device</th>"
        f"<th scope='col'>op and dtype</th><th scope='col'>ULP</th><th scope='col'>at</th></tr></thead><tbody>{rows}</tbody></table>"
        "</details>"
    )


def _shade(value: Any) -> str:
    if value is None:
        return '<td class="soft">-</td>'
    worst, limit, _ = value
    share = min(max(worst - EXACT, 0) / max(limit - EXACT, 1), 1.0)
    colour = (
        f"hsl({130 - 130 * share:.0f} 60% 45% / {0.10 + 0.35 * share:.2f})"
        if worst <= limit + 0.01
        else "hsl(0 75% 50% / .8)"
    )
    return f'<td style="background:{colour}">{worst:.2f} <span class="soft">/ {limit:g}</span></td>'


def _failures(reports: Sequence[Report]) -> str:
    items = []
    for report in reports:
        if report.refused:
            items.append(f'<p class="bad">{_text(report.device)} cannot be opened: {_text(report.refused)}</p>')
        for outcome in (o for o in report.outcomes if o.status in BAD):
            kernel = ""
            if outcome.case is not None:
                shown = show(serial.from_json(json.dumps(outcome.case["kernel"])), outcome.case["ints"])
                kernel = f"<h3>Kernel</h3><pre tabindex='0'>{_text(shown)}</pre>"
            flaky = " (passed when repeated)" if outcome.flaky else ""
            items.append(
                f'<details><summary><b class="bad">{outcome.status}</b> <code>{_text(outcome.id)}</code> on '
                f"{_text(report.device)}{flaky}</summary><p>{_text(outcome.message)}</p>{kernel}"
                f"<h3>Again</h3><pre tabindex='0'>{_text(repeat(report, outcome.id))}</pre></details>"
            )
        for title, lines in (("stale expectation", report.stale), ("declared but used by no test", report.vacuous),
                             ("lost from the suite", report.missing)):  # fmt: skip
            items += [f'<p class="other">{_text(report.device)}: {title}: {_text(line)}</p>' for line in lines]
    body = "".join(items) or '<p class="good">None.</p>'
    return f'<section id="failures"><h2>Failures</h2>{body}</section>'


def _excused(reports: Sequence[Report]) -> str:
    rows: dict[tuple[str, str, str], int] = {}
    for report in reports:
        for o in report.outcomes:
            if o.status in ("skipped", "unsupported", "xfailed", "not run"):
                what = {"skipped": "not declared", "xfailed": "expected to fail"}.get(o.status, o.status)
                key = (report.device, what, o.reason)
                rows[key] = rows.get(key, 0) + 1
    undeclared = [f"{r.device}: {word}" for r in reports for word in r.undeclared]
    note = f"<p>Works but is not declared: {_text(', '.join(undeclared))}</p>" if undeclared else ""
    if not rows:
        return f'<section id="excused"><h2>Not tested</h2><p>Everything applied.</p>{note}</section>'
    body = "".join(
        f"<tr><td>{_text(d)}</td><td>{_text(w)}</td><td class='wrap'>{_text(r)}</td><td>{n}</td></tr>"
        for (d, w, r), n in rows.items()
    )
    return (
        '<section id="excused"><h2>Not tested</h2><div class="scroll" tabindex="0" role="region" aria-label="Not tested"><table class="list">'
        '<thead><tr><th scope="col">device</th><th scope="col">why</th><th scope="col">reason</th><th scope="col">tests</th></tr>'
        f"</thead><tbody>{body}</tbody></table></div>{note}</section>"
    )


def _slow(reports: Sequence[Report]) -> str:
    timed = sorted(((o.seconds, r.device, o.id) for r in reports for o in r.outcomes), reverse=True)[:SLOWEST]
    longest = max((t for t, _, _ in timed), default=0) or 1
    rows = "".join(
        f"<tr><td><code>{_text(name)}</code></td><td>{_text(device)}</td><td>{seconds:.2f} s</td>"
        f'<td aria-hidden="true" style="width:30%"><div style="height:.6rem;border-radius:3px;background:var(--accent);'
        f'width:{100 * seconds / longest:.1f}%"></div></td></tr>'
        for seconds, device, name in timed
    )
    return (
        '<section id="slow"><h2>Time</h2><div class="scroll" tabindex="0" role="region" aria-label="Time"><table class="list"><thead><tr>'
        '<th scope="col">test</th><th scope="col">device</th><th scope="col">time</th><th scope="col" aria-label="bar"></th></tr>'
        f"</thead><tbody>{rows}</tbody></table></div></section>"
    )


def _device(report: Report) -> str:
    info = report.described.get("info", {})
    facts = {
        **report.system, "began": report.began, "seconds": f"{report.seconds:.1f}", "random kernels": report.figures.get(
            "random kernels", 0), "distribution": f"{report.described.get('distribution', '')} {report.described.get('version', '')}",
        **{k: ", ".join(v) if isinstance(v, list) else v for k, v in info.items() if not isinstance(v, dict)},
        **{k: ", ".join(f"{a} {b}" for a, b in v.items()) for k, v in info.items() if isinstance(v, dict)},
    }  # fmt: skip
    rows = "".join(f"<tr><td>{_text(k)}</td><td class='wrap'>{_text(v)}</td></tr>" for k, v in facts.items() if v)
    return (
        f'<section><h2>{_text(report.device)}</h2><div class="scroll" tabindex="0" role="region" '
        f'aria-label="{_text(report.device)}"><table class="list"><tbody>{rows}</tbody></table></div></section>'
    )
