"""What a training loop has beside its steps: bars, logs, pictures, early stopping, Ctrl-C, and `fit`, made of them.

Here: `pg.training`. Not here: optimisers (`test_optim.py`), loaders (`test_data.py`), checkpoints
(`test_io_checkpoints.py`).
"""

import contextlib
import io
import math
import os
import random
import re
import resource
import signal
import struct
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from pathlib import Path

import numpy as np
import pytest

import polygrad as pg
from polygrad.training import (
    CSVLog,
    EarlyStopping,
    Interruption,
    Progress,
    TensorBoardLog,
    fit,
    plot_losses,
    plotting,
    read_csv,
    tensorboard,
)
from polygrad.training import progress as progress_module
from polygrad.training.batches import Batches


def refuses(error, sentence):
    return pytest.raises(error, match=f"^{re.escape(sentence)}$")


def needs(package):
    return pytest.importorskip(package, reason=f"not run: needs {package}")


def text_of(path):
    return Path(path).read_text()


@contextlib.contextmanager
def room(size):
    """Let no file of this process grow beyond *size* bytes, as a full disk would."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


class Clock:
    """A clock that a test winds."""

    def __init__(self, monkeypatch):
        self.now = 100.0
        monkeypatch.setattr(progress_module.time, "monotonic", lambda: self.now)


class Figure:
    """A number that counts how often it is read."""

    def __init__(self, value):
        self.value, self.reads = value, 0

    def __float__(self):
        self.reads += 1
        return self.value


# CSV


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


# TensorBoard


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


# pictures


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


# early stopping


def test_patience_is_counted_from_the_last_improvement():
    stopping = EarlyStopping(patience=2, min_delta=0.5)
    seen = [(stopping.update(v, step=10 * k), stopping.should_stop) for k, v in enumerate((5.0, 4.6, 4.0, 4.0, 9.0))]
    assert seen == [(True, False), (False, False), (True, False), (False, False), (False, True)]
    assert (stopping.best, stopping.best_step) == (4.0, 20)


def test_nan_never_improves_and_more_can_be_better():
    stopping = EarlyStopping(patience=3, mode="max")
    assert [stopping.update(v) for v in (math.nan, 1.0, math.nan, pg.asarray(2.0), 2.0)] == [
        False, True, False, True, False,
    ]  # fmt: skip
    assert (stopping.best, stopping.best_step, stopping.should_stop) == (2.0, 4, False)


def test_early_stopping_goes_on_from_its_state():
    one, other = EarlyStopping(patience=2), EarlyStopping(patience=2)
    one.update(3.0)
    one.update(4.0)
    other.load_state_dict(one.state_dict())
    assert other.update(5.0) is False
    assert other.should_stop
    with refuses(pg.StateError, "cannot load this state into EarlyStopping: its waited is None"):
        other.load_state_dict({"best": 1.0, "best_step": 1, "count": 1})
    assert other.state_dict() == {"best": 3.0, "best_step": 1, "count": 3, "waited": 2}
    with refuses(
        pg.TrainingError,
        "cannot stop early with patience=0, min_delta=0.0, mode='min': they are at least 1, at least 0, and 'min' or "
        "'max'",
    ):
        EarlyStopping(patience=0)


# interruption


def send(number=signal.SIGINT):
    os.kill(os.getpid(), number)


def test_the_first_signal_is_a_wish_and_the_second_ends_it(capsys):
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with Interruption() as interruption:
        assert not interruption.requested
        send(signal.SIGTERM)
        send(signal.SIGTERM)  # still a wish
        assert (interruption.requested, interruption.signal) == (True, signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            send()
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    said = capsys.readouterr().err.strip().splitlines()
    assert said == ["stopping after this step, and saving; Ctrl-C again stops at once"]


def test_blocks_are_nested_and_a_wish_reaches_all():
    with Interruption(message="") as outer:
        with Interruption((signal.SIGINT,), message="") as inner:
            send()
            assert inner.requested
            assert outer.requested
        with pytest.raises(KeyboardInterrupt):
            send()
        with refuses(pg.TrainingError, "cannot enter this Interruption twice: it is active already; make another one"):
            outer.__enter__()
    with Interruption(message="") as fresh:
        assert not fresh.requested


def test_signals_can_be_caught_in_the_main_thread_alone():
    said = []

    def run():
        try:
            Interruption().__enter__()
        except pg.TrainingError as error:
            said.append(str(error))

    thread = threading.Thread(target=run, name="other")
    thread.start()
    thread.join()
    assert said == [
        "cannot catch signals in thread 'other': Python allows it in the main thread alone; enter Interruption there"
    ]
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(pg.TrainingError, match="^cannot catch signal 9: "):
        Interruption((signal.SIGINT, signal.SIGKILL)).__enter__()
    assert signal.getsignal(signal.SIGINT) is before


# progress


def test_without_a_terminal_there_are_plain_lines_now_and_then(monkeypatch):
    clock, out = Clock(monkeypatch), io.StringIO()
    with Progress(100, start=20, description="train", items_per_step=512, unit="tok", console=out) as progress:
        for step in range(21, 61):
            clock.now += 0.5
            progress.update(step, loss=2.0, lr=3e-4)
    first, *rest = out.getvalue().splitlines()
    assert first == ("train 40/100, loss 2, lr 3.00e-04, 2.00 it/s, 1.02k tok/s, 0:10 gone, 0:30 left")
    assert rest == [
        "train 60/100, loss 2, lr 3.00e-04, 2.00 it/s, 1.02k tok/s, 0:20 gone, 0:20 left",
        "train 60/100, loss 2, lr 3.00e-04, 2.00 it/s, 1.02k tok/s, 0:20 gone, 0:20 left",
    ]
    assert "\x1b" not in out.getvalue()


def test_the_loss_is_smoothed_and_what_is_not_finite_shows(monkeypatch):
    clock, out = Clock(monkeypatch), io.StringIO()
    with Progress(None, console=out, interval=1.0) as progress:
        for loss in (1.0, 3.0, math.nan, 3.0):
            clock.now += 1.0
            progress.update(loss=loss, accuracy=0.5)
    shown = [re.search(r"loss (\S+),", line)[1] for line in out.getvalue().splitlines()]
    assert shown[:4] == ["1", f"{(0.09 * 1 + 0.1 * 3) / 0.19:.4g}", "nan", f"{(0.081 + 0.27 + 0.3) / 0.271:.4g}"]
    assert "left" not in out.getvalue()


def test_an_array_is_read_when_it_is_shown_and_not_at_each_step(monkeypatch):
    rich = needs("rich.console")
    clock = Clock(monkeypatch)
    for console, reads in (
        (io.StringIO(), 2),  # after ten seconds, and at the end
        (rich.Console(file=io.StringIO(), force_terminal=True, width=120), 49),
    ):
        figure = Figure(1.5)
        with Progress(1000, console=console) as progress:
            for _ in range(1000):
                clock.now += 0.0125
                progress.update(loss=figure)
        assert 2 <= figure.reads <= reads + 2


@pytest.mark.parametrize("width", [70, 120])
def test_on_a_terminal_there_is_a_bar_that_is_closed_also_by_an_error(monkeypatch, width):
    rich = needs("rich.console")
    clock, out = Clock(monkeypatch), io.StringIO()
    console = rich.Console(file=out, force_terminal=True, width=width)
    with pytest.raises(ZeroDivisionError), Progress(8, 0, "[train]", 512, "tok", console) as progress:
        for loss in (3.0, 2.0):
            clock.now += 1.0
            progress.update(loss=loss, norm=1.25)
        progress.update(loss=Figure(1.0), norm=(unread := Figure(1.0)))  # the device may not answer any more
        raise ZeroDivisionError
    assert unread.reads == 0
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", out.getvalue())
    assert "[train]" in shown
    norm = ", norm 1.25" if width == 120 else ""  # left out where there is no room for it
    assert f" 2/8, loss 2.474{norm}, 1.00 it/s, 512 tok/s, 0:02 < 0:06" in shown
    assert max(len(line.rstrip()) for line in re.split(r"[\r\n]", shown)) <= width
    assert out.getvalue().rstrip("\n").endswith("\x1b[?25h")  # the cursor is back


def test_a_reader_that_has_gone_does_not_end_the_run(monkeypatch):
    clock, out = Clock(monkeypatch), io.StringIO()
    with Progress(4, console=out, interval=0.5) as progress:
        clock.now += 1.0
        progress.update(loss=1.0)
        out.close()
        clock.now += 1.0
        progress.update(loss=1.0)
    assert progress.step == 2


@pytest.mark.parametrize("total", [0, None])
def test_progress_over_nothing(total):
    out = io.StringIO()
    assert list(Progress.over(iter([]), total=total, console=out)) == []
    assert out.getvalue().startswith("0/0, " if total == 0 else "0, ")
    with refuses(pg.TrainingError, "cannot show step 0 of -1: they must be at least 0"):
        Progress(-1)


def test_without_rich_a_terminal_has_plain_lines_and_is_told_why(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setitem(sys.modules, "rich.console", None)
    out = Terminal()
    with Progress(1, console=out) as progress:
        progress.update(loss=1.0)
    said, line = out.getvalue().splitlines()
    assert said == "a progress bar needs the package rich: pip install 'polygrad-array[training]'"
    assert line.startswith("1/1, loss 1, ")


def test_pictures_without_matplotlib_say_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with refuses(
        pg.TrainingError, "pictures of losses need the package matplotlib: pip install 'polygrad-array[training]'"
    ):
        plot_losses({"loss": [1.0]}, tmp_path / "a.png")


# fit


class Setup:
    """A small run with everything that has a state."""

    def __init__(self, seed=1, batch_size=8, **how):
        pg.random.seed(seed)
        random.seed(seed)
        self.model = pg.nn.Sequential(pg.nn.Linear(4, 8), pg.nn.Tanh(), pg.nn.Dropout(0.1), pg.nn.Linear(8, 2))
        self.optimiser = pg.optim.AdamW(self.model, lr=0.05)
        rows = np.random.default_rng(0).standard_normal((30, 4)).astype("float32")
        self.rows = rows
        self.loader = pg.data.DataLoader(
            pg.data.TensorDataset(rows, rows[:, :2] * 2), batch_size, shuffle=True, seed=seed, **how
        )

    def fit(self, loss=None, **how):
        return fit(self.model, loss or mse, self.loader, self.optimiser, **{"progress": False, **how})

    def cosine(self, total=20):
        return pg.optim.lr_scheduler.CosineWithWarmup(self.optimiser, total=total, warmup=3)

    def weights(self):
        return {name: a.numpy().tobytes() for name, a in self.model.state_dict().items()}


def mse(model, batch):
    return pg.nn.mse_loss(model(batch[0]), batch[1])


def poisoned_at(step):
    """Return a loss that is not a number in the batch of that number."""
    seen = []

    def loss(model, batch):
        seen.append(batch)
        return mse(model, batch) * (math.nan if len(seen) == step else 1.0)

    return loss


def test_fit_is_the_loop_that_one_would_write(device, tmp_path):
    by_hand = Setup()
    schedule, wanted = by_hand.cosine(), []
    while len(wanted) < 9:
        for batch in by_hand.loader:
            loss = mse(by_hand.model, batch)
            loss.backward()
            by_hand.optimiser.step(max_norm=1.0, also=loss)
            by_hand.optimiser.zero_grad()
            schedule.step()
            wanted.append(float(loss))
            if len(wanted) == 9:
                break
    run = Setup()
    done = run.fit(steps=9, schedule=run.cosine(), max_norm=1.0, log=tmp_path / "a.csv")
    assert (done.losses, done.start, done.step, done.stopped) == (wanted, 0, 9, "steps")
    assert run.weights() == by_hand.weights()
    table = read_csv(tmp_path / "a.csv")
    assert table["loss"] == wanted
    assert table["step"] == list(range(1, 10))
    assert table["lr"][0] == pytest.approx(0.05 / 3)
    assert float(run.optimiser.norm) == table["norm"][-1]


def test_batches_of_one_step_are_one_bigger_batch():
    one, four = Setup(batch_size=8), Setup(batch_size=2)
    for run in (one, four):
        run.model.eval()  # without dropout, so that they are comparable
    bigger = one.fit(steps=3, max_norm=1.0)
    smaller = four.fit(steps=3, accumulate=4, max_norm=1.0)
    np.testing.assert_allclose(smaller.losses, bigger.losses, rtol=1e-5)
    assert smaller.step == 3
    assert not one.model.training  # modes are left alone


def test_epochs_end_where_the_data_does():
    assert Setup().fit(epochs=2).step == 8
    assert Setup().fit(epochs=2, accumulate=3).step == 2
    stream = [Setup().rows[:2]] * 3
    run = Setup()
    run.loader = (batch for batch in stream)  # neither length nor place
    done = run.fit(lambda model, x: pg.sum(model(pg.asarray(x)) ** 2), epochs=1, read_every=2)
    assert (done.step, len(done.losses), done.stopped) == (3, 3, "epochs")


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_precision_narrows_products_and_float16_has_a_scale(precision, tmp_path):
    dtypes, run = [], Setup()

    def loss(model, batch):
        out = model(batch[0])
        dtypes.append(out.dtype.name)
        return pg.nn.mse_loss(out, batch[1])

    before = run.weights()
    done = run.fit(loss, steps=12, precision=precision, log=tmp_path / "a.csv")
    assert set(dtypes) == {precision}
    assert done.losses[-1] < done.losses[0]
    assert all(run.weights()[name] != value for name, value in before.items())
    scales = read_csv(tmp_path / "a.csv").get("scale")
    if precision == "bfloat16":
        assert scales is None
    else:
        assert scales[0] == 2.0**16
        assert all(math.log2(scale).is_integer() for scale in scales)


def test_a_loss_that_is_not_finite_ends_the_run_and_the_last_checkpoint_is_whole(tmp_path):
    run = Setup()
    with pytest.raises(pg.TrainingError) as caught:
        run.fit(poisoned_at(6), steps=20, checkpoints=tmp_path / "c", save_every=4, log=tmp_path / "a.csv")
    last = tmp_path / "c" / "step-00000004.ckpt"
    table = read_csv(tmp_path / "a.csv")
    assert str(caught.value) == (
        f"cannot go on: the loss is nan at step 6 (it was {table['loss'][4]:.4g} at step 5); a smaller learning rate, "
        "max_norm=... or another precision may help, and pg.detect_anomaly() finds the op; "
        f"{last} is whole, and resume=True goes on from it"
    )
    assert table["step"] == [1, 2, 3, 4, 5, 6]
    assert math.isnan(table["loss"][5])
    assert os.listdir(tmp_path / "c") == [last.name]
    rest = Setup(seed=2).fit(steps=6, checkpoints=tmp_path / "c", resume=True)
    assert rest.losses[0] == table["loss"][4]
    assert math.isfinite(rest.losses[1])


def test_reading_seldom_finds_the_same_step(tmp_path):
    seldom = Setup()
    with pytest.raises(pg.TrainingError, match=r"^cannot go on: the loss is nan at step 6 \(it was \S+ at step 5\)"):
        seldom.fit(poisoned_at(6), steps=20, read_every=8, log=tmp_path / "a.csv")
    assert read_csv(tmp_path / "a.csv")["step"] == [1, 2, 3, 4, 5, 6]
    often, seldom = Setup().fit(steps=7), Setup().fit(steps=7, read_every=3, log=tmp_path / "b.csv")
    assert often.losses == seldom.losses == read_csv(tmp_path / "b.csv")["loss"]


def test_gradients_that_are_not_finite_leave_the_parameters_as_they_were():
    run = Setup()

    def loss(model, batch):
        return mse(model, batch) + pg.sum(pg.sqrt(model[0].bias * 0.0)) * (run.optimiser.state != {})

    with pytest.raises(
        pg.TrainingError, match=r"^cannot go on: the gradients are not finite at step 2, where the loss"
    ):
        run.fit(loss, steps=3, max_norm=1.0)
    again = Setup()
    again.fit(steps=1, max_norm=1.0)
    assert run.weights() == again.weights()


def test_an_evaluation_leaves_no_trace_in_the_training(tmp_path):
    def evaluate(model):
        assert not model.training
        assert not pg.is_grad_enabled()
        random.random()
        return {"valid_loss": float(pg.random.normal(())), "accuracy": 0.5}

    plain = Setup()
    wanted = plain.fit(steps=5)
    run = Setup()
    done = run.fit(steps=5, evaluate=evaluate, evaluate_every=2, log=tmp_path / "a.csv", log_every=3)
    assert done.losses == wanted.losses
    assert run.weights() == plain.weights()
    assert [step for step, _ in done.evaluations] == [2, 4, 5]
    table = read_csv(tmp_path / "a.csv")
    assert table["step"] == [2, 3, 4, 5]
    assert table["accuracy"] == [0.5, None, 0.5, 0.5]
    assert run.model.training


def test_early_stopping_and_plateaus_follow_the_held_out_loss(tmp_path):
    run, values = Setup(), iter([3.0, 2.0, 2.5, 2.5, 2.5])
    plateau = pg.optim.lr_scheduler.ReduceLROnPlateau(run.optimiser, factor=0.5, patience=0)
    stopping = EarlyStopping(patience=2)
    done = run.fit(
        steps=50, evaluate=lambda model: next(values), evaluate_every=3, early_stopping=stopping, schedule=plateau,
        checkpoints=tmp_path,
    )  # fmt: skip
    assert (done.step, done.stopped, stopping.best, stopping.best_step) == (12, "early stopping", 2.0, 6)
    assert done.checkpoint.name == "step-00000012.ckpt"
    assert run.optimiser.lr == 0.0125
    by_loss = Setup().fit(lambda model, batch: mse(model, batch) * 0.0 + 1.0, steps=50, early_stopping=EarlyStopping(4))
    assert by_loss.step == 5
    with refuses(pg.TrainingError, "cannot follow 'accuracy': the figures are loss, lr, valid_loss"):
        Setup().fit(
            steps=2, evaluate=lambda model: 1.0, evaluate_every=1, early_stopping=EarlyStopping(1), monitor="accuracy"
        )


def test_gradients_of_several_processes_become_one_before_each_step(tmp_path, capsys):
    class Doubled:
        rank = 1
        calls = 0
        begun = None

        def begin(self, step):
            self.begun = step

        def reduce(self, parameters, *, also):
            assert also.shape == ()
            self.calls += 1
            for p in parameters:
                p.grad = p.grad * 2.0

        def any(self, flag):
            return flag or self.calls == 4

        def mean(self, value):
            return value + 100.0

    run, reducer = Setup(batch_size=4), Doubled()
    run.optimiser = pg.optim.SGD(run.model, lr=0.05)
    done = run.fit(
        steps=6, accumulate=2, reducer=reducer, log=tmp_path / "a.csv", checkpoints=tmp_path / "c", progress=True
    )
    assert (done.step, done.stopped, reducer.calls, reducer.begun) == (4, "interrupted", 4, 0)
    assert os.listdir(tmp_path / "c") == []  # another process writes
    assert not (tmp_path / "a.csv").exists()
    assert capsys.readouterr() == ("", "")
    alone = Setup(batch_size=4)
    alone.optimiser = pg.optim.SGD(alone.model, lr=0.1)
    assert [v - 100.0 for v in done.losses] == pytest.approx(alone.fit(steps=4, accumulate=2).losses, rel=1e-5)


def test_the_average_and_other_parts_are_saved_and_a_hook_is_called(tmp_path):
    run, calls = Setup(), []
    ema = pg.optim.EMA(run.model, decay=0.5)
    run.fit(
        steps=3, average=ema, after_step=calls.append, checkpoints=tmp_path, parts={"extra": EarlyStopping(3)},
        metadata={"config": {"width": 8}},
    )  # fmt: skip
    assert calls == [1, 2, 3]
    assert ema.count == 3
    saved = pg.io.read_checkpoint(tmp_path / "step-00000003.ckpt")
    assert saved == {
        "config": {"width": 8}, "step": 3, "parts": ["model", "optimiser", "loader", "average", "extra"]
    }  # fmt: skip
    run = Setup()
    with refuses(pg.TrainingError, "cannot save a part called 'model': the run has one of this name"):
        run.fit(steps=3, parts={"model": run.model})
    with refuses(
        pg.TrainingError,
        "cannot keep checkpoints with extra, which is dict: it has no state_dict and load_state_dict",
    ):
        run.fit(steps=3, parts={"extra": {}}, checkpoints=tmp_path / "new")


@pytest.mark.parametrize("place", [5, 8], ids=["within an epoch", "between epochs"])
@pytest.mark.parametrize("kept", [True, False], ids=["a loader with a state", "a list"])
def test_a_run_that_goes_on_is_the_run_that_was_not_ended(device, tmp_path, place, kept):
    def run(seed, **how):
        setup = Setup(seed)
        if not kept:
            setup.loader = [tuple(map(pg.asarray, (r, r[:, :2]))) for r in np.split(setup.rows[:28], 4)]
        how = {
            "schedule": setup.cosine(), "average": pg.optim.EMA(setup.model, 0.9), "max_norm": 1.0,
            "scaler": pg.optim.GradScaler(8.0, growth_interval=3), "log": tmp_path / "a.csv", **how,
        }  # fmt: skip
        return setup.fit(**how), setup

    whole, before = run(1, steps=12, log=())
    first, _ = run(1, steps=place, checkpoints=tmp_path / "c", save_every=3)
    rest, after = run(2, steps=12, checkpoints=tmp_path / "c", resume=True)
    assert first.losses + rest.losses == whole.losses
    assert (rest.start, rest.step) == (place, 12)
    assert after.weights() == before.weights()
    assert read_csv(tmp_path / "a.csv")["loss"] == whole.losses
    saved = rest.checkpoint.stat()
    nothing, _ = run(3, steps=12, checkpoints=tmp_path / "c", resume=True)
    assert (nothing.losses, nothing.step, nothing.checkpoint) == ([], 12, rest.checkpoint)
    assert nothing.checkpoint.stat() == saved  # not written again


def test_a_wish_to_stop_at_the_last_step_finds_a_run_that_is_done(tmp_path):
    run = Setup()
    done = run.fit(steps=3, after_step=lambda step: send() if step == 3 else None, evaluate=lambda model: 1.0)
    assert (done.stopped, done.evaluations) == ("steps", [(3, {"valid_loss": 1.0})])
    done = run.fit(steps=3, after_step=lambda step: send() if step == 2 else None, evaluate=lambda model: 1.0)
    assert (done.stopped, done.step, done.evaluations) == ("interrupted", 2, [])


def test_the_end_of_an_epoch_is_the_beginning_of_the_next():
    batches = Batches(Setup().loader, None)
    places = []
    for _ in range(5):
        next(batches)
        places.append(tuple(batches.state_dict()[key] for key in ("epoch", "batch")))
    assert places == [(0, 1), (0, 2), (0, 3), (1, 0), (1, 1)]
    batches.close()


RUN = """
    import hashlib, os, random, sys, time
    import numpy as np
    import polygrad as pg

    def main(folder, seed, steps, resume, workers):
        pg.random.seed(seed)
        random.seed(seed)
        rows = np.random.default_rng(0).standard_normal((40, 4)).astype("float32")
        data = pg.data.TensorDataset(rows, rows[:, :2] * 2)
        loader = pg.data.DataLoader(data, 8, shuffle=True, seed=seed, num_workers=workers, prefetch_factor=2)
        model = pg.nn.Sequential(pg.nn.Linear(4, 8), pg.nn.Dropout(0.2), pg.nn.BatchNorm1d(8), pg.nn.Linear(8, 2))
        optimiser = pg.optim.AdamW(model, lr=0.01)

        def loss(model, batch):
            noise = pg.random.normal(batch[0].shape, dtype=pg.float32) * random.random() * 0.1
            return pg.nn.mse_loss(model(batch[0] + noise), batch[1])

        def after_step(step):
            while step == 150 and not os.path.exists(f"{folder}/signalled"):
                time.sleep(0.01)

        done = pg.training.fit(
            model, loss, loader, optimiser, steps=steps, accumulate=2, max_norm=1.0, after_step=after_step,
            schedule=pg.optim.lr_scheduler.CosineWithWarmup(optimiser, total=500, warmup=5), resume=resume,
            checkpoints=f"{folder}/c", save_every=7, log=(f"{folder}/a.csv", f"{folder}/events"),
        )
        loader.close()
        digest = hashlib.sha256(b"".join(a.numpy().tobytes() for a in model.state_dict().values()))
        print(done.stopped, done.step, digest.hexdigest())

    if __name__ == "__main__":
        main(sys.argv[1], *map(int, sys.argv[2:]))
