"""Collapsing of axes: kernels with fewer axes, and the same meaning.

Here: `polygrad.driver.render.collapse` on random kernels, through the oracle, and on views made by hand.
Not here: what is rendered of them (`test_render_gpu.py`).
"""

import pytest

from polygrad.driver import oracle
from polygrad.driver.ir import Instr, Kernel, Store, View
from polygrad.driver.render.collapse import collapse
from polygrad.driver.verify import verify, verify_launch
from polygrad_conformance.random_kernels import compare, random_case


@pytest.mark.parametrize("first", [0, 100, 200])
def test_a_collapsed_kernel_is_well_formed_and_means_the_same(first):
    joined = 0
    for seed in range(first, first + 100):
        case = random_case(seed)
        kernel, ints = collapse(case.kernel, case.ints)
        verify(kernel)
        verify_launch(kernel, [len(b) for b in case.buffers], ints, case.scalars)
        got = case.fresh()
        oracle.run(kernel, got, ints, case.scalars)
        compare(case, got)
        joined += case.kernel.rank - kernel.rank
    assert joined > 5


def test_axes_that_every_view_strides_through_alike_become_one():
    view = View(0, "float32", (None, None, None))
    kernel = Kernel(
        3, 0, ("float32",) * 2, (view, view._replace(buffer=1)), (), (Instr("load", "float32", (), 0),), (Store(0, 1),)
    )
    simple, ints = collapse(kernel, (2, 3, 4, 0, 12, 4, 1, 5, 12, 4, 1))
    assert (simple.parallel, [v.strides for v in simple.views], ints) == (1, [(1,), (1,)], (24, 0, 5))


def test_a_transposed_copy_runs_along_the_store():
    view = View(0, "float32", (None, None))
    kernel = Kernel(
        2, 0, ("float32",) * 2, (view, view._replace(buffer=1)), (), (Instr("load", "float32", (), 0),), (Store(0, 1),)
    )
    simple, ints = collapse(kernel, (4, 3, 0, 3, 1, 0, 1, 4))
    assert ([v.strides for v in simple.views], ints) == ([(1, None), (None, 1)], (3, 4, 0, 3, 0, 4))


def test_an_axis_whose_index_is_wanted_is_left_alone():
    kernel = Kernel(
        2, 0, ("int32",), (View(0, "int32", (None, 1)),), (), (Instr("iota", "int32", (), 1),), (Store(0, 0),)
    )
    simple, _ = collapse(kernel, (3, 4, 0, 4))
    assert simple.parallel == 2


def test_a_full_value_stays_full_when_its_axes_shrink():
    """A load along a reduced axis of extent 1 would become a ROW value, which must not be stored along reduced axes."""
    views = (View(0, "float32", (1, None)), View(1, "float32", (1, None)))
    body = (
        Instr("load", "float32", (), 0),
        Instr("reduce", "float32", (0,), "sum"),
        Instr("subtract", "float32", (0, 1)),
    )
    simple, ints = collapse(Kernel(1, 1, ("float32",) * 2, views, (), body, (Store(2, 1),)), (5, 1, 0, 7, 0, 7))
    verify(simple)
    verify_launch(simple, [5, 5], ints, ())
