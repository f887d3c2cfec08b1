"""Awkward operands: the values of each dtype at which implementations differ.

Here: lists of values, and all pairs of them.
Not here: operands of ordinary size (`draws.py`).
"""

import functools

import numpy as np

from polygrad.driver import SCALAR_OPS, oracle
from polygrad.driver.ir import ITEMSIZE, kind
from polygrad_conformance.case import Array


@functools.cache
def values(dtype: str) -> Array:
    """Return the awkward values of *dtype*; do not write to them.

    >>> values("bool")
    array([False,  True])
    """
    target = oracle.compute_dtype(dtype)
    if dtype == "bool":
        return np.array([False, True])
    if kind(dtype) == "int":
        limits, width = np.iinfo(target), 8 * ITEMSIZE[dtype]
        numbers = {
            0,
            1,
            2,
            3,
            7,
            8,
            100,
            width - 1,
            width,
            width + 1,
            limits.max,
            limits.max - 1,
            limits.max // 2,
            limits.min,
        }
        if limits.min:
            numbers |= {-1, -2, -7, -width, limits.min + 1, limits.min // 2}
        return np.array(sorted(n for n in numbers if limits.min <= n <= limits.max), target)
    single = np.dtype(np.float64 if dtype == "float64" else np.float32)
    if dtype == "bfloat16":  # it has the exponents of float32
        greatest, least, tiniest, eps = 3.3895e38, 2.0**-126, 2.0**-133, 2.0**-7
    else:
        facts = np.finfo(target)
        greatest, least, tiniest, eps = (float(x) for x in (facts.max, facts.tiny, facts.smallest_subnormal, facts.eps))
    positive = [0.0, 1.0, 0.5, 1.5, 2.5, 2.0, 3.0, 7.0, 0.1, 1 + eps, 1 - eps / 2, 3.1415927, 100.25, 255.0, 300.0,
                65504.0, greatest, greatest / 2, least, least / 2, 3 * tiniest, tiniest, np.inf]  # fmt: skip
    with np.errstate(all="ignore"):
        return np.array([*positive, *(-p for p in positive), np.nan], single).astype(target)


@functools.cache
def operands(op: str, dtype: str) -> tuple[Array, ...]:
    """Return the operands of a scalar op: every value, or every pair of them; do not write to them.

    >>> [len(a) for a in operands("bitwise_and", "bool")]
    [4, 4]
    """
    every = values(dtype)
    if SCALAR_OPS[op].arity == 1:
        return (every,)
    a, b = np.meshgrid(every, every, indexing="ij")
    return a.reshape(-1), b.reshape(-1)
