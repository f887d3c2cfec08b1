"""pg.compile: what is refused in a sentence, and what an error leaves behind: everything as it was.

Here: functions that look at values, keep arrays or return what needs gradients; errors within a replay; what is no
function. Not here: functions that may be captured (`test_compile.py`).
"""

import numpy as np
import pytest

import polygrad as pg
from support.compiling import f32

# ---- functions that cannot be captured -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("look", "words"),
    [
        (lambda x: float(x.sum()), "looks at the value"),
        (lambda x: bool(x.sum() > 0), "looks at the value"),
        (lambda x: x.sum().item(), "looks at the value"),
        (lambda x: x.numpy(), "looks at the value"),
        (lambda x: x[x > 0], "looks at the value"),
        (lambda x: repr(x), "looks at the value"),
        (lambda x: x + pg.asarray(np.ones(2, np.float32), device=x.device), "NumPy"),
        (lambda x: x + np.ones(2, np.float32), "NumPy"),
    ],
)
def test_what_a_replay_could_not_see_is_refused(host, look, words):
    compiled = pg.compile(look)
    x = f32([1.0, 2.0], host)
    compiled(x)
    with pytest.raises(pg.CaptureError, match=words):
        compiled(x)
    assert (x + 1).tolist() == [2.0, 3.0]  # nothing is left switched over
    with pytest.raises(pg.CaptureError, match=words):
        compiled(x)


def test_arrays_left_behind_are_refused(host):
    kept = []

    @pg.compile
    def f(x):
        kept.append(x * 2)
        return x

    f(f32([1.0], host))
    with pytest.raises(pg.CaptureError, match=r"keeps an array it made, float32\[1\]"):
        f(f32([1.0], host))


def test_results_that_need_gradients_are_refused(host):
    model = pg.nn.Linear(2, 1, device=host)
    compiled = pg.compile(lambda x: model(x))
    x = f32([[1.0, 2.0]], host)
    compiled(x)
    with pytest.raises(pg.CaptureError, match="needs gradients"):
        compiled(x)
    with pg.no_grad():
        for _ in range(3):
            compiled(x)


def test_steps_that_look_at_values_are_refused(host):
    w = pg.nn.Parameter(f32([1.0], host))
    optimiser = pg.optim.SGD([w], lr=0.1)
    gathered = pg.optim.Accumulation(optimiser, batches=2)
    for call, words in [
        (lambda: optimiser.step(nonfinite="skip"), "nonfinite='skip'"), (gathered.step, "Accumulation"),
    ]:  # fmt: skip

        @pg.compile
        def step(call=call):
            w.sum().backward()
            call()

        step()
        with pytest.raises(pg.CaptureError, match=words):
            step()


def test_compiling_what_is_no_function_is_refused():
    with pytest.raises(TypeError, match="cannot compile 3: it is no function"):
        pg.compile(3)


# ---- errors ----------------------------------------------------------------------------------------------------------


def test_errors_of_the_function_and_of_launches_leave_everything_as_it_was(device):
    w = pg.nn.Parameter(f32(np.ones((3, 2)), device))
    optimiser = pg.optim.SGD([w], lr=1.0, momentum=0.9)
    schedule = pg.optim.lr_scheduler.ExponentialLR(optimiser, gamma=0.5)

    @pg.compile
    def step(index):
        pg.nn.cross_entropy(w, index).backward()
        optimiser.step()
        optimiser.zero_grad()
        schedule.step()

    good, bad = pg.asarray([0, 1, 1], device=device), pg.asarray([0, 1, 7], device=device)
    for _ in range(4):
        step(good)
    before, lr, count = w.numpy(), optimiser.lr, optimiser.state["0"]["step"]
    with pytest.raises(pg.OutOfBounds, match="it is 7, but there are 2 classes"):
        step(bad)
    np.testing.assert_array_equal(w.numpy(), before)
    assert (optimiser.lr, optimiser.state["0"]["step"]) == (lr, count)
    step(good)
    assert optimiser.state["0"]["step"] == count + 1

    with pytest.raises(pg.ShapeError):
        step(pg.asarray([0, 1], device=device))


def test_a_first_call_that_failed_is_made_again(host):
    w = pg.nn.Parameter(f32([1.0], host))
    optimiser = pg.optim.AdamW([w], lr=0.1)
    failing = iter([True])

    @pg.compile
    def step():
        if next(failing, False):
            raise ValueError("not yet")
        w.sum().backward()
        optimiser.step()
        optimiser.zero_grad()

    with pytest.raises(ValueError, match="not yet"):
        step()
    for _ in range(4):
        step()
    assert optimiser.state["0"]["step"] == 4
    assert "replayed 2 times" in step.explain()
