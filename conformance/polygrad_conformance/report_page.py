"""A report as one HTML page that needs nothing else: no network, no script to read it.

Here: `page`, for one run or for several side by side.
Not here: numbers, which are in the reports; the accuracy tables (`report_heat.py`); looks (`report_style.py`).
"""

import html
from collections.abc import Sequence

from polygrad_conformance.checks import LEVELS, TIERS
from polygrad_conformance.outcome import BAD, Outcome, Report
from polygrad_conformance.report_heat import heat
from polygrad_conformance.report_style import STYLE
from polygrad_conformance.report_text import headline, labels, repeat, replay_command

SLOWEST = 15
FAILURES = 200  # shown of one run
SECTIONS = {"levels": "Levels", "failures": "Failures", "heat": "Accuracy", "excused": "Not tested", "slow": "Time",
            "device": "Device"}  # fmt: skip


def page(reports: Sequence[Report]) -> str:
    """Return the page of one run, or of several with a column each."""
    several = len(reports) > 1
    title = "conformance of drivers" if several else f"conformance of {reports[0].device}"
    links = "".join(f'<a href="#{key}">{name}</a>' for key, name in SECTIONS.items())
    names = labels(reports)
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>polygrad: {text(title)}</title><style>{STYLE}</style></head><body>",
        '<a class="skip" href="#levels">Skip to the results</a>',
        f'<nav aria-label="Sections"><div>{links}</div></nav><div class="page">',
        f"<header><h1>polygrad: {text(title)}</h1>",
        *([] if several else [f'<div class="soft">{text(headline(reports[0]))}</div>', _tiers(reports[0])]),
        "</header><main>",
        _matrix(reports, names) if several else _levels(reports[0]),
        _failures(reports, names),
        heat(reports, names),
        _excused(reports, names),
        _slow(reports, names),
        '<section id="device">',
        *(_device(r, n) for r, n in zip(reports, names, strict=True)),
        "</section></main></div></body></html>\n",
    ]
    return "\n".join(parts)


def text(value: object) -> str:
    """Return *value* as text that cannot become markup."""
    return html.escape(str(value))


def scrolled(name: str, table: str) -> str:
    """Return a table in a region that the keyboard can reach and scroll."""
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{text(name)}">{table}</div>'


def _tiers(report: Report) -> str:
    items = []
    for tier, state in report.tiers.items():
        reached = state == "reached"
        items.append(
            f'<li class="{"good" if reached else "bad"}"><b>{"✔" if reached else "✘"} {tier}</b>'
            f"<span>levels 0 to {TIERS[tier]}: {text(state)}</span></li>"
        )
    return f'<ul class="tiers">{"".join(items)}</ul>'


def _levels(report: Report) -> str:
    titles = ("passed", "failed", "expected to fail", "not tested", "not run", "seconds")
    head = "".join(f'<th scope="col">{t}</th>' for t in titles)
    rows = "".join(
        f'<tr><th scope="row">{level} {name}</th>{_level_cells(report, level)}</tr>' for level, name in LEVELS.items()
    )
    table = f'<table><thead><tr><th scope="col">level</th>{head}</tr></thead><tbody>{rows}</tbody></table>'
    return f'<section id="levels"><h2>Levels</h2>{scrolled("Levels", table)}</section>'


def _level_cells(report: Report, level: int) -> str:
    counts = [
        report.count("passed", level=level), report.count(*BAD, level=level), report.count("xfailed", "xpassed", level=level),
        report.count("skipped", "unsupported", level=level), report.count("not run", level=level),
    ]  # fmt: skip
    classes = ("good", "bad", "other", "soft", "bad")
    cells = [f'<td class="{c if n else "soft"}">{n}</td>' for n, c in zip(counts, classes, strict=True)]
    seconds = sum(o.seconds for o in report.outcomes if o.level == level)
    return "".join(cells) + f"<td>{seconds:.1f}</td>"


