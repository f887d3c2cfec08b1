"""Finding extremes along the last axis, and places in what is sorted.

Here: the ops arg_extreme and searchsorted. Not here: sorting (`ordering.py`), running reductions (`scan.py`).

NumPy finds an extreme at the memory's speed; a long row is cut into a part for each thread. Of 16-bit floats, which it
would compare one by one, and as numbers only if it knows them, the ranks are compared, which are integers.

What is wanted of a row larger than a cache is searched for in ascending order, so that one search looks where the last
one did (measured on 4 M of 4 M float32: 490 ms for 2290).
"""

from typing import Any, Literal

import numpy as np

from polygrad.driver import Ref
from polygrad_cpu.ordering import ranks
from polygrad_cpu.scan import each, rows_of
from polygrad_cpu.settings import Settings
from polygrad_cpu.transfer import array

Array = np.ndarray[Any, Any]
NS = 0.3  # what an element costs in one thread, to look at
SEARCH_NS = 100  # and to search for
FAR = 1 << 18  # elements of a row from which a search waits for memory
MANY, BLOCK = 1 << 10, 1 << 17  # wanted elements that are worth being put in order, and how many at a time


def arg_extreme(out: Ref, source: Ref, kind: str, settings: Settings) -> None:
    """Write the positions of the first greatest or least elements along the last axis."""
    x, found = rows_of(source), array(out).reshape(-1)
    count, n = x.shape
    threads = settings.threads if x.size * NS >= settings.split_ns else 1
    parts = 1 if count >= threads else min(threads, n)
    edges = [n * k // parts for k in range(parts + 1)]
    places = np.empty((count, parts), np.int64)
    step = -(-count // (4 * threads)) if threads > 1 else count
    blocks = -(-count // step)

    def part(i: int) -> None:
        k, rows = i % parts, slice(i // parts * step, (i // parts + 1) * step)
        places[rows, k] = edges[k] + _first(x[rows, edges[k] : edges[k + 1]], kind)

    each(blocks * parts, part, threads)
    if parts == 1:
        found[...] = places[:, 0]
        return
    leading = np.take_along_axis(x, places, axis=-1)
    found[...] = np.take_along_axis(places, _first(leading, kind)[:, None], axis=-1)[:, 0]


def _first(x: Array, kind: str) -> Array:
    if x.dtype.itemsize == 2 and x.dtype.kind not in "iu":  # noqa: PLR2004  bytes: float16 and bfloat16
        rank = ranks(x)
        assert rank is not None  # noqa: S101  16 bits hold them
        missing = np.uint16(0xFFFF)
        x = rank if kind == "max" else np.where(rank == missing, missing, ~rank)
        kind = "max"
    return np.asarray((np.argmax if kind == "max" else np.argmin)(x, axis=-1))


def searchsorted(out: Ref, source: Ref, wanted: Ref, settings: Settings, *, right: bool) -> None:
    """Write how many elements of a sorted row come before each wanted value."""
    x, v, found = rows_of(source), rows_of(wanted), rows_of(out)
    count, m = v.shape
    side: Literal["left", "right"] = "right" if right else "left"
    threads = settings.threads if v.size * SEARCH_NS >= settings.split_ns else 1
    if source.dtype in ("float16", "bfloat16"):
        x, v = _by_rank(x), _by_rank(v)
    step = -(-m // threads)

    def part(i: int) -> None:
        row, some = i // threads, slice(i % threads * step, (i % threads + 1) * step)
        _search(x[row], v[row, some], side, found[row, some])

    each(count * threads, part, threads)


def _search(row: Array, wanted: Array, side: Literal["left", "right"], out: Array) -> None:
    if len(row) < FAR or len(wanted) < MANY:
        out[...] = np.searchsorted(row, wanted, side)
        return
    for start in range(0, len(wanted), BLOCK):
        block = wanted[start : start + BLOCK]
        order = np.argsort(block)
        out[start : start + BLOCK][order] = np.searchsorted(row, block[order], side)


def _by_rank(x: Array) -> Array:
    found = ranks(x)
    assert found is not None  # noqa: S101  16 bits hold them
    return found
