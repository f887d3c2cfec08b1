"""Level 4, numerics: how many ULP functions are off over their whole ranges, and sums over their lengths.

Here: functions against mpmath and wider formats, exact arithmetic at random, storage formats, reductions, products.
Not here: the special values (level 2), chains (level 5).
"""

import numpy as np

from polygrad.driver import SCALAR_OPS, Instr, Kernel, Store, View, oracle
from polygrad_conformance import building, references, ulp
from polygrad_conformance.bench import Bench
from polygrad_conformance.case import Array
from polygrad_conformance.checks import check
from polygrad_conformance.error_model import ABSOLUTE, CEILING

FLOATS = ("float32", "float64")
TOGETHER = 6  # functions in one kernel
EXACT = ("add", "subtract", "multiply", "maximum", "minimum", "fmod", "floor", "ceil", "trunc", "round", "copysign",
         "nextafter", "less", "equal")  # fmt: skip


@check(
    "L4.ulp.{0}.{1}",
    each=[(op, d) for op in CEILING for d in FLOATS],
    needs=lambda op, d: (f"scalar.{op}", f"dtype.{d}"),
)
def functions(bench: Bench, op: str, dtype: str) -> None:
    """Points over the whole range, evenly and by magnitude, against float64 or mpmath; the worst is reported."""
    args = _points(bench, op, dtype)
    got = _values(bench, op, dtype)
    exact = references.wide(op, args)
    if dtype == "float64":
        some = slice(0, bench.effort.precise)
        exact[some] = references.precise(op, [a[some] for a in args])
        if oracle.LONGDOUBLE == oracle.FLOAT64:  # a machine without a wider format
            args, got, exact = tuple(a[some] for a in args), got[some], exact[some]
    apart = ulp.distance(got, exact, dtype)
    eps = float(np.finfo(dtype).eps)
    with np.errstate(all="ignore"):
        near = np.abs(got.astype(np.longdouble) - exact) <= ABSOLUTE.get(op, 0) * eps
    apart = np.where(near, np.minimum(apart, 0.5), apart)
    limit = ulp.ceiling(op, dtype, correctly_rounded=bench.info.features.correctly_rounded)
    limit = min(limit, bench.requirements.tolerance.get(f"{op}.{dtype}", limit))
    worst = int(np.argmax(apart))
    where = ", ".join(repr(float(a[worst])) for a in args)
    bench.figures.setdefault("ulp", {})[f"{op}.{dtype}"] = (float(apart[worst]), limit, where)
    assert apart[worst] <= limit + 0.01, (
        f"{op}({where}) of {dtype} is {apart[worst]:.3g} ULP off: it gave {got[worst]}, the value is "
        f"{exact[worst]}; {limit:g} ULP are allowed"
    )


def _points(bench: Bench, op: str, dtype: str) -> tuple[Array, ...]:
    key = list(CEILING).index(op)
    return references.points(op, dtype, bench.effort.points, bench.rng(40, key, FLOATS.index(dtype)))


