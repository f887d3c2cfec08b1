"""plot_losses: the curves of one run or several, as a picture.

Here: which columns are drawn, smoothed, and where.
Not here: tables (`csv_log.py`).

matplotlib (extra ``training``) is imported when a picture is drawn. Its figures are used without its global state, so
that a program's own pictures, windows and backend stay as they are.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from polygrad.array.files import replacing
from polygrad.errors import TrainingError
from polygrad.training.csv_log import read_csv
from polygrad.training.progress import Smoothed

_RATES = ("lr", "learning_rate")
_WIDTH, _HEIGHT, _DOTS = 8.0, 4.5, 120  # inches, and dots in one
_FORMATS = ("png", "svg", "pdf")
_PALE = 0.3

Table = Mapping[str, Sequence[Any]]


def plot_losses(source: Any, path: str | os.PathLike[str], *, smooth: float = 0.9, title: str | None = None) -> None:
    """Draw the losses of a run, or of several, over the steps, and below them the learning rate if there is one.

    Parameters
    ----------
    source : path, mapping of names to lists, or mapping of names to these
        A CSV file of figures (`CSVLog`'s or another program's), its columns, or several runs by name. Columns called
        ``loss`` or ``..._loss`` are drawn, and ``lr`` or ``learning_rate``, over the column ``step`` (or ``steps``,
        ``iteration``, ``epoch``), or over the numbers of the rows.
    path : path
        The picture, which appears whole or not at all; ``.png``, ``.svg`` or ``.pdf``.
    smooth : float
        How much of an exponential average is kept from point to point, in [0, 1); 0 draws the values alone. With a
        curve that is smoothed its values are drawn too, pale.
    title : str, optional
        Above it.

    Raises
    ------
    TrainingError
        If there is no loss to draw, or matplotlib is missing.
    StateError
        If a file is no table.

    Examples
    --------
    >>> import os, tempfile
    >>> from polygrad.training import plot_losses
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     plot_losses({"step": [1, 2, 3], "loss": [3.0, 2.0, 1.5]}, os.path.join(folder, "losses.png"))
    ...     os.listdir(folder)
    ['losses.png']
    """
    if not 0.0 <= smooth < 1.0:
        raise TrainingError(f"cannot smooth with {smooth}: it must be in [0, 1)")
    kind = os.path.splitext(path)[1].lstrip(".").lower() or "png"
    if kind not in _FORMATS:
        raise TrainingError(f"cannot draw {os.fspath(path)}: pictures end in {', '.join(f'.{f}' for f in _FORMATS)}")
    runs = _runs(source)
    figure = _drawn(runs, smooth, title)
    with replacing(path) as file:
        figure.savefig(file, format=kind, dpi=_DOTS)


def _runs(source: Any) -> dict[str, Table]:
    """Return tables by the names of runs; the name of a single one is empty."""
    if isinstance(source, (str, os.PathLike)):
        return {"": _checked(read_csv(source), os.fspath(source))}
    if not isinstance(source, Mapping):
        raise TrainingError(
            f"cannot plot {type(source).__name__}: it is a CSV file, its columns as lists, or several of these by name"
        )
    if all(isinstance(column, (list, tuple)) for column in source.values()):
        return {"": _checked(source, "this table")}
    named = {str(name): run for name, run in source.items()}
    return {name: table for name, run in named.items() for table in _runs(run).values()}


def _checked(table: Table, what: str) -> Table:
    if not _losses(table):
        raise TrainingError(f"cannot plot {what}: it has no column 'loss', but {', '.join(map(str, table)) or 'none'}")
    if not any(value is not None for name in _losses(table) for value in table[name]):
        raise TrainingError(f"cannot plot {what}: there is no row in it yet")
    return table


def _losses(table: Table) -> list[str]:
    return [name for name in table if name == "loss" or name.endswith(("_loss", " loss"))]


def _points(table: Table, name: str) -> tuple[list[float], list[float]]:
    """Return steps and values of a column, without its empty cells."""
    values = table[name]
    steps = next((table[s] for s in ("step", "steps", "iteration", "epoch") if s in table), range(1, len(values) + 1))
    if len(steps) != len(values):
        raise TrainingError(f"cannot plot {name}: it has {len(values)} values for {len(steps)} steps")
    pairs = [(float(s), float(v)) for s, v in zip(steps, values, strict=True) if s is not None and v is not None]
    return [s for s, _ in pairs], [v for _, v in pairs]


def _averages(values: Sequence[float], kept: float) -> list[float]:
    average, out = Smoothed(kept), []
    for value in values:
        average.take(value)
        out.append(average.value)
    return out


def _drawn(runs: Mapping[str, Table], smooth: float, title: str | None) -> Any:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415  an optional package
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError:
        raise TrainingError(
            "pictures of losses need the package matplotlib: pip install 'polygrad-array[training]'"
        ) from None
    rated = any(rate in table for table in runs.values() for rate in _RATES)
    figure = Figure(figsize=(_WIDTH, _HEIGHT), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2 if rated else 1, 1, sharex=True, squeeze=False, height_ratios=[4, 1] if rated else [1])
    upper, lower = axes[0][0], axes[-1][0]
    for k, (run, table) in enumerate(runs.items()):
        for j, name in enumerate(_losses(table)):
            _curve(upper, _points(table, name), f"{run} {name}".strip(), f"C{(k * 3 + j) % 10}", smooth)
        for rate in (r for r in _RATES if r in table):
            lower.plot(*_points(table, rate), color=f"C{k * 3 % 10}", linewidth=1.0)
    upper.set_ylabel("loss")
    upper.legend(loc="upper right", frameon=False)
    upper.grid(visible=True, alpha=_PALE)
    lower.set_xlabel("step")
    if rated:
        lower.set_ylabel("learning rate")
        lower.grid(visible=True, alpha=_PALE)
    if title:
        figure.suptitle(title)
    return figure


def _curve(axes: Any, points: tuple[list[float], list[float]], label: str, colour: str, smooth: float) -> None:
    steps, values = points
    mark = "." if len(values) == 1 else None  # a line through one point is nothing
    if smooth and len(values) > 2:  # noqa: PLR2004  of two points there is no trend
        axes.plot(steps, values, color=colour, alpha=_PALE, linewidth=1.0)
        values = _averages(values, smooth)
    axes.plot(steps, values, color=colour, label=label, linewidth=1.5, marker=mark)
