"""Arrays made from numbers: filled, counted, spaced, and shaped like another.

Here: full, zeros, ones, empty, their `_like` forms, arange, linspace, eye, tri. Their nodes have no device yet: the
array layer gives one.
Not here: conversion of foreign data, random numbers.
"""

import math
import operator
from typing import Any

from polygrad import dtypes, shapes
from polygrad.errors import DTypeError, ShapeError
from polygrad.ops.internal import cast
from polygrad.ops.table import composite

ALL = "bool int float complex"


def default_dtype(*values: Any) -> dtypes.DType:
    """Return the dtype that Python numbers get by themselves: bool, int64 or float64."""
    if all(isinstance(v, bool) for v in values):
        return dtypes.bool_
    if any(isinstance(v, complex) for v in values):
        return dtypes.complex128
    return dtypes.int64 if all(isinstance(v, int) for v in values) else dtypes.float64


def _of_shape(*before: Any) -> Any:
    """Return samples: some shapes, with the drawn dtype, and *before* after the shape."""
    return lambda draw: [((shape, *before), {"dtype": draw.dtype}) for shape in ((), (3,), (2, 0, 3), (2, 3))]


@composite(
    reference=lambda np, shape, value, dtype=None: np.full(shape, value, dtype=dtype),
    samples=_of_shape(1),
    dtypes=ALL,
)
def full(xp: Any, shape: Any, fill_value: Any, *, dtype: Any = None) -> Any:
    """An array of one value, in the value's own dtype unless another is given."""
    shape = shapes.as_shape("fill", shape)
    wanted = None if dtype is None else dtypes.as_dtype(dtype)
    if hasattr(fill_value, "shape"):
        if fill_value.shape != ():
            raise ShapeError(f"cannot fill with an array of shape {list(fill_value.shape)}: a fill value has no axes")
        value = fill_value if wanted in (None, fill_value.dtype) else cast(xp, fill_value, wanted)
    else:
        if not isinstance(fill_value, (bool, int, float, complex)):
            raise DTypeError(
                f"cannot fill with {fill_value!r}: a fill value is a Python number or an array without axes"
            )
        value = xp.constant(fill_value, wanted or default_dtype(fill_value))
    return xp.expand_(value, shape) if shape else value


@composite(
    reference=lambda np, shape, dtype=None: np.zeros(shape, dtype),
    samples=_of_shape(),
    dtypes=ALL,
    differentiable=False,
)
def zeros(xp: Any, shape: Any, *, dtype: Any = None) -> Any:
    """Zeros, float64 unless a dtype is given."""
    return xp.full(shape, 0, dtype=dtype or dtypes.float64)


@composite(
    reference=lambda np, shape, dtype=None: np.ones(shape, dtype), samples=_of_shape(), dtypes=ALL, differentiable=False
)
def ones(xp: Any, shape: Any, *, dtype: Any = None) -> Any:
    """Ones, float64 unless a dtype is given."""
    return xp.full(shape, 1, dtype=dtype or dtypes.float64)


@composite(
    reference=lambda np, shape, dtype=None: np.zeros(shape, dtype),
    samples=_of_shape(),
    dtypes=ALL,
    differentiable=False,
)
def empty(xp: Any, shape: Any, *, dtype: Any = None) -> Any:
    """An array whose values do not matter: they are zeros, which cost nothing until they are needed."""
    return xp.zeros(shape, dtype=dtype)


def _one(draw: Any) -> Any:
    return draw.elementwise(((-2, 2),))


@composite(
    reference=lambda np, x, value, dtype=None: np.full_like(x, value, dtype=dtype),
    samples=lambda draw: [((x, 1), {}) for (x,), _ in _one(draw)],
    dtypes=ALL,
)
def full_like(xp: Any, x: Any, /, fill_value: Any, *, dtype: Any = None) -> Any:
    """One value in x's shape, and in x's dtype and device unless others are given."""
    return xp.full(x.shape, fill_value, dtype=dtype or x.dtype)


@composite(
    reference=lambda np, x, dtype=None: np.zeros_like(x, dtype=dtype), samples=_one, dtypes=ALL, differentiable=False
)
def zeros_like(xp: Any, x: Any, /, *, dtype: Any = None) -> Any:
    """Zeros of x's shape, dtype and device."""
    return xp.full_of(0, x, None if dtype is None else dtypes.as_dtype(dtype))


