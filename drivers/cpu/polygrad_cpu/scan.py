"""Running reductions, and where a mask is true.

Here: the ops scan and nonzero. Not here: sorting (`ordering.py`), reductions to one value.

NumPy's accumulate waits for each addition before the next one starts: 3.3 ns an element. Sums of float32 are therefore
taken within groups of eight, all groups side by side, from where the groups before them end; only the groups' sums go
through accumulate, in float64 (1.7 ns an element).
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
GROUP = 8
BLOCK = 1 << 17  # elements that are in the cache as float32
LONG = 64  # elements of a row from which summing in groups is worth its calls


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
    grouped = kind == "sum" and out.dtype == "float32" and n >= LONG

    def piece(a: Array, b: Array) -> None:
        """Scan [rows, n] or one row's part."""
        if half:
            b[...] = ufunc.accumulate(a.astype(np.float32), axis=-1)
        elif grouped:
            _sum_in_groups(a, b)
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


def _sum_in_groups(x: Array, out: Array) -> None:
    """Write the running sums of float32 rows."""
    count, n = x.shape
    width = min(n - n % GROUP, BLOCK)
    rows = min(max(1, BLOCK // width), count)
    ends, base = np.empty((rows, width // GROUP + 1)), np.empty((rows, width // GROUP), np.float32)
    for first in range(0, count, rows):
        a, b = x[first : first + rows], out[first : first + rows]
        carry = np.zeros(len(a))
        for start in range(0, n - n % GROUP, width):
            end = min(start + width, n - n % GROUP)
            groups = (end - start) // GROUP
            room = ends[: len(a), : groups + 1], base[: len(a), :groups]
            carry = _block(a[:, start:end], b[:, start:end], carry, *room)
        for k in range(n - n % GROUP, n):
            np.add(b[:, k - 1], a[:, k], out=b[:, k])


def _block(x: Array, out: Array, carry: Array, ends: Array, base: Array) -> Array:
    """Write the running sums of a few columns, from *carry* on; return those at the end."""
    shape = (*base.shape, GROUP)
    a, b = x.reshape(shape), out.reshape(shape)
    pairs = a.view(np.complex64)  # adds two and two
    total = pairs[:, :, 0] + pairs[:, :, 1]
    for k in range(2, GROUP // 2):
        np.add(total, pairs[:, :, k], out=total)
    np.add(total.real, total.imag, out=base)
    ends[:, 0] = carry
    ends[:, 1:] = base
    np.add.accumulate(ends, axis=1, out=ends)
    base[...] = ends[:, :-1]
    np.add(a[:, :, 0], base, out=b[:, :, 0])
    for k in range(1, GROUP):
        np.add(b[:, :, k - 1], a[:, :, k], out=b[:, :, k])
    return ends[:, -1].copy()


def nonzero(out: Ref, mask: Ref) -> None:
    """Write the positions at which a 1-D mask is true; *out* has room for as many as there are."""
    array(out)[...] = np.flatnonzero(array(mask))
