"""What a device gets right though it does not declare it.

Here: a short try of each scalar op, reduction and dtype that the DeviceInfo leaves out. A dtype counts if all that is
mandatory works on it: moving and casting its values, and every mandatory op and reduction that takes its kind.
Not here: judgement; an undeclared ability is no fault, but its author may want to know.
"""

import numpy as np

from polygrad.driver import MANDATORY, MANDATORY_REDUCTIONS, REDUCTIONS, SCALAR_OPS, Instr, oracle
from polygrad.driver.ir import ARITHMETIC, DTYPES, kind
from polygrad_conformance import building, ulp
from polygrad_conformance.bench import Bench
from polygrad_conformance.grids import operands, values


def undeclared(bench: Bench) -> list[str]:
    """Return the capabilities that are not declared and yet gave right results in a short try."""
    info, found = bench.info, []
    for op in (o for o in SCALAR_OPS if o not in info.scalar_ops):
        if _tried(bench, f"scalar.{op}"):
            found.append(f"scalar.{op}")
    found += [f"reduction.{r}" for r in REDUCTIONS if r not in info.reductions and _tried(bench, f"reduction.{r}")]
    found += [f"dtype.{d}" for d in DTYPES if d not in info.dtypes and _tried(bench, f"dtype.{d}")]
    return found


def _tried(bench: Bench, word: str) -> bool:
    what, _, name = word.partition(".")
    try:
        if what == "scalar":
            args = operands(name, "float32")
            blank = building.blank(building.result_dtype(name, "float32"), len(args[0]))
            kernel = building.apply(name, "float32")
            got = bench.launch(kernel, [*args, blank], (len(args[0]), *(0 for _ in kernel.views)))[-1]
            want = oracle.compute(Instr(name, building.result_dtype(name, "float32")), args)
            ulp.assert_special(name, "float32", args, got, want, subnormals=info_subnormals(bench))
        elif what == "reduction":
            data = np.array([3, 1, 2, 4] * 3, np.float32)
            bench.judge(building.exact_case(building.reduction("float32", name), [data, building.blank("float32", 3)],
                                            (3, 4, 0, 4, 0)))  # fmt: skip
        else:
            _whole_dtype(bench, name)
    except Exception:
        return False
    finally:
        bench.tidy()
    return True


def _whole_dtype(bench: Bench, dtype: str) -> None:
    """Raise unless *dtype* can be moved, cast, and computed with by all that is mandatory for its kind."""
    data = values(dtype)
    count = len(data)
    bench.judge(building.exact_case(building.unary(dtype), [data, building.blank(dtype, count)], (count, 0, 0)))
    small = np.array([0, 1, 1, 0]).astype(oracle.compute_dtype(dtype))
    there = building.unary(dtype, Instr("cast", "float32", (0,)))
    bench.judge(building.exact_case(there, [small, building.blank("float32", 4)], (4, 0, 0)))
    for op in sorted(MANDATORY):
        if dtype in ARITHMETIC and kind(dtype) in SCALAR_OPS[op].kinds.split():
            args = operands(op, dtype)
            result = building.result_dtype(op, dtype)
            kernel = building.apply(op, dtype)
            blank = building.blank(result, len(args[0]))
            got = bench.launch(kernel, [*args, blank], (len(args[0]), *(0 for _ in kernel.views)))[-1]
            want = oracle.compute(Instr(op, result), args)
            ulp.assert_special(op, dtype, args, got, want, subnormals=info_subnormals(bench))
    for how in sorted(MANDATORY_REDUCTIONS):
        if dtype in ARITHMETIC and dtype != "bool":
            rows = np.array([3, 1, 2, 4] * 3).astype(dtype)
            case = building.exact_case(
                building.reduction(dtype, how), [rows, building.blank(dtype, 3)], (3, 4, 0, 4, 0)
            )
            bench.judge(case)


def info_subnormals(bench: Bench) -> bool:
    """Say whether the device keeps subnormals."""
    return bool(bench.info.features.subnormals)