"""


@pytest.fixture
def started(tmp_path):
    """A function that starts the program above in a process group of its own."""
    script = tmp_path / "run.py"
    script.write_text(textwrap.dedent(RUN))
    running = []

    def start(*arguments):
        process = subprocess.Popen(
            [sys.executable, str(script), *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, start_new_session=True,
        )  # fmt: skip
        running.append(process)
        return process

    yield start
    for process in running:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def waited_for(path, rows):
    """Wait until a log has so many rows."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if path.exists() and len(path.read_text().splitlines()) > rows:
            return
        time.sleep(0.002)
    raise AssertionError(f"{path} has no {rows} rows after a minute")


def test_ctrl_c_saves_and_the_run_that_goes_on_ends_bit_for_bit_the_same(tmp_path, started):
    """The signal goes to the whole group of processes, as a terminal sends it, at a moment that nobody chose."""
    (tmp_path / "whole").mkdir()
    (tmp_path / "whole" / "signalled").touch()
    whole = started(tmp_path / "whole", 1, 160, 0, 0)
    halves = {workers: started(tmp_path / f"half{workers}", 1, 160, 0, workers) for workers in (0, 2)}
    for workers, half in halves.items():
        waited_for(tmp_path / f"half{workers}" / "a.csv", 11)
        os.killpg(half.pid, signal.SIGINT)
        (tmp_path / f"half{workers}" / "signalled").touch()  # so that it cannot have come too late
    for workers, half in halves.items():
        out, said = half.communicate(timeout=60)
        stopped, step, _ = out.split()
        assert (half.returncode, stopped) == (0, "interrupted"), said
        assert "stopping after this step, and saving; Ctrl-C again stops at once" in said.splitlines()
        assert "Traceback" not in said
        assert (tmp_path / f"half{workers}" / "c" / f"step-{int(step):08d}.ckpt").exists()
        halves[workers] = started(tmp_path / f"half{workers}", 2, 160, 1, workers)
    wanted, said = whole.communicate(timeout=120)
    assert wanted.startswith("steps 160 "), said
    losses = read_csv(tmp_path / "whole" / "a.csv")["loss"]
    for workers, half in halves.items():
        got, said = half.communicate(timeout=120)
        assert got == wanted, said
        assert read_csv(tmp_path / f"half{workers}" / "a.csv")["loss"] == losses


