"""Dtypes, their kinds, and the promotion rules of the Array API standard.

Here: dtype objects (`numpy.dtype` instances; bfloat16 from ml_dtypes), categories, promotion, weak Python scalars.
Not here: any array, any device. This module is one of the few places of polygrad that imports numpy: for the objects
alone.
"""

import functools
from typing import Any

import ml_dtypes
import numpy as np

from polygrad.errors import DTypeError

bool_ = np.dtype("bool")
int8, int16, int32, int64 = (np.dtype(f"int{n}") for n in (8, 16, 32, 64))
uint8, uint16, uint32, uint64 = (np.dtype(f"uint{n}") for n in (8, 16, 32, 64))
float16, float32, float64 = (np.dtype(f"float{n}") for n in (16, 32, 64))
bfloat16 = np.dtype(ml_dtypes.bfloat16)
complex64, complex128 = np.dtype("complex64"), np.dtype("complex128")

DType = np.dtype[Any]

SIGNED = (int8, int16, int32, int64)
UNSIGNED = (uint8, uint16, uint32, uint64)
INTEGERS = (*SIGNED, *UNSIGNED)
FLOATS = (float16, bfloat16, float32, float64)
COMPLEX = (complex64, complex128)
ALL = (bool_, *INTEGERS, *FLOATS, *COMPLEX)
BY_NAME = {d.name: d for d in ALL}
_OURS: dict[DType, DType] = {d: d for d in ALL}  # a dtype may be another object than its equal here; its name is slow

# "bool" < "int" < "float" < "complex": the ladder that a Python scalar climbs.
KINDS = {d: "bool" if d is bool_ else "int" if d in INTEGERS else "float" if d in FLOATS else "complex" for d in ALL}
DIFFERENTIABLE = frozenset((*FLOATS, *COMPLEX))  # the dtypes that have gradients
_PART: dict[DType, DType] = {complex64: float32, complex128: float64}
_WHOLE: dict[DType, DType] = {float16: complex64, bfloat16: complex64, float32: complex64, float64: complex128}


def kind(dtype: DType) -> str:
    """Return ``"bool"``, ``"int"``, ``"float"`` or ``"complex"``."""
    return KINDS[dtype]


def part(dtype: DType) -> DType:
    """Return the dtype of the real and of the imaginary part of a complex dtype; any other dtype as it is.

    >>> part(complex64), part(int8)
    (dtype('float32'), dtype('int8'))
    """
    return _PART.get(dtype, dtype)


def whole(dtype: DType) -> DType:
    """Return the complex dtype whose parts hold *dtype*: complex64 for 16- and 32-bit floats, else complex128.

    >>> whole(float32), whole(complex64), whole(int8)
    (dtype('complex64'), dtype('complex64'), dtype('complex128'))
    """
    return dtype if dtype in _PART else _WHOLE.get(dtype, complex128)


def as_dtype(value: Any) -> DType:
    """Return the dtype object for *value*: a dtype, its name, a NumPy scalar type or a Python number's type.

    Raises
    ------
    DTypeError
        If polygrad has no such dtype.

    Examples
    --------
    >>> as_dtype("float32"), as_dtype(int)
    (dtype('float32'), dtype('int64'))
    """
    try:
        found = BY_NAME.get(value) if isinstance(value, str) else np.dtype(value)
    except TypeError:
        found = None
    ours = None if found is None else _OURS.get(found)
    if ours is None:
        raise DTypeError(f"polygrad has no dtype {value!r}; it has {', '.join(BY_NAME)}")
    return ours


