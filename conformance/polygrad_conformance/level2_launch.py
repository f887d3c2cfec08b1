"""Level 2, launches: each instruction alone on awkward values, and the arguments of a launch.

Here: scalar ops, casts, constants, launch scalars, iota, reductions, limits, traps.
Not here: views beyond the contiguous (level 3), accuracy over whole ranges (level 4).
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from polygrad.driver import REDUCTIONS, SCALAR_OPS, Instr, Kernel, Store, View, oracle
from polygrad.driver.ir import ARITHMETIC, DTYPES, ITEMSIZE, kind
from polygrad_conformance import building, ulp
from polygrad_conformance.bench import Bench, Failure
from polygrad_conformance.case import Array, Case
from polygrad_conformance.checks import check
from polygrad_conformance.error_model import CEILING
from polygrad_conformance.grids import operands, values

SCALARS = [(op, d) for op, row in SCALAR_OPS.items() for d in ARITHMETIC if kind(d) in row.kinds.split()]
TOGETHER = 12  # scalar ops in one kernel, where a profile does not want each alone
ROWS, COLUMNS = 6, 37


def _needs_scalar(op: str, dtype: str) -> tuple[str, ...]:
    return f"scalar.{op}", f"dtype.{dtype}"


@check("L2.scalar.{0}.{1}", each=SCALARS, needs=_needs_scalar)
def scalar_op(bench: Bench, op: str, dtype: str) -> None:
    """Signed zeros, infinities, NaN, subnormals, extremes of integers, all against all."""
    args = operands(op, dtype)
    got = _scalar_result(bench, op, dtype)
    instr = Instr(op, building.result_dtype(op, dtype))
    want = oracle.compute(instr, args)
    try:
        ulp.assert_special(op, dtype, args, got, want, subnormals=bench.info.features.subnormals)
    except AssertionError as error:
        raise Failure(str(error), _case(op, dtype, args)) from None


def _case(op: str, dtype: str, args: Sequence[Array]) -> Case:
    """Return the launch of *op* alone on *args*, to be replayed."""
    kernel = building.apply(op, dtype)
    blank = building.blank(building.result_dtype(op, dtype), len(args[0]))
    ints = (len(args[0]), *(0 for _ in kernel.views))

    def allowed(expected: Array) -> Array:
        return CEILING[op] * np.abs(np.spacing(expected)).astype(np.float64)

    return building.exact_case(kernel, [*args, blank], ints, allowed=allowed if op in CEILING else None)


def _scalar_result(bench: Bench, op: str, dtype: str) -> Array:
    """Launch *op*, by a kernel of its own or one that it shares, and return its result."""
    alone = [(op, dtype)]
    calls = alone if bench.effort.alone else _neighbours(bench, op, dtype)
    key = ("scalar", tuple(calls))
    if key not in bench.memo:
        try:
            bench.memo[key] = _run(bench, calls)
        except BaseException:  # a driver may raise SystemExit, too
            if len(calls) == 1:
                raise
            bench.memo[key] = None  # one of them is at fault: from now on each is launched alone
    found = bench.memo[key]
    return _run(bench, alone)[0] if found is None else found[calls.index((op, dtype))]


def _neighbours(bench: Bench, op: str, dtype: str) -> list[tuple[str, str]]:
    mine = [(o, d) for o, d in SCALARS if d == dtype and o in bench.info.scalar_ops]
    size = min(TOGETHER, bench.info.limits.max_buffers // 3)
    start = mine.index((op, dtype)) // size * size
    return mine[start : start + size]


def _run(bench: Bench, calls: Sequence[tuple[str, str]]) -> list[Array]:
    kernel = building.several(calls)
    longest = max(len(operands(op, dtype)[0]) for op, dtype in calls)
    arrays: list[Array] = []
    for op, dtype in calls:
        args = operands(op, dtype)
        arrays += [np.resize(a, longest) for a in args]
        arrays.append(building.blank(building.result_dtype(op, dtype), longest))
    got = bench.launch(kernel, arrays, (longest, *(0 for _ in kernel.views)))
    results, place = [], 0
    for op, dtype in calls:
        place += SCALAR_OPS[op].arity
        results.append(got[place][: len(operands(op, dtype)[0])])
        place += 1
    return results


@check("L2.cast.{0}", each=[(d,) for d in DTYPES], needs=lambda d: (f"dtype.{d}",))
def casts(bench: Bench, dtype: str) -> None:
    """From one dtype to every other: truncation, wrapping, rounding to even, any non-zero is true."""
    targets = [d for d in DTYPES if d in bench.info.dtypes and d != dtype]
    every = values(dtype)
    body, views, arrays = [Instr("load", dtype, (), 0)], [View(0, dtype, (1,))], [every]
    stores = []
    for target in targets:
        body.append(Instr("cast", target, (0,)))
        views.append(View(len(arrays), target, (1,)))
        stores.append(Store(len(body) - 1, len(views) - 1))
        arrays.append(building.blank(target, len(every)))
    kernel = Kernel(1, 0, (dtype, *targets), tuple(views), (), tuple(body), tuple(stores))
    got = bench.launch(kernel, arrays, (len(every), *(0 for _ in views)))
    wide = every.astype(np.longdouble) if kind(dtype) == "float" else every
    for target, mine in zip(targets, got[1:], strict=True):
        want = oracle.compute(Instr("cast", target), [every])
        defined = np.ones(len(every), bool)
        if kind(dtype) == "float" and kind(target) == "int":
            limits = np.iinfo(target)
            whole = np.trunc(wide)
            defined = np.isfinite(wide) & (whole >= np.longdouble(limits.min)) & (whole <= np.longdouble(limits.max))
        ulp.assert_same(f"cast of {dtype} to {target}", [every[defined]], mine[defined], want[defined], signs=True)


WIDTHS = {"8": ("int8", "uint8"), "16": ("int16", "uint16", "float16", "bfloat16"),
          "32": ("int32", "uint32", "float32"), "64": ("int64", "uint64", "float64")}  # fmt: skip


@check("L2.bitcast.{0}", each=[(w,) for w in WIDTHS])
def bitcasts(bench: Bench, width: str) -> None:
    """Bits keep their places between all dtypes of one width."""
    dtypes = [d for d in WIDTHS[width] if d in bench.info.dtypes]
    if len(dtypes) < 2:
        return
    source, *targets = dtypes
    data = bench.rng(20, int(width)).integers(0, 256, 64 * int(width) // 8, dtype=np.uint8)
    bits = data.view(oracle.compute_dtype(source))
    for target in targets:
        kernel = building.unary(source, Instr("bitcast", target, (0,)))
        got = bench.launch(kernel, [bits, building.blank(target, 64)], (64, 0, 0))[1].view(np.uint8)
        want = bits.view(oracle.compute_dtype(target))
        nan = np.isnan(want.astype(np.float64)) if kind(target) == "float" else np.zeros(64, bool)
        wrong = (got.reshape(64, -1) != data.reshape(64, -1)).any(axis=1) & ~nan
        assert not wrong.any(), f"bitcast of {source} to {target} changed {wrong.sum()} of 64 elements"


def _each_dtype(bench: Bench, key: str) -> dict[str, Array]:
    """Launch one kernel that stores a literal, a launch scalar or a choice of each dtype, and return its results."""
    if key not in bench.memo:
        bench.memo[key] = {"const": _consts, "where": _choices}[key](bench)
    found: dict[str, Array] = bench.memo[key]
    return found


def literals(dtype: str) -> list[Any]:
    """Return Python numbers that a literal or launch scalar of *dtype* may be."""
    if dtype == "bool":
        return [True, False]
    if kind(dtype) == "int":
        limits = np.iinfo(dtype)
        return [int(limits.max), int(limits.min), 3]
    return [-1.5, math.inf, -math.inf, math.nan, 0.25]


def _consts(bench: Bench) -> dict[str, Array]:
    dtypes = [d for d in DTYPES if d in bench.info.dtypes]
    body, views, stores = [], [], []
    for place, dtype in enumerate(dtypes):
        for literal in literals(dtype):
            body.append(Instr("const", dtype, (), literal))
            views.append(View(place, dtype, (1,)))
            stores.append(Store(len(body) - 1, len(views) - 1))
    arrays = [building.blank(d, 8 * len(literals(d))) for d in dtypes]
    offsets = [8 * k for d in dtypes for k in range(len(literals(d)))]
    kernel = Kernel(1, 0, tuple(dtypes), tuple(views), (), tuple(body), tuple(stores))
    got = bench.launch(kernel, arrays, (8, *offsets))
    return dict(zip(dtypes, got, strict=True))


@check("L2.const.{0}", each=[(d,) for d in DTYPES], needs=lambda d: (f"dtype.{d}",))
def constants(bench: Bench, dtype: str) -> None:
    """Literals are exact, extremes and NaN too."""
    got = _each_dtype(bench, "const")[dtype]
    want = np.repeat(np.array(literals(dtype), oracle.compute_dtype(dtype)), 8)
    ulp.assert_same(f"constants of {dtype}", [], got, want, signs=True)


@check("L2.parameter.{0}", each=[(d,) for d in DTYPES], needs=lambda d: (f"dtype.{d}",))
def launch_scalars(bench: Bench, dtype: str) -> None:
    """A launch scalar has the value of its launch, not of the first one."""
    kernel = Kernel(1, 0, (dtype,), (View(0, dtype, (1,)),), (dtype,), (Instr("scalar", dtype, (), 0),), (Store(0, 0),))
    for literal in literals(dtype):
        got = bench.launch(kernel, [building.blank(dtype, 9)], (9, 0), (literal,))[0]
        ulp.assert_same(
            f"launch scalar {literal} of {dtype}", [], got, np.full(9, literal, oracle.compute_dtype(dtype)), signs=True
        )


def _choices(bench: Bench) -> dict[str, Array]:
    dtypes = [d for d in DTYPES if d in bench.info.dtypes]
    found: dict[str, Array] = {}
    size = (bench.info.limits.max_buffers - 1) // 3
    for first in range(0, len(dtypes), size):
        part = dtypes[first : first + size]
        body, views, stores = [Instr("load", "bool", (), 0)], [View(0, "bool", (1,))], []
        arrays, names = [np.arange(40) % 3 == 0], ["bool"]
        for dtype in part:
            for arm in range(2):
                views.append(View(len(arrays), dtype, (1,)))
                body.append(Instr("load", dtype, (), len(views) - 1))
                arrays.append(np.roll(np.resize(values(dtype), 40), arm))
            body.append(Instr("where", dtype, (0, len(body) - 2, len(body) - 1)))
            views.append(View(len(arrays), dtype, (1,)))
            stores.append(Store(len(body) - 1, len(views) - 1))
            arrays.append(building.blank(dtype, 40))
            names += [dtype] * 3
        kernel = Kernel(1, 0, tuple(names), tuple(views), (), tuple(body), tuple(stores))
        got = bench.launch(kernel, arrays, (40, *(0 for _ in views)))
        found |= dict(zip(part, got[3::3], strict=True))
    return found


@check("L2.where.{0}", each=[(d,) for d in DTYPES], needs=lambda d: (f"dtype.{d}",))
def choices(bench: Bench, dtype: str) -> None:
    """Where takes the first arm if its condition is true, and nothing of the other, NaN or not."""
    got = _each_dtype(bench, "where")[dtype]
    arms = [np.roll(np.resize(values(dtype), 40), arm) for arm in range(2)]
    ulp.assert_same(f"where of {dtype}", [], got, np.where(np.arange(40) % 3 == 0, *arms), signs=True)


@check("L2.iota.{0}", each=[("int32",), ("int64",)], needs=lambda d: (f"dtype.{d}",))
def iotas(bench: Bench, dtype: str) -> None:
    """Iota is the index along its own axis."""
    for axis in range(3):
        views = (View(0, dtype, (None, None, 1)),)
        kernel = Kernel(3, 0, (dtype,), views, (), (Instr("iota", dtype, (), axis),), (Store(0, 0),))
        bench.judge(building.exact_case(kernel, [building.blank(dtype, 3 * 5 * 7 + 3)], (3, 5, 7, 2, 35, 7)))


REDUCED = [(how, d) for how in REDUCTIONS for d in ARITHMETIC if d != "bool"]


@check("L2.reduce.{0}.{1}", each=REDUCED, needs=lambda how, d: (f"reduction.{how}", f"dtype.{d}"))
def reductions(bench: Bench, how: str, dtype: str) -> None:
    """Rows of extremes, of one sign, with NaN, with the identity's rivals; sums small enough to be exact."""
    key = ("reduce", dtype)
    hows = [h for h in REDUCTIONS if h in bench.info.reductions]
    data = _rows(dtype)
    if key not in bench.memo:
        views = (View(0, dtype, (None, 1)), *(View(1 + k, dtype, (1, 0)) for k in range(len(hows))))
        body = (Instr("load", dtype, (), 0), *(Instr("reduce", dtype, (0,), h) for h in hows))
        kernel = Kernel(
            1, 1, (dtype,) * (1 + len(hows)), views, (), body, tuple(Store(1 + k, 1 + k) for k in range(len(hows)))
        )
        outs = [building.blank(dtype, ROWS + 4) for _ in hows]
        bench.memo[key] = bench.launch(kernel, [data, *outs], (ROWS, COLUMNS, 0, COLUMNS, *(2 for _ in hows)))
    got = bench.memo[key][1 + hows.index(how)]
    want = building.blank(dtype, ROWS + 4)
    instr = Instr("reduce", dtype, (0,), how)
    want[2:-2] = oracle.reduce(instr, data.reshape(ROWS, COLUMNS), (ROWS, COLUMNS), 1).reshape(-1)
    ulp.assert_same(f"{how} of rows of {dtype}", [], got, want, signs=False)


