"""Running reductions, and where a mask is true.

Here: the ops scan and nonzero. Not here: sorting (`ordering.py`), reductions to one value.

NumPy's accumulate waits for each addition before the next one starts: 3.3 ns an element. Sums of float32 are therefore
taken in float64 two elements at a time, as complex numbers, whose parts NumPy adds side by side; a float64's range and
digits make the detour exact enough (a running sum of float32 rounds once an element in any case).
"""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from polygrad.driver import Ref
from polygrad_cpu.settings import Settings
from polygrad_cpu.transfer import array
from polygrad_cpu.workers import Workspace, share

Array = np.ndarray[Any, Any]
UFUNCS = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}
NS = 3  # what an element costs in one thread
BLOCK = 1 << 15  # elements that are in the cache as float64
LONG = 128  # elements of a row from which summing in pairs is worth its calls


def each(count: int, function: Callable[[int], None], threads: int) -> None:
    """Call *function* with 0 .. count - 1, in up to *threads* threads."""
    numbers = itertools.count()

    def some(_: Workspace) -> None:
        for i in numbers:
            if i >= count:
                return
            function(i)

    share(some, min(threads, count))


def rows_of(ref: Ref) -> Array:
    """Return contiguous memory as [rows, n], n being the last axis."""
    found = array(ref)
    return found.reshape(-1, found.shape[-1])


def scan(out: Ref, source: Ref, kind: str, settings: Settings) -> None:
    """Reduce each element with all before it along the last axis."""
    x, y = rows_of(source), rows_of(out)
    count, n = x.shape
    ufunc = UFUNCS[kind]
    threads = settings.threads if x.size * NS >= settings.split_ns else 1
    half = out.dtype in ("float16", "bfloat16")  # storage: sums and products are float32
    paired = kind == "sum" and out.dtype == "float32" and n >= LONG

    def piece(a: Array, b: Array) -> None:
        """Scan [rows, n] or one row's part."""
        if half:
            b[...] = ufunc.accumulate(a.astype(np.float32), axis=-1)
        elif paired:
            for one, into in zip(a, b, strict=True):
                _sum_in_pairs(one, into)
        else:
            ufunc.accumulate(a, axis=-1, dtype=b.dtype, out=b)

    if count >= threads or half:
        step = -(-count // (4 * threads)) if threads > 1 else count
        each(-(-count // step), lambda i: piece(x[i * step : (i + 1) * step], y[i * step : (i + 1) * step]), threads)
        return
    edges = [n * k // threads for k in range(threads + 1)]
    parts = [slice(a, b) for a, b in itertools.pairwise(edges)]
    each(threads, lambda k: piece(x[:, parts[k]], y[:, parts[k]]), threads)
    for k in range(1, threads):  # the last of each part, before the parts are put on top of each other
        end = parts[k].stop - 1
        y[:, end] = ufunc(y[:, end], y[:, parts[k - 1].stop - 1])

    def carry(k: int) -> None:
        body = y[:, parts[k + 1].start : parts[k + 1].stop - 1]
        ufunc(body, y[:, parts[k].stop - 1 : parts[k].stop], out=body)

    each(threads - 1, carry, threads)


def _sum_in_pairs(x: Array, out: Array) -> None:
    """Write the running sums of a float32 row.

    Of the pairs' first and second elements apart, e and o, an even place's sum is e there and o before it.
    """
    room = np.empty(min(len(x), BLOCK) + 1)
    carry = 0.0
    for start in range(0, len(x), BLOCK):
        part = x[start : start + BLOCK]
        n = len(part)
        w = room[: n + n % 2]
        w[:n] = part
        w[n:] = 0
        w[0] += carry
        pairs = w.view(np.complex128)
        np.add.accumulate(pairs, out=pairs)
        table = w.reshape(-1, 2)
        table[1:, 0] += table[:-1, 1]
        odd = table[: n // 2]
        np.add(odd[:, 0], part[1::2], out=odd[:, 1])
        out[start : start + n] = w[:n]
        carry = w[n - 1]


def nonzero(out: Ref, mask: Ref) -> None:
    """Write the positions at which a 1-D mask is true; *out* has room for as many as there are."""
    array(out)[...] = np.flatnonzero(array(mask))
