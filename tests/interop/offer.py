"""A pytest plugin that offers polygrad to the test suites of Array API clients, which know only the libraries they name.

Here: one substitution for each client, chosen by the variable OFFER_TO. `suites.py` sets it.
Not here: what is run, and how many tests must pass.
"""

import enum
import os
import sys
import types
from collections.abc import Iterator
from typing import Any

import polygrad

os.environ.setdefault("SCIPY_ARRAY_API", "1")


def to_scipy() -> None:
    """Stand under the name array_api_strict, by which SciPy's and xarray's suites import a strict library."""
    polygrad.set_array_api_strict_flags = lambda **_: None  # type: ignore[attr-defined]
    sys.modules["array_api_strict"] = polygrad
    inner = types.ModuleType("array_api_strict._array_object")  # where xarray's suite takes the class from
    inner.Array = polygrad.Array  # type: ignore[attr-defined]
    sys.modules["array_api_strict._array_object"] = inner


def to_sklearn() -> None:
    """Be the only namespace that scikit-learn's Array API tests are run with, in both float dtypes."""
    from sklearn.utils import _array_api

    def namespaces(include_numpy_namespaces: bool = True) -> Iterator[str]:
        yield "polygrad"

    def combinations(include_numpy_namespaces: bool = True) -> Iterator[tuple[str, Any, str]]:
        for dtype in ("float64", "float32"):
            yield "polygrad", None, dtype

    _array_api.yield_namespaces = namespaces
    _array_api.yield_namespace_device_dtype_combinations = combinations


def to_extra() -> None:
    """Be one more backend of array-api-extra's suite."""
    from array_api_extra._lib import _backends

    known = _backends.Backend
    shared = {name: value for name, value in vars(known).items() if name in ("modname", "like", "pytest_param")}
    base = enum.Enum("Base", {})  # type: ignore[misc]
    for name, value in shared.items():
        setattr(base, name, value)
    _backends.Backend = base("Backend", {**{b.name: b.value for b in known}, "POLYGRAD": "polygrad"})  # type: ignore[misc,operator]


def to_compat() -> None:
    """Stand in for array_api_strict in array-api-compat's suite."""
    to_scipy()


wanted = os.environ.get("OFFER_TO", "")
if wanted:
    globals()[f"to_{wanted}"]()
