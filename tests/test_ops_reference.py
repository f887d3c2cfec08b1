"""Every op with a reference, on its own samples, evaluated by NumPy as a graph and compared with the reference.

Here: tests derived from the table, before any driver. Not here: derivatives, devices.
"""

from typing import Any

import numpy as np
import pytest

from polygrad import dtypes
from polygrad.graph import F, Node, asking
from polygrad.ops import TABLE, Op
from polygrad.testing.draw import Draw
from polygrad.testing.interpret import evaluate, leaf

DTYPES = {
    "bool": [dtypes.bool_],
    "int": [dtypes.int32, dtypes.int64, dtypes.uint8],
    "float": [dtypes.float64, dtypes.float32, dtypes.float16],
    "complex": [dtypes.complex128, dtypes.complex64],
}
TOLERANCE = {dtypes.float64: 1e-12, dtypes.float32: 3e-5, dtypes.float16: 6e-3}
WIDE = {"float": np.float64, "complex": np.complex128}
ROUNDS = 2

CASES = [
    pytest.param(op, dtype, id=f"{op.name}-{dtype.name}")
    for op in TABLE.values()
    if op.samples is not None and op.reference is not None and op.name not in ("alias",)
    for kind in op.dtypes.split()
    for dtype in DTYPES[kind]
]


@pytest.fixture(autouse=True)
def _values_by_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read by the interpreter what decides about a result's shape: no node here is on a device."""
    monkeypatch.setattr(asking, "_lookers", [lambda count: int(evaluate(count))])


def nodes(value: Any) -> Any:
    """Return a call's argument with arrays as leaves."""
    if isinstance(value, np.ndarray):
        return leaf(value)
    if isinstance(value, (list, tuple)):
        return type(value)(nodes(v) for v in value)
    return value


def widened(value: Any) -> Any:
    """Return a call's argument with floats as float64, for the reference."""
    if isinstance(value, np.ndarray) and value.dtype in dtypes.DIFFERENTIABLE:
        return value.astype(WIDE[dtypes.KINDS[value.dtype]])
    if isinstance(value, (list, tuple)):
        return type(value)(widened(v) for v in value)
    return value


def calls(op: Op, dtype: dtypes.DType) -> Any:
    draw = Draw(np.random.default_rng(sum(map(ord, op.name))), dtype)
    for _ in range(ROUNDS):
        for args, keywords in op.samples(draw):
            first = (np.asarray(args[0] > 0),) if op.name == "where" else args[:1]
            yield (*first, *args[1:]), keywords


def check(got: Node, want: Any, dtype: dtypes.DType, scale: float) -> None:
    value, want = evaluate(got), np.asarray(want)
    assert got.shape == want.shape
    assert value.shape == want.shape
    assert dtypes.KINDS[got.dtype] == dtypes.KINDS[dtypes.as_dtype(want.dtype)]
    if got.dtype not in dtypes.DIFFERENTIABLE:
        np.testing.assert_array_equal(value, want.astype(value.dtype))
        return
    # There is no complex number of 16-bit parts: what transforms give of them is complex64.
    assert dtype not in dtypes.DIFFERENTIABLE or got.dtype in (dtypes.part(dtype), dtypes.whole(dtype))
    limit = TOLERANCE[dtypes.part(got.dtype)] * scale
    np.testing.assert_allclose(value.astype(WIDE[dtypes.KINDS[got.dtype]]), want, rtol=limit, atol=limit)


@pytest.mark.parametrize(("op", "dtype"), CASES)
def test_an_op_is_what_its_reference_says(op: Op, dtype: dtypes.DType) -> None:
    for args, keywords in calls(op, dtype):
        got = getattr(F, op.name)(*nodes(args), **nodes_of(keywords))
        with np.errstate(all="ignore"):
            want = op.reference(np, *widened(args), **{k: widened(v) for k, v in keywords.items()})
        own = keywords.get("dtype", dtype)
        if isinstance(got, tuple):
            assert len(got) == len(want)
            for g, w in zip(got, want, strict=True):
                check(g, w, own, op.tolerance)
        else:
            check(got, want, own, op.tolerance)


def nodes_of(keywords: dict[str, Any]) -> dict[str, Any]:
    return {k: nodes(v) for k, v in keywords.items()}
