"""Tapes, and the detection of anomalies: what is recorded, for whom, and for how long.

Here: `pg.Tape`, `pg.detect_anomaly`. Not here: `backward` without a tape (`test_tapes.py`).
"""

import inspect
import math
import re
import threading

import numpy as np
import pytest

import polygrad as pg

NAN, INF = math.nan, math.inf


def leaf(value, dtype=None):
    return pg.asarray(value, dtype=dtype).requires_grad_()


def refuses(error, sentence):
    return pytest.raises(error, match=f"^{re.escape(sentence)}$")


def test_a_tape_gives_gradients_of_what_it_watches(device):
    x = pg.asarray([1.0, 2.0])
    with pg.Tape() as tape:
        tape.watch(x)
        y = pg.sum(x * x * x)
    assert pg.get_current_tape() is None
    assert tape.gradient(y, x).tolist() == [3.0, 12.0]
    assert not x.requires_grad
    with refuses(
        pg.GradError,
        "this tape has given its gradient already and freed the graph: make it with persistent=True to ask again",
    ):
        tape.gradient(y, x)


def test_a_persistent_tape_gives_them_again_and_again(device):
    x = pg.asarray([1.0, 2.0])
    with pg.Tape(persistent=True) as tape:
        tape.watch(x)
        h = x * x * x
        a, b = pg.sum(h), pg.sum(h * h)
    assert [tape.gradient(t, x).tolist() for t in (a, a, b)] == [[3.0, 12.0], [3.0, 12.0], [6.0, 192.0]]
    assert tape.gradient(a, {"h": h, "x": [x]})["h"].tolist() == [1.0, 1.0]
    assert not tape.gradient(a, x).requires_grad  # no tape is open


def test_a_tape_gives_zeros_for_what_does_not_matter(device):
    x, y = pg.asarray([1.0, 2.0]), pg.asarray([3.0])
    with pg.Tape() as tape:
        tape.watch([x, y])
        z = pg.sum(x * 2.0)
    gx, gy = tape.gradient(z, [x, y])
    assert (gx.tolist(), gy.tolist()) == ([2.0, 2.0], [0.0])


def test_an_inner_tape_gives_the_outer_one_back(device):
    x, y = pg.asarray(2.0), pg.asarray(3.0)
    with pg.Tape() as outer:
        outer.watch(x)
        a = x * x
        with pg.Tape() as inner:
            assert pg.get_current_tape() is inner
            inner.watch(y)
            b = y * y
        assert pg.get_current_tape() is outer
        c = a * b * x
    assert pg.get_current_tape() is None
    assert inner.gradient(b, y).item() == 6.0
    assert outer.gradient(c, x).item() == pytest.approx(3 * 4.0 * 9.0)


def test_an_error_within_a_tape_closes_it(device):
    x = pg.asarray(2.0)
    with pg.Tape() as outer:
        with pytest.raises(KeyError), pg.Tape():
            raise KeyError
        assert pg.get_current_tape() is outer
    assert pg.get_current_tape() is None
    assert not x.requires_grad


def test_tapes_differentiate_each_other(device):
    x = pg.asarray(2.0)
    with pg.Tape() as outer:
        outer.watch(x)
        with pg.Tape() as inner:
            inner.watch(x)
            y = x**4
        first = inner.gradient(y, x)
    assert first.item() == pytest.approx(32.0)
    assert outer.gradient(first, x).item() == pytest.approx(48.0)


def test_tape_backward_adds_to_grad(device):
    w = leaf([1.0, 2.0])
    for k in range(3):
        with pg.Tape() as tape:
            loss = pg.sum(w * w * float(k + 1))
        tape.backward(loss)
    assert w.grad.tolist() == [12.0, 24.0]
    with pytest.raises(pg.GradError, match="retain_graph=True"):
        tape.backward(loss)
    assert w.grad.tolist() == [12.0, 24.0]
    with pg.Tape() as tape:
        loss = pg.sum(w * w)
    tape.backward(loss, retain_graph=True)
    tape.backward(loss)
    assert w.grad.tolist() == [16.0, 32.0]


def test_tape_backward_leaves_data_alone(device):
    w, data = leaf([1.0, 2.0]), pg.asarray([3.0, 4.0])
    with pg.Tape() as tape:
        loss = pg.sum(w * data)
    tape.backward(loss)
    assert data.grad is None
    assert w.grad.tolist() == [3.0, 4.0]


