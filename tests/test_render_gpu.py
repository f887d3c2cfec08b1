"""Kernels in the GPU style: every strategy against the oracle, through PoCL, and nvcc where it is present.

Here: random kernels and reductions made by hand in every form that is possible, and which form is chosen.
Not here: expressions (`test_render_expressions.py`); the CPU style has a test of its own.
"""

import math
from dataclasses import replace

import numpy as np
import pytest

from polygrad.driver import oracle
from polygrad.driver.ir import DTYPES, ITEMSIZE, Instr, Kernel, Store, View
from polygrad.driver.render.collapse import collapse
from polygrad.driver.render.dialect import CUDA, OPENCL, argument_value
from polygrad.driver.render.expressions import Expressions
from polygrad.driver.render.gpu_schedule import passes
from polygrad.driver.render.gpu_style import (
    GpuLimits,
    Source,
    choose_gpu,
    join_parts,
    possible,
    render_gpu,
    render_parts,
)
from polygrad.driver.verify import verify, verify_launch
from polygrad_conformance.random_kernels import Mismatch, compare, random_case
from support.compilers import build, compile_cuda, needs


def launch(queue, program, case, source, ints):
    """Run a rendered kernel on a case's buffers and return what they hold afterwards."""
    import pyopencl as cl

    host, flags = case.fresh(), cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
    memory = [cl.Buffer(queue.context, flags, hostbuf=np.resize(b.view(np.uint8), max(b.nbytes, 1))) for b in host]
    geometry = source.geometry(ints)
    scratch = cl.Buffer(queue.context, cl.mem_flags.READ_WRITE, max(geometry.scratch, 8))
    for stage, launched in zip(source.stages, geometry.launches, strict=True):
        arguments = []
        for a in stage.arguments:
            if a.kind in ("buffer", "scratch"):
                arguments.append(memory[a.position] if a.kind == "buffer" else scratch)
                continue
            value = {"int": ints, "extra": launched.extra, "scalar": case.scalars}[a.kind][a.position]
            value = argument_value(value, case.kernel.scalars[a.position]) if a.kind == "scalar" else value
            arguments.append(np.dtype(a.dtype).type(value))
        size = (launched.groups * stage.block[0], stage.block[1])
        cl.Kernel(program, stage.name)(queue, size, stage.block, *arguments)
    for array, buffer in zip(host, memory, strict=True):
        if array.nbytes:
            cl.enqueue_copy(queue, array.view(np.uint8), buffer)
    return host


def run_forms(queue, jobs):
    """Compile (case, kernel, ints, choice) jobs as one program and compare each with the case's answer."""
    write = Expressions(OPENCL)
    parts = [render_parts(kernel, write, choice, f"k{n}") for n, (_, kernel, _, choice) in enumerate(jobs)]
    program = build(queue, join_parts(OPENCL, parts))
    for n, (case, kernel, ints, choice) in enumerate(jobs):
        got = launch(queue, program, case, Source(f"k{n}", "", parts[n].stages, kernel, choice), ints)
        try:
            compare(case, got)
        except Mismatch as error:
            raise Mismatch(f"{choice}: {error}") from None


SMALL = GpuLimits(threads=64)  # small groups, so that small cases need several of them


@pytest.mark.parametrize("first", range(0, 36, 12))
def test_random_kernels_are_right_in_the_chosen_form_and_in_another(queue, first):
    jobs = []
    for seed in range(first, first + 12):
        case = random_case(seed)
        kernel, ints = collapse(case.kernel, case.ints)
        chosen, *others = possible(kernel, ints, SMALL)
        forms = [chosen, others[seed % len(others)]] if others else [chosen]
        jobs += [(case, kernel, ints, replace(form, wide=form.wide or bool(n))) for n, form in enumerate(forms)]
    run_forms(queue, jobs)


def test_every_dtype_is_loaded_cast_and_stored_as_vectors(queue):
    jobs = []
    for n, source in enumerate(DTYPES):
        target, count = DTYPES[(n + 5) % len(DTYPES)], 4096
        views = (View(0, source, (1,)), View(1, target, (1,)))
        body = (Instr("load", source, (), 0), Instr("cast", target, (0,)))
        kernel = Kernel(1, 0, (source, target), views, (), body, (Store(1, 1),))
        data = np.random.default_rng(n).integers(0, 2 if "bool" in (source, target) else 100, count)
        buffers = [data.astype(oracle.compute_dtype(source)), np.zeros(count + 16, oracle.compute_dtype(target))]
        case = Given(kernel, (count, 0, 16), buffers, tolerance=0)
        forms = [form for form in possible(kernel, case.ints) if form.variants[0].width > 1]
        assert forms
        assert forms[0].variants[0].width * max(ITEMSIZE[source], ITEMSIZE[target]) == 16
        jobs += [(case, kernel, case.ints, form) for form in forms]
    run_forms(queue, jobs)