def _rows(dtype: str) -> Array:
    """Return ROWS rows whose sums and products are exact."""
    rng = np.random.default_rng(5)
    if kind(dtype) == "int":
        limits = np.iinfo(dtype)
        rows = rng.integers(1, 4, (ROWS, COLUMNS)).astype(dtype)
        rows[1] = limits.min
        rows[2] = limits.max
        rows[3, -1] = 0
        rows[4] = rng.integers(limits.min, limits.max, COLUMNS, dtype=dtype, endpoint=True)
        return rows.reshape(-1)
    rows = rng.choice([1.0, 2.0, 0.5, -1.0], (ROWS, COLUMNS)).astype(dtype)
    rows[1] = -2.0
    rows[2, 20] = np.nan
    rows[3] = -np.inf
    rows[4, -1] = 64.0
    rows[5, 0] = np.inf
    rows[5, 1:] = 1.0
    return rows.reshape(-1)


@check("L2.reduce.bool", needs=("reduction.max",))
def any_of_bools(bench: Bench) -> None:
    """Max over bool is "any"."""
    data = np.zeros((5, 33), bool)
    data[1, 0] = data[2, 32] = data[4] = True
    bench.judge(building.exact_case(building.reduction("bool", "max"), [data.reshape(-1), building.blank("bool", 7)],
                                    (5, 33, 0, 33, 1)))  # fmt: skip


