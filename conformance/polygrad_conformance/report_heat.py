"""The accuracy of functions as a table of ops and dtypes, shaded by how near the worst error is to its ceiling.

Here: the heat map. Not here: the rest of the page (`report_page.py`), where the numbers come from (level 4).
"""

import html
from collections.abc import Sequence
from typing import Any

from polygrad_conformance.outcome import Report

EXACT = 0.5  # ULP of a correctly rounded result
NOTHING = '<section id="heat"><h2>Accuracy</h2><p class="soft">No function was measured.</p></section>'
LEGEND = '<div class="legend"><span>correctly rounded</span><i aria-hidden="true"></i><span>at its ceiling</span></div>'


def heat(reports: Sequence[Report], names: Sequence[str]) -> str:
    """Return the section: for each op, dtype and run the worst error in ULP, and where it is."""
    measured = [r.figures.get("ulp", {}) for r in reports]
    keys = sorted({key for found in measured for key in found})
    if not keys:
        return NOTHING
    ops = sorted({key.rpartition(".")[0] for key in keys})
    dtypes = sorted({key.rpartition(".")[2] for key in keys})
    alone = len(reports) == 1  # then there is room to say where
    rows = "".join(
        f'<tr><th scope="row">{op}</th>{"".join(_cells(measured, op, dtypes, where=alone))}</tr>' for op in ops
    )
    table = (
        '<table class="heat"><caption>Worst error in ULP / ceiling.</caption>'
        f"<thead>{_head(names, dtypes)}</thead><tbody>{rows}</tbody></table>"
    )
    more = "" if alone else _operands(measured, names)
    return (
        f'<section id="heat"><h2>Accuracy</h2>{LEGEND}<div class="scroll" tabindex="0" role="region" '
        f'aria-label="Accuracy">{table}</div>{more}</section>'
    )


def _head(names: Sequence[str], dtypes: Sequence[str]) -> str:
    if len(names) == 1:
        columns = "".join(
            f'<th scope="col" class="first">{d}</th><th scope="col" class="where">at</th>' for d in dtypes
        )
        return f'<tr><th scope="col">op</th>{columns}</tr>'
    columns = "".join(f'<th scope="col"{_first(k)}>{d}</th>' for _ in names for k, d in enumerate(dtypes))
    spans = "".join(f'<th scope="colgroup" class="first" colspan="{len(dtypes)}">{html.escape(n)}</th>' for n in names)
    return f'<tr><th rowspan="2" scope="col">op</th>{spans}</tr><tr>{columns}</tr>'


def _first(place: int) -> str:
    return ' class="first"' if place == 0 else ""


def _cells(measured: Sequence[dict[str, Any]], op: str, dtypes: Sequence[str], *, where: bool) -> list[str]:
    cells = []
    for found in measured:
        for place, dtype in enumerate(dtypes):
            value = found.get(f"{op}.{dtype}")
            cells.append(_shaded(value, _first(0 if where else place)))
            if where:
                cells.append(f'<td class="where">{html.escape(_short(value[2])) if value else ""}</td>')
    return cells


def _short(where: str) -> str:
    """Return operands with fewer digits; the JSON has them all.

    >>> _short("0.9947361350059509, -3.5e-12")
    '0.994736, -3.5e-12'
    """
    return ", ".join(f"{float(x):.6g}" for x in where.split(", "))


def _shaded(value: Any, which: str) -> str:
    if value is None:
        return f'<td{which}><span class="soft" title="not declared">-</span></td>'
    worst, limit, _ = value
    share = min(max(worst - EXACT, 0) / max(limit - EXACT, 1), 1.0)
    colour = f"hsl({130 - 130 * share:.0f} 60% 45% / {0.10 + 0.35 * share:.2f})"
    if worst > limit + 0.01:
        colour = "hsl(0 75% 50% / .8)"
    return f'<td{which} style="background:{colour}">{worst:.2f} <span class="soft">/ {limit:g}</span></td>'


def _operands(measured: Sequence[dict[str, Any]], names: Sequence[str]) -> str:
    rows = "".join(
        f"<tr><td>{html.escape(name)}</td><td><code>{html.escape(key)}</code></td><td>{worst:.2f}</td>"
        f"<td>{html.escape(where)}</td></tr>"
        for found, name in zip(measured, names, strict=True)
        for key, (worst, _, where) in sorted(found.items())
    )
    return (
        '<details><summary>Where each is worst</summary><div class="scroll" tabindex="0" role="region" '
        'aria-label="Where each is worst"><table class="list"><thead><tr><th scope="col">device</th>'
        '<th scope="col">op and dtype</th><th scope="col">ULP</th><th scope="col">operands</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div></details>"
    )
