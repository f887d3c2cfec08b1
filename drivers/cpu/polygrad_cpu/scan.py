"""Running reductions, and where a mask is true.

Here: the ops scan and nonzero. Not here: sorting (`ordering.py`), reductions to one value.

NumPy's accumulate waits for each addition before the next one starts: 3.3 ns an element. Running sums of floats are
therefore taken within groups of 16, as the product with a triangle of ones, which BLAS computes at 0.5 ns an element;
only the groups' sums go through accumulate, in float64, and are added to what comes after them. That is also more
accurate: no value has gone through more additions in float32 than a group has, and one.
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
GROUP = 16
PRODUCT = 1024  # groups that BLAS multiplies at once: as many as it does in one thread
BLOCK = 1 << 17  # elements that stay in the cache, with their running sums
LONG = 64  # elements of a row from which summing in groups is worth its calls
TRIANGLES = {dtype: np.triu(np.ones((GROUP, GROUP), dtype)) for dtype in "fd"}


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
    grouped = kind == "sum" and out.dtype in ("float32", "float64") and n >= LONG

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
    """Write the running sums of rows of floats."""
    count, n = x.shape
    whole = n - n % GROUP
    width = min(whole, BLOCK)
    rows = min(max(1, BLOCK // width), count)
    sums = np.empty((rows, width // GROUP, GROUP), x.dtype)
    ends = np.empty((rows, width // GROUP + 1))
    for first in range(0, count, rows):
        a, b = x[first : first + rows], out[first : first + rows]
        carry = np.zeros(len(a))
        for start in range(0, whole, width):
            end = min(start + width, whole)
            groups = (end - start) // GROUP
            room = sums[: len(a), :groups], ends[: len(a), : groups + 1]
            carry = _block(a[:, start:end], b[:, start:end], carry, *room)
        for k in range(whole, n):
            np.add(b[:, k - 1], a[:, k], out=b[:, k])


def _block(x: Array, out: Array, carry: Array, sums: Array, ends: Array) -> Array:
    """Write the running sums of a few columns, from *carry* on; return those at the end."""
    a, b = x.reshape(sums.shape), out.reshape(sums.shape)
    ones = TRIANGLES[x.dtype.char]
    for k in range(0, a.shape[1], PRODUCT):
        np.matmul(a[:, k : k + PRODUCT], ones, out=sums[:, k : k + PRODUCT])
    ends[:, 0] = carry
    ends[:, 1:] = sums[:, :, -1]
    np.add.accumulate(ends, axis=1, out=ends)
    if not np.isfinite(ends[:, -1]).all():  # times 0, an infinity or NaN has come to elements before it
        wide = x.astype(np.float64)
        wide[:, 0] += carry
        np.add.accumulate(wide, axis=1, out=wide)
        out[...] = wide
        return np.array(wide[:, -1])
    np.add(sums, ends[:, :-1, None].astype(x.dtype), out=b)
    return np.array(ends[:, -1])


def nonzero(out: Ref, mask: Ref) -> None:
    """Write the positions at which a 1-D mask is true; *out* has room for as many as there are."""
    array(out)[...] = np.flatnonzero(array(mask))