def _values(bench: Bench, op: str, dtype: str) -> Array:
    """Return the device's values, from a kernel that the functions nearby share."""
    mine = [o for o in CEILING if o in bench.info.scalar_ops]
    size = max(1, min(TOGETHER, bench.info.limits.max_buffers // 3))
    start = mine.index(op) // size * size
    group = mine[start : start + size]
    key = ("ulp", dtype, start)
    if key not in bench.memo:
        arrays: list[Array] = []
        for each in group:
            arrays += [*_points(bench, each, dtype), building.blank(dtype, bench.effort.points)]
        kernel = building.several([(each, dtype) for each in group])
        got = bench.launch(kernel, arrays, (bench.effort.points, *(0 for _ in kernel.views)))
        bench.memo[key] = {}
        place = 0
        for each in group:
            place += SCALAR_OPS[each].arity
            bench.memo[key][each] = got[place]
            place += 1
    found: Array = bench.memo[key][op]
    return found


@check("L4.exact.{0}", each=[(d,) for d in FLOATS], needs=lambda d: (f"dtype.{d}",))
def exact_arithmetic(bench: Bench, dtype: str) -> None:
    """What IEEE 754 decides is decided so, on random bits."""
    ops = [o for o in EXACT if o in bench.info.scalar_ops]
    bits = bench.rng(41).integers(0, 256, (2, 4096 * np.dtype(dtype).itemsize), dtype=np.uint8)
    a, b = (row.view(dtype) for row in bits)
    tiny = np.finfo(dtype).tiny
    a, b = (np.where(np.abs(x) < tiny, np.float64(1.25), x).astype(dtype) for x in (a, b))  # subnormals are level 2's
    calls = [(o, dtype) for o in ops]
    for first in range(0, len(calls), 7):
        part = calls[first : first + 7]
        kernel, arrays = building.several(part), []
        for op, _ in part:
            arrays += [a, b][: SCALAR_OPS[op].arity]
            arrays.append(building.blank(building.result_dtype(op, dtype), len(a)))
        got = bench.launch(kernel, arrays, (len(a), *(0 for _ in kernel.views)))
        place = 0
        for op, _ in part:
            place += SCALAR_OPS[op].arity
            args = [a, b][: SCALAR_OPS[op].arity]
            want = oracle.compute(Instr(op, building.result_dtype(op, dtype)), args)
            small = (np.abs(want.astype(np.float64)) < tiny) & (want != 0) & (not bench.info.features.subnormals)
            ulp.assert_same(f"{op} of {dtype}", args, np.where(small, want, got[place]), want, signs=op in ulp.SIGNED)
            place += 1


@check("L4.contract.{0}", each=[(d,) for d in FLOATS], needs=lambda d: (f"dtype.{d}",))
def no_contraction(bench: Bench, dtype: str) -> None:
    """A * b + c rounds twice, and so does a * b - c: no fma."""
    rng = bench.rng(42)
    views = tuple(View(k, dtype, (1,)) for k in range(5))
    body = (*(Instr("load", dtype, (), k) for k in range(3)), Instr("multiply", dtype, (0, 1)),
            Instr("add", dtype, (3, 2)), Instr("subtract", dtype, (3, 2)))  # fmt: skip
    kernel = Kernel(1, 0, (dtype,) * 5, views, (), body, (Store(4, 3), Store(5, 4)))
    a, b = (rng.uniform(1, 2, 3000).astype(dtype) for _ in range(2))
    c = -(a * b) * rng.choice([1.0, -1.0], 3000).astype(dtype)
    outs = [building.blank(dtype, 3000) for _ in range(2)]
    bench.judge(building.exact_case(kernel, [a, b, c, *outs], (3000, 0, 0, 0, 0, 0)))


@check("L4.storage.{0}", each=[("float16",), ("bfloat16",)], needs=lambda d: (f"dtype.{d}",))
def storage_formats(bench: Bench, dtype: str) -> None:
    """All 65,536 values pass through float32 unchanged, and float32 is rounded to even, ties and subnormals too."""
    every = np.arange(1 << 16, dtype=np.uint16).view(oracle.compute_dtype(dtype))
    there = building.unary(dtype, Instr("cast", "float32", (0,)), Instr("cast", dtype, (1,)))
    got = bench.launch(there, [every, building.blank(dtype, len(every))], (len(every), 0, 0))[1]
    ulp.assert_same(f"{dtype} through float32", [every], got, every, signs=True)
    single = bench.rng(43).integers(0, 1 << 32, 20000, dtype=np.uint32).view(np.float32)
    with np.errstate(all="ignore"):
        ties = every[np.isfinite(every.astype(np.float32))].astype(np.float32) * np.float32(1 + 2.0**-9)
        data = np.concatenate(
            [single, ties[:: 1 if bench.effort.alone else 7], np.float32(0.1) * every.astype(np.float32)]
        )
    got = bench.launch(
        building.unary("float32", Instr("cast", dtype, (0,))),
        [data, building.blank(dtype, len(data))],
        (len(data), 0, 0),
    )[1]
    want = oracle.compute(Instr("cast", dtype), [data])
    if not bench.info.features.subnormals:
        got = np.where(np.abs(data) < np.finfo(np.float32).tiny, want, got)
    ulp.assert_same(f"float32 to {dtype}", [data], got, want, signs=True)


LENGTHS = (1, 2, 100, 1000, 100_000)


@check(
    "L4.reduce.{0}.{1}",
    each=[(how, d) for how in ("sum", "prod") for d in FLOATS],
    needs=lambda how, d: (f"reduction.{how}", f"dtype.{d}"),
)
def reductions(bench: Bench, how: str, dtype: str) -> None:
    """Sums within (n - 1) eps of the sum of magnitudes, data cancelling or not; products likewise, relatively."""
    kernel, eps = building.reduction(dtype, how), float(np.finfo(dtype).eps)
    for n in LENGTHS:
        rng = bench.rng(44, n)
        rows = rng.uniform(-1, 1, (3, n)) if how == "sum" else rng.uniform(0.97, 1.03, (3, n))
        rows[1] = np.abs(rows[1])
        data = rows.astype(dtype)
        got = bench.launch(kernel, [data.reshape(-1), building.blank(dtype, 3)], (3, n, 0, n, 0))[1].astype(
            np.longdouble
        )
        exact = getattr(data.astype(np.longdouble), how)(axis=1)
        scale = np.abs(data.astype(np.longdouble)).sum(axis=1) if how == "sum" else n * np.abs(exact)
        allowed = (min(n - 1, 8 + 4 * n**0.5) if how == "sum" else 1) * eps * scale + eps * np.abs(exact)
        wrong = np.abs(got - exact) > allowed
        assert not wrong.any(), f"{how} of {n} values of {dtype}: {got[wrong][0]}, exactly {exact[wrong][0]}"


@check("L4.reduce.storage.{0}", each=[("float16",), ("bfloat16",)], needs=lambda d: (f"dtype.{d}",))
def sums_of_storage_formats(bench: Bench, dtype: str) -> None:
    """A sum of narrow floats is accumulated in float32: 3,000 ones are 3,000."""
    views = (View(0, dtype, (None, 1)), View(1, "float32", (1, 0)))
    body = (Instr("load", dtype, (), 0), Instr("cast", "float32", (0,)), Instr("reduce", "float32", (1,), "sum"))
    kernel = Kernel(1, 1, (dtype, "float32"), views, (), body, (Store(2, 1),))
    data = np.ones(2 * 3000, oracle.compute_dtype(dtype))
    bench.judge(building.exact_case(kernel, [data, building.blank("float32", 4)], (2, 3000, 0, 3000, 1)))


@check("L4.product.{0}", each=[(d,) for d in (*FLOATS, "int32", "int64")], needs=lambda d: (f"dtype.{d}",))
def products(bench: Bench, dtype: str) -> None:
    """A matrix product as the core writes it for a device without matmul: multiply and sum over broadcast views."""
    m, n, k = 17, 19, 65
    views = (View(0, dtype, (None, 0, 1)), View(1, dtype, (0, 1, None)), View(2, dtype, (None, 1, 0)))
    body = (Instr("load", dtype, (), 0), Instr("load", dtype, (), 1), Instr("multiply", dtype, (0, 1)),
            Instr("reduce", dtype, (2,), "sum"))  # fmt: skip
    kernel = Kernel(2, 1, (dtype,) * 3, views, (), body, (Store(3, 2),))
    rng = bench.rng(45)
    a, b = (rng.uniform(-9, 9, size).astype(dtype) for size in ((m, k), (k, n)))
    out, margin = building.guarded(dtype, m * n)
    case = building.exact_case(kernel, [a.reshape(-1), b.reshape(-1), out], (m, n, k, 0, k, 0, n, margin, n))
    if dtype in FLOATS:
        bound = k * float(np.finfo(dtype).eps) * (np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64))
        case.allowed[2][margin:-margin] = bound.reshape(-1)
    bench.judge(case)
