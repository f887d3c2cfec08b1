"""What a run found, as tables: with rich in a terminal, plain elsewhere.

Here: which columns and lines, and both ways to write them.
Not here: pictures (`picture.py`), files (`records.py`).
"""

import statistics
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TextIO

from polygrad.bench import quantities
from polygrad.bench.judging import Ceiling, Verdict
from polygrad.bench.rounds import QUIET, Row

COLUMNS = ("work", "contender", "median", "rate", "ceiling", "ratio", "memory", "first", "")
_LEFT = ("work", "contender", "group", "")
_LEAST = ("first", "memory", "rate", "ceiling")  # what is left out first where there is no room
_NOTE, _GAP = 16, 2  # characters: of a note that may be wrapped, between columns


class Table(NamedTuple):
    """A heading, the names of columns, and lines of cells; an empty line separates."""

    heading: str
    columns: Sequence[str]
    lines: list[Sequence[str]]


def row_cells(row: Row, ceiling: Ceiling) -> list[str]:
    """Return the cells of a row, without the name of the work."""
    if row.error:
        return [row.contender.name, "-", "", "", "", "", "", f"failed: {row.error}"]
    median = row.median or 0.0
    notes = []
    if not row.agrees:
        notes.append("RESULTS DIFFER")
    if row.winner:
        notes.append("fastest")
    return [
        row.contender.name,
        quantities.duration(median),
        quantities.rate(row.work, median, ceiling),
        quantities.percent(row.share) if row.share is not None else "",
        quantities.ratio(row.ratio) if row.ratio is not None else "",
        quantities.size(row.memory),
        quantities.duration(row.first),
        ", ".join(notes),
    ]


def results(verdict: Verdict) -> Table:
    """Return the table of all rows."""
    lines: list[Sequence[str]] = []
    last = ""
    for row in verdict.rows:
        first = row.work.name != last
        if first and lines:
            lines.append(())
        cells = row_cells(row, verdict.ceilings.get(row.contender.place, Ceiling()))
        lines.append([row.work.name if first else "", *cells])
        last = row.work.name
    return Table(f"Results (ratios are of times, to {verdict.reference})", COLUMNS, lines)


def means(verdict: Verdict) -> Table:
    """Return the table of geometric means."""
    lines: list[Sequence[str]] = []
    last = ""
    for mean in verdict.means:
        first = mean.group != last
        if first and lines:
            lines.append(())
        lines.append([mean.group if first else "", mean.contender, quantities.ratio(mean.ratio), str(mean.count)])
        last = mean.group
    heading = f"Geometric means of ratios to {verdict.reference}"
    return Table(heading, ("group", "contender", "ratio", "works"), lines)


def summary(verdict: Verdict) -> list[str]:
    """Return sentences: ceilings, who was fastest how often, what differed and what failed."""
    said = []
    for place, ceiling in verdict.ceilings.items():
        said.append(
            f"Ceiling of {place}: copy {ceiling.copy / 1e9:.3g} GB/s ({ceiling.copied_by or 'not measured'}), "
            f"matmul {ceiling.matmul / 1e12:.3g} TFLOP/s ({ceiling.multiplied_by or 'not measured'})."
        )
    loads = [load for row in verdict.rows for load in row.foreign]
    if loads and statistics.median(loads) > QUIET:
        said.append(f"Other programs kept {statistics.median(loads):.1f} cores busy meanwhile: the figures are rough.")
    if verdict.wins:
        ordered = sorted(verdict.wins.items(), key=lambda pair: -pair[1])
        said.append("Fastest: " + ", ".join(f"{name} {count} times" for name, count in ordered) + ".")
    own: dict[str, int] = {}
    for work in dict.fromkeys(row.work.name for row in verdict.rows):
        rows = [r for r in verdict.rows if r.work.name == work and r.contender.own and r.valid and r.median]
        if len({r.contender.device for r in rows}) > 1:
            device = min(rows, key=lambda r: r.median or 0.0).contender.device
            own[device] = own.get(device, 0) + 1
    if own:
        ordered = sorted(own.items(), key=lambda pair: -pair[1])
        said.append("Of polygrad's devices: " + ", ".join(f"{d} is fastest {n} times" for d, n in ordered) + ".")
    differing = [f"{r.work.name} of {r.contender.name}" for r in verdict.rows if not r.agrees]
    if differing:
        said.append(f"Results differ from what most libraries computed: {', '.join(differing)}.")
    for name in dict.fromkeys(row.contender.name for row in verdict.rows if row.error):
        failed = [row for row in verdict.rows if row.error and row.contender.name == name]
        said.append(
            f"{name} failed at {len(failed)} pieces of work, the first of them {failed[0].work.name}: {failed[0].error}"
        )
    return said


