"""Which launches are the first to look at an index: behind the last of them nobody has to wait."""

import sys

import numpy as np
import pytest

import polygrad as pg
import polygrad.runtime.realize
from polygrad.driver.ir import Instr, Kernel, Store, View
from polygrad.driver.launch import decode
from polygrad.schedule import Fused, Library, looking
from support.compiling import f32

Program = sys.modules["polygrad.runtime.realize"].Program


@pytest.fixture
def planned(host, monkeypatch):
    """A function that computes arrays, and returns a letter for each launch that looks at indices.

    That is g for a kernel and s for a scatter, and a capital if it is the first to look.
    """
    plans = []
    make = Program.__init__

    def noted(self, found, made, order):
        make(self, found, made, order)
        plans.append((self, made))

    monkeypatch.setattr(Program, "__init__", noted)

    def run(*arrays):
        plans.clear()
        pg.realize(*arrays)
        out = []
        for program, made in plans:
            for k, step in enumerate(made.steps):
                if isinstance(step, Fused) and step.status >= 0:
                    out.append("G" if k in program.looks else "g")
                elif isinstance(step, Library) and step.op.startswith("scatter"):
                    out.append("S" if k in program.looks else "s")
                else:
                    assert k not in program.looks
        return "".join(out)

    return run


def rows(values, n=64, dtype=np.int64):
    return pg.realize(pg.asarray((np.arange(n) * 7 % values).astype(dtype)))


@pytest.mark.parametrize("dtype", [np.int64, np.int32])
def test_the_gradient_of_a_lookup_reports_nothing_new(planned, dtype):
    table, at = pg.nn.Embedding(9, 16), rows(9, dtype=dtype)
    pg.realize(*table.parameters())
    loss = (table(at) ** 2).sum()
    loss.backward()
    looks = planned(loss, table.weight.grad)
    assert looks[0] == "G"
    assert looks[1:].islower()
    assert looks[-1] == "s"


def test_a_lookup_that_is_not_made_is_looked_at_by_its_gradient(planned):
    table, at = pg.nn.Parameter(f32(np.ones((9, 16)))), rows(9)
    table[at].sum().backward()
    assert planned(table.grad) == "S"


def test_labels_are_looked_at_once(planned):
    scores, labels = pg.nn.Parameter(f32(np.ones((64, 2000)))), rows(2000)
    loss = pg.nn.cross_entropy(scores, labels)
    loss.backward()
    first = planned(loss, scores.grad)
    assert first.count("G") == 1
    assert first[0] == "G"


def test_some_of_the_indices_are_not_all(planned):
    table, at = pg.nn.Parameter(f32(np.ones((9, 16)))), rows(9)
    few = (table[at][:3] ** 2).sum()
    few.backward()
    assert planned(few, table.grad)[-1] == "S"


@pytest.mark.parametrize(
    ("guard", "window", "ints", "whole"),
    [
        (-1, False, (4, 6, 0, 6, 1, 0, 1, 9, 0, 6), True),
        (-1, False, (4, 6, 0, 1, 4, 0, 1, 9, 0, 6), True),  # in another order
        (-1, False, (4, 5, 0, 6, 1, 0, 1, 9, 0, 6), False),  # fewer
        (-1, False, (4, 6, 0, 5, 1, 0, 1, 9, 0, 6), False),  # some twice
        (-1, False, (4, 6, 0, 0, 1, 0, 1, 9, 0, 6), False),  # one row
        (1, False, (4, 6, 0, 6, 1, 0, 1, 9, 0, 6), False),
        (-1, True, (4, 6, 0, 6, 1, 0, 3, 0, 1, 9, 0, 6), False),
    ],
)
def test_a_load_looks_at_all_if_nothing_keeps_it_from_it(guard, window, ints, whole):
    views = (
        View(0, "int64", (None, None), (0,) if window else ()), View(1, "float32", (0, 0), gathers=1),
        View(2, "float32", (None, 1)),
    )  # fmt: skip
    body = (
        Instr("load", "int64", (), 0), Instr("const", "bool", (), True),
        Instr("load", "float32", (0,), 1, guard),
    )  # fmt: skip
    kernel = Kernel(2, 0, ("int64", "float32", "float32", "int32"), views, (), body, (Store(2, 2),), 3)
    index = pg.zeros((4, 6), dtype="int64")._node
    assert looking._looks_at_all(kernel, decode(kernel, (*ints, 1)), 2, index) is whole


def test_other_indices_and_other_tables_are_looked_at(planned):
    table, small = pg.realize(f32(np.ones((9, 16))), f32(np.ones((8, 16))))
    at, other = rows(8), rows(8)
    added = pg.zeros((9, 16), dtype="float32").at[at].add(pg.exp(table[at]))
    assert planned(added) == "Gs"
    added = pg.zeros((8, 16), dtype="float32").at[at].add(pg.exp(table[at]))
    assert planned(added) == "GS"
    added = pg.zeros((9, 16), dtype="float32").at[other].add(pg.exp(table[at]))
    assert planned(added) == "GS"
    added = pg.zeros((8, 16), dtype="float32").at[at].add(pg.exp(small[at]))
    assert planned(added) == "Gs"


def test_negative_indices_are_none_of_a_label(planned):
    scores, at = pg.realize(f32(np.ones((64, 500))), rows(500))
    loss = pg.nn.cross_entropy(scores, at)
    added = pg.zeros((500, 1), dtype="float32").at[at].add(pg.exp(loss + scores[:, :1]))
    assert planned(added)[-1] == "s"  # what is a label may be an index


def test_an_index_that_is_computed_by_many_paths_is_planned_in_no_time(planned):
    """A search unrolled into a kernel uses each bound several times: walking every path would take for ever."""
    index = pg.asarray(np.arange(4)) * 1
    for _ in range(48):
        index = (index + index) // 2
    rows = f32(np.arange(8))[index]
    assert planned(rows) == "G"
    assert rows.numpy().tolist() == [0, 1, 2, 3]
