"""Random kernels that judge drivers: that they are well formed, and that each mutant of the oracle is caught by one.

Here: `polygrad_conformance.random_kernels`. Not here: any driver; the suite's own mutants (`conformance/tests`).
"""

import numpy as np
import pytest

from polygrad.driver import oracle
from polygrad.driver.ir import MANDATORY, SCALAR_OPS
from polygrad.driver.launch import decode
from polygrad.driver.oracle import run
from polygrad.driver.verify import verify, verify_launch
from polygrad_conformance.random_kernels import Mismatch, compare, random_case
from support.kernels import CASES, F

# ---- the kernels -----------------------------------------------------------------------------------------------------


def played(case):
    buffers = case.fresh()
    run(case.kernel, buffers, case.ints, case.scalars)
    compare(case, buffers)


def test_random_cases_are_verified_and_repeatable():
    for case in CASES:
        verify(case.kernel)
        verify_launch(case.kernel, [len(b) for b in case.buffers], case.ints, case.scalars)
        again = random_case(case.seed)
        assert again.kernel == case.kernel
        assert all(a.tobytes() == b.tobytes() for a, b in zip(again.buffers, case.buffers, strict=True))
        played(case)


def test_a_seed_for_each_scalar_op_has_that_op():
    for seed, op in enumerate(SCALAR_OPS):
        assert op in {i.op for i in random_case(seed).kernel.body}


def test_random_cases_keep_to_what_a_device_declares():
    for seed in range(60):
        case = random_case(seed, dtypes=(F, "int32", "bool"), scalar_ops=MANDATORY, reductions=("sum", "max"))
        assert {i.dtype for i in case.kernel.body} | set(case.kernel.buffers) <= {F, "int32", "bool"}
        assert {i.op for i in case.kernel.body} & set(SCALAR_OPS) <= MANDATORY
        assert {i.attr for i in case.kernel.body if i.op == "reduce"} <= {"sum", "max"}


def test_arithmetic_without_a_wider_format_stays_within_the_bounds(monkeypatch):
    """NumPy's own float32 and float64 are a correct driver; bounds that refuse them would be wrong."""
    cases = [random_case(seed) for seed in range(200)]
    monkeypatch.setattr(oracle, "WIDER", {})
    for case in cases:
        played(case)


def test_guard_bands_are_compared():
    case = CASES[0]
    got = list(case.expected)
    number = case.outputs[0]
    got[number] = got[number].copy()
    got[number].view(np.uint8)[-1] ^= 1
    with pytest.raises(Mismatch, match=f"seed 0, buffer {number}"):
        compare(case, got)


# ---- mutants ---------------------------------------------------------------------------------------------------------


def of_op(op, function):
    """Make a mutant that computes scalar op *op* by *function*."""
    return lambda patch: patch.setitem(oracle.FUNCTIONS, op, function)


def of_instr(op, change):
    """Make a mutant that hands `compute` something else for *op*."""

    def install(patch):
        honest = oracle.compute
        patch.setattr(
            oracle, "compute",
            lambda i, a, exact=False: change(honest, i, a) if i.op == op else honest(i, a, exact=exact),
        )  # fmt: skip

    return install


def of_view(change):
    """Make a mutant that decodes launches to something else."""

    def install(patch):
        patch.setattr(oracle, "decode", lambda k, ints: change(decode(k, ints)))

    return install


def each_view(change):
    return of_view(lambda launch: launch._replace(views=tuple(change(v) for v in launch.views)))


def of_leaves(change):
    """Make a mutant that evaluates another kernel on other scalars."""

    def install(patch):
        honest = oracle.evaluate

        def evaluate(kernel, buffers, ints, scalars, *, exact=False):
            kernel, scalars = change(kernel, scalars)
            return honest(kernel, buffers, ints, scalars, exact=exact)

        patch.setattr(oracle, "evaluate", evaluate)

    return install


def reducer(name, change):
    return lambda patch: patch.setitem(oracle._REDUCERS, name, change(oracle._REDUCERS[name]))


def iota_of_axis_0(kernel, scalars):
    body = tuple(i._replace(attr=0) if i.op == "iota" else i for i in kernel.body)
    return kernel._replace(body=body), scalars


def last_part_dropped(patch):
    honest = oracle.written

    def written(kernel, launch, number, value, full):
        address, value = honest(kernel, launch, number, value, full)
        return (address[:-1], value[:-1]) if kernel.views[number].partial else (address, value)

    patch.setattr(oracle, "written", written)


