"""Adding rows at indices, duplicates and all.

Here: the op scatter_add. Not here: gathers (`gather.py`).
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
    at = array(index).reshape(-1)
    target, rows = array(out), array(values)
    target = target.reshape(target.shape[0], -1)
    rows = rows.reshape(len(at), -1)
    at, rows = _check(at, rows, len(target), attrs)
    run = quiet_context()
    if out.dtype in ("float16", "bfloat16"):  # storage: sums are float32
        wide = np.zeros(target.shape, np.float32)
        run(_scatter, wide, at, rows.astype(np.float32))
        run(np.copyto, target, wide, casting="unsafe")
    else:
        target[...] = 0
        run(_scatter, target, at, rows)


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


def _scatter(target: Array, at: Array, rows: Array) -> None:
    width = target.shape[1]
    if width >= LONG:
        add = np.add
        for i, row in zip(at.tolist(), rows, strict=True):
            place = target[i]
            add(place, row, place)
        return
    flat, columns = target.reshape(-1), np.arange(width)
    step = max(1, AT_ONCE // max(1, width))
    for start in range(0, len(at), step):
        part = at[start : start + step]
        address = part if width == 1 else (part[:, None] * width + columns).reshape(-1)
        np.add.at(flat, address, rows[start : start + step].reshape(-1))