TRAPS: dict[str, tuple[str, list[Any], list[Any]]] = {
    "quotient_by_zero": ("quotient", [7, -7, 0, 1], [0, 0, 0, 0]),
    "modulo_by_zero": ("modulo", [7, -7, 0, 1], [0, 0, 0, 0]),
    "least_over_minus_one": ("quotient", ["min"] * 4, [-1] * 4),
    "least_modulo_minus_one": ("modulo", ["min"] * 4, [-1] * 4),
    "shift_left_too_far": ("bitwise_left_shift", [1, -1, 5, "min"], ["width", -1, 200, "max"]),
    "shift_right_too_far": ("bitwise_right_shift", [1, -1, 5, "min"], ["width", -1, 200, "max"]),
}


@check("L2.trap.{0}.{1}", each=[(t, d) for t in TRAPS for d in ("int32", "int64")], needs=lambda _t, d: (f"dtype.{d}",))
def traps(bench: Bench, trap: str, dtype: str) -> None:
    """What kills a process in C has a defined result: by data, by literal, by launch scalar."""
    op, left, right = TRAPS[trap]
    limits = np.iinfo(dtype)
    words = {"min": int(limits.min), "max": int(limits.max), "width": 8 * ITEMSIZE[dtype]}
    a, b = (np.array([words.get(n, n) for n in side], dtype) for side in (left, right))
    bench.judge(building.exact_case(building.apply(op, dtype), [a, b, building.blank(dtype, 4)], (4, 0, 0, 0)))
    number = int(b[0])
    literal = (Instr("const", dtype, (), number), Instr(op, dtype, (0, 1)))
    bench.judge(building.exact_case(building.unary(dtype, *literal), [a, building.blank(dtype, 4)], (4, 0, 0)))
    scalar = building.unary(dtype, Instr("scalar", dtype, (), 0), Instr(op, dtype, (0, 1)))._replace(scalars=(dtype,))
    bench.judge(building.exact_case(scalar, [a, building.blank(dtype, 4)], (4, 0, 0), (number,)))


