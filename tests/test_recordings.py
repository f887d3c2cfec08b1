"""Recordings share a few bits of a node's mask: what has outlived one must not seem to belong to the next.

Here: leaked intermediates after many recordings. Not here: tapes and `backward` themselves (`test_tapes.py`).
"""

import pytest

import polygrad as pg
from polygrad.array.recording import BITS
from polygrad.runtime.structure import active_mask


def leak(kind):
    """Return an array computed in a recording that has ended."""
    leaked = []

    def f(x):
        leaked.append(x * x)
        return pg.sum(leaked[0])

    x = pg.asarray([1.0, 2.0])
    if kind == "grad":
        pg.grad(f)(x)
    elif kind == "vjp":
        pg.vjp(f, x)
    elif kind == "jvp":
        pg.jvp(f, (x,), (x,))
    elif kind == "tape":
        with pg.Tape() as tape:
            tape.watch(x)
            y = f(x)
        tape.gradient(y, x)
    return leaked[0]


def turn_round(inside, times=2 * BITS):
    """Run *inside* in so many recordings after each other that each bit comes up."""
    return [pg.grad(lambda x: inside(x) or pg.sum(x * 2.0))(pg.asarray([1.0, 1.0])).tolist() for _ in range(times)]


@pytest.mark.parametrize("kind", ["grad", "vjp", "jvp", "tape"])
@pytest.mark.parametrize("seen", [False, True], ids=["pending", "realized"])
def test_a_leaked_value_is_a_constant_for_later_recordings(kind, seen, device):
    leaked = leak(kind)
    if seen:
        assert leaked.tolist() == [1.0, 4.0]
    tracked = []
    turn_round(
        lambda x: tracked.append((leaked.requires_grad, (leaked + 1.0).requires_grad, (leaked * x).requires_grad))
    )
    assert set(tracked) == {(False, False, True)}


def test_a_leaked_value_does_not_lead_a_later_sweep_astray(device):
    leaked = leak("grad")
    for _ in range(2 * BITS):
        slope = pg.grad(lambda x: pg.sum(x * leaked))(pg.asarray([5.0, 6.0]))
        assert slope.tolist() == [1.0, 4.0]
    push = pg.jvp(lambda x: x * leaked, (pg.asarray([5.0, 6.0]),), (pg.asarray([1.0, 1.0]),))[1]
    assert push.tolist() == [1.0, 4.0]


def test_a_later_tape_can_watch_a_leaked_value(device):
    leaked = leak("tape")
    for _ in range(BITS + 2):
        with pg.Tape() as outer:
            outer.watch(pg.asarray(0.0))
            with pg.Tape() as tape:
                tape.watch(leaked)
                y = pg.sum(leaked * 3.0)
            assert tape.gradient(y, leaked).tolist() == [3.0, 3.0]


def test_what_is_watched_still_counts_in_nested_recordings(device):
    def third(x):
        return pg.grad(pg.grad(pg.grad(lambda v: v**4)))(x)

    for _ in range(BITS):
        assert third(pg.asarray(2.0)).item() == 48.0


def test_a_leaf_and_a_leaked_value_in_one_product(device):
    w = pg.asarray([2.0, 3.0]).requires_grad_()
    kept = []
    pg.grad(lambda x: pg.sum(kept.append(x * w) or x))(pg.asarray([1.0, 1.0]))
    turn_round(lambda x: None, BITS - 1)  # the next recording has the same bit as the first
    inside = []
    turn_round(lambda x: inside.append(kept[0].requires_grad), 3)
    assert inside == [True] * 3  # by w
    pg.sum(kept[0]).backward()
    assert w.grad.tolist() == [1.0, 1.0]


def test_a_leaked_value_lets_go_of_its_operands(device):
    leaked = leak("grad")  # not computed yet
    held = []

    def compute(x):
        if leaked._node.mask & active_mask() and not held:  # this recording has the bit of the one that has ended
            held.append(pg.realize(leaked)._node.parents)

    turn_round(compute)
    assert held == [()]
