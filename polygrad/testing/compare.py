"""Comparing arrays, with a tolerance that their dtype explains.

Here: `assert_close`.
Not here: derivatives.
"""

from typing import Any

import numpy as np

from polygrad import dtypes
from polygrad.array.object import Array

# (relative, absolute), about a hundred units in the last place: sums of some thousand terms stay within it.
_TOLERANCE = {"float64": (1e-12, 1e-14), "float32": (2e-5, 1e-6), "float16": (1e-2, 1e-3), "bfloat16": (8e-2, 8e-3)}


def assert_close(
    actual: Any, expected: Any, *, rtol: float | None = None, atol: float | None = None, check_dtype: bool = True
) -> None:
    """Raise AssertionError unless two arrays (or trees of arrays) agree in shape, dtype and, nearly, in value.

    Parameters
    ----------
    actual, expected : Array, NumPy array, number, or lists, tuples and dicts of these
        Gradients need not be detached.
    rtol, atol : float, optional
        |actual - expected| <= atol + rtol * |expected| is demanded. By default they follow from the coarser dtype:
        float64 1e-12 and 1e-14, float32 2e-5 and 1e-6, float16 1e-2 and 1e-3, bfloat16 8e-2 and 8e-3; other dtypes must
        be equal.
    check_dtype : bool
        Whether dtypes must be equal; Python numbers have none.

    Examples
    --------
    >>> import polygrad as pg
    >>> assert_close(pg.sqrt(pg.asarray([4.0, 9.0])), [2.0, 3.0])
    """
    _compare(actual, expected, rtol, atol, check_dtype, "")


def _compare(actual: Any, expected: Any, rtol: float | None, atol: float | None, check_dtype: bool, path: str) -> None:
    if isinstance(expected, dict):
        assert isinstance(actual, dict), f"{path or 'the value'} is {type(actual).__name__}, not a dict"  # noqa: S101
        assert actual.keys() == expected.keys(), f"{path or 'the value'} has keys {list(actual)}, not {list(expected)}"  # noqa: S101
        for key in expected:
            _compare(actual[key], expected[key], rtol, atol, check_dtype, f"{path}[{key!r}]")
        return
    if isinstance(actual, (list, tuple)) and isinstance(expected, (list, tuple)):
        assert len(actual) == len(expected), f"{path or 'the value'} has {len(actual)} parts, not {len(expected)}"  # noqa: S101
        for k, (a, e) in enumerate(zip(actual, expected, strict=True)):
            _compare(a, e, rtol, atol, check_dtype, f"{path}[{k}]")
        return
    _compare_arrays(actual, expected, rtol, atol, check_dtype, path)


def _compare_arrays(
    actual: Any, expected: Any, rtol: float | None, atol: float | None, check_dtype: bool, path: str
) -> None:
    a, e = _value(actual), _value(expected)
    typed = all(hasattr(v, "dtype") for v in (actual, expected))
    assert a.shape == e.shape, f"{path} shapes differ: {list(a.shape)} and {list(e.shape)}".strip()  # noqa: S101
    if check_dtype and typed:
        assert a.dtype == e.dtype, f"{path} dtypes differ: {a.dtype.name} and {e.dtype.name}".strip()  # noqa: S101
    kinds = {dtypes.KINDS.get(v.dtype, "other") for v in (a, e)}
    if not kinds & {"float", "complex"}:
        np.testing.assert_array_equal(a, e, err_msg=path)
        return
    floats = [
        dtypes.part(v.dtype).name
        for v, given in ((a, actual), (e, expected))
        if hasattr(given, "dtype") and dtypes.part(v.dtype).name in _TOLERANCE
    ]
    relative, absolute = max((_TOLERANCE[name] for name in floats), default=_TOLERANCE["float64"])
    wide = np.complex128 if "complex" in kinds else np.float64
    np.testing.assert_allclose(
        a.astype(wide), e.astype(wide),
        rtol=relative if rtol is None else rtol, atol=absolute if atol is None else atol, err_msg=path,
    )  # fmt: skip


def _value(given: Any) -> Any:
    return given.detach().numpy() if isinstance(given, Array) else np.asarray(given)
