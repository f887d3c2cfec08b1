"""Batches made of samples: trees of values become one tree of arrays.

Here: stacking on the host, and the way to a device.
Not here: which samples (`order.py`), who calls it when (`loader.py`).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from polygrad import dtypes
from polygrad.array import interchange
from polygrad.array.config import default_float, default_int, held
from polygrad.array.creation import asarray
from polygrad.array.functions import FUNCTIONS
from polygrad.array.object import Array
from polygrad.errors import DataError


def collate(samples: Sequence[Any], at: str = "") -> Any:
    """Return samples as one batch: arrays and numbers stacked, tuples, lists and dicts part by part, all else listed.

    Parameters
    ----------
    samples : sequence
        Trees of one form. What NumPy makes arrays of is stacked as NumPy arrays, polygrad's own on their device.

    Raises
    ------
    DataError
        If the forms or shapes differ; the sentence says where.

    Examples
    --------
    >>> batch = collate([{"x": [1.0, 2], "name": "a"}, {"x": [3.0, 4], "name": "b"}])
    >>> batch["x"][0].tolist(), batch["x"][1].tolist(), batch["name"]
    ([1.0, 3.0], [2, 4], ['a', 'b'])
    """
    first = samples[0]
    place = at or "samples"
    odd = [
        type(s).__name__
        for s in samples
        if isinstance(s, (Mapping, tuple, list)) != isinstance(first, (Mapping, tuple, list))
    ]
    if odd:
        raise DataError(f"cannot collate {place}: one is {type(first).__name__}, another {odd[0]}")
    if isinstance(first, Mapping):
        if any(set(s) != set(first) for s in samples):
            raise DataError(f"cannot collate {place}: they have different keys")
        return {k: collate([s[k] for s in samples], f"{at}[{k!r}]") for k in first}
    if isinstance(first, (tuple, list)):
        if any(len(s) != len(first) for s in samples):
            raise DataError(f"cannot collate {place}: they have {sorted({len(s) for s in samples})} parts")
        parts = [collate(list(column), f"{at}[{k}]") for k, column in enumerate(zip(*samples, strict=True))]
        return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
    if isinstance(first, (str, bytes)) or first is None or not _stackable(first):
        return list(samples)
    shapes = {tuple(getattr(s, "shape", ())) for s in samples}
    if len(shapes) > 1:
        listed = " and ".join(str(list(s)) for s in sorted(shapes)[:2])
        raise DataError(f"cannot collate {place} of shapes {listed}: pad them, or pass a collate_fn of your own")
    if isinstance(first, Array):
        return FUNCTIONS["stack"](list(samples))
    return interchange.stacked(list(samples))


def _stackable(value: Any) -> bool:
    return isinstance(value, (bool, int, float, complex)) or hasattr(value, "__array__") or hasattr(value, "shape")


def host(tree: Any) -> Any:
    """Return a tree with polygrad's arrays as NumPy's: what goes from one process to another."""
    return _mapped(tree, lambda a: a.detach().numpy() if isinstance(a, Array) else a)


def placed(tree: Any, device: str) -> Any:
    """Return a tree with NumPy's and polygrad's arrays on a device; dtypes that it lacks become its default ones."""
    return _mapped(tree, lambda a: _placed(a, device))


def _placed(value: Any, device: str) -> Any:
    if isinstance(value, Array):
        return value.to_device(device)
    if not interchange.is_numpy(value) or value.dtype.kind not in "biufcV":
        return value
    lacking = value.dtype.name not in held(device)
    if lacking and value.dtype == dtypes.float64:
        return asarray(value, dtype=default_float(device), device=device)
    if lacking and value.dtype == dtypes.int64:
        return asarray(value, dtype=default_int(device), device=device)
    return asarray(value, device=device)


def _mapped(tree: Any, change: Any) -> Any:
    if isinstance(tree, Mapping):
        return {k: _mapped(v, change) for k, v in tree.items()}
    if isinstance(tree, (list, tuple)):
        parts = [_mapped(v, change) for v in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    return change(tree)