def last_element_dropped(patch):
    honest = oracle.written

    def written(*args):
        address, value = honest(*args)
        return address.ravel()[: max(1, address.size - 1)], value.ravel()[: max(1, address.size - 1)]

    patch.setattr(oracle, "written", written)


def second_store_dropped(patch):
    honest = oracle.run
    patch.setitem(globals(), "run", lambda k, *rest: honest(k._replace(stores=k.stores[:1]), *rest))


MUTANTS = {
    "where swaps its arms": of_instr("where", lambda f, i, a: f(i, [a[0], a[2], a[1]])),
    "offset is ignored": each_view(lambda v: v._replace(offset=0)),
    "window is ignored": each_view(lambda v: v._replace(window=())),
    "window is one short": each_view(lambda v: v._replace(window=tuple((k, lo, hi - 1) for k, lo, hi in v.window))),
    "negative strides are taken as positive": each_view(lambda v: v._replace(strides=tuple(map(abs, v.strides)))),
    "a partial store drops its last part": last_part_dropped,
    "a store drops its last element": last_element_dropped,
    "stores after the first are dropped": second_store_dropped,
    "subtract is swapped": of_op("subtract", lambda a, b: np.subtract(b, a)),
    "less is less_equal": of_op("less", np.less_equal),
    "maximum drops NaN": of_op("maximum", np.fmax),
    "floor truncates": of_op("floor", np.trunc),
    "ceil floors": of_op("ceil", np.floor),
    "quotient floors": of_op("quotient", lambda a, b: np.where(b == 0, np.zeros_like(a), a // np.where(b == 0, 1, b))),
    "quotient by zero is all ones": of_op(
        "quotient", lambda a, b: np.where(b == 0, ~a * 0 - 1, oracle._quotient(a, b))
    ),
    "a shift by the width is by zero": of_op("bitwise_left_shift", lambda a, b: np.left_shift(a, b % a.dtype.type(8))),
    "a right shift is logical": of_op(
        "bitwise_right_shift",
        lambda a, b: oracle._right_shift(a.view(f"u{a.itemsize}"), b.view(f"u{a.itemsize}")).view(a.dtype),
    ),
    "a cast to an integer rounds": of_instr(
        "cast", lambda f, i, a: f(i, [np.rint(a[0]) if a[0].dtype.kind == "f" and i.dtype[0] in "iu" else a[0]])
    ),
    "exp is 40 ULP off": of_op("exp", lambda a: np.exp(a) * (1 + 40 * 2.0 ** (-24 if a.dtype == np.float64 else -53))),
    "iota counts axis 0": of_leaves(iota_of_axis_0),
    "scalars are frozen": of_leaves(lambda k, s: (k, [type(x)(1) for x in s])),
    "fill is zero": of_leaves(lambda k, s: (k._replace(views=tuple(v._replace(fill=0) for v in k.views)), s)),
    "sum is one short": reducer("sum", lambda f: lambda a, axes: f(a[..., : max(1, a.shape[-1] - 1)], axes)),
    "sum starts at one": reducer("sum", lambda f: lambda a, axes: f(a, axes) + a.dtype.type(1)),
    "max starts at zero": reducer("max", lambda f: lambda a, axes: np.maximum(f(a, axes), a.dtype.type(0))),
    "min ignores NaN": reducer("min", lambda f: lambda a, axes: np.fmin.reduce(a, axis=axes, keepdims=True)),
    "gathers clamp negative indices": lambda patch: patch.setattr(
        oracle, "_clamped", lambda index, size: np.clip(index, 0, size - 1)
    ),
    "bad indices are not reported": lambda patch: patch.setattr(oracle, "_report", lambda *_: None),
    "the tag is not written": of_view(lambda launch: launch._replace(tag=1)),
}
# What touches most kernels must show in few; what touches one op may need that op's own cases.
AT_ONCE = {
    "where swaps its arms", "offset is ignored", "window is ignored", "window is one short", "fill is zero",
    "negative strides are taken as positive", "a partial store drops its last part", "a store drops its last element",
    "stores after the first are dropped", "subtract is swapped", "iota counts axis 0", "scalars are frozen",
    "sum is one short", "sum starts at one", "max starts at zero",
}  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_oracle_is_caught(name, monkeypatch):
    MUTANTS[name](monkeypatch)
    caught = []
    for case in CASES:
        try:
            played(case)
        except (Mismatch, IndexError):
            caught.append(case.seed)
    assert caught, f"no random case tells that {name}"
    if name in AT_ONCE:
        assert caught[0] < 50


def test_the_mutants_of_every_kernel_are_mutants():
    assert set(MUTANTS) >= AT_ONCE
