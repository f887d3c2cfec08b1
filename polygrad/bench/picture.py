"""What a run found, as a picture: a bar for each contender at each piece of work, longer is slower.

Here: what is drawn, and the file.
Not here: what the bars mean (`judging.py`).

matplotlib (extra ``bench``) is imported when a picture is drawn.
"""

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from polygrad.array.files import replacing
from polygrad.bench.judging import Verdict
from polygrad.bench.rounds import Row
from polygrad.bench.selection import refuse

FORMATS = ("svg", "png", "pdf")
WIDTH, BAR, MARGIN, TOP = 9.0, 0.16, 0.18, 1.6  # inches: of the picture, a bar, the room between two works, the head
NARROW, MOST = 5.5, 16  # inches of a column where there are several, pieces of work in a column
DOTS = 120
COLOURS = ("#1b6ca8", "#5aa9e6", "#0b8457", "#6fcf97", "#8e44ad", "#c39bd3", "#d35400", "#f5b041", "#7f8c8d", "#34495e")


def kind_of(path: str) -> str:
    """Return the format that a picture's name asks for.

    >>> kind_of("ratios.svg")
    'svg'
    """
    kind = os.path.splitext(path)[1].lstrip(".").lower()
    if kind not in FORMATS:
        raise refuse(f"cannot draw {path}: pictures end in {', '.join(f'.{f}' for f in FORMATS)}")
    return kind


def check_drawing() -> None:
    """Refuse if matplotlib is missing, before anything is measured."""
    try:
        import matplotlib as mpl  # noqa: F401, PLC0415  an optional package
    except ImportError:
        raise refuse("a picture needs the package matplotlib: pip install 'polygrad-array[bench]'") from None


def draw(verdict: Verdict, path: str) -> None:
    """Draw the ratios to the reference into a file, which appears whole or not at all."""
    kind = kind_of(path)
    figure = _drawn(verdict)
    with replacing(path) as file:
        figure.savefig(file, format=kind, dpi=DOTS, bbox_inches="tight")


def _drawn(verdict: Verdict) -> Any:
    from matplotlib.figure import Figure  # noqa: PLC0415  an optional package

    rows = [r for r in verdict.rows if r.ratio and r.valid and r.contender.name not in verdict.references.values()]
    works = list(dict.fromkeys(row.work.name for row in rows))
    names = list(dict.fromkeys(row.contender.name for row in rows))
    colours = {name: COLOURS[k % len(COLOURS)] for k, name in enumerate(names)}
    height = -(-len(works) // max(1, -(-len(works) // MOST)))  # columns of equal length
    parts = [works[k : k + height] for k in range(0, len(works), height or 1)] or [[]]
    longest = max(sum(BAR for row in rows if row.work.name in part) + MARGIN * len(part) for part in parts)
    figure = Figure(
        figsize=(WIDTH if len(parts) == 1 else NARROW * len(parts), max(longest + TOP, 2.5)), layout="constrained"
    )
    logarithms = [math.log10(row.ratio or 1.0) for row in rows]
    (line,) = figure.subplots(1, len(parts), squeeze=False)
    for axes, part in zip(line, parts, strict=True):
        _bars(axes, [row for row in rows if row.work.name in part], part, colours, longest)
        _scaled(axes, logarithms)
    figure.supxlabel(f"time, as a ratio to {verdict.reference} (logarithmic; to the left is faster)", fontsize=10)
    handles = [line[0].barh(0, 0, color=colours[name], label=name) for name in names]
    if handles:
        figure.legend(handles=handles, loc="outside upper left", ncols=3 * len(parts), fontsize=8, frameon=False)
    return figure


def _bars(axes: Any, rows: Sequence[Row], works: Sequence[str], colours: Mapping[str, str], length: float) -> None:
    """Draw the bars of some work, one work below the other."""
    at, ticks = 0.0, []
    for work in works:
        own = [row for row in rows if row.work.name == work]
        ticks.append(at + BAR * (len(own) - 1) / 2)
        for row in own:
            width = math.log10(row.ratio or 1.0)
            axes.barh(at, width, height=0.9 * BAR, color=colours[row.contender.name], linewidth=0)
            at += BAR
        at += MARGIN
    axes.set_yticks(ticks, works, fontsize=8)
    axes.set_ylim(length, -MARGIN)
    axes.axvline(0.0, color="black", linewidth=1)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=8)
    axes.grid(axis="x", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)


def _scaled(axes: Any, logarithms: list[float]) -> None:
    """Name the ticks of a logarithmic axis that bars begin at 1 on."""
    low, high = min([*logarithms, -0.5]), max([*logarithms, 0.5])
    marks = [m * 10.0**p for p in range(math.floor(low), math.ceil(high) + 1) for m in (1, 2, 5)]
    if high - low > 2:  # noqa: PLR2004  decades with room for more than one mark each
        marks = [10.0**p for p in range(math.floor(low), math.ceil(high) + 1)]
    marks = [m for m in marks if low - 0.1 <= math.log10(m) <= high + 0.1]
    axes.set_xticks([math.log10(m) for m in marks], [f"{m:g}x" for m in marks])
    axes.set_xlim(low - 0.1, high + 0.1)