@check("L2.trap.cast_out_of_range")
def casts_out_of_range_do_not_trap(bench: Bench) -> None:
    """A float that no int32 holds becomes any value, without harm to its neighbours."""
    data = np.array([1e30, -1e30, np.nan, np.inf, 5.0, -3.9], np.float32)
    if "int32" not in bench.info.dtypes:
        return
    got = bench.launch(
        building.unary("float32", Instr("cast", "int32", (0,))), [data, building.blank("int32", 6)], (6, 0, 0)
    )
    assert list(got[1][4:]) == [5, -3], f"5.0 and -3.9 became {list(got[1][4:])} beside values out of range"


@check("L2.launch.extents")
def extents_of_every_kind(bench: Bench) -> None:
    """One program, many extents: one, primes, powers of two and their neighbours; nothing is written beyond."""
    kernel = building.unary("float32", Instr("add", "float32", (0, 0)))
    for n in (1, 2, 3, 5, 7, 8, 13, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 257, 1023, 1024, 1025, 4097, 65537):
        if 4 * (n + 9) > bench.info.limits.max_alloc:
            break
        data = np.arange(n, dtype=np.float32)
        bench.judge(building.exact_case(kernel, [data, building.blank("float32", n + 9)], (n, 0, 4)))


@check("L2.launch.large")
def many_elements(bench: Bench) -> None:
    """A million elements, more than one group or thread does."""
    n = (1 << 20) + 3
    if 4 * n * 3 > bench.info.limits.total or 4 * n > bench.info.limits.max_alloc:
        n = 1000
    kernel = building.unary("float32", Instr("negative", "float32", (0,)))
    data = np.arange(n, dtype=np.float32)
    bench.judge(building.exact_case(kernel, [data, building.blank("float32", n + 5)], (n, 0, 2)))


