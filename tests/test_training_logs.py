"""Logs of a training run and pictures of them.

Here: `pg.training`'s CSVLog, TensorBoardLog, read_csv and plot_losses. Not here: the loop that writes them
(`test_training.py`).
"""

import math
import os
import re
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import polygrad as pg
from polygrad.training import (
    CSVLog,
    TensorBoardLog,
    plot_losses,
    plotting,
    read_csv,
    tensorboard,
)
from support.training import needs, refuses, room, text_of

# ---- tables ----------------------------------------------------------------------------------------------------------


def test_a_row_is_in_the_file_when_write_returns_and_read_back_exactly(tmp_path):
    path = tmp_path / "new" / "losses.csv"  # the folder is made
    with CSVLog(path) as log:
        log.write(1, loss=0.1, lr=pg.asarray(0.25))
        assert text_of(path) == "step,loss,lr\n1,0.1,0.25\n"
        log.write(2, loss=np.float32(0.1), lr=np.int64(3))
        log.write(3, loss=float("nan"), lr=float("-inf"))
    table = read_csv(path)
    assert table["step"] == [1, 2, 3]
    assert table["loss"][:2] == [0.1, float(np.float32(0.1))]
    assert math.isnan(table["loss"][2])
    assert table["lr"] == [0.25, 3, -math.inf]


def test_a_later_figure_becomes_a_column_and_a_missing_one_an_empty_cell(tmp_path):
    with CSVLog(tmp_path / "a.csv") as log:
        log.write(1, loss=3.0, lr=0.5)
        log.write(2, loss=2.0, **{"odd, name": 1.5})
        log.write(3, lr=0.25)
        assert text_of(log.path) == 'step,loss,lr,"odd, name"\n1,3.0,0.5,\n2,2.0,,1.5\n3,,0.25,\n'
    assert read_csv(log.path)["odd, name"] == [None, 1.5, None]


@pytest.mark.parametrize("torn", ["", "2,1", "4,0.5", "\0\0\0"])
def test_resuming_drops_later_rows_and_a_torn_one_and_keeps_the_rest(tmp_path, torn):
    path = tmp_path / "a.csv"
    path.write_text(f"step,loss\n1,3.0\n2,2.0\n3,1.0\n{torn}")
    with CSVLog(path, resume_at=2) as log:
        assert text_of(path) == "step,loss\n1,3.0\n2,2.0\n"
        log.write(3, loss=1.5, valid_loss=2.5)
    assert read_csv(path) == {"step": [1, 2, 3], "loss": [3.0, 2.0, 1.5], "valid_loss": [None, None, 2.5]}


def test_resuming_a_log_that_is_not_there_or_has_no_whole_line_begins_it(tmp_path):
    for name, torn in (("a.csv", None), ("b.csv", "st"), ("c.csv", "step,lo"), ("d.csv", "")):
        if torn is not None:
            (tmp_path / name).write_text(torn)
        with CSVLog(tmp_path / name, resume_at=5) as log:
            log.write(6, loss=1.0)
        assert text_of(log.path) == "step,loss\n6,1.0\n", name


def test_a_log_of_an_earlier_run_is_kept_under_another_name(tmp_path):
    for k in range(3):
        with CSVLog(tmp_path / "a.csv") as log:
            log.write(1, loss=float(k))
    assert {p.name: read_csv(p)["loss"] for p in tmp_path.iterdir()} == {
        "a.csv": [2.0], "a.1.csv": [0.0], "a.2.csv": [1.0],
    }  # fmt: skip


@pytest.mark.parametrize("resume_at", [None, 3])
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"name,age\nx,3\n", "it is no log of steps (its first column is 'name', not 'step'); take another name"),
        (b"\xff\xfe\x00", "it is no table; take another name"),
    ],
)
def test_a_file_of_another_program_is_refused_and_left_as_it_is(tmp_path, content, said, resume_at):
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    with refuses(pg.StateError, f"cannot log to {path}: {said}"):
        CSVLog(path, resume_at)
    assert path.read_bytes() == content
    assert os.listdir(tmp_path) == ["a.csv"]


