"""What a device lacks is made of what it has: accuracy of every decomposition, and a device that has nothing optional.

Here: errors in ULP of kernels that the oracle evaluates, against one format wider; limits of a kernel; whole programs
on a device that declares the mandatory ops alone. Not here: the accuracy of drivers, which the conformance suite
measures.
"""

import dataclasses
import math

import numpy as np
import pytest

import polygrad as pg
from polygrad.driver import binding, oracle
from polygrad.driver.base import DriverBase
from polygrad.driver.ir import (
    DTYPES,
    ITEMSIZE,
    MANDATORY,
    MANDATORY_REDUCTIONS,
    SCALAR_OPS,
    Instr,
    Kernel,
    Store,
    View,
    kind,
)
from polygrad.driver.loader import REGISTRY
from polygrad.driver.types import LEAST_INSTRUCTIONS, DeviceInfo, DriverInfo, Limits
from polygrad.driver.verify import verify, verify_launch
from polygrad.errors import UnsupportedOp
from polygrad.schedule.body import Body, instructions
from polygrad.schedule.decompose import DECOMPOSITIONS
from polygrad.testing import assert_close

OPTIONAL = [name for name, op in SCALAR_OPS.items() if not op.mandatory]
FLOATS = ("float32", "float64")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
POINTS = 2**14

# ULP that a decomposition may be off, within what the conformance suite allows a driver. What is absent is exact.
CEILING = {
    "rsqrt": 2, "exp": 1.5, "exp2": 1.5, "expm1": 2.5, "log": 1.5, "log2": 2, "log10": 2, "log1p": 2, "sin": 2,
    "cos": 2, "tan": 3.5, "asin": 2.5, "acos": 1.5, "atan": 2, "atan2": 2.5, "sinh": 2, "cosh": 2, "tanh": 3,
    "asinh": 2.5, "acosh": 2.5, "atanh": 3, "pow": 2, "erf": 2,
}  # fmt: skip
EDGES = (
    0.0, 0.1, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 6.0, 10.0, 88.0, 88.72, 89.0, 89.4, 100.0, 104.0, 127.0, 128.0,
    149.0, 150.0, 709.5, 710.0, 710.4, 711.0, 745.0, 746.0, 1000.0, 1023.0, 1024.0, 1074.0, 1075.0, 1e10, 1e30,
    math.pi / 4, math.pi / 2, math.pi, 2 * math.pi, 11 * math.pi, math.log(2) / 2, math.sqrt(2), math.sqrt(0.5),
    math.sqrt(2) - 1, math.sqrt(2) + 1, math.inf, math.nan,
    2.0**22, 2.0**23 - 0.5, 2.0**23, 2.0**24, 2.0**52 - 0.5, 2.0**52, 2.0**53,
    16367173 * 2.0**72, 6381956970095103 * 2.0**797,  # nearest to a multiple of pi / 2 of all float32, float64
)  # fmt: skip


def loads(body, op, dtype):
    return [body.add(Instr("load", dtype, (), k)) for k in range(SCALAR_OPS[op].arity)]


def kernel_of(op, dtype):
    """A kernel of the mandatory ops that computes *op* of one or two buffers."""
    body = Body(MANDATORY, MANDATORY_REDUCTIONS)
    value = body(op, *loads(body, op, dtype))
    arity = SCALAR_OPS[op].arity
    views = tuple(View(k, dtype, (1,)) for k in range(arity + 1))
    return Kernel(1, 0, (dtype,) * (arity + 1), views, (), tuple(body.instrs), (Store(value, arity),))


def decomposed(op, *operands):
    out = np.empty_like(operands[0])
    kernel = kernel_of(op, out.dtype.name)
    oracle.run(kernel, [*operands, out], (len(out), *[0] * len(kernel.views)), ())
    return out


def edges(dtype):
    facts = np.finfo(dtype)
    with np.errstate(all="ignore"):
        own = np.array((*EDGES, facts.smallest_subnormal, facts.smallest_normal, facts.max), dtype)
        near = [own, np.nextafter(own, np.array(np.inf, dtype)), np.nextafter(own, np.array(-np.inf, dtype))]
    both = np.concatenate([*near, *(-x for x in near)])
    return np.unique(both.view(f"u{both.itemsize}")).view(dtype)


