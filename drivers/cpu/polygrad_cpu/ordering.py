"""Sorting along the last axis.

Here: the ops sort and sort_values. Not here: running reductions (`scan.py`).

A stable sort that also tells positions is made of NumPy's fast sort of plain integers: an element's rank as 32 bits
above its position as 32 bits. No two such words are equal, so no sort of them can be unstable (measured on 4 M float32:
400 ms; a stable argsort takes 900). Integers are ranked by how far they are from the least; ranks of 16 bits are left
to NumPy's stable argsort, which counts them, and so is what no 32 bits hold. One long row is cut by value into a part
for each thread.
"""

from typing import Any

import numpy as np

from polygrad.driver import Ref
from polygrad_cpu.scan import each, rows_of
from polygrad_cpu.settings import Settings

Array = np.ndarray[Any, Any]
NS = 60  # what an element costs in one thread
SAMPLE = 1024  # elements looked at to cut a row into equal parts
HIGH = np.uint64(32)
LOW = np.uint64(0xFFFFFFFF)
SHORT = 0xFFFF


def sort(values: Ref, positions: Ref, source: Ref, settings: Settings) -> None:
    """Write the sorted rows of *source*, and for each element the place that it came from."""
    x, out, places = rows_of(source), rows_of(values), rows_of(positions)
    count = len(x)
    threads = settings.threads if x.size * NS >= settings.split_ns else 1
    if count >= threads:
        step = -(-count // (4 * threads)) if threads > 1 else count

        def rows(i: int) -> None:
            chosen = slice(i * step, (i + 1) * step)
            _sort_rows(x[chosen], out[chosen], places[chosen])

        each(-(-count // step), rows, threads)
        return
    for k in range(count):
        _sort_shared(x[k], out[k], places[k], threads)


def ranks(x: Array) -> Array | None:
    """Return x as uint16 or uint32 in the same order, equal where x counts as equal; None if neither holds it.

    >>> x = np.array([0.0, -0.0, np.nan, -np.inf, -1.0], np.float32)
    >>> [hex(r) for r in ranks(x)]
    ['0x80000000', '0x80000000', '0xffffffff', '0x7fffff', '0x407fffff']
    >>> ranks(np.array([-300, 2, 1 << 62]) % 1000).dtype
    dtype('uint16')
    """
    kind, size = x.dtype.kind, x.dtype.itemsize
    if kind == "b":
        return x.astype(np.uint16)
    if kind in "iu":
        least = x.min()
        spread = int(x.max()) - int(least)
        if spread > int(LOW):
            return None
        above: Array = x.view(f"u{size}") - least.view(f"u{size}")
        return above.astype(np.uint16 if spread <= SHORT else np.uint32)
    if x.dtype == np.float64:
        return None
    if size == 2:  # noqa: PLR2004  bytes: float16 and bfloat16, which NumPy may know as bits alone
        missing = np.isnan(x)
        bits = x.view(np.int16)
        bits = np.where(bits == -(2**15), np.int16(0), bits)
        out: Array = (bits ^ ((bits >> 15) | np.int16(-(2**15)))).view(np.uint16)
        out[missing] = SHORT
        return out
    plain = x + np.float32(0)  # -0.0 becomes 0.0
    missing = np.isnan(plain)
    word = plain.view(np.int32)
    out = (word ^ ((word >> 31) | np.int32(-(2**31)))).view(np.uint32)
    if missing.any():
        out[missing] = int(LOW)
    return out


def _words(rank: Array, first: int = 0) -> Array:
    """Return rank << 32 | position for the elements of rows whose first position is *first*."""
    words = rank.astype(np.uint64)
    words <<= HIGH
    words |= np.arange(first, first + rank.shape[-1], dtype=np.uint64)
    return words


def _sort_rows(x: Array, out: Array, places: Array) -> None:
    rank = ranks(x) if x.shape[-1] <= int(LOW) else None
    if rank is None or rank.dtype == np.uint16:
        places[...] = np.argsort(x if rank is None else rank, axis=-1, kind="stable")
    else:
        words = _words(rank)
        words.sort(axis=-1)
        np.bitwise_and(words, LOW, out=places.view(np.uint64))
    if len(x) == 1:
        x[0].take(places[0], out=out[0], mode="clip")
    else:
        out[...] = np.take_along_axis(x, places, axis=-1)


def _cuts(keys: Array, parts: int) -> list[Any]:
    """Return parts - 1 values of *keys* that cut them into parts of about equal size."""
    sample = np.sort(keys[:: max(1, len(keys) // SAMPLE)])
    return [sample[len(sample) * k // parts] for k in range(1, parts)]


def _within(keys: Array, cuts: list[Any], k: int) -> Array:
    """Return which keys fall into part k; NaN into the last one."""
    inside = np.greater_equal(keys, cuts[k - 1]) if k else np.ones(len(keys), bool)
    if k < len(cuts):
        inside &= np.less(keys, cuts[k])
    elif keys.dtype.kind == "f":
        inside |= np.isnan(keys)
    return inside


def _sort_shared(x: Array, out: Array, places: Array, threads: int) -> None:
    """Sort one row, each thread the elements between two values."""
    rank = ranks(x) if len(x) <= int(LOW) else None
    if rank is not None and rank.dtype == np.uint16:  # NumPy counts these, which takes less than to cut them
        places[...] = np.argsort(rank, kind="stable")
        x.take(places, out=out, mode="clip")
        return
    keys = x if rank is None else _words(rank)
    cuts = _cuts(keys, threads)
    if np.isnan(cuts).any():  # mostly NaN: there is nothing to cut by
        _sort_rows(x[None], out[None], places[None])
        return
    found: list[Any] = [None] * threads

    def part(k: int) -> None:
        chosen = _within(keys, cuts, k)
        if rank is None:
            at = np.flatnonzero(chosen)
            found[k] = at[np.argsort(x[at], kind="stable")]
        else:
            words = keys[chosen]
            words.sort()
            words &= LOW
            found[k] = words.view(np.int64)

    each(threads, part, threads)
    ends = np.cumsum([len(f) for f in found]).tolist()

    def put(k: int) -> None:
        span = slice(ends[k] - len(found[k]), ends[k])
        places[span] = found[k]
        x.take(found[k], out=out[span], mode="clip")

    each(threads, put, threads)


def sort_values(values: Ref, source: Ref, settings: Settings) -> None:
    """Write the sorted rows of *source*."""
    x, out = rows_of(source), rows_of(values)
    count = len(x)
    threads = settings.threads if x.size * NS >= settings.split_ns else 1
    if values.dtype in ("float16", "bfloat16"):  # exact in float32, and NumPy has no fast sort of them
        x = x.astype(np.float32)
    if count < threads:
        for k in range(count):
            _sort_values_shared(x[k], out[k], threads)
        return
    step = -(-count // (4 * threads)) if threads > 1 else count

    def rows(i: int) -> None:
        chosen = slice(i * step, (i + 1) * step)
        done = np.sort(x[chosen], axis=-1)
        _zeros_in_order(x[chosen], done)
        out[chosen] = done

    each(-(-count // step), rows, threads)


def _sort_values_shared(x: Array, out: Array, threads: int) -> None:
    cuts = _cuts(x, threads)
    if np.isnan(cuts).any():
        cuts = []
    found: list[Any] = [None] * (len(cuts) + 1)

    def part(k: int) -> None:
        found[k] = x[_within(x, cuts, k)] if cuts else x.copy()
        found[k].sort()

    each(len(found), part, threads)
    done = np.concatenate(found)
    _zeros_in_order(x[None], done[None])
    out[...] = done


def _zeros_in_order(x: Array, done: Array) -> None:
    """Put -0.0 and 0.0, which are equal, in the order that they had: NumPy may even have made one of the other."""
    if x.dtype.kind != "f":
        return
    for before, after in zip(x, done, strict=True):
        low, high = np.searchsorted(after, 0, "left"), np.searchsorted(after, 0, "right")
        if high - low > 1:
            after[low:high] = before[before == 0]
