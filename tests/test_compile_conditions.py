"""pg.compile: what a capture depends on, so that a change of it is seen.

Here: numbers, names outside, attributes, modes, shapes and layouts; arrays outside, which are read anew without another
capture. Not here: whether a replay computes what the call does (`test_compile.py`).
"""

import functools
import math
import types

import numpy as np
import pytest

import polygrad as pg
from support.compiling import f32, net, warmed

# ---- numbers ---------------------------------------------------------------------------------------------------------


def test_numbers_are_not_frozen(host):
    compiled = pg.compile(lambda x, a, n: x * a + (n - 1) * math.pi)
    for k in range(5):
        assert compiled(f32([2.0], host), 0.5 * k, k).item() == pytest.approx(1.0 * k + (k - 1) * math.pi, rel=1e-6)
    assert "1 captures" in compiled.explain()


def test_numbers_that_python_decides_by_are_conditions(host):
    def f(x, a):
        return x + 1 if a > 0.5 else x - math.sqrt(a)

    compiled = pg.compile(f)
    x = f32([1.0], host)
    got = [compiled(x, a).item() for a in (0.9, 0.8, 0.7, 0.25, 0.25, 0.16, 0.9, 0.25)]
    assert got == pytest.approx([2, 2, 2, 0.5, 0.5, 0.6, 2, 0.5], rel=1e-6)


def test_whole_numbers_are_shapes_and_values(host):
    compiled = pg.compile(lambda x, n: (pg.reshape(x, (n, -1)) * n).sum(axis=0))
    x = f32(np.arange(12), host)
    for n in (2, 2, 3, 2, 3, 4):
        np.testing.assert_array_equal(compiled(x, n).numpy(), (np.arange(12).reshape(n, -1) * n).sum(axis=0))


def test_too_many_captures_warn_and_name_what_varies(host):
    compiled = pg.compile(lambda x, n: pg.reshape(x, (n, -1)).sum(axis=1))
    x = f32(np.arange(5040), host)

    def often():
        for n in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14):
            compiled(x, n)
            assert compiled(x, n).shape == (n,)

    with pytest.warns(pg.CompileWarning, match="captured 9 times, the last time because a number"):
        often()


# ---- names and attributes --------------------------------------------------------------------------------------------


FACTOR = 2.0


def test_names_outside_are_conditions(host):
    global FACTOR  # noqa: PLW0603  what is tested
    inner = {"shift": 1.0}
    scale = 10.0

    def helper(x):
        return x * FACTOR

    def f(x):
        return helper(x) * scale + inner["shift"]

    compiled = warmed(f, f32([1.0], host))
    assert compiled(f32([1.0], host)).item() == 21.0
    try:
        FACTOR = 3.0
        assert compiled(f32([1.0], host)).item() == 31.0
        scale = 1.0
        assert compiled(f32([1.0], host)).item() == 4.0
        inner["shift"] = 0.0
        assert compiled(f32([1.0], host)).item() == 3.0
        assert "last captured anew because inner.shift was 1.0 and is 0.0" in compiled.explain()
    finally:
        FACTOR = 2.0


def test_attributes_of_modules_and_parts_of_partials_are_conditions(host):
    settings = types.ModuleType("settings")
    settings.factor = 2.0
    shifts = {"by": 1.0}

    def f(shifts, x):
        return x * settings.factor + shifts["by"]

    compiled = warmed(functools.partial(f, shifts), f32([1.0], host))
    assert compiled(f32([1.0], host)).item() == 3.0
    settings.factor = 5.0
    assert compiled(f32([1.0], host)).item() == 6.0
    shifts["by"] = 0.0
    assert compiled(f32([1.0], host)).item() == 5.0


def test_training_mode_is_seen(host):
    model = net(host)
    compiled = pg.compile(pg.no_grad()(lambda x: model(x)))
    x = f32(np.random.default_rng(0).normal(size=(4, 6)), host)
    for _ in range(3):
        compiled(x)
    model.eval()
    np.testing.assert_array_equal(compiled(x).numpy(), model(x).detach().numpy())


def test_methods_have_captures_of_their_own(host):
    class Scaled:
        def __init__(self, factor):
            self.factor = factor

        @pg.compile
        def times(self, x):
            return x * self.factor

    two, three = Scaled(2.0), Scaled(3.0)
    x = f32([1.0], host)
    for _ in range(4):
        assert (two.times(x).item(), three.times(x).item()) == (2.0, 3.0)
    two.factor = 5.0
    assert two.times(x).item() == 5.0