def draw(rng, dtype, count):
    """Half of it log-uniform over all magnitudes, subnormal too, and half of it near 1."""
    facts = np.finfo(dtype)
    exponents = rng.uniform(math.log2(facts.smallest_subnormal), facts.maxexp, count)
    exponents[::2] = rng.uniform(-8, 8, len(exponents[::2]))
    with np.errstate(all="ignore"):
        size = np.ldexp(np.exp2(exponents % 1), np.floor(exponents).astype(int)).astype(dtype)
    return size * rng.choice(np.array([-1, 1], dtype), count)


def operands_of(op, dtype, rng):
    special, drawn = edges(dtype), draw(rng, dtype, POINTS)
    if SCALAR_OPS[op].arity == 1:
        return [np.concatenate([drawn, special])]
    pairs = [np.repeat(special, len(special)), np.tile(special, len(special))]
    xs = [[drawn, pairs[0]], [draw(rng, dtype, POINTS), pairs[1]]]
    if op == "pow":  # results over the whole range, where the error of the logarithm counts most
        base = np.exp2(rng.uniform(-20, 20, POINTS)).astype(dtype)
        facts = np.finfo(dtype)
        power = rng.uniform(math.log2(facts.smallest_subnormal) - 1, facts.maxexp, POINTS)
        xs[0].append(base)
        xs[1].append((power / np.log2(base)).astype(dtype))
    return [np.concatenate(x) for x in xs]


def reference(op, operands):
    """The value one format wider. NumPy has no wider erf: math.erf is within an ulp."""
    dtype = operands[0].dtype
    with np.errstate(all="ignore"):
        if op == "nextafter":
            return np.nextafter(*operands)
        return np.asarray(oracle.FUNCTIONS[op](*[x.astype(oracle.WIDER[dtype.name]) for x in operands]))


def ulps(got, want):
    """Return errors in ulp of the exact result, which is *want*; infinite where one is NaN, or an infinity is wrong."""
    facts = np.finfo(got.dtype)
    with np.errstate(all="ignore"):
        rounded = want.astype(got.dtype)
        size = np.abs(want).astype(np.longdouble)
        exponent = np.frexp(np.where(np.isfinite(size), size, 1))[1] - 1
        unit = np.ldexp(np.longdouble(1), np.maximum(exponent, facts.minexp) - facts.nmant)
        error = np.abs(got.astype(np.longdouble) - want.astype(np.longdouble)) / unit
        error = np.where(np.isfinite(error), error, np.inf)
        same = (got == rounded) | (np.isnan(got) & np.isnan(want))
        # An infinity stands for the power of two after the greatest number, and the other way round.
        over = np.isinf(got) != np.isinf(rounded)
        least = facts.max * (1 - 4 * facts.eps)
        close = (np.abs(got) >= least) & (size >= least)
        error = np.where(over & close & (np.signbit(got) == np.signbit(rounded)), 1.0, error)
        return np.where(same, np.where(np.isfinite(error), error, 0), error)


def test_every_optional_op_has_a_decomposition_and_no_other():
    assert sorted(DECOMPOSITIONS) == sorted(OPTIONAL)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", OPTIONAL)
def test_a_decomposition_is_made_of_mandatory_ops_in_the_operands_own_width(op, dtype):
    kernel = kernel_of(op, dtype)
    verify(kernel)
    assert {i.op for i in kernel.body if i.op in SCALAR_OPS} <= MANDATORY
    assert {ITEMSIZE[i.dtype] for i in kernel.body} <= {1, ITEMSIZE[dtype]}
    assert len(kernel.body) <= LEAST_INSTRUCTIONS
    assert instructions(op, dtype, MANDATORY) == len(kernel.body) - SCALAR_OPS[op].arity
    assert instructions(op, dtype, frozenset(SCALAR_OPS)) == 1


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", OPTIONAL)
def test_a_decomposition_is_accurate(op, dtype, rng):
    if dtype == "float64" and np.finfo(np.longdouble).nmant <= np.finfo(np.float64).nmant:
        pytest.skip("not run: needs a long double wider than float64")
    operands = operands_of(op, dtype, rng)
    got, want = decomposed(op, *operands), reference(op, operands)
    error = ulps(got, want)
    worst = int(np.argmax(error))
    allowed = CEILING.get(op, 0)
    where = f"{op}({', '.join(repr(x[worst]) for x in operands)}) is {got[worst]!r}, not {want[worst]!r}"
    assert error[worst] <= allowed, f"{where}: {float(error[worst]):.3g} ULP, more than {allowed}"
    if op != "minimum":  # the sign of equal zeros is free
        flipped = (got == 0) & (want == 0) & (np.signbit(got) != np.signbit(want))
        assert not flipped.any(), f"the zero of {op} has the wrong sign at {[x[flipped][0] for x in operands]}"


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers(dtype, rng):
    facts = np.iinfo(dtype)
    a = np.concatenate([rng.integers(facts.min, facts.max, 200, dtype), np.array([facts.min, facts.max, 0, 1], dtype)])
    b = rng.permutation(a)
    assert np.array_equal(decomposed("minimum", a, b), np.minimum(a, b))
    assert np.array_equal(decomposed("absolute", a), np.abs(a))