def _matrix(reports: Sequence[Report], names: Sequence[str]) -> str:
    """Return the table of drivers: what each is, which tier it reaches, how each level went."""
    facts = [
        ("hardware", [text(r.described.get("info", {}).get("name", "?")) for r in reports]),
        ("driver", [text(_distribution(r)) for r in reports]),
        ("polygrad", [text(r.system["polygrad"]) for r in reports]),
        ("suite", [text(f"{r.suite}, {r.options['profile']}") for r in reports]),
        ("day", [text(r.began[:10]) for r in reports]),
        ("tier", [_tier(r) for r in reports]),
        *((f"{level} {name}", [_level_cell(r, level) for r in reports]) for level, name in LEVELS.items()),
        ("random kernels", [text(r.figures.get("random kernels", 0)) for r in reports]),
        ("seconds", [f"{r.seconds:.0f}" for r in reports]),
    ]
    head = "".join(f'<th scope="col">{text(n)}</th>' for n in names)
    rows = "".join(
        f'<tr><th scope="row">{name}</th>{"".join(f"<td>{c}</td>" for c in cells)}</tr>' for name, cells in facts
    )
    table = f'<table class="matrix"><thead><tr><th scope="col"></th>{head}</tr></thead><tbody>{rows}</tbody></table>'
    return f'<section id="levels"><h2>Drivers and levels</h2>{scrolled("Drivers and levels", table)}</section>'


def _tier(report: Report) -> str:
    tier = report.tier
    if report.refused:
        return '<b class="bad">not opened</b>'
    return f'<b class="{"bad" if tier == "none" else "good"}">{tier}</b>'


def _level_cell(report: Report, level: int) -> str:
    passed, failed = report.count("passed", level=level), report.count(*BAD, level=level)
    if failed:
        return f'<span class="bad">✘ {failed} of {passed + failed} failed</span>'
    skipped = report.count("skipped", "unsupported", level=level)
    beside = f' <span class="soft">({skipped} not declared)</span>' if skipped else ""
    return f'<span class="good">✔ {passed}</span>{beside}' if passed else '<span class="soft">none</span>'


def _failures(reports: Sequence[Report], names: Sequence[str]) -> str:
    items = []
    for report, name in zip(reports, names, strict=True):
        if report.refused:
            items.append(f'<p class="bad">{text(name)} cannot be opened: {text(report.refused)}</p>')
        failed = [o for o in report.outcomes if o.status in BAD]
        items += [_failure(report, o, name if len(reports) > 1 else "") for o in failed[:FAILURES]]
        if len(failed) > FAILURES:
            items.append(f'<p class="bad">... and {len(failed) - FAILURES} more on {text(name)}</p>')
        for title, lines in (("stale expectation", report.stale), ("declared but used by no test", report.vacuous),
                             ("lost from the suite", report.missing)):  # fmt: skip
            items += [f'<p class="other">{text(name)}: {title}: {text(line)}</p>' for line in lines]
    body = "".join(items) or '<p class="good">None.</p>'
    return f'<section id="failures"><h2>Failures</h2>{body}</section>'


def _failure(report: Report, outcome: Outcome, name: str) -> str:
    """Return one failure: what was wrong, the smallest kernel that shows it, its source, how to repeat it."""
    where = f" on {text(name)}" if name else ""
    flaky = " (passed when repeated)" if outcome.flaky else ""
    parts = [
        f'<details><summary><b class="bad">{outcome.status}</b> <code>{text(outcome.id)}</code>{where}{flaky}'
        f"<p>{text(outcome.message[:400])}</p></summary>"
    ]
    if outcome.kernel:
        title = "Kernel, made as small as still fails" if outcome.case is not None else "Kernel launched last"
        parts.append(f"<h3>{title}</h3>{_code(outcome.kernel, 'Kernel')}")
    if outcome.source:
        parts.append(f"<h3>Source that the driver makes of it</h3>{_code(outcome.source, 'Source')}")
    again = repeat(report, outcome.id)
    if outcome.case is not None:
        again += f"\n{replay_command(report, outcome.id)}"
    parts.append(f"<h3>Again</h3>{_code(again, 'Commands')}</details>")
    return "".join(parts)