def test_a_damaged_log_is_not_gone_on_with(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("step,loss\n1,3.0\n2,2.0,7\n3,1.0\n")
    with refuses(pg.StateError, f"cannot go on with {path}: line 3 is no row of 2 columns that begins with a step"):
        CSVLog(path, resume_at=5)
    assert os.listdir(tmp_path) == ["a.csv"]


@pytest.mark.parametrize(
    ("figure", "said"),
    [
        ("high", "cannot log loss, which is str: a figure is one number"),
        (pg.asarray([1.0, 2.0]), "cannot log loss of shape [2]: a figure is one number"),
        ([1.0], "cannot log loss, which is list: a figure is one number"),
    ],
    ids=["text", "shape", "list"],
)
def test_a_figure_that_is_no_number_is_refused(tmp_path, figure, said):
    with CSVLog(tmp_path / "a.csv") as log:
        with refuses(pg.TrainingError, said):
            log.write(1, loss=figure)
        log.write(1, loss=1.0)
    assert text_of(log.path) == "step,loss\n1,1.0\n"
    with refuses(pg.TrainingError, f"cannot log to {log.path}: it was closed"):
        log.write(2, loss=1.0)
    with refuses(pg.TrainingError, "cannot log with on_error='ignore': it is 'warn' or 'raise'"):
        CSVLog(tmp_path / "b.csv", on_error="ignore")


@pytest.mark.parametrize("kind", [CSVLog, TensorBoardLog])
def test_a_folder_that_cannot_be_written_is_said_at_once(tmp_path, kind):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=rf"^cannot log to {tmp_path}/file/a.*: (Not a directory|File exists)$"):
        kind(tmp_path / "file" / "a.csv")


def test_rows_wait_while_the_disk_is_full_and_none_is_lost(tmp_path):
    log = CSVLog(tmp_path / "a.csv")
    log.write(1, loss=1.0)
    size = os.path.getsize(log.path)
    said = (
        f"cannot log to {log.path}: File too large; the run goes on, and what could not be written is tried again "
        "with each record"
    )
    with room(size + 3):
        with pytest.warns(UserWarning, match=f"^{re.escape(said)}$"):
            log.write(2, loss=2.0)
        assert os.path.getsize(log.path) == size  # not a piece of a row
        log.write(3, loss=3.0)  # said once
    log.write(4, loss=4.0, more=0.5)
    log.close()
    assert read_csv(log.path) == {"step": [1, 2, 3, 4], "loss": [1.0, 2.0, 3.0, 4.0], "more": [None, None, None, 0.5]}


def test_a_column_that_cannot_be_added_leaves_the_table_as_it_was(tmp_path):
    log = CSVLog(tmp_path / "a.csv")
    log.write(1, loss=1.0)
    with room(5), pytest.warns(UserWarning, match="File too large; the run goes on"):
        log.write(2, loss=2.0, valid_loss=3.0)
    assert text_of(log.path) == "step,loss\n1,1.0\n"
    log.write(3, loss=3.0)
    log.close()
    assert os.listdir(tmp_path) == ["a.csv"]
    assert read_csv(log.path)["valid_loss"] == [None, 3.0, None]


def test_a_full_disk_can_end_the_run_instead_and_what_is_lost_at_the_end_is_counted(tmp_path):
    log = CSVLog(tmp_path / "a.csv", on_error="raise")
    log.write(1, loss=1.0)
    with room(os.path.getsize(log.path)):
        with refuses(OSError, f"cannot log to {log.path}: File too large"):
            log.write(2, loss=2.0)
        with pytest.warns(UserWarning, match="File too large; the last 1 records are not in it$"):
            log.close()
    assert read_csv(log.path)["step"] == [1]