def test_bools():
    a, b = np.array([0, 0, 1, 1], bool), np.array([0, 1, 0, 1], bool)
    assert np.array_equal(decomposed("minimum", a, b), a & b)


def test_whole_powers_of_whole_numbers_are_exact():
    base, power = (v.ravel() for v in np.meshgrid(np.arange(-9, 10), np.arange(0, 8)))
    for dtype in FLOATS:
        got = decomposed("pow", base.astype(dtype), power.astype(dtype))
        assert np.array_equal(got, (base.astype(float) ** power).astype(dtype))


def test_an_op_that_the_device_has_is_not_decomposed():
    body = Body(MANDATORY | {"exp"})
    body("exp", *loads(body, "exp", "float32"))
    assert [i.op for i in body.instrs] == ["load", "exp"]


def test_the_least_of_a_row_is_made_of_the_greatest():
    for dtype in ("float32", "int32", "uint8", "bool"):
        turn = "negative" if dtype == "float32" else "bitwise_invert"
        body = Body(MANDATORY, MANDATORY_REDUCTIONS)
        body.reduce("min", body.add(Instr("load", dtype, (), 0)))
        assert [(i.op, i.attr) for i in body.instrs] == [("load", 0), (turn, None), ("reduce", "max"), (turn, None)]


def test_a_product_within_a_kernel_is_refused():
    body = Body(MANDATORY, MANDATORY_REDUCTIONS)
    with pytest.raises(UnsupportedOp, match="does not declare the reduction 'prod', and sums and maxima"):
        body.reduce("prod", body.add(Instr("load", "float32", (), 0)))


# ---- a device that has nothing optional ----------------------------------------------------------------


class Bare(DriverBase):
    """Host memory, kernels by the oracle, and not one optional op, reduction or library op."""

    info = DriverInfo("bare", summary="what is mandatory, and nothing else")
    limits = Limits()
    lengths: list[int] = []  # of the kernels prepared
    launches = 0

    def open(self, ordinal, options):
        return DeviceInfo("bare", ordinal, "the oracle", frozenset(DTYPES), limits=self.limits)

    def allocate(self, nbytes):
        return bytearray(nbytes)

    def free(self, handle):
        pass

    def op_write(self, outs, ins, attrs):
        start = outs[0].offset * ITEMSIZE[outs[0].dtype]
        outs[0].handle[start : start + attrs["data"].nbytes] = attrs["data"].cast("B")

    def op_read(self, outs, ins, attrs):
        start = ins[0].offset * ITEMSIZE[ins[0].dtype]
        attrs["into"].cast("B")[:] = memoryview(ins[0].handle)[start : start + attrs["into"].nbytes]

    def prepare_fused(self, kernel):
        verify(kernel)
        assert {i.op for i in kernel.body if i.op in SCALAR_OPS} <= MANDATORY
        assert {i.attr for i in kernel.body if i.op == "reduce"} <= MANDATORY_REDUCTIONS
        assert len(kernel.body) <= self.limits.max_instructions
        type(self).lengths.append(len(kernel.body))

        def launch(buffers, ints, scalars):
            type(self).launches += 1
            arrays = [np.frombuffer(b, oracle.compute_dtype(d)) for b, d in zip(buffers, kernel.buffers, strict=True)]
            verify_launch(kernel, [len(a) for a in arrays], ints, scalars)
            oracle.run(kernel, arrays, ints, scalars)

        return launch


def registered(driver):
    pg.register_driver(driver)
    driver.lengths, driver.launches = [], 0
    yield f"{driver.info.name}:0"
    opened = REGISTRY.devices.get(f"{driver.info.name}:0")
    if opened is not None:
        opened.close()
    REGISTRY.unregister(REGISTRY.loaded[driver.info.name].plugin)


@pytest.fixture
def bare():
    yield from registered(Bare)