@check("L2.launch.buffers")
def as_many_buffers_as_declared(bench: Bench) -> None:
    """A kernel of limits.max_buffers buffers runs (up to 64 are tried)."""
    count = min(bench.info.limits.max_buffers, 64)
    views = tuple(View(k, "float32", (1,)) for k in range(count))
    body = [Instr("load", "float32", (), 0)]
    for k in range(1, count - 1):
        total = len(body) - 1
        body += [Instr("load", "float32", (), k), Instr("add", "float32", (total, len(body)))]
    kernel = Kernel(1, 0, ("float32",) * count, views, (), tuple(body), (Store(len(body) - 1, count - 1),))
    arrays = [np.full(10, 2.0**k % 1024, np.float32) for k in range(count - 1)]
    bench.judge(building.exact_case(kernel, [*arrays, building.blank("float32", 10)], (10, *(0 for _ in views))))


@check("L2.launch.instructions")
def as_many_instructions_as_declared(bench: Bench) -> None:
    """A kernel of limits.max_instructions instructions runs (up to 512 are tried)."""
    count = min(bench.info.limits.max_instructions, 512)
    dtype = "int32" if "int32" in bench.info.dtypes else "int64"
    body = [Instr("load", dtype, (), 0), Instr("const", dtype, (), 3)]
    while len(body) < count:
        op = ("add", "bitwise_xor", "multiply")[len(body) % 3]
        body.append(Instr(op, dtype, (len(body) - 1 if len(body) > 2 else 0, 1 if len(body) % 2 else 0)))
    kernel = Kernel(1, 0, (dtype, dtype), (View(0, dtype, (1,)), View(1, dtype, (1,))), (), tuple(body),
                    (Store(len(body) - 1, 1),))  # fmt: skip
    bench.judge(building.exact_case(kernel, [np.arange(20, dtype=dtype), building.blank(dtype, 20)], (20, 0, 0)))


