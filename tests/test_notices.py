"""Bad indices are found without waiting for launches that look at none: plain steps, replays, bundles.

`Lagging` does nothing before it is waited for, so that its queue tells what nobody has waited for.
"""

import gc
import threading

import numpy as np
import pytest

import polygrad as pg
from polygrad.driver import LaunchError
from polygrad.driver.loader import REGISTRY
from polygrad.runtime.devices import SITES, state
from support.compiling import f32
from support.lagging import Lagging


@pytest.fixture(params=["lagging:0", "lagging:1"])
def lagging(request):
    """A device whose work lags behind: the first makes launches one by one, the second writes them down."""
    REGISTRY.register(Lagging)
    try:
        with pg.device(request.param):
            pg.zeros(1).realize()
            yield Lagging.opened
    finally:
        Lagging.offered = True
        gc.collect()
        REGISTRY.unregister(REGISTRY.load("lagging").plugin)


def stepper():
    """Return a training step that looks at indices twice, early, and what it changes."""
    pg.random.seed(3)
    table, model = (
        pg.random.normal((7, 8), dtype="float32"),
        pg.nn.Sequential(pg.nn.Linear(8, 24), pg.nn.ReLU(), pg.nn.Linear(24, 5)),
    )
    parameters = list(model.parameters())
    optimiser = pg.optim.AdamW(parameters, lr=1e-2)
    pg.realize(table, parameters)

    def step(words, labels):
        optimiser.zero_grad()
        loss = pg.nn.cross_entropy(model(table[words]), labels)
        loss.backward()
        optimiser.step(also=loss)
        return loss.detach()

    return step, parameters


def batch(rng):
    return pg.realize(pg.asarray(rng.integers(0, 7, 64)), pg.asarray(rng.integers(0, 5, 64)))


def started(compiled, count):
    """Return such a step after so many calls, compiled or not, what it changes, and what it was called with."""
    step, parameters = stepper()
    call = pg.compile(step) if compiled else step
    words, labels = batch(np.random.default_rng(2))
    for _ in range(count):
        call(words, labels)
    return call, parameters, words, labels


@pytest.mark.parametrize("compiled", [False, True])
def test_a_step_does_not_wait_for_what_looks_at_no_index(lagging, compiled):
    call, _, words, labels = started(compiled, 14)  # until launches are written down
    pg.synchronize()
    reads, marks, launched = lagging.reads, lagging.board.marks, lagging.launched
    for k in range(1, 4):
        call(words, labels)
        assert lagging.queue, "the step has waited for everything"
        assert lagging.board.last not in lagging.queue, "the step has not looked"
        assert lagging.board.marks == marks + k  # one for each step: the last launch that looks
    assert lagging.reads == reads
    assert (lagging.launched > launched) is (compiled and pg.get_device() == "lagging:1")


@pytest.mark.parametrize("compiled", [False, True])
def test_the_gradient_of_a_lookup_that_is_trained_is_not_waited_for(lagging, compiled):
    table, layer, words = pg.nn.Embedding(7, 24), pg.nn.Linear(24, 24), batch(np.random.default_rng(0))[0]
    parameters = [*table.parameters(), *layer.parameters()]
    optimiser = pg.optim.AdamW(parameters, lr=1e-2)

    def step(words):
        optimiser.zero_grad()
        loss = (layer(table(words)) ** 2).mean()
        loss.backward()
        optimiser.step()

    call = pg.compile(step) if compiled else step
    for _ in range(14):
        call(words)
    pg.synchronize()
    call(words)
    assert lagging.queue
    before = [p.numpy() for p in parameters]
    with pytest.raises(pg.OutOfBounds, match="it is 8, but there are 7 classes"):
        call((words * 0 + 8).realize())
    for p, value in zip(parameters, before, strict=True):
        np.testing.assert_array_equal(p.numpy(), value)
    call(words)  # what launches behind the mark have reported is forgotten too
    pg.synchronize()


