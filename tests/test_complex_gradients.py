"""The derivatives of every op that takes complex numbers: differences, reverse and forward mode against each other.

Here: tests derived from the table, in complex128, and the convention of gradients by hand.
Not here: values (`test_complex.py`), real derivatives (`test_gradients.py`).
"""

import zlib

import numpy as np
import pytest

import polygrad as pg
from polygrad.array.tree import flatten
from polygrad.ops.table import TABLE
from polygrad.testing.draw import Draw

CALLS = {"getitem": lambda x, key: x[key], "astype": None}
# Their values move in steps, or have no slope that differences could show.
STEPS = {"round", "nextafter"}
NAMESPACES = [pg, *[space for name in ("linalg", "fft") if (space := getattr(pg, name, None)) is not None]]


def function_of(op):
    found = [getattr(space, op.name) for space in NAMESPACES if callable(getattr(space, op.name, None))]
    return CALLS.get(op.name) or (found[0] if found else None)


# Decompositions have gradients of their own conventions, which their own tests check.
OWN = {"eigh", "eigvalsh", "eig", "eigvals", "svd", "svdvals", "qr", "cholesky", "pinv", "matrix_rank", "matrix_norm"}
OPS = [
    op
    for op in TABLE.values()
    if op.samples is not None
    and op.differentiable
    and "complex" in op.dtypes.split()
    and op.name not in STEPS | OWN
    and function_of(op)
]


def with_arrays(value):
    if isinstance(value, np.ndarray):
        return pg.asarray(value, device="cpu:0")
    if isinstance(value, (list, tuple)):
        return type(value)(with_arrays(v) for v in value)
    return value


def calls(op):
    """Return (function, inputs) for each sample of an op that holds complex numbers."""
    draw = Draw(np.random.default_rng(zlib.crc32(op.name.encode())), pg.complex128)
    call = function_of(op)
    for args, keywords in op.samples(draw):
        if op.name == "where":
            args = (np.asarray(args[0].real > 0), *args[1:])
        if keywords.get("dtype") is not None:
            continue  # the result is not of the operand's dtype
        arrays, rebuild = flatten(with_arrays(list(args)))
        if any(a.dtype == pg.complex128 and a.size for a in arrays):
            yield lambda *xs, r=rebuild, k=keywords: call(*r(list(xs)), **k), arrays


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_first_derivatives(op):
    with pg.device("cpu:0"):
        for k, (function, inputs) in enumerate(calls(op)):
            pg.testing.gradcheck(function, *inputs, seed=k)


@pytest.mark.parametrize("op", [op for op in OPS if op.second], ids=lambda op: op.name)
def test_second_derivatives(op):
    with pg.device("cpu:0"):
        for k, (function, inputs) in enumerate(list(calls(op))[:2]):
            pg.testing.gradgradcheck(function, *inputs, seed=k, tol=1e-5)
