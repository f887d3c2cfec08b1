"""What a training loop has beside its steps: early stopping, Ctrl-C, bars and lines of progress.

Here: `pg.training`'s EarlyStopping, Interruption and Progress. Not here: `fit`, which is made of them
(`test_training.py`).
"""

import io
import math
import re
import signal
import sys
import threading

import pytest

import polygrad as pg
from polygrad.training import (
    EarlyStopping,
    Interruption,
    Progress,
)
from polygrad.training import progress as progress_module
from support.training import needs, refuses, send

# ---- early stopping --------------------------------------------------------------------------------------------------


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


# ---- signals ---------------------------------------------------------------------------------------------------------


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


# ---- progress --------------------------------------------------------------------------------------------------------


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