@pytest.mark.parametrize("compiled", [False, True])
def test_the_numbers_are_those_of_the_host(lagging, compiled):
    results = []
    for where in ("cpu:0", pg.get_device()):
        with pg.device(where):
            step, parameters = stepper()
            call = pg.compile(step) if compiled else step
            rng = np.random.default_rng(1)
            losses = [call(*batch(rng)).item() for _ in range(12)]
            results.append((losses, [p.numpy() for p in parameters]))
    (losses, values), (others, those) = results
    assert losses == others
    for a, b in zip(values, those, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_bad_index_is_found_and_leaves_everything_as_it_was(lagging, compiled):
    call, parameters, words, labels = started(compiled, 8)
    before = [p.numpy() for p in parameters]
    for bad in ((words + 7, labels), (words, labels - 9)):
        with pytest.raises(pg.OutOfBounds, match="index|label"):
            call(*pg.realize(*bad))
        for p, value in zip(parameters, before, strict=True):
            np.testing.assert_array_equal(p.numpy(), value)
    assert np.isfinite(call(words, labels).item())  # the status word is clear again


def test_what_launches_met_is_said_when_somebody_waits_for_all(lagging):
    x, reads = f32(np.arange(5.0)), lagging.reads
    y = x[pg.asarray([1, 5])]
    y.realize()
    with pytest.raises(pg.OutOfBounds, match="index 5 is out of range for an axis of size 5"):
        pg.synchronize()
    assert lagging.reads == reads
    assert y.tolist() == [1.0, 4.0]  # clamped; said once


def test_a_read_says_what_earlier_launches_met(lagging):
    x = f32(np.arange(5.0))
    x[pg.asarray([-6])].realize()
    with pytest.raises(pg.OutOfBounds, match="index -6"):
        (x + 1).numpy()


def test_scatters_report_as_gathers_do(lagging):
    zeros, rows = pg.zeros((4, 2), dtype="float32"), pg.asarray([0, 4])
    zeros.at[rows].add(pg.ones((2, 2), dtype="float32")).realize()
    with pytest.raises(pg.OutOfBounds, match="scatter"):
        pg.synchronize()


def test_a_replay_finds_what_a_plain_launch_before_it_met(lagging):
    call, _, words, labels = started(True, 8)
    f32(np.arange(3.0))[pg.asarray([3])].realize()
    with pytest.raises(pg.OutOfBounds, match="index 3 is out of range for an axis of size 3"):
        call(words, labels)
    call(words, labels)


def test_a_loop_that_never_looks_is_looked_after(lagging):
    found = state(pg.get_device())
    f32(np.arange(3.0))[pg.asarray([0])].realize()
    for k in range(SITES + 9):
        found.tag({0: ("index", (3,), ("here", k))})
    assert len(found._sites) < SITES // 2


def test_two_threads_train_side_by_side(lagging):
    step, _ = stepper()
    name, found = pg.get_device(), []

    def other():
        with pg.device(name):
            call, _ = stepper()
            try:
                for k in range(20):
                    call(*batch(np.random.default_rng(k)))
            except Exception as error:
                found.append(error)

    thread = threading.Thread(target=other)
    thread.start()
    compiled = pg.compile(step)
    for k in range(20):
        compiled(*batch(np.random.default_rng(k)))
    thread.join()
    assert not found


@pytest.mark.parametrize("compiled", [False, True])
def test_what_fails_while_somebody_waits_leaves_everything_as_it_was(lagging, compiled, monkeypatch):
    call, parameters, words, labels = started(compiled, 14)
    before = [p.numpy() for p in parameters]

    def fails():
        raise LaunchError("the device has stopped")

    monkeypatch.setattr(lagging.board, "wait", fails)
    with pytest.raises(LaunchError, match="the device has stopped"):
        call(words, labels)
    monkeypatch.undo()
    for p, value in zip(parameters, before, strict=True):
        np.testing.assert_array_equal(p.numpy(), value)
    assert np.isfinite(call(words, labels).item())


def test_a_device_that_gives_no_notices_is_read(lagging):
    REGISTRY.devices[pg.get_device()].close()
    Lagging.offered = False
    x = f32(np.arange(5.0))
    opened = Lagging.opened
    assert opened is not lagging
    x[pg.asarray([7])].realize()
    with pytest.raises(pg.OutOfBounds, match="index 7"):
        pg.synchronize()
    assert opened.reads
