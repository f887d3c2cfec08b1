"""What works on a device though it is not declared.

Here: one try of each scalar op, reduction and dtype that the DeviceInfo leaves out.
Not here: judgement; an undeclared ability is no fault, but its author may want to know.
"""

import numpy as np

from polygrad.driver import REDUCTIONS, SCALAR_OPS, Instr, oracle
from polygrad.driver.ir import DTYPES
from polygrad_conformance import building, ulp
from polygrad_conformance.bench import Bench
from polygrad_conformance.grids import operands


def undeclared(bench: Bench) -> list[str]:
    """Return the capabilities that are not declared and yet give right results once."""
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
            data = np.array([1, 2, 3]).astype(oracle.compute_dtype(name))
            bench.judge(building.exact_case(building.unary(name), [data, building.blank(name, 3)], (3, 0, 0)))
    except Exception:
        return False
    finally:
        bench.tidy()
    return True


def info_subnormals(bench: Bench) -> bool:
    """Say whether the device keeps subnormals."""
    return bool(bench.info.features.subnormals)