def test_a_second_ctrl_c_ends_at_once_and_loses_no_checkpoint(tmp_path, monkeypatch):
    run, calls = Setup(), []

    def loss(model, batch):
        calls.append(batch)
        if len(calls) == 6:
            send()
            send()
        return mse(model, batch)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        run.fit(loss, steps=20, checkpoints=tmp_path, save_every=2)
    assert signal.getsignal(signal.SIGINT) is before
    assert pg.io.Checkpoints(tmp_path).latest().name == "step-00000004.ckpt"


def test_a_worker_that_was_forked_dies_of_a_signal_as_ever():
    code = """
        import os, signal
        from polygrad.training import Interruption

        with Interruption(message="") as interruption:
            child = os.fork()
            if child == 0:
                os.kill(os.getpid(), signal.SIGTERM)
                os._exit(0)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), interruption.requested)
    """
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True
    )
    assert run.stdout == f"{-signal.SIGTERM} False\n"


def test_a_full_disk_between_steps_is_a_warning_and_at_the_end_an_error(tmp_path):
    run = Setup()
    run.fit(steps=2, checkpoints=tmp_path)
    last = tmp_path / "step-00000002.ckpt"
    whole = last.read_bytes()
    said = f"cannot save the checkpoint of step {{}} in {tmp_path}: File too large; the last one is {last}"
    with (
        room(1000),
        pytest.warns(UserWarning, match=f"^{re.escape(said.format(4) + '; the run goes on')}$"),
        refuses(pg.TrainingError, said.format(5)),
    ):
        run.fit(steps=5, checkpoints=tmp_path, resume=True, save_every=2)
    with room(1000), refuses(pg.TrainingError, said.format(4)):
        run.fit(steps=5, checkpoints=tmp_path, resume=True, save_every=2, unsaved="raise")
    assert last.read_bytes() == whole
    assert os.listdir(tmp_path) == [last.name]


