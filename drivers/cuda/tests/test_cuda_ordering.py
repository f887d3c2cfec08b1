"""Running reductions, sorting, searching and finding what is true on a GPU.

Here: the driver's ops against NumPy, at any offset. Not here: what is made of them.
"""

import itertools

import ml_dtypes
import numpy as np
import pytest

from polygrad.driver import OutOfMemory
from polygrad_cuda import ordering_sources, searching_sources, sorting_sources
from polygrad_cuda.scratch import LEAST, MOST, Arena
from support.operands import drawn, numpy_dtype, put, take

DTYPES = [
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "bfloat16", "float32",
    "float64",
]  # fmt: skip
SHAPES = [(1,), (3,), (33,), (256,), (2048,), (2049,), (5, 130), (2, 3, 40), (3, 9000), (1000, 7), (500_003,)]


def test_every_text_has_all_its_parts():
    for dtype, kind in itertools.product(DTYPES, ("sum", "prod", "max", "min")):
        text = ordering_sources.scan(dtype, kind, numpy_dtype(dtype).itemsize)
        assert text.count("typedef") == 2
        assert "IDENTITY (" in text
    for dtype, rows in itertools.product(DTYPES, (False, True)):
        assert "key_of" in sorting_sources.sort(dtype, numpy_dtype(dtype).itemsize, "unsigned int", rows=rows)
    for dtype, right in itertools.product(DTYPES, (False, True)):
        kind = "max" if right else "min"
        assert "rank_of" in searching_sources.extreme(dtype, kind, numpy_dtype(dtype).itemsize)
        assert "BEFORE" in searching_sources.search(dtype, numpy_dtype(dtype).itemsize, "unsigned int", right=right)


class Memory:
    """A driver's part of an arena's work: addresses that are never used again."""

    def __init__(self):
        self.alive, self.full = {}, False

    def allocate(self, nbytes):
        if self.full:
            raise OutOfMemory("full")
        address = 1 << 40 if not self.alive else max(self.alive) + (1 << 40)
        self.alive[address] = nbytes
        return address

    def retire(self, address):
        self.alive.pop(address, None)


def test_scratch_memory_stays_and_grows_to_what_was_wanted():
    memory = Memory()
    arena = Arena(memory)
    assert arena.take(1000) == 0
    arena.settle(0)
    assert list(memory.alive.values()) == [LEAST]
    first = arena.take(1000)
    second = arena.take(1)
    assert second - first == 1024  # aligned
    kept = arena.used
    assert arena.take(4 * LEAST) == 0  # no room
    arena.settle(kept)
    assert list(memory.alive.values()) == [LEAST]  # somebody outside is still at it
    arena.settle(0)
    assert list(memory.alive.values()) == [8 * LEAST]
    assert arena.take(4 * LEAST)
    arena.settle(0)
    assert arena.take(MOST + 1) == 0
    arena.settle(0)
    assert list(memory.alive.values()) == [8 * LEAST]  # what is larger never comes from here
    arena.close()
    assert not memory.alive


def test_an_op_goes_on_where_there_is_no_room_for_scratch_memory_to_stay():
    memory = Memory()
    memory.full = True
    arena = Arena(memory)
    assert arena.take(10) == 0
    arena.settle(0)
    assert arena.size == 0


def wide(x):
    return x.astype(np.float32) if x.dtype == ml_dtypes.bfloat16 else x


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_sort_is_numpys_stable_one(gpu, dtype):
    rng = np.random.default_rng(3)
    for shape in SHAPES:
        x = drawn(rng, shape, dtype)
        source = put(gpu, x, dtype)
        values, places = put(gpu, np.zeros_like(x), dtype), put(gpu, np.zeros(shape, np.int64), "int64")
        gpu.op_sort((values, places), (source,), {})
        want = np.argsort(wide(x), axis=-1, kind="stable")
        np.testing.assert_array_equal(take(gpu, places), want)
        bits = np.dtype(f"u{x.dtype.itemsize}")
        np.testing.assert_array_equal(take(gpu, values).view(bits), np.take_along_axis(x, want, -1).view(bits))
        gpu.free(source.handle)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_sort_of_values_alone_gives_the_same_ones(gpu, dtype):
    rng = np.random.default_rng(3)
    for shape in SHAPES:
        x = drawn(rng, shape, dtype)
        source, values = put(gpu, x, dtype), put(gpu, np.zeros_like(x), dtype)
        gpu.op_sort_values((values,), (source,), {})
        got, want = wide(take(gpu, values)), np.sort(wide(x), axis=-1, kind="stable")
        np.testing.assert_array_equal(got, want)
        if "float" in dtype:
            zeros = want == 0
            np.testing.assert_array_equal(np.signbit(got[zeros]), np.signbit(want[zeros]))
        gpu.free(source.handle)