def _code(content: str, name: str) -> str:
    return f'<pre tabindex="0" role="region" aria-label="{name}">{text(content)}</pre>'


def _excused(reports: Sequence[Report], names: Sequence[str]) -> str:
    found: dict[tuple[str, str, str], dict[str, int]] = {}  # what lacks is told together, other reasons one by one
    for report, name in zip(reports, names, strict=True):
        for o in report.outcomes:
            if o.status in ("skipped", "unsupported", "xfailed", "not run"):
                what = {"skipped": "not declared", "xfailed": "expected to fail"}.get(o.status, o.status)
                counts = found.setdefault((name, what, "" if o.status == "skipped" else o.reason), {})
                counts[o.reason] = counts.get(o.reason, 0) + 1
    undeclared = [f"{n}: {word}" for r, n in zip(reports, names, strict=True) for word in r.undeclared]
    note = f"<p>Right in a short try, but not declared: {text(', '.join(undeclared))}</p>" if undeclared else ""
    if not found:
        return (
            f'<section id="excused"><h2>Not tested</h2><p class="good">Nothing: every test applied.</p>{note}</section>'
        )
    body = "".join(
        f'<tr><td>{text(device)}</td><td>{text(what)}</td><td class="wrap">{text(", ".join(counts))}</td>'
        f'<td class="number">{sum(counts.values())}</td></tr>'
        for (device, what, _), counts in found.items()
    )
    table = (
        '<table class="list"><thead><tr><th scope="col">device</th><th scope="col">why</th><th scope="col">reason</th>'
        f'<th scope="col" class="number">tests</th></tr></thead><tbody>{body}</tbody></table>'
    )
    return f'<section id="excused"><h2>Not tested</h2>{scrolled("Not tested", table)}{note}</section>'


def _slow(reports: Sequence[Report], names: Sequence[str]) -> str:
    timed = sorted(
        ((o.seconds, n, o.id) for r, n in zip(reports, names, strict=True) for o in r.outcomes), reverse=True
    )[:SLOWEST]
    longest = max((t for t, _, _ in timed), default=0) or 1
    rows = "".join(
        f"<tr><td><code>{text(name)}</code></td><td>{text(device)}</td><td class='number'>{seconds:.2f} s</td>"
        f'<td aria-hidden="true" style="width:35%"><span class="bar" style="width:{100 * seconds / longest:.1f}%"></span>'
        "</td></tr>"
        for seconds, device, name in timed
    )
    table = (
        '<table class="list"><thead><tr><th scope="col">test</th><th scope="col">device</th>'
        '<th scope="col" class="number">time</th><th scope="col"><span class="soft">of the slowest</span></th></tr></thead>'
        f"<tbody>{rows}</tbody></table>"
    )
    whole = ", ".join(
        (f"{n}: " if len(reports) > 1 else "") + f"{r.seconds:.1f} s" for r, n in zip(reports, names, strict=True)
    )
    return f'<section id="slow"><h2>Time</h2><p>In all {text(whole)}.</p>{scrolled("Time", table)}</section>'


def _distribution(report: Report) -> str:
    return f"{report.described.get('distribution', '?')} {report.described.get('version', '')}".strip()


def _device(report: Report, name: str) -> str:
    info = report.described.get("info", {})
    facts = {
        **report.system, "suite": report.suite, "profile": report.options["profile"], "seed": str(report.options["seed"]),
        "began": report.began, "seconds": f"{report.seconds:.1f}", "random kernels": report.figures.get("random kernels", 0),
        "distribution": _distribution(report),
        **{k: ", ".join(v) if isinstance(v, list) else v for k, v in info.items() if not isinstance(v, dict)},
        **{k: ", ".join(f"{a} {b}" for a, b in v.items()) for k, v in info.items() if isinstance(v, dict)},
    }  # fmt: skip
    rows = "".join(
        f'<tr><th scope="row">{text(k)}</th><td class="wrap">{text(v)}</td></tr>' for k, v in facts.items() if v
    )
    return f'<h2>{text(name)}</h2>{scrolled(name, f"""<table class="list"><tbody>{rows}</tbody></table>""")}'