def _widths(table: Table) -> list[int]:
    return [
        max([len(name), *(len(line[k]) for line in table.lines if len(line) > k)])
        for k, name in enumerate(table.columns)
    ]


def write_plain(table: Table, file: TextIO) -> None:
    """Write a table in columns of spaces."""
    columns, widths = table.columns, _widths(table)
    file.write(f"\n{table.heading}\n\n")
    for line in [columns, *table.lines]:
        cells = [
            cell.ljust(width) if columns[k] in _LEFT else cell.rjust(width)
            for k, (cell, width) in enumerate(zip(line, widths, strict=False))
        ]
        file.write("  ".join(cells).rstrip() + "\n")


def fitting(table: Table, room: int) -> Table:
    """Return the table without the columns that find no room, the least important left out first."""
    widths = _widths(table)
    if not table.columns[-1]:
        widths[-1] = min(widths[-1], _NOTE)  # which may take several lines
    kept = list(range(len(widths)))
    for name in _LEAST:
        if sum(widths[k] for k in kept) + _GAP * len(kept) <= room:
            break
        kept = [k for k in kept if table.columns[k] != name]
    left_out = [name for k, name in enumerate(table.columns) if k not in kept]
    heading = f"{table.heading}; no room for: {', '.join(left_out)}" if left_out else table.heading
    return Table(
        heading, [table.columns[k] for k in kept], [[line[k] for k in kept] if line else () for line in table.lines]
    )


def _write_rich(table: Table, console: Any) -> None:
    from rich import box  # noqa: PLC0415  an optional package
    from rich.table import Table as RichTable  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = fitting(table, console.width)
    drawn = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, _GAP - 1, 0, 0))
    for name in table.columns:
        drawn.add_column(name, justify="left" if name in _LEFT else "right", no_wrap=bool(name))
    for line in table.lines:
        if not line:
            drawn.add_section()
            continue
        notes = line[-1]
        style = "bold green" if "fastest" in notes else "red" if "DIFFER" in notes or "failed" in notes else ""
        drawn.add_row(*(Text(cell, style=style if k else "bold") for k, cell in enumerate(line)))
    console.print(f"\n{table.heading}", style="italic", highlight=False)
    console.print(drawn)


def show(tables: Iterable[Table], sentences: Iterable[str], file: TextIO | None = None) -> None:
    """Write tables and sentences to *file*, or to the standard output."""
    stream = file or sys.stdout
    console = _console(stream)
    for table in tables:
        if not table.lines:
            continue
        if console is None:
            write_plain(table, stream)
        else:
            _write_rich(table, console)
    stream.write("\n" + "".join(f"{sentence}\n" for sentence in sentences))


def _console(stream: TextIO) -> Any:
    """Return rich's console if there is a terminal, and rich; else None."""
    if not stream.isatty():
        return None
    try:
        from rich.console import Console  # noqa: PLC0415  an optional package
    except ImportError:
        return None
    console = Console(file=stream)
    return None if console.is_dumb_terminal else console
