"""Small kernels written by hand: one op, one view, one reduction.

Here: builders that return an IR kernel, and cases made of one with the oracle's answer.
Not here: random kernels (`random_kernels.py`).
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from polygrad.driver import SCALAR_OPS, Instr, Kernel, Store, View, oracle
from polygrad.driver.ir import ITEMSIZE
from polygrad_conformance.case import Array, Case

GUARD = 0x5A  # every byte of a buffer that a kernel must not touch
MARGIN = 5  # elements of guard on either side of an output


def blank(dtype: str, count: int) -> Array:
    """Return *count* elements of guard bytes."""
    return np.full(count * ITEMSIZE[dtype], GUARD, np.uint8).view(oracle.compute_dtype(dtype))


def result_dtype(op: str, dtype: str) -> str:
    """Return the dtype of a scalar op's result.

    >>> result_dtype("less", "int8"), result_dtype("add", "int8")
    ('bool', 'int8')
    """
    return "bool" if SCALAR_OPS[op].compares else dtype


def apply(op: str, dtype: str) -> Kernel:
    """Return the kernel that applies one scalar op to contiguous operands of one dtype."""
    return several([(op, dtype)])


def several(calls: Sequence[tuple[str, str]]) -> Kernel:
    """Return the kernel that applies each (op, dtype) to operands of its own, over one axis.

    Buffers are the operands and the result of the first call, those of the second, and so on; views likewise.
    """
    buffers: list[str] = []
    views: list[View] = []
    body: list[Instr] = []
    stores: list[Store] = []
    for op, dtype in calls:
        args = []
        for _ in range(SCALAR_OPS[op].arity):
            views.append(View(len(buffers), dtype, (1,)))
            buffers.append(dtype)
            body.append(Instr("load", dtype, (), len(views) - 1))
            args.append(len(body) - 1)
        out = result_dtype(op, dtype)
        body.append(Instr(op, out, tuple(args)))
        views.append(View(len(buffers), out, (1,)))
        buffers.append(out)
        stores.append(Store(len(body) - 1, len(views) - 1))
    return Kernel(1, 0, tuple(buffers), tuple(views), (), tuple(body), tuple(stores))


def unary(dtype: str, *instructions: Instr, out: str | None = None) -> Kernel:
    """Return the kernel over one axis that loads value 0, then does *instructions*, and stores the last of them."""
    out = out or (instructions[-1].dtype if instructions else dtype)
    body = (Instr("load", dtype, (), 0), *instructions)
    views = (View(0, dtype, (1,)), View(1, out, (1,)))
    return Kernel(1, 0, (dtype, out), views, (), body, (Store(len(body) - 1, 1),))


def reduction(dtype: str, how: str, *, rows: bool = True) -> Kernel:
    """Return the kernel that reduces the second of two axes (or, without *rows*, the only one)."""
    if rows:
        views = (View(0, dtype, (None, 1)), View(1, dtype, (1, 0)))
    else:
        views = (View(0, dtype, (1,)), View(1, dtype, (0,)))
    body = (Instr("load", dtype, (), 0), Instr("reduce", dtype, (0,), how))
    return Kernel(int(rows), 1, (dtype, dtype), views, (), body, (Store(1, 1),))


def exact_case(
    kernel: Kernel,
    arrays: Sequence[Array],
    ints: Sequence[int],
    scalars: Sequence[Any] = (),
    *,
    allowed: Callable[[Array], Array] | None = None,
) -> Case:
    """Return the case of one launch, with the oracle's answer.

    Without *allowed* results must be right bit for bit; else it gives the absolute error from the values of an output.
    """
    expected = [a.copy() for a in arrays]
    oracle.run(kernel, expected, ints, scalars)
    outputs = sorted({kernel.views[s.view].buffer for s in kernel.stores} | ({kernel.status} - {-1}))
    errors = [np.zeros(len(a)) for a in arrays]
    if allowed is not None:
        for n in outputs:
            changed = np.zeros(len(arrays[n]), bool)
            changed[:] = _bytes(expected[n]) != _bytes(arrays[n])
            errors[n] = np.where(changed, allowed(expected[n]), 0.0)
    return Case(0, kernel, tuple(arrays), tuple(ints), tuple(scalars), tuple(outputs), tuple(expected), tuple(errors))


def _bytes(a: Array) -> Array:
    return np.ascontiguousarray(a).view(f"V{a.dtype.itemsize}")


def guarded(dtype: str, count: int) -> tuple[Array, int]:
    """Return an output buffer of *count* elements between guards, and the offset of its first element."""
    return blank(dtype, count + 2 * MARGIN), MARGIN