class Scale:
    """Everything of it is found in a class: a number, a method's global, a property, a slot."""

    __slots__ = ("own",)
    factor, offset = 2.0, 0.0

    def __init__(self):
        self.own = 1.0

    def __call__(self, x):
        return self.scaled(x) * self.own + self.shift

    def scaled(self, x):
        return x * self.factor * FACTOR

    @property
    def shift(self):
        return self.offset


class Settings:
    factor = 2.0


@pytest.mark.parametrize(
    ("change", "result", "said"),
    [
        (lambda p, scale, kind: p.setattr(Scale, "factor", 3.0), 6.0, "Scale.factor was 2.0 and is 3.0"),
        (lambda p, scale, kind: p.setattr(kind, "factor", 5.0, raising=False), 10.0, "Wider.factor has changed"),
        (lambda p, scale, kind: p.setattr(Scale, "scaled", lambda self, x: x), 1.0, "Scale.scaled is another function"),
        (lambda p, scale, kind: p.setattr(Scale, "offset", 1.0), 5.0, "Scale.offset was 0.0 and is 1.0"),
        (lambda p, scale, kind: p.setattr(scale, "own", 2.0), 8.0, "scale.own was 1.0 and is 2.0"),
        (lambda p, scale, kind: p.setitem(globals(), "FACTOR", 3.0), 6.0, "FACTOR was 2.0 and is 3.0"),
    ],
)
def test_attributes_of_classes_are_conditions(host, monkeypatch, change, result, said):
    class Wider(Scale):
        __slots__ = ()

    scale = Wider()
    compiled = warmed(lambda x: scale(x), f32([1.0], host))
    assert compiled(f32([1.0], host)).item() == 4.0
    change(monkeypatch, scale, Wider)
    assert compiled(f32([1.0], host)).item() == result
    assert said in compiled.explain()


def test_attributes_of_a_class_that_is_named_are_conditions(host, monkeypatch):
    compiled = warmed(lambda x: x * Settings.factor, f32([1.0], host))
    assert compiled(f32([1.0], host)).item() == 2.0
    monkeypatch.setattr(Settings, "factor", 3.0)
    assert compiled(f32([1.0], host)).item() == 3.0
    assert "Settings.factor was 2.0 and is 3.0" in compiled.explain()
    compiled(f32([1.0], host))
    assert "2 captures" in compiled.explain()


# ---- arrays ----------------------------------------------------------------------------------------------------------


def test_arrays_outside_are_read_anew(device):
    model = pg.nn.Linear(2, 2, device=device)
    table = f32([1.0, 2.0], device)
    compiled = warmed(pg.no_grad()(lambda x: model(x) + table), f32([[1.0, 1.0]], device))
    state = {"weight": f32([[1, 0], [0, 1]], device), "bias": f32([0, 0], device)}
    model.load_state_dict(state)
    table[0] = 100.0
    np.testing.assert_array_equal(compiled(f32([[1.0, 1.0]], device)).numpy(), [[101.0, 3.0]])
    assert "1 captures" in compiled.explain()


def test_another_array_under_the_same_name_is_seen(host):
    table = f32([1.0], host)
    compiled = warmed(lambda x: x + table, f32([1.0], host))
    table = f32([5.0], host)
    assert compiled(f32([1.0], host)).item() == 6.0


def test_two_arrays_that_began_as_one_are_told_apart(host):
    first = f32([1.0], host)
    second = first.detach()
    holder = {"a": first, "b": second}

    def f(x):
        return x + 10 * holder["a"] + 100 * holder["b"]

    compiled = warmed(f, f32([1.0], host))
    first[...] = 2.0
    assert compiled(f32([1.0], host)).item() == 121.0
    second[...] = 3.0
    assert compiled(f32([1.0], host)).item() == 321.0


def test_other_shapes_dtypes_layouts_and_structures_are_captured_apart(host):
    compiled = pg.compile(lambda tree: pg.add(*tree.values()))
    a = f32(np.arange(6).reshape(2, 3), host)
    cases = [
        {"a": a, "b": a}, {"a": a, "c": a}, {"a": a.T, "b": a.T}, {"a": a[:, 1:], "b": a[:, :2]},
        {"a": a, "b": pg.astype(a, pg.int32)}, {"a": a[0], "b": a},
    ]  # fmt: skip
    for _ in range(4):
        for case in cases:
            np.testing.assert_array_equal(compiled(case).numpy(), pg.add(*case.values()).numpy())
