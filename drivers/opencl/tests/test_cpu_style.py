"""Random kernels in the CPU style, every plan of them, against the oracle on an OpenCL device.

Here: the renderer `polygrad.driver.render.cpu_style`, many kernels a program since a build takes PoCL half a second.
Not here: the driver's own choices (`test_opencl_driver.py`).
"""

import dataclasses
import math
import os

import numpy as np
import pytest

import polygrad as pg
from polygrad.driver import Instr, Kernel, Store, View
from polygrad.driver.ir import SCALAR_OPS
from polygrad.driver.render import cpu_plan, cpu_style, cpu_vector
from polygrad.driver.render.collapse import collapse
from polygrad.driver.render.dialect import OPENCL, argument_value
from polygrad.driver.render.expressions import Expressions
from polygrad_conformance.random_kernels import compare, random_case

THOROUGH = bool(os.environ.get("POLYGRAD_TEST_THOROUGH"))
ITEMS, PARTS, BATCH = 5, 3, 10
MEMORY = ("buffer", "scratch", "local")


def plans(kernel, ints, most):
    """The chosen plan, then others that must give the same: each vector axis, no vectors, split walks, kept rows,
    results that go past the cache."""
    found = [cpu_style.plan(kernel, ints, ITEMS, OPENCL)]
    partial = any(view.partial for view in kernel.views)
    walks = cpu_plan.walks(kernel)
    for axis in range(kernel.parallel if partial else 0, kernel.rank if walks else kernel.parallel):
        for width in (cpu_plan.vector_width(kernel, axis), 1):
            plan = cpu_style.Plan(axis, width)
            found.append(plan)
            if cpu_plan.streamed_views(kernel, axis, width):
                found.append(plan._replace(streams=True))
            if walks and not partial:
                found.append(plan._replace(split=True))
            if axis >= kernel.parallel and cpu_plan.kept_values(kernel):
                found.append(plan._replace(kept=True))
    rest = sorted(set(found[1:]) - {found[0]})
    chosen = np.random.default_rng(len(rest)).permutation(len(rest))[: most - 1]
    return [found[0], *(rest[i] for i in chosen)]


def sizes_of(kernel, plan, ints):
    """The sizes of a launch; a split one in three parts, however short the walk, which leaves some parts empty."""
    sizes = cpu_style.sizes(kernel, plan, ints, ITEMS)
    if plan.split:
        slots = sizes.scratch // (sizes.parts * math.prod(ints[: kernel.parallel]))
        sizes = sizes._replace(parts=PARTS, scratch=PARTS * math.prod(ints[: kernel.parallel]) * slots)
    return sizes


def launch(session, program, stages, sizes, handles, ints, scalars):
    cl = session.cl
    scratch = session.scratch(sizes.scratch) if sizes.scratch else None
    for stage in stages:
        dtypes = [None if a.kind in MEMORY else np.dtype(a.dtype) for a in stage.arguments]
        extra = {"extra": [sizes.parts], "scratch": [scratch], "local": [cl.LocalMemory(n) for n in sizes.local]}
        last = [extra[a.kind][a.position] for a in stage.arguments if a.kind in extra]
        program.kernel(stage.name, dtypes)(session.queue, (ITEMS,), (1,), *handles, *ints, *scalars, *last)


