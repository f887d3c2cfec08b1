"""CSVLog: figures of a run as a table that every program reads.

Here: writing rows, going on with the table of an interrupted run, reading tables.
Not here: pictures of them (`plotting.py`).
"""

import csv
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from polygrad.array.files import replacing
from polygrad.errors import StateError
from polygrad.training.log import Log, sentence

_STEP = "step"
_SEPARATORS = ",;\t"


class CSVLog(Log):
    """A table with one row for each call of `write`, which is in the file when it returns.

    The columns are ``step`` and the figures of the first row. A later row may have others: the file is then replaced,
    in one step, by one with those columns added, empty in the rows before. Figures that a row lacks are left empty.

    Parameters
    ----------
    path : path
        The file; folders on the way are made. A log that is there already, of an earlier run, is kept as ``NAME.1.csv``
        (or the next number that is free), unless *resume_at* is given.
    resume_at : int, optional
        Go on with the file that is there: rows of later steps, which the interrupted run had written and which will
        come again, are dropped, and so is a line that was torn when the process was killed.
    on_error : {"warn", "raise"}
        What to do if a row cannot be written, because the disk is full, say: warn once and try again with the next row,
        or raise OSError.

    Raises
    ------
    StateError
        If the file that is there is no log of this kind; it is left as it is.
    OSError
        If the file cannot be opened.

    Examples
    --------
    >>> import os, tempfile
    >>> from polygrad.training import CSVLog, read_csv
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "losses.csv")
    ...     with CSVLog(path) as log:
    ...         log.write(1, loss=2.5)
    ...         log.write(2, loss=2.25, valid_loss=2.5)
    ...     with CSVLog(path, resume_at=1) as log:
    ...         log.write(2, loss=2.0)
    ...     read_csv(path)
    {'step': [1, 2], 'loss': [2.5, 2.0], 'valid_loss': [None, None]}
    """

    def __init__(self, path: str | os.PathLike[str], resume_at: int | None = None, *, on_error: str = "warn") -> None:
        super().__init__(path, on_error)
        self._names: list[str] = []
        try:
            there = self.path.exists() and self.path.stat().st_size > 0
            if there and resume_at is None:
                _own_header(self.path)
                _kept_aside(self.path)
            elif there:
                self._names = _cut(self.path, int(resume_at or 0))
        except OSError as error:
            raise sentence("log to", self.path, error) from error
        self._open("a")

    def _record(self, step: int, figures: dict[str, int | float]) -> dict[str, int | float]:
        return {_STEP: step, **figures}

    def _drain(self) -> None:
        names = list(dict.fromkeys([*self._names, *(name for row in self._waiting for name in row)]))
        head = b""
        if len(names) > len(self._names):
            if self._names:
                self._widen(names)
            else:
                head = _line(names)
        self._append(head + b"".join(_line([_text(row.get(name)) for name in names]) for row in self._waiting))
        self._names = names
        self._waiting.clear()

    def _widen(self, names: list[str]) -> None:
        """Replace the file by one with more columns."""
        more = b"," * (len(names) - len(self._names)) + b"\n"
        with open(self.path, "rb") as old, replacing(self.path) as new:
            next(old)
            new.write(_line(names))
            new.writelines(line.rstrip(b"\r\n") + more for line in old)
        self._names = names
        if self._file is not None:
            self._file.close()  # what it wrote to has gone; the next row opens the new one


def _text(value: int | float | None) -> str:
    return "" if value is None else repr(value)


def _line(cells: list[str]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue().encode()


def _own_header(path: Path) -> list[str]:
    """Return the columns of a log; none if its first line is torn."""
    with open(path, "rb") as file:
        first = file.readline()
    try:
        names = next(csv.reader([first.decode()]), [])
    except (UnicodeDecodeError, csv.Error):
        names = []
    torn = not first.endswith(b"\n") and _STEP.encode().startswith(first[: len(_STEP)])
    if names[:1] != [_STEP] and not torn:
        raise StateError(
            f"cannot log to {path}: it is no log of steps (its first column is {names[0][:20]!r}, not 'step'); take "
            "another name"
            if names
            else f"cannot log to {path}: it is no table; take another name"
        )
    return [] if torn else names


def _kept_aside(path: Path) -> None:
    """Give the file of an earlier run another name."""
    k = 1
    while (aside := path.with_name(f"{path.stem}.{k}{path.suffix}")).exists():
        k += 1
    os.rename(path, aside)


def _cut(path: Path, step: int) -> list[str]:
    """Drop the rows of later steps and a torn last line; return the columns."""
    names = _own_header(path)
    with open(path, "rb") as old, replacing(path) as new:
        if names:
            new.write(old.readline())
            new.writelines(_until(old, step, path, len(names)))
    return names


def _until(lines: Any, step: int, path: Path, width: int) -> Iterator[bytes]:
    for k, line in enumerate(lines, 2):
        if not line.endswith(b"\n"):
            return
        first, *rest = line.rstrip(b"\r\n").split(b",")
        if not first.strip().isdigit() or len(rest) + 1 != width:
            raise StateError(f"cannot go on with {path}: line {k} is no row of {width} columns that begins with a step")
        if int(first) <= step:
            yield line


def read_csv(path: str | os.PathLike[str]) -> dict[str, list[Any]]:
    """Return a table of numbers as lists by the columns' names, also one that another program wrote.

    Cells are numbers; an empty one is None. A last line without its end is left out: it may be torn. Columns may be
    separated by commas, semicolons or tabulators.

    Raises
    ------
    StateError
        If it is no table of numbers under a line of names; the sentence says where.
    FileNotFoundError
        If there is no such file.
    """
    where = os.fspath(path)
    try:
        text = Path(path).read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise StateError(f"cannot read {where}: it is no text") from None
    lines = text.splitlines(keepends=True)
    whole = [line for line in lines if line.endswith(("\n", "\r"))]
    separator = next((s for s in _SEPARATORS if whole and s in whole[0]), ",")
    rows = list(csv.reader(whole, delimiter=separator, skipinitialspace=True))
    names = [name.strip() for name in rows[0]] if rows else []
    if not names or any(not name or _is_number(name) for name in names) or len(set(names)) < len(names):
        raise StateError(f"cannot read {where}: its first line must be names of columns, each another one")
    table: dict[str, list[Any]] = {name: [] for name in names}
    for k, row in enumerate(rows[1:], 2):
        if not row:
            continue
        if len(row) != len(names):
            raise StateError(f"cannot read {where}: line {k} has {len(row)} cells, the first line {len(names)}")
        for name, cell in zip(names, row, strict=True):
            table[name].append(_value(cell.strip(), name, f"cannot read {where}: line {k} has"))
    return table


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _value(cell: str, name: str, where: str) -> int | float | None:
    if not cell:
        return None
    try:
        return int(cell) if cell.lstrip("+-").isdigit() else float(cell)
    except ValueError:
        raise StateError(f"{where} {cell[:20]!r} under {name}, which is no number") from None
