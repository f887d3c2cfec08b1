"""Rendered expressions in every dialect: text against the oracle, through a C compiler, PoCL and nvcc where present.

Here: every instruction over ugly values, in every width of vectors. Not here: whole kernels (`test_render_gpu.py`).
"""

import ctypes
import itertools

import numpy as np
import pytest

from polygrad.driver import oracle
from polygrad.driver.ir import ARITHMETIC, DTYPES, ITEMSIZE, SCALAR_OPS, Instr, kind
from polygrad.driver.render.dialect import C99, CUDA, OPENCL
from polygrad.driver.render.expressions import Expressions
from support.compilers import build, compile_c, compile_cuda, needs

COUNT = 512


def samples(dtype, seed, count=COUNT):
    """Random values with the ugly ones in front."""
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return rng.integers(0, 2, count).astype(bool)
    if kind(dtype) == "int":
        info = np.iinfo(dtype)
        values = np.frombuffer(rng.bytes(count * ITEMSIZE[dtype]), dtype).copy()
        values[::3] = rng.integers(max(info.min, -9), 10, len(values[::3])).astype(dtype)
        ugly = np.array(
            [0, 1, info.min, info.max, 2, 3, info.max - 1, info.min + 1, 8 * ITEMSIZE[dtype] % 128, 7], dtype
        )
        spots = rng.permutation(count)[: 10 * 10]
        values[spots] = np.resize(rng.permutation(ugly), len(spots))
        return values
    values = rng.standard_normal(count) * 10.0 ** rng.integers(-3, 4, count)
    ugly = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, 3e38, 1e-38, 65504.0, 65520.0, 65536.0]
    ugly += [
        -128.5,
        127.5,
        255.9,
        -0.9,
        2147483520.0,
        -2147483648.0,
        1.0 + 2**-8,
        1 + 3 * 2**-8,
        1 + 2**-11,
        6e-8,
        2**-25,
    ]
    spots = rng.permutation(count)[: count // 3]
    values[spots] = np.resize(rng.permutation(np.array(ugly)), len(spots))
    if dtype == "float64":
        values[1::7] = 1.0 + 2.0**-11 + 2.0**-40
        values[2::7] = 1.0 + 2.0**-8 + 2.0**-40
    with np.errstate(all="ignore"):
        return values.astype(oracle.compute_dtype(dtype))


def instructions():
    """Every instruction whose value is a function of its operands, with the operands' dtypes."""
    for name, op in SCALAR_OPS.items():
        for dtype in ARITHMETIC:
            if kind(dtype) in op.kinds.split():
                yield Instr(name, "bool" if op.compares else dtype, tuple(range(op.arity))), (dtype,) * op.arity
    for source, target in itertools.product(DTYPES, DTYPES):
        yield Instr("cast", target, (0,)), (source,)
        if ITEMSIZE[source] == ITEMSIZE[target] and "bool" not in (source, target):
            yield Instr("bitcast", target, (0,)), (source,)
    for dtype in DTYPES:
        yield Instr("where", dtype, (0, 1, 2)), ("bool", dtype, dtype)


CASES = [*instructions()]


def ulps(got, want):
    """Return the distance in units of the last place of *want*."""
    want = want.astype(got.dtype)
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    with np.errstate(all="ignore"):
        distance = np.abs(got - want) / np.spacing(np.abs(want))
    return np.where(same, 0, np.where(np.isnan(distance), np.inf, distance))


def in_range(instr, operands):
    """Where a cast from float to int is defined."""
    a = operands[0]
    if instr.op != "cast" or a.dtype.kind not in "fV" or instr.dtype == "bool" or kind(instr.dtype) != "int":
        return np.ones(len(operands[0]), bool)
    whole, info = np.trunc(a.astype(np.float64)), np.iinfo(instr.dtype)
    return (whole >= info.min) & (whole < float(info.max) + (info.max > 1 << 53 or 1))


def agree(instr, operands, got):
    want = oracle.compute(instr, operands)
    mask = in_range(instr, operands)
    got, want = got[mask], want[mask]
    if got.dtype.kind != "f":
        if got.dtype == oracle.BFLOAT16:
            got, want = got.astype(np.float32), want.astype(np.float32)
        np.testing.assert_array_equal(got, want)
        return
    if instr.op in oracle.ROUNDED_ONCE:
        worst = ulps(got, want)
        bound = 4 if got.dtype == np.float32 else 6
        if instr.op in ("pow", "tan"):
            bound = 16
        spot = int(np.argmax(worst))
        inputs = [o[mask][spot] for o in operands]
        assert worst[spot] <= bound, f"{instr.op}{inputs} gave {got[spot]!r}, not {want[spot]!r}: {worst[spot]} ULP"
    else:
        np.testing.assert_array_equal(got, want)


def body(write, instr, dtypes, width):
    """Return the text of one case over vectors of a width: load, compute, store."""
    d = write.dialect
    lines, names = [], []
    for k, dtype in enumerate(dtypes):
        text = f"a{k}[i]" if width == 1 else f"vload{width}(i, a{k})"
        if dtype == "bool":
            text = f"({text} != 0)" if width == 1 else f"convert_int{width}({text} != (uchar)0)"
        lines.append(f"{d.register(dtype, width)} x{k} = {text};")
        names.append(f"x{k}")
    value = write.instruction(instr, names, dtypes, width)
    lines.append(f"{d.register(instr.dtype, width)} r = {value};")
    if width == 1:
        lines.append(f"out[i] = ({d.types['bool']})r;" if instr.dtype == "bool" else "out[i] = r;")
    else:
        lines.append(f"vstore{width}({f'convert_uchar{width}(r & 1)' if instr.dtype == 'bool' else 'r'}, i, out);")
    return "\n    ".join(lines)


def parameters(dialect, instr, dtypes):
    inputs = [dialect.parameter(dtype, f"a{k}", const=True) for k, dtype in enumerate(dtypes)]
    return [*inputs, dialect.parameter(instr.dtype, "out", const=False)]


@needs("gcc")
def test_c99_expressions_mean_what_the_oracle_says(tmp_path):
    write, kernels = Expressions(C99), []
    for n, (instr, dtypes) in enumerate(CASES):
        inside = f"for (int i = 0; i < {COUNT}; ++i) {{\n    {body(write, instr, dtypes, 1)}\n    }}"
        kernels.append(f"{C99.signature(f'k{n}', parameters(C99, instr, dtypes))} {{\n    {inside}\n}}\n")
    lib = compile_c(tmp_path / "cases.c", C99.prelude + write.helpers() + "".join(kernels))
    for n, (instr, dtypes) in enumerate(CASES):
        operands = [samples(dtype, n + k) for k, dtype in enumerate(dtypes)]
        got = np.zeros(COUNT, oracle.compute_dtype(instr.dtype))
        getattr(lib, f"k{n}")(*(ctypes.c_void_p(a.ctypes.data) for a in (*operands, got)))
        agree(instr, operands, got)


@pytest.mark.parametrize("width", [1, 4, 8])
def test_opencl_expressions_mean_what_the_oracle_says(queue, width):
    """All cases run in a few kernels over two arenas, for PoCL compiles each kernel at its first launch."""
    cases = [(n, *case) for n, case in enumerate(CASES)]
    if width == 8:  # vectors beyond 32 bytes crash PoCL 3.0's built-in functions on some processors
        cases = [c for c in cases if all(ITEMSIZE[d] <= 4 for d in (c[1].dtype, *c[2]))]
    failures = []
    for first in range(0, len(cases), 120):
        batch = cases[first : first + 120]
        operands = [[samples(dtype, n + k) for k, dtype in enumerate(dtypes)] for n, _, dtypes in batch]
        inputs = [a for case in operands for a in case]
        outputs = [np.zeros(COUNT, oracle.compute_dtype(instr.dtype)) for _, instr, _ in batch]
        run_arena(queue, arena_program(batch, width), COUNT // width, inputs, outputs)
        for (_, instr, dtypes), case, got in zip(batch, operands, outputs, strict=True):
            try:
                agree(instr, case, got)
            except AssertionError as error:
                failures.append(f"{instr} {dtypes}: {error}")
    assert not failures, "\n".join(failures)


def arena_program(batch, width):
    write, blocks, at, to = Expressions(OPENCL), [], 0, 0
    for _, instr, dtypes in batch:
        lines = []
        for k, dtype in enumerate(dtypes):
            lines.append(
                f"__global const {OPENCL.types[dtype]}* a{k} = (__global const {OPENCL.types[dtype]}*)(in + {at});"
            )
            at += 8 * COUNT
        lines.append(
            f"__global {OPENCL.types[instr.dtype]}* out = (__global {OPENCL.types[instr.dtype]}*)(arena + {to});"
        )
        to += 8 * COUNT
        inside = "\n    ".join(lines)
        blocks.append(f"{{\n    {inside}\n    {body(write, instr, dtypes, width)}\n    }}\n")
    kernels = []
    for n in range(0, len(blocks), 40):
        head = OPENCL.signature(f"k{n}", ["__global const uchar* in", "__global uchar* arena"])
        kernels.append(f"{head} {{\n    int i = get_global_id(0);\n    {''.join(blocks[n : n + 40])}}}\n")
    return OPENCL.prelude + write.helpers() + "".join(kernels), range(0, len(blocks), 40)


def run_arena(queue, program, size, inputs, outputs):
    import pyopencl as cl

    text, numbers = program
    built = build(queue, text)
    host = np.zeros(8 * COUNT * len(inputs), np.uint8)
    for n, a in enumerate(inputs):
        host[8 * COUNT * n :][: a.nbytes] = a.view(np.uint8)
    result = np.zeros(8 * COUNT * len(outputs), np.uint8)
    source = cl.Buffer(queue.context, cl.mem_flags.READ_ONLY | cl.mem_flags.COPY_HOST_PTR, hostbuf=host)
    target = cl.Buffer(queue.context, cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR, hostbuf=result)
    for n in numbers:
        cl.Kernel(built, f"k{n}")(queue, (size,), (1,), source, target)
    cl.enqueue_copy(queue, result, target)
    for n, a in enumerate(outputs):
        a.view(np.uint8)[...] = result[8 * COUNT * n :][: a.nbytes]


@needs("nvcc")
def test_cuda_expressions_compile(tmp_path):
    write, kernels = Expressions(CUDA), []
    for n, (instr, dtypes) in enumerate(CASES):
        text = f"int i = blockIdx.x * 64 + threadIdx.x;\n    {body(write, instr, dtypes, 1)}"
        kernels.append(f"{CUDA.signature(f'k{n}', parameters(CUDA, instr, dtypes), (64, 1))} {{\n    {text}\n}}\n")
    compile_cuda(tmp_path, CUDA.prelude + write.helpers() + "".join(kernels))