def test_a_tape_asked_for_by_name_records_inside_no_grad(device):
    w = leaf([1.0, 2.0])
    tape = pg.Tape()
    with pg.no_grad():
        plain = pg.exp(w)
        y = pg.exp(w, tape=tape)
        loss = pg.sum(y, tape=tape)
    assert not plain.requires_grad
    assert [r.op_name for r in tape.nodes] == ["exp", "sum", "reshape"]
    tape.backward(loss)
    np.testing.assert_allclose(w.grad.numpy(), np.exp([1.0, 2.0]), rtol=1e-6)


def test_records_show_what_happened(device):
    w = leaf([1.0, 2.0])
    with pg.Tape() as tape:
        y = pg.exp(w)
        line = inspect.currentframe().f_lineno - 1
        loss = pg.sum(y * 2.0)
    first = tape.nodes[0]
    assert first.op_name == "exp"
    assert first.requires_grad
    assert first.value.detach().tolist() == pytest.approx([math.e, math.e**2])
    assert first.parents[0].value.detach().tolist() == [1.0, 2.0]
    file, at, function = first.creation_trace
    assert (file.endswith("test_tapes.py"), at, function) == (True, line, "test_records_show_what_happened")
    assert first.grad is None
    assert first.grad_fn(pg.asarray([1.0, 1.0]))[0].detach().tolist() == pytest.approx([math.e, math.e**2])
    assert first.parents[0].grad_fn is None
    tape.backward(loss, retain_graph=True)
    assert first.grad.tolist() == [2.0, 2.0]


def test_a_tape_can_be_set_by_hand(device):
    w = leaf(2.0)
    tape = pg.Tape()
    pg.set_current_tape(tape)
    try:
        assert pg.get_current_tape() is tape
        y = w * w
    finally:
        pg.set_current_tape(None)
    assert pg.get_current_tape() is None
    assert [r.op_name for r in tape.nodes] == ["multiply"]
    tape.backward(y)
    assert w.grad.item() == 4.0


def test_tapes_belong_to_their_threads(device):
    found = {}

    def work(k):
        with pg.device(device):
            x = pg.asarray(float(k))
            with pg.Tape() as tape:
                tape.watch(x)
                y = x * x
                found[k] = (pg.get_current_tape() is tape, tape.gradient(y, x).item())

    with pg.Tape() as mine:
        threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert pg.get_current_tape() is mine
    assert mine.nodes == []
    assert found == {k: (True, 2.0 * k) for k in range(8)}


def test_a_dropped_tape_lets_go(device):
    pg.synchronize()
    before = pg.memory_stats()["used"]
    x = pg.asarray(np.ones((100, 100)))
    with pg.Tape() as tape:
        tape.watch(x)
        y = pg.sum(pg.exp(x) @ x)
    y.realize()
    del tape
    assert not x.requires_grad
    del x, y
    assert pg.memory_stats()["used"] == before


def test_a_forward_anomaly_names_op_and_line(device):
    x = leaf([1.0, 0.0, -1.0])
    with pytest.raises(pg.GradError) as caught, pg.detect_anomaly():
        line = inspect.currentframe().f_lineno + 1
        y = pg.log(x)
        pg.sum(y)
    assert re.fullmatch(
        rf"forward anomaly: the value of log {x.dtype.name}\[3\], made at .*test_tapes.py:{line}, "
        r"in test_a_forward_anomaly_names_op_and_line, holds a NaN or an infinity",
        str(caught.value),
    )


def test_a_backward_anomaly_names_op_and_line(device):
    x = leaf([4.0, 0.0])
    with pytest.raises(pg.GradError) as caught, pg.detect_anomaly():
        line = inspect.currentframe().f_lineno + 1
        y = pg.sqrt(x)
        pg.sum(y).backward()
    assert re.fullmatch(
        rf"backward anomaly: the gradient of sqrt {x.dtype.name}\[2\], made at .*test_tapes.py:{line}, "
        r"in test_a_backward_anomaly_names_op_and_line, holds a NaN or an infinity",
        str(caught.value),
    )


def test_what_is_fine_passes_the_detector(device):
    x = leaf([4.0, 1.0])
    with pg.detect_anomaly():
        pg.sum(pg.sqrt(x)).backward()
    assert x.grad.tolist() == [0.25, 0.5]
    assert pg.log(pg.asarray(0.0)).item() == -INF