def test_a_table_of_another_program_is_read(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes('\ufeffStep; "loss" ;note\r\n0;2.5; \r\n\r\n10;1e-3;-4\r\n20;7'.encode())
    assert read_csv(path) == {"Step": [0, 10], "loss": [2.5, 1e-3], "note": [None, -4]}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "its first line must be names of columns, each another one"),
        (b"1,2\n3,4\n", "its first line must be names of columns, each another one"),
        (b"a,a\n3,4\n", "its first line must be names of columns, each another one"),
        (b"a,b\n3,4\n5\n", "line 3 has 1 cells, the first line 2"),
        (b"a,b\n3,high\n", "line 2 has 'high' under b, which is no number"),
        (b"\x89PNG\xff", "it is no text"),
    ],
)
def test_what_is_no_table_of_numbers_is_refused(tmp_path, content, said):
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    with refuses(pg.StateError, f"cannot read {path}: {said}"):
        read_csv(path)


# ---- event files -----------------------------------------------------------------------------------------------------


def events_of(path):
    """Read an event file with another package's messages and checksums."""
    needs("tensorboardX")
    from tensorboardX.crc32c import crc32c
    from tensorboardX.proto.event_pb2 import Event

    def masked(data):
        crc = crc32c(data)
        return ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32

    data, out, at = Path(path).read_bytes(), [], 0
    while at < len(data):
        head = data[at : at + 8]
        (length,) = struct.unpack("<Q", head)
        message = data[at + 12 : at + 12 + length]
        assert struct.unpack("<I", data[at + 8 : at + 12]) == (masked(head),)
        assert struct.unpack("<I", data[at + 12 + length : at + 16 + length]) == (masked(message),)
        out.append(Event.FromString(message))
        at += 16 + length
    return out


def test_an_independent_reader_understands_event_files(tmp_path):
    before = time.time()
    with TensorBoardLog(tmp_path / "run") as log:
        log.write(7, loss=2.5, **{"held out/loss": pg.asarray(0.5)})
        log.write(2**40, loss=float("nan"), large=1e300)
        first, second, third = events_of(log.path)  # in the file already
    assert first.file_version == "brain.Event:2"
    assert before <= second.wall_time <= time.time()
    assert (second.step, [(v.tag, v.simple_value) for v in second.summary.value]) == (
        7,
        [("loss", 2.5), ("held out/loss", 0.5)],
    )
    assert third.step == 2**40
    assert math.isnan(third.summary.value[0].simple_value)
    assert third.summary.value[1].simple_value == math.inf


def test_a_run_that_goes_on_says_which_events_are_void_in_a_file_that_is_sorted_last(tmp_path):
    from_package = needs("tensorboardX").proto.event_pb2
    for resume_at in (None, 5):
        with TensorBoardLog(tmp_path, resume_at) as log:
            log.write(6, loss=1.0)
    assert sorted(tmp_path.iterdir())[-1] == log.path
    assert len(list(tmp_path.iterdir())) == 2
    _, restart, event = events_of(log.path)
    assert (restart.step, restart.session_log.status) == (6, from_package.SessionLog.START)
    assert event.step == 6


def test_events_wait_while_the_disk_is_full(tmp_path):
    log = TensorBoardLog(tmp_path)
    log.write(1, loss=1.0)
    with room(os.path.getsize(log.path) + 20), pytest.warns(UserWarning, match="File too large; the run goes on"):
        log.write(2, loss=2.0)
    log.close()
    assert [event.step for event in events_of(log.path)] == [0, 1, 2]


def test_checksums_are_those_of_the_standard():
    assert tensorboard.crc32c(bytes(32)) == 0x8A9136AA  # RFC 3720, appendix B.4
    assert tensorboard.crc32c(bytes(range(32))) == 0x46DD794E


# ---- pictures --------------------------------------------------------------------------------------------------------