class Given:
    """A case made by hand: the oracle's answer, and a tolerance that grows with the reduced extent."""

    def __init__(self, kernel, ints, buffers, scalars=(), tolerance=2e-6):
        verify(kernel)
        verify_launch(kernel, [len(b) for b in buffers], ints, scalars)
        self.kernel, self.ints, self.buffers, self.scalars, self.seed = kernel, ints, buffers, scalars, -1
        self.expected = self.fresh()
        oracle.run(kernel, self.expected, ints, scalars)
        self.allowed = [
            np.abs(np.nan_to_num(e.astype(np.float64))) * tolerance + tolerance * (e.dtype.kind == "f")
            for e in self.expected
        ]

    def fresh(self):
        return [b.copy() for b in self.buffers]


def normals(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32).ravel()


def softmax(rows, n, *, masked, stored="float32"):
    """Softmax along the last axis, of *stored* values; a causal mask guards the load."""
    f, body = "float32", []
    if masked:
        body += [Instr("iota", "int32", (), 1), Instr("iota", "int32", (), 0), Instr("less_equal", "bool", (0, 1))]
        body += [Instr("load", f, (), 0, 2), Instr("const", f, (), -math.inf), Instr("where", f, (2, 3, 4))]
    else:
        body += [Instr("load", stored, (), 0)] + [Instr("cast", f, (0,))] * (stored != f)
    x = len(body) - 1
    body += [Instr("reduce", f, (x,), "max"), Instr("subtract", f, (x, x + 1)), Instr("exp", f, (x + 2,))]
    body += [Instr("reduce", f, (x + 3,), "sum"), Instr("divide", f, (x + 3, x + 4))]
    views = (View(0, stored, (None, 1)), View(1, f, (None, 1)))
    kernel = Kernel(1, 1, (stored, f), views, (), tuple(body), (Store(x + 5, 1),))
    data = normals(rows, n) if stored == f else normals(rows, n).astype(oracle.compute_dtype(stored))
    if masked:
        data.reshape(rows, n)[np.arange(n) > np.arange(rows)[:, None]] = np.nan
    return Given(kernel, (rows, n, 0, n, 0, n), [data, np.full(rows * n, 7, f)])