def test_a_new_run_does_not_take_the_folder_of_another(tmp_path):
    Setup().fit(steps=2, checkpoints=tmp_path)
    with refuses(
        pg.TrainingError,
        f"cannot begin a run: {tmp_path} has checkpoints of another one, the newest called step-00000002.ckpt; go on "
        "from it with resume=True, or take another folder",
    ):
        Setup().fit(steps=2, checkpoints=tmp_path)
    wider = Setup()
    wider.model = pg.nn.Linear(4, 2)
    wider.optimiser = pg.optim.SGD(wider.model, lr=0.1)
    before = wider.weights()
    with pytest.raises(pg.StateError, match=r"cannot load model from .*step-00000002\.ckpt: "):
        wider.fit(steps=4, checkpoints=tmp_path, resume=True)
    assert wider.weights() == before
    (tmp_path / "step-00000002.ckpt").write_bytes(b"torn")
    with (
        pytest.warns(UserWarning, match="damaged"),
        refuses(pg.TrainingError, f"cannot resume from {tmp_path}: none of its 1 checkpoints is whole"),
    ):
        Setup().fit(steps=2, checkpoints=tmp_path, resume=True)


def test_resuming_where_nothing_was_saved_begins(tmp_path):
    assert Setup().fit(steps=2, checkpoints=tmp_path / "c", resume=True).start == 0
    with refuses(pg.TrainingError, "cannot resume a run without checkpoints=, the folder of its checkpoints"):
        Setup().fit(steps=2, resume=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(pg.TrainingError, match=rf"^cannot keep checkpoints in {tmp_path}/file/c: Not a directory$"):
        Setup().fit(steps=2, checkpoints=tmp_path / "file" / "c")


NO_BATCHES = (
    "cannot train: the loader gave no batches in epoch {}; it has too little data, or it is an iterator, which can be "
    "read once"
)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"steps": 0}, "cannot train with steps=0: it must be at least 1"),
        ({"epochs": -1}, "cannot train with epochs=-1: it must be at least 1"),
        ({"steps": 1, "accumulate": 0}, "cannot train with accumulate=0: it must be at least 1"),
        ({}, "cannot train without knowing how long: give steps= or epochs=, one of the two"),
        ({"steps": 1, "epochs": 1}, "cannot train without knowing how long: give steps= or epochs=, one of the two"),
        (
            {"steps": 1, "precision": "float8"},
            "cannot train in precision 'float8': it is 'float32', 'bfloat16' or 'float16'",
        ),
        ({"steps": 1, "unsaved": "no"}, "cannot train with unsaved='no': it is 'warn' or 'raise'"),
        (
            {"steps": 1, "loss": lambda model, batch: model(batch[0])},
            "cannot train by a loss of shape [8, 2]: loss(model, batch) must return one number",
        ),
        (
            {"steps": 1, "loss": lambda model, batch: 1.0},
            "cannot train by a loss of float: loss(model, batch) must return one number",
        ),
        (
            {"steps": 1, "evaluate": lambda model: {"loss": 1.0}},
            "cannot take what evaluate(model) returned: it has a figure 'loss', which the training has too",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(how, said):
    run = Setup()
    before = run.weights()
    with refuses(pg.TrainingError, said):
        run.fit(**how)
    assert "evaluate" in how or run.weights() == before


def test_a_loader_without_batches_is_no_endless_loop():
    for loader, epoch in (([], 1), (iter(list(Setup().loader)), 2)):
        run = Setup()
        run.loader = loader
        with refuses(pg.TrainingError, NO_BATCHES.format(epoch)):
            run.fit(steps=50)


def test_a_list_that_became_shorter_cannot_be_gone_on_with(tmp_path):
    run = Setup()
    run.loader = list(run.loader)
    run.fit(steps=3, checkpoints=tmp_path)
    run.loader = run.loader[:2]
    with refuses(pg.StateError, "cannot go on after 3 batches: the loader gives only 2 of them now"):
        run.fit(steps=4, checkpoints=tmp_path, resume=True)
    run = Setup()
    with pytest.raises(pg.StateError, match="cannot load this state into a loader: it is of a loader of another kind"):
        run.fit(steps=4, checkpoints=tmp_path, resume=True)


def test_fit_works_in_any_thread():
    found = []
    thread = threading.Thread(target=lambda: found.append(Setup().fit(steps=2).step))
    thread.start()
    thread.join()
    assert found == [2]


def test_fit_shows_what_it_does_and_takes_logs_of_ones_own(capsys):
    class Kept(list):
        def write(self, step, **figures):
            self.append((step, sorted(figures)))

    kept = Kept()
    Setup().fit(steps=2, log=[kept], progress=True, items_per_step=8, unit="samples", description="digits")
    assert kept == [(1, ["loss", "lr", "samples/s"]), (2, ["loss", "lr", "samples/s"])]
    (line,) = capsys.readouterr().err.splitlines()
    assert re.match(r"digits 2/2, loss \S+, lr 0.05, \S+ it/s, \S+ samples/s, 0:00 gone$", line)
    out = io.StringIO()
    with Progress(2, console=out, interval=0.0) as progress:
        Setup().fit(steps=2, progress=progress)
        assert progress.active
    assert out.getvalue().startswith("2/2, ")


def test_no_batch_and_no_graph_outlives_its_step():
    alive = []

    def loss(model, batch):
        alive.append(weakref.ref(batch[0]))
        value = mse(model, batch)
        assert sum(ref() is not None for ref in alive) <= 2  # this one, and the one that the loop's name still has
        return value

    Setup().fit(loss, steps=6, read_every=6)


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


@pytest.mark.parametrize("how", [{}, {"max_norm": 0.5, "precision": "bfloat16"}])
def test_compiled_steps_are_the_steps(device, tmp_path, how):
    def run(compiled, folder):
        pg.random.seed(3)
        with pg.device(device):
            x = pg.random.normal((48, 6), dtype=pg.float32)
            data = pg.data.TensorDataset(x, pg.argmax(x[:, :3], axis=1))
            model = pg.nn.Sequential(pg.nn.Linear(6, 8), pg.nn.Dropout(0.2), pg.nn.Tanh(), pg.nn.Linear(8, 3))
            optimiser = pg.optim.AdamW(model, lr=1e-2)
            done = fit(
                model, lambda model, batch: pg.nn.cross_entropy(model(batch[0]), batch[1]),
                pg.data.DataLoader(data, batch_size=16, shuffle=True, seed=1), optimiser, steps=9, progress=False,
                schedule=pg.optim.lr_scheduler.CosineWithWarmup(optimiser, total=9, warmup=2), compiled=compiled,
                average=pg.optim.EMA(model, decay=0.9), log=folder / "log.csv", **how,
            )  # fmt: skip
        return done.losses, [p.numpy() for p in model.parameters()], read_csv(folder / "log.csv")

    folders = [tmp_path / name for name in ("plain", "compiled")]
    for folder in folders:
        folder.mkdir()
    plain, replayed = run(False, folders[0]), run(True, folders[1])
    assert plain[0] == replayed[0]
    for a, b in zip(plain[1], replayed[1], strict=True):
        np.testing.assert_array_equal(a, b)
    assert plain[2] == replayed[2]


def test_compiled_steps_are_replayed(monkeypatch):
    from polygrad.runtime.replay import Replay

    runs = []
    run = Replay.run
    monkeypatch.setattr(Replay, "run", lambda self, numbers: (runs.append(1), run(self, numbers)))
    data = pg.data.TensorDataset(pg.ones((12, 2), dtype=pg.float32))
    model = pg.nn.Linear(2, 1)
    fit(
        model, lambda model, batch: pg.mean(model(batch[0]) ** 2), pg.data.DataLoader(data, batch_size=4),
        pg.optim.SGD(model, lr=0.1), steps=8, progress=False, compiled=True,
    )  # fmt: skip
    assert len(runs) == 6


@pytest.mark.parametrize(("how", "what"), [({"accumulate": 2}, "accumulate"), ({"precision": "float16"}, "a scaler")])
def test_what_decides_by_values_is_not_compiled(how, what):
    model = pg.nn.Linear(2, 1)
    with refuses(
        pg.TrainingError, f"cannot train compiled with {what}, which decides by values: leave one of the two out"
    ):
        fit(model, None, [], pg.optim.SGD(model, lr=0.1), steps=1, compiled=True, progress=False, **how)
