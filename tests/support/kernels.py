"""Kernels that tests of `polygrad.driver` share, and how they are launched.

Here: a way to write them shortly, one of everything, a softmax, random ones. Not here: tests.
"""

import warnings

from polygrad.driver.ir import SCALAR_OPS, Instr, Kernel, Store, View
from polygrad.driver.oracle import run
from polygrad.driver.verify import verify, verify_launch
from polygrad_conformance.random_kernels import random_case

F, D = "float32", "float64"
CASES = [random_case(seed) for seed in range(2 * len(SCALAR_OPS))]  # two with each op for their subject


def program(*rows):
    """Write a body shortly: (op, dtype, args, attr) each."""
    return tuple(Instr(*row) for row in rows)


GOOD = Kernel(
    1, 1, (F, "int32", F, "int32", F),
    (View(0, F, (None, 1), (1,)), View(1, "int32", (1, 0)), View(0, F, (0, 0), gathers=1), View(2, F, (1, 0)),
     View(4, F, (0, 1), partial=True)), (F, "bool"),
    program(
        ("load", F, (), 0), ("load", "int32", (), 1), ("load", F, (1,), 2), ("scalar", F, (), 0),
        ("scalar", "bool", (), 1), ("const", F, (), 1.5), ("iota", "int64", (), 1), ("cast", F, (6,)),
        ("bitcast", "int32", (0,)),
        ("where", F, (4, 0, 3)), ("reduce", F, (9,), "sum"), ("add", F, (10, 2)), ("less", "bool", (0, 5)),
    ), (Store(11, 3), Store(9, 4)), 3,
)  # fmt: skip


def softmax(dtype=F):
    return Kernel(
        1, 1, (dtype, dtype), (View(0, dtype, (None, 1)), View(1, dtype, (None, 1))), (),
        program(
            ("load", dtype, (), 0), ("reduce", dtype, (0,), "max"), ("subtract", dtype, (0, 1)), ("exp", dtype, (2,)),
            ("reduce", dtype, (3,), "sum"), ("divide", dtype, (3, 4)),
        ), (Store(5, 1),),
    )  # fmt: skip


def launched(kernel, buffers, ints, scalars=(), *, exact=False):
    verify(kernel)
    verify_launch(kernel, [len(b) for b in buffers], ints, scalars)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(kernel, buffers, ints, scalars, exact=exact)