@composite(
    reference=lambda np, x, dtype=None: np.ones_like(x, dtype=dtype), samples=_one, dtypes=ALL, differentiable=False
)
def ones_like(xp: Any, x: Any, /, *, dtype: Any = None) -> Any:
    """Ones of x's shape, dtype and device."""
    return xp.full_of(1, x, None if dtype is None else dtypes.as_dtype(dtype))


@composite(
    reference=lambda np, x, dtype=None: np.zeros_like(x, dtype=dtype), samples=_one, dtypes=ALL, differentiable=False
)
def empty_like(xp: Any, x: Any, /, *, dtype: Any = None) -> Any:
    """An array like x whose values do not matter: zeros."""
    return xp.zeros_like(x, dtype=dtype)


def _arange_samples(draw: Any) -> Any:
    dtype = {"dtype": draw.dtype}
    out: list[Any] = [(bounds, dtype) for bounds in ((5,), (0,), (2, 9, 3), (9, 2, -2), (3, 3), (5, 2))]
    if draw.kind == "float":
        out += [(bounds, dtype) for bounds in ((0.5, 3.1, 0.25), (2.5, -1.0, -0.5), (4.5,))]
    return out


@composite(
    reference=lambda np, start, stop=None, step=1, dtype=None: np.arange(
        *((0, start) if stop is None else (start, stop)), step, dtype=dtype
    ),
    samples=_arange_samples,
    dtypes="int float",
    differentiable=False,
)
def arange(xp: Any, start: Any, /, stop: Any = None, step: Any = 1, *, dtype: Any = None) -> Any:
    """start, start + step, ... before stop; int64 if all are ints, else float64."""
    if stop is None:
        start, stop = 0, start
    for value in (start, stop, step):
        if not isinstance(value, (int, float)):
            raise DTypeError(f"cannot count from {start!r} to {stop!r} by {step!r}: bounds and step are Python numbers")
    if step == 0:
        raise ShapeError(f"cannot count from {start} to {stop} by 0: the step must not be zero")
    wanted = default_dtype(start + 0, stop + 0, step + 0) if dtype is None else dtypes.as_dtype(dtype)
    whole = all(isinstance(v, int) for v in (start, stop, step))
    count = len(range(start, stop, step)) if whole else max(0, math.ceil((stop - start) / step))
    if wanted in dtypes.INTEGERS:
        return _count_integers(xp, int(start), int(step), count, wanted)
    if wanted is dtypes.bool_ or wanted in dtypes.COMPLEX:
        raise DTypeError(f"cannot count in {wanted.name}: ask for an int or float dtype")
    working = dtypes.float32 if wanted.itemsize == 2 else wanted
    return cast(xp, _line(xp, start, step, count, working), wanted)


def _line(xp: Any, start: Any, step: Any, count: int, dtype: dtypes.DType) -> Any:
    """Return start + i * step, leaving out what does nothing."""
    value = cast(xp, xp.iota(count, dtypes.int64), dtype)  # counted in int64, which kernels can, and exact
    if step != 1:
        value = value * xp.constant(step, dtype)
    return value if start == 0 else value + xp.constant(start, dtype)


def _count_integers(xp: Any, start: int, step: int, count: int, dtype: dtypes.DType) -> Any:
    """Return start + i * step exactly: in int64, or modulo 2**64 where a value is beyond it."""
    for value in (start, start + step * (count - 1)) if count else ():
        xp.constant(value, dtype)  # refuses a number that the dtype cannot hold
    high = dtypes.integer_range(dtypes.int64)[1]
    if max(start, start + step * (count - 1)) <= high:
        return cast(xp, _line(xp, start, step, count, dtypes.int64), dtype)
    return cast(xp, _line(xp, start % 2**64, step % 2**64, count, dtypes.uint64), dtype)


def _linspace_samples(draw: Any) -> Any:
    cases = ((0.0, 1.0, 5), (2.0, -1.0, 4), (3, 3, 2), (0.0, 1.0, 1), (0.0, 1.0, 0))
    return [(case, {"dtype": draw.dtype, "endpoint": end}) for case in cases for end in (True, False)]


