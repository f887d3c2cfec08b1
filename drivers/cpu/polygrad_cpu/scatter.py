"""Combining rows at indices, duplicates and all.

Here: the ops scatter_add and scatter_reduce. Not here: gathers (`gather.py`).
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from polygrad.driver import Ref
from polygrad_cpu.gather import tell
from polygrad_cpu.transfer import array
from polygrad_cpu.workers import quiet_context

Array = np.ndarray[Any, Any]

LONG = 192  # elements from which a row is worth a call of its own (measured: 1 us a call, 3 ns an element otherwise)
AT_ONCE = 1 << 18  # elements whose addresses are made at a time


def scatter_add(out: Ref, index: Ref, values: Ref, attrs: Mapping[str, Any]) -> None:
    """Zero *out*, then add values[j] to out[index[j]]; a bad index is reported and its row left out."""
    _combine(np.add, 0, out, index, values, attrs)


def scatter_reduce(out: Ref, index: Ref, values: Ref, attrs: Mapping[str, Any]) -> None:
    """Fill *out* with the identity of attrs mode, then combine out[index[j]] with values[j]."""
    function = {"max": np.maximum, "min": np.minimum, "multiply": np.multiply}[attrs["mode"]]
    _combine(function, identity(attrs["mode"], out.dtype), out, index, values, attrs)


def identity(mode: str, dtype: str) -> float:
    """Return what combines with any value to that value.

    >>> identity("max", "int8"), identity("min", "float16")
    (-128, inf)
    """
    if mode == "multiply":
        return 1
    if "float" in dtype:
        return float("-inf") if mode == "max" else float("inf")
    info = np.iinfo(dtype)
    return int(info.min if mode == "max" else info.max)


def _combine(function: np.ufunc, start: float, out: Ref, index: Ref, values: Ref, attrs: Mapping[str, Any]) -> None:
    at = array(index).reshape(-1)
    target, rows = array(out), array(values)
    target = target.reshape(target.shape[0], -1)
    rows = rows.reshape(len(at), -1)
    at, rows = _check(at, rows, len(target), attrs)
    run = quiet_context()
    if out.dtype in ("float16", "bfloat16"):  # storage: sums are float32
        wide = np.full(target.shape, start, np.float32)
        run(_scatter, function, wide, at, rows.astype(np.float32))
        run(np.copyto, target, wide, casting="unsafe")
    else:
        target[...] = start
        run(_scatter, function, target, at, rows)


def _check(at: Array, rows: Array, size: int, attrs: Mapping[str, Any]) -> tuple[Array, Array]:
    if not len(at):
        return at, rows
    least, greatest = int(at.min()), int(at.max())
    if least < -size or greatest >= size:
        good = (at >= -size) & (at < size)
        status = attrs.get("status")
        if status is not None:
            word = array(status) if isinstance(status, Ref) else status.view(np.int32)
            tell(word, attrs["tag"], 0, int(at[~good][0]))
        at, rows = at[good], rows[good]
    return (np.where(at < 0, at + size, at) if least < 0 else at), rows


def _scatter(function: np.ufunc, target: Array, at: Array, rows: Array) -> None:
    width = target.shape[1]
    if width >= LONG:
        for i, row in zip(at.tolist(), rows, strict=True):
            place = target[i]
            function(place, row, out=place)
        return
    flat, columns = target.reshape(-1), np.arange(width)
    step = max(1, AT_ONCE // max(1, width))
    for start in range(0, len(at), step):
        part = at[start : start + step]
        address = part if width == 1 else (part[:, None] * width + columns).reshape(-1)
        function.at(flat, address, rows[start : start + step].reshape(-1))