def test_losses_are_drawn_and_the_learning_rate_below_them(tmp_path):
    needs("matplotlib")
    with CSVLog(tmp_path / "a.csv") as log:
        for step in range(1, 101):
            log.write(step, loss=100.0 / step, lr=0.1, **({"valid_loss": 2.0} if step % 50 == 0 else {}))
    plot_losses(tmp_path / "a.csv", tmp_path / "a.png", title="a run")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    figure = plotting._drawn(plotting._runs(tmp_path / "a.csv"), 0.9, "a run")
    upper, lower = figure.axes
    lines = {line.get_label(): line for line in upper.lines}
    assert list(lines["valid_loss"].get_xdata()) == [50.0, 100.0]
    smoothed = list(lines["loss"].get_ydata())
    assert smoothed[:2] == [100.0, pytest.approx((0.9 * 0.1 * 100 + 0.1 * 50) / 0.19)]
    assert len(lower.lines) == 1
    assert [t.get_text() for t in upper.get_legend().get_texts()] == ["loss", "valid_loss"]


@pytest.mark.parametrize("name", ["a.svg", "a.pdf", "plain"])
def test_several_runs_make_one_picture_of_the_kind_that_the_name_says(tmp_path, name):
    needs("matplotlib")
    (tmp_path / "one.csv").write_text("step,loss\n1,2.0\n2,nan\n3,1.0\n")
    runs = {"one": tmp_path / "one.csv", "two": {"epoch": (1, 2), "train_loss": [3.0, None]}}
    plot_losses(runs, tmp_path / name, smooth=0)
    assert (tmp_path / name).stat().st_size > 1000
    labels = [line.get_label() for line in plotting._drawn(plotting._runs(runs), 0.0, None).axes[0].lines]
    assert labels == ["one loss", "two train_loss"]


@pytest.mark.parametrize(
    ("source", "path", "smooth", "said"),
    [
        ({"step": [1], "lr": [2]}, "a.png", 0.9, "cannot plot this table: it has no column 'loss', but step, lr"),
        ({"loss": []}, "a.png", 0.9, "cannot plot this table: there is no row in it yet"),
        ({"step": [1, 2], "loss": [1]}, "a.png", 0.9, "cannot plot loss: it has 1 values for 2 steps"),
        (3, "a.png", 0.9, "cannot plot int: it is a CSV file, its columns as lists, or several of these by name"),
        ({"loss": [1]}, "a.png", 1.0, "cannot smooth with 1.0: it must be in [0, 1)"),
        ({"loss": [1]}, "a.gif", 0.9, "cannot draw a.gif: pictures end in .png, .svg, .pdf"),
    ],
)
def test_what_cannot_be_drawn_is_refused(tmp_path, monkeypatch, source, path, smooth, said):
    needs("matplotlib")
    monkeypatch.chdir(tmp_path)
    with refuses(pg.TrainingError, said):
        plot_losses(source, path, smooth=smooth)
    assert os.listdir() == []


def test_a_picture_that_cannot_be_written_leaves_the_one_before(tmp_path):
    needs("matplotlib")
    plot_losses({"loss": [1.0, 2.0]}, tmp_path / "a.png")
    before = (tmp_path / "a.png").read_bytes()
    with room(100), pytest.raises(OSError, match="File too large"):
        plot_losses({"loss": [1.0, 2.0, 3.0]}, tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes() == before
    assert os.listdir(tmp_path) == ["a.png"]


def test_pictures_without_matplotlib_say_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with refuses(
        pg.TrainingError, "pictures of losses need the package matplotlib: pip install 'polygrad-array[training]'"
    ):
        plot_losses({"loss": [1.0]}, tmp_path / "a.png")


def test_importing_and_drawing_touch_no_global_state_of_matplotlib(tmp_path):
    needs("matplotlib")
    code = (
        "import sys, polygrad as pg\n"
        "pg.training.fit, pg.training.Progress\n"
        "heavy = [m for m in ('rich', 'matplotlib', 'tensorboardX') if m in sys.modules]\n"
        "pg.training.plot_losses({'loss': [1.0, 2.0]}, sys.argv[1])\n"
        "print(heavy, 'matplotlib.pyplot' in sys.modules)\n"
    )
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, str(tmp_path / "a.png")], capture_output=True, text=True, check=True
    )
    assert run.stdout.split("\n")[0] == "[] False"
