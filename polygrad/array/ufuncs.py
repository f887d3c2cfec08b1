"""NumPy's ufuncs on our arrays: ``np.exp(x)`` and ``np.ones(3) * x`` stay ours, on their device, in their graph.

Here: which function of the table a ufunc is, and what of its keywords has a meaning here.
Not here: the functions; NumPy, which is not imported: a ufunc is known by its name.
"""

from typing import Any

from polygrad.array.functions import FUNCTIONS, wrap
from polygrad.array.object import Array
from polygrad.array.operators import as_node

# NumPy's names where they are not the standard's.
RENAMED = {
    "absolute": "abs", "fabs": "abs", "arccos": "acos", "arccosh": "acosh", "arcsin": "asin", "arcsinh": "asinh",
    "arctan": "atan", "arctan2": "atan2", "arctanh": "atanh", "conjugate": "conj", "fmax": "", "fmin": "",
    "invert": "bitwise_invert", "left_shift": "bitwise_left_shift", "power": "pow", "float_power": "",
    "right_shift": "bitwise_right_shift", "rint": "round", "true_divide": "divide",
}  # fmt: skip
REDUCTIONS = {
    "add": "sum", "multiply": "prod", "maximum": "max", "minimum": "min", "logical_and": "all", "logical_or": "any",
}  # fmt: skip
ACCUMULATIONS = {"add": "cumulative_sum", "multiply": "cumulative_prod"}


def array_ufunc(_self: Array, ufunc: Any, method: str, *inputs: Any, **keywords: Any) -> Any:
    """Apply a NumPy ufunc through the table; NotImplemented where the table has no such function.

    Examples
    --------
    >>> import numpy as np, polygrad as pg
    >>> np.exp(pg.asarray([0.0, 1.0]))
    Array([1.        , 2.71828183], dtype=float64, device='cpu:0')
    >>> np.add.reduce(pg.asarray([1, 2, 3]))
    Array(6, dtype=int64, device='cpu:0')
    """
    name = ufunc.__name__
    if method == "__call__":
        return _apply(FUNCTIONS.get(RENAMED.get(name, name)), name, inputs, keywords)
    if method == "reduce" and len(inputs) == 1:
        given = {key: value for key, value in keywords.items() if key != "axis"}
        return _apply(FUNCTIONS.get(REDUCTIONS.get(name, "")), name, inputs, {"axis": keywords.get("axis", 0), **given})
    if method == "accumulate" and len(inputs) == 1:
        return _apply(
            FUNCTIONS.get(ACCUMULATIONS.get(name, "")), name, inputs, {"axis": keywords.pop("axis", 0), **keywords}
        )
    return NotImplemented


def _apply(function: Any, name: str, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    if function is None:
        return NotImplemented
    refused = [key for key in ("out", "where", "casting", "order", "subok", "initial") if key in keywords]
    if refused:
        raise TypeError(
            f"np.{name} of polygrad arrays takes no {refused[0]}=: call the function of the same meaning in polygrad"
        )
    device = next(x.device for x in inputs if isinstance(x, Array))
    operands = [x if isinstance(x, Array) else as_node(x, device) for x in inputs]
    return function(*[_wrapped(x, device) for x in operands], **keywords)


def _wrapped(value: Any, device: str) -> Any:
    return value if isinstance(value, (Array, bool, int, float, complex)) else wrap(value, device)


Array.__array_ufunc__ = array_ufunc  # type: ignore[attr-defined]