@composite(
    reference=lambda np, start, stop, num, dtype=None, endpoint=True: np.linspace(
        start, stop, num, dtype=dtype, endpoint=endpoint
    ),
    samples=_linspace_samples,
    dtypes="float complex",
    differentiable=False,
)
def linspace(xp: Any, start: Any, stop: Any, /, num: Any, *, dtype: Any = None, endpoint: Any = True) -> Any:
    """Evenly spaced numbers from start to stop; the last is exactly stop unless *endpoint* is false."""
    is_complex = isinstance(start, complex) or isinstance(stop, complex)
    wanted = default_dtype(start + 0.0, stop) if dtype is None else dtypes.as_dtype(dtype)
    if dtypes.KINDS[wanted] == "complex":
        return _complex_line(xp, complex(start), complex(stop), num, wanted, endpoint)
    if is_complex:
        raise DTypeError(f"cannot make numbers from {start} to {stop} in {wanted.name}: ask for a complex dtype")
    count = operator.index(num)
    if count < 0:
        raise ShapeError(f"cannot make {count} numbers: their count must not be negative")
    working = (
        wanted
        if wanted in (dtypes.float32, dtypes.float64)
        else dtypes.float32
        if wanted.itemsize == 2
        else dtypes.float64
    )
    gaps = max(count - 1 if endpoint else count, 1)
    step = (stop - start) / gaps
    if math.isinf(step):  # the difference of two huge numbers, which are mixed instead
        share = _line(xp, 0, 1 / gaps, count, working)
        value = (1.0 - share) * xp.constant(float(start), working) + share * xp.constant(float(stop), working)
    else:
        value = _line(xp, float(start), float(step), count, working)
    if endpoint and count > 1:
        last = xp.equal(xp.iota(count, dtypes.int64), count - 1)
        value = xp.where(last, xp.constant(float(stop), working), value)
    if wanted in dtypes.INTEGERS:
        value = xp.floor(value)
    return cast(xp, value, wanted)


def _complex_line(xp: Any, start: Any, stop: Any, num: Any, dtype: dtypes.DType, endpoint: bool) -> Any:
    """Return evenly spaced complex numbers: both parts are."""
    of_part = dtypes.part(dtype)
    ends = ((start.real, stop.real), (start.imag, stop.imag))
    return xp.pair_(*[xp.linspace(a, b, num, dtype=of_part, endpoint=endpoint) for a, b in ends])


def _eye_samples(draw: Any) -> Any:
    dtype = {"dtype": draw.dtype}
    return [((3,), dtype), ((2, 4), dtype), ((4, 2), dtype | {"k": 1}), ((3, 3), dtype | {"k": -2}), ((0, 2), dtype)]


def _rows_and_columns(xp: Any, n: int, m: int) -> tuple[Any, Any]:
    return xp.reshape_(xp.iota(n, dtypes.int64), (n, 1)), xp.iota(m, dtypes.int64)


def _extents(name: str, n: Any, m: Any) -> shapes.Shape:
    return shapes.as_shape(name, (n, n if m is None else m))


@composite(
    reference=lambda np, n, m=None, k=0, dtype=None: np.eye(n, m, k, dtype=dtype or np.float64),
    samples=_eye_samples,
    dtypes=ALL,
    differentiable=False,
)
def eye(xp: Any, n_rows: Any, n_cols: Any = None, /, *, k: Any = 0, dtype: Any = None) -> Any:
    """Ones on the k-th diagonal (above the main one if k > 0), zeros elsewhere."""
    n, m = _extents("make eye", n_rows, n_cols)
    rows, columns = _rows_and_columns(xp, n, m)
    diagonal = max(-n, min(m, operator.index(k)))  # beyond either end there is none
    return cast(xp, xp.equal(rows + diagonal, columns), dtypes.float64 if dtype is None else dtypes.as_dtype(dtype))


@composite(
    reference=lambda np, n, m=None, k=0, dtype=None: np.tri(n, m, k, dtype=dtype or np.float64),
    samples=_eye_samples,
    dtypes=ALL,
    differentiable=False,
)
def tri(xp: Any, n_rows: Any, n_cols: Any = None, /, *, k: Any = 0, dtype: Any = None) -> Any:
    """Ones on and below the k-th diagonal, zeros above it."""
    rows, columns = _rows_and_columns(xp, *_extents("make tri", n_rows, n_cols))
    return cast(
        xp,
        xp.greater_equal(rows + operator.index(k), columns),
        dtypes.float64 if dtype is None else dtypes.as_dtype(dtype),
    )