@functools.cache
def promote(a: DType, b: DType) -> DType:
    """Return the dtype of a result of *a* and *b*, by the standard's tables and the two rules beside them.

    An integer (or bool) array with a float or complex array takes that one's dtype; bfloat16 with float16 is float32;
    a float with a complex one is the complex dtype that holds both.

    Raises
    ------
    DTypeError
        For uint64 with a signed integer, which no dtype can hold.

    Examples
    --------
    >>> promote(int8, uint8), promote(int32, float32), promote(bfloat16, float16)
    (dtype('int16'), dtype('float32'), dtype('float32'))
    >>> promote(float64, complex64), promote(int64, complex64)
    (dtype('complex128'), dtype('complex64'))
    """
    if a is b:
        return a
    ka, kb = KINDS[a], KINDS[b]
    if ka == "bool" or (ka == "int" and kb in ("float", "complex")):
        return b
    if kb == "bool" or (kb == "int" and ka in ("float", "complex")):
        return a
    if "complex" in (ka, kb):
        a, b = whole(a), whole(b)
        return a if a.itemsize >= b.itemsize else b
    if ka == "float":
        if {a, b} == {float16, bfloat16}:
            return float32
        return a if a.itemsize > b.itemsize else b
    if (a in SIGNED) == (b in SIGNED):
        return a if a.itemsize > b.itemsize else b
    signed, unsigned = (a, b) if a in SIGNED else (b, a)
    if signed.itemsize > unsigned.itemsize:
        return signed
    if unsigned is uint64:
        raise DTypeError(
            f"cannot promote {signed.name} and {unsigned.name}: no integer dtype holds both; cast one with .astype(...)"
        )
    return BY_NAME[f"int{16 * unsigned.itemsize}"]


def weak(
    scalar: bool | int | float | complex, dtype: DType, default_int: DType = int64, default_float: DType = float64
) -> DType:
    """Return the dtype of a result of a Python *scalar* and an array of *dtype*.

    The array's, unless the kind is higher.

    Examples
    --------
    >>> weak(2, float32), weak(2.5, int32), weak(True, int8), weak(2j, float32)
    (dtype('float32'), dtype('float64'), dtype('int8'), dtype('complex64'))
    """
    have = KINDS[dtype]
    if isinstance(scalar, complex):
        return whole(dtype if have in ("float", "complex") else default_float)
    if isinstance(scalar, bool) or have in ("float", "complex"):
        return dtype
    if isinstance(scalar, int):
        return default_int if have == "bool" else dtype
    return default_float


@functools.cache
def integer_range(dtype: DType) -> tuple[int, int]:
    """Return the least and the greatest value of an integer dtype."""
    info = np.iinfo(dtype)
    return int(info.min), int(info.max)


@functools.cache
def float_limits(dtype: DType) -> tuple[float, float, float, float]:
    """Return ``(eps, max, min, smallest_normal)`` of a float dtype, or of a complex one's parts, as Python floats."""
    info: Any = ml_dtypes.finfo(part(dtype))  # type: ignore[no-untyped-call]  # ml_dtypes has no annotations
    return float(info.eps), float(info.max), float(info.min), float(info.smallest_normal)


@functools.cache
def lowest(dtype: DType) -> bool | int | float:
    """Return the identity of a maximum: -inf, the least integer, or False."""
    kind = KINDS[dtype]
    return False if kind == "bool" else integer_range(dtype)[0] if kind == "int" else float("-inf")


def convert(value: Any, dtype: DType) -> bool | int | float | complex:
    """Return a Python number as one that *dtype* holds.

    Raises
    ------
    OverflowError
        If an int lies outside of an integer dtype.
    DTypeError
        If the number is complex and *dtype* is not.
    """
    kind = KINDS[dtype]
    if kind == "complex":
        return complex(value)
    if isinstance(value, complex):
        raise DTypeError(
            f"cannot convert {value!r} to {dtype.name}: the imaginary part would be lost; take its .real part"
        )
    if kind == "float":
        return float(value)
    if kind == "bool":
        return bool(value)
    low, high = integer_range(dtype)
    number = int(value)
    if not low <= number <= high:
        raise OverflowError(f"{number} does not fit {dtype.name}, whose range is [{low}, {high}]; use a wider dtype")
    return number