@pytest.fixture
def narrow(monkeypatch):
    """A device whose kernels hold 256 instructions, which is less than a device may take."""
    monkeypatch.setattr(binding, "LEAST_INSTRUCTIONS", 256)

    class Narrow(Bare):
        info = dataclasses.replace(Bare.info, name="narrow")
        limits = Limits(max_instructions=256)

        def open(self, ordinal, options):
            return dataclasses.replace(super().open(ordinal, options), driver="narrow")

    yield from registered(Narrow)


FUNCTIONS = {
    "softmax": lambda x: pg.nn.functional.softmax(x, axis=-1),
    "log_softmax": lambda x: pg.nn.functional.log_softmax(x, axis=-1),
    "gelu": pg.nn.functional.gelu,
    "layer_norm": pg.nn.functional.layer_norm,
    "sin": pg.sin,
    "tan": pg.tan,
    "erf": pg.erf,
    "pow": lambda x: pg.pow(pg.abs(x) + 0.1, x),
    "hypotenuse": lambda x: pg.hypot(x, x[:, ::-1]),
    "angle": lambda x: pg.atan2(x, x[:, ::-1]),
    "least": lambda x: pg.min(x, axis=1),
    "product": lambda x: pg.prod(x, axis=1),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_device_without_optional_ops_computes_values_and_gradients_as_others_do(name, dtype, bare, rng):
    data = rng.normal(size=(7, 33)).astype(dtype)
    weight = rng.normal(size=(7, 33)).astype(dtype)

    def run(device):
        x = pg.asarray(data, device=device)
        w = pg.asarray(weight, device=device)
        out = FUNCTIONS[name](x)
        gradient = pg.grad(lambda v: pg.sum(FUNCTIONS[name](v) * (w if out.ndim == 2 else w[:, 0])))(x)
        return out.numpy(), gradient.numpy()

    rough = {"float32": 2e-5, "float64": 1e-13}[dtype]
    for ours, theirs in zip(run(bare), run("cpu:0"), strict=True):
        assert_close(ours, theirs, rtol=rough, atol=rough * max(1e-30, float(np.abs(theirs).max())))
    assert Bare.launches > 0


def test_storage_dtypes(bare, rng):
    data = rng.normal(size=(4, 9))
    for dtype in ("float16", "bfloat16"):
        stored = (pg.asarray(data, device=d).astype(dtype) for d in (bare, "cpu:0"))
        here, there = (pg.tanh(x).astype("float32").numpy() for x in stored)
        assert np.abs(here - there).max() <= 2.0 ** (-10 if dtype == "float16" else -7)


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_long_chain_stays_within_the_instructions_of_a_kernel(dtype, bare, rng):
    data = rng.normal(size=300).astype(dtype)
    x, y = (pg.asarray(data, device=d) for d in (bare, "cpu:0"))
    for _ in range(100):
        x, y = pg.tanh(x * 1.5), pg.tanh(y * 1.5)
    assert_close(x.numpy(), y.numpy(), rtol=1e-4 if dtype == "float32" else 1e-12)
    assert Bare.lengths
    assert max(Bare.lengths) <= Limits().max_instructions
    assert max(Bare.lengths) > Limits().max_instructions // 3, "kernels are cut into too small pieces"


def test_an_op_that_no_kernel_can_hold_is_refused_by_name(narrow):
    x = pg.asarray(np.array([0.5, 2.0], "float32"), device=narrow)
    assert_close(pg.exp(pg.tanh(x)).numpy(), np.exp(np.tanh(np.array([0.5, 2.0], "float32"))), rtol=1e-6)
    with pytest.raises(
        UnsupportedOp, match=r"narrow:0 does not declare 'pow'; .* takes \d+ instructions on float32, .* holds 256"
    ):
        pg.pow(x, x).numpy()


@pytest.mark.parametrize("dtype", ["int32", "uint8", "float16", "float64"])
@pytest.mark.parametrize("axis", [None, 0, 1, (0, 2)])
def test_products(axis, dtype, bare, rng):
    data = rng.integers(1, 3, size=(5, 21, 3)).astype(dtype)
    x = pg.asarray(data, device=bare)
    result = "float16" if dtype == "float16" else None
    for mine, theirs in ((x, data), (x[:, ::-2], data[:, ::-2]), (x[1:2, 3:4, :1], data[1:2, 3:4, :1])):
        got = pg.prod(mine, axis=axis, dtype=result)
        with np.errstate(over="ignore"):
            want = np.prod(theirs, axis=axis, dtype="float64" if kind(dtype) == "float" else got.dtype.name)
            want = want.astype(got.dtype.name)
        assert np.array_equal(got.numpy(), want)