@pytest.mark.parametrize("kind", ["max", "min"])
@pytest.mark.parametrize("dtype", [d for d in DTYPES if d != "bool"])
def test_an_extreme_is_numpys_first_one(gpu, dtype, kind):
    rng = np.random.default_rng(6)
    for shape in SHAPES:
        x = drawn(rng, shape, dtype)
        if "float" in dtype and len(shape) > 1:
            x[0] = np.where(np.isnan(x[0]), x.dtype.type(0), x[0])  # a row without NaN
        source, out = put(gpu, x, dtype), put(gpu, np.zeros(shape[:-1], np.int64), "int64")
        gpu.op_arg_extreme((out,), (source,), {"kind": kind})
        want = (np.argmax if kind == "max" else np.argmin)(wide(x), axis=-1)
        np.testing.assert_array_equal(take(gpu, out), want)
        gpu.free(source.handle)


@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_search_is_numpys(gpu, dtype, right):
    rng = np.random.default_rng(7)
    for shape, each in (((1,), 5), ((64,), 1), ((40_097,), 3000), ((5, 130), 40)):
        x, wanted = np.sort(wide(drawn(rng, shape, dtype)), axis=-1), drawn(rng, (*shape[:-1], each), dtype)
        x = x.astype(numpy_dtype(dtype))
        operands = put(gpu, x, dtype), put(gpu, wanted, dtype)
        out = put(gpu, np.zeros(wanted.shape, np.int64), "int64")
        gpu.op_searchsorted((out,), operands, {"right": right})
        rows = zip(wide(x).reshape(-1, shape[-1]), wide(wanted).reshape(-1, each), strict=True)
        want = np.stack([np.searchsorted(a, v, "right" if right else "left") for a, v in rows])
        np.testing.assert_array_equal(take(gpu, out), want.reshape(wanted.shape))
        for ref in operands:
            gpu.free(ref.handle)


@pytest.mark.parametrize("kind", ["sum", "prod", "max", "min"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_scan_is_numpys_accumulate(gpu, dtype, kind):
    if dtype == "bool" and kind in ("sum", "prod"):
        return  # the core casts first
    ufunc = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}[kind]
    rng = np.random.default_rng(4)
    for shape in SHAPES:
        x = drawn(rng, shape, dtype)
        counted = "float" in dtype and kind in ("sum", "prod")
        if counted:
            # Sums of 16-bit floats stay in range: their signs alternate.
            x = rng.uniform(0.999, 1.001, shape)
            x = (x * np.where(np.arange(shape[-1]) % 2, -1, 1) if kind == "sum" else x).astype(numpy_dtype(dtype))
        if counted and kind == "prod" and shape[-1] > 10_000:
            continue
        source, out = put(gpu, x, dtype), put(gpu, np.zeros_like(x), dtype)
        gpu.op_scan((out,), (source,), {"kind": kind})
        got = take(gpu, out)
        gpu.free(source.handle)
        if counted:
            want = ufunc.accumulate(x.astype(np.float64), axis=-1)
            limit = {"float64": 1e-10, "float32": 3e-3, "float16": 2e-2, "bfloat16": 5e-2}[dtype]
            np.testing.assert_allclose(got.astype(np.float64), want, rtol=limit, atol=limit * 10)
        else:
            np.testing.assert_array_equal(wide(got), ufunc.accumulate(wide(x), axis=-1, dtype=wide(x).dtype))


def test_positions_of_what_is_true(gpu):
    rng = np.random.default_rng(5)
    for n, density in ((1, 1.0), (63, 0.5), (4096, 0.1), (1_000_001, 0.7), (70_000, 0.0)):
        mask = rng.random(n) < density
        mask[-1] = True
        source, out = put(gpu, mask, "bool"), put(gpu, np.zeros(mask.sum(), np.int64), "int64")
        gpu.op_nonzero((out,), (source,), {})
        np.testing.assert_array_equal(take(gpu, out), np.flatnonzero(mask))
        gpu.free(source.handle)