@pytest.mark.parametrize("first", range(0, 360 if THOROUGH else 20, BATCH))
def test_random_kernels_agree_with_the_oracle_in_every_plan(session, first):
    cl = session.cl
    wide = bool(session.float64 and first // BATCH % 2)  # the others as where a device has no float64
    write = Expressions(dataclasses.replace(OPENCL, wide_sums=wide))
    texts, work = [], []
    for seed in range(first, first + BATCH):
        case = random_case(seed)
        kernel, ints = collapse(case.kernel, case.ints)
        for number, plan in enumerate(plans(kernel, ints, 4 if THOROUGH else 3)):
            text, stages = cpu_style.functions(kernel, plan, write, f"seed{seed}_{number}")
            texts.append(text)
            work.append((case, kernel, ints, plan, stages))
    program = session.store.program(OPENCL.prelude + write.helpers() + "".join(texts))
    for case, kernel, ints, plan, stages in work:
        fresh = case.fresh()
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
        handles = [cl.Buffer(session.context, flags, hostbuf=array.view(np.uint8)) for array in fresh]
        scalars = [argument_value(v, dtype) for v, dtype in zip(case.scalars, kernel.scalars, strict=True)]
        launch(session, program, stages, sizes_of(kernel, plan, ints), handles, ints, scalars)
        for handle, array in zip(handles, fresh, strict=True):
            cl.enqueue_copy(session.queue, array.view(np.uint8), handle)
        compare(case, fresh)
    program.saved |= {stage.name for *_, stages in work for stage in stages}
    session.store.save(program)


def test_a_kernel_without_vectors_is_plain_c():
    case = random_case(0)
    kernel, ints = collapse(case.kernel, case.ints)
    from polygrad.driver.render.dialect import C99

    plan = cpu_style.plan(kernel, ints, ITEMS, C99)
    assert plan.width == 1
    source = cpu_style.render(kernel, plan, C99)
    assert "vload" not in source.text
    assert "barrier" not in source.text
    assert "const long long item, const long long items" in source.text


@pytest.mark.parametrize("reduced", [0, 1])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(
    ("op", "first"), [("less_equal", True), ("less", False), ("equal", True), ("not_equal", False)]
)
def test_an_index_compared_with_what_stands_still_does_not_halve_vectors(session, op, first, axis, reduced):
    """The int64 index along *axis* against int64 bounds, some beyond the axis and beyond 32 bits."""
    shape = (26, 45)
    bounds = np.resize(np.int64([0, 8, -1, 23, 2**40, -(2**63), 2**63 - 1]), shape[1 - axis])
    x = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    views = (View(0, "float32", (None, 1)), View(1, "int64", (axis, 1 - axis)),
             View(2, "float32", (1, 0) if reduced else (None, 1)))  # fmt: skip
    body = [Instr("iota", "int64", (), axis), Instr("load", "int64", (), 1),
            Instr(op, "bool", (0, 1) if first else (1, 0)), Instr("load", "float32", (), 0),
            Instr("const", "float32", (), -2.0), Instr("where", "float32", (2, 3, 4)),
            *[Instr("reduce", "float32", (5,), "max")] * reduced]  # fmt: skip
    dtypes = ("float32", "int64", "float32")
    kernel = Kernel(2 - reduced, reduced, dtypes, views, (), tuple(body), (Store(len(body) - 1, 2),))
    index, bound = np.indices(shape)[axis], np.expand_dims(bounds, axis)
    want = np.where(getattr(np, op)(*((index, bound) if first else (bound, index))), x, np.float32(-2))
    want = want.max(1) if reduced else want
    ints = tuple({"n0": shape[0], "n1": shape[1]}.get(name, 0 if name.endswith("o") else shape[1])
                 for name in kernel.int_names)  # fmt: skip
    assert cpu_plan.vector_width(kernel, axis) == 8
    assert any(plan.axis == axis and plan.width == 8 for plan in plans(kernel, ints, 9))
    cl, write = session.cl, Expressions(OPENCL)
    for number, plan in enumerate(plans(kernel, ints, 9)):
        text, stages = cpu_style.functions(kernel, plan, write, f"compared{number}")
        program = session.store.program(OPENCL.prelude + write.helpers() + text)
        got = np.zeros_like(want)
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
        handles = [cl.Buffer(session.context, flags, hostbuf=array) for array in (x, bounds, got)]
        launch(session, program, stages, sizes_of(kernel, plan, ints), handles, ints, [])
        cl.enqueue_copy(session.queue, got, handles[2])
        np.testing.assert_array_equal(got, want, err_msg=str(plan))


def test_an_index_that_is_a_result_too_is_computed_as_it_is():
    views = (View(0, "int64", (0,)), View(1, "bool", (1,)), View(2, "int64", (1,)))
    body = (Instr("iota", "int64", (), 0), Instr("load", "int64", (), 0), Instr("less", "bool", (0, 1)))
    kernel = Kernel(1, 0, ("int64", "bool", "int64"), views, (), body, (Store(2, 1),))
    assert cpu_vector.compared_indices(kernel, 0) == {0}
    assert not cpu_vector.compared_indices(kernel._replace(stores=(Store(2, 1), Store(0, 2))), 0)


@pytest.mark.usefixtures("session")
@pytest.mark.parametrize("op", sorted(cpu_vector.AS_VECTORS))
def test_an_element_behind_the_last_vector_is_what_it_is_within_one(op):
    rng = np.random.default_rng(1)
    operands = [rng.uniform(0.05, 0.95, 64).astype(np.float32) for _ in range(SCALAR_OPS[op].arity)]
    with pg.device("opencl:0"):
        whole, cut = (getattr(pg, op)(*[pg.asarray(x[:n]) for x in operands]).numpy() for n in (64, 63))
    np.testing.assert_array_equal(cut, whole[:63])


def test_results_that_fit_in_no_cache_go_past_it():
    views = (View(0, "float32", (1,)), View(1, "float32", (1,)), View(2, "float32", (1,)))
    body = (Instr("load", "float32", (), 0), Instr("load", "float32", (), 1), Instr("add", "float32", (0, 1)))
    kernel = Kernel(1, 0, ("float32",) * 3, views, (), body, (Store(2, 2),))
    over = kernel._replace(views=(*views[:2], views[0]))  # of an operand in the cache
    dialect = dataclasses.replace(OPENCL, streamed=4000)
    for count, wanted in ((999, False), (1000, True)):
        assert cpu_style.plan(kernel, (count, 0, 0, 0), ITEMS, dialect).streams is wanted
        assert not cpu_style.plan(over, (count, 0, 0, 0), ITEMS, dialect).streams
        assert not cpu_style.plan(kernel, (count, 0, 0, 0), ITEMS, OPENCL).streams
    text = cpu_style.render(kernel, cpu_style.plan(kernel, (1000, 0, 0, 0), ITEMS, dialect), dialect).text
    assert "__builtin_nontemporal_store" in text


def test_what_is_loaded_once_a_row_does_not_choose_the_vector_axis():
    """The logits of a cross-entropy are walked along their rows, however often a row's label is looked at."""
    views = (
        View(0, "float32", (None, 1)),
        View(1, "int64", (1, 0)),
        View(1, "int64", (1, 0)),
        View(2, "int64", (1, 0)),
    )
    body = (Instr("load", "float32", (), 0), Instr("reduce", "float32", (0,), "max"), Instr("load", "int64", (), 1),
            Instr("load", "int64", (), 2), Instr("add", "int64", (2, 3)))  # fmt: skip
    kernel = Kernel(1, 1, ("float32", "int64", "int64"), views, (), body, (Store(4, 3),))
    assert cpu_plan.vector_axis(kernel, (2048, 4096)) == 1