@check("L2.launch.in_place")
def result_in_place_of_an_operand(bench: Bench) -> None:
    """A kernel may store where it has loaded, element for element."""
    view = View(0, "float32", (1,))
    body = (Instr("load", "float32", (), 0), Instr("multiply", "float32", (0, 0)), Instr("add", "float32", (0, 1)))
    kernel = Kernel(1, 0, ("float32",), (view, view), (), body, (Store(2, 1),))
    bench.judge(building.exact_case(kernel, [np.arange(1000, dtype=np.float32)], (990, 4, 4)))


@check("L2.launch.again")
def same_kernel_other_arguments(bench: Bench) -> None:
    """A prepared kernel depends on nothing of an earlier launch: other buffers, extents, offsets, scalars."""
    body = (Instr("load", "float32", (), 0), Instr("scalar", "float32", (), 0), Instr("multiply", "float32", (0, 1)))
    kernel = Kernel(1, 0, ("float32", "float32"), (View(0, "float32", (None,)), View(1, "float32", (1,))), ("float32",),
                    body, (Store(2, 1),))  # fmt: skip
    rng = bench.rng(21)
    for n, offset, stride, scalar in (
        (10, 0, 1, 2.0),
        (7, 3, 2, -1.0),
        (10, 20, -2, 0.5),
        (40, 1, 1, 4.0),
        (1, 0, 0, 3.0),
    ):
        data = rng.integers(-9, 9, 64).astype(np.float32)
        ints = (n, offset, stride, n % 3)
        bench.judge(building.exact_case(kernel, [data, building.blank("float32", n + 4)], ints, (scalar,)))


@check("L2.launch.lookalikes")
def kernels_that_differ_in_one_thing(bench: Bench) -> None:
    """Programs are not confused: the same but for a dtype, an op, the order of operands, a literal, a store."""
    dtype = "int32" if "int32" in bench.info.dtypes else "int64"
    kernels: list[tuple[Kernel, str]] = []
    for name in ("float32", dtype):
        one = Instr("const", name, (), 1 if name == dtype else 1.0)
        for op, args in (("subtract", (0, 1)), ("subtract", (1, 0)), ("add", (0, 1)), ("multiply", (0, 1))):
            kernels.append((building.unary(name, one, Instr(op, name, args)), name))
        three = one._replace(attr=3 if name == dtype else 3.0)
        kernels.append((building.unary(name, three, Instr("add", name, (0, 1))), name))
    for kernel, name in kernels * 2:
        data = np.arange(2, 12, dtype=name)
        bench.judge(building.exact_case(kernel, [data, building.blank(name, 12)], (10, 0, 1)))