def softmax_of_ties(rows, n):
    """Softmax of rows that repeat their greatest value, with the number of times beside it, as max's gradient asks."""
    f = "float32"
    table = [
        ("load", f, (), 0), ("reduce", f, (0,), "max"), ("subtract", f, (0, 1), None), ("exp", f, (2,), None),
        ("reduce", f, (3,), "sum"), ("equal", "bool", (0, 1), None), ("cast", f, (5,), None),
        ("reduce", f, (6,), "sum"), ("divide", f, (3, 4), None), ("divide", f, (6, 7), None), ("add", f, (8, 9), None),
    ]  # fmt: skip
    body = tuple(Instr(op, dtype, args, attr) for op, dtype, args, attr in table)
    views = (View(0, f, (None, 1)), View(1, f, (None, 1)), View(2, f, (1, 0)))
    kernel = Kernel(1, 1, (f,) * 3, views, (), body, (Store(10, 1), Store(7, 2)))
    data = np.round(2 * normals(rows, n)).reshape(rows, n)
    data[0], data[1, ::3], data[2, n // 2], data[3, n // 2] = -np.inf, -np.inf, np.inf, np.nan
    buffers = [data.ravel(), np.full(rows * n, 7, f), np.full(rows, 7, f)]
    return Given(kernel, (rows, n, 0, n, 0, n, 0), buffers)


def rms_norm(rows, n):
    """RMSNorm divided by its root: gamma, and what is added, are loaded by the second pass alone."""
    f = "float32"
    table = [
        ("load", (), 0), ("multiply", (0, 0), None), ("reduce", (1,), "sum"), ("const", (), float(n)),
        ("divide", (2, 3), None), ("sqrt", (4,), None), ("divide", (0, 5), None), ("load", (), 1),
        ("multiply", (6, 7), None), ("load", (), 2), ("add", (8, 9), None),
    ]  # fmt: skip
    views = (View(0, f, (None, 1)), View(1, f, (0, 1)), View(2, f, (None, 1)), View(3, f, (None, 1)))
    body = tuple(Instr(op, f, args, attr) for op, args, attr in table)
    kernel = Kernel(1, 1, (f,) * 4, views, (), body, (Store(10, 3),))
    data = normals(rows, n)
    data[:2], data[n : n + 3] = (0, 1e-38), (np.inf, np.nan, -0.0)  # beyond what a shared division does quickly
    buffers = [data, normals(n, seed=1), np.zeros(rows * n, f), np.full(rows * n, 7, f)]
    return Given(kernel, (rows, n, 0, n, 0, 0, n, 0, n), buffers, tolerance=2e-6)


def rms_gradient(rows, n, parts):
    """Dx of RMSNorm, and dgamma in parts: two sibling reductions, a row's values kept, sums over rows beside them."""
    f = "float32"
    table = [
        ("load", (), 0), ("load", (), 1), ("load", (), 2), ("multiply", (0, 0), None), ("reduce", (3,), "sum"),
        ("multiply", (1, 2), None), ("multiply", (5, 0), None), ("reduce", (6,), "sum"), ("const", (), float(n)),
        ("divide", (4, 8), None), ("rsqrt", (9,), None), ("divide", (7, 8), None), ("multiply", (10, 11), None),
        ("multiply", (0, 12), None), ("subtract", (5, 13), None), ("multiply", (14, 10), None),
        ("multiply", (2, 0), None), ("multiply", (16, 10), None),
    ]  # fmt: skip
    views = tuple(View(k, f, (0 if k in (1, 4) else None, 1), partial=k == 4) for k in range(5))
    body = tuple(Instr(op, f, args, attr) for op, args, attr in table)
    kernel = Kernel(1, 1, (f,) * 5, views, (), body, (Store(15, 3), Store(17, 4)))
    ints = (rows, n, 0, n, 0, 0, n, 0, n, 0, parts, n)
    buffers = [
        normals(rows, n),
        normals(n, seed=1),
        normals(rows, n, seed=2),
        np.zeros(rows * n, f),
        np.zeros(parts * n, f),
    ]
    return Given(kernel, ints, buffers, tolerance=2e-5)


def column_sum(rows, n):
    views = (View(0, "float32", (1, None)), View(1, "float32", (1, 0)))
    body = (Instr("load", "float32", (), 0), Instr("reduce", "float32", (0,), "sum"))
    kernel = Kernel(1, 1, ("float32",) * 2, views, (), body, (Store(1, 1),))
    return Given(kernel, (n, rows, 0, n, 0), [normals(rows, n), np.zeros(n, np.float32)], tolerance=1e-4)


SHAPES = {
    "a masked softmax, one warp a row": (lambda: softmax(48, 256, masked=True), 1024),
    "a softmax of long rows, in registers": (lambda: softmax(3, 4096, masked=False), 1024),
    "a softmax of rows of 16 bits, two values a register": (
        lambda: softmax(3, 4096, masked=False, stored="bfloat16"),
        1024,
    ),
    "a softmax of odd rows of 16 bits": (lambda: softmax(5, 1110, masked=False, stored="float16"), 256),
    "a softmax of odd rows": (lambda: softmax(5, 1111, masked=False), 1024),
    "a softmax of rows too long to keep": (lambda: softmax(2, 9000, masked=False), 64),
    "one long softmax, split": (lambda: softmax(1, 40000, masked=False), 256),
    "a softmax of ties": (lambda: softmax_of_ties(6, 300), 256),
    "a softmax of ties in rows too long to keep": (lambda: softmax_of_ties(5, 1500), 64),
    "an RMSNorm": (lambda: rms_norm(37, 512), 256),
    "an RMSNorm of odd rows": (lambda: rms_norm(9, 333), 256),
    "an RMSNorm of rows of one vector": (lambda: rms_norm(9, 4), 256),
    "an RMSNorm gradient": (lambda: rms_gradient(37, 512, 5), 256),
    "an RMSNorm gradient of odd rows": (lambda: rms_gradient(9, 333, 2), 256),
    "an RMSNorm gradient of rows too long to keep": (lambda: rms_gradient(4, 6000, 2), 64),
    "a column sum": (lambda: column_sum(500, 64), 256),
    "a column sum of few odd columns": (lambda: column_sum(3000, 3), 256),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_reduction_is_right_in_every_form(queue, shape):
    make, threads = SHAPES[shape]
    case = make()
    kernel, ints = collapse(case.kernel, case.ints)
    run_forms(queue, [(case, kernel, ints, form) for form in possible(kernel, ints, GpuLimits(threads=threads))])


def test_the_shapes_choose_the_strategies_that_they_are_named_for():
    def chosen(case, threads=1024, multiprocessors=64):
        kernel, ints = collapse(case.kernel, case.ints)
        return choose_gpu(kernel, ints, GpuLimits(multiprocessors, threads)).variants[0]

    assert chosen(softmax(48, 256, masked=True)).lanes == 32
    long = chosen(softmax(300, 4096, masked=False))
    assert long.lanes >= 128 and long.chunks * long.width * long.lanes == 4096 and long.exact  # noqa: PT018
    assert chosen(softmax(2, 9000, masked=False), 64).chunks == 0
    assert chosen(softmax(1, 40000, masked=False)).splits
    assert chosen(column_sum(500, 64)).strategy == "columns"
    kept = chosen(softmax_of_ties(4, 32000), multiprocessors=2)  # its row, but not the exponentials
    assert (kept.lanes, kept.chunks) == (512, 16)
    ties = softmax_of_ties(4, 32000)
    ties.kernel = ties.kernel._replace(stores=ties.kernel.stores[1:])
    assert chosen(ties, multiprocessors=2).chunks == 0, "a loop reads a row once for its maximum and the number of ties"


def test_what_a_later_pass_loads_is_under_way_with_the_first_if_there_is_room():
    kernel = rms_norm(9, 512).kernel

    def early(registers):
        return [work.early for work in passes(kernel, kernel.stores, 16, registers)]

    assert early(64) == [(0, 7, 9), ()]
    assert early(32) == [(0, 7), ()]
    assert early(16) == [(0,), ()]


def test_what_a_pass_computes_takes_the_place_of_what_it_has_loaded():
    f = "float32"
    table = [("load", (), 0), ("load", (), 1), ("multiply", (0, 1), None), ("exp", (2,), None), ("reduce", (3,), "sum")]
    body = tuple(Instr(op, f, args, attr) for op, args, attr in [*table, ("divide", (3, 4), None)])
    views = tuple(View(k, f, (None, 1)) for k in range(3))
    kernel = Kernel(1, 1, (f,) * 3, views, (), body, (Store(5, 2),))
    first, last = passes(kernel, kernel.stores, 16, 32)
    assert (first.early, first.held, first.keep, last.early) == ((0, 1), (), (3,), ())


@pytest.mark.parametrize("make", [lambda: softmax(5, 700, masked=False), lambda: softmax_of_ties(5, 700)])
def test_a_looping_softmax_reads_its_row_for_maximum_and_sum_once(queue, make):
    """Rows without a largest finite number keep the meaning of two passes: NaN where the maximum is not finite."""
    case = make()
    rows = case.buffers[0].reshape(5, 700)
    rows[0], rows[1, ::3], rows[2, 650], rows[3, 650] = -np.inf, -np.inf, np.inf, np.nan
    case = Given(case.kernel, case.ints, case.buffers)
    kernel, ints = collapse(case.kernel, case.ints)
    forms = [form for form in possible(kernel, ints, SMALL) if not form.variants[0].chunks]
    assert {form.variants[0].splits for form in forms} == {False, True}
    for form in forms:
        loops = render_gpu(kernel, OPENCL, form).text.count("for (int r = ")
        assert loops == 2, "one for maximum and sum, one for the quotient"
    run_forms(queue, [(case, kernel, ints, form) for form in forms])


@needs("nvcc")
def test_random_kernels_compile_as_cuda(tmp_path):
    write, parts = Expressions(CUDA), []
    for seed in range(40):
        case = random_case(seed)
        kernel, ints = collapse(case.kernel, case.ints)
        parts += [
            render_parts(kernel, write, form, f"k{seed}_{n}") for n, form in enumerate([*possible(kernel, ints)][:2])
        ]
    compile_cuda(tmp_path, join_parts(CUDA, parts))
